/* libs: speculative */
#include "common/speculative/policy.h"

#include "common/speculative/policy_constants.h"
#include "tests/support/random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#define PLAIN 15000.0 /* us: a plain step, in the order of a small model on a CPU */

static policy begun(void) {
  policy p = {0}, none = {0};
  policy_begin(&p, &none);
  return p;
}

/* --- on or off --- */

typedef struct draft_model {
  double verify; /* of a forward with nodes, in plain steps */
  double rate;   /* probability that the next node of the chain is right */
  int32_t depth; /* nodes in the chain */
  double slows;  /* colocated: how much longer a plain step takes while the draft is told of tokens */
} draft_model;

typedef struct outcome {
  double steps, tokens; /* what it took, in plain steps; what it gave */
  int32_t off;          /* steps with speculation off */
} outcome;

/* Decodes so many tokens with nodes always at hand; the policy sees what a target would tell it. */
static outcome decode(policy *p, const draft_model *d, int32_t tokens, uint64_t seed) {
  outcome o = {0};
  while (o.tokens < tokens) {
    bool on = p->state == POLICY_ON;
    policy_step s = {.plain_us = PLAIN, .plain_known = true, .us = PLAIN, .tokens = 1};
    s.nodes = s.offered = on ? d->depth : 0;
    while (on && s.tokens <= d->depth && random_below(&seed, 1000) < d->rate * 1000) s.tokens++;
    if (on) s.us = PLAIN * (d->depth ? d->verify : d->slows);
    for (int32_t i = 1; on && i <= d->depth; i++) s.promised += pow(d->rate, i);
    o.steps += s.us / PLAIN;
    o.tokens += s.tokens;
    o.off += !on;
    policy_forwarded(&p->all);
    policy_stepped(p, &p->all, &s);
  }
  return o;
}

/* POLICY_FIRST and POLICY_LOSS: by construction no more is lost than these, and the step that went too far.
 */
static void test_a_useless_draft_loses_a_bounded_share(void **state) {
  (void)state;
  static const double verifies[] = {1.02, 1.05, 1.2, 1.5, 2, 3};
  static const int32_t lengths[] = {12, 256, 1000, 20000};
  for (size_t v = 0; v < sizeof verifies / sizeof *verifies; v++)
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
      policy p = begun();
      draft_model d = {verifies[v], 0, 8, 0};
      outcome o = decode(&p, &d, lengths[l], 3);
      double lost = o.steps - o.tokens, allowed = POLICY_FIRST + POLICY_LOSS * o.tokens + verifies[v];
      if (lost > allowed)
        fail_msg("%.2f, %d tokens: lost %.1f of %.1f", verifies[v], lengths[l], lost, allowed);
    }
}

/* POLICY_TRY, POLICY_FORGET: it is tried again as soon as, and not before, the share has paid for a try and
 * the loss has faded until another one may be lost. The try lasts a few steps, since the nodes of a draft
 * that computes beside the target come after the first. */
static void test_a_try_is_saved_up_for(void **state) {
  (void)state;
  policy p = begun();
  draft_model d = {2, 0, 8, 0};
  while (p.state == POLICY_ON) decode(&p, &d, 1, 1);
  double needed = (POLICY_TRY - p.balance) / POLICY_LOSS;
  double faded = log((POLICY_FIRST - POLICY_TRY) / -p.all.account) / log(1 - 1.0 / POLICY_FORGET);
  int32_t steps = 0, least = (int32_t)fmax(needed, faded);
  for (; p.state == POLICY_OFF; steps++) decode(&p, &d, 1, 1);
  assert_true(faded > 0);
  assert_in_range(steps, least, least + 2);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(p.state, POLICY_ON);
    policy_stepped(&p, &p.all,
                   &(policy_step){.plain_us = PLAIN, .plain_known = true, .us = 1.02 * PLAIN, .tokens = 1});
  }
}

