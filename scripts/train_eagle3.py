#!/usr/bin/env python3
"""Trains an EAGLE-3 draft head for a Llama-family model (a GGUF) from text that the model writes itself.

  train_eagle3.py prompts  --out prompts.jsonl.xz SOURCE...  makes a file of prompts (optional; no PyTorch)
  train_eagle3.py generate --model M.gguf --data DIR          the model writes rows into DIR, for --minutes
  train_eagle3.py train    --model M.gguf --data DIR --out HEAD [--from HEAD]
  train_eagle3.py evaluate --model M.gguf --data DIR --from HEAD
  train_eagle3.py smoke    --model M.gguf --data DIR          a minute that shows whether all of it works here

docs/TRAINING.md says what each step needs and gives. `generate` and `train` go on where they stopped.
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def quantisation(text):
    kinds = text.split(':')
    if len(kinds) != 2 or any(k not in ('q8_0', 'q4_1', 'none') for k in kinds):
        raise argparse.ArgumentTypeError('give LAYER:OUTPUT, each q8_0, q4_1 or none, such as q8_0:q4_1')
    return tuple(None if k == 'none' else k for k in kinds)


def common_flags(p, *names):
    flags = {
        'model': dict(required=True, help='GGUF of the target model'),
        'data': dict(required=True, help='folder of rows and checkpoints'),
        'prompts': dict(
            help='JSONL (also .xz) of prompts to begin rows with; without it all text is the model\'s'
        ),
        'eval-prompts': dict(help='JSONL of prompts on whose answers the head is measured'),
        'from': dict(dest='start', help='folder of a head to start from'),
        'minutes': dict(type=float, default=10.0, help='wall clock of the whole step'),
        'seed': dict(type=int, default=1),
        'rows': dict(type=int, default=4096, help='rows a batch of generation'),
        'length': dict(type=int, default=512, help='tokens of a short row'),
        'long-length': dict(type=int, default=1024, help='tokens of a long row'),
        'long-share': dict(type=float, default=0.4, help='share of all tokens that is in long rows'),
        'batches': dict(type=int, default=0, help='stop after so many batches of rows in all'),
        'device': dict(default='auto', help='cuda, cpu or auto'),
        'no-compile': dict(action='store_true', help='no torch.compile'),
        'no-graph': dict(action='store_true', help='no CUDA graph'),
        'no-triton': dict(action='store_true', help='no hand-written kernels'),
    }
    for n in names:
        p.add_argument('--' + n, **flags[n])


def training_flags(p):
    p.add_argument('--out', help='folder that the head is written to')
    p.add_argument(
        '--stop-after', type=float, help='minutes after which this call saves and ends; call again to go on'
    )
    p.add_argument(
        '--iterations', type=int, default=0, help='end after so many batches instead of by the clock'
    )
    p.add_argument('--batch-tokens', type=int, default=32768)
    p.add_argument('--steps', type=int, default=7, help='steps of training-time test')
    p.add_argument('--lr', type=float, help='highest learning rate (0.001; 0.0007 with --from)')
    p.add_argument('--draft-vocab', type=int, default=16384, help='rows of lm_head')
    p.add_argument(
        '--new-vocab', action='store_true', help='with --from: count the vocabulary again on these rows'
    )
    p.add_argument('--taps', help='layers whose inputs are the features (default 2, half, last three)')
    p.add_argument(
        '--quantise',
        type=quantisation,
        default=(None, None),
        help='LAYER:OUTPUT, types of weights that the last part of training calculates with',
    )
    p.add_argument('--quantise-share', type=float, default=0.25, help='how much of the time that part is')


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest='command', required=True)
    from eagle3_training import prompts

    prompts.flags(commands.add_parser('prompts'))
    machine = ('model', 'data', 'seed', 'device', 'no-compile', 'no-triton')
    writing = ('prompts', 'rows', 'length', 'long-length', 'long-share', 'batches', 'minutes', 'no-graph')
    common_flags(commands.add_parser('generate'), *machine, *writing)
    for name in ('train', 'evaluate'):
        p = commands.add_parser(name)
        common_flags(p, *machine, 'from', 'minutes', 'eval-prompts', 'no-graph')
        training_flags(p)
    p = commands.add_parser('smoke')
    common_flags(p, *machine, *writing, 'from', 'eval-prompts')
    training_flags(p)
    return parser.parse_args()


def prepare(o):
    """The target and its text on the device."""
    import torch
    from eagle3_training import kernels
    from eagle3_training.target import Target
    from eagle3_training.text import Text

    wanted = o.device if o.device != 'auto' else ('cuda' if torch.cuda.is_available() else 'cpu')
    device = torch.device(wanted)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.manual_seed(o.seed)
    kernels.SETTINGS['triton'] &= not o.no_triton
    began = time.time()
    target = Target(o.model, device, torch.bfloat16 if wanted == 'cuda' else torch.float32, not o.no_compile)
    text = Text(target.meta)
    print(
        f'{os.path.basename(o.model)}: {target.config.layers} layers of {target.config.embed} on {device}, '
        f'{time.time() - began:.1f} s',
        flush=True,
    )
    return target, text


def run_generate(o, target, text):
    from eagle3_training import generate
    from eagle3_training.text import Prompts

    folder = generate.Folder(o.data)
    began = time.time()
    source = Prompts(text, o.prompts, o.seed, o.rows)
    print(
        f'{len(source.short)} short and {len(source.long)} long prompts, {time.time() - began:.1f} s',
        flush=True,
    )
    generate.generate(target, text, source, folder, o)


def choose_head(o, target, rows):
    from eagle3_training import files
    from eagle3_training.head import Head, load_head, with_new_order
    from eagle3_training.target import Refused

    answers, everything = rows.counts(target.config.vocab)
    if not sum(answers):
        raise Refused(f'no row in {o.data} has an answer: write longer rows, or give `generate` --prompts')
    order = files.draft_order(answers, everything, min(o.draft_vocab, target.config.vocab))
    say = lambda name, ids: print(
        f'{name}: {files.coverage(ids, answers):.4f} of the answers\' tokens, '
        f'{files.coverage(ids[:len(ids) // 4], answers):.4f} in its first quarter',
        flush=True,
    )
    say(f'vocabulary of {len(order)}, counted here', order)
    if not o.start:
        c = target.config
        taps = [int(t) for t in o.taps.split(',')] if o.taps else [2, c.layers // 2, c.layers - 3]
        return Head(target, order, taps, seed=o.seed)
    head = load_head(o.start, target)
    say('vocabulary of the head it starts from', head.order)
    return with_new_order(head, order) if o.new_vocab else head


def eval_answers(o, target, text):
    """Greedy answers of the target to the prompts to measure on; kept in the folder."""
    import numpy as np
    import torch
    from eagle3_training import generate
    from eagle3_training.text import messages_of, read_lines

    if not o.eval_prompts:
        return None
    path, put = os.path.join(o.data, 'eval.npz'), lambda f: {
        'tokens': torch.from_numpy(f['tokens']).to(target.device),
        'first': f['first'].tolist(),
        'ends': f['ends'].tolist(),
    }
    if os.path.exists(path):
        return put(np.load(path))
    ids = [text.chat(messages_of(item)) for item in read_lines(o.eval_prompts)]
    ids = sorted((i for i in ids if len(i) <= 1408), key=len)
    tokens, first, ends = [], [], []
    for i in range(0, len(ids), 32):
        group = [(g, 0.0, False, generate.ASSISTANT) for g in ids[i : i + 32]]
        length = max(len(g[0]) for g in group) + 130
        decoder = generate.Decoder(
            target, text.scripts, text.control, len(group), length, graph=not o.no_graph
        )
        decoder.pieces = (target.before, target.after)
        decoder.load(group, [1 << 30] * len(group))
        decoder.prefill(min(len(g[0]) for g in group) - 1)
        decoder.run()
        tokens.append(torch.nn.functional.pad(decoder.tokens, (0, 1540 - length)).cpu())
        for row, g in zip(decoder.tokens.tolist(), group):
            first.append(len(g[0]))
            answer = row[len(g[0]) : len(g[0]) + 128]
            stop = answer.index(text.scripts[0][0]) + 1 if text.scripts[0][0] in answer else len(answer)
            ends.append(len(g[0]) + stop)
    found = {
        'tokens': torch.cat(tokens)[: len(ids)].int().numpy(),
        'first': np.array(first[: len(ids)]),
        'ends': np.array(ends[: len(ids)]),
    }
    np.savez(path, **found)
    return put(found)


def run_train(o, target, text, only_measure=False):
    from eagle3_training import generate, train
    from eagle3_training.target import Refused

    began = time.time()
    if only_measure and not o.start:
        raise Refused('say which head to measure: --from HEAD')
    folder = generate.Folder(o.data)
    rows = train.Rows(folder, target.device)
    head = choose_head(o, target, rows)
    o.lr = o.lr or (7e-4 if o.start else 1e-3)
    trainer = train.Trainer(target, head, o)
    answers = eval_answers(o, target, text)
    run = train.Run(trainer, rows, o.data, o)
    print(f'prepared in {time.time() - began:.1f} s', flush=True)
    resumed = not only_measure and run.resume()
    if not resumed:
        train.show(train.evaluate(trainer, rows, answers), 'before:')
    if only_measure:
        return
    run.go()
    head.save(o.out, o.steps)
    print(f'{run.iteration} iterations, {run.spent / 60:.1f} minutes; {o.out} is written', flush=True)
    train.show(train.evaluate(trainer, rows, answers), 'after:')
    if any(o.quantise):
        train.show(train.evaluate(trainer, rows, answers, o.quantise), 'after, quantised:')


def run_smoke(o, target, text):
    from eagle3_training import check

    check.kernels_agree(target.device)
    o.minutes, o.batches, o.out = (
        o.minutes if o.minutes < 10 else 1e6,
        o.batches or 2,
        o.out or o.data + '/head',
    )
    run_generate(o, target, text)
    o.minutes, o.iterations, o.eval_prompts = 10, o.iterations or 60, None
    run_train(o, target, text)


def main():
    o = arguments()
    if o.command == 'prompts':
        from eagle3_training import prompts

        return prompts.make(o)
    for package in ('torch', 'numpy', 'tokenizers', 'jinja2'):
        try:
            __import__(package)
        except ImportError:
            return f'{package} is missing: pip install torch numpy tokenizers jinja2'
    from eagle3_training.target import Refused

    try:
        target, text = prepare(o)
        if o.command == 'generate':
            run_generate(o, target, text)
        elif o.command == 'smoke':
            run_smoke(o, target, text)
        else:
            if o.command == 'train' and not o.out:
                raise Refused('say where the head goes: --out FOLDER')
            run_train(o, target, text, o.command == 'evaluate')
    except Refused as e:
        return f'train_eagle3: {e}'
    return 0


if __name__ == '__main__':
    sys.exit(main())
