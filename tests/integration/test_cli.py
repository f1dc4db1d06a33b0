"""The command line as a user meets it: real programs, the real model."""

import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from models import Gguf, other_vocabulary
from support import BIN, DRAFT, MODEL, TANDEM, TARGET, TIME_LIMIT, Case, children_of, counters_of, is_running, wait_until

PROMPT = "Why is the sky blue?"
LONG = ["--raw", "The cat sat on the mat and the dog sat on the log. " * 8]  # it goes on for ever

OK, FAILED, USAGE, BAD_MODEL, INPUT, WORKER, IO = 0, 1, 2, 3, 6, 7, 8
TERMINATED, INTERRUPTED = 143, 130


def tandem(*args, stdin=b"", env=None):
    """Runs a command to its end: (status, stdout, stderr), bytes and text."""
    done = subprocess.run([TANDEM, *args], input=stdin, capture_output=True, timeout=TIME_LIMIT, env=env)
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


def answer(*args, stdin=b""):
    """The JSON object of a `run` that must succeed."""
    status, out, errors = tandem("run", "-m", MODEL, "--json", *args, stdin=stdin)
    assert status == OK, errors
    assert out.count(b"\n") == 1 and out.endswith(b"\n"), out
    return json.loads(out)


def tokenize(text, *flags):
    status, out, errors = tandem("tokenize", "-m", MODEL, "--json", *flags, stdin=text)
    assert status == OK, errors
    return json.loads(out)["token_ids"]


def detokenize(ids):
    status, out, errors = tandem("detokenize", "-m", MODEL, stdin=json.dumps(ids).encode())
    assert status == OK, errors
    return out.decode()


class Command(Case):
    def refused(self, status, phrase, *args, stdin=b"", env=None):
        """The command fails with this status, says why in one place, and writes nothing to stdout."""
        got, out, errors = tandem(*args, stdin=stdin, env=env)
        self.assertEqual(got, status, errors)
        self.assertEqual(out, b"")
        self.assertIn(phrase, errors)
        self.assertLessEqual(len(errors.splitlines()), 3, errors)
        return errors


class Help(Command):
    def test_version_names_commit_and_numerics(self):
        status, out, _ = tandem("--version")
        text = out.decode()
        self.assertEqual(status, OK)
        for program in ("tandem ", "tandem-target ", "tandem-draft "):
            self.assertRegex(text, rf"(?m)^{program}\d+\.\d+\.\d+ \(([0-9a-f]{{12}}|unknown)\)")
        self.assertEqual(text.count("(" + text.split("(")[1].split(")")[0] + ")"), 3)
        self.assertIn("numerics " + answer(PROMPT, "--max-tokens", "1")["numerics_id"] + "\n", text)

    def test_help_everywhere(self):
        status, out, _ = tandem("--help")
        self.assertEqual(status, OK)
        for word in ("run", "batch", "serve-workers", "tokenize", "detokenize", "doctor", "bench", "Exit statuses", "130"):
            self.assertIn(word, out.decode())
        for command in ("run", "batch", "serve-workers", "tokenize", "detokenize", "doctor"):
            for flag in ("--help", "-h"):
                status, out, _ = tandem(command, flag)
                self.assertEqual(status, OK)
                self.assertIn("--model", out.decode())
        self.assertIn("rollback", tandem("session", "-h")[1].decode())
        flags = tandem("run", "--help")[1].decode()
        for flag in ("draft temp top-k top-p min-p repeat-penalty seed max-tokens stop raw no-special system chat-template threads "
                     "ctx math budget pace selfcheck json repack-cache force-single-token listen wait insecure-bind").split():
            self.assertIn("--" + flag, flags)

    def test_doctor(self):
        status, out, errors = tandem("doctor", "-m", MODEL)
        self.assertEqual(status, OK, out.decode() + errors)
        for word in ("cpu", "memory", "ipc", "tcp", "tandem-target", "tandem-draft", "vocabulary 49152", "chatml, built in"):
            self.assertIn(word, out.decode())

    def test_doctor_finds_a_bad_model_and_missing_programs(self):
        bad = self.folder / "bad.gguf"
        bad.write_bytes(b"GGUF")
        status, out, errors = tandem("doctor", "-m", str(bad))
        self.assertEqual(status, FAILED)
        self.assertIn("BAD   model", out.decode())
        alone = shutil.copy(TANDEM, self.folder)
        done = subprocess.run([alone, "doctor"], capture_output=True, env={"PATH": ""}, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, FAILED)
        self.assertEqual(done.stdout.decode().count("BAD   worker"), 2)
        status, out, errors = tandem("doctor", "--json", "-m", str(bad), "-md", str(self.folder / "none"))
        self.assertEqual(status, FAILED)
        report = json.loads(out)
        self.assertFalse(report["ok"])
        self.assertEqual([c["check"] for c in report["checks"] if not c["ok"]], ["model", "draft"])

    def doctor(self, *args):
        """{check: object} of --json, whose text is what people read."""
        status, out, errors = tandem("doctor", "--json", *args)
        report = json.loads(out)
        self.assertEqual((out.count(b"\n"), status), (1, OK if report["ok"] else FAILED), errors)
        self.assertEqual(report["ok"], all(c["ok"] for c in report["checks"]))
        lines = [line for line in tandem("doctor", *args)[1].decode().splitlines() if " in " not in line and "memory" not in line]
        told = [f"{'ok' if c['ok'] else 'BAD':5} {c['check']:9} {c['text']}" for c in report["checks"]]
        self.assertLessEqual(set(lines), set(told))
        return {c["check"]: c for c in report["checks"]}

    def test_doctor_as_an_object(self):
        checks = self.doctor("-m", MODEL)
        self.assertLessEqual({"tandem", "cpu", "memory", "worker", "isa", "ipc", "tcp", "model", "template"}, set(checks))
        self.assertEqual((checks["model"]["layers"], checks["model"]["vocabulary"]), (30, 49152))

    def test_instruction_sets(self):
        """As the kernel tells the processor's flags."""
        needs = {"avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
                 "avx-vnni": {"avx2", "fma", "f16c", "avx_vnni"}, "avx2": {"avx2", "fma", "f16c"}, "c": set()}
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        has = next((set(line.split()) for line in lines if line.startswith("flags")), set())
        isa = self.doctor()["isa"]
        self.assertEqual(list(isa["sets"]), list(needs))
        for name, state in isa["sets"].items():
            lacking = needs[name] - has
            self.assertEqual(state.startswith("missing: "), bool(lacking), isa)
            self.assertTrue(not lacking or state.split()[-1] in lacking, isa)
        self.assertEqual([isa["chosen"]], [name for name, state in isa["sets"].items() if state == "chosen"])
        self.assertEqual(isa["chosen"], next(name for name in needs if needs[name] <= has))
        done = subprocess.run([TARGET, "--list-isa", "--isa", "c"], capture_output=True, text=True)
        self.assertIn("c chosen\n", done.stdout)

    def test_a_draft_that_fits_and_one_that_does_not(self):
        fit = self.doctor("-m", MODEL, "-md", MODEL)["fit"]
        self.assertEqual((fit["ok"], fit["partners"], fit["same_ids"]), (True, 49152, True))
        bridged = other_vocabulary(self.folder / "bridged.gguf", padding=64, misspelt=100)
        fit = self.doctor("-m", MODEL, "-md", str(bridged))["fit"]
        self.assertEqual((fit["ok"], fit["partners"], fit["same_ids"]), (True, 49152 - 100, False))
        foreign = other_vocabulary(self.folder / "foreign.gguf", misspelt=1000)
        checks = self.doctor("-m", MODEL, "-md", str(foreign))
        self.assertEqual((checks["draft"]["ok"], checks["fit"]["ok"]), (True, False))
        self.assertIn("1000 of 49", checks["fit"]["text"])  # why, as the draft's own refusal says it
        self.assertIn("not looked at", self.doctor("-md", MODEL)["fit"]["text"])


