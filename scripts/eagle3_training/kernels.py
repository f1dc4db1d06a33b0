"""Kernels that are written by hand, each with the same in plain PyTorch beside it: attention of one new row
over a static cache, sampling, loss with its gradient, and attention of the later steps of training-time
test."""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

SETTINGS = {'triton': triton is not None}


def use_triton(tensor):
    return SETTINGS['triton'] and (tensor.is_cuda or SETTINGS.get('interpreted', False))


if triton is not None:

    @triton.jit
    def _decode_attention(
        q, k, v, out, position, scale, room, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr
    ):
        pair = tl.program_id(0).to(tl.int64)
        row, column, lane = tl.arange(0, 16), tl.arange(0, D), tl.arange(0, N)
        live = row[:, None] < G
        query = tl.load(q + pair * G * D + row[:, None] * D + column[None, :], mask=live, other=0.0)
        count = tl.load(position) + 1
        top = tl.full([16], -float('inf'), tl.float32)
        total = tl.zeros([16], tl.float32)
        sums = tl.zeros([16, D], tl.float32)
        base = pair * room * D
        for start in range(0, count, N):
            key_row = start + lane
            inside = key_row < count
            at = base + key_row[:, None] * D + column[None, :]
            keys = tl.load(k + at, mask=inside[:, None], other=0.0)
            score = tl.dot(query, tl.trans(keys)) * scale
            score = tl.where(inside[None, :], score, -float('inf'))
            higher = tl.maximum(top, tl.max(score, 1))
            shrink = tl.exp(top - higher)
            weight = tl.exp(score - higher[:, None])
            total = total * shrink + tl.sum(weight, 1)
            values = tl.load(v + at, mask=inside[:, None], other=0.0)
            sums = sums * shrink[:, None] + tl.dot(weight.to(values.dtype), values)
            top = higher
        result = sums / total[:, None]
        tl.store(out + pair * G * D + row[:, None] * D + column[None, :], result.to(query.dtype), mask=live)

    @triton.jit
    def _sample(logits, banned, temperature, min_p_log, seed, out, V, N: tl.constexpr):
        row = tl.program_id(0)
        base = logits + row.to(tl.int64) * V
        lane = tl.arange(0, N)
        heat, floor = tl.load(temperature + row), tl.load(min_p_log + row)
        key = tl.load(seed)
        top = tl.full([N], -float('inf'), tl.float32)
        for start in range(0, V, N):
            i = start + lane
            x = tl.load(base + i, mask=i < V, other=-float('inf')).to(tl.float32)
            top = tl.maximum(top, x + tl.load(banned + i, mask=i < V, other=0.0))
        least = tl.max(top, 0) + heat * floor
        best = tl.full([N], -float('inf'), tl.float32)
        where = tl.zeros([N], tl.int32)
        hot = heat > 0
        divide = tl.where(hot, heat, 1.0)
        for start in range(0, V, N):
            i = start + lane
            x = tl.load(base + i, mask=i < V, other=-float('inf')).to(tl.float32)
            x += tl.load(banned + i, mask=i < V, other=0.0)
            u = tl.maximum(tl.rand(key, row * V + i), 1e-10)
            noisy = x / divide - tl.where(hot, tl.log(-tl.log(u)), 0.0)
            noisy = tl.where(x >= least, noisy, -float('inf'))
            better = noisy > best
            best, where = tl.where(better, noisy, best), tl.where(better, i, where)
        highest = tl.max(best, 0)
        token = tl.min(tl.where(best == highest, where, V - 1), 0)
        tl.store(out + row, token.to(tl.int64))

    @triton.jit
    def _soft_loss(logits, targets, weight, loss, best, V, N: tl.constexpr):
        row = tl.program_id(0)
        base = row.to(tl.int64) * V
        lane = tl.arange(0, N)
        inside = lane < V
        z = tl.load(logits + base + lane, mask=inside, other=-float('inf')).to(tl.float32)
        p = tl.load(targets + base + lane, mask=inside, other=0.0).to(tl.float32)
        top = tl.max(z, 0)
        power = tl.exp(z - top)
        total = tl.sum(power, 0)
        mass = tl.sum(p, 0)
        # the targets were rounded: their true sum keeps the gradient's sum at zero
        safe = tl.where(inside, z, 0.0)
        value = mass * (top + tl.log(total)) - tl.sum(p * safe, 0)
        w = tl.load(weight + row)
        tl.store(loss + row, value)
        tl.store(best + row, tl.argmax(z, 0).to(tl.int64))
        gradient = (power / total * mass - p) * w
        tl.store(logits + base + lane, gradient.to(logits.dtype.element_ty), mask=inside)

    @triton.jit
    def _merge(
        q,
        first,
        first_lse,
        own_k,
        own_v,
        out,
        lse,
        rows,
        scale,
        J: tl.constexpr,
        G: tl.constexpr,
        H: tl.constexpr,
        D: tl.constexpr,
        N: tl.constexpr,
    ):
        head = tl.program_id(1)
        row = tl.program_id(0) * N + tl.arange(0, N)
        inside = row < rows
        column = tl.arange(0, D)
        at = (row[:, None].to(tl.int64) * H + head) * D + column[None, :]
        kv_heads = H // G
        kv_at = (row[:, None].to(tl.int64) * kv_heads + head // G) * D + column[None, :]
        step = rows * kv_heads * D
        live = inside[:, None]
        query = tl.load(q + at, mask=live, other=0.0).to(tl.float32)
        top = tl.load(first_lse + row * H + head, mask=inside, other=0.0)
        sums = tl.load(first + at, mask=live, other=0.0).to(tl.float32)
        total = tl.full([N], 1.0, tl.float32)
        for j in tl.static_range(J):
            key = tl.load(own_k + j * step + kv_at, mask=live, other=0.0).to(tl.float32)
            value = tl.load(own_v + j * step + kv_at, mask=live, other=0.0).to(tl.float32)
            score = tl.sum(query * key, 1) * scale
            higher = tl.maximum(top, score)
            shrink, weight = tl.exp(top - higher), tl.exp(score - higher)
            sums = sums * shrink[:, None] + value * weight[:, None]
            total = total * shrink + weight
            top = higher
        tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=live)
        tl.store(lse + row * H + head, top + tl.log(total), mask=inside)

    @triton.jit
    def _merge_backward(
        q,
        out,
        lse,
        own_k,
        own_v,
        dout,
        dq,
        dk,
        dv,
        rows,
        scale,
        J: tl.constexpr,
        G: tl.constexpr,
        H: tl.constexpr,
        D: tl.constexpr,
        N: tl.constexpr,
    ):
        kv_head = tl.program_id(1)
        row = tl.program_id(0) * N + tl.arange(0, N)
        inside = row < rows
        live = inside[:, None]
        column = tl.arange(0, D)
        kv_heads = H // G
        kv_at = (row[:, None].to(tl.int64) * kv_heads + kv_head) * D + column[None, :]
        step = rows * kv_heads * D
        for j in tl.static_range(J):
            key = tl.load(own_k + j * step + kv_at, mask=live, other=0.0).to(tl.float32)
            value = tl.load(own_v + j * step + kv_at, mask=live, other=0.0).to(tl.float32)
            dkey = tl.zeros([N, D], tl.float32)
            dvalue = tl.zeros([N, D], tl.float32)
            for g in tl.static_range(G):
                head = kv_head * G + g
                at = (row[:, None].to(tl.int64) * H + head) * D + column[None, :]
                query = tl.load(q + at, mask=live, other=0.0).to(tl.float32)
                go = tl.load(dout + at, mask=live, other=0.0).to(tl.float32)
                o = tl.load(out + at, mask=live, other=0.0).to(tl.float32)
                p = tl.exp(
                    tl.sum(query * key, 1) * scale - tl.load(lse + row * H + head, mask=inside, other=0.0)
                )
                ds = p * tl.sum(go * (value - o), 1) * scale
                dkey += ds[:, None] * query
                dvalue += p[:, None] * go
                before = tl.load(dq + at, mask=live, other=0.0)
                tl.store(dq + at, before + ds[:, None] * key, mask=live)
            tl.store(dk + j * step + kv_at, dkey.to(dk.dtype.element_ty), mask=live)
            tl.store(dv + j * step + kv_at, dvalue.to(dv.dtype.element_ty), mask=live)
            tl.debug_barrier()  # the next round reads the dq that this one wrote


