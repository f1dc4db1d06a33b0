/* linear_avx512.h - the linear kernels with AVX-512 (F, BW, DQ, VL, VNNI); equal to linear_c.h bit for bit,
 * as linear_avx2.h. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/packed_format.h"

#define LINEAR_AVX512(name, ...) cpu_linear cpu_linear_##name##_int8_avx512, cpu_linear_##name##_f32_avx512;
CPU_FORMATS(LINEAR_AVX512)
#undef LINEAR_AVX512
cpu_linear cpu_linear_f32_avx512, cpu_linear_f16_avx512, cpu_linear_bf16_avx512;
