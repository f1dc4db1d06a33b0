"""scripts/bench_cpu.sh: what it says of a figure, and what a failure costs. The figures themselves are for a quiet machine."""

import contextlib
import io
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import bench_cpu  # noqa: E402
import bench_drafts  # noqa: E402
import bench_features  # noqa: E402
import bench_gpu  # noqa: E402
import bench_gpu_pair  # noqa: E402
import bench_heads  # noqa: E402
import bench_methods  # noqa: E402
import bench_network  # noqa: E402
import bench_sessions  # noqa: E402
from bench_machine import Failure  # noqa: E402
from bench_packets import CURVE_BYTES, Carried, carried  # noqa: E402
from bench_pair import Samples  # noqa: E402
from bench_peer import SETTINGS, Absent, Peer, enter_all  # noqa: E402
from bench_table import Row, Table, linear_limit_us, make_rows, verdict  # noqa: E402
from programs import TIME_LIMIT, Case  # noqa: E402


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

    def test_a_row_that_needs_more_decimals(self):
        table = Table({"a": Row("tokens", decimals=4, hold=1), "b": Row("tokens", hold=1)})
        for name in table.rows:
            table.set(name, 2.89959, "3 tokens", 0.99996)
        cells = {name: (value, ratio, verdict_) for name, value, _, _, ratio, _, _, verdict_ in list(table.cells(table.rows))[1:]}
        self.assertEqual(cells, {"a": ("2.8996", "1.0000", "NO"), "b": ("2.9", "1", "NO")})
        lines = {line["row"]: (line["value"], line["ratio"]) for line in table.lines(table.rows, "machine", "commit")}
        self.assertEqual(lines, {"a": (2.8996, 1.0), "b": (2.9, 1.0)})

    def test_every_row_once_on_a_machine_of_one_processor(self):
        names = list(make_rows(1))
        self.assertEqual([n for n in names if n.startswith("plain decode")], ["plain decode, 1 thread"])


class Limits(unittest.TestCase):
    def test_linears(self):
        # 100 bytes at 50 a second are 2 s; 7 multiply-adds a row at 0.7 of 20 a second are half a second
        self.assertEqual(linear_limit_us(1, 100, 7, 50, 20), 2e6)
        self.assertAlmostEqual(linear_limit_us(8, 100, 7, 50, 20), 4e6)


class Flags(Case):
    """What is wrong is said at once: before anything is installed, built or measured."""

    def ask(self, *flags):
        # Nothing that installs or builds can be found: only Python.
        return subprocess.run(["/bin/bash", str(ROOT / "scripts/bench_cpu.sh"), *flags], capture_output=True, text=True,
                              timeout=TIME_LIMIT, env={"PATH": str(self.few)})

    def setUp(self):
        super().setUp()
        self.few = self.folder / "few"
        self.few.mkdir()
        (self.few / "python3").symlink_to(sys.executable)
        for program in ("dirname", "sed", "bash"):
            (self.few / program).symlink_to(shutil.which(program))

    def test_help_at_once(self):
        for flag in ("--help", "-h"):
            done = self.ask("--quick", flag)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for name in ("--quick", "--only", "--peer", "--json", "--markdown"):
                self.assertIn(name, done.stdout)

    def test_wrong_flags_are_refused_at_once(self):
        none = str(self.folder / "none/x")
        for flags, phrase in ((("--quik",), "--quik"), (("--only",), "--only"), (("--only", "no such row"), "no such row"),
                              ((f"--peer={none}",), "get_peer.sh"), (("--json", none), none),
                              (("extra",), "extra")):
            done = self.ask(*flags)
            self.assertIn(done.returncode, (1, 2), done.stderr)
            self.assertIn(phrase, done.stderr)
            self.assertNotIn("deps.sh", done.stderr)


