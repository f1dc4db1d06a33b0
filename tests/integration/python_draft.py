#!/usr/bin/python3
"""A small draft worker that guesses by prompt lookup, written from wire/PROTOCOL.md alone, to try whether that page is
enough for it. Section numbers and rule names below are the page's; the frames are python_frames.py's.
"""

import argparse
import math
import os
import signal
import struct
import sys
import time

import xxhash
import zmq
from zmq.utils import z85

from python_frames import (BAD_ARGUMENT, BAD_TICKET, DESYNC, FULL, GONE, MISMATCH, PROTOCOL, STALE, VERSION, ZERO, Broken, decode,
                           encode)

SESSIONS, LIVE_NODES, SECOND_BRANCH = 4, 256, 4
SCORES = {3: math.log(0.8), 2: math.log(0.6), 1: math.log(0.4)}  # by the length of the suffix that was found


def say(text):
    print("python_draft:", text, file=sys.stderr, flush=True)


class Keys:
    """What `tandem keygen` has made (section 2)."""

    def __init__(self, folder):
        self.secret = bytes.fromhex(self.lines(f"{folder}/draft.key")[0][1])
        self.allowed = [(line[0], bytes.fromhex(line[1])) for line in self.lines(f"{folder}/allowed")]

    @staticmethod
    def lines(path):
        with open(path) as f:
            return [line.split() for line in f if line.strip() and not line.startswith("#")]

    def protect(self, socket, role, key):
        """The key of whom the socket calls; "" where its endpoint has none: then there must be only one."""
        known = [k for r, k in self.allowed if r == role and (not key or k == bytes.fromhex(key))]
        if len(known) != 1:
            raise ValueError(f"{len(known)} keys of role {role} are allowed, not one")
        socket.curve_serverkey = z85.encode(known[0])
        socket.curve_publickey = zmq.curve_public(z85.encode(self.secret))
        socket.curve_secretkey = z85.encode(self.secret)


