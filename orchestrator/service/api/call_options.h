/* call_options.h - the body of a request to /v1/chat/completions or /v1/completions. */
#pragma once

#include "orchestrator/service/request.h"
#include "orchestrator/service/text_model.h"
#include <jansson.h>

#define CALL_CHOICES_MAX  16  /* `n` */
#define CALL_ANSWERS_MAX  256 /* `n` of each prompt */
#define CALL_LOGPROBS_MAX 5   /* of a completion, as OpenAI has it; a chat has SAMPLER_LOGPROBS_MAX */

typedef struct call_options {
  request request;       /* with the first prompt */
  const json_t *prompts; /* the body's: [prompt_count] texts, or arrays of ids; NULL: there is one prompt */
  int32_t prompt_count;
  bool chat, stream, include_usage;
  bool echo;       /* the text begins with the prompt (completions) */
  int32_t choices; /* `n`: of each prompt */
} call_options;

/* The error and the field that it is about. */
typedef struct call_error {
  err why;
  const char *param; /* NULL: none */
} call_error;

/* Fills *out, which need not be initialised; the caller releases its request in any case. Unknown fields are
 * ignored; one that is known, would change the answer, and is not built here is refused. ERR_FORMAT, ERR_ARG,
 * ERR_LIMIT, ERR_UNSUPPORTED, ERR_NOMEM. */
int call_options_read(const json_t *body, bool chat, const request *defaults, const text_model *m,
                      call_options *out, call_error *e);

/* Puts one of the prompts into the request, in place of the one that it has; the body must still be there. */
int call_options_set_prompt(call_options *o, int32_t index, const text_model *m, call_error *e);

/* Parts of such a body that other paths take too. The request must be initialised. */
int call_options_bool(const json_t *body, const char *name, bool *out, call_error *e);
int call_options_messages(const json_t *body, request *r, call_error *e);
/* `ids` is the array that the body has as `name`; NULL: it has none. */
int call_options_ids(const json_t *ids, const char *name, const text_model *m, request *r, call_error *e);
