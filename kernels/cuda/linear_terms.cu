/* linear_terms.cu - linears of a few rows with a group, or one of gate and one of up, for each block of the
 * grid, in which a warp for each sum would leave most warps idle.
 *
 * All warps share the weights, a stage at a time, and leave what each block of weights adds to each sum: its
 * terms. Then a thread for each sum adds these in their order. */
#include "kernels/cuda/few_rows.cuh"

/* --- terms --- */

/* Of a block of a group: of each row a and b [OPS_GROUP], and c and d likewise if they are ALL there; then c
 * [OPS_GROUP] of MINIMA of one scale. */
template <ops_type TYPE, int ROWS> struct terms_format {
  static constexpr cpu_format F = weight_format_of(TYPE);
  static constexpr bool ALL = F.minima && F.sub == 16, MINIMA = F.minima && !ALL;
  static constexpr int32_t ROW = OPS_GROUP * (ALL ? 4 : 2);
  static constexpr int32_t FLOATS = linear_terms_floats(F, ROWS);
};

template <ops_type TYPE, int ROWS>
DEVICE_CODE void terms_leave(const few_weights &w, const few_form *forms, few_lane l, float *terms) {
  using format = terms_format<TYPE, ROWS>;
  DEVICE_UNROLL
  for (int32_t r = 0; r < ROWS; r++) {
    const linear_term t = few_term<TYPE>(w, few_form_at(forms + r, l.half));
    float *to = terms + r * format::ROW + 2 * l.output;
    if (l.half == 0) device_store(to, float2{t.a, t.b});
    if (format::ALL && l.half == 1) device_store(to + 2 * OPS_GROUP, float2{t.c, t.d});
  }
  if (format::MINIMA && l.half == 1) terms[ROWS * format::ROW + l.output] = w.m;
}

/* COUNT blocks, which lie side by side in a stage. */
template <ops_type TYPE, int ROWS, int COUNT>
DEVICE_CODE void terms_leave_blocks(const uint8_t *head, const uint8_t *block, const few_form *forms,
                                    few_lane l, float *terms) {
  DEVICE_UNROLL
  for (int32_t i = 0; i < COUNT; i++)
    terms_leave<TYPE, ROWS>(few_weights_at<TYPE>(head, block + i * linear_format<TYPE>::BLOCK, l),
                            forms + i * ROWS, l, terms + i * terms_format<TYPE, ROWS>::FLOATS);
}

/* `count` blocks of a stage, from its first one on. */
template <ops_type TYPE, int ROWS>
DEVICE_CODE void terms_stage(const uint8_t *stage, int32_t count, const few_form *forms, few_lane l,
                             float *terms) {
  using format = linear_format<TYPE>;
  const uint8_t *block = stage + format::HEAD;
  DEVICE_NO_UNROLL
  for (; count >= LINEAR_AT_ONCE; count -= LINEAR_AT_ONCE) {
    terms_leave_blocks<TYPE, ROWS, LINEAR_AT_ONCE>(stage, block, forms, l, terms);
    block += LINEAR_AT_ONCE * format::BLOCK;
    forms += LINEAR_AT_ONCE * ROWS;
    terms += LINEAR_AT_ONCE * terms_format<TYPE, ROWS>::FLOATS;
  }
  DEVICE_NO_UNROLL
  for (; count > 0; count--) {
    terms_leave_blocks<TYPE, ROWS, 1>(stage, block, forms, l, terms);
    block += format::BLOCK;
    forms += ROWS;
    terms += terms_format<TYPE, ROWS>::FLOATS;
  }
}

/* COUNT terms of an output of a row, of blocks one after the other: ab, c: the first one's; d: what the form
 * has of it. */
template <ops_type TYPE, int ROWS, int COUNT>
DEVICE_CODE float terms_add(const float *ab, const float *c, const float *d, float acc) {
  using format = terms_format<TYPE, ROWS>;
  constexpr int32_t form = ROWS * (int32_t)(sizeof(few_form) / sizeof(float));
  linear_term t[COUNT];
  DEVICE_UNROLL
  for (int32_t i = 0; i < COUNT; i++) {
    const float2 one = device_load<float2>(ab + i * format::FLOATS);
    float2 two = {};
    if (format::ALL) two = device_load<float2>(ab + i * format::FLOATS + 2 * OPS_GROUP);
    if (format::MINIMA) two = {c[i * format::FLOATS], d[i * form]};
    t[i] = {one.x, one.y, two.x, two.y};
  }
  DEVICE_UNROLL
  for (int32_t i = 0; i < COUNT; i++) acc = few_add<TYPE>(t[i], acc);
  return acc;
}

constexpr int32_t TERMS_AT_ONCE = 8; /* that are loaded before they are added */

