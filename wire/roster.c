#include "wire/roster.h"

#include "common/base/log.h"
#include "wire/keys.h"
#include "wire/target_endpoint.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void roster_init(roster *r, const msg_hello *self) {
  memset(r, 0, sizeof *r);
  r->self = *self;
  r->self.version_min = WIRE_VERSION_MIN;
  r->self.version_max = WIRE_VERSION_MAX;
}

roster_peer *roster_find(roster *r, peer_id id) {
  for (int i = 0; id && i < r->top; i++)
    if (r->list[i].id == id) return &r->list[i];
  return NULL;
}

bool roster_colocated(roster *r, peer_id id) {
  const roster_peer *q = roster_find(r, id);
  return q && q->greeted && msg_colocated(&r->self, &q->hello);
}

bool roster_beside(roster *r, peer_id id) {
  const roster_peer *q = roster_find(r, id);
  return q && q->greeted && msg_beside(&r->self, &q->hello);
}

uint32_t roster_version(roster *r, peer_id id) {
  const roster_peer *q = roster_find(r, id);
  if (!q || !q->greeted) return 0;
  return q->hello.version_max < WIRE_VERSION_MAX ? q->hello.version_max : WIRE_VERSION_MAX;
}

static bool is_guest(const roster_peer *q, wire_role role) {
  return q->id && !q->calls && q->hello.role == role;
}

static bool drafts_full(const roster *r) {
  int32_t count = 0;
  for (int i = 0; i < r->top; i++) count += is_guest(&r->list[i], WIRE_ROLE_DRAFT);
  return count >= ROSTER_DRAFTS_MAX;
}

/* Returns a free entry, or else that of the peer that has been lost for longest. A connection of our own
 * keeps its entry, because only we would greet it again. When there are ROSTER_DRAFTS_MAX drafts, a further
 * one can only replace a lost draft. */
static roster_peer *take(roster *r, peer_id id, wire_role role, uint64_t now_us) {
  roster_peer *entry = NULL;
  bool drafts_only = role == WIRE_ROLE_DRAFT && drafts_full(r);
  for (int i = 0; i < ROSTER_MAX && (!entry || entry->id); i++) {
    roster_peer *q = &r->list[i];
    if (drafts_only && !is_guest(q, WIRE_ROLE_DRAFT)) continue;
    if (!q->id || (q->lost && !q->calls && (!entry || q->received_us < entry->received_us))) entry = q;
  }
  if (!entry) return NULL;
  *entry = (roster_peer){.id = id, .received_us = now_us, .ping_us = now_us};
  if (r->top <= entry - r->list) r->top = (int32_t)(entry - r->list) + 1;
  return entry;
}

static msg message_for(const roster_peer *to, msg_type type, uint64_t session, uint32_t epoch) {
  msg m;
  memset(&m, 0, sizeof m);
  m.type = type;
  if (to && to->greeted) m.to = to->hello.incarnation;
  m.session = session;
  m.epoch = epoch;
  return m;
}

msg roster_message(roster *r, peer_id to, msg_type type, uint64_t session, uint32_t epoch) {
  return message_for(roster_find(r, to), type, session, epoch);
}

msg roster_state(roster *r, peer_id to, msg_type type, uint64_t session, uint32_t epoch, const prefix *held,
                 const char *reason) {
  msg m = roster_message(r, to, type, session, epoch);
  if (held) m.u.state = (msg_state){.length = held->length, .hash = prefix_hash(held)};
  m.u.state.reason = wire_text(reason);
  return m;
}

