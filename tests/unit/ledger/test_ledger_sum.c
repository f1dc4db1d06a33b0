/* libs: ledger base */
#include "orchestrator/ledger/ledger_sum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *sum_of(sqlite3 *db, const char *values, char out[33]) {
  char sql[160];
  sqlite3_stmt *s;
  snprintf(sql, sizeof sql, "SELECT lower(hex(ledger_sum(%s)))", values);
  assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_step(s), SQLITE_ROW);
  snprintf(out, 33, "%s", sqlite3_column_text(s, 0));
  sqlite3_finalize(s);
  return out;
}

/* Found by Python's xxhash (tests/integration/ledger_sums.py). */
static void test_sums_are_those_of_its_description(void **state) {
  sqlite3 *db = *state;
  char out[33];
  assert_string_equal(sum_of(db, "", out), "99aa06d3014798d86001c324468d497f");
  assert_string_equal(sum_of(db, "NULL, -2, 'ab', x'', x'0102'", out), "eebecad4a71d3e6168e97f4fe7b3409d");
}

static void test_kinds_and_bounds_of_values_count(void **state) {
  sqlite3 *db = *state;
  static const char *const lists[] = {"",      "NULL", "NULL, NULL", "1",         "-1",        "'1'",
                                      "x'31'", "x''",  "''",         "'a', 'bc'", "'ab', 'c'", "'abc'",
                                      "256",   "1.5",  "'1', NULL",  "NULL, '1'"};
  enum { COUNT = sizeof lists / sizeof *lists };
  char sums[COUNT][33];
  for (int i = 0; i < COUNT; i++) {
    sum_of(db, lists[i], sums[i]);
    for (int j = 0; j < i; j++)
      if (strcmp(sums[i], sums[j]) == 0) fail_msg("(%s) and (%s) have one sum", lists[i], lists[j]);
  }
}

static int set_up(void **state) {
  sqlite3 *db;
  if (sqlite3_open(":memory:", &db) || ledger_sum_register(db)) return -1;
  *state = db;
  return 0;
}

static int tear_down(void **state) {
  return sqlite3_close(*state);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sums_are_those_of_its_description),
      cmocka_unit_test(test_kinds_and_bounds_of_values_count),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
