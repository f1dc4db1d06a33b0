/* attention.cu - attention in splits of OPS_SPLIT logical positions (ops.h).
 *
 * A block takes one row and PACK query heads of one key-value head, and a thread for each position of a
 * split. Where rows and heads are too few to fill the device, each split is a block of its own, and a second
 * kernel combines them; otherwise a block goes through its splits in their order.
 *
 * What has an order in a sum: a score is one thread's chain over the components. The eight lanes of the
 * softmax's sum are eight threads. A component of the result is one thread's chain over the positions, whose
 * values the whole block brings into shared memory ahead of it. A position of a gap between spans stands
 * there as -0, with a weight of +0: that adds -0, which changes no number, and reads nothing. So do the
 * positions before the first one that a row sees, back to a multiple of FOUR. */
#include "kernels/cuda/cache.cuh"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"

#define WARP        32
#define THREADS     OPS_SPLIT
#define WARPS       (THREADS / WARP)
#define PACK_MAX    4
#define PAIR        2  /* components of a result that one thread sums, a chain for each */
#define FOUR        4  /* positions whose weights one access takes */
#define KEYS_AHEAD  32 /* components of a key that are on their way together */
#define UNIT_BYTES  16 /* of a value, that one thread copies */
#define PIECES      4  /* of values, of which all but one are on their way */
#define PIECE_BYTES (THREADS * UNIT_BYTES)

typedef struct partial { /* what a split leaves for one query head, beside its values */
  float largest, sum;
  int32_t keys; /* 0: the row sees none, and the rest is undefined */
  int32_t unused;
} partial;

typedef struct attention_job {
  cuda_rows rows;
  cuda_kv kv;
  int32_t layer, view, heads, splits;
  bool spread; /* a block a split */
  float scale;
  const float *q;
  float *y;
  partial *partials; /* [rows][heads][splits] */
  float *values;     /* [rows][heads][splits][head_dim] */
} attention_job;

/* --- memory of a block --- */

typedef struct quad {
  alignas(16) float x[4];
} quad;

template <int PACK> struct shared_memory {
  unsigned char pieces[PIECES][PIECE_BYTES];
  alignas(16) float weights[PACK][THREADS]; /* exp(score - largest), 0 where the row sees nothing */
  int32_t slots[THREADS];     /* the cache's row of each position, -1 where the row sees nothing */
  float largest[PACK][WARPS]; /* of a warp's scores */
  alignas(16) float sums[PACK];
};

static __device__ __host__ inline int32_t quads_of(int32_t head_dim) {
  return (head_dim + 3) / 4;
}

static __device__ __host__ inline int32_t pairs_of(int32_t head_dim) {
  return (head_dim + PAIR - 1) / PAIR;
}

/* Nothing else may hold this pointer: where a structure has it beside pointers to global memory, nvcc 13.0
 * takes all of them for pointers to shared memory. */
template <int PACK> static __device__ __forceinline__ shared_memory<PACK> &block_memory() {
  CUDA_SHARED(shared);
  return *(shared_memory<PACK> *)shared;
}

/* [PACK][quads_of(head_dim)] */
template <int PACK> static __device__ __forceinline__ quad *block_queries() {
  return (quad *)(&block_memory<PACK>() + 1);
}

template <int PACK> static size_t shared_bytes(int32_t head_dim) {
  return sizeof(shared_memory<PACK>) + (size_t)(PACK * quads_of(head_dim)) * sizeof(quad);
}

/* --- what a row sees --- */

typedef struct range {
  int32_t first, end;
} range;

typedef struct row_view {
  ops_row row;
  const ops_span *spans;
  int32_t count;
} row_view;

static __device__ row_view view_of(const attention_job &j, int32_t row) {
  const cuda_batch *batch = j.rows.batch;
  const cuda_view view = batch->views[j.view];
  const int32_t first = view.first[row];
  const row_view v = {batch->rows[row], view.spans + first, view.first[row + 1] - first};
  return v;
}

