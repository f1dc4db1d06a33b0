"""`tandem bench spec`: what speculation is worth, with the real programs."""

import json
import re
import unittest

from command_line import INPUT, OK, USAGE, Command, tandem
from support import MODEL, ROOT, thorough

HEAD = str(ROOT / "heads/smollm2-135m-instruct-eagle3.gguf")

REPEATS = "one two three four one two three four one two three four one two"
LINES = [
    {"id": 1, "prompt": REPEATS, "category": "counting"},
    {"id": 2, "prompt": "The sea is", "category": "prose", "something": "else"},
    {"id": 3, "turns": ["alpha beta gamma alpha beta gamma alpha beta", "and then?"], "category": "counting"},
]


@thorough
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
            timed = r["tok_s"] and r["plain_tok_s"] and r["draft_tokens"]
            self.assertEqual(r["gain"] is not None, bool(timed), r)
            if timed:
                self.assertAlmostEqual(r["gain"], r["tok_s"] / r["plain_tok_s"], delta=0.01)
            self.assertAlmostEqual(r["accepted_share"], r["accepted_tokens"] / r["tokens"], delta=0.001)
            self.assertTrue(r["verifies"] <= r["verdicts"] <= r["forwards"], r)
            self.assertLessEqual(r["ahead_hits"], min(r["verdicts"], r["survivors"]))
            if r["verifies"]:
                accepted = sum(r["accepted_per_pos"]) * r["verifies"]
                self.assertAlmostEqual(accepted, r["accepted_tokens"], delta=0.5)
                per_verify = 1 + r["accepted_tokens"] / r["verifies"]
                self.assertAlmostEqual(r["tokens_per_verify"], per_verify, delta=0.001)
        for method in ("ngram", "model,ngram"):
            self.assertGreater(rows[method, "all"]["accepted_tokens"], 0)
            for key in ("tokens", "forwards", "verifies", "draft_tokens", "accepted_tokens", "verdicts",
                        "ahead_hits", "survivors"):
                parts = sum(rows[method, c][key] for c in ("counting", "prose"))
                self.assertEqual(rows[method, "all"][key], parts)

    def test_trees_and_temperatures(self):
        lists = ("--methods", "eagle3,ngram", "--trees", "chain3,7", "--temps", "0,0.8", "--seed", "3")
        status, out, errors = self.bench("-md", HEAD, *lists, "--json")
        self.assertEqual(status, OK, errors)
        rows = {(r["method"], r["tree"], r["temperature"]): r for r in json.loads(out)["rows"]
                if r["category"] == "all"}
        wanted = {(m, t, k) for m in ("eagle3", "ngram") for t in ("chain3", "7") for k in (0, 0.8)}
        self.assertEqual(set(rows), wanted)
        for (_, tree, _), r in rows.items():
            self.assertEqual(r["different"], 0)
            self.assertLessEqual(len(r["accepted_per_pos"]), {"chain3": 3, "7": 7}[tree])
            self.assertLessEqual(r["draft_tokens"], {"chain3": 3, "7": 7}[tree] * r["verifies"])
        for key in [("eagle3", "chain3", 0), ("eagle3", "7", 0), ("ngram", "7", 0)]:
            self.assertGreater(rows[key]["accepted_tokens"], 0)
        cold, warm = ([rows["eagle3", "7", t][key] for key in ("verifies", "draft_tokens", "accepted_tokens")]
                      for t in (0, 0.8))
        self.assertNotEqual(cold, warm)  # it is another text
        # A head that was given the prompt's states is right about half of the time.
        head = rows["eagle3", "7", 0]
        self.assertGreater(head["accepted_per_pos"][0], 0.4)

    def test_a_table_for_people(self):
        status, out, errors = self.bench("--temp", "0.8", "--seed", "5")
        self.assertEqual((status, errors), (OK, ""))
        text = out.decode()
        for word in ("3 prompts", "0.8", "ngram", "free", "counting", "prose", "all", "gains least"):
            self.assertIn(word, text)
        cells = [line.split() for line in text.splitlines()]
        gains = {c[3]: float(c[-2]) for c in cells
                 if len(c) > 9 and c[3] in ("counting", "prose") and c[-2] != "-"}
        worst, gain = re.search(r"gains least: (\w+), ([\d.]+)", text).groups()
        self.assertEqual(float(gain), min(gains.values()))
        self.assertEqual(gains[worst], float(gain))

    def test_what_cannot_be_measured_is_refused(self):
        for flags, lines, expected, words in [
            (("--methods", "ngram,nonsense"), LINES, USAGE, "nonsense"),
            (("--methods", "none"), LINES, USAGE, "none"),
            (("--methods", "model"), LINES, USAGE, "-md"),
            (("--draft", "none"), LINES, USAGE, "none"),
            (("--trees", "chain"), LINES, USAGE, "--trees"),
            (("--temps", "cold"), LINES, USAGE, "cold"),
            ((), [{"id": 1}], INPUT, "line 1"),
            (("--ctx", "16"), LINES[:1], INPUT, "line 1"),
        ]:
            status, out, errors = self.bench(*flags, lines=lines)
            self.assertEqual((status, out), (expected, b""), errors)
            self.assertIn(words, errors)


if __name__ == "__main__":
    unittest.main()