static void test_a_good_draft_stays_on(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    policy p = begun();
    draft_model d = {1.4, 0.8, 5, 0};
    outcome o = decode(&p, &d, 2000, seed);
    assert_true(o.steps < 0.5 * o.tokens);
    assert_true(o.off < 80);
  }
}

/* POLICY_SAVED: what a good draft has earned lets it fail for a while, but not for long. */
static void test_a_draft_that_turns_bad_is_turned_off(void **state) {
  (void)state;
  policy p = begun();
  draft_model good = {1.4, 0.9, 5, 0}, bad = {1.4, 0, 5, 0};
  decode(&p, &good, 2000, 1);
  assert_true(p.balance > POLICY_SAVED - 2);
  outcome o = decode(&p, &bad, 200, 1);
  assert_true(o.steps - o.tokens < POLICY_SAVED + POLICY_LOSS * 200 + 1);
  assert_true(o.off > 150);
  o = decode(&p, &good, 400, 1);
  assert_true(o.steps < 0.6 * o.tokens); /* and it comes back */
}

/* POLICY_TELL_US: to tell a draft that never has a node worth a row costs, too. */
static void test_a_draft_that_is_told_in_vain_is_turned_off(void **state) {
  (void)state;
  policy p = begun();
  policy_step s = {.plain_us = 1500, .plain_known = true, .us = 1500, .tokens = 1};
  int32_t on = 0;
  for (int i = 0; i < 1000; i++) {
    policy_stepped(&p, &p.all, &s);
    on += p.state == POLICY_ON;
  }
  double each = POLICY_TELL_US / 1500.0 - POLICY_LOSS;
  assert_true(on < POLICY_FIRST / each + 1000 * POLICY_LOSS / (each + POLICY_LOSS) + 10);
}

/* --- from session to session --- */

/* What failed is not given a new credit; what paid is. The record of all sessions goes on. */
static void test_a_session_begins_where_others_have_got_to(void **state) {
  (void)state;
  policy before = begun(), p = {0};
  draft_model bad = {2, 0, 8, 0}, good = {1.4, 0.8, 5, 0};
  decode(&before, &bad, 60, 1);
  policy_begin(&p, &before);
  assert_true(before.all.account < 0 && p.balance == POLICY_FIRST + before.all.account);
  assert_true(p.net == before.all.account && p.state == POLICY_OFF);
  before = begun();
  decode(&before, &good, 60, 1);
  p = (policy){0};
  policy_begin(&p, &before);
  assert_true(p.state == POLICY_ON && p.balance == POLICY_FIRST && p.net == 0);
  assert_true(p.all.promised > 0 && p.all.promised == before.all.promised &&
              p.all.accepted == before.all.accepted);
}

/* POLICY_FIRST is that of all of them together, however many begin before the first has lost it. */
static void test_sessions_at_the_same_time_share_a_credit(void **state) {
  (void)state;
  enum { SESSIONS = 16 };
  policy p[SESSIONS];
  policy_record all = {0};
  policy_step told = {.plain_us = PLAIN, .plain_known = true, .us = PLAIN, .tokens = 1};
  double lost = 0;
  for (int i = 0; i < SESSIONS; i++) p[i] = begun();
  for (int step = 0; step < 200; step++) {
    policy_forwarded(&all);
    for (int i = 0; i < SESSIONS; i++) {
      policy_step s = told;
      if (p[i].state == POLICY_ON) s.us = 1.2 * PLAIN;
      lost += s.us / PLAIN - 1;
      policy_stepped(&p[i], &all, &s);
    }
  }
  assert_true(lost < POLICY_FIRST + SESSIONS * 0.21); /* alone, each would lose as much */
}

