/* cpu_math.h - scalar arithmetic that the C reference and the SIMD kernels share, so that bits agree. */
#pragma once

#include "common/base/portable.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CPU_LANES  8                 /* of a softmax's sum */
#define CPU_EIGHT  8                 /* neighbours whose squares are summed first in a norm */
#define CPU_EIGHTS (256 / CPU_EIGHT) /* of a chunk, which is OPS_NORM_CHUNK */

PORTABLE float cpu_float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

PORTABLE uint32_t cpu_bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

/* IEEE binary16 to f32, exact. */
PORTABLE float cpu_f16(uint16_t h) {
  float f =
      cpu_float_of((uint32_t)(h & 0x7fff) << 13) * 0x1p112f; /* moves the exponent's bias; subnormals too */
  uint32_t bits = cpu_bits_of(f);
  if ((h & 0x7c00) == 0x7c00) bits |= 0x7f800000u;
  return cpu_float_of(bits | (uint32_t)(h & 0x8000) << 16);
}

PORTABLE float cpu_bf16(uint16_t h) {
  return cpu_float_of((uint32_t)h << 16);
}

/* f32 to binary16, nearest even. What would round to infinity becomes a quiet NaN, as a NaN does: in a cache,
 * an infinite key could give a score of -infinity, which attention passes over as if the position were not
 * there. */
PORTABLE uint16_t cpu_to_f16(float f) {
  uint32_t bits = cpu_bits_of(f), magnitude = bits & 0x7fffffffu, half;
  if (magnitude >= 0x477ff000u)
    half = 0x7e00;                    /* 65520 and above would be infinity */
  else if (magnitude < 0x38800000u) { /* below 2^-14: subnormal; the addition rounds it */
    half = cpu_bits_of(cpu_float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

/* The larger magnitude of the two, of which `largest` is one already. As bits, so that a NaN is the largest
 * of all and stays it. */
PORTABLE float cpu_larger(float largest, float x) {
  uint32_t magnitude = cpu_bits_of(x) & 0x7fffffffu;
  return magnitude > cpu_bits_of(largest) ? cpu_float_of(magnitude) : largest;
}

/* Of RMSNorm, of eight neighbours. */
PORTABLE float cpu_eight_squares(const float x[CPU_EIGHT]) {
  return ((x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3])) +
         ((x[4] * x[4] + x[5] * x[5]) + (x[6] * x[6] + x[7] * x[7]));
}

/* Of RMSNorm. Squares whose sum is infinite would make zeros of a row, and of the answer one token for ever:
 * a NaN reaches the logits. */
PORTABLE float cpu_norm_scale(float squares, int32_t n, float eps) {
  return squares < INFINITY ? 1.0f / sqrtf(squares / (float)n + eps) : NAN;
}

/* exp(x) in f32, error below 2 units in the last place; 0 below CPU_EXP_MIN, clamped above CPU_EXP_MAX.
 * x = n ln2 + r, |r| <= ln2 / 2; Taylor's polynomial of degree 7 in Horner form. */
#define CPU_EXP_MIN  (-87.0f)
#define CPU_EXP_MAX  88.0f
#define CPU_LOG2E    0x1.715476p+0f
#define CPU_LN2_HIGH 0x1.62e4p-1f /* few bits: n times it is exact */
#define CPU_LN2_LOW  0x1.7f7d1cp-20f
#define CPU_EXP_C7   0x1.a01a02p-13f
#define CPU_EXP_C6   0x1.6c16c2p-10f
#define CPU_EXP_C5   0x1.111112p-7f
#define CPU_EXP_C4   0x1.555556p-5f
#define CPU_EXP_C3   0x1.555556p-3f
#define CPU_EXP_C2   0.5f

PORTABLE float cpu_exp(float x) {
  if (!(x >= CPU_EXP_MIN)) return 0.0f;
  if (x > CPU_EXP_MAX) x = CPU_EXP_MAX;
  float n = rintf(x * CPU_LOG2E);
  float r = fmaf(-n, CPU_LN2_LOW, fmaf(-n, CPU_LN2_HIGH, x));
  float p = fmaf(CPU_EXP_C7, r, CPU_EXP_C6);
  p = fmaf(p, r, CPU_EXP_C5);
  p = fmaf(p, r, CPU_EXP_C4);
  p = fmaf(p, r, CPU_EXP_C3);
  p = fmaf(p, r, CPU_EXP_C2);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  return p * cpu_float_of((uint32_t)((int32_t)n + 127) << 23);
}

/* Softmax over keys, up to now or of one split: the largest score, and the sum of exp(score - largest). */
typedef struct cpu_softmax {
  float largest, sum;
} cpu_softmax;

/* Takes a split into what came before it (ops.h): values become fma(the split's, factors.split, those before
 * * factors.before). */
typedef struct cpu_factors {
  float before, split;
} cpu_factors;

PORTABLE cpu_factors cpu_softmax_join(cpu_softmax *before, cpu_softmax split) {
  float largest = before->largest > split.largest ? before->largest : split.largest;
  cpu_factors f;
  f.before = cpu_exp(before->largest - largest);
  f.split = cpu_exp(split.largest - largest);
  before->sum = fmaf(split.sum, f.split, before->sum * f.before);
  before->largest = largest;
  return f;
}

PORTABLE float cpu_silu(float x) {
  return x / (1.0f + cpu_exp(-x));
}

/* The sum of a tile's weights, in halves (ops.h: mass). */
PORTABLE float cpu_tile_sum(const float e[16]) {
  float s[8];
  for (int i = 0; i < 8; i++) s[i] = e[i] + e[i + 8];
  for (int i = 0; i < 4; i++) s[i] += s[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

/* The fixed tree over the lanes of a sum. */
PORTABLE float cpu_lane_sum(const float s[CPU_LANES]) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}
