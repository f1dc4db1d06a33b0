/* row_ops_c.h - the kernels of one row in plain C, which define the bits (ops.h). The SIMD files fall back to
 * them for shapes that do not fill a vector. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

void cpu_norm_c(float *y, const float *x, const float *w, int32_t n, float eps);
void cpu_quantize_c(int8_t *q, float *scale, float *sum, cpu_total *total, const float *x, int32_t n);
void cpu_rope_c(float *y, const float *x, const float *cosine, const float *sine, int32_t n);
void cpu_store_c(ops_kv_type type, void *to, int32_t stride, const float *x, int32_t n);
void cpu_attention_c(const cpu_attention *a);
void cpu_attention_join_c(const cpu_attention *a);
void cpu_mass_c(const cpu_attention *a, const cpu_mass *m);
void cpu_swiglu_c(float *y, const float *gate, const float *up, int32_t n);
