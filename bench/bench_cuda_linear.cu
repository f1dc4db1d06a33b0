/* bench_cuda_linear.cu - what the linears of a CUDA device cost: microseconds and GB/s of packed weights for
 * some shapes, types and numbers of rows, and the linears of a whole small model. Kernels follow each other
 * in a graph, as in a forward, over so many copies of the weights that no cache holds them. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/weights.cuh"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#define LAUNCHES     200
#define REPEATS      5
#define WEIGHT_BYTES ((size_t)512 << 20) /* ten times an L2 cache */
#define ROWS_MAX     64

static cudaStream_t stream;

static void ok(cudaError_t code, const char *what) {
  if (code == cudaSuccess) return;
  fprintf(stderr, "bench_cuda_linear: %s: %s\n", what, cudaGetErrorString(code));
  exit(1);
}

template <class T> static T *take(size_t n) {
  T *p;
  ok(cudaMalloc((void **)&p, n * sizeof(T)), "cudaMalloc");
  return p;
}

static size_t packed_bytes(ops_type type, int32_t rows, int32_t columns) {
  const size_t groups = (size_t)(rows + OPS_GROUP - 1) / OPS_GROUP;
  switch (type) {
  case OPS_Q4_1:
    return groups * weights<OPS_Q4_1>::group_bytes(columns);
  case OPS_Q8_0:
    return groups * weights<OPS_Q8_0>::group_bytes(columns);
  case OPS_Q4_K:
    return groups * weights<OPS_Q4_K>::group_bytes(columns);
  case OPS_Q6_K:
    return groups * weights<OPS_Q6_K>::group_bytes(columns);
  default:
    return groups * weights<OPS_F16>::group_bytes(columns);
  }
}

/* Microseconds of what `body` puts into the stream: the fastest of some replays. */
static double graph_us(const std::function<void()> &body) {
  cudaGraph_t graph;
  cudaGraphExec_t replayed;
  cudaEvent_t first, last;
  ok(cudaEventCreate(&first), "event");
  ok(cudaEventCreate(&last), "event");
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  body();
  ok(cudaStreamEndCapture(stream, &graph), "capture");
  ok(cudaGraphInstantiate(&replayed, graph, 0), "instantiate");
  float best = 1e30f;
  for (int i = 0; i < REPEATS; i++) {
    float ms;
    ok(cudaEventRecord(first, stream), "record");
    ok(cudaGraphLaunch(replayed, stream), "launch");
    ok(cudaEventRecord(last, stream), "record");
    ok(cudaStreamSynchronize(stream), "run");
    ok(cudaEventElapsedTime(&ms, first, last), "time");
    if (ms < best) best = ms;
  }
  cudaGraphExecDestroy(replayed);
  cudaGraphDestroy(graph);
  return (double)best * 1000;
}

/* What all cases share: memory of the largest size. */
struct room {
  uint8_t *weights;
  float *x, *y, *norm;
  cuda_tile *tiles;
  cuda_batch *batch;
};

static const int32_t WIDEST = 16384, LONGEST = 49152;

static room take_room() {
  room r = {take<uint8_t>(WEIGHT_BYTES),
            take<float>((size_t)ROWS_MAX * WIDEST),
            take<float>((size_t)ROWS_MAX * LONGEST),
            take<float>(WIDEST),
            take<cuda_tile>((size_t)cuda_tile_rows(ROWS_MAX) * WIDEST / OPS_BLOCK),
            take<cuda_batch>(1)};
  ok(cudaMemset(r.weights, 0x11, WEIGHT_BYTES), "memset");
  ok(cudaMemset(r.x, 0, (size_t)ROWS_MAX * WIDEST * sizeof(float)), "memset");
  ok(cudaMemset(r.norm, 0, WIDEST * sizeof(float)), "memset");
  return r;
}

static cuda_rows rows_of(const room &r, int32_t rows) {
  cuda_batch b = {};
  b.row_count = rows;
  ok(cudaMemcpy(r.batch, &b, sizeof b, cudaMemcpyHostToDevice), "copy");
  return {r.batch, rows, false};
}

/* Weights one after the other, and from the beginning again where memory ends. */
static cuda_weight next_weight(const room &r, size_t *at, ops_type type, int32_t rows, int32_t columns) {
  const size_t bytes = packed_bytes(type, rows, columns);
  if (*at + bytes > WEIGHT_BYTES) *at = 0;
  const cuda_weight w = {type, rows, columns, r.weights + *at};
  *at += (bytes + 255) / 256 * 256;
  return w;
}

