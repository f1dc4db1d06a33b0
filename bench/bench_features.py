"""What features cost the target in scripts/bench_cpu.sh: steps with the states of a head's taps and without,
by turns in one process (bench_features.c)."""

import json
import statistics

from bench_machine import command
from bench_network import head_file

ROW = "features: verify with over without"
CONTEXT = 128
# rows:committed. A plain step; a verify of 7 nodes of which about half are accepted, and of which all are.
ITEMS = ("1", "8:4", "8")
KINDS = {"raw": "raw states", "fused": "fc at the target"}


def ratio_of(us, kind, i):
    """Of steps side by side."""
    return statistics.median(a / b for a, b in zip(us[kind][i], us["without"][i]))


def measure_features(run, table, repetitions):
    """The worst counts."""
    r = json.loads(command([run.bin / "bench_features", run.model, head_file(), run.threads, CONTEXT,
                            repetitions, *ITEMS]).stdout)
    us, worst = r["us"], None
    heads = [x for text in KINDS.values() for x in (f"{text} us", "over without")]
    lines = [("rows", "committed", "without us", *heads)]
    for i, item in enumerate(r["items"]):
        rows, _, committed = item.partition(":")
        committed = committed or rows
        without, cells = statistics.median(us["without"][i]), []
        for kind, text in KINDS.items():
            ratio, value = ratio_of(us, kind, i), statistics.median(us[kind][i])
            cells += [f"{value:.0f}", f"{ratio:.4f}"]
            if worst is None or ratio > worst[2]:
                which = f"{text}, {rows} {'row' if rows == '1' else 'rows'}, {committed} committed"
                worst = value, f"without, {without:.0f} us; {which}", ratio
        lines.append((rows, committed, f"{without:.0f}", *cells))
    sizes = ", ".join(f"{text} {r['row_bytes'][kind]}" for kind, text in KINDS.items())
    run.details.append((f"Steps with features and without (bytes a committed row: {sizes})", lines))
    table.set(ROW, *worst)
