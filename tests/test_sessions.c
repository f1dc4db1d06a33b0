/* libs: sessions wire speculative base */
#include "orchestrator/sessions/sessions.h"
#include "tests/machine_support.h"

#include <math.h>

enum { VOCAB = 97, CONTEXT = 512, OUTPUT = 40 };
enum { TARGET = 2, TARGET2 = 3, TARGET3 = 4, DRAFT = 5, DRAFT2 = 6, STRANGER = 9 };
#define SELF  id_of(100)
#define ID(p) id_of((uint8_t)(p))

static int32_t next_of(int32_t token) {
  return (5 * token + 3) % VOCAB;
}

static const int32_t PROMPT[] = {1, 2, 3};
enum { PROMPT_LENGTH = 3 };

static const int32_t *truth(void) {
  static int32_t c[2048];
  memcpy(c, PROMPT, sizeof PROMPT);
  for (int32_t i = PROMPT_LENGTH; i < 2048; i++) c[i] = next_of(c[i - 1]);
  return c;
}

/* --- a ledger that watches the order of things --- */

typedef struct spy {
  ledger inner;
  const actions *out;
  int32_t appended, epochs;
  int fail;       /* code of the next append */
  int fail_epoch; /* code of the next epoch */
  int32_t held;
} spy;

static int spy_begin(void *self, const ledger_record *r) {
  spy *s = self;
  return s->inner.begin(s->inner.self, r);
}

/* Recorded before the first send of that epoch. */
static int spy_epoch(void *self, uint64_t session, uint32_t epoch) {
  spy *s = self;
  for (int32_t i = 0; i < s->out->count; i++) {
    const action *a = &s->out->list[i];
    bool sent = a->kind == ACTION_SEND && a->message->session == session && a->message->epoch == epoch;
    if (sent) fail_msg("%s of epoch %u went out before it was recorded", msg_name(a->message->type), epoch);
  }
  if (s->fail_epoch) return s->fail_epoch;
  s->epochs++;
  return s->inner.epoch(s->inner.self, session, epoch);
}

/* Logged before it is acknowledged. */
static int spy_append(void *self, uint64_t session, int32_t position, const int32_t *tokens, int32_t count) {
  spy *s = self;
  for (int32_t i = 0; i < s->out->count; i++) {
    const action *a = &s->out->list[i];
    if (a->kind != ACTION_SEND || a->message->session != session || a->message->type != MSG_ACK) continue;
    if (a->message->u.state.length > position) fail_msg("acknowledged before it was logged");
  }
  if (s->fail) return s->fail;
  s->appended += count;
  return s->inner.append(s->inner.self, session, position, tokens, count);
}

static int spy_numerics(void *self, uint64_t session, const char *id) {
  spy *s = self;
  return s->inner.numerics(s->inner.self, session, id);
}

static int spy_end(void *self, uint64_t session, int32_t length, wire_finish finish, const msg_stats *stats) {
  spy *s = self;
  return s->inner.end(s->inner.self, session, length, finish, stats);
}

/* A file that is slow: `held` tokens of every session are not written yet. */
static int32_t spy_durable(void *self, uint64_t session) {
  spy *s = self;
  int32_t n = s->inner.durable(s->inner.self, session) - s->held;
  return n > 0 ? n : 0;
}

static bool spy_read(void *self, uint64_t session, ledger_entry *out) {
  spy *s = self;
  return s->inner.read(s->inner.self, session, out);
}

static void spy_forget(void *self, uint64_t session) {
  spy *s = self;
  s->inner.forget(s->inner.self, session);
}

static void spy_close(void *self) {
  spy *s = self;
  s->inner.close(s->inner.self);
}

/* --- the world --- */

typedef struct world {
  rig r;
  sessions_machine *o;
  spy ledger;
  uint64_t random;
  uint64_t id;   /* of the session that `start` began */
  uint64_t seed; /* its hash seed, as the last OPEN told */
  uint32_t epoch;
} world;

static uint64_t some_random(void *context) { /* splitmix64 */
  uint64_t *state = context, x = *state += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static int set_up(void **state) {
  world *w = calloc(1, sizeof *w);
  err e = {0};
  w->random = 1;
  assert_int_equal(ledger_memory(&w->ledger.inner), ERR_OK);
  sessions_options o = {.incarnation = SELF,
                        .vocabulary_size = VOCAB,
                        .random = some_random,
                        .random_context = &w->random,
                        .ledger = {&w->ledger, spy_begin, spy_epoch, spy_append, spy_numerics, spy_end,
                                   spy_durable, spy_read, spy_forget, spy_close}};
  o.vocabulary_hash.bytes[0] = 20;
  o.model_fingerprint.bytes[0] = 10;
  assert_int_equal(sessions_alloc(&w->o, &o, &e), ERR_OK);
  rig_init(&w->r, sessions_as_machine(w->o));
  w->ledger.out = &w->r.out;
  *state = w;
  return 0;
}

static int tear_down(void **state) {
  world *w = *state;
  rig_fini(&w->r);
  sessions_free(w->o);
  w->ledger.inner.close(w->ledger.inner.self);
  free(w);
  return 0;
}

static msg target_hello(peer_id peer) {
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_TARGET, ID(peer));
  m.u.hello.vocabulary_size = VOCAB;
  m.u.hello.vocabulary_hash.bytes[0] = 20;
  m.u.hello.model_fingerprint.bytes[0] = 10;
  m.u.hello.numerics_id = wire_text(peer == TARGET2 ? "cpu-b" : "cpu-a");
  m.u.hello.endpoint = wire_text(peer == TARGET    ? "tcp://127.0.0.1:4000"
                                 : peer == TARGET2 ? "tcp://127.0.0.1:4001"
                                                   : "tcp://127.0.0.1:4002");
  m.u.hello.session_max = 4;
  m.u.hello.context_max = CONTEXT;
  return m;
}

static msg draft_hello(peer_id peer) {
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(peer));
  m.u.hello.method = wire_text("ngram");
  return m;
}

static void register_workers(world *w, peer_id target, peer_id draft) {
  if (target) {
    rig_say(&w->r, target, target_hello(target));
    rig_last(&w->r, target, MSG_WELCOME);
  }
  if (draft) {
    rig_say(&w->r, draft, draft_hello(draft));
    rig_last(&w->r, draft, MSG_WELCOME);
  }
}

static sessions_request request(bool draft) {
  sessions_request r = {.prompt = PROMPT, .prompt_length = PROMPT_LENGTH, .draft = draft};
  r.options = (msg_options){.top_p = 1, .repeat_penalty = 1, .max_tokens = OUTPUT, .budget = 8};
  return r;
}

static void start_request(world *w, const sessions_request *r) {
  err e = {0};
  w->id = sessions_start(w->o, r, w->r.now, &w->r.out, &e);
  if (!w->id) fail_msg("sessions_start: %s", e.text);
}

static sessions_view look(world *w) {
  sessions_view v;
  assert_true(sessions_get(w->o, w->id, &v));
  return v;
}

static void expect_state(world *w, sessions_state state) {
  assert_int_equal(look(w).state, state);
}

static hash16 true_hash(world *w, int32_t length) {
  return hash_of(w->seed, truth(), length);
}

/* Reads the last OPEN to a peer, and checks what holds for each. */
static const msg_open *opened(world *w, peer_id peer) {
  const msg *m = rig_last(&w->r, peer, MSG_OPEN);
  const msg_open *o = &m->u.open;
  assert_int_equal(m->session, w->id);
  assert_true(wire_id_equal(m->to, ID(peer)));
  w->seed = o->hash_seed;
  w->epoch = m->epoch;
  hash16 h = true_hash(w, o->base_length + o->token_count);
  assert_memory_equal(&o->hash, &h, sizeof h);
  assert_memory_equal(o->tokens, truth() + o->base_length, (size_t)o->token_count * sizeof(int32_t));
  if (o->base_length > 0) {
    h = true_hash(w, o->base_length);
    assert_memory_equal(&o->base_hash, &h, sizeof h);
  }
  return o;
}

static msg worker_state(world *w, msg_type type, int32_t length) {
  return state_message(type, SELF, w->id, w->epoch, length, length ? true_hash(w, length) : (hash16){{0}});
}

static void tell_tokens(world *w, peer_id from, int32_t base, int32_t count) {
  msg m = tokens_message(SELF, w->id, w->epoch, base, truth() + base, count, true_hash(w, base + count));
  rig_say(&w->r, from, m);
}

static msg done_message(world *w, int32_t length, wire_finish finish) {
  msg m = message(MSG_DONE, SELF, w->id, w->epoch);
  m.u.done = (msg_done){.length = length, .hash = true_hash(w, length), .finish = finish};
  m.u.done.stats = (msg_stats){.forwards = 30, .rounds = 5, .rows = 20, .accepted = 10, .rewound = 10};
  return m;
}

/* A session that runs at TARGET, with DRAFT if asked for. */
static void start_running(world *w, bool draft) {
  sessions_request r = request(draft);
  register_workers(w, TARGET, draft ? DRAFT : 0);
  rig_clear(&w->r);
  start_request(w, &r);
  if (draft) opened(w, DRAFT);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  if (draft) rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  expect_state(w, SESSIONS_RUNNING);
  rig_clear(&w->r);
}

/* Time passes, and these are not silent. */
static void pass(world *w, uint64_t us, peer_id a, peer_id b) {
  for (uint64_t left = us; left > 0;) {
    uint64_t step = left < 400000 ? left : 400000;
    rig_advance(&w->r, step);
    if (a) rig_say(&w->r, a, ping_message(MSG_PING, SELF, 1, 1, 0));
    if (b) rig_say(&w->r, b, ping_message(MSG_PING, SELF, 1, 1, 0));
    left -= step;
  }
}

static void set_load(world *w, peer_id peer, int32_t load) {
  rig_say(&w->r, peer, ping_message(MSG_PONG, SELF, 0, w->r.now, load));
}

/* --- registering --- */

static void test_workers(void **state) {
  world *w = *state;
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 0);
  register_workers(w, TARGET, DRAFT);
  register_workers(w, TARGET2, 0);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 2);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_DRAFT), 1);
  assert_true(text_is(sessions_worker(w->o, WIRE_ROLE_DRAFT, 0)->method, "ngram"));
  assert_null(sessions_worker(w->o, WIRE_ROLE_DRAFT, 1));
  pass(w, 4000000, TARGET, DRAFT);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 1); /* the other is lost */
}

static void test_refuses_another_model(void **state) {
  world *w = *state;
  msg m = target_hello(TARGET);
  m.u.hello.model_fingerprint.bytes[0] = 11;
  rig_say(&w->r, TARGET, m);
  rig_expect_error(&w->r, TARGET, ERR_MISMATCH);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 0);
}

/* --- opening --- */

static void test_open_at_a_target(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, DRAFT);
  static const int32_t stops[] = {7, 8};
  r.options.stops = stops;
  r.options.stop_count = 2;
  r.options.seed = 77;
  start_request(w, &r);
  const msg_open *o = opened(w, TARGET);
  assert_int_equal(w->epoch, 1);
  assert_int_equal(o->base_length, 0);
  assert_int_equal(o->token_count, PROMPT_LENGTH);
  assert_int_equal(o->prompt_length, PROMPT_LENGTH);
  assert_false(wire_id_equal(o->ticket, (wire_id){{0}}));
  assert_int_equal(o->options.max_tokens, OUTPUT);
  assert_int_equal(o->options.context, CONTEXT); /* the target's own */
  assert_int_equal(o->options.seed, 77);
  assert_int_equal(o->options.stop_count, 2);
  assert_memory_equal(o->options.stops, stops, sizeof stops);
  assert_false(o->draft_expected);
  assert_int_equal(o->target_endpoint.size, 0);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0); /* none was wanted */
  expect_state(w, SESSIONS_OPENING);
}

