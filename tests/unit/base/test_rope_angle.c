/* libs: base */
/* Sines and cosines of rotary angles against those of the C library in double. */
#include "kernels/rope_angle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define F32_EPS 0x1p-24

static void assert_near(float got, double expected) {
  if (!(fabs((double)got - expected) <= F32_EPS * 1.001))
    fail_msg("%.9g instead of %.9g", (double)got, expected);
}

static void angles_are_accurate(void **state) {
  (void)state;
  const double bases[] = {10000, 100000, 500000, 1.5};
  for (int b = 0; b < 4; b++) {
    for (int i = 0; i < 64; i++) {
      float frequency = (float)pow(bases[b], -2.0 * i / 128);
      for (int32_t position = 0; position < 1 << 20; position = position * 3 + 1) {
        float cosine, sine;
        double angle = (double)((float)position * frequency);
        rope_angle(frequency, position, 1, &cosine, &sine);
        assert_near(cosine, cos(angle));
        assert_near(sine, sin(angle));
      }
    }
  }
}

static void angles_are_multiplied_after_they_are_rounded(void **state) {
  (void)state;
  for (int32_t position = 0; position < 1000; position++) {
    float plain[2], times[2];
    rope_angle(0.37f, position, 1, &plain[0], &plain[1]);
    rope_angle(0.37f, position, 1.3f, &times[0], &times[1]);
    assert_true(times[0] == plain[0] * 1.3f && times[1] == plain[1] * 1.3f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(angles_are_accurate),
                                     cmocka_unit_test(angles_are_multiplied_after_they_are_rounded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
