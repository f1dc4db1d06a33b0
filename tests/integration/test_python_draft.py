"""python_draft.py, a draft that was written from wire/PROTOCOL.md alone, beside a real tandem-target and the real
model: whatever it offers, the answer is the one without a draft, and the figures add up.
"""

import json
import shutil
import signal
import subprocess
import sys
import unittest

import python_draft
import python_frames
from drafted import DraftedAnswer, DraftHub
from support import (CODES, DRAFT_ROLE, LENGTH, MODEL, ROOT, STOP, SUBSET, TANDEM, TARGET, TARGET_ROLE,
                     TIME_LIMIT, ZERO, Answer, Case, Hub, Inbox, Running, encode, golden, hello_fields,
                     start_target, tell, thorough)

WORKER = str(ROOT / "tests/integration/python_draft.py")
VECTORS = ROOT / "wire/vectors"
TOKENS = 24 if SUBSET else 80
CREDIT = 256  # tokens that a target runs ahead of the last ACK
SAMPLED = {"temperature": 0.8, "seed": 20240607}


def repeated(count, times):
    """A prompt that repeats itself, and so does the answer of a small model."""
    return golden()[0]["prompt_ids"][3:3 + count] * times


def start_draft(case, hub):
    """A new worker, and its routing id."""
    beside = set(hub.drafts)
    running = Running(case.folder, sys.executable, WORKER, "--orchestrator", hub.endpoint)
    case.addCleanup(running.close)
    return running, hub.wait_for(DRAFT_ROLE, beside)


