/* word_wrap.h - breaks the lines of a text that comes in pieces at blanks, where a terminal would break
 * words. A word is held back until it is whole. Pure. */
#pragma once

#include <stddef.h>

#define WORD_WRAP_HELD_MAX 4096 /* bytes; a word that has more is broken */

typedef struct word_wrap {
  size_t column;        /* where the text that was given out ends */
  size_t blanks, width; /* columns of what is held: blanks, and a word behind them */
  size_t size;
  char held[WORD_WRAP_HELD_MAX];
  int (*put)(void *context, const char *text, size_t size); /* takes what is given out; 0, or an error */
  void *context;
} word_wrap;

/* text: whole characters, clean but for colours (terminal.h). Returns what put() does. */
int word_wrap_add(word_wrap *w, size_t columns, const char *text, size_t size);
/* The text ends, and the next one begins a line. */
int word_wrap_end(word_wrap *w, size_t columns);
