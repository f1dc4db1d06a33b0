/* libs: ledger base */
#include "orchestrator/ledger/ledger_import.h"
#include "tests/support/ledger_folder.h"

/* Session 1 of another ledger, with 5 tokens of answer. */
static void take_from_other(const own_folder *p, ledger_session *out) {
  char other[120];
  snprintf(other, sizeof other, "%s/other.sqlite", p->name);
  finished(other, 1, 5);
  sqlite3 *db = open_database(other);
  load(db, 1, out);
  sqlite3_close(db);
}

static sqlite3 *new_ledger(const own_folder *p) {
  sqlite3 *db;
  err e = {0};
  if (ledger_database_open(&db, p->path, true, &e)) fail_msg("%s", e.text);
  return db;
}

static int import(sqlite3 *db, const ledger_session *s, bool replace, ledger_imported *how) {
  err e = {0};
  int code = ledger_import(db, "it", s, replace, how, &e);
  if (code) assert_non_null(strstr(e.text, "session 0000000000000001"));
  return code;
}

static void test_an_imported_session_is_as_it_was(void **state) {
  const own_folder *p = *state;
  ledger_session s, got;
  ledger_imported how;
  take_from_other(p, &s);
  sqlite3 *db = new_ledger(p);
  assert_int_equal(import(db, &s, false, &how), ERR_OK);
  assert_int_equal(how, LEDGER_IMPORT_NEW);
  load(db, 1, &got);
  expect_tokens(&got, 5);
  assert_int_equal(got.hash_seed, s.hash_seed);
  assert_int_equal(got.state, LEDGER_ENDED);
  assert_int_equal(got.finish, WIRE_FINISH_LENGTH);
  assert_int_equal(got.epoch, s.epoch);
  assert_int_equal(got.created, s.created);
  assert_int_equal(got.updated, s.updated);
  assert_string_equal(got.model, s.model);
  assert_string_equal(got.about, s.about);
  assert_true(hash_equal(got.fingerprint, s.fingerprint));
  assert_true(got.options.seed == request.seed);
  assert_int_equal(got.options.stop_count, 2);
  ledger_session_fini(&got);
  assert_int_equal(import(db, &s, false, &how), ERR_OK);
  assert_int_equal(how, LEDGER_IMPORT_SAME);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

/* Whatever differs; and nothing is half there. */
static void test_another_session_of_the_same_id_is_refused_unless_told(void **state) {
  const own_folder *p = *state;
  ledger_session s, got;
  ledger_imported how;
  take_from_other(p, &s);
  sqlite3 *db = new_ledger(p);
  for (int what = 0; what < 6; what++) {
    assert_int_equal(import(db, &s, true, &how), ERR_OK);
    int32_t token = s.tokens[4], length = s.length;
    uint64_t seed = s.hash_seed;
    uint32_t epoch = s.epoch;
    if (what == 0) s.tokens[4]++;
    if (what == 1) s.length--;
    if (what == 2) s.hash_seed++;
    if (what == 3) s.epoch++;
    if (what == 4) s.state = LEDGER_INTERRUPTED;
    if (what == 5) s.options.seed--;
    assert_int_equal(import(db, &s, false, &how), ERR_STATE);
    load(db, 1, &got);
    expect_tokens(&got, 5);
    ledger_session_fini(&got);
    assert_int_equal(import(db, &s, true, &how), ERR_OK);
    assert_int_equal(how, LEDGER_IMPORT_REPLACED);
    assert_int_equal(import(db, &s, false, &how), ERR_OK);
    assert_int_equal(how, LEDGER_IMPORT_SAME);
    s.tokens[4] = token, s.length = length, s.hash_seed = seed, s.epoch = epoch, s.state = LEDGER_ENDED;
    s.options.seed = request.seed;
  }
  ledger_session_fini(&s);
  sqlite3_close(db);
}

static void test_a_session_that_is_served_is_not_replaced(void **state) {
  const own_folder *p = *state;
  ledger_session s;
  ledger_imported how;
  take_from_other(p, &s);
  ledger living = opened(p->path);
  begin(&living, 1);
  append(&living, 1, 0, 2);
  assert_true(comes_to(&living, 1, 5));
  sqlite3 *db = open_database(p->path);
  assert_int_equal(import(db, &s, false, &how), ERR_STATE);
  assert_int_equal(import(db, &s, true, &how), ERR_STATE);
  append(&living, 1, 2, 1);
  assert_true(comes_to(&living, 1, 6));
  living.close(living.self);
  assert_int_equal(import(db, &s, true, &how), ERR_OK);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

static void test_a_damaged_one_can_be_replaced(void **state) {
  const own_folder *p = *state;
  ledger_session s, got;
  ledger_imported how;
  take_from_other(p, &s);
  sqlite3 *db = new_ledger(p);
  assert_int_equal(import(db, &s, false, &how), ERR_OK);
  exec(db, "UPDATE tokens SET sum = NULL");
  assert_int_equal(import(db, &s, false, &how), ERR_FORMAT);
  assert_int_equal(import(db, &s, true, &how), ERR_OK);
  assert_int_equal(how, LEDGER_IMPORT_REPLACED);
  load(db, 1, &got);
  expect_tokens(&got, 5);
  ledger_session_fini(&got);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_an_imported_session_is_as_it_was),
      CASE(test_another_session_of_the_same_id_is_refused_unless_told),
      CASE(test_a_session_that_is_served_is_not_replaced),
      CASE(test_a_damaged_one_can_be_replaced),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
