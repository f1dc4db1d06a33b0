/* openai_json.h - what the API writes: answers, the events of a stream, and errors, as OpenAI's API has them.
 */
#pragma once

#include "orchestrator/service/completion.h"
#include <jansson.h>

typedef struct openai_head { /* what all events of a call have in common */
  const char *id, *model;
  int64_t created; /* seconds since 1970 */
  bool chat;
} openai_head;

/* These make a new object, and take the objects that they are given. NULL: out of memory. */

/* One event: a choice with more text (the first also has its role), or with its finish_reason; `logprobs`:
 * those of its tokens, or NULL. */
json_t *openai_json_chunk(const openai_head *h, int32_t index, bool first, const char *text, size_t size,
                          const char *finish, json_t *logprobs);
/* The last one of an answer, which says whether it is lossy. */
json_t *openai_json_last(const openai_head *h, int32_t index, const char *finish, json_t *logprobs,
                         const completion *c);
/* The last event of a stream whose client wants it: no choices, only what the answer cost (usage_json.h). */
json_t *openai_json_usage_chunk(const openai_head *h, json_t *usage, json_t *metrics);
/* A whole choice; `before` is text that comes before the answer (echo) or "". */
json_t *openai_json_choice(const openai_head *h, int32_t index, const char *before, const completion *c);
json_t *openai_json_whole(const openai_head *h, json_t *choices, json_t *usage, json_t *metrics);

/* {"error": {message, type, param, code}}: `code` is an ERR_ code; the type follows from the status. */
json_t *openai_json_error(unsigned status, int code, const char *text, const char *param);
unsigned openai_json_status(int code); /* of HTTP, for an ERR_ code */
