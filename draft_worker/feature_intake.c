#include "draft_worker/feature_intake.h"

#include "common/base/min.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

msg_feature_request feature_intake_request(const feature_intake *f, const draft_setup *m) {
  if (m->reader < 0) return (msg_feature_request){0};
  const drafter_wants *w = &m->drafters[m->reader].wants;
  return (msg_feature_request){.taps = w->taps,
                               .tap_count = w->tap_count,
                               .type = w->type,
                               .fc = w->fc,
                               .from = f->next,
                               .horizon = w->horizon};
}

/* A row of another head's fc would be as wide, but its name is another one. */
static bool is_own(const draft_setup *m, const msg_feature_grant *grant) {
  const drafter_wants *w = &m->drafters[m->reader].wants;
  return !hash_is_zero(w->fc) && grant->width == w->fc_width;
}

void feature_intake_begin(feature_intake *f, const draft_setup *m, const draft_session *p) {
  const drafter *d = m->reader < 0 ? NULL : &m->drafters[m->reader];
  *f = (feature_intake){.next = d && d->kind->features_from ? d->kind->features_from(d->self, p->slot) : 0};
}

/* No drafter waits for features that do not come: those before `from`, or, f NULL, any. */
static void tell(const draft_setup *m, const draft_session *p, const drafter_features *f) {
  if (m->reader >= 0) m->drafters[m->reader].kind->features(m->drafters[m->reader].self, p->slot, f);
}

void feature_intake_granted(feature_intake *f, const draft_setup *m, const draft_session *p,
                            const msg_feature_grant *grant) {
  const msg_feature_request wanted = feature_intake_request(f, m);
  bool wants = wanted.tap_count > 0 && grant->type == wanted.type;
  bool fits = wants && (!grant->fused || is_own(m, grant));
  f->grant = fits ? *grant : (msg_feature_grant){0};
  f->refused = false;
  f->bytes = 0;
  if (!fits)
    tell(m, p, NULL);
  else if (grant->from > f->next && f->next > 0)
    tell(m, p, &(drafter_features){.base = grant->from, .width = grant->width, .fused = grant->fused});
}

bool feature_intake_is_due(const feature_intake *f) {
  return f->bytes >= WIRE_FEATURES_CREDIT / 2;
}

static float widened(wire_type type, const uint8_t *at) {
  uint32_t bits = 0;
  float value;
  if (type == WIRE_F32) {
    memcpy(&bits, at, sizeof bits);
  } else {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    bits = (uint32_t)half << 16;
  }
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* False: a value is not finite. */
static bool widen(const msg_features *x, int32_t skip, float *out) {
  size_t size = wire_type_size(x->type), width = (size_t)x->width, count = (size_t)(x->count - skip) * width;
  const uint8_t *at = x->rows + (size_t)skip * width * size;
  for (size_t i = 0; i < count; i++, at += size) {
    out[i] = widened(x->type, at);
    if (!isfinite(out[i])) return false;
  }
  return true;
}

static int check(const feature_intake *f, const draft_session *p, const msg_features *x, err *e) {
  if (x->width != f->grant.width || x->type != f->grant.type)
    return err_set(e, ERR_ARG, "features of %d values came, and rows of %d were granted", x->width,
                   f->grant.width);
  if (x->base + x->count > p->options.context)
    return err_set(e, ERR_ARG, "features came for position %d, and the session has %d",
                   x->base + x->count - 1, p->options.context);
  return ERR_OK;
}

static int hand_on(const feature_intake *f, const draft_setup *m, const draft_session *p,
                   const msg_features *x, int32_t skip, err *e) {
  const drafter *d = &m->drafters[m->reader];
  size_t values = (size_t)(x->count - skip) * (size_t)x->width;
  float *rows = malloc(values ? values * sizeof *rows : 1);
  if (!rows) return err_set(e, ERR_NOMEM, "no memory for features");
  int rc = widen(x, skip, rows) ? ERR_OK : err_set(e, ERR_ARG, "features came that are no numbers");
  if (rc == ERR_OK)
    d->kind->features(d->self, p->slot,
                      &(drafter_features){x->base + skip, x->count - skip, x->width, f->grant.fused, rows});
  free(rows);
  return rc;
}

int feature_intake_take(feature_intake *f, const draft_setup *m, const draft_session *p,
                        const msg_features *x, err *e) {
  int32_t end = x->base + x->count;
  if (f->grant.width == 0 || f->refused || end <= f->next) return ERR_OK;
  int rc = check(f, p, x, e);
  if (rc == ERR_OK) rc = hand_on(f, m, p, x, f->next > x->base ? f->next - x->base : 0, e);
  f->refused = rc == ERR_ARG;
  if (f->refused) tell(m, p, NULL);
  if (rc == ERR_NOMEM)
    tell(m, p, &(drafter_features){.base = end, .width = f->grant.width, .fused = f->grant.fused});
  f->next = end;
  f->bytes += x->size;
  return rc;
}
