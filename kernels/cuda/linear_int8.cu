/* linear_int8.cu - linears of quantised weights and int8 activations.
 *
 * A warp sums 16 outputs over the blocks of one part, for one or two tiles of 8 rows. The weights come
 * through a ring in shared memory, which it begins to fill before the previous kernel has ended. A tensor
 * core multiplies the 16 outputs of a block with a tile: exact integers, so that its order does not matter.
 */
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/linear.cuh"

/* --- a block of weights times a tile --- */

/* What thread (g, j) has of a block's scales: of outputs 2 g and 2 g + 1. */
struct block_scales {
  float2 d, m;                  /* as cpu_scale_at makes them; with two sub-scales as they are kept */
  int32_t sub[2][2], min[2][2]; /* [output][half] */
};

template <ops_type TYPE> DEVICE_CODE block_scales scales_at(const cpu_block &k, int32_t g) {
  constexpr cpu_format F = weight_format_of(TYPE);
  block_scales s = {};
  s.d = weight_halves(k.scales, g);
  if constexpr (F.minima) s.m = weight_halves(k.scales + CPU_HALVES, g);
  if constexpr (F.sub == 32) {
    const uint32_t sub = device_load<uint16_t>(k.sub + 2 * g),
                   min = device_load<uint16_t>(k.sub + OPS_GROUP + 2 * g);
    s.d.x = s.d.x * (float)(sub & 255), s.d.y = s.d.y * (float)(sub >> 8);
    s.m.x = -(s.m.x * (float)(min & 255)), s.m.y = -(s.m.y * (float)(min >> 8));
  }
  if constexpr (F.sub == 16) {
    for (int32_t i = 0; i < 4; i++) {
      const uint32_t both = device_load<uint32_t>(k.sub + 4 * g) >> 8 * i & 255;
      s.sub[i / 2][i % 2] = F.minima ? (int32_t)(both & 15) : (int32_t)(int8_t)both;
      s.min[i / 2][i % 2] = (int32_t)(both >> 4);
    }
  }
  return s;
}

/* The thread's part of a tile's block: rows 2 j and 2 j + 1. */
struct tile_part {
  uint32_t q[2]; /* words j and j + 4 of row g */
  float scale[2], sum[2];
  int32_t half[2][2]; /* [row][half] */
};

DEVICE_CODE tile_part tile_at(const cuda_tile *t, int32_t g, int32_t j) {
  const uint2 q = device_load<uint2>(&t->q[g][2 * j]);
  const float4 s = device_load<float4>(t->scale_sum[2 * j]);
  const int2 h = device_load<int2>(t->halves[2 * j]);
  return {{q.x, q.y}, {s.x, s.z}, {s.y, s.w}, {{(int16_t)h.x, h.x >> 16}, {(int16_t)h.y, h.y >> 16}}};
}

/* acc [2 output + row]; a: the block's numbers. */
template <ops_type TYPE>
DEVICE_CODE void add_one_scale(const block_scales &s, const uint32_t a[4], const tile_part &t, float acc[4]) {
  constexpr cpu_format F = weight_format_of(TYPE);
  constexpr bool is_signed = (F.bits & 8) != 0;
  constexpr int32_t bias = is_signed ? 0 : F.bias;
  const int32_t less[2] = {bias * (t.half[0][0] + t.half[0][1]), bias * (t.half[1][0] + t.half[1][1])};
  int32_t sum[4] = {-less[0], -less[1], -less[0], -less[1]};
  device_multiply_32<is_signed>(sum, a, t.q);
  for (int32_t i = 0; i < 4; i++) {
    acc[i] = fmaf((i < 2 ? s.d.x : s.d.y) * t.scale[i % 2], (float)sum[i], acc[i]);
    if (F.minima) acc[i] = fmaf(i < 2 ? s.m.x : s.m.y, t.sum[i % 2], acc[i]);
  }
}

template <ops_type TYPE>
DEVICE_CODE void add_two_scales(const block_scales &s, const uint32_t a[4], const tile_part &t,
                                float acc[4]) {
  constexpr cpu_format F = weight_format_of(TYPE);
  int32_t sum[2][4];
  for (int32_t h = 0; h < 2; h++) {
    const int32_t less[2] = {F.bias * t.half[0][h], F.bias * t.half[1][h]};
    for (int32_t i = 0; i < 4; i++) sum[h][i] = -less[i % 2];
    device_multiply_16(sum[h], a + 2 * h, t.q + h);
  }
  for (int32_t i = 0; i < 4; i++) {
    const int32_t total = s.sub[i / 2][0] * sum[0][i] + s.sub[i / 2][1] * sum[1][i];
    acc[i] = fmaf((i < 2 ? s.d.x : s.d.y) * t.scale[i % 2], (float)total, acc[i]);
    if (!F.minima) continue;
    const int32_t least = s.min[i / 2][0] * t.half[i % 2][0] + s.min[i / 2][1] * t.half[i % 2][1];
    acc[i] = fmaf(-((i < 2 ? s.m.x : s.m.y) * t.scale[i % 2]), (float)least, acc[i]);
  }
}

