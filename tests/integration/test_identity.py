"""Which model a file is, wherever in it two models differ: for a session that goes on, and for a target that
registers."""

import json
import os
import pathlib
import re
import shutil
import signal
import unittest

from command_line import BAD_MODEL, OK, PROMPT, TERMINATED, Command, tandem
from placed import Served
from support import MODEL, STATE, TANDEM, TARGET, Running, wait_until

REFUSED = 5
SHORT = ["--threads", "1", "--draft", "none", "--max-tokens", "4"]


class Identity(Command):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "m.gguf"
        shutil.copyfile(MODEL, self.model)
        self.ledger = ["--ledger", str(self.folder / "ledger")]
        self.path = str(self.model)

    def change(self, path=None):
        """One bit amid a large tensor, where no sample is taken; a second time takes it back."""
        with open(path or self.model, "r+b") as f:
            middle = os.fstat(f.fileno()).st_size // 2
            f.seek(middle)
            byte = f.read(1)[0]
            f.seek(middle)
            f.write(bytes([byte ^ 1]))

    def other(self):
        other = self.folder / "other.gguf"
        shutil.copyfile(MODEL, other)
        self.change(other)
        return str(other)

    def good(self, *args):
        status, out, errors = tandem(*args)
        self.assertEqual(status, OK, errors)
        return out

    def hash_of(self, path):
        checks = json.loads(self.good("doctor", "-m", path, "--json"))["checks"]
        return next(c["hash"] for c in checks if "hash" in c)

    def test_a_session_goes_on_with_its_own_model_alone(self):
        self.good("run", "-m", self.path, *SHORT, *self.ledger, PROMPT)
        listed = json.loads(self.good("session", "list", "--json", *self.ledger))
        number = listed[0]["session"]
        self.change()
        resume = ["session", "resume", number, *self.ledger, "--max-tokens", "4"]
        self.refused(BAD_MODEL, f"is not the model of session {number}, or was changed since", *resume)
        self.refused(BAD_MODEL, f"{self.other()} is not the model", *resume, "-m", self.other())
        shown = json.loads(self.good("session", "show", number, *self.ledger, "--json"))
        self.assertIsNone(shown.get("text"))
        self.assertNotEqual(shown["model_fingerprint"], self.hash_of(self.path))
        self.change()
        self.assertEqual(shown["model_fingerprint"], self.hash_of(self.path))
        self.good(*resume)

    def test_a_target_with_another_model_is_not_taken(self):
        served = Served(self, "--ctx", "1024")
        flags = ["--threads", "1", "--orchestrator", served.endpoint]
        wrong = Running(self.folder, TARGET, "-m", self.other(), *flags)
        self.addCleanup(wrong.close)
        self.assertEqual(wrong.end(), REFUSED, wrong.errors)
        self.assertIn("another model is served there", wrong.errors)
        wait_until(lambda: "a target was not taken: another model" in served.errors, lambda: served.errors)
        right = Running(self.folder, TARGET, "-m", MODEL, *flags)
        self.addCleanup(right.close)
        served.ask([{"prompt": PROMPT, "max_tokens": 4}])
        self.assertEqual(len(served.wait(1)[0]["token_ids"]), 4)
        served.end()

    def test_a_signal_ends_the_reading(self):
        os.truncate(self.model, 1 << 40)  # a hole behind it, which takes minutes
        args = ["serve-workers", "-m", self.path, "--listen", f"ipc://{self.folder}/o", "--ledger", "none"]
        program = Running(self.folder, TANDEM, *args)
        self.addCleanup(program.close)

        def read():  # KiB of files that it has touched
            status = pathlib.Path(f"/proc/{program.pid}/status").read_text()
            return int(re.search(r"RssFile:\s*(\d+)", status)[1])

        wait_until(lambda: read() > 1 << 19, lambda: program.errors)
        program.signal(signal.SIGTERM)
        self.assertEqual(program.end(), TERMINATED, program.errors)

    def test_what_was_read_once_is_remembered(self):
        folder = pathlib.Path(STATE, "tandem/hashes")
        self.good("run", "-m", MODEL, *SHORT, PROMPT)
        name = f"{os.stat(MODEL).st_dev:x}-{os.stat(MODEL).st_ino:x}"
        line = (folder / name).read_text()
        self.assertIn(f" {os.stat(MODEL).st_size} {os.stat(MODEL).st_mtime_ns} ", line)
        self.assertIn(f" {self.hash_of(MODEL)} ", line)
        self.assertFalse((folder / f"{os.stat(self.path).st_dev:x}-{os.stat(self.path).st_ino:x}").exists())


if __name__ == "__main__":
    unittest.main()
