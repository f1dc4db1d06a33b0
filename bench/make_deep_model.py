#!/usr/bin/env python3
"""Makes a deeper model of a GGUF file, so that there is a pair of models of which the first layers are a good draft:

    python3 bench/make_deep_model.py MODEL.gguf OUT.gguf [--layers 90] [--scale 0.125]

OUT has MODEL's own layers and then `layers` copies of them, in order and again from the first. In the copies attn_v,
attn_output, ffn_up and ffn_down are multiplied by `scale`, and so what a layer adds by its square (in two factors, because
the scales of a block soon leave the normal numbers of f16, which are slow outside): each adds a little of what it would say to
what the model has said already. With scale 0 nothing is added, and the first layers are always right; the larger it is, the more
often the model thinks better of it. A step reads and multiplies all layers alike. The scale goes into the blocks' own f16
scales (Q4_1, Q4_0, Q8_0) or into the numbers (F16, F32); nothing is quantised again. The same call makes the same bytes.
"""

import argparse
import array
import mmap
import os
import struct
import sys

MAGIC, ALIGN = b"GGUF", 32
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of metadata values
STRING, ARRAY = 8, 9
SCALED = (".attn_v.weight", ".attn_output.weight", ".ffn_up.weight", ".ffn_down.weight")
# type: (numbers of a block, 16-bit words of a block, which of them are multiplied); F32 is its own case
BLOCKS = {1: (1, 1, (0,)), 2: (32, 9, (0,)), 3: (32, 10, (0, 1)), 8: (32, 17, (0,))}
F32 = 0


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def text(self):
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def skip(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, count = self.take("IQ")
            for _ in range(count if inner in (STRING, ARRAY) else 0):
                self.skip(inner)
            self.at += 0 if inner in (STRING, ARRAY) else count * SIZES[inner]
        else:
            self.at += SIZES[kind]


class Tensor:
    def __init__(self, name, shape, kind, data):
        self.name, self.shape, self.kind, self.data = name, shape, kind, data

    def renamed(self, name, data):
        return Tensor(name, self.shape, self.kind, data)


def align(n):
    return -(-n // ALIGN) * ALIGN


class Model:
    """The metadata's bytes, the place of the layer count in them, and the tensors."""

    def __init__(self, data):
        r = Reader(data)
        magic, version, tensors, self.pairs = r.take("4sIQQ")
        if magic != MAGIC or version not in (2, 3):
            sys.exit("make_deep_model.py: not a GGUF file of version 2 or 3")
        begin, self.count_at = r.at, None
        for _ in range(self.pairs):
            key, kind = r.text(), r.take("I")
            if key.endswith(".block_count"):
                self.count_at, self.layers = r.at - begin, struct.unpack_from("<I", data, r.at)[0]
            if key == "general.alignment":
                sys.exit("make_deep_model.py: a file with an alignment of its own is not read here")
            r.skip(kind)
        self.metadata = bytearray(data[begin:r.at])
        infos = [(r.text(), r.take(f"{r.take('I')}Q"), *r.take("IQ")) for _ in range(tensors)]
        ends = sorted(at for *_, at in infos) + [len(data) - align(r.at)]
        self.tensors = []
        for name, shape, kind, at in infos:
            end = ends[ends.index(at) + 1]
            shape = shape if isinstance(shape, tuple) else (shape,)
            self.tensors.append(Tensor(name, shape, kind, data[align(r.at) + at:align(r.at) + end]))


def half_table(scale):
    """Of each f16, the f16 nearest to its product."""
    halves = struct.unpack("<65536e", array.array("H", range(65536)).tobytes())
    return array.array("H", struct.pack("<65536e", *(x * scale if abs(x) < 65520 else x for x in halves)))


def scaled(tensor, scale, table):
    if tensor.kind == F32:
        numbers = array.array("f", tensor.data)
        return array.array("f", (x * scale for x in numbers)).tobytes()
    if tensor.kind not in BLOCKS:
        sys.exit(f"make_deep_model.py: {tensor.name} is of a type that is not scaled here ({tensor.kind})")
    numbers, width, offsets = BLOCKS[tensor.kind]
    count = 1
    for n in tensor.shape:
        count *= n
    words = array.array("H", bytes(tensor.data[:count // numbers * width * 2]))
    for offset in offsets:
        words[offset::width] = array.array("H", map(table.__getitem__, words[offset::width]))
    return words.tobytes()


def deepen(model, more, scale):
    """Appends `more` layers."""
    table, made = half_table(scale), {}
    own = [t for t in model.tensors if t.name.startswith("blk.")]
    for i in range(more):
        source = f"blk.{i % model.layers}."
        for t in (t for t in own if t.name.startswith(source)):
            if t.name.endswith(SCALED) and t.name not in made:
                made[t.name] = scaled(t, scale, table)
            name = f"blk.{model.layers + i}." + t.name[len(source):]
            model.tensors.append(t.renamed(name, made.get(t.name, t.data)))
    struct.pack_into("<I", model.metadata, model.count_at, model.layers + more)


def write(model, out):
    infos, at = bytearray(), 0
    for t in model.tensors:
        name = t.name.encode()
        infos += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(t.shape)}QIQ", len(t.shape), *t.shape, t.kind, at)
        at += align(len(t.data))
    head = struct.pack("<4sIQQ", MAGIC, 3, len(model.tensors), model.pairs) + model.metadata + infos
    for part in (head, *(t.data for t in model.tensors)):
        out.write(part)
        out.write(bytes(align(len(part)) - len(part)))


def make(source, out, more, scale):
    """A file that is whole, or none."""
    with open(source, "rb") as f:
        model = Model(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
    if model.count_at is None:
        sys.exit("make_deep_model.py: the file does not say how many layers it has")
    deepen(model, more, scale)
    part = f"{out}.part"
    with open(part, "wb") as f:
        write(model, f)
    os.replace(part, out)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--layers", type=int, default=90, help="more layers (default 90)")
    p.add_argument("--scale", type=float, default=0.125, help="of four matrices of each (default 0.125)")
    o = p.parse_args()
    make(o.model, o.out, o.layers, o.scale)


if __name__ == "__main__":
    main()
