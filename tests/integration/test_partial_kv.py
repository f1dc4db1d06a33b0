"""The target over partial KV guesses its own next tokens: every answer is the one of plain decoding, in both
cache layouts, greedy and with a temperature, alone and beside other sessions; where it cannot guess, one line
says so."""

import random
import unittest

from command_line import tandem
from support import MODEL, ROOT, Case, batch, total

VOCABULARY = 512
ARCHITECTURES = ROOT / "tests/golden/arch"
FEW = ("--partial-kv-sink", "1", "--partial-kv-retrieval", "2", "--partial-kv-window", "4")
PARTIAL = ("--partial-kv", *FEW, "--partial-kv-threshold", "112")
TOKENS = 60


def records():
    rng = random.Random(7)
    return [{"id": i, "prompt_ids": [rng.randrange(3, VOCABULARY) for _ in range(length)]}
            for i, length in enumerate((140, 20, 300, 111, 260))]


class PartialKv(Case):
    def run_with(self, model, *flags):
        return batch(self.folder, records(), "--max-tokens", str(TOKENS), "--ctx", "512", "--draft", "none",
                     *flags, model=model)

    def same(self, plain, run, about):
        for key, a in run.answers.items():
            self.assertEqual(a["token_ids"], plain.answers[key]["token_ids"], f"{about}: {key}")
            passes, accepted = (a["stats"][name] for name in ("forwards", "accepted_tokens"))
            self.assertEqual(len(a["token_ids"]), passes + accepted, f"{about}: {key}")

    def test_answers_are_those_of_plain_decoding(self):
        model = ARCHITECTURES / "qwen3"
        for sampling in ((), ("--temp", "0.9", "--seed", "3")):
            plain = self.run_with(model, *sampling)
            self.assertNotIn("partial_kv", plain.counters)
            for layout in ("static", "virtual"):
                for sessions in ("1", "4"):
                    flags = ("--kv", layout, "--sessions", sessions, *sampling)
                    run = self.run_with(model, *PARTIAL, "--partial-kv-rows", "6", *flags)
                    self.same(plain, run, flags)
                    n = run.counters["partial_kv"]
                    self.assertGreater(n["accepted"], 0, flags)
                    self.assertEqual(n["accepted"], total(run.answers, "accepted_tokens"), flags)
                    self.assertEqual(n["guessed"], total(run.answers, "draft_tokens"), flags)
                    self.assertEqual(n["failures"], 0, flags)

    def test_guesses_are_checked_on_request(self):
        model = ARCHITECTURES / "qwen3"
        run = self.run_with(model, *PARTIAL, "--partial-kv-rows", "6", "--selfcheck", "2")
        self.same(self.run_with(model), run, "selfcheck")
        self.assertGreater(run.counters["engine"]["selfchecks"], 5)

    def test_what_pays_is_found_out(self):
        model = ARCHITECTURES / "qwen3"
        run = self.run_with(model, *PARTIAL)
        self.same(self.run_with(model), run, "as many as pay")

    def test_filters_and_grammars_are_decoded_plainly(self):
        model = ARCHITECTURES / "qwen3"
        for sampling in (("--temp", "0.9", "--top-k", "20", "--seed", "3"), ("--repeat-penalty", "1.2")):
            run = self.run_with(model, *PARTIAL, "--partial-kv-rows", "6", *sampling)
            self.same(self.run_with(model, *sampling), run, sampling)
            self.assertEqual(run.counters["partial_kv"]["guessed"], 0, sampling)

    def test_a_model_with_windows_reads_the_whole_cache(self):
        model = ARCHITECTURES / "mistral-window"
        run = self.run_with(model, *PARTIAL, "--partial-kv-rows", "6")
        self.same(self.run_with(model), run, "windows")
        self.assertIn("[partial-kv][fallback] layers of this model see a window", run.errors)
        self.assertNotIn("partial_kv", run.counters)

    def test_blocks_that_exceed_the_threshold_are_refused(self):
        status, _, errors = tandem("run", "-m", MODEL, "--partial-kv", *FEW, "--partial-kv-threshold", "111",
                                   "--draft", "none", "--ledger", "none", "x")
        self.assertNotEqual(status, 0)
        self.assertIn("partial KV of 112 tokens (1 + 2 + 4 blocks of 16) is more than "
                      "--partial-kv-threshold 111", errors)


if __name__ == "__main__":
    unittest.main()
