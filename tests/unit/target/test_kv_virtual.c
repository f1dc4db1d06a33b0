/* libs: target model : far cost=15 */
/* The block pool of a virtual cache alone, and with a cache behind them: sessions come, prefill, stage,
 * commit, roll back and go, and every row that one of them reads is that of its own tokens. */
#include "target_worker/session_store.h"
#include "tests/support/kv_probe.h"
#include "tests/support/opened_session.h"
#include "tests/support/random.h"

static uint64_t random_state;

static int32_t roll(int32_t below) {
  return (int32_t)random_below(&random_state, (uint32_t)below);
}

/* --- the block pool alone --- */

enum { BLOCKS = 8 };

static void fill(int32_t *tokens, int32_t count, int32_t first) {
  for (int32_t i = 0; i < count; i++) tokens[i] = first + i;
}

/* Takes and publishes the whole blocks of these tokens. */
static void publish_all(block_pool *b, const int32_t *tokens, int32_t count, int32_t *held) {
  int32_t found = block_pool_find(b, tokens, count * KV_BLOCK, held);
  assert_true(block_pool_take(b, count - found, held + found));
  for (int32_t i = found; i < count; i++)
    held[i] = block_pool_publish(b, i ? held[i - 1] : KV_NO_BLOCK, tokens + i * KV_BLOCK, held[i]);
}

static void blocks_are_found_by_tokens(void **state) {
  (void)state;
  block_pool b;
  int32_t a[3 * KV_BLOCK], c[3 * KV_BLOCK], held[3], found[3];
  assert_int_equal(block_pool_init(&b, BLOCKS, NULL), ERR_OK);
  fill(a, 3 * KV_BLOCK, 0);
  memcpy(c, a, sizeof a);
  c[2 * KV_BLOCK - 1] = 7; /* the last token of the second block */
  publish_all(&b, a, 3, held);
  assert_int_equal(block_pool_find(&b, c, 3 * KV_BLOCK, found), 1);
  assert_int_equal(found[0], held[0]);
  assert_int_equal(block_pool_holders(&b, held[0]), 2);
  block_pool_release(&b, found, 1);
  assert_int_equal(block_pool_find(&b, a, 3 * KV_BLOCK - 1, found), 2); /* whole blocks alone */
  block_pool_release(&b, found, 2);
  assert_int_equal(block_pool_find(&b, a + KV_BLOCK, 2 * KV_BLOCK, found),
                   0); /* a block is what comes before it, too */
  block_pool_release(&b, held, 3);
  assert_int_equal(block_pool_available(&b), BLOCKS);
  assert_int_equal(block_pool_find(&b, a, 3 * KV_BLOCK, found), 3); /* nobody holds them: kept */
  block_pool_release(&b, found, 3);
  assert_true(block_pool_check(&b));
  block_pool_fini(&b);
}

static void the_least_recently_used_go_first(void **state) {
  (void)state;
  block_pool b;
  int32_t a[3 * KV_BLOCK], c[3 * KV_BLOCK], held[3], others[BLOCKS], found[3];
  assert_int_equal(block_pool_init(&b, BLOCKS, NULL), ERR_OK);
  fill(a, 3 * KV_BLOCK, 0);
  fill(c, 3 * KV_BLOCK, 500);
  publish_all(&b, a, 3, held);
  block_pool_release(&b, held, 3);
  publish_all(&b, c, 3, held);
  block_pool_release(&b, held, 3);
  assert_int_equal(block_pool_find(&b, a, KV_BLOCK, found),
                   1); /* used again, so its first one is the youngest */
  block_pool_release(&b, found, 1);
  assert_false(block_pool_take(&b, BLOCKS + 1, others));
  assert_true(block_pool_take(&b, 2 + 4, others)); /* the two free ones, then a's last two and c's */
  assert_int_equal(b.evicted, 4);
  assert_true(block_pool_check(&b));
  assert_int_equal(block_pool_find(&b, a, 3 * KV_BLOCK, found), 1);
  block_pool_release(&b, found, 1);
  assert_int_equal(block_pool_find(&b, c, 3 * KV_BLOCK, found), 1);
  assert_int_equal(block_pool_available(&b), 1);
  block_pool_release(&b, found, 1);
  block_pool_release(&b, others, 6);
  assert_int_equal(block_pool_available(&b), BLOCKS);
  block_pool_fini(&b);
}

