#!/bin/bash
# Speed on this machine's CPUs: builds Release, then measures and prints a table, in a quarter of an hour. --quick: a first
# look; --only ROW: a part of it; --peer DIR: llama.cpp, as bench/get_peer.sh DIR builds it (default: $TANDEM_PEER, or
# ../llama.cpp-peer where it exists; without it the rows that need it do not hold); --json FILE: one JSON object a row;
# --markdown FILE; --help: the rest. Exits 1 when something that must hold does not, or was not measured.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/release

"$root/scripts/deps.sh" --test # two tests are rows
if [[ ! -f $build/build.ninja ]]; then
  echo "bench_cpu.sh: configuring build/release" >&2
  cmake -S "$root" --preset release >/dev/null || {
    echo "bench_cpu.sh: cmake failed: see above. scripts/deps.sh installs what is needed." >&2
    exit 1
  }
fi
ninja -C "$build" tandem tandem-target tandem-draft tandem-bench bench_memory bench_multiply bench_step bench_linear \
  test_ops test_model_bits 2>&1 |
  sed -uE '/^ninja: (Entering|no work)|Re-checking globbed|version\.cmake$/d' >&2 || {
  echo "bench_cpu.sh: the build failed: see above. With a damaged build/release, remove it and start again." >&2
  exit 1
}
"$root/scripts/get_model.sh"
export PYTHONDONTWRITEBYTECODE=1
# A later --bin or --model takes the place of these.
exec python3 "$root/bench/bench_cpu.py" --bin "$build/bin" --model "$root/models/SmolLM2-135M-Instruct.Q4_1.gguf" "$@"
