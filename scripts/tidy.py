#!/usr/bin/env python3
"""Holds the repository to its own rules of style, in seconds and without a build.

  scripts/tidy.py               checks every tracked file
  scripts/tidy.py --prune       removes exceptions that nothing needs any more
  scripts/tidy.py --self-test   shows that each rule refuses what it should, and accepts the rest

The rules: clang-format 14; at most 110 columns; no function over 45 lines; no circle of files that include
each other; what a header declares begins with its file's noun; no word that docs/GLOSSARY.md replaces; nothing
about the places where people work on it; every path that a document names exists; no verdict of a test that
depends on the machine's speed or on what else is there (docs/CHANGING.md). scripts/check_includes.sh holds the
rooms apart. What still breaks a rule stands in scripts/tidy_exceptions.txt, which may only shrink.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from concurrent.futures import ThreadPoolExecutor

SOURCES = ('.c', '.h', '.cu', '.cuh')
COLUMNS = 110
FUNCTION_LINES = 45
GLOSSARY = 'docs/GLOSSARY.md'
EXCEPTIONS = 'scripts/tidy_exceptions.txt'

# A header's noun is its name, or its leading words. These headers have others, by agreement.
NOUNS = {
    'common/base/hash.h': ['hash', 'hash16'],
    'common/base/log.h': ['log', 'logger'],
    'common/base/rng.h': ['rng', 'philox', 'philox4x32'],
    'draft_worker/drafters/drafter.h': ['draft', 'drafter'],
    'draft_worker/worker.h': ['draft'],
    'target_worker/scheduler.h': ['schedule'],
    'target_worker/worker.h': ['target'],
    'wire/message.h': ['msg', 'wire'],
}
ROOM_NOUNS = {'kernels/cpu': 'cpu', 'kernels/cuda': 'cuda', 'kernels/far': 'far'}  # whose headers are one library's inside

# Headers that are code to be included, like a source file's beginning: their names are nobody's interface.
TEMPLATES = {'kernels/cpu/linear_256.h'}

# Headers that give to the C++ compiler what nvcc has, by CUDA's own names.
STAND_INS = {'kernels/cuda/shim.h', 'kernels/cuda/shim_runtime.h'}

# A second header of one source file, for those who may know more of it.
FACES = {
    'common/model/kv_rows': 'common/model/kv_cache',
    'common/text/tokenizer_parts': 'common/text/tokenizer',
    'kernels/cuda/shim_runtime': 'kernels/cuda/shim',
}

# Files whose lines are not ours to break.
WIDE = re.compile(r'^(LICENSE|.*\.md|wire/vectors/(good|bad)/.*|tests/golden/.*\.(txt|json|jsonl))$')

# The documents speak to anybody who has a clone, so nothing in it may lean on what is outside.
OUTSIDE = re.compile(r'\bDESIGN\b|\bissue #?\d')


# --- C, as far as the rules need it ---

C_PIECE = re.compile(
    r'(?P<comment>/\*.*?\*/|//[^\n]*)'
    r'|(?P<string>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\')'
    r'|(?P<directive>^[ \t]*#(?:[^\n\\]|\\.|\\\n)*)',
    re.S | re.M,
)


def blank(text):
    return re.sub(r'[^\n]', ' ', text)


def c_code(text):
    """The text with comments, strings and directives blanked: every line keeps its number."""
    return C_PIECE.sub(lambda m: '""'.ljust(len(m.group())) if m.group('string') else blank(m.group()), text)


def c_comments(text):
    for m in C_PIECE.finditer(text):
        if m.group('comment'):
            yield text.count('\n', 0, m.start()) + 1, m.group()
        elif m.group('directive'):  # a comment may stand at its end
            for c in re.finditer(r'/\*.*?\*/', m.group(), re.S):
                yield text.count('\n', 0, m.start() + c.start()) + 1, c.group()


def c_names(text):
    """Identifiers, those of macros too."""
    plain = C_PIECE.sub(
        lambda m: m.group() if m.group('directive') and '#include' not in m.group() else blank(m.group()),
        text,
    )
    plain = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda m: blank(m.group()), plain, flags=re.S)
    for m in re.finditer(r'\b[A-Za-z_]\w*', plain):
        yield m.start(), m.group()


HEAD_OF_FUNCTION = re.compile(r'([A-Za-z_]\w*)\s*\((?:[^()]|\([^()]*\)|\((?:[^()]|\([^()]*\))*\))*\)\s*$')


ROOM_OF_CPP = re.compile(r'(?:\bnamespace(?:\s+\w+)?|\bextern\s+"")\s*$')


def c_functions(text):
    """Of each function defined here: its name, the line of its head and the line of its last brace."""
    code, depth, start = c_code(text), 0, 0
    current, rooms = None, 0  # rooms: namespaces, and extern "C", around what is defined
    for m in re.finditer(r'[{};]', code):
        c = m.group()
        if depth == 0 and c == '{':
            head = code[start : m.start()]
            if ROOM_OF_CPP.search(head):
                rooms, start = rooms + 1, m.end()
                continue
            name = HEAD_OF_FUNCTION.search(head)
            if name and name.group(1) not in ('__attribute__', '_Static_assert'):
                first = start + len(head) - len(head.lstrip())
                current = (name.group(1), code.count('\n', 0, first) + 1)
        if c == '{':
            depth += 1
        elif c == '}' and depth == 0 and rooms > 0:
            rooms -= 1
        elif c == '}':
            depth -= 1
            if depth < 0:
                raise ValueError('more braces are closed than opened')
            if depth == 0 and current:
                yield current + (code.count('\n', 0, m.start()) + 1,)
                current = None
        if depth == 0:
            start = m.end()
    if depth != 0 or rooms != 0:
        raise ValueError('the braces do not match: no function can be counted')


def c_declared(text):
    """What a header gives to those who include it: functions, objects and types, with their lines."""
    code = c_code(text)
    out, depth, begin = [], 0, 0
    for m in re.finditer(r'[{};]', code):
        c = m.group()
        if c == '{':
            depth += 1
            if depth == 1:
                opened = m.start()
        elif c == '}':
            depth -= 1
            if depth == 0 and re.search(r'\)\s*$', code[begin:opened]):  # a function's body
                out.append((code[begin:opened], begin))
                begin = m.end()
        elif depth == 0:
            out.append((re.sub(r'\{.*\}', '{}', code[begin : m.end() - 1], flags=re.S), begin))
            begin = m.end()
    for text_of, at in out:
        flat = ' '.join(text_of.split())
        name = declared_name(flat)
        if name:
            yield code.count('\n', 0, at + len(text_of) - len(text_of.lstrip())) + 1, name


def declared_name(flat):
    """The name that one declaration declares, or nothing."""
    if not flat or flat.startswith(('_Static_assert', 'extern "')):
        return None
    flat = re.sub(r'__attribute__ ?\(\(.*?\)\)', '', flat)
    if flat.startswith('typedef'):
        pointer = re.search(r'\(\s*\*\s*(\w+)\s*\)', flat)
        if pointer:
            return pointer.group(1)
        function = re.search(r'(\w+) ?\([^()]*(?:\([^()]*\)[^()]*)*\)$', flat)
        return function.group(1) if function else re.search(r'(\w+)(?:\[[^\]]*\])*$', flat).group(1)
    if re.match(r'(struct|union|enum)\b[^()=]*$', flat):
        tag = re.match(r'(?:struct|union|enum) (\w+) ?\{', flat)
        return tag.group(1) if tag else None  # a forward declaration is somebody else's name
    m = re.search(r'([A-Za-z_]\w*) ?\(', flat)
    if m:
        return m.group(1)
    m = re.search(r'([A-Za-z_]\w*)(?: ?\[[^\]]*\])*(?: ?=.*)?$', flat)
    return m.group(1) if m else None


# --- the rules: each yields (rule, file, subject, line, sentence) ---


class Repository:
    def __init__(self, root):
        self.root = root
        names = subprocess.check_output(['git', '-C', root, 'ls-files', '-z'], text=True)
        self.files = [f for f in names.split('\0') if f and os.path.isfile(os.path.join(root, f))]
        self.cache = {}

    def text(self, file):
        if file not in self.cache:
            with open(os.path.join(self.root, file), encoding='utf-8', errors='replace') as f:
                self.cache[file] = f.read()
        return self.cache[file]

    def ending(self, *endings):
        return [f for f in self.files if f.endswith(endings)]

    def code(self):
        scripts = [f for f in self.files if f == '.ci/run' or f.endswith('CMakeLists.txt')]
        return self.ending(*SOURCES, '.py', '.sh', '.cmake') + scripts


def check_format(repo):
    program = shutil.which('clang-format-14') or shutil.which('clang-format')
    version = subprocess.check_output([program, '--version'], text=True) if program else 'none'
    if not re.search(r'version 14\.', version):
        yield 'format', '.clang-format', '*', 1, 'needs clang-format 14 (scripts/deps.sh --test)'
        return

    def run(files):
        return subprocess.run(
            [program, '--dry-run', *files], cwd=repo.root, text=True, capture_output=True
        ).stderr

    files = repo.ending(*SOURCES)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = pool.map(run, [files[i : i + 30] for i in range(0, len(files), 30)])
    seen = set()
    for m in re.finditer(r'^(.+?):(\d+):\d+: (?:warning|error)', '\n'.join(reports), re.M):
        file = os.path.relpath(os.path.join(repo.root, m.group(1)), repo.root)
        if file not in seen:
            seen.add(file)
            yield 'format', file, '*', int(m.group(2)), 'clang-format -i would change it'


def check_columns(repo):
    for file in repo.code():
        if WIDE.match(file):
            continue
        wide = [n for n, line in enumerate(repo.text(file).split('\n'), 1) if len(line) > COLUMNS]
        if wide:
            yield 'columns', file, '*', wide[0], f'{len(wide)} lines have more than {COLUMNS} columns'


def check_functions(repo):
    for file in repo.ending(*SOURCES):
        try:
            for name, first, last in c_functions(repo.text(file)):
                if last - first + 1 > FUNCTION_LINES:
                    size = last - first + 1
                    yield 'function', file, name, first, f'{name} has {size} lines, {FUNCTION_LINES} at most'
        except ValueError as e:
            yield 'function', file, '*', 1, str(e)


def check_circles(repo):
    """A unit is a header with its source. Its includes must not lead back to it."""
    units = {}
    unit = lambda path: FACES.get(os.path.splitext(path)[0], os.path.splitext(path)[0])
    for file in repo.ending(*SOURCES):
        if file in TEMPLATES:
            continue
        of = unit(file)
        for path in re.findall(r'^\s*#\s*include\s*"([^"]+)"', repo.text(file), re.M):
            to = unit(path)
            if to != of and path not in TEMPLATES:
                units.setdefault(of, set()).add(to)
    for circle in strongly_connected(units):
        circle = sorted(circle)
        yield 'circle', circle[0], ','.join(circle[1:]), 1, 'these include each other: ' + ' '.join(circle)


def strongly_connected(graph):
    """Tarjan's components of more than one node."""
    index, low, stack, out = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in sorted(graph.get(node, ())):
            if to not in index:
                visit(to)
            if to in stack:
                low[node] = min(low[node], low[to])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                out.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return out


