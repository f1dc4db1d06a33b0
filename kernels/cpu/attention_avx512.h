/* attention_avx512.h - attention with AVX-512; equal to cpu_attention_c bit for bit. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

void cpu_attention_avx512(const cpu_attention *a);
void cpu_attention_join_avx512(const cpu_attention *a);
void cpu_mass_avx512(const cpu_attention *a, const cpu_mass *m);