/* How many spans begin before p. */
static __device__ int32_t spans_before(const row_view &v, int32_t p) {
  int32_t low = 0, high = v.count;
  DEVICE_NO_UNROLL
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (v.spans[middle].first < p)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static __device__ bool sees(const row_view &v, int32_t p) {
  const int32_t i = spans_before(v, p + 1);
  return i > 0 && p < v.spans[i - 1].end;
}

/* From the first (rounded down to FOUR) to the last position of a split that the row sees; there may be gaps
 * between them. */
static __device__ range seen_of_split(const row_view &v, int32_t split) {
  const int32_t begin = split * OPS_SPLIT, end = begin + OPS_SPLIT;
  const int32_t before = spans_before(v, begin + 1), last = spans_before(v, end) - 1;
  range r = {begin, begin};
  if (last < 0) return r;
  r.end = v.spans[last].end < end ? v.spans[last].end : end;
  if (before > 0 && begin < v.spans[before - 1].end) return r;
  if (before <= last)
    r.first = v.spans[before].first / FOUR * FOUR;
  else
    r.end = begin;
  return r;
}

/* --- one split --- */

template <class T, int PACK> struct block_job {
  const attention_job &j;
  row_view view;
  int32_t head, dim; /* the first query head */
  cache_area<T> committed, staged;
  /* Values are copied in pieces of whole positions; this thread's part of each: a unit of its position
   * `mine`.
   */
  int32_t unit, piece, mine, offset; /* unit: bytes; piece: positions; mine < 0: none; offset: bytes */
  int32_t old;                       /* positions before it were there before this forward */
};

template <class T, int PACK> static __device__ void find_slots(block_job<T, PACK> &b, int32_t base) {
  const ops_row &row = b.view.row;
  const int32_t p = base + (int32_t)threadIdx.x;
  int32_t slot = -1;
  if (sees(b.view, p))
    slot = p < row.length ? cache_row(b.j.kv, row.sequence, p)
                          : b.j.rows.batch->paths[row.path_at + p - row.length];
  block_memory<PACK>().slots[threadIdx.x] = slot;
}

/* Asks for this thread's position: its value, and as its share of a tile of keys every OPS_TILE-th line. */
template <class T, int PACK>
static __device__ void ask_for_position(const block_job<T, PACK> &b, int32_t base) {
  const int32_t p = base + (int32_t)threadIdx.x, slot = block_memory<PACK>().slots[threadIdx.x];
  if (slot < 0) return;
  const cache_area<T> &area = p < b.view.row.length ? b.committed : b.staged;
  const int32_t bytes = b.dim * (int32_t)sizeof(T), mine = slot % OPS_TILE;
  const char *tile = (const char *)(area.keys + cache_key_at(b.j.kv, slot - mine));
  const char *value = (const char *)(area.values + cache_value_at(b.j.kv, slot));
  DEVICE_NO_UNROLL
  for (int32_t at = mine * DEVICE_LINE; at < OPS_TILE * bytes; at += OPS_TILE * DEVICE_LINE)
    device_prefetch(tile + at);
  DEVICE_NO_UNROLL
  for (int32_t at = 0; at < bytes; at += DEVICE_LINE) device_prefetch(value + at);
}

template <class T> static __device__ __forceinline__ T negative_zero();
template <> __device__ __forceinline__ float negative_zero() {
  return -0.0f;
}
template <> __device__ __forceinline__ uint16_t negative_zero() {
  return 0x8000;
}

/* Asks for this thread's part of piece i, as far as it is of positions `of`. */
template <class T, int PACK>
static __device__ void copy_piece(block_job<T, PACK> &b, const range &r, int32_t i, const range &of) {
  const int32_t p = r.first + i * b.piece + b.mine;
  if (b.mine < 0 || p >= r.end || p < of.first || p >= of.end) return;
  const int32_t slot = block_memory<PACK>().slots[p % OPS_SPLIT];
  unsigned char *to = block_memory<PACK>().pieces[i % PIECES] +
                      (size_t)(b.mine * PAIR * pairs_of(b.dim)) * sizeof(T) + (size_t)b.offset;
  if (slot < 0) {
    DEVICE_NO_UNROLL
    for (int32_t k = 0; k < b.unit / (int32_t)sizeof(T); k++) ((T *)to)[k] = negative_zero<T>();
    return;
  }
  const T *values = (p < b.view.row.length ? b.committed : b.staged).values + cache_value_at(b.j.kv, slot);
  const unsigned char *from = (const unsigned char *)values + b.offset;
  if (b.unit == UNIT_BYTES)
    device_copy_16(to, from);
  else
    *(T *)to = *(const T *)from;
}

/* The thread's position against all heads. */
template <class T, int PACK>
static __device__ void score(const block_job<T, PACK> &b, const T *key, float (&scores)[PACK]) {
  const int32_t quads = quads_of(b.dim);
  int32_t d = 0;
  DEVICE_NO_UNROLL
  for (; d + KEYS_AHEAD <= b.dim; d += KEYS_AHEAD) {
    T k[KEYS_AHEAD];
    DEVICE_UNROLL for (int i = 0; i < KEYS_AHEAD; i++) k[i] = key[(size_t)(d + i) * OPS_TILE];
    DEVICE_UNROLL for (int i = 0; i < KEYS_AHEAD; i += 4) {
      DEVICE_UNROLL for (int h = 0; h < PACK; h++) {
        const quad q = block_queries<PACK>()[h * quads + (d + i) / 4];
        DEVICE_UNROLL for (int c = 0; c < 4; c++) scores[h] = fmaf(q.x[c], cache_load(k[i + c]), scores[h]);
      }
    }
  }
  DEVICE_NO_UNROLL
  for (; d < b.dim; d++) {
    const float k = cache_load(key[(size_t)d * OPS_TILE]);
    DEVICE_UNROLL for (int h = 0; h < PACK; h++) scores[h] =
        fmaf(block_queries<PACK>()[h * quads + d / 4].x[d % 4], k, scores[h]);
  }
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) scores[h] *= b.j.scale;
}

