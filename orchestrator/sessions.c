#include "orchestrator/sessions.h"

#include "common/base/log.h"
#include "orchestrator/placement.h"
#include "wire/roster.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESEND_EVERY_US 20000 /* a stream with a hole is asked for once, not for every frame behind the hole */
#define REFUSALS_MAX 8        /* drafts that may refuse one session before it stays without */

/* What a session knows of one of its two workers. */
typedef struct seat {
  peer_id peer; /* 0: none */
  bool opened;  /* OPENED came for this epoch */
  bool ended;   /* ENDED came, or there is nobody to tell */
  int32_t base; /* what the next OPEN builds on */
  uint64_t sent_us;
} seat;

typedef struct orch_session {
  orch_state state;
  uint64_t id, number; /* number: in the order of their beginnings */
  uint32_t epoch;
  wire_id ticket;
  prefix committed; /* what the ledger holds */
  int32_t prompt_length;
  msg_options options;
  int32_t stops[WIRE_STOPS_MAX];
  bool want_draft, begun; /* begun: the ledger holds its beginning */
  int32_t (*admit)(void *context, const int32_t *tokens, int32_t count, bool *stop);
  void *admit_context;

  seat target, draft;
  peer_id target_avoid, draft_avoid; /* they refused it: others first; 0: none */
  bool no_room;                      /* the last target was full: who began later waits behind it */
  uint64_t ack_us, waiting_us, opening_us, retry_us, resend_us, lost_us, draft_placed_us;
  int32_t end_tries, repairs, draft_repairs, draft_refusals;

  wire_finish finish;
  int code;
  bool decoded, numerics_changed; /* decoded: a token came from a target of these numerics */
  char text[WIRE_STRING_MAX + 1], off_reason[WIRE_STRING_MAX + 1], draft_note[WIRE_STRING_MAX + 1];
  char method[WIRE_STRING_MAX + 1], numerics[WIRE_STRING_MAX + 1];
  msg_stats stats;
  uint64_t accepted_per_pos[WIRE_POSITIONS_MAX];
} orch_session;

struct orch {
  orch_options options;
  roster roster;
  orch_session *sessions[ORCH_SESSIONS_MAX];
  uint64_t started;
};

typedef struct step {
  orch *o;
  uint64_t now;
  actions *out;
} step;

int orch_alloc(orch **out, const orch_options *options, err *e) {
  orch *o = *out = calloc(1, sizeof *o);
  if (!o) return err_set(e, ERR_NOMEM, "no memory for the orchestrator's state");
  o->options = *options;
  if (o->options.target_wait_us == 0) o->options.target_wait_us = ORCH_TARGET_WAIT_US;
  msg_hello self = {.role = WIRE_ROLE_ORCHESTRATOR,
                    .incarnation = options->incarnation,
                    .model_fingerprint = options->model_fingerprint,
                    .vocabulary_hash = options->vocabulary_hash,
                    .vocabulary_size = options->vocabulary_size,
                    .session_max = ORCH_SESSIONS_MAX};
  roster_init(&o->roster, &self);
  return ERR_OK;
}

static void session_free(orch_session *s) {
  prefix_fini(&s->committed);
  free(s);
}

void orch_free(orch *o) {
  if (!o) return;
  for (int i = 0; i < ORCH_SESSIONS_MAX; i++)
    if (o->sessions[i]) session_free(o->sessions[i]);
  free(o);
}

static orch_session *session_find(const orch *o, uint64_t id) {
  for (int i = 0; i < ORCH_SESSIONS_MAX; i++)
    if (o->sessions[i] && o->sessions[i]->id == id) return o->sessions[i];
  return NULL;
}

static bool live(const orch_session *s) { return s->state < ORCH_ENDING; }

static void set_text(char out[WIRE_STRING_MAX + 1], wire_string s) {
  if (s.size) memcpy(out, s.data, s.size);
  out[s.size] = 0;
}

static const msg_hello *greeting(step *c, peer_id id) {
  const roster_peer *p = roster_find(&c->o->roster, id);
  return p ? &p->hello : NULL;
}

static msg message_to(step *c, peer_id to, msg_type type, const orch_session *s) {
  return roster_message(roster_find(&c->o->roster, to), type, s->id, s->epoch);
}

/* --- the end of an answer --- */

static void send_end(step *c, orch_session *s, seat *w) {
  if (w->ended) return;
  if (!w->peer) {
    w->ended = true;
    return;
  }
  msg m = message_to(c, w->peer, MSG_END, s);
  w->sent_us = c->now;
  actions_send(c->out, w->peer, &m);
}

static void finished_if_told(orch_session *s) {
  if (s->state == ORCH_ENDING && s->target.ended && s->draft.ended) s->state = ORCH_FINISHED;
}

