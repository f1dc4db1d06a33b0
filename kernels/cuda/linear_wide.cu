/* linear_wide.cu - linears of quantised weights and int8 activations, of many rows, whose tiles another
 * kernel has made.
 *
 * A warp sums the same part of two groups of outputs for TILES tiles of rows. So what is read of a tile
 * serves two products of a tensor core, and what is made of a block of weights TILES of them. Both come to
 * shared memory step by step, LINEAR_WIDE_STEP blocks of each part at a time: the tiles for all warps of the
 * block, the weights for their own warp. */
#include "kernels/cuda/linear_product.cuh"
#include "kernels/cuda/linear_stream.cuh"

constexpr int32_t WIDE_PAIR = 2; /* groups of a warp */

/* --- a step in shared memory: the tiles of all parts, then the weights of all warps --- */

/* Of a group: the head of the unit, then the blocks. They are of one unit, because parts begin with even
 * blocks where there are units. */
template <ops_type TYPE>
constexpr int32_t wide_group_bytes = linear_format<TYPE>::HEAD + LINEAR_WIDE_STEP *linear_format<TYPE>::BLOCK;
static_assert(CPU_UNIT_BLOCKS % (LINEAR_PARTS * LINEAR_WIDE_STEP) == 0,
              "a part begins with a whole step of a unit");

struct wide_job {
  const linear_args &a;
  uint8_t *memory;
  linear_wide_layout at;
  linear_slot slot[WIDE_PAIR];
  int32_t warp, lane, steps, part; /* part: of the warp */
  const cuda_tile *tiles;          /* of the block's first row */
  int32_t there;                   /* tiles of rows that there are */
};

DEVICE_CODE int32_t wide_part_at(const linear_args &a, int32_t part) {
  const int32_t blocks = a.columns / OPS_BLOCK;
  return a.parts > 1 ? blocks * part >> 2 : blocks * part;
}

DEVICE_CODE uint8_t *wide_stage(const wide_job &j, int32_t turn) {
  return j.memory + turn * j.at.stage;
}

/* Begins to copy BYTES, a multiple of 16, by a warp. */
template <int BYTES> DEVICE_CODE void wide_copy(int32_t lane, uint8_t *to, const uint8_t *from) {
  DEVICE_UNROLL
  for (int32_t i = 0; i < BYTES; i += DEVICE_LANES * 16)
    if (i + lane * 16 < BYTES) device_copy_16(to + i + lane * 16, from + i + lane * 16);
}

/* The warp's own weights. */
template <ops_type TYPE> DEVICE_CODE void wide_copy_weights(const wide_job &j, int32_t step, uint8_t *stage) {
  using format = linear_format<TYPE>;
  uint8_t *to = stage + j.at.weights + j.warp * WIDE_PAIR * wide_group_bytes<TYPE>;
  const int32_t block = j.slot[0].first + step * LINEAR_WIDE_STEP, left = j.slot[0].end - block;
  const uint32_t unit = (uint32_t)block / format::UNIT_BLOCKS * weights<TYPE>::UNIT_BYTES,
                 at = unit + format::HEAD + (uint32_t)block % format::UNIT_BLOCKS * format::BLOCK;
  DEVICE_UNROLL
  for (int32_t u = 0; u < WIDE_PAIR; u++, to += wide_group_bytes<TYPE>) {
    if (format::HEAD && left > 0) wide_copy<format::HEAD>(j.lane, to, j.slot[u].group + unit);
    if (left >= LINEAR_WIDE_STEP)
      wide_copy<LINEAR_WIDE_STEP * format::BLOCK>(j.lane, to + format::HEAD, j.slot[u].group + at);
    else if (left > 0)
      wide_copy<format::BLOCK>(j.lane, to + format::HEAD, j.slot[u].group + at);
  }
}

/* A share of the tiles, [parts][TILES][LINEAR_WIDE_STEP]. In place of those that are not there, the last one
 * is taken again. */
