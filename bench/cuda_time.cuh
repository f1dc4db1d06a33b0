/* cuda_time.cuh - for benchmarks of CUDA kernels: memory, a stream, and the time of what is put into it. An
 * error of the runtime ends the program. */
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#define CUDA_TIME_REPEATS 5

inline cudaStream_t cuda_time_stream;

inline void cuda_time_ok(cudaError_t code, const char *what) {
  if (code == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
  exit(1);
}

/* Zeroed. */
template <class T> T *cuda_time_take(size_t n) {
  T *p;
  cuda_time_ok(cudaMalloc((void **)&p, n * sizeof(T)), "cudaMalloc");
  cuda_time_ok(cudaMemset(p, 0, n * sizeof(T)), "cudaMemset");
  return p;
}

/* Microseconds of what `body` puts into the stream: the fastest of some replays. */
inline double cuda_time_us(const std::function<void()> &body) {
  cudaGraph_t graph;
  cudaGraphExec_t replayed;
  cudaEvent_t first, last;
  cuda_time_ok(cudaEventCreate(&first), "event");
  cuda_time_ok(cudaEventCreate(&last), "event");
  cuda_time_ok(cudaStreamBeginCapture(cuda_time_stream, cudaStreamCaptureModeThreadLocal), "capture");
  body();
  cuda_time_ok(cudaStreamEndCapture(cuda_time_stream, &graph), "capture");
  cuda_time_ok(cudaGraphInstantiate(&replayed, graph, 0), "instantiate");
  float best = 1e30f;
  for (int i = 0; i < CUDA_TIME_REPEATS; i++) {
    float ms;
    cuda_time_ok(cudaEventRecord(first, cuda_time_stream), "record");
    cuda_time_ok(cudaGraphLaunch(replayed, cuda_time_stream), "launch");
    cuda_time_ok(cudaEventRecord(last, cuda_time_stream), "record");
    cuda_time_ok(cudaStreamSynchronize(cuda_time_stream), "run");
    cuda_time_ok(cudaEventElapsedTime(&ms, first, last), "time");
    if (ms < best) best = ms;
  }
  cudaGraphExecDestroy(replayed);
  cudaGraphDestroy(graph);
  return (double)best * 1000;
}
