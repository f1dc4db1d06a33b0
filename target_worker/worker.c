#include "target_worker/worker.h"

#include "common/base/log.h"
#include "common/base/min.h"
#include "common/base/program.h"
#include "target_worker/attached_drafts.h"
#include "target_worker/device_loss.h"
#include "target_worker/engine_watch.h"
#include "target_worker/feature_stream.h"
#include "target_worker/job_results.h"
#include "target_worker/session_end.h"
#include "target_worker/session_open.h"
#include "target_worker/token_stream.h"
#include "target_worker/verifier.h"
#include "wire/peer_watch.h"
#include <stdio.h>
#include <stdlib.h>

struct target {
  roster peers;
  session_store store;
  verifier verifier;
  engine_watch watch;
  peer_watch orchestrator;
  bool draining; /* takes no new sessions */
  bool lost;     /* its device is gone: nothing is computed any more, and the program ends */
};

int target_alloc(target **out, const target_options *o, err *e) {
  *out = NULL;
  target *t = calloc(1, sizeof *t);
  if (!t) return err_set(e, ERR_NOMEM, "no memory for the worker's state");
  t->watch = (engine_watch){.progress = o->progress, .context = o->engine_context};
  msg_hello self = {.role = WIRE_ROLE_TARGET,
                    .incarnation = o->incarnation,
                    .model_fingerprint = o->model_fingerprint,
                    .model_hash = o->model_hash,
                    .vocabulary_hash = o->vocabulary_hash,
                    .vocabulary_size = o->vocabulary_size,
                    .numerics_id = wire_text(o->numerics_id),
                    .endpoint = wire_text(o->endpoint),
                    .session_max = o->sessions,
                    .context_max = o->context,
                    .node_max = TREE_NODE_MAX,
                    .host = o->host,
                    .device = wire_text(o->device)};
  roster_init(&t->peers, &self);
  int rc = session_store_init(&t->store, o->sessions, o->context, o->kv_blocks, e);
  if (rc == ERR_OK) rc = verifier_init(&t->verifier, o->context, o->kv_blocks > 0, o->partial, e);
  if (rc != ERR_OK) {
    target_free(t);
    return rc;
  }
  if (o->width) cost_model_steps(&t->verifier.speculation.costs, o->width, o->engine_context);
  t->verifier.speculation.prompt_rows = o->prompt_rows;
  t->verifier.speculation.verify_chunk = o->verify_chunk;
  t->store.taps = o->taps;
  t->store.vocabulary = o->vocabulary;
  t->store.speculation = &t->verifier.speculation;
  t->verifier.record = o->record;
  t->verifier.record_context = o->record_context;
  *out = t;
  return ERR_OK;
}

void target_free(target *t) {
  if (!t) return;
  session_store_fini(&t->store);
  verifier_fini(&t->verifier);
  free(t);
}

session_store *target_sessions(target *t) {
  return &t->store;
}

speculation_shared *target_speculation(target *t) {
  return &t->verifier.speculation;
}

void target_connect(target *t, const char *endpoint, actions *out) {
  if (!t->orchestrator.endpoint) t->orchestrator.endpoint = endpoint;
  actions_connect(out, 0, wire_text(endpoint));
}

/* A finished session still counts: its DONE may have been lost. END or the lease frees it. */
bool target_drained(const target *t) {
  return t->draining && !t->lost && session_store_empty(&t->store);
}

bool target_next_batch(target *t, uint64_t now, engine_batch *batch) {
  bool any = !t->lost && verifier_next(&t->verifier, &t->store, now, batch);
  engine_watch_batch(&t->watch, any, now);
  return any;
}

/* --- messages --- */

static void refuse(step_context *c, peer_id from, const msg *m, int code, const char *text) {
  roster_refuse(c->peers, from, m, code, text, c->out);
}

/* Only the program at the address that this one was told to call: anybody who connects to the listener for
 * drafts may say that it is one. */
static bool is_orchestrator(const roster_peer *p) {
  return p->calls && p->hello.role == WIRE_ROLE_ORCHESTRATOR;
}

/* Of an open session's epoch. */
static void on_session_message(step_context *c, const roster_peer *from, session *s, const msg *m) {
  bool orchestrator = from->id == s->request.orchestrator;
  session_draft *d = session_draft_of(s, from->id);
  if (m->type == MSG_RESEND && (d || orchestrator))
    token_stream_on_resend(c, from->id, s, m);
  else if (m->type == MSG_ACK && orchestrator)
    token_stream_on_ack(c, s, m);
  else if (m->type == MSG_ATTACH)
    attached_drafts_attach(c, from->id, s, m);
  else if (m->type == MSG_NODES && d)
    attached_drafts_nodes(c, s, d, m);
  else if (m->type == MSG_DETACH && d)
    attached_drafts_gave_up(c, s, d, m->u.state.reason);
  else if (m->type == MSG_NODES)
    refuse(c, from->id, m, ERR_GONE, "not attached to this session: attach first");
}

/* OPEN, PART or END. An epoch belongs to the orchestrator that has opened it. */
static void on_command(target *t, step_context *c, const roster_peer *from, const msg *m) {
  const session *s = session_store_get(c->store, m->session);
  if (!is_orchestrator(from))
    refuse(c, from->id, m, ERR_PROTOCOL, "only an orchestrator opens and ends sessions");
  else if (s && m->epoch == s->epoch && from->id != s->request.orchestrator)
    refuse(c, from->id, m, ERR_STALE, "another orchestrator has opened this epoch: use a higher one");
  else if (m->type != MSG_END)
    session_open_on_open(c, from->id, m, t->draining);
  else
    session_end_on_end(c, from->id, m);
}

