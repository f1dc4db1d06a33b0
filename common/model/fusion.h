/* fusion.h - fc of a draft head on its target's device: makes the state that the head reads out of a
 * position's states, with the ops of the head's own forward (draft_head.h), so that one row travels in place
 * of several. */
#pragma once

#include "common/base/mem.h"
#include "common/file/head_file.h"
#include "kernels/device.h"

#define FUSION_ROWS_MAX 128 /* of one forward */

typedef struct fusion fusion;

/* Packs fc, and the norm before it where there is one, into the device's memory; `f` may be closed
 * afterwards, and the device stays the caller's. ERR_UNSUPPORTED, ERR_NOMEM, ERR_INTERNAL, ERR_DEVICE. */
int fusion_open(fusion **out, const head_file *f, device *d, mem *m, err *e);
void fusion_close(fusion *f); /* NULL is allowed */
/* Values of a row that it reads: the states of all taps, side by side; and of one that it makes. */
int32_t fusion_columns(const fusion *f);
int32_t fusion_width(const fusion *f);
/* fc as one matrix for each tap, in their order, whose products with the taps add up to the row that it
 * makes, but for rounding: so that a model can apply it on the way of its forward. NULL: the head has a norm
 * before fc, or taps that do not end where a block of weights ends, or it costs this device little to begin a
 * forward of fc's own. */
const device_weight *fusion_parts(const fusion *f);
const int32_t *fusion_taps(const fusion *f, int32_t *count);
device *fusion_device(const fusion *f);

/* states: f32 [count][fusion_columns], count in [1, FUSION_ROWS_MAX]. A forward of its own: of the device's
 * last one nothing can be read any more. ERR_NOMEM, ERR_INTERNAL, ERR_DEVICE. */
int fusion_run(fusion *f, const float *states, int32_t count);
bool fusion_prepared(const fusion *f); /* as model_prepared */
/* f32 [fusion_width] of a row of the last run, valid until the device's next forward. NULL: the device is
 * lost. */
const float *fusion_row(const fusion *f, int32_t row);
