#!/usr/bin/env python3
"""Command lines of the three programs, drawn from their own flags with odd values: each must end soon with a
status that --help names, with an error where it refuses, and never by a signal. The last line counts.

    command_lines.py [--seconds T] [--lines N] [--seed S]
"""

import argparse
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "build/release/bin"))
COMMANDS = [c.split() for c in (
    "tandem", "tandem run", "tandem batch", "tandem serve-workers", "tandem session", "tandem session list",
    "tandem session show", "tandem session resume", "tandem session rollback", "tandem session export",
    "tandem session import", "tandem session check", "tandem session repair", "tandem session end",
    "tandem status", "tandem tokenize", "tandem detokenize", "tandem doctor", "tandem bench",
    "tandem bench spec", "tandem convert-head", "tandem-target", "tandem-draft")]
VALUES = [
    "", "0", "1", "-1", "2147483648", "99999999999999999999", "1e9", "nan", "inf", "-0", "0x10", " 1", "1 ",
    "none", "auto", "c", "ngram", "model", "eagle3", "ngram,", ",", "replay:", "replay:f:2",
    "replay:f:0.5:0.5:1", "f", "/", ".", "/dev/null", "/dev/zero", "no/such/file",
    "ipc://", "ipc://x", "tcp://", "tcp://127.0.0.1:0",
    "tcp://127.0.0.1:99999", "tcp://*:1", "inproc://a", "%s%n", "\u00e9\u4e2d", "a" * 5000, "\x1b[2J",
    "always", "lockstep", "virtual", "cuda:0", "cpu", "far:cpu", "emulated:9", "1G", "-1M", "17E", "30d", "d",
    "1,2,3", "0-", "9999", "int8", "q8_0", "--", "-", "-m"]
LIMIT = 20.0  # seconds for one line to end
STATUSES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 129, 130, 143}
ENDED_HERE = -15  # by the SIGTERM of a program that rightly waits


def flags_of(command, environment):
    """What --help lists."""
    done = subprocess.run([BIN / command[0], *command[1:], "--help"], capture_output=True, env=environment,
                          stdin=subprocess.DEVNULL, timeout=LIMIT)
    text = done.stdout.decode("utf-8", "replace")
    return re.findall(r"^\s+(?:-\w, )?(--[a-z-]+)", text, re.M) + re.findall(r"^\s+(-\w),", text, re.M)


def draw(rng, command, flags):
    line = list(command)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 12))):
        flag, value = rng.choice(flags or ["--help"]), rng.choice(VALUES)
        form = rng.random()
        line += [f"{flag}={value}"] if form < 0.5 else [flag, value] if form < 0.8 else [flag]
    if rng.random() < 0.5:
        line.append(rng.choice(VALUES))
    if rng.random() < 0.1:
        line.append(f"--{rng.choice(VALUES)}")
    return [part.replace("\0", "") for part in line]


def trouble(line, folder, environment):
    """What was wrong with its end; None: nothing."""
    process = subprocess.Popen([BIN / line[0], *line[1:]], cwd=folder, env=environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        errors = process.communicate(timeout=1.0)[1]
    except subprocess.TimeoutExpired:  # it waits for a peer, as it was told
        process.terminate()
        try:
            errors = process.communicate(timeout=LIMIT)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"it did not end within {LIMIT:.0f} s of SIGTERM"
    status = process.returncode
    if status not in STATUSES and status != ENDED_HERE:
        return f"status {status}: {errors[-300:]}"
    if status not in (0, 129, 130, 143, ENDED_HERE) and not errors.strip():
        return f"status {status} without a word"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--lines", type=int, default=1 << 60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, count, found = random.Random(options.seed), 0, 0
    with tempfile.TemporaryDirectory(prefix="tandem-lines-") as folder:
        pathlib.Path(folder, "f").write_bytes(b"{}\n")
        environment = {**os.environ, "XDG_STATE_HOME": folder, "HOME": folder, "NO_COLOR": "1"}
        environment = {k: v for k, v in environment.items() if not k.startswith("TANDEM_")}
        flags = {tuple(c): flags_of(c, environment) for c in COMMANDS}
        end = time.monotonic() + options.seconds
        while count < options.lines and time.monotonic() < end:
            command = rng.choice(COMMANDS)
            line = draw(rng, command, flags[tuple(command)])
            count += 1
            if sentence := trouble(line, folder, environment):
                found += 1
                print(f"{line}: {sentence}")
    print(f"lines: {count}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
