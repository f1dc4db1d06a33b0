/* packed_format.h - how the quantised types lie in packed memory: one description of each, from which all
 * linear kernels, `pack` and `embed` are made.
 *
 * A weight is a number u of `bits` bits, cut into planes: the low four bits (nibbles), then two, then one;
 * bits = 8 is a plane of bytes. A group's plane of a block, OPS_BLOCK inputs of OPS_GROUP rows, is made of
 * 64-byte vectors: byte 4 lane + j of vector v holds input 4 v + j of output `lane`, v = 0..7, and vectors
 * share memory:
 * - bytes: v as it is, 8 of them
 * - nibbles: v < 4 in the low nibbles, v + 4 in the high ones, 4 of them
 * - twos: v = 4 i + k in bits 2 k and 2 k + 1 of the i-th of 2
 * - ones: v in bit v of the only one
 *
 * A unit is what the file has scales for: one block; with sub-scales CPU_UNIT_BLOCKS of them.
 * - without sub-scales: [planes][16 f16 d], with minima [16 f16 m]
 * - with them: [16 f16 d][16 f16 m or unused], then for each block [planes][32 bytes of sub-scales]
 * Sub-scales of a block: `sub` = 32: [16 bytes of scales][16 bytes of minima]; `sub` = 16: [16 rows][half of
 * the block] int8 or, with minima, scale | minimum << 4. A unit is one stream of memory: if the scales lay
 * elsewhere, hardware prefetch would fail, which costs a sixth of the read rate. */
#pragma once

#include "kernels/cpu/cpu_math.h"
#include "kernels/ops.h"

#define CPU_UNIT_BLOCKS 8
#define CPU_HALVES      32 /* bytes of OPS_GROUP f16 */
#define CPU_SUB_SCALES  32 /* bytes of a block's sub-scales */

typedef struct cpu_format {
  uint8_t bits; /* of u: 8, or a sum of planes 4, 2, 1 */
  uint8_t bias; /* a weight is scale * (u - bias), with minima fma(scale, u, m) */
  uint8_t sub;  /* inputs of a sub-scale, 32 or 16; 0: a block has a scale of its own */
  bool minima;  /* without sub-scales m is added, with them dmin * minimum is subtracted */
  bool table;   /* u = CPU_TABLE[nibble] */
} cpu_format;

/* Quantised types: name, and the form. Q8_0's byte is u ^ 128, as in the file. */
#define CPU_FORMATS(X)                                                                                       \
  X(q4_0, Q4_0, .bits = 4, .bias = 8)                                                                        \
  X(q4_1, Q4_1, .bits = 4, .minima = true)                                                                   \
  X(q5_0, Q5_0, .bits = 5, .bias = 16)                                                                       \
  X(q5_1, Q5_1, .bits = 5, .minima = true)                                                                   \
  X(q8_0, Q8_0, .bits = 8, .bias = 128)                                                                      \
  X(iq4_nl, IQ4_NL, .bits = 4, .bias = 128, .table = true)                                                   \
  X(q2_k, Q2_K, .bits = 2, .sub = 16, .minima = true)                                                        \
  X(q3_k, Q3_K, .bits = 3, .bias = 4, .sub = 16)                                                             \
  X(q4_k, Q4_K, .bits = 4, .sub = 32, .minima = true)                                                        \
  X(q5_k, Q5_K, .bits = 5, .sub = 32, .minima = true)                                                        \
  X(q6_k, Q6_K, .bits = 6, .bias = 32, .sub = 16)

/* IQ4_NL's 16 weights, plus 128. Source: ggml. */
#define CPU_TABLE 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241

/* --- sizes in bytes; constants where the form is one --- */

PORTABLE size_t cpu_plane_bytes(cpu_format f) { /* of a block */
  return (size_t)f.bits * OPS_GROUP * OPS_BLOCK / 8;
}
PORTABLE size_t cpu_unit_blocks(cpu_format f) {
  return f.sub ? CPU_UNIT_BLOCKS : 1;
}
PORTABLE size_t cpu_unit_bytes(cpu_format f) {
  if (!f.sub) return cpu_plane_bytes(f) + CPU_HALVES * (f.minima ? 2 : 1);
  return 2 * CPU_HALVES + CPU_UNIT_BLOCKS * (CPU_SUB_SCALES + cpu_plane_bytes(f));
}
/* Of a block's planes, where nibbles, twos and ones begin. */
PORTABLE size_t cpu_twos_at(cpu_format f) {
  return f.bits & 4 ? 4 * 64 : 0;
}
PORTABLE size_t cpu_ones_at(cpu_format f) {
  return cpu_twos_at(f) + (f.bits & 2 ? 2 * 64 : 0);
}

