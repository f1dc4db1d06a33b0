#include "kernels/devices/self_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS        9    /* of a forward */
#define MANY_ROWS   17   /* of one that BF16 weights are multiplied in as those of many rows are */
#define COLUMNS     512  /* one chain of sums */
#define LONG        1024 /* columns of a weight that is summed in parts */
#define OUTPUTS     20   /* a group, and a part of one */
#define HIDDEN      64
#define VOCABULARY  600
#define MEMORY_MAX  64
#define OUT_BYTES   ((size_t)1 << 20)
#define RANDOM_SEED 12345

/* One device, and what its ops have given. The same calls on two devices give the same bytes. */
typedef struct trial {
  device *d;
  uint32_t random;
  bool failed; /* no memory, or a forward without an answer */
  device_memory *memory[MEMORY_MAX];
  device_act *acts[MEMORY_MAX];
  int32_t memory_count, act_count;
  device_kv *kv;
  uint8_t *out;
  size_t used;
} trial;

/* --- numbers --- */

static uint32_t random_bits(trial *t) {
  t->random = t->random * 1664525u + 1013904223u;
  return t->random >> 8;
}

static float random_float(trial *t) { /* [-2, 2) */
  return ((float)random_bits(t) / 0x1p23f - 1.0f) * 2.0f;
}

/* --- memory, through windows --- */

static bool copy_in(trial *t, device_memory *m, const uint8_t *from, size_t bytes) {
  size_t step = t->d->table->window_max(t->d);
  for (size_t at = 0; at < bytes; at += step) {
    size_t n = bytes - at < step ? bytes - at : step;
    void *window = t->d->table->fill(t->d, m, at, n);
    if (!window) return false;
    memcpy(window, from + at, n);
    if (t->d->table->filled(t->d) != OPS_OK) return false;
  }
  return true;
}

static const device_memory *upload(trial *t, const void *from, size_t bytes) {
  device_memory *m = t->memory_count < MEMORY_MAX ? t->d->table->take(t->d, MEM_GENERAL, bytes) : NULL;
  if (m) t->memory[t->memory_count++] = m;
  if (!m || !copy_in(t, m, from, bytes)) t->failed = true;
  return m;
}

static device_act *act_of(trial *t, int32_t columns, bool input) {
  device_act *a = t->act_count < MEMORY_MAX ? t->d->table->act(t->d, MANY_ROWS, columns, input) : NULL;
  if (a) t->acts[t->act_count++] = a;
  if (!a) t->failed = true;
  return a;
}

static void drop_all(trial *t) {
  while (t->memory_count > 0) t->d->table->drop(t->d, t->memory[--t->memory_count]);
  while (t->act_count > 0) t->d->table->act_drop(t->d, t->acts[--t->act_count]);
  if (t->kv) t->d->table->kv_close(t->d, t->kv);
  t->kv = NULL;
}

/* --- weights: random files --- */

/* Of a type's unit in a file: inputs, bytes, and where its f16 scales are. */
typedef struct file_unit {
  const char *name;
  int32_t inputs, bytes, scale, minimum; /* minimum -1: there is none */
} file_unit;

static const file_unit units[OPS_TYPE_COUNT] = {
    [OPS_F32] = {"F32", 1, 4, -1, -1},        [OPS_F16] = {"F16", 1, 2, -1, -1},
    [OPS_BF16] = {"BF16", 1, 2, -1, -1},      [OPS_Q4_0] = {"Q4_0", 32, 18, 0, -1},
    [OPS_Q4_1] = {"Q4_1", 32, 20, 0, 2},      [OPS_Q8_0] = {"Q8_0", 32, 34, 0, -1},
    [OPS_Q5_0] = {"Q5_0", 32, 22, 0, -1},     [OPS_Q5_1] = {"Q5_1", 32, 24, 0, 2},
    [OPS_IQ4_NL] = {"IQ4_NL", 32, 18, 0, -1}, [OPS_Q2_K] = {"Q2_K", 256, 84, 80, 82},
    [OPS_Q3_K] = {"Q3_K", 256, 110, 108, -1}, [OPS_Q4_K] = {"Q4_K", 256, 144, 0, 2},
    [OPS_Q5_K] = {"Q5_K", 256, 176, 0, 2},    [OPS_Q6_K] = {"Q6_K", 256, 210, 208, -1},
};

