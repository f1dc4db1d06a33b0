#include "kernels/cpu/linear_c.h"
#include "kernels/cpu/cpu_math.h"

#define HALF_VECTORS (CPU_VECTORS / 2)

/* Block b of a row of x. */
typedef struct block_act {
  const int8_t *q; /* [OPS_BLOCK] */
  float scale, sum;
  cpu_total total;
} block_act;

static block_act act_block(const cpu_act *x, int32_t row, size_t b) {
  size_t i = (size_t)row * ((size_t)x->columns / OPS_BLOCK) + b;
  return (block_act){
      .q = x->q8 + i * OPS_BLOCK, .scale = x->scale[i], .sum = x->sum[i], .total = x->total[i]};
}

/* Of each half of the block, the sums of u * q8. */
static void half_sums(uint8_t u[CPU_VECTORS][CPU_VECTOR_BYTES], const int8_t *q, int32_t sums[2][OPS_GROUP]) {
  memset(sums, 0, 2 * sizeof sums[0]);
  for (int32_t v = 0; v < CPU_VECTORS; v++) {
    for (int32_t r = 0; r < OPS_GROUP; r++) {
      for (int32_t j = 0; j < 4; j++) sums[v / HALF_VECTORS][r] += u[v][4 * r + j] * q[4 * v + j];
    }
  }
}

static float add_one_scale(cpu_block k, cpu_format f, const block_act *a, size_t r, int32_t sum, float acc) {
  cpu_scale s = cpu_scale_at(k, f, r, 0);
  sum -= f.bias * a->total.all;
  acc = fmaf(s.scale * a->scale, (float)sum, acc);
  return f.minima ? fmaf(s.minimum, a->sum, acc) : acc;
}

static float add_two_scales(cpu_block k, cpu_format f, const block_act *a, size_t r, int32_t first,
                            int32_t last, float acc) {
  int32_t scale[2], minimum[2];
  for (size_t h = 0; h < 2; h++) cpu_sub_at(k, f, r, h, &scale[h], &minimum[h]);
  int32_t sum = scale[0] * (first - f.bias * a->total.first) + scale[1] * (last - f.bias * a->total.last);
  acc = fmaf(cpu_half_at(k.scales, r) * a->scale, (float)sum, acc);
  if (!f.minima) return acc;
  int32_t least = minimum[0] * a->total.first + minimum[1] * a->total.last;
  return fmaf(-(cpu_half_at(k.scales + CPU_HALVES, r) * a->scale), (float)least, acc);
}

typedef float sums[CPU_ROWS_MAX][OPS_GROUP];

/* The sum of the parts, or the only one. */
static void add_parts(sums part[CPU_PARTS], int32_t parts, int32_t rows, float *out) {
  if (parts == 1) {
    memcpy(out, part[0], (size_t)rows * sizeof part[0][0]);
    return;
  }
  for (int32_t i = 0; i < rows * OPS_GROUP; i++) {
    int32_t t = i / OPS_GROUP, r = i % OPS_GROUP;
    out[i] = (part[0][t][r] + part[1][t][r]) + (part[2][t][r] + part[3][t][r]);
  }
}

/* Adds blocks [first, end), ascending. */
static void add_blocks(cpu_format f, const void *group, const cpu_act *x, int32_t row, int32_t rows,
                       size_t first, size_t end, sums acc) {
  for (size_t b = first; b < end; b++) {
    uint8_t u[CPU_VECTORS][CPU_VECTOR_BYTES];
    cpu_block k = cpu_block_at(group, f, b);
    cpu_block_weights(k.planes, f, 0, CPU_VECTOR_BYTES, u);
    for (int32_t t = 0; t < rows; t++) {
      int32_t s[2][OPS_GROUP];
      block_act a = act_block(x, row + t, b);
      half_sums(u, a.q, s);
      for (size_t r = 0; r < OPS_GROUP; r++) {
        acc[t][r] = f.sub == 16 ? add_two_scales(k, f, &a, r, s[0][r], s[1][r], acc[t][r])
                                : add_one_scale(k, f, &a, r, s[0][r] + s[1][r], acc[t][r]);
      }
    }
  }
}

static void linear_int8(cpu_format f, const void *group, const cpu_act *x, int32_t row, int32_t rows,
                        int32_t parts, float *out) {
  sums acc[CPU_PARTS] = {0};
  for (int32_t i = 0; i < parts; i++) {
    add_blocks(f, group, x, row, rows, cpu_part_at(x->columns, parts, i) / OPS_BLOCK,
               cpu_part_at(x->columns, parts, i + 1) / OPS_BLOCK, acc[i]);
  }
  add_parts(acc, parts, rows, out);
}

