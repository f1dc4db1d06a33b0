#include "target_worker/feature_ring.h"

#include "common/base/min.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

int feature_ring_init(feature_ring *r, size_t row_bytes, int32_t most) {
  int32_t rows = (int32_t)(FEATURE_RING_BYTES / row_bytes);
  if (rows < FEATURE_RING_ROWS) rows = FEATURE_RING_ROWS;
  rows = min_i32(rows, most);
  *r = (feature_ring){.row_bytes = row_bytes, .capacity = rows};
  r->rows = malloc((size_t)rows * row_bytes);
  return r->rows ? ERR_OK : ERR_NOMEM;
}

void feature_ring_fini(feature_ring *r) {
  free(r->rows);
  *r = (feature_ring){0};
}

void feature_ring_add(feature_ring *r, int32_t base, int32_t count, const uint8_t *rows) {
  if (base != r->end) r->first = r->end = base;
  for (int32_t i = 0; i < count; i++, r->end++)
    memcpy(r->rows + (size_t)(r->end % r->capacity) * r->row_bytes, rows + (size_t)i * r->row_bytes,
           r->row_bytes);
  if (r->end - r->first > r->capacity) r->first = r->end - r->capacity;
}

const uint8_t *feature_ring_get(const feature_ring *r, int32_t position, int32_t end, int32_t *count) {
  assert(position >= r->first && position < r->end);
  int32_t at = position % r->capacity;
  *count = min_i32(min_i32(end, r->end) - position, r->capacity - at);
  return r->rows + (size_t)at * r->row_bytes;
}

void feature_ring_trim(feature_ring *r, int32_t position) {
  if (position > r->first) r->first = min_i32(position, r->end);
}

void feature_ring_clear(feature_ring *r) {
  r->first = r->end;
}
