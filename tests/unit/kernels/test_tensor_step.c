/* libs: kernels */
/* Class bf16-t25: the C reference against what a tensor core has computed (tests/golden/tensor_step.txt), and
 * the kernels of every instruction set against it, for numbers of every size. */
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/linear_step.h"
#include "kernels/cpu/tensor_step.h"
#include "tests/support/random.h"
#include "tests/support/source_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint32_t random_bits(void) { /* 24 of them */
  static uint64_t state = 1;
  return (uint32_t)(random_next(&state) >> 40);
}

static bool same(float a, float b) {
  return cpu_bits_of(a) == cpu_bits_of(b) || (isnan(a) && isnan(b));
}

/* --- a step --- */

typedef struct step {
  uint32_t before, after; /* bits of an f32 */
  uint16_t w[TENSOR_STEP], x[TENSOR_STEP];
} step;

static bool read_halves(FILE *f, uint16_t *to) {
  for (int i = 0; i < TENSOR_STEP; i++)
    if (fscanf(f, "%hx", &to[i]) != 1) return false;
  return true;
}

static bool read_step(FILE *f, step *s) {
  return fscanf(f, "%x %x", &s->before, &s->after) == 2 && read_halves(f, s->w) && read_halves(f, s->x);
}

/* Exchanges two pairs: the order of a step's inputs does not matter. */
static void exchange(step *s, size_t i, size_t k) {
  uint16_t w = s->w[i], x = s->x[i];
  s->w[i] = s->w[k], s->x[i] = s->x[k];
  s->w[k] = w, s->x[k] = x;
}

/* By the C kernel, as output `lane` of a group whose other outputs have other weights. */
static float computed(const step *s, size_t lane) {
  uint16_t weights[TENSOR_STEP * OPS_GROUP];
  float sums[OPS_GROUP] = {0};
  for (size_t i = 0; i < TENSOR_STEP * OPS_GROUP; i++) weights[i] = s->w[i % TENSOR_STEP];
  for (size_t i = 0; i < TENSOR_STEP; i++) weights[i * OPS_GROUP + lane] = s->w[i];
  sums[lane] = cpu_float_of(s->before);
  linear_step_exact(weights, s->x, 1u << lane, sums);
  return sums[lane];
}

static void a_step_is_what_a_tensor_core_computes(void **state) {
  (void)state;
  char path[512];
  snprintf(path, sizeof path, "%s/tests/golden/tensor_step.txt", source_folder());
  FILE *f = fopen(path, "r");
  if (!f) fail_msg("%s is missing", path);
  int32_t count = 0;
  for (step s; read_step(f, &s); count++) {
    for (size_t turn = 0; turn < TENSOR_STEP; turn++) {
      float got = computed(&s, turn);
      if (cpu_bits_of(got) != s.after) fail_msg("step %d: %08x, not %08x", count, cpu_bits_of(got), s.after);
      exchange(&s, turn, random_bits() % TENSOR_STEP);
    }
  }
  assert_true(feof(f) && count > 300);
  fclose(f);
}

