/* libs: target wire speculative base */
#include "target_worker/engine_watch.h"
#include "target_worker/scheduler.h"
#include "target_worker/token_stream.h"
#include "target_worker/worker.h"
#include "tests/count_malloc.h"
#include "tests/machine_support.h"

#include <math.h>

/* The model of these tests: the next token is a function of the last one. Every token is below VOCAB. */
enum { VOCAB = 97, CONTEXT = 4096, SLOTS = 3 };
enum { ORCH = 1, DRAFT = 2, DRAFT2 = 3, ORCH2 = 4, STRANGER = 50 };
enum { S = 77, SEED = 9, JOB_US = 1000 };
#define SELF   id_of(100)
#define ID(p)  id_of((uint8_t)(p))
#define TICKET id_of(200)

static int32_t next_of(int32_t token) {
  return (5 * token + 3) % VOCAB;
}

/* A wrong guess at what follows `token`. */
static int32_t wrong_of(int32_t token) {
  return (next_of(token) + 1) % VOCAB;
}

/* Of the cache that the tests run over: 0: static. */
static int32_t virtual_blocks;
enum { EACH = CONTEXT / KV_BLOCK, BLOCKS = SLOTS * EACH };

typedef struct world {
  rig r;
  target *t;
  engine_batch batch;           /* the last one */
  engine_job job;               /* its first */
  int32_t rows[SLOTS][CONTEXT]; /* the cache, as an engine would keep it */
  int32_t length[SLOTS];
  int32_t pool[BLOCKS][KV_BLOCK], map[SLOTS][EACH], map_count[SLOTS]; /* virtual: where the rows lie */
  int fail;                                                           /* code of the next result */
  bool differs;            /* the next selfcheck finds a difference */
  uint64_t forward_us;     /* of the next forward, 0: JOB_US */
  uint64_t layers;         /* that the engine has computed, for who looks */
  bool holds;              /* a job is at the engine */
  int32_t jobs, node_rows; /* VERIFY jobs, nodes in them */
} world;

static uint64_t storm_random(uint64_t *state) { /* splitmix64 */
  uint64_t x = *state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* --- the engine's place --- */

static int32_t child_of(const engine_job *j, int32_t row, int32_t token) {
  for (int32_t i = 1; i < j->count; i++) {
    if (j->parents[i] == row && j->tokens[i] == token) return i;
  }
  return -1;
}

static bool is_stop(const engine_job *j, int32_t token) {
  for (int32_t i = 0; i < j->stop_count; i++) {
    if (j->stops[i] == token) return true;
  }
  return false;
}

static void verify(world *w, const engine_job *j, engine_result *out) {
  int32_t *rows = w->rows[j->slot], *length = &w->length[j->slot];
  out->node_count = j->count - 1;
  for (int32_t row = 0; row >= 0;) {
    int32_t token = next_of(j->tokens[row]);
    rows[(*length)++] = j->tokens[row];
    out->sampled[out->sampled_count++] = token;
    if (is_stop(j, token) || out->sampled_count == j->sampled_max) break;
    row = child_of(j, row, token);
  }
}

static int32_t *pool_row(world *w, int32_t slot, int32_t row) {
  assert_true(row / KV_BLOCK < w->map_count[slot]);
  return &w->pool[w->map[slot][row / KV_BLOCK]][row % KV_BLOCK];
}

/* Virtual: where the job's rows lie, and what lies there already. */
static void engine_maps(world *w, const engine_job *j) {
  if (!j->blocks) return;
  memcpy(w->map[j->slot], j->blocks, (size_t)j->block_count * sizeof *j->blocks);
  w->map_count[j->slot] = j->block_count;
  if (j->rows_given) w->length[j->slot] = j->kv_length;
  for (int32_t i = 0; i < j->kv_length; i++) w->rows[j->slot][i] = *pool_row(w, j->slot, i);
}

static engine_result engine_does(world *w, const engine_job *j) {
  engine_result out = {.kind = j->kind, .serial = j->serial, .forward_us = JOB_US};
  assert_true(j->slot >= 0 && j->slot < SLOTS);
  assert_true(j->kv_length >= 0 && j->kv_length <= w->length[j->slot]);
  w->length[j->slot] = j->kv_length;
  if (w->fail) {
    out.code = w->fail;
    out.node_count = j->kind == ENGINE_VERIFY ? j->count - 1 : 0;
    w->fail = 0;
  } else if (j->kind == ENGINE_PREFILL) {
    memcpy(&w->rows[j->slot][j->kv_length], j->tokens, (size_t)j->count * sizeof(int32_t));
    w->length[j->slot] += j->count;
  } else {
    verify(w, j, &out);
    out.selfcheck_differs = j->selfcheck && w->differs;
  }
  out.kv_length = out.kv_settled = w->length[j->slot];
  for (int32_t i = j->kv_length; target_sessions(w->t)->is_virtual && i < out.kv_length; i++)
    *pool_row(w, j->slot, i) = w->rows[j->slot][i];
  return out;
}

static session *held(world *w, uint64_t id) {
  return session_store_get(target_sessions(w->t), id);
}

/* What every job must be: rows of C where they belong, n tokens have n-1 rows. */
static void check_job(world *w, const engine_job *j) {
  const session *s = NULL;
  session_store *all = target_sessions(w->t);
  for (int32_t i = 0; i < all->count; i++) {
    if (all->slots[i].state != SESSION_FREE && all->slots[i].slot == j->slot) s = &all->slots[i];
  }
  assert_non_null(s);
  const prefix *c = &s->committed;
  assert_memory_equal(w->rows[j->slot], c->tokens, (size_t)j->kv_length * sizeof(int32_t));
  assert_true(j->count >= 1);
  if (j->kind == ENGINE_PREFILL) {
    assert_true(j->count <= ENGINE_CHUNK);
    assert_true(j->kv_length + j->count <= c->length - 1);
    assert_memory_equal(j->tokens, &c->tokens[j->kv_length], (size_t)j->count * sizeof(int32_t));
    return;
  }
  assert_true(j->count <= ENGINE_ROWS_MAX && j->count <= s->request.options.budget + 1);
  assert_int_equal(j->kv_length, c->length - 1);
  assert_int_equal(j->tokens[0], c->tokens[c->length - 1]);
  assert_int_equal(j->parents[0], -1);
  assert_true(j->sampled_max >= 1);
  assert_true(c->length + j->sampled_max <= s->request.options.context);
  assert_true(c->length - s->request.prompt_length <= s->request.options.max_tokens - j->sampled_max);
  for (int32_t i = 1; i < j->count; i++) assert_true(j->parents[i] >= 0 && j->parents[i] < i);
}

static bool ask_job(world *w) {
  if (!target_next_batch(w->t, w->r.now, &w->batch)) return false;
  for (int32_t i = 0; i < w->batch.count; i++) {
    engine_maps(w, &w->batch.jobs[i]);
    check_job(w, &w->batch.jobs[i]);
  }
  w->job = w->batch.jobs[0];
  return true;
}

/* The job at the engine, or the next one. */
static bool take_job(world *w) {
  if (!w->holds) w->holds = ask_job(w);
  return w->holds;
}

static void give_result(world *w) {
  w->r.now += JOB_US;
  w->holds = false;
  engine_results results = {.count = w->batch.count};
  for (int32_t i = 0; i < w->batch.count; i++) {
    const engine_job *job = &w->batch.jobs[i];
    w->jobs += job->kind == ENGINE_VERIFY;
    w->node_rows += job->kind == ENGINE_VERIFY ? job->count - 1 : 0;
    results.of[i] = engine_does(w, job);
  }
  for (int32_t i = 0; w->forward_us && i < results.count; i++) results.of[i].forward_us = w->forward_us;
  w->forward_us = 0;
  rig_event(&w->r, EVENT_RESULT, 0, 0, NULL, &results);
}

static bool run_job(world *w) {
  if (!take_job(w)) return false;
  give_result(w);
  return true;
}

/* While time passes the engine is fed, as the program does it after every step, and takes long for what it
 * got. */
static void feed(void *context) {
  world *w = context;
  if (!w->holds) w->holds = ask_job(w);
}

/* Forwards until `count` were done or nothing may run now; how many. */
static int32_t play(world *w, int32_t count) {
  int32_t start = w->jobs;
  while (w->jobs - start < count && run_job(w)) {
  }
  return w->jobs - start;
}

/* The same, with the time to wait for a draft in vain. */
static void play_slowly(world *w, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    rig_advance(&w->r, WAIT_CAP_US);
    assert_int_equal(play(w, 1), 1);
  }
}

static uint64_t layers_of(void *context) {
  return ((world *)context)->layers;
}

/* --- peers --- */

static int set_up_sized(void **state, int32_t sessions) {
  world *w = calloc(1, sizeof *w);
  target_options o = {.incarnation = SELF,
                      .vocabulary_size = VOCAB,
                      .numerics_id = "test",
                      .endpoint = "tcp://127.0.0.1:4000",
                      .sessions = sessions,
                      .context = CONTEXT,
                      .kv_blocks = virtual_blocks,
                      .progress = layers_of,
                      .progress_context = w};
  err e = {0};
  o.vocabulary_hash.bytes[0] = 20;
  o.model_fingerprint.bytes[0] = 10;
  assert_int_equal(target_alloc(&w->t, &o, &e), ERR_OK);
  rig_init(&w->r, target_machine(w->t));
  w->r.after = feed;
  w->r.context = w;
  target_connect(w->t, "tcp://127.0.0.1:3000", &w->r.out);
  const action *a = rig_connect_asked(&w->r);
  assert_non_null(a);
  assert_string_equal(a->text, "tcp://127.0.0.1:3000");
  rig_connected(&w->r, a->tag, ORCH);
  rig_only(&w->r, ORCH, MSG_HELLO);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, ID(ORCH));
  welcome.to = SELF;
  rig_say(&w->r, ORCH, welcome);
  rig_say(&w->r, DRAFT, hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(DRAFT)));
  rig_say(&w->r, DRAFT2, hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(DRAFT2)));
  rig_clear(&w->r);
  *state = w;
  return 0;
}

static int set_up(void **state) {
  return set_up_sized(state, SLOTS);
}
static int set_up_one(void **state) {
  return set_up_sized(state, 1);
}

static int tear_down(void **state) {
  world *w = *state;
  rig_fini(&w->r);
  target_free(w->t);
  free(w);
  return 0;
}

/* Time passes, and nobody is silent. */
static void pass(world *w, uint64_t us, bool with_drafts) {
  for (uint64_t left = us; left > 0;) {
    uint64_t step = left < 400000 ? left : 400000;
    rig_advance(&w->r, step);
    rig_say(&w->r, ORCH, ping_message(MSG_PING, SELF, 1, 1, 0));
    if (with_drafts) {
      rig_say(&w->r, DRAFT, ping_message(MSG_PING, SELF, 1, 1, 0));
      rig_say(&w->r, DRAFT2, ping_message(MSG_PING, SELF, 1, 1, 0));
    }
    left -= step;
  }
}

static const int32_t PROMPT[] = {1, 2, 3};
enum { PROMPT_LENGTH = 3 };

static msg open_message(uint64_t id, uint32_t epoch, const int32_t *tokens, int32_t count) {
  msg m = message(MSG_OPEN, SELF, id, epoch);
  m.u.open = (msg_open){.ticket = TICKET,
                        .hash_seed = SEED,
                        .tokens = tokens,
                        .token_count = count,
                        .hash = hash_of(SEED, tokens, count),
                        .prompt_length = count};
  m.u.open.options =
      (msg_options){.top_p = 1, .repeat_penalty = 1, .max_tokens = 40, .context = CONTEXT, .budget = 8};
  return m;
}

static msg prompt_message(void) {
  return open_message(S, 1, PROMPT, PROMPT_LENGTH);
}

static void say_and_open(world *w, msg m) {
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_only(&w->r, ORCH, MSG_OPENED);
  rig_clear(&w->r);
}

/* C of a session as it will be: the prompt and what the model says. */
static const int32_t *truth(void) {
  static int32_t c[2048];
  memcpy(c, PROMPT, sizeof PROMPT);
  for (int32_t i = PROMPT_LENGTH; i < 2048; i++) c[i] = next_of(c[i - 1]);
  return c;
}

static hash16 true_hash(int32_t length) {
  return hash_of(SEED, truth(), length);
}

static msg ack(uint32_t epoch, int32_t length) {
  return state_message(MSG_ACK, SELF, S, epoch, length, true_hash(length));
}

static void expect_tokens(const msg *m, int32_t base, int32_t length) {
  assert_int_equal(m->u.tokens.base_length, base);
  assert_int_equal(base + m->u.tokens.token_count, length);
  assert_memory_equal(m->u.tokens.tokens, truth() + base, (size_t)(length - base) * sizeof(int32_t));
  hash16 h = true_hash(length);
  assert_memory_equal(&m->u.tokens.hash, &h, sizeof h);
}

static msg attach_message(uint32_t epoch, wire_id ticket) {
  msg m = state_message(MSG_ATTACH, SELF, S, epoch, PROMPT_LENGTH, true_hash(PROMPT_LENGTH));
  m.u.state.ticket = ticket;
  return m;
}

/* Attaches and returns the generation. */
static uint32_t attach(world *w, peer_id peer) {
  rig_clear(&w->r);
  rig_say(&w->r, peer, attach_message(held(w, S)->epoch, TICKET));
  uint32_t generation = rig_only(&w->r, peer, MSG_ATTACHED)->u.state.generation;
  rig_clear(&w->r);
  return generation;
}

typedef struct guess {
  uint64_t parent;
  int32_t token;
  float score;
} guess;

typedef struct batch { /* memory of one NODES */
  uint64_t parents[WIRE_NODES_MAX];
  int32_t tokens[WIRE_NODES_MAX];
  float scores[WIRE_NODES_MAX];
} batch;

static msg nodes_message(batch *b, uint32_t epoch, uint32_t generation, int32_t base, uint64_t first,
                         const guess *list, int32_t count, bool done) {
  for (int32_t i = 0; i < count; i++) {
    b->parents[i] = list[i].parent;
    b->tokens[i] = list[i].token;
    b->scores[i] = list[i].score;
  }
  msg m = message(MSG_NODES, SELF, S, epoch);
  m.u.nodes = (msg_nodes){.generation = generation,
                          .base_length = base,
                          .base_hash = true_hash(base),
                          .first_id = first,
                          .parents = b->parents,
                          .tokens = b->tokens,
                          .scores = b->scores,
                          .count = count,
                          .done = done};
  return m;
}

static void send_nodes(world *w, peer_id from, uint32_t generation, int32_t base, uint64_t first,
                       const guess *list, int32_t count, bool done) {
  batch b;
  rig_say(&w->r, from, nodes_message(&b, held(w, S)->epoch, generation, base, first, list, count, done));
}

/* A chain of `count` right guesses from C at `base`, ids from `first`. */
static void send_chain(world *w, peer_id from, uint32_t generation, int32_t base, uint64_t first,
                       int32_t count, bool done) {
  guess list[WIRE_NODES_MAX];
  for (int32_t i = 0; i < count; i++) {
    list[i] = (guess){i ? first + (uint64_t)i - 1 : 0, truth()[base + i],
                      -0.001f}; /* so sure that any width pays */
  }
  send_nodes(w, from, generation, base, first, list, count, done);
}

