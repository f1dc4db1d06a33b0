/* habits.h - what users of llama.cpp type, and what it is here: a name of its own for a flag of ours, or a
 * word of what to do instead. Exact names only, so that no beginning of one of our flags means something
 * else. */
#pragma once

#include <stddef.h>

typedef struct habit {
  const char *theirs; /* as it is typed: "-n", "--n-predict", or a command */
  const char *
      ours; /* our flag, "--max-tokens", or our command; NULL: there is none, and `instead' says what to do */
  const char *instead; /* also where ours is a flag of some commands only; NULL: of `tandem run' */
} habit;

/* Of a word that is size bytes long; NULL: none. */
const habit *habit_of_flag(const char *word, size_t size);
const habit *habit_of_command(const char *word);
/* All of the flags, *count of them. */
const habit *habit_flags(int *count);
