/* result_json.h - a completion as a JSON object: what `--json' prints, and the result of a request line. */
#pragma once

#include "orchestrator/service/completion.h"
#include <jansson.h>

/* text, token_ids, prompt_tokens, prompt_ids, finish_reason, seed, numerics_id, stats {...}; error when there
 * was one; numerics_changed when that happened. `id` (borrowed) comes first unless NULL. NULL: out of memory.
 */
json_t *result_json_of(const completion *c, json_t *id);
/* The same shape for a request that could not begin. */
json_t *result_json_of_error(json_t *id, const char *why);
/* The same prompt answered plainly and with a draft: {identical, first_difference, speedup, plain, draft}. */
json_t *result_json_of_both(const completion *plain, const completion *drafted);

const char *result_json_finish_name(wire_finish finish); /* "stop", "length", "cancelled", "error" */
/* The object as one line with its newline, to free(); NULL: out of memory. It takes the reference. */
char *result_json_line(json_t *object);
