/* libs: wire speculative base */
#include "tests/support/machine_rig.h"

#include "common/base/log.h"
#include "wire/keys.h"

enum { PEER = 7, OTHER = 8, THIRD = 9 };
#define SELF_ID  id_of(1)
#define PEER_ID  id_of(2)
#define AGAIN_ID id_of(3)

typedef struct world {
  rig r; /* no machine: only its clock and its actions */
  roster table;
} world;

static hash16 some_hash(uint8_t n) {
  hash16 h = {{n, 1, 2, 3}};
  return h;
}

static int set_up(void **state) {
  world *w = calloc(1, sizeof *w);
  msg_hello self = hello_message(MSG_HELLO, WIRE_ROLE_TARGET, SELF_ID).u.hello;
  self.model_fingerprint = some_hash(10);
  self.vocabulary_hash = some_hash(20);
  self.vocabulary_size = 100;
  self.numerics_id = wire_text("cpu-test");
  self.endpoint = wire_text("tcp://127.0.0.1:4000");
  self.session_max = 4;
  roster_init(&w->table, &self);
  rig_init(&w->r, (machine){0});
  *state = w;
  return 0;
}

static int tear_down(void **state) {
  world *w = *state;
  rig_fini(&w->r);
  free(w);
  return 0;
}

static roster_verdict hear(world *w, peer_id peer, msg m) {
  roster_peer *from = NULL;
  roster_verdict v = roster_receive(&w->table, peer, &m, 3, w->r.now, &from, &w->r.out);
  if (v == ROSTER_PASS || v == ROSTER_GREETED || v == ROSTER_LEAVES) {
    assert_non_null(from);
    assert_int_equal(from->id, peer);
    assert_true(from->greeted);
  }
  return v;
}

static msg peer_hello(void) {
  return hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, PEER_ID);
}

static void greet(world *w) {
  assert_int_equal(hear(w, PEER, peer_hello()), ROSTER_GREETED);
  rig_clear(&w->r);
}

static int32_t ticks_lost(world *w) {
  int32_t lost = 0;
  while (roster_tick(&w->table, w->r.now, &w->r.out)) assert_true(++lost < ROSTER_MAX + 1);
  return lost;
}

/* The time passes as in a program: with a step at every deadline. Returns how many were lost. */
static int32_t pass(world *w, uint64_t us) {
  uint64_t end = w->r.now + us;
  int32_t lost = 0;
  for (uint64_t at; (at = roster_deadline(&w->table)) <= end;) {
    if (at > w->r.now) w->r.now = at;
    lost += ticks_lost(w);
    assert_true(roster_deadline(&w->table) > w->r.now); /* or the program would spin */
  }
  w->r.now = end;
  return lost + ticks_lost(w);
}

/* --- greeting --- */

static void test_hello_is_welcomed(void **state) {
  world *w = *state;
  assert_int_equal(hear(w, PEER, peer_hello()), ROSTER_GREETED);
  const msg *m = rig_only(&w->r, PEER, MSG_WELCOME);
  assert_int_equal(w->r.out.count, 1);
  assert_true(wire_id_equal(m->to, PEER_ID));
  assert_int_equal(m->session, 0);
  assert_int_equal(m->u.hello.version_min, WIRE_VERSION_MAX);
  assert_int_equal(m->u.hello.version_max, WIRE_VERSION_MAX);
  assert_true(wire_id_equal(m->u.hello.incarnation, SELF_ID));
  assert_int_equal(m->u.hello.role, WIRE_ROLE_TARGET);
  assert_true(text_is(m->u.hello.numerics_id, "cpu-test"));
  assert_int_equal(m->u.hello.vocabulary_size, 100);
}

static void test_a_repeated_hello_changes_nothing(void **state) {
  world *w = *state;
  greet(w);
  assert_int_equal(hear(w, PEER, peer_hello()), ROSTER_HANDLED);
  rig_only(&w->r, PEER, MSG_WELCOME);
}

static void test_a_new_incarnation_is_a_new_program(void **state) {
  world *w = *state;
  greet(w);
  msg bye = message(MSG_BYE, SELF_ID, 0, 0);
  assert_int_equal(hear(w, PEER, bye), ROSTER_LEAVES);
  assert_true(roster_find(&w->table, PEER)->leaving);
  assert_int_equal(hear(w, PEER, hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, AGAIN_ID)), ROSTER_GREETED);
  assert_true(wire_id_equal(roster_find(&w->table, PEER)->hello.incarnation, AGAIN_ID));
  assert_false(roster_find(&w->table, PEER)->leaving); /* that was the old one */
}

static void test_what_a_hello_said_is_kept(void **state) {
  world *w = *state;
  char method[] = "ngram", device[] = "cpu";
  msg m = peer_hello();
  m.u.hello.method = (wire_string){method, 5};
  m.u.hello.device = (wire_string){device, 3};
  hear(w, PEER, m);
  memcpy(method, "xxxxx", 5); /* the frame's memory is gone */
  memcpy(device, "xxx", 3);
  const roster_peer *p = roster_find(&w->table, PEER);
  assert_string_equal(p->method, "ngram");
  assert_true(text_is(p->hello.method, "ngram"));
  assert_true(text_is(p->hello.device, "cpu"));
}

static void test_a_greeted_peer_may_be_colocated(void **state) {
  world *w = *state;
  w->table.self.host = some_hash(7);
  w->table.self.device = wire_text("cpu");
  assert_false(roster_colocated(&w->table, PEER));
  msg m = peer_hello();
  m.u.hello.host = some_hash(7);
  m.u.hello.device = wire_text("cpu");
  assert_int_equal(hear(w, PEER, m), ROSTER_GREETED);
  assert_true(roster_colocated(&w->table, PEER));
  m.u.hello.incarnation = AGAIN_ID;
  m.u.hello.host = some_hash(8);
  assert_int_equal(hear(w, OTHER, m), ROSTER_GREETED);
  assert_false(roster_colocated(&w->table, OTHER));
  assert_non_null(roster_connected(&w->table, THIRD, w->r.now, &w->r.out)); /* it has told nothing yet */
  assert_false(roster_colocated(&w->table, THIRD));
}

