/* rank.cu - the best tokens of a row (rank.h). A block takes a row.
 *
 * A filter keeps the first tokens of an order: by logit descending, then by id. So it is a threshold: a key
 * of the logit, and the last id among those with that key. `select` finds it by histograms of 64-bit
 * integers, whose order of addition does not matter. */
#include "kernels/cuda/rank.h"

#include "common/base/filter_math.h"

#define WARP      32
#define THREADS   1024
#define WARPS     (THREADS / WARP)
#define BINS      2048
#define BIN_BITS  11
#define LANE_BINS (BINS / WARP)
#define EACH      4 /* tokens that share a block of Philox's numbers */
#define FEW       8 /* tokens of a list that threads keep in registers */

typedef unsigned long long sum_type; /* what atomicAdd takes */

/* The first of an order, or less than all others. */
typedef struct few_ranked {
  float value[FEW];
  int32_t token[FEW];
} few_ranked;

typedef struct rank_memory {
  sum_type histogram[BINS];
  few_ranked few[WARPS];
  sum_type sums[WARPS], rest;
  float largest[WARPS];
  int32_t bin, listed;
  ranking_token list[SAMPLER_RANKED_MAX];
} rank_memory;

/* Nothing else holds this pointer (attention.cu says why). */
static __device__ __forceinline__ rank_memory &block_memory() {
  CUDA_SHARED(shared);
  return *(rank_memory *)shared;
}

/* Tokens from here on down are left out: those with a smaller key, and with this key those after `last`. */
typedef struct threshold {
  uint32_t key;
  int32_t last;
} threshold;

static __device__ __forceinline__ bool keeps(const threshold &t, float logit, int32_t id) {
  const uint32_t key = filter_key(logit);
  return logit > -INFINITY && (key > t.key || (key == t.key && id <= t.last));
}

/* A row at work. */
struct row_job {
  const cuda_rank_batch &batch;
  const cuda_ranking &r;
  int32_t vocabulary;
  float *x; /* [vocabulary]: logits after penalties, bias and mask; then what they are ranked by */
};

template <class F> static __device__ void each_token(const row_job &j, F f) {
  for (int32_t t = (int32_t)threadIdx.x; t < j.vocabulary; t += THREADS) f(t);
}

/* --- sums and maxima of a block, in every thread --- */

static __device__ sum_type block_sum(sum_type sum) {
  rank_memory &memory = block_memory();
  for (int by = WARP / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  __syncthreads();
  if (threadIdx.x % WARP == 0) memory.sums[threadIdx.x / WARP] = sum;
  __syncthreads();
  sum = memory.sums[threadIdx.x % WARPS];
  for (int by = WARPS / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  return sum;
}

/* -infinity if there is none larger. */
static __device__ float block_largest(float x) {
  rank_memory &memory = block_memory();
  x = x > -INFINITY ? x : -INFINITY;
  for (int by = WARP / 2; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, by));
  __syncthreads();
  if (threadIdx.x % WARP == 0) memory.largest[threadIdx.x / WARP] = x;
  __syncthreads();
  x = memory.largest[threadIdx.x % WARPS];
  for (int by = WARPS / 2; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, by));
  return x;
}

/* --- select --- */

/* The first warp: the first bin at which the sum of all bins up to it reaches `target`, and what it must add.
 * BINS if the sum of all does not; then *rest is what is still missing. */
static __device__ void find_in_histogram(sum_type target) {
  rank_memory &memory = block_memory();
  const int lane = (int)threadIdx.x;
  sum_type mine = 0, before;
  for (int i = 0; i < LANE_BINS; i++) mine += memory.histogram[lane * LANE_BINS + (i + lane) % LANE_BINS];
  before = mine;
  for (int by = 1; by < WARP; by *= 2) {
    const sum_type other = __shfl_up_sync(~0u, before, by);
    if (lane >= by) before += other;
  }
  const sum_type all = __shfl_sync(~0u, before, WARP - 1);
  before -= mine;
  if (lane == 0 && all < target) {
    memory.bin = BINS;
    memory.rest = target - all;
  }
  if (before >= target || before + mine < target) return;
  int bin = lane * LANE_BINS;
  for (; before + memory.histogram[bin] < target; bin++) before += memory.histogram[bin];
  memory.bin = bin;
  memory.rest = target - before;
}

