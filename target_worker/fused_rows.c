#include "target_worker/fused_rows.h"

#include "common/base/clock.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

void fused_rows_fini(fused_rows *t) {
  free(t->rows);
  free(t->states);
  *t = (fused_rows){0};
}

static bool make_room(fused_rows *t, const fusion *f, size_t bytes) {
  if (!t->states) t->states = malloc(FUSION_ROWS_MAX * (size_t)fusion_columns(f) * sizeof *t->states);
  if (t->states && bytes <= t->capacity) return true;
  uint8_t *grown = t->states ? realloc(t->rows, bytes) : NULL;
  if (grown) t->rows = grown, t->capacity = bytes;
  return grown != NULL;
}

/* A row of the jobs, counted through all of them. */
typedef struct row_cursor {
  const engine_job *list;
  int32_t job, row;
  size_t at; /* in t->rows */
} row_cursor;

static void step(row_cursor *p) {
  const engine_job *j = &p->list[p->job];
  p->at += taps_row_bytes(&j->taps);
  if (++p->row < j->count) return;
  p->job++;
  p->row = 0;
}

/* The next rows, from *from on. */
static int run_forward(fused_rows *t, fusion *f, row_cursor *from, int32_t count) {
  size_t columns = (size_t)fusion_columns(f);
  row_cursor p = *from;
  for (int32_t i = 0; i < count; i++, step(&p))
    memcpy(t->states + (size_t)i * columns, p.list[p.job].states + (size_t)p.row * columns,
           columns * sizeof *t->states);
  int rc = fusion_run(f, t->states, count);
  for (int32_t i = 0; i < count && rc == ERR_OK; i++, step(from)) {
    const float *row = fusion_row(f, i);
    if (row)
      taps_pack(from->list[from->job].taps.type, row, fusion_width(f), t->rows + from->at);
    else
      rc = ERR_DEVICE;
  }
  return rc;
}

static int run_all(fused_rows *t, fusion *f, const engine_job *list, int32_t count) {
  int32_t rows = 0;
  size_t bytes = 0;
  for (int32_t i = 0; i < count; i++) {
    assert(list[i].taps.fused && list[i].taps.width == fusion_width(f) && list[i].count > 0);
    rows += list[i].count;
    bytes += (size_t)list[i].count * taps_row_bytes(&list[i].taps);
  }
  if (!make_room(t, f, bytes)) return ERR_INTERNAL;
  row_cursor at = {.list = list};
  int rc = ERR_OK;
  for (int32_t done = 0, n; done < rows && rc == ERR_OK; done += n) {
    n = rows - done < FUSION_ROWS_MAX ? rows - done : FUSION_ROWS_MAX;
    rc = run_forward(t, f, &at, n);
  }
  if (rc == ERR_OK) t->done += (uint64_t)rows;
  return rc == ERR_OK || rc == ERR_DEVICE ? rc : ERR_INTERNAL;
}

void fused_rows_run(fused_rows *t, fusion *f, const engine_job *list, int32_t count, engine_result *out) {
  uint64_t start = clock_us();
  int rc = run_all(t, f, list, count);
  size_t at = 0;
  for (int32_t i = 0; i < count; i++) {
    const engine_job *j = &list[i];
    out[i] = (engine_result){.kind = ENGINE_FUSE, .serial = j->serial, .code = rc};
    if (rc != ERR_OK) continue;
    out[i].features = t->rows + at;
    out[i].feature_bytes = taps_row_bytes(&j->taps);
    out[i].feature_base = j->kv_length;
    out[i].feature_count = j->count;
    at += (size_t)j->count * out[i].feature_bytes;
  }
  t->us += clock_us() - start;
}
