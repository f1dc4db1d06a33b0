"""A real tandem-target, driven over the wire by an orchestrator and by drafts that are played here: what PROTOCOL.md
promises when the peer is wrong, stale, greedy, silent or hostile. An answer that runs meanwhile never differs.
"""

import json
import math
import os
import random
import signal
import socket
import unittest

from support import (CANCELLED, CODES, DRAFT, LENGTH, MODEL, PATIENCE, ROOT, SUBSET, TARGET, TARGET_ROLE,
                     VOCABULARY, ZERO, Answer, Case, Hub, Link, Running, encode, golden, hashes_of,
                     hello_fields, registered, start_target, tell, thorough)

TOKENS = 24 if SUBSET else 48  # of an answer
CREDIT = 256
HELD = CREDIT + 16
LEASE = 10  # seconds
SESSIONS = 8
BUDGET = 7
NODE_MAX, DEPTH_MAX = 1024, 256
FRAME_MAX, DOOR_FRAME_MAX = 1 << 20, 22528
VECTORS = ROOT / "wire/vectors/bad"
MISUSE, ADDRESS, REFUSED = 2, 4, 5  # exit statuses of a worker


class Held(Answer):
    """However fast the target is, it is not over: until it is let go the prompt alone is acknowledged, and the target
    runs CREDIT tokens ahead, not further."""

    held = True

    def ack(self, length=None, **more):
        super().ack(self.prompt_length if self.held and length is None else length, **more)

    def let_go(self):
        self.held = False
        self.ack()
        return self


