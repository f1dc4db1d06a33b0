#!/bin/bash
# Installs the packages that are missing: to build and run, with --test to test as well, and with --cuda to
# compile for CUDA devices (docs/GPU.md).
# Debian 12 and Ubuntu 24.04 names. Says what it does; does nothing, quickly, when everything is there.
set -euo pipefail

build_packages=(build-essential cmake ninja-build pkg-config help2man git python3 python3-pip
  libzmq3-dev libmsgpack-dev libmpack-dev libuv1-dev libjansson-dev libmicrohttpd-dev libgnutls28-dev
  libcurl4-gnutls-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev libsqlite3-dev libedit-dev libyaml-dev libncurses-dev)
test_packages=(patch file iproute2 spin openssl shellcheck libcmocka-dev
  python3-zmq python3-msgpack python3-xxhash
  clang-14 libclang-rt-14-dev clang-format-14)

# nvcc, the runtime library and NVTX's header, as PyPI has them. Earlier versions' packages lack nvcc itself.
cuda_wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-nvtx==13.0.85)

cd "$(dirname "${BASH_SOURCE[0]}")/.."
wanted=("${build_packages[@]}")
cuda=
for flag; do
  case $flag in
  --test) wanted+=("${test_packages[@]}") ;;
  --cuda) cuda=yes ;;
  *)
    echo "usage: scripts/deps.sh [--test] [--cuda]" >&2
    exit 2
    ;;
  esac
done

missing_packages() {
  local package have
  # `have` is empty for a system without one of them; dpkg-query then also fails, which is no error here.
  have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
    sed -n 's/^installed //p') || true
  for package in "${wanted[@]}"; do
    grep -qxF -- "$package" <<<"$have" || echo "$package"
  done
}

install_packages() { # NAME...
  local as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "deps.sh: not root, and no sudo. Ask an administrator for: apt-get install $*" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends "$@")

  echo "deps.sh: installing $*" >&2
  "${install[@]}" >&2 && return
  echo "deps.sh: trying again with new package lists" >&2
  "${as_root[@]}" apt-get update >&2
  "${install[@]}" >&2 || {
    echo "deps.sh: apt-get could not install them: see above. Is there a network, and is this" \
      "Debian 12 or Ubuntu 24.04?" >&2
    return 1
  }
}

# Where no toolkit is found, one comes from PyPI into build/cuda, where the build looks too. Compiling takes
# neither a GPU nor a driver.
install_cuda() {
  cmake -P scripts/cuda_toolkit.cmake >/dev/null 2>&1 && return
  echo "deps.sh: there is no CUDA toolkit: fetching one from PyPI into build/cuda (105 MB)" >&2
  local python=/usr/bin/python3 new=build/cuda.new said
  [[ -x $python ]] && $python -m pip --version >/dev/null 2>&1 || python=python3
  rm -rf "$new" build/cuda
  if ! said=$("$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
    --no-deps --target "$new" "${cuda_wheels[@]}" 2>&1); then
    rm -rf "$new"
    echo "deps.sh: pip could not fetch CUDA's compiler (${said##*$'\n'}). Is there a network? A CUDA" \
      "toolkit of version 12.8 or later that is installed by other means serves as well." >&2
    return 1
  fi
  mv "$new" build/cuda
  cmake -P scripts/cuda_toolkit.cmake >&2
}

if ! command -v apt-get >/dev/null; then
  echo "deps.sh: no apt-get here. Install by hand what these Debian packages hold: ${wanted[*]}" >&2
  exit 1
fi
mapfile -t missing < <(missing_packages)
[[ ${#missing[@]} -eq 0 ]] || install_packages "${missing[@]}"
[[ -z $cuda ]] || install_cuda
