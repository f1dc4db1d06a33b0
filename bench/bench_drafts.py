"""Model drafts in scripts/bench_cpu.sh: a target that is several times deeper than its draft (make_deep_model.py), and a bad
draft of the default model."""

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import types

from bench_pair import PLAIN, Method, Pair, Samples, grouped_prompts, speeds
from bench_peer import enter_all
from make_deep_model import make

MORE_LAYERS, SCALE = 90, 0.125  # four times as deep; its own first layers are right in 0.84 of all cases
ANSWER = 112
GOOD_LAYERS, BAD_LAYERS = 30, 10
# llama.cpp's: the most tokens that it drafts
PEER_SETTINGS = {"plain": (), **{f"draft of {n}": ("--spec-type", "draft-simple", "--spec-draft-n-max", str(n)) for n in (2, 4)}}


@dataclasses.dataclass(frozen=True)
class ModelDraft(Method):
    draft: str = "model"
    file: pathlib.Path = None
    layers: int = None

    def flags(self, work):
        file = () if self.file is None else ("--model-draft", self.file)
        layers = () if self.layers is None else ("--draft-layers", self.layers)
        return (*super().flags(work), *file, *layers)


class PinnedPair(Pair):
    """A target and a draft's model that were started by hand, a thread each, on processors of their own."""

    def flags(self, method, threads, sessions):
        return ("--listen", self.endpoint, "--wait", 60, "--ledger", "none", *method.sampling,
                *(("--draft", "none") if method == PLAIN else ()))

    @property
    def endpoint(self):
        return f"ipc://{self.work}/o"

    @contextlib.contextmanager
    def workers(self, small):
        with contextlib.ExitStack() as stack:
            for cpu, program, model in zip(sorted(os.sched_getaffinity(0)), ("tandem-target", "tandem-draft"), ((), ("-md", small))):
                worker = subprocess.Popen([self.o.bin / program, "--orchestrator", self.endpoint, "-m", self.o.model, *model,
                                           "--threads", "1", "--sessions", "1"], stderr=subprocess.DEVNULL,
                                          preexec_fn=lambda cpu=cpu: os.sched_setaffinity(0, {cpu}))
                stack.callback(worker.wait)
                stack.callback(worker.terminate)
            yield


def accepted_text(lines):
    accepted, drafted = (sum(r["stats"][key] for r in lines) for key in ("accepted_tokens", "draft_tokens"))
    return f"{accepted} of {drafted} nodes accepted"


class Drafts:
    """Prompts of the benchmark's data, one answer at a time, every method in turns; tokens must be plain decoding's."""

    def __init__(self, run, pair, methods):
        self.run, self.pair, self.methods = run, pair, methods
        self.prompts = [p for group in grouped_prompts(1).values() for p in group]
        self.samples, self.lines = Samples(), {}
        plain, _ = pair.answers(self.prompts, ANSWER, PLAIN)
        self.plain = {i: r["token_ids"] for i, r in plain.items()}
        self.ids = {i: r["prompt_ids"] for i, r in plain.items()}

    def take(self, name):
        lines, _ = self.pair.checked(self.prompts, ANSWER, self.methods[name], self.plain)
        self.samples.add(name, speeds(lines))
        self.lines.setdefault(name, []).extend(lines.values())

    def ask(self, name, server):
        for i, ids in self.ids.items():
            _, speed = server.answer(ids, ANSWER)
            self.samples.add(f"llama.cpp {name}", {i: speed})

    def take_turns(self, repetitions, turns, servers=None):
        for i in range(repetitions):
            for name in turns(self.methods, i):
                self.samples.attempt(name, self.take, name)
            for name in turns(servers, i):
                self.samples.attempt_one_of("llama.cpp", name, self.ask, name, servers[name])

    def row(self, table, row, name):
        s = self.samples
        table.set(row, s.speed(name), f"plain, {s.speed('plain'):.1f} tok/s; {accepted_text(self.lines[name])}", s.ratio(name, "plain"))


@contextlib.contextmanager
def peer_servers(run, work, model):
    """llama-server of the same two files, a server a setting, side by side."""
    if not run.peer:
        yield {}
        return
    own, run.peer.model = run.peer.model, model
    try:
        with contextlib.ExitStack() as stack:
            yield enter_all(stack, {name: run.peer.server(
                run.threads, (*flags, "-md", own) if flags else (), work / f"draft{i}.log")
                for i, (name, flags) in enumerate(PEER_SETTINGS.items())})
    finally:
        run.peer.model = own


def measure_drafts(run, table, work, repetitions, turns, no_peer):
    """Three pairs, one after the other: where one fails, the others' rows stand."""
    with table.only("bad model draft"):
        measure_bad(run, table, work, repetitions, turns)
    deep = work / "deep.gguf"
    make(run.model, deep, MORE_LAYERS, SCALE)
    pair = Pair(types.SimpleNamespace(**{**vars(run), "model": deep}), work)
    with table.only("model draft, on a core of its own"):
        measure_apart(run, table, PinnedPair(pair.o, work), repetitions, turns)
    measure_good(run, table, work, pair, repetitions, turns, no_peer)


def measure_bad(run, table, work, repetitions, turns):
    drafts = Drafts(run, Pair(run, work), {"plain": PLAIN, "bad": ModelDraft(layers=BAD_LAYERS)})
    drafts.take_turns(repetitions, turns)
    drafts.row(table, "bad model draft", "bad")


def measure_apart(run, table, pinned, repetitions, turns):
    with pinned.workers(run.model):
        drafts = Drafts(run, pinned, {"plain": PLAIN, "apart": ModelDraft(file=run.model)})
        drafts.take_turns(repetitions, turns)
    drafts.row(table, "model draft, on a core of its own", "apart")


def measure_good(run, table, work, pair, repetitions, turns, no_peer):
    drafts = Drafts(run, pair, {"plain": PLAIN, "first layers": ModelDraft(layers=GOOD_LAYERS),
                                "smaller model": ModelDraft(file=run.model), "ngram": Method("ngram")})
    with peer_servers(run, work, pair.o.model) as servers:
        drafts.take_turns(repetitions, turns, servers)
    for row, name in (("model draft, -md", "smaller model"), ("model draft, --draft-layers 30", "first layers"),
                      ("ngram on that model", "ngram")):
        with table.only(row):
            drafts.row(table, row, name)
    with table.only("model draft over llama.cpp's"):
        tell_peer(run, table, drafts, no_peer)


def tell_peer(run, table, drafts, no_peer):
    row, s = "model draft over llama.cpp's", drafts.samples
    ours = s.speed("smaller model")
    if not run.peer:
        table.set(row, ours, no_peer, lacks_peer=True)
        return
    s.check(*(f"llama.cpp {name}" for name in PEER_SETTINGS))
    speed = {name: s.speed(f"llama.cpp {name}") for name in PEER_SETTINGS}
    best = max(speed, key=speed.get)
    table.set(row, ours, f"llama.cpp {best}, {speed[best]:.1f} tok/s", s.ratio("smaller model", f"llama.cpp {best}"))
    run.details.append(("llama.cpp on the deep model, the default model as its draft",
                        [("llama.cpp's setting", "tok/s", "over its plain"),
                         *((n, f"{v:.1f}", f"{s.ratio(f'llama.cpp {n}', 'llama.cpp plain'):.2f}") for n, v in speed.items())]))
