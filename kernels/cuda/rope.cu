/* rope.cu - the angles of a forward's rows. */
#include "kernels/cuda/cuda_kernels.h"

#include "kernels/rope_angle.h"

#define ROPE_THREADS 64

static __global__ void rope_angles(cuda_rows rows, const float *frequency, int32_t dim, float times,
                                   float *angles) {
  const int32_t row = (int32_t)blockIdx.x;
  if (row >= rows.batch->row_count) return;
  const int32_t position = rows.batch->rows[row].position;
  float *cosines = angles + (size_t)row * 2 * (size_t)dim, *sines = cosines + dim;
  for (int32_t i = (int32_t)threadIdx.x; i < dim / 2; i += ROPE_THREADS) {
    float cosine, sine;
    rope_angle(frequency[i], position, times, &cosine, &sine);
    cosines[2 * i] = cosines[2 * i + 1] = cosine;
    sines[2 * i] = -sine;
    sines[2 * i + 1] = sine;
  }
}

void cuda_rope(cudaStream_t stream, cuda_rows rows, const float *frequency, int32_t dim, float times,
               float *angles) {
  cuda_launch(rope_angles, dim3((unsigned)rows.bucket), dim3(ROPE_THREADS), 0, stream, rows, frequency, dim,
              times, angles);
}
