/* ops_cache.h - for tests of the ops that work on a cache: a cache of a few blocks, rows of it, and forwards
 * that store and attend. */
#pragma once

#include "tests/support/ops_devices.h"

typedef struct attention_case {
  ops_kv_type type;
  int32_t heads, kv_heads, head_dim, rope_dim, committed, staged;
  bool norms;
  int32_t window; /* 0: all keys */
} attention_case;

enum {
  CACHE_LAYERS = 2,
  CACHE_SEQUENCES = 3,
  CACHE_CONTEXT = 96,
  CACHE_MAP = CACHE_CONTEXT / OPS_TILE,
  CACHE_BLOCKS = 2 * CACHE_MAP + 3,
  CACHE_STAGE = 48,
  CACHE_KEYS = CACHE_CONTEXT + CACHE_STAGE
};

/* Where blocks lie: in order, all apart, partly side by side; the last two share none with these. */
static const int32_t cache_orders[][CACHE_MAP] = {{0, 1, 2, 3, 4, 5},
                                                  {8, 6, 4, 2, 0, 7},
                                                  {3, 4, 5, 0, 1, 8},
                                                  {9, 10, 11, 12, 13, 14},
                                                  {14, 9, 10, 13, 12, 11}};
enum { CACHE_ORDERS = 3 };

typedef struct cache {
  device *d;
  device_kv *kv;
  ops_kv_shape shape;
} cache;

cache make_cache(device *d, const attention_case *c, int32_t context);

void free_cache(cache *k);

void map_blocks(cache *k, int32_t sequence, int32_t order);

void map_in_order(cache *k, int32_t sequence);

/* --- rows --- */

typedef struct rows_data {
  float *q, *k, *v;       /* of CACHE_KEYS rows; a row's token says which is its own */
  float *frequency;       /* [rope_dim / 2] */
  float *q_norm, *k_norm; /* [head_dim] */
} rows_data;

static const float cache_eps = 1e-3f;

rows_data make_rows(const attention_case *c);

void free_rows(rows_data *d);

/* The first logical position that the last of n keys' row sees. */
int32_t first_seen(const attention_case *c, int32_t n);

/* Appended, with the data of its position. */
ops_row appended_row(int32_t sequence, int32_t p);

/* --- forwards --- */

typedef struct cache_batch { /* with one view, of the case's window */
  ops_batch batch;
  ops_row rows[CACHE_KEYS];
  int32_t paths[CACHE_KEYS * CACHE_STAGE], first[CACHE_KEYS + 1];
  ops_span spans[CACHE_KEYS];
} cache_batch;

void fill_batch(cache_batch *b, const attention_case *c, const ops_row *rows, int32_t count,
                const int32_t *paths, int32_t numbers);

/* Stores the rows in this layer and attends with them into y; y NULL: only stores. What the batch points to
 * is overwritten as soon as it has begun. */
void run_rows_into(cache *k, const attention_case *c, const rows_data *data, int32_t layer,
                   const ops_row *rows, int32_t count, const int32_t *paths, int32_t numbers, device_act *y);

/* The same; *y becomes [count][heads * head_dim]. */
void run_rows(cache *k, const attention_case *c, const rows_data *data, int32_t layer, const ops_row *rows,
              int32_t count, const int32_t *paths, int32_t numbers, float **y);

/* All rows of all blocks and of the staging pool become NaN, so that a key that is not the row's shows. The
 * last sequence's block table serves for that. */
void poison(cache *k, const attention_case *c);