static void test_open_at_both(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  const msg_open *t = opened(w, TARGET);
  assert_true(t->draft_expected);
  wire_id ticket = t->ticket;
  const msg_open *d = opened(w, DRAFT);
  assert_true(wire_id_equal(d->ticket, ticket));
  assert_true(text_is(d->target_endpoint, "tcp://127.0.0.1:4000"));
  assert_true(wire_id_equal(d->target_incarnation, ID(TARGET)));
  assert_int_equal(d->options.context, CONTEXT);
  assert_string_equal(look(w).draft_method, "ngram");
}

static void test_open_again_until_opened(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  rig_clear(&w->r);
  start_request(w, &r);
  for (int i = 1; i < 4; i++) {
    pass(w, SESSIONS_REPEAT_US, TARGET, DRAFT);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), i + 1);
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), i + 1);
  }
  opened(w, TARGET);
  assert_int_equal(w->epoch, 1);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_clear(&w->r);
  pass(w, 3 * SESSIONS_REPEAT_US, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
}

static void test_waits_for_a_target(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  start_request(w, &r);
  expect_state(w, SESSIONS_WAITING);
  rig_advance(&w->r, 20000000);
  expect_state(w, SESSIONS_WAITING);
  register_workers(w, TARGET, 0);
  opened(w, TARGET);
  expect_state(w, SESSIONS_OPENING);
}

/* An owner whose workers are placed by hand may wait longer, or for ever. */
static void test_no_target_for_as_long_as_it_takes(void **state) {
  world *w = *state;
  static const uint64_t waits[] = {MACHINE_NEVER, 3 * SESSIONS_TARGET_WAIT_US};
  for (int i = 0; i < 2; i++) {
    rig_fini(&w->r);
    sessions_free(w->o);
    err e = {0};
    sessions_options o = {
        .incarnation = SELF, .random = some_random, .random_context = &w->random, .target_wait_us = waits[i]};
    o.ledger = w->ledger.inner;
    assert_int_equal(sessions_alloc(&w->o, &o, &e), ERR_OK);
    rig_init(&w->r, sessions_as_machine(w->o));
    sessions_request r = request(false);
    register_workers(w, 0, DRAFT);
    start_request(w, &r);
    pass(w, 2 * SESSIONS_TARGET_WAIT_US, DRAFT, 0);
    assert_int_equal(look(w).finish, 0);
    pass(w, 2 * SESSIONS_TARGET_WAIT_US, DRAFT, 0);
    assert_int_equal(look(w).code, i ? ERR_TIMEOUT : 0);
  }
}

static void test_no_target_for_half_a_minute(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, 0, DRAFT); /* a draft alone answers nothing */
  start_request(w, &r);
  pass(w, SESSIONS_TARGET_WAIT_US - 1000000, DRAFT, 0);
  assert_int_equal(look(w).finish, 0);
  pass(w, 1500000, DRAFT, 0);
  sessions_view v = look(w);
  assert_int_equal(v.finish, WIRE_FINISH_ERROR);
  assert_int_equal(v.code, ERR_TIMEOUT);
  assert_true(strlen(v.text) > 0);
  pass(w, 5000000, DRAFT, 0);
  expect_state(w, SESSIONS_FINISHED);
}

static void test_the_ledger_knows_first(void **state) {
  world *w = *state;
  start_running(w, false); /* spy_epoch and spy_append watch */
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.epoch, 1);
  assert_int_equal(entry.prompt_length, PROMPT_LENGTH);
  assert_int_equal(entry.hash_seed, w->seed);
  assert_memory_equal(entry.tokens, PROMPT, sizeof PROMPT);
  assert_int_equal(w->ledger.epochs, 1);
}

/* OPEN waits for the ledger; tokens are acknowledged without it, and may be shown when they are there. */
static void test_a_slow_ledger(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  w->ledger.held = PROMPT_LENGTH;
  start_request(w, &r);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, DRAFT); /* whatever it takes */
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
  assert_int_equal(look(w).logged, 0);
  w->ledger.held = 0;
  rig_advance(&w->r, 0);
  rig_say(&w->r, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0));
  opened(w, DRAFT);
  opened(w, TARGET);
  pass(w, 1000000, TARGET, DRAFT);
  expect_state(w, SESSIONS_OPENING); /* that time was not the target's */
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  w->ledger.held = 2;
  tell_tokens(w, TARGET, 3, 4);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ACK)->u.state.length, 7);
  assert_int_equal(look(w).length, 7);
  assert_int_equal(look(w).logged, 5);
  w->ledger.held = 0;
  assert_int_equal(look(w).logged, 7);
}

/* A session of another process: the next epoch, the whole prefix, and the same hash seed. */
static void test_resumes(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  sessions_resume resume = {.session = 1234,
                            .hash_seed = 4321,
                            .epoch = 16,
                            .output = truth() + PROMPT_LENGTH,
                            .output_length = 5,
                            .numerics = "cpu-b"};
  r.resume = &resume;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  assert_int_equal(w->id, 1234);
  const msg_open *o = opened(w, TARGET);
  assert_int_equal(w->epoch, 17);
  assert_int_equal(w->seed, 4321);
  assert_int_equal(o->prompt_length, PROMPT_LENGTH);
  assert_int_equal(o->token_count, PROMPT_LENGTH + 5);
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.epoch, 17);
  assert_int_equal(entry.prompt_length, PROMPT_LENGTH);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH + 5));
  assert_false(look(w).numerics_changed);
  tell_tokens(w, TARGET, PROMPT_LENGTH + 5, 2);
  assert_int_equal(look(w).length, PROMPT_LENGTH + 7);
  assert_int_equal(w->ledger.appended, 2);
  assert_true(look(w).numerics_changed); /* cpu-a goes on with what cpu-b began */
  assert_int_equal(look(w).uncounted, 7);
  rig_say(&w->r, TARGET, done_message(w, PROMPT_LENGTH + 7, WIRE_FINISH_LENGTH));
  assert_int_equal(look(w).uncounted, 5); /* what an earlier run has decoded */
}

static void test_resumes_nothing_that_is_full(void **state) {
  world *w = *state;
  err e = {0};
  sessions_request r = request(false);
  sessions_resume resume = {.session = 1234,
                            .epoch = 1,
                            .output = truth() + PROMPT_LENGTH,
                            .output_length = OUTPUT,
                            .numerics = ""};
  r.resume = &resume;
  assert_int_equal(sessions_start(w->o, &r, w->r.now, &w->r.out, &e), 0);
  assert_int_equal(e.code, ERR_ARG);
}

static void test_sessions_are_apart(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  const msg_open *a = opened(w, TARGET);
  uint64_t id = w->id, seed = a->hash_seed;
  wire_id ticket = a->ticket;
  start_request(w, &r);
  const msg_open *b = opened(w, TARGET);
  assert_true(w->id != id && b->hash_seed != seed && !wire_id_equal(b->ticket, ticket));
}

static void test_requests_that_cannot_be(void **state) {
  world *w = *state;
  static int32_t many[WIRE_TOKENS_MAX + 1];
  static const int32_t negative[] = {1, -2};
  err e = {0};
  static const int32_t outside[] = {1, VOCAB};
  sessions_request bad[10];
  for (int i = 0; i < 10; i++) bad[i] = request(false);
  bad[8].prompt = bad[9].prompt = many; /* no OPEN could carry the whole of it to another target later */
  bad[8].prompt_length = WIRE_TOKENS_MAX;
  bad[8].options.max_tokens = 1;
  bad[9].prompt_length = 1;
  bad[9].options.max_tokens = WIRE_TOKENS_MAX;
  bad[5].prompt = outside;
  bad[5].prompt_length = 2;
  bad[6].options.temperature = NAN;
  bad[7].options.context = -1;
  bad[0].prompt_length = 0;
  bad[1].options.max_tokens = 0;
  bad[2].prompt = many;
  bad[2].prompt_length = WIRE_TOKENS_MAX + 1;
  bad[3].options.budget = WIRE_BUDGET_MAX + 1;
  bad[4].prompt = negative;
  bad[4].prompt_length = 2;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    e = (err){0};
    if (sessions_start(w->o, &bad[i], w->r.now, &w->r.out, &e) != 0) fail_msg("row %d was taken", (int)i);
    assert_true(e.code == ERR_ARG || e.code == ERR_LIMIT);
    assert_true(strlen(e.text) > 0);
  }
}

/* The longest answer that is taken can move to another target at its very end, its draft with it. */
static void test_longest_answer_moves(void **state) {
  world *w = *state;
  static int32_t many[WIRE_TOKENS_MAX];
  sessions_request r = request(true);
  r.prompt = many;
  r.prompt_length = WIRE_TOKENS_MAX - 10;
  r.options.max_tokens = 1000;
  r.options.context = WIRE_TOKENS_MAX;
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  uint64_t seed = rig_last(&w->r, TARGET, MSG_OPEN)->u.open.hash_seed;
  rig_say(&w->r, TARGET,
          state_message(MSG_OPENED, SELF, w->id, 1, r.prompt_length, hash_of(seed, many, r.prompt_length)));
  rig_say(&w->r, TARGET,
          tokens_message(SELF, w->id, 1, r.prompt_length, many, 10, hash_of(seed, many, WIRE_TOKENS_MAX)));
  assert_int_equal(look(w).length, WIRE_TOKENS_MAX);
  register_workers(w, TARGET2, 0);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  assert_int_equal(rig_last(&w->r, TARGET2, MSG_OPEN)->u.open.token_count, WIRE_TOKENS_MAX);
  assert_int_equal(rig_last(&w->r, DRAFT, MSG_OPEN)->u.open.token_count <= WIRE_TOKENS_MAX, 1);
}

static void test_no_more_sessions_than_it_holds(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  err e = {0};
  for (int i = 0; i < SESSIONS_MAX; i++) start_request(w, &r);
  assert_int_equal(sessions_start(w->o, &r, w->r.now, &w->r.out, &e), 0);
  assert_int_equal(e.code, ERR_FULL);
  uint64_t last = w->id;
  sessions_cancel(w->o, last, w->r.now, &w->r.out);
  sessions_release(w->o, last, w->r.now, &w->r.out);
  rig_advance(&w->r, 5000000);
  start_request(w, &r);
}

/* --- the stream --- */

static void test_tokens_are_logged_shown_acknowledged(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 4);
  sessions_view v = look(w);
  assert_int_equal(v.length, 7);
  assert_int_equal(v.prompt_length, PROMPT_LENGTH);
  assert_memory_equal(v.tokens, truth(), 7 * sizeof(int32_t));
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.length, 7);
  const msg *a = rig_only(&w->r, TARGET, MSG_ACK);
  hash16 h = true_hash(w, 7);
  assert_int_equal(a->u.state.length, 7);
  assert_memory_equal(&a->u.state.hash, &h, sizeof h);
}

static void test_tokens_again_and_overlapping(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 4);
  tell_tokens(w, TARGET, 3, 4);
  tell_tokens(w, TARGET, 1, 4);
  tell_tokens(w, TARGET, 5, 4);
  tell_tokens(w, TARGET, 9, 0);
  assert_int_equal(look(w).length, 9);
  assert_int_equal(w->ledger.appended, 6);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ACK), 5); /* one for every TOKENS */
  assert_int_equal(look(w).repairs, 0);
}

static void test_tokens_beyond(void **state) {
  world *w = *state;
  start_running(w, false);
  w->r.now += 30000;
  tell_tokens(w, TARGET, 5, 2);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_RESEND)->u.resend.from, 3);
  assert_int_equal(look(w).length, 3);
  for (int i = 0; i < 100; i++) {
    w->r.now += 100; /* 10 ms in all */
    tell_tokens(w, TARGET, 7 + i, 1);
  }
  assert_true(rig_count(&w->r, TARGET, MSG_RESEND) <= 2);
}

