#!/usr/bin/env python3
"""Two builds of the programs, side by side: `bench/bench_against.py OLD NEW` (folders with programs, such as build/release/bin).

Every figure of one is measured beside the other's, by turns, so that what else the machine does meets both alike. The ratio
is the median of the pairs' ratios, new over old, turned round where less is better: above 1 the new one is faster. Exits 1
when a row is below the hold.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import types

from bench_attempts import Attempts, turns
from bench_drafts import ANSWER, BAD_LAYERS, GOOD_LAYERS, MORE_LAYERS, SCALE, ModelDraft
from bench_first import answer as first_answer, prompts as first_prompts
from bench_machine import Failure, command, say
from bench_pair import PLAIN, ROOT, Method, Pair, golden_prompts, grouped_prompts, prompt_of_tokens
from bench_sessions import LONG, TOKENS, Sessions, next_turn, stories, tokens_of_golden
from bench_table import plain_table
from make_deep_model import make

HOLD = 0.98
REPLAY_PROMPTS = (85, 121, 131, 468)
MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
FIRST = 6  # prompts of first answers


def harmonic(lines):
    """Tokens a second over all answers of a pass."""
    return len(lines) / sum(1 / r["stats"]["tok_s"] for r in lines.values())


class Build:
    """One of the two, with its measurements: each method gives a figure, tok/s or microseconds."""

    def __init__(self, folder, model, work, threads):
        self.run = types.SimpleNamespace(bin=folder, model=model, threads=threads)
        self.pair = Pair(self.run, work)
        self.work = work

    def step(self, item, threads=None):
        r = json.loads(command([self.run.bin / "bench_step", self.run.model, threads or self.run.threads, 128, 5, item]).stdout)
        return statistics.median(r["us"][0])

    @functools.cached_property
    def prompt(self):
        return prompt_of_tokens(self.pair, 128, 129)

    def decode(self, threads):
        return harmonic(self.pair.answers([self.prompt], 129, PLAIN, threads)[0])

    def answers(self, prompts, method, tokens=ANSWER):
        return harmonic(self.pair.answers(prompts, tokens, method)[0])

    def first(self, draft):
        return sum(first_answer(self.run, text, draft)[0] for text in first_prompts()[:FIRST])

    def next_turn(self):
        return next_turn(self.pair)[1]

    def longest_stop(self):
        prompts = [stories(self.run)[0], {"id": "long", "prompt_ids": tokens_of_golden(LONG)}]
        return self.pair.answers(prompts, TOKENS, PLAIN, sessions=2)[1]["sessions"]["longest_step_us"]


class Rows:
    """(name, unit, whether less is better, {build: function})"""

    def __init__(self, builds, work):
        self.builds, self.work, self.list = builds, work, []
        self.simple()
        self.speculation()
        self.drafts()
        self.sessions()

    def add(self, name, unit, less, measure):
        self.list.append((name, unit, less, {side: (lambda b=b: measure(b)) for side, b in self.builds.items()}))

    def simple(self):
        threads = self.builds["old"].run.threads
        for n in dict.fromkeys((1, threads)):
            self.add(f"plain decode, {n} threads", "tok/s", False, lambda b, n=n: b.decode(n))
        self.add("512-token prompt", "us", True, lambda b: b.step("prompt:512"))
        for n in (1, 4, 8, 16):
            self.add(f"step of {n} rows", "us", True, lambda b, n=n: b.step(str(n)))
        self.add("8 rows of 8 sequences", "us", True, lambda b: b.step("seq:8"))
        for draft in ("none", "ngram"):
            self.add(f"first answers, draft {draft}", "ms", True, lambda b, d=draft: b.first(d))
        self.add("a conversation's next turn", "ms", True, Build.next_turn)
        self.add("longest stop beside a long prompt", "us", True, Build.longest_stop)

    def speculation(self):
        prompts, recording = golden_prompts(REPLAY_PROMPTS), self.work / "recording.jsonl"
        lines, _ = self.builds["old"].pair.answers(prompts, ANSWER, PLAIN)
        recording.write_text("".join(json.dumps(r) + "\n" for r in lines.values()))
        replay = f"replay:{recording}"
        methods = {"plain": PLAIN, "replay 0": Method(f"{replay}:0"), "replay 0.5": Method(f"{replay}:0.5"),
                   "replay 0.8, free": Method(f"{replay}:0.8"), "replay 0.8, lockstep": Method(f"{replay}:0.8", pace="lockstep", budget=5),
                   "ledger, replay 0.8": Method(f"{replay}:0.8", ledger=True)}
        for name, method in methods.items():
            self.add(name, "tok/s", False, lambda b, m=method: b.answers(prompts, m))
        for group, list_of in grouped_prompts(3).items():
            self.add(f"ngram, {group}", "tok/s", False, lambda b, p=list_of: b.answers(p, Method("ngram")))

    def drafts(self):
        prompts = [p for group in grouped_prompts(1).values() for p in group]
        self.add("bad model draft", "tok/s", False, lambda b: b.answers(prompts, ModelDraft(layers=BAD_LAYERS)))
        deep, small = self.work / "deep.gguf", self.builds["old"].run.model
        make(small, deep, MORE_LAYERS, SCALE)
        builds = {side: Build(b.run.bin, deep, b.work, b.run.threads) for side, b in self.builds.items()}
        for name, method in (("model draft, -md", ModelDraft(file=small)),
                             ("model draft, --draft-layers", ModelDraft(layers=GOOD_LAYERS))):
            self.list.append((name, "tok/s", False, {side: (lambda b=b, m=method: b.answers(prompts[:3], m))
                                                     for side, b in builds.items()}))

    def sessions(self):
        many = {side: Sessions(b.run, b.work, 8) for side, b in self.builds.items()}
        for name, method in (("8 plain sessions", lambda s: PLAIN), ("8 sessions, replay 0.8", lambda s: s.replay(0.8))):
            self.list.append((name, "tok/s", False, {side: (lambda s=s, m=method: s.all(m(s))) for side, s in many.items()}))


def measure(rows, repetitions, only):
    for name, unit, less, sides in rows:
        if not name.startswith(only):
            continue
        attempts, got = Attempts(), {"old": [], "new": []}
        for i in range(repetitions):
            pair = {side: attempts.attempt(side, sides[side]) for side in turns(sides, i)}
            if None not in pair.values():
                for side, value in pair.items():
                    got[side].append(value)
        if not got["old"]:
            yield name, unit, None, None, None
            continue
        ratio = statistics.median([a / b for a, b in zip(*((got["old"], got["new"]) if less else (got["new"], got["old"])))])
        say(f"{name}: {ratio:.3f}")
        yield name, unit, statistics.median(got["old"]), statistics.median(got["new"]), ratio


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old", type=pathlib.Path)
    p.add_argument("new", type=pathlib.Path)
    p.add_argument("--model", type=pathlib.Path, default=MODEL)
    p.add_argument("--repetitions", type=int, default=7)
    p.add_argument("--only", default="", help="rows whose names begin so")
    o = p.parse_args()
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as work:
        work, builds = pathlib.Path(work), {}
        for side, folder in (("old", o.old), ("new", o.new)):
            (work / side).mkdir()
            builds[side] = Build(folder.resolve(), o.model.resolve(), work / side, threads)
            print(f"{side}: {command([folder / 'tandem', '--version']).stdout.splitlines()[0]}")
        got = list(measure(Rows(builds, work).list, o.repetitions, o.only))
    print(plain_table([("row", "unit", "old", "new", "new over old", "hold")] +
                      [(name, unit, *("-" if x is None else f"{x:.4g}" for x in figures),
                        "NO" if figures[-1] is None or figures[-1] < HOLD else "yes") for name, unit, *figures in got],
                      right=(2, 3, 4)))
    return 0 if all(ratio is not None and ratio >= HOLD for *_, ratio in got) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        say(str(failure))
        sys.exit(1)
