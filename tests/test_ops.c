/* libs: model */
/* Every op: each instruction set that this processor has against the C reference by memcmp; the C reference
 * against plain computations in double, written here from the definitions, within the error that f32 (or
 * int8) must make. */
#include "common/model/rope.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/cpu_math.h"
#include "kernels/ops.h"
#include "tests/activations.h"
#include "tests/quant_blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define F32_EPS   0x1p-24
#define ROUNDINGS 16 /* of a long sum: they cancel, the worst case does not happen */
#define THREADS   3
#define ROWS_MAX  33 /* two full tiles of the widest kernel and a row more */
#define GUARD     64 /* bytes after an output that nobody may touch */

static uint32_t random_state = 1;

static uint32_t random_bits(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}

static float random_float(void) {
  return ((float)random_bits() / 0x1p23f - 1.0f) * 2.0f;
} /* [-2, 2) */

static float *random_floats(size_t n) {
  float *x = malloc(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = random_float();
  return x;
}

/* The devices under test, one for each instruction set that this processor has: [0] is the reference. */
#define DEVICES_MAX OPS_CPU_ISA_COUNT
static ops *devices[DEVICES_MAX];
static int32_t device_count;

static int open_devices(void **state) {
  (void)state;
  const char *const names[OPS_CPU_ISA_COUNT] = {[OPS_CPU_C] = "C",
                                                [OPS_CPU_AVX2] = "AVX2",
                                                [OPS_CPU_AVX_VNNI] = "AVX-VNNI",
                                                [OPS_CPU_AVX512] = "AVX-512"};
  device_count = 0;
  for (int isa = 0; isa < OPS_CPU_ISA_COUNT; isa++) {
    if (!ops_cpu_has((ops_cpu_isa)isa)) {
      print_message("not tested, this processor lacks it: %s\n", names[isa]);
      continue;
    }
    ops *o = ops_cpu_open((ops_cpu_isa)isa, isa == OPS_CPU_C ? 1 : THREADS);
    if (!o) return -1;
    devices[device_count++] = o;
  }
  return device_count > 0 && strcmp(devices[0]->table->name, "c") == 0 ? 0 : -1;
}

static int close_devices(void **state) {
  (void)state;
  for (int32_t i = 0; i < device_count; i++) devices[i]->table->close(devices[i]);
  return 0;
}

/* What device i computed is what the reference did. */
static void assert_same(int32_t i, const void *got, const void *reference, size_t bytes, const char *what) {
  if (memcmp(got, reference, bytes) != 0)
    fail_msg("%s: %s differs from the C reference", what, devices[i]->table->name);
}

static void assert_near(double got, double expected, double bound, const char *what) {
  if (!(fabs(got - expected) <= bound))
    fail_msg("%s: %.9g instead of %.9g, bound %.3g", what, got, expected, bound);
}

/* --- linear --- */

/* A weight in its file form with the values that the form stands for. */
typedef struct matrix {
  ops_type type;
  int32_t rows, columns;
  uint8_t *file;
  double *values;
} matrix;

static double half_value(uint16_t h) { /* from IEEE 754's definition of binary16 */
  int exponent = h >> 10 & 31, fraction = h & 1023;
  double v = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
  return h & 0x8000 ? -v : v;
}

/* Small positive or negative scales, subnormal ones among them. */
static uint16_t random_half(void) {
  return (uint16_t)((random_bits() & 0x83ff) | (random_bits() % 13) << 10);
}

static size_t fill_plain(ops_type type, uint8_t *at, double *value) {
  uint32_t bits;
  float f = random_float();
  memcpy(&bits, &f, 4);
  if (type == OPS_F32) {
    memcpy(at, &f, 4);
    *value = f;
    return 4;
  }
  uint16_t h = type == OPS_BF16 ? (uint16_t)(bits >> 16) : random_half();
  memcpy(at, &h, 2);
  bits = (uint32_t)h << 16;
  memcpy(&f, &bits, 4);
  *value = type == OPS_BF16 ? (double)f : half_value(h);
  return 2;
}

static matrix make_matrix(ops_type type, int32_t rows, int32_t columns) {
  size_t n = (size_t)rows * (size_t)columns;
  matrix m = {type, rows, columns, malloc(n * 4), malloc(n * sizeof(double))};
  uint8_t *at = m.file;
  const quant_type *t = quant_type_of(type);
  for (size_t i = 0; i < n && !t; i++) at += fill_plain(type, at, m.values + i);
  for (size_t i = 0; i < n && t; i += (size_t)t->inputs, at += t->bytes) {
    quant_fill(t, at, random_bits, 0);
    for (int k = 0; k < t->inputs; k++) m.values[i + (size_t)k] = quant_value(t, at, k);
  }
  return m;
}

static void free_matrix(matrix *m) {
  free(m->file);
  free(m->values);
}

static ops_weight pack_matrix(const ops *o, const matrix *m) {
  size_t bytes = o->table->packed_bytes(m->type, m->rows, m->columns);
  int32_t groups = (m->rows + OPS_GROUP - 1) / OPS_GROUP;
  void *data = aligned_alloc(64, bytes);
  o->table->pack(m->type, m->rows, m->columns, m->file, data, 0, groups / 2);
  o->table->pack(m->type, m->rows, m->columns, m->file, data, groups / 2, groups);
  return (ops_weight){m->type, m->rows, m->columns, data};
}

static void free_weight(ops_weight *w) {
  free((void *)(uintptr_t)w->data);
}

static ops_act make_act(int32_t rows, int32_t columns, bool int8) {
  size_t n = (size_t)rows * (size_t)columns;
  ops_act a = {.columns = columns, .f32 = random_floats(n)};
  if (int8 && columns % OPS_BLOCK == 0) {
    a.q8 = calloc(n, 1);
    a.scale = calloc(n / OPS_BLOCK, 4);
    a.sum = calloc(n / OPS_BLOCK, 4);
    a.total = calloc(n / OPS_BLOCK, sizeof *a.total);
  }
  return a;
}

static void free_act(ops_act *a) {
  free(a->f32);
  free(a->q8);
  free(a->scale);
  free(a->sum);
  free(a->total);
}

/* |error| of one output: f32 rounding of every step, and half a step of every quantised activation. */
static double linear_bound(const matrix *m, int32_t out, const ops_act *x, int32_t row, bool int8) {
  double bound = 0;
  for (int32_t k = 0; k < m->columns; k++) {
    size_t at = (size_t)row * (size_t)m->columns + (size_t)k;
    double w = fabs(m->values[(size_t)out * (size_t)m->columns + (size_t)k]);
    /* where there are minima, two parts may cancel: bound their sizes, which are below 4 */
    bound += (w + 4) * (fabs((double)x->f32[at]) + 1) * F32_EPS * ROUNDINGS;
    if (int8) bound += w * 0.5 * (double)x->scale[at / OPS_BLOCK];
  }
  return bound;
}

static void check_linear_values(const matrix *m, const ops_act *x, int32_t count, const float *y,
                                const float *before, const float *bias, bool int8) {
  for (int32_t t = 0; t < count; t++) {
    for (int32_t r = 0; r < m->rows; r++) {
      size_t at = (size_t)t * (size_t)m->rows + (size_t)r;
      double sum = (before ? (double)before[at] : 0) + (bias ? (double)bias[r] : 0);
      for (int32_t k = 0; k < m->columns; k++) {
        sum += m->values[(size_t)r * (size_t)m->columns + (size_t)k] *
               (double)x->f32[(size_t)t * (size_t)m->columns + (size_t)k];
      }
      assert_near((double)y[at], sum, linear_bound(m, r, x, t, int8), "linear");
    }
  }
}

typedef struct linear_case {
  ops_type type;
  bool int8, add;
  int32_t rows, columns, count;
  bool bias;
} linear_case;

static void check_linear(const linear_case *c) {
  matrix m = make_matrix(c->type, c->rows, c->columns), second = make_matrix(c->type, 24, c->columns);
  ops_act x = make_act(ROWS_MAX, c->columns, c->int8);
  size_t n = (size_t)c->count * (size_t)c->rows, n2 = (size_t)c->count * 24;
  float *before = random_floats(n), *bias = random_floats((size_t)c->rows), *y[DEVICES_MAX], *y2[DEVICES_MAX];
  for (int32_t i = 0; i < device_count; i++) {
    ops *o = devices[i];
    ops_weight w = pack_matrix(o, &m), w2 = pack_matrix(o, &second);
    y[i] = malloc(n * sizeof *y[i] + GUARD);
    y2[i] = calloc(n2, sizeof *y2[i]);
    memcpy(y[i], before, n * sizeof *before);
    memset((uint8_t *)y[i] + n * sizeof *before, 0x5a, GUARD);
    quantize_rows(o, &x, c->count);
    const ops_linear jobs[] = {{&w2, y2[i], false, NULL}, {&w, y[i], c->add, c->bias ? bias : NULL}};
    o->table->linear(o, jobs, 2, &x, c->count);
    for (int g = 0; g < GUARD; g++) assert_int_equal(((uint8_t *)y[i])[n * sizeof *before + (size_t)g], 0x5a);
    free_weight(&w);
    free_weight(&w2);
  }
  bool quantised = c->int8 && quant_type_of(c->type);
  check_linear_values(&m, &x, c->count, y[0], c->add ? before : NULL, c->bias ? bias : NULL, quantised);
  check_linear_values(&second, &x, c->count, y2[0], NULL, NULL, quantised);
  for (int32_t i = 1; i < device_count; i++) {
    assert_same(i, y[i], y[0], n * sizeof *before, "linear");
    assert_same(i, y2[i], y2[0], n2 * sizeof *before, "linear, first matrix");
  }
  for (int32_t i = 0; i < device_count; i++) free(y[i]), free(y2[i]);
  free(before);
  free(bias);
  free_act(&x);
  free_matrix(&m);
  free_matrix(&second);
}

static bool is_wide(ops_type type) {
  const quant_type *t = quant_type_of(type);
  return t && t->inputs == OPS_UNIT;
}

static void linear_agrees(void **state) {
  (void)state;
  const int32_t rows[] = {1, 16, 37, 64}, columns[] = {32, 96, 576}, counts[] = {1, 2, 3, 4, 7, 16, ROWS_MAX};
  const int32_t units[] = {256, 768}; /* columns of the types with units of 256 */
  int cases = 0;
  for (int type = 0; type < OPS_TYPE_COUNT; type++) {
    bool wide = is_wide((ops_type)type);
    for (int int8 = 0; int8 < 2; int8++) {
      for (size_t r = 0; r < 4; r++) {
        for (size_t k = 0; k < (wide ? 2 : 3); k++) {
          for (size_t n = 0; n < 7; n++, cases++) {
            int32_t width = wide ? units[k] : columns[k];
            check_linear(
                &(linear_case){(ops_type)type, int8, cases % 2, rows[r], width, counts[n], cases % 3 == 1});
          }
        }
      }
    }
  }
  for (int type = 0; type < OPS_TYPE_COUNT; type++) { /* tiles of every size */
    int32_t width = is_wide((ops_type)type) ? 512 : 96;
    for (int32_t count = 1; count <= ROWS_MAX; count++, cases++)
      check_linear(
          &(linear_case){(ops_type)type, cases % 3 != 0, cases % 2, 37, width, count, cases % 5 == 0});
  }
  check_linear(&(linear_case){OPS_F32, true, false, 5, 7, 3, true}); /* columns that fill no block */
  check_linear(&(linear_case){OPS_F16, false, true, 40, 33, 4, false});
  check_linear(&(linear_case){OPS_Q4_1, true, false, 16, 1536, 8, true});
}

/* --- the order of a linear's sum, to the bit --- */

/* Inputs [from, to) are part i of a sum over so many: blocks [i * blocks / 4, (i + 1) * blocks / 4). */
static void part_of(int32_t columns, int32_t i, int32_t *from, int32_t *to) {
  int32_t blocks = (columns + 31) / 32;
  *from = i * blocks / 4 * 32;
  *to = i == 3 ? columns : (i + 1) * blocks / 4 * 32;
}

static float chain(const matrix *m, int32_t out, const float *x, int32_t from, int32_t to) {
  float sum = 0;
  const double *w = m->values + (size_t)out * (size_t)m->columns;
  for (int32_t k = from; k < to; k++) sum = fmaf((float)w[k], x[k], sum);
  return sum;
}

/* f32 math, by the definition of numerics version 2. */
static float defined_sum(const matrix *m, int32_t out, const float *x) {
  float part[4];
  if (m->columns < 1024 || m->rows > 16384) return chain(m, out, x, 0, m->columns);
  for (int32_t i = 0, from, to; i < 4; i++) {
    part_of(m->columns, i, &from, &to);
    part[i] = chain(m, out, x, from, to);
  }
  return (part[0] + part[1]) + (part[2] + part[3]);
}

/* y = m * x on device i; x's int8 form is made anew. */
static void multiply(int32_t i, const matrix *m, ops_act *x, int32_t count, float *y) {
  ops_weight w = pack_matrix(devices[i], m);
  quantize_rows(devices[i], x, count);
  devices[i]->table->linear(devices[i], &(ops_linear){.w = &w, .y = y}, 1, x, count);
  free_weight(&w);
}

static void check_f32_order(ops_type type, int32_t rows, int32_t columns, int32_t count) {
  matrix m = make_matrix(type, rows, columns);
  ops_act x = make_act(count, columns, false);
  float *y = malloc((size_t)count * (size_t)rows * sizeof *y);
  for (int32_t i = 0; i < device_count; i++) {
    multiply(i, &m, &x, count, y);
    for (int32_t at = 0; at < count * rows; at++) {
      float expected = defined_sum(&m, at % rows, x.f32 + at / rows * columns);
      if (memcmp(&y[at], &expected, sizeof expected) != 0)
        fail_msg("%s: type %d, %d x %d, %d rows: %.9g is not the defined sum %.9g", devices[i]->table->name,
                 (int)type, rows, columns, count, (double)y[at], (double)expected);
    }
  }
  free(y);
  free_act(&x);
  free_matrix(&m);
}

/* With all inputs but part i zero, an output is the sum of part i. */
static void multiply_part(int32_t device, const matrix *m, const ops_act *x, int32_t i, int32_t count,
                          float *y) {
  int32_t from, to;
  size_t columns = (size_t)m->columns;
  ops_act one = make_act(count, m->columns, true);
  part_of(m->columns, i, &from, &to);
  memset(one.f32, 0, (size_t)count * columns * sizeof *one.f32);
  for (size_t t = 0; t < (size_t)count; t++)
    memcpy(one.f32 + t * columns + from, x->f32 + t * columns + from, (size_t)(to - from) * sizeof *x->f32);
  multiply(device, m, &one, count, y);
  free_act(&one);
}

static void check_int8_order(ops_type type, int32_t rows, int32_t columns, int32_t count) {
  matrix m = make_matrix(type, rows, columns);
  ops_act x = make_act(count, columns, true);
  size_t n = (size_t)count * (size_t)rows;
  float *y = malloc(n * 5 * sizeof *y), *part = y + n;
  for (int32_t i = 0; i < device_count; i++) {
    multiply(i, &m, &x, count, y);
    for (int32_t p = 0; p < 4; p++) multiply_part(i, &m, &x, p, count, part + (size_t)p * n);
    for (size_t k = 0; k < n; k++) {
      float expected = (part[k] + part[n + k]) + (part[2 * n + k] + part[3 * n + k]);
      if (memcmp(&y[k], &expected, sizeof expected) != 0)
        fail_msg("%s: type %d, %d x %d, %d rows: %.9g is not the sum %.9g of its parts",
                 devices[i]->table->name, (int)type, rows, columns, count, (double)y[k], (double)expected);
    }
  }
  free(y);
  free_act(&x);
  free_matrix(&m);
}

static void a_sum_has_the_defined_order(void **state) {
  (void)state;
  const int32_t counts[] = {1, 5, 16, ROWS_MAX};
  for (int type = 0; type < OPS_TYPE_COUNT; type++) {
    bool wide = is_wide((ops_type)type);
    for (int i = 0; i < 4; i++) {
      check_f32_order((ops_type)type, 37, wide ? 768 : 992, counts[i]); /* one chain */
      check_f32_order((ops_type)type, 37, 1024, counts[i]);
      check_f32_order((ops_type)type, 37, wide ? 1280 : 1120, counts[i]); /* parts of unequal size */
      if (!quant_type_of((ops_type)type)) check_f32_order((ops_type)type, 16, 1091, counts[i]);
      if (!quant_type_of((ops_type)type)) continue;
      check_int8_order((ops_type)type, 37, 1024, counts[i]);
      check_int8_order((ops_type)type, 16, wide ? 1280 : 1120, counts[i]);
    }
  }
}

/* Blocks [from, to) of a row of Q4_0 against int8 activations, one chain. */
static float q4_0_chain(const uint8_t *file, const ops_act *x, int32_t from, int32_t to) {
  const quant_type *t = quant_type_of(OPS_Q4_0);
  float sum = 0;
  for (int32_t b = from; b < to; b++) {
    const uint8_t *block = file + b * t->bytes;
    int32_t products = 0;
    for (int32_t i = 0; i < 32; i++) products += (quant_nibble(block + 2, i) - 8) * x->q8[b * 32 + i];
    sum = fmaf((float)quant_half(block) * x->scale[b], (float)products, sum);
  }
  return sum;
}

/* All of a weight's outputs decide about its parts. */
static void only_weights_of_few_outputs_have_parts(void **state) {
  (void)state;
  enum { COLUMNS = 1024, BLOCKS = COLUMNS / 32, USED = 16 };
  const int32_t outputs[] = {USED, 16384, 16385};
  const quant_type *t = quant_type_of(OPS_Q4_0);
  ops_act x = make_act(1, COLUMNS, true);
  matrix m = make_matrix(OPS_Q4_0, USED, COLUMNS);
  m.file = realloc(m.file, (size_t)outputs[2] * BLOCKS * (size_t)t->bytes);
  for (int32_t o = 0; o < 3; o++) {
    m.rows = outputs[o];
    for (int32_t i = 0; i < device_count; i++) {
      float *y = malloc((size_t)m.rows * sizeof *y);
      multiply(i, &m, &x, 1, y);
      for (int32_t r = 0; r < USED; r++) {
        const uint8_t *row = m.file + r * BLOCKS * t->bytes;
        float expected = (q4_0_chain(row, &x, 0, 8) + q4_0_chain(row, &x, 8, 16)) +
                         (q4_0_chain(row, &x, 16, 24) + q4_0_chain(row, &x, 24, 32));
        if (m.rows > 16384) expected = q4_0_chain(row, &x, 0, 32);
        assert_memory_equal(&y[r], &expected, sizeof expected);
      }
      free(y);
    }
    memset(m.file + USED * BLOCKS * t->bytes, 0, (size_t)(outputs[2] - USED) * BLOCKS * (size_t)t->bytes);
  }
  free_act(&x);
  free_matrix(&m);
}

/* Blocks whose weights are all the same byte, and their scales of scales another. */
typedef struct extreme {
  ops_type type;
  uint8_t fill;
  int sub_at, sub_bytes; /* of sub-scales in the file's block */
  uint8_t sub;
} extreme;

static void fill_extreme(const extreme *c, const quant_type *t, uint8_t *block) {
  uint8_t scales[4] = {0};
  memcpy(scales, block + t->d_at, 2);
  if (t->m_at >= 0) memcpy(scales + 2, block + t->m_at, 2);
  memset(block, c->fill, (size_t)t->bytes);
  memset(block + c->sub_at, c->sub, (size_t)c->sub_bytes);
  memcpy(block + t->d_at, scales, 2);
  if (t->m_at >= 0) memcpy(block + t->m_at, scales + 2, 2);
}

static void check_extreme(const extreme *c, int32_t signs) {
  enum { ROWS = 16, COLUMNS = 256 };
  const quant_type *t = quant_type_of(c->type);
  matrix m = make_matrix(c->type, 16, COLUMNS);
  ops_act x = make_act(ROWS, COLUMNS, true);
  float y[DEVICES_MAX][ROWS * 16];
  for (int b = 0; b < 16 * COLUMNS / t->inputs; b++) fill_extreme(c, t, m.file + b * t->bytes);
  for (int i = 0; i < 16 * COLUMNS; i++)
    m.values[i] = quant_value(t, m.file + i / t->inputs * t->bytes, i % t->inputs);
  for (int32_t k = 0; k < ROWS * COLUMNS; k++) x.f32[k] = signs == 2 || (signs == 1 && k % 2) ? -1.0f : 1.0f;
  for (int32_t i = 0; i < device_count; i++) {
    ops_weight w = pack_matrix(devices[i], &m);
    quantize_rows(devices[i], &x, ROWS);
    devices[i]->table->linear(devices[i], &(ops_linear){.w = &w, .y = y[i]}, 1, &x, ROWS);
    free_weight(&w);
    assert_same(i, y[i], y[0], sizeof y[0], "linear at its extremes");
  }
  check_linear_values(&m, &x, ROWS, y[0], NULL, NULL, true);
  free_act(&x);
  free_matrix(&m);
}

/* The largest sums that the formats allow: no 16-bit step of a fast path may saturate. */
static void linear_takes_extremes(void **state) {
  (void)state;
  const extreme cases[] = {
      {OPS_Q4_0, 0xff, 0, 0, 0},      {OPS_Q4_0, 0x00, 0, 0, 0},      {OPS_Q4_0, 0xf0, 0, 0, 0},
      {OPS_Q4_1, 0xff, 0, 0, 0},      {OPS_Q4_1, 0xf0, 0, 0, 0},      {OPS_Q8_0, 0x7f, 0, 0, 0},
      {OPS_Q8_0, 0x80, 0, 0, 0},      {OPS_Q5_0, 0xff, 0, 0, 0},      {OPS_Q5_0, 0x00, 0, 0, 0},
      {OPS_Q5_1, 0xff, 0, 0, 0},      {OPS_IQ4_NL, 0xff, 0, 0, 0},    {OPS_IQ4_NL, 0x00, 0, 0, 0},
      {OPS_Q2_K, 0xff, 0, 16, 0xff},  {OPS_Q2_K, 0xff, 0, 16, 0x0f},  {OPS_Q2_K, 0xff, 0, 16, 0xf0},
      {OPS_Q3_K, 0xff, 96, 12, 0xff}, {OPS_Q3_K, 0xff, 96, 12, 0x00}, {OPS_Q3_K, 0x00, 96, 12, 0x00},
      {OPS_Q4_K, 0xff, 4, 12, 0xff},  {OPS_Q4_K, 0xff, 4, 12, 0x0f},  {OPS_Q5_K, 0xff, 4, 12, 0xff},
      {OPS_Q6_K, 0xff, 192, 16, 127}, {OPS_Q6_K, 0xff, 192, 16, 128}, {OPS_Q6_K, 0x00, 192, 16, 128},
      {OPS_Q6_K, 0x00, 192, 16, 127},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    for (int32_t signs = 0; signs < 3; signs++) check_extreme(&cases[i], signs); /* all +, mixed, all - */
  }
}

/* Another order of the same sum: what the memcmp tests have to notice. The blocks of a Q4_1 group in
 * descending order, by running the reference over a group and activations turned round. */
static void another_summation_order_is_seen(void **state) {
  (void)state;
  enum { COLUMNS = 576, BLOCKS = COLUMNS / OPS_BLOCK, BYTES = 320 /* of a block of a group */ };
  matrix m = make_matrix(OPS_Q4_1, OPS_GROUP, COLUMNS);
  ops_weight w = pack_matrix(devices[0], &m);
  ops_act x = make_act(1, COLUMNS, true), turned = make_act(1, COLUMNS, true);
  quantize_rows(devices[0], &x, 1);
  uint8_t *group = aligned_alloc(64, BLOCKS * BYTES);
  for (int32_t b = 0; b < BLOCKS; b++) {
    int32_t to = BLOCKS - 1 - b;
    memcpy(group + to * BYTES, (const uint8_t *)w.data + b * BYTES, BYTES);
    memcpy(turned.q8 + to * OPS_BLOCK, x.q8 + b * OPS_BLOCK, OPS_BLOCK);
    turned.scale[to] = x.scale[b];
    turned.sum[to] = x.sum[b];
    turned.total[to] = x.total[b];
  }
  float y[3][OPS_GROUP];
  cpu_kernels_c.linear_int8[OPS_Q4_1](w.data, &x, 0, 1, 1, y[0]);
  cpu_kernels_c.linear_int8[OPS_Q4_1](w.data, &x, 0, 1, 1, y[1]);
  cpu_kernels_c.linear_int8[OPS_Q4_1](group, &turned, 0, 1, 1, y[2]);
  assert_memory_equal(y[0], y[1], sizeof y[0]);
  assert_int_not_equal(memcmp(y[0], y[2], sizeof y[0]), 0);
  for (int32_t r = 0; r < OPS_GROUP; r++)
    assert_near((double)y[2][r], (double)y[0][r], 1e-2, "the turned sum");
  free(group);
  free_weight(&w);
  free_matrix(&m);
  free_act(&x);
  free_act(&turned);
}

/* --- rows --- */

static void embed_reads_rows_and_counts(void **state) {
  (void)state;
  for (int type = 0; type < OPS_TYPE_COUNT; type++) {
    enum { COLUMNS = 512 };
    matrix m = make_matrix((ops_type)type, 37, COLUMNS);
    for (int32_t i = 0; i < device_count; i++) {
      ops *o = devices[i];
      ops_weight w = pack_matrix(o, &m);
      const ops_row rows[] = {{.token = 36}, {.token = 0}, {.token = 17}};
      float x[3 * COLUMNS];
      ops_counters before = o->counters;
      o->table->embed(o, rows, 3, &w, x);
      assert_int_equal(o->counters.forwards, before.forwards + 1);
      assert_int_equal(o->counters.rows, before.rows + 3);
      for (int32_t t = 0; t < 3; t++) {
        for (int32_t k = 0; k < COLUMNS; k++) {
          assert_true(x[t * COLUMNS + k] == (float)m.values[rows[t].token * COLUMNS + k]);
        }
      }
      free_weight(&w);
    }
    free_matrix(&m);
  }
}

static void norm_agrees(void **state) {
  (void)state;
  const int32_t columns[] = {1, 7, 8, 33, 576, 2048};
  const int32_t index[] = {4, 0, 2};
  for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++) {
    int32_t n = columns[c];
    float *x = random_floats((size_t)n * 5), *w = random_floats((size_t)n);
    ops_act y[DEVICES_MAX];
    for (int32_t i = 0; i < device_count; i++) {
      y[i] = make_act(3, n, false);
      devices[i]->table->norm(devices[i], x, index, 3, w, 1e-5f, &y[i]);
    }
    for (int32_t t = 0; t < 3; t++) {
      const float *row = x + (size_t)index[t] * (size_t)n;
      double squares = 0;
      for (int32_t k = 0; k < n; k++) squares += (double)row[k] * (double)row[k];
      double scale = 1 / sqrt(squares / n + 1e-5);
      for (int32_t k = 0; k < n; k++) {
        double expected = (double)row[k] * scale * (double)w[k];
        assert_near((double)y[0].f32[t * n + k], expected, fabs(expected) * F32_EPS * (n + 8), "norm");
      }
    }
    for (int32_t i = 1; i < device_count; i++)
      assert_same(i, y[i].f32, y[0].f32, (size_t)n * 3 * sizeof *x, "norm");
    for (int32_t i = 0; i < device_count; i++) free_act(&y[i]);
    free(x);
    free(w);
  }
}

