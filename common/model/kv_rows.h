/* kv_rows.h - the part of a cache's interface that only the forward pass uses: it asks where rows lie and
 * whether they may be written, and reports when they have been written. For model.c and the cache's tests. */
#pragma once

#include "common/model/kv_cache.h"

const ops_kv_shape *kv_shape(const kv_cache *k);
device *kv_device(const kv_cache *k); /* which it was opened on */
device_kv *kv_rows(const kv_cache *k);

/* ERR_LIMIT (past the context), ERR_STATE (a stage is open, or it is a view). */
int kv_check_append(const kv_cache *k, int32_t seq, int32_t count);
/* ERR_STATE (no stage, or its forward has run already), ERR_ARG (not the tree that was staged). */
int kv_check_tree(const kv_cache *k, int32_t seq, const int32_t *parents, int32_t count);
/* Rows of the staging pool on the path of reserved row `row`, root first and its own last; returns how many.
 */
int32_t kv_path(const kv_cache *k, int32_t seq, int32_t row, int32_t *path);

/* The rows have been written in all layers: from now on they count. */
void kv_appended(kv_cache *k, int32_t seq, int32_t count);
void kv_staged(kv_cache *k, int32_t seq);
