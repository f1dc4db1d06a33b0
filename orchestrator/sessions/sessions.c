#include "orchestrator/sessions/sessions.h"

#include "common/base/least.h"
#include "common/base/log.h"
#include "orchestrator/sessions/session_frames.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int sessions_alloc(sessions_machine **out, const sessions_options *options, err *e) {
  sessions_machine *o = *out = calloc(1, sizeof *o);
  if (!o) return err_set(e, ERR_NOMEM, "no memory for the orchestrator's state");
  o->options = *options;
  if (o->options.target_wait_us == 0) o->options.target_wait_us = SESSIONS_TARGET_WAIT_US;
  msg_hello self = {.role = WIRE_ROLE_ORCHESTRATOR,
                    .incarnation = options->incarnation,
                    .model_fingerprint = options->model_fingerprint,
                    .vocabulary_hash = options->vocabulary_hash,
                    .vocabulary_size = options->vocabulary_size,
                    .session_max = SESSIONS_MAX};
  roster_init(&o->roster, &self);
  return ERR_OK;
}

static void session_free(client_session *s) {
  prefix_fini(&s->committed);
  free(s);
}

void sessions_free(sessions_machine *o) {
  if (!o) return;
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (o->sessions[i]) session_free(o->sessions[i]);
  free(o);
}

static client_session *session_find(const sessions_machine *o, uint64_t id) {
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (o->sessions[i] && o->sessions[i]->id == id) return o->sessions[i];
  return NULL;
}

/* --- requests --- */

static uint64_t draw(const sessions_machine *o) {
  return o->options.random(o->options.random_context);
}

/* How long the prompt and its answer may become together. */
static int64_t longest(const sessions_request *r) {
  int64_t sum = (int64_t)r->prompt_length + r->options.max_tokens;
  int32_t context = r->options.context;
  if (context == 0 || context > sum) return sum;
  return context > r->prompt_length ? context : r->prompt_length;
}

static int session_init(sessions_machine *o, client_session *s, const sessions_request *r) {
  uint64_t a = draw(o), b = draw(o);
  memcpy(s->ticket.bytes, &a, 8);
  memcpy(s->ticket.bytes + 8, &b, 8);
  const sessions_resume *resume = r->resume;
  do s->id = resume ? resume->session : draw(o);
  while (!resume && (s->id == 0 || session_find(o, s->id)));
  s->epoch = resume ? resume->epoch + 1 : 1;
  s->options = r->options;
  for (int32_t i = 0; i < s->options.stop_count; i++) s->stops[i] = r->options.stops[i];
  s->prompt_length = r->prompt_length;
  s->want_draft = r->draft && r->options.budget > 0;
  s->admit = r->admit;
  s->admit_context = r->admit_context;
  int rc = prefix_init(&s->committed, (int32_t)longest(r), resume ? resume->hash_seed : draw(o));
  if (rc == ERR_OK) rc = prefix_append(&s->committed, r->prompt, r->prompt_length);
  session_stats_begin(&s->counted, r->prompt_length + (resume ? resume->output_length : 0));
  s->counted.missing = resume ? resume->output_length : 0;
  if (rc != ERR_OK || !resume) return rc;
  s->decoded = resume->output_length > 0 && resume->numerics[0];
  snprintf(s->numerics, sizeof s->numerics, "%s", resume->numerics);
  return prefix_append(&s->committed, resume->output, resume->output_length);
}

static int log_beginning(const sessions_machine *o, client_session *s, const sessions_request *r) {
  const ledger *l = &o->options.ledger;
  ledger_record record = {.session = s->id,
                          .hash_seed = s->committed.seed,
                          .tokens = s->committed.tokens,
                          .length = s->committed.length,
                          .prompt_length = s->prompt_length,
                          .epoch = r->resume ? r->resume->epoch : 0,
                          .options = &r->options,
                          .about = r->about};
  int rc = l->begin(l->self, &record);
  return rc ? rc : l->epoch(l->self, s->id, s->epoch);
}

static int check_prompt(const sessions_machine *o, const sessions_request *r, err *e) {
  int32_t vocabulary = o->options.vocabulary_size;
  if (r->prompt_length < 1) return err_set(e, ERR_ARG, "the prompt is empty: give at least one token");
  if (r->prompt_length > WIRE_TOKENS_MAX)
    return err_set(e, ERR_LIMIT, "a prompt has at most %d tokens, not %d", WIRE_TOKENS_MAX, r->prompt_length);
  for (int32_t i = 0; i < r->prompt_length; i++)
    if (r->prompt[i] < 0 || (vocabulary && r->prompt[i] >= vocabulary))
      return err_set(e, ERR_ARG, "token %d at position %d is outside the vocabulary", r->prompt[i], i);
  return ERR_OK;
}

