/* libs: wire base */
/* A toy machine that wants numbers computed, and a toy engine that computes them on its own thread. */
#include "wire/engine_host.h"

#include "common/base/clock.h"
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MANY 5000

typedef struct number {
  int value;
} number;

typedef struct square {
  int value, of;
} square;

/* The machine's fields are plain on purpose: TSan reports a step beside another one. */
typedef struct toy {
  engine_host *host;
  /* The machine: */
  int wanted;          /* batches that it still wants computed */
  int wanted_by_ticks; /* each tick of the loop's thread wants one more */
  int asked, asked_at_once, results, ticks, last;
  int exit_at_result, exit_at_tick, exit_code; /* 0: never */
  uint64_t deadline;
  bool draining, wrong;
  pthread_t loop_thread, result_thread;
  /* The engine: */
  int begins, ends, runs;
  pthread_t engine_thread;
  bool held; /* each run waits for `go` */
  int released_by_drain;
  sem_t running, go;
} toy;

/* --- the machine --- */

static void on_result(toy *t, const square *s, actions *out) {
  t->results++;
  t->result_thread = pthread_self();
  t->wrong |= s->of != t->last || s->value != s->of * s->of;
  if (t->results == t->exit_at_result) actions_exit(out, t->exit_code);
}

static void on_tick(toy *t, actions *out) {
  t->ticks++;
  t->wanted += t->ticks <= t->wanted_by_ticks;
  t->deadline = t->ticks < t->wanted_by_ticks ? 0 : MACHINE_NEVER;
  if (t->ticks == t->exit_at_tick) actions_exit(out, t->exit_code);
}

static void toy_step(void *self, const event *e, uint64_t now_us, actions *out) {
  toy *t = self;
  (void)now_us;
  if (e->kind == EVENT_RESULT) on_result(t, e->result, out);
  if (e->kind == EVENT_TICK) on_tick(t, out);
  if (e->kind != EVENT_DRAIN) return;
  t->draining = true;
  for (int i = 0; i < t->released_by_drain; i++) sem_post(&t->go);
}

static uint64_t toy_deadline(const void *self) {
  return ((const toy *)self)->deadline;
}

static bool toy_next(void *self, uint64_t now_us, bool at_once, void *batch) {
  toy *t = self;
  (void)now_us;
  if (t->wanted == 0) return false;
  t->wanted--;
  t->asked++;
  t->asked_at_once += at_once;
  *(number *)batch = (number){t->last = t->asked % 1000};
  return true;
}

static bool toy_drained(const void *self) {
  const toy *t = self;
  return t->draining && t->wanted == 0;
}

/* --- the engine --- */

static void toy_begin(void *self) {
  toy *t = self;
  t->begins++;
  t->engine_thread = pthread_self();
}

static void toy_run(void *self, const void *batch, void *result) {
  toy *t = self;
  const number *n = batch;
  t->runs++;
  t->wrong |= !pthread_equal(t->engine_thread, pthread_self()) || t->begins != 1 || t->ends != 0;
  if (t->held) {
    sem_post(&t->running);
    sem_wait(&t->go);
  }
  *(square *)result = (square){n->value * n->value, n->value};
}

static void toy_end(void *self) {
  ((toy *)self)->ends++;
}

static void toy_open(toy *t, bool computes) {
  const engine_host_options o = {.self = {{7}}};
  const engine_host_worker w = {{t, toy_step, toy_deadline}, toy_next, toy_drained};
  const engine_host_engine engine = {t, sizeof(number), sizeof(square), toy_begin, toy_run, toy_end, true};
  err e = {0};
  sem_init(&t->running, 0, 0);
  sem_init(&t->go, 0, 0);
  t->loop_thread = pthread_self();
  if (engine_host_open(&t->host, &o, &e)) fail_msg("%s", e.text);
  if (engine_host_start(t->host, &w, computes ? &engine : NULL, &e)) fail_msg("%s", e.text);
}

static void toy_close(toy *t) {
  engine_host_close(t->host);
  assert_false(t->wrong);
  sem_destroy(&t->running);
  sem_destroy(&t->go);
}

/* --- the tests --- */

/* One tick submits the first batch; the engine's thread gets all others by itself. */
static void test_the_engine_takes_batch_after_batch_by_itself(void **state) {
  (void)state;
  toy t = {.wanted = MANY - 1, .wanted_by_ticks = 1, .exit_at_result = MANY, .exit_code = 5};
  toy_open(&t, true);
  assert_int_equal(engine_host_run(t.host), 5);
  engine_host_stop(t.host);
  assert_int_equal(t.results, MANY);
  assert_int_equal(t.runs, MANY);
  assert_int_equal(t.asked_at_once, MANY - 1);
  assert_int_equal(t.ticks, 1); /* the loop's thread slept all the while */
  assert_true(pthread_equal(t.result_thread, t.engine_thread));
  assert_false(pthread_equal(t.result_thread, t.loop_thread));
  assert_int_equal(t.begins, 1);
  assert_int_equal(t.ends, 1);
  toy_close(&t);
}

