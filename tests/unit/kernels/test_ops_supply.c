/* libs: kernels : far emulated */
/* Rows that come from the host (supply) and rows that it reads (capture), on each device. */
#include "tests/support/ops_devices.h"

enum { ROWS = 300, COLUMNS = 96, OUTPUTS = 40, NARROW = 5, CAPTURED = 3 };

static void begin_captured(device *d, int32_t rows, const int32_t *captured, int32_t count) {
  ops_row r[SUPPORT_ROWS];
  int32_t copy[SUPPORT_ROWS];
  for (int32_t i = 0; i < rows; i++) r[i] = (ops_row){.position = i, .length = i + 1};
  if (count > 0) memcpy(copy, captured, (size_t)count * sizeof *copy);
  const ops_batch b = {.rows = r, .row_count = rows, .capture_rows = copy, .capture_count = count};
  assert_true(d->table->begin(d, NULL, &b));
  memset(copy, 0xff, sizeof copy); /* the caller's again */
}

/* The caller's memory is its own again when the call returns: it is overwritten. */
static void supply(device *d, const float *x, int32_t rows, int32_t columns, device_act *y) {
  size_t n = (size_t)rows * (size_t)columns;
  float *copy = malloc(n * sizeof *copy);
  memcpy(copy, x, n * sizeof *copy);
  d->table->supply(d, copy, y);
  for (size_t i = 0; i < n; i++) copy[i] = 7;
  free(copy);
}

/* --- supply --- */

/* Of different lengths, one after the other, so that room grows and is used again; two in one forward. */
static void a_linear_reads_what_was_supplied(void **state) {
  (void)state;
  const int32_t counts[] = {3, 1, ROWS, 2};
  matrix m = make_matrix(OPS_Q8_0, OUTPUTS, COLUMNS);
  float *x = random_floats(ROWS * COLUMNS), *before = random_floats(ROWS * OUTPUTS);
  for (int32_t i = 0; i < 2 * device_count; i++) {
    device *d = devices[i % 2][i / 2];
    device_weight w = pack_matrix(d, &m);
    device_act *in = act_of(d, ROWS, COLUMNS, true, NULL), *y = act_of(d, ROWS, OUTPUTS, false, NULL);
    device_act *written = act_of(d, ROWS, COLUMNS, true, x);
    for (int32_t k = 0; k < 4; k++) {
      d->table->act_write(d, y, ROWS, before);
      begin_rows(d, counts[k]);
      d->table->linear(d, &(device_linear){.w = w, .y = y, .add = true}, 1, written);
      end_rows(d);
      float *expected = read_act(d, y, counts[k], OUTPUTS);
      begin_rows(d, counts[k]);
      supply(d, x, counts[k], COLUMNS, in);
      supply(d, before, counts[k], OUTPUTS, y);
      d->table->linear(d, &(device_linear){.w = w, .y = y, .add = true}, 1, in);
      end_rows(d);
      float *got = read_act(d, y, counts[k], OUTPUTS);
      assert_memory_equal(got, expected, (size_t)counts[k] * OUTPUTS * sizeof *got);
      free(got);
      free(expected);
    }
    d->table->act_drop(d, in);
    d->table->act_drop(d, written);
    d->table->act_drop(d, y);
    drop_weight(d, w);
  }
  free(x);
  free(before);
  free_matrix(&m);
}

/* An op sees what was there when it was called: activations may be supplied twice in a forward. */
static void supplies_keep_their_order(void **state) {
  (void)state;
  float *x[] = {random_floats(ROWS * COLUMNS), random_floats(ROWS * COLUMNS)};
  const int32_t all[] = {0, ROWS - 1};
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    device_act *a = act_of(d, ROWS, COLUMNS, true, NULL);
    begin_captured(d, ROWS, all, 2);
    for (int32_t k = 0; k < 2; k++) {
      supply(d, x[k], ROWS, COLUMNS, a);
      d->table->capture(d, a);
    }
    end_rows(d);
    for (int32_t k = 0; k < 4; k++)
      assert_memory_equal(d->table->captured(d, k / 2, k % 2), x[k / 2] + all[k % 2] * COLUMNS,
                          COLUMNS * sizeof **x);
    d->table->act_drop(d, a);
  }
  free(x[0]);
  free(x[1]);
}

