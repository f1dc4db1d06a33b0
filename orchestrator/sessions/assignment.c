#include "orchestrator/sessions/assignment.h"

#include "common/base/log.h"
#include "common/base/min.h"
#include "orchestrator/sessions/session_finish.h"
#include "orchestrator/sessions/worker_choice.h"
#include "wire/target_endpoint.h"
#include <stdio.h>
#include <string.h>

#define OPENS_UNDER_WAY                                                                                      \
  4 /* at most so many OPENED may still come for OPENs that were sent before; others are lost */

/* --- the ticket --- */

static void number_ticket(client_session *s) {
  uint32_t n = ++s->ticket_number;
  for (int i = 3; i >= 0; i--, n >>= 8) s->ticket.bytes[i] = (uint8_t)n;
}

void assignment_draw_ticket(const client_sessions *all, client_session *s) {
  for (size_t i = 0; i < sizeof s->ticket.bytes; i += sizeof(uint64_t)) {
    uint64_t drawn = all->random(all->random_context);
    memcpy(s->ticket.bytes + i, &drawn, sizeof drawn);
  }
  number_ticket(s);
  s->ticket_used = s->ticket_owed = false;
}

/* Whoever has it must not attach any more. */
static void retire_ticket(client_step *c, client_session *s) {
  if (!s->ticket_used) return;
  assignment_draw_ticket(c->all, s);
  s->ticket_owed = s->target.peer != 0;
  s->opens_outdated = s->opens_unanswered < OPENS_UNDER_WAY ? s->opens_unanswered : OPENS_UNDER_WAY;
  if (s->target.opened) s->target.base = s->committed.length; /* it has told us of these itself */
}

/* --- OPEN --- */

/* All that the worker lacks, or the first part of it. */
static void fill_open(const client_step *c, const client_session *s, client_assignment *worker, msg *m) {
  const prefix *p = &s->committed;
  msg_open *o = &m->u.open;
  worker->part = p->length - worker->base > c->all->part_tokens;
  worker->end = worker->part ? worker->base + c->all->part_tokens : p->length;
  m->type = worker->part ? MSG_PART : MSG_OPEN;
  o->total = worker->part ? p->length : 0;
  o->ticket = s->ticket;
  o->hash_seed = p->seed;
  o->base_length = worker->base;
  o->base_hash = p->hashes[worker->base];
  o->tokens = p->tokens + worker->base;
  o->token_count = worker->end - worker->base;
  o->hash = p->hashes[worker->end];
  o->prompt_length = s->prompt_length;
  o->options = s->options;
  o->options.partial = (msg_partial){0}; /* is not a draft's business, nor known to old targets */
}

bool assignment_lockstep_alone(const client_step *c, const client_session *s) {
  return s->options.lockstep && !s->draft.peer && (s->draft_note[0] || c->all->no_draft_comes);
}

void assignment_open_target(client_step *c, client_session *s) {
  msg m = client_message(c, s->target.peer, MSG_OPEN, s);
  bool alone = assignment_lockstep_alone(c, s);
  fill_open(c, s, &s->target, &m);
  if (alone && !s->draft_note[0])
    snprintf(s->draft_note, sizeof s->draft_note, "%s",
             c->all->no_draft ? c->all->no_draft : "no draft came");
  if (m.u.open.options.context == 0)
    m.u.open.options.context = client_worker_hello(c, s->target.peer)->context_max;
  m.u.open.draft_expected = s->want_draft && !alone;
  m.u.open.accepted_wanted = s->want_accepted && roster_version(&c->all->roster, s->target.peer) >= 3;
  if (roster_version(&c->all->roster, s->target.peer) >= WIRE_VERSION_PARTIAL)
    m.u.open.options.partial = s->options.partial;
  s->target.sent_us = c->now;
  if (!s->ticket_owed) s->target.opened = false;
  s->opens_unanswered++;
  actions_send(c->out, s->target.peer, &m);
}

/* The address at which a draft reaches the session's target goes into address[WIRE_STRING_MAX + 1]. False: it
 * cannot be reached, and *e says why. */
static bool resolve_target(client_step *c, const client_session *s, const roster_peer *draft, char *address,
                           err *e) {
  const roster_peer *t = roster_find(&c->all->roster, s->target.peer);
  return t && target_endpoint_resolve(t->endpoint, &t->hello.seen, &draft->hello.seen, address, e) == ERR_OK;
}

