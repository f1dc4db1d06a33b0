/* libs: draft wire speculative base */
#include "draft_worker/attachment.h"
#include "draft_worker/draft_session.h"
#include "draft_worker/target_links.h"
#include "draft_worker/drafters/immediate.h"
#include "draft_worker/drafters/model.h"
#include "draft_worker/worker.h"
#include "common/speculative/tree.h"
#include "tests/machine_support.h"

#include <math.h>

#define GOAL (DRAFTER_AHEAD_MAX * BUDGET + 1) /* live nodes in free pace */
enum { VOCAB = 97, CONTEXT = 512 };
enum { ORCH = 1, TARGET = 2, TARGET2 = 3 };
enum { S = 77, SEED = 9, BUDGET = 4 };
#define SELF     id_of(100)
#define ID(p)    id_of((uint8_t)(p))
#define TICKET   id_of(200)
#define ENDPOINT "tcp://127.0.0.1:4000"
#define SETTLE   5000 /* microseconds in which it has grown what it wants */

static int32_t next_of(int32_t token) {
  return (5 * token + 3) % VOCAB;
}
static int32_t wrong_of(int32_t token) {
  return (next_of(token) + 1) % VOCAB;
}

/* --- a drafter that is right, with a wrong sibling beside each node --- */

typedef struct fake { /* shared */
  int32_t opened, closed, advanced, asked;
  int32_t candidates; /* how many it has for a path: 0 to 3, the third is outside any vocabulary */
  float score;        /* of the first */
  bool no_memory;
} fake;

struct immediate_session {
  fake *f;
  int32_t last, length;
};

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

static const immediate_kind FAKE = {"fake", fake_open, fake_close, fake_advance, fake_candidates};

/* --- the world --- */

typedef struct seen { /* one node that went out */
  uint64_t parent;
  int32_t token, base;
  float total; /* of its path */
  uint32_t generation;
} seen;

typedef struct world {
  rig r;
  draft *d;
  drafter drafter;
  fake f;
  seen nodes[1 << 16]; /* [id], of this generation */
  uint64_t next_id;
  uint32_t generation;
  bool done;
  int32_t base;
} world;

static int set_up(void **state) {
  world *w = calloc(1, sizeof *w);
  w->f = (fake){.candidates = 2, .score = -0.25f};
  err e = {0};
  assert_int_equal(immediate_open(&w->drafter, &FAKE, &w->f, &e), ERR_OK);
  draft_options o = {.incarnation = SELF, .drafters = {w->drafter}, .drafter_count = 1, .context = CONTEXT};
  assert_int_equal(draft_alloc(&w->d, &o, &e), ERR_OK);
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
  *state = w;
  return 0;
}

static int tear_down(void **state) {
  world *w = *state;
  rig_fini(&w->r);
  draft_free(w->d);
  drafter_free(&w->drafter);
  assert_int_equal(w->f.opened, w->f.closed);
  free(w);
  return 0;
}

static const int32_t PROMPT[] = {1, 2, 3};
enum { PROMPT_LENGTH = 3 };

static const int32_t *truth(void) {
  static int32_t c[2048];
  memcpy(c, PROMPT, sizeof PROMPT);
  for (int32_t i = PROMPT_LENGTH; i < 2048; i++) c[i] = next_of(c[i - 1]);
  return c;
}

static hash16 true_hash(int32_t length) {
  return hash_of(SEED, truth(), length);
}

static msg open_message(uint64_t id, uint32_t epoch, const int32_t *tokens, int32_t count) {
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

static msg prompt_message(void) {
  return open_message(S, 1, PROMPT, PROMPT_LENGTH);
}

static msg delta(uint32_t epoch, int32_t base, int32_t count) {
  msg m = open_message(S, epoch, truth() + base, count);
  m.u.open.base_length = base;
  m.u.open.base_hash = base ? true_hash(base) : (hash16){{0}};
  m.u.open.hash = true_hash(base + count);
  m.u.open.prompt_length = PROMPT_LENGTH;
  return m;
}

static msg welcome_message(peer_id target) {
  msg m = hello_message(MSG_WELCOME, WIRE_ROLE_TARGET, ID(target));
  m.to = SELF;
  m.u.hello.vocabulary_size = VOCAB;
  return m;
}

static msg attached_message(uint32_t epoch, int32_t length, uint32_t generation) {
  msg m = state_message(MSG_ATTACHED, SELF, S, epoch, length, true_hash(length));
  m.u.state.generation = generation;
  return m;
}

/* OPEN, and the way to its target. ATTACH is out afterwards. */
static void open_and_greet(world *w, msg m) {
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

/* Takes up all NODES since rig_clear, as a target would, and checks their ids. */
static void gather(world *w) {
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

static void settle(world *w) {
  rig_advance(&w->r, SETTLE);
  gather(w);
}

/* Attached, with its tree grown. */
static void attach(world *w, bool lockstep) {
  msg m = prompt_message();
  m.u.open.options.lockstep = lockstep;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  settle(w);
  rig_clear(&w->r);
}

static void tell_tokens(world *w, int32_t base, int32_t count) {
  rig_say(&w->r, TARGET, tokens_message(SELF, S, 1, base, truth() + base, count, true_hash(base + count)));
}

/* Time passes, and nobody is silent. */
static void pass(world *w, uint64_t us, bool orchestrator, bool target) {
  for (uint64_t left = us; left > 0;) {
    uint64_t step = left < 400000 ? left : 400000;
    rig_advance(&w->r, step);
    if (orchestrator) rig_say(&w->r, ORCH, ping_message(MSG_PING, SELF, 1, 1, 0));
    if (target) rig_say(&w->r, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0));
    left -= step;
  }
}

static void expect_lost(world *w) { /* it gave up: nothing more until OPEN */
  rig_clear(&w->r);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
}

static void expect_out_of_step(world *w, int32_t length) {
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  hash16 h = true_hash(length);
  assert_int_equal(m->u.state.length, length);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_int_equal(m->session, S);
  rig_only(&w->r, TARGET, MSG_DETACH);
  expect_lost(w);
}

/* --- greeting and OPEN --- */

static void test_greets(void **state) {
  world *w = *state;
  draft_connect(w->d, "tcp://127.0.0.1:3001", &w->r.out);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, 9);
  const msg_hello *h = &rig_only(&w->r, 9, MSG_HELLO)->u.hello;
  assert_int_equal(h->role, WIRE_ROLE_DRAFT);
  assert_true(wire_id_equal(h->incarnation, SELF));
  assert_true(text_is(h->method, "fake"));
  assert_true(hash_is_zero(h->vocabulary_hash));
  assert_int_equal(h->session_max, DRAFT_SESSIONS_MAX);
  assert_int_equal(h->context_max, CONTEXT);
}

static void test_open_leads_to_attach(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
  hash16 h = true_hash(PROMPT_LENGTH);
  assert_int_equal(m->u.state.length, PROMPT_LENGTH);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  const action *a = rig_connect_asked(&w->r);
  assert_string_equal(a->text, ENDPOINT);
  rig_connected(&w->r, a->tag, TARGET);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_HELLO)->u.hello.role, WIRE_ROLE_DRAFT);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0); /* not before WELCOME */
  rig_say(&w->r, TARGET, welcome_message(TARGET));
  m = rig_only(&w->r, TARGET, MSG_ATTACH);
  assert_int_equal(m->session, S);
  assert_int_equal(m->epoch, 1);
  assert_true(wire_id_equal(m->to, ID(TARGET)));
  assert_true(wire_id_equal(m->u.state.ticket, TICKET));
  assert_int_equal(m->u.state.length, PROMPT_LENGTH);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
}

