"""A file's second change in scripts/bench_cpu.sh: what `--draft suffix` makes of the answer to the first
one."""

import dataclasses
import json
import pathlib
import shutil

from bench_pair import PLAIN, Method, Pair, Samples, speeds

PAIRS = pathlib.Path(__file__).resolve().parent / "data/edit_pairs.jsonl"
ROW, NGRAM = "second changes, suffix", "second changes, ngram"
OVER = "second changes, suffix over ngram"
ANSWER = 400
METHODS = {"plain": PLAIN, "ngram": Method("ngram"), "suffix": Method("suffix", ledger=True)}
LOCKSTEP = {"pace": "lockstep", "budget": 7}  # where counts repeat


def prompts(half):
    with open(PAIRS) as f:
        rows = [r for r in map(json.loads, f) if r["category"] == half]
    return [{"id": r["id"], "messages": [{"role": "user", "content": r["turns"][0]}]} for r in rows]


def forget(work):
    for path in work.glob("ledger.sqlite*"):
        path.unlink()


def measure_suffix(run, table, work, repetitions, turns):
    """The ledger is as it was after the first changes before every answer to the second ones."""
    pair, samples, kept = Pair(run, work), Samples(), work / "first.sqlite"
    forget(work)
    pair.answers(prompts("first"), ANSWER, Method(ledger=True))
    shutil.copy(work / "ledger.sqlite", kept)
    second, found = prompts("second"), {}
    lines, _ = pair.answers(second, ANSWER, PLAIN)
    plain = {i: r["token_ids"] for i, r in lines.items()}

    def answers(method):
        forget(work)
        shutil.copy(kept, work / "ledger.sqlite")
        return pair.checked(second, ANSWER, method, plain)[0]

    def take(name):
        found[name] = answers(METHODS[name])
        samples.add(name, speeds(found[name]))

    for i in range(repetitions):
        for name in turns(METHODS, i):
            samples.attempt(name, take, name)
    for row, name in ((NGRAM, "ngram"), (ROW, "suffix")):
        with table.only(row):
            against = f"plain, {samples.speed('plain'):.1f} tok/s; {text_of(found[name])}"
            table.set(row, samples.speed(name), against, samples.ratio(name, "plain"))
    with table.only(OVER):
        methods = (dataclasses.replace(METHODS[name], **LOCKSTEP) for name in ("suffix", "ngram"))
        ours, theirs = (forwards(answers(method)) for method in methods)
        table.set(OVER, ours, f"ngram, {theirs}; lockstep, 7 nodes", ours / theirs)


def forwards(lines):
    return sum(r["stats"]["forwards"] for r in lines.values())


def text_of(lines):
    return f"{sum(len(r['token_ids']) for r in lines.values())} tokens in {forwards(lines)} forwards"