static void test_tokens_that_conflict(void **state) {
  world *w = *state;
  for (int i = 0; i < 2; i++) {
    if (i == 0) {
      start_running(w, true);
      tell_tokens(w, TARGET, 3, 4);
    }
    rig_clear(&w->r);
    int32_t tokens[3];
    memcpy(tokens, truth() + 5, sizeof tokens);
    msg m = tokens_message(SELF, w->id, w->epoch, 5, tokens, 3, true_hash(w, 8));
    if (i == 0) tokens[0]++;
    if (i == 1) m.u.tokens.hash.bytes[5] ^= 1;
    uint32_t before = w->epoch;
    rig_say(&w->r, TARGET, m);
    assert_int_equal(look(w).length, 7); /* nothing of it was taken */
    const msg_open *o = opened(w, TARGET);
    assert_int_equal(w->epoch, before + 1);
    assert_int_equal(o->base_length + o->token_count, 7);
    opened(w, DRAFT);
    assert_int_equal(w->epoch, before + 1);
    rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 7));
    rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, 7));
    expect_state(w, SESSIONS_RUNNING);
    assert_int_equal(look(w).repairs, i + 1);
  }
}

static void test_tokens_of_other_epochs(void **state) {
  world *w = *state;
  start_running(w, false);
  rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 3)); /* to epoch 2 */
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  w->epoch = 1;
  tell_tokens(w, TARGET, 3, 2);
  assert_int_equal(look(w).length, 3);
  w->epoch = 3;
  tell_tokens(w, TARGET, 3, 2);
  assert_int_equal(look(w).length, 3);
  w->epoch = 2;
  tell_tokens(w, TARGET, 3, 2);
  assert_int_equal(look(w).length, 5);
}

/* TOKENS may overtake OPENED. */
static void test_tokens_before_opened(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  rig_clear(&w->r);
  tell_tokens(w, TARGET, 3, 2);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  pass(w, 1000000, TARGET, 0);
  tell_tokens(w, TARGET, 3, 3);
  assert_int_equal(look(w).length, 6);
  expect_state(w, SESSIONS_RUNNING);
}

static void test_ack_when_idle(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 2);
  rig_clear(&w->r);
  pass(w, 5 * SESSIONS_ACK_US + 1000, TARGET, 0);
  int32_t acks = rig_count(&w->r, TARGET, MSG_ACK);
  assert_true(acks >= 4 && acks <= 6);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ACK)->u.state.length, 5);
}

/* An epoch that is not recorded is never sent: the answer ends, and what is told to the workers has the last
 * one. */
static void test_an_epoch_that_is_not_recorded(void **state) {
  world *w = *state;
  start_running(w, false);
  w->ledger.fail_epoch = ERR_GONE;
  rig_clear(&w->r);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_END)->epoch, 1);
  w->ledger.fail_epoch = 0;
  start_running(w, false);
  w->ledger.fail_epoch = ERR_GONE;
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  assert_int_equal(look(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
  w->ledger.fail_epoch = 0;
  sessions_request r = request(false);
  sessions_resume resume = {.session = 1234,
                            .hash_seed = 4321,
                            .epoch = 16,
                            .output = truth() + PROMPT_LENGTH,
                            .output_length = 5,
                            .numerics = "cpu-b"};
  r.resume = &resume;
  register_workers(w, TARGET, 0);
  rig_clear(&w->r);
  w->ledger.held = 100;
  start_request(w, &r); /* it counts with the beginning, */
  w->ledger.held = 0;
  w->ledger.fail_epoch = ERR_GONE; /* which is another process's by then */
  rig_advance(&w->r, 0);
  rig_say(&w->r, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0));
  assert_int_equal(look(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
}

static void test_ledger_fails(void **state) {
  world *w = *state;
  start_running(w, false);
  w->ledger.fail = ERR_IO;
  tell_tokens(w, TARGET, 3, 2);
  sessions_view v = look(w);
  assert_int_equal(v.length, 3); /* not logged, so not shown */
  assert_int_equal(v.finish, WIRE_FINISH_ERROR);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ACK), 0);
}

/* --- the end --- */

static void finish_by_done(world *w, int32_t length) {
  rig_say(&w->r, TARGET, done_message(w, length, WIRE_FINISH_LENGTH));
}

static void test_done(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, OUTPUT);
  rig_clear(&w->r);
  finish_by_done(w, 3 + OUTPUT);
  sessions_view v = look(w);
  assert_int_equal(v.state, SESSIONS_ENDING);
  assert_int_equal(v.finish, WIRE_FINISH_LENGTH);
  assert_int_equal(v.stats.forwards, 30);
  assert_int_equal(v.stats.accepted, 10);
  assert_true(rig_only(&w->r, TARGET, MSG_END)->epoch >= w->epoch);
  rig_only(&w->r, DRAFT, MSG_END);
  uint32_t epoch = rig_only(&w->r, TARGET, MSG_END)->epoch;
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_true(entry.ended);
  msg ended = message(MSG_ENDED, SELF, w->id, epoch);
  ended.u.existed = true;
  rig_say(&w->r, TARGET, ended);
  expect_state(w, SESSIONS_ENDING);
  rig_say(&w->r, DRAFT, ended);
  expect_state(w, SESSIONS_FINISHED);
  rig_clear(&w->r);
  pass(w, 3000000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_END), 0);
  sessions_release(w->o, w->id, w->r.now, &w->r.out);
  assert_false(sessions_get(w->o, w->id, &v));
}

/* DONE has overtaken the last tokens. */
static void test_done_before_its_tokens(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 10);
  w->r.now += 30000;
  finish_by_done(w, 3 + OUTPUT);
  assert_int_equal(look(w).finish, 0);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_RESEND)->u.resend.from, 13);
  tell_tokens(w, TARGET, 13, OUTPUT - 10);
  finish_by_done(w, 3 + OUTPUT);
  assert_int_equal(look(w).finish, WIRE_FINISH_LENGTH);
  assert_int_equal(look(w).length, 3 + OUTPUT);
}

static void test_done_with_an_error(void **state) {
  world *w = *state;
  start_running(w, true);
  msg m = done_message(w, 3, WIRE_FINISH_ERROR);
  m.u.done.code = ERR_INTERNAL;
  m.u.done.text = wire_text("the engine failed");
  m.u.done.off_reason = wire_text("no draft");
  rig_say(&w->r, TARGET, m);
  sessions_view v = look(w);
  assert_int_equal(v.finish, WIRE_FINISH_ERROR);
  assert_int_equal(v.code, ERR_INTERNAL);
  assert_string_equal(v.text, "the engine failed");
  assert_string_equal(v.off_reason, "no draft");
}

/* A DONE that stands on another prefix than what was logged ends nothing well. */
static void test_done_of_another_prefix(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 10);
  msg m = done_message(w, 13, WIRE_FINISH_STOP);
  m.u.done.hash.bytes[0] ^= 1;
  rig_say(&w->r, TARGET, m);
  assert_int_equal(look(w).finish, 0);
  m = done_message(w, 8, WIRE_FINISH_STOP); /* shorter than what it told before */
  rig_say(&w->r, TARGET, m);
  assert_true(look(w).finish != WIRE_FINISH_STOP || look(w).length == 8);
}

/* An answer ends only with all that was logged: a DONE of a shorter prefix, right as that is, or of a wrong
 * one, is repaired, of a longer one asked for. */
static void test_done_of_every_length(void **state) {
  enum { LOGGED = 9 };
  for (int32_t length = 0; length <= LOGGED + 2; length++)
    for (int wrong = 0; wrong < 2; wrong++) {
      tear_down(state);
      set_up(state);
      world *w = *state;
      start_running(w, false);
      tell_tokens(w, TARGET, 3, LOGGED - 3);
      rig_clear(&w->r);
      w->r.now += 30000;
      msg m = done_message(w, length, WIRE_FINISH_STOP);
      m.u.done.hash.bytes[0] ^= (uint8_t)wrong;
      rig_say(&w->r, TARGET, m);
      bool ends = length == LOGGED && !wrong;
      assert_int_equal(look(w).finish, ends ? WIRE_FINISH_STOP : 0);
      assert_int_equal(look(w).length, LOGGED);
      assert_int_equal(rig_count(&w->r, TARGET, MSG_RESEND), length > LOGGED);
      assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), length <= LOGGED && !ends);
      assert_int_equal(rig_count(&w->r, TARGET, MSG_END), ends);
      if (length > LOGGED || ends) continue;
      const msg_open *o = opened(w, TARGET); /* in a new epoch, from what both have */
      assert_int_equal(w->epoch, 2);
      assert_int_equal(o->base_length, wrong ? 0 : length);
      assert_int_equal(o->base_length + o->token_count, LOGGED);
      rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, LOGGED));
      tell_tokens(w, TARGET, LOGGED, 2);
      finish_by_done(w, LOGGED + 2);
      assert_int_equal(look(w).finish, WIRE_FINISH_LENGTH);
      assert_int_equal(look(w).length, LOGGED + 2);
    }
}

static void test_end_is_told_five_times(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 5);
  rig_clear(&w->r);
  finish_by_done(w, 8);
  pass(w, 10000000, TARGET, DRAFT); /* nobody says ENDED */
  assert_int_equal(rig_count(&w->r, TARGET, MSG_END), SESSIONS_END_TRIES);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_END), SESSIONS_END_TRIES);
  expect_state(w, SESSIONS_FINISHED);
}

static void test_end_of_lost_workers(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 5);
  rig_advance(&w->r, 2900000);
  finish_by_done(w, 8);
  rig_advance(&w->r, 5000000); /* all are silent */
  expect_state(w, SESSIONS_FINISHED);
}

static void test_cancel(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 5);
  rig_clear(&w->r);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_END)->epoch, w->epoch + 1); /* an epoch bump */
  assert_int_equal(rig_only(&w->r, DRAFT, MSG_END)->epoch, w->epoch + 1);
  assert_int_equal(look(w).finish, WIRE_FINISH_CANCELLED);
  assert_int_equal(look(w).length, 8); /* what there is */
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.epoch, w->epoch + 1); /* recorded: nobody uses it for anything else */
  tell_tokens(w, TARGET, 8, 5);                /* late */
  assert_int_equal(look(w).length, 8);
  w->epoch++;
  rig_say(&w->r, TARGET, done_message(w, 13, WIRE_FINISH_CANCELLED));
  assert_int_equal(look(w).stats.forwards, 30); /* its figures */
  assert_int_equal(look(w).length, 8);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out); /* again: nothing */
  assert_int_equal(look(w).finish, WIRE_FINISH_CANCELLED);
}

static void test_cancel_while_waiting(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  start_request(w, &r);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
  assert_int_equal(look(w).finish, WIRE_FINISH_CANCELLED);
  rig_advance(&w->r, 5000000);
  expect_state(w, SESSIONS_FINISHED);
  register_workers(w, TARGET, 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
}

static void test_cancel_nobody(void **state) {
  world *w = *state;
  sessions_cancel(w->o, 12345, w->r.now, &w->r.out);
  sessions_release(w->o, 12345, w->r.now, &w->r.out);
  assert_int_equal(w->r.out.count, 0);
}

static void test_release_of_a_running_one(void **state) {
  world *w = *state;
  start_running(w, true);
  sessions_release(w->o, w->id, w->r.now, &w->r.out);
  assert_true(rig_only(&w->r, TARGET, MSG_END)->epoch > 1);
  rig_only(&w->r, DRAFT, MSG_END);
}

static void test_unknown_session_is_ended(void **state) {
  world *w = *state;
  static const msg_type types[] = {MSG_TOKENS, MSG_DONE, MSG_DESYNC, MSG_OPENED};
  register_workers(w, TARGET, DRAFT);
  for (int i = 0; i < 4; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, TARGET, message(types[i], SELF, 4711, 6));
    const msg *m = rig_only(&w->r, TARGET, MSG_END);
    assert_int_equal(m->session, 4711);
    assert_true(m->epoch >= 6);
  }
  rig_clear(&w->r);
  msg ended = message(MSG_ENDED, SELF, 4711, 6);
  rig_say(&w->r, TARGET, ended); /* or the two would talk for ever */
  rig_say(&w->r, TARGET, error_message(SELF, 4711, 6, ERR_STALE));
  assert_int_equal(rig_count_all(&w->r, TARGET), 0);
}

