/* libs: kernels : far emulated */
/* Commits, block tables and the staging pool, on every device: rows that were staged and then committed give
 * the bits of rows that were stored straight, whatever happens between the commit and the next forward. */
#include "tests/support/ops_cache.h"

static const attention_case halves = {OPS_KV_F16, 2, 2, 24, 24, 0, 0, false, 0};
static const attention_case singles = {OPS_KV_F32, 4, 2, 32, 16, 0, 0, true, 0};
static const attention_case *const cases[] = {&halves, &singles};

/* What layer `layer` attends to with a row behind `length` rows of a sequence: the sum of all it holds. */
static float *look(cache *k, const attention_case *c, const rows_data *d, int32_t layer, int32_t sequence,
                   int32_t length) {
  float *y;
  ops_row row = appended_row(sequence, length);
  run_rows(k, c, d, layer, &row, 1, NULL, 0, &y);
  return y;
}

/* Both sequences hold the same `length` rows, in every layer. */
static void assert_equal_rows(cache *k, const attention_case *c, const rows_data *d, int32_t a, int32_t b,
                              int32_t length) {
  for (int32_t layer = 0; layer < CACHE_LAYERS; layer++) {
    float *x = look(k, c, d, layer, a, length), *y = look(k, c, d, layer, b, length);
    for (int32_t i = 0; i < c->heads * c->head_dim; i++) assert_true(isfinite(x[i]));
    if (memcmp(x, y, (size_t)(c->heads * c->head_dim) * sizeof *x) != 0)
      fail_msg("%s: sequences %d and %d differ in layer %d", k->d->table->name, a, b, layer);
    free(x);
    free(y);
  }
}

/* Rows [from, to) of a sequence, stored straight in all layers. */
static void append(cache *k, const attention_case *c, const rows_data *d, int32_t sequence, int32_t from,
                   int32_t to) {
  ops_row rows[CACHE_CONTEXT];
  for (int32_t p = from; p < to; p++) rows[p - from] = appended_row(sequence, p);
  for (int32_t layer = 0; layer < CACHE_LAYERS && to > from; layer++)
    run_rows(k, c, d, layer, rows, to - from, NULL, 0, NULL);
}

/* The rows behind `length` that path says, as a chain, in all layers; their data are those of tokens from
 * `token` on. */
static void stage_as(cache *k, const attention_case *c, const rows_data *d, int32_t sequence, int32_t length,
                     const int32_t *path, int32_t count, int32_t token) {
  ops_row rows[CACHE_STAGE];
  for (int32_t i = 0; i < count; i++)
    rows[i] = (ops_row){.sequence = sequence,
                        .token = token + i,
                        .position = length + i,
                        .length = length,
                        .path_count = i + 1};
  for (int32_t layer = 0; layer < CACHE_LAYERS; layer++)
    run_rows(k, c, d, layer, rows, count, path, count, NULL);
}

static void stage(cache *k, const attention_case *c, const rows_data *d, int32_t sequence, int32_t length,
                  const int32_t *path, int32_t count) {
  stage_as(k, c, d, sequence, length, path, count, length);
}

static void commit(cache *k, int32_t sequence, const int32_t *path, int32_t count, int32_t length) {
  int32_t mine[CACHE_STAGE];
  memcpy(mine, path, (size_t)count * sizeof *mine);
  k->d->table->kv_commit(k->d, k->kv, sequence, mine, count, length);
  memset(mine, 0x5a, sizeof mine); /* copied */
}

/* --- over all devices and both types --- */

typedef void check_cache(cache *k, const attention_case *c, const rows_data *d);

/* Sequence 0 lies partly side by side, sequence 1 all apart, and no block is in both. All else is NaN. */
static void on_every_device(check_cache *check) {
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    rows_data d = make_rows(cases[n]);
    for (int32_t i = 0; i < device_count; i++) {
      cache k = make_cache(devices[OPS_MATH_F32][i], cases[n], CACHE_CONTEXT);
      poison(&k, cases[n]);
      map_blocks(&k, 0, 2);
      map_blocks(&k, 1, 4);
      check(&k, cases[n], &d);
      free_cache(&k);
    }
    free_rows(&d);
  }
}

enum { FIRST = 13, COUNT = 20 };
static const int32_t anyhow[COUNT] = {7,  3,  40, 0,  1,  2,  9,  12, 13, 14,
                                      15, 16, 17, 18, 19, 20, 21, 22, 23, 47};

/* --- commits --- */

