"""The pair over a line in scripts/bench_cpu.sh: orchestrator, draft and target on three hosts that are network namespaces of
this one (tests/integration/hosts.py), or, where those are not permitted, with a proxy between draft and target.

Draft and target have processors of their own where there are two or more, as on two hosts: the draft the last one."""

import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys

from bench_machine import Failure, command
from bench_packets import Carried, carried
from bench_pair import PLAIN, ROOT, Pair, Samples, golden_prompts, grouped_prompts
from bench_sessions import stories

sys.path.append(str(ROOT / "tests/integration"))
from far_pair import FarPair, NamespaceLine, any_line  # noqa: E402
from hosts import packets  # noqa: E402

ROW = "pair over 20 ms and 1 % loss"
DELAY, LOSS = 0.02, 0.01
GROUPS = ("summarization", "translation", "rag")  # where prompt lookup finds something
EACH = 3
TOKENS = 128

FAR = "far: the worst of 0 to 100 ms over plain"
AHEAD = "far: free pace over lockstep, 2 ms each way"
KILLED = "far: draft killed every second"
BYTES, FEATURE_BYTES = "far: wire bytes a token", "far: wire bytes a token, with features"
DELAYS = (0, 0.001, 0.002, 0.005, 0.02, 0.1)
LOSSY = (0.005, 0.02)  # delays of lines that lose packets, too
REPLAY_DELAY, REPLAY_BUDGET, REPLAY_PROMPTS = 0.002, 4, (85, 121, 131, 468)
KILL_EVERY = 1.0
STORIES, FEW_TOKENS, STORY_TOKENS = 4, 64, 256


def head_file():
    """The head of the default model."""
    found = [f for folder in ("heads", "bench/heads") for f in sorted((ROOT / folder).glob("*eagle3*.gguf"))]
    if not found:
        raise Failure("no draft head lies in heads/ or bench/heads/")
    return found[0]


def prompts_of(each, groups=GROUPS):
    return [p for name in groups for p in grouped_prompts(each)[name]]


def with_and_without(prompts, repetitions, tokens=TOKENS):
    """Each prompt with its draft and without, by turns."""
    for i in range(repetitions):
        for p in prompts:
            for method in (("plain", "draft"), ("draft", "plain"))[i % 2]:
                yield dict(p, id=f"{p['id']} {i} {method}", draft=method == "draft", max_tokens=tokens, temperature=0)


class Far:
    """Speeds and counts of one run's answers, whose ids end with what they are. Equal prompts must have equal tokens."""

    def __init__(self):
        self.samples, self.tokens, self.stats = Samples(), {}, {}

    def add(self, answers, name=""):
        for a in answers:
            prompt, _, method = a["id"].split()
            if self.tokens.setdefault(prompt, a["token_ids"]) != a["token_ids"]:
                raise Failure(f"prompt {prompt}: the tokens are not those of plain decoding")
            self.samples.add(name + method, {prompt: a["stats"]["tok_s"]})
            self.stats.setdefault(name + method, []).append(a["stats"])

    def total(self, name, figure):
        return sum(s[figure] for s in self.stats[name])

    def check_drafted(self, name="draft"):
        if self.total(name, "draft_tokens") == 0:
            raise Failure("the draft took no part")


def run_pair(run, work, line, requests, **more):
    try:
        return FarPair(line, run.bin, run.model, work, **more).answers(requests)
    except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as why:
        raise Failure(str(why)) from None


def measure_network(run, table, work, repetitions):
    far = Far()
    try:
        with NamespaceLine(DELAY, LOSS) as line:
            far.add(run_pair(run, work, line, with_and_without(prompts_of(EACH), repetitions), target=("--threads", run.threads)))
    except OSError as e:
        raise Failure(f"network namespaces and TUN devices are needed (root, iproute2): {e}") from None
    far.check_drafted()
    s = far.samples
    table.set(ROW, s.speed("draft"), f"plain there, {s.speed('plain'):.1f} tok/s; {far.total('draft', 'accepted_tokens')} of "
              f"{far.total('draft', 'draft_tokens')} nodes accepted", s.ratio("draft", "plain"))


# --- a draft on processors of its own ---


def processors():
    """(of the target, of the draft)"""
    cpus = sorted(os.sched_getaffinity(0))
    return set(cpus[:-1] or cpus), {cpus[-1]}


def drafts(run):
    """{name: flags of tandem-draft}"""
    _, own = processors()
    return {"ngram": ("--draft", "ngram"),
            "eagle3,ngram": ("-m", run.model, "-md", head_file(), "--sessions", 1, "--threads", len(own))}


