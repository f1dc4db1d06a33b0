"""Speculation on and off give the same tokens, and the figures add up: real programs, the real model.

Plain answers of the golden prompts are recorded with `--draft none`; then they are asked for again with drafts of
every kind. In lockstep the counts of the replay draft are compared with a computation of their own, below.
"""

import heapq
import math
import struct
import unittest

from support import END_TOKEN, LAYERS, SUBSET, THOROUGH, Case, batch, golden, tell, thorough, total, whole_model

# FEW prompts (both ends, code, a translation, one answer that ends by itself early, and one prompt beyond 512
# tokens) for every change and for the matrix of options; ALL golden prompts where everything is tested.
FEW = (85, 102, 123, 214) if SUBSET else (85, 102, 123, 214, 341, 530)
ALL = FEW[:3] if SUBSET else tuple(r["id"] for r in golden()) if THOROUGH else FEW
LONG = 512
TOKENS = 16 if SUBSET else 48
SAMPLED = ("--temp", "0.8", "--seed", "20240607")
FILTERED = SAMPLED + ("--top-k", "40", "--top-p", "0.95", "--min-p", "0.02", "--repeat-penalty", "1.1")
COUNTED = ("--presence-penalty", "0.7", "--frequency-penalty", "0.9", "--logit-bias", "28-100", "--logit-bias", "30+1.5")
BUDGET = 7  # nodes, unless a test says otherwise
LOOP = 0  # a prompt that ends in a phrase said thrice, and whose answer goes on with it: something for an ngram

# --- what replay in lockstep must count, computed here ---

MASK = 0xFFFFFFFF
RATE_MIN, SIBLING_MIN = 0.01, 0.001


