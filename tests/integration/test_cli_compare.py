"""`tandem run --compare`."""

import json
import os
import re
import subprocess
import unittest

from command_line import FAILED, OK, PROMPT, USAGE, Command, tandem
from support import MODEL, TANDEM, TIME_LIMIT, whole_model


class Compare(Command):
    """The same prompt plainly and with the draft, by the same workers."""

    POEM = ("run", "-m", MODEL, "--compare", "--max-tokens", "100", "Write a poem about the sea.")

    def test_both_speeds_are_told(self):
        status, out, errors = tandem(*self.POEM)
        self.assertEqual(status, OK, errors)
        speed = "([0-9.]+ tok/s|too few to time)"  # where they came within 20 ms
        self.assertRegex(errors, f"(?m)^tandem: plainly:    100 tokens, {speed}$")
        self.assertRegex(errors, f"(?m)^tandem: with draft: 100 tokens, {speed}(; [0-9.]+ times as fast)?")
        # Where the draft is late it guessed nothing right, or nothing at all: that has a line of its own.
        draft = "the draft (guessed|had no guess)|all of it was decoded plainly: "
        self.assertRegex(errors, f"(; |tandem: )({draft})")
        self.assertRegex(errors, r"(?m)^tandem: identical: yes$")
        self.assertEqual(out, tandem("run", *self.POEM[1:3], *self.POEM[4:])[1])  # once

    @whole_model
    def test_a_sampled_comparison_is_an_object(self):
        status, out, errors = tandem(*self.POEM, "--temp", "0.8", "--json")
        self.assertEqual(status, OK, errors)
        both = json.loads(out)
        self.assertIs(both["identical"], True)
        self.assertIsNone(both["first_difference"])
        self.assertEqual(both["plain"]["token_ids"], both["draft"]["token_ids"])
        self.assertEqual(both["plain"]["seed"], both["draft"]["seed"])
        methods = [both[k]["stats"]["draft_method"] for k in ("plain", "draft")]
        self.assertEqual(methods, ["none", "eagle3,ngram"])
        self.assertEqual(both["plain"]["stats"]["rounds"], 0)
        speeds = [both[k]["stats"]["tok_s"] for k in ("plain", "draft")]
        told = all(speeds) and both["draft"]["stats"]["draft_tokens"] > 0
        self.assertEqual(both["speedup"] is not None, told)
        if told:
            self.assertAlmostEqual(both["speedup"], speeds[1] / speeds[0], delta=0.01)

    def test_few_tokens_have_no_speed(self):
        few = ("run", "-m", MODEL, "--max-tokens", "10", "--compare", "Count to a hundred.")
        status, _, errors = tandem(*few)
        self.assertEqual(status, OK, errors)
        self.assertEqual(errors.count("10 tokens, too few to time"), 2, errors)
        self.assertNotRegex(errors, "tok/s|times as fast")
        both = json.loads(tandem(*few, "--json")[1])
        speeds = [both[k]["stats"]["tok_s"] for k in ("plain", "draft")]
        self.assertEqual([both["speedup"], *speeds], [None] * 3)

    def test_a_difference_is_found_and_placed(self):
        """A target whose second verify is wrong: told with its place, and by the exit status."""
        recorded, given = self.folder / "plain.jsonl", self.folder / "in.jsonl"
        given.write_text(json.dumps({"id": 1, "prompt": self.POEM[-1]}) + "\n")
        status, _, errors = tandem(
            "batch", "-m", MODEL, "--max-tokens", "100", "--draft", "none", str(given), str(recorded)
        )
        self.assertEqual(status, OK, errors)
        env = dict(os.environ, TANDEM_FAULT="wrong-token:2")
        flags = (*self.POEM, "--draft", f"replay:{recorded}:1", "--pace", "lockstep", "--budget", "4")
        done = subprocess.run([TANDEM, *flags], capture_output=True, timeout=TIME_LIMIT, env=env)
        errors = done.stderr.decode()
        self.assertEqual(done.returncode, FAILED, errors)
        place = int(re.search(r"(?m)^tandem: identical: no, from token (\d+) of the answer on", errors)[1])
        both = json.loads(
            subprocess.run(
                [TANDEM, *flags, "--json"], capture_output=True, timeout=TIME_LIMIT, env=env
            ).stdout
        )
        self.assertIs(both["identical"], False)
        self.assertEqual(both["first_difference"], place - 1)
        plain, drafted = (both[k]["token_ids"] for k in ("plain", "draft"))
        self.assertEqual(plain[:place - 1], drafted[:place - 1])
        self.assertNotEqual(plain[place - 1], drafted[place - 1])

    def test_without_a_draft_there_is_nothing_to_compare(self):
        self.refused(USAGE, "needs a draft", "run", "-m", MODEL, "--compare", "--draft", "none", PROMPT)
        self.refused(USAGE, "needs a draft", "run", "-m", MODEL, "--compare", "--budget", "0", PROMPT)


if __name__ == "__main__":
    unittest.main()
