/* libs: kernels_cuda_emulated : cost=27 */
/* The CUDA kernels of rows and linears against the C reference by memcmp: over the shim, or under nvcc on a
 * GPU. Reads and writes the device's memory by copies alone. */
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
extern "C" {
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/tensor_step.h"
#include "tests/support/quant_blocks.h"
#include "tests/support/random.h"
#include <cmocka.h>
}

/* 24 of them. */
static uint32_t random_bits(void) {
  static uint64_t state = 1;
  return (uint32_t)(random_next(&state) >> 40);
}

static float random_float() { /* mostly in [-1, 1), now and then larger */
  return ((float)random_bits() / 0x1p23f - 1.0f) * (random_bits() % 7 == 0 ? 9.0f : 1.0f);
}

static std::vector<float> random_floats(size_t n) {
  std::vector<float> x(n);
  for (auto &v : x) v = random_float();
  return x;
}

static cudaStream_t stream;

static int open_stream(void **) {
  return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
}

static int close_stream(void **) {
  return cudaStreamDestroy(stream);
}

static void ok(cudaError_t code) {
  if (code != cudaSuccess) fail_msg("CUDA: %s", cudaGetErrorString(code));
}

/* An array in device memory, between guards. */
template <class T> struct device_array {
  static constexpr size_t guard = 256;
  unsigned char *base = nullptr;
  size_t n;
  explicit device_array(size_t count) : n(count) {
    ok(cudaMalloc((void **)&base, bytes() + 2 * guard));
    ok(cudaMemset(base, 0xff, bytes() + 2 * guard));
    ok(cudaDeviceSynchronize()); /* `stream` does not wait for the default stream */
  }
  explicit device_array(const std::vector<T> &from) : device_array(from.size()) { write(from); }
  device_array(const device_array &) = delete;
  ~device_array() { cudaFree(base); }
  size_t bytes() const { return n * sizeof(T); }
  T *at() const { return (T *)(void *)(base + guard); }
  void write(const std::vector<T> &from) {
    assert_int_equal(from.size(), n);
    if (n) ok(cudaMemcpy(at(), from.data(), bytes(), cudaMemcpyHostToDevice));
    ok(cudaDeviceSynchronize());
  }
  std::vector<T> read() const { /* after everything in the stream; nobody may have touched the guards */
    std::vector<unsigned char> all(bytes() + 2 * guard), same(guard, 0xff);
    ok(cudaStreamSynchronize(stream));
    ok(cudaGetLastError());
    ok(cudaMemcpy(all.data(), base, all.size(), cudaMemcpyDeviceToHost));
    assert_memory_equal(all.data(), same.data(), guard);
    assert_memory_equal(all.data() + guard + bytes(), same.data(), guard);
    std::vector<T> out(n);
    if (n) memcpy((void *)out.data(), all.data() + guard, bytes());
    return out;
  }
};

static void same_floats(const std::vector<float> &got, const std::vector<float> &want, const char *what) {
  assert_int_equal(got.size(), want.size());
  for (size_t i = 0; i < got.size(); i++)
    if (memcmp(&got[i], &want[i], sizeof(float)) != 0)
      fail_msg("%s: word %zu of %zu is %.9g (%a), not %.9g (%a)", what, i, got.size(), (double)got[i],
               (double)got[i], (double)want[i], (double)want[i]);
}

/* A batch in device memory: rows, and head rows that are the batch's rows backwards. */
struct batch {
  std::vector<ops_row> rows;
  std::vector<int32_t> head;
  device_array<ops_row> device_rows;
  device_array<int32_t> device_head;
  device_array<cuda_batch> device;
  explicit batch(int32_t count, int32_t vocabulary = 1)
      : rows((size_t)count), head((size_t)count), device_rows((size_t)count), device_head((size_t)count),
        device(1) {
    for (int32_t i = 0; i < count; i++) {
      rows[(size_t)i].token = (int32_t)(random_bits() % (uint32_t)vocabulary);
      head[(size_t)i] = count - 1 - i;
    }
    device_rows.write(rows);
    device_head.write(head);
    set(count, count);
  }
  void set(int32_t row_count, int32_t head_count) {
    cuda_batch b = {};
    b.rows = device_rows.at();
    b.head_rows = device_head.at();
    b.row_count = row_count;
    b.head_count = head_count;
    device.write({b});
  }
  cuda_rows of(int32_t bucket, bool of_head = false) const { return {device.at(), bucket, of_head}; }
};

/* --- the reference --- */

struct matrix {
  cpu_weight w;
  std::vector<uint8_t> packed;
};

static void fill_plain(ops_type type, uint8_t *at) {
  float f = random_float();
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (type == OPS_F16) bits = ((random_bits() & 0x83ff) | random_bits() % 16 << 10) << 16;
  if (type == OPS_F32)
    memcpy(at, &bits, 4);
  else
    at[0] = (uint8_t)(bits >> 16), at[1] = (uint8_t)(bits >> 24);
}

static matrix make_matrix(ops_type type, int32_t rows, int32_t columns) {
  const quant_type *t = quant_type_of(type);
  const size_t inputs = t ? (size_t)t->inputs : 1, bytes = t ? (size_t)t->bytes : type == OPS_F32 ? 4 : 2;
  const size_t units = (size_t)rows * (size_t)columns / inputs;
  std::vector<uint8_t> file(units * bytes);
  for (size_t i = 0; i < units; i++) {
    if (t)
      quant_fill(t, &file[i * bytes], random_bits, 0);
    else
      fill_plain(type, &file[i * bytes]);
  }
  matrix m = {{type, rows, columns, nullptr}, std::vector<uint8_t>(cpu_packed_bytes(type, rows, columns))};
  cpu_pack(type, rows, columns, file.data(), m.packed.data(), 0, (rows + OPS_GROUP - 1) / OPS_GROUP);
  return m;
}

