#include "target_worker/scheduler.h"

#include "common/base/min.h"

bool schedule_may_speculate(const session *s) {
  const msg_options *o = &s->request.options;
  return o->budget > 0 && speculation_allowed(&s->speculation, o->lockstep);
}

int32_t schedule_budget(const session *s) {
  if (!schedule_may_speculate(s) || !session_has_nodes(s)) return 0;
  int32_t nodes = min_i32(s->request.options.budget, WIRE_BUDGET_MAX);
  int32_t rows = s->committed.capacity - s->committed.length; /* staged rows must fit as well */
  return session_room(s) > 1 ? min_i32(nodes, rows) : 0;
}

/* Its draft may read features of the prompt, which are computed once: it has to attach before. */
static bool awaits_draft(const session *s) {
  return s->request.reader_expected && !s->drafts.gave_up && session_draft_count(s) == 0 &&
         s->request.options.budget > 0;
}

schedule_kind schedule_session(const session *s, uint64_t now_us, uint64_t *until_us) {
  *until_us = UINT64_MAX;
  if (s->state != SESSION_RUNNING || s->job.serial || s->finish.reason) return SCHEDULE_IDLE;
  if (s->cache.rows < s->committed.length - 1) {
    if (!awaits_draft(s) || now_us >= s->used_us + SCHEDULE_ATTACH_US) return SCHEDULE_PREFILL;
    *until_us = s->used_us + SCHEDULE_ATTACH_US;
    return SCHEDULE_WAIT;
  }
  if (s->committed.length - s->stream.acked + schedule_budget(s) >= SCHEDULE_CREDIT)
    return SCHEDULE_IDLE; /* a whole round fits */
  if (!schedule_may_speculate(s)) return SCHEDULE_STEP;
  if (s->request.options.lockstep) {
    bool expected = (s->request.draft_expected && !s->drafts.gave_up) || session_draft_count(s) > 0;
    if (!expected || session_draft_done_count(s) > 0) return SCHEDULE_STEP;
    *until_us = s->drafts.lockstep_until_us;
    return SCHEDULE_WAIT;
  }
  if (session_has_nodes(s) || session_drafts_done(s) || now_us >= s->speculation.wait_until_us)
    return SCHEDULE_STEP;
  *until_us = s->speculation.wait_until_us;
  return SCHEDULE_WAIT;
}

uint64_t schedule_lockstep_deadline(const session *s) {
  uint64_t until;
  bool decodes = s->cache.rows >= s->committed.length - 1;
  bool waits = decodes && s->request.options.lockstep && schedule_session(s, 0, &until) == SCHEDULE_WAIT;
  return waits ? until : UINT64_MAX;
}

/* --- one forward --- */

/* The nodes that the sessions offer, of each its best ones first. */
typedef struct offers {
  float totals[SCHEDULE_STEPS_MAX][SCHEDULE_NODES_MAX];
  int32_t count[SCHEDULE_STEPS_MAX];
} offers;
_Static_assert(WIRE_BUDGET_MAX <= SCHEDULE_NODES_MAX, "one session's nodes fit");

/* Writes the session's best nodes to the pick, as many as its budget allows, and their totals. */
static void select_nodes(const session *s, float *totals, schedule_pick *pick) {
  int32_t budget = schedule_budget(s), depth_max = min_i32(session_room(s) - 1, TREE_DEPTH_MAX);
  pick->offered = budget ? tree_select(&s->drafts.tree, budget, depth_max, pick->nodes, pick->parents) : 0;
  for (int32_t i = 0; i < pick->offered; i++) totals[i] = s->drafts.tree.nodes[pick->nodes[i]].total;
}

static void pick_steps(const session_store *store, const speculation_shared *all, schedule_rotation *last,
                       uint64_t now_us, offers *o, schedule *out) {
  const int32_t chunk = all->verify_chunk > 0 ? all->verify_chunk : WIRE_BUDGET_MAX;
  int32_t rows = 0, after = last->step;
  for (int32_t k = 1; k <= store->count && out->count < SCHEDULE_STEPS_MAX; k++) {
    int32_t i = (after + k) % store->count;
    const session *s = &store->slots[i];
    uint64_t until;
    schedule_kind kind = schedule_session(s, now_us, &until);
    if (until < out->until_us) out->until_us = until;
    if (kind != SCHEDULE_STEP) continue;
    schedule_pick *pick = &out->picks[out->count];
    float *totals = o->totals[out->count];
    bool lockstep = s->request.options.lockstep;
    pick->slot = i;
    pick->kind = kind;
    select_nodes(s, totals, pick);
    pick->rows = lockstep ? min_i32(pick->offered, chunk) : 0;
    if (rows + 1 + pick->rows > SCHEDULE_ROWS_MAX) break;
    rows += 1 + pick->rows;
    pick->reads = s->cache.rows + 1;
    out->disturbed += !speculation_is_undisturbed(&s->speculation);
    out->beside |= speculation_is_beside(&s->speculation);
    speculation_offer(&s->speculation, totals, pick->offered);
    o->count[out->count++] = lockstep ? 0 : min_i32(pick->offered, chunk);
    last->step = i;
  }
  out->steps = out->count;
}

