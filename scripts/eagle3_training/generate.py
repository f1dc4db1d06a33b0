"""Text that the model writes itself: batches of rows that share their position, a static cache, and one CUDA
graph for the whole decode step with its sampling and its turns."""

import json
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

from . import kernels

USER_HEAT, USER_MIN_P, USER_LIMIT = 1.0, 0.05, 96
ANSWER_LIMITS = (96, 320)
USER, ASSISTANT = 0, 1


class Decoder:
    """The model over a static cache of `rows` rows and `length` positions; `memory` may be shared by
    several."""

    def __init__(self, target, scripts, control, rows, length, memory=None, graph=True, seed=1):
        c, dev = target.config, target.device
        self.target, self.rows, self.length, self.graph_wanted, self.graph = target, rows, length, graph, None
        shape = (c.layers, 2, rows, c.kv_heads, length, c.head_dim)
        size = int(np.prod(shape))
        self.cache = (
            memory[:size] if memory is not None else torch.zeros(size, dtype=target.dtype, device=dev)
        ).view(shape)
        self.pieces = target.compiled_pieces()
        whole = lambda n, value=0: torch.full((n,), value, dtype=torch.int64, device=dev)
        self.position, self.token, self.phase, self.count = whole(1), whole(rows), whole(rows), whole(rows)
        self.script, self.script_at, self.limit = whole(rows, -1), whole(rows), whole(rows, 1 << 30)
        self.prompt_length, self.heat = whole(rows), torch.zeros(rows, device=dev)
        self.tokens = torch.zeros(rows, length, dtype=torch.int64, device=dev)
        self.written = torch.zeros(rows, length, dtype=torch.bool, device=dev)
        widest = max(len(s) for s in scripts)
        self.scripts = torch.tensor([s + [0] * (widest - len(s)) for s in scripts], device=dev)
        self.script_length = torch.tensor([len(s) for s in scripts], device=dev)
        self.ends = self.scripts[:, 0][[1, 0]].contiguous()  # by phase: the user's, the assistant's
        banned = torch.zeros(c.vocab, device=dev)
        banned[sorted(control - {s[0] for s in scripts})] = -float('inf')
        self.banned, self.seed = banned, torch.full((1,), seed, dtype=torch.int64, device=dev)

    def load(self, prompts, limits):
        put = lambda values, dtype: torch.tensor(values, dtype=dtype, device=self.target.device)
        self.tokens.zero_(), self.written.zero_(), self.script.fill_(
            -1
        ), self.script_at.zero_(), self.count.zero_()
        host = np.zeros((self.rows, self.length), np.int64)
        for i, p in enumerate(prompts):
            host[i, : len(p[0])] = p[0]
        self.tokens.copy_(torch.from_numpy(host))
        self.prompt_length.copy_(put([len(p[0]) for p in prompts], torch.int64))
        self.heat.copy_(put([p[1] for p in prompts], torch.float32))
        self.phase.copy_(put([p[3] for p in prompts], torch.int64))
        self.limit.copy_(put(limits, torch.int64))

    @torch.no_grad()
    def prefill(self, count, tokens_at_once=65536):
        """The first `count` positions, which every row's prompt has."""
        step = max(1, tokens_at_once // max(count, 1))
        for at in range(0, self.rows if count else 0, step):
            part = slice(at, min(at + step, self.rows))

            def keep(layer, k, v, part=part):
                self.cache[layer, 0, part, :, :count].copy_(k)
                self.cache[layer, 1, part, :, :count].copy_(v)

            self.target.forward(self.tokens[part, :count], keep_kv=keep)
        self.position.fill_(count)
        self.token.copy_(self.tokens[:, count])

    def _logits(self):
        t, c, at = self.target, self.target.config, self.position
        before, after = self.pieces
        x = F.embedding(self.token, t.embedding)
        cos, sin = t.cos.index_select(0, at), t.sin.index_select(0, at)
        for i, w in enumerate(t.layers):
            q, k, v = before(x, w['norm'], w['qkv'], w['bias'], cos, sin, c.eps, c.heads, c.kv_heads)
            keys, values = self.cache[i, 0], self.cache[i, 1]
            keys.index_copy_(2, at, k.unsqueeze(2))
            values.index_copy_(2, at, v.unsqueeze(2))
            a = kernels.decode_attention(q, keys, values, at).view(self.rows, -1)
            x = after(x, a, w['out'], w['ffn_norm'], w['gate_up'], w['down'], c.eps)
        from .target import rms_norm

        return F.linear(rms_norm(x, t.norm, c.eps), t.output)

    def _turns(self, sampled):
        """The next token of every row: the prompt's, the script's between two turns, or the sampled one."""
        following = self.position + 1
        in_prompt = following < self.prompt_length
        scripted = (self.script >= 0) & ~in_prompt
        free = ~(in_prompt | scripted)
        answering = self.phase == ASSISTANT
        full = self.count >= self.limit.masked_fill(~answering, USER_LIMIT)
        end = torch.where(answering, self.ends[1], self.ends[0])
        stops = free & (full | (sampled == end))
        script = self.script.clamp(min=0)
        from_script = self.scripts[script, self.script_at.clamp(max=self.scripts.shape[1] - 1)]
        given = self.tokens.index_select(1, following).squeeze(1)
        token = torch.where(
            in_prompt, given, torch.where(scripted, from_script, torch.where(stops, end, sampled))
        )
        self.tokens.index_copy_(1, following, token[:, None])
        self.written.index_copy_(1, following, (free & ~full & answering)[:, None])
        self.count.add_(free)
        self.script_at.copy_((self.script_at + scripted).masked_fill(stops, 1))
        self.script.copy_(torch.where(stops, (~answering).long(), self.script))
        done = (
            (self.script >= 0) & (self.script_at >= self.script_length[self.script.clamp(min=0)]) & ~in_prompt
        )
        self.phase.copy_(torch.where(done, self.script, self.phase))
        self.count.mul_(~done)
        self.script.masked_fill_(done, -1)
        self.token.copy_(token)
        self.position.add_(1)

    @torch.no_grad()
    def step(self):
        logits = self._logits()
        answering = self.phase == ASSISTANT
        # no torch.where with a plain number: it would come from the host, which a graph cannot record
        heat = self.heat.masked_fill(~answering, USER_HEAT)
        floor = (
            torch.full_like(heat, -1e30)
            .masked_fill(~answering, float(np.log(USER_MIN_P)))
            .masked_fill(heat <= 0, 0.0)
        )
        sampled = kernels.sample(logits, self.banned, heat, floor, self.seed)
        self.seed.add_(1)
        self._turns(sampled)

    def capture(self):
        """Records the step once; without CUDA, or if recording fails, every step is launched by hand."""
        if self.graph is not None or not self.graph_wanted or self.target.device.type != 'cuda':
            return
        saved = {k: v.clone() for k, v in self.__dict__.items() if torch.is_tensor(v) and k != 'cache'}
        try:
            self.position.clamp_(max=self.length - 8)
            self._warm()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            self.graph = graph
        except torch.OutOfMemoryError:
            raise
        except Exception as e:
            torch.cuda.synchronize()
            print(f'no CUDA graph of the decode step ({str(e)[:300]!r}); launching by hand', flush=True)
            self.graph_wanted = False
        for k, v in saved.items():
            getattr(self, k).copy_(v)

    def _warm(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def run(self, until=None, stop=None):
        """Decodes to the rows' end. `stop` is asked now and then whether to give up."""
        at = int(self.position)
        if at + 10 < self.length:
            self.capture()
        for i in range(at, (until or self.length) - 1):
            self.graph.replay() if self.graph is not None else self.step()
            if stop and i % 64 == 0 and stop():
                return False
        if self.target.device.type == 'cuda':
            torch.cuda.synchronize()
        return True


def tune_attention(target, rows, length):
    """The fastest of a few shapes of the decode attention on this GPU."""
    if target.device.type != 'cuda' or not kernels.SETTINGS['triton']:
        return
    c, best = target.config, (1e9, None)
    make = lambda *shape: torch.randn(shape, dtype=target.dtype, device=target.device)
    q, k, v = (
        make(rows, c.heads, c.head_dim),
        make(rows, c.kv_heads, length, c.head_dim),
        make(rows, c.kv_heads, length, c.head_dim),
    )
    position = torch.full((1,), length - 1, dtype=torch.int64, device=target.device)
    for shape in kernels.ATTENTION_SHAPES:
        kernels.SETTINGS['attention'] = shape
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(3):
            kernels.decode_attention(q, k, v, position)
        start.record()
        for _ in range(10):
            kernels.decode_attention(q, k, v, position)
        end.record()
        torch.cuda.synchronize()
        best = min(best, (start.elapsed_time(end) / 10, shape))
    kernels.SETTINGS['attention'] = best[1]
    moved = 2 * k.numel() * k.element_size() / best[0] * 1e-9
    print(f'decode attention: {best[1]} {best[0]:.3f} ms, {moved:.2f} TB/s', flush=True)


def fitting_rows(target, wanted, length):
    """Rows whose cache fits, with room for the logits and the prefill."""
    if target.device.type != 'cuda':
        return wanted
    c = target.config
    row = c.layers * 2 * c.kv_heads * length * c.head_dim * target.embedding.element_size() + c.vocab * 6
    free = torch.cuda.mem_get_info()[0] - (6 << 30)
    return max(64, min(wanted, int(free * 0.9) // row // 64 * 64))


class Folder:
    """Finished batches of rows as files: rows_<length>_<number>.npz. A batch is there whole or not at all."""

    def __init__(self, path):
        self.path = path
        os.makedirs(path, exist_ok=True)
        self.state_path = os.path.join(path, 'state.json')
        self.state = (
            json.load(open(self.state_path))
            if os.path.exists(self.state_path)
            else {'batches': 0, 'tokens': {}, 'cursor': {}, 'seconds': 0.0}
        )

    def names(self):
        return sorted(n for n in os.listdir(self.path) if n.startswith('rows_') and n.endswith('.npz'))

    def add(self, decoder, prompts, source, seconds):
        name = f'rows_{decoder.length}_{self.state["batches"]:04d}.npz'
        partial = os.path.join(self.path, 'partial.npz')
        with open(partial, 'wb') as f:
            np.savez(
                f,
                tokens=decoder.tokens.to(torch.int32).cpu().numpy(),
                written=np.packbits(decoder.written.cpu().numpy(), 1),
                heat=np.array([p[1] for p in prompts], np.float32),
                held=np.array([p[2] for p in prompts]),
            )
        os.replace(partial, os.path.join(self.path, name))
        counted = self.state['tokens']
        key = str(decoder.length)
        counted[key] = counted.get(key, 0) + decoder.tokens.numel()
        self.state.update(
            batches=self.state['batches'] + 1, cursor=source.cursor, seconds=self.state['seconds'] + seconds
        )
        with open(partial, 'w') as f:
            json.dump(self.state, f)
        os.replace(partial, self.state_path)


def generate(target, text, source, folder, options):
    """Batches until the minutes are over; short and long rows in the wanted share of tokens."""
    began, lengths = time.time(), (options.length, options.long_length)
    deadline = began + options.minutes * 60
    source.cursor = dict(folder.state['cursor'])
    source.random.seed(f'{options.seed} {folder.state["batches"]}')
    rows = [fitting_rows(target, options.rows, n) for n in lengths]
    tune_attention(target, rows[0], lengths[0])
    c = target.config
    size = max(c.layers * 2 * r * c.kv_heads * n * c.head_dim for r, n in zip(rows, lengths))
    memory = torch.zeros(size, dtype=target.dtype, device=target.device)
    decoders, taken = {}, {0: 5.0, 1: 12.0}
    while True:
        done = folder.state['tokens']
        counts = [done.get(str(n), 0) for n in lengths]
        long = int(
            counts[1] < options.long_share * max(1, sum(counts)) and options.long_share > 0 and counts[0] > 0
        )
        left = deadline - time.time()
        if left < taken[long] * 1.1 and folder.state['batches'] and options.minutes < 1e6:
            if not long or left < taken[0] * 1.1:
                break
            long = 0
        if long not in decoders:
            decoders[long] = Decoder(
                target,
                text.scripts,
                text.control,
                rows[long],
                lengths[long],
                memory,
                not options.no_graph,
                options.seed * 7919 + folder.state['batches'],
            )
        started = time.time()
        one_batch(decoders[long], source, folder, long)
        taken[long] = time.time() - started
        if options.batches and folder.state['batches'] >= options.batches:
            break
    print(
        f'{folder.state["batches"]} batches, '
        f'{sum(folder.state["tokens"].values()) / 1e6:.1f}M tokens in {folder.path}',
        flush=True,
    )


def one_batch(decoder, source, folder, long):
    began = time.time()
    prompts = source.batch(long, decoder.rows)
    longest = decoder.length - 16
    prompts = [(p[0][:longest], *p[1:]) for p in prompts]
    decoder.load(prompts, [source.random.randint(*ANSWER_LIMITS) for _ in prompts])
    shared = max(0, min(len(p[0]) for p in prompts) - 1)
    prepared = time.time()
    decoder.prefill(shared)
    decoder.run()
    elapsed = time.time() - began
    folder.add(decoder, prompts, source, elapsed)
    print(
        f'{decoder.rows} rows of {decoder.length}: {elapsed:.1f} s ({prepared - began:.1f} to prepare), '
        f'{decoder.tokens.numel() / elapsed / 1e3:.0f}k tokens/s, '
        f'{decoder.written.float().mean():.0%} written by the model, '
        f'graph {"yes" if decoder.graph else "no"}',
        flush=True,
    )