/* A session that runs with one draft attached; its generation. */
static uint32_t open_with_draft(world *w, bool lockstep) {
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  m.u.open.options.lockstep = lockstep;
  say_and_open(w, m);
  return attach(w, DRAFT);
}

/* Its draft has been right often enough for any number of nodes. */
static void believe(world *w) {
  held(w, S)->speculation.record = (width_record){.verifies = 4, .accepted = 100000};
}

static void prefill(world *w) {
  while (held(w, S)->cache.rows < held(w, S)->committed.length - 1) assert_true(run_job(w));
}

/* --- greeting --- */

static void test_greets_the_orchestrator(void **state) {
  world *w = *state;
  target_connect(w->t, "tcp://127.0.0.1:3001", &w->r.out);
  const action *a = rig_connect_asked(&w->r);
  rig_connected(&w->r, a->tag, ORCH2);
  const msg_hello *h = &rig_only(&w->r, ORCH2, MSG_HELLO)->u.hello;
  assert_int_equal(h->role, WIRE_ROLE_TARGET);
  assert_true(wire_id_equal(h->incarnation, SELF));
  assert_true(text_is(h->endpoint, "tcp://127.0.0.1:4000"));
  assert_true(text_is(h->numerics_id, "test"));
  assert_int_equal(h->vocabulary_size, VOCAB);
  assert_int_equal(h->vocabulary_hash.bytes[0], 20);
  assert_int_equal(h->model_fingerprint.bytes[0], 10);
  assert_int_equal(h->session_max, SLOTS);
  assert_int_equal(h->context_max, CONTEXT);
}

static void test_refuses_a_draft_of_another_vocabulary(void **state) {
  world *w = *state;
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(STRANGER));
  m.u.hello.vocabulary_hash.bytes[0] = 21;
  rig_say(&w->r, STRANGER, m);
  rig_expect_error(&w->r, STRANGER, ERR_MISMATCH);
  rig_clear(&w->r);
  m.u.hello.vocabulary_hash.bytes[0] = 20;
  rig_say(&w->r, STRANGER, m);
  rig_only(&w->r, STRANGER, MSG_WELCOME);
}

static void test_strangers_are_told_to_greet(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  rig_say(&w->r, STRANGER, attach_message(1, TICKET));
  rig_expect_error(&w->r, STRANGER, ERR_PROTOCOL);
}

static void test_pong_tells_the_load(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, ping_message(MSG_PING, SELF, 5, 6, 0));
  assert_int_equal(rig_last(&w->r, ORCH, MSG_PONG)->u.ping.load, 0);
  say_and_open(w, prompt_message());
  rig_say(&w->r, ORCH, ping_message(MSG_PING, SELF, 5, 6, 0));
  assert_int_equal(rig_last(&w->r, ORCH, MSG_PONG)->u.ping.load, 1);
}

/* --- OPEN --- */

static void test_open_fresh(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
  hash16 h = true_hash(PROMPT_LENGTH);
  assert_int_equal(m->session, S);
  assert_int_equal(m->epoch, 1);
  assert_true(wire_id_equal(m->to, ID(ORCH)));
  assert_int_equal(m->u.state.length, PROMPT_LENGTH);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

static void test_open_again_changes_nothing(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 3);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, prompt_message());
  const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
  hash16 h = true_hash(PROMPT_LENGTH + 3);
  assert_int_equal(m->u.state.length, PROMPT_LENGTH + 3); /* the present one */
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(w->length[held(w, S)->slot], PROMPT_LENGTH + 3);
}

static void test_open_same_epoch_with_another_prefix(void **state) {
  world *w = *state;
  static const int32_t other[] = {1, 2, 4};
  say_and_open(w, prompt_message());
  rig_say(&w->r, ORCH, open_message(S, 1, other, 3));
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  assert_int_equal(m->u.state.length, PROMPT_LENGTH);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_OPENED), 0);
  assert_memory_equal(held(w, S)->committed.tokens, PROMPT, sizeof PROMPT);
}

static void test_open_lower_epoch(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 5, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, ORCH, open_message(S, 4, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_STALE);
  assert_int_equal(held(w, S)->epoch, 5);
}

static msg delta(uint32_t epoch, int32_t base, const int32_t *tokens, int32_t count) {
  int32_t all[64];
  memcpy(all, truth(), (size_t)base * sizeof(int32_t));
  memcpy(all + base, tokens, (size_t)count * sizeof(int32_t));
  msg m = open_message(S, epoch, tokens, count);
  m.u.open.base_length = base;
  m.u.open.base_hash = true_hash(base);
  m.u.open.hash = hash_of(SEED, all, base + count);
  m.u.open.prompt_length = PROMPT_LENGTH;
  return m;
}

/* A resume: the same prefix in a new epoch. A delta: more tokens. A rollback: fewer. One mechanism. */
static void test_open_delta_resume_and_rollback(void **state) {
  world *w = *state;
  static const struct {
    int32_t base, count;
  } table[] = {{6, 0}, {6, 2}, {5, 1}, {4, 0}, {3, 0}, {1, 4}, {0, 7}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    uint32_t epoch = (uint32_t)(10 * i + 10);
    int32_t base = table[i].base, length = base + table[i].count;
    say_and_open(w, open_message(S, epoch, PROMPT, PROMPT_LENGTH));
    assert_int_equal(play(w, 3), 3);
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, delta(epoch + 1, base, truth() + base, table[i].count));
    const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
    assert_int_equal(m->epoch, epoch + 1);
    assert_int_equal(m->u.state.length, length);
    assert_int_equal(play(w, 1), 1); /* check_job holds the cache against C */
    const msg *t = rig_last(&w->r, ORCH, MSG_TOKENS);
    assert_int_equal(t->epoch, epoch + 1);
    expect_tokens(t, length, length + 1);
  }
}

/* After a rollback to another continuation the rows of the old one are not used. */
static void test_open_rolls_back_to_other_tokens(void **state) {
  world *w = *state;
  static const int32_t other[] = {50, 51};
  say_and_open(w, prompt_message());
  assert_int_equal(play(w, 5), 5);
  rig_say(&w->r, ORCH, delta(2, 4, other, 2));
  assert_int_equal(held(w, S)->committed.length, 6);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(held(w, S)->committed.tokens[6], next_of(51));
}

static void test_open_base_not_held(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, delta(1, 2, truth() + 2, 1)); /* nothing is held at all */
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  assert_int_equal(m->u.state.length, 0);
  assert_true(hash_is_zero(m->u.state.hash));
  assert_null(held(w, S));
  say_and_open(w, open_message(S, 2, PROMPT, PROMPT_LENGTH));
  msg bad[2] = {delta(3, 5, truth() + 5, 1), delta(3, 3, truth() + 3, 1)};
  bad[1].u.open.base_hash.bytes[3] ^= 1;
  for (int i = 0; i < 2; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, bad[i]);
    hash16 h = true_hash(PROMPT_LENGTH);
    m = rig_only(&w->r, ORCH, MSG_DESYNC);
    assert_int_equal(m->u.state.length, PROMPT_LENGTH);
    assert_memory_equal(&m->u.state.hash, &h, sizeof h);
    assert_int_equal(held(w, S)->epoch, 2); /* nothing changes */
    assert_int_equal(held(w, S)->committed.length, PROMPT_LENGTH);
  }
}

static void test_open_another_hash_seed_is_another_prefix(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  msg m = delta(2, 3, truth() + 3, 1);
  m.u.open.hash_seed = SEED + 1;
  rig_say(&w->r, ORCH, m);
  rig_only(&w->r, ORCH, MSG_DESYNC);
  m = delta(2, 3, truth(), 0); /* no token: there is nothing to hash with the new one */
  m.u.open.hash_seed = SEED + 1;
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_only(&w->r, ORCH, MSG_DESYNC);
}

static void test_open_wrong_result_hash(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.hash.bytes[15] ^= 1;
  rig_say(&w->r, ORCH, m);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, 0);
  assert_null(held(w, S));
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_clear(&w->r);
  m = delta(2, 4, truth() + 4, 3);
  m.u.open.hash.bytes[0] ^= 0x80;
  rig_say(&w->r, ORCH, m);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, PROMPT_LENGTH + 2);
  assert_int_equal(held(w, S)->committed.length, PROMPT_LENGTH + 2);
  assert_memory_equal(held(w, S)->committed.tokens, truth(), 5 * sizeof(int32_t));
}

static void test_open_refusals(void **state) {
  world *w = *state;
  static int32_t many[CONTEXT + 1];
  static const int32_t outside[] = {1, VOCAB, 3}, huge[] = {INT32_MAX};
  struct {
    msg m;
    int code;
  } table[9];
  for (int i = 0; i < 9; i++) table[i].m = prompt_message(), table[i].code = ERR_ARG;
  table[0].m = open_message(S, 1, many, CONTEXT + 1);
  table[0].code = ERR_LIMIT; /* length beyond its own */
  table[1].m.u.open.options.context = CONTEXT + 1;
  table[1].code = ERR_LIMIT;
  table[2].m.u.open.options.temperature = -1;
  table[3].m.u.open.options.top_p = 0;
  table[4].m.u.open.options.min_p = 2;
  table[5].m.u.open.options.repeat_penalty = -3;
  table[6].m.u.open.options.top_k = -1;
  table[7].m = open_message(S, 1, outside, 3);
  table[8].m = open_message(S, 1, huge, 1);
  for (int i = 0; i < 9; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, table[i].m);
    rig_expect_error(&w->r, ORCH, table[i].code);
    const msg *m = rig_only(&w->r, ORCH, MSG_ERROR);
    if (m->session != S || m->epoch != 1) fail_msg("row %d: about what session?", i);
    if (held(w, S)) fail_msg("row %d: the session is there", i);
  }
}

/* Longer than the context that the request allows itself: one typed answer, never a step. */
static void test_open_beyond_its_own_context(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = 2;
  rig_say(&w->r, ORCH, m);
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
}

static void test_open_without_room_for_a_token(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = PROMPT_LENGTH;
  rig_say(&w->r, ORCH, m);
  play(w, 2);
  pass(w, 100000, false);
  if (rig_count(&w->r, ORCH, MSG_ERROR) == 0) {
    const msg *done = rig_last(&w->r, ORCH, MSG_DONE);
    assert_int_equal(done->u.done.finish, WIRE_FINISH_LENGTH);
    assert_int_equal(done->u.done.length, PROMPT_LENGTH);
  }
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
}

/* All of the output is there already: a session that was moved at its very end. */
static void test_open_of_a_finished_answer(void **state) {
  world *w = *state;
  static const int32_t ends[] = {40, 41}; /* cut by: max_tokens, stop token */
  for (int i = 0; i < 2; i++) {
    msg m = open_message((uint64_t)ends[i], 1, truth(), 8);
    int32_t stop = truth()[7];
    m.u.open.prompt_length = PROMPT_LENGTH;
    m.u.open.options.max_tokens = i == 0 ? 5 : 40;
    if (i == 1) {
      m.u.open.options.stops = &stop;
      m.u.open.options.stop_count = 1;
    }
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, m);
    while (run_job(w)) {
    }
    const msg *done = rig_last(&w->r, ORCH, MSG_DONE);
    assert_int_equal(done->session, ends[i]);
    assert_int_equal(done->u.done.length, 8);
    assert_int_equal(done->u.done.finish, i == 0 ? WIRE_FINISH_LENGTH : WIRE_FINISH_STOP);
  }
}

static void test_open_full_and_room_of_finished_ones(void **state) {
  world *w = *state; /* one place */
  msg m = prompt_message();
  m.u.open.options.max_tokens = 2;
  say_and_open(w, m);
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_FULL);
  play(w, 2);
  rig_only(&w->r, ORCH, MSG_DONE);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  rig_only(&w->r, ORCH, MSG_OPENED);
  assert_null(held(w, S));
  assert_int_equal(play(w, 2), 2);
}

/* Of finished ones the place is taken of that which has been finished longest, whenever it began. */
static void test_room_of_the_one_that_ended_first(void **state) {
  world *w = *state;
  for (uint64_t id = S; id < S + SLOTS; id++) {
    w->r.now += 1000;
    msg m = open_message(id, 1, PROMPT, PROMPT_LENGTH);
    m.u.open.options.max_tokens = id == S ? 9 : id == S + 1 ? 4 : 40;
    say_and_open(w, m);
  }
  while (held(w, S)->state != SESSION_FINISHED) assert_true(run_job(w));
  assert_int_equal(held(w, S + 1)->state, SESSION_FINISHED);
  assert_int_equal(held(w, S + 2)->state, SESSION_RUNNING);
  say_and_open(w, open_message(S + 9, 1, PROMPT, PROMPT_LENGTH));
  assert_null(held(w, S + 1));
  assert_non_null(held(w, S));
  assert_non_null(held(w, S + 2));
}

static void test_draining(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 4;
  say_and_open(w, m);
  play(w, 1);
  rig_event(&w->r, EVENT_DRAIN, 0, 0, NULL, NULL);
  rig_only(&w->r, ORCH, MSG_BYE);
  rig_only(&w->r, DRAFT, MSG_BYE);
  assert_false(target_drained(w->t));
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_DRAINING);
  assert_int_equal(play(w, 9), 3); /* it finishes what it has */
  rig_only(&w->r, ORCH, MSG_DONE);
  assert_false(target_drained(w->t)); /* DONE may be lost: it is repeated until END */
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(target_drained(w->t));
}

/* A draining target ends what it has, also where that has to be repaired first. */
static void test_draining_repairs(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 3);
  rig_event(&w->r, EVENT_DRAIN, 0, 0, NULL, NULL);
  say_and_open(w, delta(2, 4, truth() + 4, 1));
  assert_int_equal(play(w, 2), 2);
  assert_int_equal(held(w, S)->committed.length, 7);
  assert_int_equal(target_sessions(w->t)->reused_rows, 0); /* its own rows were never given up */
}

/* Nobody ends the last session: the lease does. */
static void test_drained_in_the_end(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  rig_event(&w->r, EVENT_DRAIN, 0, 0, NULL, NULL);
  rig_advance(&w->r, SESSION_STORE_LEASE_US + 1);
  assert_true(target_drained(w->t));
}

/* --- who may say what --- */

static void test_only_an_orchestrator_opens_and_ends(void **state) {
  world *w = *state;
  rig_say(&w->r, DRAFT, prompt_message());
  assert_null(held(w, S));
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPENED), 0);
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_say(&w->r, DRAFT, message(MSG_END, SELF, S, 99));
  assert_non_null(held(w, S));
  rig_say(&w->r, DRAFT, open_message(S, 99, PROMPT, PROMPT_LENGTH));
  assert_int_equal(held(w, S)->epoch, 1);
  assert_int_equal(play(w, 1), 1);
}

