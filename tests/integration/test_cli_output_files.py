"""No command writes over what it reads, or over what a person would lose with it: under whatever name."""

import json
import os
import subprocess
import unittest

from command_line import OK, PROMPT, USAGE, Command, answer, tandem
from support import DRAFT, MODEL, TANDEM, TARGET, TIME_LIMIT

READ = "this command reads"
SHORT = ["--max-tokens", "4"]


class OutputFiles(Command):
    def setUp(self):
        super().setUp()
        self.state = self.folder / "state/tandem"
        self.ledger = self.state / "ledger.sqlite"
        folders = {"XDG_STATE_HOME": str(self.state.parent), "XDG_CONFIG_HOME": str(self.folder)}
        self.env = os.environ | folders
        self.requests = self.folder / "q.jsonl"
        self.requests.write_text(json.dumps({"prompt": PROMPT}) + "\n")

    def keep_a_session(self):
        status, _, errors = tandem("run", "-m", MODEL, *SHORT, PROMPT, env=self.env)
        self.assertEqual(status, OK, errors)
        self.assertTrue(self.ledger.stat().st_size)

    def sessions(self):
        status, out, errors = tandem("session", "list", "--json", env=self.env)
        self.assertEqual(status, OK, errors)
        return len(json.loads(out))

    def batch(self, out, *flags):
        files = str(self.requests), str(out)
        self.refused(USAGE, READ, "batch", "-m", MODEL, *SHORT, *flags, *files, env=self.env)

    def test_the_ledger_stays(self):
        self.keep_a_session()
        soft = self.folder / "soft"
        soft.symlink_to(self.ledger)
        for out in (self.ledger, soft, self.state / "../tandem/ledger.sqlite"):
            self.batch(out)  # which keeps no ledger of its own
            self.refused(USAGE, READ, "run", "-m", MODEL, *SHORT, f"--trace={out}", PROMPT, env=self.env)
            self.refused(USAGE, READ, "session", "export", "--all", "--output", str(out), env=self.env)
        for suffix in ("-wal", "-shm", "-owners", "-journal"):
            self.batch(f"{self.ledger}{suffix}")
            self.batch(f"{soft}{suffix}", "--ledger", str(soft))
        for name in (self.ledger, f"{self.ledger}-owners"):
            with open(name, "ab") as stdout:
                done = subprocess.run(
                    [TANDEM, "session", "export", "--all"],
                    stdout=stdout,
                    stderr=subprocess.PIPE,
                    env=self.env,
                    timeout=TIME_LIMIT,
                )
            self.assertEqual(done.returncode, USAGE, done.stderr)
        self.assertEqual(self.sessions(), 1)

    def test_a_ledger_that_is_made_now_stays_too(self):
        fresh = self.folder / "fresh.sqlite"
        self.batch(fresh, "--ledger", str(fresh))
        self.batch(f"{fresh}-wal", "--ledger", str(fresh))
        self.assertFalse(fresh.exists())

    def test_flags_of_a_file_and_keys_stay(self):
        config = self.folder / "flags.yaml"
        config.write_text("max-tokens: 4\n")
        self.batch(config, "--config", str(config))
        self.assertEqual(config.read_text(), "max-tokens: 4\n")
        keys = self.folder / "keys"
        status, _, errors = tandem("keygen", "--keys", str(keys), env=self.env)
        self.assertEqual(status, OK, errors)
        before = {path: path.read_bytes() for path in keys.iterdir()}
        self.assertGreaterEqual(len(before), 3)
        recording = self.folder / "recording.jsonl"
        recording.write_text(json.dumps(answer("--draft", "none", *SHORT, PROMPT)) + "\n")
        text = recording.read_text()
        here = ["--orchestrator", f"ipc://{self.folder}/nobody"]
        for program, flags, out in [
            (TARGET, ["-m", MODEL, "--keys", str(keys)], keys / "target.key"),
            (TARGET, ["-m", MODEL], MODEL),
            (DRAFT, ["--keys", str(keys)], keys / "draft.key"),
            (DRAFT, ["--draft", f"replay:{recording}:0.5:1"], recording),
        ]:
            done = subprocess.run(
                [program, *here, *flags, "--trace", str(out)],
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT,
            )
            self.assertNotEqual(done.returncode, OK)
            self.assertIn(READ, done.stderr)
        self.assertEqual({path: path.read_bytes() for path in keys.iterdir()}, before)
        self.assertEqual(recording.read_text(), text)

    def test_stdin_is_not_added_to_while_it_is_read(self):
        """`tandem ... <F >>F` would read what it has just written, for ever."""
        self.keep_a_session()
        status, exported, _ = tandem("session", "export", "--all", env=self.env)
        self.assertEqual(status, OK)
        for args, content in [
            (["run", "-m", MODEL, *SHORT, "-"], b"Why?"),
            (["tokenize", "-m", MODEL], b"some words"),
            (["detokenize", "-m", MODEL], b"[1, 2, 3]"),
            (["session", "import", "-"], exported),
            (["session", "import", "FILE"], exported),
        ]:
            both = self.folder / "both"
            both.write_bytes(content)
            with open(both, "rb") as stdin, open(both, "ab") as stdout:
                done = subprocess.run(
                    [TANDEM, *(str(both) if x == "FILE" else x for x in args)],
                    stdin=subprocess.DEVNULL if "FILE" in args else stdin,
                    stdout=stdout,
                    stderr=subprocess.PIPE,
                    env=self.env,
                    timeout=TIME_LIMIT,
                )
            self.assertEqual(done.returncode, USAGE, (args, done.stderr))
            self.assertEqual(both.read_bytes(), content, args)


if __name__ == "__main__":
    unittest.main()
