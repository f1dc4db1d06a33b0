/* libs: file base */
#include "common/file/tensor_values.h"
#include "tests/support/source_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Rows and what they stand for, of the package `gguf` (tests/golden/make_dequant.py). */
static gguf_tensor read_golden(gguf_type type, const char *name, float **values) {
  char path[512];
  uint32_t head[3];
  snprintf(path, sizeof path, "%s/tests/golden/dequant/%s.bin", source_folder(), name);
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("%s is missing", path);
  assert_int_equal(fread(head, sizeof head, 1, f), 1);
  size_t bytes = (size_t)head[0] * head[2], count = (size_t)head[0] * head[1];
  void *data = malloc(bytes);
  *values = malloc(count * sizeof **values);
  assert_int_equal(fread(data, 1, bytes, f), bytes);
  assert_int_equal(fread(*values, sizeof **values, count, f), count);
  fclose(f);
  return (gguf_tensor){
      .name = name, .type = type, .dims = 2, .shape = {head[1], head[0], 1, 1}, .data = data, .bytes = bytes};
}

/* The products may be rounded in another order. */
static bool close_to(float a, float b) {
  if (!isfinite(b)) return !isfinite(a);
  return fabsf(a - b) <= 1e-6f * fabsf(b) + 1e-30f;
}

static void reads_rows_in_blocks(void **state) {
  (void)state;
  static const struct {
    gguf_type type;
    const char *name;
  } types[] = {{GGUF_Q8_0, "Q8_0"}, {GGUF_Q4_0, "Q4_0"}, {GGUF_Q4_1, "Q4_1"}, {GGUF_Q6_K, "Q6_K"}};
  for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
    float *wanted, row[256];
    gguf_tensor t = read_golden(types[k].type, types[k].name, &wanted);
    assert_int_equal(t.shape[0], 256);
    for (int64_t r = 0; r < t.shape[1]; r++) {
      assert_true(tensor_row(&t, r, row));
      for (int i = 0; i < 256; i++)
        if (!close_to(row[i], wanted[r * 256 + i]))
          fail_msg("%s, row %d, value %d: %a, not %a", types[k].name, (int)r, i, (double)row[i],
                   (double)wanted[r * 256 + i]);
    }
    free((void *)t.data);
    free(wanted);
  }
}

static void sees_scales_that_are_no_numbers(void **state) {
  (void)state;
  static const struct {
    gguf_type type;
    const char *name;
  } types[] = {{GGUF_Q8_0, "Q8_0"}, {GGUF_Q4_0, "Q4_0"}, {GGUF_Q4_1, "Q4_1"},    {GGUF_Q5_0, "Q5_0"},
               {GGUF_Q5_1, "Q5_1"}, {GGUF_Q2_K, "Q2_K"}, {GGUF_Q3_K, "Q3_K"},    {GGUF_Q4_K, "Q4_K"},
               {GGUF_Q5_K, "Q5_K"}, {GGUF_Q6_K, "Q6_K"}, {GGUF_IQ4_NL, "IQ4_NL"}};
  int refused = 0;
  for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
    float *values;
    gguf_tensor t = read_golden(types[k].type, types[k].name, &values), row = t;
    row.bytes = t.bytes / (size_t)t.shape[1];
    row.shape[1] = 1;
    bool whole = true;
    for (int64_t r = 0; r < t.shape[1]; r++) {
      bool finite = true;
      for (int i = 0; i < 256; i++) finite &= isfinite(values[r * 256 + i]) != 0;
      row.data = (const uint8_t *)t.data + (size_t)r * row.bytes;
      assert_int_equal(tensor_is_finite(&row), finite);
      whole &= finite;
    }
    assert_int_equal(tensor_is_finite(&t), whole);
    refused += !whole;
    free((void *)t.data);
    free(values);
  }
  assert_true(refused > 5);
}

static void reads_plain_values(void **state) {
  (void)state;
  static const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x7e00},
                        tops[] = {0x3f80, 0xc000, 0x7f80};
  float out[5];
  tensor_values(GGUF_F16, halves, 0, 5, out);
  assert_true(out[0] == 1 && out[1] == -2 && out[2] == 0x1p-24f && isinf(out[3]) && isnan(out[4]));
  tensor_values(GGUF_BF16, tops, 1, 2, out);
  assert_true(out[0] == -2 && isinf(out[1]));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_rows_in_blocks),
      cmocka_unit_test(sees_scales_that_are_no_numbers),
      cmocka_unit_test(reads_plain_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
