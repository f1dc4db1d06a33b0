/* libs: kernels */
/* The quantised weight types against the PyPI package `gguf` (tests/golden/make_dequant.py): what `embed`
 * reads out of a packed matrix is what the package says, bit for bit, and so are the weights that f32 math
 * multiplies with. */
#include "kernels/ops.h"
#include "tests/quant_blocks.h"
#include "tests/activations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

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
  snprintf(path, sizeof path, TANDEM_SOURCE_DIR "/tests/golden/dequant/%s.bin", t->name);
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

static void check_embed(ops *o, const quant_type *t, const golden *g, const ops_weight *w) {
  float *row = malloc(g->head[1] * sizeof *row);
  for (uint32_t r = 0; r < g->head[0]; r++) {
    o->table->embed(o, &(ops_row){.token = (int32_t)r}, 1, w, row);
    for (uint32_t k = 0; k < g->head[1]; k++) {
      float expected = g->values[r * g->head[1] + k];
      if (!same_bits(row[k], expected))
        fail_msg("%s: row %u, weight %u is %a, not %a", t->name, r, k, (double)row[k], (double)expected);
    }
  }
  free(row);
}

/* Rows of x that are 1 at one input and 0 elsewhere: the outputs are that input's weights, but for the sign
 * of a zero, and where infinities or NaNs meet the zeros. */
static void check_linear(ops *o, const quant_type *t, const golden *g, const ops_weight *w) {
  size_t columns = g->head[1], rows = g->head[0];
  ops_act x = {.columns = (int32_t)columns, .f32 = calloc(columns * columns, sizeof(float))};
  float *y = malloc(columns * rows * sizeof *y);
  for (size_t k = 0; k < columns; k++) x.f32[k * columns + k] = 1.0f;
  o->table->linear(o, &(ops_linear){.w = w, .y = y}, 1, &x, (int32_t)columns);
  for (size_t r = 0; r < rows; r++) {
    bool finite = true;
    for (size_t k = 0; k < columns; k++) finite = finite && isfinite(g->values[r * columns + k]);
    for (size_t k = 0; k < columns && finite; k++) {
      if (y[k * rows + r] != g->values[r * columns + k])
        fail_msg("%s, %s: f32 math has another weight %zu of row %zu", t->name, o->table->name, k, r);
    }
  }
  free(y);
  free(x.f32);
}

/* Whatever a file holds, int8 math ends as well. */
static void run_int8(ops *o, const golden *g, const ops_weight *w) {
  size_t columns = g->head[1], rows = g->head[0], blocks = columns / OPS_BLOCK;
  ops_act x = {.columns = (int32_t)columns,
               .f32 = calloc(columns, sizeof(float)),
               .q8 = malloc(columns),
               .scale = malloc(blocks * sizeof *x.scale),
               .sum = malloc(blocks * sizeof *x.sum),
               .total = malloc(blocks * sizeof *x.total)};
  float y[ROWS_MAX];
  for (size_t k = 0; k < columns; k++) x.f32[k] = (float)(k % 7) - 3.0f;
  quantize_rows(o, &x, 1);
  o->table->linear(o, &(ops_linear){.w = w, .y = y}, 1, &x, 1);
  for (size_t r = 0; r < rows; r++) {
    double sum = 0;
    for (size_t k = 0; k < columns; k++) sum += (double)g->values[r * columns + k] * (double)x.f32[k];
    assert_int_equal(isfinite(sum), isfinite((double)y[r]));
  }
  free(x.f32);
  free(x.q8);
  free(x.scale);
  free(x.sum);
  free(x.total);
}

static void check_type(ops *o, const quant_type *t) {
  golden g = read_golden(t);
  int32_t rows = (int32_t)g.head[0], columns = (int32_t)g.head[1];
  void *data = aligned_alloc(64, o->table->packed_bytes(t->type, rows, columns));
  o->table->pack(t->type, rows, columns, g.file, data, 0, 1);
  const ops_weight w = {t->type, rows, columns, data};
  check_embed(o, t, &g, &w);
  check_linear(o, t, &g, &w);
  run_int8(o, &g, &w);
  free(data);
  free(g.file);
  free(g.values);
}

static void every_type_on_every_isa(void **state) {
  (void)state;
  for (int isa = 0; isa < OPS_CPU_ISA_COUNT; isa++) {
    ops *o = ops_cpu_has((ops_cpu_isa)isa) ? ops_cpu_open((ops_cpu_isa)isa, 1) : NULL;
    for (size_t i = 0; i < QUANT_TYPE_COUNT && o; i++) check_type(o, &QUANT_TYPES[i]);
    if (o) o->table->close(o);
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_type_on_every_isa),
                                     cmocka_unit_test(the_tests_definitions_agree)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
