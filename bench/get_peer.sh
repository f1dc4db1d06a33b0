#!/bin/bash
# Builds the peer of the benchmarks, llama.cpp, into DIR (outside the repository): from the source package
# llama-cpp-python on PyPI, which carries it whole, checked by its sha256, with the processor's own instruction sets.
# Afterwards DIR/bin holds llama-bench, llama-server and verify_width (bench/peer/verify_width.c), and DIR/peer.txt
# tells what was built. Again in the same DIR: only what is missing is done. Ten minutes on two cores, 1 GB.
#
#   bench/get_peer.sh [--cuda] DIR
#
# With --cuda it computes on GPUs too, for bench/bench_gpu.py: that takes NVIDIA's driver, CUDA's toolkit (nvcc) and, on two
# cores, half an hour more. CUDA_ARCHITECTURES=90 names the kind of GPU; without it, it is this machine's own. Take another
# folder than for the CPU's benchmarks, which would meet a peer that computes on the GPU.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

package=llama-cpp-python==0.3.36
sdist=llama_cpp_python-0.3.36.tar.gz
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
options=(-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF)

cuda=OFF
if [[ ${1-} == --cuda ]]; then
  command -v nvcc >/dev/null || [[ -n ${CUDACXX-} ]] || {
    echo "get_peer.sh: --cuda needs nvcc, of CUDA's toolkit, in PATH, or CUDACXX=/path/to/nvcc" >&2
    exit 1
  }
  cuda=ON
  options+=("-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-native}")
  shift
fi
options+=("-DGGML_CUDA=$cuda")
if [[ $# -ne 1 || $1 == -* ]]; then
  echo "usage: bench/get_peer.sh [--cuda] DIR, for example ../llama.cpp-peer, where scripts/bench_cpu.sh looks by itself" >&2
  [[ $# -eq 1 && ($1 == -h || $1 == --help) ]] && exit 0
  exit 2
fi
dir=$(realpath -m "$1")
if [[ $dir/ == "$root"/* ]]; then
  echo "get_peer.sh: $dir lies inside the repository: name a folder outside of it" >&2
  exit 2
fi
mkdir -p "$dir"
cd "$dir"

is_right() { [[ -f $sdist ]] && echo "$sha256  $sdist" | sha256sum --check --status -; }

if ! is_right; then
  echo "get_peer.sh: fetching $sdist (77 MB) from PyPI" >&2
  python=/usr/bin/python3
  [[ -x $python ]] && $python -m pip --version >/dev/null 2>&1 || python=python3
  "$python" -m pip download --no-deps --disable-pip-version-check --no-binary :all: --dest . "$package" >&2 || {
    echo "get_peer.sh: pip could not fetch $package. Is the network there, and pip (scripts/deps.sh)?" >&2
    exit 1
  }
  is_right || {
    echo "get_peer.sh: $dir/$sdist has another sha256 than $sha256: remove it and try again" >&2
    exit 1
  }
fi

source=${sdist%.tar.gz}/vendor/llama.cpp
[[ -f $source/CMakeLists.txt ]] || tar -xzf "$sdist"
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
cmake -S "$source" -B build "${generator[@]}" "${options[@]}" >&2
nice cmake --build build --parallel "$(nproc)" --target llama-bench llama-server llama >&2
mkdir -p bin
for program in llama-bench llama-server; do ln -sf "../build/bin/$program" "bin/$program"; done
"${CC:-cc}" -std=c11 -O2 -Wall -Wextra -D_GNU_SOURCE -I "$source/include" -I "$source/ggml/include" \
  "$root/bench/peer/verify_width.c" -o bin/verify_width -L build/bin -lllama -lggml -lggml-base \
  -Wl,-rpath,"$dir/build/bin"
{
  echo "llama.cpp of the source package $sdist (sha256 $sha256)"
  echo "cmake ${options[*]}"
  "${CXX:-c++}" --version | head -1
} >peer.txt
echo "get_peer.sh: $dir/bin holds llama-bench, llama-server and verify_width" >&2