class BadInput(Command):
    def test_usage(self):
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
            (["run", "-m", MODEL, "--math", "f64", PROMPT], "--math"),
            (["run", "-m", MODEL, "--pace", "fast", PROMPT], "--pace"),
            (["run", "-m", MODEL, "--ctx", "9000", PROMPT], "8192"),
            (["run", "-m", MODEL, "--stop", "", PROMPT], "--stop"),
            (["run", "-m", MODEL, "--raw", "--system", "x", PROMPT], "--raw"),
            (["run", "-m", MODEL, "--raw", "--chat-template", "chatml", PROMPT], "--raw"),
            (["run", "-m", MODEL, "--chat-template", "vicuna", PROMPT], "unknown template 'vicuna': those known are chatml, "),
            (["run", "-m", MODEL, "--draft", "magic", PROMPT], "--draft"),
            (["run", "-m", MODEL, "--draft", "replay:", PROMPT], "replay"),
            (["run", "-m", MODEL, "--draft", "replay:x.jsonl:2", PROMPT], "replay"),
            (["run", "-m", MODEL, "--draft", "replay:no_such_file.jsonl:0.5", PROMPT], "no_such_file.jsonl"),
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
            (["bench", "step", "-m", MODEL, "x"], "unexpected argument 'x'"),
        ]:
            with self.subTest(args=args):
                self.refused(USAGE, phrase, *args)
        stops = [flag for i in range(17) for flag in ("--stop", f"s{i}")]
        self.refused(USAGE, "16 times", "run", "-m", MODEL, *stops, PROMPT)

    def test_the_command_line_wins(self):
        """A variable contradicts nothing that is on the command line, and what it says of workers may be for others."""
        for variable, value, args in [
            ("TANDEM_MODEL_DRAFT", MODEL, ["run", "--draft", "ngram", PROMPT]),
            ("TANDEM_DRAFT", "ngram", ["run", "--draft-layers", "2", PROMPT]),
            ("TANDEM_KV_BLOCKS", "7", ["run", "--kv", "static", PROMPT]),
            ("TANDEM_THREADS", "2", ["serve-workers", "--listen", "ipc://x"]),
        ]:
            with self.subTest(variable=variable):
                self.refused(BAD_MODEL, "no_such", *args, "-m", "no_such", env=dict(os.environ, **{variable: value}))

    def test_models(self):
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
        self.refused(BAD_MODEL, "no_such.gguf", "run", "-m", "no_such.gguf", PROMPT)
        self.refused(BAD_MODEL, str(self.folder), "run", "-m", str(self.folder), PROMPT)

    def test_prompts(self):
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

    def test_ids(self):
        self.refused(INPUT, "UTF-8", "tokenize", "-m", MODEL, stdin=b"a\xff")
        for ids, phrase in [(b"1 2 x", "'x'"), (b"1 2.5", "2.5"), (b"49152", "49152"), (b"-1", "-1"), (b"[1, 2", "JSON"),
                            (b'[1, "2"]', "whole"), (b"[1, 99999999]", "99999999"), (b"1\x002", "byte 1")]:
            with self.subTest(ids=ids):
                self.refused(INPUT, phrase, "detokenize", "-m", MODEL, stdin=ids)

    def test_programs_that_are_not_there(self):
        alone = shutil.copy(TANDEM, self.folder)
        done = subprocess.run([alone, "run", "-m", MODEL, PROMPT], capture_output=True, env={"PATH": ""},
                              timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, WORKER)
        self.assertIn(b"tandem-target", done.stderr)

    def test_a_recording_that_is_none(self):
        bad = self.folder / "bad.jsonl"
        bad.write_text("no recording\n")
        status, out, errors = tandem("run", "-m", MODEL, "--draft", f"replay:{bad}:0.5", PROMPT)
        self.assertEqual((status, out), (WORKER, b""), errors)
        self.assertIn("tandem-draft could not start", errors)
        self.assertIn("line 1", errors)


    def test_a_draft_with_a_model_is_one(self):
        """Placed by hand, as `tandem run' takes it."""
        for flags in (["-md", MODEL, "--draft-layers", "99"], ["-m", MODEL, "--draft-layers", "99"]):
            done = subprocess.run([DRAFT, "--orchestrator", "ipc://x", *flags], capture_output=True, timeout=TIME_LIMIT)
            self.assertEqual(done.returncode, USAGE)
            self.assertIn(b"99 of them", done.stderr)


