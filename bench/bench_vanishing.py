#!/usr/bin/env python3
"""Does `tandem serve` keep memory of clients that went away? Sends requests whose clients vanish at once,
after a part of their body, after the first event of a stream, or after the whole answer. Prints how large the
resident memory of each program is: after a tenth of the requests, at half of them, and at the end."""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import socket
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/integration"))

from programs import MODEL, TANDEM, TIME_LIMIT, Running, children_of, wait_until  # noqa: E402

GROWTH_HOLD = 4  # MiB from a tenth of the requests to the end
PATH = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}


def memory(pid):
    """(name, MiB)"""
    with open(f"/proc/{pid}/status") as f:
        status = f.read()
    return re.search(r"Name:\s*(\S+)", status)[1], int(re.search(r"VmRSS:\s*(\d+)", status)[1]) / 1024


def vanish(port, rng):
    """One client."""
    kind = rng.choice(("messages", "prompt"))
    text = rng.choice(("Tell a long story.", "word " * rng.randrange(200)))
    body = {kind: text if kind == "prompt" else [{"role": "user", "content": text}],
            "n": rng.choice((1, 1, 3)), "stream": rng.random() < 0.7, "max_tokens": rng.choice((2, 40, 400))}
    data = json.dumps(body).encode()
    head = f"POST {PATH[kind]} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    how = rng.choice(("now", "cut", "event", "event", "whole"))
    if how == "whole":
        body["max_tokens"] = 2
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=TIME_LIMIT)
        c.request("POST", PATH[kind], json.dumps(body))
        c.getresponse().read()
        c.close()
        return
    with socket.create_connection(("127.0.0.1", port), TIME_LIMIT) as s:
        s.sendall(head + data[:len(data) // 2 if how == "cut" else len(data)])
        if how == "event" and body["stream"]:
            s.recv(4096)


def send(port, seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        vanish(port, rng)


def wave(port, seed, count, clients):
    each = lambda i: threading.Thread(target=send, args=(port, f"{seed} {i}", count // clients))
    threads = [each(i) for i in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def is_idle(port):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=TIME_LIMIT)
    c.request("GET", "/slots")
    slots = json.load(c.getresponse())
    c.close()
    return not any(s["is_processing"] for s in slots)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", default=MODEL)
    p.add_argument("--count", type=int, default=10000)
    p.add_argument("--clients", type=int, default=16, help="at a time")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = "--port", "0", "--ledger", "none", "--ctx", "1024", "--sessions", "8"
        server = Running(pathlib.Path(folder), TANDEM, "serve", "-m", a.model, *flags)
        wait_until(lambda: "ready" in server.errors, TIME_LIMIT)
        port = int(re.search(r"http://127.0.0.1:(\d+)", server.errors)[1])
        sizes = []
        for name, share in (("a tenth", 0.1), ("half", 0.4), ("the end", 0.5)):
            wave(port, name, int(a.count * share), a.clients)
            wait_until(lambda: is_idle(port), TIME_LIMIT)
            sizes.append([memory(pid) for pid in (server.pid, *children_of(server.pid))])
            print(f"{name:8}", *(f"{program} {mib:.1f} MiB" for program, mib in sizes[-1]), flush=True)
        server.close()
    grown = max(after[1] - before[1] for before, after in zip(sizes[0], sizes[-1]))
    print(f"grown by {grown:.1f} MiB at most; {GROWTH_HOLD} are allowed")
    return grown > GROWTH_HOLD


if __name__ == "__main__":
    sys.exit(main())