/* POLICY_DEBT: a stall that costs hundreds of steps keeps them off for no longer than a few credits do. */
static void test_a_great_loss_is_forgotten_too(void **state) {
  (void)state;
  policy p = begun(), next = {0};
  policy_step s = {.plain_us = PLAIN, .plain_known = true, .us = 500 * PLAIN, .tokens = 1};
  policy_stepped(&p, &p.all, &s);
  assert_true(p.all.account == -POLICY_DEBT * POLICY_FIRST);
  for (int i = 0; i < 2 * POLICY_FORGET; i++) policy_forwarded(&p.all);
  policy_begin(&next, &p);
  assert_int_equal(next.state, POLICY_ON);
}

/* POLICY_EARNED: what they have gained lets new ones go on, though the last ones end badly. */
static void test_gains_outlast_a_bad_end(void **state) {
  (void)state;
  policy p = begun();
  draft_model good = {1.4, 0.8, 5, 0}, bad = {1.4, 0, 5, 0};
  decode(&p, &good, 200, 1);
  assert_true(p.all.account == POLICY_EARNED);
  decode(&p, &bad, 100, 1);
  policy next = {0};
  policy_begin(&next, &p);
  assert_true(next.state == POLICY_ON && next.balance == POLICY_FIRST);
}

/* --- from session to session at the same time --- */

/* POLICY_TRUST_OTHERS: one bad start does not put a session's nodes far behind those of its neighbours. */
static void test_a_session_with_bad_luck_is_judged_by_all(void **state) {
  (void)state;
  policy unlucky = begun(), lucky = begun();
  policy_record all = {0};
  policy_step good = {.plain_us = PLAIN,
                      .plain_known = true,
                      .us = PLAIN,
                      .nodes = 2,
                      .offered = 2,
                      .promised = 2,
                      .tokens = 3};
  policy_step bad = good;
  bad.tokens = 1;
  for (int i = 0; i < 50; i++) policy_stepped(&lucky, &all, &good);
  policy_stepped(&unlucky, &all, &bad);
  double trusted = exp((double)policy_total(&unlucky, 0));
  assert_true(trusted > 0.9 * POLICY_TRUST_OTHERS / (POLICY_TRUST_OTHERS + 2) && trusted < 0.9);
  for (int i = 0; i < 50; i++) policy_stepped(&unlucky, &all, &bad); /* its own record decides in the end */
  assert_true(exp((double)policy_total(&unlucky, 0)) < 0.1);
}

/* POLICY_SAVED: what others have gained keeps a session on, but not for ever. */
static void test_the_gains_of_others_are_lent(void **state) {
  (void)state;
  policy gains = begun(), loses = begun(), alone = begun();
  policy_record all = {0};
  policy_step good = {.plain_us = PLAIN, .plain_known = true, .us = PLAIN, .tokens = 2};
  policy_step bad = {.plain_us = PLAIN, .plain_known = true, .us = 1.5 * PLAIN, .tokens = 1};
  int32_t on[2] = {0, 0};
  for (int i = 0; i < 100; i++) {
    policy_stepped(&gains, &all, &good);
    policy_stepped(&loses, &all, &bad);
    policy_stepped(&alone, &alone.all, &bad);
    on[0] += loses.state == POLICY_ON;
    on[1] += alone.state == POLICY_ON;
  }
  assert_true(on[0] > 2 * on[1]);
  assert_true(on[0] < (POLICY_FIRST + POLICY_SAVED + 100 * POLICY_LOSS) / 0.5 + 1);
}

/* --- a draft on the target's processors --- */

/* POLICY_QUIET: it begins only when plain steps have been measured without it, and they are measured only
 * when it has gone quiet. */
