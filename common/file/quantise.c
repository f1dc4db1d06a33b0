#include "common/file/quantise.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { BLOCK = 32, HALF_INFINITY = 0x7c00, Q8_MAX = 127, Q4_MAX = 15 };

static uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

/* To the nearest, ties to even; too large is infinite. */
static uint16_t float_to_half(float v) {
  uint32_t bits = bits_of(v), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x47800000) return (uint16_t)(sign | HALF_INFINITY); /* 65536 */
  int exponent = (int)(magnitude >> 23) - 112;                          /* of the half, biased */
  uint32_t fraction = (magnitude & 0x7fffff) | (magnitude >> 23 ? 0x800000 : 0);
  int drop = exponent > 0 ? 13 : 14 - exponent; /* bits of the fraction that a half has no room for */
  if (drop > 24) return (uint16_t)sign;         /* below half of the smallest one */
  uint32_t half = (exponent > 0 ? (uint32_t)(exponent - 1) << 10 : 0) + (fraction >> drop);
  uint32_t rest = fraction & ((1u << drop) - 1), tie = 1u << (drop - 1);
  if (rest > tie || (rest == tie && (half & 1))) half++;
  return (uint16_t)(sign | half);
}

static bool put_half(uint8_t *out, float v) {
  uint16_t half = float_to_half(v);
  memcpy(out, &half, sizeof half);
  return (half & HALF_INFINITY) != HALF_INFINITY;
}

static bool to_f32(const float *values, uint8_t *out) {
  memcpy(out, values, sizeof *values);
  return true;
}

static bool to_f16(const float *values, uint8_t *out) {
  return put_half(out, *values);
}

/* Ties to even. */
static bool to_bf16(const float *values, uint8_t *out) {
  uint32_t bits = bits_of(*values);
  uint16_t top = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  memcpy(out, &top, sizeof top);
  return (top & 0x7f80) != 0x7f80;
}

/* Of a scale whose inverse is a number; below, all of the block becomes 0. */
static float invert(float d) {
  return d >= FLT_MIN ? 1.0f / d : 0;
}

/* A scale (f16) and 32 signed bytes. */
static bool to_q8_0(const float *values, uint8_t *out) {
  float most = 0;
  for (int i = 0; i < BLOCK; i++) most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
  float d = most / Q8_MAX, inverse = invert(d);
  for (int i = 0; i < BLOCK; i++) out[2 + i] = (uint8_t)(int8_t)roundf(values[i] * inverse);
  return put_half(out, d);
}

static uint8_t level(float v, float min, float inverse) {
  float n = (v - min) * inverse + 0.5f;
  return (uint8_t)(n < Q4_MAX ? n : Q4_MAX);
}

/* A scale and a minimum (f16), and 32 halves of bytes: the first 16 are the lower ones. */
static bool to_q4_1(const float *values, uint8_t *out) {
  float min = FLT_MAX, max = -FLT_MAX;
  for (int i = 0; i < BLOCK; i++) {
    min = values[i] < min ? values[i] : min;
    max = values[i] > max ? values[i] : max;
  }
  float d = (max - min) / Q4_MAX, inverse = invert(d);
  for (int i = 0; i < BLOCK / 2; i++) {
    uint8_t low = level(values[i], min, inverse), high = level(values[BLOCK / 2 + i], min, inverse);
    out[4 + i] = (uint8_t)(low | high << 4);
  }
  bool fits = put_half(out, d);
  return put_half(out + 2, min) && fits;
}

static const struct {
  gguf_type type;
  int32_t block, bytes;
  bool (*turn)(const float *values, uint8_t *out); /* one block */
} TYPES[] = {
    {GGUF_F32, 1, 4, to_f32},        {GGUF_F16, 1, 2, to_f16},        {GGUF_BF16, 1, 2, to_bf16},
    {GGUF_Q8_0, BLOCK, 34, to_q8_0}, {GGUF_Q4_1, BLOCK, 20, to_q4_1},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof TYPES[0] };

static int find(gguf_type type) {
  int i = 0;
  while (i < TYPE_COUNT && TYPES[i].type != type) i++;
  return i;
}

bool quantise_knows(gguf_type type) {
  return find(type) < TYPE_COUNT;
}

int32_t quantise_block(gguf_type type) {
  return TYPES[find(type)].block;
}

size_t quantise_bytes(gguf_type type, size_t count) {
  return count / (size_t)quantise_block(type) * (size_t)TYPES[find(type)].bytes;
}

bool quantise(gguf_type type, const float *values, size_t count, void *out) {
  int t = find(type);
  bool fits = true;
  uint8_t *p = out;
  for (size_t i = 0; i < count; i += (size_t)TYPES[t].block, p += TYPES[t].bytes)
    fits &= TYPES[t].turn(values + i, p);
  return fits;
}