static void test_only_its_orchestrator_acknowledges(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 4);
  rig_say(&w->r, DRAFT, ack(1, PROMPT_LENGTH + 2));
  assert_int_equal(held(w, S)->stream.acked, PROMPT_LENGTH);
  msg bad = ack(1, PROMPT_LENGTH + 2);
  bad.u.state.hash.bytes[0] ^= 1;
  rig_say(&w->r, DRAFT, bad);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

/* A stranger that calls itself an orchestrator at the door for drafts. */
static void test_a_false_orchestrator(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  rig_say(&w->r, STRANGER, hello_message(MSG_HELLO, WIRE_ROLE_ORCHESTRATOR, ID(STRANGER)));
  rig_clear(&w->r);
  rig_say(&w->r, STRANGER, message(MSG_END, SELF, S, 99));
  rig_say(&w->r, STRANGER, open_message(S, 98, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, STRANGER, state_message(MSG_ACK, SELF, S, 1, 1, (hash16){{9}}));
  assert_non_null(held(w, S));
  assert_int_equal(held(w, S)->epoch, 1);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

/* --- prefill and plain steps --- */

static void test_prefill_chunks(void **state) {
  world *w = *state;
  enum { LENGTH = 2 * ENGINE_CHUNK + 45 };
  int32_t prompt[LENGTH];
  for (int32_t i = 0; i < LENGTH; i++) prompt[i] = i % VOCAB;
  say_and_open(w, open_message(S, 1, prompt, LENGTH));
  int32_t rows = 0, chunks = 0;
  while (take_job(w) && w->job.kind == ENGINE_PREFILL) {
    assert_int_equal(w->job.kv_length, rows);
    rows += w->job.count;
    chunks++;
    give_result(w);
  }
  assert_int_equal(rows, LENGTH - 1);
  assert_int_equal(chunks, 3);
  assert_int_equal(w->job.kind, ENGINE_VERIFY);
  assert_int_equal(w->job.kv_length, LENGTH - 1);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  give_result(w);
  assert_int_equal(rig_last(&w->r, ORCH, MSG_TOKENS)->u.tokens.base_length, LENGTH);
}

static void test_prompt_of_one_token_has_no_rows(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 1, PROMPT, 1));
  assert_true(take_job(w));
  assert_int_equal(w->job.kind, ENGINE_VERIFY);
  assert_int_equal(w->job.kv_length, 0);
  assert_int_equal(w->job.count, 1);
}

static void test_tokens_go_to_orchestrator_and_drafts(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  attach(w, DRAFT2);
  prefill(w);
  rig_advance(&w->r, 50000); /* it need not wait for them any more */
  rig_clear(&w->r);
  assert_int_equal(play(w, 1), 1);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 3, 4);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), 3, 4);
  expect_tokens(rig_only(&w->r, DRAFT2, MSG_TOKENS), 3, 4);
  assert_true(wire_id_equal(rig_only(&w->r, DRAFT2, MSG_TOKENS)->to, ID(DRAFT2)));
  assert_int_equal(rig_only(&w->r, DRAFT, MSG_TOKENS)->epoch, 1);
}

static void test_job_carries_the_request(void **state) {
  world *w = *state;
  static const int32_t stops[] = {90, 7};
  msg m = prompt_message();
  m.u.open.options.temperature = 0.5f;
  m.u.open.options.top_k = 11;
  m.u.open.options.seed = 12345;
  m.u.open.options.choice = 3;
  m.u.open.options.stops = stops;
  m.u.open.options.stop_count = 2;
  m.u.open.options.repeat_penalty = 1.5f;
  say_and_open(w, m);
  prefill(w);
  assert_true(take_job(w));
  assert_true(w->job.sampling.temperature == 0.5f);
  assert_int_equal(w->job.sampling.top_k, 11);
  assert_int_equal(w->job.sampling.seed, 12345);
  assert_int_equal(w->job.sampling.choice, 3);
  assert_int_equal(w->job.stop_count, 2);
  assert_memory_equal(w->job.stops, stops, sizeof stops);
  assert_non_null(w->job.history); /* a penalty looks at it */
  assert_memory_equal(w->job.history, PROMPT, sizeof PROMPT);
  give_result(w);
  play(w, 4);
  assert_true(take_job(w));
  const prefix *c = &held(w, S)->committed; /* of all of C, whatever has been given out meanwhile */
  assert_int_equal(c->length, PROMPT_LENGTH + 5);
  assert_memory_equal(w->job.history, c->tokens, (size_t)c->length * sizeof *c->tokens);
}

static void test_max_tokens(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 5;
  say_and_open(w, m);
  assert_int_equal(play(w, 99), 5);
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  hash16 h = true_hash(8);
  assert_int_equal(d->length, 8);
  assert_memory_equal(&d->hash, &h, sizeof h);
  assert_int_equal(d->finish, WIRE_FINISH_LENGTH);
  assert_int_equal(d->code, 0);
  assert_int_equal(d->stats.forwards, 5);
  assert_int_equal(d->stats.plain_steps, 5);
  assert_int_equal(d->stats.accepted, 0);
  assert_int_equal(d->stats.rounds, 0);
  assert_int_equal(d->stats.rows, 0);
  assert_true(d->stats.forward_us >= 5 * JOB_US);
  assert_true(rig_place(&w->r, ORCH, MSG_DONE) > rig_place(&w->r, ORCH, MSG_TOKENS));
}

static void test_context_ends_it(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = 9;
  say_and_open(w, m);
  assert_int_equal(play(w, 99), 6);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.finish, WIRE_FINISH_LENGTH);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.length, 9);
}

static void test_stop_token(void **state) {
  world *w = *state;
  int32_t stop = truth()[6];
  msg m = prompt_message();
  m.u.open.options.stops = &stop;
  m.u.open.options.stop_count = 1;
  say_and_open(w, m);
  assert_int_equal(play(w, 99), 4);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.finish, WIRE_FINISH_STOP);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.length, 7); /* it belongs to the answer */
}

/* A stop token in the prompt stops nothing. */
static void test_stop_token_in_the_prompt(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.stops = PROMPT;
  m.u.open.options.stop_count = 3;
  say_and_open(w, m);
  assert_int_equal(play(w, 2), 2);
}

/* --- credit, acknowledgement, lease --- */

static void test_credit_bounds_the_lead(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1000;
  say_and_open(w, m);
  assert_int_equal(play(w, 1000), SCHEDULE_CREDIT);
  rig_say(&w->r, ORCH, ack(1, PROMPT_LENGTH + 10));
  assert_int_equal(play(w, 1000), 10);
}

/* With nodes too: a verify does not jump over the line. */
static void test_credit_with_nodes(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1000;
  m.u.open.options.budget = 64;
  say_and_open(w, m);
  assert_int_equal(play(w, SCHEDULE_CREDIT - 3), SCHEDULE_CREDIT - 3);
  uint32_t g = attach(w, DRAFT);
  int32_t length = held(w, S)->committed.length;
  believe(w);
  send_chain(w, DRAFT, g, length, 1, 12, false);
  run_job(w);
  assert_true(held(w, S)->committed.length - PROMPT_LENGTH <= SCHEDULE_CREDIT);
  rig_say(&w->r, ORCH, ack(1, length));
  run_job(w);
  assert_true(held(w, S)->committed.length >= length + 13); /* and is not made smaller by it for good */
}

static void test_acks_that_do_not_fit(void **state) {
  world *w = *state;
  static const struct {
    int32_t length;
    uint8_t flip;
  } table[] = {{4, 1}, {5, 0x80}, {9, 0}};
  for (int i = 0; i < 3; i++) {
    uint32_t epoch = (uint32_t)i + 1;
    say_and_open(w, open_message(S, epoch, PROMPT, PROMPT_LENGTH));
    play(w, 3);
    rig_clear(&w->r);
    msg m = ack(epoch, table[i].length);
    m.u.state.hash.bytes[0] ^= table[i].flip;
    rig_say(&w->r, ORCH, m);
    const msg *d = rig_only(&w->r, ORCH, MSG_DESYNC);
    hash16 h = true_hash(6);
    assert_int_equal(d->u.state.length, 6);
    assert_memory_equal(&d->u.state.hash, &h, sizeof h);
    assert_int_equal(play(w, 1), 0); /* out of step: it waits */
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, ack(epoch, 4));
    rig_only(&w->r, ORCH, MSG_DESYNC); /* said again */
  }
}

/* Out of step, the same epoch is not a repetition. */
static void test_repair_in_the_same_epoch(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 3);
  rig_say(&w->r, ORCH, ack(1, 9));
  rig_only(&w->r, ORCH, MSG_DESYNC);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, delta(1, 5, truth() + 5, 0));
  assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->u.state.length, 5);
  assert_int_equal(play(w, 1), 1);
}

static void test_ack_of_another_epoch(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 2, PROMPT, PROMPT_LENGTH));
  play(w, 3);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, ack(1, 5)); /* low: dropped */
  assert_int_equal(rig_count_all(&w->r, ORCH), 0);
  assert_int_equal(held(w, S)->stream.acked, PROMPT_LENGTH);
  rig_say(&w->r, ORCH, ack(3, 5)); /* high: of an epoch that is not here */
  rig_expect_error(&w->r, ORCH, ERR_GONE);
  assert_int_equal(held(w, S)->stream.acked, PROMPT_LENGTH);
}

static void test_ack_of_an_unknown_session(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, ack(1, 3));
  rig_expect_error(&w->r, ORCH, ERR_GONE);
}

/* An old one that comes late takes nothing back. */
static void test_acks_do_not_go_back(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 4);
  rig_say(&w->r, ORCH, ack(1, 6));
  rig_say(&w->r, ORCH, ack(1, 4));
  assert_int_equal(held(w, S)->stream.acked, 6);
}

/* The first tokens at once, later ones together; a draft hears of each round. */
static void test_tokens_are_told_together(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  attach(w, DRAFT);
  play_slowly(w, 1);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 3, 4);
  rig_clear(&w->r);
  int32_t length = 4;
  uint64_t start = w->r.now;
  while (rig_count(&w->r, ORCH, MSG_TOKENS) == 0) {
    held(w, S)->speculation.wait_until_us = 0; /* as if it did not pay to wait for the draft */
    assert_int_equal(play(w, 1), 1);
    length++;
    expect_tokens(rig_last(&w->r, DRAFT, MSG_TOKENS), length - 1, length);
  }
  assert_true(length > 5);
  assert_in_range(w->r.now - start, TOKEN_STREAM_EVERY_US, TOKEN_STREAM_EVERY_US + JOB_US);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 4, length);

  rig_clear(&w->r); /* a round that takes long does not hold them back */
  held(w, S)->speculation.wait_until_us = 0;
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  w->holds = true;
  rig_advance(&w->r, 2 * TOKEN_STREAM_EVERY_US);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), length, length + 1);
}

/* A draft whose nodes nobody wants is not woken for each token; when they are wanted again it hears at once.
 */
static void test_drafts_are_told_together_while_off(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  attach(w, DRAFT);
  play_slowly(w, 1);
  session *s = held(w, S);
  s->speculation.pay.off = true;
  s->speculation.pay.retry_after = 1000;
  int32_t from = s->committed.length;
  rig_clear(&w->r);
  while (rig_count(&w->r, ORCH, MSG_TOKENS) == 0) {
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_TOKENS), 0);
    assert_int_equal(play(w, 1), 1);
  }
  assert_true(s->committed.length > from + 1);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), from, s->committed.length);

  rig_clear(&w->r);
  from = s->committed.length;
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TOKENS), 0);
  s->speculation.pay.retry_after = 1;
  assert_int_equal(play(w, 1), 1);
  assert_false(s->speculation.pay.off);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), from, from + 2);

  s->speculation.pay.off = true;
  s->speculation.pay.retry_after = 1000;
  rig_clear(&w->r);
  from = s->committed.length;
  assert_int_equal(play(w, 1), 1);
  w->holds = true; /* no round follows soon */
  rig_advance(&w->r, 2 * TOKEN_STREAM_EVERY_US);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), from, from + 1);
}

/* An empty done mark lets it step at once; the round counts against waiting, and the next verify owes the
 * time. */
static void test_waiting_in_vain(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  session *s = held(w, S);
  s->speculation.history = (wait_history){
      .arrivals = 5, .arrival_us = 200, .arrival_dev_us = 50, .verifies = 20, .tokens_per_step = 2};
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(play(w, 1), 0);
  rig_advance(&w->r, 100);
  send_nodes(w, DRAFT, g, s->committed.length, 1, NULL, 0, true);
  uint32_t verifies = s->speculation.history.verifies;
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(w->job.count, 1);
  assert_int_equal(s->speculation.history.verifies, verifies + 1);
  assert_int_equal(s->speculation.history.misses, 0);
  assert_true(s->speculation.history.tokens_per_step < 2);
  assert_in_range(s->speculation.wait_owed_us, 100, 1000);
  assert_true(s->speculation.pay.plain.us <= 2 * JOB_US); /* two plain steps, without the wait */
  send_chain(w, DRAFT, g, s->committed.length, 1, 3, true);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(w->job.count, 4);
  assert_int_equal(s->speculation.wait_owed_us, 0);
  assert_true(s->speculation.pay.spec.us >= JOB_US + 100);
}

/* A node that promises less than its row costs is left where it is, and is not worth waiting for. */
static void test_poor_nodes_are_not_verified(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  session *s = held(w, S);
  assert_int_equal(play(w, 1), 1);
  guess poor = {0, truth()[s->committed.length], -8};
  send_nodes(w, DRAFT, g, s->committed.length, 1, &poor, 1, true);
  uint32_t verifies = s->speculation.history.verifies;
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(w->job.count, 1);
  assert_int_equal(s->speculation.history.verifies, verifies + 1);
}

/* What is repaired from a DESYNC is known over there before it. */
static void test_tokens_before_a_desync(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 3);
  rig_clear(&w->r);
  msg wrong = ack(1, 4);
  wrong.u.state.hash.bytes[0] ^= 1;
  rig_say(&w->r, ORCH, wrong);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 4, 6);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, 6);
  assert_true(rig_place(&w->r, ORCH, MSG_TOKENS) < rig_place(&w->r, ORCH, MSG_DESYNC));
}

/* NODES, the next job, its result and the messages about it: nothing on the way of a round takes memory. */
static void test_a_round_allocates_nothing(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 400;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  uint64_t id = 1;
  unsigned long before = 0;
  int32_t rounds = 0;
  play_slowly(w, 1);
  for (int32_t i = 0; i < 60; i++) {
    if (i == 20) before = malloc_calls(); /* by then everything has its size */
    int32_t length = held(w, S)->committed.length;
    rig_clear(&w->r);
    send_chain(w, DRAFT, g, length, id, 2, false);
    id += 2;
    assert_true(run_job(w));
    rounds += i >= 20 && w->job.count > 1;
    assert_true(rig_count(&w->r, DRAFT, MSG_TOKENS) == 1);
    rig_say(&w->r, ORCH, ack(1, length));
  }
  assert_int_equal(malloc_calls() - before, 0);
  assert_true(rounds > 20);
  assert_true(!COUNT_MALLOC || malloc_calls() > 0); /* it does count */
}

