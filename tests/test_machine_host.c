/* libs: wire base */
#include "wire/machine_host.h"

#include "common/base/clock.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CONNECTS 20
#define LATE_US  50000 /* a busy machine may wake somebody later now and then, but not every time */

/* A machine that does what the test tells it, and notes what it gets. */
typedef struct toy {
  machine_host *host;
  uint64_t deadline;
  bool stuck;     /* its deadline stays in the past */
  bool echo;      /* PONG for PING */
  bool reconnect; /* on CONNECTED it connects once more, up to CONNECTS */
  int exit_at_tick, exit_code;
  int exit_at_result;
  bool hurry; /* with a result its deadline becomes: at once */
  int ticks, messages, drains, results, connected, disconnected, after;
  int heard_at_tick; /* messages before the last tick */
  uint64_t woken_us;
  uint64_t tags;      /* sum */
  peer_id peer, gone; /* gone: whose connection ended last */
  const void *result;
  char address[200];
} toy;

static void on_connected(toy *t, const event *e, actions *out) {
  t->connected++;
  t->tags += e->tag;
  t->peer = e->peer;
  if (!t->reconnect || t->connected >= CONNECTS) return;
  for (int i = 0; i < 2; i++) /* more than one at a time */
    if (t->connected + i < CONNECTS)
      actions_connect(out, 1000, (wire_string){t->address, (uint32_t)strlen(t->address)});
  t->reconnect = false;
}

static void toy_step(void *self, const event *e, uint64_t now_us, actions *out) {
  toy *t = self;
  switch (e->kind) {
  case EVENT_TICK:
    t->ticks++;
    t->woken_us = now_us;
    t->heard_at_tick = t->messages;
    if (!t->stuck) t->deadline = MACHINE_NEVER;
    if (t->exit_at_tick && t->ticks >= t->exit_at_tick) actions_exit(out, t->exit_code);
    break;
  case EVENT_MESSAGE:
    t->messages++;
    if (t->echo && e->message->type == MSG_PING) actions_send(out, e->peer, e->message);
    break;
  case EVENT_CONNECTED:
    on_connected(t, e, out);
    break;
  case EVENT_DISCONNECTED:
    t->disconnected++;
    t->gone = e->peer;
    break;
  case EVENT_DRAIN:
    t->drains++;
    break;
  case EVENT_RESULT:
    t->results++;
    t->result = e->result;
    if (t->hurry) t->deadline = now_us;
    if (t->results == t->exit_at_result) actions_exit(out, t->exit_code);
    break;
  }
}

static uint64_t toy_deadline(const void *self) {
  return ((const toy *)self)->deadline;
}

static void toy_after(void *context) {
  ((toy *)context)->after++;
}

static void toy_open(toy *t, uv_loop_t *loop, uint8_t name) {
  machine_host_options o = {
      .machine = {t, toy_step, toy_deadline}, .allow_plaintext = true, .after_step = toy_after, .context = t};
  err e;
  o.self.bytes[0] = name;
  t->deadline = MACHINE_NEVER;
  if (machine_host_open(&t->host, loop, &o, &e)) fail_msg("%s", e.text);
}

static void set_deadline(toy *t, uint64_t at) {
  t->deadline = at;
  machine_host_set_machine(t->host, (machine){t, toy_step, toy_deadline});
}

static void toy_bind(toy *t) {
  err e;
  if (transport_bind(machine_host_transport(t->host), "tcp://127.0.0.1:*", t->address, sizeof t->address, &e))
    fail_msg("%s", e.text);
}

static void close_loop(uv_loop_t *loop) {
  uv_run(loop, UV_RUN_DEFAULT);
  assert_int_equal(uv_loop_close(loop), 0);
}

static void run_until(uv_loop_t *loop, const int *value, int wanted) {
  uint64_t end = clock_us() + 10000000;
  while (*value < wanted && clock_us() < end) uv_run(loop, UV_RUN_ONCE);
  assert_true(*value >= wanted);
}

