"""The EAGLE-3 head: its weights, the unrolled pass of training-time test, quantisation in the forward,
files."""

import json
import os

import torch
import torch.nn.functional as F

from . import files
from .kernels import StepAttention
from .target import Refused, compiled, rms_norm, rope_table, rotate

MATRICES = [
    'fc',
    'midlayer.self_attn.q_proj',
    'midlayer.self_attn.k_proj',
    'midlayer.self_attn.v_proj',
    'midlayer.self_attn.o_proj',
    'midlayer.mlp.gate_proj',
    'midlayer.mlp.up_proj',
    'midlayer.mlp.down_proj',
]
NORMS = ['midlayer.input_layernorm', 'midlayer.hidden_norm', 'midlayer.post_attention_layernorm', 'norm']
OUTPUT = 'lm_head'


def head_before(state, embedded, embedding_norm, state_norm, qkv, cos, sin, eps, heads, kv_heads):
    x = torch.cat([rms_norm(embedded, embedding_norm, eps), rms_norm(state, state_norm, eps)], -1)
    y = F.linear(x, qkv).view(x.shape[0], heads + 2 * kv_heads, -1)
    q, k, v = y.split([heads, kv_heads, kv_heads], 1)
    return rotate(q, cos, sin), rotate(k, cos, sin), v.contiguous()


def head_after(state, attended, out, ffn_norm, gate_up, down, output_norm, eps):
    state = state + F.linear(attended, out)
    gate, up = F.linear(rms_norm(state, ffn_norm, eps), gate_up).chunk(2, -1)
    state = state + F.linear(F.silu(gate) * up, down)
    return state, rms_norm(state, output_norm, eps)


def fake_quantised(w, kind):
    """Weights as they come back from blocks of 32 of this kind; the gradient passes straight through."""
    if kind is None:
        return w
    blocks = w.detach().float().reshape(-1, 32)
    half = lambda x: x.half().float()
    if kind == 'q8_0':
        scale = half(blocks.abs().amax(1, keepdim=True) / 127)
        back = (blocks / scale.clamp(min=1e-12)).round().clamp(-127, 127) * scale
    else:
        low, high = blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True)
        scale = half((high - low) / 15)
        back = ((blocks - low) / scale.clamp(min=1e-12)).round().clamp(0, 15) * scale + half(low)
    return w + (back.reshape(w.shape).to(w.dtype) - w).detach()


