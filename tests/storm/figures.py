"""What a storm counts, as an object that JSON can hold; and the sum of several storms."""

import collections
import json

from faults import KINDS


def of(storm, seconds):
    clients, programs = storm.clients, storm.world.programs
    return {"version": storm.version, "seed": storm.seed, "faults": dict(storm.counts),
            "seconds": round(seconds, 1), "answers": clients.answers, "resumed": clients.resumed,
            "asked_again": clients.asked_again, "shown_bytes": clients.shown_bytes,
            "longest_answer_s": round(clients.longest, 1),
            "growth_kib": max(p.most_growth for p in programs), "files": max(p.most_files for p in programs),
            "stood_still_s": round(storm.stood_still, 1), "broken": storm.broken}


SUMS = ("seconds", "answers", "resumed", "asked_again", "shown_bytes", "stood_still_s")
GREATEST = ("longest_answer_s", "growth_kib", "files")


def total(parts):
    faults = collections.Counter()
    for part in parts:
        faults.update(part["faults"])
    return {"version": ", ".join(sorted({p["version"] for p in parts})), "faults": dict(faults),
            **{key: sum(p[key] for p in parts) for key in SUMS},
            **{key: max((p[key] for p in parts), default=0) for key in GREATEST},
            "broken": [f"seed {p['seed']}: {sentence}" for p in parts for sentence in p["broken"]]}


def count(figures):
    return sum(figures["faults"].values())


def read(path):
    """The parts that a file has, one a line; a file that is not there has none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path, figures):
    with open(path, "a") as f:
        f.write(json.dumps(figures) + "\n")


def tell(figures, which):
    for sentence in figures["broken"]:
        print(f"storm: BROKEN: {sentence}")
    f, broken = figures, len(figures["broken"])
    kinds = ", ".join(f"{name} {f['faults'].get(name, 0)}" for name in KINDS)
    print(f"storm: {which}: {count(f)} faults ({kinds}) in {f['seconds']:.0f} s; {f['answers']} answers, "
          f"{f['resumed']} of them resumed, {f['asked_again']} asked again; {f['shown_bytes']} bytes shown "
          f"by killed runs; broken promises {broken}; longest answer {f['longest_answer_s']:.1f} s; most "
          f"growth {f['growth_kib']} KiB, most open files {f['files']}; {f['version']}", flush=True)
