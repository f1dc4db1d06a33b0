#include "target_worker/scheduler.h"

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

int32_t schedule_room(const session *s) {
  int32_t output = s->options.max_tokens - (s->committed.length - s->prompt_length);
  int32_t context = s->options.context - s->committed.length;
  int32_t room = least(output, context);
  return room > 0 ? room : 0;
}

/* Attached drafts that have sent their done mark for this C. */
static int done_count(const session *s) {
  int done = 0;
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    done += s->drafts[i].peer && s->drafts[i].done_base == s->committed.length;
  return done;
}

bool schedule_drafts_done(const session *s) {
  int done = done_count(s);
  return done > 0 && done == session_draft_count(s);
}

bool schedule_may_speculate(const session *s) {
  if (s->options.budget == 0 || s->off_for_good) return false;
  return s->options.lockstep || pay_allows(&s->pay);
}

int32_t schedule_budget(const session *s) {
  if (!schedule_may_speculate(s) || !s->has_tree || s->live.live_count == 0) return 0;
  int32_t nodes = least(s->options.budget, WIRE_BUDGET_MAX);
  int32_t rows = s->committed.capacity - s->committed.length; /* staged rows must fit as well */
  return schedule_room(s) > 1 ? least(nodes, rows) : 0;
}

schedule_kind schedule_session(const session *s, int32_t credit, uint64_t now_us, uint64_t *until_us) {
  *until_us = UINT64_MAX;
  if (s->state != SESSION_RUNNING || s->job || s->finish) return SCHEDULE_IDLE;
  if (s->kv_rows < s->committed.length - 1) return SCHEDULE_PREFILL;
  if (s->committed.length - s->acked + schedule_budget(s) >= credit) return SCHEDULE_IDLE; /* a whole round fits */
  if (!schedule_may_speculate(s)) return SCHEDULE_STEP;
  if (s->options.lockstep) {
    bool expected = s->draft_expected || session_draft_count(s) > 0;
    if (!expected || done_count(s) > 0) return SCHEDULE_STEP;
    *until_us = s->lockstep_until_us;
    return SCHEDULE_WAIT;
  }
  bool nodes = s->has_tree && s->live.live_count > 0;
  if (nodes || schedule_drafts_done(s) || now_us >= s->wait_until_us) return SCHEDULE_STEP;
  *until_us = s->wait_until_us;
  return SCHEDULE_WAIT;
}

int32_t schedule_next(const session_store *store, int32_t last, int32_t credit, uint64_t now_us,
                      schedule_kind *kind, uint64_t *until_us) {
  *until_us = UINT64_MAX;
  for (int32_t k = 1; k <= store->count; k++) {
    int32_t i = (last + k) % store->count;
    uint64_t until;
    *kind = schedule_session(&store->places[i], credit, now_us, &until);
    if (*kind == SCHEDULE_PREFILL || *kind == SCHEDULE_STEP) return i;
    if (until < *until_us) *until_us = until;
  }
  *kind = SCHEDULE_IDLE;
  return -1;
}