/* The same over the tokens: bin_of(t, &weight) is a token's bin; from BINS on it is not counted. */
template <class F> static __device__ int32_t find_bin(const row_job &j, sum_type *target, F bin_of) {
  for (int32_t i = (int32_t)threadIdx.x; i < BINS; i += THREADS) block_memory().histogram[i] = 0;
  __syncthreads();
  each_token(j, [&](int32_t t) {
    sum_type weight = 0;
    const uint32_t bin = bin_of(t, &weight);
    if (weight > 0 && bin < BINS) atomicAdd(&block_memory().histogram[bin], weight);
  });
  __syncthreads();
  if (threadIdx.x < WARP) find_in_histogram(*target);
  __syncthreads();
  *target = block_memory().rest;
  return block_memory().bin;
}

/* The last id of the first `count` tokens with this key. */
template <class F>
static __device__ int32_t last_of_ties(const row_job &j, uint32_t key, sum_type count, F weight_of) {
  int32_t first = 0;
  for (int shift : {BIN_BITS - 2, 0}) { /* SAMPLER_VOCAB_MAX is 2^20 */
    first += find_bin(j, &count,
                      [&](int32_t t, sum_type *weight) {
                        *weight = weight_of(t) > 0 && filter_key(j.x[t]) == key && t >= first;
                        return (uint32_t)(t - first) >> shift;
                      })
             << shift;
  }
  return first;
}

/* Of the tokens with a weight, as few as reach `target`, at most the sum of all weights, in the filters'
 * order. The same logit has the same weight. `best`: the largest logit. */
template <class F>
static __device__ threshold select(const row_job &j, float best, sum_type target, F weight_of) {
  uint32_t top = filter_key(best); /* no key above it is to be counted */
  for (int shift : {16, 5, 0}) {
    int32_t bin = BINS;
    for (;;) { /* windows of BINS bins, each below the one before it */
      bin = find_bin(j, &target, [&](int32_t t, sum_type *weight) {
        const uint32_t key = filter_key(j.x[t]);
        *weight = key <= top ? weight_of(t) : 0;
        return (top - key) >> shift;
      });
      if (bin < BINS) break;
      top -= (uint32_t)BINS << shift;
    }
    top -= (uint32_t)bin << shift;
  }
  sum_type ties = 0, weight = 0;
  each_token(j, [&](int32_t t) {
    const sum_type w = filter_key(j.x[t]) == top ? weight_of(t) : 0;
    ties += w > 0;
    weight += w;
  });
  ties = block_sum(ties);
  weight = block_sum(weight) / ties;
  const sum_type wanted = (target + weight - 1) / weight;
  const threshold found = {top, wanted < ties ? last_of_ties(j, top, wanted, weight_of) : INT32_MAX};
  return found;
}

/* --- penalties, bias, mask --- */

/* Before a token's logit is there, its word is -infinity and, added to its bits, what the history says of the
 * token: 1 where the prompt has it, and 2 for each time in the output. A token without a logit keeps that,
 * which is -infinity or a NaN: it is never listed. */
#define UNSEEN 0xff800000u

static __device__ bool in_vocabulary(const row_job &j, int32_t token) {
  return token >= 0 && token < j.vocabulary;
}

static __device__ bool has_history(const row_job &j) {
  return j.r.history[0].count > 0 || j.r.history[1].count > 0;
}

static __device__ void count_history(const row_job &j) {
  uint32_t *words = (uint32_t *)j.x;
  int32_t before = 0;
  each_token(j, [&](int32_t t) { j.x[t] = -INFINITY; });
  __syncthreads();
  for (const ops_slice &s : j.r.history) {
    for (int32_t i = (int32_t)threadIdx.x; i < s.count; i += THREADS) {
      const int32_t t = j.batch.tokens[s.first + i];
      if (!in_vocabulary(j, t)) continue;
      if (before + i < j.r.prompt_count)
        atomicOr(&words[t], 1u);
      else
        atomicAdd(&words[t], 2u);
    }
    before += s.count;
  }
  __syncthreads();
}

/* A token may be there several times; its first entry's thread adds all, in their order. */
static __device__ void add_biases(const row_job &j) {
  const int32_t *tokens = j.batch.bias_tokens + j.r.bias.first;
  const float *values = j.batch.bias_values + j.r.bias.first;
  for (int32_t i = (int32_t)threadIdx.x; i < j.r.bias.count; i += THREADS) {
    const int32_t token = tokens[i];
    bool first = in_vocabulary(j, token);
    for (int32_t k = 0; k < i && first; k++) first = tokens[k] != token;
    for (int32_t k = i; k < j.r.bias.count && first; k++)
      if (tokens[k] == token) j.x[token] += values[k];
  }
}

