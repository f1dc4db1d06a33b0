#include "kernels/cpu/linear_step.h"
#include "kernels/cpu/tensor_step.h"

void linear_step_exact(const uint16_t *weights, const uint16_t *inputs, uint32_t lanes, float *sums) {
  for (size_t r = 0; r < OPS_GROUP; r++)
    if (lanes >> r & 1) sums[r] = tensor_step(sums[r], weights + r, OPS_GROUP, inputs);
}

/* The sum of inputs [from, to) of a row, which are whole steps. */
static void add_steps(const uint16_t *weights, const uint16_t *inputs, size_t from, size_t to, float *sums) {
  for (size_t k = from; k < to; k += TENSOR_STEP)
    linear_step_exact(weights + k * OPS_GROUP, inputs + k, UINT32_MAX, sums);
}

void cpu_linear_step_c(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts,
                       float *out) {
  for (int32_t t = 0; t < rows; t++, out += OPS_GROUP) {
    const uint16_t *inputs = x->bf16 + (size_t)(row + t) * (size_t)x->columns;
    float sums[CPU_PARTS][OPS_GROUP] = {0};
    for (int32_t i = 0; i < parts; i++)
      add_steps(group, inputs, cpu_part_at(x->columns, parts, i), cpu_part_at(x->columns, parts, i + 1),
                sums[i]);
    for (size_t r = 0; r < OPS_GROUP; r++)
      out[r] = parts == 1 ? sums[0][r] : (sums[0][r] + sums[1][r]) + (sums[2][r] + sums[3][r]);
  }
}
