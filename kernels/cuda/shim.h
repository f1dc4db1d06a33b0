/* shim.h - what CUDA sources include instead of the runtime's header, so that they compile without CUDA too.
 *
 * Under nvcc it is the runtime and cuda_launch. Under any other C++ compiler it runs the kernels on the CPU,
 * for tests on machines without a GPU. The blocks of a grid run one after the other; the threads of a block
 * are fibers. A thread that meets no barrier is a plain call. What a GPU would leave to chance is chosen to
 * find mistakes: shared and fresh device memory is full of NaNs, a warp runs as far as its barriers let it
 * before another one does, every other block runs its threads backwards, and threads that wait for what never
 * comes end the program.
 *
 * Kernels that want to run here keep to this:
 * - shared memory is dynamic and comes from CUDA_SHARED; there are no __shared__ variables
 * - all 32 lanes take part in a warp's intrinsics, and blocks that use them have a multiple of 32 threads
 * - no thread returns before a __syncthreads that others of its block come to */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__

#include <cuda_runtime.h>

/* The block's dynamic shared memory, aligned to 16 bytes. */
#define CUDA_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

template <class... Parameters, class... Arguments>
void cuda_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                 cudaStream_t stream, Arguments... arguments) {
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
}

#elif !defined(__cplusplus)

/* C sources launch no kernels, and are told which runtime they are built for. */
#ifdef TANDEM_CUDA_EMULATED
#include "kernels/cuda/shim_runtime.h"
#else
#include <cuda_runtime_api.h>
#endif

#else

#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/cuda/shim_runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace shim {

constexpr int WARP = 32;
constexpr size_t EXCHANGE_MAX = 64; /* bytes that a lane gives to its warp at once */
inline int shared_max =
    99 << 10; /* bytes of a block: as many as the smallest GPUs have, if no test wants more */

struct coordinates {
  dim3 grid, block, block_at, thread_at;
  unsigned char *shared = nullptr;
};

inline thread_local coordinates here; /* of the thread that runs */

void block_barrier();
/* Waits for all lanes of the warp; what they gave, lane i at i * EXCHANGE_MAX, until the next but one. */
const unsigned char *warp_exchange(const void *mine, size_t bytes);
inline int thread() { /* of the block */
  const dim3 &at = here.thread_at, &n = here.block;
  return (int)(at.x + n.x * (at.y + n.y * at.z));
}
inline int lane() {
  return thread() % WARP;
}

/* Of each thread of the block that runs: whether it has waited for the previous kernel. */
constexpr int THREADS_MAX = 1024;
inline thread_local bool waited[THREADS_MAX];
void must_have_waited(); /* ends the program if the thread has not */
/* Of tests: what the previous kernel still does while a block begins. When they wait, all its threads meet
 * before that and after it. */
inline std::function<void()> previous_ends;
inline void wait_for_previous();

/* Runs `step`, or captures it. */
void enqueue(cudaStream_t stream, std::function<void()> step);
void launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> thread);

/* What device_code.cuh asks for: copies that are done when they are waited for, and a tensor core's product
 * of 16 rows and 8 columns of `words` * 16 bytes. */
void copy_later(void *to, const void *from, size_t bytes);
void copies_end();
void copies_wait(int left);
/* Barriers in shared memory: copies are done when their phase ends. */
void signal_init(uint32_t words[2], int arrivals);
void signal_arrive(uint32_t words[2]);
void signal_wait(uint32_t words[2], uint32_t phase);
void signal_arrive_after_copies(uint32_t words[2]);
void multiply_bytes(int32_t c[4], const uint32_t *a, const uint32_t *b, int words, bool is_signed);
void multiply_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]);
void load_turned(uint32_t to[4], const void *row);
void load_rows(uint32_t to[4], const void *row);

template <class T> T of_lane(T mine, int from) {
  static_assert(sizeof(T) <= EXCHANGE_MAX, "too large for a warp's exchange");
  const unsigned char *all = warp_exchange(&mine, sizeof mine);
  T value;
  memcpy(&value, all + (size_t)(from & (WARP - 1)) * EXCHANGE_MAX, sizeof value);
  return value;
}

void wait_for_previous() {
  if (previous_ends) {
    block_barrier();
    if (thread() == 0) previous_ends();
    block_barrier();
  }
  waited[thread()] = true;
}

} // namespace shim

#define threadIdx (shim::here.thread_at)
#define blockIdx  (shim::here.block_at)
#define blockDim  (shim::here.block)
#define gridDim   (shim::here.grid)

#define CUDA_SHARED(name) unsigned char *name = shim::here.shared

template <class... Parameters, class... Arguments>
void cuda_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                 cudaStream_t stream, Arguments... arguments) {
  shim::launch(stream, grid, block, shared_bytes, [=] { kernel(static_cast<Parameters>(arguments)...); });
}

inline void __syncthreads() {
  shim::block_barrier();
}
inline void __syncwarp(unsigned = ~0u) {
  char nothing = 0;
  shim::warp_exchange(&nothing, sizeof nothing);
}
template <class T> T __shfl_sync(unsigned, T value, int from) {
  return shim::of_lane(value, from);
}
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
  return shim::of_lane(value, shim::lane() ^ mask);
}
template <class T> T __shfl_down_sync(unsigned, T value, unsigned by) {
  int from = shim::lane() + (int)by;
  return shim::of_lane(value, from < shim::WARP ? from : shim::lane());
}
template <class T> T __shfl_up_sync(unsigned, T value, unsigned by) {
  int from = shim::lane() - (int)by;
  return shim::of_lane(value, from >= 0 ? from : shim::lane());
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const unsigned char *all = shim::warp_exchange(&predicate, sizeof predicate);
  unsigned bits = 0;
  for (int i = 0; i < shim::WARP; i++) {
    int p;
    memcpy(&p, all + (size_t)i * shim::EXCHANGE_MAX, sizeof p);
    bits |= (unsigned)(p != 0) << i;
  }
  return bits;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == ~0u;
}
template <class T> T __ldg(const T *p) {
  return *p;
}
inline void __threadfence() {}
inline void __threadfence_system() {}

/* Fibers take turns at barriers alone, so plain code is atomic. */
template <class T> T atomicAdd(T *at, T value) {
  T old = *at;
  *at = old + value;
  return old;
}
template <class T> T atomicMax(T *at, T value) {
  T old = *at;
  *at = old > value ? old : value;
  return old;
}
template <class T> T atomicMin(T *at, T value) {
  T old = *at;
  *at = old < value ? old : value;
  return old;
}
template <class T> T atomicOr(T *at, T value) {
  T old = *at;
  *at = old | value;
  return old;
}
template <class T> T atomicExch(T *at, T value) {
  T old = *at;
  *at = value;
  return old;
}
template <class T> T atomicCAS(T *at, T expected, T value) {
  T old = *at;
  if (old == expected) *at = value;
  return old;
}

#endif