def nouns_of(file):
    """attached_drafts.h: attached_drafts_, attached_draft_, attached_."""
    if file in NOUNS:
        return NOUNS[file]
    words = os.path.splitext(os.path.basename(file))[0].split('_')
    room = [ROOM_NOUNS[d] for d in ROOM_NOUNS if file.startswith(d + '/')]
    leading = room + ['_'.join(words[:i]) for i in range(len(words), 0, -1)]
    return (
        leading
        + [w[:-1] for w in leading if w.endswith('s')]
        + [w[:-3] + 'y' for w in leading if w.endswith('ies')]
    )


def check_symbols(repo):
    for file in repo.ending('.h', '.cuh'):
        if file.startswith(('tests/', 'bench/')) or file in TEMPLATES | STAND_INS:
            continue
        nouns = nouns_of(file)
        for line, name in c_declared(repo.text(file)):
            if not any(name.lower() == n or name.lower().startswith(n + '_') for n in nouns):
                yield 'symbol', file, name, line, f'{name} does not begin with {" or ".join(nouns)}'


def banned_words(glossary):
    """Pairs of the last column's `word`, `word` (names), `word` (names: FOLDER): (word, names only, folder)."""
    out = []
    for row in glossary.split('\n'):
        cells = row.split('|')
        if not row.startswith('| ') or len(cells) < 6:
            continue
        for m in re.finditer(r'`([a-z]+)`( \(names(?:: ([\w/]+))?\))?', cells[4]):
            out.append((m.group(1), bool(m.group(2)), m.group(3)))
    return out


