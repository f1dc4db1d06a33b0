/* libs: wire base */
/* Names of hosts in endpoints; the resolver is this file's. */
#include "wire/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- in place of libc's --- */

static const struct {
  const char *name, *address;
} hosts[] = {{"four", "10.1.2.3"}, {"six", "2001:db8::7"}, {"both", "2001:db8::8"},    {"both", "10.1.2.4"},
             {"both", "10.1.2.5"}, {"localhost", "::1"},   {"localhost", "127.0.0.1"}, {"lo", "::9"}};

static struct addrinfo *put(const char *text, struct addrinfo *next) {
  struct {
    struct addrinfo info;
    struct sockaddr_storage address;
  } *made = calloc(1, sizeof *made);
  struct sockaddr_in *v4 = (struct sockaddr_in *)&made->address;
  struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&made->address;
  bool four = inet_pton(AF_INET, text, &v4->sin_addr) == 1;
  if (!four) assert_int_equal(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
  made->address.ss_family = four ? AF_INET : AF_INET6;
  made->info = (struct addrinfo){.ai_family = made->address.ss_family,
                                 .ai_addrlen = four ? sizeof *v4 : sizeof *v6,
                                 .ai_addr = (struct sockaddr *)&made->address,
                                 .ai_next = next};
  return &made->info;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
  (void)service, (void)hints;
  *out = NULL;
  for (size_t i = sizeof hosts / sizeof *hosts; i-- > 0;)
    if (strcmp(hosts[i].name, name) == 0) *out = put(hosts[i].address, *out);
  for (int i = 0; i < 40 && strcmp(name, "many") == 0; i++) *out = put("10.9.9.9", *out);
  return *out ? 0 : EAI_NONAME;
}

void freeaddrinfo(struct addrinfo *list) {
  for (struct addrinfo *next; list; list = next) {
    next = list->ai_next;
    free(list);
  }
}

/* --- tests --- */

static void a_name_is_bound_by_its_number(void **state) {
  (void)state;
  static const char *const cases[][2] = {{"tcp://four:7000", "tcp://10.1.2.3:7000"},
                                         {"tcp://six:*", "tcp://[2001:db8::7]:*"},
                                         {"tcp://both:7000", "tcp://10.1.2.4:7000"},
                                         {"tcp://localhost:1", "tcp://127.0.0.1:1"},
                                         {"tcp://*:7000", "tcp://*:7000"},
                                         {"tcp://10.0.0.9:7000", "tcp://10.0.0.9:7000"},
                                         {"tcp://[::1]:65535", "tcp://[::1]:65535"},
                                         {"tcp://[fe80::1%lo]:80", "tcp://[fe80::1%lo]:80"},
                                         {"ipc:///nowhere/four", "ipc:///nowhere/four"}};
  char out[ENDPOINT_MAX];
  err e = {0};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(endpoint_check_bind(cases[i][0], false, out, &e), ERR_OK);
    assert_string_equal(out, cases[i][1]);
  }
  assert_int_equal(endpoint_check_bind("tcp://nobody:7000", false, out, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "\"tcp://nobody:7000\": no address of nobody is known"));
}

static void a_name_has_all_its_addresses(void **state) {
  (void)state;
  endpoint_numbers found;
  endpoint_look_up("tcp://both:7000", &found);
  assert_int_equal(found.count, 3);
  assert_string_equal(found.list[0], "tcp://10.1.2.4:7000");
  assert_string_equal(found.list[1], "tcp://10.1.2.5:7000");
  assert_string_equal(found.list[2], "tcp://[2001:db8::8]:7000");
  endpoint_look_up("tcp://six:65535#with-a-key", &found);
  assert_int_equal(found.count, 1);
  assert_string_equal(found.list[0], "tcp://[2001:db8::7]:65535");
  endpoint_look_up("tcp://nobody:1", &found);
  assert_int_equal(found.count, 0);
  assert_string_equal(found.why, gai_strerror(EAI_NONAME));
}

static void more_addresses_than_are_kept_are_cut(void **state) {
  (void)state;
  endpoint_numbers found;
  endpoint_look_up("tcp://many:1", &found);
  assert_int_equal(found.count, ENDPOINT_NUMBERS_MAX);
}

static void names_are_told_from_numbers(void **state) {
  (void)state;
  assert_true(endpoint_has_name("tcp://six:1"));
  assert_false(endpoint_has_name("tcp://[fe80::1%lo]:1"));
  assert_false(endpoint_has_name("tcp://*:1"));
  assert_true(endpoint_is_ipv6("tcp://[::1]:1"));
  assert_false(endpoint_is_ipv6("tcp://127.0.0.1:1"));
  assert_false(endpoint_is_ipv6("ipc://six"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_name_is_bound_by_its_number),
      cmocka_unit_test(a_name_has_all_its_addresses),
      cmocka_unit_test(more_addresses_than_are_kept_are_cut),
      cmocka_unit_test(names_are_told_from_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
