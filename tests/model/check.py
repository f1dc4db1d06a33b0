#!/usr/bin/python3
"""Explores the models of the protocol with Spin: nothing may be found while all rules hold, and something has
to be found without any one of them.

check.py [--large] [MODEL...]

Without options: the small instances of each model, and each of its rules removed in turn. --large: the large
instances alone, which take many minutes and gigabytes. A model says what its rules are, each in a line with
RULE(number) and a comment. One whose comment begins with "second" is a second line of defence: without it
alone nothing breaks. A fault that no rule bears has to be found as well. A model with an LTL formula is about
liveness: without a rule of it, a cycle has to be found, and no assertion may fail.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
RULE = re.compile(r'^#define (\w+) RULE\((\d+)\) /\* (.*?) \*/$', re.M)
DEPTH = 2_000_000  # the longest way that is followed; a search that needs more fails
MEMORY = 9_000  # MB

# How a search is made: how pan.c is compiled and run. `compact` remembers 64 bits of a hash for each state.
WAYS = {
    'safety': (['-O1', '-DSAFETY', '-DNOCLAIM'], [f'-m{DEPTH}']),
    'liveness': (['-O1'], ['-a', f'-m{DEPTH}']),
    'compact': (['-O3', '-DSAFETY', '-DHC4'], ['-m100000', '-w27']),
}
# Spin's own choice is a hash of 32 bits (for tables of up to 2^32): it overlooks 1 % of 10^8 states.
HASH_32, HASH_64 = 'if (ssize <= 32)\t/* 6.2.0 */', 'if (0)'

NOTHING, BROKEN, STUCK = '', 'assertion violated', 'acceptance cycle'  # what is to be found

# Of each model: how it is searched, the sizes of its instances (`also`: more small ones), and what the search
# without a rule needs besides those of the small one.
MODELS = {
    'ledger': {
        'way': 'safety',
        'small': {'EPOCHS': 3, 'RESTARTS': 0, 'ALTERATIONS': 0},
        'also': [
            {'TOKENS': 1, 'PARTS': 1},
            {'TOKENS': 1, 'REOPENS': 1},
            {'TOKENS': 1, 'RELEASES': 1},
            {'TOKENS': 1, 'CREDIT': 2, 'POWER_CUTS': 1},
            {'SYNC_ALL': 1, 'POWER_CUTS': 1},
        ],
        'large': ('compact', {'EPOCHS': 3, 'RESTARTS': 0, 'ALTERATIONS': 1, 'PARTS': 1, 'RELEASES': 1}),
        'needs': {
            'CLAIM_WHOLE': {'RUNS': 3},
            'RECEIVER': {'RESTARTS': 1},
            'STREAM_HASH': {'ALTERATIONS': 1},
            'OPEN_HASH': {'ALTERATIONS': 1},
            'ACCEPTANCE': {'ALTERATIONS': 1},
            'OWNER_CHECK': {'RELEASES': 1},
            'PART_WAITS': {'PARTS': 1},
            'PART_AGAIN': {'PARTS': 1},
            'EPOCHS_SYNCED': {'POWER_CUTS': 1, 'CREDIT': 2},
        },
        'faults': ['POWER_CUTS'],
    },
    'progress': {
        'way': 'liveness',
        'small': {'FAULTS': 2},
        'also': [{'FAULTS': 3}],
        'large': ('liveness', {'FAULTS': 4}),
        'needs': {'SILENT_EXCUSED': {'FAULTS': 4}},
        'faults': [],
    },
}


class Search:
    """One instance of a model, perhaps without a rule, and what is to be found in it."""

    def __init__(self, model, way, sizes, what='all rules hold', missing='0', expected=NOTHING):
        self.model, self.way, self.sizes, self.what = model, way, sizes, what
        self.missing, self.expected = missing, expected

    def run(self, pan):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as work:
            words = [pan, *WAYS[self.way][1]]
            environment = {**os.environ, 'MISSING': self.missing}
            done = subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True)
        self.text = done.stdout
        self.seconds = time.monotonic() - began
        self.errors = re.findall(r'^pan:\d+: (.*?)(?: \(at depth \d+\))?$', self.text, re.M)
        states = re.search(r'^\s*([\d.e+]+) states, stored', self.text, re.M)
        self.states = int(float(states.group(1))) if states else 0
        # A search that was cut short has shown nothing.
        short = r'max search depth too small|out of memory|Search not completed'
        self.whole = bool(states) and not re.search(short, self.text)
        return self

    def good(self):
        if self.expected == NOTHING:
            return self.whole and not self.errors
        return bool(self.errors) and self.errors[0].startswith(self.expected)


def command(work, *words):
    done = subprocess.run(words, cwd=work, capture_output=True, text=True)
    if done.returncode != 0 or 'Error' in done.stdout:
        raise SystemExit(f'{" ".join(words)}: {done.stdout}{done.stderr}')


class Builder:
    """Builds one program for all searches of the same kind and sizes."""

    def __init__(self, folder):
        self.folder, self.built = pathlib.Path(folder), {}

    def build(self, search):
        defines = [f'-D{name}={value}' for name, value in search.sizes.items()]
        key = (search.model, search.way, *defines)
        if key not in self.built:
            work = self.folder / str(len(self.built))
            work.mkdir()
            flags = ['-w', '-DNOREDUCE', '-DNOBOUNDCHECK', f'-DMEMLIM={MEMORY}', *WAYS[search.way][0]]
            command(work, 'spin', *defines, '-a', str(HERE / f'{search.model}.pml'))
            text = (work / 'pan.c').read_text()
            if HASH_32 not in text:
                raise SystemExit('pan.c of this Spin chooses its hash elsewhere: look for d_hash there')
            (work / 'pan.c').write_text(text.replace(HASH_32, HASH_64))
            command(work, 'gcc', *flags, '-o', 'pan', 'pan.c')
            self.built[key] = str(work / 'pan')
        return self.built[key]


def searches_of(model):
    m = MODELS[model]
    way, small = m['way'], m['small']
    yield Search(model, way, small)
    for sizes in m['also']:
        what = 'all rules hold, ' + ', '.join(f'{name} {value}' for name, value in sizes.items())
        yield Search(model, way, {**small, **sizes}, what)
    for name, number, comment in RULE.findall((HERE / f'{model}.pml').read_text()):
        sizes, what = {**small, **m['needs'].get(name, {})}, f'without {name}'
        found = NOTHING if comment.startswith('second') else STUCK if way == 'liveness' else BROKEN
        yield Search(model, way, sizes, what, number, found)
        if way == 'liveness':
            yield Search(model, 'safety', small, f'{what}, assertions alone', number)
    for name in m['faults']:
        yield Search(model, way, {**small, name: 1}, f'with {name}', expected=BROKEN)


def report(search):
    found = search.errors[0] if search.errors else 'nothing found'
    verdict = '' if search.good() else 'WRONG: '
    size = f'{search.states:,} states, {search.seconds:.1f} s'
    print(f'{verdict}{search.model}, {search.what}: {size}: {found}', flush=True)
    if not search.good() and not search.errors:
        print(search.text)
    return search.good()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--large', action='store_true', help='the large instances alone')
    parser.add_argument('models', nargs='*', metavar='MODEL', help=f'{", ".join(MODELS)}; none: all of them')
    arguments = parser.parse_args()
    models = arguments.models or list(MODELS)
    for model in models:
        if model not in MODELS:
            parser.error(f'there is no model {model}')
    if arguments.large:
        searches = [Search(m, *MODELS[m]['large']) for m in models]
    else:
        searches = [search for m in models for search in searches_of(m)]
    threads = concurrent.futures.ThreadPoolExecutor(1 if arguments.large else len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder, threads as pool:
        builder = Builder(folder)
        runs = [pool.submit(search.run, builder.build(search)) for search in searches]
        good = [report(run.result()) for run in runs]
    if not all(good):
        sys.exit(f'{good.count(False)} of {len(good)} searches did not end as expected')
    print(f'all {len(good)} searches ended as expected')


if __name__ == '__main__':
    main()