struct act {
  int32_t rows, columns;
  std::vector<float> x, scale, sum;
  std::vector<int8_t> q8;
  std::vector<cpu_total> total;
  std::vector<uint16_t> bf16;
  act(std::vector<float> from, int32_t row_count)
      : rows(row_count), columns((int32_t)(from.size() / (size_t)row_count)), x(from),
        scale(from.size() / OPS_BLOCK), sum(scale.size()), q8(from.size()), total(scale.size()),
        bf16(from.size()) {
    for (size_t i = 0; i < x.size(); i++) bf16[i] = tensor_bf16(x[i]);
    if (columns % OPS_BLOCK == 0)
      cpu_kernels_c.quantize(q8.data(), scale.data(), sum.data(), total.data(), x.data(), rows * columns);
  }
  cpu_act view() {
    return {columns, x.data(), q8.data(), scale.data(), sum.data(), total.data(), rows, bf16.data()};
  }
};

static std::vector<float> reference_linear(const matrix &m, act &a, ops_math math) {
  cpu_linear *kernel = math == OPS_MATH_F32 ? nullptr : cpu_kernels_c.linear_int8[m.w.type];
  if (math == OPS_MATH_BF16 && m.w.type == OPS_BF16 && m.w.columns % OPS_BLOCK == 0)
    kernel = cpu_isa_kernels(cpu_isa_best())->linear_step; /* equal to the one in C, and not as slow */
  if (!kernel) kernel = cpu_kernels_c.linear_f32[m.w.type];
  const cpu_act x = a.view();
  std::vector<float> y((size_t)a.rows * (size_t)m.w.rows);
  for (int32_t g = 0; g * OPS_GROUP < m.w.rows; g++) {
    for (int32_t row = 0; row < a.rows; row++) {
      float out[OPS_GROUP];
      kernel(m.packed.data() + (size_t)g * cpu_group_bytes(m.w.type, m.w.columns), &x, row, 1,
             cpu_parts(&m.w), out);
      for (int32_t i = 0; i < OPS_GROUP && g * OPS_GROUP + i < m.w.rows; i++)
        y[(size_t)row * (size_t)m.w.rows + (size_t)(g * OPS_GROUP + i)] = out[i];
    }
  }
  return y;
}

static std::vector<float> reference_norm(const std::vector<float> &x, const std::vector<float> &w, float eps,
                                         const int32_t *index) {
  std::vector<float> y(x.size());
  const size_t n = w.size();
  for (size_t i = 0; i < x.size() / n; i++)
    cpu_kernels_c.norm(&y[i * n], &x[(index ? (size_t)index[i] : i) * n], w.data(), (int32_t)n, eps);
  return y;
}

/* --- on the device --- */

struct device_matrix {
  device_array<uint8_t> data;
  cuda_weight w;
  explicit device_matrix(const matrix &m) : data(m.packed), w{m.w.type, m.w.rows, m.w.columns, data.at()} {}
};

struct act_on_device {
  device_array<float> x;
  device_array<uint8_t> tiles;
  int32_t columns;
  ops_math math;
  act_on_device(int32_t rows, int32_t of_columns, ops_math of_math, int32_t bucket)
      : x((size_t)rows * (size_t)of_columns),
        tiles((size_t)cuda_tile_rows(bucket) * (size_t)(of_columns / OPS_BLOCK) *
              (of_math == OPS_MATH_BF16 ? sizeof(cuda_bf16_tile) : sizeof(cuda_tile))),
        columns(of_columns), math(of_math) {}
  cuda_act view() const {
    const bool whole = columns % OPS_BLOCK == 0;
    return {x.at(), math != OPS_MATH_F32 && whole ? (cuda_tile *)tiles.at() : nullptr, columns,
            math == OPS_MATH_BF16};
  }
  template <class T> std::vector<T> read_tiles() const {
    const std::vector<uint8_t> bytes = tiles.read();
    std::vector<T> all(bytes.size() / sizeof(T));
    memcpy((void *)all.data(), bytes.data(), bytes.size());
    return all;
  }
};

/* --- rows --- */

static void rows_are_embedded_from_every_type(void **) {
  for (int type = 0; type < OPS_TYPE_COUNT; type++) {
    const int32_t columns = 512, rows = 5;
    const matrix m = make_matrix((ops_type)type, 77, columns);
    const device_matrix d(m);
    const batch b(rows, m.w.rows);
    device_array<float> x((size_t)rows * (size_t)columns);
    cuda_embed(stream, b.of(8), d.w, x.at());
    std::vector<float> want(x.n);
    cpu_weight w = m.w;
    w.data = m.packed.data();
    for (int32_t i = 0; i < rows; i++)
      cpu_unpack_row(&w, b.rows[(size_t)i].token, &want[(size_t)(i * columns)]);
    same_floats(x.read(), want, "embed");
  }
}

static void a_norm_is_that_of_the_rows_or_of_the_head_rows(void **) {
  for (int32_t columns : {32, 64, 576, 1000, 4096}) {
    for (int32_t rows : {1, 3, 17}) {
      const batch b(rows);
      const std::vector<float> x = random_floats((size_t)rows * (size_t)columns),
                               w = random_floats((size_t)columns);
      const device_array<float> dx(x), dw(w);
      device_array<float> y(x.size());
      for (bool head : {false, true}) {
        cuda_norm(stream, b.of(32, head), {dx.at(), dw.at(), 1e-5f}, columns, y.at());
        same_floats(y.read(), reference_norm(x, w, 1e-5f, head ? b.head.data() : nullptr), "norm");
      }
    }
  }
}

/* Values that are hard to quantise stand in some blocks. */
static std::vector<float> hard_floats(size_t n) {
  std::vector<float> x = random_floats(n);
  const float hard[] = {0.0f, -0.0f, 1e-40f, -3e-39f, 3.4e38f, INFINITY, NAN, 127.5f, -0.5f};
  for (size_t i = 0; i < n; i += OPS_BLOCK) {
    size_t kind = i / OPS_BLOCK % 12;
    if (kind == 0) std::fill(&x[i], &x[i] + OPS_BLOCK, 0.0f);
    for (size_t k = 0; k < OPS_BLOCK && kind == 1; k++) x[i + k] = hard[random_bits() % 4];
    if (kind == 2) x[i + random_bits() % OPS_BLOCK] = hard[random_bits() % 9];
    if (kind == 3) x[i + random_bits() % OPS_BLOCK] = INFINITY;
    for (size_t k = 0; k < OPS_BLOCK && kind == 4; k++)
      x[i + k] = k == 0 ? 127.0f : (float)k - 15.5f; /* ties */
  }
  return x;
}

