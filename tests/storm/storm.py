#!/usr/bin/env python3
"""Real programs in a storm: one orchestrator, two targets and three drafts answer all the time, while they
are killed and stopped, the lines between them are cut, dead or slow, the ledger's disk is full or its file
locked, and the wall clock jumps. Every answer must be the undisturbed one, none may be lost or stuck, and
what was shown must be in the ledger.

The last line of stdout counts; the exit status is 1 when a promise was broken, and the folder of the storm is
then kept. SIGTERM or Ctrl-C ends it early; what there was counts. The seed decides the faults and their
moments; when they meet what, real processes decide."""

import argparse
import collections
import heapq
import itertools
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]

import figures  # noqa: E402
import tiny  # noqa: E402
from clients import Clients, Differs  # noqa: E402
from control import Control  # noqa: E402
from faults import KINDS, OF_THE_LEDGER, PACES  # noqa: E402
from parts import Parts  # noqa: E402
from programs import BIN, TANDEM, make_keys  # noqa: E402
from programs_under_storm import World  # noqa: E402

EVERY = 0.2  # seconds between two faults, in the mean
IO_STATUS = 8  # of a program that cannot use its ledger
TURN = 0.01  # seconds
STOOD_STILL = 1.0  # seconds that no turn takes: the whole machine was stopped, which is nobody's fault
MEASURED = 1.0  # seconds between two looks at memory and files

BOUND = 120  # seconds after which an answer counts as stuck
MOST_FILES, MOST_GROWTH_KIB = 256, 32 << 10  # of one program

