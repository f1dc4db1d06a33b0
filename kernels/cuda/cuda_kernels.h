/* cuda_kernels.h - the kernels of a CUDA device, as functions that put them into a stream. ops.h says what
 * they compute, to the bit. They neither wait nor take memory, so that a stream may capture them.
 *
 * A graph of captured kernels is replayed with other batches. So the batch lies in device memory, where its
 * counts may change between two replays, and a grid is made for a bucket of rows: what stands beyond the true
 * count returns at once. All pointers are the device's, unless a comment says otherwise; everything else is
 * copied at the call. Every pointer to memory that was taken is aligned to 64 bytes. Errors are the runtime's
 * (cudaGetLastError). */
#pragma once

#include "common/base/portable.h"
#include "kernels/cuda/shim.h"
#include "kernels/ops.h"

/* --- the batch --- */

/* Row i sees the logical positions of spans[first[i]] to spans[first[i + 1] - 1]. */
typedef struct cuda_view {
  const int32_t *first; /* [row_count + 1] */
  const ops_span *spans;
} cuda_view;

#define CUDA_RUN_ROWS      8
#define CUDA_LONG_RUN_ROWS 32

/* Rows [first, first + count) of a batch, which are of one sequence; at most CUDA_RUN_ROWS, or of long runs
 * CUDA_LONG_RUN_ROWS. */
typedef struct cuda_run {
  int32_t first, count;
} cuda_run;

/* Rows that attend to a split together, CUDA_RUN_ROWS at most: of one sequence, or of several to which these
 * positions are the same rows of the cache. */
typedef struct cuda_split_run {
  cuda_run run;
  int32_t split;
} cuda_split_run;

/* ops_batch in device memory. The arrays' addresses may change between replays too. */
typedef struct cuda_batch {
  const ops_row *rows;  /* [row_count] */
  const int32_t *paths; /* staged rows; ops_row has path_at and path_count in it */
  cuda_view views[OPS_VIEWS_MAX];
  const int32_t *head_rows;         /* [head_count], the first logit_count of which choose no token */
  const ops_sampling *choices;      /* [head_count - logit_count] */
  const int32_t *capture_rows;      /* [capture_count] */
  const cuda_run *runs;             /* [run_count]: all rows, in their order */
  const cuda_run *long_runs;        /* [long_run_count], likewise; count 0: some rows are
                                     staged, or they are CUDA_RUN_ROWS or fewer */
  const cuda_split_run *split_runs; /* [split_run_count]: all splits of all rows, as
                                       cuda_split_runs_of lists them; count 0: that does not pay */
  int32_t row_count, head_count, logit_count, capture_count, weigh_count, run_count, long_run_count,
      split_run_count;
} cuda_batch;

/* The rows that a kernel works on: the batch's, or those that go through the output head. */
typedef struct cuda_rows {
  const cuda_batch *batch;
  int32_t bucket; /* at least the true count of every replay; the grid is made for it */
  bool head;      /* row i is the batch's row head_rows[i], and there are head_count */
} cuda_rows;

/* At least as many runs as any replay has, and as many rows as any of them has. Where `shared` is not 0 these
 * are split runs: those of one sequence, and so many of several sequences, of so many rows. */
typedef struct cuda_runs {
  int32_t bucket, rows;
  int32_t shared, shared_rows;
} cuda_runs;

/* --- data --- */

typedef struct cuda_weight {
  ops_type type;
  int32_t rows, columns; /* outputs, inputs */
  const void *data;      /* as cpu_pack makes it (kernels/cpu/cpu_kernels.h): the layout is CPU_LAYOUT */
} cuda_weight;

#define CUDA_TILE_ROWS 8

/* The int8 form of OPS_BLOCK activations of CUDA_TILE_ROWS rows, as a tensor core takes it: x is about q *
 * scale. Word 2 j of a row's q has its inputs 4 j to 4 j + 3, word 2 j + 1 those 16 further on. */
typedef struct cuda_tile {
  int32_t q[CUDA_TILE_ROWS][OPS_BLOCK / 4];
  float scale_sum[CUDA_TILE_ROWS][2]; /* scale; scale * (the sum of q) */
  int16_t halves[CUDA_TILE_ROWS][2];  /* the sums of the first and the last half of q */
} cuda_tile;

#define CUDA_BF16_CHUNK 8 /* inputs of a row that lie side by side */

/* The bf16 form of the same activations, [chunks][rows][CUDA_BF16_CHUNK]: a word has inputs 2 j and 2 j + 1
 * of a chunk. */
