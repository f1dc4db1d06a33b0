"""scripts/bench_cpu.sh: what it says of a figure, and what a failure costs. The figures themselves are for a quiet machine."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import bench_cpu  # noqa: E402
import bench_drafts  # noqa: E402
import bench_sessions  # noqa: E402
from bench_machine import Failure  # noqa: E402
from bench_peer import SETTINGS, Absent, Peer, enter_all  # noqa: E402
from bench_table import Row, Table, linear_limit_us, make_rows, verdict  # noqa: E402


class Verdicts(unittest.TestCase):
    def test_a_ratio_that_should_be_large(self):
        row = Row("tok/s", "ratio", ">=", 1.8, 2.3)
        for ratio, text in ((1.79, "NO"), (1.8, "yes"), (2.29, "yes"), (2.3, "reached")):
            self.assertEqual(verdict(row, 100, ratio), text)
            self.assertEqual(verdict(row, 100, ratio, True), "NO PEER")
        self.assertEqual(verdict(row, None, None), "NOT MEASURED")

    def test_a_value_that_should_be_small(self):
        row = Row("us", "value", "<=", 80, 40)
        for value, text in ((81, "NO"), (80, "yes"), (40, "reached")):
            self.assertEqual(verdict(row, value, None), text)

    def test_what_was_not_measured_or_has_no_peer_does_not_hold(self):
        rows = make_rows(2)
        table = Table(rows)
        table.set("plain decode, 2 threads", 300.0, "no peer", lacks_peer=True)
        table.set("step of 4 rows", 3000.0, "1 row, 2900 us; no peer", 1.03, lacks_peer=True)
        table.set("plain decode, 1 thread", 200.0, "llama.cpp, 100 tok/s", 2.0)
        table.set("round overhead", 81.0)
        lines = {line["row"]: line for line in table.lines(rows, "machine", "commit")}
        self.assertEqual(list(lines), list(rows))
        self.assertTrue(lines["plain decode, 1 thread"]["holds"])
        for name in set(lines) - {"plain decode, 1 thread"}:
            self.assertFalse(lines[name]["holds"], name)
        self.assertEqual(set(json.loads(json.dumps(lines["memcmp"]))),
                         set("row value unit against ratio hold reach holds machine commit".split()))

    def test_every_row_once_on_a_machine_of_one_processor(self):
        names = list(make_rows(1))
        self.assertEqual([n for n in names if n.startswith("plain decode")], ["plain decode, 1 thread"])


class Limits(unittest.TestCase):
    def test_linears(self):
        # 100 bytes at 50 a second are 2 s; 7 multiply-adds a row at 0.7 of 20 a second are half a second
        self.assertEqual(linear_limit_us(1, 100, 7, 50, 20), 2e6)
        self.assertAlmostEqual(linear_limit_us(8, 100, 7, 50, 20), 4e6)


class Flags(unittest.TestCase):
    """What is wrong is said at once: before anything is installed, built or measured."""

    def ask(self, *flags):
        # Nothing that installs or builds can be found: only Python.
        with tempfile.TemporaryDirectory() as few:
            for program in ("python3", "dirname", "sed", "bash"):
                pathlib.Path(few, program).symlink_to(f"/usr/bin/{program}")
            return subprocess.run(["/bin/bash", str(ROOT / "scripts/bench_cpu.sh"), *flags], capture_output=True, text=True, timeout=20,
                                  env={"PATH": few})

    def test_help_at_once(self):
        for flag in ("--help", "-h"):
            done = self.ask("--quick", flag)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for name in ("--quick", "--only", "--peer", "--json", "--markdown"):
                self.assertIn(name, done.stdout)

    def test_wrong_flags_are_refused_at_once(self):
        for flags, phrase in ((("--quik",), "--quik"), (("--only",), "--only"), (("--only", "no such row"), "no such row"),
                              (("--peer=/nonexistent",), "get_peer.sh"), (("--json", "/nonexistent/x"), "/nonexistent/x"),
                              (("extra",), "extra")):
            done = self.ask(*flags)
            self.assertIn(done.returncode, (1, 2), done.stderr)
            self.assertIn(phrase, done.stderr)
            self.assertNotIn("deps.sh", done.stderr)


# --- what fails costs its own rows ---


def timed_out(*_, **__):
    raise TimeoutError("timed out")


class FakePair:
    """Answers of 5 tokens, at 10 tok/s, with a draft at 20; but for what must fail."""

    def __init__(self, fails=lambda draft, prompts: False):
        self.fails, self.work = fails, None

    def answers(self, prompts, tokens, method, threads=None, sessions=1):
        if self.fails(method.draft, prompts):
            raise Failure("tandem failed")
        stats = {"tok_s": 10.0 if method.draft == "none" else 20.0, "ttft_ms": 1.0, "draft_tokens": 4, "accepted_tokens": 3}
        return {p["id"]: {"id": p["id"], "token_ids": [1, 2, 3, 4, 5], "prompt_ids": [1], "stats": stats} for p in prompts}, None

    def checked(self, prompts, tokens, method, plain, sessions=1):
        return self.answers(prompts, tokens, method)


class FakeServer:
    def answer(self, ids, tokens):
        return [1, 2, 3, 4, 5], 5.0


class Isolation(unittest.TestCase):
    NGRAM = {f"ngram, {name}" for name in ("summarisation", "translation", "retrieval", "over all")}
    BEST = "best speculation over llama.cpp's"

    def setUp(self):
        self.table = Table(make_rows(2))
        self.run_ = types.SimpleNamespace(size=bench_cpu.QUICK, threads=2, peer=True, rounds={}, details=[], weight_bytes=1e9)
        self.enterContext_(contextlib.redirect_stderr(io.StringIO()))

    def enterContext_(self, manager):
        manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)

    def verdicts(self):
        return {name: (cells[-1], cells[2]) for name, *cells in list(self.table.cells(self.table.rows))[1:] if name in self.table.measured}

    def check(self, stand, fall, why):
        """Those that fall say why and do not hold; the others were measured."""
        verdicts = self.verdicts()
        self.assertEqual(set(verdicts), stand | fall)
        holds = {line["row"]: (line["holds"], line["value"]) for line in self.table.lines(verdicts, "machine", "commit")}
        for name in stand:
            self.assertNotIn("NOT MEASURED", verdicts[name][0], name)
        for name in fall:
            self.assertEqual((verdicts[name][0], holds[name]), ("NOT MEASURED", (False, None)), name)
            self.assertIn(why, verdicts[name][1], name)

    def speculation(self, pair, servers):
        s = bench_cpu.Speculation(self.run_, pair)
        s.measure(servers)
        s.tell(self.table)

    def test_a_peer_that_answers_too_slowly(self):
        asked = []
        slow = types.SimpleNamespace(answer=lambda *_: asked.append(1) or timed_out())
        self.run_.size = {**bench_cpu.QUICK, "speculation": 2}
        self.speculation(FakePair(), {name: slow for name in SETTINGS})
        self.check(self.NGRAM, {self.BEST}, "timed out")
        self.assertEqual(len(asked), 1, "it is not waited for again")

    def test_one_setting_of_the_peer_that_fails(self):
        """What is best without it would flatter us."""
        self.speculation(FakePair(), {**{name: FakeServer() for name in SETTINGS}, "ngram-simple": types.SimpleNamespace(answer=timed_out)})
        self.check(self.NGRAM, {self.BEST}, "ngram-simple: TimeoutError: timed out")

    def test_a_peer_that_does_not_start(self):
        with contextlib.ExitStack() as stack:
            @contextlib.contextmanager
            def broken():
                tried.append(1)
                timed_out()
                yield

            tried = []
            servers = enter_all(stack, {name: broken() for name in SETTINGS})
        self.speculation(FakePair(), servers)
        self.check(self.NGRAM, {self.BEST}, "timed out")
        self.assertEqual(len(tried), 1, "the others are not waited for")

    def test_one_group_of_prompts_that_fails(self):
        groups = bench_cpu.grouped_prompts(1)
        bad = groups["translation"][0]["id"]
        self.speculation(FakePair(lambda draft, prompts: draft == "ngram" and prompts[0]["id"] == bad), {name: FakeServer() for name in SETTINGS})
        self.check({"ngram, summarisation", "ngram, retrieval"}, {"ngram, translation", "ngram, over all", self.BEST}, "tandem failed")

    def test_plain_decoding_beside_a_slow_peer(self):
        self.run_.peer = types.SimpleNamespace(decode=timed_out)
        self.run_.step = lambda *_: [[1e6]]
        old, bench_cpu.read_rate = bench_cpu.read_rate, lambda *_: (1e10, 1e10)
        self.addCleanup(setattr, bench_cpu, "read_rate", old)
        bench_cpu.measure_decode_of(self.run_, self.table, FakePair(), {"id": 0}, 2)
        self.check({"plain steps alone, 2 threads", "share of the read rate, 2 threads"}, {"plain decode, 2 threads"}, "timed out")

    def test_steps_beside_a_slow_peer(self):
        self.run_.peer = types.SimpleNamespace(widths=timed_out)
        self.run_.step = lambda *_: [[100.0], [101.0], [102.0], [103.0]]
        bench_cpu.measure_widths(self.run_, self.table)
        self.check({f"step of {n} rows" for n in (4, 8, 16)}, set(), "")
        for verdict_, against in self.verdicts().values():
            self.assertEqual(verdict_, "NO PEER")
            self.assertIn("timed out", against)

    def test_sessions_beside_a_slow_peer(self):
        self.run_.peer = types.SimpleNamespace(server=lambda *_, **__: contextlib.nullcontext(Absent("TimeoutError: timed out")))
        fake = types.SimpleNamespace(one=lambda i: 100.0, all=lambda method: 500.0, replay=lambda rate: None, ids=[])
        old, bench_sessions.Sessions = bench_sessions.Sessions, lambda *_: fake
        self.addCleanup(setattr, bench_sessions, "Sessions", old)
        bench_sessions.measure_many(self.run_, self.table, pathlib.Path("/tmp"), 8, 2, bench_cpu.interleave, bench_cpu.paired, "no peer")
        self.check({"8 plain sessions", "8 sessions, replay 0.8"}, {"8 sessions over llama-server's slots"}, "timed out")

    def test_model_drafts(self):
        old = bench_drafts.peer_servers
        bench_drafts.peer_servers = lambda *_: contextlib.nullcontext({name: Absent("timed out") for name in bench_drafts.PEER_SETTINGS})
        self.addCleanup(setattr, bench_drafts, "peer_servers", old)
        pair = FakePair(lambda draft, prompts: draft == "ngram")
        pair.o = types.SimpleNamespace(model=None)
        self.run_.model = None
        bench_drafts.measure_good(self.run_, self.table, None, pair, 1, bench_cpu.turns, "no peer")
        self.check({"model draft, -md", "model draft, --draft-layers 30"}, {"ngram on that model", "model draft over llama.cpp's"}, "")
        self.assertIn("tandem failed", self.verdicts()["ngram on that model"][1])
        self.assertIn("timed out", self.verdicts()["model draft over llama.cpp's"][1])

    def test_a_replay_whose_ledger_fails(self):
        replay = bench_cpu.Replay.__new__(bench_cpu.Replay)
        replay.run, replay.pair, replay.prompts, replay.plain = self.run_, FakePair(), [{"id": 0}], {}
        replay.recording = "recording"
        checked = replay.pair.checked
        replay.pair.checked = lambda prompts, tokens, method, plain: timed_out() if method.ledger else checked(prompts, tokens, method, plain)
        with self.table.only("round overhead"):
            replay.measure({"lockstep": 5, "free": 7}, self.table)
        self.check({"replay 0.8, lockstep", "replay 0.8, free pace", "replay 0", "temperature 0.8 over greedy"},
                   {"ledger, plain", "ledger, replay 0.8", "round overhead"}, "")
        self.assertIn("timed out", self.verdicts()["ledger, plain"][1])

    def test_a_part_that_fails(self):
        def broken(run, table):
            table.set("memory read, 1 thread", 5.0)
            raise Failure("no memory")

        parts = (("limits", broken, ("memory read",)), ("bits", lambda run, table: table.set("memcmp", 0), ("memcmp",)))
        bench_cpu.measure_all(self.run_, self.table, parts)
        self.check({"memory read, 1 thread", "memcmp"}, {"memory read, 2 threads"}, "no memory")

    def test_a_peer_that_hangs_is_given_up(self):
        peer = Peer.__new__(Peer)
        with tempfile.TemporaryDirectory() as folder:
            peer.bin, peer.model = pathlib.Path(folder), "model"
            hanging = peer.bin / "llama-bench"
            hanging.write_text("#!/bin/sh\nexec sleep 60\n")
            hanging.chmod(0o755)
            begin = time.monotonic()
            with self.assertRaisesRegex(Failure, "took longer"):
                peer.decode(1, 1, 1, seconds=0.2)
        self.assertLess(time.monotonic() - begin, 20)


if __name__ == "__main__":
    unittest.main()
