#!/bin/bash
# Speed on this machine's CPUs: builds Release, then measures and prints a table, in twenty minutes.
# Exits 1 when something that must hold does not, or was not measured.
#
#   --quick          a first look, not a result: fewer and shorter repetitions
#   --only ROW       only the parts with rows that begin so, for example 'replay'; 'methods' alone measures every
#                    method on real prompts, by category, for an hour or two; 'real pair' alone fetches and measures
#                    a model of 1.5 billion parameters with a draft model; 'long prompts' alone measures prompt
#                    lookup in prompts of 6,000 tokens, for over twenty minutes on two cores; 'chunks' alone
#                    compares trees that are verified at once with trees that are verified in chunks
#   --peer DIR       llama.cpp, as bench/get_peer.sh DIR builds it (default: $TANDEM_PEER, or ../llama.cpp-peer where
#                    it exists; without it the rows that need it do not hold)
#   --json FILE      also write one JSON object a row to FILE
#   --markdown FILE  also write everything as Markdown to FILE
#   --model FILE     another model than the default one
#   --bin DIR        programs that were built elsewhere, instead of building them
#   --help           this text
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/release
usage=$(sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}")
bin=$build/bin model=$root/models/SmolLM2-135M-Instruct.Q4_1.gguf

# What is wrong is said at once, before anything is installed or built. Which rows there are, Python knows.
refuse() {
  printf 'bench_cpu.sh: %s\nTry scripts/bench_cpu.sh --help\n' "$1" >&2
  exit 2
}
flags=()
while [[ $# -gt 0 ]]; do
  name=${1%%=*}
  case $name in
  --quick) flags+=("$1") ;;
  --help | -h) echo "Usage: scripts/bench_cpu.sh [FLAGS...]"; echo "$usage"; exit 0 ;;
  --only | --peer | --json | --markdown | --model | --bin)
    if [[ $1 == *=* ]]; then value=${1#*=}; else value=${2-}; [[ $# -ge 2 ]] || refuse "$name needs a value"; shift; fi
    case $name in --model) model=$value ;; --bin) bin=$value ;; *) flags+=("$name=$value") ;; esac
    ;;
  *) refuse "there is no flag $1" ;;
  esac
  shift
done
export PYTHONDONTWRITEBYTECODE=1
measure=(python3 "$root/bench/bench_cpu.py" --bin "$bin" --model "$model" "${flags[@]}")
if command -v python3 >/dev/null; then "${measure[@]}" --check; fi

"$root/scripts/deps.sh" --test # two tests are rows
if [[ $bin == "$build/bin" ]]; then
  # Again each time: the libraries of the tests may have come after the first configuration.
  cmake -S "$root" --preset release >/dev/null || {
    echo "bench_cpu.sh: cmake failed: see above. scripts/deps.sh installs what is needed." >&2
    exit 1
  }
  ninja -C "$build" programs bench_memory bench_multiply bench_step bench_linear bench_features test_model_bits \
    test_ops_linear test_ops_rows test_ops_attention test_ops_cache test_ops_head test_ops_views 2>&1 |
    sed -uE '/^ninja: (Entering|no work)|Re-checking globbed|version\.cmake$/d' >&2 || {
    echo "bench_cpu.sh: the build failed: see above. With a damaged build/release, remove it and start again." >&2
    exit 1
  }
fi
[[ $model != "$root/models/"* ]] || "$root/scripts/get_model.sh"
if [[ " ${flags[*]} " == *" --only=real pair"* ]]; then
  for name in 1.5b 0.5b; do "$root/scripts/get_model.sh" "qwen2.5-coder-$name"; done
fi
exec "${measure[@]}"
