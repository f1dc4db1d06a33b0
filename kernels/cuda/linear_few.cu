/* linear_few.cu - linears of a few rows, whose int8 or bf16 form each block of the grid makes for itself.
 *
 * A warp sums a slot. Of quantised weights two lanes have an output: each multiplies half of a block's
 * inputs, and they add their integers. BF16 weights are multiplied by a tensor core. */
#include "kernels/cuda/linear_stream.cuh"

/* --- the int8 form of a block of a row --- */

struct few_form {
  alignas(16) uint32_t q[OPS_BLOCK / 4]; /* words 0 4 1 5 2 6 3 7 of the inputs */
  float scale, sum;                      /* sum: scale * (the sum of q) */
  int32_t halves[2];                     /* the sums of the first and the last half of q */
};

static_assert(sizeof(few_form) == LINEAR_FEW_FORM, "the layout has room for it");

/* [blocks][rows] */
template <ops_type TYPE> struct few_forms {
  typedef few_form form;
  form *forms;
  int32_t rows;
  DEVICE_CODE void put(bool there, int32_t row, int32_t block, int32_t quarter, const float v[8]) const {
    const activation_part p = activation_quantize(v);
    if (!there) return;
    few_form *f = forms + block * rows + row;
    uint32_t *q = f->q + quarter % 2 * 4 + quarter / 2;
    q[0] = p.words[0];
    q[2] = p.words[1];
    if (quarter % 2 == 0) f->halves[quarter / 2] = p.half;
    if (quarter == 0) device_store(&f->scale, float2{p.scale, p.scale * (float)p.all});
  }
};

/* The bf16 form of a block of a row: word 4 j + 2 s + h has its inputs 16 s + 8 h + 2 j and the next one. */
struct few_bf16_form {
  alignas(16) uint32_t words[OPS_BLOCK / 2];
};

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

/* --- what a lane has of a block of weights --- */

constexpr int32_t FEW_WORDS = 4; /* of half h of the lanes: vectors 2 h, 2 h + 4, 2 h + 1, 2 h + 5 */

struct few_lane {
  int32_t output, half;
};

struct few_weights {
  uint32_t u[FEW_WORDS]; /* numbers u, Q8_0 the signed weights */
  float d, m;            /* as cpu_scale_at makes them; with two sub-scales as they are kept */
  int32_t sub[2], min[2];
};

DEVICE_CODE uint32_t few_word(const uint8_t *planes, int32_t vector, few_lane l) {
  return device_load<uint32_t>(planes + vector * CPU_VECTOR_BYTES + 4 * l.output);
}

template <ops_type TYPE>
DEVICE_CODE void few_numbers(const uint8_t *planes, few_lane l, uint32_t u[FEW_WORDS]) {
  constexpr cpu_format F = weight_format_of(TYPE);
  const uint32_t each = 0x01010101;
  const int32_t first = 2 * l.half; /* vector */
  DEVICE_UNROLL
  for (int32_t i = 0; i < FEW_WORDS; i++)
    u[i] = F.bits & 8 ? few_word(planes, first + i / 2 + i % 2 * 4, l) : 0;
  DEVICE_UNROLL
  for (int32_t i = 0; F.bits & 4 && i < FEW_WORDS; i += 2) {
    const uint32_t w = few_word(planes, first + i / 2, l);
    u[i] = w & 15 * each, u[i + 1] = w >> 4 & 15 * each;
  }
  if constexpr ((F.bits & 2) != 0) {
    constexpr int32_t shift = F.bits & 4;
    DEVICE_UNROLL
    for (int32_t i = 0; i < 2; i++) {
      const uint32_t w = few_word(planes + cpu_twos_at(F), i, l) >> 2 * first;
      u[i] |= (w & 3 * each) << shift;
      u[i + 2] |= (w >> 2 & 3 * each) << shift;
    }
  }
  if constexpr ((F.bits & 1) != 0) {
    constexpr int32_t shift = F.bits & 6;
    const uint32_t w = few_word(planes + cpu_ones_at(F), 0, l) >> first;
    DEVICE_UNROLL
    for (int32_t i = 0; i < FEW_WORDS; i++) u[i] |= (w >> (i / 2 + i % 2 * 4) & each) << shift;
  }
  if constexpr (F.table) {
    DEVICE_UNROLL
    for (int32_t i = 0; i < FEW_WORDS; i++) u[i] = weight_table(u[i]);
  }
}

DEVICE_CODE float few_half(const uint8_t *halves, int32_t lane) {
  return device_half(device_load<uint16_t>(halves + 2 * lane));
}

