/* libs: model */
/* The op `sample` against its definition: the logits of `linear`, noise_of for each output, and the largest
 * sum. And its kernels alone: every output's noise to the bit, and the rule that passes over outputs at its
 * very edge. */
#include "common/base/noise.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops.h"
#include "tests/quant_blocks.h"
#include "tests/activations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define ROWS_MAX 140 /* more than one pass of the op takes */

static uint32_t random_state = 1;

static uint32_t random_bits(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}

static float random_float(void) {
  return ((float)random_bits() / 0x1p23f - 1.0f) * 2.0f;
} /* [-2, 2) */

/* Every instruction set that this processor has: its kernels, and its op with one thread and with several. */
static const cpu_kernels *kernels[OPS_CPU_ISA_COUNT];
static ops *devices[OPS_CPU_ISA_COUNT * 3];
static int32_t kernel_count, device_count;

static int open_devices(void **state) {
  (void)state;
  static const int32_t threads[] = {1, 2, 5};
  static const cpu_kernels *const all[OPS_CPU_ISA_COUNT] = {
    [OPS_CPU_C] = &cpu_kernels_c,
#if defined(__x86_64__)
    [OPS_CPU_AVX2] = &cpu_kernels_avx2,
    [OPS_CPU_AVX_VNNI] = &cpu_kernels_avx_vnni,
    [OPS_CPU_AVX512] = &cpu_kernels_avx512,
#endif
  };
  for (int isa = 0; isa < OPS_CPU_ISA_COUNT; isa++) {
    if (!ops_cpu_has((ops_cpu_isa)isa)) continue;
    kernels[kernel_count++] = all[isa];
    for (int t = 0; t < 3; t++) {
      ops *o = ops_cpu_open((ops_cpu_isa)isa, threads[t]);
      if (!o) return -1;
      devices[device_count++] = o;
    }
  }
  return 0;
}

static int close_devices(void **state) {
  (void)state;
  for (int32_t i = 0; i < device_count; i++) devices[i]->table->close(devices[i]);
  return 0;
}

/* --- the definition --- */

static float value_of(const ops_sampling *c, float logit, int32_t id) {
  const noise_source noise = {c->seed, c->choice, c->position};
  return c->scale == 0 ? logit : logit * c->scale + noise_of(&noise, id);
}

static cpu_winner sampled(cpu_winner w, const ops_sampling *c, const float *logits, int32_t first,
                          int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    if (!(logits[i] > -INFINITY)) continue;
    float value = value_of(c, logits[i], first + i);
    if (value > w.value || (value == w.value && first + i < w.id)) w = (cpu_winner){value, first + i};
  }
  return w;
}

static int32_t chosen(const ops_sampling *c, const float *logits, int32_t n) {
  cpu_winner w = sampled((cpu_winner){-INFINITY, INT32_MAX}, c, logits, 0, n);
  return w.id == INT32_MAX ? 0 : w.id;
}

static ops_sampling random_choice(int i) {
  static const float scales[] = {0, 1.25f, 1, 0.01f, 1e5f, 1e-40f, 3e38f};
  return (ops_sampling){.scale = scales[i % 7],
                        .seed = (uint64_t)random_bits() << 40 ^ random_bits(),
                        .choice = random_bits() % 3,
                        .position = random_bits()};
}

/* --- the kernels --- */

#define STRIDE 40 /* of the groups in a panel: more than a group, and no power of two */
#define GROUPS 9

static void fill_logits(float *x, int32_t n, int shape) {
  static const float awkward[] = {NAN, -INFINITY, INFINITY, 0.0f, -0.0f, 3e38f, -3e38f, 1e-42f};
  const float spread[] = {0.01f, 1, 10, 0, 4, 4, 0};
  for (int32_t i = 0; i < n; i++) {
    x[i] = random_float() * spread[shape];
    if (shape == 4 && random_bits() % 3 == 0) x[i] = awkward[random_bits() % 8];
    if (shape == 6 || (shape == 5 && random_bits() % 2 == 0))
      x[i] = awkward[random_bits() % 2]; /* never win */
  }
}

static void assert_winner(const char *name, cpu_winner got, cpu_winner expected) {
  if (memcmp(&got, &expected, sizeof got) == 0) return;
  fail_msg("%s: %d with %a instead of %d with %a", name, got.id, (double)got.value, expected.id,
           (double)expected.value);
}

