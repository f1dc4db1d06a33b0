"""Workers placed by hand: several targets and drafts at one orchestrator, which come, go, die and stand still. Every
answer is plain decode's."""

import collections
import random
import re
import signal
import time
import unittest

from models import make_model
from placed import LOCKSTEP, SIXTEEN, Placed, Served
from programs import (DRAFT, MODEL, SUBSET, TANDEM, TARGET, VOCABULARY, Running, batch, counters_of, tell,
                      thorough, total, wait_until)

TOKENS = 40 if SUBSET else 160
STORY = 300 if SUBSET else 800  # tokens: the longest answer is interrupted, and no machine is through before a test sees it
EIGHT = 8
HANGS = 20  # the forward that does not come back
PORTS = range(20000, 30000)  # below those that the kernel gives to who connects
USAGE, WORKER_FAILED, IO = 2, 7, 8  # exit statuses


def resident(pid):
    """KiB that the program has written to. Code that runs for the first time is of a file."""
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"RssAnon:\s+(\d+)", f.read())[1])


@thorough
class Failover(Placed):
    """Two targets, of which the one at work is lost in mid-answer."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        records = cls.records()[:EIGHT]
        cls.record(records, STORY, 0.5)
        cls.eight = sorted(records, key=lambda r: -len(cls.plain.answers[r["id"]]["token_ids"]))

    def lose(self, number, *other, pace=()):
        """One answer, whose target is lost while another one is there: (served, first, second, answers, seconds)."""
        s = self.serve("--max-tokens", str(STORY), *pace)
        first = s.target()
        s.draft(self.replay)
        s.ask_and_see(self.eight[:1], [first])
        moment = time.monotonic()
        first.signal(number)
        second = s.target(*other)
        return s, first, second, s.wait(1), time.monotonic() - moment

    def elsewhere(self, answers):
        """Some tokens came from the target that was lost: its figures are lost with it."""
        return sum(len(a["token_ids"]) > a["stats"]["forwards"] + a["stats"]["accepted_tokens"] for a in answers)

    def test_killed(self):
        s, first, second, answers, seconds = self.lose(signal.SIGKILL, pace=LOCKSTEP)
        self.check(answers, accepted=True)
        self.assertEqual(self.elsewhere(answers), 1)
        self.assertIn("is gone: its connection ended", s.errors)
        self.assertNotIn("is silent", s.errors)  # nobody waited for 3 s of silence
        first = s.target()
        s.ask(self.eight[:1])
        longest, = wait_until(s.running, lambda: s.errors)
        s.ask_and_see(self.eight[1:], [first, second])
        moment = time.monotonic()
        next(t for t in (first, second) if f"session {longest}: a draft" in t.errors).signal(signal.SIGKILL)
        answers = s.wait(1 + EIGHT)[1:]
        self.check(answers, accepted=True)
        self.assertEqual(len({a["numerics_id"] for a in answers}), 1)
        self.assertGreater(self.elsewhere(answers), 0)
        tell(f"{s.end()}; one answer {seconds:.1f} s after a kill, eight {time.monotonic() - moment:.1f} s")

    def test_stopped_and_continued(self):
        s, first, _, answers, _ = self.lose(signal.SIGSTOP)
        self.check(answers)
        self.assertEqual(self.elsewhere(answers), 1)
        first.signal(signal.SIGCONT)
        s.ask(self.eight)  # it is used again, or not; what it held is not believed
        self.check(s.wait(1 + EIGHT))

    def test_hung(self):
        """Its engine hangs: the answer goes on elsewhere, and nothing of its figures is lost, because its sockets live."""
        s = self.serve("--max-tokens", str(STORY), *LOCKSTEP)
        first = s.target("--device", "far:cpu", env={"TANDEM_FAR": f"hang={HANGS}"})
        s.draft(self.replay)
        s.ask(self.eight[:1])
        wait_until(lambda: "no progress" in first.errors, lambda: first.errors)
        s.target()
        answers = s.wait(1)
        self.assertIn("hangs: it goes on elsewhere", s.errors)
        self.check(answers, accepted=True)
        self.assertEqual(self.elsewhere(answers), 0)
        first.signal(signal.SIGCONT)
        wait_until(lambda: "the engine goes on" in first.errors, lambda: first.errors)
        s.ask(self.eight)
        self.check(s.wait(1 + EIGHT))

    def test_an_engine_that_fails(self):
        """Every decode step of one target fails from some moment on, as without memory: its answers go on elsewhere."""
        s = self.serve("--max-tokens", str(STORY))
        first = s.target(env={"TANDEM_FAULT": f"step-error:{EIGHT * 3}"})
        s.ask_stopped(self.eight, first, draft=False)  # before there is another one
        s.target(during=[first])
        answers = s.wait(EIGHT)
        self.check(answers)
        self.assertEqual(s.errors.count("its target failed (the engine failed"), EIGHT, s.errors)
        self.assertEqual(self.elsewhere(answers), 0)  # it reported its figures
        self.assertIsNone(first.process.poll())

    def test_drained(self):
        """SIGTERM: it finishes what it has, takes nothing new, and leaves."""
        s, first, second, answers, _ = self.lose(signal.SIGTERM)
        self.check(answers)
        self.assertEqual(self.elsewhere(answers), 0)
        self.assertEqual(first.end(), 0, first.errors)
        s.ask(self.eight[1:3])
        self.check(s.wait(3))

    def test_other_numerics(self):
        s, _, second, (a,), _ = self.lose(signal.SIGKILL, "--math", "f32")
        self.assertIs(a["numerics_changed"], True)
        self.assertIn("f32", a["numerics_id"])
        kept = len(a["token_ids"]) - a["stats"]["forwards"] - a["stats"]["accepted_tokens"]
        self.assertGreater(kept, 0)
        self.assertEqual(a["token_ids"][:kept], self.plain.answers[a["id"]]["token_ids"][:kept])


@thorough
class Many(Placed):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.record(cls.records(), TOKENS, 0.8)

    def test_drafts_come_and_go(self):
        """Sixteen sessions at a time at two targets, among them long prompts; drafts of every kind join, leave, are killed,
        and stand still for a while."""
        s = self.serve("--max-tokens", str(TOKENS))
        targets = [s.target("--sessions", str(EIGHT)) for _ in range(2)]
        model = ("model", "-m", MODEL, "--sessions", str(SIXTEEN))
        small = (*model, "-md", str(make_model(self.folder / "small.gguf", VOCABULARY)))

        def log():
            return "".join(t.errors for t in targets)

        def attached():
            return log().count("a draft is attached")

        def taken_over():
            """Has a session a second draft?"""
            return max(collections.Counter(re.findall(r"session \w+: a draft is attached", log())).values()) > 1

        def until(condition):
            """There is always work meanwhile."""
            def look():
                if s.program.out.count(b"\n") > asked[0] - SIXTEEN:
                    s.ask(self.records())
                    asked[0] += SIXTEEN
                return condition()

            wait_until(look, lambda: s.errors)

        def join(*kinds):
            """These, once they have work."""
            before = attached()
            drafts = [s.draft(*kind) for kind in kinds]
            until(lambda: attached() >= before + EIGHT)
            return drafts

        leaves, killed, still = (s.draft(*kind) for kind in (("ngram",), small, (*model, "--draft-layers", "2")))
        asked, moment = [0], time.monotonic()
        until(lambda: attached() >= SIXTEEN)
        leaves.signal(signal.SIGTERM)
        until(taken_over)
        killed.signal(signal.SIGKILL)
        still.signal(signal.SIGSTOP)
        for draft, number in zip(join((self.replay,), small), (signal.SIGTERM, signal.SIGKILL)):
            draft.signal(number)
        still.signal(signal.SIGCONT)
        both = join((self.replay,), ("ngram",))
        accepted = self.check(s.wait(asked[0]))
        tell(f"{attached()} attachments, {accepted} accepted in {time.monotonic() - moment:.1f} s; {s.end()}")
        for draft in (still, *both):
            self.assertIsNone(draft.process.poll(), draft.errors)


class Orchestrators(Placed):
    """The orchestrator's side: it waits, says so, leaves and comes back at the same address."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.two = cls.records()[:2]
        cls.record(cls.two, TOKENS, 0.8)

    def test_restarted(self):
        """Its workers stay: they register with the next one, whether it left in order or was killed in mid-answer."""
        flags = ("--max-tokens", str(TOKENS), *LOCKSTEP)
        s = self.serve(*flags)
        target, draft = s.target("--sessions", "2"), s.draft(self.replay)
        s.ask(self.two)
        self.check(s.wait(2), accepted=True)
        s.end()
        s = self.serve(*flags)
        s.here(2)
        s.ask_and_see(8 * self.two, [target])  # one time each could be over before it is seen
        s.program.signal(signal.SIGKILL)
        s.program.end()
        s = self.serve(*flags)
        s.here(2)
        s.ask(self.two)  # the places are busy until the lease of those that nobody asks for any more is over
        self.check(s.wait(2), accepted=True)
        s.end()
        for worker in (target, draft):
            self.assertIsNone(worker.process.poll(), worker.errors)

    @thorough
    def test_conversation_goes_where_it_was(self):
        """Of two targets, the one that has read a prompt's beginning gets what follows on it, and reads the rest only."""
        s = self.serve("--max-tokens", "8")
        targets = [s.target("--counters", "--kv", layout) for layout in ("static", "virtual")]
        s.ask(self.records()[-2:], draft=False)
        said = [a["prompt_ids"] + a["token_ids"] for a in s.wait(2)]
        for n, ids in enumerate(said):  # one after the other: else the load alone would part them
            s.ask([{"id": f"turn {n}", "prompt_ids": ids + self.two[0]["prompt_ids"]}], draft=False)
            s.wait(3 + n)
        s.end()
        for t in targets:
            t.signal(signal.SIGTERM)
            self.assertEqual(t.end(), 0, t.errors)
        reused = [counters_of(t.errors)["sessions"]["reused_rows"] for t in targets]
        for rows, had in zip(sorted(reused), sorted(len(ids) for ids in said)):
            self.assertGreaterEqual(rows, had - 16)  # blocks are of 16 tokens

    @thorough
    def test_switches(self):
        """Each request has its own; unknown ones are refused by name, and the others go on."""
        s = self.serve("--max-tokens", str(TOKENS), "--pace", "lockstep")
        s.target(), s.draft(self.replay)
        one, id = self.two[0], self.two[0]["id"]
        want = self.plain.answers[id]["token_ids"]
        s.ask([{**one, "draft": False}, {**one, "budget": 0}, {**one, "budget": 2}, {**one, "max_tokens": 3}, one,
               {**one, "budgets": 3}])
        answers = s.wait(6)
        self.assertEqual([a["token_ids"] == want for a in answers].count(True), 4)
        self.assertEqual([a["token_ids"] == want[:3] for a in answers].count(True), 1)
        self.assertEqual([a.get("error") for a in answers if a["finish_reason"] == "error"],
                         ['unknown key "budgets": did you mean "budget"?'])
        off = [a for a in answers if a["stats"]["draft_method"] == "none" and a["finish_reason"] != "error"]
        self.assertEqual(len(off), 2)
        self.assertEqual(total({i: a for i, a in enumerate(off)}, "rounds"), 0)
        self.assertGreater(max(a["stats"]["accepted_tokens"] for a in answers), 0)
        s.program.process.stdin.close()
        self.assertEqual(s.program.end(), 1, s.errors)  # one has failed

    def test_waits_and_says_so(self):
        endpoint = f"ipc://{self.folder}/o"
        run = Running(self.folder, TANDEM, "run", "-m", MODEL, "--listen", endpoint, "--wait", "4", "hello")
        self.addCleanup(run.close)
        self.assertEqual(run.end(), WORKER_FAILED, run.errors)
        told, why = [line for line in run.errors.splitlines() if "tandem-target -m" in line]
        self.assertIn("waiting for a target", told)
        self.assertIn("no target for 4 s", why)
        self.assertIn(endpoint, told)

    @thorough
    def test_workers_wait_and_say_so(self):
        endpoint = f"ipc://{self.folder}/o"
        workers = [Running(self.folder, *command, "--orchestrator", endpoint)
                   for command in ((DRAFT,), (TARGET, "-m", MODEL, "--threads", "1"))]
        for worker in workers:
            self.addCleanup(worker.close)
        for worker in workers:
            waits = f"waiting for the orchestrator at {endpoint}: is 'tandem serve-workers --listen {endpoint}' running there?"
            wait_until(lambda: waits in worker.errors, lambda: worker.errors)
        s = Served(self, endpoint=endpoint)
        for worker in workers:
            wait_until(lambda: f"the orchestrator at {endpoint} is there now" in worker.errors, lambda: worker.errors)
        s.program.signal(signal.SIGKILL)
        for worker in workers:
            gone = f"the orchestrator at {endpoint} is not there any more"
            wait_until(lambda: gone in worker.errors, lambda: worker.errors)
            self.assertEqual(worker.errors.count("waiting for the orch"), 1)

    def test_address_in_use_or_open_to_others(self):
        s = self.serve()
        for endpoint, word, status in ((s.endpoint, "in use", IO), ("ipc://@tandem-test", "--insecure-bind", USAGE)):
            run = Running(self.folder, TANDEM, "run", "-m", MODEL, "--listen", endpoint, "hello")
            self.addCleanup(run.close)
            self.assertEqual(run.end(), status, run.errors)
            self.assertIn(word, run.errors)

    def test_run_and_batch_over_tcp(self):
        """The same workers for one command after the other; here by TCP, at a port that is free meanwhile, too."""
        s = self.serve_at_a_port()
        s.target(), s.draft(self.replay)
        s.end()
        got = batch(self.folder, self.two, "--listen", s.endpoint, "--max-tokens", str(TOKENS))
        self.check(got.answers.values())
        plain = batch(self.folder, self.two, "--listen", s.endpoint, "--max-tokens", str(TOKENS), "--draft", "none")
        self.check(plain.answers.values())
        self.assertEqual(total(plain.answers, "draft_tokens"), 0)

    def serve_at_a_port(self):
        """One that nobody else listens at, and that is given to nobody who connects."""
        while True:
            s = Served(self, endpoint=f"tcp://127.0.0.1:{random.choice(PORTS)}")
            if "in use" not in s.errors:
                return s

    def test_a_draft_that_does_not_come(self):
        """Whoever lets workers register begins without a draft, soon after the first target."""
        endpoint = f"ipc://{self.folder}/o"
        target = Running(self.folder, TARGET, "-m", MODEL, "--orchestrator", endpoint, "--threads", "1")
        self.addCleanup(target.close)
        got = batch(self.folder, self.two[:1], "--listen", endpoint, "--max-tokens", str(TOKENS))
        self.check(got.answers.values())


