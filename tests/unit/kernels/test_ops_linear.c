/* libs: kernels : cost=15 */
/* Ops linear and linear_swiglu: each device against the C reference by memcmp; the C reference against plain
 * computations in double, written here from the definitions, within the error that f32 (or int8) must make.
 */
#include "kernels/cpu/cpu_math.h"
#include "tests/support/ops_devices.h"

#define ROWS_MAX 33 /* two full tiles of the widest CPU kernel and a row more */

/* --- linear --- */

typedef struct linear_case {
  ops_type type;
  ops_math math;
  bool add;
  int32_t rows, columns, count;
  bool bias;
} linear_case;

/* Step of the int8 form of the block that input `at` is in. */
static double step_of(const float *x, size_t at) {
  double largest = 0;
  for (size_t i = at / OPS_BLOCK * OPS_BLOCK; i < (at / OPS_BLOCK + 1) * OPS_BLOCK; i++)
    largest = fmax(largest, fabs((double)x[i]));
  return largest / 127;
}

/* How the activations of a linear are rounded. */
typedef enum { AS_F32, AS_INT8, AS_BF16 } rounding;

static rounding rounding_of(ops_math math, ops_type type) {
  if (math == OPS_MATH_BF16 && type == OPS_BF16) return AS_BF16;
  return math != OPS_MATH_F32 && quant_type_of(type) ? AS_INT8 : AS_F32;
}

/* |error| of one output: f32 rounding of every step, half a step of every quantised activation, half a unit
 * of every one in bf16, and what a tensor core cuts off there. */
static double linear_bound(const matrix *m, int32_t out, const float *x, int32_t row, rounding how) {
  double bound = 0, step = 0;
  for (int32_t k = 0; k < m->columns; k++) {
    size_t at = (size_t)row * (size_t)m->columns + (size_t)k;
    if (how == AS_INT8 && k % OPS_BLOCK == 0) step = step_of(x, at);
    double w = fabs(m->values[(size_t)out * (size_t)m->columns + (size_t)k]);
    /* where there are minima, two parts may cancel: bound their sizes, which are below 4 */
    bound += (w + 4) * (fabs((double)x[at]) + 1) * SUPPORT_F32_EPS * SUPPORT_ROUNDINGS;
    if (how == AS_INT8) bound += w * 0.5 * step * (1 + 1e-5);
    if (how == AS_BF16) bound += w * fabs((double)x[at]) * (0x1p-9 + 0x1p-20);
  }
  return bound;
}

static void check_linear_values(const matrix *m, const float *x, int32_t count, const float *y,
                                const float *before, const float *bias, rounding how) {
  for (int32_t t = 0; t < count; t++) {
    for (int32_t r = 0; r < m->rows; r++) {
      size_t at = (size_t)t * (size_t)m->rows + (size_t)r;
      double sum = (before ? (double)before[at] : 0) + (bias ? (double)bias[r] : 0);
      for (int32_t k = 0; k < m->columns; k++) {
        sum += m->values[(size_t)r * (size_t)m->columns + (size_t)k] *
               (double)x[(size_t)t * (size_t)m->columns + (size_t)k];
      }
      assert_near((double)y[at], sum, linear_bound(m, r, x, t, how), "linear");
    }
  }
}

/* Both matrices on one device; there is a row after the last, which nobody may touch. */
static void run_linear(device *d, const linear_case *c, const matrix *m, const matrix *second, const float *x,
                       const float *before, const float *bias, float **y, float **y2) {
  device_weight w = pack_matrix(d, m), w2 = pack_matrix(d, second);
  device_vector b = c->bias ? upload_floats(d, bias, (size_t)c->rows) : (device_vector){0};
  device_act *in = act_of(d, c->count, c->columns, true, x);
  device_act *out = act_of(d, c->count + 1, c->rows, false, before);
  device_act *out2 = act_of(d, c->count, second->rows, false, NULL);
  device_linear jobs[] = {{.w = w2, .y = out2}, {.w = w, .y = out, .add = c->add, .bias = b}};
  begin_rows(d, c->count);
  d->table->linear(d, jobs, 2, in);
  memset(jobs, 0x5a, sizeof jobs); /* arguments are copied at the call */
  end_rows(d);
  *y = read_act(d, out, c->count + 1, c->rows);
  *y2 = read_act(d, out2, c->count, second->rows);
  size_t n = (size_t)c->count * (size_t)c->rows;
  assert_memory_equal(*y + n, before + n, (size_t)c->rows * sizeof **y);
  d->table->act_drop(d, in);
  d->table->act_drop(d, out);
  d->table->act_drop(d, out2);
  drop_weight(d, w);
  drop_weight(d, w2);
  drop_vector(d, b);
}

