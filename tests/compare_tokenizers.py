#!/usr/bin/env python3
"""Compares tandem's tokenizers with other programs' on strings made at random.

    compare_tokenizers.py --tool build/release/bin/test_tokenizer_families [--strings N] [--vocab N] [--seed N] [FILE...]

Trains a tokenizer of every family (tests/golden/tokenizers/make_tokenizers.py, which says what it needs) on its own texts
and those of FILE (JSON lines with "turns"), and prints how many strings of each came out different, whole and decoded.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "tokenizers"))
import make_tokenizers as make  # noqa: E402


def ask(tool, path, rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    out = subprocess.run([tool, path], input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def valid(decoded, text):
    """A program says U+FFFD for each byte of a broken character, another for each broken character."""
    return "\ufffd" not in decoded or "\ufffd" in text


def compare(tool, path, rows, want, decode):
    wrong = bad_text = texts = 0
    for row, ids, got in zip(rows, want, ask(tool, path, rows), strict=True):
        if got["ids"] != ids:
            wrong += 1
            if wrong <= 3:
                print(f"  {json.dumps(row)}\n    want {ids}\n    got  {got['ids']}")
        elif decode and ids:
            text = decode(ids)
            if not valid(text, row["text"]):
                continue
            texts += 1
            bad_text += text != got["decoded"]
            if text != got["decoded"] and bad_text <= 3:
                print(f"  {json.dumps(row)}\n    decodes to {json.dumps(got['decoded'])}, not {json.dumps(text)}")
    print(f"{os.path.basename(path):20} {len(rows):7} strings, {wrong} differ; {texts:7} decoded, {bad_text} differ", flush=True)
    return wrong + bad_text


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tool", required=True)
    p.add_argument("--strings", type=int, default=2000)
    p.add_argument("--vocab", type=int, default=3000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only")
    p.add_argument("files", nargs="*")
    a = p.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as out:
        for name, maker, encode, plain, decode in make.families(out, a.vocab, make.corpus(a.files)):
            if a.only and a.only != name:
                continue
            rng = random.Random(a.seed)
            rows = [{"text": maker(rng), "special": not plain or n % 4 != 0} for n in range(a.strings)]
            want = [(encode if row["special"] else plain)(row["text"]) for row in rows]
            for suffix in "gguf", "json":
                path = os.path.join(out, f"{name}.{suffix}")
                if os.path.exists(path):
                    bad += compare(a.tool, path, rows, want, decode)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
