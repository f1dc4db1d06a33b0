#!/usr/bin/env python3
"""The rows of scripts/bench_cpu.sh: measures them with the programs in --bin and prints them as a table for people
and, with --json, one JSON object a line. Every row of ROWS appears once; one that could not be measured has no value
and holds: false. Nothing but the holds is written here: each figure comes from this run.
"""

import argparse
import json
import math
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests/golden/smollm2_greedy.jsonl"
FLAGS_THAT_MATTER = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni", "amx_int8")
WIDTHS = (2, 4, 8, 16)
CONTEXTS = (128, 512)
CROWDED = 0.05  # of the CPU time: so much used by others makes figures doubtful

FULL = dict(passes=15, steps=25, repetitions=5, prompts=(85, 121, 131, 468), tokens=112)
QUICK = dict(passes=5, steps=9, repetitions=2, prompts=(85, 131), tokens=64)

GREEDY = ("--temp", "0")
SAMPLED = ("--temp", "0.8", "--seed", "1")
# row: (method, sampling); {rec} is the recording of this run's plain answers
PAIR = {
    "plain, real pair": ("none", GREEDY),
    "replay 0.9": ("replay:{rec}:0.9", GREEDY),
    "replay 0": ("replay:{rec}:0", GREEDY),
    "ngram": ("ngram", GREEDY),
    "plain at temperature 0.8": ("none", SAMPLED),
}
PLAIN = "plain, real pair"

# row: (unit, what must hold: (of the ratio or the value, relation, limit))
ROWS = {}
for _who in ("1 thread", "all threads"):
    ROWS[f"memory read, {_who}, best"] = ("GB/s", None)
    ROWS[f"memory read, {_who}, median"] = ("GB/s", None)
for _who in ("1 thread", "all threads"):
    ROWS[f"plain step, {_who}"] = ("us", None)
    ROWS[f"plain speed, {_who}"] = ("tok/s", None)
    ROWS[f"weights read, {_who}"] = ("GB/s", None)
for _context in CONTEXTS:
    for _width in WIDTHS:
        ROWS[f"step of {_width} rows, context {_context}"] = ("us", None)
for _row in PAIR:
    ROWS[_row] = ("tok/s", None)
ROWS["replay 0.9"] = ("tok/s", ("ratio", ">=", 1.5))
ROWS["replay 0"] = ("tok/s", ("ratio", ">=", 0.95))
ROWS["round overhead, median"] = ("us", ("value", "<=", 300))
ROWS["round overhead, 90th percentile"] = ("us", None)


def say(text):
    print(f"bench_cpu: {text}", file=sys.stderr, flush=True)


class Failure(Exception):
    pass


# --- the machine ---


def cpu_times():
    """Seconds since boot, of all CPUs together: (all, idle, stolen by other virtual machines)."""
    with open("/proc/stat") as f:
        ticks = [int(x) for x in f.readline().split()[1:]]
    second = os.sysconf("SC_CLK_TCK")
    return sum(ticks[:8]) / second, (ticks[3] + ticks[4]) / second, ticks[7] / second


def own_seconds():
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(r.ru_utime + r.ru_stime for r in both)


class Crowd:
    """How much of the CPUs other programs and other machines take, from here on."""

    def __init__(self):
        self.begin, self.own = cpu_times(), own_seconds()

    def shares(self):
        total, idle, stolen = (b - a for a, b in zip(self.begin, cpu_times()))
        total = max(total, 1e-9)
        others = max(0.0, total - idle - stolen - (own_seconds() - self.own))
        return others / total, stolen / total


def cpu_info():
    name, flags = platform.machine(), set()
    with open("/proc/cpuinfo") as f:
        for line in f:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
    return name, [x for x in FLAGS_THAT_MATTER if x in flags]


# --- the rows ---


class Table:
    def __init__(self):
        self.measured = {}

    def set(self, row, value, against=None, ratio=None):
        assert row in ROWS and row not in self.measured, row
        self.measured[row] = (value, against, ratio)

    def rows(self, machine, commit):
        for row, (unit, hold) in ROWS.items():
            value, against, ratio = self.measured.get(row, (None, None, None))
            yield {
                "row": row,
                "value": rounded(value),
                "unit": unit,
                "against": against,
                "ratio": rounded(ratio),
                "hold": " ".join(map(str, hold)) if hold else None,
                "reach": None,
                "holds": holds(hold, value, ratio),
                "machine": machine,
                "commit": commit,
            }


