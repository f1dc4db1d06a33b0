"""Whether the hand-written kernels give what plain operations give, on this device."""

import torch

from . import kernels


def _apart(a, b):
    a, b = a.float(), b.float()
    return ((a - b).norm() / b.norm().clamp(min=1e-9)).item()


def _both(call):
    """(with the kernels, without)."""
    fast = call()
    wanted, kernels.SETTINGS['triton'] = kernels.SETTINGS['triton'], False
    try:
        return fast, call()
    finally:
        kernels.SETTINGS['triton'] = wanted


def decode_error(device, dtype, rows=40, room=200):
    q, k, v = (
        torch.randn(s, device=device, dtype=dtype)
        for s in ((rows, 9, 64), (rows, 3, room, 64), (rows, 3, room, 64))
    )
    at = torch.tensor([room - 61], device=device)
    return _apart(*_both(lambda: kernels.decode_attention(q, k, v, at)))


def loss_error(device, dtype, rows=50, vocab=3000):
    logits = torch.randn(rows, vocab, device=device, dtype=dtype) * 3
    p = (torch.randn(rows, vocab, device=device) * 3).softmax(1).to(dtype)
    weight = torch.rand(rows, device=device)

    def call():
        z = logits.clone()
        loss, best = kernels.soft_loss(z, p, weight)
        return torch.cat([z.float().flatten(), loss, (best == logits.argmax(1)).float()])

    return _apart(*_both(call))


def merge_error(device, dtype, rows=3, length=37, own=3):
    make = lambda *s: torch.randn(s, device=device, dtype=dtype)
    q, first, dout = (make(rows, length, 9, 64) for _ in range(3))
    k, v, lse = (
        make(own, rows, length, 3, 64),
        make(own, rows, length, 3, 64),
        torch.randn(rows, length, 9, device=device),
    )

    def call():
        out, merged = kernels.merge(q, first, lse, k, v, 0.125)
        grads = kernels.merge_backward(q, out, merged, k, v, dout, 0.125)
        return torch.cat([x.float().flatten() for x in (out, merged, *grads)])

    return _apart(*_both(call))


def sampling_error(device, dtype, rows=2000, vocab=300):
    """Largest gap between drawn shares and probabilities; 1 if a greedy row misses its highest logit."""
    logits = (torch.randn(1, vocab, device=device) * 2).to(dtype).expand(rows, -1).contiguous()
    zero = lambda value: torch.full((rows,), value, device=device)
    banned, seed = torch.zeros(vocab, device=device), torch.tensor([7], device=device)
    greedy = kernels.sample(logits, banned, zero(0.0), zero(0.0), seed)
    if not (logits[0, greedy] == logits[0].max()).all():
        return 1.0
    drawn = (
        torch.bincount(kernels.sample(logits, banned, zero(1.0), zero(-1e30), seed), minlength=vocab) / rows
    )
    return (drawn - logits[0].float().softmax(0)).abs().max().item()


def _whole_attention(q, keys, values, chain_k, chain_v):
    """One step's attention over all its keys at once, as autograd understands it."""
    group, length = q.shape[2] // keys.shape[2], q.shape[1]
    keys, values, chain_k, chain_v = (
        x.repeat_interleave(group, -2) for x in (keys, values, chain_k, chain_v)
    )
    scale = q.shape[3] ** -0.5
    score = torch.einsum('bqhd,bkhd->bhqk', q, keys) * scale
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    score = score.masked_fill(later, -float('inf'))
    own = torch.einsum('bqhd,jbqhd->bhqj', q, chain_k) * scale
    share = torch.cat([score, own], -1).softmax(-1)
    return torch.einsum('bhqk,bkhd->bqhd', share[..., :length], values) + torch.einsum(
        'bhqj,jbqhd->bqhd', share[..., length:], chain_v
    )


def attention_error(device, dtype, rows=2, length=37, own=3):
    """Output and all gradients of a later step's attention, against the plain calculation in float32."""
    shapes = [(rows, length, 9, 64), *[(rows, length, 3, 64)] * 2, *[(own, rows, length, 3, 64)] * 2]
    inputs = [torch.randn(s, device=device).to(dtype) for s in shapes]
    direction = torch.randn(shapes[0], device=device).to(dtype)

    def results(function, kind):
        leaves = [x.detach().to(kind).requires_grad_() for x in inputs]
        out = function(*leaves)
        out.backward(direction.to(kind))
        return torch.cat([x.float().flatten() for x in (out.detach(), *(leaf.grad for leaf in leaves))])

    return _apart(results(kernels.StepAttention.apply, dtype), results(_whole_attention, torch.float32))


def kernels_agree(device):
    dtype = torch.bfloat16 if device.type == 'cuda' else torch.float32
    for name, error, limit in (
        ('decode attention', decode_error, 0.02),
        ('loss', loss_error, 0.02),
        ('merge', merge_error, 0.02),
        ('attention of a later step', attention_error, 0.03),
        ('sampling', sampling_error, 0.05),
    ):
        found = error(device, dtype)
        print(f'{name}: {found:.4f} apart {"ok" if found < limit else "TOO FAR"}', flush=True)
        if not found < limit:
            kernels.SETTINGS.setdefault('failed', set()).update(
                {'merge', 'merge backward'} if name == 'merge' else {name}
            )
