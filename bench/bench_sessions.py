"""Several sessions at once in scripts/bench_cpu.sh: their speed together, a conversation's next turn, and a long prompt beside
an answer."""

import contextlib
import json
import statistics
import subprocess
import threading
import time

from bench_machine import Failure
from bench_pair import GOLDEN, PLAIN, Method, Pair
from bench_peer import enter, request

TOKENS = 256  # of an answer
SUBJECTS = ("the sea", "a mountain village", "an old clockmaker", "a lost satellite", "two rival bakers", "a winter train",
            "the last librarian", "a river pilot", "a blind painter", "the queen of the bees", "a travelling circus",
            "three brothers", "an island of glass", "a small robot", "the first snow", "a forgotten song",
            "the lighthouse keeper", "a garden at night", "the long war", "a talking crow")
LONG = 2000  # tokens of the prompt beside an answer
CHUNK = 128  # tokens of a prompt's piece when nobody else runs
TURN = 1500  # tokens of a conversation
NEXT = 24  # tokens of its next turn


def stories(run):
    """Beginnings of a few tokens that are continued at length: it is decoding that is measured."""
    def ids_of(text):
        done = subprocess.run([run.bin / "tandem", "tokenize", "-m", run.model], input=text.encode(), capture_output=True)
        if done.returncode != 0:
            raise Failure(f"tandem tokenize failed: {done.stderr.decode()[-300:]}")
        return [int(i) for i in done.stdout.split()]

    return [{"id": i, "prompt_ids": ids_of(f"A very long story about {what}:\n\n")} for i, what in enumerate(SUBJECTS)]


def total_speed(answers):
    """Of answers that were asked for at the same moment, (first token ms, last token ms, tokens): tokens a second from the
    first of all to the last of all; the first of each is not counted."""
    begin, end = min(a[0] for a in answers), max(a[1] for a in answers)
    return 1000 * sum(a[2] - 1 for a in answers) / (end - begin)


def times_of(line):
    stats, count = line["stats"], len(line["token_ids"])
    return stats["ttft_ms"], stats["ttft_ms"] + 1000 * (count - 1) / stats["tok_s"], count


class Sessions:
    def __init__(self, run, work, count):
        self.pair, self.work = Pair(run, work), work
        lines, _ = self.pair.answers(stories(run), TOKENS, PLAIN)
        lines = {i: r for i, r in lines.items() if len(r["token_ids"]) == TOKENS}
        if len(lines) < count:
            raise Failure(f"only {len(lines)} of {len(SUBJECTS)} stories go on for {TOKENS} tokens")
        lines = dict(list(lines.items())[:count])
        self.prompts = [{"id": i, "prompt_ids": r["prompt_ids"]} for i, r in lines.items()]
        self.plain = {i: r["token_ids"] for i, r in lines.items()}
        self.ids = [r["prompt_ids"] for r in lines.values()]
        self.recording = work / "recording.jsonl"
        self.recording.write_text("".join(json.dumps(r) + "\n" for r in lines.values()))

    def one(self, i):
        """One plain session alone; another prompt each time."""
        prompt = self.prompts[i % len(self.prompts)]
        lines, _ = self.pair.checked([prompt], TOKENS, PLAIN, self.plain)
        return total_speed([times_of(r) for r in lines.values()])

    def all(self, method):
        lines, _ = self.pair.checked(self.prompts, TOKENS, method, self.plain, sessions=len(self.prompts))
        return total_speed([times_of(r) for r in lines.values()])

    def replay(self, rate):
        return Method(f"replay:{self.recording}:{rate}")