static void test_known_target_is_not_called_twice(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  assert_null(rig_connect_asked(&w->r));
  assert_int_equal(rig_only(&w->r, TARGET, MSG_ATTACH)->session, S + 1);
}

/* Who answers there is another program than the one that the orchestrator meant. */
static void test_welcome_of_another_incarnation(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET);
  msg m = welcome_message(TARGET);
  m.u.hello.incarnation = id_of(99);
  rig_say(&w->r, TARGET, m);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  rig_say(&w->r, TARGET, welcome_message(TARGET)); /* there it is */
  assert_true(rig_count(&w->r, TARGET, MSG_ATTACH) >= 1);
}

static peer_id disconnected(const world *w) {
  for (int32_t i = 0; i < w->r.out.count; i++)
    if (w->r.out.list[i].kind == ACTION_DISCONNECT) return w->r.out.list[i].peer;
  return 0;
}

/* A wish to connect that found no memory is asked for again; two answers to one are one connection. */
static void test_connection_that_was_not_made(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  uint64_t tag = rig_connect_asked(&w->r)->tag;
  for (int i = 0; i < 3; i++) { /* nobody answers */
    rig_clear(&w->r);
    pass(w, 400000, true, false);
    assert_int_equal(rig_connect_asked(&w->r)->tag, tag);
    assert_string_equal(rig_connect_asked(&w->r)->text, ENDPOINT);
  }
  rig_connected(&w->r, tag, TARGET);
  rig_only(&w->r, TARGET, MSG_HELLO);
  rig_connected(&w->r, tag, 9);
  assert_int_equal(disconnected(w), 9);
  assert_int_equal(rig_count(&w->r, 9, MSG_HELLO), 0);
  rig_clear(&w->r);
  pass(w, 2000000, true, true);
  assert_null(rig_connect_asked(&w->r));
  rig_say(&w->r, TARGET, welcome_message(TARGET));
  rig_last(&w->r, TARGET, MSG_ATTACH);
}

static void test_target_cannot_be_called(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, 0);
  rig_only(&w->r, ORCH, MSG_ERROR); /* or the orchestrator would count on it */
  rig_clear(&w->r);
  pass(w, 1000000, true, false);
  assert_true(w->r.out.count < 10);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
}

/* Addresses that nobody can call, as a mad target may advertise, do not use up the places for targets. */
static void test_bad_addresses_take_no_place(void **state) {
  world *w = *state;
  for (int i = 0; i < 3 * TARGET_LINKS_MAX; i++) {
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "nonsense:%d", i);
    msg m = open_message(1000 + (uint64_t)i, 1, PROMPT, PROMPT_LENGTH);
    m.u.open.target_endpoint = wire_text(endpoint);
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, m);
    rig_connected(&w->r, rig_connect_asked(&w->r)->tag, 0);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, 1000 + (uint64_t)i, 1));
  }
  attach(w, false);
  assert_true(w->next_id > 1);
}

/* Targets come and go, each at a new address: the places of those that went are free again. */
static void test_targets_come_and_go(void **state) {
  world *w = *state;
  for (int i = 0; i < 2 * TARGET_LINKS_MAX; i++) {
    char endpoint[64];
    uint64_t id = 1000 + (uint64_t)i;
    peer_id peer = 100 + (peer_id)i;
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", 6000 + i);
    msg m = open_message(id, 1, PROMPT, PROMPT_LENGTH), welcome = welcome_message(TARGET);
    m.u.open.target_endpoint = wire_text(endpoint);
    m.u.open.target_incarnation = welcome.u.hello.incarnation = id_of((uint8_t)(i + 1));
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, m);
    rig_only(&w->r, ORCH, MSG_OPENED);
    rig_connected(&w->r, rig_connect_asked(&w->r)->tag, peer);
    if (i % 2) rig_say(&w->r, peer, welcome); /* the others are never reached */
    pass(w, 4000000, true, false);            /* lost while the session is there */
    rig_say(&w->r, ORCH, message(MSG_END, SELF, id, 1));
    pass(w, 1000000, true, false);
  }
}

static void test_open_again_changes_nothing(void **state) {
  world *w = *state;
  attach(w, false);
  tell_tokens(w, 3, 2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, prompt_message());
  assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->u.state.length, 5);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  assert_int_equal(w->f.opened, 1);
}

static void test_open_epochs(void **state) {
  world *w = *state;
  open_and_greet(w, open_message(S, 5, PROMPT, PROMPT_LENGTH));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S, 4, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_STALE);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S, 6, PROMPT, PROMPT_LENGTH));
  assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->epoch, 6);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_ATTACH)->epoch, 6); /* at once: the target is greeted */
}

static void test_open_delta(void **state) {
  world *w = *state;
  static const struct { int32_t base, count; } table[] = {{5, 0}, {5, 3}, {4, 0}, {3, 1}, {0, 6}};
  attach(w, false);
  uint32_t epoch = 1;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, delta(++epoch, 0, 5));
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, delta(++epoch, table[i].base, table[i].count));
    const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
    int32_t length = table[i].base + table[i].count;
    hash16 h = true_hash(length);
    assert_int_equal(m->u.state.length, length);
    assert_memory_equal(&m->u.state.hash, &h, sizeof h);
    rig_say(&w->r, TARGET, attached_message(epoch, length, epoch));
    settle(w);
    assert_int_equal(w->base, length);
    assert_int_equal(w->nodes[1].token, truth()[length]); /* its drafter knows too */
  }
}

static void test_open_base_not_held(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, delta(1, 3, 1));
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  assert_int_equal(m->u.state.length, 0);
  assert_true(hash_is_zero(m->u.state.hash));
  assert_int_equal(w->f.opened, 0);
  attach(w, false);
  msg bad[] = {delta(2, 4, 0), delta(2, 2, 1), delta(2, 3, 1), delta(2, 3, 1)};
  bad[1].u.open.base_hash.bytes[9] ^= 1;
  bad[2].u.open.hash.bytes[0] ^= 1;
  bad[3].u.open.hash_seed++;
  for (int i = 0; i < 4; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, bad[i]);
    assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, PROMPT_LENGTH);
    assert_int_equal(rig_count(&w->r, ORCH, MSG_OPENED), 0);
  }
}

/* It may say that it is out of step, or take it over at once; what it says then must be so. */
static void test_open_same_epoch_with_another_prefix(void **state) {
  world *w = *state;
  static const int32_t other[] = {1, 2, 4};
  hash16 h = hash_of(SEED, other, 3);
  attach(w, false);
  rig_say(&w->r, ORCH, open_message(S, 1, other, 3));
  if (rig_count(&w->r, ORCH, MSG_DESYNC) == 0) {
    assert_memory_equal(&rig_only(&w->r, ORCH, MSG_OPENED)->u.state.hash, &h, sizeof h);
    assert_memory_equal(&rig_only(&w->r, TARGET, MSG_ATTACH)->u.state.hash, &h, sizeof h);
  }
}

static void test_open_too_long(void **state) {
  world *w = *state;
  static int32_t many[CONTEXT + 1];
  rig_say(&w->r, ORCH, open_message(S, 1, many, CONTEXT + 1));
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
  assert_int_equal(w->f.opened, 0);
  msg m = open_message(S, 1, truth(), 20); /* longer than the session itself may be */
  m.u.open.options.context = 19;
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
  assert_int_equal(w->f.opened, 0);
}

