#include "target_worker/scheduler.h"

#include "common/base/least.h"

int32_t schedule_room(const session *s) {
  int32_t output = s->options.max_tokens - (s->committed.length - s->prompt_length);
  int32_t context = s->options.context - s->committed.length;
  int32_t room = least_i32(output, context);
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
  int32_t nodes = least_i32(s->options.budget, WIRE_BUDGET_MAX);
  int32_t rows = s->committed.capacity - s->committed.length; /* staged rows must fit as well */
  return schedule_room(s) > 1 ? least_i32(nodes, rows) : 0;
}

schedule_kind schedule_session(const session *s, int32_t credit, uint64_t now_us, uint64_t *until_us) {
  *until_us = UINT64_MAX;
  if (s->state != SESSION_RUNNING || s->job || s->finish) return SCHEDULE_IDLE;
  if (s->kv_rows < s->committed.length - 1) return SCHEDULE_PREFILL;
  if (s->committed.length - s->acked + schedule_budget(s) >= credit)
    return SCHEDULE_IDLE; /* a whole round fits */
  if (!schedule_may_speculate(s)) return SCHEDULE_STEP;
  if (s->options.lockstep) {
    bool expected = (s->draft_expected && !s->drafts_gave_up) || session_draft_count(s) > 0;
    if (!expected || done_count(s) > 0) return SCHEDULE_STEP;
    *until_us = s->lockstep_until_us;
    return SCHEDULE_WAIT;
  }
  bool nodes = s->has_tree && s->live.live_count > 0;
  if (nodes || schedule_drafts_done(s) || now_us >= s->wait_until_us) return SCHEDULE_STEP;
  *until_us = s->wait_until_us;
  return SCHEDULE_WAIT;
}

int32_t schedule_nodes(const session *s, int32_t count, int32_t *slots, int32_t *parents) {
  if (count == 0) return 0;
  return tree_select(&s->live, count, least_i32(schedule_room(s) - 1, TREE_DEPTH_MAX), slots, parents);
}

/* --- one forward --- */

/* The nodes that the sessions offer, of each its best ones first. */
typedef struct offers {
  float totals[SCHEDULE_STEPS_MAX][SCHEDULE_NODES_MAX];
  int32_t count[SCHEDULE_STEPS_MAX];
} offers;

/* Nodes that this session offers; in lockstep: takes. */
static int32_t offer(const session *s, float *totals) {
  int32_t slots[WIRE_BUDGET_MAX], parents[WIRE_BUDGET_MAX];
  int32_t count = schedule_nodes(s, schedule_budget(s), slots, parents);
  for (int32_t i = 0; i < count; i++) totals[i] = s->live.nodes[slots[i]].total;
  return count;
}
_Static_assert(WIRE_BUDGET_MAX <= SCHEDULE_NODES_MAX, "one session's fit");

static void pick_steps(const session_store *store, schedule_turns *turns, int32_t credit, uint64_t now_us,
                       offers *o, schedule *out) {
  int32_t rows = 0, after = turns->step;
  for (int32_t k = 1; k <= store->count && out->count < SCHEDULE_STEPS_MAX; k++) {
    int32_t i = (after + k) % store->count;
    const session *s = &store->places[i];
    uint64_t until;
    schedule_kind kind = schedule_session(s, credit, now_us, &until);
    if (until < out->until_us) out->until_us = until;
    if (kind != SCHEDULE_STEP) continue;
    int32_t offered = offer(s, o->totals[out->count]), taken = s->options.lockstep ? offered : 0;
    if (rows + 1 + taken > SCHEDULE_ROWS_MAX) break;
    rows += 1 + taken;
    o->count[out->count] =
        s->options.lockstep ? 0 : width_allowed(&s->record, o->totals[out->count], offered);
    out->picks[out->count++] = (schedule_pick){.place = i, .kind = kind, .rows = taken, .offered = offered};
    turns->step = i;
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

/* All sessions' nodes in one order, of which as many as are worth their rows. A node comes after those above
 * it, which promise no less. */
static void share_nodes(const width_costs *widths, const offers *o, schedule *out) {
  int32_t owner[SCHEDULE_NODES_MAX], taken[SCHEDULE_STEPS_MAX] = {0}, count = 0;
  float totals[SCHEDULE_NODES_MAX];
  for (int32_t i; count < SCHEDULE_NODES_MAX && (i = best_offer(o, out->steps, taken)) >= 0; count++) {
    owner[count] = i;
    totals[count] = o->totals[i][taken[i]++];
  }
  int32_t kept = count ? width_best(widths, out->steps, totals, count) : 0;
  for (int32_t k = 0; k < kept; k++) out->picks[owner[k]].rows++;
}

/* Somebody may want to verify nodes later, is not held up now by what that costs being measured, and reads so
 * long a prompt that nobody notices. */
static bool may_measure(const session *s, const schedule *out) {
  bool draft = s->draft_expected || session_draft_count(s) > 0,
       is_long = s->committed.length > SCHEDULE_MEASURED;
  return is_long && draft && out->count == 0 && !s->options.lockstep && s->options.budget > 0;
}

static void pick_prefills(const session_store *store, const width_costs *widths, schedule_turns *turns,
                          int32_t credit, uint64_t now_us, schedule *out) {
  int32_t rows = out->steps ? SCHEDULE_BESIDE : ENGINE_CHUNK, after = turns->prefill;
  for (int32_t k = 1; k <= store->count && rows > 0 && out->count < out->steps + SCHEDULE_PREFILLS_MAX; k++) {
    int32_t i = (after + k) % store->count;
    const session *s = &store->places[i];
    uint64_t until;
    if (schedule_session(s, credit, now_us, &until) != SCHEDULE_PREFILL) continue;
    int32_t left = s->committed.length - 1 - s->kv_rows, count = least_i32(rows, left);
    if (may_measure(s, out)) count = width_piece(widths, left, rows, &out->measures);
    out->picks[out->count++] = (schedule_pick){.place = i, .kind = SCHEDULE_PREFILL, .rows = count};
    rows = out->measures ? 0 : rows - count;
    turns->prefill = i;
  }
}

void schedule_forward(const session_store *store, const width_costs *widths, schedule_turns *turns,
                      int32_t credit, uint64_t now_us, schedule *out) {
  offers o;
  out->count = out->steps = 0;
  out->measures = false;
  out->until_us = UINT64_MAX;
  pick_steps(store, turns, credit, now_us, &o, out);
  share_nodes(widths, &o, out);
  pick_prefills(store, widths, turns, credit, now_us, out);
}
