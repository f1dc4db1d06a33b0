/* linear.cu - which kernels a linear is made of, and how they are cut into blocks. */
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

#include <assert.h>

constexpr int32_t THREADS_MIN = 128;     /* of an int8 block */
constexpr int32_t FEW_GROUPS = 264;      /* up to here each gets a block of its own, which makes its tiles */
constexpr int32_t RING_BYTES = 64 << 10; /* of a block at most */
constexpr int32_t SHARED_BYTES =
    96 << 10; /* likewise; every GPU from compute capability 8.0 on has so many */

constexpr int32_t TEAM_DEPTH = 6;        /* stages of a team's ring at most */
constexpr int32_t TEAM_SHARED_TILES = 4; /* from so many on teams may share them */

constexpr int32_t STREAM_DEPTH = 8;         /* stages of a warp's ring */
constexpr int32_t TILES_WARPS_LEAST = 8;    /* that are to be left where tiles lie in shared memory */
constexpr int32_t TILES_SHARED = 100 << 10; /* where tiles are read through the cache, which has the rest */
constexpr int32_t TILES_WARPS = 16;         /* likewise */
constexpr int32_t WIDE_TILES = 8;           /* of rows of a block at most */
constexpr int32_t WIDE_WARPS_LEAST = 8; /* that are worth more than that their sums share what they read */
constexpr int32_t WIDE_BLOCKS = 96;     /* of weights, one after the other, that are worth such a block */
constexpr int32_t STREAM_ROWS = 16;     /* of two types; of one type, one tile */
/* Blocks of weights of a group that a processor must get for streams to pay. */
constexpr int32_t STREAM_BLOCKS = 32;
constexpr int32_t STREAM_CHAIN_BLOCKS = 10; /* where sums have one part, and rows are few */
constexpr int32_t TERMS_BLOCKS = 18;        /* of weights, one after the other, that warps had better share */
constexpr int32_t TERMS_PARTED_ROWS = 2;    /* where sums have four parts, for so many rows at most */

static int32_t smaller(int32_t a, int32_t b) {
  return a < b ? a : b;
}

static int32_t larger(int32_t a, int32_t b) {
  return a > b ? a : b;
}

static int32_t pieces(int32_t of, int32_t each) {
  return (of + each - 1) / each;
}

/* The parts of sums of such a weight (ops.h). */
static int32_t parts_of(const cuda_weight &w) {
  return w.rows <= OPS_PARTED_OUTPUTS && w.columns >= OPS_PARTED_INPUTS ? LINEAR_PARTS : 1;
}

static int32_t groups_of(const cuda_weight &w) {
  return (w.rows + OPS_GROUP - 1) / OPS_GROUP;
}

static linear_matrix matrix_of(const cuda_linear_job &job, int32_t first_group, linear_role role) {
  return {(const uint8_t *)job.w.data, job.y, job.bias, job.w.rows, first_group, role, job.add};
}

/* --- int8 --- */

/* Units that a block sums: more where there are so many groups that each processor gets several blocks. */
static int32_t int8_units(const linear_args &a, ops_type type) {
  if (a.swiglu) return 2;
  int32_t units = a.groups <= FEW_GROUPS ? 1 : a.groups <= 4 * FEW_GROUPS ? 4 / a.parts : 8 / a.parts;
  while (units > 1 && units * a.parts * linear_ring_bytes(type) > RING_BYTES) units /= 2;
  return units > 1 ? units : 1;
}

/* Blocks for a tile of rows. */
static int32_t blocks_of(const linear_args &a) {
  return a.swiglu ? a.groups : (a.groups + a.units - 1) / a.units;
}

/* Tiles of rows that a block computes: one where all blocks then run at once, because a block makes the int8
 * form of its rows. */
static int32_t int8_tiles(const linear_args &a) {
  const int32_t row_tiles = cuda_tile_rows(a.rows.bucket);
  return row_tiles > 1 && row_tiles * blocks_of(a) > LAUNCH_BLOCKS_AT_ONCE ? 2 : 1;
}

/* Several where there is one part of so few blocks that each slice holds its own (linear_int8.cu). */
static int32_t int8_slices(linear_args a, ops_type type, int32_t tiles) {
  const int32_t blocks = a.columns / OPS_BLOCK;
  if (!linear_int8_slices(type) || tiles > 1 || a.parts > 1 || a.units > 2 || a.groups > FEW_GROUPS) return 1;
  if (blocks < LINEAR_SLICES || blocks > LINEAR_SLICES * LINEAR_HELD) return 1;
  a.slices = LINEAR_SLICES;
  return linear_layout_of(linear_ring_bytes(type), tiles, a).bytes <= SHARED_BYTES ? LINEAR_SLICES : 1;
}

