#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/target_world.h"

int32_t virtual_blocks;
static const msg_partial *partial;

int32_t next_of(int32_t token) {
  return (5 * token + 3) % VOCAB;
}

int32_t wrong_of(int32_t token) {
  return (next_of(token) + 1) % VOCAB;
}

float feature_of(int32_t token, int32_t i) {
  return (float)(3 * token + i % 7);
}

int32_t child_of(const engine_job *j, int32_t row, int32_t token) {
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

void verify(world *w, const engine_job *j, engine_result *out) {
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

/* Rows in the form in which they travel. */
static void put_rows(world *w, const engine_job *j, const int32_t *tokens, engine_result *out) {
  out->feature_bytes = taps_row_bytes(&j->taps);
  out->features = w->features[j->slot] =
      realloc(w->features[j->slot], (size_t)(out->feature_count + 1) * out->feature_bytes);
  float *row = calloc((size_t)j->taps.width, sizeof *row);
  for (int32_t n = 0; n < out->feature_count; n++) {
    for (int32_t i = 0; i < j->taps.width; i++) row[i] = feature_of(tokens[n], i);
    taps_pack(j->taps.type, row, j->taps.width, w->features[j->slot] + (size_t)n * out->feature_bytes);
  }
  free(row);
}

static void keep_states(world *w, const engine_job *j, const int32_t *tokens, engine_result *out) {
  size_t columns = (size_t)j->taps.count * TAP_EMBED;
  out->states = w->states[j->slot] =
      realloc(w->states[j->slot], (size_t)(out->feature_count + 1) * columns * sizeof(float));
  for (int32_t n = 0; n < out->feature_count; n++)
    for (size_t i = 0; i < columns; i++) w->states[j->slot][(size_t)n * columns + i] = (float)tokens[n];
}

static engine_result engine_fuses(world *w, const engine_job *j) {
  engine_result out = {.kind = j->kind, .serial = j->serial, .code = w->fail, .feature_base = j->kv_length};
  int32_t tokens[ENGINE_CHUNK_MAX];
  w->fail = 0;
  if (out.code) return out;
  size_t columns = (size_t)j->taps.count * TAP_EMBED;
  for (int32_t n = 0; n < j->count; n++) tokens[n] = (int32_t)j->states[(size_t)n * columns];
  out.feature_count = j->count;
  w->fused += j->count;
  put_rows(w, j, tokens, &out);
  return out;
}

static void engine_taps(world *w, const engine_job *j, engine_result *out) {
  bool none = j->taps.count == 0 || w->untapped;
  w->untapped = false;
  if (none) return;
  out->feature_base = j->kv_length > j->taps_from ? j->kv_length : j->taps_from;
  for (int32_t p = out->feature_base; p < out->kv_length; p++) out->feature_count++;
  w->tapped += out->feature_count;
  const int32_t *tokens = w->rows[j->slot] + (out->feature_count > 0 ? out->feature_base : 0);
  if (j->taps.fused && !j->fuses)
    keep_states(w, j, tokens, out);
  else
    put_rows(w, j, tokens, out);
}

static engine_result engine_does(world *w, const engine_job *j) {
  engine_result out = {.kind = j->kind, .serial = j->serial, .forward_us = JOB_US, .prepared = w->prepares};
  assert_true(j->slot >= 0 && j->slot < SLOTS);
  if (j->kind == ENGINE_FUSE) return engine_fuses(w, j);
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
    for (int32_t i = 0; i < out.sampled_count * j->logprobs; i++)
      w->logprobs[i] = (ranking_token){out.sampled[i / j->logprobs] + i % j->logprobs, -(float)i};
    out.logprobs = j->logprobs > 0 ? w->logprobs : NULL;
  }
  out.kv_length = w->length[j->slot];
  for (int32_t i = j->kv_length; target_sessions(w->t)->is_virtual && i < out.kv_length; i++)
    *pool_row(w, j->slot, i) = w->rows[j->slot][i];
  engine_taps(w, j, &out);
  return out;
}

session *held(world *w, uint64_t id) {
  return session_store_get(target_sessions(w->t), id);
}

void check_job(world *w, const engine_job *j) {
  const session *s = NULL;
  session_store *all = target_sessions(w->t);
  for (int32_t i = 0; i < all->count; i++) {
    if (all->slots[i].state != SESSION_FREE && all->slots[i].slot == j->slot) s = &all->slots[i];
  }
  assert_non_null(s);
  const prefix *c = &s->committed;
  assert_memory_equal(w->rows[j->slot], c->tokens, (size_t)j->kv_length * sizeof(int32_t));
  assert_true(j->count >= 1);
  if (j->kind == ENGINE_FUSE) {
    assert_true(j->taps.fused && j->kv_length + j->count <= c->length - 1);
    return;
  }
  if (j->kind == ENGINE_PREFILL) {
    assert_true(j->count <= ENGINE_CHUNK_MAX);
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

bool ask_job(world *w) {
  if (!target_next_batch(w->t, w->r.now, &w->batch)) return false;
  for (int32_t i = 0; i < w->batch.count; i++) {
    engine_maps(w, &w->batch.jobs[i]);
    check_job(w, &w->batch.jobs[i]);
  }
  w->job = w->batch.jobs[0];
  return true;
}

bool take_job(world *w) {
  if (!w->holds) w->holds = ask_job(w);
  return w->holds;
}

void give_result(world *w) {
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

bool run_job(world *w) {
  if (!take_job(w)) return false;
  give_result(w);
  return true;
}

/* While time passes the engine is given its next batch after every step, as the program does it, and does not
 * finish it. */
static void feed(void *context) {
  world *w = context;
  if (!w->holds) w->holds = ask_job(w);
}

int32_t play(world *w, int32_t count) {
  int32_t start = w->jobs;
  while (w->jobs - start < count && run_job(w)) {
  }
  return w->jobs - start;
}

void play_slowly(world *w, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    rig_advance(&w->r, LONG_US);
    assert_int_equal(play(w, 1), 1);
  }
}

static uint64_t layers_of(void *context) {
  return ((world *)context)->layers;
}

static int set_up_sized(void **state, int32_t sessions) {
  world *w = calloc(1, sizeof *w);
  target_options o = {.incarnation = SELF,
                      .vocabulary_size = VOCAB,
                      .numerics_id = "test",
                      .endpoint = "tcp://127.0.0.1:4000",
                      .host = {{1}},
                      .device = "cpu:test",
                      .sessions = sessions,
                      .context = CONTEXT,
                      .kv_blocks = virtual_blocks,
                      .taps = {.layers = TAP_LAYERS, .embed = TAP_EMBED},
                      .partial = partial,
                      .progress = layers_of,
                      .engine_context = w};
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

int set_up(void **state) {
  return set_up_sized(state, SLOTS);
}

int set_up_one(void **state) {
  return set_up_sized(state, 1);
}

int tear_down(void **state) {
  world *w = *state;
  rig_fini(&w->r);
  target_free(w->t);
  for (int i = 0; i < SLOTS; i++) free(w->features[i]), free(w->states[i]);
  free(w);
  return 0;
}

void pass(world *w, uint64_t us, bool with_drafts) {
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

msg open_message(uint64_t id, uint32_t epoch, const int32_t *tokens, int32_t count) {
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

msg prompt_message(void) {
  return open_message(S, 1, PROMPT, PROMPT_LENGTH);
}

void say_and_open(world *w, msg m) {
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_only(&w->r, ORCH, MSG_OPENED);
  rig_clear(&w->r);
  if (m.u.open.draft_expected) w->r.now += SCHEDULE_ATTACH_US; /* the prompt does not wait any more */
}

const int32_t *truth(void) {
  static int32_t c[CONTEXT];
  memcpy(c, PROMPT, sizeof PROMPT);
  for (int32_t i = PROMPT_LENGTH; i < CONTEXT; i++) c[i] = next_of(c[i - 1]);
  return c;
}

hash16 true_hash(int32_t length) {
  return hash_of(SEED, truth(), length);
}

msg ack(uint32_t epoch, int32_t length) {
  return state_message(MSG_ACK, SELF, S, epoch, length, true_hash(length));
}

void expect_tokens(const msg *m, int32_t base, int32_t length) {
  assert_int_equal(m->u.tokens.base_length, base);
  assert_int_equal(base + m->u.tokens.token_count, length);
  assert_memory_equal(m->u.tokens.tokens, truth() + base, (size_t)(length - base) * sizeof(int32_t));
  hash16 h = true_hash(length);
  assert_memory_equal(&m->u.tokens.hash, &h, sizeof h);
}

msg attach_message(uint32_t epoch, wire_id ticket) {
  msg m = state_message(MSG_ATTACH, SELF, S, epoch, PROMPT_LENGTH, true_hash(PROMPT_LENGTH));
  m.u.state.ticket = ticket;
  return m;
}

uint32_t attach(world *w, peer_id peer) {
  rig_clear(&w->r);
  rig_say(&w->r, peer, attach_message(held(w, S)->epoch, TICKET));
  uint32_t generation = rig_only(&w->r, peer, MSG_ATTACHED)->u.state.generation;
  rig_clear(&w->r);
  return generation;
}

msg nodes_message(batch *b, uint32_t epoch, uint32_t generation, int32_t base, uint64_t first,
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

void send_nodes(world *w, peer_id from, uint32_t generation, int32_t base, uint64_t first, const guess *list,
                int32_t count, bool done) {
  batch b;
  rig_say(&w->r, from, nodes_message(&b, held(w, S)->epoch, generation, base, first, list, count, done));
}

void send_chain(world *w, peer_id from, uint32_t generation, int32_t base, uint64_t first, int32_t count,
                bool done) {
  guess list[WIRE_NODES_MAX];
  for (int32_t i = 0; i < count; i++) {
    list[i] = (guess){i ? first + (uint64_t)i - 1 : 0, truth()[base + i],
                      -0.001f}; /* so sure that any width pays */
  }
  send_nodes(w, from, generation, base, first, list, count, done);
}

void greet_another_orchestrator_of(world *w, uint32_t version) {
  target_connect(w->t, "tcp://127.0.0.1:3001", &w->r.out);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, ORCH2);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, ID(ORCH2));
  welcome.to = SELF;
  welcome.u.hello.version_min = welcome.u.hello.version_max = version;
  rig_say(&w->r, ORCH2, welcome);
  rig_clear(&w->r);
}

void greet_another_orchestrator(world *w) {
  greet_another_orchestrator_of(w, WIRE_VERSION_MAX);
}

uint32_t open_with_draft(world *w, bool lockstep) {
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  m.u.open.options.lockstep = lockstep;
  say_and_open(w, m);
  return attach(w, DRAFT);
}

void believe(world *w) {
  speculation *s = &held(w, S)->speculation;
  s->policy = (policy){.state = POLICY_ON, .own = {.accepted = 100000}, .balance = 1000, .net = 1000};
  cost_model *costs = &target_speculation(w->t)->costs;
  cost_model_measured(costs, 1, 0, JOB_US);
  cost_model_measured(costs, 40, 0, JOB_US);
}

void prefill(world *w) {
  while (held(w, S)->cache.rows < held(w, S)->committed.length - 1) assert_true(run_job(w));
}

msg delta(uint32_t epoch, int32_t base, const int32_t *tokens, int32_t count) {
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

msg part_message(uint32_t epoch, int32_t base, int32_t end, int32_t total) {
  msg m = delta(epoch, base, truth() + base, end - base);
  m.type = MSG_PART;
  if (!base) m.u.open.base_hash = (hash16){{0}};
  m.u.open.total = total;
  m.u.open.prompt_length = total;
  return m;
}

msg other_prompt(uint64_t id) {
  return open_message(id, 1, PROMPT, PROMPT_LENGTH);
}

int32_t rounds_with_nodes(world *w, uint32_t g, uint64_t *id, int32_t rounds) {
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

bool begins(wire_string s, const char *text) {
  return s.size >= strlen(text) && memcmp(s.data, text, strlen(text)) == 0;
}

int set_up_few_blocks(void **state) {
  int32_t before = virtual_blocks;
  virtual_blocks = 12;
  int rc = set_up(state);
  virtual_blocks = before;
  return rc;
}

int set_up_partial(void **state) {
  static const msg_partial how = {.mode = WIRE_PARTIAL_EXACT, .threshold = 1, .refresh = 4};
  partial = &how;
  int rc = set_up(state);
  partial = NULL;
  return rc;
}

int run_over_both_caches(const struct CMUnitTest *tests, size_t count) {
  int failed = _cmocka_run_group_tests("static cache", tests, count, NULL, NULL);
  virtual_blocks = BLOCKS;
  return failed + _cmocka_run_group_tests("virtual cache", tests, count, NULL, NULL);
}
