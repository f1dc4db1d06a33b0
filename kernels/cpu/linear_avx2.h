/* linear_avx2.h - the linear kernels with AVX2, FMA and F16C; equal to linear_c.h bit for bit: an output is
 * one SIMD lane, integer block sums are exact, and the f32 steps are the same in the same order. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

cpu_linear cpu_linear_q4_1_int8_avx2, cpu_linear_q8_0_int8_avx2;
cpu_linear cpu_linear_q4_1_f32_avx2, cpu_linear_q8_0_f32_avx2;
cpu_linear cpu_linear_f32_avx2, cpu_linear_f16_avx2, cpu_linear_bf16_avx2;
