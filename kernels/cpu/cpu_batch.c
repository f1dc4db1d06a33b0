/* cpu_batch.c - a forward's batch: plain numbers become the rows that the kernels want. */
#include "common/base/clock.h"
#include "kernels/cpu/device_cpu.h"

#include <assert.h>
#include <string.h>

/* Room for so many rows, in one piece; what was in it is gone. */
bool cpu_batch_reserve(cpu_device *c, int32_t rows) {
  cpu_batch *b = &c->batch;
  if (rows <= b->room) return true;
  size_t n = (size_t)rows, ints = OPS_VIEWS_MAX * (n + 1) + 3 * n;
  size_t each = sizeof *b->rows + sizeof *b->choices + sizeof *b->rankings + sizeof *b->ranked;
  size_t bytes = n * each + ints * sizeof(int32_t);
  if (!cpu_buffer_grow(c, &b->memory, MEM_GENERAL, bytes)) return false;
  b->room = rows;
  b->rows = b->memory.data;
  b->choices = (ops_sampling *)(b->rows + n);
  b->rankings = (ops_ranking *)(b->choices + n);
  b->ranked = (ops_ranked *)(b->rankings + n);
  b->firsts = (int32_t *)(b->ranked + n);
  b->head_rows = b->firsts + OPS_VIEWS_MAX * (n + 1);
  b->ids = b->head_rows + n;
  b->capture_rows = b->ids + n;
  return true;
}

/* So many numbers of `size` bytes, and room for more: true if there was room, or is now. */
static bool reserve_more(cpu_device *c, cpu_buffer *memory, int32_t *room, mem_tag tag, int64_t count,
                         size_t size) {
  if (count <= *room) return true;
  if (count > INT32_MAX / 2 || !cpu_buffer_grow(c, memory, tag, (size_t)count * 2 * size)) return false;
  *room = (int32_t)(2 * count);
  return true;
}

/* Only trees have paths. A view is usually one span a row, for which there is room from the first forward on;
 * more are taken when they come. Histories grow with their sequences. */
static bool reserve_lists(cpu_device *c, int64_t numbers, int64_t spans, int64_t tokens, int64_t biases) {
  cpu_batch *b = &c->batch;
  if (spans > 0 && spans < b->room) spans = b->room;
  if (tokens > 0 && tokens < b->room) tokens = b->room;
  bool taken = reserve_more(c, &b->path_memory, &b->path_room, MEM_SPECULATION, numbers, sizeof *b->paths) &&
               reserve_more(c, &b->span_memory, &b->span_room, MEM_GENERAL, spans, sizeof *b->spans) &&
               reserve_more(c, &b->token_memory, &b->token_room, MEM_GENERAL, tokens, sizeof *b->tokens) &&
               reserve_more(c, &b->bias_memory, &b->bias_room, MEM_GENERAL, biases,
                            sizeof *b->bias_tokens + sizeof *b->bias_values);
  b->paths = b->path_memory.data;
  b->spans = b->span_memory.data;
  b->tokens = b->token_memory.data;
  b->bias_tokens = b->bias_memory.data;
  b->bias_values = (float *)b->bias_memory.data + b->bias_room;
  return taken;
}

void cpu_batch_drop(cpu_device *c) {
  cpu_buffer_drop(c, &c->batch.memory);
  cpu_buffer_drop(c, &c->batch.path_memory);
  cpu_buffer_drop(c, &c->batch.span_memory);
  cpu_buffer_drop(c, &c->batch.token_memory);
  cpu_buffer_drop(c, &c->batch.bias_memory);
}

/* --- begin --- */

/* Paths may share numbers in the caller's array, but not here, where each counts from its sequence's tile. */
static int64_t path_numbers(const ops_batch *b) {
  int64_t all = 0;
  for (int32_t i = 0; i < b->row_count; i++) all += b->rows[i].path_count;
  return all;
}

static void copy_row(cpu_row *to, const device_kv *k, const ops_row *r) {
  assert(!k || (r->sequence >= 0 && r->sequence < k->shape.sequences));
  assert(r->path_count == 0 || (k && k->stage_keys));
  *to = (cpu_row){.kv = k ? &k->sequences[r->sequence] : NULL,
                  .token = r->token,
                  .position = r->position,
                  .rope_shift = r->rope_shift,
                  .shared = r->shared,
                  .length = r->length,
                  .path_count = r->path_count};
}

/* The first tile of the pool that rows [first, end) have staged rows in. */
static int32_t stage_of(const ops_batch *b, int32_t first, int32_t end) {
  int32_t least = INT32_MAX;
  for (int32_t i = first; i < end; i++) {
    const ops_row *r = &b->rows[i];
    for (int32_t k = 0; k < r->path_count; k++) least = cpu_min(least, b->paths[r->path_at + k]);
  }
  return least / OPS_TILE * OPS_TILE;
}

/* Rows of one sequence: their staged rows lie in a few tiles of the pool, and count from the first of them,
 * so that attention reads no others. Returns where the next path goes. */
static int32_t *copy_paths(cpu_batch *to, const ops_batch *b, int32_t first, int32_t end, int32_t *at) {
  int32_t stage = stage_of(b, first, end);
  for (int32_t i = first; i < end; i++) {
    const int32_t *from = b->paths + b->rows[i].path_at;
    to->rows[i].stage_at = stage;
    to->rows[i].path = at;
    for (int32_t k = 0; k < to->rows[i].path_count; k++) *at++ = from[k] - stage;
  }
  return at;
}

