/* linear_wide.cu - linears of quantised weights and int8 activations, of more than a few rows, whose tiles
 * another kernel has made.
 *
 * A warp sums the same part of GROUPS groups of outputs for TILES tiles of rows; `sets` warps have the same
 * slots, and share the tiles. So what is read of a tile serves several products of a tensor core, and what is
 * made of a block of weights several of them. Other warps, the copiers, bring both to shared memory, in
 * stages of STEP blocks of each part. They are ahead by as many stages as there is room for, and do not stop
 * between two turns. */
#include "kernels/cuda/linear_product.cuh"
#include "kernels/cuda/linear_stream.cuh"

constexpr int32_t STEP = LINEAR_WIDE_STEP;
constexpr int32_t TILE_BYTES = (int32_t)sizeof(cuda_tile);
constexpr int32_t WIDE_AT_ONCE = 4; /* copies of a thread, that begin without a jump between them */
static_assert(TILE_BYTES % 16 == 0 && CPU_UNIT_BLOCKS % STEP == 0,
              "stages are whole chunks, and of one unit");
static_assert(LINEAR_WIDE_COPIERS == LINEAR_PARTS, "a copier has a part");
static_assert(LINEAR_WIDE_BARRIERS >= (2 * LINEAR_WIDE_DEPTH + 2) * (int32_t)sizeof(device_barrier),
              "there is room for the barriers");

/* --- a stage: tiles [parts][STEP][tiles of a block], then the weights of all slots --- */

/* Of a slot: the head of the unit, then the blocks. They are of one unit, because stages begin at whole
 * multiples of their blocks where there are units. */
template <ops_type TYPE>
constexpr int32_t wide_slot_bytes = linear_format<TYPE>::HEAD + STEP *linear_format<TYPE>::BLOCK;

struct wide_part { /* blocks [first, end); begin: where its first stage begins */
  int32_t begin, first, end;
};

template <ops_type TYPE> DEVICE_CODE wide_part wide_part_at(const linear_args &a, int32_t part) {
  const int32_t blocks = a.columns / OPS_BLOCK, first = a.parts > 1 ? blocks * part >> 2 : 0,
                end = a.parts > 1 ? blocks * (part + 1) >> 2 : blocks;
  return {linear_format<TYPE>::HEAD ? first / STEP * STEP : first, first, end};
}

/* What all warps know. */
struct wide_block {
  int32_t first, count;        /* rows */
  int32_t slots, turns, steps; /* of a turn */
  int32_t tiles;               /* of a block of inputs */
  int32_t stage;               /* bytes */
  device_barrier *full, *empty, *sums_there, *sums_free;
  float *sums;
  uint8_t *stages;
};

template <ops_type TYPE, int TILES>
DEVICE_CODE wide_block wide_block_of(const linear_args &a, uint8_t *memory) {
  wide_block b;
  const int32_t tiles = a.sets * TILES, rows_max = tiles * CUDA_TILE_ROWS;
  const int32_t left = linear_row_count(a.rows) - (int32_t)blockIdx.y * rows_max;
  b.first = (int32_t)blockIdx.y * rows_max;
  b.count = left < rows_max ? left : rows_max;
  b.slots = a.units * a.parts;
  const int32_t units = (a.each + ((int32_t)blockIdx.x < a.more ? 1 : 0)) * (a.swiglu ? 2 : 1);
  b.turns = (units + a.units - 1) / a.units;
  b.steps = 0;
  DEVICE_NO_UNROLL
  for (int32_t p = 0; p < a.parts; p++) {
    const wide_part r = wide_part_at<TYPE>(a, p);
    const int32_t steps = (r.end - r.begin + STEP - 1) / STEP;
    b.steps = steps > b.steps ? steps : b.steps;
  }
  b.tiles = tiles;
  b.stage = linear_wide_stage(TILES, wide_slot_bytes<TYPE>, a);
  b.full = (device_barrier *)memory;
  b.empty = b.full + LINEAR_WIDE_DEPTH;
  b.sums_there = b.empty + LINEAR_WIDE_DEPTH;
  b.sums_free = b.sums_there + 1;
  b.sums = (float *)(memory + LINEAR_WIDE_BARRIERS);
  b.stages = memory + LINEAR_WIDE_BARRIERS + linear_wide_sums(TILES, a);
  return b;
}

