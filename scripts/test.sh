#!/bin/bash
# The tests, from a fresh clone: packages, model, builds, tests.
#
#   scripts/test.sh               the gate: all that decides whether a change may land, in ten minutes on two processors
#   scripts/test.sh --thorough    everything: before a release, and when something large is done
#   scripts/test.sh STAGE...      these stages and what they need; --list names them
#   scripts/test.sh STAGE/TEST    one test of a stage: integration/test_pair.Pair.test_ngram, unit/test_ring, mutants/NAME
#   scripts/test.sh test_ring     the same for a unit test or a file of tests/integration (test_pair.py), by its name alone
#
# All stages run, also after one has failed. The end names every test that failed and the command that runs it again.
# build/passed tells at which commit the gate last passed whole ("dirty" where files differed), build/passed-thorough
# the same of --thorough.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The programs take flags from variables too: those of the shell that starts the tests are not meant.
for name in $(sed -nE 's/^FLAG\([a-z_0-9]+, "([a-z-]+)".*/\U\1/p' common/command_line/flags.def); do
  unset "TANDEM_${name//-/_}"
done

# name | gate, thorough or both | what it does
stages='
setup            | both     | packages, the CUDA compiler and the default model
tidy             | both     | style, in seconds: format, lengths, names, words, paths, include arrows, rules of tests
build            | gate     | programs, simulation and tests of kernels, for GPUs of one kind
unit             | gate     | kernels and models: unit, property and golden tests; vectors
build-asan       | gate     | programs and all other unit tests, with ASan and UBSan
unit-asan        | gate     | those unit tests
integration      | gate     | the real programs on loopback
wire-asan        | gate     | targets with ASan and UBSan, spoken to by the tests themselves, over the virtual cache
mutants          | gate     | known mistakes, each of which a test must catch: those of changed files, and a sample
build-all        | thorough | everything, for every kind of GPU
simulation       | both     | every state machine under a seeded network, a simulated disk and faults of all kinds
unit-all         | thorough | all unit tests, also over far and emulated devices
model            | thorough | a model of sessions, epochs and ledger, whole, and with each of its rules removed in turn
mutants-all      | thorough | all known mistakes
integration-all  | thorough | all tests of the real programs
virtual          | thorough | faults over the virtual cache
command-lines    | thorough | odd command lines
far              | thorough | pairs over a device as remote as a GPU
storm            | thorough | the real programs in a storm of faults
asan             | thorough | ASan and UBSan: the unit tests not labelled golden, thorough, far or emulated, kernels with them; command line, pair and wire tests over the virtual cache, with plain kernels
tsan             | thorough | TSan: thread pool, rings, threads of batches, head, engine, host, ledger, simulation
fuzz             | thorough | libFuzzer: a while for each target'

sim_seeds=6000
sim_seeds_replayed=200
sim_seeds_sanitized=200
fuzz_seconds=10
odd_command_lines=300
storm_faults=200
mutants_of_the_gate=12
python=/usr/bin/python3

# stage: those that must have run before it
declare -A needs=([tidy]=setup [build]=setup [unit]="setup build" [simulation]="setup build" [build-asan]="setup build"
  [unit-asan]="setup build build-asan" [integration]="setup build" [wire-asan]="setup build build-asan"
  [mutants]="setup build build-asan" [build-all]=setup [unit-all]="setup build-all" [model]=setup
  [mutants-all]="setup build-all" [integration-all]="setup build-all" [virtual]="setup build-all"
  [command-lines]="setup build-all" [far]="setup build-all" [storm]="setup build-all" [asan]="setup build-all" [tsan]=setup [fuzz]=setup)

names() { sed -nE 's/^([a-z-]+) .*/\1/p' <<<"$stages"; } # all of them
names_of() { sed -nE "s/^([a-z-]+) +\\| ($1|both) .*/\\1/p" <<<"$stages"; } # gate or thorough

