#include "target_worker/worker.h"

#include "common/base/log.h"
#include "common/base/program.h"
#include "common/spec/width.h"
#include "target_worker/scheduler.h"
#include "wire/roster.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct target {
  target_options options;
  roster peers;
  session_store store;
  schedule_turns turns;
  schedule forward;        /* the one under way, or the last one */
  uint64_t serial;         /* of the last job */
  uint64_t asked_until_us; /* a waiting session's moment, as of the last target_next_batch */
  width_costs widths;
  pay_state crowded; /* of the session that stepped last with a draft that computes */
  int32_t *maps; /* [ENGINE_JOBS_MAX][blocks of a context]: of the jobs under way; NULL: static */
  bool draining;
};

/* One step's surroundings, so that handlers need few arguments. */
typedef struct step {
  target *t;
  uint64_t now;
  actions *out;
} step;

static size_t map_size(const target *t) { return (size_t)(t->options.context / KV_BLOCK + 1); }

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
                    .node_max = TREE_NODE_MAX};
  roster_init(&t->peers, &self);
  int rc = session_store_init(&t->store, o->sessions, o->context, o->kv_blocks, e);
  if (rc == ERR_OK && o->kv_blocks && !(t->maps = calloc(ENGINE_JOBS_MAX * map_size(t), sizeof *t->maps)))
    rc = err_set(e, ERR_NOMEM, "no memory for the worker's state");
  if (rc != ERR_OK) {
    target_free(t);
    return rc;
  }
  t->asked_until_us = MACHINE_NEVER;
  *out = t;
  return ERR_OK;
}

void target_free(target *t) {
  if (!t) return;
  session_store_fini(&t->store);
  free(t->maps);
  free(t);
}

session_store *target_sessions(target *t) { return &t->store; }

void target_connect(target *t, const char *endpoint, actions *out) {
  (void)t;
  actions_connect(out, 0, wire_text(endpoint));
}

/* A finished session is still to be told of: its DONE may have been lost. END or the lease frees it. */
bool target_drained(const target *t) {
  bool empty = t->draining;
  for (int32_t i = 0; empty && i < t->store.count; i++) empty = t->store.places[i].state == SESSION_FREE;
  return empty;
}

/* --- messages out --- */

static msg message_to(step *c, peer_id to, msg_type type, const session *s) {
  return roster_message(roster_find(&c->t->peers, to), type, s->id, s->epoch);
}

static void send_state(step *c, peer_id to, msg_type type, const session *s, const char *reason) {
  msg m = message_to(c, to, type, s);
  m.u.state.length = s->committed.length;
  m.u.state.hash = prefix_hash(&s->committed);
  m.u.state.reason = wire_text(reason);
  actions_send(c->out, to, &m);
}

/* TOKENS from `base` to the end of C, or as many as one message holds. Returns where they end. */
static int32_t send_tokens(step *c, peer_id to, const session *s, int32_t base) {
  int32_t count = s->committed.length - base;
  if (count > WIRE_BURST_MAX) count = WIRE_BURST_MAX;
  msg m = message_to(c, to, MSG_TOKENS, s);
  m.u.tokens.base_length = base;
  m.u.tokens.tokens = s->committed.tokens + base;
  m.u.tokens.token_count = count;
  m.u.tokens.hash = s->committed.hashes[base + count];
  actions_send(c->out, to, &m);
  return base + count;
}

static void tokens_to_orchestrator(step *c, session *s, int32_t base) {
  int32_t end = send_tokens(c, s->orchestrator, s, base);
  if (end > s->told) s->told = end;
  s->resent_us = c->now;
  s->tell_after_us = c->now + TARGET_TELL_US;
  s->tell_until_us = c->now + 2 * TARGET_TELL_US;
}

/* All that it has not been told yet. */
static void tell_orchestrator(step *c, session *s) {
  while (s->told < s->committed.length) tokens_to_orchestrator(c, s, s->told);
}

static void tokens_to_draft(step *c, session *s, session_draft *d, int32_t base) {
  d->tokens_sent_us = c->now;
  d->waiting_first = true;
  d->told = send_tokens(c, d->peer, s, base);
}

static void tell_drafts(step *c, session *s) {
  for (session_draft *d = s->drafts; d < s->drafts + SESSION_DRAFTS_MAX; d++)
    while (d->peer && d->told < s->committed.length) tokens_to_draft(c, s, d, d->told);
}

/* Why speculation is off at the end, or NULL. */
static const char *off_reason(const session *s) {
  if (s->off_for_good) return s->off_reason;
  if (s->options.budget == 0) return s->draft_expected ? "the node budget is 0" : "no draft was asked for";
  if (session_draft_count(s) == 0) return s->draft_expected ? "no draft worker is attached" : "there is no draft worker";
  if (s->options.lockstep || !s->pay.off) return NULL;
  if (!s->pay.resting) return "the draft did not pay for itself";
  if (s->stats.rounds == 0) return "the answer was over before the draft could show that it pays";
  return NULL;
}

