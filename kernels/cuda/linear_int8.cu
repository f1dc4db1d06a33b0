/* linear_int8.cu - linears of quantised weights and int8 activations: small ones, and those of
 * many rows that are not large enough for linear_wide.cu.
 *
 * A warp sums 16 outputs over the blocks of one part, for one or two tiles of 8 rows. The weights come
 * through a ring in shared memory, which it begins to fill before the previous kernel has ended. A tensor
 * core multiplies the 16 outputs of a block with a tile: exact integers, so that its order does not matter.
 */
#include "kernels/cuda/linear_product.cuh"

/* --- blocks that a warp holds before the previous kernel has ended: those of its first stage --- */

template <ops_type TYPE, int TILES>
constexpr bool linear_holds = TILES == 1 && weight_format_of(TYPE).sub != 16; /* has registers for them */

struct held_stage {
  linear_scales scales[WEIGHT_STAGE];
  uint32_t a[WEIGHT_STAGE][4];
};

template <ops_type TYPE> DEVICE_CODE void hold_stage(const uint8_t *from, held_stage &h) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES;
  DEVICE_UNROLL
  for (int32_t i = 0; i < WEIGHT_STAGE; i++) {
    const cpu_block k = cpu_block_at(from, weight_format_of(TYPE), (size_t)i);
    h.scales[i] = linear_scales_at<TYPE>(k, lane / 4);
    weight_fragment<TYPE>(k.planes, lane / 4, lane % 4, h.a[i]);
  }
}

/* at: the block at which the stage begins; what the slot does not sum is left out. */
template <ops_type TYPE>
DEVICE_CODE void add_held(const linear_slot &s, int32_t at, const held_stage &h, const cuda_tile *tiles,
                          float acc[4]) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES;
  DEVICE_UNROLL
  for (int32_t i = 0; i < WEIGHT_STAGE; i++) {
    const int32_t block = at + i < s.end ? at + i : s.end - 1;
    float sum[4] = {acc[0], acc[1], acc[2], acc[3]};
    linear_add_one_scale<TYPE>(h.scales[i], h.a[i], linear_tile_at(tiles + block, lane / 4, lane % 4), sum);
    for (int32_t k = 0; k < 4; k++) acc[k] = at + i >= s.first && at + i < s.end ? sum[k] : acc[k];
  }
}

/* --- slices: a warp leaves the terms of its blocks, and threads add those of a slot --- */

template <ops_type TYPE, int TILES>
constexpr bool linear_slices = linear_holds<TYPE, TILES> &&weight_format_of(TYPE).sub == 0;

/* Whose term i of a row is. */
DEVICE_CODE int32_t output_of_term(int32_t i) {
  return i % (OPS_GROUP / 2) * 2 + i / (OPS_GROUP / 2);
}

/* terms [blocks][rows][LINEAR_TERM_ROW] of the slot */
template <ops_type TYPE>
DEVICE_CODE void put_terms(const linear_slot &s, const held_stage &h, const cuda_tile *tiles, int32_t rows,
                           linear_term *terms) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, g = lane / 4, j = lane % 4;
  DEVICE_UNROLL
  for (int32_t i = 0; i < LINEAR_HELD; i++) {
    const int32_t block = s.first + i < s.end ? s.first + i : s.end - 1;
    linear_term *to = terms + (block * rows + 2 * j) * LINEAR_TERM_ROW + g;
    linear_term found[4];
    linear_find_terms<TYPE>(h.scales[i], h.a[i], linear_tile_at(tiles + block, g, j), found);
    for (int32_t k = 0; k < 4; k++)
      if (s.first + i < s.end && 2 * j + k % 2 < rows)
        to[k % 2 * LINEAR_TERM_ROW + k / 2 * (OPS_GROUP / 2)] = found[k];
  }
}

/* From terms [slots][blocks][rows][LINEAR_TERM_ROW] to sums [slots][CUDA_TILE_ROWS][OPS_GROUP]; there are
 * two slots at most. */
