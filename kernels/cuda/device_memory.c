/* device_memory.c - memory of the device: what is taken, how it is filled through pinned windows,
 * activations.
 */
#include "kernels/cuda/device_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- taken and dropped --- */

static bool take_own(cuda_device *d, device_memory *m) {
  void *at = NULL;
  if (d->limit > 0 && m->bytes > d->limit - d->taken) return false;
  if (!cuda_device_ok(d, cudaMalloc(&at, m->bytes))) return false;
  m->at = at;
  d->taken += m->bytes;
  return true;
}

static bool take_mapped(cuda_device *d, device_memory *m) {
  void *host = NULL, *at = NULL;
  if (!cuda_device_ok(d, cudaHostAlloc(&host, m->bytes, cudaHostAllocMapped | cudaHostAllocPortable)))
    return false;
  m->host = host;
  if (cuda_device_ok(d, cudaHostGetDevicePointer(&at, host, 0))) m->at = at;
  return m->at != NULL;
}

static device_memory *take(device *base, mem_tag tag, size_t bytes,
                           bool (*take_bytes)(cuda_device *d, device_memory *m)) {
  cuda_device *d = cuda_device_enter(base);
  device_memory *m = d->lost || bytes == 0 ? NULL : calloc(1, sizeof *m);
  if (!m) return NULL;
  m->bytes = bytes;
  if (!take_bytes(d, m) || !cuda_device_ok(d, cudaMemsetAsync(m->at, 0, bytes, d->stream))) {
    cuda_memory_drop(base, m);
    return NULL;
  }
  mem_count(d->mem, tag, bytes);
  return m;
}

device_memory *cuda_memory_take(device *base, mem_tag tag, size_t bytes) {
  return take(base, tag, bytes, take_own);
}

device_memory *cuda_memory_take_mapped(device *base, mem_tag tag, size_t bytes) {
  return take(base, tag, bytes, take_mapped);
}

/* What is queued and uses the memory is done first: cudaFree waits for it, cudaFreeHost need not. */
void cuda_memory_drop(device *base, device_memory *m) {
  cuda_device *d = cuda_device_enter(base);
  if (!m) return;
  if (m->host) {
    cuda_device_ok(d, cudaStreamSynchronize(d->stream));
    cuda_device_ok(d, cudaFreeHost(m->host));
  } else if (m->at) {
    cuda_device_ok(d, cudaFree(m->at));
    d->taken -= m->bytes;
  }
  free(m);
}

size_t cuda_memory_left(const device *base) {
  cuda_device *d = cuda_device_enter(base);
  size_t left = 0, total;
  if (d->lost || !cuda_device_ok(d, cudaMemGetInfo(&left, &total))) return 0;
  return d->limit > 0 && d->limit - d->taken < left ? d->limit - d->taken : left;
}

bool cuda_memory_grow(cuda_device *d, device_memory **m, mem_tag tag, size_t bytes) {
  if (bytes == 0 || (*m && (*m)->bytes >= bytes)) return true;
  device_memory *larger = cuda_memory_take(&d->base, tag, bytes);
  if (!larger) return false;
  cuda_memory_drop(&d->base, *m);
  *m = larger;
  return true;
}

void *cuda_memory_pinned(cuda_device *d, size_t bytes) {
  void *p = NULL;
  if (d->lost || !cuda_device_ok(d, cudaHostAlloc(&p, bytes, cudaHostAllocDefault))) return NULL;
  return p;
}

void cuda_memory_unpin(void *p) {
  if (p) cudaFreeHost(p);
}

/* --- windows: while one is copied, the caller fills the other --- */

bool cuda_memory_open(cuda_device *d) {
  for (int32_t i = 0; i < CUDA_WINDOWS; i++)
    if (!cuda_device_ok(d, cudaEventCreate(&d->fill.windows[i].copied))) return false;
  return true;
}

void cuda_memory_close(cuda_device *d) {
  for (int32_t i = 0; i < CUDA_WINDOWS; i++) {
    cuda_memory_unpin(d->fill.windows[i].host);
    if (d->fill.windows[i].copied) cudaEventDestroy(d->fill.windows[i].copied);
  }
}

/* Windows are taken with the first use, and their events are then those of the copies that read them last. */
static void *window_host(cuda_device *d, cuda_window *w) {
  if (!w->host) w->host = cuda_memory_pinned(d, CUDA_WINDOW);
  return w->host && cuda_device_ok(d, cudaEventSynchronize(w->copied)) ? w->host : NULL;
}

