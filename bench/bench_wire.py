#!/usr/bin/env python3
"""Bytes on all links of the pair for each token of an answer, without features and with those of a head.

Every program counts the frames that it sends with ZMTP's headers (--verbose); their sum is what all links
carry. The bytes of the prompt, of starting and of ending do not grow with the answer: the same prompts are
answered twice, with few tokens and with many, and the difference is what a token costs. Answers are greedy,
and in lockstep, so that the counts repeat."""

import argparse
import json
import pathlib
import sys
import tempfile

from bench_machine import Failure, command

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "bench/data/spec_bench_28.jsonl"
HEADS = [*ROOT.glob("heads/*.gguf"), *ROOT.glob("bench/heads/*.gguf")]
FEW, MANY = 16, 80
# what, flags of the draft, most bytes a token that may travel
ROWS = (("tokens only", ("--draft", "ngram"), 160),
        ("with features, fc at the target", ("-md", "HEAD"), 1500),
        ("with features, raw states", ("-md", "HEAD", "--draft-type", "q8_0"), None))


def answers(o, work, tokens, draft):
    """(bytes that all programs have sent, tokens)"""
    out = work / "out.jsonl"
    draft = [o.head if flag == "HEAD" else flag for flag in draft]
    budget = ("--budget", o.budget) if o.budget else ()
    done = command([o.bin / "tandem", "batch", "-m", o.model, "--verbose", "--ledger", "none", "--temp", "0",
                    "--sessions", "1", "--pace", "lockstep", *budget, "--max-tokens", tokens, *draft,
                    work / "in.jsonl", out])
    counters = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    wires = [c["wire"] for c in counters if "wire" in c]
    if len(wires) != 3:
        raise Failure(f"{len(wires)} of three programs told what they have sent:\n{done.stderr}")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return sum(w["sent_bytes"] for w in wires), sum(len(r["token_ids"]) for r in lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="of the programs")
    p.add_argument("--model", default=ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf", help="the target's")
    p.add_argument("--head", default=next(iter(HEADS), None), help="its EAGLE-3 head")
    p.add_argument("--budget", type=int, help="nodes of a tree (default: the program's own)")
    p.add_argument("--prompts", type=int, default=8, help="how many of bench/data are answered (default 8)")
    o = p.parse_args()
    every = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        chosen = every[::max(1, len(every) // o.prompts)][:o.prompts]
        lines = (json.dumps({"id": r["id"], "prompt": r["turns"][0]}) + "\n" for r in chosen)
        (work / "in.jsonl").write_text("".join(lines))
        for name, draft, hold in ROWS:
            (few, short), (many, long) = (answers(o, work, n, draft) for n in (FEW, MANY))
            value = (many - few) / (long - short)
            good &= hold is None or value <= hold
            verdict = "" if hold is None else f", hold <= {hold}: {'yes' if value <= hold else 'NO'}"
            print(f"{name}: {value:.0f} bytes a token ({many / long:.0f} with prompts and start){verdict}",
                  flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as e:
        sys.exit(f"bench_wire.py: {e}")
