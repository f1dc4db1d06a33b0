#!/usr/bin/env python3
"""Makes the golden frames of wire/PROTOCOL.md: good/, bad/, hash.json and the worked session of the page.

Independent of the C code on purpose: the frames come from Python's msgpack, the hashes from Python's xxhash,
the fields from the tables of the page. Needs python3-msgpack and python3-xxhash.

  make_vectors.py          writes everything
  make_vectors.py --check  writes nothing; exit status 1 when a file differs from what would be written
"""

import json
import os
import random
import struct
import sys

import msgpack
import xxhash

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "..", "PROTOCOL.md")
HEX_MAX = 600  # bytes of a frame that the index and the page repeat in hex

TYPES = dict(HELLO=1, WELCOME=2, ERROR=3, PING=4, PONG=5, BYE=6, OPEN=10, OPENED=11, END=12, ENDED=13,
             DESYNC=14, PART=15, TOKENS=20, ACK=21, RESEND=22, DONE=23, ATTACH=30, ATTACHED=31, NODES=32,
             TREE_RESET=33, DETACH=34, FEATURES=35)

HELLO = "version_min version_max role incarnation model_fingerprint vocabulary_hash vocabulary_size " \
        "numerics_id endpoint method session_max context_max node_max host device".split()
OPTIONS = "temperature top_p min_p repeat_penalty top_k seed choice max_tokens context stops budget lockstep " \
          "selfcheck single extras".split()
STATS = "forwards rounds rows accepted rewound prefill_us queue_us forward_us accept_us commit_us wait_us " \
        "plain_steps resets dropped accepted_per_pos ahead".split()
AHEAD = "verdicts ahead_hits survivors".split()
REQUEST = "taps type fc from horizon".split()
GRANT = "width type fused from".split()
FIELDS = {
    "HELLO": ["magic"] + HELLO,
    "WELCOME": ["magic"] + HELLO + ["model_hash"],
    "ERROR": ["code", "text"],
    "PING": ["sequence", "time_us", "load"],
    "PONG": ["sequence", "time_us", "load"],
    "BYE": [],
    "OPEN": "ticket hash_seed base_length base_hash tokens hash prompt_length options draft_expected "
            "target_endpoint target_incarnation accepted_wanted".split(),
    "PART": "ticket hash_seed base_length base_hash tokens hash prompt_length options draft_expected "
            "target_endpoint target_incarnation total".split(),
    "OPENED": ["length", "hash"],
    "END": [],
    "ENDED": ["existed"],
    "DESYNC": ["length", "hash", "reason"],
    "TOKENS": ["base_length", "tokens", "hash", "accepted", "wanted"],
    "ACK": ["length", "hash"],
    "RESEND": ["from"],
    "DONE": ["length", "hash", "finish", "code", "text", "off_reason", "stats", "numbers"],
    "ATTACH": ["length", "hash", "ticket", "generation", "request"],
    "ATTACHED": ["length", "hash", "generation", "grant"],
    "NODES": ["generation", "base_length", "base_hash", "first_id", "parents", "tokens", "scores", "done", "features"],
    "TREE_RESET": ["generation"],
    "DETACH": ["reason"],
    "FEATURES": ["base", "count", "width", "type", "rows"],
}
EXTRAS = "presence_penalty frequency_penalty bias_tokens bias_values logprobs grammar partial".split()
PARTIAL = "mode block sink retrieval window buffer threshold refresh".split()
WANTED = ["logprob_tokens", "logprobs", "plain_us"]
NUMBERS = ["off", "plain_us"]
GROUPS = {"options": OPTIONS, "extras": EXTRAS, "wanted": WANTED, "stats": STATS, "ahead": AHEAD, "request": REQUEST,
          "grant": GRANT, "numbers": NUMBERS, "partial": PARTIAL}
LEFT_OUT = {"WELCOME": "model_hash", "DONE": "numbers", "ATTACH": "request", "ATTACHED": "grant", "NODES": "features", "OPEN": "accepted_wanted", "TOKENS": "wanted", "wanted": "plain_us",
            "options": "extras", "extras": "partial", "stats": "ahead"}  # the last field may be left out

ZERO = bytes(16)
ORCHESTRATOR = bytes.fromhex("0b0d5e1fa1e54c0f9d1f0e7a6c3b2a10")
TARGET = bytes.fromhex("7a46e7a1c0de4f00a1b2c3d4e5f60718")
DRAFT = bytes.fromhex("d4af7d4af7d44a4f8e9fa0b1c2d3e4f5")
TICKET = bytes.fromhex("71c3e771c3e7441f92837465564738a9")
WHOLE = bytes.fromhex("1dff70ef9e211d0ab8951aa641e75aa1")
MODEL = bytes.fromhex("b179c9523d0e6a0f98a330c7562b6827")
VOCABULARY = bytes.fromhex("50ca81a250ca81a250ca81a250ca81a2")
HOST = bytes.fromhex("4057f00d4057f00d4057f00d4057f00d")
U32, U64, I32 = 2**32 - 1, 2**64 - 1, 2**31 - 1
CONTEXT_MAX = 1048576


def f32(x):
    """The float 32 nearest to x, as Python's msgpack will write it."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def hash_next(previous, seed, token):
    return xxhash.xxh3_128(previous + struct.pack("<I", token), seed=seed).digest()


def hash_of(seed, tokens):
    h = ZERO
    for t in tokens:
        h = hash_next(h, seed, t)
    return h


def pack(value):
    return msgpack.packb(value, use_bin_type=True, use_single_float=True)


def plain(fields, names):
    """The values of a message's fields in the order of the page."""
    missing = set(fields) ^ set(names)
    assert not missing, missing
    return [group(fields[n], n) if isinstance(fields[n], dict) else fields[n] for n in names]


def present(name, names, fields):
    if LEFT_OUT.get(name) in [None, *fields]:
        return names
    return names[:-2] if name == "extras" and "grammar" not in fields else names[:-1]


def group(fields, name):
    return plain(fields, present(name, GROUPS[name], fields))


def message(kind, to, session, epoch, fields):
    return [TYPES[kind], to, session, epoch] + plain(fields, present(kind, FIELDS[kind], fields))


