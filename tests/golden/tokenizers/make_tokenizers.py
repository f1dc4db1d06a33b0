#!/usr/bin/env python3
"""Small tokenizers of every family, and what they make of generated strings.

    make_tokenizers.py                      writes the goldens beside this file
    make_tokenizers.py --out DIR --vocab N  the same, of another size, elsewhere (compare_tokenizers.py)

Needs the PyPI packages tokenizers, sentencepiece and gguf. The ids of byte-level families and of tokenizer.json are the
tokenizers library's; those of SentencePiece's GGUF are the sentencepiece library's.
"""
import argparse
import io
import json
import os
import random
import re
import unicodedata

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

# As the models publish them (tokenizer.json of Llama-3, Qwen2, Mistral-Nemo; GPT-2's is ByteLevel's own).
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    return [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


BYTE_LEVEL = {  # name: pre-tokenizers, NFC, ignore_merges
    "gpt2": ([pre_tokenizers.ByteLevel(add_prefix_space=False)], False, False),
    "llama-bpe": (split(LLAMA3), False, True),
    "qwen2": (split(QWEN2), True, False),
    "smollm": ([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)], False,
               False),
    "tekken": (split(TEKKEN), False, True),
}
SPECIALS = ["<|begin|>", "<|im_start|>", "<|im_end|>", "<|im"]
ADDED = ["<think>", "</think>", "\n\n\n\n"]  # no marks of the model's

PROSE = """The quick brown fox jumps over the lazy dog; it's what they've said, and I'm sure you'd agree we'll see.
DON'T SHOUT, SHE'S HERE, WE'RE LATE, I'LL GO. HTTPServer readXMLFile camelCase snake_case_name CONSTANT_VALUE
Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Äpfel, öffnen, müssen.
Le renard brun rapide saute par-dessus le chien paresseux. Où êtes-vous, cœur, naïve, garçon, déjà vu.
El rápido zorro marrón salta sobre el perro perezoso. ¿Cómo estás? ¡Mañana será otro día!
Быстрая коричневая лиса перепрыгивает через ленивую собаку. Съешь ещё этих мягких французских булок.
Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.
敏捷的棕色狐狸跳过了懒狗。今天天气很好，我们去公园吧。机器学习和自然语言处理。
素早い茶色の狐がのろまな犬を飛び越える。こんにちは、世界。カタカナとひらがな。
빠른 갈색 여우가 게으른 개를 뛰어넘는다. 안녕하세요 세계.
الثعلب البني السريع يقفز فوق الكلب الكسول. مرحبا بالعالم.
השועל החום המהיר קופץ מעל הכלב העצלן.
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। नमस्ते दुनिया।
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ
Con cáo nâu nhanh nhẹn nhảy qua con chó lười biếng. Tiếng Việt có nhiều dấu.
for (int i = 0; i < 10; i++) { printf("%d\\n", i); }
def f(x):
    return x ** 2 + 3.14159  # 12345 67890 2024-01-31 1,000,000
/* a */
// see http://a.b/c?d=e
a/
};
    \t  if not x:\r\n        pass
😀 😃 👍🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ 🏳️‍🌈 ½ ² Ⅻ ① ٣ ४
"""


def corpus(extra=()):
    lines = PROSE.splitlines(True) * 3 + [PROSE] * 2 + ["x;\n/\n*.\n//\n"] * 60  # whole, for what reaches over a line end
    for line in open(os.path.join(HERE, "..", "smollm2_greedy.jsonl"), encoding="utf-8"):
        lines.append(json.loads(line)["prompt"].split("<|im_start|>user\n")[1].split("<|im_end|>")[0])
    for path in extra:
        for line in open(path, encoding="utf-8"):
            lines += json.loads(line)["turns"]
    return lines


# ---- strings ----

CHOICES = None


def assigned(c):
    """Assigned, and no surrogate. Marks are those of Unicode 3.2: the normalizers' tables are of different age."""
    kind = unicodedata.category(chr(c))
    return kind not in ("Cn", "Cs", "Co") and (kind[0] != "M" or unicodedata.ucd_3_2_0.category(chr(c)) == kind)


def choices():
    """Characters by kind; combining marks and what decomposes by themselves, because NFC moves them."""
    kinds = {}
    for c in list(range(0x3100)) + list(range(0xA000, 0xFFFE)) + list(range(0x1F300, 0x1F650)) + list(range(0x1D400, 0x1D7FF)):
        if assigned(c):
            kinds.setdefault(unicodedata.category(chr(c)), []).append(chr(c))
    kinds["han"] = [chr(c) for c in range(0x4E00, 0x9FA0, 7)]
    kinds["hangul"] = [chr(c) for c in range(0xAC00, 0xD7A0, 11)] + [chr(c) for c in range(0x1100, 0x1113)]
    kinds["decomposed"] = [d for c in range(0xC0, 0x2000) if len(d := unicodedata.normalize("NFD", chr(c))) > 1]
    kinds["ascii"] = [chr(c) for c in range(32, 127)]
    kinds["control"] = [chr(c) for c in range(32)] + ["\x7f", "\x85", "\u180e", "\u200b", "\ufeff", "\u2028"]
    return kinds


