/* feature_intake.h - the features of one session as they come from its target: in order, checked, and widened
 * to f32 for the drafter that reads them. Rules: wire/PROTOCOL.md, section 9. */
#pragma once

#include "draft_worker/draft_session.h"

typedef struct feature_intake {
  msg_feature_grant grant; /* width 0: none come */
  bool refused;            /* something else than what was granted has come: nothing more is taken */
  int32_t next;            /* the features before this position have come, or are lost */
  uint32_t bytes;          /* that have come since `next` was named to the target */
} feature_intake;

/* After every OPEN: what has come before counts where the drafter still has rows of it. */
void feature_intake_begin(feature_intake *f, const draft_setup *m, const draft_session *p);
/* What ATTACH asks for; no taps where no drafter reads features. */
msg_feature_request feature_intake_request(const feature_intake *f, const draft_setup *m);
/* ATTACHED has come. What nobody asked for is not taken. The drafter is told what will not come. */
void feature_intake_granted(feature_intake *f, const draft_setup *m, const draft_session *p,
                            const msg_feature_grant *grant);
/* Gives the drafter what is new of a FEATURES. ERR_ARG: it is not what was granted, or not finite: none is
 * taken any more, and the drafter is told so. ERR_NOMEM: these rows are lost. */
int feature_intake_take(feature_intake *f, const draft_setup *m, const draft_session *p,
                        const msg_features *x, err *e);
/* Has so much come that the target should be told? */
bool feature_intake_is_due(const feature_intake *f);
