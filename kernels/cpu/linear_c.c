#include "kernels/cpu/linear_c.h"
#include "kernels/cpu/cpu_math.h"

/* What all rows of x share. */
typedef struct block_act {
  const int8_t *q; /* [OPS_BLOCK] */
  float scale, sum;
} block_act;

static block_act act_block(const ops_act *x, int32_t row, int32_t b) {
  size_t blocks = (size_t)x->columns / OPS_BLOCK, i = (size_t)row * blocks + (size_t)b;
  return (block_act){.q = x->q8 + i * OPS_BLOCK, .scale = x->scale[i], .sum = x->sum[i]};
}

static void f16_lanes(const uint8_t *from, float out[OPS_GROUP]) {
  for (int32_t r = 0; r < OPS_GROUP; r++) {
    uint16_t h;
    memcpy(&h, from + r * 2, 2);
    out[r] = cpu_f16(h);
  }
}

static void q4_1_block(const uint8_t *w, block_act a, float acc[OPS_GROUP]) {
  int32_t sum[OPS_GROUP] = {0};
  float d[OPS_GROUP], m[OPS_GROUP];
  for (int32_t v = 0; v < 4; v++) {
    for (int32_t r = 0; r < OPS_GROUP; r++) {
      for (int32_t j = 0; j < 4; j++) {
        uint8_t pair = w[v * 64 + r * 4 + j];
        sum[r] += (pair & 15) * a.q[4 * v + j] + (pair >> 4) * a.q[16 + 4 * v + j];
      }
    }
  }
  f16_lanes(w + CPU_Q4_1_SCALES, d);
  f16_lanes(w + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA, m);
  for (int32_t r = 0; r < OPS_GROUP; r++) {
    acc[r] = fmaf(d[r] * a.scale, (float)sum[r], acc[r]);
    acc[r] = fmaf(m[r], a.sum, acc[r]);
  }
}

void cpu_linear_q4_1_int8_c(const void *group, const ops_act *x, int32_t row, int32_t rows, float *out) {
  for (int32_t t = 0; t < rows; t++) {
    float acc[OPS_GROUP] = {0};
    const uint8_t *w = group;
    for (int32_t b = 0; b < x->columns / OPS_BLOCK; b++, w += CPU_Q4_1_BLOCK) {
      q4_1_block(w, act_block(x, row + t, b), acc);
    }
    memcpy(out + t * OPS_GROUP, acc, sizeof acc);
  }
}

static void q8_0_block(const uint8_t *w, block_act a, float acc[OPS_GROUP]) {
  const int8_t *q = (const int8_t *)w;
  int32_t sum[OPS_GROUP] = {0};
  float d[OPS_GROUP];
  for (int32_t v = 0; v < 8; v++) {
    for (int32_t r = 0; r < OPS_GROUP; r++) {
      for (int32_t j = 0; j < 4; j++) sum[r] += q[v * 64 + r * 4 + j] * a.q[4 * v + j];
    }
  }
  f16_lanes(w + CPU_Q8_0_SCALES, d);
  for (int32_t r = 0; r < OPS_GROUP; r++) acc[r] = fmaf(d[r] * a.scale, (float)sum[r], acc[r]);
}

void cpu_linear_q8_0_int8_c(const void *group, const ops_act *x, int32_t row, int32_t rows, float *out) {
  for (int32_t t = 0; t < rows; t++) {
    float acc[OPS_GROUP] = {0};
    const uint8_t *w = group;
    for (int32_t b = 0; b < x->columns / OPS_BLOCK; b++, w += CPU_Q8_0_BLOCK) {
      q8_0_block(w, act_block(x, row + t, b), acc);
    }
    memcpy(out + t * OPS_GROUP, acc, sizeof acc);
  }
}

/* Sixteen weights of input k. */
typedef void lanes_at(const uint8_t *group, int32_t k, float out[OPS_GROUP]);

static void q4_1_at(const uint8_t *group, int32_t k, float out[OPS_GROUP]) {
  const uint8_t *w = group + (size_t)(k / OPS_BLOCK) * CPU_Q4_1_BLOCK;
  int32_t i = k % OPS_BLOCK, low = i % 16;
  float d[OPS_GROUP], m[OPS_GROUP];
  f16_lanes(w + CPU_Q4_1_SCALES, d);
  f16_lanes(w + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA, m);
  for (int32_t r = 0; r < OPS_GROUP; r++) {
    uint8_t pair = w[low / 4 * 64 + r * 4 + low % 4];
    out[r] = fmaf(d[r], (float)(i < 16 ? pair & 15 : pair >> 4), m[r]);
  }
}

static void q8_0_at(const uint8_t *group, int32_t k, float out[OPS_GROUP]) {
  const uint8_t *w = group + (size_t)(k / OPS_BLOCK) * CPU_Q8_0_BLOCK;
  int32_t i = k % OPS_BLOCK;
  const int8_t *q = (const int8_t *)w + i / 4 * 64 + i % 4;
  float d[OPS_GROUP];
  f16_lanes(w + CPU_Q8_0_SCALES, d);
  for (int32_t r = 0; r < OPS_GROUP; r++) out[r] = d[r] * (float)q[r * 4];
}

static void f32_at(const uint8_t *group, int32_t k, float out[OPS_GROUP]) {
  memcpy(out, group + (size_t)k * OPS_GROUP * 4, OPS_GROUP * 4);
}

static void f16_at(const uint8_t *group, int32_t k, float out[OPS_GROUP]) {
  f16_lanes(group + (size_t)k * OPS_GROUP * 2, out);
}

static void bf16_at(const uint8_t *group, int32_t k, float out[OPS_GROUP]) {
  const uint16_t *w = (const uint16_t *)group + (size_t)k * OPS_GROUP;
  for (int32_t r = 0; r < OPS_GROUP; r++) out[r] = cpu_bf16(w[r]);
}

static void linear_by_input(lanes_at *at, const void *group, const ops_act *x, int32_t row, int32_t rows,
                            float *out) {
  float acc[CPU_ROWS_MAX][OPS_GROUP] = {{0}}, w[OPS_GROUP];
  for (int32_t k = 0; k < x->columns; k++) {
    at(group, k, w);
    for (int32_t t = 0; t < rows; t++) {
      float value = x->f32[(size_t)(row + t) * (size_t)x->columns + (size_t)k];
      for (int32_t r = 0; r < OPS_GROUP; r++) acc[t][r] = fmaf(w[r], value, acc[t][r]);
    }
  }
  memcpy(out, acc, (size_t)rows * sizeof acc[0]);
}

#define LINEAR_BY_INPUT(type)                                                                                \
  (const void *group, const ops_act *x, int32_t row, int32_t rows, float *out) {                             \
    linear_by_input(type##_at, group, x, row, rows, out);                                                    \
  }
void cpu_linear_q4_1_f32_c LINEAR_BY_INPUT(q4_1) void cpu_linear_q8_0_f32_c
    LINEAR_BY_INPUT(q8_0) void cpu_linear_f32_c LINEAR_BY_INPUT(f32) void cpu_linear_f16_c
    LINEAR_BY_INPUT(f16) void cpu_linear_bf16_c LINEAR_BY_INPUT(bf16)