static void test_versions_that_do_not_meet_are_refused(void **state) {
  world *w = *state;
  static const struct {
    uint32_t min, max, met; /* the version chosen; 0: none */
  } table[] = {{2, 2, 2}, {1, 2, 2}, {1, 3, 3}, {1, 9, 5}, {5, 9, 5}, {1, 1, 0}, {6, 9, 0}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    msg m = peer_hello();
    m.u.hello.version_min = table[i].min;
    m.u.hello.version_max = table[i].max;
    rig_clear(&w->r);
    roster_verdict v = hear(w, (peer_id)(20 + i), m);
    if (table[i].met) {
      assert_int_equal(v, ROSTER_GREETED);
      assert_int_equal(rig_only(&w->r, RIG_ANY, MSG_WELCOME)->u.hello.version_max, table[i].met);
      assert_int_equal(roster_version(&w->table, (peer_id)(20 + i)), table[i].met);
    } else {
      char range[32];
      assert_int_equal(v, ROSTER_HANDLED);
      rig_expect_error(&w->r, RIG_ANY, ERR_VERSION);
      snprintf(range, sizeof range, "%u", table[i].max);
      assert_true(text_has(rig_only(&w->r, RIG_ANY, MSG_ERROR)->u.error.text, range));
      assert_true(text_has(rig_only(&w->r, RIG_ANY, MSG_ERROR)->u.error.text, "2"));
      assert_int_equal(roster_version(&w->table, (peer_id)(20 + i)), 0);
    }
  }
}

static void test_another_vocabulary_or_model_is_refused(void **state) {
  world *w = *state;
  static const struct {
    wire_role role;
    uint8_t vocabulary, model; /* 0: zero hash */
    int32_t size;
    bool fits;
  } table[] = {
      {WIRE_ROLE_DRAFT, 0, 0, 0, true},
      {WIRE_ROLE_DRAFT, 20, 0, 0, true},
      {WIRE_ROLE_DRAFT, 20, 0, 100, true},
      {WIRE_ROLE_DRAFT, 21, 0, 100, false},
      {WIRE_ROLE_DRAFT, 20, 0, 101, false},
      {WIRE_ROLE_DRAFT, 0, 0, 101, false},
      {WIRE_ROLE_DRAFT, 20, 99, 100, true}, /* a draft's model is its own affair */
      {WIRE_ROLE_ORCHESTRATOR, 20, 10, 100, true},
      {WIRE_ROLE_ORCHESTRATOR, 20, 11, 100, false},
      {WIRE_ROLE_ORCHESTRATOR, 20, 0, 100, true},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    msg m = hello_message(MSG_HELLO, table[i].role, id_of((uint8_t)(20 + i)));
    if (table[i].vocabulary) m.u.hello.vocabulary_hash = some_hash(table[i].vocabulary);
    if (table[i].model) m.u.hello.model_fingerprint = some_hash(table[i].model);
    m.u.hello.vocabulary_size = table[i].size;
    rig_clear(&w->r);
    roster_verdict v = hear(w, (peer_id)(20 + i), m);
    if (v != (table[i].fits ? ROSTER_GREETED : ROSTER_HANDLED)) fail_msg("row %d: verdict %d", (int)i, v);
    if (!table[i].fits) rig_expect_error(&w->r, RIG_ANY, ERR_MISMATCH);
  }
}

/* A peer that was refused is nobody. */
static void test_who_is_refused_is_not_greeted(void **state) {
  world *w = *state;
  msg m = peer_hello();
  m.u.hello.vocabulary_hash = some_hash(99);
  hear(w, PEER, m);
  rig_clear(&w->r);
  assert_int_equal(hear(w, PEER, message(MSG_ATTACH, SELF_ID, 5, 1)), ROSTER_HANDLED);
  rig_expect_error(&w->r, PEER, ERR_PROTOCOL);
}

static void test_everything_before_hello_is_refused(void **state) {
  world *w = *state;
  static const msg_type types[] = {MSG_WELCOME, MSG_PING, MSG_PONG,   MSG_BYE,  MSG_OPEN,   MSG_END,
                                   MSG_TOKENS,  MSG_ACK,  MSG_RESEND, MSG_DONE, MSG_ATTACH, MSG_NODES};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    msg m = message(types[i], SELF_ID, types[i] < MSG_OPEN ? 0 : 5, 0);
    rig_clear(&w->r);
    assert_int_equal(hear(w, PEER, m), ROSTER_HANDLED);
    rig_expect_error(&w->r, PEER, ERR_PROTOCOL);
    assert_int_equal(rig_only(&w->r, PEER, MSG_ERROR)->session, 0);
  }
}

static void test_an_error_is_never_answered(void **state) {
  world *w = *state;
  hear(w, PEER, error_message(SELF_ID, 0, 0, ERR_PROTOCOL)); /* from nobody */
  assert_int_equal(rig_count(&w->r, PEER, MSG_ERROR), 0);
  greet(w);
  hear(w, PEER, error_message(AGAIN_ID, 5, 1, ERR_GONE)); /* meant for another */
  hear(w, PEER, error_message(SELF_ID, 5, 1, ERR_GONE));
  hear(w, PEER, error_message((wire_id){{0}}, 0, 0, ERR_STALE));
  assert_int_equal(rig_count(&w->r, PEER, MSG_ERROR), 0);
}

static void test_a_frame_for_another_incarnation_is_refused(void **state) {
  world *w = *state;
  greet(w);
  assert_int_equal(hear(w, PEER, message(MSG_ATTACH, AGAIN_ID, 5, 1)), ROSTER_HANDLED);
  rig_expect_error(&w->r, PEER, ERR_STALE);
  const msg *m = rig_only(&w->r, PEER, MSG_ERROR);
  assert_int_equal(m->session, 0);
  assert_true(wire_id_equal(m->to, PEER_ID));
  rig_clear(&w->r);
  assert_int_equal(hear(w, PEER, message(MSG_ATTACH, SELF_ID, 5, 1)), ROSTER_PASS);
  assert_int_equal(w->r.out.count, 0);
}

/* --- the side that connects --- */

static void test_hello_is_repeated_until_welcome(void **state) {
  world *w = *state;
  assert_non_null(roster_connected(&w->table, PEER, w->r.now, &w->r.out));
  const msg *m = rig_only(&w->r, PEER, MSG_HELLO);
  assert_true(wire_id_equal(m->to, (wire_id){{0}}));
  assert_int_equal(m->u.hello.version_min, WIRE_VERSION_MIN);
  assert_int_equal(m->u.hello.version_max, WIRE_VERSION_MAX);
  for (int32_t i = 0; i < 3; i++) {
    assert_int_equal(roster_deadline(&w->table), w->r.now + ROSTER_HELLO_US);
    w->r.now += ROSTER_HELLO_US - 1;
    ticks_lost(w);
    assert_int_equal(rig_count(&w->r, PEER, MSG_HELLO), 1 + i);
    w->r.now += 1;
    ticks_lost(w);
    assert_int_equal(rig_count(&w->r, PEER, MSG_HELLO), 2 + i);
  }
  assert_int_equal(rig_count(&w->r, PEER, MSG_PING), 0); /* whom would it be meant for? */
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, PEER_ID);
  welcome.to = SELF_ID;
  assert_int_equal(hear(w, PEER, welcome), ROSTER_GREETED);
  rig_clear(&w->r);
  w->r.now += 2 * ROSTER_HELLO_US;
  ticks_lost(w);
  assert_int_equal(rig_count(&w->r, PEER, MSG_HELLO), 0);
  assert_true(rig_count(&w->r, PEER, MSG_PING) > 0);
}