/* Where a block of a group lies. */
typedef struct cpu_block {
  const uint8_t *planes;
  const uint8_t *scales; /* [OPS_GROUP] f16, and after them the minima's */
  const uint8_t *sub;    /* its sub-scales */
} cpu_block;

PORTABLE cpu_block cpu_block_at(const void *group, cpu_format f, size_t b) {
  const uint8_t *unit = (const uint8_t *)group + b / cpu_unit_blocks(f) * cpu_unit_bytes(f);
  if (!f.sub) return (cpu_block){unit, unit + cpu_plane_bytes(f), NULL};
  const uint8_t *planes = unit + 2 * CPU_HALVES + b % CPU_UNIT_BLOCKS * (cpu_plane_bytes(f) + CPU_SUB_SCALES);
  return (cpu_block){planes, unit, planes + cpu_plane_bytes(f)};
}

/* --- plain C --- */

#define CPU_VECTORS      8 /* of a block of a group */
#define CPU_VECTOR_BYTES 64

/* u of a block of a group, by vectors: bytes [first, end) of each. */
static inline void cpu_block_weights(const uint8_t *planes, cpu_format f, size_t first, size_t end,
                                     uint8_t u[CPU_VECTORS][CPU_VECTOR_BYTES]) {
  static const uint8_t table[16] = {CPU_TABLE};
  const uint8_t *twos = planes + cpu_twos_at(f), *ones = planes + cpu_ones_at(f);
  for (size_t v = 0; v < CPU_VECTORS; v++) {
    for (size_t i = first; i < end; i++) {
      int w = f.bits & 8 ? planes[v * CPU_VECTOR_BYTES + i] ^ 128 : 0;
      if (f.bits & 4) w = planes[v % 4 * CPU_VECTOR_BYTES + i] >> v / 4 * 4 & 15;
      if (f.bits & 2) w |= (twos[v / 4 * CPU_VECTOR_BYTES + i] >> 2 * (v % 4) & 3) << (f.bits & 4);
      if (f.bits & 1) w |= (ones[i] >> v & 1) << (f.bits & 6);
      u[v][i] = f.table ? table[w] : (uint8_t)w;
    }
  }
}

/* What the weights of one half of a block of output `lane` are made with: scale * (u - bias), or with minima
 * fma(scale, u, minimum). */
typedef struct cpu_scale {
  float scale, minimum;
} cpu_scale;

PORTABLE float cpu_half_at(const uint8_t *halves, size_t lane) {
  uint16_t h;
  memcpy(&h, halves + lane * sizeof h, sizeof h);
  return cpu_f16(h);
}

/* Sub-scale and sub-minimum; only where there are some. */
PORTABLE void cpu_sub_at(cpu_block k, cpu_format f, size_t lane, size_t half, int32_t *scale,
                         int32_t *minimum) {
  uint8_t both = k.sub[2 * lane + half];
  *scale = f.sub == 32 ? k.sub[lane] : f.minima ? both & 15 : (int8_t)both;
  *minimum = f.sub == 32 ? k.sub[OPS_GROUP + lane] : both >> 4;
}

PORTABLE cpu_scale cpu_scale_at(cpu_block k, cpu_format f, size_t lane, size_t half) {
  float d = cpu_half_at(k.scales, lane), m = f.minima ? cpu_half_at(k.scales + CPU_HALVES, lane) : 0.0f;
  if (!f.sub) return (cpu_scale){d, m};
  int32_t scale, minimum;
  cpu_sub_at(k, f, lane, half, &scale, &minimum);
  return (cpu_scale){d * (float)scale, -(m * (float)minimum)};
}

PORTABLE float cpu_weight_value(cpu_format f, cpu_scale s, uint8_t u) {
  return f.minima ? fmaf(s.scale, (float)u, s.minimum) : s.scale * (float)(u - f.bias);
}
