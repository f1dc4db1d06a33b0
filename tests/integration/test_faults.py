"""Programs that die, stop, forget or fail in mid-answer: no output differs, nobody stalls, and what was lost is said."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

from drafted import DraftedAnswer, DraftHub
from models import make_model
from support import (DRAFT, DRAFT_ROLE, LENGTH, MODEL, SUBSET, TANDEM, TARGET_ROLE, TIME_LIMIT, VOCABULARY,
                     Answer, Case, Hub, Running, batch, child_named, children_of, golden, is_running,
                     registered, start_target, tell, thorough, total, wait_until)

PROMPT = "Tell me a very long story about the sea."  # its answer goes on for thousands of tokens
RECORDED = 200 if SUBSET else 500  # tokens of the answer that is compared
ENDLESS = ("--max-tokens", "3500")  # ended by Ctrl-C, wherever it is then
STEP_MS = 10  # that each step of such an answer takes at least, on the fastest machine
LONG_STEP_MS = 40  # where the test waits for what takes seconds: the answer takes longer than it may wait
BEGUN = 100  # bytes: the answer is under way
MORE = 200  # bytes that must still come after a fault
SHORT = (102, 123, 214, 326, 341, 116, 121, 149)  # golden prompts below 100 tokens
BATCH_TOKENS = 12 if SUBSET else 40
CREDIT = 256  # tokens that a target is ahead of what is acknowledged
STEP = 60  # tokens between two deaths
INTERRUPTED = 130


class HeldAnswer(DraftedAnswer):
    """It is acknowledged as far as the test says, so that the target stops for want of credit."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.held, self.acknowledges = self.prompt_length, False

    def renew(self):
        if time.monotonic() - self.ack_moment > 0.1:
            self.ack(len(self.tokens) if self.held is None else min(self.held, len(self.tokens)))

    def hold(self, length):
        self.held = length

    def stands(self):
        return len(self.tokens) >= self.held + CREDIT - self.options["budget"]


