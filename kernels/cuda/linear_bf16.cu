/* linear_bf16.cu - linears of BF16 weights and more than a few rows, whose tiles another kernel has made.
 *
 * A block has teams of warps. A team sums one part of GROUPS groups of outputs, or where sums have one part,
 * groups of its own, for TILES tiles of rows: a warp has a group. Weights and tiles come to a ring in shared
 * memory, two blocks of inputs a stage. SHARED teams have one ring: where they sum the same inputs, a tile
 * serves them all; so two teams may do that take all parts, one after the other. On compute capability 9.0
 * four warps multiply together, with both factors in shared memory. */
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

/* The teams of a ring, as one. In what copies, GROUPS is the number of all their groups. */
struct team {
  int32_t thread;     /* of them */
  int32_t unit, part; /* of their first group, and which part of them they sum */
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
template <int TILES, int GROUPS, int SHARED>
DEVICE_CODE void team_add(const uint8_t *block, float acc[TILES][4]) {
  const uint8_t *tiles = block + SHARED * GROUPS * TEAM_GROUP_BYTES;
  block += (int32_t)threadIdx.x / (GROUPS * DEVICE_LANES) % SHARED * (GROUPS * TEAM_GROUP_BYTES);
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

/* What a kernel is made for. */
template <int TILES_, int GROUPS_, int SHARED_ = 1, bool IN_TURN_ = false> struct team_plan {
  static constexpr int TILES = TILES_, GROUPS = GROUPS_, SHARED = SHARED_, ALL = GROUPS * SHARED;
  static constexpr bool IN_TURN = IN_TURN_, TOGETHER = team_together<GROUPS>;
  static constexpr int32_t TEAMS = IN_TURN ? SHARED : LINEAR_TEAMS; /* of a block at most */
  static constexpr int32_t BLOCK = linear_team_block(TILES, ALL), STAGE = LINEAR_TEAM_BLOCKS * BLOCK;
  /* Stages of a ring that are not on their way: the one that is multiplied, and one before it that may still
   * be. */
  static constexpr int32_t BEHIND = SHARED > 1 ? LINEAR_TEAM_BEHIND : 1;
};

/* Until the oldest of so many stages that were on their way is there. */
DEVICE_CODE void team_wait_for_stage(int32_t count) {
  if (count >= 5)
    device_copies_wait<4>();
  else if (count == 4)
    device_copies_wait<3>();
  else if (count == 3)
    device_copies_wait<2>();
  else if (count == 2)
    device_copies_wait<1>();
  else
    device_copies_wait<0>();
}

template <int TILES> struct team_acc { float of[TILES][4]; };

template <int TILES> DEVICE_CODE void team_acc_add(team_acc<TILES> &to, const team_acc<TILES> &x) {
  DEVICE_UNROLL
  for (int32_t i = 0; i < TILES; i++) {
    DEVICE_UNROLL
    for (int32_t k = 0; k < 4; k++) to.of[i][k] += x.of[i][k];
  }
}

/* The sums of parts that come in turn: (p0 + p1) + (p2 + p3). */
template <int TILES> struct team_parts {
  team_acc<TILES> first, pair;
  DEVICE_CODE void end(int32_t part, team_acc<TILES> &acc) {
    if (part % 2 == 0) {
      first = acc;
    } else {
      team_acc_add(acc, first);
      if (part == 1) pair = acc;
      if (part == 3) team_acc_add(acc, pair);
    }
    if (part < 3) acc = {};
  }
};

/* How far a ring is. */
struct team_ring {
  uint8_t *reading, *writing, *begin, *end;
};

DEVICE_CODE uint8_t *team_next(const team_ring &r, uint8_t *stage, int32_t bytes) {
  return stage + bytes < r.end ? stage + bytes : r.begin;
}

/* Adds the next `count` blocks of inputs. */
template <class P>
DEVICE_CODE void team_add_blocks(const linear_args &a, const team &t, team_source<P::TILES, P::ALL> &s,
                                 team_ring &r, int32_t count, team_acc<P::TILES> &acc) {
  DEVICE_NO_UNROLL
  for (int32_t block = 0; block < count; block += LINEAR_TEAM_BLOCKS) {
    team_wait_for_stage(a.stream.depth - P::BEHIND);
    if constexpr (P::TOGETHER) device_team_publish(), device_team_wait<P::TILES, P::BEHIND - 1>(acc.of);
    __syncthreads();
    team_copy_stage<P::TILES, P::ALL>(t, s, r.writing, true);
    device_copies_end();
    if constexpr (P::TOGETHER) device_team_begin();
    DEVICE_UNROLL
    for (int32_t i = 0; i < LINEAR_TEAM_BLOCKS; i++)
      team_add<P::TILES, P::GROUPS, P::SHARED>(r.reading + i * P::BLOCK, acc.of);
    if constexpr (P::TOGETHER) device_team_end();
    r.writing = team_next(r, r.writing, P::STAGE);
    r.reading = team_next(r, r.reading, P::STAGE);
  }
  if constexpr (P::TOGETHER) device_team_wait<P::TILES, 0>(acc.of);
}

/* Leaves the sums [slots][rows][OPS_GROUP] in place of the rings. The weights of the first stages are on
 * their way. Teams with a ring of their own overwrite the stage that they have multiplied before; those that
 * share one the stage before that, so that products go on meanwhile. */
template <class P>
DEVICE_CODE float *team_sums(const linear_args &a, const team &t, team_source<P::TILES, P::ALL> &s,
                             uint8_t *memory) {
  team_acc<P::TILES> acc = {};
  const int32_t blocks = a.columns / OPS_BLOCK, longest = (blocks + a.parts - 1) / a.parts;
  team_ring r = {t.ring, t.ring, t.ring, t.ring + a.stream.depth * P::STAGE};
  DEVICE_NO_UNROLL
  for (; r.writing + P::BEHIND * P::STAGE < r.end; r.writing += P::STAGE) {
    team_copy_stage<P::TILES, P::ALL>(t, s, r.writing, false);
    device_copies_end();
  }
  if constexpr (P::TOGETHER) device_team_wait<P::TILES, 0>(acc.of);
  if constexpr (P::IN_TURN) {
    team_parts<P::TILES> parts = {};
    DEVICE_NO_UNROLL
    for (int32_t part = 0; part < LINEAR_PARTS; part++) {
      team_add_blocks<P>(a, t, s, r, blocks / LINEAR_PARTS, acc);
      parts.end(part, acc);
    }
  } else {
    team_add_blocks<P>(a, t, s, r, longest, acc);
  }
  device_copies_wait<0>();
  __syncthreads();
  float *sums = (float *)memory;
  const int32_t slot = (t.unit + t.thread / DEVICE_LANES) * a.parts + t.part;
  linear_put_steps<P::TILES, P::TILES * CUDA_TILE_ROWS>(acc.of,
                                                        sums + slot * P::TILES * CUDA_TILE_ROWS * OPS_GROUP);
  __syncthreads();
  return sums;
}

template <class P>
static __global__ void __launch_bounds__(P::TEAMS *P::GROUPS *DEVICE_LANES, P::TILES == 1 ? 2 : 1)
    linear_bf16(const __grid_constant__ linear_args a) {
  CUDA_SHARED(memory);
  constexpr int32_t rows_max = P::TILES * CUDA_TILE_ROWS;
  const int32_t first = (int32_t)blockIdx.x * rows_max, ring = a.stream.depth * P::STAGE;
  const int32_t left = linear_row_count(a.rows) - first, count = left < rows_max ? left : rows_max;
  const team t = team_of<P::ALL>(a, memory + (int32_t)threadIdx.x / (P::ALL * DEVICE_LANES) * ring);
  team_source<P::TILES, P::ALL> s = {};
  if (count > 0) {
    s = team_source_of<P::TILES, P::ALL>(a, t, first, count);
    DEVICE_NO_UNROLL
    for (int32_t i = 0; i < ring - P::BEHIND * P::STAGE; i += P::BLOCK)
      team_copy_weights<P::TILES, P::ALL>(t, s, t.ring + i);
  }
  device_wait_for_previous();
  device_let_next_begin();
  if (count <= 0) return;
  linear_finish_rows(a, {0, a.units}, team_sums<P>(a, t, s, memory), rows_max, first, count,
                     (int32_t)blockDim.x);
}

template <int TILES> static linear_kernel *kernel_of_many(const linear_teams &t) {
  constexpr int groups = LINEAR_TEAM_GROUPS;
  return t.in_turn      ? linear_bf16<team_plan<TILES, groups, LINEAR_TEAMS_IN_TURN, true>>
         : t.shared > 1 ? linear_bf16<team_plan<TILES, groups, LINEAR_TEAMS>>
                        : linear_bf16<team_plan<TILES, groups>>;
}

template <int TILES> static linear_kernel *kernel_of_few(const linear_teams &t) {
  return t.groups == 2 ? linear_bf16<team_plan<TILES, 2>> : linear_bf16<team_plan<TILES, 4>>;
}

linear_kernel *linear_bf16_kernel(const linear_teams &t) {
  switch (t.tiles) {
  case 1:
    return kernel_of_few<1>(t);
  case 2:
    return kernel_of_few<2>(t);
  case 4:
    return kernel_of_many<4>(t);
  case 8:
    return kernel_of_many<8>(t);
  default:
    return kernel_of_many<LINEAR_BF16_TILES>(t);
  }
}
