/* libs: kernels : cost=10 */
/* Rows of sequences that begin with the same blocks (ops.h: shared), on every device: each gives what it
 * gives alone. */
#include "tests/support/ops_cache.h"

#include <string.h>

enum { SEQUENCES = 3, CONTEXT = 1024, BLOCKS = 40, FILLED = 600, ROWS_MAX = 24 };

/* Sequence 1 has the first 34 blocks of sequence 0, and sequence 2 the first 18 of both. */
static const int32_t common[SEQUENCES][SEQUENCES] = {{0, 544, 288}, {544, 0, 288}, {288, 288, 0}};
static const int32_t filled[SEQUENCES] = {FILLED, FILLED + 9, 520};

typedef struct shared_test {
  attention_case c;
  rows_data data;
  cache k;
} shared_test;

static int32_t block_of(int32_t sequence, int32_t i) {
  const int32_t own[] = {0, 34, 18}, from[] = {0, 40, 46};
  return i < own[sequence] ? i : (from[sequence] + i - own[sequence]) % (CONTEXT / OPS_TILE);
}

static void map_sequence(shared_test *t, int32_t sequence) {
  int32_t blocks[BLOCKS];
  for (int32_t i = 0; i < BLOCKS; i++) blocks[i] = block_of(sequence, i);
  t->k.d->table->kv_map(t->k.d, t->k.kv, sequence, blocks, BLOCKS);
}

static ops_row row_of(int32_t sequence, int32_t p) {
  ops_row r = appended_row(sequence, p);
  r.token = (p * 7 + sequence * 31) % CACHE_KEYS;
  return r;
}

/* Positions [first, end) of a sequence. */
static void fill_rows(shared_test *t, int32_t sequence, int32_t first, int32_t end) {
  ops_row rows[CACHE_CONTEXT];
  for (int32_t p = first, count; p < end; p += count) {
    count = end - p < CACHE_CONTEXT ? end - p : CACHE_CONTEXT;
    for (int32_t i = 0; i < count; i++) rows[i] = row_of(sequence, p + i);
    run_rows(&t->k, &t->c, &t->data, 1, rows, count, NULL, 0, NULL);
  }
}

static shared_test open_test(device *d, ops_kv_type type, int32_t window) {
  const int32_t kv_heads = type == OPS_KV_F32 ? 24 : 2; /* so many that a thread has several splits in turn */
  shared_test t = {.c = {type, kv_heads == 24 ? 24 : 8, kv_heads, 64, 64, FILLED, 0, false, window}};
  t.data = make_rows(&t.c);
  t.k = make_cache(d, &t.c, CONTEXT);
  for (int32_t s = 0; s < SEQUENCES; s++) {
    map_sequence(&t, s);
    fill_rows(&t, s, s == 0 ? 0 : common[s][0], filled[s]);
  }
  return t;
}

static void close_test(shared_test *t) {
  free_cache(&t->k);
  free_rows(&t->data);
}

typedef struct part { /* rows that a sequence has in a batch: appended, or a staged chain */
  int32_t sequence, count;
  bool staged;
} part;

typedef struct batch {
  ops_row rows[ROWS_MAX];
  int32_t paths[ROWS_MAX * ROWS_MAX], count, numbers;
} batch;

static void add_row(batch *b, part p, int32_t i, int32_t shared) {
  ops_row *r = &b->rows[b->count++];
  *r = row_of(p.sequence, filled[p.sequence] + i);
  r->shared = shared;
  if (!p.staged) return;
  r->length = filled[p.sequence];
  r->path_at = b->numbers;
  r->path_count = i + 1;
  for (int32_t n = 0; n <= i; n++) b->paths[b->numbers++] = p.sequence * OPS_TILE + n;
}

static batch make_batch(const part *parts, int32_t count) {
  batch b = {.count = 0};
  for (int32_t p = 0; p < count; p++)
    for (int32_t i = 0; i < parts[p].count; i++)
      add_row(&b, parts[p], i, p > 0 && i == 0 ? common[parts[p - 1].sequence][parts[p].sequence] : 0);
  return b;
}

static void check(shared_test *t, const part *parts, int32_t count) {
  const batch b = make_batch(parts, count);
  const int32_t floats = t->c.heads * t->c.head_dim;
  float *together, *alone;
  run_rows(&t->k, &t->c, &t->data, 1, b.rows, b.count, b.paths, b.numbers, &together);
  for (int32_t i = 0; i < b.count; i++) {
    ops_row row = b.rows[i];
    row.shared = 0;
    run_rows(&t->k, &t->c, &t->data, 1, &row, 1, b.paths, b.numbers, &alone);
    if (memcmp(alone, together + i * floats, (size_t)floats * sizeof *alone) != 0)
      fail_msg("%s: row %d of a batch gives other bits than alone", t->k.d->table->name, i);
    free(alone);
  }
  free(together);
}

static void check_all(device *d, ops_kv_type type, int32_t window) {
  shared_test t = open_test(d, type, window);
  check(&t, (part[]){{0, 1, false}, {1, 1, false}, {2, 1, false}}, 3);
  check(&t, (part[]){{2, 1, false}, {0, 1, false}, {1, 1, false}}, 3);
  check(&t, (part[]){{1, 4, true}, {0, 3, true}, {2, 2, false}}, 3);
  check(&t, (part[]){{0, 1, false}, {2, 9, true}, {1, 7, true}}, 3);
  check(&t, (part[]){{1, 12, true}, {0, 12, true}}, 2);
  close_test(&t);
}

static void rows_that_share_give_what_they_give_alone(void **state) {
  (void)state;
  for (int32_t i = 0; i < device_count; i++) {
    for (ops_kv_type type = OPS_KV_F32; type <= OPS_KV_F16; type++) {
      check_all(devices[OPS_MATH_F32][i], type, 0);
      check_all(devices[OPS_MATH_F32][i], type, 300); /* the rows begin to see at different splits */
      check_all(devices[OPS_MATH_F32][i], type, 500);
    }
  }
}

/* A promise that is not true shows it: a sequence that has one split of another one is said to have two. The
 * reference, which reads everything for each row, is left out. */
static void a_processor_reads_what_is_shared_once(void **state) {
  (void)state;
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_F32][i];
    if (strncmp(d->table->name, "cpu:", 4) != 0 || strcmp(d->table->name, "cpu:c") == 0) continue;
    shared_test t = open_test(d, OPS_KV_F32, 0);
    ops_row rows[] = {row_of(0, filled[0]), row_of(2, filled[2])};
    const int32_t floats = t.c.heads * t.c.head_dim;
    float *own, *of_both;
    run_rows(&t.k, &t.c, &t.data, 1, rows, 2, NULL, 0, &own);
    rows[1].shared = 2 * OPS_SPLIT;
    run_rows(&t.k, &t.c, &t.data, 1, rows, 2, NULL, 0, &of_both);
    assert_memory_equal(own, of_both, (size_t)floats * sizeof *own);
    if (memcmp(own + floats, of_both + floats, (size_t)floats * sizeof *own) == 0)
      fail_msg("%s reads what is shared for each row", d->table->name);
    free(own);
    free(of_both);
    close_test(&t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_that_share_give_what_they_give_alone),
      cmocka_unit_test(a_processor_reads_what_is_shared_once),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
