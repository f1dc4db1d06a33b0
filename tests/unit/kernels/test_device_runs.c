/* libs: kernels_cuda_emulated */
/* Rows of several sequences in one batch, over an emulated CUDA device, whose rows of a sequence share what
 * they read: each gives what it gives alone. */
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

static int open_emulated(void **state) {
  (void)state;
  device_count = 0;
  open_device("emulated:0", 1);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(runs_end_where_the_sequence_does)};
  return cmocka_run_group_tests(tests, open_emulated, close_devices);
}
