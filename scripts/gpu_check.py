#!/usr/bin/env python3
"""What scripts/gpu_check.sh does once everything is built: runs the checks of a GPU, and prints a table with
a line for each: what, seen, hold, ok or FAILED. It needs the programs, the model and Python's own library.

  BIN       folder of the programs and tests (build/release/bin)
  DEVICE    what is checked (cuda:0); far:cpu tries the script itself on a machine without a GPU
  MODEL     the default model (models/SmolLM2-135M-Instruct.Q4_1.gguf)

The status is 1 when a line says FAILED. With --minutes a check that would end too late is left out, and its
line says so.
"""

import argparse
import concurrent.futures
import glob
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = pathlib.Path(os.environ.get("BIN") or ROOT / "build/release/bin").resolve()
DEVICE = os.environ.get("DEVICE") or "cuda:0"
DEFAULT_MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = pathlib.Path(os.environ.get("MODEL") or DEFAULT_MODEL)
GOLDEN = ROOT / "tests/golden/smollm2_greedy.jsonl"
BENCH_PROMPTS, BENCH_TOKENS = ROOT / "bench/data/spec_bench_96.jsonl", 96
HEAD = ROOT / "heads/smollm2-135m-instruct-eagle3.gguf"  # of the default model
LOGS = ROOT / "build/gpu_check"
THREADS = min(16, os.cpu_count())  # of the processors that a GPU is compared with
TIMES = 3  # that a speed is measured
BUDGETS = (7, 15, 31)  # nodes of a verify step, of which the best counts
TOOLS = ("memcheck", "initcheck", "racecheck")
TEST_SECONDS, FAILOVER_SECONDS = 900, 300
GREEDY, SAMPLED = ("--temp", "0"), ("--temp", "0.8", "--seed", "1")
FILTERED = (*SAMPLED, "--top-k", "40", "--top-p", "0.95", "--min-p", "0.02", "--repeat-penalty", "1.1",
            "--presence-penalty", "0.3", "--frequency-penalty", "0.2", "--logit-bias", "28-1.5")
IS_GPU = DEVICE.startswith("cuda")


class Failure(Exception):
    pass


class OutOfTime(Exception):
    pass


class Clock:
    def __init__(self, minutes):
        self.begin, self.end = time.monotonic(), time.monotonic() + 60 * minutes if minutes else None

    def left(self, most=TEST_SECONDS):
        """Seconds that a command may take."""
        seconds = most if self.end is None else min(most, self.end - time.monotonic())
        if seconds < 2:
            raise OutOfTime
        return seconds


class Table:
    def __init__(self):
        self.failed = self.skipped = self.count = 0
        print(f"| {'what':<46} | {'seen':<44} | {'hold':<14} |        |")
        print(f"| {'-' * 46} | {'-' * 44} | {'-' * 14} | ------ |", flush=True)

    def row(self, what, seen, hold="", ok=None):
        """ok None: it is only told. False counts."""
        verdict = {None: "", True: "ok", False: "FAILED"}[ok]
        self.count += 1
        self.failed += ok is False
        print(f"| {what:<46} | {seen:<44} | {hold:<14} | {verdict:<6} |", flush=True)

    def skip(self, what, why):
        self.skipped += 1
        self.row(what, f"not done: {why}")

    def attempt(self, what, check, *arguments):
        """What check returns: (seen, hold, ok) of one line."""
        try:
            self.row(what, *check(*arguments))
        except OutOfTime:
            self.skip(what, "out of time")
        except Failure as e:
            self.row(what, str(e), "", False)


