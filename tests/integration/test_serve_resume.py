"""Streams of `tandem serve` that were cut, and go on by Last-Event-ID: at the same server, and at one that
was started after the first was killed."""

import http.client
import json
import os
import signal
import threading
import unittest

from support import Case, TIME_LIMIT, wait_until
from test_serve import CHAT, GREEDY, TEXT, Server, chat, text_of

STREAMS = int(os.environ.get("TANDEM_STREAMS", "4"))  # that are cut when their server is killed
EMPTY = "99aa06d3014798d8"  # the hash of no text
PACE = ("--pace", "lockstep", "--budget", "4", "--ctx", "1024", "--sessions", str(STREAMS))


def stream(server, path, body, last=None, most=None):
    """([objects], id of the last event) of a stream, which is cut after `most` events."""
    c = server.connect()
    headers = {"Last-Event-ID": last} if last else {}
    c.request("POST", path, json.dumps(dict(body, stream=True)), headers)
    r = c.getresponse()
    assert r.status == 200, r.read()
    events, name = [], last
    while most is None or len(events) < most:
        data = r.readline().strip().decode()
        if data == "data: [DONE]":
            break
        events.append(json.loads(data.removeprefix("data: ")))
        name = events[-1]["event_id"]
        assert r.readline() == b"\n"
    c.close()
    return events, name


def beginning(name):
    """The id of the same stream's beginning: nothing of any choice has been sent."""
    answer, places = name.rsplit(":", 1)
    return answer + ":" + ",".join("0.0." + EMPTY for _ in places.split(","))


def logprobs_of(events, index):
    out = []
    for e in events:
        for choice in e["choices"]:
            if choice["index"] == index and choice.get("logprobs"):
                out += choice["logprobs"]["content"]
    return out


def finishes(events):
    choices = (c for e in events for c in e["choices"])
    return sorted((c["index"], c["finish_reason"]) for c in choices if c["finish_reason"])


class Reader:
    """A client of a stream that ends when its connection does: what came, and the id of the last event."""

    def __init__(self, server, body):
        self.events, self.last = [], None
        self.thread = threading.Thread(target=self.read, args=(server, body), daemon=True)
        self.thread.start()

    def read(self, server, body):
        c = server.connect()
        try:
            c.request("POST", CHAT, json.dumps(dict(body, stream=True)))
            r = c.getresponse()
            while data := r.readline():
                if r.readline() == b"\n":  # else the event is not whole
                    self.events.append(json.loads(data.removeprefix(b"data: ")))
                    self.last = self.events[-1]["event_id"]
        except (OSError, http.client.HTTPException):
            pass
        finally:
            c.close()


