#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/draft_world.h"

int32_t next_of(int32_t token) {
  return (5 * token + 3) % VOCAB;
}

static int32_t wrong_of(int32_t token) {
  return (next_of(token) + 1) % VOCAB;
}

/* --- a drafter that is right, with a wrong sibling beside each node --- */

static immediate_session *fake_open(void *shared, const prefix *committed, int32_t prompt_length,
                                    const msg_options *options) {
  fake *f = shared;
  (void)prompt_length;
  (void)options;
  if (f->no_memory) return NULL;
  immediate_session *d = calloc(1, sizeof *d);
  assert_non_null(d);
  assert_true(committed->length > 0);
  *d = (immediate_session){f, committed->tokens[committed->length - 1], committed->length};
  f->opened++;
  return d;
}

static void fake_close(immediate_session *d) {
  d->f->closed++;
  free(d);
}

static void fake_advance(immediate_session *d, const prefix *committed) {
  d->f->advanced += committed->length != d->length;
  d->last = committed->tokens[committed->length - 1];
  d->length = committed->length;
}

static int32_t fake_candidates(immediate_session *d, const int32_t *path, int32_t depth,
                               draft_candidate *out) {
  int32_t last = depth ? path[depth - 1] : d->last;
  d->f->asked++;
  out[0] = (draft_candidate){.token = next_of(last), .score = d->f->score};
  out[1] = (draft_candidate){.token = wrong_of(last), .score = -1.5f};
  out[2] = (draft_candidate){.token = VOCAB + 5, .score = -0.001f};
  return d->f->candidates;
}

/* --- the world --- */

static const immediate_kind FAKE = {"fake", fake_open, fake_close, fake_advance, fake_candidates, NULL};

/* The machine begins, and its orchestrator knows it. */
static void meet_orchestrator(world *w) {
  rig_init(&w->r, draft_machine(w->d));
  draft_connect(w->d, "tcp://127.0.0.1:3000", &w->r.out);
  const action *a = rig_connect_asked(&w->r);
  assert_string_equal(a->text, "tcp://127.0.0.1:3000");
  rig_connected(&w->r, a->tag, ORCH);
  rig_only(&w->r, ORCH, MSG_HELLO);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, ID(ORCH));
  welcome.to = SELF;
  rig_say(&w->r, ORCH, welcome);
  rig_clear(&w->r);
}

int set_up_wanting(void **state, const drafter_wants *wants,
                   void (*features)(void *self, int32_t slot, const drafter_features *f)) {
  world *w = calloc(1, sizeof *w);
  w->f = (fake){.candidates = 2, .score = -0.25f};
  err e = {0};
  assert_int_equal(immediate_open(&w->drafter, &FAKE, &w->f, &e), ERR_OK);
  w->kind = *w->drafter.kind;
  w->kind.features = features;
  w->drafter.kind = &w->kind;
  if (wants) w->drafter.wants = *wants;
  draft_options o = {.incarnation = SELF, .drafters = {w->drafter}, .drafter_count = 1, .context = CONTEXT};
  assert_int_equal(draft_alloc(&w->d, &o, &e), ERR_OK);
  meet_orchestrator(w);
  *state = w;
  return 0;
}

int set_up(void **state) {
  return set_up_wanting(state, NULL, NULL);
}

int tear_down(void **state) {
  world *w = *state;
  rig_fini(&w->r);
  draft_free(w->d);
  drafter_free(&w->drafter);
  drafter_free(&w->beside);
  assert_int_equal(w->f.opened, w->f.closed);
  free(w);
  return 0;
}

const int32_t *truth(void) {
  static int32_t c[2048];
  memcpy(c, PROMPT, sizeof PROMPT);
  for (int32_t i = PROMPT_LENGTH; i < 2048; i++) c[i] = next_of(c[i - 1]);
  return c;
}

hash16 true_hash(int32_t length) {
  return hash_of(SEED, truth(), length);
}

msg open_message(uint64_t id, uint32_t epoch, const int32_t *tokens, int32_t count) {
  msg m = message(MSG_OPEN, SELF, id, epoch);
  m.u.open = (msg_open){.ticket = TICKET,
                        .hash_seed = SEED,
                        .tokens = tokens,
                        .token_count = count,
                        .hash = hash_of(SEED, tokens, count),
                        .prompt_length = count,
                        .target_endpoint = wire_text(ENDPOINT),
                        .target_incarnation = ID(TARGET)};
  m.u.open.options =
      (msg_options){.top_p = 1, .repeat_penalty = 1, .max_tokens = 200, .context = CONTEXT, .budget = BUDGET};
  return m;
}

msg prompt_message(void) {
  return open_message(S, 1, PROMPT, PROMPT_LENGTH);
}

msg delta(uint32_t epoch, int32_t base, int32_t count) {
  msg m = open_message(S, epoch, truth() + base, count);
  m.u.open.base_length = base;
  m.u.open.base_hash = base ? true_hash(base) : (hash16){{0}};
  m.u.open.hash = true_hash(base + count);
  m.u.open.prompt_length = PROMPT_LENGTH;
  return m;
}

msg welcome_message(peer_id target) {
  msg m = hello_message(MSG_WELCOME, WIRE_ROLE_TARGET, ID(target));
  m.to = SELF;
  m.u.hello.vocabulary_size = VOCAB;
  return m;
}

