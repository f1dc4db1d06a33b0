/* verify_width: the peer's counterpart of bench_step's chains: what one decode of M tokens of one sequence
 * costs in libllama, with the logits of all of them, at one depth. (llama-bench -p M computes the last
 * token's only.) The widths take turns; the cache is cut back to the depth after each. Built by
 * bench/get_peer.sh, no part of tandem. Prints one JSON line: {"threads", "context", "widths": [...], "us":
 * [[of each repetition] of each]}. */
#include "llama.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WIDTHS_MAX      16
#define ROWS_MAX        256
#define REPETITIONS_MAX 1000
#define BATCH           512
#define WARM_UP         2
#define TOKEN_STRIDE    37

typedef struct bench {
  int threads, context, repetitions, width_count;
  int widths[WIDTHS_MAX];
  uint64_t us[WIDTHS_MAX][REPETITIONS_MAX];
  struct llama_model *model;
  struct llama_context *llama;
  struct llama_batch batch;
  int vocabulary;
} bench;

static uint64_t clock_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void be_silent(enum ggml_log_level level, const char *text, void *context) {
  (void)level, (void)text, (void)context;
}

static bool open_all(bench *b, const char *path) {
  llama_log_set(be_silent, NULL);
  llama_backend_init();
  b->model = llama_model_load_from_file(path, llama_model_default_params());
  if (!b->model) return false;
  struct llama_context_params p = llama_context_default_params();
  p.n_ctx = (uint32_t)(b->context + ROWS_MAX);
  p.n_batch = p.n_ubatch = BATCH;
  p.n_threads = p.n_threads_batch = b->threads;
  b->llama = llama_init_from_model(b->model, p);
  b->batch = llama_batch_init(BATCH, 0, 1);
  b->vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(b->model));
  return b->llama != NULL;
}

static bool decode(bench *b, int first, int count, bool logits) {
  b->batch.n_tokens = count;
  for (int i = 0; i < count; i++) {
    b->batch.token[i] = (first + i) * TOKEN_STRIDE % b->vocabulary;
    b->batch.pos[i] = first + i;
    b->batch.n_seq_id[i] = 1;
    b->batch.seq_id[i][0] = 0;
    b->batch.logits[i] = logits;
  }
  if (llama_decode(b->llama, b->batch) != 0) return false;
  llama_synchronize(b->llama);
  return !logits || llama_get_logits_ith(b->llama, count - 1) != NULL;
}

static bool fill(bench *b) {
  for (int done = 0; done < b->context;) {
    int left = b->context - done, count = left < BATCH ? left : BATCH;
    if (!decode(b, done, count, false)) return false;
    done += count;
  }
  return true;
}

static bool step(bench *b, int rows, uint64_t *us) {
  uint64_t begin = clock_us();
  bool good = decode(b, b->context, rows, true);
  *us = clock_us() - begin;
  return good && llama_memory_seq_rm(llama_get_memory(b->llama), 0, b->context, -1);
}

static bool measure(bench *b) {
  bool good = fill(b);
  for (int i = -WARM_UP; i < b->repetitions; i++)
    for (int w = 0; w < b->width_count && good; w++) good = step(b, b->widths[w], &b->us[w][i < 0 ? 0 : i]);
  return good;
}

static void print(const bench *b) {
  printf("{\"threads\": %d, \"context\": %d, \"widths\": [", b->threads, b->context);
  for (int w = 0; w < b->width_count; w++) printf("%s%d", w ? ", " : "", b->widths[w]);
  printf("], \"us\": [");
  for (int w = 0; w < b->width_count; w++) {
    printf("%s[", w ? ", " : "");
    for (int i = 0; i < b->repetitions; i++) printf("%s%llu", i ? ", " : "", (unsigned long long)b->us[w][i]);
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
    int width = atoi(argv[i]);
    if (width < 1 || width > ROWS_MAX) return false;
    b->widths[b->width_count++] = width;
  }
  return b->threads >= 1 && b->context >= 1 && b->repetitions >= 1 && b->repetitions <= REPETITIONS_MAX;
}

int main(int argc, char **argv) {
  static bench b; /* large */
  if (!read_arguments(&b, argc, argv)) {
    fprintf(stderr, "usage: verify_width MODEL THREADS CONTEXT REPETITIONS WIDTH...\n");
    return 2;
  }
  if (!open_all(&b, argv[1])) {
    fprintf(stderr, "verify_width: cannot open %s\n", argv[1]);
    return 1;
  }
  bool good = measure(&b);
  if (good)
    print(&b);
  else
    fprintf(stderr, "verify_width: a decode failed\n");
  llama_batch_free(b.batch);
  llama_free(b.llama);
  llama_model_free(b.model);
  return good ? 0 : 1;
}
