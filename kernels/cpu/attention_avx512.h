/* attention_avx512.h - attention of a few rows with AVX-512; equal to the plain C one bit for bit. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

void cpu_attention_avx512(const cpu_attention *a);
