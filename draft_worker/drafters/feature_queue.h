/* feature_queue.h - the features of one session that have come and were not computed yet. */
#pragma once

#include "draft_worker/drafters/drafter.h"

#define FEATURE_QUEUE_MAX 2048 /* rows; if more come, the older ones are lost */

typedef struct feature_queue {
  bool begun;          /* features have come */
  int32_t first;       /* position of the first ones since then: those of [first, base) have been taken out */
  int32_t base, count; /* positions of the rows that are held: [base, base + count) */
  int32_t width, room; /* values of a row; rows that there is memory for */
  bool fused;
  float *rows;   /* [room][width] */
} feature_queue; /* all zero at first */

/* Adds what follows the rows that have come; behind a gap, or with rows of another kind, it begins anew
 * there. Without memory nothing is held, as before the first features. */
void feature_queue_add(feature_queue *q, const drafter_features *f);
/* Moves the first `count` rows out. */
void feature_queue_take(feature_queue *q, int32_t count, float *out);
/* Forgets what belongs to positions from `end` on, and the rows that are held, which come again; nothing is
 * left if no row of a position before `end` has been taken out. */
void feature_queue_keep(feature_queue *q, int32_t end);
void feature_queue_reset(feature_queue *q); /* frees its memory */
