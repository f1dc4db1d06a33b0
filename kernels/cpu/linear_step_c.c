#include "kernels/cpu/linear_step.h"

void linear_step_exact(const uint16_t *weights, const uint16_t *inputs, uint32_t lanes, float *sums) {
  for (size_t r = 0; r < OPS_GROUP; r++)
    if (lanes >> r & 1) sums[r] = tensor_step(sums[r], weights + r, OPS_GROUP, inputs);
}

static void add_part(const uint16_t *weights, const uint16_t *x, size_t columns, int32_t rows, size_t from,
                     size_t to, float *out) {
  memset(out, 0, (size_t)rows * OPS_GROUP * sizeof *out);
  for (size_t t = 0; t < (size_t)rows; t++) {
    for (size_t k = from; k < to; k += TENSOR_STEP)
      linear_step_exact(weights + k * OPS_GROUP, x + t * columns + k, UINT32_MAX, out + t * OPS_GROUP);
  }
}

void cpu_linear_step_c(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts,
                       float *out) {
  linear_step_parts(add_part, group, x, row, rows, parts, out);
}