/* Two compute the same: the second one's block is given up for the first one's. */
static void equal_blocks_become_one(void **state) {
  (void)state;
  block_pool b;
  int32_t a[KV_BLOCK], first, second;
  assert_int_equal(block_pool_init(&b, BLOCKS, NULL), ERR_OK);
  fill(a, KV_BLOCK, 0);
  assert_true(block_pool_take(&b, 1, &first) && block_pool_take(&b, 1, &second));
  assert_int_equal(block_pool_publish(&b, KV_NO_BLOCK, a, first), first);
  assert_int_equal(block_pool_publish(&b, KV_NO_BLOCK, a, second), first);
  assert_int_equal(block_pool_holders(&b, first), 2);
  assert_int_equal(block_pool_holders(&b, second), 0);
  assert_true(block_pool_check(&b));
  block_pool_fini(&b);
}

/* --- with a cache --- */

enum {
  PLACES = 6,
  CONTEXT = 200,
  POOL = 34,
  HEAD_DIM = 8,
  STEMS = 6,
  STEPS = 100000,
  VOCABULARY = 50,
  NODES = 6
};

static const model_config CONFIG = {
    .layers = 2, .embed = HEAD_DIM, .heads = 1, .kv_heads = 1, .head_dim = HEAD_DIM, .rope_dim = HEAD_DIM};

typedef struct world {
  session_store store;
  kv_cache *kv, *plain; /* plain: one sequence, whose rows are only ever appended */
  kv_support *io;
  int32_t sequences[PLACES];
  uint64_t next_id;
  uint64_t opened, refused, found_rows, shortened, left_shared, trees, ended; /* what it covered */
} world;

/* What the row of the last of these tokens holds: a number of all of them, exact in f32. */
static float row_of(const int32_t *tokens, int32_t count, int32_t layer, bool value) {
  uint32_t h = 2166136261u + (uint32_t)layer * 2 + value;
  for (int32_t i = 0; i < count; i++) h = (h ^ (uint32_t)tokens[i]) * 16777619u;
  return (float)(h >> 8);
}

static int32_t next_token(const int32_t *tokens, int32_t count) {
  return (int32_t)row_of(tokens, count, 7, false) % VOCABULARY;
}

/* Rows of the tokens' prefixes, the i-th of length counts[i]. */
typedef struct prefixes {
  const int32_t *tokens, *counts;
} prefixes;

/* A key is a few bits of it, so that many keys share an attention. */
static float number_of(const void *context, int32_t row, int32_t layer, int32_t i, bool value) {
  const prefixes *p = context;
  float number = row_of(p->tokens, p->counts[row], layer, value);
  return value ? number : (float)((int32_t)number >> i & 7);
}

/* Of every row its value, which is its own; of the last one its attention over all keys, which are compared
 * with those that these tokens give here. */
