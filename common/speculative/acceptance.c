#include "common/speculative/acceptance.h"

#include <assert.h>
#include <stdbool.h>

static bool is_stop(int32_t token, const int32_t *stops, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    if (stops[i] == token) return true;
  return false;
}

/* A parent stands before its children, so the search begins behind it. */
static int32_t child_row(const int32_t *tokens, const int32_t *parents, int32_t row_count, int32_t row,
                         int32_t token) {
  for (int32_t i = row + 1; i < row_count; i++)
    if (parents[i] == row && tokens[i] == token) return i;
  return -1;
}

int32_t acceptance_walk(const int32_t *tokens, const int32_t *parents, int32_t row_count,
                        const int32_t *stops, int32_t stop_count, int32_t sampled_max, acceptance_pick pick,
                        void *context, int32_t *path, int32_t *sampled) {
  assert(row_count >= 1 && sampled_max >= 1);
  int32_t walked = 0;
  for (int32_t row = 0; row >= 0;) {
    path[walked] = row;
    int32_t token = sampled[walked] = pick(context, row, path, walked);
    walked++;
    if (walked == sampled_max || is_stop(token, stops, stop_count)) break;
    row = child_row(tokens, parents, row_count, row, token);
  }
  return walked;
}