class Storm:
    def __init__(self, options, folder):
        self.folder, self.seed, self.verbose = folder, options.seed, options.verbose
        self.rng = random.Random(options.seed)
        self.ledger = folder / "ledger.sqlite"
        self.version = subprocess.check_output([TANDEM, "--version"], text=True).splitlines()[0]
        make_keys()
        self.control = Control(folder / "control", BIN / "storm_shim.so")
        self.model, self.head = tiny.make(folder)
        self.locked, self.began, self.counts = False, time.monotonic(), collections.Counter()
        self.stood_still, self.turned = 0.0, self.began
        self.repairs, self.order, self.broken = [], itertools.count(), []
        self.lives, self.ills, self.ill_until = 0, 0, 0.0
        self.ends = False  # on request, before all faults
        self.clients = Clients(self, random.Random(f"{options.seed} clients"))
        self.world = World(self)

    def now(self):
        """Seconds, without those for which the machine stood still."""
        return time.monotonic() - self.stood_still

    def say(self, text):
        if self.verbose:
            print(f"{time.monotonic() - self.began:8.2f} {text}", flush=True)

    def start_orchestrator(self):
        """In lockstep every other time: there each draft counts."""
        again = self.lives > 0
        self.world.orchestrator.start("--pace", PACES[self.lives % len(PACES)])
        self.lives += 1
        if again:
            self.clients.orchestrator_died()

    # Faults.

    def fault(self):
        """One of a kind that is possible at this moment."""
        names = list(KINDS)
        while True:
            name, = self.rng.choices(names, [KINDS[n][0] for n in names])
            if repair := KINDS[name][1](self):
                break
        seconds, action = repair
        of_the_ledger = name in OF_THE_LEDGER
        self.ills += of_the_ledger
        self.counts[name] += 1
        self.say(f"{name}, {seconds:.2f} s")
        heapq.heappush(self.repairs, (self.now() + seconds, next(self.order), action, of_the_ledger))

    def repair(self, all_of_them=False):
        while self.repairs and (all_of_them or self.repairs[0][0] <= self.now()):
            _, _, action, of_the_ledger = heapq.heappop(self.repairs)
            action()
            if of_the_ledger:
                self.ills -= 1
                self.ill_until = self.now()

    def excuses(self, status, began):
        """Who began then and ended by itself: it may say that it could not use the ledger, if that was so
        meanwhile."""
        return status == IO_STATUS and (self.ills > 0 or self.ill_until > began)

    # Promises.

    def guard(self, action, *arguments):
        try:
            action(*arguments)
        except Differs as e:
            self.broken.append(str(e))
            self.say(f"BROKEN: {e}")

    def turn(self):
        world, clients = self.world, self.clients
        took = time.monotonic() - self.turned
        self.turned += took
        self.stood_still += took if took > STOOD_STILL else 0
        self.repair()
        died = [p for p in world.programs if p.has_died]  # before their last words are taken
        self.guard(clients.take, world.orchestrator.results())
        self.guard(clients.turn)
        for program in died:
            self.start_again(program)
        time.sleep(TURN)

    def start_again(self, program):
        """It has ended by itself. Only an orchestrator may: it refuses a ledger that it cannot open."""
        status, sentence = program.died()
        is_orchestrator = program is self.world.orchestrator
        if not is_orchestrator or not self.excuses(status, program.began):
            self.broken.append(sentence)
        self.start_orchestrator() if is_orchestrator else program.start()

    def measure(self):
        for program in self.world.programs:
            if program.runs:
                program.measure()

    # The whole.

    def run(self, faults, seconds):
        for program in [*self.world.targets, *self.world.drafts]:
            program.start()
        self.start_orchestrator()
        self.turned = time.monotonic()
        next_fault = next_look = 0.0
        while sum(self.counts.values()) < faults and not self.over(seconds) and not self.broken:
            now = self.now()
            if now >= next_fault and self.clients.answers:
                self.fault()
                next_fault = now + self.rng.expovariate(1 / EVERY)
            if now >= next_look:
                self.measure()
                next_look = now + MEASURED
                self.bound()
            if self.world.orchestrator.runs:
                self.clients.ask()
            self.turn()
        self.calm()

    def over(self, seconds):
        return self.ends or (seconds and time.monotonic() > self.began + seconds)

    def bound(self):
        seconds, id = self.clients.oldest()
        if seconds > BOUND:
            self.broken.append(f"stuck: {id} has not been answered for {seconds:.0f} s")

    def calm(self):
        """All is made good, and what is under way comes to its end; then the ledger and the programs do."""
        self.repair(all_of_them=True)
        self.settle()
        self.clients.look(self.clients.at_rest)
        self.clients.help(["session", "check", "--ledger", self.ledger], lambda text: None)
        self.settle()
        if not self.broken:
            self.broken += self.world.end()
        for program in self.world.programs:
            if sentence := program.crash_in_log():
                self.broken.append(sentence)
            if program.most_files > MOST_FILES or program.most_growth > MOST_GROWTH_KIB:
                grown = f"{program.most_growth} KiB, to {program.most_files} files"
                self.broken.append(f"{program.name} grew by {grown}")

    def settle(self):
        while self.clients.busy and not self.broken:
            self.bound()
            self.turn()


def end_early(storm):
    def end(*_):
        storm.ends = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def one_storm(options):
    """True: no promise was broken."""
    folder, began = pathlib.Path(tempfile.mkdtemp(prefix="tandem-storm-")), time.monotonic()
    storm = Storm(options, folder)
    end_early(storm)
    with storm.world:
        storm.run(options.faults, options.seconds)
    found = figures.of(storm, time.monotonic() - began)
    figures.tell(found, f"seed {options.seed}")
    if options.figures:
        figures.append(options.figures, found)
    if storm.broken or options.keep:
        print(f"storm: logs and ledger are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return not storm.broken


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("faults", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0, help="end after so long, whatever the count")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs and the ledger")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell of each fault")
    parser.add_argument("--figures", type=pathlib.Path, metavar="FILE", help="add a line of JSON to it")
    parser.add_argument("--parts", type=pathlib.Path, metavar="FILE",
                        help="storms with the seeds that follow, until those in FILE have so many faults")
    parser.add_argument("--jobs", type=int, default=1, help="parts at a time")
    options = parser.parse_args()
    if options.parts:
        well = Parts(options.faults, options.parts, options.jobs, options.seed).run()
    else:
        well = one_storm(options)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