static void copy_rows(cpu_batch *to, const device_kv *k, const ops_batch *b) {
  int32_t *path = to->paths;
  to->row_count = b->row_count;
  for (int32_t i = 0; i < b->row_count; i++) copy_row(&to->rows[i], k, &b->rows[i]);
  for (int32_t i = 0, end; to->staged && i < b->row_count; i = end) {
    for (end = i + 1; end < b->row_count && b->rows[end].sequence == b->rows[i].sequence;) end++;
    path = copy_paths(to, b, i, end, path);
  }
}

static int64_t span_count(const ops_batch *b) {
  int64_t all = 0;
  for (int32_t i = 0; i < b->view_count; i++) all += b->views[i].first[b->row_count] - b->views[i].first[0];
  return all;
}

static void copy_views(cpu_batch *to, const ops_batch *b) {
  ops_span *spans = to->spans;
  for (int32_t v = 0; v < b->view_count; v++) {
    const ops_view *from = &b->views[v];
    cpu_view *view = &to->views[v];
    *view = (cpu_view){to->firsts + (size_t)v * ((size_t)to->room + 1), spans};
    for (int32_t i = 0; i <= b->row_count; i++) view->first[i] = from->first[i] - from->first[0];
    memcpy(spans, from->spans + from->first[0], (size_t)view->first[b->row_count] * sizeof *spans);
    spans += view->first[b->row_count];
    for (int32_t i = 0; i < b->row_count; i++)
      assert(view->first[i] < view->first[i + 1] &&
             view->spans[view->first[i + 1] - 1].end == b->rows[i].position + 1);
  }
  to->view_count = b->view_count;
}

static void copy_rankings(cpu_batch *to, const ops_batch *b) {
  to->rank_count = b->rank_count;
  if (b->rank_count) memcpy(to->rankings, b->rankings, (size_t)b->rank_count * sizeof *to->rankings);
  if (b->token_count) memcpy(to->tokens, b->tokens, (size_t)b->token_count * sizeof *to->tokens);
  if (b->bias_count) {
    memcpy(to->bias_tokens, b->bias_tokens, (size_t)b->bias_count * sizeof *to->bias_tokens);
    memcpy(to->bias_values, b->bias_values, (size_t)b->bias_count * sizeof *to->bias_values);
  }
  for (int32_t i = 0; i < b->rank_count; i++) to->ranked[i].count = -1;
}

static void copy_head(cpu_batch *to, const ops_batch *b) {
  int32_t choices = ops_choice_count(b);
  assert(b->head_count <= b->row_count && choices >= 0);
  to->head_count = b->head_count;
  to->logit_count = b->logit_count;
  copy_rankings(to, b);
  if (b->head_count) memcpy(to->head_rows, b->head_rows, (size_t)b->head_count * sizeof *to->head_rows);
  if (choices) memcpy(to->choices, b->choices, (size_t)choices * sizeof *to->choices);
  for (int32_t i = 0; i < choices; i++) assert(to->choices[i].scale >= 0);
}

static void copy_capture(cpu_batch *to, const ops_batch *b) {
  assert(b->weigh_count >= 0 && b->weigh_count <= b->capture_count && b->capture_count <= b->row_count);
  to->capture_count = b->capture_count;
  to->weigh_count = b->weigh_count;
  if (b->capture_count)
    memcpy(to->capture_rows, b->capture_rows, (size_t)b->capture_count * sizeof *to->capture_rows);
}

/* The first forward does not know how many logits a row has: then `head` takes their memory. */
static bool reserve(cpu_device *c, const ops_batch *b) {
  int64_t numbers = path_numbers(b);
  size_t lines = (size_t)b->logit_count + (size_t)b->rank_count;
  size_t logits = lines * (size_t)c->vocab * sizeof(float);
  return cpu_batch_reserve(c, b->row_count) &&
         reserve_lists(c, numbers, span_count(b), b->token_count, b->bias_count) &&
         cpu_buffer_grow(c, &c->logits, numbers ? MEM_SPECULATION : MEM_ACTIVATIONS, logits);
}

static void bind_threads(cpu_device *c) {
  for (int i = 0; i < 2 && c->pin_count; i++)
    if (c->pools[i]) thread_pool_pin(c->pools[i], c->pin, c->pin_count);
  c->pin_count = 0;
}

bool cpu_begin(device *d, device_kv *k, const ops_batch *b) {
  cpu_device *c = cpu_of(d);
  cpu_batch *to = &c->batch;
  assert(!c->running && !c->window && b->row_count > 0 && b->view_count <= OPS_VIEWS_MAX);
  c->failed = !reserve(c, b);
  if (c->failed) return false;
  bind_threads(c);
  to->staged = path_numbers(b) > 0;
  copy_rows(to, k, b);
  copy_views(to, b);
  copy_head(to, b);
  copy_capture(to, b);
  c->captures_made = 0;
  c->kv = k;
  c->rope_dim = 0;
  c->running = true;
  d->counters.forwards++;
  d->counters.rows += (uint64_t)b->row_count;
  c->began_us = clock_us();
  return true;
}

/* --- the end --- */

void cpu_end(device *d) {
  cpu_device *c = cpu_of(d);
  assert(c->running);
  c->running = false;
  c->took_us = clock_us() - c->began_us;
}

ops_code cpu_wait(device *d, ops_answer *a) {
  cpu_device *c = cpu_of(d);
  assert(!c->running);
  if (a) *a = (ops_answer){.ids = c->batch.ids, .device_us = c->took_us};
  return c->failed ? OPS_FAILED : OPS_OK;
}
