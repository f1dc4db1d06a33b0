/* libs: speculative */
#include "common/speculative/wait.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#define STEP   15000.0 /* us: a plain step and a verify, in the order of a small model on a CPU */
#define VERIFY 20000.0

static uint32_t draw(uint64_t *s, uint32_t below) {
  *s = *s * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*s >> 33) % below;
}

static wait_history history(double arrival, double deviation, double tokens) {
  return (wait_history){.arrival_us = arrival,
                        .arrival_dev_us = deviation,
                        .tokens_per_step = tokens,
                        .arrivals = 50,
                        .verifies = 50};
}

/* --- waiting --- */

static void never_with_other_work_or_no_draft(void **state) {
  (void)state;
  wait_history good = history(1000, 100, 4), fresh = {0};
  assert_true(wait_for(&good, true, false, 0, STEP, VERIFY) > 0);
  assert_int_equal(wait_for(&good, true, true, 0, STEP, VERIFY), 0);
  assert_int_equal(wait_for(&good, false, false, 0, STEP, VERIFY), 0);
  assert_int_equal(wait_for(&fresh, true, false, 0, STEP, VERIFY), 0);
}

static void a_quick_good_draft_gets_mean_and_two_deviations(void **state) {
  (void)state;
  wait_history h = history(1000, 100, 4);
  assert_int_equal(wait_for(&h, true, false, 0, STEP, VERIFY), 1200);
  assert_int_equal(wait_for(&h, true, false, 700, STEP, VERIFY), 500);
  assert_int_equal(wait_for(&h, true, false, 1100, STEP, VERIFY), 100);
  assert_int_equal(wait_for(&h, true, false, 1200, STEP, VERIFY), 0); /* overdue: it is not coming */
  assert_int_equal(wait_for(&h, true, false, UINT64_MAX, STEP, VERIFY), 0);
}

/* Neither how long its nodes take nor what they are worth is known: plain steps go on meanwhile. */
static void an_unknown_draft_is_not_waited_for(void **state) {
  (void)state;
  wait_history h = {0};
  assert_int_equal(wait_for(&h, true, false, 0, STEP, VERIFY), 0);
  wait_arrived(&h, 100);
  assert_int_equal(wait_for(&h, true, false, 0, STEP, VERIFY), 0);
  wait_verified(&h, 4);
  assert_true(wait_for(&h, true, false, 0, STEP, VERIFY) > 0);
  h.arrivals = 0; /* it was right by a node that was no answer to these tokens */
  assert_int_equal(wait_for(&h, true, false, 0, STEP, VERIFY), 0);
}

static void a_silent_draft_is_not_waited_for(void **state) {
  (void)state;
  wait_history h = history(1000, 100, 4);
  uint64_t waited = 0;
  for (int round = 0; round < 1000; round++) {
    uint64_t w = wait_for(&h, true, false, 0, STEP, VERIFY);
    waited += w;
    if (w) wait_missed(&h);
  }
  assert_int_equal(waited, WAIT_MISSES_MAX * 1200);
  wait_arrived(&h, 900); /* it lives */
  assert_true(wait_for(&h, true, false, 0, STEP, VERIFY) > 900);
  for (int i = 0; i < WAIT_MISSES_MAX - 1; i++) wait_missed(&h);
  assert_true(wait_for(&h, true, false, 0, STEP, VERIFY) > 0);
  wait_missed(&h);
  assert_int_equal(wait_for(&h, true, false, 0, STEP, VERIFY), 0);
}

static void a_useless_draft_is_not_waited_for(void **state) {
  (void)state;
  wait_history h = {0};
  int rounds = 0;
  wait_arrived(&h, 500);
  wait_verified(&h, 4); /* a lucky first guess */
  for (; wait_for(&h, true, false, 0, STEP, VERIFY) > 0; rounds++) {
    assert_true(rounds < 20);
    wait_arrived(&h, 500);
    wait_verified(&h, 1);
  }
  assert_true(rounds > 1); /* one bad verify is no proof */
  for (int i = 0; i < 100; i++) wait_verified(&h, 1);
  assert_int_equal(wait_for(&h, true, false, 0, STEP, VERIFY), 0);
  for (int i = 0; i < 30; i++) wait_verified(&h, 4); /* it got better */
  assert_true(wait_for(&h, true, false, 0, STEP, VERIFY) > 0);
}

static void the_cap_holds(void **state) {
  (void)state;
  wait_history h = history(15000, 4000, 50);
  assert_int_equal(wait_for(&h, true, false, 0, STEP, VERIFY), WAIT_CAP_US);
  h = history(25000, 4000, 50); /* expected only after the cap: in vain */
  assert_int_equal(wait_for(&h, true, false, 0, STEP, VERIFY), 0);
  assert_true(wait_for(&h, true, false, 10000, STEP, VERIFY) > 15000);
}