def _guarded(name, tensor, fast, plain):
    """The Triton kernel; after its first failure the plain operations, with one line that says so."""
    if use_triton(tensor) and name not in SETTINGS.setdefault('failed', set()):
        try:
            return fast()
        except torch.OutOfMemoryError:
            raise
        except Exception as e:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise
            print(f'kernel {name} failed ({str(e)[:300]!r}); going on with plain operations', flush=True)
            SETTINGS['failed'].add(name)
    return plain()


ATTENTION_SHAPES = [(64, 4, 2), (64, 2, 3), (128, 4, 2), (32, 2, 3)]  # keys a turn, warps, stages


def decode_attention(q, k, v, position):
    """q [B, H, D]; k, v [B, KV, room, D]; position: int tensor of one value, the row's own place in the
    cache."""
    B, H, D = q.shape
    kv_heads, room = k.shape[1], k.shape[2]
    group, scale = H // kv_heads, D**-0.5

    def fast():
        if D & (D - 1) or group > 16 or D < 16:
            raise ValueError(f'no kernel for heads of {D} values, {group} a key')
        out = torch.empty_like(q)
        keys, warps, stages = SETTINGS.get('attention', ATTENTION_SHAPES[0])
        _decode_attention[(B * kv_heads,)](
            q, k, v, out, position, scale, room, G=group, D=D, N=keys, num_warps=warps, num_stages=stages
        )
        return out

    def plain():
        seen = torch.arange(room, device=q.device) <= position
        grouped = q.view(B, kv_heads, group, D)
        out = torch.nn.functional.scaled_dot_product_attention(
            grouped, k, v, attn_mask=seen.view(1, 1, 1, room)
        )
        return out.reshape(B, H, D)

    return _guarded('decode attention', q, fast, plain)