/* The connection broke just after HELLO, and WELCOME was lost: a PING that asks for us tells so. */
static void test_who_is_asked_before_welcome_says_hello_again(void **state) {
  world *w = *state;
  roster_connected(&w->table, PEER, w->r.now, &w->r.out);
  rig_clear(&w->r);
  w->r.now += ROSTER_ASK_US - 1; /* the WELCOME may be on its way */
  assert_int_equal(hear(w, PEER, ping_message(MSG_PING, SELF_ID, 1, 1, 0)), ROSTER_HANDLED);
  assert_int_equal(w->r.out.count, 0);
  w->r.now++;
  assert_int_equal(hear(w, PEER, ping_message(MSG_PING, SELF_ID, 2, 1, 0)), ROSTER_HANDLED);
  rig_only(&w->r, PEER, MSG_HELLO);
  rig_clear(&w->r);
  hear(w, PEER, ping_message(MSG_PING, SELF_ID, 3, 1, 0));
  assert_int_equal(w->r.out.count, 0);
}

/* Seen from the side that welcomed it: its HELLO, repeated, is the sign of life. */
static void test_a_hello_ends_the_doubt(void **state) {
  world *w = *state;
  greet(w);
  roster_disconnected(&w->table, PEER, w->r.now, &w->r.out);
  assert_int_equal(pass(w, ROSTER_ASK_US), 0);
  assert_int_equal(hear(w, PEER, peer_hello()), ROSTER_HANDLED);
  assert_int_equal(pass(w, ROSTER_LOST_US - 1), 0);
}

static void test_a_second_welcome_greets_only_a_new_incarnation(void **state) {
  world *w = *state;
  roster_connected(&w->table, PEER, w->r.now, &w->r.out);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, PEER_ID);
  welcome.to = SELF_ID;
  assert_int_equal(hear(w, PEER, welcome), ROSTER_GREETED);
  rig_clear(&w->r);
  assert_int_equal(hear(w, PEER, welcome), ROSTER_HANDLED);
  assert_int_equal(w->r.out.count, 0);
  welcome.u.hello.incarnation = AGAIN_ID;
  assert_int_equal(hear(w, PEER, welcome), ROSTER_GREETED);
}

static void test_a_refusal_of_our_hello_is_passed_on(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_VERSION, ERR_MISMATCH, ERR_ARG};
  for (int i = 0; i < 3; i++) {
    peer_id peer = (peer_id)(PEER + i);
    roster_connected(&w->table, peer, w->r.now, &w->r.out);
    assert_int_equal(hear(w, peer, error_message((wire_id){{0}}, 0, 0, codes[i])), ROSTER_REFUSED);
  }
}

static msg target_at(wire_id incarnation, const char *endpoint) {
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_TARGET, incarnation);
  m.u.hello.endpoint = wire_text(endpoint);
  return m;
}

static msg welcome_with(hash16 model_hash) {
  msg m = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, PEER_ID);
  m.to = SELF_ID;
  m.u.hello.model_hash = model_hash;
  return m;
}

/* Its file differs somewhere behind the sample. */
static void test_a_target_with_another_model_gives_up(void **state) {
  world *w = *state;
  const hash16 unknown = {{0}}, mine = some_hash(30), theirs = some_hash(31);
  const struct {
    hash16 mine, theirs;
    bool fits;
  } table[] = {
      {mine, mine, true},      {mine, theirs, false},    {mine, unknown, true},
      {unknown, theirs, true}, {unknown, unknown, true},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    peer_id peer = (peer_id)(20 + i);
    w->table.self.model_hash = table[i].mine;
    roster_connected(&w->table, peer, w->r.now, &w->r.out);
    rig_clear(&w->r);
    msg m = welcome_with(table[i].theirs);
    assert_int_equal(hear(w, peer, m), table[i].fits ? ROSTER_GREETED : ROSTER_REFUSED);
    assert_int_equal(rig_count(&w->r, peer, MSG_ERROR), !table[i].fits);
    if (table[i].fits) continue;
    rig_expect_error(&w->r, peer, ERR_MISMATCH);
    assert_non_null(strstr(roster_why_refused(&m).text, "another model"));
  }
}

/* The orchestrator at the address may have been restarted with another model. */
static void test_a_target_gives_up_at_a_later_welcome_too(void **state) {
  world *w = *state;
  w->table.self.model_hash = some_hash(30);
  roster_connected(&w->table, PEER, w->r.now, &w->r.out);
  assert_int_equal(hear(w, PEER, welcome_with(some_hash(30))), ROSTER_GREETED);
  msg again = welcome_with(some_hash(31));
  again.u.hello.incarnation = AGAIN_ID;
  assert_int_equal(hear(w, PEER, again), ROSTER_REFUSED);
}

static void test_an_orchestrator_drops_a_target_that_has_another_model(void **state) {
  world *w = *state;
  w->table.self.role = WIRE_ROLE_ORCHESTRATOR;
  w->table.self.model_hash = some_hash(30);
  msg m = target_at(PEER_ID, "ipc:///a");
  m.u.hello.vocabulary_hash = some_hash(20);
  m.u.hello.model_fingerprint = some_hash(10);
  m.u.hello.vocabulary_size = 100;
  assert_int_equal(hear(w, PEER, m), ROSTER_GREETED);
  assert_true(hash_equal(rig_only(&w->r, PEER, MSG_WELCOME)->u.hello.model_hash, some_hash(30)));
  rig_clear(&w->r);
  assert_int_equal(hear(w, PEER, error_message(SELF_ID, 5, 1, ERR_MISMATCH)), ROSTER_PASS); /* a session's */
  assert_int_equal(hear(w, PEER, error_message(SELF_ID, 0, 0, ERR_GONE)), ROSTER_PASS);
  assert_int_equal(hear(w, PEER, error_message(SELF_ID, 0, 0, ERR_MISMATCH)), ROSTER_HANDLED);
  assert_null(roster_find(&w->table, PEER));
  assert_int_equal(rig_count(&w->r, PEER, MSG_ERROR), 0);
}