# The processors that may be used: those of the affinity, or fewer where a control group allows less.
processors() {
  local count quota period
  count=$(nproc)
  read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max || quota=max
  [[ $quota == max || $((quota / period)) -ge $count ]] || count=$((quota / period > 0 ? quota / period : 1))
  echo "$count"
}
jobs=$(processors)
tests_at_a_time=$((jobs + 1)) # they often wait

is_unit_test() { compgen -G "tests/unit/*/$1.c*" >/dev/null; } # NAME

# --- stages; RESULTS is a file for lines: FAILED, FLAKY or TOOK and seconds, then the name of a test ---

configure_and_build() { # PRESET [TARGET...]
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1" -- -j "$jobs" "${@:2}"
}

run_ctest() { # PRESET [ARGUMENT...]
  local status=0 junit=$PWD/build/$1/tests.xml
  rm -f "$junit"
  ctest --test-dir "build/$1" --output-on-failure --no-tests=error -j "$tests_at_a_time" --output-junit "$junit" "${@:2}" || status=$?
  sed -nE 's/.*<testcase name="([^"]*)".* time="([^"]*)" status="([^"]*)".*/\3 \2 \1/p' "$junit" | while read -r how took name; do
    [[ $how == run || $how == notrun ]] || echo "FAILED $name"
    echo "TOOK $took $name"
  done >>"$RESULTS"
  return $status
}

run_unit() { # PRESET TEST ARGUMENT...: the test, or all that the arguments choose
  if [[ $2 ]]; then run_ctest "$1" -R "^$2\$"; else run_ctest "$1" "${@:3}"; fi
}

run_integration() { # PRESET SUBSET (1: fewer and shorter answers) [--thorough] NAME...
  PYTHONDONTWRITEBYTECODE=1 TANDEM_BIN=$PWD/build/$1/bin TANDEM_SUBSET=$2 $python tests/integration/run.py --jobs "$tests_at_a_time" "${@:3}"
}

simulate() { # PRESET ARGUMENT...: the seeds that failed are named at the end
  local status=0
  "build/$1/bin/sim" "${@:2}" | tee "$RESULTS.said" || status=1
  sed -nE 's/^sim: seed ([0-9]+) FAILED.*/FAILED \1/p' "$RESULTS.said" >>"$RESULTS"
  return $status
}

stage_setup() {
  scripts/deps.sh --test --cuda
  scripts/get_model.sh
}

stage_tidy() {
  local failed=0
  scripts/tidy.py --self-test || failed=1
  scripts/tidy.py || failed=1
  return $failed
}

stage_build() { configure_and_build gate; }

stage_unit() { # [TEST]
  local failed=0
  $python wire/vectors/make_vectors.py --check || failed=1 # the frames are what another encoder makes, and the page quotes them
  run_unit gate "${1:-}" -LE 'thorough|far|emulated' || failed=1
  return $failed
}

stage_simulation() { # [SEED]
  local preset=${sim_preset:-gate} failed=0
  if [[ ${1:-} ]]; then
    simulate "$preset" --seed "$1" --count 1
    return
  fi
  simulate "$preset" --count "$sim_seeds" || failed=1
  echo "--- each seed twice: it must replay exactly"
  simulate "$preset" --count "$sim_seeds_replayed" --replay || failed=1
  return $failed
}

stage_build-asan() { configure_and_build gate-asan programs unit_tests; }

stage_unit-asan() { run_unit gate-asan "${1:-}" -LE 'thorough|far|emulated'; }

stage_integration() { run_integration gate 0 "${1:-test_*.py}"; }

stage_wire-asan() { TANDEM_KV=virtual run_integration gate-asan 1 "${1:-test_wire.py}"; }

stage_mutants() { # [NAME]
  local which=(--sample "$mutants_of_the_gate")
  [[ -z ${1:-} ]] || which=("$1")
  $python tests/mutants.py --jobs "$jobs" --build build/gate --build build/gate-asan --seeds "$sim_seeds" "${which[@]}"
}