/* Is it a number? */
static __device__ __forceinline__ bool take_logit(const row_job &j, int32_t t, float x) {
  const cuda_ranking &r = j.r;
  const bool number = x < INFINITY;
  uint32_t word = UNSEEN;
  if (has_history(j)) memcpy(&word, &j.x[t], sizeof word);
  const int32_t count = (int32_t)((word - UNSEEN) / 2);
  if (word != UNSEEN)
    x = filter_penalised(x, r.repeat_penalty, r.frequency_penalty, r.presence_penalty, count);
  j.x[t] = x;
  return number;
}

/* Each of them is another token. */
static __device__ bool take_outputs(const row_job &j, const cuda_rank_logits &l, const float *logits,
                                    int32_t first, int32_t count) {
  bool numbers = true;
  for (int32_t i = first + (int32_t)threadIdx.x; i < first + count; i += THREADS)
    if (in_vocabulary(j, l.of[i])) numbers &= take_logit(j, l.of[i], logits[i]);
  return numbers;
}

/* Are the logits numbers that this thread took? */
static __device__ bool adjust(const row_job &j, const cuda_rank_logits &l) {
  bool numbers = true;
  const float *from = l.logits + (size_t)j.r.line * (size_t)l.columns;
  if (has_history(j) || l.of) count_history(j);
  if (l.of) {
    numbers &= take_outputs(j, l, from, 0, l.common);
    numbers &= take_outputs(j, l, from, j.r.own.first, j.r.own.count);
  } else {
    each_token(j, [&](int32_t t) { numbers &= take_logit(j, t, from[t]); });
  }
  __syncthreads();
  add_biases(j);
  __syncthreads();
  if (j.r.mask >= 0) {
    const uint32_t *mask = j.batch.masks + j.r.mask;
    each_token(j, [&](int32_t t) {
      if (!(mask[t / 32] >> t % 32 & 1)) j.x[t] = -INFINITY;
    });
  }
  __syncthreads();
  return numbers;
}

/* --- filters --- */

template <class F> static __device__ sum_type sum_over(const row_job &j, F weight_of) {
  sum_type sum = 0;
  each_token(j, [&](int32_t t) { sum += weight_of(t); });
  return block_sum(sum);
}

static __device__ threshold top_k(const row_job &j, float best) {
  const threshold all = {0, INT32_MAX};
  if (j.r.top_k <= 0 || j.r.top_k >= j.vocabulary) return all;
  const auto counts = [&](int32_t t) -> sum_type { return j.x[t] > -INFINITY; };
  if ((sum_type)j.r.top_k >= sum_over(j, counts)) return all;
  return select(j, best, (sum_type)j.r.top_k, counts);
}

static __device__ __forceinline__ sum_type weight_of_logit(const row_job &j, float logit, float best) {
  return (sum_type)filter_weight(filter_probability(logit, best, j.r.scale));
}

static __device__ threshold top_p(const row_job &j, float best, const threshold &kept) {
  if (!(j.r.top_p < 1)) return kept;
  const auto weights = [&](int32_t t) -> sum_type {
    return keeps(kept, j.x[t], t) ? weight_of_logit(j, j.x[t], best) : 0;
  };
  threshold t = select(j, best, (sum_type)filter_target(j.r.top_p, sum_over(j, weights)), weights);
  if (t.key == kept.key && kept.last < t.last) t.last = kept.last; /* it goes by tokens that are kept */
  return t;
}

static __device__ bool passes(const row_job &j, const threshold &kept, float logit, int32_t t, float best) {
  if (!keeps(kept, logit, t)) return false;
  if (j.r.scale == 0) return true;
  if (j.r.top_p < 1 && weight_of_logit(j, logit, best) == 0) return false;
  return !(j.r.min_p > 0) || logit == best || logit * j.r.scale - best * j.r.scale >= filter_least(j.r.min_p);
}

/* --- a few of all logits --- */

static __device__ __forceinline__ bool precedes(float a, int32_t token_a, float b, int32_t token_b) {
  return a > b || (a == b && token_a < token_b);
}

