"""Every method on real prompts in scripts/bench_cpu.sh --only methods, by `tandem bench spec`: how many
tokens a verify yields in lockstep and how deep the accepted paths are, and tokens a second in free pace,
greedy and sampled. It takes an hour or two, so a run that does not name it leaves it out."""

from bench_attempts import Attempts
from bench_heads import ALL, CHAIN, bench, file_of, positions_text
from bench_machine import say
from bench_network import head_file

ROW = "methods: answers that differ"
LAYERS = 6
TEMPERATURES = (0, 0.8, 1)
CHAIN_TREE, TREE, FREE = f"chain{CHAIN}", "31", "free"
POSITIONS = 7  # that are told
LAYERS_NAME = f"--draft-layers {LAYERS}"
# what `tandem bench spec` calls a method: what people read
NAMES = {"ngram": "ngram", "eagle3": "head", "eagle3,ngram": "head, ngram", "model": LAYERS_NAME}
# name: flags of one run
DRAFTS = {"head and ngram": ("--methods", "ngram,eagle3,eagle3+ngram", "-md", "HEAD"),
          LAYERS_NAME: ("--methods", "model", "--draft-layers", LAYERS)}
PACES = {"lockstep": ("--trees", f"{CHAIN_TREE},{TREE}"), FREE: ()}


def measure_methods(run, table, work, size):
    path, prompts = file_of(ALL, work, size["prompts"])
    rows, attempts = {}, Attempts()
    for temperature in TEMPERATURES:
        for draft, flags in DRAFTS.items():
            flags = [head_file() if flag == "HEAD" else flag for flag in flags]
            for pace, trees in PACES.items():
                name = f"{draft}, {pace}, temperature {temperature}"
                say(f"methods: {name}")
                rows.update(attempts.attempt(name, bench, run, path, size["tokens"], *flags, *trees,
                                             "--temps", temperature) or {})
    run.details += tables(rows)
    attempts.check(*attempts.failed)
    answers = [r for (*_, category), r in rows.items() if category == "all"]
    table.set(ROW, sum(r["different"] for r in answers),
              f"plain decoding, {sum(r['prompts'] for r in answers)} answers to {len(prompts)} prompts")


# --- tables ---


def tables(rows):
    """[(title, lines)]; rows: by (method, tree, temperature, category)."""
    kinds = [(temperature, tree, method) for temperature in TEMPERATURES for tree in (CHAIN_TREE, TREE)
             for method in NAMES if (method, tree, temperature, "all") in rows]
    groups = list(dict.fromkeys(category for *_, category in rows))
    groups.sort(key=lambda group: group != "all")  # that one first

    def each(kind, cell):
        temperature, tree, method = kind
        return [cell(rows[method, tree, temperature, group]) for group in groups]

    def label(kind):
        temperature, tree, method = kind
        return f"{temperature:g}", tree, NAMES[method]

    heads = ("temperature", "tree", "method")
    verifies = [(*label(k), *each(k, yield_text)) for k in kinds]
    depths = [(*label(k), *depth_texts(k[1], rows[k[2], k[1], k[0], "all"])) for k in kinds]
    chains = [(*label(k), *each(k, lambda r: positions_text(r, CHAIN))) for k in kinds if k[1] == CHAIN_TREE]
    return [("Tokens a verify, in lockstep, bonus token included", [(*heads, *groups), *verifies]),
            ("Share of the verifies that accept at least so many nodes, in lockstep, all prompts",
             [(*heads, *map(str, range(1, POSITIONS + 1))), *depths]),
            (f"Share of the verifies that accept at least 1, 2, ... {CHAIN} nodes of a chain of {CHAIN}",
             [(*heads, *groups), *chains]),
            ("Over plain decoding, in free pace", free_lines(rows, groups))]


def yield_text(row):
    return f"{row['tokens_per_verify']:.2f}" if row["verifies"] else "-"


def depth_texts(tree, row):
    """Of depths that the tree can have."""
    shares = row["accepted_per_pos"] + [0] * POSITIONS
    depth = CHAIN if tree == CHAIN_TREE else POSITIONS
    return [f"{x:.2f}" for x in shares[:depth]] + [""] * (POSITIONS - depth)


def free_lines(rows, groups):
    heads = ("temperature", "method", "plain tok/s", "tok/s", "from the draft")
    lines = [(*heads, *groups)]
    for temperature in TEMPERATURES:
        for method in NAMES:
            r = rows.get((method, FREE, temperature, "all"))
            if r:
                gains = (rows[method, FREE, temperature, group]["gain"] for group in groups)
                lines.append((f"{temperature:g}", NAMES[method], f"{r['plain_tok_s']:.0f}",
                              f"{r['tok_s']:.0f}", f"{100 * r['accepted_share']:.0f} %",
                              *(f"{gain:.2f}" for gain in gains)))
    return lines
