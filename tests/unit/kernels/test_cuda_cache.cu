/* libs: kernels_cuda_emulated model */
/* Kernels that make angles and write the cache, against the C reference, by memcmp. */
#include "tests/support/cuda_cache.h"

PORTABLE_C_BEGIN
#include "common/model/rope.h"
#include "kernels/cpu/row_ops_c.h"
PORTABLE_C_END

#define LAYERS    2
#define LAYER     1
#define SEQUENCES 3
#define CONTEXT   64
#define STAGE     32

static rope make_rope(int32_t dim, float times) {
  rope r = {};
  r.dim = dim;
  r.times = times;
  for (int32_t i = 0; i < dim / 2; i++) r.frequency[i] = powf(10000, -2.0f * (float)i / (float)dim);
  return r;
}

static std::vector<float> angles_of(const rope &r, const test_batch &b) {
  std::vector<float> angles(b.rows.size() * 2 * (size_t)r.dim);
  for (size_t i = 0; i < b.rows.size(); i++)
    rope_row(&r, b.rows[i].position + b.rows[i].rope_shift, &angles[i * 2 * (size_t)r.dim]);
  return angles;
}

/* Appended rows and rows of a tree, of several sequences. */
static test_batch make_batch(void) {
  test_batch b = {};
  for (int32_t p = 13; p < 20; p++) {
    add_row(&b, 2, p + 1, {});
    b.rows.back().position = p;
  }
  add_row(&b, 0, 5, {17});
  add_row(&b, 0, 5, {17, 3});
  add_row(&b, 0, 5, {17, 31});
  add_row(&b, 0, 5, {17, 3, 16});
  add_row(&b, 1, 63, {0});
  upload_batch(&b);
  return b;
}

static void angles_are_those_of_the_model(void **state) {
  (void)state;
  test_batch b = {};
  for (int32_t p : {0, 1, 2, 100, 4095, 131071, 1000000}) {
    add_row(&b, 0, p + 1, {});
    b.rows.back().position = p;
  }
  add_row(&b, 0, 100, {});
  b.rows.back().position = 99;
  b.rows.back().rope_shift = 5000;
  upload_batch(&b);
  for (int32_t dim : {2, 64, 80, 512}) {
    rope r = make_rope(dim, dim == 64 ? 1 : 1.1877f);
    r.frequency[0] = 1024; /* whole and half turns, and all quadrants */
    std::vector<float> room(b.rows.size() * 2 * (size_t)dim, -1);
    float *angles = to_device(room), *frequency = to_device(r.frequency, (size_t)dim / 2);
    cuda_rope(NULL, {b.device, 16, false}, frequency, dim, r.times, angles);
    assert_same(from_device(angles, room.size()), angles_of(r, b));
    cudaFree(angles);
    cudaFree(frequency);
  }
  free_batch(&b);
}

/* --- rope_store --- */

typedef struct store_case {
  ops_kv_type type;
  int32_t heads, kv_heads, head_dim, rope_dim;
  bool normed;
} store_case;

typedef struct store_data {
  std::vector<float> q, k, v, q_norm, k_norm, angles;
} store_data;

static store_data make_data(const store_case &c, const test_batch &b) {
  size_t rows = b.rows.size(), dim = (size_t)c.head_dim;
  store_data d = {numbers(rows * (size_t)c.heads * dim, 1),
                  numbers(rows * (size_t)c.kv_heads * dim, 2),
                  numbers(rows * (size_t)c.kv_heads * dim, 3),
                  numbers(dim, 4),
                  numbers(dim, 5),
                  angles_of(make_rope(c.rope_dim, 0.9f), b)};
  return d;
}

#define EPS 1e-5f

static void transform(const store_case &c, const float *norm, const float *angles, float *x) {
  if (c.normed) cpu_norm_c(x, x, norm, c.head_dim, EPS);
  cpu_rope_c(x, x, angles, angles + c.rope_dim, c.rope_dim);
}

static void expect_head(const store_case &c, const ops_row &row, test_cache *cache, const test_batch &b,
                        int32_t head, const float *key, const float *value) {
  bool staged = row.path_count > 0;
  const cuda_kv &kv = cache->kv;
  cache_area_copy &area = staged ? cache->staged : cache->committed;
  int32_t rows = staged ? kv.stage : kv.blocks * OPS_TILE;
  int32_t at = staged ? b.paths[(size_t)(row.path_at + row.path_count - 1)]
                      : committed_row(*cache, row.sequence, row.position);
  for (int32_t i = 0; i < c.head_dim; i++) {
    area.keys[key_index(kv, rows, LAYER, head, at, i)] = bits_of_element(kv, key[i]);
    area.values[value_index(kv, rows, LAYER, head, at, i)] = bits_of_element(kv, value[i]);
  }
}

