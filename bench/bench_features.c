/* bench_features MODEL HEAD THREADS CONTEXT REPETITIONS ITEM...: what the features of HEAD cost a step of the
 * target. ITEM is ROWS or ROWS:COMMITTED: a verify step of a chain of so many rows, of which so many are
 * committed (all of them, if it does not say). Every step is run without features, with raw states and with
 * those that fc has made of them, in turns, each time another one first. A step is all that has to end before
 * the next forward can begin: the engine's batch; fc, a batch of its own; and what the step of the machine
 * then does with the rows, which it keeps and copies into a message. Encoding and sending are another
 * thread's. TANDEM_TEST_DEVICE names the device. Prints one JSON line:
 * {"threads", "context", "numerics", "items": [...], "row_bytes": {"raw", "fused"},
 *  "us": {"without", "raw", "fused": [[of each repetition] of each item]}}. */
#include "bench/probe.h"
#include "bench/step.h"
#include "common/file/head_file.h"
#include "kernels/ops.h"
#include "target_worker/engine.h"
#include "target_worker/feature_ring.h"
#include "wire/actions.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_MAX       16
#define REPETITIONS_MAX 1000
#define CONTEXT_MAX     65536
#define WARM_UP         2  /* turns before the first that counts */
#define TOKEN_STRIDE    37 /* of the prompt: any tokens do */

typedef enum { WITHOUT, RAW, FUSED, KINDS } kind;
static const char *const kind_names[KINDS] = {"without", "raw", "fused"};

typedef struct item {
  int32_t rows, committed;
} item;

typedef struct bench {
  int32_t threads, context, repetitions, item_count;
  char **names;
  item items[ITEMS_MAX];
  uint64_t ns[KINDS][ITEMS_MAX][REPETITIONS_MAX];
  mem mem;
  model_file *file;
  device *device;
  model *model;
  kv_cache *kv;
  fusion *fusion;
  engine *engine;
  taps_set taps[KINDS];
  feature_ring rings[KINDS];
  actions sent;
  int32_t tokens[ENGINE_ROWS_MAX + 1]; /* the root and what the model says after it */
  engine_batch batch;
  engine_results results;
} bench;

/* --- opening --- */

static int open_cache(bench *b, err *e) {
  const kv_options k = {.sequences = 1, .context = b->context + ENGINE_ROWS_MAX + 1, .type = KV_F16};
  int rc = kv_open(&b->kv, b->device, model_shape(b->model), &k, &b->mem, e);
  const engine_options o = {.model = b->model, .kv = b->kv, .fusion = b->fusion, .sequences = 1};
  return rc == ERR_OK ? engine_open(&b->engine, &o, e) : rc;
}

/* As a target does that was given the head. */
static int open_head(bench *b, const char *path, err *e) {
  head_file *f = NULL;
  int rc = head_file_open(&f, path, model_shape(b->model), e);
  if (rc == ERR_OK) rc = head_file_settle(f, GGUF_F32, e);
  if (rc == ERR_OK) rc = fusion_open(&b->fusion, f, b->device, &b->mem, e);
  for (kind i = RAW; i < KINDS && rc == ERR_OK; i++) {
    const head_config *c = head_file_config(f);
    taps_set *t = &b->taps[i];
    *t = (taps_set){.count = c->tap_count, .type = WIRE_BF16, .fused = i == FUSED};
    memcpy(t->list, c->taps, (size_t)c->tap_count * sizeof *t->list);
    t->width = t->fused ? fusion_width(b->fusion) : fusion_columns(b->fusion);
    rc = feature_ring_init(&b->rings[i], taps_row_bytes(t), WIRE_FEATURE_ROWS_MAX);
  }
  head_file_close(f);
  return rc;
}

