"""The target model for training: a GGUF of a Llama-family model as bf16 (or f32) tensors, its forward over
whole rows, its tokenizer and its chat template. Rows of the query and key weights of GGUF files of 'llama'
are interleaved for RoPE; here they are put back into halves, as files of 'qwen2' have them, so that one
rotation serves the target and the head."""

import struct

import numpy as np
import torch
import torch.nn.functional as F

from .blocks import TYPES, dequantise

SCALARS = {0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: '?', 10: 'Q', 11: 'q', 12: 'd'}
STRING, ARRAY = 8, 9
CONTROL, USER_DEFINED = 3, 4


class Refused(Exception):
    """One clear sentence for the person who started the script."""


def _take(f, form):
    data = f.read(struct.calcsize(form))
    return struct.unpack(form, data)


def _string(f):
    return f.read(_take(f, '<Q')[0]).decode('utf-8', 'replace')


def _value(f, kind):
    if kind == STRING:
        return _string(f)
    if kind == ARRAY:
        kind, count = _take(f, '<IQ')
        if kind in SCALARS:
            return list(_take(f, f'<{count}{SCALARS[kind]}'))
        return [_value(f, kind) for _ in range(count)]
    return _take(f, '<' + SCALARS[kind])[0]


class Gguf:
    """Metadata and tensors of one GGUF file."""

    def __init__(self, path):
        self.path, self.meta, self.index = path, {}, {}
        with open(path, 'rb') as f:
            magic, version, tensors, pairs = _take(f, '<4sIQQ')
            if magic != b'GGUF' or version < 2:
                raise Refused(f'{path} is no GGUF file of version 2 or later')
            for _ in range(pairs):
                key = _string(f)
                self.meta[key] = _value(f, _take(f, '<I')[0])
            for _ in range(tensors):
                name = _string(f)
                dims = _take(f, f'<{_take(f, "<I")[0]}Q')
                self.index[name] = (dims[::-1], *_take(f, '<IQ'))
            align = self.meta.get('general.alignment', 32)
            self.data_at = (f.tell() + align - 1) // align * align
        self.bytes = np.memmap(path, np.uint8, 'r')

    def tensor(self, name):
        shape, kind, offset = self.index[name]
        if kind not in TYPES:
            raise Refused(
                f'{self.path}: tensor {name} has type {kind}; known here are '
                + ', '.join(t[0] for t in TYPES.values())
            )
        label, values, size = TYPES[kind]
        count = int(np.prod(shape))
        at = self.data_at + offset
        raw = np.array(self.bytes[at : at + count // values * size])
        return torch.from_numpy(np.ascontiguousarray(dequantise(raw, label)).reshape(shape))


class Config:
    """Sizes of a Llama-family model, by the names that this package uses."""

    def __init__(self, meta):
        arch = meta.get('general.architecture')
        if arch not in ('llama', 'qwen2'):
            raise Refused(f"the model's architecture is {arch}; heads are trained for 'llama' and 'qwen2'")
        self.interleaved = arch == 'llama'
        get = lambda key, default=None: meta.get(f'{arch}.{key}', default)
        self.layers, self.embed, self.ffn = (
            get('block_count'),
            get('embedding_length'),
            get('feed_forward_length'),
        )
        self.heads = get('attention.head_count')
        self.kv_heads = get('attention.head_count_kv', self.heads)
        self.head_dim = get('attention.key_length', self.embed // self.heads)
        self.eps = float(np.float32(get('attention.layer_norm_rms_epsilon')))
        self.theta = float(get('rope.freq_base', 10000.0))
        self.context = get('context_length')
        self.vocab = len(meta['tokenizer.ggml.tokens'])
        if (
            get('rope.dimension_count', self.head_dim) != self.head_dim
            or get('rope.scaling.type', 'none') != 'none'
        ):
            raise Refused('models with partial or scaled RoPE are not trained for here')


def halves(weight, heads):
    """Interleaved RoPE rows (as GGUF files of 'llama' have them) to rows in halves."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, rows // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def rope_table(count, dim, theta, device, factors=None):
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if factors is not None:
        frequency = frequency / factors.double()
    angle = torch.arange(count, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float().to(device), angle.sin().float().to(device)


def rms_norm(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rotate(x, cos, sin):
    """x: [rows, heads, dim] in halves; cos, sin: [rows, dim / 2]."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def before_attention(x, norm, qkv, bias, cos, sin, eps, heads, kv_heads):
    y = F.linear(rms_norm(x, norm, eps), qkv, bias).view(x.shape[0], heads + 2 * kv_heads, -1)
    q, k, v = y.split([heads, kv_heads, kv_heads], 1)
    return rotate(q, cos, sin), rotate(k, cos, sin), v.contiguous()


def after_attention(x, attended, out, norm, gate_up, down, eps):
    x = x + F.linear(attended, out)
    gate, up = F.linear(rms_norm(x, norm, eps), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


def compiled(function, device, wanted):
    """torch.compile where it works; the function itself after the first failure."""
    if not wanted or device.type != 'cuda':
        return function
    state = {'call': torch.compile(function, dynamic=False)}

    def call(*arguments):
        if state['call'] is not function:
            try:
                return state['call'](*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as e:  # whatever the compiler throws: the plain function does the same
                print(
                    f'torch.compile of {function.__name__} failed ({str(e)[:200]!r}); going on without',
                    flush=True,
                )
                state['call'] = function
        return function(*arguments)

    return call


class Target:
    """Weights on the device, and the forward over whole rows that prefill and training use."""

    def __init__(self, path, device, dtype=torch.bfloat16, compile_pieces=True):
        gguf = Gguf(path)
        self.meta, self.config = gguf.meta, Config(gguf.meta)
        c, self.device, self.dtype = self.config, device, dtype
        put = lambda w: w.to(device=device, dtype=dtype).contiguous()
        self.embedding = put(gguf.tensor('token_embd.weight'))
        self.norm = put(gguf.tensor('output_norm.weight'))
        self.output = put(gguf.tensor('output.weight')) if 'output.weight' in gguf.index else self.embedding
        self.layers = [self._layer(gguf, i, put) for i in range(c.layers)]
        factors = gguf.tensor('rope_freqs.weight') if 'rope_freqs.weight' in gguf.index else None
        self.cos, self.sin = rope_table(min(c.context, 8192), c.head_dim, c.theta, device, factors)
        self.before = before_attention
        self.after = after_attention
        self.compile_pieces = compile_pieces

    def _layer(self, gguf, i, put):
        c, w = self.config, lambda name: gguf.tensor(f'blk.{i}.{name}.weight')
        parts = [('attn_q', c.heads), ('attn_k', c.kv_heads), ('attn_v', 0)]
        turned = lambda x, heads: halves(x, heads) if c.interleaved and heads else x
        bias = None
        if f'blk.{i}.attn_q.bias' in gguf.index:
            bias = put(torch.cat([turned(gguf.tensor(f'blk.{i}.{n}.bias'), heads) for n, heads in parts]))
        return {
            'norm': put(w('attn_norm')),
            'qkv': put(torch.cat([turned(w(n), heads) for n, heads in parts])),
            'bias': bias,
            'out': put(w('attn_output')),
            'ffn_norm': put(w('ffn_norm')),
            'gate_up': put(torch.cat([w('ffn_gate'), w('ffn_up')])),
            'down': put(w('ffn_down')),
        }

    def compiled_pieces(self):
        make = lambda f: compiled(f, self.device, self.compile_pieces)
        return make(before_attention), make(after_attention)

    @torch.no_grad()
    def forward(self, tokens, taps=(), keep_kv=None, pieces=None):
        """tokens [rows, length] -> last state before the final norm, and the states that enter the layers
        `taps`."""
        before, after = pieces or (before_attention, after_attention)
        c, (rows, length) = self.config, tokens.shape
        x = F.embedding(tokens, self.embedding).view(rows * length, -1)
        cos, sin = self.cos[:length].repeat(rows, 1), self.sin[:length].repeat(rows, 1)
        tapped = {}
        for i, w in enumerate(self.layers):
            if i in taps:
                tapped[i] = x
            q, k, v = before(x, w['norm'], w['qkv'], w['bias'], cos, sin, c.eps, c.heads, c.kv_heads)
            shape = lambda y: y.view(rows, length, -1, c.head_dim).transpose(1, 2)
            if keep_kv is not None:
                keep_kv(i, shape(k), shape(v))
            a = F.scaled_dot_product_attention(
                shape(q), shape(k), shape(v), is_causal=True, enable_gqa=c.heads != c.kv_heads
            )
            a = a.transpose(1, 2).reshape(rows * length, -1)
            x = after(x, a, w['out'], w['ffn_norm'], w['gate_up'], w['down'], c.eps)
        if c.layers in taps:
            tapped[c.layers] = x
        return x, tapped
