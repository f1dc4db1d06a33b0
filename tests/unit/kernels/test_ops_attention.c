/* libs: kernels */
/* Ops rope, rope_store and attention: each device against the C reference by memcmp, however many keys are
 * committed or staged and wherever they lie; the reference against plain computations in double. */
#include "kernels/rope_angle.h"
#include "tests/support/ops_cache.h"

/* --- the angles --- */

/* Queries of ones and zeros come out as the cosines and sines themselves. */
static void rope_writes_the_angles_of_the_header(void **state) {
  (void)state;
  enum { DIM = 64, ROWS = 9 };
  const int32_t positions[ROWS] = {0, 1, 2, 63, 64, 1000, 4095, 31, 7};
  const float times = 1.25f;
  for (int32_t i = 0; i < device_count; i++) {
    cache k = make_cache(devices[OPS_MATH_F32][i],
                         &(attention_case){OPS_KV_F32, 1, 1, DIM, DIM, 0, 0, false, 0}, 4096);
    device *d = k.d;
    float frequency[DIM / 2], q[ROWS * DIM], zero[ROWS * DIM] = {0};
    for (int f = 0; f < DIM / 2; f++) frequency[f] = (float)pow(10000, -2.0 * f / DIM);
    for (int f = 0; f < ROWS * DIM; f++) q[f] = f % 2 == 0;
    ops_row rows[ROWS];
    map_in_order(&k, 0);
    for (int32_t r = 0; r < ROWS; r++)
      rows[r] = (ops_row){.position = positions[r], .length = positions[r] + 1};
    device_act *acts[] = {act_of(d, ROWS, DIM, false, q), act_of(d, ROWS, DIM, false, zero),
                          act_of(d, ROWS, DIM, false, zero)};
    device_vector v = upload_floats(d, frequency, DIM / 2);
    assert_true(d->table->begin(d, k.kv, &(ops_batch){.rows = rows, .row_count = ROWS}));
    d->table->rope(d, &(device_rope){v, DIM, times});
    d->table->rope_store(d, 0, &(device_rotary){.eps = 1}, acts[0], acts[1], acts[2]);
    end_rows(d);
    float *got = read_act(d, acts[0], ROWS, DIM);
    for (int32_t f = 0; f < ROWS * DIM / 2; f++) {
      float cosine, sine;
      rope_angle(frequency[f % (DIM / 2)], positions[f / (DIM / 2)], times, &cosine, &sine);
      assert_true(got[2 * f] == cosine && got[2 * f + 1] == sine);
    }
    free(got);
    for (int a = 0; a < 3; a++) d->table->act_drop(d, acts[a]);
    drop_vector(d, v);
    free_cache(&k);
  }
}

/* --- one row: its definition --- */

static void naive_norm(const attention_case *c, const float *x, const float *w, double *out) {
  double squares = 0;
  for (int32_t i = 0; i < c->head_dim; i++) squares += (double)x[i] * (double)x[i];
  double scale = c->norms ? 1 / sqrt(squares / c->head_dim + (double)cache_eps) : 1;
  for (int32_t i = 0; i < c->head_dim; i++) out[i] = (double)x[i] * scale * (c->norms ? (double)w[i] : 1);
}

static double rotated(const double *x, const float *frequency, int32_t rope_dim, int32_t position,
                      int32_t d) {
  if (d >= rope_dim) return x[d];
  double angle = (double)((float)position * frequency[d / 2]), even = x[d & ~1], odd = x[d | 1];
  return d & 1 ? odd * cos(angle) + even * sin(angle) : even * cos(angle) - odd * sin(angle);
}

static double naive_score(const attention_case *c, const rows_data *d, int32_t n, int32_t head, int32_t p) {
  int32_t kv_head = head / (c->heads / c->kv_heads);
  double dot = 0, q[OPS_HEAD_DIM_MAX], key[OPS_HEAD_DIM_MAX];
  naive_norm(c, d->q + ((n - 1) * c->heads + head) * c->head_dim, d->q_norm, q);
  naive_norm(c, d->k + (p * c->kv_heads + kv_head) * c->head_dim, d->k_norm, key);
  for (int32_t i = 0; i < c->head_dim; i++) {
    dot += rotated(q, d->frequency, c->rope_dim, n - 1, i) * rotated(key, d->frequency, c->rope_dim, p, i);
  }
  return dot / sqrt(c->head_dim);
}