/* Which NaN it is differs from device to device, and no answer depends on it. */
static void same_or_no_numbers(const float *got, const float *want, int count) {
  for (int i = 0; i < count; i++)
    if (!std::isnan(got[i]) || !std::isnan(want[i])) assert_memory_equal(&got[i], &want[i], sizeof(float));
}

static void activations_get_the_int8_form_of_the_reference(void **) {
  for (int32_t rows : {1, 2, 8, 9, 17}) {
    const int32_t columns = 416, blocks = columns / OPS_BLOCK;
    const batch b(rows);
    act a(hard_floats((size_t)(rows * columns)), rows);
    act_on_device d(rows, columns, OPS_MATH_INT8, rows + 3);
    d.x.write(a.x);
    cuda_quantize(stream, b.of(rows + 3), d.view());
    const std::vector<cuda_tile> tiles = d.read_tiles<cuda_tile>();
    for (int32_t i = 0; i < rows * blocks; i++) {
      const int32_t row = i / blocks;
      const cuda_tile &t = tiles[(size_t)(row / CUDA_TILE_ROWS * blocks + i % blocks)];
      int8_t q[OPS_BLOCK];
      for (int k = 0; k < 8; k++) memcpy(q + 4 * k, &t.q[row % CUDA_TILE_ROWS][k % 4 * 2 + k / 4], 4);
      const float scale_sum[2] = {a.scale[(size_t)i], a.sum[(size_t)i]};
      const int16_t halves[2] = {a.total[(size_t)i].first, a.total[(size_t)i].last};
      assert_memory_equal(q, &a.q8[(size_t)(i * OPS_BLOCK)], sizeof q);
      same_or_no_numbers(t.scale_sum[row % CUDA_TILE_ROWS], scale_sum, 2);
      assert_memory_equal(t.halves[row % CUDA_TILE_ROWS], halves, sizeof halves);
    }
  }
}

static void activations_get_the_bf16_form_of_the_reference(void **) {
  for (int32_t rows : {1, 2, 8, 9, 17}) {
    const int32_t columns = 416, blocks = columns / OPS_BLOCK;
    const batch b(rows);
    act a(hard_floats((size_t)(rows * columns)), rows);
    act_on_device d(rows, columns, OPS_MATH_BF16, rows + 3);
    d.x.write(a.x);
    cuda_quantize(stream, b.of(rows + 3), d.view());
    const std::vector<cuda_bf16_tile> tiles = d.read_tiles<cuda_bf16_tile>();
    for (int32_t i = 0; i < rows * columns; i++) {
      const int32_t row = i / columns, k = i % columns, in = k % OPS_BLOCK;
      const cuda_bf16_tile &t = tiles[(size_t)(row / CUDA_TILE_ROWS * blocks + k / OPS_BLOCK)];
      const uint32_t word = t.words[in / CUDA_BF16_CHUNK][row % CUDA_TILE_ROWS][in % CUDA_BF16_CHUNK / 2];
      assert_int_equal(word >> (in % 2 * 16) & 0xffff, a.bf16[(size_t)i]);
    }
  }
}

/* --- linears --- */

/* Three matrices over the same rows: one that adds, one with a bias, one with both. */
struct trio {
  std::vector<matrix> m;
  std::vector<float> bias[3];
  trio(ops_type type, int32_t rows, int32_t columns) {
    for (int32_t i = 0; i < 3; i++)
      m.push_back(make_matrix(i == 1 ? other(type) : type, i == 2 ? 16 : rows, columns));
    for (int32_t i = 1; i < 3; i++) bias[i] = random_floats((size_t)m[(size_t)i].w.rows);
  }
  /* Sometimes another type. */
  static ops_type other(ops_type type) { return type == OPS_Q4_K ? OPS_Q6_K : type; }
  static bool adds(int32_t i) { return i != 1; }
};

static void check_trio(const trio &t, act &a, ops_math math, int32_t bucket) {
  const batch b(a.rows);
  act_on_device x(a.rows, a.columns, math, bucket);
  x.x.write(a.x);
  cuda_linear_job jobs[3];
  std::vector<float> want[3];
  device_matrix *m[3];
  device_array<float> *y[3], *bias[3];
  for (int32_t i = 0; i < 3; i++) {
    want[i] = reference_linear(t.m[(size_t)i], a, math);
    const std::vector<float> before = random_floats(want[i].size());
    m[i] = new device_matrix(t.m[(size_t)i]);
    y[i] = new device_array<float>(before);
    bias[i] = new device_array<float>(t.bias[i]);
    jobs[i] = {m[i]->w, y[i]->at(), t.adds(i), t.bias[i].empty() ? nullptr : bias[i]->at()};
    for (size_t k = 0; k < before.size(); k++) {
      if (t.adds(i)) want[i][k] = before[k] + want[i][k];
      if (!t.bias[i].empty()) want[i][k] = want[i][k] + t.bias[i][k % t.bias[i].size()];
    }
  }
  cuda_linear(stream, b.of(bucket), jobs, 3, nullptr, nullptr, x.view());
  if (x.view().tiles) x.tiles.read(); /* nothing is written behind them */
  for (int32_t i = 0; i < 3; i++) {
    char what[80];
    snprintf(what, sizeof what, "type %d, matrix %d, %s, %d rows, %d columns", (int)t.m[(size_t)i].w.type,
             (int)i,
             math == OPS_MATH_F32    ? "f32"
             : math == OPS_MATH_INT8 ? "int8"
                                     : "bf16",
             (int)a.rows, (int)a.columns);
    same_floats(y[i]->read(), want[i], what);
    delete m[i];
    delete y[i];
    delete bias[i];
  }
}

