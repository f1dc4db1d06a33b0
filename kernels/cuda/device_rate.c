/* device_rate.c - how fast the device reads its memory: what a step is compared with. */
#include "kernels/cuda/device_parts.h"
#include "kernels/cuda/host_kernels.h"

#ifdef TANDEM_CUDA_EMULATED
#define READ_BYTES ((size_t)1 << 20)
#else
#define READ_BYTES ((size_t)1 << 30) /* twenty times a second-level cache */
#endif
#define PASSES 5

/* Milliseconds of one pass; 0: the device did not do it. */
static float pass_ms(cuda_device *d, void *memory) {
  float ms = 0;
  bool ran = cuda_device_ok(d, cudaEventRecord(d->forward.first, d->stream));
  if (ran) cuda_put_reading(d->stream, memory, READ_BYTES);
  ran = ran && cuda_device_ok(d, cudaGetLastError()) &&
        cuda_device_ok(d, cudaEventRecord(d->forward.last, d->stream)) &&
        cuda_device_ok(d, cudaStreamSynchronize(d->stream)) &&
        cuda_device_ok(d, cudaEventElapsedTime(&ms, d->forward.first, d->forward.last));
  return ran ? ms : 0;
}

double cuda_read_rate(device *base) {
  cuda_device *d = cuda_device_enter(base);
  device_memory *m = cuda_memory_take(base, MEM_GENERAL, READ_BYTES);
  float best = 0;
  if (!m) return 0;
  for (int32_t i = 0; i < PASSES; i++) {
    const float ms = pass_ms(d, m->at);
    if (ms > 0 && (best == 0 || ms < best)) best = ms;
  }
  cuda_memory_drop(base, m);
  return best > 0 ? (double)READ_BYTES / (1e-3 * (double)best) : 0;
}