def apart(run, draft, serve=(), target=()):
    """Options of FarPair for a draft on processors of its own."""
    theirs, own = processors()
    return {"draft": draft, "serve": serve, "target": ("--threads", len(theirs), "--sessions", 1, *target),
            "cpus": {"target": theirs, "draft": own}}


def measure_far(run, table, work, size):
    with table.only(FAR):
        measure_delays(run, table, work, **size["delays"])
    with table.only(AHEAD):
        measure_ahead(run, table, work, size["ahead"])
    with table.only(KILLED):
        measure_killed(run, table, work, size["killed"])
    for row, name in ((BYTES, "ngram"), (FEATURE_BYTES, "eagle3,ngram")):
        with table.only(row):
            measure_bytes(run, table, work, row, drafts(run)[name])


def measure_delays(run, table, work, repetitions, each, delays, lossy):
    """Every method at every delay; lockstep beside it, once. Lines that lose packets as well are told, not judged."""
    lines = [("one way", "draft", "plain tok/s", "free tok/s", "over plain", "lockstep tok/s", "over plain", "accepted")]
    worst = {}  # by loss: (ratio, tok/s, plain tok/s, which)
    note = ""
    for delay, loss in [*((d, 0) for d in delays), *((d, LOSS) for d in lossy)]:
        where = f"{1000 * delay:g} ms" + (f", {100 * loss:g} % loss" if loss else "")
        try:
            figures = [(name, far_figures(run, work, (delay, loss), flags, repetitions, each)) for name, flags in drafts(run).items()]
        except OSError as why:  # a proxy loses nothing
            note = f"; no line that loses packets: {why}"
            continue
        for name, far in figures:
            s = far.samples
            ratio, speed, plain = s.ratio("free draft", "free plain"), s.speed("free draft"), s.speed("free plain")
            lines.append((where, name, f"{plain:.0f}", f"{speed:.0f}", f"{ratio:.2f}", f"{s.speed('lockstep draft'):.0f}",
                          f"{s.ratio('lockstep draft', 'lockstep plain'):.2f}", far.total("free draft", "accepted_tokens")))
            if loss not in worst or ratio < worst[loss][0]:
                worst[loss] = ratio, speed, plain, f"{name}, {where}"
    run.details.append((f"A draft on a processor of its own ({kind_of_line(run, work)}), by delay", lines))
    if LOSS in worst:
        ratio, _, _, which = worst[LOSS]
        note = f"; of lines that lose packets, the worst {ratio:.3f}: {which}"
    ratio, speed, plain, which = worst[0]
    table.set(FAR, speed, f"plain there, {plain:.1f} tok/s; {which}{note}", ratio)


def far_figures(run, work, line, flags, repetitions, each):
    far = Far()
    with any_line(work, *line) as line:
        for pace, serve, times in (("free ", (), repetitions), ("lockstep ", ("--pace", "lockstep"), 1)):
            requests = with_and_without(prompts_of(each), times)
            far.add(run_pair(run, work, line, requests, **apart(run, flags, serve)), pace)
    return far


def kind_of_line(run, work):
    with any_line(work, 0) as line:
        return "network namespaces" if isinstance(line, NamespaceLine) else "a proxy between draft and target"


def measure_ahead(run, table, work, repetitions):
    """A draft that costs nothing and is right 8 times in 10, and second in 8 of 10 of the others."""
    pair, far = Pair(run, work), Far()
    prompts = golden_prompts(REPLAY_PROMPTS)
    plain, _ = pair.answers(prompts, TOKENS, PLAIN)
    recording = work / "recording.jsonl"
    recording.write_text("".join(json.dumps(r) + "\n" for r in plain.values()))
    more = {"draft": ("--draft", f"replay:{recording}:0.8:0.8"), "target": ("--threads", run.threads)}
    with any_line(work, REPLAY_DELAY) as line:
        for i in range(repetitions):
            for pace in (("free", "lockstep"), ("lockstep", "free"))[i % 2]:
                requests = [dict(p, id=f"{p['id']} {i} draft", max_tokens=TOKENS, temperature=0) for p in prompts]
                serve = ("--pace", pace, "--budget", REPLAY_BUDGET)
                far.add(run_pair(run, work, line, requests, serve=serve, **more), f"{pace} ")
    far.check_drafted("free draft")
    s = far.samples
    verify = far.total("lockstep draft", "forward_ms") / far.total("lockstep draft", "forwards")
    table.set(AHEAD, s.speed("free draft"), f"lockstep, {s.speed('lockstep draft'):.1f} tok/s; budget {REPLAY_BUDGET}, a verify of "
              f"{verify:.1f} ms", s.ratio("free draft", "lockstep draft"))


