/* libs: model : timeout=600 */
/* The walk of model_walk.h over a small random model with every weight type: 1 to 4 threads, C and AVX2, both
 * kinds of math, prefills and siblings too. */
#include "tests/model_walk.h"

/* Every row of a tree, siblings too, against plain decoding of its own path. */
static void check_every_row(walk *w, const float *tree_logits, const tree_batch *b, int32_t at) {
  int32_t seq = w->seq[0], path[TREE_MAX];
  for (int32_t i = 0; i < b->count; i++) {
    int32_t depth = 0;
    for (int32_t r = i; r >= 0; r = b->parents[r]) path[depth++] = b->tokens[r];
    assert_int_equal(kv_rollback(w->k, seq, at), ERR_OK);
    while (depth-- > 0) {
      model_segment g = {.seq = seq, .kind = MODEL_APPEND, .count = 1, .tokens = &path[depth]};
      assert_int_equal(model_forward(w->m, w->k, &g, 1), ERR_OK);
    }
    size_t row = (size_t)w->t->vocab;
    if (memcmp(tree_logits + (size_t)i * row, model_logits(w->m, 0, 0), row * sizeof(float)) != 0) {
      fail_msg("row %d of a tree of %d has other bits than its path decoded", i, b->count);
    }
    w->compared++;
  }
}

static void check_siblings(walk *w, int32_t at, int32_t rows) {
  tree_batch b;
  size_t row = (size_t)w->t->vocab;
  float *logits = malloc((size_t)rows * row * sizeof *logits);
  assert_int_equal(kv_rollback(w->k, w->seq[0], 0), ERR_OK);
  support_prefill(w->m, w->k, w->seq[0], w->t->tokens[0], at, MODEL_ROWS_MAX);
  make_tree(w, 0, at, rows, &b);
  assert_int_equal(kv_stage(w->k, w->seq[0], b.parents, rows), ERR_OK);
  model_segment g = {.seq = w->seq[0],
                     .kind = MODEL_TREE,
                     .count = rows,
                     .tokens = b.tokens,
                     .parents = b.parents,
                     .all_logits = true};
  assert_int_equal(model_forward(w->m, w->k, &g, 1), ERR_OK);
  for (int32_t i = 0; i < rows; i++)
    memcpy(logits + (size_t)i * row, model_logits(w->m, 0, i), row * sizeof(float));
  check_every_row(w, logits, &b, at);
  free(logits);
}

/* Everything on one instruction set with one number of threads. */
static void check_isa(const bits_case *c, const text *t, model_isa isa, int32_t threads) {
  walk w = open_walk(c, t, isa, threads);
  random_walk(&w);
  check_prefill(&w, 64 + threads, true);
  check_prefill(&w, threads == 1 ? MODEL_ROWS_MAX : widths[threads], false);
  check_siblings(&w, t->length[0] / 3, 24);
  report(&w, c, threads);
  assert_true(w.trees > 0 && w.companions > 0);
  close_walk(&w);
}

/* C decodes the reference, with one thread; both instruction sets have to meet it. */
static void tiny_model(model_math math, kv_type type) {
  gguf_builder b;
  model_file *g = support_tiny_file(&b);
  bits_case c = {g, math, type};
  text *t = reference(&c, MODEL_ISA_C, LENGTH, 1);
  check_isa(&c, t, MODEL_ISA_C, 2);
  for (int32_t threads = 1; threads <= 4; threads++) check_isa(&c, t, MODEL_ISA_AUTO, threads);
  free_text(t);
  model_file_close(g);
  gb_free(&b);
}

static void tiny_int8(void **state) {
  (void)state;
  tiny_model(MODEL_MATH_INT8, KV_F16);
}

static void tiny_f32(void **state) {
  (void)state;
  tiny_model(MODEL_MATH_F32, KV_F32);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(tiny_int8), cmocka_unit_test(tiny_f32)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