static __device__ __forceinline__ few_ranked none_ranked() {
  few_ranked f;
  for (int i = 0; i < FEW; i++) f.value[i] = -INFINITY, f.token[i] = INT32_MAX;
  return f;
}

static __device__ __forceinline__ void insert(few_ranked *f, float value, int32_t token) {
  if (!precedes(value, token, f->value[FEW - 1], f->token[FEW - 1])) return;
  for (int i = 0; i < FEW; i++) {
    if (!precedes(value, token, f->value[i], f->token[i])) continue;
    const float next_value = f->value[i];
    const int32_t next = f->token[i];
    f->value[i] = value, f->token[i] = token;
    value = next_value, token = next;
  }
}

/* Of a warp's lists in order the first tokens, in order: lane i has the i-th. */
static __device__ ranking_token merge(few_ranked f) {
  ranking_token mine = {INT32_MAX, -INFINITY};
  for (int at = 0; at < FEW; at++) {
    float value = f.value[0];
    int32_t token = f.token[0];
    for (int by = WARP / 2; by > 0; by /= 2) {
      const float other = __shfl_xor_sync(~0u, value, by);
      const int32_t other_token = __shfl_xor_sync(~0u, token, by);
      if (!precedes(other, other_token, value, token)) continue;
      value = other, token = other_token;
    }
    if ((int)threadIdx.x % WARP == at) mine = {token, value};
    if (f.token[0] != token) continue;
    for (int i = 1; i < FEW; i++) f.value[i - 1] = f.value[i], f.token[i - 1] = f.token[i];
    f.value[FEW - 1] = -INFINITY, f.token[FEW - 1] = INT32_MAX;
  }
  return mine;
}

static __device__ bool has_filters(const row_job &j) {
  const bool by_count = j.r.top_k > 0 && j.r.top_k < j.vocabulary;
  return j.r.scale != 0 && (by_count || j.r.top_p < 1 || j.r.min_p > 0);
}

/* Is the list that of the greatest logits, with their noise where there is a temperature? */
static __device__ bool wants_few(const row_job &j) {
  return j.r.count <= FEW && !has_filters(j) && !has_history(j) && j.r.bias.count == 0 && j.r.mask < 0;
}

/* What a logit is ranked by, or less than `least`. */
static __device__ __forceinline__ float value_of(const row_job &j, float logit, int32_t token, float least) {
  if (j.r.scale == 0) return logit;
  const noise_source source = {j.r.seed, j.r.choice, j.r.position};
  const uint32_t bits = noise_block(&source, token / EACH).lane[token % EACH];
  const float scaled = logit * j.r.scale;
  if (scaled + noise_bound(bits) < least) return -INFINITY;
  return scaled + noise_gumbel(bits);
}

/* What a thread sees of the outputs [first, first + count). */
static __device__ bool see_outputs(const row_job &j, const cuda_rank_logits &l, int32_t first, int32_t count,
                                   few_ranked *seen) {
  const float *from = l.logits + (size_t)j.r.line * (size_t)l.columns;
  bool numbers = true;
  for (int32_t i = first + (int32_t)threadIdx.x; i < first + count; i += THREADS) {
    const int32_t token = l.of ? l.of[i] : i;
    if (!in_vocabulary(j, token)) continue;
    const float x = from[i];
    numbers &= x < INFINITY;
    if (x > -INFINITY) insert(seen, value_of(j, x, token, seen->value[FEW - 1]), token);
  }
  return numbers;
}

/* The list without a copy of the logits: each thread's, each warp's, the block's. */
static __device__ int32_t rank_few(const row_job &j, const cuda_rank_logits &l, ranking_token *out) {
  few_ranked seen = none_ranked();
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  bool numbers = see_outputs(j, l, 0, l.of ? l.common : j.vocabulary, &seen);
  if (l.of) numbers &= see_outputs(j, l, j.r.own.first, j.r.own.count, &seen);
  const ranking_token best = merge(seen);
  if (lane < FEW)
    block_memory().few[warp].value[lane] = best.value, block_memory().few[warp].token[lane] = best.token;
  if (block_largest(numbers ? -INFINITY : 0) == 0) return 0;
  const ranking_token mine =
      warp == 0 ? merge(block_memory().few[lane]) : ranking_token{INT32_MAX, -INFINITY};
  const bool listed = warp == 0 && lane < j.r.count && mine.token < INT32_MAX;
  if (listed) out[lane] = mine;
  return (int32_t)block_sum(listed);
}

