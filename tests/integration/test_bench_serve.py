"""`tandem bench serve`: a load on our own server, and on servers that behave badly."""

import http.server
import json
import pathlib
import socket
import threading

from command_line import FAILED, OK, USAGE, tandem
from support import Case
from test_serve import Server

FILE = 3  # of tandem-bench
WORDS = ["one ", "two ", "three ", "four"]


def event(o):
    return b"data: " + (o if isinstance(o, bytes) else json.dumps(o).encode()) + b"\n\n"


class Odd(http.server.BaseHTTPRequestHandler):
    """Answers as the prompt says: "whole", "cut", "refused", "wrong"; the key must be right."""

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200, json.dumps({"data": [{"id": "a model"}]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, body, self.headers["Authorization"]))
        how = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        pieces = [event({"choices": [{"delta": {"content": w}}]}) for w in WORDS]
        if how == "refused":
            return self.reply(400, b'{"error": {"message": "this is too long"}}')
        if how == "wrong":
            return self.reply(200, b"data: <html>\n\n")
        if how == "cut":
            return self.reply(200, b"".join(pieces[:2]))
        if how == "draft matters" and body.get("speculation", {}).get("enabled", True):
            pieces.pop()
        return self.reply(200, b"".join(pieces) + event(b"[DONE]"))


class BenchServe(Case):
    def prompts(self, *texts):
        file = pathlib.Path(self.folder) / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": t}) + "\n" for t in texts))
        return file

    def odd_server(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd)
        server.bodies = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server, f"127.0.0.1:{server.server_port}"

    def loads(self, status, *args):
        got, out, errors = tandem("bench", "serve", *map(str, args), "--json")
        self.assertEqual(got, status, errors)
        return [json.loads(line) for line in out.decode().splitlines()], errors

    def test_our_own_server(self):
        """With a draft and without one: the same answers, and figures that fit together."""
        server = Server(self, "--pace", "lockstep")
        file = self.prompts("Count from one to twenty.", "Write a poem about the sea.")
        args = (f"http://127.0.0.1:{server.port}", file, "--concurrency", "1,2", "--max-tokens", "24",
                "--speculation", "both")
        rows, _ = self.loads(OK, *args)
        self.assertEqual([(r["concurrency"], r["speculation"]) for r in rows],
                         [(1, False), (1, True), (2, False), (2, True)])
        for r in rows:
            self.assertEqual((r["requests"], r["failed"], r["output_tokens"]), (2, 0, 48))
            self.assertLess(0, r["ttft_ms"]["p50"])
            self.assertLessEqual(r["ttft_ms"]["p99"], r["e2el_ms"]["p99"])
            speed = 48 / r["seconds"]
            self.assertAlmostEqual(r["output_tokens_per_second"], speed, delta=0.01 * speed)
            self.assertEqual(r["answers_that_differ"] if r["speculation"] else 0, 0)
        self.assertEqual([r["draft_tokens"] for r in rows if not r["speculation"]], [0, 0])
        self.assertGreater(rows[1]["draft_tokens"], 0)
        status, out, errors = tandem("bench", "serve", *map(str, args))
        self.assertEqual((status, out.decode().count(" 0 answers differ")), (OK, 2), errors)

    def test_what_is_sent(self):
        server, url = self.odd_server()
        file = self.prompts("whole", "whole too")
        flags = {"num-prompts": 3, "temp": 0.5, "seed": 7, "max-tokens": 9, "api-key": "secret",
                 "request-rate": 500, "speculation": "off"}
        words = [f"--{k}={v}" for k, v in flags.items()]
        rows, _ = self.loads(OK, f"http://{url}/v1/", file, "--concurrency", "1", *words)
        path, body, key = server.bodies[2]
        self.assertEqual((path, key), ("/v1/chat/completions", "Bearer secret"))
        self.assertEqual(body, {"model": "a model", "messages": [{"role": "user", "content": "whole"}],
                                "max_tokens": 9, "temperature": 0.5, "stream": True, "seed": 7,
                                "stream_options": {"include_usage": True}, "speculation": {"enabled": False}})
        self.assertEqual((len(server.bodies), rows[0]["output_tokens"]), (3, 3 * len(WORDS)))
        self.loads(OK, url, file, "--endpoint", "completions", "-m", "other")
        path, body, _ = server.bodies[3]
        self.assertEqual((path, body["prompt"], body["model"]), ("/v1/completions", "whole", "other"))

    def test_requests_that_fail(self):
        """They are counted and said, and the others go on."""
        _, url = self.odd_server()
        for how, says in (("refused", "this is too long"), ("cut", "without [DONE]"),
                          ("wrong", "not what OpenAI's API gives")):
            rows, _ = self.loads(FAILED, url, self.prompts("whole", how, "whole"), "--concurrency", "2")
            r = rows[0]
            self.assertEqual((r["requests"], r["failed"], r["output_tokens"]), (3, 1, 2 * len(WORDS)))
            self.assertIn(says, r["first_error"])

    def test_answers_that_differ(self):
        _, url = self.odd_server()
        file = self.prompts("draft matters", "whole")
        rows, _ = self.loads(FAILED, url, file, "--concurrency", "1", "--speculation", "both")
        self.assertEqual(rows[1]["answers_that_differ"], 1)

    def test_usage(self):
        _, url = self.odd_server()
        file, absent = self.prompts("whole"), self.folder / "absent"
        deaf = socket.socket()
        self.addCleanup(deaf.close)
        deaf.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{deaf.getsockname()[1]}"
        for status, phrase, args in (
            (USAGE, "no server", ()), (USAGE, "no prompts", (url,)),
            (USAGE, "--concurrency takes", (url, file, "--concurrency", "0")),
            (USAGE, "--concurrency takes", (url, file, "--concurrency", "1,2,3,4,5,6,7,8,9")),
            (FAILED, f"{nobody}/v1/models", (nobody, file)),
            (FILE, "cannot read", (url, absent)),
            (FILE, "line 1", (url, __file__)),
        ):
            got, _, errors = tandem("bench", "serve", *map(str, args))
            self.assertEqual(got, status, errors)
            self.assertIn(phrase, errors)
