#!/usr/bin/env python3
"""Writes dequant/TYPE.bin: blocks of each quantised GGUF type, and what they stand for by the PyPI package `gguf`.

    python3 make_dequant.py        # needs `pip install gguf` (0.19.0 made the files here)

Of the types that the package can quantise: blocks that it quantised. Of all types: random bytes with scales of the
range that models have, and of any range: subnormal ones, infinities and NaNs too.

A file: three u32 (rows, columns, bytes of a row), the rows as in a model file, then rows x columns f32. All
little-endian.
"""
import pathlib
import struct

import numpy as np
from gguf import GGMLQuantizationType, GGML_QUANT_SIZES, quants

COLUMNS = 256
SCALES = {  # where the f16 scales of a block stand
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}
SPECIAL = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00]


def random_blocks(rng, kind, rows, size, width, bits):
    """Rows of random bytes whose scales are of f16 bits `bits(number)`."""
    blocks = rng.integers(0, 256, (rows, COLUMNS // width, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = bits(blocks[..., 0].size).astype("<u2").reshape(blocks.shape[:2] + (1,))
        blocks[..., at:at + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def quantised(rng, qtype):
    """What a model's row looks like, one of a constant, one of zeros, one with an outlier."""
    rows = (rng.standard_normal((5, COLUMNS)) * [[0.02], [1], [0], [0.05], [30]]).astype(np.float32)
    rows[1] = 0.25
    rows[3, 77] = -9
    try:
        return [quants.quantize(rows, qtype)]
    except NotImplementedError:
        return []


def make(kind):
    qtype = GGMLQuantizationType[kind]
    width, size = GGML_QUANT_SIZES[qtype]
    rng = np.random.default_rng(sum(kind.encode()))
    usual = lambda n: (rng.standard_normal(n) * 0.01).astype("<f2").view("<u2")
    rows = quantised(rng, qtype)
    rows.append(random_blocks(rng, kind, 4, size, width, usual))
    rows.append(random_blocks(rng, kind, 1, size, width, lambda n: rng.integers(0, 65536, n)))
    rows.append(random_blocks(rng, kind, 2, size, width, lambda n: rng.choice(SPECIAL, n)))
    data = np.concatenate(rows)
    with np.errstate(all="ignore"):
        values = quants.dequantize(data, qtype).astype("<f4")
    return struct.pack("<3I", len(data), COLUMNS, data.shape[1]) + data.tobytes() + values.tobytes()


folder = pathlib.Path(__file__).parent / "dequant"
folder.mkdir(exist_ok=True)
for name in SCALES:
    (folder / f"{name}.bin").write_bytes(make(name))
