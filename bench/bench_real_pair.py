"""A real pair in scripts/bench_cpu.sh --only "real pair" and in bench/bench_gpu.py: a model of 1.5 billion
parameters that writes code, with one of 0.5 billion as its draft. scripts/get_model.sh fetches both, 1.6 GB,
so a run that does not name this part leaves it out."""

import copy
import dataclasses
import json
import pathlib

from bench_heads import DATA, bench, lines_of
from bench_machine import Failure
from bench_pair import PLAIN, ROOT, Method, Pair, Samples, speeds
from bench_peer import SETTINGS, Peer

MODELS = ROOT / "models"
TARGET = MODELS / "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf"
DRAFT = MODELS / "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
CODE, OWN = DATA / "code_24.jsonl", DATA / "own_prompts.jsonl"

ROW = "real pair:"
OVER, CHAT, BEST, DIFFERING = (f"{ROW} {name}" for name in ("code", "chat", "code, over llama.cpp's best",
                                                            "answers that differ"))
PROMPTS_OF_PEER = 8
PEER_DRAFTS = (2, 4, 8)  # tokens of llama.cpp's drafts, at most


@dataclasses.dataclass(frozen=True)
class RealDraft(Method):
    draft: str = "model,ngram"
    file: pathlib.Path = DRAFT

    def flags(self, work):
        return (*super().flags(work), "-md", self.file)


def peer_settings(pair):
    """llama.cpp's: its lookups, and the same draft. ngram-mod remembers the answers to all requests, so that
    only a server that is started anew has not seen these."""
    drafts = {f"the draft, {n}": ("-md", pair.draft, "--spec-type", "draft-simple", "--spec-draft-n-max", n,
                                  *pair.peer_draft) for n in PEER_DRAFTS}
    return {**SETTINGS, "ngram-mod": ("--spec-type", "ngram-mod"), **drafts}


def of_pair(run):
    """The same run with the larger model."""
    for file in (TARGET, DRAFT):
        if not file.exists():
            raise Failure(f"{file} is missing: `scripts/get_model.sh qwen2.5-coder-1.5b' and "
                          "`scripts/get_model.sh qwen2.5-coder-0.5b' fetch the pair")
    other = copy.copy(run)
    other.model, other.draft, other.peer_draft = TARGET, DRAFT, ()
    if run.peer:
        other.peer = Peer(run.peer.bin.parent, TARGET)
    return other


def chat_file(work):
    with open(OWN) as f:
        rows = [line for line in f if json.loads(line)["category"] == "chat"]
    out = work / "chat.jsonl"
    out.write_text("".join(rows))
    return out


def measure_real_pair(pair, table, work, size, turns, no_peer):
    """pair: a run with the larger model, its draft, and llama-server's flags for that."""
    other = []
    for row, file in ((OVER, CODE), (CHAT, chat_file(work))):
        with table.only(row):
            figures = bench(pair, file, size["tokens"], "--repeat", size["repeat"], "-md", pair.draft)
            figures = {category: r for (*_, category), r in figures.items()}
            r = figures["all"]
            other.append(r["different"])
            table.set(row, r["tok_s"], f"plain, {r['plain_tok_s']:.1f} tok/s; {r['prompts']} answers; "
                                       f"{100 * r['accepted_share']:.0f} % from the draft", r["gain"])
            pair.details.append((f"The real pair, {file.name}", lines_of(figures)))
    with table.only(DIFFERING):
        if len(other) < 2:
            raise Failure("not all of the answers were measured")
        table.set(DIFFERING, sum(other), "plain decoding, all answers of the two rows above")
    with table.only(BEST):
        measure_peer(pair, table, work, size, turns, no_peer)


def request_of(row):
    return {"id": row["id"], "messages": [{"role": "user", "content": row["turns"][0]}]}


def some_prompts():
    with open(CODE) as f:
        rows = [json.loads(line) for line in f]
    rows = rows[::-(-len(rows) // PROMPTS_OF_PEER)]
    return [request_of(r) for r in rows]


def measure_peer(pair, table, work, size, turns, no_peer):
    """Ours and llama-server's settings on the same token ids, by turns. One server at a time: each holds the
    whole model."""
    ours, settings, samples, theirs = Pair(pair, work), peer_settings(pair), Samples(), {}
    lines, _ = ours.answers(some_prompts(), size["tokens"], PLAIN)
    plain = {i: r["token_ids"] for i, r in lines.items()}
    samples.add("plain", speeds(lines))
    ids = {i: r["prompt_ids"] for i, r in lines.items()}
    prompts = [{"id": i, "prompt_ids": p} for i, p in ids.items()]

    def take():
        lines, _ = ours.checked(prompts, size["tokens"], RealDraft(file=pair.draft), plain)
        samples.add("pair", speeds(lines))

    def ask(name):
        with pair.peer.server(pair.threads, settings[name], work / "server.log") as server:
            answers = {i: server.answer(p, size["tokens"]) for i, p in ids.items()}
        samples.add(f"llama.cpp {name}", {i: speed for i, (_, speed) in answers.items()})
        theirs[name] = {i: answer for i, (answer, _) in answers.items()}

    for i in range(size["passes"]):
        samples.attempt("pair", take)
        for name in turns(settings, i) if pair.peer else ():
            samples.attempt_one_of("llama.cpp", name, ask, name)
    tell_peer(pair, table, settings, samples, theirs, no_peer)


def tell_peer(pair, table, settings, samples, theirs, no_peer):
    if not pair.peer:
        table.set(BEST, samples.speed("pair"), no_peer, lacks_peer=True)
        return
    samples.check(*(f"llama.cpp {name}" for name in settings))
    speed = {name: samples.speed(f"llama.cpp {name}") for name in settings}
    best = max(speed, key=speed.get)
    table.set(BEST, samples.speed("pair"), f"llama.cpp {best}, {speed[best]:.1f} tok/s",
              samples.ratio("pair", f"llama.cpp {best}"))
    other = {name: sum(answers[i] != theirs["plain"][i] for i in answers) for name, answers in theirs.items()}
    pair.details.append((f"llama.cpp on {len(theirs['plain'])} requests about code", [
        ("llama.cpp's setting", "tok/s", "over its plain", "answers other than its plain"),
        *((name, f"{speed[name]:.1f}", f"{samples.ratio(f'llama.cpp {name}', 'llama.cpp plain'):.2f}",
           f"{other[name]} of {len(theirs[name])}") for name in settings)]))