/* ThreadSanitizer makes a switch of fibers a hundred times as slow, and AddressSanitizer makes the whole test
 * several times as slow: they get fewer cases. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
static const std::vector<int32_t> CASE_COLUMNS = {768, 2304}, CASE_ROWS = {11, 17};
#define ROWS_STEP 8
#define EVERY     1
#else
static const std::vector<int32_t> CASE_COLUMNS = {256, 768, 1024, 2304}, CASE_ROWS = {1, 3, 8, 11, 17};
#define ROWS_STEP 1
#define EVERY     2
#endif

static void linears_of_every_type_equal_the_reference(void **) {
  for (int type = 0; type < OPS_TYPE_COUNT; type++) {
    for (size_t c = 0; c < CASE_COLUMNS.size(); c++) {
      const int32_t columns = CASE_COLUMNS[c];
      const trio t((ops_type)type, 37, columns);
      for (ops_math math : {OPS_MATH_F32, OPS_MATH_INT8, OPS_MATH_BF16}) {
        for (size_t i = 0; i < CASE_ROWS.size();
             i++) { /* every two of type, columns and rows, not all three */
          if ((i + c + (size_t)type) % EVERY) continue;
          act a(random_floats((size_t)(CASE_ROWS[i] * columns)), CASE_ROWS[i]);
          check_trio(t, a, math, CASE_ROWS[i] + (int32_t)(random_bits() % 3));
        }
      }
    }
  }
}

static void linears_of_blocks_take_any_number_of_blocks(void **) {
  for (ops_type type : {OPS_Q4_0, OPS_Q4_1, OPS_Q5_0, OPS_Q5_1, OPS_Q8_0, OPS_IQ4_NL}) {
    for (int32_t columns : {32, 96, 576, 1056, 1120, 1536}) {
      const trio t(type, 50, columns);
      act a(random_floats((size_t)(2 * columns)), 2);
      check_trio(t, a, OPS_MATH_INT8, 2);
    }
  }
}

static void linears_of_plain_types_take_any_number_of_columns(void **) {
  for (ops_type type : {OPS_F32, OPS_F16, OPS_BF16}) {
    for (int32_t columns : {1, 31, 33, 1023, 1024, 1057}) {
      const trio t(type, 21, columns);
      act a(random_floats((size_t)(3 * columns)), 3);
      check_trio(t, a, OPS_MATH_F32, 3);
    }
  }
}

static void every_number_of_rows_gives_the_same_bits(void **) {
  const trio t(OPS_Q4_1, 37, 576), bf16(OPS_BF16, 37, 576);
  for (int32_t rows = 1; rows <= 34; rows += ROWS_STEP) {
    act a(random_floats((size_t)(rows * 576)), rows);
    check_trio(t, a, OPS_MATH_INT8, rows);
    check_trio(t, a, OPS_MATH_F32, rows);
    check_trio(bf16, a, OPS_MATH_BF16, rows);
  }
}

static void quantised_extremes_are_summed_like_the_reference(void **) {
  const trio t(OPS_Q6_K, 37, 1024), u(OPS_Q2_K, 37, 1024);
  act a(hard_floats(1024 * 3), 3);
  for (auto &v : a.x) v = fabsf(v) < 1e30f ? v : 1e30f; /* no infinities: NaNs have no one form */
  act b(a.x, 3);
  check_trio(t, b, OPS_MATH_INT8, 3);
  check_trio(u, b, OPS_MATH_INT8, 3);
}

/* With as much shared memory as a large GPU has. */
struct large_gpu {
#ifdef __CUDACC__
  explicit large_gpu(bool = true) {}
#else
  const int usual = shim::shared_max;
  explicit large_gpu(bool wanted = true) {
    if (wanted) shim::shared_max = 227 << 10;
  }
  ~large_gpu() {
    shim::shared_max = usual;
  }
#endif
};

/* So many that each block of a grid has several groups, over the shim in several turns; a part begins in the
 * middle of a unit. */
#ifdef __CUDACC__
static const int32_t STREAMED = 7400;
#else
static const int32_t STREAMED = 410;
#endif

static void large_linears_read_their_weights_as_streams(void **) {
  const int32_t row_counts[] = {1, 2, 4, 7, 16};
  for (int type = OPS_Q4_0; type < OPS_TYPE_COUNT; type++) {
    const trio t((ops_type)type, STREAMED, 1536);
    for (int32_t i = 0; i < 5; i++) {
      if (type != OPS_Q4_K && i != type % 5 && i != (type + 2) % 5) continue;
      act a(random_floats((size_t)(row_counts[i] * 1536)), row_counts[i]);
      check_trio(t, a, OPS_MATH_INT8, row_counts[i]);
    }
  }
}

static void check_long_sums(ops_type type, int32_t columns, int32_t rows) {
  const trio t(type, 13, columns);
  act a(random_floats((size_t)(rows * columns)), rows);
  check_trio(t, a, OPS_MATH_INT8, rows);
}

/* No more groups than there are processors, of up to four rows, or of two where sums have parts: the warps of
 * a block share its sums. Of some types the last stage of weights is not full; parts begin in the middle of a
 * stage. */
static void long_sums_of_few_groups_are_shared_by_warps(void **) {
  const large_gpu gpu;
  (void)gpu;
  for (int type = OPS_Q4_0; type < OPS_TYPE_COUNT; type++) {
    const bool units = type >= OPS_Q2_K;
    check_long_sums((ops_type)type, units ? 768 : 800, 1 + type % 4);
    check_long_sums((ops_type)type, units ? 2560 : 2336, 1 + type % 2);
  }
  check_long_sums(OPS_Q4_0, 3232, 1); /* 26 stages: two warps have two */
  check_long_sums(OPS_Q4_K, 6656, 2);
}