static void send_done(step *c, session *s) {
  msg m = message_to(c, s->orchestrator, MSG_DONE, s);
  const session_stats *n = &s->stats;
  int32_t positions = WIRE_POSITIONS_MAX;
  while (positions > 0 && n->accepted_per_pos[positions - 1] == 0) positions--;
  m.u.done = (msg_done){.length = s->committed.length,
                        .hash = prefix_hash(&s->committed),
                        .finish = (wire_finish)s->finish,
                        .code = s->finish_code,
                        .text = wire_text(s->finish_text),
                        .off_reason = wire_text(off_reason(s)),
                        .stats = {.forwards = n->forwards,
                                  .rounds = n->rounds,
                                  .rows = n->rows,
                                  .accepted = n->accepted,
                                  .rewound = n->rows - n->accepted,
                                  .prefill_us = n->prefill_us,
                                  .queue_us = n->queue_us,
                                  .forward_us = n->forward_us,
                                  .accept_us = n->accept_us,
                                  .commit_us = n->commit_us,
                                  .wait_us = n->wait_us,
                                  .plain_steps = n->plain_steps,
                                  .resets = n->resets,
                                  .dropped = n->dropped,
                                  .accepted_per_pos = n->accepted_per_pos,
                                  .position_count = positions}};
  s->done_sent_us = c->now;
  actions_send(c->out, s->orchestrator, &m);
}

static void session_finish(step *c, session *s, wire_finish finish, int code, const char *text) {
  if (finish != WIRE_FINISH_CANCELLED) tell_orchestrator(c, s);
  s->state = SESSION_FINISHED;
  s->finish = (int)finish;
  s->finish_code = code;
  s->finish_text = text;
  s->used_us = c->now;
  session_store_give_back(&c->t->store, s);
  send_done(c, s);
}

static void drop_draft(step *c, session *s, session_draft *d, const char *reason) {
  if (s->state == SESSION_FINISHED) return; /* politeness after the end; a repeated DONE must tell what the first did */
  actions_log(c->out, LOG_WARNING, "session %016llx: draft detached: %s", (unsigned long long)s->id, reason);
  d->peer = 0;
  if (session_draft_count(s) == 0 && s->has_tree) tree_reset(&s->live);
}

/* --- OPEN --- */

static int check_options(const target *t, const msg_open *o, err *e) {
  const msg_options *p = &o->options;
  int32_t length = o->base_length + o->token_count;
  sampler_options s = {p->temperature, p->top_k, p->top_p, p->min_p, p->repeat_penalty, p->seed, p->choice};
  int rc = sampler_check(&s, e);
  if (rc != ERR_OK) return rc;
  if (p->context < 1 || p->context > t->options.context)
    return err_set(e, ERR_LIMIT, "a context of %d tokens was asked for, this target has %d: lower --ctx or start it with more",
                   p->context, t->options.context);
  if (length < 1) return err_set(e, ERR_ARG, "the prompt is empty: give at least one token");
  if (length > p->context)
    return err_set(e, ERR_LIMIT, "the prompt has %d tokens, the context %d: shorten it or raise --ctx", length, p->context);
  if (o->prompt_length < 1 || o->prompt_length > length)
    return err_set(e, ERR_ARG, "prompt_length %d is not within the %d tokens given", o->prompt_length, length);
  if (p->max_tokens < 1) return err_set(e, ERR_ARG, "max_tokens must be at least 1");
  if (p->budget < 0 || p->budget > WIRE_BUDGET_MAX)
    return err_set(e, ERR_ARG, "a node budget is 0 to %d, not %d", WIRE_BUDGET_MAX, p->budget);
  for (int32_t i = 0; i < o->token_count; i++)
    if (o->tokens[i] < 0 || o->tokens[i] >= t->options.vocabulary_size)
      return err_set(e, ERR_ARG, "token %d at position %d is outside the vocabulary of %d", o->tokens[i],
                     o->base_length + i, t->options.vocabulary_size);
  return ERR_OK;
}

/* Hash of C's first `base` tokens followed by the message's: nothing is changed for it. */
static hash16 resulting_hash(const prefix *c, const msg_open *o) {
  hash16 h = c->hashes[o->base_length];
  for (int32_t i = 0; i < o->token_count; i++) h = hash_next(h, o->hash_seed, o->tokens[i]);
  return h;
}

/* Makes C what OPEN says, keeping what the cache holds of a common prefix. */
static void adopt_prefix(session *s, const msg_open *o) {
  prefix *c = &s->committed;
  int32_t skip = 0;
  while (o->base_length + skip < c->length && skip < o->token_count &&
         c->tokens[o->base_length + skip] == o->tokens[skip])
    skip++;
  int32_t common = o->base_length + skip;
  prefix_truncate(c, common);
  if (c->seed != o->hash_seed) prefix_reseed(c, o->hash_seed);
  int rc = prefix_append(c, o->tokens + skip, o->token_count - skip);
  assert(rc == ERR_OK);
  (void)rc;
  if (s->kv_rows > common) s->kv_rows = common;
  if (s->job && s->kv_valid > common) s->kv_valid = common;
  if (s->kv_rows > c->length - 1) s->kv_rows = c->length - 1; /* the root's row is made anew */
  if (s->job && s->kv_valid > c->length - 1) s->kv_valid = c->length - 1;
}

