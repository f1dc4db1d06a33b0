/* libs: kernels_cuda_emulated : cost=40 */
/* Attention against the definition of ops.h, written here once more as plain
 * loops, by memcmp. */
#include "kernels/cuda/launch.cuh"
#include "tests/support/cuda_cache.h"

#define LAYERS  2
#define LAYER   1
#define SPLIT   256
#define CHUNK   32
#define CONTEXT 2048
#define STAGE   64

/* --- the definition --- */

static bool sees(const std::vector<ops_span> &spans, int32_t p) {
  for (const ops_span &s : spans)
    if (s.first <= p && p < s.end) return true;
  return false;
}

/* Where a row finds the key and value of a position. */
struct place {
  bool staged;
  int32_t row;
};

static place place_of(const test_cache &c, const test_batch &b, const ops_row &row, int32_t p) {
  if (p >= row.length) return {true, b.paths[(size_t)(row.path_at + p - row.length)]};
  return {false, committed_row(c, row.sequence, p)};
}

static uint32_t *key_bits(test_cache *c, place at, int32_t head, int32_t d) {
  cache_area_copy &area = at.staged ? c->staged : c->committed;
  return &area.keys[key_index(c->kv, at.staged ? c->kv.stage : c->kv.blocks * OPS_TILE, LAYER, head, at.row,
                              d)];
}

static uint32_t *value_bits(test_cache *c, place at, int32_t head, int32_t d) {
  cache_area_copy &area = at.staged ? c->staged : c->committed;
  return &area.values[value_index(c->kv, at.staged ? c->kv.stage : c->kv.blocks * OPS_TILE, LAYER, head,
                                  at.row, d)];
}

struct splits_sum {
  float largest, sum;
  std::vector<float> values;
};

/* Of the split's positions that the row sees, which are not none. */
static splits_sum split_sum(test_cache *c, const test_batch &b, size_t row, int32_t kv_head, const float *q,
                            const std::vector<int32_t> &positions) {
  const int32_t dim = c->kv.head_dim;
  std::vector<float> scores;
  splits_sum s = {-INFINITY, 0, std::vector<float>((size_t)dim, 0)};
  float lanes[CPU_LANES] = {0};
  for (int32_t p : positions) {
    float dot = 0;
    for (int32_t d = 0; d < dim; d++)
      dot =
          fmaf(q[d], element_of_bits(c->kv, *key_bits(c, place_of(*c, b, b.rows[row], p), kv_head, d)), dot);
    scores.push_back(dot * (1.0f / sqrtf((float)dim)));
    s.largest = scores.back() > s.largest ? scores.back() : s.largest;
  }
  for (size_t i = 0; i < positions.size();) {
    const int32_t chunk = positions[i] / CHUNK;
    float e[CHUNK] = {0};
    std::vector<float> values((size_t)dim, 0);
    for (; i < positions.size() && positions[i] / CHUNK == chunk; i++) {
      const place at = place_of(*c, b, b.rows[row], positions[i]);
      const float weight = e[positions[i] % CHUNK] = cpu_exp(scores[i] - s.largest);
      for (int32_t d = 0; d < dim; d++)
        values[(size_t)d] =
            fmaf(weight, element_of_bits(c->kv, *value_bits(c, at, kv_head, d)), values[(size_t)d]);
    }
    for (int32_t l = 0; l < CPU_LANES; l++) lanes[l] += (e[l] + e[l + 16]) + (e[l + 8] + e[l + 24]);
    for (size_t d = 0; d < values.size(); d++) s.values[d] += values[d];
  }
  s.sum = cpu_lane_sum(lanes);
  return s;
}

static void add_split(splits_sum *all, const splits_sum &s) {
  if (all->values.empty()) {
    *all = s;
    return;
  }
  float m = s.largest > all->largest ? s.largest : all->largest;
  float before = cpu_exp(all->largest - m), now = cpu_exp(s.largest - m);
  all->sum = fmaf(s.sum, now, all->sum * before);
  for (size_t d = 0; d < s.values.size(); d++)
    all->values[d] = fmaf(s.values[d], now, all->values[d] * before);
  all->largest = m;
}

static std::vector<float> expected_of(test_cache *c, const test_batch &b, int32_t heads,
                                      const std::vector<float> &q) {
  const size_t dim = (size_t)c->kv.head_dim;
  std::vector<float> y;
  for (size_t i = 0; i < b.rows.size() * (size_t)heads; i++) {
    const size_t row = i / (size_t)heads;
    const int32_t kv_head = (int32_t)(i % (size_t)heads) / (heads / c->kv.kv_heads);
    splits_sum all = {};
    for (int32_t begin = 0; begin <= b.rows[row].position; begin += SPLIT) {
      std::vector<int32_t> positions;
      for (int32_t p = begin; p < begin + SPLIT; p++)
        if (sees(b.spans[row], p)) positions.push_back(p);
      if (!positions.empty()) add_split(&all, split_sum(c, b, row, kv_head, &q[i * dim], positions));
    }
    for (size_t d = 0; d < dim; d++) y.push_back(all.values[d] * (1.0f / all.sum));
  }
  return y;
}