static void history_follows(void **state) {
  (void)state;
  wait_history h = {0};
  for (int i = 0; i < 200; i++) {
    wait_arrived(&h, i % 2 ? 900 : 1100);
    wait_verified(&h, i % 2 ? 2 : 4);
  }
  assert_int_equal(h.arrivals, 200);
  assert_int_equal(h.verifies, 200);
  assert_true(fabs(h.arrival_us - 1000) < 30);
  assert_true(fabs(h.arrival_dev_us - 100) < 30);
  assert_true(fabs(h.tokens_per_step - 3) < 0.3);
}

/* If the wait that is expected is spent, a token does not cost more than plainly; and the answer grows with
 * what makes waiting better. */
static void earns_what_it_costs(void **state) {
  (void)state;
  uint64_t rng = 5;
  int waits = 0, refusals = 0;
  for (int i = 0; i < 20000; i++) {
    wait_history h = history(draw(&rng, 30000), draw(&rng, 5000), 1 + draw(&rng, 500) / 100.0);
    double step = 100 + draw(&rng, 20000), verify = step * (1 + draw(&rng, 200) / 100.0);
    uint64_t since = draw(&rng, 20000), w = wait_for(&h, true, false, since, step, verify);
    assert_true(w <= WAIT_CAP_US);
    if (w) {
      double expected = fmax(h.arrival_us - (double)since, 0);
      assert_true((expected + verify) / h.tokens_per_step <= step);
      assert_true((double)w + verify <= h.tokens_per_step * step);
    }
    wait_history better = h;
    better.tokens_per_step += draw(&rng, 100) / 50.0;
    assert_true(wait_for(&better, true, false, since, step, verify) >= w);
    assert_true(wait_for(&h, true, false, since, step, verify + draw(&rng, 1000)) <= w);
    assert_true(wait_for(&h, true, false, since, step + draw(&rng, 1000), verify) >= w);
    waits += w > 0;
    refusals += w == 0;
  }
  assert_true(waits > 2000 && refusals > 2000);
}

/* --- paying --- */

typedef struct cost_model {
  double step_us, verify_us; /* of one forward */
  double rate;               /* probability that the next node of the chain is right */
  int32_t depth;             /* nodes in the chain */
  uint32_t noise_percent;    /* times vary by so much to either side */
} cost_model;

typedef struct outcome {
  double us, plain_us;
  int32_t tokens, forwards, changes;
  int32_t off_at, on_at; /* forwards at the first change to off, and from off to on; -1: none */
  bool off;
} outcome;

/* Decodes `tokens` tokens; nodes are always at hand. The rule only sees what a target would tell it. */
static outcome simulate(pay_state *p, const cost_model *c, int32_t tokens, uint64_t seed) {
  outcome o = {.off_at = -1, .on_at = -1};
  while (o.tokens < tokens) {
    bool spec = pay_allows(p);
    int32_t yield = 1;
    if (spec)
      while (yield <= c->depth && draw(&seed, 1000) < c->rate * 1000) yield++;
    double us = spec ? c->verify_us : c->step_us;
    if (c->noise_percent)
      us *= 1 + ((int32_t)draw(&seed, 2 * c->noise_percent) - (int32_t)c->noise_percent) / 100.0;
    if (pay_record(p, spec ? c->depth : 0, yield, us)) {
      o.changes++;
      if (p->off && o.off_at < 0) o.off_at = o.forwards;
      if (!p->off && o.on_at < 0) o.on_at = o.forwards;
    }
    o.us += us;
    o.tokens += yield;
    o.forwards++;
  }
  o.plain_us = o.tokens * c->step_us;
  o.off = p->off;
  return o;
}

static void a_useless_draft_loses_little(void **state) {
  (void)state;
  static const double ratios[] = {1.02, 1.05, 1.2, 1.5, 2, 3};
  static const int32_t lengths[] = {256, 1000, 20000};
  for (size_t r = 0; r < sizeof ratios / sizeof *ratios; r++)
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
      pay_state p = {0};
      cost_model c = {STEP, STEP * ratios[r], 0, 8, 0};
      outcome o = simulate(&p, &c, lengths[l], 3);
      if (o.us > 1.05 * o.plain_us)
        fail_msg("ratio %.2f, %d tokens: loses %.1f %%", ratios[r], (int)lengths[l],
                 100 * (o.us / o.plain_us - 1));
      if (ratios[r] > 1.03) assert_true(o.off_at >= 0 && o.off_at <= PAY_WINDOW + PAY_CALIBRATE);
    }
}

static void a_useless_draft_with_noisy_times_too(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 50; seed++) {
    pay_state p = {0};
    cost_model c = {STEP, 1.6 * STEP, 0.05, 8, 20};
    outcome o = simulate(&p, &c, 600, seed);
    assert_true(o.us < 1.05 * o.plain_us);
    assert_true(o.off_at >= 0);
  }
}

