#include "orchestrator/sessions/sessions.h"

#include "common/base/min.h"
#include "common/base/log.h"
#include "orchestrator/sessions/failover.h"
#include "orchestrator/sessions/session_finish.h"
#include "orchestrator/sessions/session_frames.h"
#include "orchestrator/sessions/session_timers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sessions_machine {
  client_sessions all;
  uint64_t started;    /* sessions so far */
  uint64_t stepped_us; /* when the last step was; 0: never */
};

int sessions_alloc(sessions_machine **out, const sessions_options *options, err *e) {
  sessions_machine *m = *out = calloc(1, sizeof *m);
  if (!m) return err_set(e, ERR_NOMEM, "no memory for the orchestrator's state");
  m->all.random = options->random;
  m->all.random_context = options->random_context;
  m->all.ledger = options->ledger;
  m->all.vocabulary_size = options->vocabulary_size;
  m->all.targets_return = options->targets_return;
  m->all.target_wait_us = options->target_wait_us ? options->target_wait_us : SESSIONS_TARGET_WAIT_US;
  m->all.part_tokens = options->part_tokens ? options->part_tokens : WIRE_TOKENS_MAX;
  msg_hello self = {.role = WIRE_ROLE_ORCHESTRATOR,
                    .incarnation = options->incarnation,
                    .model_fingerprint = options->model_fingerprint,
                    .model_hash = options->model_hash,
                    .vocabulary_hash = options->vocabulary_hash,
                    .vocabulary_size = options->vocabulary_size,
                    .session_max = SESSIONS_MAX};
  roster_init(&m->all.roster, &self);
  return ERR_OK;
}

void sessions_free(sessions_machine *m) {
  if (!m) return;
  for (int i = 0; i < SESSIONS_MAX; i++) client_session_free(m->all.list[i]);
  free(m);
}

/* --- requests --- */

static uint64_t draw(const sessions_machine *m) {
  return m->all.random(m->all.random_context);
}

/* How long the prompt and its output may become together. */
static int64_t longest(const sessions_request *r) {
  int64_t sum = (int64_t)r->prompt_length + r->options.max_tokens;
  int32_t context = r->options.context;
  if (context == 0 || context > sum) return sum;
  return context > r->prompt_length ? context : r->prompt_length;
}

static uint64_t draw_id(const sessions_machine *m) {
  uint64_t id = draw(m);
  while (id == 0 || client_session_find(&m->all, id)) id = draw(m);
  return id;
}

static int take_request(client_session *s, const sessions_request *r) {
  msg_options_copy(&s->options, &r->options, s->stops, &s->bias);
  s->prompt_length = r->prompt_length;
  s->want_draft = r->draft && r->options.budget > 0;
  s->want_accepted = r->accepted;
  s->admit = r->admit;
  s->admit_context = r->admit_context;
  if (s->options.grammar_size == 0) return ERR_OK;
  s->options.grammar = s->grammar = malloc(s->options.grammar_size);
  if (s->grammar) memcpy(s->grammar, r->options.grammar, s->options.grammar_size);
  return s->grammar ? ERR_OK : ERR_NOMEM;
}

/* The output that an earlier run has left. */
static int take_output(client_session *s, const sessions_resume *resume) {
  s->stats.missing = resume->output_length;
  s->decoded = resume->output_length > 0 && resume->numerics[0];
  snprintf(s->numerics, sizeof s->numerics, "%s", resume->numerics);
  return prefix_append(&s->committed, resume->output, resume->output_length);
}

/* None are there yet. */
static int take_logprobs(client_session *s) {
  int32_t count = (s->committed.capacity - s->prompt_length) * s->options.logprobs;
  if (count == 0) return ERR_OK;
  s->logprobs = malloc((size_t)count * sizeof *s->logprobs);
  for (int32_t i = 0; s->logprobs && i < count; i++) s->logprobs[i] = (ranking_token){.token = -1};
  return s->logprobs ? ERR_OK : ERR_NOMEM;
}

