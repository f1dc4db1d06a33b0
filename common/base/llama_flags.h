/* llama_flags.h - the flags and commands of llama.cpp that users know, and what serves instead here: a flag
 * or command of ours, nothing at all, or a sentence about what to do. Names must match exactly, so that no
 * abbreviation of one of our flags means something else. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct llama_flag {
  const char *theirs; /* as it is typed: "-n", "--n-predict", or a command */
  /* Our flag, "--max-tokens", or our command; NULL: there is none, and `instead' says what to do. */
  const char *ours;
  const char *instead; /* also where ours is a flag of some commands only; NULL: of `tandem run' */
} llama_flag;

typedef enum {
  LLAMA_SWITCH, /* it has no value */
  LLAMA_VALUE,
  LLAMA_WORD /* on, off or auto may follow */
} llama_value;

typedef struct llama_idle { /* a flag that would change no token here */
  const char *theirs;
  llama_value value;
  const char *instead; /* what serves the same end; NULL: nothing has to */
} llama_idle;

/* Of a word that is size bytes long; NULL: none. */
const llama_idle *llama_flags_find_idle(const char *word, size_t size);
bool llama_flags_is_word(const char *word); /* on, off or auto */

/* Of a word that is size bytes long; NULL: none. */
const llama_flag *llama_flags_find(const char *word, size_t size);
const llama_flag *llama_flags_find_command(const char *word);
/* All of the flags, *count of them. */
const llama_flag *llama_flags_all(int *count);
