/* model_drafter.h - a draft model as a drafter: it gathers the queries of all sessions into batches, with the
 * tokens of C that the engine lacks, and turns the engine's values into calibrated candidates. It computes
 * nothing itself: whoever owns it carries batches to an engine (model_engine.h) and results back. */
#pragma once

#include "draft_worker/drafters/draft_batch.h"

#define MODEL_DRAFTER_METHOD "model"

/* rows: queries of one batch at most, <= DRAFT_QUERIES_MAX. ERR_NOMEM. */
int model_drafter_open(drafter *out, int32_t rows, err *e);
