"""`tandem batch`."""

import json
import signal
import subprocess
import unittest

from command_line import FAILED, INPUT, INTERRUPTED, IO, LONG, OK, PROMPT, USAGE, Command, answer, tandem
from support import MODEL, TANDEM, TIME_LIMIT, children_of, is_running, thorough, wait_until, whole_model


class Batch(Command):
    def run_batch(self, lines, *flags, status=OK):
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        source.write_bytes(
            b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines) + b"\n"
        )
        got, out, errors = tandem("batch", "-m", MODEL, *flags, str(source), str(target))
        self.assertEqual(got, status, errors)
        self.assertEqual(out, b"")
        return [json.loads(line) for line in target.read_bytes().splitlines()], errors

    def test_there_are_three_ways_to_ask(self):
        flags = ["--max-tokens", "24"]
        want = answer(PROMPT, *flags)
        lines = [
            {"id": "a", "prompt": PROMPT},
            {"id": 7, "prompt_ids": want["prompt_ids"], "text": "ignored"},
            {"id": "c", "messages": [{"role": "user", "content": PROMPT}]},
        ] * 3
        for sessions in ("1", "4"):
            got, _ = self.run_batch(lines, *flags, "--sessions", sessions)
            self.assertEqual([x["id"] for x in got], ["a", 7, "c"] * 3)
            for x in got:
                self.assertEqual(x["token_ids"], want["token_ids"])
                self.assertEqual(x["text"], want["text"])
                self.assertEqual(x["finish_reason"], "length")

    def test_what_would_move_a_terminal_is_escaped(self):
        name = "a\x7f\x9b31m\u202eb\u2066"
        request = json.dumps({"id": name, "prompt": PROMPT}).encode() + b"\n"
        status, out, errors = tandem("batch", "-m", MODEL, "--max-tokens", "2", "-", "-", stdin=request)
        self.assertEqual(status, OK, errors)
        self.assertEqual(json.loads(out)["id"], name)
        self.assertIn(b'"a\\u007F\\u009B31m\\u202Eb\\u2066"', out)

    def test_lines_without_an_id_are_numbered(self):
        lines = [{"prompt": PROMPT}, {"id": "own", "prompt": PROMPT}, {"prompt": PROMPT}, {"prompt": 5}]
        got, _ = self.run_batch(lines, "--max-tokens", "4", status=FAILED)
        self.assertEqual([x["id"] for x in got], [1, "own", 3, 4])
        self.assertEqual([x["finish_reason"] for x in got], ["length"] * 3 + ["error"])

    def test_bad_lines_do_not_stop_the_others(self):
        good = {"id": "good", "prompt": PROMPT}
        bad = [
            b"no json",
            b"[1]",
            b'{"id": "\xff", "prompt": "x"}',
            {"id": [1], "prompt": "x"},
            {"id": 1},
            {"id": 2, "prompt": "x", "prompt_ids": [1]},
            {"id": 3, "prompt": ""},
            {"id": 4, "prompt": 5},
            {"id": 5, "prompt_ids": []},
            {"id": 6, "prompt_ids": [1, -1]},
            {"id": 7, "prompt_ids": [49152]},
            {"id": 8, "messages": []},
            {"id": 9, "messages": [{"role": "boss", "content": "x"}]},
            {"id": 10, "messages": [{"role": "user"}]},
            {"id": 11, "prompt": "word " * 5000},
            b'{"id": 12, "id": 12}',
            {"id": 13, "prompt": "x", "bugdet": 3},
            {"id": 14, "prompt": "x", "budget": 65},
            {"id": 15, "prompt": "x", "draft": "ngram"},
            {"id": 16, "prompt": "x", "max_tokens": 0},
            {"id": 17, "prompt": "x", "seed": -1},
            {"id": 18, "prompt": "x", "force_single_token": 1},
        ]
        lines = [good] + [line for b in bad for line in (b, good)]
        got, errors = self.run_batch(lines, "--max-tokens", "4", status=FAILED)
        self.assertEqual(len(got), len(lines))
        self.assertEqual(errors.count("warning: line"), len(bad))
        for i, x in enumerate(got):
            self.assertEqual(x["finish_reason"], "length" if i % 2 == 0 else "error", x)
            if i % 2 == 0:
                self.assertEqual(x["token_ids"], got[0]["token_ids"])
            else:
                self.assertTrue(x["error"])
                self.assertEqual((x["token_ids"], x["text"]), ([], ""))
        self.assertEqual(
            [x["id"] for x in got[7::2]], [8] + list(range(1, 12)) + [32] + list(range(13, 19))
        )
        self.assertIn('did you mean "budget"?', next(x["error"] for x in got if x["id"] == 13))

    @thorough
    def test_options_of_a_line_hold_for_it(self):
        """They replace the flags' for that line alone."""
        plain = answer(PROMPT, "--max-tokens", "24")
        stop = plain["text"][20:25]
        table = [
            ({}, ()),
            ({"temperature": 0.8, "seed": 7}, ("--temp", "0.8", "--seed", "7")),
            ({"temperature": 1, "seed": 8, "top_k": 5}, ("--temp", "1", "--seed", "8", "--top-k", "5")),
            (
                {"temperature": 1.5, "seed": 9, "top_p": 0.7},
                ("--temp", "1.5", "--seed", "9", "--top-p", "0.7"),
            ),
            (
                {"temperature": 1.5, "seed": 9, "min_p": 0.2},
                ("--temp", "1.5", "--seed", "9", "--min-p", "0.2"),
            ),
            ({"repeat_penalty": 1.3}, ("--repeat-penalty", "1.3")),
            ({"presence_penalty": -2}, ("--presence-penalty", "-2")),
            ({"frequency_penalty": -1}, ("--frequency-penalty", "-1")),
            (
                {"logit_bias": {"28": -100, "30": 6}},
                ("--logit-bias", "28-100", "--logit-bias", "30+6"),
            ),
            ({"stop": stop}, ("--stop", stop)),
            ({"stop": ["never this", stop]}, ("--stop", stop)),
            ({"stop": []}, ()),
        ]
        want = [answer(PROMPT, "--max-tokens", "24", *flags) for _, flags in table]
        lines = [
            {"id": i, "prompt": PROMPT, "max_tokens": 24, **options} for i, (options, _) in enumerate(table)
        ]
        got, _ = self.run_batch(lines)
        for x, w in zip(got, want):
            self.assertEqual(
                (x["token_ids"], x["text"], x["finish_reason"]),
                (w["token_ids"], w["text"], w["finish_reason"]),
                x["id"],
            )
        self.assertEqual(len({tuple(x["token_ids"]) for x in got}), 10)  # each does something
        flags = ("--max-tokens", "24", "--temp", "2", "--top-k", "3", "--stop", plain["text"][4:7])
        off = {"temperature": 0, "top_k": 0, "stop": []}
        self.assertEqual(
            self.run_batch([{"id": 0, "prompt": PROMPT, **off}], *flags)[0][0]["token_ids"],
            plain["token_ids"],
        )

    def test_bad_options_of_a_line_are_named(self):
        """One clear error names the line and the key."""
        bad = [(key, value) for key in ("temperature", "top_p", "min_p", "repeat_penalty")
               for value in (-0.5, 1e300, "1", None, True, [0.5])]
        bad += [
            ("temperature", 100.5),
            ("top_p", 0),
            ("top_p", 1.5),
            ("min_p", 1),
            ("repeat_penalty", 0),
            ("repeat_penalty", 11),
            ("top_k", -1),
            ("top_k", 1.5),
            ("top_k", 1 << 40),
            ("top_k", "4"),
            ("stop", 5),
            ("stop", ""),
            ("stop", None),
            ("stop", ["a", 5]),
            ("stop", ["a", ""]),
            ("stop", ["a"] * 17),
            ("stop", "a" * 257),
            ("stop", "a\0b"),
            ("temprature", 1),
            ("max-tokens", 5),
            ("stops", ["a"]),
        ]
        lines = [{"id": i, "prompt": PROMPT, key: value} for i, (key, value) in enumerate(bad)]
        got, errors = self.run_batch(lines, "--max-tokens", "1", status=FAILED)
        for i, (x, (key, value)) in enumerate(zip(got, bad)):
            self.assertEqual((x["id"], x["finish_reason"]), (i, "error"), (key, value))
            self.assertIn(key, x["error"], value)
            self.assertNotIn("session", x, "nothing was begun for it")
            self.assertEqual(errors.count(f"line {i + 1}: {x['error']}\n"), 1, errors)
        for key, near in (("temprature", "temperature"), ("max-tokens", "max_tokens"), ("stops", "stop")):
            self.assertIn(
                f'did you mean "{near}"?', next(x["error"] for x, (k, _) in zip(got, bad) if k == key)
            )

    def test_it_reads_stdin_and_writes_stdout(self):
        line = json.dumps({"id": 1, "prompt": PROMPT}).encode()
        status, out, errors = tandem(
            "batch", "-m", MODEL, "--max-tokens", "4", "-", "-", stdin=b"\xef\xbb\xbf\n\n" + line
        )
        self.assertEqual(status, OK, errors)
        self.assertEqual(json.loads(out)["id"], 1)

    def test_files_that_cannot_be_used_are_refused(self):
        missing = str(self.folder / "no_such")
        self.refused(IO, missing, "batch", "-m", MODEL, missing, "-")
        self.refused(INPUT, "no lines", "batch", "-m", MODEL, "-", "-", stdin=b"\n")
        self.refused(IO, missing, "batch", "-m", MODEL, "-", missing + "/out.jsonl", stdin=b"{}")

    def test_the_same_file_twice_is_refused(self):
        """The answers would replace the prompts: refused under every name, and the file stays as it is."""
        source, text = self.folder / "both.jsonl", json.dumps({"id": 1, "prompt": PROMPT}) + "\n"
        source.write_text(text)
        hard, soft = self.folder / "hard.jsonl", self.folder / "soft.jsonl"
        hard.hardlink_to(source)
        soft.symlink_to(source)
        around = self.folder / ".." / self.folder.name / "both.jsonl"
        for one, other in [
            (source, source),
            (source, hard),
            (soft, source),
            (hard, soft),
            (around, source),
            (source, around),
        ]:
            self.refused(USAGE, "this command reads", "batch", "-m", MODEL, str(one), str(other))
            self.assertEqual(source.read_text(), text)
        with open(source, "rb") as stdin:
            done = subprocess.run(
                [TANDEM, "batch", "-m", MODEL, "-", str(hard)],
                stdin=stdin,
                capture_output=True,
                timeout=TIME_LIMIT,
            )
        self.assertEqual(done.returncode, USAGE, done.stderr)
        with open(source, "ab") as stdout:
            done = subprocess.run(
                [TANDEM, "batch", "-m", MODEL, str(soft), "-"],
                stdout=stdout,
                stderr=subprocess.PIPE,
                timeout=TIME_LIMIT,
            )
        self.assertEqual(done.returncode, USAGE, done.stderr)
        self.assertEqual(source.read_text(), text)
        equal = self.folder / "equal.jsonl"  # of the same content: another file
        equal.write_text(text)
        status, _, errors = tandem("batch", "-m", MODEL, "--max-tokens", "2", str(source), str(equal))
        self.assertEqual(status, OK, errors)
        self.assertEqual(json.loads(equal.read_text())["id"], 1)

    def test_its_output_is_a_recording(self):
        lines = [{"id": i, "prompt": text} for i, text in enumerate([PROMPT, "Name three colours."])]
        self.run_batch(lines + [{"id": "bad"}], "--draft", "none", "--max-tokens", "40", status=FAILED)
        recording = self.folder / "recording.jsonl"
        (self.folder / "out.jsonl").rename(recording)
        plain = [json.loads(line) for line in recording.read_bytes().splitlines()]
        got, _ = self.run_batch(
            lines, "--draft", f"replay:{recording}:1", "--max-tokens", "40", "--pace", "lockstep"
        )
        for x, want in zip(got, plain):
            self.assertEqual(x["token_ids"], want["token_ids"])
            s = x["stats"]
            self.assertEqual(s["draft_method"], "replay")
            self.assertGreater(s["accepted_tokens"], 20)
            self.assertEqual(len(x["token_ids"]), s["forwards"] + s["accepted_tokens"])
            self.assertEqual(s["draft_tokens"], s["accepted_tokens"] + s["rewound_tokens"])

    @whole_model
    def test_interrupted_it_writes_what_it_has(self):
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        flag, text = LONG
        short = answer("What is 2+2? Answer with one number.", "--max-tokens", "1")["prompt_ids"]
        lines = [{"id": 0, "prompt_ids": short}] + [{"id": i, "prompt": text} for i in range(1, 100)]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        p = subprocess.Popen(
            [TANDEM, "batch", "-m", MODEL, "--max-tokens", "3000", flag, str(source), str(target)],
            stderr=subprocess.PIPE,
        )
        self.addCleanup(p.stderr.close)
        wait_until(lambda: target.exists() and target.stat().st_size > 0)
        children = children_of(p.pid)
        p.send_signal(signal.SIGINT)
        _, errors = p.communicate(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, INTERRUPTED)
        got = [json.loads(line) for line in target.read_bytes().splitlines()]
        self.assertEqual([x["id"] for x in got], list(range(len(got))))
        self.assertIn(got[0]["finish_reason"], ("stop", "length"))
        self.assertEqual(got[-1]["finish_reason"], "cancelled")
        self.assertLessEqual({x["finish_reason"] for x in got[1:]}, {"length", "cancelled"})
        wait_until(lambda: not any(map(is_running, children)), "orphans")


if __name__ == "__main__":
    unittest.main()
