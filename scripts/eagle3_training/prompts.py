"""A file of prompts from whatever the user has: JSON lines, JSON lists, CSV or plain text. Standard library
only."""

import csv
import hashlib
import json
import lzma
import random
import re
import sys

SHARED_WORDS = 8


def flags(p):
    p.description = (
        'Makes a file of prompts, {"prompt": ...} a line, without those that an evaluation file contains.'
    )
    p.add_argument(
        'sources',
        nargs='+',
        metavar='SOURCE',
        help='FILE, or FILE:TEMPLATE where {field} stands for a field of its rows, such as '
        "'news.jsonl:Summarise this article.\\n\\n{text}'; TXT files are one prompt a line",
    )
    p.add_argument('--out', required=True, help='JSONL file to write; .xz is compressed')
    p.add_argument(
        '--avoid',
        action='append',
        default=[],
        help='JSONL of evaluation prompts: none shares 8 words with them',
    )
    p.add_argument('--limit', type=int, help='at most so many of each source, drawn evenly')
    p.add_argument('--longest', type=int, default=4000, help='characters of the longest prompt')


def words(text):
    return re.findall(r'\w+', text.lower())


def runs(text, count=SHARED_WORDS):
    """Every run of `count` successive words, and the whole text where it is shorter."""
    w = words(text)
    return {' '.join(w[i : i + count]) for i in range(max(1, len(w) - count + 1))} if w else set()


def texts_of(item):
    """All that a user says in one evaluation prompt or prompt, whatever its form."""
    if isinstance(item, str):
        return [item]
    if 'messages' in item:
        return [m['content'] for m in item['messages']]
    for key in ('turns', 'prompt', 'question', 'instruction', 'text'):
        if key in item:
            return item[key] if isinstance(item[key], list) else [item[key]]
    return [v for v in item.values() if isinstance(v, str)]


def read(path):
    """Rows of a file: dictionaries, or strings of a text file."""
    opener = lzma.open if path.endswith('.xz') else open
    name = path[:-3] if path.endswith('.xz') else path
    with opener(path, 'rt', encoding='utf-8', newline='' if name.endswith('.csv') else None) as f:
        if name.endswith('.csv'):
            return list(csv.DictReader(f))
        if name.endswith('.json'):
            return json.load(f)
        if name.endswith('.txt'):
            return [line.strip() for line in f if line.strip()]
        return [json.loads(line) for line in f if line.strip()]


def filled(template, row):
    """The prompt that a row gives, or None where a field of the template is missing."""
    if template is None:
        parts = texts_of(row)
        return parts[0] if parts else None
    try:
        return template.replace('\\n', '\n').format(**row).strip()
    except KeyError:
        return None


def split_source(source):
    """FILE or FILE:TEMPLATE; the file's ending tells where its name ends."""
    found = re.match(r'(.+?\.(?:jsonl?|csv|txt)(?:\.xz)?)(?::(.*))?$', source, re.S)
    if not found:
        sys.exit(
            f'{source}: give a .jsonl, .json, .csv or .txt file (also .xz), perhaps with :TEMPLATE behind it'
        )
    return found.groups()


def prompts_of(source, limit, longest):
    path, template = split_source(source)
    found = [p for p in (filled(template, row) for row in read(path)) if p and len(p) <= longest]
    if limit and len(found) > limit:
        found = random.Random(path).sample(found, limit)
    return found


def make(o):
    avoid = set()
    for path in o.avoid:
        for item in read(path):
            for text in texts_of(item):
                avoid |= runs(text)
    seen, kept, shared = set(), [], 0
    for source in o.sources:
        for prompt in prompts_of(source, o.limit, o.longest):
            name = hashlib.sha256(' '.join(words(prompt)).encode()).digest()
            if name in seen:
                continue
            seen.add(name)
            if runs(prompt) & avoid:
                shared += 1
                continue
            kept.append(prompt)
    opener = lzma.open if o.out.endswith('.xz') else open
    with opener(o.out, 'wt', encoding='utf-8') as f:
        for prompt in kept:
            f.write(json.dumps({'prompt': prompt}, ensure_ascii=False) + '\n')
    print(
        f'{o.out}: {len(kept)} prompts; {shared} left out because they share {SHARED_WORDS} words '
        f'with {len(o.avoid)} evaluation files'
    )
    return 0
