"""Tokenizer and chat template of a GGUF, and the prompts that a batch of rows begins with."""

import json
import lzma
import random

import jinja2
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from .target import CONTROL, USER_DEFINED, Refused

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# tokenizer.ggml.pre: (digits stand alone, pattern)
SPLITS = {
    'gpt-2': (False, GPT2),
    'smollm': (True, GPT2),
    'llama-bpe': (False, CL100K % '1,3'),
    'qwen2': (False, CL100K % '1'),
}


class Text:
    def __init__(self, meta):
        kind, pre = meta.get('tokenizer.ggml.model'), meta.get('tokenizer.ggml.pre', 'gpt-2')
        if kind != 'gpt2' or pre not in SPLITS:
            raise Refused(
                f"the tokenizer is of model '{kind}', pre-tokenizer '{pre}'; heads are trained here for "
                f"'gpt2' with one of {', '.join(SPLITS)}"
            )
        words, types = meta['tokenizer.ggml.tokens'], meta['tokenizer.ggml.token_type']
        merges = [tuple(m.split(' ')) for m in meta['tokenizer.ggml.merges']]
        self.tokenizer = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges))
        digits, pattern = SPLITS[pre]
        steps = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
        steps += [
            pre_tokenizers.Split(tokenizers.Regex(pattern), 'isolated'),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        self.tokenizer.decoder = decoders.ByteLevel()
        added = [
            tokenizers.AddedToken(w, special=t == CONTROL, normalized=False)
            for w, t in zip(words, types)
            if t in (CONTROL, USER_DEFINED)
        ]
        self.tokenizer.add_special_tokens([a for a in added if a.special])
        self.tokenizer.add_tokens([a for a in added if not a.special])
        self.control = {i for i, t in enumerate(types) if t == CONTROL}
        special = lambda key: words[meta[key]] if key in meta else ''
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.globals['raise_exception'] = lambda message: (_ for _ in ()).throw(Refused(message))
        if 'tokenizer.chat_template' not in meta:
            raise Refused('the model has no chat template: the head learns from chats, so it needs one')
        self.template = environment.from_string(meta['tokenizer.chat_template'])
        self.names = {
            'bos_token': special('tokenizer.ggml.bos_token_id'),
            'eos_token': special('tokenizer.ggml.eos_token_id'),
        }
        self._find_turns()

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def render(self, messages, generation=True):
        return self.template.render(messages=messages, add_generation_prompt=generation, **self.names)

    def _find_turns(self):
        """What stands between turns, as tokens, found by rendering a chat of three marked messages."""
        marks = ['Qfirst7', 'Qsecond7', 'Qthird7']
        roles = ['user', 'assistant', 'user']
        text = self.render([{'role': r, 'content': m} for r, m in zip(roles, marks)])
        ends = [text.index(m) + len(m) for m in marks]
        self.user_opening = text[: ends[0] - len(marks[0])]
        to_user = text[ends[1] : ends[2] - len(marks[2])]
        self.scripts = [
            self.encode(to_user),
            self.encode(text[ends[2] :]),
        ]  # after the assistant, after the user
        for name, script in zip(('assistant', 'user'), self.scripts):
            if not script or script[0] not in self.control:
                raise Refused(f"the chat template ends no {name}'s turn with a control token; it must")

    def chat(self, messages):
        return self.encode(self.render(messages))

    def started(self, opener):
        return self.encode(self.user_opening + opener)


# kind: (weight, the first words of what a user says)
STARTERS = {
    'open': (
        0.38,
        "What|How|Why|Can you|Could you|I|I need|I'm|Please|Explain|Describe|Tell me|Is it|Which|When|Give "
        'me|Help me|Do you|What is the difference|How do I|Compare|Suggest|My|The|Hi|If|Who|Where|What are '
        'the benefits|What happens|Should I|Imagine',
    ),
    'write': (
        0.12,
        'Write a story|Write an email|Write a poem|Compose|Draft a letter|Create a dialogue|Write a '
        'short|Write a blog post|Pretend|Act as|You are a|Write a speech',
    ),
    'maths': (
        0.09,
        'A train|Solve|Calculate|If x|John has|How many|Find the|A shop sells|Mary bought|What is the '
        'probability|There are|Each',
    ),
    'translate': (
        0.09,
        'Translate|Translate this sentence into|How do you say|Translate German to English:|Translate the '
        'following text|What does the French',
    ),
    'facts': (
        0.08,
        'Who was|When did|Where is|What year|What country|Who invented|Name the|In which|Which city|What is '
        'the capital',
    ),
    'code': (
        0.07,
        'Write a Python function|Implement|Fix this code:\n|Write a program|In JavaScript,|What does this '
        'code do?\n|Write a SQL query|Explain this function',
    ),
    'list': (
        0.07,
        'List|Name five|Give three examples|Make a list|Provide a list|Outline|What are some|Top ten',
    ),
    'extract': (
        0.07,
        'Extract|Read the following|Given the following|Classify|Identify|Rewrite|Correct the|Evaluate|Based '
        'on the text|From the passage',
    ),
    'summarise': (
        0.03,
        'Summarize|Summarize the following article|Give a short summary|TL;DR|In one sentence,',
    ),
}


def read_lines(path):
    opener = lzma.open if path.endswith('.xz') else open
    with opener(path, 'rt', encoding='utf-8') as f:
        return [json.loads(line) for line in f if line.strip()]


def messages_of(item):
    if 'messages' in item:
        return item['messages']
    if 'turns' in item:
        return [{'role': 'user', 'content': item['turns'][0]}]
    return [{'role': 'user', 'content': item['prompt']}]


class Prompts:
    """Tokens that rows begin with: real prompts by length class, each used again only once all were used, or
    starters. The answers at first use are greedy, later ones mostly sampled."""

    def __init__(self, text, path, seed, rows=4096, longest=880):
        self.text, self.random = text, random.Random(seed)
        self.short, self.long, self.cursor, self.uses = [], [], {}, {}
        self.openers = {}
        if path:
            rendered = [text.render(messages_of(item)) for item in read_lines(path)]
            encoded = text.tokenizer.encode_batch(rendered, add_special_tokens=False)
            for n, e in enumerate(encoded):
                if len(e.ids) <= longest:
                    (self.long if len(e.ids) > 250 else self.short).append((n, e.ids))
        self.random.shuffle(self.short)
        self._group_long(rows)

    def _group_long(self, rows):
        """Neighbours in length share most of their prefill, so the long ones stand in groups of a batch."""
        self.random.shuffle(self.long)
        kept = len(self.long) // rows * rows or len(self.long)
        ordered = sorted(self.long[:kept], key=lambda p: len(p[1]))
        groups = [ordered[i : i + rows] for i in range(0, kept, rows)]
        self.random.shuffle(groups)
        self.long = [p for g in groups for p in g]

    def starters(self, count):
        kinds = self.random.choices(list(STARTERS), [w for w, _ in STARTERS.values()], k=count)
        heat = self.random.choices([0.0, 1.0, 0.6], [0.55, 0.30, 0.15], k=count)
        for kind, t in zip(kinds, heat):
            opener = self.random.choice(STARTERS[kind][1].split('|'))
            if opener not in self.openers:
                self.openers[opener] = self.text.started(opener)
            held = self.random.random() < 1 / 64
            yield self.openers[opener], t, held, 0

    def real(self, name, count):
        pool = getattr(self, name)
        at = self.cursor.get(name, 0)
        chosen = [pool[(at + i) % len(pool)] for i in range(count)]
        self.cursor[name] = at + count
        for i, (n, ids) in enumerate(chosen):
            first = at + i < len(pool)
            heat = 0.0 if first else self.random.choices([1.0, 0.6], [0.7, 0.3])[0]
            yield ids, heat, n % 64 == 0, 1

    def batch(self, long, rows):
        """(tokens, temperature of the answers, held out, 1 if the model answers at once) of every row, sorted
        by length."""
        if long and self.long:
            return sorted(self.real('long', rows), key=lambda p: len(p[0]))
        real = int(rows * 0.55) if self.short else 0
        chosen = list(self.real('short', real)) + list(self.starters(rows - real))
        return sorted(chosen, key=lambda p: len(p[0]))
