/* cpu_batch.c - a forward's batch: plain numbers become the rows that the kernels want. */
#include "common/base/clock.h"
#include "kernels/cpu/device_cpu.h"

#include <assert.h>
#include <string.h>

/* Room for so many rows, in one piece; what was in it is gone. */
bool cpu_batch_reserve(cpu_device *c, int32_t rows) {
  cpu_batch *b = &c->batch;
  if (rows <= b->room) return true;
  size_t n = (size_t)rows, ints = (OPS_VIEWS_MAX + 2) * sizeof(int32_t);
  if (!cpu_buffer_grow(c, &b->memory[0], MEM_GENERAL, n * (sizeof *b->rows + sizeof *b->choices + ints)))
    return false;
  b->room = rows;
  b->rows = b->memory[0].data;
  b->choices = (ops_sampling *)(b->rows + n);
  b->begins = (int32_t *)(b->choices + n);
  b->head_rows = b->begins + OPS_VIEWS_MAX * n;
  b->ids = b->head_rows + n;
  return true;
}

/* Only trees have paths. */
static bool reserve_paths(cpu_device *c, int32_t length) {
  cpu_batch *b = &c->batch;
  if (length <= b->path_room) return true;
  int32_t room = length < INT32_MAX / 2 ? 2 * length : length;
  if (!cpu_buffer_grow(c, &b->memory[1], MEM_SPECULATION, (size_t)room * sizeof *b->paths)) return false;
  b->path_room = room;
  b->paths = b->memory[1].data;
  return true;
}

void cpu_batch_drop(cpu_device *c) {
  for (int i = 0; i < 2; i++) cpu_buffer_drop(c, &c->batch.memory[i]);
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

/* The kernels see one span of each row, up to its own position. */
static void copy_view(cpu_batch *to, const ops_batch *b, int32_t view) {
  const ops_view *from = &b->views[view];
  int32_t *begin = to->begins + (size_t)view * (size_t)to->room;
  for (int32_t i = 0; i < b->row_count; i++) {
    const ops_span *s = from->spans + from->first[i];
    assert(from->first[i + 1] == from->first[i] + 1 && s->end == b->rows[i].position + 1);
    begin[i] = s->first;
  }
  to->views[view].begin = begin;
}

static void copy_head(cpu_batch *to, const ops_batch *b) {
  int32_t choices = b->head_count - b->logit_count;
  assert(b->head_count <= b->row_count && choices >= 0);
  to->head_count = b->head_count;
  to->logit_count = b->logit_count;
  if (b->head_count) memcpy(to->head_rows, b->head_rows, (size_t)b->head_count * sizeof *to->head_rows);
  if (choices) memcpy(to->choices, b->choices, (size_t)choices * sizeof *to->choices);
  for (int32_t i = 0; i < choices; i++) assert(to->choices[i].scale >= 0);
}

/* The first forward does not know how many logits a row has: then `head` takes their memory. */
static bool reserve(cpu_device *c, const ops_batch *b) {
  int64_t numbers = path_numbers(b);
  size_t logits = (size_t)b->logit_count * (size_t)c->vocab * sizeof(float);
  return numbers <= INT32_MAX && cpu_batch_reserve(c, b->row_count) && reserve_paths(c, (int32_t)numbers) &&
         cpu_buffer_grow(c, &c->logits, numbers ? MEM_SPECULATION : MEM_ACTIVATIONS, logits);
}

static void bind_threads(cpu_device *c) {
  if (c->pin_count) thread_pool_pin(c->pool, c->pin, c->pin_count);
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
  for (int32_t i = 0; i < b->view_count; i++) copy_view(to, b, i);
  to->view_count = b->view_count;
  copy_head(to, b);
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
