"""`tandem run` without a prompt on a terminal: a conversation."""

import json
import os
import pty
import select
import signal
import subprocess
import termios
import time
import unittest

from support import DRAFT, MODEL, TANDEM, TARGET, TIME_LIMIT, Case, Running, children_of, is_running, wait_until

FLAGS = ("-m", MODEL, "--max-tokens", "24", "--ctx", "512")
READY = b"> "
WORKER_FAILED = 7  # exit status
STALL = 20.0  # seconds of a turn whose draft is gone: a session that waits for it would wait for ever


class Conversation:
    """A terminal on its stdin; what it says on stdout and stderr."""

    def __init__(self, *flags):
        self.keys, terminal = pty.openpty()
        quiet = termios.tcgetattr(terminal)
        quiet[3] &= ~termios.ECHO
        termios.tcsetattr(terminal, termios.TCSANOW, quiet)
        self.program = subprocess.Popen([TANDEM, "run", *FLAGS, *flags], stdin=terminal, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        self.terminal = terminal
        self.said()

    def said(self):
        """Up to the next prompt, without it."""
        text, until = b"", time.monotonic() + TIME_LIMIT
        while not (text == READY or text.endswith(b"\n" + READY)):
            assert time.monotonic() < until, text
            if select.select([self.program.stdout], [], [], 0.1)[0]:
                data = os.read(self.program.stdout.fileno(), 4096)
                assert data, text
                text += data
        return text[: -len(READY)].decode()

    def type(self, text):
        os.write(self.keys, text.encode())

    def say(self, line):
        self.type(line + "\n")
        return self.said().removesuffix("\n")

    def end(self, expected):
        status = self.program.wait(TIME_LIMIT)
        errors = self.program.stderr.read().decode()
        self.program.stdout.close()
        self.program.stderr.close()
        blocks = os.get_blocking(self.terminal)
        os.close(self.keys), os.close(self.terminal)
        assert blocks, "who uses the terminal next would be told to try again later"
        assert status == expected, (status, errors)
        return errors


class Chat(Case):
    def answers(self, *conversations):
        given, out = self.folder / "in.jsonl", self.folder / "out.jsonl"
        lines = [{"id": i, "messages": [{"role": r, "content": c} for r, c in m]} for i, m in enumerate(conversations)]
        given.write_text("".join(json.dumps(line) + "\n" for line in lines))
        subprocess.run([TANDEM, "batch", *FLAGS, given, out], check=True, capture_output=True, timeout=TIME_LIMIT)
        return [json.loads(line)["text"] for line in out.read_text().splitlines()]

    def test_turns(self):
        """Each message comes after all before it, its own answers included; /new forgets them."""
        chat = Conversation()
        first = chat.say("Name three colours.")
        second = chat.say("And which is the second?")
        self.assertEqual(chat.say("/new"), "")
        again = chat.say("And which is the second?")
        chat.type("\x04")
        chat.end(0)
        talk = [("user", "Name three colours."), ("assistant", first), ("user", "And which is the second?")]
        self.assertEqual([first, second, again], self.answers(talk[:1], talk, talk[2:]))
        self.assertNotEqual(second, again)

    def test_system_and_waiting_lines(self):
        chat = Conversation("--system", "You answer in one word.")
        chat.type("Hello\nAgain\n")
        talk = [("system", "You answer in one word."), ("user", "Hello")]
        first = chat.said().removesuffix("\n")
        self.assertEqual([first], self.answers(talk))
        self.assertEqual([chat.said().removesuffix("\n")], self.answers([*talk, ("assistant", first), ("user", "Again")]))
        chat.type("\x04")
        chat.end(0)

    def test_too_long(self):
        """What does not fit is said, and is no part of what follows."""
        chat = Conversation()
        chat.type("word " * 600 + "\n")
        chat.said()
        self.assertEqual([chat.say("Hello")], self.answers([("user", "Hello")]))
        chat.type("\x04")
        errors = chat.end(0)
        self.assertIn("/new begins anew", errors)

    def test_ends(self):
        for how, status in ((lambda c: c.program.send_signal(signal.SIGINT), 130), (lambda c: c.type("\x04"), 0)):
            chat = Conversation("--max-tokens", "400")
            children = children_of(chat.program.pid)
            self.assertEqual(len(children), 2)
            chat.type("Tell a very long story.\n")
            self.assertTrue(wait_until(lambda: select.select([chat.program.stdout], [], [], 0.1)[0]))
            how(chat)
            chat.end(status)
            self.assertTrue(wait_until(lambda: not any(map(is_running, children))))

    def test_workers_placed_by_hand(self):
        """Nothing is started; the draft dies between two turns; when the target leaves as well, --wait ends it."""
        endpoint = f"ipc://{self.folder}/o"
        workers = [Running(self.folder, program, "--orchestrator", endpoint, *flags) for program, *flags in
                   ((TARGET, "-m", MODEL, "--ctx", "512"), (DRAFT, "--draft", "ngram"))]
        for worker in workers:
            self.addCleanup(worker.close)
        target, draft = workers
        chat = Conversation("-v", "--listen", endpoint, "--wait", "2")
        self.assertEqual(children_of(chat.program.pid), [])
        first = chat.say("Name three colours.")
        self.assertIn("a draft is attached", target.errors)
        draft.signal(signal.SIGKILL)
        draft.end()
        moment = time.monotonic()
        second = chat.say("And which is the second?")
        self.assertLess(time.monotonic() - moment, STALL)
        talk = [("user", "Name three colours."), ("assistant", first), ("user", "And which is the second?")]
        self.assertEqual([first, second], self.answers(talk[:1], talk))
        target.signal(signal.SIGTERM)
        self.assertEqual(target.end(), 0, target.errors)
        errors = chat.end(WORKER_FAILED)
        self.assertEqual(errors.count("no target for 2 s"), 1, errors)
        self.assertEqual(errors.count("; draft ngram: "), 2, errors)

    def test_usage(self):
        for flag in ("--raw", "--json"):
            keys, terminal = pty.openpty()
            done = subprocess.run([TANDEM, "run", *FLAGS, flag], stdin=terminal, capture_output=True, timeout=TIME_LIMIT)
            os.close(keys), os.close(terminal)
            self.assertEqual(done.returncode, 2)
            self.assertIn(b"a conversation takes neither", done.stderr)


if __name__ == "__main__":
    unittest.main()
