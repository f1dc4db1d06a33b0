"""The peer, llama.cpp as bench/get_peer.sh builds it: its programs, run and read."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

from bench_attempts import reason
from bench_machine import Failure, command, end

MORE = os.environ.get("TANDEM_PEER_FLAGS", "").split()  # of each llama-server, such as --no-repack
PEER_LIMIT = 300  # seconds for one measurement
SERVER_START = 60  # seconds
REQUEST_LIMIT = 120
CONTEXT = 4096

# Its speculative settings that need no second model, and plain decoding: a setting that loses is no peer.
SETTINGS = {
    "plain": (),
    "ngram-simple": ("--spec-type", "ngram-simple"),
    "ngram-simple, n 3, m 8": ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3",
                               "--spec-ngram-simple-size-m", "8"),
    "ngram-map-k, n 3, m 8": ("--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", "3",
                              "--spec-ngram-map-k-size-m", "8"),
}


class Peer:
    def __init__(self, folder, model, flags=()):
        """flags: of each llama-server."""
        self.bin, self.model, self.flags = folder / "bin", model, flags
        self.about = (folder / "peer.txt").read_text().splitlines()
        for name in ("llama-bench", "llama-server", "verify_width"):
            if not (self.bin / name).exists():
                raise FileNotFoundError(f"{self.bin / name} is missing")

    def bench(self, threads, *what, seconds=PEER_LIMIT):
        """tok/s of one run of llama-bench."""
        done = command([self.bin / "llama-bench", "-m", self.model, "-t", threads, "-r", 1, "-o", "json", *what], seconds)
        tests = [t for t in json.loads(done.stdout) if t["n_gen"] or t["n_prompt"]]
        return tests[-1]["avg_ts"]

    def decode(self, threads, context, tokens, *more, seconds=PEER_LIMIT):
        return self.bench(threads, "-p", 0, "-n", tokens, "-d", context, *more, seconds=seconds)

    def prompt(self, threads, tokens):
        return self.bench(threads, "-p", tokens, "-n", 0)

    def widths(self, threads, context, repetitions, widths):
        """us[of each repetition] of each width."""
        done = command([self.bin / "verify_width", self.model, threads, context, repetitions, *widths], PEER_LIMIT)
        return json.loads(done.stdout)["us"]

    @contextlib.contextmanager
    def servers(self, threads, folder, settings=None):
        """One server a setting, side by side; those that wait use no CPU."""
        with contextlib.ExitStack() as stack:
            yield enter_all(stack, {name: self.server(threads, flags, folder / f"server{i}.log")
                                    for i, (name, flags) in enumerate((settings or SETTINGS).items())})

    @contextlib.contextmanager
    def server(self, threads, flags, log, slots=1):
        port = free_port()
        with open(log, "w") as out:
            line = (self.bin / "llama-server", "-m", self.model, "-t", threads, "-np", slots, "-c", slots * CONTEXT,
                    "--host", "127.0.0.1", "--port", port, *MORE, *self.flags, *flags)
            process = subprocess.Popen([str(x) for x in line],
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            try:
                wait_for_health(process, port, log)
                yield Server(port)
            finally:
                end(process)


def enter(stack, server):
    """The server, or one that fails whoever asks it, with the reason why it did not start."""
    try:
        return stack.enter_context(server)
    except Exception as why:
        return Absent(reason(why))


def enter_all(stack, servers):
    """Of servers whose figures count together: where one does not start, the others are not waited for."""
    entered = {}
    for name, server in servers.items():
        absent = next((s for s in entered.values() if isinstance(s, Absent)), None)
        entered[name] = absent or enter(stack, server)
    return entered


class Absent:
    def __init__(self, why):
        self.why = why

    @property
    def port(self):
        raise Failure(self.why)

    def answer(self, *_, **__):
        raise Failure(self.why)

    answer_and_drafts = answer


class Server:
    def __init__(self, port):
        self.port = port

    def answer(self, prompt_ids, tokens, **more):
        """(token ids, tok/s of decoding: the first token is not counted). With its prompt cache only decoding counts."""
        ids, speed, _ = self.answer_and_drafts(prompt_ids, tokens, **{"cache_prompt": True, **more})
        return ids, speed

    def answer_and_drafts(self, prompt_ids, tokens, **more):
        """As answer, with the number of accepted tokens. A head needs the whole prompt's states, so without the cache."""
        body = {"prompt": prompt_ids, "n_predict": tokens, "temperature": 0, "return_tokens": True, "cache_prompt": False, **more}
        r = request(self.port, "/completion", json.dumps(body).encode())
        timings = r["timings"]
        if timings["predicted_n"] < 2:
            raise Failure("llama-server's answer is too short to time")
        speed = 1000 * (timings["predicted_n"] - 1) / timings["predicted_ms"]
        return r["tokens"], speed, timings.get("draft_n_accepted", 0)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def request(port, path, body=None):
    about = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(about, timeout=REQUEST_LIMIT) as r:
        return json.load(r)


def wait_for_health(process, port, log):
    end = time.monotonic() + SERVER_START
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            request(port, "/health")
            return
        time.sleep(0.1)
    raise Failure(f"{pathlib.Path(process.args[0]).name} did not start: {log.read_text()[-300:]}")
