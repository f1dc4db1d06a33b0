/* libs: kernels : cost=15 */
/* Op head against its definition, on every device: its logits, and the tokens that follow from them with
 * noise_of for each output and the largest sum. */
#include "tests/support/choices.h"

#define ROWS_MAX 140 /* more than one pass of the CPU's op takes */

/* Every device with one host thread and with several. */
static int open_with_threads(void **state) {
  static const int32_t threads[] = {1, 2, 5};
  const char *name, *more = getenv("TANDEM_TEST_DEVICE");
  (void)state;
  device_count = 0;
  for (int t = 0; t < 3; t++) {
    for (int32_t i = 0; (name = devices_name(i)); i++) open_device(name, threads[t]);
    if (more) open_device(more, threads[t]);
  }
  return 0;
}

/* --- matrices with values of about 2^-3 to 2^0, of either sign --- */

static size_t row_bytes(ops_type type, int32_t columns) {
  const quant_type *t = quant_type_of(type);
  return (size_t)columns * (t ? (size_t)t->bytes : type == OPS_F32 ? 4 : 2) / (t ? (size_t)t->inputs : 1);
}

static void fill_row(const matrix *m, int32_t row) {
  size_t bytes = row_bytes(m->type, m->columns);
  uint8_t *at = m->file + (size_t)row * bytes, *end = at + bytes;
  const quant_type *t = quant_type_of(m->type);
  for (; t && at < end; at += t->bytes) quant_fill(t, at, random_bits, t->d_top - 3);
  for (; at < end; at += m->type == OPS_F32 ? 4 : 2) {
    float f = random_float();
    if (m->type == OPS_F32)
      memcpy(at, &f, 4);
    else if (m->type == OPS_BF16)
      memcpy(at, (const uint8_t *)&f + 2, 2);
    else
      quant_put_half(at, random_bits, 8, 11);
  }
}

static matrix make_head(ops_type type, int32_t rows, int32_t columns) {
  matrix m = {type, rows, columns, malloc((size_t)rows * row_bytes(type, columns)), NULL};
  for (int32_t r = 0; r < rows; r++) fill_row(&m, r);
  return m;
}

static void copy_row(const matrix *m, int32_t to, int32_t from) {
  size_t bytes = row_bytes(m->type, m->columns);
  memmove(m->file + (size_t)to * bytes, m->file + (size_t)from * bytes, bytes);
}

/* --- a forward: the first rows keep their logits; the same rows again, in the opposite order, choose --- */

static void begin_head(device *d, int32_t count, const ops_sampling *choices, bool keep) {
  ops_row rows[2 * ROWS_MAX];
  int32_t head[2 * ROWS_MAX], kept = keep ? count : 0;
  ops_sampling mine[ROWS_MAX];
  for (int32_t i = 0; i < count + kept; i++) {
    rows[i] = (ops_row){.position = i, .length = i + 1};
    head[i] = i;
  }
  memcpy(mine, choices, (size_t)count * sizeof *mine);
  assert_true(d->table->begin(d, NULL,
                              &(ops_batch){.rows = rows,
                                           .row_count = count + kept,
                                           .head_rows = head,
                                           .head_count = count + kept,
                                           .logit_count = kept,
                                           .choices = mine}));
  memset(head, 0x5a, sizeof head); /* copied */
  memset(mine, 0x5a, sizeof mine);
}