static int session_init(const sessions_machine *m, client_session *s, const sessions_request *r) {
  const sessions_resume *resume = r->resume;
  assignment_draw_ticket(&m->all, s);
  s->id = resume ? resume->session : draw_id(m);
  s->epoch = resume ? resume->epoch + 1 : 1;
  int rc = take_request(s, r);
  if (rc == ERR_OK)
    rc = prefix_init(&s->committed, (int32_t)longest(r), resume ? resume->hash_seed : draw(m));
  if (rc == ERR_OK && s->want_accepted) {
    s->accepted = calloc((size_t)s->committed.capacity, sizeof *s->accepted);
    rc = s->accepted ? ERR_OK : ERR_NOMEM;
  }
  if (rc == ERR_OK) rc = take_logprobs(s);
  if (rc == ERR_OK) rc = prefix_append(&s->committed, r->prompt, r->prompt_length);
  if (rc == ERR_OK && resume) rc = take_output(s, resume);
  session_stats_begin(&s->stats, s->committed.length);
  return rc;
}

static int log_beginning(const sessions_machine *m, const client_session *s, const sessions_request *r) {
  const ledger *l = &m->all.ledger;
  ledger_record record = {.session = s->id,
                          .hash_seed = s->committed.seed,
                          .tokens = s->committed.tokens,
                          .length = s->committed.length,
                          .prompt_length = s->prompt_length,
                          .epoch = r->resume ? r->resume->epoch : 0,
                          .options = &r->options,
                          .about = r->about};
  int rc = l->begin(l->self, &record);
  if (rc || (rc = l->epoch(l->self, s->id, s->epoch)) == ERR_OK) return rc;
  if (!r->resume) l->end(l->self, s->id, s->committed.length, WIRE_FINISH_ERROR, NULL);
  l->forget(l->self, s->id); /* one that was to go on stays interrupted, and may be tried again */
  return rc;
}

static int check_prompt(const sessions_machine *m, const sessions_request *r, err *e) {
  int32_t vocabulary = m->all.vocabulary_size;
  if (r->prompt_length < 1) return err_set(e, ERR_ARG, "the prompt is empty: give at least one token");
  if (r->prompt_length > WIRE_CONTEXT_MAX)
    return err_set(e, ERR_LIMIT, "a prompt has at most %d tokens, not %d", WIRE_CONTEXT_MAX,
                   r->prompt_length);
  for (int32_t i = 0; i < r->prompt_length; i++)
    if (r->prompt[i] < 0 || (vocabulary && r->prompt[i] >= vocabulary))
      return err_set(e, ERR_ARG, "token %d at position %d is outside the vocabulary", r->prompt[i], i);
  return ERR_OK;
}

/* Refuses a request that no OPEN could describe, before memory is taken for it. */
static int check_request(const sessions_machine *m, const sessions_request *r, err *e) {
  int rc = msg_options_check(&r->options, e);
  if (rc == ERR_OK) rc = check_prompt(m, r, e);
  if (rc != ERR_OK) return rc;
  if (r->resume && r->resume->output_length >= r->options.max_tokens)
    return err_set(e, ERR_ARG, "the answer has all of its %d tokens", r->options.max_tokens);
  if (longest(r) > WIRE_CONTEXT_MAX)
    return err_set(e, ERR_LIMIT,
                   "a prompt and its answer have at most %d tokens together, these could have %lld: shorten "
                   "the prompt, or lower max_tokens or the context",
                   WIRE_CONTEXT_MAX, (long long)longest(r));
  return ERR_OK;
}

