"""How `tandem run` ends: by signals, deaths and readers."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import unittest

from command_line import INTERRUPTED, IO, LONG, OK, PROMPT, TERMINATED, WORKER, Command, detokenize, tandem
from support import (BIN, MODEL, SLOW, TANDEM, TIME_LIMIT, Running, child_named, children_of, is_running,
                     new_folder, thorough, wait_until)

BEGUN = 20  # tokens: an answer is under way
COMPARED = 400  # tokens of an answer that is interrupted later


class Ends(Command):
    """However it ends: what there is, no orphan, no file left."""

    def start(self, *args, env=None, **more):
        env = dict(os.environ, TMPDIR=str(self.folder), **(env or {}))
        self.process = subprocess.Popen(
            [TANDEM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, **more
        )
        self.addCleanup(self.process.stdout.close)
        self.addCleanup(self.process.stderr.close)
        self.addCleanup(self.process.kill)
        return self.process

    def start_beside(self, *flags):
        """A long answer, whose log and ledger lie elsewhere; how to look at the latter: [{"tokens": ...}]."""
        other = new_folder(self.addCleanup)
        ledger = str(other / "ledger")
        command = [TANDEM, "run", "-m", MODEL, "--ledger", ledger, "--max-tokens", "3000", *flags, *LONG]
        run = Running(other, *command, env={"TMPDIR": str(self.folder), **SLOW})
        self.addCleanup(run.close)
        return run, lambda: json.loads(tandem("session", "list", "--json", "--ledger", ledger)[1] or "[]")

    def start_story(self, *flags):
        """A long answer that has begun; its programs."""
        p = self.start("run", "-m", MODEL, "--max-tokens", "3000", *flags, *LONG, env=SLOW)
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
        run, sessions = self.start_beside("--json")
        wait_until(lambda: any(s["tokens"] > BEGUN for s in sessions()), lambda: run.errors)
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), INTERRUPTED, run.errors)
        a = json.loads(run.out)
        self.assertEqual(a["finish_reason"], "cancelled")
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
        """A pipe that is full until the answer is complete holds nothing up, and nothing is lost."""
        ledger = str(new_folder(self.addCleanup) / "ledger")
        flags = ["run", "-m", MODEL, "--ledger", ledger, "--max-tokens", "300", *LONG]
        read_end, write_end = os.pipe()
        size = fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        os.write(write_end, bytes(size - 100))
        p = subprocess.Popen([TANDEM, *flags], stdout=write_end, stderr=subprocess.PIPE)
        self.addCleanup(p.stderr.close)
        os.close(write_end)
        self.addCleanup(p.kill)
        listed = ("session", "list", "--json", "--ledger", ledger)
        complete = b'"state":"length"'
        wait_until(lambda: complete in tandem(*listed)[1].replace(b" ", b""), "the answer is not complete")
        self.assertIsNone(p.poll())
        with open(read_end, "rb") as f:
            out = f.read()
        self.assertEqual(p.wait(timeout=TIME_LIMIT), OK)
        self.assertNotIn(b"warning", p.stderr.read())
        self.assertEqual(out[size - 100 :], tandem(*flags)[1])

    def test_programs_that_die_are_started_again(self):
        run, _ = self.start_beside()
        wait_until(lambda: run.out, lambda: run.errors)
        for child in children_of(run.pid):
            os.kill(child, signal.SIGKILL)
        for name in ("tandem-target died", "tandem-draft died"):
            wait_until(lambda: name in run.errors, lambda: run.errors)
        whole = tandem("run", "-m", MODEL, "--max-tokens", str(COMPARED), *LONG)[1]
        wait_until(lambda: len(run.out) >= len(whole), lambda: run.errors)
        children = children_of(run.pid)
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), INTERRUPTED, run.errors)
        self.assertEqual(run.out[:len(whole)], whole)
        self.nothing_left(children)

    @thorough
    def test_a_target_that_keeps_dying_ends_it(self):
        p, _ = self.start_story()

        def ended():
            with contextlib.suppress(ProcessLookupError):
                if target := child_named(p.pid, "tandem-target"):
                    os.kill(target, signal.SIGKILL)
            return p.poll() is not None

        wait_until(ended, "it goes on")
        out, errors = p.communicate(timeout=TIME_LIMIT)
        self.assertEqual(p.returncode, WORKER)
        self.assertEqual(errors.count(b"started again"), 5)
        self.assertIn(b"kept dying", errors)


class Awaited(Command):
    """Workers that do nothing, as where a file system has stopped to respond."""

    def start(self, asleep, *args):
        for name in ("tandem", "tandem-target", "tandem-draft"):
            shutil.copy(BIN / name, self.folder)
        (self.folder / asleep).write_text("#!/bin/sh\nexec sleep 1000\n")
        command = [str(self.folder / "tandem"), "run", "-m", MODEL, "--ledger", "none", *args]
        run = Running(self.folder, *command)
        self.addCleanup(run.close)
        return run

    def test_a_target_that_does_not_come_is_told_of(self):
        run = self.start("tandem-target", PROMPT)
        wait_until(lambda: "waiting for tandem-target" in run.errors, lambda: run.errors)
        self.assertIn("does the file system of " + MODEL, run.errors)
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), INTERRUPTED, run.errors)

    def test_an_answer_goes_on_without_a_draft_that_does_not_come(self):
        run = self.start("tandem-draft", "--max-tokens", "100000", "--ctx", "8192", *LONG)
        wait_until(lambda: "answers go on without it" in run.errors, lambda: run.errors)
        size = len(run.out)
        self.assertGreater(size, 0)
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), INTERRUPTED, run.errors)
        self.assertNotIn("tandem-target does not come", run.errors)

    @thorough
    def test_a_target_that_does_not_come_is_given_up(self):
        run = self.start("tandem-target", PROMPT)
        self.assertEqual(run.end(), WORKER, run.errors)
        self.assertEqual(run.out, b"")
        self.assertIn("tandem-target does not come: it has neither read nor computed for 60 s", run.errors)


if __name__ == "__main__":
    unittest.main()