/* A kernel on logits whose groups lie apart, as in the op's panel; the floats between them would win. */
static cpu_winner run_kernel(const cpu_kernels *k, cpu_winner w, const ops_sampling *c, const float *logits,
                             int32_t first, int32_t n) {
  float panel[GROUPS * STRIDE];
  for (int32_t i = 0; i < GROUPS * STRIDE; i++) panel[i] = INFINITY;
  for (int32_t i = 0; i < n; i++) panel[i / OPS_GROUP * STRIDE + i % OPS_GROUP] = logits[i];
  k->sample(panel, STRIDE, first, n, c, &w);
  return w;
}

static void kernels_agree(void **state) {
  (void)state;
  for (int round = 0; round < 30000; round++) {
    float logits[GROUPS * OPS_GROUP];
    int32_t n = 1 + (int32_t)(random_bits() % (GROUPS * OPS_GROUP));
    int32_t first = (int32_t)(random_bits() % 4000) * OPS_GROUP;
    fill_logits(logits, n, round / 7 % 7);
    ops_sampling c = random_choice(round);
    cpu_winner from = {-INFINITY, INT32_MAX};
    if (round % 3) { /* somebody who is one of them, or near */
      int32_t i = (int32_t)random_bits() % n;
      from.value = value_of(&c, logits[i], first + i);
      from.id = first + i + (int32_t)(random_bits() % 3) - 1;
      if (isnan(from.value) || from.id < 0) from = (cpu_winner){0, first};
    }
    cpu_winner expected = sampled(from, &c, logits, first, n);
    for (int32_t k = 0; k < kernel_count; k++)
      assert_winner(kernels[k]->name, run_kernel(kernels[k], from, &c, logits, first, n), expected);
  }
}

/* One output at a time can win, so that its noise comes out. */
static void every_lane_has_its_noise(void **state) {
  (void)state;
  for (int32_t id = 0; id < 60000; id++) {
    float logits[OPS_GROUP];
    for (int i = 0; i < OPS_GROUP; i++) logits[i] = -INFINITY;
    logits[id % OPS_GROUP] = 0;
    ops_sampling c = random_choice(1);
    int32_t first = id - id % OPS_GROUP + (id % 5 == 0) * 0x3ffffff0;
    cpu_winner from = {-INFINITY, INT32_MAX}, expected = sampled(from, &c, logits, first, OPS_GROUP);
    assert_int_equal(expected.id, first + id % OPS_GROUP);
    for (int32_t k = 0; k < kernel_count; k++)
      assert_winner(kernels[k]->name, run_kernel(kernels[k], from, &c, logits, first, OPS_GROUP), expected);
  }
}

/* An output with nearly the most noise there is against a winner just below, equal to, and just above it:
 * what passes over outputs must not pass over this one. */
static void the_luckiest_is_not_passed_over(void **state) {
  (void)state;
  enum { TOKENS = 40000, LUCKY = 0x7ffff0 }; /* u above 1 - 2^-19: g above 13 */
  static uint32_t bits[TOKENS];
  int found = 0;
  for (uint32_t position = 0; found < 40; position++) {
    ops_sampling c = {.scale = 0.7f, .seed = 99, .position = position};
    noise_bits(&(noise_source){c.seed, c.choice, c.position}, 0, TOKENS / 4, bits);
    for (int32_t t = 1; t < TOKENS; t++) {
      if (bits[t] >> 9 < LUCKY) continue;
      found++;
      float logits[OPS_GROUP];
      for (int i = 0; i < OPS_GROUP; i++) logits[i] = -50;
      logits[t % OPS_GROUP] = 3;
      float value = value_of(&c, 3, t);
      const cpu_winner rivals[] = {
          {nextafterf(value, -99), 0}, {value, t - 1}, {value, t + 1}, {nextafterf(value, 99), t + 1}};
      for (int r = 0; r < 4; r++) {
        cpu_winner expected = sampled(rivals[r], &c, logits, t - t % OPS_GROUP, OPS_GROUP);
        assert_true((expected.id == t) == (r == 0 || r == 2));
        for (int32_t k = 0; k < kernel_count; k++) {
          cpu_winner got = run_kernel(kernels[k], rivals[r], &c, logits, t - t % OPS_GROUP, OPS_GROUP);
          assert_winner(kernels[k]->name, got, expected);
        }
      }
    }
  }
}

/* --- the op --- */

/* A matrix in its file form. */
typedef struct matrix {
  ops_type type;
  int32_t rows, columns;
  size_t row_bytes;
  uint8_t *file;
} matrix;

