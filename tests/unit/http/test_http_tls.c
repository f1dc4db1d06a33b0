/* libs: http */
/* http_tls_read over a libmicrohttpd without TLS; what may be wrong with files is in test_serve_tls.py. */
#include "orchestrator/service/http/http_tls.h"

#include <microhttpd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* In place of the library's. */
enum MHD_Result MHD_is_feature_supported(enum MHD_FEATURE feature) {
  return feature == MHD_FEATURE_TLS ? MHD_NO : MHD_YES;
}

static void test_a_library_without_tls_is_named(void **state) {
  (void)state;
  http_tls t;
  err e = {0};
  assert_int_equal(http_tls_read(&t, "/dev/null", "/dev/null", &e), ERR_ARG);
  assert_non_null(strstr(e.text, "libmicrohttpd"));
  assert_non_null(strstr(e.text, "without TLS"));
  assert_null(t.certificate.data);
  assert_null(t.key.data);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_library_without_tls_is_named)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
