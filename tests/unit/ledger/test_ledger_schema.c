/* libs: ledger base */
#include "orchestrator/ledger/ledger_schema.h"
#include "common/base/user_folder.h"
#include "tests/support/ledger_folder.h"

/* As the tandem before made it: no checksums, no empty piece, one session that has ended, one without output
 * and one in pieces. */
static const char old_ledger[] =
    "PRAGMA journal_mode = WAL; PRAGMA application_id = 1953391725; PRAGMA user_version = 1;"
    "CREATE TABLE orchestrator(id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start INTEGER NOT NULL,"
    " machine TEXT NOT NULL, command TEXT NOT NULL, since INTEGER NOT NULL, beat INTEGER NOT NULL,"
    " sessions INTEGER NOT NULL DEFAULT 0, millitokens INTEGER NOT NULL DEFAULT 0, workers TEXT);"
    "CREATE TABLE session(id INTEGER PRIMARY KEY, owner INTEGER, state INTEGER NOT NULL, finish INTEGER,"
    " epoch INTEGER NOT NULL, hash_seed INTEGER NOT NULL, model TEXT, fingerprint BLOB, numerics TEXT,"
    " created INTEGER NOT NULL, updated INTEGER NOT NULL, options TEXT, about TEXT, stats TEXT, prompt BLOB "
    "NOT NULL);"
    "CREATE INDEX session_by_owner ON session(owner) WHERE owner IS NOT NULL;"
    "CREATE INDEX session_by_time ON session(created);"
    "CREATE TABLE tokens(session INTEGER NOT NULL, position INTEGER NOT NULL, ids BLOB NOT NULL,"
    " PRIMARY KEY(session, position)) WITHOUT ROWID;"
    "INSERT INTO orchestrator VALUES(5, 1, 1, 'here', 'run', 1, 1, 0, 0, NULL);"
    "INSERT INTO session SELECT value, NULL, 2, NULL, 17, 9, 'm', x'00112233445566778899aabbccddeeff', 'n', "
    "1,"
    " 2, ?, '{}', NULL, x'010000000200000003000000' FROM json_each('[1,2,3]');"
    "UPDATE session SET state = 1, finish = 1 WHERE id = 1;"
    "INSERT INTO tokens VALUES(1, 3, x'0a0000000b0000000c000000'), (3, 3, x'0a000000'),"
    " (3, 4, x'0b0000000c000000');";

static void make_old(const char *path) {
  sqlite3 *db;
  user_folder_make_parents(path);
  assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
  const char *rest = old_ledger;
  while (*rest) {
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(db, rest, -1, &s, &rest)) fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_bind_text(s, 1, /* what options_json_text makes of a request */
                      "{\"max_tokens\":9,\"temperature\":0.8,\"top_k\":0,\"top_p\":1.0,\"min_p\":0.0,"
                      "\"repeat_penalty\":1.0,\"seed\":7,\"choice\":0,\"context\":64,\"budget\":0,"
                      "\"lockstep\":false,\"selfcheck\":0,\"single\":false,\"stop_ids\":[2]}",
                      -1, SQLITE_STATIC);
    while (sqlite3_step(s) == SQLITE_ROW) continue;
    assert_int_equal(sqlite3_finalize(s), SQLITE_OK);
  }
  sqlite3_close(db);
}

static void expect_whole(sqlite3 *db) {
  for (uint64_t id = 1; id <= 3; id++) {
    ledger_session s;
    load(db, id, &s);
    expect_tokens(&s, id == 2 ? 0 : 3);
    assert_int_equal(s.state, id == 1 ? LEDGER_ENDED : LEDGER_INTERRUPTED);
    assert_int_equal(s.epoch, 17);
    ledger_session_fini(&s);
  }
}

static void test_a_ledger_of_an_older_tandem_gets_checksums(void **state) {
  const own_folder *p = *state;
  bool same = false;
  err e = {0};
  make_old(p->path);
  sqlite3 *db = open_database(p->path);
  expect_whole(db);
  assert_int_equal(number(db, "PRAGMA user_version"), LEDGER_SCHEMA_VERSION);
  assert_int_equal(ledger_schema_compare(db, &same), SQLITE_OK);
  assert_true(same);
  assert_int_equal(
      number(db, "SELECT count(*) FROM orchestrator WHERE sum IS NOT ledger_sum(" LEDGER_SCHEMA_PROCESS ")"),
      0);
  assert_int_equal(number(db, "SELECT count(*) FROM orchestrator"), 1);
  assert_int_equal(ledger_change_rollback(db, p->path, 3, 2, &e), ERR_OK);
  sqlite3_close(db);
  db = open_database(p->path); /* once */
  ledger_session s;
  load(db, 3, &s);
  expect_tokens(&s, 2);
  ledger_session_fini(&s);
  sqlite3_close(db);
}

static void test_one_that_cannot_be_written_says_so(void **state) {
  const own_folder *p = *state;
  sqlite3 *db;
  bool same;
  err e = {0};
  make_old(p->path);
  assert_int_equal(sqlite3_open_v2(p->path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
  assert_int_equal(ledger_schema_check(db, p->path, &e), ERR_VERSION);
  assert_non_null(strstr(e.text, "older tandem"));
  assert_int_equal(ledger_schema_compare(db, &same), SQLITE_OK);
  assert_false(same);
  sqlite3_close(db);
}

/* Whoever writes a row need not think of its checksum. */
static void test_triggers_keep_the_checksums(void **state) {
  const own_folder *p = *state;
  static const char right[] =
      "SELECT count(*) FROM session WHERE content_sum IS ledger_sum(" LEDGER_SCHEMA_CONTENT
      ") AND state_sum IS ledger_sum(" LEDGER_SCHEMA_STATE ")";
  static const char *const columns[] = {"owner",    "state",   "finish",  "epoch",   "hash_seed",
                                        "numerics", "created", "updated", "options", "about",
                                        "stats",    "prompt",  "model",   "id",      "fingerprint"};
  finished(p->path, 1, 2);
  sqlite3 *db = open_database(p->path);
  for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
    char sql[80];
    snprintf(sql, sizeof sql, "UPDATE session SET %s = 1", columns[i]);
    exec(db, sql);
    assert_int_equal(number(db, right), 1);
  }
  exec(db, "UPDATE session SET content_sum = NULL");
  assert_int_equal(number(db, right), 0);
  sqlite3_close(db);
}

static void test_other_tables_are_noticed(void **state) {
  const own_folder *p = *state;
  static const char *const changes[] = {"CREATE TABLE other(x)", "DROP TABLE other",
                                        "DROP TRIGGER session_state"};
  bool same;
  finished(p->path, 1, 2);
  sqlite3 *db = open_database(p->path);
  for (int i = 0; i < 3; i++) {
    exec(db, changes[i]);
    assert_int_equal(ledger_schema_compare(db, &same), SQLITE_OK);
    assert_int_equal(same, i == 1);
  }
  sqlite3_close(db);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_ledger_of_an_older_tandem_gets_checksums),
      CASE(test_one_that_cannot_be_written_says_so),
      CASE(test_triggers_keep_the_checksums),
      CASE(test_other_tables_are_noticed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
