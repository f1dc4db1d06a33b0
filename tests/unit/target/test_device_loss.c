/* libs: target wire speculative base */
/* A target whose device is lost in mid-answer. */
#include "tests/support/target_world.h"

#include "common/base/program.h"

static const action *exit_of(const rig *r) {
  const action *found = NULL;
  for (int32_t i = 0; i < r->out.count; i++) {
    if (r->out.list[i].kind != ACTION_EXIT) continue;
    assert_null(found);
    found = &r->out.list[i];
  }
  return found;
}

/* The next result says that the device is lost. */
static void lose(world *w) {
  rig_clear(&w->r);
  w->fail = ERR_DEVICE;
  assert_true(run_job(w));
}

static const msg *error_about(const world *w, uint64_t id) {
  for (int32_t i = 0; i < rig_count(&w->r, ORCH, MSG_ERROR); i++)
    if (rig_peek(&w->r, ORCH, MSG_ERROR, i)->session == id) return rig_peek(&w->r, ORCH, MSG_ERROR, i);
  return NULL;
}

/* One that runs, one that waits for a repair, and one that is over: the first two must go on elsewhere. */
static void test_every_open_session_is_given_back(void **state) {
  world *w = *state;
  msg over = open_message(S + 2, 1, PROMPT, PROMPT_LENGTH);
  over.u.open.options.max_tokens = 1;
  say_and_open(w, over);
  play(w, 1);
  say_and_open(w, prompt_message());
  say_and_open(w, open_message(S + 1, 7, PROMPT, PROMPT_LENGTH));
  play(w, 4);
  msg wrong = message(MSG_ACK, SELF, S + 1, 7);
  wrong.u.state = (msg_state){.length = PROMPT_LENGTH, .hash = {{1}}};
  rig_say(&w->r, ORCH, wrong);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
  assert_int_equal(held(w, S + 1)->state, SESSION_DESYNCED);
  assert_int_equal(held(w, S + 2)->state, SESSION_FINISHED);
  lose(w);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_ERROR), 2);
  assert_int_equal(error_about(w, S)->u.error.code, ERR_DEVICE);
  assert_int_equal(error_about(w, S)->epoch, 1);
  assert_int_equal(error_about(w, S + 1)->u.error.code, ERR_DEVICE);
  assert_int_equal(error_about(w, S + 1)->epoch, 7);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DONE), 0);
}

/* Who hears BYE asks for nothing more here, and so no session comes back that has just been given back. */
static void test_it_says_goodbye_and_ends(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 2);
  lose(w);
  assert_true(rig_place(&w->r, ORCH, MSG_BYE) >= 0);
  assert_true(rig_place(&w->r, ORCH, MSG_BYE) < rig_place(&w->r, ORCH, MSG_ERROR));
  assert_non_null(exit_of(&w->r));
  assert_int_equal(exit_of(&w->r)->code, STATUS_DEVICE);
  assert_ptr_equal(exit_of(&w->r), &w->r.out.list[w->r.out.count - 1]); /* what it sends goes out before */
  assert_int_equal(rig_logged(&w->r, "device cpu:test is lost"), 1);
  assert_false(target_drained(w->t)); /* it would leave as if all were well */
}

/* It was the last one, and its END came while the engine had its job. */
static void test_it_ends_with_that_status_when_nobody_is_left(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  rig_event(&w->r, EVENT_DRAIN, 0, 0, NULL, NULL);
  lose(w);
  assert_non_null(exit_of(&w->r));
  assert_false(target_drained(w->t));
}

static void test_nothing_is_computed_any_more(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  say_and_open(w, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  lose(w);
  assert_false(take_job(w));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S + 2, 1, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_DRAINING);
  assert_false(take_job(w));
}

/* A verify too: a session does not decode plainly on a device that is gone. */
static void test_a_verify_that_loses_the_device_is_no_failed_verify(void **state) {
  world *w = *state;
  uint32_t generation = open_with_draft(w, true);
  prefill(w);
  send_chain(w, DRAFT, generation, PROMPT_LENGTH, 1, 4, true);
  assert_true(take_job(w));
  assert_true(w->job.count > 1);
  lose(w);
  assert_int_equal(rig_logged(&w->r, "decodes plainly"), 0);
  rig_expect_error(&w->r, ORCH, ERR_DEVICE);
  rig_only(&w->r, DRAFT, MSG_BYE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_every_open_session_is_given_back),
      CASE(test_it_says_goodbye_and_ends),
      CASE(test_it_ends_with_that_status_when_nobody_is_left),
      CASE(test_nothing_is_computed_any_more),
      CASE(test_a_verify_that_loses_the_device_is_no_failed_verify),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