void roster_error(roster *r, peer_id to, uint64_t session, uint32_t epoch, int code, actions *out,
                  const char *format, ...) {
  char text[ERR_TEXT_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  msg m = roster_message(r, to, MSG_ERROR, session, epoch);
  m.u.error = (msg_error){code, wire_text(text)};
  actions_send(out, to, &m);
}

void roster_refuse(roster *r, peer_id from, const msg *m, int code, const char *text, actions *out) {
  roster_error(r, from, m->session, m->epoch, code, out, "%s", text);
}

#define LOG_BURST    16 /* lines that one peer causes, and then one in */
#define LOG_EVERY_US 1000000
#define LOG_ALL_BURST                                                                                        \
  (2 * ROSTER_MAX) /* lines of all peers, and of whoever comes once and never again: a full house may come   \
                      and go */
#define LOG_ALL_EVERY_US 500000

bool roster_log(roster *r, peer_id cause, uint64_t now_us, int level, actions *out, const char *format, ...) {
  roster_peer *q = roster_find(r, cause);
  if (q && !log_limit_takes(&q->log, now_us, LOG_BURST, LOG_EVERY_US)) return false;
  uint64_t left_out = r->log.left_out + (q ? q->log.left_out : 0);
  if (!log_limit_takes(&r->log, now_us, LOG_ALL_BURST, LOG_ALL_EVERY_US)) return false;
  char text[ERR_TEXT_MAX + WIRE_BRIEF_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (left_out == 0)
    actions_log(out, level, "%s", text);
  else
    actions_log(out, level, "%s (%llu more lines about peers were left out)", text,
                (unsigned long long)left_out);
  r->log.left_out = 0;
  if (q) q->log.left_out = 0;
  return true;
}

static void send_hello(roster *r, roster_peer *q, uint64_t now_us, actions *out) {
  msg m = message_for(NULL, MSG_HELLO, 0, 0);
  m.u.hello = r->self;
  q->hello_us = now_us;
  actions_send(out, q->id, &m);
}

roster_peer *roster_connected(roster *r, peer_id id, uint64_t now_us, actions *out) {
  roster_peer *q = take(r, id, WIRE_ROLE_ORCHESTRATOR, now_us);
  if (!q) {
    actions_log(out, LOG_ERROR, "more than %d connections: this one is refused", ROSTER_MAX);
    actions_disconnect(out, id);
    return NULL;
  }
  q->calls = true;
  send_hello(r, q, now_us, out);
  return q;
}

void roster_drop(roster *r, peer_id id) {
  roster_peer *q = roster_find(r, id);
  if (q) *q = (roster_peer){0};
}

static void copy_string(char *out, wire_string *s) {
  if (s->size) memcpy(out, s->data, s->size);
  out[s->size] = 0;
  s->data = out;
}

/* Keeps who they are: the message's strings do not outlive it. */
static void remember(roster_peer *q, const msg_hello *h) {
  q->hello = *h;
  copy_string(q->numerics, &q->hello.numerics_id);
  copy_string(q->endpoint, &q->hello.endpoint);
  copy_string(q->method, &q->hello.method);
  copy_string(q->device, &q->hello.device);
  q->greeted = true;
  q->lost = q->leaving = false;
  q->ended_us = 0;
}

/* Two hashes of the same thing; zero: does not say. A target must say what it computes with. */
static bool hashes_differ(hash16 theirs, hash16 ours, bool must_say) {
  if (hash_is_zero(ours) || (hash_is_zero(theirs) && !must_say)) return false;
  return !hash_equal(theirs, ours);
}

static bool vocabularies_differ(const msg_hello *theirs, const msg_hello *ours, bool must_say) {
  bool says = theirs->vocabulary_size || must_say;
  return hashes_differ(theirs->vocabulary_hash, ours->vocabulary_hash, must_say) ||
         (says && ours->vocabulary_size && theirs->vocabulary_size != ours->vocabulary_size);
}

/* What a program may be is told by its key alone. */
static int check_role(const msg_hello *h, err *e) {
  if (!h->roles || (h->roles & KEYS_ROLE(h->role))) return ERR_OK;
  return err_set(e, ERR_DENIED,
                 "a program says that it is a %s, but the list of allowed keys has its key for another role: "
                 "start it with the key of a %s, or add a line for this one",
                 keys_role_name(h->role), keys_role_name(h->role));
}

/* Can we work together? */
static int check_hello(const roster *r, const msg_hello *h, err *e) {
  bool target = h->role == WIRE_ROLE_TARGET && r->self.role == WIRE_ROLE_ORCHESTRATOR;
  bool both_load =
      h->role != WIRE_ROLE_DRAFT && r->self.role != WIRE_ROLE_DRAFT; /* a draft's model is its own */
  if (check_role(h, e) != ERR_OK) return e->code;
  if (h->version_min > WIRE_VERSION_MAX || h->version_max < WIRE_VERSION_MIN)
    return err_set(
        e, ERR_VERSION,
        "protocol versions %u-%u are not spoken here, only %d-%d: install the same release on both sides",
        h->version_min, h->version_max, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
  if (vocabularies_differ(h, &r->self, target))
    return err_set(e, ERR_MISMATCH,
                   "vocabulary mismatch (%d tokens there, %d here): start both with the same model file",
                   h->vocabulary_size, r->self.vocabulary_size);
  if (both_load && hashes_differ(h->model_fingerprint, r->self.model_fingerprint, target))
    return err_set(e, ERR_MISMATCH, "another model is served here: start both with the same model file");
  if (target && h->endpoint.size == 0)
    return err_set(e, ERR_ARG,
                   "this target names no address for drafts: start it with --bind or --advertise");
  return ERR_OK;
}

/* --- who is who --- */

static void ping(roster_peer *q, uint64_t now_us, actions *out) {
  msg m = message_for(q, MSG_PING, 0, 0);
  m.u.ping = (msg_ping){.sequence = ++q->ping_sequence, .time_us = now_us};
  q->ping_us = now_us;
  actions_send(out, q->id, &m);
}

/* The incarnation names one program, and a target's address leads to one. A draft may have two connections
 * for a while: nothing but its own attachments hangs on them. */
bool roster_claims_identity(const msg_hello *h, const roster_peer *q) {
  bool both_drafts = h->role == WIRE_ROLE_DRAFT && q->hello.role == WIRE_ROLE_DRAFT;
  char endpoint[WIRE_STRING_MAX + 1];
  wire_string own = h->endpoint;
  copy_string(endpoint, &own);
  bool address = h->endpoint.size && q->hello.role == h->role &&
                 target_endpoint_same(endpoint, &h->seen, q->endpoint, &q->hello.seen);
  return address || (wire_id_equal(h->incarnation, q->hello.incarnation) && !both_drafts);
}

typedef enum { CLAIM_GOOD, CLAIM_PENDING, CLAIM_TAKEN } claim; /* PENDING: the next HELLO decides */

/* Who claims the identity of another must wait for a HELLO's time: the PING tells whether the one who has it
 * lives. */
static claim judge_rival(roster_peer *q, uint64_t now_us, actions *out) {
  if (!q->checked_us || now_us - q->checked_us >= 2 * ROSTER_HELLO_US) {
    q->checked_us = now_us;
    ping(q, now_us, out);
    return CLAIM_PENDING;
  }
  if (q->received_us > q->checked_us) return CLAIM_TAKEN;
  return now_us - q->checked_us < ROSTER_DOUBT_US ? CLAIM_PENDING : CLAIM_GOOD;
}

static claim judge_claim(roster *r, peer_id id, const msg_hello *h, uint64_t now_us, actions *out) {
  claim worst = CLAIM_GOOD;
  for (int i = 0; i < r->top; i++) {
    roster_peer *q = &r->list[i];
    if (!q->id || q->id == id || !q->greeted || q->lost || q->calls || !roster_claims_identity(h, q))
      continue;
    claim c = q->hello.role == h->role ? judge_rival(q, now_us, out) : CLAIM_TAKEN;
    if (c > worst) worst = c;
  }
  return worst;
}

static bool refused_before(const roster *r, wire_id incarnation, int code) {
  for (int i = 0; i < ROSTER_REFUSALS_MAX; i++)
    if (r->refusals[i].code == code && wire_id_equal(r->refusals[i].incarnation, incarnation)) return true;
  return false;
}

/* HELLO is repeated all the time: it is refused every time and logged once. */
static void refuse_hello(roster *r, peer_id id, const msg_hello *h, int code, const char *text,
                         uint64_t now_us, actions *out) {
  roster_error(r, id, 0, 0, code, out, "%s", text);
  if (refused_before(r, h->incarnation, code)) return;
  if (!roster_log(r, id, now_us, LOG_WARNING, out, "a HELLO was refused: %s", text)) return;
  r->refusals[r->refusal_next] = (roster_refusal){h->incarnation, code};
  r->refusal_next = (r->refusal_next + 1) % ROSTER_REFUSALS_MAX;
}

static roster_verdict take_in(roster *r, peer_id id, const msg_hello *h, uint64_t now_us, roster_peer **from,
                              actions *out) {
  err e;
  claim c = judge_claim(r, id, h, now_us, out);
  if (c == CLAIM_PENDING) return ROSTER_HANDLED;
  if (c == CLAIM_TAKEN) {
    err_set(&e, ERR_STATE,
            "another worker that lives has this one's address (%s) or incarnation: give each its own, with "
            "--advertise",
            wire_brief_of(h->endpoint).text);
    refuse_hello(r, id, h, e.code, e.text, now_us, out);
    return ROSTER_HANDLED;
  }
  if (!*from) *from = take(r, id, h->role, now_us);
  if (!*from) {
    bool draft = h->role == WIRE_ROLE_DRAFT;
    err_set(&e, ERR_FULL,
            "no place for one more %s: at most %d programs are taken, %d of them drafts: end some",
            draft ? "draft" : "worker", ROSTER_MAX, ROSTER_DRAFTS_MAX);
    refuse_hello(r, id, h, e.code, e.text, now_us, out);
    return ROSTER_HANDLED;
  }
  remember(*from, h);
  return ROSTER_GREETED;
}

static void welcome(roster *r, const roster_peer *q, const msg_hello *h, actions *out) {
  msg answer = message_for(q, MSG_WELCOME, 0, 0);
  answer.u.hello = r->self;
  uint32_t version = h->version_max < WIRE_VERSION_MAX ? h->version_max : WIRE_VERSION_MAX;
  answer.u.hello.version_min = answer.u.hello.version_max = version;
  if (version < WIRE_VERSION_HASH) answer.u.hello.model_hash = (hash16){{0}};
  actions_send(out, q->id, &answer);
}

static roster_verdict on_hello(roster *r, peer_id id, const msg_hello *h, uint64_t now_us, roster_peer **from,
                               actions *out) {
  roster_peer *q = *from;
  err e;
  if (q && q->greeted && q->hello.role != h->role) {
    q->leaving = true;
    refuse_hello(r, id, h, ERR_PROTOCOL, "a connection keeps the role that its first HELLO named", now_us,
                 out);
    return ROSTER_FORGED;
  }
  int rc = check_hello(r, h, &e);
  if (rc != ERR_OK) { /* whoever was there before is gone */
    roster_drop(r, id);
    refuse_hello(r, id, h, rc, e.text, now_us, out);
    return ROSTER_HANDLED;
  }
  bool again = q && q->greeted && wire_id_equal(q->hello.incarnation, h->incarnation);
  roster_verdict verdict = again ? ROSTER_HANDLED : take_in(r, id, h, now_us, from, out);
  if (again) q->lost = false; /* all else is as it was */
  if (again || verdict == ROSTER_GREETED) welcome(r, *from, h, out);
  return verdict;
}

#define OTHER_MODEL "another model is served there: the files differ; start both with the same model file"

/* A target has read all of its file, and does not serve an orchestrator that has another one, which goes on
 * without it. */
static bool other_model(const roster *r, const roster_peer *q, const msg_hello *h, actions *out) {
  if (!hashes_differ(h->model_hash, r->self.model_hash, false)) return false;
  msg m = message_for(q, MSG_ERROR, 0, 0);
  m.to = h->incarnation;
  m.u.error = (msg_error){ERR_MISMATCH, wire_text(OTHER_MODEL)};
  actions_send(out, q->id, &m);
  return true;
}

wire_brief roster_why_refused(const msg *m) {
  return wire_brief_of(m->type == MSG_ERROR ? m->u.error.text : wire_text(OTHER_MODEL));
}

/* Who sits at the address that we called may be another program than before. */
static roster_verdict on_welcome(roster *r, roster_peer *q, const msg_hello *h, uint64_t now_us,
                                 actions *out) {
  bool again = q->greeted && wire_id_equal(q->hello.incarnation, h->incarnation);
  err e;
  if (check_role(h, &e) != ERR_OK) {
    if (q->refused_code != e.code) roster_log(r, q->id, now_us, LOG_WARNING, out, "%s", e.text);
    q->refused_code = e.code;
    return ROSTER_HANDLED;
  }
  if (other_model(r, q, h, out)) return ROSTER_REFUSED;
  if (again)
    q->lost = false;
  else
    remember(q, h);
  q->refused_code = 0;
  return again ? ROSTER_HANDLED : ROSTER_GREETED;
}

/* Said once: it is asked again all the time. */
static void tell_refusal(roster *r, roster_peer *q, const msg *m, uint64_t now_us, actions *out) {
  if (q->refused_code == m->u.error.code) return;
  q->refused_code = m->u.error.code;
  roster_log(r, q->id, now_us, LOG_WARNING, out,
             "not taken by the program that was called, which is asked again: %s",
             wire_brief_of(m->u.error.text).text);
}

/* Who sends more than WELCOME has greeted us, so its WELCOME was lost: until it comes we can answer nothing,
 * and count as lost where we are in doubt. */
static void ask_welcome(roster *r, roster_peer *q, uint64_t now_us, actions *out) {
  if (now_us - q->hello_us >= ROSTER_ASK_US) send_hello(r, q, now_us, out);
}

/* A target that we have welcomed has another model than we, as it tells. */
static bool target_refuses(const roster *r, const roster_peer *q, const msg *m) {
  return q->greeted && q->hello.role == WIRE_ROLE_TARGET && r->self.role == WIRE_ROLE_ORCHESTRATOR &&
         m->session == 0 && m->u.error.code == ERR_MISMATCH;
}

/* An ERROR is never answered with one: two confused programs would do so for ever. */
static roster_verdict on_error(roster *r, roster_peer *q, const msg *m, uint64_t now_us, actions *out) {
  int code = m->u.error.code;
  if (!q) return ROSTER_HANDLED;
  if (target_refuses(r, q, m)) {
    roster_log(r, q->id, now_us, LOG_WARNING, out, "a target was not taken: %s", roster_why_refused(m).text);
    roster_drop(r, q->id);
    return ROSTER_HANDLED;
  }
  if (!q->greeted && (code == ERR_VERSION || code == ERR_MISMATCH || code == ERR_ARG)) return ROSTER_REFUSED;
  if (!q->greeted && q->calls && code != ERR_PROTOCOL) tell_refusal(r, q, m, now_us, out);
  bool unknown = m->session == 0 && (code == ERR_PROTOCOL || code == ERR_STALE);
  if (unknown && q->calls && now_us - q->hello_us >= ROSTER_HELLO_US) send_hello(r, q, now_us, out);
  return q->greeted ? ROSTER_PASS : ROSTER_HANDLED;
}

static roster_verdict on_greeted(roster_peer *q, const msg *m, int32_t load, actions *out) {
  switch (m->type) {
  case MSG_PING: {
    msg pong = message_for(q, MSG_PONG, 0, 0);
    pong.u.ping = m->u.ping;
    pong.u.ping.load = load;
    actions_send(out, q->id, &pong);
    return ROSTER_HANDLED;
  }
  case MSG_PONG:
    q->load = m->u.ping.load;
    return ROSTER_HANDLED;
  case MSG_BYE:
    q->leaving = true;
    return ROSTER_LEAVES;
  default:
    return ROSTER_PASS;
  }
}

/* How often a peer is asked, so that a step comes at least. */
static uint64_t pace(const roster_peer *q) {
  return q->ended_us && !q->lost ? ROSTER_ASK_US : ROSTER_PING_US;
}

/* A gap that is longer was our own stall (a stopped process, a paused machine), and nobody's silence: what
 * they said meanwhile waits in the sockets. */
static void note_step(roster *r, uint64_t now_us) {
  uint64_t gap = r->stepped_us ? now_us - r->stepped_us : 0;
  r->stepped_us = now_us;
  if (gap >= ROSTER_STALL_US) r->stalled_us = now_us;
  for (int i = 0; i < r->top; i++) {
    roster_peer *q = &r->list[i];
    uint64_t stall = gap > pace(q) ? gap - pace(q) : 0;
    q->received_us += stall;
    if (q->ended_us) q->ended_us += stall;
  }
}

/* The step that asks may be the first one after the stall, and none that the roster has seen. */
bool roster_stalled_since(const roster *r, uint64_t since_us, uint64_t now_us) {
  return r->stalled_us > since_us || (r->stepped_us && now_us - r->stepped_us >= ROSTER_STALL_US);
}

/* What it sent before its connection ended is read just after that. */
static void note_frame(roster_peer *q, uint64_t now_us) {
  q->received_us = now_us;
  if (q->ended_us && now_us - q->ended_us >= ROSTER_ASK_US) q->ended_us = 0;
}

roster_verdict roster_receive(roster *r, peer_id id, const msg *m, int32_t load, uint64_t now_us,
                              roster_peer **from, actions *out) {
  roster_peer *q = *from = roster_find(r, id);
  note_step(r, now_us);
  if (q) note_frame(q, now_us);
  if (m->type == MSG_HELLO && !(q && q->calls)) return on_hello(r, id, &m->u.hello, now_us, from, out);
  if (m->type == MSG_WELCOME && q && q->calls) return on_welcome(r, q, &m->u.hello, now_us, out);
  if (m->type == MSG_ERROR) return on_error(r, q, m, now_us, out);
  if (m->type == MSG_HELLO) {
    roster_error(r, id, 0, 0, ERR_PROTOCOL, out, "HELLO comes from the side that connects");
    return ROSTER_HANDLED;
  }
  if (!q || !q->greeted) {
    if (q && q->calls)
      ask_welcome(r, q, now_us, out);
    else
      roster_error(r, id, 0, 0, ERR_PROTOCOL, out, "say HELLO first");
    return ROSTER_HANDLED;
  }
  if (!wire_id_equal(m->to, r->self.incarnation)) {
    roster_error(r, id, 0, 0, ERR_STALE, out,
                 "this frame is meant for an incarnation that is gone: say HELLO again");
    return ROSTER_HANDLED;
  }
  q->lost = false;
  return on_greeted(q, m, load, out);
}

void roster_disconnected(roster *r, peer_id id, uint64_t now_us, actions *out) {
  roster_peer *q = roster_find(r, id);
  note_step(r, now_us);
  if (!q || !q->greeted || q->lost || q->ended_us) return;
  q->ended_us = now_us;
  ping(q, now_us, out);
}

/* A lost peer that called us calls again when it lives; one that we called is asked. */
static bool pinged(const roster_peer *q) {
  return q->greeted && (!q->lost || q->calls);
}

static uint64_t next_ping(const roster_peer *q) {
  return q->ping_us + pace(q);
}

/* When it counts as lost if nothing is heard of it. */
static uint64_t lost_at(const roster_peer *q) {
  uint64_t silent = q->received_us + ROSTER_LOST_US, ended = q->ended_us + ROSTER_DOUBT_US;
  return q->ended_us && ended < silent ? ended : silent;
}

const char *roster_lost_why(const roster_peer *lost) {
  return lost->ended_us ? "is gone: its connection ended" : "has been silent for 3 s";
}

roster_peer *roster_tick(roster *r, uint64_t now_us, actions *out) {
  note_step(r, now_us);
  for (int i = 0; i < r->top; i++) {
    roster_peer *q = &r->list[i];
    if (!q->id) continue;
    if (!q->greeted && q->calls && now_us - q->hello_us >= ROSTER_HELLO_US) send_hello(r, q, now_us, out);
    if (q->greeted && !q->lost && now_us >= lost_at(q)) {
      q->lost = true;
      return q;
    }
    if (pinged(q) && now_us >= next_ping(q)) ping(q, now_us, out);
  }
  return NULL;
}

static uint64_t peer_deadline(const roster_peer *q) {
  uint64_t at = UINT64_MAX;
  if (!q->greeted && q->calls) at = q->hello_us + ROSTER_HELLO_US;
  if (pinged(q)) at = next_ping(q);
  if (q->greeted && !q->lost && lost_at(q) < at) at = lost_at(q);
  return at;
}

uint64_t roster_deadline(const roster *r) {
  uint64_t first = UINT64_MAX;
  for (int i = 0; i < r->top; i++) {
    if (!r->list[i].id) continue;
    uint64_t at = peer_deadline(&r->list[i]);
    if (at < first) first = at;
  }
  return first;
}

void roster_bye(const roster *r, actions *out) {
  for (int i = 0; i < r->top; i++) {
    const roster_peer *q = &r->list[i];
    if (!q->id || !q->greeted) continue;
    msg bye = message_for(q, MSG_BYE, 0, 0);
    actions_send(out, q->id, &bye);
  }
}
