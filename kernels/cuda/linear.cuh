/* linear.cuh - what the kernels of linears share: which part of which matrix a thread sums, and what becomes
 * of the sums.
 *
 * A block computes some groups of OPS_GROUP outputs, its units, for some rows: consecutive groups of all
 * matrices, or with SwiGLU each group of gate and the same of up. A unit's sums are made by `parts` slots
 * (ops.h), each of which is 16 threads (f32) or a warp (int8; of many rows a warp has one or two); they meet
 * in shared memory. Where weights are read as streams, a block has all groups that its processor gets, and
 * sums them in turns. Otherwise it has `units` of them, and several warps may share a slot, all those of the
 * block (linear_terms.cu) or a few with a slice each: these leave the terms, which are then added in their
 * order. */
#pragma once

#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/cache.cuh"
#include "kernels/cuda/weights.cuh"

constexpr int32_t LINEAR_PARTS = 4;

enum linear_role : int32_t { LINEAR_PLAIN, LINEAR_QUERY, LINEAR_KEY, LINEAR_VALUE };

struct linear_matrix {
  const uint8_t *data;
  float *y;
  const float *bias;
  int32_t rows, first_group; /* first_group: of those of all matrices */
  linear_role role;
  bool add;
};

struct linear_input {
  const float *x;      /* f32, what the tiles are made of; NULL: the tiles are there */
  const float *weight; /* not NULL: of the norm that x goes through first */
  float eps;
  cuda_tile *tiles; /* [..][columns / OPS_BLOCK], of BF16 weights cuda_bf16_tile; of linear_wide.cu in the
                       order of activations.cuh */
};

struct linear_args {
  cuda_rows rows;
  linear_input input;
  int32_t columns, parts, units, groups, matrices;
  int32_t each, more;  /* groups of a block; blocks that have one more */
  int32_t first_block; /* of the grid; others before it have another type */
  int32_t slices;      /* warps of a slot; int8 */
  int32_t sets;        /* warps that share the rows of a slot; linear_wide.cu */
  bool swiglu;
  bool rows_first;  /* blocks of the same weights are neighbours in the grid: x counts tiles of rows */
  cuda_store store; /* for the roles; angles NULL: all are plain */
  struct {
    int32_t warps, turns; /* the slots of a block: each warp sums one a turn, or two (linear_wide.cu), or
                             all share those of one turn (linear_terms.cu) */
    int32_t depth;        /* stages of a warp's ring, of a team's, or of the block's, 2 or more */
    int32_t form_bytes;   /* of a block of all rows in shared memory; 0: the tiles are read where they are */
  } stream;               /* linear_stream.cuh */
  linear_matrix matrix[CUDA_JOBS_MAX];
};

/* What a slot sums: blocks [first, end) of a group. */
struct linear_slot {
  const uint8_t *group; /* NULL: nothing */
  int32_t first, end;
};

/* The group of a unit of this block; -1: it has fewer. The first blocks have one more. */
DEVICE_CODE int32_t linear_group(const linear_args &a, int32_t unit, int32_t *matrix) {
  const int32_t block = (int32_t)(a.rows_first ? blockIdx.y : blockIdx.x) - a.first_block,
                more = block < a.more ? block : a.more;
  const int32_t at = a.swiglu ? unit / 2 : unit, group = block * a.each + more + at;
  if (at >= a.each + (block < a.more) || group >= a.groups) return -1;
  *matrix = a.swiglu ? unit % 2 : 0;
  if (a.swiglu) return group;
  DEVICE_NO_UNROLL
  while (*matrix + 1 < a.matrices && group >= a.matrix[*matrix + 1].first_group) ++*matrix;
  return group - a.matrix[*matrix].first_group;
}

template <ops_type TYPE> DEVICE_CODE linear_slot linear_slot_at(const linear_args &a, int32_t slot) {
  static_assert(LINEAR_PARTS == 4, "without divisions");
  int32_t matrix, blocks = (a.columns + OPS_BLOCK - 1) / OPS_BLOCK;
  const bool parted = a.parts > 1;
  const int32_t group = linear_group(a, parted ? slot >> 2 : slot, &matrix), part = slot & 3;
  if (group < 0) return {nullptr, 0, 0};
  return {a.matrix[matrix].data + (size_t)group * weights<TYPE>::group_bytes(a.columns),
          parted ? blocks * part >> 2 : 0, parted ? blocks * (part + 1) >> 2 : blocks};
}

