/* launch.cuh - launches of kernels that may begin before the previous kernel in their stream has ended: they
 * call device_wait_for_previous, in every thread, before they touch what other kernels of the same forward
 * write or read. The batch, block tables, weights and the cache's rows of earlier forwards are there before a
 * forward begins: what writes these is not launched so, and lets nobody begin early. */
#pragma once

#include "kernels/cuda/shim.h"

constexpr size_t LAUNCH_SHARED_BYTES = 48 << 10; /* more must be asked for */
constexpr int32_t LAUNCH_BLOCKS_AT_ONCE = 128;   /* about as many as a device runs at once */

inline int32_t launch_processors_for_test = 0; /* where it is not 0, there are so many */

#ifdef __CUDACC__

inline int32_t launch_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, which, device);
  return value;
}

inline int32_t launch_processors() {
  if (launch_processors_for_test) return launch_processors_for_test;
  return launch_attribute(cudaDevAttrMultiProcessorCount);
}

inline int32_t launch_shared_max() { /* bytes of a block */
  return launch_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

/* Programmatic launches exist from compute capability 9.0 on. */
inline bool launch_can_be_early() {
  return launch_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                  cudaStream_t stream, Arguments... arguments) {
  if (shared_bytes > LAUNCH_SHARED_BYTES)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = launch_can_be_early() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

#else

inline int32_t launch_processors() { /* few, so that a block has many groups */
  return launch_processors_for_test ? launch_processors_for_test : 3;
}

inline int32_t launch_shared_max() {
  return shim::shared_max;
}

template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                  cudaStream_t stream, Arguments... arguments) {
  shim::launch(stream, grid, block, shared_bytes, [=] {
    shim::waited[shim::thread()] = false;
    kernel(static_cast<Parameters>(arguments)...);
    shim::must_have_waited();
  });
}

#endif
