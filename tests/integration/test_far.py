"""A draft that is far from its target, on a line that is slow, is cut or goes dead, or that dies itself: the
answers are those of plain decoding, and tokens are accepted all the same."""

import json
import socket
import threading
import time
import unittest

from far_pair import FarPair, NamespaceLine, ProxyLine
from support import BIN, MODEL, ROOT, SUBSET, Case, batch, golden, tell, total
from tcp_line import HOST, TcpLine

HEAD = str(ROOT / "heads/smollm2-135m-instruct-eagle3.gguf")
PROMPTS = (102, 123, 214)  # golden ones below 100 tokens
TOKENS = 24 if SUBSET else 96
DELAYS = (0.0, 0.02) if SUBSET else (0.0, 0.001, 0.005, 0.02)  # one way
SHORT = 24  # tokens of an answer where there are many
LOCKSTEP = ("--pace", "lockstep", "--budget", "7")
REPEATED = 4  # times that each is asked while something goes wrong


class Far(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.records = [r for r in golden() if r["id"] in PROMPTS]
        cls.plain = batch(cls.folder, cls.records, "--draft", "none", "--max-tokens", str(TOKENS))

    def answers(self, draft, delay, serve=(), disturb=None, every=1.0):
        """Through a proxy. All are as in plain decoding, and tokens were accepted."""
        times = range(REPEATED if disturb else 1)
        lines = [{"id": f"{r['id']} {k}", "prompt_ids": r["prompt_ids"], "max_tokens": TOKENS}
                 for k in times for r in self.records]
        with ProxyLine(self.folder, delay) as line:
            pair = FarPair(line, BIN, MODEL, self.folder, draft=draft, serve=serve)
            answers = {a["id"]: a for a in pair.answers(lines, disturb, every)}
        for i, a in answers.items():
            plain = self.plain.answers[int(i.split()[0])]
            self.assertEqual(a["token_ids"], plain["token_ids"], (i, pair.log.read_text()))
        self.assertEqual(set(answers), {line["id"] for line in lines})
        accepted = total(answers, "accepted_tokens")
        tell(f"{delay * 1000:.0f} ms: {accepted} tokens accepted, {line.tcp.connections} connections")
        self.assertGreater(accepted, 0, pair.log.read_text())
        return line, pair

    @property
    def replay(self):
        return "--draft", f"replay:{self.plain.path}:0.9:0.5"

    @property
    def methods(self):
        """{name: (flags of its draft, does it guess right in lockstep?)}"""
        head = "-m", MODEL, "-md", HEAD
        return {"replay": (self.replay, True), "ngram": (("--draft", "ngram"), True),
                "eagle3": (("--draft", "eagle3", *head), True),
                "eagle3,ngram": (("--draft", "eagle3,ngram", *head), True),
                "layers": (("-m", MODEL, "--draft-layers", "8"), False)}  # hardly ever

    def every_method(self, line, delays=(None,), lockstep=True):
        """One orchestrator and one target, to which each method's draft comes in its turn. A delay of None:
        the line's own."""
        lines = [{"id": r["id"], "prompt_ids": r["prompt_ids"], "max_tokens": SHORT}
                 for r in self.records[::2]]
        serve = LOCKSTEP if lockstep else ()
        pair = FarPair(line, BIN, MODEL, self.folder, draft=self.replay, serve=serve)
        with pair.running() as serve:
            for name, (flags, right) in self.methods.items():
                pair.change_draft(*flags)
                for delay in delays:
                    if delay is not None:
                        line.tcp.delay = delay
                    found = pair.ask(serve, lines)
                    accepted, verified = self.exact(pair, name, found)
                    tell(f"{name}, {delay} s: {accepted} of {verified} nodes accepted")
                    if lockstep:
                        counted = accepted if right else verified
                        self.assertGreater(counted, 0, (name, delay, pair.log.read_text()))

    def exact(self, pair, name, found):
        """As in plain decoding. The numbers of accepted and of verified nodes."""
        for a in found:
            plain = self.plain.answers[a["id"]]["token_ids"][:SHORT]
            self.assertEqual(a["token_ids"], plain, (name, pair.log.read_text()))
            self.assertEqual(len(plain), a["stats"]["forwards"] + a["stats"]["accepted_tokens"], name)
        return [sum(a["stats"][key] for a in found) for key in ("accepted_tokens", "draft_tokens")]

    def test_every_method_at_every_delay(self):
        with ProxyLine(self.folder) as line:
            self.every_method(line, DELAYS)

    def test_every_method_in_free_pace(self):
        with ProxyLine(self.folder) as line:
            self.every_method(line, lockstep=False)

    def test_every_method_where_packets_are_lost(self):
        line = NamespaceLine(delay=0.005, loss=0.01)
        try:
            line.__enter__()
        except OSError as e:
            self.skipTest(f"network namespaces or TUN devices are not permitted here: {e}")
        self.addCleanup(line.__exit__)
        self.every_method(line)

    def test_free_pace_on_a_slow_line(self):
        for delay in (0.0, 0.005):
            with self.subTest(delay=delay):
                self.answers(self.replay, delay)

    def test_a_line_that_is_cut_again_and_again(self):
        line, _ = self.answers(self.replay, 0.002, disturb=lambda pair: pair.line.tcp.cut(), every=0.3)
        self.assertGreater(line.tcp.connections, 1)

    def test_a_line_that_goes_dead_for_a_while(self):
        def stop_or_go(pair):
            pair.line.tcp.stopped = not pair.line.tcp.stopped

        self.answers(self.replay, 0.0, disturb=stop_or_go, every=0.2)

    def test_a_draft_that_dies_again_and_again(self):
        def die(pair):
            if pair.line.tcp.connections == pair.drafts_started:  # it has reached the target
                pair.end_draft()
                pair.start_draft()

        line, _ = self.answers(self.replay, 0.0, disturb=die, every=0.2)
        self.assertGreater(line.tcp.connections, 1)


class Line(unittest.TestCase):
    """The proxy itself, against a program that sends back what it gets."""

    def setUp(self):
        self.server = socket.create_server((HOST, 0))
        self.addCleanup(self.server.close)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.echo, args=(connection,), daemon=True).start()

    @staticmethod
    def echo(connection):
        with connection:
            while piece := connection.recv(65536):
                connection.sendall(piece)

    def line(self, delay):
        line = TcpLine(self.server.getsockname()[1], delay)
        line.__enter__()
        self.addCleanup(line.__exit__)
        return line, socket.create_connection((HOST, line.port), timeout=20)

    @staticmethod
    def receive(connection, count):
        data = b""
        while len(data) < count:
            piece = connection.recv(65536)
            assert piece, "the line has ended"
            data += piece
        return data

    def test_all_bytes_pass_in_order_and_late(self):
        line, connection = self.line(0.05)
        data = json.dumps(list(range(100000))).encode()
        begin = time.monotonic()
        threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
        self.assertEqual(self.receive(connection, len(data)), data)
        self.assertGreaterEqual(time.monotonic() - begin, 0.1)
        self.assertEqual(line.bytes, 2 * len(data))
        connection.close()

    def test_a_cut_ends_connections_and_takes_new_ones(self):
        line, connection = self.line(0.0)
        connection.sendall(b"a")
        self.assertEqual(self.receive(connection, 1), b"a")
        line.cut()
        self.assertEqual(connection.recv(1), b"")
        connection.close()
        with socket.create_connection((HOST, line.port), timeout=20) as again:
            again.sendall(b"b")
            self.assertEqual(self.receive(again, 1), b"b")
        self.assertEqual(line.connections, 2)

    def test_nothing_passes_while_it_is_stopped(self):
        line, connection = self.line(0.0)
        connection.sendall(b"a")
        self.assertEqual(self.receive(connection, 1), b"a")
        line.stopped = True
        time.sleep(0.1)
        connection.sendall(b"b")
        connection.settimeout(0.3)
        with self.assertRaises(TimeoutError):
            connection.recv(1)
        line.stopped = False
        connection.settimeout(20)
        self.assertEqual(self.receive(connection, 1), b"b")
        connection.close()


if __name__ == "__main__":
    unittest.main()
