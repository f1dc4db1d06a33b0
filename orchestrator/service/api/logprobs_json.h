/* logprobs_json.h - log-probabilities of an answer's tokens, as OpenAI's API has them. A token whose bytes
 * are no UTF-8 is written as `bytes:\xNN...', and one of a model without a vocabulary as `token_id:N'. */
#pragma once

#include "orchestrator/service/completion.h"
#include <jansson.h>

/* Of output tokens [first, end), without those that end an answer, and those of which none are known, as an
 * earlier run of the server may have left them. `offset`: characters before the answer in its text. NULL: the
 * completion has none, or out of memory. */
json_t *logprobs_json(const completion *c, bool chat, size_t offset, int32_t first, int32_t end);

/* Where the tokens end, at least `first`, whose text has been shown. */
int32_t logprobs_json_shown(const completion *c, int32_t first);
