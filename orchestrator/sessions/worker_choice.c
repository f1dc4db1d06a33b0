#include "orchestrator/sessions/worker_choice.h"

static bool has_room(const worker_choice_worker *w) {
  return w->session_max == 0 || w->load < w->session_max;
}

/* Its load in tokens. */
static int64_t weighted_load(const worker_choice_worker *w) {
  return (int64_t)w->load * WORKER_CHOICE_TOKENS - w->cached;
}

static bool is_better(const worker_choice_worker *a, const worker_choice_worker *b) {
  if (a->refused != b->refused) return b->refused;
  if (has_room(a) != has_room(b)) return has_room(a);
  if (a->same_numerics != b->same_numerics) return a->same_numerics;
  return weighted_load(a) < weighted_load(b);
}

int32_t worker_choice_best(const worker_choice_worker *list, int32_t count) {
  int32_t best = -1;
  for (int32_t i = 0; i < count; i++)
    if (best < 0 || is_better(&list[i], &list[best])) best = i;
  return best;
}
