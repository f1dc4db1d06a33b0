/* session_support.h - sessions for tests of single files, made as an OPEN makes them. */
#pragma once

#include "target_worker/session_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* C and the options become those of an OPEN with these tokens after the first `base` of C. */
static inline void session_adopt(session *s, int32_t base, const int32_t *tokens, int32_t count,
                                 int32_t prompt_length, msg_options options) {
  const msg_open o = {.base_length = base,
                      .tokens = tokens,
                      .token_count = count,
                      .prompt_length = prompt_length,
                      .hash_seed = s->committed.seed,
                      .options = options};
  session_open_adopt(s, &o);
}

/* A session of the store whose prompt is these tokens and has no rows in the cache yet. */
static inline session *session_opened(session_store *store, uint64_t id, uint64_t now, const int32_t *tokens,
                                      int32_t count, msg_options options) {
  bool fresh;
  session *s = session_store_take(store, id, now, tokens, count, &fresh);
  assert_true(s && fresh);
  session_adopt(s, 0, tokens, count, count, options);
  s->epoch = 1;
  s->stream.acked = s->stream.sent = count;
  return s;
}

/* Every row but the root's is in the cache. */
static inline void session_prefilled(session *s) {
  s->cache.rows = s->committed.length - 1;
}
