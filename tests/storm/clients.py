"""Who asks in a storm. Requests are drawn from a pool whose undisturbed answers are known, and none is sent
again before it has been answered. No two prompts have the same length, so the ledger's list tells which
session is whose.
"""

import json
import os
import random
import signal
import subprocess
import tempfile

from programs import TANDEM, children_of, is_running
from programs_under_storm import ORCHESTRATOR_SESSIONS, read_some

DRAWN, SERVED, SHOWN = 200, 40, 6  # requests: tried; asked of serve-workers; asked by `tandem run`
MOST_TOKENS = 1500
LEAST_TOKENS = 60
HELPERS = 3  # commands at a time that read or resume what a killed program has left
AGAIN = 0.5  # seconds until a command that met a full disk or a locked ledger is tried again
ORPHANS = 15.0  # seconds after which the workers of a killed `tandem run` must be gone
LIMIT = 300
# What `session resume` says of a session that lacks only its end
COMPLETE, LENGTH = "is complete", "has all of its"
USAGE_STATUS = 2
# Two that look after a dead process's sessions met
TRY_AGAIN = "was changed by another process just now: try again"


class Differs(Exception):
    """A promise was broken; the text says which."""


def draw_requests(seed):
    rng = random.Random(seed)
    for i in range(DRAWN):
        words = " ".join(rng.choices(["hello", "world", "abc", "storm", "no", "calm"], k=rng.randint(1, 40)))
        tokens = rng.randint(LEAST_TOKENS, MOST_TOKENS)
        line = {"id": f"q{i:03}", "prompt": f"q{i:03} {words}", "max_tokens": tokens}
        if i % 3:
            line.update(temperature=rng.choice([0.3, 0.5, 0.7]), seed=i)
        yield line


def undisturbed(storm, lines):
    """{id: answer} by plain decoding in calm weather."""
    source, out = storm.folder / "calm.in.jsonl", storm.folder / "calm.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run([TANDEM, "batch", "-m", storm.model, "--raw", "--draft", "none", "--threads", "1", source,
                    out], check=True, stderr=subprocess.DEVNULL, timeout=LIMIT)
    return {a["id"]: a for a in map(json.loads, out.read_text().splitlines())}


def worth(tokens):
    """Faults meet a long answer; a mistake shows in one that is not the same few tokens again and again."""
    return len(tokens) + 8 * len(set(tokens))


class Helper:
    """A command that must succeed, and then tells what it printed. Only while the ledger cannot be used may
    it say so, or when another process was quicker, and is tried again."""

    def __init__(self, storm, arguments, then, refused=None):
        self.storm, self.arguments = storm, [str(a) for a in arguments]
        self.then, self.refused = then, refused
        self.process, self.not_before = None, 0.0

    def start(self):
        self.out, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.began = self.storm.now()
        self.process = subprocess.Popen([TANDEM, *self.arguments], stdin=subprocess.DEVNULL, stdout=self.out,
                                        stderr=self.errors,
                                        env={**os.environ, **self.storm.control.environment})

    def finished(self):
        if self.process.poll() is None:
            return False
        status, self.process = self.process.returncode, None
        out, errors = (self.text(f) for f in (self.out, self.errors))
        if status == 0:
            self.then(out)
            return True
        if status == USAGE_STATUS and self.refused:
            self.refused(errors)
            return True
        if not self.storm.excuses(status, self.began) and TRY_AGAIN not in errors:
            command = " ".join(self.arguments)
            raise Differs(f"lost: tandem {command} ended with status {status}: {errors[-300:]}")
        self.not_before = self.storm.now() + AGAIN
        return False

    @staticmethod
    def text(f):
        f.seek(0)
        text = f.read().decode("utf-8", "replace")
        f.close()
        return text


