#!/bin/bash
# Installs the packages that are missing: to build and run, and with --test to test as well.
# Debian 12 and Ubuntu 24.04 names. Says what it does; does nothing, quickly, when everything is there.
set -euo pipefail

build_packages=(build-essential cmake ninja-build pkg-config help2man git python3 python3-pip
  libzmq3-dev libmsgpack-dev libmpack-dev libuv1-dev libjansson-dev libpcre2-dev libutf8proc-dev
  libxxhash-dev libsqlite3-dev libedit-dev)
test_packages=(patch iproute2 libcmocka-dev python3-zmq python3-msgpack python3-xxhash
  clang-14 libclang-rt-14-dev clang-format-14)

wanted=("${build_packages[@]}")
if [[ "${1:-}" == --test ]]; then
  wanted+=("${test_packages[@]}")
elif [[ $# -gt 0 ]]; then
  echo "usage: scripts/deps.sh [--test]" >&2
  exit 2
fi

if ! command -v apt-get >/dev/null; then
  echo "deps.sh: no apt-get here. Install by hand what these Debian packages hold: ${wanted[*]}" >&2
  exit 1
fi

# `have` is empty for a system without one of them; dpkg-query then also fails, which is no error here.
have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
  sed -n 's/^installed //p') || true
missing=()
for package in "${wanted[@]}"; do
  grep -qxF -- "$package" <<<"$have" || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "deps.sh: not root, and no sudo. Ask an administrator for: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "deps.sh: installing ${missing[*]}" >&2
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}" >&2
}
if ! install; then
  echo "deps.sh: trying again with new package lists" >&2
  "${as_root[@]}" apt-get update >&2
  install || {
    echo "deps.sh: apt-get could not install them: see above. Is there a network, and is this" \
      "Debian 12 or Ubuntu 24.04?" >&2
    exit 1
  }
fi