def philox4x32(counter, key):
    """Salmon et al., SC'11."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def unit(x):
    return ((x >> 9) + 0.5) / 2**23


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Replay:
    """The candidates that the replay draft offers: one draw a position, whatever the path."""

    def __init__(self, recording, rate, sibling=0.0, seed=0):
        self.rate, self.sibling, self.key = rate, sibling, (seed & MASK, seed >> 32)
        self.vocabulary = sorted({t for r in recording for t in r["prompt_ids"] + r["token_ids"]})
        self.first = float32(math.log(max(rate, RATE_MIN)))
        self.second = float32(math.log(max((1 - rate) * sibling, SIBLING_MIN)))

    def candidates(self, record, position):
        whole = record["prompt_ids"] + record["token_ids"]
        if position >= len(whole):
            return []
        right, draw = whole[position], philox4x32((position, 0, 0, 0), self.key)
        if unit(draw[0]) < self.rate:
            return [(right, self.first)]
        at = draw[2] % len(self.vocabulary)
        wrong = self.vocabulary[at if self.vocabulary[at] != right else (at + 1) % len(self.vocabulary)]
        return [(wrong, self.first)] + ([(right, self.second)] if unit(draw[1]) < self.sibling else [])


class Node:
    def __init__(self, token=None, score=0.0, order=-1):
        self.token, self.score, self.order, self.children, self.offers = token, score, order, [], None

    def child(self, token):
        return next((c for c in self.children if c.token == token), None)

    def below(self, depth=0, above=0.0):
        """All live nodes: (total, order, depth, node)."""
        for c in self.children:
            here = float32(c.score + above)
            yield here, c.order, depth + 1, c
            yield from c.below(depth + 1, here)


class Draft:
    """The tree as the draft grows it in lockstep: up to `budget` live nodes, the most probable node first. A place
    that has not been asked for candidates is worth its own probability, else that of its next candidate; of equals a
    question comes first, then the older place. A node is asked once, the root anew in each round."""

    def __init__(self, replay, record, budget):
        self.replay, self.record, self.budget, self.root, self.order = replay, record, budget, Node(), 0

    def gains(self):
        """(minus the total, question or not, age of the place, its depth, the place) of all that could come next."""
        for total, order, depth, place in [(0.0, -1, 0, self.root), *self.root.below()]:
            if place.offers is None:
                yield -total, 0, order, depth, place
            elif place.offers:
                yield -float32(place.offers[0][1] + total), 1, order, depth, place

    def grow(self, length):
        self.root.offers = None
        room = self.budget - sum(1 for _ in self.root.below())
        while room > 0:
            _, known, _, depth, place = min(self.gains(), key=lambda g: g[:3], default=(0, 0, 0, 0, None))
            if place is None:
                return
            if not known:
                place.offers = self.replay.candidates(self.record, length + depth)
                continue
            token, score = place.offers.pop(0)
            if not place.child(token):
                place.children.append(Node(token, score, self.order))
                self.order += 1
                room -= 1

    def step(self, tokens):
        for token in tokens:
            self.root = self.root.child(token) or Node()


def expected_counts(replay, record, budget, max_tokens):
    """The walk of a whole answer: what the target must report."""
    answer, prompt, at = record["token_ids"], len(record["prompt_ids"]), 0
    draft, rounds, drafted, forwards, accepted, per_position = Draft(replay, record, budget), 0, 0, 0, 0, []
    while at < len(answer):
        draft.grow(prompt + at)
        room = max_tokens - at
        nodes = {id(n) for *_, n in heapq.nsmallest(budget, ((-s, o, d, n) for s, o, d, n in draft.root.below()
                                                             if d < room))} if room > 1 else set()
        walked, row = 1, draft.root.child(answer[at])
        while row and id(row) in nodes and at + walked < len(answer):
            row, walked = row.child(answer[at + walked]), walked + 1
        per_position += [0] * (walked - 1 - len(per_position))
        for i in range(walked - 1):
            per_position[i] += 1
        forwards, rounds, drafted, accepted = forwards + 1, rounds + bool(nodes), drafted + len(nodes), accepted + walked - 1
        draft.step(answer[at:at + walked])
        at += walked
    return {"forwards": forwards, "rounds": rounds, "draft_tokens": drafted, "accepted_tokens": accepted,
            "rewound_tokens": drafted - accepted, "accepted_per_pos": per_position}


# --- the tests ---


def prompts():
    records = golden()
    first = next(r for r in records if r["id"] == FEW[0])
    return records + [{"id": LOOP, "prompt_ids": first["prompt_ids"] + first["output_ids"][:84]}]


def most_often(answer):
    """How often the commonest token of an answer is there."""
    return max(map(answer["token_ids"].count, answer["token_ids"]))


class Recording:
    """Plain answers of some golden prompts, and the counters of the target that gave them."""

    def __init__(self, folder, ids, *flags, tokens=TOKENS):
        self.flags = ("--max-tokens", str(tokens), *flags)
        self.tokens = tokens
        self.records = [r for r in prompts() if r["id"] in ids]
        self.plain = batch(folder, self.records, "--draft", "none", *self.flags)
        self.lines = list(self.plain.answers.values())

    def some(self, ids):
        return [r for r in self.records if r["id"] in ids]


class Pair(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.recordings = {}

    def recording(self, ids, *flags, **more):
        """Made once for each kind of answer."""
        key = (ids, flags, tuple(more.items()))
        if key not in self.recordings:
            self.recordings[key] = Recording(type(self).folder, ids, *flags, **more)
        return self.recordings[key]

    def figures_add_up(self, run):
        """Every answer: tokens = forwards + accepted. The sum of all: what cache, model and ops have counted."""
        for a in run.answers.values():
            s = a["stats"]
            self.assertEqual(len(a["token_ids"]), s["forwards"] + s["accepted_tokens"], a["id"])
            self.assertEqual(s["draft_tokens"], s["accepted_tokens"] + s["rewound_tokens"])
            self.assertEqual(s["forwards"], s["rounds"] + s["plain_steps"])
            self.assertEqual(sum(s["accepted_per_pos"]), s["accepted_tokens"])
            self.assertTrue(s["rounds"] <= s["verdicts"] <= s["forwards"], s)
            self.assertTrue(s["ahead_hits"] <= min(s["verdicts"], s["survivors"]), s)
            self.assertEqual(s["ahead_hits"] > 0, s["survivors"] > 0)
        for count in ("verdicts", "ahead_hits", "survivors"):
            self.assertEqual(run.counters["sessions"][count], total(run.answers, count))
        rounds, drafted, accepted = (total(run.answers, f) for f in ("rounds", "draft_tokens", "accepted_tokens"))
        engine, kv, model = (run.counters[group] for group in ("engine", "kv", "model"))
        self.assertEqual(engine["tokens"], sum(len(a["token_ids"]) for a in run.answers.values()))
        self.assertEqual((engine["forwards"], engine["accepted"]), (total(run.answers, "forwards"), accepted))
        self.assertEqual(engine["failures"], 0)
        self.assertEqual(kv["staged_rows"], drafted + rounds)  # nodes and roots
        self.assertEqual(model["staged_rows"], drafted + rounds)
        copies = LAYERS * (accepted + rounds)
        if run.counters["sessions"]["blocks"]:  # a virtual cache's last rows are not copied when a session ends
            self.assertLessEqual(model["commit_copies"], copies)
        else:
            self.assertEqual(model["commit_copies"], copies)
        refused = sum(count for name, count in kv.items() if name.startswith("refused_"))
        self.assertEqual((kv["stage_operations"], refused), (rounds, 0))
        written = kv["staged_rows"] + kv["committed_rows"] + kv["appended_rows"]
        self.assertEqual(kv["bytes_spared"] * written, kv["bytes_written"] * kv["rejected_rows"])
        self.assertEqual((kv["committed_rows"], kv["rejected_rows"]), (accepted + rounds, drafted - accepted))
        if engine["selfchecks"]:
            return  # their rows are appended too
        prompts = sum(a["prompt_tokens"] - 1 for a in run.answers.values())
        prompts -= run.counters["sessions"]["reused_rows"]  # found in the cache
        self.assertEqual(kv["appended_rows"], prompts + total(run.answers, "plain_steps"))
        self.assertEqual(model["forwards"], engine["batches"])
        self.assertEqual(model["logit_rows"], engine["forwards"] + drafted + engine["measured_rows"])

    def same(self, recording, ids, *flags):
        """The answers with a draft are the recorded ones: the run."""
        run = batch(self.folder, recording.some(ids), *recording.flags, *flags)
        for trouble in ("died", "error:", "out of step"):
            self.assertNotIn(trouble, run.errors)
        for key, a in run.answers.items():
            want = recording.plain.answers[key]
            for field in ("token_ids", "text", "finish_reason", "numerics_id", "prompt_ids"):
                self.assertEqual(a[field], want[field], f"{key}: {field} with {flags}")
        self.figures_add_up(run)
        tell(f"{' '.join(str(f) for f in flags if str(recording.plain.path) not in str(f))}: "
             f"{len(run.answers)} answers, {run.counters['engine']['tokens']} tokens: "
             f"{total(run.answers, 'forwards')} forwards + {total(run.answers, 'accepted_tokens')} accepted of "
             f"{total(run.answers, 'draft_tokens')} nodes in {total(run.answers, 'rounds')} rounds")
        return run

    def replayed(self, recording, ids, rate, *flags, sibling=None, budget=BUDGET):
        """Replay in lockstep: the same answers, and exactly the counts that are computed here."""
        method = f"replay:{recording.plain.path}:{rate}" + ("" if sibling is None else f":{sibling}")
        run = self.same(recording, ids, "--budget", str(budget), "--pace", "lockstep", *flags, "--draft", method)
        replay = Replay(recording.lines, rate, sibling or 0.0)
        for key, a in run.answers.items():
            want = expected_counts(replay, recording.plain.answers[key], budget, recording.tokens)
            self.assertEqual({f: a["stats"][f] for f in want}, want, f"{key} at rate {rate}, sibling {sibling}")
            self.assertIsNone(a["stats"]["speculation_off_reason"])
        tell(f"replay rate {rate}" + (f", sibling {sibling}" if sibling else "") + ": every count is the one computed here")
        return run

    def assert_accepted(self, run):
        self.assertGreater(total(run.answers, "accepted_tokens"), 0)

    # Off means untouched.

    def test_off_means_untouched(self):
        def touched(counters):
            return {"stage operations": counters["kv"]["stage_operations"], "staged rows": counters["kv"]["staged_rows"],
                    "rows written to staging by the ops": counters["model"]["staged_rows"],
                    "commits": counters["kv"]["committed_rows"], "commit copies": counters["model"]["commit_copies"],
                    "allocations": counters["memory_calls"]["speculation"],
                    "bytes": counters["memory_bytes"]["speculation"]}

        r = self.recording(ALL)
        self.figures_add_up(r.plain)
        self.assertEqual(set(touched(r.plain.counters).values()), {0}, touched(r.plain.counters))
        none = self.same(r, FEW[:2], "--budget", "0")
        self.assertEqual(set(touched(none.counters).values()), {0})
        some = self.replayed(r, FEW[:1], 0.9)
        for what, count in touched(some.counters).items():
            self.assertGreater(count, 0, what)
        tell(f"without a draft all 0; with one {touched(some.counters)}")

    # Greedy: all prompts. In free pace it is the machine's affair whether nodes come in time.

    @whole_model
    def test_ngram(self):
        self.assert_accepted(self.same(self.recording(ALL), ALL, "--draft", "ngram", "--pace", "lockstep"))

    @thorough
    def test_ngram_free(self):
        self.same(self.recording(ALL), FEW, "--draft", "ngram")
        self.same(self.recording((LOOP,)), (LOOP,), "--draft", "ngram")

    @whole_model
    def test_replay_nearly_right(self):
        r = self.recording(ALL)
        run = self.replayed(r, ALL, 0.9, sibling=0.5)
        self.assert_accepted(run)
        long = [a for a in run.answers.values() if a["prompt_tokens"] > LONG]
        self.assertTrue(long or SUBSET)
        for a in long:
            self.assertGreater(a["stats"]["accepted_tokens"], 0)

    @thorough
    def test_replay_half_right(self):
        r = self.recording(ALL)
        self.assert_accepted(self.replayed(r, FEW, 0.5))
        self.assert_accepted(self.replayed(r, FEW[:3], 0.5, sibling=1))

    @thorough
    def test_replay_always_wrong(self):
        r = self.recording(ALL)
        run = self.replayed(r, FEW[:3], 0)
        self.assertGreater(total(run.answers, "draft_tokens"), 0)
        self.assertEqual(total(run.answers, "accepted_tokens"), 0)
        self.assert_accepted(self.replayed(r, FEW[:2], 0, sibling=1, budget=4))  # only siblings are right

    @thorough
    def test_replay_free(self):
        r = self.recording(ALL)
        self.same(r, FEW, "--draft", f"replay:{r.plain.path}:0.9")
        self.same(r, FEW, "--draft", f"replay:{r.plain.path}:0.8:0.5")

    @thorough
    def test_a_draft_that_does_not_pay(self):
        """Always wrong: none of its nodes is accepted, and where speculation is turned off the run says so."""
        r = self.recording(ALL)
        wrong = ("--draft", f"replay:{r.plain.path}:0", "--budget", "16")
        run = self.same(r, FEW, *wrong, "--pace", "lockstep")
        self.assertGreater(total(run.answers, "draft_tokens"), 0)
        self.assertEqual(total(run.answers, "accepted_tokens"), 0)
        run = self.same(r, FEW, *wrong)
        self.assertEqual(total(run.answers, "accepted_tokens"), 0)
        reasons = {a["stats"]["speculation_off_reason"] for a in run.answers.values()} - {None}
        for reason in reasons:  # a quick answer is over before the draft has come, or before it has been judged
            self.assertRegex(reason, "^(the draft did not pay for itself$|the answer was over before |a draft is here, but |"
                                     "there is no draft worker)")
        self.assertEqual("decoded plainly" in run.errors, bool(reasons))
        self.assertEqual(any(reason in run.errors for reason in reasons), bool(reasons))

    def test_trees_in_chunks(self):
        """The rest of a tree goes on below what a chunk accepts, and what hangs elsewhere is left out."""
        chunks = ("--verify-chunk", "3", "--budget", "15")
        for sampled, pace in (((), "lockstep"), (SAMPLED, "lockstep"), ((), "free")):
            r = self.recording(FEW, *sampled) if sampled else self.recording(ALL)
            run = self.same(r, FEW, *chunks, "--pace", pace, "--draft", f"replay:{r.plain.path}:0.8:0.5")
            for a in run.answers.values():
                self.assertLessEqual(a["stats"]["draft_tokens"], 3 * a["stats"]["rounds"])
            if pace == "lockstep":
                self.assert_accepted(run)
                self.assertGreater(run.counters["sessions"]["chunks_cut"], 0)
                self.assertGreater(run.counters["sessions"]["chunks_left_out"], 0)
        whole = self.same(r, FEW[:2], "--budget", "15", "--pace", "lockstep", "--draft", f"replay:{r.plain.path}:0.8:0.5")
        self.assertEqual((whole.counters["sessions"]["chunks_cut"], whole.counters["sessions"]["chunks_left_out"]), (0, 0))

    # Sampling.

    @whole_model
    def test_sampled(self):
        r = self.recording(FEW, *SAMPLED)
        greedy = self.recording(ALL).plain.answers
        self.assertTrue(any(a["token_ids"] != greedy[k]["token_ids"] for k, a in r.plain.answers.items() if k in greedy))
        self.assert_accepted(self.replayed(r, FEW, 0.9, sibling=0.5))
        self.same(r, FEW, "--draft", f"replay:{r.plain.path}:0.9")
        self.assert_accepted(self.same(r, FEW, "--draft", "ngram", "--pace", "lockstep", "--budget", "4"))

    @whole_model
    def test_sampled_with_filters_and_penalty(self):
        r = self.recording(FEW, *FILTERED)
        bare = self.recording(FEW, *SAMPLED).plain.answers
        self.assertTrue(any(a["token_ids"] != bare[k]["token_ids"] for k, a in r.plain.answers.items()))
        self.assert_accepted(self.replayed(r, FEW, 0.9, sibling=0.5))

    def test_penalties_by_count_and_a_bias(self):
        """They depend on the path to a row of the tree. Nothing of the prompt is counted."""
        for sampling in ((), SAMPLED):
            r = self.recording(FEW, *sampling, *COUNTED)
            bare = self.recording(FEW, *sampling).plain.answers
            for key, a in r.plain.answers.items():
                self.assertNotIn(28, a["token_ids"], key)
                self.assertLess(most_often(a), most_often(bare[key]) + 2, key)
            often, seldom = (sum(map(most_often, of.values())) for of in (bare, r.plain.answers))
            self.assertTrue(SUBSET or often > seldom)  # short answers repeat nothing
            self.assert_accepted(self.replayed(r, FEW, 0.9, sibling=0.5))
            self.same(r, FEW, "--draft", f"replay:{r.plain.path}:0.9", "--sessions", "1")
            self.same(r, FEW, "--draft", "ngram", "--selfcheck", "2")

    # Options that must not matter.

    @whole_model
    def test_sessions(self):
        for sessions in (1, 4):
            with self.subTest(sessions=sessions):
                r = self.recording(ALL)
                self.assert_accepted(self.replayed(r, FEW, 0.9, "--sessions", str(sessions)))

    def test_many_at_once(self):
        """Sixteen sessions, long prompts and ends of answers among them: the rows of all share forwards."""
        many = ("--sessions", "16", "--ctx", "1024")
        r = self.recording(ALL)
        self.assert_accepted(self.replayed(r, ALL, 0.9, *many, sibling=0.5))
        self.same(r, ALL, "--draft", "ngram", *many)
        engine = self.same(r, ALL, "--draft", "none", *many).counters["engine"]
        self.assertLess(engine["batches"], (engine["prefills"] + engine["forwards"]) / (1 if SUBSET else 2))
        r = self.recording(FEW, *SAMPLED)
        self.same(r, FEW, "--draft", f"replay:{r.plain.path}:0.9", *many)

    def test_next_turn(self):
        """What a conversation has said before is in the cache; the answers are those without."""
        first = prompts()[0]
        r = self.recording((first["id"],))
        said = first["prompt_ids"] + r.plain.answers[first["id"]]["token_ids"]
        turns = [{"id": i, "prompt_ids": ids} for i, ids in enumerate(
            (first["prompt_ids"], said + first["prompt_ids"][-20:]))]
        alone = [batch(self.folder, [turn], "--draft", "none", *r.flags) for turn in turns]
        self.assertEqual(alone[1].counters["sessions"]["reused_rows"], 0)
        for layout, lost in (("static", 1), ("virtual", 16 + 16)):  # the last block, and the last round's rows
            run = batch(self.folder, turns, "--sessions", "1", "--draft", "ngram", "--pace", "lockstep", "--kv", layout,
                        *r.flags)
            for i, a in run.answers.items():
                self.assertEqual(a["token_ids"], alone[i].answers[i]["token_ids"])
            self.figures_add_up(run)
            self.assertGreaterEqual(run.counters["sessions"]["reused_rows"], len(said) - lost)

    def test_virtual_cache(self):
        """Every answer is the static cache's, sessions share blocks, and in the end nobody holds any."""
        r = self.recording(ALL)
        virtual = ("--kv", "virtual", "--ctx", "1024")
        runs = [self.replayed(r, FEW, 0.9, "--sessions", "4", *virtual, sibling=0.5),
                self.same(r, FEW, "--draft", "ngram", "--sessions", "16", "--kv-blocks", "80", *virtual)]
        runs.append(batch(self.folder, [dict(r.some(FEW[:1])[0], id=i) for i in range(3)], "--sessions", "2", "--draft", "none",
                          *virtual, *r.flags))
        self.assert_accepted(runs[0])
        for run in runs:
            blocks = run.counters["sessions"]
            self.assertEqual(blocks["blocks_free"] + blocks["blocks_kept"], blocks["blocks"])
        self.assertEqual(runs[1].counters["sessions"]["blocks"], 80)
        self.assertGreater(runs[2].counters["sessions"]["blocks_shared"], 0)
        self.assertEqual(len({tuple(a["token_ids"]) for a in runs[2].answers.values()}), 1)

    @whole_model
    def test_budgets(self):
        for budget in (1, 4, 16):
            with self.subTest(budget=budget):
                self.assert_accepted(self.replayed(self.recording(ALL), FEW[:4], 0.9, sibling=0.5, budget=budget))

    @thorough
    def test_threads(self):
        for threads in (1, 2, 3):
            with self.subTest(threads=threads):
                self.assert_accepted(self.replayed(self.recording(ALL), FEW[:3], 0.9, "--threads", str(threads)))

    def test_single_token(self):
        """Drafts are verified as always, and none is accepted: the switch that tells where a difference comes from."""
        r = self.recording(ALL)
        run = self.same(r, FEW[:3], "--draft", f"replay:{r.plain.path}:0.9", "--pace", "lockstep", "--force-single-token")
        for a in run.answers.values():
            self.assertEqual(a["stats"]["accepted_tokens"], 0)
            self.assertEqual(a["stats"]["forwards"], len(a["token_ids"]))
            self.assertGreater(a["stats"]["rounds"], len(a["token_ids"]) // 2)

    @whole_model
    def test_selfcheck(self):
        every = 3
        run = self.replayed(self.recording(ALL), FEW, 0.9, "--selfcheck", str(every))
        self.assert_accepted(run)
        self.assertEqual(run.counters["engine"]["selfchecks"],
                         sum(a["stats"]["rounds"] // every for a in run.answers.values()))
        self.assertGreater(run.counters["engine"]["selfchecks"], 0)

    @whole_model
    def test_f32(self):
        ids, tokens = FEW[1:3], 12 if SUBSET else 24
        r = self.recording(ids, "--math", "f32", tokens=tokens)
        self.assert_accepted(self.replayed(r, ids, 0.9, sibling=0.5))
        self.assert_accepted(self.replayed(r, ids, 0.5, "--selfcheck", "2", sibling=1, budget=4))
        for record in r.records:  # and they are the golden ones, wherever those are clear
            clear = next((i for i, m in enumerate(record["margins"]) if m < 3e-4), tokens)
            self.assertEqual(r.plain.answers[record["id"]]["token_ids"][:clear], record["output_ids"][:tokens][:clear])

    # The computation itself.

    def test_the_computation(self):
        """Against counts that are made by hand."""
        self.assertEqual(philox4x32([0] * 4, [0] * 2), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])  # Random123's
        record = {"prompt_ids": [1, 2, 3], "token_ids": list(range(10, 21)) + [END_TOKEN]}
        always = Replay([record], 1.0)
        # 12 tokens, 3 right nodes a round: 4 + 4 + 4.
        self.assertEqual(expected_counts(always, record, 3, 100),
                         {"forwards": 3, "rounds": 3, "draft_tokens": 9, "accepted_tokens": 9, "rewound_tokens": 0,
                          "accepted_per_pos": [3, 3, 3]})
        # With room for 12 and 7 nodes a round: 8, then 3 nodes (the fourth would be beyond max_tokens).
        self.assertEqual(expected_counts(always, record, 7, 12),
                         {"forwards": 2, "rounds": 2, "draft_tokens": 10, "accepted_tokens": 10, "rewound_tokens": 0,
                          "accepted_per_pos": [2, 2, 2, 1, 1, 1, 1]})
        # Always wrong: a chain of 2 nodes below the root each time, but none for the last token, which ends the
        # recording and has no successor; max_tokens leaves room for nothing but it.
        never = expected_counts(Replay([record], 0.0), record, 2, 12)
        self.assertEqual((never["forwards"], never["rounds"], never["accepted_tokens"]), (12, 11, 0))
        self.assertEqual(never["draft_tokens"], 10 * 2 + 1)


if __name__ == "__main__":
    unittest.main()
