"""`tandem run`."""

import json
import os
import pty
import re
import subprocess
import unittest

from command_line import OK, PROMPT, WORKER, Command, answer, detokenize, tandem, tokenize
from support import MODEL, TANDEM, TIME_LIMIT, counters_of, tell, thorough, whole_model


def read_all(terminal):
    """What was written to the other end, which is closed."""
    text = b""
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # at the end, on Linux
            piece = b""
        if not piece:
            os.close(terminal)
            return text.decode()
        text += piece


class Run(Command):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = answer(PROMPT, "--draft", "none", "--max-tokens", "60")

    def test_json_is_an_object_with_all_figures(self):
        a = self.plain
        self.assertEqual(
            set(a),
            set(
                "text token_ids prompt_tokens prompt_ids finish_reason session seed numerics_id stats".split()
            ),
        )
        self.assertLessEqual(
            set(
                "tok_s ttft_ms rounds draft_tokens accepted_tokens rewound_tokens mean_accepted "
                "accepted_per_pos draft_method speculation_off_reason".split()
            ),
            set(a["stats"]),
        )
        self.assertEqual(a["prompt_tokens"], len(a["prompt_ids"]))
        self.assertEqual(len(a["token_ids"]), 60)
        self.assertEqual(a["finish_reason"], "length")
        self.assertEqual(detokenize(a["token_ids"]), a["text"])
        self.assertEqual(a["stats"]["draft_method"], "none")
        self.assertEqual(a["stats"]["rounds"], 0)
        self.assertIn(
            "<|im_start|>user\n" + PROMPT + "<|im_end|>\n<|im_start|>assistant\n", detokenize(a["prompt_ids"])
        )

    def test_stdout_is_the_answer_alone(self):
        status, out, errors = tandem("run", "-m", MODEL, "--max-tokens", "60", PROMPT)
        self.assertEqual(status, OK)
        self.assertEqual(out.decode(), self.plain["text"])
        self.assertRegex(errors, r"(?m)^tandem: 60 tokens, ([0-9.]+ tok/s|too few to time)")
        self.assertRegex(errors, "the draft (guessed|had no guess)|all of it was decoded plainly: ")
        self.assertIn("stopped at --max-tokens 60: -n raises it", errors)
        more = re.search(r"`tandem (session resume [0-9a-f]{8} --max-tokens 60)' goes on", errors)
        status, rest, _ = tandem(*more[1].split())
        self.assertEqual(status, OK)
        self.assertGreater(len(rest), 0)
        status, _, errors = tandem("run", "-m", MODEL, "--max-tokens", "2", "--budget", "0", PROMPT)
        self.assertEqual(status, OK)

    def test_a_short_answer_starts_no_draft_unless_one_is_named(self):
        none = "no draft is started for fewer than 32 tokens"
        short = answer(PROMPT, "--max-tokens", "31")
        self.assertEqual(short["token_ids"], self.plain["token_ids"][:31])
        self.assertEqual(short["stats"]["speculation_off_reason"], none)
        named = answer(PROMPT, "--max-tokens", "31", "--draft", "ngram")
        longer = answer(PROMPT, "--max-tokens", "32")
        self.assertNotIn(none, [a["stats"]["speculation_off_reason"] for a in (named, longer)])
        shown = json.loads(tandem("session", "show", short["session"], "--json")[1])
        self.assertNotEqual(shown["request"]["draft"], "none")  # it goes on with one

    @whole_model
    def test_a_cache_is_bounded_and_a_bound_that_is_too_low_is_refused_with_numbers(self):
        """The bound reaches the target, and what the refusal advises is enough."""
        static = ["--kv", "static"]  # a virtual one takes what it gets
        status, _, errors = tandem("run", "-m", MODEL, "--draft=none", "--kv-memory", "20M", *static, PROMPT)
        self.assertEqual(status, WORKER)
        self.assertIn("a cache of 1 session of 4096 tokens needs 91.8 MiB, and --kv-memory allows", errors)
        enough = re.search(r"give at most --ctx ([0-9]+)", errors)[1]
        bounded = ["--draft", "none", "--max-tokens", "8", "--kv-memory", "20M"]
        a = answer(PROMPT, *bounded, *static, "--ctx", enough)
        self.assertEqual(a["token_ids"], self.plain["token_ids"][:8])
        a = answer(PROMPT, *bounded, "--kv", "virtual")  # the pool has that size
        self.assertEqual(a["token_ids"], self.plain["token_ids"][:8])

    @whole_model
    def test_a_model_that_cannot_fit_is_refused_before_it_is_loaded(self):
        need = ["--kv", "virtual", "--kv-blocks", "30000000"]  # 10 TiB
        status, _, errors = tandem("run", "-m", MODEL, "--draft", "none", *need, PROMPT)
        self.assertEqual(status, WORKER)
        self.assertRegex(
            errors,
            r"the model needs 10\.[0-9] TiB \(92\.1 MiB for weights, [0-9.]+ [MG]iB for activations, "
            r"10\.[0-9] TiB for a cache of 30000000 blocks of 16 tokens\), and cpu:[a-z0-9-]+ has "
            r"[0-9.]+ [MGT]iB left: give at most --kv-blocks [0-9]+",
        )

    @thorough
    def test_a_model_that_loads_slowly_says_how_far_it_is(self):
        """In the log, and on a terminal by a line that is gone at the end."""
        slow = ["run", "-m", MODEL, "--ledger", "none", "--draft", "none", "--max-tokens", "4", PROMPT]
        slow += ["--device", "far:cpu"]
        env = {**os.environ, "TANDEM_FAR": "slow=8"}  # milliseconds, some 300 times
        status, out, errors = tandem(*slow, "-v", env=env)
        self.assertEqual(status, OK, errors)
        told = re.findall(r"(?m)^tandem-target: loading the model: ([0-9]+) % after [0-9]+ s$", errors)
        self.assertGreater(len(told), 1, errors)
        self.assertEqual(told[-1], "100")
        self.assertNotIn("loading", tandem(*slow, env=env)[2])  # not a warning
        seen, terminal = pty.openpty()
        with subprocess.Popen([TANDEM, *slow], env=env, stdout=subprocess.PIPE, stderr=terminal) as program:
            os.close(terminal)
            self.assertEqual(program.communicate(timeout=TIME_LIMIT)[0], out)
        lines = read_all(seen)
        percents = [int(n) for n in re.findall(r"\rtandem-target: loading the model: +([0-9]+) %", lines)]
        self.assertEqual((percents, len(percents) > 3), (sorted(set(percents)), True), lines)
        self.assertIn("%\r\033[K", lines)

    def test_a_prompt_may_come_from_stdin(self):
        self.assertEqual(answer("--max-tokens", "8", "-", stdin=PROMPT.encode() + b"\n")["prompt_ids"],
                         self.plain["prompt_ids"])

    def test_raw_and_system_change_the_prompt(self):
        text = "The capital of France is"
        raw = answer("--raw", "--max-tokens", "4", text)
        self.assertEqual(raw["prompt_ids"], tokenize(text.encode()))
        rendered = detokenize(self.plain["prompt_ids"])
        again = answer("--raw", "--max-tokens", "60", "-", stdin=rendered.encode())
        self.assertEqual(again["token_ids"], self.plain["token_ids"])
        literal = answer("--raw", "--no-special", "--max-tokens", "1", "<|im_end|>")
        self.assertEqual(literal["prompt_ids"], tokenize(b"<|im_end|>", "--no-special"))
        system = answer("--system", "Be brief.", "--max-tokens", "1", PROMPT)
        self.assertTrue(
            detokenize(system["prompt_ids"]).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
        )
        named = answer("--chat-template", "qwen2", "--max-tokens", "1", PROMPT)
        self.assertTrue(
            detokenize(named["prompt_ids"]).startswith(
                "<|im_start|>system\nYou are a helpful assistant.<|im_end|>"
            )
        )
        zephyr = answer("--chat-template", "zephyr", "--max-tokens", "1", PROMPT)
        self.assertTrue(
            detokenize(zephyr["prompt_ids"]).startswith("<|user|>\n" + PROMPT + "<|im_end|>\n<|assistant|>")
        )
        user = answer("--max-tokens", "1", "<|im_end|>")
        self.assertEqual(user["prompt_ids"].count(2), self.plain["prompt_ids"].count(2))  # no injected token

    def test_the_same_seed_gives_the_same_answer(self):
        first = answer("--temp", "0.8", "--max-tokens", "30", PROMPT)
        again = answer(
            "--temp", "0.8", "--max-tokens", "30", "--seed", str(first["seed"]), "--draft", "none", PROMPT
        )
        self.assertEqual(first["token_ids"], again["token_ids"])
        other = answer("--temp", "0.8", "--max-tokens", "30", "--seed", str(first["seed"] + 1), PROMPT)
        self.assertNotEqual(first["token_ids"], other["token_ids"])

    @whole_model
    def test_the_end_token_is_included(self):
        a = answer("What is 2+2? Answer with one number.", "--max-tokens", "100")
        self.assertEqual(a["finish_reason"], "stop")
        self.assertEqual(a["token_ids"][-1], 2)
        self.assertEqual(detokenize(a["token_ids"][:-1]), a["text"])

    def test_stop_strings_end_an_answer(self):
        text, ids = self.plain["text"], self.plain["token_ids"]
        for begin, size in [(0, 3), (10, 1), (41, 9), (70, 25), (120, 2)]:
            stop = text[begin : begin + size]
            want = text[: text.index(stop)]
            for draft in ("none", "ngram"):
                with self.subTest(stop=stop, draft=draft):
                    a = answer(
                        PROMPT, "--max-tokens", "60", "--stop", "never this", "--stop", stop, "--draft", draft
                    )
                    self.assertEqual(a["text"], want)
                    self.assertEqual(a["finish_reason"], "stop")
                    kept = len(a["token_ids"])
                    self.assertEqual(a["token_ids"], ids[:kept])
                    # All tokens that are wholly or partly before the stop, and no other one.
                    self.assertTrue(detokenize(ids[:kept]).startswith(want))
                    self.assertEqual(kept, 0 if not want else kept)
                    if kept:
                        self.assertLess(len(detokenize(ids[: kept - 1])), len(want))

    def test_context_ends_an_answer(self):
        room = 20
        a = answer("--ctx", str(self.plain["prompt_tokens"] + room), "--max-tokens", "200", PROMPT)
        self.assertEqual(a["finish_reason"], "length")
        self.assertEqual(a["token_ids"], self.plain["token_ids"][: len(a["token_ids"])])
        self.assertIn(len(a["token_ids"]), (room, room + 1))

    def with_packed_weights(self, folder):
        """A run with --repack-cache: its tokens, the allocations of weights in the target, and stderr."""
        status, out, errors = tandem(
            "run",
            "-v",
            "-m",
            MODEL,
            "--json",
            "--draft",
            "none",
            "--max-tokens",
            "60",
            "--repack-cache",
            str(folder),
            PROMPT,
        )
        self.assertEqual(status, OK, errors)
        return json.loads(out)["token_ids"], counters_of(errors)["memory_calls"]["weights"], errors

    def test_packed_weights_are_kept(self):
        folder = self.folder / "packed"
        folder.mkdir()
        for start in range(3):
            ids, allocations, errors = self.with_packed_weights(folder)
            self.assertEqual(ids, self.plain["token_ids"])
            self.assertEqual(allocations, 1 if start == 0 else 0)
            self.assertIn("wrote packed" if start == 0 else "mapped packed", errors)
            self.assertEqual(len(list(folder.iterdir())), 1)
        packed = next(folder.iterdir())
        size = packed.stat().st_size
        os.truncate(packed, size // 2)
        ids, allocations, errors = self.with_packed_weights(folder)
        self.assertEqual(ids, self.plain["token_ids"])
        self.assertEqual(allocations, 1)
        self.assertEqual(errors.count("warning"), 1)
        self.assertIn(str(packed), errors)
        self.assertEqual(packed.stat().st_size, size)
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        source.write_text(json.dumps({"id": 1, "prompt_ids": self.plain["prompt_ids"]}) + "\n")
        status, _, errors = tandem(
            "batch",
            "-v",
            "-m",
            MODEL,
            "--max-tokens",
            "60",
            "--repack-cache",
            str(folder),
            str(source),
            str(target),
        )
        self.assertEqual(status, OK, errors)
        self.assertIn("mapped packed", errors)
        self.assertEqual(json.loads(target.read_text())["token_ids"], self.plain["token_ids"])

    def test_packed_weights_need_a_folder(self):
        missing = str(self.folder / "none")
        errors = self.refused(WORKER, "--repack-cache", "run", "-m", MODEL, "--repack-cache", missing, PROMPT)
        self.assertIn(missing, errors)

    def test_speculation_that_is_off_is_told(self):
        sky = ["run", "-m", MODEL, "--max-tokens", "40", "--json", PROMPT]
        status, out, errors = tandem(*sky)
        reason = json.loads(out)["stats"]["speculation_off_reason"]
        self.assertEqual("decoded plainly" in errors, reason is not None)

    def test_the_speed_of_plain_decoding_is_told(self):
        """By the plain steps of the same answer, if some of the draft were accepted, as in lockstep."""
        poem = ["run", "-m", MODEL, "--max-tokens", "200", "Write a poem about the sea."]
        _, _, errors = tandem(*poem, "--pace", "lockstep")
        said = re.search(r"times plain decoding \((\d+) tok/s\)", errors)
        self.assertTrue(said, errors)
        _, _, errors = tandem(*poem, "--draft", "none")
        self.assertNotIn("plain decoding (", errors)
        plain = re.search(r"tokens, ([0-9.]+) tok/s; without a draft", errors)
        self.assertTrue(plain, errors)
        tell(f"{said[1]} tok/s as told, {plain[1]} without a draft")

    def test_the_seed_that_was_drawn_is_told(self):
        hot = ["run", "-m", MODEL, "--max-tokens", "24", "--temp", "1", PROMPT]
        _, out, errors = tandem(*hot)
        seed = re.search(r"its seed was drawn: --seed (\d+) gives the same again", errors)[1]
        _, again, errors = tandem(*hot, "--seed", seed)
        self.assertEqual(again, out)
        self.assertNotIn("seed", errors)


if __name__ == "__main__":
    unittest.main()