/* Any bytes; but a number that scales others stays finite and small. */
static void random_unit(trial *t, ops_type type, uint8_t *unit) {
  const file_unit *u = &units[type];
  for (int32_t i = 0; i < u->bytes; i++) unit[i] = (uint8_t)random_bits(t);
  if (type == OPS_F32) {
    float x = random_float(t);
    memcpy(unit, &x, sizeof x);
  } else if (type == OPS_F16) {
    unit[1] &= 0xbf;
  } else if (type == OPS_BF16) {
    unit[1] = (unit[1] & 0x81) | 0x3e;
  } else {
    unit[u->scale + 1] &= 0x9f;
    if (u->minimum >= 0) unit[u->minimum + 1] &= 0x9f;
  }
}

static device_weight random_weight(trial *t, ops_type type, int32_t rows, int32_t columns) {
  device_weight w = {.type = type, .rows = rows, .columns = columns};
  const file_unit *u = &units[type];
  size_t count = (size_t)rows * (size_t)columns / (size_t)u->inputs, unit = (size_t)u->bytes;
  size_t packed = t->d->table->packed_bytes(type, rows, columns);
  uint8_t *file = malloc(count * unit), *out = aligned_alloc(64, packed);
  t->failed = t->failed || !file || !out;
  if (!t->failed) {
    for (size_t i = 0; i < count; i++) random_unit(t, type, file + i * unit);
    t->d->table->pack(type, rows, columns, file, out, 0, (rows + OPS_GROUP - 1) / OPS_GROUP);
    w.memory = upload(t, out, packed);
  }
  free(file);
  free(out);
  return w;
}

static device_vector random_vector(trial *t, int32_t count) {
  float x[LONG];
  for (int32_t i = 0; i < count; i++) x[i] = random_float(t);
  return (device_vector){.memory = upload(t, x, (size_t)count * sizeof *x)};
}

/* --- activations: random in, kept out --- */

static void random_act(trial *t, device_act *a, int32_t columns) {
  static float x[MANY_ROWS * LONG];
  for (int32_t i = 0; i < MANY_ROWS * columns; i++) x[i] = random_float(t);
  if (!t->failed) t->d->table->act_write(t->d, a, MANY_ROWS, x);
}

static void keep_bytes(trial *t, const void *from, size_t bytes) {
  if (t->used + bytes > OUT_BYTES) t->failed = true;
  if (t->failed) return;
  if (bytes > 0) memcpy(t->out + t->used, from, bytes);
  t->used += bytes;
}

static void keep_act(trial *t, const device_act *a, int32_t rows, int32_t columns) {
  static float x[MANY_ROWS * LONG];
  if (!t->failed && t->d->table->act_read(t->d, a, rows, x) != OPS_OK) t->failed = true;
  keep_bytes(t, x, (size_t)rows * (size_t)columns * sizeof *x);
}

/* --- forwards --- */

static bool begin(trial *t, const ops_batch *b) {
  if (!t->failed && !t->d->table->begin(t->d, t->kv, b)) t->failed = true;
  return !t->failed;
}

static void finish(trial *t, int32_t ids) {
  ops_answer a;
  t->d->table->end(t->d);
  if (t->d->table->wait(t->d, &a) != OPS_OK)
    t->failed = true;
  else
    keep_bytes(t, a.ids, (size_t)ids * sizeof *a.ids);
}

/* Rows of sequence 0 from position 0 on, for ops that look at their tokens alone. */
static ops_batch plain_batch(ops_row *rows, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    rows[i] = (ops_row){.token = i * 7 % OUTPUTS, .position = i, .length = i + 1};
  return (ops_batch){.rows = rows, .row_count = count};
}

/* --- embed and linear, of one type --- */