static void on_peer_message(target *t, step_context *c, const roster_peer *from, const msg *m) {
  if (m->type == MSG_ERROR) return;
  if (m->type == MSG_OPEN || m->type == MSG_PART || m->type == MSG_END) {
    on_command(t, c, from, m);
    return;
  }
  session *s = session_store_get(c->store, m->session);
  if (!s)
    refuse(c, from->id, m, ERR_GONE, "no such session here");
  else if (m->epoch < s->epoch)
    s->stats.dropped++;
  else if (m->epoch > s->epoch || s->state == SESSION_OPENING)
    refuse(c, from->id, m, ERR_GONE, "this epoch has not been opened here yet");
  else
    on_session_message(c, from, s, m);
}

static void on_message(target *t, step_context *c, peer_id id, const msg *m) {
  roster_peer *from;
  switch (roster_receive(c->peers, id, m, session_store_active(c->store), c->now, &from, c->out)) {
  case ROSTER_GREETED:
    peer_watch_orchestrator(&t->orchestrator, c->peers, c->now, c->out);
    attached_drafts_left(c, id, "it has restarted");
    break;
  case ROSTER_LEAVES:
    attached_drafts_left(c, id, "it left");
    break;
  case ROSTER_FORGED:
    attached_drafts_left(c, id, "it wanted to be of another role");
    break;
  case ROSTER_REFUSED:
    actions_log(c->out, LOG_ERROR, "refused by the orchestrator: %s", roster_why_refused(m).text);
    actions_exit(c->out, STATUS_REFUSED);
    break;
  case ROSTER_HANDLED: /* after a HELLO that does not fit, whoever had this connection before is gone */
    if (m->type == MSG_HELLO && !roster_find(c->peers, id))
      attached_drafts_left(c, id, "it is another one now");
    break;
  case ROSTER_PASS:
    on_peer_message(t, c, from, m);
    break;
  }
}

/* --- time --- */

static void purge(step_context *c) {
  for (uint64_t id; session_store_purge(c->store, c->now, &id);)
    actions_log(c->out, LOG_WARNING, "session %016llx: nobody renewed it for %d s: freed",
                (unsigned long long)id, SESSION_STORE_LEASE_US / 1000000);
}

/* Nothing goes on by itself in a session that is not open; its lease ends it. */
static bool has_timers(const session *s) {
  return s->state != SESSION_FREE && s->state != SESSION_OPENING;
}

static void session_tick(step_context *c, session *s) {
  if (!has_timers(s)) return;
  if (c->now >= schedule_lockstep_deadline(s))
    session_end_finish(c, s, WIRE_FINISH_ERROR, ERR_TIMEOUT,
                       "lockstep: the draft's done mark did not come within 60 s");
  else
    token_stream_tick(c, s);
  attached_drafts_tick(c, s);
}

static uint64_t session_deadline(const session *s) {
  if (!has_timers(s)) return MACHINE_NEVER;
  uint64_t at = min_u64(attached_drafts_deadline(s), token_stream_deadline(s));
  return min_u64(schedule_lockstep_deadline(s), at);
}

static uint64_t target_deadline(const void *self) {
  const target *t = self;
  uint64_t at = min_u64(roster_deadline(&t->peers), t->verifier.wait_until_us);
  at = min_u64(at, peer_watch_deadline(&t->orchestrator));
  at = min_u64(at, engine_watch_deadline(&t->watch, &t->store));
  at = min_u64(at, session_store_deadline(&t->store));
  for (int32_t i = 0; i < t->store.count; i++) at = min_u64(at, session_deadline(&t->store.slots[i]));
  return at;
}

static void on_tick(target *t, step_context *c) {
  for (roster_peer *lost; (lost = roster_tick(&t->peers, c->now, c->out));) {
    char why[64];
    snprintf(why, sizeof why, "it %s", roster_lost_why(lost));
    attached_drafts_left(c, lost->id, why);
  }
  peer_watch_orchestrator(&t->orchestrator, c->peers, c->now, c->out);
  purge(c);
  for (int32_t i = 0; i < t->store.count; i++) session_tick(c, &t->store.slots[i]);
  engine_watch_tick(&t->watch, c);
}

/* --- other events --- */

static void on_connected(target *t, step_context *c, peer_id orchestrator) {
  if (!orchestrator) return;
  if (!t->orchestrator.peer) t->orchestrator.peer = orchestrator;
  roster_connected(c->peers, orchestrator, c->now, c->out);
}

static void on_drain(target *t, step_context *c) {
  if (t->draining) return;
  t->draining = true;
  roster_bye(c->peers, c->out);
}

static void on_results(target *t, step_context *c, const engine_results *results) {
  engine_watch_batch(&t->watch, false, c->now);
  if (device_loss_in(results)) {
    t->lost = t->draining = true;
    device_loss_leave(c);
  } else {
    job_results_apply(c, &t->verifier, results);
  }
}

static void target_step(void *self, const event *e, uint64_t now_us, actions *out) {
  target *t = self;
  step_context c = {&t->store, &t->peers, now_us, out};
  switch (e->kind) {
  case EVENT_MESSAGE:
    on_message(t, &c, e->peer, e->message);
    break;
  case EVENT_CONNECTED:
    on_connected(t, &c, e->peer);
    break;
  case EVENT_DISCONNECTED:
    roster_disconnected(&t->peers, e->peer, now_us, out);
    break;
  case EVENT_TICK:
    on_tick(t, &c);
    break;
  case EVENT_DRAIN:
    on_drain(t, &c);
    break;
  case EVENT_RESULT:
    on_results(t, &c, e->result);
    break;
  }
  feature_stream_flush(&c);
}

machine target_machine(target *t) {
  return (machine){t, target_step, target_deadline};
}
