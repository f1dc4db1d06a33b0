#include "wire/roster.h"

#include "common/base/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

wire_string wire_text(const char *s) {
  size_t n = s ? strlen(s) : 0;
  return (wire_string){s, (uint32_t)(n > WIRE_STRING_MAX ? WIRE_STRING_MAX : n)};
}

bool wire_id_equal(wire_id a, wire_id b) { return memcmp(a.bytes, b.bytes, 16) == 0; }

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

/* A free place, else that of the peer that has been lost for longest; a connection of our own keeps its place,
 * because nobody but us would greet it again. */
static roster_peer *take(roster *r, peer_id id, uint64_t now_us) {
  roster_peer *place = NULL;
  for (int i = 0; i < ROSTER_MAX && (!place || place->id); i++) {
    roster_peer *q = &r->list[i];
    if (!q->id || (q->lost && !q->calls && (!place || q->heard_us < place->heard_us))) place = q;
  }
  if (!place) return NULL;
  *place = (roster_peer){.id = id, .heard_us = now_us, .ping_us = now_us};
  if (r->top <= place - r->list) r->top = (int32_t)(place - r->list) + 1;
  return place;
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

static void send_hello(roster *r, roster_peer *q, uint64_t now_us, actions *out) {
  msg m = message_for(NULL, MSG_HELLO, 0, 0);
  m.u.hello = r->self;
  q->hello_us = now_us;
  actions_send(out, q->id, &m);
}

roster_peer *roster_connected(roster *r, peer_id id, uint64_t now_us, actions *out) {
  roster_peer *q = take(r, id, now_us);
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
  q->greeted = true;
  q->lost = q->leaving = false;
}

/* Can we work together? A zero hash fits any vocabulary. */
static int check_hello(const roster *r, const msg_hello *h, err *e) {
  if (h->version_min > WIRE_VERSION_MAX || h->version_max < WIRE_VERSION_MIN)
    return err_set(e, ERR_VERSION,
                   "protocol versions %u-%u are not spoken here, only %d-%d: install the same release on both sides",
                   h->version_min, h->version_max, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
  bool hash = !hash_is_zero(h->vocabulary_hash) && !hash_is_zero(r->self.vocabulary_hash) &&
              !hash_equal(h->vocabulary_hash, r->self.vocabulary_hash);
  bool size = h->vocabulary_size && r->self.vocabulary_size && h->vocabulary_size != r->self.vocabulary_size;
  bool both_load = h->role != WIRE_ROLE_DRAFT && r->self.role != WIRE_ROLE_DRAFT; /* a draft's model is its own */
  bool model = both_load && !hash_is_zero(h->model_fingerprint) && !hash_is_zero(r->self.model_fingerprint) &&
               !hash_equal(h->model_fingerprint, r->self.model_fingerprint);
  if (hash || size)
    return err_set(e, ERR_MISMATCH, "vocabulary mismatch (%d tokens there, %d here): start both with the same model file",
                   h->vocabulary_size, r->self.vocabulary_size);
  if (model) return err_set(e, ERR_MISMATCH, "another model is served here: start both with the same model file");
  return ERR_OK;
}

static roster_verdict greet(roster *r, peer_id id, const msg *m, uint64_t now_us, roster_peer **from, actions *out) {
  const msg_hello *h = &m->u.hello;
  err e;
  int rc = m->type == MSG_HELLO ? check_hello(r, h, &e) : ERR_OK;
  if (rc != ERR_OK) { /* whoever was there before is gone */
    roster_drop(r, id);
    roster_error(r, id, 0, 0, rc, out, "%s", e.text);
    return ROSTER_HANDLED;
  }
  roster_peer *q = *from ? *from : take(r, id, now_us);
  *from = q;
  if (!q) {
    roster_error(r, id, 0, 0, ERR_FULL, out, "more than %d connections: try again later", ROSTER_MAX);
    return ROSTER_HANDLED;
  }
  bool fresh = !q->greeted || !wire_id_equal(q->hello.incarnation, h->incarnation);
  remember(q, h);
  if (m->type == MSG_HELLO) {
    msg answer = message_for(q, MSG_WELCOME, 0, 0);
    answer.u.hello = r->self;
    uint32_t version = h->version_max < WIRE_VERSION_MAX ? h->version_max : WIRE_VERSION_MAX;
    answer.u.hello.version_min = answer.u.hello.version_max = version;
    actions_send(out, id, &answer);
  }
  return fresh ? ROSTER_GREETED : ROSTER_HANDLED;
}

/* An ERROR is never answered with one: two confused programs would do so for ever. */
static roster_verdict on_error(roster *r, roster_peer *q, const msg *m, uint64_t now_us, actions *out) {
  int code = m->u.error.code;
  if (!q) return ROSTER_HANDLED;
  if (!q->greeted && (code == ERR_VERSION || code == ERR_MISMATCH)) return ROSTER_REFUSED;
  bool unknown = m->session == 0 && (code == ERR_PROTOCOL || code == ERR_STALE);
  if (unknown && q->calls && now_us - q->hello_us >= ROSTER_HELLO_US) send_hello(r, q, now_us, out);
  return q->greeted ? ROSTER_PASS : ROSTER_HANDLED;
}

static roster_verdict on_greeted(roster_peer *q, const msg *m, int32_t load, uint64_t now_us, actions *out) {
  switch (m->type) {
  case MSG_PING: {
    msg pong = message_for(q, MSG_PONG, 0, 0);
    pong.u.ping = m->u.ping;
    pong.u.ping.load = load;
    actions_send(out, q->id, &pong);
    return ROSTER_HANDLED;
  }
  case MSG_PONG:
    if (m->u.ping.sequence == q->ping_sequence) q->round_trip_us = now_us - q->ping_us; /* our own clock's */
    q->load = m->u.ping.load;
    return ROSTER_HANDLED;
  case MSG_BYE: q->leaving = true; return ROSTER_LEAVES;
  default: return ROSTER_PASS;
  }
}

roster_verdict roster_receive(roster *r, peer_id id, const msg *m, int32_t load, uint64_t now_us,
                              roster_peer **from, actions *out) {
  roster_peer *q = *from = roster_find(r, id);
  if (q) q->heard_us = now_us;
  if (m->type == MSG_HELLO || (m->type == MSG_WELCOME && q && q->calls)) return greet(r, id, m, now_us, from, out);
  if (m->type == MSG_ERROR) return on_error(r, q, m, now_us, out);
  if (!q || !q->greeted) {
    if (!q || !q->calls) roster_error(r, id, 0, 0, ERR_PROTOCOL, out, "say HELLO first");
    return ROSTER_HANDLED;
  }
  if (!wire_id_equal(m->to, r->self.incarnation)) {
    roster_error(r, id, 0, 0, ERR_STALE, out, "this frame is meant for an incarnation that is gone: say HELLO again");
    return ROSTER_HANDLED;
  }
  q->lost = false;
  return on_greeted(q, m, load, now_us, out);
}

/* A lost peer that called us calls again when it lives; one that we called is asked. */
static bool pinged(const roster_peer *q) { return q->greeted && (!q->lost || q->calls); }

roster_peer *roster_tick(roster *r, uint64_t now_us, actions *out) {
  for (int i = 0; i < r->top; i++) {
    roster_peer *q = &r->list[i];
    if (!q->id) continue;
    if (!q->greeted && q->calls && now_us - q->hello_us >= ROSTER_HELLO_US) send_hello(r, q, now_us, out);
    if (q->greeted && !q->lost && now_us - q->heard_us >= ROSTER_LOST_US) {
      q->lost = true;
      return q;
    }
    if (pinged(q) && now_us - q->ping_us >= ROSTER_PING_US) {
      msg ping = message_for(q, MSG_PING, 0, 0);
      ping.u.ping = (msg_ping){.sequence = ++q->ping_sequence, .time_us = now_us};
      q->ping_us = now_us;
      actions_send(out, q->id, &ping);
    }
  }
  return NULL;
}

static uint64_t peer_deadline(const roster_peer *q) {
  uint64_t at = UINT64_MAX;
  if (!q->greeted && q->calls) at = q->hello_us + ROSTER_HELLO_US;
  if (pinged(q)) at = q->ping_us + ROSTER_PING_US;
  if (q->greeted && !q->lost && q->heard_us + ROSTER_LOST_US < at) at = q->heard_us + ROSTER_LOST_US;
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
