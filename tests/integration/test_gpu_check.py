"""scripts/gpu_check.py, which runs on machines with a GPU alone, over a device that every machine has."""

import os
import subprocess
import sys
import unittest

from support import BIN, ROOT, Case, thorough


@thorough
class GpuCheck(Case):
    def check(self, device, *flags):
        """(exit status, the table's lines by what they are about)"""
        env = dict(os.environ, BIN=str(BIN.resolve()), DEVICE=device)
        script = str(ROOT / "scripts/gpu_check.py")
        command = [sys.executable, script, "--prompts", "2", "--tokens", "16", *flags]
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=self.folder)
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
        self.assertEqual(done.stderr, "")
        return done.returncode, {c[0]: c[1:] for c in cells if len(c) == 4 and c[3] != ""}

    def test_a_good_device_passes(self):
        status, lines = self.check("far:cpu", "--only", "answers")
        self.assertEqual(status, 0, lines)
        seen = "0 of 2 answers differ from the CPU's"
        self.assertEqual(lines["T = 0.8, 8 sessions, ngram"], [seen, "0", "ok"])

    def test_the_default_draft_is_compared_with_plain_decoding(self):
        status, lines = self.check("far:cpu", "--only", "head")
        self.assertEqual(status, 0, lines)
        whats = ["default draft on the CPU, over plain", "default draft on far:cpu too, over plain"]
        self.assertEqual([what for what in lines if what.startswith("default")], whats)
        for what in whats:
            self.assertRegex(lines[what][0], r"^\d+\.\d\d \(\d+ tok/s\); 0 answers differ$")
            self.assertEqual(lines[what][1:], ["0", "ok"])  # how fast it is to be is said of GPUs alone

    def test_a_device_that_fails_is_told(self):
        status, lines = self.check("far:no", "--only", "answers")
        self.assertEqual(status, 1, lines)
        self.assertEqual(lines["greedy, plain"][2], "FAILED")
        status, lines = self.check("far:no", "--only", "head")
        self.assertEqual(status, 1, lines)
        self.assertEqual(lines["default draft on the CPU, over plain"][2], "FAILED")


if __name__ == "__main__":
    unittest.main()