class Features(unittest.TestCase):
    def measure(self, us):
        result = {"items": ["1", "8:4"], "row_bytes": {"raw": 3456, "fused": 1152}, "us": us}
        run = types.SimpleNamespace(bin=pathlib.Path("bin"), model="model", threads=2, details=[])
        old, bench_features.command = bench_features.command, lambda *_: types.SimpleNamespace(stdout=json.dumps(result))
        self.addCleanup(setattr, bench_features, "command", old)
        table = Table(make_rows(2))
        bench_features.measure_features(run, table, 3)
        return table.measured[bench_features.ROW], run.details[0][1]

    def test_the_worst_counts_by_steps_side_by_side(self):
        row, lines = self.measure({"without": [[100.0, 200, 100], [400.0, 400, 400]], "raw": [[101.0, 202, 99], [404.0, 408, 500]],
                                   "fused": [[100.0, 200, 101], [404.0, 404, 400]]})
        self.assertEqual(row, (408, "without, 400 us; raw states, 8 rows, 4 committed", 1.02, False))
        self.assertEqual(lines[1:], [("1", "1", "100", "101", "1.0100", "101", "1.0000"), ("8", "4", "400", "408", "1.0200", "404", "1.0100")])


def spec_rows(method, tree, temperature, per_verify=2.0, different=0):
    """As `tandem bench spec` prints them, of two groups."""
    row = {"tokens_per_verify": per_verify, "accepted_per_pos": [0.6, 0.4], "verifies": 10, "prompts": 2, "tokens": 30, "forwards": 20,
           "different": different, "accepted_share": 0.5, "plain_tok_s": 100.0, "tok_s": 150.0, "gain": 1.5}
    return {(method, tree, temperature, group): row for group in ("all", "mt_bench", "qa")}


class Heads(unittest.TestCase):
    def setUp(self):
        self.table, self.run_ = Table(make_rows(2)), types.SimpleNamespace(details=[])
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)

    def put(self, module, bench):
        self.addCleanup(setattr, module, "bench", module.bench)
        module.bench = bench

    def test_what_a_draft_does_by_default_is_judged(self):
        def bench(run, file, tokens, *flags, outputs=None):
            method, tree, temperature = (flags[flags.index(name) + 1] for name in ("--methods", "--trees", "--temps"))
            rows = spec_rows(method, tree, temperature, 2.8 if outputs else 2.6)
            return {(method, tree, temperature, key[-1]): r for key, r in rows.items()}

        self.put(bench_heads, bench)
        bench_heads.measure_counts(self.run_, self.table, self.work, {"prompts": 8, "tokens": 4})
        value, against, _, _ = self.table.measured["head: tokens a verify, tree of 31, temperature 1"]
        self.assertEqual(value, 2.6)
        self.assertIn("2.80 with all of the head's outputs", against)
        self.assertEqual(self.run_.details[0][1][1], ("chain of 5", "2.60", "2.80", "0.60 0.40"))

    def test_llama_cpps_chain_to_four_decimals(self):
        rows = {key: {**r, "tokens": 28990, "forwards": 10000} for key, r in spec_rows("eagle3", "chain5", 0).items()}
        self.put(bench_heads, lambda *_, outputs: rows)
        p = types.SimpleNamespace(ids={1: [2, 3]}, samples=Samples(), length=lambda name: 2.8991, differing=lambda name: 0)
        bench_heads.tell_chain(self.run_, self.table, self.work, p, {"tokens": 4}, {"plain": None}, "no peer")
        value, unit, against, ratio, *_, says = next(c for name, *c in self.table.cells(self.table.rows) if name == bench_heads.PEER)
        self.assertEqual((value, against.split(";")[0], ratio, says), ("2.8990", "llama.cpp, 2.8991", "1.0000", "NO"))

    def methods(self, fails=lambda flags: False):
        def bench(run, file, tokens, *flags):
            if fails(flags):
                raise Failure("tandem failed")
            methods = flags[flags.index("--methods") + 1].replace("+", ";").split(",")
            trees = flags[flags.index("--trees") + 1].split(",") if "--trees" in flags else ["free"]
            kinds = [(m.replace(";", ","), t) for m in methods for t in trees]
            return {key: r for m, t in kinds for key, r in spec_rows(m, t, flags[flags.index("--temps") + 1], different=1).items()}

        self.put(bench_methods, bench)
        with contextlib.redirect_stderr(io.StringIO()), self.table.only(bench_methods.ROW):
            bench_methods.measure_methods(self.run_, self.table, self.work, {"prompts": 8, "tokens": 4})
        return [lines for _, lines in self.run_.details], self.table.measured[bench_methods.ROW]

    def test_every_method_by_category_and_by_depth(self):
        (verifies, depths, chains, free), (different, *_) = self.methods()
        self.assertEqual(different, 4 * 3 * 3)  # methods, temperatures; two trees and the free pace
        self.assertEqual([len(lines) for lines in (verifies, depths, chains, free)], [1 + 24, 1 + 24, 1 + 12, 1 + 12])
        self.assertEqual(verifies[:2], [("temperature", "tree", "method", "all", "mt_bench", "qa"), ("0", "chain5", "ngram", "2.00", "2.00", "2.00")])
        self.assertEqual(depths[4], ("0", "chain5", "--draft-layers 6", "0.60", "0.40", "0.00", "0.00", "0.00", "", ""))
        self.assertEqual(chains[12][:4], ("1", "chain5", "--draft-layers 6", "0.60 0.40"))
        self.assertEqual(free[3], ("0", "head, ngram", "100", "150", "50 %", "1.50", "1.50", "1.50"))

    def test_a_method_that_fails(self):
        (verifies, *_, free), (value, why, *_) = self.methods(lambda flags: "model" in flags)
        self.assertEqual((len(verifies), len(free), value), (1 + 18, 1 + 9, None))
        self.assertIn("--draft-layers 6, lockstep, temperature 0: tandem failed", why)

    def test_they_are_measured_only_if_they_are_named(self):
        named = {only: [name for name, *_ in bench_cpu.chosen_parts(only)] for only in ("", "methods", "head", "head: tokens")}
        self.assertNotIn("methods", named[""] + named["head"])
        self.assertEqual(named["methods"], ["methods"])
        self.assertEqual(named["head: tokens"], ["draft heads"])


