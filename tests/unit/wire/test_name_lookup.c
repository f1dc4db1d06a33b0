/* libs: wire base */
/* Programs that call a name: the resolver is this file's, as slow as a test wants it, and so is the clock. */
#include "tests/support/transport_nodes.h"

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

/* --- in place of libc's --- */

#define NAME  "a.name"
#define NAMED 2
static pthread_mutex_t resolver = PTHREAD_MUTEX_INITIALIZER; /* held by a test: nobody gets an answer */
static _Atomic int asked, addresses;                         /* addresses: how many the name has now */
static struct sockaddr_in named[NAMED];                      /* the first leads nowhere */
static char bound[128];                                      /* where the server listens */

/* ZeroMQ hands it numbers, which are libc's affair. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
  typedef int look_up(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  if (strcmp(name, NAME) != 0) return ((look_up *)dlsym(RTLD_NEXT, "getaddrinfo"))(name, service, hints, out);
  *out = NULL;
  asked++;
  pthread_mutex_lock(&resolver);
  for (int i = addresses; i-- > 0;) {
    struct addrinfo *made = calloc(1, sizeof *made);
    *made = (struct addrinfo){.ai_family = AF_INET,
                              .ai_addr = (struct sockaddr *)&named[i],
                              .ai_addrlen = sizeof named[i],
                              .ai_next = *out};
    *out = made;
  }
  pthread_mutex_unlock(&resolver);
  return *out ? 0 : EAI_AGAIN;
}

void freeaddrinfo(struct addrinfo *list) {
  for (struct addrinfo *next; list; list = next) {
    next = list->ai_next;
    free(list);
  }
}

/* --- tests --- */

/* A server at 127.0.0.1, and a client that calls a name, whose addresses are 127.0.0.2 and 127.0.0.1. */
static peer_id call_name(uv_loop_t *loop, node *server, node *client) {
  char called[128];
  err e = {0};
  asked = 0;
  for (int i = 0; i < NAMED; i++) {
    named[i].sin_family = AF_INET;
    named[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK + (i == 0));
  }
  uv_loop_init(loop);
  node_open(server, loop, 1, false);
  client->clock = standing_clock;
  node_open(client, loop, 2, false);
  assert_int_equal(transport_bind(server->wire, "tcp://127.0.0.1:*", bound, sizeof bound, &e), ERR_OK);
  snprintf(called, sizeof called, "tcp://" NAME "%s", strrchr(bound, ':'));
  peer_id to = transport_connect(client->wire, called, &e);
  assert_true(to != 0);
  return to;
}

#define TURNS 150

/* Waits a little longer each time that time goes on: on any machine there is a time in which a call comes
 * through. */
static uint64_t pause_ms(uint64_t turn) {
  return WAIT_MS * 2 * turn / (TURNS * TURNS) + 10;
}

/* Says HELLO while time goes on, until the server has heard it. */
static void greet(uv_loop_t *loop, node *server, node *client, peer_id to) {
  const msg hello = hello_of();
  for (uint64_t turn = 0; turn < TURNS; turn++) {
    assert_true(transport_send(client->wire, to, &hello));
    if (run_until(loop, &server->heard, 1, pause_ms(turn))) break;
    standing_us += 1000000;
  }
  assert_int_equal(server->last.type, MSG_HELLO);
}

static void the_addresses_of_a_name_are_called_in_turn(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {0}, client = {0};
  addresses = NAMED;
  peer_id to = call_name(&loop, &server, &client);
  greet(&loop, &server, &client, to);
  pair_close(&loop, &server, &client);
}

static void a_name_without_an_address_is_looked_up_again(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {0}, client = {0};
  const msg hello = hello_of();
  uint64_t never = 0;
  addresses = 0;
  peer_id to = call_name(&loop, &server, &client);
  for (uint64_t turn = 0; asked < 2 && turn < TURNS; turn++) {
    assert_true(transport_send(client.wire, to, &hello));
    run_until(&loop, &never, 1, pause_ms(turn));
    standing_us += 1000000;
  }
  assert_int_equal(server.heard, 0);
  addresses = NAMED;
  greet(&loop, &server, &client, to);
  pair_close(&loop, &server, &client);
}

/* Others are served, and the program can end, while the resolver says nothing. */
static void a_slow_resolver_holds_nothing_up(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {.echo = true}, client = {0};
  char endpoint[128];
  err e = {0};
  const msg hello = hello_of(), ping = ping_of(1);
  addresses = NAMED;
  pthread_mutex_lock(&resolver);
  peer_id to = call_name(&loop, &server, &client);
  assert_true(transport_send(client.wire, to, &hello));
  node other = {.echo = true};
  node_open(&other, &loop, 1, false);
  assert_int_equal(transport_bind(other.wire, "tcp://127.0.0.1:*", endpoint, sizeof endpoint, &e), ERR_OK);
  peer_id there = transport_connect(client.wire, endpoint, &e);
  assert_true(transport_send(client.wire, there, &hello));
  assert_true(run_until(&loop, &other.heard, 1, WAIT_MS));
  assert_true(transport_send(client.wire, there, &ping));
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  transport_close(other.wire);
  pair_close(&loop, &server, &client);
  pthread_mutex_unlock(&resolver);
  assert_int_equal(server.heard, 0);
}

/* When the connection is gone: a program that was started again is where it was. */
static void an_address_that_answered_is_called_again(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {.echo = true}, client = {0}, again = {0};
  char endpoint[128];
  err e = {0};
  addresses = NAMED;
  peer_id to = call_name(&loop, &server, &client);
  const msg ping = ping_of(1);
  greet(&loop, &server, &client, to);
  assert_true(transport_send(client.wire, to, &ping));
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  int before = asked;
  standing_us += 60000000;
  transport_close(server.wire);
  while (transport_send(client.wire, to, &ping)) uv_run(&loop, UV_RUN_NOWAIT); /* until it knows */
  node_open(&again, &loop, 1, false);
  assert_int_equal(transport_bind(again.wire, bound, endpoint, sizeof endpoint, &e), ERR_OK);
  greet(&loop, &again, &client, to);
  assert_int_equal(asked, before);
  pair_close(&loop, &again, &client);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_addresses_of_a_name_are_called_in_turn),
      cmocka_unit_test(a_name_without_an_address_is_looked_up_again),
      cmocka_unit_test(a_slow_resolver_holds_nothing_up),
      cmocka_unit_test(an_address_that_answered_is_called_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
