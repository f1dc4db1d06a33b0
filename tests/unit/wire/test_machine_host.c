/* libs: wire base */
#include "wire/machine_host.h"

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

#include "tests/support/patience.h"

#define CONNECTS 20

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

/* The programs of a test. They are closed even if it fails: libuv tells a signal to every loop it knows. */
typedef struct setup {
  uv_loop_t loop;
  toy toys[2];
  clock_source clock; /* of the toys that are opened; NULL: the real one */
} setup;

static int open_setup(void **state) {
  setup *s = *state = calloc(1, sizeof *s);
  return uv_loop_init(&s->loop);
}

static int close_setup(void **state) {
  setup *s = *state;
  for (int i = 0; i < 2; i++) machine_host_close(s->toys[i].host);
  uv_run(&s->loop, UV_RUN_DEFAULT);
  int code = uv_loop_close(&s->loop);
  free(s);
  return code;
}

static toy *toy_open_with(setup *s, int which, toy how, machine m) {
  toy *t = &s->toys[which];
  *t = how;
  t->deadline = MACHINE_NEVER;
  machine_host_options o = {
      .machine = m, .allow_plaintext = true, .clock = s->clock, .after_step = toy_after, .context = t};
  err e;
  o.self.bytes[0] = (uint8_t)(1 + which);
  if (machine_host_open(&t->host, &s->loop, &o, &e)) fail_msg("%s", e.text);
  return t;
}

static toy *toy_open(setup *s, int which, toy how) {
  return toy_open_with(s, which, how, (machine){&s->toys[which], toy_step, toy_deadline});
}

