"""Programs that a test places by hand: an orchestrator, and the workers that register there."""

import json
import os
import signal
import subprocess

from programs import (DRAFT, MODEL, SUBSET, TANDEM, TARGET, TIME_LIMIT, Case, Running, batch, golden,
                      wait_until)

SHORT = (102, 123, 214, 326, 341, 116, 121, 149, 158, 85, 120, 87, 99, 146)  # golden prompts below 100 tokens
LONG = 1500  # tokens of a long prompt
SIXTEEN = 16
WORK = 0.3  # seconds of a target's processor time: prompts and some tokens
TICKS = os.sysconf("SC_CLK_TCK")


def processor_time(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


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

    def check(self, answers, accepted=True, changed=False):
        """As plain, however often a target was lost."""
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
        self.program = Running(case.folder, TANDEM, "serve-workers", "-m", MODEL, "--listen", self.endpoint,
                               *flags, stdin=subprocess.PIPE)
        case.addCleanup(self.program.close)
        wait_until(lambda: "listening at" in self.errors, lambda: self.errors)

    @property
    def errors(self):
        return self.program.errors

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
        wait_until(lambda: self.errors.count("is here") > before, lambda: worker.errors)
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

    def ask_and_see(self, records, targets, **switches):
        """Until all these targets have worked at it: no time would tell."""
        start = [processor_time(t.pid) for t in targets]
        self.ask(records, **switches)
        wait_until(lambda: all(processor_time(t.pid) > at + WORK for t, at in zip(targets, start)))