static void check_rows(world *w, const session *s, int32_t rows) {
  int32_t seq = w->sequences[s->slot], counts[CONTEXT], first = 0;
  const prefixes p = {s->committed.tokens, counts};
  float q[HEAD_DIM], got[HEAD_DIM];
  for (int32_t i = 0; i < rows; i++) counts[i] = i + 1;
  for (int32_t i = 0; i < HEAD_DIM; i++) q[i] = (float)(i + 1) / 16;
  for (int32_t layer = 0; layer < CONFIG.layers && rows > 0; layer++) {
    kv_support_begin(w->io);
    for (int32_t i = 0; i < rows; i++) kv_support_append(w->io, seq, i);
    const float *values = kv_support_values(w->io, kv_rows(w->kv), layer);
    for (int32_t i = 0; i < rows; i++)
      if (values[i * HEAD_DIM + 5] != row_of(s->committed.tokens, i + 1, layer, true))
        fail_msg("row %d of %d of session %d is another's", i, rows, (int)s->id);
    kv_support_begin(w->io);
    kv_support_append(w->io, seq, rows - 1);
    memcpy(got, kv_support_attend(w->io, kv_rows(w->kv), layer, q, &first), sizeof got);
    kv_support_begin(w->io);
    for (int32_t i = 0; i < rows; i++) kv_support_append(w->io, 0, i);
    kv_support_write(w->io, kv_rows(w->plain), number_of, &p);
    kv_support_begin(w->io);
    kv_support_append(w->io, 0, rows - 1);
    if (memcmp(got, kv_support_attend(w->io, kv_rows(w->plain), layer, q, &first), sizeof got) != 0)
      fail_msg("a key among the first %d of session %d is another's", rows, (int)s->id);
  }
}

/* As the engine begins a job. */
static int32_t begin_job(world *w, session *s) {
  int32_t seq = w->sequences[s->slot];
  if (s->cache.remap && s->cache.rows_given) {
    kv_map(w->kv, seq, s->cache.blocks, s->cache.block_count, s->cache.rows);
    check_rows(w, s, s->cache.rows);
  } else {
    assert_true(kv_length(w->kv, seq) >= s->cache.rows);
    assert_int_equal(kv_rollback(w->kv, seq, s->cache.rows), ERR_OK);
    if (s->cache.remap) kv_map(w->kv, seq, s->cache.blocks, s->cache.block_count, -1);
  }
  s->cache.remap = s->cache.rows_given = false;
  return seq;
}

static void end_job(world *w, session *s, int32_t seq) {
  s->cache.rows = kv_length(w->kv, seq);
  session_store_publish(&w->store, s, s->cache.rows);
}

static void append_rows(world *w, session *s, int32_t count) {
  int32_t seq = begin_job(w, s), counts[KV_BLOCK + NODES];
  assert_int_equal(kv_check_append(w->kv, seq, count), ERR_OK);
  kv_support_begin(w->io);
  for (int32_t i = 0; i < count; i++) {
    kv_support_append(w->io, seq, s->cache.rows + i);
    counts[i] = s->cache.rows + i + 1;
  }
  kv_support_write(w->io, kv_rows(w->kv), number_of, &(prefixes){s->committed.tokens, counts});
  kv_appended(w->kv, seq, count);
  end_job(w, s, seq);
}

/* The root and a chain below it, of which the first `right` nodes are what comes next. */
static void verify(world *w, session *s, int32_t nodes, int32_t right) {
  int32_t seq = begin_job(w, s), length = s->committed.length, parents[NODES + 1], path[NODES + 1],
          counts[NODES + 1];
  int32_t tokens[CONTEXT + NODES];
  memcpy(tokens, s->committed.tokens, (size_t)length * sizeof *tokens);
  for (int32_t i = 0; i <= nodes; i++) {
    parents[i] = i - 1;
    path[i] = i;
    counts[i] = length + i;
    tokens[length + i] = (next_token(tokens, length + i) + (i >= right)) % VOCABULARY;
  }
  assert_int_equal(kv_stage(w->kv, seq, parents, nodes + 1), ERR_OK);
  kv_support_begin(w->io);
  for (int32_t i = 0; i <= nodes; i++) {
    int32_t staged[NODES + 1], depth = kv_path(w->kv, seq, i, staged);
    kv_support_stage(w->io, seq, length - 1, staged, depth);
  }
  kv_support_write(w->io, kv_rows(w->kv), number_of, &(prefixes){tokens, counts});
  kv_staged(w->kv, seq);
  assert_int_equal(kv_commit(w->kv, seq, path, right + 1), ERR_OK);
  end_job(w, s, seq);
  for (int32_t i = 0; i <= right; i++) {
    int32_t next = next_token(s->committed.tokens, s->committed.length);
    assert_int_equal(prefix_append(&s->committed, &next, 1), ERR_OK);
  }
  w->trees++;
}

