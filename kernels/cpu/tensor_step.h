/* tensor_step.h - the arithmetic of class bf16-t25 (ops.h) in integers: how a tensor core of compute
 * capability 9.0 adds the products of TENSOR_STEP pairs of bf16 to an f32.
 *
 * Each number is significand * 2^(exponent - fraction bits), and a subnormal one keeps exponent -126. A
 * product's exponent is the sum of both, whatever its significand is. All terms, which are the products and
 * the accumulator, are cut off (toward zero) below 2^(largest exponent - 25), added exactly, and the sum is
 * cut off to f32. Zeros have no part in the largest exponent, which is at least -126.
 *
 * Source: MMA-Sim (arXiv 2511.10909). Compared with an H200 in 9 million steps of numbers of every size, with
 * zeros, subnormal numbers, overflow, infinities and NaNs among them. */
#pragma once

#include "kernels/cpu/cpu_math.h"

#include <stdbool.h>
#include <stddef.h>

#define TENSOR_STEP     16 /* inputs */
#define TENSOR_FRACTION 25 /* bits that are kept below the largest exponent */

/* f32 to bf16, nearest even; a NaN becomes the one that the conversion of a GPU makes. */
PORTABLE uint16_t tensor_bf16(float f) {
  uint32_t bits = cpu_bits_of(f), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}

typedef struct tensor_number {
  int32_t significand, exponent;
} tensor_number;

/* bits: of an f32. */
PORTABLE tensor_number tensor_number_of(uint32_t bits) {
  int32_t field = (int32_t)(bits >> 23 & 255), significand = (int32_t)(bits & 0x7fffffu);
  if (field > 0) significand |= 0x800000;
  tensor_number n;
  n.significand = bits >> 31 ? -significand : significand;
  n.exponent = (field > 0 ? field : 1) - 127;
  return n;
}

/* Toward zero. */
PORTABLE int64_t tensor_shift(int64_t m, int32_t down) {
  if (down >= 62) return 0;
  return m < 0 ? -(-m >> down) : m >> down;
}

/* The sum of what is no finite number, or 0: a NaN if there is one, or infinities of both signs. */
PORTABLE float tensor_special(float c, const uint16_t *w, size_t stride, const uint16_t *x) {
  float sum = c - c == 0.0f ? 0.0f : c;
  for (size_t i = 0; i < TENSOR_STEP; i++) {
    uint16_t a = w[i * stride], b = x[i];
    if ((a & 0x7f80) == 0x7f80 || (b & 0x7f80) == 0x7f80) sum = sum + cpu_bf16(a) * cpu_bf16(b);
  }
  return sum != sum ? cpu_float_of(0x7fffffffu) : sum;
}

/* units * 2^unit, cut off to f32; |units| < 2^53. */
PORTABLE float tensor_round(int64_t units, int32_t unit) {
  double exact = (double)(units < 0 ? -units : units);
  uint64_t bits;
  memcpy(&bits, &exact, sizeof bits);
  int32_t top = units == 0 ? 0 : (int32_t)(bits >> 52) - 1023, drop = top - 23;
  if (drop < -149 - unit) drop = -149 - unit;
  int64_t kept = drop >= 0 ? tensor_shift(units, drop) : units * ((int64_t)1 << -drop);
  uint32_t magnitude = (uint32_t)(kept < 0 ? -kept : kept); /* below 2^24, in steps of 2^(unit + drop) */
  uint32_t field = magnitude >> 23 ? (uint32_t)(unit + drop + 150) : 0;
  if (field >= 255) return units < 0 ? -INFINITY : INFINITY;
  if (magnitude == 0) return 0.0f;
  return cpu_float_of((units < 0 ? 0x80000000u : 0) | field << 23 | (magnitude & 0x7fffffu));
}

/* c and the products of w[i * stride] and x[i], i < TENSOR_STEP. */
PORTABLE float tensor_step(float c, const uint16_t *w, size_t stride, const uint16_t *x) {
  float special = tensor_special(c, w, stride, x);
  if (special != 0.0f) return special;
  const tensor_number start = tensor_number_of(cpu_bits_of(c));
  int32_t products[TENSOR_STEP], exponents[TENSOR_STEP], largest = start.exponent;
  for (size_t i = 0; i < TENSOR_STEP; i++) {
    const tensor_number a = tensor_number_of((uint32_t)w[i * stride] << 16),
                        b = tensor_number_of((uint32_t)x[i] << 16);
    products[i] = (a.significand >> 16) * (b.significand >> 16); /* 14 bits of fraction */
    exponents[i] = a.exponent + b.exponent;
    if (products[i] != 0 && exponents[i] > largest) largest = exponents[i];
  }
  int64_t sum = tensor_shift((int64_t)start.significand * 4, largest - start.exponent);
  for (size_t i = 0; i < TENSOR_STEP; i++) {
    int64_t units = (int64_t)products[i] * (1 << (TENSOR_FRACTION - 14));
    sum += products[i] != 0 ? tensor_shift(units, largest - exponents[i]) : 0;
  }
  return tensor_round(sum, largest - TENSOR_FRACTION);
}
