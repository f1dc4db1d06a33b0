"""Orchestrator, draft and target with a line between draft and target that is long or bad: three hosts that
are network namespaces of this one, or, where those are not permitted, three programs here and a TcpLine."""

import contextlib
import json
import os
import random
import socket
import subprocess
import time

from hosts import Hosts
from programs import TIME_LIMIT, wait_until
from tcp_line import HOST, TcpLine

PORTS = range(20000, 30000)  # below those that the kernel gives to who connects
DRAFT_IS_HERE, TARGET_IS_HERE = "a draft (", "a target ("


def free_port():
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind((HOST, random.choice(PORTS)))
            return s.getsockname()[1]


class NamespaceLine:
    """All three are `delay` apart."""

    server, server_flags, target_flags = "tcp://10.0.0.1:7000", (), ()

    def __init__(self, delay=0.0, loss=0.0, record=None):
        self.hosts = Hosts("orchestrator", "draft", "target", delay=delay, loss=loss, record=record)

    def __enter__(self):
        self.hosts.__enter__()
        return self

    def __exit__(self, *what):
        self.hosts.__exit__(*what)

    def command(self, name, *command):
        return self.hosts.command(name, *command)


class ProxyLine:
    """Draft and target alone are `delay` apart."""

    server_flags = ()

    def __init__(self, folder, delay=0.0):
        port = free_port()
        self.tcp = TcpLine(port, delay)
        self.server = f"ipc://{folder}/far"
        self.target_flags = ("--bind", f"tcp://{HOST}:{port}", "--advertise", f"tcp://{HOST}:{self.tcp.port}")

    def __enter__(self):
        self.tcp.__enter__()
        return self

    def __exit__(self, *what):
        self.tcp.__exit__(*what)

    @staticmethod
    def command(_, *command):
        return list(command)


@contextlib.contextmanager
def any_line(folder, delay, loss=0.0):
    """Namespaces where they are permitted, else the proxy, which loses nothing: OSError, if it should."""
    with contextlib.ExitStack() as stack:
        try:
            line = stack.enter_context(NamespaceLine(delay, loss))
        except OSError:
            if loss:
                raise
            line = stack.enter_context(ProxyLine(folder, delay))
        yield line


class FarPair:
    """draft, target, serve: further flags of the three. cpus: {name: processors}."""

    def __init__(self, line, programs, model, folder, draft=(), target=(), serve=(), cpus=None):
        self.line, self.programs, self.model = line, programs, model
        self.folder, self.cpus = folder, cpus or {}
        self.draft_flags, self.target_flags, self.serve_flags = draft, target, serve
        self.log, self.draft, self.drafts_started = folder / "far.log", None, 0
        self.out = folder / "far.jsonl"
        self.keys = folder / "keys"
        if not self.keys.exists():
            keygen = [programs / "tandem", "keygen", "--keys", self.keys]
            subprocess.run(keygen, check=True, capture_output=True)

    def _start(self, name, program, *flags, **streams):
        command = [str(a) for a in self.line.command(name, self.programs / program, *flags)]
        cpus = self.cpus.get(name)
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **streams}
        with self.log.open("a") as errors:
            return subprocess.Popen(command, stderr=errors, **streams,
                                    env=dict(os.environ, TANDEM_KEYS=str(self.keys)),
                                    preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None)

    def start_draft(self):
        where = ("--orchestrator", self.line.server)
        self.draft = self._start("draft", "tandem-draft", *where, *self.draft_flags)
        self.drafts_started += 1

    def end_draft(self):
        self.draft.kill()
        self.draft.wait()

    def change_draft(self, *flags):
        """Another draft in its place, which is there at the end."""
        self.draft.terminate()  # it says BYE
        self.draft.wait()
        self.draft_flags = flags
        came = self.log.read_text().count(DRAFT_IS_HERE)
        self.start_draft()
        self._await_text(DRAFT_IS_HERE, came + 1)

    @contextlib.contextmanager
    def running(self):
        """The three programs. Requests are written to what this gives (`ask`)."""
        self.log.write_text("")
        with contextlib.ExitStack() as stack:
            serve = self._start("orchestrator", "tandem", "serve-workers", "-m", self.model,
                                "--listen", self.line.server, *self.line.server_flags,
                                "--sessions", 1, "--ledger", "none", *self.serve_flags,
                                stdin=subprocess.PIPE, stdout=stack.enter_context(self.out.open("w")))
            stack.callback(end, serve)
            self.start_draft()
            stack.callback(self.end_draft)
            self._await_text(DRAFT_IS_HERE)
            target = self._start("target", "tandem-target", "-m", self.model, "--orchestrator",
                                 self.line.server, *self.line.target_flags, *self.target_flags)
            stack.callback(end, target)
            self._await_text(TARGET_IS_HERE)
            yield serve
            serve.stdin.close()
            if status := serve.wait(TIME_LIMIT):
                raise RuntimeError(f"status {status}: {self.log.read_text()[-500:]}")

    def ask(self, serve, requests, disturb=None, every=1.0):
        """Lines of the results, in the order of their end. disturb(self) is called every so many seconds."""
        requests = list(requests)
        before, due = len(self._results()), time.monotonic() + every
        serve.stdin.write("".join(json.dumps(line) + "\n" for line in requests).encode())
        serve.stdin.flush()

        def answered(count):
            nonlocal due
            if serve.poll() is not None:
                raise RuntimeError(f"not all answers have come: {self.log.read_text()[-500:]}")
            if disturb and time.monotonic() >= due:
                disturb(self)
                due = time.monotonic() + every
            return self.out.read_bytes().count(b"\n") >= count

        for count in range(1, len(requests) + 1):
            wait_until(lambda: answered(before + count), lambda: self.log.read_text()[-500:], TIME_LIMIT)
        return self._results()[before:]

    def answers(self, requests, disturb=None, every=1.0):
        """All of it, for these alone."""
        with self.running() as serve:
            return self.ask(serve, requests, disturb, every)

    def _results(self):
        text = self.out.read_text()
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    def _await_text(self, text, times=1):
        wait_until(lambda: self.log.read_text().count(text) >= times,
                   lambda: f"no '{text}': {self.log.read_text()[-500:]}")


def end(process):
    process.kill()
    process.wait()