uint64_t sessions_start(sessions_machine *m, const sessions_request *r, uint64_t now_us, actions *out,
                        err *e) {
  client_step c = {&m->all, now_us, out};
  int slot = 0;
  if (check_request(m, r, e) != ERR_OK) return 0;
  if (!m->stepped_us) m->stepped_us = now_us; /* a stall before the first step is our own, too */
  while (slot < SESSIONS_MAX && m->all.list[slot]) slot++;
  if (slot == SESSIONS_MAX)
    return err_set(e, ERR_FULL, "%d sessions are open already: try again later", SESSIONS_MAX), 0;
  client_session *s = calloc(1, sizeof *s);
  int rc = s ? session_init(m, s, r) : ERR_NOMEM;
  if (rc == ERR_OK) rc = log_beginning(m, s, r);
  if (rc != ERR_OK) {
    client_session_free(s);
    return err_set(e, rc, "%s",
                   rc == ERR_NOMEM ? "no memory for another session"
                                   : "the ledger could not take the session: see its warning"),
           0;
  }
  s->waiting_since_us = s->ack_us = s->durable_us = now_us;
  s->silence_us = SESSIONS_SILENCE_US;
  s->order = ++m->started;
  m->all.list[slot] = s;
  assignment_fill(&c, s);
  return s->id;
}

void sessions_cancel(sessions_machine *m, uint64_t session, uint64_t now_us, actions *out) {
  client_step c = {&m->all, now_us, out};
  client_session *s = client_session_find(&m->all, session);
  if (s) session_finish(&c, s, WIRE_FINISH_CANCELLED, 0, NULL, true);
}

void sessions_release(sessions_machine *m, uint64_t session, uint64_t now_us, actions *out) {
  sessions_cancel(m, session, now_us, out);
  for (int i = 0; i < SESSIONS_MAX; i++) {
    if (!m->all.list[i] || m->all.list[i]->id != session) continue;
    client_session_free(m->all.list[i]);
    m->all.list[i] = NULL;
  }
}

void sessions_explain_no_draft(sessions_machine *m, const char *why) {
  m->all.no_draft = why;
}

void sessions_no_draft_comes(sessions_machine *m, uint64_t now_us, actions *out) {
  client_step c = {&m->all, now_us, out};
  m->all.no_draft_comes = true;
  for (int i = 0; i < SESSIONS_MAX; i++) {
    client_session *s = m->all.list[i];
    if (s && client_session_live(s) && s->want_draft && s->target.peer && assignment_lockstep_alone(&c, s))
      assignment_open_target(&c, s);
  }
}

/* --- what a client sees --- */

static sessions_state state_of(const client_session *s) {
  if (!client_session_live(s)) return session_finish_complete(s) ? SESSIONS_FINISHED : SESSIONS_ENDING;
  if (!s->target.peer) return SESSIONS_WAITING;
  return s->target.opened ? SESSIONS_RUNNING : SESSIONS_OPENING;
}

static const char *why_off(const client_session *s) {
  if (!s->want_draft) return s->options.budget > 0 ? "no draft was asked for" : "the node budget is 0";
  return s->draft_note[0] ? s->draft_note : s->off_reason;
}

bool sessions_get(const sessions_machine *m, uint64_t session, sessions_view *out) {
  client_session *s = client_session_find(&m->all, session);
  if (!s) return false;
  *out = (sessions_view){.state = state_of(s),
                         .tokens = s->committed.tokens,
                         .length = s->committed.length,
                         .accepted = s->accepted,
                         .logprobs = s->logprobs,
                         .plain_us = s->plain_us,
                         .logged = client_session_logged(&m->all, s),
                         .prompt_length = s->prompt_length,
                         .finish = s->finish,
                         .code = s->code,
                         .text = s->text,
                         .uncounted = session_stats_missing(&s->stats, s->committed.length),
                         .off_reason = why_off(s),
                         .unpaid = why_off(s) == s->off_reason && s->off == WIRE_OFF_UNPAID,
                         .draft_method = s->want_draft ? s->method : "",
                         .numerics_id = s->numerics,
                         .numerics_changed = s->numerics_changed,
                         .hash_seed = s->committed.seed,
                         .epoch = s->epoch,
                         .repairs = s->repairs};
  if (s->finish) out->stats = session_stats_total(&s->stats, s->accepted_per_pos);
  return true;
}

/* --- workers --- */

static const roster_peer *worker_at(const sessions_machine *m, wire_role role, int32_t index) {
  for (int i = 0; i < m->all.roster.top; i++) {
    const roster_peer *p = &m->all.roster.list[i];
    if (p->id && p->greeted && !p->lost && p->hello.role == role && index-- == 0) return p;
  }
  return NULL;
}

