#!/bin/bash
# The whole suite from a fresh clone: packages, model, builds, tests. Without arguments every stage runs, and a
# failing one fails the run at its end; `scripts/test.sh STAGE...` runs only those and what they need, `--list` names
# them. A single test is named by its file: `scripts/test.sh test_wait`, `scripts/test.sh test_pair.py`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# name | what it does
stages='
setup       | packages, the CUDA compiler and the default model
tidy        | style, in seconds: format, lengths, names, words, paths, include arrows
build       | Release build of everything
unit        | unit, property, golden and vector tests (ctest)
simulation  | every state machine under a seeded network, a simulated disk and faults of all kinds, 6,000 seeds
model       | a model of sessions, epochs and ledger, whole, and with each of its rules removed in turn
mutants     | known mistakes, each of which the simulation or a unit test must catch
integration | the real programs on loopback
storm       | the real programs in a storm of 200 faults
asan        | ASan and UBSan: the tests not labelled golden, slow, far or emulated, command line, pair and wire tests over the virtual cache with a subset of prompts
tsan        | TSan: thread pool, rings, threads of batches, head, engine, host, ledger, simulation
fuzz        | libFuzzer: a while for each target'

sim_seeds=6000
sim_seeds_replayed=200
sim_seeds_sanitized=200
fuzz_seconds=15
odd_command_lines=300
storm_faults=200
python=/usr/bin/python3
jobs=$(nproc)

# stage: those that must have run before it
declare -A needs=([tidy]=setup [build]=setup [unit]="setup build" [simulation]="setup build" [model]=setup [mutants]="setup build" [integration]="setup build" [storm]="setup build"
  [asan]=setup [tsan]=setup [fuzz]=setup)

names() { sed -nE 's/^([a-z]+) .*/\1/p' <<<"$stages"; }

configure_and_build() { # PRESET [TARGET...]
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1" -- "${@:2}"
}

run_ctest() { # PRESET [ARGUMENT...]
  ctest --test-dir "build/$1" --output-on-failure --no-tests=error -j "$jobs" "${@:2}"
}

run_integration() { # PRESET SUBSET (1: fewer and shorter answers) PATTERN...
  PYTHONDONTWRITEBYTECODE=1 TANDEM_BIN=$PWD/build/$1/bin TANDEM_SUBSET=$2 $python tests/integration/run.py "${@:3}"
}

stage_setup() {
  scripts/deps.sh --test --cuda
  scripts/get_model.sh
}

stage_tidy() {
  scripts/tidy.py --self-test
  scripts/tidy.py
}

stage_build() { configure_and_build release; }

stage_unit() {
  $python wire/vectors/make_vectors.py --check # the frames are what another encoder makes, and the page quotes them
  run_ctest release
}

stage_simulation() {
  build/release/bin/sim --count "$sim_seeds"
  echo "--- each seed twice: it must replay exactly"
  build/release/bin/sim --count "$sim_seeds_replayed" --replay
}

stage_model() { $python tests/model/check.py; }

stage_mutants() { $python tests/mutants.py; }

stage_integration() {
  run_integration release 0 'test_*.py'
  echo "--- faults over the virtual cache"
  TANDEM_KV=virtual run_integration release 0 'test_faults.py'
  echo "--- odd command lines"
  PYTHONDONTWRITEBYTECODE=1 $python tests/fuzz/command_lines.py --lines "$odd_command_lines" --seconds 600
  echo "--- a device as remote as a GPU"
  TANDEM_DEVICE=far:cpu TANDEM_DRAFT_DEVICE=far:cpu run_integration release 1 test_pair.py test_matrix.py
}

stage_storm() { scripts/storm.sh "$storm_faults"; }

stage_asan() {
  configure_and_build asan
  run_ctest asan -LE 'golden|slow|far|emulated'
  export TANDEM_KV=virtual # the other stages run these over the static cache
  run_integration asan 1 'test_cli_*.py' test_pair.py test_wire.py
}

stage_tsan() {
  local programs='test_thread_pool test_ring test_batch_thread test_sample test_engine test_machine_host test_engine_host test_ledger_file test_ledger_writer'
  # shellcheck disable=SC2086 # a list of words
  configure_and_build tsan $programs sim
  TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" run_ctest tsan -R "^(${programs// /|})\$"
  build/tsan/bin/sim --count "$sim_seeds_sanitized"
}

fuzz_one() { # NAME
  local seeds=() corpus=build/fuzz/corpus/$1
  [[ $1 == fuzz_frame ]] && seeds=(wire/vectors/good wire/vectors/bad)
  mkdir -p "$corpus"
  "build/fuzz/bin/$1" -max_total_time="$fuzz_seconds" -seed=1 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/$1-" "$corpus" "${seeds[@]}" >"build/fuzz/$1.log" 2>&1
}

# Several targets at a time; what each said is shown when all are at their end.
stage_fuzz() {
  local targets=() name failed=0
  for name in tests/fuzz/fuzz_*.c; do targets+=("$(basename "$name" .c)"); done
  configure_and_build fuzz "${targets[@]}"
  export fuzz_seconds
  export -f fuzz_one
  printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} "$BASH" -c 'fuzz_one {}' || failed=1
  for name in "${targets[@]}"; do
    echo "--- $name, $fuzz_seconds s"
    sed '/Recommended dictionary/,/End of recommended/d' "build/fuzz/$name.log"
  done
  return $failed
}

run_test() { # NAME of tests/NAME.c, or FILE of tests/integration
  stage_setup
  if [[ $1 == *.py ]]; then
    stage_build
    run_integration release 0 "$1"
  else
    configure_and_build release "$1"
    "build/release/bin/$1"
  fi
}

is_test() { [[ $1 == test_* && (-f tests/$1.c || -f tests/integration/$1) ]]; }

run_stage() { # NAME; a process of its own, so that -e works in it
  local begin=$SECONDS text
  text=$(sed -nE "s/^$1 +\| //p" <<<"$stages")
  text=${text:-one test}
  echo
  echo "=== $1: $text"
  if "$BASH" "${BASH_SOURCE[0]}" --one "$1"; then
    results+=("$(printf 'ok      %-12s %5d s' "$1" $((SECONDS - begin)))")
  else
    results+=("$(printf 'FAILED  %-12s %5d s' "$1" $((SECONDS - begin)))")
    failed+=("$1")
  fi
}

if [[ ${1:-} == --one ]]; then
  if is_test "$2"; then run_test "$2"; else "stage_$2"; fi
  exit
fi
if [[ ${1:-} == --list || ${1:-} == --help ]]; then
  echo "${stages#?}"
  exit
fi

chosen=("$@")
[[ $# -gt 0 ]] || mapfile -t chosen < <(names)
wanted=()
for name in "${chosen[@]}"; do
  names | grep -qxF -- "$name" || is_test "$name" || {
    echo "test.sh: no stage or test '$name'; stages: $(names | tr '\n' ' ')" >&2
    exit 2
  }
  # shellcheck disable=SC2206 # a list of words
  wanted+=(${needs[$name]:-} "$name")
done

results=() failed=()
declare -A ran=()
for name in "${wanted[@]}"; do
  [[ ${ran[$name]:-} ]] || run_stage "$name"
  ran[$name]=1
done
echo
echo "=== summary"
printf '%s\n' "${results[@]}"
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "test.sh: FAILED: ${failed[*]} (again: scripts/test.sh ${failed[*]})"
  exit 1
fi
echo "test.sh: all stages passed"
