/* prompt.h - turns a request's prompt, which is text, ids or messages, into the ids that the target gets. */
#pragma once

#include "orchestrator/service/request.h"
#include "orchestrator/service/text_model.h"

/* Appends the ids of the request's prompt. ERR_FORMAT (not UTF-8), ERR_ARG, ERR_LIMIT (too much text),
 * ERR_NOMEM, ERR_UNSUPPORTED (the model has no chat template that is known, or no vocabulary). */
int prompt_encode(const request *r, const text_model *m, tokenizer_ids *out, err *e);

/* Can these ids be answered within `context` tokens? ERR_ARG: there are none, or one is not in the
 * vocabulary; ERR_LIMIT: there are too many. */
int prompt_check(const text_model *m, const int32_t *ids, size_t count, int32_t context, err *e);
