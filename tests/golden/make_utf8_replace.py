#!/usr/bin/python3
"""Writes utf8_replace.jsonl: byte strings (hex) and what Python's errors="replace" makes of them."""
import json
import random

rng = random.Random(20240612)
fixed = [
    "",
    "61f18080e180c262806380bf64",  # the Unicode Standard's example of maximal subparts
    "c0afe080bff0818241",
    "eda080edbfbfedaf41",
    "f4919293ff4180bf42",
    "e18080e2f09192f1bf41",
    "f09f9880", "f09f98", "f09f", "f0", "e282ac", "e282", "c3a9", "c3", "80", "fe", "ff", "efbfbd", "efbbbf41",
    "f0908080", "f48fbfbf", "f4908080", "ee8080", "ed9fbf", "c280", "dfbf", "e0a080", "e09fbf", "f08fbfbf",
]
leads = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEF,
         0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
cases = [bytes.fromhex(h) for h in fixed]
for _ in range(600):
    cases.append(bytes(rng.choice(leads) for _ in range(rng.randint(1, 12))))
with open("utf8_replace.jsonl", "w", encoding="ascii") as out:
    for case in cases:
        row = {"hex": case.hex(), "text": case.decode("utf-8", "replace")}
        out.write(json.dumps(row) + "\n")
