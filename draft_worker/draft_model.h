/* draft_model.h - a model that drafts: its files, its cache and the engine that computes with it. */
#pragma once

#include "common/base/mem.h"
#include "common/model/model.h"
#include "common/text/vocabulary_map.h"
#include "draft_worker/draft_arguments.h"
#include "draft_worker/drafters/model_engine.h"
#include "draft_worker/worker.h"

typedef struct draft_model {
  mem memory;
  model_file *target_file, *file; /* the first may be NULL */
  device *device;
  model *model;
  kv_cache *kv;
  vocabulary_map bridge;
  model_engine *engine;
  int32_t context; /* the longest session, which --ctx or the model limits */
} draft_model;

/* Fills what `o` has of a model, without its drafter. ERR_ARG: the command line names no model; otherwise the
 * errors of what is opened. */
int draft_model_open(draft_model *m, const flag_values *a, const logger *log, draft_options *o, err *e);
/* Before the first batch (warmup.h). rows: most of a forward of queries. */
void draft_model_warmup(draft_model *m, int32_t rows);
void draft_model_close(draft_model *m); /* one that was never opened, or not wholly, is allowed */

/* What --counters prints: one line of JSON on stderr. */
void draft_model_print_counters(const draft_model *m);