/* --- stop strings --- */

typedef struct censor {
  int32_t calls, seen, keep_until; /* keeps tokens while fewer than so many were seen; */
  int32_t after;                   /* but all of the first runs, until so many were */
  bool stop;
} censor;

static int32_t admit(void *context, const int32_t *tokens, int32_t count, bool *stop) {
  censor *c = context;
  c->calls++;
  assert_memory_equal(tokens, truth() + PROMPT_LENGTH + c->seen, (size_t)count * sizeof(int32_t));
  int32_t keep = c->keep_until - c->seen < count ? c->keep_until - c->seen : count;
  c->seen += count;
  *stop = c->stop && c->seen >= c->keep_until;
  return c->seen < c->after ? count : keep;
}

static void admit_case(world *w, censor *c, int32_t want) {
  sessions_request r = request(true);
  r.admit = admit;
  r.admit_context = c;
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  tell_tokens(w, TARGET, 3, 4);
  tell_tokens(w, TARGET, 3, 4); /* repeated: admitted once */
  assert_int_equal(look(w).finish, 0);
  assert_int_equal(c->seen, 4);
  rig_clear(&w->r);
  tell_tokens(w, TARGET, 7, 4);
  sessions_view v = look(w);
  assert_int_equal(v.finish, WIRE_FINISH_STOP);
  assert_int_equal(v.length, PROMPT_LENGTH + want);
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.length, PROMPT_LENGTH + want); /* nothing past it is logged */
  assert_true(entry.ended);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_END)->epoch, w->epoch + 1);
  rig_only(&w->r, DRAFT, MSG_END);
}

static void test_admit_keeps_fewer(void **state) {
  censor c = {.keep_until = 6};
  admit_case(*state, &c, 6);
}

static void test_admit_keeps_all_and_stops(void **state) {
  censor c = {.keep_until = 8, .stop = true};
  admit_case(*state, &c, 8);
}

static void test_admit_keeps_none(void **state) {
  censor c = {.keep_until = 4};
  admit_case(*state, &c, 4);
}

/* The stop string began in tokens that are logged, and acknowledged, already: they go as well. */
static void test_admit_takes_back(void **state) {
  world *w = *state;
  censor c = {.keep_until = 2, .after = 5};
  admit_case(w, &c, 2);
  assert_int_equal(w->ledger.appended, 4);
}

/* --- repairs --- */

static void test_desync_with_an_own_prefix(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 7);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 5)); /* its cache was cut */
  const msg_open *o = opened(w, TARGET);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->base_length, 5);
  assert_int_equal(opened(w, DRAFT)->base_length, 10); /* nothing is told twice to the other one */
  assert_int_equal(o->token_count, 5);
  opened(w, DRAFT);
  assert_int_equal(w->epoch, 2); /* all are opened in the new epoch */
  assert_int_equal(look(w).repairs, 1);
  assert_int_equal(look(w).epoch, 2);
  expect_state(w, SESSIONS_OPENING);
}

static void test_desync_with_another_prefix(void **state) {
  world *w = *state;
  static const int32_t lengths[] = {5, 0, 300, WIRE_CONTEXT_MAX};
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 7);
  for (int i = 0; i < 4; i++) {
    msg m = worker_state(w, MSG_DESYNC, lengths[i] < 1000 ? lengths[i] : 9);
    m.u.state.length = lengths[i];
    if (i != 1) m.u.state.hash.bytes[0] ^= 1;
    rig_clear(&w->r);
    rig_say(&w->r, TARGET, m);
    const msg_open *o = opened(w, TARGET);
    assert_int_equal(o->base_length, 0);
    assert_int_equal(o->token_count, 10);
    assert_int_equal(w->epoch, i + 2);
    assert_int_equal(o->prompt_length, PROMPT_LENGTH);
  }
}

/* Said twice in one epoch (repeated by the network), it is one repair. */
static void test_desync_twice(void **state) {
  world *w = *state;
  start_running(w, false);
  msg m = worker_state(w, MSG_DESYNC, 2);
  rig_say(&w->r, TARGET, m);
  rig_say(&w->r, TARGET, m);
  assert_int_equal(look(w).epoch, 2);
  assert_int_equal(look(w).repairs, 1);
}

static void test_too_many_repairs(void **state) {
  world *w = *state;
  start_running(w, false);
  int32_t i = 0;
  for (; i < 3 * SESSIONS_DESYNC_MAX && look(w).finish == 0; i++) {
    w->epoch = look(w).epoch;
    rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 2));
    w->r.now += 10000;
  }
  assert_true(i >= SESSIONS_DESYNC_MAX && i <= SESSIONS_DESYNC_MAX + 2);
  assert_int_equal(look(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(look(w).code, ERR_DESYNC);
}

static void test_desync_of_the_draft(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 7);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_DESYNC, 6));
  const msg_open *o = opened(w, DRAFT);
  assert_int_equal(w->epoch, 1);
  assert_int_equal(o->base_length, 6);
  assert_int_equal(o->token_count, 4);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0); /* the answer is not disturbed */
  expect_state(w, SESSIONS_RUNNING);
}

/* What it holds, if that is right; else everything. */
static void test_desync_of_a_draft_with_another_prefix(void **state) {
  for (int32_t length = 0; length <= 12; length++)
    for (int wrong = 0; wrong < 2; wrong++) {
      tear_down(state);
      set_up(state);
      world *w = *state;
      start_running(w, true);
      tell_tokens(w, TARGET, 3, 7);
      rig_clear(&w->r);
      msg m = worker_state(w, MSG_DESYNC, length);
      m.u.state.hash.bytes[3] ^= (uint8_t)wrong;
      rig_say(&w->r, DRAFT, m);
      const msg_open *o = opened(w, DRAFT);
      assert_int_equal(o->base_length, length <= 10 && !wrong ? length : 0);
      assert_int_equal(o->base_length + o->token_count, 10);
    }
}

/* So many, and no more. */
static void test_desyncs_until_a_draft_is_given_up(void **state) {
  world *w = *state;
  start_running(w, true);
  for (int i = 1; i <= SESSIONS_DESYNC_MAX + 1; i++) {
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_END), 0);
    rig_say(&w->r, DRAFT, worker_state(w, MSG_DESYNC, 0));
  }
  rig_only(&w->r, DRAFT, MSG_END);
}

/* ENDED of a session that runs, by whoever said END: the target is told of the end all the same. */
static void test_ended_before_the_end(void **state) {
  world *w = *state;
  start_running(w, true);
  rig_say(&w->r, TARGET, message(MSG_ENDED, SELF, w->id, w->epoch));
  rig_say(&w->r, DRAFT, message(MSG_ENDED, SELF, w->id, w->epoch));
  expect_state(w, SESSIONS_RUNNING);
  rig_clear(&w->r);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
  rig_only(&w->r, TARGET, MSG_END);
  rig_only(&w->r, DRAFT, MSG_END);
  expect_state(w, SESSIONS_ENDING);
}

/* A target that holds more than was logged tells it later, by TOKENS. */
static void test_opened_with_more_than_is_logged(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH + 4));
  expect_state(w, SESSIONS_RUNNING);
  assert_int_equal(look(w).repairs, 0);
}

/* A draft that is never content costs little, and the answer goes on. */
static void test_desync_storm_of_a_draft(void **state) {
  world *w = *state;
  start_running(w, true);
  for (int i = 0; i < 2000; i++) {
    w->r.now += 50; /* 100 ms in all */
    rig_say(&w->r, DRAFT, worker_state(w, MSG_DESYNC, 0));
  }
  assert_true(rig_count(&w->r, DRAFT, MSG_OPEN) <= 2 * SESSIONS_DESYNC_MAX);
  assert_int_equal(look(w).finish, 0);
  tell_tokens(w, TARGET, 3, 7);
  assert_int_equal(look(w).length, 10);
}

/* One that has refused is asked again when it is another one. */
static void test_a_restarted_draft_has_not_refused(void **state) {
  world *w = *state;
  start_running(w, true);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
  msg m = draft_hello(DRAFT);
  m.u.hello.incarnation = id_of(77);
  rig_say(&w->r, DRAFT, m);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT);
  assert_true(rig_count(&w->r, DRAFT, MSG_OPEN) > 0);
}

/* --- errors of a target --- */

static void test_errors_that_end_it(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_ARG, ERR_LIMIT, ERR_UNSUPPORTED};
  register_workers(w, TARGET, 0);
  for (int i = 0; i < 3; i++) {
    sessions_request r = request(false);
    start_request(w, &r);
    opened(w, TARGET);
    msg m = error_message(SELF, w->id, w->epoch, codes[i]);
    m.u.error.text = wire_text("temperature must be positive");
    rig_say(&w->r, TARGET, m);
    sessions_view v = look(w);
    assert_int_equal(v.finish, WIRE_FINISH_ERROR);
    assert_int_equal(v.code, codes[i]);
    assert_string_equal(v.text, "temperature must be positive");
  }
}

static void test_errors_that_lead_elsewhere(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_GONE, ERR_STALE, ERR_FULL, ERR_DRAINING};
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET2, 0);
  for (int i = 0; i < 4; i++) {
    sessions_request r = request(false);
    rig_clear(&w->r);
    start_request(w, &r);
    peer_id first = rig_count(&w->r, TARGET, MSG_OPEN) ? TARGET : TARGET2;
    opened(w, first);
    rig_clear(&w->r);
    rig_say(&w->r, first, error_message(SELF, w->id, w->epoch, codes[i]));
    pass(w, 2000000, TARGET, TARGET2);
    assert_int_equal(look(w).finish, 0);
    assert_true(rig_count(&w->r, RIG_ANY, MSG_OPEN) >= 1);
    assert_true(look(w).epoch >= 2); /* every change of target, every new try, is a higher epoch */
    if (codes[i] == ERR_FULL || codes[i] == ERR_DRAINING) {
      peer_id other = first == TARGET ? TARGET2 : TARGET;
      assert_true(rig_count(&w->r, other, MSG_OPEN) >= 1);
    }
    sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
    pass(w, 3000000, TARGET, TARGET2);
    sessions_release(w->o, w->id, w->r.now, &w->r.out);
  }
}

/* The only target is full: it is asked again, in measure, until it is not. */
static void test_full_is_tried_again(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  rig_clear(&w->r);
  start_request(w, &r);
  uint32_t refused = 0;
  for (int i = 0; i < 200; i++) { /* 10 s */
    if (rig_count(&w->r, TARGET, MSG_OPEN)) {
      opened(w, TARGET);
      rig_clear(&w->r);
      rig_say(&w->r, TARGET, error_message(SELF, w->id, w->epoch, ERR_FULL));
      refused++;
    }
    pass(w, 50000, TARGET, 0);
  }
  assert_true(refused >= 3 && refused <= 110);
  assert_int_equal(look(w).finish, 0);
  pass(w, 1000000, TARGET, 0);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  expect_state(w, SESSIONS_RUNNING);
}