def shown(value):
    """A field's value for the index: bytes as hex, long runs by their rule, integers above 2^53 as text."""
    if isinstance(value, bytes):
        if len(value) > 64 and len(set(value)) == 1:
            return {"repeat": value[:1].hex(), "count": len(value)}
        return value.hex()
    if isinstance(value, dict):
        return {k: shown(v) for k, v in value.items()}
    if isinstance(value, list):
        if len(value) > 64:
            if len(set(value)) == 1:
                return {"repeat": shown(value[0]), "count": len(value)}
            if value == list(range(value[0], value[0] + len(value))):
                return {"first": value[0], "count": len(value)}
        return [shown(v) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return str(value)
    return value


# --- good frames ---

GOOD = []


def good(name, kind, fields, to=TARGET, session=None, epoch=None, frame=None):
    """frame: other bytes that mean the same (integers, lengths or counts wider than need be)."""
    about = kind not in ("HELLO", "WELCOME", "PING", "PONG", "BYE")
    session = (77 if about else 0) if session is None else session
    epoch = (1 if about else 0) if epoch is None else epoch
    shortest = pack(message(kind, to, session, epoch, fields))
    assert name not in [g["name"] for g in GOOD], name
    if frame is not None:
        assert frame != shortest
        assert msgpack.unpackb(frame) == msgpack.unpackb(shortest), name
    GOOD.append({"name": name, "type": kind, "to": to, "session": session, "epoch": epoch, "fields": fields,
                 "canonical": frame is None, "bytes": shortest if frame is None else frame})
    return GOOD[-1]


def hello(**changed):
    fields = dict(magic="tandem", version_min=2, version_max=5, role=3, incarnation=DRAFT,
                  model_fingerprint=ZERO, vocabulary_hash=ZERO, vocabulary_size=0, numerics_id="", endpoint="",
                  method="ngram", session_max=4, context_max=0, node_max=1024, host=HOST, device="")
    fields.update(changed)
    return fields


def hello_target(**changed):
    fields = hello(role=2, incarnation=TARGET, model_fingerprint=MODEL, vocabulary_hash=VOCABULARY,
                   vocabulary_size=49152, numerics_id="cpu-avx2-int8-1", endpoint="tcp://127.0.0.1:7001", method="",
                   session_max=4, context_max=4096, node_max=64, device="cpu")
    fields.update(changed)
    return fields


def welcome(fields):
    return dict(fields, version_min=fields["version_max"])


def hello_orchestrator(**changed):
    fields = hello(role=1, incarnation=ORCHESTRATOR, method="", session_max=0, node_max=0, host=ZERO)
    fields.update(changed)
    return fields


def options(**changed):
    fields = dict(temperature=0.0, top_p=1.0, min_p=0.0, repeat_penalty=1.0, top_k=0, seed=1, choice=0,
                  max_tokens=256, context=4096, stops=[2], budget=16, lockstep=False, selfcheck=0,
                  single=False)
    fields.update(changed)
    return fields


def extras(**changed):
    fields = dict(presence_penalty=f32(0.6), frequency_penalty=f32(-0.4), bias_tokens=[50, 7], bias_values=[-100.0, f32(2.5)], logprobs=0)
    fields.update(changed)
    return fields


def partial(**changed):
    fields = dict(mode=2, block=16, sink=2, retrieval=64, window=8, buffer=128, threshold=4096, refresh=32)
    fields.update(changed)
    return fields


SEED = 0x5EED5EED5EED5EED
PROMPT = [1, 504, 2365]


def open_(**changed):
    fields = dict(ticket=TICKET, hash_seed=SEED, base_length=0, base_hash=ZERO, tokens=PROMPT,
                  hash=hash_of(SEED, PROMPT), prompt_length=3, options=options(), draft_expected=True,
                  target_endpoint="", target_incarnation=ZERO)
    fields.update(changed)
    return fields


def part(**changed):
    return open_(**dict(dict(total=9, prompt_length=9), **changed))


def stats(**changed):
    fields = dict(forwards=9, rounds=6, rows=24, accepted=12, rewound=12, prefill_us=41200, queue_us=310,
                  forward_us=190400, accept_us=120, commit_us=95, wait_us=800, plain_steps=3, resets=0,
                  dropped=1, accepted_per_pos=[6, 4, 2])
    fields.update(changed)
    return fields


def state(length, tokens=None):
    tokens = list(range(length)) if tokens is None else tokens
    return dict(length=length, hash=hash_of(SEED, tokens[:length]))


def nodes(**changed):
    fields = dict(generation=1, base_length=3, base_hash=hash_of(SEED, PROMPT), first_id=1, parents=[0, 1, 1],
                  tokens=[11, 12, 13], scores=[f32(-0.1), f32(-0.5), f32(-1.25)], done=False)
    fields.update(changed)
    return fields


def request(**changed):
    fields = dict(taps=[2, 15, 27], type=1, fc=ZERO, horizon=7)
    fields["from"] = 0
    fields.update(changed)
    return {name: fields[name] for name in REQUEST}


def grant(**changed):
    fields = dict(width=4, type=1, fused=False)
    fields["from"] = 0
    fields.update(changed)
    return {name: fields[name] for name in GRANT}


def bf16(values):
    """Each value's float 32 without its lower half."""
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def features(**changed):
    fields = dict(base=3, count=2, width=4, type=1, rows=bf16([1, -2, 0.5, 0, 3, 4, -0.0, 65536]))
    fields.update(changed)
    return fields


def done(**changed):
    fields = dict(state(24), finish=1, code=0, text="", off_reason="", stats=stats())
    fields.update(changed)
    return fields


def head(kind, count, to=TARGET, session=77, epoch=1):
    """The first bytes of a frame with `count` fields after the envelope."""
    return bytes([0x90 | 4 + count] if count < 12 else [0xdc, 0, 4 + count]) + \
        b"".join(pack(v) for v in (TYPES[kind], to, session, epoch))


def make_good():
    widest = "ä€😀" * 60 + "x" * 10 # 9 bytes a round, 550 in all: cut below
    long_text = widest.encode()[:504].decode() + "x" * 8
    assert len(long_text.encode()) == 512

    good("hello_draft", "HELLO", hello(), to=ZERO)
    good("hello_target", "HELLO", hello_target(), to=ZERO)
    good("hello_orchestrator", "HELLO", hello_orchestrator(), to=ZERO)
    good("hello_least", "HELLO", hello(method="", session_max=0, node_max=0, incarnation=bytes(15) + b"\1",
                                       host=ZERO), to=ZERO)
    good("hello_draft_model", "HELLO", hello(vocabulary_hash=VOCABULARY, vocabulary_size=49152,
                                             numerics_id="cpu-avx2-int8-1", method="model", context_max=4096,
                                             device="cpu"), to=ZERO)
    good("hello_other_device", "HELLO", hello_target(host=bytes(15) + b"\1", device="cuda:0"), to=ZERO)
    good("hello_version_2", "HELLO", hello(version_max=2), to=ZERO)
    good("hello_later_versions", "HELLO", hello(version_max=U32), to=ZERO)
    good("hello_most", "HELLO", hello(incarnation=b"\xff" * 16, model_fingerprint=b"\xff" * 16,
                                      vocabulary_hash=b"\xff" * 16, vocabulary_size=I32, numerics_id=long_text,
                                      endpoint="e" * 512, method="ü" * 256, session_max=I32, context_max=I32,
                                      node_max=I32, host=b"\xff" * 16, device="ü" * 256), to=ZERO)
    good("welcome_orchestrator", "WELCOME", welcome(hello_orchestrator()), to=DRAFT)
    good("welcome_target", "WELCOME", welcome(hello_target()), to=DRAFT)
    good("welcome_version_2", "WELCOME", hello_target(version_max=2), to=DRAFT)
    good("welcome_hash", "WELCOME", welcome(hello_orchestrator(model_hash=WHOLE)), to=TARGET)
    good("welcome_hash_most", "WELCOME", welcome(hello_orchestrator(model_hash=b"\xff" * 16)), to=TARGET)

    good("error_version", "ERROR", dict(code=-11, text="this program speaks versions 2 to 5, the peer 6 to 7: "
                                                       "update the older one"), to=ZERO, session=0, epoch=0)
    good("error_session", "ERROR", dict(code=-14, text="no such session: it may not have been opened yet"), to=DRAFT)
    good("error_unknown_code", "ERROR", dict(code=-2**31, text=""), to=DRAFT)
    good("error_text", "ERROR", dict(code=-1, text=long_text), to=DRAFT, session=U64, epoch=U32)
    good("error_text_str8", "ERROR", dict(code=-3, text="short"), to=DRAFT,
         frame=head("ERROR", 2, to=DRAFT) + pack(-3) + b"\xd9\x05short")

    good("ping", "PING", dict(sequence=1, time_us=1234567, load=0))
    good("ping_zero", "PING", dict(sequence=0, time_us=0, load=0))
    good("ping_most", "PING", dict(sequence=U64, time_us=U64, load=0))
    good("pong", "PONG", dict(sequence=1, time_us=1234567, load=3), to=ORCHESTRATOR)
    good("pong_most", "PONG", dict(sequence=U64, time_us=2**63, load=I32), to=ORCHESTRATOR)
    good("bye", "BYE", {}, to=ORCHESTRATOR)

    good("open_target", "OPEN", open_())
    good("open_draft", "OPEN", open_(draft_expected=False, target_endpoint="ipc:///tmp/tandem-1/target",
                                     target_incarnation=TARGET), to=DRAFT)
    good("open_one_token", "OPEN", open_(tokens=[0], hash=hash_of(SEED, [0]), prompt_length=1))
    good("open_delta", "OPEN", open_(base_length=3, base_hash=hash_of(SEED, PROMPT), tokens=[7, 8],
                                     hash=hash_of(SEED, PROMPT + [7, 8])), epoch=2)
    good("open_rollback", "OPEN", open_(base_length=3, base_hash=hash_of(SEED, PROMPT), tokens=[]), epoch=3)
    good("part_first", "PART", part())
    good("part_next", "PART", part(base_length=3, base_hash=hash_of(SEED, PROMPT), tokens=[7, 8],
                                   hash=hash_of(SEED, PROMPT + [7, 8])), epoch=2)
    good("part_draft", "PART", part(draft_expected=False, target_endpoint="ipc:///tmp/tandem-1/target",
                                    target_incarnation=TARGET), to=DRAFT)
    good("part_rollback", "PART", part(base_length=3, base_hash=hash_of(SEED, PROMPT), tokens=[]), epoch=3)
    good("part_most", "PART", part(tokens=[5] * 131072, hash=hash_of(SEED, [5] * 131072), total=CONTEXT_MAX,
                                   prompt_length=CONTEXT_MAX, options=options(context=CONTEXT_MAX)))
    good("open_most_tokens", "OPEN", open_(tokens=[5] * 131072, hash=hash_of(SEED, [5] * 131072),
                                           prompt_length=131072, options=options(context=CONTEXT_MAX)))
    good("open_most_length", "OPEN", open_(base_length=CONTEXT_MAX - 1, base_hash=b"\x5a" * 16, tokens=[I32],
                                           hash=hash_next(b"\x5a" * 16, SEED, I32), prompt_length=CONTEXT_MAX,
                                           options=options(context=CONTEXT_MAX)), epoch=U32)
    good("open_options_sampling", "OPEN", open_(options=options(temperature=f32(0.8), top_p=f32(0.95),
                                                                min_p=f32(0.05), repeat_penalty=f32(1.1), top_k=40,
                                                                seed=U64, choice=U32, lockstep=True, selfcheck=8, single=True)))
    good("open_options_most", "OPEN", open_(hash_seed=U64, options=options(
        temperature=f32(3.4028234663852886e38), top_p=f32(1e-45), min_p=-0.0, repeat_penalty=-1.0, top_k=I32,
        max_tokens=I32, context=CONTEXT_MAX, stops=list(range(I32 - 31, I32 + 1)), budget=64, selfcheck=I32)))
    good("open_options_least", "OPEN", open_(hash_seed=0, options=options(
        top_k=-2**31, seed=0, max_tokens=1, context=1, stops=[], budget=0)))
    good("open_extras", "OPEN", open_(options=options(extras=extras()), accepted_wanted=True))
    good("open_extras_presence", "OPEN", open_(options=options(extras=extras(
        frequency_penalty=0.0, bias_tokens=[], bias_values=[]))))
    good("open_extras_frequency", "OPEN", open_(options=options(extras=extras(
        presence_penalty=0.0, bias_tokens=[], bias_values=[]))))
    good("open_extras_most", "OPEN", open_(options=options(extras=extras(
        presence_penalty=0.0, frequency_penalty=0.0, bias_tokens=[I32] * 512, bias_values=[f32(3.4028234663852886e38)] * 512))))
    good("open_extras_logprobs", "OPEN", open_(options=options(extras=extras(
        presence_penalty=0.0, frequency_penalty=0.0, bias_tokens=[], bias_values=[], logprobs=21))))
    none = dict(presence_penalty=0.0, frequency_penalty=0.0, bias_tokens=[], bias_values=[])
    good("open_extras_grammar", "OPEN", open_(options=options(extras=extras(**none, grammar=b'root ::= "a"\n'))))
    good("open_extras_grammar_most", "OPEN", open_(options=options(extras=extras(grammar=b"#" * 65536))))
    good("part_extras_grammar", "PART", part(options=options(extras=extras(**none, grammar=b'root ::= "a"\n'))))
    good("part_extras", "PART", part(options=options(extras=extras())))
    alone = dict(none, grammar=None)
    good("open_partial", "OPEN", open_(options=options(extras=extras(**alone, partial=partial()))))
    good("open_partial_lossy", "OPEN", open_(options=options(extras=extras(grammar=b'root ::= "a"\n', partial=partial(
        mode=3, block=4096, sink=0, retrieval=0, window=65536, buffer=1024, threshold=I32, refresh=1)))))
    good("open_partial_off", "OPEN", open_(options=options(extras=extras(**alone, partial=dict.fromkeys(PARTIAL, 0) | {"mode": 1}))))
    good("part_partial", "PART", part(options=options(extras=extras(**alone, partial=partial()))))
    good("opened", "OPENED", state(3, PROMPT), to=ORCHESTRATOR)
    good("opened_most", "OPENED", dict(length=CONTEXT_MAX, hash=b"\xff" * 16), to=ORCHESTRATOR)
    good("end", "END", {})
    good("ended_true", "ENDED", dict(existed=True), to=ORCHESTRATOR)
    good("ended_false", "ENDED", dict(existed=False), to=ORCHESTRATOR)
    good("desync_empty", "DESYNC", dict(length=0, hash=ZERO, reason="no such session here"), to=ORCHESTRATOR)
    good("desync_other_hash", "DESYNC", dict(state(5), reason="the tokens differ at position 4"), to=ORCHESTRATOR,
         epoch=4)

    good("tokens_one", "TOKENS", dict(base_length=3, tokens=[11], hash=hash_of(SEED, PROMPT + [11]), accepted=None),
         to=DRAFT)
    good("tokens_none", "TOKENS", dict(base_length=3, tokens=[], hash=hash_of(SEED, PROMPT), accepted=None), to=DRAFT)
    edges = [0, 127, 128, 255, 256, 32767, 32768, 65535, 65536, I32]
    good("tokens_edges", "TOKENS", dict(base_length=1, tokens=edges, hash=hash_of(SEED, [1] + edges), accepted=None),
         to=ORCHESTRATOR)
    good("tokens_burst_most", "TOKENS", dict(base_length=CONTEXT_MAX - 4096, tokens=[49151] * 4096,
                                             hash=b"\x33" * 16, accepted=None), to=DRAFT)
    good("tokens_accepted", "TOKENS", dict(base_length=3, tokens=[11, 12, 90], hash=hash_of(SEED, PROMPT + [11, 12, 90]),
                                           accepted=b"\x03"), to=ORCHESTRATOR)
    good("tokens_logprobs", "TOKENS", dict(base_length=3, tokens=[11, 12], hash=hash_of(SEED, PROMPT + [11, 12]),
                                           accepted=None, wanted=dict(logprob_tokens=[11, 11, 12, 90], logprobs=[
                                               f32(-0.1), f32(-0.1), f32(-2.5), -0.5])), to=ORCHESTRATOR)
    good("tokens_logprobs_unknown", "TOKENS", dict(base_length=3, tokens=[11], hash=hash_of(SEED, PROMPT + [11]), accepted=b"\0",
                                                   wanted=dict(logprob_tokens=[-1], logprobs=[0.0])), to=ORCHESTRATOR)
    good("tokens_logprobs_most", "TOKENS", dict(base_length=3, tokens=[I32] * 64, hash=hash_of(SEED, PROMPT + [I32] * 64), accepted=None,
                                                wanted=dict(logprob_tokens=[I32] * 1344, logprobs=[f32(-3.4028234663852886e38)] * 1344)),
         to=ORCHESTRATOR)
    clock = lambda us, **k: dict(dict(logprob_tokens=[], logprobs=[], plain_us=us), **k)
    good("tokens_plain_us", "TOKENS", dict(base_length=3, tokens=[11, 12, 90], hash=hash_of(SEED, PROMPT + [11, 12, 90]),
                                           accepted=b"\x03", wanted=clock(13250)), to=ORCHESTRATOR)
    good("tokens_plain_us_most", "TOKENS", dict(base_length=3, tokens=[11], hash=hash_of(SEED, PROMPT + [11]), accepted=b"\1",
                                                wanted=clock(U32)), to=ORCHESTRATOR)
    good("tokens_logprobs_plain_us", "TOKENS", dict(base_length=3, tokens=[11], hash=hash_of(SEED, PROMPT + [11]), accepted=b"\1",
                                                    wanted=clock(1, logprob_tokens=[11], logprobs=[-0.5])), to=ORCHESTRATOR)
    good("tokens_accepted_none", "TOKENS", dict(base_length=3, tokens=[11], hash=hash_of(SEED, PROMPT + [11]),
                                                accepted=b"\0"), to=ORCHESTRATOR)
    good("tokens_accepted_nine", "TOKENS", dict(base_length=3, tokens=[7] * 9, hash=hash_of(SEED, PROMPT + [7] * 9),
                                                accepted=b"\x7f\x01"), to=ORCHESTRATOR)
    good("tokens_accepted_most", "TOKENS", dict(base_length=1, tokens=[5] * 4096, hash=b"\x33" * 16,
                                                accepted=b"\xff" * 512), to=ORCHESTRATOR)
    good("tokens_accepted_empty", "TOKENS", dict(base_length=3, tokens=[11], hash=hash_of(SEED, PROMPT + [11]),
                                                 accepted=b""), to=ORCHESTRATOR)
    good("open_accepted_wanted", "OPEN", open_(accepted_wanted=True))
    wide = dict(base_length=3, tokens=[11, 200], hash=hash_of(SEED, PROMPT + [11, 200]), accepted=None)
    good("tokens_wide_integers", "TOKENS", wide, to=DRAFT,
         frame=head("TOKENS", 4, to=DRAFT) + b"\xcf" + struct.pack(">Q", 3) + b"\xdc\x00\x02" + b"\xd3" +
         struct.pack(">q", 11) + b"\xd1" + struct.pack(">h", 200) + pack(wide["hash"]) + b"\xc0")
    good("tokens_wide_envelope", "TOKENS", wide, to=DRAFT,
         frame=b"\xdd\x00\x00\x00\x08" + b"\xce\x00\x00\x00\x14" + b"\xc6\x00\x00\x00\x10" + DRAFT +
         b"\xcf" + struct.pack(">Q", 77) + b"\xd2\x00\x00\x00\x01" + b"".join(pack(v) for v in plain(wide, FIELDS["TOKENS"][:-1])))
    good("ack", "ACK", state(4))
    good("resend_first", "RESEND", {"from": 1})
    good("resend_most", "RESEND", {"from": CONTEXT_MAX})

    good("done_stop", "DONE", done(), to=ORCHESTRATOR)
    good("done_length", "DONE", done(finish=2, off_reason="speculation did not pay: 9.1 ms a token against 8.7"),
         to=ORCHESTRATOR)
    good("done_cancelled", "DONE", done(finish=3, stats=stats(accepted_per_pos=[])), to=ORCHESTRATOR)
    good("done_error", "DONE", done(finish=4, code=-19, text="the engine failed: open the session again"),
         to=ORCHESTRATOR)
    good("done_most", "DONE", done(**{k: CONTEXT_MAX if k == "length" else v for k, v in state(24).items()},
                                   stats={**{k: U64 for k in STATS}, "accepted_per_pos": [U64] * 64,
                                          "ahead": {k: U64 for k in AHEAD}}),
         to=ORCHESTRATOR)
    good("done_distinct", "DONE", done(stats={**{k: i + 1 for i, k in enumerate(STATS)}, "accepted_per_pos": [101, 102],
                                              "ahead": dict(verdicts=201, ahead_hits=202, survivors=203)}), to=ORCHESTRATOR)
    good("done_numbers", "DONE", done(numbers=dict(off=2, plain_us=5405)), to=ORCHESTRATOR)
    good("done_numbers_least", "DONE", done(numbers=dict(off=1, plain_us=0)), to=ORCHESTRATOR)
    good("done_numbers_most", "DONE", done(numbers=dict(off=U32, plain_us=U32)), to=ORCHESTRATOR)
    good("done_ahead_least", "DONE", done(stats=stats(ahead=dict(verdicts=1, ahead_hits=0, survivors=0))), to=ORCHESTRATOR)

    good("attach", "ATTACH", dict(state(3, PROMPT), ticket=TICKET, generation=0))
    good("attached", "ATTACHED", dict(state(4), generation=1), to=DRAFT)
    good("attached_generation_most", "ATTACHED", dict(state(1), generation=U32), to=DRAFT)
    good("nodes_tree", "NODES", nodes())
    good("nodes_none", "NODES", nodes(parents=[], tokens=[], scores=[], first_id=4))
    good("nodes_none_done", "NODES", nodes(parents=[], tokens=[], scores=[], first_id=4, done=True))
    good("nodes_one_done", "NODES", nodes(parents=[0], tokens=[11], scores=[0.0], done=True))
    good("nodes_siblings", "NODES", nodes(parents=[0] * 5, tokens=[1, 2, 3, 4, 5], scores=[-1.5] * 5))
    good("nodes_scores", "NODES", nodes(parents=[0, 1, 2, 3], tokens=[1, 2, 3, 4],
                                        scores=[0.0, -0.0, -100.0, f32(-1e-45)]))
    good("nodes_chain_most", "NODES", nodes(parents=list(range(1024)), tokens=[300] * 1024, scores=[-0.25] * 1024))
    good("nodes_id_most", "NODES", nodes(generation=U32, base_length=CONTEXT_MAX, first_id=2**63 - 1, parents=[2**63 - 2],
                                         tokens=[I32], scores=[-1.0]))
    wide = nodes(parents=[0], tokens=[11], scores=[-1.0], done=True)
    good("nodes_wide_integers", "NODES", wide,
         frame=head("NODES", 8) + b"\xd2" + struct.pack(">i", 1) + b"\xcd\x00\x03" + pack(wide["base_hash"]) +
         b"\xd0\x01" + b"\x91\xcc\x00" + b"\xdd\x00\x00\x00\x01\xcf" + struct.pack(">Q", 11) +
         b"\x91\xca\xbf\x80\x00\x00" + b"\xc3")
    good("tree_reset", "TREE_RESET", dict(generation=2), to=DRAFT)
    good("tree_reset_most", "TREE_RESET", dict(generation=U32), to=DRAFT)
    good("detach", "DETACH", dict(reason="cannot keep up with the target"))
    good("detach_silent", "DETACH", dict(reason=""), to=DRAFT)

    good("attach_request", "ATTACH", dict(state(3, PROMPT), ticket=TICKET, generation=0, request=request()))
    good("attach_request_fused", "ATTACH", dict(state(3, PROMPT), ticket=TICKET, generation=0,
                                                request=request(fc=b"\xfc" * 16, **{"from": 3})))
    good("attach_request_least", "ATTACH", dict(state(3, PROMPT), ticket=TICKET, generation=0,
                                                request=request(taps=[0], horizon=0)))
    good("attach_request_most", "ATTACH", dict(state(3, PROMPT), ticket=TICKET, generation=U32, request=request(
        taps=list(range(4089, 4097)), type=2, fc=b"\xff" * 16, horizon=4096, **{"from": CONTEXT_MAX})))
    good("attached_grant", "ATTACHED", dict(state(4), generation=1, grant=grant()), to=DRAFT)
    good("attached_grant_fused", "ATTACHED", dict(state(4), generation=1, grant=grant(
        width=65536, type=2, fused=True, **{"from": CONTEXT_MAX})), to=DRAFT)
    good("nodes_features", "NODES", nodes(features=3))
    good("nodes_features_most", "NODES", nodes(parents=[], tokens=[], scores=[], first_id=4, features=CONTEXT_MAX))
    good("features_bf16", "FEATURES", features(), to=DRAFT)
    good("features_f32", "FEATURES", features(type=2, count=1, rows=struct.pack("<4f", 1, -2, 0.5, 1e30)), to=DRAFT)
    good("features_lost", "FEATURES", features(base=9, count=0, rows=None), to=DRAFT)
    good("features_not_finite", "FEATURES", features(count=1, rows=b"\xff\x7f\x80\x7f\x80\xff\0\0"), to=DRAFT)
    good("features_most_bytes", "FEATURES", features(base=CONTEXT_MAX - 2048, count=2048, width=64, rows=b"\x3f" * 262144),
         to=DRAFT)
    good("features_most_width", "FEATURES", features(count=1, width=65536, type=2, rows=b"\0" * 262144), to=DRAFT)


# --- the worked session of the page ---

STORY = []


def step(name, way, kind, fields, why, session=None, epoch=None):
    to = {"O": ORCHESTRATOR, "T": TARGET, "D": DRAFT}[way[-1]] if kind != "HELLO" else ZERO
    entry = good("session_%02d_%s" % (len(STORY) + 1, name), kind, fields, to=to, session=session, epoch=epoch)
    STORY.append((way, entry, why))


def make_story():
    c = PROMPT
    h = lambda extra=(): hash_of(SEED, c + list(extra))
    at = lambda extra=(): dict(length=len(c) + len(extra), hash=h(extra))
    no = lambda base, next_id, last=False: dict(generation=1, base_length=len(c) + len(base), base_hash=h(base),
                                                first_id=next_id, parents=[], tokens=[], scores=[], done=last)
    target = hello_target(endpoint="tcp://127.0.0.1:41007")
    step("hello", "T→O", "HELLO", target, "The target registers. `to` is zero: it does not know the orchestrator yet.")
    step("welcome", "O→T", "WELCOME", welcome(hello_orchestrator()), "Version 3 is chosen.")
    step("hello", "D→O", "HELLO", hello(), "The draft registers. It takes any vocabulary.")
    step("welcome", "O→D", "WELCOME", welcome(hello_orchestrator()), "")
    step("open", "O→T", "OPEN", open_(options=options(max_tokens=4, stops=[2]), accepted_wanted=True),
         "A request: prompt [1, 504, 2365], at most 4 tokens of output, stop token 2, a draft will come. TOKENS shall "
         "say which tokens are accepted ones.")
    step("opened", "T→O", "OPENED", at(), "The target holds the 3 tokens and has computed the same hash.")
    step("open", "O→D", "OPEN", open_(options=options(max_tokens=4, stops=[2]), draft_expected=False,
                                      target_endpoint=target["endpoint"], target_incarnation=TARGET),
         "The same session at the draft, with the target's address and incarnation.")
    step("opened", "D→O", "OPENED", at(), "")
    step("hello", "D→T", "HELLO", hello(), "The draft connects to the target.")
    step("welcome", "T→D", "WELCOME", welcome(target), "")
    step("attach", "D→T", "ATTACH", dict(at(), ticket=TICKET, generation=0), "It shows the ticket of OPEN.")
    step("attached", "T→D", "ATTACHED", dict(at(), generation=1), "Ids count from 1 in generation 1.")
    step("nodes", "D→T", "NODES", dict(no([], 1), parents=[0, 1, 0], tokens=[11, 12, 40],
                                       scores=[f32(-0.1), f32(-0.5), -3.0]),
         "Three nodes: 11 after the prompt (id 1), 12 after that (id 2), and 40 beside 11 (id 3).")
    step("tokens", "T→D", "TOKENS", dict(base_length=3, tokens=[11, 12, 90], hash=h([11, 12, 90]), accepted=None),
         "One verify: 11 and 12 were right, 90 is the bonus. C has 6 tokens; the nodes 1 and 2 are trunk, 3 is dead.")
    step("tokens", "T→O", "TOKENS", dict(base_length=3, tokens=[11, 12, 90], hash=h([11, 12, 90]), accepted=b"\x03"),
         "The same to the orchestrator, which has asked: the first two are accepted ones.")
    step("ack", "O→T", "ACK", at([11, 12, 90]), "They are in the ledger.")
    step("nodes", "D→T", "NODES", dict(no([11, 12, 90], 4), parents=[0], tokens=[91], scores=[f32(-0.2)], done=True),
         "Base 6: parent 0 means the token at position 5. Id 4 goes on from id 3. Nothing more will come for this base.")
    step("tokens", "T→D", "TOKENS", dict(base_length=6, tokens=[91], hash=h([11, 12, 90, 91]), accepted=None),
         "91 is the fourth and last token of output. There was room for one token only, so this was a plain step: "
         "nodes could not have added to it.")
    step("tokens", "T→O", "TOKENS", dict(base_length=6, tokens=[91], hash=h([11, 12, 90, 91]), accepted=b"\0"), "")
    step("done", "T→O", "DONE", dict(at([11, 12, 90, 91]), finish=2, code=0, text="", off_reason="",
                                     stats=stats(forwards=2, rounds=1, rows=3, accepted=2, rewound=1, plain_steps=1,
                                                 dropped=0, accepted_per_pos=[1, 1])),
         "4 tokens = 2 forwards + 2 accepted.")
    step("ack", "O→T", "ACK", at([11, 12, 90, 91]), "")
    step("end", "O→T", "END", {}, "The request is over: the session is released.")
    step("end", "O→D", "END", {}, "At the draft as well.")
    step("ended", "T→O", "ENDED", dict(existed=True), "")
    step("detach", "D→T", "DETACH", dict(reason="the session has ended"),
         "Politeness. The target has already forgotten the session and answers ERROR(gone), which the draft ignores.")
    step("ended", "D→O", "ENDED", dict(existed=True), "")


# --- bad frames ---

BAD = []
PROTOCOL, LIMIT, VERSION = "protocol", "limit", "version"


def bad(name, rule, frame, where="", code=PROTOCOL):
    """rule and where: what the error's text begins with and names."""
    assert name not in [b["name"] for b in BAD], name
    assert (rule, where) not in [(b["rule"], b["where"]) for b in BAD], (rule, where)
    BAD.append({"name": name, "rule": rule, "where": where, "code": code, "bytes": frame})


def broken(kind, fields, path, value, to=TARGET, session=77, epoch=1):
    """A good message with one field (a path of names and indices) replaced, not checked by anything."""
    fields = json_copy(fields)
    at = fields
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    if kind in ("HELLO", "WELCOME", "PING", "PONG", "BYE"):
        session = epoch = 0
    if kind == "HELLO":
        to = ZERO
    return pack(message(kind, to, session, epoch, fields))


def json_copy(value):
    if isinstance(value, dict):
        return {k: json_copy(v) for k, v in value.items()}
    return list(value) if isinstance(value, list) else value


def cut(frame, count):
    """The frame with its last `count` values gone and the outer count made to fit."""
    values = msgpack.unpackb(frame)
    return pack(values[:-count])


def make_bad():
    ack = pack(message("ACK", TARGET, 77, 1, state(4)))
    to, rest = pack(TARGET), b"\x4d\x01"

    # Frames that are not of the right build.
    bad("frame_empty", "R-FRAME-CUT", b"", "frame ends")
    bad("frame_size", "R-FRAME-SIZE", b"\xdd\x00\x10\x00\x00" + b"\x00" * 1048576, "frame has", LIMIT)
    bad("frame_cut_in_integer", "R-FRAME-CUT", b"\x95\x15" + to + b"\x4d\xce\x00\x00", "frame ends in")
    bad("frame_cut_bin", "R-FRAME-COUNT", ack[:-1], "16 entries or bytes, 15")
    bad("frame_array_hungry", "R-FRAME-COUNT", b"\x98\x14" + to + rest + b"\x03\xdd\xff\xff\xff\xff", "4294967295 entries")
    bad("frame_bin_hungry", "R-FRAME-COUNT", b"\x98\x14" + to + rest + b"\x03\x90\xc6\xff\xff\xff\xfe", "4294967294 entries")
    bad("frame_str_hungry", "R-FRAME-COUNT", b"\x95\x22" + to + rest + b"\xdb\x7f\xff\xff\xff", "2147483647 entries")
    bad("frame_trailing", "R-FRAME-TRAIL", ack + b"\xc0", "1 bytes after")
    bad("frame_two_messages", "R-FRAME-TRAIL", ack + ack, "%d bytes after" % len(ack))
    bad("frame_nil", "R-FRAME-ARRAY", b"\xc0", "is not an array")
    bad("frame_bin", "R-FRAME-ARRAY", b"\xc4\x01\x00", "frame")
    bad("frame_map", "R-FRAME-MAP", pack({"type": 21}), "frame holds a map")
    bad("frame_map_inside", "R-FRAME-MAP", pack([20, TARGET, 77, 1, 3, {}, ZERO, None]), "frame")
    bad("frame_ext", "R-FRAME-EXT", pack([22, TARGET, 77, 1, msgpack.ExtType(5, b"x")]), "frame holds an ext")
    bad("frame_timestamp", "R-FRAME-EXT", pack([22, TARGET, 77, 1, msgpack.Timestamp(1, 0)]), "frame")
    bad("frame_byte_c1", "R-FRAME-BYTE", b"\x95\x16" + to + rest + b"\xc1", "frame")
    bad("frame_float64", "R-FRAME-FLOAT", b"\x95\x16" + to + rest + b"\xcb" + struct.pack(">d", 1.0), "frame")
    bad("frame_deep", "R-FRAME-DEPTH", b"\x91" * 9 + b"\x00", "frame nests", LIMIT)
    bad("frame_deep_inside", "R-FRAME-DEPTH", b"\x95\x16" + to + rest + b"\x91" * 8 + b"\x00", "frame", LIMIT)
    bad("frame_deep_empty", "R-FRAME-DEPTH", b"\x91" * 8 + b"\x90", "frame nests arrays", LIMIT)
    bad("frame_bottomless", "R-FRAME-DEPTH", b"\x91" * 100000, "deeper than 8", LIMIT)

    # The envelope.
    bad("envelope_empty", "R-ENVELOPE", b"\x90", "has 0 entries")
    bad("envelope_short", "R-ENVELOPE", pack([21, TARGET, 77]), "has 3 entries")
    bad("type_text", "R-TYPE", pack(["ACK", TARGET, 77, 1] + plain(state(4), FIELDS["ACK"])), "envelope.type")
    bad("type_negative", "R-INT-LOW", pack([-1, TARGET, 77, 1]), "envelope.type")
    bad("type_zero", "R-MESSAGE-TYPE", pack([0, TARGET, 77, 1]), "type 0")
    bad("type_between", "R-MESSAGE-TYPE", pack([7, TARGET, 77, 1]), "type 7")
    bad("type_beyond", "R-MESSAGE-TYPE", pack([36, TARGET, 77, 1]), "type 36")
    bad("to_text", "R-TYPE", pack([21, "0123456789abcdef", 77, 1] + plain(state(4), FIELDS["ACK"])), "envelope.to")
    bad("to_short", "R-BIN16", pack([21, bytes(15), 77, 1] + plain(state(4), FIELDS["ACK"])), "envelope.to")
    bad("to_zero", "R-TO", pack([21, ZERO, 77, 1] + plain(state(4), FIELDS["ACK"])), "ACK")
    bad("hello_to", "R-TO", pack(message("HELLO", TARGET, 0, 0, hello())), "HELLO")
    bad("session_negative", "R-INT-LOW", pack([21, TARGET, -1, 1] + plain(state(4), FIELDS["ACK"])), "envelope.session")
    bad("session_zero", "R-SESSION", pack([21, TARGET, 0, 1] + plain(state(4), FIELDS["ACK"])), "ACK")
    bad("ping_session", "R-SESSION", pack([4, TARGET, 1, 0, 1, 2, 0]), "PING")
    bad("epoch_large", "R-INT-HIGH", pack([21, TARGET, 77, 2**32] + plain(state(4), FIELDS["ACK"])), "envelope.epoch", LIMIT)
    bad("epoch_bool", "R-TYPE", pack([21, TARGET, 77, True] + plain(state(4), FIELDS["ACK"])), "envelope.epoch")

    # Numbers of fields.
    bad("ack_field_missing", "R-FIELDS", cut(ack, 1), "ACK has 5")
    bad("ack_field_extra", "R-FIELDS", pack(msgpack.unpackb(ack) + [0]), "ACK has 7")
    bad("bye_field", "R-FIELDS", pack([6, TARGET, 0, 0, None]), "BYE")
    bad("hello_no_versions", "R-FIELDS", pack([1, ZERO, 0, 0, "tandem", 1]), "HELLO has 6")
    bad("hello_field_missing", "R-FIELDS", cut(pack(message("HELLO", ZERO, 0, 0, hello())), 1), "HELLO has 19")
    short = open_()
    frame = message("OPEN", TARGET, 77, 1, short)
    frame[4 + FIELDS["OPEN"].index("options")] = group(options(), "options")[:-1]
    bad("options_field_missing", "R-FIELDS", pack(frame), "OPEN.options has 13")
    frame[4 + FIELDS["OPEN"].index("options")] = group(options(extras=extras()), "options") + [0]
    bad("options_field_extra", "R-FIELDS", pack(frame), "OPEN.options has 16")
    frame[4 + FIELDS["OPEN"].index("options")] = group(options(extras=0), "options")[:-1] + [group(extras(grammar=b"#", partial=partial()), "extras") + [0]]
    bad("extras_field_extra", "R-FIELDS", pack(frame), "OPEN.options.extras has 8")
    frame = message("DONE", ORCHESTRATOR, 77, 1, done())
    ahead = dict(verdicts=9, ahead_hits=5, survivors=11)
    frame[4 + FIELDS["DONE"].index("stats")] = group(stats(ahead=ahead), "stats") + [0]
    bad("stats_field_extra", "R-FIELDS", pack(frame), "DONE.stats has 17")
    frame[4 + FIELDS["DONE"].index("stats")] = group(stats(), "stats")[:-1]
    bad("stats_field_missing", "R-FIELDS", pack(frame), "DONE.stats has 14")
    frame[4 + FIELDS["DONE"].index("stats")] = group(stats(), "stats") + [list(ahead.values())[:-1]]
    bad("ahead_field_missing", "R-FIELDS", pack(frame), "DONE.stats.ahead has 2")

    # HELLO and WELCOME.
    h = lambda path, value, **k: broken("HELLO", hello(**k), path, value)
    bad("hello_magic", "R-HELLO-MAGIC", h(["magic"], "Tandem"), "HELLO.magic")
    bad("welcome_magic_bin", "R-HELLO-MAGIC", broken("WELCOME", welcome(hello_target()), ["magic"], b"tandem", to=DRAFT), "WELCOME.magic")
    bad("hello_version_zero", "R-HELLO-RANGE", h(["version_min"], 0), "versions 0 to 5")
    bad("hello_version_turned", "R-HELLO-RANGE", h(["version_min"], 6, version_max=5), "versions 6 to 5")
    bad("hello_version_later", "R-HELLO-VERSION", h(["version_min"], 6, version_max=7), "versions 6 to 7, this program 2 to 5", VERSION)
    old = [v for k, v in hello().items() if k not in ("host", "device")]
    old[1:3] = 1, 1
    bad("hello_version_earlier", "R-HELLO-VERSION", pack([1, ZERO, 0, 0] + old), "versions 1 to 1", VERSION)
    bad("hello_version_later_fields", "R-HELLO-VERSION", pack([1, ZERO, 0, 0, "tandem", 9, 9, ["what", "ever"]]),
        "versions 9 to 9", VERSION)
    bad("welcome_version", "R-HELLO-VERSION", broken("WELCOME", hello_target(version_max=6), ["version_min"], 6, to=DRAFT),
        "WELCOME speaks", VERSION)
    bad("welcome_two_versions", "R-WELCOME-VERSION", broken("WELCOME", hello_target(), ["version_min"], 2, to=DRAFT), "versions 2 and 5")
    wh = lambda value: broken("WELCOME", welcome(hello_orchestrator(model_hash=WHOLE)), ["model_hash"], value, to=TARGET)
    bad("welcome_hash_zero", "R-LEFT-OUT", wh(ZERO), "WELCOME.model_hash is given")
    bad("welcome_hash_short", "R-BIN16", wh(bytes(15)), "WELCOME.model_hash")
    bad("hello_hash", "R-FIELDS", pack(message("HELLO", ZERO, 0, 0, hello()) + [WHOLE]), "HELLO has 21")
    bad("hello_incarnation_zero", "R-HELLO-INCARNATION", h(["incarnation"], ZERO), "incarnation")
    bad("hello_role_zero", "R-ENUM", h(["role"], 0), "HELLO.role is 0")
    bad("hello_role_beyond", "R-ENUM", h(["role"], 4), "HELLO.role is 4")
    bad("hello_role_text", "R-TYPE", h(["role"], "draft"), "HELLO.role")
    bad("hello_fingerprint_long", "R-BIN16", h(["model_fingerprint"], bytes(17)), "HELLO.model_fingerprint")
    bad("hello_vocabulary_text", "R-TYPE", h(["vocabulary_hash"], VOCABULARY.hex()[:16]), "HELLO.vocabulary_hash")
    bad("hello_vocabulary_negative", "R-INT-LOW", h(["vocabulary_size"], -1), "HELLO.vocabulary_size")
    bad("hello_numerics_nil", "R-TYPE", h(["numerics_id"], None), "HELLO.numerics_id")
    bad("hello_endpoint_long", "R-STRING-LIMIT", h(["endpoint"], "x" * 513), "HELLO.endpoint", LIMIT)
    raw = lambda text: b"\xdc\x00\x14" + b"".join(pack(v) for v in [1, ZERO, 0, 0]) + \
        b"".join(bytes([0xa0 | len(text)]) + text if k == "method" else pack(hello()[k]) for k in FIELDS["HELLO"])
    bad("hello_method_latin1", "R-STRING-TEXT", raw(b"na\xefve"), "HELLO.method is not clean UTF-8 at byte 2")
    bad("hello_method_surrogate", "R-STRING-TEXT", raw(b"\xed\xa0\x80"), "HELLO.method is not clean UTF-8 at byte 0")
    bad("hello_method_overlong", "R-STRING-TEXT", raw(b"abc\xc0\xaf"), "HELLO.method is not clean UTF-8 at byte 3")
    bad("hello_method_beyond_unicode", "R-STRING-TEXT", raw(b"a\xf4\x90\x80\x80"), "HELLO.method is not clean UTF-8 at byte 1")
    bad("hello_method_cut", "R-STRING-TEXT", raw(b"abcd\xe2\x82"), "HELLO.method is not clean UTF-8 at byte 4")
    bad("hello_method_third_byte", "R-STRING-TEXT", raw(b"abcdef\xe2\x82A"), "HELLO.method is not clean UTF-8 at byte 6")
    bad("hello_method_newline", "R-STRING-TEXT", raw(b"abcde\n"), "HELLO.method is not clean UTF-8 at byte 5")
    bad("hello_session_max_large", "R-INT-HIGH", h(["session_max"], 2**31), "HELLO.session_max", LIMIT)
    bad("hello_host_nil", "R-TYPE", h(["host"], None), "HELLO.host")
    bad("hello_host_short", "R-BIN16", h(["host"], HOST[:8]), "HELLO.host")
    bad("welcome_host_text", "R-TYPE", broken("WELCOME", welcome(hello_target()), ["host"], HOST.hex()[:16], to=DRAFT), "WELCOME.host")
    bad("hello_device_nil", "R-TYPE", h(["device"], None), "HELLO.device")
    bad("hello_device_long", "R-STRING-LIMIT", h(["device"], "d" * 513), "HELLO.device", LIMIT)
    bad("hello_device_control", "R-STRING-TEXT", h(["device"], "cpu\n"), "HELLO.device is not clean UTF-8 at byte 3")

    # ERROR, PING.
    e = dict(code=-10, text="x")
    bad("error_code_zero", "R-ERROR-CODE", broken("ERROR", e, ["code"], 0), "code 0")
    bad("error_code_positive", "R-ENUM", broken("ERROR", e, ["code"], 7), "ERROR.code")
    bad("error_text_long", "R-STRING-LIMIT", broken("ERROR", e, ["text"], "y" * 70000), "ERROR.text", LIMIT)
    bad("error_text_control", "R-STRING-TEXT", broken("ERROR", e, ["text"], "a\x1b[31m"), "ERROR.text")
    bad("error_text_c1_control", "R-STRING-TEXT", broken("ERROR", e, ["text"], "\u009b31m"), "at byte 0")
    p = dict(sequence=1, time_us=2, load=0)
    bad("ping_load", "R-PING-LOAD", broken("PING", p, ["load"], 1), "load 1")
    bad("ping_sequence_float", "R-TYPE", broken("PING", p, ["sequence"], 1.0), "PING.sequence")
    bad("ping_time_negative", "R-INT-LOW", broken("PING", p, ["time_us"], -1), "PING.time_us")
    bad("pong_load_negative", "R-INT-LOW", broken("PONG", p, ["load"], -3), "PONG.load")

    # OPEN.
    o = lambda path, value, **k: broken("OPEN", open_(**k), path, value)
    bad("open_ticket_short", "R-BIN16", o(["ticket"], bytes(8)), "OPEN.ticket")
    bad("open_seed_negative", "R-INT-LOW", o(["hash_seed"], -5), "OPEN.hash_seed")
    bad("open_base_negative", "R-INT-LOW", o(["base_length"], -1), "OPEN.base_length")
    bad("open_base_large", "R-INT-HIGH", o(["base_length"], CONTEXT_MAX + 1), "OPEN.base_length", LIMIT)
    bad("open_base_hash_zero_length", "R-OPEN-BASE", o(["base_hash"], b"\1" * 16), "base_length is 0")
    bad("open_empty", "R-OPEN-EMPTY", o(["tokens"], []), "empty")
    bad("open_too_long", "R-OPEN-LENGTH", o(["base_length"], CONTEXT_MAX), "pass 1048576", LIMIT)
    bad("open_prompt_beyond", "R-OPEN-PROMPT", o(["prompt_length"], 4), "prompt_length 4")
    bad("open_prompt_zero", "R-INT-LOW", o(["prompt_length"], 0), "OPEN.prompt_length")
    bad("open_tokens_nil", "R-TYPE", o(["tokens"], None), "OPEN.tokens is")
    bad("open_token_negative", "R-INT-LOW", o(["tokens", 1], -1), "OPEN.tokens[1]")
    bad("open_token_large", "R-INT-HIGH", o(["tokens", 2], 2**31), "OPEN.tokens[2]", LIMIT)
    bad("open_token_nested", "R-TYPE", o(["tokens", 0], [1]), "OPEN.tokens[0]")
    bad("open_tokens_many", "R-LIST-LIMIT", o(["tokens"], [1] * 131073), "OPEN.tokens", LIMIT)
    bad("open_options_bin", "R-TYPE", o(["hash_seed"], 1, tokens=[5]).replace(pack(group(options(), "options")), pack(b"")), "OPEN.options is")
    a = lambda path, value: o(["options", "extras", *path], value, options=options(extras=extras()))
    bad("open_extras_empty", "R-LEFT-OUT", pack(message("OPEN", TARGET, 77, 1, open_(options=options(extras=extras(
        presence_penalty=0.0, frequency_penalty=0.0, bias_tokens=[], bias_values=[]))))), "OPEN.options.extras is given")
    bad("open_extras_nil", "R-TYPE", o(["options", "extras"], None, options=options(extras=extras())), "OPEN.options.extras is")
    bad("open_presence_nan", "R-FLOAT", a(["presence_penalty"], float("nan")), "OPEN.extras.presence_penalty")
    bad("open_frequency_integer", "R-TYPE", a(["frequency_penalty"], 1), "OPEN.extras.frequency_penalty")
    bad("open_bias_token_negative", "R-INT-LOW", a(["bias_tokens", 1], -1), "OPEN.extras.bias_tokens[1]")
    bad("open_bias_value_infinite", "R-FLOAT", a(["bias_values", 0], float("inf")), "OPEN.extras.bias_values[0]")
    bad("open_bias_value_missing", "R-LIST-SAME", a(["bias_values"], [1.0]), "OPEN.extras.bias_values has 1")
    bad("open_logprobs_many", "R-INT-HIGH", a(["logprobs"], 22), "OPEN.extras.logprobs", LIMIT)
    bad("open_logprobs_negative", "R-INT-LOW", a(["logprobs"], -1), "OPEN.extras.logprobs")
    g = lambda value: o(["options", "extras", "grammar"], value, options=options(extras=extras(grammar=b"#")))
    bad("open_grammar_nil", "R-LEFT-OUT", g(None), "OPEN.extras.grammar is given")
    bad("open_grammar_text", "R-TYPE", g("root"), "OPEN.extras.grammar is")
    bad("open_grammar_large", "R-BLOB-LIMIT", g(b"#" * 65537), "OPEN.extras.grammar has 65537", LIMIT)
    p = lambda path, value: o(["options", "extras", "partial", *path], value, options=options(extras=extras(grammar=None, partial=partial())))
    bad("open_partial_nil", "R-TYPE", p([], None), "OPEN.extras.partial is")
    bad("open_partial_own", "R-LEFT-OUT", p(["mode"], 0), "OPEN.extras.partial is given")
    bad("open_partial_mode", "R-ENUM", p(["mode"], 4), "OPEN.partial.mode")
    bad("open_partial_sink_negative", "R-INT-LOW", p(["sink"], -1), "OPEN.partial.sink")
    bad("open_bias_many", "R-LIST-LIMIT", a(["bias_tokens"], [1] * 513), "OPEN.extras.bias_tokens", LIMIT)
    bad("open_temperature_integer", "R-TYPE", o(["options", "temperature"], 1), "OPEN.options.temperature")
    bad("open_temperature_nan", "R-FLOAT", o(["options", "temperature"], float("nan")), "OPEN.options.temperature")
    bad("open_top_p_infinite", "R-FLOAT", o(["options", "top_p"], float("inf")), "OPEN.options.top_p")
    bad("open_min_p_infinite", "R-FLOAT", o(["options", "min_p"], float("-inf")), "OPEN.options.min_p")
    bad("open_repeat_penalty_nil", "R-TYPE", o(["options", "repeat_penalty"], None), "OPEN.options.repeat_penalty")
    bad("open_top_k_large", "R-INT-HIGH", o(["options", "top_k"], 2**31), "OPEN.options.top_k", LIMIT)
    bad("open_top_k_low", "R-INT-LOW", o(["options", "top_k"], -2**31 - 1), "OPEN.options.top_k")
    bad("open_choice_large", "R-INT-HIGH", o(["options", "choice"], 2**32), "OPEN.options.choice", LIMIT)
    bad("open_max_tokens_zero", "R-INT-LOW", o(["options", "max_tokens"], 0), "OPEN.options.max_tokens")
    bad("open_context_zero", "R-INT-LOW", o(["options", "context"], 0), "OPEN.options.context")
    bad("open_context_large", "R-INT-HIGH", o(["options", "context"], CONTEXT_MAX + 1), "OPEN.options.context", LIMIT)
    bad("open_stops_many", "R-LIST-LIMIT", o(["options", "stops"], [2] * 33), "OPEN.options.stops", LIMIT)
    bad("open_stop_negative", "R-INT-LOW", o(["options", "stops"], [2, -2]), "OPEN.options.stops[1]")
    bad("open_budget_large", "R-INT-HIGH", o(["options", "budget"], 65), "OPEN.options.budget", LIMIT)
    bad("open_lockstep_integer", "R-TYPE", o(["options", "lockstep"], 1), "OPEN.options.lockstep")
    bad("open_selfcheck_negative", "R-INT-LOW", o(["options", "selfcheck"], -1), "OPEN.options.selfcheck")
    bad("open_draft_expected_nil", "R-TYPE", o(["draft_expected"], None), "OPEN.draft_expected")
    bad("open_target_half", "R-OPEN-TARGET", o(["target_endpoint"], "ipc:///tmp/t"), "both or neither")
    bad("open_target_incarnation_half", "R-OPEN-TARGET", o(["target_incarnation"], TARGET), "target_incarnation")
    bad("open_target_endpoint_long", "R-STRING-LIMIT", o(["target_endpoint"], "x" * 600), "OPEN.target_endpoint", LIMIT)

    # PART.
    k = lambda path, value, **c: broken("PART", part(**c), path, value)
    bad("part_total_missing", "R-FIELDS", pack(message("OPEN", TARGET, 77, 1, open_())).replace(b"\x0a", b"\x0f", 1),
        "PART has 15")
    bad("part_total_reached", "R-PART-TOTAL", k(["total"], 3, prompt_length=3), "total of 3 is not beyond")
    bad("part_total_passed", "R-PART-TOTAL", k(["total"], 2, prompt_length=2), "total of 2 is not beyond")
    bad("part_total_zero", "R-INT-LOW", k(["total"], 0), "PART.total")
    bad("part_total_large", "R-INT-HIGH", k(["total"], CONTEXT_MAX + 1), "PART.total", LIMIT)
    bad("part_total_bool", "R-TYPE", k(["total"], True), "PART.total is")
    bad("part_length_wraps", "R-PART-TOTAL", k(["base_length"], CONTEXT_MAX, base_hash=b"\1" * 16, total=CONTEXT_MAX),
        "total of 1048576 is not beyond")
    bad("part_prompt_beyond", "R-OPEN-PROMPT", k(["prompt_length"], 10), "prompt_length 10")
    bad("part_empty", "R-OPEN-EMPTY", k(["tokens"], []), "prefix is empty")
    bad("part_base_hash_zero_length", "R-OPEN-BASE", k(["base_hash"], b"\1" * 16), "base_length is 0 but")
    bad("part_tokens_many", "R-LIST-LIMIT", k(["tokens"], [1] * 131073, total=CONTEXT_MAX), "PART.tokens", LIMIT)
    bad("part_without_session", "R-SESSION", pack(message("PART", TARGET, 0, 0, part())), "PART")

    # States of a session.
    bad("opened_length_zero", "R-INT-LOW", broken("OPENED", state(3), ["length"], 0), "OPENED.length")
    bad("ack_length_large", "R-INT-HIGH", broken("ACK", state(3), ["length"], CONTEXT_MAX + 1), "ACK.length", LIMIT)
    bad("ack_hash_nil", "R-TYPE", broken("ACK", state(3), ["hash"], None), "ACK.hash")
    bad("ended_integer", "R-TYPE", broken("ENDED", dict(existed=True), ["existed"], 1), "ENDED.existed")
    d = dict(length=0, hash=ZERO, reason="r")
    bad("desync_length_negative", "R-INT-LOW", broken("DESYNC", d, ["length"], -1), "DESYNC.length")
    bad("desync_empty_hash", "R-DESYNC-HASH", broken("DESYNC", d, ["hash"], b"\2" * 16), "length is 0")
    bad("desync_reason_bin", "R-TYPE", broken("DESYNC", d, ["reason"], b"r"), "DESYNC.reason")
    bad("resend_zero", "R-INT-LOW", broken("RESEND", {"from": 1}, ["from"], 0), "RESEND.from")
    a = dict(state(3), ticket=TICKET, generation=0)
    bad("attach_length_zero", "R-INT-LOW", broken("ATTACH", a, ["length"], 0), "ATTACH.length")
    bad("attach_ticket_long", "R-BIN16", broken("ATTACH", a, ["ticket"], bytes(32)), "ATTACH.ticket")
    a = dict(state(3), generation=1)
    bad("attached_generation_large", "R-INT-HIGH", broken("ATTACHED", a, ["generation"], 2**32), "ATTACHED.generation", LIMIT)
    bad("tree_reset_negative", "R-INT-LOW", broken("TREE_RESET", dict(generation=2), ["generation"], -2**63), "TREE_RESET.generation")
    bad("detach_reason_long", "R-STRING-LIMIT", broken("DETACH", dict(reason=""), ["reason"], "x" * 513), "DETACH.reason", LIMIT)

    # TOKENS.
    t = dict(base_length=3, tokens=[11, 12], hash=hash_of(SEED, PROMPT + [11, 12]), accepted=None)
    tk = lambda path, value, **k: broken("TOKENS", dict(t, **k), path, value)
    bad("tokens_base_zero", "R-INT-LOW", tk(["base_length"], 0), "TOKENS.base_length")
    bad("tokens_many", "R-LIST-LIMIT", tk(["tokens"], [0] * 4097), "TOKENS.tokens", LIMIT)
    bad("tokens_token_large", "R-INT-HIGH", tk(["tokens", 1], U64), "TOKENS.tokens[1]", LIMIT)
    bad("tokens_token_float", "R-TYPE", tk(["tokens", 0], 11.0), "TOKENS.tokens[0]")
    bad("tokens_too_long", "R-TOKENS-LENGTH", tk(["base_length"], CONTEXT_MAX - 1), "pass 1048576", LIMIT)
    lp = dict(logprob_tokens=[11, -1], logprobs=[f32(-0.1), 0.0])
    bad("tokens_logprobs_empty", "R-LEFT-OUT", tk(["wanted"], dict(logprob_tokens=[], logprobs=[])), "TOKENS.wanted is given")
    bad("tokens_logprobs_token_low", "R-INT-LOW", tk(["wanted"], dict(lp, logprob_tokens=[11, -2])), "TOKENS.wanted.logprob_tokens[1]")
    bad("tokens_logprobs_infinite", "R-FLOAT", tk(["wanted"], dict(lp, logprobs=[0.0, float("-inf")])), "TOKENS.wanted.logprobs[1]")
    bad("tokens_logprobs_fewer", "R-LIST-SAME", tk(["wanted"], dict(lp, logprobs=[0.0])), "TOKENS.wanted.logprobs has 1")
    bad("tokens_logprobs_uneven", "R-TOKENS-LOGPROBS", tk(["wanted"], dict(logprob_tokens=[11] * 3, logprobs=[0.0] * 3)), "2 tokens have 3")
    bad("tokens_logprobs_each_many", "R-TOKENS-LOGPROBS", tk(["wanted"], dict(logprob_tokens=[11] * 44, logprobs=[0.0] * 44)), "2 tokens have 44")
    bad("tokens_logprobs_many", "R-LIST-LIMIT", tk(["wanted"], dict(logprob_tokens=[11] * 1345, logprobs=[0.0] * 1345)), "TOKENS.wanted.logprob_tokens", LIMIT)
    clock = lambda us: dict(logprob_tokens=[], logprobs=[], plain_us=us)
    bad("tokens_plain_us_zero", "R-LEFT-OUT", tk(["wanted"], clock(0)), "TOKENS.wanted.plain_us is given")
    bad("tokens_plain_us_large", "R-INT-HIGH", tk(["wanted"], clock(U32 + 1)), "TOKENS.wanted.plain_us", LIMIT)
    bad("tokens_plain_us_negative", "R-INT-LOW", tk(["wanted"], clock(-1)), "TOKENS.wanted.plain_us")
    bad("tokens_plain_us_float", "R-TYPE", tk(["wanted"], clock(1.0)), "TOKENS.wanted.plain_us")
    bad("tokens_hash_short", "R-BIN16", tk(["hash"], b""), "TOKENS.hash")
    bad("tokens_accepted_text", "R-TYPE", tk(["accepted"], "accepted"), "TOKENS.accepted")
    bad("tokens_accepted_false", "R-TYPE", tk(["accepted"], False).replace(b"\xc4\x10" + TARGET, b"\xc4\x10" + DRAFT), "nil or a bin")
    bad("tokens_accepted_most", "R-BLOB-LIMIT", tk(["accepted"], b"\1" * 513), "513 bytes", LIMIT)
    bad("tokens_accepted_long", "R-TOKENS-ACCEPTED", tk(["accepted"], b"\x01\x00"), "0 or 1 for 2")
    bad("tokens_accepted_short", "R-TOKENS-ACCEPTED", tk(["accepted"], b"\x01", tokens=[11] * 9), "0 or 2 for 9")
    bad("tokens_accepted_beyond", "R-TOKENS-ACCEPTED", tk(["accepted"], b"\x04"), "beyond its 2")
    bad("tokens_accepted_without_tokens", "R-TOKENS-ACCEPTED", tk(["accepted"], b"\0", tokens=[]), "0 or 0 for 0")
    bad("open_accepted_wanted_nil", "R-TYPE", broken("OPEN", open_(accepted_wanted=True), ["accepted_wanted"], None), "OPEN.accepted_wanted is")
    bad("open_accepted_wanted_false", "R-LEFT-OUT", broken("OPEN", open_(accepted_wanted=True), ["accepted_wanted"], False),
        "OPEN.accepted_wanted is given")

    # NODES.
    n = lambda path, value, **k: broken("NODES", nodes(**k), path, value)
    bad("nodes_generation_negative", "R-INT-LOW", n(["generation"], -1), "NODES.generation")
    bad("nodes_base_zero", "R-INT-LOW", n(["base_length"], 0), "NODES.base_length")
    bad("nodes_base_hash_text", "R-TYPE", n(["base_hash"], "0" * 16), "NODES.base_hash")
    bad("nodes_id_zero", "R-INT-LOW", n(["first_id"], 0, parents=[], tokens=[], scores=[]), "NODES.first_id")
    bad("nodes_id_large", "R-INT-HIGH", n(["first_id"], 2**63), "NODES.first_id", LIMIT)
    bad("nodes_parent_self", "R-NODES-PARENT", n(["parents", 1], 2), "parents[1] is 2")
    bad("nodes_parent_later", "R-NODES-PARENT", n(["parents", 0], 3), "parents[0] is 3")
    bad("nodes_parent_negative", "R-INT-LOW", n(["parents", 2], -1), "NODES.parents[2]")
    bad("nodes_parents_nil", "R-TYPE", n(["parents"], None), "NODES.parents is")
    bad("nodes_parents_many", "R-LIST-LIMIT", n(["parents"], [0] * 1025), "NODES.parents", LIMIT)
    bad("nodes_tokens_fewer", "R-LIST-SAME", n(["tokens"], [11, 12]), "NODES.tokens")
    bad("nodes_tokens_more", "R-LIST-SAME", n(["tokens"], [11, 12, 13, 14]), "NODES.tokens has 4")
    bad("nodes_scores_none", "R-LIST-SAME", n(["scores"], []), "NODES.scores")
    bad("nodes_token_negative", "R-INT-LOW", n(["tokens", 2], -7), "NODES.tokens[2]")
    bad("nodes_score_positive", "R-SCORE", n(["scores", 0], f32(0.001)), "NODES.scores[0]")
    bad("nodes_score_low", "R-SCORE", n(["scores", 1], f32(-100.01)), "NODES.scores[1]")
    bad("nodes_score_nan", "R-FLOAT", n(["scores", 2], float("nan")), "NODES.scores[2]")
    bad("nodes_score_infinite", "R-FLOAT", n(["scores", 0], float("-inf")), "NODES.scores[0]")
    bad("nodes_score_integer", "R-TYPE", n(["scores", 1], -1), "NODES.scores[1]")
    bad("nodes_done_nil", "R-TYPE", n(["done"], None), "NODES.done")

    # Features.
    a = lambda path, value: broken("ATTACH", dict(state(3, PROMPT), ticket=TICKET, generation=0, request=request()),
                                   ["request"] + path, value)
    bad("attach_taps_many", "R-LIST-LIMIT", a(["taps"], list(range(9))), "ATTACH.request.taps", LIMIT)
    bad("attach_taps_none", "R-LEFT-OUT", a(["taps"], []), "ATTACH.request is given")
    bad("attach_tap_negative", "R-INT-LOW", a(["taps"], [-1]), "ATTACH.request.taps[0]")
    bad("attach_tap_large", "R-INT-HIGH", a(["taps"], [1, 4097]), "ATTACH.request.taps[1]", LIMIT)
    bad("attach_type_zero", "R-ENUM", a(["type"], 0), "ATTACH.request.type")
    bad("attach_fc_nil", "R-TYPE", a(["fc"], None), "ATTACH.request.fc")
    bad("attach_from_large", "R-INT-HIGH", a(["from"], CONTEXT_MAX + 1), "ATTACH.request.from", LIMIT)
    bad("attach_horizon_large", "R-INT-HIGH", a(["horizon"], 4097), "ATTACH.request.horizon", LIMIT)
    whole = message("ATTACH", TARGET, 77, 1, dict(state(3, PROMPT), ticket=TICKET, generation=0, request=request()))
    bad("attach_request_short", "R-FIELDS", pack(whole[:-1] + [whole[-1][:-1]]), "ATTACH.request has 4")
    bad("attach_request_nil", "R-TYPE", pack(whole[:-1] + [None]), "ATTACH.request is not")
    bad("attach_field_extra", "R-FIELDS", pack(whole + [0]), "ATTACH has 10 entries instead of 8 to 9")
    g = lambda path, value: broken("ATTACHED", dict(state(4), generation=1, grant=grant()), ["grant"] + path, value,
                                   to=DRAFT)
    bad("attached_width_zero", "R-INT-LOW", g(["width"], 0), "ATTACHED.grant.width")
    bad("attached_width_large", "R-INT-HIGH", g(["width"], 65537), "ATTACHED.grant.width", LIMIT)
    bad("attached_type_beyond", "R-ENUM", g(["type"], 3), "ATTACHED.grant.type")
    bad("attached_fused_integer", "R-TYPE", g(["fused"], 1), "ATTACHED.grant.fused")
    bad("nodes_features_zero", "R-LEFT-OUT", n(["features"], 0), "NODES.features")
    bad("nodes_features_negative", "R-INT-LOW", n(["features"], -1), "NODES.features is -1")
    bad("nodes_features_large", "R-INT-HIGH", n(["features"], CONTEXT_MAX + 1), "NODES.features is", LIMIT)
    f = lambda path, value, **k: broken("FEATURES", features(**k), path, value, to=DRAFT)
    bad("features_base_negative", "R-INT-LOW", f(["base"], -1), "FEATURES.base")
    bad("features_count_large", "R-INT-HIGH", f(["count"], 2049), "FEATURES.count", LIMIT)
    bad("features_width_zero", "R-INT-LOW", f(["width"], 0), "FEATURES.width")
    bad("features_width_large", "R-INT-HIGH", f(["width"], 65537), "FEATURES.width is", LIMIT)
    bad("features_type_beyond", "R-ENUM", f(["type"], 3), "FEATURES.type")
    bad("features_rows_text", "R-TYPE", f(["rows"], "rows"), "FEATURES.rows")
    bad("features_rows_many", "R-BLOB-LIMIT", f(["rows"], bytes(262145)), "FEATURES.rows", LIMIT)
    bad("features_rows_short", "R-FEATURES-SIZE", f(["rows"], bytes(15)), "16 bytes, not 15")
    bad("features_rows_nil", "R-FEATURES-SIZE", f(["rows"], None), "not 0")
    bad("features_other_type", "R-FEATURES-SIZE", f(["type"], 2), "32 bytes, not 16")
    bad("features_more_than_told", "R-FEATURES-SIZE", f(["count"], 2048, width=65536), "268435456 bytes")
    bad("features_too_long", "R-FEATURES-LENGTH", f(["base"], CONTEXT_MAX - 1), "pass 1048576", LIMIT)

    # DONE.
    dn = lambda path, value, **k: broken("DONE", done(**k), path, value, to=ORCHESTRATOR)
    bad("done_length_zero", "R-INT-LOW", dn(["length"], 0), "DONE.length")
    bad("done_finish_zero", "R-ENUM", dn(["finish"], 0), "DONE.finish is 0")
    bad("done_finish_beyond", "R-ENUM", dn(["finish"], 5), "DONE.finish is 5")
    bad("done_code_positive", "R-ENUM", dn(["code"], 1), "DONE.code")
    bad("done_code_without_error", "R-DONE-CODE", dn(["code"], -19), "finish is 1 and code -19")
    bad("done_error_without_code", "R-DONE-CODE", dn(["finish"], 4), "finish is 4 and code 0")
    bad("done_text_nil", "R-TYPE", dn(["text"], None), "DONE.text")
    bad("done_off_reason_long", "R-STRING-LIMIT", dn(["off_reason"], "x" * 513), "DONE.off_reason", LIMIT)
    numbered = lambda path, value: dn(["numbers", *path], value, numbers=dict(off=1, plain_us=0))
    bad("done_numbers_empty", "R-LEFT-OUT", numbered(["off"], 0), "DONE.numbers is given")
    bad("done_numbers_negative", "R-INT-LOW", numbered(["plain_us"], -1), "DONE.numbers.plain_us")
    bad("done_numbers_nil", "R-TYPE", pack(message("DONE", ORCHESTRATOR, 77, 1, done()) + [None]), "DONE.numbers is")
    bad("done_stats_integer", "R-TYPE", pack(message("DONE", ORCHESTRATOR, 77, 1, done())[:-1] + [0]), "DONE.stats is")
    bad("done_stats_negative", "R-INT-LOW", dn(["stats", "wait_us"], -1), "DONE.stats.wait_us")
    bad("done_positions_many", "R-LIST-LIMIT", dn(["stats", "accepted_per_pos"], [1] * 65), "DONE.stats.accepted_per_pos", LIMIT)
    da = lambda path, value: dn(["stats", "ahead", *path], value, stats=stats(ahead=ahead))
    bad("done_ahead_empty", "R-LEFT-OUT", da(["verdicts"], 0), "DONE.stats.ahead is given")
    bad("done_ahead_negative", "R-INT-LOW", da(["survivors"], -1), "DONE.ahead.survivors")
    bad("done_ahead_nil", "R-TYPE", dn(["stats"], stats(ahead=None)), "DONE.stats.ahead is")
    bad("done_position_text", "R-TYPE", dn(["stats", "accepted_per_pos"], ["1"]), "DONE.stats.accepted_per_pos[0]")


# --- hashes ---


def make_hashes():
    dice = random.Random(20240607)
    lists = [[0], [1], PROMPT, [I32], [0] * 8, list(range(20)), [dice.randrange(49152) for _ in range(50)]]
    seeds = [0, 1, SEED, U64, 2**63]
    out = []
    for seed in seeds:
        for tokens in lists:
            h, all_ = ZERO, [ZERO.hex()]
            for t in tokens:
                h = hash_next(h, seed, t)
                all_.append(h.hex())
            out.append({"seed": str(seed), "tokens": tokens, "hashes": all_})
    return out


# --- files ---


def lines(entries):
    """JSON with one entry a line."""
    return "[\n" + ",\n".join(json.dumps(e, ensure_ascii=True) for e in entries) + "\n]\n"


def index_good(g):
    entry = {k: shown(g[k]) for k in ("name", "type", "to", "session", "epoch", "fields")}
    entry["canonical"] = g["canonical"]
    entry["size"] = len(g["bytes"])
    entry["hex"] = g["bytes"].hex() if len(g["bytes"]) <= HEX_MAX else None
    return entry


def index_bad(b):
    return {k: b[k] for k in ("name", "rule", "where", "code")}


def fold(text, width):
    return "\n".join(text[i:i + width] for i in range(0, len(text), width))


def story_text():
    """The worked session as Markdown."""
    out = []
    for i, (way, g, why) in enumerate(STORY):
        fields = json.dumps({k: shown(v) for k, v in g["fields"].items()}, ensure_ascii=False)
        about = ", session %d, epoch %d" % (g["session"], g["epoch"]) if g["session"] else ""
        out.append("**%d. %s %s**%s. %s\n\n```\n%s\n\n%s\n```\n" % (i + 1, way, g["type"], about, why, fields,
                                                                  fold(g["bytes"].hex(), 100)))
    return "\n".join(out).replace(". \n", ".\n")


def hash_text():
    seed, rows = SEED, []
    for n in range(len(PROMPT) + 1):
        token = "" if n == 0 else str(PROMPT[n - 1])
        rows.append("| %d | %s | `%s` |" % (n, token, hash_of(seed, PROMPT[:n]).hex()))
    return "Hash seed 0x%016x (%d), tokens %s:\n\n| n | token n | hash(n) |\n|---|---|---|\n%s\n" % (
        seed, seed, PROMPT, "\n".join(rows))


def into_page(page, name, text):
    begin, end = "<!-- made by vectors/make_vectors.py: %s -->\n" % name, "<!-- end: %s -->" % name
    head_, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    assert rest and tail, "PROTOCOL.md has no place for " + name
    return head_ + begin + "\n" + text + "\n" + end + tail


def files():
    make_good()
    make_story()
    make_bad()
    out = {"good.json": lines([index_good(g) for g in GOOD]).encode(),
           "bad.json": lines([index_bad(b) for b in BAD]).encode(),
           "hash.json": lines(make_hashes()).encode()}
    for g in GOOD:
        out[os.path.join("good", g["name"] + ".bin")] = g["bytes"]
    for b in BAD:
        out[os.path.join("bad", b["name"] + ".bin")] = b["bytes"]
    if os.path.exists(PAGE):
        with open(PAGE, encoding="utf-8") as f:
            page = f.read()
        page = into_page(into_page(page, "hash", hash_text()), "session", story_text())
        out[os.path.join("..", "PROTOCOL.md")] = page.encode()
    return out


def stale():
    """Files of good/ and bad/ that belong to no vector."""
    names = {"good": {g["name"] + ".bin" for g in GOOD}, "bad": {b["name"] + ".bin" for b in BAD}}
    return [os.path.join(d, f) for d in names for f in sorted(os.listdir(os.path.join(HERE, d)))
            if f not in names[d]]


def read(path):
    if not os.path.exists(path):
        return None
    with open(path, "rb") as f:
        return f.read()


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    for d in ("good", "bad"):
        os.makedirs(os.path.join(HERE, d), exist_ok=True)
    made = files()
    different = [name for name, data in made.items() if read(os.path.join(HERE, name)) != data]
    if check:
        for name in different + stale():
            print("differs: wire/vectors/" + name)
        sys.exit(1 if different or stale() else 0)
    for name in stale():
        os.remove(os.path.join(HERE, name))
    for name in different:
        with open(os.path.join(HERE, name), "wb") as f:
            f.write(made[name])
    print("%d good and %d bad frames, %d files written" % (len(GOOD), len(BAD), len(different)))


if __name__ == "__main__":
    main()