class RealTarget(Case):
    """One tandem-target for all tests of the class."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hub = DraftHub(f"ipc://{cls.folder}/hub")
        cls.addClassCleanup(cls.hub.close)
        cls.running = start_target(cls.folder, cls.hub.endpoint)
        cls.addClassCleanup(cls.running.close)
        cls.target = cls.hub.wait_for(TARGET_ROLE)

    def answer(self, prompt, draft=None, until=None, **options):
        """A whole answer. `until`, when given, is called with it in its midst: until then nothing is acknowledged, so that
        there are at most CREDIT tokens."""
        answer = DraftedAnswer(self.hub, self.target, prompt, **{"max_tokens": TOKENS, **options})
        answer.draft_expected = answer.accepted_wanted = draft is not None
        answer.acknowledges = until is None
        answer.open()
        if draft:
            hello = self.hub.peers[self.target]
            inbox = answer.open_draft(draft, hello[9], hello[4])
            self.assertEqual(inbox.expect("OPENED").fields, [len(prompt), answer.hashes[len(prompt)]])
        if until:
            self.hub.wait(lambda: len(answer.output) >= TOKENS // 3)
            until(answer)
            self.assertLessEqual(len(answer.output), CREDIT)
            answer.acknowledges = True
            answer.ack()
        answer.finish()
        self.assertIn(answer.done[2], (STOP, LENGTH))
        stats = answer.stats
        self.assertEqual(len(answer.output), stats["forwards"] + stats["accepted"])
        self.assertEqual(stats["rows"], stats["accepted"] + stats["rewound"])
        self.assertEqual(stats["accepted"], sum(stats["accepted_per_pos"]))
        self.assertEqual(sum(answer.accepted), stats["accepted"], "each of them is marked in TOKENS")
        if draft is None or until:
            self.assertTrue(answer.end())
        else:
            self.assertTrue(answer.end_both(), "the draft had the session")
        return answer

    def compare(self, name, prompt, draft, **options):
        plain = self.answer(prompt, **options)
        drafted = self.answer(prompt, draft, budget=7, **options)
        self.assertEqual(drafted.output, plain.output)
        self.assertEqual(plain.stats["accepted"], 0)
        stats = drafted.stats
        tell(f"{name}: {len(drafted.output)} tokens = {stats['forwards']} forwards + {stats['accepted']} accepted, "
             f"{stats['rows']} nodes in {stats['rounds']} rounds, {stats['resets']} resets, {stats['dropped']} dropped")
        if options.get("lockstep"):  # else its nodes may come too late
            self.assertGreater(stats["accepted"], 0)
        return drafted

    def test_same_answer(self):
        running, draft = start_draft(self, self.hub)
        prompt = repeated(12, 6)
        for pace in (False, True):
            for sampling in ({}, SAMPLED):
                name = f"{'lockstep' if pace else 'free'}, {'0.8' if sampling else 'greedy'}"
                drafted = self.compare(name, prompt, draft, lockstep=pace, **sampling)
                if pace:
                    self.assertEqual(drafted.stats["plain_steps"] + drafted.stats["rounds"], drafted.stats["forwards"])
                    self.assertEqual(drafted.stats["dropped"], 0)
        self.assertEqual(running.errors, "")
        running.signal(signal.SIGTERM)
        self.assertEqual(running.end(), 0)
        self.hub.inbox.expect("BYE")

    def test_an_answer_that_does_not_repeat(self):
        _, draft = start_draft(self, self.hub)
        record = golden()[3]
        plain = self.answer(record["prompt_ids"])
        drafted = self.answer(record["prompt_ids"], draft, budget=7, lockstep=True)
        self.assertEqual(drafted.output, plain.output)

    def killed(self, prompt, how, **options):
        """A draft is killed before the answer is over, by `how`: the tokens are the plain ones."""
        options["max_tokens"] = CREDIT + TOKENS
        plain = self.answer(prompt, **options)
        self.assertGreater(len(plain.output), CREDIT)
        self.running, draft = start_draft(self, self.hub)
        self.assertEqual(self.answer(prompt, draft, until=how, budget=7, **options).output, plain.output)

    def test_killed_in_mid_answer(self):
        prompt = repeated(10, 6)
        self.killed(prompt, lambda answer: self.running.signal(signal.SIGKILL))
        _, draft = start_draft(self, self.hub)
        self.compare("free, after a kill", prompt, draft)

    def test_killed_in_lockstep(self):
        """The target waits for a draft: another one takes over, in the same epoch."""
        prompt, hello = repeated(11, 6), self.hub.peers[self.target]

        def replace(answer):
            self.running.signal(signal.SIGKILL)
            self.running.end()
            self.other = start_draft(self, self.hub)[1]
            answer.open_draft(self.other, hello[9], hello[4]).expect("OPENED")

        self.killed(prompt, replace, lockstep=True)
        self.compare("lockstep, after a kill", prompt, self.other, lockstep=True)

    def test_two_sessions_of_one_draft(self):
        _, draft = start_draft(self, self.hub)
        hello, prompts = self.hub.peers[self.target], (repeated(8, 6), repeated(9, 5))
        plain = [self.answer(prompt).output for prompt in prompts]
        both = [DraftedAnswer(self.hub, self.target, prompt, max_tokens=TOKENS, budget=7, lockstep=True)
                for prompt in prompts]
        for answer in both:
            answer.draft_expected = True
            answer.open().open_draft(draft, hello[9], hello[4])
        for answer, tokens in zip(both, plain):
            self.assertEqual(answer.finish(), tokens)
            self.assertGreater(answer.stats["accepted"], 0)
        for answer in both:
            self.assertTrue(answer.end_both())


@thorough
class RealOrchestrator(Case):
    """`tandem batch` starts this draft in place of its own."""

    def run_batch(self, tandem, name, *flags):
        out = self.folder / f"{name}.jsonl"
        done = subprocess.run([tandem, "batch", "-m", MODEL, "--max-tokens", str(TOKENS), *flags,
                               str(self.folder / "in.jsonl"), str(out)], capture_output=True, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return {a["id"]: a for a in map(json.loads, out.read_text().splitlines())}

    def test_batch(self):
        for program in (TANDEM, TARGET):
            shutil.copy(program, self.folder)
        wrapper = self.folder / "tandem-draft"
        wrapper.write_text(f"""#!{sys.executable}