def rounded(x):
    return None if x is None else float(f"{x:.4g}")


def holds(hold, value, ratio):
    if value is None:
        return False
    if hold is None:
        return True
    of, relation, limit = hold
    measured = ratio if of == "ratio" else value
    return measured >= limit if relation == ">=" else measured <= limit


# --- measuring ---


def command(arguments):
    done = subprocess.run([str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failure(f"{pathlib.Path(arguments[0]).name} failed ({done.returncode}): {done.stderr.strip()[-500:]}")
    return done


def measure_memory(o, table, best):
    for who, threads in o.crews:
        r = json.loads(command([o.bin / "bench_memory", threads, o.size["passes"]]).stdout)
        speeds = [r["bytes"] / s / 1e9 for s in r["seconds"]]
        best[who] = max(speeds)
        median = statistics.median(speeds)
        table.set(f"memory read, {who}, best", best[who])
        table.set(f"memory read, {who}, median", median, f"best, {best[who]:.1f} GB/s", median / best[who])
        o.lanes = r["lanes"]


def measure_steps(o, table, best):
    for who, threads in o.crews:
        r = json.loads(command([o.bin / "bench_step", o.model, threads, CONTEXTS[0], o.size["steps"], 1]).stdout)
        us = statistics.median(r["us"][0])
        speed = r["weight_bytes"] / us / 1e3
        table.set(f"plain step, {who}", us)
        table.set(f"plain speed, {who}", 1e6 / us)
        o.weight_bytes, o.numerics = r["weight_bytes"], r["numerics"]
        if who in best:
            table.set(f"weights read, {who}", speed, f"best memory read, {best[who]:.1f} GB/s", speed / best[who])


def measure_widths(o, table):
    for context in CONTEXTS:
        widths = (1,) + WIDTHS
        r = json.loads(command([o.bin / "bench_step", o.model, o.threads, context, o.size["steps"], *widths]).stdout)
        one = r["us"][0]
        o.variants = dict(zip(widths, r["variants"]))
        for width, us in list(zip(widths, r["us"]))[1:]:
            ratio = statistics.median(a / b for a, b in zip(us, one))
            against = f"1 row, {statistics.median(one):.0f} us"
            table.set(f"step of {width} rows, context {context}", statistics.median(us), against, ratio)


# --- the real pair ---


def golden_prompts(ids):
    with open(GOLDEN) as f:
        rows = {r["id"]: r for r in map(json.loads, f)}
    return [rows[i] for i in ids]


def answer(o, work, prompt, method, sampling):
    """One prompt through `tandem batch`: (its line of OUT, the target's counters)."""
    given, out = work / "in.jsonl", work / "out.jsonl"
    given.write_text(json.dumps({"id": prompt["id"], "prompt_ids": prompt["prompt_ids"]}) + "\n")
    budget = ("--budget", o.budget) if o.budget is not None else ()
    done = command([o.bin / "tandem", "batch", "-m", o.model, "--threads", o.threads, "--sessions", 1, "--verbose",
                    "--max-tokens", o.size["tokens"], "--draft", method, *budget, *sampling, given, out])
    r = json.loads(out.read_text())
    if not r["stats"]["tok_s"]:
        raise Failure(f"prompt {prompt['id']}: an answer of {len(r['token_ids'])} tokens is too short to time")
    counters = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    return r, counters[0] if counters else None


def record(o, work, prompts):
    """The plain answers, which replay draws from and every greedy answer must equal."""
    rec, plain = work / "recording.jsonl", {}
    with open(rec, "w") as f:
        for p in prompts:
            r, _ = answer(o, work, p, *PAIR[PLAIN])
            plain[p["id"]] = r["token_ids"]
            f.write(json.dumps(r) + "\n")
    return rec, plain


def check_same(row, prompt, r, plain):
    method, sampling = PAIR[row]
    if sampling == GREEDY and r["token_ids"] != plain[prompt["id"]]:
        raise Failure(f"{row}, prompt {prompt['id']}: the tokens are not those of plain decoding")


def run_pair(o, work):
    """samples[row][prompt] = [(line of OUT, counters) of each repetition]. The rows take turns, prompt by prompt, and
    begin at another one each time, so that what else runs on the machine meets all of them alike."""
    prompts = golden_prompts(o.size["prompts"])
    rec, plain = record(o, work, prompts)
    samples = {row: {p["id"]: [] for p in prompts} for row in PAIR}
    turn = list(PAIR)
    for repetition in range(o.size["repetitions"]):
        say(f"real pair: repetition {repetition + 1} of {o.size['repetitions']}")
        for p in prompts:
            for row in turn:
                method, sampling = PAIR[row]
                r, counters = answer(o, work, p, method.format(rec=rec), sampling)
                check_same(row, p, r, plain)
                samples[row][p["id"]].append((r, counters))
            turn = turn[1:] + turn[:1]
    return samples


def mean_of_prompts(per_prompt):
    """Geometric mean of each prompt's median."""
    return math.exp(statistics.fmean(math.log(statistics.median(v)) for v in per_prompt))


def speeds(samples, row):
    return {p: [r["stats"]["tok_s"] for r, _ in list_] for p, list_ in samples[row].items()}


def measure_pair(o, table):
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as work:
        samples = run_pair(o, pathlib.Path(work))
    plain = speeds(samples, PLAIN)
    plain_mean = mean_of_prompts(plain.values())
    table.set(PLAIN, plain_mean)
    for row in PAIR:
        if row == PLAIN:
            continue
        mine = speeds(samples, row)
        ratio = mean_of_prompts([a / b for a, b in zip(mine[p], plain[p])] for p in mine)
        against = "greedy" if PAIR[row][1] == SAMPLED else "plain"
        table.set(row, mean_of_prompts(mine.values()), f"{against}, {plain_mean:.1f} tok/s", ratio)
    o.samples = samples
    measure_overhead(table, samples["replay 0.9"])


def measure_overhead(table, samples):
    engines = [c["engine"] for list_ in samples.values() for _, c in list_ if c and c["engine"]["gaps"]]
    if not engines:
        raise Failure("no round of replay 0.9 began with nodes at hand: there is no round overhead to tell")
    table.set("round overhead, median", statistics.median(e["gap_us_median"] for e in engines))
    table.set("round overhead, 90th percentile", statistics.median(e["gap_us_p90"] for e in engines))


# --- for people ---


def show(x):
    return "-" if x is None else f"{x:.0f}" if abs(x) >= 1000 else f"{x:.4g}"


def print_table(rows):
    head = ("row", "value", "unit", "against", "ratio", "must hold", "holds")
    lines = [head]
    for r in rows:
        verdict = "NOT MEASURED" if r["value"] is None else "" if r["hold"] is None else "yes" if r["holds"] else "NO"
        lines.append((r["row"], show(r["value"]), r["unit"], r["against"] or "", show(r["ratio"]) if r["ratio"] else "",
                      r["hold"] or "", verdict))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        print("  ".join(text.rjust(w) if i in (1, 4) else text.ljust(w)
                        for i, (text, w) in enumerate(zip(line, widths))).rstrip())


def print_rounds(samples):
    """Where a forward's time goes in the real pair: medians over all answers, per forward with or without nodes."""
    print("\nIn the real pair (medians of the answers; times per forward):")
    print(f"{'row':26}{'forwards':>9}{'rounds':>8}{'nodes':>7}{'accepted':>9}{'forward':>11}{'accept':>8}{'commit':>8}"
          f"{'queue':>7}{'wait':>7}")
    for row, prompts in samples.items():
        stats = [r["stats"] for list_ in prompts.values() for r, _ in list_]

        def median(of):
            return statistics.median(of(s) for s in stats)

        def us(key):
            return f"{median(lambda s: 1000 * s[key] / max(1, s['forwards'])):.0f}"

        print(f"{row:26}{median(lambda s: s['forwards']):9.0f}{median(lambda s: s['rounds']):8.0f}"
              f"{median(lambda s: s['draft_tokens'] / max(1, s['rounds'])):7.1f}"
              f"{median(lambda s: s['accepted_tokens'] / max(1, s['rounds'])):9.2f}"
              f"{us('forward_ms') + ' us':>11}{us('accept_ms'):>8}{us('commit_ms'):>8}{us('queue_ms'):>7}{us('wait_ms'):>7}")


def describe_load(shares, when):
    others, stolen = shares
    crowded = others + stolen > CROWDED
    text = f"{when}: other programs used {others:.0%} of the CPUs, other virtual machines {stolen:.0%}"
    return text + (": FIGURES ARE DOUBTFUL, repeat on a quiet machine" if crowded else "")


def look_at_crowd():
    crowd = Crowd()
    time.sleep(1)
    load = os.getloadavg()[0]
    say(describe_load(crowd.shares(), "before the start") + f"; load average {load:.1f}")


def machine_text(o, shares):
    variants = ", ".join(f"{n} rows {v}" for n, v in o.variants.items()) or "unknown"
    return (f"{o.cpu}; {o.threads} threads; flags {' '.join(o.cpu_flags) or 'none'}; numerics {o.numerics}; kernels "
            f"{variants}; memory read with {o.lanes}; others used {shares[0]:.0%}, stolen {shares[1]:.0%}")


def print_top(o, commit, shares):
    print(f"machine  {o.cpu}, {o.threads} threads, {platform.system()} {platform.release()}")
    print(f"flags    {' '.join(o.cpu_flags) or 'none that matter here'}")
    print(f"kernels  {o.numerics}; " + "; ".join(f"{n} rows: {v}" for n, v in o.variants.items()))
    print(f"commit   {commit}")
    print(f"load     {describe_load(shares, 'while this ran')}")
    print(f"bytes    a token reads the packed weights, {o.weight_bytes} bytes, once; keys and values are not counted")
    budget = "the default" if o.budget is None else o.budget
    print(f"pair     prompts {', '.join(map(str, o.size['prompts']))} of {GOLDEN.relative_to(ROOT)}, {o.size['tokens']} "
          f"tokens, {o.size['repetitions']} repetitions, budget {budget}; speeds are of decoding, first token not "
          "counted\n")


def commit_of(o):
    line = command([o.bin / "tandem", "--version"]).stdout.splitlines()[0]
    dirty = subprocess.run(["git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no"], capture_output=True)
    return line.partition("(")[2].rstrip(")") + ("+changes" if dirty.returncode == 0 and dirty.stdout else "")


def options():
    p = argparse.ArgumentParser(prog="bench_cpu.sh", description="Speed on this machine's CPUs: memory, one step, "
                                "steps of several rows, and the real pair. Exits 1 when something does not hold.")
    p.add_argument("--quick", action="store_true", help="fewer and shorter repetitions: a first look, not a result")
    p.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write one JSON object a row to FILE")
    p.add_argument("--budget", type=int, metavar="N", help="node budget of the pair (default: the program's own)")
    p.add_argument("--model", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    p.add_argument("--bin", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    o = p.parse_args()
    try:
        if o.json:
            o.json.write_text("")  # now, not after minutes
    except OSError as why:
        p.error(f"--json: cannot write {o.json}: {why.strerror}")
    o.size = QUICK if o.quick else FULL
    o.threads = len(os.sched_getaffinity(0))
    o.crews = [("1 thread", 1), ("all threads", o.threads)]
    o.cpu, o.cpu_flags = cpu_info()
    o.variants, o.numerics, o.lanes, o.weight_bytes, o.samples = {}, "unknown", "unknown", 0, None
    return o


def measure_all(o, table):
    best = {}
    for name, part in (("memory read", lambda: measure_memory(o, table, best)),
                       ("plain step", lambda: measure_steps(o, table, best)),
                       ("steps of several rows", lambda: measure_widths(o, table)),
                       ("real pair", lambda: measure_pair(o, table))):
        say(name)
        try:
            part()
        except (Failure, OSError, ValueError, KeyError) as why:
            say(f"{name} FAILED: {why}")


def main():
    o = options()
    table = Table()
    commit = commit_of(o)
    look_at_crowd()
    crowd = Crowd()
    measure_all(o, table)
    shares = crowd.shares()
    rows = list(table.rows(machine_text(o, shares), commit))
    print_top(o, commit, shares)
    print_table(rows)
    if o.samples:
        print_rounds(o.samples)
    if o.json:
        o.json.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return 0 if all(r["holds"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
