/* libs: file base */
#include "common/file/quantise.h"
#include "tests/support/source_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct golden {
  uint32_t head[2]; /* numbers, bytes */
  float numbers[2048];
  uint8_t bytes[8192];
} golden;

static void read_golden(golden *g, const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/tests/golden/quantise/%s.bin", source_folder(), name);
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("%s is missing", path);
  assert_int_equal(fread(g->head, sizeof g->head, 1, f), 1);
  assert_true(g->head[0] > 0 && g->head[0] <= 2048 && g->head[1] <= sizeof g->bytes);
  assert_int_equal(fread(g->numbers, sizeof(float), g->head[0], f), g->head[0]);
  assert_int_equal(fread(g->bytes, 1, g->head[1], f), g->head[1]);
  fclose(f);
}

static void makes_the_bytes_that_another_program_makes(void **state) {
  (void)state;
  static const struct {
    gguf_type type;
    const char *name;
  } types[] = {{GGUF_F16, "F16"}, {GGUF_BF16, "BF16"}, {GGUF_Q8_0, "Q8_0"}, {GGUF_Q4_1, "Q4_1"}};
  static golden g;
  static uint8_t out[8192];
  for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
    read_golden(&g, types[t].name);
    assert_int_equal(quantise_bytes(types[t].type, g.head[0]), g.head[1]);
    assert_true(quantise(types[t].type, g.numbers, g.head[0], out));
    for (uint32_t i = 0; i < g.head[1]; i++)
      if (out[i] != g.bytes[i]) fail_msg("%s: byte %u is %d, not %d", types[t].name, i, out[i], g.bytes[i]);
  }
}

static void says_what_does_not_fit(void **state) {
  (void)state;
  static const struct {
    gguf_type type;
    float value;
    bool fits;
  } rows[] = {
      {GGUF_F16, 65519, true},    {GGUF_F16, 65520, false},    {GGUF_F16, -65536, false},
      {GGUF_BF16, 3.0e38f, true}, {GGUF_BF16, 3.4e38f, false}, {GGUF_F32, 3.4e38f, true},
      {GGUF_Q8_0, 8.0e6f, true},  {GGUF_Q8_0, 9.0e6f, false},  {GGUF_Q4_1, 65000, true},
      {GGUF_Q4_1, -70000, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    float values[32];
    uint8_t out[128];
    for (int k = 0; k < 32; k++) values[k] = rows[i].value;
    assert_int_equal(quantise(rows[i].type, values, 32, out), rows[i].fits);
  }
}

static void knows_its_types(void **state) {
  (void)state;
  assert_true(quantise_knows(GGUF_Q8_0) && quantise_block(GGUF_Q8_0) == 32 && quantise_block(GGUF_BF16) == 1);
  assert_false(quantise_knows(GGUF_Q4_K) || quantise_knows(GGUF_I64));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(makes_the_bytes_that_another_program_makes),
      cmocka_unit_test(says_what_does_not_fit),
      cmocka_unit_test(knows_its_types),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