/* DONE overtakes no token. */
static void test_tokens_before_the_end(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 4;
  say_and_open(w, m);
  play(w, 4);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 2);
  expect_tokens(rig_peek(&w->r, ORCH, MSG_TOKENS, 0), 3, 4);
  expect_tokens(rig_peek(&w->r, ORCH, MSG_TOKENS, 1), 4, 7);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.length, 7);
  assert_ptr_equal(w->r.out.list[w->r.out.count - 1].message, rig_only(&w->r, ORCH, MSG_DONE));
}

static void test_tokens_again_when_not_acknowledged(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 3;
  m.u.open.options.lockstep = true; /* then it stops when the draft is there no more */
  say_and_open(w, m);
  play(w, 2);
  rig_say(&w->r, ORCH, ack(1, 4));
  rig_advance(&w->r, 2 * TOKEN_STREAM_EVERY_US);
  expect_tokens(rig_last(&w->r, ORCH, MSG_TOKENS), 4, 5);
  rig_clear(&w->r);
  rig_advance(&w->r, TOKEN_STREAM_REPEAT_US - 2 * TOKEN_STREAM_EVERY_US);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  rig_advance(&w->r, 2 * TOKEN_STREAM_EVERY_US);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 4, 5);
  rig_clear(&w->r);
  rig_advance(&w->r, 3 * TOKEN_STREAM_REPEAT_US);
  assert_true(rig_count(&w->r, ORCH, MSG_TOKENS) >= 2 && rig_count(&w->r, ORCH, MSG_TOKENS) <= 4);
  rig_say(&w->r, ORCH, ack(1, 5));
  rig_clear(&w->r);
  rig_advance(&w->r, 2 * TOKEN_STREAM_REPEAT_US);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
}

static void test_lease(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 1);
  for (int i = 0; i < 4; i++) {
    pass(w, SESSION_STORE_LEASE_US - 100000, true);
    assert_non_null(held(w, S));
    rig_say(&w->r, ORCH, ack(1, 4)); /* renews */
  }
  pass(w, SESSION_STORE_LEASE_US + 1000, true); /* PING renews nothing */
  assert_null(held(w, S));
}

static void test_lease_of_a_finished_one(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1;
  say_and_open(w, m);
  play(w, 1);
  pass(w, SESSION_STORE_LEASE_US + 1000, false);
  assert_null(held(w, S));
}

/* --- RESEND --- */

static void test_resend(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  prefill(w);
  rig_advance(&w->r, 50000);
  play(w, 1);
  static const struct {
    int32_t from, base, length;
  } table[] = {{1, 1, 4}, {3, 3, 4}, {4, 4, 4}, {9, 4, 4}, {CONTEXT, 4, 4}, {INT32_MAX, 4, 4}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    peer_id from = i % 2 ? ORCH : DRAFT;
    rig_clear(&w->r);
    w->r.now += 20000;
    rig_say(&w->r, from, resend_message(SELF, S, 1, table[i].from));
    expect_tokens(rig_only(&w->r, from, MSG_TOKENS), table[i].base, table[i].length);
    assert_int_equal(rig_count(&w->r, from == ORCH ? DRAFT : ORCH, MSG_TOKENS), 0);
  }
}

/* A frame of 40 bytes asks for 20 KB: a draft is answered every 10 ms. */
static void test_resend_storm(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  prefill(w);
  play(w, 1);
  rig_clear(&w->r);
  for (int i = 0; i < 1000; i++) { /* 100 ms */
    w->r.now += 100;
    rig_say(&w->r, DRAFT, resend_message(SELF, S, 1, 1));
  }
  int32_t answers = rig_count(&w->r, DRAFT, MSG_TOKENS);
  if (answers < 5 || answers > 11) fail_msg("%d answers in 100 ms", (int)answers);
}

/* A draft that would be somebody else is refused and detached. */
static void test_draft_in_another_role(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_ORCHESTRATOR, ID(DRAFT));
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, m);
  rig_expect_error(&w->r, DRAFT, ERR_PROTOCOL);
  assert_int_equal(session_draft_count(held(w, S)), 0);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, message(MSG_END, SELF, S, 2));
  rig_expect_error(&w->r, DRAFT, ERR_PROTOCOL);
  assert_non_null(held(w, S));
}

static void test_resend_unknown_session(void **state) {
  world *w = *state;
  rig_say(&w->r, DRAFT, resend_message(SELF, S, 1, 1));
  rig_expect_error(&w->r, DRAFT, ERR_GONE);
}

/* Tokens are the request's secret: who did not show its ticket gets none. */
static void test_resend_without_ticket(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, resend_message(SELF, S, 1, 1));
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TOKENS), 0);
}

/* --- DONE and END --- */

static void test_done_is_repeated_until_end(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1;
  say_and_open(w, m);
  play(w, 1);
  rig_say(&w->r, ORCH, ack(1, 4));
  rig_clear(&w->r);
  pass(w, 5 * TOKEN_STREAM_REPEAT_US + 1000, false);
  assert_true(rig_count(&w->r, ORCH, MSG_DONE) >= 4 && rig_count(&w->r, ORCH, MSG_DONE) <= 6);
  assert_true(w->r.m.deadline(w->r.m.self) <=
              w->r.now + TOKEN_STREAM_REPEAT_US); /* it asks to be woken for the next one */
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  rig_clear(&w->r);
  pass(w, 5 * TOKEN_STREAM_REPEAT_US, false);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DONE), 0);
}

static void test_end(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1;
  say_and_open(w, m);
  play(w, 1);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  assert_null(held(w, S));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_false(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
}

static void test_end_of_a_lower_epoch(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 3, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 2));
  rig_expect_error(&w->r, ORCH, ERR_STALE);
  assert_non_null(held(w, S));
}

static void test_cancel(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  play(w, 2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 2)); /* an epoch bump */
  const msg *d = rig_only(&w->r, ORCH, MSG_DONE);
  assert_int_equal(d->u.done.finish, WIRE_FINISH_CANCELLED);
  assert_int_equal(d->u.done.stats.forwards, w->jobs); /* with its figures */
  assert_true(rig_place(&w->r, ORCH, MSG_DONE) < rig_place(&w->r, ORCH, MSG_ENDED));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  assert_int_equal(play(w, 1), 0);
}

/* END in every state of a session, with its own epoch or a higher one, of its orchestrator or of the one that
 * has taken its place: what is told of the end goes to who ended it, in the epoch of the END. */
static void test_end_in_every_state(void **state) {
  enum { PREFILLING, DECODING, COMPUTING, DESYNCED, FINISHED, STATES };
  for (int at = 0; at < STATES; at++)
    for (uint32_t later = 0; later < 3; later++)
      for (int moved = 0; moved < 2; moved++) {
        tear_down(state);
        set_up(state);
        world *w = *state;
        msg m = prompt_message();
        if (at == FINISHED) m.u.open.options.max_tokens = 1;
        say_and_open(w, m);
        if (at == COMPUTING) assert_true(take_job(w));
        if (at == DECODING || at == FINISHED) play(w, 1);
        if (at == DESYNCED) rig_say(&w->r, ORCH, state_message(MSG_ACK, SELF, S, 1, 2, true_hash(3)));
        assert_int_equal(held(w, S)->state == SESSION_DESYNCED, at == DESYNCED);
        peer_id from = ORCH;
        if (moved) { /* it calls again from another address */
          target_connect(w->t, "tcp://127.0.0.1:3001", &w->r.out);
          rig_connected(&w->r, rig_connect_asked(&w->r)->tag, from = ORCH2);
          msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, ID(ORCH2));
          welcome.to = SELF;
          rig_say(&w->r, ORCH2, welcome);
        }
        rig_clear(&w->r);
        rig_say(&w->r, from, message(MSG_END, SELF, S, 1 + later));
        const msg *ended = rig_only(&w->r, from, MSG_ENDED);
        assert_int_equal(ended->epoch, 1 + later);
        assert_true(ended->u.existed);
        assert_null(held(w, S));
        assert_int_equal(rig_count(&w->r, from, MSG_DONE), at != FINISHED);
        assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_DONE), at != FINISHED);
        if (at != FINISHED) {
          const msg *done = rig_only(&w->r, from, MSG_DONE);
          assert_int_equal(done->epoch, 1 + later);
          assert_int_equal(done->u.done.finish, WIRE_FINISH_CANCELLED);
          assert_true(rig_place(&w->r, from, MSG_DONE) < rig_place(&w->r, from, MSG_ENDED));
        }
        rig_clear(&w->r);
        if (w->holds) give_result(w);
        assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_TOKENS), 0);
        rig_say(&w->r, from, message(MSG_END, SELF, S, 1)); /* again, of any epoch */
        assert_false(rig_only(&w->r, from, MSG_ENDED)->u.existed);
      }
}

/* A result that comes after the end belongs to nobody, and the next session in the place is not harmed. */
static void test_result_after_the_end(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  prefill(w);
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  static const int32_t other[] = {60, 61, 62, 63};
  say_and_open(w, open_message(S + 1, 1, other, 4));
  give_result(w);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(held(w, S + 1)->committed.tokens[4], next_of(63));
}

static void test_result_after_a_rollback(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 4);
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, delta(2, 4, truth() + 4, 0));
  rig_clear(&w->r);
  give_result(w); /* computed for a longer C of epoch 1 */
  assert_int_equal(held(w, S)->committed.length, 4);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  assert_int_equal(play(w, 2), 2);
  expect_tokens(rig_peek(&w->r, ORCH, MSG_TOKENS, 0), 4, 5);
}

/* Neither tokens nor rows of it: what it computed beyond the common part is of another C. */
static void test_result_after_other_tokens(void **state) {
  world *w = *state;
  static const int32_t other[] = {50, 51, 52};
  say_and_open(w, prompt_message());
  play(w, 4);
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, delta(2, 4, other, 3));
  rig_clear(&w->r);
  give_result(w);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  assert_int_equal(play(w, 1), 1); /* check_job holds the cache against C */
  assert_int_equal(held(w, S)->committed.tokens[7], next_of(52));
}

/* A job of the old epoch whose C is the same: its tokens are still those of C, whoever asked. */
static void test_result_after_a_resume(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 2);
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, delta(2, 5, truth() + 5, 0));
  rig_clear(&w->r);
  give_result(w);
  play(w, 3);
  w->holds = true; /* no more of them */
  rig_advance(&w->r, 2 * TOKEN_STREAM_EVERY_US);
  int32_t base = 5;
  for (int32_t i = 0; i < rig_count(&w->r, ORCH, MSG_TOKENS); i++) {
    const msg *m = rig_peek(&w->r, ORCH, MSG_TOKENS, i);
    assert_int_equal(m->epoch, 2);
    expect_tokens(m, base, base + m->u.tokens.token_count);
    base += m->u.tokens.token_count;
  }
  assert_true(base >= 8);
}

static void test_forged_result(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  prefill(w);
  assert_true(take_job(w));
  w->batch.jobs[0].serial += 1000; /* not a job of ours */
  rig_clear(&w->r);
  give_result(w);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  w->batch.jobs[0].serial -= 1000;
  give_result(w);
  rig_only(&w->r, ORCH, MSG_TOKENS);
}

/* --- several sessions in a forward --- */

static msg other_prompt(uint64_t id) {
  return open_message(id, 1, PROMPT, PROMPT_LENGTH);
}

/* Each gets its own tokens, the prompt of a new one is read beside those who step, and one that ends
 * meanwhile takes nobody with it. */
static void test_sessions_share_a_forward(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  say_and_open(w, other_prompt(S + 1));
  assert_true(take_job(w));
  assert_int_equal(w->batch.count, 2);
  assert_int_equal(w->batch.jobs[0].kind, ENGINE_VERIFY);
  assert_int_equal(w->batch.jobs[1].kind, ENGINE_PREFILL);
  give_result(w);
  send_chain(w, DRAFT, g, held(w, S)->committed.length, 1, 3, true);
  say_and_open(w, other_prompt(S + 2));
  assert_true(take_job(w));
  assert_int_equal(w->batch.count, 3);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S + 1, 1));
  rig_clear(&w->r);
  give_result(w);
  assert_null(held(w, S + 1));
  assert_int_equal(held(w, S)->committed.length, PROMPT_LENGTH + 1 + 4);
  for (int i = 0; i < 5; i++) run_job(w);
  for (int i = 0; i < 3; i += 2) {
    const prefix *c = &held(w, S + (uint64_t)i)->committed;
    assert_true(c->length >= PROMPT_LENGTH + 5);
    assert_memory_equal(c->tokens, truth(), (size_t)c->length * sizeof *c->tokens);
  }
}

/* What a step costs a session is what it costs alone: others in the forward make nobody's draft look bad, nor
 * good. */
static void test_others_do_not_change_what_pays(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  w->forward_us = 3 * JOB_US / 2; /* of two rows, which the prompt measures */
  prefill(w);
  session *s = held(w, S);
  for (int i = 0; i < 3; i++) {
    s->speculation.wait_until_us = 0;
    assert_int_equal(play(w, 1), 1);
  }
  double alone = s->speculation.pay.plain_us_per_token;
  assert_true(alone == JOB_US);
  say_and_open(w, other_prompt(S + 1));
  run_job(w);
  for (int i = 0; i < 20; i++) { /* two rows take more than one */
    w->forward_us = 3 * JOB_US / 2;
    run_job(w);
  }
  assert_true(fabs(s->speculation.pay.plain_us_per_token - alone) < 1e-6 * alone);
  send_chain(w, DRAFT, g, s->committed.length, 1, 3, true);
  s->speculation.wait_owed_us = 0;
  uint32_t before = s->speculation.pay.spec_steps;
  assert_true(take_job(w));
  assert_int_equal(w->batch.count, 2);
  w->forward_us = 3 * JOB_US;
  give_result(w);
  assert_int_equal(s->speculation.pay.spec_steps, before + 1);
  assert_true(fabs(s->speculation.pay.spec_us_per_token - 3.0 * JOB_US / 4) <
              0.01 * JOB_US); /* the nodes took what two plain rows do */

  /* nor does a prompt beside it, which takes long */
  s->speculation.wait_owed_us = 0;
  double spec = s->speculation.pay.spec_us_per_token;
  int32_t length[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  say_and_open(w, open_message(S + 2, 1, length, 10));
  send_chain(w, DRAFT, g, s->committed.length, 4, 3, true);
  assert_true(take_job(w));
  assert_int_equal(w->batch.count, 3);
  w->forward_us = 100 * JOB_US;
  give_result(w);
  assert_true(s->speculation.pay.spec_us_per_token < 1.1 * spec);
}

/* --- ATTACH --- */

static void test_attach(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, attach_message(1, TICKET));
  const msg *m = rig_only(&w->r, DRAFT, MSG_ATTACHED);
  hash16 h = true_hash(5);
  assert_int_equal(m->u.state.length, 5);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_true(m->u.state.generation >= 1);
  assert_int_equal(session_draft_count(held(w, S)), 1);
}

