/* acceptance.h - decides which tokens one verified tree yields. Pure.
 *
 * Rows: row 0 is the root, row i > 0 the i-th node, parents[i] an earlier row. The walk samples the target's
 * token at a row, steps to the child row that has it and stops where none has. Every sampled token is the
 * target's own; the last one is the bonus. */
#pragma once

#include <stdint.h>

/* The target's token at `row` (its path is path[0..depth], path[depth] == row). */
typedef int32_t (*acceptance_pick)(void *context, int32_t row, const int32_t *path, int32_t depth);

/* path [row_count]: rows walked, root first; sampled [row_count]: the token chosen at each. Returns how many
 * rows were walked, >= 1: accepted nodes are that minus one. Ends early after a token of stops[stop_count]
 * (an end of sequence) and after sampled_max tokens (>= 1). */
int32_t acceptance_walk(const int32_t *tokens, const int32_t *parents, int32_t row_count,
                        const int32_t *stops, int32_t stop_count, int32_t sampled_max, acceptance_pick pick,
                        void *context, int32_t *path, int32_t *sampled);