def packet(number, data=b"", flags=0, address=b"\x0a\0\0\1\x0a\0\0\2", options=b""):
    """Of TCP, over IPv4."""
    segment = struct.pack("!HHIIBBHHH", 7000, 7001, number % (1 << 32), 0, (20 + len(options)) // 4 << 4, flags, 0, 0, 0) + options + data
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, 6, 0) + address + segment


class FakeGpu:
    """Reads memory at 1,000 GB/s, and takes 2 us a MB of weights, and a tenth more for each row after the first."""

    def __init__(self, fails=""):
        self.fails, self.asked = fails, []

    def steps(self, model, context, rows):
        self.asked.append((model, context, rows))
        if self.fails and self.fails in model:
            raise Failure("tandem failed (1): no memory")
        return {n: 2e3 * (1 + (n - 1) / 10) for n in rows}, 1000, 1e9

    def ops(self, model, context, rows):
        return {**{name: 25_000 for name in bench_gpu.BF16_LINEARS}, "attention": 7}

    def decode(self, model, context):
        return 500

    def prompt(self, model):
        return 2048

    def number(self):
        return "1"


class FakeCublas:
    def __init__(self, number):
        assert number == 1

    def linears(self, shapes, layers, rows):
        return 37_500


class FakeGpuPeer:
    model = "file.gguf"

    def __init__(self, cuda="ON"):
        self.about = ["llama.cpp", f"cmake -DGGML_CUDA={cuda}"]
        self.asked = []

    def decode(self, *what):
        self.asked.append(what)
        return 200

    def bench(self, *what):
        return 1024