/* --- cases --- */

typedef struct shape {
  ops_kv_type type;
  int32_t heads, kv_heads, head_dim;
} shape;

/* Numbers in all that some row sees. The rest is NaNs. */
static void fill_seen(test_cache *c, const test_batch &b) {
  for (size_t i = 0; i < b.rows.size(); i++) {
    for (int32_t p = 0; p <= b.rows[i].position; p++) {
      if (!sees(b.spans[i], p)) continue;
      const place at = place_of(*c, b, b.rows[i], p);
      for (int32_t h = 0; h < c->kv.kv_heads; h++) {
        for (int32_t d = 0; d < c->kv.head_dim; d++) {
          uint64_t seed = (((uint64_t)at.row << 1 | at.staged) * 64 + (uint64_t)h) * 512 + (uint64_t)d;
          *key_bits(c, at, h, d) = bits_of_element(c->kv, 4 * number_of(2 * seed));
          *value_bits(c, at, h, d) = bits_of_element(c->kv, number_of(2 * seed + 1));
        }
      }
    }
  }
}

static cuda_runs runs_of_size(int32_t bucket, int32_t rows) {
  return {bucket, rows, 0, 0};
}

/* How rows, heads and splits are dealt to blocks. positions: that the grid is
 * made for. */
struct grid_of_rows {
  int32_t bucket;
  cuda_runs runs;
  int32_t positions;
};

static void check_grid(test_cache *c, const test_batch &b, int32_t heads, const grid_of_rows &g,
                       const std::vector<float> &q, const std::vector<float> &expected) {
  float *q_memory = to_device(q), *y = to_device(std::vector<float>(expected.size(), -1)), *scratch;
  std::vector<float> room(cuda_attention_floats(c->kv, g.bucket, g.runs, heads), NAN);
  for (size_t i = 0; i < room.size() && i < CUDA_ATTENTION_COUNTERS; i++) room[i] = 0;
  scratch = to_device(room);
  for (int32_t times = 0; times < 2; times++) { /* the second finds what the first has left in `scratch` */
    cuda_attention(NULL, {b.device, g.bucket, false}, g.runs, c->kv, LAYER, 0, heads, g.positions, q_memory,
                   y, scratch);
    assert_same(from_device(y, expected.size()), expected);
    assert_int_equal(cudaMemset(y, 0xff, expected.size() * sizeof(float)), cudaSuccess);
  }
  for (float *p : {q_memory, y, scratch}) cudaFree(p);
}

/* Up to the last row. */
static int32_t positions_of(const test_batch &b) {
  int32_t positions = 0;
  for (const ops_row &r : b.rows) positions = r.position >= positions ? r.position + 1 : positions;
  return positions;
}

static void check_queries(test_cache *c, test_batch *b, int32_t heads, const std::vector<float> &q) {
  upload_cache(c);
  upload_batch(b);
  const std::vector<float> expected = expected_of(c, *b, heads, q);
  const int32_t rows = (int32_t)b->rows.size(), longest = b->runs.rows > 1 ? b->runs.rows : 2;
  const int32_t positions = positions_of(*b);
  for (int32_t bucket : {rows, rows + 100 / heads, rows + 256 / heads, 600})
    check_grid(c, *b, heads, {bucket, runs_of_size(bucket, 1), positions}, q, expected);
  const struct {
    cuda_runs runs;
    int32_t positions, processors; /* processors: if they are few, blocks have many queries */
  } grids[] = {{runs_of_size(b->runs.bucket, longest), c->kv.context, 1},
               {runs_of_size(b->runs.bucket, CUDA_RUN_ROWS), c->kv.context, 1000},
               {runs_of_size(b->runs.bucket, CUDA_RUN_ROWS), SPLIT, 1000}}; /* a block has all splits */
  for (const auto &g : grids) {
    launch_processors_for_test = g.processors;
    check_grid(c, *b, heads, {g.runs.bucket * g.runs.rows, g.runs, g.positions}, q, expected);
  }
  launch_processors_for_test = 0;
  const bool has_long = b->paths.empty() && c->kv.type == OPS_KV_F16 &&
                        (c->kv.head_dim == 64 || c->kv.head_dim == 128); /* attention_prefill.cu */
  for (int32_t bucket : {rows / CUDA_LONG_RUN_ROWS + 1, 300})
    if (has_long)
      check_grid(c, *b, heads,
                 {bucket * CUDA_LONG_RUN_ROWS, runs_of_size(bucket, CUDA_LONG_RUN_ROWS), c->kv.context}, q,
                 expected);
  free_batch(b);
  free_cache(c);
}

static void check_filled(test_cache *c, test_batch *b, int32_t heads, float scale) {
  std::vector<float> q = numbers(b->rows.size() * (size_t)(heads * c->kv.head_dim), 9);
  for (float &x : q) x *= scale;
  check_queries(c, b, heads, q);
}

