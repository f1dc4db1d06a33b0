/* usage_json.h - what an answer cost: OpenAI's `usage`, with what speculation did beside, and vLLM's object
 * `metrics.speculative_decoding` (its page "Per-Request Acceptance Metrics"). */
#pragma once

#include "orchestrator/service/completion.h"
#include <jansson.h>

/* A new object for `count` completions: of each prompt as many as `each`, side by side. NULL: out of memory.
 */
json_t *usage_json(completion *const *choices, int32_t count, int32_t each);
/* {"speculative_decoding": {...}} for an answer of one completion, and null in it for more than one. What
 * vLLM does not have beside: method, off_reason, gain. */
json_t *usage_json_metrics(completion *const *choices, int32_t count);
