/* libs: ledger base */
#include "tests/support/ledger_folder.h"

static void write_file(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void test_the_file_is_for_its_owner_alone(void **state) {
  const own_folder *p = *state;
  struct stat info;
  char folder[128];
  mode_t before = umask(0);
  ledger l = opened(p->path);
  umask(before);
  begin(&l, 1);
  assert_true(comes_to(&l, 1, 3));
  assert_int_equal(stat(p->path, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0600);
  snprintf(folder, sizeof folder, "%s-wal", p->path);
  assert_int_equal(stat(folder, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0600);
  snprintf(folder, sizeof folder, "%s/a/b", p->name);
  assert_int_equal(stat(folder, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0700);
  l.close(l.self);
}

static void test_other_files_are_refused(void **state) {
  own_folder *p = *state;
  sqlite3 *db;
  char path[128];
  snprintf(path, sizeof path, "%s/other", p->name);
  assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
  exec(db, "CREATE TABLE their(own)");
  sqlite3_close(db);
  expect_refused(path, ERR_FORMAT, "no ledger");
  snprintf(path, sizeof path, "%s/text", p->name);
  write_file(path, "This is a letter, and it is long enough to be taken for more than the head of a "
                   "database, which has 100 bytes.\n");
  expect_refused(path, ERR_FORMAT, "damaged");
  expect_refused(p->name, ERR_FORMAT, "regular");
  expect_refused("/dev/null", ERR_FORMAT, "regular");
  expect_refused("/dev/null/ledger", ERR_IO, "cannot be opened");

  ledger l = opened(p->path);
  l.close(l.self);
  db = open_database(p->path);
  exec(db, "PRAGMA user_version = 3");
  sqlite3_close(db);
  expect_refused(p->path, ERR_VERSION, "newer");
  err e = {0};
  snprintf(path, sizeof path, "%s/none", p->name);
  assert_int_equal(ledger_database_open(&db, path, false, &e), ERR_GONE);
  assert_int_equal(access(path, F_OK), -1); /* nothing is made by looking */
}

/* Readers of a journal share memory, by a file of its own; where that cannot be made, as on a read-only mount
 * or a full disk, the ledger is read as it lies there, if its journal has nothing more. */
static void test_a_ledger_is_read_where_nothing_can_be_written(void **state) {
  own_folder *p = *state;
  char path[128], beside[140], link[140];
  sqlite3 *db;
  err e = {0};
  ledger_session s;
  snprintf(path, sizeof path, "%s/odd ?#%%.name", p->name);
  ledger l = opened(path);
  begin(&l, 1);
  append(&l, 1, 0, 3);
  assert_true(comes_to(&l, 1, 6));
  l.close(l.self);
  snprintf(beside, sizeof beside, "%s-shm", path);
  assert_int_equal(symlink("none/shm", beside), 0); /* in place of that file: it cannot be opened */
  assert_int_equal(ledger_database_open(&db, path, false, &e), ERR_OK);
  load(db, 1, &s);
  expect_tokens(&s, 3);
  ledger_session_fini(&s);
  sqlite3_close(db);
  snprintf(link, sizeof link, "%s/link", p->name); /* a journal lies beside what it leads to */
  assert_int_equal(symlink(path, link), 0);
  static const char *const journals[] = {"-wal", "-journal"};
  for (int i = 0; i < 4; i++) {
    snprintf(beside, sizeof beside, "%s%s", path, journals[i / 2]);
    if (i < 2) write_file(beside, "entries");
    if (i == 2) assert_int_equal(mkdir(beside, 0700), 0); /* SQLite cannot delete it, as on such a mount */
    assert_int_equal(ledger_database_open(&db, i % 2 ? link : path, false, &e), ERR_IO);
    assert_non_null(strstr(e.text, "its last entries are in"));
    if (i != 2) assert_int_equal(remove(beside), 0);
  }
  assert_int_equal(ledger_database_open(&db, link, false, &e), ERR_OK);
  sqlite3_close(db);
}

static void test_the_file_is_made_once(void **state) {
  const own_folder *p = *state;
  struct stat info;
  assert_true(ledger_database_make(p->path));
  assert_int_equal(stat(p->path, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0600);
  assert_false(ledger_database_make(p->path));
  finished(p->path, 1, 1);
  assert_false(ledger_database_make(p->path));
}

/* Writes sessions [from, to). The memory that SQLite has then. */
static int64_t memory_after(ledger *l, uint64_t from, uint64_t to) {
  for (uint64_t id = from; id < to; id++) {
    begin(l, id);
    append(l, id, 0, 10);
    if (id % 100 == 99) assert_true(comes_to(l, id, 13));
    l->end(l->self, id, 13, WIRE_FINISH_STOP, NULL);
    l->forget(l->self, id);
  }
  begin(l, to);
  assert_true(comes_to(l, to, 3));
  return sqlite3_memory_used();
}

/* A server that runs for months writes many. */
static void test_the_memory_does_not_grow_with_the_file(void **state) {
  const own_folder *p = *state;
  struct stat few, many;
  ledger l = opened(p->path);
  int64_t before = memory_after(&l, 1, 1000);
  assert_int_equal(stat(p->path, &few), 0);
  int64_t growth = memory_after(&l, 1001, 3000) - before;
  l.close(l.self);
  assert_int_equal(stat(p->path, &many), 0);
  assert_true(many.st_size - few.st_size > 1 << 20);
  assert_in_range(growth + (1 << 16), 0, 1 << 17);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_the_file_is_for_its_owner_alone),
      CASE(test_other_files_are_refused),
      CASE(test_a_ledger_is_read_where_nothing_can_be_written),
      CASE(test_the_file_is_made_once),
      CASE(test_the_memory_does_not_grow_with_the_file),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
