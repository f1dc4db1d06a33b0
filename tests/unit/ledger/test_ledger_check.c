/* libs: ledger base */
#include "orchestrator/ledger/ledger_check.h"
#include "tests/support/ledger_folder.h"

typedef struct lines {
  int count;
  char part[16], text[600];
  uint64_t id;
} lines;

static void note(void *context, const ledger_damage *d) {
  lines *l = context;
  if (l->count++ > 0) return; /* the first one is looked at */
  snprintf(l->part, sizeof l->part, "%s", d->part);
  snprintf(l->text, sizeof l->text, "%s", d->text);
  l->id = d->id;
}

static lines looked_at(const char *path, ledger_check_counts *c) {
  lines l = {.count = 0};
  err e = {0};
  sqlite3 *db = open_database(path);
  if (ledger_check(db, path, note, &l, c, &e)) fail_msg("%s", e.text);
  assert_int_equal(c->damages, l.count);
  sqlite3_close(db);
  return l;
}

static void expect_whole(const char *path, ledger_check_counts *c) {
  lines l = looked_at(path, c);
  if (l.count)
    fail_msg("%d damages, the first one at %s %llu: %s", l.count, l.part, (unsigned long long)l.id, l.text);
}

/* Three sessions: 1 has ended, 2 and 3 have not. */
static void make_three(const char *path) {
  ledger l = opened(path);
  for (uint64_t id = 1; id <= 3; id++) {
    begin(&l, id);
    append(&l, id, 0, 5);
  }
  l.end(l.self, 1, 8, WIRE_FINISH_LENGTH, NULL);
  l.close(l.self);
}

static void test_a_good_ledger_has_no_damage(void **state) {
  const own_folder *p = *state;
  ledger_check_counts c;
  make_three(p->path);
  expect_whole(p->path, &c);
  assert_int_equal(c.sessions, 3);
  assert_int_equal(c.tokens, 24);
  assert_true(c.pieces >= 3);
  assert_true(c.pages >= 6);
  assert_int_equal(c.processes, 0);
}

/* Also while it is written: it is seen as it is at one moment. */
static void test_a_ledger_in_use_has_no_damage(void **state) {
  const own_folder *p = *state;
  ledger_check_counts c;
  ledger l = opened(p->path);
  begin(&l, 1);
  for (int32_t i = 0; i < 40; i++) {
    append(&l, 1, 2 * i, 2);
    expect_whole(p->path, &c);
    assert_int_equal(c.processes, 1);
  }
  l.close(l.self);
}

static const struct {
  const char *sql, *part, *phrase;
  uint64_t id;
} damages[] = {
    {"UPDATE session SET state = 7 WHERE id = 2", "session", "has a state that there is not", 2},
    {"UPDATE session SET finish = NULL WHERE id = 1", "session", "nothing says how", 1},
    {"UPDATE session SET finish = 9 WHERE id = 1", "session", "nothing says how", 1},
    {"UPDATE session SET finish = 1 WHERE id = 3", "session", "has not ended, and yet", 3},
    {"UPDATE session SET epoch = 0 WHERE id = 3", "session", "epoch bound", 3},
    {"UPDATE session SET epoch = 4294967296 WHERE id = 3", "session", "epoch bound", 3},
    {"UPDATE session SET owner = 6, state = 0 WHERE id = 2", "session", "process that is not in the ledger",
     2},
    {"INSERT INTO orchestrator(id, pid, start, machine, command, since, beat) VALUES(6, 1, 1, 'h', 'run', 1, "
     "1);"
     "UPDATE session SET owner = 6 WHERE id = 2",
     "session", "does not run", 2},
    {"UPDATE session SET state = 0 WHERE id = 2", "session", "nobody serves it", 2},
    {"DELETE FROM session WHERE id = 2", "session", "its prompt is gone", 2},
    {"INSERT INTO orchestrator(id, pid, start, machine, command, since, beat) VALUES(6, 1, 1, 'h', 'run', 1, "
     "1);"
     "UPDATE orchestrator SET sum = NULL",
     "process", "checksum", 6},
    {"UPDATE tokens SET sum = NULL WHERE session = 2", "session", "a checksum of its tokens", 2},
    {"DELETE FROM tokens WHERE session = 3 AND length(ids) = 0", "session", "end of its tokens", 3},
    {"CREATE TABLE more(x)", "tables", "tables", 0},
    {"DROP TRIGGER session_state", "tables", "tables", 0},
    {"PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 3 WHERE name = 'session_by_time'",
     "file", "SQLite", 0},
};

static void test_each_damage_has_a_line_that_says_what_to_do(void **state) {
  const own_folder *p = *state;
  for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
    char path[120];
    ledger_check_counts c;
    snprintf(path, sizeof path, "%s/%d", p->name, (int)i);
    make_three(path);
    sqlite3 *db = open_database(path);
    exec(db, damages[i].sql);
    sqlite3_close(db);
    lines l = looked_at(path, &c);
    if (l.count == 0) fail_msg("%s: nothing is found", damages[i].sql);
    if (!strstr(l.text, damages[i].phrase)) fail_msg("%s: '%s'", damages[i].sql, l.text);
    assert_string_equal(l.part, damages[i].part);
    assert_int_equal(l.id, damages[i].id);
    assert_non_null(strstr(l.text, "tandem session repair"));
  }
}

/* A look changes nothing, whatever it finds. */
static void test_a_check_changes_nothing(void **state) {
  const own_folder *p = *state;
  ledger_check_counts c;
  make_three(p->path);
  sqlite3 *db = open_database(p->path);
  exec(db, "UPDATE session SET state = 7 WHERE id = 2; DELETE FROM tokens WHERE session = 3");
  int64_t before = number(db, "PRAGMA data_version");
  assert_true(looked_at(p->path, &c).count > 1);
  assert_int_equal(number(db, "PRAGMA data_version"), before);
  sqlite3_close(db);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_good_ledger_has_no_damage),
      CASE(test_a_ledger_in_use_has_no_damage),
      CASE(test_each_damage_has_a_line_that_says_what_to_do),
      CASE(test_a_check_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