void assignment_open_draft(client_step *c, client_session *s) {
  const msg_hello *t = client_worker_hello(c, s->target.peer);
  const roster_peer *d = roster_find(&c->all->roster, s->draft.peer);
  err e = {0};
  bool again = s->draft.opened;
  s->draft.sent_us = c->now;
  s->draft.opened = false;
  if (!t || !d) return; /* it is opened once the session has a target again */
  if (!resolve_target(c, s, d, s->target_address, &e)) {
    assignment_dismiss_draft(c, s);
    assignment_clear_draft(c, s, e.text);
    assignment_log_trouble(c, s, e.text, e.text);
    return;
  }
  if (!s->attach_since_us) s->attach_since_us = c->now;
  if (again || !s->draft.offered_us) s->draft.offered_us = c->now;
  msg m = client_message(c, s->draft.peer, MSG_OPEN, s);
  fill_open(c, s, &s->draft, &m);
  if (m.u.open.options.context == 0) m.u.open.options.context = t->context_max;
  m.u.open.target_endpoint = wire_text(s->target_address);
  m.u.open.target_incarnation = t->incarnation;
  s->ticket_used = true;
  actions_send(c->out, s->draft.peer, &m);
}

bool assignment_take_opened(client_step *c, client_session *s, client_assignment *worker, int32_t length) {
  if (length < worker->end) return false;
  if (!worker->part) return true;
  worker->base = min_i32(length, s->committed.length);
  if (worker == &s->target) {
    s->opening_since_us = c->now;
    assignment_open_target(c, s);
  } else {
    s->draft.offered_us = 0; /* it has as long for each part */
    assignment_open_draft(c, s);
  }
  return false;
}

/* --- taking a draft away --- */

void assignment_dismiss_draft(client_step *c, client_session *s) {
  msg m = client_message(c, s->draft.peer, MSG_END, s);
  actions_send(c->out, s->draft.peer, &m);
}

void assignment_clear_draft(client_step *c, client_session *s, const char *why) {
  retire_ticket(c, s);
  s->draft = (client_assignment){.ended = true};
  snprintf(s->draft_note, sizeof s->draft_note, "%s", why);
}

void assignment_log_trouble(client_step *c, const client_session *s, const char *trouble, const char *why) {
  client_sessions *all = c->all;
  if (strcmp(all->trouble, trouble) == 0 && c->now - all->trouble_us < SESSIONS_TROUBLE_US) return;
  snprintf(all->trouble, sizeof all->trouble, "%s", trouble);
  all->trouble_us = c->now;
  actions_log(c->out, LOG_WARNING, "session %016llx decodes plainly: %s", (unsigned long long)s->id, why);
}

/* --- choosing a worker --- */

int32_t assignment_load(const client_sessions *all, const roster_peer *p) {
  int32_t own = 0;
  for (int k = 0; k < SESSIONS_MAX; k++) {
    const client_session *s = all->list[k];
    if (s && client_session_live(s)) own += s->target.peer == p->id || s->draft.peer == p->id;
  }
  return own > p->load ? own : p->load;
}

bool assignment_takes_new(const client_sessions *all, const roster_peer *p) {
  return p->id && p->greeted && !p->lost && !p->leaving &&
         !drained_workers_has(&all->drained, p->hello.incarnation);
}

/* The target said that its context is shorter than this session's. */
static bool context_too_short(const roster_peer *p, const client_session *s) {
  return p->hello.context_max && p->hello.context_max < s->options.context;
}

client_unable *assignment_unable(client_session *s, peer_id id) {
  for (int i = 0; i < SESSIONS_UNABLE_MAX; i++)
    if (s->unable[i].peer == id) return &s->unable[i];
  return NULL;
}

/* Whoever lives answers each PING at once. One that was killed is silent for seconds before it counts as
 * lost. */
static bool owes_reply(const client_step *c, const roster_peer *p) {
  return c->now - p->received_us >= ROSTER_PING_US + SESSIONS_REPEAT_US;
}

/* A target that would refuse, or hangs, and a draft that does not reply are asked only where there is no
 * other. */
static bool would_refuse(const client_step *c, const client_session *s, const roster_peer *p) {
  if (p->hello.role == WIRE_ROLE_DRAFT) return owes_reply(c, p);
  return p->id == s->refused_by || hung_targets_has(&c->all->hung, p->id, c->now) || context_too_short(p, s);
}

