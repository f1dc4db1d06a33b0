/* activations.h - the int8 form of activations that a test has made up. In the engine each op writes that of
 * its own output. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

#include <assert.h>
#include <string.h>

/* The kernels that this device computes with. */
static inline const cpu_kernels *kernels_of(const ops *device) {
#if defined(__x86_64__)
  const cpu_kernels *const simd[] = {&cpu_kernels_avx2, &cpu_kernels_avx_vnni, &cpu_kernels_avx512};
  for (size_t i = 0; i < sizeof simd / sizeof simd[0]; i++)
    if (strcmp(device->table->name, simd[i]->name) == 0) return simd[i];
#endif
  assert(strcmp(device->table->name, cpu_kernels_c.name) == 0);
  return &cpu_kernels_c;
}

/* Fills x's int8 form from its first `rows` rows of f32, with the device's kernel. Nothing where x has none.
 */
static inline void quantize_rows(const ops *device, ops_act *x, int32_t rows) {
  if (!x->q8) return;
  kernels_of(device)->quantize(x->q8, x->scale, x->sum, x->total, x->f32, rows * x->columns);
}