class Habits(Command):
    """What llama.cpp's users type, and variables that are misspelt."""

    def test_flags_that_mean_ours(self):
        ours = answer("--max-tokens", "5", "--seed", "3", "--ctx", "512", "--system", "Be brief.", "--temp", "0.5", "--budget", "3", PROMPT)
        theirs = answer("-n", "5", "-s3", "-c", "512", "-sys", "Be brief.", "--temperature", "0.5", "--draft-max=3", "-t", "2", "-p", PROMPT)
        for key in ("token_ids", "prompt_ids", "seed", "finish_reason"):
            self.assertEqual(ours[key], theirs[key], key)
        self.assertEqual(answer("--predict=2", "--system-prompt", "x", "--prompt", "-n 7")["text"],
                         answer("--max-tokens", "2", "--system", "x", "--", "-n 7")["text"])

    def test_flags_and_commands_that_are_none(self):
        m = ("-m", MODEL)
        for args, phrase in [
            (("run", *m, "-ngl", "99", PROMPT), "-ngl"),
            (("run", *m, "--n-gpu-layers", "99", PROMPT), "--n-gpu-layers"),
            (("run", *m, "--flash-attn", PROMPT), "--flash-attn"),
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
            (("serve",), "did you mean serve-workers?"),
            (("server", "--port", "8080"), "did you mean serve-workers?"),
            ((*m, "-p", PROMPT), "tandem run -m"),
        ]:
            with self.subTest(args=args):
                self.refused(USAGE, phrase, *args)

    def test_workers_take_them_too(self):
        for program, flags, phrase in ((TARGET, ("-c", "64", "-t", "1", "-np", "2"), "-m MODEL is missing"),
                                       (DRAFT, ("-t", "1", "-c", "64"), "--orchestrator"),
                                       (TARGET, ("-n", "5"), "--max-tokens of `tandem run'"),
                                       (DRAFT, ("-ngl", "5"), "leave it out")):
            done = subprocess.run([program, *flags], capture_output=True, text=True, timeout=TIME_LIMIT)
            self.assertEqual(done.returncode, USAGE)
            self.assertIn(phrase, done.stderr)

    def test_a_misspelt_variable_is_named_once(self):
        env = {**os.environ, "TANDEM_MAX_TOKEN": "1"}
        warning = "warning: nobody reads the environment variable TANDEM_MAX_TOKEN: did you mean TANDEM_MAX_TOKENS?\n"
        status, out, errors = tandem("run", "-m", MODEL, "--max-tokens", "2", PROMPT, env=env)
        self.assertEqual((status, errors.count("TANDEM_"), errors.count("tandem: " + warning)), (OK, 2, 1), errors)
        for args in (["doctor"], ["--version"], ["session", "list", "--limit", "0"], ["bench", "step", "--help"]):
            status, out, errors = tandem(*args, env=env)
            self.assertEqual((status, errors), (OK, "tandem: " + warning), args)
        for name, args in (("tandem-target", ["--version"]), ("tandem-draft", ["--version"]), ("tandem-bench", ["--version"])):
            done = subprocess.run([str(BIN / name), *args], capture_output=True, text=True, env=env, timeout=TIME_LIMIT)
            self.assertEqual((done.returncode, done.stderr), (OK, f"{name}: {warning}"))

    def test_every_flag_may_be_a_variable(self):
        """common/base/program_variables.c has the flags of all programs."""
        helps = [[str(BIN / name), "--help"] for name in ("tandem-target", "tandem-draft")]
        helps += [[TANDEM, command, "--help"] for command in re.findall(r"(?m)^  ([a-z-]+)  ", tandem("--help")[1].decode().split("\n\n")[1])]
        helps += [[TANDEM, "session", verb, "--help"] for verb in re.findall(r"(?m)^  ([a-z]+)  ", tandem("session", "--help")[1].decode())]
        helps.append([TANDEM, "bench", "step", "--help"])
        flags = set()
        for args in helps:
            flags |= set(re.findall(r"(?m)^ +(?:-\w, )?--([a-z-]+)", subprocess.run(args, capture_output=True, text=True).stdout))
        flags -= {"help", "usage", "version"}
        self.assertGreater(len(flags), 45)
        env = {**os.environ, **{"TANDEM_" + flag.upper().replace("-", "_"): "1" for flag in flags}}
        self.assertEqual(tandem("--help", env=env)[2], "")