/* What a worker must speak to be sent this session's OPEN. */
static uint32_t needed_version(const client_step *c, const client_session *s) {
  if (s->committed.length > c->all->part_tokens) return WIRE_VERSION_PARTS;
  return msg_options_extras(&s->options) ? WIRE_VERSION_EXTRAS : WIRE_VERSION_MIN;
}

/* *why (may be NULL) is set where a draft is on a host that cannot reach the target. */
static bool may_serve(client_step *c, client_session *s, const roster_peer *p, wire_role role, err *why) {
  char address[WIRE_STRING_MAX + 1];
  if (p->hello.role != role || !assignment_takes_new(c->all, p)) return false;
  const client_unable *unable = assignment_unable(s, p->id);
  if (unable && c->now < unable->until_us) return false;
  if (needed_version(c, s) > roster_version(&c->all->roster, p->id)) return false;
  if (role != WIRE_ROLE_DRAFT) return true;
  return p->id != s->draft_refused_by && resolve_target(c, s, p, address, why);
}

void assignment_numerics(const client_session *s, const roster_peer *target, char to[WIRE_STRING_MAX + 1]) {
  const bool lossy = s->options.partial.mode == WIRE_PARTIAL_LOSSY;
  const int room = WIRE_STRING_MAX + 1 - (lossy ? (int)sizeof SESSIONS_LOSSY : 0);
  snprintf(to, WIRE_STRING_MAX + 1, "%.*s%s", room, target->numerics, lossy ? SESSIONS_LOSSY : "");
}

static bool same_numerics(const client_session *s, const roster_peer *target) {
  char numerics[WIRE_STRING_MAX + 1];
  assignment_numerics(s, target, numerics);
  return strcmp(s->numerics, numerics) == 0;
}

/* The worker of a role that serves this session best, or 0. */
static peer_id choose(client_step *c, client_session *s, wire_role role, bool *willing, err *why) {
  const client_sessions *all = c->all;
  bool any_numerics = role == WIRE_ROLE_DRAFT || !s->decoded;
  worker_choice_worker list[ROSTER_MAX];
  peer_id ids[ROSTER_MAX];
  int32_t count = 0;
  for (int i = 0; i < all->roster.top; i++) {
    const roster_peer *p = &all->roster.list[i];
    if (!may_serve(c, s, p, role, why)) continue;
    ids[count] = p->id;
    list[count++] = (worker_choice_worker){
        .load = assignment_load(all, p),
        .cached = prefix_affinity_length(&all->affinity, p->id, s->committed.tokens, s->committed.length),
        .session_max = p->hello.session_max,
        .same_numerics = any_numerics || same_numerics(s, p),
        .refused = would_refuse(c, s, p)};
  }
  int32_t best = worker_choice_best(list, count);
  if (best < 0) {
    if (willing) *willing = false;
    return 0;
  }
  const worker_choice_worker *w = &list[best];
  if (willing) *willing = !w->refused && (!w->session_max || w->load < w->session_max);
  return ids[best];
}

peer_id assignment_choose_target(client_step *c, client_session *s, bool *willing) {
  return choose(c, s, WIRE_ROLE_TARGET, willing, NULL);
}

/* --- epochs --- */

static bool take_epoch(client_step *c, client_session *s, uint32_t epoch) {
  const ledger *l = &c->all->ledger;
  int code = l->epoch(l->self, s->id, epoch);
  if (code == ERR_OK) {
    s->epoch = epoch;
    s->opens_unanswered = s->opens_outdated = 0;
    s->acked = s->prompt_length; /* as a target counts from OPEN on */
    assignment_draw_ticket(c->all, s);
    return true;
  }
  if (code == ERR_GONE)
    session_finish_taken(c, s);
  else
    session_finish(c, s, WIRE_FINISH_ERROR, ERR_IO,
                   "the ledger could not take a new epoch: the answer ends here", false);
  return false;
}

bool assignment_next_epoch(client_step *c, client_session *s) {
  return take_epoch(c, s, s->epoch + 1);
}

/* --- a draft --- */