static void check_linear(const linear_case *c) {
  matrix m = make_matrix(c->type, c->rows, c->columns), second = make_matrix(c->type, 24, c->columns);
  size_t n = (size_t)c->count * (size_t)c->rows, n2 = (size_t)c->count * 24;
  float *x = random_floats((size_t)c->count * (size_t)c->columns);
  float *before = random_floats(n + (size_t)c->rows), *bias = random_floats((size_t)c->rows);
  float *y[SUPPORT_DEVICES], *y2[SUPPORT_DEVICES];
  for (int32_t i = 0; i < device_count; i++)
    run_linear(devices[c->math][i], c, &m, &second, x, before, bias, &y[i], &y2[i]);
  rounding how = rounding_of(c->math, c->type);
  check_linear_values(&m, x, c->count, y[0], c->add ? before : NULL, c->bias ? bias : NULL, how);
  check_linear_values(&second, x, c->count, y2[0], NULL, NULL, how);
  for (int32_t i = 1; i < device_count; i++) {
    assert_same(devices[c->math][i], y[i], y[0], n * sizeof *before, "linear");
    assert_same(devices[c->math][i], y2[i], y2[0], n2 * sizeof *before, "linear, first matrix");
  }
  for (int32_t i = 0; i < device_count; i++) free(y[i]), free(y2[i]);
  free(x);
  free(before);
  free(bias);
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
    for (int math = 0; math < OPS_MATH_COUNT; math++) {
      if (math == OPS_MATH_BF16 && type != OPS_BF16 && type != OPS_Q4_1) continue;
      for (size_t r = 0; r < 4; r++) {
        for (size_t k = 0; k < (wide ? 2 : 3); k++) {
          for (size_t n = 0; n < 7; n++, cases++) {
            int32_t width = wide ? units[k] : columns[k];
            check_linear(&(linear_case){(ops_type)type, (ops_math)math, cases % 2, rows[r], width, counts[n],
                                        cases % 3 == 1});
          }
        }
      }
    }
  }
}

static void linear_agrees_for_every_number_of_rows(void **state) {
  (void)state;
  int cases = 0;
  for (int type = 0; type < OPS_TYPE_COUNT; type++) {
    int32_t width = is_wide((ops_type)type) ? 512 : 96;
    for (int32_t count = 1; count <= ROWS_MAX; count++, cases++) {
      if (type == OPS_BF16)
        check_linear(&(linear_case){OPS_BF16, OPS_MATH_BF16, cases % 2, 37, width, count, cases % 5 == 0});
      check_linear(&(linear_case){(ops_type)type, (ops_math)(cases % OPS_MATH_COUNT), cases % 2, 37, width,
                                  count, cases % 5 == 0});
    }
  }
}

static void linear_takes_odd_shapes(void **state) {
  (void)state;
  /* columns that fill no block */
  check_linear(&(linear_case){OPS_F32, OPS_MATH_INT8, false, 5, 7, 3, true});
  check_linear(&(linear_case){OPS_F16, OPS_MATH_F32, true, 40, 33, 4, false});
  check_linear(&(linear_case){OPS_BF16, OPS_MATH_BF16, true, 40, 33, 4, false});
  check_linear(
      &(linear_case){OPS_BF16, OPS_MATH_BF16, false, 21, 1056, 5, true}); /* parts of 8 and 9 blocks */
  check_linear(&(linear_case){OPS_Q4_1, OPS_MATH_INT8, false, 16, 1536, 8, true});
}

/* --- extremes --- */

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
  float x[ROWS * COLUMNS], *reference = NULL;
  for (int b = 0; b < 16 * COLUMNS / t->inputs; b++) fill_extreme(c, t, m.file + b * t->bytes);
  set_values(&m);
  for (int32_t k = 0; k < ROWS * COLUMNS; k++) x[k] = signs == 2 || (signs == 1 && k % 2) ? -1.0f : 1.0f;
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    device_act *in = act_of(d, ROWS, COLUMNS, true, x);
    float *y = linear_of(d, &m, in, ROWS);
    if (!reference) check_linear_values(&m, x, ROWS, y, NULL, NULL, AS_INT8);
    if (reference) assert_same(d, y, reference, ROWS * 16 * sizeof *y, "linear at its extremes");
    d->table->act_drop(d, in);
    if (reference)
      free(y);
    else
      reference = y;
  }
  free(reference);
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