class Faults(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = cls.run_json("--draft", "none", "--max-tokens", str(RECORDED))
        cls.text = cls.plain["text"].encode()
        cls.recording = cls.folder / "story.jsonl"
        cls.recording.write_text(json.dumps(cls.plain) + "\n")
        cls.draft = ("--draft", f"replay:{cls.recording}:0.9")
        cls.shorts = [r for r in golden() if r["id"] in SHORT]
        cls.short_plain = batch(cls.folder, cls.shorts, "--draft", "none", "--max-tokens", str(BATCH_TOKENS))

    @classmethod
    def run_json(cls, *flags, fault=None):
        """A `run` to its end: its object; its stderr in `errors`."""
        env = dict(os.environ, **({"TANDEM_FAULT": fault} if fault else {}))
        done = subprocess.run([TANDEM, "run", "-v", "-m", MODEL, "--json", *flags, PROMPT], capture_output=True, env=env,
                              timeout=TIME_LIMIT)
        cls.errors = done.stderr.decode()
        assert done.returncode == 0, cls.errors
        return json.loads(done.stdout)

    def start(self, *flags, step_ms=STEP_MS):
        """A long answer that has begun."""
        slow = {"TANDEM_FAULT": f"slow-step:{step_ms}"}
        run = Running(self.folder, TANDEM, "run", "-m", MODEL, *flags, PROMPT, env=slow)
        self.addCleanup(run.close)
        wait_until(lambda: len(run.out) > BEGUN, lambda: run.errors)
        return run

    def more(self, run):
        """So much of the answer comes after this moment."""
        end = len(run.out) + MORE
        wait_until(lambda: len(run.out) > end or run.process.poll() is not None, lambda: run.errors)

    def finish(self, run, status=0):
        """The end: output as recorded, as far as both go; nothing is left. The closing lines."""
        children = children_of(run.pid)
        self.assertEqual(run.end(), status, run.errors)
        self.same_text(run, self.text)
        wait_until(lambda: not any(map(is_running, children)), "orphans")
        closing = re.search(r"(?m)^tandem: \d+ tokens?\b", run.errors)
        return run.errors[closing.start():].replace("\ntandem: ", "; ")

    def same_text(self, run, text):
        size = min(len(run.out), len(text))
        self.assertGreater(size, BEGUN + MORE)
        self.assertEqual(run.out[:size], text[:size])

    def interrupt(self, run):
        """Ctrl-C: the closing lines."""
        run.signal(signal.SIGINT)
        return self.finish(run, INTERRUPTED)

    def accepted(self, summary):
        return int(re.search(r"guessed (\d+) of \d+ right", summary)[1])

    def kill(self, run, name, number=signal.SIGKILL):
        """One of its programs, once it is there: until this is seen, and the answer has gone on."""
        died = f"{name} died"
        before = run.errors.count(died)
        os.kill(wait_until(lambda: child_named(run.pid, name), lambda: run.errors), number)
        wait_until(lambda: run.errors.count(died) > before, lambda: run.errors)
        self.more(run)

    # The draft.

    def test_draft_dies(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(signal=number):
                run = self.start(*self.draft, *ENDLESS)
                moment = time.monotonic()
                self.kill(run, "tandem-draft", number)
                summary = self.interrupt(run)
                tell(f"draft ended by signal {int(number)}: longest silence {run.silence(moment) * 1000:.0f} ms; {summary}")

    def test_draft_dies_in_lockstep(self):
        run = self.start("-v", *self.draft, "--pace", "lockstep", *ENDLESS)
        attached = run.errors.count("a draft is attached")
        self.kill(run, "tandem-draft")
        wait_until(lambda: run.errors.count("a draft is attached") > attached, lambda: run.errors)
        self.more(run)
        summary = self.interrupt(run)
        self.assertNotIn("decoded plainly", summary)
        self.assertGreater(self.accepted(summary), 0)
        tell(summary)

    def test_draft_keeps_dying(self):
        run = self.start(*self.draft, *ENDLESS, step_ms=LONG_STEP_MS)
        killed = set()

        def kill():
            child = child_named(run.pid, "tandem-draft")
            if child and child not in killed:
                killed.add(child)
                os.kill(child, signal.SIGKILL)
            return "answers come without a draft" in run.errors

        wait_until(kill, lambda: run.errors)
        self.more(run)
        summary = self.interrupt(run)
        self.assertEqual(len(killed), 6)  # and five times started again
        self.assertIn("decoded plainly: the draft worker died", summary)

    def test_draft_stopped(self):
        run = self.start(*self.draft, *ENDLESS, step_ms=LONG_STEP_MS)
        moment, before = time.monotonic(), len(run.out)
        os.kill(child_named(run.pid, "tandem-draft"), signal.SIGSTOP)
        wait_until(lambda: "silent for 3 s" in run.errors, lambda: run.errors)
        self.assertGreater(len(run.out), before + MORE // 4)  # more than was under way: it has not waited for that
        self.more(run)
        summary = self.interrupt(run)
        self.assertIn("decoded plainly: the draft worker has been silent for 3 s", summary)
        tell(f"draft stopped: longest silence {run.silence(moment) * 1000:.0f} ms; {summary}")

    def test_draft_stopped_and_continued(self):
        run = self.start("-v", *self.draft, *ENDLESS, step_ms=LONG_STEP_MS)
        wait_until(lambda: "a draft is attached" in run.errors, lambda: run.errors)
        moment = time.monotonic()
        draft = child_named(run.pid, "tandem-draft")
        os.kill(draft, signal.SIGSTOP)
        for lost in ("the draft worker has been silent for 3 s", "draft detached: "):
            wait_until(lambda: lost in run.errors, lambda: run.errors)
        before = run.errors.count("a draft is attached")  # who attaches repeats it until it is answered
        os.kill(draft, signal.SIGCONT)
        wait_until(lambda: run.errors.count("a draft is attached") > before, lambda: run.errors)
        self.more(run)
        summary = self.interrupt(run)
        for gone in ("silent", "no draft worker", "tandem-draft died"):
            self.assertNotIn(gone, summary)
        tell(f"draft stopped for 3 s: longest silence {run.silence(moment) * 1000:.0f} ms; {summary}")

    @thorough
    def test_four_drafts_die_one_after_another(self):
        """One session fed by four drafts of different kinds. In lockstep, so that each of them counts."""
        hub = DraftHub(f"ipc://{self.folder}/hub")
        self.addCleanup(hub.close)
        target = start_target(self.folder, hub.endpoint)
        self.addCleanup(target.close)
        peer, prompt = hub.wait_for(TARGET_ROLE), self.plain["prompt_ids"]
        hello, length = hub.peers[peer], CREDIT + STEP * 6
        plain = Answer(hub, peer, prompt, max_tokens=length).open().finish()
        book = self.folder / "book.jsonl"
        book.write_text(json.dumps({"prompt_ids": prompt, "token_ids": plain}) + "\n")
        kinds = (("ngram",), ("model", "-md", str(make_model(self.folder / "small.gguf", VOCABULARY))),
                 ("model", "-m", MODEL, "--draft-layers", "2"), (f"replay:{book}:1",))
        answer = HeldAnswer(hub, peer, prompt, max_tokens=length, budget=7, lockstep=True).open()
        Hub.kept.append(answer)
        self.addCleanup(Hub.kept.clear)
        drafts, here = [], set()
        for kind in kinds:
            drafts.append(Running(self.folder, DRAFT, "--orchestrator", hub.endpoint, "--draft", *kind))
            self.addCleanup(drafts[-1].close)
            routing = hub.wait_for(DRAFT_ROLE, here)
            here.add(routing)
            answer.open_draft(routing, hello[9], hello[4]).expect("OPENED")
        hub.wait(lambda: target.errors.count("a draft is attached") >= len(kinds), lambda: target.errors)
        for draft, number in zip(drafts, (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
            answer.hold(answer.held + STEP)  # so far it goes on, whoever is left
            hub.wait(answer.stands, lambda: target.errors)
            draft.signal(number)
        answer.hold(answer.held + STEP)
        hub.wait(lambda: target.errors.count("draft detached") == len(kinds), lambda: target.errors)
        hub.wait(answer.stands, lambda: target.errors)
        self.assertLess(len(answer.output), length)  # all of them died in mid-answer
        answer.hold(None)
        self.assertEqual(answer.finish(), plain)
        self.assertEqual(target.errors.count("draft detached: it is gone: its connection ended"), 2, target.errors)
        self.assertEqual(len(plain), answer.stats["forwards"] + answer.stats["accepted"])
        self.assertGreater(answer.stats["accepted"], CREDIT + STEP)  # more than there was before the first died: others went on
        tell(f"{len(plain)} tokens, {answer.stats['accepted']} accepted of {answer.stats['rows']} in {answer.stats['rounds']} rounds")

    def test_draft_stopped_in_lockstep(self):
        """The target waits for it as long as it may only be slow, then goes on without it, and with it when it is back."""
        run = self.start("-v", *self.draft, "--pace", "lockstep", *ENDLESS, step_ms=LONG_STEP_MS)
        draft = child_named(run.pid, "tandem-draft")
        os.kill(draft, signal.SIGSTOP)
        for lost in ("silent for 3 s", "draft detached: "):
            wait_until(lambda: lost in run.errors, lambda: run.errors)
        self.more(run)
        before = run.errors.count("a draft is attached")
        os.kill(draft, signal.SIGCONT)
        wait_until(lambda: run.errors.count("a draft is attached") > before, lambda: run.errors)
        self.more(run)
        summary = self.interrupt(run)
        self.assertGreater(self.accepted(summary), 0)
        tell(summary)

    # The target.

    def test_target_dies(self):
        run = self.start(*self.draft, *ENDLESS)
        moment = time.monotonic()
        for _ in range(2):
            self.kill(run, "tandem-target")
        summary = self.interrupt(run)
        self.assertEqual(run.errors.count("tandem-target died"), 2)
        self.assertNotIn("NUMERICS CHANGED", summary)
        counted, tokens = map(int, re.search(r"counted over (\d+) of the (\d+) tokens", run.errors).groups())
        self.assertLess(counted, tokens)  # what a killed target counted is lost with it
        tell(f"target killed twice: longest silence {run.silence(moment) * 1000:.0f} ms")

    def test_target_dies_while_sampling(self):
        sampled = ("--temp", "0.8", "--seed", "11", "--frequency-penalty", "0.2", "--logit-bias", "28-100")
        want = self.run_json("--draft", "none", *sampled, "--max-tokens", str(RECORDED // 3))
        run = self.start("--draft", "ngram", "--budget", "4", *sampled, *ENDLESS)
        self.kill(run, "tandem-target")
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), INTERRUPTED, run.errors)
        self.same_text(run, want["text"].encode())

    def test_target_stopped_and_continued(self):
        run = self.start(*self.draft, *ENDLESS, step_ms=LONG_STEP_MS)
        target = child_named(run.pid, "tandem-target")
        os.kill(target, signal.SIGSTOP)
        wait_until(lambda: "its target was lost" in run.errors, lambda: run.errors)
        os.kill(target, signal.SIGCONT)
        self.more(run)
        self.interrupt(run)

    @thorough
    def test_target_dies_with_four_sessions(self):
        source, out = self.folder / "in.jsonl", self.folder / "out.jsonl"
        lines = [{"id": r["id"], "prompt_ids": r["prompt_ids"]} for r in self.shorts]
        story = {"id": "story", "prompt": PROMPT, "max_tokens": RECORDED}  # takes longer than it takes to see the first answer
        source.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:4], story, *lines[4:]]))
        run = Running(self.folder, TANDEM, "batch", "-m", MODEL, "--draft", "ngram", "--pace", "lockstep", "--sessions", "4",
                      "--max-tokens", str(BATCH_TOKENS), str(source), str(out))
        self.addCleanup(run.close)
        wait_until(lambda: out.exists() and out.stat().st_size > 0, lambda: run.errors)
        os.kill(child_named(run.pid, "tandem-target"), signal.SIGKILL)
        self.assertEqual(run.end(), 0, run.errors)
        self.assertIn("tandem-target died", run.errors)
        answers = {a["id"]: a for a in map(json.loads, out.read_text().splitlines())}
        self.assertEqual(answers.pop("story")["token_ids"], self.plain["token_ids"])
        self.same_batch(answers)

    # Inside the target.

    def same_batch(self, answers):
        self.assertEqual(len(answers), len(self.shorts))
        for key, a in answers.items():
            self.assertEqual(a["token_ids"], self.short_plain.answers[key]["token_ids"], key)
            self.assertEqual(a["finish_reason"], self.short_plain.answers[key]["finish_reason"])

    def faulty_batch(self, fault, *flags, draft=None):
        draft = draft or f"replay:{self.short_plain.path}:0.9"
        run = batch(self.folder, self.shorts, "--sessions", "4", "--max-tokens", str(BATCH_TOKENS), "--draft", draft,
                    *flags, env={"TANDEM_FAULT": fault})
        self.same_batch(run.answers)
        self.assertEqual("decoded plainly" in run.errors, any(self.reasons(run)))
        return run

    def reasons(self, run):
        return [a["stats"]["speculation_off_reason"] for a in run.answers.values()]

    def test_cache_rolled_back(self):
        """Behind the session's back, by a row, by some, to nothing; at the start and later; in both paces."""
        tokens = ("--max-tokens", "60" if SUBSET else "100")
        narrow = ("--budget", "3")  # so that there are nine forwards
        for fault, flags in [("kv-rollback:1:1", ("--pace", "lockstep")), ("kv-rollback:9:10", ("--pace", "lockstep")),
                             ("kv-rollback:9:100000", ("--pace", "lockstep")), ("kv-rollback:9:3", ()),
                             ("kv-rollback:5:30", ("--draft", "none"))]:
            with self.subTest(fault=fault, flags=flags):
                a = self.run_json(*self.draft, *narrow, *flags, *tokens, fault=fault)
                self.assertEqual(a["token_ids"], self.plain["token_ids"][:len(a["token_ids"])])
                self.assertEqual(len(a["token_ids"]), int(tokens[1]))
                self.assertEqual(self.errors.count("out of step"), 1)
                if "lockstep" in flags:
                    self.assertGreater(a["stats"]["accepted_tokens"], 0)
                self.assertGreaterEqual(a["stats"]["forwards"] + a["stats"]["accepted_tokens"], int(tokens[1]))
                tell(f"{fault}: {a['stats']['forwards']} forwards + {a['stats']['accepted_tokens']} accepted")

    def test_cache_rolled_back_under_one_of_four(self):
        run = self.faulty_batch("kv-rollback:20:7", "--pace", "lockstep")
        self.assertEqual(run.errors.count("out of step"), 1)
        self.assertEqual(set(self.reasons(run)), {None})
        self.assertGreater(total(run.answers, "accepted_tokens"), 0)

    def test_verify_fails(self):
        for number in (1, 4):
            with self.subTest(number=number):
                run = self.faulty_batch(f"verify-error:{number}", "--pace", "lockstep")
                self.assertEqual(sorted(filter(None, self.reasons(run))), ["an error inside a verify"])
                self.assertEqual(run.errors.count("it decodes plainly from now on"), 1)
                self.assertEqual(run.counters["engine"]["failures"], 1)
                for a in run.answers.values():
                    self.assertEqual(len(a["token_ids"]), a["stats"]["forwards"] + a["stats"]["accepted_tokens"])
                self.assertGreater(total(run.answers, "accepted_tokens"), 0)

    def test_selfcheck_finds_a_wrong_token(self):
        flags = (*self.draft, "--pace", "lockstep", "--max-tokens", "40")
        wrong = self.run_json(*flags, fault="wrong-token:2")
        self.assertNotEqual(wrong["token_ids"], self.plain["token_ids"][:40])  # so these comparisons can fail
        a = self.run_json(*flags, "--selfcheck", "1", fault="wrong-token:2")
        self.assertEqual(a["token_ids"], self.plain["token_ids"][:40])
        self.assertIn("self-check found a difference", a["stats"]["speculation_off_reason"])
        self.assertIn("decoded plainly", self.errors)
        self.assertGreater(a["stats"]["accepted_tokens"], 0)  # of the rounds before

    def test_a_fault_that_is_none(self):
        env = dict(os.environ, TANDEM_FAULT="sing")
        done = subprocess.run([TANDEM, "run", "-m", MODEL, PROMPT], capture_output=True, env=env, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, 7)
        self.assertIn(b"kv-rollback:AFTER:BY", done.stderr)

    # The orchestrator.

    def test_batch_ends_without_orphans(self):
        source = self.folder / "in.jsonl"
        source.write_text("".join(json.dumps({"id": i, "prompt": PROMPT}) + "\n" for i in range(8)))
        for number, stopped in [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGINT, False)]:
            with self.subTest(signal=number, stopped=stopped):
                out = self.folder / f"out-{int(number)}-{stopped}.jsonl"
                run = Running(self.folder, TANDEM, "batch", "-v", "-m", MODEL, *ENDLESS, *self.draft, str(source), str(out))
                self.addCleanup(run.close)
                wait_until(lambda: "a draft is attached" in run.errors, lambda: run.errors)
                children = children_of(run.pid)
                self.assertEqual(len(children), 2)
                for child in children if stopped else []:
                    os.kill(child, signal.SIGSTOP)
                run.signal(number)
                self.assertEqual(run.end(), INTERRUPTED if number == signal.SIGINT else -signal.SIGKILL)
                wait_until(lambda: not any(map(is_running, children)), "orphans")
        answers = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual({a["finish_reason"] for a in answers}, {"cancelled"})
        for a in answers:  # what there was
            size = min(len(a["token_ids"]), RECORDED)
            self.assertEqual(a["token_ids"][:size], self.plain["token_ids"][:size])

    def test_target_drains(self):
        """SIGTERM: nothing new is taken, what is open finishes, then it leaves."""
        hub = Hub(f"ipc://{self.folder}/hub")
        self.addCleanup(hub.close)
        target = start_target(self.folder, hub.endpoint)
        self.addCleanup(target.close)
        peer, = registered(hub)
        answer = HeldAnswer(hub, peer, self.plain["prompt_ids"], max_tokens=CREDIT + STEP).open()
        Hub.kept.append(answer)
        self.addCleanup(Hub.kept.clear)
        hub.wait(answer.stands, lambda: target.errors)
        target.signal(signal.SIGTERM)
        hub.inbox.expect("BYE")
        late = Answer(hub, peer, self.plain["prompt_ids"]).open()
        late.expect_error("draining")
        answer.hold(None)
        self.assertEqual(answer.finish()[:RECORDED], self.plain["token_ids"][:CREDIT + STEP])
        self.assertEqual((answer.done[2], len(answer.output)), (LENGTH, CREDIT + STEP))
        self.assertEqual(target.end(), 0, target.errors)


if __name__ == "__main__":
    unittest.main()
