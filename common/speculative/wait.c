#include "common/speculative/wait.h"

#include <assert.h>
#include <math.h>

/* --- waiting --- */

#define ARRIVAL_GAIN   (1.0 / 8) /* as for round-trip times (Jacobson 1988) */
#define DEVIATION_GAIN (1.0 / 4)
#define YIELD_GAIN     (1.0 / 8)
#define YIELD_PRIOR    1.1 /* what the first verify counts beside */

static void follow(double *mean, double sample, double gain) {
  *mean += (sample - *mean) * gain;
}

void wait_arrived(wait_history *h, uint64_t after_us) {
  double sample = (double)after_us;
  if (h->arrivals == 0) {
    h->arrival_us = sample;
    h->arrival_dev_us = sample / 2;
  } else {
    follow(&h->arrival_dev_us, fabs(sample - h->arrival_us), DEVIATION_GAIN);
    follow(&h->arrival_us, sample, ARRIVAL_GAIN);
  }
  h->arrivals++;
  h->misses = 0;
}

void wait_missed(wait_history *h) {
  h->misses++;
}

void wait_verified(wait_history *h, int32_t tokens) {
  assert(tokens >= 1);
  if (h->verifies == 0) h->tokens_per_step = YIELD_PRIOR;
  h->verifies++;
  follow(&h->tokens_per_step, tokens,
         fmax(YIELD_GAIN, 1.0 / (h->verifies + 1))); /* the first ones count alike */
}

static double least(double a, double b) {
  return a < b ? a : b;
}

uint64_t wait_for(const wait_history *h, bool draft_attached, bool other_runnable, uint64_t since_sent_us,
                  double step_us, double verify_us) {
  if (!draft_attached || other_runnable || h->misses >= WAIT_MISSES_MAX) return 0;
  if (h->computes) return (uint64_t)(WAIT_STEPS * step_us / (1 << h->misses));
  if (h->verifies == 0 || h->arrivals == 0) return 0;
  /* (wait + verify) / yield < step, solved for wait: the most that waiting can earn. */
  double earned = h->tokens_per_step * step_us - verify_us;
  if (!(earned > 0)) return 0;

  double since = (double)since_sent_us;
  double latest = h->arrival_us + 2 * h->arrival_dev_us - since;
  if (latest <= 0) return 0; /* it should have been here: what kept it is not known to end soon */
  double expected = fmax(h->arrival_us - since, least(h->arrival_dev_us, latest));
  double most = least(WAIT_CAP_US, earned);
  if (expected >= most) return 0;
  return (uint64_t)least(latest, most);
}

/* --- paying --- */

#define PAY_DECAY           (1 - 1.0 / PAY_WINDOW)
#define PAY_OUTLIER         4.0 /* a forward counts as at most so many averages: one preempted step */
#define PAY_CALIBRATE_AFTER 2   /* verifies without knowing plain's cost */
#define PAY_CALIBRATE_EVERY 512 /* verifies after which plain's cost is measured anew */
#define PAY_WORSE           1.03
#define PAY_LOSS            1.0 /* plain steps that the first window of a try may lose */
#define PAY_FAILURES        2   /* in a row, after which another session is not a reason to try again */
#define PAY_TRUST           (4 * PAY_WINDOW) /* verifies after which earlier failures are forgotten */

/* The first of a window has no average of its own yet: plain's serves, so that one slow verify never decides.
 */
static double usual(const pay_average *own, const pay_average *plain, double us) {
  const pay_average *a = own->forwards > 0 ? own : plain;
  return a->forwards > 0 ? least(us, PAY_OUTLIER * a->us / a->forwards) : us;
}

static double average_add(pay_average *a, int32_t tokens, double us) {
  a->us = a->us * PAY_DECAY + us;
  a->tokens = a->tokens * PAY_DECAY + tokens;
  a->forwards = a->forwards * PAY_DECAY + 1;
  return a->us / a->tokens;
}