static void wakes_at_the_deadline(void **state) {
  (void)state;
  uv_loop_t loop;
  toy t = {0};
  int in_time = 0;
  uv_loop_init(&loop);
  toy_open(&t, &loop, 1);
  for (int i = 1; i <= 20; i++) {
    uint64_t at = clock_us() + 300 + 97 * (uint64_t)i; /* parts of a millisecond */
    set_deadline(&t, at);
    run_until(&loop, &t.ticks, i);
    assert_int_equal(t.ticks, i);
    assert_true(t.woken_us >= at);
    in_time += t.woken_us < at + LATE_US;
  }
  assert_true(in_time > 0);
  assert_int_equal(t.after, 20);
  set_deadline(&t, clock_us() + 3600000000u);
  set_deadline(&t, clock_us() + 2000); /* sooner than what the timer is set to */
  run_until(&loop, &t.ticks, 21);
  set_deadline(&t, clock_us() + 2000);
  set_deadline(&t, MACHINE_NEVER); /* not at all, after all */
  usleep(5000);
  uv_run(&loop, UV_RUN_NOWAIT);
  assert_int_equal(t.ticks, 21);
  set_deadline(&t, 0); /* long past: now */
  run_until(&loop, &t.ticks, 22);
  machine_host_close(t.host);
  close_loop(&loop);
}

/* Too many wake-ups would eat a processor; none would hang. */
static void a_stuck_deadline_is_no_busy_loop(void **state) {
  (void)state;
  uv_loop_t loop;
  toy t = {.stuck = true, .exit_at_tick = 20, .exit_code = 7};
  uv_loop_init(&loop);
  toy_open(&t, &loop, 1);
  set_deadline(&t, 1);
  uint64_t start = clock_us();
  assert_int_equal(machine_host_exit_code(t.host), -1);
  uv_run(&loop, UV_RUN_DEFAULT);
  assert_int_equal(machine_host_exit_code(t.host), 7);
  assert_true(clock_us() - start >= 19 * 900);
  machine_host_close(t.host);
  close_loop(&loop);
}

static void messages_go_round(void **state) {
  (void)state;
  uv_loop_t loop;
  toy server = {.echo = true}, client = {0};
  uv_loop_init(&loop);
  toy_open(&server, &loop, 1);
  toy_bind(&server);
  toy_open(&client, &loop, 2);
  actions out;
  actions_init(&out);
  actions_connect(&out, 42, (wire_string){server.address, (uint32_t)strlen(server.address)});
  machine_host_perform(client.host, &out);
  assert_int_equal(out.count, 0); /* done and reset */
  assert_int_equal(client.connected, 1);
  assert_int_equal(client.tags, 42);
  assert_true(client.peer != 0);
  msg ping = {.type = MSG_PING, .to = {{9}}};
  for (int i = 1; i <= 50; i++) {
    while (client.messages < i) { /* dropped as long as the connection is not up */
      actions_send(&out, client.peer, &ping);
      machine_host_perform(client.host, &out);
      uv_run(&loop, UV_RUN_NOWAIT);
      usleep(100);
    }
  }
  assert_true(server.messages >= 50);
  assert_int_equal(server.disconnected, 0);
  machine_host_close(client.host);
  run_until(&loop, &server.disconnected, 1);
  assert_true(server.gone != 0);
  machine_host_close(server.host);
  actions_fini(&out);
  close_loop(&loop);
}