static void check_attention_values(const attention_case *c, const rows_data *d, int32_t n, const float *y) {
  double bound = c->type == OPS_KV_F16 ? 2e-2 : 1e-4;
  for (int32_t head = 0; head < c->heads; head++) {
    double score[CACHE_KEYS], sum = 0, largest = -INFINITY;
    int32_t kv_head = head / (c->heads / c->kv_heads), first = first_seen(c, n);
    for (int32_t p = first; p < n; p++) {
      score[p] = naive_score(c, d, n, head, p);
      if (score[p] > largest) largest = score[p];
    }
    for (int32_t p = first; p < n; p++) sum += score[p] = exp(score[p] - largest);
    for (int32_t i = 0; i < c->head_dim; i++) {
      double expected = 0;
      for (int32_t p = first; p < n; p++) {
        expected += score[p] / sum * (double)d->v[(p * c->kv_heads + kv_head) * c->head_dim + i];
      }
      assert_near((double)y[head * c->head_dim + i], expected, bound, "attention");
    }
  }
}

/* Stores positions [0, n) of layer 1, the first `committed` ones there, the others in staging slots that lie
 * anyhow; then attends with the last row alone. */
static float *attend_last(cache *k, const attention_case *c, const rows_data *d, int32_t committed, int32_t n,
                          int32_t order) {
  ops_row rows[CACHE_KEYS];
  int32_t path[CACHE_STAGE];
  poison(k, c);
  map_blocks(k, 0, order);
  for (int32_t i = 0; i < n - committed; i++) path[i] = (i * 11 + 5) % CACHE_STAGE;
  for (int32_t p = 0; p < n; p++) {
    bool staged = p >= committed;
    rows[p] = appended_row(0, p);
    if (staged) rows[p].length = committed;
    rows[p].path_count = staged ? p - committed + 1 : 0;
  }
  run_rows(k, c, d, 1, rows, n, path, n - committed, NULL);
  float *y;
  run_rows(k, c, d, 1, &rows[n - 1], 1, path, n - committed, &y);
  return y;
}

/* However many of the keys are committed and however many staged, wherever their blocks lie, on every device:
 * the same bits. */
static void check_attention(const attention_case *c) {
  rows_data d = make_rows(c);
  int32_t n = c->committed + c->staged;
  size_t bytes = (size_t)(c->heads * c->head_dim) * sizeof(float);
  float *reference = NULL;
  for (int32_t i = 0; i < device_count; i++) {
    cache k = make_cache(devices[OPS_MATH_F32][i], c, CACHE_CONTEXT);
    for (int32_t committed = n; committed >= 0 && n - committed <= CACHE_STAGE;
         committed -= 1 + (committed > 4) * 6) {
      for (int32_t order = 0; order < CACHE_ORDERS; order++) {
        float *y = attend_last(&k, c, &d, committed, n, order);
        if (!reference) check_attention_values(c, &d, n, reference = y);
        if (memcmp(y, reference, bytes) != 0)
          fail_msg("attention on %s: %d of %d keys committed, in order %d of blocks, give other bits",
                   k.d->table->name, committed, n, order);
        if (y != reference) free(y);
      }
    }
    free_cache(&k);
  }
  free(reference);
  free_rows(&d);
}

