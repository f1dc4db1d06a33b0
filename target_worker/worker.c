#include "target_worker/worker.h"

#include "common/base/least.h"
#include "common/base/log.h"
#include "common/base/program.h"
#include "target_worker/attached_drafts.h"
#include "target_worker/session_open.h"
#include "target_worker/verifier.h"
#include "target_worker/token_stream.h"
#include "wire/presence.h"
#include <assert.h>
#include <stdlib.h>

struct target {
  target_options options;
  roster peers;
  session_store store;
  verifier verifier;
  presence orchestrator;
  bool draining; /* takes no new sessions */
  /* Of the engine: */
  bool computing;       /* it has a batch, */
  uint64_t progress;    /* which was so far when we looked last, */
  uint64_t progress_us; /* and had come further then */
  uint64_t looked_us;
  bool stuck; /* the log knows */
};

int target_alloc(target **out, const target_options *o, err *e) {
  *out = NULL;
  target *t = calloc(1, sizeof *t);
  if (!t) return err_set(e, ERR_NOMEM, "no memory for the worker's state");
  t->options = *o;
  msg_hello self = {.role = WIRE_ROLE_TARGET,
                    .incarnation = o->incarnation,
                    .model_fingerprint = o->model_fingerprint,
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
  if (rc == ERR_OK) rc = verifier_init(&t->verifier, o->context, o->kv_blocks > 0, TARGET_CREDIT, e);
  if (rc != ERR_OK) {
    target_free(t);
    return rc;
  }
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

void target_connect(target *t, const char *endpoint, actions *out) {
  if (!t->orchestrator.endpoint) t->orchestrator.endpoint = endpoint;
  actions_connect(out, 0, wire_text(endpoint));
}

/* A finished session is still to be told of: its DONE may have been lost. END or the lease frees it. */
bool target_drained(const target *t) {
  bool empty = t->draining;
  for (int32_t i = 0; empty && i < t->store.count; i++) empty = t->store.slots[i].state == SESSION_FREE;
  return empty;
}

/* --- answers and ends --- */

static void refuse(step *c, peer_id from, const msg *m, int code, const char *text) {
  roster_refuse(c->peers, from, m, code, text, c->out);
}

static void session_finish(step *c, session *s, wire_finish finish, int code, const char *text) {
  if (finish != WIRE_FINISH_CANCELLED) token_stream_tell_orchestrator(c, s);
  s->state = SESSION_FINISHED;
  s->finish.reason = (int)finish;
  s->finish.code = code;
  s->finish.text = text;
  s->used_us = c->now;
  session_store_give_back(&c->t->store, s);
  token_stream_done(c, s);
}

static bool is_stop(const session *s, int32_t token) {
  for (int32_t i = 0; i < s->request.options.stop_count; i++)
    if (s->request.stop_tokens[i] == token) return true;
  return false;
}

/* The answer is over if its last token ends it, or no room is left. */
static void finish_if_over(step *c, session *s) {
  int32_t last = s->committed.tokens[s->committed.length - 1];
  if (s->committed.length > s->request.prompt_length && is_stop(s, last))
    session_finish(c, s, WIRE_FINISH_STOP, 0, NULL);
  else if (session_room(s) == 0)
    session_finish(c, s, WIRE_FINISH_LENGTH, 0, NULL);
}

/* --- OPEN --- */

static void start_session(step *c, session *s, peer_id from, const msg *m) {
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    s->drafts.of[i].peer = 0; /* they attach again with the new epoch */
  session_draft_restart(s);
  s->epoch = m->epoch;
  s->request.orchestrator = from;
  s->state = SESSION_RUNNING;
  s->finish.reason = 0;
  s->stream.acked = s->stream.told = s->committed.length;
  s->stream.tell_after_us = 0;
  s->stream.tell_until_us = MACHINE_NEVER;
  s->used_us = s->job.ready_us = s->stream.sent_us = c->now;
  s->job.stepped_us = 0;
  s->lease_until_us = c->now + TARGET_LEASE_US;
  s->drafts.lockstep_until_us = c->now + TARGET_LOCKSTEP_US;
  token_stream_state(c, from, MSG_OPENED, s, NULL);
  finish_if_over(c, s);
}

static void answer_desync(step *c, peer_id from, const msg *m, const session *s, const char *reason) {
  const prefix *held = s ? &s->committed : NULL;
  msg d = roster_state(c->peers, from, MSG_DESYNC, m->session, m->epoch, held, reason);
  actions_send(c->out, from, &d);
}

/* A place for what has been checked, new or the session's own. On an error a new one is given up. */
static int take_place(step *c, const msg *m, session **out, bool *fresh, err *e) {
  const msg_open *o = &m->u.open;
  session_store *store = &c->t->store;
  bool whole = o->base_length == 0;
  session *s = *out = session_store_take(store, m->session, c->now, whole ? o->tokens : NULL,
                                         whole ? o->token_count : 0, fresh);
  if (!s)
    return err_set(e, ERR_FULL,
                   "every session place is busy: try again later or start the target with more --sessions");
  if (o->options.repeat_penalty == 1 || session_store_penalties(store, s)) return ERR_OK;
  if (*fresh) session_store_end(store, m->session);
  return err_set(e, ERR_NOMEM, "no memory for what a repetition penalty looks at");
}

static void on_open(step *c, peer_id from, const msg *m) {
  const msg_open *o = &m->u.open;
  target *t = c->t;
  session *s = session_store_get(&t->store, m->session);
  if (s && m->epoch < s->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed: open the session with a higher one");
    return;
  }
  if (s && m->epoch == s->epoch && s->state != SESSION_DESYNCED) { /* a repetition */
    bool same = prefix_has(&s->committed, o->base_length + o->token_count, o->hash);
    s->request.orchestrator = from;
    if (same && !o->draft_expected && session_draft_count(s) == 0) s->drafts.gave_up = true;
    if (same)
      token_stream_state(c, from, MSG_OPENED, s, NULL);
    else
      answer_desync(c, from, m, s, "opened with other tokens in this epoch");
    return;
  }
  err e;
  bool fresh = false;
  int rc = session_open_check(o, t->options.context, t->options.vocabulary_size, &e);
  if (rc == ERR_OK && t->draining && !s)
    rc = err_set(&e, ERR_DRAINING, "this target is shutting down: open the session elsewhere");
  const char *misfit = rc == ERR_OK ? msg_open_misfit(o, s ? &s->committed : NULL) : NULL;
  if (misfit) {
    answer_desync(c, from, m, s, misfit);
    return;
  }
  if (rc == ERR_OK) rc = take_place(c, m, &s, &fresh, &e);
  if (rc == ERR_OK) {
    session_open_adopt(s, o);
    rc = session_store_admit(&t->store, s, s->committed.length + session_room(s), &e);
    if (rc != ERR_OK) session_store_end(&t->store, m->session);
  }
  if (rc != ERR_OK) {
    refuse(c, from, m, rc, e.text);
    return;
  }
  start_session(c, s, from, m);
  if (fresh) t->store.reused_rows += (uint64_t)s->cache.rows;
}

/* --- other messages of an orchestrator --- */

/* What is repaired from here should be known over there. */
static void desync(step *c, session *s, const char *reason) {
  if (s->state == SESSION_RUNNING) token_stream_tell_orchestrator(c, s);
  s->state = SESSION_DESYNCED;
  session_draft_restart(s);
  actions_log(c->out, LOG_WARNING, "session %016llx: out of step at %d tokens: %s", (unsigned long long)s->id,
              s->committed.length, reason);
  token_stream_state(c, s->request.orchestrator, MSG_DESYNC, s, reason);
}

static void on_ack(step *c, session *s, const msg *m) {
  const msg_state *a = &m->u.state;
  s->lease_until_us = c->now + TARGET_LEASE_US;
  if (s->state == SESSION_DESYNCED)
    token_stream_state(c, s->request.orchestrator, MSG_DESYNC, s, "still out of step");
  if (s->state == SESSION_DESYNCED) return;
  if (!prefix_has(&s->committed, a->length, a->hash)) {
    desync(c, s, "what was acknowledged is not held here");
    return;
  }
  if (a->length <= s->stream.acked) return;
  s->stream.acked = a->length;
  s->drafts.lockstep_until_us = c->now + TARGET_LOCKSTEP_US; /* until now it may have waited for credit */
}

static void on_end(step *c, peer_id from, const msg *m) {
  session *s = session_store_get(&c->t->store, m->session);
  if (s && m->epoch < s->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed: end the session with its own or a higher one");
    return;
  }
  if (s) {
    s->epoch = m->epoch;
    s->request.orchestrator = from;
    if (s->state != SESSION_FINISHED) session_finish(c, s, WIRE_FINISH_CANCELLED, 0, NULL);
  }
  msg answer = roster_message(c->peers, from, MSG_ENDED, m->session, m->epoch);
  answer.u.existed = session_store_end(&c->t->store, m->session);
  actions_send(c->out, from, &answer);
}

static void on_resend(step *c, peer_id from, session *s, const msg *m) {
  session_draft *d = session_draft_of(s, from);
  int32_t at = m->u.resend.from;
  if (at > s->committed.length) at = s->committed.length; /* they know more than we: our length tells them */
  if (d && c->now - d->resent_us < TARGET_RESEND_US) return; /* a small frame asks for a large one */
  if (d) d->resent_us = c->now;
  if (d)
    token_stream_to_draft(c, s, d, at);
  else if (from == s->request.orchestrator)
    token_stream_to_orchestrator(c, s, at);
  if (!d && s->state == SESSION_FINISHED) token_stream_done(c, s); /* it has overtaken the tokens */
}

/* --- dispatch --- */

/* Only who sits at the address that this program was told to call: at the door for drafts, anybody may say
 * so. */
static bool is_orchestrator(const roster_peer *p) {
  return p->calls && p->hello.role == WIRE_ROLE_ORCHESTRATOR;
}

static void on_session_message(step *c, const roster_peer *from, session *s, const msg *m) {
  bool orchestrator = is_orchestrator(from);
  session_draft *d = session_draft_of(s, from->id);
  if (m->type == MSG_RESEND && (d || orchestrator))
    on_resend(c, from->id, s, m);
  else if (m->type == MSG_ACK && orchestrator)
    on_ack(c, s, m);
  else if (m->type == MSG_ATTACH)
    attached_drafts_attach(c, from->id, s, m, &c->t->verifier.speculation);
  else if (m->type == MSG_NODES && d)
    attached_drafts_nodes(c, s, d, m);
  else if (m->type == MSG_DETACH && d)
    attached_drafts_gave_up(c, s, d, m->u.state.reason);
  else if (m->type == MSG_NODES)
    refuse(c, from->id, m, ERR_GONE, "not attached to this session: attach first");
}

static void on_message(step *c, peer_id id, const msg *m) {
  roster_peer *from;
  target *t = c->t;
  switch (roster_receive(&t->peers, id, m, session_store_active(&t->store), c->now, &from, c->out)) {
  case ROSTER_GREETED:
    presence_orchestrator(&t->orchestrator, c->peers, c->now, c->out);
    attached_drafts_left(c, &t->store, id, "it has restarted");
    return;
  case ROSTER_LEAVES:
    attached_drafts_left(c, &t->store, id, "it left");
    return;
  case ROSTER_FORGED:
    attached_drafts_left(c, &t->store, id, "it wanted to be of another role");
    return;
  case ROSTER_REFUSED:
    actions_log(c->out, LOG_ERROR, "refused by the orchestrator: %s", wire_brief_of(m->u.error.text).text);
    actions_exit(c->out, PROGRAM_EXIT_REFUSED);
    return;
  case ROSTER_HANDLED: /* a HELLO that does not fit: whoever was there before is gone */
    if (m->type == MSG_HELLO && !roster_find(c->peers, id))
      attached_drafts_left(c, &t->store, id, "it is another one now");
    return;
  case ROSTER_PASS:
    break;
  }
  if (m->type == MSG_ERROR) return;
  if ((m->type == MSG_OPEN || m->type == MSG_END) && !is_orchestrator(from)) {
    refuse(c, id, m, ERR_PROTOCOL, "only an orchestrator opens and ends sessions");
    return;
  }
  if (m->type == MSG_OPEN) {
    on_open(c, id, m);
    return;
  }
  if (m->type == MSG_END) {
    on_end(c, id, m);
    return;
  }
  session *s = session_store_get(&t->store, m->session);
  if (!s)
    refuse(c, id, m, ERR_GONE, "no such session here");
  else if (m->epoch < s->epoch)
    s->stats.dropped++;
  else if (m->epoch > s->epoch)
    refuse(c, id, m, ERR_GONE, "this epoch has not been opened here yet");
  else
    on_session_message(c, from, s, m);
}

/* --- results --- */

/* The token that plain decode would have given, several at once: C grows, the tree follows, all are told. */
static void verified(step *c, session *s, const engine_result *r) {
  int32_t base = s->committed.length;
  if (r->selfcheck_differs) {
    s->speculation.disabled = "the self-check found a difference between verified and plainly decoded tokens";
    actions_log(c->out, LOG_ERROR, "session %016llx: %s", (unsigned long long)s->id, s->speculation.disabled);
  }
  verifier_stepped(&c->t->verifier, &c->t->store, s, r, c->now);
  int rc = prefix_append(&s->committed, r->sampled, r->sampled_count);
  assert(rc == ERR_OK);
  (void)rc;
  if (s->drafts.has_tree) {
    tree_ids *maps[SESSION_DRAFTS_MAX];
    tree_commit(&s->drafts.tree, maps, session_draft_maps(s, maps), base, r->sampled, r->sampled_count);
  }
  token_stream_tell(c, s);
  s->job.ready_us = c->now;
  s->drafts.lockstep_until_us = c->now + TARGET_LOCKSTEP_US;
  finish_if_over(c, s);
}

static void prefilled(step *c, session *s) {
  s->job.ready_us = c->now;
  s->drafts.lockstep_until_us = c->now + TARGET_LOCKSTEP_US;
}

static void failed(step *c, session *s, const engine_result *r) {
  if (r->node_count > 0) { /* an error inside a verify: this session decodes plainly from now on */
    s->speculation.disabled = "an error inside a verify";
    actions_log(c->out, LOG_ERROR, "session %016llx: verify failed (%s): it decodes plainly from now on",
                (unsigned long long)s->id, err_name(r->code));
    return;
  }
  session_finish(c, s, WIRE_FINISH_ERROR, r->code, "the engine failed: see the target's log");
}

static void on_result(step *c, const engine_result *r) {
  bool stale;
  session *s = verifier_end(&c->t->store, r, &stale);
  if (!s || stale || s->state != SESSION_RUNNING) return;
  if (r->code == ERR_DESYNC) {
    prefix_truncate(&s->committed, s->cache.rows + 1);
    desync(c, s, "the cache holds fewer rows than it should");
  } else if (r->code != ERR_OK)
    failed(c, s, r);
  else if (r->kind == ENGINE_VERIFY)
    verified(c, s, r);
  else
    prefilled(c, s);
}

static void on_results(step *c, const engine_results *r) {
  c->t->computing = false;
  verifier_measure(&c->t->verifier, r);
  for (int32_t i = 0; i < r->count; i++) on_result(c, &r->of[i]);
}

bool target_next_batch(target *t, uint64_t now, engine_batch *batch) {
  t->computing = verifier_next(&t->verifier, &t->store, now, batch);
  if (t->computing) t->progress_us = now;
  return t->computing;
}

/* --- signs of life --- */

/* Its orchestrator moves a session of which nothing is heard: so nothing may be told where an engine hangs,
 * however well this thread is, and something where a forward is only slow. */
static bool engine_lives(step *c) {
  target *t = c->t;
  uint64_t progress = t->options.progress ? t->options.progress(t->options.progress_context) : 0;
  if (progress != t->progress) t->progress_us = c->now;
  t->progress = progress;
  bool lives = !t->computing || c->now - t->progress_us < TARGET_ENGINE_US;
  if (lives == t->stuck)
    actions_log(c->out, LOG_WARNING,
                lives ? "the engine goes on"
                      : "the engine has made no progress for %d s: its sessions stand still",
                TARGET_ENGINE_US / 1000000);
  t->stuck = !lives;
  return lives;
}

static void tell_alive(step *c) {
  target *t = c->t;
  if (c->now - t->looked_us < TARGET_ALIVE_US / 2) return;
  t->looked_us = c->now;
  bool lives = engine_lives(c);
  for (int32_t i = 0; lives && i < t->store.count; i++) {
    session *s = &t->store.slots[i];
    if (s->state == SESSION_RUNNING && c->now - s->stream.sent_us >= TARGET_ALIVE_US)
      token_stream_alive(c, s);
  }
}

static uint64_t alive_deadline(const target *t) {
  for (int32_t i = 0; i < t->store.count; i++)
    if (t->store.slots[i].state == SESSION_RUNNING) return t->looked_us + TARGET_ALIVE_US / 2;
  return MACHINE_NEVER;
}

/* --- time --- */

/* Lockstep: until when it waits for a done mark; MACHINE_NEVER when that is not what it waits for. */
static uint64_t lockstep_deadline(const session *s) {
  uint64_t until;
  bool waits = s->request.options.lockstep && schedule_session(s, TARGET_CREDIT, 0, &until) == SCHEDULE_WAIT;
  return waits ? until : MACHINE_NEVER;
}

static void session_tick(step *c, session *s) {
  if (s->state == SESSION_FREE) return;
  if (c->now >= s->lease_until_us) {
    actions_log(c->out, LOG_WARNING, "session %016llx: nobody renewed it for %d s: freed",
                (unsigned long long)s->id, TARGET_LEASE_US / 1000000);
    session_store_end(&c->t->store, s->id);
    return;
  }
  if (c->now >= lockstep_deadline(s)) {
    session_finish(c, s, WIRE_FINISH_ERROR, ERR_TIMEOUT,
                   "lockstep: the draft's done mark did not come within 60 s");
    return;
  }
  token_stream_tick(c, s);
}

static uint64_t session_deadline(const session *s) {
  if (s->state == SESSION_FREE) return MACHINE_NEVER;
  return least_u64(least_u64(s->lease_until_us, lockstep_deadline(s)), token_stream_deadline(s));
}

static uint64_t target_deadline(const void *self) {
  const target *t = self;
  uint64_t at = least_u64(roster_deadline(&t->peers), t->verifier.wait_until_us);
  at = least_u64(at, presence_deadline(&t->orchestrator));
  at = least_u64(at, alive_deadline(t));
  for (int32_t i = 0; i < t->store.count; i++) at = least_u64(at, session_deadline(&t->store.slots[i]));
  return at;
}

static void on_tick(step *c) {
  target *t = c->t;
  for (roster_peer *lost; (lost = roster_tick(&t->peers, c->now, c->out));)
    attached_drafts_left(c, &t->store, lost->id, "it has been silent for 3 s");
  presence_orchestrator(&t->orchestrator, c->peers, c->now, c->out);
  for (int32_t i = 0; i < t->store.count; i++) session_tick(c, &t->store.slots[i]);
  tell_alive(c);
}

static void on_connected(step *c, peer_id orchestrator) {
  if (!orchestrator) return;
  if (!c->t->orchestrator.peer) c->t->orchestrator.peer = orchestrator;
  roster_connected(c->peers, orchestrator, c->now, c->out);
}

static void on_drain(step *c) {
  target *t = c->t;
  if (t->draining) return;
  t->draining = true;
  roster_bye(&t->peers, c->out);
}

static void target_step(void *self, const event *e, uint64_t now_us, actions *out) {
  target *t = self;
  step c = {t, &t->peers, now_us, out};
  switch (e->kind) {
  case EVENT_MESSAGE:
    on_message(&c, e->peer, e->message);
    break;
  case EVENT_CONNECTED:
    on_connected(&c, e->peer);
    break;
  case EVENT_TICK:
    on_tick(&c);
    break;
  case EVENT_DRAIN:
    on_drain(&c);
    break;
  case EVENT_RESULT:
    on_results(&c, e->result);
    break;
  }
}

machine target_machine(target *t) {
  return (machine){t, target_step, target_deadline};
}
