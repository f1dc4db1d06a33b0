"""Flags, variables and input of the commands: what is refused, and how."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from command_line import (BAD_MODEL, INPUT, LONG, OK, PROMPT, USAGE, WORKER, Command, answer, tandem,
                          with_draft_known)
from models import make_model
from support import BIN, DRAFT, MODEL, TANDEM, TARGET, TIME_LIMIT


class BadInput(Command):
    def test_wrong_usage_is_refused(self):
        missing = str(self.folder / "no_such_file.jsonl")
        for args, phrase in [
            ([], "no command"),
            (["sing"], "no such command"),
            (["bacth"], "did you mean batch?"),
            (["run", PROMPT], "no model"),
            (["run", "-m", MODEL], "no prompt"),
            (["run", "-m", MODEL, "two", "prompts"], "in quotes"),
            (["run", "-m", MODEL, "--tmep", "1", PROMPT], "did you mean --temp?"),
            (["run", "-m", MODEL, PROMPT, "--temp"], "requires an argument"),
            (["run", "-m", MODEL, "--temp", "hot", PROMPT], "--temp"),
            (["run", "-m", MODEL, "--temp", "nan", PROMPT], "--temp"),
            (["run", "-m", MODEL, "--temp", "-1", PROMPT], "--temp"),
            (["run", "-m", MODEL, "--top-p", "0", PROMPT], "top_p"),
            (["run", "-m", MODEL, "--top-p", "1.5", PROMPT], "--top-p"),
            (["run", "-m", MODEL, "--min-p", "1", PROMPT], "min_p"),
            (["run", "-m", MODEL, "--repeat-penalty", "0", PROMPT], "repeat_penalty"),
            (["run", "-m", MODEL, "--top-k", "3.5", PROMPT], "--top-k"),
            (["run", "-m", MODEL, "--seed", "-5", PROMPT], "--seed"),
            (["run", "-m", MODEL, "--seed", "99999999999999999999", PROMPT], "--seed"),
            (["run", "-m", MODEL, "--max-tokens", "0", PROMPT], "--max-tokens"),
            (["run", "-m", MODEL, "--max-tokens", "12x", PROMPT], "--max-tokens"),
            (["run", "-m", MODEL, "--budget", "65", PROMPT], "--budget"),
            (["run", "-m", MODEL, "--threads", "0", PROMPT], "--threads"),
            (["run", "-m", MODEL, "--kv-memory", "2 GB", PROMPT], "--kv-memory must be a number of bytes"),
            (["run", "-m", MODEL, "--draft-kv-memory", "much", PROMPT], "--draft-kv-memory must be a number"),
            (["run", "-m", MODEL, "--kv-in", "disk", PROMPT], "--kv-in must be one of device, host"),
            (["run", "-m", MODEL, "--math", "f64", PROMPT], "--math"),
            (["run", "-m", MODEL, "--pace", "fast", PROMPT], "--pace"),
            (["run", "-m", MODEL, "--ctx", "9000", PROMPT], "8192"),
            (["run", "-m", MODEL, "--stop", "", PROMPT], "--stop"),
            (["run", "-m", MODEL, "--raw", "--system", "x", PROMPT], "--raw"),
            (["run", "-m", MODEL, "--raw", "--chat-template", "chatml", PROMPT], "--raw"),
            (
                ["run", "-m", MODEL, "--chat-template", "vicuna", PROMPT],
                "unknown template 'vicuna': those known are chatml, ",
            ),
            (["run", "-m", MODEL, "--draft", "magic", PROMPT], "--draft"),
            (["run", "-m", MODEL, "--draft", "replay:", PROMPT], "replay"),
            (["run", "-m", MODEL, "--draft", "replay:x.jsonl:2", PROMPT], "replay"),
            (["run", "-m", MODEL, "--draft", f"replay:{missing}:0.5", PROMPT], missing),
            (["run", "-m", MODEL, "--listen", "here", PROMPT], "tcp://"),
            (["run", "-m", MODEL, "--wait", "3", PROMPT], "--listen"),
            (["run", "-m", MODEL, "--listen", "ipc://x", "--wait", "-1", PROMPT], "--wait"),
            (["run", "-m", MODEL, "--listen", "ipc://x", "--threads", "2", PROMPT], "--threads"),
            (["batch", "-m", MODEL, "--listen", "ipc://x", "--draft", "ngram", "a", "b"], "--draft"),
            (["serve-workers", "-m", MODEL], "--listen"),
            (["batch", "-m", MODEL, "in.jsonl"], "two files"),
            (["batch", "-m", MODEL, "--sessions", "0", "a", "b"], "--sessions"),
            (["tokenize", "-m", MODEL, "text"], "too many"),
            (["bench"], "bench step"),
            (["bench", "stop"], "no 'stop'"),
            (["bench", "step"], "no model"),
            (["bench", "step", "-m", MODEL, "--rows", "1,,4"], "--rows"),
            (["bench", "step", "-m", MODEL, "--rows", "257"], "--rows"),
            (["bench", "step", "-m", MODEL, "--rows", "1,2,3,4,5,6,7,8,9"], "--rows"),
            (["bench", "step", "-m", MODEL, "--ctx", "0"], "--ctx"),
            (["bench", "step", "-m", MODEL, "x"], "'x' is one argument too many"),
        ]:
            with self.subTest(args=args):
                self.refused(USAGE, phrase, *args)
        stops = [flag for i in range(17) for flag in ("--stop", f"s{i}")]
        self.refused(USAGE, "16 times", "run", "-m", MODEL, *stops, PROMPT)

    def test_the_command_line_wins(self):
        """A variable contradicts nothing that is on the command line, and what it says of workers may be for
        others."""
        missing = str(self.folder / "no_such")
        for variable, value, args in [
            ("TANDEM_MODEL_DRAFT", MODEL, ["run", "--draft", "ngram", PROMPT]),
            ("TANDEM_DRAFT", "ngram", ["run", "--draft-layers", "2", PROMPT]),
            ("TANDEM_KV_BLOCKS", "7", ["run", "--kv", "static", PROMPT]),
            ("TANDEM_THREADS", "2", ["serve-workers", "--listen", "ipc://x"]),
        ]:
            with self.subTest(variable=variable):
                self.refused(BAD_MODEL, missing, *args, "-m", missing, env={**os.environ, variable: value})

    def test_a_file_that_is_no_model_is_refused(self):
        data = pathlib.Path(MODEL).read_bytes()
        files = {
            "cut": data[: len(data) // 2],
            "head": data[:100],
            "empty": b"",
            "text": b"this is no model\n" * 100,
            "counts": data[:8] + b"\xff" * 16 + data[24:200],
            "version": data[:4] + b"\x09" + data[5:4096],
        }
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
            for command in (["run", PROMPT], ["batch", "-", "-"], ["tokenize"], ["detokenize"]):
                with self.subTest(name=name, command=command[0]):
                    self.refused(BAD_MODEL, name, command[0], "-m", str(self.folder / name), *command[1:])
        missing = str(self.folder / "no_such.gguf")
        self.refused(BAD_MODEL, missing, "run", "-m", missing, PROMPT)
        self.refused(BAD_MODEL, str(self.folder), "run", "-m", str(self.folder), PROMPT)

    def test_a_prompt_that_is_none_is_refused(self):
        long = b"word " * 5000
        for args, stdin, phrase in [
            (["-"], b"", "empty"),
            (["-"], b"\n", "empty"),
            ([""], b"", "empty"),
            (["--raw", ""], b"", "empty"),
            (["--raw", "\x04\x06"], b"", "empty"),
            (["-"], b"caf\xe9", "UTF-8"),
            ([b"caf\xe9"], b"", "UTF-8"),
            (["--system", b"\xff", PROMPT], b"", "UTF-8"),
            (["-"], long, "--ctx"),
            (["--ctx", "8192", "-"], 2 * long, "8192"),
            (["--ctx", "16", PROMPT], b"", "--ctx"),
        ]:
            with self.subTest(args=args):
                self.refused(INPUT, phrase, "run", "-m", MODEL, *args, stdin=stdin)
        self.refused(USAGE, "UTF-8", "run", "-m", MODEL, "--stop", b"\xff", PROMPT)

    def test_ids_that_are_none_are_refused(self):
        self.refused(INPUT, "UTF-8", "tokenize", "-m", MODEL, stdin=b"a\xff")
        for ids, phrase in [
            (b"1 2 x", "'x'"),
            (b"1 2.5", "2.5"),
            (b"49152", "49152"),
            (b"-1", "-1"),
            (b"[1, 2", "JSON"),
            (b'[1, "2"]', "whole"),
            (b"[1, 99999999]", "99999999"),
            (b"1\x002", "byte 1"),
        ]:
            with self.subTest(ids=ids):
                self.refused(INPUT, phrase, "detokenize", "-m", MODEL, stdin=ids)

    def test_programs_that_are_not_there_are_named(self):
        alone = shutil.copy(TANDEM, self.folder)
        done = subprocess.run([alone, "run", "-m", MODEL, PROMPT], capture_output=True, env={"PATH": ""},
                              timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, WORKER)
        self.assertIn(b"tandem-target", done.stderr)

    def test_a_recording_that_is_none_is_refused(self):
        bad = self.folder / "bad.jsonl"
        bad.write_text("no recording\n")
        asked = ("--draft", f"replay:{bad}:0.5")
        status, out, errors = with_draft_known("run", "-m", MODEL, *asked, PROMPT)
        self.assertEqual(status, OK, errors)
        self.assertIn("line 1", errors)
        self.assertIn("decoded plainly: tandem-draft could not start (exit status 3)", errors)

    def test_a_draft_that_cannot_be_used_costs_no_answer(self):
        """Whatever is wrong with it, in every command: its own message, one warning, and the true reason."""
        lines, ledger = self.folder / "in.jsonl", str(self.folder / "ledger")
        lines.write_text('{"prompt": "a", "max_tokens": 2}\n')
        text = self.folder / "README.md"
        text.write_text("# no model\n" * 100)
        few = make_model(self.folder / "few.gguf", 500)
        m = ("-m", MODEL)
        for draft, message, reason in (
            (text, "not a GGUF file", "tandem-draft could not start (exit status 3)"),
            (few, "has 500 tokens", "the draft does not fit the target"),
        ):
            asked = ("-md", str(draft))
            tandem("run", *m, "--ledger", ledger, "--draft", "none", "-n", "2", PROMPT)
            id = json.loads(tandem("session", "list", "--ledger", ledger, "--json")[1])[0]["session"]
            for args in (("run", *m, *asked, "-n", "2", PROMPT), ("batch", *m, *asked, str(lines), "-"),
                         ("run", *m, *asked, "--compare", "-n", "2", PROMPT),
                         ("session", "resume", *asked, "--ledger", ledger, id, "-n", "2")):
                with self.subTest(args=args):
                    status, out, errors = with_draft_known(*args)
                    self.assertEqual(status, OK, errors)
                    self.assertTrue(out)
                    self.assertEqual((errors.count(message), errors.count("warning")), (1, 1), errors)
                    self.assertIn(f"warning: {reason}: see its message above; answers come without", errors)
                    self.assertIn(f"decoded plainly: {reason}", errors)
                    self.assertNotIn("start tandem-draft", errors)
                    self.assertNotIn("times as fast", errors)
            self.refused(WORKER, message, "bench", "spec", *m, *asked, "-n", "2", str(lines))

    def test_a_draft_with_a_model_is_one(self):
        """Placed by hand, as `tandem run' takes it."""
        for flags, said in (
            (["-md", MODEL, "--draft-layers", "99"], b"99 of them"),
            (["-m", MODEL, "--draft-layers", "99"], b"99 of them"),
            (["--turns", "--beside"], b"--turns and --beside exclude each other"),
        ):
            done = subprocess.run(
                [DRAFT, "--orchestrator", "ipc://x", *flags], capture_output=True, timeout=TIME_LIMIT
            )
            self.assertEqual(done.returncode, USAGE)
            self.assertIn(said, done.stderr)


class Habits(Command):
    """What llama.cpp's users type, and variables that are misspelt."""

    def test_flags_of_llama_cpp_mean_ours(self):
        ours = answer(
            "--max-tokens",
            "5",
            "--seed",
            "3",
            "--ctx",
            "512",
            "--system",
            "Be brief.",
            "--temp",
            "0.5",
            "--budget",
            "3",
            PROMPT,
        )
        theirs = answer(
            "-n",
            "5",
            "-s3",
            "-c",
            "512",
            "-sys",
            "Be brief.",
            "--temperature",
            "0.5",
            "--draft-max=3",
            "-t",
            "2",
            "-p",
            PROMPT,
        )
        for key in ("token_ids", "prompt_ids", "seed", "finish_reason"):
            self.assertEqual(ours[key], theirs[key], key)
        self.assertEqual(answer("--predict=2", "--system-prompt", "x", "--prompt", "-n 7")["text"],
                         answer("--max-tokens", "2", "--system", "x", "--", "-n 7")["text"])

    def test_flags_and_commands_that_are_none_are_refused(self):
        m = ("-m", MODEL)
        for args, phrase in [
            (("run", *m, "-mg", "1", PROMPT), "-mg"),
            (("run", *m, "--ignore-eos", PROMPT), "--ignore-eos"),
            (("run", *m, "--draft", "16", PROMPT), "--budget"),
            (("run", *m, "--treads", "2", PROMPT), "did you mean --threads?"),
            (("run", *m, "--temprature", "2", PROMPT), "did you mean --temp?"),
            (("run", *m, "-temp", "2", PROMPT), "did you mean --temp?"),
            (("run", *m, "-p", PROMPT, PROMPT), "too many"),
            (("tokenize", *m, "-n", "5"), "it is --max-tokens of `tandem run'"),
            (("chat",), "did you mean run?"),
            (("complete", *m), "did you mean run?"),
            (("generate", *m), "did you mean run?"),
            (("cli", *m), "did you mean run?"),
            (("server", "--port", "8080"), "did you mean serve?"),
            ((*m, "-p", PROMPT), "tandem run -m"),
        ]:
            with self.subTest(args=args):
                self.refused(USAGE, phrase, *args)

    def test_flags_that_would_change_nothing_are_passed_over(self):
        short = ["--max-tokens", "2", "--draft", "none", "--ledger", "none"]
        flags = ["-ngl", "99", "-fa", "--mlock", "-b", "512"]
        status, out, errors = tandem("run", "-m", MODEL, *short, *flags, PROMPT)
        self.assertEqual(status, OK, errors)
        self.assertEqual(out, tandem("run", "-m", MODEL, *short, PROMPT)[1])
        self.assertEqual(errors.count("warning"), 1, errors)
        self.assertIn("warning: -ngl, -fa, --mlock, -b change nothing here: --device NAME says", errors)

    def test_an_answer_goes_to_the_end_of_the_context(self):
        flags = ["-n", "-1", "--ctx", "256", "--threads", "64", "--draft", "none", "--ledger", "none"]
        status, _, errors = tandem("run", "-m", MODEL, *flags, *LONG)
        self.assertEqual(status, OK, errors)
        self.assertIn("the context of 256 tokens is full", errors)
        self.assertIn("--threads 64 is more than the", errors)

    def test_a_device_that_is_not_there_is_told_alone(self):
        for flags in ([], ["--json"]):
            status, _, errors = tandem("run", "-m", MODEL, *flags, "--device", "cuda:77", PROMPT)
            self.assertEqual(status, WORKER, errors)
            self.assertEqual(len(errors.splitlines()), 1, errors)
            self.assertTrue(errors.startswith("tandem-target: error: "), errors)

    def test_what_is_missing_is_named(self):
        path = "some/model.gguf"
        for args, phrase in [
            (("run", path, PROMPT), "-m goes before the model's path"),
            (("run", path), f"-m goes before the model's path, {path}"),
            (("convert-head", "head.gguf", "out.gguf"), "no model: give one with -m FILE.gguf"),
            (("run", "-m", MODEL, "two", "words"), "put the prompt in quotes, or give - and"),
        ]:
            with self.subTest(args=args):
                self.refused(USAGE, phrase, *args)

    def test_workers_take_flags_of_llama_cpp_too(self):
        for program, flags, phrase in ((TARGET, ("-c", "64", "-t", "1", "-np", "2"), "-m MODEL is missing"),
                                       (DRAFT, ("-t", "1", "-c", "64"), "--orchestrator"),
                                       (TARGET, ("-n", "5"), "--max-tokens of `tandem run'"),
                                       (DRAFT, ("-mg", "1"), "--device NAME says what computes")):
            done = subprocess.run([program, *flags], capture_output=True, text=True, timeout=TIME_LIMIT)
            self.assertEqual(done.returncode, USAGE)
            self.assertIn(phrase, done.stderr)

    def test_a_misspelt_variable_is_named_once(self):
        env = {**os.environ, "TANDEM_MAX_TOKEN": "1"}
        warning = (
            "warning: nobody reads the environment variable TANDEM_MAX_TOKEN: did you mean "
            "TANDEM_MAX_TOKENS?\n"
        )
        status, out, errors = tandem("run", "-m", MODEL, "--max-tokens", "2", PROMPT, env=env)
        self.assertEqual(
            (status, errors.count("TANDEM_"), errors.count("tandem: " + warning)), (OK, 2, 1), errors
        )
        for args in (
            ["doctor"],
            ["--version"],
            ["session", "list", "--limit", "0"],
            ["bench", "step", "--help"],
        ):
            status, out, errors = tandem(*args, env=env)
            self.assertEqual((status, errors), (OK, "tandem: " + warning), args)
        for name, args in (
            ("tandem-target", ["--version"]),
            ("tandem-draft", ["--version"]),
            ("tandem-bench", ["--version"]),
        ):
            done = subprocess.run(
                [str(BIN / name), *args], capture_output=True, text=True, env=env, timeout=TIME_LIMIT
            )
            self.assertEqual((done.returncode, done.stderr), (OK, f"{name}: {warning}"))

    def test_every_flag_may_be_a_variable(self):
        """common/command_line/flags.def has the flags of all programs."""
        helps = [[str(BIN / name), "--help"] for name in ("tandem-target", "tandem-draft")]
        helps += [
            [TANDEM, command, "--help"]
            for command in re.findall(r"(?m)^  ([a-z-]+)  ", tandem("--help")[1].decode().split("\n\n")[1])
        ]
        helps += [
            [TANDEM, "session", verb, "--help"]
            for verb in re.findall(r"(?m)^  ([a-z]+)  ", tandem("session", "--help")[1].decode())
        ]
        helps += [[TANDEM, "bench", what, "--help"] for what in ("step", "kv", "serve")]
        flags = set()
        for args in helps:
            flags |= set(
                re.findall(
                    r"(?m)^ +(?:-\w, )?--([a-z-]+)",
                    subprocess.run(args, capture_output=True, text=True).stdout,
                )
            )
        flags -= {"help", "usage", "version", "config"}
        self.assertGreater(len(flags), 45)
        env = {**os.environ, **{"TANDEM_" + flag.upper().replace("-", "_"): "1" for flag in flags}}
        self.assertEqual(tandem("--help", env=env)[2], "")


if __name__ == "__main__":
    unittest.main()
