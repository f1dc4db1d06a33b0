/* attention_avx2.h - attention with AVX2, FMA and F16C; equal to cpu_attention_c bit for bit. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

void cpu_attention_avx2(const cpu_attention *a);
void cpu_attention_join_avx2(const cpu_attention *a);
void cpu_mass_avx2(const cpu_attention *a, const cpu_mass *m);