typedef struct cuda_bf16_tile {
  uint32_t words[OPS_BLOCK / CUDA_BF16_CHUNK][CUDA_TILE_ROWS][CUDA_BF16_CHUNK / 2];
} cuda_bf16_tile;

/* What a linear reads. tiles NULL: f32 math. Otherwise they are the linear's own memory, which it fills with
 * the int8 or bf16 form of f32 where it needs it: whoever writes f32 leaves them alone. */
typedef struct cuda_act {
  float *f32;       /* [rows][columns] */
  cuda_tile *tiles; /* [cuda_tile_rows(the bucket of rows)][columns / OPS_BLOCK] in any order, or NULL */
  int32_t columns;
  bool bf16; /* of class bf16-t25: the tiles have room for as many cuda_bf16_tile, which are larger */
} cuda_act;

PORTABLE int32_t cuda_tile_rows(int32_t rows) {
  return (rows + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS;
}

typedef struct cuda_linear_job {
  cuda_weight w;
  float *y;          /* [rows][w.rows] */
  bool add;          /* y += instead of y = */
  const float *bias; /* [w.rows], added to y at last; or NULL */
} cuda_linear_job;

#define CUDA_JOBS_MAX 4 /* of one launch */

/* A norm on the way to a linear: row i is x row i (rows.head: x row head_rows[i]) / sqrt(mean of squares +
 * eps)
 * * weight. */
typedef struct cuda_norm_source {
  const float *x; /* [..][columns] */
  const float *weight;
  float eps;
} cuda_norm_source;

#define CUDA_KV_UNIT 8 /* components of a key that lie side by side */

/* Elements of a head's key or value: its components, and zeros up to a whole unit. */
PORTABLE int32_t cuda_kv_row(int32_t head_dim) {
  return (head_dim + CUDA_KV_UNIT - 1) / CUDA_KV_UNIT * CUDA_KV_UNIT;
}

/* Elements are of the shape's type. Padding is zeros.
 * - keys [layers][kv_heads][blocks][units][OPS_TILE][CUDA_KV_UNIT]: a unit is so many components of a key
 * - values [layers][kv_heads][blocks][OPS_TILE][units][CUDA_KV_UNIT]
 * - stage_keys [layers][kv_heads][stage / OPS_TILE][units][OPS_TILE][CUDA_KV_UNIT], NULL: there is no staging
 *   pool
 * - stage_values [layers][kv_heads][stage][units][CUDA_KV_UNIT], likewise
 * - tables [sequences][context / OPS_TILE]: the blocks of each sequence */
typedef struct cuda_kv {
  ops_kv_type type;
  int32_t layers, kv_heads, head_dim, blocks, sequences, context, stage;
  void *keys, *values, *stage_keys, *stage_values;
  const int32_t *tables;
} cuda_kv;

/* Where a linear puts keys and values, and how it rotates queries and keys (cuda_rope_store, without norms).
 */
typedef struct cuda_store {
  cuda_kv kv;
  int32_t layer, dim;  /* dim: of the rope: components that are rotated */
  const float *angles; /* from cuda_rope */
} cuda_store;

PORTABLE_C_BEGIN

/* --- rows and linears --- */

/* x row i = row rows[i].token of w. */
void cuda_embed(cudaStream_t stream, cuda_rows rows, cuda_weight w, float *x);

/* y row i = values row i. */
void cuda_supply(cudaStream_t stream, cuda_rows rows, const float *values, int32_t columns, float *y);

/* to row i = x row capture_rows[i]. bucket: at least capture_count of every replay; `to` may be host memory
 * that the device can write. */
void cuda_capture(cudaStream_t stream, cuda_rows rows, int32_t bucket, const float *x, int32_t columns,
                  float *to);

/* The norm by itself, to y [bucket][columns]. */
void cuda_norm(cudaStream_t stream, cuda_rows rows, cuda_norm_source from, int32_t columns, float *y);

/* x.tiles from x.f32, by itself: tests and benchmarks alone need it. */
void cuda_quantize(cudaStream_t stream, cuda_rows rows, cuda_act x);

/* Up to CUDA_JOBS_MAX matrices over the same rows. Without `norm` the input is x.f32. With it the input is
 * the norm of norm->x, and x is room for it: what x holds afterwards is undefined. (So a device that is asked
 * for a norm and then for a linear may keep the norm until the linear comes, and pass both.) With `store` the
 * jobs are q, k and v, and what cuda_rope_store would make of them is made on the way: k and v go into the
 * cache, and nothing is written to their y. */
void cuda_linear(cudaStream_t stream, cuda_rows rows, const cuda_linear_job *jobs, int32_t count,
                 const cuda_norm_source *norm, const cuda_store *store, cuda_act x);

/* y [rows][gate.rows] = silu(gate * x) * (up * x). */
void cuda_linear_swiglu(cudaStream_t stream, cuda_rows rows, cuda_weight gate, cuda_weight up,
                        const cuda_norm_source *norm, cuda_act x, float *y);

/* The logits of head rows are a cuda_linear with rows.head. */

/* --- the cache --- */

typedef struct cuda_rotary {
  const float *angles;          /* from cuda_rope */
  int32_t dim;                  /* of the rope: components that are rotated */
  const float *q_norm, *k_norm; /* [head_dim], or NULL */
  float eps;
} cuda_rotary;

/* angles [bucket][2][dim]: cosines, each twice; then sines as (-s, s). They are computed in f64 from the f32
 * angle (float)position * frequency[i], rounded to f32 and multiplied by `times`. frequency [dim / 2]. */
void cuda_rope(cudaStream_t stream, cuda_rows rows, const float *frequency, int32_t dim, float times,
               float *angles);

/* Norms and rotates q [rows][heads][head_dim] in place and k [rows][kv_heads][head_dim] on its way, and
 * writes k and v where the row says. */
void cuda_rope_store(cudaStream_t stream, cuda_rows rows, cuda_kv kv, int32_t layer, cuda_rotary rotary,
                     int32_t heads, float *q, const float *k, const float *v);

#define CUDA_ATTENTION_COUNTERS 128 /* floats of scratch that are zeros before and after each attention */

/* What cuda_attention shall be given: these runs, or those long ones (of 0 rows: there are none), or those
 * split runs (shared 0: there are none), or, where rows are faster each by itself, runs of one row.
 * positions: as of cuda_attention; end: so many there are in this forward, which split runs know of. */
cuda_runs cuda_attention_runs(cuda_rows rows, cuda_runs runs, cuda_runs long_runs, cuda_runs split_runs,
                              cuda_kv kv, int32_t heads, int32_t positions, int32_t end);

/* Floats of scratch that cuda_attention needs, whatever `positions` is. Nothing else uses this memory, and
 * the counters at its beginning are zeros before the first attention. */
size_t cuda_attention_floats(cuda_kv kv, int32_t bucket, cuda_runs runs, int32_t heads);

/* y [rows][heads][head_dim] from the keys that views[view] shows each row. positions: more than the position
 * of any row of any replay, and at most kv.context. The grid grows with each OPS_SPLIT of them. Where runs
 * have several rows, these read keys and values together. */
void cuda_attention(cudaStream_t stream, cuda_rows rows, cuda_runs runs, cuda_kv kv, int32_t layer,
                    int32_t view, int32_t heads, int32_t positions, const float *q, float *y, float *scratch);

/* Floats of scratch that cuda_mass needs for a bucket of captured rows. */
size_t cuda_mass_floats(int32_t bucket, int32_t heads, int32_t positions);

/* y [rows][kv.context / OPS_TILE], rows capture_rows: what the tiles of their committed keys weigh. bucket:
 * as of cuda_capture; positions: as of cuda_attention. */
void cuda_mass(cudaStream_t stream, cuda_rows rows, int32_t bucket, cuda_kv kv, int32_t layer, int32_t heads,
               int32_t positions, const float *q, bool add, float *y, float *scratch);
/* The same, by the op `bound` of ops.h. mean: of the heads, rather than the largest. */
void cuda_bound(cudaStream_t stream, cuda_rows rows, int32_t bucket, cuda_kv kv, int32_t layer, int32_t heads,
                int32_t positions, const float *q, bool mean, bool add, float *y);

/* Staged rows path[0..count) become the sequence's committed rows length.., in all layers. path is the host's
 * memory, and its own again when this returns. */
void cuda_commit(cudaStream_t stream, cuda_kv kv, int32_t sequence, const int32_t *path, int32_t count,
                 int32_t length);

/* --- the head --- */

/* Bytes of scratch that cuda_sample needs for a bucket of head rows. */
size_t cuda_sample_bytes(int32_t bucket, int32_t vocabulary);

/* ids[i] = the token that choices[i] takes from the logits of head row logit_count + i. logits
 * [head bucket][vocabulary]; ids may be host memory that the device can write. */
void cuda_sample(cudaStream_t stream, cuda_rows head, int32_t vocabulary, const float *logits, int32_t *ids,
                 void *scratch);

PORTABLE_C_END
