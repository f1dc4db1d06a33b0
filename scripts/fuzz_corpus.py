#!/usr/bin/env python3
"""Keeps what the fuzzers have found, for the replay before every change.

  scripts/fuzz_corpus.py [NAME...]    after scripts/test.sh fuzz, or scripts/fuzz_long.sh

Of build/fuzz/corpus/NAME and of what tests/fuzz/corpus/NAME holds already, libFuzzer's -merge keeps the
inputs that reach something of their own; the smallest of these are written to tests/fuzz/corpus/NAME, up to a
limit, each behind its length (4 bytes, little-endian). tests/fuzz/replay.c reads them.
"""

import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests/fuzz/corpus"
BYTES_MAX = 96 << 10  # of a corpus
INPUT_MAX = 4096  # bytes of an input; a longer one would take the place of many


def unpacked(path):
    data, at = path.read_bytes() if path.exists() else b"", 0
    while at < len(data):
        size, = struct.unpack_from("<I", data, at)
        yield data[at + 4:at + 4 + size]
        at += 4 + size


def merged(name, folder):
    """The inputs that reach something of their own, the smallest first."""
    old, new = folder / "old", folder / "new"
    old.mkdir()
    new.mkdir()
    for i, data in enumerate(unpacked(KEPT / name)):
        (old / str(i)).write_bytes(data)
    found = ROOT / "build/fuzz/corpus" / name
    folders = [f for f in (old, found) if f.is_dir()]
    if name == "fuzz_frame":
        folders += [ROOT / "wire/vectors/good", ROOT / "wire/vectors/bad"]
    subprocess.run([ROOT / "build/fuzz/bin" / name, "-merge=1", f"-max_len={INPUT_MAX}", new, *folders],
                   check=True, capture_output=True)
    return sorted((p.read_bytes() for p in new.iterdir()), key=lambda data: (len(data), data))


def main():
    names = sys.argv[1:] or sorted(p.stem for p in (ROOT / "tests/fuzz").glob("fuzz_*.c"))
    KEPT.mkdir(exist_ok=True)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            inputs = merged(name, pathlib.Path(folder))
        packed, count = b"", 0
        for data in inputs:
            if len(packed) + 4 + len(data) > BYTES_MAX:
                break
            packed += struct.pack("<I", len(data)) + data
            count += 1
        (KEPT / name).write_bytes(packed)
        print(f"{name}: {count} of {len(inputs)} inputs, {len(packed)} bytes")


if __name__ == "__main__":
    main()