static void check(const shape &s, test_batch b) {
  const int32_t end = positions_of(b), context = (end + OPS_TILE - 1) / OPS_TILE * OPS_TILE;
  test_cache c =
      make_cache(s.type, LAYERS, s.kv_heads, s.head_dim, 2, context > CONTEXT ? context : CONTEXT, STAGE);
  fill_seen(&c, b);
  check_filled(&c, &b, s.heads, 1);
}

/* A decoded row that sees these spans; the last of them ends with its own
 * position. */
static test_batch decoded(const std::vector<ops_span> &spans) {
  test_batch b = {};
  add_row(&b, 1, spans.back().end, {});
  b.rows[0].position = spans.back().end - 1;
  b.spans[0] = spans;
  return b;
}

static const shape default_shape = {OPS_KV_F16, 9, 3, 64};

static void rows_of_every_length(void **state) {
  (void)state;
  for (int32_t length : {1, 2, 7, 8, 9, 32, 33, 255, 256, 257, 511, 512, 513, 1024, 1025, 1500})
    check(default_shape, decoded({{0, length}}));
}

static void heads_of_every_shape(void **state) {
  (void)state;
  for (ops_kv_type type : {OPS_KV_F16, OPS_KV_F32}) {
    for (int32_t head_dim : {64, 96, 128, 256}) check({type, 3, 3, head_dim}, decoded({{0, 530}}));
    for (int32_t group : {1, 2, 3, 4, 5, 8}) check({type, 2 * group, 2, 64}, decoded({{0, 530}}));
    check({type, 8, 2, 256}, decoded({{0, 100}}));
    check({type, 4, 1, 512}, decoded({{0, 40}}));
    check({type, 2, 1, 20}, decoded({{0, 600}})); /* no whole units */
    check({type, 2, 1, 7}, decoded({{0, 70}}));
    check({type, 2, 1, 132}, decoded({{0, 70}}));
    check({type, 2, 1, 130}, decoded({{3, 70}}));
  }
}

static void windows_leave_out_what_is_before_them(void **state) {
  (void)state;
  for (int32_t first : {1, 5, 100, 255, 256, 511, 512, 513, 700, 1023, 1499})
    check(default_shape, decoded({{first, 1500}}));
  check({OPS_KV_F32, 4, 1, 64}, decoded({{600, 1500}}));
}

/* The keys of one head, larger or smaller from a position on. */
static void scale_keys(test_cache *c, const test_batch &b, int32_t from, float by) {
  for (int32_t p = from; p <= b.rows[0].position; p++) {
    for (int32_t d = 0; d < c->kv.head_dim; d++) {
      uint32_t *key = key_bits(c, place_of(*c, b, b.rows[0], p), 0, d);
      *key = bits_of_element(c->kv, by * element_of_bits(c->kv, *key));
    }
  }
}

/* More splits than a warp has lanes, whose largest scores rise and fall. */
static void many_splits_are_joined(void **state) {
  (void)state;
  for (float by : {0.25f, 2.0f}) {
    test_batch b = decoded({{0, 34 * SPLIT + 3}});
    test_cache c = make_cache(OPS_KV_F32, LAYERS, 1, 8, 2, 35 * SPLIT, STAGE);
    fill_seen(&c, b);
    scale_keys(&c, b, 32 * SPLIT, by);
    check_filled(&c, &b, 1, 1);
  }
  check({OPS_KV_F32, 1, 1, 8}, decoded({{0, 8 * SPLIT + 3}}));
  check({OPS_KV_F32, 1, 1, 8}, decoded({{0, 34 * SPLIT + 3}}));
  check({OPS_KV_F32, 1, 1, 8},
        decoded({{5000, 5020}, {31 * SPLIT, 33 * SPLIT}, {34 * SPLIT, 34 * SPLIT + 3}}));
}

static void gaps_between_spans_add_nothing(void **state) {
  (void)state;
  check(default_shape, decoded({{0, 4}, {300, 400}}));
  check(default_shape, decoded({{0, 4}, {508, 516}, {1400, 1500}}));
  check(default_shape, decoded({{3, 4}, {9, 10}, {11, 12}, {400, 401}, {513, 514}, {1029, 1030}}));
  check(default_shape, decoded({{511, 512}, {1024, 1025}}));
  check({OPS_KV_F32, 4, 1, 96}, decoded({{0, 4}, {508, 516}, {600, 700}}));
}

/* Several sequences, appended rows, and the rows of trees, whose paths lie
 * scattered in staging. */
static test_batch trees(int32_t length) {
  test_batch b = {};
  add_row(&b, 0, length, {33});
  add_row(&b, 0, length, {33, 5});
  add_row(&b, 0, length, {33, 40});
  add_row(&b, 0, length, {33, 5, 63, 0, 17});
  add_row(&b, 1, 3, {20});
  add_row(&b, 1, 3, {20, 21});
  for (size_t i = 0; i < b.rows.size(); i++) b.spans[i] = {{0, b.rows[i].position + 1}};
  b.spans[3] = {{0, 2}, {length - 1, length + 2}, {length + 3, length + 5}};
  return b;
}