/* As streams up to four rows, otherwise by teams. */
static void large_linears_of_bf16_equal_the_reference(void **) {
  const trio t(OPS_BF16, STREAMED, 1056);
  for (int32_t rows : {1, 2, 4, 7, 8, 16, 18}) {
    act a(random_floats((size_t)(rows * 1056)), rows);
    check_trio(t, a, OPS_MATH_BF16, rows);
  }
}

/* Any weights that are finite, and any inputs. */
static void any_numbers_of_bf16_are_summed_like_the_reference(void **) {
  const int32_t columns = 1024, outputs = 48;
  matrix m = make_matrix(OPS_BF16, outputs, columns);
  uint16_t *w = (uint16_t *)(void *)m.packed.data();
  for (size_t i = 0; i < m.packed.size() / 2; i++) {
    w[i] = (uint16_t)random_bits();
    if (i / OPS_GROUP % 64 < 32) w[i] = (uint16_t)((w[i] & 0x80ff) | random_bits() % 64 << 8);
    if ((w[i] & 0x7f80) == 0x7f80) w[i] ^= 0x4000;
  }
  for (int32_t i = 0; i < 6; i++) { /* by teams of two warps and of four, of tensor cores each or together */
    const bool finite = i % 2;
    const int32_t rows = i < 2 ? 9 : i < 4 ? 17 : 40;
    act a(hard_floats((size_t)(rows * columns)), rows);
    for (auto &v : a.x)
      if (finite && !std::isfinite(v)) v = -1e-39f;
    act b(a.x, rows);
    const batch of(rows);
    act_on_device x(rows, columns, OPS_MATH_BF16, rows);
    x.x.write(b.x);
    const device_matrix d(m);
    device_array<float> y((size_t)(rows * outputs));
    const cuda_linear_job job = {d.w, y.at(), false, nullptr};
    cuda_linear(stream, of.of(rows), &job, 1, nullptr, nullptr, x.view());
    const std::vector<float> got = y.read(), want = reference_linear(m, b, OPS_MATH_BF16);
    same_or_no_numbers(got.data(), want.data(), rows * outputs);
    size_t numbers = 0;
    for (float v : got) numbers += std::isfinite(v);
    assert_true(numbers > got.size() / 8 || !finite);
  }
}

/* Of 5 rows and more: an odd number of groups for each processor, so that a warp has one; and sums so long
 * that a block takes a few rows too, of pairs of groups. Parts begin in the middle of a unit, and of a stage.
 */
#ifdef __CUDACC__
static const int32_t ODD = 3100, LONG_INPUTS = 12544;
#else
static const int32_t ODD = 37, LONG_INPUTS = 4352;
#endif

static void some_rows_of_large_linears_equal_the_reference(void **) {
  const large_gpu gpu;
  (void)gpu;
  for (ops_type type : {OPS_Q4_0, OPS_Q8_0, OPS_Q3_K, OPS_Q5_K, OPS_Q6_K}) {
    const trio odd(type, ODD, 2304);
    for (int32_t rows = 9; rows <= 33; rows += 8 * ROWS_STEP) {
      act a(random_floats((size_t)(rows * 2304)), rows);
      check_trio(odd, a, OPS_MATH_INT8, rows);
    }
  }
  for (ops_type type : {OPS_Q4_0, OPS_Q3_K, OPS_Q5_K}) {
    const trio deep(type, STREAMED, LONG_INPUTS);
    act a(random_floats((size_t)(7 * LONG_INPUTS)), 7);
    check_trio(deep, a, OPS_MATH_INT8, 8);
  }
  const trio narrow(OPS_Q4_0, 80, 576); /* so few outputs that warps share the rows of a group by four */
  act a(random_floats(40 * 576), 40);
  check_trio(narrow, a, OPS_MATH_INT8, 40);
}

/* So many rows and outputs that a block takes eight tiles of rows, or four, and pairs of groups, of which the
 * last has one; parts begin in the middle of a unit, or are of odd lengths. */
#ifdef __CUDACC__
static const int32_t WIDE = 8500;
#else
static const int32_t WIDE = 150;
#endif

static void many_rows_of_large_linears_equal_the_reference(void **) {
  const large_gpu gpu;
  (void)gpu;
  for (int type = OPS_Q4_0; type < OPS_TYPE_COUNT; type++) {
    const int32_t columns = type >= OPS_Q2_K ? 1280 : 1056;
    const trio t((ops_type)type, WIDE, columns);
    for (int32_t rows : {type % 2 ? 32 : 30, type % 2 ? 64 : 75}) {
      act a(random_floats((size_t)(rows * columns)), rows);
      check_trio(t, a, OPS_MATH_INT8, rows == 30 ? 32 : rows == 75 ? 128 : rows);
    }
  }
  for (int32_t columns : {1056, 1280}) { /* of the second, parts are whole stages, and come in turn */
    const trio t(OPS_BF16, WIDE, columns);
    for (int32_t rows : {30, 40, 75}) {
      act a(random_floats((size_t)(rows * columns)), rows);
      check_trio(t, a, OPS_MATH_BF16, rows == 30 ? 32 : rows == 40 ? 64 : 128);
    }
  }
  const trio shared(OPS_BF16, 2 * WIDE, 576); /* sums of one part: four teams share tiles */
  act a(random_floats(75 * 576), 75);
  check_trio(shared, a, OPS_MATH_BF16, 128);
}

/* Where a ring of as many stages as teams need who share tiles has no room, they do not share. */
static void a_small_gpu_has_tiles_for_each_team(void **) {
  const trio t(OPS_BF16, 2 * WIDE, 576);
  act a(random_floats(30 * 576), 30);
  check_trio(t, a, OPS_MATH_BF16, 32);
}

/* More blocks for all tiles of rows than run at once, of few inputs: a block takes two of them. And of more
 * inputs in several turns, each of which has fewer stages than there is room for. */
static void many_rows_of_many_outputs_equal_the_reference(void **) {
  for (int32_t columns : {32, 64}) {
    const trio t(OPS_Q4_1, columns == 32 ? 704 : 800, columns);
    act a(random_floats((size_t)(33 * columns)), 33);
    check_trio(t, a, OPS_MATH_INT8, 33);
  }
}

