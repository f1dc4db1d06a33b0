#include "common/speculative/policy.h"

#include "common/speculative/policy_constants.h"
#include <assert.h>
#include <math.h>

/* --- a session --- */

static void turn_on(policy *p) {
  p->state = POLICY_ON;
  p->misses = 0;
  p->tries++;
}

static void turn_off(policy *p) {
  p->state = POLICY_OFF;
  p->quiet = 0;
}

/* What may be lost before anything is known. */
static double first(const policy *p) {
  return p->colocated ? POLICY_SAVED : POLICY_FIRST;
}

/* What the target's sessions together may still lose. */
static double left(const policy *p, const policy_record *all) {
  return first(p) + fmin(0, all->account);
}

/* No loss keeps all sessions off for longer than one of POLICY_DEBT credits. */
static void book(const policy *p, policy_record *all, double net) {
  all->account = fmax(-POLICY_DEBT * first(p), fmin(all->account + net, POLICY_EARNED));
}

void policy_begin(policy *p, const policy *before) {
  p->all = before->all;
  p->balance = left(p, &before->all);
  p->net = fmin(0, before->all.account);
  p->quiet = POLICY_QUIET;
  p->reply_us = before->reply_us;
  if (p->reply_us.count > 1) p->reply_us.count = 1; /* other drafts may serve this session */
  if (p->colocated || p->balance < POLICY_TRY)
    p->state = POLICY_OFF;
  else
    turn_on(p);
}

/* Where it would begin so at its first step. */
static void begin_off(policy *p, const policy *before) {
  if (p->state == POLICY_NEW && left(p, &before->all) < POLICY_TRY) policy_begin(p, before);
}

void policy_colocated(policy *p, const policy *before) {
  if (p->colocated) return;
  p->colocated = true;
  if (p->state == POLICY_ON) turn_off(p);
  begin_off(p, before);
}

void policy_beside(policy *p, const policy *before) {
  p->beside = true;
  begin_off(p, before);
}

bool policy_is_quiet(const policy *p) {
  return !(p->colocated || p->beside) || p->state == POLICY_NEW ||
         (p->state == POLICY_OFF && p->quiet >= POLICY_QUIET);
}

/* --- what it earns --- */

static double kept(const policy_record *r, double prior, double weight) {
  return fmin(1, (r->accepted + prior * weight) / (r->promised + weight));
}

static double trust(const policy *p) {
  return kept(&p->own, kept(&p->all, POLICY_TRUST_PRIOR, POLICY_TRUST_WEIGHT), POLICY_TRUST_OTHERS);
}

static void record(policy_record *r, const policy_step *s, double net) {
  double fade = 1 - 1.0 / POLICY_WINDOW;
  r->promised = r->promised * fade + s->promised;
  r->accepted = r->accepted * fade + (s->tokens - 1);
  r->net = r->net * fade + net;
}

float policy_total(const policy *p, float total) {
  return total + (float)log(trust(p));
}

/* The other sessions lend a session what they have gained lately: when many sessions share a forward, each
 * gains little at a step, and one that has had bad luck would stay plain for long while all others slow it.
 */
static double credit(const policy *p) {
  return p->balance + fmax(0, fmin(p->all.net - p->own.net, POLICY_SAVED));
}

static void turn(policy *p, const policy_step *s) {
  bool must_measure = (p->colocated || p->beside) && !s->plain_known; /* which needs a draft that is quiet */
  double most = p->net > 0 ? credit(p) : fmin(credit(p), left(p, &p->all)); /* that it may lose */
  if (p->state == POLICY_ON && (most < 0 || must_measure))
    turn_off(p);
  else if (p->state == POLICY_OFF && most >= POLICY_TRY && !must_measure && policy_is_quiet(p))
    turn_on(p);
}

void policy_forwarded(policy_record *all) {
  if (all->account < 0) all->account *= 1 - 1.0 / POLICY_FORGET;
}

void policy_stepped(policy *p, policy_record *all, const policy_step *s) {
  assert(s->plain_us > 0 && s->tokens >= 1);
  double cost = s->us / s->plain_us;
  if (s->nodes > 0 || (s->waited_us > 0 && s->answered) || (s->offered > 0)) {
    average_add(&p->tokens, s->tokens);
    average_add(&p->cost, cost);
  }
  if (s->waited_us > 0 && s->offered == 0 && !s->answered) p->misses++;
  double net = policy_is_quiet(p) ? 0 : s->tokens - cost;
  if (p->state == POLICY_ON) net = s->tokens - cost - (s->waited_us + POLICY_TELL_US) / s->plain_us;
  record(&p->own, s, net);
  record(all, s, net);
  book(p, all, net);
  p->all = *all;
  p->net += net;
  p->balance = fmin(p->balance + net + POLICY_LOSS * s->tokens, POLICY_SAVED);
  if (p->state == POLICY_OFF) p->quiet++;
  turn(p, s);
}

void policy_arrived(policy *p, double after_us) {
  average_add(&p->arrival_us, after_us);
  p->misses = 0;
}

void policy_replied(policy *p, double after_us) {
  average_add(&p->reply_us, after_us);
}

bool policy_comes_late(const policy *p, double plain_us) {
  return plain_us > 0 && p->reply_us.mean > POLICY_LATE * plain_us;
}

double policy_spare(const policy *p, const policy_record *all) {
  policy now = *p;
  now.all = *all;
  return fmax(0, credit(&now)) / 2;
}

void policy_spend(policy *p, double steps) {
  p->net -= steps;
  p->balance -= steps;
}

/* --- how many nodes --- */

int32_t policy_nodes(const cost_model *c, int32_t roots, double positions, double waited_us,
                     const float *totals, const int32_t *reads, int32_t count) {
  double cost = cost_model_us(c, roots, positions), tokens = roots;
  int32_t kept = 0, most = cost_model_widest_try(c, roots) - roots;
  if (cost == 0) return count < most ? count : most;
  if (!cost_model_fresh(c, roots)) return 0;
  double best = tokens / (cost + waited_us);
  for (int32_t k = 0; k < count && k < most; k++) {
    tokens += exp((double)totals[k]);
    positions += reads[k];
    double rate = tokens / (cost_model_us(c, roots + k + 1, positions) + waited_us);
    if (rate <= best) continue;
    best = rate;
    kept = k + 1;
  }
  return kept;
}

/* --- waiting --- */

double policy_wait(const policy *p, double plain_us) {
  if (p->state != POLICY_ON || p->misses >= POLICY_MISSES) return 0;
  if (p->colocated) return POLICY_TURN * plain_us / (1 << p->misses);
  if (p->tokens.count == 0 || p->arrival_us.count == 0) return 0;
  double earned = (p->tokens.mean - p->cost.mean) * plain_us;
  if (p->arrival_us.mean >= earned) return 0;
  return fmin(earned, p->arrival_us.mean + 2 * p->arrival_us.deviation);
}

/* --- prompts --- */

int32_t policy_piece(const cost_model *c, int32_t left, int32_t most, bool *measures) {
  bool wanted = !cost_model_known(c, POLICY_PROBE);
  *measures = wanted && left == POLICY_PROBE;
  int32_t kept = wanted && left > POLICY_PROBE ? POLICY_PROBE : 0;
  return left - kept < most ? left - kept : most;
}
