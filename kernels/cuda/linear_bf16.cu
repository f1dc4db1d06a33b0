/* linear_bf16.cu - linears of BF16 weights and more than a few rows, whose tiles another kernel has made.
 *
 * A block has teams of warps. A team sums one part of GROUPS groups of outputs, or where sums have one part,
 * groups of its own, for TILES tiles of rows: a warp has a group. Weights and tiles come to the team's ring
 * in shared memory, two blocks of inputs a stage. On compute capability 9.0 four warps multiply together,
 * with both factors in shared memory. */
#include "kernels/cuda/device_team.cuh"
#include "kernels/cuda/linear_steps.cuh"

constexpr int32_t TEAM_GROUP_BYTES = weights<OPS_BF16>::UNIT_BYTES;
constexpr int32_t TEAM_CHUNKS = TEAM_GROUP_BYTES / 16; /* of a group's block: a thread copies of two groups */
constexpr int32_t TILE_BYTES = (int32_t)sizeof(cuda_bf16_tile);
constexpr int32_t TILE_CHUNKS = TILE_BYTES / 16;
static_assert(TEAM_CHUNKS == 2 * DEVICE_LANES && TILE_CHUNKS == DEVICE_LANES,
              "a warp copies a tile, or half a group");

/* The swizzle of device_team_factor counts from addresses that are multiples of this. */
constexpr int32_t TEAM_ALIGNMENT = 256;
static_assert(TEAM_GROUP_BYTES % TEAM_ALIGNMENT == 0 && TILE_BYTES % TEAM_ALIGNMENT == 0,
              "so are blocks and stages");

struct team {
  int32_t thread;     /* of it */
  int32_t unit, part; /* of its first group, and which part of them it sums */
  uint8_t *ring;
};

template <int GROUPS> DEVICE_CODE team team_of(const linear_args &a, uint8_t *ring) {
  constexpr int32_t threads = GROUPS * DEVICE_LANES;
  const int32_t index = (int32_t)threadIdx.x / threads;
  const bool parted = a.parts > 1;
  return {(int32_t)threadIdx.x % threads, parted ? 0 : index * GROUPS, parted ? index : 0, ring};
}

/* Where a thread copies from next. */
template <int TILES, int GROUPS> struct team_source {
  static constexpr int32_t TURNS = (TILES + GROUPS - 1) / GROUPS; /* tiles that a warp copies */
  const uint8_t *weights[2], *tiles[TURNS];
  int32_t weights_left, tiles_left; /* blocks of the part */
};

/* Where a group is missing, the block's first one is read again, and where a tile is missing the last one:
 * those sums are not used. */
template <int TILES, int GROUPS>
DEVICE_CODE team_source<TILES, GROUPS> team_source_of(const linear_args &a, const team &t, int32_t first,
                                                      int32_t count) {
  team_source<TILES, GROUPS> s;
  linear_slot slot = {};
  DEVICE_UNROLL
  for (int32_t i = 0; i < 2; i++) {
    slot = linear_slot_at<OPS_BF16>(a, (t.unit + t.thread / TEAM_CHUNKS + GROUPS / 2 * i) * a.parts + t.part);
    if (!slot.group) slot = linear_slot_at<OPS_BF16>(a, t.part);
    s.weights[i] = slot.group + (size_t)slot.first * TEAM_GROUP_BYTES + t.thread % TEAM_CHUNKS * 16;
  }
  const size_t stride = (size_t)(a.columns / OPS_BLOCK) * TILE_BYTES;
  const int32_t tile = first / CUDA_TILE_ROWS, last = cuda_tile_rows(count) - 1;
  DEVICE_UNROLL
  for (int32_t i = 0; i < s.TURNS; i++) {
    const int32_t own = t.thread / DEVICE_LANES + GROUPS * i;
    s.tiles[i] = (const uint8_t *)a.input.tiles + (size_t)(tile + (own < last ? own : last)) * stride +
                 slot.first * TILE_BYTES + t.thread % DEVICE_LANES * 16;
  }
  s.weights_left = s.tiles_left = slot.end - slot.first;
  return s;
}

DEVICE_CODE void team_copy(bool there, uint8_t *to, const uint8_t *from) {
  if (there)
    device_copy_16(to, from);
  else
    device_store(to, uint4{});
}

