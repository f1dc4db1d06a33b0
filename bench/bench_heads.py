"""Draft heads in scripts/bench_cpu.sh: how many tokens a verify yields, in lockstep, and what `tandem run`'s
own draft is worth on whole files of prompts (both by `tandem bench spec`); the same head in llama.cpp."""

import contextlib
import json

from bench_machine import Failure, command
from bench_network import head_file
from bench_pair import PLAIN, ROOT, Method, Pair, Samples, speeds
from bench_peer import SETTINGS

DATA = ROOT / "bench/data"
ALL, OWN, FIRST = (DATA / f"{name}.jsonl" for name in ("spec_bench_96", "own_prompts", "first_prompts"))
TASKS = {"translation", "summarization", "qa", "math_reasoning", "rag"}  # MT-bench's categories are one group
LEAST = 24  # tokens of an answer that is timed
LIMIT = 7200  # seconds of one `tandem bench spec`
OUTPUTS = 16384  # all of the head's, as llama.cpp reads it; a draft on a CPU reads fewer by default

COUNTS, DIFFERING = "head: tokens a verify", "head: answers that differ"
PEER = "head: chain of 5 over llama.cpp's"
DEFAULT, WORST = "default draft:", "default draft: the worst group"
BEST = "default draft: over llama.cpp's best"
ROWS = ("head:", DEFAULT)
CHAIN = 5
# llama.cpp's settings of the head: the most tokens that it drafts, each of them whatever its probability
HEAD_DRAFTS = (1, 2, 3, CHAIN)


def setting(n):
    return f"the head, {n}"