BLANKS = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", "\u00a0", "\u3000", "\u2003", "\x0b", "\x0c", "\x85", "\u2581"]
CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'ve", "'Ve", "'m", "'ll", "'LL", "'d", "'D", "\u2019s", "'\u017f", "'x", "''s"]
WORDS = None


def string(rng):
    global CHOICES, WORDS
    if CHOICES is None:
        CHOICES, WORDS = choices(), PROSE.split()
    kinds = list(CHOICES)
    parts = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13])):
        roll = rng.random()
        if roll < 0.30:
            parts.append(rng.choice(WORDS))
        elif roll < 0.42:
            parts.append(rng.choice(BLANKS) * rng.choice([1, 1, 2, 5]))
        elif roll < 0.50:
            parts.append(str(rng.randrange(10 ** rng.randint(1, 9))))
        elif roll < 0.56:
            parts.append(rng.choice(CONTRACTIONS))
        elif roll < 0.62:
            parts.append(rng.choice(SPECIALS + ADDED + ["<|im_", "<think", "<s>", "</s>", "<unk>", "<0x41>"]))
        elif roll < 0.70:
            parts.append(rng.choice("aA0 .-=\n\u2581é漢") * rng.randint(2, 40))
        elif roll < 0.80:
            parts.append(rng.choice(["!?", "...", "/", "//\n", "};\n\n", ";\n/\n", ".\n//\n", "<>", "_", "#", "\"'", "(a)", "http://a.b/c?d=e"]))
        else:
            some = CHOICES[rng.choice(kinds)]
            parts.append("".join(rng.choice(some) for _ in range(rng.choice([1, 1, 2, 4, 9]))))
        if rng.random() < 0.5:
            parts.append(" ")
    return "".join(parts)


# ---- byte-level ----

def train_byte_level(name, vocab, lines):
    pre, nfc, ignore = BYTE_LEVEL[name]
    t = Tokenizer(models.BPE())
    if nfc:
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(pre) if len(pre) > 1 else pre[0]
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                     show_progress=False))
    model = json.loads(t.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    if ignore:  # words that are tokens and cannot be merged any more
        merges = [m for i, m in enumerate(merges) if i % 5 != 4]
    kept = [tuple(m.split(" ")) for m in merges]
    t.model = models.BPE(vocab=model["vocab"], merges=kept, ignore_merges=ignore)
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    t.add_tokens([AddedToken(s, special=False, normalized=False) for s in ADDED])
    begin = t.token_to_id(SPECIALS[0])
    if ignore:
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single=f"{SPECIALS[0]} $A", special_tokens=[(SPECIALS[0], begin)])])
    return t, merges


def write_gguf(path, model, pre, tokens, kinds, merges=None, scores=None, extra=()):
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(model)
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    if merges is not None:
        w.add_token_merges(merges)
    if scores is not None:
        w.add_token_scores(scores)
    for method, value in extra:
        getattr(w, method)(value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def byte_level_gguf(path, name, t, merges):
    count = t.get_vocab_size(with_added_tokens=True)
    added = t.get_added_tokens_decoder()
    kinds = [(3 if added[i].special else 4) if i in added else 1 for i in range(count)]
    write_gguf(path, "gpt2", name, [t.id_to_token(i).encode() for i in range(count)], kinds, merges,
               extra=[("add_bos_token_id", t.token_to_id(SPECIALS[0])), ("add_eos_token_id", t.token_to_id(SPECIALS[2]))])


# ---- SentencePiece ----

def train_sentencepiece(vocab, lines):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(l for text in lines for l in text.splitlines() if l), model_writer=out, vocab_size=vocab,
        model_type="bpe", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
        remove_extra_whitespaces=False, add_dummy_prefix=True, split_digits=True, allow_whitespace_only_pieces=True,
        max_sentence_length=100000, minloglevel=2, num_threads=1)
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def sentencepiece_tokens(sp):
    """(token, score, kind) as converters write them, the added ones last."""
    rows = []
    for i in range(sp.get_piece_size()):
        kind = 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1
        rows.append((sp.id_to_piece(i), sp.get_score(i), kind))
    rows += [(s, -1000.0, 3) for s in SPECIALS] + [(s, -1000.0, 4) for s in ADDED]
    return rows


def sentencepiece_gguf(path, rows):
    write_gguf(path, "llama", "default", [r[0].encode() for r in rows], [r[2] for r in rows], scores=[r[1] for r in rows],
               extra=[("add_bos_token_id", 1), ("add_eos_token_id", 2), ("add_unk_token_id", 0), ("add_add_space_prefix", True)])


