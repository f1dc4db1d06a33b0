#!/usr/bin/python3
"""Breaks a rule on purpose, one mutant of a table at a time, and requires that the test which the mutant
names notices: the simulation, or a unit test. A mutant that survives is a hole.

mutants.py [--table FILE] [--build FOLDER] [--seeds N] [NAME...]

A mutant replaces pieces of text, wherever they now stand: each must occur exactly once in the sources
and headers of the programs, or in the function that the mutant names (`in`), and white space does not
count. Only a source that the mutant changes is compiled, or that includes a header that it changes: its
object is linked before the libraries of a finished build, and so takes the place of theirs. CUDA sources
are those of the emulated device, which needs neither nvcc nor a GPU.
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
NOTICED = re.compile(r"seed \d+ FAILED: [^(]*|Assertion.*|\[  FAILED  \] \w+|(ERROR|shim): .*|"
                     r"\S+: error: Failure!")
HEADERS = (".h", ".cuh")
CPU_LIMIT = 600  # seconds of a processor, six times what the simulation takes: no end has been noticed
TIME_LIMIT = 1800  # seconds; the same for one that sleeps, on a machine that may be busy


class Unfit(Exception):
    """A mutant that cannot be tried: its text has changed, or what comes out does not compile."""


def pattern_of(text):
    """Matches `text` however it is broken into lines."""
    tokens = re.findall(r"\w+|\S", text)
    return re.compile(r"\s*".join(map(re.escape, tokens)))


def commands_of(build, program):
    """How each source of a program is compiled, by its path: for the simulation with other limits, say. Those
    of CUDA devices are there twice where there is nvcc."""
    ask, found = ["ninja", "-C", build, "-t", "commands", program], {}
    for line in subprocess.check_output(ask, text=True).splitlines():
        if " -c " not in line:
            continue
        command = shlex.split(line)
        path = os.path.relpath(command[command.index("-c") + 1], ROOT)
        if path not in found or "-DTANDEM_CUDA_EMULATED" in command:
            found[path] = command
    return found


class Builder:
    def __init__(self, build, work):
        self.build, self.work = build, work
        files = [pathlib.Path(c["file"]) for c in json.loads((build / "compile_commands.json").read_text())]
        files += [h for room in ROOMS for h in (ROOT / room).rglob("*") if h.suffix in HEADERS]
        paths = [str(f.relative_to(ROOT)) for f in files]
        self.sources = {p: (ROOT / p).read_text() for p in paths if p.split("/")[0] in ROOMS}
        self.compile, self.links, self.includes = {}, {}, self.read_includes()

    def read_includes(self):
        """The files that each object was made of, as the build knows them."""
        text, found = subprocess.check_output(["ninja", "-C", self.build, "-t", "deps"], text=True), {}
        for part in text.split("\n\n"):
            head, *files = part.strip().splitlines() or [""]
            found[head.split(": #deps")[0]] = {os.path.normpath(self.build / f.strip()) for f in files}
        return found

    def made_of(self, program, files):
        """How the program's sources among these files are compiled, and those that include one of the headers
        among them."""
        if program not in self.compile:
            self.compile[program] = commands_of(self.build, program)
        headers = {str(ROOT / path) for path in files if path.endswith(HEADERS)}
        return [(p, c) for p, c in self.compile[program].items() if p in self.sources and
                (p in files or headers & self.includes.get(c[c.index("-o") + 1], set()))]

    def functions(self, name):
        """(path, begin, end) of the definitions of a function; of whole files when there is no name."""
        for path, source in self.sources.items():
            if not name:
                yield path, 0, len(source)
                continue
            for found in re.finditer(rf"^[A-Za-z][^\n;]*\b{name}\([^;{{}}]*\) \{{\n", source, re.M):
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

    def compiled(self, name, program, files):
        """The objects that come out with the new text of these files."""
        for path, source in files.items():
            (self.work / name / path).parent.mkdir(parents=True, exist_ok=True)
            (self.work / name / path).write_text(source)
        made = [self.compiled_one(name, program, path, list(command), path in files)
                for path, command in self.made_of(program, files)]
        if not made:
            raise Unfit(f"{program} is made of none of the files that it changes")
        return made

    def compiled_one(self, name, program, path, command, is_changed):
        source = (self.work / name if is_changed else ROOT) / path
        out = self.work / name / program / f"{path}.o"
        out.parent.mkdir(parents=True, exist_ok=True)
        command[command.index("-o") + 1], command[command.index("-c") + 1] = str(out), str(source)
        first = next(i for i, word in enumerate(command) if word.startswith("-I"))
        command[first:first] = [f"-I{self.work / name}", f"-iquote{(ROOT / path).parent}", "-Wno-error", "-w"]
        done = subprocess.run(command, cwd=self.build, capture_output=True, text=True)
        if done.returncode:
            raise Unfit(f"it does not compile: {done.stderr[:500]}")
        return out

    def linked(self, name, program, objects):
        if program not in self.links:
            ask = ["ninja", "-C", self.build, "-t", "commands", program]
            commands = subprocess.check_output(ask, text=True)
            link = commands.splitlines()[-1].removeprefix(": && ").removesuffix(" && :")
            self.links[program] = shlex.split(link)
        command, out = list(self.links[program]), self.work / name / program / program
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
    first_failure = dict(os.environ, CMOCKA_TEST_ABORT="1")  # is enough
    try:
        command = ["prlimit", f"--cpu={CPU_LIMIT}", program, *flags]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace",
                              env=first_failure, timeout=TIME_LIMIT)
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
        changed = builder.changed(mutant)
        for program in mutant["caught_by"]:
            objects = builder.compiled(name, program, changed)
            if said := noticed(builder.linked(name, program, objects), seeds):
                return True, f"  killed    {name} ({program}): {said}"
    except Unfit as e:
        return False, f"  UNFIT     {name}: {e}"
    return False, f"  SURVIVED  {name} ({', '.join(mutant['caught_by'])})"


def check_unchanged(build, programs, args):
    """A test that fails anyway catches nothing."""
    for program in programs:
        if not (build / "bin" / program).exists():
            sys.exit(f"mutants: {program}, which catches some, is not there: a new name?")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        said = pool.map(lambda p: (p, noticed(build / "bin" / p, args.seeds // 20)), sorted(programs))
        for program, text in said:
            if text:
                sys.exit(f"mutants: {program} fails on the unchanged source: {text}")


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
    check_unchanged(build, {p for m in mutants for p in m["caught_by"]}, args)
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
