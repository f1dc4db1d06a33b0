"""`tandem convert-head`."""

import json
import math
import struct
import unittest

from command_line import BAD_MODEL, IO, OK, USAGE, Command, tandem
from models import ARRAY, Gguf, make_model
from support import MODEL, whole_model

EMBED, VOCAB, HEAD_DIM, FFN, ROWS = 576, 49152, 64, 96, 40
BF16, F16, F32, Q8_0, Q4_1, I64 = 30, 1, 0, 8, 3, 27
TAPS = [2, 15, 27]


def make_head(folder, vocabulary=VOCAB, step=3):
    """A head for the default model, of zeros but for the map: row i is token i * (step + 1)."""
    folder.mkdir()
    keys = {"hidden_size": EMBED, "intermediate_size": FFN, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": HEAD_DIM, "num_hidden_layers": 1,
            "vocab_size": vocabulary, "draft_vocab_size": ROWS,
            "eagle_aux_hidden_state_layer_ids": TAPS, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(keys))
    shapes = {"fc": (EMBED, 3 * EMBED), "norm": (EMBED,), "lm_head": (ROWS, EMBED)}
    shapes |= {f"midlayer.{name}": shape for name, shape in {
        "input_layernorm": (EMBED,), "hidden_norm": (EMBED,), "post_attention_layernorm": (EMBED,),
        "self_attn.q_proj": (2 * HEAD_DIM, 2 * EMBED), "self_attn.k_proj": (HEAD_DIM, 2 * EMBED),
        "self_attn.v_proj": (HEAD_DIM, 2 * EMBED), "self_attn.o_proj": (EMBED, 2 * HEAD_DIM),
        "mlp.gate_proj": (FFN, EMBED), "mlp.up_proj": (FFN, EMBED), "mlp.down_proj": (EMBED, FFN)}.items()}
    header, at = {"d2t": {"dtype": "I64", "shape": [ROWS], "data_offsets": [0, 8 * ROWS]}}, 8 * ROWS
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    ids = struct.pack(f"<{ROWS}q", *(i * step for i in range(ROWS)))
    whole = struct.pack("<Q", len(text)) + text + ids + bytes(at - 8 * ROWS)
    (folder / "model.safetensors").write_bytes(whole)
    return str(folder)


def floats(out, key):
    return [struct.unpack("<f", value)[0] for value in out.keys[key][1][1]]


