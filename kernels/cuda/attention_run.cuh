/* attention_run.cuh - what kernels of attention share whose blocks take queries of a run: rows of a sequence
 * that read keys and values together (attention_runs.cu, attention_wide.cu), or of several sequences, in a
 * split that is the same to all. A query is a row and a head of one key-value head's group.
 *
 * A chunk of committed positions that every row sees is whole: nobody needs to look at who sees them. Rows of
 * a tree have the same staged rows as far as their paths are one; where they part, a position is ragged, and
 * each row reads its own key and value. */
#pragma once

#include "kernels/cuda/attention.cuh"

#define ATTENTION_RUN_QUERIES 48              /* of a block at most */
#define ATTENTION_NOBODY      CUDA_RUN_ROWS   /* the row of a query that is not there, which sees nothing */
#define ATTENTION_STRIDE      (OPS_SPLIT + 8) /* of weights: queries do not begin in the same bank */

typedef uint16_t attention_element; /* the bits of an f16 */

/* Of a chunk, a bit for each position. ragged: rows that see it have it in different places, and each reads
 * its own; all: not so, and every row sees it; any: some row does. flat: none that rows share is staged. */
typedef struct attention_chunk_view {
  uint32_t ragged, all, any;
  bool flat;
} attention_chunk_view;

typedef struct attention_run_memory { /* at the beginning of a block's shared memory */
  ops_row rows[CUDA_RUN_ROWS];
  uint32_t seen[CUDA_RUN_ROWS + 1][ATTENTION_CHUNKS]; /* a bit for each position */
  attention_chunk_view views[ATTENTION_CHUNKS];
  int32_t entries[OPS_SPLIT]; /* of each position for all rows that see it, unless it is ragged
                                 (attention_entry_of) */
  int32_t row_of[ATTENTION_RUN_QUERIES];
  cpu_softmax split[ATTENTION_RUN_QUERIES]; /* of this split */
  int32_t arrived;
} attention_run_memory;

/* Nothing else may hold this pointer (attention.cu). */
DEVICE_CODE attention_run_memory &attention_run_shared() {
  CUDA_SHARED(shared);
  return *(attention_run_memory *)shared;
}

/* --- what a block works on --- */

typedef struct attention_run_job : attention_queries {
  int32_t old;          /* positions before it were there before this forward */
  int32_t count, split; /* splits that some row may see; the block's, or where it has all of them 0 */
  cache_area<attention_element> committed, staged;
} attention_run_job;

/* The block's run, which has no rows where there is none. */
DEVICE_CODE cuda_split_run attention_run_here(const attention_job &j) {
  const cuda_batch *batch = j.rows.batch;
  const int32_t i = j.first_run + (int32_t)blockIdx.x;
  if (i >= (j.split_runs ? batch->split_run_count : batch->run_count)) return {};
  if (j.split_runs) return batch->split_runs[i];
  return {batch->runs[i], 0};
}

DEVICE_CODE attention_run_job attention_run_of(const attention_job &j, int32_t queries) {
  const cuda_split_run here = attention_run_here(j);
  const int32_t kv_head = (int32_t)blockIdx.y % j.kv.kv_heads;
  const int32_t first = (int32_t)blockIdx.y / j.kv.kv_heads * queries;
  return {{j, here.run, kv_head, j.heads / j.kv.kv_heads, first, attention_run_begin(j, j.first_run)},
          0,
          0,
          here.split,
          cache_area_of<attention_element>(j.kv, false, j.layer, kv_head),
          cache_area_of<attention_element>(j.kv, true, j.layer, kv_head)};
}

/* Are there queries for this block? */
DEVICE_CODE bool attention_has_queries(const attention_run_job &b) {
  return b.first < b.run.count * b.group;
}

/* Leaves the rows, and whose each query is. Ends with a barrier. The last split's block is the first to
 * begin: its rows see different things, and it takes longest. */
