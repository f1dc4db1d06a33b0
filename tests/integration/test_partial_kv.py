"""The target over partial KV guesses its own next tokens: every answer is the one of plain decoding, in both
cache layouts, greedy and with a temperature, alone and beside other sessions; where it cannot guess, one line
says so."""

import random
import unittest

from command_line import tandem
from support import MODEL, ROOT, Case, batch, total, whole_model
from test_serve import Server

VOCABULARY = 512
ARCHITECTURES = ROOT / "tests/golden/arch"
FEW = ("--partial-kv-sink", "1", "--partial-kv-retrieval", "2", "--partial-kv-window", "4")
PARTIAL = ("--partial-kv", *FEW, "--partial-kv-threshold", "112")
TOKENS = 60


def records():
    rng = random.Random(7)
    return [{"id": i, "prompt_ids": [rng.randrange(3, VOCABULARY) for _ in range(length)]}
            for i, length in enumerate((140, 20, 300, 111, 260))]


class PartialKvServed(Case):
    """By the API. The prompt is of ids, so that it is long enough."""

    def test_requests_say_how(self):
        rng = random.Random(3)
        body = {"prompt": [rng.randrange(300, 20000) for _ in range(150)], "temperature": 0, "max_tokens": 30}
        server = Server(self, *PARTIAL, "--partial-kv-rows", "6", "--draft", "none", "--ctx", "512",
                        "--sessions", "1")

        def ask(**more):
            status, got, _ = server.ask("POST", "/v1/completions", dict(body, **more))
            self.assertEqual(status, 200, got)
            return got["choices"][0]["text"], got["usage"]["speculation"]

        text, usual = ask()
        self.assertGreater(usual["draft_tokens"], 0)
        self.assertEqual((usual["enabled"], usual["method"]), (True, "partial-kv"))
        self.assertNotIn("lossy", usual)
        for more in ({"enable_specpv": False}, {"speculation": {"enabled": False}},
                     {"specpv_partial_threshold": 400}):
            same, plain = ask(**more)
            self.assertEqual((same, plain["draft_tokens"], plain["method"]), (text, 0, "none"), more)
        same, wide = ask(enable_specpv=True, specpv_n_window_blocks=5, specpv_partial_threshold=128)
        self.assertEqual(same, text)
        self.assertGreater(wide["draft_tokens"], 0)
        _, lossy = ask(specpv_lossy=True)
        self.assertTrue(lossy["lossy"])
        self.assertGreater(lossy["accepted_tokens"], 20)
        self.assertIn(lossy["draft_tokens"] - lossy["accepted_tokens"], (0, 1))  # 1: a stop token was guessed
        last = server.events("/v1/completions", dict(body, specpv_lossy=True))[-2]
        self.assertTrue(last["lossy"])
        self.assertNotIn("lossy", server.events("/v1/completions", body)[-2])
        two = [body["prompt"], body["prompt"][:9]]  # of which the second is too short
        both = server.ask("POST", "/v1/completions", dict(body, prompt=two))[1]["usage"]["speculation"]
        self.assertEqual(both["method"], "partial-kv")
        status, got, _ = server.ask("POST", "/v1/completions", dict(body, specpv_n_window_blocks=9))
        self.assertEqual(status, 400)
        self.assertIn("partial KV of 192 tokens (1 + 2 + 9 blocks of 16) is more than the threshold of 112",
                      got["error"]["message"])


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
                    if (sampling, sessions) == ((), "1"):
                        self.assertGreater(n["looked_up"], n["found"], flags)
                        self.assertGreater(n["found"], 0, flags)

    def test_guesses_are_checked_on_request(self):
        model = ARCHITECTURES / "qwen3"
        run = self.run_with(model, *PARTIAL, "--partial-kv-rows", "6", "--selfcheck", "2")
        self.same(self.run_with(model), run, "selfcheck")
        self.assertGreater(run.counters["engine"]["selfchecks"], 5)

    def test_requests_say_how(self):
        model = ARCHITECTURES / "qwen3"
        plain = self.run_with(model)
        how = {0: {"specpv_n_retrieval_blocks": 1}, 2: {"enable_specpv": False},
               3: {"specpv_partial_threshold": 160},
               4: {"specpv_block_size": 32, "specpv_n_window_blocks": 2, "specpv_partial_threshold": 256}}
        requests = [dict(r, **how.get(r["id"], {})) for r in records()]
        run = batch(self.folder, requests, "--max-tokens", str(TOKENS), "--ctx", "512", "--draft", "none",
                    *PARTIAL, "--partial-kv-rows", "6", "--sessions", "1", model=model)
        self.same(plain, run, "requests")
        guessed = {key: a["stats"]["draft_tokens"] for key, a in run.answers.items()}
        self.assertGreater(min(guessed[0], guessed[3], guessed[4]), 0, guessed)
        self.assertEqual((guessed[1], guessed[2]), (0, 0))  # short to the end; off
        self.assertLess(guessed[3], guessed[0])  # from later on
        fallbacks = run.counters["partial_kv_fallbacks"]
        self.assertEqual(fallbacks["off"], run.answers[2]["stats"]["forwards"])
        self.assertGreater(fallbacks["short"], TOKENS)
        for reason in ("off", "short"):
            self.assertEqual(run.errors.count(f"[partial-kv][fallback] {reason}:"), 1, reason)
        self.assertEqual(run.answers[0]["stats"]["draft_method"], "partial-kv")

    def test_lossy_answers_say_so(self):
        model = ARCHITECTURES / "qwen3"
        plain = self.run_with(model)
        run = self.run_with(model, *PARTIAL, "--partial-kv-lossy", "--partial-kv-refresh", "20")
        for key, a in run.answers.items():
            exact = plain.answers[key]
            self.assertEqual(a["numerics_id"], exact["numerics_id"] + "+lossy")
            self.assertEqual(len(a["token_ids"]), TOKENS)
            if key == 1:  # never long enough
                self.assertEqual(a["token_ids"], exact["token_ids"])
            else:
                self.assertEqual(a["stats"]["draft_tokens"], a["stats"]["accepted_tokens"])
        n = run.counters["partial_kv"]
        self.assertGreater(n["lossy"], 0)
        self.assertEqual(n["accepted"], n["guessed"])
        self.assertNotEqual([a["token_ids"] for a in run.answers.values()],
                            [a["token_ids"] for a in plain.answers.values()])

    def test_blocks_are_chosen_by_bounds(self):
        model, plain, lossy = ARCHITECTURES / "qwen3", None, []
        for choice in ("mass", "bound", "bound-mean"):
            flags = (*PARTIAL, "--partial-kv-choice", choice, "--sessions", "1")
            run = self.run_with(model, *flags, "--partial-kv-rows", "6")
            plain = plain or self.run_with(model)
            self.same(plain, run, choice)
            self.assertGreater(run.counters["partial_kv"]["accepted"], 0)
            seen = self.run_with(model, *flags, "--partial-kv-lossy")  # what is guessed
            lossy.append([a["token_ids"] for a in seen.answers.values()])
        self.assertEqual(len({str(tokens) for tokens in lossy}), 3)

    def drafted(self, model, *draft):
        flags = (*draft, "--pace", "lockstep", "--budget", "7", "--sessions", "2")
        run = self.run_with(model, *flags, *PARTIAL, "--partial-kv-rows", "6")
        self.same(self.run_with(model), run, flags)
        n = run.counters["partial_kv"]
        self.assertGreater(n["checked"], n["right"], flags)
        self.assertGreater(min(n["right"], n["accepted"]), 0, flags)
        self.assertEqual(n["failures"], 0, flags)

    def test_what_a_draft_says_is_checked_first(self):
        for kv in ("static", "virtual"):
            self.drafted(ARCHITECTURES / "qwen3", "--draft", "ngram", "--kv", kv)

    @whole_model
    def test_what_a_head_says_is_checked_first(self):
        self.drafted(MODEL, "--draft", "eagle3", "-md", str(ROOT / "heads/smollm2-135m-instruct-eagle3.gguf"))

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
        self.assertIn("partial KV of 112 tokens (1 + 2 + 4 blocks of 16) is more than the threshold of 111",
                      errors)

    def test_flags_that_do_not_fit_are_refused(self):
        for flags, why in (
                (("--partial-kv", "--partial-kv-block", "24"), "a multiple of 16"),
                (("--partial-kv", "--partial-kv-window", "2"), "a window of 2 blocks of 16"),
                (("--partial-kv", "--partial-kv-buffer", "32"), "a buffer of 32 tokens"),
                (("--partial-kv", "--partial-kv-rows", "9", "--partial-kv-refresh", "8"),
                 "--partial-kv-rows 9 is more than --partial-kv-refresh 8"),
                (("--partial-kv-lossy",), "--partial-kv-lossy says how --partial-kv goes on"),
                (("--partial-kv", "--partial-kv-lossy", "--draft", "ngram", "--compare"),
                 "nothing to compare")):
            draft = () if "--draft" in flags else ("--draft", "none")
            status, _, errors = tandem("run", "-m", MODEL, *flags, *draft, "--ledger", "none", "x")
            self.assertNotEqual(status, 0, flags)
            self.assertIn(why, errors)


if __name__ == "__main__":
    unittest.main()