/* The C reference, over the host's copies. */
static void expect_stored(const store_case &c, const test_batch &b, store_data *d, test_cache *cache) {
  size_t dim = (size_t)c.head_dim;
  for (size_t i = 0; i < b.rows.size(); i++) {
    const float *angles = &d->angles[i * 2 * (size_t)c.rope_dim];
    for (size_t h = 0; h < (size_t)c.heads; h++)
      transform(c, d->q_norm.data(), angles, &d->q[(i * (size_t)c.heads + h) * dim]);
    for (size_t h = 0; h < (size_t)c.kv_heads; h++) {
      size_t at = (i * (size_t)c.kv_heads + h) * dim;
      transform(c, d->k_norm.data(), angles, &d->k[at]);
      expect_head(c, b.rows[i], cache, b, (int32_t)h, &d->k[at], &d->v[at]);
    }
  }
}

static void check_store(const store_case &c) {
  test_batch b = make_batch();
  test_cache cache = make_cache(c.type, LAYERS, c.kv_heads, c.head_dim, SEQUENCES, CONTEXT, STAGE);
  upload_cache(&cache);
  store_data d = make_data(c, b);
  float *q = to_device(d.q), *k = to_device(d.k), *v = to_device(d.v), *angles = to_device(d.angles),
        *q_norm = to_device(d.q_norm), *k_norm = to_device(d.k_norm);
  cuda_rotary rotary = {angles, c.rope_dim, c.normed ? q_norm : NULL, c.normed ? k_norm : NULL, EPS};
  cuda_rope_store(NULL, {b.device, 16, false}, cache.kv, LAYER, rotary, c.heads, q, k, v);
  expect_stored(c, b, &d, &cache);
  assert_same(from_device(q, d.q.size()), d.q);
  assert_same_elements(cache, cache.kv.keys, cache.committed.keys);
  assert_same_elements(cache, cache.kv.values, cache.committed.values);
  assert_same_elements(cache, cache.kv.stage_keys, cache.staged.keys);
  assert_same_elements(cache, cache.kv.stage_values, cache.staged.values);
  for (float *p : {q, k, v, angles, q_norm, k_norm}) cudaFree(p);
  free_cache(&cache);
  free_batch(&b);
}

static void rows_are_stored_where_they_say(void **state) {
  (void)state;
  for (ops_kv_type type : {OPS_KV_F16, OPS_KV_F32}) {
    check_store({type, 9, 3, 64, 64, false});
    check_store({type, 4, 4, 96, 96, true});
    check_store({type, 8, 1, 128, 64, true}); /* some components are not rotated */
    check_store({type, 3, 1, 256, 256, false});
    check_store({type, 2, 1, 20, 18, true}); /* no whole warps */
  }
}

/* --- commit --- */

static void expect_committed(test_cache *c, int32_t sequence, const std::vector<int32_t> &path,
                             int32_t length) {
  const cuda_kv &kv = c->kv;
  int32_t rows = kv.blocks * OPS_TILE;
  for (int32_t layer = 0; layer < kv.layers; layer++) {
    for (int32_t head = 0; head < kv.kv_heads; head++) {
      for (size_t i = 0; i < path.size(); i++) {
        int32_t to = committed_row(*c, sequence, length + (int32_t)i);
        for (int32_t d = 0; d < kv.head_dim; d++) {
          c->committed.keys[key_index(kv, rows, layer, head, to, d)] =
              c->staged.keys[key_index(kv, kv.stage, layer, head, path[i], d)];
          c->committed.values[value_index(kv, rows, layer, head, to, d)] =
              c->staged.values[value_index(kv, kv.stage, layer, head, path[i], d)];
        }
      }
    }
  }
}

static void check_commit(ops_kv_type type, int32_t kv_heads, int32_t head_dim, int32_t context, int32_t count,
                         int32_t length) {
  int32_t stage = (count + 40) / OPS_TILE * OPS_TILE;
  test_cache c = make_cache(type, LAYERS, kv_heads, head_dim, SEQUENCES, context, stage);
  for (size_t i = 0; i < c.staged.keys.size(); i++) {
    c.staged.keys[i] = bits_of_element(c.kv, number_of(i));
    c.staged.values[i] = bits_of_element(c.kv, number_of(i + ((uint64_t)1 << 40)));
  }
  upload_cache(&c);
  std::vector<int32_t> path;
  for (int32_t i = 0; i < count; i++) path.push_back((i * 5 + 3) % stage);
  const std::vector<int32_t> kept = path;
  cuda_commit(NULL, c.kv, 1, path.data(), count, length);
  path.assign(path.size(), -1); /* the caller's again */
  expect_committed(&c, 1, kept, length);
  assert_same_elements(c, c.kv.keys, c.committed.keys);
  assert_same_elements(c, c.kv.values, c.committed.values);
  free_cache(&c);
}

static void staged_rows_become_committed_ones(void **state) {
  (void)state;
  for (ops_kv_type type : {OPS_KV_F16, OPS_KV_F32}) {
    check_commit(type, 3, 64, CONTEXT, 1, 15);
    check_commit(type, 3, 64, CONTEXT, 9, 12);
    check_commit(type, 1, 20, CONTEXT, 33, 0);
    check_commit(type, 1, 16, 640, 600, 3); /* more than one launch takes */
    check_commit(type, 2, 128, CONTEXT, 0, 4);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(angles_are_those_of_the_model),
      cmocka_unit_test(rows_are_stored_where_they_say),
      cmocka_unit_test(staged_rows_become_committed_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
