"""`tandem bench step` and `tandem bench kv`."""

import json
import os
import shutil
import subprocess
import unittest

from command_line import BAD_MODEL, OK, USAGE, WORKER, Command, tandem
from support import LAYERS, MODEL, TANDEM, TIME_LIMIT


class Bench(Command):
    """`tandem bench step` tells where a step's time goes: nothing of it is left out or counted twice."""

    ROWS, CONTEXT = (1, 3), 40

    def test_the_parts_of_a_step_add_up(self):
        rows = ",".join(map(str, self.ROWS))
        args = (
            "bench",
            "step",
            "-m",
            MODEL,
            "--rows",
            rows,
            "--ctx",
            str(self.CONTEXT),
            "--repetitions",
            "2",
        )
        status, out, errors = tandem(*args, "--json")
        self.assertEqual(status, OK, errors)
        r = json.loads(out)
        self.assertEqual(tuple(step["rows"] for step in r["steps"]), self.ROWS)
        self.assertEqual((r["context"], r["repetitions"]), (self.CONTEXT, 2))
        for step in r["steps"]:
            self.check_step(step, r)
        self.assertNotIn(
            "commit", {op["op"] for op in r["steps"][0]["ops"] if op["us"]}
        )  # a plain step copies nothing
        self.assertIn("commit", {op["op"] for op in r["steps"][1]["ops"] if op["us"]})
        status, out, errors = tandem(*args)
        self.assertEqual(status, OK, errors)
        for word in ("gate, up, swiglu", "whole step", "GB/s", *map(str, self.ROWS)):
            self.assertIn(word, out.decode())

    def check_step(self, step, r):
        ops = {op["op"]: op for op in step["ops"]}
        self.assertGreater(step["us"], 0)
        self.assertGreater(step["between_us"], 0)
        for name in (
            "norm",
            "linear q, k, v",
            "rope, store",
            "attention",
            "linear output",
            "gate, up, swiglu",
            "linear down",
            "head",
        ):
            self.assertGreater(ops[name]["us"], 0, name)
        # The least time of all matrices together is at least that of reading the model's, once.
        least = sum(
            op["least_us"]
            for name, op in ops.items()
            if name.startswith("linear") or name in ("gate, up, swiglu", "head")
        )
        digit = 0.01  # that was printed last of the speed
        read = r["weight_bytes"] / (r["read_gb_s"] + digit) / 1e3
        tensors = os.path.getsize(MODEL)  # with 2 % of other things
        self.assertLess(abs(r["weight_bytes"] / tensors - 1), 0.05)
        self.assertGreater(least, 0.99 * read)
        if step["rows"] == 1:
            read = r["weight_bytes"] / max(r["read_gb_s"] - digit, digit / 100) / 1e3
            multiply = r["weight_bytes"] * 2 / max(r["multiply_gmac_s"] - 10 * digit, digit / 100) / 0.7 / 1e3
            self.assertLess(least, 1.05 * read + multiply)

    def test_without_its_program_it_says_so(self):
        alone = shutil.copy(TANDEM, self.folder)
        done = subprocess.run(
            [alone, "bench", "step"], capture_output=True, env={"PATH": ""}, timeout=TIME_LIMIT
        )
        self.assertEqual(done.returncode, WORKER)
        self.assertIn("tandem-bench", done.stderr.decode())

    def test_a_model_that_is_none_is_refused(self):
        bad = self.folder / "bad.gguf"
        bad.write_bytes(b"GGUF")
        self.refused(BAD_MODEL, "bad.gguf", "bench", "step", "-m", str(bad))


class CommitPolicies(Command):
    """`tandem bench kv` counts what each way of committing accepted rows writes."""

    NODES, KV_HEADS, HEAD_DIM = 16, 3, 64
    ROW = LAYERS * KV_HEADS * HEAD_DIM * 2 * 2  # keys and values, f16

    def cases(self, *flags):
        status, out, errors = tandem("bench", "kv", "-m", MODEL, "--ctx", "40", "--nodes", str(self.NODES),
                                     *flags, "--json")
        self.assertEqual(status, OK, errors)
        return json.loads(out)["cases"]

    def test_bytes_are_those_of_the_rows(self):
        cases = self.cases("--acceptance", "0.3,1", "--repetitions", "8")
        for c in cases:
            with self.subTest(case=c):
                kept, rows = 1 + c["accepted"], 1 + self.NODES
                committed, other = (kept, rows) if c["policy"] == "staging" else (rows, 0)
                if c["policy"] == "copy on accept" and c["acceptance"] == 1:
                    committed += kept - 2  # the root and its first child lie where they belong
                if c["policy"] == "copy on accept" and c["acceptance"] < 1:
                    self.assertLessEqual(c["committed_bytes"], (rows + kept) * self.ROW)
                    committed = c["committed_bytes"] / self.ROW
                self.assertAlmostEqual(c["committed_bytes"], committed * self.ROW, delta=1)
                self.assertAlmostEqual(c["bytes"], (committed + other) * self.ROW, delta=1)
                self.assertGreater(c["us"], 0)
                if c["policy"] == "staging":
                    self.assertEqual(c["over_staging"], 1)
        seen = {(c["layout"], c["shape"], c["acceptance"], c["policy"]) for c in cases}
        self.assertEqual(len(seen), len(cases))
        for layout in ("static", "virtual"):
            policies = {shape: {p for where, s, _, p in seen if (where, s) == (layout, shape)}
                        for shape in ("chain", "tree")}
            self.assertEqual(policies, {"chain": {"staging", "write-through"},
                                        "tree": {"staging", "copy on accept"}})

    def test_what_is_accepted_is_drawn_by_the_probability(self):
        accepted = {(c["shape"], c["acceptance"]): c["accepted"]
                    for c in self.cases("--acceptance", "0,0.3,1", "--repetitions", "12")}
        self.assertEqual((accepted["chain", 0], accepted["tree", 0]), (0, 0))
        self.assertEqual((accepted["chain", 1], accepted["tree", 1]), (self.NODES, self.NODES / 2))
        self.assertTrue(0.1 < accepted["chain", 0.3] < 1.2, accepted)

    def test_bad_flags(self):
        for flags, phrase in ((("--nodes", "0"), "--nodes"), (("--nodes", "256"), "--nodes"),
                              (("--nodes", "1,,2"), "--nodes"), (("--acceptance", "1.1"), "--acceptance"),
                              (("--acceptance", "nan"), "--acceptance"),
                              (("--acceptance", "0,0,0,0,0,0,0,0,0"), "8 numbers at most")):
            self.refused(USAGE, phrase, "bench", "kv", "-m", MODEL, *flags)
        self.refused(USAGE, "no model", "bench", "kv")


if __name__ == "__main__":
    unittest.main()
