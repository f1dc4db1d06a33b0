/* staged_rows.h - the rows of an engine's tree that stand in one sequence's stage of the cache: the token of
 * each, and what the forward that computed it said of the tokens that may follow. A path is named by its
 * tokens; the cache knows which row is below which. For the engines. */
#pragma once

#include "common/model/kv_cache.h"
#include "draft_worker/drafters/draft_batch.h"

#define STAGED_ROWS_NONE (-2)

typedef struct staged_rows {
  int32_t tokens[KV_STAGE_MAX];
  struct {
    int32_t count;
    ranking_token list[DRAFT_CANDIDATES_MAX];
  } candidates[KV_STAGE_MAX];
} staged_rows; /* what is in the places of rows that the cache has not staged means nothing */

/* The row of this token below a row, or below the committed ones (-1); STAGED_ROWS_NONE: there is none. */
int32_t staged_rows_child(const staged_rows *s, const kv_cache *k, int32_t seq, int32_t parent,
                          int32_t token);
/* The row at which this path from the committed tokens ends; -1: it is empty; STAGED_ROWS_NONE: a row is
 * missing. */
int32_t staged_rows_end(const staged_rows *s, const kv_cache *k, int32_t seq, const int32_t *path,
                        int32_t depth);
/* A row has been staged: candidates are not known yet. */
void staged_rows_add(staged_rows *s, int32_t row, int32_t token);
/* best NULL, where the device is lost: there are none. */
void staged_rows_rank(staged_rows *s, int32_t row, const ops_ranked *best);
void staged_rows_reply(const staged_rows *s, int32_t row, draft_result *to);
