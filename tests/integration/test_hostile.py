"""Real programs against peers that lie about who they are, flood, or claim what another has; and against their own stall.
The answer that runs meanwhile is the undisturbed one.
"""

import json
import os
import re
import signal
import stat
import struct
import subprocess
import time
import unittest

import zmq

from support import (DRAFT, DRAFT_ROLE, MODEL, STOP, SUBSET, TANDEM, TARGET, TARGET_ROLE, VOCABULARY, ZERO, Answer, Case, Hub, Link,
                     Running, batch, decode, encode, golden, hashes_of, hello_fields, registered, start_target, wait_until)

TOKENS = 16 if SUBSET else 48
LONG = 100 if SUBSET else 300
GROWTH = 64 if SUBSET else 16  # MiB; a sanitizer keeps freed memory for a while
DOOR_FRAME, GREETING = 22528, 4096
DRAFTS = 96
GREETINGS = 3000


def memory(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) / 1024


class Stranger:
    """A DEALER at an orchestrator's listener: what it hears, and PINGs answered."""

    def __init__(self, context, endpoint, routing_id=None):
        self.incarnation, self.peer, self.welcome = os.urandom(16), ZERO, None
        self.seen, self.sessions = [], {}
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger, self.socket.immediate = 0, 1
        if routing_id:
            self.socket.routing_id = routing_id
        self.socket.connect(endpoint)

    def send(self, kind, session, epoch, *fields):
        self.socket.send(encode(kind, ZERO if kind == "HELLO" else self.peer, session, epoch, *fields))

    def hello(self, role, incarnation=None, **changes):
        fields = hello_fields(role, incarnation or self.incarnation, method="x" if role == DRAFT_ROLE else "")
        if role == TARGET_ROLE and self.welcome:  # what the orchestrator wants to hear
            fields[5:8] = self.welcome[5:8]
            fields[8] = "int8/kv-f16/4"
        for index, value in changes.items():
            fields[int(index[1:])] = value
        self.send("HELLO", 0, 0, *fields)
        return self

    def take(self, milliseconds=0):
        """What has come: the messages that are neither PING nor WELCOME."""
        new = []
        while self.socket.poll(milliseconds):
            m = decode(self.socket.recv())
            if m.kind == "WELCOME":
                self.welcome, self.peer = m.fields, m.fields[4]
            elif m.kind == "PING":
                self.send("PONG", 0, 0, *m.fields)
            else:
                new.append(m)
            milliseconds = 0
        self.seen += new
        return new

    def greet(self, role=DRAFT_ROLE):
        self.hello(role)
        wait_until(lambda: self.take(10) is not None and self.welcome)
        return self