stage_build-all() { configure_and_build release; }

stage_unit-all() { run_unit release "${1:-}"; }

stage_model() { $python tests/model/check.py; }

stage_mutants-all() { $python tests/mutants.py --jobs "$jobs" --build build/release --seeds "$sim_seeds" ${1:+"$1"}; }

stage_integration-all() { run_integration release 0 --thorough "${1:-test_*.py}"; }

stage_virtual() { TANDEM_KV=virtual run_integration release 0 --thorough "${1:-test_faults.py}"; }

stage_command-lines() {
  PYTHONDONTWRITEBYTECODE=1 $python tests/fuzz/command_lines.py --lines "$odd_command_lines" --seconds 600
}

stage_far() {
  local which=(test_pair.py test_matrix.py)
  [[ -z ${1:-} ]] || which=("$1")
  TANDEM_DEVICE=far:cpu TANDEM_DRAFT_DEVICE=far:cpu run_integration release 1 --thorough "${which[@]}"
}

stage_storm() { scripts/storm.sh "$storm_faults"; }

stage_asan() { # [TEST]
  local failed=0 preset which=('test_cli_*.py' test_pair.py test_wire.py)
  if [[ ${1:-} ]] && is_unit_test "$1"; then
    configure_and_build asan "$1"
    run_ctest asan -R "^$1\$"
    return
  fi
  for preset in asan-kernels asan-programs; do
    [[ ! ${1:-} ]] || break
    configure_and_build "$preset" unit_tests
    run_ctest "$preset" -LE 'golden|thorough|far|emulated' || failed=1
  done
  [[ -z ${1:-} ]] || which=("$1")
  # The other stages run these over the static cache.
  configure_and_build asan-programs programs
  TANDEM_KV=virtual run_integration asan-programs 1 "${which[@]}" || failed=1
  return $failed
}

