/* libs: kernels : far emulated */
/* Ops of one row at a time, embed and norm, and the int8 form of activations: each device against the C
 * reference by memcmp, and the reference against the definitions. */
#include "tests/support/ops_devices.h"

static void embed_reads_rows_and_counts(void **state) {
  (void)state;
  enum { COLUMNS = 512 };
  for (int type = 0; type < OPS_TYPE_COUNT; type++) {
    matrix m = make_matrix((ops_type)type, 37, COLUMNS);
    for (int32_t i = 0; i < device_count; i++) {
      device *d = devices[type % 2][i];
      device_weight w = pack_matrix(d, &m);
      device_act *x = act_of(d, 3, COLUMNS, false, NULL);
      ops_row rows[] = {{.token = 36}, {.token = 0}, {.token = 17}};
      ops_counters before = d->counters;
      assert_true(d->table->begin(d, NULL, &(ops_batch){.rows = rows, .row_count = 3}));
      for (int32_t t = 0; t < 3; t++) rows[t].token = 1; /* the caller's again */
      d->table->embed(d, &w, x);
      end_rows(d);
      assert_int_equal(d->counters.forwards, before.forwards + 1);
      assert_int_equal(d->counters.rows, before.rows + 3);
      float *got = read_act(d, x, 3, COLUMNS);
      const int32_t tokens[] = {36, 0, 17};
      for (int32_t k = 0; k < 3 * COLUMNS; k++)
        assert_true(got[k] == (float)m.values[tokens[k / COLUMNS] * COLUMNS + k % COLUMNS]);
      free(got);
      d->table->act_drop(d, x);
      drop_weight(d, w);
    }
    free_matrix(&m);
  }
}

/* --- norm --- */

static const float norm_eps = 1e-5f;

/* Rows `index` of x, as the rows of the head; or its first rows. */
static float *run_norm(device *d, const float *x, const float *w, int32_t n, const int32_t *index) {
  device_act *in = act_of(d, 5, n, false, x), *out = act_of(d, 3, n, false, NULL);
  device_vector v = upload_floats(d, w, (size_t)n);
  const ops_row rows[5] = {{0}};
  ops_batch b = {.rows = rows, .row_count = index ? 5 : 3, .head_rows = index};
  b.head_count = b.logit_count = index ? 3 : 0;
  assert_true(d->table->begin(d, NULL, &b));
  d->table->norm(d, in, index != NULL, v, norm_eps, out);
  end_rows(d);
  float *y = read_act(d, out, 3, n);
  d->table->act_drop(d, in);
  d->table->act_drop(d, out);
  drop_vector(d, v);
  return y;
}

static void check_norm_values(const float *x, const float *w, int32_t n, const int32_t *index,
                              const float *y) {
  for (int32_t t = 0; t < 3; t++) {
    const float *row = x + (size_t)(index ? index[t] : t) * (size_t)n;
    double squares = 0;
    for (int32_t k = 0; k < n; k++) squares += (double)row[k] * (double)row[k];
    double scale = 1 / sqrt(squares / n + (double)norm_eps);
    for (int32_t k = 0; k < n; k++) {
      double expected = (double)row[k] * scale * (double)w[k];
      assert_near((double)y[t * n + k], expected, fabs(expected) * SUPPORT_F32_EPS * (n + 8), "norm");
    }
  }
}

static void norm_agrees(void **state) {
  (void)state;
  const int32_t columns[] = {1, 7, 8, 33, 576, 2048};
  const int32_t index[] = {4, 0, 2}, *const indices[] = {index, NULL};
  for (size_t c = 0; c < 2 * sizeof columns / sizeof columns[0]; c++) {
    int32_t n = columns[c / 2];
    float *x = random_floats((size_t)n * 5), *w = random_floats((size_t)n), *reference = NULL;
    for (int32_t i = 0; i < device_count; i++) {
      float *y = run_norm(devices[OPS_MATH_F32][i], x, w, n, indices[c % 2]);
      if (i == 0) check_norm_values(x, w, n, indices[c % 2], reference = y);
      assert_same(devices[OPS_MATH_F32][i], y, reference, (size_t)n * 3 * sizeof *x, "norm");
      if (i > 0) free(y);
    }
    free(reference);
    free(x);
    free(w);
  }
}