static void make_awkward(float *x) { /* one block each: zero, subnormal, huge, infinite, NaN */
  const float kinds[] = {0.0f, 1e-41f, 3e38f, INFINITY, NAN};
  for (int b = 0; b < 5; b++) {
    for (int i = 0; i < OPS_BLOCK; i++) x[b * OPS_BLOCK + i] = i % 3 ? kinds[b] : (float)(i - 16) * 1e-42f;
  }
}

static void check_quantised_values(const ops_act *x, int32_t first, int32_t last) {
  for (int32_t b = first; b < last; b++) {
    int32_t total[2] = {0};
    for (int32_t k = b * OPS_BLOCK; k < (b + 1) * OPS_BLOCK; k++) {
      double scale = (double)x->scale[b];
      total[k / 16 % 2] += x->q8[k];
      assert_near(x->q8[k] * scale, (double)x->f32[k], 0.5 * scale * (1 + 1e-5), "quantize");
    }
    assert_int_equal(x->total[b].all, total[0] + total[1]);
    assert_int_equal(x->total[b].first, total[0]);
    assert_int_equal(x->total[b].last, total[1]);
    double sum = (double)x->scale[b] * (total[0] + total[1]);
    assert_near((double)x->sum[b], sum, fabs(sum) * 1e-6 + 1e-35, "sum of a block");
  }
}

