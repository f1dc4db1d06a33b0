"""What the integration tests share, first part: the programs, runs of them with their counters, processes. It
needs nothing but Python's own library, so that tests run on a machine that gets binaries alone.

TANDEM_BIN: folder of the three programs (default build/release/bin).
TANDEM_SUBSET=1: fewer prompts and shorter answers, for sanitized builds.
INTEGRATION_MODEL: the model of tests without the mark whole_model (default: the default one); run.py sets it.
"""

import atexit
import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

# A suite that was started in the background has inherited ignored signals, which the programs would respect.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# The ledger of whoever runs the suite is none of its business. A file is there, so that nobody is told of a
# new one.
STATE = tempfile.mkdtemp(prefix="tandem-state-")
pathlib.Path(STATE, "tandem").mkdir()
pathlib.Path(STATE, "tandem/ledger.sqlite").touch()
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
os.environ["XDG_STATE_HOME"] = STATE
os.environ["XDG_CONFIG_HOME"] = STATE  # nor are its keys,
os.environ["XDG_CACHE_HOME"] = STATE  # nor what it remembers

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "build/release/bin"))
TANDEM, TARGET, DRAFT = (str(BIN / name) for name in ("tandem", "tandem-target", "tandem-draft"))
DEFAULT_MODEL = str(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
MODEL = os.environ.get("INTEGRATION_MODEL", DEFAULT_MODEL)
GOLDEN = ROOT / "tests/golden/smollm2_greedy.jsonl"
SUBSET = os.environ.get("TANDEM_SUBSET", "0") not in ("", "0")
THOROUGH = "INTEGRATION_THOROUGH" in os.environ  # set by run.py: all prompts, where a few do for every change
SHALLOW = (0, 1, 28, 29)  # the layers of the default model that a smaller one is made of
LAYERS = 30 if MODEL == DEFAULT_MODEL else len(SHALLOW)
END_TOKEN, VOCABULARY = 2, 49152
PATIENCE = 120  # seconds without the event that a test waits for: only a test that fails waits so long
TIME_LIMIT = 5 * PATIENCE  # seconds for a program with all of its answers: it hangs otherwise
SLOW = {"TANDEM_FAULT": "slow-step:10"}  # no machine is through with a long answer before a test ends it


class Late(AssertionError):
    """Something did not come, and nothing else is known to be wrong: run.py tries such a test once more."""


def thorough(test):
    """A test, or a class of them, that takes too long for every change: for scripts/test.sh --thorough."""
    test.thorough = True
    return test


def whole_model(test):
    """A test, or a class of them, that looks at what the default model says, its goldens, head or size.
    Others have a model of its first and last layers, which makes no sense and is three times as fast."""
    test.whole_model = True
    return test


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
                raise AssertionError(
                    f"{needed} is missing: run scripts/get_model.sh and build, or scripts/run.sh")
        make_keys()
        cls.folder = new_folder(cls.addClassCleanup)

    def setUp(self):
        self.folder = new_folder(self.addCleanup)


def make_keys(folder=pathlib.Path(STATE, "tandem/keys"), *roles):
    """Keys of this process's programs, where they look for them, or of others; those that are there stay."""
    if not folder.exists():
        subprocess.run([TANDEM, "keygen", "--keys", str(folder), *roles], check=True, capture_output=True)
    return folder


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


def wait_until(condition, why="", seconds=PATIENCE):
    """What the condition gives once it is true. If it never is, `why` is told, a text or what gives one."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise Late(f"not within {seconds} s: {why() if callable(why) else why}")
        time.sleep(0.01)
    return found


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
        self.reader.join(timeout=PATIENCE)
        self.process.stdout.close()
        if self.process.stdin:
            self.process.stdin.close()


# --- batches ---

Batch = collections.namedtuple("Batch", "answers counters errors path")
OPTIONS = ("temperature", "seed")


def counters_of(errors):
    """What tandem-target printed at its end with --counters; None when it did not."""
    lines = [line for line in errors.splitlines() if line.startswith('{"engine"')]
    return json.loads(lines[-1]) if lines else None


def sent_bytes(errors):
    """What tandem and its own workers have sent, by program, as --verbose tells at their end."""
    lines = [json.loads(line) for line in errors.splitlines() if line.startswith('{"wire"')]
    sent = {line["wire"]["program"]: line["wire"]["sent_bytes"] for line in lines}
    return {**sent, "tandem-target": counters_of(errors)["wire"]["sent_bytes"]}


def batch(folder, records, *flags, env=None, model=MODEL):
    """`tandem batch` over prompt_ids of records, with what OPTIONS they have: its answers by id, and the
    target's counters."""
    name = f"{time.monotonic_ns()}"
    source, out = folder / f"{name}.in.jsonl", folder / f"{name}.jsonl"
    keys = ("id", "prompt_ids", *OPTIONS)
    lines = [{key: r[key] for key in r if key in keys or "specpv" in key} for r in records]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run([TANDEM, "batch", "-v", "-m", str(model), *flags, str(source), str(out)],
                          capture_output=True, timeout=TIME_LIMIT, env=dict(os.environ, **(env or {})))
    errors = done.stderr.decode("utf-8", "replace")
    assert done.returncode == 0, f"status {done.returncode}: {errors}"
    answers = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [a["id"] for a in answers] == [r["id"] for r in records], errors
    return Batch({a["id"]: a for a in answers}, counters_of(errors), errors, out)


def total(answers, figure):
    return sum(a["stats"][figure] for a in answers.values())
