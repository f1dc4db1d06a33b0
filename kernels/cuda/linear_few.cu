/* linear_few.cu - linears of a few rows, whose int8 or bf16 form each block of the grid makes for itself.
 *
 * A warp sums a slot. BF16 weights are multiplied by a tensor core. */
#include "kernels/cuda/few_rows.cuh"

/* --- the bf16 form --- */

/* The bf16 form of a block of a row: word 4 j + 2 s + h has its inputs 16 s + 8 h + 2 j and the next one. */
struct few_bf16_form {
  alignas(16) uint32_t words[OPS_BLOCK / 2];
};

static_assert(sizeof(few_form) == LINEAR_FEW_FORM, "the layout has room for it");
static_assert(sizeof(few_bf16_form) == LINEAR_FEW_BF16_FORM, "the layout has room for it");

template <> struct few_forms<OPS_BF16> {
  typedef few_bf16_form form;
  form *forms;
  int32_t rows;
  DEVICE_CODE void put(bool there, int32_t row, int32_t block, int32_t quarter, const float v[8]) const {
    uint32_t *words = forms[block * rows + row].words + quarter;
    DEVICE_UNROLL
    for (int32_t i = 0; i < ACTIVATION_EACH / 2; i++)
      if (there) words[4 * i] = device_bf16_pair(v[2 * i], v[2 * i + 1]);
  }
};

/* --- quantised weights --- */

template <ops_type TYPE, int ROWS>
DEVICE_CODE void few_add_rows(const few_weights &w, const few_form *forms, int32_t half, float acc[ROWS]) {
  DEVICE_UNROLL
  for (int32_t r = 0; r < ROWS; r++) {
    const few_form f = few_form_at(forms + r, half);
    acc[r] = few_add<TYPE>(few_term<TYPE>(w, f), acc[r]);
  }
}

/* COUNT blocks, which lie side by side in a stage. */
template <ops_type TYPE, int ROWS, int COUNT>
DEVICE_CODE void few_add_blocks(const uint8_t *head, const uint8_t *block, const few_form *forms, few_lane l,
                                float acc[ROWS]) {
  DEVICE_UNROLL
  for (int32_t i = 0; i < COUNT; i++) {
    const few_weights w = few_weights_at<TYPE>(head, block + i * linear_format<TYPE>::BLOCK, l);
    few_add_rows<TYPE, ROWS>(w, forms + i * ROWS, l.half, acc);
  }
}

/* What the slot has in a stage. */
template <ops_type TYPE, int ROWS>
DEVICE_CODE void few_stage(const linear_cursor &p, const uint8_t *stage, const few_form *forms, few_lane l,
                           float acc[ROWS]) {
  using format = linear_format<TYPE>;
  const linear_part part = linear_part_of<TYPE>(p);
  const uint8_t *block = stage + format::HEAD + part.first * format::BLOCK;
  const few_form *form = forms + (p.block + part.first) * ROWS;
  int32_t left = part.end - part.first;
  DEVICE_NO_UNROLL
  for (; left >= LINEAR_AT_ONCE; left -= LINEAR_AT_ONCE) {
    few_add_blocks<TYPE, ROWS, LINEAR_AT_ONCE>(stage, block, form, l, acc);
    block += LINEAR_AT_ONCE * format::BLOCK;
    form += LINEAR_AT_ONCE * ROWS;
  }
  DEVICE_NO_UNROLL
  for (; left > 0; left--) {
    few_add_blocks<TYPE, ROWS, 1>(stage, block, form, l, acc);
    block += format::BLOCK;
    form += ROWS;
  }
}

/* COUNT blocks of BF16 weights. A column of the product is a row; those beyond ROWS are the last one again.
 */
template <int ROWS, int COUNT>
DEVICE_CODE void few_add_bf16(const uint8_t *block, const few_bf16_form *forms, int32_t lane, float acc[4]) {
  const int32_t row = lane / 4 < ROWS ? lane / 4 : ROWS - 1;
  DEVICE_UNROLL
  for (int32_t i = 0; i < COUNT; i++) {
    const linear_steps w = linear_steps_at(block + i * linear_format<OPS_BF16>::BLOCK);
    const uint4 x = device_load<uint4>(forms[i * ROWS + row].words + 4 * (lane % 4));
    device_multiply_bf16(acc, w.a[0], x.x, x.y);
    device_multiply_bf16(acc, w.a[1], x.z, x.w);
  }
}

/* The same of BF16 weights. */
template <int ROWS>
DEVICE_CODE void few_stage_bf16(const linear_cursor &p, const uint8_t *stage, const few_bf16_form *forms,
                                int32_t lane, float acc[4]) {
  using format = linear_format<OPS_BF16>;
  const linear_part part = linear_part_of<OPS_BF16>(p);
  const few_bf16_form *form = forms + p.block * ROWS;
  if (part.end == format::STAGE) {
    few_add_bf16<ROWS, format::STAGE>(stage, form, lane, acc);
    return;
  }
  DEVICE_NO_UNROLL
  for (int32_t i = 0; i < part.end; i++)
    few_add_bf16<ROWS, 1>(stage + i * format::BLOCK, form + i * ROWS, lane, acc);
}