static void test_a_colocated_draft_is_judged_against_silence(void **state) {
  (void)state;
  policy p = {0}, none = {0};
  policy_colocated(&p, &none);
  assert_true(policy_is_quiet(&p)); /* nothing has been told to it */
  policy_begin(&p, &none);
  assert_int_equal(p.state, POLICY_OFF);
  policy_step s = {.plain_us = PLAIN, .us = PLAIN, .tokens = 1};
  policy_stepped(&p, &p.all, &s);
  assert_int_equal(p.state, POLICY_OFF);
  s.plain_known = true;
  policy_stepped(&p, &p.all, &s);
  assert_int_equal(p.state, POLICY_ON);
  assert_false(policy_is_quiet(&p));
  s.plain_known = false; /* too long ago */
  policy_stepped(&p, &p.all, &s);
  assert_int_equal(p.state, POLICY_OFF);
  for (int i = 0; i < POLICY_QUIET; i++) {
    assert_false(policy_is_quiet(&p));
    policy_stepped(&p, &p.all, &s);
  }
  assert_true(policy_is_quiet(&p));
}

/* Every step is slower while it is on, whether its nodes come or not. */
static void test_a_colocated_draft_must_earn_what_it_slows(void **state) {
  (void)state;
  policy p = {0}, none = {0};
  policy_colocated(&p, &none);
  policy_begin(&p, &none);
  draft_model never = {0, 0, 0, 1.8}, good = {1.9, 0.9, 4, 1.8};
  outcome o = decode(&p, &never, 500, 1);
  assert_true(o.steps - o.tokens < POLICY_SAVED + POLICY_LOSS * 500 + 1);
  p = (policy){0};
  policy_colocated(&p, &none);
  policy_begin(&p, &none);
  o = decode(&p, &good, 500, 1);
  assert_true(o.steps < 0.7 * o.tokens);
}

/* It still computes for POLICY_QUIET steps, and what that slows is its fault. */
static void test_what_a_colocated_draft_slows_after_its_end_counts(void **state) {
  (void)state;
  policy p = {0}, none = {0};
  policy_colocated(&p, &none);
  policy_begin(&p, &none);
  policy_step s = {.plain_us = PLAIN, .us = PLAIN, .tokens = 1, .plain_known = true};
  policy_stepped(&p, &p.all, &s);
  s.us = 20 * PLAIN;
  policy_stepped(&p, &p.all, &s);
  assert_int_equal(p.state, POLICY_OFF);
  s.us = 2 * PLAIN;
  for (int i = 0; i < 2 * POLICY_QUIET; i++) {
    double before = p.balance;
    bool quiet = policy_is_quiet(&p);
    policy_stepped(&p, &p.all, &s);
    assert_int_equal(quiet, i >= POLICY_QUIET);
    assert_true(quiet ? p.balance > before : p.balance < before - 0.9);
  }
}

/* Where others have lost what may be lost, a session begins off at once, and its draft reads no prompt. */
static void test_a_colocated_draft_that_has_not_paid_is_off_from_the_start(void **state) {
  (void)state;
  policy p = {0}, before = {.all.account = -POLICY_SAVED}, gained = {.all.account = 1};
  policy_colocated(&p, &gained);
  assert_int_equal(p.state, POLICY_NEW);
  p = (policy){0};
  policy_colocated(&p, &before);
  assert_int_equal(p.state, POLICY_OFF);
  assert_true(policy_is_quiet(&p));
}

/* A draft beside the target is compared with plain steps while it is quiet, but neither waits for a turn nor
 * begins off unless others have lost what may be lost. */
static void test_a_draft_beside_is_judged_against_silence(void **state) {
  (void)state;
  policy p = {0}, none = {0}, lost = {.all.account = -POLICY_FIRST};
  policy_beside(&p, &none);
  assert_int_equal(p.state, POLICY_NEW);
  policy_begin(&p, &none);
  assert_int_equal(p.state, POLICY_ON);
  assert_false(policy_is_quiet(&p));
  policy_step s = {.plain_us = PLAIN, .us = PLAIN, .tokens = 1};
  policy_stepped(&p, &p.all, &s);
  assert_int_equal(p.state, POLICY_OFF); /* what is plain has to be measured */
  for (int i = 0; i < POLICY_QUIET; i++) {
    assert_false(policy_is_quiet(&p));
    policy_stepped(&p, &p.all, &s);
  }
  assert_true(policy_is_quiet(&p));
  s.plain_known = true;
  policy_stepped(&p, &p.all, &s);
  assert_int_equal(p.state, POLICY_ON);
  assert_true(policy_wait(&p, PLAIN) == 0);
  p = (policy){0};
  policy_beside(&p, &lost);
  assert_int_equal(p.state, POLICY_OFF);
}