static int32_t last_length(const session *s) { /* of C, when its answer is complete */
  int32_t length = s->request.prompt_length + s->request.options.max_tokens;
  return length < CONTEXT ? length : CONTEXT;
}

static void admit(world *w, session *s) {
  err e = {0};
  int32_t before = s->cache.rows, available = block_pool_available(&w->store.blocks);
  int rc = session_store_admit(&w->store, s, last_length(s), &e);
  if (rc == ERR_OK) {
    assert_true(s->cache.block_count * KV_BLOCK >= last_length(s) - 1 && s->cache.rows < s->committed.length);
    w->found_rows += s->cache.rows > before ? (uint64_t)s->cache.rows : 0;
    return;
  }
  assert_int_equal(rc, ERR_FULL);
  assert_true(available * KV_BLOCK < last_length(s)); /* not without need */
  assert_non_null(strstr(e.text, "--kv-blocks"));
  w->refused++;
  assert_true(session_store_end(&w->store, s->id));
}

static void open_session(world *w) {
  int32_t tokens[CONTEXT], stem = roll(STEMS), length = 1 + roll(90), own = roll(3) ? 0 : roll(20);
  for (int32_t i = 0; i < length; i++)
    tokens[i] = i < length - own ? (stem * 11 + i * i) % VOCABULARY : roll(VOCABULARY);
  w->next_id++;
  session *s = session_opened(&w->store, w->next_id, w->next_id, tokens, length,
                              (msg_options){.max_tokens = 1 + roll(100), .context = CONTEXT});
  assert_int_equal(s->cache.rows, 0);
  w->opened++;
  admit(w, s);
}

/* Opened again with a shorter beginning of C. */
static void shorten(world *w, session *s) {
  int32_t length = 1 + roll(s->committed.length);
  int32_t prompt = s->request.prompt_length < length ? s->request.prompt_length : length;
  session_adopt(s, length, NULL, 0, prompt, s->request.options);
  w->shortened++;
  w->left_shared += s->cache.rows < s->cache.published * KV_BLOCK;
  admit(w, s);
}

static void step(world *w, session *s) {
  if (s->state == SESSION_FREE) {
    open_session(w);
    return;
  }
  int32_t missing = s->committed.length - 1 - s->cache.rows, room = last_length(s) - s->committed.length;
  if (roll(60) == 0) {
    shorten(w, s);
  } else if (roll(80) == 0 || (missing == 0 && room <= 0)) {
    assert_true(session_store_end(&w->store, s->id));
    w->ended++;
  } else if (missing > 0) {
    append_rows(w, s, 1 + roll(missing < KV_BLOCK + 3 ? missing : KV_BLOCK + 3));
  } else if (room < 2 || roll(4) == 0) {
    int32_t next = next_token(s->committed.tokens, s->committed.length);
    append_rows(w, s, 1);
    assert_int_equal(prefix_append(&s->committed, &next, 1), ERR_OK);
  } else {
    int32_t nodes = 1 + roll(room - 1 < NODES ? room - 1 : NODES);
    verify(w, s, nodes, roll(nodes + 1));
  }
}

static void check_all(world *w) {
  int32_t held = 0, holders = 0;
  for (int32_t i = 0; i < PLACES; i++) {
    const session *s = &w->store.slots[i];
    held += s->cache.block_count;
    if (s->state == SESSION_FREE || s->cache.remap) continue;
    int32_t there = kv_length(w->kv, w->sequences[i]);
    check_rows(w, s, there < s->cache.rows ? there : s->cache.rows);
  }
  for (int32_t i = 0; i < w->store.blocks.count; i++) holders += block_pool_holders(&w->store.blocks, i);
  assert_int_equal(holders, held);
  assert_true(block_pool_check(&w->store.blocks));
}

