#!/bin/bash
# Checks a GPU: builds with CUDA, runs what scripts/gpu_check.py lists, and prints one table. The status is 0
# when all is well or there is no GPU, and 1 when a line says FAILED. CUDA_VISIBLE_DEVICES=1 chooses another.
#
#   scripts/gpu_check.sh [--minutes M] [--only PART] [...]   the flags are those of scripts/gpu_check.py
#
# With BIN=FOLDER it installs and builds nothing: the folder holds the programs and tests of a build with
# -DTANDEM_CUDA=ON -DTANDEM_EMULATED=OFF. DEVICE=far:cpu tries all of it on a machine without a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has_gpu() { # a driver that lists one, its device file, or the one of WSL
  nvidia-smi -L 2>/dev/null | grep -q '^GPU' || compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]]
}

build() {
  scripts/deps.sh --test --cuda
  scripts/get_model.sh
  cmake --preset release -DTANDEM_CUDA=ON -DTANDEM_EMULATED=OFF >/dev/null
  cmake --build --preset release
}

if [[ ${DEVICE:-cuda:0} == cuda* ]] && ! has_gpu; then
  echo "gpu_check.sh: skipped: no CUDA device"
  exit 0
fi
[[ -n ${BIN:-} ]] || build
nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>/dev/null || true
exec python3 scripts/gpu_check.py "$@"
