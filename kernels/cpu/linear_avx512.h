/* linear_avx512.h - the linear kernels with AVX-512 (F, BW, DQ, VL, VNNI); equal to linear_c.h bit for bit, as
 * linear_avx2.h. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

cpu_linear cpu_linear_q4_0_int8_avx512, cpu_linear_q4_1_int8_avx512, cpu_linear_q8_0_int8_avx512;
cpu_linear cpu_linear_q4_0_f32_avx512, cpu_linear_q4_1_f32_avx512, cpu_linear_q8_0_f32_avx512;
cpu_linear cpu_linear_f32_avx512, cpu_linear_f16_avx512, cpu_linear_bf16_avx512;
