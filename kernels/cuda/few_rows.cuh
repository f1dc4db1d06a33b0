/* few_rows.cuh - what a lane knows of a block of quantised weights and of the int8 form of a few rows, and
 * what their products add to sums. Two lanes have an output: each multiplies half of a block's inputs, and
 * they add their integers. */
#pragma once

#include "kernels/cuda/linear_stream.cuh"

/* --- the int8 form of a block of a row --- */

struct few_form {
  alignas(16) uint32_t q[OPS_BLOCK / 4]; /* words 0 4 1 5 2 6 3 7 of the inputs */
  float scale, sum;                      /* sum: scale * (the sum of q) */
  int32_t halves[2];                     /* the sums of the first and the last half of q */
};

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

/* What a block of weights adds to a row's sum, of one scale for all its inputs. */
template <ops_type TYPE> DEVICE_CODE linear_term few_term_of_one(const few_weights &w, const few_form &f) {
  constexpr int32_t bias = linear_format<TYPE>::SIGNED ? 0 : weight_format_of(TYPE).bias;
  int32_t sum = 0;
  DEVICE_UNROLL
  for (int32_t i = 0; i < FEW_WORDS; i++)
    sum = device_dot_4<linear_format<TYPE>::SIGNED>(w.u[i], f.q[i], sum);
  sum = few_both(sum) - bias * (f.halves[0] + f.halves[1]);
  return {w.d * f.scale, device_float(sum), w.m, f.sum};
}

/* The same where its halves have sub-scales. */
template <ops_type TYPE> DEVICE_CODE linear_term few_term_of_two(const few_weights &w, const few_form &f) {
  const int32_t a = device_dot_4<false>(w.u[2], f.q[2], device_dot_4<false>(w.u[0], f.q[0], 0)),
                b = device_dot_4<false>(w.u[3], f.q[3], device_dot_4<false>(w.u[1], f.q[1], 0));
  const int32_t less = weight_format_of(TYPE).bias * (w.sub[0] * f.halves[0] + w.sub[1] * f.halves[1]);
  const int32_t least = w.min[0] * f.halves[0] + w.min[1] * f.halves[1];
  return {w.d * f.scale, (float)(few_both(w.sub[0] * a + w.sub[1] * b) - less), -(w.m * f.scale),
          (float)least};
}

template <ops_type TYPE> DEVICE_CODE linear_term few_term(const few_weights &w, const few_form &f) {
  return weight_format_of(TYPE).sub == 16 ? few_term_of_two<TYPE>(w, f) : few_term_of_one<TYPE>(w, f);
}

template <ops_type TYPE> DEVICE_CODE float few_add(const linear_term &t, float acc) {
  acc = fmaf(t.a, t.b, acc);
  return weight_format_of(TYPE).minima ? fmaf(t.c, t.d, acc) : acc;
}