/* ids [count], and logits [count][m->rows] unless NULL. */
static void run_head(device *d, const matrix *m, const float *x, int32_t count, const ops_sampling *choices,
                     int32_t *ids, float *logits) {
  size_t floats = (size_t)count * (size_t)m->columns;
  float *twice = malloc(2 * floats * sizeof *twice);
  size_t kept = logits ? (size_t)count : 0, columns = (size_t)m->columns;
  for (size_t i = 0; i < kept; i++)
    memcpy(twice + i * columns, x + (kept - 1 - i) * columns, columns * sizeof *x);
  memcpy(twice + kept * columns, x, floats * sizeof *x);
  device_weight w = pack_matrix(d, m);
  device_act *in = act_of(d, count + (int32_t)kept, m->columns, true, twice);
  ops_answer a;
  begin_head(d, count, choices, logits != NULL);
  d->table->head(d, &w, in);
  d->table->end(d);
  assert_int_equal(d->table->wait(d, &a), OPS_OK);
  memcpy(ids, a.ids, (size_t)count * sizeof *ids);
  for (int32_t i = 0; i < count && logits; i++)
    memcpy(logits + (size_t)i * (size_t)m->rows, d->table->logits(d, count - 1 - i),
           (size_t)m->rows * sizeof *logits);
  d->table->act_drop(d, in);
  drop_weight(d, w);
  free(twice);
}

/* --- checks --- */

/* Logits are those of a linear, and each id is what its definition makes of them, logits kept or not. */
static void check_device(device *d, const matrix *m, const float *x, int32_t count,
                         const ops_sampling *choices) {
  size_t vocab = (size_t)m->rows;
  float *logits = malloc((size_t)count * vocab * sizeof *logits);
  int32_t ids[ROWS_MAX], alone[ROWS_MAX];
  run_head(d, m, x, count, choices, ids, logits);
  run_head(d, m, x, count, choices, alone, NULL);
  device_act *in = act_of(d, count, m->columns, true, x);
  float *expected_logits = linear_of(d, m, in, count);
  for (size_t i = 0; i < (size_t)count * vocab; i++)
    assert_true(memcmp(&logits[i], &expected_logits[i], 4) == 0 || isnan(logits[i]));
  for (int32_t i = 0; i < count; i++) {
    int32_t expected = choice_of(&choices[i], logits + (size_t)i * vocab, m->rows);
    if (ids[i] != expected || alone[i] != expected)
      fail_msg("%s, %d threads, type %d: row %d of %d chose %d and %d of %d, not %d (scale %g)",
               d->table->name, d->threads, m->type, i, count, ids[i], alone[i], m->rows, expected,
               (double)choices[i].scale);
  }
  d->table->act_drop(d, in);
  free(expected_logits);
  free(logits);
}

static void check_matrix(const matrix *m, int32_t count, ops_math math) {
  ops_sampling choices[ROWS_MAX];
  for (int32_t i = 0; i < count; i++) choices[i] = choice_random(i + (int)(random_bits() % 2));
  float *x = random_floats((size_t)count * (size_t)m->columns);
  for (int32_t i = 0; i < device_count; i++) check_device(devices[math][i], m, x, count, choices);
  free(x);
}

static void the_op_agrees(void **state) {
  (void)state;
  static const int32_t vocabs[] = {1, 15, 16, 17, 100, 1000};
  for (int type = 0; type < OPS_TYPE_COUNT; type++)
    for (int math = 0; math < 2; math++)
      for (int v = type % 2; v<6; v += type> OPS_Q8_0 ? 2 : 1) {
        const quant_type *t = quant_type_of((ops_type)type);
        matrix m = make_head((ops_type)type, vocabs[v], t && t->inputs > 64 ? t->inputs : 64);
        for (int32_t count = 1 + (type + v) % 4; count <= 33; count += 8)
          check_matrix(&m, count, (ops_math)math);
        free(m.file);
      }
}

static void many_rows_and_a_real_vocabulary(void **state) {
  (void)state;
  matrix large = make_head(OPS_Q8_0, 49152, 64), small = make_head(OPS_Q4_1, 50, 32);
  check_matrix(&large, 1, OPS_MATH_INT8);
  check_matrix(&large, 7, OPS_MATH_INT8);
  check_matrix(&small, ROWS_MAX, OPS_MATH_INT8);
  free(large.file);
  free(small.file);
}