def split_name(name):
    return name.lower().split('_')


def names_and_comments(repo, file):
    """(offset, or minus the line; text; is it a name?) of everything in a file that the glossary binds."""
    text = repo.text(file)
    if file.endswith(SOURCES):
        for at, name in c_names(text):
            yield at, name, True
        for line, comment in c_comments(text):
            yield -line, comment, False
    elif file.endswith('.py'):
        for t in tokenize.generate_tokens(io.StringIO(text).readline):
            if t.type in (tokenize.NAME, tokenize.COMMENT):
                yield -t.start[0], t.string, t.type == tokenize.NAME
    else:
        for n, line in enumerate(text.split('\n'), 1):
            m = re.search(r'(?:^|\s)#\s(.*)', line)
            if m:
                yield -n, m.group(1), False


def check_words(repo):
    banned = {}
    for word, names_only, folder in banned_words(repo.text(GLOSSARY)):
        banned.setdefault(word, []).append((names_only, folder))
    for file in repo.code():
        seen, in_tests = set(), file.startswith('tests/')
        for at, text, is_name in names_and_comments(repo, file):
            words = split_name(text) if is_name else re.findall(r'[a-z]+', text.lower())
            for word in set(words) & banned.keys() - seen:
                for names_only, folder in banned[word]:
                    if (
                        names_only
                        and (not is_name or in_tests)
                        or folder
                        and not file.startswith(folder + '/')
                    ):
                        continue
                    line = -at if at < 0 else repo.text(file).count('\n', 0, at) + 1
                    seen.add(word)
                    yield 'word', file, word, line, f'"{word}": see {GLOSSARY} for the word to use'
                    break