msg attached_message(uint32_t epoch, int32_t length, uint32_t generation) {
  msg m = state_message(MSG_ATTACHED, SELF, S, epoch, length, true_hash(length));
  m.u.state.generation = generation;
  return m;
}

void open_and_greet(world *w, msg m) {
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_only(&w->r, ORCH, MSG_OPENED);
  const action *a = rig_connect_asked(&w->r);
  if (a) {
    assert_string_equal(a->text, ENDPOINT);
    rig_connected(&w->r, a->tag, TARGET);
    rig_only(&w->r, TARGET, MSG_HELLO);
    rig_say(&w->r, TARGET, welcome_message(TARGET));
  }
  rig_last(&w->r, TARGET, MSG_ATTACH);
}

void gather(world *w) {
  for (int32_t i = 0; i < rig_count(&w->r, TARGET, MSG_NODES); i++) {
    const msg_nodes *n = &rig_peek(&w->r, TARGET, MSG_NODES, i)->u.nodes;
    if (n->generation != w->generation) {
      assert_true(n->generation > w->generation);
      w->generation = n->generation;
      w->next_id = 1;
    }
    assert_true(n->count <= WIRE_NODES_MAX);
    assert_int_equal(n->first_id, w->next_id);
    for (int32_t k = 0; k < n->count; k++) {
      uint64_t id = w->next_id++, parent = n->parents[k];
      assert_true(parent < id);
      assert_true(n->scores[k] <= 0 && n->scores[k] >= -100);
      assert_true(n->tokens[k] >= 0 && n->tokens[k] < VOCAB);
      w->nodes[id] = (seen){parent, n->tokens[k], n->base_length, n->scores[k], n->generation};
      if (parent) w->nodes[id].total += w->nodes[parent].total;
    }
    w->done = n->done;
    w->base = n->base_length;
  }
}

void settle(world *w) {
  rig_advance(&w->r, SETTLE);
  gather(w);
}

void attach(world *w, bool lockstep) {
  attach_model(w, lockstep);
  settle(w);
  rig_clear(&w->r);
}

void tell_tokens(world *w, int32_t base, int32_t count) {
  rig_say(&w->r, TARGET, tokens_message(SELF, S, 1, base, truth() + base, count, true_hash(base + count)));
}

void pass(world *w, uint64_t us, bool orchestrator, bool target) {
  for (uint64_t left = us; left > 0;) {
    uint64_t step = left < 400000 ? left : 400000;
    rig_advance(&w->r, step);
    if (orchestrator) rig_say(&w->r, ORCH, ping_message(MSG_PING, SELF, 1, 1, 0));
    if (target) rig_say(&w->r, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0));
    left -= step;
  }
}

void expect_lost(world *w) {
  rig_clear(&w->r);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
}

void expect_out_of_step(world *w, int32_t length) {
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  hash16 h = true_hash(length);
  assert_int_equal(m->u.state.length, length);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_int_equal(m->session, S);
  rig_only(&w->r, TARGET, MSG_DETACH);
  expect_lost(w);
}

/* --- a drafter that computes batches --- */

/* w->beside: the drafter that feeds the same trees, or none. */
static void set_up_computed(world *w) {
  err e = {0};
  rig_fini(&w->r);
  draft_free(w->d);
  if (w->drafter.self != w->beside.self) drafter_free(&w->drafter);
  assert_int_equal(model_drafter_open(&w->drafter, ROWS, &e), ERR_OK);
  draft_options o = {.incarnation = SELF,
                     .drafters = {w->drafter, w->beside},
                     .drafter_count = w->beside.kind ? 2 : 1,
                     .context = CONTEXT,
                     .shorter = true,
                     .session_max = CACHES};
  assert_int_equal(draft_alloc(&w->d, &o, &e), ERR_OK);
  meet_orchestrator(w);
}

int set_up_model(void **state) {
  set_up(state);
  set_up_computed(*state);
  return 0;
}

int set_up_two(void **state) {
  set_up(state);
  world *w = *state;
  w->beside = w->drafter;
  set_up_computed(w);
  return 0;
}

draft_results results_of(const draft_batch *b, int32_t last) {
  draft_results r = {.result_count = b->query_count};
  for (int32_t i = 0; i < b->job_count; i++)
    for (int32_t k = b->jobs[i].first_query; k < b->jobs[i].first_query + b->jobs[i].query_count; k++) {
      const draft_query *p = &b->queries[k];
      int32_t token = p->depth ? p->path[p->depth - 1] : last;
      r.results[k] = (draft_result){.slot = b->jobs[i].slot,
                                    .handle = p->handle,
                                    .count = 2,
                                    .list = {{next_of(token), 3}, {wrong_of(token), 0}}};
    }
  return r;
}

void give(world *w, const draft_results *r) {
  rig_event(&w->r, EVENT_RESULT, 0, 0, NULL, r);
}

int32_t compute_all(world *w, int32_t last) {
  static draft_batch b;
  int32_t batches = 0;
  for (; draft_next_batch(w->d, &b); batches++) {
    draft_results r = results_of(&b, last);
    assert_true(b.query_count <= ROWS);
    assert_true(batches < 1000);
    give(w, &r);
  }
  return batches;
}

void attach_model(world *w, bool lockstep) {
  msg m = prompt_message();
  m.u.open.options.lockstep = lockstep;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
}
