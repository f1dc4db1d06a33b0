#include "draft_worker/drafters/model_drafter.h"

#include "draft_worker/drafters/batch_drafter.h"
#include <stdlib.h>

static const drafter_kind model_kind = {.budgets_ahead = BATCH_DRAFTER_AHEAD,
                                        .hope = BATCH_DRAFTER_HOPE,
                                        .least = BATCH_DRAFTER_LEAST,
                                        .replies = DRAFTER_REPLIES_LAST,
                                        .tokens_per_forward = 1,
                                        .goes_past_guess = true,
                                        .free = free,
                                        .open = batch_drafter_open,
                                        .close = batch_drafter_close,
                                        .advance = batch_drafter_advance,
                                        .observe = batch_drafter_observe,
                                        .submit = batch_drafter_submit,
                                        .take = batch_drafter_take,
                                        .batch_begin = batch_drafter_begin,
                                        .batch_end = batch_drafter_end,
                                        .batch_done = batch_drafter_done};

int model_drafter_open(drafter *out, int32_t rows, err *e) {
  *out = (drafter){0};
  batch_drafter *d = calloc(1, sizeof *d);
  if (!d) return err_set(e, ERR_NOMEM, "no memory for a drafter");
  batch_drafter_init(d, rows, NULL);
  *out = (drafter){.kind = &model_kind, .self = d, .method = MODEL_DRAFTER_METHOD, .queries_max = rows};
  return ERR_OK;
}
