#include "draft_worker/drafters/feature_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static size_t bytes_of(const feature_queue *q, int32_t rows) {
  return (size_t)rows * (size_t)q->width * sizeof *q->rows;
}

void feature_queue_reset(feature_queue *q) {
  free(q->rows);
  *q = (feature_queue){0};
}

static void begin(feature_queue *q, const drafter_features *f) {
  feature_queue_reset(q);
  *q =
      (feature_queue){.begun = true, .first = f->base, .base = f->base, .width = f->width, .fused = f->fused};
}

void feature_queue_keep(feature_queue *q, int32_t end) {
  const feature_queue kept = {.begun = true,
                              .first = q->first,
                              .base = q->base < end ? q->base : end,
                              .width = q->width,
                              .fused = q->fused};
  feature_queue_reset(q);
  if (kept.base > kept.first) *q = kept;
}

static bool make_room(feature_queue *q, int32_t rows) {
  if (rows <= q->room) return true;
  int32_t room = q->room ? q->room : 16;
  while (room < rows) room *= 2;
  float *grown = realloc(q->rows, bytes_of(q, room));
  if (!grown) return false;
  q->rows = grown;
  q->room = room;
  return true;
}

/* Rows [skip, count) of *f, which follow those that are held. */
static void append(feature_queue *q, const drafter_features *f, int32_t skip) {
  int32_t more = f->count - skip;
  if (!make_room(q, q->count + more)) {
    feature_queue_reset(q);
    return;
  }
  memcpy(q->rows + (size_t)q->count * (size_t)q->width, f->rows + (size_t)skip * (size_t)q->width,
         bytes_of(q, more));
  q->count += more;
}

void feature_queue_add(feature_queue *q, const drafter_features *f) {
  bool other = q->width != f->width || q->fused != f->fused;
  if (!q->begun || f->base > q->base + q->count || (f->count > 0 && other)) begin(q, f);
  int32_t skip = q->base + q->count - f->base;
  if (skip >= f->count) return;
  if (q->count + f->count - skip > FEATURE_QUEUE_MAX) {
    begin(q, f);
    skip = f->count > FEATURE_QUEUE_MAX ? f->count - FEATURE_QUEUE_MAX : 0;
    q->first = q->base += skip;
  }
  append(q, f, skip);
}

void feature_queue_take(feature_queue *q, int32_t count, float *out) {
  assert(count <= q->count);
  memcpy(out, q->rows, bytes_of(q, count));
  q->count -= count;
  q->base += count;
  memmove(q->rows, q->rows + (size_t)count * (size_t)q->width, bytes_of(q, q->count));
}
