/* device_batch.c - begin: copies the batch to the device, as one block of bytes at an address that stays. */
#include "kernels/cuda/device_parts.h"
#include "kernels/cuda/host_kernels.h"
#include "kernels/cuda/split_runs.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT          64
#define POSITIONS_AT_FIRST 512
#define UPLOAD_BYTES       ((size_t)64 << 10) /* at first */

int32_t cuda_batch_bucket(int32_t count) {
  int32_t end = 1;
  while (end < count) end *= 2;
  return end;
}

/* --- the block: cuda_batch and cuda_rank_batch, then their arrays --- */

static size_t padded(size_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int32_t span_count(const ops_batch *b, int32_t view) {
  return b->views[view].first[b->row_count];
}

static size_t block_bytes(const ops_batch *b) {
  size_t rows = (size_t)b->row_count, bytes = padded(sizeof(cuda_batch)) + padded(sizeof(cuda_rank_batch));
  bytes += padded(rows * sizeof *b->rows) + padded((size_t)b->path_length * sizeof *b->paths);
  for (int32_t i = 0; i < b->view_count; i++)
    bytes += padded((rows + 1) * sizeof(int32_t)) + padded((size_t)span_count(b, i) * sizeof(ops_span));
  bytes += 2 * padded(rows * sizeof(cuda_run)); /* at most: runs, and long ones */
  bytes += padded((size_t)cuda_split_runs_most(b->rows, b->row_count) * sizeof(cuda_split_run));
  bytes += padded((size_t)b->head_count * sizeof *b->head_rows);
  bytes += padded((size_t)b->capture_count * sizeof *b->capture_rows);
  bytes += padded((size_t)b->rank_count * sizeof(cuda_ranking));
  bytes += padded((size_t)b->token_count * sizeof *b->tokens);
  bytes += padded((size_t)b->bias_count * sizeof *b->bias_tokens);
  bytes += padded((size_t)b->bias_count * sizeof *b->bias_values);
  return bytes + padded((size_t)ops_choice_count(b) * sizeof *b->choices);
}

bool cuda_batch_upload_grow(cuda_device *d, cuda_upload *u, size_t bytes) {
  if (bytes <= u->capacity) return true;
  size_t capacity = u->capacity ? u->capacity : UPLOAD_BYTES;
  while (capacity < bytes) capacity *= 2;
  uint8_t *host = cuda_memory_pinned(d, capacity);
  if (!host || !cuda_memory_grow(d, &u->device, MEM_GENERAL, capacity)) {
    cuda_memory_unpin(host);
    return false;
  }
  cuda_memory_unpin(u->host);
  u->host = host;
  u->capacity = capacity;
  return true;
}

/* Makes room for an array, and gives the address that it will have on the device. */
static void *put_room(cuda_upload *u, size_t bytes) {
  void *to = u->device->at + u->used;
  u->used += padded(bytes);
  return to;
}

static void *put(cuda_upload *u, const void *from, size_t count, size_t size) {
  if (count > 0) memcpy(u->host + u->used, from, count * size);
  return put_room(u, count * size);
}

static cuda_ranking ranking_of(const ops_ranking *r, int32_t line) {
  const sampler_options *o = &r->options;
  return (cuda_ranking){.line = line,
                        .count = r->count,
                        .scale = sampler_scale(o),
                        .top_k = o->top_k,
                        .top_p = o->top_p,
                        .min_p = o->min_p,
                        .repeat_penalty = o->repeat_penalty,
                        .choice = o->choice,
                        .position = (uint32_t)r->position,
                        .seed = o->seed,
                        .presence_penalty = o->presence_penalty,
                        .frequency_penalty = o->frequency_penalty,
                        .history = {r->history[0], r->history[1]},
                        .prompt_count = r->prompt_count,
                        .bias = r->bias,
                        .own = r->own,
                        .mask = -1};
}

static size_t rankings_at(void) { /* in the block */
  return padded(sizeof(cuda_batch));
}

static void put_rankings(cuda_upload *u, const ops_batch *b) {
  cuda_rank_batch *to = (cuda_rank_batch *)(u->host + rankings_at());
  cuda_ranking *rankings = (cuda_ranking *)(u->host + u->used);
  memset(to, 0, sizeof *to);
  to->count = b->rank_count;
  for (int32_t i = 0; i < b->rank_count; i++) rankings[i] = ranking_of(&b->rankings[i], b->logit_count + i);
  to->rankings = put_room(u, (size_t)b->rank_count * sizeof *rankings);
  to->tokens = put(u, b->tokens, (size_t)b->token_count, sizeof *b->tokens);
  to->bias_tokens = put(u, b->bias_tokens, (size_t)b->bias_count, sizeof *b->bias_tokens);
  to->bias_values = put(u, b->bias_values, (size_t)b->bias_count, sizeof *b->bias_values);
}

/* Rows from `first` on that are of one sequence, `most` of them at most. */
static int32_t run_length(const ops_batch *b, int32_t first, int32_t most) {
  int32_t count = 1;
  while (count < most && first + count < b->row_count &&
         b->rows[first + count].sequence == b->rows[first].sequence)
    count++;
  return count;
}

/* Of `most` rows at most. *sizes: how many there are and how long the longest is, rounded up. */
static const cuda_run *put_runs(cuda_upload *u, const ops_batch *b, int32_t most, int32_t *count,
                                cuda_runs *sizes) {
  cuda_run *runs = (cuda_run *)(u->host + u->used);
  int32_t longest = 0;
  for (int32_t first = 0; first < b->row_count; first += runs[(*count)++].count) {
    runs[*count] = (cuda_run){first, run_length(b, first, most)};
    if (runs[*count].count > longest) longest = runs[*count].count;
  }
  *sizes = (cuda_runs){.bucket = cuda_batch_bucket(*count), .rows = cuda_batch_bucket(longest)};
  return put_room(u, (size_t)*count * sizeof *runs);
}

static const cuda_split_run *put_split_runs(cuda_upload *u, const ops_batch *b, int32_t *count,
                                            cuda_runs *sizes) {
  cuda_split_run *runs = (cuda_split_run *)(u->host + u->used);
  *sizes = cuda_split_runs_of(b->rows, b->row_count, runs, count);
  return put_room(u, (size_t)*count * sizeof *runs);
}

static int32_t count_staged(const ops_batch *b) {
  int32_t staged = 0;
  for (int32_t i = 0; i < b->row_count; i++) staged += b->rows[i].path_count > 0;
  return staged;
}

static void put_batch(cuda_forward *f, const ops_batch *b) {
  cuda_upload *u = &f->upload;
  cuda_batch *to = (cuda_batch *)u->host;
  size_t rows = (size_t)b->row_count;
  memset(to, 0, sizeof *to);
  u->used = rankings_at() + padded(sizeof(cuda_rank_batch));
  to->row_count = b->row_count;
  to->head_count = b->head_count;
  to->logit_count = b->logit_count + b->rank_count;
  to->rows = put(u, b->rows, rows, sizeof *b->rows);
  to->head_rows = put(u, b->head_rows, (size_t)b->head_count, sizeof *b->head_rows);
  to->capture_count = b->capture_count;
  to->weigh_count = b->weigh_count;
  to->capture_rows = put(u, b->capture_rows, (size_t)b->capture_count, sizeof *b->capture_rows);
  to->choices = put(u, b->choices, (size_t)ops_choice_count(b), sizeof *b->choices);
  for (int32_t i = 0; i < b->view_count; i++) {
    to->views[i].first = put(u, b->views[i].first, rows + 1, sizeof(int32_t));
    to->views[i].spans = put(u, b->views[i].spans, (size_t)span_count(b, i), sizeof(ops_span));
  }
  to->paths = put(u, b->paths, (size_t)b->path_length, sizeof *b->paths);
  put_rankings(u, b);
  to->runs = put_runs(u, b, CUDA_RUN_ROWS, &to->run_count, &f->runs);
  f->staged = count_staged(b);
  to->split_runs = put_split_runs(u, b, &to->split_run_count, &f->split_runs);
  f->long_runs = (cuda_runs){0};
  if (f->staged == 0 && b->row_count > CUDA_RUN_ROWS)
    to->long_runs = put_runs(u, b, CUDA_LONG_RUN_ROWS, &to->long_run_count, &f->long_runs);
}

const cuda_rank_batch *cuda_batch_rankings(const cuda_device *d) {
  return (const cuda_rank_batch *)(d->forward.upload.device->at + rankings_at());
}

/* --- begin --- */

static bool ids_grow(cuda_device *d, int32_t count) {
  cuda_forward *f = &d->forward;
  if (count <= f->ids_capacity) return true;
  int32_t capacity = cuda_batch_bucket(count);
  int32_t *ids = cuda_memory_pinned(d, (size_t)capacity * sizeof *ids);
  if (!ids) return false;
  cuda_memory_unpin(f->ids);
  f->ids = ids;
  f->ids_capacity = capacity;
  return true;
}

static bool ranked_grow(cuda_device *d, int32_t count) {
  cuda_forward *f = &d->forward;
  if (count <= f->ranked_capacity) return true;
  int32_t capacity = cuda_batch_bucket(count);
  ops_ranked *ranked = cuda_memory_pinned(d, (size_t)capacity * sizeof *ranked);
  if (!ranked) return false;
  cuda_memory_unpin(f->ranked);
  f->ranked = ranked;
  f->ranked_capacity = capacity;
  return true;
}

/* The vocabulary is that of the last head: a device has one model. head() grows them again where that is
 * wrong.
 */
static bool head_grow(cuda_device *d, int32_t head_count) {
  cuda_forward *f = &d->forward;
  size_t lines = (size_t)cuda_batch_bucket(head_count), vocabulary = (size_t)f->vocabulary;
  return head_count == 0 || (ids_grow(d, head_count) && cuda_memory_grow(d, &f->logits, MEM_ACTIVATIONS,
                                                                         lines * vocabulary * sizeof(float)));
}

static cuda_rows rows_of(const cuda_device *d, int32_t count, bool head) {
  cuda_rows r;
  memset(&r, 0, sizeof r); /* recorded ops are compared as bytes */
  r.batch = (const cuda_batch *)d->forward.upload.device->at;
  r.bucket = cuda_batch_bucket(count);
  r.head = head;
  return r;
}

static int32_t end_of(const ops_batch *b) {
  int32_t end = 0;
  for (int32_t i = 0; i < b->row_count; i++)
    if (b->rows[i].position >= end) end = b->rows[i].position + 1;
  return end;
}

/* Rounded up, so that a graph serves until a sequence is twice as long. */
static int32_t positions_of(const device_kv *k, int32_t end) {
  int32_t positions = POSITIONS_AT_FIRST;
  while (positions < end) positions *= 2;
  return k && positions > k->kernels.context ? k->kernels.context : positions;
}

static void note_batch(cuda_device *d, device_kv *k, const ops_batch *b) {
  cuda_forward *f = &d->forward;
  f->kv = k;
  f->row_count = b->row_count;
  f->head_count = b->head_count;
  f->logit_count = b->logit_count;
  f->rank_count = b->rank_count;
  f->capture_count = b->capture_count;
  f->weigh_count = b->weigh_count;
  f->captures_made = 0;
  f->supplies.used = 0;
  f->attending.heads = 0;
  f->rows = rows_of(d, b->row_count, false);
  f->head = rows_of(d, b->head_count, true);
  f->op_count = 0;
  f->end = end_of(b);
  f->positions = positions_of(k, f->end);
  f->graph = NULL;
  f->prepared = false;
  f->angles = NULL;
  f->downloaded = false;
}

static bool send_batch(cuda_device *d) {
  const cuda_upload *u = &d->forward.upload;
  return cuda_device_ok(d,
                        cudaMemcpyAsync(u->device->at, u->host, u->used, cudaMemcpyHostToDevice, d->stream));
}

/* At the first forward, on the thread that runs it. */
static void bind_threads(cuda_device *d) {
  if (d->pin_count > 0) thread_pool_pin(d->pool, d->pin, d->pin_count);
  d->pin_count = 0;
}

bool cuda_batch_begin(device *base, device_kv *k, const ops_batch *b) {
  cuda_device *d = cuda_device_enter(base);
  cuda_forward *f = &d->forward;
  assert(!f->begun && b->row_count > 0);
  if (d->lose_at > 0 && base->counters.forwards + 1 == d->lose_at) cuda_put_fault(d->stream);
  bind_threads(d);
  f->failed = d->lost || !cuda_batch_upload_grow(d, &f->upload, block_bytes(b)) ||
              !head_grow(d, b->head_count) || !ranked_grow(d, b->rank_count);
  if (f->failed) return false;
  put_batch(f, b);
  note_batch(d, k, b);
  f->failed = !send_batch(d);
  f->begun = !f->failed;
  base->counters.forwards += f->begun;
  base->counters.rows += f->begun ? (uint64_t)b->row_count : 0;
  return f->begun;
}

bool cuda_batch_open(cuda_device *d) {
  return cuda_device_ok(d, cudaEventCreate(&d->forward.first)) &&
         cuda_device_ok(d, cudaEventCreate(&d->forward.last));
}

void cuda_batch_close(cuda_device *d) {
  cuda_forward *f = &d->forward;
  device_memory *all[] = {f->upload.device, f->supplies.device, f->rope,   f->gated, f->scratch,
                          f->mass,          f->logits,          f->sample, f->rank};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) cuda_memory_drop(&d->base, all[i]);
  cuda_memory_unpin(f->upload.host);
  cuda_memory_unpin(f->supplies.host);
  for (int32_t i = 0; i < OPS_CAPTURES_MAX; i++) cuda_memory_unpin(f->captures[i].rows);
  cuda_memory_unpin(f->ids);
  cuda_memory_unpin(f->ranked);
  cuda_memory_unpin(f->kept);
  free(f->ops);
  if (f->first) cudaEventDestroy(f->first);
  if (f->last) cudaEventDestroy(f->last);
}