static void trees_find_their_paths(void **state) {
  (void)state;
  for (int32_t length : {2, 14, 30, 254, 256, 510, 511, 512, 1021}) check(default_shape, trees(length));
  check({OPS_KV_F32, 4, 1, 128}, trees(511));
  check({OPS_KV_F16, 6, 1, 128}, trees(509));
  check({OPS_KV_F16, 5, 1, 256}, trees(30));
}

/* Rows of one sequence from position `first` on, each of which sees `window`
 * positions. */
static test_batch prompt(int32_t first, int32_t count, int32_t window) {
  test_batch b = {};
  for (int32_t p = first; p < first + count; p++) {
    add_row(&b, 0, p + 1, {});
    b.rows.back().position = p;
    b.spans.back() = {{p + 1 > window ? p + 1 - window : 0, p + 1}};
  }
  return b;
}

static void a_prefilled_row_sees_no_later_one(void **state) {
  (void)state;
  check(default_shape, prompt(505, 15, 510));
  check(default_shape, prompt(0, 3, 1000));
  check({OPS_KV_F16, 8, 1, 128}, prompt(250, 17, 40));
  check({OPS_KV_F16, 6, 2, 64}, prompt(475, 70, 10000)); /* a block's last row begins a tile */
  check({OPS_KV_F16, 1, 1, 128}, prompt(0, 40, 10000));
}

/* More splits than the last of their blocks joins. */
static void many_splits_of_runs_are_joined(void **state) {
  (void)state;
  test_batch b = prompt(17 * SPLIT - 2, 4, 20 * SPLIT); /* in 17 and 18 splits */
  b.spans[1] = {{3, 5}, {16 * SPLIT - 1, b.rows[1].position + 1}};
  check({OPS_KV_F16, 3, 1, 64}, b);
  check({OPS_KV_F16, 1, 1, 128}, b);
}

/* A sequence that begins with `shared` rows of the one before it, and then has
 * rows of its own: appended ones, or a tree's. */
static void add_sharing(test_batch *b, int32_t length, int32_t shared, int32_t appended,
                        const std::vector<std::vector<int32_t>> &paths) {
  const size_t first = b->rows.size();
  const int32_t sequence = first > 0 ? b->rows.back().sequence + 1 : 0;
  for (int32_t i = 1; i <= appended; i++) add_row(b, sequence, length + i, {});
  for (size_t i = first; i < b->rows.size(); i++) b->rows[i].position = b->rows[i].length - 1;
  for (const std::vector<int32_t> &path : paths) add_row(b, sequence, length, path);
  b->rows[first].shared = shared;
  for (size_t i = first; i < b->rows.size(); i++) b->spans[i] = {{0, b->rows[i].position + 1}};
}

/* The block tables say what the rows say. */
static test_cache cache_of_sharing(const shape &s, const test_batch &b) {
  const int32_t end = positions_of(b), context = (end + OPS_TILE - 1) / OPS_TILE * OPS_TILE;
  test_cache c =
      make_cache(s.type, LAYERS, s.kv_heads, s.head_dim, b.rows.back().sequence + 1, context, STAGE);
  for (const ops_row &r : b.rows)
    for (int32_t i = 0; i < r.shared / OPS_TILE; i++) {
      const size_t at = (size_t)(r.sequence * (context / OPS_TILE) + i);
      c.tables[at] = c.tables[at - (size_t)(context / OPS_TILE)];
    }
  fill_seen(&c, b);
  return c;
}

static void check_sharing(const shape &s, test_batch b) {
  test_cache c = cache_of_sharing(s, b);
  const std::vector<float> q = numbers(b.rows.size() * (size_t)(s.heads * s.head_dim), 9);
  upload_cache(&c);
  upload_batch(&b);
  assert_true(b.split_runs.shared > 0);
  const std::vector<float> expected = expected_of(&c, b, s.heads, q);
  cuda_runs runs = b.split_runs;
  runs.bucket += 3;
  for (int32_t processors : {1, 1000}) { /* blocks of many queries, and of few */
    launch_processors_for_test = processors;
    check_grid(&c, b, s.heads, {(int32_t)b.rows.size(), runs, c.kv.context}, q, expected);
  }
  launch_processors_for_test = 0;
  free_batch(&b);
  free_cache(&c);
}