/* The session with the best node that is not among the first `taken` of each; -1: none. */
static int32_t best_offer(const offers *o, int32_t steps, const int32_t *taken) {
  int32_t best = -1;
  for (int32_t i = 0; i < steps; i++) {
    if (taken[i] == o->count[i]) continue;
    if (best < 0 || o->totals[i][taken[i]] > o->totals[best][taken[best]]) best = i;
  }
  return best;
}

/* Puts the nodes of all sessions in one order and takes as many as are worth their rows. A node comes after
 * its ancestors, which are at least as probable, so each pick's share is the first of its nodes. */
static void share_rows(const session_store *store, const speculation_shared *all, uint64_t now_us,
                       const offers *o, schedule *out) {
  int32_t owner[SCHEDULE_NODES_MAX], taken[SCHEDULE_STEPS_MAX] = {0}, count = 0;
  float totals[SCHEDULE_NODES_MAX];
  int32_t reads[SCHEDULE_NODES_MAX];
  double plain_reads = 0;
  uint64_t waited = 0; /* which all of them bear */
  for (int32_t i = 0; i < out->steps; i++) {
    const session *x = &store->slots[out->picks[i].slot];
    plain_reads += out->picks[i].reads;
    uint64_t one = speculation_waited(&x->speculation, x->job.ready_us, now_us);
    if (one > waited) waited = one;
  }
  for (int32_t i; count < SCHEDULE_NODES_MAX && (i = best_offer(o, out->steps, taken)) >= 0; count++) {
    owner[count] = i;
    reads[count] = out->picks[i].reads;
    totals[count] = o->totals[i][taken[i]++];
  }
  int32_t kept =
      count ? speculation_width(all, out->steps, plain_reads, (double)waited, totals, reads, count) : 0;
  for (int32_t k = 0; k < kept; k++) out->picks[owner[k]].rows++;
}

/* A prompt's end is read in a forward of its own when somebody may want to verify nodes later, no session
 * that steps is held up by it, and the prompt is so long that nobody notices. */
static bool may_measure(const session *s, const schedule *out) {
  const msg_options *o = &s->request.options;
  bool draft = s->request.draft_expected || session_draft_count(s) > 0;
  bool is_long = s->committed.length > SCHEDULE_MEASURED;
  return is_long && draft && out->count == 0 && !o->lockstep && o->budget > 0;
}

int32_t schedule_prompt_rows(const speculation_shared *all) {
  return engine_prompt_rows(all->prompt_rows);
}

/* A session that waits for nodes shall not wait for a long forward. */
static int32_t prompt_room(const speculation_shared *all, const schedule *out) {
  if (out->steps > 0) return speculation_prompts_beside(all, ENGINE_CHUNK);
  return out->until_us == UINT64_MAX ? schedule_prompt_rows(all) : ENGINE_CHUNK;
}

static void pick_prefills(const session_store *store, const speculation_shared *all, schedule_rotation *last,
                          uint64_t now_us, schedule *out) {
  int32_t rows = prompt_room(all, out);
  int32_t after = last->prefill;
  for (int32_t k = 1; k <= store->count && rows > 0 && out->count < out->steps + SCHEDULE_PREFILLS_MAX; k++) {
    int32_t i = (after + k) % store->count;
    const session *s = &store->slots[i];
    uint64_t until;
    if (schedule_session(s, now_us, &until) != SCHEDULE_PREFILL) continue;
    int32_t left = s->committed.length - 1 - s->cache.rows;
    if (s->drafts.features.taps.count > 0) rows = min_i32(rows, ENGINE_CHUNK);
    int32_t count = min_i32(rows, left);
    if (may_measure(s, out)) count = speculation_prompt_rows(all, left, rows, &out->measures);
    schedule_pick *pick = &out->picks[out->count++];
    pick->slot = i;
    pick->kind = SCHEDULE_PREFILL;
    pick->rows = count;
    pick->offered = 0;
    pick->reads = s->cache.rows;
    rows = out->measures ? 0 : rows - count;
    last->prefill = i;
  }
}

void schedule_forward(const session_store *store, const speculation_shared *all, schedule_rotation *last,
                      uint64_t now_us, schedule *out) {
  offers o;
  out->count = out->steps = 0;
  out->measures = false;
  out->disturbed = 0;
  out->beside = false;
  out->until_us = UINT64_MAX;
  pick_steps(store, all, last, now_us, &o, out);
  share_rows(store, all, now_us, &o, out);
  pick_prefills(store, all, last, now_us, out);
  out->beside &= out->count == out->steps;
}
