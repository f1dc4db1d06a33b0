/* libs: draft */
#include "draft_worker/pacing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define FORWARD 3000.0
#define VERIFY  12000

/* Costs of a model whose best candidate is right so often, and a session whose verifies take VERIFY. */
static pacing_costs costs(double best) {
  return (pacing_costs){.forward_us = {.mean = FORWARD, .count = 100}, .best = {.mean = best, .count = 100}};
}

static pacing session(void) {
  pacing t = {0};
  for (uint64_t now = 1000; now < 1000000; now += 50000) {
    pacing_sent(&t, now);
    pacing_tokens(&t, now + VERIFY, false);
  }
  return t;
}

/* Forwards of a turn in which a chain grows by one node each, right with probability p. */
static int32_t chain(double p) {
  pacing t = session();
  pacing_costs c = costs(p);
  double tokens = 1, last = p;
  pacing_replied(&t);
  for (; tokens += pacing_worth(last), pacing_goes_on(&t, &c, tokens, pacing_worth(last * pacing_best(&c)));
       last *= p)
    pacing_replied(&t);
  return t.forwards;
}

/* The length of a chain that yields most tokens a us, less what its rows cost: by trying all. */
static int32_t best_chain(double p) {
  int32_t best = 1;
  double most = 0, tokens = 1, last = 1;
  for (int32_t n = 1; n < 50; n++) {
    tokens += pacing_worth(last *= p);
    double rate = tokens / (n * FORWARD + VERIFY);
    if (rate <= most) continue;
    most = rate;
    best = n;
  }
  return best;
}

static void a_chain_ends_where_its_rate_is_best(void **state) {
  (void)state;
  for (double p = 0.1; p < 0.97; p += 0.05) assert_int_equal(chain(p), best_chain(p));
  assert_true(chain(0.9) > chain(0.5));
}

static void several_places_are_worth_more_than_one(void **state) {
  (void)state;
  pacing t = session();
  pacing_costs c = costs(0.8);
  assert_false(pacing_goes_on(&t, &c, 3, 0.5));
  assert_true(pacing_goes_on(&t, &c, 3, 1.5));
}

static void an_unknown_target_is_believed_some_forwards(void **state) {
  (void)state;
  pacing t = {0};
  pacing_costs c = {0};
  pacing_forward(&c, FORWARD);
  pacing_replied(&t);
  assert_true(pacing_goes_on(&t, &c, 1.8, 0.8));
  assert_false(pacing_goes_on(&t, &c, 1.1, 0.1));
}

static void one_slow_forward_does_not_decide(void **state) {
  (void)state;
  pacing_costs c = costs(0.8);
  pacing_forward(&c, 1e9);
  assert_true(c.forward_us.mean < 1.5 * FORWARD);
  pacing t = session();
  double before = t.verify_us.mean;
  pacing_sent(&t, 5000000);
  pacing_tokens(&t, 5000000 + 1000 * VERIFY, false);
  assert_true(t.verify_us.mean < 1.5 * before);
  pacing_tokens(&t, 900000000, false); /* nothing was sent: a plain step tells nothing */
  assert_true(t.verify_us.mean < 1.5 * before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_chain_ends_where_its_rate_is_best),
      cmocka_unit_test(several_places_are_worth_more_than_one),
      cmocka_unit_test(an_unknown_target_is_believed_some_forwards),
      cmocka_unit_test(one_slow_forward_does_not_decide),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