/* Nobody but a target says so of itself. */
static void test_a_draft_is_not_dropped_for_its_model(void **state) {
  world *w = *state;
  greet(w); /* as a target sees it */
  assert_int_equal(hear(w, PEER, error_message(SELF_ID, 0, 0, ERR_MISMATCH)), ROSTER_PASS);
  assert_non_null(roster_find(&w->table, PEER));
  w->table.self.role = WIRE_ROLE_ORCHESTRATOR;
  assert_int_equal(hear(w, PEER, error_message(SELF_ID, 0, 0, ERR_MISMATCH)), ROSTER_PASS);
}

static void test_an_older_peer_is_not_told_the_hash(void **state) {
  world *w = *state;
  w->table.self.model_hash = some_hash(30);
  for (uint32_t version = 2; version <= WIRE_VERSION_MAX; version++) {
    msg m = hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, id_of((uint8_t)(20 + version)));
    m.u.hello.version_max = version;
    rig_clear(&w->r);
    assert_int_equal(hear(w, 20 + version, m), ROSTER_GREETED);
    const msg *answer = rig_only(&w->r, 20 + version, MSG_WELCOME);
    assert_int_equal(hash_is_zero(answer->u.hello.model_hash), version < WIRE_VERSION_HASH);
  }
}

/* The other side has forgotten us (it was restarted, or the table was full): greet again. */
static void test_who_was_forgotten_says_hello_again(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_PROTOCOL, ERR_STALE};
  for (int i = 0; i < 2; i++) {
    peer_id peer = (peer_id)(PEER + i);
    roster_connected(&w->table, peer, w->r.now, &w->r.out);
    msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, PEER_ID);
    welcome.to = SELF_ID;
    hear(w, peer, welcome);
    w->r.now += ROSTER_HELLO_US; /* our own last one is that long ago */
    rig_clear(&w->r);
    hear(w, peer, error_message(SELF_ID, 0, 0, codes[i]));
    rig_only(&w->r, peer, MSG_HELLO);
  }
}

/* Somebody who answers every HELLO with ERROR(protocol) must not be answered at once each time. */
static void test_an_error_repeats_no_hello_before_its_time(void **state) {
  world *w = *state;
  roster_connected(&w->table, PEER, w->r.now, &w->r.out);
  rig_clear(&w->r);
  for (int i = 0; i < 1000; i++) {
    hear(w, PEER, error_message(SELF_ID, 0, 0, ERR_PROTOCOL));
    w->r.now += 100; /* 100 ms in all */
    ticks_lost(w);
  }
  assert_true(rig_count(&w->r, PEER, MSG_HELLO) <= 2);
}

/* --- life --- */

static void test_a_ping_is_answered(void **state) {
  world *w = *state;
  greet(w);
  assert_int_equal(hear(w, PEER, ping_message(MSG_PING, SELF_ID, 41, 12345, 0)), ROSTER_HANDLED);
  const msg *m = rig_only(&w->r, PEER, MSG_PONG);
  assert_int_equal(m->u.ping.sequence, 41);
  assert_int_equal(m->u.ping.time_us, 12345);
  assert_int_equal(m->u.ping.load, 3);
  assert_true(wire_id_equal(m->to, PEER_ID));
}

static void test_a_pong_tells_the_load(void **state) {
  world *w = *state;
  greet(w);
  for (int i = 0; i < 4; i++) {
    w->r.now += ROSTER_PING_US;
    ticks_lost(w);
  }
  int32_t pings = rig_count(&w->r, PEER, MSG_PING);
  assert_true(pings >= 4 && pings <= 5);
  const msg *m = rig_last(&w->r, PEER, MSG_PING);
  assert_int_equal(m->u.ping.load, 0);
  msg pong = ping_message(MSG_PONG, SELF_ID, m->u.ping.sequence, m->u.ping.time_us, 9);
  assert_int_equal(hear(w, PEER, pong), ROSTER_HANDLED);
  assert_int_equal(roster_find(&w->table, PEER)->load, 9);
}

static void test_a_silent_peer_is_lost_and_may_return(void **state) {
  world *w = *state;
  greet(w);
  uint64_t start = w->r.now;
  while (w->r.now < start + ROSTER_LOST_US) {
    uint64_t next = roster_deadline(&w->table);
    assert_true(next > w->r.now); /* or the program would spin */
    assert_true(next <= start + ROSTER_LOST_US);
    w->r.now = next;
    if (next < start + ROSTER_LOST_US) assert_int_equal(ticks_lost(w), 0);
  }
  roster_peer *lost = roster_tick(&w->table, w->r.now, &w->r.out);
  assert_non_null(lost);
  assert_int_equal(lost->id, PEER);
  assert_true(lost->lost);
  assert_null(roster_tick(&w->table, w->r.now, &w->r.out)); /* told once */
  assert_true(roster_deadline(&w->table) > w->r.now);
  w->r.now += ROSTER_LOST_US;
  assert_int_equal(ticks_lost(w), 0);
  assert_int_equal(hear(w, PEER, message(MSG_ATTACH, SELF_ID, 5, 1)), ROSTER_PASS);
  assert_false(roster_find(&w->table, PEER)->lost);
  assert_int_equal(pass(w, ROSTER_LOST_US), 1);
}

static void test_every_frame_is_a_sign_of_life(void **state) {
  world *w = *state;
  greet(w);
  for (int i = 0; i < 10; i++) {
    w->r.now += ROSTER_LOST_US - 1;
    hear(w, PEER, i % 2 ? message(MSG_NODES, SELF_ID, 5, 1) : ping_message(MSG_PING, SELF_ID, 1, 1, 0));
    assert_int_equal(ticks_lost(w), 0);
  }
}

static void test_bye_marks_a_peer_as_leaving(void **state) {
  world *w = *state;
  greet(w);
  assert_int_equal(hear(w, PEER, message(MSG_BYE, SELF_ID, 0, 0)), ROSTER_LEAVES);
  assert_true(roster_find(&w->table, PEER)->leaving);
  roster_connected(&w->table, OTHER, w->r.now, &w->r.out); /* never greeted */
  rig_clear(&w->r);
  roster_bye(&w->table, &w->r.out);
  assert_true(wire_id_equal(rig_only(&w->r, PEER, MSG_BYE)->to, PEER_ID));
  assert_int_equal(rig_count(&w->r, OTHER, MSG_BYE), 0); /* `to` of a BYE must not be zero */
}

static void test_a_dropped_peer_is_forgotten(void **state) {
  world *w = *state;
  greet(w);
  roster_drop(&w->table, PEER);
  assert_null(roster_find(&w->table, PEER));
  roster_drop(&w->table, PEER);
  assert_int_equal(roster_deadline(&w->table), MACHINE_NEVER);
}