/* The answer is over for the client; the workers are told. A cancel is an epoch bump. */
static void session_finish(step *c, orch_session *s, wire_finish finish, int code, const char *text, bool cancel) {
  if (!live(s)) return;
  s->state = ORCH_ENDING;
  s->finish = finish;
  s->code = code;
  snprintf(s->text, sizeof s->text, "%s", text ? text : "");
  if (cancel) c->o->options.ledger.epoch(c->o->options.ledger.self, s->id, ++s->epoch);
  c->o->options.ledger.end(c->o->options.ledger.self, s->id, s->committed.length, finish, &s->stats);
  send_end(c, s, &s->target);
  send_end(c, s, &s->draft);
  finished_if_told(s);
}

static void session_error(step *c, orch_session *s, int code, const char *text) {
  session_finish(c, s, WIRE_FINISH_ERROR, code, text, true);
}

/* --- opening --- */

static void fill_open(const orch_session *s, const seat *w, msg_open *o) {
  const prefix *p = &s->committed;
  o->ticket = s->ticket;
  o->hash_seed = p->seed;
  o->base_length = w->base;
  o->base_hash = p->hashes[w->base];
  o->tokens = p->tokens + w->base;
  o->token_count = p->length - w->base;
  o->hash = prefix_hash(p);
  o->prompt_length = s->prompt_length;
  o->options = s->options;
  o->options.stops = s->stops;
}

static void open_target(step *c, orch_session *s) {
  msg m = message_to(c, s->target.peer, MSG_OPEN, s);
  const msg_hello *h = greeting(c, s->target.peer);
  fill_open(s, &s->target, &m.u.open);
  if (m.u.open.options.context == 0) m.u.open.options.context = h->context_max;
  m.u.open.draft_expected = s->want_draft;
  s->target.sent_us = c->now;
  s->target.opened = false;
  s->state = ORCH_OPENING;
  actions_send(c->out, s->target.peer, &m);
}

static void open_draft(step *c, orch_session *s) {
  const msg_hello *t = greeting(c, s->target.peer);
  s->draft.sent_us = c->now;
  s->draft.opened = false;
  if (!t) return; /* it is opened when the session has a target again */
  msg m = message_to(c, s->draft.peer, MSG_OPEN, s);
  fill_open(s, &s->draft, &m.u.open);
  if (m.u.open.options.context == 0) m.u.open.options.context = t->context_max;
  m.u.open.target_endpoint = t->endpoint;
  m.u.open.target_incarnation = t->incarnation;
  actions_send(c->out, s->draft.peer, &m);
}

/* Sessions that a worker has: by our own count, which is newer, or by its own, which knows of others' too. */
static int32_t load_of(const orch *o, const roster_peer *p) {
  int32_t own = 0;
  for (int k = 0; k < ORCH_SESSIONS_MAX; k++) {
    const orch_session *s = o->sessions[k];
    if (s && live(s)) own += s->target.peer == p->id || s->draft.peer == p->id;
  }
  return own > p->load ? own : p->load;
}

/* The worker of a role that serves a session best (of these numerics; "": any), or 0. A target that has
 * refused it, or would because its context is shorter, is asked where there is no other; a draft is not. */
static peer_id choose(const orch *o, wire_role role, peer_id refused, int32_t context, const char *numerics) {
  placement_worker list[ROSTER_MAX];
  peer_id ids[ROSTER_MAX];
  int32_t count = 0;
  for (int i = 0; i < o->roster.top; i++) {
    const roster_peer *p = &o->roster.list[i];
    if (!p->id || !p->greeted || p->lost || p->leaving || p->hello.role != role) continue;
    if (role == WIRE_ROLE_DRAFT && p->id == refused) continue;
    ids[count] = p->id;
    list[count++] = (placement_worker){.load = load_of(o, p),
                                       .places = p->hello.session_max,
                                       .alike = !numerics[0] || strcmp(numerics, p->numerics) == 0,
                                       .refused = p->id == refused || (p->hello.context_max && p->hello.context_max < context)};
  }
  int32_t best = placement_best(list, count);
  return best < 0 ? 0 : ids[best];
}

static peer_id choose_target(const orch *o, const orch_session *s) {
  return choose(o, WIRE_ROLE_TARGET, s->target_avoid, s->options.context, s->decoded ? s->numerics : "");
}

/* False: it could not be recorded, so nothing may be sent in it; the session has ended. */
static bool next_epoch(step *c, orch_session *s) {
  ledger *l = &c->o->options.ledger;
  if (l->epoch(l->self, s->id, s->epoch + 1) == ERR_OK) {
    s->epoch++;
    return true;
  }
  session_finish(c, s, WIRE_FINISH_ERROR, ERR_IO, "the ledger could not take a new epoch: the answer ends here", false);
  return false;
}