static void adopt_options(session *s, const msg_open *o) {
  s->options = o->options;
  if (s->options.stop_count > WIRE_STOPS_MAX) s->options.stop_count = WIRE_STOPS_MAX;
  for (int32_t i = 0; i < s->options.stop_count; i++) s->stop_tokens[i] = o->options.stops[i];
  s->options.stops = s->stop_tokens;
  s->prompt_length = o->prompt_length;
  s->ticket = o->ticket;
  s->draft_expected = o->draft_expected;
}

static bool is_stop(const session *s, int32_t token) {
  for (int32_t i = 0; i < s->options.stop_count; i++)
    if (s->stop_tokens[i] == token) return true;
  return false;
}

/* The answer is over if its last token ends it, or no room is left. */
static void finish_if_over(step *c, session *s) {
  int32_t last = s->committed.tokens[s->committed.length - 1];
  if (s->committed.length > s->prompt_length && is_stop(s, last)) session_finish(c, s, WIRE_FINISH_STOP, 0, NULL);
  else if (schedule_room(s) == 0) session_finish(c, s, WIRE_FINISH_LENGTH, 0, NULL);
}

static void start_session(step *c, session *s, peer_id from, const msg *m) {
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) s->drafts[i].peer = 0; /* they attach again with the new epoch */
  session_draft_restart(s);
  s->epoch = m->epoch;
  s->orchestrator = from;
  s->state = SESSION_RUNNING;
  s->finish = 0;
  s->acked = s->told = s->committed.length;
  s->tell_after_us = 0;
  s->tell_until_us = MACHINE_NEVER;
  s->acked_us = s->used_us = s->ready_us = c->now;
  s->stepped_us = 0;
  s->lease_until_us = c->now + TARGET_LEASE_US;
  s->lockstep_until_us = c->now + TARGET_LOCKSTEP_US;
  send_state(c, from, MSG_OPENED, s, NULL);
  finish_if_over(c, s);
}

static void answer_desync(step *c, peer_id from, const msg *m, const session *s, const char *reason) {
  msg d = roster_message(roster_find(&c->t->peers, from), MSG_DESYNC, m->session, m->epoch);
  d.u.state.length = s ? s->committed.length : 0;
  if (s) d.u.state.hash = prefix_hash(&s->committed);
  d.u.state.reason = wire_text(reason);
  actions_send(c->out, from, &d);
}

static void refuse(step *c, peer_id from, const msg *m, int code, const char *text) {
  roster_error(roster_find(&c->t->peers, from), from, m->session, m->epoch, code, c->out, "%s", text);
}

static void on_open(step *c, peer_id from, const msg *m) {
  const msg_open *o = &m->u.open;
  session *s = session_store_get(&c->t->store, m->session);
  if (s && m->epoch < s->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed: open the session with a higher one");
    return;
  }
  if (s && m->epoch == s->epoch && s->state != SESSION_DESYNCED) { /* a repetition */
    s->orchestrator = from;
    if (prefix_has(&s->committed, o->base_length + o->token_count, o->hash)) send_state(c, from, MSG_OPENED, s, NULL);
    else answer_desync(c, from, m, s, "opened with other tokens in this epoch");
    return;
  }
  err e;
  int rc = check_options(c->t, o, &e);
  if (rc != ERR_OK) {
    refuse(c, from, m, rc, e.text);
    return;
  }
  if (c->t->draining && !s) {
    refuse(c, from, m, ERR_DRAINING, "this target is shutting down: open the session elsewhere");
    return;
  }
  if (o->base_length > 0) { /* a delta: on what is held here */
    bool held = s && s->committed.seed == o->hash_seed && prefix_has(&s->committed, o->base_length, o->base_hash);
    if (!held) {
      answer_desync(c, from, m, s, "the base is not held here");
      return;
    }
  }
  bool fresh;
  s = session_store_take(&c->t->store, m->session, c->now, o->base_length ? NULL : o->tokens,
                         o->base_length ? 0 : o->token_count, &fresh);
  if (!s) {
    refuse(c, from, m, ERR_FULL, "every session place is busy: try again later or start the target with more --sessions");
    return;
  }
  bool right = hash_equal(resulting_hash(&s->committed, o), o->hash);
  bool room = o->options.repeat_penalty == 1 || session_store_penalised(&c->t->store, s);
  if (!right) answer_desync(c, from, m, fresh ? NULL : s, "the tokens do not give the hash that came with them");
  else if (!room) refuse(c, from, m, ERR_NOMEM, "no memory for what a repetition penalty looks at");
  if (!right || !room) {
    if (fresh) session_store_end(&c->t->store, m->session);
    return;
  }
  adopt_prefix(s, o);
  adopt_options(s, o);
  rc = session_store_admit(&c->t->store, s, s->committed.length + schedule_room(s), &e);
  if (rc != ERR_OK) {
    refuse(c, from, m, rc, e.text);
    session_store_end(&c->t->store, m->session);
    return;
  }
  start_session(c, s, from, m);
  if (fresh) c->t->store.reused_rows += (uint64_t)s->kv_rows;
}