static void run_linears(trial *t, int32_t count, const device_weight *w, const device_weight *parted,
                        device_vector bias, device_act *const *a) {
  ops_row rows[MANY_ROWS];
  const ops_batch b = plain_batch(rows, count);
  const device_linear jobs[] = {{.w = *w, .y = a[2], .bias = bias}, {.w = *w, .y = a[3], .add = true}};
  if (!begin(t, &b)) return;
  t->d->table->embed(t->d, w, a[0]);
  t->d->table->linear(t->d, jobs, 2, a[0]);
  t->d->table->linear(t->d, &(device_linear){.w = *parted, .y = a[4]}, 1, a[1]);
  finish(t, 0);
  const int32_t columns[] = {COLUMNS, LONG, OUTPUTS, OUTPUTS, OUTPUTS};
  for (int32_t i = 0; i < 5; i++) keep_act(t, a[i], count, columns[i]);
}

static void try_linear(trial *t, int32_t type) {
  device_weight w = random_weight(t, (ops_type)type, OUTPUTS, COLUMNS);
  device_weight parted = random_weight(t, (ops_type)type, OUTPUTS, LONG);
  device_vector bias = random_vector(t, OUTPUTS);
  device_act *a[] = {act_of(t, COLUMNS, true), act_of(t, LONG, true), act_of(t, OUTPUTS, false),
                     act_of(t, OUTPUTS, false), act_of(t, OUTPUTS, false)};
  if (t->failed) return;
  random_act(t, a[1], LONG);
  random_act(t, a[3], OUTPUTS);
  run_linears(t, 1, &w, &parted, bias, a);
  run_linears(t, ROWS, &w, &parted, bias, a);
  if (type == OPS_BF16) run_linears(t, MANY_ROWS, &w, &parted, bias, a);
}

/* --- supply, capture --- */

/* Rows come from the host, and rows go to it before and after they are changed. */
static void try_supply(trial *t, int32_t unused) {
  (void)unused;
  static const int32_t captured[] = {6, 0, 8};
  static float values[ROWS * COLUMNS];
  ops_row rows[ROWS];
  ops_batch b = plain_batch(rows, ROWS);
  const device_table *table = t->d->table;
  device_weight w = random_weight(t, OPS_Q8_0, COLUMNS, COLUMNS);
  device_act *x = act_of(t, COLUMNS, true), *y = act_of(t, COLUMNS, false);
  for (int32_t i = 0; i < ROWS * COLUMNS; i++) values[i] = random_float(t);
  b.capture_rows = captured;
  b.capture_count = 3;
  if (!begin(t, &b)) return;
  table->supply(t->d, values, x);
  table->supply(t->d, values, y);
  table->capture(t->d, y);
  table->linear(t->d, &(device_linear){.w = w, .y = y, .add = true}, 1, x);
  table->capture(t->d, y);
  finish(t, 0);
  for (int32_t i = 0; i < 6 && !t->failed; i++) {
    const float *line = table->captured(t->d, i / 3, i % 3);
    if (line)
      keep_bytes(t, line, COLUMNS * sizeof *line);
    else
      t->failed = true;
  }
}

/* --- linear_swiglu, norm --- */

static const struct {
  ops_type gate, up;
} gated_types[] = {{OPS_Q4_0, OPS_Q4_0}, {OPS_Q4_0, OPS_Q8_0}, {OPS_BF16, OPS_BF16}};

static void try_swiglu(trial *t, int32_t variant) {
  ops_row rows[ROWS];
  const ops_batch b = plain_batch(rows, ROWS);
  device_weight gate = random_weight(t, gated_types[variant].gate, HIDDEN, COLUMNS);
  device_weight up = random_weight(t, gated_types[variant].up, HIDDEN, COLUMNS);
  device_act *x = act_of(t, COLUMNS, true), *y = act_of(t, HIDDEN, true);
  if (t->failed) return;
  random_act(t, x, COLUMNS);
  if (!begin(t, &b)) return;
  t->d->table->linear_swiglu(t->d, &gate, &up, x, y);
  finish(t, 0);
  keep_act(t, y, ROWS, HIDDEN);
}

