"""tandem session export, import, check and repair: a session goes to another ledger and on from there with
the same tokens, and what is damaged is found, said and mended."""

import contextlib
import json
import pathlib
import signal
import sqlite3
import unittest

from command_line import FAILED, IO, OK, USAGE, Command, tandem
from ledger_sums import sums
from support import MODEL, SLOW, SUBSET, TANDEM, Running, wait_until

PROMPT = "Tell me a very long story about the sea."  # its answer goes on for thousands of tokens
TOKENS = 40 if SUBSET else 120
ENDLESS = ("--max-tokens", "3500")
BEGUN = 60  # bytes: the answer is under way
SAMPLED = ("--temp", "0.8", "--seed", "7")
PAGE = 4096


class SessionFiles(Command):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        status, out, errors = tandem("run", "-m", MODEL, "--ledger", "none", "--json", "--draft", "none",
                                     "--max-tokens", str(TOKENS), *SAMPLED, PROMPT)
        assert status == OK, errors
        cls.plain = json.loads(out)

    def setUp(self):
        super().setUp()
        self.ledger, self.other = self.folder / "one.sqlite", self.folder / "other.sqlite"

    def session(self, verb, *args, ledger=None, stdin=b"", status=OK):
        got, out, errors = tandem("session", verb, "--ledger", str(ledger or self.ledger), *map(str, args),
                                  stdin=stdin)
        self.assertEqual(got, status, errors)
        return out.decode()

    def finished(self, *flags):
        status, _, errors = tandem("run", "-m", MODEL, "--ledger", str(self.ledger), *flags, PROMPT)
        self.assertEqual(status, OK, errors)

    def begun(self, *flags):
        run = Running(self.folder, TANDEM, "run", "-m", MODEL, "--ledger", str(self.ledger), *flags, PROMPT,
                      env=SLOW)
        self.addCleanup(run.close)
        wait_until(lambda: len(run.out) > BEGUN, lambda: run.errors)
        return run

    @staticmethod
    def kill(run):
        run.signal(signal.SIGKILL)
        run.end()

    def test_a_session_goes_on_in_another_ledger(self):
        """With the tokens that it would have had where it came from."""
        self.kill(self.begun(*ENDLESS, *SAMPLED))
        id = json.loads(self.session("list", "--json"))[0]["session"]
        line = self.session("export", id)
        self.assertEqual(line.count("\n"), 1)
        kept = json.loads(line)
        self.assertEqual((kept["format"], kept["version"], kept["state"]),
                         ("tandem session", 1, "interrupted"))
        told = self.session("import", "-", ledger=self.other, stdin=line.encode())
        self.assertIn(f"{id} is imported", told)
        self.assertEqual(self.session("export", id, ledger=self.other), line, "exported again: the same line")
        more = max(TOKENS - len(kept["token_ids"]), 8)
        answers = []
        for ledger in (self.other, self.ledger):
            again = json.loads(self.session("resume", id, "--json", "--max-tokens", more, ledger=ledger))
            self.assertEqual(again["token_ids"][:TOKENS], self.plain["token_ids"])
            answers.append(again["token_ids"])
            self.session("check", ledger=ledger)
        self.assertEqual(*answers)

    def test_all_of_a_ledger_while_it_is_written(self):
        self.finished("--max-tokens", "3")
        self.finished("--max-tokens", "4")
        run = self.begun(*ENDLESS)
        out = self.folder / "all.jsonl"
        self.session("export", "--all", "--output", out)
        self.assertFalse(pathlib.Path(f"{out}.part").exists())
        self.assertIn("0 damages", self.session("check"))
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual([line["state"] for line in lines], ["length", "length", "running"])
        status, _, errors = tandem("session", "repair", "--ledger", str(self.ledger))
        self.assertEqual(status, FAILED)
        self.assertIn("in use", errors)
        self.kill(run)
        self.assertEqual(self.session("import", out, ledger=self.other).count("is imported"), 3)
        self.assertEqual(self.session("import", out, ledger=self.other).count("is there already"), 3)
        self.assertEqual([s["state"] for s in json.loads(self.session("list", "--json", ledger=self.other))],
                         ["interrupted", "length", "length"])

    def test_wrong_lines_are_refused_by_number_and_the_others_go_on(self):
        self.finished("--max-tokens", "3")
        self.finished("--max-tokens", "4")
        first, second = self.session("export", "--all").splitlines()
        text = "\n".join((first[:-2], "", first.replace('"length"', '"stop"', 1), "[]", second)) + "\n"
        status, out, errors = tandem("session", "import", "--ledger", str(self.other), "-",
                                     stdin=text.encode())
        self.assertEqual((status, out.decode().count("is imported")), (FAILED, 1), errors)
        for line, phrase in ((1, "cut off"), (3, "checksum"), (4, "JSON object")):
            self.assertIn(f"stdin, line {line}: ", errors)
            self.assertIn(phrase, next(e for e in errors.splitlines() if f"line {line}:" in e))
        id = json.loads(second)["id"]
        self.session("rollback", id, "--to", "1", ledger=self.other)
        status, _, errors = tandem("session", "import", "--ledger", str(self.other), "-",
                                   stdin=second.encode())
        self.assertEqual(status, FAILED)
        self.assertIn("1 tokens of answer there, and 4 here; --replace", errors)
        self.assertIn("is replaced", self.session("import", "--replace", "-", ledger=self.other,
                                                  stdin=second.encode()))
        self.assertEqual(self.session("export", id, ledger=self.other), second + "\n")
        absent = str(self.folder / "absent")
        self.refused(IO, "cannot read", "session", "import", "--ledger", str(self.other), absent)
        self.refused(FAILED, "has no session", "session", "import", "--ledger", str(self.other), "-")
        self.refused(USAGE, "which file", "session", "import")
        self.refused(USAGE, "an ID and --all", "session", "export", "--all", "12")

    def break_pages(self, numbers):
        with open(self.ledger, "r+b") as f:
            for page in numbers:
                f.seek((page - 1) * PAGE)
                f.write(b"\xa5" * PAGE)

    def roots(self, *names):
        with contextlib.closing(sqlite3.connect(self.ledger)) as db:
            find = "SELECT rootpage FROM sqlite_master WHERE name = ?"
            return [db.execute(find, (name,)).fetchone()[0] for name in names]

    def test_damage_is_found_and_repaired(self):
        self.finished("--max-tokens", str(TOKENS), *SAMPLED)
        self.finished("--max-tokens", "5")
        newest, oldest = (line["session"] for line in json.loads(self.session("list", "--json")))
        with contextlib.closing(sqlite3.connect(self.ledger)) as db, db:  # a token is another one
            sums(db).execute("UPDATE tokens SET ids = x'07000000' || substr(ids, 5) WHERE session = ? AND "
                             "length(ids) > 0", (int(oldest, 16) - (int(oldest, 16) >> 63 << 64),))
        self.refused(IO, "tandem session repair", "session", "show", "--ledger", str(self.ledger), oldest)
        before = self.ledger.read_bytes()
        found = self.session("check", status=FAILED)
        self.assertIn(f"damaged: session {oldest}", found)
        self.assertIn("2 sessions", found)
        told = json.loads(self.session("check", "--json", status=FAILED))
        self.assertEqual((told["good"], [d["id"] for d in told["damages"]]), (False, [oldest]))
        self.assertEqual(self.ledger.read_bytes(), before, "a check changes nothing")
        out = self.session("repair")
        self.assertIn(f"{oldest} keeps 0 tokens", out)
        self.assertIn(f"{newest} is whole: 5 tokens", out)
        kept = pathlib.Path(out.split("kept as ")[1].strip())
        self.assertEqual(kept.read_bytes(), before)
        self.assertTrue(json.loads(self.session("check", "--json"))["good"])
        again = json.loads(self.session("resume", oldest, "--json"))
        self.assertEqual(again["token_ids"], self.plain["token_ids"])
        self.assertIn("nothing was changed", self.session("repair"))

    def test_a_file_that_cannot_be_opened_is_repaired(self):
        """Its first page, by which all others are found, and an index are gone."""
        self.finished("--max-tokens", "5")
        line = self.session("export", "--all")
        self.break_pages([1, *self.roots("session_by_time")])
        self.refused(IO, "damaged", "session", "list", "--ledger", str(self.ledger))
        self.assertIn("damaged: ", self.session("check", status=FAILED))
        self.assertIn("1 sessions whole, 0 cut, 0 lost", self.session("repair"))
        self.session("check")
        self.assertEqual(self.session("export", "--all"), line)

    def test_what_is_lost_is_said(self):
        self.finished("--max-tokens", "5")
        id = json.loads(self.session("list", "--json"))[0]["session"]
        self.break_pages(self.roots("session"))
        self.session("check", status=FAILED)
        before = self.ledger.read_bytes()
        status, out, errors = tandem("session", "repair", "--ledger", str(self.ledger))
        self.assertEqual(status, IO, errors)
        self.assertIn(f"{id} is lost", out.decode())
        self.assertIn("stays as it is", errors)
        self.assertEqual(self.ledger.read_bytes(), before)
        self.refused(IO, "no ledger", "session", "repair", "--ledger", str(self.other))
        self.refused(IO, "no ledger", "session", "check", "--ledger", str(self.other))


if __name__ == "__main__":
    unittest.main()