static void sequences_share_what_they_begin_with(void **state) {
  (void)state;
  test_batch steps = {}, trees = {}, many = {}, prefixes = {}, splits = {};
  for (int32_t length : {800, 790, 1030, 769, 900})
    add_sharing(&steps, length, length == 800 ? 0 : 768, 1, {});
  check_sharing(default_shape, steps);
  check_sharing({OPS_KV_F16, 8, 4, 256}, steps);
  add_sharing(&trees, 600, 0, 0, {{33}, {33, 5}, {33, 40}, {33, 5, 63}});
  add_sharing(&trees, 512, 512, 0, {{20}, {20, 21}, {20, 22}, {20, 21, 23}});
  check_sharing({OPS_KV_F16, 6, 1, 128}, trees);
  add_sharing(&many, 520, 0, 5, {});
  add_sharing(&many, 765, 512, 9, {});
  add_sharing(&many, 513, 512, 0, {{1}, {1, 2}});
  check_sharing({OPS_KV_F16, 4, 1, 64}, many);
  add_sharing(&prefixes, 1100, 0, 1, {});
  add_sharing(&prefixes, 1024, 1024, 1, {}); /* four splits, */
  add_sharing(&prefixes, 900, 784, 1, {});   /* three of them, and a tile of the next one */
  add_sharing(&prefixes, 700, 0, 1, {});
  add_sharing(&prefixes, 640, 0, 1, {});
  add_sharing(&prefixes, 1000, 512, 1, {});
  check_sharing({OPS_KV_F16, 3, 1, 64}, prefixes);
  add_sharing(&splits, 17 * SPLIT + 1, 0, 1, {});
  add_sharing(&splits, 16 * SPLIT + 1, 16 * SPLIT, 1, {});
  check_sharing({OPS_KV_F16, 1, 1, 64}, splits);
}

/* Windows end within what is shared, one before it, and a row sees two gaps. */
static void sequences_see_some_of_what_they_share(void **state) {
  (void)state;
  test_batch b = {};
  for (int32_t length : {800, 790, 1030, 769}) add_sharing(&b, length, length == 800 ? 0 : 768, 1, {});
  b.spans[0] = {{300, 801}};
  b.spans[1] = {{600, 791}};
  b.spans[2] = {{1000, 1031}};
  b.spans[3] = {{0, 3}, {290, 310}, {520, 770}};
  check_sharing(default_shape, b);
  check_sharing({OPS_KV_F16, 32, 1, 128}, b);
  for (size_t i = 0; i < 4; i++) b.spans[i][0].first = 600; /* nobody sees two of the splits */
  b.spans[3] = {{600, 770}};
  check_sharing(default_shape, b);
}

/* In a cache of many positions, what the splits of few runs leave is as much as
 * is kept at once. */
static void runs_are_launched_in_turns(void **state) {
  (void)state;
  const int32_t heads = 32;
  test_batch b = prompt(250, 35, 1000);
  test_cache c = make_cache(OPS_KV_F16, LAYERS, 1, 64, 1, 32768, STAGE);
  fill_seen(&c, b);
  const std::vector<float> q = numbers(b.rows.size() * (size_t)(heads * 64), 9);
  upload_cache(&c);
  upload_batch(&b);
  const std::vector<float> expected = expected_of(&c, b, heads, q);
  const struct {
    cuda_runs runs;
    int32_t positions, processors;
  } grids[] = {
      {runs_of_size(5, CUDA_RUN_ROWS), 4096, 1000}, /* blocks of few queries, joined by the last of them */
      {runs_of_size(5, CUDA_RUN_ROWS), 8192, 1000},
      {runs_of_size(5, CUDA_RUN_ROWS), 8192, 20}, /* of many */
      {runs_of_size(2, CUDA_LONG_RUN_ROWS), 8192, 1000}};
  for (const auto &g : grids) {
    launch_processors_for_test = g.processors;
    check_grid(&c, b, heads, {g.runs.bucket * g.runs.rows, g.runs, g.positions}, q, expected);
  }
  launch_processors_for_test = 0;
  free_batch(&b);
  free_cache(&c);
}

/* Rows that see other gaps than their neighbours, and one of them nothing of
 * most splits. */
static void rows_of_a_run_see_what_each_sees(void **state) {
  (void)state;
  test_batch b = prompt(600, 6, 1000);
  b.spans[1] = {{0, 3}, {255, 257}, {590, 602}};
  b.spans[2] = {{602, 603}};
  b.spans[3] = {{0, 256}, {300, 310}, {320, 352}, {603, 604}};
  b.spans[5] = {{32, 64}, {64, 67}, {69, 70}, {512, 606}};
  for (int32_t group : {1, 3, 4, 7, 8}) check({OPS_KV_F16, 2 * group, 2, 64}, b);
  check({OPS_KV_F16, 6, 1, 128}, b);
  check({OPS_KV_F16, 2, 1, 256}, b);
}

/* Chunks that every row sees whole, in part and not at all, in turns. */
static void rows_of_a_run_see_the_same(void **state) {
  (void)state;
  test_batch b = prompt(600, 6, 1000);
  for (size_t i = 0; i < b.rows.size(); i++)
    b.spans[i] = {{0, 100}, {130, 288}, {320, 352}, {416, b.rows[i].position + 1}};
  check({OPS_KV_F16, 3, 1, 64}, b);
  check({OPS_KV_F16, 6, 1, 128}, b);
}