/* --- limits --- */

static void greet_many(world *w, wire_role role, int count) {
  for (int i = 0; i < count; i++) {
    msg m = hello_message(MSG_HELLO, role, id_of((uint8_t)(20 + i)));
    m.u.hello.incarnation.bytes[2] = (uint8_t)role;
    hear(w, (peer_id)(1000 * role + i), m);
  }
}

static int32_t log_lines(const world *w) {
  int32_t n = 0;
  for (int32_t i = 0; i < w->r.out.count; i++) n += w->r.out.list[i].kind == ACTION_LOG;
  return n;
}

static bool log_has(const world *w, const char *part) {
  for (int32_t i = 0; i < w->r.out.count; i++)
    if (w->r.out.list[i].kind == ACTION_LOG && strstr(w->r.out.list[i].text, part)) return true;
  return false;
}

/* However many drafts there are, who has work for them finds a place. */
static void test_drafts_leave_room_for_targets(void **state) {
  world *w = *state;
  greet_many(w, WIRE_ROLE_DRAFT, ROSTER_DRAFTS_MAX);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_WELCOME), ROSTER_DRAFTS_MAX);
  rig_clear(&w->r);
  assert_int_equal(hear(w, PEER, peer_hello()), ROSTER_HANDLED);
  rig_expect_error(&w->r, PEER, ERR_FULL);
  assert_true(text_has(rig_only(&w->r, PEER, MSG_ERROR)->u.error.text, "no place for one more draft"));
  assert_true(log_has(w, "no place for one more draft"));
  hear(w, PEER, peer_hello());
  assert_int_equal(log_lines(w), 1);
  for (int i = 0; i < ROSTER_MAX - ROSTER_DRAFTS_MAX - 1; i++) {
    msg m = hello_message(MSG_HELLO, WIRE_ROLE_TARGET, id_of((uint8_t)(150 + i)));
    assert_int_equal(hear(w, (peer_id)(300 + i), m), ROSTER_GREETED);
  }
  assert_non_null(roster_connected(&w->table, 98, w->r.now, &w->r.out)); /* the last place */
  rig_clear(&w->r);
  assert_int_equal(hear(w, 99, hello_message(MSG_HELLO, WIRE_ROLE_TARGET, id_of(199))), ROSTER_HANDLED);
  rig_expect_error(&w->r, 99, ERR_FULL);
  assert_null(roster_connected(&w->table, 97, w->r.now, &w->r.out));
  /* A draft finds that of a draft that is lost, and no other. */
  roster_find(&w->table, 300)->lost = true;
  assert_int_equal(hear(w, PEER, peer_hello()), ROSTER_HANDLED);
  roster_find(&w->table, 3005)->lost = true;
  assert_int_equal(hear(w, PEER, peer_hello()), ROSTER_GREETED);
  assert_null(roster_find(&w->table, 3005));
}

/* The side that is not taken says so once, whatever it hears again and again, and once more when the reason
 * changes. */
static void test_a_refusal_is_logged_once(void **state) {
  world *w = *state;
  roster_connected(&w->table, PEER, w->r.now, &w->r.out);
  for (int i = 0; i < 20; i++) {
    pass(w, ROSTER_HELLO_US);
    hear(w, PEER, error_message((wire_id){{0}}, 0, 0, ERR_FULL));
  }
  assert_true(log_has(w, "not taken by the program that was called, which is asked again: made by a test"));
  assert_int_equal(log_lines(w), 1);
  assert_true(rig_count(&w->r, PEER, MSG_HELLO) >= 20);
  hear(w, PEER, error_message((wire_id){{0}}, 0, 0, ERR_STATE));
  assert_int_equal(log_lines(w), 2);
}

/* One peer, and many, cause only so many lines; those that were left out are counted. */
static void test_peers_do_not_fill_the_log(void **state) {
  world *w = *state;
  greet(w);
  for (int i = 0; i < 10000; i++)
    roster_log(&w->table, PEER, w->r.now + (uint64_t)i * 100, LOG_INFO, &w->r.out, "one");
  if (log_lines(w) > 20) fail_msg("%d lines of one peer in a second", (int)log_lines(w));
  rig_clear(&w->r);
  w->r.now += 1000000;
  for (int i = 0; i < 10000; i++)
    roster_log(&w->table, (peer_id)(i + 100), w->r.now, LOG_INFO, &w->r.out, "many");
  if (log_lines(w) > 2 * ROSTER_MAX) fail_msg("%d lines of strangers at once", (int)log_lines(w));
  assert_true(log_lines(w) > 16); /* one peer alone does not keep the others out */
  rig_clear(&w->r);
  roster_log(&w->table, 5000, w->r.now + 10000000, LOG_INFO, &w->r.out, "later");
  assert_true(log_has(w, "later (97"));
}

/* --- who is who --- */

/* A connection keeps its role: neither an old program nor a restarted one turns into a target on a draft's.
 */
static void test_a_connection_keeps_its_role(void **state) {
  world *w = *state;
  static const wire_role roles[] = {WIRE_ROLE_TARGET, WIRE_ROLE_ORCHESTRATOR};
  greet(w);
  for (int i = 0; i < 4; i++) {
    rig_clear(&w->r);
    msg m = hello_message(MSG_HELLO, roles[i % 2], i < 2 ? PEER_ID : AGAIN_ID); /* each incarnation twice */
    roster_peer *from;
    assert_int_equal(roster_receive(&w->table, PEER, &m, 0, w->r.now, &from, &w->r.out), ROSTER_FORGED);
    rig_expect_error(&w->r, PEER, ERR_PROTOCOL);
    assert_int_equal(rig_count(&w->r, PEER, MSG_WELCOME), 0);
    assert_int_equal(from->hello.role, WIRE_ROLE_DRAFT);
    assert_true(wire_id_equal(from->hello.incarnation, PEER_ID));
    assert_true(from->leaving);                                 /* nothing new goes there */
    assert_int_equal(log_has(w, "keeps the role"), i % 2 == 0); /* the first time that this program does */
  }
  assert_int_equal(hear(w, PEER, message(MSG_NODES, SELF_ID, 5, 1)), ROSTER_PASS); /* as what it was */
}

