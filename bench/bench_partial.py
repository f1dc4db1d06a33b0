#!/usr/bin/env python3
"""Partial KV by budget, length and task: how often the model agrees with itself where it sees a part of its
cache alone, how many tokens a pass over the whole cache gives, and what is lost where what is guessed is
accepted.

  bench/bench_partial.py -m MODEL --device cuda:0 --svg docs/partial_kv.svg

Prompts are those of long_prompts.py, composed to each length; --prompts FILE keeps them for the next run. A
table on stdout. Every exact answer must be plain decoding's."""

import argparse
import json
import pathlib
import random
import sys
import tempfile

from bench_machine import Failure, command, say
from long_prompts import OPENING, PROMPTS, composed, lines_of
from svg_lines import lines_chart

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLOCK, SINK, WINDOW = 16, 2, 8  # tokens; blocks
ANSWER, NEEDLE_ANSWER = 192, 48  # tokens at most
NEEDLES = 20
LONG_CHAIN = 31  # tokens guessed before each pass, to see how far they are right
SHORT_CHAIN = 7  # what pays on a GPU
ROOM = 64  # tokens of the context beside prompt and answer
SPARE = 64  # blocks of the cache beside the context's
HEAD = ("length", "budget", "task", "right, %", "tokens a pass", "plain tok/s", "exact, chains of 7",
        "lossy, chains of 31", "lossy tokens before the first other one, %", "needles: plain, lossy")


# --- prompts ---

def tokens_of(o, text):
    """How many there are, without a chat template."""
    return len(command([o.bin / "tandem", "tokenize", "-m", o.model], given=text).stdout.split())


def request(name, text):
    return {"id": name, "messages": [{"role": "user", "content": text}]}