/* A NaN is never the larger one. */
static __device__ float larger(float a, float b) {
  return a > b ? a : b;
}

/* The largest score of each head, in every thread. */
template <int PACK>
static __device__ void find_largest(shared_memory<PACK> &memory, const float (&scores)[PACK],
                                    float (&largest)[PACK]) {
  const int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP;
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) {
    float most = larger(scores[h], -INFINITY);
    for (int by = WARP / 2; by > 0; by /= 2) most = larger(__shfl_xor_sync(~0u, most, by), most);
    if (lane == 0) memory.largest[h][warp] = most;
  }
  __syncthreads();
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) {
    largest[h] = memory.largest[h][lane % WARPS];
    for (int by = WARPS / 2; by > 0; by /= 2)
      largest[h] = larger(__shfl_xor_sync(~0u, largest[h], by), largest[h]);
  }
}

/* One warp: eight lanes a head, which are then added in the order of cpu_lane_sum. */
template <int PACK> static __device__ void sum_weights(shared_memory<PACK> &memory, const range &r) {
  const int32_t h = (int32_t)threadIdx.x % WARP / CPU_LANES, lane = (int32_t)threadIdx.x % CPU_LANES;
  const int32_t first = r.first % OPS_SPLIT / CPU_LANES * CPU_LANES,
                end = r.end - r.first / OPS_SPLIT * OPS_SPLIT;
  float sum = 0;
  if (h < PACK) {
    DEVICE_UNROLL_BY(8) for (int32_t i = first + lane; i < end; i += CPU_LANES) sum += memory.weights[h][i];
  }
  for (int by = CPU_LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (h < PACK && lane == 0) memory.sums[h] = sum;
}

/* Leaves the weights in shared memory, and the largest score of each head in every thread. */
template <class T, int PACK>
static __device__ void weigh(block_job<T, PACK> &b, const range &r, float (&largest)[PACK]) {
  const int32_t slot = block_memory<PACK>().slots[threadIdx.x];
  const int32_t p = r.first / OPS_SPLIT * OPS_SPLIT + (int32_t)threadIdx.x;
  float scores[PACK] = {0};
  if (slot >= 0) {
    const T *keys = (p < b.view.row.length ? b.committed : b.staged).keys;
    score(b, keys + cache_key_at(b.j.kv, slot), scores);
  } else {
    DEVICE_UNROLL for (int h = 0; h < PACK; h++) scores[h] = -INFINITY;
  }
  find_largest(block_memory<PACK>(), scores, largest);
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) block_memory<PACK>().weights[h][threadIdx.x] =
      slot >= 0 ? cpu_exp(scores[h] - largest[h]) : 0.0f;
  __syncthreads();
  if (threadIdx.x / WARP == WARPS - 1) sum_weights(block_memory<PACK>(), r);
}

