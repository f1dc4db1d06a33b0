/* eagle3_engine.h - computes with a draft head: it gets features of C and queries in batches, and finds what
 * may follow each path.
 *
 * The row of position p is made of the target's features of p and of the token behind it, so C of n tokens
 * has n - 1 rows, and the last one tells what follows C. A row below C is made of its parent row's own state
 * in place of features. Such rows are guesses: when features of C come, all of them are dropped. */
#pragma once

#include "common/base/log.h"
#include "common/model/draft_head.h"
#include "draft_worker/drafters/draft_batch.h"

typedef struct eagle3_engine_options {
  draft_head *head; /* both are the engine's from open to close; every sequence of kv is free at open */
  kv_cache *kv;
  int32_t sequences, length_max; /* of kv; a C is at most one token longer than its rows */
  const logger *log;
} eagle3_engine_options;

typedef struct eagle3_engine_counters {
  uint64_t batches, forwards;
  uint64_t feature_rows, queried_rows;
  uint64_t forward_us; /* of forwards with queries alone */
  uint64_t failures;
} eagle3_engine_counters;

typedef struct eagle3_engine eagle3_engine;

int eagle3_engine_open(eagle3_engine **out, const eagle3_engine_options *o, err *e); /* ERR_NOMEM */
void eagle3_engine_close(eagle3_engine *g);                                          /* NULL is allowed */
/* Computes a batch. One thread at a time. */
void eagle3_engine_run(eagle3_engine *g, const draft_batch *b, draft_results *out);
const eagle3_engine_counters *eagle3_engine_count(const eagle3_engine *g);
