#include "draft_worker/drafters/ngram.h"

#include "common/speculative/prompt_lookup.h"
#include <stdlib.h>

struct immediate_session {
  prompt_lookup *of;
  hash16 hash; /* of the text */
};

static void ngram_advance(immediate_session *s, const prefix *committed) {
  const int32_t length = prompt_lookup_length(s->of);
  const bool grown = prefix_has(committed, length, s->hash);
  prompt_lookup_advance(s->of, committed->tokens, committed->length, grown ? length : 0);
  s->hash = prefix_hash(committed);
}

static void ngram_close(immediate_session *s) {
  prompt_lookup_close(s->of);
  free(s);
}

static immediate_session *ngram_open(void *shared, const prefix *committed, int32_t prompt_length,
                                     const msg_options *options) {
  (void)shared;
  immediate_session *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  int32_t room = committed->capacity; /* less if the session can never be as long */
  if (options->context >= committed->length && options->context < room) room = options->context;
  if (prompt_lookup_open(&s->of, room, prompt_length, options->stops, options->stop_count) != ERR_OK) {
    free(s);
    return NULL;
  }
  ngram_advance(s, committed);
  return s;
}

static int32_t ngram_candidates(immediate_session *s, const int32_t *path, int32_t depth,
                                draft_candidate *out) {
  return prompt_lookup_candidates(s->of, path, depth, out);
}

const immediate_kind ngram_kind = {"ngram", ngram_open, ngram_close, ngram_advance, ngram_candidates, NULL};
