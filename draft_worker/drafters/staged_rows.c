#include "draft_worker/drafters/staged_rows.h"

#include <string.h>

int32_t staged_rows_child(const staged_rows *s, const kv_cache *k, int32_t seq, int32_t parent,
                          int32_t token) {
  for (int32_t i = 0; i < KV_STAGE_MAX; i++)
    if (kv_parent(k, seq, i) == parent && s->tokens[i] == token) return i;
  return STAGED_ROWS_NONE;
}

int32_t staged_rows_end(const staged_rows *s, const kv_cache *k, int32_t seq, const int32_t *path,
                        int32_t depth) {
  int32_t row = -1;
  for (int32_t i = 0; i < depth && row != STAGED_ROWS_NONE; i++)
    row = staged_rows_child(s, k, seq, row, path[i]);
  return row;
}

void staged_rows_add(staged_rows *s, int32_t row, int32_t token) {
  s->tokens[row] = token;
  s->candidates[row].count = 0;
}

void staged_rows_rank(staged_rows *s, int32_t row, const ops_ranked *best) {
  s->candidates[row].count = best ? best->count : 0;
  if (best) memcpy(s->candidates[row].list, best->list, (size_t)best->count * sizeof *best->list);
}

void staged_rows_reply(const staged_rows *s, int32_t row, draft_result *to) {
  to->count = s->candidates[row].count;
  memcpy(to->list, s->candidates[row].list, (size_t)to->count * sizeof *to->list);
}