/* What the key says counts, not what HELLO says; both sides log it once. */
static void test_a_role_is_told_by_the_key(void **state) {
  world *w = *state;
  for (int i = 0; i < 5; i++) {
    msg m = hello_message(MSG_HELLO, WIRE_ROLE_TARGET, PEER_ID);
    m.u.hello.roles = KEYS_ROLE(WIRE_ROLE_DRAFT) | KEYS_ROLE(WIRE_ROLE_ORCHESTRATOR);
    assert_int_equal(hear(w, PEER, m), ROSTER_HANDLED);
  }
  assert_int_equal(rig_count(&w->r, PEER, MSG_WELCOME), 0);
  assert_int_equal(rig_last(&w->r, PEER, MSG_ERROR)->u.error.code, ERR_DENIED);
  assert_int_equal(log_lines(w), 1);
  assert_true(
      log_has(w, "says that it is a target, but the list of allowed keys has its key for another role"));
  msg m = peer_hello();
  m.u.hello.roles = KEYS_ROLE(WIRE_ROLE_DRAFT);
  assert_int_equal(hear(w, OTHER, m), ROSTER_GREETED);
  rig_clear(&w->r); /* nor does the role in WELCOME */
  roster_connected(&w->table, THIRD, w->r.now, &w->r.out);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, id_of(4));
  welcome.to = SELF_ID;
  welcome.u.hello.roles = KEYS_ROLE(WIRE_ROLE_TARGET);
  for (int i = 0; i < 5; i++) assert_int_equal(hear(w, THIRD, welcome), ROSTER_HANDLED);
  assert_int_equal(log_lines(w), 1);
  assert_false(roster_find(&w->table, THIRD)->greeted);
  welcome.u.hello.roles |= KEYS_ROLE(WIRE_ROLE_ORCHESTRATOR);
  assert_int_equal(hear(w, THIRD, welcome), ROSTER_GREETED);
}

/* What a repeated HELLO says anew does not count. */
static void test_a_repeated_hello_is_not_read(void **state) {
  world *w = *state;
  greet(w);
  hear(w, PEER, message(MSG_BYE, SELF_ID, 0, 0));
  msg m = peer_hello();
  m.u.hello.endpoint = wire_text("tcp://127.0.0.1:4009");
  assert_int_equal(hear(w, PEER, m), ROSTER_HANDLED);
  assert_string_equal(roster_find(&w->table, PEER)->endpoint, "");
  assert_true(roster_find(&w->table, PEER)->leaving);
}

/* Nobody takes the incarnation of one that lives, in another role. */
static void test_an_incarnation_in_another_role_is_refused(void **state) {
  world *w = *state;
  greet(w);
  assert_int_equal(hear(w, OTHER, hello_message(MSG_HELLO, WIRE_ROLE_TARGET, PEER_ID)), ROSTER_HANDLED);
  rig_expect_error(&w->r, OTHER, ERR_STATE);
  assert_null(roster_find(&w->table, OTHER));
  assert_int_equal(hear(w, 9, peer_hello()), ROSTER_GREETED); /* a draft calls again on another connection */
}

/* Two that live and have one address: the second is refused, again and again, and the first hears of it by a
 * PING only. */
static void test_the_address_of_one_that_lives_is_refused(void **state) {
  world *w = *state;
  assert_int_equal(hear(w, PEER, target_at(PEER_ID, "ipc:///a")), ROSTER_GREETED);
  rig_clear(&w->r);
  for (int i = 0; i < 40; i++) { /* 20 s */
    assert_int_equal(hear(w, OTHER, target_at(AGAIN_ID, "ipc:///a")), ROSTER_HANDLED);
    for (int k = 0; k < 5; k++) {
      uint64_t sequence = roster_find(&w->table, PEER)->ping_sequence;
      assert_int_equal(pass(w, ROSTER_HELLO_US / 5), 0);
      if (sequence) hear(w, PEER, ping_message(MSG_PONG, SELF_ID, sequence, 0, 0));
    }
  }
  assert_non_null(roster_find(&w->table, PEER));
  assert_null(roster_find(&w->table, OTHER));
  assert_int_equal(rig_count(&w->r, OTHER, MSG_WELCOME), 0);
  assert_true(rig_count(&w->r, OTHER, MSG_ERROR) >= 10);
  assert_true(text_has(rig_last(&w->r, OTHER, MSG_ERROR)->u.error.text, "--advertise"));
  assert_true(log_has(w, "ipc:///a"));
  if (log_lines(w) > 1) fail_msg("%d lines", (int)log_lines(w));
}

/* One of them died: the other is taken with its next HELLO, well before the silence would have told. */
static void test_the_address_of_one_that_died_is_taken_over(void **state) {
  world *w = *state;
  static const char *const addresses[] = {"ipc:///a", "ipc:///b"};
  for (int same = 0; same < 2; same++) { /* by its address, by its incarnation */
    peer_id peer = (peer_id)(PEER + 10 * same), other = peer + 1;
    hear(w, peer, target_at(id_of((uint8_t)(30 + same)), addresses[0]));
    pass(w, 100000);
    msg again = same ? target_at(id_of(31), addresses[1]) : target_at(id_of(40), addresses[0]);
    if (!same) roster_find(&w->table, peer)->received_us = w->r.now; /* its last words come just before */
    assert_int_equal(hear(w, other, again), ROSTER_HANDLED);
    assert_int_equal(pass(w, ROSTER_HELLO_US), 0);
    assert_int_equal(hear(w, other, again), ROSTER_GREETED);
    rig_last(&w->r, other, MSG_WELCOME);
    assert_int_equal(rig_count(&w->r, other, MSG_ERROR), 0);
    roster_drop(&w->table, peer);
    roster_drop(&w->table, other);
  }
}

/* A target that an orchestrator with a model takes says what it computes with, and where drafts find it. */
static void test_a_target_must_say_what_it_is(void **state) {
  world *w = *state;
  static const struct {
    uint8_t vocabulary, model;
    int32_t size;
    const char *endpoint;
    int code;
  } table[] = {
      {20, 10, 100, "ipc:///a", 0},
      {0, 10, 100, "ipc:///a", ERR_MISMATCH},
      {20, 0, 100, "ipc:///a", ERR_MISMATCH},
      {20, 10, 0, "ipc:///a", ERR_MISMATCH},
      {20, 11, 100, "ipc:///a", ERR_MISMATCH},
      {20, 10, 100, "", ERR_ARG},
  };
  w->table.self.role = WIRE_ROLE_ORCHESTRATOR;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    msg m = target_at(id_of((uint8_t)(20 + i)), table[i].endpoint);
    if (table[i].vocabulary) m.u.hello.vocabulary_hash = some_hash(table[i].vocabulary);
    if (table[i].model) m.u.hello.model_fingerprint = some_hash(table[i].model);
    m.u.hello.vocabulary_size = table[i].size;
    rig_clear(&w->r);
    roster_verdict v = hear(w, (peer_id)(20 + i), m);
    if (v != (table[i].code ? ROSTER_HANDLED : ROSTER_GREETED)) fail_msg("row %d: verdict %d", (int)i, v);
    if (table[i].code) rig_expect_error(&w->r, RIG_ANY, table[i].code);
  }
}