static void try_norm(trial *t, int32_t unused) {
  (void)unused;
  ops_row rows[ROWS];
  ops_batch b = plain_batch(rows, ROWS);
  const int32_t head_rows[] = {7, 2};
  b.head_rows = head_rows;
  b.head_count = b.logit_count = 2;
  device_vector w = random_vector(t, COLUMNS);
  device_act *x = act_of(t, COLUMNS, false), *y = act_of(t, COLUMNS, true), *z = act_of(t, COLUMNS, true);
  if (t->failed) return;
  random_act(t, x, COLUMNS);
  if (!begin(t, &b)) return;
  t->d->table->norm(t->d, x, false, w, 1e-5f, y);
  t->d->table->norm(t->d, x, true, w, 1e-6f, z);
  finish(t, 0);
  keep_act(t, y, ROWS, COLUMNS);
  keep_act(t, z, 2, COLUMNS);
}

/* A device may norm on the way to the linears, since nobody else reads the first norm. */
static void try_normed(trial *t, int32_t bf16) {
  ops_row rows[ROWS];
  const ops_batch b = plain_batch(rows, ROWS);
  const device_table *table = t->d->table;
  device_weight q = random_weight(t, bf16 ? OPS_BF16 : OPS_Q4_K, OUTPUTS, COLUMNS),
                v = random_weight(t, OPS_Q6_K, OUTPUTS, COLUMNS);
  device_weight gate = random_weight(t, bf16 ? OPS_BF16 : OPS_Q4_1, HIDDEN, COLUMNS);
  device_vector w[] = {random_vector(t, COLUMNS), random_vector(t, COLUMNS)};
  device_act *x = act_of(t, COLUMNS, false), *y = act_of(t, COLUMNS, true), *z = act_of(t, HIDDEN, true);
  const device_linear jobs[] = {{.w = q, .y = act_of(t, OUTPUTS, false)},
                                {.w = v, .y = act_of(t, OUTPUTS, false)}};
  if (t->failed) return;
  random_act(t, x, COLUMNS);
  if (!begin(t, &b)) return;
  table->norm(t->d, x, false, w[0], 1e-5f, y);
  table->linear(t->d, jobs, 2, y);
  table->linear_swiglu(t->d, &gate, &gate, y, z);
  table->norm(t->d, x, false, w[1], 1e-5f, y);
  finish(t, 0);
  for (int32_t i = 0; i < 2; i++) keep_act(t, jobs[i].y, ROWS, OUTPUTS);
  keep_act(t, y, ROWS, COLUMNS);
  keep_act(t, z, ROWS, HIDDEN);
}

/* --- rope, rope_store, attention, mass, bound, commit --- */

#define HEADS     4
#define KV_HEADS  2
#define HEAD_DIM  64
#define ROPE_DIM  48
#define LAYERS    2
#define CONTEXT   640
#define SEQUENCES 2
#define BLOCKS    (SEQUENCES * CONTEXT / OPS_TILE)
#define STAGE     32
#define WINDOW    5
#define LONG_ROWS 3                           /* appended to sequence 0, across the border of two splits */
#define LONG_AT   (OPS_SPLIT - LONG_ROWS / 2) /* where */
#define TREE_AT   (LONG_AT + LONG_ROWS)

typedef struct cache_parts {
  device_rope rope;
  device_rotary rotary;
  device_act *q, *k, *v, *y[2], *mass, *bound, *bound_mean;
} cache_parts;

/* What the rows see: everything, and the last WINDOW positions. */
typedef struct cache_views {
  int32_t first[2][ROWS + 1];
  ops_span spans[2][ROWS];
} cache_views;

static void make_views(const ops_row *rows, int32_t count, cache_views *v, ops_batch *b) {
  for (int32_t view = 0; view < 2; view++) {
    for (int32_t i = 0; i < count; i++) {
      int32_t end = rows[i].position + 1;
      v->first[view][i] = i;
      v->spans[view][i] = (ops_span){view == 1 && end > WINDOW ? end - WINDOW : 0, end};
    }
    v->first[view][count] = count;
    b->views[view] = (ops_view){v->first[view], v->spans[view]};
  }
  b->view_count = 2;
}

/* Rows that are weighed. */
static const int32_t weighed[] = {0, 2};

