/* model_engine.h - computes with a draft's model: it gets a batch of queries and finds what may follow each
 * path.
 *
 * It holds C of every session as the batches bring it, with a row of the cache for each token, and keeps the
 * rows of the queried paths staged below these. When C grows along such a path, the path's rows are committed
 * and the rows below them stay staged, so no row is computed twice. All token ids in batches and results are
 * the target's. */
#pragma once

#include "common/base/log.h"
#include "common/model/model.h"
#include "common/text/vocabulary_map.h"
#include "draft_worker/drafters/draft_batch.h"

typedef struct model_engine_options {
  model *model; /* these three are the engine's from open to close; every sequence of kv is free at open */
  kv_cache *kv;
  const vocabulary_map *bridge;
  int32_t sequences, length_max; /* of kv */
  const logger *log;
} model_engine_options;

typedef struct model_engine_counters {
  uint64_t batches, forwards;
  uint64_t prefilled_rows;          /* of C, computed because they were not staged */
  uint64_t queried_rows, kept_rows; /* rows staged for queries; of them, rows that were committed */
  uint64_t forward_us, rank_us;     /* of forwards with queries alone; choosing candidates */
  uint64_t failures;
} model_engine_counters;

typedef struct model_engine model_engine;

int model_engine_open(model_engine **out, const model_engine_options *o,
                      err *e);            /* ERR_NOMEM, ERR_FULL, ERR_IO */
void model_engine_close(model_engine *g); /* NULL is allowed */
/* Computes a batch. One thread at a time. */
void model_engine_run(model_engine *g, const draft_batch *b, draft_results *out);
const model_engine_counters *model_engine_count(const model_engine *g);