/* Two components of a head's result: which a thread has, and what they are so far. */
typedef struct chains {
  int32_t head, d; /* head: of the block's; PACK or more: none */
  float value[PAIR];
} chains;

static __device__ __forceinline__ float2 load_pair(const float *at) {
  return device_load<float2>(at);
}

static __device__ __forceinline__ float2 load_pair(const uint16_t *at) {
  const uint32_t both = device_load<uint32_t>(at);
  return {device_half(both & 0xffff), device_half(both >> 16)};
}

template <class T, int PACK>
static __device__ __forceinline__ void add_piece(const block_job<T, PACK> &b, const range &r, int32_t i,
                                                 chains &c) {
  const int32_t first = r.first + i * b.piece, left = r.end - first, n = left < b.piece ? left : b.piece;
  const int32_t stride = PAIR * pairs_of(b.dim);
  const float *weights = block_memory<PACK>().weights[c.head] + first % OPS_SPLIT;
  const T *values = (const T *)block_memory<PACK>().pieces[i % PIECES] + c.d;
  float sum[PAIR] = {c.value[0], c.value[1]};
  const int32_t fours = b.piece % FOUR == 0 ? n : 0; /* otherwise a piece may begin between two FOURs */
  int32_t k = 0;
  DEVICE_UNROLL_BY(4) for (; k + FOUR <= fours; k += FOUR) {
    const float4 w = device_load<float4>(weights + k);
    const float each[FOUR] = {w.x, w.y, w.z, w.w};
    DEVICE_UNROLL for (int32_t j = 0; j < FOUR; j++) {
      const float2 value = load_pair(values + (k + j) * stride);
      sum[0] = fmaf(each[j], value.x, sum[0]), sum[1] = fmaf(each[j], value.y, sum[1]);
    }
  }
  DEVICE_NO_UNROLL
  for (; k < n; k++) {
    const float2 value = load_pair(values + k * stride);
    sum[0] = fmaf(weights[k], value.x, sum[0]), sum[1] = fmaf(weights[k], value.y, sum[1]);
  }
  c.value[0] = sum[0], c.value[1] = sum[1];
}

/* chains' values and the heads' sums and largest scores. The slots and the queries are on their way to shared
 * memory, and so are the first pieces, as far as positions are `early`. Ends with a barrier. */
template <class T, int PACK>
static __device__ void attend_split(block_job<T, PACK> &b, const range &r, const range &early, chains &c,
                                    float (&largest)[PACK]) {
  const range all = {0, INT32_MAX}, rest = {early.end, INT32_MAX};
  const int32_t pieces = (r.end - r.first + b.piece - 1) / b.piece;
  __syncthreads();
  DEVICE_NO_UNROLL
  for (int32_t i = 0; i < PIECES - 1; i++) {
    copy_piece(b, r, i, rest);
    device_copies_end();
  }
  weigh(b, r, largest);
  c.value[0] = c.value[1] = 0;
  DEVICE_NO_UNROLL
  for (int32_t i = 0; i < pieces; i++) {
    device_copies_wait<PIECES - 2>();
    __syncthreads();
    copy_piece(b, r, i + PIECES - 1, all);
    device_copies_end();
    if (c.head < PACK) add_piece(b, r, i, c);
  }
  __syncthreads();
}

