#!/bin/bash
# man_pages.sh BIN DIR - manual pages of the programs in BIN, made from their --help, into DIR: of each program, each
# command of tandem and each verb of a command. Installing runs it; without help2man it says so and makes none.
set -euo pipefail
bin=$1 dir=$2
rm -rf "$dir"
mkdir -p "$dir"
if ! command -v help2man >/dev/null; then
  echo "man_pages.sh: help2man is not here, so no manual pages are installed (scripts/deps.sh installs it)" >&2
  exit 0
fi
PATH=$bin:$PATH # so that a page says `tandem', not where it was built
version=$(tandem --version | sed -n '1s/^tandem //p')

page() { # NAME, such as "tandem run" | what it is
  LC_ALL=C help2man --no-info --section=1 --version-string="${1// /-} $version" --name="$2" "$1" >"$dir/${1// /-}.1"
}

# "NAME  text" of each command or verb that the help of $1 lists.
listed() { LC_ALL=C $1 --help | sed -nE '/^(Commands|Verbs):$/,/^$/s/^  ([a-z-]+) +/\1 /p'; }

page tandem "lossless speculative decoding"
page tandem-target "target worker of tandem: verifies guessed tokens and gives the answer"
page tandem-draft "draft worker of tandem: guesses tokens ahead"
while read -r command text; do
  page "tandem $command" "$text"
  case $command in
  session) listed "tandem session" ;;
  bench) LC_ALL=C tandem bench --help | sed -nE 's/^(Usage|   or): tandem bench ([a-z]+) .*: /\2 /p' ;;
  esac | while read -r verb text; do page "tandem $command $verb" "${text#ID*: }"; done
done < <(listed tandem)