static void a_good_draft_stays_on(void **state) {
  (void)state;
  int turned_off = 0;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    pay_state p = {0};
    cost_model c = {STEP, 1.4 * STEP, 0.8, 5, 20};
    outcome o = simulate(&p, &c, 5000, seed);
    assert_true(o.us < 0.6 * o.plain_us); /* what it can reach is 0.38 */
    turned_off += o.changes > 0;
  }
  assert_true(turned_off <= 3);
}

/* The plain steps forced on a good draft, to know what they cost, are few. */
static void calibration_is_cheap(void **state) {
  (void)state;
  pay_state p = {0};
  cost_model c = {STEP, 1.4 * STEP, 1, 5, 0};
  outcome o = simulate(&p, &c, 30000, 1);
  assert_int_equal(o.changes, 0);
  assert_true(p.plain_steps >= PAY_CALIBRATE + 5);
  assert_true(p.plain_steps < 0.005 * o.forwards);
}

/* A draft on the same processors: every step is slower while it is on, whether its nodes come or not. */
static void a_draft_that_crowds_must_earn_its_place(void **state) {
  (void)state;
  static const struct {
    double slower, yield;
    bool nodes, pays;
  } table[] = {
      {1.5, 1, false, false}, /* never in time */
      {1.5, 1.2, true, false},
      {1.3, 3, true, true},
      {1.0, 1, false, true}, /* costs nothing: it may stay */
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    pay_state p = {0};
    double us = 0, tokens = 0, off = 0, owed = 0;
    pay_crowd(&p, &(pay_state){0});
    pay_crowd(&p, &(pay_state){0}); /* another one changes nothing */
    assert_true(p.off && p.resting);
    for (int32_t k = 0; k < 2000; k++) {
      bool on = pay_allows(&p), nodes = on && table[i].nodes;
      double step = on ? STEP * table[i].slower : STEP;
      owed += nodes ? table[i].yield : 1;
      int32_t taken = (int32_t)owed;
      owed -= taken;
      off += !on;
      us += step;
      tokens += taken;
      pay_record(&p, nodes ? 4 : 0, taken, step);
    }
    if (!table[i].pays)
      assert_true(us < 1.06 * tokens * STEP);
    else
      assert_true(off <= 2000.0 / 400 * PAY_REST);
  }
}

/* What has failed twice in a row in one session is not tried in the next before its time; what failed once,
 * rests or works is. */
static void another_session_knows_what_failed(void **state) {
  (void)state;
  static const struct {
    pay_state before;
    bool knows;
  } table[] = {
      {{.off = true, .backoff = 2, .retry_after = 200}, true},
      {{.off = true, .backoff = 1, .retry_after = 200}, false},
      {{.off = true, .backoff = 2, .retry_after = 200, .resting = true}, false},
      {{.off = false, .backoff = 2, .retry_after = 200}, false},
      {{.off = true, .backoff = 2, .retry_after = 1}, false},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    pay_state p = {0};
    pay_crowd(&p, &table[i].before);
    assert_true(p.off && p.resting != table[i].knows);
    int32_t steps = 0;
    for (; !pay_allows(&p) && steps < 1000; steps++) pay_record(&p, 0, 1, STEP);
    if (table[i].knows)
      assert_int_equal(steps, 200);
    else
      assert_true(steps <= PAY_REST + PAY_LEAD);
  }
}

/* It weighs its turn by itself: three plain steps, whatever the arrivals were, half of that after each wait
 * in vain. */
static void a_draft_that_computes_gets_its_turn(void **state) {
  (void)state;
  wait_history h = {.computes = true};
  for (int i = 0; i < 20; i++) wait_arrived(&h, 10);
  assert_int_equal(wait_for(&h, true, false, 0, STEP, STEP), (uint64_t)(WAIT_STEPS * STEP));
  wait_missed(&h);
  assert_int_equal(wait_for(&h, true, false, 0, STEP, STEP), (uint64_t)(WAIT_STEPS * STEP / 2));
  assert_int_equal(wait_for(&h, true, true, 0, STEP, STEP), 0);
  while (h.misses < WAIT_MISSES_MAX) wait_missed(&h);
  assert_int_equal(wait_for(&h, true, false, 0, STEP, STEP), 0);
}

static void retries_back_off(void **state) {
  (void)state;
  pay_state p = {0};
  int gaps = 0, since_off = 0;
  uint32_t expected = PAY_RETRY_FIRST;
  for (int i = 0; i < 60000 && gaps < 12; i++) {
    bool spec = pay_allows(&p), was_off = p.off;
    bool changed = pay_record(&p, spec ? 8 : 0, 1, spec ? 2 * STEP : STEP);
    assert_int_equal(changed, was_off != p.off);
    since_off = p.off ? since_off + !changed : since_off;
    if (!changed || p.off) continue;
    assert_int_equal(since_off + 1, expected); /* plain steps, the one that ended it included */
    expected = 2 * expected < PAY_RETRY_MAX ? 2 * expected : PAY_RETRY_MAX;
    since_off = 0;
    gaps++;
  }
  assert_int_equal(gaps, 12);
  assert_int_equal(expected, PAY_RETRY_MAX);
}

