#!/bin/bash
# bash_completion.sh BIN DIR - what bash needs to complete the commands and flags of the programs in BIN, made
# from their --help, into DIR: a file by the name of each program. Installing runs it.
set -euo pipefail
bin=$1 dir=$2
programs=(tandem tandem-target tandem-draft)
rm -rf "$dir"
mkdir -p "$dir"
PATH=$bin:$PATH # so that a word is `tandem', not where it was built

# "-m=FILE", "--model=FILE", "--raw", ... of the help on stdin.
flags() {
  sed -nE 's/^ {2,6}((-[a-zA-Z?]), )?--([a-z-]+)(\[?=([^] ]+)\]?)?( .*)?$/\2 --\3 \5/p' |
    while read -r -a words; do
      value=
      [[ ${words[-1]} == -* ]] || value="=${words[-1]}"
      for word in "${words[@]}"; do [[ $word != -* || $word == '-?' ]] || echo "$word$value"; done
    done
}

# Commands, verbs, or what stands first in the usage of $1, whose help is on stdin.
subcommands() {
  sed -nE -e '/^(Commands|Verbs):$/,/^$/s/^  ([a-z-]+) .*/\1/p' -e "s/^(Usage|   or): $1 ([a-z]+) .*/\2/p"
}

tell() { # "tandem", "tandem run", ...: its words, and those of what is below it
  local help below words
  help=$(LC_ALL=C $1 --help)
  mapfile -t below < <(subcommands "$1" <<<"$help")
  mapfile -t words < <(flags <<<"$help")
  words=("${below[@]}" "${words[@]}")
  echo "  ['$1']='${words[*]}'"
  for word in "${below[@]}"; do tell "$1 $word"; done
}

{
  echo "# Completion of ${programs[*]} for bash, made by bash_completion.sh from their --help."
  echo 'declare -gA _tandem_words=('
  for program in "${programs[@]}"; do tell "$program"; done
  echo ')'
  cat <<'FUNCTIONS'

# The command that the words before the cursor name, and its words.
_tandem_command() {
  local i=1
  command=${COMP_WORDS[0]##*/}
  while ((i < COMP_CWORD)) && [[ ${_tandem_words["$command ${COMP_WORDS[i]}"]+set} ]]; do
    command+=" ${COMP_WORDS[i++]}"
  done
  read -ra words <<<"${_tandem_words[$command]}"
}

# A flag's value: one of a few words, or nothing, which bash takes as the name of a file.
_tandem_value() {
  local known=${1#*=}
  [[ $known == *'|'* ]] || return 0
  for known in ${known//'|'/ }; do [[ $known != "$2"* || $known == *[A-Z\(]* ]] || COMPREPLY+=("$known"); done
}

_tandem() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command words word
  COMPREPLY=()
  _tandem_command
  [[ $current != = ]] || current=
  [[ $before != = ]] || before=${COMP_WORDS[COMP_CWORD - 2]}
  for word in "${words[@]}"; do
    if [[ $word == "$before="* ]]; then
      _tandem_value "$word" "$current"
      return
    fi
  done
  for word in "${words[@]%%=*}"; do
    [[ $word != "$current"* || ($word == -* && $current != -*) ]] || COMPREPLY+=("$word")
  done
}

FUNCTIONS
  echo "complete -o bashdefault -o default -F _tandem ${programs[*]}"
} >"$dir/tandem"
for program in "${programs[@]:1}"; do ln -s tandem "$dir/$program"; done