/* Begin to copy what the next block of the part has. Behind its last block are zeros, which add nothing. */
template <int TILES, int GROUPS>
DEVICE_CODE void team_copy_weights(const team &t, team_source<TILES, GROUPS> &s, uint8_t *stage) {
  const int32_t chunk = t.thread % TEAM_CHUNKS;
  uint8_t *to = stage + t.thread / TEAM_CHUNKS * TEAM_GROUP_BYTES + chunk / 32 * LINEAR_STEP_BYTES +
                linear_chunk_at<OPS_BF16>(chunk % 32) * 16;
  const bool there = s.weights_left-- > 0;
  DEVICE_UNROLL
  for (int32_t i = 0; i < 2; i++) {
    team_copy(there, to + GROUPS / 2 * i * TEAM_GROUP_BYTES, s.weights[i]);
    s.weights[i] += TEAM_GROUP_BYTES;
  }
}

template <int TILES, int GROUPS>
DEVICE_CODE void team_copy_tiles(const team &t, team_source<TILES, GROUPS> &s, uint8_t *stage) {
  const bool there = s.tiles_left-- > 0;
  if (TILES < GROUPS && t.thread >= TILES * DEVICE_LANES) return;
  DEVICE_UNROLL
  for (int32_t i = 0; i < s.TURNS; i++) {
    team_copy(there, stage + GROUPS * TEAM_GROUP_BYTES + (i * GROUPS * DEVICE_LANES + t.thread) * 16,
              s.tiles[i]);
    s.tiles[i] += TILE_BYTES;
  }
}

/* Do the four warps of a team multiply together? */
template <int GROUPS> constexpr bool team_together = DEVICE_TEAMS &&GROUPS == 4;

/* Begins to add a block: with the products of a team, or of each warp by itself. */
template <int TILES, int GROUPS> DEVICE_CODE void team_add(const uint8_t *block, float acc[TILES][4]) {
  const uint8_t *tiles = block + GROUPS * TEAM_GROUP_BYTES;
  if constexpr (team_together<GROUPS>) {
    constexpr int32_t chunk = TILE_BYTES / (OPS_BLOCK / CUDA_BF16_CHUNK);
    DEVICE_UNROLL
    for (int32_t s = 0; s < 2; s++)
      device_team_multiply<TILES>(acc,
                                  device_team_factor(block + s * LINEAR_STEP_BYTES, TEAM_GROUP_BYTES,
                                                     LINEAR_STEP_BYTES / 2, TEAM_SWIZZLE_32),
                                  device_team_factor(tiles + s * 2 * chunk, chunk, TILE_BYTES, TEAM_PLAIN));
  } else {
    const int32_t warp = (int32_t)threadIdx.x / DEVICE_LANES % GROUPS,
                  lane = (int32_t)threadIdx.x % DEVICE_LANES;
    const linear_steps w = linear_steps_at(block + warp * TEAM_GROUP_BYTES);
    DEVICE_UNROLL
    for (int32_t i = 0; i < TILES; i++) {
      uint32_t x[4]; /* of each chunk */
      device_load_rows(x, tiles + i * TILE_BYTES + lane * 16);
      device_multiply_bf16(acc[i], w.a[0], x[0], x[1]);
      device_multiply_bf16(acc[i], w.a[1], x[2], x[3]);
    }
  }
}

template <int TILES, int GROUPS>
DEVICE_CODE void team_copy_stage(const team &t, team_source<TILES, GROUPS> &s, uint8_t *stage, bool weights) {
  DEVICE_UNROLL
  for (int32_t i = 0; i < LINEAR_TEAM_BLOCKS; i++, stage += linear_team_block(TILES, GROUPS)) {
    if (weights) team_copy_weights<TILES, GROUPS>(t, s, stage);
    team_copy_tiles<TILES, GROUPS>(t, s, stage);
  }
}

/* Until the oldest stage of a ring of so many is there. */
DEVICE_CODE void team_wait_for_stage(int32_t depth) {
  if (depth >= 6)
    device_copies_wait<4>();
  else if (depth == 5)
    device_copies_wait<3>();
  else if (depth == 4)
    device_copies_wait<2>();
  else if (depth == 3)
    device_copies_wait<1>();
  else
    device_copies_wait<0>();
}

