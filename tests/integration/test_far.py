"""A draft that is far from its target, on a line that is slow, is cut or goes dead, or that dies itself: the
answers are those of plain decoding, and sooner or later tokens are accepted all the same."""

import json
import socket
import threading
import time
import unittest

from far_pair import FarPair, NamespaceLine, ProxyLine
from support import BIN, MODEL, PATIENCE, ROOT, SUBSET, Case, batch, golden, tell, thorough, wait_until
from tcp_line import HOST, TcpLine

HEAD = str(ROOT / "heads/smollm2-135m-instruct-eagle3.gguf")
PROMPTS = (102, 123, 214)  # golden ones below 100 tokens
TOKENS = 24 if SUBSET else 96
DELAYS = (0.0, 0.02) if SUBSET else (0.0, 0.001, 0.005, 0.02)  # one way
SHORT = 24  # tokens of an answer where there are many
LOCKSTEP = ("--pace", "lockstep", "--budget", "7")
OFTEN = 3  # times that something goes wrong, at least


@thorough
class Far(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.records = [r for r in golden() if r["id"] in PROMPTS]
        cls.plain = batch(cls.folder, cls.records, "--draft", "none", "--max-tokens", str(TOKENS))

    def answers(self, draft, delay, disturb=None, every=1.0):
        """Through a proxy. All are as in plain decoding; they are asked for until `disturb`, which says
        whether it did something, has done it OFTEN, and tokens were accepted after the first time."""
        lines = [{"id": r["id"], "prompt_ids": r["prompt_ids"], "max_tokens": TOKENS} for r in self.records]
        accepted, disturbed, answers = 0, 0, 0

        def count(pair):
            nonlocal disturbed
            disturbed += disturb(pair)

        def enough():
            nonlocal accepted, answers
            counts = disturbed or not disturb
            found = pair.ask(serve, lines, count if disturb else None, every)
            for a in found:
                plain = self.plain.answers[a["id"]]
                self.assertEqual(a["token_ids"], plain["token_ids"], (a["id"], pair.log.read_text()))
            answers += len(found)
            accepted += sum(a["stats"]["accepted_tokens"] for a in found if counts)
            return accepted > 0 and (disturbed >= OFTEN or not disturb)

        with ProxyLine(self.folder, delay) as line:
            pair = FarPair(line, BIN, MODEL, self.folder, draft=draft)
            with pair.running() as serve:
                wait_until(enough, lambda: pair.log.read_text())
        told = f"{delay * 1000:.0f} ms: {answers} answers, {accepted} tokens accepted"
        tell(f"{told}, {line.tcp.connections} connections")

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
        cut = 0

        def cut_again(pair):
            nonlocal cut
            if pair.line.tcp.connections <= cut:  # it is not there again
                return False
            cut = pair.line.tcp.connections
            pair.line.tcp.cut()
            return True

        self.answers(self.replay, 0.002, disturb=cut_again, every=0.3)

    def test_a_line_that_goes_dead_for_a_while(self):
        def stop_or_go(pair):
            pair.line.tcp.stopped = not pair.line.tcp.stopped
            return True

        self.answers(self.replay, 0.0, disturb=stop_or_go, every=0.2)

    def test_a_draft_that_dies_again_and_again(self):
        def die(pair):
            if pair.line.tcp.connections < pair.drafts_started:  # it has not reached the target
                return False
            pair.end_draft()
            pair.start_draft()
            return True

        self.answers(self.replay, 0.0, disturb=die, every=0.2)


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
        return line, socket.create_connection((HOST, line.port), timeout=PATIENCE)

    def knock(self, line):
        """One more connection: whatever came before it has been looked at."""
        count = line.connections
        self.addCleanup(socket.create_connection((HOST, line.port), timeout=PATIENCE).close)
        wait_until(lambda: line.connections > count)

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
        with socket.create_connection((HOST, line.port), timeout=PATIENCE) as again:
            again.sendall(b"b")
            self.assertEqual(self.receive(again, 1), b"b")
        self.assertEqual(line.connections, 2)

    def test_nothing_passes_while_it_is_stopped(self):
        line, connection = self.line(0.0)
        connection.sendall(b"a")
        self.assertEqual(self.receive(connection, 1), b"a")
        line.stopped = True
        self.knock(line)  # it has seen that
        connection.sendall(b"b")
        self.knock(line)  # and did not take this
        self.assertEqual(line.bytes, 2)
        line.stopped = False
        self.assertEqual(self.receive(connection, 1), b"b")
        connection.close()


if __name__ == "__main__":
    unittest.main()