/* --- trust --- */

static double trusted(const policy *p) {
  return exp((double)policy_total(p, 0));
}

static void test_promises_count_as_they_were_kept(void **state) {
  (void)state;
  policy p = begun();
  assert_true(fabs(trusted(&p) - POLICY_TRUST_PRIOR) <
              1e-6); /* POLICY_TRUST_PRIOR: before anything is known */
  policy_step s = {.plain_us = PLAIN, .plain_known = true, .us = PLAIN, .nodes = 2, .offered = 2};
  s.promised = 1;
  s.tokens = 1;
  policy_stepped(&p, &p.all, &s);
  double after_one = POLICY_TRUST_PRIOR * POLICY_TRUST_WEIGHT / (1 + POLICY_TRUST_WEIGHT);
  after_one *= POLICY_TRUST_OTHERS / (1 + POLICY_TRUST_OTHERS);
  assert_true(fabs(trusted(&p) - after_one) < 1e-6); /* POLICY_TRUST_WEIGHT: one failure does not decide */
  for (int i = 0; i < 200; i++) policy_stepped(&p, &p.all, &s);
  assert_true(trusted(&p) < 0.05);
  s.promised = s.nodes = s.offered = 0;
  for (int i = 0; i < 5 * POLICY_WINDOW; i++)
    policy_stepped(&p, &p.all, &s); /* POLICY_WINDOW: it is forgotten */
  assert_true(trusted(&p) > 0.4);
  s = (policy_step){.plain_us = PLAIN, .plain_known = true, .us = PLAIN, .nodes = 3, .offered = 3};
  s.promised = 2;
  s.tokens = 4;
  for (int i = 0; i < 200; i++) policy_stepped(&p, &p.all, &s);
  assert_true(trusted(&p) == 1); /* no more than was promised */
}

/* --- how many --- */

static cost_model costs_of(double slope) {
  cost_model c = {0};
  for (int32_t rows = 1; rows <= 64; rows++)
    cost_model_measured(&c, rows, 0, 1000 * (1 + slope * (rows - 1)));
  return c;
}

static void test_as_many_nodes_as_give_the_most_tokens(void **state) {
  (void)state;
  uint64_t rng = 11;
  for (int round = 0; round < 500; round++) {
    double slope = random_below(&rng, 100) / 200.0;
    cost_model c = costs_of(slope);
    float totals[30];
    int32_t reads[30] = {0}, roots = 1 + (int32_t)random_below(&rng, 8),
            count = (int32_t)random_below(&rng, 30), best = 0;
    float total = 0;
    for (int32_t i = 0; i < count; i++) totals[i] = total -= (float)random_below(&rng, 100) / 200;
    double tokens = roots, waited = random_below(&rng, 3000);
    double most = roots / (cost_model_us(&c, roots, 0) + waited);
    for (int32_t k = 1; k <= count; k++) {
      tokens += exp((double)totals[k - 1]);
      double rate = tokens / (cost_model_us(&c, roots + k, 0) + waited);
      if (rate > most) best = k;
      if (rate > most) most = rate;
    }
    assert_int_equal(policy_nodes(&c, roots, 0, waited, totals, reads, count), best);
  }
}

/* Where rows cost in steps, as on a GPU, the nodes that fill a step come after some that do not pay. */
static void test_nodes_fill_a_step_of_the_device(void **state) {
  (void)state;
  cost_model c = {0};
  float totals[15];
  int32_t reads[15] = {0};
  for (int32_t rows = 1; rows <= 16; rows++) cost_model_measured(&c, rows, 0, rows == 1 ? 1000 : 2000);
  for (int32_t i = 0; i < 15; i++) totals[i] = -0.3f;
  assert_int_equal(policy_nodes(&c, 1, 0, 0, totals, reads, 15),
                   15); /* the first of them alone would not pay */
}

