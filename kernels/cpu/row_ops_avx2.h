/* row_ops_avx2.h - one row at a time, with AVX2, FMA and F16C; equal to row_ops_c.h bit for bit. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

void cpu_norm_avx2(float *y, const float *x, const float *w, int32_t n, float eps);
void cpu_quantize_avx2(int8_t *q, float *scale, float *sum, cpu_total *total, const float *x, int32_t n);
void cpu_rope_avx2(float *y, const float *x, const float *cosine, const float *sine, int32_t n);
void cpu_store_avx2(ops_kv_type type, void *to, int32_t stride, const float *x, int32_t n);
void cpu_swiglu_avx2(float *y, const float *gate, const float *up, int32_t n);