/* So many that a block of four teams has 256 of them. */
#ifdef __CUDACC__
static const int32_t MANY_OUTPUTS = 34000;
#else
static const int32_t MANY_OUTPUTS = OPS_PARTED_OUTPUTS + 600;
#endif

/* More outputs than a parted weight has: sums of one chain. */
static void large_matrices_are_not_parted(void **) {
#ifdef __SANITIZE_THREAD__
  skip();
#endif
  const struct {
    ops_type type;
    int32_t columns, rows;
  } cases[] = {{OPS_Q4_1, 1024, 2},  {OPS_F16, 1024, 2},  {OPS_Q4_1, 1056, 33},
               {OPS_Q6_K, 1024, 64}, {OPS_BF16, 1024, 3}, {OPS_BF16, 1024, 9}};
  for (const auto &c : cases) {
    const int32_t rows = c.rows;
    const matrix m =
        make_matrix(c.type, c.type == OPS_BF16 ? MANY_OUTPUTS : OPS_PARTED_OUTPUTS + 600, c.columns);
    act a(random_floats((size_t)(c.columns * rows)), rows);
    const batch b(rows);
    act_on_device x(rows, c.columns, OPS_MATH_BF16, rows);
    x.x.write(a.x);
    const device_matrix d(m);
    device_array<float> y((size_t)(rows * m.w.rows));
    const cuda_linear_job job = {d.w, y.at(), false, nullptr};
    cuda_linear(stream, b.of(rows), &job, 1, nullptr, nullptr, x.view());
    same_floats(y.read(), reference_linear(m, a, OPS_MATH_BF16), "large");
  }
}

/* --- a norm on the way, SwiGLU --- */

struct normed_case {
  ops_type type;
  int32_t outputs, columns, rows;
};

static const normed_case NORMED[] = {
    {OPS_Q4_1, 70, 576, 1},    {OPS_Q4_1, 70, 576, 5},   {OPS_Q8_0, 33, 1536, 2},   {OPS_Q8_0, 16, 64, 9},
    {OPS_Q4_1, 20, 4096, 9},   {OPS_Q6_K, 40, 2048, 3},  {OPS_F16, 35, 64, 4},      {OPS_Q4_K, 16, 2304, 17},
    {OPS_Q5_K, 130, 1536, 1},  {OPS_Q3_K, 130, 1536, 4}, {OPS_Q4_K, 130, 1536, 12}, {OPS_Q4_K, 130, 1024, 33},
    {OPS_Q4_K, 300, 1536, 20}, {OPS_BF16, 130, 1056, 1}, {OPS_BF16, 70, 576, 7},    {OPS_BF16, 20, 4096, 9},
    {OPS_BF16, 130, 1024, 33}, {OPS_BF16, 200, 576, 66}, {OPS_Q5_0, 40, 896, 3},    {OPS_Q4_0, 40, 2336, 1},
};

static void a_linear_takes_its_input_through_a_norm(void **) {
  for (const normed_case &c : NORMED) {
    for (ops_math math : {OPS_MATH_INT8, OPS_MATH_F32, OPS_MATH_BF16}) {
      for (bool head : {false, true}) {
        const batch b(c.rows);
        const std::vector<float> raw = random_floats((size_t)(c.rows * c.columns)),
                                 w = random_floats((size_t)c.columns);
        const device_array<float> dx(raw), dw(w);
        const matrix m = make_matrix(c.type, c.outputs, c.columns);
        const device_matrix d(m);
        act_on_device room(c.rows, c.columns, math, c.rows);
        device_array<float> y((size_t)(c.rows * c.outputs));
        const cuda_linear_job job = {d.w, y.at(), false, nullptr};
        const cuda_norm_source norm = {dx.at(), dw.at(), 1e-6f};
        cuda_linear(stream, b.of(c.rows, head), &job, 1, &norm, nullptr, room.view());
        act a(reference_norm(raw, w, 1e-6f, head ? b.head.data() : nullptr), c.rows);
        same_floats(y.read(), reference_linear(m, a, math), "norm and linear");
      }
    }
  }
}

static void swiglu_is_silu_of_gate_times_up(void **) {
  for (const normed_case &c : NORMED) {
    const large_gpu gpu(c.rows > 64); /* then teams share tiles */
    for (ops_math math : {OPS_MATH_INT8, OPS_MATH_F32, OPS_MATH_BF16}) {
      for (bool with_norm : {false, true}) {
        const batch b(c.rows);
        const std::vector<float> raw = random_floats((size_t)(c.rows * c.columns)),
                                 w = random_floats((size_t)c.columns);
        const device_array<float> dx(raw), dw(w);
        const matrix gate = make_matrix(c.type, c.outputs, c.columns),
                     up = make_matrix(c.type, c.outputs, c.columns);
        const device_matrix d_gate(gate), d_up(up);
        act_on_device x(c.rows, c.columns, math, c.rows + 1);
        x.x.write(raw);
        device_array<float> y((size_t)(c.rows * c.outputs));
        const cuda_norm_source norm = {dx.at(), dw.at(), 1e-5f};
        cuda_linear_swiglu(stream, b.of(c.rows + 1), d_gate.w, d_up.w, with_norm ? &norm : nullptr, x.view(),
                           y.at());
        act a(with_norm ? reference_norm(raw, w, 1e-5f, nullptr) : raw, c.rows);
        std::vector<float> want(y.n);
        cpu_kernels_c.swiglu(want.data(), reference_linear(gate, a, math).data(),
                             reference_linear(up, a, math).data(), (int32_t)y.n);
        same_floats(y.read(), want, "swiglu");
      }
    }
  }
}

/* --- queries, keys and values that are stored on the way --- */

struct stored_case {
  ops_type type, values; /* of q and k, and of v */
  int32_t heads, kv_heads, columns, rows;
};

#ifdef __CUDACC__
static const int32_t MANY_HEADS = 132;
#else
static const int32_t MANY_HEADS = 4;
#endif

