/* closing_lines.h - the lines that people read on stderr after an answer: how long it took, what the draft
 * was worth, and why the answer is not longer. */
#pragma once

#include "orchestrator/service/completion.h"
#include "orchestrator/service/request_queue.h"
#include <stdio.h>

/* "42 tokens, 271.0 tok/s, 30 of 61 guessed right": of one answer in a conversation. */
#define CLOSING_LINES_FIGURES_MAX 160
void closing_lines_figures(const completion *c, char out[CLOSING_LINES_FIGURES_MAX]);

typedef struct closing_lines_options {
  bool kept;          /* the ledger's file holds the session, so that it can be resumed */
  const char *ledger; /* that file, where it was named; NULL: the default one */
  bool same_limit;    /* of a resumed answer: no other one than before was given */
  bool seed_drawn;    /* a seed was drawn because none was given, and sampling used it */
  bool gain;          /* say what speculation has gained, or that nobody can say */
  bool legend;        /* say what the colours mean */
  bool details;       /* say how it was decoded, too */
} closing_lines_options;

/* "tandem: 96 tokens, 412.0 tok/s; the draft guessed 60 of 91 right; ...", in one line or two. */
void closing_lines_print(FILE *to, const completion *c, const closing_lines_options *o);
/* Of the same request answered plainly and with a draft: both speeds, and "identical: yes". */
void closing_lines_print_both(FILE *to, const completion *plain, const completion *drafted,
                              const closing_lines_options *o);
/* Of many requests; `draft`: the method that the command was given. */
void closing_lines_print_queue(FILE *to, const request_queue *q, const char *draft);
