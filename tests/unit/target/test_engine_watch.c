/* libs: target wire speculative base */
#include "target_worker/engine_watch.h"
#include "tests/support/target_world.h"

/* Lets so many seconds pass, in which everything is acknowledged; returns how many TOKENS without tokens
 * came. */
static int32_t signs(world *w, int32_t seconds, uint64_t layers_each) {
  rig_clear(&w->r);
  for (int32_t i = 0; i < seconds; i++) {
    pass(w, 1000000, true);
    w->layers += layers_each;
    rig_say(&w->r, ORCH, ack(1, held(w, S)->committed.length));
  }
  int32_t n = 0;
  for (int32_t i = 0; i < rig_count(&w->r, ORCH, MSG_TOKENS); i++) {
    expect_tokens(rig_peek(&w->r, ORCH, MSG_TOKENS, i), held(w, S)->committed.length,
                  held(w, S)->committed.length);
    n++;
  }
  return n;
}

/* Reading a prompt takes minutes: signs of life are sent as long as layer after layer is computed, and not
 * when that stops. */
static void test_signs_of_life_are_sent_during_a_long_prefill(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 1, truth(), 600));
  assert_true(take_job(w));
  int32_t n = signs(w, 60, 1);
  assert_in_range(n, 60 / 4, 60);
  n = signs(w, 60, 0); /* the engine hangs, */
  assert_in_range(n, 0, ENGINE_WATCH_HANGS_US / 1000000 / 2 + 1);
  assert_int_equal(signs(w, 10, 0), 0);
  assert_in_range(signs(w, 10, 1), 2, 10); /* and goes on */
  give_result(w);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

/* While the engine hangs, no session gets a sign of life, not even one without a job. */
static void test_no_sign_of_life_is_sent_while_the_engine_hangs(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S + 1, 1, truth(), 600));
  assert_true(take_job(w));
  pass(w, 2 * ENGINE_WATCH_HANGS_US - 1000000, true); /* before its lease ends */
  say_and_open(w, prompt_message());
  assert_int_equal(signs(w, 10, 0), 0);
  assert_true(held(w, S + 1) == NULL || held(w, S + 1)->job.serial != 0);
}

/* A session that waits for its draft lives, although the engine is idle. */
static void test_signs_of_life_are_sent_while_a_session_waits(void **state) {
  world *w = *state;
  open_with_draft(w, true);
  prefill(w);
  assert_in_range(signs(w, 20, 0), 5, 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_signs_of_life_are_sent_during_a_long_prefill),
      CASE(test_no_sign_of_life_is_sent_while_the_engine_hangs),
      CASE(test_signs_of_life_are_sent_while_a_session_waits),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
