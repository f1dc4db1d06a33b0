"""The rows of scripts/bench_cpu.sh: what must hold, what would be good, and the verdict on what was measured."""

import contextlib
import dataclasses

from bench_attempts import reason
from bench_machine import say


@dataclasses.dataclass(frozen=True)
class Row:
    unit: str
    of: str = "ratio"  # what is judged: "ratio" or "value"
    relation: str = ">="
    hold: float = None  # None: told, not judged
    reach: float = None
    decimals: int = None  # of what is shown; None: as few as tell it


def least(hold, reach, unit="tok/s", of="ratio", decimals=None):
    return Row(unit, of, ">=", hold, reach, decimals)


def most(hold, reach, unit, of="ratio", decimals=None):
    return Row(unit, of, "<=", hold, reach, decimals)


def reported(unit):
    return Row(unit)


SESSIONS = 8
NGRAM_GROUPS = {"summarisation": ("summarization",), "translation": ("translation",), "retrieval": ("rag",)}


def threads_text(n):
    return "1 thread" if n == 1 else f"{n} threads"


def make_rows(threads):
    """name: Row, in the order of the table; first what is judged, then what is only told."""
    crews = list(dict.fromkeys((1, threads)))
    every = threads_text(threads)
    rows = {f"plain decode, {threads_text(n)}": least(1.8, 2.3) for n in crews}
    rows[f"share of the read rate, {every}"] = least(0.65, 0.85, "GB/s")
    rows["512-token prompt"] = least(4, 6)
    for n, hold, reach in ((4, 1.2, 1.08), (8, 1.7, 1.4), (16, 3.1, 2.5)):
        rows[f"step of {n} rows"] = most(hold, reach, "us")
    rows["busy neighbour"] = least(0.4, 0.5)
    rows["best speculation over llama.cpp's"] = least(2.2, 3.2)
    rows["linears of 1 to 32 rows, the worst"] = most(1.5, 1.15, "us")
    rows["first answers, all"] = most(1.03, 1.0, "ms")
    rows["first answers, the worst"] = most(1.1, 1.03, "ms")
    rows["first answers, rows over forwards"] = most(1.25, None, "rows", "value")
    rows["replay 0.8, lockstep"] = least(2.2, 2.7)
    rows["replay 0.8, free pace"] = least(2.2, 2.7)
    rows["replay 0"] = least(0.98, 1.0)
    for group in NGRAM_GROUPS:
        rows[f"ngram, {group}"] = least(1.5, 2)
    rows["ngram, over all"] = least(1.25, 1.5)
    rows["second changes, suffix"] = least(2, 3)
    rows["second changes, suffix over ngram"] = most(0.95, None, "forwards")
    rows["model draft, -md"] = least(1, 1.5)
    rows["model draft, --draft-layers 30"] = least(1, 1.5)
    rows["model draft, on a core of its own"] = least(1, 2)
    rows["ngram on that model"] = least(0.98, None)
    rows["bad model draft"] = least(0.97, 1)
    rows["model draft over llama.cpp's"] = least(1, None)
    rows["8 rows of 8 sequences"] = least(4.2, 5.8, "rows/s")
    rows[f"{SESSIONS} plain sessions"] = least(3.6, 5)
    rows[f"{SESSIONS} sessions, replay 0.8"] = least(1, None)
    rows[f"{SESSIONS} sessions over llama-server's slots"] = least(1.5, None)
    rows["longest stop beside a 2,000-token prompt"] = most(1, None, "ms")
    rows["a conversation's next turn"] = most(0.3, None, "ms")
    rows["pair over 20 ms and 1 % loss"] = least(0.97, None)
    rows["head: tokens a verify, tree of 31 and ngram's 8"] = least(4.2, 4.8, "tokens", "value")
    rows["head: tokens a verify, tree of 31"] = least(3.9, 4.4, "tokens", "value")
    rows["head: tokens a verify, chain of 5"] = least(2.8, 3.1, "tokens", "value")
    rows["head: tokens a verify, tree of 31, temperature 1"] = least(2.7, 3.1, "tokens", "value")
    rows["head: answers that differ"] = most(0, None, "answers", "value")
    rows["head: chain of 5 over llama.cpp's"] = least(1, None, "tokens", decimals=4)
    rows["default draft: all prompts"] = least(1.45, 1.9)
    rows["default draft: the worst group"] = least(1.15, 1.4)
    rows["default draft: over llama.cpp's best"] = least(3, 4.5)
    rows["default draft: own prompts"] = least(1.25, 1.6)
    rows["default draft: own prompts, the worst group"] = least(1, 1.2)
    rows["default draft: first prompts"] = least(1.3, 1.7)
    rows["default draft: first prompts, from the draft"] = least(50, 65, "%", "value")
    rows["features: verify with over without"] = most(1.02, 1, "us", decimals=4)
    rows["far: the worst of 0 to 100 ms over plain"] = least(0.97, 1)
    rows["far: free pace over lockstep, 2 ms each way"] = least(1.25, 1.5)
    rows["far: draft killed every second"] = least(0.95, None)
    rows["far: wire bytes a token"] = most(160, None, "bytes", "value")
    rows["far: wire bytes a token, with features"] = most(1500, None, "bytes", "value")
    rows["round overhead"] = most(80, 40, "us", "value")
    rows["memcmp"] = most(0, None, "words differ", "value")
    rows["methods: answers that differ"] = most(0, None, "answers", "value")
    rows["real pair: code"] = least(1.8, 2.2)
    rows["real pair: chat"] = least(1.4, 1.7)
    rows["real pair: code, over llama.cpp's best"] = least(1.6, 2.5)
    rows["real pair: answers that differ"] = most(0, None, "answers", "value")
    rows["long prompts, ngram"] = least(1.3, 1.8)
    rows["chunks: answers that differ"] = most(0, None, "answers", "value")
    rows["temperature 0.8 over greedy"] = least(0.95, None)
    rows["ledger, plain"] = least(0.98, None)
    rows["ledger, replay 0.8"] = least(0.98, None)
    rows["second changes, ngram"] = reported("tok/s")
    rows["replay 0.8 over llama.cpp's of the same acceptance"] = reported("tok/s")
    for n in crews:
        rows[f"memory read, {threads_text(n)}"] = reported("GB/s")
    rows[f"multiply-adds, {every}"] = reported("GMAC/s")
    for n in crews:
        rows[f"plain steps alone, {threads_text(n)}"] = reported("tok/s")
    rows["round overhead, 90th percentile"] = reported("us")
    return rows


