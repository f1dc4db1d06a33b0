/* warmup.h - forwards of made-up rows before the first real ones, for a device that prepares something with
 * the first forward of each kind (device.prepares): a GPU loads kernels and records graphs, so that such a
 * forward takes two to ten times as long. Other devices compute nothing here. What fails is left to the
 * forwards that follow.
 *
 * A form is what a real forward will be: a segment whose seq, count, tokens and parents are set here, and how
 * many rows it may have. Devices tell numbers of rows apart by powers of two: a form is run with `most` rows,
 * and with each lower power of two down to `least`. Memory that grows has another address, for which all is
 * prepared again: so the whole list is run until nothing was left to prepare. `seq` is an empty sequence of
 * the cache, and empty again afterwards. Counters of device and cache count these forwards, too. */
#pragma once

#include "common/model/draft_head.h"
#include "common/model/fusion.h"

typedef struct warmup_form {
  model_segment rows;
  int32_t most, least; /* in [1, MODEL_ROWS_MAX]; least: a power of two */
} warmup_form;

typedef struct warmup_head_form {
  draft_head_segment rows; /* values are set here, too */
  int32_t most, least;
} warmup_head_form;

void warmup_model(model *m, kv_cache *k, int32_t seq, const warmup_form *forms, int32_t count);
void warmup_head(draft_head *h, kv_cache *k, int32_t seq, const warmup_head_form *forms, int32_t count);
void warmup_fusion(fusion *f);
