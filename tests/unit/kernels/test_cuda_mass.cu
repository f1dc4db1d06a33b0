/* libs: kernels_cuda_emulated : cost=10 */
/* What blocks weigh against the definition of ops.h, written here once more as plain loops, by memcmp. */
#include "tests/support/cuda_cache.h"

#define LAYERS 2
#define LAYER  1
#define SPLIT  256
#define LANES  32
#define STAGE  32

typedef struct shape {
  ops_kv_type type;
  int32_t heads, kv_heads, head_dim;
} shape;

static float in_halves(std::vector<float> x) {
  for (size_t half = x.size() / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

static uint32_t *key_bits(test_cache *c, int32_t sequence, int32_t head, int32_t p, int32_t d) {
  return &c->committed.keys[key_index(c->kv, c->kv.blocks * OPS_TILE, LAYER, head,
                                      committed_row(*c, sequence, p), d)];
}

/* --- the definition --- */

/* One head's share of each tile is added. */
static void add_head(test_cache *c, const ops_row &row, int32_t kv_head, const float *q,
                     std::vector<float> *mass) {
  std::vector<float> largest, sums, tiles, lanes(LANES, 0);
  float most = -INFINITY;
  for (int32_t from = 0; from < row.length; from += SPLIT) {
    std::vector<float> scores(SPLIT, -INFINITY);
    for (int32_t i = 0; i < SPLIT && from + i < row.length; i++) {
      float dot = 0;
      for (int32_t d = 0; d < c->kv.head_dim; d++)
        dot = fmaf(q[d], element_of_bits(c->kv, *key_bits(c, row.sequence, kv_head, from + i, d)), dot);
      scores[(size_t)i] = dot * (1.0f / sqrtf((float)c->kv.head_dim));
    }
    float top = -INFINITY, sum = 0;
    for (float s : scores) top = s > top ? s : top;
    for (size_t t = 0; t < SPLIT; t += OPS_TILE) {
      std::vector<float> e(OPS_TILE, 0);
      for (size_t i = 0; i < OPS_TILE; i++)
        if (scores[t + i] > -INFINITY) e[i] = cpu_exp(scores[t + i] - top);
      tiles.push_back(in_halves(e));
      sum += tiles.back();
    }
    largest.push_back(top);
    sums.push_back(sum);
    most = top > most ? top : most;
  }
  for (size_t s = 0; s < sums.size(); s++)
    lanes[s % LANES] = fmaf(sums[s], cpu_exp(largest[s] - most), lanes[s % LANES]);
  const float inverse = 1.0f / in_halves(lanes);
  for (size_t t = 0; t < (size_t)(row.length + OPS_TILE - 1) / OPS_TILE; t++)
    (*mass)[t] = fmaf(tiles[t], cpu_exp(largest[t * OPS_TILE / SPLIT] - most) * inverse, (*mass)[t]);
}

/* The largest bound of all heads is added to that of each tile, or their mean. */
static void add_bounds(test_cache *c, const ops_row &row, int32_t heads, const float *q, bool mean,
                       std::vector<float> *bounds) {
  const int32_t dim = c->kv.head_dim;
  for (int32_t first = 0; first < row.length; first += OPS_TILE) {
    float best = -INFINITY;
    std::vector<float> lanes(LANES, 0);
    for (int32_t h = 0; h < heads; h++) {
      float dots[2] = {0, 0};
      for (int32_t d = 0; d < dim; d++) {
        float ends[2] = {-INFINITY, INFINITY};
        for (int32_t p = first; p < first + OPS_TILE && p < row.length; p++) {
          const float x =
              element_of_bits(c->kv, *key_bits(c, row.sequence, h / (heads / c->kv.kv_heads), p, d));
          ends[0] = fmaxf(ends[0], x);
          ends[1] = fminf(ends[1], x);
        }
        for (int i = 0; i < 2; i++) dots[i] = fmaf(q[h * dim + d], ends[i], dots[i]);
      }
      const float own = fmaxf(dots[0], dots[1]) * (1.0f / sqrtf((float)dim));
      best = fmaxf(best, own);
      lanes[(size_t)(h % (heads / c->kv.kv_heads) % LANES)] += own;
    }
    (*bounds)[(size_t)(first / OPS_TILE)] += mean ? in_halves(lanes) * (1.0f / (float)heads) : best;
  }
}

/* Rows that are not captured keep what they have; so does what is beyond a row's last tile. */
static std::vector<float> expected_of(test_cache *c, const test_batch &b,
                                      const std::vector<int32_t> &captured, int32_t heads,
                                      const std::vector<float> &q, ops_weighing how) {
  const size_t columns = (size_t)(c->kv.context / OPS_TILE), dim = (size_t)c->kv.head_dim;
  std::vector<float> y(b.rows.size() * columns, 1);
  for (int32_t r : captured) {
    const ops_row &row = b.rows[(size_t)r];
    std::vector<float> mass(columns, 0);
    for (int32_t times = 0; times < 2; times++) {
      const float *queries = &q[(size_t)r * (size_t)heads * dim];
      if (how != OPS_WEIGH_MASS) add_bounds(c, row, heads, queries, how == OPS_WEIGH_BOUND_MEAN, &mass);
      for (int32_t h = 0; h < heads && how == OPS_WEIGH_MASS; h++)
        add_head(c, row, h / (heads / c->kv.kv_heads), queries + (size_t)h * dim, &mass);
    }
    for (size_t t = 0; t < (size_t)(row.length + OPS_TILE - 1) / OPS_TILE; t++)
      y[(size_t)r * columns + t] = mass[t];
  }
  return y;
}

/* --- cases --- */

static void fill_keys(test_cache *c, const test_batch &b) {
  for (const ops_row &row : b.rows)
    for (int32_t p = 0; p < row.length; p++)
      for (int32_t h = 0; h < c->kv.kv_heads; h++)
        for (int32_t d = 0; d < c->kv.head_dim; d++)
          *key_bits(c, row.sequence, h, p, d) = bits_of_element(
              c->kv, 3 * number_of((((uint64_t)row.sequence << 20 | (uint64_t)p) * 64 + (uint64_t)h) * 512 +
                                   (uint64_t)d));
}

static void set_captured(test_batch *b, const std::vector<int32_t> &captured) {
  std::vector<cuda_batch> batch = from_device(b->device, 1);
  batch[0].capture_rows = to_device(captured);
  batch[0].capture_count = batch[0].weigh_count = (int32_t)captured.size();
  b->memory.push_back((void *)batch[0].capture_rows);
  assert_int_equal(cudaMemcpy(b->device, batch.data(), sizeof(cuda_batch), cudaMemcpyHostToDevice),
                   cudaSuccess);
}

/* Twice, as two layers are; what scratch held before does not matter. */
static void check(const shape &s, test_batch b, const std::vector<int32_t> &captured, int32_t context) {
  test_cache c = make_cache(s.type, LAYERS, s.kv_heads, s.head_dim, 3, context, STAGE);
  fill_keys(&c, b);
  upload_cache(&c);
  upload_batch(&b);
  set_captured(&b, captured);
  const int32_t rows = (int32_t)b.rows.size(), lines = (int32_t)captured.size(), positions = context;
  const std::vector<float> q = numbers(b.rows.size() * (size_t)(s.heads * s.head_dim), 5);
  const std::vector<float> expected = expected_of(&c, b, captured, s.heads, q, OPS_WEIGH_MASS);
  const std::vector<float> bounds[] = {expected_of(&c, b, captured, s.heads, q, OPS_WEIGH_BOUND_MAX),
                                       expected_of(&c, b, captured, s.heads, q, OPS_WEIGH_BOUND_MEAN)};
  for (int32_t bucket : {lines, lines + 3}) {
    float *q_memory = to_device(q), *y = to_device(std::vector<float>(expected.size(), 1));
    float *scratch = to_device(std::vector<float>(cuda_mass_floats(bucket, s.heads, positions), NAN));
    for (bool add : {false, true})
      cuda_mass(NULL, {b.device, rows, false}, bucket, c.kv, LAYER, s.heads, positions, q_memory, add, y,
                scratch);
    assert_same(from_device(y, expected.size()), expected);
    for (bool mean : {false, true}) {
      cudaMemcpy(y, std::vector<float>(expected.size(), 1).data(), expected.size() * sizeof(float),
                 cudaMemcpyHostToDevice);
      for (bool add : {false, true})
        cuda_bound(NULL, {b.device, rows, false}, bucket, c.kv, LAYER, s.heads, positions, q_memory, mean,
                   add, y);
      assert_same(from_device(y, expected.size()), bounds[mean]);
    }
    for (float *p : {q_memory, y, scratch}) cudaFree(p);
  }
  free_batch(&b);
  free_cache(&c);
}

static test_batch rows_of(const std::vector<int32_t> &lengths) {
  test_batch b = {};
  for (int32_t i = 0; i < (int32_t)lengths.size(); i++) {
    add_row(&b, i, lengths[(size_t)i], {i});
    b.spans.back() = {{0, lengths[(size_t)i] + 1}};
  }
  return b;
}

static void rows_of_every_length(void **state) {
  (void)state;
  const shape s = {OPS_KV_F16, 3, 1, 64};
  check(s, rows_of({1, 15, 16}), {0, 1, 2}, 256);
  check(s, rows_of({17, 255, 256}), {0, 1, 2}, 256);
  check(s, rows_of({257, 512, 1025}), {2, 0}, 1280);
  check({OPS_KV_F16, 1, 1, 8}, rows_of({8703, 40, 8193}), {0, 2}, 34 * SPLIT); /* a lane has two splits */
}

static void heads_of_every_shape(void **state) {
  (void)state;
  for (ops_kv_type type : {OPS_KV_F16, OPS_KV_F32})
    for (int32_t group : {1, 2, 3, 4, 5, 8, 9})
      check({type, 2 * group, 2, 24}, rows_of({290, 20}), {0, 1}, 512);
  check({OPS_KV_F16, 70, 2, 8}, rows_of({40}), {0}, 256); /* more heads than a warp has lanes */
  for (int32_t head_dim : {7, 20, 128, 512}) check({OPS_KV_F16, 6, 1, head_dim}, rows_of({70}), {0}, 512);
}

/* More tiles than a block of the second kernel has threads. */
static void tiles_of_several_blocks(void **state) {
  (void)state;
  check({OPS_KV_F16, 2, 2, 8}, rows_of({4600}), {0}, 5120);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_of_every_length),
      cmocka_unit_test(heads_of_every_shape),
      cmocka_unit_test(tiles_of_several_blocks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
