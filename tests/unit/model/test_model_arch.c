/* libs: model : far */
/* Every architecture against outputs of independent programs (tests/golden/README.md, arch/), from its folder
 * and from a GGUF of the same weights: f32 reproduces the outputs whole, int8 stays near them. */
#include "tests/support/arch_models.h"

#include <jansson.h>

enum { VOCAB = 512, LOGIT_ROWS = 32, CONTEXT = 1024, IDS_MAX = 1024 };
#define LOGIT_ERROR 1e-4
#define INT8_MARGIN 0.3 /* 8-bit weights, activations and an f16 cache may flip a smaller one */

typedef struct golden {
  int32_t prompt[IDS_MAX], output[IDS_MAX], prompt_count, output_count;
  double margins[IDS_MAX];
  float logits[LOGIT_ROWS * VOCAB];
} golden;

static int32_t read_ids(const json_t *object, const char *key, int32_t *ids) {
  const json_t *list = json_object_get(object, key);
  int32_t count = (int32_t)json_array_size(list);
  assert_in_range(count, 1, IDS_MAX);
  for (int32_t i = 0; i < count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
  return count;
}

static golden *read_golden(const arch_case *a, const char *ids, const char *logits) {
  golden *g = calloc(1, sizeof *g);
  char path[512];
  unsigned char head[10];
  snprintf(path, sizeof path, "%s/" SUPPORT_GOLDEN "arch/%s/%s", source_folder(), a->name, ids);
  json_t *object = json_load_file(path, 0, NULL);
  assert_non_null(object);
  g->prompt_count = read_ids(object, "prompt_ids", g->prompt);
  g->output_count = read_ids(object, "output_ids", g->output);
  for (int32_t i = 0; i < g->output_count; i++)
    g->margins[i] = json_number_value(json_array_get(json_object_get(object, "margins"), (size_t)i));
  json_decref(object);
  snprintf(path, sizeof path, "%s/" SUPPORT_GOLDEN "arch/%s/%s", source_folder(), a->name, logits);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  assert_int_equal(fread(head, 1, sizeof head, f), sizeof head);
  assert_int_equal(fseek(f, head[8] + head[9] * 256, SEEK_CUR), 0);
  assert_int_equal(fread(g->logits, sizeof(float), LOGIT_ROWS * VOCAB, f), LOGIT_ROWS * VOCAB);
  fclose(f);
  return g;
}

typedef struct run {
  model *m;
  kv_cache *k;
  int32_t seq;
} run;

static run open_run(const model_file *f, ops_math math, const char *name) {
  run r = {.m = support_open_model(f, math, name, 2)};
  r.k = support_open_cache(r.m, 1, CONTEXT, math == OPS_MATH_F32 ? KV_F32 : KV_F16);
  r.seq = kv_acquire(r.k);
  return r;
}

static void close_run(run *r) {
  kv_close(r->k);
  support_close_model(r->m);
}

/* The prompt, with the logits of its last LOGIT_ROWS positions: [LOGIT_ROWS][VOCAB]. */
static void run_prompt(run *r, const golden *g, float *logits) {
  int32_t first = g->prompt_count - LOGIT_ROWS;
  support_prefill(r->m, r->k, r->seq, g->prompt, first, 100);
  model_segment s = {.seq = r->seq,
                     .kind = MODEL_APPEND,
                     .count = LOGIT_ROWS,
                     .tokens = g->prompt + first,
                     .all_logits = true};
  assert_int_equal(model_forward(r->m, r->k, &s, 1), ERR_OK);
  for (int32_t i = 0; i < LOGIT_ROWS; i++)
    memcpy(logits + i * VOCAB, model_logits(r->m, 0, i), VOCAB * sizeof *logits);
}

static int32_t feed(run *r, int32_t token) {
  model_segment s = {.seq = r->seq, .kind = MODEL_APPEND, .count = 1, .tokens = &token};
  assert_int_equal(model_forward(r->m, r->k, &s, 1), ERR_OK);
  return support_argmax(r->m, 0, 0);
}

/* The greedy answer is the golden one. Returns the largest error of a logit. */
static double run_f32(const arch_case *a, const golden *g, const model_file *f, const char *name,
                      float *logits) {
  run r = open_run(f, OPS_MATH_F32, name);
  double worst = 0;
  run_prompt(&r, g, logits);
  for (int32_t i = 0; i < LOGIT_ROWS * VOCAB; i++)
    worst = fmax(worst, fabs((double)logits[i] - (double)g->logits[i]));
  int32_t token = support_argmax(r.m, 0, LOGIT_ROWS - 1);
  for (int32_t i = 0; i < g->output_count; i++) {
    if (token != g->output[i]) fail_msg("%s: output %d is %d instead of %d", a->name, i, token, g->output[i]);
    token = feed(&r, token);
  }
  close_run(&r);
  return worst;
}

/* Fed with the golden answer, it chooses the same wherever the choice was clear. Returns the flips. */
static int32_t run_rounded(const arch_case *a, const golden *g, const model_file *f, ops_math math) {
  run r = open_run(f, math, support_device());
  static float logits[LOGIT_ROWS * VOCAB];
  int32_t flips = 0;
  run_prompt(&r, g, logits);
  int32_t token = support_argmax(r.m, 0, LOGIT_ROWS - 1);
  for (int32_t i = 0; i < g->output_count; i++) {
    if (token != g->output[i] && g->margins[i] > INT8_MARGIN)
      fail_msg("%s: %s chose %d instead of %d, margin %.4f", a->name, model_numerics(r.m, KV_F16), token,
               g->output[i], g->margins[i]);
    flips += token != g->output[i];
    token = feed(&r, g->output[i]);
  }
  close_run(&r);
  return flips;
}

/* The answer of a GGUF; returns the largest error of a logit. */
static double run_gguf(const arch_case *a, const golden *g, arch_frequencies how, float *logits) {
  gguf_builder bytes;
  model_file *f = arch_open_gguf(a, GGUF_BF16, how, &bytes);
  double worst = run_f32(a, g, f, support_device(), logits);
  model_file_close(f);
  gb_free(&bytes);
  return worst;
}

static void check_rounded(const arch_case *a, const golden *g, ops_math math) {
  gguf_builder bytes;
  model_file *f = arch_open_gguf(a, math == OPS_MATH_INT8 ? GB_TYPE_Q8_0 : GGUF_BF16, ARCH_ROUNDED, &bytes);
  int32_t flips = run_rounded(a, g, f, math);
  print_message("%s: %s flips %d of %d\n", a->name, math == OPS_MATH_INT8 ? "int8" : "bf16", flips,
                g->output_count);
  model_file_close(f);
  gb_free(&bytes);
}

static void check_case(const arch_case *a) {
  static float logits[LOGIT_ROWS * VOCAB], of_gguf[LOGIT_ROWS * VOCAB];
  golden *rounded = read_golden(a, "golden.json", "logits.npy"),
         *exact = read_golden(a, "exact.json", "exact.npy");
  model_file *folder = arch_open(a);
  double errors[] = {
      run_f32(a, exact, folder, support_device(), logits),
      run_gguf(a, exact, ARCH_EXACT, of_gguf),
      run_gguf(a, rounded, ARCH_ROUNDED, of_gguf),
  };
  print_message("%s: largest logit error %.2g, as GGUF %.2g, with rounded frequencies %.2g\n", a->name,
                errors[0], errors[1], errors[2]);
  for (int i = 0; i < 3; i++) assert_true(errors[i] <= LOGIT_ERROR);
  model_file_close(folder);
  check_rounded(a, rounded, OPS_MATH_INT8);
  check_rounded(a, rounded, OPS_MATH_BF16);
  free(rounded);
  free(exact);
}

/* A folder and a GGUF of the same weights are the same model, bit for bit; rope_freqs.weight rounds once
 * more. */
static void check_same_bits(const arch_case *a) {
  static float logits[2][LOGIT_ROWS * VOCAB];
  golden *g = read_golden(a, "exact.json", "exact.npy");
  gguf_builder bytes;
  model_file *files[] = {arch_open(a), arch_open_gguf(a, GGUF_BF16, ARCH_EXACT, &bytes)};
  for (int i = 0; i < 2; i++) {
    run r = open_run(files[i], OPS_MATH_F32, support_device());
    run_prompt(&r, g, logits[i]);
    close_run(&r);
  }
  if (!model_file_tensor(files[1], MODEL_ROPE_FACTORS, 0))
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
  for (int i = 0; i < 2; i++) model_file_close(files[i]);
  gb_free(&bytes);
  free(g);
}

static void every_architecture(void **state) {
  (void)state;
  for (int32_t i = 0; i < ARCH_COUNT; i++) check_case(&ARCH_CASES[i]);
}

static void folders_and_gguf_agree(void **state) {
  (void)state;
  for (int32_t i = 0; i < ARCH_COUNT; i++) check_same_bits(&ARCH_CASES[i]);
}

/* bf16 without being asked for: only for BF16 weights, and only on a GPU. */
static void math_follows_weights_and_device(void **state) {
  (void)state;
  gguf_builder of_bf16, of_q8_0;
  model_file *bf16 = arch_open_gguf(&ARCH_CASES[0], GGUF_BF16, ARCH_EXACT, &of_bf16),
             *q8_0 = arch_open_gguf(&ARCH_CASES[0], GB_TYPE_Q8_0, ARCH_EXACT, &of_q8_0);
  assert_int_equal(model_math(MODEL_MATH_AUTO, bf16, "cuda:0"), OPS_MATH_BF16);
  assert_int_equal(model_math(MODEL_MATH_AUTO, bf16, "cpu:c"), OPS_MATH_INT8);
  assert_int_equal(model_math(MODEL_MATH_AUTO, q8_0, "cuda:0"), OPS_MATH_INT8);
  assert_int_equal(model_math(MODEL_MATH_AUTO, NULL, "cuda:0"), OPS_MATH_INT8);
  assert_int_equal(model_math(OPS_MATH_F32, bf16, "cuda:0"), OPS_MATH_F32);
  assert_int_equal(model_math(OPS_MATH_BF16, q8_0, "cpu"), OPS_MATH_BF16);
  model_file_close(bf16);
  model_file_close(q8_0);
  gb_free(&of_bf16);
  gb_free(&of_q8_0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_architecture),
                                     cmocka_unit_test(folders_and_gguf_agree),
                                     cmocka_unit_test(math_follows_weights_and_device)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