void *cuda_memory_fill(device *base, device_memory *m, size_t at, size_t bytes) {
  cuda_device *d = cuda_device_enter(base);
  assert(!d->fill.to && at <= m->bytes && bytes <= m->bytes - at);
  if (d->lost || bytes > CUDA_WINDOW) return NULL;
  void *host = window_host(d, &d->fill.windows[d->fill.turn]);
  if (!host) return NULL;
  d->fill.to = m->at + at;
  d->fill.bytes = bytes;
  return host;
}

int cuda_memory_filled(device *base) {
  cuda_device *d = cuda_device_enter(base);
  assert(d->fill.to);
  cuda_window *w = &d->fill.windows[d->fill.turn];
  bool copied = !d->lost &&
                cuda_device_ok(d, cudaMemcpyAsync(d->fill.to, w->host, d->fill.bytes, cudaMemcpyHostToDevice,
                                                  d->stream)) &&
                cuda_device_ok(d, cudaEventRecord(w->copied, d->stream));
  d->fill.to = NULL;
  d->fill.turn = (d->fill.turn + 1) % CUDA_WINDOWS;
  return copied ? OPS_OK : d->lost ? OPS_LOST : OPS_FAILED;
}

size_t cuda_memory_window_max(const device *d) {
  (void)d;
  return CUDA_WINDOW;
}

device_memory *cuda_memory_adopt(device *d, const void *host, size_t bytes) {
  (void)d, (void)host, (void)bytes;
  return NULL;
}

/* --- read --- */

/* Straight to the caller's memory: it is for loaders and tests, and need not be fast. */
static int read_bytes(cuda_device *d, const void *from, size_t bytes, void *out) {
  bool done = !d->lost &&
              cuda_device_ok(d, cudaMemcpyAsync(out, from, bytes, cudaMemcpyDeviceToHost, d->stream)) &&
              cuda_device_ok(d, cudaStreamSynchronize(d->stream));
  return done ? OPS_OK : d->lost ? OPS_LOST : OPS_FAILED;
}

int cuda_memory_read(device *base, const device_memory *m, size_t at, size_t bytes, void *out) {
  assert(at <= m->bytes && bytes <= m->bytes - at);
  return read_bytes(cuda_device_enter(base), m->at + at, bytes, out);
}

/* --- activations --- */

/* Kernels may count with whole buckets of rows. with_tiles: a quantised weight, or one of BF16, can read
 * them. */
static bool act_take(device *base, device_act *a, bool with_tiles) {
  int32_t rows = cuda_batch_bucket(a->rows);
  size_t columns = (size_t)a->columns, floats = (size_t)rows * columns;
  size_t tiles = (size_t)cuda_tile_rows(rows) * (columns / OPS_BLOCK);
  a->f32 = cuda_memory_take(base, MEM_ACTIVATIONS, floats * sizeof(float));
  a->bf16 = base->math == OPS_MATH_BF16;
  size_t tile = a->bf16 ? sizeof(cuda_bf16_tile) : sizeof(cuda_tile);
  if (with_tiles) a->tiles = cuda_memory_take(base, MEM_ACTIVATIONS, tiles * tile);
  return a->f32 && (a->tiles || !with_tiles);
}

device_act *cuda_memory_act(device *base, int32_t rows, int32_t columns, bool input) {
  device_act *a = calloc(1, sizeof *a);
  if (!a) return NULL;
  a->rows = rows;
  a->columns = columns;
  if (act_take(base, a, input && base->math != OPS_MATH_F32 && columns % OPS_BLOCK == 0)) return a;
  cuda_memory_act_drop(base, a);
  return NULL;
}

void cuda_memory_act_drop(device *base, device_act *a) {
  if (!a) return;
  cuda_memory_drop(base, a->f32);
  cuda_memory_drop(base, a->tiles);
  free(a);
}

void cuda_memory_act_write(device *base, device_act *a, int32_t rows, const float *from) {
  cuda_device *d = cuda_device_enter(base);
  assert(rows <= a->rows);
  size_t bytes = (size_t)rows * (size_t)a->columns * sizeof *from;
  if (!d->lost &&
      cuda_device_ok(d, cudaMemcpyAsync(a->f32->at, from, bytes, cudaMemcpyHostToDevice, d->stream)))
    cuda_device_ok(d, cudaStreamSynchronize(d->stream));
}

int cuda_memory_act_read(device *base, const device_act *a, int32_t rows, float *to) {
  assert(rows <= a->rows);
  return read_bytes(cuda_device_enter(base), a->f32->at, (size_t)rows * (size_t)a->columns * sizeof *to, to);
}