static int open_all(bench *b, const char *path, const char *head, err *e) {
  const device_options o = {.math = OPS_MATH_INT8, .threads = b->threads};
  actions_init(&b->sent);
  int rc = model_file_open(&b->file, path, e);
  if (rc == ERR_OK) rc = device_open(&b->device, step_device(), &o, &b->mem, e);
  if (rc == ERR_OK) rc = model_open(&b->model, b->file, b->device, &(model_options){0}, &b->mem, e);
  if (rc == ERR_OK) rc = open_head(b, head, e);
  return rc == ERR_OK ? open_cache(b, e) : rc;
}

static void close_all(bench *b) {
  for (kind i = RAW; i < KINDS; i++) feature_ring_fini(&b->rings[i]);
  actions_fini(&b->sent);
  engine_close(b->engine);
  kv_close(b->kv);
  fusion_close(b->fusion);
  model_close(b->model);
  if (b->device) b->device->table->close(b->device);
  model_file_close(b->file);
}

/* --- steps --- */

static int run_job(bench *b, const engine_job *job) {
  b->batch.count = 1;
  b->batch.jobs[0] = *job;
  engine_run(b->engine, &b->batch, &b->results);
  return b->results.of[0].code;
}

/* A chain from position `at` on. */
static engine_job verify(const bench *b, int32_t at, item what) {
  engine_job job = {.kind = ENGINE_VERIFY,
                    .kv_length = at,
                    .count = what.rows,
                    .sampling = {.top_p = 1, .repeat_penalty = 1},
                    .sampled_max = ENGINE_ROWS_MAX};
  for (int32_t i = 0; i < what.rows; i++) {
    job.tokens[i] = b->tokens[at - b->context + i];
    job.parents[i] = i - 1;
  }
  if (what.committed < what.rows)
    job.tokens[what.committed] = (job.tokens[what.committed] + 1) % model_shape(b->model)->vocab;
  return job;
}

/* Fills the cache, and finds out which tokens the model wants behind it. */
static int prepare(bench *b) {
  int32_t vocab = model_shape(b->model)->vocab;
  int rc = ERR_OK;
  for (int32_t done = 0; done < b->context && rc == ERR_OK; done = b->results.of[0].kv_length) {
    int32_t left = b->context - done;
    engine_job job = {
        .kind = ENGINE_PREFILL, .kv_length = done, .count = left < ENGINE_CHUNK ? left : ENGINE_CHUNK};
    for (int32_t i = 0; i < job.count; i++) job.tokens[i] = (done + i) * TOKEN_STRIDE % vocab;
    rc = run_job(b, &job);
  }
  b->tokens[0] = b->context * TOKEN_STRIDE % vocab;
  for (int32_t i = 0; i < ENGINE_ROWS_MAX && rc == ERR_OK; i++) {
    engine_job job = verify(b, b->context + i, (item){1, 1});
    rc = run_job(b, &job);
    b->tokens[i + 1] = b->results.of[0].sampled[0];
  }
  return rc;
}

static int fuse(bench *b, const taps_set *taps) {
  const engine_result *r = &b->results.of[0];
  return run_job(b, &(engine_job){.kind = ENGINE_FUSE,
                                  .kv_length = r->feature_base,
                                  .count = r->feature_count,
                                  .states = r->states,
                                  .taps = *taps});
}

static void ship(bench *b, kind how) {
  const engine_result *r = &b->results.of[0];
  feature_ring *ring = &b->rings[how];
  msg m = {.type = MSG_FEATURES};
  int32_t count = 0;
  feature_ring_add(ring, r->feature_base, r->feature_count, r->features);
  for (int32_t at = r->feature_base; at < ring->end; at += count) {
    const uint8_t *rows = feature_ring_get(ring, at, ring->end, &count);
    m.u.features = (msg_features){.base = at,
                                  .count = count,
                                  .width = b->taps[how].width,
                                  .type = b->taps[how].type,
                                  .rows = rows,
                                  .size = (uint32_t)((size_t)count * ring->row_bytes)};
    actions_send(&b->sent, 0, &m);
  }
  feature_ring_trim(ring, ring->end);
}

