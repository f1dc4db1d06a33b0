#include "target_worker/speculation.h"

#include "common/base/min.h"
#include "common/speculative/policy_constants.h"

#include <math.h>
#include <stddef.h>

/* --- whether --- */

bool speculation_allowed(const speculation *s, bool lockstep) {
  return !s->disabled && (lockstep || s->policy.state != POLICY_OFF);
}

bool speculation_is_off(const speculation *s) {
  return s->policy.state == POLICY_OFF;
}

bool speculation_is_quiet(const speculation *s) {
  return s->policy.state == POLICY_OFF && (s->policy.colocated || s->policy.beside);
}

bool speculation_is_undisturbed(const speculation *s) {
  return policy_is_quiet(&s->policy);
}

bool speculation_is_beside(const speculation *s) {
  return s->policy.beside && !s->disabled && !speculation_is_off(s);
}

bool speculation_is_unpaid(const speculation *s) {
  return speculation_is_off(s) && (s->policy.tries || s->policy.net < 0);
}

const char *speculation_off_reason(const speculation *s) {
  if (s->disabled) return s->disabled;
  if (!speculation_is_off(s)) return NULL;
  return speculation_is_unpaid(s) ? "the draft did not pay for itself"
                                  : "the answer was over before the draft could show that it pays";
}

double speculation_plain_us(const speculation *s) {
  return s->instead ? s->instead_us / (double)s->instead : 0;
}

/* --- how many --- */

void speculation_offer(const speculation *s, float *totals, int32_t count) {
  for (int32_t i = 0; i < count; i++) totals[i] = policy_total(&s->policy, totals[i]);
}

int32_t speculation_width(const speculation_shared *all, int32_t roots, double plain_reads, double waited_us,
                          const float *totals, const int32_t *reads, int32_t count) {
  return policy_nodes(&all->costs, roots, plain_reads, waited_us, totals, reads, count);
}

int32_t speculation_prompt_rows(const speculation_shared *all, int32_t left, int32_t most, bool *measures) {
  return policy_piece(&all->costs, left, most, measures);
}

int32_t speculation_prompts_beside(const speculation_shared *all, int32_t most) {
  double row = all->prompt_row_us.mean, rows = row > 0 ? POLICY_BESIDE_US / row : 0;
  return (int32_t)fmin(fmax(rows, POLICY_BESIDE_ROWS), most);
}

/* A head's better guesses win about a plain step in so many tokens (docs/decisions/drafts.md). */
#define TOKENS_A_STEP 12

int32_t speculation_repeat_rows(const speculation *s, const speculation_shared *all, int32_t tokens,
                                int32_t position, int32_t most, bool begun) {
  double step = cost_model_us(&all->costs, 1, position), won = (double)tokens / TOKENS_A_STEP;
  if (step == 0) return begun ? 0 : most;
  if (begun) won = fmin(won, policy_spare(&s->policy, &all->record));
  while (most > 0 && cost_model_us(&all->costs, most, (double)most * position) > won * step) most /= 2;
  return most;
}

void speculation_repeated(speculation *s, const speculation_shared *all, int32_t rows, int32_t position) {
  double step = cost_model_us(&all->costs, 1, position);
  if (rows > COST_ROWS_MAX) rows = COST_ROWS_MAX;
  if (step > 0 && rows > 0)
    policy_spend(&s->policy, cost_model_us(&all->costs, rows, (double)rows * position) / step);
}

/* --- what is learnt --- */

bool speculation_comes_late(const speculation *s) {
  return policy_comes_late(&s->policy, s->plain_us);
}

static const policy none;

void speculation_colocated(speculation *s, const speculation_shared *all) {
  policy_colocated(&s->policy, all ? &all->last : &none);
}

void speculation_beside(speculation *s, const speculation_shared *all) {
  policy_beside(&s->policy, all ? &all->last : &none);
}

double speculation_reply_us(const speculation_shared *all) {
  return all->last.reply_us.mean;
}

void speculation_replied(speculation *s, uint64_t after_us) {
  policy_replied(&s->policy, (double)after_us);
}

void speculation_node_arrived(speculation *s, uint64_t after_us) {
  policy_arrived(&s->policy, (double)after_us);
  s->arrived_us = (double)after_us;
}

uint64_t speculation_waited(const speculation *s, uint64_t ready_us, uint64_t now) {
  return s->wait_until_us > ready_us && now > ready_us ? now - ready_us : 0;
}

uint64_t speculation_begin_step(speculation *s, uint64_t ready_us, uint64_t now, int32_t offered,
                                int32_t nodes, double promised, bool drafts_done) {
  uint64_t waited = speculation_waited(s, ready_us, now);
  uint64_t due = waited ? min_u64(waited, s->wait_until_us - ready_us) : 0; /* the rest is no draft's fault */
  s->step = (policy_step){.waited_us = (double)due,
                          .answered = drafts_done,
                          .offered = offered,
                          .nodes = nodes,
                          .promised = promised};
  s->wait_until_us = 0;
  return waited;
}

