/* eagle3.h - an EAGLE-3 head as a drafter. The head reads, for each committed position, features of the
 * target's own forward and the token that follows; below C it goes on with its own states. It sends features
 * to its engine (eagle3_engine.h) with the tokens of C, and is absent from a session as long as it has no
 * features of the end of C. */
#pragma once

#include "draft_worker/drafters/calibration.h"
#include "draft_worker/drafters/draft_batch.h"

#define EAGLE3_METHOD "eagle3"

/* rows: queries of one batch at most, <= DRAFT_QUERIES_MAX; width: the most values of a row of features;
 * measured: as in calibration_init. ERR_NOMEM. */
int eagle3_open(drafter *out, const drafter_wants *wants, int32_t rows, int32_t width,
                const float (*measured)[CALIBRATION_WEIGHTS], err *e);
/* What such a drafter has learnt. */
const calibration *eagle3_calibration(const drafter *d);
