#include "draft_worker/pacing.h"

#include "common/speculative/policy_constants.h"
#include <math.h>

void pacing_forward(pacing_costs *c, double us) {
  average_add(&c->forward_us, us);
}

void pacing_replied(pacing *t) {
  t->forwards++;
}

void pacing_reply(pacing_costs *c, double best) {
  if (c->best.count == 0) average_add(&c->best, POLICY_TRUST_PRIOR);
  average_add(&c->best, best);
}

void pacing_tokens(pacing *t, uint64_t now_us, bool stalled) {
  if (t->sent_us && !stalled) average_add(&t->verify_us, (double)(now_us - t->sent_us));
  t->sent_us = 0;
  t->forwards = 0;
}

void pacing_sent(pacing *t, uint64_t now_us) {
  t->sent_us = now_us;
}

double pacing_worth(double probability) {
  return fmax(0, probability - POLICY_ROW);
}

double pacing_best(const pacing_costs *c) {
  return c->best.count ? c->best.mean : POLICY_TRUST_PRIOR;
}

bool pacing_goes_on(const pacing *t, const pacing_costs *c, double tokens, double gain) {
  double forward = c->forward_us.mean;
  double verify = t->verify_us.count ? t->verify_us.mean : POLICY_RATIO * forward;
  return gain * (t->forwards * forward + verify) > tokens * forward;
}
