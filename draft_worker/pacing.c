#include "draft_worker/pacing.h"

#define GAIN (1.0 / 8)
#define OUTLIER                                                                                              \
  4.0 /* a time above so many times the mean counts as that: a thread that lost its processor                \
       */
#define BEST_PRIOR  0.7 /* what an unknown model's best candidate is believed */
#define RATIO_PRIOR 4.0 /* forwards of the draft that an unknown target's verify takes */

static void follow(double *mean, double sample, double gain) {
  if (*mean == 0) *mean = sample;
  if (sample > OUTLIER * *mean) sample = OUTLIER * *mean;
  *mean += (sample - *mean) * gain;
}

void pacing_forward(pacing_costs *c, double us) {
  follow(&c->forward_us, us, GAIN);
}

void pacing_replied(pacing *t) {
  t->forwards++;
}

void pacing_reply(pacing_costs *c, double best) {
  if (c->best == 0) c->best = BEST_PRIOR;
  c->best += (best - c->best) * GAIN;
}

void pacing_tokens(pacing *t, uint64_t now_us) {
  if (t->sent_us) follow(&t->verify_us, (double)(now_us - t->sent_us), GAIN);
  t->sent_us = 0;
  t->forwards = 0;
}

void pacing_sent(pacing *t, uint64_t now_us) {
  t->sent_us = now_us;
}

bool pacing_goes_on(const pacing *t, const pacing_costs *c, double tokens, double frontier) {
  double verify = t->verify_us > 0 ? t->verify_us : RATIO_PRIOR * c->forward_us;
  double gain = frontier * (c->best > 0 ? c->best : BEST_PRIOR), spent = t->forwards * c->forward_us;
  return gain * (spent + verify) > tokens * c->forward_us;
}
