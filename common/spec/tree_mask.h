/* tree_mask.h - the dense form of a tree of rows: attention mask and position ids.
 *
 * The forward pass never uses it (a row lists its path instead): it is the oracle that the tests hold the
 * path form against. Row 0 is the root (parents[0] == -1), parents[i] < i. Column c < committed is the key of
 * logical position c; column committed + j is the key of row j. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* mask [rows][committed + rows]: 1 where the row sees the column, else 0. positions [rows]: logical position
 * of the row's token; siblings share one, the root has `committed`. */
void tree_mask_build(const int32_t *parents, int32_t rows, int32_t committed, uint8_t *mask,
                     int32_t *positions);

/* The additive form: 0 where seen, -infinity where not; for `count` entries. */
void tree_mask_float(const uint8_t *mask, size_t count, float *out);
