/* libs: kernels : cost=10 */
/* What blocks weigh (ops.h: mass, bound), to the bit, on every device: rows of several sequences and lengths,
 * staged and appended, heads of several shapes. */
#include "kernels/cpu/cpu_math.h"
#include "tests/support/ops_devices.h"

enum {
  M_SEQUENCES = 3,
  M_CONTEXT = 34 * 256, /* more splits than a total has lanes */
  M_EACH = M_CONTEXT / OPS_TILE,
  M_BLOCKS = M_SEQUENCES * M_EACH,
  M_STAGE = 16,
  M_SPLIT = 256,
  M_LANES = 32
};

typedef struct mass_case {
  ops_kv_type type;
  int32_t heads, kv_heads, head_dim;
  int32_t length[M_SEQUENCES]; /* committed rows */
} mass_case;

/* Keys [sequence][position][kv_heads][head_dim], numbers that the cache's type holds exactly. */
typedef struct mass_data {
  float *keys, *q;
  int32_t blocks[M_SEQUENCES][M_EACH];
} mass_data;

static const float *key_of(const mass_case *c, const mass_data *d, int32_t sequence, int32_t p) {
  return d->keys + (size_t)(sequence * M_CONTEXT + p) * (size_t)(c->kv_heads * c->head_dim);
}

/* --- the definition --- */

typedef struct head_sums {
  float largest[M_CONTEXT / M_SPLIT], sum[M_CONTEXT / M_SPLIT], tile[M_EACH];
} head_sums;