/* Paths that are one for more than a chunk, and then part. */
static void paths_of_a_run_are_long(void **state) {
  (void)state;
  test_batch b = {};
  std::vector<int32_t> path;
  for (int32_t i = 0; i < 60; i++) path.push_back((i + 1) * 7 % 60); /* not side by side */
  for (int32_t i = 0; i < 5; i++) {
    std::vector<int32_t> own = path;
    own.push_back(60 + i % 4);
    add_row(&b, 0, 250, i == 4 ? path : own);
  }
  for (size_t i = 0; i < b.rows.size(); i++) b.spans[i] = {{0, b.rows[i].position + 1}};
  check({OPS_KV_F16, 8, 2, 64}, b);
}

/* A row that is appended and one of a tree have the last position in different
 * places. */
static void a_run_has_appended_rows_and_a_tree(void **state) {
  (void)state;
  for (int32_t first : {0, 1}) {
    test_batch b = {};
    if (first == 0) add_row(&b, 0, 41, {});
    add_row(&b, 0, 40, {5});
    add_row(&b, 0, 40, {5, 6});
    if (first == 1) add_row(&b, 0, 42, {});
    for (size_t i = 0; i < b.rows.size(); i++) {
      b.rows[i].position = b.rows[i].length + b.rows[i].path_count - 1;
      b.spans[i] = {{0, b.rows[i].position + 1}};
    }
    check({OPS_KV_F16, 4, 1, 64}, b);
  }
}

static cuda_runs choice_of(int32_t bucket, cuda_runs runs, cuda_runs long_runs, const cuda_kv &kv,
                           int32_t heads, int32_t positions) {
  return cuda_attention_runs({NULL, bucket, false}, runs, long_runs, {}, kv, heads, positions, positions);
}

/* Rows of few blocks, and what there is no kernel for, are computed each by
 * itself. */
static void runs_are_taken_where_they_pay(void **state) {
  (void)state;
  const cuda_kv f16 = make_cache(OPS_KV_F16, 1, 2, 64, 1, CONTEXT, STAGE).kv;
  const cuda_kv f32 = make_cache(OPS_KV_F32, 1, 2, 64, 1, CONTEXT, STAGE).kv;
  const cuda_kv odd = make_cache(OPS_KV_F16, 1, 2, 96, 1, CONTEXT, STAGE).kv;
  const int32_t many = 4096;
  const auto rows_of = [](const cuda_kv &kv, int32_t runs, int32_t rows) {
    return choice_of(runs * rows, runs_of_size(runs, rows), {}, kv, 4, CONTEXT).rows;
  };
  assert_int_equal(rows_of(f16, many, 8), 8);
  assert_int_equal(rows_of(f16, many, 4), 4);
  assert_int_equal(rows_of(f16, many, 2), 2);
  assert_int_equal(rows_of(f16, 1, 1), 1);
  assert_int_equal(rows_of(f32, many, 8), 1);
  assert_int_equal(rows_of(odd, many, 8), 1);
  launch_processors_for_test = 100;
  assert_int_equal(choice_of(8, runs_of_size(1, 8), {}, f16, 4, SPLIT).rows, 1);
  launch_processors_for_test = 0;
  assert_int_equal(choice_of(5, runs_of_size(1, 2), {}, f16, 4, SPLIT).bucket, 5);
}

/* They have to leave less to do, in a cache that there is a kernel for, and no more in memory than is kept.
 */
static void split_runs_are_taken_where_they_pay(void **state) {
  (void)state;
  const cuda_runs split_runs = {8, 1, 14, 8};
  const auto shared_of = [&](ops_kv_type type, int32_t context, cuda_runs these, int32_t end) {
    cuda_kv kv = make_cache(type, 1, 1, 64, 1, OPS_TILE, STAGE).kv;
    kv.context = context;
    return cuda_attention_runs({NULL, 8, false}, runs_of_size(8, 1), {}, these, kv, 4, 4096, end).shared;
  };
  launch_processors_for_test = 3;
  assert_int_equal(shared_of(OPS_KV_F16, 4096, split_runs, 4096), 14);
  assert_int_equal(shared_of(OPS_KV_F16, 4096, split_runs, SPLIT), 0); /* there are not that many yet */
  assert_int_equal(shared_of(OPS_KV_F32, 4096, split_runs, 4096), 0);
  assert_int_equal(shared_of(OPS_KV_F16, 4096, {128, 1, 1, 8}, 4096), 0);
  assert_int_equal(shared_of(OPS_KV_F16, 4096, {8, 1, 0, 0}, 4096), 0);
  assert_int_equal(shared_of(OPS_KV_F16, 2 << 20, split_runs, 4096), 0);
  launch_processors_for_test = 1000;
  assert_int_equal(shared_of(OPS_KV_F16, 4096, split_runs, 4096), 0);
  launch_processors_for_test = 0;
}

