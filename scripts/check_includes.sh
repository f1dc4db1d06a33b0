#!/bin/bash
# Fails when an include arrow points back (docs/ARCHITECTURE.md): each folder may include from itself and from
# those beside it in the table, and only three files of wire/ know ZeroMQ.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

text="common/base common/command_line common/file common/text common/grammar common/speculative"
worker="$text common/model kernels kernels/devices wire"
service="$text wire orchestrator/ledger orchestrator/sessions"
declare -A may=(
  [kernels]="common/base"
  [kernels/cpu]="common/base kernels"
  [kernels/cuda]="common/base kernels kernels/cpu"
  [kernels/far]="common/base kernels"
  [kernels/devices]="common/base kernels kernels/cpu kernels/cuda kernels/far"
  [common/base]=""
  [common/command_line]="common/base"
  [common/file]="common/base"
  [common/speculative]="common/base"
  [common/text]="common/base common/file"
  [common/grammar]="common/base common/text"
  [common/model]="common/base common/file kernels"
  [wire]="common/base common/command_line common/speculative"
  [draft_worker/drafters]="$worker"
  [draft_worker]="$worker draft_worker/drafters"
  [target_worker]="$worker"
  [orchestrator/ledger]="common/base common/speculative wire"
  [orchestrator/sessions]="common/base common/speculative wire orchestrator/ledger"
  [orchestrator/service]="$service"
  [orchestrator/service/http]="common/base"
  [orchestrator/service/api]="$service orchestrator/service orchestrator/service/http"
  [orchestrator/cli]="$service orchestrator/service orchestrator/service/api"
  [orchestrator/operate]="common/base common/command_line wire orchestrator/cli"
)

# Folder of the table that a path lies in (the innermost one), or nothing.
folder_of() {
  local folder found=""
  for folder in "${!may[@]}"; do
    [[ $1 == "$folder"/* && ${#folder} -gt ${#found} ]] && found=$folder
  done
  echo "$found"
}

wrong=0
complain() {
  echo "check_includes.sh: $1:$2: $3" >&2
  wrong=$((wrong + 1))
}

# Lines "FILE:LINE:PATH" of every quoted include, and of ZeroMQ's headers.
while IFS=: read -r file line path; do
  from=$(folder_of "$file")
  case $path in
  zmq.h | czmq.h | zmq_utils.h)
    [[ $file == wire/transport.c || $file == wire/curve.c || $file == wire/key.c ]] ||
      complain "$file" "$line" "only transport.c, curve.c and key.c of wire/ may include $path"
    ;;
  version.h | openapi.h) ;; # made by the build
  *)
    to=$(folder_of "$path")
    if [[ -z $to || ! -f $path ]]; then
      complain "$file" "$line" "\"$path\" is in no folder of the table: write it from the repository's root"
    elif [[ $to != "$from" && " ${may[$from]} " != *" $to "* ]]; then
      complain "$file" "$line" "$from must not include $to ($path)"
    fi
    ;;
  esac
done < <(grep -rnE --include='*.[ch]' --include='*.cu' --include='*.cuh' \
  '^[[:space:]]*#[[:space:]]*include[[:space:]]*("|<(c?zmq|zmq_utils)\.h>)' \
  "${!may[@]}" | sort -u | sed -E 's/^([^:]+):([0-9]+):[^"<]*["<]([^">]+)[">].*/\1:\2:\3/')

if [[ $wrong -gt 0 ]]; then
  echo "check_includes.sh: $wrong wrong includes" >&2
  exit 1
fi
echo "check_includes.sh: every include points the right way"
