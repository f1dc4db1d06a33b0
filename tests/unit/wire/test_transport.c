/* libs: wire base : cost=15 */
/* Messages between programs, the addresses where they meet, and peers that come and go. */
#include "tests/support/transport_nodes.h"
#include <pthread.h>
#include <stdlib.h>

static void there_and_back(const char *endpoint, const char *seen) {
  uv_loop_t loop;
  node server = {.echo = true}, client = {0};
  peer_id to = pair_open(&loop, &server, &client, endpoint);
  assert_string_equal(server.last.u.hello.seen.address, seen); /* of the HELLO */
  assert_false(server.last.u.hello.seen.away);
  for (uint64_t i = 1; i <= 100; i++) {
    msg m = ping_of(i);
    assert_true(transport_send(client.wire, to, &m));
    assert_true(run_until(&loop, &client.heard, i, WAIT_MS));
    assert_int_equal(client.last.type, MSG_PING);
    assert_int_equal(client.last.u.ping.sequence, i);
    assert_int_equal(client.last_peer, to);
  }
  transport_counters c = transport_count(client.wire), s = transport_count(server.wire);
  assert_int_equal(c.sent, 101);
  assert_int_equal(c.received, 100);
  assert_int_equal(s.received, 101);
  assert_int_equal(server.unsent, 0);
  assert_true(c.sent_bytes > 101 * 10 && c.sent_bytes == s.received_bytes &&
              c.received_bytes == s.sent_bytes);
  assert_int_equal(s.dropped + s.bad_frames + c.dropped + c.bad_frames, 0);
  pair_close(&loop, &server, &client);
}

static void test_messages_go_there_and_back_over_tcp(void **state) {
  (void)state;
  there_and_back("tcp://127.0.0.1:*", "127.0.0.1");
  there_and_back("tcp://localhost:*", "127.0.0.1");
}

static void test_messages_go_there_and_back_over_ipv6(void **state) {
  (void)state;
  if (access("/proc/net/if_inet6", R_OK) != 0) skip();
  there_and_back("tcp://[::1]:*", "::1");
}

static void test_messages_go_there_and_back_over_ipc(void **state) {
  (void)state;
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "pair");
  there_and_back(endpoint, "");
}

static void test_a_connection_waits_for_who_binds_later(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {0}, client = {0};
  char endpoint[100], bound[128];
  uint64_t never = 0;
  err e = {0};
  msg hello = hello_of(), ping = ping_of(1);
  uv_loop_init(&loop);
  node_open(&server, &loop, 1, false);
  node_open(&client, &loop, 2, false);
  temp_endpoint(endpoint, sizeof endpoint, "late");
  peer_id to = transport_connect(client.wire, endpoint, &e);
  assert_true(transport_send(client.wire, to, &hello));
  assert_true(transport_send(client.wire, to, &hello)); /* repeated: one is enough */
  assert_false(transport_send(client.wire, to, &ping)); /* all else is dropped and counted */
  assert_int_equal(transport_count(client.wire).dropped, 1);
  assert_false(run_until(&loop, &never, 1, 120));
  assert_int_equal(transport_bind(server.wire, endpoint, bound, sizeof bound, &e), ERR_OK);
  assert_true(run_until(&loop, &server.heard, 1, WAIT_MS));
  assert_int_equal(server.last.type, MSG_HELLO);
  assert_true(transport_send(client.wire, to, &ping));
  assert_true(run_until(&loop, &server.heard, 2, WAIT_MS));
  assert_int_equal(server.last.type, MSG_PING); /* HELLO came once */
  pair_close(&loop, &server, &client);
}

/* A send takes in the signal that a message has come: the message must be seen all the same. */
static void test_a_message_is_seen_although_a_send_took_its_signal(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {0}, client = {0};
  peer_id to = pair_open(&loop, &server, &client, "tcp://127.0.0.1:*");
  peer_id back = server.last_peer;
  for (uint64_t i = 1; i <= 5; i++) {
    msg m = ping_of(i);
    assert_true(transport_send(server.wire, back, &m));
    usleep(20000); /* it is there, and signalled; nobody has looked */
    assert_true(transport_send(client.wire, to, &m));
    assert_true(run_until(&loop, &client.heard, i, WAIT_MS));
  }
  pair_close(&loop, &server, &client);
}

/* 1000 messages at once, answered at once: more than one turn of the loop takes, less than the queue holds.
 */