def check_outside(repo):
    for file in repo.files:
        if file in ('scripts/tidy.py', 'scripts/tidy_test.py', 'LICENSE') or file.endswith('.bin'):
            continue
        for n, line in enumerate(repo.text(file).split('\n'), 1):
            m = OUTSIDE.search(line)
            if m:
                yield 'outside', file, '*', n, f'"{m.group()}" means nothing to a reader who has a clone'
                break


NAMED_PATH = re.compile(r'`([\w.\-]+(?:/[\w.\-*]+)*/?)`|\]\(([^)#:\s]+)(?:#[^)]*)?\)')


def check_paths(repo):
    folders = {os.path.dirname(f) for f in repo.files}
    folders |= {d[:i] for d in folders for i, c in enumerate(d) if c == '/'}
    bases = {os.path.basename(f) for f in repo.files}
    for file in repo.ending('.md'):
        here = os.path.dirname(file)
        for n, line in enumerate(repo.text(file).split('\n'), 1):
            for m in NAMED_PATH.finditer(line):
                path, link = m.group(1), m.group(2)
                if link:
                    full = os.path.normpath(os.path.join(here, link))
                    if full not in repo.files and full not in folders:
                        yield 'path', file, link, n, f'the link to {link} leads nowhere'
                elif not any(path_exists(repo, p, folders, bases) for p in (path, f'{here}/{path}')):
                    yield 'path', file, path, n, f'{path} does not exist'


