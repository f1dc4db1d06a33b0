"""Training of a head on rows that the model wrote: batches, optimisers, the loop by wall clock,
evaluation."""

import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

from . import kernels
from .head import MATRICES, NORMS, OUTPUT
from .target import Refused, rms_norm

DECAY = 0.85


class Rows:
    """All rows of a folder in device memory, those held out apart."""

    def __init__(self, folder, device):
        self.train, self.held, parts = {}, {}, {}
        for name in folder.names():
            with np.load(os.path.join(folder.path, name)) as f:
                length = f['tokens'].shape[1]
                written = np.unpackbits(f['written'], axis=1)[:, :length].astype(bool)
                parts.setdefault(length, []).append((f['tokens'], written, f['held'], f['heat']))
        if not parts:
            raise Refused(f'{folder.path} has no rows: run `generate` first')
        for length, chunks in sorted(parts.items()):
            tokens, written, held, heat = (np.concatenate(x) for x in zip(*chunks))
            put = lambda x: torch.from_numpy(x).to(device)
            if held.all() or not held.any():
                held = np.arange(len(held)) % 64 == 0
            self.train[length] = (put(tokens[~held]), put(written[~held]))
            self.held[length] = (put(tokens[held]), put(written[held]), put(heat[held]))

    def counts(self, vocab):
        answers, everything = torch.zeros(vocab), torch.zeros(vocab)
        for tokens, written in self.train.values():
            answers += torch.bincount(tokens[written], minlength=vocab).cpu()
            everything += torch.bincount(tokens.flatten(), minlength=vocab).cpu()
        return answers.tolist(), everything.tolist()

    def batches(self, tokens_a_batch, seed):
        """Endless (tokens, written); each length in its share of all tokens, each row once before any row
        twice."""
        make, random = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
        sizes = {n: t.numel() for n, (t, _) in self.train.items()}
        share = np.array(list(sizes.values())) / sum(sizes.values())
        waiting = {n: [] for n in sizes}
        while True:
            length = int(random.choice(list(sizes), p=share))
            tokens, written = self.train[length]
            rows = max(1, min(tokens_a_batch // length, len(tokens)))
            if len(waiting[length]) < rows:
                waiting[length] = torch.randperm(len(tokens), generator=make).tolist()
            chosen = torch.tensor([waiting[length].pop() for _ in range(rows)], device=tokens.device)
            yield tokens[chosen].long(), written[chosen]


class Muon:
    """Momentum whose step has all singular values near one (five Newton-Schulz steps), scaled to Adam's usual
    size."""

    def __init__(self, matrices, momentum=0.95):
        self.matrices, self.momentum = matrices, momentum
        self.buffers = [torch.zeros_like(m) for m in matrices]

    @staticmethod
    def orthogonal(g):
        a, b, c = 3.4445, -4.7750, 2.0315
        x = g.to(torch.bfloat16 if g.is_cuda else torch.float32)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            s = x @ x.T
            x = a * x + (b * s + c * s @ s) @ x
        return (x.T if tall else x).float()

    @torch.no_grad()
    def step(self, lr):
        for m, buffer in zip(self.matrices, self.buffers):
            buffer.mul_(self.momentum).add_(m.grad)
            step = self.orthogonal(m.grad + self.momentum * buffer)
            m.add_(step, alpha=-lr * 0.2 * math.sqrt(max(m.shape)))


class Optimiser:
    def __init__(self, head):
        self.head, w = head, head.master
        self.muon = Muon([w[n] for n in MATRICES])
        fused = head.device.type == 'cuda'
        self.adam = torch.optim.AdamW(
            [{'params': [w[OUTPUT]], 'share': 1 / 3}, {'params': [w[n] for n in NORMS], 'share': 1}],
            lr=1e-3,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=fused,
        )

    def step(self, lr):
        self.muon.step(lr)
        for group in self.adam.param_groups:
            group['lr'] = lr * group['share']
        self.adam.step()
        for w in self.head.master.values():
            w.grad.zero_()

    def state(self):
        return {'muon': self.muon.buffers, 'adam': self.adam.state_dict()}

    def load(self, state):
        for mine, saved in zip(self.muon.buffers, state['muon']):
            mine.copy_(saved)
        self.adam.load_state_dict(state['adam'])


class Trainer:
    def __init__(self, target, head, options):
        self.target, self.head, self.options = target, head, options
        self.target_pieces = target.compiled_pieces() if not options.no_compile else None
        self.head_pieces = head.compile_pieces(not options.no_compile)
        self.plain = head.compile_pieces(False)
        self.draft_rows = target.output[head.ids].contiguous()
        self.steps = options.steps

    def labels(self, tokens, written):
        """Flat positions whose next token the model wrote, and for each step whether every token that a draft
        would have had to guess before it was written by the model too."""
        rows, length = tokens.shape
        following = F.pad(written[:, 1:], (0, 1))
        following[:, : self.steps + 1] = False
        at = following.flatten().nonzero().squeeze(1)
        flat, weights = written.flatten(), []
        ok = torch.ones(len(at), dtype=torch.bool, device=at.device)
        for j in range(self.steps):
            weights.append(ok.clone())
            ok &= flat[at - j]
        return at, weights

    @torch.no_grad()
    def teach(self, tokens, at, pieces):
        """The target's features of all positions, and its distribution over the draft vocabulary at the
        labels."""
        taps = self.head.taps
        x, tapped = self.target.forward(tokens, set(taps), pieces=pieces)
        features = torch.cat([tapped[i] for i in taps], -1)
        y = rms_norm(x[at], self.target.norm, self.target.config.eps)
        p = torch.empty(len(at), len(self.head.order), dtype=self.target.dtype, device=x.device)
        for i in range(0, len(at), 8192):
            p[i : i + 8192] = F.linear(y[i : i + 8192], self.draft_rows).float().softmax(1).to(p.dtype)
        return features, p

    def iterate(self, tokens, written, quantised):
        """Forward and backward of one batch; returns the weighted loss as a tensor."""
        at, weights = self.labels(tokens, written)
        if not len(at):
            return None
        features, p = self.teach(tokens, at, self.target_pieces)
        w = self.head.weights(*quantised)
        outputs, gradients, total = [], [], 0.0
        scale = sum(DECAY**j for j in range(self.steps)) * len(at)
        for j, y in enumerate(self.head.unrolled(w, features, tokens, self.steps, self.head_pieces)):
            slots = at - 1 - j
            with torch.no_grad():
                chosen = y[slots]
                weight = weights[j].float() * (DECAY**j / scale)
                logits = F.linear(chosen, w['output'])
                loss, _ = kernels.soft_loss(logits, p, weight)
                total = total + (loss * weight).sum()
                self.head.master[OUTPUT].grad.add_(logits.t() @ chosen)
                gradient = torch.zeros_like(y).index_copy_(0, slots, logits @ w['output'])
            outputs.append(y), gradients.append(gradient)
        torch.autograd.backward(outputs, gradients)
        return total

    @torch.no_grad()
    def measure(self, tokens, written, quantised=(None, None), rows_at_once=16):
        """Mean loss and agreement with the target's own first choice, by step."""
        sums = torch.zeros(3, self.steps, dtype=torch.float64)
        w = self.head.weights(*quantised)
        for i in range(0, len(tokens), rows_at_once):
            t, m = tokens[i : i + rows_at_once].long(), written[i : i + rows_at_once]
            at, weights = self.labels(t, m)
            if not len(at):
                continue
            features, p = self.teach(t, at, None)
            best = p.argmax(1)
            for j, y in enumerate(self.head.unrolled(w, features, t, self.steps, self.plain)):
                loss, drafted = kernels.soft_loss(
                    F.linear(y[at - 1 - j], w['output']), p, torch.zeros(len(at), device=at.device)
                )
                live = weights[j]
                sums[:, j] += (
                    torch.stack([loss[live].sum(), (drafted == best)[live].sum(), live.sum()]).double().cpu()
                )
        mean = sums[:2] / sums[2].clamp(min=1)
        return {'loss': mean[0].tolist(), 'top1': mean[1].tolist(), 'labels': int(sums[2, 0])}

    @torch.no_grad()
    def hits(self, tokens, rows_at_once=8, quantised=(None, None)):
        """[row, root, step]: does the head's first choice at this root and depth equal the text?"""
        w, every = self.head.weights(*quantised), []
        for i in range(0, len(tokens), rows_at_once):
            t = tokens[i : i + rows_at_once].long()
            rows, length = t.shape
            _, tapped = self.target.forward(t, set(self.head.taps))
            features = torch.cat([tapped[k] for k in self.head.taps], -1)
            padded, found = F.pad(t, (0, self.steps + 2), value=-1), []
            for j, y in enumerate(self.head.unrolled(w, features, t, self.steps, self.plain)):
                drafted = torch.cat(
                    [self.head.ids[F.linear(part, w['output']).argmax(1)] for part in y.split(4096)]
                )
                found.append(drafted.view(rows, length) == padded[:, j + 2 : j + 2 + length])
            every.append(torch.stack(found, -1).cpu())
        return torch.cat(every)


def walk(hits, first, ends, chain):
    """Tokens a verify of a chain, and acceptance at each depth, over every row's text."""
    emitted = rounds = 0
    tried, accepted = [0] * chain, [0] * chain
    for row, start, end in zip(hits.tolist(), first, ends):
        root = start - 1
        while root + 2 < end:
            depth = 0
            while depth < chain and root + 2 + depth < end:
                tried[depth] += 1
                if not row[root][depth]:
                    break
                accepted[depth] += 1
                depth += 1
            got = min(depth + 1, end - root - 2)
            emitted, rounds, root = emitted + got, rounds + 1, root + depth + 1
    return {
        'tokens a verify': emitted / max(1, rounds),
        'acceptance': [a / max(1, t) for a, t in zip(accepted, tried)],
        'tokens': emitted,
    }


def schedule(iteration, progress, lr, warm=60, floor=0.03):
    return (
        lr
        * min(1.0, (iteration + 1) / warm)
        * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
    )


class Run:
    """The loop: by wall clock, with checkpoints, so that it can be stopped and taken up again."""

    def __init__(self, trainer, rows, path, options):
        self.trainer, self.rows, self.path, self.options = trainer, rows, path, options
        self.optimiser, self.iteration, self.spent = Optimiser(trainer.head), 0, 0.0
        self.checkpoint = os.path.join(path, 'checkpoint.pt')

    def resume(self):
        if not os.path.exists(self.checkpoint):
            return False
        saved = torch.load(self.checkpoint, map_location=self.trainer.head.device, weights_only=True)
        for n, w in self.trainer.head.master.items():
            w.data.copy_(saved['master'][n])
        self.optimiser.load(saved['optimiser'])
        self.iteration, self.spent = saved['iteration'], saved['spent']
        print(f'resumed at iteration {self.iteration}, {self.spent / 60:.1f} minutes in', flush=True)
        return True

    def save(self):
        state = {
            'master': {n: w.detach() for n, w in self.trainer.head.master.items()},
            'order': self.trainer.head.order,
            'optimiser': self.optimiser.state(),
            'iteration': self.iteration,
            'spent': self.spent,
        }
        torch.save(state, self.checkpoint + '.partial')
        os.replace(self.checkpoint + '.partial', self.checkpoint)

    def quantised(self, progress):
        layer, output = self.options.quantise
        return (layer, output) if progress >= 1 - self.options.quantise_share else (None, None)

    def go(self):
        o, total = self.options, self.options.minutes * 60
        began, before = time.time(), self.spent
        shown, tokens_since, saved, losses = began, 0, began, []
        for tokens, written in self.rows.batches(o.batch_tokens, o.seed + self.iteration):
            now = time.time()
            self.spent = before + now - began
            stop = self.spent >= total or (o.stop_after and now - began >= o.stop_after * 60)
            if stop or (o.iterations and self.iteration >= o.iterations):
                break
            progress = self.iteration / o.iterations if o.iterations else self.spent / total
            loss = self.trainer.iterate(tokens, written, self.quantised(progress))
            if loss is None:
                continue
            self.optimiser.step(schedule(self.iteration, progress, o.lr))
            self.iteration += 1
            tokens_since += tokens.numel()
            losses.append(loss.detach())
            if self.iteration <= 3 or self.iteration % 50 == 0:
                self.report(losses, tokens_since, time.time() - shown, progress)
                shown, tokens_since, losses = time.time(), 0, []
            if now - saved > 120:
                self.save()
                saved = time.time()
        self.save()

    def report(self, losses, tokens, seconds, progress):
        loss = torch.stack(losses).mean().item()
        if not math.isfinite(loss):
            raise Refused(f'the loss is {loss} at iteration {self.iteration}: start again with a lower --lr')
        memory = torch.cuda.max_memory_allocated() / 2**30 if self.trainer.head.device.type == 'cuda' else 0
        print(
            f'{self.iteration:6d} {progress:4.0%} loss {loss:.4f} '
            f'{tokens / max(seconds, 1e-9) / 1e3:.0f}k tokens/s '
            f'{memory:.1f} GiB',
            flush=True,
        )


def evaluate(trainer, rows, prompts, quantised=(None, None), limit=256):
    """Figures on rows held out, and on the answers to the given prompts (from `write_answers`)."""
    result = {}
    for length, (tokens, written, heat) in rows.held.items():
        result[f'held out, {length}'] = trainer.measure(tokens[:limit], written[:limit], quantised)
    if prompts is not None:
        hits = trainer.hits(prompts['tokens'], quantised=quantised)
        for chain in (3, 5, trainer.steps):
            result[f'prompts, chain {chain}'] = walk(hits, prompts['first'], prompts['ends'], chain)
    return result


def show(result, title):
    print(title)
    for name, figures in result.items():
        text = {
            k: (
                ' '.join(f'{x:.3f}' for x in v)
                if isinstance(v, list)
                else (f'{v:.3f}' if isinstance(v, float) else v)
            )
            for k, v in figures.items()
        }
        print(f'  {name}: ' + ', '.join(f'{k} {v}' for k, v in text.items()), flush=True)
    print(json.dumps(result), flush=True)