static void place_draft(step *c, orch_session *s) {
  if (!s->want_draft || s->draft.peer || !s->target.peer || s->draft_refusals >= REFUSALS_MAX) return;
  if (s->draft_placed_us && c->now - s->draft_placed_us < ORCH_REPEAT_US) return; /* one that starts again and again */
  peer_id id = choose(c->o, WIRE_ROLE_DRAFT, s->draft_avoid, 0, "");
  if (!id) return;
  s->draft = (seat){.peer = id};
  s->draft_repairs = 0;
  s->draft_placed_us = c->now;
  s->draft_note[0] = 0;
  set_text(s->method, greeting(c, id)->method);
  open_draft(c, s);
}

/* How many tokens the ledger holds for good; 0: nothing may be sent yet. */
static int32_t logged(const orch *o, const orch_session *s) {
  int32_t n = o->options.ledger.durable(o->options.ledger.self, s->id);
  return n < s->committed.length ? n : s->committed.length;
}

/* Who needs much room would never get it if those who need little went first. Where answers of ours are under way,
 * room will come, however long that takes. */
static bool waits_for_room(step *c, orch_session *s) {
  bool behind = false, room_comes = false;
  for (int i = 0; i < ORCH_SESSIONS_MAX; i++) {
    const orch_session *other = c->o->sessions[i];
    if (!other || other == s || !live(other)) continue;
    behind |= other->no_room && other->number < s->number;
    room_comes |= other->target.opened;
  }
  if (behind || (s->no_room && room_comes)) s->waiting_us = c->now;
  return behind;
}

/* Finds workers for what has none, and is in the ledger. */
static void place(step *c, orch_session *s) {
  if (!live(s)) return;
  if (!s->begun) {
    s->begun = logged(c->o, s) > 0;
    s->waiting_us = c->now; /* for a target only from now on */
  }
  if (!s->begun) return;
  if (!s->target.peer) {
    if (c->now >= s->retry_us) s->retry_us = 0;
    peer_id id = waits_for_room(c, s) || s->retry_us ? 0 : choose_target(c->o, s);
    if (!id) {
      if (c->now - s->waiting_us >= c->o->options.target_wait_us) {
        char text[WIRE_STRING_MAX + 1];
        snprintf(text, sizeof text, "no target worker could take the session within %llu s: start tandem-target",
                 (unsigned long long)(c->o->options.target_wait_us / 1000000));
        session_error(c, s, ERR_TIMEOUT, text);
      }
      return;
    }
    s->target = (seat){.peer = id};
    s->opening_us = c->now;
    open_target(c, s);
    if (s->draft.peer) {
      s->draft.base = s->committed.length;
      open_draft(c, s);
    }
  }
  place_draft(c, s);
}

static void target_lost(step *c, orch_session *s, uint64_t retry_us) {
  s->target = (seat){.ended = true};
  s->state = ORCH_WAITING;
  s->waiting_us = c->now;
  s->retry_us = retry_us;
  if (next_epoch(c, s)) place(c, s);
}

/* It is there still, or may come back: nobody would end the session there later. */
static void draft_dismiss(step *c, orch_session *s) {
  msg m = message_to(c, s->draft.peer, MSG_END, s);
  actions_send(c->out, s->draft.peer, &m);
}

static void draft_lost(step *c, orch_session *s, const char *why) {
  s->draft = (seat){.ended = true};
  snprintf(s->draft_note, sizeof s->draft_note, "%s", why);
  actions_log(c->out, LOG_WARNING, "session %016llx decodes plainly: %s", (unsigned long long)s->id, why);
  place_draft(c, s);
}

/* It would not serve this session; another may. */
static void draft_refused(step *c, orch_session *s, const char *why) {
  s->draft_avoid = s->draft.peer;
  s->draft_refusals++;
  draft_dismiss(c, s);
  s->draft_placed_us = 0; /* another one at once: refusals are counted */
  draft_lost(c, s, why);
}

static void worker_lost(step *c, peer_id id, const char *why) {
  for (int i = 0; i < ORCH_SESSIONS_MAX; i++) {
    orch_session *s = c->o->sessions[i];
    if (!s) continue;
    if (s->target_avoid == id) s->no_room = false, s->target_avoid = 0; /* who comes back there has not refused anything */
    if (s->draft_avoid == id) s->draft_avoid = 0;
    if (!live(s)) {
      if (s->target.peer == id) s->target.ended = true;
      if (s->draft.peer == id) s->draft.ended = true;
      finished_if_told(s);
      continue;
    }
    const roster_peer *p = roster_find(&c->o->roster, id);
    if (s->draft.peer == id && p && p->lost) draft_dismiss(c, s);
    if (s->draft.peer == id) draft_lost(c, s, why);
    if (s->target.peer != id) continue;
    actions_log(c->out, LOG_WARNING, "session %016llx: its target was lost: it goes on elsewhere from token %d",
                (unsigned long long)s->id, s->committed.length);
    bool again = s->lost_us && c->now - s->lost_us < ORCH_REPEAT_US; /* one that starts again and again */
    s->lost_us = c->now;
    target_lost(c, s, again ? c->now + ORCH_REPEAT_US : 0);
  }
}