/* The sum of a row's blocks [first, end) of an output of a group. */
template <ops_type TYPE, int ROWS>
DEVICE_CODE float terms_sum(const float *terms, const few_form *forms, int32_t row, int32_t output,
                            int32_t first, int32_t end) {
  using format = terms_format<TYPE, ROWS>;
  const float *at = terms + first * format::FLOATS, *ab = at + row * format::ROW + 2 * output,
              *c = at + ROWS * format::ROW + output;
  const few_form *form = forms + first * ROWS + row;
  float acc = 0.0f;
  DEVICE_NO_UNROLL
  for (; end - first >= TERMS_AT_ONCE; first += TERMS_AT_ONCE) {
    acc = terms_add<TYPE, ROWS, TERMS_AT_ONCE>(ab, c, &form->sum, acc);
    ab += TERMS_AT_ONCE * format::FLOATS;
    c += TERMS_AT_ONCE * format::FLOATS;
    form += TERMS_AT_ONCE * ROWS;
  }
  DEVICE_NO_UNROLL
  for (; first < end; first++) {
    acc = terms_add<TYPE, ROWS, 1>(ab, c, &form->sum, acc);
    ab += format::FLOATS;
    c += format::FLOATS;
    form += ROWS;
  }
  return acc;
}

/* --- stages: those of all units lie in shared memory, and a warp has every `warps`th of them --- */

struct terms_walk {
  int32_t blocks, stages;      /* of a unit */
  int32_t units_on, stages_on; /* from one of the warp's stages to the next */
};

struct terms_cursor {
  int32_t unit, stage;
};

template <ops_type TYPE> DEVICE_CODE terms_walk terms_walk_of(const linear_args &a) {
  const int32_t blocks = a.columns / OPS_BLOCK,
                stages = (blocks + linear_format<TYPE>::STAGE - 1) / linear_format<TYPE>::STAGE;
  return {blocks, stages, a.stream.warps / stages, a.stream.warps % stages};
}

/* To the warp's next stage. */
DEVICE_CODE void terms_go_on(const terms_walk &walk, terms_cursor &c) {
  c.unit += walk.units_on;
  c.stage += walk.stages_on;
  if (c.stage >= walk.stages) c.stage -= walk.stages, c.unit++;
}

/* Blocks of a stage. */
template <ops_type TYPE> DEVICE_CODE int32_t terms_count(const terms_walk &walk, terms_cursor c) {
  const int32_t left = walk.blocks - c.stage * linear_format<TYPE>::STAGE;
  return left < linear_format<TYPE>::STAGE ? left : linear_format<TYPE>::STAGE;
}

template <ops_type TYPE>
DEVICE_CODE uint8_t *terms_at(uint8_t *memory, const terms_walk &walk, terms_cursor c) {
  return memory + (c.unit * walk.stages + c.stage) * linear_format<TYPE>::STAGE_BYTES;
}

/* Begins to copy the warp's stages. */
template <ops_type TYPE>
DEVICE_CODE void terms_copy(const linear_args &a, uint8_t *memory, int32_t lane, const terms_walk &walk,
                            terms_cursor c) {
  using format = linear_format<TYPE>;
  constexpr int32_t warp_bytes = DEVICE_LANES * 16;
  DEVICE_NO_UNROLL
  for (; c.unit < a.units; terms_go_on(walk, c)) {
    int32_t matrix;
    const int32_t group = linear_group(a, c.unit, &matrix);
    const int32_t bytes = format::HEAD + terms_count<TYPE>(walk, c) * format::BLOCK - lane * 16;
    const uint8_t *from = a.matrix[matrix].data + (size_t)group * weights<TYPE>::group_bytes(a.columns) +
                          (size_t)c.stage * format::STAGE_BYTES + lane * 16;
    uint8_t *to = terms_at<TYPE>(memory, walk, c) + lane * 16;
    DEVICE_UNROLL
    for (int32_t i = 0; i < format::STAGE_BYTES; i += warp_bytes)
      if (i < bytes) device_copy_16(to + i, from + i);
  }
  device_copies_end();
}

/* --- blocks --- */

/* The terms of the warp's stages, which are on their way. */
template <ops_type TYPE, int ROWS>
DEVICE_CODE void terms_make(const linear_args &a, uint8_t *memory, int32_t lane, const terms_walk &walk,
                            terms_cursor c, const few_form *forms, float *terms) {
  const few_lane l = {lane % OPS_GROUP, lane / OPS_GROUP};
  device_copies_wait<0>();
  __syncwarp();
  DEVICE_NO_UNROLL
  for (; c.unit < a.units; terms_go_on(walk, c)) {
    const int32_t block = c.stage * linear_format<TYPE>::STAGE;
    terms_stage<TYPE, ROWS>(terms_at<TYPE>(memory, walk, c), terms_count<TYPE>(walk, c), forms + block * ROWS,
                            l, terms + (c.unit * walk.blocks + block) * terms_format<TYPE, ROWS>::FLOATS);
  }
}