@whole_model
class ConvertHead(Command):
    def test_it_may_go_into_its_own_folder_a_second_time(self):
        folder = self.folder / "head"
        head, weights = make_head(folder), folder / "model.safetensors"
        before = weights.read_bytes()
        for _ in range(2):
            status, _, errors = tandem("convert-head", head, str(folder / "out.gguf"), "-m", MODEL)
            self.assertEqual((status, errors), (OK, ""))
        self.refused(USAGE, "this command reads", "convert-head", head, str(weights), "-m", MODEL)
        self.assertEqual(weights.read_bytes(), before)

    def convert(self, *args, warning=""):
        out = self.folder / "out.gguf"
        status, text, errors = tandem("convert-head", *args, str(out), "-m", MODEL)
        self.assertEqual((status, errors), (OK, warning))
        return text.decode(), Gguf(out)

    def test_a_head_becomes_a_gguf_with_the_tokenizer_of_its_target(self):
        head = make_head(self.folder / "head")
        text, out = self.convert(head, "--head-type", "q4_1", "--rows", "24", "--window", "100",
                                 warning="tandem: the head sees 100 positions: llama.cpp lets it see all\n")
        self.assertIn("24 tokens, matrices Q8_0, output matrix Q4_1, states that enter layers 2 15 27", text)
        kinds = {name: (tuple(shape), kind) for name, shape, kind, _ in out.tensors}
        self.assertEqual(kinds["fc.weight"], ((3 * EMBED, EMBED), Q8_0))
        self.assertEqual(kinds["output.weight"], ((EMBED, 24), Q4_1))
        self.assertEqual(kinds["blk.0.attn_norm_2.weight"], ((EMBED,), F32))
        self.assertEqual(kinds["d2t"], ((24,), I64))
        ids = next(data for name, _, _, data in out.tensors if name == "d2t")
        self.assertEqual(struct.unpack("<24q", ids[:24 * 8]), tuple(4 * i for i in range(24)))
        target = Gguf(MODEL)
        tokenizer = lambda g: {key: value for key, value in g.keys.items() if key.startswith("tokenizer.")}
        self.assertEqual(tokenizer(out), tokenizer(target))
        taps = 5, [struct.pack("<i", tap) for tap in TAPS]
        self.assertEqual(out.keys["eagle3.target_layers"], (ARRAY, taps))
        self.assertEqual(out.keys["eagle3.attention.sliding_window"][1], struct.pack("<I", 100))

    def test_its_result_can_be_converted_again(self):
        head = make_head(self.folder / "head")
        whole = self.folder / "whole.gguf"
        self.assertEqual(tandem("convert-head", head, str(whole), "-m", MODEL, "--type", "f16")[0], OK)
        text, out = self.convert(str(whole), "--type", "bf16")
        self.assertIn("40 tokens, matrices BF16, output matrix BF16", text)
        self.assertEqual({kind for _, shape, kind, _ in out.tensors if len(shape) == 2}, {BF16})
        quantised = self.folder / "quantised.gguf"
        self.assertEqual(tandem("convert-head", str(whole), str(quantised), "-m", MODEL)[0], OK)
        self.refused(BAD_MODEL, "is Q8_0 already and cannot become F16", "convert-head", str(quantised),
                     str(whole), "-m", MODEL, "--type", "f16")

    def test_a_calibration_is_kept_with_the_head(self):
        head, file = make_head(self.folder / "head"), self.folder / "calibration.json"
        file.write_text('{"greedy": [1, 0.5, 0, 2, 1, 0], "sampled": [1, 0.25, 0.25, 1.5, 1, 0.5]}')
        _, out = self.convert(head, "--calibration", str(file))
        self.assertEqual(floats(out, "tandem.calibration.greedy"), [1, 0.5, 0, 2, 1, 0])
        self.assertEqual(floats(out, "tandem.calibration.sampled"), [1, 0.25, 0.25, 1.5, 1, 0.5])
        for phrase, text in [("sampled is no list of 6 numbers", '{"greedy": [1, 0, 0, 0, 0, 0]}'),
                             ("weight 0 not between 0 and 100", '{"greedy": [-1, 0, 0, 0, 0, 0]}'),
                             ("calibration", "no JSON")]:
            with self.subTest(phrase=phrase):
                file.write_text(text)
                self.refused(BAD_MODEL, phrase, "convert-head", head, str(self.folder / "other.gguf"),
                             "-m", MODEL, "--calibration", str(file))

    def test_what_is_wrong_is_said_and_nothing_is_written(self):
        head, out = make_head(self.folder / "head"), str(self.folder / "out.gguf")
        foreign = make_head(self.folder / "foreign", vocabulary=32000)
        high = make_head(self.folder / "high", step=2000)
        small = make_model(self.folder / "small.gguf", VOCAB)
        for status, phrase, args in [
            (BAD_MODEL, "vocabulary of 32000 tokens, but the target has 49152", [foreign, out, "-m", MODEL]),
            (BAD_MODEL, "which is none of the target's", [high, out, "-m", MODEL]),
            (BAD_MODEL, "small.gguf is no GGUF with a tokenizer", [head, out, "-m", str(small)]),
            (BAD_MODEL, "architecture is llama, but a draft head's is eagle3", [MODEL, out, "-m", MODEL]),
            (BAD_MODEL, "No such file", [str(self.folder / "none"), out, "-m", MODEL]),
            (USAGE, "vocabulary has 40 tokens: 41 of them", [head, out, "-m", MODEL, "--rows", "41"]),
            (USAGE, "sees 512 positions: it cannot see 4096", [head, out, "-m", MODEL, "--window", "4096"]),
            (IO, "cannot write", [head, str(self.folder / "none" / "out.gguf"), "-m", MODEL]),
            (BAD_MODEL, "needs 1154 tokens with a row in the head, but it has 40",
             [head, out, "-m", MODEL, "--map"]),
            (USAGE, "q5_0", [head, out, "-m", MODEL, "--type", "q5_0"]),
            (USAGE, "two paths are needed", [head, "-m", MODEL]),
        ]:
            with self.subTest(phrase=phrase):
                self.refused(status, phrase, "convert-head", *args)
        self.assertEqual([p.name for p in self.folder.glob("out.gguf*")], [])


if __name__ == "__main__":
    unittest.main()
