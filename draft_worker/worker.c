#include "draft_worker/worker.h"

#include "common/base/log.h"
#include "common/base/min.h"
#include "common/base/program.h"
#include "draft_worker/draft_open.h"
#include "draft_worker/draft_peers.h"
#include "draft_worker/draft_state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As --draft has them: "eagle3,ngram". */
static void name_method(draft *d) {
  size_t used = 0;
  for (int32_t i = 0; i < d->options.drafter_count && used < sizeof d->method; i++)
    used += (size_t)snprintf(d->method + used, sizeof d->method - used, "%s%s", i ? "," : "",
                             d->options.drafters[i].method);
}

/* The first drafter that reads features: a target grants a session one kind of them. */
static int32_t feature_reader(const draft_options *o) {
  for (int32_t i = 0; i < o->drafter_count; i++)
    if (o->drafters[i].wants.tap_count > 0) return i;
  return -1;
}

int draft_alloc(draft **out, const draft_options *o, err *e) {
  *out = NULL;
  draft *d = calloc(1, sizeof *d);
  if (d) d->sessions = calloc(DRAFT_SESSIONS_MAX, sizeof *d->sessions);
  if (!d || !d->sessions) {
    draft_free(d);
    return err_set(e, ERR_NOMEM, "no memory for the worker's state");
  }
  for (int32_t i = 0; i < DRAFT_SESSIONS_MAX; i++) d->sessions[i].session.slot = i;
  d->options = *o;
  d->setup = (draft_setup){
      .drafter_count = o->drafter_count, .candidates = o->candidates, .colocated = o->colocated};
  memcpy(d->setup.drafters, o->drafters, sizeof o->drafters);
  name_method(d);
  if (o->device) snprintf(d->device, sizeof d->device, "%s%s", o->device, o->beside ? MSG_BESIDE : "");
  d->setup.reader = feature_reader(o);
  msg_hello self = {.role = WIRE_ROLE_DRAFT,
                    .incarnation = o->incarnation,
                    .method = wire_text(d->method),
                    .vocabulary_hash = o->vocabulary_hash,
                    .vocabulary_size = o->vocabulary_size,
                    .numerics_id = wire_text(o->numerics_id),
                    .session_max = draft_state_session_max(d),
                    .context_max = o->context,
                    .node_max = TREE_NODE_MAX,
                    .host = o->host,
                    .device = wire_text(d->device)};
  roster_init(&d->peers, &self);
  *out = d;
  return ERR_OK;
}

void draft_free(draft *d) {
  if (!d) return;
  for (int i = 0; d->sessions && i < DRAFT_SESSIONS_MAX; i++)
    draft_session_fini(&d->sessions[i].session, &d->setup);
  free(d->sessions);
  free(d);
}

void draft_connect(draft *d, const char *endpoint, actions *out) {
  if (!d->orchestrator.endpoint) d->orchestrator.endpoint = endpoint;
  actions_connect(out, DRAFT_PEERS_ORCHESTRATOR, wire_text(endpoint));
}

static int32_t session_count(const draft *d) {
  int32_t n = 0;
  for (int i = 0; i < draft_state_session_max(d); i++) n += d->sessions[i].state != ATTACHMENT_FREE;
  return n;
}

bool draft_drained(const draft *d) {
  return d->draining && session_count(d) == 0;
}

bool draft_digest(const draft *d, uint64_t session, uint32_t epoch, uint64_t *digest, int32_t *length) {
  const attachment *a = draft_state_find(d, session);
  if (!a || a->state != ATTACHMENT_ATTACHED || a->epoch != epoch) return false;
  *digest = tree_digest(&a->session.expansion.live);
  *length = a->session.committed.length;
  return true;
}

/* --- batches --- */

bool draft_next_batch(draft *d, draft_batch *b) {
  draft_session *list[DRAFT_SESSIONS_MAX];
  int32_t count = 0, first = 0;
  d->first = (d->first + 1) % DRAFT_SESSIONS_MAX; /* a long prompt holds up nobody twice */
  for (int32_t i = 0; i < draft_state_session_max(d); i++) {
    if (!attachment_is_active(&d->sessions[i])) continue;
    first += i < d->first;
    list[count++] = &d->sessions[i].session;
  }
  bool any = count > 0 && draft_session_batch(list, count, &d->setup, first % count, b);
  d->times.busy |= any;
  return any;
}

static bool is_lost(const draft_results *results) {
  for (int32_t i = 0; i < results->failure_count; i++)
    if (results->failures[i].code == ERR_DEVICE) return true;
  return false;
}

/* Every session goes on without this draft. */
static void leave_all(draft *d, draft_step *c, const char *reason) {
  for (int i = 0; i < draft_state_session_max(d); i++)
    if (d->sessions[i].state != ATTACHMENT_FREE) attachment_leave(c, &d->sessions[i], reason);
  roster_bye(&d->peers, c->out);
}

/* Its sessions go on with the other drafters. */
static void lose_drafter(const draft *d, draft_step *c, const char *method) {
  actions_log(c->out, LOG_ERROR,
              "the device %s is lost, and %s with it: the other drafts go on; see the system's log (dmesg), "
              "then start this program again",
              wire_brief_of(d->peers.self.device).text, method);
}

/* Those whose forward it was have been told so already. */
static void lose_device(draft *d, draft_step *c) {
  leave_all(d, c, "the draft's device is lost");
  actions_log(c->out, LOG_ERROR,
              "the device %s is lost: see the system's log (dmesg), then start this program again, or with "
              "another --device",
              wire_brief_of(d->peers.self.device).text);
  actions_exit(c->out, STATUS_DEVICE);
}

