#!/usr/bin/env python3
"""Writes hash_chain.json: the prefix hash chain and plain digests, by the Python binding of xxHash.

    python3 make_hash_chain.py > hash_chain.json      (Debian: python3-xxhash)
"""
import json
import random
import struct

import xxhash


def chain(seed, tokens):
    h = bytes(16)
    out = [h.hex()]
    for token in tokens:
        h = xxhash.xxh3_128_digest(h + struct.pack("<I", token), seed)
        out.append(h.hex())
    return out


def main():
    rng = random.Random(1)
    cases = [
        (0, [0]),
        (0, [1, 2, 3]),
        (1, [1, 2, 3]),
        (0xFFFFFFFFFFFFFFFF, [0x7FFFFFFF, 0, 49151, 0x01020304]),
    ]
    for _ in range(8):
        cases.append((rng.getrandbits(64), [rng.randrange(49152) for _ in range(rng.randrange(1, 40))]))
    pieces = [b"", b"a", b"tandem", bytes(range(256)), bytes(i * 7 % 251 for i in range(5000))]
    print(json.dumps({
        "chains": [{"seed": f"{seed:016x}", "tokens": t, "hashes": chain(seed, t)} for seed, t in cases],
        "digests": [{"bytes": p.hex(), "hash": xxhash.xxh3_128_hexdigest(p)} for p in pieces],
    }, indent=1))


main()
