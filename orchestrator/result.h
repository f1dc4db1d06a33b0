/* result.h - an answer as the JSON object of `--json` and `batch`, and as the closing line for people. */
#pragma once

#include "orchestrator/answer.h"
#include <jansson.h>

#define RESULT_LINE_MAX 1200

/* text, token_ids, prompt_tokens, prompt_ids, finish_reason, seed, numerics_id, stats {...}; error when there
 * was one; numerics_changed when that happened. `id` (borrowed) comes first unless NULL. NULL: out of memory.
 */
json_t *result_of(const answer *a, json_t *id);
/* The same shape for a request that could not begin. */
json_t *result_of_error(json_t *id, const char *why);
const char *result_finish_name(wire_finish finish); /* "stop", "length", "cancelled", "error" */
/* One line with its newline; free() it. NULL: out of memory. Takes `object`. */
char *result_line(json_t *object);

/* "96 tokens (stop), 41.2 tok/s, ..." without a newline. */
void result_summary(const answer *a, char out[RESULT_LINE_MAX]);