class Wire(Case):
    """One target for all tests. Two sessions are opened first: one is renewed all the time, one never."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hub = Hub(f"ipc://{cls.folder}/hub")
        cls.addClassCleanup(cls.hub.close)
        cls.program = start_target(cls.folder, cls.hub.endpoint, "--sessions", str(SESSIONS), "--threads", "2")
        cls.addClassCleanup(cls.program.close)
        cls.target, = registered(cls.hub)
        cls.hello = cls.hub.peers[cls.target]
        records = {r["id"]: r for r in golden()}
        cls.prompt, cls.other_prompt = records[123]["prompt_ids"], records[85]["prompt_ids"]
        cls.kept, cls.forgotten = cls.ask(max_tokens=1).open(), cls.ask(max_tokens=1).open()
        cls.kept.finish(), cls.forgotten.finish()
        Hub.kept.append(cls.kept)
        cls.addClassCleanup(Hub.kept.clear)
        answer = cls.ask(max_tokens=HELD).open()
        cls.long = answer.finish()
        assert answer.end() is True and len(cls.long) == HELD
        cls.plain = cls.long[:TOKENS]

    def tearDown(self):
        self.assertIsNone(self.program.process.poll(), f"the target died: {self.program.errors}")

    @classmethod
    def ask(cls, **options):
        return Answer(cls.hub, cls.target, cls.prompt, **{"max_tokens": TOKENS, **options})

    def held(self, **options):
        return Held(self.hub, self.target, self.prompt, max_tokens=HELD, **options)

    def complete(self, answer):
        """Its output is that of an undisturbed answer."""
        if isinstance(answer, Held):
            answer.let_go()
        self.assertEqual(answer.finish(), self.long[:answer.options["max_tokens"]])
        self.assertEqual(answer.stats["rows"], answer.stats["accepted"] + answer.stats["rewound"])
        answer.end()
        return answer

    def under_way(self, answer, output=5):
        self.hub.wait(lambda: len(answer.output) >= output)
        return answer

    def dial(self):
        """A draft's connection, on which nothing has been said."""
        link = Link(self.hub, self.hello[9])
        self.addCleanup(link.close)
        return link

    def link(self, **hello):
        return self.dial().greet(**hello)

    # --- handshake ---

    def test_hello(self):
        magic, low, high, role, incarnation, fingerprint, vocabulary, size, numerics, endpoint = self.hello[:10]
        self.assertEqual((magic, low, high, role, size), ("tandem", 2, 5, TARGET_ROLE, VOCABULARY))
        for identity in (incarnation, fingerprint, vocabulary):
            self.assertEqual((len(identity), identity == ZERO), (16, False))
        self.assertTrue(numerics and endpoint.startswith("ipc://"))
        self.assertEqual(self.hello[11:13], [SESSIONS, 1024])  # sessions and context as they were asked for
        host, device = self.hello[14:]
        self.assertEqual((len(host), host == ZERO), (16, False))
        self.assertIn(device, ["cpu:" + name for name in ("c", "avx2", "avx-vnni", "avx512")])

    def test_refused_greetings(self):
        for hello, code, words in [
            ({"versions": (6, 7)}, "version", ("6 to 7", "2 to 5")),
            ({"versions": (1, 1)}, "version", ("1 to 1", "2 to 5")),
            ({"vocabulary_size": VOCABULARY + 1}, "mismatch", (str(VOCABULARY), str(VOCABULARY + 1), "same model")),
            ({"vocabulary_hash": os.urandom(16)}, "mismatch", ("vocabulary",)),
        ]:
            with self.subTest(hello=hello):
                link = self.dial()
                link.send("HELLO", 0, 0, *hello_fields(3, link.incarnation, **hello), to=ZERO)
                text = link.expect_error(code)
                for word in words:
                    self.assertIn(word, text)
        self.link(vocabulary_size=VOCABULARY, vocabulary_hash=self.hello[6])  # the right one is welcome

    def test_hello_comes_first(self):
        link = self.dial()
        for kind, session, fields in [("PING", 0, (1, 2, 0)), ("ATTACH", 5, (1, ZERO, ZERO, 0)), ("BYE", 0, ())]:
            link.send(kind, session, session, *fields, to=self.hello[4])
            self.assertEqual(link.expect("ERROR").fields[0], CODES["protocol"])
        link.greet()

    def test_another_incarnation(self):
        link = self.link()
        link.send("PING", 0, 0, 1, 2, 0, to=os.urandom(16))
        link.expect_error("stale")
        link.send("PING", 0, 0, 77, 88, 0)
        self.assertEqual(link.expect("PONG").fields[:2], [77, 88])

    def test_refused_target(self):
        """A target that its orchestrator refuses gives the reason and leaves."""
        for code, reason in [("version", "protocol versions 2-3 are not spoken here"), ("mismatch", "another vocabulary")]:
            with self.subTest(code=code):
                hub = Hub(f"ipc://{self.folder}/{code}", welcome=False)
                try:
                    target = start_target(self.folder, hub.endpoint)
                    self.addCleanup(target.close)
                    peer, = registered(hub)
                    hub.send(peer, "ERROR", 0, 0, CODES[code], reason, to=ZERO)
                    self.assertEqual(target.end(), REFUSED)
                    self.assertIn(reason, target.errors)
                finally:
                    hub.close()

    # --- sessions ---

    def test_an_answer(self):
        answer = self.ask().open()
        self.assertEqual(answer.expect("OPENED").fields, [len(self.prompt), answer.hashes[len(self.prompt)]])
        answer.finish()
        self.assertEqual((answer.done[2], answer.done[5]), (LENGTH, "no draft was asked for"))
        self.assertEqual((answer.stats["forwards"], answer.stats["accepted"]), (TOKENS, 0))
        self.assertIs(answer.end(), True)
        self.assertIs(answer.end(), False)

    def test_open_is_repeated(self):
        answer = self.ask()
        for _ in range(3):
            answer.open()
        for _ in range(3):
            self.assertGreaterEqual(answer.expect("OPENED").fields[0], len(self.prompt))
        self.under_way(answer)
        answer.open()
        self.complete(answer)
        self.assertNotIn("DESYNC", [m.kind for m in answer.seen])

    def test_cancel(self):
        answer = self.under_way(self.held().open())
        answer.epoch += 1
        self.assertIs(answer.end(), True)
        done = next(m for m in answer.seen if m.kind == "DONE")
        self.assertEqual(done.fields[2], CANCELLED)
        self.assertLessEqual(done.fields[0], len(self.prompt) + CREDIT)
        self.assertEqual(answer.output, self.long[:len(answer.output)])

    def test_open_on_what_is_not_held(self):
        """Wrong base hash, wrong length, wrong result: DESYNC with what the target holds, and nothing changes."""
        n = len(self.prompt)
        fresh = self.ask()
        fresh.open(base=10)  # of a session that is not there
        self.assertEqual(fresh.expect("DESYNC").fields[:2], [0, ZERO])
        fresh.open(hash=os.urandom(16))
        self.assertEqual(fresh.expect("DESYNC").fields[:2], [0, ZERO])
        self.assertIs(fresh.end(), False)

        answer = self.under_way(self.held().open())
        for wrong in [{"base": 10, "base_hash": os.urandom(16)}, {"base_length": n + HELD + 1, "base_hash": answer.hashes[n]},
                      {"base": 10, "hash": os.urandom(16)}, {"hash_seed": answer.seed ^ 1, "base": 10},
                      {"tokens": list(reversed(answer.tokens))}]:
            answer.skip()
            answer.open(epoch=2, **wrong)
            length, held, reason = answer.expect("DESYNC").fields
            self.hub.wait(lambda: len(answer.tokens) >= length)
            self.assertEqual(held, answer.hashes[length])  # its own state, which is right
            self.assertTrue(reason)
        self.complete(answer)  # still in epoch 1

    def test_wrong_acknowledgement(self):
        """DESYNC with the target's own state; then each of the repairs, and the answer is the same."""
        repairs = {
            "what it holds": lambda a, held: held,
            "a rollback": lambda a, held: a.prompt_length + 2,
            "a rollback into the prompt": lambda a, held: 7,
            "the whole prefix": lambda a, held: 0,
        }
        for wrong in ("hash", "length"):
            for name, base in repairs.items():
                with self.subTest(wrong=wrong, repair=name):
                    answer = self.under_way(self.ask().open())
                    answer.acknowledges = False
                    if wrong == "hash":
                        answer.ack(hash=os.urandom(16))
                    else:
                        answer.ack(length=len(answer.tokens), hash=answer.hashes[-2])
                    length, held, reason = answer.expect("DESYNC").fields
                    self.hub.wait(lambda: len(answer.tokens) >= length)
                    self.assertEqual(held, answer.hashes[length])
                    self.assertIn("not held", reason)
                    answer.acknowledges, answer.epoch = True, 2
                    if "rollback" in name:
                        answer.cut(max(answer.prompt_length, base(answer, length)))
                    answer.open(base=base(answer, length))
                    self.complete(answer)

    def test_beyond_what_it_holds(self):
        """An ACK of more than the target has; and the missing tokens given to it by the next epoch."""
        ahead = self.ask().open()
        length = len(self.prompt) + TOKENS + 1
        ahead.send("ACK", length, hashes_of(ahead.seed, self.prompt + self.long[:TOKENS + 1])[-1])
        self.assertIn("not held", ahead.expect("DESYNC").fields[2])
        ahead.end()
        answer = self.ask()  # the ledger knows ten tokens that the target does not
        answer.open()
        answer.tokens += self.plain[:10]
        answer.hashes = hashes_of(answer.seed, answer.tokens, answer.hashes)
        answer.ack(hash=os.urandom(16))
        length = answer.expect("DESYNC").fields[0]
        answer.epoch += 1
        answer.open(base=min(length, len(self.prompt)))
        self.complete(answer)
        self.assertLess(answer.done[6][0], TOKENS)  # some were prefilled, not decoded

    def test_an_epoch_that_has_passed(self):
        answer = self.under_way(self.held().open())
        answer.epoch = 3
        answer.open(base=len(self.prompt))
        answer.expect("OPENED")
        answer.open(epoch=2).expect_error("stale")
        answer.send("END", epoch=1)
        answer.expect_error("stale")
        answer.ack(hash=os.urandom(16), epoch=2)  # dropped
        answer.send("RESEND", 1, epoch=4)
        answer.expect_error("gone")
        self.complete(answer)
        self.assertNotIn("DESYNC", [m.kind for m in answer.seen])
        self.assertGreaterEqual(answer.stats["dropped"], 1)

    def test_resume(self):
        """The ledger's prefix is given to a session that the target has forgotten."""
        answer = self.under_way(self.ask().open(), 12)
        answer.end()
        length = len(answer.tokens)
        answer.epoch += 1
        answer.open()
        self.complete(answer)
        self.assertLessEqual(answer.done[6][0], TOKENS - (length - len(self.prompt)))

    def test_resend(self):
        answer = self.ask().open()
        answer.finish()
        for at in (1, 5, len(self.prompt), len(answer.tokens) - 1, len(answer.tokens), len(answer.tokens) + 100):
            answer.skip()
            answer.send("RESEND", at)
            wanted, base = min(at, len(answer.tokens)), None
            while base != wanted:  # the last ones may have been told again before the ACK
                base, tokens, hash, accepted = answer.expect("TOKENS").fields
            self.assertEqual(tokens, answer.tokens[base:])
            self.assertEqual((hash, accepted), (answer.hashes[-1], None))
        answer.end()

    def test_credit(self):
        """The target runs 256 tokens ahead of the last ACK, not further, and tells them again meanwhile."""
        answer, n = self.ask(max_tokens=HELD), len(self.prompt)
        answer.acknowledges = False
        answer.open()
        self.under_way(answer, CREDIT)

        def repeated(base):
            return sum(m.kind == "TOKENS" and m.fields[0] == base for m in answer.seen)

        self.hub.wait(lambda: repeated(n) >= 4, "told again every 300 ms")
        self.assertEqual((len(answer.output), answer.done), (CREDIT, None))
        answer.ack(length=n + 10)
        self.under_way(answer, CREDIT + 10)
        self.hub.wait(lambda: repeated(n + 10) >= 2, "those that are not acknowledged are told again")
        self.assertEqual((len(answer.output), answer.done), (CREDIT + 10, None))
        answer.acknowledges = True
        answer.ack()
        self.complete(answer)
        tell(f"credit: stood at {CREDIT} tokens, told again {repeated(n)} times")

    def test_refused_requests(self):
        n = len(self.prompt)
        bad = self.prompt[:-1] + [VOCABULARY]
        for options, fields, code in [
            ({"temperature": -1.0}, {}, "bad_argument"), ({"top_p": 0.0}, {}, "bad_argument"),
            ({"repeat_penalty": 0.0}, {}, "bad_argument"), ({"min_p": 1.0}, {}, "bad_argument"),
            ({"top_k": -1}, {}, "bad_argument"), ({"context": 2048}, {}, "limit"), ({"context": n - 1}, {}, "limit"),
            ({}, {"tokens": bad}, "bad_argument"),
        ]:
            with self.subTest(options=options, fields=list(fields)):
                answer = self.ask(**options)
                answer.open(**fields).expect_error(code)
                self.assertIs(answer.end(), False)

    def test_full(self):
        """No place left: refused, and those who are here do not notice. A finished session makes room."""
        hub = Hub(f"ipc://{self.folder}/hub")
        self.addCleanup(hub.close)
        program = start_target(self.folder, hub.endpoint, "--sessions", "2")
        self.addCleanup(program.close)
        peer, = registered(hub)
        first, second = (Held(hub, peer, self.prompt, max_tokens=HELD).open() for _ in range(2))
        for answer in (first, second):
            answer.expect("OPENED")
        late = Answer(hub, peer, self.prompt, max_tokens=TOKENS).open()
        late.expect_error("full")
        self.assertEqual(first.let_go().finish(), self.long)
        self.assertEqual(late.open().finish(), self.plain)
        self.assertIs(first.end(), False)  # it was the one that gave way
        self.assertEqual(second.let_go().finish(), self.long)

    def part(self, answer, base, end, **fields):
        """PART: the ledger's tokens from base to end. OPENED says that the target holds so many."""
        f = dict(tokens=answer.tokens[base:end], hash=answer.hashes[end], **fields)
        answer.send("PART", *answer.open_fields(base, **f), len(answer.tokens))
        answer.expect("OPENED")
        self.assertEqual(answer.seen[-1].fields, [end, answer.hashes[end]])

    def test_parts_and_a_target_that_is_killed_between_them(self):
        """A prefix in several frames: nothing begins before the last, and another target is told it from its beginning."""
        answer, third = self.ask(), len(self.prompt) // 3
        hub = Hub(f"ipc://{self.folder}/parts")
        self.addCleanup(hub.close)
        program = start_target(self.folder, hub.endpoint)
        self.addCleanup(program.close)
        first = Answer(hub, registered(hub)[0], self.prompt, max_tokens=TOKENS)
        self.part(first, 0, third)
        self.part(first, third, 2 * third)
        program.signal(signal.SIGKILL)
        answer.id, answer.seed, answer.epoch, answer.hashes = first.id, first.seed, 2, first.hashes
        self.hub.answers[answer.id] = answer
        self.part(answer, 0, third)
        self.part(answer, third, 2 * third)
        self.complete(self.ask().open())  # a session that was complete would have had tokens meanwhile
        self.assertEqual(answer.output, [])
        answer.open(base=2 * third)
        self.complete(answer)

    def test_orchestrator_restarts(self):
        """Another incarnation at the same address: the target registers again, and the ledger goes on."""
        path = f"ipc://{self.folder}/hub"
        hub = Hub(path)
        target = start_target(self.folder, path)
        self.addCleanup(target.close)
        peer, = registered(hub)
        answer = Held(hub, peer, self.prompt, max_tokens=HELD).open()
        hub.wait(lambda: len(answer.output) > 10)
        hub.close()
        again = Hub(path)
        self.addCleanup(again.close)
        peer, = registered(again)
        answer.hub, answer.target, answer.epoch = again, peer, 2
        again.answers[answer.id] = answer
        answer.cut(len(self.prompt) + 5)  # what the ledger had on disk
        answer.open(base=len(answer.tokens))
        answer.expect("OPENED")
        self.assertEqual(answer.let_go().finish(), self.long)

    # --- the lease ---

    def test_lease(self):
        freed = f"session {self.forgotten.id:016x}: nobody renewed it"
        self.hub.wait(lambda: freed in self.program.errors, seconds=LEASE + PATIENCE)
        self.assertIs(self.forgotten.end(), False)  # nobody renewed it
        self.assertIs(self.kept.end(), True)

    # --- drafts ---

    def drafted(self, ask=None, lockstep=True):
        """An answer and its draft, which has attached: (answer, link, generation). What does not wait for the draft is to
        be asked for by self.held."""
        answer = (ask or self.ask)(budget=BUDGET, lockstep=lockstep)
        answer.draft_expected = True
        answer.open().expect("OPENED")
        link = self.link()
        return answer, link, self.attach(answer, link)

    def attach(self, answer, link):
        n = len(self.prompt)
        link.send("ATTACH", answer.id, answer.epoch, n, answer.hashes[n], answer.ticket, 0)
        length, hash, generation = link.expect("ATTACHED").fields
        self.hub.wait(lambda: len(answer.tokens) >= length)
        self.assertEqual(hash, answer.hashes[length])
        return generation

    def nodes(self, answer, link, generation, first, nodes, base=None, done=True, base_hash=None, scores=None):
        """NODES on the ledger's end; nodes are (parent, token)."""
        base = len(answer.tokens) if base is None else base
        link.send("NODES", answer.id, answer.epoch, generation, base,
                  answer.hashes[base] if base_hash is None else base_hash, first, [p for p, _ in nodes],
                  [t for _, t in nodes], [-0.5] * len(nodes) if scores is None else scores, done)

    def follow(self, answer, link, generation, propose, first=1):
        """A draft in lockstep to the end: `propose(output so far)` gives the nodes of each round."""
        while not answer.done:
            before = len(answer.tokens)
            nodes = propose(answer.output, first)
            self.nodes(answer, link, generation, first, nodes)
            first += len(nodes)
            self.hub.wait(lambda: len(answer.tokens) > before or answer.done, lambda: link.seen[-3:])
        return answer

    def chain(self, output, first):
        """The right tokens, known from the undisturbed answer."""
        right = self.plain[len(output):len(output) + BUDGET]
        return [(0 if i == 0 else first + i - 1, token) for i, token in enumerate(right)]

    def test_a_draft(self):
        answer, link, generation = self.drafted()
        self.complete(self.follow(answer, link, generation, self.chain))
        s = answer.stats
        self.assertEqual(s["forwards"] + s["accepted"], TOKENS)
        self.assertEqual(s["forwards"], math.ceil(TOKENS / (BUDGET + 1)))
        self.assertEqual(answer.done[5], "")
        tell(f"a draft that knows: {s['forwards']} forwards + {s['accepted']} accepted of {s['rows']} nodes")

    def test_wrong_ticket(self):
        answer = self.held().open()
        answer.expect("OPENED")
        link, n = self.link(), len(self.prompt)
        for ticket in (os.urandom(16), ZERO):
            link.send("ATTACH", answer.id, answer.epoch, n, answer.hashes[n], ticket, 0)
            link.expect_error("bad_ticket")
        self.nodes(answer, link, 1, 1, [(0, 5)], base=n)
        link.expect_error("gone")
        link.send("ATTACH", answer.id ^ 2, 1, n, answer.hashes[n], answer.ticket, 0)
        link.expect_error("gone")
        for kind, fields in [("OPEN", answer.open_fields()), ("END", ())]:  # nor may a draft open or end anything
            link.send(kind, answer.id, 9, *fields)
            link.expect_error("protocol")
        self.complete(answer)
        self.assertEqual((answer.stats["rows"], answer.stats["rounds"]), (0, 0))

    def test_forged_nodes(self):
        """Any tree of any tokens: verified, and without effect."""
        rng = random.Random(20240607)
        answer, link, generation = self.drafted()

        def forged(output, first):
            return [(rng.choice([0] * 3 + list(range(max(1, first - 9), first + i))) if first + i > 1 else 0,
                     rng.choice([rng.randrange(VOCABULARY), self.plain[min(len(output), TOKENS - 1)], 0, 2]))
                    for i in range(rng.randrange(1, 40))]

        self.complete(self.follow(answer, link, generation, forged))
        s = answer.stats
        self.assertEqual(s["forwards"] + s["accepted"], TOKENS)
        self.assertGreater(s["rewound"], 0)
        self.assertGreater(s["accepted"], 0)  # some of them happen to be right
        tell(f"forged nodes: {s['rows']} verified, {s['accepted']} accepted")

    def test_nodes_that_are_late_or_repeated(self):
        answer, link, generation = self.drafted(self.held, lockstep=False)
        n, stale = len(self.prompt), 0
        for i in range(60):  # all of them on the prompt, and with ids of the same range again and again
            self.nodes(answer, link, generation, 1, [(0, self.long[0]), (1, 7), (2, 8)], base=n)
            self.nodes(answer, link, generation ^ 0x55, 1, [(0, 9)], base=n)  # another generation
            stale += 1
            self.hub.turn(5)
        link.send("PING", 0, 0, 1, 2, 0)
        link.expect("PONG")  # they have been read
        self.complete(answer)
        self.assertGreaterEqual(answer.stats["dropped"], 1)
        resets = [m for m in link.seen if m.kind == "TREE_RESET"]
        self.assertTrue(resets)
        self.assertEqual({m.fields[0] for m in resets}, {generation})
        tell(f"{stale} frames of another generation: {answer.stats['dropped']} counted, {len(resets)} TREE_RESET")

    def test_a_gap(self):
        answer, link, generation = self.drafted()
        self.nodes(answer, link, generation, 5, [(0, 9)])
        again = link.expect("TREE_RESET").fields[0]
        self.assertGreater(again, generation)
        self.complete(self.follow(answer, link, again, self.chain))
        self.assertEqual(answer.stats["resets"], 1)
        self.assertGreater(answer.stats["accepted"], 0)

    def test_a_base_beyond(self):
        answer, link, generation = self.drafted()
        n = len(self.prompt)
        self.nodes(answer, link, generation, 1, [(0, 9)], base=n, done=False)
        link.skip()
        link.send("NODES", answer.id, answer.epoch, generation, n + 3, os.urandom(16), 2, [0], [9], [-0.5], True)
        base, tokens, hash, _ = link.expect("TOKENS").fields
        self.assertEqual((base, tokens, hash), (n, [], answer.hashes[n]))
        self.complete(self.follow(answer, link, generation, self.chain, first=2))

    @thorough
    def test_nodes_that_end_an_attachment(self):
        """A typed ERROR and the draft is detached. It may attach again."""
        def flood(answer, link, generation):
            first = 1
            while first <= NODE_MAX + 1:
                count = min(512, NODE_MAX + 2 - first)
                self.nodes(answer, link, generation, first, [(0, first + i) for i in range(count)], done=False)
                first += count

        def deep(answer, link, generation):
            self.nodes(answer, link, generation, 1, [(i, 100 + i) for i in range(DEPTH_MAX + 1)], done=False)

        def outside(answer, link, generation):
            self.nodes(answer, link, generation, 1, [(0, 5), (0, VOCABULARY)])

        def elsewhere(answer, link, generation):
            self.nodes(answer, link, generation, 1, [(0, 5)], base_hash=os.urandom(16))

        for attack, code in [(flood, "limit"), (deep, "limit"), (outside, "bad_argument"), (elsewhere, "desync")]:
            with self.subTest(attack=attack.__name__):
                answer, link, generation = self.drafted(self.held)
                attack(answer, link, generation)
                link.expect_error(code)
                self.nodes(answer, link, generation, 1, [])
                link.expect_error("gone")
                again = self.attach(answer, link)
                self.assertGreater(again, generation)
                link.send("DETACH", answer.id, answer.epoch, "enough")
                self.complete(answer)
                self.assertEqual((answer.stats["rows"], answer.stats["resets"]), (0, 0))
                self.assertNotIn("TREE_RESET", {m.kind for m in link.seen})

    def test_detached_in_free_pace(self):
        """Nobody waits for a draft that was sent away."""
        answer, link, generation = self.drafted(self.held, lockstep=False)
        self.nodes(answer, link, generation, 1, [(0, VOCABULARY)], base=len(self.prompt))
        link.expect_error("bad_argument")
        self.complete(answer)
        self.assertEqual(answer.stats["rounds"], 0)
        self.assertEqual(answer.done[5],
                         "the draft was there, and is not any more: a node's token is outside the vocabulary")

    def test_drafts_of_one_session(self):
        """Four may attach, the fifth is refused; who leaves makes room; a draft that says BYE is forgotten."""
        answer = self.ask(budget=BUDGET, lockstep=True)
        answer.draft_expected = True
        answer.open().expect("OPENED")
        links = [self.link() for _ in range(5)]
        generations = [self.attach(answer, link) for link in links[:4]]
        self.assertEqual(len(set(generations)), 4)
        fifth, n = links[4], len(self.prompt)
        fifth.send("ATTACH", answer.id, answer.epoch, n, answer.hashes[n], answer.ticket, 0)
        fifth.expect_error("full")
        links[0].send("DETACH", answer.id, answer.epoch, "enough")
        links[1].send("BYE", 0, 0)
        for link in links[:2]:  # it has been read when what follows is answered
            link.send("PING", 0, 0, 1, 2, 0)
            link.expect("PONG")
        generation = self.attach(answer, fifth)
        # Two that agree: equal paths are one, and each has ids of its own.
        first = {id(fifth): 1, id(links[3]): 1}
        while not answer.done:
            before = len(answer.tokens)
            for link, g in ((links[3], generations[3]), (fifth, generation)):
                nodes = self.chain(answer.output, first[id(link)])
                self.nodes(answer, link, g, first[id(link)], nodes, done=link is fifth)
                first[id(link)] += len(nodes)
            self.hub.wait(lambda: len(answer.tokens) > before or answer.done)
        self.complete(answer)
        self.assertEqual(answer.stats["forwards"] + answer.stats["accepted"], TOKENS)
        self.assertGreater(answer.stats["accepted"], 0)

    def test_a_new_epoch_ends_attachments(self):
        answer, link, generation = self.drafted()
        self.nodes(answer, link, generation, 1, self.chain([], 1))
        self.under_way(answer, BUDGET + 1)
        answer.epoch = 2
        answer.cut(len(self.prompt) + 3)
        answer.open(base=len(answer.tokens)).expect("OPENED")
        link.skip()
        self.nodes(answer, link, generation, 8, [(0, 1)])
        link.expect_error("gone")
        n = len(self.prompt)
        link.send("ATTACH", answer.id, 2, n, answer.hashes[n], answer.ticket, 0)
        length, _, again = link.expect("ATTACHED").fields
        self.assertEqual(length, n + 3)
        self.assertGreater(again, generation)
        self.complete(self.follow(answer, link, again, self.chain))

    # --- hostile frames ---

    def test_bad_frames(self):
        """Every bad vector, as the orchestrator and as a draft, beside a running answer."""
        with open(VECTORS.parent / "bad.json") as f:
            vectors = json.load(f)
        self.assertGreaterEqual(len(vectors), 80)
        answer = self.held()
        answer.draft_expected = True
        answer.open().expect("OPENED")
        link = self.link()
        self.attach(answer, link)
        errors, dropped, large = 0, 0, []
        for vector in vectors:
            frame = (VECTORS / (vector["name"] + ".bin")).read_bytes()
            for inbox, send, limit in [(self.hub.inbox, lambda f: self.hub.send_frame(self.target, f), FRAME_MAX),
                                       (link, link.socket.send, DOOR_FRAME_MAX)]:
                if len(frame) > limit:
                    large.append(frame)
                    continue
                with self.subTest(vector=vector["name"]):
                    inbox.skip()
                    send(frame)
                    if vector["name"].startswith("error_"):  # an ERROR is never answered with one
                        dropped += 1
                        continue
                    text = inbox.expect_error(vector["code"])
                    self.assertTrue(text.startswith(vector["rule"]), text)
                    errors += 1
        self.assertTrue(large)
        for frame in large:  # ZeroMQ itself ends the connection, which comes back
            link.socket.send(frame)
        for inbox, send in [(self.hub.inbox, lambda *f: self.hub.send_frame(self.target, *f)),
                            (link, lambda *f: link.socket.send_multipart(f))]:
            self.alive(inbox)
            inbox.skip()
            send(encode("PING", self.hello[4], 0, 0, 1, 2, 0), b"second part")
            self.assertIn("R-PARTS", inbox.expect_error("protocol"))
        self.complete(answer)
        tell(f"{len(vectors)} bad frames, each twice: {errors} typed errors, {dropped} dropped, {len(large)} ended the connection")

    def alive(self, inbox):
        """PING until PONG."""
        def answered():
            if inbox is self.hub.inbox:
                self.hub.send(self.target, "PING", 0, 0, 5, 6, 0)
            else:
                inbox.send("PING", 0, 0, 5, 6, 0)
            self.hub.run(0.1)  # a PING to a connection that is not back yet is lost
            return any(m.kind == "PONG" for m in inbox.seen[inbox.looked:])

        inbox.skip()
        self.hub.wait(answered, "the connection did not come back")