int32_t sessions_worker_count(const sessions_machine *m, wire_role role) {
  int32_t n = 0;
  while (worker_at(m, role, n)) n++;
  return n;
}

int32_t sessions_capacity(const sessions_machine *m) {
  int32_t sum = 0;
  for (int i = 0; i < m->all.roster.top; i++) {
    const roster_peer *p = &m->all.roster.list[i];
    if (p->hello.role != WIRE_ROLE_TARGET || !assignment_takes_new(&m->all, p)) continue;
    int32_t most = p->hello.session_max ? p->hello.session_max : SESSIONS_MAX; /* 0: no limit of its own */
    sum += min_i32(most, SESSIONS_MAX - sum);
  }
  return sum;
}

const msg_hello *sessions_worker(const sessions_machine *m, wire_role role, int32_t index) {
  const roster_peer *p = worker_at(m, role, index);
  return p ? &p->hello : NULL;
}

int32_t sessions_worker_load(const sessions_machine *m, wire_role role, int32_t index) {
  const roster_peer *p = worker_at(m, role, index);
  return p ? assignment_load(&m->all, p) : 0;
}

sessions_worker_state sessions_worker_is(const sessions_machine *m, wire_role role, int32_t index) {
  const roster_peer *p = worker_at(m, role, index);
  if (!p || p->leaving) return SESSIONS_WORKER_LEAVING;
  return assignment_takes_new(&m->all, p) ? SESSIONS_WORKER_READY : SESSIONS_WORKER_DRAINED;
}

void sessions_worker_died(sessions_machine *m, wire_id incarnation, uint64_t now_us, actions *out) {
  client_step c = {&m->all, now_us, out};
  for (int i = 0; i < m->all.roster.top; i++) {
    roster_peer *p = &m->all.roster.list[i];
    if (!p->id || !p->greeted || !wire_id_equal(p->hello.incarnation, incarnation)) continue;
    peer_id id = p->id;
    const char *why = p->hello.role == WIRE_ROLE_DRAFT ? "the draft worker died" : "the target worker died";
    roster_drop(&m->all.roster, id);
    failover_worker_lost(&c, id, why);
  }
}

/* Tells readers of the log that a worker comes, leaves or falls silent. */
static void log_worker(client_step *c, const roster_peer *p, const char *what) {
  const msg_hello *h = &p->hello;
  bool draft = h->role == WIRE_ROLE_DRAFT;
  roster_log(&c->all->roster, p->id, c->now, LOG_INFO, c->out, "a %s (%.64s) %s", draft ? "draft" : "target",
             wire_brief_of(draft ? h->method : h->numerics_id).text, what);
}

static void fill_all(client_step *c) {
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (c->all->list[i]) assignment_fill(c, c->all->list[i]);
}

static const roster_peer *find_worker(const sessions_machine *m, wire_id incarnation) {
  for (int i = 0; i < m->all.roster.top; i++) {
    const roster_peer *p = &m->all.roster.list[i];
    if (p->id && p->greeted && !p->lost && wire_id_equal(p->hello.incarnation, incarnation)) return p;
  }
  return NULL;
}

bool sessions_drain(sessions_machine *m, wire_id worker, bool drained, uint64_t now_us, actions *out) {
  client_step c = {&m->all, now_us, out};
  const roster_peer *p = find_worker(m, worker);
  if (!p) return false;
  if (drained_workers_has(&m->all.drained, worker) == drained) return true;
  log_worker(&c, p, drained ? "is drained: it gets no new sessions" : "gets sessions again");
  if (drained) {
    drained_workers_add(&m->all.drained, worker);
  } else {
    drained_workers_remove(&m->all.drained, worker);
    fill_all(&c);
  }
  return true;
}

/* A target was started where another one had been. The roster has asked that one, which did not answer, so
 * the rest of its silence need not be waited for. */