/* Tiles of further rows lie `tile_stride` tiles apart. */
template <ops_type TYPE, int TILES>
DEVICE_CODE void add_block(const cpu_block &k, const cuda_tile *tile, size_t tile_stride,
                           float acc[TILES][4]) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, g = lane / 4, j = lane % 4;
  const block_scales s = scales_at<TYPE>(k, g);
  uint32_t a[4];
  weight_fragment<TYPE>(k.planes, g, j, a);
  DEVICE_UNROLL
  for (int32_t i = 0; i < TILES; i++) {
    const tile_part t = tile_at(tile + (size_t)i * tile_stride, g, j);
    if constexpr (weight_format_of(TYPE).sub == 16)
      add_two_scales<TYPE>(s, a, t, acc[i]);
    else
      add_one_scale<TYPE>(s, a, t, acc[i]);
  }
}

/* --- the ring: a warp's own, of stages of WEIGHT_STAGE blocks --- */

/* The block at which stage 0 begins; with sub-scales a stage is a whole unit. */
template <ops_type TYPE> DEVICE_CODE int32_t stages_begin(const linear_slot &s) {
  return weight_format_of(TYPE).sub ? s.first / WEIGHT_STAGE * WEIGHT_STAGE : s.first;
}

/* Begins to copy a stage; a batch of copies even where there is none, so that they can be counted. */
template <ops_type TYPE> DEVICE_CODE void copy_stage(const linear_slot &s, int32_t stage, uint8_t *ring) {
  const int32_t first = stages_begin<TYPE>(s) + stage * WEIGHT_STAGE, left = s.end - first;
  if (left > 0) {
    constexpr bool units = weight_format_of(TYPE).sub != 0;
    const uint8_t *from =
        s.group + (size_t)(units ? first / WEIGHT_STAGE : first) * weights<TYPE>::UNIT_BYTES;
    int32_t bytes = weights<TYPE>::STAGE_BYTES;
    if (!units && left < WEIGHT_STAGE) bytes = left * weights<TYPE>::UNIT_BYTES;
    uint8_t *to = ring + stage % LINEAR_STAGES * weights<TYPE>::STAGE_BYTES;
    for (int32_t i = (int32_t)threadIdx.x % DEVICE_LANES * 16; i < bytes; i += DEVICE_LANES * 16)
      device_copy_16(to + i, from + i);
  }
  device_copies_end();
}

template <ops_type TYPE> DEVICE_CODE void copy_first_stages(const linear_slot &s, uint8_t *ring) {
  for (int32_t stage = 0; stage < LINEAR_STAGES; stage++) copy_stage<TYPE>(s, stage, ring);
}

template <ops_type TYPE, int TILES>
DEVICE_CODE void add_blocks(const linear_slot &s, uint8_t *ring, const cuda_tile *tiles, size_t tile_stride,
                            float acc[TILES][4]) {
  const int32_t begin = stages_begin<TYPE>(s), stages = (s.end - begin + WEIGHT_STAGE - 1) / WEIGHT_STAGE;
  for (int32_t stage = 0; stage < stages; stage++) {
    const uint8_t *from = ring + stage % LINEAR_STAGES * weights<TYPE>::STAGE_BYTES;
    const int32_t at = begin + stage * WEIGHT_STAGE;
    device_copies_wait<LINEAR_STAGES - 1>();
    __syncwarp();
    DEVICE_UNROLL
    for (int32_t i = 0; i < WEIGHT_STAGE; i++) {
      if (at + i < s.first || at + i >= s.end) continue;
      const cpu_block k = cpu_block_at(from, weight_format_of(TYPE), (size_t)i);
      add_block<TYPE, TILES>(k, tiles + at + i, tile_stride, acc);
    }
    __syncwarp();
    copy_stage<TYPE>(s, stage + LINEAR_STAGES, ring);
  }
}

/* --- a block --- */

