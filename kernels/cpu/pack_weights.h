/* pack_weights.h - weights in the form that kernels read, which is made once, at load. Of F32, F16 and BF16 a
 * group is [input][16]; the quantised types are in packed_format.h. Other devices use this form as well. */
#pragma once

#include "kernels/ops.h"

#define CPU_LAYOUT "cpu1" /* the number must grow with every change of these forms */

/* A packed matrix. columns is a multiple of OPS_BLOCK for the quantised types, of OPS_UNIT for those named
 * _K. */
typedef struct cpu_weight {
  ops_type type;
  int32_t rows, columns; /* outputs, inputs */
  const void *data;
} cpu_weight;

size_t cpu_group_bytes(ops_type type, int32_t columns); /* a multiple of 64 */
size_t cpu_packed_bytes(ops_type type, int32_t rows, int32_t columns);
void cpu_pack(ops_type type, int32_t rows, int32_t columns, const void *file, void *out, int32_t first,
              int32_t last);
/* Dequantises one row of w, exactly as the file defines it. */
void cpu_unpack_row(const cpu_weight *w, int32_t row, float *out);