static void test_full_for_half_a_minute(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  for (int i = 0; i < 640 && look(w).finish == 0; i++) { /* 32 s */
    rig_say(&w->r, TARGET, error_message(SELF, w->id, look(w).epoch, ERR_FULL));
    rig_clear(&w->r);
    pass(w, 50000, TARGET, 0);
  }
  assert_int_equal(look(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(look(w).code, ERR_TIMEOUT);
}

/* Whoever it is that is wanted, the last OPEN that TARGET got is told that it is full, or taken. */
static void answer_open(world *w, uint64_t id, bool full) {
  w->id = id;
  if (!rig_count(&w->r, TARGET, MSG_OPEN)) return;
  opened(w, TARGET);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET,
          full ? error_message(SELF, id, w->epoch, ERR_FULL) : worker_state(w, MSG_OPENED, PROMPT_LENGTH));
}

/* A session that needs much room is not passed by later ones, and its half minute does not begin while room
 * will come. */
static void test_full_is_waited_for_in_turn(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  start_running(w, false);
  uint64_t running = w->id;
  start_request(w, &r);
  uint64_t first = w->id;
  answer_open(w, first, true);
  start_request(w, &r);
  uint64_t second = w->id;
  for (int i = 0; i < 60; i++) {
    answer_open(w, first, true); /* none of the second */
    pass(w, 1000000, TARGET, 0);
  }
  assert_int_equal(look(w).finish, 0);
  w->id = second;
  expect_state(w, SESSIONS_WAITING);
  answer_open(w, first, true);
  sessions_cancel(w->o, running, w->r.now, &w->r.out);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, message(MSG_ENDED, SELF, running, 2));
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 1); /* at once */
  answer_open(w, first, false);
  expect_state(w, SESSIONS_RUNNING);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 1);
  answer_open(w, second, false);
  expect_state(w, SESSIONS_RUNNING);
}

/* The half minute to open in is the target's, and begins when it is asked. */
static void test_opening_after_a_long_wait(void **state) {
  world *w = *state;
  rig_fini(&w->r);
  sessions_free(w->o);
  err e = {0};
  sessions_options o = {.incarnation = SELF,
                        .random = some_random,
                        .random_context = &w->random,
                        .target_wait_us = MACHINE_NEVER};
  o.ledger = w->ledger.inner;
  assert_int_equal(sessions_alloc(&w->o, &o, &e), ERR_OK);
  rig_init(&w->r, sessions_as_machine(w->o));
  sessions_request r = request(false);
  start_request(w, &r);
  pass(w, 2 * SESSIONS_TARGET_WAIT_US, DRAFT, 0);
  register_workers(w, TARGET, 0);
  pass(w, 1000000, TARGET, 0);
  expect_state(w, SESSIONS_OPENING);
}

/* --- workers come and go --- */

static void test_target_lost(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 7);
  pass(w, 1000000, TARGET, DRAFT);
  register_workers(w, TARGET2, 0);
  rig_clear(&w->r);
  pass(w, 3400000, TARGET2, DRAFT);
  const msg_open *o = opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->base_length, 0); /* the whole prefix */
  assert_int_equal(o->token_count, 10);
  assert_int_equal(o->prompt_length, PROMPT_LENGTH);
  const msg_open *d = opened(w, DRAFT);
  assert_int_equal(w->epoch, 2);
  assert_true(text_is(d->target_endpoint, "tcp://127.0.0.1:4001"));
  assert_true(wire_id_equal(d->target_incarnation, ID(TARGET2)));
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, 10));
  tell_tokens(w, TARGET2, 10, 5);
  assert_int_equal(look(w).length, 15);
  tell_tokens(w, TARGET, 10, 6); /* the old one comes back: it has no say any more */
  assert_int_equal(look(w).length, 15);
  assert_true(look(w).numerics_changed); /* cpu-a, then cpu-b */
  assert_string_equal(look(w).numerics_id, "cpu-b");
}

static void test_failover_prefers_the_same_numerics(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 2);
  register_workers(w, TARGET2, 0); /* cpu-b */
  register_workers(w, TARGET3, 0); /* cpu-a */
  set_load(w, TARGET2, 0);
  set_load(w, TARGET3, 2);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  opened(w, TARGET3);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
  rig_say(&w->r, TARGET3, worker_state(w, MSG_OPENED, 5));
  tell_tokens(w, TARGET3, 5, 2);
  assert_false(look(w).numerics_changed);
}

/* Whose context is too short would refuse; where there is nobody else, that refusal is the answer. */
static void test_targets_of_different_contexts(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.options.context = CONTEXT + 1;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  msg longer = target_hello(TARGET2);
  longer.u.hello.context_max = CONTEXT + 1;
  rig_say(&w->r, TARGET2, longer);
  for (int i = 0; i < 3; i++) { /* more load, and more */
    rig_clear(&w->r);
    start_request(w, &r);
    opened(w, TARGET2);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  }
}

/* A target that was asked but gave no token has had no part in the answer. */
static void test_numerics_of_one_that_refused(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET2, 0); /* cpu-b */
  start_request(w, &r);
  opened(w, TARGET2);
  register_workers(w, TARGET, 0); /* cpu-a */
  rig_say(&w->r, TARGET2, error_message(SELF, w->id, w->epoch, ERR_FULL));
  pass(w, 1000000, TARGET, TARGET2);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  tell_tokens(w, TARGET, 3, 2);
  assert_false(look(w).numerics_changed);
  assert_string_equal(look(w).numerics_id, "cpu-a");
}

static void test_target_died_without_another(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 2);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  expect_state(w, SESSIONS_WAITING);
  rig_advance(&w->r, 1000000);
  register_workers(w, TARGET2, 0);
  const msg_open *o = opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->token_count, 5);
}

static void test_restarted_target(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 2);
  rig_clear(&w->r);
  msg m = target_hello(TARGET);
  m.u.hello.incarnation = id_of(99);
  rig_say(&w->r, TARGET, m); /* the same connection, another program */
  const msg *open = rig_last(&w->r, TARGET, MSG_OPEN);
  assert_true(wire_id_equal(open->to, id_of(99)));
  assert_int_equal(open->epoch, 2);
  assert_int_equal(open->u.open.base_length, 0);
  assert_int_equal(open->u.open.token_count, 5);
}

/* A target that is refused in the middle of its work: its sessions go on elsewhere, or end; they do not hang.
 */
static void test_target_turns_into_another(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 2);
  msg m = target_hello(TARGET);
  m.u.hello.vocabulary_size = VOCAB + 1;
  rig_say(&w->r, TARGET, m);
  rig_last(&w->r, TARGET, MSG_ERROR);
  rig_clear(&w->r);
  register_workers(w, TARGET2, 0);
  pass(w, 5000000, TARGET2, 0);
  opened(w, TARGET2);
  assert_int_equal(look(w).length, 5);
}

/* The same while its OPEN is to be repeated, with nothing known of its context. */
static void test_target_turns_into_another_while_opening(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  msg m = target_hello(TARGET);
  m.u.hello.vocabulary_size = VOCAB + 1;
  rig_say(&w->r, TARGET, m);
  pass(w, 1000000, 0, 0);
  expect_state(w, SESSIONS_WAITING);
}

/* --- a target that hangs while its connection is well --- */

static int32_t warnings(world *w, const char *part) {
  int32_t n = 0;
  for (int32_t i = 0; i < w->r.out.count; i++) {
    const action *a = &w->r.out.list[i];
    n += a->kind == ACTION_LOG && strstr(a->text, part) != NULL;
  }
  return n;
}

/* It owes tokens and tells nothing: the answer goes on at the other one, its draft with it, and it is told to
 * stop. */
static void test_hung_target_is_left(void **state) {
  world *w = *state;
  start_running(w, true);
  register_workers(w, TARGET2, 0);
  tell_tokens(w, TARGET, 3, 7);
  rig_clear(&w->r);
  pass(w, SESSIONS_SILENCE_US - 1000000, TARGET, TARGET2);
  rig_say(&w->r, DRAFT, ping_message(MSG_PING, SELF, 1, 1, 0));
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
  register_workers(w, 0, DRAFT);
  pass(w, 1200000, TARGET, TARGET2);
  const msg_open *o = opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->token_count, 10);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_END)->epoch, 2);
  assert_int_equal(rig_last(&w->r, DRAFT, MSG_OPEN)->epoch, 2);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, 10));
  rig_say(&w->r, TARGET,
          tokens_message(SELF, w->id, 1, 10, truth() + 10, 3, true_hash(w, 13))); /* it thaws, too late */
  assert_int_equal(look(w).length, 10);
  tell_tokens(w, TARGET2, 10, 5);
  assert_int_equal(look(w).length, 15);
}

/* The figures of an answer are those of all its targets: the one that was left tells its own; one that died
 * does not, and then they say of how many tokens they are not. */
static void test_figures_of_several_targets(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  tell_tokens(w, TARGET, 3, 7);
  pass(w, SESSIONS_SILENCE_US + 200000, TARGET, TARGET2);
  opened(w, TARGET2);
  rig_say(&w->r, TARGET, done_message(w, 10, WIRE_FINISH_CANCELLED));
  rig_say(&w->r, TARGET, message(MSG_ENDED, SELF, w->id, w->epoch));
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, 10));
  tell_tokens(w, TARGET2, 10, 4);
  assert_int_equal(look(w).stats.forwards, 0); /* the sum is made at the end */
  assert_int_equal(look(w).uncounted, 4);      /* so far */
  sessions_worker_died(w->o, ID(TARGET2), w->r.now, &w->r.out);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 14));
  tell_tokens(w, TARGET, 14, 1);
  finish_by_done(w, 15);
  sessions_view v = look(w);
  assert_int_equal(v.finish, WIRE_FINISH_LENGTH);
  assert_int_equal(v.stats.forwards, 60);
  assert_int_equal(v.stats.accepted, 20);
  assert_int_equal(v.uncounted, 4);
}

/* Signs of life keep it where it is, however long the next token takes: a prompt may take minutes to read. */
static void test_slow_target_is_not_left(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  for (int i = 0; i < 30; i++) {
    pass(w, 3000000, TARGET, TARGET2);
    tell_tokens(w, TARGET, PROMPT_LENGTH, 0);
  }
  assert_int_equal(look(w).epoch, 1);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
}

/* Targets that tell nothing while they read a prompt for 65 s: each is left once at most, and one of them
 * ends it. */
static void test_silent_targets_are_not_left_in_circles(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  rig_clear(&w->r);
  for (int i = 0; i < 65; i++) {
    pass(w, 1000000, TARGET, TARGET2);
    if (rig_count(&w->r, TARGET2, MSG_OPEN) == 0) continue;
    opened(w, TARGET2);
    rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  }
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  assert_int_equal(look(w).epoch, 2);
  for (int i = 0; i < 3600; i++) { /* minutes later the first one may be tried again, but ever more rarely */
    pass(w, 1000000, TARGET, TARGET2);
    peer_id at = look(w).epoch % 2 ? TARGET : TARGET2;
    if (look(w).state == SESSIONS_RUNNING) continue;
    opened(w, at);
    rig_say(&w->r, at, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  }
  assert_true(look(w).epoch <= 6);
}

/* Nowhere to go: said once, and the answer goes on where it is when it thaws, or at whoever comes. */
static void test_hung_target_without_another(void **state) {
  world *w = *state;
  start_running(w, false);
  tell_tokens(w, TARGET, 3, 4);
  rig_clear(&w->r);
  pass(w, 90000000, TARGET, 0);
  assert_int_equal(look(w).finish, 0);
  assert_int_equal(look(w).epoch, 1);
  assert_int_equal(warnings(w, "no sign of life"), 1);
  tell_tokens(w, TARGET, 7, 2);
  assert_int_equal(look(w).length, 9);
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_SILENCE_US, TARGET, 0);
  assert_int_equal(warnings(w, "no sign of life"), 1);
  register_workers(w, TARGET2, 0);
  pass(w, SESSIONS_TARGET_CHECK_US, TARGET, TARGET2);
  opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
}