class Gpus(unittest.TestCase):
    def measured(self, gpu, peer=None, only=""):
        table = Table(bench_gpu.make_gpu_rows())
        with contextlib.redirect_stderr(io.StringIO()):
            self.chosen = bench_gpu.measure(gpu, table, peer, only=only, cublas=FakeCublas)
        return {line["row"]: line for line in table.lines(table.rows, "a GPU", "0")}

    def test_a_share_is_the_time_to_read_over_that_of_a_step(self):
        rows = self.measured(FakeGpu())
        line = rows["share of the read rate, 1.5B Q4_K_M"]
        self.assertEqual((line["value"], line["ratio"], line["holds"]), (2000, 0.5, True))
        self.assertIn("1000 us to read 1000 MB at 1000 GB/s", line["against"])
        self.assertFalse(rows["share of the read rate, 8B Q4_K"]["holds"])
        self.assertTrue(rows["share of the read rate, 70B Q4_K, a quarter"]["holds"])  # told, not judged

    def test_rows_over_one_are_of_one_run(self):
        gpu = FakeGpu()
        rows = self.measured(gpu)
        for name in ("Q4_K", "BF16"):
            self.assertEqual(rows[f"8B {name}, 8 rows over one"]["ratio"], 1.7)
            self.assertIn((f"synth:llama-3.1-8b:{name}", 2048, (1, 8, 16, 32, 64)), gpu.asked)

    def test_what_fails_costs_its_own_rows(self):
        rows = self.measured(FakeGpu("qwen"))
        self.assertIn("no memory", rows["share of the read rate, 1.5B Q4_K_M"]["against"])
        self.assertEqual(rows["share of the read rate, 8B Q8_0"]["ratio"], 0.5)

    def test_the_peer(self):
        peer = FakeGpuPeer()
        without, beside = self.measured(FakeGpu()), self.measured(FakeGpu(), peer)
        self.assertFalse(without[bench_gpu.DECODES]["holds"])
        self.assertIn("get_peer.sh --cuda", without[bench_gpu.DECODES]["against"])
        self.assertEqual((beside[bench_gpu.DECODES]["value"], beside[bench_gpu.DECODES]["ratio"]), (500, 2.5))
        self.assertEqual(beside[bench_gpu.PROMPTS]["ratio"], 2)
        self.assertEqual(peer.asked[0][-4:], ("-sm", "none", "-mg", "1"))  # one GPU, and the same

    def test_a_peer_without_a_gpu(self):
        row = self.measured(FakeGpu(), FakeGpuPeer("OFF"))[bench_gpu.DECODES]
        self.assertFalse(row["holds"])
        self.assertIn("does not compute on a GPU", row["against"])

    def test_flags(self):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            bench_gpu.read_options(["--peer", "x"])
        self.assertIn("--peer and --draft go with --model", said.getvalue())

    def test_a_prompt_over_one_with_the_linears_of_cublas(self):
        # 4096 tokens at 2,048 a second take 2 s, of which linears 16 * 0.1 s; cuBLAS's would take 16 * 0.0375 s
        line = self.measured(FakeGpu())[bench_gpu.BF16_PROMPT]
        self.assertEqual((line["value"], line["ratio"], line["holds"]), (2048, 0.5, False))
        self.assertIn("take 100000 us, cuBLAS's 37500", line["against"])

    def test_a_part_alone(self):
        rows = self.measured(FakeGpu(), only="8B BF16, 8")
        self.assertEqual(self.chosen, [f"8B BF16, {n} rows over one" for n in (8, 16, 32, 64)])
        self.assertIsNone(rows["share of the read rate, 8B Q8_0"]["value"])

    def test_the_first_load_of_many_sessions_does_not_count(self):
        loads = ((32, 9.0), (1, 1.5), (4, 1.25), (16, 1.0), (32, 0.75))
        lines = [{"speculation": on, "concurrency": n, "gain": gain, "output_tokens_per_second": 100 * n}
                 for n, gain in loads for on in (False, True)]
        told = "".join(json.dumps(line) + "\n" for line in lines)
        asked = []
        with unittest.mock.patch.object(bench_gpu_pair, "command",
                                        lambda line: asked.append(line) or types.SimpleNamespace(stdout=told)):
            got = bench_gpu_pair.gains(types.SimpleNamespace(bin=pathlib.Path("bin")), "http://address")
        self.assertEqual(got, {n: (gain, 100 * n) for n, gain in loads[1:]})
        self.assertIn("32,1,4,16,32", asked[0])

    def test_a_pair_that_is_not_there(self):
        line = self.measured(FakeGpu())["real pair: answers that differ"]
        self.assertFalse(line["holds"])
        self.assertIn("--draft FILE", line["against"])