/* --- the order of a sum, to the bit --- */

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

/* f32 math, by the definition of the numerics. */
static float defined_sum(const matrix *m, int32_t out, const float *x) {
  float part[4];
  if (m->columns < 1024 || m->rows > 16384) return chain(m, out, x, 0, m->columns);
  for (int32_t i = 0, from, to; i < 4; i++) {
    part_of(m->columns, i, &from, &to);
    part[i] = chain(m, out, x, from, to);
  }
  return (part[0] + part[1]) + (part[2] + part[3]);
}

static float *multiply(device *d, const matrix *m, const float *x, int32_t count) {
  device_act *in = act_of(d, count, m->columns, true, x);
  float *y = linear_of(d, m, in, count);
  d->table->act_drop(d, in);
  return y;
}

static void check_f32_order(ops_type type, int32_t rows, int32_t columns, int32_t count) {
  matrix m = make_matrix(type, rows, columns);
  float *x = random_floats((size_t)count * (size_t)columns);
  for (int32_t i = 0; i < device_count; i++) {
    float *y = multiply(devices[OPS_MATH_F32][i], &m, x, count);
    for (int32_t at = 0; at < count * rows; at++) {
      float expected = defined_sum(&m, at % rows, x + at / rows * columns);
      if (memcmp(&y[at], &expected, sizeof expected) != 0)
        fail_msg("%s: type %d, %d x %d, %d rows: %.9g is not the defined sum %.9g",
                 devices[OPS_MATH_F32][i]->table->name, (int)type, rows, columns, count, (double)y[at],
                 (double)expected);
    }
    free(y);
  }
  free(x);
  free_matrix(&m);
}

/* With all inputs but part i zero, an output is the sum of part i. */
static float *multiply_part(device *d, const matrix *m, const float *x, int32_t i, int32_t count) {
  int32_t from, to;
  size_t columns = (size_t)m->columns;
  float *one = calloc((size_t)count * columns, sizeof *one);
  part_of(m->columns, i, &from, &to);
  for (size_t t = 0; t < (size_t)count; t++)
    memcpy(one + t * columns + from, x + t * columns + from, (size_t)(to - from) * sizeof *x);
  float *y = multiply(d, m, one, count);
  free(one);
  return y;
}

static void check_int8_order(ops_type type, int32_t rows, int32_t columns, int32_t count) {
  matrix m = make_matrix(type, rows, columns);
  float *x = random_floats((size_t)count * (size_t)columns);
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    float *y = multiply(d, &m, x, count), *part[4];
    for (int32_t p = 0; p < 4; p++) part[p] = multiply_part(d, &m, x, p, count);
    for (int32_t k = 0; k < count * rows; k++) {
      float expected = (part[0][k] + part[1][k]) + (part[2][k] + part[3][k]);
      if (memcmp(&y[k], &expected, sizeof expected) != 0)
        fail_msg("%s: type %d, %d x %d, %d rows: %.9g is not the sum %.9g of its parts", d->table->name,
                 (int)type, rows, columns, count, (double)y[k], (double)expected);
    }
    for (int32_t p = 0; p < 4; p++) free(part[p]);
    free(y);
  }
  free(x);
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

/* The int8 form of an input, from the definition, and the scale of its block. */
static int32_t quantised(const float *x, int32_t at, float *scale) {
  float largest = 0;
  for (int32_t i = at / 32 * 32; i < (at / 32 + 1) * 32; i++) largest = fmaxf(largest, fabsf(x[i]));
  *scale = largest / 127;
  return (int32_t)rintf(x[at] * (127 / largest));
}

/* Blocks [from, to) of a row of Q4_0 against int8 activations, one chain. */
static float q4_0_chain(const uint8_t *file, const float *x, int32_t from, int32_t to) {
  const quant_type *t = quant_type_of(OPS_Q4_0);
  float sum = 0, scale = 0;
  for (int32_t b = from; b < to; b++) {
    const uint8_t *block = file + b * t->bytes;
    int32_t products = 0;
    for (int32_t i = 0; i < 32; i++)
      products += (quant_nibble(block + 2, i) - 8) * quantised(x, b * 32 + i, &scale);
    sum = fmaf((float)quant_half(block) * scale, (float)products, sum);
  }
  return sum;
}