static void speculative_steps_leave_no_block_behind(void **state) {
  (void)state;
  world *w = calloc(1, sizeof *w);
  err e = {0};
  random_state = 3;
  kv_options o = {.sequences = PLACES, .context = CONTEXT, .type = KV_F32, .blocks = POOL, .stage = OPS_TILE};
  const kv_options plain = {.sequences = 1, .context = CONTEXT, .type = KV_F32};
  w->io = kv_support_open(&CONFIG, NULL);
  assert_int_equal(kv_open(&w->kv, w->io->device, &CONFIG, &o, NULL, &e), ERR_OK);
  assert_int_equal(kv_open(&w->plain, w->io->device, &CONFIG, &plain, NULL, &e), ERR_OK);
  assert_int_equal(session_store_init(&w->store, PLACES, CONTEXT, POOL, &e), ERR_OK);
  for (int32_t i = 0; i < PLACES; i++) w->sequences[i] = kv_acquire(w->kv);
  for (int32_t i = 0; i < STEPS; i++) {
    step(w, &w->store.slots[roll(PLACES)]);
    if (i % 16 == 0) check_all(w);
  }
  for (int32_t i = 0; i < PLACES; i++)
    if (w->store.slots[i].state != SESSION_FREE) session_store_end(&w->store, w->store.slots[i].id);
  check_all(w);
  const block_pool *b = &w->store.blocks;
  assert_int_equal(block_pool_available(b), POOL);
  print_message("opened %d, refused %d, ended %d, trees %d, shortened %d (%d into shared blocks); found %d "
                "rows, %d blocks; "
                "evicted %d\n",
                (int)w->opened, (int)w->refused, (int)w->ended, (int)w->trees, (int)w->shortened,
                (int)w->left_shared, (int)w->found_rows, (int)b->shared, (int)b->evicted);
  assert_true(w->refused > 100 && w->trees > 10000 && w->left_shared > 100 && b->shared > 1000 &&
              b->evicted > 1000);
  session_store_fini(&w->store);
  kv_close(w->kv);
  kv_close(w->plain);
  kv_support_close(w->io);
  free(w);
}

static void more_than_the_pool_is_never_admitted(void **state) {
  (void)state;
  session_store s;
  err e = {0};
  bool fresh;
  int32_t tokens[1] = {1};
  assert_int_equal(session_store_init(&s, 2, CONTEXT, 3, &e), ERR_OK);
  session *p = session_store_take(&s, 1, 1, tokens, 1, &fresh);
  assert_int_equal(prefix_append(&p->committed, tokens, 1), ERR_OK);
  assert_int_equal(session_store_admit(&s, p, 3 * KV_BLOCK + 2, &e), ERR_LIMIT);
  assert_non_null(strstr(e.text, "need 4 cache blocks"));
  assert_int_equal(p->cache.block_count, 0);
  assert_int_equal(session_store_admit(&s, p, 3 * KV_BLOCK + 1, &e), ERR_OK);
  session *q = session_store_take(&s, 2, 2, tokens, 1, &fresh);
  assert_int_equal(prefix_append(&q->committed, tokens, 1), ERR_OK);
  assert_int_equal(session_store_admit(&s, q, 2, &e), ERR_FULL);
  assert_int_equal(block_pool_available(&s.blocks), 0);
  assert_true(session_store_end(&s, 1));
  assert_int_equal(session_store_admit(&s, q, 2, &e), ERR_OK);
  session_store_fini(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_are_found_by_tokens),
      cmocka_unit_test(the_least_recently_used_go_first),
      cmocka_unit_test(equal_blocks_become_one),
      cmocka_unit_test(speculative_steps_leave_no_block_behind),
      cmocka_unit_test(more_than_the_pool_is_never_admitted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
