/* draft_eagle3.h - a draft head that drafts: its files, its cache and the engine that computes with it. */
#pragma once

#include "common/base/mem.h"
#include "draft_worker/draft_arguments.h"
#include "draft_worker/drafters/eagle3_engine.h"
#include "draft_worker/worker.h"

typedef struct draft_eagle3 {
  mem memory;
  model_file *target;
  head_file *file;
  device *device;
  draft_head *head;
  kv_cache *kv;
  eagle3_engine *engine;
  const drafter *drafter; /* the one that was opened; not its owner */
  int32_t context;        /* the longest session, which --ctx limits */
} draft_eagle3;

/* Fills what `o` has of a head, and opens its drafter. ERR_ARG: the command line names no head or no target;
 * otherwise the errors of what is opened. */
int draft_eagle3_open(draft_eagle3 *m, const flag_values *a, const logger *log, draft_options *o, drafter *to,
                      err *e);
/* Before the first batch (warmup.h). rows: most of a forward of queries. */
void draft_eagle3_warmup(draft_eagle3 *m, int32_t rows);
void draft_eagle3_close(draft_eagle3 *m); /* one that was never opened, or not wholly, is allowed */

/* What --counters prints: one line of JSON on stderr. */
void draft_eagle3_print_counters(const draft_eagle3 *m);