template <ops_type TYPE>
DEVICE_CODE void add_terms(const linear_args &a, const linear_term *terms, int32_t rows, float *sums) {
  const int32_t blocks = a.columns / OPS_BLOCK, outputs = rows * OPS_GROUP, each = rows * LINEAR_TERM_ROW;
  DEVICE_NO_UNROLL
  for (int32_t i = (int32_t)threadIdx.x; i < a.units * outputs; i += (int32_t)blockDim.x) {
    const int32_t slot = i >= outputs ? 1 : 0, at = i - slot * outputs, row = at / OPS_GROUP;
    const linear_term *t = terms + slot * blocks * each + row * LINEAR_TERM_ROW + at % OPS_GROUP;
    float sum = 0.0f;
    DEVICE_UNROLL_BY(6)
    for (int32_t block = 0; block < blocks; block++) sum = linear_add_term<TYPE>(t[block * each], sum);
    sums[(slot * CUDA_TILE_ROWS + row) * OPS_GROUP + output_of_term(at % OPS_GROUP)] = sum;
  }
}

/* s: the warp's slice of slot `own`. */
template <ops_type TYPE>
DEVICE_CODE void sum_slices(const linear_args &a, const linear_slot &s, int32_t own, const held_stage &h,
                            const cuda_tile *tiles, int32_t rows, linear_term *terms, float *sums) {
  const int32_t each = a.columns / OPS_BLOCK * rows * LINEAR_TERM_ROW;
  if (s.group) put_terms<TYPE>(s, h, tiles, rows, terms + own * each);
  __syncthreads();
  add_terms<TYPE>(a, terms, rows, sums);
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
    uint8_t *to = ring + stage % weights<TYPE>::STAGES * weights<TYPE>::STAGE_BYTES;
    DEVICE_NO_UNROLL
    for (int32_t i = (int32_t)threadIdx.x % DEVICE_LANES * 16; i < bytes; i += DEVICE_LANES * 16)
      device_copy_16(to + i, from + i);
  }
  device_copies_end();
}

template <ops_type TYPE> DEVICE_CODE void copy_first_stages(const linear_slot &s, uint8_t *ring) {
  DEVICE_NO_UNROLL
  for (int32_t stage = 0; stage < weights<TYPE>::STAGES; stage++) copy_stage<TYPE>(s, stage, ring);
}

/* Stage 0 to registers, and the stage that takes its place in the ring begins. */
template <ops_type TYPE>
DEVICE_CODE void hold_first_stage(const linear_slot &s, uint8_t *ring, held_stage &h) {
  if (!s.group) return;
  device_copies_wait<weights<TYPE>::STAGES - 1>();
  __syncwarp();
  hold_stage<TYPE>(ring, h);
  __syncwarp();
  copy_stage<TYPE>(s, weights<TYPE>::STAGES, ring);
}

template <ops_type TYPE, int TILES>
DEVICE_CODE void add_blocks(const linear_slot &s, uint8_t *ring, const held_stage &held,
                            const cuda_tile *tiles, size_t tile_stride, int32_t there, float acc[TILES][4]) {
  constexpr bool holds = linear_holds<TYPE, TILES>;
  [[maybe_unused]] constexpr int32_t overlapped = holds ? 2 : WEIGHT_STAGE;
  const int32_t begin = stages_begin<TYPE>(s), stages = (s.end - begin + WEIGHT_STAGE - 1) / WEIGHT_STAGE;
  if constexpr (holds)
    if (s.group) add_held<TYPE>(s, begin, held, tiles, acc[0]);
  DEVICE_NO_UNROLL
  for (int32_t stage = holds ? 1 : 0; stage < stages; stage++) {
    const uint8_t *from = ring + stage % weights<TYPE>::STAGES * weights<TYPE>::STAGE_BYTES;
    const int32_t at = begin + stage * WEIGHT_STAGE;
    device_copies_wait<weights<TYPE>::STAGES - 1>();
    __syncwarp();
    DEVICE_UNROLL_BY(overlapped)
    for (int32_t i = 0; i < WEIGHT_STAGE; i++) {
      if (at + i < s.first || at + i >= s.end) continue;
      const cpu_block k = cpu_block_at(from, weight_format_of(TYPE), (size_t)i);
      linear_add_block<TYPE, TILES>(k, tiles + at + i, tile_stride, there, acc);
    }
    __syncwarp();
    copy_stage<TYPE>(s, stage + weights<TYPE>::STAGES, ring);
  }
}

/* --- a block --- */

