/* linear.cuh - what the kernels of linears share: which part of which matrix a thread sums, and what becomes
 * of the sums.
 *
 * A block computes `units` groups of OPS_GROUP outputs for some rows: consecutive groups of all matrices, or
 * with SwiGLU one group of gate and the same of up. A unit's sums are made by `parts` slots (ops.h), each of
 * which is a warp (int8) or 16 threads (f32); they meet in shared memory. */
#pragma once

#include "kernels/cuda/weights.cuh"

constexpr int32_t LINEAR_PARTS = 4;

struct linear_matrix {
  const uint8_t *data;
  float *y;
  const float *bias;
  int32_t rows, first_group; /* first_group: of those of all matrices */
  bool add;
};

struct linear_input {
  const float *x;      /* f32, what the tiles are made of; NULL: the tiles are there */
  const float *weight; /* not NULL: of the norm that x goes through first */
  float eps;
  cuda_tile *tiles; /* int8: [..][columns / OPS_BLOCK] */
};

struct linear_args {
  cuda_rows rows;
  linear_input input;
  int32_t columns, parts, units, groups, matrices;
  bool swiglu;
  linear_matrix matrix[CUDA_JOBS_MAX];
};

/* What a slot sums: blocks [first, end) of a group. */
struct linear_slot {
  const uint8_t *group; /* NULL: nothing */
  int32_t first, end;
};

/* The group of a unit of this block; -1: the last block has fewer. */
DEVICE_CODE int32_t linear_group(const linear_args &a, int32_t unit, int32_t *matrix) {
  if (a.swiglu) {
    *matrix = unit;
    return (int32_t)blockIdx.x;
  }
  const int32_t group = (int32_t)blockIdx.x * a.units + unit;
  if (group >= a.groups) return -1;
  *matrix = 0;
  while (*matrix + 1 < a.matrices && group >= a.matrix[*matrix + 1].first_group) ++*matrix;
  return group - a.matrix[*matrix].first_group;
}

template <ops_type TYPE> DEVICE_CODE linear_slot linear_slot_at(const linear_args &a, int32_t slot) {
  int32_t matrix, part = slot % a.parts, blocks = (a.columns + OPS_BLOCK - 1) / OPS_BLOCK;
  const int32_t group = linear_group(a, slot / a.parts, &matrix);
  if (group < 0) return {nullptr, 0, 0};
  return {a.matrix[matrix].data + (size_t)group * weights<TYPE>::group_bytes(a.columns),
          blocks * part / a.parts, blocks * (part + 1) / a.parts};
}

/* The sum of a unit's parts, whose sums lie `stride` apart. */
DEVICE_CODE float linear_sum(const float *part, int32_t parts, int32_t stride) {
  if (parts == 1) return part[0];
  return (part[0] + part[stride]) + (part[2 * stride] + part[3 * stride]);
}

/* sums [slots][rows_max][OPS_GROUP] of all threads of the block; writes rows [first, first + rows). */
DEVICE_CODE void linear_finish(const linear_args &a, const float *sums, int32_t rows_max, int32_t first,
                               int32_t rows) {
  const int32_t stride = rows_max * OPS_GROUP, units = a.swiglu ? 1 : a.units;
  for (int32_t i = (int32_t)threadIdx.x; i < units * rows * OPS_GROUP; i += (int32_t)blockDim.x) {
    const int32_t lane = i % OPS_GROUP, row = i / OPS_GROUP % rows, unit = i / OPS_GROUP / rows;
    int32_t matrix;
    const int32_t group = linear_group(a, unit, &matrix), output = group * OPS_GROUP + lane;
    if (group < 0 || output >= a.matrix[matrix].rows) continue;
    const float *part = sums + unit * a.parts * stride + row * OPS_GROUP + lane;
    const linear_matrix &m = a.matrix[matrix];
    float *y = m.y + (size_t)(first + row) * (size_t)m.rows + (size_t)output;
    float value = linear_sum(part, a.parts, stride);
    if (a.swiglu) value = cpu_silu(value) * linear_sum(part + a.parts * stride, a.parts, stride);
    if (m.add) value = *y + value;
    if (m.bias) value = value + m.bias[output];
    *y = value;
  }
}

/* The rows there are. */
DEVICE_CODE int32_t linear_row_count(const cuda_rows &rows) {
  return rows.head ? rows.batch->head_count : rows.batch->row_count;
}

/* --- int8: a block's shared memory --- */

constexpr int32_t LINEAR_STAGES = 3; /* of a warp's ring of weights */

struct linear_layout { /* where things begin */
  int32_t ring, tiles, rows, scales, sums, bytes;
};

PORTABLE linear_layout linear_layout_of(int32_t stage_bytes, int32_t tiles, int32_t slots, int32_t columns,
                                        const linear_input &in) {
  const int32_t rows = tiles * CUDA_TILE_ROWS, blocks = columns / OPS_BLOCK;
  linear_layout at = {};
  at.tiles = slots * LINEAR_STAGES * stage_bytes;
  at.rows = at.tiles + (in.x ? tiles * blocks * (int32_t)sizeof(cuda_tile) : 0);
  at.scales = at.rows + (in.weight ? rows * columns * (int32_t)sizeof(float) : 0);
  at.sums = at.scales + rows * (int32_t)sizeof(float);
  at.bytes = at.sums + slots * rows * OPS_GROUP * (int32_t)sizeof(float);
  return at;
}

/* Kernels by type; NULL where there is none. The int8 ones take one or two tiles of rows a block. */
typedef void linear_kernel(const linear_args);
linear_kernel *linear_int8_kernel(ops_type type, int32_t tiles);
linear_kernel *linear_f32_kernel(ops_type type);
int32_t linear_stage_bytes(ops_type type); /* of an int8 kernel */

constexpr int32_t LINEAR_F32_ROWS = 8;   /* of a block */
constexpr int32_t LINEAR_F32_SLOTS = 16; /* at most */