/* Equal outputs far apart, in chunks of other threads: the lowest id, by whatever order they were met. */
static void ties_go_to_the_lowest_id(void **state) {
  (void)state;
  enum { VOCAB = 1500 };
  for (int round = 0; round < 12; round++) {
    matrix m = make_head(OPS_F32, VOCAB, 32);
    float *x = random_floats(3 * 32);
    int32_t lowest = 100 + (int32_t)(random_bits() % 700), wanted = round % 3 ? lowest : 0;
    for (int32_t i = 0; i < 32; i++) ((float *)(void *)m.file)[(size_t)lowest * 32 + (size_t)i] = 5;
    for (int32_t i = 0; i < 3 * 32; i++) x[i] = fabsf(x[i]);
    for (int32_t r = 0; r < VOCAB; r++)
      if (!wanted || (r > lowest && r % 90 == 0)) copy_row(&m, r, lowest);
    const ops_sampling choices[] = {{.scale = 0}, {.scale = 3e38f, .seed = 5}, {.scale = 0, .position = 3}};
    for (int32_t i = 0; i < device_count; i++) {
      int32_t ids[3];
      check_device(devices[OPS_MATH_F32][i], &m, x, 3, choices);
      run_head(devices[OPS_MATH_F32][i], &m, x, 3, choices, ids, NULL);
      assert_int_equal(ids[0], wanted);
      assert_int_equal(ids[2], wanted);
    }
    free(x);
    free(m.file);
  }
}

typedef enum {
  ONLY_NAN,
  ONLY_MINUS_INFINITY,
  NAN_FIRST,
  NAN_LAST,
  ONE_INFINITE,
  SOME_FINITE,
  ALL_NEGATIVE,
  KINDS
} kind;

/* An output that a row of ones will have. */
static float awkward_output(kind k, int32_t id) {
  const float three[] = {-100, -7, -INFINITY};
  switch (k) {
  case ONLY_NAN:
    return NAN;
  case ONLY_MINUS_INFINITY:
    return -INFINITY;
  case NAN_FIRST:
    return id == 0 ? NAN : three[id % 3];
  case NAN_LAST:
    return id == 330 ? -NAN : three[id % 3];
  case ONE_INFINITE:
    return id == 257 ? INFINITY : three[id % 3];
  case SOME_FINITE:
    return three[id % 3];
  default:
    return -7;
  }
}

/* -infinity never; -1 where nothing is left, and where one is a NaN or +infinity. The outputs after the last
 * of the matrix, which are 0, would win among negative ones. */
static void awkward_outputs(void **state) {
  (void)state;
  enum { VOCAB = 331, COLUMNS = 32 };
  const ops_sampling choices[] = {{.scale = 0}, {.scale = 1}, {.scale = 1e5f, .seed = 8, .position = 77}};
  matrix m = make_head(OPS_F32, VOCAB, COLUMNS);
  float x[3 * COLUMNS];
  for (int32_t i = 0; i < 3 * COLUMNS; i++) x[i] = 1;
  for (kind k = 0; k < KINDS; k++) {
    memset(m.file, 0, VOCAB * row_bytes(OPS_F32, COLUMNS));
    for (int32_t id = 0; id < VOCAB; id++) ((float *)(void *)m.file)[id * COLUMNS] = awkward_output(k, id);
    for (int32_t i = 0; i < device_count; i++) {
      int32_t ids[3];
      check_device(devices[OPS_MATH_F32][i], &m, x, 3, choices);
      run_head(devices[OPS_MATH_F32][i], &m, x, 3, choices, ids, NULL);
      for (int r = 0; r < 3; r++) {
        if (k < SOME_FINITE) assert_int_equal(ids[r], -1);
        if (k >= SOME_FINITE) assert_in_range(ids[r], 0, VOCAB - 1);
        if (k == SOME_FINITE) assert_int_not_equal(ids[r] % 3, 2);
      }
    }
  }
  free(m.file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_op_agrees),
      cmocka_unit_test(many_rows_and_a_real_vocabulary),
      cmocka_unit_test(ties_go_to_the_lowest_id),
      cmocka_unit_test(awkward_outputs),
  };
  return cmocka_run_group_tests(tests, open_with_threads, close_devices);
}
