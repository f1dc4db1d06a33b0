"""The real pair in scripts/bench_cpu.sh: prompts through `tandem batch`, one answer at a time."""

import dataclasses
import json
import pathlib
import statistics

from bench_attempts import Attempts
from bench_machine import Failure, command

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests/golden/smollm2_greedy.jsonl"
PROMPTS = ROOT / "bench/data/spec_bench_28.jsonl"

GREEDY = ("--temp", "0")
SAMPLED = ("--temp", "0.8", "--seed", "1")


@dataclasses.dataclass(frozen=True)
class Method:
    draft: str = "none"
    sampling: tuple = GREEDY
    pace: str = "free"
    budget: int = None  # the program's own
    ledger: bool = False  # in a file

    def flags(self, work):
        budget = () if self.budget is None else ("--budget", self.budget)
        ledger = work / "ledger.sqlite" if self.ledger else "none"
        return ("--draft", self.draft, "--pace", self.pace, "--ledger", ledger, *budget, *self.sampling)


PLAIN = Method()


class Pair:
    def __init__(self, o, work):
        self.o, self.work = o, work

    def flags(self, method, threads, sessions):
        return ("--threads", threads or self.o.threads, "--sessions", sessions, *self.o.flags,
                *method.flags(self.work))

    def answers_of_any_length(self, prompts, tokens, method, threads=None, sessions=1):
        """prompts: objects for a line of IN. ({id: line of OUT}, the target's counters, if it ended with the command)."""
        given, out = self.work / "in.jsonl", self.work / "out.jsonl"
        given.write_text("".join(json.dumps(p) + "\n" for p in prompts))
        done = command([self.o.bin / "tandem", "batch", "-m", self.o.model, "--verbose", "--max-tokens", tokens,
                        *self.flags(method, threads, sessions), given, out])
        lines = {r["id"]: r for r in map(json.loads, out.read_text().splitlines())}
        counters = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"engine"')]
        return lines, counters[0] if counters else None

    def answers(self, *what, **more):
        """The same, of answers that are long enough to time."""
        lines, counters = self.answers_of_any_length(*what, **more)
        for r in lines.values():
            if not r["stats"]["tok_s"]:
                raise Failure(f"prompt {r['id']}: an answer of {len(r['token_ids'])} tokens is too short to time")
        return lines, counters

    def checked(self, prompts, tokens, method, plain, sessions=1):
        """As answers, and every greedy one equals plain decoding's: {id: token ids}."""
        lines, counters = self.answers(prompts, tokens, method, sessions=sessions)
        for i, r in lines.items():
            if method.sampling == GREEDY and r["token_ids"] != plain[i]:
                raise Failure(f"{method.draft}, prompt {i}: the tokens are not those of plain decoding")
        return lines, counters


def golden_prompts(ids):
    with open(GOLDEN) as f:
        rows = {r["id"]: r for r in map(json.loads, f)}
    return [{"id": i, "prompt_ids": rows[i]["prompt_ids"]} for i in ids]


def prompt_of_tokens(pair, count, answer_tokens):
    """The first golden prompt that has so many tokens, cut to them, after which plain decoding goes on long enough."""
    with open(GOLDEN) as f:
        rows = [r for r in map(json.loads, f) if len(r["prompt_ids"]) >= count]
    for r in rows:
        prompt = {"id": r["id"], "prompt_ids": r["prompt_ids"][:count]}
        lines, _ = pair.answers([prompt], answer_tokens, PLAIN)
        if len(lines[r["id"]]["token_ids"]) == answer_tokens:
            return prompt
    raise Failure(f"no prompt of {count} tokens is answered with {answer_tokens}")


def grouped_prompts(each):
    """{group: prompts} of the benchmark's data; the eight categories of MT-bench are one group. At most `each` of a
    group, by order."""
    tasks = {"translation", "summarization", "qa", "math_reasoning", "rag"}
    groups = {}
    with open(PROMPTS) as f:
        for r in map(json.loads, f):
            group = groups.setdefault(r["category"] if r["category"] in tasks else "mt_bench", [])
            group.append({"id": r["id"], "messages": [{"role": "user", "content": r["turns"][0]}]})
    return {name: prompts[:each] for name, prompts in groups.items()}


def speeds(lines):
    return {i: r["stats"]["tok_s"] for i, r in lines.items()}


def mean_of_medians(per_prompt):
    """Geometric mean of each prompt's median."""
    return statistics.geometric_mean([statistics.median(v) for v in per_prompt])


class Samples(Attempts):
    """tok/s of each repetition, by name and prompt."""

    def __init__(self):
        super().__init__()
        self.of = {}

    def add(self, name, lines):
        for i, speed in lines.items():
            self.of.setdefault(name, {}).setdefault(i, []).append(speed)

    def speed(self, name, ids=None):
        self.check(name)
        return mean_of_medians([v for i, v in self.of[name].items() if ids is None or i in ids])

    def ratio(self, name, base, ids=None):
        """Of what was measured side by side: the median of each prompt's ratios, then their geometric mean."""
        self.check(name, base)
        return mean_of_medians([[a / b for a, b in zip(v, self.of[base][i])] for i, v in self.of[name].items()
                                if ids is None or i in ids])
