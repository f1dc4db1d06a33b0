/* bench_step: what a whole step costs, at one context (bench/step.h tells which). ITEM is N (rows of one
 * sequence), seq:N (a row of each of N sequences), prompt:N (first token after a prompt of N tokens) or
 * decode:N (N plain steps). The items take turns, so that what else runs on the machine meets all of them
 * alike. With BENCH_SCATTERED in the environment no two blocks of a sequence's cache lie side by side; with
 * BENCH_NO_COPY a tree's rows are dropped, not committed. TANDEM_TEST_DEVICE names the device. Prints one
 * JSON line:
 * {"threads", "context", "weight_bytes", "kv_bytes", "numerics", "items": [...], "variants": [of each item],
 * "us":
 * [[of each repetition] of each item]}. */
#include "bench/step.h"

#include "kernels/ops.h"
#include <stdio.h>
#include <stdlib.h>

#define ITEMS_MAX       16
#define REPETITIONS_MAX 1000
#define CONTEXT_MAX     65536
#define WARM_UP         2 /* turns before the first that counts */

typedef struct bench {
  int32_t threads, context, repetitions, item_count;
  const char **names;
  step_item items[ITEMS_MAX];
  uint64_t ns[ITEMS_MAX][REPETITIONS_MAX];
  step_bench step;
} bench;

static int fail(const char *why) {
  fprintf(stderr, "bench_step: %s\n", why);
  return 1;
}

static int measure(bench *b) {
  int rc = ERR_OK;
  for (int32_t i = -WARM_UP; i < b->repetitions; i++)
    for (int32_t w = 0; w < b->item_count && rc == ERR_OK; w++)
      rc = step_run(&b->step, b->items[w], &b->ns[w][i < 0 ? 0 : i]);
  return rc;
}

static int32_t rows_at_once(step_item item) {
  return item.kind == STEP_PROMPT || item.kind == STEP_DECODE ? 1 : item.count;
}

static void print(const bench *b) {
  printf(
      "{\"threads\": %d, \"context\": %d, \"weight_bytes\": %llu, \"kv_bytes\": %llu, \"numerics\": \"%s\", "
      "\"items\": [",
      b->threads, b->context, (unsigned long long)step_weight_bytes(&b->step),
      (unsigned long long)step_kv_bytes(&b->step), model_numerics(b->step.model, KV_F16));
  for (int32_t w = 0; w < b->item_count; w++) printf("%s\"%s\"", w ? ", " : "", b->names[w]);
  printf("], \"variants\": [");
  for (int32_t w = 0; w < b->item_count; w++)
    printf("%s\"%s\"", w ? ", " : "", model_variant(b->step.model, rows_at_once(b->items[w])));
  printf("], \"us\": [");
  for (int32_t w = 0; w < b->item_count; w++) {
    printf("%s[", w ? ", " : "");
    for (int32_t i = 0; i < b->repetitions; i++) printf("%s%.1f", i ? ", " : "", (double)b->ns[w][i] / 1e3);
    printf("]");
  }
  printf("]}\n");
}

static bool read_arguments(bench *b, int argc, char **argv) {
  if (argc < 6 || argc - 5 > ITEMS_MAX) return false;
  b->threads = atoi(argv[2]);
  b->context = atoi(argv[3]);
  b->repetitions = atoi(argv[4]);
  b->names = (const char **)argv + 5;
  b->item_count = argc - 5;
  for (int32_t i = 0; i < b->item_count; i++)
    if (!step_parse(b->names[i], &b->items[i])) return false;
  return b->threads >= 1 && b->threads <= OPS_THREADS_MAX && b->context >= 1 && b->context <= CONTEXT_MAX &&
         b->repetitions >= 1 && b->repetitions <= REPETITIONS_MAX;
}

int main(int argc, char **argv) {
  static bench b; /* large */
  err e = {0};
  step_layout layout = getenv("BENCH_SCATTERED") ? STEP_SCATTERED : STEP_STATIC;
  if (!read_arguments(&b, argc, argv))
    return fail("usage: bench_step MODEL THREADS CONTEXT REPETITIONS ITEM... (N, seq:N, prompt:N, decode:N)");
  int rc = step_open(&b.step, argv[1], step_device(), MODEL_MATH_AUTO, b.threads, b.context, layout, b.items,
                     b.item_count, &e);
  b.step.no_copy = getenv("BENCH_NO_COPY") != NULL;
  if (rc != ERR_OK) {
    step_close(&b.step);
    return fail(e.text);
  }
  rc = measure(&b);
  if (rc == ERR_OK)
    print(&b);
  else
    fprintf(stderr, "bench_step: a forward failed: %s\n", err_name(rc));
  step_close(&b.step);
  return rc == ERR_OK ? 0 : 1;
}
