/* libs: kernels_cuda_emulated */
/* Rows of several sequences in one batch, over an emulated CUDA device, whose rows of a sequence share what
 * they read, and those of sequences that begin with the same blocks: each gives what it gives alone. */
#include "kernels/cuda/device_parts.h"
#include "kernels/cuda/split_runs.h"
#include "tests/support/ops_cache.h"

#include <string.h>

#define COMMITTED 45
#define ROWS_MAX  50

typedef struct sequence_rows {
  int32_t sequence, count;
} sequence_rows;

static void check_rows(device *d, const sequence_rows *all, int32_t parts) {
  const attention_case c = {OPS_KV_F16, 8, 2, 64, 64, COMMITTED, 0, false, 0};
  const size_t bytes = (size_t)(c.heads * c.head_dim) * sizeof(float);
  rows_data data = make_rows(&c);
  cache k = make_cache(d, &c, CACHE_CONTEXT);
  ops_row rows[ROWS_MAX], before[COMMITTED];
  int32_t count = 0;
  float *together, *alone;
  poison(&k, &c);
  for (int32_t s = 0; s < 2; s++) {
    map_blocks(&k, s, CACHE_ORDERS - s);
    for (int32_t p = 0; p < COMMITTED; p++) before[p] = appended_row(s, p);
    for (int32_t p = 0; p < COMMITTED; p++) before[p].token += s; /* other keys than the other sequence's */
    run_rows(&k, &c, &data, 1, before, COMMITTED, NULL, 0, NULL);
  }
  int32_t next[2] = {COMMITTED, COMMITTED};
  for (int32_t i = 0; i < parts; i++)
    for (int32_t n = 0; n < all[i].count; n++)
      rows[count++] = appended_row(all[i].sequence, next[all[i].sequence]++);
  run_rows(&k, &c, &data, 1, rows, count, NULL, 0, &together);
  for (int32_t i = 0; i < count; i++) {
    run_rows(&k, &c, &data, 1, &rows[i], 1, NULL, 0, &alone);
    if (memcmp(alone, together + i * c.heads * c.head_dim, bytes) != 0)
      fail_msg("row %d of a batch gives other bits than alone", i);
    free(alone);
  }
  free(together);
  free_cache(&k);
  free_rows(&data);
}

static void runs_end_where_the_sequence_does(void **state) {
  (void)state;
  device *d = devices[OPS_MATH_F32][0];
  check_rows(d, (sequence_rows[]){{0, 9}, {1, 5}}, 2);
  check_rows(d, (sequence_rows[]){{1, 4}, {0, 12}, {1, 4}}, 3);
  check_rows(d, (sequence_rows[]){{0, 50}}, 1);
  check_rows(d, (sequence_rows[]){{0, 1}, {1, 1}, {0, 1}, {1, 8}, {0, 5}}, 5);
}

/* --- sequences that share splits --- */

enum {
  SHARED = 3 * OPS_SPLIT + OPS_TILE, /* and then a tile */
  LENGTH = 5 * OPS_SPLIT - 2,        /* rows cross the next split */
  CONTEXT = 2048,
  STORED = 61 /* rows that a forward stores */
};

/* Appends rows of the sequence up to its length `end`, with tokens that `salt` tells from others'. */
static void append_rows(cache *k, const attention_case *c, const rows_data *data, int32_t sequence,
                        int32_t first, int32_t end, int32_t salt) {
  ops_row rows[STORED];
  while (first < end) {
    int32_t count = 0;
    for (; count < STORED && first < end; first++, count++) {
      rows[count] = appended_row(sequence, first);
      rows[count].token = (first * 7 + salt) % CACHE_KEYS;
    }
    run_rows(k, c, data, 1, rows, count, NULL, 0, NULL);
  }
}

/* Two sequences: the first SHARED rows of both lie in the same blocks. */
static void map_sharing(cache *k, const attention_case *c, const rows_data *data) {
  int32_t blocks[CONTEXT / OPS_TILE];
  const int32_t shared = SHARED / OPS_TILE, count = LENGTH / OPS_TILE + 2;
  for (int32_t s = 0; s < 2; s++) {
    for (int32_t i = 0; i < count; i++)
      blocks[i] = i < shared ? 2 * i + 1 : 2 * (i - shared + s * (count - shared));
    k->d->table->kv_map(k->d, k->kv, s, blocks, count);
    append_rows(k, c, data, s, s == 0 ? 0 : SHARED, LENGTH - s, s);
  }
}

static bool took_split_runs(device *d) {
  return cuda_device_of(d)->forward.attending.runs.shared > 0;
}

/* Rows of a tree, of another sequence's chain, and one more of the first. */
static int32_t rows_of_sharing(ops_row rows[], const int32_t shared[3]) {
  int32_t count = 0;
  for (int32_t i = 1; i <= 3; i++)
    rows[count++] = (ops_row){.token = 90 + i, .position = LENGTH - 1 + i, .length = LENGTH, .path_count = i};
  for (int32_t i = 0; i < 4; i++) {
    rows[count] = appended_row(1, LENGTH - 1 + i);
    rows[count++].token = 100 + i;
  }
  rows[count++] =
      (ops_row){.token = 110, .position = LENGTH, .length = LENGTH, .path_at = 3, .path_count = 1};
  rows[0].shared = shared[0];
  rows[3].shared = shared[1];
  rows[7].shared = shared[2];
  return count;
}