/* Neither is another one that hangs, or has no room. */
static void test_no_way_out_to_a_bad_one(void **state) {
  world *w = *state;
  start_running(w, false);
  uint64_t first = w->id;
  register_workers(w, TARGET2, 0);
  set_load(w, TARGET2, 4);
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_SILENCE_US, TARGET, TARGET2);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
  assert_int_equal(look(w).epoch, 1);
  set_load(w, TARGET2, 0);
  pass(w, SESSIONS_TARGET_CHECK_US, TARGET, TARGET2);
  opened(w, TARGET2);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  tell_tokens(w, TARGET2, 3, 1);
  sessions_request r = request(false); /* a new one does not go to a target that hung */
  set_load(w, TARGET2, 3);
  rig_clear(&w->r);
  start_request(w, &r);
  opened(w, TARGET2);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_clear(&w->r);
  pass(w, 3 * SESSIONS_SILENCE_US, TARGET, TARGET2); /* now that one does too */
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out); /* the first one is started again */
  msg fresh = target_hello(TARGET);
  fresh.u.hello.incarnation.bytes[5] = 1;
  rig_say(&w->r, TARGET, fresh);
  pass(w, SESSIONS_TARGET_CHECK_US, TARGET, TARGET2);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 2);
  w->id = first;
  assert_int_equal(look(w).finish, 0);
}

/* One's own sleep is not the target's. */
static void test_own_stall_moves_nobody(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  pass(w, 3000000, TARGET, TARGET2);
  rig_clear(&w->r);
  w->r.now += 60000000;
  rig_say(&w->r, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0));
  rig_say(&w->r, TARGET2, ping_message(MSG_PING, SELF, 1, 1, 0));
  pass(w, 2000000, TARGET, TARGET2);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
}

/* It never answers OPEN, though it answers PING: another one does. */
static void test_target_that_never_opens_beside_another(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  register_workers(w, TARGET2, 0);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, TARGET2);
  opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(look(w).finish, 0);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, TARGET2); /* nor does that */
  assert_int_equal(look(w).code, ERR_TIMEOUT);
}

/* The rest of its silence need not be waited for: it does not answer the PING that asks whether it lives. */
static void test_target_started_again_at_its_address(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 4);
  rig_clear(&w->r);
  msg hello = target_hello(TARGET3);
  hello.u.hello.endpoint = target_hello(TARGET).u.hello.endpoint;
  rig_say(&w->r, TARGET3, hello);
  rig_only(&w->r, TARGET, MSG_PING);
  assert_int_equal(rig_count(&w->r, TARGET3, MSG_OPEN), 0);
  pass(w, ROSTER_HELLO_US, DRAFT, 0);
  rig_say(&w->r, TARGET3, hello);
  assert_int_equal(rig_last(&w->r, TARGET3, MSG_OPEN)->epoch, 2);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 1);
  assert_int_equal(look(w).finish, 0);
}

/* Two that live have one address: the answer stays where it is. */
static void test_target_with_the_address_of_another(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 4);
  rig_clear(&w->r);
  msg hello = target_hello(TARGET3);
  hello.u.hello.endpoint = target_hello(TARGET).u.hello.endpoint;
  for (int i = 0; i < 20; i++) {
    rig_say(&w->r, TARGET3, hello);
    pass(w, ROSTER_HELLO_US, TARGET, DRAFT);
  }
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 1);
  assert_true(rig_count(&w->r, TARGET3, MSG_ERROR) > 5);
  assert_int_equal(rig_last(&w->r, TARGET3, MSG_ERROR)->u.error.code, ERR_STATE);
  expect_state(w, SESSIONS_RUNNING);
  tell_tokens(w, TARGET, 7, 2);
  assert_int_equal(look(w).length, 9);
}

/* --- a draft that would be a target --- */

/* It names the other role, says what a target says about its own session, and is not believed. */
static void test_draft_never_is_a_target(void **state) {
  world *w = *state;
  static const bool restarted[] = {false, true};
  for (int i = 0; i < 2; i++) {
    start_running(w, true);
    tell_tokens(w, TARGET, 3, 4);
    msg hello = target_hello(TARGET); /* the true one's words, on the draft's connection */
    if (!restarted[i]) hello.u.hello.incarnation = ID(DRAFT);
    rig_clear(&w->r);
    rig_say(&w->r, DRAFT, hello);
    rig_expect_error(&w->r, DRAFT, ERR_PROTOCOL);
    assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 1);
    int32_t wrong[2] = {truth()[7] == 1 ? 2 : 1, 3};
    hash16 hash = hash_next(hash_next(true_hash(w, 7), w->seed, wrong[0]), w->seed, wrong[1]);
    msg done = done_message(w, 9, WIRE_FINISH_STOP);
    done.u.done.hash = hash;
    for (peer_id from = DRAFT; from <= DRAFT + 40; from += 40) { /* as a stranger, too */
      rig_say(&w->r, from, worker_state(w, MSG_OPENED, 7));
      rig_say(&w->r, from, worker_state(w, MSG_DESYNC, 0));
      rig_say(&w->r, from, tokens_message(SELF, w->id, w->epoch, 7, wrong, 2, hash));
      rig_say(&w->r, from, done);
      rig_say(&w->r, from, error_message(SELF, w->id, w->epoch, ERR_GONE));
    }
    assert_int_equal(look(w).length, 7);
    assert_int_equal(look(w).epoch, w->epoch);
    expect_state(w, SESSIONS_RUNNING);
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0); /* nothing new goes there */
    tell_tokens(w, TARGET, 7, 2);
    assert_int_equal(look(w).length, 9);
    sessions_release(w->o, w->id, w->r.now, &w->r.out);
    rig_say(&w->r, DRAFT,
            hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, id_of((uint8_t)(90 + i)))); /* another program */
    sessions_worker_died(w->o, id_of((uint8_t)(90 + i)), w->r.now, &w->r.out);
  }
}

/* A flood of greetings is no flood of the log. */
static void test_greetings_do_not_fill_the_log(void **state) {
  world *w = *state;
  char method[WIRE_STRING_MAX];
  memset(method, 'm', sizeof method);
  for (int i = 0; i < 30000; i++) { /* 3 s */
    msg m = draft_hello(DRAFT);
    memcpy(m.u.hello.incarnation.bytes + 4, &i, sizeof i);
    m.u.hello.method = (wire_string){method, sizeof method};
    w->r.now += 100;
    rig_say(&w->r, i % 2 ? DRAFT : (peer_id)(1000 + i), m);
  }
  size_t bytes = 0;
  for (int32_t i = 0; i < w->r.out.count; i++)
    if (w->r.out.list[i].kind == ACTION_LOG) bytes += strlen(w->r.out.list[i].text);
  assert_true(bytes > 0);
  if (bytes > 60000) fail_msg("%zu bytes of log in 3 s", bytes);
}

static void test_capacity(void **state) {
  world *w = *state;
  assert_int_equal(sessions_capacity(w->o), 0);
  register_workers(w, TARGET, DRAFT);
  assert_int_equal(sessions_capacity(w->o), 4);
  msg hello = target_hello(TARGET2);
  hello.u.hello.session_max = 0; /* no limit of its own */
  rig_say(&w->r, TARGET2, hello);
  assert_int_equal(sessions_capacity(w->o), SESSIONS_MAX);
  rig_say(&w->r, TARGET2, message(MSG_BYE, SELF, 0, 0));
  assert_int_equal(sessions_capacity(w->o), 4);
  pass(w, 4000000, DRAFT, 0);
  assert_int_equal(sessions_capacity(w->o), 0);
}

/* It answers every PING and no OPEN. */
/* One that is too small for a session does not end it where another one may be larger; nobody is asked twice.
 */
static void test_a_target_too_small(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_LIMIT, ERR_NOMEM};
  for (int i = 0; i < 2; i++) {
    sessions_request r = request(true);
    register_workers(w, TARGET, DRAFT);
    register_workers(w, TARGET2, 0);
    register_workers(w, TARGET3, 0);
    rig_clear(&w->r);
    start_request(w, &r);
    peer_id asked[3] = {0};
    for (uint32_t k = 0; k < 3; k++) {
      assert_int_equal(look(w).finish, 0);
      for (peer_id p = TARGET; p <= TARGET3; p++)
        if (rig_count(&w->r, p, MSG_OPEN) && rig_last(&w->r, p, MSG_OPEN)->epoch == k + 1) asked[k] = p;
      assert_true(asked[k] != 0);
      for (uint32_t j = 0; j < k; j++) assert_true(asked[j] != asked[k]);
      opened(w, asked[k]);
      assert_int_equal(w->epoch, k + 1);
      assert_int_equal(rig_last(&w->r, DRAFT, MSG_OPEN)->epoch, k + 1);
      msg m = error_message(SELF, w->id, w->epoch, codes[i]);
      m.u.error.text = wire_text("too long for me");
      rig_say(&w->r, asked[k], m);
    }
    assert_int_equal(look(w).finish, WIRE_FINISH_ERROR);
    assert_int_equal(look(w).code, codes[i]);
    assert_string_equal(look(w).text, "too long for me");
    sessions_release(w->o, w->id, w->r.now, &w->r.out);
  }
}

static void test_target_that_never_opens(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, 0);
  assert_int_equal(look(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(look(w).code, ERR_TIMEOUT);
}

/* A long answer has time for its repairs: the half minute begins with each. */
static void test_repair_late_in_an_answer(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_FULL, 0};
  for (int i = 0; i < 2; i++) {
    start_running(w, false);
    tell_tokens(w, TARGET, 3, 4);
    pass(w, 2 * SESSIONS_TARGET_WAIT_US, TARGET, 0);
    rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 2));
    opened(w, TARGET);
    if (codes[i]) rig_say(&w->r, TARGET, error_message(SELF, w->id, w->epoch, codes[i]));
    pass(w, 5000000, TARGET, 0);
    assert_int_equal(look(w).finish, 0);
    opened(w, TARGET);
    rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 7));
    expect_state(w, SESSIONS_RUNNING);
  }
}

static void test_leaving_target_gets_nothing_new(void **state) {
  world *w = *state;
  start_running(w, false);
  rig_say(&w->r, TARGET, message(MSG_BYE, SELF, 0, 0));
  tell_tokens(w, TARGET, 3, 2); /* it finishes what it has */
  assert_int_equal(look(w).length, 5);
  uint64_t first = w->id;
  sessions_request r = request(false);
  rig_clear(&w->r);
  start_request(w, &r);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  expect_state(w, SESSIONS_WAITING);
  register_workers(w, TARGET2, 0);
  opened(w, TARGET2);
  w->id = first;
  expect_state(w, SESSIONS_RUNNING);
}

static void test_placement_by_load(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET3, 0);
  set_load(w, TARGET, 3);
  set_load(w, TARGET3, 0);
  rig_clear(&w->r);
  start_request(w, &r);
  opened(w, TARGET3);
  rig_clear(&w->r);
  set_load(w, TARGET, 0);
  set_load(w, TARGET3, 4);
  start_request(w, &r);
  opened(w, TARGET);
}

/* Several at once, before any load was told: not all of them to the same one. */
static void test_placement_of_many(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET3, 0);
  rig_clear(&w->r);
  for (int i = 0; i < 8; i++) start_request(w, &r);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 4);
  assert_int_equal(rig_count(&w->r, TARGET3, MSG_OPEN), 4);
}

/* A conversation goes on where its beginning was read, although another would be the first of equals. */
static void test_placement_by_prefix(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.prompt = truth();
  r.prompt_length = 100;
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET3, 0);
  set_load(w, TARGET, 1);
  start_request(w, &r);
  opened(w, TARGET3);
  rig_say(&w->r, TARGET3, worker_state(w, MSG_OPENED, r.prompt_length));
  tell_tokens(w, TARGET3, r.prompt_length, OUTPUT);
  rig_say(&w->r, TARGET3, done_message(w, r.prompt_length + OUTPUT, WIRE_FINISH_LENGTH));
  sessions_release(w->o, w->id, w->r.now, &w->r.out);
  set_load(w, TARGET, 0);
  rig_clear(&w->r);
  r.prompt_length += OUTPUT;
  start_request(w, &r);
  opened(w, TARGET3);
  rig_clear(&w->r);
  r.prompt = truth() + 1; /* another one */
  set_load(w, TARGET, 1);
  set_load(w, TARGET3, 1);
  start_request(w, &r);
  rig_last(&w->r, TARGET, MSG_OPEN);
}

