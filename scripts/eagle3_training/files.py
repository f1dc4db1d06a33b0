"""Safetensors and the draft vocabulary, without PyTorch."""

import json
import os
import struct


def write_safetensors(path, tensors):
    """tensors: name -> (dtype as the format names it, shape, bytes)."""
    header, at = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {'dtype': kind, 'shape': list(shape), 'data_offsets': [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with open(path + '.partial', 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)
    os.replace(path + '.partial', path)


def read_safetensors(path):
    """name -> (dtype, shape, bytes)."""
    with open(path, 'rb') as f:
        size = struct.unpack('<Q', f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    return {
        name: (e['dtype'], e['shape'], data[e['data_offsets'][0] : e['data_offsets'][1]])
        for name, e in header.items()
        if name != '__metadata__'
    }


def draft_order(answer_counts, all_counts, rows):
    """Target ids by falling frequency: tokens of answers, and a twentieth of all tokens."""
    score = [a + 0.05 * b for a, b in zip(answer_counts, all_counts)]
    return sorted(range(len(score)), key=lambda i: (-score[i], i))[:rows]


def coverage(order, answer_counts):
    total = sum(answer_counts)
    return sum(answer_counts[i] for i in order) / total if total else 0.0


def id_tensors(order, vocab):
    """d2t (offsets: target id = draft id + d2t) and t2d (whether the draft has the id), as published heads
    have them."""
    known = bytearray(vocab)
    for i in order:
        known[i] = 1
    offsets = struct.pack(f'<{len(order)}q', *(t - i for i, t in enumerate(order)))
    return {'d2t': ('I64', [len(order)], offsets), 't2d': ('BOOL', [vocab], bytes(known))}


def read_order(tensors):
    kind, shape, data = tensors['d2t']
    return [i + d for i, d in enumerate(struct.unpack(f'<{shape[0]}q', data))]
