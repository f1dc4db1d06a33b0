"""The ledger as a user meets it: what was interrupted goes on with the same tokens, what was shown is kept, and nothing that
happens to the file takes an answer away."""

import contextlib
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import unittest

from ledger_sums import sums
from models import make_model
from support import (
    DRAFT, MODEL, SLOW, SUBSET, TANDEM, TARGET, TIME_LIMIT, VOCABULARY, Case, Running, children_of, golden,
    is_running, tell, thorough, wait_until, whole_model)

PROMPT = "Tell me a very long story about the sea."  # its answer goes on for thousands of tokens
TOKENS = 60 if SUBSET else 300  # of an answer that is compared
ENDLESS = ("--max-tokens", "3500")
LEAST = 8  # tokens that an answer which goes on gets at least
BEGUN = 60  # bytes: the answer is under way
GREEDY = ()
SAMPLED = ("--temp", "0.8", "--seed", "7", "--presence-penalty", "0.3", "--frequency-penalty", "0.1", "--logit-bias", "28-100",
           "--logit-bias", "30+0.5")
OK, FAILED, USAGE, MODEL_ERROR, WORKER, IO, INTERRUPTED = 0, 1, 2, 3, 7, 8, 130


def tandem(*args, env=None, **more):
    done = subprocess.run([TANDEM, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIME_LIMIT,
                          env=dict(os.environ, **(env or {})), **more)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def own_processes():
    """What starts a program where the processes of others cannot be seen, as in a container; nothing where the
    rights or the file system do not permit it."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    return unshare if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL).returncode == 0 else []


class Sessions(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = {}
        for sampling in (GREEDY, SAMPLED):
            status, out, errors = tandem("run", "-m", MODEL, "--ledger", "none", "--json", "--draft", "none", "--max-tokens",
                                         TOKENS, *sampling, PROMPT)
            assert status == OK, errors
            cls.plain[sampling] = json.loads(out)

    def setUp(self):
        self.ledger = self.folder / f"{self.id().rsplit('.', 1)[1]}.sqlite"

    def good(self, *args, **more):
        status, out, errors = tandem(*args, **more)
        self.assertEqual(status, OK, errors)
        return out

    def refused(self, status, phrase, *args, **more):
        got, out, errors = tandem(*args, **more)
        self.assertEqual(got, status, errors)
        self.assertEqual(out, "")
        self.assertIn(phrase, errors)
        self.assertLessEqual(len(errors.splitlines()), 3, errors)

    def session(self, verb, *args):
        return self.good("session", verb, "--ledger", self.ledger, *args)

    def list(self, *flags):
        return json.loads(self.session("list", "--json", *flags))

    def start(self, *flags, through=()):
        """A run that has begun to show its answer."""
        run = Running(self.folder, *through, TANDEM, "run", "-m", MODEL, "--ledger", str(self.ledger),
                      *map(str, flags), PROMPT, env=SLOW)
        self.addCleanup(run.close)
        wait_until(lambda: len(run.out) > BEGUN, lambda: run.errors)
        return run

    def stop(self, run):
        """It stands still, and has no lock of the ledger."""
        def stopped():
            run.signal(signal.SIGSTOP)
            try:
                with self.locked():
                    return True
            except sqlite3.OperationalError:
                run.signal(signal.SIGCONT)
                return False

        wait_until(stopped, "it always holds the lock")

    def go_on(self, id, plain):
        """As far as a plain answer goes, with the same tokens: what the ledger had, what it has, the text that came."""
        before = json.loads(self.session("export", id))
        count = len(before["token_ids"])
        rest = self.session("resume", id[:8], "--max-tokens", max(TOKENS - count, LEAST))
        after = json.loads(self.session("export", id))
        self.assertEqual(before["token_ids"][:TOKENS], plain["token_ids"][:count])
        self.assertEqual(after["token_ids"][:count], before["token_ids"])
        self.assertEqual(after["token_ids"][:TOKENS], plain["token_ids"])
        self.assertEqual(after["text"], before["text"] + rest)
        if len(after["token_ids"]) == TOKENS:
            self.assertEqual(after["text"], plain["text"])
        return before, after, rest

    def finished(self, *flags):
        """A run to its end: its id."""
        self.good("run", "-m", MODEL, "--ledger", self.ledger, *flags, PROMPT)
        return self.list()[0]["session"]

    # What was interrupted.

    def test_a_killed_orchestrator_loses_nothing(self):
        for sampling in (GREEDY, SAMPLED):
            with self.subTest(sampling=sampling):
                run = self.start(*ENDLESS, *sampling)
                children = children_of(run.pid)
                run.signal(signal.SIGKILL)
                run.end()
                wait_until(lambda: not any(map(is_running, children)), "orphans")
                line = self.list()[0]
                self.assertEqual(line["state"], "interrupted")
                self.assertEqual(line["title"], PROMPT)
                before, *_ = self.go_on(line["session"], self.plain[sampling])
                self.assertTrue(before["text"].encode().startswith(run.out), "what was shown is in the ledger")
                tell(f"killed after {len(run.out)} bytes shown, {len(before['token_ids'])} tokens kept")

    def test_ctrl_c_says_how_to_go_on(self):
        run = self.start(*ENDLESS)
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), INTERRUPTED)
        words = re.search(r"`tandem session resume ([0-9a-f]{16}) --ledger \S+' goes on", run.errors)
        self.assertTrue(words, run.errors)
        self.assertEqual(self.list()[0]["state"], "cancelled")
        _, after, rest = self.go_on(words[1], self.plain[GREEDY])
        self.assertEqual(run.out.decode() + rest, after["text"])

    @thorough
    def test_rollback_and_more(self):
        id = self.finished("--max-tokens", TOKENS, *SAMPLED)
        plain = self.plain[SAMPLED]
        self.refused(USAGE, "--max-tokens", "session", "resume", "--ledger", self.ledger, id)
        for to in (0, 1, TOKENS // 3):
            self.session("rollback", id, "--to", str(to))
            shown = json.loads(self.session("show", id, "--json"))
            self.assertEqual(shown["token_ids"], plain["token_ids"][:to])
            self.assertEqual(shown["state"], "interrupted")
            self.assertEqual(json.loads(self.session("resume", id, "--json"))["token_ids"], plain["token_ids"])
        self.session("rollback", id, "--to", str(TOKENS // 2))
        self.assertEqual(self.session("resume", id, "--whole", "--draft", "none"), plain["text"])
        self.refused(USAGE, "tokens of answer", "session", "rollback", "--ledger", self.ledger, id, "--to", TOKENS + 1)

        id = self.finished("--max-tokens", TOKENS // 2, *SAMPLED)
        more = json.loads(self.session("resume", id, "--json", "--max-tokens", str(TOKENS - TOKENS // 2)))
        self.assertEqual(more["token_ids"], plain["token_ids"])

    def test_a_grammar_goes_on(self):
        """The ledger has it: without it, the rest would be another one."""
        rules = 'root ::= ("so " | "and " | "then "){12} "."'
        id = self.finished("--max-tokens", TOKENS, "--grammar", rules, *SAMPLED)
        whole = json.loads(self.session("show", id, "--json"))
        self.assertRegex(whole["text"], r"^((so|and|then) ){12}\.$")
        self.assertEqual(whole["grammar"], rules)
        self.session("rollback", id, "--to", "5")
        again = json.loads(self.session("resume", id, "--json", "--draft", "none"))
        self.assertEqual(again["token_ids"], whole["token_ids"])

    def test_stop_strings_go_on(self):
        """The text of a stop is found also where its beginning was logged before the interruption."""
        text = self.plain[GREEDY]["text"]
        stop = text[len(text) // 2:][:12]
        whole = text[:text.index(stop)]
        id = self.finished("--max-tokens", TOKENS, "--stop", stop)
        count = self.list()[0]["tokens"]
        self.refused(USAGE, "complete", "session", "resume", "--ledger", self.ledger, id)
        for back in (1, 2, 5):
            self.session("rollback", id, "--to", str(count - back))
            self.assertEqual(self.session("resume", id, "--whole"), whole)

    def test_a_letter_that_is_cut_comes_whole_with_the_rest(self):
        """Its first half is not shown, wherever the answer is cut; what both runs have shown is the answer."""
        text = "\u00e9\U0001f642\u20ac"
        run = "run", "-m", MODEL, "--ledger", self.ledger, "--grammar", f'root ::= "{text}"'
        whole = json.loads(self.good(*run, "--json", PROMPT))
        self.assertEqual((whole["text"], whole["finish_reason"]), (text, "stop"))
        halves = 0
        for count in range(1, len(whole["token_ids"])):
            first = self.good(*run, "--max-tokens", count, PROMPT)
            self.assertEqual(first, text[:len(first)])
            line = self.list()[0]
            self.assertEqual((line["state"], line["tokens"]), ("length", count))
            kept = json.loads(self.session("export", line["session"]))
            self.assertEqual(kept["text"], first)
            second = self.good("session", "resume", "--ledger", self.ledger, line["session"], "--max-tokens", 1)
            rest = self.session("resume", line["session"], "--max-tokens", "32") if self.list()[0]["state"] != "stop" else ""
            self.assertEqual(first + second + rest, text)
            halves += b"\xef\xbf\xbd" in subprocess.run(
                [TANDEM, "detokenize", "-m", MODEL], input=json.dumps(kept["token_ids"]).encode(), capture_output=True).stdout
        self.assertGreater(halves, 2, "the vocabulary has no token for each of the letters")

    def test_a_stop_string_that_a_resume_completes_takes_back_what_was_shown(self):
        run = "run", "-m", MODEL, "--ledger", self.ledger, "--grammar", 'root ::= "hello world again"'
        shown = self.good(*run, "--stop", "hello world", "--max-tokens", 1, PROMPT)
        self.assertTrue(shown and "hello".startswith(shown), shown)
        id = self.list()[0]["session"]
        self.assertEqual(self.session("resume", id, "--max-tokens", "20"), "")
        self.assertEqual((self.list()[0]["state"], self.list()[0]["tokens"]), ("stop", 0))
        self.assertEqual(json.loads(self.session("export", id))["text"], "")

    @thorough
    def test_stop_strings_over_two_tokens(self):
        """The first of them may be logged before the second one comes: the ledger keeps what the answer has, whichever."""
        plain = self.plain[GREEDY]
        text, ids = plain["text"], plain["token_ids"]

        def size(count):
            done = subprocess.run([TANDEM, "detokenize", "-m", MODEL], input=" ".join(map(str, ids[:count])).encode(), capture_output=True)
            return len(done.stdout.decode())

        stops = {}
        for k in range(2, TOKENS, 4):
            begin, end = size(k), size(k + 1)
            stop = text[begin:end + 1]
            if text.find(stop) == begin and end > begin and len(stops) < 3:
                stops[k] = stop
        self.assertEqual(len(stops), 3)
        for k, stop in stops.items():
            with self.subTest(stop=stop):
                flags = "--ledger", self.ledger, "--json"
                answer = json.loads(self.good("run", "-m", MODEL, *flags, "--draft", "none", "--max-tokens", TOKENS, "--stop", stop, PROMPT))
                self.assertEqual((answer["finish_reason"], answer["token_ids"], answer["text"]), ("stop", ids[:k], text[:text.index(stop)]))
                line = self.list()[0]
                self.assertEqual((line["state"], line["tokens"]), ("stop", k))
                for kept in (self.session("export", line["session"]), self.session("show", "--json", line["session"])):
                    kept = json.loads(kept)
                    self.assertEqual((kept["state"], kept["token_ids"], kept["text"]), ("stop", ids[:k], answer["text"]))
                self.refused(USAGE, "complete", "session", "resume", "--ledger", self.ledger, line["session"])
                for to in (k, k - 1):
                    self.session("rollback", line["session"], "--to", str(to))
                    again = json.loads(self.session("resume", line["session"], "--json"))
                    self.assertEqual((again["token_ids"], again["text"]), (ids[:k], answer["text"]))
                    self.assertEqual(self.list()[0]["tokens"], k)

    @thorough
    def test_export_is_a_line_of_a_batch(self):
        """With the options in it: no flag is needed for the same tokens."""
        stop = self.plain[GREEDY]["text"][60:66]
        table = [GREEDY, SAMPLED, (*SAMPLED, "--top-k", "20"), ("--temp", "1.3", "--seed", str(2**62 + 1), "--top-p", "0.9"),
                 ("--temp", "1.7", "--seed", "3", "--min-p", "0.1"), ("--repeat-penalty", "1.1"), ("--stop", "never", "--stop", stop)]
        lines, kept = "", []
        for flags in table:
            id = self.finished("--max-tokens", TOKENS // 3, *flags)
            line = self.session("export", id)
            self.assertEqual(line.count("\n"), 1)
            lines += line
            kept.append(json.loads(line))
        self.assertEqual(kept[0]["token_ids"], self.plain[GREEDY]["token_ids"][:TOKENS // 3])
        self.assertEqual(len({tuple(k["token_ids"]) for k in kept}), len(table))
        source, out = self.folder / "again.jsonl", self.folder / "again.out.jsonl"
        source.write_text(lines)
        self.good("batch", "-m", MODEL, "--temp", "2", "--max-tokens", TOKENS, source, out)  # flags that every line replaces
        for line, k, flags in zip(out.read_text().splitlines(), kept, table):
            again = json.loads(line)
            self.assertEqual((again["id"], again["token_ids"], again["finish_reason"]), (k["id"], k["token_ids"], k["state"]), flags)
            self.assertEqual(k["text"], again["text"], flags)  # also where the last token reaches into the stop

    # How it is drafted.

    @thorough
    def test_it_goes_on_with_its_own_draft(self):
        """Without flags the same kind as before, with the same model; one that is gone is said, and ngram does it."""
        plain = self.plain[GREEDY]
        path = make_model(self.folder / "small.gguf", VOCABULARY)
        there = os.path.relpath(path)  # as the user gave it; it goes on from anywhere
        run = self.start("-md", there, "--draft-layers", "1", "--max-tokens", TOKENS)
        run.signal(signal.SIGKILL)
        run.end()
        id, = (l["session"] for l in self.list())
        self.session("rollback", id, "--to", str(LEAST))  # however far it came
        asked = json.loads(self.session("export", id))["request"]
        self.assertEqual((asked["draft"], asked["model_draft"], asked["draft_layers"]), ("model,ngram", str(path), 1))

        def again(*flags, method, cwd=None):
            status, out, errors = tandem("session", "resume", "--ledger", self.ledger, id, "--json", *flags, cwd=cwd)
            self.assertEqual(status, OK, errors)
            a = json.loads(out)
            self.assertEqual((a["token_ids"], a["stats"]["draft_method"]), (plain["token_ids"], method), errors)
            self.session("rollback", id, "--to", str(TOKENS - 8))
            return errors

        again(method="model,ngram", cwd="/")
        again("--draft", "ngram", method="ngram")
        again("--draft", "none", method="none")
        again("--draft-layers", "1", "--draft-threads", "1", method="model,ngram")
        self.refused(USAGE, "ngram is no model", "session", "resume", "--ledger", self.ledger, id, "--draft", "ngram", "-md", path)
        self.refused(USAGE, "no_such.gguf", "session", "resume", "--ledger", self.ledger, id, "-md", "no_such.gguf")
        path.unlink()
        errors = again(method="ngram")
        self.assertEqual([str(path) in line and "ngram" in line for line in errors.splitlines()].count(True), 1, errors)
        self.assertIn(len(errors.splitlines()), (3, 4), errors)  # that, the figures in one line or two, and how to go on

        def note(**how):
            """What an older tandem, or nobody, has written."""
            with contextlib.closing(sqlite3.connect(self.ledger)) as db, db:
                sums(db).execute("UPDATE session SET about = ?", (json.dumps({"math": "int8", "raw": False, "stop": [], **how}),))

        for how, method in (({"draft": "model", "draft_layers": 1}, "model"), ({"draft": "none"}, "none"), ({}, "ngram"),
                            ({"draft": "any"}, "ngram"), ({"draft": "ngram"}, "ngram")):
            note(**how)
            self.assertNotIn("as before", again(method=method))
        for how in ({"draft": "magic"}, {"draft": "model"}, {"draft": "model", "draft_layers": -1}, {"draft": "ngram", "draft_layers": 4},
                    {"draft": "replay:gone:0.5"}):
            note(**how)
            self.assertIn("as before", again(method="ngram"))

    def test_it_goes_on_with_the_math_that_auto_chose(self):
        """What that was is in the numerics id: on a GPU it may have been another than it would be here."""
        id = self.finished("--max-tokens", LEAST)
        with contextlib.closing(sqlite3.connect(self.ledger)) as db, db:
            sums(db).execute("UPDATE session SET numerics = 'bf16-t25/kv-f16/4'")
        more = json.loads(self.session("resume", id, "--json", "--max-tokens", str(LEAST)))
        self.assertEqual(more["numerics_id"], "bf16-t25/kv-f16/4")

    # Where, and how much.

    def test_the_first_ledger_is_told_of_once(self):
        state = self.folder / "state"
        env = {"XDG_STATE_HOME": str(state)}
        run = ("run", "-m", MODEL, "--max-tokens", 1, "--draft", "none")
        place = str(state / "tandem/ledger.sqlite")
        for flags in (("--ledger", "none"), ("--ledger", self.ledger)):
            self.assertNotIn("kept in", tandem(*run, *flags, PROMPT, env=env)[2])
        self.assertFalse(state.exists())
        self.assertIn("no sessions", tandem("session", "list", env=env)[2])
        status, _, errors = tandem(*run, PROMPT, env=env)
        self.assertEqual(status, OK, errors)
        told, = (line for line in errors.splitlines() if "kept in" in line)
        for word in (place, "only you can read", "--ledger none", "tandem session end --older-than 0s --delete"):
            self.assertIn(word, told)
        self.assertEqual(os.stat(place).st_mode & 0o777, 0o600)
        self.assertNotIn("kept in", tandem(*run, PROMPT, env=env)[2])
        words = re.search("`tandem (session end .*?)'", told)[1].split()  # what it says works
        self.assertEqual(self.good(*words, env=env), "2 sessions forgotten\n")
        self.assertNotIn("kept in", tandem(*run, PROMPT, env=env)[2])

    def test_a_list_has_an_end(self):
        id = self.finished("--max-tokens", "1")
        with contextlib.closing(sqlite3.connect(self.ledger)) as db, db:
            columns = [row[1] for row in sums(db).execute("PRAGMA table_info(session)") if row[1] not in ("id", "created", "about")]
            for i in range(1, 25):
                title = "x" * (40 + i % 12) + "é€🙂" * 10  # cut within a character, wherever that is
                db.execute(f"INSERT INTO session(id, created, about, {', '.join(columns)}) SELECT ?, created - ?, ?, {', '.join(columns)} "
                           "FROM session WHERE id = ?", (i, i, json.dumps({"title": title}), int(id, 16) - (int(id, 16) >> 63 << 64)))
        for flags, shown in (((), 20), (("--limit", "3"), 3), (("--limit", "0"), 25), (("--limit", "25"), 25), (("--limit", "24"), 24),
                             (("--limit", "99"), 25)):
            status, out, errors = tandem("session", "list", "--ledger", self.ledger, *flags)
            self.assertEqual((status, len(out.splitlines()) - 1), (OK, shown), errors)
            self.assertNotIn("\ufffd", out)
            status, listed, told = tandem("session", "list", "--ledger", self.ledger, "--json", *flags)
            listed = json.loads(listed)
            self.assertEqual(([listed[0]["session"], len(listed)]), [id, shown])
            for text in errors, told:
                self.assertEqual(text.splitlines()[:1], [f"tandem: {25 - shown} older ones are not shown: --limit N shows N, --limit 0 all"]
                                 if shown < 25 else [])
        self.refused(USAGE, "--limit", "session", "list", "--ledger", self.ledger, "--limit", "-1")

    def test_old_ones_end_together(self):
        """Those of a living process stay, however old."""
        end = lambda *flags: self.good("session", "end", "--ledger", self.ledger, *flags)
        self.refused(USAGE, "", "session", "end", "--ledger", self.ledger)
        self.assertEqual(self.good("session", "end", "--older-than", "1d", env={"XDG_STATE_HOME": str(self.folder / "none")}), "0 sessions ended\n")
        done = self.finished("--max-tokens", "1")
        killed = self.start(*ENDLESS)
        killed.signal(signal.SIGKILL)
        killed.end()
        living = self.start(*ENDLESS)
        self.stop(living)  # it lives
        states = lambda: {l["session"]: l["state"] for l in self.list("--all")}
        before = states()
        self.assertEqual(sorted(before.values()), ["interrupted", "length", "running"])
        gone, = (id for id, state in before.items() if state == "interrupted")
        lives, = (id for id, state in before.items() if state == "running")
        self.assertEqual(end("--older-than", "1d"), "0 sessions ended\n")
        self.assertEqual(end("--older-than", "1d", "--delete"), "0 sessions forgotten\n")
        self.assertEqual(states(), before)
        with contextlib.closing(sqlite3.connect(self.ledger)) as db, db:
            sums(db).execute("UPDATE session SET created = created - 3600000000 * 49, updated = updated - 3600000000 * 49")
        self.assertEqual(end("--older-than", "50h"), "0 sessions ended\n")
        self.assertEqual(end("--older-than", "3d", "--delete"), "0 sessions forgotten\n")
        self.assertEqual(end("--older-than", "48h"), "2 sessions ended\n")
        self.assertEqual(states(), {done: "ended", gone: "ended", lives: "running"})
        self.assertEqual([line["session"] for line in self.list()], [lives])
        self.assertEqual(end("--older-than", "48h"), "0 sessions ended\n")
        self.assertEqual(end("--older-than", "2d", "--delete"), "0 sessions forgotten\n")  # they have changed since
        self.assertEqual(end("--older-than", "0s", "--delete"), "2 sessions forgotten\n")
        self.assertEqual(states(), {lives: "running"})
        shown = len(living.out)
        living.signal(signal.SIGCONT)
        wait_until(lambda: len(living.out) > shown, lambda: living.errors)
        living.signal(signal.SIGKILL)
        living.end()
        self.assertEqual(end("--older-than", "0m", "--delete"), "1 session forgotten\n")
        with contextlib.closing(sqlite3.connect(self.ledger)) as db:
            self.assertEqual(db.execute("SELECT (SELECT count(*) FROM session), (SELECT count(*) FROM tokens)").fetchone(), (0, 0))
        for age in ("", "30", "d", "1w", "-1d", "1d2", " 1d", "999999999999999999d", "99999999999999999999s"):
            self.refused(USAGE, "--older-than", "session", "end", "--ledger", self.ledger, "--older-than", age)
        self.refused(USAGE, "one of them", "session", "end", "--ledger", self.ledger, "--older-than", "1d", lives)

    def test_end_ends(self):
        done = self.finished("--max-tokens", "3")
        self.assertEqual(self.session("end", done[:6]), f"{done} has ended\n")
        self.assertEqual(self.list(), [])
        self.assertEqual([(l["session"], l["state"], l["tokens"]) for l in self.list("--all")], [(done, "ended", 3)])
        status, out, errors = tandem("session", "list", "--ledger", str(self.ledger))
        self.assertEqual((status, out.strip()), (OK, ""))
        self.assertIn("1 that were ended are not shown: --all shows them", errors)
        resume = ["session", "resume", done, "--ledger", str(self.ledger), "--max-tokens", "2"]
        back = f"session rollback {done} --to 3"
        self.refused(USAGE, f"was ended with `tandem session end': `tandem {back}' takes that back", *resume)
        self.session(*back.split()[1:])
        self.assertEqual(tandem(*resume)[0], OK)
        self.assertEqual([(l["state"], l["tokens"]) for l in self.list()], [("length", 5)])

    # Where it goes on.

    @thorough
    def test_it_goes_on_with_workers_of_others(self):
        plain = self.plain[GREEDY]
        id = self.finished("--max-tokens", TOKENS)
        self.session("rollback", id, "--to", "3")
        endpoint = f"ipc://{self.folder}/there"
        for draft, method in ((True, "ngram"), (False, "none")):
            workers = [Running(self.folder, TARGET, "-m", MODEL, "--orchestrator", endpoint, "--kv", "virtual")]
            workers += [Running(self.folder, DRAFT, "--orchestrator", endpoint)] if draft else []
            for worker in workers:
                self.addCleanup(worker.close)
            flags = () if draft else ("--draft", "none")
            status, out, errors = tandem("session", "resume", "--ledger", self.ledger, id, "--listen", endpoint, "--wait", "60", "--json", *flags)
            a = json.loads(out)
            self.assertEqual((status, a["token_ids"], a["stats"]["draft_method"]), (OK, plain["token_ids"], method), errors)
            for worker in workers:
                worker.signal(signal.SIGTERM)
                worker.end()
            self.session("rollback", id, "--to", str(TOKENS // 2))
        status, out, errors = tandem("session", "resume", "--ledger", self.ledger, id, "--listen", endpoint, "--wait", "1")
        self.assertEqual((status, out), (WORKER, ""))
        self.assertIn("no target for 1 s (--wait)", errors)
        again = json.loads(self.session("resume", id, "--json", "--kv", "virtual", "--kv-blocks", "40"))
        self.assertEqual(again["token_ids"], plain["token_ids"])
        for flags, phrase in ((("--wait", "3"), "--listen"), (("--listen", endpoint, "--kv", "virtual"), "--kv"), (("--kv-blocks", "9"), "--kv virtual"),
                              (("--listen", endpoint, "--draft", "ngram"), "--draft is for programs that tandem starts"), (("--insecure-bind",), "--listen")):
            self.refused(USAGE, phrase, "session", "resume", "--ledger", self.ledger, id, *flags)

    # What runs now.

    @whole_model
    def test_status_and_the_living(self):
        run = self.start(*ENDLESS)
        status = lambda: json.loads(self.good("status", "--json", "--ledger", self.ledger))
        wait_until(lambda: status()[0]["workers"] and status()[0]["tok_s"] > 0, lambda: status())
        one, = status()
        self.assertEqual((one["pid"], one["command"], one["state"], one["sessions"]), (run.pid, "run", "running", 1))
        target, draft = one["workers"]
        self.assertEqual((target["role"], target["load"], draft["role"], draft["method"]), ("target", 1, "draft", "eagle3,ngram"))
        self.assertIn("ipc://", target["endpoint"])
        text = self.good("status", "--ledger", self.ledger)
        self.assertIn(f"process {run.pid}", text)
        id = self.list()[0]["session"]
        for verb in (("resume",), ("rollback", "--to", "1"), ("end",), ("end", "--delete")):
            self.refused(FAILED, f"process {run.pid}", "session", verb[0], "--ledger", self.ledger, id, *verb[1:])
        run.signal(signal.SIGKILL)
        run.end()
        self.assertEqual(status()[0]["state"], "interrupted")  # said once
        self.assertEqual(status(), [])
        self.session("end", id)
        self.assertEqual(self.list("--all")[0]["state"], "ended")
        self.session("end", id, "--delete")
        self.assertEqual(self.list("--all"), [])

    def test_two_at_once(self):
        first, second = self.start("--max-tokens", TOKENS), self.start("--max-tokens", TOKENS, *SAMPLED)
        self.assertEqual((first.end(), second.end()), (OK, OK), first.errors + second.errors)
        self.assertEqual(first.out.decode(), self.plain[GREEDY]["text"])
        self.assertEqual(second.out.decode(), self.plain[SAMPLED]["text"])
        self.assertEqual([(l["state"], l["tokens"]) for l in self.list()], [("length", TOKENS)] * 2)

    def test_two_orchestrators_on_one_file(self):
        """One is stopped for as long as one likes, then killed: the others take only what is dead for certain."""
        stopped = self.start(*ENDLESS)
        self.stop(stopped)
        other = self.start("--max-tokens", TOKENS, *SAMPLED)
        with contextlib.closing(sqlite3.connect(self.ledger, timeout=TIME_LIMIT)) as db, db:
            sums(db).execute("UPDATE orchestrator SET beat = 1")  # by the clock, both are long dead
        third = subprocess.run([*own_processes(), TANDEM, "run", "-m", MODEL, "--ledger", self.ledger, "--max-tokens", "4", PROMPT],
                               stdin=subprocess.DEVNULL, capture_output=True, timeout=TIME_LIMIT)
        self.assertEqual(third.returncode, OK, third.stderr)
        self.assertEqual(other.end(), OK, other.errors)
        self.assertEqual(other.out.decode(), self.plain[SAMPLED]["text"])
        states = sorted((line["state"], line["tokens"]) for line in self.list())
        self.assertEqual([state for state, _ in states], ["length", "length", "running"])
        lives, = (line["session"] for line in self.list() if line["state"] == "running")
        for verb in ("resume", "end", "release"):
            self.refused(FAILED, f"process {stopped.pid}", "session", verb, "--ledger", self.ledger, lives)
        before = len(stopped.out)
        stopped.signal(signal.SIGCONT)
        wait_until(lambda: len(stopped.out) > before + BEGUN, "it goes on")
        self.assertNotIn("taken over", stopped.errors)
        stopped.signal(signal.SIGKILL)
        stopped.end()
        kept = json.loads(self.session("export", lives))
        self.assertEqual(kept["state"], "interrupted")
        self.assertTrue(kept["text"].encode().startswith(stopped.out), "what was shown is in the ledger")
        both = min(TOKENS, len(kept["token_ids"]))
        self.assertEqual(kept["token_ids"][:both], self.plain[GREEDY]["token_ids"][:both])
        self.session("resume", lives, "--max-tokens", "5")
        after = json.loads(self.session("export", lives))["token_ids"]
        self.assertEqual((len(after), after[:-5]), (len(kept["token_ids"]) + 5, kept["token_ids"]))

    def test_batch_keeps_when_asked(self):
        records = golden()[:3]
        source, out = self.folder / "b.jsonl", self.folder / "b.out.jsonl"
        source.write_text("".join(json.dumps({"id": r["id"], "prompt_ids": r["prompt_ids"]}) + "\n" for r in records))
        self.good("batch", "-m", MODEL, "--max-tokens", 8, "--ledger", self.ledger, source, out)
        kept = {tuple(json.loads(self.session("export", l["session"]))["token_ids"]) for l in self.list()}
        self.assertEqual(kept, {tuple(json.loads(l)["token_ids"]) for l in out.read_text().splitlines()})

    # What may happen to the file.

    @contextlib.contextmanager
    def locked(self):
        with contextlib.closing(sqlite3.connect(self.ledger, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            finally:
                db.execute("COMMIT")

    def plain_to_the_end(self, run, plain):
        """Until it has shown as much as that, then no more."""
        wait_until(lambda: len(run.out) >= len(plain), lambda: run.errors)
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), INTERRUPTED, run.errors)
        self.assertEqual(run.out[:len(plain)], plain)

    def test_a_lock_holds_up_the_showing_alone(self):
        run = self.start(*ENDLESS)
        with self.locked():
            kept = json.loads(self.session("export", self.list()[0]["session"]))
            another = self.good("run", "-m", MODEL, "--ledger", "none", "--max-tokens", TOKENS, PROMPT)
            self.assertEqual(another, self.plain[GREEDY]["text"])  # meanwhile it would have shown as much
            self.assertLessEqual(len(run.out), len(kept["text"].encode()), "shown before it was kept")
        self.plain_to_the_end(run, another.encode())

    def test_a_full_disk_holds_the_answer_up(self):
        """What is not kept is not shown; once there is room it goes on. Ctrl-C does not wait for it."""
        plain = self.plain[GREEDY]
        for there_is_room in (True, False):
            with self.subTest(there_is_room=there_is_room):
                run = self.start(*ENDLESS, through=("sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"))
                resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
                wait_until(lambda: "only what is kept is shown" in run.errors, lambda: run.errors)
                kept = json.loads(self.session("export", self.list()[0]["session"]))
                shown = len(run.out)
                self.assertLessEqual(shown, len(kept["text"].encode()), "shown before it was kept")
                if there_is_room:
                    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                    self.plain_to_the_end(run, plain["text"].encode())
                    self.assertIn("is written again", run.errors)
                else:
                    run.signal(signal.SIGINT)
                    self.assertEqual(run.end(), INTERRUPTED, run.errors)
                    self.assertTrue(kept["text"].encode().startswith(run.out), "shown before it was kept")
                    self.assertEqual(self.go_on(kept["id"], plain)[0]["token_ids"], kept["token_ids"])

    def test_the_fast_mode_says_that_it_does_not_keep(self):
        def small_disk():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (40960, resource.RLIM_INFINITY))

        for named in (False, True):
            with self.subTest(named=named):
                flags = ("--ledger", self.ledger) if named else ()
                state = {"XDG_STATE_HOME": str(self.folder / "full")}
                status, out, errors = tandem("run", "-m", MODEL, *flags, "--ledger-mode", "fast", "--max-tokens", TOKENS, PROMPT,
                                             env=state, preexec_fn=small_disk)
                self.assertEqual(out, self.plain[GREEDY]["text"], errors)
                self.assertIn("shown before it is kept", errors)
                self.assertIn("is not kept if this program dies", errors)
                self.assertEqual(status, IO if named else OK)

    def test_a_place_that_cannot_be_written(self):
        file = self.folder / "file"
        file.touch()
        for state in (str(file), f"{file}/below"):
            status, out, errors = tandem("run", "-m", MODEL, "--max-tokens", 4, PROMPT, env={"XDG_STATE_HOME": state})
            self.assertEqual(status, OK, errors)
            self.assertTrue(self.plain[GREEDY]["text"].startswith(out) and out, out)
            self.assertEqual(errors.count("warning"), 1, errors)
            self.refused(IO, "--ledger", "run", "-m", MODEL, "--ledger", state + "/ledger", PROMPT)

    def test_files_that_are_no_ledger(self):
        self.ledger.write_bytes(b"no database at all, but long enough to be read as if it were one" * 4)
        for command in (("run", "-m", MODEL, "--ledger", self.ledger, PROMPT), ("session", "list", "--ledger", self.ledger),
                        ("status", "--ledger", self.ledger)):
            self.refused(IO, "damaged", *command)
        self.refused(IO, "no ledger", "session", "list", "--ledger", self.folder / "absent")
        self.assertEqual(tandem("session", "list", env={"XDG_STATE_HOME": str(self.folder / "empty")})[:2], (OK, ""))

    def test_wrong_words(self):
        self.refused(USAGE, "did you mean list?", "session", "lits")
        self.refused(USAGE, "session list", "session")
        self.refused(USAGE, "did you mean session?", "sesion", "list")
        self.refused(USAGE, "first digits", "session", "show")
        self.refused(USAGE, "--to N", "session", "rollback", "12")
        self.refused(USAGE, "did you mean --delete?", "session", "end", "12", "--delet3")
        self.refused(USAGE, "none", "session", "list", "--ledger", "none")
        id = self.finished("--max-tokens", 2)
        self.refused(USAGE, "hex digits", "session", "show", "--ledger", self.ledger, "xyz")
        other = format((int(id[0], 16) + 1) % 16, "x")
        self.refused(USAGE, "no session begins", "session", "show", "--ledger", self.ledger, other)
        for command in ("session", "status"):
            self.assertIn("Usage", self.good(command, "--help"))
        for verb in ("list", "show", "resume", "rollback", "export", "import", "release", "end", "check", "repair"):
            self.assertIn("--ledger", self.good("session", verb, "--help"))
            self.assertIn(verb, self.good("session", "--help"))


if __name__ == "__main__":
    unittest.main()
