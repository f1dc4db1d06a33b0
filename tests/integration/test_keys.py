"""Keys: what `tandem keygen` makes, that one machine needs no more, and that nobody comes in without the
right one, with one line on both sides that says why."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import unittest

from support import (DRAFT, MODEL, ROOT, SUBSET, TANDEM, TARGET, TIME_LIMIT, Case, Running, batch, golden,
                     make_keys, total, wait_until)

TOKENS = 16 if SUBSET else 48
ROLES = ("orchestrator", "target", "draft")
IO, USAGE, ADDRESS = 8, 2, 4
SERVE = (TANDEM, "serve-workers", "-m", MODEL, "--listen", "tcp://127.0.0.1:*", "--ledger", "none",
         "--pace", "lockstep")


def lines(path):
    return [line.split() for line in path.read_text().splitlines()]


class Keygen(Case):
    def keygen(self, *args, status=0):
        done = subprocess.run([TANDEM, "keygen", "--keys", str(self.folder / "a/keys"), *args],
                              capture_output=True, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout.decode(), done.stderr.decode()

    def test_all_roles(self):
        out, errors = self.keygen("--name", "my box")
        folder = self.folder / "a/keys"
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)
        self.assertEqual([line.split()[0] for line in out.splitlines()], list(ROLES))
        self.assertEqual([line[:2] for line in lines(folder / "allowed")],
                         [line.split() for line in out.splitlines()])
        self.assertEqual({line[2] for line in lines(folder / "allowed")}, {"my_box"})
        for role in ROLES:
            path = folder / f"{role}.key"
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
            self.assertNotIn(lines(path)[0][1], out + errors, "a secret is shown to nobody")
        self.assertIn("on this machine no more is to do", errors)

    def test_some_roles_and_keys_that_are_there(self):
        self.keygen("draft")
        folder = self.folder / "a/keys"
        before = (folder / "draft.key").read_text()
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["allowed", "draft.key"])
        out, errors = self.keygen(status=IO)  # the others are made
        self.assertIn("draft.key is there already and stays", errors)
        self.assertEqual([line.split()[0] for line in out.splitlines()], ["orchestrator", "target"])
        self.assertEqual((folder / "draft.key").read_text(), before)
        self.assertEqual(len(lines(folder / "allowed")), 3)
        self.assertIn("is no role", self.keygen("drat", status=USAGE)[1])


class Pair(Case):
    """Over tcp on this machine."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.records = [r for r in golden() if r["id"] in (102, 123)]
        cls.plain = batch(cls.folder, cls.records, "--draft", "none", "--max-tokens", str(TOKENS))

    def start(self, *command, keys=None, **more):
        env = {"TANDEM_KEYS": str(keys)} if keys else None
        running = Running(self.folder, *map(str, command), env=env, **more)
        self.addCleanup(running.close)
        return running

    def serve(self, *flags, **more):
        serve = self.start(*SERVE, "--max-tokens", TOKENS, *flags, stdin=subprocess.PIPE, **more)
        wait_until(lambda: "listening at" in serve.errors, lambda: serve.errors)
        self.endpoint = re.search(r"listening at (\S+)", serve.errors)[1]
        return serve

    def draft(self, *flags, **more):
        replay = f"replay:{self.plain.path}:0.9"
        return self.start(DRAFT, "--orchestrator", self.endpoint, "--draft", replay, *flags, **more)

    def target(self, *flags, **more):
        return self.start(TARGET, "-m", MODEL, "--orchestrator", self.endpoint, *flags, **more)

    def says(self, running, text, count=1):
        wait_until(lambda: running.errors.count(text) >= count, lambda: running.errors)

    def answers(self, serve):
        """As plain decoding; how many tokens were accepted."""
        for r in self.records:
            line = {"id": r["id"], "prompt_ids": r["prompt_ids"]}
            serve.process.stdin.write(json.dumps(line).encode() + b"\n")
        serve.process.stdin.close()
        self.assertEqual(serve.end(), 0, serve.errors)
        answers = {a["id"]: a for a in map(json.loads, serve.out.splitlines())}
        for i, plain in self.plain.answers.items():
            self.assertEqual(answers[i]["token_ids"], plain["token_ids"])
        return total(answers, "accepted_tokens")

    def test_one_keygen_is_enough(self):
        serve = self.serve()
        draft = self.draft()
        self.says(serve, "a draft (replay) is here")
        target = self.target()
        self.says(serve, "a target (")
        self.assertGreater(self.answers(serve), 0, serve.errors + draft.errors + target.errors)
        for running in (serve, draft, target):
            self.assertNotIn("let in", running.errors)

    def test_a_draft_by_another_hand(self):
        serve = self.serve()
        keys = os.path.join(os.environ["XDG_CONFIG_HOME"], "tandem/keys")
        worker = ROOT / "tests/integration/python_draft.py"
        draft = self.start(sys.executable, worker, "--orchestrator", self.endpoint, "--keys", keys)
        wait_until(lambda: "a draft (" in serve.errors, lambda: serve.errors + draft.errors)
        self.target()
        self.says(serve, "a target (")
        self.answers(serve)

    def test_without_keys_nothing_listens_and_nothing_calls(self):
        none = self.folder / "none"
        serve = self.start(*SERVE, keys=none)
        self.assertEqual(serve.end(), IO, serve.errors)
        target = self.start(TARGET, "-m", MODEL, "--orchestrator", "tcp://127.0.0.1:9", keys=none)
        self.assertEqual(target.end(), ADDRESS, target.errors)
        draft = self.start(DRAFT, "--orchestrator", "tcp://127.0.0.1:9", keys=none)
        self.assertEqual(draft.end(), ADDRESS, draft.errors)
        for running in (serve, target, draft):
            self.assertEqual(running.errors.count("no keys: "), 1, running.errors)
            self.assertIn("`tandem keygen' makes keys", running.errors)
            self.assertNotIn("ready", running.errors)

    def test_without_keys_by_name(self):
        none = self.folder / "none"
        serve = self.serve("--insecure-bind", keys=none)
        self.assertIn("warning: --insecure-bind: whoever reaches", serve.errors)
        self.draft("--insecure-bind", keys=none)
        self.says(serve, "a draft (replay) is here")
        target = self.target("--insecure-bind", keys=none)
        self.says(serve, "a target (")
        self.assertIn("warning: --insecure-bind", target.errors)
        self.assertGreater(self.answers(serve), 0)

    def test_a_stranger_is_not_let_in_until_its_line_is_added(self):
        ours, theirs = make_keys(self.folder / "ours"), make_keys(self.folder / "theirs")
        serve = self.serve(keys=ours)
        orchestrator = [line for line in lines(ours / "allowed") if line[0] == "orchestrator"][0]
        with open(theirs / "allowed", "a") as f:
            f.write(" ".join(orchestrator) + "\n")
        self.endpoint += "#" + orchestrator[1]  # of the two that it knows
        draft = self.draft(keys=theirs)
        key = [line for line in lines(theirs / "allowed") if line[0] == "draft"][0]
        self.says(serve, "was not let in: its key is not in ")
        self.assertIn(f"in which {key[1]}", serve.errors)
        self.says(draft, "Its log tells if it does not let this program in")
        self.assertNotIn("is here", serve.errors)
        with open(ours / "allowed", "a") as f:
            f.write(" ".join(key) + "\n")
        self.says(serve, "a draft (replay) is here")

    def test_a_draft_that_says_it_is_a_target(self):
        keys, false = make_keys(self.folder / "keys"), self.folder / "false"
        shutil.copytree(keys, false)
        shutil.copy(keys / "draft.key", false / "target.key")
        serve = self.serve(keys=keys)
        target = self.target(keys=false)
        text = "says that it is a target, but the list of allowed keys has its key for another role"
        self.says(serve, text)
        self.says(target, text)
        target.signal(signal.SIGTERM)
        self.assertEqual(target.end(), 0, target.errors)
        self.assertEqual((serve.errors.count(text), target.errors.count(text)), (1, 1))
        self.assertNotIn("a target (", serve.errors)


if __name__ == "__main__":
    unittest.main()
