"""A model file and its draft in bench/bench_gpu.py: what speculation gives, on real prompts and with many
sessions, and whether answers are the CPU's."""

import contextlib
import copy
import json
import os
import statistics
import subprocess

from bench_attempts import turns
from bench_heads import ALL
from bench_machine import command, end
from bench_pair import PLAIN, Pair
from bench_peer import Peer, free_port, wait_for_health
from bench_real_pair import BEST, CHAT, CODE, DIFFERING, OVER, measure_real_pair, request_of
from bench_table import least, most, reported

SESSIONS = (1, 4, 16, 32)
WORST = f"sessions, the worst of {', '.join(map(str, SESSIONS))}: a draft over none"
OTHER = "answers of 24 that are not the CPU's"
TOKENS = 128  # of an answer
THREADS = 8  # of llama.cpp, which computes on the GPU
CONTEXT = 2048  # of a session beside others


def make_pair_rows():
    none = most(0, None, "answers", "value")
    return {OTHER: none, OVER: reported("tok/s"), CHAT: reported("tok/s"), BEST: least(3, 6), DIFFERING: none,
            WORST: least(0.98, 1)}


def pair_parts(size, no_peer):
    """(rows, what measures them, given a pair, a table and a folder)"""
    yield (OTHER,), measure_other
    yield (OVER, CHAT, BEST, DIFFERING), lambda *to: measure_real_pair(*to, size, turns, no_peer)
    yield (WORST,), lambda *to: measure_sessions(*to, size["passes"])


class GpuModel:
    """What the benchmarks of a model ask of a run: programs, the model, and where it computes."""

    def __init__(self, gpu, model):
        self.bin, self.model, self.threads = gpu.bin, model, THREADS
        self.flags = ("--device", gpu.device)
        self.details = []


class GpuPair(GpuModel):
    """And of a pair."""

    def __init__(self, gpu, model, draft, draft_device, peer):
        super().__init__(gpu, model)
        self.draft = draft
        self.flags += ("--draft-device", draft_device)
        number = draft_device.partition(":")[2] or "0"
        self.peer_draft = ("-ngld", 99, "-devd", f"CUDA{number}")
        on_gpu = ("-ngl", 99, "-fa", "on", "-dev", f"CUDA{gpu.number()}")
        self.peer = peer and Peer(peer.bin.parent, model, on_gpu)


@contextlib.contextmanager
def serving(pair, work):
    """The address of a `tandem serve' with room for the most sessions."""
    port, log = free_port(), work / "serve.log"
    line = (pair.bin / "tandem", "serve", "-m", pair.model, "-md", pair.draft, *pair.flags, "--port", port,
            "--ledger", "none", "--sessions", max(SESSIONS), "--ctx", CONTEXT)
    with open(log, "w") as out:
        process = subprocess.Popen([str(x) for x in line], stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=subprocess.STDOUT)
    try:
        wait_for_health(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


def gains(pair, address):
    """{sessions: (total tok/s with a draft over without, and with it)}. The first load, whose prompts nobody
    has read before, does not count: its number comes again."""
    loads = ",".join(map(str, (max(SESSIONS), *SESSIONS)))
    done = command([pair.bin / "tandem", "bench", "serve", address, ALL, "--concurrency", loads,
                    "--speculation", "both", "--max-tokens", TOKENS, "--json"])
    drafted = [r for r in map(json.loads, done.stdout.splitlines()) if r["speculation"]]
    return {r["concurrency"]: (r["gain"], r["output_tokens_per_second"]) for r in drafted}


def measure_sessions(pair, table, work, repetitions):
    with serving(pair, work) as address:
        runs = [gains(pair, address) for _ in range(repetitions)]
    gain, speed = ({n: statistics.median(r[n][i] for r in runs) for n in SESSIONS} for i in (0, 1))
    worst = min(gain, key=gain.get)
    against = f"{worst} sessions; gains {', '.join(f'{n}: {gain[n]:.2f}' for n in SESSIONS)}"
    table.set(WORST, speed[worst], against, gain[worst])
    lines = [(n, f"{speed[n]:.0f}", f"{gain[n]:.3f}") for n in SESSIONS]
    pair.details.append((f"Sessions at once, {ALL.name}", [("sessions", "tok/s", "over no draft"), *lines]))


def measure_other(pair, table, work):
    """Of all requests about code. That drafts do not change them, the rows of the pair tell."""
    with open(CODE) as f:
        prompts = [request_of(r) for r in map(json.loads, f)]
    cpu = copy.copy(pair)
    cpu.flags, cpu.threads = ("--device", "cpu"), len(os.sched_getaffinity(0))
    expected, _ = Pair(cpu, work).answers(prompts, TOKENS, PLAIN)
    seen, _ = Pair(pair, work).answers(prompts, TOKENS, PLAIN)
    other = [i for i in expected if seen[i]["token_ids"] != expected[i]["token_ids"]]
    table.set(OTHER, len(other), f"the CPU's {len(expected)} of {TOKENS} tokens, plainly")