/* --- capture --- */

static void check_captured(device *d, int32_t capture, const int32_t *rows, int32_t count, const float *x,
                           int32_t columns) {
  for (int32_t line = 0; line < count; line++)
    assert_memory_equal(d->table->captured(d, capture, line), x + rows[line] * columns,
                        (size_t)columns * sizeof *x);
}

/* Rows in any order, of activations of different widths, before and after they are changed; then more of
 * them, and fewer. */
static void captured_rows_are_those_that_the_batch_lists(void **state) {
  (void)state;
  const int32_t some[CAPTURED] = {2, 0, 4}, last[] = {6};
  int32_t many[ROWS];
  float *x = random_floats(ROWS * COLUMNS), *narrow = random_floats(ROWS * NARROW);
  for (int32_t i = 0; i < ROWS; i++) many[i] = ROWS - 1 - i;
  const struct {
    const int32_t *rows, count, row_count;
  } lists[] = {{some, CAPTURED, 5}, {many, ROWS, ROWS}, {last, 1, 7}, {some, CAPTURED, 6}};
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_F32][i];
    device_act *a = act_of(d, ROWS, COLUMNS, false, NULL), *b = act_of(d, ROWS, NARROW, false, NULL);
    for (int32_t k = 0; k < 4; k++) {
      begin_captured(d, lists[k].row_count, lists[k].rows, lists[k].count);
      supply(d, x, lists[k].row_count, COLUMNS, a);
      supply(d, narrow, lists[k].row_count, NARROW, b);
      d->table->capture(d, a);
      d->table->capture(d, b);
      supply(d, narrow, lists[k].row_count, NARROW, b);
      end_rows(d);
      check_captured(d, 0, lists[k].rows, lists[k].count, x, COLUMNS);
      check_captured(d, 1, lists[k].rows, lists[k].count, narrow, NARROW);
    }
    d->table->act_drop(d, a);
    d->table->act_drop(d, b);
  }
  free(x);
  free(narrow);
}

/* A GPU may do a norm on the way to the linears, but not one that is captured. */
static void a_norm_is_captured_although_a_linear_reads_it(void **state) {
  (void)state;
  const int32_t rows[CAPTURED] = {0, 2, 1};
  matrix m = make_matrix(OPS_Q8_0, OUTPUTS, COLUMNS);
  float *x = random_floats(CAPTURED * COLUMNS), *v = random_floats(COLUMNS), *reference = NULL;
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    device_weight w = pack_matrix(d, &m);
    device_vector norm = upload_floats(d, v, COLUMNS);
    device_act *in = act_of(d, CAPTURED, COLUMNS, false, x), *y = act_of(d, CAPTURED, COLUMNS, true, NULL);
    device_act *z = act_of(d, CAPTURED, OUTPUTS, false, NULL);
    begin_captured(d, CAPTURED, rows, CAPTURED);
    d->table->norm(d, in, false, norm, 1e-5f, y);
    d->table->capture(d, y);
    d->table->linear(d, &(device_linear){.w = w, .y = z}, 1, y);
    d->table->norm(d, in, false, norm, 1e-5f, y);
    end_rows(d);
    float *normed = read_act(d, y, CAPTURED, COLUMNS);
    if (i == 0) reference = normed;
    check_captured(d, 0, rows, CAPTURED, reference, COLUMNS);
    if (i > 0) free(normed);
    d->table->act_drop(d, in);
    d->table->act_drop(d, y);
    d->table->act_drop(d, z);
    drop_vector(d, norm);
    drop_weight(d, w);
  }
  free(reference);
  free(x);
  free(v);
  free_matrix(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_linear_reads_what_was_supplied),
      cmocka_unit_test(supplies_keep_their_order),
      cmocka_unit_test(captured_rows_are_those_that_the_batch_lists),
      cmocka_unit_test(a_norm_is_captured_although_a_linear_reads_it),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
