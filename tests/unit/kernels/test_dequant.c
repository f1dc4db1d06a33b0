/* libs: kernels : emulated */
/* The quantised weight types against the PyPI package `gguf` (tests/golden/make_dequant.py): what `embed`
 * reads out of a packed matrix is what the package says, bit for bit, and so are the weights that f32 math
 * multiplies with. */
#include "tests/support/ops_devices.h"
#include "tests/support/source_folder.h"

#define ROWS_MAX 16

typedef struct golden {
  uint32_t head[3]; /* rows, columns, bytes of a row */
  uint8_t *file;
  float *values;
} golden;

static void read_all(FILE *f, void *to, size_t bytes) {
  if (!to || fread(to, 1, bytes, f) != bytes) fail_msg("a golden file is cut short");
}

static golden read_golden(const quant_type *t) {
  char path[512];
  golden g;
  snprintf(path, sizeof path, "%s/tests/golden/dequant/%s.bin", source_folder(), t->name);
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("%s is missing", path);
  read_all(f, g.head, sizeof g.head);
  assert_true(g.head[0] > 0 && g.head[0] <= ROWS_MAX && g.head[1] > 0 && g.head[1] % OPS_UNIT == 0);
  assert_int_equal(g.head[2], g.head[1] / (uint32_t)t->inputs * (uint32_t)t->bytes);
  size_t file_bytes = (size_t)g.head[0] * g.head[2],
         value_bytes = (size_t)g.head[0] * g.head[1] * sizeof(float);
  g.file = malloc(file_bytes);
  g.values = malloc(value_bytes);
  read_all(f, g.file, file_bytes);
  read_all(f, g.values, value_bytes);
  assert_int_equal(fgetc(f), EOF);
  fclose(f);
  return g;
}

static bool same_bits(float a, float b) { /* a NaN is as good as another */
  return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void check_embed(device *d, const quant_type *t, const golden *g, const matrix *m) {
  ops_row rows[ROWS_MAX];
  device_weight w = pack_matrix(d, m);
  device_act *x = act_of(d, m->rows, m->columns, false, NULL);
  for (int32_t r = 0; r < m->rows; r++) rows[r] = (ops_row){.token = r};
  assert_true(d->table->begin(d, NULL, &(ops_batch){.rows = rows, .row_count = m->rows}));
  d->table->embed(d, &w, x);
  end_rows(d);
  float *got = read_act(d, x, m->rows, m->columns);
  for (int32_t k = 0; k < m->rows * m->columns; k++) {
    if (!same_bits(got[k], g->values[k]))
      fail_msg("%s, %s: row %d, weight %d is %a, not %a", t->name, d->table->name, k / m->columns,
               k % m->columns, (double)got[k], (double)g->values[k]);
  }
  free(got);
  d->table->act_drop(d, x);
  drop_weight(d, w);
}

/* Rows of x that are 1 at one input and 0 elsewhere: the outputs are that input's weights, but for the sign
 * of a zero, and where infinities or NaNs meet the zeros. */
static void check_linear(device *d, const quant_type *t, const golden *g, const matrix *m) {
  size_t columns = g->head[1], rows = g->head[0];
  float *ones = calloc(columns * columns, sizeof *ones);
  for (size_t k = 0; k < columns; k++) ones[k * columns + k] = 1.0f;
  device_act *x = act_of(d, (int32_t)columns, (int32_t)columns, true, ones);
  float *y = linear_of(d, m, x, (int32_t)columns);
  for (size_t r = 0; r < rows; r++) {
    bool finite = true;
    for (size_t k = 0; k < columns; k++) finite = finite && isfinite(g->values[r * columns + k]);
    for (size_t k = 0; k < columns && finite; k++) {
      if (y[k * rows + r] != g->values[r * columns + k])
        fail_msg("%s, %s: f32 math has another weight %zu of row %zu", t->name, d->table->name, k, r);
    }
  }
  d->table->act_drop(d, x);
  free(y);
  free(ones);
}

/* Whatever a file holds, int8 math ends as well. */
static void run_int8(device *d, const golden *g, const matrix *m) {
  size_t columns = g->head[1], rows = g->head[0];
  float *values = malloc(columns * sizeof *values);
  for (size_t k = 0; k < columns; k++) values[k] = (float)(k % 7) - 3.0f;
  device_act *x = act_of(d, 1, (int32_t)columns, true, values);
  float *y = linear_of(d, m, x, 1);
  for (size_t r = 0; r < rows; r++) {
    double sum = 0;
    for (size_t k = 0; k < columns; k++) sum += (double)g->values[r * columns + k] * (double)values[k];
    assert_int_equal(isfinite(sum), isfinite((double)y[r]));
  }
  d->table->act_drop(d, x);
  free(y);
  free(values);
}

static void every_type_on_every_device(void **state) {
  (void)state;
  for (size_t i = 0; i < QUANT_TYPE_COUNT; i++) {
    golden g = read_golden(&QUANT_TYPES[i]);
    const matrix m = {QUANT_TYPES[i].type, (int32_t)g.head[0], (int32_t)g.head[1], g.file, NULL};
    for (int32_t k = 0; k < device_count; k++) {
      check_embed(devices[OPS_MATH_F32][k], &QUANT_TYPES[i], &g, &m);
      check_linear(devices[OPS_MATH_F32][k], &QUANT_TYPES[i], &g, &m);
      run_int8(devices[OPS_MATH_INT8][k], &g, &m);
    }
    free(g.file);
    free(g.values);
  }
}

/* The definitions that the tests of the ops use are right too. */
static void the_tests_definitions_agree(void **state) {
  (void)state;
  for (size_t i = 0; i < QUANT_TYPE_COUNT; i++) {
    const quant_type *t = &QUANT_TYPES[i];
    golden g = read_golden(t);
    for (uint32_t k = 0; k < g.head[0] * g.head[1]; k++) {
      if (!isfinite(g.values[k])) continue;
      const uint8_t *block = g.file + k / (uint32_t)t->inputs * (uint32_t)t->bytes;
      assert_true((float)quant_value(t, block, (int)(k % (uint32_t)t->inputs)) == g.values[k]);
    }
    free(g.file);
    free(g.values);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_type_on_every_device),
                                     cmocka_unit_test(the_tests_definitions_agree)};
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
