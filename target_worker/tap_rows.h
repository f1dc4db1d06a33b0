/* tap_rows.h - the states of a forward's committed rows, or what the forward's fc made of them, in the form
 * in which they travel; or as they are, f32, where fc is to be applied to them. The engine's. */
#pragma once

#include "common/model/model.h"
#include "target_worker/engine_job.h"

typedef struct tap_rows {
  uint8_t *rows; /* of the jobs in hand, one behind the other; NULL until a job wants some */
  size_t capacity, used;
  float *row; /* [width_max] one position's states */
  size_t width_max;
  /* Different ones of the forward in hand, which keeps one capture for what the cache's blocks weigh */
  int32_t layers[WIRE_TAPS_MAX], layer_count;
} tap_rows;

void tap_rows_fini(tap_rows *t);
/* A batch begins: what was given out before is not valid any more. */
void tap_rows_begin(tap_rows *t);
/* A forward begins: whose taps it has. */
void tap_rows_forward(tap_rows *t);
/* Asks the model for the taps of a job's rows in this segment, if it wants any and the forward has room for
 * them; otherwise they are lost. */
void tap_rows_ask(tap_rows *t, const engine_job *job, model_segment *s);
/* After the forward: the result gets the rows path[0..count) of the segment, which stand at positions from
 * job->kv_length on; path NULL: the first `count` rows. Without memory or states it gets none. Returns where
 * they lie in `rows`, which the next call may move. */
size_t tap_rows_take(tap_rows *t, const model *m, int32_t segment, const engine_job *job, const int32_t *path,
                     int32_t count, engine_result *r);
