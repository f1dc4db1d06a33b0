#include "bench/commit_policy.h"

#include "bench/probe.h"
#include "common/model/kv_rows.h"
#include <assert.h>

const char *const commit_policy_names[COMMIT_POLICIES] = {"staging", "write-through", "copy on accept"};
const char *const commit_shape_names[COMMIT_SHAPES] = {"chain", "tree"};

int32_t commit_depth(commit_shape shape, int32_t nodes) {
  return shape == COMMIT_CHAIN ? nodes : (nodes + 1) / 2;
}

bool commit_is_possible(commit_policy policy, commit_shape shape) {
  static const commit_policy other[COMMIT_SHAPES] = {COMMIT_WRITE_THROUGH, COMMIT_COPY};
  return policy == COMMIT_STAGING || policy == other[shape];
}

/* Row of the node at this depth of the path, the root's being 0. */
static int32_t row_at(commit_shape shape, int32_t depth) {
  return shape == COMMIT_CHAIN || depth == 0 ? depth : 2 * depth - 1;
}

static void set_shape(step_bench *b, const commit_round *r) {
  b->parents[0] = -1;
  for (int32_t i = 1; i <= r->nodes; i++) {
    const int32_t depth = r->shape == COMMIT_CHAIN ? i : (i + 1) / 2;
    b->parents[i] = row_at(r->shape, depth - 1);
  }
  for (int32_t i = 0; i <= r->accepted; i++) b->path[i] = row_at(r->shape, i);
}

static int stage_round(step_bench *b, const commit_round *r) {
  int rc = step_tree(b, r->nodes + 1);
  return rc == ERR_OK ? kv_commit(b->kv, b->sequences[0], b->path, r->accepted + 1) : rc;
}

static int write_round(step_bench *b, const commit_round *r) {
  int rc = step_append(b, r->nodes + 1);
  return rc == ERR_OK ? kv_rollback(b->kv, b->sequences[0], b->context + r->accepted + 1) : rc;
}

/* Rows of the path that do not lie where they belong: all but the root and its first child. */
static int32_t moved_rows(const commit_round *r) {
  return r->policy == COMMIT_COPY && r->accepted > 1 ? r->accepted - 1 : 0;
}

/* The rows of the pool are its first ones, whatever they hold. */
static int copy_round(step_bench *b, const commit_round *r) {
  const int32_t moved = moved_rows(r);
  int32_t rows[STEP_ROWS_MAX];
  if (!b->device->table->kv_stage(b->device, kv_rows(b->kv))) return ERR_NOMEM;
  int rc = write_round(b, r);
  for (int32_t i = 0; i < moved; i++) rows[i] = i;
  if (rc == ERR_OK)
    b->device->table->kv_commit(b->device, kv_rows(b->kv), b->sequences[0], rows, moved, b->context + 2);
  return rc;
}

static int play(step_bench *b, const commit_round *r) {
  static int (*const plays[COMMIT_POLICIES])(step_bench *, const commit_round *) = {
      [COMMIT_STAGING] = stage_round, [COMMIT_WRITE_THROUGH] = write_round, [COMMIT_COPY] = copy_round};
  return plays[r->policy](b, r);
}

static uint64_t row_bytes(const step_bench *b) {
  return step_kv_bytes(b) / (uint64_t)b->context;
}

/* What the cache has counted, and the copies that it does not know of. */
static void count_bytes(const step_bench *b, const commit_round *r, const kv_counters *before,
                        commit_cost *cost) {
  const kv_counters now = kv_count(b->kv);
  const uint64_t own = (uint64_t)moved_rows(r);
  const uint64_t committed =
      now.committed_rows - before->committed_rows + now.appended_rows - before->appended_rows;
  cost->committed_bytes = (committed + own) * row_bytes(b);
  cost->bytes = now.bytes_written - before->bytes_written + own * row_bytes(b);
}

int commit_play(step_bench *b, const commit_round *r, commit_cost *cost) {
  assert(r->nodes <= COMMIT_NODES_MAX && r->accepted <= commit_depth(r->shape, r->nodes));
  assert(commit_is_possible(r->policy, r->shape));
  const kv_counters before = kv_count(b->kv);
  set_shape(b, r);
  const uint64_t begin = probe_clock_ns();
  int rc = play(b, r);
  cost->ns = probe_clock_ns() - begin;
  if (rc != ERR_OK) return rc;
  count_bytes(b, r, &before, cost);
  return kv_rollback(b->kv, b->sequences[0], b->context);
}