/* The tiles of rows [first, first + count): where they are, or made in shared memory. */
template <int TILES>
DEVICE_CODE const cuda_tile *tiles_of(const linear_args &a, const linear_layout &at, uint8_t *memory,
                                      int32_t first, int32_t count, const activation_walk &walk,
                                      const activation_early &early) {
  const linear_input &in = a.input;
  if (!in.x) return in.tiles + (size_t)(first / CUDA_TILE_ROWS) * (size_t)(a.columns / OPS_BLOCK);
  const activation_tiles tiles = {(cuda_tile *)(memory + at.tiles), {a.columns / OPS_BLOCK, 1, TILES}, 0};
  activation_forms(linear_rows(a, first, count), walk, early, (float *)(memory + at.norm), tiles);
  return tiles.tiles;
}

/* The slot becomes its slice. */
DEVICE_CODE void slice_of(const linear_args &a, int32_t slice, linear_slot &s) {
  const int32_t blocks = s.end - s.first, first = s.first;
  s.first = first + blocks * slice / a.slices;
  s.end = first + blocks * (slice + 1) / a.slices;
}

template <ops_type TYPE, int TILES>
static __global__ void __launch_bounds__(LINEAR_THREADS_MAX, 1)
    linear_int8(const __grid_constant__ linear_args a) {
  CUDA_SHARED(memory);
  constexpr int32_t rows_max = TILES * CUDA_TILE_ROWS;
  const int32_t warp = (int32_t)threadIdx.x / DEVICE_LANES, slots = a.units * a.parts;
  const int32_t own = warp / a.slices; /* slot */
  const int32_t first = (int32_t)blockIdx.y * rows_max;
  const linear_layout at = linear_layout_of(weights<TYPE>::STAGES * weights<TYPE>::STAGE_BYTES, TILES, a);
  linear_slot slot = {nullptr, 0, 0};
  if (own < slots) slot = linear_slot_at<TYPE>(a, own);
  slice_of(a, warp % a.slices, slot);
  uint8_t *ring = memory + at.ring + (size_t)warp * weights<TYPE>::STAGES * weights<TYPE>::STAGE_BYTES;
  copy_first_stages<TYPE>(slot, ring);
  const int32_t left = linear_row_count(a.rows) - first, count = left < rows_max ? left : rows_max;
  const activation_walk walk = activation_walk_of(a.columns);
  held_stage held;
  linear_output mine = linear_no_output();
  if (count > 0) mine = linear_output_at(a, {0, a.units}, (int32_t)threadIdx.x, rows_max, first, count);
  const activation_early early = activation_early_of(linear_rows(a, first, count), walk);
  if constexpr (linear_holds<TYPE, TILES>) hold_first_stage<TYPE>(slot, ring, held);
  device_wait_for_previous();
  device_let_next_begin();
  if (count <= 0) return;
  linear_output_load(a, mine);
  const cuda_tile *tiles = tiles_of<TILES>(a, at, memory, first, count, walk, early);
  float *sums = (float *)(memory + at.sums);
  bool sliced = false;
  if constexpr (linear_slices<TYPE, TILES>) sliced = a.slices > 1;
  if (sliced) {
    sum_slices<TYPE>(a, slot, own, held, tiles, count, (linear_term *)(memory + at.terms), sums);
  } else {
    float acc[TILES][4] = {};
    add_blocks<TYPE, TILES>(slot, ring, held, tiles, (size_t)(a.columns / OPS_BLOCK), cuda_tile_rows(count),
                            acc);
    if (own < slots) linear_put_sums<TILES>(acc, sums + own * rows_max * OPS_GROUP);
  }
  __syncthreads();
  linear_finish(a, {0, a.units}, sums, rows_max, first, count, mine, true);
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

bool linear_int8_slices(ops_type type) {
  return weight_format_of(type).sub == 0;
}

int32_t linear_ring_bytes(ops_type type) {
#define BYTES(name, TYPE, ...)                                                                               \
  case OPS_##TYPE:                                                                                           \
    return weights<OPS_##TYPE>::STAGES * weights<OPS_##TYPE>::STAGE_BYTES;
  switch (type) {
    CPU_FORMATS(BYTES)
  default:
    return 0;
  }
#undef BYTES
}
