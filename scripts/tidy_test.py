"""The self-test of scripts/tidy.py: for each rule, what it must accept and what it must refuse."""

import os
import sys
import tempfile

from tidy import (
    GLOSSARY,
    RULES,
    Repository,
    check_circles,
    check_columns,
    check_format,
    check_functions,
    check_mentions,
    check_outside,
    check_paths,
    check_symbols,
    check_verdicts,
    check_words,
    judge,
    read_exceptions,
)


class Snippets(Repository):
    """Files of a self-test, in a folder of their own."""

    def __init__(self, root, files):
        self.root, self.files, self.cache = root, sorted(files), dict(files)
        for name, text in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'w') as f:
                f.write(text)


def body(lines):
    return '{\n' + '  run();\n' * (lines - 2) + '}\n'


GLOSSARY_ROWS = """| term | means | where | not |
|---|---|---|---|
| assignment | a | b | `seat` |
| listener | a | b | door, `place` (names), `work` (names: draft) |
"""

# rule, files, what it must find: (file, subject)
CASES = [
    (
        check_verdicts,
        {
            'tests/a.py': 'wait_until(came, seconds=PATIENCE)\nself.assertLess(count, 5)\nbind(folder)\n',
            'tests/a.c': 'assert_true(now_us < late_us);\nconnect("tcp://127.0.0.1:7000");\n',
            'bench/a.py': 'p.wait(timeout=5)\n',
        },
        [],
    ),
    (
        check_verdicts,
        {'tests/a.c': 'assert_true(clock_us() < x);\n'},
        [('tests/a.c', 'assert_true(clock_us()<x);')],
    ),
    (check_verdicts, {'tests/a.c': 'save("/tmp/x");\n'}, [('tests/a.c', 'save("/tmp/x");')]),
    (check_verdicts, {'tests/a.py': 'p.wait(timeout=5)\n'}, [('tests/a.py', 'p.wait(timeout=5)')]),
    (check_verdicts, {'tests/a.py': 'os.cpu_count()\n'}, [('tests/a.py', 'os.cpu_count()')]),
    (check_verdicts, {'tests/a.py': '"127.0.0.1:7000"\n'}, [('tests/a.py', '"127.0.0.1:7000"')]),
    (check_verdicts, {'tests/a.py': 'time.process_time()\n'}, [('tests/a.py', 'time.process_time()')]),
    (check_verdicts, {'tests/support/a.c': 'x = clock();\n'}, [('tests/support/a.c', 'x=clock();')]),
    (check_verdicts, {'tests/a.c': 'getenv("HOME")\n'}, [('tests/a.c', 'getenv("HOME")')]),
    (check_format, {'a.c': 'int a;\n'}, []),
    (check_format, {'a.c': 'int   a;\n', 'b.cu': 'int   b;\n'}, [('a.c', '*'), ('b.cu', '*')]),
    (check_format, {'a.cu': 'void f() { kernel<<<1, 32, 0, stream>>>(a); }\n'}, []),
    (check_columns, {'a.c': '/* ' + 'é' * 104 + ' */\n', 'wide.md': 'x' * 200}, []),
    (
        check_columns,
        {'a.sh': 'x' * 111 + '\n', 'a.py': 'x' * 111, 'CMakeLists.txt': 'x' * 111},
        [('CMakeLists.txt', '*'), ('a.py', '*'), ('a.sh', '*')],
    ),
    (check_functions, {'a.c': 'static int\na(int x) ' + body(44) + 'int b(void) ' + body(45)}, []),
    (check_functions, {'a.c': 'int a(int (*f)(void *, int),\n      int b) ' + body(45)}, [('a.c', 'a')]),
    (check_functions, {'a.c': '__attribute__((noinline)) int a(void) ' + body(46)}, [('a.c', 'a')]),
    (check_functions, {'a.c': 'int table[] = ' + body(60).replace('}', '};') + 'struct s ' + body(60)}, []),
    (
        check_functions,
        {'a.c': 'int a(void) {\n  /* } */\n  puts("}\\"");\n  c = \'}\';\n' + '  x;\n' * 44 + '}\n'},
        [('a.c', 'a')],
    ),
    (
        check_functions,
        {'a.cu': 'namespace { extern "C" {\n__global__ void a(int x) ' + body(46) + '} }\n'},
        [('a.cu', 'a')],
    ),
    (check_functions, {'a.cu': 'namespace n {\nvoid a() ' + body(3)}, [('a.cu', '*')]),
    (check_functions, {'a.c': '#define A(x) \\\n  { \\\n    x;\nint a(void) ' + body(3)}, []),
    (check_functions, {'a.c': 'int a(void) {\n  if (x) {\n}\n'}, [('a.c', '*')]),
    (
        check_circles,
        {'a.h': '#include "b.h"\n', 'b.h': '', 'b.c': '#include "b.h"\n#include "c.h"\n', 'c.h': ''},
        [],
    ),
    (check_circles, {'a.h': '#include "b.h"\n', 'b.h': '', 'b.c': '#include "a.h"\n'}, [('a', 'b')]),
    (
        check_circles,
        {'a.h': '#include "b.h"\n', 'b.h': '#include "c.h"\n', 'c.h': '#include "a.h"\n'},
        [('a', 'b,c')],
    ),
    (
        check_symbols,
        {
            'x/kv_blocks.h': 'typedef struct kv_blocks { int n; } kv_blocks;\nint kv_take(int (*f)(int));\n'
            'struct other;\nextern const int kv_table[3];\nenum { ANY_CASE };\n'
            'static inline int kv_least(int a) {\n  return a;\n}\n'
        },
        [],
    ),
    (
        check_symbols,
        {
            'x/kv_blocks.h': 'typedef enum { A } kind;\nint take(void);\nextern int table[3];\n'
            'static inline int least(int a) {\n  return a;\n}\nstruct tag {\n  int a;\n};\n'
            'typedef int (*visit)(int);\n'
        },
        [('x/kv_blocks.h', n) for n in ('kind', 'take', 'table', 'least', 'tag', 'visit')],
    ),
    (
        check_words,
        {
            GLOSSARY: GLOSSARY_ROWS,
            'a.c': '/* place, door and work: everyday words */\nint works, seating;\n'
            'char *s = "a seat";\n',
            'tests/t.c': 'int place;\n',
            'b/b.c': 'int work;\n',
        },
        [],
    ),
    (
        check_words,
        {
            GLOSSARY: GLOSSARY_ROWS,
            'a.c': '/* a seat */\n',
            'b.h': 'int no_place;\n',
            'c.py': 'seat = 1\n',
            'd.sh': '# a seat\n',
            'draft/e.c': '#define WORK 1\n',
            'tests/t.c': 'int seat;\n',
        },
        [
            ('a.c', 'seat'),
            ('b.h', 'place'),
            ('c.py', 'seat'),
            ('d.sh', 'seat'),
            ('draft/e.c', 'work'),
            ('tests/t.c', 'seat'),
        ],
    ),
    (check_outside, {'a.md': 'the design, an issue of 12\n'}, []),
    (
        check_outside,
        {'a.c': '/* DESIGN 1 */\n', 'b.md': 'see DESIGN\n', 'c.sh': '# issue 12\n'},
        [('a.c', '*'), ('b.md', '*'), ('c.sh', '*')],
    ),
    (
        check_mentions,
        {'x/a.h': '/* a.h - see b.c, x/b.c and fcntl.h */\n', 'x/b.c': '#include <fcntl.h>\n'},
        [],
    ),
    (
        check_mentions,
        {'x/a.h': '/* old.h - a */\n', 'x/b.c': '/* see gone.h, gone.cu */\n'},
        [('x/a.h', 'old.h'), ('x/b.c', 'gone.cu'), ('x/b.c', 'gone.h')],
    ),
    (
        check_paths,
        {
            'docs/a.md': '`x/a.c`, `a.c`, `x/*.c`, [x](../x/a.c#top), `x/`, `n/a`, [y](https://y.z)\n',
            'x/a.c': '',
        },
        [],
    ),
    (
        check_paths,
        {'docs/a.md': '`test_b`, `x/b.c`, `b.c`, `x/*.h`, [x](x/a.c), `x/y/`\n', 'x/a.c': ''},
        [('docs/a.md', n) for n in ('test_b', 'x/b.c', 'b.c', 'x/*.h', 'x/a.c', 'x/y/')],
    ),
]

