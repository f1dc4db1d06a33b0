#include "bench/head_time.h"

#include "common/base/clock.h"
#include "common/model/draft_head.h"
#include "kernels/devices/devices.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT    256 /* rows before those that are timed */
#define CANDIDATES 8
#define WARM_UP    16
#define COLD_BYTES ((size_t)96 << 20) /* more than any cache that is one core's to fill */

enum { COUNTS = 4, ROWS_MAX = 8, THREADS_MAX = 2 };

static const int32_t row_counts[COUNTS] = {1, 2, 4, 8};

typedef struct head_time {
  device *d;
  draft_head *h;
  kv_cache *kv;
  int32_t seq, repetitions;
  uint8_t *other;       /* [COLD_BYTES] */
  float *states;        /* [CONTEXT][embed], at first made up; then those of the last rows */
  uint64_t *us[COUNTS]; /* [repetitions] */
  int32_t tokens[CONTEXT];
} head_time;

static const model_ranking best = {.options = {.top_p = 1, .repeat_penalty = 1}, .count = CANDIDATES};

/* Behind the context, which is as before afterwards. */
static int step(head_time *t, int32_t rows, uint64_t *us) {
  int32_t parents[ROWS_MAX], slots[ROWS_MAX];
  size_t embed = (size_t)draft_head_shape(t->h)->layer.embed;
  draft_head_segment s = {.rows = {.seq = t->seq,
                                   .kind = MODEL_TREE,
                                   .count = rows,
                                   .tokens = t->tokens,
                                   .parents = parents,
                                   .all_logits = true,
                                   .ranking = &best,
                                   .shift = 1},
                          .input = DRAFT_HEAD_STATES,
                          .values = t->states};
  for (int32_t i = 0; i < rows; i++) parents[i] = -1;
  int rc = kv_grow(t->kv, t->seq, parents, rows, slots);
  uint64_t start = clock_us();
  if (rc == ERR_OK) rc = draft_head_forward(t->h, t->kv, &s, 1);
  if (rc != ERR_OK) return rc;
  draft_head_rank_all(t->h);
  for (int32_t i = 0; i < rows; i++) {
    const ops_ranked *list = draft_head_ranked(t->h, 0, i);
    const float *state = draft_head_state(t->h, 0, i);
    if (!list || !state) return ERR_DEVICE;
    memcpy(t->states + (size_t)i * embed, state, embed * sizeof *state);
    if (list->count > 0) t->tokens[i] = list->list[list->count - 1].token;
  }
  *us = clock_us() - start;
  return kv_commit(t->kv, t->seq, NULL, 0);
}

static int fill_context(head_time *t) {
  int32_t embed = draft_head_shape(t->h)->layer.embed, vocabulary = draft_head_shape(t->h)->layer.vocab;
  uint32_t bits = 1;
  for (int32_t i = 0; i < CONTEXT * embed; i++) {
    bits = bits * 1664525u + 1013904223u;
    t->states[i] = (float)(int32_t)(bits >> 8 & 0xffff) / 32768 - 1;
  }
  for (int32_t i = 0; i < CONTEXT; i++) t->tokens[i] = i * 37 % vocabulary;
  draft_head_add_text(t->h, t->seq, t->tokens, CONTEXT);
  const draft_head_segment s = {
      .rows = {.seq = t->seq, .kind = MODEL_APPEND, .count = CONTEXT, .tokens = t->tokens, .no_logits = true},
      .input = DRAFT_HEAD_STATES,
      .values = t->states};
  return draft_head_forward(t->h, t->kv, &s, 1);
}

/* Fills the caches with other memory. */
static void chill(head_time *t) {
  for (size_t i = 0; i < COLD_BYTES; i += 64) t->other[i]++;
}

static int measure(head_time *t, bool cold) {
  int rc = ERR_OK;
  for (int32_t i = -WARM_UP; i < t->repetitions; i++) {
    for (int32_t c = 0; c < COUNTS && rc == ERR_OK; c++) {
      if (cold) chill(t);
      rc = step(t, row_counts[c], &t->us[c][i < 0 ? 0 : i]);
    }
  }
  return rc;
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void print(head_time *t, int32_t threads, bool cold) {
  printf("%zu bytes of weights, %d thread%s, %s caches; us of a forward, least (median):",
         draft_head_bytes(t->h), threads, threads == 1 ? "" : "s", cold ? "cold" : "warm");
  for (int32_t c = 0; c < COUNTS; c++) {
    qsort(t->us[c], (size_t)t->repetitions, sizeof *t->us[c], compare);
    printf("%s %d row%s %llu (%llu)", c ? "," : "", row_counts[c], row_counts[c] == 1 ? "" : "s",
           (unsigned long long)t->us[c][0], (unsigned long long)t->us[c][t->repetitions / 2]);
  }
  printf("\n");
}

static int take_memory(head_time *t, err *e) {
  bool all = (t->states = calloc((size_t)CONTEXT * (size_t)draft_head_shape(t->h)->layer.embed,
                                 sizeof *t->states)) != NULL;
  all = all && (t->other = calloc(1, COLD_BYTES)) != NULL;
  for (int32_t c = 0; c < COUNTS && all; c++)
    all = (t->us[c] = calloc((size_t)t->repetitions, sizeof *t->us[c])) != NULL;
  return all ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %d times", t->repetitions);
}

static int open_head(head_time *t, const model_file *target, const head_file *head, int32_t common,
                     const char *name, int32_t threads, err *e) {
  const device_options o = {.math = OPS_MATH_INT8, .threads = threads};
  const kv_options k = {.sequences = 1, .context = 2 * CONTEXT, .type = KV_F16};
  int rc = device_open(&t->d, name, &o, NULL, e);
  if (rc == ERR_OK) rc = draft_head_open(&t->h, head, target, (head_shares){common, 1}, t->d, NULL, e);
  if (rc == ERR_OK) rc = kv_open(&t->kv, t->d, &draft_head_shape(t->h)->layer, &k, NULL, e);
  if (rc == ERR_OK) t->seq = kv_acquire(t->kv);
  return rc == ERR_OK ? take_memory(t, e) : rc;
}

static void close_head(head_time *t) {
  for (int32_t c = 0; c < COUNTS; c++) free(t->us[c]);
  free(t->states);
  free(t->other);
  kv_close(t->kv);
  draft_head_close(t->h);
  if (t->d) t->d->table->close(t->d);
}

int head_time_print(const model_file *target, const head_file *head, int32_t common, const char *name,
                    int32_t repetitions, err *e) {
  int rc = ERR_OK;
  for (int32_t threads = 1; threads <= THREADS_MAX && rc == ERR_OK; threads++) {
    head_time t = {.repetitions = repetitions};
    rc = open_head(&t, target, head, common, name, threads, e);
    if (rc == ERR_OK) rc = fill_context(&t);
    for (int cold = 0; cold < 2 && rc == ERR_OK; cold++) {
      rc = measure(&t, cold);
      if (rc == ERR_OK) print(&t, threads, cold);
    }
    if (rc != ERR_OK && !e->text[0]) err_set(e, rc, "a forward of the head failed");
    close_head(&t);
  }
  return rc;
}