/* What cannot be told by its norm becomes no number, and not zeros. */
static void a_norm_beyond_numbers_is_none(void **state) {
  (void)state;
  enum { N = 33 };
  static const float kinds[] = {2e19f, 3e38f, INFINITY, NAN};
  float *w = random_floats(N), *x = random_floats((size_t)N * 5);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
    for (int32_t at = 0; at < N; at += 8) {
      float usual = x[N + at];
      x[N + at] = kinds[k]; /* of the second row */
      for (int32_t i = 0; i < device_count; i++) {
        float *y = run_norm(devices[OPS_MATH_F32][i], x, w, N, NULL);
        for (int32_t c = 0; c < 3 * N; c++)
          if (isnan(y[c]) != (c / N == 1))
            fail_msg("%s: %a at %d makes output %d %a", devices[OPS_MATH_F32][i]->table->name,
                     (double)kinds[k], at, c, (double)y[c]);
        free(y);
      }
      x[N + at] = usual;
    }
  free(w), free(x);
}

/* --- the int8 form --- */

enum { Q_ROWS = 6, Q_COLUMNS = 160, Q_FLOATS = Q_ROWS * Q_COLUMNS };

static void make_awkward(float *x) { /* one block each: zero, subnormal, huge, infinite, NaN */
  const float kinds[] = {0.0f, 1e-41f, 3e38f, INFINITY, NAN};
  for (int b = 0; b < 5; b++) {
    for (int i = 0; i < OPS_BLOCK; i++) x[b * OPS_BLOCK + i] = i % 3 ? kinds[b] : (float)(i - 16) * 1e-42f;
  }
}

/* What q8 and scale of an input should be, from the definition: x is about q8 * scale. */
static float quantised(const float *block, int i) {
  float largest = 0;
  for (int k = 0; k < OPS_BLOCK; k++) largest = fmaxf(largest, fabsf(block[k]));
  float inverse = largest > 0 ? 127 / largest : 0;
  float q = rintf(fminf(fmaxf(block[i] * inverse, -127), 127));
  return largest / 127 * q;
}

static bool same_number(float a, float b) { /* a NaN has no bits to agree on */
  return a == b || (isnan(a) && isnan(b));
}

static void the_int8_form_is_the_definitions(void **state) {
  (void)state;
  float *x = random_floats(Q_FLOATS);
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    device_act *in = act_of(d, Q_ROWS, Q_COLUMNS, true, x);
    float *shown = quantised_of(d, in, Q_ROWS, Q_COLUMNS);
    for (int32_t k = 0; k < Q_FLOATS; k++) {
      const float *block = x + k / OPS_BLOCK * OPS_BLOCK;
      if (shown[k] != quantised(block, k % OPS_BLOCK))
        fail_msg("%s: input %d is %a in int8, not %a", d->table->name, k, (double)shown[k],
                 (double)quantised(block, k % OPS_BLOCK));
    }
    free(shown);
    d->table->act_drop(d, in);
  }
  free(x);
}

/* Weights whose minima alone count: the sums of blocks show, those of awkward blocks too. */
static void awkward_blocks_agree(void **state) {
  (void)state;
  float x[Q_COLUMNS], *reference = NULL;
  make_awkward(x);
  for (int block = 0; block < 5; block++) {
    matrix m = make_matrix(OPS_Q4_1, 32, OPS_BLOCK);
    for (int32_t i = 0; i < device_count; i++) {
      device *d = devices[OPS_MATH_INT8][i];
      device_act *in = act_of(d, 1, OPS_BLOCK, true, x + block * OPS_BLOCK);
      float *y = linear_of(d, &m, in, 1);
      if (i == 0) reference = y;
      for (int r = 0; r < 32; r++)
        if (!same_number(y[r], reference[r]))
          fail_msg("%s: block %d gives %a, not %a", d->table->name, block, (double)y[r],
                   (double)reference[r]);
      if (i > 0) free(y);
      d->table->act_drop(d, in);
    }
    free(reference);
    free_matrix(&m);
  }
}