/* taken: do sequences read together? */
static void check_sharing(device *d, int32_t window, const int32_t shared[3], bool taken) {
  const attention_case c = {OPS_KV_F16, 8, 2, 64, 64, LENGTH, 0, false, window};
  const int32_t paths[] = {7, 30, 12, 20}, q_row = c.heads * c.head_dim;
  rows_data data = make_rows(&c);
  cache k = make_cache(d, &c, CONTEXT);
  ops_row rows[ROWS_MAX];
  const int32_t count = rows_of_sharing(rows, shared);
  float *together, *alone;
  map_sharing(&k, &c, &data);
  run_rows(&k, &c, &data, 1, rows, count, paths, 4, &together);
  assert_int_equal(took_split_runs(d), taken);
  for (int32_t i = 0; i < count; i++) {
    run_rows(&k, &c, &data, 1, &rows[i], 1, paths, 4, &alone);
    assert_false(took_split_runs(d));
    if (memcmp(alone, together + i * q_row, (size_t)q_row * sizeof(float)) != 0)
      fail_msg("row %d of sequences that share gives other bits than alone", i);
    free(alone);
  }
  free(together);
  free_cache(&k);
  free_rows(&data);
}

static void sequences_read_together_what_they_share(void **state) {
  (void)state;
  device *d = devices[OPS_MATH_F32][0];
  for (int32_t window = 0; window <= 500; window += 500)
    check_sharing(d, window, (const int32_t[]){0, SHARED, SHARED}, true);
  check_sharing(d, 0, (const int32_t[]){0, OPS_SPLIT, OPS_SPLIT - OPS_TILE}, false);
  check_sharing(d, 0, (const int32_t[]){SHARED, 0, 0}, false);
}

/* --- lists --- */

/* A row of its own sequence each, in this split. */
static ops_row row_in(int32_t sequence, int32_t split, int32_t shared_splits) {
  const int32_t p = split * OPS_SPLIT;
  return (ops_row){.position = p, .sequence = sequence, .length = p + 1, .shared = shared_splits * OPS_SPLIT};
}

/* The splits that these rows attend to together, [first, first + count) of each. */
static void check_list(const ops_row *rows, int32_t count, const cuda_split_run *expected, int32_t listed,
                       cuda_runs sizes) {
  cuda_split_run got[64];
  int32_t n = -1;
  assert_in_range(cuda_split_runs_most(rows, count), listed, 64);
  cuda_runs of = cuda_split_runs_of(rows, count, got, &n);
  assert_int_equal(n, listed);
  assert_memory_equal(&of, &sizes, sizeof of);
  if (listed > 0) assert_memory_equal(got, expected, (size_t)listed * sizeof *got);
}

static void each_split_is_listed_once(void **state) {
  (void)state;
  /* Two sequences share two splits, and with a third one only the first of these; a stranger has its own. */
  const ops_row tree[] = {row_in(0, 2, 0), row_in(1, 2, 2), row_in(2, 1, 1), row_in(3, 0, 0)};
  check_list(tree, 4,
             (cuda_split_run[]){{{0, 1}, 2}, {{1, 1}, 2}, {{0, 2}, 1}, {{2, 1}, 1}, {{0, 3}, 0}, {{3, 1}, 0}},
             6, (cuda_runs){4, 1, 2, 4});
  /* More rows than a run has. */
  ops_row many[10];
  for (int32_t i = 0; i < 10; i++) many[i] = row_in(i, 1, i > 0);
  cuda_split_run expected[12];
  for (int32_t i = 0; i < 10; i++) expected[i] = (cuda_split_run){{i, 1}, 1};
  expected[10] = (cuda_split_run){{0, CUDA_RUN_ROWS}, 0};
  expected[11] = (cuda_split_run){{CUDA_RUN_ROWS, 2}, 0};
  check_list(many, 10, expected, 12, (cuda_runs){12, 1, 2, 8});
}

static void little_that_is_shared_is_not_listed(void **state) {
  (void)state;
  ops_row rows[200];
  for (int32_t i = 0; i < 2; i++) rows[i] = row_in(i, 2, i); /* one split of six is not read twice */
  check_list(rows, 2, NULL, 0, (cuda_runs){0});
  rows[1].shared = OPS_SPLIT - OPS_TILE;
  assert_int_equal(cuda_split_runs_most(rows, 2), 0);
  for (int32_t i = 0; i < 200; i++) rows[i] = row_in(i, 1, i > 0); /* as many as a prompt has */
  assert_int_equal(cuda_split_runs_most(rows, 200), 0);
}

static int open_emulated(void **state) {
  (void)state;
  device_count = 0;
  open_device("emulated:0", 1);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(runs_end_where_the_sequence_does),
                                     cmocka_unit_test(sequences_read_together_what_they_share),
                                     cmocka_unit_test(each_split_is_listed_once),
                                     cmocka_unit_test(little_that_is_shared_is_not_listed)};
  return cmocka_run_group_tests(tests, open_emulated, close_devices);
}