/* What it is to hold counts, however much of it is here already. context: of the session. */
static void open_of_every_base(world *w, int32_t context) {
  static int32_t held[CONTEXT], more[CONTEXT + 1];
  for (int32_t length = 1; length <= CONTEXT; length += length < CONTEXT - 3 ? 36 : 1)
    for (int32_t over = -1; over <= 1; over++) {
      uint64_t id = S + (uint64_t)(3 * length + over);
      msg m = open_message(id, 1, held, length);
      m.u.open.options.context = context;
      rig_clear(&w->r);
      rig_say(&w->r, ORCH, m);
      rig_only(&w->r, ORCH, MSG_OPENED);
      int32_t count = CONTEXT - length + over;
      if (count < 0) count = 0;
      m = open_message(id, 2, more, count);
      m.u.open.options.context = context;
      m.u.open.base_length = m.u.open.prompt_length = length;
      m.u.open.base_hash = hash_of(SEED, held, length);
      m.u.open.hash = hash_of(SEED, more, length + count); /* all zeros, as those that are held */
      rig_clear(&w->r);
      rig_say(&w->r, ORCH, m);
      if (length + count > CONTEXT)
        rig_expect_error(&w->r, ORCH, ERR_LIMIT);
      else
        assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->u.state.length, length + count);
      rig_say(&w->r, ORCH, message(MSG_END, SELF, id, 2));
    }
}

static void test_open_of_every_base(void **state) {
  open_of_every_base(*state, CONTEXT);
}

/* A model's context may be shorter than the session's: it helps while it can, and no longer. */
static void test_open_of_every_base_at_a_short_model(void **state) {
  open_of_every_base(*state, 4 * CONTEXT);
}

static void test_open_without_target(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.target_endpoint = (wire_string){0};
  m.u.open.target_incarnation = (wire_id){{0}};
  rig_say(&w->r, ORCH, m);
  rig_expect_error(&w->r, ORCH, ERR_ARG);
}

static void test_open_full(void **state) {
  world *w = *state;
  for (uint64_t i = 1; i <= DRAFT_SESSIONS_MAX; i++)
    rig_say(&w->r, ORCH, open_message(i, 1, PROMPT, PROMPT_LENGTH));
  assert_int_equal(rig_count(&w->r, ORCH, MSG_OPENED), DRAFT_SESSIONS_MAX);
  rig_say(&w->r, ORCH, open_message(1000, 1, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_FULL);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, 5, 1));
  rig_say(&w->r, ORCH, open_message(1000, 1, PROMPT, PROMPT_LENGTH));
  rig_only(&w->r, ORCH, MSG_OPENED);
}

static void test_open_more_targets_than_it_calls(void **state) {
  world *w = *state;
  int32_t refused = 0;
  for (int i = 0; i < TARGET_LINKS_MAX + 2; i++) {
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", 5000 + i);
    msg m = open_message((uint64_t)i + 1, 1, PROMPT, PROMPT_LENGTH);
    m.u.open.target_endpoint = wire_text(endpoint);
    m.u.open.target_incarnation = id_of((uint8_t)(i + 1));
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, m);
    refused += rig_count(&w->r, ORCH, MSG_ERROR);
    const action *a = rig_connect_asked(&w->r);
    if (a) rig_connected(&w->r, a->tag, (peer_id)(100 + i));
    if (i >= TARGET_LINKS_MAX) rig_expect_error(&w->r, ORCH, ERR_FULL);
  }
  assert_int_equal(refused, 2);
}

static void test_open_without_memory(void **state) {
  world *w = *state;
  w->f.no_memory = true;
  rig_say(&w->r, ORCH, prompt_message());
  rig_expect_error(&w->r, ORCH, ERR_NOMEM);
  w->f.no_memory = false;
  open_and_greet(w, prompt_message());
}

/* A draft is advice: it leaves at once, and says so to everybody. */
static void test_draining(void **state) {
  world *w = *state;
  attach(w, false);
  rig_event(&w->r, EVENT_DRAIN, 0, 0, NULL, NULL);
  rig_only(&w->r, ORCH, MSG_BYE);
  rig_only(&w->r, TARGET, MSG_BYE);
  rig_only(&w->r, TARGET, MSG_DETACH);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0); /* nothing is to be repaired */
  assert_true(draft_drained(w->d));
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_DRAINING);
}

/* --- ATTACH --- */

static void test_attach_until_attached(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_clear(&w->r);
  for (int i = 1; i <= 4; i++) {
    rig_advance(&w->r, DRAFT_REPEAT_US - 1);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), i - 1);
    rig_advance(&w->r, 1);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), i);
  }
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  rig_clear(&w->r);
  rig_advance(&w->r, 3 * DRAFT_REPEAT_US);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
}

static void test_gone_is_tried_again(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  for (int i = 0; i < 10; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE)); /* OPEN is still under way to it */
    assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);   /* not at once: the timer does */
    rig_advance(&w->r, DRAFT_REPEAT_US);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 1);
  }
}

static void test_refused_attach(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_TICKET, ERR_FULL, ERR_LIMIT, ERR_ARG};
  open_and_greet(w, prompt_message());
  for (int i = 0; i < 4; i++) {
    rig_say(&w->r, TARGET, error_message(SELF, S, 1, codes[i]));
    rig_expect_error(&w->r, ORCH, codes[i]); /* who may ask another one */
    rig_say(&w->r, TARGET, error_message(SELF, S, 1, codes[i]));
    assert_int_equal(rig_count(&w->r, ORCH, MSG_ERROR), 1); /* once */
    expect_lost(w);
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, prompt_message()); /* lost: the same epoch is not a repetition */
    rig_only(&w->r, ORCH, MSG_OPENED);
    rig_only(&w->r, TARGET, MSG_ATTACH);
  }
}

static void test_attached_to_a_longer_c(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH + 5, 1));
  assert_int_equal(rig_only(&w->r, TARGET, MSG_RESEND)->u.resend.from, PROMPT_LENGTH);
}

static void test_attached_contradicts(void **state) {
  world *w = *state;
  for (int i = 0; i < 2; i++) {
    open_and_greet(w, i == 0 ? prompt_message() : delta(2, 0, PROMPT_LENGTH));
    rig_clear(&w->r);
    msg m = attached_message((uint32_t)i + 1, PROMPT_LENGTH - i, 1);
    if (i == 0) m.u.state.hash.bytes[0] ^= 1;
    rig_say(&w->r, TARGET, m);
    expect_out_of_step(w, PROMPT_LENGTH);
  }
}

static void test_attached_late_and_again(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1)); /* repeated by the network */
  rig_advance(&w->r, SETTLE);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_DETACH), 0);
  gather(w); /* ids go on, or a higher generation begins */
}

/* --- the tree --- */

static void test_free_pace_grows_ahead(void **state) {
  world *w = *state;
  attach(w, false);
  assert_int_equal(w->generation, 1);
  assert_int_equal(w->next_id - 1, GOAL);
  assert_int_equal(w->base, PROMPT_LENGTH);
  assert_int_equal(w->nodes[1].token, truth()[3]);
  assert_int_equal(w->nodes[1].parent, 0);
  rig_advance(&w->r, 100000);
  assert_int_equal(w->f.advanced, 0);
}