static float in_halves(float *x, int32_t n) {
  for (int32_t half = n / 2; half > 0; half /= 2)
    for (int32_t i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

static void sum_split(const mass_case *c, const mass_data *d, int32_t sequence, int32_t head, const float *q,
                      int32_t split, head_sums *to) {
  const int32_t from = split * M_SPLIT, length = c->length[sequence];
  float score[M_SPLIT], largest = -INFINITY;
  for (int32_t i = 0; i < M_SPLIT && from + i < length; i++) {
    const float *key = key_of(c, d, sequence, from + i) + head / (c->heads / c->kv_heads) * c->head_dim;
    float dot = 0;
    for (int32_t k = 0; k < c->head_dim; k++) dot = fmaf(q[k], key[k], dot);
    score[i] = dot * (1.0f / sqrtf((float)c->head_dim));
    largest = fmaxf(largest, score[i]);
  }
  to->largest[split] = largest;
  to->sum[split] = 0;
  for (int32_t t = 0; t < M_SPLIT / OPS_TILE; t++) {
    float e[OPS_TILE] = {0};
    for (int32_t i = 0; i < OPS_TILE && from + t * OPS_TILE + i < length; i++)
      e[i] = cpu_exp(score[t * OPS_TILE + i] - largest);
    to->tile[from / OPS_TILE + t] = in_halves(e, OPS_TILE);
    to->sum[split] += to->tile[from / OPS_TILE + t];
  }
}

/* One head of a row of the sequence. */
static void add_head(const mass_case *c, const mass_data *d, int32_t sequence, int32_t head, const float *q,
                     float *mass) {
  static head_sums s;
  const int32_t length = c->length[sequence], splits = (length + M_SPLIT - 1) / M_SPLIT;
  float largest = -INFINITY, lane[M_LANES] = {0};
  for (int32_t i = 0; i < splits; i++) {
    sum_split(c, d, sequence, head, q, i, &s);
    largest = fmaxf(largest, s.largest[i]);
  }
  for (int32_t i = 0; i < splits; i++)
    lane[i % M_LANES] = fmaf(s.sum[i], cpu_exp(s.largest[i] - largest), lane[i % M_LANES]);
  const float inverse = 1.0f / in_halves(lane, M_LANES);
  for (int32_t t = 0; t * OPS_TILE < length; t++)
    mass[t] = fmaf(s.tile[t], cpu_exp(s.largest[t * OPS_TILE / M_SPLIT] - largest) * inverse, mass[t]);
}

/* The bounds of a row of the sequence, which has q [heads][head_dim], are added: the largest of its heads, or
 * their mean. */
static void add_bounds(const mass_case *c, const mass_data *d, int32_t sequence, bool mean, const float *q,
                       float *bounds) {
  const float scale = 1.0f / sqrtf((float)c->head_dim);
  for (int32_t t = 0; t * OPS_TILE < c->length[sequence]; t++) {
    float best = -INFINITY, lane[M_LANES] = {0};
    for (int32_t h = 0; h < c->heads; h++) {
      float dot[2] = {0, 0};
      for (int32_t k = 0; k < c->head_dim; k++) {
        float high = -INFINITY, low = INFINITY;
        for (int32_t p = t * OPS_TILE; p < (t + 1) * OPS_TILE && p < c->length[sequence]; p++) {
          const float x = key_of(c, d, sequence, p)[h / (c->heads / c->kv_heads) * c->head_dim + k];
          high = fmaxf(high, x), low = fminf(low, x);
        }
        dot[0] = fmaf(q[h * c->head_dim + k], high, dot[0]);
        dot[1] = fmaf(q[h * c->head_dim + k], low, dot[1]);
      }
      const float own = fmaxf(dot[0] * scale, dot[1] * scale);
      best = fmaxf(best, own);
      lane[h % (c->heads / c->kv_heads) % M_LANES] += own;
    }
    bounds[t] += mean ? in_halves(lane, M_LANES) * (1.0f / (float)c->heads) : best;
  }
}

/* --- on a device --- */

static mass_data mass_open(const mass_case *c) {
  const size_t n = (size_t)M_SEQUENCES * M_CONTEXT * (size_t)(c->kv_heads * c->head_dim);
  mass_data d = {.keys = random_floats(n),
                 .q = random_floats((size_t)(2 * M_SEQUENCES * c->heads * c->head_dim))};
  for (size_t i = 0; i < n; i++) d.keys[i] = cpu_f16(cpu_to_f16(2 * d.keys[i]));
  for (int32_t i = 0; i < M_BLOCKS; i++)
    d.blocks[i / M_EACH][i % M_EACH] = (int32_t)((int64_t)i * 7 % M_BLOCKS);
  return d;
}

/* All keys up to each length; their values do not matter. */
static void store_keys(device *d, device_kv *kv, const mass_case *c, const mass_data *data) {
  const float zeros[OPS_HEAD_DIM_MAX / 2] = {0};
  const int32_t columns = c->kv_heads * c->head_dim;
  device_vector still = upload_floats(d, zeros, (size_t)c->head_dim / 2);
  ops_row rows[SUPPORT_ROWS];
  for (int32_t s = 0; s < M_SEQUENCES; s++) {
    for (int32_t first = 0, count; first < c->length[s]; first += count) {
      count = c->length[s] - first < SUPPORT_ROWS ? c->length[s] - first : SUPPORT_ROWS;
      for (int32_t i = 0; i < count; i++)
        rows[i] = (ops_row){.position = first + i, .length = first + i + 1, .sequence = s};
      device_act *q = act_of(d, count, c->heads * c->head_dim, false, NULL);
      device_act *k = act_of(d, count, columns, false, key_of(c, data, s, first)),
                 *v = act_of(d, count, columns, false, key_of(c, data, s, first));
      assert_true(d->table->begin(d, kv, &(ops_batch){.rows = rows, .row_count = count}));
      d->table->rope(d, &(device_rope){still, c->head_dim, 1});
      d->table->rope_store(d, 0, &(device_rotary){.eps = 1}, q, k, v);
      end_rows(d);
      d->table->act_drop(d, q);
      d->table->act_drop(d, k);
      d->table->act_drop(d, v);
    }
  }
  drop_vector(d, still);
}

/* Two staged rows of each sequence, of which the second one is weighed, in two layers. Another row is
 * captured alone. */
static float *weigh(device *d, device_kv *kv, const mass_case *c, const mass_data *data, ops_weighing how) {
  int32_t paths[3 * M_SEQUENCES], captured[M_SEQUENCES + 1] = {0};
  ops_row rows[2 * M_SEQUENCES];
  for (int32_t s = 0; s < M_SEQUENCES; s++) {
    const int32_t path[] = {2 * s, 2 * s, 2 * s + 1};
    memcpy(paths + 3 * s, path, sizeof path);
    rows[2 * s] = (ops_row){
        .sequence = s, .length = c->length[s], .position = c->length[s], .path_at = 3 * s, .path_count = 1};
    rows[2 * s + 1] = rows[2 * s];
    rows[2 * s + 1].position++, rows[2 * s + 1].path_at++, rows[2 * s + 1].path_count++;
    captured[s] = 2 * s + 1; /* the last one stays row 0 */
  }
  float *ones = malloc((size_t)(2 * M_SEQUENCES * M_EACH) * sizeof *ones);
  for (int32_t i = 0; i < 2 * M_SEQUENCES * M_EACH; i++) ones[i] = 1;
  device_act *q = act_of(d, 2 * M_SEQUENCES, c->heads * c->head_dim, false, data->q),
             *y = act_of(d, 2 * M_SEQUENCES, M_EACH, false, ones);
  const ops_batch b = {.rows = rows,
                       .row_count = 2 * M_SEQUENCES,
                       .paths = paths,
                       .path_length = 3 * M_SEQUENCES,
                       .capture_rows = captured,
                       .capture_count = M_SEQUENCES + 1,
                       .weigh_count = M_SEQUENCES};
  assert_true(d->table->begin(d, kv, &b));
  for (int32_t add = 0; add < 2; add++)
    if (how == OPS_WEIGH_MASS)
      d->table->mass(d, 0, q, add, y);
    else
      d->table->bound(d, 0, how, q, add, y);
  end_rows(d);
  free(ones);
  float *out = read_act(d, y, 2 * M_SEQUENCES, M_EACH);
  d->table->act_drop(d, q);
  d->table->act_drop(d, y);
  return out;
}

/* --- checks --- */

static void check_row(const device *d, const mass_case *c, const mass_data *data, int32_t row,
                      ops_weighing how, const float *got) {
  static const char *const names[] = {"mass", "bound", "mean bound"};
  float mass[M_EACH] = {0};
  const int32_t s = row / 2, tiles = row % 2 ? (c->length[s] + OPS_TILE - 1) / OPS_TILE : 0;
  const float *q = data->q + row * c->heads * c->head_dim;
  for (int32_t times = 0; times < 2 && tiles > 0; times++) {
    if (how != OPS_WEIGH_MASS) add_bounds(c, data, s, how == OPS_WEIGH_BOUND_MEAN, q, mass);
    for (int32_t h = 0; h < c->heads && how == OPS_WEIGH_MASS; h++)
      add_head(c, data, s, h, q + h * c->head_dim, mass);
  }
  for (int32_t t = tiles; t < M_EACH; t++) mass[t] = 1; /* as it was */
  for (int32_t t = 0; t < M_EACH; t++)
    if (memcmp(&got[t], &mass[t], sizeof *got) != 0)
      fail_msg("%s on %s: %d keys of %d heads of %d: block %d weighs %.9g, not %.9g as defined", names[how],
               d->table->name, c->length[s], c->heads, c->head_dim, t, (double)got[t], (double)mass[t]);
}

static void check_mass(const mass_case *c) {
  mass_data data = mass_open(c);
  for (int32_t i = 0; i < device_count; i++) {
    device *d = devices[OPS_MATH_F32][i];
    device_kv *kv = d->table->kv_open(
        d, &(ops_kv_shape){c->type, 1, c->kv_heads, c->head_dim, M_BLOCKS, M_SEQUENCES, M_CONTEXT, M_STAGE});
    assert_non_null(kv);
    assert_true(d->table->kv_stage(d, kv));
    for (int32_t s = 0; s < M_SEQUENCES; s++) d->table->kv_map(d, kv, s, data.blocks[s], M_EACH);
    store_keys(d, kv, c, &data);
    for (ops_weighing how = OPS_WEIGH_MASS; how <= OPS_WEIGH_BOUND_MEAN; how++) {
      float *got = weigh(d, kv, c, &data, how);
      for (int32_t row = 0; row < 2 * M_SEQUENCES; row++)
        check_row(d, c, &data, row, how, got + row * M_EACH);
      free(got);
    }
    d->table->kv_close(d, kv);
  }
  free(data.keys);
  free(data.q);
}

static void blocks_weigh_what_is_defined(void **state) {
  (void)state;
  const mass_case cases[] = {
      {OPS_KV_F16, 3, 1, 16, {1, 16, 17}},      {OPS_KV_F32, 4, 2, 24, {255, 256, 257}},
      {OPS_KV_F16, 9, 3, 64, {15, 600, 1025}},  {OPS_KV_F16, 2, 1, 20, {33, 300, 512}},
      {OPS_KV_F16, 14, 1, 16, {513, 31, 1000}}, {OPS_KV_F16, 1, 1, 8, {M_CONTEXT - 2, 2049, 8193}},
      {OPS_KV_F16, 70, 2, 8, {40, 16, 100}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_mass(&cases[i]);
}

/* Shares of one key, and of all: a row's heads have one each to give. */
static void shares_add_up(void **state) {
  (void)state;
  const mass_case c = {OPS_KV_F16, 4, 2, 16, {1, 700, 2000}};
  mass_data data = mass_open(&c);
  float mass[M_EACH] = {0}, sum = 0;
  for (int32_t h = 0; h < c.heads; h++) add_head(&c, &data, 1, h, data.q + h * c.head_dim, mass);
  for (int32_t t = 0; t < M_EACH; t++) sum += mass[t];
  assert_near(sum, 4, 1e-4, "the shares of four heads");
  free(data.keys);
  free(data.q);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_weigh_what_is_defined),
      cmocka_unit_test(shares_add_up),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
