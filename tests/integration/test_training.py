"""scripts/train_eagle3.py: the file of prompts, and training on the CPU where PyTorch is installed.

TORCH_PYTHON names a Python that has torch, numpy, tokenizers and jinja2.
"""

import json
import lzma
import os
import random
import re
import struct
import subprocess
import sys
import unittest

from command_line import OK, tandem
from models import Gguf, make_model
from support import MODEL, ROOT, Case

sys.path.insert(0, str(ROOT / "scripts"))
from eagle3_training import files, prompts  # noqa: E402

SCRIPT = str(ROOT / "scripts/train_eagle3.py")
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)
VOCABULARY = 49152


def has_torch():
    packages = "import torch, numpy, tokenizers, jinja2"
    return subprocess.run([PYTHON, "-c", packages], capture_output=True).returncode == 0


def script(*args, python=PYTHON):
    env = dict(os.environ, OMP_NUM_THREADS="1")  # several threads wait for each other on a loaded machine
    done = subprocess.run([python, SCRIPT, *map(str, args)], capture_output=True, text=True, env=env)
    return done.returncode, done.stdout, done.stderr


class PromptFile(Case):
    def write(self, name, text):
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def make(self, *sources, **flags):
        out = str(self.folder / "out.jsonl.xz")
        args = [f"--{name}={value}" for name, value in flags.items()]
        status, text, errors = script("prompts", "--out", out, *args, *sources, python=sys.executable)
        self.assertEqual((status, errors), (0, ""))
        with lzma.open(out, "rt") as f:
            return [json.loads(line)["prompt"] for line in f], text

    def test_prompts_come_from_every_kind_of_file(self):
        csv = self.write("a.csv", 'question,answer\n"What, then?",no\n')
        lines = self.write("b.txt", "First\n\nSecond\n")
        objects = self.write("c.jsonl", '{"text": "a {b}"}\n{"other": 1}\n')
        found, _ = self.make(csv, lines, objects + ":Sum up.\\n\\n{text}")
        self.assertEqual(found, ["What, then?", "First", "Second", "Sum up.\n\na {b}"])

    def test_a_limit_holds_for_each_source(self):
        first = self.write("a.txt", "".join(f"First {i}\n" for i in range(9)))
        second = self.write("b.txt", "Second\n")
        found, _ = self.make(first, second, limit=3)
        self.assertEqual(len([p for p in found if p.startswith("First")]), 3)
        self.assertIn("Second", found)

    def test_conversations_and_packed_files_are_read(self):
        packed = str(self.folder / "a.jsonl.xz")
        said = [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hi"}]
        line = {"messages": said}
        with lzma.open(packed, "wt") as out:
            out.write(json.dumps(line) + "\n")
        self.assertEqual(self.make(packed)[0], ["Hello there"])

    def test_a_prompt_that_shares_eight_words_with_an_evaluation_prompt_is_dropped(self):
        one = "one two three four five six seven eight"
        avoid = self.write("avoid.jsonl", json.dumps({"turns": ["Zero " + one, "Short one"]}))
        other = "one two three four five six seven nine"
        text = f"Or ONE, two three four five six seven eight?\n{other}\nshort one!\nshort"
        source = self.write("s.txt", text)
        found, said = self.make(source, avoid=avoid)
        self.assertEqual(found, [other, "short"])
        self.assertIn("2 left out", said)

    def test_equal_prompts_are_kept_once_and_long_ones_not_at_all(self):
        source = self.write("s.txt", "Same words\nsame, words\n" + "x" * 50 + "\n")
        self.assertEqual(self.make(source, longest=40)[0], ["Same words"])

    def test_a_file_of_another_kind_is_refused(self):
        with self.assertRaises(SystemExit) as stopped:
            prompts.split_source("data.parquet")
        self.assertIn("give a .jsonl, .json, .csv or .txt file", str(stopped.exception))


class HeadFiles(Case):
    def test_tensors_come_back_as_they_were_written(self):
        path = str(self.folder / "a.safetensors")
        tensors = {"a": ("BF16", [2, 1], b"abcd"), **files.id_tensors([5, 0, 9], 10)}
        files.write_safetensors(path, tensors)
        self.assertEqual(files.read_safetensors(path), tensors)
        self.assertEqual(files.read_order(files.read_safetensors(path)), [5, 0, 9])

    def test_the_vocabulary_is_in_order_of_frequency(self):
        self.assertEqual(files.draft_order([2, 2, 2], [2, 2, 2], 2), [0, 1])
        order = files.draft_order([1, 5, 0, 0], [1, 5, 60, 2], 3)
        self.assertEqual(order, [1, 2, 0])
        self.assertEqual(files.coverage(order[:1], [1, 5, 0, 0]), 5 / 6)


def has_numpy():
    return subprocess.run([PYTHON, "-c", "import numpy"], capture_output=True).returncode == 0


def half(data, at):
    return struct.unpack_from("<e", data, at)[0]


def scale_and_minimum(packed, group):
    """Six bits each of the 12 bytes that a block of eight groups has."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low, high = packed[group - 4] >> 6, packed[group] >> 6
    return packed[group + 4] & 15 | low << 4, packed[group + 4] >> 4 | high << 4


def value_of_k(data, i, fifth):
    """Value i of a block of 256 in Q4_K, or with fifth bits in Q5_K."""
    group, lane = divmod(i, 32)
    scale, minimum = scale_and_minimum(data[4:16], group)
    byte = data[len(data) - 128 + group // 2 * 32 + lane]
    quant = byte >> 4 if group % 2 else byte & 15
    if fifth:
        quant += 16 * (data[16 + lane] >> group & 1)
    return half(data, 0) * scale * quant - half(data, 2) * minimum


def value_of_q5_0(data, i):
    byte = data[6 + i % 16]
    quant = (byte >> 4 if i >= 16 else byte & 15) + 16 * (int.from_bytes(data[2:6], "little") >> i & 1)
    return half(data, 0) * (quant - 16)


# name: (bytes of a block, its values)
BLOCKS = {"Q5_0": (22, lambda data: [value_of_q5_0(data, i) for i in range(32)]),
          "Q4_K": (144, lambda data: [value_of_k(data, i, False) for i in range(256)]),
          "Q5_K": (176, lambda data: [value_of_k(data, i, True) for i in range(256)])}
DEQUANTISE = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from eagle3_training.blocks import dequantise
blocks = np.frombuffer(sys.stdin.buffer.read(), np.uint8)
print(json.dumps(dequantise(blocks, sys.argv[2]).flatten().tolist()))
"""


@unittest.skipUnless(has_numpy(), "no numpy")
class Blocks(Case):
    def test_quantised_blocks_are_read_as_the_format_says(self):
        for name, (size, values) in BLOCKS.items():
            blocks = [struct.pack("<ee", 0.25, 0.5) + random.Random(i).randbytes(size - 4) for i in range(3)]
            done = subprocess.run([PYTHON, "-c", DEQUANTISE, ROOT / "scripts", name], input=b"".join(blocks),
                                  capture_output=True, check=True)
            wanted = [v for block in blocks for v in values(block)]
            with self.subTest(name):
                self.assertEqual(json.loads(done.stdout), wanted)


def tiny_model(path):
    """One random layer with the default model's tokenizer and chat template."""
    tiny, whole = Gguf(make_model(path, VOCABULARY)), Gguf(MODEL)
    tiny.keys |= {name: value for name, value in whole.keys.items() if name.startswith("tokenizer.")}
    return tiny.write(path)


@unittest.skipUnless(has_torch(), "no torch")
class Training(Case):
    def setUp(self):
        super().setUp()
        self.model, self.data = tiny_model(str(self.folder / "tiny.gguf")), self.folder / "data"
        self.prompts = self.folder / "prompts.jsonl"
        self.prompts.write_text('{"prompt": "Hi"}\n{"prompt": "Name a bird."}\n')

    def run_script(self, command, *args):
        flags = ["--model", self.model, "--data", self.data, "--device", "cpu", *args]
        status, text, errors = script(command, *flags)
        self.assertEqual(status, 0, text + errors)
        return text

    def generate(self, batches):
        sizes = "--rows", 16, "--length", 64, "--long-length", 96, "--prompts", self.prompts
        return self.run_script("generate", *sizes, "--minutes", 1e6, "--batches", batches)

    def train(self, *args):
        sizes = "--draft-vocab", 256, "--batch-tokens", 512, "--taps", "0,1"
        return self.run_script("train", "--out", self.folder / "head", *sizes, "--lr", 0.01, *args)

    def losses(self, text, name="held out, 64"):
        """Of the first step, before and after."""
        return [json.loads(line)[name]["loss"][0] for line in text.splitlines() if line.startswith("{")]

    def test_a_head_learns_from_what_the_model_writes_and_becomes_a_gguf(self):
        self.generate(2)
        before, after = self.losses(self.train("--minutes", 30, "--iterations", 40))
        self.assertLess(after, before - 0.02)  # the answers of a random model are nearly noise
        out = str(self.folder / "head.gguf")
        status, _, errors = tandem("convert-head", str(self.folder / "head"), out, "-m", self.model)
        self.assertEqual(status, OK, errors)

    def test_rows_without_an_answer_are_refused(self):
        self.run_script("generate", "--rows", 4, "--length", 48, "--batches", 1)
        flags = ["--model", self.model, "--data", self.data, "--device", "cpu", "--out", self.folder / "head"]
        status, _, errors = script("train", *flags)
        self.assertEqual(status, 1)
        self.assertIn("has an answer: write longer rows, or give `generate` --prompts", errors)

    def test_generation_goes_on_where_it_stopped(self):
        self.generate(1)
        self.assertIn("2 batches", self.generate(2))
        self.assertEqual(len(list(self.data.glob("rows_*.npz"))), 2)

    def test_training_goes_on_where_it_stopped(self):
        self.generate(1)
        self.train("--minutes", 30, "--iterations", 3)
        text = self.train("--minutes", 30, "--iterations", 5)
        self.assertIn("resumed at iteration 3", text)
        self.assertIn("5 iterations", text)

    def test_calculations_agree_with_plain_ones(self):
        sizes = "--rows", 8, "--length", 64, "--long-length", 64, "--batch-tokens", 128, "--draft-vocab", 64
        head = "--iterations", 2, "--taps", "0,1"
        text = self.run_script("smoke", *sizes, *head, "--prompts", self.prompts)
        checks = re.findall(r"^(.*): [0-9.]+ apart (.*)$", text, re.M)
        self.assertEqual(len(checks), 5, text)
        self.assertEqual({verdict for _, verdict in checks}, {"ok"}, text)


if __name__ == "__main__":
    unittest.main()