class Text(Command):
    def test_there_and_back(self):
        for text in ["", "Hello, world", "  two  spaces\n\n\tand tabs 1234567890", "größer 東京 🙂👩‍👩‍👧 é",
                     "<|im_start|>user\nhi<|im_end|>\n", "a\0b", "x" * 100000]:
            with self.subTest(text=text[:20]):
                ids = tokenize(text.encode())
                self.assertEqual(detokenize(ids), text)
                status, out, _ = tandem("tokenize", "-m", MODEL, stdin=text.encode())
                self.assertEqual([int(n) for n in out.split()], ids)
                status, out, _ = tandem("detokenize", "-m", MODEL, stdin=out)
                self.assertEqual(out.decode(), text)

    def test_special_tokens(self):
        self.assertEqual(tokenize(b"<|im_end|>"), [2])
        plain = tokenize(b"<|im_end|>", "--no-special")
        self.assertGreater(len(plain), 1)
        self.assertEqual(detokenize(plain), "<|im_end|>")

    def test_a_vocabulary_alone(self):
        """A GGUF without tensors gives and takes the same text; who wants an answer of it is told why there is none."""
        g = Gguf(MODEL)
        g.tensors = []
        whole, alone = self.folder / "keys.gguf", self.folder / "vocabulary.gguf"
        g.write(whole)
        g.keys = {key: value for key, value in g.keys.items() if key.startswith("tokenizer.")}
        g.write(alone)
        text = "größer <|im_start|>\nHello,  world 123"
        ids = tokenize(text.encode())
        for path in map(str, (whole, alone)):
            status, out, errors = tandem("tokenize", "-m", path, stdin=text.encode())
            self.assertEqual((status, out.decode().split()), (OK, [*map(str, ids)]), errors)
            status, out, errors = tandem("detokenize", "-m", path, stdin=out)
            self.assertEqual((status, out.decode()), (OK, text), errors)
            errors = self.refused(BAD_MODEL, "holds a vocabulary and no weights", "run", "-m", path, PROMPT)
            self.assertEqual(len(errors.splitlines()), 1)
            self.refused(BAD_MODEL, "holds a vocabulary and no weights", "batch", "-m", path, "-", "-", stdin=b"{}")
            self.assertIn("BAD   model", tandem("doctor", "-m", path)[1].decode())
        g.keys = {}
        self.refused(BAD_MODEL, "", "tokenize", "-m", str(g.write(alone)), stdin=b"x")

    def test_spellings(self):
        status, out, _ = tandem("tokenize", "-m", MODEL, "--json", stdin=b"Hello world")
        self.assertEqual(json.loads(out), {"token_ids": [19556, 905], "tokens": ["Hello", "\u0120world"]})

    def test_half_a_character(self):
        whole = "🙂"
        ids = tokenize(whole.encode())
        self.assertGreater(len(ids), 1)
        self.assertEqual(detokenize(ids[:-1]), "\ufffd")

    def test_dropped_bytes_are_counted_once(self):
        status, out, errors = tandem("tokenize", "-m", MODEL, stdin=b"a\x04b\x06\x06c")
        self.assertEqual(status, OK)
        self.assertEqual(errors.count("warning"), 1)
        self.assertIn("3 bytes", errors)
        status, out, errors = tandem("run", "-m", MODEL, "--max-tokens", "1", "a\x04b")
        self.assertEqual(status, OK)
        self.assertEqual(errors.count("warning"), 1)
        self.assertIn("1 byte", errors)


