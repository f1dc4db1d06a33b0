"""Runs the integration tests, several at a time: run.py [--thorough] [--jobs N] [--list] [NAME...]

A name is a pattern of files, as "test_p*.py" is, or one test, as "test_pair.Pair.test_ngram" is. A unit of
work is one test, or, where tests share what their class's setUpClass makes, a piece of that class. Every
job is a process of its own, with a ledger of its own, and takes the next unit when it has finished one.
Classes that say `alone` measure the machine: they run at the end, one by one. Tests that are marked
`thorough` run only where that is asked for. Those that are marked neither so nor `whole_model` have a smaller
one.

A unit whose tests failed by lateness alone (programs.Late) is run once more at the end, by itself. If it
passes then, it is called FLAKY, and is a defect all the same: more than two of them fail the run.

RESULTS names a file to which a line is added for every test that is FAILED or FLAKY, and for what each
TOOK.
"""

import argparse
import collections
import ctypes
import fnmatch
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PIECE = 10  # tests of a class that shares a set-up, at most, in one unit
SLOWEST = 30  # tests that are named at the end
FLAKY_MAX = 2
PR_SET_PDEATHSIG = 1

Unit = collections.namedtuple("Unit", "names alone shares whole")


# --- what there is to do ---


def tests_in(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_in(item)
        else:
            yield item


def has_mark(test, mark):
    return getattr(test, mark, False) or getattr(getattr(test, test._testMethodName), mark, False)


def units_of_class(tests, whole):
    kind = type(tests[0])
    names, alone = [t.id() for t in tests], getattr(kind, "alone", False)
    if "setUpClass" not in vars(kind):
        return [Unit([name], alone, False, whole) for name in names]
    pieces = -(-len(names) // PIECE)
    return [Unit(names[i::pieces], alone, True, whole) for i in range(pieces)]


def load(names, thorough):
    loader = unittest.TestLoader()
    files = sorted(f.stem for f in HERE.glob("test_*.py") if any(fnmatch.fnmatch(f.name, n) for n in names))
    named = [n for n in names if not n.endswith(".py")]
    tests = [t for t in tests_in(loader.loadTestsFromNames(files)) if thorough or not has_mark(t, "thorough")]
    tests += tests_in(loader.loadTestsFromNames(named))  # whoever names a test wants it
    assert not loader.errors, "\n".join(loader.errors)
    return tests


def find_units(names, thorough):
    """Those of many tests first: what takes long must not begin last."""
    classes = {}
    for test in load(names, thorough):
        whole = has_mark(test, "thorough") or has_mark(test, "whole_model")
        classes.setdefault((type(test), whole), []).append(test)
    units = [unit for (_, whole), tests in classes.items() for unit in units_of_class(tests, whole)]
    return sorted(units, key=lambda unit: (unit.alone, not unit.whole, not unit.shares, -len(unit.names)))


# --- a job: takes names of tests from stdin, writes what came out to stdout, a line of JSON each ---


class Timed(unittest.TextTestResult):
    """Remembers how long each test took, and which failed."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.seconds, self.bad, self.late = {}, {}, True

    def startTest(self, test):
        self.begin = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        self.seconds[test.id()] = time.monotonic() - self.begin
        super().stopTest(test)

    def _failed(self, test, error):
        from programs import Late

        name = getattr(test, "test_case", test).id()
        self.bad[re.sub(r"^\w+ \((.*)\)$", r"\1", name)] = True  # of "setUpClass (test_x.Class)" the class
        self.late = self.late and issubclass(error[0], Late)

    def addError(self, test, error):
        self._failed(test, error)
        super().addError(test, error)

    def addFailure(self, test, error):
        self._failed(test, error)
        super().addFailure(test, error)

    def addSubTest(self, test, subtest, error):
        if error:
            self._failed(test, error)
        super().addSubTest(test, subtest, error)


def run_unit(names):
    text, real = io.StringIO(), sys.stderr
    sys.stderr = text  # support.tell() writes there
    try:
        suite = unittest.TestLoader().loadTestsFromNames(names)
        result = unittest.TextTestRunner(stream=text, verbosity=2, resultclass=Timed).run(suite)
    finally:
        sys.stderr = real
    return {"text": text.getvalue(), "bad": list(result.bad), "late": result.late, "seconds": result.seconds,
            "skipped": [f"{test.id()}: {why}" for test, why in result.skipped]}


def work():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a test prints does not stand among the replies
    for line in sys.stdin:
        print(json.dumps(run_unit(json.loads(line))), file=replies, flush=True)


# --- all of them ---


class Job:
    """A process that runs units with one model: `small` where they need no other."""

    def __init__(self, whole, small):
        self.whole = whole
        model = {} if whole else {"INTEGRATION_MODEL": small}
        self.process = subprocess.Popen([sys.executable, __file__, "--job"], stdin=subprocess.PIPE, text=True,
                                        stdout=subprocess.PIPE, cwd=HERE, env={**os.environ, **model})

    def run(self, names):
        """What came out, or None and the process has ended."""
        self.process.stdin.write(json.dumps(names) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def end(self):
        self.process.stdin.close()
        return self.process.wait()


class Jobs:
    def __init__(self, units, count, small):
        self.small = small
        self.shared = collections.deque(u for u in units if not u.alone)
        self.alone = collections.deque(u for u in units if u.alone)
        self.again = collections.deque()
        self.count = count
        self.lock = threading.Lock()
        self.seconds, self.failed, self.flaky, self.skipped = {}, [], [], []

    def run(self):
        threads = [threading.Thread(target=self._run, args=(self.shared,)) for _ in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._run(self.alone)
        self._run(self.again)

    def _run(self, units):
        job = None
        while unit := self._next(units):
            if job and (units is self.again or job.whole != unit.whole):
                job.end()
                job = None
            job = job or Job(unit.whole, self.small)
            reply = job.run(unit.names)
            if not reply:  # its tests count as failed, the others go on in a new process
                text = f"the job ended with status {job.end()}: {' '.join(unit.names)}\n"
                reply = {"text": text, "bad": unit.names, "late": False, "seconds": {}, "skipped": []}
                job = None
            self._take(unit, reply, units is self.again)
        if job:
            job.end()

    def _next(self, units):
        with self.lock:
            return units.popleft() if units else None

    def _take(self, unit, reply, again):
        with self.lock:
            self.seconds.update(reply["seconds"])
            self.skipped += reply["skipped"]
            if reply["bad"] and reply["late"] and not again:
                self.again.append(unit)
            elif reply["bad"]:
                self.failed += reply["bad"]
            elif again:
                self.flaky += unit.names
            print(reply["text"], end="", flush=True)

    def is_red(self):
        return bool(self.failed) or len(self.flaky) > FLAKY_MAX

    def report(self, seconds):
        slowest = sorted(self.seconds.items(), key=lambda item: -item[1])
        for name, took in slowest[:SLOWEST]:
            print(f"{took:7.1f} s  {name}")
        for why in self.skipped:
            print("skipped:", why)
        verdict = "FAILED" if self.is_red() else "ok"
        print(f"{len(self.seconds)} tests in {seconds:.0f} s, {self.count} at a time: {verdict}")
        with open(os.environ.get("RESULTS", os.devnull), "a") as results:
            for word, names in (("FAILED", self.failed), ("FLAKY", self.flaky)):
                for name in names:
                    print(word, name)
                    print(word, name, file=results)
            for name, took in slowest:
                print(f"TOOK {took:.1f} {name}", file=results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--thorough", action="store_true", help="those that are marked so, too")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--list", action="store_true", help="only tell the units")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", default=["test_*.py"])
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if args.job:
        return work()
    if args.thorough:
        os.environ["INTEGRATION_THOROUGH"] = "1"
    import models

    units = find_units(args.names, args.thorough)
    if not units:
        sys.exit(f"no test is named {' or '.join(args.names)}")
    if args.list:
        return print("\n".join(("alone: " if u.alone else "") + " ".join(u.names) for u in units))
    with tempfile.TemporaryDirectory(prefix="tandem-model-") as folder:
        small = models.shallow_model(os.path.join(folder, "shallow.gguf"))
        jobs, begin = Jobs(units, args.jobs, small), time.monotonic()
        jobs.run()
    jobs.report(time.monotonic() - begin)
    sys.exit(1 if jobs.is_red() else 0)


if __name__ == "__main__":
    main()
