/* linear_tiles.cu - linears of quantised weights and int8 activations, of rows whose tiles another kernel has
 * made.
 *
 * A warp sums a slot for one tile, or where two types are one launch for up to two, so that each weight is
 * read once for 16 rows. */
#include "kernels/cuda/linear_product.cuh"
#include "kernels/cuda/linear_stream.cuh"

template <ops_type TYPE> DEVICE_CODE cpu_block tiles_block(const uint8_t *stage, int32_t i) {
  using format = linear_format<TYPE>;
  const uint8_t *planes = stage + format::HEAD + i * format::BLOCK,
                *after = planes + weights<TYPE>::PLANE_BYTES;
  return {planes, format::HEAD ? stage : after, after};
}

struct tiles_rows {
  const cuda_tile *tiles; /* those of the next rows lie `stride` further on */
  size_t stride;
  int32_t there;
};

/* What the slot has in a stage. */
template <ops_type TYPE, int TILES>
DEVICE_CODE void tiles_stage(const linear_cursor &p, const uint8_t *stage, const tiles_rows &rows,
                             float acc[TILES][4]) {
  constexpr int32_t at_once = LINEAR_AT_ONCE / TILES;
  const linear_part part = linear_part_of<TYPE>(p);
  const cuda_tile *tiles = rows.tiles + p.block;
  int32_t i = part.first;
  DEVICE_NO_UNROLL
  for (; i + at_once <= part.end; i += at_once)
    DEVICE_UNROLL for (int32_t k = 0; k < at_once; k++) linear_add_block<TYPE, TILES>(
        tiles_block<TYPE>(stage, i + k), tiles + i + k, rows.stride, rows.there, acc);
  DEVICE_NO_UNROLL
  for (; i < part.end; i++)
    linear_add_block<TYPE, TILES>(tiles_block<TYPE>(stage, i), tiles + i, rows.stride, rows.there, acc);
}

/* Sums the slot of a turn, to sums [TILES * CUDA_TILE_ROWS][OPS_GROUP]. */
template <ops_type TYPE, int TILES>
DEVICE_CODE void tiles_slot(const linear_args &a, const linear_warp &t, linear_cursor &next,
                            linear_cursor &reading, const tiles_rows &rows, float *sums) {
  float acc[TILES][4] = {};
  linear_read_slot<TYPE>(a, t, next, reading,
                         [&](const uint8_t *stage) { tiles_stage<TYPE, TILES>(reading, stage, rows, acc); });
  linear_put_sums<TILES>(acc, sums);
}

/* The tiles, in shared memory where there is room for them. */
DEVICE_CODE tiles_rows tiles_there(const linear_args &a, int32_t count, uint8_t *room) {
  const size_t stride = (size_t)(a.columns / OPS_BLOCK);
  const int32_t there = cuda_tile_rows(count), bytes = (int32_t)stride * there * (int32_t)sizeof(cuda_tile);
  if (a.stream.form_bytes == 0) return {a.input.tiles, stride, there};
  DEVICE_UNROLL_BY(4)
  for (int32_t i = (int32_t)threadIdx.x * 16; i < bytes; i += (int32_t)blockDim.x * 16)
    device_copy_16(room + i, (const uint8_t *)a.input.tiles + i);
  device_copies_end();
  device_copies_wait<0>();
  __syncthreads();
  return {(const cuda_tile *)room, stride, there};
}

template <ops_type TYPE, int TILES> DEVICE_CODE void tiles_run(const linear_args &a) {
  CUDA_SHARED(memory);
  constexpr int32_t rows_max = TILES * CUDA_TILE_ROWS;
  const linear_stream_layout at = linear_stream_layout_of(linear_format<TYPE>::STAGE_BYTES, rows_max, a);
  const int32_t index = (int32_t)threadIdx.x / DEVICE_LANES, units = a.stream.warps / a.parts;
  const linear_warp warp = {memory + index * at.ring_each, index, (int32_t)threadIdx.x % DEVICE_LANES};
  const bool sums_slots = index < a.stream.warps;
  linear_cursor reading = {}, next = {};
  if (sums_slots) linear_begin<TYPE>(a, warp, next);
  const int32_t there = linear_row_count(a.rows), count = there < rows_max ? there : rows_max;
  linear_output mine = linear_no_output();
  if (count > 0) mine = linear_output_at(a, {0, units}, (int32_t)threadIdx.x, rows_max, 0, count);
  device_wait_for_previous();
  device_let_next_begin();
  if (count <= 0) return;
  linear_output_load(a, mine);
  const tiles_rows rows = tiles_there(a, count, memory + at.forms);
  float *sums = (float *)(memory + at.sums);
  DEVICE_NO_UNROLL
  for (int32_t turn = 0; turn < a.stream.turns; turn++) {
    if (sums_slots)
      tiles_slot<TYPE, TILES>(a, warp, next, reading, rows, sums + index * rows_max * OPS_GROUP);
    __syncthreads();
    linear_finish(a, {turn * units, units}, sums, rows_max, 0, count, mine, turn == 0);
    __syncthreads();
  }
}

template <ops_type TYPE>
static __global__ void __launch_bounds__(LINEAR_STREAM_WARPS *DEVICE_LANES, 1)
    linear_tiles(const __grid_constant__ linear_args a) {
  tiles_run<TYPE, 1>(a);
}

template <ops_type FIRST, ops_type SECOND, int TILES>
static __global__ void __launch_bounds__(LINEAR_STREAM_WARPS *DEVICE_LANES, 1)
    linear_tiles_pair(const __grid_constant__ linear_pair p) {
  if (linear_is_second(p))
    tiles_run<SECOND, TILES>(p.of[1]);
  else
    tiles_run<FIRST, TILES>(p.of[0]);
}

linear_kernel *linear_tiles_kernel(ops_type type) {
#define KERNEL(name, TYPE, ...)                                                                              \
  case OPS_##TYPE:                                                                                           \
    return linear_tiles<OPS_##TYPE>;
  switch (type) {
    CPU_FORMATS(KERNEL)
  default:
    return nullptr;
  }
#undef KERNEL
}

linear_pair_kernel *linear_tiles_pair_kernel(ops_type first, ops_type second, int32_t tiles) {
#define KERNEL(FIRST, SECOND)                                                                                \
  if (first == OPS_##FIRST && second == OPS_##SECOND)                                                        \
    return tiles == 1 ? linear_tiles_pair<OPS_##FIRST, OPS_##SECOND, 1>                                      \
                      : linear_tiles_pair<OPS_##FIRST, OPS_##SECOND, 2>;
  LINEAR_PAIRS(KERNEL)
#undef KERNEL
  return nullptr;
}

int32_t linear_stage_bytes(ops_type type) {
#define BYTES(name, TYPE, ...)                                                                               \
  case OPS_##TYPE:                                                                                           \
    return linear_format<OPS_##TYPE>::STAGE_BYTES;
  switch (type) {
    BYTES(bf16, BF16, )
    CPU_FORMATS(BYTES)
  default:
    return 0;
  }
#undef BYTES
}