static bool same_number(float a, float b) { /* a NaN has no bits to agree on */
  return a == b || (isnan(a) && isnan(b));
}

static void quantize_agrees(void **state) {
  (void)state;
  enum { ROWS = 6, COLUMNS = 160, BLOCKS = ROWS * COLUMNS / OPS_BLOCK };
  ops_act x[DEVICES_MAX] = {0};
  for (int32_t i = 0; i < device_count; i++) {
    x[i] = make_act(ROWS, COLUMNS, true);
    memcpy(x[i].f32, x[0].f32, ROWS * COLUMNS * sizeof *x[0].f32);
    make_awkward(x[i].f32 + (ROWS - 1) * COLUMNS);
    quantize_rows(devices[i], &x[i], ROWS);
  }
  check_quantised_values(&x[0], 0, BLOCKS - COLUMNS / OPS_BLOCK);
  for (int32_t k = 0; k < ROWS * COLUMNS; k++) assert_int_not_equal(x[0].q8[k], -128);
  for (int32_t i = 1; i < device_count; i++) {
    assert_same(i, x[i].q8, x[0].q8, ROWS * COLUMNS, "quantize");
    assert_same(i, x[i].total, x[0].total, BLOCKS * sizeof *x[0].total, "total of a block");
    for (int32_t b = 0; b < BLOCKS; b++)
      assert_true(same_number(x[i].scale[b], x[0].scale[b]) && same_number(x[i].sum[b], x[0].sum[b]));
  }
  for (int32_t i = 0; i < device_count; i++) free_act(&x[i]);
}

