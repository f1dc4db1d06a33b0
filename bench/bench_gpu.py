#!/usr/bin/env python3
"""How near to its memory a GPU decodes: models of random weights, each step beside the time to read its
weights at the rate that this run measured; with --peer, a model file beside llama.cpp on the same GPU, by
turns; with --draft, that file with a draft on a second GPU; and with the file alone trees in chunks (--only
chunks) and, with --only "long prompts", prompt lookup in prompts of 30,000 tokens, for which it must have the
context. Prints a table for people and, with --json, one JSON object a line, as bench_cpu.py does. A row that
could not be measured has holds: false, and where one does not hold the status is 1: without a peer and a
draft, unless --only leaves their rows out.

  bench/bench_gpu.py [--device cuda:0] [--bin DIR] [--model FILE [--peer DIR] [--draft FILE]
                     [--draft-device cuda:1]] [--only ROW] [--quick] [--json FILE] [--markdown FILE]

DIR of the peer is what `bench/get_peer.sh --cuda DIR` makes, the files are GGUFs that both read, for example
models/Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf and models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf. --only
measures the parts with rows that begin so.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import sys
import tempfile

from bench_attempts import turns
from bench_chunks import ROW as CHUNKS, measure_chunks
from bench_cublas import Cublas
from bench_gpu_pair import GpuModel, GpuPair, make_pair_rows, pair_parts
from bench_long import ON_GPU as LONG, ROW as LONG_PROMPTS, measure_long
from bench_machine import Failure, command, leave, say
from bench_peer import Peer
from bench_table import Table, least, markdown_table, most, plain_table, reported

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONTEXT, FAR_CONTEXT, PROMPT, DECODE = 512, 2048, 4096, 128  # tokens
ON_GPU = ("-ngl", 99, "-fa", 1, "-sm", "none")  # of llama-bench: all layers, flash attention, one GPU

# name: (model, hold, reach) of the share of the read rate at which a step of one row reads the weights
SHARES = {
    "1.5B Q4_K_M": ("synth:qwen2.5-1.5b", 0.35, 0.55),
    "8B Q4_K": ("synth:llama-3.1-8b:Q4_K", 0.55, 0.75),
    "8B Q8_0": ("synth:llama-3.1-8b:Q8_0", 0.6, 0.8),
    "8B BF16": ("synth:llama-3.1-8b:BF16", 0.72, 0.84),
    "70B Q4_K, a quarter": ("synth:70b-quarter:Q4_K", None, None),
}
# name of SHARES: {rows: hold and reach of their step over one row's}
WIDTHS = {
    "8B Q4_K": {8: (1.15, 1.05), 16: (1.3, 1.1), 32: (1.7, 1.3), 64: (2.6, 2)},
    "8B BF16": {8: (1.08, 1.04), 16: (1.1, 1.05), 32: (1.18, 1.1), 64: (1.35, 1.2)},
}
DECODES, PROMPTS = "plain decode over llama.cpp's", f"prompt of {PROMPT:,} tokens over llama.cpp's"
SMALL, SMALL_MODEL = "plain decode, default model", ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
BF16_PROMPT, BF16_MODEL = f"8B BF16, prompt of {PROMPT:,} tokens over cuBLAS's", "synth:llama-3.1-8b:BF16"
BF16_ROWS, BF16_LAYERS = 256, 32
BF16_LINEARS = {"linear q, k, v": (6144, 4096), "linear output": (4096, 4096),
                "gate, up, swiglu": (2 * 14336, 4096), "linear down": (4096, 14336)}  # outputs, inputs
FULL, QUICK = dict(tokens=128, repeat=3, passes=3), dict(tokens=64, repeat=1, passes=1)  # of the pair
FULL_LONG, QUICK_LONG = dict(repetitions=3, each=3), dict(repetitions=1, each=1)
NO_PEER = "no peer: bench/get_peer.sh --cuda DIR, then --peer DIR --model FILE"


def share_row(name):
    return f"share of the read rate, {name}"


def width_row(name, rows):
    return f"{name}, {rows} rows over one"


def make_gpu_rows():
    rows = {share_row(name): least(hold, reach, "us") if hold else reported("us")
            for name, (_, hold, reach) in SHARES.items()}
    rows.update({width_row(name, n): most(hold, reach, "us")
                 for name, widths in WIDTHS.items() for n, (hold, reach) in widths.items()})
    rows[DECODES] = least(2.5, 4)
    rows[PROMPTS] = least(1, 1.5)
    rows[SMALL] = least(1800, 2500, of="value")
    rows[BF16_PROMPT] = least(0.75, 0.9)
    none = most(0, None, "answers", "value")
    return {**rows, **make_pair_rows(), LONG_PROMPTS: least(2, 3), CHUNKS: none}


class Gpu:
    """The programs on one device."""

    def __init__(self, folder, device, quick):
        self.bin, self.device, self.repetitions = folder, device, 3 if quick else 9

    def steps(self, model, context, rows):
        """{rows: us}, the read rate in GB/s, and the bytes of the weights."""
        run = self.run(model, context, rows)
        return {s["rows"]: s["us"] for s in run["steps"]}, run["read_gb_s"], run["weight_bytes"]

    def ops(self, model, context, rows):
        """{op: us} of a step of so many rows."""
        return {op["op"]: op["us"] for op in self.run(model, context, (rows,))["steps"][0]["ops"]}

    def run(self, model, context, rows):
        done = command([self.bin / "tandem", "bench", "step", "-m", model, "--device", self.device, "--ctx",
                        context, "--rows", ",".join(map(str, rows)), "--repetitions", self.repetitions,
                        "--json"])
        return json.loads(done.stdout)

    def seconds(self, model, context, *items):
        """The median of each item of bench_step."""
        os.environ["TANDEM_TEST_DEVICE"] = self.device
        done = command([self.bin / "bench_step", model, 1, context, 3, *items])
        return [statistics.median(us) / 1e6 for us in json.loads(done.stdout)["us"]]

    def decode(self, model, context):
        """tok/s of plain steps one after the other."""
        return DECODE / self.seconds(model, context, f"decode:{DECODE}")[0]

    def prompt(self, model):
        """tok/s of a prompt up to its first token."""
        return PROMPT / self.seconds(model, CONTEXT, f"prompt:{PROMPT}")[0]

    def number(self):
        """Of the GPU, as llama-bench is to take it."""
        return self.device.partition(":")[2] or "0"

    def about(self):
        """What the device is called."""
        lines = command([self.bin / "tandem", "--list-devices"]).stdout.splitlines()
        return next((line for line in lines if line.startswith(self.device + " ")), self.device)


def measure_share(gpu, table, name):
    model = SHARES[name][0]
    us, read, weights = gpu.steps(model, CONTEXT, (1,))
    against = f"{weights / read / 1000:.0f} us to read {weights / 1e6:.0f} MB at {read:.0f} GB/s"
    table.set(share_row(name), us[1], against, weights / (us[1] * 1000) / read)


def measure_widths(gpu, table, name):
    us, *_ = gpu.steps(SHARES[name][0], FAR_CONTEXT, (1, *WIDTHS[name]))
    for n in WIDTHS[name]:
        table.set(width_row(name, n), us[n], f"one row {us[1]:.0f} us, after {FAR_CONTEXT} tokens",
                  us[n] / us[1])


def measure_peer(gpu, table, peer, repetitions):
    """Both decode and read a prompt by turns; medians."""
    if not peer:
        raise Failure(NO_PEER)
    if not any("-DGGML_CUDA=ON" in line for line in peer.about):
        raise Failure("the peer does not compute on a GPU: bench/get_peer.sh --cuda DIR")
    where, own, others = (*ON_GPU, "-mg", gpu.number()), [], []
    for _ in range(repetitions):
        own.append((gpu.decode(peer.model, CONTEXT), gpu.prompt(peer.model)))
        others.append((peer.decode(1, CONTEXT, DECODE, *where), peer.bench(1, "-p", PROMPT, "-n", 0, *where)))
    for row, a, b in zip((DECODES, PROMPTS), zip(*own), zip(*others)):
        a, b = statistics.median(a), statistics.median(b)
        table.set(row, a, f"llama.cpp {b:.0f} tok/s", a / b)


def measure_small(gpu, table):
    if not SMALL_MODEL.exists():
        raise Failure(f"{SMALL_MODEL} is missing: scripts/get_model.sh fetches it")
    table.set(SMALL, gpu.decode(SMALL_MODEL, 128), f"{DECODE} tokens after 128")


def measure_cublas(gpu, table, cublas):
    """The same prompt, had its linears taken as long as cuBLAS's products by the times of BF16_ROWS rows: all
    else is ours in both."""
    own = gpu.prompt(BF16_MODEL)
    ops = gpu.ops(BF16_MODEL, FAR_CONTEXT, BF16_ROWS)
    ours = sum(ops[name] for name in BF16_LINEARS)
    theirs = cublas(int(gpu.number())).linears(tuple(BF16_LINEARS.values()), BF16_LAYERS, BF16_ROWS)
    whole = PROMPT * 1e6 / own
    with_theirs = whole - (ours - theirs) * PROMPT / BF16_ROWS
    against = (f"{PROMPT * 1e6 / with_theirs:.0f} tok/s with cuBLAS's linears; those of {BF16_ROWS} rows "
               f"take {ours:.0f} us, cuBLAS's {theirs:.0f}")
    table.set(BF16_PROMPT, own, against, with_theirs / whole)


def measure_pair(table, pair, take):
    if not pair:
        raise Failure("no draft: --model FILE --draft FILE, and a second GPU (--draft-device)")
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as work:
        take(pair, table, pathlib.Path(work))


def measure_long_prompts(table, model, size):
    if not model:
        raise Failure(f"no model: --model FILE, one with a context of more than {LONG:,} tokens")
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as work:
        measure_long(model, table, pathlib.Path(work), LONG, size, turns)


def measure_trees_in_chunks(table, model, repetitions):
    if not model:
        raise Failure("no model: --model FILE")
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as work:
        measure_chunks(model, table, pathlib.Path(work), repetitions, turns)


def parts(gpu, table, peer, pair, quick, cublas, model):
    """(rows, what measures them)"""
    for name in SHARES:
        yield (share_row(name),), lambda: measure_share(gpu, table, name)
    for name, widths in WIDTHS.items():
        yield tuple(width_row(name, n) for n in widths), lambda: measure_widths(gpu, table, name)
    yield (DECODES, PROMPTS), lambda: measure_peer(gpu, table, peer, 1 if quick else 3)
    yield (SMALL,), lambda: measure_small(gpu, table)
    yield (BF16_PROMPT,), lambda: measure_cublas(gpu, table, cublas)
    for rows, take in pair_parts(QUICK if quick else FULL, NO_PEER):
        yield rows, lambda: measure_pair(table, pair, take)
    yield (CHUNKS,), lambda: measure_trees_in_chunks(table, model, 1 if quick else 5)
    yield (LONG_PROMPTS,), lambda: measure_long_prompts(table, model, QUICK_LONG if quick else FULL_LONG)


def measure(gpu, table, peer=None, pair=None, quick=False, only="", cublas=Cublas, model=None):
    """The rows that were chosen."""
    chosen = []
    for rows, take in parts(gpu, table, peer, pair, quick, cublas, model):
        if not any(row.startswith(only) for row in rows):
            continue
        chosen += rows
        with table.only(*rows):
            take()
    return chosen


def read_options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--peer", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, help="a GGUF that tandem and the peer read")
    parser.add_argument("--draft", type=pathlib.Path, help="another one, which drafts for it")
    parser.add_argument("--draft-device", default="cuda:1")
    parser.add_argument("--only", default="", help="only the parts with rows that begin so")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: a first look, not a result")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    o = parser.parse_args(arguments)
    if (o.peer or o.draft) and not o.model:
        parser.error("--peer and --draft go with --model: the model that they read or draft for")
    if not any(row.startswith(o.only) for row in make_gpu_rows()):
        parser.error(f"no row begins with '{o.only}': {'; '.join(make_gpu_rows())}")
    return o


def main():
    signal.signal(signal.SIGTERM, leave)
    o = read_options()
    gpu, table = Gpu(o.bin.resolve(), o.device, o.quick), Table(make_gpu_rows())
    about, commit = gpu.about(), command([gpu.bin / "tandem", "--version"]).stdout.splitlines()[0]
    peer = Peer(o.peer.resolve(), o.model.resolve()) if o.peer else None
    pair = GpuPair(gpu, o.model.resolve(), o.draft.resolve(), o.draft_device, peer) if o.draft else None
    model = GpuModel(gpu, o.model.resolve()) if o.model else None
    names = measure(gpu, table, peer, pair, o.quick, o.only, model=model)
    top = f"{about}\n{commit}" + (f"\npeer: {peer.about[0]}" if peer else "")
    details = [(title, plain_table(lines)) for run in (pair, model) if run for title, lines in run.details]
    print(top, plain_table(table.cells(names), right=(1, 4)), *sum(details, ()), sep="\n\n")
    lines = list(table.lines(names, about, commit))
    if o.json:
        o.json.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if o.markdown:
        o.markdown.write_text(f"{top}\n\n{markdown_table(table.cells(names))}\n")
    return 0 if all(line["holds"] for line in lines) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, OSError) as failure:
        say(str(failure))
        sys.exit(1)