/* The sum of a unit's parts, whose sums lie `stride` apart. */
DEVICE_CODE float linear_sum(const float *part, int32_t parts, int32_t stride) {
  if (parts == 1) return part[0];
  return (part[0] + part[stride]) + (part[2 * stride] + part[3 * stride]);
}

/* --- outputs: what a thread knows of one before the sums are there --- */

struct linear_units { /* of a block, that are finished together */
  int32_t first, count;
};

struct linear_output {
  int32_t matrix, row, output; /* matrix < 0: there is none */
  int32_t sum;                 /* index of its first part's sum */
  int32_t head, component;     /* of a query, key or value */
  int32_t slot;                /* the cache's row of a key or value */
  bool staged, rotated;
  float *y; /* of another role than a key or value */
  float before, bias, cosine, sine;
};

/* Where a row's key and value go. */
DEVICE_CODE void linear_find_slot(const linear_args &a, linear_output &o) {
  const cuda_batch *batch = a.rows.batch;
  const ops_row row = batch->rows[o.row];
  o.staged = row.path_count > 0;
  o.slot = cache_row_to_write(a.store.kv, *batch, row);
}

DEVICE_CODE linear_output linear_no_output() {
  linear_output o = {};
  o.matrix = -1;
  return o;
}

/* Output i of units [units.first, units.first + units.count) of the block, of rows [first, first + rows).
 * Reads the batch and weights alone. */
DEVICE_CODE linear_output linear_output_at(const linear_args &a, linear_units units, int32_t i,
                                           int32_t rows_max, int32_t first, int32_t rows) {
  const int32_t each = a.swiglu ? 2 : 1; /* units of an output */
  const int32_t lane = i % OPS_GROUP, row = i / OPS_GROUP % rows_max, unit = i / OPS_GROUP / rows_max * each;
  linear_output o = linear_no_output();
  if (row >= rows || unit >= units.count) return o;
  int32_t matrix, group = linear_group(a, units.first + unit, &matrix);
  if (group < 0 || group * OPS_GROUP + lane >= a.matrix[matrix].rows) return o;
  o.matrix = matrix;
  o.row = first + row;
  o.output = group * OPS_GROUP + lane;
  o.sum = (unit * a.parts * rows_max + row) * OPS_GROUP + lane;
  const linear_matrix &m = a.matrix[matrix];
  o.y = m.y + (size_t)o.row * (size_t)m.rows + (size_t)o.output;
  if (m.bias) o.bias = m.bias[o.output];
  if (m.role == LINEAR_PLAIN) return o;
  o.head = o.output / a.store.kv.head_dim;
  o.component = o.output % a.store.kv.head_dim;
  o.rotated = m.role != LINEAR_VALUE && o.component < a.store.dim;
  if (m.role != LINEAR_QUERY) linear_find_slot(a, o);
  return o;
}

/* What previous kernels wrote. */
DEVICE_CODE void linear_output_load(const linear_args &a, linear_output &o) {
  if (o.matrix < 0) return;
  if (a.matrix[o.matrix].add) o.before = *o.y;
  if (!o.rotated) return;
  const float *angles = a.store.angles + (size_t)o.row * 2 * (size_t)a.store.dim;
  o.cosine = angles[o.component];
  o.sine = angles[a.store.dim + o.component];
}

template <class T> DEVICE_CODE void linear_put_cached(const linear_args &a, const linear_output &o, float x) {
  const cuda_kv &kv = a.store.kv;
  const cache_area<T> area = cache_area_of<T>(kv, o.staged, a.store.layer, o.head);
  if (a.matrix[o.matrix].role == LINEAR_KEY)
    cache_store(area.keys + cache_key_at(kv, o.slot) + cache_component_at(o.component), x);
  else
    cache_store(area.values + cache_value_at(kv, o.slot) + (size_t)o.component, x);
}

DEVICE_CODE void linear_put(const linear_args &a, const linear_output &o, float value) {
  if (a.matrix[o.matrix].role < LINEAR_KEY)
    *o.y = value;
  else if (a.store.kv.type == OPS_KV_F16)
    linear_put_cached<uint16_t>(a, o, value);
  else
    linear_put_cached<float>(a, o, value);
}

