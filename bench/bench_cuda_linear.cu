/* bench_cuda_linear.cu - what the linears of a CUDA device cost: microseconds and GB/s of packed weights for
 * some shapes, types and numbers of rows, and the linears of whole models, as a share of the rate at which
 * memory is read. Kernels follow each other in a graph, as in a forward, over so many copies of the weights
 * that no cache holds them. */
#include "bench/cuda_time.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/host_kernels.h"
extern "C" {
#include "kernels/cpu/pack_weights.h"
}

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define LAUNCHES     200
#define WEIGHT_BYTES ((size_t)1 << 30) /* twenty times an L2 cache */
#define ROWS_MAX     64

/* What all cases share: memory of the largest size. */
struct room {
  uint8_t *weights;
  float *x, *y, *norm;
  cuda_bf16_tile *tiles; /* the larger ones */
  cuda_batch *batch;
};

static const int32_t WIDEST = 16384, LONGEST = 151936;

static room take_room() {
  room r = {cuda_time_take<uint8_t>(WEIGHT_BYTES),
            cuda_time_take<float>((size_t)ROWS_MAX * WIDEST),
            cuda_time_take<float>((size_t)ROWS_MAX * LONGEST),
            cuda_time_take<float>(WIDEST),
            cuda_time_take<cuda_bf16_tile>((size_t)cuda_tile_rows(ROWS_MAX) * WIDEST / OPS_BLOCK),
            cuda_time_take<cuda_batch>(1)};
  cuda_time_ok(cudaMemset(r.weights, 0x11, WEIGHT_BYTES), "memset");
  cuda_time_ok(cudaMemset(r.x, 0, (size_t)ROWS_MAX * WIDEST * sizeof(float)), "memset");
  cuda_time_ok(cudaMemset(r.norm, 0, WIDEST * sizeof(float)), "memset");
  return r;
}

static cuda_act act_of(const room &r, float *x, int32_t columns) {
  return {x, (cuda_tile *)(void *)r.tiles, columns, true};
}

static cuda_rows rows_of(const room &r, int32_t rows) {
  cuda_batch b = {};
  b.row_count = rows;
  cuda_time_ok(cudaMemcpy(r.batch, &b, sizeof b, cudaMemcpyHostToDevice), "copy");
  return {r.batch, rows, false};
}

/* Weights one after the other, and from the beginning again where memory ends. */
static cuda_weight next_weight(const room &r, size_t *at, ops_type type, int32_t rows, int32_t columns) {
  const size_t bytes = cpu_packed_bytes(type, rows, columns);
  if (*at + bytes > WEIGHT_BYTES) *at = 0;
  const cuda_weight w = {type, rows, columns, r.weights + *at};
  *at += (bytes + 255) / 256 * 256;
  return w;
}

static void measure(const room &r, ops_type type, const char *name, int32_t outputs, int32_t columns,
                    bool norm) {
  const size_t bytes = cpu_packed_bytes(type, outputs, columns);
  printf("%-5s %6d x %5d %s", name, (int)outputs, (int)columns, norm ? "norm" : "    ");
  for (int32_t count : {1, 4, 8, 16, 32, 64}) {
    const cuda_rows rows = rows_of(r, count);
    const cuda_norm_source from = {r.x, r.norm, 1e-5f};
    size_t at = 0;
    double us = cuda_time_us([&] {
      for (int i = 0; i < LAUNCHES; i++) {
        const cuda_linear_job job = {next_weight(r, &at, type, outputs, columns), r.y, false, nullptr};
        cuda_linear(cuda_time_stream, rows, &job, 1, norm ? &from : nullptr, nullptr,
                    act_of(r, r.x, columns));
      }
    });
    printf("  %4d: %7.2f us %5.0f GB/s", (int)count, us / LAUNCHES, (double)bytes / (us / LAUNCHES) / 1e3);
  }
  printf("\n");
}

/* Of a model like Llama: what a layer is made of, and how often. */
struct shape {
  const char *name;
  int32_t wide, keys, inner, layers, vocabulary;
  ops_type most, some, head; /* some: of every second layer's v and down, as in files named Q4_K_M */
};

static const shape shapes[] = {{"135M Q4_1", 576, 192, 1536, 30, 49152, OPS_Q4_1, OPS_Q4_1, OPS_Q4_1},
                               {"135M Q8_0", 576, 192, 1536, 30, 49152, OPS_Q8_0, OPS_Q8_0, OPS_Q8_0},
                               {"1.5B Q4_K_M", 1536, 256, 8960, 28, 151936, OPS_Q4_K, OPS_Q6_K, OPS_Q6_K},
                               {"8B Q4_K", 4096, 1024, 14336, 32, 128256, OPS_Q4_K, OPS_Q4_K, OPS_Q4_K},
                               {"8B Q8_0", 4096, 1024, 14336, 32, 128256, OPS_Q8_0, OPS_Q8_0, OPS_Q8_0},
                               {"1B BF16", 2048, 512, 8192, 16, 128256, OPS_BF16, OPS_BF16, OPS_BF16},
                               {"8B BF16", 4096, 1024, 14336, 32, 128256, OPS_BF16, OPS_BF16, OPS_BF16}};