/* --- splits together --- */

typedef struct total { /* of the splits so far */
  float largest, sum, value;
  bool any;
} total;

static __device__ __forceinline__ void add_split(total &t, float largest, float sum, float value) {
  if (!t.any) {
    t = {largest, sum, value, true};
    return;
  }
  const float m = larger(largest, t.largest), a = cpu_exp(t.largest - m), b = cpu_exp(largest - m);
  t.sum = fmaf(sum, b, t.sum * a);
  t.value = fmaf(value, b, t.value * a);
  t.largest = m;
}

static __device__ __forceinline__ float result_of(const total &t) {
  return t.value * (1.0f / t.sum);
}

/* Index of (row, query head) in q and y, in heads. */
static __device__ size_t head_at(const attention_job &j, int32_t row, int32_t head) {
  return (size_t)row * (size_t)j.heads + (size_t)head;
}

/* Of a piece: whole FOURs where that many fit. */
static __device__ int32_t positions_of(int32_t units) {
  const int32_t n = THREADS / units;
  return n >= FOUR ? n / FOUR * FOUR : n;
}

template <class T, int PACK> static __device__ block_job<T, PACK> block_of(const attention_job &j) {
  const int32_t row = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y * PACK, dim = j.kv.head_dim;
  const int32_t kv_head = head / (j.heads / j.kv.kv_heads);
  const int32_t bytes = dim * (int32_t)sizeof(T),
                unit = bytes % UNIT_BYTES == 0 ? UNIT_BYTES : (int32_t)sizeof(T);
  const int32_t units = bytes / unit; /* of a position */
  block_job<T, PACK> b = {j,
                          view_of(j, row),
                          head,
                          dim,
                          cache_area_of<T>(j.kv, false, j.layer, kv_head),
                          cache_area_of<T>(j.kv, true, j.layer, kv_head),
                          unit,
                          positions_of(units),
                          (int32_t)threadIdx.x / units,
                          (int32_t)threadIdx.x % units * unit,
                          0};
  if (b.mine >= b.piece) b.mine = -1;
  const int32_t old = b.view.row.length - j.rows.batch->row_count;
  b.old = old > 0 ? old : 0;
  return b;
}

template <class T, int PACK> static __device__ void load_queries(const block_job<T, PACK> &b) {
  const float *q = b.j.q + head_at(b.j, (int32_t)blockIdx.x, b.head) * (size_t)b.dim;
  float *queries = block_queries<PACK>()->x;
  DEVICE_UNROLL for (int32_t h = 0; h < PACK; h++) {
    DEVICE_NO_UNROLL
    for (int32_t i = (int32_t)threadIdx.x; i < b.dim; i += THREADS)
      queries[h * quads_of(b.dim) * 4 + i] = q[h * b.dim + i];
  }
}

/* What a split's block leaves for `combine`. */
template <class T, int PACK>
static __device__ void leave(const block_job<T, PACK> &b, int32_t split, const chains &c, float largest) {
  const attention_job &j = b.j;
  const size_t at = head_at(j, (int32_t)blockIdx.x, b.head + c.head) * (size_t)j.splits + (size_t)split;
  for (int32_t i = 0; i < PAIR && c.d + i < b.dim; i++)
    j.values[at * (size_t)b.dim + (size_t)(c.d + i)] = c.value[i];
  if (c.d == 0) j.partials[at] = {largest, block_memory<PACK>().sums[c.head], 1, 0};
}

