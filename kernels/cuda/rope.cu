/* rope.cu - the angles of a forward's rows. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"

#include "kernels/rope_angle.h"

#define ROPE_THREADS 64

/* The previous kernel may still read the angles of an earlier rope: they are computed before it has ended,
 * and written afterwards. */
static __global__ void rope_angles(cuda_rows rows, const float *frequency, int32_t dim, float times,
                                   float *angles) {
  const int32_t row = (int32_t)blockIdx.x, count = rows.batch->row_count;
  const ops_row r = row < count ? rows.batch->rows[row] : ops_row();
  const int32_t position = r.position + r.rope_shift;
  float *cosines = angles + (size_t)row * 2 * (size_t)dim, *sines = cosines + dim;
  device_let_next_begin();
  for (int32_t first = 0; first < dim / 2; first += ROPE_THREADS) {
    const int32_t i = first + (int32_t)threadIdx.x;
    float cosine = 0, sine = 0;
    if (i < dim / 2) rope_angle(frequency[i], position, times, &cosine, &sine);
    device_wait_for_previous();
    if (row >= count || i >= dim / 2) continue;
    cosines[2 * i] = cosines[2 * i + 1] = cosine;
    sines[2 * i] = -sine;
    sines[2 * i + 1] = sine;
  }
}

void cuda_rope(cudaStream_t stream, cuda_rows rows, const float *frequency, int32_t dim, float times,
               float *angles) {
  launch_early(rope_angles, dim3((unsigned)rows.bucket), dim3(ROPE_THREADS), 0, stream, rows, frequency, dim,
               times, angles);
}
