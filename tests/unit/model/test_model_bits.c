/* libs: model : labels=thorough timeout=600 */
/* The walk of model_walk.h over a small random model with every weight type: 1 to 4 threads, C and the
 * device, both kinds of math, prefills and siblings too. */
#include "tests/support/model_walk.h"

/* C decodes the reference, with one thread; both have to meet it. */
static void tiny_model(ops_math math, kv_type type) {
  gguf_builder b;
  model_file *g = support_tiny_file(&b);
  bits_case c = {g, math, type};
  text *t = reference(&c, "cpu:c", LENGTH, 1);
  check_device(&c, t, "cpu:c", 2);
  for (int32_t threads = 1; threads <= 4; threads++) check_device(&c, t, support_device(), threads);
  free_text(t);
  model_file_close(g);
  gb_free(&b);
}

static void tiny_int8(void **state) {
  (void)state;
  tiny_model(OPS_MATH_INT8, KV_F16);
}

static void tiny_f32(void **state) {
  (void)state;
  tiny_model(OPS_MATH_F32, KV_F32);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(tiny_int8), cmocka_unit_test(tiny_f32)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