/* A target that has given no token has perhaps read nothing: the next one goes where there is room. */
static void test_placement_after_an_end_without_tokens(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.prompt = truth();
  r.prompt_length = 100;
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET3, 0);
  set_load(w, TARGET, 1);
  start_request(w, &r);
  opened(w, TARGET3);
  rig_say(&w->r, TARGET3, worker_state(w, MSG_OPENED, r.prompt_length));
  sessions_release(w->o, w->id, w->r.now, &w->r.out);
  set_load(w, TARGET, 0);
  rig_clear(&w->r);
  start_request(w, &r);
  rig_last(&w->r, TARGET, MSG_OPEN);
}

static void test_draft_lost(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 2);
  pass(w, 4000000, TARGET, 0);
  assert_int_equal(look(w).finish, 0); /* plainly */
  expect_state(w, SESSIONS_RUNNING);
  assert_int_equal(look(w).epoch, 1); /* the target is not disturbed */
  tell_tokens(w, TARGET, 5, 2);
  assert_int_equal(look(w).length, 7);
  assert_true(strlen(look(w).off_reason) > 0 || strlen(look(w).draft_method) == 0);
  finish_by_done(w, 7);
  pass(w, 3000000, TARGET, 0);
  rig_say(&w->r, TARGET, message(MSG_ENDED, SELF, w->id, w->epoch));
  expect_state(w, SESSIONS_FINISHED);
}

static void test_another_draft_takes_over(void **state) {
  world *w = *state;
  start_running(w, true);
  tell_tokens(w, TARGET, 3, 2);
  register_workers(w, 0, DRAFT2);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(DRAFT), w->r.now, &w->r.out);
  pass(w, 1000000, TARGET, DRAFT2);
  const msg_open *o = opened(w, DRAFT2);
  assert_int_equal(w->epoch, 1);
  assert_int_equal(o->base_length, 0);
  assert_int_equal(o->token_count, 5);
}

/* A draft that refuses does not stand in the way of another one. */
static void test_another_draft_after_a_refusal(void **state) {
  world *w = *state;
  start_running(w, true);
  register_workers(w, 0, DRAFT2);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  opened(w, DRAFT2);
  rig_say(&w->r, DRAFT2, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  for (int i = 0; i < 100; i++) { /* both refuse, again and again */
    rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
    rig_say(&w->r, DRAFT2, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
    w->r.now += 1000;
  }
  assert_true(rig_count(&w->r, RIG_ANY, MSG_OPEN) <= 10);
  assert_true(strlen(look(w).off_reason) > 0);
  tell_tokens(w, TARGET, 3, 2);
  assert_int_equal(look(w).length, 5);
}

/* In lockstep the target is told when all drafts have given up, in the same epoch, and goes on alone. */
static void test_lockstep_refused_by_every_draft(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  r.options.lockstep = true;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  assert_true(opened(w, TARGET)->draft_expected); /* none is here yet: one may come */
  register_workers(w, 0, DRAFT);
  register_workers(w, 0, DRAFT2);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  opened(w, DRAFT2);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  sessions_worker_died(w->o, ID(DRAFT), w->r.now, &w->r.out); /* so that it is not asked again */
  rig_say(&w->r, DRAFT2, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  assert_false(opened(w, TARGET)->draft_expected);
  assert_int_equal(w->epoch, 1);
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT2); /* until it is answered */
  assert_false(opened(w, TARGET)->draft_expected);
  tell_tokens(w, TARGET, 3, 2); /* it never stood still */
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 5));
  rig_clear(&w->r);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, DRAFT2);
  tell_tokens(w, TARGET, 5, 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  assert_int_equal(look(w).length, 5);
  assert_string_equal(look(w).off_reason, "made by a test");
}

/* A draft that is given up is told, or it would keep the session for ever. */
static void test_a_draft_given_up_is_told(void **state) {
  world *w = *state;
  start_running(w, true);
  pass(w, 4000000, TARGET, 0); /* stopped, as by SIGSTOP */
  rig_only(&w->r, DRAFT, MSG_END);
  start_running(w, true);
  rig_clear(&w->r);
  for (int i = 0; i <= SESSIONS_DESYNC_MAX; i++) {
    rig_say(&w->r, DRAFT, worker_state(w, MSG_DESYNC, 0));
    pass(w, SESSIONS_REPEAT_US, TARGET, DRAFT);
  }
  rig_last(&w->r, DRAFT, MSG_END);
}

static void test_draft_refuses(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_FULL, ERR_LIMIT, ERR_NOMEM, ERR_DRAINING};
  for (int i = 0; i < 4; i++) {
    sessions_request r = request(true);
    register_workers(w, TARGET, DRAFT);
    start_request(w, &r);
    opened(w, TARGET);
    rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
    rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, codes[i]));
    rig_clear(&w->r);
    pass(w, 1000000, TARGET, DRAFT);
    assert_int_equal(look(w).finish, 0);
    assert_true(rig_count(&w->r, DRAFT, MSG_OPEN) <= 4);
    tell_tokens(w, TARGET, 3, 2);
    assert_int_equal(look(w).length, 5);
    sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
    pass(w, 3000000, TARGET, DRAFT);
    sessions_release(w->o, w->id, w->r.now, &w->r.out);
  }
}

/* --- who may say what --- */

/* Nothing that a draft, or another target, says about a session counts as its target's word. */
static void test_only_its_target_feeds_a_session(void **state) {
  world *w = *state;
  static const peer_id others[] = {DRAFT, TARGET2, DRAFT2};
  start_running(w, true);
  register_workers(w, TARGET2, DRAFT2);
  for (int i = 0; i < 3; i++) {
    tell_tokens(w, others[i], 3, 2);
    msg wrong = tokens_message(SELF, w->id, w->epoch, 1, truth() + 7, 2, true_hash(w, 2));
    rig_say(&w->r, others[i], wrong);
    rig_say(&w->r, others[i], done_message(w, 3, WIRE_FINISH_STOP));
    assert_int_equal(look(w).length, 3);
    assert_int_equal(look(w).finish, 0);
    assert_int_equal(look(w).epoch, 1);
    if (others[i] == DRAFT) continue;
    rig_say(&w->r, others[i], worker_state(w, MSG_DESYNC, 1));
    rig_say(&w->r, others[i], error_message(SELF, w->id, w->epoch, ERR_ARG));
    assert_int_equal(look(w).finish, 0);
    assert_int_equal(look(w).epoch, 1);
    expect_state(w, SESSIONS_RUNNING);
  }
}

/* A draft that says DONE's or OPENED's words while the target has not opened. */
static void test_opened_counts_from_the_target(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  expect_state(w, SESSIONS_OPENING);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT);
  assert_true(rig_count(&w->r, TARGET, MSG_OPEN) >= 2);
}

/* A target that claims another prefix in OPENED is out of step. */
static void test_opened_with_another_hash(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  msg m = worker_state(w, MSG_OPENED, PROMPT_LENGTH);
  m.u.state.hash.bytes[2] ^= 1;
  rig_say(&w->r, TARGET, m);
  assert_true(look(w).state != SESSIONS_RUNNING || look(w).epoch > 1);
  assert_int_equal(look(w).finish, 0);
}

/* More tokens than were asked for: the answer is never longer than max_tokens. */
static void test_mad_target_never_stops(void **state) {
  world *w = *state;
  start_running(w, false);
  for (int32_t n = 3; n < 700 && look(w).finish == 0; n += 7) {
    w->epoch = look(w).epoch;
    tell_tokens(w, TARGET, n, 7);
    w->r.now += 1000;
  }
  assert_true(look(w).length <= PROMPT_LENGTH + OUTPUT);
}

static void test_mad_target_beyond_the_context(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.options.max_tokens = 1000000;
  r.options.context = 20;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  tell_tokens(w, TARGET, 3, 10);
  tell_tokens(w, TARGET, 13, 100);
  assert_true(look(w).length <= 20);
}

static void test_tokens_outside_the_vocabulary(void **state) {
  world *w = *state;
  start_running(w, false);
  int32_t all[5];
  memcpy(all, truth(), 4 * sizeof(int32_t));
  all[4] = VOCAB;
  rig_say(&w->r, TARGET, tokens_message(SELF, w->id, 1, 3, all + 3, 2, hash_of(w->seed, all, 5)));
  for (int32_t i = 0; i < look(w).length; i++) assert_true(look(w).tokens[i] < VOCAB);
}

/* DONE far beyond what will ever come: asked for in measure, and another target may take over. */
static void test_mad_target_promises(void **state) {
  world *w = *state;
  start_running(w, false);
  for (int i = 0; i < 1000; i++) {
    w->r.now += 100; /* 100 ms in all */
    msg m = done_message(w, 100, WIRE_FINISH_STOP);
    m.u.done.length = WIRE_CONTEXT_MAX;
    rig_say(&w->r, TARGET, m);
  }
  assert_true(rig_count(&w->r, TARGET, MSG_RESEND) <= 10);
}

/* A stranger greets as one more target, with no load at all: it gets sessions, but no one's tokens. */
/* A worker that greets as a new program again and again: each greeting costs a session an OPEN, but not at
 * once. */
static void test_storm_of_restarts(void **state) {
  world *w = *state;
  start_running(w, true);
  for (int i = 0; i < 2000; i++) { /* 200 ms */
    msg t = target_hello(TARGET), d = draft_hello(DRAFT);
    memcpy(t.u.hello.incarnation.bytes + 4, &i, sizeof i);
    memcpy(d.u.hello.incarnation.bytes + 4, &i, sizeof i);
    w->r.now += 100;
    rig_say(&w->r, TARGET, t);
    rig_say(&w->r, DRAFT, d);
    rig_event(&w->r, EVENT_TICK, 0, 0, NULL, NULL);
  }
  if (rig_count(&w->r, RIG_ANY, MSG_OPEN) > 8) fail_msg("%d OPEN", (int)rig_count(&w->r, RIG_ANY, MSG_OPEN));
  assert_true(look(w).epoch < 10);
  rig_clear(&w->r);
  pass(w, 1000000, TARGET, DRAFT); /* and when it is over, the answer goes on */
  assert_true(rig_count(&w->r, TARGET, MSG_OPEN) >= 1);
  assert_true(rig_count(&w->r, DRAFT, MSG_OPEN) >= 1);
}

static void test_error_storm(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  opened(w, TARGET);
  rig_clear(&w->r);
  for (int i = 0; i < 2000; i++) { /* 200 ms of refusals, each of the epoch that it was just sent */
    w->r.now += 100;
    msg m = error_message(SELF, w->id, look(w).epoch, i % 2 ? ERR_FULL : ERR_GONE);
    rig_say(&w->r, TARGET, m);
    rig_event(&w->r, EVENT_TICK, 0, 0, NULL, NULL);
  }
  if (rig_count(&w->r, RIG_ANY, MSG_OPEN) > 50) {
    fail_msg("%d OPEN in 200 ms", (int)rig_count(&w->r, RIG_ANY, MSG_OPEN));
  }
}

