"""The kinds of faults: each does its harm, and says after how many seconds it is made good and how."""

import sqlite3

SHORTEST, LONGEST = 0.1, 5.0  # seconds of what passes
AWAY = 1.5  # most seconds until a killed program is started again
SLOW = 0.2  # most seconds that a slow line delays
HOUR = 3600
JUMPS = (-30 * 24 * HOUR, -HOUR, -60, -1, 1, 60, HOUR, 30 * 24 * HOUR)  # seconds of the wall clock
PACES = ("lockstep", "free")


def duration(rng):
    """Short ones are more frequent."""
    return SHORTEST * (LONGEST / SHORTEST) ** rng.random()


def kill(storm, program):
    if not program.runs:
        return None
    program.kill()
    return storm.rng.random() * AWAY, program.start


def kill_target(storm):
    return kill(storm, storm.rng.choice(storm.world.targets))


def kill_draft(storm):
    return kill(storm, storm.rng.choice(storm.world.drafts))


def kill_orchestrator(storm):
    program = storm.world.orchestrator
    if not program.runs or storm.clients.lost_sight:
        return None
    storm.clients.take(program.kill())
    return storm.rng.random() * AWAY, storm.start_orchestrator


def kill_run(storm):
    """One that is started for it."""
    if not storm.clients.free_runs:
        return None
    storm.clients.start_run(storm.rng.uniform(0.05, 1.0))
    return 0.0, lambda: None


def stop(storm, program):
    if not program.runs or program.stopped:
        return None
    program.stop(True)
    starts = program.starts
    return duration(storm.rng), lambda: program.runs and program.starts == starts and program.stop(False)


def stop_target(storm):
    return stop(storm, storm.rng.choice(storm.world.targets))


def stop_draft(storm):
    return stop(storm, storm.rng.choice(storm.world.drafts))


def stop_orchestrator(storm):
    return stop(storm, storm.world.orchestrator)


def choose_line(storm):
    return storm.rng.choice(list(storm.world.lines.values()))


def cut_line(storm):
    choose_line(storm).cut()
    return 0.0, lambda: None


def dead_line(storm):
    line = choose_line(storm)
    if line.stopped:
        return None
    line.stopped = True
    return duration(storm.rng), lambda: setattr(line, "stopped", False)


def slow_line(storm):
    line = choose_line(storm)
    if line.delay:
        return None
    line.delay = storm.rng.uniform(0.001, SLOW)
    return duration(storm.rng), lambda: setattr(line, "delay", 0.0)


def full_disk(storm):
    if storm.control.disk_full:
        return None
    storm.control.fill_disk(True)
    return duration(storm.rng), lambda: storm.control.fill_disk(False)


def foreign_lock(storm):
    if storm.locked or not storm.ledger.exists():
        return None
    database = sqlite3.connect(storm.ledger, timeout=0, isolation_level=None)
    try:
        database.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:  # somebody writes at this moment
        database.close()
        return None
    storm.locked = True

    def release():
        database.execute("ROLLBACK")
        database.close()
        storm.locked = False

    return duration(storm.rng), release


def clock_jump(storm):
    storm.control.set_clock(storm.rng.choice(JUMPS))
    return 0.0, lambda: None


KINDS = {  # what it is called: how often among a hundred, what it does
    "target killed": (13, kill_target),
    "draft killed": (10, kill_draft),
    "orchestrator killed": (4, kill_orchestrator),
    "run killed": (7, kill_run),
    "target stopped": (10, stop_target),
    "draft stopped": (10, stop_draft),
    "orchestrator stopped": (5, stop_orchestrator),
    "line cut": (13, cut_line),
    "line dead": (9, dead_line),
    "line slow": (9, slow_line),
    "disk full": (3, full_disk),
    "ledger locked": (3, foreign_lock),
    "clock jump": (4, clock_jump)}
# A program that is stopped in the midst of a transaction keeps the lock.
OF_THE_LEDGER = ("disk full", "ledger locked", "orchestrator stopped")