/* --- our own stall --- */

/* Nobody is lost while we were away ourselves; who stays silent afterwards is, 3 s of our own time after its
 * last word. */
static void test_our_own_stall_is_nobodys_silence(void **state) {
  world *w = *state;
  greet(w);
  pass(w, 1000000);
  hear(w, PEER, ping_message(MSG_PING, SELF_ID, 1, 1, 0));
  for (int i = 0; i < 3; i++) { /* tick first, then what waited in the socket */
    w->r.now += 4000000 + (uint64_t)i * 60000000;
    assert_int_equal(ticks_lost(w), 0);
    hear(w, PEER, ping_message(MSG_PING, SELF_ID, 1, 1, 0));
  }
  w->r.now += 10000000;
  assert_int_equal(ticks_lost(w), 0);
  assert_int_equal(pass(w, ROSTER_LOST_US - ROSTER_PING_US - 1), 0);
  assert_int_equal(pass(w, ROSTER_PING_US), 1);
}

/* What was measured over a stall of our own says nothing about others; what begins after it does. */
static void test_our_own_stall_is_told(void **state) {
  world *w = *state;
  greet(w);
  uint64_t begun_us = w->r.now;
  pass(w, 3000000);
  assert_false(roster_stalled_since(&w->table, begun_us, w->r.now));
  w->r.now += ROSTER_STALL_US + ROSTER_PING_US;
  assert_true(roster_stalled_since(&w->table, begun_us, w->r.now)); /* before the roster has seen a step */
  hear(w, PEER, ping_message(MSG_PING, SELF_ID, 1, 1, 0));
  assert_true(roster_stalled_since(&w->table, begun_us, w->r.now));
  begun_us = w->r.now;
  pass(w, 3000000);
  assert_false(roster_stalled_since(&w->table, begun_us, w->r.now));
}

/* --- a connection that ended --- */

static void test_who_died_is_lost_soon_after_its_connection(void **state) {
  world *w = *state;
  greet(w);
  pass(w, 1000000);
  hear(w, PEER, ping_message(MSG_PING, SELF_ID, 1, 1, 0));
  rig_clear(&w->r);
  roster_disconnected(&w->table, PEER, w->r.now, &w->r.out);
  rig_only(&w->r, PEER, MSG_PING);
  w->r.now += 1000;
  hear(w, PEER, message(MSG_NODES, SELF_ID, 5, 1)); /* it was sent before, and is read now */
  assert_int_equal(pass(w, ROSTER_DOUBT_US - 1001), 0);
  roster_disconnected(&w->table, PEER, w->r.now, &w->r.out); /* told twice */
  w->r.now++;
  roster_peer *lost = roster_tick(&w->table, w->r.now, &w->r.out);
  assert_non_null(lost);
  assert_non_null(strstr(roster_lost_why(lost), "connection ended"));
  assert_int_equal(pass(w, 10 * ROSTER_LOST_US), 0);
}

/* It has connected again, is asked at once and answers: nothing was lost. */
static void test_a_broken_connection_is_no_death(void **state) {
  world *w = *state;
  greet(w);
  pass(w, 1000000);
  hear(w, PEER, ping_message(MSG_PING, SELF_ID, 1, 1, 0));
  for (int i = 0; i < 3; i++) {
    rig_clear(&w->r);
    roster_disconnected(&w->table, PEER, w->r.now, &w->r.out);
    assert_int_equal(pass(w, ROSTER_DOUBT_US * 3 / 4), 0);
    assert_true(rig_count(&w->r, PEER, MSG_PING) >= 3);
    hear(w, PEER, ping_message(MSG_PONG, SELF_ID, roster_find(&w->table, PEER)->ping_sequence, 0, 0));
    assert_int_equal(pass(w, ROSTER_LOST_US - 1), 0);
    hear(w, PEER, ping_message(MSG_PING, SELF_ID, 1, 1, 0));
  }
  assert_int_equal(pass(w, ROSTER_LOST_US), 1);
  assert_non_null(strstr(roster_lost_why(roster_find(&w->table, PEER)), "silent for 3 s"));
}

static void test_a_connection_may_end_during_our_own_stall(void **state) {
  world *w = *state;
  greet(w);
  pass(w, 1000000);
  static const uint64_t stalls[] = {ROSTER_DOUBT_US, 60000000}; /* shorter than from PING to PING; longer */
  for (size_t i = 0; i < sizeof stalls / sizeof *stalls; i++) {
    roster_disconnected(&w->table, PEER, w->r.now, &w->r.out);
    w->r.now += stalls[i];
    assert_int_equal(ticks_lost(w), 0);
    assert_int_equal(pass(w, ROSTER_DOUBT_US - ROSTER_ASK_US - 1), 0);
    hear(w, PEER, ping_message(MSG_PING, SELF_ID, 1, 1, 0));
  }
  roster_disconnected(&w->table, PEER, w->r.now, &w->r.out);
  assert_int_equal(pass(w, ROSTER_DOUBT_US - 1), 0);
  assert_int_equal(pass(w, 1), 1);
  roster_disconnected(&w->table, PEER, w->r.now, &w->r.out);  /* that of one that is lost */
  roster_disconnected(&w->table, OTHER, w->r.now, &w->r.out); /* that of a stranger */
  assert_int_equal(pass(w, 10 * ROSTER_LOST_US), 0);
}

/* Strangers that said HELLO once and never again must not keep everybody out for ever. */
static void test_lost_strangers_make_room(void **state) {
  world *w = *state;
  for (int i = 0; i < ROSTER_DRAFTS_MAX; i++) {
    hear(w, (peer_id)(100 + i), hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, id_of((uint8_t)i)));
  }
  assert_int_equal(pass(w, ROSTER_LOST_US), ROSTER_DRAFTS_MAX);
  rig_clear(&w->r);
  assert_int_equal(hear(w, 99, peer_hello()), ROSTER_GREETED);
  assert_non_null(roster_find(&w->table, 99));
}

/* It calls again when it lives. A hundred that come once and never again cost nothing. */
static void test_a_lost_stranger_is_not_pinged(void **state) {
  world *w = *state;
  greet(w);
  assert_int_equal(pass(w, ROSTER_LOST_US), 1);
  rig_clear(&w->r);
  assert_int_equal(roster_deadline(&w->table), UINT64_MAX);
  w->r.now += ROSTER_LOST_US;
  assert_int_equal(ticks_lost(w), 0);
  assert_int_equal(w->r.out.count, 0);
}

