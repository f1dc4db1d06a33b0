/* libs: model */
/* Scaled frequencies against plain computations in double, written here from the sources that rope.h names;
 * the angles are in test_rope_angle.c. */
#include "common/model/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define PI  3.14159265358979323846
#define EPS 0x1p-23

static const model_config plain = {.rope_dim = 64, .rope_base = 500000, .context = 4096, .scaling.times = 1};

static double plain_frequency(int i) {
  return pow(500000, -2.0 * i / 64);
}

static void assert_near(double got, double expected) {
  if (!(fabs(got - expected) <= fabs(expected) * EPS)) fail_msg("%.9g instead of %.9g", got, expected);
}

static rope init(const model_config *c, const float *factors) {
  rope r;
  assert_true(rope_init(&r, c, factors));
  return r;
}

static void plain_frequencies_are_powers_of_the_base(void **state) {
  (void)state;
  const float bases[] = {10000, 100000, 500000, 1.5f};
  for (size_t b = 0; b < 4; b++) {
    rope r = init(&(model_config){.rope_dim = 128, .rope_base = bases[b], .scaling.times = 1}, NULL);
    for (int i = 0; i < 64; i++) {
      double expected = pow((double)bases[b], -2.0 * i / 128);
      assert_true(fabs((double)r.frequency[i] - expected) <= expected * EPS / 2 * 1.001);
    }
  }
}

static void linear_divides(void **state) {
  (void)state;
  model_config c = plain;
  c.scaling.kind = ROPE_LINEAR;
  c.scaling.factor = 4;
  rope r = init(&c, NULL);
  for (int i = 0; i < 32; i++) assert_near((double)r.frequency[i], plain_frequency(i) / 4);
  assert_true(r.times == 1);
}

static void llama3_stretches_long_waves(void **state) {
  (void)state;
  int kinds[3] = {0};
  model_config c = plain;
  c.scaling = (model_rope_scaling){
      .kind = ROPE_LLAMA3, .factor = 8, .original = 8192, .low = 1, .high = 4, .times = 1};
  rope r = init(&c, NULL);
  for (int i = 0; i < 32; i++) {
    double f = plain_frequency(i), wave = 2 * PI / f, smooth = (8192 / wave - 1) / (4 - 1);
    int kind = wave < 8192 / 4.0 ? 0 : wave > 8192 ? 1 : 2;
    kinds[kind]++;
    assert_near((double)r.frequency[i], kind == 0   ? f
                                        : kind == 1 ? f / 8
                                                    : (1 - smooth) * f / 8 + smooth * f);
  }
  assert_true(kinds[0] && kinds[1] && kinds[2]);
}

static double yarn_pair(double turns, double trained) {
  return 64 * log(trained / (turns * 2 * PI)) / (2 * log(500000));
}

static void check_yarn(const model_rope_scaling *s, double low, double high, double times) {
  model_config c = plain;
  c.scaling = *s;
  rope r = init(&c, NULL);
  for (int i = 0; i < 32; i++) {
    double ramp = fmin(1, fmax(0, (i - low) / (high > low ? high - low : 0.001))), f = plain_frequency(i);
    assert_near((double)r.frequency[i], f / (double)s->factor * ramp + f * (1 - ramp));
  }
  assert_near((double)r.times, times);
}

static void yarn_goes_over_between_two_pairs(void **state) {
  (void)state;
  model_rope_scaling s = {
      .kind = ROPE_YARN, .factor = 4, .original = 1024, .beta_fast = 32, .beta_slow = 1, .times = 1};
  double low = floor(yarn_pair(32, 1024)), high = ceil(yarn_pair(1, 1024)), own = 0.1 * log(4) + 1;
  assert_true(low > 0 && high < 32);
  check_yarn(&s, low, high, own);
  s.attention = 1.25f;
  check_yarn(&s, low, high, 1.25);
  s.attention = 0;
  s.mscale = 0.5f; /* counts with mscale_all alone */
  check_yarn(&s, low, high, own);
  s.mscale_all = 2;
  check_yarn(&s, low, high, (0.05 * log(4) + 1) / (0.2 * log(4) + 1));
  s.mscale = s.mscale_all = 0;
  s.times = 2;
  check_yarn(&s, low, high, 2 * own);
  s.times = 1;
  s.original = 8; /* both ends before the first pair: nothing is left as it was */
  check_yarn(&s, 0, fmax(0, ceil(yarn_pair(1, 8))), own);
  s.original = 1024;
  s.factor = 1;
  check_yarn(&s, low, high, 1);
}

static void factors_divide(void **state) {
  (void)state;
  float factors[32], row[2][128];
  model_config c = plain;
  for (int i = 0; i < 32; i++) factors[i] = 1 + (float)i / 4;
  rope r = init(&c, factors);
  for (int i = 0; i < 32; i++) assert_near((double)r.frequency[i], plain_frequency(i) / (1 + i / 4.0));
  /* sines and cosines, times */
  rope_row(&r, 77, row[0]);
  r.times = 0.5f;
  rope_row(&r, 77, row[1]);
  for (int i = 0; i < 128; i++) assert_true(row[1][i] == row[0][i] * 0.5f);
}

static void refuses_what_is_no_frequency(void **state) {
  (void)state;
  const float wrong[] = {0, -1, NAN, INFINITY, 1e-5f};
  rope r;
  for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
    float factors[32];
    for (int i = 0; i < 32; i++) factors[i] = i == 1 ? wrong[k] : 1;
    assert_false(rope_init(&r, &plain, factors));
  }
  model_config c = plain;
  c.rope_base = 1e-30f;
  assert_false(rope_init(&r, &c, NULL));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plain_frequencies_are_powers_of_the_base),
      cmocka_unit_test(linear_divides),
      cmocka_unit_test(llama3_stretches_long_waves),
      cmocka_unit_test(yarn_goes_over_between_two_pairs),
      cmocka_unit_test(factors_divide),
      cmocka_unit_test(refuses_what_is_no_frequency),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
