#!/usr/bin/env python3
"""Writes replay_book.jsonl (recorded answers, made up) and replay_draws.jsonl (what the replay draft must offer
at each position of them), from what draft_worker/drafters/drafter.h and replay.c promise, with a Philox of its own."""
import json
import math
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
MASK = 0xFFFFFFFF


def philox4x32(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


# Random123's published answers.
assert philox4x32([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
assert philox4x32([MASK] * 4, [MASK] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def unit(x):
    return ((x >> 9) + 0.5) / 2**23


def make_records():
    state = 99

    def rand(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        return (state >> 33) % n

    ids = [rand(49152) for _ in range(40)]
    prompt = [ids[rand(40)] for _ in range(12)]
    answer = [ids[rand(40)] for _ in range(60)]
    fork = answer[:25] + [ids[(ids.index(answer[25]) + 1) % 40]] + [ids[rand(40)] for _ in range(30)]
    other = [ids[rand(40)] for _ in range(7)]
    return [
        {"id": "a", "prompt_ids": prompt, "token_ids": answer, "text": "ignored"},
        {"id": "b", "prompt_ids": prompt, "token_ids": fork},
        {"id": "c", "prompt_ids": other, "token_ids": [ids[rand(40)] for _ in range(20)]},
        {"id": "d", "prompt_ids": prompt + prompt, "token_ids": []},
    ]


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def offered(records, index, rate, sibling, seed):
    vocabulary = sorted({t for r in records for t in r["prompt_ids"] + r["token_ids"]})
    key = [seed & MASK, seed >> 32]
    record = records[index]
    rows = []
    for i, right in enumerate(record["token_ids"]):
        lanes = philox4x32([len(record["prompt_ids"]) + i, 0, 0, 0], key)
        if unit(lanes[0]) < rate:
            rows.append([right])
            continue
        at = lanes[2] % len(vocabulary)
        if vocabulary[at] == right:
            at = (at + 1) % len(vocabulary)
        rows.append([vocabulary[at]] + ([right] if unit(lanes[1]) < sibling else []))
    return rows


def main():
    records = make_records()
    with open(os.path.join(HERE, "replay_book.jsonl"), "w") as f:
        for r in records:
            f.write(json.dumps(r) + "\n")
    with open(os.path.join(HERE, "replay_draws.jsonl"), "w") as f:
        for rate, sibling, seed in [(0.0, 0.0, 0), (0.5, 0.5, 0), (0.9, 0.25, 7), (1.0, 1.0, 1), (0.3, 1.0, 2**40 + 5)]:
            for index in range(3):
                f.write(json.dumps({
                    "rate": rate, "sibling": sibling, "seed": seed, "record": index,
                    "first_score": float32(math.log(max(rate, 0.01))),
                    "second_score": float32(math.log(max((1 - rate) * sibling, 0.001))),
                    "offered": offered(records, index, rate, sibling, seed),
                }) + "\n")


main()
