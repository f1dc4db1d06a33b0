"""What the integration tests share: the programs, runs of them with their counters, processes, and a small client
of the wire protocol that plays orchestrator and draft.

TANDEM_BIN: folder of the three programs (default build/release/bin).
TANDEM_SUBSET=1: fewer prompts and shorter answers, for sanitized builds.
"""

import atexit
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import msgpack
import xxhash
import zmq

# A suite that was started in the background has inherited ignored signals, which the programs would respect.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# The ledger of whoever runs the suite is none of its business. A file is there, so that nobody is told of a new one.
STATE = tempfile.mkdtemp(prefix="tandem-state-")
pathlib.Path(STATE, "tandem").mkdir()
pathlib.Path(STATE, "tandem/ledger.sqlite").touch()
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
os.environ["XDG_STATE_HOME"] = STATE

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "build/release/bin"))
TANDEM, TARGET, DRAFT = (str(BIN / name) for name in ("tandem", "tandem-target", "tandem-draft"))
MODEL = str(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
GOLDEN = ROOT / "tests/golden/smollm2_greedy.jsonl"
SUBSET = os.environ.get("TANDEM_SUBSET", "0") not in ("", "0")
LAYERS, END_TOKEN, VOCABULARY = 30, 2, 49152  # of the default model
TIME_LIMIT = 900 if SUBSET else 300  # seconds for a program to end
PATIENCE = 120 if SUBSET else 20  # seconds for a message or a line


def tell(text):
    """A line of figures in the test's output."""
    print(f"\n    {text}", file=sys.stderr, end=" ", flush=True)


def golden():
    with open(GOLDEN) as f:
        return [json.loads(line) for line in f]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for needed in (TANDEM, TARGET, DRAFT, MODEL):
            if not os.path.exists(needed):
                raise AssertionError(f"{needed} is missing: run scripts/get_model.sh and build, or scripts/run.sh")
        cls.folder = new_folder(cls.addClassCleanup)

    def setUp(self):
        self.folder = new_folder(self.addCleanup)


def new_folder(add_cleanup):
    """Short: paths of sockets lie in it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-it-"))
    add_cleanup(shutil.rmtree, folder, ignore_errors=True)
    return folder


# --- processes ---


def children_of(pid):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def child_named(pid, name):
    """The child of `pid` that runs this program, or None."""
    for child in children_of(pid):
        try:
            program = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            continue
        if os.path.basename(program.decode()) == name:
            return child
    return None


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Running:
    """A program under way: its stdout as it comes, with the moment of every piece; its stderr in a file."""

    def __init__(self, folder, *args, env=None, stdin=subprocess.DEVNULL):
        self.log = folder / f"stderr-{time.monotonic_ns()}"
        self.pieces = []  # (moment, bytes)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(args, stdin=stdin, stdout=subprocess.PIPE, stderr=log,
                                            env=dict(os.environ, **(env or {})))
        self.pid = self.process.pid
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while data := os.read(self.process.stdout.fileno(), 65536):
            self.pieces.append((time.monotonic(), data))

    @property
    def out(self):
        return b"".join(data for _, data in list(self.pieces))

    @property
    def errors(self):
        return self.log.read_text("utf-8", "replace")

    def silence(self, since):
        """The longest time without output from `since` on, until the last piece."""
        moments = [since] + [moment for moment, _ in list(self.pieces) if moment > since]
        return max((b - a for a, b in zip(moments, moments[1:])), default=0.0)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, seconds=TIME_LIMIT):
        """Waits for the end: the exit status."""
        status = self.process.wait(timeout=seconds)
        self.reader.join(timeout=seconds)
        return status

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join(timeout=5)
        self.process.stdout.close()
        if self.process.stdin:
            self.process.stdin.close()


# --- batches ---

Batch = collections.namedtuple("Batch", "answers counters errors path")


def counters_of(errors):
    """What tandem-target printed at its end with --counters; None when it did not."""
    lines = [line for line in errors.splitlines() if line.startswith('{"engine"')]
    return json.loads(lines[-1]) if lines else None


def batch(folder, records, *flags, env=None, model=MODEL):
    """`tandem batch` over prompt_ids of records: its answers by id, and the target's counters."""
    name = f"{time.monotonic_ns()}"
    source, out = folder / f"{name}.in.jsonl", folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps({"id": r["id"], "prompt_ids": r["prompt_ids"]}) + "\n" for r in records))
    done = subprocess.run([TANDEM, "batch", "-v", "-m", str(model), *flags, str(source), str(out)], capture_output=True,
                          timeout=TIME_LIMIT, env=dict(os.environ, **(env or {})))
    errors = done.stderr.decode("utf-8", "replace")
    assert done.returncode == 0, f"status {done.returncode}: {errors}"
    answers = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [a["id"] for a in answers] == [r["id"] for r in records], errors
    return Batch({a["id"]: a for a in answers}, counters_of(errors), errors, out)


