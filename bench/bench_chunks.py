"""Trees verified in chunks (--verify-chunk) in scripts/bench_cpu.sh --only chunks and bench/bench_gpu.py: a
recording as draft, right with a given probability, whose trees of 31 nodes the target verifies at once, in
chunks of several sizes, or, in free pace, as many of the nodes as its policy finds worth their rows. A run
that does not name this part leaves it out."""

import copy
import json
import statistics

from bench_machine import Failure
from bench_pair import PLAIN, Method, Pair, grouped_prompts

ROW = "chunks: answers that differ"
EACH, PROMPTS = 3, 5  # tried, of each group; taken, by turns of the groups
ANSWER = 128  # tokens
NODES = 31
ACCEPTANCE = (0.3, 0.7)
SIBLING = 0.5  # of the wrong first candidates, so many have the right one beside them
CHUNKS = (0, 4, 8, 16)  # 0: the whole tree
FREE = "free pace"


def with_chunk(run, chunk):
    other = copy.copy(run)
    other.flags = (*run.flags, "--verify-chunk", chunk)
    return other


def measure_chunks(run, table, work, repetitions, turns):
    prompts, plain = long_answers(run, work)
    recording = work / "plain.jsonl"
    recording.write_text("".join(json.dumps(line) + "\n" for line in plain.values()))
    tokens = {i: r["token_ids"] for i, r in plain.items()}
    found = {}
    for i in range(repetitions):
        for rate in ACCEPTANCE:
            for chunk in turns((*CHUNKS, FREE), i):
                draft = f"replay:{recording}:{rate}:{SIBLING}"
                pair = Pair(with_chunk(run, 0 if chunk == FREE else chunk), work)
                method = Method(draft, pace="free" if chunk == FREE else "lockstep", budget=NODES)
                found.setdefault((rate, chunk), []).append(pair.checked(prompts, ANSWER, method, tokens))
    # `checked` fails where one differs.
    table.set(ROW, 0, f"plain decoding, {len(prompts)} answers, {repetitions} times")
    run.details.append((f"Trees of {NODES} nodes in chunks", lines_of(found)))


def long_answers(run, work):
    """The first prompts whose answers are as long as they may be: (prompts, {id: line of OUT})."""
    prompts = sum(zip(*grouped_prompts(EACH).values()), ())
    plain, _ = Pair(run, work).answers_of_any_length(prompts, ANSWER, PLAIN)
    chosen = [p for p in prompts if len(plain[p["id"]]["token_ids"]) == ANSWER][:PROMPTS]
    if len(chosen) < PROMPTS:
        raise Failure(f"only {len(chosen)} of {len(prompts)} answers have {ANSWER} tokens")
    return chosen, {p["id"]: plain[p["id"]] for p in chosen}


def totals(lines, counters):
    """Of all answers of one pass."""
    if counters is None:
        raise Failure("the target did not end with the command, so its counters are missing")
    stats = [r["stats"] for r in lines.values()]
    tokens = sum(len(r["token_ids"]) for r in lines.values())
    sums = {key: sum(s[key] for s in stats) for key in ("forwards", "draft_tokens", "forward_ms")}
    seconds = sum(len(r["token_ids"]) / r["stats"]["tok_s"] for r in lines.values())
    return {"ms": 1e3 * seconds / tokens, "forward": sums["forward_ms"] / tokens,
            "tokens": tokens / sums["forwards"],
            "rows": (sums["draft_tokens"] + sums["forwards"]) / tokens,
            "cut": counters["sessions"]["chunks_cut"],
            "left_out": counters["sessions"]["chunks_left_out"]}


def lines_of(found):
    """The medians; times are of one token."""
    head = ("acceptance", "nodes at once", "tokens a forward", "rows a token", "ms of forwards",
            "over the whole tree", "ms, drafting included", "over the whole tree", "forwards cut short",
            "chunks left out")
    lines = [head]
    for (rate, chunk), passes in found.items():
        each = [totals(*p) for p in passes]
        whole = [totals(*p) for p in found[rate, 0]]
        middle = {key: statistics.median(x[key] for x in each) for key in each[0]}
        over = {key: statistics.median(x[key] / w[key] for x, w in zip(each, whole))
                for key in ("forward", "ms")}
        lines.append((rate, chunk or NODES, f"{middle['tokens']:.2f}", f"{middle['rows']:.2f}",
                      f"{middle['forward']:.2f}", f"{over['forward']:.2f}", f"{middle['ms']:.2f}",
                      f"{over['ms']:.2f}", f"{middle['cut']:.0f}", f"{middle['left_out']:.0f}"))
    return lines