static void long_runs_are_taken_where_they_pay(void **state) {
  (void)state;
  const cuda_kv f16 = make_cache(OPS_KV_F16, 1, 2, 64, 1, CONTEXT, STAGE).kv;
  const cuda_kv f32 = make_cache(OPS_KV_F32, 1, 2, 64, 1, CONTEXT, STAGE).kv;
  const cuda_kv wide = make_cache(OPS_KV_F16, 1, 2, 256, 1, CONTEXT, STAGE).kv;
  const auto rows_of = [](const cuda_kv &kv, int32_t runs, int32_t rows) {
    return choice_of(4096, runs_of_size(512, 8), runs_of_size(runs, rows), kv, 8, CONTEXT).rows;
  };
  assert_int_equal(rows_of(f16, 128, CUDA_LONG_RUN_ROWS), CUDA_LONG_RUN_ROWS);
  assert_int_equal(rows_of(f16, 0, 0), 8);                    /* some are staged */
  assert_int_equal(rows_of(f16, 512, CUDA_LONG_RUN_ROWS), 8); /* most of them are not long */
  assert_int_equal(rows_of(f32, 128, CUDA_LONG_RUN_ROWS), 1);
  assert_true(rows_of(wide, 128, CUDA_LONG_RUN_ROWS) < CUDA_LONG_RUN_ROWS);
#ifndef __CUDACC__
  const cuda_kv large = make_cache(OPS_KV_F16, 1, 2, 128, 1, CONTEXT, STAGE).kv;
  const int before = shim::shared_max;
  assert_int_equal(rows_of(large, 128, CUDA_LONG_RUN_ROWS), CUDA_LONG_RUN_ROWS);
  shim::shared_max = 99 << 10;
  assert_true(rows_of(large, 128, CUDA_LONG_RUN_ROWS) < CUDA_LONG_RUN_ROWS);
  shim::shared_max = before;
#endif
}

/* Zero times an infinite value is no number: the rows before it do not multiply
 * it at all. */
static void an_infinity_in_a_later_value_is_not_seen(void **state) {
  (void)state;
  for (int32_t rows : {6, 30}) { /* the last ones see all of a chunk */
    test_batch b = prompt(44, rows, 1000);
    test_cache c = make_cache(OPS_KV_F16, LAYERS, 3, 64, 2, CONTEXT, STAGE);
    fill_seen(&c, b);
    for (int32_t p : {48, 49})
      for (int32_t d = 0; d < 64; d++) *value_bits(&c, {false, committed_row(c, 0, p)}, 1, d) = F16_INFINITY;
    check_filled(&c, &b, 9, 1);
  }
}

/* Scores so far apart that weights underflow, and splits that outweigh each
 * other. */
static void large_scores_are_rescaled(void **state) {
  (void)state;
  for (float scale : {0.01f, 20.0f, 300.0f}) {
    test_batch b = decoded({{0, 1100}});
    test_cache c = make_cache(OPS_KV_F16, LAYERS, 3, 64, 2, CONTEXT, STAGE);
    fill_seen(&c, b);
    check_filled(&c, &b, 9, scale);
  }
}

/* All chunks come to -0: the product of a value and its weight is below the
 * smallest number. The sum over them begins with +0. */
static void chunks_of_negative_zeros_are_added_to_zero(void **state) {
  (void)state;
  test_batch b = decoded({{0, SPLIT}});
  test_cache c = make_cache(OPS_KV_F32, LAYERS, 1, 64, 2, CONTEXT, STAGE);
  for (int32_t p = 0; p < SPLIT; p++) {
    const place at = place_of(c, b, b.rows[0], p);
    for (int32_t d = 0; d < 64; d++) {
      *key_bits(&c, at, 0, d) = cpu_bits_of(p % CHUNK ? 0.0f : -10.0f);
      *value_bits(&c, at, 0, d) = cpu_bits_of(p % CHUNK ? -0.0f : -1e-20f);
    }
  }
  check_queries(&c, &b, 1, std::vector<float>(64, 1));
}

#ifndef __CUDACC__
/* The first block sees new rows. What this forward writes is NaNs until the
 * previous kernel ends, and what shares lines with it: queries, staged rows,
 * and committed ones of as many positions as there are rows. */
static void check_wait_of(test_batch b, cuda_runs runs, int32_t heads) {
  const int32_t rows = (int32_t)b.rows.size();
  test_cache c = runs.shared > 0 ? cache_of_sharing({OPS_KV_F16, heads, 1, 64}, b)
                                 : make_cache(OPS_KV_F16, LAYERS, 1, 64, 2, CONTEXT, STAGE);
  fill_seen(&c, b);
  const std::vector<float> q = numbers(b.rows.size() * (size_t)heads * 64, 9), none(q.size(), NAN);
  const std::vector<float> expected = expected_of(&c, b, heads, q);
  const cache_area_copy real[] = {c.committed, c.staged};
  for (const ops_row &row : b.rows) {
    for (int32_t p = row.length > rows ? (row.length - rows) / 8 * 8 : 0; p <= row.position; p++)
      for (int32_t d = 0; d < 64; d++)
        *key_bits(&c, place_of(c, b, row, p), 0, d) = *value_bits(&c, place_of(c, b, row, p), 0, d) = F16_NAN;
  }
  upload_cache(&c);
  upload_batch(&b);
  float *q_memory = to_device(none), *y = to_device(none);
  float *scratch = to_device(std::vector<float>(cuda_attention_floats(c.kv, rows, runs, heads) + 1, 0));
  shim::previous_ends = [&] {
    memcpy(q_memory, q.data(), q.size() * sizeof(float));
    const std::vector<uint32_t> *areas[] = {&real[0].keys, &real[0].values, &real[1].keys, &real[1].values};
    for (int32_t i = 0; i < 4; i++) {
      const std::vector<uint8_t> bytes = packed_elements(c.kv, *areas[i]);
      memcpy(c.memory[i], bytes.data(), bytes.size());
    }
  };
  cuda_attention(NULL, {b.device, rows, false}, runs, c.kv, LAYER, 0, heads,
                 runs.rows > 1 || runs.shared > 0 ? c.kv.context : SPLIT, q_memory, y, scratch);
  const std::vector<float> got = from_device(y, expected.size());
  shim::previous_ends = nullptr;
  assert_same(got, expected);
  for (float *p : {q_memory, y, scratch}) cudaFree(p);
  free_batch(&b);
  free_cache(&c);
}