/* The tiles of rows [first, first + count): where they are, or made in shared memory. */
template <int TILES>
DEVICE_CODE const cuda_tile *tiles_of(const linear_args &a, const linear_layout &at, uint8_t *memory,
                                      int32_t first, int32_t count) {
  const linear_input &in = a.input;
  if (!in.x) return in.tiles + (size_t)(first / CUDA_TILE_ROWS) * (size_t)(a.columns / OPS_BLOCK);
  cuda_tile *tiles = (cuda_tile *)(memory + at.tiles);
  activation_rows rows = {in.x + (size_t)first * (size_t)a.columns, (size_t)a.columns, count, a.columns};
  float *scales = (float *)(memory + at.scales);
  if (in.weight) {
    float *copy = (float *)(memory + at.rows);
    for (int32_t i = (int32_t)threadIdx.x * 4; i < count * a.columns; i += (int32_t)blockDim.x * 4) {
      const int32_t row = first + i / a.columns;
      const int32_t from = a.rows.head ? a.rows.batch->head_rows[row] : row;
      device_store(copy + i, device_load<float4>(in.x + (size_t)from * (size_t)a.columns + i % a.columns));
    }
    rows.x = copy;
    __syncthreads();
    activation_norms(rows, in.eps, scales);
    __syncthreads();
  }
  activation_tiles(rows, in.weight, scales, tiles, 0);
  __syncthreads();
  return tiles;
}

/* The thread's outputs to sums [row][OPS_GROUP] of its warp. */
template <int TILES> DEVICE_CODE void put_sums(const float acc[TILES][4], float *sums) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, g = lane / 4, j = lane % 4;
  for (int32_t i = 0; i < TILES; i++) {
    float *row = sums + (i * CUDA_TILE_ROWS + 2 * j) * OPS_GROUP + 2 * g;
    device_store(row, float2{acc[i][0], acc[i][2]});
    device_store(row + OPS_GROUP, float2{acc[i][1], acc[i][3]});
  }
}

template <ops_type TYPE, int TILES>
static __global__ void linear_int8(const __grid_constant__ linear_args a) {
  CUDA_SHARED(memory);
  constexpr int32_t rows_max = TILES * CUDA_TILE_ROWS;
  const int32_t warp = (int32_t)threadIdx.x / DEVICE_LANES, slots = a.units * a.parts;
  const int32_t first = (int32_t)blockIdx.y * rows_max;
  const linear_layout at = linear_layout_of(weights<TYPE>::STAGE_BYTES, TILES, slots, a.columns, a.input);
  linear_slot slot = {nullptr, 0, 0};
  if (warp < slots) slot = linear_slot_at<TYPE>(a, warp);
  uint8_t *ring = memory + at.ring + (size_t)warp * LINEAR_STAGES * weights<TYPE>::STAGE_BYTES;
  device_let_next_begin();
  copy_first_stages<TYPE>(slot, ring);
  device_wait_for_previous();
  const int32_t left = linear_row_count(a.rows) - first, count = left < rows_max ? left : rows_max;
  if (count <= 0) return;
  const cuda_tile *tiles = tiles_of<TILES>(a, at, memory, first, count);
  float acc[TILES][4] = {};
  /* Where there is one tile of rows only, it is taken twice: the next one may not exist. */
  const size_t stride = count > CUDA_TILE_ROWS ? (size_t)(a.columns / OPS_BLOCK) : 0;
  add_blocks<TYPE, TILES>(slot, ring, tiles, stride, acc);
  float *sums = (float *)(memory + at.sums);
  if (warp < slots) put_sums<TILES>(acc, sums + warp * rows_max * OPS_GROUP);
  __syncthreads();
  linear_finish(a, sums, rows_max, first, count);
}

linear_kernel *linear_int8_kernel(ops_type type, int32_t tiles) {
#define KERNEL(name, TYPE, ...)                                                                              \
  case OPS_##TYPE:                                                                                           \
    return tiles == 1 ? linear_int8<OPS_##TYPE, 1> : linear_int8<OPS_##TYPE, 2>;
  switch (type) {
    CPU_FORMATS(KERNEL)
  default:
    return nullptr;
  }
#undef KERNEL
}

int32_t linear_stage_bytes(ops_type type) {
#define BYTES(name, TYPE, ...)                                                                               \
  case OPS_##TYPE:                                                                                           \
    return weights<OPS_##TYPE>::STAGE_BYTES;
  switch (type) {
    CPU_FORMATS(BYTES)
  default:
    return 0;
  }
#undef BYTES
}