/* Which stage of the ring is next, and how often it was before. */
struct wide_cursor {
  int32_t at;
  uint32_t before;
};

DEVICE_CODE void wide_go_on(wide_cursor &c, int32_t depth) {
  if (++c.at == depth) c.at = 0, c.before++;
}

/* --- copiers --- */

/* A copier has a part, or where there is one part every so many of its slots. Some lanes each have a slot. */
struct wide_copier {
  int32_t part, own, share;  /* own: which of those that share the part */
  int32_t slot, lane, lanes; /* slot: of a turn, -1: none; lane: of those that share the slot */
};

DEVICE_CODE wide_copier wide_copier_of(const linear_args &a) {
  const int32_t copier = (int32_t)threadIdx.x / DEVICE_LANES - a.stream.warps,
                lane = (int32_t)threadIdx.x % DEVICE_LANES;
  wide_copier c;
  c.share = a.parts > 1 ? 1 : LINEAR_WIDE_COPIERS;
  c.part = a.parts > 1 ? copier : 0;
  c.own = a.parts > 1 ? 0 : copier;
  const int32_t slots = (a.units + c.share - 1) / c.share; /* of this copier at most, which are 8 or fewer */
  c.lanes = slots > 4 ? 4 : slots > 2 ? 8 : slots > 1 ? 16 : 32;
  const int32_t unit = c.own + lane / c.lanes * c.share;
  c.slot = unit < a.units ? unit * a.parts + c.part : -1;
  c.lane = lane % c.lanes;
  return c;
}

/* By threads whose chunks are `stride` bytes apart. */
DEVICE_CODE void wide_copy_span(device_shared to, const uint8_t *from, int32_t left, int32_t stride) {
  DEVICE_NO_UNROLL
  for (; left > 0; left -= WIDE_AT_ONCE * stride) {
    DEVICE_UNROLL
    for (int32_t k = 0; k < WIDE_AT_ONCE; k++, to += stride, from += stride)
      if (left > k * stride) device_copy_16_to(to, from);
  }
}

/* What a copier's lane copies of a stage of `count` blocks: weights of its slot, and tiles of its part. */
template <ops_type TYPE> struct wide_source {
  using format = linear_format<TYPE>;
  const uint8_t *group, *tiles; /* group NULL: none. From the lane's first chunk on */
  int32_t weights_to, tiles_to; /* in a stage, likewise */
  int32_t lane, stride;         /* of the slot: bytes to the lane's first chunk, and to its next ones */
  int32_t own, tiles_stride;    /* of tiles, likewise */
  int32_t there, side, room;    /* tiles of a block: that are read, lie side by side, and have room here */

  DEVICE_CODE void copy_weights(device_shared stage, int32_t block, int32_t count) const {
    if (!group || count == 0) return;
    const uint8_t *unit = group + (size_t)((uint32_t)block / format::UNIT_BLOCKS) * weights<TYPE>::UNIT_BYTES;
    if (format::HEAD && lane < format::HEAD) device_copy_16_to(stage + weights_to, unit);
    wide_copy_span(stage + weights_to + format::HEAD,
                   unit + format::HEAD + (uint32_t)block % format::UNIT_BLOCKS * format::BLOCK,
                   count * format::BLOCK - lane, stride);
  }
  /* from: the part's tiles of the stage. */
  DEVICE_CODE void copy_tiles(device_shared stage, const uint8_t *from, int32_t count) const {
    device_shared to = stage + tiles_to;
    if (there == room) { /* blocks lie one after the other there as here */
      wide_copy_span(to, from, count * there * TILE_BYTES - own, tiles_stride);
      return;
    }
    DEVICE_NO_UNROLL
    for (int32_t i = 0; i < count; i++, to += room * TILE_BYTES, from += side * TILE_BYTES)
      wide_copy_span(to, from, there * TILE_BYTES - own, tiles_stride);
  }
};