/* Both threads step the machine as fast as they can, and the engine falls asleep again and again. */
static void test_an_idle_engine_gets_what_the_loop_finds(void **state) {
  (void)state;
  toy t = {.wanted_by_ticks = 200, .exit_at_result = 200, .exit_code = 6};
  toy_open(&t, true);
  assert_int_equal(engine_host_run(t.host), 6);
  engine_host_stop(t.host);
  assert_int_equal(t.results, 200);
  assert_in_range(t.asked_at_once, 0, 199);
  toy_close(&t);
}

/* Ticks come while a batch is under way: nothing is submitted beside it. */
static void test_one_batch_is_under_way_at_a_time(void **state) {
  (void)state;
  toy t = {.held = true, .wanted = 2, .wanted_by_ticks = 3, .exit_at_tick = 3, .exit_code = 7};
  toy_open(&t, true);
  assert_int_equal(engine_host_run(t.host), 7);
  sem_wait(&t.running);
  assert_int_equal(t.asked, 1);
  for (int i = 0; i < 5; i++) sem_post(&t.go);
  engine_host_stop(t.host);
  assert_int_equal(t.asked_at_once, t.asked - 1);
  toy_close(&t);
}

static void *release(void *context) {
  toy *t = context;
  usleep(2000); /* who does not wait for the batch has stopped by then */
  sem_post(&t->go);
  return NULL;
}

static void test_stopping_waits_for_the_batch_under_way_and_begins_no_other(void **state) {
  (void)state;
  toy t = {.held = true, .wanted = MANY, .wanted_by_ticks = 1, .exit_at_tick = 1, .exit_code = 8};
  pthread_t releaser;
  toy_open(&t, true);
  assert_int_equal(engine_host_run(t.host), 8);
  sem_wait(&t.running);
  assert_int_equal(pthread_create(&releaser, NULL, release, &t), 0);
  engine_host_stop(t.host);
  pthread_join(releaser, NULL);
  assert_int_equal(t.runs, 1);
  assert_int_equal(t.results, 1); /* the machine got it */
  assert_int_equal(t.ends, 1);
  toy_close(&t);
}

static void test_closing_stops(void **state) {
  (void)state;
  toy t = {.wanted = MANY, .wanted_by_ticks = 1, .exit_at_tick = 1, .exit_code = 9};
  toy_open(&t, true);
  assert_int_equal(engine_host_run(t.host), 9);
  engine_host_close(t.host);
  assert_int_equal(t.ends, 1);
  assert_int_equal(t.results, t.runs);
  t.host = NULL;
  toy_close(&t);
}

/* It drains while the engine computes: only the engine's thread learns that everything is finished. */
static void test_the_last_result_of_a_drained_worker_ends_the_program(void **state) {
  (void)state;
  toy t = {.held = true, .wanted = 2, .released_by_drain = 2};
  toy_open(&t, true);
  raise(SIGTERM);
  assert_int_equal(engine_host_run(t.host), 0);
  engine_host_stop(t.host);
  assert_true(t.draining);
  assert_int_equal(t.results, 2);
  toy_close(&t);
}

static void test_a_worker_without_an_engine_drains_at_once(void **state) {
  (void)state;
  toy t = {0};
  toy_open(&t, false);
  raise(SIGTERM);
  assert_int_equal(engine_host_run(t.host), 0);
  engine_host_stop(t.host);
  assert_int_equal(t.asked, 0);
  toy_close(&t);
}

/* An address is bound before there is a machine, and nothing is stepped until then. */
static void test_an_endpoint_may_be_bound_before_the_worker_is_there(void **state) {
  (void)state;
  const engine_host_options o = {.self = {{7}}, .allow_plaintext = true};
  engine_host *h;
  char bound[128];
  err e = {0};
  if (engine_host_open(&h, &o, &e)) fail_msg("%s", e.text);
  if (transport_bind(engine_host_transport(h), "tcp://127.0.0.1:*", bound, sizeof bound, &e))
    fail_msg("%s", e.text);
  assert_non_null(strstr(bound, "tcp://127.0.0.1:"));
  engine_host_close(h);
  engine_host_close(NULL);
}

int main(void) {
  signal(SIGINT, SIG_DFL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_engine_takes_batch_after_batch_by_itself),
      cmocka_unit_test(test_an_idle_engine_gets_what_the_loop_finds),
      cmocka_unit_test(test_one_batch_is_under_way_at_a_time),
      cmocka_unit_test(test_stopping_waits_for_the_batch_under_way_and_begins_no_other),
      cmocka_unit_test(test_closing_stops),
      cmocka_unit_test(test_the_last_result_of_a_drained_worker_ends_the_program),
      cmocka_unit_test(test_a_worker_without_an_engine_drains_at_once),
      cmocka_unit_test(test_an_endpoint_may_be_bound_before_the_worker_is_there),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
