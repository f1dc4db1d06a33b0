/* libs: wire base */
#include "wire/connection_limit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define HOSTS 9 /* 127.0.0.1 to 127.0.0.9 are as many addresses as a test needs */

typedef struct caller {
  int end, accepted;
} caller;

typedef struct listener {
  connection_limit limit;
  struct sockaddr_in address;
  caller callers[CONNECTION_LIMIT_MAX + 8];
  int count;
  uint64_t now_us;
} listener;

static struct sockaddr_in loopback(int host) {
  struct sockaddr_in a = {.sin_family = AF_INET};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)host);
  return a;
}

static void listener_open(listener *d) {
  *d = (listener){.now_us = 1000000};
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  socklen_t size = sizeof d->address;
  d->address = loopback(0);
  d->address.sin_addr.s_addr = htonl(INADDR_ANY);
  assert_int_equal(bind(fd, (struct sockaddr *)&d->address, size), 0);
  assert_int_equal(listen(fd, 64), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&d->address, &size), 0);
  d->address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connection_limit_init(&d->limit, fd);
}

static void listener_close(listener *d) {
  for (int i = 0; i < d->count; i++) {
    close(d->callers[i].end);
    close(d->callers[i].accepted);
  }
  close(d->limit.listener);
}

/* Somebody connects from 127.0.0.(1 + host). */
static caller *call(listener *d, int host, bool expected) {
  caller *c = &d->callers[d->count++];
  struct sockaddr_in from = loopback(host);
  c->end = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(c->end, (struct sockaddr *)&from, sizeof from), 0);
  assert_int_equal(connect(c->end, (struct sockaddr *)&d->address, sizeof d->address), 0);
  c->accepted = accept(d->limit.listener, NULL, NULL);
  assert_true(c->accepted >= 0);
  assert_int_equal(connection_limit_accept(&d->limit, c->accepted, d->now_us), expected);
  return c;
}

static bool is_shut(const caller *c) {
  struct pollfd p = {c->end, POLLRDHUP, 0};
  return poll(&p, 1, 0) > 0;
}

static int shut_count(const listener *d) {
  int n = 0;
  for (int i = 0; i < d->count; i++) n += is_shut(&d->callers[i]);
  return n;
}

static listener d; /* large */

/* Who holds connections open and says nothing cannot keep others out, not even those of its own address. */
static void test_the_oldest_strangers_of_an_address_make_way(void **state) {
  (void)state;
  listener_open(&d);
  caller *greeted = call(&d, 0, true), *elsewhere = call(&d, 1, true);
  assert_true(connection_limit_greeted(&d.limit, greeted->accepted, false));
  for (int i = 0; i < CONNECTION_STRANGERS_MAX; i++) call(&d, 0, true);
  for (int i = 0; i < 5; i++) call(&d, 0, false);
  assert_int_equal(shut_count(&d), 5);
  for (int i = 0; i < 5; i++) assert_true(is_shut(&d.callers[2 + i])); /* the first ones that only waited */
  assert_false(is_shut(greeted));
  assert_false(is_shut(elsewhere));
  assert_int_equal(d.limit.refused, 5);
  listener_close(&d);
}

static void test_connections_that_ended_count_no_more(void **state) {
  (void)state;
  listener_open(&d);
  for (int round = 0; round < 3; round++) {
    int first = d.count;
    for (int i = 0; i < CONNECTION_STRANGERS_MAX; i++) call(&d, 0, true);
    assert_int_equal(shut_count(&d), 0);
    for (int i = first; i < d.count; i++) close(d.callers[i].end), close(d.callers[i].accepted);
    d.count = first;
  }
  listener_close(&d);
}

/* Without keys anybody may be greeted: no address gets them all. With keys the address says nothing. */
static void test_one_address_has_so_many_greeted_programs_without_keys(void **state) {
  (void)state;
  for (int keyed = 0; keyed < 2; keyed++) {
    listener_open(&d);
    for (int i = 0; i < CONNECTION_GUESTS_MAX; i++)
      assert_true(connection_limit_greeted(&d.limit, call(&d, 0, true)->accepted, keyed));
    caller *last = call(&d, 0, true);
    assert_int_equal(connection_limit_greeted(&d.limit, last->accepted, keyed), keyed);
    assert_int_equal(is_shut(last), !keyed);
    assert_true(connection_limit_greeted(&d.limit, call(&d, 1, true)->accepted, keyed));
    assert_int_equal(shut_count(&d), !keyed);
    listener_close(&d);
  }
}

