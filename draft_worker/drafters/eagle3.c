#include "draft_worker/drafters/eagle3.h"

#include "common/base/min.h"
#include "draft_worker/drafters/batch_drafter.h"
#include "draft_worker/drafters/feature_queue.h"
#include <assert.h>
#include <stdlib.h>

typedef struct eagle3 {
  batch_drafter base; /* the first, as its functions want it */
  feature_queue queues[DRAFTER_SLOTS_MAX];
  int32_t width, fc_width; /* of a row of states, and of one to which fc has been applied */
  int32_t widest;          /* of them */
  float *flight;           /* [DRAFT_CHUNK][widest]: the features of the last batch */
} eagle3;

/* The engine holds the head's rows of positions whose features were sent to it. A row is of its position's
 * next token too. */
static int open_session(void *self, int32_t slot, const drafter_session *s) {
  feature_queue_keep(&((eagle3 *)self)->queues[slot], s->kept - 1);
  return batch_drafter_open(self, slot, s);
}

static void close_session(void *self, int32_t slot) {
  feature_queue *q = &((eagle3 *)self)->queues[slot];
  feature_queue_keep(q, q->base);
  batch_drafter_close(self, slot);
}

static int32_t features_from(void *self, int32_t slot) {
  const feature_queue *q = &((eagle3 *)self)->queues[slot];
  return q->begun ? q->base + q->count : 0;
}

/* Rows that are not as wide as the head wants them are of no use. */
static void take_features(void *self, int32_t slot, const drafter_features *f) {
  eagle3 *d = self;
  if (batch_drafter_failed(&d->base, slot)) return;
  bool fits = f && (f->count == 0 || f->width == (f->fused ? d->fc_width : d->width));
  if (fits)
    feature_queue_add(&d->queues[slot], f);
  else
    feature_queue_reset(&d->queues[slot]);
}

/* After a failure the engine holds no rows. */
static bool take_reply(void *self, draft_reply *out) {
  bool any = batch_drafter_take(self, out);
  if (any && out->code != ERR_OK) feature_queue_reset(&((eagle3 *)self)->queues[out->slot]);
  return any;
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
  j->features = d->flight + (size_t)b->feature_count * (size_t)d->widest;
  j->feature_base = q->base;
  j->feature_count = count;
  j->feature_width = q->width;
  j->fused = q->fused;
  feature_queue_take(q, count, d->flight + (size_t)b->feature_count * (size_t)d->widest);
  b->feature_count += count;
}

/* A row of the head needs a position's features and the token behind it: C is held when the row before its
 * last token has been sent. Without features there is nothing to compute, so that tokens alone make no batch,
 * for which features on their way would have to wait. Where that row's features were lost, nobody waits: none
 * come before C grows, which in lockstep waits for us. */
static int32_t advance(void *self, int32_t slot, const prefix *committed) {
  eagle3 *d = self;
  const feature_queue *q = &d->queues[slot];
  bool lost = q->begun && q->first + 1 >= committed->length;
  if (q->begun && q->count == 0)
    return lost ? DRAFTER_ABSENT : min_i32(d->base.sessions[slot].sent, q->base + 1);
  int32_t sent = batch_drafter_advance(self, slot, committed);
  if (!q->begun || lost || sent == DRAFTER_ABSENT) return DRAFTER_ABSENT;
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
                                         .tokens_per_forward = 1,
                                         .goes_past_guess = true, /* by its own states */
                                         .free = free_all,
                                         .open = open_session,
                                         .close = close_session,
                                         .advance = advance,
                                         .features = take_features,
                                         .features_from = features_from,
                                         .observe = batch_drafter_observe,
                                         .submit = batch_drafter_submit,
                                         .take = take_reply,
                                         .batch_begin = batch_drafter_begin,
                                         .batch_end = batch_drafter_end,
                                         .batch_done = batch_drafter_done};

int eagle3_open(drafter *out, const drafter_wants *wants, int32_t rows, int32_t width,
                const float (*measured)[CALIBRATION_WEIGHTS], err *e) {
  *out = (drafter){0};
  assert(width > 0);
  eagle3 *d = calloc(1, sizeof *d);
  int32_t widest = width > wants->fc_width ? width : wants->fc_width;
  if (d) d->flight = calloc((size_t)DRAFT_CHUNK * (size_t)widest, sizeof *d->flight);
  if (!d || !d->flight) {
    free(d);
    return err_set(e, ERR_NOMEM, "no memory for a drafter");
  }
  batch_drafter_init(&d->base, rows, measured);
  d->width = width;
  d->fc_width = wants->fc_width;
  d->widest = widest;
  *out = (drafter){
      .kind = &eagle3_kind, .self = d, .method = EAGLE3_METHOD, .queries_max = rows, .wants = *wants};
  return ERR_OK;
}

const calibration *eagle3_calibration(const drafter *d) {
  return &((const eagle3 *)d->self)->base.learnt;
}