/* Of a's input, as weights of the type take it. */
static void prepare_tiles(cudaStream_t stream, const linear_args &a, ops_type type, cuda_tile *room,
                          int32_t across = 1) {
  const linear_input &in = a.input;
  rows_prepare(stream, {a.rows, in.x, in.weight, in.eps, a.columns, nullptr, room, type == OPS_BF16, across});
}

/* The blocks make their tiles themselves where they are few and have room; otherwise a kernel of its own
 * does. */
static void int8_input(cudaStream_t stream, linear_args *a, ops_type type, int32_t tiles, cuda_tile *room) {
  const int32_t rows = tiles * CUDA_TILE_ROWS, row_blocks = (a->rows.bucket + rows - 1) / rows;
  const bool few = blocks_of(*a) * row_blocks <= FEW_GROUPS;
  if (few && linear_layout_of(linear_ring_bytes(type), tiles, *a).bytes <= SHARED_BYTES) return;
  prepare_tiles(stream, *a, type, room);
  a->input = {nullptr, nullptr, 0.0f, room};
}

/* A warp for each slot, and where the block makes the int8 form of its rows, one for each chunk of them. */
static int32_t int8_threads(const linear_args &a, int32_t tiles) {
  const int32_t rows = smaller(a.rows.bucket, tiles * CUDA_TILE_ROWS), slots = a.units * a.parts * a.slices;
  const int32_t makers = a.input.x ? rows * activation_chunks(a.columns) : 0;
  return larger(THREADS_MIN,
                larger(slots * DEVICE_LANES, smaller(makers * DEVICE_LANES, LINEAR_THREADS_MAX)));
}

/* --- int8, weights as streams: a block for each processor --- */

static int32_t round_up(int32_t x, int32_t to) {
  return (x + to - 1) / to * to;
}

/* Blocks of weights in a stage of a stream. */
static int32_t stage_blocks(ops_type type) {
  const cpu_format f = weight_format_of(type);
  return f.sub ? (int32_t)cpu_unit_blocks(f) : LINEAR_STREAM_STAGE;
}

static int32_t stream_bytes(const linear_args &a, ops_type type, int32_t rows) {
  return linear_stream_layout_of(linear_stage_bytes(type), rows, a).bytes;
}

/* How many warps each of the blocks has, `warps` at most, and the deepest rings that fit `bytes` of shared
 * memory: fewer warps where there is no room for two stages each. False: there is none for the fewest. */
static bool plan_stream(linear_args *a, ops_type type, int32_t rows, int32_t blocks, int32_t warps,
                        int32_t bytes) {
  const int32_t span = a->parts * (a->swiglu ? 2 : 1);
  const int32_t slots = (a->groups + blocks - 1) / blocks * span;
  a->each = a->groups / blocks;
  a->more = a->groups % blocks;
  for (; warps >= span; warps /= 2) {
    const int32_t most = warps / span * span;
    a->stream.turns = (slots + most - 1) / most;
    a->stream.warps = round_up((slots + a->stream.turns - 1) / a->stream.turns, span);
    for (a->stream.depth = STREAM_DEPTH; a->stream.depth > 1; a->stream.depth--)
      if (stream_bytes(*a, type, rows) <= bytes) return true;
  }
  return false;
}

/* A warp for each slot that is summed at once, and for each chunk of the rows. */
static int32_t few_threads(const linear_args &a, int32_t rows) {
  const int32_t makers = smaller(rows * activation_chunks(a.columns), LINEAR_STREAM_WARPS);
  return larger(makers, a.stream.warps) * DEVICE_LANES;
}

/* What a launch takes, of each type. */
struct stream_plan {
  int32_t blocks, threads, bytes;
};

static int32_t few_rows(const linear_args &a) { /* as the kernels have it */
  return a.rows.bucket == 3 ? 4 : a.rows.bucket;
}

