#!/usr/bin/python3
"""Breaks a rule on purpose, one mutant of a table at a time, and requires that the test which the mutant
names notices: the simulation, or a unit test. A mutant that survives is a hole.

mutants.py [--table FILE] [--build FOLDER] [--seeds N] [NAME...]

A mutant replaces pieces of text, wherever they now stand: each must occur exactly once in the C files
of the programs, or in the function that the mutant names (`in`), and white space does not count.
Nothing is copied, and only a file that the mutant changes is compiled: its object is linked before the
libraries of a finished build, and so takes the place of theirs.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROOMS = ("common", "kernels", "wire", "draft_worker", "target_worker", "orchestrator")
NOTICED = re.compile(r"seed \d+ FAILED: [^(]*|Assertion.*|\[  FAILED  \] \w+|ERROR: AddressSanitizer.*")
TIME_LIMIT = 300  # seconds; a test that hangs has noticed as well


class Unfit(Exception):
    """A mutant that cannot be tried: its text has changed, or what comes out does not compile."""


def pattern_of(text):
    """Matches `text` however it is broken into lines."""
    tokens = re.findall(r"\w+|\S", text)
    return re.compile(r"\s*".join(map(re.escape, tokens)))


class Builder:
    def __init__(self, build, work):
        self.build, self.work = build, work
        commands = json.loads((build / "compile_commands.json").read_text())
        self.compile = {str(pathlib.Path(c["file"]).relative_to(ROOT)): c for c in commands}
        self.sources = {p: (ROOT / p).read_text() for p in self.compile if p.split("/")[0] in ROOMS}
        self.links = {}

    def functions(self, name):
        """(path, begin, end) of the definitions of a function; of whole files when there is no name."""
        for path, source in self.sources.items():
            if not name:
                yield path, 0, len(source)
                continue
            for found in re.finditer(rf"^[a-z][^\n;]*\b{name}\([^;{{}}]*\) \{{\n", source, re.M):
                yield path, found.start(), source.index("\n}\n", found.start())

    def changed(self, mutant):
        """The files that the mutant changes, by path, with their new text."""
        places = list(self.functions(mutant.get("in")))
        found = {}
        for old, new in mutant["replace"]:
            pattern = pattern_of(old)
            hits = [(path, m) for path, *span in places for m in pattern.finditer(self.sources[path], *span)]
            if len(hits) != 1:
                raise Unfit(f"this must be there once, not {len(hits)} times: {old}")
            path, hit = hits[0]
            found.setdefault(path, []).append((hit.start(), hit.end(), new))
        changed = {}
        for path, edits in found.items():
            changed[path] = self.sources[path]
            for begin, end, new in sorted(edits, reverse=True):
                changed[path] = changed[path][:begin] + new + changed[path][end:]
        return changed

    def compiled(self, name, path, source):
        file = self.work / name / pathlib.Path(path).name
        out = file.with_suffix(".o")
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
        entry = self.compile[path]
        command = shlex.split(entry["command"])
        command[command.index("-o") + 1], command[command.index("-c") + 1] = str(out), str(file)
        command += [f"-iquote{(ROOT / path).parent}", "-Wno-error", "-w"]
        done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True)
        if done.returncode:
            raise Unfit(f"it does not compile: {done.stderr[:500]}")
        return out

    def linked(self, name, program, objects):
        if program not in self.links:
            ask = ["ninja", "-C", self.build, "-t", "commands", program]
            commands = subprocess.check_output(ask, text=True)
            link = commands.splitlines()[-1].removeprefix(": && ").removesuffix(" && :")
            self.links[program] = shlex.split(link)
        command, out = list(self.links[program]), self.work / name / program
        first = next(i for i, word in enumerate(command) if word.endswith(".a"))
        command[first:first] = map(str, objects)
        command[command.index("-o") + 1] = str(out)
        done = subprocess.run(command, cwd=self.build, capture_output=True, text=True)
        if done.returncode:
            raise Unfit(f"it does not link: {done.stderr[:500]}")
        return out


def noticed(program, seeds):
    """What the program says of a mistake, or None when it passes."""
    flags = ["--threads", "1", "--count", str(seeds)] if program.name == "sim" else []
    try:
        done = subprocess.run([program, *flags], cwd=ROOT, capture_output=True, text=True, errors="replace",
                              timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return f"no end after {TIME_LIMIT} s"
    if done.returncode == 0:
        return None
    said = NOTICED.search(done.stdout + done.stderr)
    return said[0].strip() if said else f"status {done.returncode}"


def try_one(builder, mutant, seeds):
    """(caught, what to say of it)"""
    name = mutant["name"]
    try:
        objects = [builder.compiled(name, *file) for file in builder.changed(mutant).items()]
        for program in mutant["caught_by"]:
            if said := noticed(builder.linked(name, program, objects), seeds):
                return True, f"  killed    {name} ({program}): {said}"
    except Unfit as e:
        return False, f"  UNFIT     {name}: {e}"
    return False, f"  SURVIVED  {name} ({', '.join(mutant['caught_by'])})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=pathlib.Path, default=ROOT / "tests/mutants.toml")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="a finished build")
    parser.add_argument("--seeds", type=int, default=20000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    mutants = tomllib.loads(args.table.read_text())["mutant"]
    mutants = [m for m in mutants if not args.names or m["name"] in args.names]
    build = args.build.resolve()
    for program in sorted({p for m in mutants for p in m["caught_by"]}):
        if not (build / "bin" / program).exists():
            sys.exit(f"mutants: {program}, which catches some, is not there: a new name?")
        if said := noticed(build / "bin" / program, args.seeds // 20):
            sys.exit(f"mutants: {program} fails on the unchanged source: {said}")
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        builder = Builder(build, pathlib.Path(work))
        caught = 0
        for ok, text in pool.map(lambda m: try_one(builder, m, args.seeds), mutants):
            caught += ok
            print(text, flush=True)
    print(f"mutants: {len(mutants)} tried, {caught} killed")
    sys.exit(0 if mutants and caught == len(mutants) else 1)


if __name__ == "__main__":
    main()