static void test_lockstep_grows_the_budget_and_says_so(void **state) {
  world *w = *state;
  attach(w, true);
  assert_int_equal(w->next_id - 1, BUDGET);
  assert_true(w->done);
}

static void test_done_comes_last(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  m.u.open.options.budget = 64;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  rig_advance(&w->r, 100000);
  int32_t nodes = 0, marks = 0;
  for (int32_t i = 0; i < rig_count(&w->r, TARGET, MSG_NODES); i++) {
    const msg_nodes *n = &rig_peek(&w->r, TARGET, MSG_NODES, i)->u.nodes;
    nodes += n->count;
    if (n->done) {
      assert_int_equal(nodes, 64);
      marks++;
    }
  }
  assert_true(marks >= 1);
  gather(w);
}

static void test_nothing_to_offer_is_said(void **state) {
  world *w = *state;
  w->f.candidates = 0;
  attach(w, true);
  assert_int_equal(w->next_id, 1);
  assert_int_equal(w->base, PROMPT_LENGTH);
  assert_true(w->done);
}

static void test_budget_of_nothing(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.budget = 0;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  settle(w);
  assert_int_equal(w->next_id, 1);
}

/* The most probable node comes first: a better grandchild before a poor sibling. */
static void test_best_first(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.budget = 16;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  settle(w);
  assert_int_equal(w->next_id - 1, DRAFTER_AHEAD_MAX * 16 + 1);
  int32_t wrong = 0;
  for (uint64_t id = 2; id < w->next_id; id++) {
    if (w->nodes[id].total > w->nodes[id - 1].total + 1e-5f) fail_msg("node %d is a better one", (int)id);
    wrong += w->nodes[id].total < w->nodes[w->nodes[id].parent].total - 1;
  }
  assert_true(wrong > 0); /* siblings are there too */
}

static void test_no_token_outside_the_vocabulary(void **state) {
  world *w = *state;
  w->f.candidates = 3;
  attach(w, false); /* gather looks at every token */
  assert_true(w->next_id > 1);
}

static void test_scores_within_their_range(void **state) {
  world *w = *state;
  static const float scores[] = {-1000.0f, -INFINITY, NAN, 5.0f};
  for (int i = 0; i < 4; i++) {
    w->f.score = scores[i];
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 9));
    w->generation = 0;
    attach(w, false); /* gather looks at every score */
  }
}

/* C grows as guessed: what is left below it stays, and is not sent again. */
static void test_tokens_as_guessed(void **state) {
  world *w = *state;
  attach(w, false);
  uint64_t before = w->next_id;
  int32_t under = 0; /* nodes under the first right one */
  for (uint64_t id = 1; id < before; id++) {
    uint64_t top = id;
    while (w->nodes[top].parent) top = w->nodes[top].parent;
    under += w->nodes[top].token == truth()[3] && top != id;
  }
  assert_true(under > 0 && under < GOAL);
  tell_tokens(w, 3, 1);
  settle(w);
  assert_int_equal(w->f.advanced, 1);
  assert_int_equal(w->base, 4);
  assert_int_equal(w->next_id - before, GOAL - under);
}

static void test_tokens_not_as_guessed(void **state) {
  world *w = *state;
  attach(w, false);
  uint64_t before = w->next_id;
  static int32_t c[4];
  memcpy(c, PROMPT, sizeof PROMPT);
  c[3] = 90; /* neither right nor wrong: nobody's guess */
  rig_say(&w->r, TARGET, tokens_message(SELF, S, 1, 3, c + 3, 1, hash_of(SEED, c, 4)));
  rig_advance(&w->r, SETTLE);
  const msg_nodes *first = &rig_peek(&w->r, TARGET, MSG_NODES, 0)->u.nodes;
  assert_int_equal(first->base_length, 4);
  gather(w);
  assert_int_equal(w->next_id - before, GOAL);
  assert_int_equal(w->nodes[before].parent, 0);
  assert_int_equal(w->nodes[before].token, next_of(90));
  uint64_t digest;
  int32_t length;
  assert_true(draft_digest(w->d, S, 1, &digest, &length));
  assert_int_equal(length, 4);
}

/* Every TOKENS applied is answered, even when there is nothing to add: the target learns the base. */
static void test_every_tokens_is_answered(void **state) {
  world *w = *state;
  w->f.candidates = 0;
  attach(w, true);
  for (int32_t n = 3; n < 8; n++) {
    rig_clear(&w->r);
    tell_tokens(w, n, 1);
    settle(w);
    const msg_nodes *m = &rig_last(&w->r, TARGET, MSG_NODES)->u.nodes;
    hash16 h = true_hash(n + 1);
    assert_int_equal(m->base_length, n + 1);
    assert_memory_equal(&m->base_hash, &h, sizeof h);
    assert_true(m->done);
  }
}

static void test_tokens_again_and_overlapping(void **state) {
  world *w = *state;
  attach(w, false);
  tell_tokens(w, 3, 3);
  tell_tokens(w, 3, 3);
  tell_tokens(w, 1, 3);
  tell_tokens(w, 4, 4); /* half of it is new */
  tell_tokens(w, 8, 0); /* a heartbeat */
  settle(w);
  assert_int_equal(w->base, 8);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_RESEND), 0);
}

static void test_tokens_beyond(void **state) {
  world *w = *state;
  attach(w, false);
  w->r.now += 30000;
  tell_tokens(w, 5, 2);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_RESEND)->u.resend.from, 3);
  for (int i = 0; i < 100; i++) { /* 10 ms of a stream of which the beginning was lost */
    w->r.now += 100;
    tell_tokens(w, 7 + i, 1);
  }
  assert_int_equal(rig_count(&w->r, TARGET, MSG_RESEND), 1);
  w->r.now += 20000;
  tell_tokens(w, 9, 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_RESEND), 2);
}

static void test_tokens_that_conflict(void **state) {
  world *w = *state;
  for (int i = 0; i < 3; i++) {
    uint32_t epoch = (uint32_t)i + 1;
    w->generation = 0;
    open_and_greet(w, delta(epoch, 0, 5));
    rig_say(&w->r, TARGET, attached_message(epoch, 5, 1));
    rig_clear(&w->r);
    int32_t tokens[3];
    memcpy(tokens, truth() + 4, sizeof tokens);
    msg m = tokens_message(SELF, S, epoch, 4, tokens, 3, true_hash(7));
    if (i == 0) tokens[0]++;                   /* an overlapping token */
    if (i == 1) m.u.tokens.hash.bytes[3] ^= 1; /* the hash after them */
    if (i == 2)
      m = tokens_message(SELF, S, epoch, 5, NULL, 0, true_hash(4)); /* a heartbeat of another prefix */
    rig_say(&w->r, TARGET, m);
    expect_out_of_step(w, 5); /* nothing of it was taken */
  }
}

static void test_repair_after_a_conflict(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = tokens_message(SELF, S, 1, 2, truth(), 1, true_hash(3));
  rig_say(&w->r, TARGET, m);
  expect_out_of_step(w, 3);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, delta(1, 3, 2)); /* the same epoch: it is lost, so this is no repetition */
  assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->u.state.length, 5);
  rig_only(&w->r, TARGET, MSG_ATTACH);
  rig_say(&w->r, TARGET, attached_message(1, 5, 7));
  settle(w);
  assert_int_equal(w->generation, 7);
  assert_int_equal(w->base, 5);
}

