#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/sessions_world.h"
#include "tests/support/random.h"

static int32_t next_of(int32_t token) {
  return (5 * token + 3) % VOCAB;
}

const int32_t *truth(void) {
  static int32_t c[2048];
  memcpy(c, PROMPT, sizeof PROMPT);
  for (int32_t i = PROMPT_LENGTH; i < 2048; i++) c[i] = next_of(c[i - 1]);
  return c;
}

/* --- a ledger that watches the order of things --- */

static int spy_begin(void *self, const ledger_record *r) {
  spy *s = self;
  return s->inner.begin(s->inner.self, r);
}

int spy_epoch(void *self, uint64_t session, uint32_t epoch) {
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

int spy_append(void *self, uint64_t session, int32_t position, const int32_t *tokens, int32_t count) {
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

static bool spy_lost(void *self, uint64_t session) {
  const spy *s = self;
  (void)session;
  return s->taken_over;
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

sessions_machine *open_machine(world *w, bool targets_return) {
  sessions_machine *m;
  err e = {0};
  sessions_options o = {.incarnation = SELF,
                        .targets_return = targets_return,
                        .part_tokens = w->part_tokens,
                        .vocabulary_size = VOCAB,
                        .random = random_source,
                        .random_context = &w->random,
                        .ledger = {&w->ledger, spy_begin, spy_epoch, spy_append, spy_numerics, spy_end,
                                   spy_durable, spy_lost, spy_read, spy_forget, spy_close}};
  o.vocabulary_hash.bytes[0] = 20;
  o.model_fingerprint.bytes[0] = 10;
  assert_int_equal(sessions_alloc(&m, &o, &e), ERR_OK);
  return m;
}

int set_up(void **state) {
  world *w = calloc(1, sizeof *w);
  w->random = 1;
  assert_int_equal(ledger_memory(&w->ledger.inner), ERR_OK);
  w->o = open_machine(w, false);
  rig_init(&w->r, sessions_as_machine(w->o));
  w->ledger.out = &w->r.out;
  *state = w;
  return 0;
}

int tear_down(void **state) {
  world *w = *state;
  rig_fini(&w->r);
  sessions_free(w->o);
  w->ledger.inner.close(w->ledger.inner.self);
  free(w);
  return 0;
}

msg target_hello(peer_id peer) {
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

msg draft_hello(peer_id peer) {
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(peer));
  m.u.hello.method = wire_text("ngram");
  return m;
}

void register_workers(world *w, peer_id target, peer_id draft) {
  if (target) {
    rig_say(&w->r, target, target_hello(target));
    rig_last(&w->r, target, MSG_WELCOME);
  }
  if (draft) {
    rig_say(&w->r, draft, draft_hello(draft));
    rig_last(&w->r, draft, MSG_WELCOME);
  }
}

sessions_request request(bool draft) {
  sessions_request r = {.prompt = PROMPT, .prompt_length = PROMPT_LENGTH, .draft = draft};
  r.options = (msg_options){.top_p = 1, .repeat_penalty = 1, .max_tokens = OUTPUT, .budget = 8};
  return r;
}

void start_request(world *w, const sessions_request *r) {
  err e = {0};
  w->id = sessions_start(w->o, r, w->r.now, &w->r.out, &e);
  if (!w->id) fail_msg("sessions_start: %s", e.text);
}

sessions_view view(world *w) {
  sessions_view v;
  assert_true(sessions_get(w->o, w->id, &v));
  return v;
}

void expect_state(world *w, sessions_state state) {
  assert_int_equal(view(w).state, state);
}

hash16 true_hash(world *w, int32_t length) {
  return hash_of(w->seed, truth(), length);
}

const msg_open *opened(world *w, peer_id peer) {
  const msg *m = rig_last(&w->r, peer, MSG_OPEN);
  const msg_open *o = &m->u.open;
  assert_int_equal(m->session, w->id);
  assert_true(wire_id_equal(m->to, ID(peer)));
  w->seed = o->hash_seed;
  w->ticket = o->ticket;
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

msg worker_state(world *w, msg_type type, int32_t length) {
  return state_message(type, SELF, w->id, w->epoch, length, length ? true_hash(w, length) : (hash16){{0}});
}

void send_tokens(world *w, peer_id from, int32_t base, int32_t count) {
  msg m = tokens_message(SELF, w->id, w->epoch, base, truth() + base, count, true_hash(w, base + count));
  rig_say(&w->r, from, m);
}

msg done_message(world *w, int32_t length, wire_finish finish) {
  msg m = message(MSG_DONE, SELF, w->id, w->epoch);
  m.u.done = (msg_done){.length = length, .hash = true_hash(w, length), .finish = finish};
  m.u.done.stats = (msg_stats){.forwards = 30, .rounds = 5, .rows = 20, .accepted = 10, .rewound = 10};
  return m;
}

void start_running(world *w, bool draft) {
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

void pass(world *w, uint64_t us, peer_id a, peer_id b) {
  for (uint64_t left = us; left > 0;) {
    uint64_t step = left < 400000 ? left : 400000;
    rig_advance(&w->r, step);
    if (a) rig_say(&w->r, a, ping_message(MSG_PING, SELF, 1, 1, 0));
    if (b) rig_say(&w->r, b, ping_message(MSG_PING, SELF, 1, 1, 0));
    left -= step;
  }
}

void set_load(world *w, peer_id peer, int32_t load) {
  rig_say(&w->r, peer, ping_message(MSG_PONG, SELF, 0, w->r.now, load));
}

void finish_by_done(world *w, int32_t length) {
  rig_say(&w->r, TARGET, done_message(w, length, WIRE_FINISH_LENGTH));
}