/* For who reads the log: workers come, leave and fall silent. */
static void log_worker(step *c, const roster_peer *p, const char *what) {
  const msg_hello *h = &p->hello;
  bool draft = h->role == WIRE_ROLE_DRAFT;
  actions_log(c->out, LOG_INFO, "a %s (%s) %s", draft ? "draft" : "target", draft ? p->method : p->numerics, what);
}

/* A target that is started again where another one was: that one is gone, no need to wait for its silence. */
static void drop_predecessors(step *c, const roster_peer *fresh) {
  for (int i = 0; fresh->endpoint[0] && i < c->o->roster.top; i++) {
    roster_peer *p = &c->o->roster.list[i];
    bool same = p->id && p != fresh && p->greeted && p->hello.role == fresh->hello.role && strcmp(p->endpoint, fresh->endpoint) == 0;
    peer_id id = p->id;
    if (!same) continue;
    roster_drop(&c->o->roster, id);
    worker_lost(c, id, "the worker was started again");
  }
}

/* --- requests --- */

static uint64_t draw(const orch *o) { return o->options.random(o->options.random_context); }

static int session_init(orch *o, orch_session *s, const orch_request *r) {
  uint64_t a = draw(o), b = draw(o);
  memcpy(s->ticket.bytes, &a, 8);
  memcpy(s->ticket.bytes + 8, &b, 8);
  const orch_resume *resume = r->resume;
  do s->id = resume ? resume->session : draw(o);
  while (!resume && (s->id == 0 || session_find(o, s->id)));
  s->epoch = resume ? resume->epoch + 1 : 1;
  s->options = r->options;
  if (s->options.stop_count > WIRE_STOPS_MAX) s->options.stop_count = WIRE_STOPS_MAX;
  for (int32_t i = 0; i < s->options.stop_count; i++) s->stops[i] = r->options.stops[i];
  s->prompt_length = r->prompt_length;
  s->want_draft = r->draft && r->options.budget > 0;
  s->admit = r->admit;
  s->admit_context = r->admit_context;
  int32_t capacity = r->prompt_length + r->options.max_tokens, context = r->options.context;
  if (context > 0 && context < capacity) capacity = context > r->prompt_length ? context : r->prompt_length;
  int rc = prefix_init(&s->committed, capacity, resume ? resume->hash_seed : draw(o));
  if (rc == ERR_OK) rc = prefix_append(&s->committed, r->prompt, r->prompt_length);
  if (rc != ERR_OK || !resume) return rc;
  s->decoded = resume->output_length > 0 && resume->numerics[0];
  snprintf(s->numerics, sizeof s->numerics, "%s", resume->numerics);
  return prefix_append(&s->committed, resume->output, resume->output_length);
}