/* Puts a model's linears into the stream; returns the bytes of their weights. */
static size_t put_model(const room &r, const shape &s, cuda_rows rows) {
  const cuda_norm_source norm = {r.x, r.norm, 1e-5f};
  size_t at = 0, bytes = 0;
  auto weight = [&](ops_type type, int32_t outputs, int32_t columns) {
    bytes += cpu_packed_bytes(type, outputs, columns);
    return next_weight(r, &at, type, outputs, columns);
  };
  for (int32_t l = 0; l < s.layers; l++) {
    const ops_type other = l % 2 ? s.most : s.some;
    const cuda_linear_job qkv[3] = {{weight(s.most, s.wide, s.wide), r.y, false, nullptr},
                                    {weight(s.most, s.keys, s.wide), r.y, false, nullptr},
                                    {weight(other, s.keys, s.wide), r.y, false, nullptr}};
    cuda_linear(cuda_time_stream, rows, qkv, 3, &norm, nullptr, act_of(r, r.y, s.wide));
    const cuda_linear_job o = {weight(s.most, s.wide, s.wide), r.x, true, nullptr};
    cuda_linear(cuda_time_stream, rows, &o, 1, nullptr, nullptr, act_of(r, r.y, s.wide));
    const cuda_weight gate = weight(s.most, s.inner, s.wide), up = weight(s.most, s.inner, s.wide);
    cuda_linear_swiglu(cuda_time_stream, rows, gate, up, &norm, act_of(r, r.y, s.wide), r.y);
    const cuda_linear_job down = {weight(other, s.wide, s.inner), r.x, true, nullptr};
    cuda_linear(cuda_time_stream, rows, &down, 1, nullptr, nullptr, act_of(r, r.y, s.inner));
  }
  const cuda_linear_job head = {weight(s.head, s.vocabulary, s.wide), r.y, false, nullptr};
  cuda_linear(cuda_time_stream, rows, &head, 1, &norm, nullptr, act_of(r, r.y, s.wide));
  return bytes;
}

static void measure_model(const room &r, const shape &s, double read_gb_s) {
  printf("%-11s linears, us (share of the read rate):", s.name);
  for (int32_t count : {1, 2, 4, 8, 16, 32, 64}) {
    const cuda_rows rows = rows_of(r, count);
    size_t bytes = 0;
    double us = cuda_time_us([&] { bytes = put_model(r, s, rows); });
    printf("  %4d: %7.1f (%.2f)", (int)count, us, (double)bytes / us / 1e3 / read_gb_s);
  }
  printf("\n");
}

/* --- how fast memory is read --- */

static double read_rate(const room &r) {
  cuda_time_ok(cudaMemset(r.weights, 0, WEIGHT_BYTES), "memset");
  double us = cuda_time_us([&] {
    for (int i = 0; i < 4; i++) cuda_put_reading(cuda_time_stream, r.weights, WEIGHT_BYTES);
  });
  cuda_time_ok(cudaMemset(r.weights, 0x11, WEIGHT_BYTES), "memset");
  return 4.0 * WEIGHT_BYTES / us / 1e3;
}

/* bench_cuda_linear [TYPE]: only shapes and linears whose name ends so. */
int main(int argc, char **argv) {
  const char *only = argc > 1 ? argv[1] : "";
  auto wanted = [&](const char *name) {
    const size_t n = strlen(name), ends = strlen(only);
    return n >= ends && strcmp(name + n - ends, only) == 0;
  };
  cuda_time_ok(cudaStreamCreateWithFlags(&cuda_time_stream, cudaStreamNonBlocking), "stream");
  const room r = take_room();
  const struct {
    ops_type type;
    const char *name;
  } types[] = {
      {OPS_Q4_1, "Q4_1"}, {OPS_Q8_0, "Q8_0"}, {OPS_Q4_K, "Q4_K"}, {OPS_Q6_K, "Q6_K"}, {OPS_BF16, "BF16"}};
  const double rate = read_rate(r);
  printf("memory is read at %.0f GB/s\n", rate);
  for (const shape &s : shapes)
    if (wanted(s.name)) measure_model(r, s, rate);
  for (const auto &t : types) {
    if (!wanted(t.name)) continue;
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