static bool plan_few(linear_args *a, ops_type type, int32_t blocks, stream_plan *p) {
  const int32_t rows = few_rows(*a);
  a->stream.form_bytes = rows * (type == OPS_BF16 ? LINEAR_FEW_BF16_FORM : LINEAR_FEW_FORM);
  if (rows > LINEAR_FEW_ROWS || !plan_stream(a, type, rows, blocks, LINEAR_STREAM_WARPS, launch_shared_max()))
    return false;
  *p = {blocks, few_threads(*a, rows), stream_bytes(*a, type, rows)};
  return true;
}

/* Where each block has one group, or one of gate and one of up, and long sums: may its warps share them? */
static bool terms_pay(const linear_args &a, int32_t blocks) {
  const int32_t most = a.parts == 1 ? LINEAR_FEW_ROWS : TERMS_PARTED_ROWS;
  return a.groups <= blocks && few_rows(a) <= most && a.columns / OPS_BLOCK / a.parts >= TERMS_BLOCKS;
}

/* False: it does not pay, or there is no room for the weights and terms of a block. */
static bool plan_terms(linear_args *a, ops_type type, int32_t blocks, stream_plan *p) {
  const int32_t rows = few_rows(*a), stages = pieces(a->columns / OPS_BLOCK, stage_blocks(type));
  if (!terms_pay(*a, blocks)) return false;
  a->units = a->swiglu ? 2 : 1;
  a->each = 1;
  a->stream.warps = smaller(LINEAR_STREAM_WARPS, a->units * stages);
  a->stream.form_bytes = rows * LINEAR_FEW_FORM;
  const int32_t weights = stages * linear_stage_bytes(type);
  *p = {a->groups, few_threads(*a, rows),
        linear_terms_layout_of(weight_format_of(type), weights, rows, *a).bytes};
  return p->bytes <= launch_shared_max();
}

/* The tiles are read where they are if they would leave too few warps. */
static bool plan_tiles(linear_args *a, ops_type type, int32_t blocks, cuda_tile *room, stream_plan *p) {
  const int32_t tiles = cuda_tile_rows(a->rows.bucket), rows = tiles * CUDA_TILE_ROWS;
  a->input = {nullptr, nullptr, 0.0f, room};
  a->stream.form_bytes = tiles * (int32_t)sizeof(cuda_tile);
  bool planned = plan_stream(a, type, rows, blocks, LINEAR_STREAM_WARPS, launch_shared_max());
  if (!planned || (a->stream.turns > 1 && a->stream.warps < TILES_WARPS_LEAST)) {
    a->stream.form_bytes = 0;
    planned = plan_stream(a, type, rows, blocks, TILES_WARPS, smaller(TILES_SHARED, launch_shared_max()));
  }
  *p = {blocks, a->stream.warps * DEVICE_LANES, planned ? stream_bytes(*a, type, rows) : 0};
  return planned;
}

static bool launch_few(cudaStream_t stream, linear_args a, ops_type type) {
  stream_plan p;
  if (!plan_few(&a, type, smaller(a.groups, launch_processors()), &p)) return false;
  launch_early(linear_few_kernel(type, few_rows(a)), dim3((unsigned)p.blocks), dim3((unsigned)p.threads),
               (size_t)p.bytes, stream, a);
  return true;
}

static bool launch_terms(cudaStream_t stream, linear_args a, ops_type type) {
  stream_plan p;
  if (!plan_terms(&a, type, launch_processors(), &p)) return false;
  launch_early(linear_terms_kernel(type, few_rows(a)), dim3((unsigned)p.blocks), dim3((unsigned)p.threads),
               (size_t)p.bytes, stream, a);
  return true;
}

static bool launch_tiles(cudaStream_t stream, linear_args a, ops_type type, cuda_tile *room) {
  const linear_args before = a;
  stream_plan p;
  if (a.rows.bucket > CUDA_TILE_ROWS ||
      !plan_tiles(&a, type, smaller(a.groups, launch_processors()), room, &p))
    return false;
  prepare_tiles(stream, before, type, room);
  launch_early(linear_tiles_kernel(type), dim3((unsigned)p.blocks), dim3((unsigned)p.threads),
               (size_t)p.bytes, stream, a);
  return true;
}

/* Small linears are done sooner by the blocks of linear_int8.cu; but not long chains of few rows. */
static bool large(const linear_args &a) {
  const int64_t groups = (int64_t)a.groups * (a.swiglu ? 2 : 1);
  const bool chains = a.parts == 1 && few_rows(a) <= LINEAR_FEW_ROWS;
  const int64_t each = chains ? STREAM_CHAIN_BLOCKS : STREAM_BLOCKS;
  return groups * (a.columns / OPS_BLOCK) >= each * launch_processors();
}