/* part: of its first part's sum. */
DEVICE_CODE float linear_value(const linear_args &a, const linear_matrix &m, const float *part,
                               int32_t stride, float before, float bias) {
  float value = linear_sum(part, a.parts, stride);
  if (a.swiglu) value = cpu_silu(value) * linear_sum(part + a.parts * stride, a.parts, stride);
  if (m.add) value = before + value;
  if (m.bias) value = value + bias;
  return value;
}

/* Two outputs that are rotated together are those of neighbouring lanes. */
DEVICE_CODE void linear_write(const linear_args &a, const linear_output &o, const float *sums,
                              int32_t stride) {
  float value =
      o.matrix >= 0 ? linear_value(a, a.matrix[o.matrix], sums + o.sum, stride, o.before, o.bias) : 0.0f;
  if (a.store.angles) {
    const float other = __shfl_xor_sync(DEVICE_WARP, value, 1);
    if (o.rotated) value = fmaf(other, o.sine, value * o.cosine);
  }
  if (o.matrix >= 0) linear_put(a, o, value);
}

/* For the outputs after a thread's first: not twice in the code. */
static DEVICE_NO_INLINE linear_output linear_output_later(const linear_args &a, linear_units units, int32_t i,
                                                          int32_t rows_max, int32_t first, int32_t rows) {
  linear_output o = linear_output_at(a, units, i, rows_max, first, rows);
  linear_output_load(a, o);
  return o;
}

/* sums [slots of the units][rows_max][OPS_GROUP] of all threads of the block; writes rows [first, first +
 * rows). mine: output threadIdx.x of the units', where it is known. */
DEVICE_CODE void linear_finish(const linear_args &a, linear_units units, const float *sums, int32_t rows_max,
                               int32_t first, int32_t rows, linear_output mine, bool known) {
  const int32_t stride = rows_max * OPS_GROUP,
                count = units.count / (a.swiglu ? 2 : 1) * rows_max * OPS_GROUP;
  DEVICE_NO_UNROLL
  for (int32_t begin = 0; begin < count; begin += (int32_t)blockDim.x) {
    if (begin > 0 || !known)
      mine = linear_output_later(a, units, begin + (int32_t)threadIdx.x, rows_max, first, rows);
    linear_write(a, mine, sums, stride);
  }
}

/* --- the same for many rows --- */

constexpr int32_t LINEAR_OUTPUTS = 4; /* of a thread, that it finishes together */

/* The same output of another row. */
DEVICE_CODE linear_output linear_output_of(const linear_args &a, linear_output o, int32_t row,
                                           int32_t count) {
  if (row >= count) o.matrix = -1;
  if (o.matrix < 0) return o;
  o.sum += row * OPS_GROUP;
  o.y += (size_t)row * (size_t)a.matrix[o.matrix].rows;
  o.row += row;
  if (a.matrix[o.matrix].role >= LINEAR_KEY) linear_find_slot(a, o);
  linear_output_load(a, o);
  return o;
}

/* Every `step`th row from `row` on of an output that is no query, key or value. */
DEVICE_CODE void linear_finish_plain(const linear_args &a, const linear_output &o, const float *sums,
                                     int32_t stride, int32_t row, int32_t step, int32_t count) {
  const linear_matrix &m = a.matrix[o.matrix];
  const size_t apart = (size_t)step * (size_t)m.rows;
  const float *part = sums + o.sum + row * OPS_GROUP;
  float *y = o.y + (size_t)row * (size_t)m.rows;
  DEVICE_NO_UNROLL
  for (; row < count; row += LINEAR_OUTPUTS * step) {
    const int32_t there = (count - row + step - 1) / step;
    float before[LINEAR_OUTPUTS] = {};
    DEVICE_UNROLL for (int32_t k = 0; k < LINEAR_OUTPUTS; k++) if (m.add && k < there) before[k] =
        y[(size_t)k * apart];
    DEVICE_UNROLL for (int32_t k = 0; k < LINEAR_OUTPUTS; k++) if (k < there) y[(size_t)k * apart] =
        linear_value(a, m, part + k * step * OPS_GROUP, stride, before[k], o.bias);
    part += LINEAR_OUTPUTS * step * OPS_GROUP;
    y += LINEAR_OUTPUTS * apart;
  }
}