static void a_draft_that_gets_better_comes_back(void **state) {
  (void)state;
  pay_state p = {0};
  cost_model bad = {STEP, 1.6 * STEP, 0, 8, 10}, good = {STEP, 1.6 * STEP, 0.9, 8, 10};
  outcome o = simulate(&p, &bad, 300, 9);
  assert_true(o.off_at >= 0);
  o = simulate(&p, &good, 3000, 9);
  assert_true(o.on_at >= 0);
  assert_false(o.off);
  assert_true(o.us < 0.7 * o.plain_us);
  assert_int_equal(p.backoff, 0); /* trusted again */
  o = simulate(&p, &bad, 400, 9); /* and worse again: turned off within a few windows */
  assert_true(o.off_at >= 0 && o.off_at <= 4 * PAY_WINDOW);
}

/* What the draft cost before it was turned off does not count in the next try. */
static void a_retry_starts_afresh(void **state) {
  (void)state;
  pay_state p = {0};
  int verifies[3] = {0}, try = 0;
  while (try < 3) {
    bool spec = pay_allows(&p);
    verifies[try] += spec;
    if (pay_record(&p, spec ? 8 : 0, 1, spec ? 1.8 * STEP : STEP) && p.off) try++;
  }
  for (int i = 0; i < 3; i++) assert_int_equal(verifies[i], 2); /* each loses 0.8 of a step */
  while (p.off) pay_record(&p, 0, 1, STEP);
  for (int i = 0; i < 100; i++) assert_false(pay_record(&p, 8, 2, 1.95 * STEP)); /* it just pays now */
}

/* One forward that the system held up says nothing about the draft. */
static void one_preempted_step_is_forgiven(void **state) {
  (void)state;
  pay_state p = {0};
  for (int i = 0; i < 400; i++) {
    bool spec = pay_allows(&p);
    double held_up = i % 100 == 50 ? 40 * STEP : 0;
    assert_false(pay_record(&p, spec ? 4 : 0, spec ? 3 : 1, (spec ? 1.4 * STEP : STEP) + held_up));
  }
  assert_false(p.off);
}

static void a_verify_in_flight_changes_nothing(void **state) {
  (void)state;
  pay_state p = {0};
  while (!p.off) pay_record(&p, pay_allows(&p) ? 8 : 0, 1, pay_allows(&p) ? 2 * STEP : STEP);
  pay_state before = p;
  assert_false(pay_record(&p, 8, 9, STEP));
  assert_memory_equal(&p, &before, sizeof p);
  assert_false(pay_allows(&p));
}

/* The first verify has no average of its own to be measured by. */
static void a_preempted_first_verify_is_forgiven(void **state) {
  (void)state;
  pay_state p = {0};
  for (int i = 0; i < 4; i++) pay_record(&p, 0, 1, STEP);
  pay_record(&p, 3, 4, 40 * STEP);
  for (int i = 0; i < 8; i++) pay_record(&p, 3, 4, 1.3 * STEP);
  assert_false(p.off);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(never_with_other_work_or_no_draft),
      cmocka_unit_test(a_quick_good_draft_gets_mean_and_two_deviations),
      cmocka_unit_test(an_unknown_draft_is_not_waited_for),
      cmocka_unit_test(a_silent_draft_is_not_waited_for),
      cmocka_unit_test(a_useless_draft_is_not_waited_for),
      cmocka_unit_test(the_cap_holds),
      cmocka_unit_test(history_follows),
      cmocka_unit_test(earns_what_it_costs),
      cmocka_unit_test(a_useless_draft_loses_little),
      cmocka_unit_test(a_useless_draft_with_noisy_times_too),
      cmocka_unit_test(a_good_draft_stays_on),
      cmocka_unit_test(calibration_is_cheap),
      cmocka_unit_test(a_draft_that_crowds_must_earn_its_place),
      cmocka_unit_test(retries_back_off),
      cmocka_unit_test(a_draft_that_gets_better_comes_back),
      cmocka_unit_test(a_retry_starts_afresh),
      cmocka_unit_test(one_preempted_step_is_forgiven),
      cmocka_unit_test(a_verify_in_flight_changes_nothing),
      cmocka_unit_test(a_preempted_first_verify_is_forgiven),
      cmocka_unit_test(another_session_knows_what_failed),
      cmocka_unit_test(a_draft_that_computes_gets_its_turn),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