def check_mentions(repo):
    """A header's first comment begins with its name, and the files that comments mention exist."""
    sources = repo.ending(*SOURCES)
    known = {os.path.basename(f) for f in repo.files}
    for file in sources:
        known.update(os.path.basename(h) for h in re.findall(r'#\s*include\s*<([^>]+)>', repo.text(file)))
    for file in sources:
        title = re.match(r'/\* (\S+\.(?:c|h|cu|cuh)) - ', repo.text(file))
        if title and title.group(1) != os.path.basename(file):
            yield 'mention', file, title.group(1), 1, f'its first comment is about {title.group(1)}'
        for line, comment in c_comments(repo.text(file)):
            for path in re.findall(r'(?<![\w/.*-])[\w/]+\.(?:c|h|cu|cuh)\b(?!\.)', comment):
                if os.path.basename(path) not in known and path != (title and title.group(1)):
                    yield 'mention', file, path, line, f'there is no {path}'


# What a test's verdict must not depend on: where (endings of files), the pattern, and what to do instead
# (docs/CHANGING.md). State machines get addresses that nobody opens, so ports are looked for in Python alone.
VERDICTS = [
    (
        (*SOURCES, '.py'),
        r'assert_?(?:Less|LessEqual|in_range|true)\b.*(?:\bclock_us\(|monotonic\(|perf_counter\(|\.silence\()',
        'an upper bound on time fails on a slow machine: wait for the event, and let a benchmark tell the time',
    ),
    (
        (*SOURCES, '.py'),
        r'\b(?:process_time|getrusage|CLOCK_(?:PROCESS|THREAD)_CPUTIME_ID|CLOCKS_PER_SEC|SC_CLK_TCK)\b|\bclock\(\)',
        'processor time depends on the machine: wait for an event',
    ),
    (
        ('.py',),
        r'\btimeout=[\d.]+\b|\bwait\w*\(.*\bseconds=[\d.]',
        'a patience of its own: PATIENCE costs nothing when it is not needed',
    ),
    (('.py',), r'\bcpu_count\(\)', 'counts processors that this process may not use: os.sched_getaffinity'),
    (('.py',), r'(?:127\.0\.0\.1|localhost|\*):[1-9]\d{3,4}\b', 'a fixed port, which others may have: port 0, or ipc'),
    (
        (*SOURCES, '.py'),
        r'["\']/(?:tmp|var|home|root|nonexistent|run(?!/netns))\b',
        "a path outside of the test's own folder",
    ),
    (
        (*SOURCES, '.py'),
        r'\bexpanduser\b|getenv\("HOME"\)|environ\["HOME"\]|Path\.home\(\)',
        'the home of whoever runs the tests',
    ),
]


def check_verdicts(repo):
    for file in repo.files:
        if not re.match(r'tests/(integration/|support/|unit/|[^/]*$)', file):
            continue
        for n, line in enumerate(repo.text(file).split('\n'), 1):
            for endings, pattern, sentence in VERDICTS:
                if file.endswith(endings) and re.search(pattern, line):
                    yield 'verdict', file, line.strip().replace(' ', '')[:40], n, sentence