def needle_prompts(o, wanted):
    """Questions after one text, each about a number that stands somewhere in it: requests, {id: number}."""
    rng = random.Random(wanted)
    numbers = {f"needle {i}": rng.randrange(100000, 999999) for i in range(NEEDLES)}
    lines = lines_of(("docs/decisions/*.md",))
    lines = lines[:len(lines) * wanted // max(wanted, tokens_of(o, "\n".join(lines))) - 4 * NEEDLES]
    for i, number in reversed(list(enumerate(numbers.values()))):
        at = len(lines) * (2 * i + 1) // (2 * NEEDLES)
        lines[at:at] = ["", f"The number of locker {i + 101} is {number}.", ""]
    text = "\n".join([OPENING, "", *lines, ""])
    return [request(name, f"{text}\nWhat is the number of locker {i + 101}? Say the number and nothing else.")
            for i, name in enumerate(numbers)], numbers


def compose(o):
    """{length: {"tasks": requests, "needles": requests, "numbers": {id: number}}}"""
    if o.prompts and o.prompts.exists():
        return {int(length): prompts for length, prompts in json.loads(o.prompts.read_text()).items()}
    found = {}
    for length in o.lengths:
        say(f"composing prompts of {length} tokens")
        wanted = length - ROOM
        tasks = [request(p.name, composed(p, wanted, lambda text: tokens_of(o, text))) for p in PROMPTS]
        needles, numbers = needle_prompts(o, wanted)
        found[length] = {"tasks": tasks, "needles": needles, "numbers": numbers}
    if o.prompts:
        o.prompts.write_text(json.dumps(found))
    return found


# --- answers ---

def view_of(budget, chain, lossy=False):
    """What a request says of a view of so many tokens, and of chains."""
    return {"specpv_n_sink_blocks": SINK, "specpv_n_window_blocks": WINDOW, "specpv_lossy": lossy,
            "specpv_n_retrieval_blocks": budget // BLOCK - SINK - WINDOW, "specpv_partial_threshold": budget,
            "specpv_full_refresh_interval": chain}


def ways_of(budgets):
    """{(kind, budget): what a request says}"""
    ways = {("plain", 0): {"enable_specpv": False}}
    for b in budgets:
        ways["long", b] = view_of(b, LONG_CHAIN)
        ways["short", b] = view_of(b, SHORT_CHAIN)
        ways["lossy", b] = view_of(b, LONG_CHAIN, lossy=True)
    return ways


def answers(o, requests, ways, length, most):
    """Each prompt in all ways, one after the other, so that it is read once: {(id, kind, budget): line}."""
    lines = [dict(r, id=json.dumps([r["id"], *way]), **said)
             for r in requests for way, said in ways.items()]
    context = length + ANSWER + ROOM
    cache = ("--ctx", context, "--kv", "virtual", "--kv-blocks", context // BLOCK + SPARE,
             "--kv-in", o.kv_in)
    with tempfile.TemporaryDirectory() as folder:
        given, out = pathlib.Path(folder) / "in", pathlib.Path(folder) / "out"
        given.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command([o.bin / "tandem", "batch", "-m", o.model, "--device", o.device, "--sessions", 1, *cache,
                 "--draft", "none", "--temp", 0, "--max-tokens", most, "--partial-kv", "--partial-kv-rows",
                 LONG_CHAIN, "--partial-kv-choice", o.choice, given, out], seconds=3600)
        found = [json.loads(line) for line in out.read_text().splitlines()]
    return {tuple(json.loads(line["id"])): line for line in found}


def check_exact(found):
    """Every answer that is not lossy is plain decoding's."""
    for (name, kind, budget), line in found.items():
        if kind != "lossy" and line["token_ids"] != found[name, "plain", 0]["token_ids"]:
            raise Failure(f"{name}, {kind} chains over {budget} tokens: not the tokens of plain decoding")


# --- figures ---

def agreement(lines):
    """Of 100 guesses before which all were right, how many were right too; and tokens a pass. An answer's end
    cuts its last chain, whose last guess is taken for right."""
    looked = right = tokens = passes = 0
    for line in lines:
        stats = line["stats"]
        right += sum(stats["accepted_per_pos"])
        looked += sum([stats["rounds"], *stats["accepted_per_pos"]][:LONG_CHAIN]) - 1
        tokens += len(line["token_ids"])
        passes += stats["forwards"]
    return 100 * right / max(looked, 1), tokens / passes


def speed(lines):
    """Tokens after an answer's first one, over the time that they took: the harmonic mean of answers."""
    timed = [line["stats"]["tok_s"] for line in lines if line["stats"]["tok_s"]]
    return len(timed) / sum(1 / x for x in timed) if timed else 0


def common(a, b):
    """How many tokens come before the first that differs."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def same_tokens(lossy, plain):
    pairs = [(a["token_ids"], b["token_ids"]) for a, b in zip(lossy, plain)]
    return 100 * sum(common(a, b) for a, b in pairs) / sum(len(b) for _, b in pairs)


def needles_found(found, numbers, kind, budget):
    return sum(str(number) in found[name, kind, budget]["text"] for name, number in numbers.items())


def row(found, names, budget):
    plain, *others = ([found[name, kind, b] for name in names] for kind, b in
                      (("plain", 0), ("long", budget), ("short", budget), ("lossy", budget)))
    long, short, lossy = others
    return [*agreement(long), speed(plain), speed(short), speed(lossy), same_tokens(lossy, plain)]


def measure(o, length, prompts):
    """Rows of the table."""
    budgets = [b for b in o.budgets if 2 * b <= length]
    ways, tasks = ways_of(budgets), {"all": [p.name for p in PROMPTS]}
    for p in PROMPTS:
        tasks.setdefault(p.task, []).append(p.name)
    say(f"{length} tokens: {len(PROMPTS)} prompts in {len(ways)} ways, then {NEEDLES} needles")
    found = answers(o, prompts["tasks"], ways, length, ANSWER)
    few = {way: said for way, said in ways.items() if way[0] in ("plain", "lossy")}
    needles = answers(o, prompts["needles"], few, length, NEEDLE_ANSWER)
    check_exact(found)
    rows = []
    for budget in budgets:
        counts = [needles_found(needles, prompts["numbers"], *way)
                  for way in (("plain", 0), ("lossy", budget))]
        for task, names in tasks.items():
            needle = "{}, {}".format(*counts) if task == "all" else ""
            rows.append([length, budget, task, *row(found, names, budget), needle])
    return rows


# --- telling ---

def table(rows):
    print("|", " | ".join(HEAD), "|")
    print("|" + "---|" * len(HEAD))
    for length, budget, task, right, a_pass, plain, exact, lossy, same, needles in rows:
        cells = (f"{length:,}", f"{budget:,}", task, f"{right:.1f}", f"{a_pass:.1f}", f"{plain:.0f}",
                 f"{exact:.0f}", f"{lossy:.0f}", f"{same:.0f}", needles)
        print("|", " | ".join(cells), "|")


def picture(rows):
    series = {}
    for length, budget, task, right, *_ in rows:
        if task == "all":
            series.setdefault(f"{length:,} tokens", []).append((budget, right))
    return lines_chart(series, "tokens that are shown", "guesses that are right, %")


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True, type=pathlib.Path)
    p.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    p.add_argument("--device", default="cpu")
    p.add_argument("--choice", choices=("mass", "bound", "bound-mean"), default="mass")
    p.add_argument("--kv-in", choices=("device", "host"), default="device")
    p.add_argument("--lengths", type=numbers, default=[4096, 8192, 16384, 30000])
    p.add_argument("--budgets", type=numbers, default=[512, 1024, 2048, 4096, 8192])
    p.add_argument("--prompts", type=pathlib.Path, help="read from there, or if there is none written there")
    p.add_argument("--svg", type=pathlib.Path, help="where the picture goes")
    o = p.parse_args()
    try:
        prompts = compose(o)
        rows = [row for length in o.lengths for row in measure(o, length, prompts[length])]
    except Failure as e:
        sys.exit(f"bench_partial: {e}")
    table(rows)
    if o.svg:
        o.svg.write_text(picture(rows))


if __name__ == "__main__":
    main()
