"""Frames of the wire protocol as a draft sends and receives them, written from wire/PROTOCOL.md alone: sections 3 to 5
and the rules of section 13.

msgpack reads the frames, so a float 64 in place of a float 32 is let through; every other broken frame is refused.
"""

import math
from types import SimpleNamespace

import msgpack

ZERO = bytes(16)
LIMIT, BAD_ARGUMENT, FULL, PROTOCOL, VERSION, MISMATCH, DESYNC, GONE, STALE = -4, -5, -6, -10, -11, -12, -13, -14, -15
BAD_TICKET = -16

NUMBERS = {"HELLO": 1, "WELCOME": 2, "ERROR": 3, "PING": 4, "PONG": 5, "BYE": 6, "OPEN": 10, "OPENED": 11, "END": 12,
           "ENDED": 13, "DESYNC": 14, "TOKENS": 20, "ACK": 21, "RESEND": 22, "DONE": 23, "ATTACH": 30, "ATTACHED": 31,
           "NODES": 32, "TREE_RESET": 33, "DETACH": 34, "FEATURES": 35, "PART": 15}
NAMES = {number: name for name, number in NUMBERS.items()}
RANGES = {"u32": (0, 2**32 - 1), "u64": (0, 2**64 - 1), "i32": (-2**31, 2**31 - 1), "count": (0, 2**31 - 1),
          "positive": (1, 2**31 - 1), "token": (0, 2**31 - 1), "length": (0, 2**20), "length1": (1, 2**20),
          "budget": (0, 64), "logprobs": (0, 21), "known": (-1, 2**31 - 1), "rows": (0, 2048), "width": (1, 65536)}
PING = "sequence:u64 time_us:u64 load:count"
FIELDS = {
    "WELCOME": "magic:str version_min:u32 version_max:u32 role:u32 incarnation:bin16 model_fingerprint:bin16 "
               "vocabulary_hash:bin16 vocabulary_size:count numerics_id:str endpoint:str method:str session_max:count "
               "context_max:count node_max:count host:bin16 device:str model_hash:bin16?",
    "ERROR": "code:i32 text:str", "PING": PING, "PONG": PING, "BYE": "", "END": "",
    "OPEN": "ticket:bin16 hash_seed:u64 base_length:length base_hash:bin16 tokens:token*131072 hash:bin16 "
            "prompt_length:length1 options:OPTIONS draft_expected:bool target_endpoint:str target_incarnation:bin16 "
            "accepted_wanted:bool?",
    "OPTIONS": "temperature:f32 top_p:f32 min_p:f32 repeat_penalty:f32 top_k:i32 seed:u64 choice:u32 "
               "max_tokens:positive context:length1 stops:token*32 budget:budget lockstep:bool selfcheck:count "
               "single:bool extras:EXTRAS?",
    "EXTRAS": "presence_penalty:f32 frequency_penalty:f32 bias_tokens:token*512 bias_values:f32*512 logprobs:logprobs "
              "grammar:blob*65536? partial:PARTIAL?",
    "PARTIAL": "mode:partial block:count sink:count retrieval:count window:count buffer:count threshold:count refresh:count",
    "WANTED": "logprob_tokens:known*1344 logprobs:f32*1344 plain_us:u32?",
    "TOKENS": "base_length:length1 tokens:token*4096 hash:bin16 accepted:blob*512 wanted:WANTED?",
    "ATTACHED": "length:length1 hash:bin16 generation:u32 grant:GRANT?", "GRANT": "width:width type:type fused:bool from:length",
    "FEATURES": "base:length count:rows width:width type:type rows:blob*262144", "TREE_RESET": "generation:u32", "DETACH": "reason:str"}


class Broken(Exception):
    """A frame breaks a rule of section 13. The code is that of the answer."""

    def __init__(self, text, code=PROTOCOL):
        super().__init__(text)
        self.code = code


def field(kind, value, where):
    """Checks one value against its kind; gives it back, a group as a namespace."""
    def need(holds, rule, code=PROTOCOL):
        if not holds:
            raise Broken(f"{rule}: {where} is {str(value)[:40]!a}", code)
    if kind.startswith("blob"):
        need(type(value) in (bytes, type(None)), "R-TYPE")
        need(len(value or b"") <= int(kind[5:] or 2**20), "R-BLOB-LIMIT", LIMIT)
    elif kind == "type":
        need(type(value) is int, "R-TYPE")
        need(value in (1, 2), "R-ENUM")
    elif kind == "partial":
        need(type(value) is int, "R-TYPE")
        need(0 <= value <= 3, "R-ENUM")
    elif "*" in kind:
        kind, limit = kind.split("*")
        need(type(value) is list, "R-TYPE")
        need(len(value) <= int(limit), "R-LIST-LIMIT", LIMIT)
        for i, entry in enumerate(value):
            field(kind, entry, f"{where}[{i}]")
    elif kind in RANGES:
        low, high = RANGES[kind]
        need(type(value) is int, "R-TYPE")
        need(value >= low, "R-INT-LOW")
        need(value <= high, "R-INT-HIGH", LIMIT)
    elif kind in FIELDS:
        need(type(value) is list, "R-TYPE")
        return group(kind, value)
    else:
        types = {"str": [str], "bin16": [bytes], "f32": [float], "bool": [bool]}
        need(type(value) in types[kind], "R-TYPE")
        need(kind != "bin16" or len(value) == 16, "R-BIN16")
        need(kind != "f32" or math.isfinite(value), "R-FLOAT")
        need(kind != "str" or len(value.encode()) <= 512, "R-STRING-LIMIT", LIMIT)
        need(kind != "str" or not any(c < " " or "\x7f" <= c <= "\x9f" for c in value), "R-STRING-TEXT")
    return value