def run(clock, command, env=None, log=None, most=TEST_SECONDS, cwd=ROOT):
    """(status, stdout and stderr together)"""
    seconds = clock.left(most)
    try:
        done = subprocess.run([str(a) for a in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=seconds, cwd=cwd,
                              env=dict(os.environ, **(env or {})))
        status, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as e:
        if seconds < most:
            raise OutOfTime from None
        status, text = "timeout", str(e)
    if log:
        (LOGS / log).write_text(text)
    return status, text


# --- answers of the real programs ---


class Answers:
    """`tandem batch` over golden prompts."""

    def __init__(self, clock, prompts, tokens, work):
        self.clock, self.tokens, self.work = clock, tokens, work
        with open(GOLDEN) as f:
            records = [json.loads(line) for line in f][:prompts]
        self.count = len(records)
        self.source = work / "in.jsonl"
        self.source.write_text("".join(json.dumps({"id": r["id"], "prompt_ids": r["prompt_ids"]}) + "\n"
                                       for r in records))
        self.runs = 0

    def ask(self, device, *flags):
        """(answers by id, the target's counters, the file)"""
        self.runs += 1
        out = self.work / f"{self.runs}.jsonl"
        command = [BIN / "tandem", "batch", "-v", "-m", MODEL, "--device", device, "--ledger", "none",
                   "--threads", THREADS, "--max-tokens", self.tokens, *flags, self.source, out]
        status, text = run(self.clock, command, log=f"batch_{self.runs}.txt")
        if status != 0:
            raise Failure(f"tandem batch: {status}, build/gpu_check/batch_{self.runs}.txt")
        lines = [line for line in text.splitlines() if line.startswith('{"engine"')]
        answers = {a["id"]: a for a in map(json.loads, out.read_text().splitlines())}
        return answers, json.loads(lines[-1]) if lines else None, out

    def reference(self, sampling):
        return self.ask("cpu", "--draft", "none", "--sessions", "1", *sampling)[0]

    def differing(self, expected, *flags):
        """The line of a comparison with the CPU's answers."""
        got = self.ask(DEVICE, *flags)[0]
        wrong = sum(got[i]["token_ids"] != a["token_ids"] or got[i]["numerics_id"] != a["numerics_id"]
                    for i, a in expected.items())
        return f"{wrong} of {self.count} answers differ from the CPU's", "0", wrong == 0


def speed(answers):
    return statistics.geometric_mean(a["stats"]["tok_s"] for a in answers.values() if a["stats"]["tok_s"])


def check_answers(table, a):
    for name, sampling in (("greedy", GREEDY), ("T = 0.8", SAMPLED), ("filters and penalty", FILTERED)):
        try:
            expected = a.reference(sampling)
        except (Failure, OutOfTime) as e:
            table.skip(f"{name}: the CPU's answers", str(e) or "out of time")
            continue
        for how, flags in (("plain", ("--draft", "none", "--sessions", "1")),
                           ("ngram", ("--draft", "ngram", "--sessions", "1")),
                           ("8 sessions, ngram", ("--draft", "ngram", "--sessions", "8"))):
            table.attempt(f"{name}, {how}", a.differing, expected, *flags, *sampling)


# --- speed ---

PLAIN = ("--draft", "none", "--sessions", "1", *GREEDY)


def plain_speeds(a):
    """tok/s of the device and of the processors, by turns; and the device's answers."""
    seen = {DEVICE: [], "cpu": []}
    for _ in range(TIMES):
        for device in seen:
            answers, _, out = a.ask(device, *PLAIN)
            seen[device].append(speed(answers))
            if device == DEVICE:
                recorded = out
    return statistics.median(seen[DEVICE]), statistics.median(seen["cpu"]), recorded


def replayed(a, recorded, *flags):
    """Speed and counters of the target's engine, with a draft that is right in 8 of 10 cases."""
    draft = f"replay:{recorded}:0.8"
    answers, counters, _ = a.ask(DEVICE, "--draft", draft, "--sessions", "1", *flags, *GREEDY)
    return speed(answers), counters["engine"]


def check_speed(table, a):
    held = lambda value, least: value >= least if IS_GPU else None
    try:
        plain, cpu, recorded = plain_speeds(a)
        table.row("plain, default model", f"{plain:.0f} tok/s", ">= 600", held(plain, 600))
        table.row(f"the same over {THREADS} threads of the CPU", f"{plain / cpu:.2f} ({cpu:.0f} tok/s)",
                  ">= 1.5", held(plain / cpu, 1.5))
        over = {b: replayed(a, recorded, "--pace", "lockstep", "--budget", b)[0] / plain for b in BUDGETS}
        best = max(over, key=over.get)
        table.row("replay 0.8, lockstep, over plain", f"{over[best]:.2f} (budget {best})", ">= 2.2",
                  held(over[best], 2.2))
        # In lockstep no nodes are at hand when a step ends.
        engine = replayed(a, recorded, "--pace", "free")[1]
        table.row("idle device between steps, nodes at hand",
                  f"{engine['idle_us_median']} us (p90 {engine['idle_us_p90']}, {engine['gaps']} times)",
                  "<= 100 us", held(-engine["idle_us_median"], -100) if engine["gaps"] else None)
    except OutOfTime:
        table.skip("speed", "out of time")
    except Failure as e:
        table.row("speed", str(e), "", False)


# --- drafts on GPUs ---


def drafted(a, expected, plain, device):
    answers = a.ask(DEVICE, "--draft-layers", "6", "--draft-device", device, "--sessions", "1", *GREEDY)[0]
    wrong = sum(answers[i]["token_ids"] != e["token_ids"] for i, e in expected.items())
    return f"{wrong} answers differ; {speed(answers) / plain:.2f} of plain speed", "0", wrong == 0


def check_drafts(table, clock, a):
    try:
        expected, _, _ = a.ask(DEVICE, *PLAIN)
        listed = run(clock, [BIN / "tandem", "--list-devices"])[1]
    except (Failure, OutOfTime) as e:
        table.skip("drafts on GPUs", str(e) or "out of time")
        return
    plain = speed(expected)
    table.attempt(f"draft of 6 layers on {DEVICE} too", drafted, a, expected, plain, DEVICE)
    if not re.search(r"^cuda:1\s", listed, re.M):
        table.skip("draft of 6 layers on cuda:1", "there is no cuda:1")
    else:
        table.attempt("draft of 6 layers on cuda:1", drafted, a, expected, plain, "cuda:1")


# --- the default draft: the head, and prompt lookup beside it ---


class DefaultDraft:
    """`tandem bench spec` over prompts of all kinds, each plainly and with the draft by turns."""

    def __init__(self, clock, prompts, tokens, work):
        lines = BENCH_PROMPTS.read_text().splitlines(keepends=True)
        self.source = work / BENCH_PROMPTS.name
        self.source.write_text("".join(lines[::max(1, len(lines) // prompts)][:prompts]))
        self.clock, self.tokens = clock, min(tokens, BENCH_TOKENS)

    def over_plain(self, device, least=None):
        """The line of a draft on that device. BIN need not lie where tandem finds the head by itself."""
        log = f"head_{device.replace(':', '_')}.txt"
        command = [BIN / "tandem", "bench", "spec", "-m", MODEL, "-md", HEAD, "--device", DEVICE,
                   "--draft-device", device, "--threads", THREADS, "--max-tokens", self.tokens, *GREEDY,
                   "--json", self.source]
        status, text = run(self.clock, command, log=log)
        found = re.search(r'^\{.*"rows".*$', text, re.M)  # also where answers differ, with another status
        if not found:
            raise Failure(f"tandem bench spec: {status}, build/gpu_check/{log}")
        row = next(r for r in json.loads(found[0])["rows"] if r["category"] == "all")
        wrong, gain = row["different"], row["gain"]
        seen = f"{gain:.2f} ({row['tok_s']:.0f} tok/s); {wrong} answers differ"
        hold = f">= {least:g}; 0" if least and IS_GPU else "0"
        fast = not least or not IS_GPU or gain >= least
        return seen, hold, status == 0 and wrong == 0 and fast


def check_head(table, draft):
    if MODEL.name != DEFAULT_MODEL.name or not HEAD.exists():
        table.skip("default draft", "there is no head for this model")
        return
    table.attempt("default draft on the CPU, over plain", draft.over_plain, "cpu", 1.6)
    table.attempt(f"default draft on {DEVICE} too, over plain", draft.over_plain, DEVICE)


# --- lost devices, failover ---


# The tests' classes, what of their figures is shown, and at most how much it may be.
UNITTESTS = (("Lost", r"ended ([\d.]+) s after", "ends {} s after it is lost", 1.0),
             ("Failover", r"(\d+ answers: \d+ moved twice)", "{}", None),
             ("Together", None, "all pass", None))


def unittests(clock, part, pattern, words, most):
    name = f"test_devices.{part}"
    env = {"TANDEM_BIN": str(BIN), "TANDEM_TEST_DEVICES": f"{DEVICE},cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    log = f"{name}.txt"
    command = [sys.executable, "-m", "unittest", "-v", name]
    status, text = run(clock, command, env, log, FAILOVER_SECONDS, ROOT / "tests/integration")
    if status != 0:
        return f"{status}, see build/gpu_check/{log}", "", False
    figures = sorted(re.findall(pattern, text), key=float if most else None) if pattern else []
    seen = words.format(figures[-1] if figures else "?")
    hold = f"<= {most:g} s" if most else "0 differ"
    return seen, hold, all(float(f) <= most for f in figures) if most else True


def check_failover(table, clock):
    if not (ROOT / "tests/integration/test_devices.py").exists():
        table.skip("lost devices and failover", "no tests/integration/test_devices.py")
        return
    for part, *how in UNITTESTS:
        table.attempt(f"test_devices.{part} ({DEVICE}, cpu)", unittests, clock, part, *how)


# --- tests in C ---


SHOWS = {"test_model_bits_real": ": logits of 1,500 tokens", "test_ops_linear": ": all types and shapes"}


def programs():
    """The tests of the kernels, and those that read the name of a device to open."""
    kernels = sorted((BIN / "gpu").glob("test_*")) if IS_GPU else []
    others = [p for p in BIN.glob("test_*") if b"TANDEM_TEST_DEVICE" in p.read_bytes()]
    first = ("test_self_test", "test_model_bits", "test_ops", "")  # those that say most about a device
    return kernels, sorted(others, key=lambda p: ([p.name.startswith(f) for f in first].index(True), p.name))


def test(clock, program):
    log = f"{program.relative_to(BIN)}.txt".replace("/", "_")
    begin = time.monotonic()
    env = {"TANDEM_TEST_DEVICE": DEVICE, "TANDEM_TEST_ROOT": str(ROOT)}
    status, text = run(clock, [program], env, log)
    if status != 0:
        return f"{status}, see build/gpu_check/{log}", "", False
    skipped = text.count("[  SKIPPED ] ") // 2  # each is named again at the end
    more = f", {skipped} skipped" if skipped else ""
    return f"all pass in {time.monotonic() - begin:.0f} s{more}", "0 bits differ", True


def sanitizer():
    found = shutil.which("compute-sanitizer") or sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))
    return found[-1] if isinstance(found, list) and found else found or None


def sanitized(clock, tool, name, program):
    log = f"{tool}_{program.name}.txt"
    env = {"TANDEM_TEST_DEVICE": DEVICE, "TANDEM_TEST_ROOT": str(ROOT)}
    status, text = run(clock, [name, "--tool", tool, "--error-exitcode", "9", program], env, log)
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    if status != 0:
        return f"{status}, see build/gpu_check/{log}", "", False
    return (summary[-1] if summary else "no summary")[:44], "0 errors", bool(summary)


def in_parallel(table, jobs):
    """jobs: (what, check, arguments...). The lines come in the jobs' order."""
    with concurrent.futures.ThreadPoolExecutor(max(1, os.cpu_count() // 2)) as pool:
        futures = [(what, pool.submit(check, *arguments)) for what, check, *arguments in jobs]
        for what, future in futures:
            table.attempt(what, future.result)


def check_tests(table, clock):
    kernels, others = programs()
    for what, found in (("tests that take a device", others), ("tests of kernels, gpu/test_*", kernels)):
        if not found and (IS_GPU or what.endswith("device")):
            table.row(what, f"none in {BIN}", "", False)
    in_parallel(table, [(str(p.relative_to(BIN)) + SHOWS.get(p.name, ""), test, clock, p)
                        for p in kernels + others])
    name = sanitizer() if IS_GPU else None
    if not name:
        table.skip("compute-sanitizer", "it is not there" if IS_GPU else "no CUDA device")
        return
    whole = [p for p in others if p.name == "test_self_test"]
    in_parallel(table, [(f"{tool}: {p.name}", sanitized, clock, tool, name, p)
                        for tool in TOOLS for p in whole + kernels])


def link_model():
    """Where tests look for it."""
    if not DEFAULT_MODEL.exists() and MODEL.exists():
        DEFAULT_MODEL.parent.mkdir(exist_ok=True)
        DEFAULT_MODEL.symlink_to(MODEL.resolve())
    if not MODEL.exists():
        sys.exit(f"gpu_check: {MODEL} is missing: scripts/get_model.sh fetches it, MODEL=FILE names another")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0, help="at most so long (0: until all is done)")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--only", default="", help="answers, speed, drafts, head, failover or tests")
    o = parser.parse_args()
    link_model()
    LOGS.mkdir(parents=True, exist_ok=True)
    table, clock = Table(), Clock(o.minutes)
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as work:
        a = Answers(clock, o.prompts, o.tokens, pathlib.Path(work))
        checks = {"answers": lambda: check_answers(table, a), "speed": lambda: check_speed(table, a),
                  "drafts": lambda: check_drafts(table, clock, a),
                  "head": lambda: check_head(table, DefaultDraft(clock, o.prompts, o.tokens, a.work)),
                  "failover": lambda: check_failover(table, clock),
                  "tests": lambda: check_tests(table, clock)}
        for name, check in checks.items():
            if o.only in ("", name):
                check()
    print(f"gpu_check: {DEVICE}: {table.count} lines, {table.failed} failed, {table.skipped} not done, "
          f"{time.monotonic() - clock.begin:.0f} s")
    sys.exit(1 if table.failed else 0)


if __name__ == "__main__":
    main()
