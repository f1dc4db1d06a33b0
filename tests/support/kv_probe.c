#include "tests/support/kv_probe.h"

kv_support *kv_support_open(const model_config *c, mem *m) {
  kv_support *s = calloc(1, sizeof *s);
  const char *name = getenv("TANDEM_TEST_DEVICE");
  const device_options o = {.math = OPS_MATH_F32, .threads = 1};
  err e = {0};
  if (device_open(&s->device, name ? name : "cpu:c", &o, m, &e) != ERR_OK) fail_msg("%s", e.text);
  const device_table *t = s->device->table;
  s->layers = c->layers;
  s->head_dim = c->head_dim;
  s->columns = c->kv_heads * c->head_dim;
  assert_true(s->layers <= KV_SUPPORT_LAYERS && s->columns <= 64);
  for (int32_t i = 0; i < s->layers; i++) {
    assert_non_null(s->k[i] = t->act(s->device, KV_SUPPORT_ROWS, s->columns, false));
    assert_non_null(s->v[i] = t->act(s->device, KV_SUPPORT_ROWS, s->columns, false));
  }
  assert_non_null(s->q = t->act(s->device, KV_SUPPORT_ROWS, s->columns, false));
  assert_non_null(s->y = t->act(s->device, KV_SUPPORT_ROWS, s->columns, true));
  assert_non_null(s->frequency = t->take(s->device, MEM_GENERAL, (size_t)s->head_dim / 2 * sizeof(float)));
  return s;
}

void kv_support_close(kv_support *s) {
  const device_table *t = s->device->table;
  for (int32_t i = 0; i < s->layers; i++) {
    t->act_drop(s->device, s->k[i]);
    t->act_drop(s->device, s->v[i]);
  }
  t->act_drop(s->device, s->q);
  t->act_drop(s->device, s->y);
  t->drop(s->device, s->frequency);
  t->close(s->device);
  free(s);
}

/* --- the rows of the next forward --- */

void kv_support_begin(kv_support *s) {
  s->row_count = s->path_length = 0;
}

void kv_support_append(kv_support *s, int32_t seq, int32_t position) {
  s->rows[s->row_count++] = (ops_row){.position = position, .sequence = seq, .length = position + 1};
}

void kv_support_stage(kv_support *s, int32_t seq, int32_t length, const int32_t *path, int32_t count) {
  s->rows[s->row_count++] = (ops_row){.position = length + count - 1,
                                      .sequence = seq,
                                      .length = length,
                                      .path_at = s->path_length,
                                      .path_count = count};
  assert_true(s->path_length + count <= (int32_t)(sizeof s->paths / sizeof *s->paths));
  memcpy(s->paths + s->path_length, path, (size_t)count * sizeof *path);
  s->path_length += count;
}

/* Each row sees positions from first[i] on; first NULL: its own alone. */
static void kv_support_run(kv_support *s, device_kv *kv, const int32_t *first, int32_t layer, bool writes) {
  const device_table *t = s->device->table;
  ops_span spans[KV_SUPPORT_ROWS];
  int32_t index[KV_SUPPORT_ROWS + 1];
  for (int32_t i = 0; i < s->row_count; i++) {
    int32_t p = s->rows[i].position;
    spans[i] = (ops_span){first ? first[i] : p, p + 1};
  }
  for (int32_t i = 0; i <= s->row_count; i++) index[i] = i;
  const ops_batch b = {.rows = s->rows,
                       .row_count = s->row_count,
                       .paths = s->paths,
                       .path_length = s->path_length,
                       .views = {{index, spans}},
                       .view_count = 1};
  const device_rope rope = {{s->frequency, 0}, s->head_dim, 1};
  assert_true(t->begin(s->device, kv, &b));
  if (writes) t->rope(s->device, &rope);
  for (int32_t i = 0; i < s->layers && writes; i++)
    t->rope_store(s->device, i, &(device_rotary){.eps = 1}, s->q, s->k[i], s->v[i]);
  if (!writes) t->attention(s->device, layer, 0, s->q, s->y);
  t->end(s->device);
  assert_int_equal(t->wait(s->device, NULL), OPS_OK);
}

void kv_support_write(kv_support *s, device_kv *kv, kv_support_number *number, const void *context) {
  const device_table *t = s->device->table;
  for (int32_t layer = 0; layer < s->layers; layer++) {
    for (int value = 0; value < 2; value++) {
      for (int32_t i = 0; i < s->row_count * s->columns; i++)
        s->host[i] = number(context, i / s->columns, layer, i % s->columns, value);
      t->act_write(s->device, value ? s->v[layer] : s->k[layer], s->row_count, s->host);
    }
  }
  memset(s->host, 0, (size_t)s->row_count * (size_t)s->columns * sizeof *s->host);
  t->act_write(s->device, s->q, s->row_count, s->host);
  kv_support_run(s, kv, NULL, 0, true);
}

const float *kv_support_values(kv_support *s, device_kv *kv, int32_t layer) {
  const device_table *t = s->device->table;
  memset(s->host, 0, (size_t)s->row_count * (size_t)s->columns * sizeof *s->host);
  t->act_write(s->device, s->q, s->row_count, s->host);
  kv_support_run(s, kv, NULL, layer, false);
  assert_int_equal(t->act_read(s->device, s->y, s->row_count, s->host), OPS_OK);
  return s->host;
}

const float *kv_support_attend(kv_support *s, device_kv *kv, int32_t layer, const float *q,
                               const int32_t *first) {
  const device_table *t = s->device->table;
  t->act_write(s->device, s->q, s->row_count, q);
  kv_support_run(s, kv, first, layer, false);
  assert_int_equal(t->act_read(s->device, s->y, s->row_count, s->host), OPS_OK);
  return s->host;
}