static int32_t width_of(void *context, int32_t rows) {
  int32_t width = 1;
  (void)context;
  while (width < rows) width *= 2;
  return width;
}

/* One time tells what its whole step costs, so that a step is filled or not begun, before each of its numbers
 * of rows has been tried: here a step more costs half as much again. Nodes at hand that fill none are all
 * taken.
 */
static void test_only_ends_of_steps_are_chosen(void **state) {
  (void)state;
  uint64_t rng = 5;
  cost_model c = {0};
  bool filled[6] = {false};
  cost_model_steps(&c, width_of, NULL);
  double us = 1000;
  for (int32_t rows = 1; rows <= 32; rows *= 2, us *= 1.5) cost_model_measured(&c, rows, 0, us);
  for (int round = 0; round < 500; round++) {
    float totals[40];
    int32_t reads[40] = {0}, roots = 1 + (int32_t)random_below(&rng, 4),
            count = 1 + (int32_t)random_below(&rng, 40);
    float total = 0, falls = (float)random_below(&rng, 400) / 200;
    for (int32_t i = 0; i < count; i++) totals[i] = total -= falls;
    int32_t rows = roots + policy_nodes(&c, roots, 0, 0, totals, reads, count);
    assert_true(rows == roots || rows == roots + count || rows == width_of(NULL, rows));
    for (int32_t i = 0; i < 6; i++) filled[i] |= rows == 1 << i && rows < roots + count;
  }
  for (int32_t i = 0; i < 6; i++) assert_true(filled[i]);
}

static void test_dear_rows_and_long_contexts_take_fewer_nodes(void **state) {
  (void)state;
  float totals[16];
  int32_t near[16], far[16];
  for (int32_t i = 0; i < 16; i++) {
    totals[i] = -0.15f * (float)(i + 1);
    near[i] = 10;
    far[i] = 20000;
  }
  cost_model cheap = costs_of(0.02), dear = costs_of(0.4);
  int32_t many = policy_nodes(&cheap, 1, 10, 0, totals, near, 16);
  assert_true(many > policy_nodes(&dear, 1, 10, 0, totals, near, 16));
  cheap.spread = 1; /* as a prompt would have told: so much a position */
  cheap.slope = 0.02;
  assert_true(policy_nodes(&cheap, 1, 20000, 0, totals, far, 16) < many);
}

/* A plain step would not bring the wait back, so that a wait in the past makes nodes more welcome. */
static void test_what_was_waited_for_is_taken(void **state) {
  (void)state;
  float totals[16];
  int32_t reads[16] = {0}, last = 0;
  for (int32_t i = 0; i < 16; i++) totals[i] = -0.15f * (float)(i + 1);
  cost_model c = costs_of(0.15);
  for (double waited_us = 0; waited_us < 8000; waited_us += 1000) {
    int32_t now = policy_nodes(&c, 1, 0, waited_us, totals, reads, 16);
    assert_true(now >= last);
    last = now;
  }
  assert_true(last > policy_nodes(&c, 1, 0, 0, totals, reads, 16));
}

static void test_no_nodes_before_a_plain_step_is_known(void **state) {
  (void)state;
  cost_model c = {0};
  float totals[8] = {0};
  int32_t reads[8] = {0};
  assert_int_equal(policy_nodes(&c, 1, 0, 0, totals, reads, 8),
                   POLICY_PROBE - 1); /* small, for want of both */
  cost_model_measured(&c, POLICY_PROBE, 0, 1000);
  assert_int_equal(policy_nodes(&c, 1, 0, 0, totals, reads, 8), 0);
  cost_model_measured(&c, 1, 0, 1000);
  assert_int_equal(policy_nodes(&c, 1, 0, 0, totals, reads, 8), 2 * POLICY_PROBE - 1);
}

