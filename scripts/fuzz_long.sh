#!/bin/bash
# All fuzzers in turn on all cores: scripts/fuzz_long.sh HOURS. Each gets an equal share of the time; what
# each finds goes on in build/fuzz/corpus. Then many_frames, with three shares, derives frames from what
# fuzz_frame has found, several times as fast, and command lines are drawn. The last line counts; status 1: an
# input broke something, and lies in build/fuzz/NAME-crash-* or build/fuzz/long.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

hours=${1:?usage: scripts/fuzz_long.sh HOURS (such as 2 or 0.1)}
jobs=${FUZZ_JOBS:-$(nproc)}
frames_share=3

build() {
  cmake --preset fuzz >/dev/null
  cmake --build --preset fuzz -- "${names[@]}" >/dev/null
  cmake --preset asan >/dev/null
  cmake --build --preset asan -- many_frames >/dev/null
  cmake --preset release >/dev/null
  cmake --build --preset release -- programs >/dev/null
}

one() { # NAME SECONDS NUMBER
  local seeds=() corpus=build/fuzz/corpus/$1
  [[ $1 == fuzz_frame ]] && seeds=(-max_len=4096 wire/vectors/good wire/vectors/bad)
  mkdir -p "$corpus"
  "build/fuzz/bin/$1" -max_total_time="$2" -seed="$((RANDOM * 64 + $3))" -print_final_stats=1 -verbosity=0 \
    -reload=0 -rss_limit_mb=4096 -artifact_prefix="build/fuzz/$1-" "$corpus" "${seeds[@]}" \
    >"build/fuzz/long/$1-$3.log" 2>&1
}

frames() { # SECONDS NUMBER
  local folders=("$PWD/wire/vectors/good" "$PWD/wire/vectors/bad" "$PWD/build/fuzz/corpus/fuzz_frame")
  local program=$PWD/build/asan/bin/many_frames
  mkdir -p "build/fuzz/long/$2" && cd "build/fuzz/long/$2" || return 1
  ASAN_OPTIONS=abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1 \
    "$program" "$1" "$((RANDOM * 64 + $2))" "${folders[@]}" >"../many_frames-$2.log" 2>&1
}

all_of() { # NAME SECONDS
  local failed=0
  echo "--- $1, $2 s on $jobs cores"
  seq "$jobs" | xargs -P "$jobs" -I{} "$BASH" -c "one $1 $2 {}" || failed=1
  cat "build/fuzz/long/$1"-*.log >"build/fuzz/long/$1.log"
  [[ $failed -eq 0 ]] || grep -hE "ERROR|SUMMARY" "build/fuzz/long/$1.log" || true
  return $failed
}

sum() { # PATTERN: of the numbers behind it in all logs
  cat build/fuzz/long/*-*.log | sed -nE "s/^$1 *([0-9]+)\$/\1/p" |
    awk '{ s += $1 } END { printf "%.0f", s }'
}

names=()
for name in tests/fuzz/fuzz_*.c; do names+=("$(basename "$name" .c)"); done
build
rm -rf build/fuzz/long
mkdir -p build/fuzz/long
export -f one frames
shares=$((${#names[@]} + frames_share + 1))
share=$(awk -v h="$hours" -v n="$shares" 'BEGIN { s = int(h * 3600 / n); print s < 1 ? 1 : s }')
crashed=()
for name in "${names[@]}"; do all_of "$name" "$share" || crashed+=("$name"); done
echo "--- many_frames, $((share * frames_share)) s on $jobs cores"
seq "$jobs" | xargs -P "$jobs" -I{} "$BASH" -c "frames $((share * frames_share)) {}" || {
  crashed+=(many_frames)
  cat build/fuzz/long/many_frames-*.log
}
echo "--- command lines, $share s on $jobs cores"
log=build/fuzz/long/command_lines.log
seq "$jobs" | PYTHONDONTWRITEBYTECODE=1 xargs -P "$jobs" -I{} \
  /usr/bin/python3 tests/fuzz/command_lines.py --seconds "$share" --seed {} >"$log" || {
  crashed+=(command_lines)
  cat "$log"
}
lines=$(sed -nE 's/^lines: //p' "$log" | awk '{ s += $1 } END { print s + 0 }')
inputs=$(sum 'stat::number_of_executed_units:')
echo "fuzz_long.sh: $(sum 'frames:') frames, $inputs inputs of ${#names[@]} fuzzers, $lines command lines;" \
  "crashes: ${crashed[*]:-none}"
[[ ${#crashed[@]} -eq 0 ]]
