/* cpu_kernels.h - what one instruction set supplies: kernels for one row or one group of outputs, without
 * threads. ops_cpu.c cuts the coarse ops into these. The plain C ones define the bits (ops.h). */
#pragma once

#include "kernels/ops.h"

#define CPU_ROWS_MAX 4 /* rows that a linear kernel takes at once: a weight is unpacked once for them */

/* out [rows][OPS_GROUP] = one packed group of 16 outputs times rows [row, row + rows) of x. */
typedef void cpu_linear(const void *group, const ops_act *x, int32_t row, int32_t rows, float *out);

/* One row's query heads that share a key-value head. Pointers stand at that layer and key-value head. */
typedef struct cpu_attention {
  ops_kv_type type;
  int32_t head_dim, heads;
  int32_t length, path_count;
  const int32_t *path;
  const void *keys;                      /* [..][head_dim][OPS_TILE] */
  const void *values;                    /* [..][head_dim] */
  const void *stage_keys, *stage_values; /* [slot][head_dim] */
  const float *q;                        /* [heads][head_dim] */
  float *y;                              /* [heads][head_dim] */
  float scale;
  float *scores;  /* scratch [heads][stride] */
  int32_t stride; /* >= length + path_count + 2 * OPS_TILE */
} cpu_attention;

typedef struct cpu_kernels {
  const char *name;
  int32_t rows_max;                        /* of `linear`, <= CPU_ROWS_MAX */
  const char *variants[CPU_ROWS_MAX + 1];  /* by rows of a tile */
  cpu_linear *linear_int8[OPS_TYPE_COUNT]; /* NULL: the type is not quantised, use linear_f32 */
  cpu_linear *linear_f32[OPS_TYPE_COUNT];
  void (*norm)(float *y, const float *x, const float *w, int32_t n, float eps);
  /* One row of n inputs, a multiple of OPS_BLOCK. */
  void (*quantize)(int8_t *q, float *scale, float *sum, const float *x, int32_t n);
  /* One head: y[i] = fma(x[i ^ 1], sine[i], x[i] * cosine[i]), i < n; n is even. y may be x. */
  void (*rope)(float *y, const float *x, const float *cosine, const float *sine, int32_t n);
  /* n floats to elements that lie `stride` apart. */
  void (*store)(ops_kv_type type, void *to, int32_t stride, const float *x, int32_t n);
  void (*attention)(const cpu_attention *a);
  void (*swiglu)(float *y, const float *gate, const float *up, int32_t n);
  int32_t (*argmax)(const float *x, int32_t n);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_c;
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx2; /* enter only where ops_cpu_has(OPS_CPU_AVX2) */
#endif

/* --- packed weights (pack.c) ---
 * Q4_1  group: [block][256 bytes of nibbles, 16 f16 scales, 16 f16 minima]; byte v * 64 + lane * 4 + j holds
 *       input 4 v + j in its low nibble and input 16 + 4 v + j in its high one.
 * Q8_0  group: [block][512 int8, 16 f16 scales]; byte v * 64 + lane * 4 + j is input 4 v + j.
 * F32, F16, BF16  group: [input][16].
 * One stream of memory a group: with the scales elsewhere, hardware prefetch fails (a sixth of the read
 * rate). */
#define CPU_Q4_1_MINIMA 32  /* bytes from the scales to the minima */
#define CPU_Q4_1_SCALES 256 /* bytes of nibbles of a block of a group */
#define CPU_Q4_1_BLOCK  320
#define CPU_Q8_0_SCALES 512 /* bytes of weights of a block of a group */
#define CPU_Q8_0_BLOCK  544

size_t cpu_group_bytes(ops_type type, int32_t columns); /* a multiple of 64 */
size_t cpu_packed_bytes(ops_type type, int32_t rows, int32_t columns);
void cpu_pack(ops_type type, int32_t rows, int32_t columns, const void *file, void *out, int32_t first,
              int32_t last);
/* Dequantises one row of w, exactly as the file defines it. */
void cpu_unpack_row(const ops_weight *w, int32_t row, float *out);
