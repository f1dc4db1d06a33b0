/* libs: model : labels=thorough;golden timeout=600 */
/* The default model on the emulated CUDA device: its logits are the CPU's. The shim takes seconds for a
 * forward, so this is the beginning of a text, in one forward and a step; test_model_bits_real.c goes
 * on to 1,500 tokens, on a GPU. */
#include "tests/support/model_walk.h"

#define TOKENS 12 /* a tile of rows, and a part of the next one */

/* Positions [at, at + count) of the text, in one forward. */
static void check_forward(walk *w, int32_t at, int32_t count) {
  const text *t = w->t;
  model_segment s = {.seq = w->seq[0],
                     .kind = MODEL_APPEND,
                     .count = count,
                     .tokens = t->tokens[0] + at,
                     .all_logits = true};
  assert_int_equal(model_forward(w->m, w->k, &s, 1), ERR_OK);
  for (int32_t i = 0; i < count; i++) compare(w, 0, at + i, model_logits(w->m, 0, i));
}

/* Builds for machines with a GPU do not know it. */
static bool is_known(const char *name) {
  device *d;
  err e = {0};
  const device_options o = {.math = OPS_MATH_INT8, .threads = 1};
  int rc = device_open(&d, name, &o, NULL, &e);
  if (rc == ERR_OK) d->table->close(d);
  return rc != ERR_ARG;
}

static void the_default_model(void **state) {
  (void)state;
  if (!is_known("emulated:0")) skip();
  model_file *g = support_open_file();
  bits_case c = {g, OPS_MATH_INT8, KV_F16};
  text *t = reference(&c, "cpu", TOKENS, 2);
  walk w = open_walk(&c, t, "emulated:0", 2);
  check_forward(&w, 0, TOKENS - 1);
  check_forward(&w, TOKENS - 1, 1);
  assert_int_equal(w.compared, TOKENS);
  report(&w, &c, 2);
  close_walk(&w);
  free_text(t);
  model_file_close(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_default_model)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