def ask_all(server, all_ids):
    """All at once of a llama-server: their total speed."""
    port, answers, failures, begin = server.port, [], [], time.monotonic()

    def ask(ids):
        body = {"prompt": ids, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True}
        try:
            timings = request(port, "/completion", json.dumps(body).encode())["timings"]
        except Exception as why:
            failures.append(why)
            return
        end = 1000 * (time.monotonic() - begin)
        answers.append((end - timings["predicted_ms"], end, timings["predicted_n"]))

    threads = [threading.Thread(target=ask, args=(ids,)) for ids in all_ids]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise Failure(f"llama-server: {failures[0]}")
    return total_speed(answers)


def measure_many(run, table, work, count, repetitions, interleave, paired, no_peer):
    s, median, peers_row = Sessions(run, work, count), statistics.median, f"{count} sessions over llama-server's slots"
    turn = iter(range(1 << 30))
    replay = s.replay(0.8)
    measure = {"one": lambda: s.one(next(turn)), "plain": lambda: s.all(PLAIN), "replay": lambda: s.all(replay)}
    with contextlib.ExitStack() as stack:
        if run.peer:
            server = enter(stack, run.peer.server(run.threads, (), work / "slots.log", slots=count))
            measure["peer"] = lambda: ask_all(server, s.ids)
        got = interleave(repetitions, **measure)
    with table.only(f"{count} plain sessions"):
        table.set(f"{count} plain sessions", median(got["plain"]), f"one, {median(got['one']):.0f} tok/s",
                  paired(got["plain"], got["one"]))
    with table.only(f"{count} sessions, replay 0.8"):
        table.set(f"{count} sessions, replay 0.8", median(got["replay"]), f"{count} plain, {median(got['plain']):.0f} tok/s",
                  paired(got["replay"], got["plain"]))
    with table.only(peers_row):
        against, ratio = no_peer, None
        if run.peer:
            against, ratio = f"llama-server, {count} slots, {median(got['peer']):.0f} tok/s", paired(got["plain"], got["peer"])
        table.set(peers_row, median(got["plain"]), against, ratio, lacks_peer=not run.peer)


def tokens_of_golden(count):
    tokens = []
    with open(GOLDEN) as f:
        for r in map(json.loads, f):
            tokens += r["prompt_ids"]
            if len(tokens) >= count:
                return tokens[:count]
    raise Failure(f"{GOLDEN.name} has no {count} tokens")


def first_tokens(pair, prompts):
    """ms until the first token of each, one after the other in the same target."""
    lines, _ = pair.answers(prompts, 2, PLAIN)
    return [lines[p["id"]]["stats"]["ttft_ms"] for p in prompts]


def next_turn(pair):
    """(cold, next turn) ms."""
    history = tokens_of_golden(TURN)
    return first_tokens(pair, [{"id": "cold", "prompt_ids": history}, {"id": "next", "prompt_ids": history + history[:NEXT]}])


def measure_next_turn(run, table, work, repetitions):
    pair = Pair(run, work)
    got = [next_turn(pair) for _ in range(repetitions)]
    table.set("a conversation's next turn", statistics.median([b for _, b in got]),
              f"cold, {statistics.median([a for a, _ in got]):.0f} ms", statistics.median([b / a for a, b in got]))


def measure_prompt_beside(run, table, work, repetitions):
    """The longest time between two tokens of an answer while a long prompt is read."""
    pair, answer = Pair(run, work), stories(run)[0]
    prompts, stops, chunks = [answer, {"id": "long", "prompt_ids": tokens_of_golden(LONG)}], [], []
    for _ in range(repetitions):
        _, counters = pair.answers(prompts, TOKENS, PLAIN, sessions=2)
        stops.append(counters["sessions"]["longest_step_us"] / 1000)
        chunks.append(run.step(run.threads, 1, 3, f"prompt:{CHUNK}"))
    chunk = [min(us[0] for us in c) / 1000 for c in chunks]
    table.set("longest stop beside a 2,000-token prompt", statistics.median(stops),
              f"a piece of {CHUNK} tokens alone, {statistics.median(chunk):.0f} ms",
              statistics.median([a / b for a, b in zip(stops, chunk)]))
