/* linear_c.h - the linear kernels in plain C, which define the bits (ops.h). */
#pragma once

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/packed_format.h"

#define LINEAR_C(name, ...) cpu_linear cpu_linear_##name##_int8_c, cpu_linear_##name##_f32_c;
CPU_FORMATS(LINEAR_C)
#undef LINEAR_C
cpu_linear cpu_linear_f32_c, cpu_linear_f16_c, cpu_linear_bf16_c;
