/* linear_c.h - the linear kernels in plain C, which define the bits (ops.h). */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

cpu_linear cpu_linear_q4_0_int8_c, cpu_linear_q4_1_int8_c, cpu_linear_q8_0_int8_c;
cpu_linear cpu_linear_q4_0_f32_c, cpu_linear_q4_1_f32_c, cpu_linear_q8_0_f32_c;
cpu_linear cpu_linear_f32_c, cpu_linear_f16_c, cpu_linear_bf16_c;
