/* libs: model : labels=thorough;golden timeout=900 */
/* The walk of model_walk.h over the default model: the device's logits of 1,500 tokens are those of the CPU.
 */
#include "tests/support/model_walk.h"

#define SHORT_LENGTH 24 /* for plain C, which is slow */

/* The default model, which takes longer: the CPU's best instruction set decodes the reference, with two
 * threads; the device has to meet it on the full length with some numbers of threads, and plain C on a short
 * text. */
static void real_model(ops_math math, kv_type type, const int32_t *threads, int32_t thread_cases) {
  model_file *g = support_open_file();
  bits_case c = {g, math, type};
  text *t = reference(&c, "cpu", LENGTH, 2);
  for (int32_t i = 0; i < thread_cases; i++) {
    walk w = open_walk(&c, t, support_device(), threads[i]);
    random_walk(&w);
    report(&w, &c, threads[i]);
    close_walk(&w);
  }
  t->length[0] = SHORT_LENGTH;
  walk w = open_walk(&c, t, "cpu:c", 2);
  check_prefill(&w, 5, true);
  report(&w, &c, 2);
  close_walk(&w);
  free_text(t);
  model_file_close(g);
}

static void real_int8(void **state) {
  (void)state;
  real_model(OPS_MATH_INT8, KV_F16, (const int32_t[]){1, 4}, 2);
}

static void real_f32(void **state) {
  (void)state;
  real_model(OPS_MATH_F32, KV_F32, (const int32_t[]){3}, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(real_int8), cmocka_unit_test(real_f32)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