template <ops_type TYPE>
DEVICE_CODE wide_source<TYPE> wide_source_of(const linear_args &a, const wide_block &b, const wide_copier &c,
                                             int32_t begin) {
  wide_source<TYPE> s;
  const activation_order order = {a.columns / OPS_BLOCK, b.tiles, cuda_tile_rows(a.rows.bucket)};
  const int32_t tile = b.first / CUDA_TILE_ROWS;
  s.lane = c.lane * 16;
  s.stride = c.lanes * 16;
  s.own = (c.own * DEVICE_LANES + (int32_t)threadIdx.x % DEVICE_LANES) * 16;
  s.tiles_stride = c.share * DEVICE_LANES * 16;
  s.there = cuda_tile_rows(b.count);
  s.side = order.side_by_side(tile);
  s.room = b.tiles;
  s.group = nullptr;
  s.tiles = (const uint8_t *)(a.input.tiles + order.at(tile, begin)) + s.own;
  s.tiles_to = c.part * STEP * b.tiles * TILE_BYTES + s.own;
  s.weights_to = a.parts * STEP * b.tiles * TILE_BYTES + c.slot * wide_slot_bytes<TYPE> + s.lane;
  return s;
}

template <ops_type TYPE> DEVICE_CODE void wide_copy(const linear_args &a, const wide_block &b) {
  const int32_t depth = a.stream.depth, early = depth < b.steps ? depth : b.steps;
  const wide_copier c = wide_copier_of(a);
  const wide_part r = wide_part_at<TYPE>(a, c.part);
  wide_source<TYPE> s = wide_source_of<TYPE>(a, b, c, r.begin);
  const device_shared stages = device_shared_at(b.stages);
  const auto enter = [&](int32_t turn) {
    s.group = c.slot < 0 ? nullptr : linear_slot_at<TYPE>(a, turn * b.slots + c.slot).group;
    if (s.group) s.group += s.lane;
  };
  const auto count_at = [&](int32_t block) {
    const int32_t left = r.end - block;
    return left < 0 ? 0 : left < STEP ? left : STEP;
  };
  enter(0);
  DEVICE_NO_UNROLL
  for (int32_t step = 0; step < early; step++)
    s.copy_weights(stages + step * b.stage, r.begin + step * STEP, count_at(r.begin + step * STEP));
  device_wait_for_previous();
  device_let_next_begin();
  wide_cursor at = {0, 0};
  DEVICE_NO_UNROLL
  for (int32_t turn = 0; turn < b.turns; turn++) {
    const uint8_t *tiles = s.tiles;
    if (turn > 0) enter(turn);
    DEVICE_NO_UNROLL
    for (int32_t step = 0; step < b.steps; step++, tiles += STEP * s.side * TILE_BYTES) {
      const int32_t block = r.begin + step * STEP, count = count_at(block);
      const device_shared stage = stages + at.at * b.stage;
      if (at.before > 0) device_barrier_wait(b.empty + at.at, at.before - 1);
      if (turn > 0 || step >= early) s.copy_weights(stage, block, count);
      s.copy_tiles(stage, tiles, count);
      device_barrier_arrive_after_copies(b.full + at.at);
      wide_go_on(at, depth);
    }
  }
}

/* --- the other warps --- */