class Packets(unittest.TestCase):
    GREETING, HANDSHAKE = b"g" * 64, b"\x04\x08" + b"\x05HELLO.."
    MESSAGE = b"\x07MESSAGE" + b"n" * 8 + b"b" * 17  # and what it carries
    FIRST = (1 << 32) - 3  # the numbers begin again within the greeting

    def stream(self):
        """Two encrypted messages, of 5 and of 300 bytes."""
        long = self.MESSAGE + b"y" * 300
        return (self.GREETING + self.HANDSHAKE + b"\x00" + bytes([CURVE_BYTES + 5]) + self.MESSAGE + b"x" * 5 +
                b"\x02" + len(long).to_bytes(8, "big") + long)

    def check(self, packets, repeated=0):
        zmtp = 64 + len(self.HANDSHAKE) + 2 + 9
        total = sum(map(len, packets))
        headers = total - zmtp - 2 * CURVE_BYTES - 305 - repeated
        self.assertEqual(carried(packets), Carried(total, headers, zmtp, 2 * CURVE_BYTES, 305, repeated, len(packets), 2))

    def pieces(self, *cuts):
        data = self.stream()
        bounds = [0, *cuts, len(data)]
        return [packet(self.FIRST + 1 + a, data[a:b]) for a, b in zip(bounds, bounds[1:])]

    def test_headers_zmtp_encryption_and_messages(self):
        begin, other = packet(self.FIRST, flags=2, options=b"o" * 20), b"\x60" + b"6" * 47  # IPv6
        self.check([begin, other, *self.pieces(64, 100), packet(self.FIRST + 1)])

    def test_what_is_sent_twice_or_out_of_order(self):
        begin, (a, b, c) = packet(self.FIRST, flags=2), self.pieces(70, 200)
        self.check([begin, begin, a, c, b, b], repeated=len(b) - 40)

    def test_both_directions_and_a_second_connection(self):
        data, back = self.stream(), b"\x0a\0\0\2\x0a\0\0\1"
        lines = [(5, b"\x0a\0\0\1\x0a\0\0\2"), (9, back), (777, back)]
        packets = [p for first, address in lines for p in (packet(first, flags=2, address=address), packet(first + 1, data, address=address))]
        got = carried(packets)
        self.assertEqual((got.frames, got.messages, got.repeated), (6, 3 * 305, 0))

    def test_what_a_further_token_costs(self):
        few, many = (bench_network.Shipped(Carried(*([n] * 8)), tokens, 4, 10, 3) for n, tokens in ((1000, 100), (1600, 400)))
        table, run = Table(make_rows(2)), types.SimpleNamespace(details=[])
        bench_network.tell_bytes(run, table, bench_network.BYTES, few, many, "")
        value, against, *_ = table.measured[bench_network.BYTES]
        self.assertEqual(value, 4)
        self.assertIn("400 tokens of 4 answers to prompts of 10 tokens; 3 accepted; a further token 2, start and prompts 800 in all", against)