/* y of device 0, by what its linears say of gate and up. */
static void check_swiglu_values(const matrix *gate, const matrix *up, const ops_act *x, int32_t rows,
                                const ops_act *y) {
  size_t floats = (size_t)rows * (size_t)gate->rows;
  ops_weight wg = pack_matrix(devices[0], gate), wu = pack_matrix(devices[0], up);
  float *g = malloc(floats * sizeof *g), *u = malloc(floats * sizeof *u), widest = 0;
  const ops_linear jobs[] = {{.w = &wg, .y = g}, {.w = &wu, .y = u}};
  devices[0]->table->linear(devices[0], jobs, 2, x, rows);
  for (size_t i = 0; i < floats; i++) {
    double z = (double)g[i], expected = z / (1 + exp(-z)) * (double)u[i];
    widest = fmaxf(widest, fabsf(g[i]));
    double lost = fabs(z * (double)u[i]) * 2e-38; /* exp ends near 1e38 */
    assert_near((double)y->f32[i], expected, fabs(expected) * 1e-6 + lost + 1e-35, "linear_swiglu");
    assert_true(y->f32[i] == cpu_silu(g[i]) * u[i]); /* of the sums that `linear` makes */
  }
  assert_true(widest > 90); /* beyond what exp holds */
  free(g);
  free(u);
  free_weight(&wg);
  free_weight(&wu);
}

static void check_linear_swiglu(ops_type type, int32_t rows, int32_t outputs, int32_t columns) {
  matrix gate = make_matrix(type, outputs, columns), up = make_matrix(type, outputs, columns);
  size_t floats = (size_t)rows * (size_t)outputs;
  ops_act x = make_act(rows, columns, true), y[DEVICES_MAX];
  for (int32_t k = 0; k < columns; k++) x.f32[k] *= 1000;
  quantize_rows(devices[0], &x, rows);
  for (int32_t i = 0; i < device_count; i++) {
    ops_weight wg = pack_matrix(devices[i], &gate), wu = pack_matrix(devices[i], &up);
    y[i] = make_act(rows, outputs, true);
    devices[i]->table->linear_swiglu(devices[i], &wg, &wu, &x, rows, &y[i]);
    assert_same(i, y[i].f32, y[0].f32, floats * sizeof(float), "linear_swiglu");
    if (y[i].q8) assert_same(i, y[i].q8, y[0].q8, floats, "linear_swiglu, int8 form");
    if (y[i].q8)
      assert_same(i, y[i].scale, y[0].scale, floats / OPS_BLOCK * sizeof(float), "linear_swiglu, scales");
    free_weight(&wg);
    free_weight(&wu);
  }
  check_swiglu_values(&gate, &up, &x, rows, &y[0]);
  if (y[0].q8) check_quantised_values(&y[0], 0, (int32_t)(floats / OPS_BLOCK));
  for (int32_t i = 0; i < device_count; i++) free_act(&y[i]);
  free_act(&x);
  free_matrix(&gate);
  free_matrix(&up);
}

static void linear_swiglu_agrees(void **state) {
  (void)state;
  check_linear_swiglu(OPS_F32, 12, 541, 37);  /* outputs that fill no group */
  check_linear_swiglu(OPS_Q4_1, 1, 4128, 64); /* several panels of one row */
  check_linear_swiglu(OPS_Q4_1, 37, 352, 96); /* several tiles */
  check_linear_swiglu(OPS_F16, 16, 288, 32);
  check_linear_swiglu(OPS_Q4_1, 5, 96, 1056); /* sums in parts */
}

/* --- numbers --- */

