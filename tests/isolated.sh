#!/bin/bash
# isolated.sh COMMAND... - runs a command so that nothing of it stays behind and nothing outside takes part.
# HOME and TMPDIR are folders of its own, which are removed at its end. Processes, mounts and a network, with
# loopback alone, are its own, too, where the system allows this, so that what it leaves running ends with it.
# Its status is the command's.
set -euo pipefail

if [[ ${1:-} == --inside ]]; then # the first process there
  shift
  ip link set lo up 2>/dev/null || true
  trap 'exit 130' INT TERM
  "$@"
  exit
fi

own=$(mktemp -d "${TMPDIR:-/tmp}/td.XXXXXX") # short: sockets lie below it
trap 'rm -rf --one-file-system "$own"' EXIT
trap 'exit 130' INT TERM
export TMPDIR=$own/t HOME=$own/h
mkdir "$TMPDIR" "$HOME"
unset "${!XDG_@}"

spaces=(unshare --fork --pid --kill-child --mount --propagation unchanged --mount-proc --net)
[[ $(id -u) -eq 0 ]] || spaces=()
[[ ${#spaces[@]} -eq 0 ]] || "${spaces[@]}" true 2>/dev/null || spaces=()
if [[ ${#spaces[@]} -gt 0 ]]; then
  "${spaces[@]}" "$BASH" "${BASH_SOURCE[0]}" --inside "$@"
else
  "$@"
fi
