"""`tandem bench spec`: what speculation is worth, with the real programs."""

import json
import unittest

from command_line import INPUT, OK, USAGE, Command, tandem
from support import MODEL

REPEATS = "one two three four one two three four one two three four one two"
LINES = [
    {"id": 1, "prompt": REPEATS, "category": "counting"},
    {"id": 2, "prompt": "The sea is", "category": "prose", "something": "else"},
    {"id": 3, "turns": ["alpha beta gamma alpha beta gamma alpha beta", "and then?"], "category": "counting"},
]


class BenchSpeculation(Command):
    def bench(self, *flags, lines=LINES):
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tandem("bench", "spec", str(prompts), "-m", MODEL, "--max-tokens", "24", *flags)

    def test_figures_of_each_method_and_category(self):
        methods = ("--methods", "ngram,model+ngram", "--draft-layers", "3")
        lockstep = ("--pace", "lockstep", "--budget", "7")
        status, out, errors = self.bench(*methods, *lockstep, "--repeat", "2", "--json")
        self.assertEqual(status, OK, errors)
        result = json.loads(out)
        rows = {(r["method"], r["category"]): r for r in result["rows"]}
        wanted = {(m, c) for m in ("ngram", "model,ngram") for c in ("all", "counting", "prose")}
        self.assertEqual(set(rows), wanted)
        for (method, category), r in rows.items():
            self.assertEqual(r["prompts"], 2 * {"all": 3, "counting": 2, "prose": 1}[category])
            self.assertEqual((r["different"], r["tokens"]), (0, r["forwards"] + r["accepted_tokens"]))
            self.assertGreater(r["plain_tok_s"], 0)
            self.assertAlmostEqual(r["gain"], r["tok_s"] / r["plain_tok_s"], delta=0.01)
            self.assertAlmostEqual(r["accepted_share"], r["accepted_tokens"] / r["tokens"], delta=0.001)
            if r["verifies"]:
                accepted = sum(r["accepted_per_pos"]) * r["verifies"]
                self.assertAlmostEqual(accepted, r["accepted_tokens"], delta=0.5)
                per_verify = 1 + r["accepted_tokens"] / r["verifies"]
                self.assertAlmostEqual(r["tokens_per_verify"], per_verify, delta=0.001)
        for method in ("ngram", "model,ngram"):
            self.assertGreater(rows[method, "all"]["accepted_tokens"], 0)
            for key in ("tokens", "forwards", "verifies", "draft_tokens", "accepted_tokens"):
                parts = sum(rows[method, c][key] for c in ("counting", "prose"))
                self.assertEqual(rows[method, "all"][key], parts)

    def test_a_table_for_people(self):
        status, out, errors = self.bench("--temp", "0.8", "--seed", "5")
        self.assertEqual((status, errors), (OK, ""))
        text = out.decode()
        for word in ("3 prompts", "temperature 0.8", "ngram", "counting", "prose", "all", "gain"):
            self.assertIn(word, text)

    def test_what_cannot_be_measured_is_refused(self):
        for flags, lines, expected, words in [
            (("--methods", "ngram,nonsense"), LINES, USAGE, "nonsense"),
            (("--methods", "none"), LINES, USAGE, "none"),
            (("--methods", "model"), LINES, USAGE, "-md"),
            ((), [{"id": 1}], INPUT, "line 1"),
            (("--ctx", "16"), LINES[:1], INPUT, "line 1"),
        ]:
            status, out, errors = self.bench(*flags, lines=lines)
            self.assertEqual((status, out), (expected, b""), errors)
            self.assertIn(words, errors)


if __name__ == "__main__":
    unittest.main()
