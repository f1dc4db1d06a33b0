"""A model and a draft head of a few hundred kilobytes, so that hundreds of answers pass in a minute. Both are
random; the model has a vocabulary of plain ASCII, so that every prefix of an answer is text."""

import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

from models import ARRAY, STRING, UINT32, make_head, make_model, text  # noqa: E402

INT32, BOOL = 5, 7
CONTROL, NORMAL = 3, 1
SPECIALS = ["<|endoftext|>", "<s>", "</s>"]
EMBED, LAYERS, CONTEXT = 64, 2, 2048
MERGES = [(a, b) for a in "abcdefghijklmn" for b in "opqrstuvwxy"]


def spelling(byte):
    """As GPT-2's vocabularies spell this byte; other bytes than ASCII's printable ones are missing."""
    return chr(byte) if 33 <= byte < 127 else "\u0120" if byte == 32 else f"missing {byte}"


def array(name, kind, items):
    return text("tokenizer.ggml." + name) + struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(items)


def tokenizer():
    """Keys of a GGUF, and how many tokens they name."""
    words = SPECIALS + [spelling(b) for b in range(32, 127)] + [a + b for a, b in MERGES]
    kinds = [CONTROL] * len(SPECIALS) + [NORMAL] * (len(words) - len(SPECIALS))
    plain = lambda name, value: text("tokenizer.ggml." + name) + struct.pack("<I", STRING) + text(value)
    number = lambda name, value: text("tokenizer.ggml." + name) + struct.pack("<II", UINT32, value)
    keys = [plain("model", "gpt2"), plain("pre", "smollm"), array("tokens", STRING, [text(w) for w in words]),
            array("token_type", INT32, [struct.pack("<i", k) for k in kinds]),
            array("merges", STRING, [text(f"{a} {b}") for a, b in MERGES]),
            number("eos_token_id", 2), number("bos_token_id", 1),
            text("tokenizer.ggml.add_bos_token") + struct.pack("<I?", BOOL, False)]
    return keys, len(words)


def make(folder):
    """The paths of model and head."""
    keys, count = tokenizer()
    model = make_model(folder / "tiny.gguf", count, EMBED, layers=LAYERS, tokenizer=keys)
    head = make_head(folder / "head", EMBED, count, rows=64, heads=(2, 1), taps=(0, 1, 2))
    return model, head


if __name__ == "__main__":
    print(*make(pathlib.Path(sys.argv[1])))