static void test_attach_again_keeps_one_place(void **state) {
  world *w = *state;
  uint32_t first = open_with_draft(w, false), again = attach(w, DRAFT);
  assert_true(again >= first);
  assert_int_equal(session_draft_count(held(w, S)), 1);
  send_chain(w, DRAFT, again, 3, 1, 2, false);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 2);
}

static void test_attach_refusals(void **state) {
  world *w = *state;
  rig_say(&w->r, DRAFT, attach_message(1, TICKET));
  rig_expect_error(&w->r, DRAFT, ERR_GONE); /* OPEN may be under way */
  say_and_open(w, open_message(S, 2, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, DRAFT, attach_message(3, TICKET));
  rig_expect_error(&w->r, DRAFT, ERR_GONE);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, attach_message(1, TICKET)); /* low: dropped */
  assert_int_equal(rig_count_all(&w->r, DRAFT), 0);
  rig_say(&w->r, DRAFT, attach_message(2, id_of(201)));
  rig_expect_error(&w->r, DRAFT, ERR_TICKET);
  rig_clear(&w->r);
  wire_id nearly = TICKET;
  nearly.bytes[15] ^= 1;
  rig_say(&w->r, DRAFT, attach_message(2, nearly));
  rig_expect_error(&w->r, DRAFT, ERR_TICKET);
  assert_int_equal(session_draft_count(held(w, S)), 0);
}

static void test_attach_no_more_than_four(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  for (peer_id p = 20; p <= 20 + SESSION_DRAFTS_MAX; p++) {
    rig_say(&w->r, p, hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(p)));
    rig_clear(&w->r);
    rig_say(&w->r, p, attach_message(1, TICKET));
    if (p < 20 + SESSION_DRAFTS_MAX) rig_only(&w->r, p, MSG_ATTACHED);
  }
  rig_expect_error(&w->r, 20 + SESSION_DRAFTS_MAX, ERR_FULL);
}

static void test_detach_and_lost_drafts(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  attach(w, DRAFT2);
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  assert_int_equal(session_draft_count(held(w, S)), 1);
  for (int i = 0; i < 8; i++) { /* DRAFT2 is silent */
    rig_advance(&w->r, 400000);
    rig_say(&w->r, ORCH, ack(1, PROMPT_LENGTH));
  }
  assert_int_equal(session_draft_count(held(w, S)), 0);
  assert_true(play(w, 1) == 1); /* plainly */
}

/* A draft that was started anew on the same connection is another one. */
static void test_restarted_draft(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  rig_say(&w->r, DRAFT, hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, id_of(222)));
  assert_int_equal(session_draft_count(held(w, S)), 0);
  rig_clear(&w->r);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  rig_expect_error(&w->r, DRAFT, ERR_GONE);
}

/* A draft that turns out to have another vocabulary is none any more. */
static void test_draft_turns_into_another(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(DRAFT));
  m.u.hello.vocabulary_size = VOCAB + 1;
  rig_say(&w->r, DRAFT, m);
  rig_expect_error(&w->r, DRAFT, ERR_MISMATCH);
  assert_int_equal(session_draft_count(held(w, S)), 0);
}

/* --- NODES --- */

static void test_nodes_are_verified(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  believe(w);
  const int32_t *c = truth();
  guess list[] = {{0, c[3], -0.1f}, {1, c[4], -0.2f}, {0, wrong_of(c[2]), -0.3f}, {2, wrong_of(c[4]), -0.5f}};
  send_nodes(w, DRAFT, g, 3, 1, list, 4, false);
  rig_clear(&w->r);
  assert_true(take_job(w));
  assert_int_equal(w->job.count, 5);
  int32_t a = child_of(&w->job, 0, c[3]);
  assert_true(a > 0 && child_of(&w->job, 0, wrong_of(c[2])) > 0);
  int32_t b = child_of(&w->job, a, c[4]);
  assert_true(b > 0 && child_of(&w->job, b, wrong_of(c[4])) > 0);
  give_result(w);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), 3, 6); /* two accepted and the bonus */
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  assert_int_equal(held(w, S)->stats.accepted, 2);
  assert_int_equal(held(w, S)->stats.rows, 4);
  assert_int_equal(held(w, S)->stats.accepted_per_pos[0], 1);
  assert_int_equal(held(w, S)->stats.accepted_per_pos[1], 1);
  assert_int_equal(held(w, S)->stats.accepted_per_pos[2], 0);
}

static void test_best_nodes_within_the_budget(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.budget = 3;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  prefill(w);
  believe(w);
  guess list[] = {{0, 10, -5.0f}, {0, 11, -0.1f}, {2, 12, -0.1f},
                  {0, 13, -1.0f}, {4, 14, -3.0f}, {1, 15, 0.0f}};
  send_nodes(w, DRAFT, g, 3, 1, list, 6, false);
  assert_true(take_job(w));
  assert_int_equal(w->job.count, 4);
  assert_true(child_of(&w->job, 0, 11) > 0 && child_of(&w->job, 0, 13) > 0);
  assert_true(child_of(&w->job, child_of(&w->job, 0, 11), 12) > 0);
  give_result(w);
}

/* Nodes that could not add a token are not verified: the last token is a plain step. */
static void test_room_is_respected(void **state) {
  world *w = *state;
  for (int32_t room = 1; room <= 4; room++) {
    msg m = open_message(S, (uint32_t)room, PROMPT, PROMPT_LENGTH);
    m.u.open.options.max_tokens = room;
    m.u.open.options.lockstep = true; /* no plain step in between to measure what one costs */
    say_and_open(w, m);
    uint32_t g = attach(w, DRAFT);
    prefill(w);
    rig_clear(&w->r);
    send_chain(w, DRAFT, g, 3, 1, 6, true);
    assert_true(take_job(w));
    assert_true(w->job.sampled_max <= room);
    assert_int_equal(w->job.count, room); /* root and room - 1 nodes: a deeper one cannot be taken */
    give_result(w);
    const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
    assert_int_equal(d->length, 3 + room);
    assert_int_equal(d->finish, WIRE_FINISH_LENGTH);
  }
}

static void test_stop_inside_the_chain(void **state) {
  world *w = *state;
  int32_t stop = truth()[4];
  msg m = prompt_message();
  m.u.open.options.stops = &stop;
  m.u.open.options.stop_count = 1;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  prefill(w);
  send_chain(w, DRAFT, g, 3, 1, 5, false);
  rig_clear(&w->r);
  assert_int_equal(play(w, 9), 1);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 3, 5);
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_int_equal(d->finish, WIRE_FINISH_STOP);
  assert_int_equal(d->length, 5);
  assert_int_equal(d->stats.forwards + d->stats.accepted, 2);
}

static void test_tokens_are_forwards_and_accepted(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  uint64_t id = 1;
  while (held(w, S)->state == SESSION_RUNNING) {
    int32_t length = held(w, S)->committed.length;
    if (length + 3 < 43) {
      send_chain(w, DRAFT, g, length, id, 3, false);
      id += 3;
    }
    if (!run_job(w)) rig_advance(&w->r, 1000);
  }
  const msg_stats *st = &rig_only(&w->r, ORCH, MSG_DONE)->u.done.stats;
  assert_int_equal(st->forwards + st->accepted, 40);
  assert_int_equal(st->forwards, w->jobs);
  assert_int_equal(st->forwards, st->rounds + st->plain_steps);
  assert_int_equal(st->rows, w->node_rows);
  assert_int_equal(st->rewound, st->rows - st->accepted);
  assert_true(st->accepted > 20);
  uint64_t sum = 0;
  for (int32_t i = 0; i < st->position_count; i++) sum += st->accepted_per_pos[i];
  assert_int_equal(sum, st->accepted);
}

/* Parent 0 is the last token of the C that the draft knew. */
static void test_nodes_of_an_older_base(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  play_slowly(w, 2); /* C has 5 tokens, the draft knows 3 */
  const int32_t *c = truth();
  guess list[] = {{0, c[3], -0.1f}, {1, c[4], -0.1f}, {2, c[5], -0.1f}, {3, c[6], -0.1f}, {0, c[5], -0.1f}};
  send_nodes(w, DRAFT, g, 3, 1, list, 5, false);
  assert_int_equal(held(w, S)->drafts.tree.live_count,
                   2); /* c[5] and c[6]; the last one is dead, not a child of the root */
  assert_true(take_job(w));
  assert_int_equal(w->job.count, 3);
  give_result(w);
  assert_int_equal(held(w, S)->committed.length, 8);
}

static void test_nodes_of_another_generation(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  uint64_t dropped = held(w, S)->stats.dropped;
  for (int i = 0; i < 3; i++) send_chain(w, DRAFT, g + 1, 3, 1, 2, true);
  assert_int_equal(rig_only(&w->r, DRAFT, MSG_TREE_RESET)->u.reset.generation, g); /* not three of them */
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  assert_int_equal(held(w, S)->stats.dropped - dropped, 3);
  assert_int_equal(held(w, S)->drafts.of[0].done_base, 0);
  w->r.now += 60000;
  send_chain(w, DRAFT, g + 1, 3, 1, 2, true);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TREE_RESET), 2);
}

static void test_nodes_beyond_c(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  send_chain(w, DRAFT, g, 5, 1, 2, true);
  const msg *m = rig_only(&w->r, DRAFT, MSG_TOKENS);
  assert_int_equal(m->u.tokens.base_length, 3);
  assert_int_equal(m->u.tokens.token_count, 0);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  assert_non_null(session_draft_of(held(w, S), DRAFT));
}

static void test_nodes_of_another_prefix(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  batch b;
  guess one = {0, 10, -0.1f};
  msg m = nodes_message(&b, 1, g, 3, 1, &one, 1, true);
  m.u.nodes.base_hash.bytes[7] ^= 4;
  rig_say(&w->r, DRAFT, m);
  rig_expect_error(&w->r, DRAFT, ERR_DESYNC);
  assert_null(session_draft_of(held(w, S), DRAFT));
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
}

static void test_nodes_of_one_that_is_not_attached(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  send_chain(w, DRAFT2, g, 3, 1, 2, true);
  rig_expect_error(&w->r, DRAFT2, ERR_GONE);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
}

static void test_nodes_with_a_gap(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  believe(w);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  guess late = {4, 10, -0.1f};
  send_nodes(w, DRAFT, g, 3, 5, &late, 1, false); /* ids 3 and 4 were lost */
  uint32_t next = rig_only(&w->r, DRAFT, MSG_TREE_RESET)->u.reset.generation;
  assert_true(next > g);
  assert_int_equal(held(w, S)->stats.resets, 1);
  send_chain(w, DRAFT, next, 3, 1, 4, false); /* its live nodes, again */
  assert_true(take_job(w));
  assert_int_equal(w->job.count, 5);
  give_result(w);
}

static void test_nodes_repeated(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  guess other[] = {{0, 70, 0.0f}, {0, 71, 0.0f}};
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  send_nodes(w, DRAFT, g, 3, 1, other, 2, false); /* what id 1 is was said once */
  assert_int_equal(held(w, S)->drafts.tree.live_count, 2);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TREE_RESET), 0);
  assert_int_equal(tree_child(&held(w, S)->drafts.tree, TREE_ROOT, 70), -1);
}

static void test_nodes_with_a_token_outside_the_vocabulary(void **state) {
  world *w = *state;
  static const int32_t bad[] = {VOCAB, INT32_MAX};
  for (int i = 0; i < 2; i++) {
    uint32_t g = i == 0 ? open_with_draft(w, false) : attach(w, DRAFT);
    guess list[] = {{0, 10, -0.1f}, {1, bad[i], -0.1f}};
    rig_clear(&w->r);
    send_nodes(w, DRAFT, g, 3, 1, list, 2, true);
    rig_expect_error(&w->r, DRAFT, ERR_ARG);
    assert_null(session_draft_of(held(w, S), DRAFT));
    assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  }
  assert_true(play(w, 1) == 1);
}

/* Too many: an error, nothing shed silently, and the session goes on plainly. */
static void test_nodes_beyond_the_limit(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  guess list[WIRE_NODES_MAX];
  for (int32_t i = 0; i < WIRE_NODES_MAX; i++) {
    list[i] = (guess){(uint64_t)(i / 90), i % 90, -1.0f}; /* all different */
  }
  send_nodes(w, DRAFT, g, 3, 1, list, WIRE_NODES_MAX, false);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_ERROR), 0);
  assert_int_equal(held(w, S)->drafts.tree.live_count, TREE_NODE_MAX);
  guess more = {0, 95, -1.0f};
  send_nodes(w, DRAFT, g, 3, WIRE_NODES_MAX + 1, &more, 1, false);
  rig_expect_error(&w->r, DRAFT, ERR_LIMIT);
  assert_null(session_draft_of(held(w, S), DRAFT));
  rig_clear(&w->r);
  play(w, 1);
  rig_advance(&w->r, 50000);
  play(w, 1);
  assert_true(rig_count(&w->r, ORCH, MSG_TOKENS) >= 1);
}

/* `count` different nodes below C, in frames that one message holds. */
static void send_many(world *w, peer_id from, uint32_t g, uint64_t first, int32_t count, int32_t token) {
  guess list[WIRE_NODES_MAX];
  for (int32_t i = 0; i < count; i++) /* rows of 40, each below the first node of the one before */
    list[i] = (guess){i < 40 ? 0 : first + (uint64_t)(i / 40 - 1) * 40, token + i % 40, -1.0f};
  send_nodes(w, from, g, 3, first, list, count, true);
}

/* The draft that takes others' room goes, not the one that finds none. */
static void test_a_greedy_draft_goes(void **state) {
  world *w = *state;
  uint32_t greedy = open_with_draft(w, false), modest = attach(w, DRAFT2);
  send_many(w, DRAFT, greedy, 1, 1000, 0);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 1000);
  rig_clear(&w->r);
  send_many(w, DRAFT2, modest, 1, 256, 50);
  assert_int_equal(rig_count(&w->r, DRAFT2, MSG_ERROR), 0);
  rig_expect_error(&w->r, DRAFT, ERR_LIMIT);
  assert_null(session_draft_of(held(w, S), DRAFT));
  assert_int_equal(held(w, S)->drafts.tree.live_count, 256);
  assert_true(run_job(w)); /* with what the other has sent */
}

/* Nor is it held against a draft what has been left behind: by one that came and went, or by its own
 * generations. */
static void test_nodes_left_behind_make_room(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  uint32_t modest = attach(w, DRAFT2), gone = attach(w, DRAFT);
  send_many(w, DRAFT, gone, 1, 1000, 0);
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  send_many(w, DRAFT2, modest, 1, 200, 50);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 200);
  for (int32_t i = 1; i < 12; i++) {
    rig_clear(&w->r);
    modest = attach(w, DRAFT2);
    send_many(w, DRAFT2, modest, 1, 200, 4 * i);
    assert_int_equal(rig_count(&w->r, DRAFT2, MSG_ERROR), 0);
  }
  assert_non_null(session_draft_of(held(w, S), DRAFT2));
}

