#!/bin/bash
# Checks a GPU: builds with CUDA, runs the tests of the CUDA kernels and those that take a device, and
# prints one table. --built: installs and builds nothing, and runs what build/release holds. The status is 0
# when all is well or there is no GPU, and 1 when a test fails. CUDA_VISIBLE_DEVICES=1 chooses another GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export TANDEM_TEST_DEVICE=cuda:0
bin=build/release/bin
logs=build/gpu_check
seconds_at_most=900 # for one test

has_gpu() { # a driver that lists one, its device file, or the one of WSL
  nvidia-smi -L 2>/dev/null | grep -q '^GPU' || compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]]
}

build() {
  scripts/deps.sh --test --cuda
  scripts/get_model.sh
  cmake --preset release -DTANDEM_CUDA=ON >/dev/null
  cmake --build --preset release
}

# The programs of tests/test_cuda_*.cu, and those that read the name of a device to open.
tests() {
  find "$bin/gpu" -name 'test_*' | sort
  find "$bin" -maxdepth 1 -name 'test_*' -exec grep -lF TANDEM_TEST_DEVICE {} + | sort
}

run_test() { # PROGRAM
  local name=${1#"$bin/"} begin=$SECONDS status=0 result=ok skipped
  local log=$logs/${name//\//_}.txt
  timeout "$seconds_at_most" "$1" >"$log" 2>&1 || status=$?
  skipped=$(grep -c '^\[  SKIPPED \] [a-z_0-9]*$' "$log" || true)
  [[ $skipped -eq 0 ]] || result="ok, $skipped skipped"
  [[ $status -eq 0 ]] || result="FAILED ($status), see $log"
  printf '%-32s %5d s  %s\n' "$name" $((SECONDS - begin)) "$result"
  return "$status"
}

case ${1:-} in
'' | --built) ;;
*)
  echo "usage: scripts/gpu_check.sh [--built]" >&2
  exit 2
  ;;
esac
if ! has_gpu; then
  echo "gpu_check.sh: skipped: no CUDA device"
  exit 0
fi
[[ -n ${1:-} ]] || build
mapfile -t programs < <(tests)
if [[ ${#programs[@]} -eq 0 ]]; then
  echo "gpu_check.sh: $bin holds no test of a GPU; without --built they are built" >&2
  exit 1
fi

mkdir -p "$logs"
nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>/dev/null || true
failed=0
for program in "${programs[@]}"; do
  run_test "$program" || failed=$((failed + 1))
done
echo "gpu_check.sh: ${#programs[@]} tests, $failed failed"
[[ $failed -eq 0 ]]