/* One input that is no number is enough, wherever it is: nothing is computed of the others alone. */
static void no_number_is_seen_in_the_int8_form(void **state) {
  (void)state;
  static const float kinds[] = {NAN, -NAN, INFINITY, -INFINITY};
  float *x = random_floats(OPS_BLOCK);
  matrix m = make_matrix(OPS_Q8_0, 32, OPS_BLOCK);
  for (int at = 0; at < 4 * OPS_BLOCK; at++) {
    float usual = x[at / 4];
    x[at / 4] = kinds[at % 4];
    for (int32_t i = 0; i < device_count; i++) {
      device *d = devices[OPS_MATH_INT8][i];
      device_act *in = act_of(d, 1, OPS_BLOCK, true, x);
      float *y = linear_of(d, &m, in, 1);
      for (int r = 0; r < 32; r++)
        if (isfinite(y[r]))
          fail_msg("%s: with %a at %d output %d is %a", d->table->name, (double)kinds[at % 4], at / 4, r,
                   (double)y[r]);
      free(y);
      d->table->act_drop(d, in);
    }
    x[at / 4] = usual;
  }
  free_matrix(&m);
  free(x);
}

/* The op that writes activations writes their int8 form: norm, linear, embed. */
static void every_op_writes_the_int8_form(void **state) {
  (void)state;
  enum { N = 64 };
  matrix m = make_matrix(OPS_F32, 40, N), down = make_matrix(OPS_Q4_1, 32, N);
  matrix square = make_matrix(OPS_F32, N, N);
  float *w = random_floats(N), *in = random_floats(2 * N), *reference[3] = {0};
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    device_weight table = pack_matrix(d, &m), times = pack_matrix(d, &square);
    device_vector v = upload_floats(d, w, N);
    device_act *x = act_of(d, 2, N, true, in), *y[3];
    for (int k = 0; k < 3; k++) y[k] = act_of(d, 2, N, true, NULL);
    begin_rows(d, 2);
    d->table->norm(d, x, false, v, norm_eps, y[0]);
    d->table->linear(d, &(device_linear){.w = times, .y = y[1]}, 1, x);
    d->table->embed(d, &table, y[2]);
    end_rows(d);
    for (int k = 0; k < 3; k++) {
      float *written = read_act(d, y[k], 2, N), *used = linear_of(d, &down, y[k], 2);
      d->table->act_write(d, x, 2, written);
      float *expected = linear_of(d, &down, x, 2);
      assert_memory_equal(used, expected, 2 * 32 * sizeof *used);
      if (i == 0) reference[k] = expected;
      assert_same(d, used, reference[k], 2 * 32 * sizeof *used, "int8 form");
      free(written), free(used);
      if (i > 0) free(expected);
      d->table->act_drop(d, y[k]);
    }
    d->table->act_drop(d, x);
    drop_weight(d, table);
    drop_weight(d, times);
    drop_vector(d, v);
  }
  for (int k = 0; k < 3; k++) free(reference[k]);
  free(w), free(in);
  free_matrix(&m);
  free_matrix(&down);
  free_matrix(&square);
}

/* --- the rest of the table --- */

static void square_of(void *context, int32_t i) {
  ((int32_t *)context)[i] = i * i;
}

static void host_threads_take_any_work(void **state) {
  (void)state;
  for (int32_t i = 0; i < device_count; i++) {
    int32_t squares[1000];
    device *d = devices[OPS_MATH_INT8][i];
    d->table->parallel(d, 1000, square_of, squares);
    for (int32_t k = 0; k < 1000; k++) assert_int_equal(squares[k], k * k);
    const int32_t widths[] = {1, 2, 3, 4, 8, 17, 64};
    for (size_t w = 0; w < 7; w++) {
      assert_true(d->table->width(d, widths[w]) >= widths[w]);
      print_message("%d rows: %s\n", widths[w], d->table->variant(d, widths[w]));
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(embed_reads_rows_and_counts),
      cmocka_unit_test(norm_agrees),
      cmocka_unit_test(the_int8_form_is_the_definitions),
      cmocka_unit_test(awkward_blocks_agree),
      cmocka_unit_test(every_op_writes_the_int8_form),
      cmocka_unit_test(host_threads_take_any_work),
      cmocka_unit_test(a_norm_beyond_numbers_is_none),
      cmocka_unit_test(no_number_is_seen_in_the_int8_form),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
