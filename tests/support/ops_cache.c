#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/ops_cache.h"

cache make_cache(device *d, const attention_case *c, int32_t context) {
  cache k = {.d = d,
             .shape = {.type = c->type,
                       .layers = CACHE_LAYERS,
                       .kv_heads = c->kv_heads,
                       .head_dim = c->head_dim,
                       .blocks = context > CACHE_CONTEXT ? context / OPS_TILE : CACHE_BLOCKS,
                       .sequences = CACHE_SEQUENCES,
                       .context = context,
                       .stage = CACHE_STAGE}};
  k.kv = d->table->kv_open(d, &k.shape);
  assert_non_null(k.kv);
  assert_true(d->table->kv_stage(d, k.kv));
  return k;
}

void free_cache(cache *k) {
  k->d->table->kv_close(k->d, k->kv);
}

void map_blocks(cache *k, int32_t sequence, int32_t order) {
  int32_t blocks[CACHE_MAP];
  memcpy(blocks, cache_orders[order], sizeof blocks);
  k->d->table->kv_map(k->d, k->kv, sequence, blocks, CACHE_MAP);
  memset(blocks, 0x5a, sizeof blocks); /* copied */
}

void map_in_order(cache *k, int32_t sequence) {
  int32_t blocks[SUPPORT_ROWS], count = k->shape.context / OPS_TILE;
  for (int32_t i = 0; i < count; i++) blocks[i] = i;
  k->d->table->kv_map(k->d, k->kv, sequence, blocks, count);
}

/* --- rows --- */

rows_data make_rows(const attention_case *c) {
  rows_data d = {random_floats((size_t)(CACHE_KEYS * c->heads * c->head_dim)),
                 random_floats((size_t)(CACHE_KEYS * c->kv_heads * c->head_dim)),
                 random_floats((size_t)(CACHE_KEYS * c->kv_heads * c->head_dim)),
                 malloc((size_t)c->rope_dim / 2 * sizeof(float)),
                 random_floats((size_t)c->head_dim),
                 random_floats((size_t)c->head_dim)};
  for (int32_t i = 0; i < c->rope_dim / 2; i++) d.frequency[i] = (float)pow(10000, -2.0 * i / c->rope_dim);
  return d;
}

