/* linear_step.h - linears of BF16 weights in class bf16-t25 (ops.h): activations come in their bf16 form, and
 * a step of inputs at a time is added as a tensor core does it (tensor_step.h). Those with AVX2 and AVX-512
 * equal the one in plain C bit for bit. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

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
