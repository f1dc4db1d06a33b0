"""The table of scripts/bench_cpu.sh: what it says of a figure. The figures themselves are for a quiet machine."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

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


if __name__ == "__main__":
    unittest.main()
