/* bench_cuda_attention.cu - what attention of a CUDA device costs: microseconds of a layer for the shapes of
 * some models, contexts and numbers of rows, each row by itself and rows of a sequence together, in turns.
 * Beside them stands how long it takes to read the keys and values once. Rows are those of a tree: all see
 * the context, and a chain of up to TREE_DEPTH staged rows; more than TREE_MAX rows are a prompt's last ones.
 * Before them stand sequences that begin with the same blocks, which each of them reads, or all together.
 * Layers follow each other in a graph, as in a forward, so that no cache holds what is read.
 *
 * bench_cuda_attention [GBPS [sharing | SHAPE CONTEXT]] */
#include "bench/cuda_time.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/host_kernels.h"
#include "kernels/cuda/split_runs.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define LAYERS_MAX  32
#define ROWS_MAX    512
#define TREE_MAX    64 /* rows; more are a prompt's */
#define TREE_DEPTH  8
#define CACHE_BYTES ((size_t)1 << 30)

template <class T> static T *to_device(const std::vector<T> &v) {
  T *p = cuda_time_take<T>(v.size());
  cuda_time_ok(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return p;
}

struct shape {
  const char *name;
  int32_t heads, kv_heads, head_dim;
};

static const shape shapes[] = {{"135M", 9, 3, 64}, {"1B", 32, 8, 64},     {"1.5B", 12, 2, 128},
                               {"8B", 32, 8, 128}, {"70B/4", 16, 2, 128}, {"G2B", 8, 4, 256}};

struct batch {
  cuda_batch *device;
  cuda_runs runs, long_runs, split_runs;
};

static int32_t bucket_of(int32_t count) {
  int32_t bucket = 1;
  while (bucket < count) bucket *= 2;
  return bucket;
}

/* Rows of a chain, each TREE_DEPTH of them; of as many chains that share nothing; or of a prompt. */
enum batch_kind { CHAIN, BRANCHES, PROMPT };

/* Leaves them on the device. Returns how many there are and how long they are. */
static cuda_runs runs_of(int32_t count, int32_t most, const cuda_run **at, int32_t *of) {
  std::vector<cuda_run> runs;
  for (int32_t i = 0; i < count; i += most) runs.push_back({i, count - i < most ? count - i : most});
  *at = to_device(runs);
  *of = (int32_t)runs.size();
  return {bucket_of(*of), bucket_of(count < most ? count : most), 0, 0};
}

static batch batch_of(int32_t context, int32_t count, batch_kind kind) {
  const bool prompt = kind == PROMPT;
  std::vector<ops_row> rows;
  std::vector<int32_t> paths, first = {0};
  std::vector<ops_span> spans;
  for (int32_t i = 0; i < count; i++) {
    const int32_t depth = prompt ? 0 : i % TREE_DEPTH + 1, at = (int32_t)paths.size();
    const int32_t position = prompt ? context - count + i : context - TREE_DEPTH + depth - 1;
    for (int32_t d = 0; d < depth; d++)
      paths.push_back(kind == CHAIN ? i - depth + 1 + d : (i * TREE_DEPTH + d) % ROWS_MAX);
    rows.push_back({1, position, 0, prompt ? position + 1 : context - TREE_DEPTH, at, depth, 0, 0});
    spans.push_back({0, position + 1});
    first.push_back(i + 1);
  }
  cuda_batch b = {};
  paths.push_back(0);
  b.rows = to_device(rows);
  b.paths = to_device(paths);
  b.views[0] = {to_device(first), to_device(spans)};
  b.row_count = count;
  const cuda_runs runs = runs_of(count, CUDA_RUN_ROWS, &b.runs, &b.run_count);
  cuda_runs long_runs = {};
  if (prompt) long_runs = runs_of(count, CUDA_LONG_RUN_ROWS, &b.long_runs, &b.long_run_count);
  return {to_device(std::vector<cuda_batch>{b}), runs, long_runs, {}};
}

/* Sequences of so many tree rows each, which begin with the same `prefix` positions. */
struct sharing {
  int32_t prefix, sequences, rows;
};

/* Own rows of a sequence between the prefix and its tree, not the same for all. */
static int32_t own_of(int32_t sequence) {
  return 50 + 23 * sequence % 200;
}

static batch batch_of_sharing(const sharing &s) {
  std::vector<ops_row> rows;
  std::vector<int32_t> paths, first = {0};
  std::vector<ops_span> spans;
  std::vector<cuda_run> runs;
  for (int32_t i = 0; i < s.sequences; i++) {
    const int32_t length = s.prefix + own_of(i);
    runs.push_back({i * s.rows, s.rows});
    for (int32_t d = 1; d <= s.rows; d++) {
      rows.push_back({1, length + d - 1, i, length, i * s.rows, d, 0, d == 1 && i > 0 ? s.prefix : 0});
      paths.push_back(i * s.rows + d - 1);
      spans.push_back({0, length + d});
      first.push_back(first.back() + 1);
    }
  }
  cuda_batch b = {};
  b.row_count = (int32_t)rows.size();
  b.run_count = s.sequences;
  std::vector<cuda_split_run> split_runs((size_t)cuda_split_runs_most(rows.data(), b.row_count));
  const cuda_runs split = cuda_split_runs_of(rows.data(), b.row_count, split_runs.data(), &b.split_run_count);
  b.rows = to_device(rows);
  b.paths = to_device(paths);
  b.views[0] = {to_device(first), to_device(spans)};
  b.runs = to_device(runs);
  b.split_runs = to_device(split_runs);
  return {
      to_device(std::vector<cuda_batch>{b}), {bucket_of(s.sequences), bucket_of(s.rows), 0, 0}, {}, split};
}

/* table: [sequences][context / OPS_TILE], of so many blocks. */
static cuda_kv cache_of(const shape &s, int32_t context, int32_t blocks, int32_t sequences,
                        const std::vector<int32_t> &table) {
  const int32_t stage = ROWS_MAX;
  const size_t layer = (size_t)(blocks * OPS_TILE * s.kv_heads * s.head_dim) * sizeof(uint16_t);
  const size_t fit = CACHE_BYTES / layer, layers = fit < LAYERS_MAX ? fit : LAYERS_MAX;
  const size_t staged = layers * (size_t)(stage * s.kv_heads * s.head_dim);
  return {OPS_KV_F16,
          (int32_t)layers,
          s.kv_heads,
          s.head_dim,
          blocks,
          sequences,
          context,
          stage,
          cuda_time_take<uint8_t>(layers * layer),
          cuda_time_take<uint8_t>(layers * layer),
          cuda_time_take<uint16_t>(staged),
          cuda_time_take<uint16_t>(staged),
          to_device(table)};
}

static double layer_us(const shape &s, const cuda_kv &kv, const batch &b, cuda_runs runs, int32_t count,
                       const float *q, float *y) {
  const size_t floats = cuda_attention_floats(kv, bucket_of(count), runs, s.heads);
  float *scratch = cuda_time_take<float>(floats + 1);
  const double us = cuda_time_us([&] {
    for (int32_t layer = 0; layer < kv.layers; layer++)
      cuda_attention(cuda_time_stream, {b.device, bucket_of(count), false}, runs, kv, layer, 0, s.heads,
                     kv.context, q, y, scratch);
  });
  cudaFree(scratch);
  return us / kv.layers;
}

static void measure(const shape &s, int32_t context, double gbps) {
  std::vector<int32_t> table;
  for (int32_t i = 0; i < context / OPS_TILE; i++) table.push_back(i);
  const cuda_kv kv = cache_of(s, context, context / OPS_TILE, 1, table);
  float *q = cuda_time_take<float>((size_t)(ROWS_MAX * s.heads * s.head_dim));
  float *y = cuda_time_take<float>((size_t)(ROWS_MAX * s.heads * s.head_dim));
  printf("%-5s %6d, read %6.1f us:", s.name, (int)context,
         2.0 * sizeof(uint16_t) * context * s.kv_heads * s.head_dim / gbps / 1e3);
  for (int32_t count : {1, 2, 4, 8, 16, 32, TREE_MAX, 128, ROWS_MAX}) {
    if (count > context) continue;
    const bool prompt = count > TREE_MAX;
    const batch b = batch_of(context, count, prompt ? PROMPT : CHAIN),
                branches = batch_of(context, count, BRANCHES);
    const double alone = layer_us(s, kv, b, {bucket_of(count), 1, 0, 0}, count, q, y);
    const double shared = layer_us(s, kv, b, b.runs, count, q, y);
    const double apart = prompt ? layer_us(s, kv, b, b.long_runs, count, q, y)
                                : layer_us(s, kv, branches, branches.runs, count, q, y);
    const cuda_runs used = cuda_attention_runs({b.device, bucket_of(count), false}, b.runs, b.long_runs, {},
                                               kv, s.heads, kv.context, kv.context);
    printf("  %d: %.1f %.1f %.1f%s", (int)count, alone, shared, apart,
           used.rows > CUDA_RUN_ROWS ? "**"
           : used.rows > 1           ? "*"
                                     : "");
  }
  printf("\n");
  fflush(stdout);
  for (void *p : {kv.keys, kv.values, kv.stage_keys, kv.stage_values, (void *)q, (void *)y}) cudaFree(p);
}

static cuda_kv cache_of_sharing(const shape &s, const sharing &of) {
  const int32_t context = bucket_of(of.prefix + 2 * OPS_SPLIT), shared = of.prefix / OPS_TILE,
                own = 2 * OPS_SPLIT / OPS_TILE;
  std::vector<int32_t> table((size_t)(of.sequences * context / OPS_TILE));
  for (int32_t i = 0; i < of.sequences; i++)
    for (int32_t at = 0; at < shared + own; at++)
      table[(size_t)(i * context / OPS_TILE + at)] = at < shared ? at : at + i * own;
  return cache_of(s, context, shared + of.sequences * own, of.sequences, table);
}

static void measure_sharing(const shape &s, const sharing &of) {
  const cuda_kv kv = cache_of_sharing(s, of);
  const int32_t count = of.sequences * of.rows;
  float *q = cuda_time_take<float>((size_t)(ROWS_MAX * s.heads * s.head_dim));
  float *y = cuda_time_take<float>((size_t)(ROWS_MAX * s.heads * s.head_dim));
  const batch b = batch_of_sharing(of);
  const int32_t end = of.prefix + own_of(of.sequences - 1) + of.rows;
  const cuda_rows rows = {b.device, bucket_of(count), false};
  const cuda_runs apart = cuda_attention_runs(rows, b.runs, {}, {}, kv, s.heads, kv.context, end),
                  used = cuda_attention_runs(rows, b.runs, {}, b.split_runs, kv, s.heads, kv.context, end);
  const double alone = layer_us(s, kv, b, apart, count, q, y),
               shared = b.split_runs.shared > 0 ? layer_us(s, kv, b, b.split_runs, count, q, y) : 0;
  printf("  %dx%d: %.1f %.1f%s", (int)of.sequences, (int)of.rows, alone, shared, used.shared > 0 ? "*" : "");
  fflush(stdout);
  for (void *p : {kv.keys, kv.values, kv.stage_keys, kv.stage_values, (void *)q, (void *)y}) cudaFree(p);
}

static void measure_all_sharing() {
  printf("us of a layer, N sequences of M rows that begin with the same blocks: each by itself, and together "
         "(*: a forward takes them together)\n");
  for (const shape &s : shapes)
    for (int32_t prefix : {2000, 8000, 30000}) {
      printf("%-5s %6d shared:", s.name, (int)prefix);
      for (const sharing &of : {sharing{prefix, 2, 1},
                                {prefix, 4, 1},
                                {prefix, 8, 1},
                                {prefix, 16, 1},
                                {prefix, 4, 4},
                                {prefix, 8, 4}})
        measure_sharing(s, of);
      printf("\n");
    }
}

int main(int argc, char **argv) {
  cuda_time_ok(cudaStreamCreate(&cuda_time_stream), "stream");
  const double gbps = argc > 1 ? atof(argv[1]) : 4500;
  if (argc < 4) measure_all_sharing();
  if (argc == 3) return 0;
  printf("us of a layer, each row by itself, rows of a chain together, and rows that branch at once "
         "together, or of a prompt in long runs (*: a forward takes them together, **: in long runs), f16 "
         "cache; read: "
         "keys and values once at %.0f GB/s\n",
         gbps);
  for (const shape &s : shapes)
    for (int32_t context : {512, 2048, 4096, 8192, 30720})
      if (argc < 4 || (!strcmp(argv[2], s.name) && atoi(argv[3]) == context)) measure(s, context, gbps);
  return 0;
}