static void check_wait(const test_batch &b) {
  check_wait_of(b, runs_of_size((int32_t)b.rows.size(), 1), 1);
  check_wait_of(b, runs_of_size(200, CUDA_RUN_ROWS), 1);
  launch_processors_for_test = 1; /* blocks of many queries */
  check_wait_of(b, runs_of_size(1, CUDA_RUN_ROWS), 12);
  launch_processors_for_test = 0;
}

static void new_rows_are_read_after_the_wait(void **state) {
  (void)state;
  check_wait(decoded({{0, 1}}));
  check_wait(decoded({{0, 100}}));
  check_wait(prompt(SPLIT - 1, 1, CONTEXT)); /* all of its split is seen */
  test_batch tree = {};
  add_row(&tree, 0, 60, {33});
  tree.rows[0].position = 60;
  tree.spans[0] = {{0, 61}};
  check_wait(tree);
  test_batch sharing = {};
  add_sharing(&sharing, SPLIT, 0, 0, {{33}});
  add_sharing(&sharing, SPLIT, SPLIT, 1, {});
  for (int32_t processors : {1, 1000}) {
    launch_processors_for_test = processors;
    check_wait_of(sharing, {2, 1, 1, 2}, 12);
  }
  launch_processors_for_test = 0;
  check_wait_of(prompt(SPLIT, 2, CONTEXT), runs_of_size(200, CUDA_RUN_ROWS),
                1); /* the first row's line is in the split before */
  check_wait_of(prompt(SPLIT + 20, 2, CONTEXT), runs_of_size(200, CUDA_RUN_ROWS), 1);
  check_wait_of(prompt(SPLIT + 20, 2, CONTEXT), runs_of_size(200, CUDA_LONG_RUN_ROWS), 1);
}
#endif

static void a_nan_in_a_key_weighs_nothing(void **state) {
  (void)state;
  test_batch b = decoded({{0, 600}});
  test_cache c = make_cache(OPS_KV_F16, LAYERS, 3, 64, 2, CONTEXT, STAGE);
  fill_seen(&c, b);
  for (int32_t p : {0, 1, 300, 599}) *key_bits(&c, place_of(c, b, b.rows[0], p), 1, 3) = F16_NAN;
  check_filled(&c, &b, 9, 1);
}

int main(void) {
#ifndef __CUDACC__
  shim::shared_max = 227 << 10;
#endif
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_of_every_length),
      cmocka_unit_test(heads_of_every_shape),
      cmocka_unit_test(windows_leave_out_what_is_before_them),
      cmocka_unit_test(many_splits_are_joined),
      cmocka_unit_test(gaps_between_spans_add_nothing),
      cmocka_unit_test(trees_find_their_paths),
      cmocka_unit_test(a_prefilled_row_sees_no_later_one),
      cmocka_unit_test(many_splits_of_runs_are_joined),
      cmocka_unit_test(sequences_share_what_they_begin_with),
      cmocka_unit_test(sequences_see_some_of_what_they_share),
      cmocka_unit_test(runs_are_launched_in_turns),
      cmocka_unit_test(rows_of_a_run_see_what_each_sees),
      cmocka_unit_test(rows_of_a_run_see_the_same),
      cmocka_unit_test(paths_of_a_run_are_long),
      cmocka_unit_test(a_run_has_appended_rows_and_a_tree),
      cmocka_unit_test(runs_are_taken_where_they_pay),
      cmocka_unit_test(split_runs_are_taken_where_they_pay),
      cmocka_unit_test(long_runs_are_taken_where_they_pay),
      cmocka_unit_test(an_infinity_in_a_later_value_is_not_seen),
      cmocka_unit_test(large_scores_are_rescaled),
      cmocka_unit_test(chunks_of_negative_zeros_are_added_to_zero),
#ifndef __CUDACC__
      cmocka_unit_test(new_rows_are_read_after_the_wait),
#endif
      cmocka_unit_test(a_nan_in_a_key_weighs_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