def file_of(file, work, count=None):
    """The prompts with their groups, at most so many, of all groups alike."""
    with open(file) as f:
        rows = [json.loads(line) for line in f]
    rows = rows[::-(-len(rows) // count)] if count else rows
    for r in rows:
        if file == ALL and r["category"] not in TASKS:
            r["category"] = "mt_bench"
    out = work / file.name
    out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return out, rows


def bench(run, file, tokens, *flags, outputs=None):
    """{(method, tree, temperature, category): row} of `tandem bench spec`."""
    variables = ["env", f"TANDEM_DRAFT_OUTPUTS={outputs}"] if outputs else []
    done = command([*variables, run.bin / "tandem", "bench", "spec", file, "-m", run.model, "--threads",
                    run.threads, "--max-tokens", tokens, "--seed", 1, "--json", *run.flags, *flags], LIMIT)
    key = ("method", "tree", "temperature", "category")
    return {tuple(r[k] for k in key): r for r in json.loads(done.stdout)["rows"]}


def default_draft():
    """The flags of `tandem run`'s own draft: none where a head comes with it, else the benchmarks' head."""
    return () if list((ROOT / "heads").glob("*.gguf")) else ("-md", head_file())


def rows_of(table, beginning):
    return [name for name in table.rows if name.startswith(beginning)]


def measure_heads(run, table, work, size, turns, no_peer):
    with table.only(*rows_of(table, COUNTS), DIFFERING):
        measure_counts(run, table, work, size)
    with table.only(*rows_of(table, f"{DEFAULT} all prompts"), WORST):
        tell_groups(run, table, "all prompts", default_figures(run, work, size, ALL), WORST)
    with table.only(*rows_of(table, f"{DEFAULT} own prompts")):
        own = f"{DEFAULT} own prompts, the worst group"
        tell_groups(run, table, "own prompts", default_figures(run, work, size, OWN), own)
    with table.only(*rows_of(table, f"{DEFAULT} first prompts")):
        tell_first(run, table, "first prompts", default_figures(run, work, size, FIRST))
    with table.only(PEER, BEST):
        measure_peer(run, table, work, size, turns, no_peer)


def default_figures(run, work, size, file):
    """{group: row}"""
    path, _ = file_of(file, work, size["prompts"])
    figures = bench(run, path, size["tokens"], "--repeat", size["repeat"], *default_draft())
    return {category: r for (*_, category), r in figures.items()}


# (name, method, tree, temperature)
TRIALS = (("chain of 5", "eagle3", f"chain{CHAIN}", 0), ("tree of 31", "eagle3", "31", 0),
          ("tree of 31 and ngram's 8", "eagle3+ngram", "39", 0),
          ("tree of 31, temperature 1", "eagle3", "31", 1))


def counts_of(run, path, size, trial, outputs=None):
    """{group: row}"""
    _, method, tree, temperature = trial
    figures = bench(run, path, size["tokens"], "-md", head_file(), "--methods", method, "--trees", tree,
                    "--temps", temperature, outputs=outputs)
    return {category: r for (*_, category), r in figures.items()}


def positions_text(row, count=7):
    return " ".join(f"{x:.2f}" for x in row["accepted_per_pos"][:count])


def measure_counts(run, table, work, size):
    """What a draft does by default is judged; beside it stands what all of the head's outputs would give."""
    path, rows = file_of(ALL, work, size["prompts"])
    positions = "the default's: accepted at least 1, 2, ... nodes"
    other, lines = 0, [("trial", "the default's", "all outputs", positions)]
    for trial in TRIALS:
        usual, whole = (counts_of(run, path, size, trial, outputs) for outputs in (None, OUTPUTS))
        r = usual["all"]
        other += r["different"] + whole["all"]["different"]
        table.set(f"{COUNTS}, {trial[0]}", r["tokens_per_verify"],
                  f"{r['verifies']} verifies, {len(rows)} prompts; "
                  f"{whole['all']['tokens_per_verify']:.2f} with all of the head's outputs")
        for group, r in usual.items():
            lines.append((trial[0] if group == "all" else f"  {group}", f"{r['tokens_per_verify']:.2f}",
                          f"{whole[group]['tokens_per_verify']:.2f}", positions_text(r)))
    run.details.append((f"The head {head_file().name}, in lockstep: tokens a verify", lines))
    table.set(DIFFERING, other, f"plain decoding, {2 * len(TRIALS) * len(rows)} answers")


def tell_groups(run, table, name, figures, worst_row):
    groups = {category: r for category, r in figures.items() if category != "all"}
    worst = min(groups, key=lambda category: groups[category]["gain"])

    def tell(row, r, which):
        share = f"{100 * r['accepted_share']:.0f} % from the draft"
        table.set(row, r["tok_s"], f"plain, {r['plain_tok_s']:.1f} tok/s; {which}; {share}", r["gain"])

    tell(f"{DEFAULT} {name}", figures["all"], f"{figures['all']['prompts']} answers")
    tell(worst_row, groups[worst], worst)
    run.details.append((f"The default draft, {name}", lines_of(figures)))


def tell_first(run, table, name, figures):
    r = figures["all"]
    table.set(f"{DEFAULT} {name}", r["tok_s"], f"plain, {r['plain_tok_s']:.1f} tok/s", r["gain"])
    table.set(f"{DEFAULT} {name}, from the draft", 100 * r["accepted_share"], f"{r['tokens']} tokens")
    run.details.append((f"The default draft, {name}", lines_of(figures)))


def lines_of(figures):
    return [("group", "answers", "tokens a verify", "from the draft", "plain tok/s", "tok/s", "over plain"),
            *((category, r["prompts"], f"{r['tokens_per_verify']:.2f}", f"{100 * r['accepted_share']:.0f} %",
               f"{r['plain_tok_s']:.0f}", f"{r['tok_s']:.0f}", f"{r['gain']:.2f}")
              for category, r in figures.items())]


# --- llama.cpp ---


def some_of_each_group(each):
    groups = {}
    with open(ALL) as f:
        for r in map(json.loads, f):
            group = groups.setdefault(r["category"] if r["category"] in TASKS else "mt_bench", [])
            if len(group) < each:
                group.append({"id": r["id"], "messages": [{"role": "user", "content": r["turns"][0]}]})
    return [p for group in groups.values() for p in group]


class HeadMethod(Method):
    def flags(self, work):
        return (*super().flags(work), "-md", head_file())


class Peers:
    """Our default draft and llama-server's settings, on the same prompts by turns."""

    def __init__(self, run, work, size):
        self.pair, self.tokens = Pair(run, work), size["tokens"]
        self.prompts = some_of_each_group(size["each"])
        self.samples = Samples()
        plain, _ = self.pair.answers(self.prompts, self.tokens, PLAIN)
        plain = {i: r for i, r in plain.items() if len(r["token_ids"]) >= LEAST}  # shorter ones tell no speed
        self.prompts = [p for p in self.prompts if p["id"] in plain]
        self.plain = {i: r["token_ids"] for i, r in plain.items()}
        self.ids = {i: r["prompt_ids"] for i, r in plain.items()}
        self.counts = {}  # name: (tokens, steps of the target)
        self.theirs = {}  # (setting, prompt): tokens

    def take(self, name, method):
        lines, _ = self.pair.checked(self.prompts, self.tokens, method, self.plain)
        self.samples.add(name, speeds(lines))

    def ask(self, name, server):
        tokens = steps = 0
        for i, ids in self.ids.items():
            answer, speed, accepted = server.answer_and_drafts(ids, self.tokens)
            self.samples.add(f"llama.cpp {name}", {i: speed})
            self.theirs[name, i] = answer
            tokens, steps = tokens + len(answer), steps + len(answer) - accepted
        self.counts[name] = (tokens, steps)

    def differing(self, name):
        return sum(self.theirs[name, i] != self.theirs["plain", i] for i in self.ids)

    def length(self, name):
        tokens, steps = self.counts[name]
        return tokens / steps


def measure_peer(run, table, work, size, turns, no_peer):
    p = Peers(run, work, size)
    with peer_servers(run, work) as servers:
        for i in range(size["passes"]):
            p.samples.attempt("default", p.take, "default", HeadMethod("eagle3,ngram"))
            for name in turns(servers, i):
                p.samples.attempt_one_of("llama.cpp", name, p.ask, name, servers[name])
    with table.only(BEST):
        tell_best(run, table, p, servers, no_peer)
    with table.only(PEER):
        tell_chain(run, table, work, p, size, servers, no_peer)


@contextlib.contextmanager
def peer_servers(run, work):
    if not run.peer:
        yield {}
        return
    # `tandem convert-head` wrote the file in llama.cpp's own layout
    drafts = {setting(n): ("-md", head_file(), "--spec-type", "draft-eagle3", "--spec-draft-n-max", n,
                           "--spec-draft-p-min", 0) for n in HEAD_DRAFTS}
    with run.peer.servers(run.threads, work, {**SETTINGS, **drafts}) as servers:
        yield servers


def tell_best(run, table, p, servers, no_peer):
    s = p.samples
    if not servers:
        table.set(BEST, s.speed("default"), no_peer, lacks_peer=True)
        return
    speed = {name: s.speed(f"llama.cpp {name}") for name in servers}
    best = max(speed, key=speed.get)
    table.set(BEST, s.speed("default"), f"llama.cpp {best}, {speed[best]:.1f} tok/s",
              s.ratio("default", f"llama.cpp {best}"))
    run.details.append((f"llama.cpp with and without the same head, {len(p.ids)} prompts", [
        ("llama.cpp's setting", "tok/s", "over its plain", "tokens a step", "answers other than its plain"),
        *((name, f"{speed[name]:.1f}", f"{s.ratio(f'llama.cpp {name}', 'llama.cpp plain'):.2f}",
           f"{p.length(name):.2f}", f"{p.differing(name)} of {len(p.ids)}") for name in servers)]))


def tell_chain(run, table, work, p, size, servers, no_peer):
    """Both as tokens for each step of the target, the steps without a draft included."""
    file = work / "chain.jsonl"
    file.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in p.ids.values()))
    tree = f"chain{CHAIN}"
    ours = bench(run, file, size["tokens"], "-md", head_file(), "--methods", "eagle3", "--trees", tree,
                 outputs=OUTPUTS)
    ours = ours["eagle3", tree, 0, "all"]
    if ours["different"]:
        raise Failure(f"{ours['different']} answers are not those of plain decoding")
    length = ours["tokens"] / ours["forwards"]
    if not servers:
        table.set(PEER, length, no_peer, lacks_peer=True)
        return
    p.samples.check(*(f"llama.cpp {name}" for name in ("plain", setting(CHAIN))))
    theirs = p.length(setting(CHAIN))
    other = f"{p.differing(setting(CHAIN))} of {len(p.ids)} of its answers differ from its plain ones"
    table.set(PEER, length, f"llama.cpp, {theirs:.4f}; {other}, 0 of ours", length / theirs)