class Head:
    def __init__(self, target, order, taps, ffn=None, seed=0):
        c, self.target, self.taps, self.order = target.config, target, list(taps), list(order)
        self.device, self.ffn = target.device, ffn or c.ffn
        self.ids = torch.tensor(self.order, device=self.device)
        make = torch.Generator().manual_seed(seed)
        wide, narrow = c.heads * c.head_dim, c.kv_heads * c.head_dim
        shapes = {
            'fc': (c.embed, len(taps) * c.embed),
            'midlayer.self_attn.q_proj': (wide, 2 * c.embed),
            'midlayer.self_attn.k_proj': (narrow, 2 * c.embed),
            'midlayer.self_attn.v_proj': (narrow, 2 * c.embed),
            'midlayer.self_attn.o_proj': (c.embed, wide),
            'midlayer.mlp.gate_proj': (self.ffn, c.embed),
            'midlayer.mlp.up_proj': (self.ffn, c.embed),
            'midlayer.mlp.down_proj': (c.embed, self.ffn),
        }
        self.master = {n: torch.randn(s, generator=make) * 0.5 * s[1] ** -0.5 for n, s in shapes.items()}
        self.master.update({n: torch.ones(c.embed) for n in NORMS})
        self.master['norm'] = target.norm.float().cpu()
        self.master[OUTPUT] = target.output[self.ids].float().cpu()
        self._put()
        # one position more a step than the longest row
        self.cos, self.sin = rope_table(min(c.context, 8192) + 16, c.head_dim, c.theta, self.device)

    def _put(self):
        self.master = {n: w.to(self.device, torch.float32).contiguous() for n, w in self.master.items()}
        for n, w in self.master.items():
            w.requires_grad_(n != OUTPUT)
            w.grad = torch.zeros_like(w)

    def compile_pieces(self, wanted):
        return compiled(head_before, self.device, wanted), compiled(head_after, self.device, wanted)

    def weights(self, layer=None, output=None):
        """The masters as the forward uses them: in the target's type, perhaps as if quantised."""
        w = {
            n: (fake_quantised(m, layer) if n in MATRICES else m).to(self.target.dtype)
            for n, m in self.master.items()
            if n != OUTPUT
        }
        a, m = 'midlayer.self_attn.', 'midlayer.mlp.'
        return {
            'fc': w['fc'],
            'qkv': torch.cat([w[a + 'q_proj'], w[a + 'k_proj'], w[a + 'v_proj']]),
            'out': w[a + 'o_proj'],
            'gate_up': torch.cat([w[m + 'gate_proj'], w[m + 'up_proj']]),
            'down': w[m + 'down_proj'],
            'embedding_norm': w[NORMS[0]],
            'state_norm': w[NORMS[1]],
            'ffn_norm': w[NORMS[2]],
            'norm': w[NORMS[3]],
            'output': fake_quantised(self.master[OUTPUT], output).detach().to(self.target.dtype),
        }

    def unrolled(self, w, features, tokens, steps, pieces):
        """Normed outputs of `steps` steps. Root p has the target's features of position p; step j embeds
        token p + 1 + j and predicts token p + 2 + j."""
        before, after = pieces
        c, (rows, length) = self.target.config, tokens.shape
        embedded = F.embedding(F.pad(tokens, (0, steps + 1)), self.target.embedding)
        state, first, own_k, own_v = F.linear(features, w['fc']), None, [], []
        for j in range(steps):
            e = embedded[:, j + 1 : j + 1 + length].reshape(rows * length, -1)
            cos, sin = self.cos[j : j + length].repeat(rows, 1), self.sin[j : j + length].repeat(rows, 1)
            q, k, v = before(
                state, e, w['embedding_norm'], w['state_norm'], w['qkv'], cos, sin, c.eps, c.heads, c.kv_heads
            )
            q, k, v = (x.reshape(rows, length, -1, c.head_dim) for x in (q, k, v))
            if first is None:
                first = (k, v)
            else:
                own_k.append(k), own_v.append(v)
            own = (torch.stack(own_k), torch.stack(own_v)) if own_k else (None, None)
            a = StepAttention.apply(q, *first, *own).reshape(rows * length, -1)
            state, y = after(state, a, w['out'], w['ffn_norm'], w['gate_up'], w['down'], w['norm'], c.eps)
            yield y

    def save(self, folder, horizon):
        os.makedirs(folder, exist_ok=True)
        c, half = (
            self.target.config,
            lambda x: x.detach().to(torch.bfloat16).cpu().contiguous().view(torch.int16).numpy().tobytes(),
        )
        tensors = {n + '.weight': ('BF16', list(w.shape), half(w)) for n, w in self.master.items()}
        tensors.update(files.id_tensors(self.order, c.vocab))
        files.write_safetensors(os.path.join(folder, 'model.safetensors'), tensors)
        config = {
            'architectures': ['LlamaForCausalLMEagle3'],
            'hidden_size': c.embed,
            'intermediate_size': self.ffn,
            'num_attention_heads': c.heads,
            'num_key_value_heads': c.kv_heads,
            'head_dim': c.head_dim,
            'num_hidden_layers': 1,
            'rms_norm_eps': float(f'{c.eps:.6g}'),
            'rope_theta': c.theta,
            'hidden_act': 'silu',
            'vocab_size': c.vocab,
            'draft_vocab_size': len(self.order),
            'max_position_embeddings': 2048,
            'target_hidden_size': c.embed,
            'eagle_aux_hidden_state_layer_ids': self.taps,
            'horizon': horizon,
            'tie_word_embeddings': False,
            'torch_dtype': 'bfloat16',
        }
        with open(os.path.join(folder, 'config.json'), 'w') as f:
            json.dump(config, f, indent=1)


def _tensor(entry):
    kind, shape, data = entry
    types = {'BF16': torch.bfloat16, 'F16': torch.float16, 'F32': torch.float32}
    return torch.frombuffer(bytearray(data), dtype=types[kind]).reshape(shape).float()


def load_head(folder, target):
    with open(os.path.join(folder, 'config.json')) as f:
        config = json.load(f)
    tensors = files.read_safetensors(os.path.join(folder, 'model.safetensors'))
    order, taps = files.read_order(tensors), config['eagle_aux_hidden_state_layer_ids']
    head = Head(target, order, taps, config['intermediate_size'])
    for name, w in head.master.items():
        there = _tensor(tensors[name + '.weight'])
        if there.shape != w.shape:
            raise Refused(
                f'{folder}: {name} is {list(there.shape)}; a head of this target has {list(w.shape)}'
            )
        head.master[name] = there
    head._put()
    return head


def with_new_order(head, order):
    """The same head over another draft vocabulary. A row that is new is the target's row through the affine
    map that best gives the known rows: trained rows have moved together, so a raw row of the target would
    stand apart."""
    old = {t: i for i, t in enumerate(head.order)}
    known, rows = head.target.output[head.ids].float(), head.master[OUTPUT].detach()
    widen = lambda x: torch.cat([x, torch.ones(len(x), 1, device=x.device)], 1)
    affine = torch.linalg.lstsq(widen(known), rows).solution
    fresh = widen(head.target.output[torch.tensor(order, device=head.device)].float()) @ affine
    for i, t in enumerate(order):
        if t in old:
            fresh[i] = rows[old[t]]
    changed = Head(head.target, order, head.taps, head.ffn)
    for n, w in head.master.items():
        changed.master[n] = fresh if n == OUTPUT else w.detach().clone()
    changed._put()
    return changed
