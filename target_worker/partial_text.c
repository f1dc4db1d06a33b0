#include "target_worker/partial_text.h"

#include "common/base/min.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST 0.5 /* tokens that are right less often are not worth a row */

void partial_text_fini(partial_text *t) {
  prompt_lookup_close(t->lookup);
  free(t->tokens);
  *t = (partial_text){0};
}

static void begin(partial_text *t, const partial_news *n, int32_t room) {
  partial_text_fini(t);
  t->tokens = calloc((size_t)room, sizeof *t->tokens);
  t->room = room;
  if (t->tokens) prompt_lookup_open(&t->lookup, room, n->prompt_length, n->stops, n->stop_count);
  if (t->lookup) t->session = n->session;
}

void partial_text_update(partial_text *t, const partial_news *n, int32_t room) {
  if (n->from == 0) begin(t, n, room);
  if (!t->lookup || t->session != n->session || n->from > t->length || n->from + n->count > t->room) return;
  memcpy(t->tokens + n->from, n->tokens, (size_t)n->count * sizeof *n->tokens);
  t->length = n->from + n->count;
  t->kept = min_i32(t->kept, n->from);
}

int32_t partial_text_next(partial_text *t, uint64_t session, int32_t *path, int32_t depth, int32_t most) {
  draft_candidate list[DRAFT_CANDIDATES_MAX];
  const double least = log(LEAST);
  double total = 0;
  int32_t count = 0;
  if (!t->lookup || t->session != session || t->length == 0) return 0;
  if (t->kept < t->length) prompt_lookup_advance(t->lookup, t->tokens, t->length, t->kept);
  t->kept = t->length;
  while (count < most && prompt_lookup_candidates(t->lookup, path, depth + count, list) > 0) {
    total += (double)list[0].score;
    if (total < least) break;
    path[depth + count++] = list[0].token;
  }
  return count;
}
