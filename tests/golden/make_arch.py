"""Writes exact.json and exact.npy into each folder of arch/: what its model answers when the rotary frequencies are not
rounded to bf16, as they were for golden.json and logits.npy (README.md). float64, from the papers' and transformers'
formulas. With --check it first shows that the same program with rounded frequencies gives golden.json and logits.npy.
Needs numpy. Usage: make_arch.py [--check] [FOLDER...]"""

import json
import math
import pathlib
import struct
import sys

import numpy as np

STEPS, ROWS = 64, 32


def load(folder):
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    weights = {}
    for name, t in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in t["data_offsets"])
            bits = np.frombuffer(data[begin:end], dtype="<u2").astype(np.uint32) << 16
            weights[name] = bits.view(np.float32).reshape(t["shape"]).astype(np.float64)
    return weights


def to_bf16(x):
    u = x.astype(np.float32).view(np.uint32)
    u = (u + 0x7FFF + ((u >> 16) & 1)) >> 16 << 16
    return u.view(np.float32).astype(np.float64)


def frequencies(c, dim):
    """Frequencies, and what sines and cosines are multiplied by."""
    p = c["rope_parameters"]
    base = p["rope_theta"]
    plain = base ** (-np.arange(0, dim, 2) / dim)
    if p["rope_type"] == "llama3":
        factor, low, high = p["factor"], p["low_freq_factor"], p["high_freq_factor"]
        trained = p["original_max_position_embeddings"]
        wave = 2 * math.pi / plain
        smooth = (trained / wave - low) / (high - low)
        between = (1 - smooth) * plain / factor + smooth * plain
        return np.where(wave > trained / low, plain / factor, np.where(wave < trained / high, plain, between)), 1.0
    if p["rope_type"] == "yarn":
        factor, trained = p["factor"], p["original_max_position_embeddings"]

        def pair(turns):
            return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1
    assert p["rope_type"] == "default"
    return plain, 1.0


def norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def forward(c, w, ids, rounded):
    heads, kv_heads, eps = c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"]
    dim = c.get("head_dim") or c["hidden_size"] // heads
    count = len(ids)
    frequency, times = frequencies(c, dim)
    angle = np.arange(count)[:, None] * (to_bf16(frequency) if rounded else frequency)[None]
    cosine = np.concatenate([np.cos(angle)] * 2, -1)[:, None] * times
    sine = np.concatenate([np.sin(angle)] * 2, -1)[:, None] * times

    def rotate(x):
        return x * cosine + np.concatenate([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * sine

    distance = np.arange(count)[:, None] - np.arange(count)[None]
    window = c.get("sliding_window") or count
    hidden = np.where((distance < 0) | (distance >= window), -np.inf, 0.0)
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."

        def linear(y, name):
            return y @ w[at + name + ".weight"].T + w.get(at + name + ".bias", 0.0)

        y = norm(x, w[at + "input_layernorm.weight"], eps)
        q = linear(y, "self_attn.q_proj").reshape(count, heads, dim)
        k = linear(y, "self_attn.k_proj").reshape(count, kv_heads, dim)
        v = linear(y, "self_attn.v_proj").reshape(count, kv_heads, dim)
        if at + "self_attn.q_norm.weight" in w:
            q = norm(q, w[at + "self_attn.q_norm.weight"], eps)
            k = norm(k, w[at + "self_attn.k_norm.weight"], eps)
        q, k = rotate(q), np.repeat(rotate(k), heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim) + hidden
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", scores, np.repeat(v, heads // kv_heads, 1))
        x = x + linear(out.reshape(count, heads * dim), "self_attn.o_proj")
        y = norm(x, w[at + "post_attention_layernorm.weight"], eps)
        gate = linear(y, "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(y, "mlp.up_proj"), "mlp.down_proj")
    x = norm(x[-ROWS:], w["model.norm.weight"], eps)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def answer(c, w, prompt, rounded):
    logits = forward(c, w, prompt, rounded)
    last, ids, outputs, margins = logits[-1], list(prompt), [], []
    for _ in range(STEPS):
        best = np.sort(last)[-2:]
        outputs.append(int(last.argmax()))
        margins.append(round(float(best[1] - best[0]), 6))
        ids.append(outputs[-1])
        last = forward(c, w, ids, rounded)[-1]
    return logits, outputs, margins


def main(arguments):
    check = "--check" in arguments
    folders = [pathlib.Path(a) for a in arguments if a != "--check"]
    folders = folders or [p.parent for p in sorted(pathlib.Path(__file__).parent.glob("arch/*/config.json"))]
    for folder in folders:
        c, w = json.loads((folder / "config.json").read_text()), load(folder)
        golden = json.loads((folder / "golden.json").read_text())
        if check:
            logits, outputs, _ = answer(c, w, golden["prompt_ids"], True)
            error = abs(logits - np.load(folder / "logits.npy")).max()
            same = outputs == golden["output_ids"]
            print(f"{folder.name}: rounded frequencies: largest logit error {error:.2g}, outputs equal: {same}")
            if error > 2e-5 or not same:
                sys.exit(f"{folder}: this program does not give golden.json")
        logits, outputs, margins = answer(c, w, golden["prompt_ids"], False)
        np.save(folder / "exact.npy", logits.astype("<f4"))
        text = {"prompt_ids": golden["prompt_ids"], "output_ids": outputs, "margins": margins}
        (folder / "exact.json").write_text(json.dumps(text) + "\n")


main(sys.argv[1:])
