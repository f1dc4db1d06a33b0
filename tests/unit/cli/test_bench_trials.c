/* libs: cli */
#include "orchestrator/cli/bench_trials.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static flags given(const char *methods, const char *trees, const char *temperatures) {
  flags f = {.given = {.methods = methods, .trees = trees, .temperatures = temperatures}};
  f.given.draft = "ngram";
  f.request.budget = 15;
  f.request.sampling.temperature = 0.5f;
  return f;
}

static void test_without_lists_there_is_one_trial_as_the_other_flags_say(void **state) {
  (void)state;
  static bench_trials t;
  err e = {0};
  flags f = given(NULL, NULL, NULL);
  assert_int_equal(bench_trials_read(&t, &f, &e), ERR_OK);
  assert_int_equal(t.count, 1);
  assert_string_equal(t.list[0].method, "ngram");
  assert_string_equal(t.list[0].size->name, "free");
  assert_int_equal(t.list[0].size->budget, 15);
  assert_false(t.list[0].size->lockstep);
  assert_true(t.list[0].temperature == 0.5f);
  f.request.lockstep = true;
  assert_int_equal(bench_trials_read(&t, &f, &e), ERR_OK);
  assert_string_equal(t.list[0].size->name, "lockstep");
  assert_true(t.list[0].size->lockstep);
}

static void test_every_method_meets_every_tree_at_every_temperature(void **state) {
  (void)state;
  static bench_trials t;
  err e = {0};
  flags f = given("ngram,model+ngram", "chain5,31", "0,1");
  f.given.draft_layers = 6;
  if (bench_trials_read(&t, &f, &e)) fail_msg("%s", e.text);
  assert_int_equal(t.count, 8);
  char seen[8][64];
  for (int32_t i = 0; i < t.count; i++) {
    const bench_trial *x = &t.list[i];
    sprintf(seen[i], "%s %s %d %d %g", x->method, x->size->name, x->size->budget, x->size->chain,
            (double)x->temperature);
    assert_true(x->size->lockstep);
    for (int32_t k = 0; k < i; k++) assert_string_not_equal(seen[i], seen[k]);
  }
  assert_string_equal(seen[0], "ngram chain5 5 1 0");
  assert_string_equal(seen[7], "model,ngram 31 31 0 1");
}

static void test_a_trial_has_what_its_method_uses(void **state) {
  (void)state;
  static bench_trials t;
  err e = {0};
  flags f = given("ngram,model", "chain5", NULL);
  f.given.draft_layers = 6;
  if (bench_trials_read(&t, &f, &e)) fail_msg("%s", e.text);
  flag_values w = f.given;
  bench_trials_settings(&t.list[0], &w);
  assert_string_equal(w.draft, "ngram");
  assert_int_equal(w.draft_layers, 0);
  assert_int_equal(w.candidates, 1);
  w = f.given;
  bench_trials_settings(&t.list[1], &w);
  assert_string_equal(w.draft, "model");
  assert_int_equal(w.draft_layers, 6);
}

static void test_what_cannot_be_tried_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *methods, *trees, *temperatures, *says;
  } table[] = {{"none", NULL, NULL, "none is what"},
               {"ngram,nonsense", NULL, NULL, "nonsense"},
               {"eagle3", NULL, NULL, "-md"},
               {NULL, "0", NULL, "--trees"},
               {NULL, "65", NULL, "--trees"},
               {NULL, "chain", NULL, "--trees"},
               {NULL, "7,,9", NULL, "--trees"},
               {NULL, "1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8", NULL, "more than 16"},
               {NULL, NULL, "warm", "'warm' is no temperature"},
               {NULL, NULL, "0,-1", "'-1' is no temperature"},
               {NULL, NULL, "nan", "'nan' is no temperature"},
               {"ngram,ngram,ngram", "1,2,3,4,5,6,7,8,9", "0,0,0,0,0", "more than 128 trials"}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    static bench_trials t;
    err e = {0};
    flags f = given(table[i].methods, table[i].trees, table[i].temperatures);
    assert_int_equal(bench_trials_read(&t, &f, &e), ERR_ARG);
    if (!strstr(e.text, table[i].says)) fail_msg("%zu: %s", i, e.text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_without_lists_there_is_one_trial_as_the_other_flags_say),
      cmocka_unit_test(test_every_method_meets_every_tree_at_every_temperature),
      cmocka_unit_test(test_a_trial_has_what_its_method_uses),
      cmocka_unit_test(test_what_cannot_be_tried_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
