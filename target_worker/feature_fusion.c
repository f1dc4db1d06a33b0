#include "target_worker/feature_fusion.h"

#include "common/base/min.h"
#include <stdlib.h>
#include <string.h>

void feature_fusion_fini(feature_fusion *x) {
  free(x->states);
  *x = (feature_fusion){0};
}

void feature_fusion_keep(session *s, const engine_result *r) {
  feature_ring *states = &s->drafts.features.fusion.states;
  if (states->rows)
    feature_ring_add(states, r->feature_base, r->feature_count, (const uint8_t *)(const void *)r->states);
}

bool feature_fusion_waits(const session *s) {
  const feature_ring *states = &s->drafts.features.fusion.states;
  return states->first < states->end;
}

/* A head reads the prompt before speculation has begun, unless that would slow the target for nothing. */
static bool is_read(const session *s) {
  const speculation *p = &s->speculation;
  bool idle = speculation_is_quiet(p) || (speculation_is_off(p) && session_has_begun(s));
  return s->state == SESSION_RUNNING && (!idle || s->request.options.lockstep);
}

bool feature_fusion_in_forward(const session_store *store, const session *s) {
  return store->taps.fc_in_forward && s->drafts.features.taps.fused && !feature_fusion_waits(s) &&
         !s->drafts.features.fusion.serial && is_read(s);
}

bool feature_fusion_pending(const session *s) {
  return s->drafts.features.fusion.serial || (feature_fusion_waits(s) && is_read(s));
}

static bool make_room(feature_fusion *x, size_t row_bytes) {
  size_t size = FEATURE_FUSION_ROWS * row_bytes;
  if (size <= x->size) return true;
  float *grown = realloc(x->states, size);
  if (grown) *x = (feature_fusion){grown, size};
  return grown != NULL;
}

/* A copy, because the session may end while the job is under way. */
static void copy_states(const feature_ring *states, int32_t count, uint8_t *out) {
  for (int32_t from = states->first, end = from + count, n; from < end; from += n) {
    const uint8_t *rows = feature_ring_get(states, from, end, &n);
    memcpy(out, rows, (size_t)n * states->row_bytes);
    out += (size_t)n * states->row_bytes;
  }
}

/* Up to so many rows. Returns how many. */
static int32_t fill_job(feature_fusion *x, session *s, uint64_t serial, int32_t at, int32_t most,
                        engine_job *job) {
  session_fusion *f = &s->drafts.features.fusion;
  int32_t count = min_i32(f->states.end - f->states.first, most);
  uint8_t *rows = (uint8_t *)(void *)x->states + (size_t)at * f->states.row_bytes;
  copy_states(&f->states, count, rows);
  f->serial = serial;
  f->end = f->states.first + count;
  *job = (engine_job){.kind = ENGINE_FUSE,
                      .serial = serial,
                      .slot = s->slot,
                      .session = s->id,
                      .kv_length = f->states.first,
                      .count = count,
                      .states = (const float *)(const void *)rows,
                      .taps = s->drafts.features.taps};
  return count;
}

bool feature_fusion_next(feature_fusion *x, session_store *store, uint64_t *serial, engine_batch *batch) {
  batch->count = 0;
  for (int32_t i = 0, at = 0; i < store->count && batch->count < ENGINE_JOBS_MAX; i++) {
    session *s = &store->slots[i];
    const session_fusion *f = &s->drafts.features.fusion;
    if (f->serial || !feature_fusion_waits(s) || !is_read(s) || at == FEATURE_FUSION_ROWS) continue;
    if (!make_room(x, f->states.row_bytes)) continue;
    at += fill_job(x, s, ++*serial, at, FEATURE_FUSION_ROWS - at, &batch->jobs[batch->count++]);
  }
  return batch->count > 0;
}

session *feature_fusion_end(session_store *store, const engine_result *r) {
  for (int32_t i = 0; i < store->count; i++) {
    session *s = &store->slots[i];
    session_fusion *f = &s->drafts.features.fusion;
    if (s->state == SESSION_FREE || f->serial != r->serial) continue;
    f->serial = 0;
    feature_ring_trim(&f->states, r->code == ERR_OK ? f->end : f->states.end);
    return s;
  }
  return NULL;
}
