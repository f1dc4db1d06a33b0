"""Models as drafts: the answers are the plain ones whatever the draft's model is, and what it accepts adds up."""

import os
import re
import signal
import struct
import subprocess
import unittest

from command_line import INTERRUPTED, LONG, OK, tandem
from models import Gguf, make_head, make_model, other_vocabulary
from programs import sent_bytes
from support import (
    DRAFT, MODEL, ROOT, SUBSET, TANDEM, VOCABULARY, Case, Running, batch, child_named, golden, tell,
    thorough, total, wait_until, whole_model)

FEW = (102, 123, 214) if SUBSET else (85, 102, 123, 214, 341)
TOKENS = 12 if SUBSET else 40
SAMPLED = ("--temp", "0.8", "--seed", "20240607")
FILTERED = SAMPLED + ("--top-k", "40", "--top-p", "0.95", "--repeat-penalty", "1.1")
LOCKSTEP = ("--pace", "lockstep", "--budget", "4")
SELF = ("-md", MODEL)
HEAD = str(ROOT / "heads/smollm2-135m-instruct-eagle3.gguf")


def spellings_beyond(head):
    """Of the tokens, if they are letters with a space or none before them, that the head's file has no row for."""
    ids = next(data for name, _, _, data in head.tensors if name == "d2t")
    own = set(struct.unpack(f"<{len(ids) // 8}q", ids))
    spelt = (t.decode() for i, t in enumerate(head.keys["tokenizer.ggml.tokens"][1][1]) if i not in own)
    return {t.replace("\u0120", " ") for t in spelt if t.replace("\u0120", "").isascii()}