/* Four that keep to their part, each with other guesses, all have room. */
static void test_each_draft_has_its_part(void **state) {
  world *w = *state;
  static const peer_id more[] = {STRANGER, STRANGER + 1};
  open_with_draft(w, false);
  for (int i = 0; i < 2; i++) rig_say(&w->r, more[i], hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(more[i])));
  const peer_id all[] = {DRAFT, DRAFT2, more[0], more[1]};
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) {
    uint32_t g = attach(w, all[i]);
    guess list[256]; /* their own tokens below the root, so that nothing merges */
    for (int32_t k = 0; k < 256; k++)
      list[k] = (guess){k < 20 ? 0 : (uint64_t)(k / 20), 20 * i + k % 20, -1.0f};
    send_nodes(w, all[i], g, 3, 1, list, 256, true);
    assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_ERROR), 0);
    assert_int_equal(held(w, S)->drafts.tree.live_count, 256 * (i + 1));
  }
}

static void test_nodes_too_deep(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  guess list[TREE_DEPTH_MAX + 1];
  for (int32_t i = 0; i <= TREE_DEPTH_MAX; i++) list[i] = (guess){(uint64_t)i, 50, 0};
  send_nodes(w, DRAFT, g, 3, 1, list, TREE_DEPTH_MAX + 1, false);
  rig_expect_error(&w->r, DRAFT, ERR_LIMIT);
  assert_null(session_draft_of(held(w, S), DRAFT));
}

/* 4096 ids are remembered; a draft that never names a newer base must start again. */
static void test_too_many_ids(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  guess list[WIRE_NODES_MAX];
  uint64_t first = 1;
  for (int32_t i = 0; i < WIRE_NODES_MAX; i++) list[i] = (guess){0, i % 5, -1.0f}; /* aliases of five nodes */
  for (int i = 0; i < 4; i++, first += WIRE_NODES_MAX)
    send_nodes(w, DRAFT, g, 3, first, list, WIRE_NODES_MAX, false);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TREE_RESET), 0);
  send_nodes(w, DRAFT, g, 3, first, list, 1, false);
  assert_true(rig_only(&w->r, DRAFT, MSG_TREE_RESET)->u.reset.generation > g);
}

static void test_a_base_that_lags_gets_tokens(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  rig_advance(&w->r, 50000);
  play(w, 2);
  rig_advance(&w->r, 250000); /* it has not applied them: they were lost */
  rig_clear(&w->r);
  send_nodes(w, DRAFT, g, 3, 1, NULL, 0, false);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), 3, held(w, S)->committed.length);
  rig_clear(&w->r);
  send_nodes(w, DRAFT, g, held(w, S)->committed.length, 1, NULL, 0, false);
  assert_int_equal(rig_count_all(&w->r, DRAFT), 0);
}

/* A draft that says again and again that it lags does not make the target pour out all of C each time. */
static void test_no_storm_of_tokens(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  rig_advance(&w->r, 50000);
  play(w, 5);
  rig_clear(&w->r);
  for (int i = 0; i < 1000; i++) {
    w->r.now += 10; /* 10 ms in all */
    send_nodes(w, DRAFT, g, 3, 1, NULL, 0, false);
  }
  assert_true(rig_count(&w->r, DRAFT, MSG_TOKENS) <= 2);
}

static void test_several_drafts_feed_one_tree(void **state) {
  world *w = *state;
  uint32_t g1 = open_with_draft(w, false), g2 = attach(w, DRAFT2);
  const int32_t *c = truth();
  guess a[] = {{0, c[3], -0.5f}, {1, c[4], -0.5f}},
        b[] = {{0, 70, -0.5f}, {0, c[3], -0.5f}, {2, c[4], -0.5f}, {3, c[5], -0.5f}};
  send_nodes(w, DRAFT, g1, 3, 1, a, 2, false);
  send_nodes(w, DRAFT2, g2, 3, 1, b, 4, false); /* its ids are its own; equal paths merge */
  assert_int_equal(held(w, S)->drafts.tree.live_count, 4);
  prefill(w);
  believe(w);
  assert_true(run_job(w));
  assert_int_equal(held(w, S)->committed.length, 7);
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  rig_clear(&w->r);
  guess more = {4, c[6], -0.1f}; /* DRAFT2's id 4 is trunk now; c[6] was the bonus */
  send_nodes(w, DRAFT2, g2, 3, 5, &more, 1, false);
  more = (guess){5, c[7], -0.1f};
  send_nodes(w, DRAFT2, g2, 3, 6, &more, 1, false);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 1);
}

static void test_nodes_after_the_answer(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  rig_advance(&w->r, 50000);
  while (held(w, S)->state == SESSION_RUNNING) assert_true(run_job(w));
  rig_clear(&w->r);
  send_chain(w, DRAFT, g, 4, 1, 3, true);
  assert_int_equal(rig_count_all(&w->r, DRAFT), 0);
  assert_int_equal(play(w, 1), 0);
}

/* A new epoch ends every attachment; the draft attaches anew. */
static void test_new_epoch_ends_attachments(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  say_and_open(w, delta(2, 3, truth() + 3, 1));
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  assert_int_equal(session_draft_count(held(w, S)), 0);
  batch b;
  guess one = {0, 10, -0.1f};
  rig_say(&w->r, DRAFT, nodes_message(&b, 1, g, 3, 3, &one, 1, true)); /* of the old epoch: dropped */
  assert_int_equal(rig_count_all(&w->r, DRAFT), 0);
  assert_true(attach(w, DRAFT) > g);
}

/* --- signs of life --- */

/* TOKENS without tokens that the orchestrator got in so many seconds, each of them acknowledged. */
static int32_t signs(world *w, int32_t seconds, uint64_t layers_each) {
  rig_clear(&w->r);
  for (int32_t i = 0; i < seconds; i++) {
    pass(w, 1000000, true);
    w->layers += layers_each;
    rig_say(&w->r, ORCH, ack(1, held(w, S)->committed.length));
  }
  int32_t n = 0;
  for (int32_t i = 0; i < rig_count(&w->r, ORCH, MSG_TOKENS); i++) {
    expect_tokens(rig_peek(&w->r, ORCH, MSG_TOKENS, i), held(w, S)->committed.length,
                  held(w, S)->committed.length);
    n++;
  }
  return n;
}

/* A prompt that takes minutes: the session is told of while layer after layer is computed, and not when that
 * stops. */
static void test_signs_of_life_while_a_prompt_is_read(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 1, truth(), 600));
  assert_true(take_job(w));
  int32_t n = signs(w, 60, 1);
  assert_in_range(n, 60 / 4, 60);
  n = signs(w, 60, 0); /* it hangs */
  assert_in_range(n, 0, ENGINE_WATCH_HANGS_US / 1000000 / 2 + 1);
  assert_int_equal(signs(w, 10, 0), 0);
  assert_in_range(signs(w, 10, 1), 2, 10); /* and goes on */
  give_result(w);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

/* A hung engine is silent for all sessions, those too that have no job there. */
static void test_no_signs_of_life_behind_a_hung_engine(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S + 1, 1, truth(), 600));
  assert_true(take_job(w));
  pass(w, 2 * ENGINE_WATCH_HANGS_US - 1000000, true); /* before its lease ends */
  say_and_open(w, prompt_message());
  assert_int_equal(signs(w, 10, 0), 0);
  assert_true(held(w, S + 1) == NULL || held(w, S + 1)->job.serial != 0);
}

/* Who waits for its draft, and whose engine is idle, lives. */
static void test_signs_of_life_while_waiting(void **state) {
  world *w = *state;
  open_with_draft(w, true);
  prefill(w);
  assert_in_range(signs(w, 20, 0), 5, 20);
}

/* --- pace --- */

static void test_lockstep_waits_for_the_mark(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  prefill(w);
  assert_false(run_job(w)); /* nobody is attached yet */
  uint32_t g = attach(w, DRAFT);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  assert_false(run_job(w));
  rig_advance(&w->r, 1000000);
  assert_false(run_job(w));
  rig_say(&w->r, DRAFT, ping_message(MSG_PING, SELF, 1, 1, 0));
  send_nodes(w, DRAFT, g, 3, 3, NULL, 0, true);
  assert_true(run_job(w));
  assert_int_equal(held(w, S)->committed.length, 6);
  assert_false(run_job(w)); /* the mark was for another base */
  send_nodes(w, DRAFT, g, 3, 3, NULL, 0, true);
  assert_false(run_job(w)); /* and so is this one, which comes late */
  send_nodes(w, DRAFT, g, 6, 3, NULL, 0, true);
  assert_true(run_job(w)); /* a mark without nodes: a plain step */
  assert_int_equal(w->job.count, 1);
}

static void test_lockstep_prefills_meanwhile(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  assert_true(take_job(w));
  assert_int_equal(w->job.kind, ENGINE_PREFILL);
  give_result(w);
}

static void test_lockstep_without_a_draft(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  assert_int_equal(play(w, 3), 3);
}

/* A draft that leaves ends the wait, however it leaves, and the next one begins it again. */
static void test_lockstep_without_its_draft(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, true);
  prefill(w);
  for (int i = 0; i < 3; i++) {
    int32_t length = held(w, S)->committed.length;
    assert_false(run_job(w));
    if (i == 0) rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
    if (i == 1) rig_say(&w->r, DRAFT, message(MSG_BYE, SELF, 0, 0));
    if (i == 2) send_nodes(w, DRAFT, g, length, 1, &(guess){0, VOCAB + 1, -1}, 1, true); /* refused */
    assert_int_equal(play(w, 2), 2);
    assert_int_equal(held(w, S)->committed.length, length + 2);
    g = attach(w, DRAFT);
  }
  assert_false(run_job(w));
  send_chain(w, DRAFT, g, held(w, S)->committed.length, 1, 2, true);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 3);
  uint32_t other = attach(w, DRAFT2); /* of two, the other one is waited for */
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  assert_false(run_job(w));
  send_nodes(w, DRAFT2, other, held(w, S)->committed.length, 1, NULL, 0, true);
  assert_true(run_job(w));
  pass(w, 4000000, false); /* silent for 3 s */
  assert_int_equal(play(w, 1), 1);
}

/* Its orchestrator says in the same epoch that none will come. */
static void test_lockstep_when_no_draft_comes(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  prefill(w);
  assert_false(run_job(w));
  rig_say(&w->r, ORCH, m);
  assert_false(run_job(w));
  m.u.open.draft_expected = false;
  rig_say(&w->r, ORCH, m);
  rig_last(&w->r, ORCH, MSG_OPENED);
  assert_int_equal(play(w, 2), 2);
  m.u.open.draft_expected = true; /* one that comes late was sent before */
  rig_say(&w->r, ORCH, m);
  assert_int_equal(play(w, 1), 1);
  msg next = prompt_message();
  next.epoch = 2;
  next.u.open.draft_expected = true;
  next.u.open.options.lockstep = true;
  say_and_open(w, next); /* another epoch, another draft */
  prefill(w);
  assert_false(run_job(w));
  next.u.open.draft_expected = false;
  rig_say(&w->r, ORCH, next);
  assert_int_equal(play(w, 1), 1);
  attach(w, DRAFT); /* and who is here is waited for */
  assert_false(run_job(w));
}

static void test_lockstep_ends_after_a_minute(void **state) {
  world *w = *state;
  open_with_draft(w, true);
  prefill(w);
  for (int i = 0; i < 59; i++) {
    pass(w, 1000000, true);
    rig_say(&w->r, ORCH, ack(1, 3));
    assert_false(run_job(w));
  }
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
  rig_clear(&w->r);
  pass(w, 1200000, true);
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_int_equal(d->finish, WIRE_FINISH_ERROR);
  assert_int_equal(d->code, ERR_TIMEOUT);
  assert_true(d->text.size > 0);
}

/* Time passes, and the orchestrator renews, and has `length` tokens. */
static void pass_leased(world *w, uint64_t us, int32_t length) {
  for (uint64_t left = us; left > 0;) {
    uint64_t part = left < SESSION_STORE_LEASE_US / 2 ? left : SESSION_STORE_LEASE_US / 2;
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, ack(1, length));
    pass(w, part, true);
    left -= part;
  }
}

/* The minute is counted from the last round, from the end of the prompt, from new credit: not from the
 * beginning. */
static void test_lockstep_over_a_long_session(void **state) {
  for (int acknowledged = 0; acknowledged < 2; acknowledged++) {
    tear_down(state);
    set_up(state);
    world *w = *state;
    uint32_t g = open_with_draft(w, true);
    prefill(w);
    for (int32_t length = PROMPT_LENGTH; length < PROMPT_LENGTH + 10; length++) {
      pass_leased(w, 30000000, acknowledged ? length : PROMPT_LENGTH);
      assert_false(run_job(w));
      send_nodes(w, DRAFT, g, length, 1, NULL, 0, true);
      assert_true(run_job(w));
      assert_int_equal(held(w, S)->state, SESSION_RUNNING);
    }
    pass_leased(w, 59000000, acknowledged ? PROMPT_LENGTH + 10 : PROMPT_LENGTH);
    assert_int_equal(held(w, S)->state, SESSION_RUNNING);
    pass_leased(w, 1500000, acknowledged ? PROMPT_LENGTH + 10 : PROMPT_LENGTH);
    assert_int_equal(rig_last(&w->r, ORCH, MSG_DONE)->u.done.code, ERR_TIMEOUT);
  }
}

static void test_lockstep_after_a_slow_prompt(void **state) {
  world *w = *state;
  open_with_draft(w, true);
  assert_true(take_job(w));
  pass_leased(w, 70000000, PROMPT_LENGTH);
  give_result(w);
  pass_leased(w, 59000000, PROMPT_LENGTH);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
  pass_leased(w, 1500000, PROMPT_LENGTH);
  assert_int_equal(rig_last(&w->r, ORCH, MSG_DONE)->u.done.code, ERR_TIMEOUT);
}

static void test_lockstep_after_new_credit(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  m.u.open.options.max_tokens = 1000;
  say_and_open(w, m);
  assert_int_equal(play(w, 1000), SCHEDULE_CREDIT);
  attach(w, DRAFT);
  pass_leased(w, 70000000, PROMPT_LENGTH);
  pass_leased(w, 59000000, PROMPT_LENGTH + 1);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
  pass_leased(w, 1500000, PROMPT_LENGTH + 1);
  assert_int_equal(rig_last(&w->r, ORCH, MSG_DONE)->u.done.code, ERR_TIMEOUT);
}

/* A minute without credit is not a minute without the mark; nor may the machine spin on a moment that has
 * passed. */
