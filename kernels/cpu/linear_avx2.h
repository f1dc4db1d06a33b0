/* linear_avx2.h - the linear kernels with AVX2, FMA and F16C, and those with AVX-VNNI beside them; equal to
 * linear_c.h bit for bit: an output is one SIMD lane, integer block sums are exact, and the f32 steps are the
 * same in the same order. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/packed_format.h"

#define LINEAR_AVX2_ROWS 6 /* two registers for sums a row, and three to multiply: there are 16 registers */

#define LINEAR_AVX2(name, ...)                                                                               \
  cpu_linear cpu_linear_##name##_int8_avx2, cpu_linear_##name##_int8_avx_vnni, cpu_linear_##name##_f32_avx2;
CPU_FORMATS(LINEAR_AVX2)
#undef LINEAR_AVX2
cpu_linear cpu_linear_f32_avx2, cpu_linear_f16_avx2, cpu_linear_bf16_avx2;
