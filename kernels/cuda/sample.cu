/* sample.cu - the choice of tokens (ops.h: ops_sampling).
 *
 * The best of a row is one, in whatever order its outputs meet. A block finds the best of a part of the
 * vocabulary, and a second kernel the best of the parts. Noise is expensive to compute, and most outputs
 * cannot win: as on the CPU (kernels/cpu/sample.h), an output is dropped as soon as a bound of its noise
 * shows that it cannot reach a value that the block knows, here that of its largest logit. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"

#include "common/base/noise.h"

#define WARP    32
#define THREADS 256
#define WARPS   (THREADS / WARP)
#define EACH    4 /* outputs of a thread: a block of Philox's numbers */
#define PART    (THREADS * EACH)

typedef struct winner {
  float value;
  int32_t id;
} winner;

static __device__ __forceinline__ winner nobody() {
  const winner w = {-INFINITY, INT32_MAX};
  return w;
}

/* A logit was a NaN or +infinity: nobody wins against this. */
static __device__ __forceinline__ winner no_numbers() {
  const winner w = {INFINITY, -1};
  return w;
}

/* The lowest id wins ties. */
static __device__ __forceinline__ void meet(winner &w, float value, int32_t id) {
  const bool wins = value > w.value || (value == w.value && id < w.id);
  w.value = wins ? value : w.value;
  w.id = wins ? id : w.id;
}

/* The best of a block's threads, in every thread. memory [WARPS] */
static __device__ winner best_of_block(winner w, winner *memory) {
  for (int by = WARP / 2; by > 0; by /= 2)
    meet(w, __shfl_xor_sync(~0u, w.value, by), __shfl_xor_sync(~0u, w.id, by));
  __syncthreads(); /* the memory may be that of a search before */
  if (threadIdx.x % WARP == 0) memory[threadIdx.x / WARP] = w;
  __syncthreads();
  for (int i = 0; i < WARPS; i++) meet(w, memory[i].value, memory[i].id);
  return w;
}

/* A thread's logits; -infinity past the vocabulary. */
typedef struct outputs {
  float logit[EACH];
  int32_t first; /* id */
} outputs;

static __device__ outputs load_outputs(const float *logits, int32_t vocabulary) {
  outputs o;
  o.first = (int32_t)(blockIdx.x * PART + threadIdx.x * EACH);
  for (int i = 0; i < EACH; i++) o.logit[i] = o.first + i < vocabulary ? logits[o.first + i] : -INFINITY;
  return o;
}

static __device__ winner best_logit(const outputs &o) {
  winner w = nobody();
  for (int i = 0; i < EACH; i++) {
    if (o.logit[i] > -INFINITY) meet(w, o.logit[i], o.first + i);
    if (!(o.logit[i] < INFINITY)) w = no_numbers();
  }
  return w;
}

/* `known` is the value of some output of the row, with its noise. */
static __device__ winner best_noisy(const outputs &o, const ops_sampling &choice, float largest,
                                    float known) {
  const noise_source source = {choice.seed, choice.choice, choice.position};
  winner w = nobody();
  if (!(largest > -INFINITY) || largest * choice.scale + NOISE_MAX < known) return w;
  const philox_block bits = noise_block(&source, o.first / EACH);
  for (int i = 0; i < EACH; i++) {
    if (!(o.logit[i] > -INFINITY) || o.logit[i] * choice.scale + noise_bound(bits.lane[i]) < known) continue;
    meet(w, o.logit[i] * choice.scale + noise_gumbel(bits.lane[i]), o.first + i);
  }
  return w;
}

static __device__ float value_of(const ops_sampling &choice, const winner &top) {
  const noise_source source = {choice.seed, choice.choice, choice.position};
  return top.id == INT32_MAX ? -INFINITY : top.value * choice.scale + noise_of(&source, top.id);
}

/* How many rows choose. */
static __device__ int32_t choosing(const cuda_rows &head) {
  return head.batch->head_count - head.batch->logit_count;
}

static __global__ void find_best(cuda_rows head, int32_t vocabulary, const float *logits, winner *parts) {
  CUDA_SHARED(shared);
  const int32_t row = (int32_t)blockIdx.y, count = choosing(head);
  device_let_next_begin();
  device_wait_for_previous();
  if (row >= count) return;
  const ops_sampling choice = head.batch->choices[row];
  const size_t line = (size_t)(head.batch->logit_count + row);
  const outputs o = load_outputs(logits + line * (size_t)vocabulary, vocabulary);
  const winner mine = best_logit(o);
  winner best = best_of_block(mine, (winner *)shared);
  if (choice.scale != 0 && best.id >= 0) {
    best = best_noisy(o, choice, mine.value, value_of(choice, best));
    best = best_of_block(best, (winner *)shared);
  }
  if (threadIdx.x == 0) parts[(size_t)row * gridDim.x + blockIdx.x] = best;
}

static __global__ void choose(cuda_rows head, int32_t part_count, const winner *parts, int32_t *ids) {
  CUDA_SHARED(shared);
  const int32_t row = (int32_t)blockIdx.x, count = choosing(head);
  device_let_next_begin();
  device_wait_for_previous();
  if (row >= count) return;
  winner w = nobody();
  for (int32_t i = (int32_t)threadIdx.x; i < part_count; i += THREADS) {
    const winner part = parts[(size_t)row * (size_t)part_count + (size_t)i];
    meet(w, part.value, part.id);
  }
  w = best_of_block(w, (winner *)shared);
  if (threadIdx.x == 0) ids[row] = w.id == INT32_MAX ? -1 : w.id;
}

static int32_t parts_of(int32_t vocabulary) {
  return (vocabulary + PART - 1) / PART;
}

size_t cuda_sample_bytes(int32_t bucket, int32_t vocabulary) {
  return (size_t)bucket * (size_t)parts_of(vocabulary) * sizeof(winner);
}

void cuda_sample(cudaStream_t stream, cuda_rows head, int32_t vocabulary, const float *logits, int32_t *ids,
                 void *scratch) {
  const int32_t parts = parts_of(vocabulary);
  const size_t bytes = WARPS * sizeof(winner);
  launch_early(find_best, dim3((unsigned)parts, (unsigned)head.bucket), dim3(THREADS), bytes, stream, head,
               vocabulary, logits, (winner *)scratch);
  launch_early(choose, dim3((unsigned)head.bucket), dim3(THREADS), bytes, stream, head, parts,
               (const winner *)scratch, ids);
}
