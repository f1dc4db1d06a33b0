#include "target_worker/tap_rows.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT sizeof(float) /* of a job's rows */

void tap_rows_fini(tap_rows *t) {
  free(t->rows);
  free(t->row);
  *t = (tap_rows){0};
}

void tap_rows_begin(tap_rows *t) {
  t->used = 0;
}

void tap_rows_forward(tap_rows *t) {
  t->layer_count = 0;
}

/* Room for a tap among the different ones of a forward. */
static bool add_layer(tap_rows *t, int32_t layer) {
  for (int32_t i = 0; i < t->layer_count; i++)
    if (t->layers[i] == layer) return true;
  if (t->layer_count == WIRE_TAPS_MAX) return false;
  t->layers[t->layer_count++] = layer;
  return true;
}

/* Rows of the job before the positions that are wanted. */
static int32_t skipped(const engine_job *job) {
  return job->taps_from > job->kv_length ? job->taps_from - job->kv_length : 0;
}

#define FUSED (-1) /* in place of a layer: the rows that fc makes */

void tap_rows_ask(tap_rows *t, const engine_job *job, model_segment *s) {
  int32_t before = t->layer_count, first = skipped(job);
  if (job->taps.count == 0 || first >= job->count) return;
  for (int32_t i = 0; i < (job->fuses ? 1 : job->taps.count); i++) {
    if (add_layer(t, job->fuses ? FUSED : job->taps.list[i])) continue;
    t->layer_count = before;
    return;
  }
  s->fused = job->fuses;
  s->taps = job->taps.list;
  s->tap_count = job->taps.count;
  s->tap_first = s->kind == MODEL_APPEND ? first : 0; /* of a tree, the path decides */
}

/* How rows are kept. */
static taps_set kept_as(const engine_job *job, const model *m) {
  const taps_set *wanted = &job->taps;
  taps_set kept = *wanted;
  if (!wanted->fused || job->fuses) return kept;
  kept.type = WIRE_F32;
  kept.width = wanted->count * model_shape(m)->embed;
  return kept;
}

static bool make_room(tap_rows *t, size_t bytes) {
  if (bytes <= t->capacity) return true;
  uint8_t *grown = realloc(t->rows, bytes);
  if (grown) t->rows = grown, t->capacity = bytes;
  return grown != NULL;
}

static bool make_row(tap_rows *t, size_t width) {
  if (width <= t->width_max) return true;
  float *grown = realloc(t->row, width * sizeof *grown);
  if (grown) t->row = grown, t->width_max = width;
  return grown != NULL;
}

/* One row as fc made it, or its states, one behind the other. */
static bool gather(tap_rows *t, const model *m, int32_t segment, int32_t row, const engine_job *job) {
  const taps_set *wanted = &job->taps;
  if (job->fuses) {
    const float *fused = model_fused(m, segment, row);
    if (fused) memcpy(t->row, fused, (size_t)wanted->width * sizeof *fused);
    return fused != NULL;
  }
  size_t embed = (size_t)model_shape(m)->embed;
  for (int32_t i = 0; i < wanted->count; i++) {
    const float *state = model_tapped(m, segment, row, wanted->list[i]);
    if (!state) return false;
    memcpy(t->row + (size_t)i * embed, state, embed * sizeof *state);
  }
  return true;
}

size_t tap_rows_take(tap_rows *t, const model *m, int32_t segment, const engine_job *job, const int32_t *path,
                     int32_t count, engine_result *r) {
  const taps_set kept = kept_as(job, m);
  int32_t first = skipped(job);
  size_t bytes = taps_row_bytes(&kept), at = (t->used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (first >= count || !make_row(t, (size_t)kept.width)) return at;
  if (!make_room(t, at + (size_t)(count - first) * bytes)) return at;
  for (int32_t i = first; i < count; i++) {
    if (!gather(t, m, segment, path ? path[i] : i, job)) return at;
    taps_pack(kept.type, t->row, kept.width, t->rows + at + (size_t)(i - first) * bytes);
  }
  r->feature_bytes = bytes;
  r->feature_base = job->kv_length + first;
  r->feature_count = count - first;
  t->used = at + (size_t)(count - first) * bytes;
  return at;
}
