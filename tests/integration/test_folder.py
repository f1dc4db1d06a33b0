"""Models as folders (config.json, safetensors) of every architecture, without a vocabulary: prompts and answers are ids."""

import json
import shutil
import subprocess
import unittest

from support import END_TOKEN, ROOT, SUBSET, TANDEM, TIME_LIMIT, Case, batch

FOLDERS = sorted((ROOT / "tests/golden/arch").iterdir())
USED = [f for f in FOLDERS if f.name in ("mistral-window", "qwen3")] if SUBSET else FOLDERS
TOKENS = 64


def golden(folder):
    """Its prompt, and the greedy answer as far as the end token."""
    g = json.loads((folder / "exact.json").read_text())
    out = g["output_ids"]
    end = out.index(END_TOKEN) + 1 if END_TOKEN in out else len(out)
    return {"id": folder.name, "prompt_ids": g["prompt_ids"]}, out[:end]


def ids_of(run):
    return {key: a["token_ids"] for key, a in run.answers.items()}


def smaller(name, count):
    """A golden tokenizer with fewer tokens: the models have 512."""
    t = json.loads((ROOT / f"tests/golden/tokenizers/{name}.json").read_text())
    vocab = {text: i for text, i in t["model"]["vocab"].items() if i < count - len(t["added_tokens"])}
    parts = [(m.split(" ") if isinstance(m, str) else m, m) for m in t["model"]["merges"]]
    t["model"]["merges"] = [m for (a, b), m in parts if a in vocab and b in vocab and a + b in vocab]
    t["model"]["vocab"] = vocab
    for i, added in enumerate(t["added_tokens"]):
        added["id"] = len(vocab) + i
    return t


class Folders(Case):
    def run_one(self, model, record, *flags):
        run = batch(self.folder, [record], "--max-tokens", str(TOKENS), *flags, model=model)
        answer = run.answers[record["id"]]
        self.assertEqual(answer["text"], "")
        return run, answer

    def test_plain_answers_are_the_golden_ones(self):
        for model in USED:
            with self.subTest(model=model.name):
                record, want = golden(model)
                self.assertEqual(self.run_one(model, record, "--math", "f32", "--draft", "none")[1]["token_ids"], want)

    def test_speculation_changes_nothing(self):
        for model in USED:
            record, _ = golden(model)
            for flags in ((), ("--temp", "0.8", "--seed", "7"), ("--math", "bf16")):
                with self.subTest(model=model.name, flags=flags):
                    plain, off = self.run_one(model, record, "--draft", "none", *flags)
                    _, on = self.run_one(model, record, "--draft", f"replay:{plain.path}:0.8:0.3", "--pace", "lockstep", *flags)
                    self.assertEqual(on["numerics_id"].split("/")[0], "bf16-t25" if "bf16" in flags else "int8")
                    self.assertEqual(on["token_ids"], off["token_ids"])
                    self.assertEqual(on["numerics_id"], off["numerics_id"])
                    self.assertGreater(on["stats"]["accepted_tokens"], 0)


class Text(Case):
    """What a model without a vocabulary cannot do is one clear error."""

    def tandem(self, *args, stdin=b""):
        done = subprocess.run([TANDEM, *map(str, args)], input=stdin, capture_output=True, timeout=TIME_LIMIT)
        return done.returncode, done.stdout, done.stderr.decode()

    def refused(self, phrase, *args, stdin=b""):
        status, out, errors = self.tandem(*args, stdin=stdin)
        self.assertNotEqual(status, 0)
        self.assertEqual(out, b"")
        self.assertIn(phrase, errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)

    def test_text_is_refused(self):
        model = FOLDERS[0]
        self.refused("no vocabulary", "run", "-m", model, "Hello")
        self.refused("no vocabulary", "tokenize", "-m", model, stdin=b"Hello")
        self.refused("no vocabulary", "detokenize", "-m", model, stdin=b"[1]")
        source, out = self.folder / "in.jsonl", self.folder / "out.jsonl"
        source.write_text('{"id": 1, "prompt": "Hello"}\n{"id": 2, "prompt_ids": [5, 512]}\n{"id": 3, "prompt_ids": [5]}\n')
        self.tandem("batch", "-m", model, "--draft", "none", "--max-tokens", 4, source, out)
        text, foreign, right = (json.loads(line) for line in out.read_text().splitlines())
        self.assertIn("no vocabulary", text["error"])
        self.assertIn("no token id from 0 to 511", foreign["error"])
        self.assertEqual(len(right["token_ids"]), 4)

    def test_doctor_describes_a_folder(self):
        status, out, errors = self.tandem("doctor", "-m", FOLDERS[0])
        self.assertEqual(status, 0, errors)
        self.assertIn("3 layers of 128", out.decode())
        self.assertIn("no vocabulary", out.decode())

    def test_a_tokenizer_beside_it_gives_text(self):
        """Both programs read tokenizer.json: the hashes of their vocabularies must agree, padding included."""
        model = self.folder / "model"
        shutil.copytree(ROOT / "tests/golden/arch/qwen2", model)
        (model / "tokenizer.json").write_text(json.dumps(smaller("qwen2", 500)))
        status, out, errors = self.tandem("tokenize", "-m", model, stdin=b"Hello there 12")
        self.assertEqual(status, 0, errors)
        ids = [int(i) for i in out.split()]
        status, out, errors = self.tandem("detokenize", "-m", model, stdin=json.dumps(ids).encode())
        self.assertEqual((status, out), (0, b"Hello there 12"), errors)
        status, out, errors = self.tandem("run", "-m", model, "--raw", "--json", "--max-tokens", 8, "--draft", "none",
                                          "Hello there 12")
        self.assertEqual(status, 0, errors)
        answer = json.loads(out)
        run = batch(self.folder, [{"id": 1, "prompt_ids": ids}], "--max-tokens", "8", "--draft", "none", model=model)
        self.assertEqual(answer["token_ids"], run.answers[1]["token_ids"])
        (model / "tokenizer.json").write_text('{"model": []}')
        self.refused("tokenizer", "tokenize", "-m", model, stdin=b"Hello")

    def test_bad_folders(self):
        model = self.folder / "model"
        shutil.copytree(FOLDERS[0], model)
        weights = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(weights[:-1000])
        self.refused("cut short", "run", "-m", model, "Hello")
        (model / "model.safetensors").write_bytes(b"\xff" * 100)
        self.refused("model.safetensors", "run", "-m", model, "Hello")
        (model / "model.safetensors").unlink()
        self.refused("model.safetensors", "run", "-m", model, "Hello")
        (model / "config.json").write_text('{"model_type": "gemma3"}')
        self.refused("gemma3", "run", "-m", model, "Hello")
        (model / "config.json").unlink()
        self.refused("config.json", "run", "-m", model, "Hello")


if __name__ == "__main__":
    unittest.main()
