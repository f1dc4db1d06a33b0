"""Devices that are lost, and answers that move from one device to another: every token is plain decode's.

TANDEM_TEST_DEVICES=A,B: two devices, of which A can be lost on purpose. By default they are far:cpu and
another kind of kernels of this processor. On a machine with a GPU: TANDEM_TEST_DEVICES=cuda:0,cpu. Nothing is
needed but the programs, the model and Python's own library."""

import json
import os
import re
import subprocess
import time
from signal import SIGTERM

from placed import LOCKSTEP, Placed
from programs import MODEL, SUBSET, TANDEM, Running, counters_of, tell, thorough, wait_until, whole_model

STORY = 40 if SUBSET else 120  # tokens of an answer whose device is lost
LOSE = 20 if SUBSET else 40  # the forward that does not come back
ANSWERS, GROUP = (8, 8) if SUBSET else (100, 25)  # in all, and at a time
MOVES = 32 if SUBSET else 64  # tokens of an answer that moves twice
STEPS = 12 if SUBSET else 32  # that each answer makes at a device before it is lost, besides the prompts
DEVICE_LOST, WORKER_FAILED = 9, 7  # exit statuses


def other_kernels():
    listed = subprocess.run([TANDEM, "--list-devices"], capture_output=True, text=True).stdout
    names = re.findall(r"^(cpu:avx\S*) (?:chosen|available)", listed, re.M)
    return names[1] if len(names) > 1 else "cpu"


A, B = (os.environ.get("TANDEM_TEST_DEVICES") or f"far:cpu,{other_kernels()}").split(",")


def losable(device):
    return device if device.startswith(("far", "cuda")) else f"far:{device}"


def losing(device, forward):
    """The environment of a program whose device is lost at its n-th forward."""
    far = device.startswith("far")
    return {"TANDEM_FAR": f"lose={forward}"} if far else {"TANDEM_CUDA_LOSE": str(forward)}