static bool may_have_draft(client_step *c, client_session *s) {
  if (!s->want_draft || s->draft.peer || !s->target.peer) return false;
  if (s->draft_retry_us && c->now >= s->draft_retry_us) {
    s->draft_retry_us = s->draft_refused_by = 0;
    s->draft_refusals = 0;
  }
  /* A draft that starts again and again is not chosen each time. */
  bool again = s->draft_chosen_us && c->now - s->draft_chosen_us < SESSIONS_REPEAT_US;
  return s->draft_refusals < SESSIONS_DRAFT_REFUSALS_MAX && !again;
}

void assignment_choose_draft(client_step *c, client_session *s) {
  err why = {0};
  if (!may_have_draft(c, s)) return;
  peer_id id = choose(c, s, WIRE_ROLE_DRAFT, NULL, &why);
  if (!id && why.code && !s->draft_refused_by) { /* every draft is on the wrong host */
    assignment_clear_draft(c, s, why.text);
    assignment_log_trouble(c, s, why.text, why.text);
  }
  if (!id) return;
  s->draft = (client_assignment){.peer = id};
  s->draft_repairs = 0;
  s->draft_chosen_us = c->now;
  s->draft_note[0] = 0;
  client_text(s->method, client_worker_hello(c, id)->method);
  assignment_open_draft(c, s);
}

/* --- a target --- */

void assignment_target_lives(client_step *c, client_session *s, bool tokens) {
  if (tokens) hung_targets_remove(&c->all->hung, s->target.peer);
  if (s->silence_logged)
    actions_log(c->out, LOG_INFO, "session %016llx: its target goes on", (unsigned long long)s->id);
  s->silence_logged = false;
  s->silence_ends_us = c->now + s->silence_us;
}

static void check_wait_for_target(client_step *c, client_session *s) {
  uint64_t limit = c->all->target_wait_us;
  char text[WIRE_STRING_MAX + 1];
  /* A stall of our own that is excused may put the beginning into the future. */
  if (c->now < s->waiting_since_us || c->now - s->waiting_since_us < limit) return;
  snprintf(text, sizeof text, "no target worker could take the session within %llu s: start tandem-target",
           (unsigned long long)(limit / 1000000));
  session_finish_error(c, s, ERR_TIMEOUT, text);
}

/* A session that needs much room would never get it if younger ones that need little went first. Where
 * sessions of ours run there will be room, however long that takes. */
static bool waits_for_room(client_step *c, client_session *s) {
  bool behind = false, room_will_come = false;
  for (int i = 0; i < SESSIONS_MAX; i++) {
    const client_session *other = c->all->list[i];
    if (!other || other == s || !client_session_live(other)) continue;
    behind |= other->needs_room && other->order < s->order;
    room_will_come |= other->target.opened;
  }
  if (behind || (s->needs_room && room_will_come)) s->waiting_since_us = c->now;
  return behind;
}

void assignment_room_made(client_sessions *all) {
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (all->list[i] && all->list[i]->needs_room) all->list[i]->retry_us = 0;
}

static void fill_target(client_step *c, client_session *s) {
  if (c->now >= s->retry_us) s->retry_us = 0;
  peer_id id = waits_for_room(c, s) || s->retry_us ? 0 : assignment_choose_target(c, s, NULL);
  if (!id) {
    check_wait_for_target(c, s);
    return;
  }
  s->target = (client_assignment){.peer = id};
  session_stats_arrive(&s->stats, client_worker_hello(c, id)->incarnation);
  s->opening_since_us = c->now;
  s->attach_since_us = 0;
  assignment_open_target(c, s);
  assignment_target_lives(c, s, false);
  if (!s->draft.peer) return;
  s->draft.base = s->committed.length;
  s->draft.offered_us = 0;
  assignment_open_draft(c, s);
}

/* False: the ledger is not ready yet. */
static bool check_ledger(client_step *c, client_session *s) {
  if (s->in_ledger) return true;
  s->in_ledger = client_session_logged(c->all, s) > 0;
  s->waiting_since_us = c->now; /* only from now on for a target */
  if (!s->in_ledger) return false;
  /* A session that was resumed may be another process's by now. */
  return s->epoch == 1 || take_epoch(c, s, s->epoch);
}

void assignment_fill(client_step *c, client_session *s) {
  if (!client_session_live(s) || !check_ledger(c, s)) return;
  if (!s->target.peer) fill_target(c, s);
  assignment_choose_draft(c, s);
}