void free_rows(rows_data *d) {
  float *all[] = {d->q, d->k, d->v, d->frequency, d->q_norm, d->k_norm};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

int32_t first_seen(const attention_case *c, int32_t n) {
  return c->window && n > c->window ? n - c->window : 0;
}

ops_row appended_row(int32_t sequence, int32_t p) {
  return (ops_row){.sequence = sequence, .token = p, .position = p, .length = p + 1};
}

/* --- forwards --- */

/* The columns of [CACHE_KEYS][columns] that each row's token says. */
static device_act *rows_act(device *d, const float *all, int32_t columns, const ops_row *rows,
                            int32_t count) {
  float *x = malloc((size_t)count * (size_t)columns * sizeof *x);
  for (int32_t i = 0; i < count; i++)
    memcpy(x + (size_t)i * (size_t)columns, all + (size_t)rows[i].token * (size_t)columns,
           (size_t)columns * sizeof *x);
  device_act *a = act_of(d, count, columns, false, x);
  free(x);
  return a;
}

void fill_batch(cache_batch *b, const attention_case *c, const ops_row *rows, int32_t count,
                const int32_t *paths, int32_t numbers) {
  assert_in_range(count, 1, CACHE_KEYS);
  memcpy(b->rows, rows, (size_t)count * sizeof *rows);
  if (numbers) memcpy(b->paths, paths, (size_t)numbers * sizeof *paths);
  for (int32_t i = 0; i < count; i++) {
    b->spans[i] = (ops_span){first_seen(c, rows[i].position + 1), rows[i].position + 1};
    b->first[i] = i;
  }
  b->first[count] = count;
  b->batch = (ops_batch){.rows = b->rows,
                         .row_count = count,
                         .paths = b->paths,
                         .path_length = numbers,
                         .views = {{b->first, b->spans}},
                         .view_count = 1};
}

void run_rows_into(cache *k, const attention_case *c, const rows_data *data, int32_t layer,
                   const ops_row *rows, int32_t count, const int32_t *paths, int32_t numbers, device_act *y) {
  device *d = k->d;
  static cache_batch b;
  device_vector frequency = upload_floats(d, data->frequency, (size_t)c->rope_dim / 2);
  device_rotary rotary = {.eps = cache_eps};
  if (c->norms) rotary.q_norm = upload_floats(d, data->q_norm, (size_t)c->head_dim);
  if (c->norms) rotary.k_norm = upload_floats(d, data->k_norm, (size_t)c->head_dim);
  int32_t kv_row = c->kv_heads * c->head_dim;
  device_act *acts[] = {rows_act(d, data->q, c->heads * c->head_dim, rows, count),
                        rows_act(d, data->k, kv_row, rows, count), rows_act(d, data->v, kv_row, rows, count)};
  fill_batch(&b, c, rows, count, paths, numbers);
  assert_true(d->table->begin(d, k->kv, &b.batch));
  memset(&b, 0x5a, sizeof b);
  d->table->rope(d, &(device_rope){frequency, c->rope_dim, 1});
  d->table->rope_store(d, layer, &rotary, acts[0], acts[1], acts[2]);
  if (y) d->table->attention(d, layer, 0, acts[0], y);
  end_rows(d);
  for (int i = 0; i < 3; i++) d->table->act_drop(d, acts[i]);
  drop_vector(d, frequency);
  drop_vector(d, rotary.q_norm);
  drop_vector(d, rotary.k_norm);
}

void run_rows(cache *k, const attention_case *c, const rows_data *data, int32_t layer, const ops_row *rows,
              int32_t count, const int32_t *paths, int32_t numbers, float **y) {
  int32_t q_row = c->heads * c->head_dim;
  device_act *out = y ? act_of(k->d, count, q_row, false, NULL) : NULL;
  run_rows_into(k, c, data, layer, rows, count, paths, numbers, out);
  if (y) *y = read_act(k->d, out, count, q_row);
  k->d->table->act_drop(k->d, out);
}

void poison(cache *k, const attention_case *c) {
  const int32_t sequence = CACHE_SEQUENCES - 1;
  attention_case plain = *c;
  rows_data nan = make_rows(c);
  ops_row rows[CACHE_CONTEXT];
  int32_t slots[CACHE_STAGE], blocks[CACHE_MAP];
  plain.norms = false;
  for (int32_t i = 0; i < CACHE_KEYS * c->kv_heads * c->head_dim; i++) nan.k[i] = nan.v[i] = NAN;
  for (int32_t first = 0; first < k->shape.blocks; first += CACHE_MAP) {
    int32_t count = k->shape.blocks - first < CACHE_MAP ? k->shape.blocks - first : CACHE_MAP;
    for (int32_t i = 0; i < count; i++) blocks[i] = first + i;
    k->d->table->kv_map(k->d, k->kv, sequence, blocks, count);
    for (int32_t p = 0; p < count * OPS_TILE; p++) rows[p] = appended_row(sequence, p);
    for (int32_t layer = 0; layer < CACHE_LAYERS; layer++)
      run_rows(k, &plain, &nan, layer, rows, count * OPS_TILE, NULL, 0, NULL);
  }
  for (int32_t i = 0; i < CACHE_STAGE; i++) {
    slots[i] = i;
    rows[i] = (ops_row){.sequence = sequence, .path_at = i, .path_count = 1};
  }
  for (int32_t layer = 0; layer < CACHE_LAYERS; layer++)
    run_rows(k, &plain, &nan, layer, rows, CACHE_STAGE, slots, CACHE_STAGE, NULL);
  free_rows(&nan);
}