/* acc[t] = fma(w[i], x[k + i], acc[t]), i ascending. */
static void add_inputs(float w[OPS_BLOCK][OPS_GROUP], size_t n, const cpu_act *x, int32_t row, int32_t rows,
                       size_t k, sums acc) {
  for (int32_t t = 0; t < rows; t++) {
    const float *value = x->f32 + (size_t)(row + t) * (size_t)x->columns + k;
    for (size_t i = 0; i < n; i++) {
      for (int32_t r = 0; r < OPS_GROUP; r++) acc[t][r] = fmaf(w[i][r], value[i], acc[t][r]);
    }
  }
}

static void block_values(cpu_block k, cpu_format f, float w[OPS_BLOCK][OPS_GROUP]) {
  uint8_t u[CPU_VECTORS][CPU_VECTOR_BYTES];
  cpu_block_weights(k.planes, f, 0, CPU_VECTOR_BYTES, u);
  for (size_t r = 0; r < OPS_GROUP; r++) {
    for (size_t i = 0; i < OPS_BLOCK; i++) {
      cpu_scale s = cpu_scale_at(k, f, r, i / (OPS_BLOCK / 2));
      w[i][r] = cpu_weight_value(f, s, u[i / 4][4 * r + i % 4]);
    }
  }
}

static void linear_f32(cpu_format f, const void *group, const cpu_act *x, int32_t row, int32_t rows,
                       int32_t parts, float *out) {
  sums acc[CPU_PARTS] = {0};
  float w[OPS_BLOCK][OPS_GROUP];
  for (int32_t i = 0; i < parts; i++) {
    const size_t end = cpu_part_at(x->columns, parts, i + 1);
    for (size_t k = cpu_part_at(x->columns, parts, i); k < end; k += OPS_BLOCK) {
      block_values(cpu_block_at(group, f, k / OPS_BLOCK), f, w);
      add_inputs(w, OPS_BLOCK, x, row, rows, k, acc[i]);
    }
  }
  add_parts(acc, parts, rows, out);
}

#define QUANTISED(name, TYPE, ...)                                                                           \
  void cpu_linear_##name##_int8_c(const void *group, const cpu_act *x, int32_t row, int32_t rows,            \
                                  int32_t parts, float *out) {                                               \
    linear_int8((cpu_format){__VA_ARGS__}, group, x, row, rows, parts, out);                                 \
  }                                                                                                          \
  void cpu_linear_##name##_f32_c(const void *group, const cpu_act *x, int32_t row, int32_t rows,             \
                                 int32_t parts, float *out) {                                                \
    linear_f32((cpu_format){__VA_ARGS__}, group, x, row, rows, parts, out);                                  \
  }
CPU_FORMATS(QUANTISED)

/* --- plain weights --- */

/* The weights of n inputs from k on, as f32. */
typedef void unpack_inputs(const uint8_t *group, size_t k, size_t n, float w[OPS_BLOCK][OPS_GROUP]);

static void f32_inputs(const uint8_t *group, size_t k, size_t n, float w[OPS_BLOCK][OPS_GROUP]) {
  memcpy(w, group + k * sizeof w[0], n * sizeof w[0]);
}

static void f16_inputs(const uint8_t *group, size_t k, size_t n, float w[OPS_BLOCK][OPS_GROUP]) {
  const uint8_t *from = group + k * CPU_HALVES;
  for (size_t i = 0; i < n * OPS_GROUP; i++) w[i / OPS_GROUP][i % OPS_GROUP] = cpu_half_at(from, i);
}

static void bf16_inputs(const uint8_t *group, size_t k, size_t n, float w[OPS_BLOCK][OPS_GROUP]) {
  const uint16_t *from = (const uint16_t *)group + k * OPS_GROUP;
  for (size_t i = 0; i < n * OPS_GROUP; i++) w[i / OPS_GROUP][i % OPS_GROUP] = cpu_bf16(from[i]);
}

static void linear_plain(unpack_inputs *unpack, const void *group, const cpu_act *x, int32_t row,
                         int32_t rows, int32_t parts, float *out) {
  sums acc[CPU_PARTS] = {0};
  float w[OPS_BLOCK][OPS_GROUP];
  for (int32_t i = 0; i < parts; i++) {
    const size_t end = cpu_part_at(x->columns, parts, i + 1);
    for (size_t k = cpu_part_at(x->columns, parts, i), n; k < end; k += n) {
      n = end - k < OPS_BLOCK ? end - k : OPS_BLOCK;
      unpack(group, k, n, w);
      add_inputs(w, n, x, row, rows, k, acc[i]);
    }
  }
  add_parts(acc, parts, rows, out);
}

#define PLAIN(name)                                                                                          \
  void cpu_linear_##name##_c(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts,  \
                             float *out) {                                                                   \
    linear_plain(name##_inputs, group, x, row, rows, parts, out);                                            \
  }
PLAIN(f32)
PLAIN(f16)
PLAIN(bf16)
