"""Commands as a user gives them, for test_cli_*.py: real programs, the real model."""

import json
import subprocess

from support import MODEL, TANDEM, TIME_LIMIT, Case, wait_until

PROMPT = "Why is the sky blue?"
LONG = ["--raw", "The cat sat on the mat and the dog sat on the log. " * 8]  # it goes on for ever

OK, FAILED, USAGE, BAD_MODEL, INPUT, WORKER, IO = 0, 1, 2, 3, 6, 7, 8
TERMINATED, INTERRUPTED = 143, 130


def tandem(*args, stdin=b"", env=None, program=TANDEM):
    """Runs a command to its end: (status, stdout, stderr), bytes and text."""
    done = subprocess.run([program, *args], input=stdin, capture_output=True, timeout=TIME_LIMIT, env=env)
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


def with_draft_known(*args, env=None):
    """The answers were not over before tandem-draft, which cannot start, had ended: that may need another
    try. It is not started again."""

    def tried():
        done = tandem(*args, env=env)
        assert "started again" not in done[2], done[2]
        return "had not come yet" not in done[2] and done

    return wait_until(tried)


def answer(*args, stdin=b""):
    """The JSON object of a `run` that must succeed."""
    status, out, errors = tandem("run", "-m", MODEL, "--json", *args, stdin=stdin)
    assert status == OK, errors
    assert out.count(b"\n") == 1 and out.endswith(b"\n"), out
    return json.loads(out)


def tokenize(text, *flags):
    status, out, errors = tandem("tokenize", "-m", MODEL, "--json", *flags, stdin=text)
    assert status == OK, errors
    return json.loads(out)["token_ids"]


def detokenize(ids):
    status, out, errors = tandem("detokenize", "-m", MODEL, stdin=json.dumps(ids).encode())
    assert status == OK, errors
    return out.decode()


class Command(Case):
    def refused(self, status, phrase, *args, stdin=b"", env=None):
        """The command fails with this status, says why in one place, and writes nothing to stdout."""
        got, out, errors = tandem(*args, stdin=stdin, env=env)
        self.assertEqual(got, status, errors)
        self.assertEqual(out, b"")
        self.assertIn(phrase, errors)
        self.assertLessEqual(len(errors.splitlines()), 3, errors)
        return errors