static void check_moved(cache *k, const attention_case *c, const rows_data *d) {
  append(k, c, d, 0, 0, FIRST + COUNT);
  append(k, c, d, 1, 0, FIRST);
  ops_counters before = k->d->counters;
  stage(k, c, d, 1, FIRST, anyhow, COUNT);
  commit(k, 1, anyhow, COUNT, FIRST);
  assert_equal_rows(k, c, d, 0, 1, FIRST + COUNT);
  assert_int_equal(k->d->counters.staged_writes - before.staged_writes, COUNT * CACHE_LAYERS);
  assert_int_equal(k->d->counters.commit_copies - before.commit_copies, COUNT * CACHE_LAYERS);
}

static void commit_moves_rows(void **state) {
  (void)state;
  on_every_device(check_moved);
}

/* Only a part of a path, in pieces, with nothing but further commits between them. */
static void check_pieces(cache *k, const attention_case *c, const rows_data *d) {
  append(k, c, d, 0, 0, FIRST + COUNT);
  append(k, c, d, 1, 0, FIRST);
  stage(k, c, d, 1, FIRST, anyhow, COUNT);
  commit(k, 1, anyhow, 1, FIRST);
  commit(k, 1, anyhow + 1, 6, FIRST + 1);
  commit(k, 1, anyhow + 7, 0, FIRST + 7);
  commit(k, 1, anyhow + 7, COUNT - 7, FIRST + 7);
  assert_equal_rows(k, c, d, 0, 1, FIRST + COUNT);
}

static void commits_of_a_sequence_follow_each_other(void **state) {
  (void)state;
  on_every_device(check_pieces);
}

/* The second one of two commits to the same rows, after a rollback, is what counts. */
static void check_again(cache *k, const attention_case *c, const rows_data *d) {
  append(k, c, d, 0, 0, FIRST + 5);
  append(k, c, d, 1, 0, FIRST);
  stage_as(k, c, d, 1, FIRST, anyhow, 8, 60); /* other data */
  stage(k, c, d, 1, FIRST, anyhow + 8, 5);
  commit(k, 1, anyhow, 8, FIRST);
  commit(k, 1, anyhow + 8, 5, FIRST);
  assert_equal_rows(k, c, d, 0, 1, FIRST + 5);
}

static void a_later_commit_of_the_same_rows_counts(void **state) {
  (void)state;
  on_every_device(check_again);
}

/* A row that is appended where a commit has put one: the forward came later. */
static void check_overwritten(cache *k, const attention_case *c, const rows_data *d) {
  append(k, c, d, 0, 0, FIRST + 3);
  append(k, c, d, 1, 0, FIRST);
  stage_as(k, c, d, 1, FIRST, anyhow, 8, 60);
  commit(k, 1, anyhow, 8, FIRST);
  append(k, c, d, 1, FIRST, FIRST + 3);
  assert_equal_rows(k, c, d, 0, 1, FIRST + 3);
}

static void a_row_that_is_appended_later_counts(void **state) {
  (void)state;
  on_every_device(check_overwritten);
}

/* --- what happens between a commit and the next forward --- */

/* The rows of the pool belong to the next tree at once, that of another sequence. */
static void check_pool(cache *k, const attention_case *c, const rows_data *d) {
  append(k, c, d, 0, 0, FIRST + COUNT);
  append(k, c, d, 1, 0, FIRST);
  stage(k, c, d, 1, FIRST, anyhow, COUNT);
  commit(k, 1, anyhow, COUNT, FIRST);
  stage_as(k, c, d, 0, FIRST, anyhow, COUNT, 60);
  assert_equal_rows(k, c, d, 0, 1, FIRST + COUNT);
}

static void staged_rows_are_free_after_their_commit(void **state) {
  (void)state;
  on_every_device(check_pool);
}

/* Two sequences commit, in turns, before one forward of a third. */
static void check_two(cache *k, const attention_case *c, const rows_data *d) {
  static const int32_t other[] = {4, 5, 6, 30, 31};
  append(k, c, d, 0, 0, FIRST);
  append(k, c, d, 1, 0, FIRST);
  stage(k, c, d, 0, FIRST, other, 5);
  stage(k, c, d, 1, FIRST, anyhow, COUNT);
  commit(k, 0, other, 3, FIRST);
  commit(k, 1, anyhow, 2, FIRST);
  commit(k, 0, other + 3, 2, FIRST + 3);
  commit(k, 1, anyhow + 2, 3, FIRST + 2);
  assert_equal_rows(k, c, d, 0, 1, FIRST + 5);
}

static void two_sequences_commit_before_a_forward(void **state) {
  (void)state;
  on_every_device(check_two);
}

/* A block changes hands after a commit into it: a forward of its new owner finds the committed rows there,
 * and what the new owner writes stays. */