def path_exists(repo, path, folders, bases):
    """Judges only what looks like a path of ours: one below a top folder, or a source file's plain name."""
    if '*' in path:
        pattern = re.compile(re.escape(path).replace(r'\*', '[^/]*') + '$')
        return any(pattern.match(f) for f in repo.files)
    if '/' not in path:
        test = re.fullmatch(r'test_\w+', path)
        return path + '.c' in bases if test else not re.search(r'\.(c|h|cu|cuh|sh|py)$', path) or path in bases
    top = path.split('/')[0]
    if top == 'build' or top not in {f.split('/')[0] for f in folders}:
        return True
    return path in repo.files or path.rstrip('/') in folders


RULES = [
    check_format,
    check_columns,
    check_functions,
    check_circles,
    check_symbols,
    check_words,
    check_outside,
    check_mentions,
    check_paths,
    check_verdicts,
]


# --- exceptions ---


def read_exceptions(text):
    """The most that there may be, and the set of (rule, file, subject)."""
    most, out = None, set()
    for n, line in enumerate(text.split('\n'), 1):
        words = line.split('#')[0].split()
        if len(words) == 2 and words[0] == 'most' and words[1].isdigit():
            most = int(words[1])
        elif len(words) == 3:
            out.add(tuple(words))
        elif words:
            raise ValueError(f'line {n}: expected RULE FILE SUBJECT, or most N')
    if most is None:
        raise ValueError('a line "most N" is missing')
    return most, out


def judge(findings, most, exceptions):
    """Complaints: what no exception covers, exceptions without a need, and too many of them."""
    out = []
    needed = {f[:3] for f in findings}
    for rule, file, subject, line, sentence in findings:
        if (rule, file, subject) not in exceptions:
            out.append(f'{file}:{line}: {sentence} [{rule}]')
    for e in sorted(exceptions - needed):
        out.append(f'{EXCEPTIONS}: nothing needs "{" ".join(e)}" any more: scripts/tidy.py --prune')
    if len(exceptions) > most:
        out.append(f'{EXCEPTIONS}: {len(exceptions)} exceptions, {most} at most; it may only shrink')
    return out


def find_all(repo):
    return [finding for rule in RULES for finding in rule(repo)]


def prune(repo, path):
    findings = {f[:3] for f in find_all(repo)}
    with open(path) as f:
        lines = f.read().split('\n')
    kept = [
        l for l in lines if len(l.split('#')[0].split()) != 3 or tuple(l.split('#')[0].split()) in findings
    ]
    count = sum(len(l.split('#')[0].split()) == 3 for l in kept)
    kept = [f'most {count}' if l.startswith('most ') else l for l in kept]
    with open(path, 'w') as f:
        f.write('\n'.join(kept))
    print(f'tidy.py: {len(lines) - len(kept)} exceptions removed, {count} left')


def check(root):
    repo = Repository(root)
    try:
        most, exceptions = read_exceptions(repo.text(EXCEPTIONS))
    except ValueError as e:
        print(f'{EXCEPTIONS}: {e}', file=sys.stderr)
        return 1
    complaints = judge(find_all(repo), most, exceptions)
    print('\n'.join(complaints), file=sys.stderr, end='\n' if complaints else '')
    if subprocess.call([os.path.join(root, 'scripts/check_includes.sh')]) != 0 or complaints:
        print(f'tidy.py: {len(complaints)} complaints', file=sys.stderr)
        return 1
    print(f'tidy.py: {len(repo.files)} files are in order, with {len(exceptions)} exceptions')
    return 0


def main():
    sys.dont_write_bytecode = True
    root = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
    if sys.argv[1:] == ['--self-test']:
        import tidy_test

        return tidy_test.self_test()
    if sys.argv[1:] == ['--prune']:
        return prune(Repository(root), os.path.join(root, EXCEPTIONS))
    if sys.argv[1:]:
        print('usage: scripts/tidy.py [--prune | --self-test]', file=sys.stderr)
        return 2
    return check(root)


if __name__ == '__main__':
    sys.exit(main())
