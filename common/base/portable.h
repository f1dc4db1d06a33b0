/* portable.h - what a header needs that C, C++ and CUDA include.
 *
 * PORTABLE marks functions that run on the host and on a CUDA device. The C sources, the .cu files under nvcc
 * and the same .cu files under g++ (kernels/cuda) compile one text, so that their bits agree. */
#pragma once

#ifdef __CUDACC__
#define PORTABLE static __host__ __device__ inline
#else
#define PORTABLE static inline
#endif

/* Around declarations of functions that a C source defines, or a .cu file for C to call. */
#ifdef __cplusplus
#define PORTABLE_C_BEGIN extern "C" {
#define PORTABLE_C_END   }
#define _Static_assert static_assert
#else
#define PORTABLE_C_BEGIN
#define PORTABLE_C_END
#endif