static void test_a_burst_arrives_whole_and_in_order(void **state) {
  (void)state;
  const uint64_t count = 1000;
  uv_loop_t loop;
  node server = {.echo = true}, client = {.checks_order = true};
  peer_id to = pair_open(&loop, &server, &client, "tcp://127.0.0.1:*");
  server.checks_order = true;
  for (uint64_t i = 0; i < count; i++) {
    msg m = ping_of(i);
    assert_true(transport_send(client.wire, to, &m));
  }
  assert_true(run_until(&loop, &client.heard, count, WAIT_MS));
  assert_int_equal(client.sum, count * (count - 1) / 2);
  assert_int_equal(server.unsent, 0);
  pair_close(&loop, &server, &client);
}

/* Milliseconds that the loop would sleep now; -1: until something happens. */
static int sleep_after_a_message(uint32_t busy_poll_us, uint64_t later_us) {
  uv_loop_t loop;
  node server = {0}, client = {.busy_poll_us = busy_poll_us, .clock = standing_clock};
  peer_id to = pair_open(&loop, &server, &client, "tcp://127.0.0.1:*");
  msg m = ping_of(1);
  assert_true(transport_send(client.wire, to, &m));
  assert_true(run_until(&loop, &server.heard, 1, WAIT_MS));
  for (int turn = 0; turn < 5; turn++) uv_run(&loop, UV_RUN_NOWAIT); /* nothing is left to be looked at */
  standing_us += later_us;
  uv_run(&loop, UV_RUN_NOWAIT);
  int sleeps = uv_backend_timeout(&loop);
  pair_close(&loop, &server, &client);
  return sleeps;
}

static void test_a_loop_that_polls_sleeps_only_when_it_was_quiet_for_so_long(void **state) {
  (void)state;
  assert_int_equal(sleep_after_a_message(0, 0), -1);
  assert_int_equal(sleep_after_a_message(1000, 0), 0);
  assert_int_equal(sleep_after_a_message(1000, 999), 0);
  assert_int_equal(sleep_after_a_message(1000, 1000), -1);
}

/* The server's loop does not run meanwhile, so that queues fill up. Over tcp the system ends a connection
 * whose other end has had no room for some seconds, which a slow machine needs for this. */
static void test_a_full_queue_drops_and_counts(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {0}, client = {0};
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "full");
  peer_id to = pair_open(&loop, &server, &client, endpoint);
  msg hello = hello_of();
  uint64_t sent = 0, tries = 400000;
  for (uint64_t i = 0; i < tries; i++) {
    msg m = ping_of(i);
    sent += transport_send(client.wire, to, &m);
  }
  assert_true(sent < tries);
  assert_int_equal(transport_count(client.wire).dropped, tries - sent);
  assert_true(transport_send(client.wire, to, &hello));
  assert_true(run_until(&loop, &server.heard, sent, WAIT_MS));
  pair_close(&loop, &server, &client);
}

/* --- addresses --- */

#define X10 "xxxxxxxxxx"
#define X50 X10 X10 X10 X10 X10
#define D16 "0123456789abcdef"
#define KEY D16 D16 D16 D16

static const struct bind_case {
  const char *endpoint, *text; /* what the error says */
  bool allow;
  int code;
} bind_cases[] = {
    {"tcp://0.0.0.0:*", "", false, ERR_OK},
    {"tcp://*:*", "", false, ERR_OK},
    {"tcp://0.0.0.0:*", "", true, ERR_OK},
    {"tcp://127.0.0.1:5555#" KEY, "the key is this program's own", false, ERR_ARG},
    {"tcp://127.0.0.1:5555#" X50, "is no key: one has 64 hexadecimal digits", false, ERR_ARG},
    {"tcp://127.1.2.3:*", "", false, ERR_OK},
    {"tcp://127.0.0.1", "tcp://ADDRESS:PORT", false, ERR_ARG},
    {"tcp://127.0.0.1:", "tcp://ADDRESS:PORT", false, ERR_ARG},
    {"tcp://127.0.0.1:0", "tcp://ADDRESS:PORT", false, ERR_ARG},
    {"tcp://127.0.0.1:65536", "tcp://ADDRESS:PORT", false, ERR_ARG},
    {"tcp://127.0.0.1:80a", "tcp://ADDRESS:PORT", false, ERR_ARG},
    {"tcp://::1:5555", "tcp://ADDRESS:PORT", false, ERR_ARG},
    {"udp://127.0.0.1:5555", "write ipc://PATH or tcp://", false, ERR_ARG},
    {"inproc://x", "write ipc://PATH or tcp://", false, ERR_ARG},
    {"", "write ipc://PATH or tcp://", false, ERR_ARG},
    {"ipc://", "has no path", false, ERR_ARG},
    {"ipc://@name", "every account", false, ERR_ARG},
    {"ipc:///tmp/" X50 X50 X50, "choose a shorter one", false, ERR_ARG},
};