class Orchestrator(Case):
    """A `tandem serve-workers`, and whoever calls it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.record = golden()[0]
        done = batch(cls.folder, [cls.record], "--draft", "none", "--max-tokens", str(LONG), "--ctx", "1024")
        cls.plain = done.answers[cls.record["id"]]["token_ids"]

    def setUp(self):
        super().setUp()
        self.context = zmq.Context()
        self.addCleanup(self.context.term)
        self.endpoint = f"ipc://{self.folder}/hub"

    def serve(self, *flags, **how):
        self.orchestrator = Running(self.folder, TANDEM, "serve-workers", "-m", MODEL, "--listen", self.endpoint, "--ctx", "1024",
                                    "--ledger", "none", *flags, stdin=subprocess.PIPE, **how)
        self.addCleanup(self.orchestrator.close)
        self.said("listening at")

    def said(self, words, count=1):
        wait_until(lambda: self.log.count(words) >= count, lambda: self.log)

    @property
    def log(self):
        return self.orchestrator.errors

    def worker(self, program, *flags):
        flags = ("-m", MODEL, "--ctx", "1024", "--threads", "1", *flags) if program == TARGET else flags
        worker = Running(self.folder, program, "--orchestrator", self.endpoint, *flags)
        self.addCleanup(worker.close)
        return worker

    def target(self, *flags):
        before = self.log.count("a target")
        worker = self.worker(TARGET, *flags)
        self.said("a target", before + 1)
        return worker

    def stranger(self, routing_id=None):
        made = Stranger(self.context, self.endpoint, routing_id)
        self.addCleanup(made.socket.close)
        return made

    def ask(self, number, tokens=TOKENS, **more):
        line = {"id": number, "prompt_ids": self.record["prompt_ids"], "max_tokens": tokens, **more}
        self.orchestrator.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.orchestrator.process.stdin.flush()

    def answers(self, count, meanwhile=lambda: None):
        def all_here():
            meanwhile()
            return self.orchestrator.out.count(b"\n") >= count
        wait_until(all_here, lambda: self.log)
        return [json.loads(line) for line in self.orchestrator.out.splitlines()]

    def expect_plain(self, count, meanwhile=lambda: None, tokens=TOKENS):
        for answer in self.answers(count, meanwhile):
            self.assertEqual(answer["token_ids"], self.plain[:tokens], answer["finish_reason"])

    # --- who is who ---

    def test_draft_that_would_be_the_target(self):
        """It knows all that OPEN tells: the target's incarnation and address, session, ticket, hash seed. It comes with the
        target's old routing id, says HELLO as a target, and tells the session an answer of its own.
        """
        self.serve()
        self.target()
        draft = self.stranger(b"\1" + os.urandom(24)).greet()
        self.said("a draft")
        self.ask(1)
        thieves = []

        def answer_for(thief, m):
            """A whole answer in the target's name."""
            tokens = (m.fields[4] if m.fields[2] == 0 else self.record["prompt_ids"])
            forged = [19556, 355, 2]
            hashes = hashes_of(m.fields[1], tokens + forged)
            n = len(tokens)
            for epoch in (m.epoch, m.epoch + 1):
                thief.send("OPENED", m.session, epoch, n, hashes[n])
                thief.send("TOKENS", m.session, epoch, n, forged, hashes[-1], None)
                thief.send("DONE", m.session, epoch, n + 3, hashes[-1], STOP, 0, "", "", [0] * 14 + [[]])

        def attack():
            for m in draft.take():
                if m.kind != "OPEN" or thieves:
                    continue
                draft.send("OPENED", m.session, m.epoch, m.fields[2] + len(m.fields[4]), m.fields[5])
                for serial in (1, 2):
                    thief = self.stranger(b"\1" + m.fields[10] + struct.pack("<Q", serial))
                    thief.peer, thief.welcome = draft.peer, draft.welcome
                    thieves.append(thief)
                    thief.send("DESYNC", m.session, m.epoch, 0, ZERO, "give me all")
                    thief.hello(TARGET_ROLE, m.fields[10], _9=m.fields[9])
                    answer_for(thief, m)
                draft.hello(TARGET_ROLE, _9="tcp://127.0.0.1:9")
                draft.hello(TARGET_ROLE, m.fields[10], _9=m.fields[9])
                draft.send("DESYNC", m.session, m.epoch, 0, ZERO, "give me all")
                answer_for(draft, m)
            for thief in thieves:
                for m in thief.take():
                    if m.kind == "OPEN":
                        answer_for(thief, m)

        self.expect_plain(1, attack)
        self.assertEqual(len(thieves), 2)
        self.assertIn("keeps the role", self.log)
        self.assertFalse([m for thief in thieves for m in thief.seen if m.kind == "OPEN"])

    def test_target_that_does_not_say_what_it_is(self):
        """No model, no vocabulary, no address: each is refused with its reason, and logged once."""
        self.serve()
        right = self.stranger().greet().welcome
        self.assertEqual(right[7], VOCABULARY)
        for changes, words in [({"_5": ZERO}, "another model"), ({"_6": ZERO}, "vocabulary"), ({"_7": 0}, "vocabulary"),
                               ({"_9": ""}, "--advertise")]:
            with self.subTest(changes=changes):
                stranger = self.stranger()
                stranger.welcome = right
                before = self.log.count(words)
                for _ in range(5):
                    stranger.hello(TARGET_ROLE, **{"_9": "tcp://127.0.0.1:9", **changes})
                    wait_until(lambda: any(m.kind == "ERROR" for m in stranger.take(10)))
                self.assertIn(words, stranger.seen[0].fields[1])
                self.assertEqual(self.log.count(words), before + 1, self.log)
        self.assertNotIn("a target", self.log)

    def test_two_targets_with_one_address(self):
        """The second is refused, says so once, and the first goes on. When the first dies, the second is taken."""
        self.serve()
        flags = ("--advertise", f"ipc://{self.folder}/nobody")
        first = self.target(*flags)
        second = self.worker(TARGET, *flags)
        wait_until(lambda: "--advertise" in second.errors, lambda: second.errors)
        self.said("has this one's address")
        self.ask(1, LONG, draft=False)
        self.expect_plain(1, tokens=LONG)
        self.assertEqual((self.log.count("target was lost"), self.log.count("is here")), (0, 1), self.log)
        first.signal(signal.SIGKILL)
        self.said("is here", 2)
        for log in (self.log, second.errors):  # however often it came again until then
            self.assertEqual(log.count("has this one's address"), 1, log)
        self.ask(2, LONG, draft=False)
        self.expect_plain(2, tokens=LONG)

    def test_ipc_is_its_owners(self):
        self.addCleanup(os.umask, os.umask(0))
        self.serve()
        self.assertEqual(stat.S_IMODE(os.stat(f"{self.folder}/hub").st_mode), 0o600)

    # --- life ---

    def test_own_stall(self):
        """The orchestrator is stopped for longer than the silence that counts as death: nobody has died."""
        self.serve("--sessions", "2")
        target = self.target("--sessions", "2")
        self.worker(DRAFT, "--draft", "ngram")
        self.said("a draft")
        for i in range(2):
            self.ask(i, LONG)
        wait_until(lambda: target.errors.count("a draft is attached") >= 2, lambda: target.errors)
        self.orchestrator.signal(signal.SIGSTOP)
        time.sleep(3.6)
        self.orchestrator.signal(signal.SIGCONT)
        self.expect_plain(2, tokens=LONG)
        for words in ("is silent", "target was lost", "decodes plainly"):
            self.assertNotIn(words, self.log)

    # --- how much ---

    def test_greetings_do_not_fill_the_log(self):
        self.serve()
        stranger = self.stranger().greet()
        for _ in range(GREETINGS):
            stranger.hello(DRAFT_ROLE, os.urandom(16), _10="m" * 500)
            stranger.take()

        def answered():
            """All of that has been read; who is too much is cut off meanwhile, and greets again."""
            stranger.hello(DRAFT_ROLE).send("PING", 0, 0, 1, 0, 0)
            return any(m.kind == "PONG" for m in stranger.take(10))

        wait_until(answered, lambda: self.log)
        self.assertLess(self.log.count("is here"), GREETINGS // 10)

    def test_full_roster(self):
        """Drafts leave places for targets; the draft that finds none says why, once, and is taken when there is one."""
        self.serve()
        drafts = [self.stranger().greet() for _ in range(DRAFTS)]

        def keep():
            for draft in drafts:
                draft.take()
        target, late = self.worker(TARGET), self.worker(DRAFT, "--draft", "ngram")
        wait_until(lambda: keep() or "no place for one more draft" in late.errors, lambda: late.errors)
        wait_until(lambda: keep() or "no place for one more draft" in self.log, lambda: self.log)
        wait_until(lambda: keep() or "a target" in self.log, lambda: target.errors)
        self.assertEqual(self.log.count("a draft (ngram)"), 0)
        drafts = drafts[1:]  # one falls silent
        wait_until(lambda: keep() or "a draft (ngram) is here" in self.log, lambda: self.log)
        for log in (self.log, late.errors):  # however often it came again until then
            self.assertEqual(log.count("no place for one more draft"), 1, log)


class Listener(Case):
    """A target that is flooded at its listener for drafts, by one peer and by many."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hub = Hub(f"ipc://{cls.folder}/hub")
        cls.addClassCleanup(cls.hub.close)
        cls.program = start_target(cls.folder, cls.hub.endpoint, "--threads", "1")
        cls.addClassCleanup(cls.program.close)
        cls.target, = registered(cls.hub)
        cls.listener = cls.hub.peers[cls.target][9]
        cls.record = golden()[0]

    def flood(self, frame, sockets=1, hello=False, seconds=1.0):
        """Sends as fast as it goes, beside an answer: how many MiB the target grows at most."""
        answer = Answer(self.hub, self.target, self.record["prompt_ids"], max_tokens=TOKENS).open()
        plain = list(answer.finish())  # once undisturbed: its memory has been touched
        answer.end()
        links = [Link(self.hub, self.listener) for _ in range(sockets)]
        for link in links:
            if hello:
                link.greet()
            link.socket.sndhwm, link.on = 4, lambda message: None
            self.addCleanup(link.close)
        before = peak = memory(self.program.pid)
        answer = Answer(self.hub, self.target, self.record["prompt_ids"], max_tokens=TOKENS).open()
        sent, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            for link in links:
                for _ in range(8):
                    try:
                        link.socket.send(frame, zmq.NOBLOCK, copy=False)
                        sent += 1
                    except zmq.Again:
                        break
            self.hub.turn(0)
            if sent % 7 == 0:
                peak = max(peak, memory(self.program.pid))
        peak = max(peak, memory(self.program.pid))
        for link in links:
            link.close()
        self.assertEqual(answer.finish(), plain)
        answer.end()
        self.assertIsNone(self.program.process.poll(), self.program.errors)
        self.assertGreater(sent, 0)
        self.assertLessEqual(peak - before, GROWTH, f"{sent} frames of {len(frame)} bytes")

    @staticmethod
    def array(size):
        """Well formed, and long to look at: small integers."""
        return b"\xdd" + struct.pack(">I", size - 5) + b"\0" * (size - 5)

    def test_frames_of_a_mebibyte(self):
        for hello in (False, True):
            self.flood(self.array(1 << 20), hello=hello)

    def test_frames_just_below_the_limit(self):
        self.flood(self.array(GREETING))
        self.flood(self.array(DOOR_FRAME))
        self.flood(self.array(DOOR_FRAME), hello=True)

    def test_many_connections(self):
        self.flood(self.array(DOOR_FRAME), sockets=40)
        self.flood(b"\xc0" * 40, sockets=40)


if __name__ == "__main__":
    unittest.main()