def meets(row, judged, limit):
    return judged >= limit if row.relation == ">=" else judged <= limit


def verdict(row, value, ratio, lacks_peer=False):
    """In words, those that do not hold in capitals."""
    if value is None:
        return "NOT MEASURED"
    if row.hold is None:
        return ""
    if lacks_peer:
        return "NO PEER"
    judged = ratio if row.of == "ratio" else value
    if not meets(row, judged, row.hold):
        return "NO"
    return "reached" if row.reach is not None and meets(row, judged, row.reach) else "yes"


def holds(*what):
    return not verdict(*what).isupper()


def limit_text(row, limit):
    return None if limit is None else f"{row.of} {row.relation} {limit:g}"


def rounded(x, decimals=None):
    return None if x is None else float(f"{x:.4g}") if decimals is None else round(x, decimals)


NOTHING = (None, None, None, False)


class Table:
    """Every row once. One that is not set is not measured."""

    def __init__(self, rows):
        self.rows, self.measured = rows, {}

    def set(self, name, value, against=None, ratio=None, lacks_peer=False):
        assert name in self.rows and name not in self.measured, name
        assert lacks_peer or self.rows[name].of == "value" or self.rows[name].hold is None or ratio is not None, name
        self.measured[name] = (value, against, ratio, lacks_peer)

    def fail(self, name, why):
        """For a row that is not set: why it was not measured."""
        if name not in self.measured:
            say(f"{name}: NOT MEASURED: {reason(why)}")
            self.measured[name] = (None, f"not measured: {reason(why)}", None, False)

    @contextlib.contextmanager
    def only(self, *names):
        """What goes wrong in here costs these rows alone."""
        try:
            yield
        except Exception as why:
            for name in names:
                self.fail(name, why)

    def lines(self, names, machine, commit):
        for name in names:
            row, (value, against, ratio, lacks_peer) = self.rows[name], self.measured.get(name, NOTHING)
            yield {"row": name, "value": rounded(value, row.decimals), "unit": row.unit, "against": against,
                   "ratio": rounded(ratio, row.decimals),
                   "hold": limit_text(row, row.hold), "reach": limit_text(row, row.reach),
                   "holds": holds(row, value, ratio, lacks_peer), "machine": machine, "commit": commit}

    def cells(self, names):
        """Texts for people: a head, then a line a row."""
        yield ("row", "value", "unit", "against", "ratio", "hold", "reach", "verdict")
        for name in names:
            row, (value, against, ratio, lacks_peer) = self.rows[name], self.measured.get(name, NOTHING)
            sign = {">=": "≥", "<=": "≤"}[row.relation]
            limits = ["" if x is None else f"{sign} {x:g}" for x in (row.hold, row.reach)]
            yield (name, show(value, row.decimals), row.unit, against or "",
                   show(ratio, row.decimals) if ratio is not None else "", *limits, verdict(row, value, ratio, lacks_peer))


def show(x, decimals=None):
    if x is None:
        return "-"
    return f"{x:.0f}" if abs(x) >= 1000 else f"{x:.3g}" if decimals is None else f"{x:.{decimals}f}"


def plain_table(lines, right=()):
    lines = [tuple(map(str, line)) for line in lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(text.rjust(w) if i in right else text.ljust(w)
                               for i, (text, w) in enumerate(zip(line, widths))).rstrip() for line in lines)


def markdown_table(lines):
    lines = [tuple(str(x).replace("|", "\\|") for x in line) for line in lines]
    lines.insert(1, tuple("---" for _ in lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- figures ---


def linear_limit_us(rows, byte_count, macs, read_rate, multiply_rate):
    """The least time of the linears: reading the weights once, or rows' multiply-adds at 0.7 of the measured peak."""
    return 1e6 * max(byte_count / read_rate, rows * macs / (0.7 * multiply_rate))