static void check_bind(struct bind_case c) {
  uv_loop_t loop;
  node n = {0};
  char bound[128] = "";
  err e = {0};
  uv_loop_init(&loop);
  node_open(&n, &loop, 1, c.allow);
  int code = transport_bind(n.wire, c.endpoint, bound, sizeof bound, &e);
  if (code != c.code || !strstr(e.text, c.text)) fail_msg("%s: %s: %s", c.endpoint, err_name(code), e.text);
  if (code == ERR_OK) assert_non_null(strrchr(bound, ':'));
  if (code == ERR_ARG && !c.allow && !strstr(c.endpoint, "@") && !strstr(c.endpoint, KEY))
    assert_int_equal(transport_connect(n.wire, c.endpoint, &e), 0);
  transport_close(n.wire);
  finish_loop(&loop);
}

static void test_an_address_is_bound_or_refused_with_its_reason(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bind_cases / sizeof *bind_cases; i++) check_bind(bind_cases[i]);
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "no-folder/socket");
  check_bind((struct bind_case){endpoint, "does its folder exist", false, ERR_IO});
}

static void test_an_address_in_use_is_refused_until_it_is_free(void **state) {
  (void)state;
  char ipc[100], bound[128], other[128];
  temp_endpoint(ipc, sizeof ipc, "taken");
  const char *const endpoints[] = {"tcp://127.0.0.1:*", ipc};
  for (int i = 0; i < 2; i++) {
    uv_loop_t loop;
    node first = {0}, second = {0};
    err e = {0};
    uv_loop_init(&loop);
    node_open(&first, &loop, 1, false);
    node_open(&second, &loop, 2, false);
    assert_int_equal(transport_bind(first.wire, endpoints[i], bound, sizeof bound, &e), ERR_OK);
    assert_int_equal(transport_bind(second.wire, bound, other, sizeof other, &e), ERR_IO);
    assert_non_null(strstr(e.text, bound));
    assert_non_null(strstr(e.text, "is in use: end the program"));
    transport_close(first.wire);
    uv_run(&loop, UV_RUN_NOWAIT);
    /* The address is free again, at the latest when the system has let it go. */
    WAIT_UNTIL(transport_bind(second.wire, bound, other, sizeof other, &e) == ERR_OK);
    transport_close(second.wire);
    finish_loop(&loop);
  }
}

/* What a listener made goes with it, but not what another program has put in its place. */
static void test_a_socket_is_taken_away_by_whom_it_belongs_to(void **state) {
  (void)state;
  for (int replaced = 0; replaced < 2; replaced++) {
    char ipc[100], bound[128];
    uv_loop_t loop;
    node n = {0};
    err e = {0};
    uv_loop_init(&loop);
    node_open(&n, &loop, 1, false);
    temp_endpoint(ipc, sizeof ipc, "own");
    const char *path = ipc + strlen("ipc://");
    assert_int_equal(transport_bind(n.wire, ipc, bound, sizeof bound, &e), ERR_OK);
    assert_int_equal(access(path, F_OK), 0);
    if (replaced) {
      const scratch_path_text other = scratch_path("other");
      fclose(fopen(other.text, "w"));
      assert_int_equal(rename(other.text, path), 0);
    }
    transport_close(n.wire);
    finish_loop(&loop);
    assert_int_equal(access(path, F_OK), replaced ? 0 : -1);
  }
}

/* A file that somebody needs is not made room of. */
static void test_a_file_that_is_no_socket_is_left_alone(void **state) {
  (void)state;
  char ipc[100], bound[128], byte = 0;
  temp_endpoint(ipc, sizeof ipc, "file");
  const char *path = ipc + strlen("ipc://");
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs("x", f);
  fclose(f);
  uv_loop_t loop;
  node n = {0};
  err e = {0};
  uv_loop_init(&loop);
  node_open(&n, &loop, 1, false);
  assert_int_equal(transport_bind(n.wire, ipc, bound, sizeof bound, &e), ERR_IO);
  assert_non_null(strstr(e.text, "no socket: choose another path"));
  f = fopen(path, "r");
  assert_non_null(f);
  assert_int_equal(fread(&byte, 1, 1, f), 1);
  fclose(f);
  unlink(path);
  transport_close(n.wire);
  finish_loop(&loop);
}

/* --- peers that leave --- */