static void halves_convert(void **state) {
  (void)state;
  for (uint32_t h = 0; h < 65536; h++) {
    if ((h & 0x7c00) == 0x7c00) continue;
    float f = cpu_f16((uint16_t)h);
    assert_true((double)f == half_value((uint16_t)h));
    assert_int_equal(cpu_to_f16(f), h);
    if ((h & 0x7fff) == 0x7bff) continue;
    float next = cpu_f16((uint16_t)(h + 1)), middle = (f + next) / 2; /* exact in f32 */
    assert_int_equal(cpu_to_f16(middle), h & 1 ? h + 1 : h);
    assert_int_equal(cpu_to_f16(nextafterf(middle, f)), h);
    assert_int_equal(cpu_to_f16(nextafterf(middle, next)), h + 1);
  }
  assert_int_equal(cpu_to_f16(65519.996f), 0x7bff);
  assert_int_equal(cpu_to_f16(65520.0f), 0x7c00);
  assert_int_equal(cpu_to_f16(-INFINITY), 0xfc00);
  assert_true(isnan(cpu_f16(cpu_to_f16(NAN))) && isinf(cpu_f16(0x7c00)));
}

static void exp_is_accurate(void **state) {
  (void)state;
  double worst = 0;
  for (float x = CPU_EXP_MIN; x < CPU_EXP_MAX; x += 0.000731f) {
    double expected = exp((double)x), error = fabs((double)cpu_exp(x) - expected) / expected;
    if (error > worst) worst = error;
  }
  print_message("exp: largest relative error %.3g\n", worst);
  assert_true(worst < 2 * 0x1p-23);
  assert_true(cpu_exp(0.0f) == 1.0f && cpu_exp(-1000.0f) == 0.0f && cpu_exp(-INFINITY) == 0.0f);
  assert_true(isfinite(cpu_exp(INFINITY)));
}

/* Frequencies without scaling. */
static rope plain_rope(float base, int32_t dim) {
  rope r;
  assert_true(rope_init(&r, &(model_config){.rope_dim = dim, .rope_base = base, .scaling.times = 1}, NULL));
  return r;
}

static void rope_is_accurate(void **state) {
  (void)state;
  const float bases[] = {10000, 100000, 500000, 1.5f};
  for (size_t b = 0; b < 4; b++) {
    float row[256];
    rope r = plain_rope(bases[b], 128);
    const float *frequency = r.frequency;
    for (int i = 0; i < 64; i++) {
      double expected = pow((double)bases[b], -2.0 * i / 128);
      assert_near((double)frequency[i], expected, expected * F32_EPS * 1.001, "frequency");
    }
    for (int32_t position = 0; position < 1 << 20; position = position * 3 + 1) {
      rope_row(&r, position, row);
      for (int i = 0; i < 64; i++) {
        double angle = (double)((float)position * frequency[i]);
        assert_near((double)row[2 * i], cos(angle), F32_EPS * 1.001, "cosine");
        assert_near((double)row[128 + 2 * i + 1], sin(angle), F32_EPS * 1.001, "sine");
        assert_true(row[2 * i] == row[2 * i + 1] && row[128 + 2 * i] == -row[128 + 2 * i + 1]);
      }
    }
  }
}

/* --- the cache and attention --- */

typedef struct attention_case {
  ops_kv_type type;
  int32_t heads, kv_heads, head_dim, rope_dim, committed, staged;
  bool norms;
  int32_t window;
} attention_case;

enum {
  A_LAYERS = 2,
  A_CONTEXT = 96,
  A_MAP = A_CONTEXT / OPS_TILE,
  A_BLOCKS = A_MAP + 3,
  A_STAGE = 48,
  A_KEYS = A_CONTEXT + A_STAGE
};

/* Where blocks lie: in order, all apart, partly side by side. */
static const int32_t block_orders[][A_MAP] = {{0, 1, 2, 3, 4, 5}, {8, 6, 4, 2, 0, 7}, {3, 4, 5, 0, 1, 8}};
enum { ORDERS = sizeof block_orders / sizeof block_orders[0] };

/* One sequence of a device; poisoned memory, so that a key that is not the row's shows. */
typedef struct cache {
  ops_kv_shape shape;
  ops_kv kv;
} cache;

static cache make_cache(const attention_case *c, int32_t order) {
  cache k = {.shape = {c->type, A_LAYERS, c->kv_heads, c->head_dim, A_BLOCKS, A_CONTEXT, A_STAGE}};
  size_t row = (size_t)A_LAYERS * (size_t)(c->kv_heads * c->head_dim) * (c->type == OPS_KV_F16 ? 2 : 4);
  ops_block *map = malloc(A_MAP * sizeof *map);
  const int32_t *at = block_orders[order];
  for (int32_t i = A_MAP - 1; i >= 0; i--)
    map[i] = (ops_block){at[i], i + 1 < A_MAP && at[i + 1] == at[i] + 1 ? map[i + 1].run + 1 : 1};
  k.kv.map = map;
  k.kv.map_count = A_MAP;
  void **areas[] = {&k.kv.keys, &k.kv.values, &k.kv.stage_keys, &k.kv.stage_values};
  for (int i = 0; i < 4; i++) {
    size_t bytes = row * (i < 2 ? A_BLOCKS * OPS_TILE : A_STAGE);
    *areas[i] = malloc(bytes);
    memset(*areas[i], 0xff, bytes); /* NaN in both types */
  }
  return k;
}

static void free_cache(cache *k) {
  free((void *)(uintptr_t)k->kv.map);
  free(k->kv.keys);
  free(k->kv.values);
  free(k->kv.stage_keys);
  free(k->kv.stage_values);
}

typedef struct rows_data {
  float *q, *k, *v, *rope; /* of A_KEYS rows by logical position */
  float *q_norm, *k_norm;  /* [head_dim] */
} rows_data;

static const float norm_eps = 1e-3f;

static rows_data make_rows(const attention_case *c) {
  rope r = plain_rope(10000, c->rope_dim);
  rows_data d = {random_floats((size_t)(A_KEYS * c->heads * c->head_dim)),
                 random_floats((size_t)(A_KEYS * c->kv_heads * c->head_dim)),
                 random_floats((size_t)(A_KEYS * c->kv_heads * c->head_dim)),
                 malloc((size_t)(A_KEYS * 2 * c->rope_dim) * sizeof(float)),
                 random_floats((size_t)c->head_dim),
                 random_floats((size_t)c->head_dim)};
  for (int32_t p = 0; p < A_KEYS; p++) rope_row(&r, p, d.rope + p * 2 * c->rope_dim);
  return d;
}

static void free_rows(rows_data *d) {
  free(d->q);
  free(d->k);
  free(d->v);
  free(d->rope);
  free(d->q_norm);
  free(d->k_norm);
}

/* Of rows at positions from p on. */
static ops_rotary rotary_at(const attention_case *c, const rows_data *d, int32_t p) {
  ops_rotary r = {.table = d->rope + p * 2 * c->rope_dim, .dim = c->rope_dim, .eps = norm_eps};
  if (c->norms) r.q_norm = d->q_norm, r.k_norm = d->k_norm;
  return r;
}

/* Stores positions [0, n) of layer 1, the first `committed` ones there, the others in staging slots that lie
 * anyhow; then attends with the last row. q is rotated on the way. */
static void attend_last(ops *o, const attention_case *c, const rows_data *d, int32_t committed, int32_t n,
                        int32_t order, float *y) {
  cache k = make_cache(c, order);
  int32_t path[A_STAGE], q_row = c->heads * c->head_dim, kv_row = c->kv_heads * c->head_dim;
  float *q = malloc((size_t)q_row * sizeof *q);
  for (int32_t i = 0; i < n - committed; i++) path[i] = (i * 11 + 5) % A_STAGE;
  ops_row row = {.kv = &k.kv};
  for (int32_t p = 0; p < n; p++) {
    bool staged = p >= committed;
    row = (ops_row){.kv = &k.kv, .position = p, .length = staged ? committed : p + 1, .path = path};
    row.path_count = staged ? p - committed + 1 : 0;
    memcpy(q, d->q + p * q_row, (size_t)q_row * sizeof *q);
    ops_rotary rotary = rotary_at(c, d, p);
    o->table->rope_store(o, &k.shape, 1, &row, 1, c->heads, &rotary, q, d->k + p * kv_row, d->v + p * kv_row);
  }
  ops_act out = {.columns = q_row, .f32 = y};
  float *scratch = malloc(o->table->attention_floats(o, &k.shape, c->heads) * sizeof *scratch);
  o->table->attention(o, &k.shape, 1, &row, 1, c->heads, c->window, q, &out, scratch);
  free(scratch);
  free(q);
  free_cache(&k);
}

