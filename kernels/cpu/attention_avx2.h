/* attention_avx2.h - attention of one row with AVX2, FMA and F16C; equal to cpu_attention_c bit for bit: a
 * key's dot product takes one lane (its slot in the tile), and a value's component takes one lane. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

void cpu_attention_avx2(const cpu_attention *a);
