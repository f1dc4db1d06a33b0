#!/bin/bash
# Checks `tandem serve` from outside, by hand: clients that are no part of tandem use it as they are, and
# schemathesis sends it bodies made from /openapi.json. Installs them from PyPI into build/api. Not a part of
# test.sh: it needs the network and minutes. TANDEM_BIN: folder of the programs (default build/release/bin).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=(schemathesis==4.32.5)
clients=(openai==2.54.0 litellm==1.106.2 llm==0.32.1 langchain-openai==1.7.3)
cases=${1:-1000} # of each path, at most
port=${PORT:-8939}
url=http://127.0.0.1:$port
key=a-key
room=build/api

install() { # FOLDER PACKAGE...
  [[ -x $room/$1/bin/python ]] || python3 -m venv "$room/$1"
  "$room/$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}

mkdir -p "$room"
install tools "${tools[@]}"
install clients "${clients[@]}"
scripts/get_model.sh

"${TANDEM_BIN:-build/release/bin}/tandem" serve -m models/SmolLM2-135M-Instruct.Q4_1.gguf --port "$port" \
  --ledger none --ctx 256 --api-key "$key" 2>"$room/server.log" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
for ((i = 0; i < 300; i++)); do
  curl -sf "$url/health" >/dev/null && break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
if ! curl -sf "$url/health" >/dev/null; then
  cat "$room/server.log" >&2
  exit 1
fi

failed=0
export LITELLM_LOCAL_MODEL_COST_MAP=True # it would fetch prices
"$room/clients/bin/python" tests/clients/check_clients.py "$url" "$key" || failed=1
checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance
(cd "$room" && tools/bin/st run "$url/openapi.json" -H "Authorization: Bearer $key" -n "$cases" \
  --checks "$checks" --phases examples,coverage,fuzzing --generation-deterministic --continue-on-failure) ||
  failed=1
kill -0 "$server" || failed=1
exit "$failed"
