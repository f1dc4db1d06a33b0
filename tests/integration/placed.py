"""Programs that a test places by hand: an orchestrator, and the workers that register there."""

import json
import signal
import subprocess

from programs import (DRAFT, MODEL, SUBSET, TANDEM, TARGET, TIME_LIMIT, Case, Running, batch, golden,
                      wait_until)

SHORT = (102, 123, 214, 326, 341, 116, 121, 149, 158, 85, 120, 87, 99, 146)  # golden prompts below 100 tokens
LONG = 1500  # tokens of a long prompt
SIXTEEN = 16
LOCKSTEP = ("--pace", "lockstep", "--budget", "7")  # what a draft gives must not depend on when it comes


class Placed(Case):
    """A recording of plain answers, and the means to place programs."""

    @classmethod
    def record(cls, records, tokens, rate):
        """Plain answers, and a draft that is right so often about them."""
        cls.plain = batch(cls.folder, records, "--draft", "none", "--sessions", "8", "--max-tokens",
                          str(tokens))
        cls.replay = f"replay:{cls.plain.path}:{rate}"

    @staticmethod
    def records():
        ids = {r["id"]: r["prompt_ids"] for r in golden()}
        found = [{"id": i, "prompt_ids": ids[i]} for i in SHORT]
        for name, parts in (("long", (543, 530, 293)), ("longer", (320, 543, 293))):
            whole = [token for part in parts for token in ids[part]]
            found.append({"id": name, "prompt_ids": whole[:LONG // 5 if SUBSET else LONG]})
        return found

    def serve(self, *flags):
        return Served(self, *flags)

    def check(self, answers, accepted=False, changed=False):
        """As plain, however often a target was lost. `accepted`: some came from drafts (in lockstep)."""
        for a in answers:
            want = self.plain.answers[a["id"]]
            self.assertEqual(a["token_ids"], want["token_ids"], a["id"])
            self.assertEqual(a["finish_reason"], want["finish_reason"])
            self.assertEqual(a.get("numerics_changed", False), changed)
            self.assertEqual(a["stats"].get("counted_tokens", len(a["token_ids"])),
                             a["stats"]["forwards"] + a["stats"]["accepted_tokens"])
        got = sum(a["stats"]["accepted_tokens"] for a in answers)
        if accepted:
            self.assertGreater(got, 0)
        return got


class Served:
    """A `tandem serve-workers` with what registers there."""

    def __init__(self, case, *flags, endpoint=None):
        self.case, self.endpoint = case, endpoint or f"ipc://{case.folder}/orchestrator"
        self.ledger = str(case.folder / "ledger")
        self.program = Running(case.folder, TANDEM, "serve-workers", "-m", MODEL, "--listen", self.endpoint,
                               "--ledger", self.ledger, *flags, stdin=subprocess.PIPE)
        case.addCleanup(self.program.close)
        wait_until(lambda: "listening at" in self.errors or "in use" in self.errors, lambda: self.errors)

    @property
    def errors(self):
        return self.program.errors

    def here(self, count):
        """So many workers have registered."""
        wait_until(lambda: self.errors.count("is here") >= count, lambda: self.errors)

    def add(self, program, *flags, env=None, during=()):
        """One more worker, once it is registered. The programs `during` stand still until then, and until it
        is ready the orchestrator does, so that it misses nobody."""
        before = self.errors.count("is here")
        for p in during and (*during, self.program):
            p.signal(signal.SIGSTOP)
        worker = Running(self.case.folder, program, "--orchestrator", self.endpoint, *flags, env=env)
        self.case.addCleanup(worker.close)
        wait_until(lambda: "ready:" in worker.errors, lambda: worker.errors)
        self.program.signal(signal.SIGCONT)
        self.here(before + 1)
        for p in during:
            p.signal(signal.SIGCONT)
        return worker

    def target(self, *flags, **more):
        return self.add(TARGET, "-m", MODEL, "--threads", "1", "--sessions", str(SIXTEEN), *flags, **more)

    def draft(self, method, *flags, **more):
        return self.add(DRAFT, "--draft", method, *flags, **more)

    def ask(self, records, **switches):
        for r in records:
            self.program.process.stdin.write(json.dumps({**r, **switches}).encode() + b"\n")
        self.program.process.stdin.flush()

    @property
    def answers(self):
        out = self.program.out
        return [json.loads(line) for line in out[:out.rfind(b"\n") + 1].splitlines()]

    def wait(self, count):
        """All answers, when there are so many."""
        wait_until(lambda: self.program.out.count(b"\n") >= count, lambda: self.errors, TIME_LIMIT)
        return self.answers

    def end(self):
        self.program.process.stdin.close()
        status = self.program.end()
        self.case.assertEqual(status, 0, self.errors)
        return self.errors.splitlines()[-1]

    def running(self):
        """The answers under way: {session: the tokens that it has}."""
        command = [TANDEM, "session", "list", "--json", "--limit", "0", "--ledger", self.ledger]
        listed = subprocess.run(command, check=True, capture_output=True, timeout=TIME_LIMIT)
        return {s["session"]: s["tokens"] for s in json.loads(listed.stdout) if s["state"] == "running"}

    def ask_and_see(self, records, targets, **switches):
        """Until each of these targets is at work: an answer under way has tokens, and a draft there."""
        self.ask(records, **switches)
        for target in targets:
            wait_until(lambda: any(tokens > 0 and f"session {session}: a draft is attached" in target.errors
                                   for session, tokens in self.running().items()), lambda: self.errors)

    def ask_stopped(self, records, target, **switches):
        """All of them are given to this target, the only one, which stands still from now on."""
        target.signal(signal.SIGSTOP)
        self.ask(records, **switches)
        wait_until(lambda: len(self.running()) == len(records), lambda: self.errors)
