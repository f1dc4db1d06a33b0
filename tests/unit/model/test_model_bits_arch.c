/* libs: model : timeout=600 far cost=15 */
/* The walk of model_walk.h over what architectures differ in (tests/golden/arch): biases, norms of queries
 * and keys, windows that end among committed and among staged keys, scaled frequencies; every instruction
 * set, both kinds of math. */
#include "tests/support/arch_models.h"
#include "tests/support/model_walk.h"

#define SHORT 170 /* more than two windows */

/* The reference is plain C's, row by row. */
static void check_arch(const char *name, ops_math math, bool with_c) {
  gguf_builder b;
  int32_t at = 0;
  while (strcmp(ARCH_CASES[at].name, name) != 0) assert_true(++at < ARCH_COUNT);
  bool int8 = math == OPS_MATH_INT8;
  model_file *f = arch_open_gguf(&ARCH_CASES[at], int8 ? GB_TYPE_Q8_0 : GGUF_BF16, ARCH_EXACT, &b);
  bits_case c = {f, math, int8 ? KV_F16 : KV_F32};
  text *t = reference(&c, "cpu:c", SHORT, 1);
  print_message("%s\n", name);
  const char *device_name;
  for (int32_t i = 0; (device_name = support_device_at(i)); i++)
    if (with_c || strcmp(device_name, "cpu:c") != 0) check_device(&c, t, device_name, 1 + i % 3);
  free_text(t);
  model_file_close(f);
  gb_free(&b);
}

static void int8(void **state) {
  (void)state;
  check_arch("mistral-window", OPS_MATH_INT8, true);
  check_arch("llama-yarn", OPS_MATH_INT8, false);
  check_arch("qwen2", OPS_MATH_INT8, false);
  check_arch("qwen3", OPS_MATH_INT8, false);
}

static void f32(void **state) {
  (void)state;
  check_arch("mistral-window", OPS_MATH_F32, false);
  check_arch("qwen2", OPS_MATH_F32, false);
  check_arch("qwen3", OPS_MATH_F32, true);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(int8), cmocka_unit_test(f32)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
