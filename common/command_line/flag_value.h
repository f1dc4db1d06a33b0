/* flag_value.h - values of flags: read to where they belong, and printed as they would be typed. */
#pragma once

#include "common/base/err.h"
#include "common/command_line/flag_list.h"

/* What a program, or a command of tandem, has to do with flags. */
typedef struct flag_program {
  flag_command command;
  const char *name;    /* what messages begin with; flag_read_all takes it of argv */
  const char *more;    /* the end of --help; NULL: nothing */
  flag_values *values; /* hold the defaults */
  void *context;       /* of what follows; each returns an ERR_ code, with a sentence for the user */
  /* A flag that the program reads itself. text: NULL where it has none, and need not. NULL: only the text is
   * kept. */
  int (*own)(void *context, flag_id id, const char *text, err *e);
  int (*whole)(void *context, err *e); /* all has been read: does it fit together? NULL: it does */
} flag_program;

/* Puts a value where it belongs; text: NULL of a switch. A wrong one is refused: `where' says where it
 * stands, such as "FILE:3: ". */
void flag_give(const flag_program *p, const flag_row *row, const char *text, flag_source from,
               const char *where);

/* Ends the program with STATUS_USAGE, and one sentence on stderr. */
_Noreturn void flag_refuse(const flag_program *p, const char *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define FLAG_WORD_MAX 64 /* bytes of a word of a choice, with the zero */

/* Word `n` of a row's argument "a|b|c", into out[FLAG_WORD_MAX]; false: it has fewer. */
bool flag_word(const flag_row *row, int n, char out[FLAG_WORD_MAX]);
/* The number of a word, or -1. */
int flag_word_number(const flag_row *row, const char *word);
/* The value as it would be typed, into out[size]; false: there is none, or it depends on more. */
bool flag_print(const flag_row *row, const flag_values *v, char *out, size_t size);
