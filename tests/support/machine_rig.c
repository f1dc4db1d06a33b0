#include "tests/support/machine_rig.h"

void rig_init(rig *r, machine m) {
  *r = (rig){.m = m, .now = RIG_START};
  actions_init(&r->out);
}

void rig_fini(rig *r) {
  assert_int_equal(r->out.lost, 0);
  actions_fini(&r->out);
}

void rig_clear(rig *r) {
  actions_reset(&r->out);
}

void rig_event(rig *r, event_kind kind, peer_id peer, uint64_t tag, const msg *m, const void *result) {
  event e = {.kind = kind, .peer = peer, .tag = tag, .message = m, .result = result};
  r->m.step(r->m.self, &e, r->now, &r->out);
}

void rig_say(rig *r, peer_id from, msg m) {
  rig_event(r, EVENT_MESSAGE, from, 0, &m, NULL);
}

void rig_connected(rig *r, uint64_t tag, peer_id peer) {
  rig_event(r, EVENT_CONNECTED, peer, tag, NULL, NULL);
}

void rig_advance(rig *r, uint64_t us) {
  uint64_t end = r->now + us;
  int32_t ticks = 0, stuck = 0;
  for (;;) {
    uint64_t next = r->m.deadline(r->m.self);
    if (next > end) break;
    stuck = next > r->now ? 0 : stuck + 1;
    if (next > r->now) r->now = next;
    if (++ticks > RIG_TICKS_MAX || stuck > RIG_STUCK_MAX) {
      fail_msg("the machine spins: %d ticks, %d of them at one moment", (int)ticks, (int)stuck);
    }
    r->ticks++;
    rig_event(r, EVENT_TICK, 0, 0, NULL, NULL);
    if (r->after) r->after(r->context);
  }
  r->now = end;
  rig_event(r, EVENT_TICK, 0, 0, NULL, NULL);
  if (r->after) r->after(r->context);
}

/* --- what went out since rig_clear --- */

int32_t rig_count(const rig *r, peer_id to, msg_type type) {
  int32_t n = 0;
  for (int32_t i = 0; i < r->out.count; i++) {
    const action *a = &r->out.list[i];
    n += a->kind == ACTION_SEND && (to == RIG_ANY || a->peer == to) && a->message->type == type;
  }
  return n;
}

int32_t rig_count_all(const rig *r, peer_id to) {
  int32_t n = 0;
  for (int32_t i = 0; i < r->out.count; i++) {
    n += r->out.list[i].kind == ACTION_SEND && (to == RIG_ANY || r->out.list[i].peer == to);
  }
  return n;
}

const msg *rig_peek(const rig *r, peer_id to, msg_type type, int32_t n) {
  for (int32_t i = 0; i < r->out.count; i++) {
    const action *a = &r->out.list[i];
    if (a->kind == ACTION_SEND && (to == RIG_ANY || a->peer == to) && a->message->type == type && n-- == 0) {
      return a->message;
    }
  }
  return NULL;
}

const msg *rig_last(const rig *r, peer_id to, msg_type type) {
  int32_t n = rig_count(r, to, type);
  if (n == 0) fail_msg("no %s to peer %d", msg_name(type), (int)to);
  return rig_peek(r, to, type, n - 1);
}

const msg *rig_only(const rig *r, peer_id to, msg_type type) {
  int32_t n = rig_count(r, to, type);
  if (n != 1) fail_msg("%d %s to peer %d, want 1", (int)n, msg_name(type), (int)to);
  return rig_peek(r, to, type, 0);
}

void rig_expect_error(const rig *r, peer_id to, int code) {
  const msg *m = rig_only(r, to, MSG_ERROR);
  if (m->u.error.code != code) {
    fail_msg("ERROR(%s) \"%.*s\", want %s", err_name(m->u.error.code), (int)m->u.error.text.size,
             m->u.error.text.data, err_name(code));
  }
  assert_true(m->u.error.text.size > 0);
}

const action *rig_connect_asked(const rig *r) {
  for (int32_t i = 0; i < r->out.count; i++) {
    if (r->out.list[i].kind == ACTION_CONNECT) return &r->out.list[i];
  }
  return NULL;
}

int32_t rig_logged(const rig *r, const char *part) {
  int32_t n = 0;
  for (int32_t i = 0; i < r->out.count; i++)
    n += r->out.list[i].kind == ACTION_LOG && strstr(r->out.list[i].text, part) != NULL;
  return n;
}

int32_t rig_place(const rig *r, peer_id to, msg_type type) {
  for (int32_t i = 0; i < r->out.count; i++) {
    const action *a = &r->out.list[i];
    if (a->kind == ACTION_SEND && (to == RIG_ANY || a->peer == to) && a->message->type == type) return i;
  }
  return -1;
}

/* --- messages --- */

wire_id id_of(uint8_t n) {
  wire_id id = {{n, 0x55}};
  return id;
}

msg message(msg_type type, wire_id to, uint64_t id, uint32_t epoch) {
  return (msg){.type = type, .to = to, .session = id, .epoch = epoch};
}

msg hello_message(msg_type type, wire_role role, wire_id incarnation) {
  msg m = {.type = type};
  m.u.hello = (msg_hello){.version_min = WIRE_VERSION_MIN,
                          .version_max = WIRE_VERSION_MAX,
                          .role = role,
                          .incarnation = incarnation};
  return m;
}

msg ping_message(msg_type type, wire_id to, uint64_t sequence, uint64_t time_us, int32_t load) {
  msg m = message(type, to, 0, 0);
  m.u.ping = (msg_ping){sequence, time_us, load};
  return m;
}

msg error_message(wire_id to, uint64_t id, uint32_t epoch, int code) {
  msg m = message(MSG_ERROR, to, id, epoch);
  m.u.error = (msg_error){code, wire_text("made by a test")};
  return m;
}

msg state_message(msg_type type, wire_id to, uint64_t id, uint32_t epoch, int32_t length, hash16 hash) {
  msg m = message(type, to, id, epoch);
  m.u.state = (msg_state){.length = length, .hash = hash};
  return m;
}

msg tokens_message(wire_id to, uint64_t id, uint32_t epoch, int32_t base, const int32_t *tokens,
                   int32_t count, hash16 hash) {
  msg m = message(MSG_TOKENS, to, id, epoch);
  m.u.tokens = (msg_tokens){.base_length = base, .tokens = tokens, .token_count = count, .hash = hash};
  return m;
}

msg resend_message(wire_id to, uint64_t id, uint32_t epoch, int32_t from) {
  msg m = message(MSG_RESEND, to, id, epoch);
  m.u.resend.from = from;
  return m;
}

hash16 hash_of(uint64_t seed, const int32_t *tokens, int32_t count) {
  hash16 h = {{0}};
  for (int32_t i = 0; i < count; i++) h = hash_next(h, seed, tokens[i]);
  return h;
}

bool text_has(wire_string s, const char *part) {
  char buffer[WIRE_STRING_MAX + 1] = {0};
  memcpy(buffer, s.data, s.size);
  return strstr(buffer, part) != NULL;
}

bool text_is(wire_string s, const char *all) {
  return s.size == strlen(all) && memcmp(s.data, all, s.size) == 0;
}