template <class T, int PACK>
static __device__ void leave_nothing(const block_job<T, PACK> &b, int32_t split) {
  const attention_job &j = b.j;
  if (threadIdx.x >= PACK) return;
  const size_t head = head_at(j, (int32_t)blockIdx.x, b.head + (int32_t)threadIdx.x);
  j.partials[head * (size_t)j.splits + (size_t)split].keys = 0;
}

/* Of one of a block's heads, without an index that is not a constant. */
template <int PACK> static __device__ float pick(const float (&x)[PACK], int32_t head) {
  float found = x[0];
  DEVICE_UNROLL for (int h = 1; h < PACK; h++) found = h == head ? x[h] : found;
  return found;
}

/* The splits that are this block's. */
static __device__ range splits_of_block(const attention_job &j, const row_view &v) {
  const int32_t split = (int32_t)blockIdx.z;
  range all = {0, v.row.position / OPS_SPLIT + 1}, one = {split, split + 1};
  return j.spread ? one : all;
}

/* What of a split the row sees; where that is something, its slots are found. */
template <class T, int PACK> static __device__ range begin_split(block_job<T, PACK> &b, int32_t split) {
  const range r = seen_of_split(b.view, split);
  if (r.first < r.end) find_slots(b, split * OPS_SPLIT);
  return r;
}

/* The batch and the cache's older rows are there before the previous kernel has ended: it asks for all
 * keys of the first split, and for its values of positions `early`. */
template <class T, int PACK>
static __device__ void wait_with_first_split(block_job<T, PACK> &b, const range &r, const range &early) {
  if (r.first < r.end) {
    ask_for_position(b, r.first / OPS_SPLIT * OPS_SPLIT);
    __syncthreads();
    DEVICE_NO_UNROLL
    for (int32_t i = 0; i < PIECES - 1; i++) copy_piece(b, r, i, early);
  }
  device_wait_for_previous();
  device_let_next_begin();
  load_queries(b);
}

template <class T, int PACK> static __device__ void attend_splits(block_job<T, PACK> &b, chains &c) {
  const range splits = splits_of_block(b.j, b.view);
  total totals[PAIR] = {};
  float largest[PACK];
  DEVICE_NO_UNROLL
  for (int32_t split = splits.first; split < splits.end; split++) {
    const bool first = split == splits.first;
    const range early = {0, first ? b.old : 0}, r = begin_split(b, split);
    if (first) wait_with_first_split(b, r, early);
    if (r.first < r.end)
      attend_split(b, r, early, c, largest);
    else if (b.j.spread)
      leave_nothing(b, split);
    if (c.head >= PACK || r.first >= r.end) continue;
    const float most = pick(largest, c.head);
    if (b.j.spread)
      leave(b, split, c, most);
    else
      DEVICE_UNROLL for (int i = 0; i < PAIR; i++)
          add_split(totals[i], most, block_memory<PACK>().sums[c.head], c.value[i]);
  }
  if (b.j.spread || c.head >= PACK) return;
  float *y = b.j.y + head_at(b.j, (int32_t)blockIdx.x, b.head + c.head) * (size_t)b.dim;
  DEVICE_UNROLL for (int i = 0; i < PAIR; i++) if (c.d + i < b.dim) y[c.d + i] = result_of(totals[i]);
}

template <class T, int PACK> static __global__ void __launch_bounds__(THREADS, 1) attend(attention_job j) {
  if ((int32_t)blockIdx.x >= j.rows.batch->row_count) {
    device_wait_for_previous();
    return;
  }
  block_job<T, PACK> b = block_of<T, PACK>(j);
  const int32_t pairs = pairs_of(b.dim);
  chains c = {(int32_t)threadIdx.x / pairs, (int32_t)threadIdx.x % pairs * PAIR, {0, 0}};
  attend_splits(b, c);
}

