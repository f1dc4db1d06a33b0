/* attention_join.cu - splits of attention that were blocks of their own, joined by a kernel of its own
 * (attention.cuh), where they are too many for the last of those blocks: a block a head of a row, a thread a
 * component. */
#include "kernels/cuda/attention.cuh"

#define AHEAD 32 /* splits whose values are on their way while as many are joined */
static_assert(AHEAD == DEVICE_LANES, "a warp's lanes have the factors of as many splits");

typedef struct join_split { /* what a split's values are joined with */
  alignas(16) cpu_factors factors;
  float weights;
  int32_t keys; /* 0: the row sees none in it */
} join_split;

DEVICE_CODE join_split *join_shared() {
  CUDA_SHARED(shared);
  return (join_split *)shared;
}

struct values_ahead {
  float of[AHEAD];
};

/* Of splits from `first` on. In place of those that are not there, the first one again. */
DEVICE_CODE values_ahead load_values(const float *values, int32_t row, int32_t first, int32_t count) {
  values_ahead v;
  DEVICE_UNROLL for (int i = 0; i < AHEAD; i++) {
    const int32_t split = first + i < count ? first + i : 0;
    v.of[i] = device_load_fresh<float>(values + (size_t)split * (size_t)row);
  }
  return v;
}

/* A warp leaves what all splits are joined with, and behind them splits without keys up to a whole AHEAD. */
DEVICE_CODE void find_factors(const attention_partial *partials, int32_t count) {
  const int32_t lane = (int32_t)threadIdx.x;
  float before = -INFINITY;
  DEVICE_NO_UNROLL
  for (int32_t first = 0; first < count; first += AHEAD) {
    attention_partial p = {{0, 0}, 0};
    if (first + lane < count) p = device_load_fresh<attention_partial>(partials + first + lane);
    const cpu_factors f = attention_factors(p, before);
    join_shared()[first + lane] = {f, p.softmax.sum, p.keys};
  }
}

/* Of the thread's component. */
DEVICE_CODE float join_values(const float *values, int32_t row, values_ahead next, int32_t count) {
  float sum = 0, weights = 0;
  bool any = false;
  DEVICE_NO_UNROLL
  for (int32_t first = 0; first < count; first += AHEAD) {
    const values_ahead v = next;
    next = load_values(values, row, first + AHEAD, count);
    DEVICE_UNROLL for (int i = 0; i < AHEAD; i++) {
      const join_split s = device_load<join_split>(join_shared() + first + i);
      if (!s.keys) continue;
      weights = any ? attention_joined(weights, s.weights, s.factors) : s.weights;
      sum = any ? attention_joined(sum, v.of[i], s.factors) : v.of[i];
      any = true;
    }
  }
  return sum * (1.0f / weights);
}

static __global__ void join_splits(attention_job j) {
  const cuda_batch *batch = j.rows.batch;
  const int32_t t = (int32_t)threadIdx.x, before = attention_run_begin(j, j.first_run);
  const int32_t r = before + (int32_t)blockIdx.x / j.heads;
  const int32_t row = cuda_kv_row(j.kv.head_dim), dim = j.kv.head_dim;
  device_wait_for_previous();
  if (r >= attention_run_begin(j, j.end_run)) return;
  device_let_next_begin();
  const int32_t count = batch->rows[r].position / OPS_SPLIT + 1;
  const size_t first = (size_t)blockIdx.x * (size_t)j.splits;
  const float *values = j.values + first * (size_t)row + (t < row ? t : 0);
  const values_ahead begun = load_values(values, row, 0, count);
  if (t < DEVICE_LANES) find_factors(j.partials + first, count);
  __syncthreads();
  const float y = join_values(values, row, begun, count);
  if (t < dim) j.y[(attention_head_at(j, before, 0) + (size_t)blockIdx.x) * (size_t)dim + (size_t)t] = y;
}

void attention_put_join(cudaStream_t stream, const attention_job &j, int32_t rows) {
  const size_t bytes = (size_t)(j.splits + AHEAD) * sizeof(join_split);
  const int32_t threads = (j.kv.head_dim + DEVICE_LANES - 1) / DEVICE_LANES * DEVICE_LANES;
  launch_early(join_splits, dim3((unsigned)(rows * j.heads)), dim3((unsigned)threads), bytes, stream, j);
}
