#include "kernels/cpu/linear_c.h"
#include "kernels/cpu/cpu_math.h"

/* One block of a row of x. */
typedef struct block_act {
  const int8_t *q; /* [OPS_BLOCK] */
  float scale, sum;
  int32_t total;
} block_act;

static block_act act_block(const ops_act *x, int32_t row, int32_t b) {
  size_t blocks = (size_t)x->columns / OPS_BLOCK, i = (size_t)row * blocks + (size_t)b;
  return (block_act){
      .q = x->q8 + i * OPS_BLOCK, .scale = x->scale[i], .sum = x->sum[i], .total = x->total[i]};
}

static void f16_lanes(const uint8_t *from, float out[OPS_GROUP]) {
  for (int32_t r = 0; r < OPS_GROUP; r++) {
    uint16_t h;
    memcpy(&h, from + r * 2, 2);
    out[r] = cpu_f16(h);
  }
}

/* Sums of nibbles times activations: of 0..15, whatever the type makes of them. */
static void nibble_sums(const uint8_t *w, const int8_t *q, int32_t sum[OPS_GROUP]) {
  for (int32_t v = 0; v < 4; v++) {
    for (int32_t r = 0; r < OPS_GROUP; r++) {
      for (int32_t j = 0; j < 4; j++) {
        uint8_t pair = w[v * 64 + r * 4 + j];
        sum[r] += (pair & 15) * q[4 * v + j] + (pair >> 4) * q[16 + 4 * v + j];
      }
    }
  }
}

static void q4_0_block(const uint8_t *w, block_act a, float acc[OPS_GROUP]) {
  int32_t sum[OPS_GROUP] = {0};
  float d[OPS_GROUP];
  nibble_sums(w, a.q, sum);
  f16_lanes(w + CPU_Q4_1_SCALES, d);
  for (int32_t r = 0; r < OPS_GROUP; r++)
    acc[r] = fmaf(d[r] * a.scale, (float)(sum[r] - 8 * a.total), acc[r]);
}