/* A block a row and head, a thread a component. */
static __global__ void combine(attention_job j) {
  const int32_t row = (int32_t)blockIdx.x, d = (int32_t)threadIdx.x, dim = j.kv.head_dim;
  const bool none = row >= j.rows.batch->row_count || d >= dim;
  device_let_next_begin();
  device_wait_for_previous();
  if (none) return;
  const size_t head = head_at(j, row, (int32_t)blockIdx.y);
  total t = {};
  for (int32_t split = 0; split < j.splits; split++) {
    const size_t at = head * (size_t)j.splits + (size_t)split;
    const partial p = j.partials[at];
    if (p.keys) add_split(t, p.largest, p.sum, j.values[at * (size_t)dim + (size_t)d]);
  }
  j.y[head * (size_t)dim + (size_t)d] = result_of(t);
}

/* --- launches --- */

/* Query heads of a block: one where blocks are few. More blocks than the device runs at once would take
 * turns. */
static int32_t pack_of(const cuda_kv &kv, int32_t bucket, int32_t heads, int32_t splits) {
  const int32_t group = heads / kv.kv_heads;
  if ((int64_t)bucket * heads * splits <= LAUNCH_BLOCKS_AT_ONCE) return 1;
  for (int32_t pack = PACK_MAX; pack > 1; pack--)
    if (group % pack == 0 && pack * pairs_of(kv.head_dim) <= THREADS) return pack;
  return 1;
}

static bool spreads(const cuda_kv &kv, int32_t bucket, int32_t heads, int32_t splits) {
  return (int64_t)bucket * heads / pack_of(kv, bucket, heads, splits) <= LAUNCH_BLOCKS_AT_ONCE;
}

static int32_t splits_of(int32_t positions) {
  return (positions + OPS_SPLIT - 1) / OPS_SPLIT;
}

size_t cuda_attention_floats(cuda_kv kv, int32_t bucket, int32_t heads) {
  const int32_t splits = splits_of(kv.context);
  if (!spreads(kv, bucket, heads, splits)) return 0;
  const size_t parts = (size_t)bucket * (size_t)heads * (size_t)splits;
  return parts * (sizeof(partial) / sizeof(float) + (size_t)kv.head_dim);
}

template <class T, int PACK> static void launch(cudaStream_t stream, const attention_job &j) {
  const dim3 grid((unsigned)j.rows.bucket, (unsigned)(j.heads / PACK), (unsigned)(j.spread ? j.splits : 1));
  launch_early(attend<T, PACK>, grid, dim3(THREADS), shared_bytes<PACK>(j.kv.head_dim), stream, j);
}

typedef void launcher(cudaStream_t stream, const attention_job &j);
static launcher *const launchers[2][PACK_MAX] = {
    {launch<float, 1>, launch<float, 2>, launch<float, 3>, launch<float, 4>},
    {launch<uint16_t, 1>, launch<uint16_t, 2>, launch<uint16_t, 3>, launch<uint16_t, 4>}};

void cuda_attention(cudaStream_t stream, cuda_rows rows, cuda_kv kv, int32_t layer, int32_t view,
                    int32_t heads, int32_t positions, const float *q, float *y, float *scratch) {
  const int32_t splits = splits_of(positions), pack = pack_of(kv, rows.bucket, heads, splits);
  const size_t partials = (size_t)rows.bucket * (size_t)heads * (size_t)splits;
  attention_job j = {rows,
                     kv,
                     layer,
                     view,
                     heads,
                     splits,
                     splits > 1 && spreads(kv, rows.bucket, heads, splits),
                     1.0f / sqrtf((float)kv.head_dim),
                     q,
                     y,
                     (partial *)scratch,
                     NULL};
  if (j.spread) j.values = scratch + partials * (sizeof(partial) / sizeof(float));
  launchers[kv.type == OPS_KV_F16][pack - 1](stream, j);
  if (!j.spread) return;
  const unsigned threads = (unsigned)((kv.head_dim + WARP - 1) / WARP * WARP);
  launch_early(combine, dim3((unsigned)rows.bucket, (unsigned)heads), dim3(threads), 0, stream, j);
}