/* The process was stopped beyond its deadline: what comes with its waking up is looked at before the tick. */
static void a_stall_puts_messages_first(void **state) {
  (void)state;
  uv_loop_t loop;
  toy server = {.echo = true}, client = {0};
  uv_loop_init(&loop);
  toy_open(&server, &loop, 1);
  toy_bind(&server);
  toy_open(&client, &loop, 2);
  actions out;
  actions_init(&out);
  actions_connect(&out, 42, (wire_string){server.address, (uint32_t)strlen(server.address)});
  machine_host_perform(client.host, &out);
  msg ping = {.type = MSG_PING, .to = {{9}}};
  for (int i = 1; i <= 3; i++) {
    int heard = server.messages;
    while (server.messages == heard) {
      actions_send(&out, client.peer, &ping);
      machine_host_perform(client.host, &out);
      uv_run(&loop, UV_RUN_NOWAIT);
      usleep(100);
    }
    for (int k = 0; k < 200; k++, usleep(100))
      uv_run(&loop, UV_RUN_NOWAIT); /* whatever is under way has come */
    heard = server.messages;
    set_deadline(&server, clock_us() + 1000);
    usleep(700000);
    actions_send(&out, client.peer, &ping);
    machine_host_perform(client.host, &out);
    run_until(&loop, &server.ticks, i);
    assert_int_equal(server.heard_at_tick, heard + 1);
  }
  machine_host_close(server.host);
  machine_host_close(client.host);
  actions_fini(&out);
  close_loop(&loop);
}

static void connecting_answers_every_tag(void **state) {
  (void)state;
  uv_loop_t loop;
  toy t = {.reconnect = true};
  uv_loop_init(&loop);
  toy_open(&t, &loop, 1);
  toy_bind(&t);
  actions out;
  actions_init(&out);
  for (int i = 0; i < 12; i++)
    actions_connect(&out, 1, (wire_string){t.address, (uint32_t)strlen(t.address)});
  machine_host_perform(t.host, &out);
  assert_int_equal(t.connected, 14); /* two of them asked for by the step that got the first */
  assert_int_equal(t.tags, 12 + 2000);
  actions_connect(&out, 5, (wire_string){"gopher://x", 10});
  machine_host_perform(t.host, &out);
  assert_int_equal(t.connected, 15);
  assert_int_equal(t.peer, 0); /* refused, and said so */
  actions_fini(&out);
  machine_host_close(t.host);
  close_loop(&loop);
}

static void results_reach_the_machine(void **state) {
  (void)state;
  uv_loop_t loop;
  toy t = {0};
  int result;
  uv_loop_init(&loop);
  toy_open(&t, &loop, 1);
  machine_host_step(t.host, &(event){.kind = EVENT_RESULT, .result = &result});
  assert_int_equal(t.results, 1);
  assert_ptr_equal(t.result, &result);
  assert_int_equal(t.after, 1);
  machine_host_close(t.host);
  close_loop(&loop);
}

/* --- steps on another thread --- */

#define ELSEWHERE 2000

typedef struct visitor { /* the other thread */
  toy *toy;
  int steps, after;
  bool news; /* what its `after` answers */
} visitor;

static bool visitor_after(void *context) {
  visitor *v = context;
  v->after++;
  v->toy->connected++; /* plain on purpose, like all of the toy: TSan reports a step beside another */
  return v->news;
}

static void *visit(void *argument) {
  visitor *v = argument;
  for (int i = 0; i < v->steps; i++)
    machine_host_step_elsewhere(v->toy->host, &(event){.kind = EVENT_RESULT}, visitor_after, v);
  return NULL;
}

static void run_beside(uv_loop_t *loop, visitor *v) {
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, visit, v), 0);
  uv_run(loop, UV_RUN_DEFAULT);
  pthread_join(thread, NULL);
  assert_int_equal(v->after, v->steps);
}

/* Both threads step the machine at once; the last step's action ends the loop. */
static void steps_elsewhere_are_steps(void **state) {
  (void)state;
  uv_loop_t loop;
  toy t = {.exit_at_result = ELSEWHERE, .exit_code = 5, .stuck = true};
  visitor v = {.toy = &t, .steps = ELSEWHERE};
  uv_loop_init(&loop);
  toy_open(&t, &loop, 1);
  set_deadline(&t, 1); /* the loop's thread ticks on and on */
  run_beside(&loop, &v);
  assert_int_equal(machine_host_exit_code(t.host), 5);
  assert_int_equal(t.results, ELSEWHERE);
  assert_int_equal(t.connected, ELSEWHERE);
  machine_host_close(t.host);
  close_loop(&loop);
}