static void toy_close(toy *t) {
  machine_host_close(t->host);
  t->host = NULL;
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

static void on_late(uv_timer_t *timer) {
  *(bool *)timer->data = true;
}

/* The loop sleeps between events, so a lost wake-up shows. */
static void run_until(uv_loop_t *loop, const int *value, int wanted) {
  bool late = false;
  uv_timer_t timer;
  uv_timer_init(loop, &timer);
  timer.data = &late;
  uv_timer_start(&timer, on_late, PATIENCE_MS, 0);
  while (*value < wanted && !late) uv_run(loop, UV_RUN_ONCE);
  uv_close((uv_handle_t *)&timer, NULL);
  uv_run(loop, UV_RUN_NOWAIT);
  assert_true(*value >= wanted);
}

static void wakes_at_the_deadline(void **state) {
  setup *s = *state;
  toy *t = toy_open(s, 0, (toy){0});
  for (int i = 1; i <= 20; i++) {
    uint64_t at = clock_us() + 300 + 97 * (uint64_t)i; /* parts of a millisecond */
    set_deadline(t, at);
    run_until(&s->loop, &t->ticks, i);
    assert_int_equal(t->ticks, i);
    assert_true(t->woken_us >= at);
  }
  assert_int_equal(t->after, 20);
  set_deadline(t, clock_us() + 3600000000u);
  set_deadline(t, clock_us() + 2000); /* sooner than what the timer is set to */
  run_until(&s->loop, &t->ticks, 21);
  set_deadline(t, clock_us() + 2000);
  set_deadline(t, MACHINE_NEVER); /* not at all, after all */
  usleep(5000);
  uv_run(&s->loop, UV_RUN_NOWAIT);
  assert_int_equal(t->ticks, 21);
  set_deadline(t, 0); /* long past: now */
  run_until(&s->loop, &t->ticks, 22);
}

/* Too many wake-ups would eat a processor; none would hang. */
static void a_stuck_deadline_is_no_busy_loop(void **state) {
  setup *s = *state;
  toy *t = toy_open(s, 0, (toy){.stuck = true, .exit_at_tick = 20, .exit_code = 7});
  set_deadline(t, 1);
  uint64_t start = clock_us();
  assert_int_equal(machine_host_exit_code(t->host), -1);
  uv_run(&s->loop, UV_RUN_DEFAULT);
  assert_int_equal(machine_host_exit_code(t->host), 7);
  uint64_t took = clock_us() - start;
  assert_true(took >= 19 * 900);
}

/* The client calls the server. */
static void connect_to(toy *client, const toy *server) {
  actions out;
  actions_init(&out);
  actions_connect(&out, 42, (wire_string){server->address, (uint32_t)strlen(server->address)});
  machine_host_perform(client->host, &out);
  assert_int_equal(out.count, 0); /* done and reset */
  actions_fini(&out);
  assert_int_equal(client->connected, 1);
  assert_int_equal(client->tags, 42);
  assert_true(client->peer != 0);
}

static void send_ping(toy *client) {
  actions out;
  actions_init(&out);
  msg ping = {.type = MSG_PING, .to = {{9}}};
  actions_send(&out, client->peer, &ping);
  machine_host_perform(client->host, &out);
  actions_fini(&out);
}

/* PINGs are dropped as long as the connection is not up. */
static void ping_until_answered(setup *s, toy *client, int answers) {
  while (client->messages < answers) {
    send_ping(client);
    uv_run(&s->loop, UV_RUN_NOWAIT);
    usleep(100);
  }
}

static void messages_go_round(void **state) {
  setup *s = *state;
  toy *server = toy_open(s, 0, (toy){.echo = true});
  toy_bind(server);
  toy *client = toy_open(s, 1, (toy){0});
  connect_to(client, server);
  for (int i = 1; i <= 50; i++) ping_until_answered(s, client, i);
  assert_true(server->messages >= 50);
  assert_int_equal(server->disconnected, 0);
  toy_close(client);
  run_until(&s->loop, &server->disconnected, 1);
  assert_true(server->gone != 0);
}

static _Atomic uint64_t test_us;

static uint64_t test_clock(void) {
  return test_us;
}

/* The process was stopped beyond its deadline: what comes soon after its waking up is looked at before the
 * tick. */
static void a_stall_puts_messages_first(void **state) {
  setup *s = *state;
  test_us = 1000000;
  s->clock = test_clock;
  toy *server = toy_open(s, 0, (toy){.echo = true});
  toy_bind(server);
  toy *client = toy_open(s, 1, (toy){0});
  connect_to(client, server);
  ping_until_answered(s, client, 1);
  for (int i = 1; i <= 3; i++) {
    int heard = server->messages;
    set_deadline(server, test_us + 1000);
    test_us += 700000;
    machine_host_clock_moved(server->host);
    assert_int_equal(server->ticks, i - 1);
    send_ping(client);
    run_until(&s->loop, &server->messages, heard + 1);
    machine_host_clock_moved(server->host);
    assert_int_equal(server->ticks, i - 1);
    test_us += 50000;
    machine_host_clock_moved(server->host);
    assert_int_equal(server->ticks, i);
  }
  set_deadline(server, test_us + 1000);
  test_us += 400000; /* late, but no stall */
  machine_host_clock_moved(server->host);
  assert_int_equal(server->ticks, 4);
}

static void connecting_answers_every_tag(void **state) {
  setup *s = *state;
  toy *t = toy_open(s, 0, (toy){.reconnect = true});
  toy_bind(t);
  actions out;
  actions_init(&out);
  for (int i = 0; i < 12; i++)
    actions_connect(&out, 1, (wire_string){t->address, (uint32_t)strlen(t->address)});
  machine_host_perform(t->host, &out);
  assert_int_equal(t->connected, 14); /* two of them asked for by the step that got the first */
  assert_int_equal(t->tags, 12 + 2000);
  actions_connect(&out, 5, (wire_string){"gopher://x", 10});
  machine_host_perform(t->host, &out);
  assert_int_equal(t->connected, 15);
  assert_int_equal(t->peer, 0); /* refused, and said so */
  actions_fini(&out);
}

static void results_reach_the_machine(void **state) {
  setup *s = *state;
  toy *t = toy_open(s, 0, (toy){0});
  int result;
  machine_host_step(t->host, &(event){.kind = EVENT_RESULT, .result = &result});
  assert_int_equal(t->results, 1);
  assert_ptr_equal(t->result, &result);
  assert_int_equal(t->after, 1);
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
  setup *s = *state;
  toy *t = toy_open(s, 0, (toy){.exit_at_result = ELSEWHERE, .exit_code = 5, .stuck = true});
  visitor v = {.toy = t, .steps = ELSEWHERE};
  set_deadline(t, 1); /* the loop's thread ticks on and on */
  run_beside(&s->loop, &v);
  assert_int_equal(machine_host_exit_code(t->host), 5);
  assert_int_equal(t->results, ELSEWHERE);
  assert_int_equal(t->connected, ELSEWHERE);
}

/* A step elsewhere wakes the loop for a nearer deadline and for what its `after` says, and for nothing else.
 */
static void steps_elsewhere_wake_the_loop(void **state) {
  setup *s = *state;
  toy *t = toy_open(s, 0, (toy){0});
  visitor v = {.toy = t, .steps = 1};
  set_deadline(t, clock_us() + 3600000000u);
  visit(&v);
  uv_run(&s->loop, UV_RUN_NOWAIT);
  assert_int_equal(t->after, 0);
  v.news = true;
  visit(&v);
  run_until(&s->loop, &t->after, 1);
  assert_int_equal(t->ticks, 0);
  v.news = false;
  t->hurry = true;
  visit(&v);
  run_until(&s->loop, &t->ticks, 1);
}

static void the_first_signal_drains_the_second_ends(void **state) {
  setup *s = *state;
  static const int seconds[] = {SIGTERM, SIGINT};
  for (int i = 0; i < 2; i++) {
    toy *t = toy_open(s, 0, (toy){0});
    toy_bind(t);
    raise(SIGTERM);
    run_until(&s->loop, &t->drains, 1);
    assert_int_equal(machine_host_exit_code(t->host), -1);
    raise(seconds[i]);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(t->drains, 1);
    assert_int_equal(machine_host_exit_code(t->host), MACHINE_HOST_EXIT_SIGNAL);
    toy_close(t);
    uv_run(&s->loop, UV_RUN_DEFAULT);
  }
}

static void a_hangup_ends_at_once_and_ignored_signals_stay_so(void **state) {
  setup *s = *state;
  signal(SIGINT, SIG_IGN);
  toy *t = toy_open(s, 0, (toy){0});
  toy_bind(t);
  raise(SIGINT); /* the parent's business */
  raise(SIGHUP);
  uv_run(&s->loop, UV_RUN_DEFAULT);
  assert_int_equal(t->drains, 0);
  assert_int_equal(machine_host_exit_code(t->host), MACHINE_HOST_EXIT_SIGNAL);
  signal(SIGINT, SIG_DFL);
}

/* Bind first, then the machine that must know the address. */
static void a_machine_may_come_later(void **state) {
  setup *s = *state;
  toy *t = toy_open_with(s, 0, (toy){0}, (machine){0});
  toy_bind(t);
  machine_host_step(t->host, &(event){.kind = EVENT_TICK}); /* nobody there: nothing happens */
  assert_int_equal(t->after, 0);
  set_deadline(t, clock_us() + 1000);
  run_until(&s->loop, &t->ticks, 1);
}

int main(void) {
  signal(SIGINT, SIG_DFL); /* a shell ignores it for what it starts in the background */
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_setup, close_setup)
  const struct CMUnitTest tests[] = {
      TEST(wakes_at_the_deadline),
      TEST(a_stuck_deadline_is_no_busy_loop),
      TEST(messages_go_round),
      TEST(a_stall_puts_messages_first),
      TEST(connecting_answers_every_tag),
      TEST(results_reach_the_machine),
      TEST(steps_elsewhere_are_steps),
      TEST(steps_elsewhere_wake_the_loop),
      TEST(the_first_signal_drains_the_second_ends),
      TEST(a_hangup_ends_at_once_and_ignored_signals_stay_so),
      TEST(a_machine_may_come_later),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
