#include "orchestrator/sessions/assignment.h"

#include "common/base/log.h"
#include "orchestrator/sessions/worker_choice.h"
#include "wire/place.h"
#include <stdio.h>
#include <string.h>

#define REFUSALS_MAX 8 /* drafts that may refuse one session before it stays without */

void assignment_text(char out[WIRE_STRING_MAX + 1], wire_string s) {
  if (s.size) memcpy(out, s.data, s.size);
  out[s.size] = 0;
}

const msg_hello *assignment_greeting(step *c, peer_id id) {
  const roster_peer *p = roster_find(&c->o->roster, id);
  return p ? &p->hello : NULL;
}

static msg message_to(step *c, peer_id to, msg_type type, const client_session *s) {
  return roster_message(&c->o->roster, to, type, s->id, s->epoch);
}

/* --- the end of an answer --- */

void assignment_end(step *c, client_session *s, seat *w) {
  if (w->ended) return;
  if (!w->peer) {
    w->ended = true;
    return;
  }
  msg m = message_to(c, w->peer, MSG_END, s);
  w->sent_us = c->now;
  actions_send(c->out, w->peer, &m);
}

void assignment_end_if_told(client_session *s) {
  if (s->state == SESSIONS_ENDING && s->target.ended && s->draft.ended) s->state = SESSIONS_FINISHED;
}

void assignment_finish(step *c, client_session *s, wire_finish finish, int code, const char *text,
                       bool cancel) {
  if (!session_live(s)) return;
  s->state = SESSIONS_ENDING;
  s->finish = finish;
  s->code = code;
  snprintf(s->text, sizeof s->text, "%s", text ? text : "");
  ledger *l = &c->o->options.ledger;
  if (cancel && l->epoch(l->self, s->id, s->epoch + 1) == ERR_OK)
    s->epoch++; /* else END goes out in this one */
  msg_stats stats = session_stats_total(&s->counted);
  l->end(l->self, s->id, s->committed.length, finish, &stats);
  if (s->target.peer && s->decoded)
    prefix_affinity_note(&c->o->read, s->target.peer, s->committed.tokens, s->committed.length);
  assignment_end(c, s, &s->target);
  assignment_end(c, s, &s->draft);
  assignment_end_if_told(s);
}

void assignment_fail(step *c, client_session *s, int code, const char *text) {
  assignment_finish(c, s, WIRE_FINISH_ERROR, code, text, true);
}

/* --- OPEN --- */