static void test_prompt_as_long_as_the_context(void **state) {
  world *w = *state;
  static int32_t many[CONTEXT + 1];
  sessions_request r = request(false);
  r.prompt = many;
  r.prompt_length = CONTEXT + 1;
  err e = {0};
  register_workers(w, TARGET, 0);
  uint64_t id = sessions_start(w->o, &r, w->r.now, &w->r.out, &e);
  if (id == 0) {
    assert_true(e.code == ERR_ARG || e.code == ERR_LIMIT);
    return;
  }
  w->id = id;
  if (rig_count(&w->r, TARGET, MSG_OPEN)) { /* the target judges */
    w->epoch = rig_last(&w->r, TARGET, MSG_OPEN)->epoch;
    rig_say(&w->r, TARGET, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  }
  pass(w, 1000000, TARGET, 0);
  assert_int_equal(look(w).finish, WIRE_FINISH_ERROR);
}

/* --- where the target is, and whether a draft gets there --- */

static void register_at(world *w, peer_id peer, wire_role role, const char *door, wire_location seen) {
  msg m = role == WIRE_ROLE_TARGET ? target_hello(peer) : draft_hello(peer);
  if (door) m.u.hello.endpoint = wire_text(door);
  m.u.hello.seen = seen;
  rig_say(&w->r, peer, m);
  rig_last(&w->r, peer, MSG_WELCOME);
}

#define AWAY(a) ((wire_location){a, true})

static void run_session(world *w) {
  sessions_request r = request(true);
  rig_clear(&w->r);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
}

/* DONE as a target says it that has seen no draft. */
static void end_unattached(world *w) {
  tell_tokens(w, TARGET, PROMPT_LENGTH, 1);
  msg m = done_message(w, PROMPT_LENGTH + 1, WIRE_FINISH_LENGTH);
  m.u.done.off_reason = wire_text(WIRE_OFF_UNATTACHED);
  rig_say(&w->r, TARGET, m);
  assert_int_equal(look(w).finish, WIRE_FINISH_LENGTH);
}

static void expect_reason(world *w, const char *part) {
  if (!strstr(look(w).off_reason, part))
    fail_msg("the reason is \"%s\", want \"%s\"", look(w).off_reason, part);
}

static void test_a_wildcard_is_resolved(void **state) {
  world *w = *state;
  register_at(w, TARGET, WIRE_ROLE_TARGET, "tcp://0.0.0.0:4000", AWAY("10.0.0.2"));
  register_at(w, DRAFT, WIRE_ROLE_DRAFT, NULL, AWAY("10.0.0.3"));
  run_session(w);
  assert_true(text_is(opened(w, DRAFT)->target_endpoint, "tcp://10.0.0.2:4000"));
}

static void test_a_draft_on_the_wrong_host(void **state) {
  world *w = *state;
  register_at(w, TARGET, WIRE_ROLE_TARGET, "tcp://127.0.0.1:4000", AWAY("10.0.0.2"));
  register_at(w, DRAFT, WIRE_ROLE_DRAFT, NULL, AWAY("10.0.0.3"));
  for (int i = 0; i < 2; i++) {
    run_session(w);
    pass(w, 2000000, TARGET, DRAFT);
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
    assert_int_equal(rig_logged(&w->r, "on another host (10.0.0.3)"),
                     i == 0); /* once for all sessions_machine */
    end_unattached(w);
    expect_reason(w, "on another host (10.0.0.3) than the target (10.0.0.2)");
    expect_reason(w, "--insecure-bind");
  }
  /* One that can get there is taken, also by a session that is under way. */
  run_session(w);
  register_at(w, DRAFT2, WIRE_ROLE_DRAFT, NULL, AWAY("10.0.0.2"));
  assert_true(text_is(opened(w, DRAFT2)->target_endpoint, "tcp://127.0.0.1:4000"));
  assert_string_equal(look(w).off_reason, "");
}

/* The session moves to a target that its draft cannot reach. */
static void test_a_draft_on_the_wrong_host_after_a_move(void **state) {
  world *w = *state;
  register_at(w, TARGET, WIRE_ROLE_TARGET, "tcp://10.0.0.2:4000", AWAY("10.0.0.2"));
  register_at(w, DRAFT, WIRE_ROLE_DRAFT, NULL, AWAY("10.0.0.3"));
  run_session(w);
  opened(w, DRAFT);
  register_at(w, TARGET2, WIRE_ROLE_TARGET, "ipc:///tmp/x", (wire_location){{0}, false});
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  opened(w, TARGET2);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
  rig_only(&w->r, DRAFT, MSG_END);
  expect_reason(w, "on another host (10.0.0.3) than the target (the orchestrator's)");
}

/* The same port of all addresses, on two hosts. */
static void test_equal_doors_of_two_hosts(void **state) {
  world *w = *state;
  register_at(w, TARGET, WIRE_ROLE_TARGET, "tcp://0.0.0.0:4000", AWAY("10.0.0.2"));
  register_at(w, TARGET2, WIRE_ROLE_TARGET, "tcp://0.0.0.0:4000", AWAY("10.0.0.3"));
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 2);
}

static void test_no_draft_registered(void **state) {
  world *w = *state;
  register_workers(w, TARGET, 0);
  run_session(w);
  end_unattached(w);
  expect_reason(w, "there is no draft worker: start tandem-draft");
}

static void test_a_draft_that_has_not_answered(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  end_unattached(w);
  expect_reason(w, "did not take the session in time");
}

static void test_a_draft_that_has_not_arrived(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  pass(w, 1500000, TARGET, DRAFT);
  end_unattached(w);
  expect_reason(w, "a draft is here, but has not reached the target at tcp://127.0.0.1:4000 for 1.5 s");
  assert_null(strstr(look(w).off_reason, "--advertise")); /* it may only be on its way */
}

static void test_a_draft_that_refused(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  pass(w, 20000000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 1); /* it stays so */
  end_unattached(w);
  expect_reason(w, "made by a test");
}

static void test_a_draft_that_was_lost(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  tell_tokens(w, TARGET, PROMPT_LENGTH, 1);
  msg m = done_message(w, PROMPT_LENGTH + 1, WIRE_FINISH_LENGTH);
  m.u.done.off_reason = wire_text("the draft was there, and is not any more: by its target's word");
  rig_say(&w->r, TARGET, m);
  expect_reason(w, "by its target's word");
}

/* It says so: the log has it at once, another draft is asked, and after a while the same one again. */
static void test_a_draft_that_does_not_get_there(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  pass(w, 3000000, TARGET, DRAFT);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_TIMEOUT));
  rig_only(&w->r, DRAFT, MSG_END);
  assert_int_equal(
      rig_logged(&w->r, "has not reached the target at tcp://127.0.0.1:4000 for 3.0 s: let its host connect"),
      1);
  pass(w, SESSIONS_DRAFT_RETRY_US - 100000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
  rig_clear(&w->r);
  pass(w, 200000, TARGET, DRAFT);
  opened(w, DRAFT);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_TIMEOUT));
  assert_int_equal(rig_logged(&w->r, "has not reached"), 0); /* that is known */
  pass(w, SESSIONS_REPEAT_US, TARGET, DRAFT);
  register_workers(w, 0, DRAFT2);
  opened(w, DRAFT2);
  end_unattached(w); /* the answer of DRAFT2 has not come */
  expect_reason(w, "did not take the session in time");
}

/* It has tried for longer than this session knows. */
static void test_a_draft_that_knows_already(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_TIMEOUT));
  pass(w, 100000, TARGET, DRAFT);
  end_unattached(w);
  expect_reason(w, "has not reached the target at tcp://127.0.0.1:4000 for 3.0 s: let its host connect");
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_workers),
      CASE(test_refuses_another_model),
      CASE(test_open_at_a_target),
      CASE(test_open_at_both),
      CASE(test_open_again_until_opened),
      CASE(test_waits_for_a_target),
      CASE(test_no_target_for_half_a_minute),
      CASE(test_the_ledger_knows_first),
      CASE(test_a_slow_ledger),
      CASE(test_resumes),
      CASE(test_resumes_nothing_that_is_full),
      CASE(test_sessions_are_apart),
      CASE(test_requests_that_cannot_be),
      CASE(test_longest_answer_moves),
      CASE(test_no_more_sessions_than_it_holds),
      CASE(test_tokens_are_logged_shown_acknowledged),
      CASE(test_tokens_again_and_overlapping),
      CASE(test_tokens_beyond),
      CASE(test_tokens_that_conflict),
      CASE(test_tokens_of_other_epochs),
      CASE(test_tokens_before_opened),
      CASE(test_ack_when_idle),
      CASE(test_ledger_fails),
      CASE(test_an_epoch_that_is_not_recorded),
      CASE(test_done),
      CASE(test_done_before_its_tokens),
      CASE(test_done_with_an_error),
      CASE(test_done_of_another_prefix),
      CASE(test_done_of_every_length),
      CASE(test_end_is_told_five_times),
      CASE(test_end_of_lost_workers),
      CASE(test_cancel),
      CASE(test_cancel_while_waiting),
      CASE(test_cancel_nobody),
      CASE(test_release_of_a_running_one),
      CASE(test_unknown_session_is_ended),
      CASE(test_admit_keeps_fewer),
      CASE(test_admit_keeps_all_and_stops),
      CASE(test_admit_keeps_none),
      CASE(test_admit_takes_back),
      CASE(test_desync_with_an_own_prefix),
      CASE(test_desync_with_another_prefix),
      CASE(test_desync_twice),
      CASE(test_too_many_repairs),
      CASE(test_desync_of_the_draft),
      CASE(test_desync_of_a_draft_with_another_prefix),
      CASE(test_desyncs_until_a_draft_is_given_up),
      CASE(test_ended_before_the_end),
      CASE(test_opened_with_more_than_is_logged),
      CASE(test_desync_storm_of_a_draft),
      CASE(test_a_restarted_draft_has_not_refused),
      CASE(test_errors_that_end_it),
      CASE(test_errors_that_lead_elsewhere),
      CASE(test_full_is_tried_again),
      CASE(test_full_for_half_a_minute),
      CASE(test_full_is_waited_for_in_turn),
      CASE(test_opening_after_a_long_wait),
      CASE(test_target_lost),
      CASE(test_failover_prefers_the_same_numerics),
      CASE(test_numerics_of_one_that_refused),
      CASE(test_targets_of_different_contexts),
      CASE(test_target_died_without_another),
      CASE(test_restarted_target),
      CASE(test_target_turns_into_another),
      CASE(test_target_turns_into_another_while_opening),
      CASE(test_a_target_too_small),
      CASE(test_target_that_never_opens),
      CASE(test_hung_target_is_left),
      CASE(test_figures_of_several_targets),
      CASE(test_slow_target_is_not_left),
      CASE(test_silent_targets_are_not_left_in_circles),
      CASE(test_hung_target_without_another),
      CASE(test_no_way_out_to_a_bad_one),
      CASE(test_own_stall_moves_nobody),
      CASE(test_target_that_never_opens_beside_another),
      CASE(test_target_started_again_at_its_address),
      CASE(test_target_with_the_address_of_another),
      CASE(test_draft_never_is_a_target),
      CASE(test_greetings_do_not_fill_the_log),
      CASE(test_capacity),
      CASE(test_no_target_for_as_long_as_it_takes),
      CASE(test_repair_late_in_an_answer),
      CASE(test_leaving_target_gets_nothing_new),
      CASE(test_placement_by_load),
      CASE(test_placement_by_prefix),
      CASE(test_placement_of_many),
      CASE(test_placement_after_an_end_without_tokens),
      CASE(test_draft_lost),
      CASE(test_another_draft_takes_over),
      CASE(test_another_draft_after_a_refusal),
      CASE(test_lockstep_refused_by_every_draft),
      CASE(test_a_draft_given_up_is_told),
      CASE(test_draft_refuses),
      CASE(test_only_its_target_feeds_a_session),
      CASE(test_opened_counts_from_the_target),
      CASE(test_opened_with_another_hash),
      CASE(test_mad_target_never_stops),
      CASE(test_mad_target_beyond_the_context),
      CASE(test_tokens_outside_the_vocabulary),
      CASE(test_mad_target_promises),
      CASE(test_storm_of_restarts),
      CASE(test_error_storm),
      CASE(test_prompt_as_long_as_the_context),
      CASE(test_a_wildcard_is_resolved),
      CASE(test_a_draft_on_the_wrong_host),
      CASE(test_a_draft_on_the_wrong_host_after_a_move),
      CASE(test_equal_doors_of_two_hosts),
      CASE(test_no_draft_registered),
      CASE(test_a_draft_that_has_not_answered),
      CASE(test_a_draft_that_has_not_arrived),
      CASE(test_a_draft_that_refused),
      CASE(test_a_draft_that_was_lost),
      CASE(test_a_draft_that_does_not_get_there),
      CASE(test_a_draft_that_knows_already),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
