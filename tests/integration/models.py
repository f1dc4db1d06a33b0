"""Models for the tests: random ones, and the default one with another vocabulary."""

import itertools
import json
import math
import random
import struct

from programs import DEFAULT_MODEL, SHALLOW

ALIGNMENT = 32  # of tensors in a GGUF file that does not say
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of GGUF's plain values
CONTROL, UNUSED = 3, 5  # types of tokens


def text(t):
    t = t.encode() if isinstance(t, str) else t
    return struct.pack("<Q", len(t)) + t


def make_model(path, vocabulary, embed=64, heads=2, layers=1, tokenizer=()):
    """A random Llama in F32. `tokenizer`: encoded keys; without them it knows nothing of tokens but how many there are."""
    number = lambda key, value: text("llama." + key) + struct.pack("<II", UINT32, value)
    values = {"block_count": layers, "embedding_length": embed, "feed_forward_length": embed, "context_length": 2048,
              "attention.head_count": heads, "attention.head_count_kv": 1}
    keys = [text("general.architecture") + struct.pack("<I", STRING) + text("llama"),
            text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", FLOAT32, 1e-5)]
    keys += [number(key, value) for key, value in values.items()] + list(tokenizer)
    kv = embed // heads
    shapes = {"token_embd": (embed, vocabulary), "output": (embed, vocabulary), "output_norm": (embed,)}
    layer = {"attn_norm": (embed,), "ffn_norm": (embed,), "attn_q": (embed, embed), "attn_k": (embed, kv), "attn_v": (embed, kv),
             "attn_output": (embed, embed), "ffn_gate": (embed, embed), "ffn_up": (embed, embed), "ffn_down": (embed, embed)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in layer.items()}
    rng, infos, offset = random.Random(1), b"", 0
    for name, shape in shapes.items():
        infos += text(name + ".weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        offset += math.prod(shape) * 4
    head = struct.pack("<IIQQ", 0x46554747, 3, len(shapes), len(keys)) + b"".join(keys) + infos
    pool = struct.pack("<10007f", *(rng.gauss(0, 0.2) for _ in range(10007)))  # again and again; a prime, so rows differ
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGNMENT))
        f.write((pool * (offset // len(pool) + 1))[:offset])
    return path


def random_bf16(rng, count):
    """Values between 0.008 and 0.03 of either sign."""
    data = bytearray(2 * count)
    data[0::2] = rng.randbytes(count)
    data[1::2] = rng.randbytes(count).translate(bytes(0x3C | i & 0x80 for i in range(256)))
    return bytes(data)


def make_head(folder, embed=576, vocabulary=49152, rows=512, ffn=64, heads=(9, 3), taps=(2, 15, 27)):
    """A random EAGLE-3 head, in the EAGLE layout, for the default model or one of `vocabulary` and `embed`: it knows nothing.
    heads: of queries, of keys."""
    queries, keys = heads
    head_dim = embed // queries
    layer = {"input_layernorm": (embed,), "hidden_norm": (embed,), "post_attention_layernorm": (embed,),
             "self_attn.q_proj": (embed, 2 * embed), "self_attn.k_proj": (keys * head_dim, 2 * embed), "self_attn.v_proj": (keys * head_dim, 2 * embed),
             "self_attn.o_proj": (embed, embed), "mlp.gate_proj": (ffn, embed), "mlp.up_proj": (ffn, embed),
             "mlp.down_proj": (embed, ffn)}
    shapes = {"fc.weight": (embed, len(taps) * embed), "norm.weight": (embed,), "lm_head.weight": (rows, embed),
              **{f"midlayer.{name}.weight": shape for name, shape in layer.items()}}
    rng, infos, data = random.Random(7), {}, b""
    for name, shape in shapes.items():
        values = random_bf16(rng, math.prod(shape))
        infos[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    infos["d2t"] = {"dtype": "I64", "shape": (rows,), "data_offsets": [len(data), len(data) + 8 * rows]}
    header = json.dumps(infos).encode()
    header += b" " * (-len(header) % 8)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data + bytes(8 * rows))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": embed, "target_hidden_size": embed, "intermediate_size": ffn,
        "num_attention_heads": queries, "num_key_value_heads": keys, "head_dim": head_dim, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
        "rope_theta": 1e5, "hidden_act": "silu", "vocab_size": vocabulary, "draft_vocab_size": rows,
        "max_position_embeddings": 2048, "eagle_aux_hidden_state_layer_ids": list(taps), "tie_word_embeddings": False}))
    return folder


