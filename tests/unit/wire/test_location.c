/* libs: wire base */
/* Where a peer runs, by the address of its connection. */
#include "wire/location.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_an_address_tells_the_host(void **state) {
  (void)state;
  static const struct {
    const char *given, *address;
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
    wire_location p = location_of(cases[i].given);
    assert_string_equal(p.address, cases[i].address);
    assert_int_equal(p.away, cases[i].away);
  }
}

static void test_an_unknown_location_is_this_host(void **state) {
  (void)state;
  wire_location unknown = {{0}, false}, loopback = {"127.0.0.1", false}, away = {"192.0.2.7", true},
                elsewhere = {"192.0.2.8", true};
  assert_true(location_same_host(&unknown, &loopback));
  assert_true(location_same_host(&away, &away));
  assert_false(location_same_host(&away, &unknown));
  assert_false(location_same_host(&away, &elsewhere));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_an_address_tells_the_host),
      cmocka_unit_test(test_an_unknown_location_is_this_host),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