/* --- other messages of an orchestrator --- */

/* What is repaired from here should be known over there. */
static void desync(step *c, session *s, const char *reason) {
  if (s->state == SESSION_RUNNING) tell_orchestrator(c, s);
  s->state = SESSION_DESYNCED;
  session_draft_restart(s);
  actions_log(c->out, LOG_WARNING, "session %016llx: out of step at %d tokens: %s", (unsigned long long)s->id,
              s->committed.length, reason);
  send_state(c, s->orchestrator, MSG_DESYNC, s, reason);
}

static void on_ack(step *c, session *s, const msg *m) {
  const msg_state *a = &m->u.state;
  s->lease_until_us = c->now + TARGET_LEASE_US;
  if (s->state == SESSION_DESYNCED) send_state(c, s->orchestrator, MSG_DESYNC, s, "still out of step");
  if (s->state == SESSION_DESYNCED) return;
  if (!prefix_has(&s->committed, a->length, a->hash)) {
    desync(c, s, "what was acknowledged is not held here");
    return;
  }
  if (a->length > s->acked) s->acked = a->length;
  s->acked_us = c->now;
}

static void on_end(step *c, peer_id from, const msg *m) {
  session *s = session_store_get(&c->t->store, m->session);
  if (s && m->epoch < s->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed: end the session with its own or a higher one");
    return;
  }
  if (s) {
    s->epoch = m->epoch;
    s->orchestrator = from;
    if (s->state != SESSION_FINISHED) session_finish(c, s, WIRE_FINISH_CANCELLED, 0, NULL);
  }
  msg answer = roster_message(roster_find(&c->t->peers, from), MSG_ENDED, m->session, m->epoch);
  answer.u.existed = session_store_end(&c->t->store, m->session);
  actions_send(c->out, from, &answer);
}

/* --- drafts --- */

static void on_resend(step *c, peer_id from, session *s, const msg *m) {
  session_draft *d = session_draft_of(s, from);
  int32_t at = m->u.resend.from;
  if (at > s->committed.length) at = s->committed.length; /* they know more than we: our length tells them */
  if (d) tokens_to_draft(c, s, d, at);
  else if (from == s->orchestrator) tokens_to_orchestrator(c, s, at);
  if (!d && s->state == SESSION_FINISHED) send_done(c, s); /* it has overtaken the tokens */
}

static void on_attach(step *c, peer_id from, session *s, const msg *m) {
  if (memcmp(m->u.state.ticket.bytes, s->ticket.bytes, 16) != 0) {
    refuse(c, from, m, ERR_TICKET, "the ticket is not this session's: only the draft that its orchestrator chose may attach");
    return;
  }
  session_draft *d = session_draft_take(s, from);
  if (!d) {
    refuse(c, from, m, ERR_FULL, "this session has as many drafts as it takes");
    return;
  }
  d->tokens_sent_us = c->now;
  d->told = s->committed.length;
  if (roster_find(&c->t->peers, from)->hello.numerics_id.size > 0) {
    pay_crowd(&s->pay, &c->t->crowded);
    s->history.computes = true;
  }
  msg answer = message_to(c, from, MSG_ATTACHED, s);
  answer.u.state.length = s->committed.length;
  answer.u.state.hash = prefix_hash(&s->committed);
  answer.u.state.generation = d->ids.generation;
  actions_log(c->out, LOG_INFO, "session %016llx: a draft is attached", (unsigned long long)s->id);
  actions_send(c->out, from, &answer);
}

static void send_reset(step *c, session *s, session_draft *d) {
  msg m = message_to(c, d->peer, MSG_TREE_RESET, s);
  m.u.reset.generation = d->ids.generation;
  d->reset_sent_us = c->now;
  s->stats.resets++;
  actions_send(c->out, d->peer, &m);
}

#define RESET_EVERY_US 50000   /* frames of an old generation in flight get one TREE_RESET, not one each */
#define RETELL_AFTER_US 100000 /* a draft that lags for so long has lost TOKENS */

static void reject_draft(step *c, session *s, session_draft *d, int code, const char *text) {
  roster_error(roster_find(&c->t->peers, d->peer), d->peer, s->id, s->epoch, code, c->out, "%s", text);
  drop_draft(c, s, d, text);
}

static bool nodes_valid(const target *t, const msg_nodes *n) {
  for (int32_t i = 0; i < n->count; i++)
    if (n->tokens[i] < 0 || n->tokens[i] >= t->options.vocabulary_size) return false;
  return true;
}

static void nodes_taken(step *c, session *s, session_draft *d, const msg_nodes *n, int32_t added) {
  if (n->base_length > d->base_named) d->base_named = n->base_length;
  tree_ids_trim(&d->ids, &s->live, d->base_named);
  if (n->done) d->done_base = n->base_length;
  if (added > 0 && d->waiting_first) {
    wait_arrived(&s->history, c->now - d->tokens_sent_us);
    d->waiting_first = false;
  }
  bool quiet = s->pay.crowds && s->pay.off && !s->options.lockstep;
  if (n->base_length < s->committed.length && !quiet && c->now - d->tokens_sent_us > RETELL_AFTER_US)
    tokens_to_draft(c, s, d, n->base_length);
}