static void test_a_vanished_peer_gets_nothing_more(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {0}, client = {0};
  pair_open(&loop, &server, &client, "tcp://127.0.0.1:*");
  peer_id gone = server.last_peer;
  msg m = ping_of(1);
  assert_true(transport_send(server.wire, gone, &m));
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  transport_close(client.wire);
  WAIT_UNTIL((uv_run(&loop, UV_RUN_NOWAIT), !transport_send(server.wire, gone, &m)));
  assert_true(transport_count(server.wire).dropped > 0);
  transport_disconnect(server.wire, gone);
  assert_false(transport_send(server.wire, gone, &m));
  assert_false(transport_send(server.wire, 0, &m));
  transport_close(server.wire);
  finish_loop(&loop);
}

/* Of the peer that vanished, and of no other. */
static void test_the_end_of_a_connection_is_told(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {0}, client = {0}, other = {0};
  char endpoint[100];
  err e = {0};
  temp_endpoint(endpoint, sizeof endpoint, "ends");
  for (int tcp = 0; tcp < 2; tcp++) {
    server = client = other = (node){0};
    pair_open(&loop, &server, &client, tcp ? "tcp://127.0.0.1:*" : endpoint);
    peer_id gone = server.last_peer;
    assert_int_equal(server.ended, 0);
    transport_close(client.wire);
    assert_true(run_until(&loop, &server.ended, 1, WAIT_MS));
    assert_int_equal(server.ended_peer, gone);
    transport_close(server.wire);
    finish_loop(&loop);
  }
  pair_open(&loop, &server, &other, endpoint);
  server.ended = 0;
  node_open(&client, &loop, 3, false);
  peer_id to = transport_connect(client.wire, endpoint, &e);
  msg hello = hello_of(), ping = ping_of(1);
  uint64_t heard = server.heard;
  assert_true(transport_send(client.wire, to, &hello));
  assert_true(run_until(&loop, &server.heard, heard + 1, WAIT_MS));
  transport_close(other.wire);
  assert_true(run_until(&loop, &server.ended, 1, WAIT_MS));
  assert_true(server.ended_peer != server.last_peer);
  heard = server.heard;
  assert_true(transport_send(client.wire, to, &ping)); /* the other connection is as it was */
  assert_true(run_until(&loop, &server.heard, heard + 1, WAIT_MS));
  assert_int_equal(server.ended, 1);
  pair_close(&loop, &server, &client);
}

/* The server goes and comes back at the same address: the connection mends itself, and the peer's numbers
 * stay. */
static void test_a_connection_mends_itself(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {0}, client = {0}, later = {0};
  char endpoint[100], bound[128];
  err e = {0};
  temp_endpoint(endpoint, sizeof endpoint, "again");
  peer_id to = pair_open(&loop, &server, &client, endpoint);
  transport_close(server.wire);
  uv_run(&loop, UV_RUN_NOWAIT);
  node_open(&later, &loop, 3, false);
  assert_int_equal(transport_bind(later.wire, endpoint, bound, sizeof bound, &e), ERR_OK);
  msg hello = hello_of();
  WAIT_UNTIL((transport_send(client.wire, to, &hello), run_until(&loop, &later.heard, 1, 100)));
  msg m = ping_of(4);
  assert_true(transport_send(later.wire, later.last_peer, &m));
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  assert_int_equal(client.last_peer, to);
  transport_close(client.wire);
  transport_close(later.wire);
  finish_loop(&loop);
}

static void test_a_peer_may_be_disconnected_in_its_callback(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {.echo = true}, client = {.leave = true};
  peer_id to = pair_open(&loop, &server, &client, "tcp://127.0.0.1:*");
  for (uint64_t i = 0; i < 10; i++) {
    msg m = ping_of(i);
    assert_true(transport_send(client.wire, to, &m));
  }
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  uv_run(&loop, UV_RUN_NOWAIT);
  assert_int_equal(client.heard, 1); /* nothing is delivered after it */
  msg m = ping_of(1);
  assert_false(transport_send(client.wire, to, &m));
  pair_close(&loop, &server, &client);
}

static void test_a_transport_may_be_closed_in_its_callback(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {.echo = true}, client = {.close = true};
  peer_id to = pair_open(&loop, &server, &client, "tcp://127.0.0.1:*");
  for (uint64_t i = 0; i < 10; i++) {
    msg m = ping_of(i);
    assert_true(transport_send(client.wire, to, &m));
  }
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  assert_null(client.wire);
  assert_int_equal(client.heard, 1);
  pair_close(&loop, &server, &client);
}

