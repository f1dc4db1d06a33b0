#!/usr/bin/env python3
"""Sessions whose other ends vanish, of one program that lives: its memory after 10, 50 and 100 % of N.

    abandoned.py target N        orchestrators open as many sessions as a target takes, and are gone in
                                 mid-answer without a word
    abandoned.py draft N         targets are gone in mid-answer without a word; every few seconds one session
                                 is forgotten by its orchestrator as well
    abandoned.py orchestrator N  a target and a draft are killed by turns, beside a ledger

The count begins after WARM_UP sessions and WARM_UP_SECONDS, in which all is taken that is taken once. The
exit status is 1 if a figure is more than 1 % above the first. Each is the least of MEASURED lives, because
what a burst has taken is given back a little later."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]

import tiny  # noqa: E402
from drafted import DraftedAnswer, DraftHub  # noqa: E402
from programs import DRAFT, TANDEM, TARGET, Running, make_keys  # noqa: E402
from support import (  # noqa: E402
    DRAFT_ROLE, TARGET_ROLE, Answer, Hub, hashes_of, hello_fields, registered)

SESSIONS, CONTEXT = 256, 256  # of a target
PLACES = 64  # of a draft
LEASE = 60  # seconds for a place to become free
FORGOTTEN = 10.0  # seconds between two sessions that nobody ends; each holds a place for a minute
AGAIN = 0.5  # seconds until a session that was refused is opened once more
KILLED = 1000  # answers
LIFE = 250  # answers that count as a life of the orchestrator's workers
WARM_UP, WARM_UP_SECONDS, MEASURED = 20000, 75, 8
ALLOWED = 0.01


def memory(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def prompt(i):
    return [1, 5 + i % 90, 7]


def vanished(hub):
    """Its sockets are closed: no frame tells of the end."""
    hub.close()


class OfTarget:
    life = SESSIONS

    def __init__(self, folder, model, head):
        self.endpoint = f"ipc://{folder}/hub"
        self.program = Running(folder, TARGET, "-m", str(model), "--orchestrator", self.endpoint, "--ctx",
                               str(CONTEXT), "--sessions", str(SESSIONS), "--threads", "1")

    def live(self):
        """One orchestrator's life: it opens so many sessions, hears of tokens, and is gone."""
        hub = Hub(self.endpoint)
        target, = registered(hub)
        answers = [Answer(hub, target, prompt(i), max_tokens=200, context=CONTEXT) for i in range(SESSIONS)]
        end, opened = time.monotonic() + LEASE, set()
        while len(opened) < SESSIONS:
            if time.monotonic() > end:
                raise AssertionError(f"{len(opened)} of {SESSIONS} sessions were opened within {LEASE} s")
            for answer in answers:
                if answer.id not in opened:
                    answer.epoch += 1
                    answer.open()
            hub.wait(lambda: all(any(m.kind == "OPENED" for m in a.seen) for a in answers), AGAIN)
            opened = {a.id for a in answers if any(m.kind == "OPENED" for m in a.seen)}
        vanished(hub)

    def close(self):
        self.program.close()


class FakeTarget(Hub):
    """What a draft attaches to: it grants that, sends a few tokens, and takes nodes."""

    def __init__(self, endpoint, answers):
        super().__init__(endpoint, welcome=False)
        self.of, self.attached, self.nodes = {a.id: a for a in answers}, set(), set()

    def _on_hub(self, routing, message):
        super()._on_hub(routing, message)
        if message.kind == "HELLO":
            self.send(routing, "WELCOME", 0, 0, *hello_fields(TARGET_ROLE, self.incarnation))
        elif message.kind == "ATTACH" and message.session in self.of:
            answer = self.of[message.session]
            state = (len(answer.tokens), answer.hashes[-1], 1)
            self.send(routing, "ATTACHED", answer.id, answer.epoch, *state)
            tokens = [9, 8, 9, 8]
            seal = hashes_of(answer.seed, answer.tokens + tokens, answer.hashes)[-1]
            self.send(routing, "TOKENS", answer.id, answer.epoch, len(answer.tokens), tokens, seal, b"")
            self.attached.add(answer.id)
        elif message.kind == "NODES":
            self.nodes.add(message.session)


