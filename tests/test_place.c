/* libs: wire base */
#include "wire/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define HERE     ((wire_place){{0}, false})
#define LOOPBACK ((wire_place){"127.0.0.1", false})
#define OWN      ((wire_place){"10.0.0.1", false})
#define AWAY(a)  ((wire_place){a, true})

static void test_peer_addresses(void **state) {
  (void)state;
  static const struct {
    const char *told, *address;
    bool away;
  } cases[] = {{NULL, "", false},
               {"", "", false},
               {"localhost:0:0:20609", "", false}, /* of ipc */
               {"127.0.0.1", "127.0.0.1", false},
               {"127.8.9.1", "127.8.9.1", false},
               {"::1", "::1", false},
               {"::ffff:127.0.0.1", "127.0.0.1", false},
               {"192.0.2.7", "192.0.2.7", true}, /* an address for examples: no interface has it */
               {"::ffff:192.0.2.7", "192.0.2.7", true},
               {"2001:db8::7", "2001:db8::7", true},
               {"fe80::1234%eth9", "fe80::1234", true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wire_place p = place_of(cases[i].told);
    assert_string_equal(p.address, cases[i].address);
    assert_int_equal(p.away, cases[i].away);
  }
}

static void test_scopes(void **state) {
  (void)state;
  static const struct {
    const char *endpoint;
    place_scope scope;
  } cases[] = {{"ipc:///tmp/x", PLACE_OWN_HOST},
               {"tcp://127.0.0.1:4000", PLACE_OWN_HOST},
               {"tcp://127.1.2.3:4000", PLACE_OWN_HOST},
               {"tcp://[::1]:4000", PLACE_OWN_HOST},
               {"tcp://*:4000", PLACE_ANY},
               {"tcp://0.0.0.0:4000", PLACE_ANY},
               {"tcp://[::]:4000", PLACE_ANY},
               {"tcp://10.0.0.2:4000", PLACE_GLOBAL},
               {"tcp://localhost:4000", PLACE_GLOBAL},
               {"tcp://box:4000", PLACE_GLOBAL},
               {"tcp://[2001:db8::1]:4000", PLACE_GLOBAL},
               {"nonsense", PLACE_GLOBAL},
               {"", PLACE_GLOBAL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(place_scope_of(cases[i].endpoint), cases[i].scope);
}

/* want NULL: there is no such address, and the sentence has `part`. */
static void expect(const char *door, wire_place target, wire_place draft, const char *want,
                   const char *part) {
  char out[WIRE_STRING_MAX + 1];
  err e = {0};
  int rc = place_resolve(door, &target, &draft, out, &e);
  bool as_wanted = rc == ERR_OK ? want && strcmp(out, want) == 0 : !want && strstr(e.text, part);
  if (!as_wanted) fail_msg("%s: %s", door, rc ? e.text : out);
}

static void test_every_address(void **state) {
  (void)state;
  expect("tcp://0.0.0.0:4000", AWAY("10.0.0.2"), AWAY("10.0.0.3"), "tcp://10.0.0.2:4000", "");
  expect("tcp://*:4000", AWAY("10.0.0.2"), HERE, "tcp://10.0.0.2:4000", "");
  expect("tcp://[::]:4000", AWAY("2001:db8::2"), AWAY("10.0.0.3"), "tcp://[2001:db8::2]:4000", "");
  expect("tcp://[::]:4000", AWAY("10.0.0.2"), AWAY("10.0.0.2"), "tcp://10.0.0.2:4000", "");
  expect("tcp://0.0.0.0:4000", OWN, AWAY("10.0.0.3"), "tcp://10.0.0.1:4000", "");
  expect("tcp://0.0.0.0:4000", HERE, LOOPBACK, "tcp://127.0.0.1:4000", "");
  expect("tcp://0.0.0.0:4000", LOOPBACK, OWN, "tcp://127.0.0.1:4000", "");
  /* It came by ipc or loopback: nobody knows an address of it. */
  expect("tcp://0.0.0.0:4000", HERE, AWAY("10.0.0.3"), NULL, "--advertise tcp://ADDRESS:4000");
  expect("tcp://[::]:4000", LOOPBACK, AWAY("10.0.0.3"), NULL, "--advertise tcp://ADDRESS:4000");
}

static void test_its_own_host(void **state) {
  (void)state;
  static const char *const doors[] = {"tcp://127.0.0.1:4000", "tcp://[::1]:4000", "ipc:///tmp/x"};
  for (size_t i = 0; i < sizeof doors / sizeof *doors; i++) {
    expect(doors[i], AWAY("10.0.0.2"), AWAY("10.0.0.2"), doors[i], "");
    expect(doors[i], HERE, OWN, doors[i], "");
    expect(doors[i], AWAY("10.0.0.2"), AWAY("10.0.0.3"), NULL,
           "on another host (10.0.0.3) than the target (10.0.0.2)");
    expect(doors[i], AWAY("10.0.0.2"), HERE, NULL, "--insecure-bind");
    expect(doors[i], LOOPBACK, AWAY("10.0.0.3"), NULL, doors[i]);
  }
}

static void test_doors_of_two_hosts(void **state) {
  (void)state;
  static const char *const own[] = {"tcp://127.0.0.1:4000", "tcp://0.0.0.0:4000", "ipc:///tmp/x"};
  wire_place a = AWAY("10.0.0.2"), b = AWAY("10.0.0.3"), c = LOOPBACK, d = OWN;
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    assert_false(place_same_door(own[i], &a, own[i], &b));
    assert_false(place_same_door(own[i], &a, own[i], &c));
    assert_true(place_same_door(own[i], &a, own[i], &a));
    assert_true(place_same_door(own[i], &c, own[i], &d));
  }
  assert_true(place_same_door("tcp://box:4000", &a, "tcp://box:4000", &b));
  assert_false(place_same_door("tcp://box:4000", &a, "tcp://box:4001", &a));
}

/* --advertise is told to everybody, whatever it is. */
static void test_advertised(void **state) {
  (void)state;
  static const struct {
    const char *advertised, *told;
  } cases[] = {{"tcp://127.0.0.1:4000", "tcp://localhost:4000"},
               {"tcp://localhost:4000", "tcp://localhost:4000"},
               {"tcp://10.9.9.9:4000", "tcp://10.9.9.9:4000"},
               {"tcp://box.example:4000", "tcp://box.example:4000"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char door[WIRE_STRING_MAX + 1];
    place_insist(cases[i].advertised, door);
    assert_string_equal(door, cases[i].told);
    expect(door, AWAY("10.0.0.2"), AWAY("10.0.0.3"), cases[i].told, "");
  }
}

static void test_doors(void **state) {
  (void)state;
  static const struct {
    const char *orchestrator, *insecure;
  } cases[] = {{"ipc:///tmp/x/o", "tcp://127.0.0.1:*"},       {"tcp://127.0.0.1:7000", "tcp://127.0.0.1:*"},
               {"tcp://localhost:7000", "tcp://127.0.0.1:*"}, {"tcp://10.0.0.1:7000", "tcp://0.0.0.0:*"},
               {"tcp://box:7000", "tcp://0.0.0.0:*"},         {"tcp://[2001:db8::1]:7000", "tcp://[::]:*"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_string_equal(place_door(cases[i].orchestrator, false), "tcp://127.0.0.1:*");
    assert_string_equal(place_door(cases[i].orchestrator, true), cases[i].insecure);
    assert_int_equal(place_elsewhere(cases[i].orchestrator),
                     strcmp("tcp://127.0.0.1:*", cases[i].insecure) != 0);
  }
  assert_true(place_lacks_port("tcp://10.0.0.1:*"));
  assert_false(place_lacks_port("tcp://10.0.0.1:4000"));
  assert_false(place_lacks_port("ipc:///tmp/*"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_peer_addresses),    cmocka_unit_test(test_scopes),
      cmocka_unit_test(test_every_address),     cmocka_unit_test(test_its_own_host),
      cmocka_unit_test(test_advertised),        cmocka_unit_test(test_doors),
      cmocka_unit_test(test_doors_of_two_hosts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