/* Rounded by hand: halfway cases to even, what is too large to infinity. */
static void bf16_is_the_nearest_and_ties_go_to_even(void **state) {
  (void)state;
  static const struct {
    uint32_t from;
    uint16_t to;
  } cases[] = {{0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81},
               {0x3f818000, 0x3f82}, {0xbf818000, 0xbf82}, {0x00000000, 0x0000}, {0x80000000, 0x8000},
               {0x00008000, 0x0000}, {0x00008001, 0x0001}, {0x007fffff, 0x0080}, {0x7f7f7fff, 0x7f7f},
               {0x7f7f8000, 0x7f80}, {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
               {0x7fc00000, 0x7fff}, {0xff800001, 0x7fff}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(tensor_bf16(cpu_float_of(cases[i].from)), cases[i].to);
}

/* --- linears --- */

#define ROWS_MAX    CPU_ROWS_MAX
#define COLUMNS_MAX 1056

typedef enum { USUAL, WITH_ZEROS, SMALL, SUBNORMAL, LARGE, FINITE, ANY, KINDS } kind;

/* A bf16 with an exponent field of [first, first + count). */
static uint16_t bf16_of(uint32_t first, uint32_t count) {
  return (uint16_t)((random_bits() & 0x807f) | (first + random_bits() % count) << 7);
}

static uint16_t number(kind k) {
  switch (k) {
  case USUAL:
    return bf16_of(110, 20);
  case WITH_ZEROS:
    return random_bits() % 3 ? bf16_of(118, 12) : (uint16_t)(random_bits() % 2 << 15);
  case SMALL:
    return bf16_of(1, 60);
  case SUBNORMAL:
    return bf16_of(0, 2);
  case LARGE:
    return bf16_of(140, 115);
  case FINITE:
    return bf16_of(0, 255);
  default:
    return (uint16_t)random_bits();
  }
}

typedef struct linear {
  _Alignas(64) uint16_t weights[COLUMNS_MAX * OPS_GROUP], inputs[ROWS_MAX * COLUMNS_MAX];
} linear;

/* mixed: steps of these kinds stand side by side with usual ones. */
static void fill(linear *l, kind weights, kind inputs, bool mixed) {
  for (size_t i = 0; i < sizeof l->weights / 2; i++)
    l->weights[i] = number(mixed && i / OPS_GROUP / TENSOR_STEP % 3 == 1 ? USUAL : weights);
  for (size_t i = 0; i < sizeof l->inputs / 2; i++)
    l->inputs[i] = number(mixed && i / TENSOR_STEP % 5 == 1 ? USUAL : inputs);
}

static void check(linear *l, cpu_isa isa, int32_t columns, int32_t rows, int32_t parts) {
  const cpu_act x = {.columns = columns, .bf16 = l->inputs, .rows = rows};
  float want[ROWS_MAX * OPS_GROUP], got[ROWS_MAX * OPS_GROUP];
  cpu_kernels_c.linear_step(l->weights, &x, 0, rows, parts, want);
  cpu_isa_kernels(isa)->linear_step(l->weights, &x, 0, rows, parts, got);
  for (int32_t i = 0; i < rows * OPS_GROUP; i++)
    if (!same(got[i], want[i]))
      fail_msg("%s: %d columns, %d rows, %d parts: output %d is %a, not %a", cpu_isa_name(isa), columns, rows,
               parts, i, (double)got[i], (double)want[i]);
}

static void check_shapes(linear *l, cpu_isa isa) {
  check(l, isa, 32, 1, 1);
  check(l, isa, 1056, 3, CPU_PARTS);
  check(l, isa, 160, cpu_isa_kernels(isa)->rows_max, 1);
}

static void every_instruction_set_computes_the_same(void **state) {
  (void)state;
  linear *l = aligned_alloc(64, (sizeof *l + 63) / 64 * 64);
  for (cpu_isa isa = CPU_AVX2; isa < CPU_ISA_COUNT; isa++) {
    if (!cpu_isa_has(isa)) continue;
    for (int i = 0; i < ANY * KINDS * 2; i++) { /* a model's weights are finite */
      fill(l, (kind)(i / 2 % ANY), (kind)(i / 2 / ANY), i % 2);
      check_shapes(l, isa);
    }
  }
  free(l);
}

/* Where an input is zero, its weight does not matter, though it is larger than all others. */
static void a_zero_has_no_exponent(void **state) {
  (void)state;
  linear *l = aligned_alloc(64, (sizeof *l + 63) / 64 * 64);
  float without[2 * OPS_GROUP], with[2 * OPS_GROUP];
  const cpu_act x = {.columns = COLUMNS_MAX, .bf16 = l->inputs, .rows = 2};
  for (size_t i = 0; i < sizeof l->inputs / 2; i++)
    l->inputs[i] = i % COLUMNS_MAX % 7 ? bf16_of(100, 12) : (uint16_t)(random_bits() % 2 << 15);
  for (size_t i = 0; i < sizeof l->weights / 2; i++) l->weights[i] = i / OPS_GROUP % 7 ? bf16_of(100, 12) : 0;
  cpu_kernels_c.linear_step(l->weights, &x, 0, 2, CPU_PARTS, without);
  for (size_t i = 0; i < sizeof l->weights / 2; i++)
    if (i / OPS_GROUP % 7 == 0) l->weights[i] = bf16_of(200, 50);
  cpu_kernels_c.linear_step(l->weights, &x, 0, 2, CPU_PARTS, with);
  assert_memory_equal(with, without, sizeof with);
  for (cpu_isa isa = CPU_AVX2; isa < CPU_ISA_COUNT; isa++)
    if (cpu_isa_has(isa)) check(l, isa, COLUMNS_MAX, 2, CPU_PARTS);
  free(l);
}

/* As an H200 has it. */
static void what_is_cut_off_to_nothing_has_no_sign(void **state) {
  (void)state;
  step s = {.w = {[12] = 0x006c}, .x = {[3] = 0x4655, [12] = 0xb33b}};
  assert_int_equal(cpu_bits_of(computed(&s, 5)), 0);
}

/* Sums that nothing is cut off of are exact, in any class. */
static void whole_numbers_are_summed_exactly(void **state) {
  (void)state;
  linear *l = aligned_alloc(64, (sizeof *l + 63) / 64 * 64);
  float out[OPS_GROUP];
  for (size_t i = 0; i < sizeof l->weights / 2; i++)
    l->weights[i] = tensor_bf16((float)(random_bits() % 31) - 15);
  for (size_t i = 0; i < COLUMNS_MAX; i++) l->inputs[i] = tensor_bf16((float)(random_bits() % 63) - 31);
  const cpu_act x = {.columns = COLUMNS_MAX, .bf16 = l->inputs, .rows = 1};
  cpu_kernels_c.linear_step(l->weights, &x, 0, 1, CPU_PARTS, out);
  for (size_t r = 0; r < OPS_GROUP; r++) {
    float sum = 0;
    for (size_t i = 0; i < COLUMNS_MAX; i++)
      sum += cpu_bf16(l->weights[i * OPS_GROUP + r]) * cpu_bf16(l->inputs[i]);
    assert_true(sum == out[r]);
  }
  free(l);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_is_what_a_tensor_core_computes),
      cmocka_unit_test(bf16_is_the_nearest_and_ties_go_to_even),
      cmocka_unit_test(every_instruction_set_computes_the_same),
      cmocka_unit_test(a_zero_has_no_exponent),
      cmocka_unit_test(what_is_cut_off_to_nothing_has_no_sign),
      cmocka_unit_test(whole_numbers_are_summed_exactly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