template <int TILES> DEVICE_CODE void wide_copy_tiles(const wide_job &j, int32_t step, uint8_t *stage) {
  const int32_t warps = (int32_t)blockDim.x / DEVICE_LANES, blocks = j.a.columns / OPS_BLOCK;
  constexpr int32_t bytes = LINEAR_WIDE_STEP * (int32_t)sizeof(cuda_tile);
  DEVICE_NO_UNROLL
  for (int32_t i = j.warp; i < j.a.parts * TILES; i += warps) {
    const int32_t part = i / TILES, tile = i % TILES < j.there ? i % TILES : j.there - 1;
    const int32_t block = wide_part_at(j.a, part) + step * LINEAR_WIDE_STEP,
                  left = wide_part_at(j.a, part + 1) - block;
    const uint8_t *from = (const uint8_t *)(j.tiles + (uint32_t)(tile * blocks + block));
    if (left >= LINEAR_WIDE_STEP)
      wide_copy<bytes>(j.lane, stage + i * bytes, from);
    else if (left > 0)
      wide_copy<bytes / LINEAR_WIDE_STEP>(j.lane, stage + i * bytes, from);
  }
}

/* --- products --- */

/* Block i of a step. */
template <ops_type TYPE> DEVICE_CODE cpu_block wide_block(const uint8_t *group, int32_t i) {
  using format = linear_format<TYPE>;
  const uint8_t *planes = group + format::HEAD + i * format::BLOCK,
                *after = planes + weights<TYPE>::PLANE_BYTES;
  return {planes, format::HEAD ? group : after, after};
}

template <ops_type TYPE, int TILES>
DEVICE_CODE void wide_add_block(const uint8_t *groups, const cuda_tile *tiles, int32_t i, int32_t lane,
                                float acc[WIDE_PAIR][TILES][4]) {
  const int32_t g = lane / 4, q = lane % 4;
  linear_scales s[WIDE_PAIR];
  uint32_t a[WIDE_PAIR][4];
  DEVICE_UNROLL
  for (int32_t u = 0; u < WIDE_PAIR; u++) {
    const cpu_block k = wide_block<TYPE>(groups + u * wide_group_bytes<TYPE>, i);
    s[u] = linear_scales_at<TYPE>(k, g);
    weight_fragment<TYPE>(k.planes, g, q, a[u]);
  }
  DEVICE_UNROLL
  for (int32_t tile = 0; tile < TILES; tile++) {
    const linear_tile t = linear_tile_at(tiles + tile * LINEAR_WIDE_STEP + i, g, q);
    DEVICE_UNROLL
    for (int32_t u = 0; u < WIDE_PAIR; u++) {
      if constexpr (weight_format_of(TYPE).sub == 16)
        linear_add_two_scales<TYPE>(s[u], a[u], t, acc[u][tile]);
      else
        linear_add_one_scale<TYPE>(s[u], a[u], t, acc[u][tile]);
    }
  }
}

template <ops_type TYPE, int TILES>
DEVICE_CODE void wide_add_step(const wide_job &j, int32_t step, const uint8_t *stage,
                               float acc[WIDE_PAIR][TILES][4]) {
  const uint8_t *groups = stage + j.at.weights + j.warp * WIDE_PAIR * wide_group_bytes<TYPE>;
  const cuda_tile *tiles = (const cuda_tile *)stage + j.part * TILES * LINEAR_WIDE_STEP;
  const int32_t left = j.slot[0].end - j.slot[0].first - step * LINEAR_WIDE_STEP;
  DEVICE_NO_UNROLL
  for (int32_t i = 0; i < LINEAR_WIDE_STEP && i < left; i++)
    wide_add_block<TYPE, TILES>(groups, tiles, i, j.lane, acc);
}

/* Leaves the sums [slots][rows][OPS_GROUP] in shared memory, in place of the steps. The caller
 * has begun to copy step 0's weights. */