class Clients:
    """The requests under way, and what becomes of them."""

    def __init__(self, storm, rng):
        self.storm, self.rng = storm, rng
        lines = list(draw_requests(storm.seed))
        calm = undisturbed(storm, lines)
        lines = {calm[line["id"]]["prompt_tokens"]: line for line in lines}.values()
        best = sorted(lines, key=lambda line: worth(calm[line["id"]]["token_ids"]), reverse=True)
        self.lines = {line["id"]: line for line in best[:SERVED + SHOWN]}
        self.calm = calm
        self.free = [line["id"] for line in best[SHOWN:SERVED + SHOWN]]
        self.free_runs = [line["id"] for line in best[:SHOWN]]
        # id -> since when: of the living orchestrator, of a killed one
        self.asked, self.lost_sight = {}, {}
        self.settled, self.helpers, self.runs = set(), [], []
        self.found = set()  # of lost_sight: those that the ledger has
        self.given = []  # (session, id) of results that the ledger must have, and was not asked about yet
        self.answers = self.resumed = self.asked_again = self.shown_bytes = 0
        self.longest, self.longest_of = 0.0, ""

    @property
    def busy(self):
        return len(self.asked) + len(self.lost_sight) + len(self.runs) + len(self.helpers)

    # The orchestrator.

    def ask(self):
        """As many as it serves at a time, and one more in its pipe."""
        while self.free and len(self.asked) <= ORCHESTRATOR_SESSIONS:
            id = self.free.pop(self.rng.randrange(len(self.free)))
            self.asked[id] = self.storm.now()
            self.storm.world.orchestrator.ask(self.lines[id])

    def take(self, results):
        for result in results:
            if result["id"] not in self.asked:
                raise Differs(f"{result['id']} was answered twice, or without a question")
            self.check(result["id"], result)
            self.settled.add(result["session"])
            self.given.append((result["session"], result["id"]))
            self.over(result["id"], self.asked.pop(result["id"]))

    def check(self, id, answer):
        calm = self.calm[id]
        for key in ("token_ids", "text", "finish_reason"):
            if answer[key] != calm[key]:
                got, want = str(answer[key])[:200], str(calm[key])[:200]
                raise Differs(f"{id}: {key} differs: {got} instead of {want}; {answer.get('error')}")

    def over(self, id, since):
        self.answers += 1
        took = self.storm.now() - since
        if took > self.longest:
            self.longest, self.longest_of = took, id
        self.free.append(id)

    # What a killed orchestrator has left.

    def orchestrator_died(self):
        self.lost_sight.update(self.asked)
        self.asked = {}
        self.look(self.sort_out)

    def look(self, then=lambda listed: None):
        """Whatever was given by now must be in the list."""
        given, self.given = self.given, []

        def listed(text):
            sessions = json.loads(text)
            self.check_kept(given, {s["session"]: s["tokens"] for s in sessions})
            then(sessions)

        self.help(["session", "list", "--json", "--limit", 0, "--ledger", self.storm.ledger], listed)

    def check_kept(self, given, kept):
        for session, id in given:
            tokens = len(self.calm[id]["token_ids"])
            if kept.get(session) != tokens:
                raise Differs(f"{id}: {tokens} tokens were given, {kept.get(session)} are kept")

    def help(self, arguments, then, refused=None):
        self.helpers.append(Helper(self.storm, arguments, then, refused))

    def sessions_of(self, id, listed):
        length = self.calm[id]["prompt_tokens"]
        mine = [s for s in listed if s["prompt_tokens"] == length and s["session"] not in self.settled]
        return sorted(mine, key=lambda s: s["state"] != "interrupted")  # that one first

    def at_rest(self, listed):
        """Nothing is under way, and no session is left in mid-answer. One that was killed between its last
        token and its end lacks nothing else."""
        whole = {self.calm[id]["prompt_tokens"]: len(self.calm[id]["token_ids"]) for id in self.lines}
        for s in listed:
            if s["state"] in ("running", "interrupted") and s["tokens"] != whole[s["prompt_tokens"]]:
                raise Differs(f"lost: session {s['session']} is left {s['state']} with {s['tokens']} tokens")

    def sort_out(self, listed):
        for id in set(self.lost_sight) - self.found:
            mine = self.sessions_of(id, listed)
            if not mine:  # it was killed before it had begun: whoever asks has to ask again
                self.asked_again += 1
                self.asked[id] = self.lost_sight.pop(id)
                self.storm.world.orchestrator.ask(self.lines[id])
                continue
            self.settled.update(s["session"] for s in mine)
            self.found.add(id)
            self.finish_kept(id, mine[0], lambda id=id: self.found_again(id))

    def found_again(self, id):
        self.found.discard(id)
        self.over(id, self.lost_sight.pop(id))

    def finish_kept(self, id, session, then):
        """Its answer as the ledger has it, or goes on with it."""
        def whole(text):
            answer = json.loads(text)
            if session["state"] != "interrupted":
                answer["finish_reason"] = answer["state"]
            self.check(id, answer)
            self.resumed += session["state"] == "interrupted"
            then()

        def complete(errors):
            """It died between its last token and its end: nothing is left to resume."""
            if COMPLETE not in errors and LENGTH not in errors:
                raise Differs(f"lost: {id} cannot be resumed: {errors[-300:]}")
            self.finish_kept(id, {**session, "state": self.calm[id]["finish_reason"]}, then)

        where = ["--ledger", self.storm.ledger, session["session"]]
        if session["state"] == "interrupted":
            self.help(["session", "resume", "--json", *where], whole, complete)
        else:
            self.help(["session", "export", *where], whole)

    # `tandem run`, which shows its answer as it comes.

    def start_run(self, die_after):
        id = self.free_runs.pop()
        self.runs.append(ShownRun(self, id, self.storm.now() + die_after))

    # Every turn.

    def turn(self):
        for run in list(self.runs):
            if run.turn():
                self.runs.remove(run)
        running = [h for h in self.helpers if h.process]
        for helper in running:
            if helper.finished():
                self.helpers.remove(helper)
        for helper in self.helpers:
            if not helper.process and len(running) < HELPERS and self.storm.now() >= helper.not_before:
                helper.start()
                running.append(helper)

    def oldest(self):
        """(seconds, id) of the answer that has been waited for longest."""
        since = {**self.asked, **self.lost_sight, **{run.id: run.began for run in self.runs}}
        return max(((self.storm.now() - moment, id) for id, moment in since.items()), default=(0.0, ""))