static bool streams(const linear_args &a) {
  return a.rows.bucket <= STREAM_ROWS && large(a);
}

/* --- int8, more than a few rows --- */

/* groups, tiles: of a warp's sums; blocks across outputs, and down rows. */
struct wide_plan {
  int32_t groups, tiles, across, down, bytes;
};

/* Tiles of rows that a block computes: a power of two. */
static int32_t wide_tiles(int32_t bucket) {
  int32_t tiles = 1;
  while (tiles < WIDE_TILES && tiles * CUDA_TILE_ROWS < bucket) tiles *= 2;
  return tiles;
}

/* What a warp sums: two groups and four tiles, of which each weight and each tile serves as many products as
 * there are registers for; less where a block has an odd number of units, or would have few warps. */
static void wide_warps(const linear_args &a, int32_t tiles, int32_t units, int32_t warps, wide_plan *p) {
  p->tiles = smaller(tiles, LINEAR_WIDE_TILES);
  const int32_t unit_warps = a.parts * (tiles / p->tiles);
  const bool single = units % 2 && tiles > 1 && units * unit_warps <= warps;
  p->groups = single ? 1 : 2;
  if (!single && p->tiles == LINEAR_WIDE_TILES && pieces(units, 2) * unit_warps < WIDE_WARPS_LEAST)
    p->tiles /= 2;
}

/* How `units` are summed by so many warps at most, in turns; false: there is no room for two stages. */
static bool wide_turns(linear_args *a, ops_type type, int32_t tiles, int32_t units, int32_t warps,
                       wide_plan *p) {
  a->sets = tiles / p->tiles;
  const int32_t unit_warps = a->parts * a->sets, most = warps / unit_warps * p->groups;
  if (most == 0) return false;
  a->units = round_up(pieces(units, pieces(units, most)), p->groups);
  a->stream.warps = a->units / p->groups * unit_warps;
  a->stream.turns = pieces(units, a->units);
  const int32_t rest = LINEAR_WIDE_BARRIERS + linear_wide_sums(p->tiles, *a),
                stage = linear_wide_stage(p->tiles, linear_wide_bytes(type), *a);
  a->stream.depth = smaller(LINEAR_WIDE_DEPTH, (launch_shared_max() - rest) / stage);
  p->bytes = rest + a->stream.depth * stage;
  return a->stream.depth >= 2;
}

/* Fewer warps, and fewer rows but two tiles, where there is little shared memory. */
static bool plan_wide(linear_args *a, ops_type type, wide_plan *p) {
  for (int32_t tiles = wide_tiles(a->rows.bucket);; tiles /= 2) {
    p->down = pieces(a->rows.bucket, tiles * CUDA_TILE_ROWS);
    p->across = smaller(a->groups, larger(1, launch_processors() / p->down));
    a->each = a->groups / p->across;
    a->more = a->groups % p->across;
    const int32_t units = pieces(a->groups, p->across) * (a->swiglu ? 2 : 1);
    for (int32_t warps = LINEAR_WIDE_WARPS; warps >= WIDE_WARPS_LEAST; warps /= 2) {
      wide_warps(*a, tiles, units, warps, p);
      if (wide_turns(a, type, tiles, units, warps, p)) return true;
    }
    if (tiles <= 2) return false;
  }
}

/* Of one tile of rows only long sums: others are done sooner where each warp has a stream of its own. */
static bool wide_pays(const linear_args &a) {
  return a.rows.bucket > CUDA_TILE_ROWS || a.columns / OPS_BLOCK / a.parts * a.stream.turns >= WIDE_BLOCKS;
}

static bool launch_wide(cudaStream_t stream, linear_args a, ops_type type, cuda_tile *room) {
  const linear_args before = a;
  wide_plan p;
  if (a.rows.bucket <= LINEAR_FEW_ROWS || !large(a) || !plan_wide(&a, type, &p) || !wide_pays(a))
    return false;
  prepare_tiles(stream, before, type, room, p.tiles * a.sets);
  a.input = {nullptr, nullptr, 0.0f, room};
  launch_early(linear_wide_kernel(type, p.groups, p.tiles), dim3((unsigned)p.across, (unsigned)p.down),
               dim3((unsigned)((a.stream.warps + LINEAR_WIDE_COPIERS) * DEVICE_LANES)), (size_t)p.bytes,
               stream, a);
  return true;
}

