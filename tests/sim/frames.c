#include "tests/sim/frames.h"

#include "target_worker/session_store.h"
#include <string.h>

/* --- tickets --- */

static bool has_ticket(const tickets *t, const wire_id *ticket) {
  for (int i = 0; i < TICKETS; i++)
    if (wire_id_equal(t->of[i], *ticket)) return true;
  return false;
}

static void note_ticket(tickets *t, const wire_id *ticket) {
  if (has_ticket(t, ticket)) return;
  t->last = (t->last + 1) % TICKETS;
  t->of[t->last] = *ticket;
}

/* Whoever has been dismissed must not be able to attach: the next draft has another ticket. */
static void check_ticket(world *w, client *c, int to, const wire_id *ticket) {
  note_ticket(&c->drawn, ticket);
  if (to < DRAFT_A || to > DRAFT_B) return;
  note_ticket(&c->given[to - DRAFT_A], ticket);
  if (!w->several && has_ticket(&c->given[to == DRAFT_A], ticket))
    world_fail(w, "two drafts of a session were given one ticket");
}

/* Of the wrong ones there are too many to remember. */
static void note_offered(client *c, int which, const wire_id *ticket) {
  if (has_ticket(&c->drawn, ticket)) note_ticket(&c->offered[which], ticket);
}

static void check_attached(world *w, const client *c, int at, int from) {
  const session *s = session_store_get(target_sessions(w->nodes[at].target), c->id);
  if (!has_ticket(&c->offered[from - DRAFT_A], &s->request.ticket))
    world_fail(w, "a draft attached that has not shown the session's ticket");
}

/* --- what a target says --- */

/* An error inside a verify ends speculation, but no answer. */
static void check_done(world *w, const client *c, int at, const msg_done *d) {
  bool failed = d->finish == WIRE_FINISH_ERROR && (d->code == ERR_INTERNAL || d->code == ERR_NOMEM);
  if (failed && !(c->failed_at >> at & 1))
    world_fail(w, "a target gave an answer up though no plain step of it has failed");
}

/* Who shuts down goes on with what it has, and takes no more. */
static void check_opened(world *w, int at, uint64_t id) {
  const worker_node *n = &w->nodes[at];
  bool had = !n->draining;
  for (int i = 0; i < TOY_SLOTS; i++) had |= n->drained_ids[i] == id;
  if (!had) world_fail(w, "a target that shuts down has opened another session");
}

static void check_target(world *w, int from, int to, client *c, const msg *m) {
  if (m->type == MSG_DONE) check_done(w, c, from, &m->u.done);
  if (m->type == MSG_ERROR && to == ORCH) c->displaced |= m->u.error.code == ERR_FULL;
  if (m->type == MSG_OPENED && to == ORCH) check_opened(w, from, m->session);
  if (m->type == MSG_ATTACHED && to >= DRAFT_A && to <= DRAFT_B) check_attached(w, c, from, to);
}

/* --- */

/* Nobody but its orchestrator and its drafts hears of a session. */
static void check_stranger(world *w, const msg *m) {
  if (m->session && m->type != MSG_ERROR) world_fail(w, "a stranger was told of a session");
}

void frames_check(world *w, int from, int to, const msg *m) {
  client *c = world_client(w, m->session);
  if (to == STRANGER) check_stranger(w, m);
  if (c && m->type == MSG_ATTACH && (from == DRAFT_A || from == DRAFT_B))
    note_offered(c, from - DRAFT_A, &m->u.state.ticket);
  if (!c || w->says) return; /* what is said in a program's name it does not know */
  if (from == ORCH && (m->type == MSG_OPEN || m->type == MSG_PART)) check_ticket(w, c, to, &m->u.open.ticket);
  if (from == ORCH && (m->type == MSG_OPEN || m->type == MSG_ACK)) {
    int32_t length = m->type == MSG_ACK ? m->u.state.length : m->u.open.prompt_length;
    if (length > c->told) c->told = length;
  }
  if ((from == TARGET_A || from == TARGET_B) && w->nodes[from].target) check_target(w, from, to, c, m);
}

void frames_copy(world *w, int from, int to, const msg *m) {
  int other = to == DRAFT_A ? DRAFT_B : DRAFT_A;
  bool about = m->type == MSG_OPEN || m->type == MSG_END;
  if (!w->several || w->says || !about || from != ORCH || to < DRAFT_A || !w->nodes[other].draft) return;
  msg copy = *m;
  copy.to = w->nodes[other].incarnation;
  world_say(w, ORCH, other, &copy);
}