class ShownRun:
    """A `tandem run` that is killed in mid-answer. What it has shown must be in the ledger, and the rest must
    come."""

    def __init__(self, clients, id, dies):
        self.clients, self.id, self.dies, self.began = clients, id, dies, clients.storm.now()
        storm, line = clients.storm, clients.lines[id]
        options = [f"--{name[:4]}={line[name]}" for name in ("temperature", "seed") if name in line]
        command = [TANDEM, "run", "-m", storm.model, "--raw", "--ledger", storm.ledger, "--draft", "ngram",
                   "--pace", "lockstep", "--max-tokens", line["max_tokens"], *options, line["prompt"]]
        with open(storm.folder / "run.log", "ab") as log:
            self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=log,
                                            env={**os.environ, **storm.control.environment})
        os.set_blocking(self.process.stdout.fileno(), False)
        self.shown, self.children, self.done = b"", [], False

    def turn(self):
        """True when all is settled."""
        if self.done or self.process is None:
            return self.done and self.no_orphans()
        self.shown += read_some(self.process.stdout)
        if self.process.poll() is None and self.clients.storm.now() < self.dies:
            return False
        self.children = children_of(self.process.pid)
        self.process.kill()
        status = self.process.wait()
        while data := read_some(self.process.stdout):
            self.shown += data
        self.process.stdout.close()
        self.process, self.killed = None, self.clients.storm.now()
        if status not in (0, -signal.SIGKILL) and not self.clients.storm.excuses(status, self.began):
            raise Differs(f"tandem run ended by itself with status {status}")
        self.check_shown(status == 0)
        self.clients.look(self.find)
        return False

    def check_shown(self, whole):
        self.shown = self.shown.removesuffix(b"\n")
        calm = self.clients.calm[self.id]["text"].encode()
        self.clients.shown_bytes += len(self.shown)
        if not calm.startswith(self.shown) or (whole and self.shown != calm):
            same = len(os.path.commonprefix([calm, self.shown]))
            raise Differs(f"{self.id}: {len(self.shown)} bytes were shown, and only {same} are the answer's")

    def no_orphans(self):
        left = [pid for pid in self.children if is_running(pid)]
        if left and self.clients.storm.now() - self.killed > ORPHANS:
            raise Differs(f"workers of a killed tandem run are left: {left}")
        return not left

    def find(self, listed):
        mine = self.clients.sessions_of(self.id, listed)
        if not mine and self.shown:
            raise Differs(f"{self.id}: {len(self.shown)} bytes were shown, and the ledger has no session")
        if not mine:
            return self.settle()
        session = mine[0]
        self.clients.settled.add(session["session"])
        self.clients.help(["session", "export", "--ledger", self.clients.storm.ledger, session["session"]],
                          lambda text: self.compare(session, json.loads(text)))

    def compare(self, session, kept):
        text = kept["text"].encode()
        if not text.startswith(self.shown):
            raise Differs(f"{self.id}: {len(self.shown)} bytes were shown, {len(text)} others are kept")
        self.clients.finish_kept(self.id, session, self.settle)

    def settle(self):
        self.done = True
        self.clients.answers += 1
        self.clients.free_runs.append(self.id)
