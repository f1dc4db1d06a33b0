"""Runs the integration tests, several at a time: run.py [--jobs N] [--list] [PATTERN...]

A pattern names files, as "test_p*.py" does. A unit of work is one test, or, where tests share what
their class's setUpClass makes, a piece of that class. Every job is a process of its own, with a ledger
of its own, and takes the next unit when it has finished one. Classes that say `alone` measure the
machine: they run at the end, one by one.
"""

import argparse
import collections
import fnmatch
import io
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PIECE = 10  # tests of a class that shares a set-up, at most, in one unit
SLOWEST = 10  # tests that are named at the end

Unit = collections.namedtuple("Unit", "names alone shares")


# --- what there is to do ---


def tests_in(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_in(item)
        else:
            yield item


def units_of_class(tests):
    kind = type(tests[0])
    names, alone = [t.id() for t in tests], getattr(kind, "alone", False)
    if "setUpClass" not in vars(kind):
        return [Unit([name], alone, False) for name in names]
    pieces = -(-len(names) // PIECE)
    return [Unit(names[i::pieces], alone, True) for i in range(pieces)]


def find_units(patterns):
    """Those of many tests first: what takes long must not begin last."""
    loader, classes = unittest.TestLoader(), {}
    files = sorted(f for f in HERE.glob("test_*.py") if any(fnmatch.fnmatch(f.name, p) for p in patterns))
    for test in tests_in(loader.loadTestsFromNames([f.stem for f in files])):
        classes.setdefault(type(test), []).append(test)
    assert not loader.errors, "\n".join(loader.errors)
    units = [unit for tests in classes.values() for unit in units_of_class(tests)]
    return sorted(units, key=lambda unit: (unit.alone, not unit.shares, -len(unit.names)))


# --- a job: takes names of tests from stdin, writes what came out to stdout, a line of JSON each ---


class Timed(unittest.TextTestResult):
    """Remembers how long each test took."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.seconds = {}

    def startTest(self, test):
        self.begin = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        self.seconds[test.id()] = time.monotonic() - self.begin
        super().stopTest(test)


def run_unit(names):
    text, real = io.StringIO(), sys.stderr
    sys.stderr = text  # support.tell() writes there
    try:
        suite = unittest.TestLoader().loadTestsFromNames(names)
        result = unittest.TextTestRunner(stream=text, verbosity=2, resultclass=Timed).run(suite)
    finally:
        sys.stderr = real
    return {"text": text.getvalue(), "ok": result.wasSuccessful(), "seconds": result.seconds,
            "skipped": [f"{test.id()}: {why}" for test, why in result.skipped]}


def work():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a test prints does not stand among the replies
    for line in sys.stdin:
        print(json.dumps(run_unit(json.loads(line))), file=replies, flush=True)


# --- all of them ---


class Jobs:
    def __init__(self, units, count):
        self.shared = collections.deque(u for u in units if not u.alone)
        self.alone = collections.deque(u for u in units if u.alone)
        self.count = count
        self.lock = threading.Lock()
        self.seconds, self.failed, self.skipped = {}, [], []

    def run(self):
        threads = [threading.Thread(target=self._run, args=(self.shared,)) for _ in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._run(self.alone)

    def _run(self, units):
        process = None
        while unit := self._next(units):
            process = process or subprocess.Popen([sys.executable, __file__, "--job"], stdin=subprocess.PIPE,
                                                  stdout=subprocess.PIPE, text=True, cwd=HERE)
            process.stdin.write(json.dumps(unit.names) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:  # its tests count as failed, the others go on in a new process
                text = f"the job ended with status {process.wait()}: {' '.join(unit.names)}\n"
                self._take(unit, {"text": text, "ok": False, "seconds": {}, "skipped": []})
                process = None
                continue
            self._take(unit, json.loads(line))
        if process:
            process.stdin.close()
            process.wait()

    def _next(self, units):
        with self.lock:
            return units.popleft() if units else None

    def _take(self, unit, reply):
        with self.lock:
            self.seconds.update(reply["seconds"])
            self.skipped += reply["skipped"]
            if not reply["ok"]:
                self.failed.append(unit)
            print(reply["text"], end="", flush=True)

    def report(self, seconds):
        for name, took in sorted(self.seconds.items(), key=lambda item: -item[1])[:SLOWEST]:
            print(f"{took:7.1f} s  {name}")
        for why in self.skipped:
            print("skipped:", why)
        verdict = "FAILED" if self.failed else "ok"
        print(f"{len(self.seconds)} tests in {seconds:.0f} s, {self.count} at a time: {verdict}")
        for unit in self.failed:
            print("FAILED:", *unit.names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="only tell the units")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("patterns", nargs="*", default=["test_*.py"])
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if args.job:
        return work()
    units = find_units(args.patterns)
    if not units:
        sys.exit(f"no test is named {' or '.join(args.patterns)}")
    if args.list:
        return print("\n".join(("alone: " if u.alone else "") + " ".join(u.names) for u in units))
    jobs, begin = Jobs(units, args.jobs), time.monotonic()
    jobs.run()
    jobs.report(time.monotonic() - begin)
    sys.exit(1 if jobs.failed else 0)


if __name__ == "__main__":
    main()
