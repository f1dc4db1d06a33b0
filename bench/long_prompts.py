"""Twelve long prompts for bench_long.py, three each of four tasks whose answers repeat what the prompt says.
Their texts are files of this repository, read when a prompt is composed and cut at a line's end to the length
that is wanted. The requests, and the notes hidden in some of the documents, were written for them."""

import dataclasses
import pathlib

from bench_machine import Failure

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHORTEST = 0.97  # of the length that is wanted
OPENING = "Here are files of our project, each below a line with its name."


@dataclasses.dataclass(frozen=True)
class LongPrompt:
    name: str
    task: str
    files: tuple  # patterns; what a prompt is about comes first, the rest is there to be read past
    request: str
    notes: tuple = ()  # hidden at equal distances


EDITS = (
    LongPrompt(
        "processors", "edit", ("common/base/cpus.c", "common/base/*.c", "common/command_line/*.c"),
        "In common/base/cpus.c the messages for people speak of a \"processor\". They should say \"CPU\" "
        "instead; comments and names stay as they are. Return the whole file common/base/cpus.c with "
        "this change and nothing else changed. Only the code, please."),
    LongPrompt(
        "nodes", "edit", ("target_worker/attached_drafts.c", "target_worker/*.c"),
        "Please write the function attached_drafts_nodes of target_worker/attached_drafts.c again, so "
        "that the texts of its two errors ERR_DESYNC and ERR_LIMIT end with \"; the draft starts anew\". "
        "Leave everything else as it is, the comments too. Give me the whole function and no "
        "explanation."),
    LongPrompt(
        "blocks", "edit",
        ("scripts/eagle3_training/blocks.py", "scripts/eagle3_training/*.py", "scripts/*.py"),
        "The function dequantise in scripts/eagle3_training/blocks.py takes every name that it does not "
        "know for Q4_0. Let it raise a ValueError there. Return the whole file with this change, from "
        "its first line to its last, and change nothing else."),
)

SUMMARIES = (
    LongPrompt(
        "failures", "summary", ("docs/decisions/failure.md", "docs/RELIABILITY.md", "docs/decisions/*.md"),
        "Summarise this for a colleague who starts on Monday and has to know what happens when something "
        "fails. Pick the ten sentences that matter most and quote each of them word for word, one a "
        "line, in the order in which they stand in the text."),
    LongPrompt(
        "policy", "summary", ("docs/decisions/policy.md", "docs/decisions/drafts.md", "docs/decisions/*.md"),
        "I have no time to read all of this. Give me a summary that consists of quotations only: from "
        "each section the one sentence that says what was decided, word for word, below the section's "
        "heading."),
    LongPrompt(
        "devices", "summary", ("docs/DEVICES.md", "docs/GPU.md", "docs/SERVE.md", "docs/*.md"),
        "Sum up the first document in bullet points. Use the author's own sentences, copied exactly, and "
        "leave out examples, tables and commands."),
)

