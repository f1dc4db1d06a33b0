"""--draft suffix: what an earlier answer said is not computed token by token again, and tells nobody else."""

import os
import pathlib
import re
import signal
import unittest

from command_line import OK, USAGE, Command, detokenize, tandem
from support import MODEL, TANDEM, Case, Running, batch, child_named, golden, tell, total, wait_until

TOKENS = 40
LOCKSTEP = ("--pace", "lockstep", "--budget", "7", "--max-tokens", str(TOKENS), "--sessions", "1")
FEWEST = TOKENS // 8  # forwards, if every guess of seven is right


class Suffix(Case):
    def setUp(self):
        super().setUp()
        self.records = golden()[:2]

    def forwards(self, *flags, records=None):
        run = batch(self.folder, records or self.records, *LOCKSTEP, *flags)
        self.assertIn("suffix,ngram", run.answers[self.records[0]["id"]]["stats"]["draft_method"])
        return run

    def test_a_second_run_looks_up_the_first(self):
        flags = ("--draft", "suffix", "--ledger", str(self.folder / "ledger.sqlite"))
        plain = batch(self.folder, self.records, "--draft", "none", "--max-tokens", str(TOKENS))
        first, second = self.forwards(*flags), self.forwards(*flags)
        for key, a in plain.answers.items():
            self.assertEqual(a["token_ids"], first.answers[key]["token_ids"])
            self.assertEqual(a["token_ids"], second.answers[key]["token_ids"])
        counts = [total(run.answers, "forwards") for run in (first, second)]
        tell(f"forwards at first, and again: {counts}")
        self.assertLess(counts[1], counts[0])
        self.assertLessEqual(counts[1], 2 * (FEWEST + 2))

    def test_an_answer_of_the_same_process_is_looked_up(self):
        again = [dict(self.records[0], id=n) for n in (self.records[0]["id"], 1001)]
        run = batch(self.folder, again, *LOCKSTEP, "--draft", "suffix", "--ledger", "none")
        first, second = (a["stats"]["forwards"] for a in run.answers.values())
        self.assertLess(second, first)
        self.assertLessEqual(second, FEWEST + 2)

    def test_a_text_is_looked_up(self):
        """The text is what the model is going to say."""
        plain = batch(self.folder, self.records[:1], "--draft", "none", "--max-tokens", str(TOKENS))
        (answer,) = plain.answers.values()
        text = self.folder / "corpus.txt"
        text.write_text(detokenize(answer["token_ids"]))
        flags = (*LOCKSTEP, "--ledger", "none", "--draft")
        without = batch(self.folder, self.records[:1], *flags, "ngram")
        with_text = batch(self.folder, self.records[:1], *flags, "suffix", "--corpus", str(text))
        self.assertLess(total(with_text.answers, "forwards"), total(without.answers, "forwards"))

    def flags_of_draft(self, *flags):
        fixed = ("serve", "-m", MODEL, "--port", "0", "--draft", "suffix")
        program = Running(self.folder, TANDEM, *fixed, *flags)
        self.addCleanup(program.close)
        draft = wait_until(lambda: child_named(program.process.pid, "tandem-draft"), lambda: program.errors)
        found = pathlib.Path(f"/proc/{draft}/cmdline").read_bytes().decode().split("\0")
        program.close()
        return found

    def test_a_server_keeps_answers_apart_unless_it_is_told_not_to(self):
        ledger = ("--ledger", str(self.folder / "ledger.sqlite"))
        batch(self.folder, self.records, "--draft", "none", "--max-tokens", "4", *ledger)
        text = self.folder / "text"
        text.write_text("what everybody may know of")
        apart = self.flags_of_draft(*ledger, "--corpus", str(text))
        self.assertEqual(apart[apart.index("--corpus") + 1], str(text))
        self.assertNotIn("--corpus-learn", apart)
        one_user = self.flags_of_draft(*ledger, "--corpus-learn")
        self.assertIn("--corpus-learn", one_user)
        self.assertIn("--corpus", one_user)

    def test_a_draft_that_is_started_again_gets_the_answers_again(self):
        """They lie in a file for as long as it starts."""
        ledger = ("--ledger", str(self.folder / "ledger.sqlite"))
        batch(self.folder, self.records, "--draft", "none", "--max-tokens", "4", *ledger)
        fixed = ("serve", "-v", "-m", MODEL, "--port", "0", "--draft", "suffix", "--corpus-learn")
        program = Running(self.folder, TANDEM, *fixed, *ledger)
        self.addCleanup(program.close)

        def has_read(times):
            words = r"the corpus has \d|goes on without it"
            wait_until(lambda: len(re.findall(words, program.errors)) == times, lambda: program.errors)
            self.assertNotIn("goes on without it", program.errors)
            draft = child_named(program.process.pid, "tandem-draft")
            flags = pathlib.Path(f"/proc/{draft}/cmdline").read_bytes().decode().split("\0")
            corpus = pathlib.Path(flags[flags.index("--corpus") + 1])
            wait_until(lambda: not corpus.exists() and corpus.parent.exists(), lambda: program.errors)
            return draft

        os.kill(has_read(1), signal.SIGKILL)
        has_read(2)


class WrongCorpus(Command):
    def test_flags(self):
        text = self.folder / "text"
        text.write_bytes(b"ab\xff")
        self.refused(USAGE, "--draft suffix", "run", "-m", MODEL, "--corpus", str(text), "hello")
        self.refused(USAGE, "--corpus-learn", "serve", "-m", MODEL, "--draft", "suffix")
        self.refused(USAGE, "--draft suffix", "serve", "-m", MODEL, "--draft", "ngram", "--corpus-learn")
        bench = ("bench", "spec", "-m", MODEL, "--methods", "ngram,suffix", str(text))
        self.refused(USAGE, "nothing to look into", *bench)
        for draft in ("ngram", "none"):  # a variable contradicts nothing
            env = dict(os.environ, TANDEM_CORPUS="nowhere")
            run = ("run", "-m", MODEL, "--ledger", "none", "-n", "2", "--draft", draft, "hello")
            status, _, errors = tandem(*run, env=env)
            self.assertEqual(status, OK, errors)
        suffix = ("run", "-m", MODEL, "--ledger", "none", "-n", "2", "--draft", "suffix", "--corpus")
        self.refused(USAGE, "cannot read", *suffix, "nowhere", "hello")
        status, _, errors = tandem(*suffix, str(text), "hello")
        self.assertEqual(status, OK, errors)  # a draft costs speed alone
        self.assertIn("UTF-8", errors)
        self.assertIn(str(text), errors)
        self.assertNotIn("without a draft", errors)


if __name__ == "__main__":
    unittest.main()