def kill_and_start(pair):
    pair.end_draft()
    pair.start_draft()


def measure_killed(run, table, work, repetitions):
    """Beside plain decoding in programs of its own, whose draft nobody kills: a new draft's start costs time as well."""
    lines, worst = [("draft", "plain tok/s", "killed tok/s", "over plain", "drafts started", "accepted")], None
    prompts = prompts_of(EACH)
    for name, flags in drafts(run).items():
        far, started = Far(), 0
        with any_line(work, 0) as line:
            for i in range(repetitions):
                for method, disturb in (("plain", None), ("draft", kill_and_start)):
                    pair = FarPair(line, run.bin, run.model, work, **apart(run, flags))
                    requests = [dict(p, id=f"{p['id']} {i} {method}", draft=method == "draft", max_tokens=TOKENS, temperature=0)
                             for p in prompts]
                    far.add(pair.answers(requests, disturb, KILL_EVERY))
                    started += pair.drafts_started if disturb else 0
        s = far.samples
        ratio = s.ratio("draft", "plain")
        lines.append((name, f"{s.speed('plain'):.0f}", f"{s.speed('draft'):.0f}", f"{ratio:.2f}", started,
                      far.total("draft", "accepted_tokens")))
        if worst is None or ratio < worst[2]:
            worst = s.speed("draft"), f"plain, {s.speed('plain'):.1f} tok/s; {name}, {started} drafts started", ratio
    run.details.append((f"A draft that is killed and started again every {KILL_EVERY:g} s", lines))
    table.set(KILLED, *worst)


@functools.lru_cache
def takes_head(program):
    return "--head" in command([program, "--help"]).stdout


@dataclasses.dataclass(frozen=True)
class Shipped:
    """What the lines carried, from the start of the programs to the end of the last answer."""

    carried: Carried
    tokens: int
    answers: int
    prompt: float  # tokens, on average
    accepted: int


def shipped(run, work, flags, feeds, tokens):
    record, far = work / "packets", Far()
    record.unlink(missing_ok=True)
    requests = [dict(p, id=f"{p['id']} 0 draft", max_tokens=tokens, temperature=0) for p in stories(run)[:STORIES]]
    try:
        with NamespaceLine(record=record) as line:
            answers = run_pair(run, work, line, requests, **apart(run, flags, target=feeds))
            got = carried(packets(record))
    except OSError as e:
        raise Failure(f"network namespaces and TUN devices are needed (root, iproute2): {e}") from None
    far.add(answers)
    far.check_drafted()
    return Shipped(got, sum(len(a["token_ids"]) for a in answers), len(answers),
                   statistics.mean(len(a["prompt_ids"]) for a in answers), far.total("draft", "accepted_tokens"))


def measure_bytes(run, table, work, row, flags):
    """Of whole packets, on all lines: everything counts. The same answers, cut short, tell what a further token costs, and
    what the start and the prompts do."""
    feeds = ("--head", head_file()) if row == FEATURE_BYTES and takes_head(run.bin / "tandem-target") else ()
    few, many = (shipped(run, work, flags, feeds, tokens) for tokens in (FEW_TOKENS, STORY_TOKENS))
    tell_bytes(run, table, row, few, many, "; fc at the target" if feeds else "")


PARTS = {"headers": "TCP/IP headers", "zmtp": "ZMTP", "encryption": "encryption", "messages": "messages", "repeated": "sent again"}


def tell_bytes(run, table, row, few, many, more):
    each, further = many.carried.per(many.tokens), many.carried.per(many.tokens - few.tokens, few.carried)
    start = many.carried.total - further.total * many.tokens
    of_all = ", ".join(f"{name} {getattr(each, part):.0f}" for part, name in PARTS.items() if part != "repeated" or each.repeated)
    table.set(row, each.total, f"{many.tokens} tokens of {many.answers} answers to prompts of {many.prompt:.0f} tokens; {many.accepted} "
              f"accepted{more}; a further token {further.total:.0f}, start and prompts {start:.0f} in all; of a token's bytes {of_all}")
    lines = [("", "all", *PARTS.values(), "packets", "messages, counted")]
    for name, c in (("a token", each), ("a further token", further)):
        cells = (c.total, *(getattr(c, part) for part in PARTS))
        lines.append((name, *(f"{x:.0f}" for x in cells), f"{c.packets:.2f}", f"{c.frames:.2f}"))
    run.details.append((f"Bytes of the lines, {row.partition(', ')[2] or 'tokens only'}", lines))