/* Rows [first, first + count) of units, by `threads` threads. What an output needs besides its sums is asked
 * for by several rows at once. */
DEVICE_CODE void linear_finish_rows(const linear_args &a, linear_units units, const float *sums,
                                    int32_t rows_max, int32_t first, int32_t count, int32_t threads) {
  const int32_t outputs = a.swiglu ? units.count / 2 : units.count, lane = (int32_t)threadIdx.x % OPS_GROUP,
                line = (int32_t)threadIdx.x / OPS_GROUP, step = threads / OPS_GROUP / outputs;
  const int32_t unit = line / step, row = line % step, stride = rows_max * OPS_GROUP;
  const linear_output base =
      linear_output_at(a, units, unit * rows_max * OPS_GROUP + lane, rows_max, first, 1);
  if (!a.store.angles) {
    if (base.matrix >= 0) linear_finish_plain(a, base, sums, stride, row, step, count);
    return;
  }
  DEVICE_NO_UNROLL
  for (int32_t begin = 0; begin < count; begin += LINEAR_OUTPUTS * step) {
    linear_output o[LINEAR_OUTPUTS];
    DEVICE_UNROLL for (int32_t k = 0; k < LINEAR_OUTPUTS; k++) o[k] =
        linear_output_of(a, base, begin + k * step + row, count);
    DEVICE_UNROLL for (int32_t k = 0; k < LINEAR_OUTPUTS; k++) linear_write(a, o[k], sums, stride);
  }
}

/* The rows there are. */
DEVICE_CODE int32_t linear_row_count(const cuda_rows &rows) {
  return rows.head ? rows.batch->head_count : rows.batch->row_count;
}

/* --- int8: a block's shared memory --- */

constexpr int32_t LINEAR_THREADS_MAX = 384;

constexpr int32_t LINEAR_SLICES = 4;          /* where there are several */
constexpr int32_t LINEAR_HELD = WEIGHT_STAGE; /* blocks of a slice at most */

/* What a block of weights adds to a sum of one row: fmaf(a, b, sum), and then fmaf(c, d, sum). */
struct linear_term {
  alignas(16) float a;
  float b, c, d;
};

/* Terms of a row: those of even outputs first, then those of odd ones, and a gap. So neither the threads that
 * leave terms nor those that add them meet in a bank. */
constexpr int32_t LINEAR_TERM_ROW = OPS_GROUP + 1;

/* Rows [first, first + count) of the input. */
DEVICE_CODE activation_rows linear_rows(const linear_args &a, int32_t first, int32_t count) {
  const linear_input &in = a.input;
  if (a.rows.head && in.weight)
    return {in.x, a.rows.batch->head_rows + first, count, a.columns, in.weight, in.eps};
  return {in.x + (size_t)first * (size_t)a.columns, nullptr, count, a.columns, in.weight, in.eps};
}

struct linear_layout { /* where things begin */
  int32_t ring, tiles, norm, sums, terms, bytes;
};

PORTABLE linear_layout linear_layout_of(int32_t ring_bytes, int32_t tiles, const linear_args &a) {
  const int32_t slots = a.units * a.parts, columns = a.columns;
  const linear_input &in = a.input;
  const int32_t rows = tiles * CUDA_TILE_ROWS, blocks = columns / OPS_BLOCK;
  linear_layout at = {};
  at.tiles = slots * a.slices * ring_bytes;
  at.norm = at.tiles + (in.x ? tiles * blocks * (int32_t)sizeof(cuda_tile) : 0);
  at.sums = at.norm + (in.weight ? rows * activation_sums_row(columns) * (int32_t)sizeof(float) : 0);
  at.terms = (at.sums + slots * rows * OPS_GROUP * (int32_t)sizeof(float) + 15) / 16 * 16;
  at.bytes = at.terms;
  if (a.slices > 1) at.bytes += slots * blocks * rows * LINEAR_TERM_ROW * (int32_t)sizeof(linear_term);
  return at;
}

/* --- int8, weights as streams (linear_stream.cuh) --- */