DEVICE_CODE void attention_find_rows(attention_run_job &b, int32_t queries) {
  attention_run_memory &memory = attention_run_shared();
  const int32_t t = (int32_t)threadIdx.x, count = b.j.rows.batch->row_count;
  if (t < b.run.count) memory.rows[t] = b.j.rows.batch->rows[b.run.first + t];
  if (t < queries) {
    const int32_t row = (b.first + t) / b.group;
    memory.row_of[t] = row < b.run.count ? row : ATTENTION_NOBODY;
  }
  if (t < (CUDA_RUN_ROWS + 1) * ATTENTION_CHUNKS) memory.seen[t / ATTENTION_CHUNKS][t % ATTENTION_CHUNKS] = 0;
  __syncthreads();
  int32_t old = INT32_MAX, last = 0;
  DEVICE_NO_UNROLL
  for (int32_t r = 0; r < b.run.count; r++) {
    const int32_t before = memory.rows[r].length - count, position = memory.rows[r].position;
    old = before < old ? before : old;
    last = position > last ? position : last;
  }
  b.old = old;
  b.count = last / OPS_SPLIT + 1;
  if (b.j.spread && !b.j.split_runs) b.split = b.count - 1 - (int32_t)blockIdx.z;
}

/* --- what the rows see of a split --- */

/* A thread looks for one row at one chunk. */
DEVICE_CODE void attention_look(const attention_run_job &b, int32_t split) {
  const int32_t r = (int32_t)threadIdx.x / ATTENTION_CHUNKS, c = (int32_t)threadIdx.x % ATTENTION_CHUNKS;
  if (r >= b.run.count) return;
  attention_run_shared().seen[r][c] =
      attention_seen(attention_view_of(b.j, b.run.first + r), split * OPS_SPLIT + c * OPS_CHUNK);
}

/* Where row r has a position: a committed row of the cache, or ~ a staged one. */
DEVICE_CODE int32_t attention_entry_of(const attention_run_job &b, int32_t r, int32_t p) {
  const ops_row &row = attention_run_shared().rows[r];
  return p < row.length ? cache_row(b.j.kv, row.sequence, p)
                        : ~b.j.rows.batch->paths[row.path_at + p - row.length];
}

/* Do all rows see all positions of a chunk, and is it committed for all of them? */
DEVICE_CODE bool attention_all_see(const attention_run_job &b, int32_t split, int32_t c) {
  const attention_run_memory &memory = attention_run_shared();
  const int32_t r = (int32_t)threadIdx.x % DEVICE_LANES, end = split * OPS_SPLIT + (c + 1) * OPS_CHUNK;
  return __all_sync(~0u, r >= b.run.count || (memory.seen[r][c] == ~0u && end <= memory.rows[r].length));
}

/* A warp brings together what all rows see of a chunk. A position that nobody sees is said to be at 0: what
 * comes of it is not read. */
DEVICE_CODE void attention_look_together(const attention_run_job &b, int32_t split, int32_t c) {
  attention_run_memory &memory = attention_run_shared();
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, at = c * OPS_CHUNK + lane;
  const int32_t p = split * OPS_SPLIT + at;
  if (attention_all_see(b, split, c)) {
    memory.entries[at] = cache_row(b.j.kv, memory.rows[0].sequence, p);
    if (lane == 0) memory.views[c] = {0, ~0u, ~0u, true};
    return;
  }
  int32_t entry = 0;
  bool any = false, all = true, ragged = false;
  DEVICE_NO_UNROLL
  for (int32_t r = 0; r < b.run.count; r++) {
    const bool sees = memory.seen[r][c] >> lane & 1;
    const bool same = !sees || (any && entry >= 0 && p < memory.rows[r].length); /* committed for both */
    const int32_t here = same ? entry : attention_entry_of(b, r, p);
    ragged = ragged || (any && here != entry);
    entry = here;
    any = any || sees;
    all = all && sees;
  }
  memory.entries[at] = entry;
  const attention_chunk_view v = {__ballot_sync(~0u, ragged), __ballot_sync(~0u, all && !ragged),
                                  __ballot_sync(~0u, any), !__any_sync(~0u, entry < 0)};
  if (lane == 0) memory.views[c] = v;
}

