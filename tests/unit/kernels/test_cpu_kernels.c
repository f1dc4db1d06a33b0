/* libs: kernels */
/* What the CPU's kernels make of activations, to the bit, on every instruction set that this processor has,
 * and the scalar arithmetic that they share. */
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_math.h"
#include "tests/support/ops_devices.h"

/* --- quantise --- */

enum { ROWS = 6, COLUMNS = 160, FLOATS = ROWS * COLUMNS, BLOCKS = FLOATS / OPS_BLOCK };

typedef struct quantised {
  int8_t q8[FLOATS];
  float scale[BLOCKS], sum[BLOCKS];
  cpu_total total[BLOCKS];
} quantised;

static void make_awkward(float *x) { /* one block each: zero, subnormal, huge, infinite, NaN */
  const float kinds[] = {0.0f, 1e-41f, 3e38f, INFINITY, NAN};
  for (int b = 0; b < 5; b++) {
    for (int i = 0; i < OPS_BLOCK; i++) x[b * OPS_BLOCK + i] = i % 3 ? kinds[b] : (float)(i - 16) * 1e-42f;
  }
}

static void check_quantised_values(const quantised *y, const float *x, int32_t blocks) {
  for (int32_t b = 0; b < blocks; b++) {
    int32_t total[2] = {0};
    for (int32_t k = b * OPS_BLOCK; k < (b + 1) * OPS_BLOCK; k++) {
      double scale = (double)y->scale[b];
      total[k / 16 % 2] += y->q8[k];
      assert_near(y->q8[k] * scale, (double)x[k], 0.5 * scale * (1 + 1e-5), "quantize");
    }
    assert_int_equal(y->total[b].all, total[0] + total[1]);
    assert_int_equal(y->total[b].first, total[0]);
    assert_int_equal(y->total[b].last, total[1]);
    double sum = (double)y->scale[b] * (total[0] + total[1]);
    assert_near((double)y->sum[b], sum, fabs(sum) * 1e-6 + 1e-35, "sum of a block");
  }
}

static bool same_number(float a, float b) { /* a NaN has no bits to agree on */
  return a == b || (isnan(a) && isnan(b));
}

static void quantize_agrees(void **state) {
  (void)state;
  static quantised y[CPU_ISA_COUNT];
  float *x = random_floats(FLOATS);
  make_awkward(x + (ROWS - 1) * COLUMNS);
  for (cpu_isa isa = CPU_C; isa < CPU_ISA_COUNT; isa++) {
    quantised *got = &y[isa];
    if (!cpu_isa_has(isa)) continue;
    cpu_isa_kernels(isa)->quantize(got->q8, got->scale, got->sum, got->total, x, FLOATS);
    assert_memory_equal(got->q8, y[CPU_C].q8, sizeof got->q8);
    assert_memory_equal(got->total, y[CPU_C].total, sizeof got->total);
    for (int32_t b = 0; b < BLOCKS; b++)
      assert_true(same_number(got->scale[b], y[CPU_C].scale[b]) && same_number(got->sum[b], y[CPU_C].sum[b]));
  }
  check_quantised_values(&y[CPU_C], x, BLOCKS - COLUMNS / OPS_BLOCK);
  for (int32_t k = 0; k < FLOATS; k++) assert_int_not_equal(y[CPU_C].q8[k], -128);
  free(x);
}

/* --- numbers --- */

static void halves_convert(void **state) {
  (void)state;
  for (uint32_t h = 0; h < 65536; h++) {
    if ((h & 0x7c00) == 0x7c00) continue;
    float f = cpu_f16((uint16_t)h);
    const uint8_t bytes[] = {(uint8_t)h, (uint8_t)(h >> 8)};
    assert_true((double)f == quant_half(bytes));
    assert_int_equal(cpu_to_f16(f), h);
    if ((h & 0x7fff) == 0x7bff) continue;                             /* the next one is infinite */
    float next = cpu_f16((uint16_t)(h + 1)), middle = (f + next) / 2; /* exact in f32 */
    assert_int_equal(cpu_to_f16(middle), h & 1 ? h + 1 : h);
    assert_int_equal(cpu_to_f16(nextafterf(middle, f)), h);
    assert_int_equal(cpu_to_f16(nextafterf(middle, next)), h + 1);
  }
  assert_int_equal(cpu_to_f16(65519.996f), 0x7bff);
  assert_int_equal(cpu_to_f16(65520.0f), 0x7e00); /* what would be infinite is a NaN */
  assert_int_equal(cpu_to_f16(-1e30f), 0xfe00);
  assert_int_equal(cpu_to_f16(-INFINITY), 0xfe00);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(quantize_agrees),
      cmocka_unit_test(halves_convert),
      cmocka_unit_test(exp_is_accurate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