static void fill_open(const client_session *s, const seat *w, msg_open *o) {
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

/* In lockstep its target would wait for a draft; but those that were here gave up. */
static bool lockstep_alone(const client_session *s) {
  return s->options.lockstep && !s->draft.peer && s->draft_note[0];
}

void assignment_open_target(step *c, client_session *s) {
  msg m = message_to(c, s->target.peer, MSG_OPEN, s);
  const msg_hello *h = assignment_greeting(c, s->target.peer);
  fill_open(s, &s->target, &m.u.open);
  if (m.u.open.options.context == 0) m.u.open.options.context = h->context_max;
  m.u.open.draft_expected = s->want_draft && !lockstep_alone(s);
  s->target.sent_us = c->now;
  s->target.opened = false;
  s->state = SESSIONS_OPENING;
  actions_send(c->out, s->target.peer, &m);
}

/* At which address a draft reaches this session's target, into out[WIRE_STRING_MAX + 1]; false, and why not,
 * in *e. */
static bool reaches(step *c, const client_session *s, const roster_peer *draft, char *out, err *e) {
  const roster_peer *t = roster_find(&c->o->roster, s->target.peer);
  return t && place_resolve(t->endpoint, &t->hello.seen, &draft->hello.seen, out, e) == ERR_OK;
}

/* It is there still, or may come back: nobody would end the session there later. */
static void draft_dismiss(step *c, client_session *s) {
  msg m = message_to(c, s->draft.peer, MSG_END, s);
  actions_send(c->out, s->draft.peer, &m);
}

static void draft_gone(client_session *s, const char *why) {
  s->draft = (seat){.ended = true};
  snprintf(s->draft_note, sizeof s->draft_note, "%s", why);
}

/* What happens to one session happens to all: the log has it once. */
static void tell_trouble(step *c, const client_session *s, const char *what, const char *why) {
  sessions_machine *o = c->o;
  if (strcmp(o->trouble, what) == 0 && c->now - o->trouble_us < SESSIONS_TROUBLE_US) return;
  snprintf(o->trouble, sizeof o->trouble, "%s", what);
  o->trouble_us = c->now;
  actions_log(c->out, LOG_WARNING, "session %016llx decodes plainly: %s", (unsigned long long)s->id, why);
}

/* It cannot have this draft, or none: whoever is here sits on the wrong host. */
static void no_way(step *c, client_session *s, const char *why) {
  if (s->draft.peer) draft_dismiss(c, s);
  draft_gone(s, why);
  tell_trouble(c, s, why, why);
}

void assignment_open_draft(step *c, client_session *s) {
  const msg_hello *t = assignment_greeting(c, s->target.peer);
  const roster_peer *d = roster_find(&c->o->roster, s->draft.peer);
  err e = {0};
  s->draft.sent_us = c->now;
  s->draft.opened = false;
  if (!t || !d) return; /* it is opened when the session has a target again */
  if (!reaches(c, s, d, s->draft_at, &e)) {
    no_way(c, s, e.text);
    return;
  }
  if (!s->draft_since_us) s->draft_since_us = c->now;
  msg m = message_to(c, s->draft.peer, MSG_OPEN, s);
  fill_open(s, &s->draft, &m.u.open);
  if (m.u.open.options.context == 0) m.u.open.options.context = t->context_max;
  m.u.open.target_endpoint = wire_text(s->draft_at);
  m.u.open.target_incarnation = t->incarnation;
  actions_send(c->out, s->draft.peer, &m);
}

/* --- who serves it --- */

int32_t assignment_load(const sessions_machine *o, const roster_peer *p) {
  int32_t own = 0;
  for (int k = 0; k < SESSIONS_MAX; k++) {
    const client_session *s = o->sessions[k];
    if (s && session_live(s)) own += s->target.peer == p->id || s->draft.peer == p->id;
  }
  return own > p->load ? own : p->load;
}

/* Its context is too short for this session, by its word. */
static bool too_short(const roster_peer *p, const client_session *s) {
  return p->hello.context_max && p->hello.context_max < s->options.context;
}

static bool is_hung(const step *c, peer_id id) {
  for (int i = 0; i < SESSIONS_HUNG_MAX; i++)
    if (c->o->hung[i].peer == id && c->now < c->o->hung[i].until_us) return true;
  return false;
}

static void note_hung(step *c, peer_id id) {
  hung_target *place = c->o->hung;
  for (int i = 0; i < SESSIONS_HUNG_MAX && place->peer != id; i++)
    if (c->o->hung[i].peer == id || c->o->hung[i].until_us < place->until_us) place = &c->o->hung[i];
  *place = (hung_target){id, c->now + SESSIONS_HUNG_US};
}

static void forget_hung(sessions_machine *o, peer_id id) {
  for (int i = 0; i < SESSIONS_HUNG_MAX; i++)
    if (o->hung[i].peer == id) o->hung[i] = (hung_target){0};
}

static peer_id *find_unable(client_session *s, peer_id id) { /* 0: a free place for one */
  for (int i = 0; i < ASSIGNMENT_UNABLE_MAX; i++)
    if (s->unable[i] == id) return &s->unable[i];
  return NULL;
}

/* The worker of a role that serves this session best, or 0. One that is unable is never asked again. A target
 * that has refused it, or would, or hangs is asked where there is no other; a draft is not. *willing (may be
 * NULL): it is none of these, and has room. *why (may be NULL) is set where one is on the wrong host. */
static peer_id choose(step *c, client_session *s, wire_role role, bool *willing, err *why) {
  const sessions_machine *o = c->o;
  bool draft = role == WIRE_ROLE_DRAFT, any_numerics = draft || !s->decoded;
  peer_id refused = draft ? s->draft_avoid : s->target_avoid;
  char at[WIRE_STRING_MAX + 1];
  worker_choice_worker list[ROSTER_MAX];
  peer_id ids[ROSTER_MAX];
  int32_t count = 0;
  for (int i = 0; i < o->roster.top; i++) {
    const roster_peer *p = &o->roster.list[i];
    if (!p->id || !p->greeted || p->lost || p->leaving || p->hello.role != role) continue;
    if (find_unable(s, p->id)) continue;
    if (draft && (p->id == refused || !reaches(c, s, p, at, why))) continue;
    ids[count] = p->id;
    list[count++] = (worker_choice_worker){
        .load = assignment_load(o, p),
        .held = prefix_affinity_held(&o->read, p->id, s->committed.tokens, s->committed.length),
        .places = p->hello.session_max,
        .alike = any_numerics || strcmp(s->numerics, p->numerics) == 0,
        .refused = p->id == refused || is_hung(c, p->id) || (!draft && too_short(p, s))};
  }
  int32_t best = worker_choice_best(list, count);
  if (willing)
    *willing =
        best >= 0 && !list[best].refused && (!list[best].places || list[best].load < list[best].places);
  return best < 0 ? 0 : ids[best];
}

/* False: it could not be recorded, so nothing may be sent in it; the session has ended. */
static bool take_epoch(step *c, client_session *s, uint32_t epoch) {
  ledger *l = &c->o->options.ledger;
  if (l->epoch(l->self, s->id, epoch) == ERR_OK) {
    s->epoch = epoch;
    return true;
  }
  assignment_finish(c, s, WIRE_FINISH_ERROR, ERR_IO,
                    "the ledger could not take a new epoch: the answer ends here", false);
  return false;
}

static bool may_place_draft(step *c, client_session *s) {
  if (!s->want_draft || s->draft.peer || !s->target.peer) return false;
  if (s->draft_again_us && c->now >= s->draft_again_us) {
    s->draft_again_us = s->draft_avoid = 0;
    s->draft_refusals = 0;
  }
  bool again = s->draft_placed_us &&
               c->now - s->draft_placed_us < SESSIONS_REPEAT_US; /* one that starts again and again */
  return s->draft_refusals < REFUSALS_MAX && !again;
}

static bool next_epoch(step *c, client_session *s) {
  return take_epoch(c, s, s->epoch + 1);
}

static void place_draft(step *c, client_session *s) {
  err why = {0};
  if (!may_place_draft(c, s)) return;
  peer_id id = choose(c, s, WIRE_ROLE_DRAFT, NULL, &why);
  if (!id && why.code && !s->draft_avoid) no_way(c, s, why.text);
  if (!id) return;
  s->draft = (seat){.peer = id};
  s->draft_repairs = 0;
  s->draft_placed_us = c->now;
  s->draft_note[0] = 0;
  assignment_text(s->method, assignment_greeting(c, id)->method);
  assignment_open_draft(c, s);
}

int32_t assignment_logged(const sessions_machine *o, const client_session *s) {
  int32_t n = o->options.ledger.durable(o->options.ledger.self, s->id);
  return n < s->committed.length ? n : s->committed.length;
}

static void no_target(step *c, client_session *s) {
  uint64_t limit = c->o->options.target_wait_us;
  char text[WIRE_STRING_MAX + 1];
  if (c->now - s->waiting_us < limit) return;
  snprintf(text, sizeof text, "no target worker could take the session within %llu s: start tandem-target",
           (unsigned long long)(limit / 1000000));
  assignment_fail(c, s, ERR_TIMEOUT, text);
}

/* Who needs much room would never get it if those who need little went first. Where answers of ours are under
 * way, room will come, however long that takes. */
static bool waits_for_room(step *c, client_session *s) {
  bool behind = false, room_comes = false;
  for (int i = 0; i < SESSIONS_MAX; i++) {
    const client_session *other = c->o->sessions[i];
    if (!other || other == s || !session_live(other)) continue;
    behind |= other->no_room && other->number < s->number;
    room_comes |= other->target.opened;
  }
  if (behind || (s->no_room && room_comes)) s->waiting_us = c->now;
  return behind;
}

void assignment_room_made(sessions_machine *o) {
  for (int i = 0; i < SESSIONS_MAX; i++)
    if (o->sessions[i] && o->sessions[i]->no_room) o->sessions[i]->retry_us = 0;
}

static void place_target(step *c, client_session *s) {
  if (c->now >= s->retry_us) s->retry_us = 0;
  peer_id id = waits_for_room(c, s) || s->retry_us ? 0 : choose(c, s, WIRE_ROLE_TARGET, NULL, NULL);
  if (!id) {
    no_target(c, s);
    return;
  }
  s->target = (seat){.peer = id};
  s->opening_us = c->now;
  s->draft_since_us = 0;
  assignment_open_target(c, s);
  assignment_alive(c, s, false);
  if (!s->draft.peer) return;
  s->draft.base = s->committed.length;
  assignment_open_draft(c, s);
}

void assignment_place(step *c, client_session *s) {
  if (!session_live(s)) return;
  if (!s->begun) {
    s->begun = assignment_logged(c->o, s) > 0;
    s->waiting_us = c->now; /* for a target only from now on */
    if (!s->begun || (s->epoch > 1 && !take_epoch(c, s, s->epoch)))
      return; /* > 1: it goes on, here or by now elsewhere */
  }
  if (!s->target.peer) place_target(c, s);
  place_draft(c, s);
}

/* --- out of step, lost --- */

void assignment_target_lost(step *c, client_session *s, uint64_t retry_us) {
  session_stats_leave(&s->counted, s->target.peer, s->committed.length);
  s->target = (seat){.ended = true};
  s->state = SESSIONS_WAITING;
  s->waiting_us = c->now;
  s->retry_us = retry_us;
  if (next_epoch(c, s)) assignment_place(c, s);
}

bool assignment_target_unable(step *c, client_session *s) {
  peer_id *place = find_unable(s, 0);
  if (!place) return false;
  *place = s->target.peer;
  if (!choose(c, s, WIRE_ROLE_TARGET, NULL, NULL)) return false;
  assignment_target_lost(c, s, 0);
  return true;
}

/* --- a target that hangs --- */

void assignment_alive(step *c, client_session *s, bool tokens) {
  if (tokens) forget_hung(c->o, s->target.peer);
  if (s->quiet_told)
    actions_log(c->out, LOG_INFO, "session %016llx: its target goes on", (unsigned long long)s->id);
  s->quiet_told = false;
  s->quiet_until_us = c->now + s->quiet_us;
}

bool assignment_leave_hung(step *c, client_session *s) {
  bool willing;
  peer_id old = s->target.peer;
  note_hung(c, old);
  choose(c, s, WIRE_ROLE_TARGET, &willing, NULL);
  if (!willing) return false;
  actions_log(c->out, LOG_WARNING, "session %016llx: its target hangs: it goes on elsewhere from token %d",
              (unsigned long long)s->id, s->committed.length);
  if (s->quiet_us < SESSIONS_QUIET_MAX_US) s->quiet_us *= SESSIONS_QUIET_GROWTH; /* until a token comes */
  s->quiet_told = false;
  assignment_target_lost(c, s, 0);
  msg end = message_to(c, old, MSG_END, s); /* of the new epoch; its lease does the rest */
  actions_send(c->out, old, &end);
  return true;
}

static void draft_lost(step *c, client_session *s, const char *why) {
  draft_gone(s, why);
  actions_log(c->out, LOG_WARNING, "session %016llx decodes plainly: %s", (unsigned long long)s->id, why);
  place_draft(c, s);
  if (!lockstep_alone(s) || !s->target.peer) return;
  s->opening_us = c->now;
  assignment_open_target(c, s); /* the same epoch: all that is new is that no draft is expected */
}

#define ASTRAY_US 3000000 /* a draft says so after this time */

/* told: by the draft, which has tried for that long, perhaps for other sessions. Else it may only be on its
 * way. */
static void astray_text(step *c, const client_session *s, bool told, char text[WIRE_STRING_MAX + 1]) {
  uint64_t us = c->now - s->draft_since_us;
  if (told && us < ASTRAY_US) us = ASTRAY_US;
  int n = snprintf(text, WIRE_STRING_MAX + 1,
                   "a draft is here, but has not reached the target at %.300s for %.1f s", s->draft_at,
                   (double)us / 1e6);
  if (us >= ASTRAY_US)
    snprintf(
        text + n, WIRE_STRING_MAX + 1 - (size_t)n,
        ": let its host connect to that address, or start the target with another --bind or --advertise");
}

void assignment_draft_astray(step *c, client_session *s) {
  char text[WIRE_STRING_MAX + 1];
  astray_text(c, s, true, text);
  s->draft_avoid = s->draft.peer;
  s->draft_refusals++;
  s->draft_again_us = c->now + SESSIONS_DRAFT_AGAIN_US;
  draft_dismiss(c, s);
  draft_gone(s, text);
  tell_trouble(c, s, s->draft_at, text);
  place_draft(c, s);
}

void assignment_explain_unattached(step *c, client_session *s) {
  if (s->draft.peer && s->draft.opened)
    astray_text(c, s, false, s->draft_note);
  else if (s->draft.peer)
    snprintf(s->draft_note, sizeof s->draft_note, "a draft is here, but did not take the session in time");
  else if (s->draft_again_us)
    astray_text(c, s, true, s->draft_note);
  else if (!s->draft_note[0])
    snprintf(s->off_reason, sizeof s->off_reason, "there is no draft worker: start tandem-draft");
}

void assignment_draft_refused(step *c, client_session *s, const char *why) {
  s->draft_avoid = s->draft.peer;
  s->draft_refusals++;
  draft_dismiss(c, s);
  s->draft_placed_us = 0; /* another one at once: refusals are counted */
  draft_lost(c, s, why);
}

void assignment_repair(step *c, client_session *s, int32_t length, hash16 hash) {
  if (++s->repairs > SESSIONS_DESYNC_MAX) {
    assignment_fail(c, s, ERR_DESYNC, "the target was out of step too often: see its log");
    return;
  }
  bool shared = length >= 1 && prefix_has(&s->committed, length, hash);
  if (!next_epoch(c, s)) return;
  s->waiting_us = s->opening_us = c->now;
  s->target.base = shared ? length : 0;
  assignment_open_target(c, s);
  s->draft_repairs = 0;
  if (!s->draft.peer) return;
  s->draft.base = s->committed.length;
  assignment_open_draft(c, s);
}

void assignment_worker_lost(step *c, peer_id id, const char *why) {
  forget_hung(c->o, id);
  for (int i = 0; i < SESSIONS_MAX; i++) {
    client_session *s = c->o->sessions[i];
    if (!s) continue;
    if (s->target_avoid == id) { /* who comes back there has not refused anything */
      s->no_room = false;
      s->target_avoid = 0;
    }
    if (s->draft_avoid == id) s->draft_avoid = 0;
    if (find_unable(s, id)) *find_unable(s, id) = 0;
    if (!session_live(s)) {
      if (s->target.peer == id) s->target.ended = true;
      if (s->draft.peer == id) s->draft.ended = true;
      assignment_end_if_told(s);
      continue;
    }
    const roster_peer *p = roster_find(&c->o->roster, id);
    if (s->draft.peer == id && p && p->lost) draft_dismiss(c, s);
    if (s->draft.peer == id) draft_lost(c, s, why);
    if (s->target.peer != id) continue;
    actions_log(c->out, LOG_WARNING,
                "session %016llx: its target was lost: it goes on elsewhere from token %d",
                (unsigned long long)s->id, s->committed.length);
    bool again = s->lost_us && c->now - s->lost_us < SESSIONS_REPEAT_US; /* one that starts again and again */
    s->lost_us = c->now;
    assignment_target_lost(c, s, again ? c->now + SESSIONS_REPEAT_US : 0);
  }
}