NEEDLES = (
    LongPrompt(
        "outage", "needle",
        ("docs/decisions/security.md", "docs/decisions/protocol.md", "docs/decisions/*.md"),
        "Three notes in these documents are about the outage in March. Quote all three word for word, in "
        "the order in which they stand, and say then in one sentence why the machines were down.",
        ("A note on the outage of 14 March: at 03:12 the pump of the second cooling loop stopped, and "
         "nobody noticed, because its alarm was still connected to the old telephone line. The room "
         "reached 41 degrees before the first machine switched itself off.",
         "Another note on the outage of 14 March: Ines Albrecht was the first to arrive, at 04:50, and "
         "opened both doors to the yard. She left the machines off until the room was below 26 degrees, "
         "which took until a quarter past seven.",
         "The last note on the outage of 14 March: the pump's fuse had been changed on 2 March for one "
         "of 10 amperes, but the pump needs 16 when it starts. The alarm now calls three numbers, one "
         "after the other, and is tried out on the first Tuesday of each month.")),
    LongPrompt(
        "rules", "needle",
        ("docs/SERVE.md", "docs/COOKBOOK.md", "docs/ARCHITECTURE.md", "docs/decisions/*.md"),
        "May I run something on the machine called Heron over the weekend, and whom do I ask? The rules "
        "are in these documents, in three places. Quote every passage about Heron in full before you "
        "answer.",
        ("Heron may be used by everybody in the group from Monday to Thursday. Whoever needs it for more "
         "than six hours writes name, purpose and end into the list on its door, in ink, and strikes the "
         "line out afterwards.",
         "From Friday noon to Monday morning Heron belongs to the people of the weather model. Others "
         "ask Tomasz Wierzba by Thursday evening; he answers every mail with yes or no, and silence "
         "means no.",
         "Nothing on Heron is backed up. What lies in the folder named scratch is deleted on the first "
         "of each month, and what lies elsewhere is deleted when the disk is nine tenths full, the "
         "largest files first.")),
    LongPrompt(
        "recipe", "needle",
        ("docs/decisions/kernels.md", "docs/decisions/numerics.md", "docs/decisions/*.md"),
        "Somebody has hidden a recipe for bread in these documents, in three parts. Please put it "
        "together: copy the three parts exactly as they stand there, in their order.",
        ("Bread, first part: stir 40 grams of rye sourdough into 200 grams of lukewarm water, add 200 "
         "grams of rye flour, cover the bowl with a plate and leave it near the oven overnight, for ten "
         "to twelve hours.",
         "Bread, second part: add 300 grams of wheat flour, 150 grams of water, 11 grams of salt and a "
         "spoonful of caraway. Knead for eight minutes, wait for one hour, fold the dough four times and "
         "put it into a floured basket.",
         "Bread, third part: after two hours in the basket bake it in a closed pot at 250 degrees for 25 "
         "minutes, then without the lid at 210 degrees for 20 more. It is done when it sounds hollow, "
         "and should not be cut before it is cold.")),
)

LISTS = (
    LongPrompt(
        "functions", "list", ("common/model/*.h", "common/file/*.h", "common/base/*.h"),
        "List every function that these headers declare, each with its whole declaration exactly as it "
        "stands there, one after the other and in the order of the text. No comments and no "
        "explanations."),
    LongPrompt(
        "flags", "list", ("common/command_line/flags.def", "orchestrator/cli/*.c"),
        "Make a list of all flags that the table in common/command_line/flags.def gives: for each FLAG "
        "its name with two dashes before it, a colon, and its help text word for word. Keep the order of "
        "the table."),
    LongPrompt(
        "terms", "list", ("docs/GLOSSARY.md", "docs/ARCHITECTURE.md", "docs/decisions/*.md"),
        "List all terms of docs/GLOSSARY.md with their definitions, one a line: the term, a colon, and "
        "the definition exactly as it stands in the table. Leave the other columns out."),
)

PROMPTS = EDITS + SUMMARIES + NEEDLES + LISTS


def lines_of(patterns):
    """Of all files that they match, each once, below a line with its name."""
    files = dict.fromkeys(path for p in patterns for path in sorted(ROOT.glob(p)))
    lines = []
    for path in files:
        lines += [f"=== {path.relative_to(ROOT)} ===", *path.read_text().splitlines(), ""]
    return lines


def text_of(prompt, lines):
    """The whole prompt, about these lines. A note becomes a paragraph of its own."""
    lines, parts = list(lines), len(prompt.notes) + 1
    for part, note in reversed(list(enumerate(prompt.notes, 1))):
        first = len(lines) * part // parts
        at = next((i for i in range(first, len(lines)) if not lines[i]), first)
        lines[at:at] = ["", note]
    return "\n".join([OPENING, "", *lines, "", prompt.request])


def composed(prompt, wanted, count):
    """The prompt with as many lines as make it `wanted` tokens at most; count: tokens of a text."""
    lines = lines_of(prompt.files)
    fit, too_many = 0, len(lines) + 1
    while too_many - fit > 1:
        middle = (fit + too_many) // 2
        if count(text_of(prompt, lines[:middle])) <= wanted:
            fit = middle
        else:
            too_many = middle
    text = text_of(prompt, lines[:fit])
    if not SHORTEST * wanted <= count(text) <= wanted:
        raise Failure(f"long prompt {prompt.name}: {count(text)} tokens are as near as it comes to {wanted}")
    return text