class Gguf:
    """A GGUF file in its parts: keys {name: (type, value)}, a value being bytes or (type of items, [bytes]); tensors
    [name, shape, type, data]."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.bytes, self.at = f.read(), 0
        _, version, tensors, keys = self.take("<IIQQ")
        assert version == 3
        self.keys = {}
        for _ in range(keys):
            name = self.string().decode()
            kind, = self.take("<I")
            self.keys[name] = kind, self.array() if kind == ARRAY else self.value(kind)
        infos = []
        for _ in range(tensors):
            name = self.string().decode()
            count, = self.take("<I")
            infos.append([name, self.take(f"<{count}Q"), *self.take("<IQ")])
        assert "general.alignment" not in self.keys
        base = self.at + -self.at % ALIGNMENT
        ends = sorted(info[3] for info in infos) + [len(self.bytes) - base]
        end_of = dict(itertools.pairwise(ends))
        self.tensors = [[name, shape, kind, self.bytes[base + offset:base + end_of[offset]]] for name, shape, kind, offset in infos]
        del self.bytes

    def take(self, layout):
        found = struct.unpack_from(layout, self.bytes, self.at)
        self.at += struct.calcsize(layout)
        return found

    def string(self):
        size, = self.take("<Q")
        self.at += size
        return self.bytes[self.at - size:self.at]

    def value(self, kind):
        return self.string() if kind == STRING else self.take(f"{SIZES[kind]}s")[0]

    def array(self):
        kind, count = self.take("<IQ")
        return kind, [self.value(kind) for _ in range(count)]

    def write(self, path):
        put = lambda kind, value: text(value) if kind == STRING else value
        parts = [struct.pack("<IIQQ", 0x46554747, 3, len(self.tensors), len(self.keys))]
        for name, (kind, value) in self.keys.items():
            parts += [text(name), struct.pack("<I", kind)]
            if kind == ARRAY:
                parts += [struct.pack("<IQ", value[0], len(value[1])), *(put(value[0], item) for item in value[1])]
            else:
                parts.append(put(kind, value))
        offset = 0
        for name, shape, kind, data in self.tensors:
            parts.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
            offset += len(data) + -len(data) % ALIGNMENT
        head = b"".join(parts)
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % ALIGNMENT))
            for *_, data in self.tensors:
                f.write(data + bytes(-len(data) % ALIGNMENT))
        return path


def shallow_model(path, layers=SHALLOW):
    """These layers of the default model, with all else that it has."""
    g = Gguf(DEFAULT_MODEL)
    kind, _ = g.keys["llama.block_count"]
    g.keys["llama.block_count"] = kind, struct.pack("<I", len(layers))
    layer_of = lambda name: int(name.split(".")[1]) if name.startswith("blk.") else None
    g.tensors = [t for t in g.tensors if layer_of(t[0]) in (None, *layers)]
    for t in g.tensors:
        if (layer := layer_of(t[0])) is not None:
            t[0] = t[0].replace(f"blk.{layer}.", f"blk.{layers.index(layer)}.")
    return g.write(path)


def other_vocabulary(path, padding=0, misspelt=0):
    """The default model, its control tokens after all others, and `padding` unused ones after those: no token keeps its
    number. `misspelt`: of so many text tokens, the rarest, the spelling is another one."""
    g = Gguf(DEFAULT_MODEL)
    spellings, kinds = (g.keys[f"tokenizer.ggml.{name}"][1][1] for name in ("tokens", "token_type"))
    kinds = [int.from_bytes(kind, "little") for kind in kinds]
    front = next(i for i, kind in enumerate(kinds) if kind != CONTROL)
    turn = lambda items, more: items[front:] + items[:front] + more
    spellings = turn(spellings, [f"[padding {i}]".encode() for i in range(padding)])
    rarest = len(spellings) - padding - front
    for i in range(rarest - misspelt, rarest):
        spellings[i] += b"zqjx"
    kinds = turn(kinds, [UNUSED] * padding)
    g.keys["tokenizer.ggml.tokens"] = ARRAY, (STRING, spellings)
    g.keys["tokenizer.ggml.token_type"] = ARRAY, (5, [struct.pack("<i", kind) for kind in kinds])
    for key, (kind, value) in g.keys.items():
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            id = int.from_bytes(value, "little")
            g.keys[key] = kind, struct.pack("<I", (id - front) % (len(spellings) - padding))
    if "llama.vocab_size" in g.keys:
        g.keys["llama.vocab_size"] = UINT32, struct.pack("<I", len(spellings))
    tables = [t for t in g.tensors if t[0] in ("token_embd.weight", "output.weight")]
    for t in tables:
        width, rows = t[1]
        size = len(t[3]) // rows
        t[1], t[3] = (width, rows + padding), t[3][front * size:] + t[3][:front * size] + bytes(padding * size)
    return g.write(path)