static void test_tree_reset(void **state) {
  world *w = *state;
  attach(w, false);
  tell_tokens(w, 3, 1);
  settle(w);
  uint64_t digest, again;
  int32_t length;
  assert_true(draft_digest(w->d, S, 1, &digest, &length));
  rig_clear(&w->r);
  msg m = message(MSG_TREE_RESET, SELF, S, 1);
  m.u.reset.generation = 5;
  rig_say(&w->r, TARGET, m);
  settle(w);
  assert_int_equal(w->generation, 5);
  assert_int_equal(w->next_id - 1, GOAL); /* all its live ones, from id 1 */
  assert_true(draft_digest(w->d, S, 1, &again, &length));
  assert_true(digest == again);
  rig_clear(&w->r);
  static const uint32_t old[] = {5, 4, 0};
  for (int i = 0; i < 3; i++) {
    m.u.reset.generation = old[i];
    rig_say(&w->r, TARGET, m);
  }
  rig_advance(&w->r, SETTLE);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
}

/* Lockstep: the mark is part of the answer to TREE_RESET and to ATTACHED, or the target would wait for ever.
 */
static void test_tree_reset_is_answered_with_a_mark(void **state) {
  world *w = *state;
  for (int32_t candidates = 0; candidates <= 2; candidates += 2) {
    w->f.candidates = candidates;
    w->generation = 0;
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 99));
    attach(w, true);
    msg m = message(MSG_TREE_RESET, SELF, S, 1);
    m.u.reset.generation = 9;
    w->done = false;
    rig_say(&w->r, TARGET, m);
    settle(w);
    assert_int_equal(w->generation, 9);
    assert_true(w->done);
  }
}

/* Nothing is left to give ids to a node: thousands of TOKENS later the ids still fit. */
static void test_ids_over_a_long_answer(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.budget = 64;
  m.u.open.options.lockstep = false;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  for (int32_t n = 3; n < CONTEXT - 2; n++) {
    rig_advance(&w->r, 1000);
    gather(w);
    rig_clear(&w->r);
    tell_tokens(w, n, 1);
    if (n % 16 == 0) pass(w, 1000, true, true);
    gather(w);
    rig_clear(&w->r);
  }
  uint64_t digest;
  int32_t length;
  assert_true(draft_digest(w->d, S, 1, &digest, &length));
  assert_int_equal(length, CONTEXT - 2);
}

static void test_idle_nodes(void **state) {
  world *w = *state;
  attach(w, false);
  pass(w, 5 * DRAFT_IDLE_US, true, true);
  int32_t n = rig_count(&w->r, TARGET, MSG_NODES);
  assert_true(n >= 4 && n <= 6);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_NODES)->u.nodes.count, 0);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_NODES)->u.nodes.first_id, w->next_id);
}

/* --- ends and returns --- */

static void test_end(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  rig_only(&w->r, TARGET, MSG_DETACH);
  assert_int_equal(w->f.closed, 1);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_false(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  tell_tokens(w, 3, 2); /* late: nobody is concerned */
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ERROR), 0);
}

/* A cancelled answer: the target's figures should not say that its draft gave up because it has heard of the
 * end first. */
static void test_end_of_a_later_epoch(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 2));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_DETACH), 0);
  assert_int_equal(w->f.closed, 1);
}

static void test_end_of_a_lower_epoch(void **state) {
  world *w = *state;
  open_and_greet(w, open_message(S, 3, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 2));
  rig_expect_error(&w->r, ORCH, ERR_STALE);
  assert_int_equal(w->f.closed, 0);
}

static void test_detached_by_the_target(void **state) {
  world *w = *state;
  attach(w, false);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, message(MSG_DETACH, SELF, S, 1));
  rig_expect_error(&w->r, ORCH, ERR_STATE);
  expect_lost(w);
}

static void test_gone_when_attached_attaches_again(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE));
  pass(w, DRAFT_REPEAT_US, true, true);
  assert_true(rig_count(&w->r, TARGET, MSG_ATTACH) >= 1);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 4));
  settle(w);
  assert_int_equal(w->generation, 4);
}

static void test_errors_when_attached(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_DESYNC));
  expect_out_of_step(w, PROMPT_LENGTH);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, delta(2, 0, 3));
  rig_say(&w->r, TARGET, attached_message(2, PROMPT_LENGTH, 2));
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_LIMIT)); /* of an epoch that has passed */
  rig_clear(&w->r);
  rig_advance(&w->r, DRAFT_IDLE_US + 1);
  assert_true(rig_count(&w->r, TARGET, MSG_NODES) >= 1);
  rig_say(&w->r, TARGET, error_message(SELF, S, 2, ERR_LIMIT));
  expect_lost(w);
}

static void test_old_epochs_are_dropped(void **state) {
  world *w = *state;
  open_and_greet(w, open_message(S, 3, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, TARGET, attached_message(2, PROMPT_LENGTH, 1));
  rig_say(&w->r, TARGET, attached_message(4, PROMPT_LENGTH, 1));
  rig_advance(&w->r, SETTLE);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  rig_say(&w->r, TARGET, attached_message(3, PROMPT_LENGTH, 1));
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, tokens_message(SELF, S, 2, 3, truth() + 3, 1, true_hash(4)));
  rig_say(&w->r, TARGET, tokens_message(SELF, S, 4, 3, truth() + 3, 1, true_hash(4)));
  assert_int_equal(w->f.advanced, 0);
}

static void test_target_is_lost_and_returns(void **state) {
  world *w = *state;
  attach(w, false);
  pass(w, 4000000, true, false);
  rig_clear(&w->r);
  pass(w, 1000000, true, false);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_ERROR), 0);
  rig_clear(&w->r);
  pass(w, 1000000, true, true); /* it is back, and has dropped us meanwhile */
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE));
  pass(w, 1000000, true, true);
  assert_true(rig_count(&w->r, TARGET, MSG_ATTACH) >= 1);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 8));
  settle(w);
  assert_int_equal(w->generation, 8);
}

/* Another program answers at the target's address: frames of the old session are not for it. */
static void test_target_restarted(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = welcome_message(TARGET);
  m.u.hello.incarnation = id_of(99);
  rig_say(&w->r, TARGET, m);
  rig_clear(&w->r);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  msg again = delta(2, 0, 3);
  again.u.open.target_incarnation = id_of(99);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, again);
  rig_only(&w->r, TARGET, MSG_ATTACH);
}

static void test_orchestrator_is_silent(void **state) {
  world *w = *state;
  attach(w, false);
  pass(w, 50000000, false, true);
  assert_int_equal(w->f.closed, 0); /* it may come back, and the answer goes on meanwhile */
  pass(w, 15000000, false, true);
  assert_int_equal(w->f.closed, 1);
}

/* Its END was lost, and so is the session at the target: the place is not taken for ever. */
static void test_forgotten_by_all(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE));
  pass(w, 50000000, true, true);
  assert_int_equal(w->f.closed, 0); /* OPEN may still be under way to the target */
  assert_true(rig_count(&w->r, TARGET, MSG_ATTACH) > 100);
  rig_clear(&w->r);
  pass(w, 15000000, true, true);
  assert_int_equal(w->f.closed, 1);
}

/* But a session that goes on for hours is kept. */
static void test_long_session(void **state) {
  world *w = *state;
  attach(w, false);
  for (int i = 0; i < 10; i++) {
    pass(w, 20000000, true, true);
    rig_clear(&w->r);
  }
  assert_int_equal(w->f.closed, 0);
}

