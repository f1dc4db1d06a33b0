/* libs: ledger base */
#include "tests/support/ledger_folder.h"

static void count_lines(void *context, const ledger_line *l) {
  uint64_t *next = context;
  assert_int_equal(l->id, *next); /* newest first */
  (*next)--;
}

/* The checksums of pieces are made right again; those of a session its triggers keep. */
static const char *const lies[] = {"UPDATE tokens SET position = 4 WHERE position = 3",
                                   "UPDATE tokens SET ids = x'010203' WHERE position = 3",
                                   "UPDATE tokens SET ids = x'ffffffff' WHERE position = 3; UPDATE tokens "
                                   "SET position = 4 WHERE position = 8",
                                   "UPDATE tokens SET position = 3, ids = x'01000000' WHERE position = 3;"
                                   "INSERT INTO tokens VALUES(1, 2, x'01000000', NULL)",
                                   "DELETE FROM tokens WHERE position = 3",
                                   "DELETE FROM tokens WHERE position = 8",
                                   "UPDATE session SET prompt = x''",
                                   "UPDATE session SET options = '{\"seed\":1}'",
                                   "UPDATE session SET options = NULL"};
static const char *const wrong_sums[] = {
    "UPDATE tokens SET ids = x'0a0000000b0000000c0000000d0000000f000000' WHERE position = 3",
    "UPDATE tokens SET sum = NULL WHERE position = 3",
    "UPDATE tokens SET sum = zeroblob(16) WHERE position = 8",
    "UPDATE session SET content_sum = zeroblob(16)", "UPDATE session SET state_sum = NULL"};
enum { LIES = sizeof lies / sizeof *lies, SUMS = sizeof wrong_sums / sizeof *wrong_sums };

/* Rows are wrong, or pages are wrong behind a right header. */
static void test_damage_is_reported_as_damage(void **state) {
  own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, 1);
  append(&l, 1, 0, 5);
  l.end(l.self, 1, 8, WIRE_FINISH_STOP, NULL);
  l.close(l.self);
  for (size_t i = 0; i < LIES + SUMS; i++) {
    sqlite3 *db = open_database(p->path);
    ledger_session s;
    err e = {0};
    load(db, 1, &s); /* one lie at a time */
    ledger_session_fini(&s);
    exec(db, "CREATE TEMP TABLE t AS SELECT * FROM main.tokens; CREATE TEMP TABLE s AS SELECT * FROM "
             "main.session");
    exec(db, i < LIES ? lies[i] : wrong_sums[i - LIES]);
    if (i < LIES) exec(db, "UPDATE tokens SET sum = ledger_sum(session, position, ids)");
    assert_int_equal(ledger_query_load(db, p->path, 1, &s, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "--delete"));
    assert_non_null(strstr(e.text, "repair"));
    exec(db, "DELETE FROM main.tokens; DELETE FROM main.session; INSERT INTO main.tokens SELECT * FROM t;"
             "INSERT INTO main.session SELECT * FROM s");
    sqlite3_close(db);
  }
  FILE *f = fopen(p->path, "r+");
  assert_non_null(f);
  fseek(f, 100, SEEK_SET);
  for (int i = 0; i < 16000; i++) fputc(0xa5, f);
  fclose(f);
  expect_refused(p->path, ERR_FORMAT, "damaged");
}

static void test_a_session_is_found_by_its_first_digits(void **state) {
  const own_folder *p = *state;
  err e = {0};
  uint64_t id = 0;
  finished(p->path, UINT64_C(0xabc0000000000001), 1);
  finished(p->path, UINT64_C(0xabd0000000000001), 1);
  finished(p->path, UINT64_C(0x0000000000000abc), 1);
  sqlite3 *db = open_database(p->path);
  assert_int_equal(ledger_query_find(db, p->path, "ABC", &id, &e), ERR_OK);
  assert_int_equal(id, UINT64_C(0xabc0000000000001));
  assert_int_equal(ledger_query_find(db, p->path, "0000000000000abc", &id, &e), ERR_OK);
  assert_int_equal(id, 0xabc);
  assert_int_equal(ledger_query_find(db, p->path, "ab", &id, &e), ERR_ARG);
  assert_non_null(strstr(e.text, "several"));
  static const char *const none[] = {"abe", "", "x", "%", "abc00000000000011", "abc'"};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++)
    assert_int_equal(ledger_query_find(db, p->path, none[i], &id, &e), ERR_ARG);
  sqlite3_close(db);
}