static int log_beginning(const orch *o, orch_session *s, const orch_request *r) {
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

/* What no OPEN could say is refused here: its frame would never be sent. */
static int check_request(const orch *o, const orch_request *r, err *e) {
  const msg_options *p = &r->options;
  int32_t vocabulary = o->options.vocabulary_size;
  if (r->prompt_length < 1) return err_set(e, ERR_ARG, "the prompt is empty: give at least one token");
  if (p->max_tokens < 1) return err_set(e, ERR_ARG, "max_tokens must be at least 1");
  if (r->prompt_length > WIRE_TOKENS_MAX || p->max_tokens > WIRE_CONTEXT_MAX)
    return err_set(e, ERR_LIMIT, "a prompt has at most %d tokens and an answer %d", WIRE_TOKENS_MAX, WIRE_CONTEXT_MAX);
  if (r->resume && r->resume->output_length >= p->max_tokens)
    return err_set(e, ERR_ARG, "the answer has all of its %d tokens", p->max_tokens);
  if (p->context < 0 || p->context > WIRE_CONTEXT_MAX)
    return err_set(e, ERR_ARG, "a context is 0 (the target's own) to %d tokens, not %d", WIRE_CONTEXT_MAX, p->context);
  if (p->budget < 0 || p->budget > WIRE_BUDGET_MAX)
    return err_set(e, ERR_ARG, "a node budget is 0 to %d, not %d", WIRE_BUDGET_MAX, p->budget);
  if (p->selfcheck < 0) return err_set(e, ERR_ARG, "selfcheck is 0 (off) or a number of rounds, not %d", p->selfcheck);
  if (!isfinite(p->temperature) || !isfinite(p->top_p) || !isfinite(p->min_p) || !isfinite(p->repeat_penalty))
    return err_set(e, ERR_ARG, "temperature, top-p, min-p and repeat-penalty must be finite numbers");
  for (int32_t i = 0; i < r->prompt_length; i++)
    if (r->prompt[i] < 0 || (vocabulary && r->prompt[i] >= vocabulary))
      return err_set(e, ERR_ARG, "token %d at position %d is outside the vocabulary", r->prompt[i], i);
  return ERR_OK;
}

uint64_t orch_start(orch *o, const orch_request *r, uint64_t now_us, actions *out, err *e) {
  step c = {o, now_us, out};
  int place_index = 0;
  if (check_request(o, r, e) != ERR_OK) return 0;
  while (place_index < ORCH_SESSIONS_MAX && o->sessions[place_index]) place_index++;
  if (place_index == ORCH_SESSIONS_MAX)
    return err_set(e, ERR_FULL, "%d sessions are open already: try again later", ORCH_SESSIONS_MAX), 0;
  orch_session *s = calloc(1, sizeof *s);
  if (!s || session_init(o, s, r) != ERR_OK || log_beginning(o, s, r) != ERR_OK) {
    if (s) session_free(s);
    return err_set(e, ERR_NOMEM, "no memory for another session"), 0;
  }
  s->waiting_us = s->ack_us = now_us;
  s->number = ++o->started;
  o->sessions[place_index] = s;
  place(&c, s);
  return s->id;
}

void orch_cancel(orch *o, uint64_t session, uint64_t now_us, actions *out) {
  step c = {o, now_us, out};
  orch_session *s = session_find(o, session);
  if (s) session_finish(&c, s, WIRE_FINISH_CANCELLED, 0, NULL, true);
}

void orch_release(orch *o, uint64_t session, uint64_t now_us, actions *out) {
  orch_cancel(o, session, now_us, out);
  for (int i = 0; i < ORCH_SESSIONS_MAX; i++) {
    if (!o->sessions[i] || o->sessions[i]->id != session) continue;
    session_free(o->sessions[i]);
    o->sessions[i] = NULL;
  }
}

static const char *why_off(const orch_session *s) {
  if (!s->want_draft) return s->options.budget > 0 ? "no draft was asked for" : "the node budget is 0";
  if (s->draft_note[0]) return s->draft_note;
  return s->off_reason;
}

bool orch_look(const orch *o, uint64_t session, orch_view *out) {
  const orch_session *s = session_find(o, session);
  if (!s) return false;
  *out = (orch_view){.state = s->state,
                     .tokens = s->committed.tokens,
                     .length = s->committed.length,
                     .logged = logged(o, s),
                     .prompt_length = s->prompt_length,
                     .finish = s->finish,
                     .code = s->code,
                     .text = s->text,
                     .stats = s->stats,
                     .off_reason = why_off(s),
                     .draft_method = s->want_draft ? s->method : "",
                     .numerics_id = s->numerics,
                     .numerics_changed = s->numerics_changed,
                     .epoch = s->epoch,
                     .repairs = s->repairs};
  return true;
}

static const roster_peer *worker_at(const orch *o, wire_role role, int32_t index) {
  for (int i = 0; i < o->roster.top; i++) {
    const roster_peer *p = &o->roster.list[i];
    if (p->id && p->greeted && !p->lost && p->hello.role == role && index-- == 0) return p;
  }
  return NULL;
}

int32_t orch_workers(const orch *o, wire_role role) {
  int32_t n = 0;
  while (worker_at(o, role, n)) n++;
  return n;
}

int32_t orch_capacity(const orch *o) {
  int32_t sum = 0;
  for (int i = 0; i < o->roster.top; i++) {
    const roster_peer *p = &o->roster.list[i];
    if (!p->id || !p->greeted || p->lost || p->leaving || p->hello.role != WIRE_ROLE_TARGET) continue;
    int32_t places = p->hello.session_max ? p->hello.session_max : ORCH_SESSIONS_MAX; /* 0: no limit of its own */
    sum += places < ORCH_SESSIONS_MAX - sum ? places : ORCH_SESSIONS_MAX - sum;
  }
  return sum;
}

const msg_hello *orch_worker(const orch *o, wire_role role, int32_t index) {
  const roster_peer *p = worker_at(o, role, index);
  return p ? &p->hello : NULL;
}

int32_t orch_worker_load(const orch *o, wire_role role, int32_t index) {
  const roster_peer *p = worker_at(o, role, index);
  return p ? load_of(o, p) : 0;
}

void orch_worker_died(orch *o, wire_id incarnation, uint64_t now_us, actions *out) {
  step c = {o, now_us, out};
  for (int i = 0; i < o->roster.top; i++) {
    roster_peer *p = &o->roster.list[i];
    if (!p->id || !p->greeted || !wire_id_equal(p->hello.incarnation, incarnation)) continue;
    peer_id id = p->id;
    const char *why = p->hello.role == WIRE_ROLE_DRAFT ? "the draft worker died" : "the target worker died";
    roster_drop(&o->roster, id);
    worker_lost(&c, id, why);
  }
}

/* --- the stream --- */

static void send_ack(step *c, orch_session *s) {
  msg m = message_to(c, s->target.peer, MSG_ACK, s);
  m.u.state.length = s->committed.length;
  m.u.state.hash = prefix_hash(&s->committed);
  s->ack_us = c->now;
  actions_send(c->out, s->target.peer, &m);
}

static void ask_resend(step *c, orch_session *s) {
  if (c->now - s->resend_us < RESEND_EVERY_US) return;
  s->resend_us = c->now;
  msg m = message_to(c, s->target.peer, MSG_RESEND, s);
  m.u.resend.from = s->committed.length;
  actions_send(c->out, s->target.peer, &m);
}

/* Another prefix over there, or another place in it: the next epoch starts from what both hold. */
static void repair_target(step *c, orch_session *s, int32_t length, hash16 hash) {
  if (++s->repairs > ORCH_DESYNC_MAX) {
    session_error(c, s, ERR_DESYNC, "the target was out of step too often: see its log");
    return;
  }
  bool shared = length >= 1 && prefix_has(&s->committed, length, hash);
  if (!next_epoch(c, s)) return;
  s->waiting_us = s->opening_us = c->now;
  s->target.base = shared ? length : 0;
  open_target(c, s);
  s->draft_repairs = 0;
  if (!s->draft.peer) return;
  s->draft.base = s->committed.length;
  open_draft(c, s);
}

/* New tokens: asked whether a stop string ends them, logged, and only then visible and acknowledged. */
static void log_tokens(step *c, orch_session *s, int32_t before, int32_t count) {
  bool stop = false;
  const int32_t *tokens = s->committed.tokens + before;
  int32_t keep = s->admit ? s->admit(s->admit_context, tokens, count, &stop) : count;
  if (keep < count) prefix_truncate(&s->committed, before + keep);
  ledger *l = &c->o->options.ledger;
  if (keep > 0 && l->append(l->self, s->id, before, tokens, keep) != ERR_OK) {
    prefix_truncate(&s->committed, before);
    session_error(c, s, ERR_IO, "the ledger could not take the tokens: nothing more is shown");
    return;
  }
  if (stop || keep < count) session_finish(c, s, WIRE_FINISH_STOP, 0, NULL, true);
  else send_ack(c, s);
}

static bool in_vocabulary(step *c, const orch_session *s, const msg_tokens *t) {
  int32_t size = c->o->options.vocabulary_size;
  if (!size) size = greeting(c, s->target.peer)->vocabulary_size;
  for (int32_t i = 0; size && i < t->token_count; i++)
    if (t->tokens[i] >= size) return false;
  return true;
}

/* Whose numerics made this answer: those of every target that gave a token of it. */
static void note_numerics(step *c, orch_session *s, bool decoded) {
  const char *numerics = roster_find(&c->o->roster, s->target.peer)->numerics;
  if (s->decoded && !decoded) return;
  if (s->decoded && strcmp(s->numerics, numerics) != 0) s->numerics_changed = true;
  if (strcmp(s->numerics, numerics) != 0) {
    snprintf(s->numerics, sizeof s->numerics, "%s", numerics);
    c->o->options.ledger.numerics(c->o->options.ledger.self, s->id, s->numerics);
  }
  s->decoded |= decoded;
}

static void on_tokens(step *c, orch_session *s, const msg *m) {
  const msg_tokens *t = &m->u.tokens;
  int32_t before = s->committed.length, appended = 0;
  if (!in_vocabulary(c, s, t)) {
    session_error(c, s, ERR_PROTOCOL, "the target sent a token outside the vocabulary");
    return;
  }
  switch (prefix_apply(&s->committed, t->base_length, t->tokens, t->token_count, t->hash, &appended)) {
  case PREFIX_APPLIED:
    if (appended > 0) note_numerics(c, s, true);
    if (appended > 0) log_tokens(c, s, before, appended);
    else send_ack(c, s);
    break;
  case PREFIX_BEYOND: ask_resend(c, s); break;
  case PREFIX_CONFLICT:
  case PREFIX_LIMIT: /* more than was asked for */
    actions_log(c->out, LOG_WARNING, "session %016llx: the target's tokens differ from the ledger's: repaired",
                (unsigned long long)s->id);
    repair_target(c, s, 0, (hash16){{0}});
    break;
  }
}

static void take_stats(orch_session *s, const msg_done *d) {
  s->stats = d->stats;
  if (s->stats.position_count > WIRE_POSITIONS_MAX) s->stats.position_count = WIRE_POSITIONS_MAX;
  for (int32_t i = 0; i < s->stats.position_count; i++) s->accepted_per_pos[i] = d->stats.accepted_per_pos[i];
  s->stats.accepted_per_pos = s->accepted_per_pos;
  set_text(s->off_reason, d->off_reason);
}

static void on_done(step *c, orch_session *s, const msg *m) {
  const msg_done *d = &m->u.done;
  if (!live(s)) {
    take_stats(s, d);
    send_end(c, s, &s->target);
    return;
  }
  if (s->committed.length < d->length) {
    ask_resend(c, s);
    return;
  }
  if (!prefix_has(&s->committed, d->length, d->hash) || d->length != s->committed.length) {
    repair_target(c, s, d->length, d->hash);
    return;
  }
  take_stats(s, d);
  char text[WIRE_STRING_MAX + 1];
  set_text(text, d->text);
  session_finish(c, s, d->finish, d->code, text, false);
}

static void on_target_error(step *c, orch_session *s, const msg *m) {
  char text[WIRE_STRING_MAX + 1];
  set_text(text, m->u.error.text);
  s->target_avoid = s->target.peer;
  switch (m->u.error.code) {
  case ERR_STALE:
  case ERR_GONE: /* it has lost the session, or knows a later epoch */
    if (++s->repairs > ORCH_DESYNC_MAX) session_error(c, s, m->u.error.code, text);
    else target_lost(c, s, c->now + ORCH_REPEAT_US);
    break;
  case ERR_FULL:
  case ERR_DRAINING: {
    uint64_t since = s->waiting_us;
    s->no_room = m->u.error.code == ERR_FULL;
    target_lost(c, s, c->now + ORCH_REPEAT_US);
    s->waiting_us = since;
    break;
  }
  default: session_error(c, s, m->u.error.code, text);
  }
}

static void on_opened(step *c, orch_session *s, const msg *m) {
  const msg_state *at = &m->u.state;
  if (at->length <= s->committed.length && !prefix_has(&s->committed, at->length, at->hash)) {
    repair_target(c, s, 0, (hash16){{0}});
    return;
  }
  s->target.opened = true;
  s->state = ORCH_RUNNING;
  s->target_avoid = 0;
  s->no_room = false;
  note_numerics(c, s, false);
}

/* Who waits for room asks again at once. */
static void room_made(orch *o) {
  for (int i = 0; i < ORCH_SESSIONS_MAX; i++)
    if (o->sessions[i] && o->sessions[i]->no_room) o->sessions[i]->retry_us = 0;
}

static void on_target_message(step *c, orch_session *s, const msg *m) {
  if (m->type == MSG_ENDED) {
    s->target.ended = !live(s);
    finished_if_told(s);
    room_made(c->o);
    return;
  }
  if (m->type == MSG_DONE) on_done(c, s, m);
  if (!live(s)) return;
  switch (m->type) {
  case MSG_OPENED: on_opened(c, s, m); break;
  case MSG_TOKENS: on_tokens(c, s, m); break;
  case MSG_DESYNC: repair_target(c, s, m->u.state.length, m->u.state.hash); break;
  case MSG_ERROR: on_target_error(c, s, m); break;
  default: break;
  }
}

static void on_draft_message(step *c, orch_session *s, const msg *m) {
  if (m->type == MSG_ENDED) {
    s->draft.ended = !live(s);
    finished_if_told(s);
    return;
  }
  if (!live(s)) return;
  if (m->type == MSG_OPENED) s->draft.opened = true;
  if (m->type == MSG_ERROR) {
    char text[WIRE_STRING_MAX + 1];
    set_text(text, m->u.error.text);
    draft_refused(c, s, text);
  }
  if (m->type != MSG_DESYNC) return;
  if (++s->draft_repairs > ORCH_DESYNC_MAX) {
    draft_refused(c, s, "the draft was out of step too often");
    return;
  }
  s->draft.base = prefix_has(&s->committed, m->u.state.length, m->u.state.hash) ? m->u.state.length : 0;
  if (s->draft_repairs == 1) {
    open_draft(c, s);
    return;
  }
  s->draft.opened = false; /* again and again: perhaps it is the target that is wrong; ACK will tell: not at once */
  s->draft.sent_us = c->now;
}

/* A frame about a session that is none of ours, or no longer: the worker may free it. */
static void end_unknown(step *c, const roster_peer *from, const msg *m) {
  if (m->type == MSG_ENDED || m->type == MSG_ERROR) return;
  msg end = roster_message(from, MSG_END, m->session, m->epoch);
  actions_send(c->out, from->id, &end);
}

static void on_message(step *c, peer_id id, const msg *m) {
  roster_peer *from;
  orch *o = c->o;
  switch (roster_receive(&o->roster, id, m, 0, c->now, &from, c->out)) {
  case ROSTER_GREETED:
    worker_lost(c, id, "the worker has restarted");
    drop_predecessors(c, from);
    log_worker(c, from, "is here");
    break;
  case ROSTER_LEAVES:
    log_worker(c, from, "is leaving");
    if (from->hello.role == WIRE_ROLE_DRAFT) worker_lost(c, id, "the draft worker left");
    break;
  case ROSTER_REFUSED: break;
  case ROSTER_HANDLED: /* a HELLO that does not fit: whoever was there before is gone */
    if (m->type == MSG_HELLO && !roster_find(&o->roster, id)) worker_lost(c, id, "the worker is another one now");
    break;
  case ROSTER_PASS: {
    orch_session *s = session_find(o, m->session);
    if (!m->session) break;
    if (!s) end_unknown(c, from, m);
    else if (m->epoch != s->epoch) break; /* of an epoch that has passed */
    else if (id == s->target.peer) on_target_message(c, s, m);
    else if (id == s->draft.peer) on_draft_message(c, s, m);
    break;
  }
  }
  for (int i = 0; i < ORCH_SESSIONS_MAX; i++)
    if (o->sessions[i]) place(c, o->sessions[i]);
}

/* --- time --- */

static bool due(const step *c, uint64_t since, uint64_t every) { return c->now - since >= every; }

static void session_tick(step *c, orch_session *s) {
  if (s->state == ORCH_ENDING && (due(c, s->target.sent_us, ORCH_REPEAT_US) || due(c, s->draft.sent_us, ORCH_REPEAT_US))) {
    if (++s->end_tries >= ORCH_END_TRIES) s->target.ended = s->draft.ended = true;
    send_end(c, s, &s->target);
    send_end(c, s, &s->draft);
    s->target.sent_us = s->draft.sent_us = c->now;
    finished_if_told(s);
  }
  place(c, s);
  if (s->state == ORCH_OPENING && due(c, s->opening_us, ORCH_TARGET_WAIT_US))
    session_error(c, s, ERR_TIMEOUT, "the target did not open the session within 30 s: see its log");
  if (!live(s)) return;
  if (s->target.peer && !s->target.opened && due(c, s->target.sent_us, ORCH_REPEAT_US)) open_target(c, s);
  if (s->draft.peer && !s->draft.opened && due(c, s->draft.sent_us, ORCH_REPEAT_US)) open_draft(c, s);
  if (s->target.opened && due(c, s->ack_us, ORCH_ACK_US)) send_ack(c, s);
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t later(uint64_t at, uint64_t by) { return by > MACHINE_NEVER - at ? MACHINE_NEVER : at + by; }

static uint64_t session_deadline(const orch *o, const orch_session *s) {
  uint64_t at = MACHINE_NEVER;
  if (s->state == ORCH_FINISHED) return at;
  if (s->state == ORCH_ENDING) return earlier(s->target.sent_us, s->draft.sent_us) + ORCH_REPEAT_US;
  if (!s->target.peer && s->begun) { /* else the ledger's news wakes it */
    at = later(s->waiting_us, o->options.target_wait_us);
    if (s->retry_us) at = earlier(at, s->retry_us);
  }
  if (s->target.peer && !s->target.opened) at = earlier(at, s->target.sent_us + ORCH_REPEAT_US);
  if (s->draft.peer && !s->draft.opened) at = earlier(at, s->draft.sent_us + ORCH_REPEAT_US);
  if (s->target.opened) at = earlier(at, s->ack_us + ORCH_ACK_US);
  return at;
}

static uint64_t orch_deadline(const void *self) {
  const orch *o = self;
  uint64_t at = roster_deadline(&o->roster);
  for (int i = 0; i < ORCH_SESSIONS_MAX; i++)
    if (o->sessions[i]) at = earlier(at, session_deadline(o, o->sessions[i]));
  return at;
}

static void on_tick(step *c) {
  for (roster_peer *lost; (lost = roster_tick(&c->o->roster, c->now, c->out));) {
    log_worker(c, lost, "is silent");
    worker_lost(c, lost->id, lost->hello.role == WIRE_ROLE_DRAFT ? "the draft worker has been silent for 3 s"
                                                                 : "the target worker has been silent for 3 s");
  }
  for (int i = 0; i < ORCH_SESSIONS_MAX; i++)
    if (c->o->sessions[i]) session_tick(c, c->o->sessions[i]);
}

static void orch_step(void *self, const event *e, uint64_t now_us, actions *out) {
  step c = {self, now_us, out};
  if (e->kind == EVENT_MESSAGE) on_message(&c, e->peer, e->message);
  else if (e->kind == EVENT_TICK) on_tick(&c);
  else if (e->kind == EVENT_DRAIN)
    for (int i = 0; i < ORCH_SESSIONS_MAX; i++)
      if (c.o->sessions[i]) session_finish(&c, c.o->sessions[i], WIRE_FINISH_CANCELLED, 0, NULL, true);
}

machine orch_machine(orch *o) { return (machine){o, orch_step, orch_deadline}; }