class Peer:
    """A DEALER, and what is known of the program at its other end."""

    def __init__(self, context, endpoint, role, keys):
        self.endpoint, self.incarnation, self.greeted, self.refused = endpoint, ZERO, False, False
        self.heard, self.next_hello, self.next_ping, self.pings = time.monotonic(), 0.0, 0.0, 0
        self.socket = context.socket(zmq.DEALER)
        for option, value in ((zmq.ROUTING_ID, b"\x01" + os.urandom(24)),
                              (zmq.MAXMSGSIZE, 2**20), (zmq.IMMEDIATE, 1), (zmq.LINGER, 200), (zmq.IPV6, 1),
                              (zmq.TCP_MAXRT, 3000),
                              (zmq.RECONNECT_IVL, 50), (zmq.RECONNECT_IVL_MAX, 2000), (zmq.HANDSHAKE_IVL, 2000)):
            self.socket.setsockopt(option, value)
        if endpoint.startswith("tcp://") and keys:
            endpoint, _, key = endpoint.partition("#")
            keys.protect(self.socket, role, key)
        self.socket.connect(endpoint)

    def send(self, name, session, epoch, *fields):
        """False when the frame did not leave. Little depends on it: what matters is repeated."""
        to = ZERO if name == "HELLO" else self.incarnation
        if to == ZERO and name not in ("HELLO", "ERROR"):
            return False
        try:
            self.socket.send(encode(name, to, session, epoch, *fields), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


class Node:
    """A guess that was sent. The root stands for the last token of C, whatever its id was."""

    def __init__(self, number=0):
        self.id, self.children = number, {}

    def count(self):
        return sum(1 + child.count() for child in self.children.values())


def chain(seed, previous, tokens):
    """The hashes of a prefix, whose own is previous, with 1, 2, ... of the tokens after it (section 10)."""
    hashes = []
    for token in tokens:
        previous = xxhash.xxh3_128(previous + struct.pack("<I", token), seed=seed).digest()
        hashes.append(previous)
    return hashes


class Session:
    """What is held of one session: C with its hashes and an index for the lookup, and the tree of guesses."""

    def __init__(self, number, epoch, m, peer, tokens, hashes):
        self.number, self.epoch, self.seed, self.ticket, self.options = number, epoch, m.hash_seed, m.ticket, m.options
        self.peer, self.target = peer, m.target_incarnation
        self.state, self.generation = "connecting", 0
        self.last_attach = self.last_nodes = self.last_resend = 0.0
        self.c, self.hashes, self.index = [], [ZERO], {}  # index: a suffix -> positions of the tokens that followed it
        self.next_id, self.root = 1, Node()
        self.append(tokens, hashes)

    def append(self, tokens, hashes):
        for token in tokens:
            end = len(self.c)
            for length in range(1, min(3, end) + 1):
                self.index.setdefault(tuple(self.c[end - length:]), []).append(end)
            self.c.append(token)
            self.root = self.root.children.get(token) or Node()  # a right guess is trunk, what is below it stays live
        self.hashes += hashes

    def copy(self, start, count):
        """The tokens from position start on, running over C's end into themselves."""
        tokens = []
        for at in range(start, start + count):
            tokens.append(self.c[at] if at < len(self.c) else tokens[at - len(self.c)])
        return tokens

    def guesses(self):
        """At most two chains with the score of their nodes, the likelier one first."""
        room = min(self.options.budget, self.options.context - len(self.c))
        for length in range(min(3, len(self.c)), 0, -1):
            found = self.index.get(tuple(self.c[-length:]))
            if found and room > 0:
                yield self.copy(found[-1], room), SCORES[length]
                others = (at for at in reversed(found[-16:]) if self.c[at] != self.c[found[-1]])
                for at in list(others)[:1]:
                    yield self.copy(at, min(room, SECOND_BRANCH)), math.log(0.2)
                return

    def send(self, name, *fields):
        self.peer.send(name, self.number, self.epoch, *fields)

    def send_nodes(self):
        """Offers all that C suggests, a frame for each chain, the last one with the done mark (section 9)."""
        chains = list(self.guesses()) if self.root.count() < LIVE_NODES else []
        for left, (tokens, score) in reversed(list(enumerate(reversed(chains or [([], 0.0)])))):
            first, parents, new, node = self.next_id, [], [], self.root
            for token in tokens:
                if token not in node.children:
                    parents.append(0 if node is self.root else node.id)
                    new.append(token)
                    node.children[token] = Node(self.next_id)
                    self.next_id += 1
                node = node.children[token]
            self.send("NODES", self.generation, len(self.c), self.hashes[-1], first, parents, new, [score] * len(new),
                      left == 0)
        self.last_nodes = time.monotonic()

    def start_generation(self, generation):
        self.state, self.generation, self.next_id, self.root = "attached", generation, 1, Node()
        self.send_nodes()

    def attach(self):
        self.state, self.last_attach = "attaching", time.monotonic()
        self.send("ATTACH", len(self.c), self.hashes[-1], self.ticket, 0)

    def resend(self):
        if time.monotonic() - self.last_resend >= 0.02:
            self.last_resend = time.monotonic()
            self.send("RESEND", len(self.c))


class Draft:
    def __init__(self, orchestrator, keys=None):
        self.me, self.context, self.running = os.urandom(16), zmq.Context(), True
        self.sessions, self.targets = {}, {}
        self.keys = keys
        self.hub = Peer(self.context, orchestrator, "orchestrator", keys)

    def peers(self):
        return [self.hub, *self.targets.values()]

    def run(self):
        while self.running:
            poller, peers = zmq.Poller(), {peer.socket: peer for peer in self.peers()}
            for socket in peers:
                poller.register(socket, zmq.POLLIN)
            for socket, _ in poller.poll(20):
                self.receive(peers[socket])
            self.tick(time.monotonic())
        for peer in self.peers():
            peer.send("BYE", 0, 0)
        self.context.destroy(linger=200)

    def tick(self, now):
        for peer in self.peers():
            if not peer.greeted and not peer.refused and now >= peer.next_hello:
                sent = peer.send("HELLO", 0, 0, "tandem", 2, 4, 3, self.me, ZERO, ZERO, 0, "", "", "prompt-lookup",
                                 SESSIONS, 0, LIVE_NODES, ZERO, "")
                peer.next_hello = now + (0.5 if sent else 0.0)  # not sent: the connection is not up yet
            elif peer.greeted and now >= peer.next_ping:
                peer.pings, peer.next_ping = peer.pings + 1, now + 0.5
                peer.send("PING", 0, 0, peer.pings, int(now * 1e6), 0)
        for s in list(self.sessions.values()):
            if now - self.hub.heard > 60:
                self.forget(s, "the orchestrator is silent")
            elif s.state == "attaching" and now - s.last_attach >= 0.3:
                s.attach()
            elif s.state == "attached" and now - s.last_nodes >= 0.2:
                s.send_nodes()
        used = {s.peer for s in self.sessions.values()}
        for peer in list(self.targets.values()):
            if peer not in used and now - peer.heard > 3:
                self.targets.pop(peer.endpoint).socket.close()

    def receive(self, peer):
        """Takes all that has come from one peer. A frame that breaks a rule is reported, answered and dropped."""
        while True:
            try:
                parts = peer.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            peer.heard, envelope = time.monotonic(), []
            try:
                if len(parts) != 1:
                    raise Broken(f"R-PARTS: a message of {len(parts)} parts")
                self.handle(peer, *decode(parts[0], envelope))
            except Broken as broken:
                say(f"dropped a frame from {peer.endpoint}: {broken}")
                name, session, epoch = envelope or ("", 0, 0)
                if name != "ERROR":  # an ERROR is never answered with ERROR
                    peer.send("ERROR", session, epoch, broken.code, str(broken)[:400])

    def handle(self, peer, name, to, number, epoch, m):
        s = self.sessions.get(number)
        if name not in ("HELLO", "WELCOME", "ERROR") and to != self.me:
            peer.send("ERROR", 0, 0, STALE, "R-RECEIVER: this is for another incarnation")
        elif m is None:
            say(f"dropped {name} from {peer.endpoint}: it is not for a draft")
        elif name == "WELCOME":
            self.on_welcome(peer, m)
        elif name == "PING":
            peer.send("PONG", 0, 0, m.sequence, m.time_us, len(self.sessions))
        elif name == "ERROR":
            self.on_error(peer, s if s and s.peer is peer and s.epoch == epoch else None, number, m)
        elif name in ("OPEN", "END") and peer is self.hub:
            if s and epoch < s.epoch:
                peer.send("ERROR", number, epoch, STALE, f"epoch {s.epoch} is open here")
            elif name == "OPEN":
                self.on_open(s, number, epoch, m)
            else:
                self.forget(s, "the session has ended" if s and epoch == s.epoch else None)
                peer.send("ENDED", number, epoch, s is not None)
        elif s and s.peer is peer and s.epoch == epoch and s.state in ("attaching", "attached"):
            if name == "ATTACHED":
                self.on_attached(s, m)
            elif name == "DETACH":
                s.state = "lost"
            elif name == "TOKENS" and s.state == "attached":
                self.on_tokens(s, m)
            elif name == "TREE_RESET" and s.state == "attached" and m.generation > s.generation:
                s.start_generation(m.generation)

    def on_welcome(self, peer, m):
        if peer is self.hub and peer.incarnation not in (ZERO, m.incarnation):
            for s in list(self.sessions.values()):
                self.forget(s, "another orchestrator")
        peer.incarnation, peer.greeted = m.incarnation, True
        for s in self.sessions.values():
            if s.peer is peer and s.target != m.incarnation and s.state != "lost":
                s.state = "connecting"
            elif s.peer is peer and s.target == m.incarnation and s.state == "connecting":
                s.attach()

    def on_error(self, peer, s, number, m):
        if m.code != GONE:  # which is common: we attach too early, or detach too late
            say(f"{peer.endpoint} says, session {number}: error {m.code}, {m.text}")
        if m.code in (VERSION, MISMATCH) and number == 0 and not peer.greeted:
            if peer is self.hub:
                sys.exit(f"python_draft: the orchestrator refuses this draft: {m.text}")
            peer.refused = True  # an OPEN that names it again tries again
        elif number == 0 and m.code in (PROTOCOL, STALE):
            peer.greeted = False  # it has forgotten us: HELLO, but not sooner than 500 ms after the last one
        elif s and s.state in ("attaching", "attached"):
            if m.code == DESYNC:
                self.out_of_step(s, m.text)
            else:
                s.state = "attaching" if m.code in (GONE, BAD_TICKET) else "lost"

    def on_open(self, s, number, epoch, m):
        end = m.base_length + len(m.tokens)
        same = s and epoch == s.epoch and s.ticket == m.ticket
        if same and s.state != "lost" and end <= len(s.c) and s.hashes[end] == m.hash:  # repeated
            return self.hub.send("OPENED", number, epoch, len(s.c), s.hashes[-1])
        if not m.target_endpoint:
            return self.hub.send("ERROR", number, epoch, BAD_ARGUMENT, "OPEN names no target")
        if not s and len(self.sessions) >= SESSIONS:
            return self.hub.send("ERROR", number, epoch, FULL, f"{SESSIONS} sessions are open")
        held = s if s and s.seed == m.hash_seed else None
        c, hashes = (held.c, held.hashes) if held else ([], [ZERO])
        if m.base_length > len(c) or hashes[m.base_length] != m.base_hash:
            return self.desync(held, number, epoch, "base is not a prefix of what is held")
        c, hashes = c[:m.base_length] + m.tokens, hashes[1:m.base_length + 1]
        hashes += chain(m.hash_seed, m.base_hash, m.tokens)
        if hashes[-1] != m.hash:
            return self.desync(held, number, epoch, "the hash over base and tokens differs")
        peer = self.targets.get(m.target_endpoint)
        if peer is None:
            peer = self.targets[m.target_endpoint] = Peer(self.context, m.target_endpoint, "target", self.keys)
        s = self.sessions[number] = Session(number, epoch, m, peer, c, hashes)
        self.hub.send("OPENED", number, epoch, len(s.c), s.hashes[-1])
        if peer.incarnation == s.target:
            s.attach()
        else:
            peer.greeted = peer.refused = False

    def on_attached(self, s, m):
        if s.state == "attached" and m.generation <= s.generation:
            return
        if m.length < len(s.c) or (m.length == len(s.c) and m.hash != s.hashes[-1]):
            return self.out_of_step(s, "ATTACHED tells another prefix")
        s.start_generation(m.generation)
        if m.length > len(s.c):
            s.resend()

    def on_tokens(self, s, m):
        length, end = len(s.c), m.base_length + len(m.tokens)
        if m.base_length > length:
            return s.resend()
        known, fresh = m.tokens[:length - m.base_length], m.tokens[length - m.base_length:]
        hashes = chain(s.seed, s.hashes[-1], fresh)
        if known != s.c[m.base_length:end] or m.hash != (hashes[-1] if fresh else s.hashes[end]):
            return self.out_of_step(s, "TOKENS contradict what is held")
        if fresh:
            s.append(fresh, hashes)
            s.send_nodes()

    def out_of_step(self, s, reason):
        s.send("DETACH", reason)
        s.state = "lost"
        self.desync(s, s.number, s.epoch, reason)

    def desync(self, s, number, epoch, reason):
        say(f"session {number}: {reason}")
        self.hub.send("DESYNC", number, epoch, len(s.c) if s else 0, s.hashes[-1] if s else ZERO, reason)

    def forget(self, s, reason):
        if s and reason and s.state in ("attaching", "attached"):
            s.send("DETACH", reason)
        if s:
            del self.sessions[s.number]


def main():
    parser = argparse.ArgumentParser(description="a draft worker that guesses by prompt lookup")
    parser.add_argument("--orchestrator", required=True, metavar="ENDPOINT", help="ipc://PATH or tcp://ADDRESS:PORT")
    parser.add_argument("--keys", metavar="DIR", help="the folder that tandem keygen has made, for tcp")
    arguments = parser.parse_args()
    draft = Draft(arguments.orchestrator, arguments.keys and Keys(arguments.keys))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(draft, "running", False))
    draft.run()


if __name__ == "__main__":
    main()