class Run(Command):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = answer(PROMPT, "--draft", "none", "--max-tokens", "60")

    def test_object(self):
        a = self.plain
        self.assertEqual(set(a), set("text token_ids prompt_tokens prompt_ids finish_reason session seed numerics_id stats".split()))
        self.assertLessEqual(set("tok_s ttft_ms rounds draft_tokens accepted_tokens rewound_tokens mean_accepted "
                                 "accepted_per_pos draft_method speculation_off_reason".split()), set(a["stats"]))
        self.assertEqual(a["prompt_tokens"], len(a["prompt_ids"]))
        self.assertEqual(len(a["token_ids"]), 60)
        self.assertEqual(a["finish_reason"], "length")
        self.assertEqual(detokenize(a["token_ids"]), a["text"])
        self.assertEqual(a["stats"]["draft_method"], "none")
        self.assertEqual(a["stats"]["rounds"], 0)
        self.assertIn("<|im_start|>user\n" + PROMPT + "<|im_end|>\n<|im_start|>assistant\n", detokenize(a["prompt_ids"]))

    def test_stdout_is_the_answer_alone(self):
        status, out, errors = tandem("run", "-m", MODEL, "--max-tokens", "60", PROMPT)
        self.assertEqual(status, OK)
        self.assertEqual(out.decode(), self.plain["text"])
        self.assertRegex(errors, r"(?m)^tandem: 60 tokens, [0-9.]+ tok/s")
        self.assertRegex(errors, "the draft (guessed|had no guess)")
        self.assertIn("stopped at --max-tokens 60: -n raises it", errors)
        more = re.search(r"`tandem (session resume [0-9a-f]{8} --max-tokens 60)' goes on", errors)
        status, rest, _ = tandem(*more[1].split())
        self.assertEqual(status, OK)
        self.assertGreater(len(rest), 0)
        status, _, errors = tandem("run", "-m", MODEL, "--max-tokens", "2", "--budget", "0", PROMPT)
        self.assertEqual(status, OK)

    def test_prompt_from_stdin(self):
        self.assertEqual(answer("--max-tokens", "8", "-", stdin=PROMPT.encode() + b"\n")["prompt_ids"],
                         self.plain["prompt_ids"])

    def test_raw_and_system(self):
        text = "The capital of France is"
        raw = answer("--raw", "--max-tokens", "4", text)
        self.assertEqual(raw["prompt_ids"], tokenize(text.encode()))
        rendered = detokenize(self.plain["prompt_ids"])
        again = answer("--raw", "--max-tokens", "60", "-", stdin=rendered.encode())
        self.assertEqual(again["token_ids"], self.plain["token_ids"])
        literal = answer("--raw", "--no-special", "--max-tokens", "1", "<|im_end|>")
        self.assertEqual(literal["prompt_ids"], tokenize(b"<|im_end|>", "--no-special"))
        system = answer("--system", "Be brief.", "--max-tokens", "1", PROMPT)
        self.assertTrue(detokenize(system["prompt_ids"]).startswith("<|im_start|>system\nBe brief.<|im_end|>\n"))
        named = answer("--chat-template", "qwen2", "--max-tokens", "1", PROMPT)
        self.assertTrue(detokenize(named["prompt_ids"]).startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>"))
        zephyr = answer("--chat-template", "zephyr", "--max-tokens", "1", PROMPT)
        self.assertTrue(detokenize(zephyr["prompt_ids"]).startswith("<|user|>\n" + PROMPT + "<|im_end|>\n<|assistant|>"))
        user = answer("--max-tokens", "1", "<|im_end|>")
        self.assertEqual(user["prompt_ids"].count(2), self.plain["prompt_ids"].count(2))  # no injected token

    def test_same_seed_same_answer(self):
        first = answer("--temp", "0.8", "--max-tokens", "30", PROMPT)
        again = answer("--temp", "0.8", "--max-tokens", "30", "--seed", str(first["seed"]), "--draft", "none", PROMPT)
        self.assertEqual(first["token_ids"], again["token_ids"])
        other = answer("--temp", "0.8", "--max-tokens", "30", "--seed", str(first["seed"] + 1), PROMPT)
        self.assertNotEqual(first["token_ids"], other["token_ids"])

    def test_end_token_is_included(self):
        a = answer("What is 2+2? Answer with one number.", "--max-tokens", "100")
        self.assertEqual(a["finish_reason"], "stop")
        self.assertEqual(a["token_ids"][-1], 2)
        self.assertEqual(detokenize(a["token_ids"][:-1]), a["text"])

    def test_stop_strings(self):
        text, ids = self.plain["text"], self.plain["token_ids"]
        for begin, size in [(0, 3), (10, 1), (41, 9), (70, 25), (120, 2)]:
            stop = text[begin : begin + size]
            want = text[: text.index(stop)]
            for draft in ("none", "ngram"):
                with self.subTest(stop=stop, draft=draft):
                    a = answer(PROMPT, "--max-tokens", "60", "--stop", "never this", "--stop", stop, "--draft", draft)
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
        status, out, errors = tandem("run", "-v", "-m", MODEL, "--json", "--draft", "none", "--max-tokens", "60",
                                     "--repack-cache", str(folder), PROMPT)
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
        status, _, errors = tandem("batch", "-v", "-m", MODEL, "--max-tokens", "60", "--repack-cache", str(folder),
                                   str(source), str(target))
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

    def test_what_plain_decoding_would_give(self):
        """By the plain steps of the same answer: near to what an answer without a draft has."""
        poem = ["run", "-m", MODEL, "--max-tokens", "200", "Write a poem about the sea."]
        _, _, errors = tandem(*poem)
        said = float(re.search(r"plain decoding: about (\d+) tok/s", errors)[1])
        _, _, errors = tandem(*poem, "--draft", "none")
        plain = float(re.search(r"tokens, ([0-9.]+) tok/s; without a draft", errors)[1])
        self.assertTrue(plain / 4 < said < plain * 4, (said, plain))  # what else runs here changes both

    def test_the_seed_that_was_drawn(self):
        hot = ["run", "-m", MODEL, "--max-tokens", "24", "--temp", "1", PROMPT]
        _, out, errors = tandem(*hot)
        seed = re.search(r"its seed was drawn: --seed (\d+) gives the same again", errors)[1]
        _, again, errors = tandem(*hot, "--seed", seed)
        self.assertEqual(again, out)
        self.assertNotIn("seed", errors)


class Compare(Command):
    """The same prompt plainly and with the draft, by the same workers."""

    POEM = ("run", "-m", MODEL, "--compare", "--max-tokens", "100", "Write a poem about the sea.")

    def test_both_clocks(self):
        status, out, errors = tandem(*self.POEM)
        self.assertEqual(status, OK, errors)
        self.assertRegex(errors, r"(?m)^tandem: plainly:    100 tokens, [0-9.]+ tok/s$")
        self.assertRegex(errors, r"(?m)^tandem: with draft: 100 tokens, [0-9.]+ tok/s; [0-9.]+ times as fast; the draft guessed ")
        self.assertRegex(errors, r"(?m)^tandem: identical: yes$")
        self.assertEqual(out, tandem("run", *self.POEM[1:3], *self.POEM[4:])[1])  # once

    def test_sampled_json(self):
        status, out, errors = tandem(*self.POEM, "--temp", "0.8", "--json")
        self.assertEqual(status, OK, errors)
        both = json.loads(out)
        self.assertIs(both["identical"], True)
        self.assertIsNone(both["first_difference"])
        self.assertEqual(both["plain"]["token_ids"], both["draft"]["token_ids"])
        self.assertEqual(both["plain"]["seed"], both["draft"]["seed"])
        self.assertEqual([both[k]["stats"]["draft_method"] for k in ("plain", "draft")], ["none", "ngram"])
        self.assertEqual(both["plain"]["stats"]["rounds"], 0)
        self.assertGreater(both["speedup"], 0)

    def test_difference(self):
        """A target whose second verify is wrong: told with its place, and by the exit status."""
        recorded, given = self.folder / "plain.jsonl", self.folder / "in.jsonl"
        given.write_text(json.dumps({"id": 1, "prompt": self.POEM[-1]}) + "\n")
        status, _, errors = tandem("batch", "-m", MODEL, "--max-tokens", "100", "--draft", "none", str(given), str(recorded))
        self.assertEqual(status, OK, errors)
        env = dict(os.environ, TANDEM_FAULT="wrong-token:2")
        flags = (*self.POEM, "--draft", f"replay:{recorded}:1", "--pace", "lockstep", "--budget", "4")
        done = subprocess.run([TANDEM, *flags], capture_output=True, timeout=TIME_LIMIT, env=env)
        errors = done.stderr.decode()
        self.assertEqual(done.returncode, FAILED, errors)
        place = int(re.search(r"(?m)^tandem: identical: no, from token (\d+) of the answer on", errors)[1])
        both = json.loads(subprocess.run([TANDEM, *flags, "--json"], capture_output=True, timeout=TIME_LIMIT, env=env).stdout)
        self.assertIs(both["identical"], False)
        self.assertEqual(both["first_difference"], place - 1)
        plain, drafted = (both[k]["token_ids"] for k in ("plain", "draft"))
        self.assertEqual(plain[:place - 1], drafted[:place - 1])
        self.assertNotEqual(plain[place - 1], drafted[place - 1])

    def test_usage(self):
        self.refused(USAGE, "needs a draft", "run", "-m", MODEL, "--compare", "--draft", "none", PROMPT)
        self.refused(USAGE, "needs a draft", "run", "-m", MODEL, "--compare", "--budget", "0", PROMPT)


class Ends(Command):
    """However it ends: what there is, no orphan, no file left."""

    def start(self, *args, **more):
        env = dict(os.environ, TMPDIR=str(self.folder))
        self.process = subprocess.Popen([TANDEM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, **more)
        self.addCleanup(self.process.stdout.close)
        self.addCleanup(self.process.stderr.close)
        self.addCleanup(self.process.kill)
        return self.process

    def start_story(self, *flags):
        """A long answer that has begun; its programs."""
        p = self.start("run", "-m", MODEL, "--max-tokens", "3000", *flags, *LONG)
        self.first = os.read(p.stdout.fileno(), 1)
        self.assertTrue(self.first)
        self.assertEqual(len(children_of(p.pid)), 2)
        return p, children_of(p.pid)

    def nothing_left(self, children):
        self.assertTrue(wait_until(lambda: not any(map(is_running, children))), "orphans")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_signals(self):
        for number, status in [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED), (signal.SIGHUP, 129)]:
            with self.subTest(signal=number):
                p, children = self.start_story()
                p.send_signal(number)
                out, errors = p.communicate(timeout=TIME_LIMIT)
                self.assertEqual(p.returncode, status)
                (self.first + out).decode()
                self.assertIn("; interrupted; `tandem session resume ", errors.decode().replace("\ntandem: ", "; "))
                self.nothing_left(children)

    def test_interrupted_json(self):
        p = self.start("run", "-m", MODEL, "--max-tokens", "3000", "--json", *LONG)
        self.assertTrue(wait_until(lambda: len(children_of(p.pid)) == 2))
        time.sleep(1)
        p.send_signal(signal.SIGINT)
        out, _ = p.communicate(timeout=TIME_LIMIT)
        a = json.loads(out)
        self.assertEqual((p.returncode, a["finish_reason"]), (INTERRUPTED, "cancelled"))
        self.assertEqual(detokenize(a["token_ids"]).rstrip("\ufffd"), a["text"].rstrip("\ufffd"))

    def test_interrupted_before_it_began(self):
        p = self.start("run", "-m", MODEL, PROMPT)
        self.assertTrue(wait_until(lambda: children_of(p.pid)))
        children = children_of(p.pid)
        p.send_signal(signal.SIGINT)
        out, errors = p.communicate(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, INTERRUPTED, errors)
        self.nothing_left(children)

    def test_stopped_child_does_not_hold_it(self):
        p, children = self.start_story()
        for child in children:
            os.kill(child, signal.SIGSTOP)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, INTERRUPTED)
        self.nothing_left(children)

    def test_killed(self):
        p, children = self.start_story()
        os.kill(children[0], signal.SIGSTOP)  # even this one goes
        p.kill()
        p.wait(timeout=TIME_LIMIT)
        gone = wait_until(lambda: not any(map(is_running, children)))
        for child in filter(is_running, children):
            os.kill(child, signal.SIGKILL)
        self.assertTrue(gone, "orphans")

    def test_nobody_reads(self):
        p, children = self.start_story()
        p.stdout.close()
        p.wait(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, IO)
        errors = p.stderr.read()
        self.assertIn(b"cannot write", errors)
        self.assertIn(b"interrupted", errors)
        self.nothing_left(children)

    def test_slow_reader(self):
        """A reader that sleeps longer than a silent peer is waited for, with a full pipe: nothing is lost."""
        flags = ["run", "-m", MODEL, "--max-tokens", "300", *LONG]
        read_end, write_end = os.pipe()
        size = fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        os.write(write_end, bytes(size - 100))
        p = subprocess.Popen([TANDEM, *flags], stdout=write_end, stderr=subprocess.PIPE)
        self.addCleanup(p.stderr.close)
        os.close(write_end)
        time.sleep(12)
        self.assertIsNone(p.poll())
        with open(read_end, "rb") as f:
            out = f.read()
        self.assertEqual(p.wait(timeout=TIME_LIMIT), OK)
        self.assertNotIn(b"warning", p.stderr.read())
        self.assertEqual(out[size - 100 :], tandem(*flags)[1])

    def test_programs_that_die_are_started_again(self):
        p, children = self.start_story("--max-tokens", "400")
        for child in children:
            os.kill(child, signal.SIGKILL)
        out, errors = p.communicate(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, OK, errors)
        self.assertEqual(self.first + out, tandem("run", "-m", MODEL, "--max-tokens", "400", *LONG)[1])
        for name in (b"tandem-target died", b"tandem-draft died"):
            self.assertIn(name, errors)
        self.nothing_left(children)

    def test_target_that_keeps_dying(self):
        p, _ = self.start_story()
        deadline = time.monotonic() + 60
        while p.poll() is None and time.monotonic() < deadline:
            for child in children_of(p.pid):
                try:
                    if "tandem-target" in pathlib.Path(f"/proc/{child}/cmdline").read_text():
                        os.kill(child, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.05)
        out, errors = p.communicate(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, WORKER)
        self.assertEqual(errors.count(b"started again"), 3)
        self.assertIn(b"kept dying", errors)