def sample(logits, banned, temperature, min_p_log, seed):
    """One token a row: the highest of logits / temperature + Gumbel noise, among those min-p keeps; 0 is
    greedy."""
    rows, vocab = logits.shape

    def fast():
        out = torch.empty(rows, dtype=torch.int64, device=logits.device)
        _sample[(rows,)](logits, banned, temperature, min_p_log, seed, out, vocab, N=4096, num_warps=8)
        return out

    def plain():
        x = logits.float() + banned
        least = x.amax(1) + temperature * min_p_log
        hot = temperature > 0
        noise = -torch.log(-torch.log(torch.rand_like(x).clamp_(1e-10, 1 - 1e-7)))
        noisy = x / temperature.masked_fill(~hot, 1.0)[:, None] + noise.masked_fill_(~hot[:, None], 0.0)
        return noisy.masked_fill_(x < least[:, None], -float('inf')).argmax(1)

    return _guarded('sampling', logits, fast, plain)


def soft_loss(logits, targets, weight):
    """Cross-entropy against soft targets a row, unweighted; `logits` becomes the weighted gradient. Also the
    best id."""
    rows, vocab = logits.shape

    def fast():
        if vocab > 65536:
            raise ValueError(f'{vocab} rows of draft vocabulary are more than a block holds')
        loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
        best = torch.empty(rows, dtype=torch.int64, device=logits.device)
        _soft_loss[(rows,)](
            logits, targets, weight, loss, best, vocab, N=triton.next_power_of_2(vocab), num_warps=16
        )
        return loss, best

    def plain():
        loss, best = torch.empty(rows, device=logits.device), logits.argmax(1)
        for at in range(0, rows, 4096):
            part = slice(at, at + 4096)
            z, p = logits[part].float(), targets[part].float()
            log_q = z.log_softmax(1)
            loss[part] = -(p * log_q).sum(1)
            logits[part] = ((log_q.exp() * p.sum(1, keepdim=True) - p) * weight[part, None]).to(logits.dtype)
        return loss, best

    return _guarded('loss', logits, fast, plain)