import os, sys
at = sys.argv.index("--orchestrator")
os.execv({sys.executable!r}, [{sys.executable!r}, {WORKER!r}, *sys.argv[at:at + 2]])
""")
        wrapper.chmod(0o755)
        (self.folder / "in.jsonl").write_text("".join(
            json.dumps({"id": n, "prompt_ids": repeated(n, 6)}) + "\n" for n in (8, 9, 10, 11, 12)))
        tandem = str(self.folder / "tandem")
        for pace in ("free", "lockstep"):
            for sampling in ((), ("--temp", "0.8", "--seed", "7")):
                plain = self.run_batch(tandem, "plain", "--draft", "none", *sampling)
                drafted = self.run_batch(tandem, "drafted", "--pace", pace, *sampling)
                stats = [a["stats"] for a in drafted.values()]
                self.assertEqual({s["draft_method"] for s in stats}, {"prompt-lookup"})
                accepted = sum(s["accepted_tokens"] for s in stats)
                tell(f"{pace} {' '.join(sampling)}: {sum(s['forwards'] for s in stats)} forwards + {accepted} accepted")
                if pace == "lockstep":  # else its nodes may come too late
                    self.assertGreater(accepted, 0)
                for key, answer in drafted.items():
                    self.assertEqual(answer["token_ids"], plain[key]["token_ids"])
                    self.assertEqual(len(answer["token_ids"]),
                                     answer["stats"]["forwards"] + answer["stats"]["accepted_tokens"])


class PlayedTarget(Case):
    """The test plays the target: what the page asks of a draft, message for message."""

    def setUp(self):
        super().setUp()
        self.hub = DraftHub(f"ipc://{self.folder}/hub")
        self.addCleanup(self.hub.close)
        self.worker, self.draft = start_draft(self, self.hub)
        self.target = Hub(f"ipc://{self.folder}/target", welcome=False)
        self.addCleanup(self.target.close)
        self.answer = DraftedAnswer(self.hub, None, [5, 6, 7, 8, 5, 6, 9, 5, 6], budget=4)
        self.target.answers[self.answer.id] = self.heard = Inbox(self.target)

    def greet(self):
        self.open()
        self.incarnation = self.target.inbox.expect("HELLO").fields[4]
        self.routing = next(iter(self.target.peers))
        self.target.send(self.routing, "WELCOME", 0, 0, *hello_fields(TARGET_ROLE, self.target.incarnation))

    def open(self, **fields):
        self.inbox = self.answer.open_draft(self.draft, self.target.endpoint, self.target.incarnation, **fields)
        return self.inbox

    def say(self, kind, *fields, epoch=1):
        self.target.send(self.routing, kind, self.answer.id, epoch, *fields)

    def attached(self, generation=3):
        self.greet()
        self.assertEqual(self.heard.expect("ATTACH").fields, [9, self.answer.hashes[9], self.answer.ticket, 0])
        self.say("ATTACHED", 9, self.answer.hashes[9], generation)

    def nodes(self, base=9, generation=3):
        """{id: (parent, token)} of the next NODES on so many tokens, up to the done mark. Meanwhile the idle draft may
        have repeated itself."""
        found = {}
        while True:
            its_generation, its_base, hash, first, parents, tokens, scores, done = self.heard.expect("NODES").fields
            self.assertLessEqual((its_generation, its_base), (generation, base))
            self.assertEqual(len(parents), len(scores))
            if (its_generation, its_base) == (generation, base):
                self.assertEqual(hash, self.answer.hashes[base])
                found.update({first + i: (p, t) for i, (p, t) in enumerate(zip(parents, tokens))})
                if done:
                    return found

    def grow(self, *tokens):
        """The target's C grows: the ledger's too."""
        base = len(self.answer.tokens)
        self.answer.tokens += tokens
        self.answer.hashes = [ZERO] + python_draft.chain(self.answer.seed, ZERO, self.answer.tokens)
        return [base, list(tokens), self.answer.hashes[-1], None]

    def test_nodes_are_rooted_again(self):
        self.attached()
        # "5, 6" was followed by 9 last, and by 7 before
        chain, second = {1: (0, 9), 2: (1, 5), 3: (2, 6), 4: (3, 9)}, {5: (0, 7), 6: (5, 8), 7: (6, 5), 8: (7, 6)}
        self.assertEqual(self.nodes(), {**chain, **second})
        self.say("TOKENS", *self.grow(9, 5))  # two guesses were right: 3 and 4 stay live, others die
        self.assertEqual(self.nodes(11)[9][0], 4, "below a node that was sent before")
        self.say("TOKENS", *self.grow(1))  # none was right: new nodes on the new base
        self.say("TOKENS", *self.grow(5))
        nodes = self.nodes(13)
        self.assertEqual(nodes[min(nodes)][0], 0)

    def test_lost_frames(self):
        self.attached()
        first = self.nodes()
        self.assertEqual(self.nodes(), {}, "when idle, NODES without nodes")
        lost = self.grow(9)
        self.say("TOKENS", *self.grow(5, 6))
        self.assertEqual(self.heard.expect("RESEND").fields, [9])
        self.say("TOKENS", 9, [9, 5, 6], self.answer.hashes[12], None)
        self.nodes(12)
        self.say("TOKENS", *lost)  # late: nothing changes
        self.say("TREE_RESET", 3)  # not above its own: ignored
        self.say("TREE_RESET", 9)
        self.assertEqual(min(self.nodes(12, 9)), 1)
        self.assertLess(max(first), 9)
        self.say("ERROR", CODES["gone"], "forgotten")
        self.assertEqual(self.heard.expect("ATTACH").fields[0], 12)
        self.say("ATTACHED", 12, self.answer.hashes[12], 10)
        self.nodes(12, 10)

    def test_out_of_step(self):
        self.attached()
        self.nodes()
        self.say("TOKENS", 8, [77, 5], bytes(15) + b"\1", None)
        self.heard.expect("DETACH")
        self.assertEqual(self.inbox.expect("DESYNC").fields[:2], [9, self.answer.hashes[9]])
        self.open(base=9)  # the same epoch, which is no repetition now
        self.inbox.expect("OPENED")
        self.heard.expect("ATTACH")
        self.open(base=9)  # this one is
        self.assertEqual(self.inbox.expect("OPENED").fields, [9, self.answer.hashes[9]])
        self.say("DETACH", "no more")
        self.open(base=7, epoch=2)  # a rollback to what is 9 tokens again
        self.inbox.expect("OPENED")
        while self.heard.expect("ATTACH").epoch < 2:  # it is repeated until it is answered
            pass
        self.open(base=9, epoch=1)
        self.inbox.expect_error("stale")
        self.open(base=4, epoch=3, base_hash=bytes(15) + b"\1")
        self.assertEqual(self.inbox.expect("DESYNC").fields[:2], [9, self.answer.hashes[9]])
        self.answer.to_draft("END", epoch=2)
        self.assertEqual(self.inbox.expect("ENDED").fields, [True])
        self.heard.expect("DETACH")
        self.answer.to_draft("END", epoch=2)
        self.assertEqual(self.inbox.expect("ENDED").fields, [False])

    def test_forgotten_and_broken(self):
        self.attached()
        self.nodes()
        self.hub.inbox.skip()
        self.hub.send(self.draft, "ERROR", 0, 0, CODES["protocol"], "HELLO comes first", to=ZERO)
        self.hub.inbox.expect("HELLO")
        for name in ("tokens_hash_short", "open_target_half", "frame_trailing", "type_beyond", "frame_map_inside"):
            self.hub.send_frame(self.draft, (VECTORS / "bad" / f"{name}.bin").read_bytes())
        self.hub.wait(lambda: self.worker.errors.count("dropped a frame") == 5)
        self.hub.inbox.expect_error("protocol")
        self.hub.send(self.draft, "END", self.answer.id, 1, to=bytes(15) + b"\1")
        while self.hub.inbox.expect("ERROR").fields[0] != CODES["stale"]:  # the other frames had errors too
            pass
        self.nodes()  # and goes on
        self.answer.to_draft("END")
        self.inbox.expect("ENDED")

    def test_refused(self):
        hub = Hub(f"ipc://{self.folder}/refuses", welcome=False)
        self.addCleanup(hub.close)
        running = Running(self.folder, sys.executable, WORKER, "--orchestrator", hub.endpoint)
        self.addCleanup(running.close)
        hub.inbox.expect("HELLO")
        hub.send_frame(next(iter(hub.peers)), encode("ERROR", ZERO, 0, 0, CODES["version"], "speaks 2 to 3"))
        self.assertEqual(running.end(), 1)
        self.assertIn("speaks 2 to 3", running.errors)


class Vectors(unittest.TestCase):
    def test_frames(self):
        received = set(python_frames.FIELDS)
        for vector in json.loads((VECTORS / "good.json").read_text()):
            frame = (VECTORS / "good" / f"{vector['name']}.bin").read_bytes()
            kind, to, session, epoch, m = python_frames.decode(frame, [])
            self.assertEqual([kind, to.hex(), session, epoch],
                             [vector["type"], vector["to"], int(vector["session"]), vector["epoch"]])
            self.assertEqual(m is not None, kind in received)
        for vector in json.loads((VECTORS / "bad.json").read_text()):
            frame = (VECTORS / "bad" / f"{vector['name']}.bin").read_bytes()
            with self.subTest(vector["name"]):
                try:
                    fields = python_frames.decode(frame, [])[4]
                except python_frames.Broken as broken:
                    if not vector["rule"].startswith("R-FRAME") and not str(broken).startswith("R-FRAME"):
                        self.assertTrue(str(broken).startswith(vector["rule"] + ":"), str(broken))
                        self.assertEqual(broken.code, CODES[vector["code"]])
                else:
                    self.assertIsNone(fields, "it is dropped all the same: no draft gets this message")

    def test_hashes(self):
        for vector in json.loads((VECTORS / "hash.json").read_text()):
            hashes = python_draft.chain(int(vector["seed"]), ZERO, vector["tokens"])
            self.assertEqual([h.hex() for h in [ZERO] + hashes], vector["hashes"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