/* But never in the place of a connection of our own: nobody would greet it again. */
static void test_strangers_do_not_replace_our_own_connections(void **state) {
  world *w = *state;
  roster_connected(&w->table, PEER, w->r.now, &w->r.out);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, PEER_ID);
  welcome.to = SELF_ID;
  hear(w, PEER, welcome);
  assert_int_equal(pass(w, ROSTER_LOST_US), 1);
  for (int i = 0; i < 2 * ROSTER_MAX; i++) {
    hear(w, (peer_id)(100 + i), hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, id_of((uint8_t)i)));
  }
  assert_non_null(roster_find(&w->table, PEER));
  assert_int_equal(hear(w, PEER, message(MSG_OPEN, SELF_ID, 5, 1)), ROSTER_PASS);
}

/* Peers that were refused, or never said HELLO, take no place. */
static void test_who_never_said_hello_takes_no_entry(void **state) {
  world *w = *state;
  for (int i = 0; i < 2 * ROSTER_MAX; i++) {
    msg m = peer_hello();
    m.u.hello.vocabulary_hash = some_hash(99);
    hear(w, (peer_id)(1000 + i), m);
    hear(w, (peer_id)(5000 + i), message(MSG_ATTACH, SELF_ID, 5, 1));
  }
  rig_clear(&w->r);
  assert_int_equal(hear(w, PEER, peer_hello()), ROSTER_GREETED);
}

static void test_messages_are_addressed_to_the_incarnation(void **state) {
  world *w = *state;
  greet(w);
  msg m = roster_message(&w->table, PEER, MSG_TOKENS, 5, 2);
  assert_true(wire_id_equal(m.to, PEER_ID));
  assert_int_equal(m.session, 5);
  assert_int_equal(m.epoch, 2);
  m = (msg){.session = 6, .epoch = 3};
  roster_refuse(&w->table, 55, &m, ERR_GONE, "no session 6", &w->r.out);
  const msg *e = rig_only(&w->r, 55, MSG_ERROR);
  assert_true(wire_id_equal(e->to, (wire_id){{0}}));
  assert_int_equal(e->session, 6);
  assert_int_equal(e->epoch, 3);
  assert_true(text_is(e->u.error.text, "no session 6"));
}

static void test_state_tells_what_is_held(void **state) {
  world *w = *state;
  const int32_t tokens[] = {4, 5, 6};
  prefix held;
  assert_int_equal(prefix_init(&held, 3, 11), ERR_OK);
  assert_int_equal(prefix_append(&held, tokens, 3), ERR_OK);
  msg m = roster_state(&w->table, PEER, MSG_DESYNC, 5, 2, &held, "why");
  hash16 hash = prefix_hash(&held);
  assert_int_equal(m.u.state.length, 3);
  assert_memory_equal(&m.u.state.hash, &hash, sizeof hash);
  assert_true(text_is(m.u.state.reason, "why"));
  m = roster_state(&w->table, PEER, MSG_OPENED, 5, 2, NULL, NULL);
  assert_int_equal(m.u.state.length, 0);
  assert_true(hash_is_zero(m.u.state.hash));
  prefix_fini(&held);
}

static void test_a_long_error_is_cut(void **state) {
  world *w = *state;
  char text[3 * WIRE_STRING_MAX];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = 0;
  roster_error(&w->table, 55, 0, 0, ERR_GONE, &w->r.out, "%s", text);
  assert_true(rig_only(&w->r, 55, MSG_ERROR)->u.error.text.size <= WIRE_STRING_MAX);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
static int run_liveness(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_ping_is_answered),
      CASE(test_a_pong_tells_the_load),
      CASE(test_a_silent_peer_is_lost_and_may_return),
      CASE(test_every_frame_is_a_sign_of_life),
      CASE(test_a_hello_ends_the_doubt),
      CASE(test_bye_marks_a_peer_as_leaving),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_models(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_target_with_another_model_gives_up),
      CASE(test_a_target_gives_up_at_a_later_welcome_too),
      CASE(test_an_orchestrator_drops_a_target_that_has_another_model),
      CASE(test_a_draft_is_not_dropped_for_its_model),
      CASE(test_an_older_peer_is_not_told_the_hash),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_hello_is_welcomed),
      CASE(test_a_repeated_hello_changes_nothing),
      CASE(test_a_new_incarnation_is_a_new_program),
      CASE(test_what_a_hello_said_is_kept),
      CASE(test_a_greeted_peer_may_be_colocated),
      CASE(test_versions_that_do_not_meet_are_refused),
      CASE(test_another_vocabulary_or_model_is_refused),
      CASE(test_who_is_refused_is_not_greeted),
      CASE(test_everything_before_hello_is_refused),
      CASE(test_an_error_is_never_answered),
      CASE(test_a_frame_for_another_incarnation_is_refused),
      CASE(test_hello_is_repeated_until_welcome),
      CASE(test_who_is_asked_before_welcome_says_hello_again),
      CASE(test_a_second_welcome_greets_only_a_new_incarnation),
      CASE(test_a_refusal_of_our_hello_is_passed_on),
      CASE(test_who_was_forgotten_says_hello_again),
      CASE(test_an_error_repeats_no_hello_before_its_time),
      CASE(test_a_dropped_peer_is_forgotten),
      CASE(test_drafts_leave_room_for_targets),
      CASE(test_a_refusal_is_logged_once),
      CASE(test_peers_do_not_fill_the_log),
      CASE(test_a_connection_keeps_its_role),
      CASE(test_a_role_is_told_by_the_key),
      CASE(test_a_repeated_hello_is_not_read),
      CASE(test_an_incarnation_in_another_role_is_refused),
      CASE(test_the_address_of_one_that_lives_is_refused),
      CASE(test_the_address_of_one_that_died_is_taken_over),
      CASE(test_a_target_must_say_what_it_is),
      CASE(test_our_own_stall_is_nobodys_silence),
      CASE(test_our_own_stall_is_told),
      CASE(test_who_died_is_lost_soon_after_its_connection),
      CASE(test_a_broken_connection_is_no_death),
      CASE(test_a_connection_may_end_during_our_own_stall),
      CASE(test_lost_strangers_make_room),
      CASE(test_a_lost_stranger_is_not_pinged),
      CASE(test_strangers_do_not_replace_our_own_connections),
      CASE(test_who_never_said_hello_takes_no_entry),
      CASE(test_messages_are_addressed_to_the_incarnation),
      CASE(test_state_tells_what_is_held),
      CASE(test_a_long_error_is_cut),
  };
  return run_liveness() + run_models() + cmocka_run_group_tests(tests, NULL, NULL);
}