def group(name, values):
    kinds = [entry.split(":") for entry in FIELDS[name].split()]
    least = sum(not kind.endswith("?") for _, kind in kinds)  # the last fields may be left out
    if not least <= len(values) <= len(kinds):
        raise Broken(f"R-FIELDS: {name} has {len(values)} fields, not {len(kinds)}")
    fields = {key: field(kind.rstrip("?"), value, f"{name}.{key}") for (key, kind), value in zip(kinds, values)}
    for key, kind in kinds:
        if kind.endswith("?") and key == kinds[len(values) - 1][0]:  # the last one that is given
            value = fields[key]
            if not value or value == ZERO or (isinstance(value, SimpleNamespace) and not any(vars(value).values())):
                raise Broken(f"R-LEFT-OUT: {name}.{key} is given")
        fields.setdefault(key, None)
    return SimpleNamespace(**fields)


def decode(frame, envelope):
    """(name, to, session, epoch, fields) of a frame; fields is None for a message that no draft receives. envelope is
    a list that takes [name, session, epoch], as far as they can be read, for the answer to a broken frame."""
    try:
        values = msgpack.unpackb(frame, raw=False)
    except Exception as error:  # msgpack raises a dozen kinds
        raise Broken(f"R-FRAME: {error or type(error).__name__}") from None
    if type(values) is not list or len(values) < 4:
        raise Broken("R-ENVELOPE: not an array of at least 4 entries")
    number = field("u32", values[0], "envelope.type")
    name = NAMES.get(number)
    envelope[:] = name, 0, 0
    to, session, epoch = (field(kind, value, f"envelope.{key}") for key, kind, value in
                          zip(("to", "session", "epoch"), ("bin16", "u64", "u32"), values[1:]))
    envelope[1:] = session, epoch

    def need(holds, rule, code=PROTOCOL):
        if not holds:
            raise Broken(f"{rule}: {name or number} breaks it", code)
    need(name, "R-MESSAGE-TYPE")
    need(name == "ERROR" or (to == ZERO) == (name == "HELLO"), "R-TO")
    need(name == "ERROR" or (session == 0) == (name in ("HELLO", "WELCOME", "PING", "PONG", "BYE")), "R-SESSION")
    if name not in FIELDS:
        return name, to, session, epoch, None
    if name == "WELCOME" and len(values) > 6:  # the versions come before the number of fields
        need(values[4] == "tandem", "R-HELLO-MAGIC")
        need(field("u32", values[5], "version_min") == field("u32", values[6], "version_max"), "R-WELCOME-VERSION")
        need(values[5] in (2, 3, 4, 5), "R-HELLO-VERSION", VERSION)
    m = group(name, values[4:])
    if name == "WELCOME":
        need(1 <= m.role <= 3, "R-ENUM")
        need(m.incarnation != ZERO, "R-HELLO-INCARNATION")
    elif name == "ERROR":
        need(m.code != 0, "R-ERROR-CODE")
        need(m.code < 0, "R-ENUM")
    elif name == "PING":
        need(m.load == 0, "R-PING-LOAD")
    elif name == "OPEN":
        end = m.base_length + len(m.tokens)
        need(m.base_length > 0 or m.base_hash == ZERO, "R-OPEN-BASE")
        need(end > 0, "R-OPEN-EMPTY")
        need(end <= 2**20, "R-OPEN-LENGTH", LIMIT)
        need(m.prompt_length <= end, "R-OPEN-PROMPT")
        need((m.target_endpoint == "") == (m.target_incarnation == ZERO), "R-OPEN-TARGET")
        a = m.options.extras
        need(not a or len(a.bias_tokens) == len(a.bias_values), "R-LIST-SAME")
        need(not a or not a.partial or a.partial.mode, "R-LEFT-OUT")
    elif name == "TOKENS":
        need(m.base_length + len(m.tokens) <= 2**20, "R-TOKENS-LENGTH", LIMIT)
        bits = int.from_bytes(m.accepted or b"", "little")
        need(not m.accepted or len(m.accepted) == (len(m.tokens) + 7) // 8, "R-TOKENS-ACCEPTED")
        need(bits < 2 ** len(m.tokens), "R-TOKENS-ACCEPTED")
        if m.wanted:
            count = len(m.wanted.logprob_tokens)
            need(len(m.wanted.logprobs) == count, "R-LIST-SAME")
            need(not count or m.tokens and count % len(m.tokens) == 0 and count <= 21 * len(m.tokens), "R-TOKENS-LOGPROBS")
    elif name == "FEATURES":
        need(m.base + m.count <= 2**20, "R-FEATURES-LENGTH", LIMIT)
        need(len(m.rows or b"") == m.count * m.width * 2 * m.type, "R-FEATURES-SIZE")
    return name, to, session, epoch, m


def encode(name, to, session, epoch, *fields):
    return msgpack.packb([NUMBERS[name], to, session, epoch, *fields], use_single_float=True)