static void on_nodes(step *c, session *s, session_draft *d, const msg *m) {
  const msg_nodes *n = &m->u.nodes;
  if (s->state != SESSION_RUNNING || n->generation != d->ids.generation) {
    s->stats.dropped++;
    bool stale = n->generation != d->ids.generation && s->state == SESSION_RUNNING;
    if (stale && c->now - d->reset_sent_us >= RESET_EVERY_US) send_reset(c, s, d);
    return;
  }
  if (n->base_length > s->committed.length) { /* it knows more than we: not our draft's doing in this epoch */
    s->stats.dropped++;
    tokens_to_draft(c, s, d, s->committed.length);
    return;
  }
  if (!prefix_has(&s->committed, n->base_length, n->base_hash)) {
    reject_draft(c, s, d, ERR_DESYNC, "the nodes stand on another prefix than this session's: attach again");
    return;
  }
  if (!nodes_valid(c->t, n)) {
    reject_draft(c, s, d, ERR_ARG, "a node's token is outside the vocabulary");
    return;
  }
  tree_batch batch = {n->base_length, n->first_id, n->count, n->parents, n->tokens, n->scores};
  int32_t added = 0;
  switch (tree_receive(&s->live, &d->ids, s->committed.tokens, s->committed.length, &batch, &added)) {
  case TREE_TAKEN: nodes_taken(c, s, d, n, added); break;
  case TREE_GAP:
    tree_ids_reset(&d->ids, ++s->generation);
    d->done_base = 0;
    send_reset(c, s, d);
    break;
  case TREE_INVALID: reject_draft(c, s, d, ERR_PROTOCOL, "a node's parent is not an earlier id"); break;
  case TREE_OVERFLOW: reject_draft(c, s, d, ERR_LIMIT, "the tree has more nodes, or is deeper, than this target holds"); break;
  }
}

static void draft_left(step *c, peer_id id, const char *reason) {
  for (int32_t i = 0; i < c->t->store.count; i++) {
    session *s = &c->t->store.places[i];
    session_draft *d = s->state == SESSION_FREE ? NULL : session_draft_of(s, id);
    if (d) drop_draft(c, s, d, reason);
  }
}

/* --- dispatch --- */

/* Only who sits at the address that this program was told to call: at the door for drafts, anybody may say so. */
static bool is_orchestrator(const roster_peer *p) { return p->calls && p->hello.role == WIRE_ROLE_ORCHESTRATOR; }

static void on_session_message(step *c, const roster_peer *from, session *s, const msg *m) {
  bool orchestrator = is_orchestrator(from);
  session_draft *d = session_draft_of(s, from->id);
  if (m->type == MSG_RESEND && (d || orchestrator)) on_resend(c, from->id, s, m);
  else if (m->type == MSG_ACK && orchestrator) on_ack(c, s, m);
  else if (m->type == MSG_ATTACH) on_attach(c, from->id, s, m);
  else if (m->type == MSG_NODES && d) on_nodes(c, s, d, m);
  else if (m->type == MSG_DETACH && d) drop_draft(c, s, d, "it gave up");
  else if (m->type == MSG_NODES) refuse(c, from->id, m, ERR_GONE, "not attached to this session: attach first");
}

