/* libs: kernels : cost=10 */
/* Attention by splits and spans (ops.h), to the bit, on every device: rows whose keys are committed or staged
 * around the ends of splits, which see all of them, a window, or spans with gaps. What nobody sees is NaN. */
#include "kernels/cpu/cpu_math.h"
#include "tests/support/ops_devices.h"

enum {
  V_BLOCKS = 101,
  V_CONTEXT = 100 * OPS_TILE,
  V_STAGE = 48,
  V_KEYS = V_CONTEXT + V_STAGE,
  V_ROWS = 12,
  SPLIT = 256,
  CHUNK = 32,
  V_SPANS = 16
};

/* Rows that attend in one forward: appended ones, or ones of a tree on top of `committed` keys. */
typedef struct view_case {
  ops_kv_type type;
  int32_t heads, head_dim, rows, committed;
  bool appended;
} view_case;

typedef struct view_row {
  int32_t path[V_STAGE];
  ops_span spans[V_SPANS];
  int32_t span_count;
  const float *keys[V_KEYS], *values[V_KEYS]; /* by logical position */
} view_row;

/* One key-value head; numbers that the cache's type holds exactly. */
typedef struct view_data {
  int32_t blocks[V_CONTEXT / OPS_TILE];
  float *keys, *values, *stage_keys, *stage_values; /* [position or slot][head_dim] */
  ops_row rows[V_ROWS];
  view_row row[V_ROWS];
  float *q;
} view_data;

/* --- the definition --- */

typedef struct split_sum {
  float largest, sum, values[OPS_HEAD_DIM_MAX];
} split_sum;