static void check_hands(cache *k, const attention_case *c, const rows_data *d) {
  const int32_t own[] = {3, 4}, taken[] = {14, 9};
  append(k, c, d, 0, 0, FIRST + COUNT - 1); /* in blocks 3, 4 */
  append(k, c, d, 1, 0, FIRST);             /* in blocks 14, 9 */
  stage(k, c, d, 1, FIRST, anyhow, COUNT - 5);
  commit(k, 1, anyhow, COUNT - 5, FIRST);
  k->d->table->kv_map(k->d, k->kv, 1, NULL, 0);
  k->d->table->kv_map(k->d, k->kv, 2, taken, 2);
  append(k, c, d, 2, FIRST + COUNT - 5, FIRST + COUNT - 2);
  assert_equal_rows(k, c, d, 0, 2, FIRST + COUNT - 2);
  k->d->table->kv_map(k->d, k->kv, 1, own, 2);
  assert_equal_rows(k, c, d, 1, 2, FIRST + COUNT - 2);
}

static void a_block_changes_hands_after_a_commit(void **state) {
  (void)state;
  on_every_device(check_hands);
}

/* The same between two commits, with no forward between them: the second is what counts. */
static void check_hands_of_commits(cache *k, const attention_case *c, const rows_data *d) {
  static const int32_t other[] = {4, 5, 6, 30, 31};
  const int32_t taken[] = {14, 9};
  append(k, c, d, 0, 0, FIRST + 5);
  append(k, c, d, 1, 0, FIRST);
  stage_as(k, c, d, 1, FIRST, anyhow, 8, 60);
  map_blocks(k, 2, 3);
  stage(k, c, d, 2, FIRST, other, 5);
  commit(k, 1, anyhow, 8, FIRST);
  k->d->table->kv_map(k->d, k->kv, 2, taken, 2);
  commit(k, 2, other, 5, FIRST);
  assert_equal_rows(k, c, d, 0, 1, FIRST + 5);
}

static void a_block_changes_hands_between_two_commits(void **state) {
  (void)state;
  on_every_device(check_hands_of_commits);
}

/* A commit goes where the block table says when it is called, however the table changes afterwards. */
static void check_map(cache *k, const attention_case *c, const rows_data *d) {
  append(k, c, d, 0, 0, FIRST + COUNT);
  append(k, c, d, 1, 0, FIRST);
  stage(k, c, d, 1, FIRST, anyhow, COUNT);
  commit(k, 1, anyhow, COUNT, FIRST);
  map_blocks(k, 1, 2); /* sequence 0's */
  map_blocks(k, 2, 4);
  assert_equal_rows(k, c, d, 1, 2, FIRST + COUNT);
}

static void a_commit_uses_the_table_of_its_call(void **state) {
  (void)state;
  on_every_device(check_map);
}

/* Attention of a layer whose rope_store does not run in that forward sees the commit too. */
static void check_unstored(cache *k, const attention_case *c, const rows_data *d) {
  int32_t q_row = c->heads * c->head_dim;
  float *y[2];
  append(k, c, d, 0, 0, FIRST + COUNT);
  append(k, c, d, 1, 0, FIRST);
  stage(k, c, d, 1, FIRST, anyhow, COUNT);
  commit(k, 1, anyhow, COUNT, FIRST);
  for (int32_t s = 0; s < 2; s++) {
    static cache_batch b;
    ops_row row = appended_row(1 - s, FIRST + COUNT - 1);
    device_act *q = act_of(k->d, 1, q_row, false, d->q), *out = act_of(k->d, 1, q_row, false, NULL);
    fill_batch(&b, c, &row, 1, NULL, 0);
    assert_true(k->d->table->begin(k->d, k->kv, &b.batch));
    k->d->table->attention(k->d, 1, 0, q, out);
    end_rows(k->d);
    y[s] = read_act(k->d, out, 1, q_row);
    k->d->table->act_drop(k->d, q);
    k->d->table->act_drop(k->d, out);
  }
  assert_memory_equal(y[0], y[1], (size_t)q_row * sizeof *y[0]);
  free(y[0]), free(y[1]);
  assert_equal_rows(k, c, d, 0, 1, FIRST + COUNT);
}

static void attention_alone_sees_a_commit(void **state) {
  (void)state;
  on_every_device(check_unstored);
}

/* A forward that stops after the first layer, then a commit of other rows, then a whole forward. */
static void check_stopped(cache *k, const attention_case *c, const rows_data *d) {
  static const int32_t other[] = {4, 5, 6, 30};
  append(k, c, d, 0, 0, FIRST);
  append(k, c, d, 1, 0, FIRST);
  stage(k, c, d, 0, FIRST, other, 4);
  stage(k, c, d, 1, FIRST, anyhow, 4);
  commit(k, 1, anyhow, 4, FIRST);
  free(look(k, c, d, 0, 1, FIRST + 4));
  commit(k, 0, other, 4, FIRST);
  assert_equal_rows(k, c, d, 0, 1, FIRST + 4);
}

