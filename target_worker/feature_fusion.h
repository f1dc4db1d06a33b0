/* feature_fusion.h - fc at the target, between two forwards: the states of the rows that a forward has
 * committed go back to the engine as jobs of their own, of all sessions together, once the tokens of that
 * forward are on their way. While speculation is off, nobody reads the rows: then the latest states wait. */
#pragma once

#include "target_worker/engine.h"
#include "target_worker/session_store.h"

#define FEATURE_FUSION_ROWS 128 /* that wait, of a session; and in one batch */

typedef struct feature_fusion {
  float *states;  /* of the batch under way; NULL: there was none yet */
  size_t size;    /* in bytes */
} feature_fusion; /* all zero at first */

void feature_fusion_fini(feature_fusion *x);
/* Keeps the states that came with a result. */
void feature_fusion_keep(session *s, const engine_result *r);
/* May the next forward of this session apply fc itself? Not before the rows of earlier ones have been through
 * it, and not while nobody reads them. */
bool feature_fusion_in_forward(const session_store *store, const session *s);
/* Do states of this session wait? */
bool feature_fusion_waits(const session *s);
/* Are they on the way through fc, or will they be with the next batch? */
bool feature_fusion_pending(const session *s);
/* Fills a batch with states that wait; false: there are none that somebody reads. *serial counts jobs. */
bool feature_fusion_next(feature_fusion *x, session_store *store, uint64_t *serial, engine_batch *batch);
/* The session that this result is of; NULL: its drafts want it no more. */
session *feature_fusion_end(session_store *store, const engine_result *r);