class Bench(Command):
    """`tandem bench step` tells where a step's time goes: nothing of it is left out or counted twice."""

    ROWS, CONTEXT = (1, 3), 40

    def test_step(self):
        rows = ",".join(map(str, self.ROWS))
        args = ("bench", "step", "-m", MODEL, "--rows", rows, "--ctx", str(self.CONTEXT), "--repetitions", "2")
        status, out, errors = tandem(*args, "--json")
        self.assertEqual(status, OK, errors)
        r = json.loads(out)
        self.assertEqual(tuple(step["rows"] for step in r["steps"]), self.ROWS)
        self.assertEqual((r["context"], r["repetitions"]), (self.CONTEXT, 2))
        for step in r["steps"]:
            self.check_step(step, r)
        self.assertNotIn("commit", {op["op"] for op in r["steps"][0]["ops"] if op["us"]})  # a plain step copies nothing
        self.assertIn("commit", {op["op"] for op in r["steps"][1]["ops"] if op["us"]})
        status, out, errors = tandem(*args)
        self.assertEqual(status, OK, errors)
        for word in ("gate, up, swiglu", "whole step", "GB/s", *map(str, self.ROWS)):
            self.assertIn(word, out.decode())

    def check_step(self, step, r):
        ops = {op["op"]: op for op in step["ops"]}
        self.assertGreater(step["us"], 0)
        self.assertGreater(step["between_us"], 0)
        for name in ("norm", "linear q, k, v", "rope, store", "attention", "linear output", "gate, up, swiglu", "linear down", "head"):
            self.assertGreater(ops[name]["us"], 0, name)
        # The least time of all matrices together is at least that of reading the model's, once.
        least = sum(op["least_us"] for name, op in ops.items() if name.startswith("linear") or name in ("gate, up, swiglu", "head"))
        read = r["weight_bytes"] / r["read_gb_s"] / 1e3
        tensors = os.path.getsize(MODEL)  # with 2 % of other things
        self.assertLess(abs(r["weight_bytes"] / tensors - 1), 0.05)
        self.assertGreater(least, 0.99 * read)
        if step["rows"] == 1:
            self.assertLess(least, 1.05 * read + r["weight_bytes"] * 2 / r["multiply_gmac_s"] / 0.7 / 1e3)

    def test_without_its_program(self):
        alone = shutil.copy(TANDEM, self.folder)
        done = subprocess.run([alone, "bench", "step"], capture_output=True, env={"PATH": ""}, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, WORKER)
        self.assertIn("tandem-bench", done.stderr.decode())

    def test_a_model_that_is_none(self):
        bad = self.folder / "bad.gguf"
        bad.write_bytes(b"GGUF")
        self.refused(BAD_MODEL, "bad.gguf", "bench", "step", "-m", str(bad))