static void attention_agrees(void **state) {
  (void)state;
  const attention_case cases[] = {
      {OPS_KV_F16, 9, 3, 64, 64, 70, 20, false, 0},
      {OPS_KV_F32, 9, 3, 64, 64, 70, 20, false, 0},
      {OPS_KV_F16, 4, 4, 32, 32, 16, 3, false, 0},
      {OPS_KV_F32, 8, 1, 16, 8, 31, 9, false, 0},
      {OPS_KV_F16, 2, 1, 80, 80, 0, 1, false, 0},
      {OPS_KV_F16, 4, 1, 128, 64, 40, 30, false, 0},
      {OPS_KV_F16, 6, 2, 12, 12, 33, 5, false, 0},
      {OPS_KV_F32, 5, 1, 20, 10, 33, 5, false, 0},
      {OPS_KV_F16, 3, 1, 40, 40, 15, 1, false, 0},
      {OPS_KV_F16, 4, 2, 64, 64, 45, 9, true, 0},
      {OPS_KV_F32, 2, 1, 36, 20, 30, 7, true, 0},
      /* windows: of one key, within a tile, at a tile's edges, inside the staged part, longer than all */
      {OPS_KV_F16, 9, 3, 64, 64, 70, 20, false, 1},
      {OPS_KV_F16, 9, 3, 64, 64, 70, 20, false, 5},
      {OPS_KV_F32, 8, 1, 16, 16, 60, 30, true, 16},
      {OPS_KV_F16, 4, 2, 32, 32, 47, 33, false, 32},
      {OPS_KV_F16, 4, 2, 32, 32, 48, 33, false, 33},
      {OPS_KV_F32, 6, 2, 12, 12, 33, 40, false, 21},
      {OPS_KV_F16, 2, 1, 80, 80, 40, 20, false, 59},
      {OPS_KV_F16, 2, 1, 80, 80, 40, 20, false, 61},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_attention(&cases[i]);
}

/* --- several rows at once --- */

enum { B_ROWS = 19 };

/* Appended rows of one sequence, then a tree of another: row i's parent is about i / 2. Its staged rows lie
 * in the pool from `stage` on. Returns how many numbers the paths have. */
static int32_t make_batch(int32_t committed, int32_t appended, int32_t stage, ops_row *rows, int32_t *paths) {
  int32_t at = 0;
  for (int32_t i = 0; i < B_ROWS; i++) {
    if (i < appended) {
      rows[i] = appended_row(0, committed + i);
      continue;
    }
    int32_t slot = i - appended, count = 0;
    if (slot > 0) {
      const ops_row *parent = &rows[appended + (slot - 1) / 2];
      count = parent->path_count;
      memcpy(paths + at, paths + parent->path_at, (size_t)count * sizeof *paths);
    }
    paths[at + count++] = stage + slot;
    rows[i] = (ops_row){.sequence = 1,
                        .token = committed + i,
                        .position = committed + count - 1,
                        .length = committed,
                        .path_at = at,
                        .path_count = count};
    at += count;
  }
  return at;
}

/* The rows in one batch give what each gives alone. */
static float *attend_together(device *on, const attention_case *c, const rows_data *d, int32_t appended,
                              int32_t stage) {
  cache k = make_cache(on, c, CACHE_CONTEXT);
  int32_t paths[B_ROWS * B_ROWS], q_row = c->heads * c->head_dim;
  ops_row rows[B_ROWS], before[CACHE_KEYS];
  poison(&k, c);
  for (int32_t s = 0; s < 2; s++) map_blocks(&k, s, s == 0 ? appended % CACHE_ORDERS : CACHE_ORDERS + s);
  for (int32_t s = 0; s < 2 && c->committed > 0; s++) {
    for (int32_t p = 0; p < c->committed; p++) before[p] = appended_row(s, p);
    run_rows(&k, c, d, 1, before, c->committed, NULL, 0, NULL);
  }
  int32_t numbers = make_batch(c->committed, appended, stage, rows, paths);
  float *together, *alone;
  run_rows(&k, c, d, 1, rows, B_ROWS, paths, numbers, &together);
  for (int32_t i = 0; i < B_ROWS; i++) {
    run_rows(&k, c, d, 1, &rows[i], 1, paths, numbers, &alone);
    if (memcmp(alone, together + i * q_row, (size_t)q_row * sizeof *alone) != 0)
      fail_msg("attention on %s: row %d of a batch gives other bits than alone", on->table->name, i);
    free(alone);
  }
  free_cache(&k);
  return together;
}

/* The same rows on every device, wherever in the pool a tree is staged. */
static void check_together(const attention_case *c, int32_t appended) {
  rows_data d = make_rows(c);
  size_t floats = (size_t)(B_ROWS * c->heads * c->head_dim);
  float *reference = NULL;
  for (int32_t i = 0; i < device_count; i++) {
    for (int32_t stage = 0; stage < 2 * OPS_TILE; stage += OPS_TILE) {
      float *y = attend_together(devices[OPS_MATH_F32][i], c, &d, appended, stage);
      if (!reference) reference = y;
      for (size_t k = 0; k < floats; k++) assert_true(isfinite(y[k]));
      assert_same(devices[OPS_MATH_F32][i], y, reference, floats * sizeof *y, "attention of a batch");
      if (y != reference) free(y);
    }
  }
  free(reference);
  free_rows(&d);
}

static void rows_attend_together(void **state) {
  (void)state;
  const attention_case cases[] = {
      {OPS_KV_F16, 9, 3, 64, 64, 50, 0, false, 0},  {OPS_KV_F32, 9, 3, 64, 64, 47, 0, false, 0},
      {OPS_KV_F16, 4, 4, 32, 32, 16, 0, false, 0},  {OPS_KV_F16, 14, 1, 16, 16, 33, 0, false, 0},
      {OPS_KV_F16, 8, 2, 128, 128, 1, 0, false, 0}, {OPS_KV_F16, 2, 1, 80, 80, 31, 0, false, 0},
      {OPS_KV_F16, 4, 2, 32, 32, 40, 0, true, 0},   {OPS_KV_F16, 9, 3, 64, 64, 50, 0, false, 7},
      {OPS_KV_F32, 4, 2, 32, 32, 40, 0, false, 33}, {OPS_KV_F16, 14, 1, 16, 16, 33, 0, false, 3},
      {OPS_KV_F16, 8, 2, 64, 64, 45, 0, false, 2},
  };
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
    for (int32_t appended = 0; appended <= B_ROWS; appended += 6) check_together(&cases[k], appended);
}

/* The int8 form of what attention writes, where heads fill blocks and where they do not. */
static void attention_writes_the_int8_form(void **state) {
  (void)state;
  const attention_case cases[] = {{OPS_KV_F16, 4, 2, 32, 32, 21, 0, false, 0},
                                  {OPS_KV_F16, 8, 4, 12, 12, 21, 0, false, 0}};
  for (int n = 0; n < 2; n++) {
    const attention_case *c = &cases[n];
    int32_t q_row = c->heads * c->head_dim;
    rows_data data = make_rows(c);
    matrix down = make_matrix(OPS_Q4_1, 32, q_row);
    for (int32_t i = 0; i < device_count; i++) {
      cache k = make_cache(devices[OPS_MATH_INT8][i], c, CACHE_CONTEXT);
      ops_row rows[CACHE_KEYS];
      map_in_order(&k, 0);
      for (int32_t p = 0; p < c->committed; p++) rows[p] = appended_row(0, p);
      device_act *y = act_of(k.d, c->committed, q_row, true, NULL),
                 *x = act_of(k.d, c->committed, q_row, true, NULL);
      run_rows_into(&k, c, &data, 1, rows, c->committed, NULL, 0, y);
      float *f32 = read_act(k.d, y, c->committed, q_row), *used = linear_of(k.d, &down, y, c->committed);
      k.d->table->act_write(k.d, x, c->committed, f32);
      float *expected = linear_of(k.d, &down, x, c->committed);
      assert_memory_equal(used, expected, (size_t)c->committed * 32 * sizeof *used);
      free(f32), free(used), free(expected);
      k.d->table->act_drop(k.d, x);
      k.d->table->act_drop(k.d, y);
      free_cache(&k);
    }
    free_matrix(&down);
    free_rows(&data);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rope_writes_the_angles_of_the_header),
      cmocka_unit_test(attention_agrees),
      cmocka_unit_test(rows_attend_together),
      cmocka_unit_test(attention_writes_the_int8_form),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