/* --- waiting --- */

static policy waiting(double tokens, double cost, double arrival, double deviation) {
  return (policy){.state = POLICY_ON,
                  .tokens = {tokens, 0, 20},
                  .cost = {cost, 0, 20},
                  .arrival_us = {arrival, deviation, 20}};
}

static void test_there_is_no_wait_before_there_is_something_to_expect(void **state) {
  (void)state;
  policy p = begun();
  assert_true(policy_wait(&p, PLAIN) == 0);
  policy_arrived(&p, 100);
  assert_true(policy_wait(&p, PLAIN) == 0);
  policy_step s = {
      .plain_us = PLAIN, .plain_known = true, .us = PLAIN, .nodes = 3, .offered = 3, .tokens = 3};
  policy_stepped(&p, &p.all, &s);
  assert_true(policy_wait(&p, PLAIN) > 100);
  p.state = POLICY_OFF;
  assert_true(policy_wait(&p, PLAIN) == 0);
}

static void test_a_wait_costs_no_more_than_it_can_earn(void **state) {
  (void)state;
  uint64_t rng = 5;
  int waits = 0, refusals = 0;
  for (int i = 0; i < 20000; i++) {
    policy p = waiting(1 + random_below(&rng, 500) / 100.0, 1 + random_below(&rng, 200) / 100.0,
                       random_below(&rng, 30000), random_below(&rng, 5000));
    double us = policy_wait(&p, PLAIN), earned = (p.tokens.mean - p.cost.mean) * PLAIN;
    waits += us > 0;
    refusals += us == 0;
    if (us > 0) assert_true(us <= earned && p.arrival_us.mean < earned);
    policy better = p;
    better.tokens.mean += 0.5;
    assert_true(policy_wait(&better, PLAIN) >= us);
  }
  assert_true(waits > 2000 && refusals > 2000);
}

/* POLICY_LATE */
static void test_a_reply_is_late_after_so_many_plain_steps(void **state) {
  (void)state;
  policy p = waiting(4, 1.3, 10 * POLICY_LATE * PLAIN, 0), next = {0};
  assert_false(policy_comes_late(&p, PLAIN)); /* it may have computed all that time */
  policy_replied(&p, 1.01 * POLICY_LATE * PLAIN);
  assert_true(policy_comes_late(&p, PLAIN));
  assert_false(policy_comes_late(&p, 0));
  policy_begin(&next, &p); /* the next session's draft is likely to be as far away, */
  assert_true(policy_comes_late(&next, PLAIN));
  policy_replied(&next, 0.9 * POLICY_LATE * PLAIN); /* until it shows that it is not */
  assert_false(policy_comes_late(&next, PLAIN));
}

/* POLICY_MISSES, and POLICY_TURN with a half of it after each. */
static void test_a_silent_draft_is_not_waited_for(void **state) {
  (void)state;
  for (int colocated = 0; colocated < 2; colocated++) {
    policy p = waiting(4, 1.3, 1000, 100);
    p.colocated = colocated;
    p.balance = 100;
    policy_step s = {.plain_us = PLAIN, .plain_known = true, .us = PLAIN, .tokens = 1};
    for (int i = 0; i < POLICY_MISSES; i++) {
      s.waited_us = policy_wait(&p, PLAIN);
      assert_true(s.waited_us == (colocated ? POLICY_TURN * PLAIN / (1 << i) : 1200));
      policy_stepped(&p, &p.all, &s);
    }
    assert_true(policy_wait(&p, PLAIN) == 0);
    policy_arrived(&p, 1000); /* it lives */
    assert_true(policy_wait(&p, PLAIN) > 0);
  }
}