/* Of the keys at[0..n), which are of one split. */
static void sum_split(const view_row *v, const int32_t *at, int32_t n, const float *q, int32_t dim,
                      split_sum *s) {
  float score[SPLIT], e[SPLIT] = {0}, lane[8] = {0};
  *s = (split_sum){.largest = -INFINITY};
  for (int32_t i = 0; i < n; i++) {
    float dot = 0;
    for (int32_t d = 0; d < dim; d++) dot = fmaf(q[d], v->keys[at[i]][d], dot);
    score[i] = dot * (1.0f / sqrtf((float)dim));
    s->largest = fmaxf(s->largest, score[i]);
  }
  for (int32_t i = 0; i < n; i++) e[at[i] % SPLIT] = cpu_exp(score[i] - s->largest);
  for (int32_t c = 0, i = 0; c < SPLIT / CHUNK; c++) {
    float chain[OPS_HEAD_DIM_MAX] = {0}, *f = e + c * CHUNK;
    for (; i < n && at[i] % SPLIT / CHUNK == c; i++)
      for (int32_t d = 0; d < dim; d++) chain[d] = fmaf(e[at[i] % SPLIT], v->values[at[i]][d], chain[d]);
    for (int32_t d = 0; d < dim; d++) s->values[d] += chain[d];
    for (int32_t l = 0; l < 8; l++) lane[l] += (f[l] + f[l + 16]) + (f[l + 8] + f[l + 24]);
  }
  s->sum = ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void combine(split_sum *all, const split_sum *s, int32_t dim) {
  float top = fmaxf(all->largest, s->largest), before = cpu_exp(all->largest - top),
        now = cpu_exp(s->largest - top);
  for (int32_t d = 0; d < dim; d++) all->values[d] = fmaf(s->values[d], now, all->values[d] * before);
  all->sum = fmaf(s->sum, now, all->sum * before);
  all->largest = top;
}

/* Numerics version 4: the keys that a row sees, split by split. */
static void defined_attention(const view_row *v, int32_t end, const float *q, int32_t dim, float *y) {
  split_sum all = {0}, one;
  bool begun = false;
  for (int32_t split = 0; split < end; split += SPLIT) {
    int32_t at[SPLIT], n = 0;
    for (int32_t s = 0; s < v->span_count; s++)
      for (int32_t p = v->spans[s].first; p < v->spans[s].end; p++)
        if (p >= split && p < split + SPLIT) at[n++] = p;
    if (n == 0) continue;
    sum_split(v, at, n, q, dim, &one);
    if (begun)
      combine(&all, &one, dim);
    else
      all = one;
    begun = true;
  }
  for (int32_t d = 0; d < dim; d++) y[d] = all.values[d] * (1 / all.sum);
}

/* --- data --- */

static float *view_floats(const view_case *c, int32_t rows) {
  float *x = random_floats((size_t)(rows * c->head_dim));
  for (int32_t i = 0; i < rows * c->head_dim && c->type == OPS_KV_F16; i++) x[i] = cpu_f16(cpu_to_f16(x[i]));
  return x;
}

/* Blocks lie side by side but for every fifth, or all apart. */
static void view_map(view_data *d, bool apart) {
  for (int32_t i = 0; i < V_CONTEXT / OPS_TILE; i++)
    d->blocks[i] = apart ? i * 37 % V_BLOCKS : i % 5 == 4 ? 100 - i / 5 : i - i / 5;
}

static void view_rows(const view_case *c, view_data *d) {
  for (int32_t i = 0; i < c->rows; i++) {
    view_row *v = &d->row[i];
    ops_row *r = &d->rows[i];
    *r = (ops_row){.length = c->committed + (c->appended ? i + 1 : 0), .path_at = i * V_STAGE};
    r->path_count = c->appended ? 0 : 1 + i * 5 % 23;
    r->position = r->length + r->path_count - 1;
    for (int32_t k = 0; k + 1 < r->path_count; k++)
      v->path[k] = V_ROWS + (i * 3 + k * 11) % (V_STAGE - V_ROWS); /* staged before */
    if (r->path_count) v->path[r->path_count - 1] = i;             /* its own */
    for (int32_t p = 0; p <= r->position; p++) {
      bool staged = p >= r->length;
      int32_t at = (staged ? v->path[p - r->length] : p) * c->head_dim;
      v->keys[p] = (staged ? d->stage_keys : d->keys) + at;
      v->values[p] = (staged ? d->stage_values : d->values) + at;
    }
  }
}

static view_data *view_open(const view_case *c) {
  view_data *d = calloc(1, sizeof *d);
  view_map(d, c->committed % 2);
  d->keys = view_floats(c, V_CONTEXT), d->values = view_floats(c, V_CONTEXT);
  d->stage_keys = view_floats(c, V_STAGE), d->stage_values = view_floats(c, V_STAGE);
  d->q = random_floats((size_t)(c->rows * c->heads * c->head_dim));
  /* The splits' largest scores are far apart, the later one's larger or smaller. */
  for (int32_t p = 0; p < V_CONTEXT * c->head_dim; p++) d->keys[p] *= p / c->head_dim / 300 % 2 ? 2.0f : 0.5f;
  view_rows(c, d);
  return d;
}

static void view_close(view_data *d) {
  float *const all[] = {d->keys, d->values, d->stage_keys, d->stage_values, d->q};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
  free(d);
}

/* What nobody sees becomes NaN. */
static void view_hide(const view_case *c, view_data *d) {
  bool committed[V_CONTEXT] = {0}, staged[V_STAGE] = {0};
  for (int32_t i = 0; i < c->rows; i++) {
    for (int32_t s = 0; s < d->row[i].span_count; s++) {
      for (int32_t p = d->row[i].spans[s].first; p < d->row[i].spans[s].end; p++)
        *(p < d->rows[i].length ? &committed[p] : &staged[d->row[i].path[p - d->rows[i].length]]) = true;
    }
  }
  for (int32_t i = 0; i < V_CONTEXT * c->head_dim; i++)
    if (!committed[i / c->head_dim]) d->keys[i] = d->values[i] = NAN;
  for (int32_t i = 0; i < V_STAGE * c->head_dim; i++)
    if (!staged[i / c->head_dim]) d->stage_keys[i] = d->stage_values[i] = NAN;
}

/* --- on a device --- */

typedef struct view_cache {
  device *d;
  device_kv *kv;
  device_vector still; /* frequencies of 0: a rotation that changes nothing */
} view_cache;

static view_cache view_cache_open(device *d, const view_case *c, const view_data *data) {
  const float zeros[OPS_HEAD_DIM_MAX / 2] = {0};
  view_cache p = {.d = d, .still = upload_floats(d, zeros, (size_t)c->head_dim / 2)};
  p.kv = d->table->kv_open(d, &(ops_kv_shape){c->type, 1, 1, c->head_dim, V_BLOCKS, 1, V_CONTEXT, V_STAGE});
  assert_non_null(p.kv);
  assert_true(d->table->kv_stage(d, p.kv));
  d->table->kv_map(d, p.kv, 0, data->blocks, V_CONTEXT / OPS_TILE);
  return p;
}

static void view_cache_close(view_cache *p) {
  p->d->table->kv_close(p->d, p->kv);
  drop_vector(p->d, p->still);
}

/* Stores rows that are keys and values, [count][head_dim], as they are. */
static void view_cache_store(view_cache *p, const view_case *c, const ops_row *rows, int32_t count,
                             const int32_t *paths, const float *keys, const float *values) {
  device *d = p->d;
  device_act *q = act_of(d, count, c->heads * c->head_dim, false, NULL);
  device_act *k = act_of(d, count, c->head_dim, false, keys),
             *v = act_of(d, count, c->head_dim, false, values);
  const ops_batch b = {.rows = rows, .row_count = count, .paths = paths, .path_length = paths ? count : 0};
  assert_true(d->table->begin(d, p->kv, &b));
  d->table->rope(d, &(device_rope){p->still, c->head_dim, 1});
  d->table->rope_store(d, 0, &(device_rotary){.eps = 1}, q, k, v);
  end_rows(d);
  d->table->act_drop(d, q);
  d->table->act_drop(d, k);
  d->table->act_drop(d, v);
}

static void view_cache_fill(view_cache *p, const view_case *c, const view_data *data) {
  ops_row rows[SUPPORT_ROWS];
  int32_t slots[V_STAGE];
  for (int32_t first = 0, count; first < V_CONTEXT; first += count) {
    count = V_CONTEXT - first < SUPPORT_ROWS ? V_CONTEXT - first : SUPPORT_ROWS;
    for (int32_t i = 0; i < count; i++) rows[i] = (ops_row){.position = first + i, .length = first + i + 1};
    view_cache_store(p, c, rows, count, NULL, data->keys + first * c->head_dim,
                     data->values + first * c->head_dim);
  }
  for (int32_t i = 0; i < V_STAGE; i++) {
    slots[i] = i;
    rows[i] = (ops_row){.path_at = i, .path_count = 1};
  }
  view_cache_store(p, c, rows, V_STAGE, slots, data->stage_keys, data->stage_values);
}

/* The rows in one forward. */
static float *view_cache_attend(view_cache *p, const view_case *c, const view_data *data) {
  device *d = p->d;
  ops_span spans[V_ROWS * V_SPANS];
  int32_t first[V_ROWS + 1] = {0}, paths[V_ROWS * V_STAGE], row = c->heads * c->head_dim;
  for (int32_t r = 0; r < c->rows; r++) {
    first[r + 1] = first[r] + data->row[r].span_count;
    memcpy(spans + first[r], data->row[r].spans, (size_t)data->row[r].span_count * sizeof *spans);
    memcpy(paths + r * V_STAGE, data->row[r].path, sizeof data->row[r].path);
  }
  device_act *q = act_of(d, c->rows, row, false, data->q), *y = act_of(d, c->rows, row, false, NULL);
  ops_batch b = {.rows = data->rows, .row_count = c->rows, .views = {{first, spans}}, .view_count = 1};
  if (!c->appended) b.paths = paths, b.path_length = c->rows * V_STAGE;
  assert_true(d->table->begin(d, p->kv, &b));
  memset(spans, 0x5a, sizeof spans); /* copied */
  memset(paths, 0x5a, sizeof paths);
  d->table->attention(d, 0, 0, q, y);
  end_rows(d);
  float *out = read_act(d, y, c->rows, row);
  d->table->act_drop(d, q);
  d->table->act_drop(d, y);
  return out;
}

/* --- checks --- */

static void check_rows(const device *d, const view_case *c, const view_data *data, const float *y,
                       const char *what) {
  int32_t row = c->heads * c->head_dim;
  float expected[OPS_HEAD_DIM_MAX];
  for (int32_t r = 0; r < c->rows; r++) {
    for (int32_t at = r * row; at < (r + 1) * row; at += c->head_dim) {
      defined_attention(&data->row[r], data->rows[r].position + 1, data->q + at, c->head_dim, expected);
      if (memcmp(y + at, expected, (size_t)c->head_dim * sizeof *y) != 0)
        fail_msg("attention on %s, %s: %d keys committed, row %d of %d: %.9g, not %.9g as defined",
                 d->table->name, what, c->committed, r, c->rows, (double)y[at], (double)expected[0]);
    }
  }
}

static void check_view(const view_case *c, view_data *data, const char *what) {
  view_hide(c, data);
  for (int32_t i = 0; i < device_count; i++) {
    view_cache p = view_cache_open(devices[OPS_MATH_F32][i], c, data);
    view_cache_fill(&p, c, data);
    float *y = view_cache_attend(&p, c, data);
    check_rows(p.d, c, data, y, what);
    free(y);
    view_cache_close(&p);
  }
}

/* Every row sees the last `window` positions, or all. */
static void check_window(const view_case *c, int32_t window) {
  view_data *d = view_open(c);
  for (int32_t r = 0; r < c->rows; r++) {
    int32_t end = d->rows[r].position + 1;
    d->row[r].spans[0] = (ops_span){window > 0 && end > window ? end - window : 0, end};
    d->row[r].span_count = 1;
  }
  check_view(c, d, window ? "a window" : "all keys");
  view_close(d);
}

/* The row's first spans are `spans` as far as they go, the last one is its last `tail` positions. */
static void put_gaps(view_row *v, int32_t end, const ops_span *spans, int32_t tail) {
  v->span_count = 0;
  int32_t from = end > tail ? end - tail : 0;
  for (; spans->end > 0 && spans->end < from; spans++) v->spans[v->span_count++] = *spans;
  v->spans[v->span_count++] = (ops_span){from, end};
}

static void put_random_gaps(view_row *v, int32_t end) {
  const int32_t lengths[] = {1, 3, 15, 16, 17, 100, 500, 512};
  ops_span s = {0, 0}, all[V_SPANS] = {{0}};
  for (int32_t n = 0; n < V_SPANS - 2; n++) {
    s.first = s.end + lengths[random_bits() % 8];
    s.end = s.first + lengths[random_bits() % 8];
    all[n] = s;
  }
  put_gaps(v, end, all, 1 + (int32_t)(random_bits() % 40));
}

static const view_case view_shapes[] = {
    {OPS_KV_F16, 3, 32, 4, 0, false},  {OPS_KV_F32, 3, 32, 4, 0, false}, {OPS_KV_F16, 1, 16, 12, 0, false},
    {OPS_KV_F16, 14, 16, 1, 0, false}, {OPS_KV_F32, 4, 24, 3, 0, true},  {OPS_KV_F16, 2, 20, 2, 0, true},
    {OPS_KV_F16, 3, 64, 2, 0, true},   {OPS_KV_F16, 5, 16, 1, 0, true},
};
enum { VIEW_SHAPES = sizeof view_shapes / sizeof view_shapes[0] };

/* Keys around the ends of splits, committed and staged, appended and of a tree. */
static void attention_has_the_defined_splits(void **state) {
  (void)state;
  const int32_t committed[] = {0,   1,   31,  33,  250, 255,  256,  257,  490,  511,
                               512, 513, 767, 768, 769, 1000, 1023, 1024, 1025, 1537};
  const int32_t windows[] = {0, 1, 20, 31, 32, 33, 255, 256, 257, 513, 600, 1024};
  for (size_t i = 0; i < VIEW_SHAPES; i++) {
    view_case c = view_shapes[i];
    for (size_t k = 0; k < sizeof committed / sizeof committed[0]; k++) {
      c.committed = committed[k];
      check_window(&c, 0);
      check_window(&c, windows[(i + k) % 12]);
    }
  }
}

static const ops_span gaps[][V_SPANS] = {
    {{0, 4}, {100, 131}},                                   /* a split without keys in the middle */
    {{0, 512}, {1024, 1030}},                               /* whole splits */
    {{511, 513}, {1023, 1024}},                             /* the ends of splits */
    {{600, 700}},                                           /* no key in the first split */
    {{0, 1}, {2, 3}, {4, 5}, {17, 40}, {40, 41}, {41, 90}}, /* several of a tile, and some that touch */
    {{0, 0}},
};

/* g: which gaps, and from 6 on each row its own. */
static void check_gaps(const view_case *c, int32_t g, int32_t number) {
  const int32_t tails[] = {1, 40, 530};
  view_data *d = view_open(c);
  for (int32_t r = 0; r < c->rows; r++) {
    int32_t which = g < 6 ? g : (number + r) % 7, end = d->rows[r].position + 1;
    if (which < 6)
      put_gaps(&d->row[r], end, gaps[which], tails[(number + (g < 6 ? 0 : r)) % 3]);
    else
      put_random_gaps(&d->row[r], end);
  }
  check_view(c, d, "gaps");
  view_close(d);
}

static void attention_leaves_gaps_out(void **state) {
  (void)state;
  const int32_t committed[] = {90, 505, 1030, 1535};
  int32_t number = 0;
  for (size_t i = 0; i < VIEW_SHAPES; i++) {
    for (int32_t k = 0; k < 4; k++) {
      for (int32_t g = 0; g < 8; g++, number++) {
        view_case c = view_shapes[i];
        c.committed = committed[k];
        check_gaps(&c, g, number);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(attention_has_the_defined_splits),
      cmocka_unit_test(attention_leaves_gaps_out),
  };
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
