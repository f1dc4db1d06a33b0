"""`tandem tokenize` and `detokenize`."""

import json
import unittest

from command_line import BAD_MODEL, OK, PROMPT, Command, detokenize, tandem, tokenize
from models import Gguf
from support import MODEL


class Text(Command):
    def test_text_comes_back_from_its_tokens(self):
        for text in [
            "",
            "Hello, world",
            "  two  spaces\n\n\tand tabs 1234567890",
            "größer 東京 🙂👩‍👩‍👧 é",
            "<|im_start|>user\nhi<|im_end|>\n",
            "a\0b",
            "x" * 100000,
        ]:
            with self.subTest(text=text[:20]):
                ids = tokenize(text.encode())
                self.assertEqual(detokenize(ids), text)
                status, out, _ = tandem("tokenize", "-m", MODEL, stdin=text.encode())
                self.assertEqual([int(n) for n in out.split()], ids)
                status, out, _ = tandem("detokenize", "-m", MODEL, stdin=out)
                self.assertEqual(out.decode(), text)

    def test_special_tokens_are_read_unless_forbidden(self):
        self.assertEqual(tokenize(b"<|im_end|>"), [2])
        plain = tokenize(b"<|im_end|>", "--no-special")
        self.assertGreater(len(plain), 1)
        self.assertEqual(detokenize(plain), "<|im_end|>")

    def test_a_vocabulary_alone_tokenizes_and_answers_nothing(self):
        """A GGUF without tensors gives and takes the same text; who wants an answer of it is told why
        there is none."""
        g = Gguf(MODEL)
        g.tensors = []
        whole, alone = self.folder / "keys.gguf", self.folder / "vocabulary.gguf"
        g.write(whole)
        g.keys = {key: value for key, value in g.keys.items() if key.startswith("tokenizer.")}
        g.write(alone)
        text = "größer <|im_start|>\nHello,  world 123"
        ids = tokenize(text.encode())
        for path in map(str, (whole, alone)):
            status, out, errors = tandem("tokenize", "-m", path, stdin=text.encode())
            self.assertEqual((status, out.decode().split()), (OK, [*map(str, ids)]), errors)
            status, out, errors = tandem("detokenize", "-m", path, stdin=out)
            self.assertEqual((status, out.decode()), (OK, text), errors)
            errors = self.refused(BAD_MODEL, "holds a vocabulary and no weights", "run", "-m", path, PROMPT)
            self.assertEqual(len(errors.splitlines()), 1)
            self.refused(
                BAD_MODEL, "holds a vocabulary and no weights", "batch", "-m", path, "-", "-", stdin=b"{}"
            )
            self.assertIn("BAD   model", tandem("doctor", "-m", path)[1].decode())
        g.keys = {}
        self.refused(BAD_MODEL, "", "tokenize", "-m", str(g.write(alone)), stdin=b"x")

    def test_json_spells_the_tokens(self):
        status, out, _ = tandem("tokenize", "-m", MODEL, "--json", stdin=b"Hello world")
        self.assertEqual(json.loads(out), {"token_ids": [19556, 905], "tokens": ["Hello", "\u0120world"]})

    def test_half_a_character_is_a_replacement(self):
        whole = "🙂"
        ids = tokenize(whole.encode())
        self.assertGreater(len(ids), 1)
        self.assertEqual(detokenize(ids[:-1]), "\ufffd")

    def test_dropped_bytes_are_counted_once(self):
        status, out, errors = tandem("tokenize", "-m", MODEL, stdin=b"a\x04b\x06\x06c")
        self.assertEqual(status, OK)
        self.assertEqual(errors.count("warning"), 1)
        self.assertIn("3 bytes", errors)
        status, out, errors = tandem("run", "-m", MODEL, "--max-tokens", "1", "a\x04b")
        self.assertEqual(status, OK)
        self.assertEqual(errors.count("warning"), 1)
        self.assertIn("1 byte", errors)


if __name__ == "__main__":
    unittest.main()
