#!/usr/bin/env python3
"""How long an answer stands still when a worker that serves it is killed and another one is idle.

For each repetition it starts `tandem run --listen`, a worker of each kind and, once the answer has begun, a
second worker of one kind. Then it sends SIGKILL to the first of that kind, and takes the longest time without
new text from that moment on.

    bench/bench_stalls.py MODEL [--bin build/release/bin] [--repeat 5] [--kill draft target] [--draft ngram]
                          [--tcp]
"""

import argparse
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PROMPT = "Tell me a very long story about the sea."
BEGUN, LATER = 100, 4.0  # bytes of the answer before the kill; seconds in which the stall is looked for
PATIENCE = 60.0


class Program:
    def __init__(self, folder, *args):
        self.log, self.pieces = folder / f"stderr-{time.monotonic_ns()}", []
        with open(self.log, "wb") as log:
            env = dict(os.environ, XDG_STATE_HOME=str(folder), XDG_CONFIG_HOME=str(folder))
            self.process = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=log, env=env)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while data := os.read(self.process.stdout.fileno(), 65536):
            self.pieces.append((time.monotonic(), len(data)))

    def wait(self, *, said=None, shown=0):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            text = self.log.read_text("utf-8", "replace")
            if (said is None or said in text) and sum(n for _, n in list(self.pieces)) >= shown:
                return
            time.sleep(0.01)
        sys.exit(f"{said or f'{shown} bytes'} did not come: {self.log.read_text('utf-8', 'replace')}")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()


def free_address(folder, tcp):
    if not tcp:
        return f"ipc://{folder}/hub"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{s.getsockname()[1]}"


def stall(options, role, folder):
    """Seconds without text."""
    hub = free_address(folder, options.tcp)
    if options.tcp:
        Program(folder, options.bin / "tandem", "keygen").process.wait()
    run = Program(folder, options.bin / "tandem", "run", "-v", "-m", options.model, "--listen", hub,
                  "--max-tokens", "7000", PROMPT)
    programs = [run]

    def start(kind):
        flags = ("-m", options.model) if kind == "target" else ("--draft", options.draft)
        programs.append(Program(folder, options.bin / f"tandem-{kind}", "--orchestrator", hub, *flags))
        programs[-1].wait(said="registered with the orchestrator")
        return programs[-1]

    try:
        run.wait(said="listening at")
        workers = {kind: start(kind) for kind in ("draft", "target")}
        run.wait(shown=BEGUN)
        workers["target"].wait(said="a draft is attached")
        start(role)
        time.sleep(0.5)
        moment = time.monotonic()
        workers[role].process.send_signal(signal.SIGKILL)
        time.sleep(LATER)
        ended = run.process.poll() is not None
        moments = [moment] + [at for at, _ in list(run.pieces) if at > moment]
        if ended and len(moments) == 1:
            sys.exit(f"the answer ended too soon: {run.log.read_text('utf-8', 'replace')}")
        if not ended:
            moments.append(time.monotonic())
        return max(b - a for a, b in zip(moments, moments[1:]))
    finally:
        for program in programs:
            program.end()


def main():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--kill", nargs="+", choices=("draft", "target"), default=("draft", "target"))
    parser.add_argument("--draft", default="ngram")
    parser.add_argument("--tcp", action="store_true", help="connect over loopback TCP, not ipc")
    options = parser.parse_args()
    for role in options.kill:
        stalls = []
        for _ in range(options.repeat):
            with tempfile.TemporaryDirectory(prefix="tandem-stalls-") as folder:
                stalls.append(stall(options, role, pathlib.Path(folder)))
        print(f"{role} killed {len(stalls)} times: longest stall {max(stalls):.2f} s, median "
              f"{statistics.median(stalls):.2f} s ({' '.join(f'{s:.2f}' for s in stalls)})", flush=True)


if __name__ == "__main__":
    main()
