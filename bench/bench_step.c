/* bench_step: what a whole step of so many rows costs, at one context. A step is what the target's engine
 * does with a round: one row is appended; several are staged as a chain, run, and committed. Each row's
 * logits are made and their largest one found. Prints one JSON line:
 * {"threads", "context", "weight_bytes", "kv_bytes", "numerics", "variants": [of each width], "widths":
 * [...], "us": [[of each repetition] of each width]}. */
#include "common/base/clock.h"
#include "common/model/model.h"
#include "kernels/ops.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTHS_MAX      16
#define ROWS_MAX        KV_STAGE_MAX
#define REPETITIONS_MAX 1000
#define PREFILL_ROWS    128
#define WARM_UP         2  /* steps of each width before the first that counts */
#define TOKEN_STRIDE    37 /* any tokens do: a step costs the same whatever they are */

typedef struct bench {
  int32_t threads, context, repetitions, width_count;
  int32_t widths[WIDTHS_MAX];
  uint64_t us[WIDTHS_MAX][REPETITIONS_MAX];
  mem mem;
  gguf *file;
  model *model;
  kv_cache *kv;
  int32_t seq;
  int32_t tokens[ROWS_MAX], parents[ROWS_MAX], path[ROWS_MAX];
} bench;

static int fail(const char *why) {
  fprintf(stderr, "bench_step: %s\n", why);
  return 1;
}

static int open_all(bench *b, const char *path, err *e) {
  model_options o = {.math = MODEL_MATH_INT8, .isa = MODEL_ISA_AUTO, .threads = b->threads};
  int rc = gguf_open(&b->file, path, e);
  if (rc == ERR_OK) rc = model_open(&b->model, b->file, &o, &b->mem, e);
  if (rc != ERR_OK) return rc;
  kv_options k = {1, b->context + ROWS_MAX, KV_F16};
  rc = kv_open(&b->kv, model_shape(b->model), &k, &b->mem, e);
  if (rc != ERR_OK) return rc;
  b->seq = kv_acquire(b->kv);
  int32_t vocabulary = model_shape(b->model)->vocab;
  for (int32_t i = 0; i < ROWS_MAX; i++) {
    b->tokens[i] = i * TOKEN_STRIDE % vocabulary;
    b->parents[i] = i - 1;
    b->path[i] = i;
  }
  return ERR_OK;
}

static void close_all(bench *b) {
  kv_close(b->kv);
  model_close(b->model);
  gguf_close(b->file);
}

static int fill(bench *b) {
  for (int32_t done = 0; done < b->context;) {
    int32_t left = b->context - done, count = left < PREFILL_ROWS ? left : PREFILL_ROWS;
    model_segment s = {
        .seq = b->seq, .kind = MODEL_APPEND, .count = count, .tokens = b->tokens, .no_logits = true};
    int rc = model_forward(b->model, b->kv, &s, 1);
    if (rc != ERR_OK) return rc;
    done += count;
  }
  return ERR_OK;
}

static int plain(bench *b) {
  model_segment s = {.seq = b->seq, .kind = MODEL_APPEND, .count = 1, .tokens = b->tokens};
  int rc = model_forward(b->model, b->kv, &s, 1);
  if (rc == ERR_OK && model_argmax(b->model, 0, 0) < 0) rc = ERR_INTERNAL;
  return rc;
}

static int tree(bench *b, int32_t rows) {
  model_segment s = {.seq = b->seq,
                     .kind = MODEL_TREE,
                     .count = rows,
                     .tokens = b->tokens,
                     .parents = b->parents,
                     .all_logits = true};
  int rc = kv_stage(b->kv, b->seq, b->parents, rows);
  if (rc == ERR_OK) rc = model_forward(b->model, b->kv, &s, 1);
  for (int32_t i = 0; i < rows && rc == ERR_OK; i++)
    if (model_argmax(b->model, 0, i) < 0) rc = ERR_INTERNAL;
  return rc == ERR_OK ? kv_commit(b->kv, b->seq, b->path, rows) : rc;
}

