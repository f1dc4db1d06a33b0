"""bench/long_prompts.py and bench/bench_long.py: the prompts that they compose, and what their row tells. The
figures themselves are for a quiet machine."""

import collections
import pathlib
import re
import sys
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import bench_cpu  # noqa: E402
import bench_gpu  # noqa: E402
import bench_long  # noqa: E402
import long_prompts  # noqa: E402
from bench_machine import Failure, command  # noqa: E402
from bench_table import Table, make_rows  # noqa: E402
from long_prompts import PROMPTS, LongPrompt, composed  # noqa: E402

LENGTHS = (bench_long.ON_CPU, bench_long.ON_GPU)


def count(text):
    """As many tokens as a vocabulary of few words needs for C."""
    return int(len(text) / 2.7)


class Composed(unittest.TestCase):
    def test_three_of_each_task(self):
        tasks = collections.Counter(p.task for p in PROMPTS)
        self.assertEqual(tasks, {"edit": 3, "summary": 3, "needle": 3, "list": 3})
        self.assertEqual(len({p.name for p in PROMPTS}), len(PROMPTS))

    def test_they_are_as_long_as_wanted_and_the_same_again(self):
        for wanted in LENGTHS:
            for p in PROMPTS:
                text = composed(p, wanted, count)
                self.assertTrue(0.97 * wanted <= count(text) <= wanted, p.name)
                self.assertEqual(composed(p, wanted, count), text)
                self.assertTrue(text.endswith("\n\n" + p.request), p.name)

    def test_their_texts_have_no_special_tokens(self):
        for p in PROMPTS:
            self.assertNotIn("<|", composed(p, max(LENGTHS), lambda text: len(text) // 4), p.name)

    def test_what_a_request_is_about_is_there(self):
        for p in PROMPTS:
            text = composed(p, min(LENGTHS), count)
            document = text[:-len(p.request)]
            for name in re.findall(r"[\w/.]+/\w+\.\w+|\w+_\w+|ERR_[A-Z]+", p.request):
                self.assertIn(name, document, p.name)
            if p.task == "edit":
                self.assertIn((ROOT / p.files[0]).read_text(), document, p.name)

    def test_every_note_is_a_paragraph_and_they_are_far_apart(self):
        hidden = [p for p in PROMPTS if p.notes]
        self.assertEqual({p.task for p in hidden}, {"needle"})
        for wanted in LENGTHS:
            for p in hidden:
                text = composed(p, wanted, count)
                places = [text.index(f"\n\n{note}\n\n") / len(text) for note in p.notes]
                for i, place in enumerate(places):
                    self.assertAlmostEqual(place, (i + 1) / 4, delta=0.1, msg=p.name)

    def test_whole_lines_of_each_file_once(self):
        p = LongPrompt("one", "edit", ("docs/CHANGING.md", "docs/C*.md"), "Do it.")
        lines = long_prompts.lines_of(p.files)
        names = [line for line in lines if line.startswith("=== ")]
        self.assertEqual(names, [f"=== docs/{name}.md ===" for name in ("CHANGING", "COOKBOOK")])
        text = composed(p, 1000, count)
        body = text.removeprefix(long_prompts.OPENING + "\n\n").removesuffix("\n\nDo it.").split("\n")
        self.assertEqual(body, lines[:len(body)])

    def test_what_cannot_be_had(self):
        for files, wanted in ((("docs/CHANGING.md",), 6000), (("no/such/file",), 6000), (("docs/*.md",), 2)):
            with self.assertRaisesRegex(Failure, f"long prompt one: .* to {wanted}"):
                composed(LongPrompt("one", "edit", files, "Do it."), wanted, count)


def line(speed, tokens=(1, 2), forwards=1):
    return {"token_ids": list(tokens), "prompt_ids": [0] * 9, "stats": {"tok_s": speed, "forwards": forwards}}


class FakePair:
    """Answers of two tokens, in two forwards or one; those to the first prompts are too short to time."""

    def __init__(self, short):
        self.short, self.read = {p.name for p in PROMPTS[:short]}, []

    def answers(self, prompts, tokens, method):
        self.read.append((method.draft, [p["id"] for p in prompts]))
        return {p["id"]: line(None if p["id"] in self.short else 10.0, forwards=2) for p in prompts}, None

    def checked(self, prompts, tokens, method, plain):
        lines, _ = self.answers(prompts, tokens, method)
        assert all(plain[p["id"]] == [1, 2] for p in prompts)
        fast = 20.0 if method.draft == "ngram" else 10.0
        return {i: line(r["stats"]["tok_s"] and fast) for i, r in lines.items()}, None


class Row(unittest.TestCase):
    def measure(self, pair, repetitions=2):
        run, table = types.SimpleNamespace(flags=(), details=[]), Table(make_rows(2))
        lines = unittest.mock.patch.object(
            bench_long, "requests", lambda pair, prompts, wanted: {p.name: {"id": p.name} for p in prompts})
        made = unittest.mock.patch.object(bench_long, "LongPair", lambda *_: pair)
        with lines, made:
            bench_long.measure_long(run, table, None, 6000, {"repetitions": repetitions, "each": 3},
                                    bench_cpu.turns)
        return table.measured[bench_long.ROW], run.details[0][1]

    def test_every_prompt_is_read_once_a_repetition_and_method(self):
        pair = FakePair(0)
        self.measure(pair)
        names = [[p.name for p in PROMPTS[i:i + 3]] for i in range(0, len(PROMPTS), 3)]
        first, second = ([(draft, task) for task in names for draft in drafts]
                         for drafts in (("none", "ngram"), ("ngram", "none")))
        self.assertEqual(pair.read, first + second)

    def test_all_tasks_and_prompts(self):
        (value, against, ratio, _), lines = self.measure(FakePair(0))
        self.assertEqual((round(value, 9), round(ratio, 9)), (20, 2))
        self.assertIn("plain, 10.0 tok/s; 12 of 12 answers, after 9 to 9 tokens", against)
        self.assertEqual([name for name, *_ in lines[1:6]], ["all", "edit", "summary", "needle", "list"])
        self.assertEqual(lines[2], ("edit", 3, 6, "10.0", "20.0", "2.00", "2.00"))
        self.assertEqual(len(lines), 1 + 1 + 4 + 12)

    def test_answers_that_are_too_short_to_time(self):
        (*_, ratio, _), lines = self.measure(FakePair(4))
        self.assertAlmostEqual(ratio, 2)
        self.assertEqual([name for name, *_ in lines[1:5]], ["all", "summary", "needle", "list"])
        self.assertEqual(lines[1][1], 8)
        with self.assertRaisesRegex(Failure, "only 5 of 12 answers"):
            self.measure(FakePair(7))

    def test_a_cpu_measures_them_only_if_they_are_named(self):
        named = {only: [name for name, *_ in bench_cpu.chosen_parts(only)] for only in ("", "long prompts")}
        self.assertNotIn("lookup at length", named[""])
        self.assertEqual(named["long prompts"], ["lookup at length"])

    def test_a_gpu_needs_the_model_alone(self):
        o = bench_gpu.read_options(["--model", "x", "--only", "long prompts"])
        self.assertEqual(str(o.model), "x")
        table = Table(bench_gpu.make_gpu_rows())
        with unittest.mock.patch.object(bench_gpu, "measure_long") as measure:
            self.assertEqual(bench_gpu.measure(None, table, only=o.only, model="a model"), [bench_long.ROW])
        self.assertEqual((measure.call_args[0][0], measure.call_args[0][3]), ("a model", 30000))
        with self.assertRaisesRegex(Failure, "--model FILE"):
            bench_gpu.measure_long_prompts(table, None, {})

    def test_a_program_is_given_a_text(self):
        self.assertEqual(command(["cat"], given="a\nb").stdout, "a\nb")
        self.assertEqual(command(["cat"]).stdout, "")


if __name__ == "__main__":
    unittest.main()