/* Its listener then hears of an end while it closes; the sanitizers' build sees what is lost. */
static void test_both_ends_may_close_at_once(void **state) {
  (void)state;
  for (int i = 0; i < 3000; i++) {
    uv_loop_t loop;
    node server = {.echo = true}, client = {0};
    char endpoint[100];
    temp_endpoint(endpoint, sizeof endpoint, "a-path-that-does-not-fit-into-a-message");
    pair_open(&loop, &server, &client, endpoint);
    transport_close(client.wire);
    client.wire = NULL;
    for (volatile int spin = 0; spin < (i % 400) * 100; spin++)
      continue; /* so that each moment has its turn */
    pair_close(&loop, &server, &client);
  }
}

/* --- two threads, two loops --- */

#define LATENCY_TRIPS 3000

typedef struct server_thread {
  uv_loop_t loop;
  uv_async_t stop;
  node n;
} server_thread;

static void on_stop(uv_async_t *a) {
  server_thread *s = a->data;
  transport_close(s->n.wire);
  uv_close((uv_handle_t *)a, NULL);
}

static void *server_run(void *context) {
  server_thread *s = context;
  uv_run(&s->loop, UV_RUN_DEFAULT);
  return NULL;
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Tells how long a round trip takes; no verdict, which would be the machine's. */
static void measure(const char *endpoint, bool plaintext) {
  static uint64_t times[LATENCY_TRIPS];
  server_thread s = {.n = {.echo = true}};
  uv_loop_t loop;
  node client = {0};
  pthread_t thread;
  char bound[128];
  err e = {0};
  msg hello = hello_of();
  uv_loop_init(&s.loop);
  uv_loop_init(&loop);
  uv_async_init(&s.loop, &s.stop, on_stop);
  s.stop.data = &s;
  node_open(&s.n, &s.loop, 1, plaintext);
  node_open(&client, &loop, 2, plaintext);
  assert_int_equal(transport_bind(s.n.wire, endpoint, bound, sizeof bound, &e), ERR_OK);
  pthread_create(&thread, NULL, server_run, &s);
  peer_id to = transport_connect(client.wire, bound, &e);
  assert_true(transport_send(client.wire, to, &hello));
  msg m = ping_of(0);
  while (!transport_send(client.wire, to, &m)) run_until(&loop, &client.heard, 1, 1);
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  for (uint64_t i = 0; i < LATENCY_TRIPS; i++) {
    uint64_t before = clock_us();
    assert_true(transport_send(client.wire, to, &m));
    while (client.heard < i + 2) uv_run(&loop, UV_RUN_ONCE);
    times[i] = clock_us() - before;
  }
  uv_async_send(&s.stop);
  pthread_join(thread, NULL);
  assert_int_equal(uv_loop_close(&s.loop), 0);
  transport_close(client.wire);
  finish_loop(&loop);
  qsort(times, LATENCY_TRIPS, sizeof times[0], by_value);
  print_message("round trip over %.6s%s median %d us, 99%% %d us\n", bound, plaintext ? " without keys" : "",
                (int)times[LATENCY_TRIPS / 2], (int)times[LATENCY_TRIPS * 99 / 100]);
}

static void test_two_threads_talk_to_each_other(void **state) {
  (void)state;
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "latency");
  measure(endpoint, false);
  measure("tcp://127.0.0.1:*", true);
  measure("tcp://127.0.0.1:*", false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_messages_go_there_and_back_over_tcp),
      cmocka_unit_test(test_messages_go_there_and_back_over_ipv6),
      cmocka_unit_test(test_messages_go_there_and_back_over_ipc),
      cmocka_unit_test(test_a_connection_waits_for_who_binds_later),
      cmocka_unit_test(test_a_message_is_seen_although_a_send_took_its_signal),
      cmocka_unit_test(test_a_burst_arrives_whole_and_in_order),
      cmocka_unit_test(test_a_loop_that_polls_sleeps_only_when_it_was_quiet_for_so_long),
      cmocka_unit_test(test_a_full_queue_drops_and_counts),
      cmocka_unit_test(test_an_address_is_bound_or_refused_with_its_reason),
      cmocka_unit_test(test_an_address_in_use_is_refused_until_it_is_free),
      cmocka_unit_test(test_a_socket_is_taken_away_by_whom_it_belongs_to),
      cmocka_unit_test(test_a_file_that_is_no_socket_is_left_alone),
      cmocka_unit_test(test_a_vanished_peer_gets_nothing_more),
      cmocka_unit_test(test_the_end_of_a_connection_is_told),
      cmocka_unit_test(test_a_connection_mends_itself),
      cmocka_unit_test(test_a_peer_may_be_disconnected_in_its_callback),
      cmocka_unit_test(test_a_transport_may_be_closed_in_its_callback),
      cmocka_unit_test(test_both_ends_may_close_at_once),
      cmocka_unit_test(test_two_threads_talk_to_each_other),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