/* Afterwards the cache is as before. */
static int step(bench *b, int32_t rows, uint64_t *us) {
  uint64_t begin = clock_us();
  int rc = rows == 1 ? plain(b) : tree(b, rows);
  *us = clock_us() - begin;
  return rc == ERR_OK ? kv_rollback(b->kv, b->seq, b->context) : rc;
}

/* The widths take turns, so that what else runs on the machine meets all of them alike. */
static int measure(bench *b) {
  int rc = fill(b);
  for (int32_t i = -WARM_UP; i < b->repetitions; i++)
    for (int32_t w = 0; w < b->width_count && rc == ERR_OK; w++)
      rc = step(b, b->widths[w], &b->us[w][i < 0 ? 0 : i]);
  return rc;
}

/* What a token's forward reads: every packed weight once, but of an input embedding of its own a single row.
 */
static uint64_t weight_bytes(const bench *b) {
  uint64_t all = atomic_load(&b->mem.bytes[MEM_WEIGHTS]);
  const gguf_tensor *embed = gguf_tensor_find(b->file, "token_embd.weight");
  return model_shape(b->model)->tied || !embed ? all : all - embed->bytes;
}

static uint64_t kv_bytes(const bench *b) {
  const model_config *c = model_shape(b->model);
  uint64_t elements = (uint64_t)c->layers * (uint64_t)c->kv_heads * (uint64_t)c->head_dim * 2;
  return elements * sizeof(uint16_t) * (uint64_t)b->context;
}

static void print(const bench *b) {
  printf(
      "{\"threads\": %d, \"context\": %d, \"weight_bytes\": %llu, \"kv_bytes\": %llu, \"numerics\": \"%s\", "
      "\"variants\": [",
      b->threads, b->context, (unsigned long long)weight_bytes(b), (unsigned long long)kv_bytes(b),
      model_numerics(b->model, KV_F16));
  for (int32_t w = 0; w < b->width_count; w++)
    printf("%s\"%s\"", w ? ", " : "", model_variant(b->model, b->widths[w]));
  printf("], \"widths\": [");
  for (int32_t w = 0; w < b->width_count; w++) printf("%s%d", w ? ", " : "", b->widths[w]);
  printf("], \"us\": [");
  for (int32_t w = 0; w < b->width_count; w++) {
    printf("%s[", w ? ", " : "");
    for (int32_t i = 0; i < b->repetitions; i++)
      printf("%s%llu", i ? ", " : "", (unsigned long long)b->us[w][i]);
    printf("]");
  }
  printf("]}\n");
}

static bool read_arguments(bench *b, int argc, char **argv) {
  if (argc < 6 || argc - 5 > WIDTHS_MAX) return false;
  b->threads = atoi(argv[2]);
  b->context = atoi(argv[3]);
  b->repetitions = atoi(argv[4]);
  for (int i = 5; i < argc; i++) {
    int32_t width = atoi(argv[i]);
    if (width < 1 || width > ROWS_MAX) return false;
    b->widths[b->width_count++] = width;
  }
  return b->threads >= 1 && b->threads <= OPS_THREADS_MAX && b->context >= 1 && b->repetitions >= 1 &&
         b->repetitions <= REPETITIONS_MAX;
}

int main(int argc, char **argv) {
  static bench b; /* large */
  err e = {0};
  if (!read_arguments(&b, argc, argv))
    return fail("usage: bench_step MODEL THREADS CONTEXT REPETITIONS WIDTH...");
  int rc = open_all(&b, argv[1], &e);
  if (rc != ERR_OK) {
    close_all(&b);
    return fail(e.text);
  }
  rc = measure(&b);
  if (rc == ERR_OK)
    print(&b);
  else
    fprintf(stderr, "bench_step: a forward failed: %s\n", err_name(rc));
  close_all(&b);
  return rc == ERR_OK ? 0 : 1;
}