/* --- int8, two types --- */

/* Bytes of a block of weights of a group. */
static int32_t block_bytes(ops_type type) {
  const cpu_format f = weight_format_of(type);
  return (int32_t)(cpu_unit_bytes(f) / cpu_unit_blocks(f));
}

/* How many processors the second of two types gets, so that the fullest block of all has the least to read.
 */
static int32_t second_share(const linear_args of[2], const ops_type type[2], int32_t processors) {
  int32_t best = 1, least = INT32_MAX;
  for (int32_t second = 1; second < processors; second++) {
    const int32_t most = larger(pieces(of[0].groups, processors - second) * block_bytes(type[0]),
                                pieces(of[1].groups, second) * block_bytes(type[1]));
    if (most < least) best = second, least = most;
  }
  return best;
}

static void launch_both(cudaStream_t stream, linear_pair pair, linear_pair_kernel *kernel,
                        const stream_plan p[2]) {
  pair.of[1].first_block = p[0].blocks;
  launch_early(kernel, dim3((unsigned)(p[0].blocks + p[1].blocks)),
               dim3((unsigned)larger(p[0].threads, p[1].threads)), (size_t)larger(p[0].bytes, p[1].bytes),
               stream, pair);
}

static bool launch_pair_terms(cudaStream_t stream, linear_pair pair, const ops_type type[2]) {
  const int32_t rest = launch_processors() - pair.of[0].groups;
  linear_pair_kernel *kernel = linear_terms_pair_kernel(type[0], type[1], few_rows(pair.of[0]));
  stream_plan p[2];
  if (!kernel || !plan_terms(&pair.of[0], type[0], pair.of[0].groups, &p[0]) ||
      !plan_terms(&pair.of[1], type[1], rest, &p[1]))
    return false;
  launch_both(stream, pair, kernel, p);
  return true;
}

/* Two types at once. False: nothing is launched. */
static bool launch_pair(cudaStream_t stream, const linear_args of[2], const ops_type type[2],
                        cuda_tile *room) {
  const int32_t processors = launch_processors();
  linear_pair pair = {{of[0], of[1]}};
  linear_args both = of[0];
  stream_plan p[2];
  both.groups += of[1].groups;
  if (launch_pair_terms(stream, pair, type)) return true;
  if (!streams(both) || processors < 2) return false;
  const bool few = few_rows(both) <= LINEAR_FEW_ROWS;
  linear_pair_kernel *kernel =
      few ? linear_few_pair_kernel(type[0], type[1], few_rows(both))
          : linear_tiles_pair_kernel(type[0], type[1], cuda_tile_rows(both.rows.bucket));
  if (!kernel) return false;
  const int32_t second = second_share(of, type, processors);
  for (int32_t i = 0; i < 2; i++) {
    const int32_t blocks = smaller(of[i].groups, i ? second : processors - second);
    if (!(few ? plan_few(&pair.of[i], type[i], blocks, &p[i])
              : plan_tiles(&pair.of[i], type[i], blocks, room, &p[i])))
      return false;
  }
  if (!few) prepare_tiles(stream, of[0], type[0], room);
  launch_both(stream, pair, kernel, p);
  return true;
}

/* --- int8: which of these --- */

static void launch_int8(cudaStream_t stream, linear_args a, ops_type type, cuda_tile *room) {
  if (launch_wide(stream, a, type, room)) return;
  if (launch_terms(stream, a, type)) return;
  if (streams(a) && (launch_few(stream, a, type) || launch_tiles(stream, a, type, room))) return;
  a.units = int8_units(a, type);
  a.each = a.swiglu ? 1 : a.units;
  const int32_t tiles = int8_tiles(a), rows = tiles * CUDA_TILE_ROWS;
  a.slices = int8_slices(a, type, tiles);
  int8_input(stream, &a, type, tiles, room);
  const int32_t bytes = linear_layout_of(linear_ring_bytes(type), tiles, a).bytes;
  launch_early(linear_int8_kernel(type, tiles),
               dim3((unsigned)blocks_of(a), (unsigned)((a.rows.bucket + rows - 1) / rows)),
               dim3((unsigned)int8_threads(a, tiles)), (size_t)bytes, stream, a);
}

/* --- BF16 weights of class bf16-t25 --- */

/* Blocks across outputs, where each has so many units. */
static int32_t team_blocks(const linear_args &a, int32_t units) {
  return pieces(a.groups * (a.swiglu ? 2 : 1), units);
}

