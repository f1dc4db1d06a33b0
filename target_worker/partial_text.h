/* partial_text.h - a session's tokens as partial KV knows them, and prompt lookup in them: what may follow is
 * checked over partial KV several tokens at a time. The engine's thread alone. */
#pragma once

#include "common/speculative/prompt_lookup.h"

#include <stdbool.h>

typedef struct partial_text { /* of a slot; all zero at first */
  uint64_t session;
  int32_t *tokens;            /* [room] */
  int32_t length, room, kept; /* kept: those that are as they were at the last lookup */
  prompt_lookup *lookup;      /* NULL: there is no memory for it */
} partial_text;

typedef struct partial_news { /* tokens of a session, to the last one, which has no row yet */
  uint64_t session;
  const int32_t *tokens; /* [count] */
  int32_t from, count;   /* from > 0: those before are as they were told last */
  int32_t prompt_length;
  const int32_t *stops; /* [stop_count] tokens that end a turn */
  int32_t stop_count;
} partial_news;

/* For texts of up to `room` tokens. */
void partial_text_update(partial_text *t, const partial_news *n, int32_t room);
/* What is likely to follow the session's text and path[depth], at most `most` tokens, to path + depth;
 * returns how many. The first call for a text takes long, whatever `most` is. */
int32_t partial_text_next(partial_text *t, uint64_t session, int32_t *path, int32_t depth, int32_t most);
void partial_text_fini(partial_text *t);