static bool worse(const pay_state *p) {
  if (p->plain_steps < PAY_CALIBRATE || p->spec_steps == 0) return false;
  if (p->spec_steps >= PAY_WINDOW) return p->spec_us_per_token > PAY_WORSE * p->plain_us_per_token;
  double lost = p->window_us - p->window_tokens * p->plain_us_per_token;
  return lost > PAY_LOSS * p->plain_us_per_token;
}

static void go_off(pay_state *p, uint64_t steps) {
  p->retry_after = (uint32_t)steps;
  p->lead = p->crowds ? PAY_LEAD : 0;
  p->off = true;
}

static bool turn_off(pay_state *p) {
  uint64_t wait = (uint64_t)PAY_RETRY_FIRST << (p->backoff < 32 ? p->backoff : 32);
  p->backoff++;
  p->resting = false;
  go_off(p, wait < PAY_RETRY_MAX ? wait : PAY_RETRY_MAX);
  return true;
}

static bool rest(pay_state *p) {
  p->resting = true;
  go_off(p, PAY_REST);
  return true;
}

void pay_crowd(pay_state *p, const pay_state *before) {
  if (p->crowds) return;
  p->crowds = true;
  p->plain = (pay_average){0}; /* it may have been at work already */
  p->plain_steps = 0;
  rest(p);
  if (before->backoff < PAY_FAILURES || !before->off || before->resting ||
      before->retry_after <= p->retry_after)
    return;
  p->resting = false;
  p->backoff = before->backoff;
  p->retry_after = before->retry_after;
}

static bool turn_on(pay_state *p) {
  p->off = p->resting = false;
  p->lead = p->crowds ? PAY_LEAD : 0;
  p->spec_steps = 0;
  p->since_plain = 0;
  p->spec = (pay_average){0};
  p->window_us = p->window_tokens = 0;
  return true;
}

static void record_plain(pay_state *p, int32_t tokens, double us) {
  p->plain_us_per_token = average_add(&p->plain, tokens, usual(&p->plain, &p->plain, us));
  p->plain_steps++;
  p->since_plain = 0;
}

static void record_spec(pay_state *p, int32_t tokens, double us) {
  us = usual(&p->spec, &p->plain, us);
  p->spec_us_per_token = average_add(&p->spec, tokens, us);
  p->spec_steps++;
  p->since_plain++;
  p->window_us += us;
  p->window_tokens += tokens;
  if (p->spec_steps == PAY_TRUST) p->backoff = 0;
}

/* Does a step of a draft that computes count? Until its first nodes come it may have to catch up. */
static bool leads(pay_state *p, int32_t nodes) {
  if (nodes) p->lead = 0;
  if (p->lead == 0) return false;
  p->lead--;
  return true;
}

static bool record_off(pay_state *p, int32_t nodes, int32_t tokens, double us) {
  if (nodes) return false; /* was in flight when it was turned off */
  if (!leads(p, 0)) record_plain(p, tokens, us);
  if (p->retry_after) p->retry_after--;
  return p->retry_after == 0 && turn_on(p);
}

bool pay_record(pay_state *p, int32_t nodes, int32_t tokens, double us) {
  assert(tokens >= 1);
  if (p->off) return record_off(p, nodes, tokens, us);
  if (leads(p, nodes)) return false;
  if (nodes || p->crowds)
    record_spec(p, tokens, us);
  else
    record_plain(p, tokens, us);
  if (worse(p)) return turn_off(p);
  return p->crowds && p->since_plain >= PAY_CALIBRATE_EVERY && rest(p);
}

bool pay_allows(const pay_state *p) {
  if (p->off) return false;
  bool unknown = p->plain_steps < PAY_CALIBRATE && p->spec_steps >= PAY_CALIBRATE_AFTER;
  return p->crowds || (!unknown && p->since_plain < PAY_CALIBRATE_EVERY);
}