struct stored { /* what is written */
  std::vector<float> q;
  std::vector<uint16_t> keys, values, stage_keys, stage_values;
};

/* By the linear itself, or by rope_store after it. Every second row is staged. */
static stored store(const stored_case &c, const std::vector<matrix> &m, const act &a,
                    const std::vector<float> &angles, bool on_the_way) {
  const int32_t dim = 64, stage = 48, blocks = 8, context = 128;
  std::vector<int32_t> table((size_t)blocks), paths((size_t)stage);
  for (int32_t i = 0; i < blocks; i++) table[(size_t)i] = (i * 5 + 2) % blocks;
  for (int32_t i = 0; i < stage; i++) paths[(size_t)i] = (i * 7 + 3) % stage;
  const device_array<int32_t> tables(table), device_paths(paths);
  const size_t head = (size_t)(c.kv_heads * dim);
  const std::vector<uint16_t> none(head * (size_t)(blocks * OPS_TILE), 1), no_stage(head * (size_t)stage, 1);
  const device_array<uint16_t> keys(none), values(none), stage_keys(no_stage), stage_values(no_stage);
  const cuda_kv kv = {OPS_KV_F16, 1,     c.kv_heads, dim,         blocks,          1,
                      context,    stage, keys.at(),  values.at(), stage_keys.at(), stage_values.at(),
                      tables.at()};
  batch b(c.rows);
  for (int32_t i = 0; i < c.rows; i++) {
    b.rows[(size_t)i].position = i;
    b.rows[(size_t)i].path_at = i / 2;
    b.rows[(size_t)i].path_count = i % 2;
  }
  b.device_rows.write(b.rows);
  cuda_batch plain = {};
  plain.rows = b.device_rows.at();
  plain.paths = device_paths.at();
  plain.row_count = c.rows;
  b.device.write({plain});
  act_on_device x(c.rows, c.columns, c.type == OPS_BF16 ? OPS_MATH_BF16 : OPS_MATH_INT8, c.rows);
  x.x.write(a.x);
  const device_matrix dq(m[0]), dk(m[1]), dv(m[2]);
  device_array<float> q((size_t)(c.rows * m[0].w.rows)), k((size_t)(c.rows * m[1].w.rows)),
      v((size_t)(c.rows * m[2].w.rows)), device_angles(angles);
  const cuda_linear_job jobs[] = {
      {dq.w, q.at(), false, nullptr}, {dk.w, k.at(), false, nullptr}, {dv.w, v.at(), false, nullptr}};
  const cuda_store to = {kv, 0, 48, device_angles.at()};
  cuda_linear(stream, b.of(c.rows), jobs, 3, nullptr, on_the_way ? &to : nullptr, x.view());
  if (!on_the_way)
    cuda_rope_store(stream, b.of(c.rows), kv, 0, {device_angles.at(), 48, nullptr, nullptr, 0}, c.heads,
                    q.at(), k.at(), v.at());
  return {q.read(), keys.read(), values.read(), stage_keys.read(), stage_values.read()};
}

static void a_linear_stores_what_it_makes(void **) {
  const stored_case cases[] = {{OPS_Q4_K, OPS_Q4_K, 3, 1, 512, 1},
                               {OPS_Q8_0, OPS_Q8_0, 9, 3, 1536, 3},
                               {OPS_Q4_1, OPS_Q4_1, 4, 2, 1536, 11},
                               {OPS_Q6_K, OPS_Q6_K, MANY_HEADS, 2, 1024, 40},
                               {OPS_Q4_0, OPS_Q4_0, MANY_HEADS, 2, 1056, 64},
                               {OPS_BF16, OPS_BF16, 9, 3, 1056, 3},
                               {OPS_BF16, OPS_BF16, MANY_HEADS, 2, 576, 66},
                               {OPS_BF16, OPS_Q6_K, MANY_HEADS, 2, 1024, 40},
                               /* of one launch */
                               {OPS_Q4_K, OPS_Q6_K, MANY_HEADS, 2, 1536, 1},
                               {OPS_Q5_K, OPS_Q6_K, MANY_HEADS, 1, 512, 2},
                               {OPS_Q4_K, OPS_Q6_K, MANY_HEADS, 3, 1280, 4},
                               {OPS_Q5_K, OPS_Q6_K, MANY_HEADS, 1, 1536, 7},
                               {OPS_Q4_K, OPS_Q6_K, MANY_HEADS, 2, 768, 16},
                               {OPS_Q5_0, OPS_Q8_0, MANY_HEADS, 2, 896, 1},
                               {OPS_Q5_0, OPS_Q8_0, MANY_HEADS, 1, 896, 9},
                               {OPS_Q5_0, OPS_Q8_0, 14, 2, 896, 2}, /* on a GPU, few groups; so is the next */
                               {OPS_Q4_1, OPS_Q4_1, 9, 3, 576, 4},
                               /* of two: the types are no pair, or there are too many rows */
                               {OPS_Q6_K, OPS_Q4_K, 4, 2, 1024, 2},
                               {OPS_Q4_K, OPS_Q6_K, 4, 2, 1024, 17}};
  for (const stored_case &c : cases) {
    const large_gpu gpu(c.rows > 64);
    const std::vector<matrix> m = {make_matrix(c.type, c.heads * 64, c.columns),
                                   make_matrix(c.type, c.kv_heads * 64, c.columns),
                                   make_matrix(c.values, c.kv_heads * 64, c.columns)};
    const act a(random_floats((size_t)(c.rows * c.columns)), c.rows);
    const std::vector<float> angles = random_floats((size_t)(c.rows * 2 * 48));
    const stored got = store(c, m, a, angles, true), want = store(c, m, a, angles, false);
    same_floats(got.q, want.q, "queries");
    assert_true(got.keys == want.keys && got.values == want.values);
    assert_true(got.stage_keys == want.stage_keys && got.stage_values == want.stage_values);
  }
}

/* --- two types of one launch --- */

