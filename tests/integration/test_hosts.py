"""README's section 'Several machines', its commands as they stand: on one host, on three, and on three that are far apart."""

import json
import os
import re
import shlex
import signal
import unittest

from hosts import Hosts
from support import BIN, MODEL, ROOT, SUBSET, TANDEM, Case, Running, batch, tell, wait_until

HOSTS = ("orchestrator", "draft", "target")
ANSWER = 40 if SUBSET else 96  # tokens
PROMPTS = ROOT / "bench/data/spec_bench_28.jsonl"
DELAY, LOSS = 0.02, 0.01  # one way
NEEDED = 0.5  # of plain's speed; what is really asked for is measured by bench/bench_cpu.py, where nothing else runs


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

    def ask(self, lines):
        (self.clone / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run_line(self, line, host=()):
        """One command in a terminal of its own; requests.jsonl stays the test's."""
        begin = "; ".join(self.start).replace("requests.jsonl", "example.jsonl")
        script = f"cd {shlex.quote(str(self.clone))}; {begin}; exec {line}"
        running = Running(self.folder, *host, "bash", "-ec", script, env={"HOME": str(self.home)})
        self.addCleanup(running.close)
        return running

    def run_three(self, lines, host=lambda name: ()):
        """The answers by id, the programs."""
        serve = self.run_line(lines[0], host("orchestrator"))
        self.assertTrue(wait_until(lambda: "listening at" in serve.errors), serve.errors)
        draft = self.run_line(lines[1], host("draft"))
        self.assertTrue(wait_until(lambda: "a draft (ngram) is here" in serve.errors), serve.errors + draft.errors)
        target = self.run_line(lines[2], host("target"))
        self.assertEqual(serve.end(), 0, serve.errors + draft.errors + target.errors)
        answers = [json.loads(line) for line in (self.clone / "results.jsonl").read_text().splitlines()]
        for worker in (target, draft):
            worker.signal(signal.SIGTERM)
            self.assertEqual(worker.end(), 0, worker.errors)
        return {a["id"]: a for a in answers}, (serve, draft, target)

    def check(self, answers, plain):
        """As plain decoding, and the draft took part."""
        self.assertEqual({i: a["token_ids"] for i, a in answers.items()}, plain)
        stats = [a["stats"] for a in answers.values()]
        self.assertGreater(sum(s["accepted_tokens"] for s in stats), 0, stats)
        for s in stats:
            self.assertNotIn("draft worker", s["speculation_off_reason"] or "")
            self.assertNotIn("has not reached", s["speculation_off_reason"] or "")

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


class Readme(Commands):
    def test_one_host(self):
        lines = requests(3)
        self.ask(lines)
        answers, (_, _, target) = self.run_three(readme_commands()[1])
        self.check(answers, self.plain(lines))
        self.assertNotIn("tcp://", target.errors)

    def test_three_hosts(self):
        lines = requests(3)
        self.ask(lines)
        network = self.hosts()
        answers, (serve, draft, target) = self.run_three(readme_commands()[2], network.command)
        self.check(answers, self.plain(lines))

    def test_three_hosts_far_apart(self):
        lines = requests(2)
        self.ask(lines)
        network = self.hosts(delay=DELAY, loss=LOSS)
        answers, _ = self.run_three(readme_commands()[2], network.command)
        self.check(answers, self.plain(lines))


if __name__ == "__main__":
    unittest.main()