def sentencepiece_ids(sp, rows, text):
    """What sentencepiece makes of the stretches between added tokens."""
    ids = {r[0]: i for i, r in enumerate(rows) if r[2] in (2, 3, 4)}
    pattern = "|".join(re.escape(s) for s in sorted(ids, key=len, reverse=True))
    out = []
    for part in re.split(f"({pattern})", text):
        if part:
            out += [ids[part]] if part in ids else sp.encode(part)
    return out


def sentencepiece_json(rows, metaspace):
    """The same vocabulary for the tokenizers library, merges from scores, as transformers converts it."""
    vocab = {token: i for i, (token, _, kind) in enumerate(rows) if kind in (1, 2, 3, 6) and token not in SPECIALS}
    normal = {token: score for token, score, kind in rows if kind == 1}
    merges = []
    for token, score in normal.items():
        local = [(token[:i], token[i:], score) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges = [(m[0], m[1]) for m in sorted(merges, key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
        t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ["<unk>", "<s>", "</s>"] + SPECIALS])
    t.add_tokens([AddedToken(s, special=False, normalized=False) for s in ADDED])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


# ---- a vocabulary with every option of added tokens, of another shape than the models' ----

def odd_json(base):
    t = Tokenizer.from_str(base.to_str())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("-", "merged_with_previous"), pre_tokenizers.Split(Regex(r"[\s\p{P}]"), "merged_with_next"),
        pre_tokenizers.Split(Regex(r"\p{L}+|\d+|\w|-"), "merged_with_previous", invert=True), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.add_tokens([AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True), AddedToken("<lr>", lstrip=True, rstrip=True),
                  AddedToken("word", single_word=True), AddedToken("cafe\u0301", normalized=True),
                  AddedToken("caf\u00e9s", normalized=False, single_word=True)])
    return t


def odd_string(rng):
    more = ["<l>", "<r>", "<lr>", " <l> ", " <r> ", "\t<lr>\n ", "word", "words", " word ", "word-", "café", "cafe\u0301", "cafés",
            "-", "--", "12-34", "<l><r>"]
    return "".join(rng.choice(more) if rng.random() < 0.4 else string(rng)[:12] for _ in range(rng.randint(1, 6)))


# ---- all ----

def families(out, vocab, lines):
    """Writes the files; yields (name, file, string maker, text -> ids, text -> ids without special tokens, decode)."""
    os.makedirs(out, exist_ok=True)
    for name in BYTE_LEVEL:
        t, merges = train_byte_level(name, vocab, lines)
        byte_level_gguf(os.path.join(out, f"{name}.gguf"), name, t, merges)
        yield from of_json(out, name, t)
        if name == "gpt2":
            yield from of_json(out, "odd", odd_json(t), odd_string)
    sp = train_sentencepiece(vocab + 100, lines)
    rows = sentencepiece_tokens(sp)
    sentencepiece_gguf(os.path.join(out, "spm.gguf"), rows)
    yield "spm", string, lambda text: sentencepiece_ids(sp, rows, text), None, None
    yield from of_json(out, "spm-prepend", sentencepiece_json(rows, False))
    yield from of_json(out, "spm-metaspace", sentencepiece_json(rows, True))


def of_json(out, name, t, maker=string):
    with open(os.path.join(out, f"{name}.json"), "w", encoding="utf-8") as f:
        root = json.loads(t.to_str())
        if name not in ("gpt2", "spm-prepend"):  # merges in the older form as well
            root["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in root["model"]["merges"]]
        json.dump(root, f, ensure_ascii=False, separators=(",", ":"))

    def plain(text):
        t.encode_special_tokens = True
        try:
            return t.encode(text, add_special_tokens=False).ids
        finally:
            t.encode_special_tokens = False

    decode = lambda ids: t.decode(ids, skip_special_tokens=False)  # which takes an added é for the byte 0xe9
    yield name, maker, lambda text: t.encode(text, add_special_tokens=False).ids, plain, None if name == "odd" else decode


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=HERE)
    p.add_argument("--vocab", type=int, default=520)
    p.add_argument("--strings", type=int, default=45)
    a = p.parse_args()
    with open(os.path.join(a.out, "strings.jsonl"), "w", encoding="ascii") as f:
        for name, maker, encode, plain, decode in families(a.out, a.vocab, corpus()):
            rng = random.Random(20260101)  # the same strings for every family
            for n in range(a.strings):
                text = maker(rng)
                row = {"family": name, "text": text, "ids": encode(text)}
                if plain and n % 3 == 0:
                    row["plain"] = plain(text)
                if decode and n % 3 == 1 and row["ids"]:
                    row["decoded"] = decode(row["ids"])
                f.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
