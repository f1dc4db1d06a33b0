#include "common/model/fusion.h"
#include "common/model/device_error.h"
#include "common/model/head_weights.h"

#include <assert.h>
#include <string.h>

struct fusion {
  device *device;
  int32_t columns, width;
  float eps;
  bool norm; /* the states are normed before fc */
  int32_t taps[HEAD_TAPS_MAX], tap_count;
  head_weights weights;
  device_act *states, *normed; /* [FUSION_ROWS_MAX][columns]; normed: only where they are */
  device_act *fused;           /* [FUSION_ROWS_MAX][width] */
  ops_row rows[FUSION_ROWS_MAX];
  int32_t all[FUSION_ROWS_MAX]; /* 0, 1, 2, ...: every row is captured */
  ops_answer answer;
};

static int take_activations(fusion *f, err *e) {
  const device_table *table = f->device->table;
  f->states = table->act(f->device, FUSION_ROWS_MAX, f->columns, true);
  f->fused = table->act(f->device, FUSION_ROWS_MAX, f->width, false);
  if (f->norm) f->normed = table->act(f->device, FUSION_ROWS_MAX, f->columns, true);
  if (f->states && f->fused && (f->normed || !f->norm)) return ERR_OK;
  return err_set(e, ERR_NOMEM, "no memory for %d rows of a draft head's fc: end what else uses %s",
                 FUSION_ROWS_MAX, table->name);
}

int fusion_open(fusion **out, const head_file *file, device *d, mem *m, err *e) {
  const head_config *c = head_file_config(file);
  *out = NULL;
  fusion *f = mem_alloc(m, MEM_SPECULATION, sizeof *f);
  if (!f) return err_set(e, ERR_NOMEM, "no memory for a draft head's fc");
  *f = (fusion){.device = d,
                .columns = c->tap_count * c->target_embed,
                .width = c->layer.embed,
                .eps = c->layer.norm_eps,
                .norm = c->norm_before_fc,
                .tap_count = c->tap_count};
  memcpy(f->taps, c->taps, sizeof f->taps);
  for (int32_t i = 0; i < FUSION_ROWS_MAX; i++) f->all[i] = i;
  int rc = head_weights_load_fc(&f->weights, file, d->prepares && !f->norm, d, e);
  if (rc == ERR_OK) rc = take_activations(f, e);
  if (rc == ERR_OK)
    *out = f;
  else
    fusion_close(f);
  return rc;
}

void fusion_close(fusion *f) {
  if (!f) return;
  device_act *all[] = {f->states, f->normed, f->fused};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) f->device->table->act_drop(f->device, all[i]);
  head_weights_free(&f->weights, f->device);
  mem_free(f);
}

int32_t fusion_columns(const fusion *f) {
  return f->columns;
}

int32_t fusion_width(const fusion *f) {
  return f->width;
}

const device_weight *fusion_parts(const fusion *f) {
  return f->weights.fc_parts[0].memory ? f->weights.fc_parts : NULL;
}

const int32_t *fusion_taps(const fusion *f, int32_t *count) {
  *count = f->tap_count;
  return f->taps;
}

device *fusion_device(const fusion *f) {
  return f->device;
}

int fusion_run(fusion *f, const float *states, int32_t count) {
  device *d = f->device;
  const ops_batch b = {.rows = f->rows, .row_count = count, .capture_rows = f->all, .capture_count = count};
  device_act *x = f->states;
  assert(count >= 1 && count <= FUSION_ROWS_MAX);
  if (!d->table->begin(d, NULL, &b)) return d->table->wait(d, NULL) == OPS_LOST ? ERR_DEVICE : ERR_NOMEM;
  d->table->supply(d, states, x);
  if (f->norm) {
    d->table->norm(d, x, false, f->weights.fc_norm, f->eps, f->normed);
    x = f->normed;
  }
  d->table->linear(d, &(device_linear){.w = f->weights.fc, .y = f->fused}, 1, x);
  d->table->capture(d, f->fused);
  d->table->end(d);
  return device_error(d->table->wait(d, &f->answer));
}

bool fusion_prepared(const fusion *f) {
  return f->answer.prepared;
}

const float *fusion_row(const fusion *f, int32_t row) {
  return f->device->table->captured(f->device, 0, row);
}
