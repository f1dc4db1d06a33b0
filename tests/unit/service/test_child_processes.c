/* libs: service base */
#include "orchestrator/service/child_processes.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/support/patience.h"
#include "tests/support/scratch.h"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define WAIT_MS 50

typedef struct world {
  uv_loop_t loop;
  child_processes *children;
  child_processes_exit exits[16];
  int count, restarts; /* restarts: how often a child that has ended is started again */
  bool late;
} world;

static void on_exit_of(void *context, const child_processes_exit *x) {
  world *w = context;
  err e;
  assert_true(w->count < 16);
  w->exits[w->count++] = *x;
  if (w->restarts-- > 0)
    assert_int_equal(child_processes_start_after(w->children, x->child, WAIT_MS, &e), ERR_OK);
}

static int set_up(void **state) {
  world *w = *state = calloc(1, sizeof *w);
  err e;
  child_processes_options o = {.loop = &w->loop, .on_exit = on_exit_of, .context = w};
  assert_int_equal(uv_loop_init(&w->loop), 0);
  assert_int_equal(child_processes_open(&w->children, &o, &e), ERR_OK);
  return 0;
}

/* No zombie is left, and no handle. */
static int tear_down(void **state) {
  world *w = *state;
  int count = w->count;
  child_processes_close(w->children);
  uv_run(&w->loop, UV_RUN_DEFAULT);
  assert_int_equal(w->count, count);
  assert_int_equal(uv_loop_close(&w->loop), 0);
  assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
  assert_int_equal(errno, ECHILD);
  free(w);
  return 0;
}

static int32_t start(world *w, const char *script) {
  err e;
  const char *const args[] = {"-c", script, NULL};
  int32_t number = child_processes_add(w->children, "sh", args, &e);
  if (number < 0 || child_processes_start(w->children, number, &e) != ERR_OK) fail_msg("%s", e.text);
  return number;
}

static void on_late(uv_timer_t *timer) {
  ((world *)timer->data)->late = true;
}

static void run_until(world *w, int count) {
  uv_timer_t timer;
  uv_timer_init(&w->loop, &timer);
  timer.data = w;
  uv_timer_start(&timer, on_late, PATIENCE_MS, 0);
  while (w->count < count && !w->late) uv_run(&w->loop, UV_RUN_ONCE);
  uv_close((uv_handle_t *)&timer, NULL);
  uv_run(&w->loop, UV_RUN_NOWAIT);
  assert_int_equal(w->count, count);
}

/* All at a time, when signals would be merged. */
static void test_each_end_is_told_once(void **state) {
  world *w = *state;
  static const char *const scripts[] = {"exit 3", "kill -9 $$", "exit 0", "kill -15 $$"};
  static const int codes[] = {3, -9, 0, -15};
  static const char *const texts[] = {"exit status 3", "signal 9", "exit status 0", "signal 15"};
  for (int i = 0; i < 4; i++) assert_int_equal(start(w, scripts[i]), i);
  assert_int_equal(child_processes_alive(w->children), 4);
  run_until(w, 4);
  int seen = 0;
  for (int i = 0; i < 4; i++) {
    const child_processes_exit *x = &w->exits[i];
    seen |= 1 << x->child;
    assert_int_equal(x->code, codes[x->child]);
    assert_memory_equal(x->text, texts[x->child], strlen(texts[x->child]));
    assert_int_equal(x->starts, 1);
    assert_false(x->expected);
  }
  assert_int_equal(seen, 15);
  assert_int_equal(child_processes_alive(w->children), 0);
}

static void test_a_child_is_started_again_after_a_wait(void **state) {
  world *w = *state;
  w->restarts = 3;
  uint64_t begin = uv_hrtime();
  start(w, "exit 1");
  run_until(w, 4);
  assert_true(uv_hrtime() - begin >= 3 * (WAIT_MS - 1) * UINT64_C(1000000));
  for (int i = 0; i < 4; i++) assert_int_equal(w->exits[i].starts, i + 1);
}

/* What runs is ended, and what waits is not started any more. */
static void test_a_stop_ends_all_of_them(void **state) {
  world *w = *state;
  w->restarts = 1;
  start(w, "exit 1");
  run_until(w, 1);
  int32_t second = start(w, "exec sleep 100");
  child_processes_stop(w->children);
  run_until(w, 2);
  assert_int_equal(w->exits[1].child, second);
  assert_true(w->exits[1].expected);
  for (int i = 0; i < 3 * WAIT_MS; i++) {
    uv_run(&w->loop, UV_RUN_NOWAIT);
    uv_sleep(1);
  }
  assert_int_equal(w->count, 2);
  assert_int_equal(child_processes_alive(w->children), 0);
}

static void test_what_a_child_does_is_counted(void **state) {
  world *w = *state;
  uint64_t work = 0, little = 0;
  int32_t busy = start(w, "while :; do :; done"), asleep = start(w, "exec sleep 1000");
  WAIT_UNTIL(child_processes_work(w->children, busy, &work) && work >= 25);
  assert_true(child_processes_work(w->children, asleep, &little));
  assert_true(little < 20);
  child_processes_stop(w->children);
  run_until(w, 2);
  assert_false(child_processes_work(w->children, busy, &work));
}

/* It is killed after CHILD_PROCESSES_GRACE_MS. */
static void test_a_child_that_does_not_want_to_end_is_killed(void **state) {
  world *w = *state;
  const scratch_path_text trapped = scratch_path("trapped");
  char script[SCRATCH_MAX + 100];
  snprintf(script, sizeof script, "trap '' TERM; : > '%s'; while :; do sleep 0.1; done", trapped.text);
  start(w, script);
  WAIT_UNTIL((uv_run(&w->loop, UV_RUN_NOWAIT), access(trapped.text, F_OK) == 0));
  uint64_t begin = uv_hrtime();
  child_processes_stop(w->children);
  run_until(w, 1);
  assert_true(uv_hrtime() - begin >= (CHILD_PROCESSES_GRACE_MS - 100) * UINT64_C(1000000));
  assert_memory_equal(w->exits[0].text, "signal 9", 8);
}

static void test_a_program_that_gives_no_answer_is_not_waited_for(void **state) {
  (void)state;
  char said[64];
  err e;
  assert_int_equal(child_processes_ask("sleep", "100", 100, said, sizeof said, &e), ERR_TIMEOUT);
  assert_non_null(strstr(e.text, "sleep 100 gave no answer within 0.1 s"));
}

static void test_a_child_that_runs_is_not_started_twice(void **state) {
  world *w = *state;
  err e;
  assert_int_equal(child_processes_start(w->children, start(w, "exec sleep 100"), &e), ERR_STATE);
  assert_int_equal(child_processes_alive(w->children), 1); /* the end of the test kills it */
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_each_end_is_told_once),
      CASE(test_a_child_is_started_again_after_a_wait),
      CASE(test_a_stop_ends_all_of_them),
      CASE(test_what_a_child_does_is_counted),
      CASE(test_a_child_that_does_not_want_to_end_is_killed),
      CASE(test_a_program_that_gives_no_answer_is_not_waited_for),
      CASE(test_a_child_that_runs_is_not_started_twice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
