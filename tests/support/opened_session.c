#include "tests/support/opened_session.h"

void session_adopt(session *s, int32_t base, const int32_t *tokens, int32_t count, int32_t prompt_length,
                   msg_options options) {
  const msg_open o = {.base_length = base,
                      .tokens = tokens,
                      .token_count = count,
                      .prompt_length = prompt_length,
                      .hash_seed = s->committed.seed,
                      .options = options};
  session_open_adopt(s, &o);
}

session *session_opened(session_store *store, uint64_t id, uint64_t now, const int32_t *tokens, int32_t count,
                        msg_options options) {
  bool fresh;
  session *s = session_store_take(store, id, now, tokens, count, &fresh);
  assert_true(s && fresh);
  session_adopt(s, 0, tokens, count, count, options);
  s->epoch = 1;
  s->stream.acked = s->stream.sent = count;
  return s;
}

void session_prefilled(session *s) {
  s->cache.rows = s->committed.length - 1;
}