static void on_message(step *c, peer_id id, const msg *m) {
  roster_peer *from;
  target *t = c->t;
  switch (roster_receive(&t->peers, id, m, session_store_active(&t->store), c->now, &from, c->out)) {
  case ROSTER_GREETED: draft_left(c, id, "it has restarted"); return;
  case ROSTER_LEAVES: draft_left(c, id, "it left"); return;
  case ROSTER_REFUSED:
    actions_log(c->out, LOG_ERROR, "refused by the orchestrator: %.*s", (int)m->u.error.text.size, m->u.error.text.data);
    actions_exit(c->out, PROGRAM_EXIT_REFUSED);
    return;
  case ROSTER_HANDLED: /* a HELLO that does not fit: whoever was there before is gone */
    if (m->type == MSG_HELLO && !roster_find(&t->peers, id)) draft_left(c, id, "it is another one now");
    return;
  case ROSTER_PASS: break;
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
  if (!s) refuse(c, id, m, ERR_GONE, "no such session here");
  else if (m->epoch < s->epoch) s->stats.dropped++;
  else if (m->epoch > s->epoch) refuse(c, id, m, ERR_GONE, "this epoch has not been opened here yet");
  else on_session_message(c, from, s, m);
}

/* --- results --- */

static session *job_owner(target *t, uint64_t serial) {
  for (int32_t i = 0; i < t->store.count; i++)
    if (t->store.places[i].state != SESSION_FREE && t->store.places[i].job == serial) return &t->store.places[i];
  return NULL;
}

/* Of the sessions that step. */
static int32_t step_rows(const target *t) {
  int32_t rows = t->forward.steps;
  for (int32_t i = 0; i < t->forward.steps; i++) rows += t->forward.picks[i].rows;
  return rows;
}

static bool has_prompts(const target *t) { return t->forward.steps != t->forward.count; }

static double average(double old, double value) { return old == 0 ? value : old + (value - old) / 8; }

static double round_us(const engine_result *r) { return (double)(r->forward_us + r->accept_us + r->commit_us); }

/* What the forward cost this session. With others in it a plain row costs what it always does, and nodes as much more as
 * the forward took longer for them, in shares of such a row: where many sessions fill a forward, a row more costs almost
 * as much as a plain one. By what such forwards take on average: what disturbs one of them is not the nodes' doing. */
static double share_us(const target *t, const session *s, const engine_result *r) {
  double us = round_us(r), usual = s->pay.plain_us_per_token;
  if (t->forward.count == 1) return us;
  if (s->pay.crowds && !has_prompts(t)) return us / t->forward.count; /* it slows all rows */
  if (usual == 0) usual = us / t->forward.count;
  int32_t rows = step_rows(t);
  if (r->node_count == 0 || rows > WIDTH_ROWS_MAX) return usual;
  double more = width_cost(&t->widths, rows) - width_cost(&t->widths, rows - r->node_count);
  double plain = width_cost(&t->widths, t->forward.steps) / t->forward.steps;
  return plain > 0 && more > 0 ? usual * (1 + more / plain) : usual;
}

/* What a forward without prompts tells of rows. */
static void measure(target *t, const engine_results *r) {
  if (has_prompts(t) || step_rows(t) > WIDTH_ROWS_MAX) return;
  double us = 0;
  for (int32_t i = 0; i < r->count; i++) {
    if (r->of[i].code != ERR_OK) return;
    us += (double)(r->of[i].accept_us + r->of[i].commit_us);
  }
  us += (double)r->of[0].forward_us;
  if (us > 0) width_measured(&t->widths, step_rows(t), us);
}

static void count_verify(target *t, session *s, const engine_result *r) {
  int32_t accepted = r->sampled_count - 1;
  session_stats *n = &s->stats;
  n->forwards++;
  n->rows += (uint64_t)r->node_count;
  n->accepted += (uint64_t)accepted;
  n->queue_us += r->queue_us;
  n->forward_us += r->forward_us;
  n->accept_us += r->accept_us;
  n->commit_us += r->commit_us;
  if (r->node_count) n->rounds++;
  else n->plain_steps++;
  for (int32_t i = 0; i < accepted && i < WIRE_POSITIONS_MAX; i++) n->accepted_per_pos[i]++;
  double us = share_us(t, s, r);
  if (r->node_count || s->waited_us) s->verify_us = average(s->verify_us, us);
  if (!r->node_count) s->plain_us = average(s->plain_us, us);
  if (r->node_count) wait_verified(&s->history, r->sampled_count);
  /* Waiting in vain is what speculation cost, not what a plain step costs: the next verify with nodes owes it. */
  s->wait_owed_us += s->waited_us;
  pay_record(&s->pay, r->node_count, r->sampled_count, us + (r->node_count ? (double)s->wait_owed_us : 0));
  if (r->node_count) s->wait_owed_us = 0;
  if (s->pay.crowds) t->crowded = s->pay;
}

/* One whose result is still to be looked at will. */
static bool another_can_run(const step *c, const session *s) {
  for (int32_t i = 0; i < c->t->store.count; i++) {
    const session *other = &c->t->store.places[i];
    uint64_t until;
    if (other == s || other->state != SESSION_RUNNING) continue;
    if (other->job) return true;
    schedule_kind kind = schedule_session(other, TARGET_CREDIT, c->now, &until);
    if (kind == SCHEDULE_PREFILL || kind == SCHEDULE_STEP) return true;
  }
  return false;
}

static void note_step(step *c, session *s) {
  uint64_t us = s->stepped_us ? c->now - s->stepped_us : 0;
  if (us > c->t->store.longest_step_us) c->t->store.longest_step_us = us;
  s->stepped_us = c->now;
}

/* The token that plain decode would have given, several at once: C grows, the tree follows, all are told. */
static void verified(step *c, session *s, const engine_result *r) {
  int32_t base = s->committed.length;
  count_verify(c->t, s, r);
  note_step(c, s);
  if (r->selfcheck_differs) {
    s->off_for_good = true;
    s->off_reason = "the self-check found a difference between verified and plainly decoded tokens";
    actions_log(c->out, LOG_ERROR, "session %016llx: %s", (unsigned long long)s->id, s->off_reason);
  }
  int rc = prefix_append(&s->committed, r->sampled, r->sampled_count);
  assert(rc == ERR_OK);
  (void)rc;
  if (s->has_tree) {
    tree_ids *maps[SESSION_DRAFTS_MAX];
    tree_commit(&s->live, maps, session_draft_maps(s, maps), base, r->sampled, r->sampled_count);
  }
  /* While nobody wants their nodes, drafts are woken no oftener than the orchestrator, and not at all where their work
   * would cost time. */
  bool due = c->now >= s->tell_after_us;
  if ((due && !s->pay.crowds) || s->options.lockstep || !s->pay.off) tell_drafts(c, s);
  if (due) tell_orchestrator(c, s);
  s->ready_us = c->now;
  s->lockstep_until_us = c->now + TARGET_LOCKSTEP_US;
  bool draft = session_draft_count(s) > 0 && schedule_may_speculate(s);
  s->wait_until_us = c->now + wait_for(&s->history, draft, another_can_run(c, s), 0, s->plain_us, s->verify_us);
  finish_if_over(c, s);
}

static void failed(step *c, session *s, const engine_result *r) {
  if (r->node_count > 0) { /* an error inside a verify: this session decodes plainly from now on */
    s->off_for_good = true;
    s->off_reason = "an error inside a verify";
    actions_log(c->out, LOG_ERROR, "session %016llx: verify failed (%s): it decodes plainly from now on",
                (unsigned long long)s->id, err_name(r->code));
    return;
  }
  session_finish(c, s, WIRE_FINISH_ERROR, r->code, "the engine failed: see the target's log");
}

static void on_result(step *c, const engine_result *r) {
  session *s = job_owner(c->t, r->serial);
  if (!s) return; /* ended meanwhile: the next job of its slot starts from its own kv_length */
  bool stale = s->kv_valid != INT32_MAX;
  s->job = 0;
  if (!s->rows_given) /* else it has other blocks by now */
    s->kv_rows = r->kv_length < s->kv_valid ? r->kv_length : s->kv_valid;
  s->kv_valid = INT32_MAX;
  session_store_publish(&c->t->store, s, r->kv_settled);
  if (r->kind == ENGINE_PREFILL) s->stats.prefill_us += r->forward_us;
  if (stale || s->state != SESSION_RUNNING) return;
  if (r->code == ERR_DESYNC) {
    prefix_truncate(&s->committed, s->kv_rows + 1);
    desync(c, s, "the cache holds fewer rows than it should");
  } else if (r->code != ERR_OK) failed(c, s, r);
  else if (r->kind == ENGINE_VERIFY) verified(c, s, r);
  else s->ready_us = c->now;
}

static void on_results(step *c, const engine_results *r) {
  measure(c->t, r);
  for (int32_t i = 0; i < r->count; i++) on_result(c, &r->of[i]);
}

/* --- jobs --- */

static void job_prefill(const session *s, int32_t rows, engine_job *job) {
  job->kind = ENGINE_PREFILL;
  job->count = rows;
  job->selfcheck = false;
  memcpy(job->tokens, s->committed.tokens + s->kv_rows, (size_t)rows * sizeof *job->tokens);
}

static void job_verify(session *s, int32_t nodes, engine_job *job) {
  int32_t slots[WIRE_BUDGET_MAX], parents[WIRE_BUDGET_MAX], room = schedule_room(s);
  nodes = schedule_nodes(s, nodes, slots, parents);
  job->kind = ENGINE_VERIFY;
  job->count = nodes + 1;
  job->tokens[0] = s->committed.tokens[s->committed.length - 1];
  job->parents[0] = -1;
  for (int32_t i = 0; i < nodes; i++) {
    job->tokens[i + 1] = s->live.nodes[slots[i]].token;
    job->parents[i + 1] = parents[i] + 1;
  }
  const msg_options *o = &s->options;
  job->sampling = (sampler_options){o->temperature, o->top_k, o->top_p, o->min_p, o->repeat_penalty, o->seed, o->choice};
  job->history = NULL;
  if (o->repeat_penalty != 1) {
    memcpy(s->penalised, s->committed.tokens, (size_t)s->committed.length * sizeof *s->penalised);
    job->history = s->penalised;
  }
  memcpy(job->stops, s->stop_tokens, sizeof job->stops);
  job->stop_count = o->stop_count;
  job->sampled_max = o->single ? 1 : room < nodes + 1 ? room : nodes + 1;
  job->selfcheck = nodes > 0 && o->selfcheck > 0 && s->stats.rounds % (uint64_t)o->selfcheck == (uint64_t)o->selfcheck - 1;
}

/* What this round has waited, and whether it was in vain. */
static void note_wait(session *s, uint64_t now) {
  bool nodes = s->has_tree && s->live.live_count > 0;
  bool waited = s->wait_until_us > s->ready_us;
  s->waited_us = waited && now > s->ready_us ? now - s->ready_us : 0;
  s->stats.wait_us += s->waited_us;
  if (waited && !nodes && schedule_drafts_done(s)) wait_verified(&s->history, 1); /* nothing was the answer */
  else if (waited && !nodes) wait_missed(&s->history);
  s->wait_until_us = 0;
}

/* A copy, because an OPEN or END may change the session's own while the job is under way. */
static void job_blocks(session *s, int32_t *map, engine_job *job) {
  job->blocks = NULL;
  if (!s->remap) return;
  memcpy(map, s->blocks, (size_t)s->block_count * sizeof *map);
  job->blocks = map;
  job->block_count = s->block_count;
  job->rows_given = s->rows_given;
  s->remap = s->rows_given = false;
}

static void next_job(target *t, const schedule_pick *pick, int32_t *map, uint64_t now, engine_job *job) {
  session *s = &t->store.places[pick->place];
  s->job = ++t->serial;
  s->kv_valid = INT32_MAX;
  job->serial = s->job;
  job->slot = s->slot;
  job->kv_length = s->kv_rows;
  job->ready_us = s->ready_us;
  job_blocks(s, map, job);
  if (pick->kind == SCHEDULE_PREFILL) {
    job_prefill(s, pick->rows, job);
    return;
  }
  note_wait(s, now);
  if (pick->offered > 0 && pick->rows == 0 && t->forward.count == 1)
    wait_verified(&s->history, 1); /* such nodes are not worth waiting for */
  job_verify(s, pick->rows, job);
}

bool target_next_batch(target *t, uint64_t now, engine_batch *batch) {
  schedule *f = &t->forward;
  schedule_forward(&t->store, &t->widths, &t->turns, TARGET_CREDIT, now, f);
  t->asked_until_us = f->count ? MACHINE_NEVER : f->until_us; /* else asked again with its results */
  batch->count = f->count;
  for (int32_t i = 0; i < f->count; i++)
    next_job(t, &f->picks[i], t->maps ? t->maps + (size_t)i * map_size(t) : NULL, now, &batch->jobs[i]);
  return f->count > 0;
}

/* --- time --- */

/* Lockstep: until when it waits for a done mark; MACHINE_NEVER when that is not what it waits for. */
static uint64_t lockstep_deadline(const session *s) {
  uint64_t until;
  bool waits = s->options.lockstep && schedule_session(s, TARGET_CREDIT, 0, &until) == SCHEDULE_WAIT;
  return waits ? until : MACHINE_NEVER;
}

static void session_tick(step *c, session *s) {
  if (s->state == SESSION_FREE) return;
  if (c->now >= s->lease_until_us) {
    actions_log(c->out, LOG_WARNING, "session %016llx: nobody renewed it for %d s: freed", (unsigned long long)s->id,
                TARGET_LEASE_US / 1000000);
    session_store_end(&c->t->store, s->id);
    return;
  }
  if (c->now >= lockstep_deadline(s)) {
    session_finish(c, s, WIRE_FINISH_ERROR, ERR_TIMEOUT, "lockstep: the draft's done mark did not come within 60 s");
    return;
  }
  if (s->acked < s->committed.length && s->state != SESSION_DESYNCED && c->now - s->resent_us >= TARGET_REPEAT_US)
    tokens_to_orchestrator(c, s, s->acked);
  if (c->now >= s->tell_until_us) {
    s->tell_until_us = MACHINE_NEVER;
    if (s->state == SESSION_RUNNING) {
      tell_drafts(c, s);
      tell_orchestrator(c, s);
    }
  }
  if (s->state == SESSION_FINISHED && c->now - s->done_sent_us >= TARGET_REPEAT_US) send_done(c, s);
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t session_deadline(const session *s) {
  if (s->state == SESSION_FREE) return MACHINE_NEVER;
  uint64_t at = earlier(earlier(s->lease_until_us, lockstep_deadline(s)), s->tell_until_us);
  if (s->acked < s->committed.length && s->state != SESSION_DESYNCED) at = earlier(at, s->resent_us + TARGET_REPEAT_US);
  if (s->state == SESSION_FINISHED) at = earlier(at, s->done_sent_us + TARGET_REPEAT_US);
  return at;
}

static uint64_t target_deadline(const void *self) {
  const target *t = self;
  uint64_t at = earlier(roster_deadline(&t->peers), t->asked_until_us);
  for (int32_t i = 0; i < t->store.count; i++) at = earlier(at, session_deadline(&t->store.places[i]));
  return at;
}

static void on_tick(step *c) {
  target *t = c->t;
  for (roster_peer *lost; (lost = roster_tick(&t->peers, c->now, c->out));) draft_left(c, lost->id, "it has been silent for 3 s");
  for (int32_t i = 0; i < t->store.count; i++) session_tick(c, &t->store.places[i]);
}

static void on_drain(step *c) {
  target *t = c->t;
  if (t->draining) return;
  t->draining = true;
  roster_bye(&t->peers, c->out);
}

static void target_step(void *self, const event *e, uint64_t now_us, actions *out) {
  step c = {self, now_us, out};
  switch (e->kind) {
  case EVENT_MESSAGE: on_message(&c, e->peer, e->message); break;
  case EVENT_CONNECTED:
    if (e->peer) roster_connected(&c.t->peers, e->peer, now_us, out);
    break;
  case EVENT_TICK: on_tick(&c); break;
  case EVENT_DRAIN: on_drain(&c); break;
  case EVENT_RESULT: on_results(&c, e->result); break;
  }
}

machine target_machine(target *t) { return (machine){t, target_step, target_deadline}; }
