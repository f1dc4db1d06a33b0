#!/usr/bin/env python3
"""The rows of scripts/bench_cpu.sh: measures them with the programs in --bin, beside llama.cpp where --peer has it, and
prints them as a table for people and, with --json, one JSON object a line. Every row appears once; one that could not be
measured, or lacks its peer, has holds: false. Only the holds are written down (bench_table.py): every figure, the limits and
the peer's included, comes from this run. docs/PERFORMANCE.md tells how to read them.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from bench_attempts import Attempts, interleave, turns
from bench_chunks import ROW as CHUNKS, measure_chunks
from bench_machine import Contention, Failure, busy_neighbour, command, cpu_info, describe_load, leave, say
from bench_drafts import measure_drafts
from bench_features import ROW as FEATURES, measure_features
from bench_first import measure_first
from bench_heads import ROWS as HEAD_ROWS, measure_heads
from bench_long import ON_CPU, ROW as LONG_PROMPTS, measure_long
from bench_methods import ROW as METHODS, measure_methods
from bench_network import DELAYS, LOSSY, ROW as FAR, head_file, measure_far, measure_network
from bench_pair import (GOLDEN, PLAIN, PROMPTS, ROOT, SAMPLED, Method, Pair, Samples, golden_prompts, grouped_prompts,
                        prompt_of_tokens, speeds)
from bench_peer import SETTINGS, Peer
from bench_real_pair import ROW as REAL_PAIR, measure_real_pair, of_pair
from bench_sessions import measure_many, measure_next_turn, measure_prompt_beside
from bench_suffix import measure_suffix
from bench_table import (NGRAM_GROUPS, SESSIONS, Table, linear_limit_us, make_rows, markdown_table, plain_table, show,
                         threads_text)

CONTEXT = 128
READ_PASSES = 8  # of memory or arithmetic beside another measurement
LINEAR_TURNS = 3
WIDTH_CONTEXT = 256
WIDTHS = (4, 8, 16)
PROMPT = 512
DECODE = 128  # tokens
BUDGETS = (3, 4, 5, 6, 7, 9, 11, 15)
REPLAY_PROMPTS = (85, 121, 131, 468)
RATE, EQUAL_DRAFTS = 0.8, (1, 2, 4)  # tokens of llama.cpp's drafts
EQUAL = "replay 0.8 over llama.cpp's of the same acceptance"
ANSWER = 112  # tokens of an answer of the pair
NO_PEER = "no peer: bench/get_peer.sh DIR, then --peer DIR"
BUSY_PEER_TOKENS, BUSY_PEER_SECONDS = 16, 25  # with a neighbour it may do two tokens a second

# limits: passes of memory and arithmetic; steps: of bench_step; screen: passes that choose the budget; each: of a group
FULL = dict(limits=40, decode=7, prompt=5, width_turns=3, steps=7, busy=7, busy_peer=3, sequences=25, linear=15, screen=2,
            replay=9, speculation=5, each=8, budgets=BUDGETS, many=7, turn=3, drafts=2, first=5, far=7, features=300,
            long=dict(repetitions=2, each=3), chunks=5, heads=dict(prompts=96, repeat=3, each=4, passes=3, tokens=128),
            farther=dict(delays=dict(repetitions=5, each=2, delays=DELAYS, lossy=LOSSY), ahead=5, killed=5))
QUICK = dict(limits=10, decode=2, prompt=2, width_turns=1, steps=5, busy=2, busy_peer=1, sequences=5, linear=3, screen=1,
             replay=2, speculation=1, each=1, budgets=(3, 7), many=2, turn=1, drafts=1, first=1, far=1, features=20,
             long=dict(repetitions=1, each=1), chunks=1, heads=dict(prompts=8, repeat=1, each=1, passes=1, tokens=48),
             farther=dict(delays=dict(repetitions=1, each=1, delays=DELAYS[::2], lossy=LOSSY[1:]), ahead=1, killed=1))


class Run:
    """What a run knows: its options, and what one part leaves for another or for the printing."""

    def __init__(self, o):
        self.__dict__.update(vars(o))
        self.size = QUICK if o.quick else FULL
        self.threads = len(os.sched_getaffinity(0))
        self.crews = list(dict.fromkeys((1, self.threads)))
        self.every = threads_text(self.threads)
        self.cpu, self.cpu_flags = cpu_info()
        self.peer = open_peer(o)
        self.read_rate, self.multiply_rate, self.instruction, self.lanes = None, None, "unknown", "unknown"
        self.numerics, self.variants, self.weight_bytes = "unknown", {}, None
        self.flags = ()  # of all programs that have a model, beside those that a measurement gives
        self.details = []  # (title, lines) of tables beside the rows
        self.rounds = {}  # method: lines of OUT

    def step(self, threads, context, repetitions, *items):
        """us[of each repetition] of each item of bench_step."""
        r = json.loads(command([self.bin / "bench_step", self.model, threads, context, repetitions, *items]).stdout)
        self.numerics, self.weight_bytes = r["numerics"], r["weight_bytes"]
        for item, variant in zip(r["items"], r["variants"]):
            if item.isdigit():
                self.variants[int(item)] = variant
        return r["us"]


def median(values):
    return statistics.median(values)


def paired(a, b):
    return median([x / y for x, y in zip(a, b)])


# --- the parts: each sets its rows ---


def read_rate(run, threads, passes=READ_PASSES):
    """The best of a few passes, and the middle one, in bytes a second. Neighbours on the same host change what memory gives
    from minute to minute: what is held against this has it measured beside itself."""
    r = json.loads(command([run.bin / "bench_memory", threads, passes]).stdout)
    run.lanes = r["lanes"]
    return r["bytes"] / min(r["seconds"]), r["bytes"] / median(r["seconds"])


def multiply_rate(run, passes=READ_PASSES):
    r = json.loads(command([run.bin / "bench_multiply", run.threads, passes]).stdout)
    run.instruction = r["instruction"]
    return r["macs"] / min(r["seconds"])


def measure_limits(run, table):
    run.step(run.threads, CONTEXT, 1, 1, *WIDTHS)  # names the kernels
    for threads in run.crews:
        row = f"memory read, {threads_text(threads)}"
        with table.only(row):
            best, middle = read_rate(run, threads, run.size["limits"])
            table.set(row, best / 1e9, f"median, {middle / 1e9:.1f} GB/s")
    table.set(f"multiply-adds, {run.every}", multiply_rate(run, run.size["limits"]) / 1e9, run.instruction)


def measure_decode(run, table):
    with work_folder() as work:
        pair = Pair(run, work)
        prompt = prompt_of_tokens(pair, CONTEXT, DECODE + 1)
        for threads in run.crews:
            measure_decode_of(run, table, pair, prompt, threads)  # each row fails alone


def measure_decode_of(run, table, pair, prompt, threads):
    measure = {"pair": lambda: one_speed(pair, prompt, PLAIN, threads),
               "steps": lambda: DECODE * 1e6 / run.step(threads, CONTEXT, 1, f"decode:{DECODE}")[0][0],
               "memory": lambda: read_rate(run, threads)[0]}
    if run.peer:
        measure["peer"] = lambda: run.peer.decode(threads, CONTEXT, DECODE)
    got = interleave(run.size["decode"], **measure)
    decode, steps, share = (f"{row}, {threads_text(threads)}" for row in ("plain decode", "plain steps alone", "share of the read rate"))
    with table.only(decode):
        against, ratio = NO_PEER, None
        if run.peer:
            against, ratio = f"llama.cpp, {median(got['peer']):.1f} tok/s", paired(got["pair"], got["peer"])
        table.set(decode, median(got["pair"]), against, ratio, lacks_peer=not run.peer)
    with table.only(steps):
        table.set(steps, median(got["steps"]), f"the pair, {median(got['pair']):.1f} tok/s", paired(got["steps"], got["pair"]))
    if threads == run.threads:
        with table.only(share):
            against = f"best memory read beside it, {median(got['memory']) / 1e9:.1f} GB/s"
            table.set(share, median(got["pair"]) * run.weight_bytes / 1e9, against,
                      run.weight_bytes * paired(got["pair"], got["memory"]))


def one_speed(pair, prompt, method, threads=None):
    lines, _ = pair.answers([prompt], DECODE + 1, method, threads)
    return lines[prompt["id"]]["stats"]["tok_s"]


def measure_prompt(run, table):
    measure = {"ours": lambda: PROMPT * 1e6 / run.step(run.threads, 1, 1, f"prompt:{PROMPT}")[0][0]}
    if run.peer:
        measure["peer"] = lambda: run.peer.prompt(run.threads, PROMPT)
    got = interleave(run.size["prompt"], **measure)
    against, ratio = NO_PEER, None
    if run.peer:
        against, ratio = f"llama.cpp, {median(got['peer']):.0f} tok/s", paired(got["ours"], got["peer"])
    table.set("512-token prompt", median(got["ours"]), against, ratio, lacks_peer=not run.peer)


def measure_widths(run, table):
    widths, size = (1, *WIDTHS), run.size
    measure = {"ours": lambda: run.step(run.threads, WIDTH_CONTEXT, size["steps"], *widths)}
    if run.peer:
        measure["peer"] = lambda: run.peer.widths(run.threads, WIDTH_CONTEXT, size["steps"], widths)
    got = interleave(size["width_turns"], **measure)
    peer = "peer" in measure and "peer" not in got.failed
    us = {who: [sum((turn[w] for turn in got[who]), []) for w in range(len(widths))] for who in ("ours", *(("peer",) if peer else ()))}
    for w, width in enumerate(widths[1:], 1):
        ratio, against = paired(us["ours"][w], us["ours"][0]), f"1 row, {median(us['ours'][0]):.0f} us; "
        against += f"llama.cpp {paired(us['peer'][w], us['peer'][0]):.2f}" if peer else peer_note(got)
        table.set(f"step of {width} rows", median(us["ours"][w]), against, ratio, lacks_peer=not peer)


def peer_note(got):
    """Where its figure would stand beside one of ours that stands without it."""
    return f"llama.cpp not measured: {got.failed['peer']}" if "peer" in got.failed else NO_PEER


def measure_busy(run, table):
    def disturbed(measure):
        with busy_neighbour():
            return measure()

    with work_folder() as work:
        pair = Pair(run, work)
        prompt = prompt_of_tokens(pair, CONTEXT, DECODE + 1)
        got = interleave(run.size["busy"], quiet=lambda: one_speed(pair, prompt, PLAIN),
                         busy=lambda: disturbed(lambda: one_speed(pair, prompt, PLAIN)))
    against = f"undisturbed, {median(got['quiet']):.1f} tok/s; "
    against += busy_peer(run, disturbed) if run.peer else "no llama.cpp beside it"
    table.set("busy neighbour", median(got["busy"]), against, paired(got["busy"], got["quiet"]))


def busy_peer(run, disturbed):
    """Of few tokens: its threads spin for one that waits for the processor, for seconds. No token in time counts as 0."""

    def decode():
        return run.peer.decode(run.threads, CONTEXT, BUSY_PEER_TOKENS, "--no-warmup", seconds=BUSY_PEER_SECONDS)

    def decode_or_none():
        try:
            return disturbed(decode)
        except Failure:
            return 0.0

    got = interleave(run.size["busy_peer"], quiet=decode, busy=decode_or_none)
    if got.failed:
        return f"llama.cpp not measured: {'; '.join(got.failed.values())}"
    return f"llama.cpp {median(got['busy']):.1f} of {median(got['quiet']):.1f} tok/s"


def measure_sequences(run, table):
    one, many = run.step(run.threads, CONTEXT, run.size["sequences"], 1, f"seq:{SESSIONS}")
    table.set("8 rows of 8 sequences", SESSIONS * 1e6 / median(many), f"1 row, {1e6 / median(one):.1f} rows/s",
              SESSIONS * paired(one, many))


def measure_linears(run, table):
    """In turns, each with the machine's limits measured beside it."""
    each = max(1, run.size["linear"] // LINEAR_TURNS)
    got = interleave(LINEAR_TURNS, memory=lambda: read_rate(run, run.threads)[0], multiply=lambda: multiply_rate(run),
                     linear=lambda: json.loads(command([run.bin / "bench_linear", run.model, run.threads, CONTEXT, each]).stdout))
    lines, worst = [("rows", "linears us", "least us", "ratio", "the rest us", "whole forward us")], None
    first = got["linear"][0]
    for i, rows in enumerate(first["rows"]):
        us = [median(r["linear_us"][i]) for r in got["linear"]]
        limit = [linear_limit_us(rows, first["bytes"], first["macs"], *rates) for rates in zip(got["memory"], got["multiply"])]
        rest, whole = (median([median(r[key][i]) for r in got["linear"]]) for key in ("rest_us", "forward_us"))
        ratio = paired(us, limit)
        lines.append((rows, f"{median(us):.0f}", f"{median(limit):.0f}", f"{ratio:.2f}", f"{rest:.0f}", f"{whole:.0f}"))
        if worst is None or ratio > worst[0]:
            worst = (ratio, median(us), f"{rows} rows, at least {median(limit):.0f} us; the rest of that forward {rest:.0f} us")
    run.details.append(("Linears alone: the least is the longer of reading their weights once at the best memory read and of "
                        "their multiply-adds at 0.7 of the best rate, measured beside them; the rest is the same forward "
                        "without them", lines))
    table.set("linears of 1 to 32 rows, the worst", worst[1], worst[2], worst[0])


# --- speculation ---


def measure_replay(run, table):
    with work_folder() as work:
        pair = Pair(run, work)
        replay = Replay(run, pair)
        screening = Attempts()
        best = {pace: screening.attempt(pace, replay.best_budget, pace) for pace in ("lockstep", "free")}
        with replay_peers(run, work) as servers:
            replay.measure({pace: budget or run.size["budgets"][-1] for pace, budget in best.items()}, table, servers)


def replay_peers(run, work):
    """llama-servers: a plain one, and some that draft with the head and take as many of its tokens for right as of replay 0.8."""
    if not run.peer:
        return contextlib.nullcontext({})
    drafts = {f"the head, {n}": (
        "-md", head_file(), "--spec-type", "draft-eagle3", "--spec-draft-n-max", n, "--spec-draft-p-min", 0,
        "--spec-synth-rates", ",".join(f"{RATE ** (i + 1):.4f}" for i in range(n))) for n in EQUAL_DRAFTS}
    return run.peer.servers(run.threads, work, {"plain": (), **drafts})


class Replay:
    """Drafts that repeat this run's own plain answers, with a known share of errors."""

    def __init__(self, run, pair):
        self.run, self.pair, self.prompts = run, pair, golden_prompts(REPLAY_PROMPTS)
        lines, _ = pair.answers(self.prompts, ANSWER, PLAIN)
        self.plain = {i: r["token_ids"] for i, r in lines.items()}
        self.recording = pair.work / "recording.jsonl"
        self.recording.write_text("".join(json.dumps(r) + "\n" for r in lines.values()))

    def draft(self, rate):
        return f"replay:{self.recording}:{rate}"

    def take(self, samples, name, method):
        lines, counters = self.pair.checked(self.prompts, ANSWER, method, self.plain)
        samples.add(name, speeds(lines))
        return list(lines.values()), counters

    def best_budget(self, pace):
        """Chosen in passes of its own: the largest of many noisy figures is not the figure of the best."""
        samples, budgets = Samples(), self.run.size["budgets"]
        methods = {b: Method(self.draft(0.8), pace=pace, budget=b) for b in budgets}
        for i in range(self.run.size["screen"]):
            for b in turns(budgets, i):
                samples.attempt(b, self.take, samples, b, methods[b])
            self.take(samples, "plain", PLAIN)
        speed = {b: samples.speed(b) for b in budgets if b not in samples.failed}
        lines = [("budget", *speed), ("over plain", *(f"{s / samples.speed('plain'):.2f}" for s in speed.values()))]
        self.run.details.append((f"Choosing the budget of replay 0.8, {pace} pace", lines))
        return max(speed, key=speed.get)

    def ask(self, samples, name, server):
        """Its tokens mean nothing then: they are compared with nothing, and none of them ends the answer."""
        more = {"cache_prompt": False, "ignore_eos": True, "seed": 1}
        samples.add(f"llama.cpp {name}", {p["id"]: server.answer(p["prompt_ids"], ANSWER, **more)[1] for p in self.prompts})

    def measure(self, best, table, servers):
        run, samples, lines_of, overhead = self.run, Samples(), {}, []
        methods = {"plain": PLAIN, "replay 0": Method(self.draft(0)), "temperature 0.8": Method(sampling=SAMPLED)}
        for pace, budget in best.items():
            methods[f"replay 0.8, {pace}"] = Method(self.draft(0.8), pace=pace, budget=budget)
        methods["ledger, plain"] = Method(ledger=True)
        methods["ledger, replay 0.8"] = Method(self.draft(0.8), budget=best["free"], ledger=True)
        for i in range(run.size["replay"]):
            for name in turns(methods, i):
                lines, counters = samples.attempt(name, self.take, samples, name, methods[name]) or ([], None)
                lines_of.setdefault(name, []).extend(lines)
                if name == "replay 0.8, free" and counters:
                    overhead.append(counters["engine"])
            for name in turns(servers, i):
                samples.attempt_one_of("llama.cpp", name, self.ask, samples, name, servers[name])
        run.rounds.update({name: lines for name, lines in lines_of.items() if lines})
        self.tell(best, table, samples)
        with table.only(EQUAL):
            tell_equal(run, table, samples, servers)
        tell_overhead(table, [e for e in overhead if e["gaps"]])

    def tell(self, best, table, samples):
        def row(name, sample, more="", base="plain", base_text="plain"):
            with table.only(name):
                table.set(name, samples.speed(sample), f"{base_text}, {samples.speed(base):.1f} tok/s{more}", samples.ratio(sample, base))

        row("replay 0.8, lockstep", "replay 0.8, lockstep", f"; budget {best['lockstep']}")
        row("replay 0.8, free pace", "replay 0.8, free", f"; budget {best['free']}")
        row("replay 0", "replay 0")
        row("temperature 0.8 over greedy", "temperature 0.8")
        row("ledger, plain", "ledger, plain", base_text="--ledger none")
        row("ledger, replay 0.8", "ledger, replay 0.8", base="replay 0.8, free", base_text="--ledger none")


def tell_equal(run, table, samples, servers):
    ours = max((f"replay 0.8, {pace}" for pace in ("lockstep", "free")), key=samples.speed)
    if not servers:
        table.set(EQUAL, samples.speed(ours), NO_PEER, lacks_peer=True)
        return
    speed = {name: samples.speed(f"llama.cpp {name}") for name in servers}
    best = max(speed, key=speed.get)
    table.set(EQUAL, samples.speed(ours), f"llama.cpp, {best}, {speed[best]:.1f} tok/s",
              samples.ratio(ours, f"llama.cpp {best}"))
    run.details.append(("llama.cpp with as many of its draft's tokens taken for right as of replay 0.8 (--spec-synth-rates)",
                        [("its draft", "tok/s"), *((name, f"{s:.1f}") for name, s in speed.items())]))


def tell_overhead(table, engines):
    if not engines:
        raise Failure("no round of replay 0.8 began with nodes at hand: there is no round overhead to tell")
    table.set("round overhead", median([e["gap_us_median"] for e in engines]), "end of a forward to the next, nodes at hand")
    table.set("round overhead, 90th percentile", median([e["gap_us_p90"] for e in engines]))


def measure_speculation(run, table):
    with work_folder() as work:
        s = Speculation(run, Pair(run, work))
        if run.peer:
            with run.peer.servers(run.threads, work) as servers:
                s.measure(servers)
        else:
            s.measure({})
        s.tell(table)


class Speculation:
    """ngram and plain decoding on all prompts; the peer's settings on the first prompt of each group."""

    def __init__(self, run, pair):
        self.run, self.pair, self.samples = run, pair, Samples()
        self.groups = grouped_prompts(run.size["each"])
        self.plain, self.ids, self.other_answers = {}, {}, set()
        self.methods = {"plain": PLAIN, "ngram": Method("ngram")}

    def measure(self, servers):
        for prompts in self.groups.values():
            lines, _ = self.pair.answers(prompts, ANSWER, PLAIN)
            self.plain.update({i: r["token_ids"] for i, r in lines.items()})
            self.ids.update({i: r["prompt_ids"] for i, r in lines.items()})
        for i in range(self.run.size["speculation"]):
            say(f"speculation: pass {i + 1} of {self.run.size['speculation']}")
            for group, prompts in self.groups.items():
                self.measure_group(i, group, prompts, servers)

    def measure_group(self, i, group, prompts, servers):
        for name in turns(self.methods, i):
            self.samples.attempt(f"{name}, {group}", self.take, name, prompts)
        first, theirs = prompts[0]["id"], {}
        for name in turns(servers, i):
            theirs[name] = self.samples.attempt_one_of("llama.cpp", name, self.ask, name, servers[name], first)
        self.other_answers.update((name, first) for name, tokens in theirs.items() if tokens != theirs.get("plain"))

    def take(self, name, prompts):
        lines, _ = self.pair.checked(prompts, ANSWER, self.methods[name], self.plain)
        self.samples.add(name, speeds(lines))
        self.run.rounds.setdefault(f"{name}, real prompts", []).extend(lines.values())

    def ask(self, name, server, first):
        tokens, speed = server.answer(self.ids[first], ANSWER)
        self.samples.add(f"llama.cpp {name}", {first: speed})
        return tokens

    def check(self, groups):
        """Fails for a row that needs one of these groups' figures where they failed."""
        self.samples.check(*(f"{name}, {group}" for name in self.methods for group in groups))

    def tell(self, table):
        s, ids_of = self.samples, {name: {p["id"] for p in prompts} for name, prompts in self.groups.items()}
        for name, groups in {**NGRAM_GROUPS, "over all": tuple(ids_of)}.items():
            with table.only(f"ngram, {name}"):
                self.check(groups)
                ids = set().union(*(ids_of[g] for g in groups))
                # every group counts once, whatever the number of its prompts
                ratio = statistics.geometric_mean([s.ratio("ngram", "plain", ids_of[g]) for g in groups])
                table.set(f"ngram, {name}", s.speed("ngram", ids), f"plain, {s.speed('plain', ids):.1f} tok/s", ratio)
        with table.only("best speculation over llama.cpp's"):
            self.check(ids_of)
            self.tell_peer(table)
        lines = [("group", "prompts", "plain tok/s", "ngram tok/s", "ngram over plain")]
        for name, ids in ids_of.items():
            if not any(f"{method}, {name}" in s.failed for method in self.methods):
                lines.append((name, len(ids), f"{s.speed('plain', ids):.0f}", f"{s.speed('ngram', ids):.0f}",
                              f"{s.ratio('ngram', 'plain', ids):.2f}"))
        self.run.details.append(("Prompt lookup on real prompts", lines))

    def tell_peer(self, table):
        s, firsts, row = self.samples, {p[0]["id"] for p in self.groups.values()}, "best speculation over llama.cpp's"
        ours = s.speed("ngram", firsts)
        if not self.run.peer:
            table.set(row, ours, NO_PEER, lacks_peer=True)
            return
        s.check(*(f"llama.cpp {name}" for name in SETTINGS))
        speed = {name: s.speed(f"llama.cpp {name}") for name in SETTINGS}
        best = max(speed, key=speed.get)
        table.set(row, ours, f"llama.cpp {best}, {speed[best]:.1f} tok/s", s.ratio("ngram", f"llama.cpp {best}", firsts))
        lines = [("llama.cpp's setting", "tok/s", "over its plain", "answers other than its plain")]
        for name in SETTINGS:
            other = sum(setting == name for setting, _ in self.other_answers)
            lines.append((name, f"{speed[name]:.1f}", f"{s.ratio(f'llama.cpp {name}', 'llama.cpp plain'):.2f}",
                          f"{other} of {len(firsts)}"))
        self.run.details.append(("llama.cpp's speculative settings, the first prompt of each group", lines))


def measure_model_drafts(run, table):
    with work_folder() as work:
        measure_drafts(run, table, work, run.size["drafts"], turns, NO_PEER)


def measure_second_changes(run, table):
    with work_folder() as work:
        measure_suffix(run, table, work, run.size["drafts"], turns)


def measure_first_answers(run, table):
    measure_first(run, table, run.size["first"], turns)


# --- several sessions ---


def measure_sessions(run, table):
    with work_folder() as work:
        measure_many(run, table, work, SESSIONS, run.size["many"], interleave, paired, NO_PEER)


def measure_long_prompts(run, table):
    with work_folder() as work:
        with table.only("a conversation's next turn"):
            measure_next_turn(run, table, work, run.size["turn"])
        with table.only("longest stop beside a 2,000-token prompt"):
            measure_prompt_beside(run, table, work, run.size["turn"])


# --- draft heads ---


def measure_draft_heads(run, table):
    with work_folder() as work:
        measure_heads(run, table, work, run.size["heads"], turns, NO_PEER)


def measure_all_methods(run, table):
    with work_folder() as work:
        measure_methods(run, table, work, run.size["heads"])


def measure_pair_of_models(run, table):
    with work_folder() as work:
        measure_real_pair(of_pair(run), table, work, run.size["heads"], turns, NO_PEER)


def measure_lookup_at_length(run, table):
    with work_folder() as work:
        measure_long(run, table, work, ON_CPU, run.size["long"], turns)


def measure_trees_in_chunks(run, table):
    with work_folder() as work:
        measure_chunks(run, table, work, run.size["chunks"], turns)


def measure_shipping(run, table):
    measure_features(run, table, run.size["features"])


# --- hosts ---


def measure_hosts(run, table):
    with work_folder() as work:
        measure_network(run, table, work, run.size["far"])


def measure_farther(run, table):
    with work_folder() as work:
        measure_far(run, table, work, run.size["farther"])


# --- bits ---


BIT_TESTS = [f"test_ops_{part}" for part in ("linear", "rows", "attention", "views", "cache", "head")]
BIT_TESTS.append("test_model_bits")


def measure_bits(run, table):
    """These tests compare every word with memcmp and end with an error at the first that differs."""
    for test in BIT_TESTS:
        if not (run.bin / test).exists():
            raise Failure(f"{test} is not built: scripts/deps.sh --test, then build it")
        command([run.bin / test], seconds=600)
    table.set("memcmp", 0, "test_ops_*, test_model_bits: widths, threads, instruction sets, append and staging")


# (name, function, beginnings of its rows)
PARTS = (
    ("limits of the machine", measure_limits, ("memory read", "multiply-adds")),
    ("plain decode", measure_decode, ("plain decode", "plain steps", "share of")),
    ("prompt", measure_prompt, ("512-token prompt",)),
    ("steps of several rows", measure_widths, ("step of",)),
    ("busy neighbour", measure_busy, ("busy neighbour",)),
    ("sequences", measure_sequences, ("8 rows of 8",)),
    ("linears", measure_linears, ("linears",)),
    ("first answers", measure_first_answers, ("first answers",)),
    ("replay", measure_replay, ("replay", "round overhead", "temperature", "ledger")),
    ("speculation on real prompts", measure_speculation, ("ngram,", "best speculation")),
    ("earlier answers", measure_second_changes, ("second changes",)),
    ("model drafts", measure_model_drafts, ("model draft", "ngram on", "bad model")),
    ("several sessions", measure_sessions, (f"{SESSIONS} plain", f"{SESSIONS} sessions")),
    ("long prompts", measure_long_prompts, ("longest stop", "a conversation's")),
    ("draft heads", measure_draft_heads, HEAD_ROWS),
    ("features", measure_shipping, (FEATURES,)),
    ("hosts far apart", measure_hosts, (FAR,)),
    ("a draft far away", measure_farther, ("far:",)),
    ("bits", measure_bits, ("memcmp",)),
    ("methods", measure_all_methods, (METHODS,)),
    ("real pair", measure_pair_of_models, (REAL_PAIR,)),
    ("lookup at length", measure_lookup_at_length, (LONG_PROMPTS,)),
    ("chunks", measure_trees_in_chunks, (CHUNKS,)),
)
LONG = ("methods", "real pair", "lookup at length", "chunks")  # parts that only a run which names them measures


def chosen_parts(only):
    """The parts with a row that begins so."""
    return [part for part in PARTS if (only or part[0] not in LONG) and any(b.startswith(only) or only.startswith(b) for b in part[2])]


def names_of(rows, parts):
    return [name for name in rows if any(name.startswith(b) for _, _, beginnings in parts for b in beginnings)]


def measure_all(run, table, parts):
    for part in parts:
        name, measure, _ = part
        say(name)
        begin = time.monotonic()
        with table.only(*names_of(table.rows, [part])):
            measure(run, table)
        say(f"{name}: {time.monotonic() - begin:.0f} s")


def work_folder():
    class Folder(tempfile.TemporaryDirectory):
        def __enter__(self):
            return pathlib.Path(super().__enter__())

    return Folder(prefix="tandem-bench-")


# --- for people ---


def rounds_table(rounds):
    """Where a forward's time goes in the real pair: medians over all answers."""
    lines = [("method", "forwards", "rounds", "nodes", "accepted", "forward us", "accept", "commit", "queue", "wait")]
    for name, answers in rounds.items():
        stats = [r["stats"] for r in answers]

        def of(f, stats=stats):
            return median([f(s) for s in stats])

        def us(key, of=of):
            return f"{of(lambda s: 1000 * s[key] / max(1, s['forwards'])):.0f}"

        lines.append((name, f"{of(lambda s: s['forwards']):.0f}", f"{of(lambda s: s['rounds']):.0f}",
                      f"{of(lambda s: s['draft_tokens'] / max(1, s['rounds'])):.1f}",
                      f"{of(lambda s: s['accepted_tokens'] / max(1, s['rounds'])):.2f}",
                      *(us(key) for key in ("forward_ms", "accept_ms", "commit_ms", "queue_ms", "wait_ms"))))
    return lines


def facts(run, commit, shares):
    yield "machine", f"{run.cpu}, {run.every}, {platform.system()} {platform.release()}"
    yield "flags", " ".join(run.cpu_flags) or "none that matter here"
    yield "kernels", f"{run.numerics}; " + "; ".join(f"{n} rows: {v}" for n, v in sorted(run.variants.items()))
    yield "model", run.model.name
    yield "commit", commit + (" (quick: a first look, not a result)" if run.quick else "")
    yield "peer", run.peer.about[0] + "; " + run.peer.about[1] if run.peer else NO_PEER
    yield "load", describe_load(shares, "while this ran")


def step_text(run):
    """`tandem bench step` of the same model: where a step's time goes."""
    return command([run.bin / "tandem", "bench", "step", "-m", run.model, "--threads", run.threads]).stdout


def print_all(run, table, names, top):
    for name, text in top:
        print(f"{name:9}{text}")
    print()
    print(plain_table(table.cells(names), right=(1, 4)))
    for title, lines in run.details:
        print(f"\n{title}:")
        print(plain_table(lines, right=range(1, 10)))
    if run.rounds:
        print("\nThe pair's forwards (medians of the answers; times per forward):")
        print(plain_table(rounds_table(run.rounds), right=range(1, 10)))


def write_markdown(run, table, names, top, file):
    blocks = ["\n".join(f"- {name}: {text}" for name, text in top), markdown_table(table.cells(names))]
    for title, lines in run.details:
        blocks += [f"{title}:", markdown_table(lines)]
    if run.rounds:
        blocks += ["The pair's forwards (medians of the answers; times per forward):", markdown_table(rounds_table(run.rounds))]
    if not run.only:
        blocks += ["`tandem bench step`, in the same run:", "```\n" + step_text(run) + "```"]
    file.write_text("\n\n".join(blocks) + "\n")


def machine_text(run, shares):
    variants = ", ".join(f"{n} rows {v}" for n, v in sorted(run.variants.items())) or "unknown"
    return (f"{run.cpu}; {run.threads} threads; flags {' '.join(run.cpu_flags) or 'none'}; numerics {run.numerics}; kernels "
            f"{variants}; memory read with {run.lanes}; peer {run.peer.about[0] if run.peer else 'none'}; others used "
            f"{shares[0]:.0%}, stolen {shares[1]:.0%}")


def commit_of(run):
    line = command([run.bin / "tandem", "--version"]).stdout.splitlines()[0]
    dirty = subprocess.run(["git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no"], capture_output=True)
    return line.partition("(")[2].rstrip(")") + ("+changes" if dirty.returncode == 0 and dirty.stdout else "")


# --- the program ---


def open_peer(o):
    """None where there is none; one that was named must be good."""
    named = o.peer or (pathlib.Path(os.environ["TANDEM_PEER"]) if os.environ.get("TANDEM_PEER") else None)
    folder = named or ROOT.parent / "llama.cpp-peer"
    try:
        return Peer(folder, o.model)
    except OSError as why:
        if named:
            raise Failure(f"{folder} holds no peer ({why}): bench/get_peer.sh {folder}") from None
        return None


def read_options():
    """scripts/bench_cpu.sh tells what they mean."""
    p = argparse.ArgumentParser(prog="bench_cpu.sh", add_help=False, allow_abbrev=False,
                                usage="scripts/bench_cpu.sh [FLAGS...]; --help tells them")
    for flag in ("--quick", "--check"):  # check: whether the flags are right, and no more
        p.add_argument(flag, action="store_true")
    p.add_argument("--only", default="")
    for flag in ("--peer", "--json", "--markdown", "--model", "--bin"):
        p.add_argument(flag, type=pathlib.Path, required=flag in ("--model", "--bin"))
    o = p.parse_args()
    for flag in ("json", "markdown"):
        try:
            if getattr(o, flag):
                getattr(o, flag).write_text("")  # now, not after minutes
        except OSError as why:
            p.error(f"--{flag}: cannot write {getattr(o, flag)}: {why.strerror}")
    if not chosen_parts(o.only):
        p.error(f"--only: no row begins with '{o.only}'; rows: {'; '.join(make_rows(2))}")
    open_peer(o)  # one that was named must be there
    return o


def main():
    signal.signal(signal.SIGTERM, leave)
    options = read_options()
    if options.check:
        return 0
    run = Run(options)
    rows = make_rows(run.threads)
    table, parts = Table(rows), chosen_parts(run.only)
    if PARTS[0] not in parts:
        parts.insert(0, PARTS[0])  # what the others are held against
    names = names_of(rows, parts)
    assert names_of(rows, PARTS) == list(rows), "every row belongs to a part"
    commit = commit_of(run)
    before = Contention()
    time.sleep(1)
    say(describe_load(before.shares(), "before the start") + f"; load average {os.getloadavg()[0]:.1f}")
    contention, begin = Contention(), time.monotonic()
    measure_all(run, table, parts)
    shares = contention.shares()
    top = list(facts(run, commit, shares))
    top.append(("took", f"{time.monotonic() - begin:.0f} s; prompts of {GOLDEN.relative_to(ROOT)} and "
                        f"{PROMPTS.relative_to(ROOT)}"))
    print_all(run, table, names, top)
    lines = list(table.lines(names, machine_text(run, shares), commit))
    if run.json:
        run.json.write_text("".join(json.dumps(r) + "\n" for r in lines))
    if run.markdown:
        write_markdown(run, table, names, top, run.markdown)
    return 0 if all(r["holds"] for r in lines) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        say(str(failure))
        sys.exit(1)