/* Leaves the sums [slots][rows][OPS_GROUP] in place of the rings. The weights of the first stages are on
 * their way. */
template <int TILES, int GROUPS>
DEVICE_CODE float *team_sums(const linear_args &a, const team &t, team_source<TILES, GROUPS> &s,
                             uint8_t *memory) {
  constexpr int32_t bytes = linear_team_block(TILES, GROUPS), stage = LINEAR_TEAM_BLOCKS * bytes;
  constexpr bool together = team_together<GROUPS>;
  float acc[TILES][4] = {};
  const int32_t all = a.columns / OPS_BLOCK, longest = (all + a.parts - 1) / a.parts, depth = a.stream.depth;
  uint8_t *reading = t.ring, *writing = t.ring, *const end = t.ring + depth * stage;
  DEVICE_NO_UNROLL
  for (; writing + stage < end; writing += stage) {
    team_copy_stage<TILES, GROUPS>(t, s, writing, false);
    device_copies_end();
  }
  if constexpr (together) device_team_wait<TILES>(acc);
  DEVICE_NO_UNROLL
  for (int32_t block = 0; block < longest; block += LINEAR_TEAM_BLOCKS) {
    team_wait_for_stage(depth);
    if constexpr (together) device_team_publish(), device_team_wait<TILES>(acc);
    __syncthreads();
    team_copy_stage<TILES, GROUPS>(t, s, writing, true);
    device_copies_end();
    if constexpr (together) device_team_begin();
    DEVICE_UNROLL
    for (int32_t i = 0; i < LINEAR_TEAM_BLOCKS; i++) team_add<TILES, GROUPS>(reading + i * bytes, acc);
    if constexpr (together) device_team_end();
    writing = reading;
    reading = reading + stage < end ? reading + stage : t.ring;
  }
  if constexpr (together) device_team_wait<TILES>(acc);
  device_copies_wait<0>();
  __syncthreads();
  float *sums = (float *)memory;
  const int32_t slot = (t.unit + t.thread / DEVICE_LANES) * a.parts + t.part;
  linear_put_steps<TILES, TILES * CUDA_TILE_ROWS>(acc, sums + slot * TILES * CUDA_TILE_ROWS * OPS_GROUP);
  __syncthreads();
  return sums;
}

template <int TILES, int GROUPS>
static __global__ void __launch_bounds__(LINEAR_TEAMS *GROUPS *DEVICE_LANES, TILES == 1 ? 2 : 1)
    linear_bf16(const __grid_constant__ linear_args a) {
  CUDA_SHARED(memory);
  constexpr int32_t rows_max = TILES * CUDA_TILE_ROWS, block = linear_team_block(TILES, GROUPS);
  const int32_t first = (int32_t)blockIdx.x * rows_max, ring = a.stream.depth * LINEAR_TEAM_BLOCKS * block;
  const int32_t left = linear_row_count(a.rows) - first, count = left < rows_max ? left : rows_max;
  const team t = team_of<GROUPS>(a, memory + (int32_t)threadIdx.x / (GROUPS * DEVICE_LANES) * ring);
  team_source<TILES, GROUPS> s = {};
  if (count > 0) {
    s = team_source_of<TILES, GROUPS>(a, t, first, count);
    DEVICE_NO_UNROLL
    for (int32_t i = 0; i < ring - LINEAR_TEAM_BLOCKS * block; i += block)
      team_copy_weights<TILES, GROUPS>(t, s, t.ring + i);
  }
  device_wait_for_previous();
  device_let_next_begin();
  if (count <= 0) return;
  linear_finish_rows(a, {0, a.units}, team_sums<TILES, GROUPS>(a, t, s, memory), rows_max, first, count,
                     (int32_t)blockDim.x);
}

linear_kernel *linear_bf16_kernel(int32_t tiles, int32_t groups) {
  switch (tiles) {
  case 1:
    return groups == 2 ? linear_bf16<1, 2> : linear_bf16<1, 4>;
  case 2:
    return groups == 2 ? linear_bf16<2, 2> : linear_bf16<2, 4>;
  case 4:
    return linear_bf16<4, 4>;
  case 8:
    return linear_bf16<8, 4>;
  default:
    return linear_bf16<LINEAR_BF16_TILES, 4>;
  }
}
