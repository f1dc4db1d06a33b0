/* kv_probe.h - for tests of the cache: writes rows and reads them back as forwards do, through a device,
 * whose memory nobody else can read. An attention that sees one position alone gives its value, exactly; over
 * several positions its bits depend on all keys. */
#pragma once

#include "common/model/kv_rows.h"
#include "kernels/devices/devices.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define KV_SUPPORT_ROWS   (KV_STAGE_MAX + 64) /* of one forward */
#define KV_SUPPORT_LAYERS 3

typedef struct kv_support {
  device *device;
  int32_t layers, columns; /* columns: kv_heads * head_dim, and as many query heads */
  device_act *k[KV_SUPPORT_LAYERS], *v[KV_SUPPORT_LAYERS], *q, *y;
  device_memory *frequency;  /* zeros: nothing is rotated */
  int32_t rotated, head_dim; /* components of a head */
  ops_row rows[KV_SUPPORT_ROWS];
  int32_t row_count, paths[KV_SUPPORT_ROWS * 8], path_length;
  float host[KV_SUPPORT_ROWS * 64];
} kv_support;

/* Component i of row `row` of a forward, in a layer. */
typedef float kv_support_number(const void *context, int32_t row, int32_t layer, int32_t i, bool value);

kv_support *kv_support_open(const model_config *c, mem *m);

/* Before it, the caches on its device are closed. */
void kv_support_close(kv_support *s);

/* --- the rows of the next forward --- */

void kv_support_begin(kv_support *s);

void kv_support_append(kv_support *s, int32_t seq, int32_t position);

/* path: rows of the staging pool. */
void kv_support_stage(kv_support *s, int32_t seq, int32_t length, const int32_t *path, int32_t count);

/* Writes the rows to all layers. */
void kv_support_write(kv_support *s, device_kv *kv, kv_support_number *number, const void *context);

/* The rows' own values in a layer, [row_count][columns], until the next call. */
const float *kv_support_values(kv_support *s, device_kv *kv, int32_t layer);

/* Attention of each row with its query [columns] over the positions from first[i] on. */
const float *kv_support_attend(kv_support *s, device_kv *kv, int32_t layer, const float *q,
                               const int32_t *first);
