/* tokens_json.h - the bodies of /tokenize and /detokenize, as llama-server and vLLM take them, and the
 * answers, which have the fields of both. */
#pragma once

#include "orchestrator/service/api/call_options.h"

/* Each sets *out to a new object. `context` is what the answer names as max_model_len. ERR_ARG, ERR_FORMAT,
 * ERR_LIMIT, ERR_UNSUPPORTED (also: the model has no vocabulary), ERR_NOMEM. */
int tokens_json_tokenize(const json_t *body, const text_model *m, int32_t context, json_t **out,
                         call_error *e);
int tokens_json_detokenize(const json_t *body, const text_model *m, json_t **out, call_error *e);

/* The text of one token as the vocabulary spells it, or with U+FFFD instead where that is not UTF-8. */
json_t *tokens_json_spelling(const tokenizer *t, int32_t id);
