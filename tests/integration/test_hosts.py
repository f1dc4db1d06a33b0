"""README's section 'Several machines', its commands as they stand: on one host, on three, and on three that are far apart."""

import json
import os
import re
import shlex
import signal
import unittest

from hosts import Hosts
from support import BIN, MODEL, ROOT, SUBSET, TANDEM, TIME_LIMIT, Case, Running, thorough, wait_until, whole_model

HOSTS = ("orchestrator", "draft", "target")
ANSWER = 40 if SUBSET else 96  # tokens
PROMPTS = ROOT / "bench/data/spec_bench_28.jsonl"
DELAY, LOSS = 0.02, 0.01  # one way


def readme_commands():
    """(what every terminal begins with, the three commands for one host, those for three), each a list of lines."""
    section = (ROOT / "README.md").read_text().split("## Several machines", 1)[1].split("\n## ", 1)[0]
    block = re.search(r"```sh\n(.*?)```", section, re.S)[1]
    parts = [[line for line in part.splitlines() if line and not line.startswith("#")] for part in block.split("\n\n")]
    assert [len(part) for part in parts] == [2, 3, 3], "six commands, and what they need"
    return parts


def requests(count):
    """Prompts whose answers repeat what they were given."""
    with open(PROMPTS) as f:
        found = [r for r in map(json.loads, f) if r["category"] in ("summarization", "translation")]
    return [{"id": r["id"], "messages": [{"role": "user", "content": r["turns"][0]}],
             "max_tokens": ANSWER, "temperature": 0} for r in found[:count]]


class Commands(Case):
    """A folder that looks like a clone of the repository, and README's commands in it."""

    def setUp(self):
        super().setUp()
        self.home = self.folder / "home"
        clone = self.folder / "tandem"
        for made in (self.home, clone / "build/release"):
            made.mkdir(parents=True)
        (clone / "build/release/bin").symlink_to(BIN.resolve())
        (clone / "models").symlink_to(ROOT / "models")
        self.clone, self.start = clone, readme_commands()[0]

    def run_line(self, line, host=(), example="example.jsonl"):
        """One command in a terminal of its own; requests.jsonl stays the test's, or is README's example."""
        begin = "; ".join(self.start).replace("requests.jsonl", example)
        script = f"cd {shlex.quote(str(self.clone))}; {begin}; exec {line}"
        running = Running(self.folder, *host, "bash", "-ec", script, env={"HOME": str(self.home)})
        self.addCleanup(running.close)
        return running

    def results(self):
        out = self.clone / "results.jsonl"
        text = out.read_text() if out.exists() else ""
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    def run_three(self, commands, requests, host=lambda name: (), *target_flags):
        """Asks all requests, and again until tokens of the draft were accepted (it may be late), unless the target has
        flags: answers, programs."""
        os.mkfifo(self.clone / "requests.jsonl")
        serve = self.run_line(commands[0], host("orchestrator"))
        source = open(self.clone / "requests.jsonl", "w")
        self.addCleanup(source.close)
        wait_until(lambda: "listening at" in serve.errors, lambda: serve.errors)
        draft = self.run_line(commands[1], host("draft"))
        wait_until(lambda: "a draft (ngram) is here" in serve.errors, lambda: serve.errors + draft.errors)
        target = self.run_line(" ".join([commands[2], *target_flags]), host("target"))
        errors = lambda: serve.errors + draft.errors + target.errors
        asked = 0

        def drafted():
            nonlocal asked
            source.write("".join(json.dumps(r) + "\n" for r in requests))
            source.flush()
            asked += len(requests)
            wait_until(lambda: len(self.results()) >= asked, errors, TIME_LIMIT)
            return target_flags or sum(a["stats"]["accepted_tokens"] for a in self.results())

        wait_until(drafted, errors)
        answers = self.results()
        source.close()
        self.assertEqual(serve.end(), 0, errors())
        for worker in (target, draft):
            worker.signal(signal.SIGTERM)
            self.assertEqual(worker.end(), 0, worker.errors)
        return answers, (serve, draft, target)

    def check(self, answers, plain):
        """As plain decoding."""
        for a in answers:
            self.assertEqual(a["token_ids"], plain[a["id"]], a["id"])

    def plain(self, lines):
        """{id: tokens} of plain decoding, by a program of its own."""
        source, out = self.folder / "plain.in.jsonl", self.folder / "plain.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = Running(self.folder, TANDEM, "batch", "-m", MODEL, "--draft", "none", str(source), str(out))
        self.addCleanup(done.close)
        self.assertEqual(done.end(), 0, done.errors)
        return {a["id"]: a["token_ids"] for a in map(json.loads, out.read_text().splitlines())}

    def hosts(self, **line):
        """Three of them, or the test is skipped."""
        h = Hosts(*HOSTS, **line)
        try:
            h.__enter__()
        except OSError as e:
            self.skipTest(f"network namespaces and TUN devices are not permitted here, or iproute2 is missing: {e}")
        self.addCleanup(h.__exit__)
        return h


@whole_model
class Readme(Commands):
    def test_the_request_as_it_is_written(self):
        """README's own request is answered; the programs may be started in any order."""
        serve, draft, target = (self.run_line(c, example="requests.jsonl") for c in readme_commands()[1])
        self.assertEqual(serve.end(), 0, serve.errors + draft.errors + target.errors)
        answer, = self.results()
        self.assertEqual((answer["id"], answer.get("error")), (1, None))
        self.assertTrue(answer["text"])
        for worker in (target, draft):
            worker.signal(signal.SIGTERM)
            self.assertEqual(worker.end(), 0, worker.errors)

    def test_one_host(self):
        asked = requests(3)
        answers, (serve, _, target) = self.run_three(readme_commands()[1], asked)
        self.check(answers, self.plain(asked))
        self.assertNotIn("tcp://", serve.errors + target.errors)  # which other accounts could reach

    @thorough
    def test_three_hosts(self):
        asked, network = requests(3), self.hosts()
        answers, _ = self.run_three(readme_commands()[2], asked, network.command)
        self.check(answers, self.plain(asked))

    @thorough
    def test_three_hosts_far_apart(self):
        asked, network = requests(2), self.hosts(delay=DELAY, loss=LOSS)
        answers, _ = self.run_three(readme_commands()[2], asked, network.command)
        self.check(answers, self.plain(asked))


@thorough
class UnreachableTargets(Commands):
    """Drafts that do not reach the target: the answers are plain, and tell why."""

    def reasons(self, *flags):
        asked, network = requests(2), self.hosts()
        answers, (serve, draft, target) = self.run_three(readme_commands()[2], asked, network.command, *flags)
        self.check(answers, self.plain(asked))
        self.assertEqual([a["stats"]["rounds"] for a in answers], [0, 0])
        return [a["stats"]["speculation_off_reason"] for a in answers], serve.errors, draft.errors, target.errors

    def test_the_target_keeps_to_its_own_host(self):
        reasons, serve, *_ = self.reasons("--bind", "tcp://127.0.0.1:*")
        for text in (*reasons, serve):
            self.assertIn("a draft is here, but on another host (10.0.0.2) than the target (10.0.0.3)", text)
        self.assertEqual(serve.count("decodes plainly"), 1)

    def test_an_address_that_nobody_has(self):
        reasons, *_ = self.reasons("--advertise", "tcp://10.0.0.9:7001")
        for text in reasons:
            self.assertIn("a draft is here, but has not reached the target at tcp://10.0.0.9:7001 for ", text)


if __name__ == "__main__":
    unittest.main()