/* Are parts whole stages, one after the other? */
static bool may_take_turns(const linear_args &a) {
  return a.parts > 1 && a.columns / OPS_BLOCK % (LINEAR_PARTS * LINEAR_TEAM_BLOCKS) == 0;
}

/* Units of outputs that a block sums. */
static int32_t team_units(const linear_args &a, const linear_teams &t) {
  return t.teams * t.groups / (t.in_turn ? 1 : a.parts);
}

/* What a processor brings to shared memory for each block of inputs, for all its blocks of the grid. */
static int32_t team_traffic(const linear_args &a, const linear_teams &t) {
  const int32_t units = team_units(a, t), down = pieces(a.rows.bucket, t.tiles * CUDA_TILE_ROWS);
  return pieces(team_blocks(a, units) * down, launch_processors()) * linear_team_block(t.tiles, units);
}

/* The teams of many rows: each with tiles of its own, or sharing them, whichever brings less. Queries, keys
 * and values take long to finish, for which a block shall have many threads. */
static linear_teams share_tiles(const linear_args &a, linear_teams t) {
  linear_teams sharing = t;
  if (a.parts == 1) t.teams = 1;
  sharing.in_turn = a.parts > 1;
  sharing.teams = sharing.shared = sharing.in_turn ? LINEAR_TEAMS_IN_TURN : LINEAR_TEAMS;
  sharing.depth = LINEAR_TEAM_BEHIND + 1;
  if (sharing.in_turn && (!may_take_turns(a) || a.store.angles)) return t;
  if (linear_team_bytes(sharing) > launch_shared_max()) return t;
  return team_traffic(a, sharing) < team_traffic(a, t) ? sharing : t;
}

/* All rows of up to LINEAR_BF16_TILES tiles, as far as two stages have room. Where blocks are few, those of a
 * few rows have half the outputs; where they are many, a processor has two of those of one tile. */
static linear_teams plan_teams(const linear_args &a) {
  linear_teams t = {1, LINEAR_TEAM_GROUPS, LINEAR_TEAMS, 1, 2, false};
  const int32_t processors = launch_processors();
  while (t.tiles < LINEAR_BF16_TILES && t.tiles * CUDA_TILE_ROWS < a.rows.bucket &&
         linear_team_bytes({2 * t.tiles, t.groups, t.teams, 1, 2, false}) <= launch_shared_max())
    t.tiles *= 2;
  if (t.tiles >= TEAM_SHARED_TILES)
    t = share_tiles(a, t);
  else if (a.parts == 1 && team_blocks(a, LINEAR_TEAMS * LINEAR_TEAM_GROUPS) < processors)
    t.teams = 1;
  const int32_t count = team_blocks(a, team_units(a, t));
  if (t.tiles <= 2 && count * 3 / 2 < processors) t.groups /= 2;
  const int32_t room = t.tiles == 1 && count > processors ? launch_shared_max() / 2 : launch_shared_max();
  linear_teams deeper = t;
  while (++deeper.depth <= TEAM_DEPTH && linear_team_bytes(deeper) <= room) t.depth = deeper.depth;
  return t;
}

static void launch_teams(cudaStream_t stream, linear_args a, cuda_tile *room) {
  const linear_teams t = plan_teams(a);
  prepare_tiles(stream, a, OPS_BF16, room);
  a.input = {nullptr, nullptr, 0.0f, room};
  a.units = team_units(a, t);
  if (t.in_turn) a.parts = 1;
  a.each = a.swiglu ? a.units / 2 : a.units;
  a.rows_first = true;
  a.stream.depth = t.depth;
  launch_early(
      linear_bf16_kernel(t),
      dim3((unsigned)pieces(a.rows.bucket, t.tiles * CUDA_TILE_ROWS), (unsigned)pieces(a.groups, a.each)),
      dim3((unsigned)(t.teams * t.groups * DEVICE_LANES)), (size_t)linear_team_bytes(t), stream, a);
}

static void launch_bf16(cudaStream_t stream, const linear_args &a, cuda_tile *room) {
  if (!launch_few(stream, a, OPS_BF16)) launch_teams(stream, a, room);
}

/* --- f32 --- */

