"""A running `tandem serve` as its operator sees it: `tandem workers` and `tandem top`."""

import json
import os
import pty
import re
import socket
import subprocess
import threading
import unittest

from command_line import IO, LONG, OK, USAGE, tandem
from programs import MODEL, TANDEM, TIME_LIMIT, Case, wait_until, whole_model
from test_serve import CHAT, STORY, TEXT, Server, chat


class Operated(Case):
    def url(self, server):
        return f"http://127.0.0.1:{server.port}"

    def workers(self, server, *args):
        """(exit status, the workers by role, the errors)"""
        status, out, errors = tandem("workers", *args, "--url", self.url(server), "--json")
        return status, {w["role"]: w for w in json.loads(out)} if out else {}, errors


class Workers(Operated):
    def test_a_drained_target_ends_what_it_has_and_begins_nothing(self):
        server = Server(self, "--sessions", "2")
        status, found, _ = self.workers(server)
        self.assertEqual((status, set(found)), (OK, {"target", "draft"}))
        self.assertEqual({w["state"] for w in found.values()}, {"ready"})
        c = server.connect()
        c.request("POST", TEXT, json.dumps(dict(STORY, max_tokens=300, stream=True)))
        under_way = c.getresponse()
        under_way.readline()
        digits = found["target"]["id"][:8]
        self.assertEqual(self.workers(server, "drain", digits)[1]["target"]["state"], "drained")
        late = []
        ask = threading.Thread(target=lambda: late.append(server.ask("POST", CHAT, chat())))
        ask.start()
        wait_until(lambda: "vllm:num_requests_waiting" in self.metrics(server))
        self.assertTrue(under_way.read().strip().endswith(b"data: [DONE]"))
        c.close()
        wait_until(lambda: self.workers(server)[1]["target"]["load"] == 0)
        self.assertEqual(late, [])
        self.assertEqual(self.workers(server, "resume", digits)[1]["target"]["state"], "ready")
        ask.join()
        self.assertEqual(late[0][0], 200)

    def metrics(self, server):
        """The names of those that are not 0."""
        c = server.connect()
        c.request("GET", "/metrics")
        lines = c.getresponse().read().decode().splitlines()
        c.close()
        return {line.split("{")[0] for line in lines if line[0] != "#" and float(line.split()[-1])}

    def test_who_may_drain(self):
        """Without keys everybody, as in the other tests."""
        for flags, keys in (
            (("--api-key", "one"), {"one": False}),
            (("--api-key", "one", "--admin-key", "root"), {"one": False, "root": True}),
            (("--admin-key", "root"), {"": False, "root": True}),
        ):
            server = Server(self, *flags)
            for key, taken in keys.items():
                given = ("--api-key", key) if key else ()
                status, found, errors = self.workers(server, *given)
                self.assertEqual(status, OK, errors)
                status, found, errors = self.workers(server, "drain", found["target"]["id"], *given)
                self.assertEqual(status, OK if taken else IO, (flags, errors))
                self.assertEqual("--admin-key" in errors, not taken)
            server.program.close()

    def test_what_cannot_be_drained_is_one_line(self):
        server = Server(self)
        for args, phrase in ((("drain",), "which worker?"), (("drain", "x"), "begins with 'x'"),
                             (("stop", "x"), "only drain and resume")):
            status, _, errors = self.workers(server, *args)
            self.assertEqual((status, errors.count("\n")), (USAGE, 1))
            self.assertIn(phrase, errors)
        for path, body, status in (("0" * 32, {"drained": True}, 404), ("x", {"drained": True}, 404),
                                   ("0" * 32, {}, 400), ("0" * 32, {"drained": 1}, 400), ("", {}, 404)):
            self.assertEqual(server.ask("POST", "/v1/workers/" + path, body)[0], status, (path, body))

    def test_where_nobody_answers(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{s.getsockname()[1]}"
            for args in (("workers", "--url", url), ("top", url), ("top", "--once", url)):
                status, _, errors = tandem(*args)
                self.assertEqual((status, errors.count("\n")), (IO, 1))
                self.assertIn("start `tandem serve'", errors)


class Logs(Operated):
    def objects(self, text):
        """The lines of a log, which all are objects."""
        found = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
        for o in found:
            self.assertLessEqual({"time", "level", "program", "text"}, set(o))
        return found

    def test_each_line_of_all_three_programs_is_an_object(self):
        server = Server(self, "--log-format", "json", "--verbose")
        given = {"X-Request-Id": 'say "x"'.replace(" ", "-")}
        self.assertEqual(server.ask("POST", CHAT, chat(), given)[0], 200)
        about = lambda: [o for o in self.objects(server.errors) if "request" in o]
        wait_until(lambda: len(about()) == 2)
        begun, ended = about()
        self.assertEqual({begun["request"], ended["request"]}, {given["X-Request-Id"]})
        self.assertRegex(begun["session"], "^[0-9a-f]{16}$")
        self.assertEqual(begun["session"], ended["session"])
        self.assertIn("choice 0 ended: length, 40 tokens", ended["text"])
        programs = {o["program"]: o for o in self.objects(server.errors)}
        self.assertEqual(set(programs), {"tandem", "tandem-target", "tandem-draft"})
        self.assertIn(begun["session"], {o.get("session") for o in self.objects(server.errors)
                                         if o["program"] == "tandem-target"})

    def test_an_answer_and_a_mistake_on_the_command_line(self):
        flags = "-m", MODEL, "--log-format", "json", "--max-tokens", "8", "--ledger", "none"
        status, out, errors = tandem("run", *flags, "Say hi.")
        self.assertEqual(status, OK)
        closing = [o for o in self.objects(errors) if o["text"].startswith("8 tokens")]
        self.assertEqual([(o["program"], o["level"]) for o in closing], [("tandem", "info")])
        bad = tandem("run", "-m", os.devnull, "--log-format", "json", "x")[2]
        self.assertEqual(self.objects(bad)[0]["level"], "error")


class Traces(Operated):
    def spans(self, path):
        """{lane's name: its spans, by their beginning}"""
        with open(path) as f:
            events = json.load(f)
        lanes = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
        found = {name: [] for name in lanes.values()}
        for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
            found[lanes[e["tid"]]].append(e)
        return found

    def total(self, spans, key):
        return sum(s.get("args", {}).get(key, 0) for s in spans)

    @whole_model
    def test_the_three_programs_tell_of_one_answer(self):
        path = self.folder / "trace.json"
        flags = ("-m", MODEL, "--max-tokens", "60", "--ledger", self.folder / "ledger", "--json", "--pace",
                 "lockstep")
        told = json.loads(tandem("run", *map(str, flags), "--trace", str(path), LONG[1])[1])
        plain = json.loads(tandem("run", *map(str, flags), LONG[1])[1])
        self.assertEqual(told["token_ids"], plain["token_ids"])
        ours = self.spans(path)
        session, ledger = ours[f"session {told['session']}"], ours["ledger"]
        whole, *parts = session
        self.assertEqual((whole["name"], parts[0]["name"]), ("answer", "prefill"))
        self.assertEqual({p["name"] for p in parts[1:]}, {"round"})
        for a, b in zip(parts, parts[1:]):
            self.assertEqual(a["ts"] + a["dur"], b["ts"])
        self.assertLessEqual(parts[-1]["ts"] + parts[-1]["dur"], whole["ts"] + whole["dur"])
        self.assertEqual(self.total(parts, "tokens"), 60)
        self.assertEqual(self.total(parts, "accepted"), told["stats"]["accepted_tokens"])
        self.assertTrue(0 < self.total(ledger, "tokens") <= 60 + told["prompt_tokens"])
        engine = self.spans(f"{path}.target")["engine"]
        self.assertLessEqual({"prefill", "verify"}, {s["name"] for s in engine})
        self.assertEqual({s for e in engine for s in e["args"]["sessions"]}, {told["session"]})
        self.assertEqual(self.total(engine, "tokens"), 60)
        for s in engine:  # by the same clock
            self.assertTrue(whole["ts"] <= s["ts"] <= whole["ts"] + whole["dur"])
        drafts = self.spans(f"{path}.draft")["engine"]
        self.assertGreater(self.total([s for s in drafts if s["name"] == "draft"], "queries"), 0)

    def test_a_file_that_cannot_be_written(self):
        path = str(self.folder / "absent/t")
        status, _, errors = tandem("run", "-m", MODEL, "--trace", path, "x")
        self.assertEqual((status != OK, errors.count("\n")), (True, 1), errors)
        self.assertIn(path, errors)


class Top(Operated):
    def test_it_shows_answers_and_workers_once_and_on_a_terminal(self):
        server = Server(self, "--api-key", "k")
        key = {"Authorization": "Bearer k"}
        c = server.connect()
        c.request("POST", TEXT, json.dumps(dict(STORY, stream=True)), key)
        under_way = c.getresponse()
        answer = json.loads(under_way.readline()[6:])["id"]
        status, out, errors = tandem("top", "--once", "--api-key", "k", self.url(server))
        self.assertEqual(status, OK, errors)
        text = out.decode()
        self.assertIn("answers     1 of 4 running, 0 waiting, 0 ended\n", text)
        self.assertGreater(float(re.search(r"tokens +([0-9.]+) tok/s", text)[1]), 0)
        self.assertGreater(float(re.search(r"wire +[0-9.]+ kB/s to workers, ([0-9.]+)", text)[1]), 0)
        self.assertRegex(text, r"\n[0-9a-f]{8}  target  ready +1 of 4  int8")
        self.assertRegex(text, rf"\n{answer[:41]} +\d+ +\d+ +\d+  on\n")
        self.on_a_terminal(server)
        c.sock.shutdown(socket.SHUT_RDWR)
        c.close()
        status, _, errors = tandem("top", "--api-key", "wrong", self.url(server))
        self.assertEqual((status, "refuses: a wrong API key" in errors), (IO, True))

    def on_a_terminal(self, server):
        ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "vt100", "TANDEM_API_KEY": "k"}
        top = subprocess.Popen([TANDEM, "top", self.url(server)], stdin=theirs, stdout=theirs, env=env)
        os.close(theirs)
        shown = b""
        while b"quit" not in shown:
            shown += os.read(ours, 65536)
        for word in (b"tok/s", b"acceptance", b"target", b"q: quit"):
            self.assertIn(word, shown)
        os.write(ours, b"q")
        try:
            while os.read(ours, 65536):
                pass
        except OSError:  # the other end is closed
            pass
        self.assertEqual(top.wait(TIME_LIMIT), OK)
        os.close(ours)


if __name__ == "__main__":
    unittest.main()