static int run_step(bench *b, item what, kind how, uint64_t *ns) {
  engine_job job = verify(b, b->context, what);
  job.taps = b->taps[how];
  uint64_t begin = probe_clock_ns();
  int rc = run_job(b, &job);
  bool right = b->results.of[0].sampled_count == what.committed;
  if (rc == ERR_OK && how == FUSED) rc = fuse(b, &job.taps);
  right &= how == WITHOUT || b->results.of[0].feature_count == what.committed;
  if (rc == ERR_OK && right && how != WITHOUT) ship(b, how);
  *ns = probe_clock_ns() - begin;
  actions_reset(&b->sent);
  return rc == ERR_OK && !right ? ERR_INTERNAL : rc;
}

static int measure(bench *b) {
  int rc = prepare(b);
  for (int32_t i = -WARM_UP; i < b->repetitions; i++)
    for (int32_t w = 0; w < b->item_count; w++)
      for (int32_t k = 0; k < KINDS && rc == ERR_OK; k++) {
        kind how = (kind)((k + i + WARM_UP) % KINDS);
        rc = run_step(b, b->items[w], how, &b->ns[how][w][i < 0 ? 0 : i]);
      }
  return rc;
}

/* --- the program --- */

static void print_times(const bench *b, kind how) {
  printf("%s\"%s\": [", how ? ", " : "", kind_names[how]);
  for (int32_t w = 0; w < b->item_count; w++) {
    printf("%s[", w ? ", " : "");
    for (int32_t i = 0; i < b->repetitions; i++)
      printf("%s%.1f", i ? ", " : "", (double)b->ns[how][w][i] / 1e3);
    printf("]");
  }
  printf("]");
}

static void print(const bench *b) {
  printf("{\"threads\": %d, \"context\": %d, \"numerics\": \"%s\", \"items\": [", b->threads, b->context,
         model_numerics(b->model, KV_F16));
  for (int32_t w = 0; w < b->item_count; w++) printf("%s\"%s\"", w ? ", " : "", b->names[w]);
  printf("], \"row_bytes\": {\"raw\": %zu, \"fused\": %zu}, \"us\": {", b->rings[RAW].row_bytes,
         b->rings[FUSED].row_bytes);
  for (kind i = WITHOUT; i < KINDS; i++) print_times(b, i);
  printf("}}\n");
}

static bool read_item(const char *text, item *out) {
  char *end;
  long rows = strtol(text, &end, 10), committed = rows;
  if (*end == ':') committed = strtol(end + 1, &end, 10);
  *out = (item){(int32_t)rows, (int32_t)committed};
  return !*end && rows >= 1 && rows <= ENGINE_ROWS_MAX && committed >= 1 && committed <= rows;
}

static bool read_arguments(bench *b, int argc, char **argv) {
  if (argc < 7 || argc - 6 > ITEMS_MAX) return false;
  b->threads = atoi(argv[3]);
  b->context = atoi(argv[4]);
  b->repetitions = atoi(argv[5]);
  b->names = argv + 6;
  b->item_count = argc - 6;
  for (int32_t i = 0; i < b->item_count; i++)
    if (!read_item(b->names[i], &b->items[i])) return false;
  return b->threads >= 1 && b->threads <= OPS_THREADS_MAX && b->context >= 1 && b->context <= CONTEXT_MAX &&
         b->repetitions >= 1 && b->repetitions <= REPETITIONS_MAX;
}

int main(int argc, char **argv) {
  static bench b; /* large */
  err e = {0};
  if (!read_arguments(&b, argc, argv)) {
    fprintf(stderr, "usage: bench_features MODEL HEAD THREADS CONTEXT REPETITIONS ITEM... (ROWS or "
                    "ROWS:COMMITTED)\n");
    return 2;
  }
  int rc = open_all(&b, argv[1], argv[2], &e);
  if (rc != ERR_OK)
    fprintf(stderr, "bench_features: %s\n", e.text);
  else if ((rc = measure(&b)) != ERR_OK)
    fprintf(stderr, "bench_features: a step failed: %s\n", err_name(rc));
  else
    print(&b);
  close_all(&b);
  return rc == ERR_OK ? 0 : 1;
}
