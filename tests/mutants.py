#!/usr/bin/python3
"""Breaks a rule on purpose, one mutant of a table at a time, and requires that the test which the mutant
names notices: the simulation, a unit test, or, as test_pair.Pair.test_ngram, an integration test, which
gets the programs with the mutant in them. A mutant that survives is a hole.

mutants.py [--table FILE] [--build FOLDER]... [--seeds N] [--sample N] [NAME...]

A mutant replaces pieces of text, wherever they now stand: each must occur exactly once in the sources and
headers of the programs, or in the function that the mutant names (`in`), and white space does not count.
Only a source that the mutant changes is compiled, or that includes a header that it changes: its object is
linked before the libraries of a finished build, and so takes the place of theirs. CUDA sources are those of
the emulated device, which needs neither nvcc nor a GPU. Where several builds are named, a program is that
of the first which has it.

With --sample, N of them are tried: first those of files, or of tests, that the last day before the newest
commit has changed, then others; which ones depends on the commit alone. The text of all of them must still
be there.

RESULTS names a file to which a line is added for every mutant that is FAILED, and for what each TOOK.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROOMS = ("common", "kernels", "wire", "draft_worker", "target_worker", "orchestrator")
NOTICED = re.compile(r"seed \d+ FAILED: [^(]*|Assertion.*|\[  FAILED  \] \w+|(ERROR|shim): .*|"
                     r"\S+: error: Failure!|FAILED test_\S+")
HEADERS = (".h", ".cuh")
# Those that integration tests run.
PROGRAMS = ("tandem", "tandem-target", "tandem-draft", "tandem-operate", "tandem-bench")
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
        out = self.work / name / program / program
        own = tuple(f"/{o.relative_to(out.parent)}" for o in objects)  # as a main.c's, which is in no library
        command = [word for word in self.links[program] if not word.endswith(own)]
        first = next(i for i, word in enumerate(command) if word.endswith(".a"))
        command[first:first] = map(str, objects)
        command[command.index("-o") + 1] = str(out)
        done = subprocess.run(command, cwd=self.build, capture_output=True, text=True)
        if done.returncode:
            raise Unfit(f"it does not link: {done.stderr[:500]}")
        return out


def is_integration(test):
    return "." in test


def command_of(folder, test, seeds):
    """What runs a test with the programs of this folder."""
    if is_integration(test):
        return [sys.executable, ROOT / "tests/integration/run.py", "--jobs", "1", test]
    return [folder / test] + (["--threads", "1", "--count", str(seeds)] if test == "sim" else [])


def noticed(folder, test, seeds):
    """What a test says of a mistake in the programs of this folder, or None when it passes."""
    env = dict(os.environ, TANDEM_BIN=str(folder), RESULTS=os.devnull)
    env["CMOCKA_TEST_ABORT"] = "1"  # the first failure is enough
    try:
        command = ["prlimit", f"--cpu={CPU_LIMIT}", *command_of(folder, test, seeds)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace",
                              env=env, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return f"no end after {TIME_LIMIT} s"
    if done.returncode == 0:
        return None
    said = NOTICED.search(done.stdout + done.stderr)
    return said[0].strip() if said else f"status {done.returncode}"


def programs_with(builder, name, test, changed):
    """The folder of the programs that the test needs, in which the mutant is."""
    folder = builder.work / name / test / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    found = False
    for program in PROGRAMS if is_integration(test) else [test]:
        objects = builder.compiled(name, program, changed)
        if objects:
            builder.linked(name, program, objects).rename(folder / program)
        else:
            # No link, because tandem starts the workers that lie beside it.
            shutil.copy(builder.build / "bin" / program, folder)
        found = found or bool(objects)
    if not found:
        raise Unfit(f"{test} is made of none of the files that it changes")
    return folder


def try_one(builders, mutant, seeds):
    """(caught, what to say of it, how many seconds it took)"""
    begin = time.monotonic()
    return *tried(builders, mutant, seeds), time.monotonic() - begin


def tried(builders, mutant, seeds):
    name = mutant["name"]
    try:
        for test in mutant["caught_by"]:
            builder = builders[test]
            folder = programs_with(builder, name, test, builder.changed(mutant))
            if said := noticed(folder, test, seeds):
                return True, f"  killed    {name} ({test}): {said}"
    except Unfit as e:
        return False, f"  UNFIT     {name}: {e}"
    return False, f"  SURVIVED  {name} ({', '.join(mutant['caught_by'])})"


def check_unchanged(builders, tests, args):
    """A test that fails anyway catches nothing. Without names the other stages have run all of them."""
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        said = pool.map(lambda t: (t, noticed(builders[t].build / "bin", t, args.seeds // 20)), sorted(tests))
        for test, text in said:
            if text:
                sys.exit(f"mutants: {test} fails on the unchanged source: {text}")


def is_written(test):
    """Whether there is an integration test of this name."""
    module, of, name = test.split(".")
    source = ROOT / f"tests/integration/{module}.py"
    text = source.read_text() if source.exists() else ""
    return f"class {of}(" in text and f"def {name}(" in text


def builders_of(builds, tests, work):
    """For each test the builder of the first build that has its program."""
    made, found = {}, {}
    for test in tests:
        if is_integration(test) and not is_written(test):
            sys.exit(f"mutants: {test}, which catches some, is not there: a new name?")
        program = PROGRAMS[0] if is_integration(test) else test
        build = next((b.resolve() for b in builds if (b / "bin" / program).exists()), None)
        if not build:
            sys.exit(f"mutants: {test}, which catches some, is not there: a new name?")
        if build not in made:
            made[build] = Builder(build, work / build.name)
        found[test] = made[build]
    return found


def git(*words):
    return subprocess.check_output(["git", "-C", ROOT, *words], text=True).strip()


def sample_of(mutants, builders, count):
    """(those to try, how many are unfit): see above."""
    head, moment = git("log", "-1", "--format=%H %ct").split()
    before = git("rev-list", "-1", f"--before={int(moment) - 86400}", "HEAD")
    touched = set(git("diff", "--name-only", before, "HEAD").splitlines()) if before else set()
    unfit, order = 0, []
    for m in mutants:
        try:
            files = set(builders[m["caught_by"][0]].changed(m))
        except Unfit as e:
            print(f"  UNFIT     {m['name']}: {e}", flush=True)
            unfit += 1
            continue
        files |= {f for f in touched if pathlib.Path(f).stem in m["caught_by"]}
        draw = hashlib.sha256(f"{head} {m['name']}".encode()).digest()
        order.append((not files & touched, draw, m["name"], m))
    return [m for *_, m in sorted(order)[:count]], unfit


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=pathlib.Path, default=ROOT / "tests/mutants.toml")
    parser.add_argument("--build", type=pathlib.Path, action="append", help="a finished build")
    parser.add_argument("--seeds", type=int, default=20000)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    mutants = tomllib.loads(args.table.read_text())["mutant"]
    mutants = [m for m in mutants if not args.names or m["name"] in args.names]
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        builds = args.build or [ROOT / "build/release"]
        builders = builders_of(builds, {t for m in mutants for t in m["caught_by"]}, pathlib.Path(work))
        unfit = 0
        if args.sample:
            mutants, unfit = sample_of(mutants, builders, args.sample)
        if args.names:
            check_unchanged(builders, {t for m in mutants for t in m["caught_by"]}, args)
        caught = 0
        with open(os.environ.get("RESULTS", os.devnull), "a") as results:
            done = pool.map(lambda m: try_one(builders, m, args.seeds), mutants)
            for m, (ok, text, seconds) in zip(mutants, done):
                caught += ok
                print(text, flush=True)
                print(f"TOOK {seconds:.1f} {m['name']}", file=results, flush=True)
                if not ok:
                    print("FAILED", m["name"], file=results, flush=True)
    print(f"mutants: {len(mutants)} tried, {caught} killed")
    sys.exit(0 if mutants and caught == len(mutants) and not unfit else 1)


if __name__ == "__main__":
    main()
