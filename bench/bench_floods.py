#!/usr/bin/env python3
"""What one hostile peer costs: the memory that it takes, and the speed of answers beside its flood.

An orchestrator and a target listen at loopback TCP without keys, so that everybody may talk to them. For
each kind of flood the same answers are made without it and beside it, by turns; the ratio of their speeds is
printed, how busy the loop of the flooded program was, and how far its memory grew at most. The flood comes
from a process of its own on this machine, which needs a processor for itself: with two, give the target one
thread."""

import argparse
import itertools
import json
import os
import pathlib
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/integration"))

import zmq  # noqa: E402

from support import DRAFT_ROLE, ZERO, decode, encode, hello_fields  # noqa: E402

LISTENER_FRAME, GREETING_FRAME = 22528, 4096
SPEED_HOLD, MEMORY_HOLD = 0.95, 8  # of the speed without a flood; MiB


def array(size):
    """Well formed, and long to look at: small integers."""
    return b"\xdd" + struct.pack(">I", size - 5) + b"\0" * (size - 5)


# --- the flood: a process of its own ---


class Guest:
    """A draft as far as HELLO."""

    def __init__(self, context, endpoint):
        self.me, self.peer = os.urandom(16), ZERO
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger, self.socket.sndhwm, self.socket.reconnect_ivl = 0, 8, 1
        self.socket.connect(endpoint)

    def hello(self, incarnation=None):
        return encode("HELLO", ZERO, 0, 0, *hello_fields(DRAFT_ROLE, incarnation or self.me, method="flood"))

    def greet(self):
        end = time.monotonic() + 5
        while self.peer == ZERO and time.monotonic() < end:
            self.socket.send(self.hello())
            if self.socket.poll(200):
                m = decode(self.socket.recv())
                self.peer = m.fields[4] if m.kind == "WELCOME" else ZERO
        return self


def frames_of(kind, guest):
    """An endless stream of frames."""
    if kind == "new HELLOs":
        return (guest.hello(os.urandom(16)) for _ in itertools.count())
    if kind == "HELLO again":
        return itertools.repeat(guest.hello())
    if kind == "PINGs":
        return itertools.repeat(encode("PING", guest.peer, 0, 0, 1, 2, 0))
    if kind == "ATTACHs":
        return itertools.repeat(encode("ATTACH", guest.peer, 77, 1, 1, os.urandom(16), os.urandom(16), 0))
    if kind == "RESENDs":
        return itertools.repeat(encode("RESEND", guest.peer, 77, 1, 1))
    if kind == "NODES":
        nodes = ([0] * 1024, list(range(1024)), [-1.0] * 1024)
        return itertools.repeat(encode("NODES", guest.peer, 77, 1, 1, 1, os.urandom(16), 1, *nodes, True, 0))
    return itertools.repeat({"small frames": b"\xc0" * 40, "greeting frames": array(GREETING_FRAME),
                             "large frames": array(LISTENER_FRAME)}[kind])


GREETED = ("HELLO again", "PINGs", "ATTACHs", "RESENDs", "NODES", "large frames")
KINDS = ("small frames", "greeting frames", "large frames", "new HELLOs", "HELLO again", "PINGs", "ATTACHs",
         "RESENDs", "NODES", "connections")


def flood_connections(endpoint):
    """TCP connections that say nothing, as fast as they are taken."""
    host, port = re.match(r"tcp://(.*):(\d+)$", endpoint).groups()
    kept = []
    while True:
        s = socket.socket()
        try:
            s.connect((host, int(port)))
        except OSError:
            pass
        kept.append(s)
        if len(kept) > 500:
            kept.pop(0).close()


def flood(kind, endpoint, sockets):
    """Sends until it is killed; what comes back is not read."""
    if kind == "connections":
        flood_connections(endpoint)
    context = zmq.Context()
    guests = [Guest(context, endpoint) for _ in range(sockets)]
    streams = [frames_of(kind, g.greet() if kind in GREETED else g) for g in guests]
    while True:
        idle = True
        for guest, stream in zip(guests, streams):
            for _ in range(64):
                try:
                    guest.socket.send(next(stream), zmq.NOBLOCK)
                    idle = False
                except zmq.Again:
                    break
        if idle:
            time.sleep(0.0005)


# --- what is flooded ---


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def memory(pid, what):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(what + r":\s+(\d+)", f.read())[1]) / 1024


