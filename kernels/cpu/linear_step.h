/* linear_step.h - linears of BF16 weights in class bf16-t25 (ops.h): activations come in their bf16 form, and
 * a step of inputs at a time is added as a tensor core does it (tensor_step.h). Those with AVX2 and AVX-512
 * equal the one in plain C bit for bit. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/tensor_step.h"

cpu_linear cpu_linear_step_c, cpu_linear_step_avx2, cpu_linear_step_avx512;

/* Ordinary steps are added in f32 and integers, others by tensor_step. An ordinary step has no subnormal
 * input, all its inputs are below 2^LINEAR_STEP_INPUT_MAX, and its largest exponent is in the range below:
 * there no product that counts is subnormal or infinite, and what a zero or subnormal weight makes is below
 * what is cut off; weights are finite. A zero among the inputs gets a field of its exponent that never is the
 * largest. */
#define LINEAR_STEP_INPUT_MAX    20
#define LINEAR_STEP_EXPONENT_MIN (-80)
#define LINEAR_STEP_EXPONENT_MAX 120
#define LINEAR_STEP_ZERO         (-512)

/* Adds a step of a row's inputs to the sums of those outputs of a group whose bits are in `lanes`. weights
 * [TENSOR_STEP][OPS_GROUP], inputs [TENSOR_STEP], sums [OPS_GROUP]. */
void linear_step_exact(const uint16_t *weights, const uint16_t *inputs, uint32_t lanes, float *sums);

/* A step of a row's inputs: as f32, and the fields of their exponents. */
typedef struct linear_step_inputs {
  _Alignas(64) float values[TENSOR_STEP];
  int32_t fields[TENSOR_STEP];
  bool ordinary;
} linear_step_inputs;

/* The sums of the inputs [from, to) of some rows of x [rows][columns], which are whole steps, to out
 * [rows][OPS_GROUP]. */
typedef void linear_step_add(const uint16_t *weights, const uint16_t *x, size_t columns, int32_t rows,
                             size_t from, size_t to, float *out);

/* A cpu_linear, from what sums a part. */
static inline void linear_step_parts(linear_step_add *add, const void *group, const cpu_act *x, int32_t row,
                                     int32_t rows, int32_t parts, float *out) {
  float sum[CPU_PARTS][CPU_ROWS_MAX * OPS_GROUP];
  const uint16_t *inputs = x->bf16 + (size_t)row * (size_t)x->columns;
  for (int32_t i = 0; i < parts; i++)
    add(group, inputs, (size_t)x->columns, rows, cpu_part_at(x->columns, parts, i),
        cpu_part_at(x->columns, parts, i + 1), parts == 1 ? out : sum[i]);
  for (int32_t i = 0; i < rows * OPS_GROUP && parts > 1; i++)
    out[i] = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
}
