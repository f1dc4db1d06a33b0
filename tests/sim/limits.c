#include "tests/sim/limits.h"

#include "draft_worker/draft_state.h"
#include "target_worker/scheduler.h"
#include <string.h>

const char *const limits_names[LIMIT_KINDS] = {
    [LIMIT_SESSIONS] = "full: orchestrator",
    [LIMIT_PLACES] = "full: target",
    [LIMIT_DRAFT_SESSIONS] = "full: draft",
    [LIMIT_PROGRAMS] = "full: roster",
    [LIMIT_LINKS] = "full: targets of a draft",
    [LIMIT_DRAFTS] = "full: drafts of a session",
    [LIMIT_QUOTA] = "full: nodes of a draft",
    [LIMIT_TREE] = "full: tree",
    [LIMIT_IDS] = "full: ids of a draft",
    [LIMIT_BURST] = "full: TOKENS",
    [LIMIT_STEPS] = "full: steps",
    [LIMIT_PREFILLS] = "full: prefills",
    [LIMIT_JOBS] = "full: jobs of a draft",
    [LIMIT_QUERIES] = "full: queries",
};

/* Who has no room says so: what is in the text of its ERROR. */
static const struct refusal {
  limit_kind kind;
  const char *text;
} refusals[] = {
    {LIMIT_PLACES, "every session place is busy"}, {LIMIT_DRAFT_SESSIONS, "no session place left"},
    {LIMIT_PROGRAMS, "no place for one more"},     {LIMIT_LINKS, "as many targets as it takes"},
    {LIMIT_DRAFTS, "as many drafts as it takes"},  {LIMIT_QUOTA, "others need room"},
    {LIMIT_TREE, "more nodes, or is deeper"},
};

static bool contains(wire_string s, const char *text) {
  return memmem(s.data, s.size, text, strlen(text)) != NULL;
}

void limits_frame(world *w, const msg *m) {
  if (w->says) return; /* nobody's own word */
  if (m->type == MSG_TOKENS) w->totals->limits[LIMIT_BURST] += m->u.tokens.token_count == WIRE_BURST_MAX;
  if (m->type != MSG_ERROR) return;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
    w->totals->limits[refusals[i].kind] += contains(m->u.error.text, refusals[i].text);
}

void limits_target_batch(world *w, const engine_batch *b) {
  int steps = 0;
  for (int32_t i = 0; i < b->count; i++) steps += b->jobs[i].kind == ENGINE_VERIFY;
  w->totals->limits[LIMIT_STEPS] += steps == SCHEDULE_STEPS_MAX;
  w->totals->limits[LIMIT_PREFILLS] += b->count - steps == SCHEDULE_PREFILLS_MAX;
}

void limits_draft_batch(world *w, const draft_batch *b) {
  w->totals->limits[LIMIT_JOBS] += b->job_count == DRAFT_JOBS_MAX;
  w->totals->limits[LIMIT_QUERIES] += b->query_count == DRAFT_QUERIES_MAX;
}

void limits_step(world *w, int node) {
  const draft *d = w->nodes[node].draft;
  for (int i = 0; d && i < draft_state_session_max(d); i++) {
    const tree_ids *ids = &d->sessions[i].session.ids;
    bool open = d->sessions[i].state != ATTACHMENT_FREE && ids->ring;
    w->totals->limits[LIMIT_IDS] += open && ids->next - ids->oldest == TREE_IDS_MAX;
  }
}