def processor_seconds(pid):
    """Of all threads but the engine's and its pool's: of those that a flood can keep busy."""
    ticks = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        if int(task.name) == pid or name.startswith("ZMQ"):
            ticks += sum(map(int, rest.split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Rig:
    """`tandem serve-workers` and one target."""

    def __init__(self, o, folder):
        self.hub, self.listener = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.logs = [open(folder / name, "wb") for name in ("tandem.log", "target.log")]
        flags = ("-m", o.model, "--ctx", "1024", "--insecure-bind")
        self.orchestrator = subprocess.Popen(
            [o.bin / "tandem", "serve-workers", *flags, "--listen", self.hub, "--ledger", "none"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.logs[0])
        self.target = subprocess.Popen(
            [o.bin / "tandem-target", *flags, "--orchestrator", self.hub, "--bind", self.listener,
             "--threads", str(o.threads)], stderr=self.logs[1])
        self.tokens, self.count = o.tokens, 0
        self.answer()

    def answer(self):
        """Tokens a second of one answer, always the same."""
        self.count += 1
        line = {"id": self.count, "prompt": "Tell me a very long story about the sea.",
                "max_tokens": self.tokens, "draft": False}
        start = time.monotonic()
        self.orchestrator.stdin.write(json.dumps(line).encode() + b"\n")
        self.orchestrator.stdin.flush()
        result = json.loads(self.orchestrator.stdout.readline())
        if not hasattr(self, "plain"):
            self.plain = result["token_ids"]
        if result["token_ids"] != self.plain:
            sys.exit(f"bench_floods.py: the answer beside a flood differs: {result}")
        return len(result["token_ids"]) / (time.monotonic() - start)

    def close(self):
        for program in (self.target, self.orchestrator):
            program.terminate()
            program.wait()


def timed_answer(rig, flooded):
    """(tokens a second, processor seconds a second of the flooded program's loop)"""
    ticks, start = processor_seconds(flooded.pid), time.monotonic()
    speed = rig.answer()
    return speed, (processor_seconds(flooded.pid) - ticks) / (time.monotonic() - start)


def measure(o, rig, kind, endpoint, flooded):
    """(ratios of speed, processor seconds a second without and beside the flood, growth in MiB)"""
    ratios, without, beside = [], [], []
    with open(f"/proc/{flooded.pid}/clear_refs", "w") as f:
        f.write("5")  # VmHWM begins anew
    before = memory(flooded.pid, "VmRSS")
    for _ in range(o.turns):
        plain, used = timed_answer(rig, flooded)
        without.append(used)
        hostile = subprocess.Popen([sys.executable, __file__, "--flood", kind, endpoint, str(o.sockets)])
        time.sleep(1)
        speed, used = timed_answer(rig, flooded)
        beside.append(used)
        ratios.append(speed / plain)
        hostile.kill()
        hostile.wait()
    growth = memory(flooded.pid, "VmHWM") - before
    return ratios, statistics.median(without), statistics.median(beside), growth


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="of the programs")
    p.add_argument("--model", default=ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf", help="the target's")
    p.add_argument("--threads", type=int, default=1, help="of the target (default 1)")
    p.add_argument("--tokens", type=int, default=200, help="of each answer (default 200)")
    p.add_argument("--turns", type=int, default=5, help="answers without and beside each flood (default 5)")
    p.add_argument("--sockets", type=int, default=4, help="connections of the flood (default 4)")
    p.add_argument("--kinds", nargs="*", default=KINDS, help="of floods: " + ", ".join(KINDS))
    p.add_argument("--flood", nargs=3, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.flood:
        return flood(o.flood[0], o.flood[1], int(o.flood[2]))
    good = True
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(o, pathlib.Path(folder))
        programs = (("target", rig.listener, rig.target), ("orchestrator", rig.hub, rig.orchestrator))
        for name, endpoint, flooded in programs:
            for kind in o.kinds:
                ratios, without, beside, growth = measure(o, rig, kind, endpoint, flooded)
                ratio = statistics.median(ratios)
                holds = ratio >= SPEED_HOLD and growth <= MEMORY_HOLD
                good &= holds
                print(f"{kind} at the {name}: {ratio:.2f} of the speed ({min(ratios):.2f} to "
                      f"{max(ratios):.2f}), {beside * 100:.0f} % of a processor (else {without * 100:.0f}), "
                      f"{growth:.1f} MiB more{'' if holds else '  <-- hold: >= 0.95, <= 8 MiB'}", flush=True)
        rig.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