class Lost(Placed):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.four = cls.records()[:4]
        cls.record(cls.four, STORY, 0.5)

    def ends(self, worker):
        """Its program ends by itself once it has said which device is lost: the seconds between."""
        wait_until(lambda: "is lost" in worker.errors, lambda: worker.errors)
        moment = time.monotonic()
        self.assertEqual(worker.end(), DEVICE_LOST, worker.errors)
        self.assertRegex(worker.errors, rf"error: the device {A}\S* is lost")
        self.assertEqual(worker.errors.count(" error: "), 1, worker.errors)
        return time.monotonic() - moment

    @thorough
    def test_another_target_goes_on(self):
        s = self.serve("--max-tokens", str(STORY))
        first = s.target("--device", A, env=losing(A, LOSE))
        s.target("--device", B)
        s.draft(self.replay)
        s.ask(self.four)
        self.check(s.wait(4))
        seconds = self.ends(first)
        before, moved, _ = s.errors.partition("goes on elsewhere from token")
        self.assertTrue(moved, s.errors)
        self.assertNotIn("is silent", before)  # nobody had to wait for 3 s of silence
        tell(f"{s.end()}; the program ended {seconds:.2f} s after it said so")

    def test_without_another_target_there_is_one_error(self):
        s = self.serve("--max-tokens", str(STORY))
        first = s.target("--device", A, env=losing(A, LOSE))
        s.ask(self.four, draft=False)
        for a in s.wait(4):
            self.assertEqual(a["finish_reason"], "error")
            self.assertRegex(a["error"], rf"the target's device {A}\S* is lost, and there is no other target")
            want = self.plain.answers[a["id"]]["token_ids"]
            self.assertEqual(a["token_ids"], want[:len(a["token_ids"])])
            self.assertLess(len(a["token_ids"]), len(want))
        self.ends(first)
        s.target("--device", B)  # the orchestrator lives, and takes the next one
        s.ask(self.four, draft=False)
        self.check(s.wait(8)[4:])

    def run_one(self, *flags, **env):
        r = self.four[0]
        run = Running(self.folder, TANDEM, "batch", "-m", MODEL, "--device", A, "--draft", "none",
                      "--max-tokens", str(STORY), *flags, str(self.prompt(r)), "-", env=env)
        self.addCleanup(run.close)
        return run, run.end(), self.plain.answers[r["id"]]["token_ids"]

    def prompt(self, record):
        path = self.folder / "prompt.jsonl"
        path.write_text(json.dumps(record) + "\n")
        return path

    def test_a_target_that_tandem_started_is_started_again(self):
        """Each start computes some tokens of the answer: all of them are right."""
        run, status, want = self.run_one(**losing(A, STORY // 2 + 2))
        self.assertEqual(status, 0, run.errors)
        self.assertEqual(json.loads(run.out)["token_ids"], want)
        self.assertIn("tandem-target died: exit status 9; started again (1 of 5)", run.errors)

    def test_a_cache_may_be_in_the_hosts_memory(self):
        """The same tokens. A GPU counts such a cache apart; a processor has no other memory."""
        run, status, want = self.run_one("--verbose", "--kv-in", "host")
        self.assertEqual(status, 0, run.errors)
        self.assertEqual(json.loads(run.out)["token_ids"], want)
        taken = counters_of(run.errors)["memory_bytes"]
        self.assertEqual(taken["kv_host"] > taken["kv"], A.startswith("cuda"), taken)

    @thorough
    def test_a_device_that_is_lost_at_every_start_ends_with_an_error(self):
        run, status, _ = self.run_one(**losing(A, 1))
        self.assertEqual(status, WORKER_FAILED, run.errors)
        self.assertIn("tandem-target kept dying (exit status 9)", run.errors)

    def test_a_forward_that_fails_is_repeated(self):
        if not A.startswith("far"):
            self.skipTest("only the far device fails on purpose without being lost")
        run, status, want = self.run_one(TANDEM_FAR=f"fail={LOSE}")
        self.assertEqual(status, 0, run.errors)
        self.assertEqual(json.loads(run.out)["token_ids"], want)
        self.assertIn("warning: a forward is repeated", run.errors)

    @whole_model
    def test_a_draft_whose_device_is_lost_leaves(self):
        s = self.serve("--max-tokens", str(STORY), *LOCKSTEP)
        s.target("--device", B)
        draft = s.draft("model", "-m", MODEL, "--draft-layers", "6", "--device", A, env=losing(A, 3))
        s.ask(self.four[:1])
        self.check(s.wait(1))
        self.ends(draft)
        self.assertIn("decodes plainly: the draft's device is lost", s.errors)


@thorough
class Failover(Placed):
    """A hundred answers, each computed on A, then on B, then on A again: greedy and at a temperature, many at
    a time."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        prompts = cls.records()[:14]
        cls.many = [{"id": i, "prompt_ids": prompts[i % 14]["prompt_ids"]} for i in range(ANSWERS)]
        for r in cls.many[len(prompts) if not SUBSET else 4:]:
            r.update(temperature=0.8, seed=r["id"])
        cls.record(cls.many, MOVES, 0.5)

    def group(self, records):
        """Their answers, and for each the tokens at which it has moved."""
        s = self.serve("--max-tokens", str(MOVES), "--ctx", "512")
        forwards = len(records) + STEPS  # a prompt is one

        def target(device, **more):
            return s.target("--device", device, "--sessions", str(GROUP), "--ctx", "512", **more)
        first = target(losable(A), env=losing(losable(A), forwards))
        s.ask_stopped(records, first)  # before there is another one
        second = target(losable(B), env=losing(losable(B), forwards), during=[first])
        wait_until(lambda: "goes on elsewhere" in s.errors, lambda: first.errors + second.errors + s.errors)
        third = target(A, during=[second])
        answers = s.wait(len(records))
        moves = {}
        for session, at in re.findall(r"session (\w+): its target was lost: .* from token (\d+)", s.errors):
            moves.setdefault(session, []).append(int(at))
        s.end()
        for worker in (first, second, third):
            worker.close()
        return answers, [moves.get(a["session"], []) for a in answers]

    def test_there_and_back(self):
        twice = inside = 0
        for i in range(0, ANSWERS, GROUP):
            answers, moves = self.group(self.many[i:i + GROUP])
            self.check(answers)
            twice += sum(len(m) >= 2 for m in moves)
            prompts = [a["prompt_tokens"] for a in answers]
            inside += sum(len(m) >= 2 and p < m[0] < m[1] for m, p in zip(moves, prompts))
        tell(f"{ANSWERS} answers: {twice} moved twice, {inside} of them with tokens from every device")
        self.assertGreater(inside, ANSWERS // 2)


@thorough
class Together(Placed):
    """Targets of different devices at one orchestrator; drafts beside their target and elsewhere."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.six = cls.records()[:6]
        cls.record(cls.six, STORY, 0.8)

    def test_targets_of_several_devices(self):
        s = self.serve("--max-tokens", str(STORY))
        targets = [s.target("--device", device, "--counters") for device in (A, B, "cpu")]
        s.draft(self.replay)
        s.ask(self.six)
        self.check(s.wait(6))
        self.assertEqual(len({a["numerics_id"] for a in s.answers}), 1)
        s.end()
        for t in targets:
            t.signal(SIGTERM)
            self.assertEqual(t.end(), 0, t.errors)
            self.assertGreater(counters_of(t.errors)["engine"]["tokens"], 0)  # each had a part

    def colocated(self, device, *flags):
        """What the target has noted at its steps: does the draft share its device?"""
        steps = self.folder / f"steps-{device.replace(':', '-')}"
        s = self.serve("--max-tokens", str(STORY), *LOCKSTEP)
        target = s.target("--device", A, "--record-steps", str(steps))
        s.draft("model", "-m", MODEL, "--draft-layers", "6", "--device", device, *flags)
        s.ask(self.six[:1])
        self.check(s.wait(1))
        s.end()
        target.signal(SIGTERM)
        self.assertEqual(target.end(), 0, target.errors)
        return {json.loads(line)["colocated"] for line in steps.read_text().splitlines()}

    def test_a_draft_on_the_targets_device_takes_turns(self):
        self.assertIn(True, self.colocated(A, "--turns"))

    def test_a_draft_beside_it_does_not(self):
        self.assertEqual(self.colocated(A, "--beside"), {False})

    def test_a_draft_on_another_device_does_not(self):
        self.assertEqual(self.colocated(B), {False})
