#!/usr/bin/env python3
"""Writes quantise/TYPE.bin: numbers, and what the PyPI package `gguf` turns them into.

    python3 make_quantise.py        # needs `pip install gguf` (0.19.0 made the files here)

A file: two u32 (numbers, bytes), the numbers as f32, then the bytes of the type. All little-endian.
"""
import pathlib
import struct

import numpy as np
from gguf import GGMLQuantizationType, quants


def plain(rng):
    """Numbers of every size that an f16 has, ties between two of them or of a BF16, and what is too small."""
    exponents = 2.0 ** rng.integers(-27, 16, 900)
    ties = (2049 + 2 * np.arange(60)) * 2.0 ** rng.integers(-25, 4, 60)
    ties[::2] = (257 + 2 * np.arange(30)) * 2.0 ** rng.integers(-10, 7, 30)  # of a BF16
    small = 2.0 ** -np.arange(14, 30), 3 * 2.0 ** -np.arange(24, 28)
    some = rng.standard_normal(900) * exponents * .2
    return np.concatenate([some, ties, -ties, [0, -0.0, 65504, 65519.9], *small])


def blocks(rng):
    """Rows of a head, one of a constant, one of zeros, one with an outlier, one whose levels are ties."""
    rows = rng.standard_normal((12, 32)) * 2.0 ** rng.integers(-12, 6, (12, 1))
    rows[1], rows[2], rows[3, 7] = .25, 0, -900
    rows[4] = np.arange(32) + .5
    rows[4, 31] = 127
    rows[5] = np.arange(32) % 16 + .5
    rows[5, :2] = [0, 15]
    return rows.reshape(-1)


for name, make in [("F16", plain), ("BF16", plain), ("Q8_0", blocks), ("Q4_1", blocks)]:
    numbers = make(np.random.default_rng(sum(name.encode()))).astype("<f4")
    numbers = numbers[:numbers.size // 32 * 32]
    data = quants.quantize(numbers.reshape(-1, 32), GGMLQuantizationType[name]).tobytes()
    path = pathlib.Path(__file__).parent / "quantise" / f"{name}.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<2I", numbers.size, len(data)) + numbers.tobytes() + data)
