#!/bin/bash
# One command from a fresh clone to an answer: packages, build, model, then `tandem run`. Messages go to stderr:
# stdout is the answer alone. Flags go to `tandem run`: scripts/run.sh "Why is the sky blue?" --max-tokens 50
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/release

"$root/scripts/deps.sh"
if [[ ! -f $build/build.ninja ]]; then
  echo "run.sh: configuring build/release" >&2
  cmake -S "$root" --preset release >/dev/null || {
    echo "run.sh: cmake failed: see above. scripts/deps.sh installs what is needed." >&2
    exit 1
  }
fi
# A build shows its progress; when there is (nearly) nothing to do it is not worth a line.
programs=(tandem tandem-target tandem-draft)
steps=$(ninja -C "$build" -n "${programs[@]}" | grep -c '^\[') || true
if [[ $steps -gt 3 ]]; then
  echo "run.sh: building $steps steps in build/release" >&2
  ninja -C "$build" "${programs[@]}" >&2
else
  log=$(ninja -C "$build" "${programs[@]}" 2>&1) || {
    echo "$log" >&2
    exit 1
  }
fi
"$root/scripts/get_model.sh"
exec "$build/bin/tandem" run -m "$root/models/SmolLM2-135M-Instruct.Q4_1.gguf" "$@"