def _flash(q, k, v, causal=True):
    """[B, T, H, D] in and out; (out, lse [B, H, T], what backward needs besides)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if q.is_cuda:
        r = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)
        return r[0].transpose(1, 2), r[1], r[2:8]
    r = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return r[0].transpose(1, 2), r[1], None


def _flash_backward(dout, q, k, v, out, lse, rest):
    dout, q, k, v, out = (x.transpose(1, 2) for x in (dout, q, k, v, out))
    if q.is_cuda:
        cum_q, cum_k, max_q, max_k, seed, offset = rest
        grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset
        )
    else:
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, True
        )
    return tuple(g.transpose(1, 2) for g in grads[:3])


def merge_plain(q, first, first_lse, own_k, own_v, scale):
    group = q.shape[2] // own_k.shape[3]
    k, v = (x.float().repeat_interleave(group, 3) for x in (own_k, own_v))
    score = (q.float()[None] * k).sum(-1) * scale  # [J, B, T, H]
    lse = torch.logsumexp(torch.cat([first_lse[None], score]), 0)
    out = first.float() * (first_lse - lse).exp()[..., None] + ((score - lse).exp()[..., None] * v).sum(0)
    return out.to(q.dtype), lse


def merge_backward_plain(q, out, lse, own_k, own_v, dout, scale):
    group, kv_heads = q.shape[2] // own_k.shape[3], own_k.shape[3]
    k, v = (x.float().repeat_interleave(group, 3) for x in (own_k, own_v))
    go, wide = dout.float(), q.float()
    p = ((wide[None] * k).sum(-1) * scale - lse).exp()
    ds = p * (go[None] * (v - out.float()[None])).sum(-1) * scale
    fold = lambda x: x.unflatten(3, (kv_heads, group)).sum(4)
    return (ds[..., None] * k).sum(0), fold(ds[..., None] * wide[None]), fold(p[..., None] * go[None])


def merge(q, first, first_lse, own_k, own_v, scale):
    """Own keys of the later steps join the first step's attention by log-sum-exp. lse: [B, T, H]."""

    def fast():
        out, lse = torch.empty_like(q), torch.empty_like(first_lse)
        rows, H, D = q.shape[0] * q.shape[1], q.shape[2], q.shape[3]
        _merge[(-(-rows // 32), H)](
            q,
            first,
            first_lse,
            own_k,
            own_v,
            out,
            lse,
            rows,
            scale,
            J=own_k.shape[0],
            G=H // own_k.shape[3],
            H=H,
            D=D,
            N=32,
            num_warps=4,
        )
        return out, lse

    return _guarded('merge', q, fast, lambda: merge_plain(q, first, first_lse, own_k, own_v, scale))


def merge_backward(q, out, lse, own_k, own_v, dout, scale):
    def fast():
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = torch.empty_like(own_k), torch.empty_like(own_v)
        rows, H, D, kv_heads = q.shape[0] * q.shape[1], q.shape[2], q.shape[3], own_k.shape[3]
        _merge_backward[(-(-rows // 32), kv_heads)](
            q,
            out,
            lse,
            own_k,
            own_v,
            dout,
            dq,
            dk,
            dv,
            rows,
            scale,
            J=own_k.shape[0],
            G=H // kv_heads,
            H=H,
            D=D,
            N=32,
            num_warps=4,
        )
        return dq, dk, dv

    return _guarded(
        'merge backward', q, fast, lambda: merge_backward_plain(q, out, lse, own_k, own_v, dout, scale)
    )


class StepAttention(torch.autograd.Function):
    """Attention of one step of training-time test. Root r sees the first step's keys up to r, and its own
    chain's keys of the steps since. Flash attention's backward, given the merged output and log-sum-exp, is
    exact for its share."""

    @staticmethod
    def forward(ctx, q, k0, v0, own_k, own_v):
        """q [B, T, H, D]; k0, v0 [B, T, KV, D]; own_k, own_v: [J, B, T, KV, D], or None in the first step."""
        group, scale = q.shape[2] // k0.shape[2], q.shape[3] ** -0.5
        q, k, v = q.contiguous(), k0.repeat_interleave(group, 2), v0.repeat_interleave(group, 2)
        out, lse, rest = _flash(q, k, v)
        ctx.rest, ctx.group, ctx.scale, ctx.own = rest, group, scale, own_k is not None
        if ctx.own:
            out, by_row = merge(q, out.contiguous(), lse.transpose(1, 2).contiguous(), own_k, own_v, scale)
            lse = by_row.transpose(1, 2).contiguous()
        ctx.save_for_backward(q, k, v, out, lse, own_k, own_v)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse, own_k, own_v = ctx.saved_tensors
        dout = dout.contiguous()
        dq, dk, dv = _flash_backward(dout, q, k, v, out, lse, ctx.rest)
        fold = lambda x: x.unflatten(2, (-1, ctx.group)).sum(3)
        down_k = down_v = None
        if ctx.own:
            more, down_k, down_v = merge_backward(
                q, out, lse.transpose(1, 2).contiguous(), own_k, own_v, dout, ctx.scale
            )
            dq = (dq.float() + more).to(dq.dtype)
        return dq, fold(dk), fold(dv), down_k, down_v