static void test_orchestrator_restarted(void **state) {
  world *w = *state;
  attach(w, false);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, id_of(98));
  welcome.to = SELF;
  rig_say(&w->r, ORCH, welcome);
  assert_int_equal(w->f.closed, 1); /* all that was held for the old one */
}

static void test_another_session_elsewhere(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = open_message(S, 2, PROMPT, PROMPT_LENGTH); /* failover: the same session at another target */
  m.u.open.target_endpoint = wire_text("tcp://127.0.0.1:4001");
  m.u.open.target_incarnation = ID(TARGET2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_only(&w->r, ORCH, MSG_OPENED);
  const action *a = rig_connect_asked(&w->r);
  assert_string_equal(a->text, "tcp://127.0.0.1:4001");
  rig_connected(&w->r, a->tag, TARGET2);
  msg welcome = welcome_message(TARGET2);
  rig_say(&w->r, TARGET2, welcome);
  assert_int_equal(rig_only(&w->r, TARGET2, MSG_ATTACH)->epoch, 2);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(2, PROMPT_LENGTH, 3)); /* the old one has no say in it */
  rig_advance(&w->r, SETTLE);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_NODES), 0);
}

/* --- who may say what --- */

/* A mad target that calls itself an orchestrator in its WELCOME. */
static void test_a_target_opens_nothing(void **state) {
  world *w = *state;
  for (int i = 0; i < 2; i++) {
    w->generation = 0;
    attach(w, false);
    if (i == 1) {
      msg m = welcome_message(TARGET);
      m.u.hello.role = WIRE_ROLE_ORCHESTRATOR;
      rig_say(&w->r, TARGET, m);
    }
    int32_t opened = w->f.opened, closed = w->f.closed;
    rig_clear(&w->r);
    rig_say(&w->r, TARGET, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
    rig_say(&w->r, TARGET, open_message(S, 9, PROMPT, PROMPT_LENGTH));
    rig_say(&w->r, TARGET, message(MSG_END, SELF, S, 9));
    assert_int_equal(rig_count(&w->r, TARGET, MSG_OPENED), 0);
    assert_int_equal(w->f.opened, opened);
    assert_int_equal(w->f.closed, closed);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  }
}

static void test_only_its_target_feeds_a_session(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = open_message(S + 1, 1, PROMPT, PROMPT_LENGTH); /* another session, at another target */
  m.u.open.target_endpoint = wire_text("tcp://127.0.0.1:4001");
  m.u.open.target_incarnation = ID(TARGET2);
  rig_say(&w->r, ORCH, m);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET2);
  rig_say(&w->r, TARGET2, welcome_message(TARGET2));
  rig_clear(&w->r);
  msg reset = message(MSG_TREE_RESET, SELF, S, 1);
  reset.u.reset.generation = 50;
  static const peer_id others[] = {TARGET2, ORCH};
  for (int i = 0; i < 2; i++) {
    rig_say(&w->r, others[i], tokens_message(SELF, S, 1, 3, truth() + 3, 1, true_hash(4)));
    rig_say(&w->r, others[i], tokens_message(SELF, S, 1, 2, truth(), 1, true_hash(1)));
    rig_say(&w->r, others[i], reset);
    rig_say(&w->r, others[i], message(MSG_DETACH, SELF, S, 1));
    rig_say(&w->r, others[i], error_message(SELF, S, 1, ERR_LIMIT));
    rig_say(&w->r, others[i], attached_message(1, 9, 60));
  }
  assert_int_equal(w->f.advanced, 0);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0);
  rig_clear(&w->r);
  rig_advance(&w->r, DRAFT_IDLE_US);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_NODES)->u.nodes.generation, 1);
}

/* A target that says more than fits: the session is given up, nothing else. */
static void test_tokens_beyond_the_context(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = 10;
  open_and_greet(w, m);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  rig_clear(&w->r);
  tell_tokens(w, 3, 7); /* all that it has room for */
  assert_int_equal(w->f.advanced, 1);
  rig_clear(&w->r);
  tell_tokens(w, 10, 1);
  expect_out_of_step(w, 10);
  assert_int_equal(w->f.advanced, 1); /* a drafter sees no more than it was opened for */
  rig_advance(&w->r, SETTLE);
  tell_tokens(w, 3, CONTEXT + 40);
  rig_advance(&w->r, SETTLE);
  rig_clear(&w->r);
  pass(w, 2000000, true, true);
  assert_true(w->r.out.count < 60);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(rig_last(&w->r, ORCH, MSG_ENDED)->u.existed);
}

/* A storm of TREE_RESET is answered by so many nodes at most as are live, each time, and ends. */
static void test_storm_of_resets(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = message(MSG_TREE_RESET, SELF, S, 1);
  for (uint32_t g = 2; g < 500; g++) {
    m.u.reset.generation = g;
    rig_say(&w->r, TARGET, m);
  }
  m.u.reset.generation = UINT32_MAX;
  rig_say(&w->r, TARGET, m);
  settle(w);
  assert_int_equal(w->generation, UINT32_MAX);
  assert_int_equal(w->next_id - 1, GOAL);
  assert_true(rig_count_all(&w->r, TARGET) <= 3 * 500);
}

static void test_a_draft_is_refused_by_one_target(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = open_message(S + 1, 1, PROMPT, PROMPT_LENGTH);
  m.u.open.target_endpoint = wire_text("tcp://127.0.0.1:4001");
  m.u.open.target_incarnation = ID(TARGET2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET2);
  rig_say(&w->r, TARGET2, error_message((wire_id){{0}}, 0, 0, ERR_MISMATCH));
  for (int32_t i = 0; i < w->r.out.count; i++) assert_true(w->r.out.list[i].kind != ACTION_EXIT);
  rig_expect_error(&w->r, ORCH, ERR_MISMATCH);
  assert_int_equal(rig_last(&w->r, ORCH, MSG_ERROR)->session, S + 1);
  rig_clear(&w->r);
  tell_tokens(w, 3, 1); /* the others notice nothing */
  settle(w);
  assert_int_equal(w->base, 4);
}

static void test_refused_by_the_orchestrator(void **state) {
  world *w = *state;
  draft_connect(w->d, "tcp://127.0.0.1:3001", &w->r.out);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, 9);
  rig_say(&w->r, 9, error_message((wire_id){{0}}, 0, 0, ERR_VERSION));
  int32_t exits = 0;
  for (int32_t i = 0; i < w->r.out.count; i++)
    exits += w->r.out.list[i].kind == ACTION_EXIT && w->r.out.list[i].code;
  assert_int_equal(exits, 1);
}

/* --- who is not there --- */

/* The orchestrator hears of a target that refuses this draft. */
static void test_refusals_are_told(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_TICKET));
  rig_expect_error(&w->r, ORCH, ERR_TICKET);
  assert_true(text_has(rig_only(&w->r, ORCH, MSG_ERROR)->u.error.text, "made by a test"));
  msg m = open_message(S + 1, 1, PROMPT, PROMPT_LENGTH);
  m.u.open.target_endpoint = wire_text("tcp://127.0.0.1:4001");
  m.u.open.target_incarnation = ID(TARGET2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET2);
  for (int i = 0; i < 2; i++) rig_say(&w->r, TARGET2, error_message((wire_id){{0}}, 0, 0, ERR_MISMATCH));
  assert_int_equal(rig_logged(&w->r, "refused by the target"), 1);
  assert_int_equal(rig_peek(&w->r, ORCH, MSG_ERROR, 0)->session, S + 1);
  assert_int_equal(rig_peek(&w->r, ORCH, MSG_ERROR, 0)->u.error.code, ERR_MISMATCH);
}