class Delays(unittest.TestCase):
    def measure(self, loses):
        def figures(run, work, line, flags, repetitions, each):
            delay, loss = line
            if loss and not loses:
                raise OSError("not permitted")
            far = bench_network.Far()
            speed = 100 - 1000 * delay - 2000 * loss
            far.samples.of = {name: {1: [v]} for name, v in (("free draft", speed), ("free plain", 100), ("lockstep draft", 50), ("lockstep plain", 100))}
            far.stats = {"free draft": [{"accepted_tokens": 3}]}
            return far

        run, table = types.SimpleNamespace(details=[]), Table(make_rows(2))
        for name, fake in (("far_figures", figures), ("drafts", lambda run: {"ngram": ()}), ("kind_of_line", lambda *_: "a line")):
            self.addCleanup(setattr, bench_network, name, getattr(bench_network, name))
            setattr(bench_network, name, fake)
        bench_network.measure_delays(run, table, None, 1, 1, (0, 0.005), (0.005,))
        return table.measured[bench_network.FAR], [line[0] for line in run.details[0][1]]

    def test_lines_that_lose_packets_are_told_and_not_judged(self):
        (_, against, ratio, _), where = self.measure(True)
        self.assertAlmostEqual(ratio, 0.95)
        self.assertIn("ngram, 5 ms; of lines that lose packets, the worst 0.750: ngram, 5 ms, 1 % loss", against)
        self.assertEqual(where[1:], ["0 ms", "5 ms", "5 ms, 1 % loss"])

    def test_where_no_line_can_lose_them(self):
        (_, against, ratio, _), where = self.measure(False)
        self.assertAlmostEqual(ratio, 0.95)
        self.assertIn("no line that loses packets: not permitted", against)
        self.assertEqual(where[1:], ["0 ms", "5 ms"])


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
    def answer(self, ids, tokens, **_):
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
        bench_sessions.measure_many(self.run_, self.table, pathlib.Path("unused"), 8, 2, bench_cpu.interleave, bench_cpu.paired, "no peer")
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

    def replay(self):
        replay = bench_cpu.Replay.__new__(bench_cpu.Replay)
        replay.run, replay.pair, replay.prompts, replay.plain = self.run_, FakePair(), [{"id": 0, "prompt_ids": []}], {}
        replay.recording = "recording"
        return replay

    def test_a_replay_whose_ledger_fails(self):
        replay = self.replay()
        checked = replay.pair.checked
        replay.pair.checked = lambda prompts, tokens, method, plain: timed_out() if method.ledger else checked(prompts, tokens, method, plain)
        with self.table.only("round overhead"):
            replay.measure({"lockstep": 5, "free": 7}, self.table, {"the head, 2": FakeServer()})
        self.check({"replay 0.8, lockstep", "replay 0.8, free pace", "replay 0", "temperature 0.8 over greedy", bench_cpu.EQUAL},
                   {"ledger, plain", "ledger, replay 0.8", "round overhead"}, "")
        self.assertIn("timed out", self.verdicts()["ledger, plain"][1])

    def test_a_replay_whose_peer_fails(self):
        with self.table.only("round overhead"):
            self.replay().measure({"lockstep": 5, "free": 7}, self.table, {"plain": FakeServer(), "the head, 2": Absent("does not start")})
        self.assertEqual(self.verdicts()[bench_cpu.EQUAL][0], "NOT MEASURED")
        self.assertIn("does not start", self.verdicts()[bench_cpu.EQUAL][1])
        self.assertNotEqual(self.verdicts()["replay 0"][0], "NOT MEASURED")

    def test_a_replay_without_a_peer(self):
        with self.table.only("round overhead"):
            self.replay().measure({"lockstep": 5, "free": 7}, self.table, {})
        self.assertNotEqual(self.verdicts()["replay 0"][0], "NOT MEASURED")
        self.assertIn("no peer", self.verdicts()[bench_cpu.EQUAL][1])

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
            hanging.write_text(f"#!/bin/sh\nexec sleep {TIME_LIMIT}\n")
            hanging.chmod(0o755)
            a_while = 0.2
            with self.assertRaisesRegex(Failure, "took longer"):
                peer.decode(1, 1, 1, seconds=a_while)


if __name__ == "__main__":
    unittest.main()