FINDING = ('word', 'a.c', 'seat', 3, 'a sentence')
JUDGEMENTS = [  # findings, exceptions' text, number of complaints
    ([], 'most 0', 0),
    ([FINDING], 'most 0', 1),
    ([FINDING], '# why\nmost 1\nword a.c seat', 0),
    ([FINDING], 'most 1\nword b.c seat', 2),
    ([], 'most 1\nword a.c seat', 1),
    ([FINDING], 'most 0\nword a.c seat', 1),
]


def self_test():
    failed = 0
    for rule, files, wanted in CASES:
        with tempfile.TemporaryDirectory() as root:
            found = [(f[1], f[2]) for f in rule(Snippets(root, files))]
        if sorted(found) != sorted(wanted):
            failed += 1
            print(f'tidy.py: {rule.__name__} on {files}: found {found}, wanted {wanted}', file=sys.stderr)
    for findings, text, complaints in JUDGEMENTS:
        if len(judge(findings, *read_exceptions(text))) != complaints:
            failed += 1
            print(
                f'tidy.py: judge on {findings} with {text!r}: {complaints} complaints wanted', file=sys.stderr
            )
    untested = {r.__name__ for r in RULES} - {c[0].__name__ for c in CASES if c[2]}
    if failed or untested:
        print(
            f'tidy.py: the self-test failed {failed} times; never seen to fail: {untested}', file=sys.stderr
        )
        return 1
    print(f'tidy.py: {len(CASES) + len(JUDGEMENTS)} cases: each rule refuses what it should')
    return 0