def total(answers, figure):
    return sum(a["stats"][figure] for a in answers.values())


# --- the wire: messages ---

NUMBERS = {"HELLO": 1, "WELCOME": 2, "ERROR": 3, "PING": 4, "PONG": 5, "BYE": 6, "OPEN": 10, "OPENED": 11, "END": 12,
           "ENDED": 13, "DESYNC": 14, "TOKENS": 20, "ACK": 21, "RESEND": 22, "DONE": 23, "ATTACH": 30, "ATTACHED": 31,
           "NODES": 32, "TREE_RESET": 33, "DETACH": 34}
NAMES = {number: name for name, number in NUMBERS.items()}
CODES = {"limit": -4, "bad_argument": -5, "full": -6, "protocol": -10, "version": -11, "mismatch": -12, "desync": -13,
         "gone": -14, "stale": -15, "bad_ticket": -16, "draining": -18}
ORCHESTRATOR_ROLE, TARGET_ROLE, DRAFT_ROLE = 1, 2, 3
STOP, LENGTH, CANCELLED, ERROR_FINISH = 1, 2, 3, 4
ZERO = bytes(16)
STATS = ("forwards rounds rows accepted rewound prefill_us queue_us forward_us accept_us commit_us wait_us plain_steps "
         "resets dropped accepted_per_pos").split()

Message = collections.namedtuple("Message", "kind to session epoch fields")


def encode(kind, to, session, epoch, *fields):
    return msgpack.packb([NUMBERS[kind], to, session, epoch, *fields], use_single_float=True)


def decode(frame):
    kind, to, session, epoch, *fields = msgpack.unpackb(frame)
    return Message(NAMES[kind], to, session, epoch, fields)


def hello_fields(role, incarnation, versions=(2, 2), vocabulary_hash=ZERO, vocabulary_size=0, method=""):
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

        if not self.hub.wait(lambda: find() is not None, seconds):
            raise AssertionError(f"no {kind} came; since the last look: {[m.kind for m in self.seen[self.looked:]]}")
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

    def wait(self, condition, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            self.turn()
        return True

    def run(self, seconds):
        self.wait(lambda: False, seconds)


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
        self.draft_expected = False
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
             "target_incarnation": ZERO}
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
            self._take(*message.fields[:3])
        if message.kind == "DONE" and message.epoch == self.epoch:
            self.done = message.fields
            if self.done[0] > len(self.tokens):
                self.send("RESEND", len(self.tokens))

    def _take(self, base, tokens, hash):
        if base > len(self.tokens):
            self.send("RESEND", len(self.tokens))
            return
        overlap = self.tokens[base:base + len(tokens)]
        assert overlap == tokens[:len(overlap)], "repeated tokens are others"
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
        if not self.hub.wait(lambda: self.done and self.done[0] <= len(self.tokens), seconds):
            raise AssertionError(f"no end after {len(self.output)} tokens: {[m.kind for m in self.seen[-5:]]}")
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
    if not hub.wait(lambda: len(hub.peers) >= count):
        raise AssertionError("no target said HELLO")
    return list(hub.peers)