class Batch(Command):
    def run_batch(self, lines, *flags, status=OK):
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        source.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines) + b"\n")
        got, out, errors = tandem("batch", "-m", MODEL, *flags, str(source), str(target))
        self.assertEqual(got, status, errors)
        self.assertEqual(out, b"")
        return [json.loads(line) for line in target.read_bytes().splitlines()], errors

    def test_three_ways_to_ask(self):
        flags = ["--max-tokens", "24"]
        want = answer(PROMPT, *flags)
        lines = [{"id": "a", "prompt": PROMPT}, {"id": 7, "prompt_ids": want["prompt_ids"], "text": "ignored"},
                 {"id": "c", "messages": [{"role": "user", "content": PROMPT}]}] * 3
        for sessions in ("1", "4"):
            got, _ = self.run_batch(lines, *flags, "--sessions", sessions)
            self.assertEqual([x["id"] for x in got], ["a", 7, "c"] * 3)
            for x in got:
                self.assertEqual(x["token_ids"], want["token_ids"])
                self.assertEqual(x["text"], want["text"])
                self.assertEqual(x["finish_reason"], "length")

    def test_bad_lines_do_not_stop_the_others(self):
        good = {"id": "good", "prompt": PROMPT}
        bad = [b"no json", b"[1]", b'{"id": "\xff", "prompt": "x"}', {"prompt": "no id"}, {"id": [1], "prompt": "x"},
               {"id": 1}, {"id": 2, "prompt": "x", "prompt_ids": [1]}, {"id": 3, "prompt": ""}, {"id": 4, "prompt": 5},
               {"id": 5, "prompt_ids": []}, {"id": 6, "prompt_ids": [1, -1]}, {"id": 7, "prompt_ids": [49152]},
               {"id": 8, "messages": []}, {"id": 9, "messages": [{"role": "boss", "content": "x"}]},
               {"id": 10, "messages": [{"role": "user"}]}, {"id": 11, "prompt": "word " * 5000}, b'{"id": 12, "id": 12}',
               {"id": 13, "prompt": "x", "bugdet": 3}, {"id": 14, "prompt": "x", "budget": 65},
               {"id": 15, "prompt": "x", "draft": "ngram"}, {"id": 16, "prompt": "x", "max_tokens": 0},
               {"id": 17, "prompt": "x", "seed": -1}, {"id": 18, "prompt": "x", "force_single_token": 1}]
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
        self.assertEqual([x["id"] for x in got[9::2]], [None] + list(range(1, 12)) + [None] + list(range(13, 19)))
        self.assertIn('did you mean "budget"?', next(x["error"] for x in got if x["id"] == 13))

    def test_options_of_a_line(self):
        """They replace the flags' for that line alone."""
        plain = answer(PROMPT, "--max-tokens", "24")
        stop = plain["text"][20:25]
        table = [({}, ()), ({"temperature": 0.8, "seed": 7}, ("--temp", "0.8", "--seed", "7")),
                 ({"temperature": 1, "seed": 8, "top_k": 5}, ("--temp", "1", "--seed", "8", "--top-k", "5")),
                 ({"temperature": 1.5, "seed": 9, "top_p": 0.7}, ("--temp", "1.5", "--seed", "9", "--top-p", "0.7")),
                 ({"temperature": 1.5, "seed": 9, "min_p": 0.2}, ("--temp", "1.5", "--seed", "9", "--min-p", "0.2")),
                 ({"repeat_penalty": 1.3}, ("--repeat-penalty", "1.3")), ({"stop": stop}, ("--stop", stop)),
                 ({"stop": ["never this", stop]}, ("--stop", stop)), ({"stop": []}, ())]
        want = [answer(PROMPT, "--max-tokens", "24", *flags) for _, flags in table]
        lines = [{"id": i, "prompt": PROMPT, "max_tokens": 24, **options} for i, (options, _) in enumerate(table)]
        got, _ = self.run_batch(lines)
        for x, w in zip(got, want):
            self.assertEqual((x["token_ids"], x["text"], x["finish_reason"]), (w["token_ids"], w["text"], w["finish_reason"]), x["id"])
        self.assertEqual(len({tuple(x["token_ids"]) for x in got}), 7)  # each does something
        flags = ("--max-tokens", "24", "--temp", "2", "--top-k", "3", "--stop", plain["text"][4:7])
        off = {"temperature": 0, "top_k": 0, "stop": []}
        self.assertEqual(self.run_batch([{"id": 0, "prompt": PROMPT, **off}], *flags)[0][0]["token_ids"], plain["token_ids"])

    def test_bad_options_of_a_line(self):
        """One clear error names the line and the key."""
        bad = [(key, value) for key in ("temperature", "top_p", "min_p", "repeat_penalty")
               for value in (-0.5, 1e300, "1", None, True, [0.5])]
        bad += [("temperature", 100.5), ("top_p", 0), ("top_p", 1.5), ("min_p", 1), ("repeat_penalty", 0), ("repeat_penalty", 11),
                ("top_k", -1), ("top_k", 1.5), ("top_k", 1 << 40), ("top_k", "4"), ("stop", 5), ("stop", ""), ("stop", None),
                ("stop", ["a", 5]), ("stop", ["a", ""]), ("stop", ["a"] * 17), ("stop", "a" * 257), ("stop", "a\0b"),
                ("temprature", 1), ("max-tokens", 5), ("stops", ["a"])]
        lines = [{"id": i, "prompt": PROMPT, key: value} for i, (key, value) in enumerate(bad)]
        got, errors = self.run_batch(lines, "--max-tokens", "1", status=FAILED)
        for i, (x, (key, value)) in enumerate(zip(got, bad)):
            self.assertEqual((x["id"], x["finish_reason"]), (i, "error"), (key, value))
            self.assertIn(key, x["error"], value)
            self.assertNotIn("session", x, "nothing was begun for it")
            self.assertEqual(errors.count(f"line {i + 1}: {x['error']}\n"), 1, errors)
        for key, near in (("temprature", "temperature"), ("max-tokens", "max_tokens"), ("stops", "stop")):
            self.assertIn(f'did you mean "{near}"?', next(x["error"] for x, (k, _) in zip(got, bad) if k == key))

    def test_stdin_to_stdout(self):
        line = json.dumps({"id": 1, "prompt": PROMPT}).encode()
        status, out, errors = tandem("batch", "-m", MODEL, "--max-tokens", "4", "-", "-", stdin=b"\xef\xbb\xbf\n\n" + line)
        self.assertEqual(status, OK, errors)
        self.assertEqual(json.loads(out)["id"], 1)

    def test_files(self):
        self.refused(IO, "no_such", "batch", "-m", MODEL, "no_such.jsonl", "-")
        self.refused(INPUT, "no lines", "batch", "-m", MODEL, "-", "-", stdin=b"\n")
        self.refused(IO, "no_such", "batch", "-m", MODEL, "-", "/no_such/out.jsonl", stdin=b"{}")

    def test_the_same_file_twice(self):
        """The answers would replace the prompts: refused under every name, and the file stays as it is."""
        source, text = self.folder / "both.jsonl", json.dumps({"id": 1, "prompt": PROMPT}) + "\n"
        source.write_text(text)
        hard, soft = self.folder / "hard.jsonl", self.folder / "soft.jsonl"
        hard.hardlink_to(source)
        soft.symlink_to(source)
        around = self.folder / ".." / self.folder.name / "both.jsonl"
        for one, other in [(source, source), (source, hard), (soft, source), (hard, soft), (around, source), (source, around)]:
            self.refused(USAGE, "same file", "batch", "-m", MODEL, str(one), str(other))
            self.assertEqual(source.read_text(), text)
        with open(source, "rb") as stdin:
            done = subprocess.run([TANDEM, "batch", "-m", MODEL, "-", str(hard)], stdin=stdin, capture_output=True, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, USAGE, done.stderr)
        with open(source, "ab") as stdout:
            done = subprocess.run([TANDEM, "batch", "-m", MODEL, str(soft), "-"], stdout=stdout, stderr=subprocess.PIPE, timeout=TIME_LIMIT)
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
        got, _ = self.run_batch(lines, "--draft", f"replay:{recording}:1", "--max-tokens", "40", "--pace", "lockstep")
        for x, want in zip(got, plain):
            self.assertEqual(x["token_ids"], want["token_ids"])
            s = x["stats"]
            self.assertEqual(s["draft_method"], "replay")
            self.assertGreater(s["accepted_tokens"], 20)
            self.assertEqual(len(x["token_ids"]), s["forwards"] + s["accepted_tokens"])
            self.assertEqual(s["draft_tokens"], s["accepted_tokens"] + s["rewound_tokens"])

    def test_interrupted(self):
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        flag, text = LONG
        short = answer("What is 2+2? Answer with one number.", "--max-tokens", "1")["prompt_ids"]
        lines = [{"id": 0, "prompt_ids": short}] + [{"id": i, "prompt": text} for i in range(1, 9)]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        p = subprocess.Popen([TANDEM, "batch", "-m", MODEL, "--max-tokens", "3000", flag, str(source), str(target)],
                             stderr=subprocess.PIPE)
        self.addCleanup(p.stderr.close)
        self.assertTrue(wait_until(lambda: target.exists() and target.stat().st_size > 0, 120))
        children = children_of(p.pid)
        p.send_signal(signal.SIGINT)
        _, errors = p.communicate(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, INTERRUPTED)
        got = [json.loads(line) for line in target.read_bytes().splitlines()]
        self.assertEqual([x["id"] for x in got], list(range(len(got))))
        self.assertIn(got[0]["finish_reason"], ("stop", "length"))
        self.assertEqual({x["finish_reason"] for x in got[1:]}, {"cancelled"})
        self.assertTrue(wait_until(lambda: not any(map(is_running, children))), "orphans")


if __name__ == "__main__":
    unittest.main()