static void test_the_newest_sessions_are_listed_first(void **state) {
  const own_folder *p = *state;
  err e = {0};
  for (uint64_t id = 1; id <= 5; id++) finished(p->path, id, 1);
  sqlite3 *db = open_database(p->path);
  exec(db, "UPDATE session SET created = 1000 * id");
  static const int32_t limits[] = {0, 1, 4, 5, 6};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    uint64_t next = 5;
    ledger_totals total;
    assert_int_equal(ledger_query_list(db, "it", limits[i], true, count_lines, &next, &total, &e), ERR_OK);
    assert_true(total.listed == 5 && total.by_hand == 0);
    assert_int_equal(5 - next, limits[i] && limits[i] < 5 ? limits[i] : 5);
  }
  sqlite3_close(db);
}

/* Those that a person has ended, only if they are asked for. */
static void test_what_a_person_has_ended_is_left_out(void **state) {
  const own_folder *p = *state;
  err e = {0};
  for (uint64_t id = 1; id <= 5; id++) finished(p->path, id, 1);
  sqlite3 *db = open_database(p->path);
  exec(db, "UPDATE session SET created = 1000 * id; UPDATE session SET state = 2, finish = NULL WHERE id = 4;"
           "UPDATE session SET finish = 5 WHERE id = 5");
  for (int all = 0; all < 2; all++) {
    uint64_t next = 4 + (uint64_t)all;
    ledger_totals total;
    assert_int_equal(ledger_query_list(db, "it", 2, all, count_lines, &next, &total, &e), ERR_OK);
    assert_true(total.listed == 4 + all && total.by_hand == 1);
    assert_int_equal(next, 2 + all); /* two lines of the others */
  }
  sqlite3_close(db);
}

typedef struct late {
  const char *path;
  bool done;
} late;

/* Another program ends one session and begins one, once they have been counted. */
static int change_meanwhile(unsigned kind, void *context, void *statement, void *unused) {
  (void)kind, (void)unused;
  late *l = context;
  if (l->done || !strstr(sqlite3_sql(statement), "count(*)")) return 0;
  l->done = true;
  finished(l->path, 6, 1);
  sqlite3 *db = open_database(l->path);
  exec(db, "UPDATE session SET finish = 5 WHERE id = 1");
  sqlite3_close(db);
  return 0;
}

static void test_the_count_is_that_of_the_lines(void **state) {
  const own_folder *p = *state;
  err e = {0};
  for (uint64_t id = 1; id <= 5; id++) finished(p->path, id, 1);
  sqlite3 *db = open_database(p->path);
  exec(db, "UPDATE session SET created = 1000 * id");
  late l = {.path = p->path};
  uint64_t next = 5;
  ledger_totals total;
  sqlite3_trace_v2(db, SQLITE_TRACE_PROFILE, change_meanwhile, &l);
  assert_int_equal(ledger_query_list(db, "it", 0, false, count_lines, &next, &total, &e), ERR_OK);
  assert_true(l.done);
  assert_int_equal(5 - next, total.listed);
  sqlite3_close(db);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_damage_is_reported_as_damage),         CASE(test_a_session_is_found_by_its_first_digits),
      CASE(test_the_newest_sessions_are_listed_first), CASE(test_what_a_person_has_ended_is_left_out),
      CASE(test_the_count_is_that_of_the_lines),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