class OfDraft:
    life = PLACES - 16  # the rest may still be forgotten ones

    def __init__(self, folder, model, head):
        self.folder, self.lives, self.forgot = folder, 0, 0.0
        self.hub = DraftHub(f"ipc://{folder}/hub")
        self.program = Running(folder, DRAFT, "--draft", "model,ngram", "-m", str(model), "--draft-layers",
                               "1", "--threads", "1", "--sessions", str(PLACES), "--ctx", str(CONTEXT),
                               "--orchestrator", self.hub.endpoint)
        self.draft = self.hub.wait_for(DRAFT_ROLE)

    def live(self):
        """One target's life: a draft attaches to it with many sessions, and it is gone."""
        self.lives += 1
        endpoint = f"ipc://{self.folder}/target-{self.lives}"
        answers = [DraftedAnswer(self.hub, None, prompt(i), max_tokens=200, context=CONTEXT, budget=8)
                   for i in range(self.life)]
        target = FakeTarget(endpoint, answers)
        inbox = self.hub.drafts[self.draft]
        self.opened = 0.0
        self.wait(target, lambda: len(target.nodes) == len(answers), lambda: self.open(target, answers))
        vanished(target)
        forget = time.monotonic() > self.forgot + FORGOTTEN
        self.forgot = time.monotonic() if forget else self.forgot
        ended = {answer.id for answer in answers[forget:]}
        for answer in answers[forget:]:
            answer.to_draft("END")
        self.wait(target, lambda: ended <= {m.session for m in inbox.seen if m.kind == "ENDED"})
        inbox.seen.clear()
        inbox.looked = 0
        for answer in answers:
            del self.hub.answers[answer.id]

    def open(self, target, answers):
        """What is not attached yet, and may have been refused."""
        if time.monotonic() < self.opened + AGAIN:
            return
        self.opened = time.monotonic()
        for answer in answers:
            if answer.id not in target.attached:
                answer.open_draft(self.draft, target.endpoint, target.incarnation)

    def wait(self, target, condition, meanwhile=lambda: None):
        end = time.monotonic() + LEASE
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"the draft does not answer within {LEASE} s: {self.program.errors}")
            meanwhile()
            self.hub.turn(1)
            for _ in range(self.life if not target.socket.closed else 0):
                target.turn(0)

    def close(self):
        self.program.close()
        self.hub.close()


class OfOrchestrator:
    life = LIFE

    def __init__(self, folder, model, head):
        make_keys()
        self.folder, self.endpoint, self.answers, self.asked = folder, f"ipc://{folder}/hub", 0, 0
        own = ["-m", str(model), "--ctx", str(CONTEXT), "--sessions", "16"]
        self.commands = [[TARGET, *own, "--threads", "1"], [DRAFT, "--draft", "ngram"]]
        self.program = subprocess.Popen(
            [TANDEM, "serve-workers", *own, "--raw", "--ledger", str(folder / "ledger"), "--listen",
             self.endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.workers = [self.start(command) for command in self.commands]
        threading.Thread(target=self.read, daemon=True).start()

    def start(self, command):
        return Running(self.folder, *command, "--orchestrator", self.endpoint)

    def read(self):
        for line in self.program.stdout:
            answer = json.loads(line)
            assert answer["finish_reason"] in ("stop", "length"), answer
            self.answers += 1

    def live(self):
        for _ in range(LIFE):
            self.asked += 1
            n = self.asked
            line = {"id": str(n), "prompt": f"storm {n % 90}", "max_tokens": 1 + n % 8}
            self.program.stdin.write(json.dumps(line).encode() + b"\n")
        self.program.stdin.flush()
        if self.asked % KILLED == 0:
            which = self.asked // KILLED % 2
            self.workers[which].close()
            self.workers[which] = self.start(self.commands[which])
        end = time.monotonic() + LEASE
        while self.answers < self.asked:
            if time.monotonic() > end:
                raise AssertionError(f"{self.answers} of {self.asked} requests were answered")
            time.sleep(0.005)

    def close(self):
        self.program.kill()
        self.program.wait()
        for worker in self.workers:
            worker.close()


KINDS = {"target": OfTarget, "draft": OfDraft, "orchestrator": OfOrchestrator}


def measure(of, total):
    """KiB after each of the marks."""
    done, figures, recent = -WARM_UP, [], []
    marks, began = [total // 10, total // 2, total], time.monotonic()
    while marks:
        of.live()
        done += of.life if done < 0 or time.monotonic() > began + WARM_UP_SECONDS else 0
        recent = (recent + [memory(of.program.pid)])[-MEASURED:]
        if done < marks[0]:
            continue
        figures.append(min(recent))
        files = len(os.listdir(f"/proc/{of.program.pid}/fd"))
        print(f"{marks.pop(0)} sessions abandoned: {figures[-1]} KiB, {files} open files", flush=True)
    return figures


def main():
    kind, total = sys.argv[1], int(sys.argv[2])
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-abandoned-"))
    of = KINDS[kind](folder, *tiny.make(folder))
    try:
        figures = measure(of, total)
    finally:
        of.close()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(max(figures) > figures[0] * (1 + ALLOWED))


if __name__ == "__main__":
    main()
