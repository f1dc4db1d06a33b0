"""The blocks of quantised values in GGUF files."""

import numpy as np

# type number: (name, values a block, bytes a block)
TYPES = {
    0: ('F32', 1, 4),
    1: ('F16', 1, 2),
    30: ('BF16', 1, 2),
    2: ('Q4_0', 32, 18),
    3: ('Q4_1', 32, 20),
    6: ('Q5_0', 32, 22),
    8: ('Q8_0', 32, 34),
    12: ('Q4_K', 256, 144),
    13: ('Q5_K', 256, 176),
    14: ('Q6_K', 256, 210),
}


def _half(raw):
    return raw.copy().view(np.float16).astype(np.float32)


def _blocks_q4(raw, with_minimum):
    head = 4 if with_minimum else 2
    scale = _half(raw[:, :2])
    low = _half(raw[:, 2:4]) if with_minimum else -8 * scale
    nibbles = raw[:, head:]
    values = np.concatenate([nibbles & 15, nibbles >> 4], 1).astype(np.float32)
    return values * scale + low


def _blocks_q5_0(raw):
    high = np.unpackbits(raw[:, 2:6], axis=1, bitorder='little')
    nibbles = np.concatenate([raw[:, 6:] & 15, raw[:, 6:] >> 4], 1)
    return (nibbles + 16 * high).astype(np.float32) * _half(raw[:, :2]) - 16 * _half(raw[:, :2])


def _scales_k(raw):
    """12 bytes -> scales and minima of eight groups, six bits each."""
    low, high = raw[:, :4], raw[:, 4:8]
    scales = np.concatenate([low & 63, (raw[:, 8:] & 15) | (low >> 6 << 4)], 1)
    minima = np.concatenate([high & 63, (raw[:, 8:] >> 4) | (high >> 6 << 4)], 1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _blocks_q4_k(raw, fifth_bits):
    """Groups of 32 values. Two of them share 32 bytes of nibbles, and with fifth_bits each byte has a bit of
    each group."""
    scales, minima = _scales_k(raw[:, 4:16])
    nibbles = raw[:, -128:].reshape(-1, 4, 32)
    values = np.stack([nibbles & 15, nibbles >> 4], 2).reshape(-1, 8, 32)
    if fifth_bits:
        bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
        values = values | (raw[:, 16:48].reshape(-1, 1, 32) >> bits & 1) << 4
    scales, minima = scales * _half(raw[:, :2]), minima * _half(raw[:, 2:4])
    return (values * scales[:, :, None] - minima[:, :, None]).reshape(-1, 256)


def _blocks_q6_k(raw):
    ql, qh = raw[:, :128].reshape(-1, 2, 64), raw[:, 128:192].reshape(-1, 2, 32)
    scales = raw[:, 192:208].view(np.int8).reshape(-1, 16, 1).astype(np.float32)
    d = _half(raw[:, 208:210]).reshape(-1, 1, 1)
    low, high = ql[..., :32], ql[..., 32:]
    parts = [
        (low & 15) | ((qh & 3) << 4),
        (high & 15) | (((qh >> 2) & 3) << 4),
        (low >> 4) | (((qh >> 4) & 3) << 4),
        (high >> 4) | (((qh >> 6) & 3) << 4),
    ]
    values = np.stack(parts, 2).astype(np.float32).reshape(-1, 16, 16) - 32
    return (values * scales * d).reshape(-1, 256)


def dequantise(raw, name):
    """Bytes of whole blocks -> their values in f32."""
    if name == 'F32':
        return raw.view(np.float32)
    if name == 'F16':
        return raw.view(np.float16).astype(np.float32)
    if name == 'BF16':
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if name == 'Q8_0':
        raw = raw.reshape(-1, 34)
        return raw[:, 2:].view(np.int8).astype(np.float32) * _half(raw[:, :2])
    if name == 'Q5_0':
        return _blocks_q5_0(raw.reshape(-1, 22))
    if name in ('Q4_K', 'Q5_K'):
        return _blocks_q4_k(raw.reshape(-1, 144 if name == 'Q4_K' else 176), name == 'Q5_K')
    if name == 'Q6_K':
        return _blocks_q6_k(raw.reshape(-1, 210))
    return _blocks_q4(raw.reshape(-1, 20 if name == 'Q4_1' else 18), name == 'Q4_1')
