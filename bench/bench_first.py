"""A person's first command in scripts/bench_cpu.sh: short answers of `tandem run`, which starts its programs anew for each."""

import json
import time

from bench_machine import Failure, command, say
from bench_pair import PROMPTS

COUNT = 20  # prompts
TOKENS = 12  # of an answer
DRAFTS = ("none", "ngram")


def prompts():
    with open(PROMPTS) as f:
        return [json.loads(line)["turns"][0] for line in f][:COUNT]


def answer(run, prompt, draft):
    """(milliseconds of the whole command, of its forwards and waits, token ids, stats)"""
    begin = time.monotonic()
    done = command([run.bin / "tandem", "run", "-m", run.model, "--ledger", "none", "--temp", "0", "--max-tokens", TOKENS,
                    "--json", "--draft", draft, "--", prompt])
    whole = 1000 * (time.monotonic() - begin)
    r = json.loads(done.stdout)
    s = r["stats"]
    decode = sum(s[key] for key in ("prefill_ms", "forward_ms", "accept_ms", "commit_ms", "queue_ms", "wait_ms"))
    return whole, decode, r["token_ids"], s


class First:
    def __init__(self):
        self.least = {}  # (prompt, draft): (whole ms, decode ms), the smallest of each
        self.tokens = {}
        self.rows = self.forwards = 0

    def add(self, i, draft, whole, decode, tokens, stats):
        if self.tokens.setdefault(i, tokens) != tokens:
            raise Failure(f"prompt {i}: the tokens are not those of plain decoding")
        before = self.least.get((i, draft), (whole, decode))
        self.least[i, draft] = (min(before[0], whole), min(before[1], decode))
        if draft != "none":
            self.rows += stats["forwards"] + stats["draft_tokens"]
            self.forwards += stats["forwards"]

    def times(self, draft, which):
        return [self.least[i, draft][which] for i in self.tokens]


def measure_first(run, table, passes, turns):
    first, texts = First(), prompts()
    for k in range(passes):
        say(f"first answers: pass {k + 1} of {passes}")
        for i, text in enumerate(texts):
            for draft in turns(DRAFTS, k + i):
                first.add(i, draft, *answer(run, text, draft))
    plain, drafted = first.times("none", 0), first.times("ngram", 0)
    ratios = [a / b for a, b in zip(drafted, plain)]
    worst = ratios.index(max(ratios))
    table.set("first answers, all", sum(drafted) / COUNT, f"plain, {sum(plain) / COUNT:.0f} ms; forwards and waits alone "
              f"{sum(first.times('ngram', 1)) / sum(first.times('none', 1)):.3f}", sum(drafted) / sum(plain))
    table.set("first answers, the worst", drafted[worst], f"plain, {plain[worst]:.0f} ms; prompt {worst + 1}", ratios[worst])
    table.set("first answers, rows over forwards", first.rows / first.forwards, f"{first.forwards} forwards")