static void q4_1_block(const uint8_t *w, block_act a, float acc[OPS_GROUP]) {
  int32_t sum[OPS_GROUP] = {0};
  float d[OPS_GROUP], m[OPS_GROUP];
  nibble_sums(w, a.q, sum);
  f16_lanes(w + CPU_Q4_1_SCALES, d);
  f16_lanes(w + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA, m);
  for (int32_t r = 0; r < OPS_GROUP; r++) {
    acc[r] = fmaf(d[r] * a.scale, (float)sum[r], acc[r]);
    acc[r] = fmaf(m[r], a.sum, acc[r]);
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

typedef void add_block(const uint8_t *w, block_act a, float acc[OPS_GROUP]);

/* Blocks ascending. */
static void linear_by_block(add_block *add, size_t block_bytes, const void *group, const ops_act *x,
                            int32_t row, int32_t rows, float *out) {
  for (int32_t t = 0; t < rows; t++) {
    float acc[OPS_GROUP] = {0};
    const uint8_t *w = group;
    for (int32_t b = 0; b < x->columns / OPS_BLOCK; b++, w += block_bytes)
      add(w, act_block(x, row + t, b), acc);
    memcpy(out + t * OPS_GROUP, acc, sizeof acc);
  }
}

#define LINEAR_BY_BLOCK(name, add, bytes)                                                                    \
  void name(const void *group, const ops_act *x, int32_t row, int32_t rows, float *out) {                    \
    linear_by_block(add, bytes, group, x, row, rows, out);                                                   \
  }
LINEAR_BY_BLOCK(cpu_linear_q4_0_int8_c, q4_0_block, CPU_Q4_0_BLOCK)
LINEAR_BY_BLOCK(cpu_linear_q4_1_int8_c, q4_1_block, CPU_Q4_1_BLOCK)
LINEAR_BY_BLOCK(cpu_linear_q8_0_int8_c, q8_0_block, CPU_Q8_0_BLOCK)

/* The weights of up to OPS_BLOCK inputs from k on, as f32; returns how many inputs. */
typedef int32_t unpack_inputs(const uint8_t *group, int32_t columns, int32_t k,
                              float w[OPS_BLOCK][OPS_GROUP]);

static int32_t q4_0_inputs(const uint8_t *group, int32_t columns, int32_t k, float w[OPS_BLOCK][OPS_GROUP]) {
  (void)columns;
  const uint8_t *block = group + (size_t)(k / OPS_BLOCK) * CPU_Q4_0_BLOCK;
  float d[OPS_GROUP];
  f16_lanes(block + CPU_Q4_1_SCALES, d);
  for (int32_t i = 0; i < 16; i++) {
    for (int32_t r = 0; r < OPS_GROUP; r++) {
      uint8_t pair = block[i / 4 * 64 + r * 4 + i % 4];
      w[i][r] = d[r] * (float)((pair & 15) - 8);
      w[16 + i][r] = d[r] * (float)((pair >> 4) - 8);
    }
  }
  return OPS_BLOCK;
}

/* The product is exact, so that this is fma(d, q, m). */
static int32_t q4_1_inputs(const uint8_t *group, int32_t columns, int32_t k, float w[OPS_BLOCK][OPS_GROUP]) {
  (void)columns;
  const uint8_t *block = group + (size_t)(k / OPS_BLOCK) * CPU_Q4_1_BLOCK;
  float d[OPS_GROUP], m[OPS_GROUP];
  f16_lanes(block + CPU_Q4_1_SCALES, d);
  f16_lanes(block + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA, m);
  for (int32_t i = 0; i < 16; i++) {
    for (int32_t r = 0; r < OPS_GROUP; r++) {
      uint8_t pair = block[i / 4 * 64 + r * 4 + i % 4];
      w[i][r] = d[r] * (float)(pair & 15) + m[r];
      w[16 + i][r] = d[r] * (float)(pair >> 4) + m[r];
    }
  }
  return OPS_BLOCK;
}

static int32_t q8_0_inputs(const uint8_t *group, int32_t columns, int32_t k, float w[OPS_BLOCK][OPS_GROUP]) {
  (void)columns;
  const uint8_t *block = group + (size_t)(k / OPS_BLOCK) * CPU_Q8_0_BLOCK;
  float d[OPS_GROUP];
  f16_lanes(block + CPU_Q8_0_SCALES, d);
  for (int32_t i = 0; i < OPS_BLOCK; i++) {
    for (int32_t r = 0; r < OPS_GROUP; r++) {
      w[i][r] = d[r] * (float)((const int8_t *)block)[i / 4 * 64 + r * 4 + i % 4];
    }
  }
  return OPS_BLOCK;
}

static int32_t inputs_left(int32_t columns, int32_t k) {
  return columns - k < OPS_BLOCK ? columns - k : OPS_BLOCK;
}

static int32_t f32_inputs(const uint8_t *group, int32_t columns, int32_t k, float w[OPS_BLOCK][OPS_GROUP]) {
  int32_t n = inputs_left(columns, k);
  memcpy(w, group + (size_t)k * sizeof w[0], (size_t)n * sizeof w[0]);
  return n;
}

static int32_t f16_inputs(const uint8_t *group, int32_t columns, int32_t k, float w[OPS_BLOCK][OPS_GROUP]) {
  int32_t n = inputs_left(columns, k);
  for (int32_t i = 0; i < n; i++) f16_lanes(group + (size_t)(k + i) * OPS_GROUP * 2, w[i]);
  return n;
}

static int32_t bf16_inputs(const uint8_t *group, int32_t columns, int32_t k, float w[OPS_BLOCK][OPS_GROUP]) {
  int32_t n = inputs_left(columns, k);
  const uint16_t *from = (const uint16_t *)group + (size_t)k * OPS_GROUP;
  for (int32_t i = 0; i < n * OPS_GROUP; i++) w[i / OPS_GROUP][i % OPS_GROUP] = cpu_bf16(from[i]);
  return n;
}

/* acc = fma(w[k], x[k], acc), k ascending. */
static void linear_by_input(unpack_inputs *unpack, const void *group, const ops_act *x, int32_t row,
                            int32_t rows, float *out) {
  float acc[CPU_ROWS_MAX][OPS_GROUP] = {{0}}, w[OPS_BLOCK][OPS_GROUP];
  for (int32_t k = 0, n; k < x->columns; k += n) {
    n = unpack(group, x->columns, k, w);
    for (int32_t t = 0; t < rows; t++) {
      const float *value = x->f32 + (size_t)(row + t) * (size_t)x->columns + (size_t)k;
      for (int32_t i = 0; i < n; i++) {
        for (int32_t r = 0; r < OPS_GROUP; r++) acc[t][r] = fmaf(w[i][r], value[i], acc[t][r]);
      }
    }
  }
  memcpy(out, acc, (size_t)rows * sizeof acc[0]);
}

#define LINEAR_BY_INPUT(name, type)                                                                          \
  void name(const void *group, const ops_act *x, int32_t row, int32_t rows, float *out) {                    \
    linear_by_input(type##_inputs, group, x, row, rows, out);                                                \
  }
LINEAR_BY_INPUT(cpu_linear_q4_0_f32_c, q4_0)
LINEAR_BY_INPUT(cpu_linear_q4_1_f32_c, q4_1)
LINEAR_BY_INPUT(cpu_linear_q8_0_f32_c, q8_0)
LINEAR_BY_INPUT(cpu_linear_f32_c, f32)
LINEAR_BY_INPUT(cpu_linear_f16_c, f16)
LINEAR_BY_INPUT(cpu_linear_bf16_c, bf16)