static void launch_f32(cudaStream_t stream, linear_args a, ops_type type, float *room) {
  const int32_t rows = LINEAR_F32_ROWS;
  if (a.input.weight) {
    cuda_norm(stream, a.rows, {a.input.x, a.input.weight, a.input.eps}, a.columns, room);
    a.input = {room, nullptr, 0.0f, nullptr};
  }
  a.units = a.swiglu ? 2 : LINEAR_F32_SLOTS / a.parts / 2;
  a.each = a.swiglu ? 1 : a.units;
  const int32_t slots = a.units * a.parts, blocks = a.swiglu ? a.groups : (a.groups + a.units - 1) / a.units;
  launch_early(linear_f32_kernel(type), dim3((unsigned)blocks, (unsigned)((a.rows.bucket + rows - 1) / rows)),
               dim3((unsigned)(slots * OPS_GROUP)), (size_t)(slots * rows * OPS_GROUP) * sizeof(float),
               stream, a);
}

/* --- what the device calls --- */

static void launch(cudaStream_t stream, const linear_args &a, ops_type type, const cuda_act &x) {
  if (x.tiles && x.bf16 && type == OPS_BF16)
    launch_bf16(stream, a, x.tiles);
  else if (x.tiles && linear_int8_kernel(type, 1))
    launch_int8(stream, a, type, x.tiles);
  else
    launch_f32(stream, a, type, x.f32);
}

static linear_input input_of(const cuda_norm_source *norm, const cuda_act &x) {
  if (norm) return {norm->x, norm->weight, norm->eps, nullptr};
  return {x.f32, nullptr, 0.0f, nullptr};
}

static linear_args args_of(cuda_rows rows, const cuda_norm_source *norm, const cuda_act &x,
                           const cuda_weight &w) {
  linear_args a = {};
  a.rows = rows;
  a.input = input_of(norm, x);
  a.columns = x.columns;
  a.parts = parts_of(w);
  a.units = a.each = a.slices = 1;
  return a;
}

/* Of the jobs, how many the first kernel takes: those of one type, whose sums have as many parts. */
static int32_t jobs_alike(const cuda_linear_job *jobs, int32_t count) {
  int32_t n = 1;
  while (n < count && jobs[n].w.type == jobs[0].w.type && parts_of(jobs[n].w) == parts_of(jobs[0].w)) n++;
  return n;
}

void cuda_linear(cudaStream_t stream, cuda_rows rows, const cuda_linear_job *jobs, int32_t count,
                 const cuda_norm_source *norm, const cuda_store *store, cuda_act x) {
  static const linear_role roles[] = {LINEAR_QUERY, LINEAR_KEY, LINEAR_VALUE};
  linear_args runs[CUDA_JOBS_MAX]; /* of jobs that are alike */
  ops_type types[CUDA_JOBS_MAX];
  int32_t run_count = 0;
  assert(count <= CUDA_JOBS_MAX && (!store || count == sizeof roles / sizeof *roles));
  for (int32_t first = 0, n; first < count; first += n) {
    n = jobs_alike(jobs + first, count - first);
    linear_args a = args_of(rows, norm, x, jobs[first].w);
    a.matrices = n;
    if (store) a.store = *store;
    for (int32_t i = 0; i < n; i++) {
      const cuda_linear_job &job = jobs[first + i];
      assert(job.w.columns == x.columns);
      a.matrix[i] = matrix_of(job, a.groups, store ? roles[first + i] : LINEAR_PLAIN);
      a.groups += groups_of(job.w);
    }
    types[run_count] = jobs[first].w.type;
    runs[run_count++] = a;
  }
  for (int32_t i = 0; i < run_count; i++) {
    if (x.tiles && i + 1 < run_count && launch_pair(stream, runs + i, types + i, x.tiles))
      i++;
    else
      launch(stream, runs[i], types[i], x);
  }
}

void cuda_linear_swiglu(cudaStream_t stream, cuda_rows rows, cuda_weight gate, cuda_weight up,
                        const cuda_norm_source *norm, cuda_act x, float *y) {
  assert(gate.type == up.type && gate.rows == up.rows && gate.columns == up.columns);
  linear_args a = args_of(rows, norm, x, gate);
  a.groups = groups_of(gate);
  a.matrices = 2;
  a.swiglu = true;
  a.matrix[0] = matrix_of({gate, y, false, nullptr}, 0, LINEAR_PLAIN);
  a.matrix[1] = matrix_of({up, nullptr, false, nullptr}, 0, LINEAR_PLAIN);
  launch(stream, a, gate.type, x);
}