static void open_unreached(world *w, uint64_t id) {
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(id, 1, PROMPT, PROMPT_LENGTH));
  rig_only(&w->r, ORCH, MSG_OPENED);
  const action *a = rig_connect_asked(&w->r);
  if (a) rig_connected(&w->r, a->tag, TARGET);
}

static void test_a_target_out_of_reach(void **state) {
  world *w = *state;
  open_unreached(w, S);
  pass(w, 2900000, true, false);
  assert_int_equal(rig_logged(&w->r, ENDPOINT), 0);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_ERROR), 0);
  pass(w, 200000, true, false);
  assert_int_equal(rig_logged(&w->r, "the target at " ENDPOINT " does not answer"), 1);
  rig_expect_error(&w->r, ORCH, ERR_TIMEOUT);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_ERROR)->session, S);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));

  open_unreached(w, S + 1); /* one that comes later hears of it at once */
  rig_expect_error(&w->r, ORCH, ERR_TIMEOUT);
  assert_int_equal(rig_logged(&w->r, ENDPOINT), 0);
  rig_clear(&w->r);
  pass(w, 62000000, true, false);
  assert_int_equal(rig_logged(&w->r, "does not answer") + rig_logged(&w->r, "is not there"), 1); /* rarely */
}

static void test_a_target_reached_late(void **state) {
  world *w = *state;
  open_unreached(w, S);
  pass(w, 4000000, true, false);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, welcome_message(TARGET));
  assert_int_equal(rig_logged(&w->r, "the target at " ENDPOINT " answers now"), 1);
  open_unreached(w, S + 1);
  rig_last(&w->r, TARGET, MSG_ATTACH);
  msg m = open_message(S + 2, 1, PROMPT, PROMPT_LENGTH);
  m.u.open.target_incarnation = id_of(99); /* it has restarted, and this draft does not know yet */
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_ERROR), 0);
}

static void test_an_orchestrator_goes_and_comes(void **state) {
  world *w = *state;
  pass(w, 2800000, true, true);
  assert_int_equal(rig_logged(&w->r, "orchestrator"), 0);
  pass(w, 4000000, false, true);
  assert_int_equal(rig_logged(&w->r, "the orchestrator at tcp://127.0.0.1:3000 is not there any more"), 1);
  rig_clear(&w->r);
  pass(w, 30000000, false, true);
  assert_int_equal(rig_logged(&w->r, "orchestrator"), 0);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_logged(&w->r, "the orchestrator at tcp://127.0.0.1:3000 is there now"), 1);
  pass(w, 10000000, true, true);
  assert_int_equal(rig_logged(&w->r, "orchestrator"), 1);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
/* --- a drafter that is asked by batches --- */

enum { CACHES = 2, ROWS = 3 };

static int set_up_batches(void **state) {
  set_up(state);
  world *w = *state;
  err e = {0};
  rig_fini(&w->r);
  draft_free(w->d);
  drafter_free(&w->drafter);
  assert_int_equal(model_drafter_open(&w->drafter, ROWS, &e), ERR_OK);
  draft_options o = {.incarnation = SELF,
                     .drafters = {w->drafter},
                     .drafter_count = 1,
                     .context = CONTEXT,
                     .shorter = true,
                     .session_max = CACHES};
  assert_int_equal(draft_alloc(&w->d, &o, &e), ERR_OK);
  rig_init(&w->r, draft_machine(w->d));
  draft_connect(w->d, "tcp://127.0.0.1:3000", &w->r.out);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, ORCH);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, ID(ORCH));
  welcome.to = SELF;
  rig_say(&w->r, ORCH, welcome);
  rig_clear(&w->r);
  return 0;
}

/* Right first, wrong second, after each place's last token. */
static draft_results answers_to(const draft_batch *b, int32_t last) {
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

static void give(world *w, const draft_results *r) {
  rig_event(&w->r, EVENT_RESULT, 0, 0, NULL, r);
}

/* Answers whatever is asked until nothing is; returns how many batches there were. */
static int32_t answer_all(world *w, int32_t last) {
  static draft_batch b;
  int32_t batches = 0;
  for (; draft_next_batch(w->d, &b); batches++) {
    draft_results r = answers_to(&b, last);
    assert_true(b.query_count <= ROWS);
    assert_true(batches < 1000);
    give(w, &r);
  }
  return batches;
}

static void attach_batches(world *w, bool lockstep) {
  msg m = prompt_message();
  m.u.open.options.lockstep = lockstep;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
}

/* Attached, nothing is known: no nodes, and not done before the answers are. */
static void test_nodes_come_with_the_answers(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_batches(w, false);
  gather(w);
  assert_int_equal(w->next_id, 1);
  assert_false(w->done);
  assert_true(draft_next_batch(w->d, &b));
  assert_int_equal(b.job_count, 1);
  assert_int_equal(b.token_count, PROMPT_LENGTH);
  assert_memory_equal(b.tokens, PROMPT, sizeof PROMPT);
  assert_true(b.jobs[0].whole && b.jobs[0].base == 0);
  assert_int_equal(b.query_count, 1);
  assert_int_equal(b.queries[0].depth, 0);
  static draft_batch none;
  assert_false(draft_next_batch(w->d, &none)); /* all has been told and asked */
  rig_clear(&w->r);
  draft_results r = answers_to(&b, PROMPT[2]);
  give(w, &r);
  gather(w);
  assert_true(w->next_id > 1);
  assert_false(w->done);
  assert_int_equal(w->nodes[1].token, next_of(PROMPT[2]));
  rig_clear(&w->r);
  assert_true(answer_all(w, PROMPT[2]) > 1);
  gather(w);
  assert_true(w->done);
  assert_int_equal(w->next_id - 1, BUDGET + 1);
}

/* In lockstep the tree is the one that a drafter with all answers at once would grow. */
static void test_lockstep_is_best_first(void **state) {
  world *w = *state;
  attach_batches(w, true);
  answer_all(w, PROMPT[2]);
  gather(w);
  assert_true(w->done);
  assert_int_equal(w->next_id - 1, BUDGET);
  for (uint64_t id = 2; id <= BUDGET; id++) assert_true(w->nodes[id].total <= w->nodes[id - 1].total + 1e-6f);
}

/* TOKENS along the tree: what was answered is not asked again, and an answer on its way still counts. */
static void test_answers_survive_tokens(void **state) {
  world *w = *state;
  static draft_batch b, next;
  attach_batches(w, false);
  assert_true(draft_next_batch(w->d, &b));
  draft_results r = answers_to(&b, PROMPT[2]);
  give(w, &r);
  assert_true(
      draft_next_batch(w->d, &b)); /* what follows the first node: C goes there before the answer comes */
  assert_int_equal(b.queries[0].path[0], truth()[3]);
  uint64_t handle = b.queries[0].handle;
  tell_tokens(w, 3, 1);
  assert_true(draft_next_batch(w->d, &next)); /* only C has grown: the new root is asked about already */
  assert_int_equal(next.jobs[0].base, 3);
  assert_int_equal(next.jobs[0].count, 1);
  for (int32_t i = 0; i < next.query_count; i++) assert_true(next.queries[i].depth > 0);
  r = answers_to(&b, PROMPT[2]);
  assert_int_equal(r.results[0].handle, handle);
  rig_clear(&w->r);
  give(w, &r);
  assert_true(rig_count(&w->r, TARGET, MSG_NODES) > 0);
  const msg_nodes *n = &rig_peek(&w->r, TARGET, MSG_NODES, 0)->u.nodes;
  assert_int_equal(n->base_length, 4);
  assert_int_equal(n->tokens[0], truth()[4]);
  assert_int_equal(n->parents[0], 0);
}

/* TOKENS away from the tree: answers to what is gone change nothing. */
static void test_late_answers_are_dropped(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_batches(w, false);
  assert_true(draft_next_batch(w->d, &b));
  tell_tokens(w, 3, 2);
  rig_clear(&w->r);
  draft_results r = answers_to(&b, PROMPT[2]);
  give(w, &r);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  assert_true(draft_next_batch(w->d, &b));
  assert_int_equal(b.jobs[0].base, 3);
  assert_int_equal(b.jobs[0].count, 2);
  assert_int_equal(b.queries[0].depth, 0);
}

/* A long prompt is told in pieces; what follows is asked with the last one. */
static void test_a_long_prompt_in_pieces(void **state) {
  world *w = *state;
  static draft_batch b;
  open_and_greet(w, delta(1, 0, 300));
  for (int32_t told = 0; told < 300;) {
    assert_true(draft_next_batch(w->d, &b));
    assert_int_equal(b.jobs[0].base, told);
    assert_memory_equal(b.tokens, truth() + told, (size_t)b.token_count * sizeof *b.tokens);
    told += b.token_count;
    assert_int_equal(b.jobs[0].whole, told == 300);
    assert_int_equal(b.query_count, told == 300);
  }
}

static void test_no_cache_left(void **state) {
  world *w = *state;
  for (uint64_t i = 0; i <= CACHES; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, open_message(S + i, 1, PROMPT, PROMPT_LENGTH));
    if (i < CACHES)
      rig_only(&w->r, ORCH, MSG_OPENED);
    else
      rig_expect_error(&w->r, ORCH, ERR_FULL);
  }
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S + 9, 1, PROMPT, PROMPT_LENGTH));
  rig_only(&w->r, ORCH, MSG_OPENED);
  static draft_batch b;
  assert_true(draft_next_batch(w->d, &b));
  assert_int_equal(b.job_count, 2); /* one forward for both */
  assert_int_not_equal(b.jobs[0].slot, b.jobs[1].slot);
}