/* All of a weight's outputs decide about its parts. */
static void only_weights_of_few_outputs_have_parts(void **state) {
  (void)state;
  enum { COLUMNS = 1024, BLOCKS = COLUMNS / 32, USED = 16 };
  const int32_t outputs[] = {USED, 16384, 16385};
  const quant_type *t = quant_type_of(OPS_Q4_0);
  float *x = random_floats(COLUMNS);
  matrix m = make_matrix(OPS_Q4_0, USED, COLUMNS);
  m.file = realloc(m.file, (size_t)outputs[2] * BLOCKS * (size_t)t->bytes);
  memset(m.file + USED * BLOCKS * t->bytes, 0, (size_t)(outputs[2] - USED) * BLOCKS * (size_t)t->bytes);
  for (int32_t o = 0; o < 3; o++) {
    m.rows = outputs[o];
    for (int32_t i = 0; i < device_count; i++) {
      float *y = multiply(devices[OPS_MATH_INT8][i], &m, x, 1);
      for (int32_t r = 0; r < USED; r++) {
        const uint8_t *row = m.file + r * BLOCKS * t->bytes;
        float expected = (q4_0_chain(row, x, 0, 8) + q4_0_chain(row, x, 8, 16)) +
                         (q4_0_chain(row, x, 16, 24) + q4_0_chain(row, x, 24, 32));
        if (m.rows > 16384) expected = q4_0_chain(row, x, 0, 32);
        assert_memory_equal(&y[r], &expected, sizeof expected);
      }
      free(y);
    }
  }
  free(x);
  free_matrix(&m);
}

/* Blocks of a row in descending order: of a file's row of `size` bytes a block, or of activations. */
static void turn_blocks(void *row, size_t size, int32_t blocks) {
  uint8_t *x = row, kept[256];
  for (int32_t i = 0; i < blocks / 2; i++) {
    uint8_t *a = x + (size_t)i * size, *b = x + (size_t)(blocks - 1 - i) * size;
    memcpy(kept, a, size);
    memcpy(a, b, size);
    memcpy(b, kept, size);
  }
}

/* Another order of the same sum is what the memcmp tests have to notice. */
static void another_summation_order_is_seen(void **state) {
  (void)state;
  enum { COLUMNS = 576, BLOCKS = COLUMNS / OPS_BLOCK, BYTES = 20 /* of a block in the file */ };
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    matrix m = make_matrix(OPS_Q4_1, OPS_GROUP, COLUMNS);
    float *x = random_floats(COLUMNS);
    device_act *in = act_of(d, 1, COLUMNS, true, x);
    float *once = linear_of(d, &m, in, 1), *again = linear_of(d, &m, in, 1);
    for (int32_t r = 0; r < OPS_GROUP; r++) turn_blocks(m.file + r * BLOCKS * BYTES, BYTES, BLOCKS);
    turn_blocks(x, OPS_BLOCK * sizeof *x, BLOCKS);
    d->table->act_write(d, in, 1, x);
    float *turned = linear_of(d, &m, in, 1);
    assert_memory_equal(once, again, OPS_GROUP * sizeof *once);
    assert_int_not_equal(memcmp(once, turned, OPS_GROUP * sizeof *once), 0);
    for (int32_t r = 0; r < OPS_GROUP; r++)
      assert_near((double)turned[r], (double)once[r], 1e-2, "the turned sum");
    free(once), free(again), free(turned), free(x);
    d->table->act_drop(d, in);
    free_matrix(&m);
  }
}

/* --- linear_swiglu --- */

