#!/bin/bash
# mutants.sh - breaks a rule of the protocol on purpose, one patch of tests/mutants at a time, and requires the
# simulation to notice. A mutant that survives is a hole in the oracles.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh --test # patch
seeds=${MUTANT_SEEDS:-20000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/src"
cp -r CMakeLists.txt common kernels wire draft_worker target_worker orchestrator bench scripts tests "$work/src/"
cmake -S "$work/src" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log"; echo "mutants: cmake failed"; exit 1; }

build() { ninja -C "$work/build" sim >"$work/log" 2>&1 || { tail -n 20 "$work/log"; echo "mutants: $1 does not build"; exit 1; }; }

build "the unchanged simulation"
"$work/build/bin/sim" --count "$seeds" >"$work/out" || { cat "$work/out"; echo "mutants: the unchanged simulation fails"; exit 1; }
failed=0 count=0
for patch in tests/mutants/*.patch; do
  name=$(basename "$patch" .patch)
  count=$((count + 1))
  patch -s -p1 -d "$work/src" <"$patch" || { echo "mutants: $name does not apply: make it again from today's source"; exit 1; }
  build "$name"
  if timeout 300 "$work/build/bin/sim" --count "$seeds" >"$work/out" 2>&1; then
    echo "  survived  $name"
    failed=1
  else
    echo "  killed    $name: $(grep -a -m 1 -o 'seed [0-9]* FAILED: [^(]*\|Assertion.*' "$work/out" | head -n 1)"
  fi
  patch -s -R -p1 -d "$work/src" <"$patch"
done
echo "mutants: $count tried, $([ $failed = 0 ] && echo all killed || echo SOME SURVIVED)"
exit $failed
