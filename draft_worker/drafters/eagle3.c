#include "draft_worker/drafters/eagle3.h"

#include "common/base/min.h"
#include "draft_worker/drafters/batch_drafter.h"
#include "draft_worker/drafters/feature_queue.h"
#include <assert.h>
#include <stdlib.h>

typedef struct eagle3 {
  batch_drafter base; /* the first, as its functions want it */
  feature_queue queues[DRAFTER_SLOTS_MAX];
  int32_t width;
  float *flight; /* [DRAFT_CHUNK][width]: the features of the last batch */
} eagle3;

static int open_session(void *self, int32_t slot, const drafter_session *s) {
  feature_queue_reset(&((eagle3 *)self)->queues[slot]);
  return batch_drafter_open(self, slot, s);
}

static void close_session(void *self, int32_t slot) {
  feature_queue_reset(&((eagle3 *)self)->queues[slot]);
  batch_drafter_close(self, slot);
}

static void take_features(void *self, int32_t slot, const drafter_features *f) {
  eagle3 *d = self;
  if (f->count == 0 || f->width <= d->width) feature_queue_add(&d->queues[slot], f);
}

/* While a batch is gathered, sends the features for which there is room and whose next token has been sent.
 */
static void send_features(eagle3 *d, int32_t slot, bool whole) {
  feature_queue *q = &d->queues[slot];
  draft_batch *b = d->base.batch;
  int32_t room = b ? DRAFT_CHUNK - b->feature_count : 0;
  int32_t count = min_i32(min_i32(q->count, d->base.sessions[slot].sent - 1 - q->base), room);
  draft_job *j = count > 0 ? batch_drafter_job(&d->base, slot) : NULL;
  if (!j || j->feature_count > 0) return;
  j->whole = whole;
  j->features = d->flight + (size_t)b->feature_count * (size_t)d->width;
  j->feature_base = q->base;
  j->feature_count = count;
  j->feature_width = q->width;
  j->fused = q->fused;
  feature_queue_take(q, count, d->flight + (size_t)b->feature_count * (size_t)d->width);
  b->feature_count += count;
}

/* A row of the head needs a position's features and the token behind it: C is held when the row before its
 * last token has been sent. */
static int32_t advance(void *self, int32_t slot, const prefix *committed) {
  eagle3 *d = self;
  const feature_queue *q = &d->queues[slot];
  int32_t sent = batch_drafter_advance(self, slot, committed);
  if (!q->begun) return DRAFTER_ABSENT;
  send_features(d, slot, sent == committed->length);
  return min_i32(sent, q->base + 1);
}

static void free_all(void *self) {
  eagle3 *d = self;
  for (int32_t i = 0; i < DRAFTER_SLOTS_MAX; i++) feature_queue_reset(&d->queues[i]);
  free(d->flight);
  free(d);
}

static const drafter_kind eagle3_kind = {.budgets_ahead = BATCH_DRAFTER_AHEAD,
                                         .hope = BATCH_DRAFTER_HOPE,
                                         .least = BATCH_DRAFTER_LEAST,
                                         .replies = DRAFTER_REPLIES_ARE_GUESSES,
                                         .free = free_all,
                                         .open = open_session,
                                         .close = close_session,
                                         .advance = advance,
                                         .features = take_features,
                                         .observe = batch_drafter_observe,
                                         .submit = batch_drafter_submit,
                                         .take = batch_drafter_take,
                                         .batch_begin = batch_drafter_begin,
                                         .batch_end = batch_drafter_end,
                                         .batch_done = batch_drafter_done};

int eagle3_open(drafter *out, const drafter_wants *wants, int32_t rows, int32_t width, err *e) {
  *out = (drafter){0};
  assert(rows > 0 && rows <= DRAFT_QUERIES_MAX && width > 0);
  eagle3 *d = calloc(1, sizeof *d);
  if (d) d->flight = calloc((size_t)DRAFT_CHUNK * (size_t)width, sizeof *d->flight);
  if (!d || !d->flight) {
    free(d);
    return err_set(e, ERR_NOMEM, "no memory for a drafter");
  }
  d->base.rows = rows;
  d->width = width;
  *out = (drafter){
      .kind = &eagle3_kind, .self = d, .method = EAGLE3_METHOD, .queries_max = rows, .wants = *wants};
  return ERR_OK;
}