constexpr int32_t LINEAR_STREAM_STAGE = 4;   /* blocks, where there are no sub-scales */
constexpr int32_t LINEAR_STREAM_WARPS = 24;  /* of a block at most */
constexpr int32_t LINEAR_FEW_ROWS = 4;       /* of linear_few.cu and linear_terms.cu at most */
constexpr int32_t LINEAR_FEW_FORM = 48;      /* bytes of the int8 form of a block of a row there */
constexpr int32_t LINEAR_FEW_BF16_FORM = 64; /* of the bf16 form */

struct linear_stream_layout { /* where things begin; the rings do so at 0 */
  int32_t ring_each, forms, norm, sums, bytes;
};

PORTABLE linear_stream_layout linear_stream_layout_of(int32_t stage_bytes, int32_t rows,
                                                      const linear_args &a) {
  const bool norm = a.input.x && a.input.weight;
  linear_stream_layout at = {};
  at.ring_each = a.stream.depth * stage_bytes;
  at.forms = a.stream.warps * at.ring_each;
  at.sums = at.forms + a.columns / OPS_BLOCK * a.stream.form_bytes;
  at.norm = at.sums + a.stream.warps * rows * OPS_GROUP * (int32_t)sizeof(float);
  at.bytes = at.norm + (norm ? rows * activation_sums_row(a.columns) * (int32_t)sizeof(float) : 0);
  return at;
}

/* --- int8, terms (linear_terms.cu) --- */

/* Floats of the terms of a block of a group: a and b of each row; where minima have sub-scales, c and d too;
 * and otherwise c, which the weights alone make, as d is in the form of the row. */
PORTABLE constexpr int32_t linear_terms_floats(const cpu_format &f, int32_t rows) {
  const bool all = f.minima && f.sub == 16;
  return OPS_GROUP * (rows * (all ? 4 : 2) + (f.minima && !all ? 1 : 0));
}

struct linear_terms_layout { /* where things begin; the weights do so at 0 */
  int32_t forms, terms, sums, norm, bytes;
};

/* unit_weights: bytes. */
PORTABLE linear_terms_layout linear_terms_layout_of(const cpu_format &f, int32_t unit_weights, int32_t rows,
                                                    const linear_args &a) {
  const int32_t blocks = a.columns / OPS_BLOCK, floats = (int32_t)sizeof(float);
  linear_terms_layout at = {};
  at.forms = a.units * unit_weights;
  at.terms = at.forms + blocks * a.stream.form_bytes;
  at.sums = at.terms + a.units * blocks * linear_terms_floats(f, rows) * floats;
  at.norm = at.sums + a.units * a.parts * rows * OPS_GROUP * floats;
  at.bytes = at.norm + (a.input.weight ? rows * activation_sums_row(a.columns) * floats : 0);
  return at;
}

/* --- int8, many rows (linear_wide.cu) --- */

constexpr int32_t LINEAR_WIDE_WARPS = 16;     /* of a block at most, that sum */
constexpr int32_t LINEAR_WIDE_COPIERS = 4;    /* more warps, that copy */
constexpr int32_t LINEAR_WIDE_TILES = 4;      /* of a warp at most */
constexpr int32_t LINEAR_WIDE_STEP = 4;       /* blocks of each part in a stage */
constexpr int32_t LINEAR_WIDE_DEPTH = 8;      /* stages of a ring at most */
constexpr int32_t LINEAR_WIDE_BARRIERS = 256; /* bytes */

/* tiles: of a warp. slot_bytes: of the weights of a slot in a stage. */
PORTABLE int32_t linear_wide_stage(int32_t tiles, int32_t slot_bytes, const linear_args &a) {
  return a.parts * a.sets * tiles * LINEAR_WIDE_STEP * (int32_t)sizeof(cuda_tile) +
         a.units * a.parts * slot_bytes;
}

PORTABLE int32_t linear_wide_sums(int32_t tiles, const linear_args &a) { /* bytes */
  return a.units * a.parts * a.sets * tiles * CUDA_TILE_ROWS * OPS_GROUP * (int32_t)sizeof(float);
}

/* Two types of one launch: the blocks before of[1].first_block have the first. Q, k and v of most files named
 * Q4_K_M and Q5_K_M are such. */
