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
        self.run = types.SimpleNamespace(bin=folder, model=model, threads=threads, flags=())
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
    """(name, unit, whether less is better, {build: function}) of the rows whose names begin with `only`. What a part of them
    needs is made when one of them is measured for the first time."""

    def __init__(self, builds, work, only):
        self.builds, self.work, self.only, self.list = builds, work, only, []
        self.simple()
        self.speculation()
        self.drafts()
        self.sessions()

    def add(self, name, unit, less, measure):
        if name.startswith(self.only):
            self.list.append((name, unit, less, {side: (lambda side=side: measure(side)) for side in self.builds}))

    def add_step(self, name, unit, less, measure):
        self.add(name, unit, less, lambda side: measure(self.builds[side]))

    def simple(self):
        threads = self.builds["old"].run.threads
        for n in dict.fromkeys((1, threads)):
            self.add_step(f"plain decode, {n} threads", "tok/s", False, lambda b, n=n: b.decode(n))
        self.add_step("512-token prompt", "us", True, lambda b: b.step("prompt:512"))
        for n in (1, 4, 8, 16):
            self.add_step(f"step of {n} rows", "us", True, lambda b, n=n: b.step(str(n)))
        self.add_step("8 rows of 8 sequences", "us", True, lambda b: b.step("seq:8"))
        for draft in ("none", "ngram"):
            self.add_step(f"first answers, draft {draft}", "ms", True, lambda b, d=draft: b.first(d))
        self.add_step("a conversation's next turn", "ms", True, Build.next_turn)
        self.add_step("longest stop beside a long prompt", "us", True, Build.longest_stop)

    @functools.cached_property
    def recording(self):
        file = self.work / "recording.jsonl"
        lines, _ = self.builds["old"].pair.answers(golden_prompts(REPLAY_PROMPTS), ANSWER, PLAIN)
        file.write_text("".join(json.dumps(r) + "\n" for r in lines.values()))
        return f"replay:{file}"

    def speculation(self):
        self.add_step("plain", "tok/s", False, lambda b: b.answers(golden_prompts(REPLAY_PROMPTS), PLAIN))
        for name, rate, more in (("replay 0", 0, {}), ("replay 0.5", 0.5, {}), ("replay 0.8, free", 0.8, {}),
                                 ("replay 0.8, lockstep", 0.8, {"pace": "lockstep", "budget": 5}),
                                 ("ledger, replay 0.8", 0.8, {"ledger": True})):
            self.add_step(name, "tok/s", False, lambda b, rate=rate, more=more: b.answers(
                golden_prompts(REPLAY_PROMPTS), Method(f"{self.recording}:{rate}", **more)))
        for group, prompts in grouped_prompts(3).items():
            self.add_step(f"ngram, {group}", "tok/s", False, lambda b, p=prompts: b.answers(p, Method("ngram")))

    @functools.cached_property
    def deep(self):
        file = self.work / "deep.gguf"
        make(self.builds["old"].run.model, file, MORE_LAYERS, SCALE)
        return {side: Build(b.run.bin, file, b.work, b.run.threads) for side, b in self.builds.items()}

    def drafts(self):
        prompts, small = [p for group in grouped_prompts(1).values() for p in group], self.builds["old"].run.model
        self.add_step("bad model draft", "tok/s", False, lambda b: b.answers(prompts, ModelDraft(layers=BAD_LAYERS)))
        for name, method in (("model draft, -md", ModelDraft(file=small)),
                             ("model draft, --draft-layers", ModelDraft(layers=GOOD_LAYERS))):
            self.add(name, "tok/s", False, lambda side, m=method: self.deep[side].answers(prompts[:3], m))

    @functools.cached_property
    def many(self):
        return {side: Sessions(b.run, b.work, 8) for side, b in self.builds.items()}

    def sessions(self):
        self.add("8 plain sessions", "tok/s", False, lambda side: self.many[side].all(PLAIN))
        self.add("8 sessions, replay 0.8", "tok/s", False, lambda side: self.many[side].all(self.many[side].replay(0.8)))


def measure(rows, repetitions):
    for name, unit, less, sides in rows:
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
        got = list(measure(Rows(builds, work, o.only).list, o.repetitions))
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