static void measure(const room &r, ops_type type, const char *name, int32_t outputs, int32_t columns,
                    bool norm) {
  const size_t bytes = packed_bytes(type, outputs, columns);
  printf("%-5s %6d x %5d %s", name, (int)outputs, (int)columns, norm ? "norm" : "    ");
  for (int32_t count : {1, 4, 8, 16, 64}) {
    const cuda_rows rows = rows_of(r, count);
    const cuda_norm_source from = {r.x, r.norm, 1e-5f};
    size_t at = 0;
    double us = graph_us([&] {
      for (int i = 0; i < LAUNCHES; i++) {
        const cuda_linear_job job = {next_weight(r, &at, type, outputs, columns), r.y, false, nullptr};
        cuda_linear(stream, rows, &job, 1, norm ? &from : nullptr, nullptr, {r.x, r.tiles, columns});
      }
    });
    printf("  %4d: %7.2f us %5.0f GB/s", (int)count, us / LAUNCHES, (double)bytes / (us / LAUNCHES) / 1e3);
  }
  printf("\n");
}

/* The linears of a model of 135M parameters: 30 layers, 576 wide, and its head. */
static void measure_model(const room &r, ops_type type, const char *name) {
  const int32_t wide = 576, keys = 192, inner = 1536, layers = 30, vocabulary = 49152;
  printf("%-5s linears of the model of 135M:", name);
  for (int32_t count : {1, 4, 8, 16, 64}) {
    const cuda_rows rows = rows_of(r, count);
    const cuda_norm_source norm = {r.x, r.norm, 1e-5f};
    size_t at = 0;
    double us = graph_us([&] {
      for (int32_t l = 0; l < layers; l++) {
        const cuda_linear_job qkv[3] = {{next_weight(r, &at, type, wide, wide), r.y, false, nullptr},
                                        {next_weight(r, &at, type, keys, wide), r.y, false, nullptr},
                                        {next_weight(r, &at, type, keys, wide), r.y, false, nullptr}};
        cuda_linear(stream, rows, qkv, 3, &norm, nullptr, {r.y, r.tiles, wide});
        const cuda_linear_job o = {next_weight(r, &at, type, wide, wide), r.x, true, nullptr};
        cuda_linear(stream, rows, &o, 1, nullptr, nullptr, {r.y, r.tiles, wide});
        const cuda_weight gate = next_weight(r, &at, type, inner, wide),
                          up = next_weight(r, &at, type, inner, wide);
        cuda_linear_swiglu(stream, rows, gate, up, &norm, {r.y, r.tiles, wide}, r.y);
        const cuda_linear_job down = {next_weight(r, &at, type, wide, inner), r.x, true, nullptr};
        cuda_linear(stream, rows, &down, 1, nullptr, nullptr, {r.y, r.tiles, inner});
      }
      const cuda_linear_job head = {next_weight(r, &at, type, vocabulary, wide), r.y, false, nullptr};
      cuda_linear(stream, rows, &head, 1, &norm, nullptr, {r.y, r.tiles, wide});
    });
    printf("  %4d: %7.1f us", (int)count, us);
  }
  printf("\n");
}

int main(void) {
  ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const room r = take_room();
  const struct {
    ops_type type;
    const char *name;
  } types[] = {
      {OPS_Q4_1, "Q4_1"}, {OPS_Q8_0, "Q8_0"}, {OPS_Q4_K, "Q4_K"}, {OPS_Q6_K, "Q6_K"}, {OPS_F16, "F16"}};
  measure_model(r, OPS_Q4_1, "Q4_1");
  measure_model(r, OPS_Q8_0, "Q8_0");
  for (const auto &t : types) {
    if (t.type != OPS_Q4_K && t.type != OPS_Q6_K) {
      measure(r, t.type, t.name, 576, 576, false);
      measure(r, t.type, t.name, 960, 576, true);
      measure(r, t.type, t.name, 49152, 576, true);
    }
    measure(r, t.type, t.name, 576, 1536, false);
    measure(r, t.type, t.name, 4096, 4096, true);
    measure(r, t.type, t.name, 14336, 4096, true);
    measure(r, t.type, t.name, 4096, 14336, false);
  }
  return 0;
}
