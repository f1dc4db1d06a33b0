/* libs: ledger base */
#include "tests/support/ledger_folder.h"

static void test_a_session_rolls_back_to_any_length(void **state) {
  const own_folder *p = *state;
  err e = {0};
  ledger l = opened(p->path);
  begin(&l, 1);
  for (int32_t i = 0; i < 4; i++) { /* four pieces of two */
    append(&l, 1, 2 * i, 2);
    assert_true(comes_to(&l, 1, 5 + 2 * i));
  }
  sqlite3 *db = open_database(p->path);
  assert_int_equal(ledger_change_rollback(db, p->path, 1, 3, &e), ERR_STATE); /* it is being served */
  assert_int_equal(ledger_change_delete(db, p->path, 1, &e), ERR_STATE);
  l.close(l.self);
  for (int32_t to = 7; to >= 0; to--) {
    assert_int_equal(ledger_change_rollback(db, p->path, 1, to, &e), ERR_OK);
    ledger_session s;
    load(db, 1, &s);
    expect_tokens(&s, to);
    assert_int_equal(s.state, LEDGER_INTERRUPTED);
    ledger_session_fini(&s);
  }
  assert_int_equal(ledger_change_end(db, p->path, 1, WIRE_FINISH_CANCELLED, &e), ERR_OK);
  ledger_session s;
  load(db, 1, &s);
  assert_int_equal(s.state, LEDGER_ENDED);
  ledger_session_fini(&s);
  assert_int_equal(ledger_change_delete(db, p->path, 1, &e), ERR_OK);
  assert_int_equal(ledger_change_delete(db, p->path, 1, &e), ERR_GONE);
  assert_int_equal(number(db, "SELECT count(*) FROM tokens"), 0);
  sqlite3_close(db);
}

/* Each of two looked at its length before either had changed it. */
static void test_two_that_change_one_session_leave_it_whole(void **state) {
  const own_folder *p = *state;
  err e = {0};
  ledger l = opened(p->path);
  begin(&l, 1);
  append(&l, 1, 0, 8);
  assert_true(comes_to(&l, 1, 11));
  l.close(l.self);
  sqlite3 *db = open_database(p->path);
  assert_int_equal(ledger_change_rollback(db, p->path, 1, 2, &e), ERR_OK);
  assert_int_equal(ledger_change_rollback(db, p->path, 1, 6, &e), ERR_STATE);
  assert_non_null(strstr(e.text, "was shortened by another process"));
  assert_int_equal(ledger_change_end(db, p->path, 1, WIRE_FINISH_STOP, &e), ERR_OK);
  assert_int_equal(ledger_change_end(db, p->path, 1, WIRE_FINISH_CANCELLED, &e), ERR_OK);
  ledger_session s;
  load(db, 1, &s);
  expect_tokens(&s, 2);
  assert_int_equal(s.finish, WIRE_FINISH_STOP);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

/* What could go on is ended; what is complete stays so. */
static void test_a_person_ends_what_could_go_on(void **state) {
  const own_folder *p = *state;
  err e = {0};
  for (uint64_t id = 1; id <= 5; id++) finished(p->path, id, 2);
  sqlite3 *db = open_database(p->path);
  exec(db, "UPDATE session SET finish = id; UPDATE session SET state = 2, finish = NULL WHERE id = 5");
  for (uint64_t id = 1; id <= 5; id++)
    for (int again = 0; again < 2; again++) {
      int64_t before = number(db, "SELECT total(updated) FROM session");
      assert_int_equal(ledger_change_end(db, p->path, id, (wire_finish)LEDGER_BY_HAND, &e), ERR_OK);
      assert_int_equal(before == number(db, "SELECT total(updated) FROM session"), id == 1 || again);
    }
  assert_int_equal(number(db, "SELECT count(*) FROM session WHERE state = 1 AND finish = 5"), 4);
  assert_int_equal(number(db, "SELECT finish FROM session WHERE id = 1"), WIRE_FINISH_STOP);
  assert_int_equal(ledger_change_rollback(db, p->path, 3, 2, &e), ERR_OK); /* takes it back */
  assert_int_equal(number(db, "SELECT state FROM session WHERE id = 3"), LEDGER_INTERRUPTED);
  sqlite3_close(db);
}

/* The time of the last change counts, to the microsecond. What a living process serves is left alone. */
static void test_old_sessions_are_ended_or_deleted(void **state) {
  const own_folder *p = *state;
  err e = {0};
  for (uint64_t id = 1; id <= 4; id++) finished(p->path, id, 2);
  ledger living = opened(p->path);
  begin(&living, 5);
  append(&living, 5, 0, 2);
  assert_true(comes_to(&living, 5, 5));
  sqlite3 *db = open_database(p->path);
  exec(db, "UPDATE session SET updated = 1000 * id, created = 7; UPDATE session SET finish = 1 WHERE id < 5");
  exec(db, "UPDATE session SET state = 2, finish = NULL WHERE id IN (2, 3)"); /* interrupted */
  exec(db,
       "UPDATE session SET state = 0, owner = 12345 WHERE id = 3"); /* by one that nobody knows any more */
  static const struct {
    int64_t before, count, left;
    bool forget;
  } steps[] = {{1000, 0, 5, true},  {2000, 0, 5, false}, {2001, 1, 5, false}, {3001, 1, 5, false},
               {9000, 0, 5, false}, {1000, 0, 5, true},  {1001, 1, 4, true},  {4001, 1, 3, true}};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    int64_t count = -1;
    assert_int_equal(ledger_change_end_old(db, "it", steps[i].before, steps[i].forget, &count, &e), ERR_OK);
    assert_int_equal(count, steps[i].count);
    assert_int_equal(number(db, "SELECT count(*) FROM session"), steps[i].left);
    assert_int_equal(number(db, "SELECT count(DISTINCT session) FROM tokens"), steps[i].left);
  }
  assert_int_equal(
      number(
          db,
          "SELECT count(*) FROM session WHERE state = 1 AND finish = 5 AND owner IS NULL AND updated > 9000"),
      2);
  append(&living, 5, 2, 1);
  living.end(living.self, 5, 6, WIRE_FINISH_LENGTH, NULL);
  living.close(living.self);
  ledger_session s;
  load(db, 5, &s);
  expect_tokens(&s, 3);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

/* A shared file may hold more of them than are removed at a time. */
static void test_many_dead_orchestrators_are_removed(void **state) {
  const own_folder *p = *state;
  err e = {0};
  finished(p->path, 1, 1);
  sqlite3 *db = open_database(p->path);
  exec(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)"
           " INSERT INTO orchestrator SELECT i, 1, 1, 'elsewhere', 'run', 1, 1, 0, 0, NULL, NULL FROM n");
  for (int64_t left = 600; left > 0; left = left > 256 ? left - 256 : 0) {
    assert_int_equal(number(db, "SELECT count(*) FROM orchestrator"), left);
    assert_int_equal(ledger_change_remove_dead(db, "it", &e), ERR_OK);
  }
  assert_int_equal(number(db, "SELECT count(*) FROM orchestrator"), 0);
  sqlite3_close(db);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_session_rolls_back_to_any_length),  CASE(test_two_that_change_one_session_leave_it_whole),
      CASE(test_a_person_ends_what_could_go_on),      CASE(test_old_sessions_are_ended_or_deleted),
      CASE(test_many_dead_orchestrators_are_removed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