/* Block i of a stage. */
template <ops_type TYPE> DEVICE_CODE cpu_block wide_weights(const uint8_t *slot, int32_t i) {
  using format = linear_format<TYPE>;
  const uint8_t *planes = slot + format::HEAD + i * format::BLOCK,
                *after = planes + weights<TYPE>::PLANE_BYTES;
  return {planes, format::HEAD ? slot : after, after};
}

template <ops_type TYPE, int GROUPS, int TILES>
DEVICE_CODE void wide_add_block(const uint8_t *const slots[GROUPS], const cuda_tile *tiles, int32_t i,
                                float acc[GROUPS][TILES][4]) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, g = lane / 4, j = lane % 4;
  linear_scales s[GROUPS];
  uint32_t a[GROUPS][4];
  DEVICE_UNROLL
  for (int32_t u = 0; u < GROUPS; u++) {
    const cpu_block k = wide_weights<TYPE>(slots[u], i);
    s[u] = linear_scales_at<TYPE>(k, g);
    weight_fragment<TYPE>(k.planes, g, j, a[u]);
  }
  DEVICE_UNROLL
  for (int32_t tile = 0; tile < TILES; tile++) {
    const linear_tile t = linear_tile_at(tiles + tile, g, j);
    DEVICE_UNROLL
    for (int32_t u = 0; u < GROUPS; u++) {
      if constexpr (weight_format_of(TYPE).sub == 16)
        linear_add_two_scales<TYPE>(s[u], a[u], t, acc[u][tile]);
      else
        linear_add_one_scale<TYPE>(s[u], a[u], t, acc[u][tile]);
    }
  }
}

/* Which slots a warp sums, of a turn's, and for which tiles of theirs. */
struct wide_warp {
  int32_t slot[2], set;
  wide_part part;
};

template <ops_type TYPE, int GROUPS> DEVICE_CODE wide_warp wide_warp_of(const linear_args &a) {
  const int32_t warp = (int32_t)threadIdx.x / DEVICE_LANES, pair = warp / a.sets, part = pair & (a.parts - 1),
                unit = (a.parts > 1 ? pair >> 2 : pair) * GROUPS;
  wide_warp w = {{}, warp % a.sets, wide_part_at<TYPE>(a, part)};
  DEVICE_UNROLL
  for (int32_t u = 0; u < GROUPS; u++) w.slot[u] = (unit + u) * a.parts + part;
  return w;
}

template <ops_type TYPE, int GROUPS, int TILES>
DEVICE_CODE void wide_add_stage(const wide_warp &w, int32_t step, const uint8_t *const slots[GROUPS],
                                const cuda_tile *tiles, int32_t side_by_side, float acc[GROUPS][TILES][4]) {
  const int32_t block = w.part.begin + step * STEP;
  if (block >= w.part.first && block + STEP <= w.part.end) {
    DEVICE_UNROLL
    for (int32_t i = 0; i < STEP; i++)
      wide_add_block<TYPE, GROUPS, TILES>(slots, tiles + i * side_by_side, i, acc);
  } else {
    DEVICE_NO_UNROLL
    for (int32_t i = 0; i < STEP; i++)
      if (block + i >= w.part.first && block + i < w.part.end)
        wide_add_block<TYPE, GROUPS, TILES>(slots, tiles + i * side_by_side, i, acc);
  }
}