/* Leaves what all rows see of a split. False: nothing. Ends with a barrier. */
DEVICE_CODE bool attention_look_at(const attention_run_job &b, int32_t split) {
  const int32_t warps = (int32_t)blockDim.x / DEVICE_LANES;
  uint32_t any = 0;
  attention_look(b, split);
  __syncthreads();
  DEVICE_NO_UNROLL
  for (int32_t c = (int32_t)threadIdx.x / DEVICE_LANES; c < ATTENTION_CHUNKS; c += warps)
    attention_look_together(b, split, c);
  __syncthreads();
  DEVICE_UNROLL for (int c = 0; c < ATTENTION_CHUNKS; c++) any |= attention_run_shared().views[c].any;
  return any != 0;
}

/* Were all of a split's keys there before this forward? Then they may be read before the wait. */
DEVICE_CODE bool attention_is_old(const attention_run_job &b, int32_t split) {
  uint32_t all = ~0u;
  DEVICE_UNROLL for (int c = 0; c < ATTENTION_CHUNKS; c++) all &= attention_run_shared().views[c].any;
  return all == ~0u && (split + 1) * OPS_SPLIT <= b.old;
}

DEVICE_CODE bool attention_is_whole(const attention_chunk_view &v) {
  return v.all == ~0u && v.flat;
}

/* Does the row of this query see something of the split? */
DEVICE_CODE bool attention_query_sees(int32_t query) {
  const attention_run_memory &memory = attention_run_shared();
  return attention_sees_split(memory.seen[memory.row_of[query]]);
}

/* No query sees anything of the block's split. */
DEVICE_CODE void attention_run_leave_nothing(const attention_run_job &b, int32_t queries) {
  const int32_t t = (int32_t)threadIdx.x;
  device_wait_for_previous();
  device_let_next_begin();
  attention_leave_nothing(b, t < queries && attention_run_shared().row_of[t] != ATTENTION_NOBODY, b.split);
}

/* --- keys and values --- */

typedef struct attention_unit { /* CUDA_KV_UNIT components, as they lie side by side */
  alignas(16) uint32_t pairs[CUDA_KV_UNIT / 2];
} attention_unit;

/* Four components of it, from c on. */
DEVICE_CODE attention_quad attention_unit_quad(const attention_unit &u, int c) {
  attention_quad x;
  DEVICE_UNROLL for (int e = 0; e < ATTENTION_FOUR; e += 2)
      device_halves(u.pairs[(c + e) / 2], &x.x[e], &x.x[e + 1]);
  return x;
}

/* Of a position that is not ragged. Units of a key are OPS_TILE apart. */
template <int ROW>
DEVICE_CODE const attention_element *attention_key_at(const attention_run_job &b, int32_t entry) {
  const int32_t row = entry < 0 ? ~entry : entry;
  return (entry < 0 ? b.staged.keys : b.committed.keys) + (size_t)(row / OPS_TILE) * (OPS_TILE * ROW) +
         row % OPS_TILE * CUDA_KV_UNIT;
}

template <int ROW>
DEVICE_CODE const attention_element *attention_value_at(const attention_run_job &b, int32_t entry) {
  return entry < 0 ? b.staged.values + (size_t)~entry * ROW : b.committed.values + (size_t)entry * ROW;
}

/* --- kernels --- */

typedef struct attention_run_kernel {
  int32_t queries, row; /* of a block */
  attention_pace pace;
  bool whole;   /* a block can also take all splits in turn */
  size_t bytes; /* of shared memory */
  void (*launch)(cudaStream_t stream, const attention_job &j, dim3 grid);
} attention_run_kernel;

#define ATTENTION_WIDE_KERNELS 4
extern const attention_run_kernel attention_wide_kernels[ATTENTION_WIDE_KERNELS];