class Resume(Case):
    def compare(self, whole, events):
        """The events say what those of the whole stream said."""
        self.assertEqual(text_of(events), text_of(whole))
        self.assertEqual(finishes(events), finishes(whole))
        self.assertEqual(len({(e["id"], e["created"]) for e in events}), 1)
        for index in text_of(whole):
            self.assertEqual(logprobs_of(events, index), logprobs_of(whole, index))

    def cut_often(self, path, body):
        """Every event is the last one that one client gets."""
        server = Server(self, *PACE)
        whole, _ = stream(server, path, body)
        events, last = stream(server, path, body, most=1)
        first = events[0]
        while len(finishes(events)) < len(finishes(whole)):
            more, last = stream(server, path, body, last=last, most=1)
            self.assertEqual((more[0]["id"], more[0]["created"]), (first["id"], first["created"]))
            events += more
        end, _ = stream(server, path, body, last=last)
        self.assertEqual(finishes(end), [])  # all that is left is [DONE], or usage
        self.compare(whole, events)

    def test_a_chat_that_is_cut_after_every_event(self):
        self.cut_often(CHAT, chat(logprobs=True, top_logprobs=2, max_tokens=24))

    def test_a_sampled_text_that_is_cut_after_every_event(self):
        body = {"prompt": "Once upon a time", "temperature": 1, "max_tokens": 16, "echo": True, "seed": 5}
        self.cut_often(TEXT, body)

    def test_each_choice_goes_on_where_it_was(self):
        body = dict(GREEDY, prompt=["The capital of France is", "One, two, three,"], n=2, max_tokens=12,
                    temperature=0.9, stream_options={"include_usage": True})
        server = Server(self, *PACE)
        for most in (1, 3, 6):  # the server draws the seed, which the id holds
            events, last = stream(server, TEXT, body, most=most)
            more, _ = stream(server, TEXT, body, last=last)
            again, _ = stream(server, TEXT, body, last=last)
            self.assertEqual(text_of(more), text_of(again))
            self.assertEqual([i for i, _ in finishes(events + more)], [0, 1, 2, 3])
            self.assertEqual(more[-1]["usage"]["completion_tokens"], again[-1]["usage"]["completion_tokens"])
            whole, _ = stream(server, TEXT, body, last=beginning(last))
            self.assertEqual(text_of(events + more), text_of(whole))

    def test_a_killed_server_costs_no_stream(self):
        """Clients read until their connection breaks, and ask the next server for the rest."""
        bodies = [chat(f"Tell me a story of {i + 2} cats.", max_tokens=150, temperature=i % 2)
                  for i in range(STREAMS)]
        slow = {"TANDEM_FAULT": "slow-step:50"}  # so that none is whole before the server is killed
        server = Server(self, *PACE, env=slow)
        readers = [Reader(server, body) for body in bodies]
        wait_until(lambda: all(r.last for r in readers), lambda: server.errors, seconds=TIME_LIMIT)
        server.program.signal(signal.SIGKILL)
        for reader in readers:
            reader.thread.join()
        self.assertTrue(any(not finishes(reader.events) for reader in readers))
        after = Server(self, *PACE)
        for body, reader in zip(bodies, readers):
            more, _ = stream(after, CHAT, body, last=reader.last)
            whole, _ = stream(after, CHAT, body, last=beginning(reader.last))
            self.compare(whole, reader.events + more)

    def test_who_reads_event_streams_is_given_lines_of_ids(self):
        server = Server(self, *PACE)
        for accept, lines in (("*/*", 1), ("application/json", 1), ("text/event-stream, */*", 2)):
            c = server.connect()
            c.request("POST", CHAT, json.dumps(chat(stream=True, max_tokens=8)), {"Accept": accept})
            *events, done, end = c.getresponse().read().decode().split("\n\n")
            c.close()
            self.assertEqual((done, end), ("data: [DONE]", ""))
            for event in events:
                data, *more = event.split("\n")
                name = json.loads(data.removeprefix("data: "))["event_id"]
                self.assertEqual(more, [f"id: {name}"][:lines - 1])

    def test_what_cannot_go_on_is_refused(self):
        server = Server(self, *PACE)
        body = chat(max_tokens=16)
        _, last = stream(server, CHAT, body, most=3)
        for phrase, path, given, name in (
                ("is not the id of an event", CHAT, body, "nonsense"),
                ("of another request", TEXT, dict(GREEDY, prompt="x"), last),
                ("of another request", CHAT, dict(body, n=2), last),
                ("another seed", CHAT, dict(body, seed=77), last),
                ("begins in another way", CHAT, chat("Another question?", max_tokens=16), last)):
            status, object, _ = server.ask("POST", path, dict(given, stream=True), {"Last-Event-ID": name})
            self.assertEqual(status, 400, object)
            self.assertIn(phrase, object["error"]["message"])
        whole = server.ask("POST", CHAT, body, {"Last-Event-ID": "nonsense"})  # no stream: it says nothing
        self.assertEqual(whole[0], 200)
        idle = lambda: not any(s["is_processing"] for s in server.ask("GET", "/slots")[1])
        wait_until(idle, seconds=TIME_LIMIT)


if __name__ == "__main__":
    unittest.main()