/* y of the reference, by what its linears say of gate and up. */
static void check_swiglu_values(const matrix *gate, const matrix *up, const device_act *x, int32_t rows,
                                const float *y) {
  device *d = devices[OPS_MATH_INT8][0];
  float *g = linear_of(d, gate, x, rows), *u = linear_of(d, up, x, rows), widest = 0;
  for (size_t i = 0; i < (size_t)rows * (size_t)gate->rows; i++) {
    double z = (double)g[i], expected = z / (1 + exp(-z)) * (double)u[i];
    widest = fmaxf(widest, fabsf(g[i]));
    double lost = fabs(z * (double)u[i]) * 2e-38; /* exp ends near 1e38 */
    assert_near((double)y[i], expected, fabs(expected) * 1e-6 + lost + 1e-35, "linear_swiglu");
    assert_true(y[i] == cpu_silu(g[i]) * u[i]); /* of the sums that `linear` makes */
  }
  assert_true(widest > 90); /* beyond what exp holds */
  free(g);
  free(u);
}

/* What an op has written is as near to its int8 form as the form allows. */
static void check_quantised(device *d, const device_act *y, int32_t rows, int32_t columns, const float *f32) {
  float *q = quantised_of(d, y, rows, columns);
  for (size_t i = 0; i < (size_t)rows * (size_t)columns; i++)
    assert_near((double)q[i], (double)f32[i], 0.5 * step_of(f32, i) * (1 + 1e-5), "quantised");
  free(q);
}

typedef struct swiglu_result {
  float *f32, *used; /* used: by another linear, which reads the int8 form and its sums */
} swiglu_result;

static swiglu_result run_swiglu(device *d, const matrix *gate, const matrix *up, const matrix *down,
                                const float *x, int32_t rows, bool reference) {
  device_act *in = act_of(d, rows, gate->columns, true, x), *y = act_of(d, rows, gate->rows, true, NULL);
  device_weight wg = pack_matrix(d, gate), wu = pack_matrix(d, up);
  begin_rows(d, rows);
  d->table->linear_swiglu(d, &wg, &wu, in, y);
  end_rows(d);
  swiglu_result r = {.f32 = read_act(d, y, rows, gate->rows)};
  if (down) r.used = linear_of(d, down, y, rows);
  if (reference) check_swiglu_values(gate, up, in, rows, r.f32);
  if (reference && down && gate->rows < 1000) check_quantised(d, y, rows, gate->rows, r.f32);
  d->table->act_drop(d, in);
  d->table->act_drop(d, y);
  drop_weight(d, wg);
  drop_weight(d, wu);
  return r;
}

static void check_linear_swiglu(ops_type type, int32_t rows, int32_t outputs, int32_t columns) {
  bool int8 = outputs % OPS_BLOCK == 0;
  matrix gate = make_matrix(type, outputs, columns), up = make_matrix(type, outputs, columns);
  matrix down = int8 ? make_matrix(OPS_Q4_1, 40, outputs) : (matrix){0};
  float *x = random_floats((size_t)rows * (size_t)columns);
  swiglu_result r[SUPPORT_DEVICES];
  for (int32_t k = 0; k < columns; k++) x[k] *= 1000;
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_INT8][i];
    r[i] = run_swiglu(d, &gate, &up, int8 ? &down : NULL, x, rows, i == 0);
    assert_same(d, r[i].f32, r[0].f32, (size_t)(rows * outputs) * sizeof(float), "linear_swiglu");
    if (int8) assert_same(d, r[i].used, r[0].used, (size_t)rows * 40 * sizeof(float), "swiglu, int8 form");
  }
  for (int32_t i = 0; i < device_count; i++) free(r[i].f32), free(r[i].used);
  free(x);
  free_matrix(&gate);
  free_matrix(&up);
  free_matrix(&down);
}

static void linear_swiglu_agrees(void **state) {
  (void)state;
  check_linear_swiglu(OPS_F32, 12, 541, 37);  /* outputs that fill no group */
  check_linear_swiglu(OPS_Q4_1, 1, 4128, 64); /* several panels of one row */
  check_linear_swiglu(OPS_Q4_1, 37, 352, 96); /* several tiles */
  check_linear_swiglu(OPS_F16, 16, 288, 32);
  check_linear_swiglu(OPS_Q4_1, 5, 96, 1056); /* sums in parts */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(linear_agrees),
      cmocka_unit_test(linear_agrees_for_every_number_of_rows),
      cmocka_unit_test(linear_takes_odd_shapes),
      cmocka_unit_test(a_sum_has_the_defined_order),
      cmocka_unit_test(only_weights_of_few_outputs_have_parts),
      cmocka_unit_test(linear_takes_extremes),
      cmocka_unit_test(another_summation_order_is_seen),
      cmocka_unit_test(linear_swiglu_agrees),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