stage_tsan() {
  local failed=0 programs='test_thread_pool test_ring test_batch_thread test_sample test_engine test_machine_host test_engine_host test_ledger_file test_ledger_writer'
  # shellcheck disable=SC2086 # a list of words
  configure_and_build tsan $programs sim
  TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" run_ctest tsan -R "^(${programs// /|})\$" || failed=1
  build/tsan/bin/sim --count "$sim_seeds_sanitized" || failed=1
  return $failed
}

fuzz_one() { # NAME
  local seeds=() corpus=build/fuzz/corpus/$1
  [[ $1 == fuzz_frame ]] && seeds=(wire/vectors/good wire/vectors/bad)
  mkdir -p "$corpus"
  "build/fuzz/bin/$1" -max_total_time="$fuzz_seconds" -seed=1 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/$1-" "$corpus" "${seeds[@]}" >"build/fuzz/$1.log" 2>&1 || echo "FAILED $1" >>"$RESULTS"
}

# Several targets at a time; what each said is shown when all are at their end.
stage_fuzz() { # [NAME]
  local targets=() name
  for name in tests/fuzz/fuzz_*.c; do targets+=("$(basename "$name" .c)"); done
  [[ -z ${1:-} ]] || targets=("$1")
  configure_and_build fuzz "${targets[@]}"
  export fuzz_seconds
  export -f fuzz_one
  printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} "$BASH" -c 'fuzz_one {}'
  for name in "${targets[@]}"; do
    echo "--- $name, $fuzz_seconds s"
    sed '/Recommended dictionary/,/End of recommended/d' "build/fuzz/$name.log"
  done
  ! grep -q '^FAILED' "$RESULTS"
}

# --- the run ---

run_stage() { # STAGE[/TEST]; a process of its own, so that -e works in it
  local stage=${1%%/*} begin=$SECONDS word=ok isolated=(tests/isolated.sh) name
  results=build/results/$stage
  mkdir -p build/results
  : >"$results"
  [[ $stage != setup ]] || isolated=() # it needs the network, and installs what the others need
  echo
  echo "=== $1: $(sed -nE "s/^$stage +\\| [a-z]+ +\\| //p" <<<"$stages")"
  RESULTS=$PWD/$results "${isolated[@]}" "$BASH" "${BASH_SOURCE[0]}" --one "$1" || word=FAILED
  [[ $word == ok ]] || grep -q ^FAILED "$results" || failed+=("$stage")
  while read -r name; do failed+=("$stage/$name") failed_tests=$((failed_tests + 1)); done < <(sed -n 's/^FAILED //p' "$results" | sort -u)
  while read -r name; do flaky+=("$stage/$name"); done < <(sed -n 's/^FLAKY //p' "$results" | sort -u)
  sed -nE "s/^TOOK ([^ ]+) (.*)/\\1 $stage\\/\\2/p" "$results" >>build/results/all-took
  summary+=("$(printf '%-7s %-16s %5d s' "$word" "$1" $((SECONDS - begin)))")
}

commit_here() { echo "$(git rev-parse HEAD)$(git diff --quiet HEAD && [[ ! $(git ls-files -o --exclude-standard) ]] || echo ' dirty')"; }

if [[ ${1:-} == --one ]]; then
  test=
  [[ $2 != */* ]] || test=${2#*/}
  "stage_${2%%/*}" ${test:+"$test"}
  exit
fi
if [[ ${1:-} == --list || ${1:-} == --help ]]; then
  sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  echo "${stages#?}"
  exit
fi

# By its name alone: the stage that runs it.
whole_name() { # NAME
  if [[ $1 == test_*.py && -f tests/integration/$1 ]]; then
    echo "integration-all/$1"
  elif is_unit_test "$1"; then
    echo "unit-all/$1"
  else
    echo "$1"
  fi
}

passed_file='' chosen=("$@")
if [[ $# -eq 0 || ${1:-} == --thorough ]]; then
  [[ $# -le 1 ]] || { echo "test.sh: --thorough is everything; name stages without it" >&2; exit 2; }
  kind=gate
  passed_file=build/passed
  if [[ $# -gt 0 ]]; then
    kind=thorough passed_file=build/passed-thorough needs[simulation]="setup build-all"
    export sim_preset=release
  fi
  mapfile -t chosen < <(names_of $kind)
fi
wanted=()
for name in "${chosen[@]}"; do
  name=$(whole_name "$name")
  names | grep -qxF -- "${name%%/*}" || {
    echo "test.sh: no stage or test '$name'; stages: $(names | tr '\n' ' ')" >&2
    exit 2
  }
  # shellcheck disable=SC2206 # a list of words
  wanted+=(${needs[${name%%/*}]:-} "$name")
done

summary=() failed=() flaky=() failed_tests=0 begin_commit=$(commit_here)
declare -A ran=()
mkdir -p build/results
: >build/results/all-took
trap 'exit 130' INT TERM
for name in "${wanted[@]}"; do
  [[ ${ran[$name]:-} ]] || run_stage "$name"
  ran[$name]=1
done

echo
echo "=== the slowest tests"
sort -rn build/results/all-took | sed -n '1,30p'
echo
echo "=== summary"
printf '%s\n' "${summary[@]}"
for name in "${flaky[@]}"; do echo "FLAKY   $name: it came late once, and not when it was tried again. Its cause is to be found."; done
for name in "${failed[@]}"; do echo "FAILED  $name    again: scripts/test.sh $name"; done
tests=$(wc -l <build/results/all-took)
[[ $tests -eq 0 ]] || echo "tests: $((tests - failed_tests)) passed, $failed_tests failed"
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "test.sh: FAILED"
  exit 1
fi
end_commit=$(commit_here)
[[ $end_commit == "$begin_commit" ]] || end_commit="${end_commit%% *} dirty"
[[ -z $passed_file ]] || echo "$end_commit" >"$passed_file"
echo "test.sh: all stages passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