/* Refuses a request that no OPEN could carry, because its frame would never be sent. */
static int check_request(const sessions_machine *o, const sessions_request *r, err *e) {
  int rc = msg_options_check(&r->options, e);
  if (rc == ERR_OK) rc = check_prompt(o, r, e);
  if (rc != ERR_OK) return rc;
  if (r->resume && r->resume->output_length >= r->options.max_tokens)
    return err_set(e, ERR_ARG, "the answer has all of its %d tokens", r->options.max_tokens);
  if (longest(r) > WIRE_TOKENS_MAX) /* a target that takes the session over gets all of it in one OPEN */
    return err_set(e, ERR_LIMIT,
                   "a prompt and its answer have at most %d tokens together, these could have %lld: shorten "
                   "the prompt, or lower max_tokens or the context",
                   WIRE_TOKENS_MAX, (long long)longest(r));
  return ERR_OK;
}

uint64_t sessions_start(sessions_machine *o, const sessions_request *r, uint64_t now_us, actions *out,
                        err *e) {
  step c = {o, now_us, out};
  int place_index = 0;
  if (check_request(o, r, e) != ERR_OK) return 0;
  while (place_index < SESSIONS_MAX && o->sessions[place_index]) place_index++;
  if (place_index == SESSIONS_MAX)
    return err_set(e, ERR_FULL, "%d sessions are open already: try again later", SESSIONS_MAX), 0;
  client_session *s = calloc(1, sizeof *s);
  if (!s || session_init(o, s, r) != ERR_OK || log_beginning(o, s, r) != ERR_OK) {
    if (s) session_free(s);
    return err_set(e, ERR_NOMEM, "no memory for another session"), 0;
  }
  s->waiting_us = s->ack_us = now_us;
  s->quiet_us = SESSIONS_QUIET_US;
  s->number = ++o->started;
  o->sessions[place_index] = s;
  assignment_place(&c, s);
  return s->id;
}

void sessions_cancel(sessions_machine *o, uint64_t session, uint64_t now_us, actions *out) {
  step c = {o, now_us, out};
  client_session *s = session_find(o, session);
  if (s) assignment_finish(&c, s, WIRE_FINISH_CANCELLED, 0, NULL, true);
}

void sessions_release(sessions_machine *o, uint64_t session, uint64_t now_us, actions *out) {
  sessions_cancel(o, session, now_us, out);
  for (int i = 0; i < SESSIONS_MAX; i++) {
    if (!o->sessions[i] || o->sessions[i]->id != session) continue;
    session_free(o->sessions[i]);
    o->sessions[i] = NULL;
  }
}

static const char *why_off(const client_session *s) {
  if (!s->want_draft) return s->options.budget > 0 ? "no draft was asked for" : "the node budget is 0";
  if (s->draft_note[0]) return s->draft_note;
  return s->off_reason;
}

bool sessions_get(const sessions_machine *o, uint64_t session, sessions_view *out) {
  client_session *s = session_find(o, session);
  if (!s) return false;
  *out = (sessions_view){.state = s->state,
                         .tokens = s->committed.tokens,
                         .length = s->committed.length,
                         .logged = assignment_logged(o, s),
                         .prompt_length = s->prompt_length,
                         .finish = s->finish,
                         .code = s->code,
                         .text = s->text,
                         .stats = session_stats_total(&s->counted),
                         .uncounted = session_stats_missing(&s->counted, s->committed.length),
                         .off_reason = why_off(s),
                         .draft_method = s->want_draft ? s->method : "",
                         .numerics_id = s->numerics,
                         .numerics_changed = s->numerics_changed,
                         .hash_seed = s->committed.seed,
                         .epoch = s->epoch,
                         .repairs = s->repairs};
  return true;
}

/* --- workers --- */

static const roster_peer *worker_at(const sessions_machine *o, wire_role role, int32_t index) {
  for (int i = 0; i < o->roster.top; i++) {
    const roster_peer *p = &o->roster.list[i];
    if (p->id && p->greeted && !p->lost && p->hello.role == role && index-- == 0) return p;
  }
  return NULL;
}

int32_t sessions_worker_count(const sessions_machine *o, wire_role role) {
  int32_t n = 0;
  while (worker_at(o, role, n)) n++;
  return n;
}

int32_t sessions_capacity(const sessions_machine *o) {
  int32_t sum = 0;
  for (int i = 0; i < o->roster.top; i++) {
    const roster_peer *p = &o->roster.list[i];
    if (!p->id || !p->greeted || p->lost || p->leaving || p->hello.role != WIRE_ROLE_TARGET) continue;
    int32_t places = p->hello.session_max ? p->hello.session_max : SESSIONS_MAX; /* 0: no limit of its own */
    sum += places < SESSIONS_MAX - sum ? places : SESSIONS_MAX - sum;
  }
  return sum;
}