static void run_cache(trial *t, const cache_parts *c, ops_batch *b) {
  cache_views views;
  const device_table *table = t->d->table;
  make_views(b->rows, b->row_count, &views, b);
  b->capture_rows = weighed;
  b->capture_count = b->weigh_count = 2;
  for (int32_t layer = 0; layer < LAYERS; layer++) {
    random_act(t, c->q, HEADS * HEAD_DIM);
    random_act(t, c->k, KV_HEADS * HEAD_DIM);
    random_act(t, c->v, KV_HEADS * HEAD_DIM);
    random_act(t, c->mass, CONTEXT / OPS_TILE);
    random_act(t, c->bound, CONTEXT / OPS_TILE);
    random_act(t, c->bound_mean, CONTEXT / OPS_TILE);
    if (!begin(t, b)) return;
    table->rope(t->d, &c->rope);
    table->rope_store(t->d, layer, &c->rotary, c->q, c->k, c->v);
    for (int32_t view = 0; view < 2; view++) table->attention(t->d, layer, view, c->q, c->y[view]);
    table->mass(t->d, layer, c->q, layer > 0, c->mass);
    table->bound(t->d, layer, OPS_WEIGH_BOUND_MAX, c->q, layer > 0, c->bound);
    table->bound(t->d, layer, OPS_WEIGH_BOUND_MEAN, c->q, layer > 0, c->bound_mean);
    finish(t, 0);
    keep_act(t, c->q, b->row_count, HEADS * HEAD_DIM);
    for (int32_t view = 0; view < 2; view++) keep_act(t, c->y[view], b->row_count, HEADS * HEAD_DIM);
    keep_act(t, c->mass, b->row_count, CONTEXT / OPS_TILE);
    keep_act(t, c->bound, b->row_count, CONTEXT / OPS_TILE);
    keep_act(t, c->bound_mean, b->row_count, CONTEXT / OPS_TILE);
  }
}

/* Rows that are appended to both sequences. */
static void run_appended(trial *t, const cache_parts *c, int32_t at) {
  ops_row rows[ROWS];
  int32_t count = 0;
  for (int32_t i = 0; i < LONG_ROWS; i++, count++)
    rows[count] = (ops_row){.position = at + i, .length = at + i + 1, .rope_shift = 7};
  for (int32_t i = 0; i < ROWS - LONG_ROWS; i++, count++)
    rows[count] = (ops_row){.position = i, .sequence = 1, .length = i + 1};
  run_cache(t, c, &(ops_batch){.rows = rows, .row_count = count});
}

/* A tree: a root, two children, and a child of the second one, in staged rows 3, 17, 5 and 30. */
static void run_tree(trial *t, const cache_parts *c) {
  static const int32_t paths[] = {3, 3, 17, 3, 5, 3, 5, 30};
  static const struct { int32_t at, count; } path[] = {{0, 1}, {1, 2}, {3, 2}, {5, 3}};
  ops_row rows[4];
  for (int32_t i = 0; i < 4; i++)
    rows[i] = (ops_row){.position = TREE_AT + path[i].count - 1,
                        .length = TREE_AT,
                        .path_at = path[i].at,
                        .path_count = path[i].count};
  run_cache(t, c, &(ops_batch){.rows = rows, .row_count = 4, .paths = paths, .path_length = 8});
}

static bool open_cache(trial *t, cache_parts *c, ops_kv_type type) {
  const ops_kv_shape shape = {type, LAYERS, KV_HEADS, HEAD_DIM, BLOCKS, SEQUENCES, CONTEXT, STAGE};
  int32_t blocks[CONTEXT / OPS_TILE];
  *c = (cache_parts){
      .rope = {.frequency = random_vector(t, ROPE_DIM / 2), .dim = ROPE_DIM, .times = 1.25f},
      .rotary = {.q_norm = random_vector(t, HEAD_DIM), .k_norm = random_vector(t, HEAD_DIM), .eps = 1e-6f},
      .q = act_of(t, HEADS * HEAD_DIM, false),
      .k = act_of(t, KV_HEADS * HEAD_DIM, false),
      .v = act_of(t, KV_HEADS * HEAD_DIM, false),
      .y = {act_of(t, HEADS * HEAD_DIM, true), act_of(t, HEADS * HEAD_DIM, true)},
      .mass = act_of(t, CONTEXT / OPS_TILE, false),
      .bound = act_of(t, CONTEXT / OPS_TILE, false),
      .bound_mean = act_of(t, CONTEXT / OPS_TILE, false)};
  t->kv = t->failed ? NULL : t->d->table->kv_open(t->d, &shape);
  if (!t->kv || !t->d->table->kv_stage(t->d, t->kv)) t->failed = true;
  for (int32_t s = 0; s < SEQUENCES && !t->failed; s++) {
    for (int32_t i = 0; i < CONTEXT / OPS_TILE; i++) blocks[i] = BLOCKS - 1 - (SEQUENCES * i + s);
    t->d->table->kv_map(t->d, t->kv, s, blocks, CONTEXT / OPS_TILE);
  }
  return !t->failed;
}

