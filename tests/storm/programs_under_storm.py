"""The programs of a storm: each can be killed, stopped and started again, and says when it has ended."""

import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess

from programs import DRAFT, TANDEM, TARGET
from tcp_line import HOST, TcpLine

TARGET_SESSIONS, CONTEXT = 8, 2048
ORCHESTRATOR_SESSIONS = 16
ENDS = 30.0  # seconds after which a program that was asked to end, and has nothing to do, must have ended
SETTLED = 5.0  # seconds after which a program has what memory it needs
# Below those that the kernel gives to who connects: a program that is away keeps its own.
PORTS = (20000, 30000)
CRASH = re.compile(r"Assertion|Sanitizer|runtime error|terminated by signal|stack smashing|corrupted")


def free_port():
    while True:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind((HOST, random.randrange(*PORTS)))
                return s.getsockname()[1]
            except OSError:
                continue


class Program:
    """One place: a command line that is started again and again."""

    def __init__(self, storm, name, command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL):
        self.storm, self.name, self.command = storm, name, [str(c) for c in command]
        self.stdin, self.stdout = stdin, stdout
        self.process, self.began, self.stopped, self.starts = None, 0.0, False, 0
        self.settled_kib = self.most_growth = self.most_files = 0
        self.log = storm.folder / f"{name}.log"

    def start(self, *more):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.command, *more], stdin=self.stdin, stdout=self.stdout,
                                            stderr=log, env={**os.environ, **self.storm.control.environment})
        self.began, self.stopped, self.settled_kib = self.storm.now(), False, 0
        self.starts += 1

    @property
    def runs(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self, stopped):
        self.process.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
        self.stopped = stopped

    @property
    def has_died(self):
        """By itself, and nobody has been told yet."""
        return self.process is not None and self.process.poll() is not None

    def died(self):
        """The exit status of a program that has died, and a sentence about it, once."""
        status, self.process = self.process.returncode, None
        return status, f"{self.name} ended by itself with status {status}"

    def ended(self):
        """A sentence, unless it ends well soon after it was asked to."""
        try:
            status = self.process.wait(timeout=ENDS)
        except subprocess.TimeoutExpired:
            return f"{self.name} does not end within {ENDS} s, although it was asked to"
        return f"{self.name} ended with status {status} when it was asked to" if status else None

    def measure(self):
        """Memory beyond what it had soon after its start, and open files."""
        try:
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
            self.most_files = max(self.most_files, len(os.listdir(f"/proc/{self.process.pid}/fd")))
        except OSError:
            return
        found = re.search(r"VmRSS:\s+(\d+)", status)
        if not found or self.storm.now() - self.began < SETTLED:
            return
        kib = int(found[1])
        self.settled_kib = self.settled_kib or kib
        self.most_growth = max(self.most_growth, kib - self.settled_kib)

    def crash_in_log(self):
        if not self.log.exists():
            return None
        found = [line for line in self.log.read_text("utf-8", "replace").splitlines() if CRASH.search(line)]
        return f"{self.name}: {found[0]}" if found else None


class Orchestrator(Program):
    """tandem serve-workers: request lines go in, results come out."""

    def __init__(self, storm, port):
        super().__init__(storm, "orchestrator",
                         [TANDEM, "serve-workers", "-m", storm.model, "--raw", "--ledger", storm.ledger,
                          "--listen", f"tcp://{HOST}:{port}", "--sessions", ORCHESTRATOR_SESSIONS],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.piece = b""

    def start(self, *more):
        super().start(*more)
        self.piece = b""
        os.set_blocking(self.process.stdout.fileno(), False)

    def ask(self, line):
        try:
            self.process.stdin.write(json.dumps(line).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died: seen a moment later

    def results(self):
        """What whole lines have come."""
        if self.process is None:
            return
        while data := read_some(self.process.stdout):
            self.piece += data
        *lines, self.piece = self.piece.split(b"\n")
        yield from map(json.loads, lines)

    def kill(self):
        """What it had written before is taken first, by whoever calls."""
        self.process.kill()
        self.process.wait()
        results = list(self.results())
        self.close_pipes()
        self.process = None
        return results

    def close_pipes(self):
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass


def read_some(pipe):
    try:
        return os.read(pipe.fileno(), 1 << 16)
    except BlockingIOError:
        return b""


class World:
    """An orchestrator, two targets and three drafts, with a line of its own between any two that talk."""

    def __init__(self, storm):
        port = free_port()
        self.orchestrator = Orchestrator(storm, port)
        self.lines, self.targets, self.drafts = {}, [], []
        for i, flags in enumerate((("--head", storm.head), ("--kv", "virtual"))):
            name, own = f"target-{i}", free_port()
            to_hub, to_drafts = self.line(name, port), self.line(f"drafts-of-{name}", own)
            self.targets.append(Program(storm, name, [
                TARGET, "-m", storm.model, "--orchestrator", to_hub, "--bind", f"tcp://{HOST}:{own}",
                "--advertise", to_drafts, "--sessions", TARGET_SESSIONS, "--ctx", CONTEXT, "--threads", 1,
                *flags]))
        methods = {"ngram": ("--draft", "ngram"),
                   "head": ("--draft", "eagle3,ngram", "-md", storm.head, "-m", storm.model, "--threads", 1),
                   "layers": ("--draft", "model", "-m", storm.model, "--draft-layers", 1, "--threads", 1)}
        for name, flags in methods.items():
            line = self.line(f"draft-{name}", port)
            self.drafts.append(Program(storm, f"draft-{name}", [DRAFT, "--orchestrator", line, *flags]))

    @property
    def programs(self):
        return [self.orchestrator, *self.targets, *self.drafts]

    def end(self):
        """Asks all programs to end; sentences about those that do not, or not well."""
        self.orchestrator.process.stdin.close()
        sentences = [self.orchestrator.ended()]
        for program in [*self.targets, *self.drafts]:
            program.process.terminate()
            sentences.append(program.ended())
        return list(filter(None, sentences))

    def line(self, name, port):
        self.lines[name] = TcpLine(port)
        return f"tcp://{HOST}:{self.lines[name].port}"

    def __enter__(self):
        for line in self.lines.values():
            line.__enter__()
        return self

    def __exit__(self, *_):
        for program in self.programs:
            if program.runs:
                program.process.kill()
                program.process.wait()
        for line in self.lines.values():
            line.__exit__()
