#!/usr/bin/env python3
"""The memory that one peer takes who is not let in, or only connects: how far a target and an orchestrator
grow.

It opens connections as fast as it can, while the program's loop runs and while it stands (its thread is held
by ptrace), with keys and without. With keys it sends the most that is read before its key is known: a
greeting, and 22 KiB of a handshake that never ends. Without, it shakes hands and sends frames of 22 KiB."""

import argparse
import contextlib
import ctypes
import os
import pathlib
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/integration"))

from bench_floods import free_port, memory  # noqa: E402
from programs import MODEL, TANDEM, TARGET, Running, make_keys, wait_until  # noqa: E402

MEMORY_HOLD, FRAME, OPENED_AT_ONCE = 8, 22500, 20  # MiB; bytes; connections
SEIZE, INTERRUPT, DETACH, ALL_THREADS = 0x4206, 0x4207, 17, 0x40000000


def greeting(mechanism):
    """ZMTP 3.1."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def frame(flags, body, size=None):
    return bytes([flags | 2]) + struct.pack(">Q", size or len(body)) + body


READY = frame(4, b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity" + bytes(4))
FIRST = {True: greeting(b"CURVE") + frame(4, bytes(FRAME - 1), FRAME), False: greeting(b"NULL") + READY}
LATER = {True: b"", False: frame(0, bytes(FRAME)) * 6}


def connect(port, first):
    s = socket.socket()
    s.settimeout(1)
    with contextlib.suppress(OSError):
        s.connect(("127.0.0.1", port))
    s.setblocking(False)
    with contextlib.suppress(OSError):
        s.send(first)
    return s


def flood(port, count, keys):
    """The connections, most of which have been closed at the other end."""
    kept = []
    while len(kept) < count:
        new = [connect(port, FIRST[keys]) for _ in range(OPENED_AT_ONCE)]
        kept += new
        if LATER[keys]:
            time.sleep(0.01)  # for the handshake
        for s in new:
            with contextlib.suppress(OSError):
                s.send(LATER[keys])
    return kept


@contextlib.contextmanager
def standing(pid, stands):
    libc = ctypes.CDLL("libc.so.6", use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if stands:
        if libc.ptrace(SEIZE, pid, None, None) or libc.ptrace(INTERRUPT, pid, None, None):
            sys.exit(f"bench_strangers.py: ptrace: {os.strerror(ctypes.get_errno())}")
        os.waitpid(pid, ALL_THREADS)
    try:
        yield
    finally:
        if stands:
            libc.ptrace(DETACH, pid, None, None)


def growth(pid, port, o, keys, stands):
    """MiB, at most."""
    with open(f"/proc/{pid}/clear_refs", "w") as f:
        f.write("5")  # VmHWM begins anew
    before = memory(pid, "VmRSS")
    with standing(pid, stands):
        kept = flood(port, o.connections, keys)
        time.sleep(1)
    time.sleep(1)
    most = memory(pid, "VmHWM") - before
    for s in kept:
        s.close()
    time.sleep(2.5)  # who floods without keys is shut out for 2 s
    return most


def start(folder, keys):
    """(the target, its port, the orchestrator, its port)"""
    ports = free_port(), free_port()
    hub, listener = (f"tcp://127.0.0.1:{port}" for port in ports)
    flags = ("-m", MODEL, "--ctx", "1024", *(() if keys else ("--insecure-bind",)))
    serve = Running(folder, TANDEM, "serve-workers", *flags, "--listen", hub, "--ledger", "none",
                    stdin=subprocess.PIPE)
    target = Running(folder, TARGET, *flags, "--orchestrator", hub, "--bind", listener, "--threads", "1")
    if not wait_until(lambda: re.search("a target ", serve.errors)):
        sys.exit(f"bench_strangers.py: no target: {serve.errors}{target.errors}")
    return target, ports[1], serve, ports[0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--connections", type=int, default=1500, help="of each flood (default 1500)")
    o = p.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    make_keys()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for keys in (True, False):
            target, target_port, serve, serve_port = start(pathlib.Path(folder), keys)
            for name, running, port in (("target", target, target_port), ("orchestrator", serve, serve_port)):
                for stands in (True, False):
                    more = growth(running.pid, port, o, keys, stands)
                    good &= more <= MEMORY_HOLD
                    how = ("with" if keys else "without", "stands" if stands else "runs")
                    missed = "" if more <= MEMORY_HOLD else "  <-- hold: <= 8 MiB"
                    print(f"{name}, {how[0]} keys, its loop {how[1]}: {more:.1f} MiB more{missed}",
                          flush=True)
            target.close()
            serve.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