const msg_hello *sessions_worker(const sessions_machine *o, wire_role role, int32_t index) {
  const roster_peer *p = worker_at(o, role, index);
  return p ? &p->hello : NULL;
}

int32_t sessions_worker_load(const sessions_machine *o, wire_role role, int32_t index) {
  const roster_peer *p = worker_at(o, role, index);
  return p ? assignment_load(o, p) : 0;
}

void sessions_worker_died(sessions_machine *o, wire_id incarnation, uint64_t now_us, actions *out) {
  step c = {o, now_us, out};
  for (int i = 0; i < o->roster.top; i++) {
    roster_peer *p = &o->roster.list[i];
    if (!p->id || !p->greeted || !wire_id_equal(p->hello.incarnation, incarnation)) continue;
    peer_id id = p->id;
    const char *why = p->hello.role == WIRE_ROLE_DRAFT ? "the draft worker died" : "the target worker died";
    roster_drop(&o->roster, id);
    assignment_worker_lost(&c, id, why);
  }
}

/* For who reads the log: workers come, leave and fall silent. */
static void log_worker(step *c, const roster_peer *p, const char *what) {
  const msg_hello *h = &p->hello;
  bool draft = h->role == WIRE_ROLE_DRAFT;
  roster_log(&c->o->roster, p->id, c->now, LOG_INFO, c->out, "a %s (%.64s) %s", draft ? "draft" : "target",
             wire_brief_of(draft ? h->method : h->numerics_id).text, what);
}

/* A target that is started again where another one was: the roster has asked that one, and it is gone: no
 * need to wait for the rest of its silence. */
static void drop_predecessors(step *c, const roster_peer *fresh) {
  for (int i = 0; fresh->hello.role == WIRE_ROLE_TARGET && i < c->o->roster.top; i++) {
    roster_peer *p = &c->o->roster.list[i];
    bool same = p->id && p != fresh && p->greeted && p->hello.role == fresh->hello.role &&
                roster_claims_place(&fresh->hello, p);
    peer_id id = p->id;
    if (!same) continue;
    roster_drop(&c->o->roster, id);
    assignment_worker_lost(c, id, "the worker was started again");
  }
}

/* --- frames --- */

/* A frame about a session that is none of ours, or no longer: the worker may free it. */
static void end_unknown(step *c, const roster_peer *from, const msg *m) {
  if (m->type == MSG_ENDED || m->type == MSG_ERROR) return;
  msg end = roster_message(&c->o->roster, from->id, MSG_END, m->session, m->epoch);
  actions_send(c->out, from->id, &end);
}

static void on_message(step *c, peer_id id, const msg *m) {
  roster_peer *from;
  sessions_machine *o = c->o;
  switch (roster_receive(&o->roster, id, m, 0, c->now, &from, c->out)) {
  case ROSTER_GREETED:
    assignment_worker_lost(c, id, "the worker has restarted");
    drop_predecessors(c, from);
    log_worker(c, from, "is here");
    break;
  case ROSTER_LEAVES:
    log_worker(c, from, "is leaving");
    if (from->hello.role == WIRE_ROLE_DRAFT) assignment_worker_lost(c, id, "the draft worker left");
    break;
  case ROSTER_FORGED:
    assignment_worker_lost(c, id, "the worker wanted to be of another role");
    break;
  case ROSTER_REFUSED:
    break;
  case ROSTER_HANDLED: /* a HELLO that does not fit: whoever was there before is gone */
    if (m->type == MSG_HELLO && !roster_find(&o->roster, id))
      assignment_worker_lost(c, id, "the worker is another one now");
    break;
  case ROSTER_PASS: {
    client_session *s = session_find(o, m->session);
    if (!m->session) break;
    if (!s)
      end_unknown(c, from, m);
    else if (m->epoch != s->epoch)
      break; /* of an epoch that has passed */
    else if (id == s->target.peer)
      session_frames_target(c, s, m);
    else if (id == s->draft.peer)
      session_frames_draft(c, s, m);
    else if (m->type == MSG_DONE)
      session_stats_report_late(&s->counted, id, &m->u.done.stats);
    break;
  }
  }
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (o->sessions[i]) assignment_place(c, o->sessions[i]);
}

/* --- time --- */

static bool due(const step *c, uint64_t since, uint64_t every) {
  return c->now - since >= every;
}

/* Nothing was heard of it for long, while the connection is well. */
static void miss_sign_of_life(step *c, client_session *s) {
  if (!s->target.opened || c->now < s->quiet_until_us || assignment_leave_hung(c, s)) return;
  s->quiet_until_us = c->now + SESSIONS_LOOK_US;
  if (s->quiet_told) return;
  s->quiet_told = true;
  actions_log(c->out, LOG_WARNING,
              "session %016llx: its target gives no sign of life, and there is no other: waiting for it, or "
              "for another tandem-target",
              (unsigned long long)s->id);
}

