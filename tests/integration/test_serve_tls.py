"""`tandem serve` over TLS, with a certificate that the test makes, asked by Python's ssl."""

import http.client
import json
import pathlib
import re
import socket
import ssl
import subprocess
import unittest

from command_line import USAGE, tandem
from support import MODEL, PATIENCE, TIME_LIMIT, Case, wait_until
from test_serve import CHAT, STORY, TEXT, Server, chat, text_of


def make_certificate(folder, name):
    """Of 127.0.0.1, signed by itself: the paths of certificate and key."""
    certificate, key = folder / f"{name}.cert.pem", folder / f"{name}.key.pem"
    command = ("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
               "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout").split()
    subprocess.run([*command, key, "-out", certificate], check=True, capture_output=True)
    return str(certificate), str(key)


class Tls(Case):
    def serve(self, *flags):
        certificate, key = make_certificate(pathlib.Path(self.folder), "server")
        tls = ssl.create_default_context(cafile=certificate)
        return Server(self, "--ssl-cert-file", certificate, "--ssl-key-file", key, *flags, tls=tls)

    def test_answers_over_tls(self):
        server = self.serve("--sessions", "1", "--ctx", "4096")
        self.assertIn("listening at https://127.0.0.1:", server.errors)
        whole = server.ask("POST", CHAT, chat())
        self.assertEqual(whole[0], 200)
        events = server.events(CHAT, chat())
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(text_of(events)[0], whole[1]["choices"][0]["message"]["content"])
        self.many_records_and_requests_on_one_connection(server)
        self.strangers(server)
        self.a_client_that_goes_away_frees_its_place(server)

    def many_records_and_requests_on_one_connection(self, server):
        c, text = server.connect(), "one two three " * 70000  # a record of TLS has 16 KiB at most
        for _ in range(2):
            c.request("POST", "/tokenize", json.dumps({"content": text}))
            tokens = json.loads(c.getresponse().read())["tokens"]
            c.request("POST", "/detokenize", json.dumps({"tokens": tokens}))
            self.assertEqual(json.loads(c.getresponse().read())["content"], text)
        self.assertIn(c.sock.version(), ("TLSv1.2", "TLSv1.3"))
        c.close()

    def strangers(self, server):
        """Who does not know the certificate, speaks an old TLS or none, or says nothing, harms nobody."""
        old = ssl.create_default_context(cafile=None)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        for context in (ssl.create_default_context(), old):
            with socket.create_connection(("127.0.0.1", server.port), TIME_LIMIT) as s:
                self.assertRaises(ssl.SSLError, context.wrap_socket, s, server_hostname="127.0.0.1")
        plain = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIME_LIMIT)
        plain.request("GET", "/health")
        with self.assertRaises((http.client.HTTPException, ConnectionError)):
            plain.getresponse()
        silent = socket.create_connection(("127.0.0.1", server.port))
        self.addCleanup(silent.close)
        self.assertEqual(server.ask("GET", "/health")[0], 200)

    def a_client_that_goes_away_frees_its_place(self, server):
        c = server.connect()
        c.request("POST", TEXT, json.dumps(dict(STORY, stream=True)), {"X-Request-Id": "leaves"})
        c.getresponse().readline()
        c.sock.shutdown(socket.SHUT_RDWR)
        c.close()
        ended = lambda: re.search(r"request leaves: .*choice 0 ended: (\w+)", server.errors)
        wait_until(ended, lambda: server.errors)
        self.assertEqual(ended()[1], "cancelled")

    def test_what_is_wrong_with_the_files(self):
        folder = pathlib.Path(self.folder)
        certificate, key = make_certificate(folder, "one")
        other = make_certificate(folder, "other")[1]
        text = folder / "text"
        text.write_text("no PEM\n")
        missing = folder / "none"
        for given, phrase in (((certificate, missing), f"cannot read the key {missing}: No such file"),
                              ((folder, key), f"cannot read the certificate {folder}: "),
                              ((certificate, other), "is not that of the certificate in"),
                              ((text, key), f"cannot use the certificate in {text}")):
            files = "--ssl-cert-file", str(given[0]), "--ssl-key-file", str(given[1])
            status, out, errors = tandem("serve", "-m", MODEL, *files)
            self.assertEqual((status, out, len(errors.splitlines())), (USAGE, b"", 1), errors)
            self.assertIn(phrase, errors)
        for flag in ("--ssl-cert-file", "--ssl-key-file"):
            status, _, errors = tandem("serve", "-m", MODEL, flag, certificate)
            self.assertEqual(status, USAGE)
            self.assertIn("go together", errors)


if __name__ == "__main__":
    unittest.main()