/* The model failed, or a token is none of its own: the target is told, nothing is asked any more. */
static void test_gives_up_politely(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_batches(w, false);
  assert_true(draft_next_batch(w->d, &b));
  draft_results r = {.failure_count = 1, .failures = {{b.jobs[0].slot, ERR_MISMATCH}}};
  rig_clear(&w->r);
  give(w, &r);
  assert_true(text_has(rig_only(&w->r, TARGET, MSG_DETACH)->u.state.reason, "none of the draft model's"));
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0); /* to open it again would not help */
  rig_expect_error(&w->r, ORCH, ERR_MISMATCH);
  assert_false(draft_next_batch(w->d, &b));
  expect_lost(w);
}

/* C beyond what the cache holds, as a longer session may be: the same. */
static void test_outgrows_the_context(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = CONTEXT + 100;
  open_and_greet(w, m);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  rig_clear(&w->r);
  tell_tokens(w, 3, CONTEXT + 40);
  rig_only(&w->r, TARGET, MSG_DETACH);
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_greets),
      CASE(test_open_leads_to_attach),
      CASE(test_known_target_is_not_called_twice),
      CASE(test_welcome_of_another_incarnation),
      CASE(test_connection_that_was_not_made),
      CASE(test_target_cannot_be_called),
      CASE(test_bad_addresses_take_no_place),
      CASE(test_targets_come_and_go),
      CASE(test_open_again_changes_nothing),
      CASE(test_open_epochs),
      CASE(test_open_delta),
      CASE(test_open_base_not_held),
      CASE(test_open_same_epoch_with_another_prefix),
      CASE(test_open_too_long),
      CASE(test_open_of_every_base),
      CASE(test_open_without_target),
      CASE(test_open_full),
      CASE(test_open_more_targets_than_it_calls),
      CASE(test_open_without_memory),
      CASE(test_draining),
      CASE(test_attach_until_attached),
      CASE(test_gone_is_tried_again),
      CASE(test_refused_attach),
      CASE(test_attached_to_a_longer_c),
      CASE(test_attached_contradicts),
      CASE(test_attached_late_and_again),
      CASE(test_free_pace_grows_ahead),
      CASE(test_lockstep_grows_the_budget_and_says_so),
      CASE(test_done_comes_last),
      CASE(test_nothing_to_offer_is_said),
      CASE(test_budget_of_nothing),
      CASE(test_best_first),
      CASE(test_no_token_outside_the_vocabulary),
      CASE(test_scores_within_their_range),
      CASE(test_tokens_as_guessed),
      CASE(test_tokens_not_as_guessed),
      CASE(test_every_tokens_is_answered),
      CASE(test_tokens_again_and_overlapping),
      CASE(test_tokens_beyond),
      CASE(test_tokens_that_conflict),
      CASE(test_repair_after_a_conflict),
      CASE(test_tree_reset),
      CASE(test_tree_reset_is_answered_with_a_mark),
      CASE(test_ids_over_a_long_answer),
      CASE(test_idle_nodes),
      CASE(test_end),
      CASE(test_end_of_a_later_epoch),
      CASE(test_end_of_a_lower_epoch),
      CASE(test_detached_by_the_target),
      CASE(test_gone_when_attached_attaches_again),
      CASE(test_errors_when_attached),
      CASE(test_old_epochs_are_dropped),
      CASE(test_target_is_lost_and_returns),
      CASE(test_target_restarted),
      CASE(test_orchestrator_is_silent),
      CASE(test_forgotten_by_all),
      CASE(test_long_session),
      CASE(test_orchestrator_restarted),
      CASE(test_another_session_elsewhere),
      CASE(test_a_target_opens_nothing),
      CASE(test_only_its_target_feeds_a_session),
      CASE(test_tokens_beyond_the_context),
      CASE(test_storm_of_resets),
      CASE(test_a_draft_is_refused_by_one_target),
      CASE(test_refusals_are_told),
      CASE(test_a_target_out_of_reach),
      CASE(test_a_target_reached_late),
      CASE(test_an_orchestrator_goes_and_comes),
      CASE(test_refused_by_the_orchestrator),
      cmocka_unit_test_setup_teardown(test_nodes_come_with_the_answers, set_up_batches, tear_down),
      cmocka_unit_test_setup_teardown(test_open_of_every_base_at_a_short_model, set_up_batches, tear_down),
      cmocka_unit_test_setup_teardown(test_lockstep_is_best_first, set_up_batches, tear_down),
      cmocka_unit_test_setup_teardown(test_answers_survive_tokens, set_up_batches, tear_down),
      cmocka_unit_test_setup_teardown(test_late_answers_are_dropped, set_up_batches, tear_down),
      cmocka_unit_test_setup_teardown(test_a_long_prompt_in_pieces, set_up_batches, tear_down),
      cmocka_unit_test_setup_teardown(test_no_cache_left, set_up_batches, tear_down),
      cmocka_unit_test_setup_teardown(test_gives_up_politely, set_up_batches, tear_down),
      cmocka_unit_test_setup_teardown(test_outgrows_the_context, set_up_batches, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