template <int ROWS>
DEVICE_CODE void few_slot(const linear_args &a, const linear_warp &t, linear_cursor &next,
                          linear_cursor &reading, const few_bf16_form *forms, float *sums) {
  float acc[1][4] = {};
  linear_read_slot<OPS_BF16>(a, t, next, reading, [&](const uint8_t *stage) {
    few_stage_bf16<ROWS>(reading, stage, forms, t.lane, acc[0]);
  });
  linear_put_steps<1, ROWS>(acc, sums);
}

/* Sums the slot of a turn, to sums [ROWS][OPS_GROUP]. */
template <ops_type TYPE, int ROWS>
DEVICE_CODE void few_slot(const linear_args &a, const linear_warp &t, linear_cursor &next,
                          linear_cursor &reading, const few_form *forms, float *sums) {
  const few_lane l = {t.lane % OPS_GROUP, t.lane / OPS_GROUP};
  float acc[ROWS] = {};
  linear_read_slot<TYPE>(a, t, next, reading,
                         [&](const uint8_t *stage) { few_stage<TYPE, ROWS>(reading, stage, forms, l, acc); });
  for (int32_t r = 0; r < ROWS; r++)
    if (l.half == 0) sums[r * OPS_GROUP + l.output] = acc[r];
}

template <ops_type TYPE, int ROWS> DEVICE_CODE void few_run(const linear_args &a) {
  CUDA_SHARED(memory);
  const linear_stream_layout at = linear_stream_layout_of(linear_format<TYPE>::STAGE_BYTES, ROWS, a);
  const int32_t index = (int32_t)threadIdx.x / DEVICE_LANES;
  const linear_warp warp = {memory + index * at.ring_each, index, (int32_t)threadIdx.x % DEVICE_LANES};
  const bool sums_slots = index < a.stream.warps;
  linear_cursor reading = {}, next = {};
  if (sums_slots) linear_begin<TYPE>(a, warp, next);
  const int32_t rows = linear_row_count(a.rows), count = rows < ROWS ? rows : ROWS;
  const activation_walk walk = activation_walk_of(a.columns);
  const int32_t units = a.stream.warps / a.parts;
  linear_output mine = linear_no_output();
  if (count > 0) mine = linear_output_at(a, {0, units}, (int32_t)threadIdx.x, ROWS, 0, count);
  const activation_rows input = linear_rows(a, 0, count);
  const activation_early early = activation_early_of(input, walk);
  device_wait_for_previous();
  device_let_next_begin();
  if (count <= 0) return;
  const few_forms<TYPE> forms = {(typename few_forms<TYPE>::form *)(memory + at.forms), ROWS};
  linear_output_load(a, mine);
  activation_forms(input, walk, early, (float *)(memory + at.norm), forms);
  float *sums = (float *)(memory + at.sums);
  DEVICE_NO_UNROLL
  for (int32_t turn = 0; turn < a.stream.turns; turn++) {
    float *own = sums + index * ROWS * OPS_GROUP;
    if constexpr (TYPE == OPS_BF16) {
      if (sums_slots) few_slot<ROWS>(a, warp, next, reading, forms.forms, own);
    } else {
      if (sums_slots) few_slot<TYPE, ROWS>(a, warp, next, reading, forms.forms, own);
    }
    __syncthreads();
    linear_finish(a, {turn * units, units}, sums, ROWS, 0, count, mine, turn == 0);
    __syncthreads();
  }
}

template <ops_type TYPE, int ROWS>
static __global__ void __launch_bounds__(LINEAR_STREAM_WARPS *DEVICE_LANES, 1)
    linear_few(const __grid_constant__ linear_args a) {
  few_run<TYPE, ROWS>(a);
}

template <ops_type FIRST, ops_type SECOND, int ROWS>
static __global__ void __launch_bounds__(LINEAR_STREAM_WARPS *DEVICE_LANES, 1)
    linear_few_pair(const __grid_constant__ linear_pair p) {
  if (linear_is_second(p))
    few_run<SECOND, ROWS>(p.of[1]);
  else
    few_run<FIRST, ROWS>(p.of[0]);
}

template <ops_type TYPE> static linear_kernel *few_kernel(int32_t rows) {
  return rows == 1 ? linear_few<TYPE, 1> : rows == 2 ? linear_few<TYPE, 2> : linear_few<TYPE, 4>;
}

linear_kernel *linear_few_kernel(ops_type type, int32_t rows) {
#define KERNEL(name, TYPE, ...)                                                                              \
  case OPS_##TYPE:                                                                                           \
    return few_kernel<OPS_##TYPE>(rows);
  switch (type) {
    KERNEL(bf16, BF16, )
    CPU_FORMATS(KERNEL)
  default:
    return nullptr;
  }
#undef KERNEL
}

template <ops_type FIRST, ops_type SECOND> static linear_pair_kernel *few_pair_kernel(int32_t rows) {
  return rows == 1   ? linear_few_pair<FIRST, SECOND, 1>
         : rows == 2 ? linear_few_pair<FIRST, SECOND, 2>
                     : linear_few_pair<FIRST, SECOND, 4>;
}

linear_pair_kernel *linear_few_pair_kernel(ops_type first, ops_type second, int32_t rows) {
#define KERNEL(FIRST, SECOND)                                                                                \
  if (first == OPS_##FIRST && second == OPS_##SECOND) return few_pair_kernel<OPS_##FIRST, OPS_##SECOND>(rows);
  LINEAR_PAIRS(KERNEL)
#undef KERNEL
  return nullptr;
}
