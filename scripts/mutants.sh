#!/bin/bash
# mutants.sh - breaks a rule on purpose, one patch of tests/mutants at a time, and requires the simulation to notice,
# or the unit test that the patch names in its first line ("caught by test_NAME"). A mutant that survives is a hole.
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

build() { # what, programs
  what=$1
  shift
  ninja -C "$work/build" "$@" >"$work/log" 2>&1 || { tail -n 20 "$work/log"; echo "mutants: $what does not build"; exit 1; }
}
catcher() { sed -n '1s/^caught by //p' "$1"; }
run() { # program
  if [ "$1" = sim ]; then timeout 300 "$work/build/bin/sim" --count "$seeds"; else (cd "$work/src" && timeout 100 "../build/bin/$1"); fi
}

programs=(sim $(for patch in tests/mutants/*.patch; do catcher "$patch"; done | sort -u))
build "the unchanged source" "${programs[@]}"
for program in "${programs[@]}"; do
  run "$program" >"$work/out" 2>&1 || { cat "$work/out"; echo "mutants: $program fails on the unchanged source"; exit 1; }
done
failed=0 count=0
for patch in tests/mutants/*.patch; do
  name=$(basename "$patch" .patch)
  count=$((count + 1))
  patch -s -p1 -d "$work/src" <"$patch" || { echo "mutants: $name does not apply: make it again from today's source"; exit 1; }
  program=$(catcher "$patch")
  program=${program:-sim}
  build "$name" "$program"
  if run "$program" >"$work/out" 2>&1; then
    echo "  survived  $name ($program)"
    failed=1
  else
    echo "  killed    $name: $(grep -a -m 1 -o 'seed [0-9]* FAILED: [^(]*\|Assertion.*\|FAILED  ] [a-z_]*' "$work/out" | head -n 1)"
  fi
  patch -s -R -p1 -d "$work/src" <"$patch"
done
echo "mutants: $count tried, $([ $failed = 0 ] && echo all killed || echo SOME SURVIVED)"
exit $failed