template <ops_type TYPE, int GROUPS, int TILES>
DEVICE_CODE void wide_sum(const linear_args &a, const wide_block &b) {
  const int32_t rows_max = a.sets * TILES * CUDA_TILE_ROWS;
  const wide_warp w = wide_warp_of<TYPE, GROUPS>(a);
  const int32_t tiles_at = ((w.slot[0] & (a.parts - 1)) * STEP * b.tiles + w.set * TILES) * TILE_BYTES;
  int32_t slots_at[GROUPS];
  DEVICE_UNROLL
  for (int32_t u = 0; u < GROUPS; u++)
    slots_at[u] = a.parts * STEP * b.tiles * TILE_BYTES + w.slot[u] * wide_slot_bytes<TYPE>;
  device_wait_for_previous();
  device_let_next_begin();
  wide_cursor c = {0, 0};
  DEVICE_NO_UNROLL
  for (int32_t turn = 0; turn < b.turns; turn++) {
    float acc[GROUPS][TILES][4] = {};
    DEVICE_NO_UNROLL
    for (int32_t step = 0; step < b.steps; step++) {
      const uint8_t *stage = b.stages + c.at * b.stage, *slots[GROUPS];
      DEVICE_UNROLL
      for (int32_t u = 0; u < GROUPS; u++) slots[u] = stage + slots_at[u];
      device_barrier_wait(b.full + c.at, c.before);
      wide_add_stage<TYPE, GROUPS, TILES>(w, step, slots, (const cuda_tile *)(stage + tiles_at), b.tiles,
                                          acc);
      device_barrier_arrive(b.empty + c.at);
      wide_go_on(c, a.stream.depth);
    }
    if (turn > 0) device_barrier_wait(b.sums_free, (uint32_t)turn - 1);
    DEVICE_UNROLL
    for (int32_t u = 0; u < GROUPS; u++)
      linear_put_sums<TILES>(acc[u],
                             b.sums + (w.slot[u] * rows_max + w.set * TILES * CUDA_TILE_ROWS) * OPS_GROUP);
    device_barrier_arrive(b.sums_there);
    device_barrier_wait(b.sums_there, (uint32_t)turn);
    linear_finish_rows(a, {turn * a.units, a.units}, b.sums, rows_max, b.first, b.count,
                       a.stream.warps * DEVICE_LANES);
    device_barrier_arrive(b.sums_free);
  }
}

template <ops_type TYPE, int GROUPS, int TILES>
static __global__ void __launch_bounds__((LINEAR_WIDE_WARPS + LINEAR_WIDE_COPIERS) * DEVICE_LANES, 1)
    linear_wide(const __grid_constant__ linear_args a) {
  CUDA_SHARED(memory);
  const wide_block b = wide_block_of<TYPE, TILES>(a, memory);
  if (b.count <= 0) {
    device_wait_for_previous();
    return;
  }
  if (threadIdx.x == 0) {
    DEVICE_NO_UNROLL
    for (int32_t i = 0; i < a.stream.depth; i++) {
      device_barrier_init(b.full + i, LINEAR_WIDE_COPIERS * DEVICE_LANES);
      device_barrier_init(b.empty + i, a.stream.warps * DEVICE_LANES);
    }
    device_barrier_init(b.sums_there, a.stream.warps * DEVICE_LANES);
    device_barrier_init(b.sums_free, a.stream.warps * DEVICE_LANES);
  }
  __syncthreads();
  if ((int32_t)threadIdx.x / DEVICE_LANES >= a.stream.warps)
    wide_copy<TYPE>(a, b);
  else
    wide_sum<TYPE, GROUPS, TILES>(a, b);
}

template <ops_type TYPE> static linear_kernel *wide_kernel(int32_t groups, int32_t tiles) {
  if (groups == 1) return tiles == 2 ? linear_wide<TYPE, 1, 2> : linear_wide<TYPE, 1, 4>;
  return tiles == 1   ? linear_wide<TYPE, 2, 1>
         : tiles == 2 ? linear_wide<TYPE, 2, 2>
                      : linear_wide<TYPE, 2, 4>;
}

linear_kernel *linear_wide_kernel(ops_type type, int32_t groups, int32_t tiles) {
#define KERNEL(name, TYPE, ...)                                                                              \
  case OPS_##TYPE:                                                                                           \
    return wide_kernel<OPS_##TYPE>(groups, tiles);
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
    return wide_slot_bytes<OPS_##TYPE>;
  switch (type) {
    CPU_FORMATS(BYTES)
  default:
    return 0;
  }
#undef BYTES
}