static void on_loss(draft *d, draft_step *c) {
  if (d->setup.drafter_count == 1) {
    lose_device(d, c);
    return;
  }
  for (int32_t i = 0; i < d->setup.drafter_count; i++)
    if (d->setup.drafters[i].kind->batch_begin) lose_drafter(d, c, d->setup.drafters[i].method);
}

static void on_result(draft *d, draft_step *c, const draft_results *results) {
  draft_reply r;
  for (int32_t i = 0; i < d->setup.drafter_count; i++) {
    const drafter *x = &d->setup.drafters[i];
    if (!x->kind->batch_begin) continue;
    uint64_t us = x->kind->batch_done(x->self, results);
    if (us > 0 && !roster_stalled_since(&d->peers, c->now - us, c->now))
      pacing_forward(&d->setup.costs, (double)us);
    while (x->kind->take(x->self, &r))
      if (d->sessions[r.slot].state != ATTACHMENT_FREE) attachment_take(c, &d->sessions[r.slot], i, &r);
  }
  for (int i = 0; i < draft_state_session_max(d); i++) attachment_grow(c, &d->sessions[i]);
  if (is_lost(results)) on_loss(d, c);
}

/* --- counters --- */

static bool is_attached(const draft *d) {
  for (int i = 0; i < draft_state_session_max(d); i++)
    if (d->sessions[i].state == ATTACHMENT_ATTACHED) return true;
  return false;
}

const draft_times *draft_count_times(const draft *d) {
  return &d->times;
}

/* --- messages --- */

/* A target says this to drafts that are attached: to one that is not, perhaps because a late ATTACH came
 * there after its DETACH, and lockstep would wait for it. */
static void detach_stray(draft *d, draft_step *c, const roster_peer *from, const attachment *a,
                         const msg *m) {
  bool streams = m->type == MSG_ATTACHED || m->type == MSG_TOKENS || m->type == MSG_FEATURES ||
                 m->type == MSG_TREE_RESET;
  bool waits = a && a->target == from->id && a->state != ATTACHMENT_LOST;
  if (from->hello.role != WIRE_ROLE_TARGET || !streams || waits) return;
  msg detach = roster_state(&d->peers, from->id, MSG_DETACH, m->session, m->epoch, NULL,
                            "this draft does not serve the session here any more");
  actions_send(c->out, from->id, &detach);
}

static void on_session_message(draft *d, draft_step *c, const roster_peer *from, const msg *m) {
  bool orchestrator = draft_peers_is_orchestrator(d, from);
  attachment *a = draft_state_find(d, m->session);
  if ((m->type == MSG_OPEN || m->type == MSG_PART) && orchestrator)
    draft_open_receive(d, c, from->id, m);
  else if (m->type == MSG_END && orchestrator)
    draft_open_end(d, c, from->id, m);
  else if (a && a->target == from->id && m->epoch == a->epoch && a->state != ATTACHMENT_LOST)
    attachment_receive(c, a, m);
  else
    detach_stray(d, c, from, a, m);
}

static void on_message(draft *d, draft_step *c, peer_id id, const msg *m) {
  roster_peer *from;
  switch (roster_receive(&d->peers, id, m, session_count(d), c->now, &from, c->out)) {
  case ROSTER_GREETED:
    draft_peers_greeted(d, c, from);
    break;
  case ROSTER_REFUSED:
    draft_peers_refused(d, c, id, m);
    break;
  case ROSTER_PASS:
    on_session_message(d, c, from, m);
    break;
  case ROSTER_LEAVES:
  case ROSTER_FORGED:
  case ROSTER_HANDLED:
    break;
  }
}

/* --- time and the end --- */

static void on_tick(draft *d, draft_step *c) {
  draft_peers_tick(d, c);
  for (int i = 0; i < draft_state_session_max(d); i++) {
    attachment *a = &d->sessions[i];
    if (a->state == ATTACHMENT_FREE) continue;
    if (attachment_is_orphaned(c, a)) {
      attachment_close(a, &d->setup);
      continue;
    }
    attachment_unreachable(c, a, target_links_unreachable(&d->links, a->link));
    attachment_tick(c, a);
  }
}

static uint64_t draft_deadline(const void *self) {
  const draft *d = self;
  uint64_t at = draft_peers_deadline(d);
  for (int i = 0; i < draft_state_session_max(d); i++)
    if (d->sessions[i].state != ATTACHMENT_FREE) at = min_u64(at, attachment_deadline(&d->sessions[i]));
  return at;
}

static void on_drain(draft *d, draft_step *c) {
  if (d->draining) return;
  d->draining = true;
  leave_all(d, c, "this draft is shutting down");
}

static void draft_react(void *self, const event *e, uint64_t now_us, actions *out) {
  draft *d = self;
  draft_step c = {&d->peers, &d->setup, now_us, out};
  draft_times_event(&d->times, now_us, is_attached(d));
  switch (e->kind) {
  case EVENT_MESSAGE:
    on_message(d, &c, e->peer, e->message);
    break;
  case EVENT_CONNECTED:
    draft_peers_connected(d, &c, e->tag, e->peer);
    break;
  case EVENT_DISCONNECTED: /* a draft has no listener */
    break;
  case EVENT_TICK:
    on_tick(d, &c);
    break;
  case EVENT_DRAIN:
    on_drain(d, &c);
    break;
  case EVENT_RESULT:
    d->times.busy = false;
    on_result(d, &c, e->result);
    break;
  }
}

machine draft_machine(draft *d) {
  return (machine){d, draft_react, draft_deadline};
}
