#!/usr/bin/env python3
"""Writes a small Llama with random weights of a GGUF type, by the PyPI package `gguf` (needs `pip install gguf`).

    python3 make_model.py --type Q4_K --out FILE [--twin FILE] [--layers 2 --embed 256 --ffn 512 ...]

--type is a tensor type, or a mix as quantisers make it: Q2_K_M, Q3_K_M, Q4_K_M, Q5_K_M. --twin: the same weights once
more, as the package dequantises them, in F32. Types that the package can quantise are quantised from normal numbers,
the others are random blocks with scales that give the same spread. No tokenizer: such a file serves token ids.
"""
import argparse

import numpy as np
import gguf
from gguf import GGMLQuantizationType as Type
from gguf import quants

SCALES = {  # where a block's f16 scale and minimum stand
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
}
MIXES = {  # most tensors; attn_v and ffn_down; the head
    "Q2_K_M": ("Q2_K", "Q3_K", "Q6_K"), "Q3_K_M": ("Q3_K", "Q5_K", "Q6_K"), "Q4_K_M": ("Q4_K", "Q6_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q6_K", "Q6_K"),
}
PLAIN = ("F32", "F16")
SPREAD = 0.03


def put_scales(blocks, kind, numbers):
    for at, number in zip(SCALES[kind], numbers):
        half = np.asarray(number, "<f2").view("<u2")
        blocks[:, at] = half & 255
        blocks[:, at + 1] = half >> 8
    return blocks


def random_blocks(rng, kind, count):
    width, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    values = lambda numbers: quants.dequantize(put_scales(blocks, kind, numbers), Type[kind])
    sample = values([1, 0])
    minimum = sample.mean() / -values([0, 1]).mean() if len(SCALES[kind]) > 1 else 0  # so that the mean is 0
    scale = SPREAD / values([1, minimum]).std()
    return put_scales(blocks, kind, [scale, minimum * scale])


def make_tensor(rng, kind, rows, columns):
    """The tensor's bytes [rows][bytes of a row]."""
    if kind in SCALES:
        width, _ = gguf.GGML_QUANT_SIZES[Type[kind]]
        data = random_blocks(rng, kind, rows * columns // width).reshape(rows, -1)
    else:
        data = quants.quantize((rng.standard_normal((rows, columns)) * SPREAD).astype(np.float32), Type[kind])
    return data


class Files:
    """The file and its twin."""

    def __init__(self, o):
        self.writers = [(gguf.GGUFWriter(path, "llama"), path == o.twin) for path in (o.out, o.twin) if path]
        for w, _ in self.writers:
            w.add_block_count(o.layers)
            w.add_context_length(o.context)
            w.add_embedding_length(o.embed)
            w.add_feed_forward_length(o.ffn)
            w.add_head_count(o.heads)
            w.add_head_count_kv(o.kv_heads)
            w.add_layer_norm_rms_eps(1e-5)
            w.add_rope_freq_base(10000.0)
            w.add_rope_dimension_count(o.embed // o.heads)
            w.add_vocab_size(o.vocab)
            w.add_tokenizer_model("no_vocab")

    def add(self, name, data, kind):
        for w, twin in self.writers:
            if twin:
                w.add_tensor(name, quants.dequantize(data, Type[kind]))
            else:
                w.add_tensor(name, data, raw_dtype=None if kind in PLAIN else Type[kind])

    def close(self):
        for w, _ in self.writers:
            w.write_header_to_file()
            w.write_kv_data_to_file()
            w.write_tensors_to_file()
            w.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--type", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--twin")
    for name, number in dict(layers=2, embed=256, ffn=512, heads=4, kv_heads=2, vocab=512, context=512, seed=1).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=number)
    o = p.parse_args()
    most, some, head = MIXES.get(o.type, (o.type,) * 3)
    rng, files = np.random.default_rng(o.seed), Files(o)
    kv = o.embed // o.heads * o.kv_heads
    matrix = lambda name, kind, rows, columns: files.add(name, make_tensor(rng, kind, rows, columns), kind)

    def vector(name):
        values = (1 + 0.1 * rng.standard_normal(o.embed)).astype(np.float32)
        files.add(name, values, "F32")

    matrix("token_embd.weight", most, o.vocab, o.embed)
    for i in range(o.layers):
        at = f"blk.{i}."
        vector(at + "attn_norm.weight")
        matrix(at + "attn_q.weight", most, o.embed, o.embed)
        matrix(at + "attn_k.weight", most, kv, o.embed)
        matrix(at + "attn_v.weight", some, kv, o.embed)
        matrix(at + "attn_output.weight", most, o.embed, o.embed)
        vector(at + "ffn_norm.weight")
        matrix(at + "ffn_gate.weight", most, o.ffn, o.embed)
        matrix(at + "ffn_up.weight", most, o.ffn, o.embed)
        matrix(at + "ffn_down.weight", some, o.embed, o.ffn)
    vector("output_norm.weight")
    matrix("output.weight", head, o.vocab, o.embed)
    files.close()


main()