/* --- the list --- */

/* What the tokens are ranked by, in place of their logits; a NaN for those that are filtered out. */
static __device__ void add_noise(const row_job &j, const threshold &kept, float best) {
  const noise_source source = {j.r.seed, j.r.choice, j.r.position};
  for (int32_t t = (int32_t)threadIdx.x * EACH; t < j.vocabulary; t += THREADS * EACH) {
    bool any = false, pass[EACH];
    for (int32_t i = 0; i < EACH; i++) {
      pass[i] = t + i < j.vocabulary && passes(j, kept, j.x[t + i], t + i, best);
      any |= pass[i];
    }
    philox_block bits = {};
    if (any && j.r.scale != 0) bits = noise_block(&source, t / EACH);
    for (int32_t i = 0; i < EACH && t + i < j.vocabulary; i++) {
      float x = j.x[t + i];
      if (j.r.scale != 0) x = x * j.r.scale + noise_gumbel(bits.lane[i]);
      j.x[t + i] = pass[i] ? x : NAN;
    }
  }
  __syncthreads();
}

/* Those that reach the threshold, in any order. */
static __device__ int32_t list_best(const row_job &j, const threshold &kept) {
  if (threadIdx.x == 0) block_memory().listed = 0;
  __syncthreads();
  each_token(j, [&](int32_t t) {
    const float value = j.x[t];
    const uint32_t key = filter_key(value);
    if (!(value == value) || key < kept.key || (key == kept.key && t > kept.last)) return;
    const ranking_token one = {t, value};
    block_memory().list[atomicAdd(&block_memory().listed, 1)] = one;
  });
  __syncthreads();
  return block_memory().listed;
}

static __device__ int32_t rank(const row_job &j, ranking_token *out) {
  float largest = -INFINITY;
  const auto ranked = [&](int32_t t) -> sum_type { return j.x[t] == j.x[t]; };
  each_token(j, [&](int32_t t) { largest = j.x[t] > largest ? j.x[t] : largest; });
  largest = block_largest(largest);
  const sum_type count = sum_over(j, ranked), wanted = (sum_type)j.r.count;
  threshold kept = {0, INT32_MAX};
  if (wanted < count) kept = select(j, largest, wanted, ranked);
  const int32_t listed = list_best(j, kept), mine = (int32_t)threadIdx.x;
  if (mine < listed) {
    int32_t before = 0;
    for (int32_t i = 0; i < listed; i++)
      before += precedes(block_memory().list[i].value, block_memory().list[i].token,
                         block_memory().list[mine].value, block_memory().list[mine].token);
    out[before] = block_memory().list[mine];
  }
  return listed;
}

static __device__ int32_t rank_row(const row_job &j, const cuda_rank_logits &l, ranking_token *out) {
  if (wants_few(j)) return rank_few(j, l, out);
  float best = adjust(j, l) ? -INFINITY : INFINITY;
  each_token(j, [&](int32_t t) { best = j.x[t] > best ? j.x[t] : best; });
  best = block_largest(best);
  if (best == -INFINITY || best == INFINITY) return 0;
  threshold kept = {0, INT32_MAX};
  if (j.r.scale != 0) kept = top_p(j, best, top_k(j, best));
  add_noise(j, kept, best);
  return rank(j, out);
}

/* --- launch --- */

static __global__ void __launch_bounds__(THREADS)
    rank_rows(const cuda_rank_batch *batch, cuda_rank_logits l, ops_ranked *lists, float *scratch) {
  const size_t row = blockIdx.x;
  if ((int32_t)row >= batch->count) return;
  const row_job j = {*batch, batch->rankings[row], l.vocabulary, scratch + row * (size_t)l.vocabulary};
  const int32_t count = rank_row(j, l, lists[row].list);
  if (threadIdx.x == 0) lists[row].count = count;
}

size_t cuda_rank_bytes(int32_t bucket, int32_t vocabulary) {
  return (size_t)bucket * (size_t)vocabulary * sizeof(float);
}

void cuda_rank(cudaStream_t stream, const cuda_rank_batch *batch, int32_t bucket, cuda_rank_logits logits,
               ops_ranked *lists, void *scratch) {
  cuda_launch(rank_rows, dim3((unsigned)bucket), dim3(THREADS), sizeof(rank_memory), stream, batch, logits,
              lists, (float *)scratch);
}
