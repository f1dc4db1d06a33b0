#!/bin/bash
# Real programs in a storm of N faults: scripts/storm.sh N [--seed S] [--seconds T] [--verbose] [--keep].
# In parts: scripts/storm.sh N --parts FILE [--jobs J] adds storms to FILE until they have N faults together,
# and may be ended at any time (Ctrl-C) and called again.
# The last line counts; status 1: an answer differed, was lost or got stuck, or a program crashed. See
# tests/storm/storm.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ! ${TANDEM_BIN:-} ]]; then
  cmake --preset release >/dev/null
  cmake --build --preset release -- programs storm_shim >/dev/null
fi
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 tests/storm/storm.py "$@"