static void test_lockstep_without_credit(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  m.u.open.options.max_tokens = 1000;
  say_and_open(w, m);
  assert_int_equal(play(w, 1000), SCHEDULE_CREDIT);
  for (int i = 0; i < 13; i++) {
    pass(w, SESSION_STORE_LEASE_US / 2, true);
    rig_say(&w->r, ORCH, ack(1, PROMPT_LENGTH)); /* renews, and gives no credit */
    rig_clear(&w->r);
  }
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

/* A draft that nobody announced, and that never says that it is done. */
static void test_lockstep_with_a_late_draft(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  attach(w, DRAFT);
  prefill(w);
  for (int i = 0; i < 13; i++) {
    pass(w, SESSION_STORE_LEASE_US / 2, true);
    rig_say(&w->r, ORCH, ack(1, PROMPT_LENGTH));
  }
  assert_int_equal(rig_last(&w->r, ORCH, MSG_DONE)->u.done.code, ERR_TIMEOUT);
}

static void test_free_pace_waits_a_little(void **state) {
  world *w = *state;
  msg m = prompt_message();
  say_and_open(w, m);
  play(w, 4); /* what a plain step costs is known */
  attach(w, DRAFT);
  uint64_t start = w->r.now;
  int32_t steps = 0;
  while (!run_job(w)) {
    uint64_t next = w->r.m.deadline(w->r.m.self);
    assert_true(next > w->r.now && next <= start + WAIT_CAP_US);
    rig_advance(&w->r, next - w->r.now);
    assert_true(++steps < 100);
  }
  assert_int_equal(w->job.count, 1);
  assert_true(w->r.now - start <= WAIT_CAP_US + JOB_US);
}

/* The rule never holds back a node that is at hand. */
static void test_no_wait_with_a_node(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 4);
  uint32_t g = attach(w, DRAFT);
  send_chain(w, DRAFT, g, 7, 1, 1, false);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 2);
}

static void test_no_wait_while_another_can_run(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  say_and_open(w, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  play(w, 8);
  attach(w, DRAFT);
  msg other = attach_message(1, TICKET);
  other.session = S + 1;
  rig_say(&w->r, DRAFT, other);
  assert_int_equal(session_draft_count(held(w, S + 1)), 1);
  for (int i = 0; i < 10; i++) { /* the device never idles, and nobody steps alone */
    assert_true(run_job(w));
    assert_int_equal(w->batch.count, 2);
    for (uint64_t id = S; id <= S + 1; id++) assert_true(held(w, id)->speculation.wait_until_us <= w->r.now);
  }
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DONE), 0);
}

/* --- selfcheck --- */

/* Verifies `rounds` rounds of two right nodes each; counts the jobs that were checked. */
static int32_t rounds_with_nodes(world *w, uint32_t g, uint64_t *id, int32_t rounds) {
  int32_t checked = 0;
  for (int32_t i = 0; i < rounds;) {
    int32_t length = held(w, S)->committed.length;
    if (held(w, S)->drafts.tree.live_count == 0) {
      send_chain(w, DRAFT, g, length, *id, 2, false);
      *id += 2;
    }
    if (!take_job(w)) {
      rig_advance(&w->r, 1000);
      continue;
    }
    i += w->job.kind == ENGINE_VERIFY && w->job.count > 1;
    checked += w->job.selfcheck;
    give_result(w);
  }
  return checked;
}

static void test_selfcheck_cadence(void **state) {
  world *w = *state;
  static const int32_t every[] = {0, 1, 3};
  static const int32_t want[] = {0, 6, 2};
  for (int i = 0; i < 3; i++) {
    msg m = open_message(S, (uint32_t)i + 1, PROMPT, PROMPT_LENGTH);
    m.u.open.options.selfcheck = every[i];
    m.u.open.options.max_tokens = 400;
    say_and_open(w, m);
    uint32_t g = attach(w, DRAFT);
    uint64_t id = 1;
    assert_int_equal(rounds_with_nodes(w, g, &id, 6), want[i]);
  }
}

/* Nodes that are right are verified, and none is accepted. */
static void test_single_token(void **state) {
  world *w = *state;
  for (int i = 0; i < 2; i++) {
    msg m = open_message(S, (uint32_t)i + 1, PROMPT, PROMPT_LENGTH);
    m.u.open.options.single = i == 1;
    say_and_open(w, m);
    uint32_t g = attach(w, DRAFT);
    session_stats before = held(w, S)->stats;
    int32_t length = held(w, S)->committed.length;
    uint64_t id = 1;
    rounds_with_nodes(w, g, &id, 3);
    const session_stats *n = &held(w, S)->stats;
    assert_int_equal(n->rounds - before.rounds, 3);
    assert_int_equal(n->accepted - before.accepted == 0, i == 1);
    if (i == 1) assert_int_equal(held(w, S)->committed.length - length, 3);
  }
}

static bool begins(wire_string s, const char *text) {
  return s.size >= strlen(text) && memcmp(s.data, text, strlen(text)) == 0;
}

/* Only the target knows what its plain steps took: DONE says it in words where there were others to compare
 * with. */
static void test_plain_speed(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  uint64_t id = 1;
  rounds_with_nodes(w, g, &id, 1);
  while (held(w, S)->state == SESSION_RUNNING)
    if (!run_job(w)) rig_advance(&w->r, 1000);
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_true(d->stats.rounds > 0 && d->stats.plain_steps > 1);
  assert_int_equal(d->code, 0);
  char text[64];
  snprintf(text, sizeof text, "plain decoding: about %.0f tok/s",
           1e6 / held(w, S)->speculation.pay.plain_us_per_token);
  assert_true(begins(d->text, text));
  assert_int_equal(d->text.size, strlen(text));
}

static void test_selfcheck_difference_ends_speculation(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.selfcheck = 1;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  uint64_t id = 1;
  w->differs = true;
  rounds_with_nodes(w, g, &id, 1);
  int32_t rows = w->node_rows;
  while (held(w, S)->state == SESSION_RUNNING) {
    int32_t length = held(w, S)->committed.length;
    if (length < 40 && session_draft_of(held(w, S), DRAFT)) {
      send_chain(w, DRAFT, g, length, id, 2, false);
      id += 2;
    }
    assert_true(run_job(w));
  }
  assert_int_equal(w->node_rows, rows);
  assert_true(rig_only(&w->r, ORCH, MSG_DONE)->u.done.off_reason.size > 0);
  int logged = 0;
  for (int32_t i = 0; i < w->r.out.count; i++) logged += w->r.out.list[i].kind == ACTION_LOG;
  assert_true(logged >= 1);
}

/* --- errors of the engine --- */

static void test_verify_error_goes_plain(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  send_chain(w, DRAFT, g, 3, 1, 3, false);
  w->fail = ERR_INTERNAL;
  assert_true(run_job(w));
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
  assert_int_equal(held(w, S)->committed.length, 3); /* nothing was committed */
  while (held(w, S)->state == SESSION_RUNNING) {
    assert_true(run_job(w)); /* at once: it does not wait for its draft any more */
    assert_int_equal(w->job.count, 1);
  }
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_int_equal(d->finish, WIRE_FINISH_LENGTH);
  assert_int_equal(d->length, 43);
  assert_true(d->off_reason.size > 0);
  assert_int_equal(d->stats.forwards + d->stats.accepted, 40);
}

static void test_plain_error_ends_it(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  say_and_open(w, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  play(w, 2);
  w->fail = ERR_INTERNAL;
  assert_true(run_job(w));
  const msg *m = rig_only(&w->r, ORCH, MSG_DONE);
  assert_int_equal(m->u.done.finish, WIRE_FINISH_ERROR);
  assert_int_equal(m->u.done.code, ERR_INTERNAL);
  assert_true(m->u.done.text.size > 0);
  uint64_t other = m->session == S ? S + 1 : S;
  assert_int_equal(held(w, other)->state, SESSION_RUNNING); /* nothing else stops */
  assert_true(play(w, 5) == 5);
}

static void test_prefill_error_ends_it(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  w->fail = ERR_INTERNAL;
  assert_true(run_job(w));
  assert_int_equal(w->job.kind, ENGINE_PREFILL);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.finish, WIRE_FINISH_ERROR);
}

/* The cache is shorter than the session thought: DESYNC with what is sure, and a repair. */
static void test_cache_rolled_back_behind_its_back(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 6);
  assert_true(take_job(w));
  rig_clear(&w->r);
  w->r.now += JOB_US;
  engine_results r = {.count = 1};
  r.of[0] = (engine_result){.kind = w->job.kind, .serial = w->job.serial, .code = ERR_DESYNC, .kv_length = 4};
  w->length[w->job.slot] = 4;
  w->holds = false;
  rig_event(&w->r, EVENT_RESULT, 0, 0, NULL, &r);
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  int32_t length = m->u.state.length;
  hash16 h = true_hash(length);
  assert_int_equal(length, 5); /* four rows are five tokens */
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_int_equal(play(w, 1), 0);
  rig_clear(&w->r);
  rig_advance(
      &w->r,
      3 * TOKEN_STREAM_REPEAT_US); /* tokens that were not acknowledged are no use until it is repaired */
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  rig_say(&w->r, ORCH, delta(2, length, truth() + length, 9 - length));
  rig_only(&w->r, ORCH, MSG_OPENED);
  assert_int_equal(play(w, 1), 1);
  expect_tokens(rig_last(&w->r, ORCH, MSG_TOKENS), 9, 10);
}

/* --- a virtual cache --- */

/* Whatever the tests run over. */
static int set_up_few_blocks(void **state) {
  int32_t before = virtual_blocks;
  virtual_blocks = 12;
  int rc = set_up(state);
  virtual_blocks = before;
  return rc;
}

enum { LONG = 3 * KV_BLOCK + 5 };

static msg long_prompt(uint64_t id, uint32_t epoch, int32_t tokens) {
  static int32_t prompt[LONG];
  for (int32_t i = 0; i < LONG; i++) prompt[i] = i % VOCAB;
  msg m = open_message(id, epoch, prompt, LONG);
  m.u.open.options.max_tokens = tokens;
  return m;
}

/* Two sessions of one prompt: the second one reads the first one's blocks, and computes the rest. */
static void test_sessions_share_blocks(void **state) {
  world *w = *state;
  int32_t told = 0;
  block_pool *b = &target_sessions(w->t)->blocks;
  say_and_open(w, long_prompt(S, 1, 8));
  assert_int_equal(play(w, 2), 2);
  say_and_open(w, long_prompt(S + 1, 1, 8));
  const session *first = held(w, S), *second = held(w, S + 1);
  assert_int_equal(second->cache.rows, 3 * KV_BLOCK);
  assert_false(first->cache.remap); /* the engine is told of blocks once, */
  assert_true(second->cache.remap);
  assert_memory_equal(first->cache.blocks, second->cache.blocks, 3 * sizeof *first->cache.blocks);
  assert_int_not_equal(first->cache.blocks[3], second->cache.blocks[3]);
  assert_int_equal(b->shared, 3);
  assert_int_equal(block_pool_holders(b, first->cache.blocks[0]), 2);
  while (run_job(w))
    for (int32_t i = 0; i < w->batch.count; i++) told += w->batch.jobs[i].blocks != NULL;
  assert_true(told <= 3); /* and again where another one's block takes the place of an equal one */
  assert_int_equal(held(w, S)->state, SESSION_FINISHED);
  assert_int_equal(held(w, S + 1)->state, SESSION_FINISHED);
  assert_memory_equal(held(w, S)->committed.tokens, held(w, S + 1)->committed.tokens,
                      (LONG + 8) * sizeof(int32_t));
  assert_int_equal(block_pool_available(b), b->count); /* a finished one needs none */
}

/* Refused before anything is computed, and taken when there is room. */
static void test_too_few_blocks(void **state) {
  world *w = *state;
  say_and_open(w, long_prompt(S, 1, 60)); /* 113 tokens: 7 blocks of 12 */
  msg other = prompt_message();
  other.session = S + 1;
  other.u.open.options.max_tokens = 100; /* 7 as well */
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, other);
  const msg *m = rig_only(&w->r, ORCH, MSG_ERROR);
  assert_int_equal(m->u.error.code, ERR_FULL);
  assert_null(held(w, S + 1));
  other.u.open.options.max_tokens = 12 * KV_BLOCK;
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, other);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_ERROR)->u.error.code, ERR_LIMIT);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  other.u.open.options.max_tokens = 100;
  say_and_open(w, other);
  assert_int_equal(held(w, S + 1)->cache.block_count, 7);
}

/* Opened again while a job of the epoch before is under way, with what others have computed: that job's rows
 * are not this one's any more. */
static void test_found_rows_outlive_an_older_job(void **state) {
  world *w = *state;
  say_and_open(w, long_prompt(S, 1, 8));
  assert_int_equal(play(w, 2), 2); /* its blocks can be found */
  say_and_open(w, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  assert_true(take_job(w));
  say_and_open(w, long_prompt(S + 1, 2, 8)); /* other tokens: nothing of its own is left */
  assert_int_equal(held(w, S + 1)->cache.rows, 3 * KV_BLOCK);
  give_result(w);
  assert_int_equal(held(w, S + 1)->cache.rows, 3 * KV_BLOCK);
  while (run_job(w)) {
  }
  assert_memory_equal(held(w, S)->committed.tokens, held(w, S + 1)->committed.tokens,
                      (LONG + 8) * sizeof(int32_t));
}

/* Opened again with other tokens inside a block that another session reads: that one keeps it. */
static void test_shared_blocks_are_left_not_written(void **state) {
  world *w = *state;
  say_and_open(w, long_prompt(S, 1, 8));
  assert_int_equal(play(w, 2), 2);
  say_and_open(w, long_prompt(S + 1, 1, 8));
  assert_int_equal(play(w, 1), 1);
  int32_t blocks[3];
  memcpy(blocks, held(w, S)->cache.blocks, sizeof blocks);
  msg m = long_prompt(S + 1, 2, 8);
  int32_t tokens[LONG];
  memcpy(tokens, m.u.open.tokens, sizeof tokens);
  tokens[KV_BLOCK + 9]++;
  m.u.open.tokens = tokens;
  m.u.open.hash = hash_of(SEED, tokens, LONG);
  say_and_open(w, m);
  const session *s = held(w, S + 1);
  assert_int_equal(s->cache.rows, KV_BLOCK); /* nine rows are computed again */
  assert_int_equal(s->cache.blocks[0], blocks[0]);
  assert_int_not_equal(s->cache.blocks[1], blocks[1]);
  while (run_job(w)) { /* every job's rows are checked */
  }
  assert_int_equal(held(w, S)->state, SESSION_FINISHED);
  assert_int_equal(s->state, SESSION_FINISHED);
}

/* --- sessions that are opened again and again --- */

/* Prompts of few kinds, which have beginnings in common and differ from some place on. */
static int32_t storm_tokens(uint64_t *random, int32_t tokens[64]) {
  static const int32_t places[] = {3, KV_BLOCK, KV_BLOCK + 9, 2 * KV_BLOCK, 64};
  int32_t count = 1 + (int32_t)(storm_random(random) % 60), from = places[storm_random(random) % 5];
  int32_t kind = (int32_t)(storm_random(random) % 2);
  for (int32_t i = 0; i < count; i++) tokens[i] = (7 * i + 11 + (i >= from ? 1 + kind : 0)) % VOCAB;
  return count;
}

/* Whole, or as what follows a prefix that is held. */
static void storm_open(world *w, uint64_t *random, uint64_t id, uint32_t epoch) {
  int32_t tokens[2048];
  const session *s = held(w, id);
  int32_t base = 0, count;
  if (s && storm_random(random) % 2)
    base = 1 + (int32_t)(storm_random(random) % (uint64_t)s->committed.length);
  if (base) memcpy(tokens, s->committed.tokens, (size_t)base * sizeof *tokens);
  count = storm_tokens(random, tokens + base);
  if (base && storm_random(random) % 4 == 0) count = 0; /* a rollback */
  msg m = open_message(id, epoch, tokens + base, count);
  m.u.open.base_length = base;
  m.u.open.base_hash = hash_of(SEED, tokens, base);
  m.u.open.hash = hash_of(SEED, tokens, base + count);
  m.u.open.prompt_length = base + count;
  m.u.open.options.max_tokens = 1 + (int32_t)(storm_random(random) % 40);
  rig_say(&w->r, ORCH, m);
}

/* Each that is still here comes to its end with the model's tokens. */
static void storm_settle(world *w, const uint64_t *ids, int32_t count) {
  while (run_job(w)) rig_clear(&w->r);
  for (int32_t i = 0; i < count; i++) {
    const session *s = held(w, ids[i]);
    if (!s) continue;
    assert_int_equal(s->state, SESSION_FINISHED);
    assert_int_equal(s->committed.length, s->request.prompt_length + s->request.options.max_tokens);
    for (int32_t k = s->request.prompt_length; k < s->committed.length; k++)
      assert_int_equal(s->committed.tokens[k], next_of(s->committed.tokens[k - 1]));
    rig_say(&w->r, ORCH, message(MSG_END, SELF, ids[i], UINT32_MAX));
  }
  rig_clear(&w->r);
}

/* Opened with other tokens, more of them or fewer, ended, and opened again, each while a job is under way or
 * not, by two sessions whose beginnings others have computed. Every job's rows are checked against C; no
 * block is left behind. */
static void test_opened_again_in_a_storm(void **state) {
  world *w = *state;
  const session_store *store = target_sessions(w->t);
  for (uint64_t seed = 1; seed <= 500; seed++) {
    uint64_t random = seed, ids[] = {1000 + 2 * seed, 1001 + 2 * seed};
    uint32_t epoch = 1;
    for (int step = 0; step < 40; step++) {
      uint64_t id = ids[storm_random(&random) % 2];
      switch (storm_random(&random) % 8) {
      case 0:
      case 1:
        storm_open(w, &random, id, ++epoch);
        break;
      case 2:
        rig_say(&w->r, ORCH, message(MSG_END, SELF, id, ++epoch));
        break;
      case 3:
      case 4:
        take_job(w);
        break;
      default:
        if (take_job(w)) give_result(w);
      }
      rig_clear(&w->r);
    }
    storm_settle(w, ids, 2);
    if (store->is_virtual) assert_int_equal(block_pool_available(&store->blocks), store->blocks.count);
  }
}

/* The orchestrator is lost: its sessions are kept for their lease and go on when it is back. */
static void test_orchestrator_returns(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_advance(&w->r, 5000000);
  assert_non_null(held(w, S));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, ack(1, 5));
  assert_int_equal(held(w, S)->stream.acked, 5);
  assert_true(play(w, 1) == 1);
}

