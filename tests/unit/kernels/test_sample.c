/* libs: kernels */
/* The kernels that choose a token, on every instruction set that this processor has: every output's noise to
 * the bit, and the rule that passes over outputs at its very edge. The op is in test_ops_head.c. */
#include "kernels/cpu/cpu_isa.h"
#include "tests/support/choices.h"

static const cpu_kernels *kernels[CPU_ISA_COUNT];
static int32_t kernel_count;

static int find_kernels(void **state) {
  (void)state;
  for (cpu_isa isa = CPU_C; isa < CPU_ISA_COUNT; isa++)
    if (cpu_isa_has(isa)) kernels[kernel_count++] = cpu_isa_kernels(isa);
  return 0;
}

#define STRIDE 40 /* of the groups in a panel: more than a group, and no power of two */
#define GROUPS 9

static void fill_logits(float *x, int32_t n, int shape) {
  static const float awkward[] = {-INFINITY, 0.0f, -0.0f, 3e38f, -3e38f, 1e-42f};
  const float no_numbers[] = {NAN, -NAN, INFINITY};
  const float spread[] = {0.01f, 1, 10, 0, 4, 4, 0};
  for (int32_t i = 0; i < n; i++) {
    x[i] = random_float() * spread[shape];
    if (shape == 4 && random_bits() % 3 == 0) x[i] = awkward[random_bits() % 6];
    if (shape == 6 || (shape == 5 && random_bits() % 2 == 0)) x[i] = -INFINITY; /* never wins */
  }
  if (random_bits() % 8 == 0) x[random_bits() % (uint32_t)n] = no_numbers[random_bits() % 3];
}

static void assert_winner(const char *name, winner got, winner expected) {
  if (memcmp(&got, &expected, sizeof got) == 0) return;
  fail_msg("%s: %d with %a instead of %d with %a", name, got.id, (double)got.value, expected.id,
           (double)expected.value);
}

/* A kernel on logits whose groups lie apart, as in the op's panel; the floats between them would win. */
static winner run_kernel(const cpu_kernels *k, winner w, const ops_sampling *c, const float *logits,
                         int32_t first, int32_t n) {
  float panel[GROUPS * STRIDE];
  for (int32_t i = 0; i < GROUPS * STRIDE; i++) panel[i] = INFINITY;
  for (int32_t i = 0; i < n; i++) panel[i / OPS_GROUP * STRIDE + i % OPS_GROUP] = logits[i];
  cpu_winner best = {w.value, w.id};
  k->sample(panel, STRIDE, first, n, c, &best);
  return (winner){best.value, best.id};
}

static void kernels_agree(void **state) {
  (void)state;
  for (int round = 0; round < 30000; round++) {
    float logits[GROUPS * OPS_GROUP];
    int32_t n = 1 + (int32_t)(random_bits() % (GROUPS * OPS_GROUP));
    int32_t first = (int32_t)(random_bits() % 4000) * OPS_GROUP;
    fill_logits(logits, n, round / 7 % 7);
    ops_sampling c = choice_random(round);
    winner from = {-INFINITY, INT32_MAX};
    if (round % 3) { /* somebody who is one of them, or near */
      int32_t i = (int32_t)(random_bits() % (uint32_t)n);
      from.value = choice_value(&c, logits[i], first + i);
      from.id = first + i + (int32_t)(random_bits() % 3) - 1;
      if (isnan(from.value) || from.id < 0) from = (winner){0, first};
    }
    winner expected = choice_winner(from, &c, logits, first, n);
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
    ops_sampling c = choice_random(1);
    int32_t first = id - id % OPS_GROUP + (id % 5 == 0) * 0x3ffffff0;
    winner from = {-INFINITY, INT32_MAX}, expected = choice_winner(from, &c, logits, first, OPS_GROUP);
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
      float value = choice_value(&c, 3, t);
      const winner rivals[] = {
          {nextafterf(value, -99), 0}, {value, t - 1}, {value, t + 1}, {nextafterf(value, 99), t + 1}};
      for (int r = 0; r < 4; r++) {
        winner expected = choice_winner(rivals[r], &c, logits, t - t % OPS_GROUP, OPS_GROUP);
        assert_true((expected.id == t) == (r == 0 || r == 2));
        for (int32_t k = 0; k < kernel_count; k++) {
          winner got = run_kernel(kernels[k], rivals[r], &c, logits, t - t % OPS_GROUP, OPS_GROUP);
          assert_winner(kernels[k]->name, got, expected);
        }
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kernels_agree),
      cmocka_unit_test(every_lane_has_its_noise),
      cmocka_unit_test(the_luckiest_is_not_passed_over),
  };
  return cmocka_run_group_tests(tests, find_kernels, NULL);
}
