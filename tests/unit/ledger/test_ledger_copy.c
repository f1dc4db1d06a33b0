/* libs: ledger base */
#include "orchestrator/ledger/ledger_copy.h"
#include "tests/support/ledger_folder.h"

static void write_file(const char *path, const char *suffix, const char *text) {
  char name[160];
  snprintf(name, sizeof name, "%s%s", path, suffix);
  FILE *f = fopen(name, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

/* NULL: there is no such file. */
static void expect_file(const char *path, const char *suffix, const char *text) {
  char name[160], got[64] = "";
  snprintf(name, sizeof name, "%s%s", path, suffix);
  FILE *f = fopen(name, "r");
  if (!text) {
    assert_null(f);
    return;
  }
  assert_non_null(f);
  assert_true(fgets(got, sizeof got, f));
  assert_string_equal(got, text);
  fclose(f);
}

static void test_the_journal_goes_with_its_ledger(void **state) {
  const own_folder *p = *state;
  char from[100], to[100], third[100];
  err e = {0};
  snprintf(from, sizeof from, "%s/from", p->name);
  snprintf(to, sizeof to, "%s/to", p->name);
  snprintf(third, sizeof third, "%s/third", p->name);
  assert_int_equal(ledger_copy_make(from, to, &e), ERR_GONE);
  write_file(from, "", "ledger");
  write_file(from, "-wal", "journal");
  write_file(from, "-shm", "index");
  assert_int_equal(ledger_copy_make(from, to, &e), ERR_OK);
  expect_file(to, "", "ledger");
  expect_file(to, "-wal", "journal");
  expect_file(to, "-shm", NULL); /* SQLite makes it anew */
  struct stat info;
  assert_int_equal(stat(to, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0600);
  assert_int_equal(ledger_copy_make(from, to, &e), ERR_IO); /* nothing is overwritten */
  assert_int_equal(ledger_copy_rename(from, third, &e), ERR_OK);
  expect_file(third, "", "ledger");
  expect_file(third, "-wal", "journal");
  expect_file(third, "-shm", "index");
  expect_file(from, "-wal", NULL);
  assert_int_equal(ledger_copy_rename(from, third, &e), ERR_IO);
  ledger_copy_remove(third);
  expect_file(third, "", NULL);
  expect_file(third, "-wal", NULL);
}

/* Without its first page nothing of it can be read, and with that of another ledger everything. */
static void test_a_first_page_is_replaced(void **state) {
  const own_folder *p = *state;
  char other[100];
  sqlite3 *db;
  err e = {0};
  snprintf(other, sizeof other, "%s/other", p->name);
  for (uint64_t id = 1; id <= 20; id++) finished(p->path, id, 50);
  if (ledger_database_open(&db, other, true, &e)) fail_msg("%s", e.text);
  sqlite3_close(db);
  FILE *f = fopen(p->path, "r+b");
  for (int i = 0; i < LEDGER_COPY_PAGE; i++) fputc('x', f);
  fclose(f);
  expect_refused(p->path, ERR_FORMAT, "damaged");
  assert_int_equal(ledger_copy_first_page(other, p->path, &e), ERR_OK);
  db = open_database(p->path);
  for (uint64_t id = 1; id <= 20; id++) {
    ledger_session s;
    load(db, id, &s);
    expect_tokens(&s, 50);
    ledger_session_fini(&s);
  }
  sqlite3_close(db);
  assert_int_equal(ledger_copy_first_page("/nowhere", p->path, &e), ERR_IO);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_the_journal_goes_with_its_ledger),
      CASE(test_a_first_page_is_replaced),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
