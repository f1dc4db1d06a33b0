"""The pair over a slow line in scripts/bench_cpu.sh: orchestrator, draft and target on three hosts that are network
namespaces of this one (tests/integration/hosts.py), 20 ms apart one way, on a line that loses one packet in a hundred."""

import contextlib
import json
import pathlib
import subprocess
import sys
import time

from bench_machine import Failure
from bench_pair import Samples, grouped_prompts

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests/integration"))
from hosts import Hosts

ROW = "pair over 20 ms and 1 % loss"
DELAY, LOSS = 0.02, 0.01
GROUPS = ("summarization", "translation", "rag")  # where prompt lookup finds something
EACH = 3
TOKENS = 128
SERVER = "tcp://10.0.0.1:7000"
PATIENCE = 30  # seconds for a worker to come
LIMIT = 900  # seconds for all answers


def requests_of(repetitions):
    """Each prompt with its draft and without, by turns."""
    groups = grouped_prompts(EACH)
    prompts = [p for name in GROUPS for p in groups[name]]
    for i in range(repetitions):
        for p in prompts:
            for method in (("plain", "draft"), ("draft", "plain"))[i % 2]:
                yield dict(p, id=f"{p['id']} {i} {method}", draft=method == "draft", max_tokens=TOKENS, temperature=0)


def await_text(file, text):
    end = time.monotonic() + PATIENCE
    while text not in file.read_text():
        if time.monotonic() > end:
            raise Failure(f"no '{text}' within {PATIENCE} s: {file.read_text()[-500:]}")
        time.sleep(0.05)


def answers_over(run, work, hosts, lines):
    given, out, log = work / "far.in.jsonl", work / "far.jsonl", work / "far.log"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def start(host, program, *flags, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL):
        return subprocess.Popen([str(a) for a in hosts.command(host, run.bin / program, *flags)], stdin=stdin, stdout=stdout,
                                stderr=errors)

    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(log.open("w"))
        serve = start("orchestrator", "tandem", "serve-workers", "-m", run.model, "--listen", SERVER, "--insecure-bind",
                      "--sessions", 1, stdin=stack.enter_context(given.open()), stdout=stack.enter_context(out.open("w")))
        stack.callback(end, serve)
        stack.callback(end, start("draft", "tandem-draft", "--orchestrator", SERVER))
        await_text(log, "a draft (ngram) is here")
        stack.callback(end, start("target", "tandem-target", "-m", run.model, "--orchestrator", SERVER, "--insecure-bind",
                                  "--threads", run.threads))
        if serve.wait(LIMIT) != 0:
            raise Failure(log.read_text()[-500:])
    return [json.loads(line) for line in out.read_text().splitlines()]


def end(process):
    process.kill()
    process.wait()


def measure_network(run, table, work, repetitions):
    lines = list(requests_of(repetitions))
    try:
        with Hosts("orchestrator", "draft", "target", delay=DELAY, loss=LOSS) as hosts:
            answers = answers_over(run, work, hosts, lines)
    except OSError as e:
        raise Failure(f"network namespaces and TUN devices are needed (root, iproute2): {e}") from None
    samples, tokens, accepted, rows = Samples(), {}, 0, 0
    for a in answers:
        prompt, _, method = a["id"].split()
        if tokens.setdefault(prompt, a["token_ids"]) != a["token_ids"]:
            raise Failure(f"prompt {prompt}: the tokens are not those of plain decoding")
        samples.add(method, {prompt: a["stats"]["tok_s"]})
        accepted, rows = accepted + a["stats"]["accepted_tokens"], rows + a["stats"]["draft_tokens"]
    if rows == 0:
        raise Failure("the draft took no part")
    table.set(ROW, samples.speed("draft"), f"plain there, {samples.speed('plain'):.1f} tok/s; {accepted} of {rows} nodes accepted",
              samples.ratio("draft", "plain"))