static void try_cache(trial *t, int32_t type) {
  cache_parts c;
  static const int32_t path[] = {3, 5, 30};
  if (!open_cache(t, &c, (ops_kv_type)type)) return;
  run_appended(t, &c, LONG_AT);
  run_tree(t, &c);
  if (!t->failed) t->d->table->kv_commit(t->d, t->kv, 0, path, 3, TREE_AT);
  run_appended(t, &c, TREE_AT + 3);
}

/* --- head --- */

static void try_head(trial *t, int32_t unused) {
  (void)unused;
  ops_row rows[ROWS];
  ops_batch b = plain_batch(rows, ROWS);
  const int32_t head_rows[] = {8, 0, 3, 5, 1};
  const ops_sampling choices[] = {
      {0}, {.scale = 1.25f, .seed = 7, .choice = 3, .position = 41}, {.scale = 0.5f}};
  b.head_rows = head_rows;
  b.head_count = 5;
  b.logit_count = 2;
  b.choices = choices;
  device_weight w = random_weight(t, OPS_Q6_K, VOCABULARY, COLUMNS);
  device_act *x = act_of(t, COLUMNS, true);
  if (t->failed) return;
  random_act(t, x, COLUMNS);
  if (!begin(t, &b)) return;
  t->d->table->head(t->d, &w, x);
  finish(t, 3);
  for (int32_t line = 0; line < 2 && !t->failed; line++) {
    const float *logits = t->d->table->logits(t->d, line);
    if (logits)
      keep_bytes(t, logits, VOCABULARY * sizeof *logits);
    else
      t->failed = true;
  }
}

/* --- rank --- */

#define RANKED 3

/* Row 0 with a penalty for all tokens and much noise, row 1 with filters, row 4 greedy. */
static const ops_ranking rankings[RANKED] = {
    {.options = {.temperature = 10, .top_p = 1, .repeat_penalty = 1.3f, .choice = 1},
     .position = 12,
     .count = SAMPLER_RANKED_MAX,
     .history = {{0, VOCABULARY / 2}, {VOCABULARY / 2, VOCABULARY / 2}}},
    {.options =
         {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f, .repeat_penalty = 1, .seed = 7},
     .count = SAMPLER_RANKED_MAX},
    {.options = {.top_p = 1, .repeat_penalty = 0.5f}, .count = 3, .history = {{5, 9}}},
};

/* Beside them row 3 keeps its logits, and row 2 chooses. */
static void run_rank(trial *t, const device_weight *w, const device_act *x, device_ids ids) {
  static const int32_t head_rows[] = {3, 0, 1, 4, 2};
  int32_t tokens[VOCABULARY];
  ops_ranking wanted[RANKED];
  ops_row rows[ROWS];
  ops_batch b = plain_batch(rows, ROWS);
  for (int32_t i = 0; i < VOCABULARY; i++) tokens[i] = i;
  for (int32_t i = 0; i < RANKED; i++) {
    wanted[i] = rankings[i];
    if (i > 0 && ids.memory) wanted[i].own = (ops_slice){ids.common + i, ids.outputs - ids.common - i};
  }
  b.head_rows = head_rows;
  b.head_count = RANKED + 2;
  b.logit_count = 1;
  b.rank_count = RANKED;
  b.rankings = wanted;
  b.tokens = tokens;
  b.token_count = VOCABULARY;
  b.choices = &(ops_sampling){.scale = 1.25f};
  if (!begin(t, &b)) return;
  t->d->table->head(t->d, w, x);
  t->d->table->rank(t->d, ids);
  finish(t, 1);
  const ops_ranked *lists = t->failed ? NULL : t->d->table->ranked(t->d, 0, RANKED);
  if (!lists) t->failed = true;
  for (int32_t i = 0; i < RANKED && lists; i++) {
    keep_bytes(t, &lists[i].count, sizeof lists[i].count);
    keep_bytes(t, lists[i].list, (size_t)lists[i].count * sizeof *lists[i].list);
  }
}