/* --- numbers at their ends --- */

static void test_extreme_epochs(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, UINT32_MAX, PROMPT, PROMPT_LENGTH));
  play(w, 1);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, UINT32_MAX));
  assert_true(rig_last(&w->r, ORCH, MSG_ENDED)->u.existed);
}

static void test_max_tokens_at_its_end(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = INT32_MAX;
  m.u.open.options.selfcheck = INT32_MAX;
  m.u.open.options.context = 20;
  say_and_open(w, m);
  assert_int_equal(play(w, 99), 17);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.finish, WIRE_FINISH_LENGTH);
}

/* --- who is not there --- */

/* Of a draft that is far away, answers to earlier TOKENS arrive just after each step: they say nothing of how
 * long the answer to this one takes, and it is not waited for. */
static void test_no_wait_for_a_draft_far_away(void **state) {
  world *w = *state;
  enum { BEHIND = 10 };
  msg m = prompt_message();
  m.u.open.options.max_tokens = 200;
  say_and_open(w, m);
  play(w, BEHIND);
  uint32_t g = attach(w, DRAFT);
  uint64_t id = 1;
  for (int i = 0; i < 60; i++) {
    while (!run_job(w)) rig_advance(&w->r, 100);
    rig_say(&w->r, ORCH, ack(1, held(w, S)->committed.length));
    w->r.now += 300;
    int32_t base = held(w, S)->committed.length - BEHIND + 1;
    if (i % 4 == 0 && base > PROMPT_LENGTH + BEHIND) {
      send_chain(w, DRAFT, g, base, id, BEHIND + 2, true);
      id += BEHIND + 2;
    }
  }
  assert_true(held(w, S)->stats.accepted > 0);
  assert_int_equal(held(w, S)->stats.wait_us, 0);
}

static wire_string end_reason(world *w) {
  rig_clear(&w->r);
  play(w, 200);
  return rig_last(&w->r, ORCH, MSG_DONE)->u.done.off_reason;
}

static void test_why_off_never_attached(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  say_and_open(w, m);
  assert_true(text_is(end_reason(w), WIRE_OFF_UNATTACHED));
}

static void test_why_off_attached_and_lost(void **state) {
  world *w = *state;
  static const char *const want[] = {"it gave up: no more guesses", "it has been silent for 3 s", "it left"};
  for (int i = 0; i < 3; i++) {
    msg m = open_message(S + (uint64_t)i, 1, PROMPT, PROMPT_LENGTH), attached = attach_message(1, TICKET);
    m.u.open.draft_expected = true;
    say_and_open(w, m);
    rig_say(&w->r, DRAFT, hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(DRAFT)));
    attached.session = S + (uint64_t)i;
    rig_say(&w->r, DRAFT, attached);
    msg detach = message(MSG_DETACH, SELF, S, 1);
    detach.u.state.reason = wire_text("no more guesses");
    if (i == 0) rig_say(&w->r, DRAFT, detach);
    w->holds = ask_job(w); /* the engine is busy meanwhile */
    if (i == 1) pass(w, 4000000, false);
    if (i == 2) rig_say(&w->r, DRAFT, message(MSG_BYE, SELF, 0, 0));
    wire_string why = end_reason(w);
    if (!text_has(why, want[i]) || !text_has(why, "not any more")) fail_msg("%.*s", (int)why.size, why.data);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S + (uint64_t)i, 1));
  }
}

static void test_waits_for_its_orchestrator(void **state) {
  world *w = *state;
  pass(w, 2800000, true);
  assert_int_equal(rig_logged(&w->r, "orchestrator"), 0);
  rig_advance(&w->r, 4000000);
  assert_int_equal(rig_logged(&w->r, "the orchestrator at tcp://127.0.0.1:3000 is not there any more"), 1);
  rig_clear(&w->r);
  pass(w, 1000000, true);
  assert_int_equal(rig_logged(&w->r, "the orchestrator at tcp://127.0.0.1:3000 is there now"), 1);
}

/* Nobody is there from the beginning. */
static void test_waits_for_its_first_orchestrator(void **state) {
  world *w = *state;
  target_options o = {.incarnation = SELF, .vocabulary_size = VOCAB, .sessions = 1, .context = CONTEXT};
  err e;
  rig_fini(&w->r);
  target_free(w->t);
  assert_int_equal(target_alloc(&w->t, &o, &e), ERR_OK);
  rig_init(&w->r, target_machine(w->t));
  target_connect(w->t, "tcp://127.0.0.1:3000", &w->r.out);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, ORCH);
  rig_advance(&w->r, 2900000);
  assert_int_equal(rig_logged(&w->r, ""), 0);
  rig_advance(&w->r, 200000);
  assert_int_equal(rig_logged(&w->r, "'tandem serve-workers --listen tcp://127.0.0.1:3000' running there?"),
                   1);
  rig_advance(&w->r, 58000000);
  assert_int_equal(rig_logged(&w->r, ""), 1);
  rig_advance(&w->r, 4000000);
  assert_int_equal(rig_logged(&w->r, ""), 2);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, ID(ORCH));
  welcome.to = SELF;
  rig_say(&w->r, ORCH, welcome);
  assert_int_equal(rig_logged(&w->r, "is there now"), 1);
}

#define FEW_BLOCKS(f) cmocka_unit_test_setup_teardown(f, set_up_few_blocks, tear_down)
#define CASE(f)       cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_no_wait_for_a_draft_far_away),
      CASE(test_why_off_never_attached),
      CASE(test_why_off_attached_and_lost),
      CASE(test_waits_for_its_orchestrator),
      CASE(test_waits_for_its_first_orchestrator),
      CASE(test_greets_the_orchestrator),
      CASE(test_refuses_a_draft_of_another_vocabulary),
      CASE(test_strangers_are_told_to_greet),
      CASE(test_pong_tells_the_load),
      CASE(test_open_fresh),
      CASE(test_open_again_changes_nothing),
      CASE(test_open_same_epoch_with_another_prefix),
      CASE(test_open_lower_epoch),
      CASE(test_open_delta_resume_and_rollback),
      CASE(test_open_rolls_back_to_other_tokens),
      CASE(test_open_base_not_held),
      CASE(test_open_another_hash_seed_is_another_prefix),
      CASE(test_open_wrong_result_hash),
      CASE(test_open_refusals),
      CASE(test_open_beyond_its_own_context),
      CASE(test_open_without_room_for_a_token),
      CASE(test_open_of_a_finished_answer),
      cmocka_unit_test_setup_teardown(test_open_full_and_room_of_finished_ones, set_up_one, tear_down),
      CASE(test_room_of_the_one_that_ended_first),
      CASE(test_draining),
      CASE(test_draining_repairs),
      CASE(test_drained_in_the_end),
      CASE(test_only_an_orchestrator_opens_and_ends),
      CASE(test_only_its_orchestrator_acknowledges),
      CASE(test_a_false_orchestrator),
      CASE(test_prefill_chunks),
      CASE(test_prompt_of_one_token_has_no_rows),
      CASE(test_tokens_go_to_orchestrator_and_drafts),
      CASE(test_job_carries_the_request),
      CASE(test_max_tokens),
      CASE(test_context_ends_it),
      CASE(test_stop_token),
      CASE(test_stop_token_in_the_prompt),
      CASE(test_credit_bounds_the_lead),
      CASE(test_credit_with_nodes),
      CASE(test_acks_that_do_not_fit),
      CASE(test_repair_in_the_same_epoch),
      CASE(test_ack_of_another_epoch),
      CASE(test_ack_of_an_unknown_session),
      CASE(test_acks_do_not_go_back),
      CASE(test_tokens_are_told_together),
      CASE(test_drafts_are_told_together_while_off),
      CASE(test_tokens_before_the_end),
      CASE(test_tokens_before_a_desync),
      CASE(test_waiting_in_vain),
      CASE(test_poor_nodes_are_not_verified),
      CASE(test_a_round_allocates_nothing),
      CASE(test_tokens_again_when_not_acknowledged),
      CASE(test_lease),
      CASE(test_lease_of_a_finished_one),
      CASE(test_resend),
      CASE(test_resend_storm),
      CASE(test_draft_in_another_role),
      CASE(test_resend_unknown_session),
      CASE(test_resend_without_ticket),
      CASE(test_done_is_repeated_until_end),
      CASE(test_end),
      CASE(test_end_of_a_lower_epoch),
      CASE(test_cancel),
      CASE(test_end_in_every_state),
      CASE(test_result_after_the_end),
      CASE(test_result_after_a_rollback),
      CASE(test_result_after_other_tokens),
      CASE(test_result_after_a_resume),
      CASE(test_forged_result),
      CASE(test_sessions_share_a_forward),
      CASE(test_others_do_not_change_what_pays),
      CASE(test_attach),
      CASE(test_attach_again_keeps_one_place),
      CASE(test_attach_refusals),
      CASE(test_attach_no_more_than_four),
      CASE(test_detach_and_lost_drafts),
      CASE(test_restarted_draft),
      CASE(test_draft_turns_into_another),
      CASE(test_nodes_are_verified),
      CASE(test_best_nodes_within_the_budget),
      CASE(test_room_is_respected),
      CASE(test_stop_inside_the_chain),
      CASE(test_tokens_are_forwards_and_accepted),
      CASE(test_plain_speed),
      CASE(test_nodes_of_an_older_base),
      CASE(test_nodes_of_another_generation),
      CASE(test_nodes_beyond_c),
      CASE(test_nodes_of_another_prefix),
      CASE(test_nodes_of_one_that_is_not_attached),
      CASE(test_nodes_with_a_gap),
      CASE(test_nodes_repeated),
      CASE(test_nodes_with_a_token_outside_the_vocabulary),
      CASE(test_nodes_beyond_the_limit),
      CASE(test_a_greedy_draft_goes),
      CASE(test_nodes_left_behind_make_room),
      CASE(test_each_draft_has_its_part),
      CASE(test_nodes_too_deep),
      CASE(test_too_many_ids),
      CASE(test_a_base_that_lags_gets_tokens),
      CASE(test_no_storm_of_tokens),
      CASE(test_several_drafts_feed_one_tree),
      CASE(test_nodes_after_the_answer),
      CASE(test_new_epoch_ends_attachments),
      CASE(test_signs_of_life_while_a_prompt_is_read),
      CASE(test_no_signs_of_life_behind_a_hung_engine),
      CASE(test_signs_of_life_while_waiting),
      CASE(test_lockstep_waits_for_the_mark),
      CASE(test_lockstep_prefills_meanwhile),
      CASE(test_lockstep_without_a_draft),
      CASE(test_lockstep_without_its_draft),
      CASE(test_lockstep_when_no_draft_comes),
      CASE(test_lockstep_ends_after_a_minute),
      CASE(test_lockstep_over_a_long_session),
      CASE(test_lockstep_after_a_slow_prompt),
      CASE(test_lockstep_after_new_credit),
      CASE(test_lockstep_without_credit),
      CASE(test_lockstep_with_a_late_draft),
      CASE(test_free_pace_waits_a_little),
      CASE(test_no_wait_with_a_node),
      CASE(test_no_wait_while_another_can_run),
      CASE(test_selfcheck_cadence),
      CASE(test_selfcheck_difference_ends_speculation),
      CASE(test_single_token),
      CASE(test_verify_error_goes_plain),
      CASE(test_plain_error_ends_it),
      CASE(test_prefill_error_ends_it),
      CASE(test_cache_rolled_back_behind_its_back),
      CASE(test_opened_again_in_a_storm),
      CASE(test_orchestrator_returns),
      FEW_BLOCKS(test_sessions_share_blocks),
      FEW_BLOCKS(test_too_few_blocks),
      FEW_BLOCKS(test_found_rows_outlive_an_older_job),
      FEW_BLOCKS(test_shared_blocks_are_left_not_written),
      FEW_BLOCKS(test_opened_again_in_a_storm),
      CASE(test_extreme_epochs),
      CASE(test_max_tokens_at_its_end),
  };
  int failed = cmocka_run_group_tests_name("static cache", tests, NULL, NULL);
  virtual_blocks = BLOCKS;
  return failed + cmocka_run_group_tests_name("virtual cache", tests, NULL, NULL);
}
