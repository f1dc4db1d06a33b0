/* libs: model : labels=golden timeout=600 cost=40 */
/* The forward pass against outputs of an independent program (tests/golden/README.md): f32 math reproduces
 * them, int8 math stays within what quantised activations cost. */
#include "tests/support/models.h"

#include <math.h>

#define VOCAB          49152
#define LOGIT_ERROR    1e-3
#define F32_FREE_FLIP  3e-4 /* a smaller margin may flip in f32 */
#define INT8_MARGIN    0.5  /* above it int8 has to agree ... */
#define INT8_EXCEPTION 1000 /* ... but for one step in so many */
#define INT8_FLIPS     0.03
#define GOLDENS        24
#define CONTEXT        1024

typedef struct run {
  model *m;
  kv_cache *k;
  ops_math math;
  int32_t steps, flips, flips_over_margin, small_flips, logit_files;
  double worst_logit, worst_margin;
} run;

static float *read_npy(int32_t id) {
  char path[SUPPORT_PATH_MAX];
  snprintf(path, sizeof path, "%s/" SUPPORT_GOLDEN "smollm2_logits_%d.npy", source_folder(), id);
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  unsigned char head[10];
  assert_int_equal(fread(head, 1, sizeof head, f), sizeof head);
  assert_memory_equal(head, "\x93NUMPY\x01", 7);
  assert_int_equal(fseek(f, head[8] + head[9] * 256, SEEK_CUR), 0);
  float *data = malloc(VOCAB * sizeof *data);
  assert_int_equal(fread(data, sizeof *data, VOCAB, f), VOCAB);
  fclose(f);
  return data;
}

static void compare_logits(run *r, int32_t id, const float *logits) {
  float *golden = read_npy(id);
  if (!golden) return;
  r->logit_files++;
  for (int32_t i = 0; i < VOCAB; i++)
    r->worst_logit = fmax(r->worst_logit, fabs((double)logits[i] - golden[i]));
  free(golden);
}

static void compare_step(run *r, const support_golden *g, int32_t step, int32_t got) {
  double margin = g->margins[step];
  r->steps++;
  if (got == g->output[step]) return;
  r->flips++;
  r->worst_margin = fmax(r->worst_margin, margin);
  if (r->math == OPS_MATH_F32 && margin < F32_FREE_FLIP) r->small_flips++;
  if (margin <= INT8_MARGIN && r->math == OPS_MATH_INT8) return;
  r->flips_over_margin++;
  printf("prompt %d step %d: token %d instead of %d, margin %.6f\n", g->id, step, got, g->output[step],
         margin);
}

/* Teacher forcing: the prompt, then the golden output but for its last token; the logits after each token
 * choose the next. */
static void run_golden(const support_golden *g, void *context) {
  run *r = context;
  int32_t seq = kv_acquire(r->k);
  support_prefill(r->m, r->k, seq, g->prompt, g->prompt_count, MODEL_ROWS_MAX);
  compare_logits(r, g->id, model_logits(r->m, 0, (g->prompt_count - 1) % MODEL_ROWS_MAX));
  compare_step(r, g, 0, support_argmax(r->m, 0, (g->prompt_count - 1) % MODEL_ROWS_MAX));
  model_segment s = {.seq = seq,
                     .kind = MODEL_APPEND,
                     .count = g->output_count - 1,
                     .tokens = g->output,
                     .all_logits = true};
  assert_int_equal(model_forward(r->m, r->k, &s, 1), ERR_OK);
  for (int32_t i = 0; i + 1 < g->output_count; i++) compare_step(r, g, i + 1, support_argmax(r->m, 0, i));
  kv_release(r->k, seq);
}

static void run_all(run *r, kv_type type) {
  model_file *g = support_open_file();
  r->m = support_open_model(g, r->math, support_device(), 2);
  model_file_close(g);
  r->k = support_open_cache(r->m, 1, CONTEXT, type);
  assert_int_equal(support_each_golden(run_golden, r), GOLDENS);
  printf("%s: %d steps, %d flips (%.2f %%), largest margin at a flip %.4f\n", model_numerics(r->m, type),
         r->steps, r->flips, 100.0 * r->flips / r->steps, r->worst_margin);
  printf("largest logit error over %d files: %.6f\n", r->logit_files, r->worst_logit);
  kv_close(r->k);
  support_close_model(r->m);
}

static void f32_reproduces_the_goldens(void **state) {
  (void)state;
  run r = {.math = OPS_MATH_F32};
  run_all(&r, KV_F32);
  assert_int_equal(r.logit_files, 3);
  assert_true(r.worst_logit <= LOGIT_ERROR);
  assert_int_equal(r.flips, r.small_flips);
}

static void int8_stays_near_the_goldens(void **state) {
  (void)state;
  run r = {.math = OPS_MATH_INT8};
  run_all(&r, KV_F16);
  assert_true(r.steps > INT8_EXCEPTION);
  assert_true(r.flips_over_margin <= r.steps / INT8_EXCEPTION);
  assert_true(r.flips <= INT8_FLIPS * r.steps);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(f32_reproduces_the_goldens),
      cmocka_unit_test(int8_stays_near_the_goldens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