/* head: of the block's unit. */
template <ops_type TYPE>
DEVICE_CODE few_weights few_weights_at(const uint8_t *head, const uint8_t *block, few_lane l) {
  constexpr cpu_format F = weight_format_of(TYPE);
  const uint8_t *scales = F.sub ? head : block + weights<TYPE>::PLANE_BYTES;
  [[maybe_unused]] const uint8_t *sub = block + weights<TYPE>::PLANE_BYTES;
  few_weights w = {};
  few_numbers<TYPE>(block, l, w.u);
  w.d = few_half(scales, l.output);
  if constexpr (F.minima) w.m = few_half(scales + CPU_HALVES, l.output);
  if constexpr (F.sub == 32) {
    w.d = w.d * (float)sub[l.output];
    w.m = -(w.m * (float)sub[OPS_GROUP + l.output]);
  }
  if constexpr (F.sub == 16) {
    const uint32_t both = device_load<uint16_t>(sub + 2 * l.output);
    for (int32_t h = 0; h < 2; h++) {
      const uint32_t one = both >> 8 * h & 255;
      w.sub[h] = F.minima ? (int32_t)(one & 15) : (int32_t)(int8_t)one;
      w.min[h] = (int32_t)(one >> 4);
    }
  }
  return w;
}

/* The lane's words of a form, as the first ones, and its other numbers. */
DEVICE_CODE few_form few_form_at(const few_form *from, int32_t half) {
  const uint4 q = device_load<uint4>(from->q + FEW_WORDS * half);
  const uint4 rest = device_load<uint4>(&from->scale);
  return {
      {q.x, q.y, q.z, q.w}, cpu_float_of(rest.x), cpu_float_of(rest.y), {(int32_t)rest.z, (int32_t)rest.w}};
}

/* Of both lanes of an output. */
DEVICE_CODE int32_t few_both(int32_t sum) {
  return sum + __shfl_xor_sync(DEVICE_WARP, sum, OPS_GROUP);
}

template <ops_type TYPE>
DEVICE_CODE float few_add_one_scale(const few_weights &w, const few_form &f, float acc) {
  constexpr cpu_format F = weight_format_of(TYPE);
  constexpr int32_t bias = linear_format<TYPE>::SIGNED ? 0 : F.bias;
  int32_t sum = 0;
  DEVICE_UNROLL
  for (int32_t i = 0; i < FEW_WORDS; i++)
    sum = device_dot_4<linear_format<TYPE>::SIGNED>(w.u[i], f.q[i], sum);
  sum = few_both(sum) - bias * (f.halves[0] + f.halves[1]);
  acc = fmaf(w.d * f.scale, device_float(sum), acc);
  return F.minima ? fmaf(w.m, f.sum, acc) : acc;
}

template <ops_type TYPE>
DEVICE_CODE float few_add_two_scales(const few_weights &w, const few_form &f, float acc) {
  constexpr cpu_format F = weight_format_of(TYPE);
  const int32_t a = device_dot_4<false>(w.u[2], f.q[2], device_dot_4<false>(w.u[0], f.q[0], 0)),
                b = device_dot_4<false>(w.u[3], f.q[3], device_dot_4<false>(w.u[1], f.q[1], 0));
  const int32_t less = F.bias * (w.sub[0] * f.halves[0] + w.sub[1] * f.halves[1]);
  acc = fmaf(w.d * f.scale, (float)(few_both(w.sub[0] * a + w.sub[1] * b) - less), acc);
  if (!F.minima) return acc;
  const int32_t least = w.min[0] * f.halves[0] + w.min[1] * f.halves[1];
  return fmaf(-(w.m * f.scale), (float)least, acc);
}

template <ops_type TYPE, int ROWS>
DEVICE_CODE void few_add(const few_weights &w, const few_form *forms, int32_t half, float acc[ROWS]) {
  DEVICE_UNROLL
  for (int32_t r = 0; r < ROWS; r++) {
    const few_form f = few_form_at(forms + r, half);
    acc[r] = weight_format_of(TYPE).sub == 16 ? few_add_two_scales<TYPE>(w, f, acc[r])
                                              : few_add_one_scale<TYPE>(w, f, acc[r]);
  }
}

/* COUNT blocks, which lie side by side in a stage. */
template <ops_type TYPE, int ROWS, int COUNT>
DEVICE_CODE void few_add_blocks(const uint8_t *head, const uint8_t *block, const few_form *forms, few_lane l,
                                float acc[ROWS]) {
  DEVICE_UNROLL
  for (int32_t i = 0; i < COUNT; i++) {
    const few_weights w = few_weights_at<TYPE>(head, block + i * linear_format<TYPE>::BLOCK, l);
    few_add<TYPE, ROWS>(w, forms + i * ROWS, l.half, acc);
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
