#!/usr/bin/env python3
"""What keys cost: the pair over loopback TCP with keys (CURVE) and without, by turns.

Each turn starts `tandem batch --listen` and the workers, and makes the same answers. Plain decoding sends a
frame a token; with the draft `replay` eight of ten guesses are right, and both workers send all the time.

    bench/bench_keys.py MODEL [--bin build/release/bin] [--turns 5] [--max-tokens 256]
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from bench_stalls import Program, free_address

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPTS = 4
HOLD = 0.98  # of the speed without keys


def answers(options, draft, keys, folder):
    """The lines of OUT."""
    lines = (ROOT / "tests/golden/smollm2_greedy.jsonl").read_text().splitlines()[:PROMPTS]
    given, out = folder / "in.jsonl", folder / "out.jsonl"
    prompts = ({k: json.loads(line)[k] for k in ("id", "prompt_ids")} for line in lines)
    given.write_text("".join(json.dumps(p) + "\n" for p in prompts))
    hub = free_address(folder, True)
    bare = () if keys else ("--insecure-bind",)
    Program(folder, options.bin / "tandem", "keygen").process.wait()
    batch = Program(folder, options.bin / "tandem", "batch", "-m", options.model, "--listen", hub, *bare,
                    "--sessions", "1", "--max-tokens", options.max_tokens, "--ledger", "none", given, out)
    programs = [batch]

    def start(kind, *flags):
        programs.append(Program(folder, options.bin / f"tandem-{kind}", "--orchestrator", hub, *flags, *bare))
        programs[-1].wait(said="registered with the orchestrator")

    try:
        batch.wait(said="waiting for a target")
        if draft:
            start("draft", "--draft", draft)
        start("target", "-m", options.model)
        if batch.process.wait() != 0:
            sys.exit(batch.log.read_text("utf-8", "replace"))
    finally:
        for program in programs:
            program.end()
    return out.read_text()


def speed(options, draft, keys):
    """Tokens a second of all answers, their prompts not counted."""
    with tempfile.TemporaryDirectory(prefix="tandem-keys-") as folder:
        lines = answers(options, draft, keys, pathlib.Path(folder)).splitlines()
    counts = [(len(a["token_ids"]), a["stats"]["tok_s"]) for a in map(json.loads, lines)]
    return sum(n for n, _ in counts) / sum(n / tok_s for n, tok_s in counts)


def compare(options, name, draft):
    pairs = [(speed(options, draft, True), speed(options, draft, False)) for _ in range(options.turns)]
    with_keys, without = (statistics.median(side) for side in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{name}: {with_keys:.1f} tok/s with keys, {without:.1f} without: {ratio:.3f} (median of "
          f"{len(pairs)} turns, {min(a / b for a, b in pairs):.3f} to {max(a / b for a, b in pairs):.3f}; "
          f"hold {HOLD})", flush=True)


def main():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-keys-") as folder:
        recording = pathlib.Path(folder) / "recording.jsonl"
        with tempfile.TemporaryDirectory(prefix="tandem-keys-") as work:
            recording.write_text(answers(options, None, False, pathlib.Path(work)))
        compare(options, "plain decoding", None)
        compare(options, "a draft that is right 8 times in 10", f"replay:{recording}:0.8")


if __name__ == "__main__":
    main()
