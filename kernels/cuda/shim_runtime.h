/* shim_runtime.h - as much of CUDA's runtime as our device uses, on the CPU (shim.h), for C and C++. Names
 * and meanings are NVIDIA's.
 *
 * A stream only queues what it is given. What is queued runs, in order, when somebody waits for it or asks
 * whether it is done; so memory that is used again too early, or read too early, holds what a GPU would find
 * there. The default stream (NULL) does what it is given at once, after everything that is queued. Between
 * cudaStreamBeginCapture and cudaStreamEndCapture a stream collects a graph instead. */
#pragma once

#include "common/base/portable.h"

#include <stddef.h>

#ifdef __cplusplus
#define SHIM_OR(otherwise) = otherwise
#else
#define SHIM_OR(otherwise)
#endif

typedef enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719
} cudaError_t;
typedef enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
} cudaMemcpyKind;
typedef enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
} cudaStreamCaptureMode;
typedef enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
} cudaDeviceAttr;
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };

typedef struct shim_stream *cudaStream_t; /* NULL: the default stream */
typedef struct shim_event *cudaEvent_t;
typedef struct shim_graph *cudaGraph_t;
typedef struct shim_graph *cudaGraphExec_t;

typedef struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
} cudaDeviceProp;

PORTABLE_C_BEGIN

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorString(cudaError_t code);
const char *cudaGetErrorName(cudaError_t code);

cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaMallocHost(void **p, size_t bytes);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostGetDevicePointer(void **p, void *host, unsigned flags);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream SHIM_OR(nullptr));
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream SHIM_OR(nullptr));

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream SHIM_OR(nullptr));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t last);

/* A graph is the list of what was captured; its arguments are those of the capture. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph,
                                 unsigned long long flags SHIM_OR(0));
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);

/* --- for tests: what may happen to a device --- */

/* How many devices there are, the driver's version (13000: 13.0), and the compute capability. */
void shim_runtime_machine(int devices, int driver, int major, int minor);
/* Bytes of device memory in all, with what is taken already. */
void shim_runtime_limit(size_t bytes);
/* The same of pinned memory of the host. */
void shim_runtime_limit_pinned(size_t bytes);
/* What a kernel does that reads memory it must not: every call fails until the last stream is destroyed. */
void shim_runtime_fault(void);
/* Bytes of device and pinned memory that are taken. */
size_t shim_runtime_taken(void);

PORTABLE_C_END

#ifdef __cplusplus
template <class T> cudaError_t cudaMalloc(T **p, size_t bytes) {
  return cudaMalloc((void **)p, bytes);
}
#endif