static void naive_norm(const attention_case *c, const float *x, const float *w, double *out) {
  double squares = 0;
  for (int32_t i = 0; i < c->head_dim; i++) squares += (double)x[i] * (double)x[i];
  double scale = c->norms ? 1 / sqrt(squares / c->head_dim + (double)norm_eps) : 1;
  for (int32_t i = 0; i < c->head_dim; i++) out[i] = (double)x[i] * scale * (c->norms ? (double)w[i] : 1);
}

static double rotated(const double *x, const float *frequency, int32_t rope_dim, int32_t position,
                      int32_t d) {
  if (d >= rope_dim) return x[d];
  double angle = (double)((float)position * frequency[d / 2]), even = x[d & ~1], odd = x[d | 1];
  return d & 1 ? odd * cos(angle) + even * sin(angle) : even * cos(angle) - odd * sin(angle);
}

static double naive_score(const attention_case *c, const rows_data *d, int32_t n, int32_t head, int32_t p) {
  rope r = plain_rope(10000, c->rope_dim);
  const float *frequency = r.frequency;
  int32_t kv_head = head / (c->heads / c->kv_heads);
  double dot = 0, q[OPS_HEAD_DIM_MAX], key[OPS_HEAD_DIM_MAX];
  naive_norm(c, d->q + ((n - 1) * c->heads + head) * c->head_dim, d->q_norm, q);
  naive_norm(c, d->k + (p * c->kv_heads + kv_head) * c->head_dim, d->k_norm, key);
  for (int32_t i = 0; i < c->head_dim; i++) {
    dot += rotated(q, frequency, c->rope_dim, n - 1, i) * rotated(key, frequency, c->rope_dim, p, i);
  }
  return dot / sqrt(c->head_dim);
}

