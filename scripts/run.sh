#!/bin/bash
# One command from a fresh clone to an answer: packages, build, model, `tandem run`. Messages go to stderr:
# stdout is the answer alone. Flags go to `tandem run`: scripts/run.sh "Why is the sky blue?" --max-tokens 50
# With --pair in front: a model of 1.5 billion parameters that writes code, and one of 0.5 billion as its
# draft (1.6 GB are fetched, and about 2.5 GB of memory are needed).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/release
pair=false
if [[ ${1:-} == --pair ]]; then
  pair=true
  shift
fi

"$root/scripts/deps.sh"
if [[ ! -f $build/build.ninja ]]; then
  echo "run.sh: configuring build/release" >&2
  cmake -S "$root" --preset release >/dev/null || {
    echo "run.sh: cmake failed: see above. scripts/deps.sh installs what is needed." >&2
    exit 1
  }
fi
# Every step that compiles or links is shown; when there is nothing to do, nothing is.
ninja -C "$build" programs 2>&1 |
  sed -uE '/^ninja: (Entering|no work)|Re-checking globbed|version\.cmake$/d' >&2 || {
  echo "run.sh: the build failed: see above. With a damaged build/release, remove it and start again." >&2
  exit 1
}
if $pair; then
  "$root/scripts/get_model.sh" qwen2.5-coder-1.5b
  "$root/scripts/get_model.sh" qwen2.5-coder-0.5b
  exec "$build/bin/tandem" run -m "$root/models/Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf" \
    -md "$root/models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf" "$@"
fi
"$root/scripts/get_model.sh"
exec "$build/bin/tandem" run -m "$root/models/SmolLM2-135M-Instruct.Q4_1.gguf" "$@"