@whole_model
class DraftModel(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.records = [r for r in golden() if r["id"] in FEW]
        cls.plain = {}

    def recorded(self, flags):
        if flags not in self.plain:
            self.plain[flags] = batch(self.folder, self.records, "--draft", "none", "--max-tokens", str(TOKENS), *flags)
        return self.plain[flags]

    def same(self, *draft, flags=()):
        """With this draft the answers are the plain ones, and tokens = forwards + accepted."""
        plain = self.recorded(flags)
        run = batch(self.folder, self.records, "--max-tokens", str(TOKENS), *flags, *draft)
        for key, a in run.answers.items():
            self.assertEqual(a["token_ids"], plain.answers[key]["token_ids"], f"{key} with {draft}")
            self.assertEqual(len(a["token_ids"]), a["stats"]["forwards"] + a["stats"]["accepted_tokens"])
        engine = run.counters["engine"]
        self.assertEqual(engine["forwards"], total(run.answers, "forwards"))
        tell(f"{' '.join(d for d in draft if '/' not in d)}: {engine['tokens']} tokens, {total(run.answers, 'accepted_tokens')} "
             f"accepted of {total(run.answers, 'draft_tokens')} in {total(run.answers, 'rounds')} rounds")
        return run

    def test_the_target_itself(self):
        """Its first candidate is always right: a round ends only where the tree does."""
        for flags in ((), SAMPLED, FILTERED):
            with self.subTest(flags=flags):
                run = self.same(*SELF, *LOCKSTEP, flags=flags)
                accepted, rounds = total(run.answers, "accepted_tokens"), total(run.answers, "rounds")
                self.assertGreater(accepted, 1.8 * rounds)
                for a in run.answers.values():  # the last round may be cut short
                    per_position = a["stats"]["accepted_per_pos"]
                    self.assertGreaterEqual(per_position[0], a["stats"]["rounds"] - 1)

    @thorough
    def test_counts_repeat(self):
        first, again = (self.same(*SELF, *LOCKSTEP) for _ in range(2))
        for key, a in first.answers.items():
            for count in ("forwards", "rounds", "draft_tokens", "accepted_tokens", "accepted_per_pos"):
                self.assertEqual(a["stats"][count], again.answers[key]["stats"][count])

    @thorough
    def test_first_layers(self):
        run = self.same("--draft-layers", "25", *LOCKSTEP)
        self.assertGreater(total(run.answers, "draft_tokens"), 0)
        self.assertGreater(total(run.answers, "accepted_tokens"), 0)
        self.same("--draft-layers", "10")

    def test_both(self):
        self.assertGreater(total(self.same(*SELF, "--draft-layers", "25", *LOCKSTEP).answers, "draft_tokens"), 0)

    @thorough
    def test_beside_prompt_lookup(self):
        """Both feed one tree: its result is the plain one, and says which drafts there were."""
        for methods in ("model,ngram", "ngram,model"):
            for flags in ((), SAMPLED):
                with self.subTest(methods=methods, flags=flags):
                    run = self.same(*SELF, "--draft", methods, *LOCKSTEP, flags=flags)
                    self.assertGreater(total(run.answers, "accepted_tokens"), 1.8 * total(run.answers, "rounds"))
                    self.assertEqual({a["stats"]["draft_method"] for a in run.answers.values()}, {methods})
        self.same(*SELF, "--draft", "model,ngram", "--draft-layers", "25")

    @thorough
    def test_sessions(self):
        run = self.same(*SELF, "--sessions", "4", *LOCKSTEP)
        self.assertGreater(total(run.answers, "accepted_tokens"), 1.8 * total(run.answers, "rounds"))
        self.same(*SELF, "--sessions", "4")
        self.same(*SELF, "--sessions", "4", flags=SAMPLED)

    def test_a_model_that_knows_nothing(self):
        """Almost nothing is accepted; where it does not pay, the draft goes quiet."""
        path = make_model(self.folder / "random.gguf", VOCABULARY)
        run = self.same("-md", str(path), *LOCKSTEP)
        self.assertGreater(total(run.answers, "draft_tokens"), 0)
        self.assertLess(total(run.answers, "accepted_tokens"), 0.1 * total(run.answers, "draft_tokens"))
        self.same("-md", str(path))

    @thorough
    def test_a_bridged_vocabulary(self):
        """The target's own network, but every token has another number: as right as the target itself."""
        path = other_vocabulary(self.folder / "bridged.gguf", padding=64, misspelt=100)  # 0.2 % may lack a partner
        for flags in ((), SAMPLED):
            run = self.same("-md", str(path), *LOCKSTEP, flags=flags)
            self.assertGreater(total(run.answers, "accepted_tokens"), 1.8 * total(run.answers, "rounds"))

    def test_a_head(self):
        """It reads the target's own states. This one knows nothing: its nodes are verified, and none of them harms."""
        head = str(make_head(self.folder / "head"))
        for flags in ((), SAMPLED):
            with self.subTest(flags=flags):
                run = self.same("-md", head, "--draft", "eagle3", *LOCKSTEP, flags=flags)
                self.assertGreater(total(run.answers, "draft_tokens"), 0)
                engine = run.counters["engine"]  # the last rows of an answer are nobody's
                self.assertGreater(engine["fused_rows"], 0.8 * engine["tapped_rows"])
        run = self.same("-md", head, "--draft-type", "bf16", "--sessions", "4", *LOCKSTEP)
        self.assertGreater(total(run.answers, "accepted_tokens"), 0)  # of prompt lookup, which is beside it by default
        self.assertEqual({a["stats"]["draft_method"] for a in run.answers.values()}, {"eagle3,ngram"})
        self.same("-md", head)

    def test_fc_at_the_target(self):
        """The head drafts as well from rows to which the target has applied fc, which are a third as wide."""
        flags = ("-md", HEAD, *LOCKSTEP)
        fused = self.same(*flags)
        raw = self.same(*flags, "--draft-type", "q8_0")  # as it is already; so the target is not given it
        self.assertGreater(fused.counters["engine"]["fused_rows"], 0)
        self.assertEqual(raw.counters["engine"]["fused_rows"], 0)
        self.assertIn("3456 bytes of its states travel for a token, not 1152", raw.errors)
        bytes_a_token = [sum(sent_bytes(run.errors).values()) / sum(len(a["token_ids"]) for a in run.answers.values())
                         for run in (fused, raw)]
        self.assertLess(bytes_a_token[0], 0.5 * bytes_a_token[1])
        accepted = [total(run.answers, "accepted_tokens") for run in (fused, raw)]
        self.assertGreater(min(accepted), 0)
        self.assertLess(abs(accepted[0] - accepted[1]), 3 + 0.1 * accepted[1], "both are rounded, each in its place")

    @thorough
    def test_a_map_of_rows(self):
        """A head cut to 4,096 tokens proposes others that the text has, where its file has a map, and else never."""
        trees = self.folder / "trees"
        said, foreign, accepted = [], [], []
        for flags in ((), ("--map",)):
            cut = str(self.folder / "cut.gguf")
            self.assertEqual(tandem("convert-head", HEAD, cut, "-m", MODEL, "--rows", "4096", "--head-type", "q4_1",
                                    *flags)[0], OK)
            status, out, errors = tandem("run", "-m", MODEL, "-md", cut, "--draft", "eagle3", *LOCKSTEP, "-n", "24",
                                         f"--tree={trees}", "Repeat: zyxomma kwyjibo zyxomma kwyjibo zyxomma kwyjibo")
            self.assertEqual(status, OK, errors)
            said.append(out)
            nodes = re.findall(r'^[ |]*[|`]- ([* ]) "(.*)"$', trees.read_text(), re.M)
            accepted.append(sum(mark == "*" for mark, _ in nodes))
            foreign.append({text for _, text in nodes} & spellings_beyond(Gguf(cut)))
        tell(f"accepted {accepted}; not in the file: {foreign[1]}")
        self.assertEqual(said[0], said[1])
        self.assertEqual(foreign[0], set())
        self.assertGreater(len(foreign[1]), 1)
        self.assertGreater(accepted[1], accepted[0])

    def refused(self, reasons, *draft):
        """A draft that does not fit: the reasons are told while an answer comes, and every answer is the plain one."""
        run = Running(self.folder, TANDEM, "run", "-v", "-m", MODEL, *draft, "--max-tokens", "3000", *LONG)
        self.addCleanup(run.close)
        wait_until(lambda: all(re.search(reason, run.errors) for reason in reasons), lambda: run.errors)
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), INTERRUPTED, run.errors)
        run = self.same(*draft)
        self.assertEqual(total(run.answers, "rounds"), 0)
        for a in run.answers.values():
            self.assertTrue(a["stats"]["speculation_off_reason"])

    def test_a_head_for_another_model(self):
        self.refused(["--head .* is not used.* 32000 tokens, but the target has 49152", "tandem-draft: .* 32000 tokens"],
                     "-md", str(make_head(self.folder / "foreign", vocabulary=32000)))

    @thorough
    def test_a_foreign_vocabulary(self):
        for path, reason in ((make_model(self.folder / "small.gguf", 500), "500 tokens"),
                             (other_vocabulary(self.folder / "misspelt.gguf", misspelt=1000), "1000 of 49")):
            self.refused([reason, "the draft does not fit the target"], "-md", str(path))

    def test_a_context_that_is_too_small(self):
        """Sessions that do not fit are not taken, and that is said: lockstep waits for it."""
        run = self.same(*SELF, "--draft-ctx", "20", *LOCKSTEP)
        self.assertIn("longer than this draft", run.errors)

    def test_the_draft_dies(self):
        asked = "-m", MODEL, "--max-tokens", "300", *LONG
        run = Running(self.folder, TANDEM, "run", "-v", *SELF, *LOCKSTEP, *asked)
        self.addCleanup(run.close)
        wait_until(lambda: len(run.out) > 40, lambda: run.errors)
        first = child_named(run.pid, os.path.basename(DRAFT))
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: child_named(run.pid, os.path.basename(DRAFT)) not in (None, first) or
                   run.process.poll() is not None, lambda: run.errors)
        self.assertEqual(run.end(), 0, run.errors)
        status, plain, errors = tandem("run", "--draft", "none", *asked)
        self.assertEqual((status, run.out), (OK, plain), errors)
        self.assertGreater(int(re.search(r"guessed (\d+) of \d+ right", run.errors)[1]), 0)

    def test_flags(self):
        def refused(text, *flags):
            done = subprocess.run([TANDEM, "run", "-m", MODEL, *flags, "x"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)

        refused("--draft model needs -md FILE or --draft-layers N", "--draft", "model")
        refused("--draft eagle3 needs -md FILE, the head", "--draft", "eagle3")
        refused("with a model or with a head", "--draft", "eagle3,model", *SELF)
        refused("is no model", "--draft", "ngram", *SELF)
        missing = str(self.folder / "no_such.gguf")
        refused(missing, "-md", missing)
        refused("--draft-layers", "--draft-layers", "0")
        bad = self.folder / "bad.gguf"
        bad.write_bytes(b"GGUF" + struct.pack("<I", 3))
        done = subprocess.run([TANDEM, "run", "-m", MODEL, "-md", str(bad), "x"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0)  # an answer needs no draft
        self.assertIn("bad.gguf", done.stderr)
        done = subprocess.run([TANDEM, "run", "-m", MODEL, "--draft-layers", "31", "x"], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("has 30 layers", done.stderr)


if __name__ == "__main__":
    unittest.main()
