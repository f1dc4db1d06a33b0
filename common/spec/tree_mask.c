#include "common/spec/tree_mask.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void tree_mask_build(const int32_t *parents, int32_t rows, int32_t committed, uint8_t *mask,
                     int32_t *positions) {
  assert(rows >= 1 && committed >= 0 && parents[0] == -1);
  size_t width = (size_t)committed + (size_t)rows;
  for (int32_t row = 0; row < rows; row++) {
    uint8_t *own = mask + (size_t)row * width;
    int32_t parent = parents[row];
    assert(parent < row && (row == 0 || parent >= 0));
    if (row == 0) {
      memset(own, 1, (size_t)committed);
      memset(own + committed, 0, (size_t)rows);
    } else {
      memcpy(own, mask + (size_t)parent * width, width); /* all that the parent sees */
    }
    own[committed + row] = 1;
    positions[row] = row == 0 ? committed : positions[parent] + 1;
  }
}

void tree_mask_float(const uint8_t *mask, size_t count, float *out) {
  for (size_t i = 0; i < count; i++) out[i] = mask[i] ? 0 : -INFINITY;
}