/* An answer that there are no nodes counts against waiting, as do nodes that are not worth their rows. */
static void test_empty_answers_end_the_waiting(void **state) {
  (void)state;
  for (int offered = 0; offered < 2; offered++) {
    policy p = waiting(2, 1.3, 1000, 100);
    p.balance = 100;
    int rounds = 0;
    for (; policy_wait(&p, PLAIN) > 0; rounds++) {
      policy_step s = {.plain_us = PLAIN, .plain_known = true, .us = PLAIN, .waited_us = 100, .tokens = 1};
      s.answered = !offered;
      s.offered = offered;
      policy_stepped(&p, &p.all, &s);
      assert_true(rounds < 30);
    }
    assert_true(rounds > 1);
    assert_int_equal(p.misses, 0);
  }
}

/* --- prompts --- */

/* POLICY_PROBE: the last rows of a prompt are read like a verify, unless its cost is known. */
static void test_the_end_of_a_prompt_measures_a_verify(void **state) {
  (void)state;
  cost_model c = {0};
  bool measures;
  assert_int_equal(policy_piece(&c, 300, 128, &measures), 128);
  assert_false(measures);
  assert_int_equal(policy_piece(&c, 100, 128, &measures), 100 - POLICY_PROBE);
  assert_false(measures);
  assert_int_equal(policy_piece(&c, POLICY_PROBE, 128, &measures), POLICY_PROBE);
  assert_true(measures);
  cost_model_measured(&c, POLICY_PROBE, 0, 1000);
  assert_int_equal(policy_piece(&c, 100, 128, &measures), 100);
  assert_int_equal(policy_piece(&c, POLICY_PROBE, 128, &measures), POLICY_PROBE);
  assert_false(measures);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_useless_draft_loses_a_bounded_share),
      cmocka_unit_test(test_a_try_is_saved_up_for),
      cmocka_unit_test(test_a_good_draft_stays_on),
      cmocka_unit_test(test_a_draft_that_turns_bad_is_turned_off),
      cmocka_unit_test(test_a_draft_that_is_told_in_vain_is_turned_off),
      cmocka_unit_test(test_a_session_begins_where_others_have_got_to),
      cmocka_unit_test(test_sessions_at_the_same_time_share_a_credit),
      cmocka_unit_test(test_a_great_loss_is_forgotten_too),
      cmocka_unit_test(test_gains_outlast_a_bad_end),
      cmocka_unit_test(test_what_a_colocated_draft_slows_after_its_end_counts),
      cmocka_unit_test(test_a_colocated_draft_that_has_not_paid_is_off_from_the_start),
      cmocka_unit_test(test_a_draft_beside_is_judged_against_silence),
      cmocka_unit_test(test_a_session_with_bad_luck_is_judged_by_all),
      cmocka_unit_test(test_the_gains_of_others_are_lent),
      cmocka_unit_test(test_a_colocated_draft_is_judged_against_silence),
      cmocka_unit_test(test_a_colocated_draft_must_earn_what_it_slows),
      cmocka_unit_test(test_promises_count_as_they_were_kept),
      cmocka_unit_test(test_as_many_nodes_as_give_the_most_tokens),
      cmocka_unit_test(test_nodes_fill_a_step_of_the_device),
      cmocka_unit_test(test_only_ends_of_steps_are_chosen),
      cmocka_unit_test(test_dear_rows_and_long_contexts_take_fewer_nodes),
      cmocka_unit_test(test_what_was_waited_for_is_taken),
      cmocka_unit_test(test_no_nodes_before_a_plain_step_is_known),
      cmocka_unit_test(test_there_is_no_wait_before_there_is_something_to_expect),
      cmocka_unit_test(test_a_wait_costs_no_more_than_it_can_earn),
      cmocka_unit_test(test_a_reply_is_late_after_so_many_plain_steps),
      cmocka_unit_test(test_a_silent_draft_is_not_waited_for),
      cmocka_unit_test(test_empty_answers_end_the_waiting),
      cmocka_unit_test(test_the_end_of_a_prompt_measures_a_verify),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
