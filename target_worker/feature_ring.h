/* feature_ring.h - the rows of features that wait until a session's drafts have room for them. The oldest
 * ones go when it is full, so a slow draft takes no more memory than this. */
#pragma once

#include "target_worker/taps.h"

/* Bytes of a ring, and the least rows, however wide they are: more than a verify commits. */
#define FEATURE_RING_BYTES WIRE_FEATURES_CREDIT
#define FEATURE_RING_ROWS  128

typedef struct feature_ring {
  uint8_t *rows; /* [capacity][row_bytes]; position p is row p % capacity; NULL: there is no ring */
  size_t row_bytes;
  int32_t capacity;
  int32_t first, end; /* the rows of positions [first, end) are kept */
} feature_ring;

/* most: rows. ERR_NOMEM. */
int feature_ring_init(feature_ring *r, size_t row_bytes, int32_t most);
void feature_ring_fini(feature_ring *r);
/* Adds rows [count][row_bytes] of positions from `base` on. If they do not follow those that are kept, these
 * go. */
void feature_ring_add(feature_ring *r, int32_t base, int32_t count, const uint8_t *rows);
/* The rows from `position` on, which is kept, as many as lie side by side and are before `end`. */
const uint8_t *feature_ring_get(const feature_ring *r, int32_t position, int32_t end, int32_t *count);
/* Rows before this position are not needed any more. */
void feature_ring_trim(feature_ring *r, int32_t position);
void feature_ring_clear(feature_ring *r);