/* Of many rows, so that what a forward costs anyhow hardly counts. */
static void measure_prompts(speculation_shared *all, const speculation_forward *f) {
  double steps = f->steps > 0 ? cost_model_us(&all->costs, f->rows, f->reads) : 0;
  if (f->prompt_rows >= POLICY_BESIDE_ROWS && f->disturbed == 0 && f->us > steps)
    average_add(&all->prompt_row_us, (f->us - steps) / f->prompt_rows);
}

/* Plain forwards before those beside a draft are compared with quiet ones. */
#define BESIDE_SAMPLES 8

/* Do plain forwards beside a draft take less than they are said to cost without? No draft makes them quicker,
 * so that was measured while something else slowed them. */
static bool costs_too_much(speculation_shared *all, const speculation_forward *f) {
  const double plain = cost_model_us(&all->costs, f->rows, f->reads);
  if (plain > 0) average_add(&all->slowed, f->us / plain);
  return plain > 0 && all->slowed.count >= BESIDE_SAMPLES && all->slowed.mean < 1;
}

void speculation_measured(speculation_shared *all, const speculation_forward *f) {
  all->forward = *f;
  policy_forwarded(&all->record);
  if (f->unusual || f->rows > COST_ROWS_MAX || f->us <= 0) return;
  if (f->prompt_rows > 0) {
    measure_prompts(all, f);
    return;
  }
  all->quiet += f->disturbed == 0 && f->rows == f->steps;
  if (f->disturbed == 0 || f->rows > f->steps || costs_too_much(all, f))
    cost_model_measured(&all->costs, f->rows, f->reads, f->us);
}

void speculation_read(speculation_shared *all, double reads, double us) {
  cost_model_read(&all->costs, reads, us);
}

/* How much longer a forward without nodes took than its rows do, up to POLICY_OUTLIER times that. */
static double slowed_us(const speculation_shared *all, double plain) {
  const speculation_forward *f = &all->forward;
  double usual = plain + f->prompt_rows * all->prompt_row_us.mean;
  if (f->prompt_rows > 0 && all->prompt_row_us.count == 0) return 0;
  return fmin(f->us, POLICY_OUTLIER * usual) - usual;
}

/* Sets what the step would have cost plainly, which is an equal share of the sessions' plain forward, and
 * what it cost: that share, and a share of what the nodes added, in proportion to the session's nodes. Both
 * come from the cost model, because the nodes are not to blame when something disturbs a single forward. But
 * the time of plain steps beside drafts that compute counts, up to POLICY_OUTLIER times the plain cost, and
 * the sessions of these drafts bear all of what it is more. */
static void price(speculation *s, const speculation_shared *all) {
  const speculation_forward *f = &all->forward;
  bool known = f->steps <= COST_ROWS_MAX && f->rows <= COST_ROWS_MAX;
  double plain = known ? cost_model_us(&all->costs, f->steps, f->plain_reads) : 0;
  double us = plain > 0 ? plain : fmax(f->us, 1);
  s->plain_us = us;
  s->step.plain_us = us / f->steps;
  s->step.us = s->step.plain_us;
  s->step.plain_known = plain > 0 && cost_model_fresh(&all->costs, f->steps);
  if (s->policy.beside && all->quiet < BESIDE_SAMPLES)
    s->step.plain_known = false; /* the first steps of a program take longer than others */
  if (plain > 0 && f->rows > f->steps)
    s->step.us +=
        (cost_model_us(&all->costs, f->rows, f->reads) - plain) * s->step.nodes / (f->rows - f->steps);
  else if (plain > 0 && f->disturbed > 0 && !f->guessed && !speculation_is_undisturbed(s))
    s->step.us += slowed_us(all, plain) / f->disturbed;
}

/* Only what was measured counts: not a plain step's time that was guessed from wider ones. */
static void count_instead(speculation *s, const speculation_shared *all, int32_t tokens) {
  int32_t steps = all->forward.steps;
  if (steps > COST_ROWS_MAX || !cost_model_known(&all->costs, steps)) return;
  s->instead_us += s->plain_us * tokens;
  s->instead += tokens;
}

void speculation_stepped(speculation *s, speculation_shared *all, int32_t tokens, int32_t drafted) {
  /* No forward was ever measured: this one was not, because another session failed in it. */
  if (all->forward.steps == 0) return;
  s->step.tokens = drafted;
  price(s, all);
  count_instead(s, all, tokens);
  if (drafted == 0) return;
  if (s->policy.state == POLICY_NEW) policy_begin(&s->policy, &all->last);
  policy_stepped(&s->policy, &all->record, &s->step);
  all->last = s->policy;
}

/* --- how long --- */

void speculation_wait(speculation *s, uint64_t now, bool draft_attached, bool another_can_run) {
  s->arrived_us = 0;
  bool waits = draft_attached && !another_can_run;
  s->wait_until_us = now + (waits ? (uint64_t)policy_wait(&s->policy, s->plain_us) : 0);
}