class Addresses(Case):
    def setUp(self):
        super().setUp()
        self.none = f"ipc://{self.folder}/none"

    def refused(self, words, *args, status=ADDRESS):
        run = Running(self.folder, *args)
        self.addCleanup(run.close)
        self.assertEqual(run.end(), status, run.errors)
        lines = run.errors.splitlines()
        self.assertEqual(len([line for line in lines if "error" in line]), 1, run.errors)
        for word in words:
            self.assertIn(word, run.errors)

    def test_port_in_use(self):
        taken = socket.socket()
        self.addCleanup(taken.close)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        self.refused([endpoint, "in use", "choose another port"], TARGET, "-m", MODEL, "--orchestrator", self.none,
                     "--bind", endpoint)

    def test_addresses_that_are_refused(self):
        for flags, words in [
            (("--bind", "ipc://@name"), ["--insecure-bind"]), (("--bind", "tcp://127.0.0.1"), []),
            (("--bind", self.none + "/x"), [str(self.folder / "none")]), (("--bind", "udp://127.0.0.1:1"), []),
        ]:
            with self.subTest(flags=flags):
                self.refused(words, TARGET, "-m", MODEL, "--orchestrator", self.none, *flags)
        for program in ((TARGET, "-m", MODEL), (DRAFT,)):
            with self.subTest(program=program[0]):
                self.refused(["nonsense"], *program, "--orchestrator", "nonsense")
                self.refused(["--orchestrator"], *program, status=MISUSE)


if __name__ == "__main__":
    unittest.main()