@thorough
class Memory(Placed):
    """Thousands of sessions opened and dropped leave memory flat: answers of four tokens, some cut by a stop
    string, with a draft and without. By the thousandth, caches and the heap have the size that they keep."""

    EARLY, ALL = 1000, 3000
    GROWTH = 400  # KiB, a fifth a session: whatever of it were left, a tree, figures, tokens, would be several

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        ids = cls.records()[0]["prompt_ids"]
        cls.prompts = [{"id": i, "prompt_ids": ids[i:i + 8]} for i in range(16)]
        cls.record(cls.prompts, 4, 1)

    def test_flat(self):
        s = self.serve("--max-tokens", "4", "--stop", "e")
        target, draft = s.target("--sessions", "4"), s.draft(self.replay)
        programs = {"tandem": s.program.pid, "tandem-target": target.pid, "tandem-draft": draft.pid}

        def go(first, last):
            s.ask({**self.prompts[i % 16], "id": i, "draft": i % 3 > 0} for i in range(first, last))
            s.wait(last)
            return {name: resident(pid) for name, pid in programs.items()}

        early = go(0, self.EARLY)
        late = go(self.EARLY, self.ALL)
        reasons = [a["finish_reason"] for a in s.answers]
        self.assertEqual(set(reasons), {"length", "stop"})
        tell(f"{s.end()}; KiB after {self.EARLY} and {self.ALL}: " +
             ", ".join(f"{name} {early[name]} {late[name]}" for name in programs))
        for name in programs:
            self.assertLess(late[name] - early[name], self.GROWTH, name)


if __name__ == "__main__":
    unittest.main()
