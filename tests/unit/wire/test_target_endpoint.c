/* libs: wire base */
#include "wire/target_endpoint.h"

#include "wire/endpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define HERE     ((wire_location){{0}, false})
#define LOOPBACK ((wire_location){"127.0.0.1", false})
#define OWN      ((wire_location){"10.0.0.1", false})
#define AWAY(a)  ((wire_location){a, true})

static void test_an_endpoint_has_a_scope(void **state) {
  (void)state;
  static const struct {
    const char *endpoint;
    target_endpoint_scope scope;
  } cases[] = {{"ipc:///tmp/x", TARGET_ENDPOINT_OWN_HOST},
               {"tcp://127.0.0.1:4000", TARGET_ENDPOINT_OWN_HOST},
               {"tcp://127.1.2.3:4000", TARGET_ENDPOINT_OWN_HOST},
               {"tcp://[::1]:4000", TARGET_ENDPOINT_OWN_HOST},
               {"tcp://*:4000", TARGET_ENDPOINT_ANY},
               {"tcp://0.0.0.0:4000", TARGET_ENDPOINT_ANY},
               {"tcp://[::]:4000", TARGET_ENDPOINT_ANY},
               {"tcp://10.0.0.2:4000", TARGET_ENDPOINT_GLOBAL},
               {"tcp://localhost:4000", TARGET_ENDPOINT_GLOBAL},
               {"tcp://box:4000", TARGET_ENDPOINT_GLOBAL},
               {"tcp://[2001:db8::1]:4000", TARGET_ENDPOINT_GLOBAL},
               {"nonsense", TARGET_ENDPOINT_GLOBAL},
               {"", TARGET_ENDPOINT_GLOBAL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(target_endpoint_scope_of(cases[i].endpoint), cases[i].scope);
}

/* want NULL: there is no such address, and the sentence has `part`. */
static void expect(const char *endpoint, wire_location target, wire_location draft, const char *want,
                   const char *part) {
  char out[WIRE_STRING_MAX + 1];
  err e = {0};
  int rc = target_endpoint_resolve(endpoint, &target, &draft, out, &e);
  bool as_wanted = rc == ERR_OK ? want && strcmp(out, want) == 0 : !want && strstr(e.text, part);
  if (!as_wanted) fail_msg("%s: %s", endpoint, rc ? e.text : out);
}

static void test_a_draft_gets_an_address_of_the_targets_host(void **state) {
  (void)state;
  expect("tcp://0.0.0.0:4000", AWAY("10.0.0.2"), AWAY("10.0.0.3"), "tcp://10.0.0.2:4000", "");
  expect("tcp://*:4000", AWAY("10.0.0.2"), HERE, "tcp://10.0.0.2:4000", "");
  expect("tcp://[::]:4000", AWAY("2001:db8::2"), AWAY("10.0.0.3"), "tcp://[2001:db8::2]:4000", "");
  expect("tcp://[::]:4000", AWAY("10.0.0.2"), AWAY("10.0.0.2"), "tcp://10.0.0.2:4000", "");
  expect("tcp://0.0.0.0:4000", OWN, AWAY("10.0.0.3"), "tcp://10.0.0.1:4000", "");
  expect("tcp://0.0.0.0:4000", HERE, LOOPBACK, "tcp://127.0.0.1:4000", "");
  expect("tcp://0.0.0.0:4000", LOOPBACK, OWN, "tcp://127.0.0.1:4000", "");
  /* The target came by ipc or loopback, so no address of it is known. */
  expect("tcp://0.0.0.0:4000", HERE, AWAY("10.0.0.3"), NULL, "--advertise tcp://ADDRESS:4000");
  expect("tcp://[::]:4000", LOOPBACK, AWAY("10.0.0.3"), NULL, "--advertise tcp://ADDRESS:4000");
}

static void test_a_loopback_endpoint_is_for_drafts_of_its_host(void **state) {
  (void)state;
  static const char *const endpoints[] = {"tcp://127.0.0.1:4000", "tcp://[::1]:4000", "ipc:///tmp/x"};
  for (size_t i = 0; i < sizeof endpoints / sizeof *endpoints; i++) {
    expect(endpoints[i], AWAY("10.0.0.2"), AWAY("10.0.0.2"), endpoints[i], "");
    expect(endpoints[i], HERE, OWN, endpoints[i], "");
    expect(endpoints[i], AWAY("10.0.0.2"), AWAY("10.0.0.3"), NULL,
           "on another host (10.0.0.3) than the target (10.0.0.2)");
    expect(endpoints[i], AWAY("10.0.0.2"), HERE, NULL, "--bind tcp://ADDRESS:PORT");
    expect(endpoints[i], LOOPBACK, AWAY("10.0.0.3"), NULL, endpoints[i]);
  }
}

static void test_equal_endpoints_of_two_hosts_are_two(void **state) {
  (void)state;
  static const char *const own[] = {"tcp://127.0.0.1:4000", "tcp://0.0.0.0:4000", "ipc:///tmp/x"};
  wire_location a = AWAY("10.0.0.2"), b = AWAY("10.0.0.3"), c = LOOPBACK, d = OWN;
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    assert_false(target_endpoint_same(own[i], &a, own[i], &b));
    assert_false(target_endpoint_same(own[i], &a, own[i], &c));
    assert_true(target_endpoint_same(own[i], &a, own[i], &a));
    assert_true(target_endpoint_same(own[i], &c, own[i], &d));
  }
  assert_true(target_endpoint_same("tcp://box:4000", &a, "tcp://box:4000", &b));
  assert_false(target_endpoint_same("tcp://box:4000", &a, "tcp://box:4001", &a));
}

/* Every draft is sent what --advertise names, whatever it is. */
static void test_an_advertised_endpoint_reaches_every_draft(void **state) {
  (void)state;
  static const struct {
    const char *advertised, *sent;
  } cases[] = {{"tcp://127.0.0.1:4000", "tcp://localhost:4000"},
               {"tcp://localhost:4000", "tcp://localhost:4000"},
               {"tcp://10.9.9.9:4000", "tcp://10.9.9.9:4000"},
               {"tcp://box.example:4000", "tcp://box.example:4000"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char endpoint[WIRE_STRING_MAX + 1];
    target_endpoint_insist(cases[i].advertised, endpoint);
    assert_string_equal(endpoint, cases[i].sent);
    expect(endpoint, AWAY("10.0.0.2"), AWAY("10.0.0.3"), cases[i].sent, "");
  }
}

#define D16 "0123456789abcdef"
#define KEY "#" D16 D16 D16 D16

/* The key of a target goes wherever its address goes. */
static void test_a_key_stays_with_its_endpoint(void **state) {
  (void)state;
  char endpoint[WIRE_STRING_MAX + 1] = "tcp://10.0.0.1:7000";
  key_bytes key;
  assert_true(key_parse(D16 D16 D16 D16, KEY_HEX, &key));
  endpoint_add_key(endpoint, &key);
  assert_string_equal(endpoint, "tcp://10.0.0.1:7000" KEY);
  endpoint_add_key(endpoint, &key); /* it has one */
  assert_string_equal(endpoint, "tcp://10.0.0.1:7000" KEY);
  assert_string_equal(endpoint_key(endpoint), KEY + 1);
  expect("tcp://0.0.0.0:4000" KEY, AWAY("10.0.0.2"), AWAY("10.0.0.3"), "tcp://10.0.0.2:4000" KEY, "");
  expect("tcp://[::]:4000" KEY, AWAY("2001:db8::2"), HERE, "tcp://[2001:db8::2]:4000" KEY, "");
  expect("tcp://0.0.0.0:4000" KEY, HERE, AWAY("10.0.0.3"), NULL, "--advertise tcp://ADDRESS:4000");
  expect("tcp://127.0.0.1:4000" KEY, HERE, HERE, "tcp://127.0.0.1:4000" KEY, "");
  target_endpoint_insist("tcp://127.0.0.1:4000" KEY, endpoint);
  assert_string_equal(endpoint, "tcp://localhost:4000" KEY);
  strcpy(endpoint, "ipc:///tmp/a#b");
  endpoint_add_key(endpoint, &key);
  assert_string_equal(endpoint, "ipc:///tmp/a#b");
  assert_null(endpoint_key(endpoint));
}

static void test_the_default_endpoint_depends_on_the_orchestrator(void **state) {
  (void)state;
  static const struct {
    const char *orchestrator, *bound;
  } cases[] = {{"ipc:///tmp/x/o", "ipc:///tmp/x/o.target-12"}, {"tcp://127.0.0.1:7000", "tcp://127.0.0.1:*"},
               {"tcp://localhost:7000", "tcp://127.0.0.1:*"},  {"tcp://10.0.0.1:7000", "tcp://0.0.0.0:*"},
               {"tcp://box:7000", "tcp://0.0.0.0:*"},          {"tcp://[2001:db8::1]:7000", "tcp://[::]:*"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char bound[ENDPOINT_MAX];
    target_endpoint_to_bind(cases[i].orchestrator, 12, bound);
    assert_string_equal(bound, cases[i].bound);
  }
  assert_true(endpoint_lacks_port("tcp://10.0.0.1:*"));
  assert_false(endpoint_lacks_port("tcp://10.0.0.1:4000"));
  assert_false(endpoint_lacks_port("ipc:///tmp/*"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_an_endpoint_has_a_scope),
                                     cmocka_unit_test(test_a_draft_gets_an_address_of_the_targets_host),
                                     cmocka_unit_test(test_a_loopback_endpoint_is_for_drafts_of_its_host),
                                     cmocka_unit_test(test_an_advertised_endpoint_reaches_every_draft),
                                     cmocka_unit_test(test_a_key_stays_with_its_endpoint),
                                     cmocka_unit_test(test_the_default_endpoint_depends_on_the_orchestrator),
                                     cmocka_unit_test(test_equal_endpoints_of_two_hosts_are_two)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