static void test_a_full_listener_closes_strangers_first_and_then_who_comes(void **state) {
  (void)state;
  listener_open(&d);
  for (int i = 0; i < CONNECTION_LIMIT_MAX - 1; i++)
    assert_true(connection_limit_greeted(&d.limit, call(&d, i % HOSTS, true)->accepted, true));
  caller *stranger = call(&d, 0, true);
  caller *next = call(&d, 1, false); /* in place of the stranger */
  assert_true(is_shut(stranger));
  assert_false(is_shut(next));
  assert_true(connection_limit_greeted(&d.limit, next->accepted, true));
  caller *late = call(&d, 2, false); /* everybody here is known */
  assert_true(is_shut(late));
  assert_int_equal(shut_count(&d), 2);
  listener_close(&d);
}

/* The system gives a number again at once: it is a stranger, whoever had it before. */
static void test_a_descriptor_that_is_used_again_is_a_stranger(void **state) {
  (void)state;
  listener_open(&d);
  caller *first = call(&d, 0, true);
  assert_true(connection_limit_greeted(&d.limit, first->accepted, false));
  int number = first->accepted;
  close(first->end);
  close(first->accepted);
  d.count--;
  caller *second = call(&d, 0, true);
  if (second->accepted != number) assert_int_equal(dup2(second->accepted, number), number);
  for (int i = 0; i < CONNECTION_STRANGERS_MAX; i++) call(&d, 0, i < CONNECTION_STRANGERS_MAX - 1);
  assert_true(is_shut(second));
  listener_close(&d);
}

/* Who goes on sending what is of no use is shut out for a while, with all of its address; others are not. */
static void test_who_is_of_no_use_is_shut_out_for_a_while(void **state) {
  (void)state;
  listener_open(&d);
  caller *bad = call(&d, 0, true), *neighbour = call(&d, 0, true), *other = call(&d, 1, true);
  for (int i = 0; i < CONNECTION_USELESS_BURST - 10; i++)
    assert_true(connection_limit_useless(&d.limit, bad->accepted, 1, d.now_us));
  assert_false(connection_limit_useless(&d.limit, bad->accepted, 11, d.now_us));
  assert_true(is_shut(bad));
  assert_true(connection_limit_useless(&d.limit, bad->accepted, 1, d.now_us)); /* what was under way */
  assert_int_equal(d.limit.refused, 1);
  assert_true(is_shut(call(&d, 0, false)));
  assert_false(is_shut(neighbour));
  assert_false(is_shut(other));
  assert_true(connection_limit_useless(&d.limit, other->accepted, 100, d.now_us));
  call(&d, 1, true);
  d.now_us += CONNECTION_BARRED_US;
  call(&d, 0, true);
  assert_true(connection_limit_useless(&d.limit, neighbour->accepted, 100, d.now_us));
  listener_close(&d);
}

/* Some errors are no flood, however long it goes on. */
static void test_errors_now_and_then_are_no_harm(void **state) {
  (void)state;
  listener_open(&d);
  caller *c = call(&d, 0, true);
  for (int i = 0; i < 10000; i++) {
    assert_true(connection_limit_useless(&d.limit, c->accepted, 1, d.now_us));
    d.now_us += CONNECTION_USELESS_EVERY_US;
  }
  listener_close(&d);
}

/* Addresses that are forgotten are the ones that have been good for longest. */
static void test_more_addresses_than_are_remembered(void **state) {
  (void)state;
  listener_open(&d);
  caller *bad = call(&d, 0, true);
  assert_false(connection_limit_useless(&d.limit, bad->accepted, CONNECTION_USELESS_BURST + 1, d.now_us));
  for (int i = 1; i < 2 * CONNECTION_SOURCES_MAX; i++) {
    caller *c = call(&d, i, true);
    assert_true(connection_limit_useless(&d.limit, c->accepted, 1, d.now_us));
  }
  call(&d, 0, false);
  listener_close(&d);
}