/* All sums [units][parts][ROWS][OPS_GROUP]. */
template <ops_type TYPE, int ROWS>
DEVICE_CODE void terms_sums(const linear_args &a, int32_t blocks, const few_form *forms, const float *terms,
                            float *sums) {
  const bool parted = a.parts > 1;
  DEVICE_NO_UNROLL
  for (int32_t i = (int32_t)threadIdx.x; i < a.units * a.parts * ROWS * OPS_GROUP; i += (int32_t)blockDim.x) {
    const int32_t slot = i / (ROWS * OPS_GROUP), unit = parted ? slot >> 2 : slot, part = slot & 3;
    sums[i] = terms_sum<TYPE, ROWS>(terms + unit * blocks * terms_format<TYPE, ROWS>::FLOATS, forms,
                                    i / OPS_GROUP % ROWS, i % OPS_GROUP, parted ? blocks * part >> 2 : 0,
                                    parted ? blocks * (part + 1) >> 2 : blocks);
  }
}

template <ops_type TYPE, int ROWS> DEVICE_CODE void terms_run(const linear_args &a) {
  CUDA_SHARED(memory);
  const terms_walk walk = terms_walk_of<TYPE>(a);
  const linear_terms_layout at =
      linear_terms_layout_of(weight_format_of(TYPE), walk.stages * linear_format<TYPE>::STAGE_BYTES, ROWS, a);
  const int32_t warp = (int32_t)threadIdx.x / DEVICE_LANES, lane = (int32_t)threadIdx.x % DEVICE_LANES;
  terms_cursor first = {warp / walk.stages, warp % walk.stages};
  if (warp >= a.stream.warps) first.unit = a.units; /* it makes forms alone */
  terms_copy<TYPE>(a, memory, lane, walk, first);
  const int32_t rows = linear_row_count(a.rows), count = rows < ROWS ? rows : ROWS;
  const linear_units units = {0, a.units};
  const activation_walk chunks = activation_walk_of(a.columns);
  linear_output mine = linear_no_output();
  if (count > 0) mine = linear_output_at(a, units, (int32_t)threadIdx.x, ROWS, 0, count);
  const activation_rows input = linear_rows(a, 0, count);
  const activation_early early = activation_early_of(input, chunks);
  device_wait_for_previous();
  device_let_next_begin();
  if (count <= 0) return;
  const few_forms<TYPE> forms = {(few_form *)(memory + at.forms), ROWS};
  linear_output_load(a, mine);
  activation_forms(input, chunks, early, (float *)(memory + at.norm), forms);
  float *sums = (float *)(memory + at.sums), *terms = (float *)(memory + at.terms);
  terms_make<TYPE, ROWS>(a, memory, lane, walk, first, forms.forms, terms);
  __syncthreads();
  terms_sums<TYPE, ROWS>(a, walk.blocks, forms.forms, terms, sums);
  __syncthreads();
  linear_finish(a, units, sums, ROWS, 0, count, mine, true);
}

template <ops_type TYPE, int ROWS>
static __global__ void __launch_bounds__(LINEAR_STREAM_WARPS *DEVICE_LANES, 1)
    linear_terms(const __grid_constant__ linear_args a) {
  terms_run<TYPE, ROWS>(a);
}

template <ops_type FIRST, ops_type SECOND, int ROWS>
static __global__ void __launch_bounds__(LINEAR_STREAM_WARPS *DEVICE_LANES, 1)
    linear_terms_pair(const __grid_constant__ linear_pair p) {
  if (linear_is_second(p))
    terms_run<SECOND, ROWS>(p.of[1]);
  else
    terms_run<FIRST, ROWS>(p.of[0]);
}

/* --- which --- */

template <ops_type TYPE> static linear_kernel *terms_kernel(int32_t rows) {
  return rows == 1 ? linear_terms<TYPE, 1> : rows == 2 ? linear_terms<TYPE, 2> : linear_terms<TYPE, 4>;
}

linear_kernel *linear_terms_kernel(ops_type type, int32_t rows) {
#define KERNEL(name, TYPE, ...)                                                                              \
  case OPS_##TYPE:                                                                                           \
    return terms_kernel<OPS_##TYPE>(rows);
  switch (type) {
    CPU_FORMATS(KERNEL)
  default:
    return nullptr;
  }
#undef KERNEL
}

template <ops_type FIRST, ops_type SECOND> static linear_pair_kernel *terms_pair_kernel(int32_t rows) {
  return rows == 1   ? linear_terms_pair<FIRST, SECOND, 1>
         : rows == 2 ? linear_terms_pair<FIRST, SECOND, 2>
                     : linear_terms_pair<FIRST, SECOND, 4>;
}

linear_pair_kernel *linear_terms_pair_kernel(ops_type first, ops_type second, int32_t rows) {
#define KERNEL(FIRST, SECOND)                                                                                \
  if (first == OPS_##FIRST && second == OPS_##SECOND)                                                        \
    return terms_pair_kernel<OPS_##FIRST, OPS_##SECOND>(rows);
  LINEAR_PAIRS(KERNEL)
#undef KERNEL
  return nullptr;
}
