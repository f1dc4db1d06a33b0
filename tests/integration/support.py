"""What the integration tests share: the programs and runs of them (programs.py), and a small client of the wire protocol
that plays orchestrator and draft."""

import collections
import os
import random
import struct
import time

import msgpack
import xxhash
import zmq

from programs import (  # noqa: F401: tests take all of it from here
    BIN, DRAFT, END_TOKEN, GOLDEN, LAYERS, MODEL, PATIENCE, ROOT, SLOW, STATE, SUBSET, TANDEM, TARGET, THOROUGH,
    TIME_LIMIT, VOCABULARY, Batch, Case, Late, Running, batch, child_named, children_of, counters_of, golden,
    is_running, make_keys, new_folder, tell, total, thorough, wait_until, whole_model)

# --- the wire: messages ---

NUMBERS = {"PART": 15, "HELLO": 1, "WELCOME": 2, "ERROR": 3, "PING": 4, "PONG": 5, "BYE": 6, "OPEN": 10, "OPENED": 11, "END": 12,
           "ENDED": 13, "DESYNC": 14, "TOKENS": 20, "ACK": 21, "RESEND": 22, "DONE": 23, "ATTACH": 30, "ATTACHED": 31,
           "NODES": 32, "TREE_RESET": 33, "DETACH": 34, "FEATURES": 35}
NAMES = {number: name for name, number in NUMBERS.items()}
CODES = {"limit": -4, "bad_argument": -5, "full": -6, "protocol": -10, "version": -11, "mismatch": -12, "desync": -13,
         "gone": -14, "stale": -15, "bad_ticket": -16, "draining": -18}
ORCHESTRATOR_ROLE, TARGET_ROLE, DRAFT_ROLE = 1, 2, 3
STOP, LENGTH, CANCELLED, ERROR_FINISH = 1, 2, 3, 4
ZERO = bytes(16)
STATS = ("forwards rounds rows accepted rewound prefill_us queue_us forward_us accept_us commit_us wait_us plain_steps "
         "resets dropped accepted_per_pos ahead").split()

Message = collections.namedtuple("Message", "kind to session epoch fields")


def encode(kind, to, session, epoch, *fields):
    return msgpack.packb([NUMBERS[kind], to, session, epoch, *fields], use_single_float=True)


def decode(frame):
    kind, to, session, epoch, *fields = msgpack.unpackb(frame)
    return Message(NAMES[kind], to, session, epoch, fields)


def hello_fields(role, incarnation, versions=(3, 3), vocabulary_hash=ZERO, vocabulary_size=0, method=""):
    return ["tandem", *versions, role, incarnation, ZERO, vocabulary_hash, vocabulary_size, "", "", method, 0, 0, 0,
            ZERO, ""]


def hashes_of(seed, tokens, before=(ZERO,)):
    """Hashes of every prefix, [0] of the empty one; `before` are those that are known."""
    hashes = list(before)
    for token in tokens[len(hashes) - 1:]:
        hashes.append(xxhash.xxh3_128(hashes[-1] + struct.pack("<I", token), seed=seed).digest())
    return hashes


class Inbox:
    """Messages in their order. Each is looked at once."""

    def __init__(self, hub):
        self.hub, self.seen, self.looked = hub, [], 0

    def on(self, message):
        self.seen.append(message)

    def expect(self, kind, seconds=PATIENCE):
        """The next message of this kind; those before it count as looked at."""
        def find():
            for i in range(self.looked, len(self.seen)):
                if self.seen[i].kind == kind:
                    return i
            return None

        self.hub.wait(lambda: find() is not None,
                      lambda: f"no {kind} came; since the last look: {[m.kind for m in self.seen[self.looked:]]}", seconds)
        self.looked = find() + 1
        return self.seen[self.looked - 1]

    def expect_error(self, code, seconds=PATIENCE):
        """The next ERROR, which must have this code; its text."""
        message = self.expect("ERROR", seconds)
        assert message.fields[0] == CODES[code], f"wanted {code}: {message}"
        assert message.fields[1], "an error says what is wrong"
        return message.fields[1]

    def skip(self):
        """What has come so far is not of interest."""
        self.looked = len(self.seen)