static size_t row_bytes(ops_type type, int32_t columns) {
  const quant_type *t = quant_type_of(type);
  return (size_t)columns * (t ? (size_t)t->bytes : type == OPS_F32 ? 4 : 2) / (t ? (size_t)t->inputs : 1);
}

/* Values of about 2^-3 to 2^0, of either sign. */
static void fill_row(const matrix *m, int32_t row) {
  uint8_t *at = m->file + (size_t)row * m->row_bytes, *end = at + m->row_bytes;
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

static matrix make_matrix(ops_type type, int32_t rows, int32_t columns) {
  matrix m = {type, rows, columns, row_bytes(type, columns), NULL};
  m.file = malloc((size_t)rows * m.row_bytes);
  for (int32_t r = 0; r < rows; r++) fill_row(&m, r);
  return m;
}

static void copy_row(const matrix *m, int32_t to, int32_t from) {
  memmove(m->file + (size_t)to * m->row_bytes, m->file + (size_t)from * m->row_bytes, m->row_bytes);
}

static ops_weight pack_matrix(const ops *o, const matrix *m) {
  void *data = aligned_alloc(64, o->table->packed_bytes(m->type, m->rows, m->columns));
  o->table->pack(m->type, m->rows, m->columns, m->file, data, 0, (m->rows + OPS_GROUP - 1) / OPS_GROUP);
  return (ops_weight){m->type, m->rows, m->columns, data};
}

static ops_act make_act(int32_t rows, int32_t columns, bool int8) {
  size_t n = (size_t)rows * (size_t)columns;
  ops_act a = {.columns = columns, .f32 = malloc(n * sizeof(float))};
  for (size_t i = 0; i < n; i++) a.f32[i] = random_float();
  if (!int8) return a;
  a.q8 = calloc(n, 1);
  a.scale = calloc(n / OPS_BLOCK, 4);
  a.sum = calloc(n / OPS_BLOCK, 4);
  a.total = calloc(n / OPS_BLOCK, sizeof *a.total);
  return a;
}

static void free_act(ops_act *a) {
  free(a->f32);
  free(a->q8);
  free(a->scale);
  free(a->sum);
  free(a->total);
}

static void check_device(ops *o, const matrix *m, ops_act *x, int32_t count, const ops_sampling *choices) {
  size_t vocab = (size_t)m->rows;
  ops_weight w = pack_matrix(o, m);
  float *logits = malloc((size_t)count * vocab * sizeof *logits);
  int32_t ids[ROWS_MAX + 1];
  ids[count] = -7;
  quantize_rows(o, x, count);
  o->table->linear(o, &(ops_linear){.w = &w, .y = logits}, 1, x, count);
  o->table->sample(o, &w, x, count, choices, ids);
  for (int32_t i = 0; i < count; i++) {
    int32_t expected = chosen(&choices[i], logits + (size_t)i * vocab, m->rows);
    if (ids[i] != expected)
      fail_msg("%s, %d threads, type %d: row %d of %d chose %d of %d, not %d (scale %g)", o->table->name,
               o->threads, m->type, i, count, ids[i], m->rows, expected, (double)choices[i].scale);
  }
  assert_int_equal(ids[count], -7);
  free(logits);
  free((void *)(uintptr_t)w.data);
}

static void check_matrix(const matrix *m, int32_t count, bool int8) {
  ops_sampling choices[ROWS_MAX];
  for (int32_t i = 0; i < count; i++) choices[i] = random_choice(i + (int)random_bits() % 2);
  ops_act x = make_act(count, m->columns, int8);
  for (int32_t i = 0; i < device_count; i++) check_device(devices[i], m, &x, count, choices);
  free_act(&x);
}

static void the_op_agrees(void **state) {
  (void)state;
  static const int32_t vocabs[] = {1, 15, 16, 17, 100, 1000};
  for (int type = 0; type < OPS_TYPE_COUNT; type++)
    for (int int8 = 0; int8 < 2; int8++)
      for (int v = type % 2; v<6; v += type> OPS_Q8_0 ? 2 : 1) {
        const quant_type *t = quant_type_of((ops_type)type);
        matrix m = make_matrix((ops_type)type, vocabs[v], t && t->inputs > 64 ? t->inputs : 64);
        for (int32_t count = 1 + (type + v) % 4; count <= 33; count += 8) check_matrix(&m, count, int8);
        free(m.file);
      }
}

static void many_rows_and_a_real_vocabulary(void **state) {
  (void)state;
  matrix large = make_matrix(OPS_Q8_0, 49152, 64), small = make_matrix(OPS_Q4_1, 50, 32);
  check_matrix(&large, 1, true);
  check_matrix(&large, 7, true);
  check_matrix(&small, ROWS_MAX, true);
  free(large.file);
  free(small.file);
}

/* Equal outputs far apart, in chunks of other threads: the lowest id, by whatever order they were met. */
static void ties_go_to_the_lowest_id(void **state) {
  (void)state;
  enum { VOCAB = 1500 };
  for (int round = 0; round < 12; round++) {
    matrix m = make_matrix(OPS_F32, VOCAB, 32);
    ops_act x = make_act(3, 32, false);
    int32_t lowest = 100 + (int32_t)(random_bits() % 700), wanted = round % 3 ? lowest : 0;
    for (int32_t i = 0; i < 32; i++) ((float *)m.file)[(size_t)lowest * 32 + (size_t)i] = 5;
    for (int32_t i = 0; i < 3 * 32; i++) x.f32[i] = fabsf(x.f32[i]);
    for (int32_t r = 0; r < VOCAB; r++)
      if (!wanted || (r > lowest && r % 90 == 0)) copy_row(&m, r, lowest);
    const ops_sampling choices[] = {{.scale = 0}, {.scale = 3e38f, .seed = 5}, {.scale = 0, .position = 3}};
    for (int32_t i = 0; i < device_count; i++) {
      ops *o = devices[i];
      ops_weight w = pack_matrix(o, &m);
      int32_t ids[3];
      check_device(o, &m, &x, 3, choices);
      o->table->sample(o, &w, &x, 3, choices, ids);
      assert_int_equal(ids[0], wanted);
      assert_int_equal(ids[2], wanted);
      free((void *)(uintptr_t)w.data);
    }
    free_act(&x);
    free(m.file);
  }
}

typedef enum {
  ONLY_NAN,
  ONLY_MINUS_INFINITY,
  NAN_FIRST,
  SOME_FINITE,
  ONE_INFINITE,
  ALL_NEGATIVE,
  KINDS
} kind;

/* An output that a row of ones will have. */
static float awkward_output(kind k, int32_t id) {
  const float three[] = {-100, NAN, -INFINITY};
  switch (k) {
  case ONLY_NAN:
    return NAN;
  case ONLY_MINUS_INFINITY:
    return -INFINITY;
  case NAN_FIRST:
    return id == 0 ? NAN : -INFINITY;
  case ONE_INFINITE:
    return id == 257 ? INFINITY : three[id % 3];
  case SOME_FINITE:
    return three[id % 3];
  default:
    return -7;
  }
}

/* NaN and -infinity never, +infinity before all; where nothing is left, 0. The outputs after the last of the
 * matrix, which are 0, would win among negative ones. */
static void awkward_outputs(void **state) {
  (void)state;
  enum { VOCAB = 331, COLUMNS = 32 };
  const ops_sampling choices[] = {{.scale = 0}, {.scale = 1}, {.scale = 1e5f, .seed = 8, .position = 77}};
  matrix m = make_matrix(OPS_F32, VOCAB, COLUMNS);
  ops_act x = make_act(3, COLUMNS, false);
  for (int32_t i = 0; i < 3 * COLUMNS; i++) x.f32[i] = 1;
  for (kind k = 0; k < KINDS; k++) {
    memset(m.file, 0, VOCAB * m.row_bytes);
    for (int32_t id = 0; id < VOCAB; id++) ((float *)m.file)[id * COLUMNS] = awkward_output(k, id);
    for (int32_t i = 0; i < device_count; i++) {
      ops *o = devices[i];
      ops_weight w = pack_matrix(o, &m);
      int32_t ids[3];
      check_device(o, &m, &x, 3, choices);
      o->table->sample(o, &w, &x, 3, choices, ids);
      for (int r = 0; r < 3; r++) {
        assert_in_range(ids[r], 0, VOCAB - 1);
        if (k <= NAN_FIRST) assert_int_equal(ids[r], 0);
        if (k == SOME_FINITE) assert_int_equal(ids[r] % 3, 0);
        if (k == ONE_INFINITE) assert_int_equal(ids[r], 257);
      }
      free((void *)(uintptr_t)w.data);
    }
  }
  free_act(&x);
  free(m.file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kernels_agree),
      cmocka_unit_test(every_lane_has_its_noise),
      cmocka_unit_test(the_luckiest_is_not_passed_over),
      cmocka_unit_test(the_op_agrees),
      cmocka_unit_test(many_rows_and_a_real_vocabulary),
      cmocka_unit_test(ties_go_to_the_lowest_id),
      cmocka_unit_test(awkward_outputs),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
