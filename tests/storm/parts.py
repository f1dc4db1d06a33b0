"""A long storm in parts: each is a storm of its own with the next seed, and leaves a line of JSON in a file.
Whoever calls again with the same file goes on where it ended, until its parts have as many faults as are
wanted."""

import pathlib
import signal
import subprocess
import sys

import figures

STORM = pathlib.Path(__file__).with_name("storm.py")
PART = 250  # faults


class Parts:
    def __init__(self, wanted, path, jobs, first_seed):
        self.wanted, self.path, self.jobs = wanted, path, jobs
        self.running = {}  # process: faults that it was asked for
        self.seed = max([first_seed - 1, *(part["seed"] for part in figures.read(path))])
        self.ends = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.end)

    def end(self, *_):
        """Those that run come to an early end, and count."""
        self.ends = True
        for process in self.running:
            process.terminate()

    def missing(self):
        have = sum(map(figures.count, figures.read(self.path)))
        return self.wanted - have - sum(self.running.values())

    def start(self, faults):
        self.seed += 1
        command = [sys.executable, STORM, str(faults), "--seed", str(self.seed), "--figures", self.path]
        process = subprocess.Popen(command, start_new_session=True)  # Ctrl-C is for us, who tell it
        self.running[process] = faults

    def run(self):
        """True: no part has found a broken promise."""
        while self.running or (not self.ends and self.missing() > 0):
            while not self.ends and len(self.running) < self.jobs and (missing := self.missing()) > 0:
                self.start(min(PART, missing))
            self.wait()
        parts = figures.read(self.path)
        total = figures.total(parts)
        figures.tell(total, f"{len(parts)} parts in {self.path}")
        return not total["broken"] and figures.count(total) >= self.wanted

    def wait(self):
        for process in list(self.running):
            try:
                process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            del self.running[process]
            if process.returncode not in (0, 1):
                raise SystemExit(f"a part ended with status {process.returncode}")
