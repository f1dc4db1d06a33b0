"""Features over the wire from a real tandem-target: which rows come, that they are the states of their
positions, and that no request, however odd, changes a token."""

import os
import struct
import unittest

from models import Gguf
from support import (
    CODES, MODEL, ZERO, Answer, Case, Hub, Link, golden, registered, start_target, tell, whole_model)

EMBED, LAST, Q8_0, BLOCK = 576, 30, 8, 32
BF16, F32 = 1, 2
TAPS = [0, 2, LAST]
TOKENS, BUDGET = 24, 7


def nearest(value):
    """The float 32 of these bits rounded to its upper half, ties to even: as bytes."""
    bits, = struct.unpack("<I", value)
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def narrowed(row):
    return b"".join(nearest(row[i:i + 4]) for i in range(0, len(row), 4))


@whole_model
class Features(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hub = Hub(f"ipc://{cls.folder}/hub")
        cls.addClassCleanup(cls.hub.close)
        cls.program = start_target(cls.folder, cls.hub.endpoint, "--sessions", "4", "--threads", "2")
        cls.addClassCleanup(cls.program.close)
        cls.target, = registered(cls.hub)
        cls.prompt = {r["id"]: r for r in golden()}[123]["prompt_ids"]
        answer = Answer(cls.hub, cls.target, cls.prompt, max_tokens=TOKENS).open()
        cls.plain = answer.finish()
        answer.end()
        cls.embedding = next(t for t in Gguf(MODEL).tensors if t[0] == "token_embd.weight")

    def tearDown(self):
        self.assertIsNone(self.program.process.poll(), f"the target died: {self.program.errors}")

    def draft(self, request, **options):
        """An answer in lockstep, and its draft, which has asked for features."""
        options = {"budget": BUDGET, "lockstep": True, "max_tokens": TOKENS, **options}
        answer = Answer(self.hub, self.target, self.prompt, **options)
        answer.draft_expected = True
        link = Link(self.hub, self.hub.peers[self.target][9]).greet()
        self.addCleanup(link.close)
        answer.open().expect("OPENED")  # the draft's own connection may be quicker
        link.send("ATTACH", answer.id, 1, len(self.prompt), answer.hashes[-1], answer.ticket, 0, request)
        return answer, link

    def follow(self, answer, link, right):
        """To the end: with the right nodes, or with none. Returns {position: row}."""
        *_, generation = link.expect("ATTACHED").fields[:3]
        rows, first = {}, 1
        while not answer.done:
            length, nodes = len(answer.tokens), []
            if right:
                nodes = self.plain[len(answer.output):len(answer.output) + BUDGET]
            ids = range(first, first + len(nodes))
            link.send("NODES", answer.id, 1, generation, length, answer.hashes[length], first,
                      [0 if i == first else i - 1 for i in ids], nodes, [-0.5] * len(nodes), True,
                      *([max(rows) + 1] if rows else []))
            first += len(nodes)
            self.hub.wait(lambda: len(answer.tokens) > length or answer.done)
            self.take(link, rows)
        link.send("PING", 0, 0, 1, 2, 0)
        link.expect("PONG")  # what was sent to the draft before is here
        self.take(link, rows)
        self.assertEqual(answer.finish(), self.plain)
        answer.end()
        return rows

    def take(self, link, rows):
        behind = 0
        for message in link.seen:
            if message.kind == "TOKENS":
                behind = message.fields[0] + len(message.fields[1])
            if message.kind != "FEATURES":
                continue
            base, count, width, kind, data = message.fields
            known = max(behind, len(self.prompt))
            self.assertLessEqual(base + count, known, "features go in front of no TOKENS")
            size = width * 2 * kind
            self.assertEqual(len(data or b""), count * size)
            for i in range(count):
                row = data[i * size:(i + 1) * size]
                self.assertEqual(rows.setdefault(base + i, row), row)

    def embedded(self, token):
        """The state that enters layer 0, from the file alone."""
        name, shape, kind, data = self.embedding
        self.assertEqual((shape[0], kind), (EMBED, Q8_0))
        size = EMBED // BLOCK * 34
        row, values = data[token * size:(token + 1) * size], []
        for at in range(0, size, 34):
            scale, *quants = struct.unpack_from("<e32b", row, at)
            values += [scale * q for q in quants]
        return struct.pack(f"<{EMBED}f", *values)

    def test_states_of_committed_positions(self):
        """The same rows for tokens decoded plainly and accepted ones; the first tap is the file's own."""
        plain = self.follow(*self.draft([TAPS, F32, ZERO, 0, 5]), False)
        tokens = self.prompt + self.plain
        computed = min(plain)
        self.assertLess(computed, len(self.prompt), "the end of the prompt comes too")
        self.assertEqual(sorted(plain), list(range(computed, max(plain) + 1)))
        self.assertGreaterEqual(max(plain), len(tokens) - 3)
        for position, row in plain.items():
            self.assertEqual(len(row), len(TAPS) * EMBED * 4)
            self.assertEqual(row[:EMBED * 4], self.embedded(tokens[position]), position)
        drafted = self.follow(*self.draft([TAPS, F32, ZERO, 0, 5]), True)
        self.assertTrue(set(drafted) >= set(range(len(self.prompt), max(drafted))))
        both = set(drafted) & set(plain)
        self.assertEqual({p: drafted[p] for p in both}, {p: plain[p] for p in both})
        narrow = self.follow(*self.draft([TAPS, BF16, ZERO, 0, 5]), True)
        common = sorted(set(narrow) & set(plain))
        self.assertGreater(len(common), TOKENS // 2)
        for position in common:
            self.assertEqual(narrow[position], narrowed(plain[position]), position)
        tell(f"{len(plain)} rows decoded plainly, {len(drafted)} with nodes, {len(narrow)} in bf16")

    def test_what_is_granted(self):
        answer, link = self.draft([TAPS, BF16, os.urandom(16), 0, 0])
        *_, grant = link.expect("ATTACHED").fields
        self.assertEqual(grant[:3], [len(TAPS) * EMBED, BF16, False], "an unknown fc gets raw states")
        answer.send("END")
        answer, link = self.draft([[LAST + 1], BF16, ZERO, 0, 0])
        self.assertIn("layer 31", link.expect_error("bad_argument"))
        answer.send("END")

    def test_odd_requests(self):
        """A broken request is refused by its rule, and an idle one brings nothing."""
        for request, code in [([[], BF16, ZERO, 0, 0], "protocol"),
                              ([list(range(9)), BF16, ZERO, 0, 0], "limit"),
                              ([[0], 3, ZERO, 0, 0], "protocol"), ([[0], F32, ZERO, -1, 0], "protocol")]:
            with self.subTest(request=request):
                answer, link = self.draft(request)
                link.expect_error(code)
                answer.send("END")
        answer, link = self.draft([[0] * 8, F32, ZERO, 1 << 20, 4096])
        self.assertEqual(self.follow(answer, link, True), {})


if __name__ == "__main__":
    unittest.main(verbosity=2)