static void try_rank(trial *t, int32_t unused) {
  (void)unused;
  int32_t outputs[VOCABULARY]; /* 7 is prime to their number: each is another token */
  for (int32_t i = 0; i < VOCABULARY; i++) outputs[i] = i % 5 ? i * 7 % VOCABULARY : -1;
  device_weight w = random_weight(t, OPS_Q8_0, VOCABULARY, COLUMNS);
  device_act *x = act_of(t, COLUMNS, true);
  const device_memory *memory = upload(t, outputs, sizeof outputs);
  if (t->failed) return;
  random_act(t, x, COLUMNS);
  run_rank(t, &w, x, (device_ids){.count = VOCABULARY});
  run_rank(
      t, &w, x,
      (device_ids){.memory = memory, .count = VOCABULARY, .outputs = VOCABULARY, .common = VOCABULARY / 2});
}

/* --- all of them --- */

typedef struct op_test {
  const char *op;
  void (*run)(trial *t, int32_t variant);
  int32_t variants;
} op_test;

static const op_test tests[] = {
    {"embed and linear", try_linear, OPS_TYPE_COUNT},
    {"supply and capture", try_supply, 1},
    {"linear_swiglu", try_swiglu, sizeof gated_types / sizeof *gated_types},
    {"norm", try_norm, 1},
    {"norm and linear", try_normed, 2},
    {"rope_store, attention, mass, bound and commit", try_cache, 2},
    {"head", try_head, 1},
    {"rank", try_rank, 1},
};

static const char *variant_name(const op_test *t, int32_t variant) {
  if (t->run == try_linear) return units[variant].name;
  if (t->run == try_swiglu) return variant == 0 ? "of one type" : variant == 1 ? "of two types" : "of BF16";
  if (t->run == try_normed) return variant ? "with BF16" : "";
  if (t->run == try_cache) return variant == OPS_KV_F16 ? "f16" : "f32";
  return "";
}

static void run(trial *t, const op_test *test, int32_t variant) {
  t->used = 0;
  t->random = RANDOM_SEED + (uint32_t)variant;
  t->failed = false;
  test->run(t, variant);
  drop_all(t);
}

static int compare(trial *t, trial *reference, const op_test *test, int32_t variant, err *e) {
  const char *name = t->d->table->name, *of = variant_name(test, variant);
  run(reference, test, variant);
  if (reference->failed) return err_set(e, ERR_NOMEM, "no memory to test %s with", name);
  run(t, test, variant);
  if (t->failed)
    return err_set(e, ERR_UNSUPPORTED, "%s fails at %s%s%s: use another device, or --device cpu", name,
                   test->op, *of ? " " : "", of);
  if (t->used == reference->used && memcmp(t->out, reference->out, t->used) == 0) return ERR_OK;
  return err_set(
      e, ERR_UNSUPPORTED,
      "%s computes %s%s%s with other bits than the C reference: use another device, or --device cpu", name,
      test->op, *of ? " " : "", of);
}

static int compare_all(trial *t, trial *reference, err *e) {
  for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
    for (int32_t variant = 0; variant < tests[i].variants; variant++) {
      int rc = compare(t, reference, &tests[i], variant, e);
      if (rc != ERR_OK) return rc;
    }
  }
  return ERR_OK;
}

int self_test_run(device *d, err *e) {
  const device_options o = {.math = d->math, .threads = 1};
  trial t = {.d = d, .out = malloc(OUT_BYTES)}, reference = {.out = malloc(OUT_BYTES)};
  int rc = t.out && reference.out ? device_open(&reference.d, "cpu:c", &o, NULL, e)
                                  : err_set(e, ERR_NOMEM, "no memory to test %s with", d->table->name);
  if (rc == ERR_OK) {
    rc = compare_all(&t, &reference, e);
    reference.d->table->close(reference.d);
  }
  free(t.out);
  free(reference.out);
  return rc;
}
