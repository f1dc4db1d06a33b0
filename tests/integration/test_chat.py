"""`tandem run` without a prompt on a terminal: a conversation."""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import termios
import textwrap
import unittest

from support import (
    DRAFT, MODEL, TANDEM, TARGET, TIME_LIMIT, Case, Running, child_named, children_of, is_running,
    thorough, wait_until, whole_model)

FLAGS = ("-m", MODEL, "--max-tokens", "24", "--ctx", "512")
READY = b"> "
WORKER_FAILED, INTERRUPTED = 7, 130  # exit statuses
STORY = ("--max-tokens", "3000", "--ctx", "4096")  # answers that no machine has given before a test interrupts them


class Terminal:
    """A pair of terminal ends, and the program at one of them; it ends with the test."""

    def __init__(self, case):
        self.keys, self.terminal = pty.openpty()
        self.program, self.ends = None, [self.keys, self.terminal]
        case.addCleanup(self.close)

    def close(self):
        if self.program and self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        if self.program and self.program.stdout:
            self.program.stdout.close()
        while self.ends:
            os.close(self.ends.pop())

    def type(self, text):
        os.write(self.keys, text.encode())


class Conversation(Terminal):
    """A terminal on its stdin alone; what it says on stdout and stderr."""

    def __init__(self, case, *flags):
        super().__init__(case)
        terminal, self.log = self.terminal, case.folder / "chat.log"
        quiet = termios.tcgetattr(terminal)
        quiet[3] &= ~termios.ECHO
        termios.tcsetattr(terminal, termios.TCSANOW, quiet)
        with open(self.log, "wb") as log:
            self.program = subprocess.Popen([TANDEM, "run", *FLAGS, *flags], stdin=terminal, stdout=subprocess.PIPE,
                                            stderr=log)
        self.said()

    @property
    def errors(self):
        return self.log.read_text("utf-8", "replace")

    def said(self):
        """Up to the next prompt, without it. What comes after that is left: an answer to what was typed before."""
        text = bytearray()

        def ready():
            while select.select([self.program.stdout], [], [], 0.1)[0]:
                data = os.read(self.program.stdout.fileno(), 1)
                assert data, (text, self.errors)
                text.extend(data)
                if text == READY or text.endswith(b"\n" + READY):
                    return True
            return False

        wait_until(ready, lambda: (text, self.errors), TIME_LIMIT)
        return text[: -len(READY)].decode()

    def say(self, line):
        self.type(line + "\n")
        return self.said().removesuffix("\n")

    def end(self, expected):
        status = self.program.wait(TIME_LIMIT)
        assert os.get_blocking(self.terminal), "who uses the terminal next would be told to try again later"
        assert status == expected, (status, self.errors)
        self.close()
        return self.errors


class Talk(Terminal):
    """A person at a terminal: what is typed, what the screen says (`screen`), and the answers alone (`out`), which go
    elsewhere unless `whole`."""

    LIVE_LINE = rb"\x1b7.*?\x1b8"  # stands below the text, and is erased
    PROGRESS = rb"\r[a-z-]+: [a-z ]+: +\d+ %"  # of a start that takes long; rewritten in place, then erased
    ESCAPES = re.compile(LIVE_LINE + rb"|" + PROGRESS + rb"|\x1b\[[0-9;?]*[A-Za-z~]|\x1b[=>DM]|\r")

    def __init__(self, case, *flags, whole=False, env=None):
        super().__init__(case)
        terminal = self.terminal
        self.before = termios.tcgetattr(terminal)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))

        def own_terminal():  # so that Ctrl-C is a signal
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

        self.program = subprocess.Popen([TANDEM, "run", *FLAGS, *flags], stdin=terminal, stderr=terminal,
                                        stdout=terminal if whole else subprocess.PIPE, preexec_fn=own_terminal,
                                        env=dict(os.environ, TERM="xterm", LC_ALL="C.UTF-8", **(env or {})))
        self.raw, self.out, self.seen = b"", b"", 0
        self.ready()

    @property
    def screen(self):
        return self.ESCAPES.sub(b"", self.raw).decode()

    def look(self, seconds=0.05):
        sources = [self.keys] + ([self.program.stdout] if self.program.stdout else [])
        for source in select.select(sources, [], [], seconds)[0]:
            try:
                data = os.read(source if source == self.keys else source.fileno(), 65536)
            except OSError:
                data = b""
            if source == self.keys:
                self.raw += data
            else:
                self.out += data

    def until(self, condition):
        wait_until(lambda: condition() or self.look(), lambda: (self.screen[-2000:], self.out[-500:]))

    def ready(self, prompt="> "):
        """Until the prompt is there again: what the screen has said since the last time."""
        begin = "\n" if prompt == READY.decode() else ""
        self.until(lambda: self.screen[self.seen:].endswith(begin + prompt))
        text, self.seen = self.screen[self.seen:], len(self.screen)
        return text

    def say(self, line, prompt="> "):
        """One line, and its answer."""
        start = len(self.out)
        self.type(line + "\r")
        told = self.ready(prompt)
        self.look()
        self.told = told
        return self.out[start:].decode().removesuffix("\n")

    def begun(self):
        """Some of an answer is here."""
        start = len(self.out)
        self.until(lambda: len(self.out) > start)

    @property
    def echoes(self):
        return bool(termios.tcgetattr(self.terminal)[3] & termios.ECHO)

    def end(self, expected=0):
        self.until(lambda: self.program.poll() is not None)
        self.look(0)
        assert self.program.returncode == expected, (self.program.returncode, self.screen[-2000:])
        assert termios.tcgetattr(self.terminal) == self.before, "the terminal is not as it was"
        assert os.get_blocking(self.terminal)
        self.close()
        return self.screen