#define LINEAR_PAIRS(X)                                                                                      \
  X(Q4_K, Q6_K)                                                                                              \
  X(Q5_0, Q8_0)                                                                                              \
  X(Q5_K, Q6_K)

struct linear_pair {
  linear_args of[2];
};

DEVICE_CODE bool linear_is_second(const linear_pair &p) {
  return (int32_t)blockIdx.x >= p.of[1].first_block;
}

/* --- BF16 weights, more than a few rows (linear_bf16.cu) --- */

constexpr int32_t LINEAR_TEAMS = 4;         /* of a block: for the parts of its groups, or for other groups */
constexpr int32_t LINEAR_TEAMS_IN_TURN = 2; /* where each takes all parts, one after the other */
constexpr int32_t LINEAR_TEAM_GROUPS = 4; /* of a team: a warp has one; or half as many, of up to two tiles */
constexpr int32_t LINEAR_BF16_TILES = 16; /* of rows of a block at most */
constexpr int32_t LINEAR_TEAM_BLOCKS = 2; /* of inputs, of a stage */
constexpr int32_t LINEAR_TEAM_BEHIND = 2; /* stages of a ring that teams share, which are not on their way */

/* Bytes of a block of a stage, of which the tiles come last. groups: of all teams of the ring. */
PORTABLE constexpr int32_t linear_team_block(int32_t tiles, int32_t groups) {
  return groups * OPS_BLOCK * OPS_GROUP * (int32_t)sizeof(uint16_t) + tiles * (int32_t)sizeof(cuda_bf16_tile);
}

/* Of a block of the grid. Teams that sum the same inputs share a ring, and so the tiles in it. */
struct linear_teams {
  int32_t tiles, groups, teams; /* groups: of a team */
  int32_t shared, depth;        /* teams of a ring, and its stages */
  bool in_turn;                 /* the parts of sums come one after the other */
};

/* Its rings, or its sums in their place. */
PORTABLE int32_t linear_team_bytes(const linear_teams &t) {
  const int32_t rings = t.teams / t.shared * t.depth * LINEAR_TEAM_BLOCKS *
                        linear_team_block(t.tiles, t.groups * t.shared),
                sums = t.teams * t.groups * t.tiles * CUDA_TILE_ROWS * OPS_GROUP * (int32_t)sizeof(float);
  return rings > sums ? rings : sums;
}

/* Kernels by type; NULL where there is none. */
typedef void linear_kernel(const linear_args);
typedef void linear_pair_kernel(const linear_pair);
linear_pair_kernel *linear_few_pair_kernel(ops_type first, ops_type second, int32_t rows);
linear_pair_kernel *linear_tiles_pair_kernel(ops_type first, ops_type second, int32_t tiles);
linear_kernel *linear_int8_kernel(ops_type type, int32_t tiles);
/* rows: 1, 2 or 4 */
linear_kernel *linear_few_kernel(ops_type type, int32_t rows);
linear_kernel *linear_terms_kernel(ops_type type, int32_t rows);
linear_pair_kernel *linear_terms_pair_kernel(ops_type first, ops_type second, int32_t rows);
linear_kernel *linear_tiles_kernel(ops_type type); /* of one tile of rows, which is there */
/* groups, tiles: of a warp: 1 and 2 or 4, or 2 and 1, 2 or 4; the tiles are there. */
linear_kernel *linear_wide_kernel(ops_type type, int32_t groups, int32_t tiles);
/* tiles: 1, 2, 4, 8 or 16; likewise. From 4 tiles on a ring may be shared by LINEAR_TEAMS teams of four
 * groups, or by LINEAR_TEAMS_IN_TURN whose parts come in turn: the sums have one part for all else. */
linear_kernel *linear_bf16_kernel(const linear_teams &t);
linear_kernel *linear_f32_kernel(ops_type type);
int32_t linear_ring_bytes(ops_type type);  /* of a warp of an int8 kernel */
int32_t linear_stage_bytes(ops_type type); /* of a stage of a stream */
int32_t linear_wide_bytes(ops_type type);  /* of a slot's weights of a stage there */
bool linear_int8_slices(ops_type type);    /* whether its kernel can slice */

constexpr int32_t LINEAR_F32_ROWS = 8;   /* of a block */
constexpr int32_t LINEAR_F32_SLOTS = 16; /* at most */
