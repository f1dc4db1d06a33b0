/* libs: model : timeout=600 far cost=15 */
/* The walk of model_walk.h over what architectures differ in (tests/golden/arch): biases, norms of queries
 * and keys, windows that end among committed and among staged keys, scaled frequencies; every instruction
 * set, every kind of math. */
#include "tests/support/arch_models.h"
#include "tests/support/model_walk.h"

#define SHORT    170 /* more than two windows */
#define EMULATED 21  /* two tiles of rows and a part of one: the emulated device is slow */

static model_file *open_arch(const char *name, ops_math math, gguf_builder *b) {
  int32_t at = 0;
  while (strcmp(ARCH_CASES[at].name, name) != 0) assert_true(++at < ARCH_COUNT);
  return arch_open_gguf(&ARCH_CASES[at], math == OPS_MATH_INT8 ? GB_TYPE_Q8_0 : GGUF_BF16, ARCH_EXACT, b);
}

/* The reference is plain C's, row by row. */
static void check_arch(const char *name, ops_math math, bool with_c) {
  gguf_builder b;
  model_file *f = open_arch(name, math, &b);
  bits_case c = {f, math, math == OPS_MATH_F32 ? KV_F32 : KV_F16};
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

static void bf16(void **state) {
  (void)state;
  check_arch("mistral-window", OPS_MATH_BF16, false);
  check_arch("qwen3", OPS_MATH_BF16, false);
}

/* The same bits from a CUDA device's kernels: a row a forward, and many. */
static void bf16_emulated(void **state) {
  (void)state;
  device *d;
  err e = {0};
  const device_options o = {.math = OPS_MATH_BF16, .threads = 1};
  int rc = device_open(&d, "emulated:0", &o, NULL, &e);
  if (rc == ERR_ARG) skip(); /* a build for machines with a GPU */
  assert_int_equal(rc, ERR_OK);
  d->table->close(d);
  gguf_builder b;
  model_file *f = open_arch("qwen2", OPS_MATH_BF16, &b);
  bits_case c = {f, OPS_MATH_BF16, KV_F16};
  text *t = reference(&c, "cpu:c", EMULATED, 1);
  walk w = open_walk(&c, t, "emulated:0", 1);
  check_prefill(&w, EMULATED - 2, false);
  assert_int_equal(w.compared, EMULATED);
  close_walk(&w);
  free_text(t);
  model_file_close(f);
  gb_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(int8), cmocka_unit_test(f32), cmocka_unit_test(bf16),
                                     cmocka_unit_test(bf16_emulated)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