/* Keys that are refused cost a handshake each: their address comes in slowly, and others as before. */
static void test_refused_keys_slow_their_address_down(void **state) {
  (void)state;
  listener_open(&d);
  for (int i = 0; i < CONNECTION_DENIED_BURST; i++)
    connection_limit_denied(&d.limit, "127.0.0.1", strlen("127.0.0.1"), d.now_us);
  call(&d, 0, true);
  call(&d, 0, true);
  connection_limit_denied(&d.limit, "::ffff:127.0.0.1", strlen("::ffff:127.0.0.1"), d.now_us); /* the same */
  call(&d, 0, true);
  call(&d, 0, false);
  call(&d, 1, true);
  call(&d, 1, true);
  d.now_us += CONNECTION_SLOW_EVERY_US;
  call(&d, 0, true);
  call(&d, 0, false);
  d.now_us += CONNECTION_SLOW_US;
  call(&d, 0, true);
  call(&d, 0, true);
  connection_limit_denied(&d.limit, "no address at all, and a long one, which nobody has", 51, d.now_us);
  connection_limit_denied(&d.limit, "nowhere", 7, d.now_us);
  listener_close(&d);
}

typedef struct pair6 {
  int listener, ends[CONNECTION_GUESTS_MAX + 1], accepted[CONNECTION_GUESTS_MAX + 1];
} pair6;

static bool call6(pair6 *p, int i, connection_limit *c) {
  struct sockaddr_in6 at;
  socklen_t size = sizeof at;
  p->ends[i] = socket(AF_INET6, SOCK_STREAM, 0);
  assert_int_equal(getsockname(p->listener, (struct sockaddr *)&at, &size), 0);
  assert_int_equal(connect(p->ends[i], (struct sockaddr *)&at, size), 0);
  p->accepted[i] = accept(p->listener, NULL, NULL);
  return connection_limit_accept(c, p->accepted[i], d.now_us);
}

/* Its first half is zero, as nobody else's. */
static void test_the_loopback_address_of_ipv6_is_an_address(void **state) {
  (void)state;
  struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  pair6 p = {.listener = socket(AF_INET6, SOCK_STREAM, 0)};
  if (access("/proc/net/if_inet6", R_OK) != 0 || bind(p.listener, (struct sockaddr *)&at, sizeof at) != 0)
    skip();
  assert_int_equal(listen(p.listener, 64), 0);
  d.now_us = 1000000;
  connection_limit_init(&d.limit, p.listener);
  for (int i = 0; i <= CONNECTION_GUESTS_MAX; i++) {
    assert_true(call6(&p, i, &d.limit));
    assert_int_equal(connection_limit_greeted(&d.limit, p.accepted[i], false), i < CONNECTION_GUESTS_MAX);
  }
  assert_false(connection_limit_useless(&d.limit, p.accepted[0], CONNECTION_USELESS_BURST + 1, d.now_us));
  close(p.ends[1]);
  close(p.accepted[1]);
  assert_false(call6(&p, 1, &d.limit)); /* barred */
  for (int i = 0; i <= CONNECTION_GUESTS_MAX; i++) {
    close(p.ends[i]);
    close(p.accepted[i]);
  }
  close(p.listener);
}

/* A number that is another file by now is left alone. */
static void test_only_connections_of_this_listener_are_shut(void **state) {
  (void)state;
  listener_open(&d);
  int pair[2];
  char byte = 1;
  caller *c = call(&d, 0, true);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  assert_int_equal(dup2(pair[0], c->accepted), c->accepted);
  assert_false(connection_limit_useless(&d.limit, c->accepted, CONNECTION_USELESS_BURST + 1, d.now_us));
  assert_int_equal(write(pair[0], &byte, 1), 1);
  assert_int_equal(read(pair[1], &byte, 1), 1);
  assert_true(
      connection_limit_greeted(&d.limit, c->accepted, false)); /* of a forgotten one: nothing happens */
  assert_int_equal(d.limit.count, 0);
  close(pair[0]);
  close(pair[1]);
  listener_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_oldest_strangers_of_an_address_make_way),
      cmocka_unit_test(test_connections_that_ended_count_no_more),
      cmocka_unit_test(test_one_address_has_so_many_greeted_programs_without_keys),
      cmocka_unit_test(test_a_full_listener_closes_strangers_first_and_then_who_comes),
      cmocka_unit_test(test_a_descriptor_that_is_used_again_is_a_stranger),
      cmocka_unit_test(test_who_is_of_no_use_is_shut_out_for_a_while),
      cmocka_unit_test(test_errors_now_and_then_are_no_harm),
      cmocka_unit_test(test_more_addresses_than_are_remembered),
      cmocka_unit_test(test_refused_keys_slow_their_address_down),
      cmocka_unit_test(test_the_loopback_address_of_ipv6_is_an_address),
      cmocka_unit_test(test_only_connections_of_this_listener_are_shut),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