/* A step elsewhere wakes the loop for a nearer deadline and for what its `after` says, and for nothing else.
 */
static void steps_elsewhere_wake_the_loop(void **state) {
  (void)state;
  uv_loop_t loop;
  toy t = {0};
  visitor v = {.toy = &t, .steps = 1};
  uv_loop_init(&loop);
  toy_open(&t, &loop, 1);
  set_deadline(&t, clock_us() + 3600000000u);
  visit(&v);
  usleep(5000);
  uv_run(&loop, UV_RUN_NOWAIT);
  assert_int_equal(t.after, 0);
  v.news = true;
  visit(&v);
  run_until(&loop, &t.after, 1);
  assert_int_equal(t.ticks, 0);
  v.news = false;
  t.hurry = true;
  visit(&v);
  run_until(&loop, &t.ticks, 1);
  machine_host_close(t.host);
  close_loop(&loop);
}

static void the_first_signal_drains_the_second_ends(void **state) {
  (void)state;
  static const int seconds[] = {SIGTERM, SIGINT};
  for (int i = 0; i < 2; i++) {
    uv_loop_t loop;
    toy t = {0};
    uv_loop_init(&loop);
    toy_open(&t, &loop, 1);
    toy_bind(&t);
    raise(SIGTERM);
    run_until(&loop, &t.drains, 1);
    assert_int_equal(machine_host_exit_code(t.host), -1);
    raise(seconds[i]);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(t.drains, 1);
    assert_int_equal(machine_host_exit_code(t.host), MACHINE_HOST_EXIT_SIGNAL);
    machine_host_close(t.host);
    close_loop(&loop);
  }
}

static void a_hangup_ends_at_once_and_ignored_signals_stay_so(void **state) {
  (void)state;
  uv_loop_t loop;
  toy t = {0};
  uv_loop_init(&loop);
  signal(SIGINT, SIG_IGN);
  toy_open(&t, &loop, 1);
  toy_bind(&t);
  raise(SIGINT); /* the parent's business */
  raise(SIGHUP);
  uv_run(&loop, UV_RUN_DEFAULT);
  assert_int_equal(t.drains, 0);
  assert_int_equal(machine_host_exit_code(t.host), MACHINE_HOST_EXIT_SIGNAL);
  machine_host_close(t.host);
  close_loop(&loop);
  signal(SIGINT, SIG_DFL);
}

/* Bind first, then the machine that must know the address. */
static void a_machine_may_come_later(void **state) {
  (void)state;
  uv_loop_t loop;
  toy t = {0};
  machine_host_options o = {.allow_plaintext = true, .after_step = toy_after, .context = &t};
  err e;
  uv_loop_init(&loop);
  if (machine_host_open(&t.host, &loop, &o, &e)) fail_msg("%s", e.text);
  toy_bind(&t);
  machine_host_step(t.host, &(event){.kind = EVENT_TICK}); /* nobody there: nothing happens */
  assert_int_equal(t.after, 0);
  set_deadline(&t, clock_us() + 1000);
  run_until(&loop, &t.ticks, 1);
  machine_host_close(t.host);
  close_loop(&loop);
}

int main(void) {
  signal(SIGINT, SIG_DFL); /* a shell ignores it for what it starts in the background */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wakes_at_the_deadline),
      cmocka_unit_test(a_stuck_deadline_is_no_busy_loop),
      cmocka_unit_test(messages_go_round),
      cmocka_unit_test(a_stall_puts_messages_first),
      cmocka_unit_test(connecting_answers_every_tag),
      cmocka_unit_test(results_reach_the_machine),
      cmocka_unit_test(steps_elsewhere_are_steps),
      cmocka_unit_test(steps_elsewhere_wake_the_loop),
      cmocka_unit_test(the_first_signal_drains_the_second_ends),
      cmocka_unit_test(a_hangup_ends_at_once_and_ignored_signals_stay_so),
      cmocka_unit_test(a_machine_may_come_later),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