static void session_tick(step *c, client_session *s) {
  if (s->state == SESSIONS_ENDING &&
      (due(c, s->target.sent_us, SESSIONS_REPEAT_US) || due(c, s->draft.sent_us, SESSIONS_REPEAT_US))) {
    if (++s->end_tries >= SESSIONS_END_TRIES) s->target.ended = s->draft.ended = true;
    assignment_end(c, s, &s->target);
    assignment_end(c, s, &s->draft);
    s->target.sent_us = s->draft.sent_us = c->now;
    assignment_end_if_told(s);
  }
  assignment_place(c, s);
  if (s->state == SESSIONS_OPENING && due(c, s->opening_us, SESSIONS_TARGET_WAIT_US) &&
      !assignment_leave_hung(c, s))
    assignment_fail(c, s, ERR_TIMEOUT, "the target did not open the session within 30 s: see its log");
  if (session_live(s)) miss_sign_of_life(c, s);
  if (!session_live(s)) return;
  if (s->target.peer && !s->target.opened && due(c, s->target.sent_us, SESSIONS_REPEAT_US))
    assignment_open_target(c, s);
  if (s->draft.peer && !s->draft.opened && due(c, s->draft.sent_us, SESSIONS_REPEAT_US))
    assignment_open_draft(c, s);
  if (s->target.opened && due(c, s->ack_us, SESSIONS_ACK_US)) session_frames_ack(c, s);
}

static uint64_t later(uint64_t at, uint64_t by) {
  return by > MACHINE_NEVER - at ? MACHINE_NEVER : at + by;
}

static uint64_t session_deadline(const sessions_machine *o, const client_session *s) {
  uint64_t at = MACHINE_NEVER;
  if (s->state == SESSIONS_FINISHED) return at;
  if (s->state == SESSIONS_ENDING) return least_u64(s->target.sent_us, s->draft.sent_us) + SESSIONS_REPEAT_US;
  if (!s->target.peer && s->begun) { /* else the ledger's news wakes it */
    at = later(s->waiting_us, o->options.target_wait_us);
    if (s->retry_us) at = least_u64(at, s->retry_us);
  }
  if (s->target.peer && !s->target.opened) at = least_u64(at, s->target.sent_us + SESSIONS_REPEAT_US);
  if (s->draft.peer && !s->draft.opened) at = least_u64(at, s->draft.sent_us + SESSIONS_REPEAT_US);
  if (s->target.opened) at = least_u64(at, least_u64(s->ack_us + SESSIONS_ACK_US, s->quiet_until_us));
  return at;
}

static uint64_t sessions_deadline(const void *self) {
  const sessions_machine *o = self;
  uint64_t at = roster_deadline(&o->roster);
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (o->sessions[i]) at = least_u64(at, session_deadline(o, o->sessions[i]));
  return at;
}

static void on_tick(step *c) {
  for (roster_peer *lost; (lost = roster_tick(&c->o->roster, c->now, c->out));) {
    log_worker(c, lost, "is silent");
    bool draft = lost->hello.role == WIRE_ROLE_DRAFT;
    assignment_worker_lost(c, lost->id,
                           draft ? "the draft worker has been silent for 3 s"
                                 : "the target worker has been silent for 3 s");
  }
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (c->o->sessions[i]) session_tick(c, c->o->sessions[i]);
}

/* Who has not listened for a while cannot say that nothing was told. */
static void excuse_own_stall(sessions_machine *o, uint64_t now) {
  uint64_t gap = now - o->stepped_us;
  for (int i = 0; i < SESSIONS_MAX && gap >= SESSIONS_LOOK_US && o->stepped_us; i++)
    if (o->sessions[i]) o->sessions[i]->quiet_until_us += gap;
  o->stepped_us = now;
}

static void sessions_step(void *self, const event *e, uint64_t now_us, actions *out) {
  step c = {self, now_us, out};
  excuse_own_stall(c.o, now_us);
  if (e->kind == EVENT_MESSAGE)
    on_message(&c, e->peer, e->message);
  else if (e->kind == EVENT_TICK)
    on_tick(&c);
  else if (e->kind == EVENT_DRAIN)
    for (int i = 0; i < SESSIONS_MAX; i++)
      if (c.o->sessions[i]) assignment_finish(&c, c.o->sessions[i], WIRE_FINISH_CANCELLED, 0, NULL, true);
}

machine sessions_as_machine(sessions_machine *o) {
  return (machine){o, sessions_step, sessions_deadline};
}
