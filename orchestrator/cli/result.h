/* result.h - an answer as the JSON object of `--json` and `batch`, and as the closing lines for people. */
#pragma once

#include "orchestrator/service/completion.h"
#include <jansson.h>
#include <stdio.h>

/* text, token_ids, prompt_tokens, prompt_ids, finish_reason, seed, numerics_id, stats {...}; error when there
 * was one; numerics_changed when that happened. `id` (borrowed) comes first unless NULL. NULL: out of memory.
 */
json_t *result_of(const completion *a, json_t *id);
/* The same shape for a request that could not begin. */
json_t *result_of_error(json_t *id, const char *why);
const char *result_finish_name(wire_finish finish); /* "stop", "length", "cancelled", "error" */
/* One line with its newline; free() it. NULL: out of memory. Takes `object`. */
char *result_line(json_t *object);

/* The same prompt answered plainly and with a draft: {identical, first_difference, speedup, plain, draft}. */
json_t *result_of_both(const completion *plain, const completion *drafted);
/* Where their tokens differ first; -1: nowhere. */
int32_t result_first_difference(const completion *plain, const completion *drafted);

/* "42 tokens, 271.0 tok/s, 30 of 61 guessed right": of a turn in a conversation. */
#define RESULT_FIGURES_MAX 120
void result_figures(const completion *a, char out[RESULT_FIGURES_MAX]);

typedef struct result_words { /* of the closing lines */
  bool kept;                  /* the ledger's file has it: it may be gone on with */
  bool seed_drawn;            /* nobody gave one, and it mattered */
  bool details;               /* and how it was decoded */
} result_words;

/* "tandem: 96 tokens, 412.0 tok/s; the draft guessed 60 of 91 right; ...", in one line or two. */
void result_print(FILE *to, const completion *a, const result_words *w);
/* Both clocks, and "identical: yes". */
void result_print_both(FILE *to, const completion *plain, const completion *drafted, const result_words *w);