/* Rows of a bucket that is not full, through a norm, or not; of the batch, or the head's. */
static void check_pair(const ops_type types[2], int32_t outputs, int32_t columns, int32_t rows,
                       bool with_norm, bool head) {
  const int32_t bucket = rows + rows / 5;
  batch b(bucket);
  b.set(rows, rows);
  const std::vector<float> raw = random_floats((size_t)(bucket * columns)),
                           w = random_floats((size_t)columns);
  const device_array<float> dx(raw), dw(w);
  const matrix m[2] = {make_matrix(types[0], outputs, columns), make_matrix(types[1], 30, columns)};
  const device_matrix d[2] = {device_matrix(m[0]), device_matrix(m[1])};
  act_on_device x(bucket, columns, OPS_MATH_INT8, bucket);
  x.x.write(raw);
  device_array<float> y0((size_t)(bucket * m[0].w.rows)), y1((size_t)(bucket * m[1].w.rows));
  const cuda_linear_job jobs[2] = {{d[0].w, y0.at(), false, nullptr}, {d[1].w, y1.at(), false, nullptr}};
  const cuda_norm_source norm = {dx.at(), dw.at(), 1e-6f};
  cuda_linear(stream, b.of(bucket, head), jobs, 2, with_norm ? &norm : nullptr, nullptr, x.view());
  std::vector<float> in = with_norm ? reference_norm(raw, w, 1e-6f, head ? b.head.data() : nullptr) : raw;
  in.resize((size_t)(rows * columns));
  act a(in, rows);
  for (int32_t i = 0; i < 2; i++) {
    std::vector<float> got = i ? y1.read() : y0.read();
    got.resize((size_t)(rows * m[i].w.rows));
    same_floats(got, reference_linear(m[i], a, OPS_MATH_INT8), i ? "the second type" : "the first type");
  }
}

static void two_types_of_one_launch_equal_the_reference(void **) {
  const ops_type pairs[][2] = {{OPS_Q4_K, OPS_Q6_K}, {OPS_Q5_0, OPS_Q8_0}, {OPS_Q5_K, OPS_Q6_K}};
  int32_t next = 0;
  for (int32_t rows : {1, 2, 3, 5, 13}) {
    for (bool with_norm : {false, true})
      check_pair(pairs[next % 3], MANY_HEADS * 16, 1024, rows, with_norm, with_norm && rows > 1);
    next++;
  }
  for (const auto &pair : pairs) { /* of few groups, whose sums are shared by warps */
    for (int32_t rows : {1, 2, 3}) check_pair(pair, 16, rows < 3 ? 2560 : 768, rows, rows == 2, false);
  }
}

/* --- replays --- */

static void replay(int32_t outputs, int32_t bucket) {
  const int32_t columns = 576;
  batch b(bucket);
  act a(random_floats((size_t)(bucket * columns)), bucket);
  const matrix m = make_matrix(OPS_Q4_1, outputs, columns);
  const std::vector<float> want = reference_linear(m, a, OPS_MATH_INT8),
                           poison((size_t)(bucket * outputs), -1.5f);
  const device_matrix d(m);
  act_on_device x(bucket, columns, OPS_MATH_INT8, bucket);
  x.x.write(a.x);
  device_array<float> y(poison);
  const cuda_linear_job job = {d.w, y.at(), false, nullptr};
  cudaGraph_t graph;
  cudaGraphExec_t replayed;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cuda_linear(stream, b.of(bucket), &job, 1, nullptr, nullptr, x.view());
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&replayed, graph, 0));
  for (int32_t rows : {16, 1, 9, 0, 8, 3}) {
    if (rows > bucket) continue;
    b.set(rows, 0);
    y.write(poison);
    ok(cudaGraphLaunch(replayed, stream));
    std::vector<float> now = poison;
    std::copy(want.begin(), want.begin() + rows * outputs, now.begin());
    same_floats(y.read(), now, "replay");
  }
  ok(cudaGraphExecDestroy(replayed));
  ok(cudaGraphDestroy(graph));
}

static void a_graph_is_replayed_with_another_number_of_rows(void **) {
  replay(40, 16);
  replay(40, 4);
  for (int32_t bucket : {4, 8, 16}) replay(STREAMED, bucket);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_are_embedded_from_every_type),
      cmocka_unit_test(a_norm_is_that_of_the_rows_or_of_the_head_rows),
      cmocka_unit_test(activations_get_the_int8_form_of_the_reference),
      cmocka_unit_test(activations_get_the_bf16_form_of_the_reference),
      cmocka_unit_test(linears_of_every_type_equal_the_reference),
      cmocka_unit_test(linears_of_blocks_take_any_number_of_blocks),
      cmocka_unit_test(linears_of_plain_types_take_any_number_of_columns),
      cmocka_unit_test(every_number_of_rows_gives_the_same_bits),
      cmocka_unit_test(quantised_extremes_are_summed_like_the_reference),
      cmocka_unit_test(large_linears_read_their_weights_as_streams),
      cmocka_unit_test(long_sums_of_few_groups_are_shared_by_warps),
      cmocka_unit_test(large_linears_of_bf16_equal_the_reference),
      cmocka_unit_test(any_numbers_of_bf16_are_summed_like_the_reference),
      cmocka_unit_test(some_rows_of_large_linears_equal_the_reference),
      cmocka_unit_test(many_rows_of_large_linears_equal_the_reference),
      cmocka_unit_test(a_small_gpu_has_tiles_for_each_team),
      cmocka_unit_test(many_rows_of_many_outputs_equal_the_reference),
      cmocka_unit_test(large_matrices_are_not_parted),
      cmocka_unit_test(a_linear_takes_its_input_through_a_norm),
      cmocka_unit_test(swiglu_is_silu_of_gate_times_up),
      cmocka_unit_test(a_linear_stores_what_it_makes),
      cmocka_unit_test(two_types_of_one_launch_equal_the_reference),
      cmocka_unit_test(a_graph_is_replayed_with_another_number_of_rows),
  };
  return cmocka_run_group_tests(tests, open_stream, close_stream);
}