static void drop_predecessors(client_step *c, const roster_peer *fresh) {
  if (fresh->hello.role != WIRE_ROLE_TARGET) return;
  for (int i = 0; i < c->all->roster.top; i++) {
    roster_peer *p = &c->all->roster.list[i];
    bool same = p->id && p != fresh && p->greeted && p->hello.role == fresh->hello.role &&
                roster_claims_identity(&fresh->hello, p);
    peer_id id = p->id;
    if (!same) continue;
    roster_drop(&c->all->roster, id);
    failover_worker_lost(c, id, "the worker was started again");
  }
}

/* --- frames --- */

static void on_message(client_step *c, peer_id id, const msg *m) {
  roster_peer *from;
  switch (roster_receive(&c->all->roster, id, m, 0, c->now, &from, c->out)) {
  case ROSTER_GREETED:
    failover_worker_lost(c, id, "the worker has restarted");
    drop_predecessors(c, from);
    log_worker(c, from, "is here");
    break;
  case ROSTER_LEAVES:
    log_worker(c, from, "is leaving");
    if (from->hello.role == WIRE_ROLE_DRAFT) failover_worker_lost(c, id, "the draft worker left");
    break;
  case ROSTER_FORGED:
    failover_worker_lost(c, id, "the worker wanted to be of another role");
    break;
  case ROSTER_REFUSED:
    break;
  case ROSTER_HANDLED: /* after a HELLO or a WELCOME that does not fit, who was there before is gone */
    if ((m->type == MSG_HELLO || m->type == MSG_ERROR) && !roster_find(&c->all->roster, id))
      failover_worker_lost(c, id, "the worker is another one now, or has another model");
    break;
  case ROSTER_PASS:
    session_frames_take(c, from, m);
    break;
  }
  fill_all(c);
}

/* --- the machine --- */

static void on_tick(client_step *c) {
  for (roster_peer *lost; (lost = roster_tick(&c->all->roster, c->now, c->out));) {
    char why[64];
    snprintf(why, sizeof why, "the %s worker %s", lost->hello.role == WIRE_ROLE_DRAFT ? "draft" : "target",
             roster_lost_why(lost));
    log_worker(c, lost, roster_lost_why(lost));
    failover_worker_lost(c, lost->id, why);
  }
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (c->all->list[i]) session_timers_tick(c, c->all->list[i]);
}

static void on_drain(client_step *c) {
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (c->all->list[i]) session_finish(c, c->all->list[i], WIRE_FINISH_CANCELLED, 0, NULL, true);
}

static uint64_t sessions_deadline(const void *self) {
  const sessions_machine *m = self;
  uint64_t at = roster_deadline(&m->all.roster);
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (m->all.list[i]) at = min_u64(at, session_timers_deadline(&m->all, m->all.list[i]));
  return at;
}

/* A machine that has not listened for a while cannot say that its workers were silent, or that none came. It
 * was not stepped when it was due: without workers that may be half a minute after the step before. Where it
 * is very late, nobody knows since when it has not listened. */
static void excuse_own_stall(sessions_machine *m, uint64_t now) {
  uint64_t gap = m->stepped_us ? now - m->stepped_us : 0;
  uint64_t due = gap >= SESSIONS_TARGET_CHECK_US ? sessions_deadline(m) : MACHINE_NEVER;
  if (now > due) session_timers_excuse(&m->all, now - due < SESSIONS_TARGET_CHECK_US ? now - due : gap);
  m->stepped_us = now;
}

static void sessions_step(void *self, const event *e, uint64_t now_us, actions *out) {
  sessions_machine *m = self;
  client_step c = {&m->all, now_us, out};
  excuse_own_stall(m, now_us);
  if (e->kind == EVENT_MESSAGE)
    on_message(&c, e->peer, e->message);
  else if (e->kind == EVENT_DISCONNECTED)
    roster_disconnected(&m->all.roster, e->peer, now_us, out);
  else if (e->kind == EVENT_TICK)
    on_tick(&c);
  else if (e->kind == EVENT_DRAIN)
    on_drain(&c);
}

machine sessions_as_machine(sessions_machine *m) {
  return (machine){m, sessions_step, sessions_deadline};
}