template <ops_type TYPE, int TILES> DEVICE_CODE float *wide_sums(const wide_job &j) {
  float acc[WIDE_PAIR][TILES][4] = {};
  int32_t reading = 0, writing = 0; /* turns of the stages */
  DEVICE_NO_UNROLL
  for (int32_t step = 1 - LINEAR_WIDE_DEPTH; step < j.steps; step++) {
    const int32_t ahead = step + LINEAR_WIDE_DEPTH - 1;
    if (step >= 0) {
      device_copies_wait<LINEAR_WIDE_DEPTH - 2>();
      __syncthreads();
    }
    if (ahead < j.steps) {
      if (ahead > 0) wide_copy_weights<TYPE>(j, ahead, wide_stage(j, writing));
      wide_copy_tiles<TILES>(j, ahead, wide_stage(j, writing));
    }
    device_copies_end();
    writing = writing + 1 < LINEAR_WIDE_DEPTH ? writing + 1 : 0;
    if (step < 0) continue;
    wide_add_step<TYPE, TILES>(j, step, wide_stage(j, reading), acc);
    reading = reading + 1 < LINEAR_WIDE_DEPTH ? reading + 1 : 0;
  }
  __syncthreads();
  float *sums = (float *)j.memory;
  DEVICE_UNROLL
  for (int32_t u = 0; u < WIDE_PAIR; u++) {
    const int32_t slot = (j.warp / j.a.parts * WIDE_PAIR + u) * j.a.parts + j.part;
    linear_put_sums<TILES>(acc[u], sums + slot * TILES * CUDA_TILE_ROWS * OPS_GROUP);
  }
  __syncthreads();
  return sums;
}

/* --- a block --- */

/* Where a warp's group is missing, it sums the block's first one again; that sum is not read. */
template <ops_type TYPE> DEVICE_CODE void wide_find_slots(wide_job &j) {
  const int32_t unit = j.warp / j.a.parts * WIDE_PAIR;
  j.part = j.warp % j.a.parts;
  DEVICE_UNROLL
  for (int32_t u = 0; u < WIDE_PAIR; u++) {
    j.slot[u] = linear_slot_at<TYPE>(j.a, (unit + u) * j.a.parts + j.part);
    if (!j.slot[u].group) j.slot[u] = linear_slot_at<TYPE>(j.a, j.part);
  }
  const int32_t blocks = j.a.columns / OPS_BLOCK, longest = (blocks + j.a.parts - 1) / j.a.parts;
  j.steps = (longest + LINEAR_WIDE_STEP - 1) / LINEAR_WIDE_STEP;
}

template <ops_type TYPE, int TILES>
static __global__ void __launch_bounds__(LINEAR_WIDE_WARPS *DEVICE_LANES, 2)
    linear_wide(const __grid_constant__ linear_args a) {
  CUDA_SHARED(memory);
  constexpr int32_t rows_max = TILES * CUDA_TILE_ROWS;
  const int32_t first = (int32_t)blockIdx.y * rows_max;
  const int32_t left = linear_row_count(a.rows) - first, count = left < rows_max ? left : rows_max;
  wide_job j = {a,
                memory,
                linear_wide_layout_of(wide_group_bytes<TYPE>, TILES, a),
                {},
                (int32_t)threadIdx.x / DEVICE_LANES,
                (int32_t)threadIdx.x % DEVICE_LANES,
                0,
                0,
                a.input.tiles + (size_t)(first / CUDA_TILE_ROWS) * (size_t)(a.columns / OPS_BLOCK),
                cuda_tile_rows(count)};
  if (count > 0) {
    wide_find_slots<TYPE>(j);
    wide_copy_weights<TYPE>(j, 0, memory);
  }
  device_wait_for_previous();
  device_let_next_begin();
  if (count <= 0) return;
  linear_finish_rows(a, wide_sums<TYPE, TILES>(j), rows_max, first, count);
}

linear_kernel *linear_wide_kernel(ops_type type, int32_t tiles) {
#define KERNEL(name, TYPE, ...)                                                                              \
  case OPS_##TYPE:                                                                                           \
    return tiles == LINEAR_WIDE_TILES ? linear_wide<OPS_##TYPE, LINEAR_WIDE_TILES>                           \
                                      : linear_wide<OPS_##TYPE, LINEAR_WIDE_TILES / 2>;
  switch (type) {
    CPU_FORMATS(KERNEL)
  default:
    return nullptr;
  }
#undef KERNEL
}

int32_t linear_wide_bytes(ops_type type) {
#define BYTES(name, TYPE, ...)                                                                               \
  case OPS_##TYPE:                                                                                           \
    return wide_group_bytes<OPS_##TYPE>;
  switch (type) {
    CPU_FORMATS(BYTES)
  default:
    return 0;
  }
#undef BYTES
}