class Link(Inbox):
    """A draft's end of a connection to a target: a DEALER."""

    def __init__(self, hub, endpoint):
        super().__init__(hub)
        self.incarnation, self.peer = os.urandom(16), ZERO
        self.socket = hub.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.routing_id = b"\1" + os.urandom(24)
        self.socket.connect(endpoint)
        hub.links.append(self)

    def send(self, kind, session, epoch, *fields, to=None):
        self.socket.send(encode(kind, self.peer if to is None else to, session, epoch, *fields))

    def greet(self, **hello):
        self.send("HELLO", 0, 0, *hello_fields(DRAFT_ROLE, self.incarnation, **hello), to=ZERO)
        self.peer = self.expect("WELCOME").fields[4]
        return self

    def on(self, message):
        if message.kind == "PING":
            self.send("PONG", 0, 0, message.fields[0], message.fields[1], 0)
        else:
            super().on(message)

    def close(self):
        if self in self.hub.links:
            self.hub.links.remove(self)
            self.socket.close()


class Hub:
    """An orchestrator's sockets: a ROUTER where targets register, and the links of drafts that the test plays. HELLO
    and PING are answered by themselves; `welcome` false leaves HELLO to the test."""

    kept = []  # answers, of any hub, that are renewed whenever one takes a turn

    def __init__(self, endpoint, welcome=True):
        self.context = zmq.Context()
        self.incarnation, self.welcome = os.urandom(16), welcome
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.router_mandatory = 1
        self.socket.router_handover = 1
        self.socket.bind(endpoint)
        self.endpoint = endpoint
        self.peers = {}  # routing id -> fields of HELLO
        self.inbox = Inbox(self)  # of no session
        self.answers, self.links = {}, []

    def close(self):
        for link in list(self.links):
            link.close()
        self.socket.close()
        self.context.term()

    def send(self, routing, kind, session, epoch, *fields, to=None):
        to = self.peers[routing][4] if to is None else to
        try:
            self.send_frame(routing, encode(kind, to, session, epoch, *fields))
        except zmq.ZMQError as e:
            if e.errno != zmq.EHOSTUNREACH:  # gone: as if the message were lost
                raise

    def send_frame(self, routing, *parts):
        self.socket.send_multipart([routing, *parts])

    def _on_hub(self, routing, message):
        if message.kind == "HELLO":
            self.peers[routing] = message.fields
            if self.welcome:
                self.send(routing, "WELCOME", 0, 0, *hello_fields(ORCHESTRATOR_ROLE, self.incarnation))
        elif routing not in self.peers:
            self.send(routing, "ERROR", 0, 0, CODES["protocol"], "say HELLO first", to=ZERO)
            return
        elif message.kind == "PING":
            self.send(routing, "PONG", 0, 0, message.fields[0], message.fields[1], 0)
            return
        self.answers.get(message.session, self.inbox).on(message)

    def turn(self, milliseconds=20):
        """Takes what is there, and waits so long for something."""
        for answer in self.kept:
            answer.renew()
        sockets = zmq.Poller()
        for socket in [self.socket] + [link.socket for link in self.links]:
            sockets.register(socket, zmq.POLLIN)
        for socket, _ in sockets.poll(milliseconds):
            if socket is self.socket:
                routing, frame = socket.recv_multipart()
                self._on_hub(routing, decode(frame))
            else:
                next(link for link in self.links if link.socket is socket).on(decode(socket.recv()))

    def wait(self, condition, why="", seconds=PATIENCE):
        """As programs.wait_until, taking turns meanwhile."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > end:
                raise Late(f"not within {seconds} s: {why() if callable(why) else why}")
            self.turn()
        return found

    def run(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn()


OPTIONS = {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "top_k": 0, "seed": 1, "choice": 0,
           "max_tokens": 48, "context": 1024, "stops": [END_TOKEN], "budget": 0, "lockstep": False, "selfcheck": 0,
           "single": False}


class Answer(Inbox):
    """An orchestrator's side of one session: the ledger of its tokens, and OPEN in every variation."""

    def __init__(self, hub, target, prompt, **options):
        super().__init__(hub)
        self.target, self.id = target, random.getrandbits(63) | 1
        self.ticket, self.seed, self.epoch = os.urandom(16), random.getrandbits(64), 1
        self.prompt_length = len(prompt)
        self.tokens = list(prompt)
        self.hashes = hashes_of(self.seed, self.tokens)
        self.options = {**OPTIONS, **options}
        self.draft_expected = self.accepted_wanted = False
        self.accepted = []  # 1 or 0 of each token that TOKENS brought
        self.acknowledges, self.done, self.ack_moment = True, None, 0.0
        hub.answers[self.id] = self

    # What the orchestrator says.

    def send(self, kind, *fields, epoch=None):
        self.hub.send(self.target, kind, self.id, self.epoch if epoch is None else epoch, *fields)

    def open_fields(self, base=0, **fields):
        """Of the ledger's prefix on its first `base` tokens; `fields` replace what they would be."""
        f = {"ticket": self.ticket, "hash_seed": self.seed, "base_length": base, "base_hash": self.hashes[base],
             "tokens": self.tokens[base:], "hash": self.hashes[-1], "prompt_length": self.prompt_length,
             "options": list(self.options.values()), "draft_expected": self.draft_expected, "target_endpoint": "",
             "target_incarnation": ZERO, **({"accepted_wanted": True} if self.accepted_wanted else {})}
        assert set(fields) <= set(f)
        return {**f, **fields}.values()

    def open(self, base=0, epoch=None, **fields):
        self.done = None
        self.send("OPEN", *self.open_fields(base, **fields), epoch=epoch)
        return self

    def ack(self, length=None, hash=None, epoch=None):
        length = len(self.tokens) if length is None else length
        self.ack_moment = time.monotonic()
        self.send("ACK", length, self.hashes[length] if hash is None else hash, epoch=epoch)

    def renew(self):
        if time.monotonic() - self.ack_moment > 0.5:
            self.ack()

    def cut(self, length):
        """The ledger forgets its end."""
        del self.tokens[length:], self.hashes[length + 1:]

    # What the target says.

    def on(self, message):
        super().on(message)
        if message.kind == "TOKENS" and message.epoch == self.epoch:
            self._take(*message.fields)
        if message.kind == "DONE" and message.epoch == self.epoch:
            self.done = message.fields
            if self.done[0] > len(self.tokens):
                self.send("RESEND", len(self.tokens))

    def _take(self, base, tokens, hash, accepted, wanted=None):
        assert bool(accepted) == (self.accepted_wanted and len(tokens) > 0), "told to whom asks, and only then"
        assert wanted is None or accepted and wanted[:2] == [[], []] and wanted[2] > 0, "so is the time of a plain step"
        if base > len(self.tokens):
            self.send("RESEND", len(self.tokens))
            return
        overlap = self.tokens[base:base + len(tokens)]
        assert overlap == tokens[:len(overlap)], "repeated tokens are others"
        bits = int.from_bytes(accepted or b"", "little")
        self.accepted += [bits >> i & 1 for i in range(len(overlap), len(tokens))]
        self.tokens += tokens[len(overlap):]
        self.hashes = hashes_of(self.seed, self.tokens, self.hashes)
        assert self.hashes[base + len(tokens)] == hash, "the target's hash"
        if self.acknowledges:
            self.ack()

    @property
    def output(self):
        return self.tokens[self.prompt_length:]

    @property
    def stats(self):
        return dict(zip(STATS, self.done[6]))

    def finish(self, seconds=PATIENCE):
        """Runs until DONE and all tokens are here: the output."""
        self.hub.wait(lambda: self.done and self.done[0] <= len(self.tokens),
                      lambda: f"no end after {len(self.output)} tokens: {[m.kind for m in self.seen[-5:]]}", seconds)
        assert self.done[:2] == [len(self.tokens), self.hashes[-1]], "DONE tells the length and hash of C"
        return self.output

    def end(self):
        """END until ENDED: did it exist?"""
        self.send("END")
        return self.expect("ENDED").fields[0]


def start_target(folder, hub_endpoint, *flags, env=None):
    """A real tandem-target that registers at `hub_endpoint`."""
    return Running(folder, TARGET, "-m", MODEL, "--orchestrator", hub_endpoint, "--ctx", "1024", *flags, env=env)


def registered(hub, count=1):
    """Waits for so many targets: their routing ids."""
    hub.wait(lambda: len(hub.peers) >= count, "no target said HELLO")
    return list(hub.peers)


