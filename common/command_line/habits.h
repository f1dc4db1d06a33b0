/* habits.h - the flags and commands of llama.cpp that users know, and what serves instead here: a flag
 * or command of ours, nothing at all, or a sentence about what to do. Names must match exactly, so that no
 * abbreviation of one of our flags means something else. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct habit {
  const char *theirs; /* names with blanks between them: "-n --n-predict", or commands */
  /* Our flag, "--max-tokens", or our command; NULL: there is none, and `instead' says what to do. */
  const char *ours;
  const char *instead; /* also where ours is a flag of some commands only; NULL: of `tandem run' */
} habit;

typedef enum {
  HABIT_SWITCH, /* it has no value */
  HABIT_VALUE,
  HABIT_WORD /* on, off or auto may follow */
} habit_value;

typedef struct habit_idle { /* flags that would change no token here */
  const char *theirs;       /* as above */
  habit_value value;
  const char *instead; /* what serves the same end; NULL: nothing has to */
} habit_idle;

/* Of a word that is size bytes long; NULL: none. */
const habit_idle *habits_find_idle(const char *word, size_t size);
bool habits_is_word(const char *word); /* on, off or auto */

/* Of a word that is size bytes long; NULL: none. */
const habit *habits_find(const char *word, size_t size);
const habit *habits_find_command(const char *word);
/* All of the flags, *count of them. */
const habit *habits_all(int *count);
