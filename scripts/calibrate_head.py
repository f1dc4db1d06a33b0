#!/usr/bin/env python3
"""calibrate_head.py HEAD OUT.gguf PROMPTS.jsonl -m MODEL.gguf [FLAGS...]

Measures how often the target chooses what a draft head proposes, and writes the head with these match
probabilities: the weights of draft_worker/drafters/calibration.h, which every answer moves towards what it
sees. PROMPTS is a file for `tandem batch`. Its answers are drafted in lockstep, with wide trees, first at
temperature 0 and then at those of --temp, so that two runs give the same weights. 100 prompts take a few
minutes. Flags of `tandem convert-head` may be given too, such as --type q8_0 --head-type q4_1, which a head
needs that has these types already."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ.get("TANDEM_BIN", HERE.parent / "build/release/bin"))
BUDGET = 63  # of a tree: wide, so that improbable candidates are seen too


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("head")
    p.add_argument("out")
    p.add_argument("prompts")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("-n", "--max-tokens", default="96", help="of an answer (default 96)")
    p.add_argument("--temp", nargs="+", default=["0.8", "1"], help="temperatures above 0 (default 0.8 1)")
    return p.parse_known_args()


def fail(text):
    sys.exit(f"calibrate_head.py: {text}")


def write_prompts(path, prompts, temperatures):
    lines = [json.loads(line) for line in open(prompts, encoding="utf-8")]
    with open(path, "w", encoding="utf-8") as out:
        for t in temperatures:
            for number, line in enumerate(lines):
                out.write(json.dumps(line | {"id": f"{t}-{number}", "temperature": float(t)}) + "\n")


def learnt(o, temperatures, work):
    """What a draft has learnt when it has drafted all answers at these temperatures."""
    write_prompts(work / "prompts.jsonl", o.prompts, temperatures)
    done = subprocess.run([BIN / "tandem", "batch", "-m", o.model, "-md", o.head, "--draft", "eagle3",
                           "--pace", "lockstep", "--budget", str(BUDGET), "-n", o.max_tokens,
                           "--sessions", "1", "--seed", "1", "--verbose",
                           work / "prompts.jsonl", work / "answers.jsonl"],
                          capture_output=True, text=True, check=False)
    found = [line for line in done.stderr.splitlines() if line.startswith('{"draft"')]
    if done.returncode or not found:
        fail(f"tandem batch failed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(found[-1])["draft"]["calibration"]


def main():
    o, convert = parse()
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        weights = {"greedy": learnt(o, ["0"], work)["greedy"],
                   "sampled": learnt(o, o.temp, work)["sampled"]}
        file = work / "calibration.json"
        file.write_text(json.dumps(weights), encoding="utf-8")
        print(json.dumps(weights))
        sys.exit(subprocess.run([BIN / "tandem", "convert-head", o.head, o.out, "-m", o.model,
                                 "--calibration", file, *convert], check=False).returncode)


if __name__ == "__main__":
    main()
