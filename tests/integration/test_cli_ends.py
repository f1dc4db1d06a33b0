"""How `tandem run` ends: by signals, deaths and readers."""

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

from command_line import INTERRUPTED, IO, LONG, OK, PROMPT, TERMINATED, WORKER, Command, detokenize, tandem
from support import MODEL, TANDEM, TIME_LIMIT, children_of, is_running, wait_until


class Ends(Command):
    """However it ends: what there is, no orphan, no file left."""

    def start(self, *args, **more):
        env = dict(os.environ, TMPDIR=str(self.folder))
        self.process = subprocess.Popen(
            [TANDEM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, **more
        )
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
        wait_until(lambda: not any(map(is_running, children)), "orphans")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_signals_interrupt_an_answer(self):
        for number, status in [
            (signal.SIGINT, INTERRUPTED),
            (signal.SIGTERM, TERMINATED),
            (signal.SIGHUP, 129),
        ]:
            with self.subTest(signal=number):
                p, children = self.start_story()
                p.send_signal(number)
                out, errors = p.communicate(timeout=TIME_LIMIT)
                self.assertEqual(p.returncode, status)
                (self.first + out).decode()
                self.assertIn(
                    "; interrupted; `tandem session resume ", errors.decode().replace("\ntandem: ", "; ")
                )
                self.nothing_left(children)

    def test_an_interrupted_answer_is_still_an_object(self):
        p = self.start("run", "-m", MODEL, "--max-tokens", "3000", "--json", *LONG)
        wait_until(lambda: len(children_of(p.pid)) == 2)
        time.sleep(1)
        p.send_signal(signal.SIGINT)
        out, _ = p.communicate(timeout=TIME_LIMIT)
        a = json.loads(out)
        self.assertEqual((p.returncode, a["finish_reason"]), (INTERRUPTED, "cancelled"))
        self.assertEqual(detokenize(a["token_ids"]).rstrip("\ufffd"), a["text"].rstrip("\ufffd"))

    def test_a_signal_may_come_before_the_answer(self):
        p = self.start("run", "-m", MODEL, PROMPT)
        wait_until(lambda: children_of(p.pid))
        children = children_of(p.pid)
        p.send_signal(signal.SIGINT)
        out, errors = p.communicate(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, INTERRUPTED, errors)
        self.nothing_left(children)

    def test_a_stopped_child_does_not_hold_it(self):
        p, children = self.start_story()
        for child in children:
            os.kill(child, signal.SIGSTOP)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, INTERRUPTED)
        self.nothing_left(children)

    def test_killed_it_leaves_no_orphans(self):
        p, children = self.start_story()
        os.kill(children[0], signal.SIGSTOP)  # even this one goes
        p.kill()
        p.wait(timeout=TIME_LIMIT)
        wait_until(lambda: not any(map(is_running, children)), "orphans")

    def test_an_output_that_nobody_reads_ends_it(self):
        p, children = self.start_story()
        p.stdout.close()
        p.wait(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, IO)
        errors = p.stderr.read()
        self.assertIn(b"cannot write", errors)
        self.assertIn(b"interrupted", errors)
        self.nothing_left(children)

    def test_a_slow_reader_loses_nothing(self):
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

    def test_a_target_that_keeps_dying_ends_it(self):
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
        self.assertEqual(errors.count(b"started again"), 5)
        self.assertIn(b"kept dying", errors)


if __name__ == "__main__":
    unittest.main()