static void a_forward_of_some_layers_loses_no_commit(void **state) {
  (void)state;
  on_every_device(check_stopped);
}

/* A forward without a cache, and one over another cache, between a commit and its forward. */
static void check_others(cache *k, const attention_case *c, const rows_data *d) {
  cache other = make_cache(k->d, c, CACHE_CONTEXT);
  append(k, c, d, 0, 0, FIRST + COUNT);
  append(k, c, d, 1, 0, FIRST);
  stage(k, c, d, 1, FIRST, anyhow, COUNT);
  commit(k, 1, anyhow, COUNT, FIRST);
  begin_rows(k->d, 3);
  end_rows(k->d);
  map_blocks(&other, 0, 0);
  append(&other, c, d, 0, 0, 3);
  assert_equal_rows(k, c, d, 0, 1, FIRST + COUNT);
  stage(&other, c, d, 0, 3, anyhow, 2);
  commit(&other, 0, anyhow, 2, 3);
  free_cache(&other); /* with a commit that no forward has seen */
}

static void other_forwards_lose_no_commit(void **state) {
  (void)state;
  on_every_device(check_others);
}

/* --- block tables --- */

/* Blocks that several sequences share, and a table that grows from forward to forward. */
static void check_tables(cache *k, const attention_case *c, const rows_data *d) {
  const int32_t shared[] = {3, 4, 9}; /* of sequence 0 its first two */
  append(k, c, d, 0, 0, 40);
  for (int32_t count = 1; count <= 3; count++) {
    k->d->table->kv_map(k->d, k->kv, 1, shared, count);
    if (count == 3) append(k, c, d, 1, 32, 40);
  }
  assert_equal_rows(k, c, d, 0, 1, 40);
}

static void sequences_share_blocks(void **state) {
  (void)state;
  on_every_device(check_tables);
}

/* --- rotary positions --- */

/* The same query at two positions, one of which is as much farther on as the other one's rope_shift says. */
static void check_shift(cache *k, const attention_case *c, const rows_data *d) {
  device *dev = k->d;
  const int32_t row = c->heads * c->head_dim, column = c->kv_heads * c->head_dim;
  const ops_row rows[] = {{.position = 3, .length = 4, .rope_shift = 30},
                          {.position = 33, .length = 34, .sequence = 1}};
  float *twice = malloc((size_t)(2 * row) * sizeof *twice);
  append(k, c, d, 0, 0, 3);
  append(k, c, d, 1, 0, 33);
  memcpy(twice, d->q, (size_t)row * sizeof *twice);
  memcpy(twice + row, d->q, (size_t)row * sizeof *twice);
  device_act *q = act_of(dev, 2, row, false, twice), *key = act_of(dev, 2, column, false, d->k),
             *value = act_of(dev, 2, column, false, d->v);
  device_vector frequency = upload_floats(dev, d->frequency, (size_t)c->rope_dim / 2);
  assert_true(dev->table->begin(dev, k->kv, &(ops_batch){.rows = rows, .row_count = 2}));
  dev->table->rope(dev, &(device_rope){frequency, c->rope_dim, 1});
  dev->table->rope_store(dev, 0, &(device_rotary){.eps = 1}, q, key, value);
  end_rows(dev);
  float *got = read_act(dev, q, 2, row);
  assert_memory_equal(got, got + row, (size_t)row * sizeof *got);
  assert_memory_not_equal(got, twice, (size_t)row * sizeof *got);
  free(got);
  free(twice);
  drop_vector(dev, frequency);
  dev->table->act_drop(dev, q);
  dev->table->act_drop(dev, key);
  dev->table->act_drop(dev, value);
}

static void a_row_is_rotated_by_its_shift(void **state) {
  (void)state;
  on_every_device(check_shift);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(commit_moves_rows),
      cmocka_unit_test(commits_of_a_sequence_follow_each_other),
      cmocka_unit_test(a_later_commit_of_the_same_rows_counts),
      cmocka_unit_test(a_row_that_is_appended_later_counts),
      cmocka_unit_test(staged_rows_are_free_after_their_commit),
      cmocka_unit_test(two_sequences_commit_before_a_forward),
      cmocka_unit_test(a_block_changes_hands_after_a_commit),
      cmocka_unit_test(a_block_changes_hands_between_two_commits),
      cmocka_unit_test(a_commit_uses_the_table_of_its_call),
      cmocka_unit_test(attention_alone_sees_a_commit),
      cmocka_unit_test(a_forward_of_some_layers_loses_no_commit),
      cmocka_unit_test(other_forwards_lose_no_commit),
      cmocka_unit_test(sequences_share_blocks),
      cmocka_unit_test(a_row_is_rotated_by_its_shift),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