class Chat(Case):
    def answers(self, *conversations, flags=()):
        given, out = self.folder / "in.jsonl", self.folder / "out.jsonl"
        lines = [{"id": i, "messages": [{"role": r, "content": c} for r, c in m]} for i, m in enumerate(conversations)]
        given.write_text("".join(json.dumps(line) + "\n" for line in lines))
        subprocess.run([TANDEM, "batch", *FLAGS, *flags, given, out], check=True, capture_output=True, timeout=TIME_LIMIT)
        return [json.loads(line)["text"] for line in out.read_text().splitlines()]

    # What goes to the model.

    def test_messages(self):
        """Turns, lines longer than a terminal's own, pastes, lines that go on, files: as a batch would have it."""
        wide = ("--ctx", "4096", "--max-tokens", "12")
        note = self.folder / "a note.txt"
        note.write_text("The sky is green today.\n")
        long = "word " * 900 + "What was that?"
        messages = [(long, long), ("\x1b[200~First line\rsecond \u00e4\u00f6\x1b[201~", "First line\nsecond \u00e4\u00f6"),
                    ("one \\\rtwo", "one \ntwo")]
        talk, said, expected = Talk(self, *wide), [], []
        for typed, meant in messages:
            said.append(("user", meant))
            expected.append(list(said))
            said.append(("assistant", talk.say(typed)))
        self.assertEqual(talk.say(f"/read {note}"), "")
        self.assertIn("23 bytes", talk.told)
        said.append(("user", "The sky is green today.\n\nWhich colour?"))
        expected.append(list(said))
        said.append(("assistant", talk.say("Which colour?")))
        self.assertEqual(talk.say("/clear"), "")
        expected.append([("user", "Hello")])
        last = talk.say("Hello")
        talk.type("\x04")
        talk.end()
        got = [text for role, text in said if role == "assistant"] + [last]
        self.assertEqual(got, self.answers(*expected, flags=wide))

    def test_commands(self):
        talk, absent = Talk(self, "--temp", "1", "--seed", "7"), self.folder / "absent"
        self.assertEqual(talk.say("/usr/bin is what?"), "")
        self.assertIn("there is no command /usr/bin: /help tells them", talk.told)
        for command, reply in (("/regen", "no answer yet"), ("/continue", "no answer yet"), ("/read", "which? /read FILE"),
                               (f"/read {absent}", f"cannot read {absent}"), ("/help", "/stats"), ("", ""), ("/stats", "0 answers")):
            self.assertEqual(talk.say(command), "")
            self.assertIn(reply, talk.told)
        first = talk.say("Tell me about the sea.")
        self.assertRegex(talk.told, r"24 tokens, too few to time.*; cut at 24 tokens \(length\): /continue goes on")
        second = talk.say("/regen")
        self.assertNotEqual(first, second)
        talk.say("/stats")
        self.assertRegex(talk.told, r"2 answers: 48 tokens(, [0-9.]+ tok/s)?; the draft guessed \d+ of \d+ right")
        self.assertRegex(talk.told, r"\d+ of the context's 512 tokens are used")
        talk.say("/exit", prompt="")
        talk.end()
        sea = [("user", "Tell me about the sea.")]
        self.assertEqual([first], self.answers(sea, flags=("--temp", "1", "--seed", "7")))
        self.assertEqual([second], self.answers(sea, flags=("--temp", "1", "--seed", "8")))

    def test_continue(self):
        """An answer that was cut goes on as if it had been allowed more from the beginning."""
        hot = ("--temp", "0.9", "--seed", "5", "--repeat-penalty", "1.1")
        sea = [("user", "Tell me a very long story about the sea.")]
        ledger = str(self.folder / "ledger")
        talk = Talk(self, *hot, "--ledger", ledger)
        text = talk.say(sea[0][1]) + talk.say("/continue") + talk.say("/continue")
        whole, = self.answers(sea, flags=(*hot, "--max-tokens", "72"))
        self.assertEqual(text, whole)
        self.assertNotIn("warning", talk.screen)
        talk.say("And then?")
        talk.type("\x04")
        talk.end()
        rows = json.loads(subprocess.run([TANDEM, "session", "list", "--json", "--ledger", ledger], check=True,
                                         capture_output=True).stdout)
        self.assertEqual(len(rows), 2)  # one answer is one session, however often it went on
        self.assertEqual(self.answers([*sea, ("assistant", whole), ("user", "And then?")], flags=hot),
                         [talk.out.decode()[len(whole) + 3:].removesuffix("\n")])

    def test_continue_without_a_ledger(self):
        talk = Talk(self, "--ledger", "none")
        sea = [("user", "Tell me a very long story about the sea.")]
        text = talk.say(sea[0][1]) + talk.say("/continue")
        self.assertEqual([text], self.answers(sea, flags=("--max-tokens", "48")))
        talk.type("\x04")
        talk.end()

    def test_full_context(self):
        """Old turns go if the user agrees; the system message stays. If not, nothing was said."""
        system = ("system", "You are brief.")
        flags = ("--ctx", "100", "--system", system[1])
        talk, words = Talk(self, *flags), "one two three four five six seven eight nine ten"
        first = talk.say(f"Say {words}.")
        talk.say(f"Now say {words}, again and again.", prompt="(y/n) ")
        self.assertIn("too few of the context's 100", talk.told)
        for line, told in (("perhaps", ""), ("", ""), ("/help", "/stats"), ("/stats", "1 answer: "), ("/wrong", "no command /wrong"),
                           ("/regen", "y or n first"), (f"/read {__file__}", "y or n first")):
            self.assertEqual(talk.say(line, prompt="(y/n) "), "")
            self.assertIn(told, talk.told)
        self.assertEqual(talk.say("n"), "")
        self.assertIn("not sent", talk.told)
        talk.say(f"Now say {words}, again and again.", prompt="(y/n) ")
        second = talk.say("y")
        talk.type("\x04")
        talk.end()
        self.assertEqual([first, second], self.answers(*([system, ("user", m)] for m in (
            f"Say {words}.", f"Now say {words}, again and again.")), flags=("--ctx", "100")))

    def test_commands_work_where_the_context_is_full(self):
        """/clear sends the message as the first one; /quit leaves."""
        system, words = ("system", "You are brief."), "one two three four five six seven eight nine ten"
        talk = Talk(self, "--ctx", "100", "--system", system[1])
        talk.say(f"Say {words}.")
        talk.say(f"Now say {words}, again and again.", prompt="(y/n) ")
        second = talk.say("/clear")
        self.assertIn("what was said before is forgotten", talk.told)
        talk.say(f"Say {words}, and {words}.", prompt="(y/n) ")
        talk.type("/quit\r")
        talk.end()
        self.assertEqual([second], self.answers([system, ("user", f"Now say {words}, again and again.")], flags=("--ctx", "100")))

    def test_a_file_that_is_too_long_is_not_taken(self):
        file, small, huge = (self.folder / name for name in ("long.txt", "small.txt", "huge.txt"))
        file.write_text("word " * 600)
        small.write_text("The sky is green.")
        huge.write_bytes(b"x" * (1 << 25))
        talk = Talk(self)
        for path, told in ((file, "would have 6"), (huge, "bytes, the most that is taken")):
            self.assertEqual(talk.say(f"/read {small}"), "")
            self.assertIn("17 bytes", talk.told)
            self.assertEqual(talk.say(f"/read {path}"), "")
            self.assertIn(told, talk.told)
            self.assertIn("no file goes before your next message", talk.told)
        first = talk.say("Hello")
        talk.type("\x04")
        talk.end()
        self.assertEqual([first], self.answers([("user", "Hello")]))

    def test_files_that_are_read_follow_each_other(self):
        talk, files = Talk(self), [self.folder / name for name in ("one.txt", "two.txt")]
        for path, text, told in zip(files, ("The sky is green.", "So is the sea."),
                                    ("17 bytes of ", "14 bytes of ")):
            path.write_text(text)
            self.assertEqual(talk.say(f"/read {path}"), "")
            self.assertIn(told, talk.told)
        self.assertIn("after what was read before", talk.told)
        first = talk.say("Hello")
        talk.type("\x04")
        talk.end()
        self.assertEqual([first], self.answers([("user", "The sky is green.\n\nSo is the sea.\n\nHello")]))

    def test_another_answer_has_another_temperature(self):
        talk, hot = Talk(self, "--seed", "7"), ("--temp", "0.9")
        sea = [("user", "Tell me a very long story about the sea.")]
        first = talk.say(sea[0][1])
        self.assertEqual(talk.say("/regen"), "")
        self.assertIn("at temperature 0 it would be the same: /regen 0.8 or /regen 0.8 SEED", talk.told)
        for wrong in ("warm", "101", "0.9 x", "0.9 1 2"):
            self.assertEqual(talk.say(f"/regen {wrong}"), "")
            self.assertRegex(talk.told, "TEMPERATURE|SEED")
        second, third, fourth = talk.say("/regen 0.9 11"), talk.say("/continue"), talk.say("/regen")
        fifth = talk.say("/regen 0")
        talk.type("\x04")
        talk.end()
        self.assertEqual([first], self.answers(sea))
        self.assertEqual([second + third], self.answers(sea, flags=(*hot, "--seed", "11", "--max-tokens", "48")))
        self.assertEqual([fourth], self.answers(sea, flags=(*hot, "--seed", "12")))
        self.assertEqual(fifth, first)

    # Ctrl-C, and what is typed meanwhile.

    @thorough
    def test_interrupted_answer(self):
        """What came stays, can be gone on with, and the conversation goes on; what is typed during an answer is the next
        line's beginning."""
        flags = ("--max-tokens", "900", "--ctx", "4096")
        talk = Talk(self, *flags)
        talk.type("Tell me a very long story about the sea.\r")
        talk.begun()
        talk.type("\x03")
        self.assertIn("stopped: /continue goes on", talk.ready())
        story = talk.out.decode().removesuffix("\n")
        self.assertGreater(len(story), 0)
        talk.type("/continue\r")
        talk.begun()
        talk.type("\x03")
        talk.ready()
        story += talk.out.decode()[len(story) + 1:].removesuffix("\n")
        talk.type("And about the \r")  # the answer to come is long enough
        talk.begun()
        self.assertFalse(talk.echoes)
        talk.type("moon")
        talk.until(lambda: talk.screen.endswith("\n> moon"))
        self.assertEqual(talk.screen[talk.seen:].count("moon"), 1)
        second = talk.out.decode()[len(story) + 2:].removesuffix("\n")
        talk.type("\x03")  # of a line with something in it: the line is dropped
        talk.ready()
        self.assertNotIn("leaves", talk.screen[talk.screen.rindex("moon"):])
        said = [("user", "Tell me a very long story about the sea."), ("assistant", story), ("user", "And about the")]
        self.assertEqual(second, self.answers(said, flags=flags)[0])
        self.assertTrue(self.answers(said[:1], flags=flags)[0].startswith(story))
        talk.type("\x04")
        talk.end()

    def test_leaving(self):
        talk = Talk(self)
        talk.type("half a line")
        talk.until(lambda: talk.screen.endswith("half a line"))
        talk.type("\x03")
        talk.ready()
        talk.type("\x03")
        self.assertIn("Ctrl-C again, or Ctrl-D, leaves", talk.ready())
        talk.type("\x03")
        talk.end(INTERRUPTED)
        talk = Talk(self, *STORY)
        children = children_of(talk.program.pid)
        talk.type("Tell me a very long story about the sea.\r")
        talk.begun()
        talk.type("\x03")
        talk.until(lambda: "stopped" in talk.screen)
        talk.type("\x03")
        talk.end(INTERRUPTED)
        wait_until(lambda: not any(map(is_running, children)))

    def test_what_is_left_in_mid_answer_ends_its_line(self):
        talk = Talk(self, *STORY)
        talk.type("Tell me a very long story about the sea.\r")
        talk.begun()
        talk.program.send_signal(signal.SIGTERM)
        talk.until(lambda: talk.program.poll() is not None)
        rest = talk.out + talk.program.stdout.read()
        self.assertEqual(rest.decode()[-1], "\n")
        talk.end(143)

    # The terminal.

    def test_history(self):
        """Of an earlier conversation too, for the user alone; none where nothing is to be kept."""
        env = {"XDG_STATE_HOME": str(self.folder)}
        history = self.folder / "tandem/history"
        talk = Talk(self, "--ledger", "none", env=env)
        talk.say("/stats")
        talk.type("\x04")
        talk.end()
        self.assertFalse(history.exists())
        talk = Talk(self, env=env)
        talk.say("/stats")
        talk.say("\x1b[200~two\rlines\x1b[201~")
        talk.type("\x04")
        talk.end()
        self.assertEqual(stat.S_IMODE(history.stat().st_mode), 0o600)
        self.assertEqual(history.read_text().count("/stats"), 1)
        talk = Talk(self, env=env)
        talk.type("\x1b[A")
        talk.until(lambda: talk.screen.endswith("two\nlines"))
        talk.type("\x1b[A")
        talk.until(lambda: talk.screen[talk.seen:].rstrip().endswith("/stats"))
        talk.type("\r")
        self.assertIn("0 answers", talk.ready())
        talk.type("\x04")
        talk.end()

    @whole_model
    def test_whole_screen(self):
        """Answer, figures and lines on one terminal, which may change its size; lines of an answer break at blanks."""
        talk = Talk(self, whole=True)
        fcntl.ioctl(talk.keys, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
        talk.type("Tell me a very long story about the sea.\r")
        told = talk.ready()
        text, = self.answers([("user", "Tell me a very long story about the sea.")])
        lines = [line for part in text.split("\n") for line in textwrap.wrap(part, 60) or [""]]
        self.assertGreater(len(lines), text.count("\n") + 1, "it has too few words")
        self.assertIn("\n".join(["about the sea.", *lines, "24 tokens, "]), told)
        talk.type("\x04")
        talk.end()

    @thorough
    def test_stopped_and_continued(self):
        """SIGTSTP gives the terminal back as it was; SIGCONT takes it again, and the line in hand is still there."""
        talk = Talk(self)
        talk.type("Name three ")
        talk.until(lambda: talk.screen.endswith("Name three "))
        self.assertFalse(talk.echoes)
        talk.program.send_signal(signal.SIGTSTP)
        state = lambda: pathlib.Path(f"/proc/{talk.program.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        wait_until(lambda: state() == "T")
        self.assertEqual(termios.tcgetattr(talk.terminal), talk.before)
        talk.look()
        talk.seen = len(talk.screen)
        talk.program.send_signal(signal.SIGCONT)
        talk.until(lambda: talk.screen[talk.seen:].endswith("> Name three "))
        self.assertEqual([talk.say("colours.")], self.answers([("user", "Name three colours.")]))
        talk.type("\x04")
        talk.end()

    @thorough
    def test_signals_and_crashes(self):
        """The terminal is as it was, whatever ends the conversation."""
        for number, status in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            for asked in (False, True):
                talk = Talk(self, *STORY)
                if asked:
                    talk.type("Tell me a very long story about the sea.\r")
                    talk.begun()
                talk.program.send_signal(number)
                talk.end(status)
        talk = Talk(self)
        for _ in range(6):  # one start, and five again
            wait_until(lambda: child_named(talk.program.pid, "tandem-target"))
            dead = child_named(talk.program.pid, "tandem-target")
            os.kill(dead, signal.SIGKILL)
            talk.until(lambda: child_named(talk.program.pid, "tandem-target") != dead)
        talk.end(WORKER_FAILED)

    # Neither stdout nor stderr is a terminal.

    def test_turns(self):
        """Each message comes after all before it, its own answers included; /new forgets them."""
        chat = Conversation(self)
        first = chat.say("Name three colours.")
        second = chat.say("And which is the second?")
        self.assertEqual(chat.say("/new"), "")
        again = chat.say("And which is the second?")
        chat.type("\x04")
        self.assertEqual(chat.program.stdout.read(), b"\n")
        chat.end(0)
        talk = [("user", "Name three colours."), ("assistant", first), ("user", "And which is the second?")]
        self.assertEqual([first, second, again], self.answers(talk[:1], talk, talk[2:]))
        self.assertNotEqual(second, again)

    def test_system_and_waiting_lines(self):
        chat = Conversation(self, "--system", "You answer in one word.")
        chat.type("Hello\nAgain\n")
        talk = [("system", "You answer in one word."), ("user", "Hello")]
        first = chat.said().removesuffix("\n")
        self.assertEqual([first], self.answers(talk))
        self.assertEqual([chat.said().removesuffix("\n")], self.answers([*talk, ("assistant", first), ("user", "Again")]))
        chat.type("\x04")
        chat.end(0)

    def test_too_long(self):
        """What does not fit is said, and is no part of what follows."""
        chat = Conversation(self)
        chat.type("word " * 600 + "\n")
        chat.said()
        self.assertEqual([chat.say("Hello")], self.answers([("user", "Hello")]))
        chat.type("/exit\n")
        self.assertEqual(chat.program.stdout.read(), b"\n")
        errors = chat.end(0)
        self.assertIn("/clear begins anew", errors)

    @thorough
    def test_ends(self):
        for how, status in ((lambda c: c.program.send_signal(signal.SIGTERM), 143), (lambda c: c.type("\x04"), 0)):
            chat = Conversation(self, *STORY)
            children = children_of(chat.program.pid)
            self.assertEqual(len(children), 2)
            chat.type("Tell a very long story.\n")
            wait_until(lambda: select.select([chat.program.stdout], [], [], 0.1)[0])
            how(chat)
            chat.end(status)
            wait_until(lambda: not any(map(is_running, children)))

    @thorough
    def test_workers_placed_by_hand(self):
        """Nothing is started; the draft dies between two turns; when the target leaves as well, --wait ends it."""
        endpoint = f"ipc://{self.folder}/o"
        workers = [Running(self.folder, program, "--orchestrator", endpoint, *flags) for program, *flags in
                   ((TARGET, "-m", MODEL, "--ctx", "512"), (DRAFT, "--draft", "ngram"))]
        for worker in workers:
            self.addCleanup(worker.close)
        target, draft = workers
        wait_until(lambda: "ready:" in target.errors, lambda: target.errors)
        chat = Conversation(self, "-v", "--listen", endpoint, "--wait", "5", "--pace", "lockstep")
        self.assertEqual(children_of(chat.program.pid), [])
        wait_until(lambda: "a draft (ngram) is here" in chat.errors, lambda: chat.errors)
        first = chat.say("Name three colours.")
        self.assertIn("a draft is attached", target.errors)
        draft.signal(signal.SIGKILL)
        draft.end()
        second = chat.say("And which is the second?")
        talk = [("user", "Name three colours."), ("assistant", first), ("user", "And which is the second?")]
        self.assertEqual([first, second], self.answers(talk[:1], talk))
        target.signal(signal.SIGTERM)
        self.assertEqual(target.end(), 0, target.errors)
        errors = chat.end(WORKER_FAILED)
        self.assertEqual(errors.count("no target for 5 s"), 1, errors)
        self.assertEqual(len(re.findall(r"(?m)^[1-9]\d* tokens?\b", errors)), 2, errors)  # the speed may be unknown

    def test_usage(self):
        for flag in ("--raw", "--json"):
            keys, terminal = pty.openpty()
            done = subprocess.run([TANDEM, "run", *FLAGS, flag], stdin=terminal, capture_output=True, timeout=TIME_LIMIT)
            os.close(keys), os.close(terminal)
            self.assertEqual(done.returncode, 2)
            self.assertIn(b"a conversation takes neither", done.stderr)


if __name__ == "__main__":
    unittest.main()