static void check_attention_values(const attention_case *c, const rows_data *d, int32_t n, const float *y) {
  double bound = c->type == OPS_KV_F16 ? 2e-2 : 1e-4;
  for (int32_t head = 0; head < c->heads; head++) {
    double score[A_KEYS], sum = 0, largest = -INFINITY;
    int32_t kv_head = head / (c->heads / c->kv_heads);
    int32_t first = c->window && n > c->window ? n - c->window : 0;
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

/* --- several rows at once --- */

enum { B_SEQUENCES = 2, B_ROWS = 19 };

/* Appended rows of one sequence, then a tree of another: row i's parent is about i / 2. */
static void make_batch(cache *caches, int32_t committed, int32_t appended, ops_row *rows, int32_t *paths) {
  for (int32_t i = 0; i < B_ROWS; i++) {
    if (i < appended) {
      rows[i] = (ops_row){.kv = &caches[0].kv, .position = committed + i, .length = committed + i + 1};
      continue;
    }
    int32_t slot = i - appended, *path = paths + i * A_STAGE, count = 0;
    if (slot > 0) {
      const ops_row *parent = &rows[appended + (slot - 1) / 2];
      count = parent->path_count;
      memcpy(path, parent->path, (size_t)count * sizeof *path);
    }
    path[count++] = slot;
    rows[i] = (ops_row){.kv = &caches[1].kv,
                        .position = committed + count - 1,
                        .length = committed,
                        .path_count = count,
                        .path = path};
  }
}

/* The rows in one batch give what each gives alone. */
static void check_together(ops *o, const attention_case *c, int32_t appended) {
  rows_data d = make_rows(c);
  cache caches[B_SEQUENCES] = {make_cache(c, appended % ORDERS), make_cache(c, (appended / 6 + 1) % ORDERS)};
  int32_t paths[B_ROWS * A_STAGE], q_row = c->heads * c->head_dim, kv_row = c->kv_heads * c->head_dim;
  ops_row rows[B_ROWS];
  float *scratch = malloc(o->table->attention_floats(o, &caches[0].shape, c->heads) * sizeof *scratch);
  float *together = malloc((size_t)(B_ROWS * q_row) * sizeof *together), *alone = malloc((size_t)q_row * 4);
  for (int32_t p = 0; p < c->committed; p++) {
    for (int32_t i = 0; i < B_SEQUENCES; i++) {
      ops_row row = {.kv = &caches[i].kv, .position = p, .length = p + 1};
      ops_rotary rotary = rotary_at(c, &d, p);
      o->table->rope_store(o, &caches[i].shape, 1, &row, 1, c->heads, &rotary, alone, d.k + p * kv_row,
                           d.v + p * kv_row);
    }
  }
  make_batch(caches, c->committed, appended, rows, paths);
  float *q = d.q;
  ops_rotary rotary = rotary_at(c, &d, c->committed);
  o->table->rope_store(o, &caches[0].shape, 1, rows, B_ROWS, c->heads, &rotary, q,
                       d.k + c->committed * kv_row, d.v + c->committed * kv_row);
  ops_act out = {.columns = q_row, .f32 = together}, one = {.columns = q_row, .f32 = alone};
  o->table->attention(o, &caches[0].shape, 1, rows, B_ROWS, c->heads, c->window, q, &out, scratch);
  for (int32_t i = 0; i < B_ROWS; i++) {
    o->table->attention(o, &caches[0].shape, 1, &rows[i], 1, c->heads, c->window, q + i * q_row, &one,
                        scratch);
    if (memcmp(alone, together + i * q_row, (size_t)q_row * 4) != 0)
      fail_msg("attention on %s: row %d of a batch gives other bits than alone", o->table->name, i);
  }
  free(alone);
  free(together);
  free(scratch);
  for (int32_t i = 0; i < B_SEQUENCES; i++) free_cache(&caches[i]);
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
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    for (int32_t i = 0; i < device_count; i++) {
      for (int32_t appended = 0; appended <= B_ROWS; appended += 6)
        check_together(devices[i], &cases[k], appended);
    }
  }
}

/* However many of the keys are committed and however many staged, wherever their blocks lie, on every device:
 * the same bits. */
static void check_attention(const attention_case *c) {
  rows_data d = make_rows(c);
  int32_t n = c->committed + c->staged, q_row = c->heads * c->head_dim;
  size_t bytes = (size_t)q_row * sizeof(float);
  float *reference = malloc(bytes), *y = malloc(bytes);
  attend_last(devices[0], c, &d, n, n, 0, reference);
  check_attention_values(c, &d, n, reference);
  for (int32_t i = 0; i < device_count; i++) {
    for (int32_t committed = n; committed >= 0 && n - committed <= A_STAGE;
         committed -= 1 + (committed > 4) * 6) {
      for (int32_t order = 0; order < ORDERS; order++) {
        attend_last(devices[i], c, &d, committed, n, order, y);
        if (memcmp(y, reference, bytes) != 0)
          fail_msg("attention on %s: %d of %d keys committed, in order %d of blocks, give other bits",
                   devices[i]->table->name, committed, n, order);
      }
    }
  }
  free(y);
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

/* --- splits and spans, to the bit --- */

enum {
  V_BLOCKS = 101,
  V_CONTEXT = 100 * OPS_TILE,
  V_STAGE = 48,
  V_KEYS = V_CONTEXT + V_STAGE,
  V_ROWS = 12,
  V_SPANS = 16
};

/* Rows that attend in one call: appended ones, or ones of a tree on top of `committed` keys. */
typedef struct view_case {
  ops_kv_type type;
  int32_t heads, head_dim, rows, committed;
  bool appended;
} view_case;

typedef struct view_row {
  int32_t path[V_STAGE];
  ops_span spans[V_SPANS];
  int32_t span_count;
  const float *keys[V_KEYS], *values[V_KEYS]; /* by logical position */
} view_row;

/* One key-value head; numbers that the cache's type holds exactly. */
typedef struct view_data {
  ops_kv_shape shape;
  ops_kv kv;
  ops_block map[V_CONTEXT / OPS_TILE];
  float *keys, *values, *stage_keys, *stage_values; /* [position or slot][head_dim] */
  ops_row rows[V_ROWS];
  view_row row[V_ROWS];
  float *q;
} view_data;

/* Numerics version 2: the keys that a row sees, split by split. */
static void defined_attention(const view_row *v, int32_t end, const float *q, int32_t dim, float *y) {
  static float score[512], sum_of[OPS_HEAD_DIM_MAX];
  float largest = 0, sum = 0;
  bool begun = false;
  for (int32_t split = 0; split < end; split += 512) {
    int32_t at[512], n = 0;
    for (int32_t s = 0; s < v->span_count; s++)
      for (int32_t p = v->spans[s].first; p < v->spans[s].end; p++)
        if (p >= split && p < split + 512) at[n++] = p;
    if (n == 0) continue;
    float m = -INFINITY, lane[8] = {0};
    for (int32_t i = 0; i < n; i++) {
      float dot = 0;
      for (int32_t d = 0; d < dim; d++) dot = fmaf(q[d], v->keys[at[i]][d], dot);
      score[i] = dot * (1.0f / sqrtf((float)dim));
      m = fmaxf(m, score[i]);
    }
    memset(sum_of, 0, sizeof sum_of);
    for (int32_t i = 0; i < n; i++) {
      float e = cpu_exp(score[i] - m);
      lane[at[i] % 8] += e;
      for (int32_t d = 0; d < dim; d++) sum_of[d] = fmaf(e, v->values[at[i]][d], sum_of[d]);
    }
    float l = ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    float top = fmaxf(largest, m), before = cpu_exp(largest - top), now = cpu_exp(m - top);
    for (int32_t d = 0; d < dim; d++) y[d] = begun ? fmaf(sum_of[d], now, y[d] * before) : sum_of[d];
    sum = begun ? fmaf(l, now, sum * before) : l;
    largest = begun ? top : m;
    begun = true;
  }
  for (int32_t d = 0; d < dim; d++) y[d] = y[d] * (1 / sum);
}

static float *view_floats(const view_case *c, int32_t rows) {
  float *x = random_floats((size_t)(rows * c->head_dim));
  for (int32_t i = 0; i < rows * c->head_dim && c->type == OPS_KV_F16; i++) x[i] = cpu_f16(cpu_to_f16(x[i]));
  return x;
}

static void view_store(const view_case *c, void *to, size_t stride, const float *x) {
  cpu_kernels_c.store(c->type, to, (int32_t)stride, x, c->head_dim);
}

/* Puts key and value i at row `at` of an area. */
static void view_put(const view_case *c, void *keys, void *values, int32_t at, const float *key,
                     const float *value) {
  size_t size = c->type == OPS_KV_F16 ? 2 : 4, dim = (size_t)c->head_dim, row = (size_t)at;
  view_store(c, (uint8_t *)keys + (row / OPS_TILE * OPS_TILE * dim + row % OPS_TILE) * size, OPS_TILE, key);
  view_store(c, (uint8_t *)values + row * dim * size, 1, value);
}

/* Blocks lie side by side but for every fifth, or all apart. */
static void view_map(view_data *d, bool apart) {
  int32_t count = V_CONTEXT / OPS_TILE;
  for (int32_t i = count - 1; i >= 0; i--) {
    d->map[i].at = apart ? i * 37 % V_BLOCKS : i % 5 == 4 ? 100 - i / 5 : i - i / 5;
    d->map[i].run = i + 1 < count && d->map[i + 1].at == d->map[i].at + 1 ? d->map[i + 1].run + 1 : 1;
  }
}

/* What nobody sees is NaN. */
static void view_fill(const view_case *c, view_data *d) {
  bool committed[V_CONTEXT] = {0}, staged[V_STAGE] = {0};
  for (int32_t i = 0; i < c->rows; i++) {
    for (int32_t s = 0; s < d->row[i].span_count; s++) {
      for (int32_t p = d->row[i].spans[s].first; p < d->row[i].spans[s].end; p++)
        *(p < d->rows[i].length ? &committed[p] : &staged[d->row[i].path[p - d->rows[i].length]]) = true;
    }
  }
  for (int32_t p = 0; p < V_CONTEXT; p++) {
    int32_t at = p * c->head_dim;
    if (committed[p])
      view_put(c, d->kv.keys, d->kv.values, d->map[p / OPS_TILE].at * OPS_TILE + p % OPS_TILE, d->keys + at,
               d->values + at);
  }
  for (int32_t i = 0; i < V_STAGE; i++) {
    int32_t at = i * c->head_dim;
    if (staged[i])
      view_put(c, d->kv.stage_keys, d->kv.stage_values, i, d->stage_keys + at, d->stage_values + at);
  }
}

static void view_rows(const view_case *c, view_data *d) {
  for (int32_t i = 0; i < c->rows; i++) {
    view_row *v = &d->row[i];
    ops_row *r = &d->rows[i];
    *r = (ops_row){.kv = &d->kv, .length = c->committed + (c->appended ? i + 1 : 0), .path = v->path};
    r->path_count = c->appended ? 0 : 1 + i * 5 % 23;
    r->position = r->length + r->path_count - 1;
    for (int32_t k = 0; k < r->path_count; k++) v->path[k] = (i * 3 + k * 11) % V_STAGE;
    for (int32_t p = 0; p <= r->position; p++) {
      bool staged = p >= r->length;
      int32_t at = (staged ? v->path[p - r->length] : p) * c->head_dim;
      v->keys[p] = (staged ? d->stage_keys : d->keys) + at;
      v->values[p] = (staged ? d->stage_values : d->values) + at;
    }
  }
}

static view_data *view_open(const view_case *c) {
  view_data *d = calloc(1, sizeof *d);
  size_t bytes = (size_t)V_BLOCKS * OPS_TILE * (size_t)c->head_dim * 4;
  d->shape = (ops_kv_shape){c->type, 1, 1, c->head_dim, V_BLOCKS, V_CONTEXT, V_STAGE};
  view_map(d, c->committed % 2);
  void **areas[] = {&d->kv.keys, &d->kv.values, &d->kv.stage_keys, &d->kv.stage_values};
  for (int i = 0; i < 4; i++) *areas[i] = memset(malloc(bytes), 0xff, bytes);
  d->kv.map = d->map;
  d->kv.map_count = V_CONTEXT / OPS_TILE;
  d->keys = view_floats(c, V_CONTEXT), d->values = view_floats(c, V_CONTEXT);
  d->stage_keys = view_floats(c, V_STAGE), d->stage_values = view_floats(c, V_STAGE);
  d->q = random_floats((size_t)(c->rows * c->heads * c->head_dim));
  /* The splits' largest scores are far apart, the later one's larger or smaller. */
  for (int32_t p = 0; p < V_CONTEXT * c->head_dim; p++) d->keys[p] *= p / c->head_dim / 300 % 2 ? 2.0f : 0.5f;
  view_rows(c, d);
  return d;
}

static void view_close(view_data *d) {
  void *const all[] = {d->kv.keys,         d->kv.values,    d->kv.stage_keys,
                       d->kv.stage_values, d->keys,         d->values,
                       d->stage_keys,      d->stage_values, d->q};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
  free(d);
}

/* The rows on device i, in one call of its kernel; scratch and result are NaN before. */
static void view_attend(int32_t i, const view_case *c, const view_data *d, float *y) {
  ops_span spans[V_ROWS * V_SPANS];
  int32_t first[V_ROWS + 1] = {0}, stride = cpu_score_stride(&d->shape), row = c->heads * c->head_dim;
  size_t scores = (size_t)stride * (size_t)(c->heads > CPU_QUERIES_MAX ? c->heads : CPU_QUERIES_MAX);
  float *scratch = memset(malloc(scores * sizeof(float)), 0xff, scores * sizeof(float));
  for (int32_t r = 0; r < c->rows; r++) {
    first[r + 1] = first[r] + d->row[r].span_count;
    memcpy(spans + first[r], d->row[r].spans, (size_t)d->row[r].span_count * sizeof *spans);
  }
  memset(y, 0xff, (size_t)(c->rows * row) * sizeof *y);
  kernels_of(devices[i])
      ->attention(&(cpu_attention){.type = c->type,
                                   .head_dim = c->head_dim,
                                   .heads = c->heads,
                                   .rows = c->rows,
                                   .row = d->rows,
                                   .keys = d->kv.keys,
                                   .stage_keys = d->kv.stage_keys,
                                   .values = d->kv.values,
                                   .stage_values = d->kv.stage_values,
                                   .q = d->q,
                                   .y = y,
                                   .row_floats = (size_t)row,
                                   .scale = 1.0f / sqrtf((float)c->head_dim),
                                   .spans = spans,
                                   .first_span = first,
                                   .scores = scratch,
                                   .stride = stride,
                                   .stage = V_STAGE});
  free(scratch);
}

static void check_view(const view_case *c, view_data *d, const char *what) {
  int32_t row = c->heads * c->head_dim;
  float *y = malloc((size_t)(c->rows * row) * sizeof *y), expected[OPS_HEAD_DIM_MAX];
  view_fill(c, d);
  for (int32_t i = 0; i < device_count; i++) {
    view_attend(i, c, d, y);
    for (int32_t r = 0; r < c->rows; r++) {
      for (int32_t at = r * row; at < (r + 1) * row; at += c->head_dim) {
        defined_attention(&d->row[r], d->rows[r].position + 1, d->q + at, c->head_dim, expected);
        if (memcmp(y + at, expected, (size_t)c->head_dim * sizeof *y) != 0)
          fail_msg("attention on %s, %s: %d keys committed, row %d of %d: %.9g, not %.9g as defined",
                   devices[i]->table->name, what, c->committed, r, c->rows, (double)y[at],
                   (double)expected[0]);
      }
    }
  }
  free(y);
}

/* Every row sees the last `window` positions, or all. */
static void check_window(const view_case *c, int32_t window) {
  view_data *d = view_open(c);
  for (int32_t r = 0; r < c->rows; r++) {
    int32_t end = d->rows[r].position + 1;
    d->row[r].spans[0] = (ops_span){window > 0 && end > window ? end - window : 0, end};
    d->row[r].span_count = 1;
  }
  check_view(c, d, window ? "a window" : "all keys");
  view_close(d);
}

/* The row's first spans are `spans` as far as they go, the last one is its last `tail` positions. */
static void put_gaps(view_row *v, int32_t end, const ops_span *spans, int32_t tail) {
  v->span_count = 0;
  int32_t from = end > tail ? end - tail : 0;
  for (; spans->end > 0 && spans->end < from; spans++) v->spans[v->span_count++] = *spans;
  v->spans[v->span_count++] = (ops_span){from, end};
}

static void put_random_gaps(view_row *v, int32_t end) {
  const int32_t lengths[] = {1, 3, 15, 16, 17, 100, 500, 512};
  ops_span s = {0, 0}, all[V_SPANS] = {{0}};
  for (int32_t n = 0; n < V_SPANS - 2; n++) {
    s.first = s.end + lengths[random_bits() % 8];
    s.end = s.first + lengths[random_bits() % 8];
    all[n] = s;
  }
  put_gaps(v, end, all, 1 + (int32_t)(random_bits() % 40));
}

static const view_case view_shapes[] = {
    {OPS_KV_F16, 3, 32, 4, 0, false},  {OPS_KV_F32, 3, 32, 4, 0, false}, {OPS_KV_F16, 1, 16, 12, 0, false},
    {OPS_KV_F16, 14, 16, 1, 0, false}, {OPS_KV_F32, 4, 24, 3, 0, true},  {OPS_KV_F16, 2, 20, 2, 0, true},
    {OPS_KV_F16, 3, 64, 2, 0, true},   {OPS_KV_F16, 5, 16, 1, 0, true},
};
enum { VIEW_SHAPES = sizeof view_shapes / sizeof view_shapes[0] };

/* Keys around the ends of splits, committed and staged, appended and of a tree. */
static void attention_has_the_defined_splits(void **state) {
  (void)state;
  const int32_t committed[] = {0, 1, 490, 510, 511, 512, 513, 1000, 1023, 1024, 1025, 1530, 1536, 1537};
  const int32_t windows[] = {0, 1, 20, 511, 512, 513, 600, 1024};
  for (size_t i = 0; i < VIEW_SHAPES; i++) {
    view_case c = view_shapes[i];
    for (size_t k = 0; k < sizeof committed / sizeof committed[0]; k++) {
      c.committed = committed[k];
      check_window(&c, 0);
      check_window(&c, windows[(i + k) % 8]);
    }
  }
}

static void attention_leaves_gaps_out(void **state) {
  (void)state;
  const ops_span gaps[][V_SPANS] = {
      {{0, 4}, {100, 131}},               /* a split without keys in the middle */
      {{0, 512}, {1024, 1030}},           /* whole splits */
      {{511, 513}, {1023, 1024}},         /* the ends of splits */
      {{600, 700}},                       /* no key in the first split */
      {{0, 1}, {2, 3}, {4, 5}, {17, 40}}, /* several of a tile */
      {{0, 0}},
  };
  const int32_t committed[] = {90, 505, 1030, 1535}, tails[] = {1, 40, 530};
  int32_t cases = 0;
  for (size_t i = 0; i < VIEW_SHAPES; i++) {
    for (int32_t k = 0; k < 4; k++) {
      for (int32_t g = 0; g < 8; g++, cases++) {
        view_case c = view_shapes[i];
        c.committed = committed[k];
        view_data *d = view_open(&c);
        for (int32_t r = 0; r < c.rows; r++) {
          int32_t which = g < 6 ? g : (cases + r) % 7; /* the last: each row its own */
          if (which < 6)
            put_gaps(&d->row[r], d->rows[r].position + 1, gaps[which], tails[(cases + (g < 6 ? 0 : r)) % 3]);
          else
            put_random_gaps(&d->row[r], d->rows[r].position + 1);
        }
        check_view(&c, d, "gaps");
        view_close(d);
      }
    }
  }
}

/* Rows stored straight and rows stored to staging and then committed: the same cache, on every device. */
static void commit_moves_rows(void **state) {
  (void)state;
  const attention_case c = {OPS_KV_F16, 2, 2, 24, 24, 0, 0, false, 0};
  rows_data d = make_rows(&c);
  const int32_t path[] = {7, 3, 40, 0, 1, 2, 9, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 47};
  enum { COUNT = 20, FIRST = 13, KV_ROW = 48 };
  for (int32_t i = 0; i < device_count; i++) {
    ops *o = devices[i];
    cache straight = make_cache(&c, 2), moved = make_cache(&c, 2);
    ops_counters before = o->counters;
    for (int32_t layer = 0; layer < A_LAYERS; layer++) {
      for (int32_t t = 0; t < COUNT; t++) {
        int32_t p = FIRST + t;
        ops_row a = {.kv = &straight.kv, .position = p, .length = p + 1};
        ops_row b = {.kv = &moved.kv, .position = p, .length = FIRST, .path = path + t, .path_count = 1};
        float q[KV_ROW] = {0};
        const float *k = d.k + (p + layer) * KV_ROW, *v = d.v + p * KV_ROW;
        ops_rotary rotary = rotary_at(&c, &d, p);
        o->table->rope_store(o, &straight.shape, layer, &a, 1, 2, &rotary, q, k, v);
        o->table->rope_store(o, &moved.shape, layer, &b, 1, 2, &rotary, q, k, v);
      }
    }
    o->table->commit(o, &moved.shape, &moved.kv, path, COUNT, FIRST);
    assert_int_equal(o->counters.staged_writes - before.staged_writes, COUNT * A_LAYERS);
    assert_int_equal(o->counters.commit_copies - before.commit_copies, COUNT * A_LAYERS);
    size_t bytes = (size_t)A_LAYERS * KV_ROW * A_BLOCKS * OPS_TILE * 2;
    assert_memory_equal(straight.kv.keys, moved.kv.keys, bytes);
    assert_memory_equal(straight.kv.values, moved.kv.values, bytes);
    free_cache(&straight);
    free_cache(&moved);
  }
  free_rows(&d);
}

/* --- the table --- */

static void square(void *context, int32_t i) {
  ((int32_t *)context)[i] = i * i;
}

static void the_rest_of_the_table(void **state) {
  (void)state;
  for (int32_t i = 0; i < device_count; i++) {
    int32_t squares[1000];
    ops *o = devices[i];
    o->table->parallel(o, 1000, square, squares);
    for (int32_t k = 0; k < 1000; k++) assert_int_equal(squares[k], k * k);
    assert_int_equal(o->table->sync(o), 0);
    const int32_t widths[] = {1, 2, 3, 4, 8, 17, 64};
    for (size_t w = 0; w < 7; w++) print_message("%d rows: %s\n", widths[w], o->table->variant(o, widths[w]));
  }
  assert_null(ops_cpu_open(OPS_CPU_C, 0));
  assert_null(ops_cpu_open(OPS_CPU_C, OPS_THREADS_MAX + 1));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(linear_agrees),
      cmocka_unit_test(a_sum_has_the_defined_order),
      cmocka_unit_test(only_weights_of_few_outputs_have_parts),
      cmocka_unit_test(linear_takes_extremes),
      cmocka_unit_test(another_summation_order_is_seen),
      cmocka_unit_test(embed_reads_rows_and_counts),
      cmocka_unit_test(norm_agrees),
      cmocka_unit_test(quantize_agrees),
      cmocka_unit_test(linear_swiglu_agrees),
      cmocka_unit_test(halves_convert),
      cmocka_unit_test(exp_is_accurate),
      cmocka_unit_test(rope_is_accurate),
      cmocka_unit_test(attention_agrees),
      cmocka_unit_test(rows_attend_together),
      cmocka_unit_test(attention_has_the_defined_splits),
      cmocka_unit_test(attention_leaves_gaps_out),
      cmocka_unit_test(commit_moves_rows),
      cmocka_unit_test(the_rest_of_the_table),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
