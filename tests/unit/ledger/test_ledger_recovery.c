/* libs: ledger base */
#include "orchestrator/ledger/ledger_recovery.h"
#include "orchestrator/ledger/ledger_import.h"
#include "tests/support/ledger_folder.h"

enum { MANY = 400, PAGE = 4096 };

static uint64_t id_of(uint64_t n) {
  return (n + 1) * UINT64_C(0x9E3779B97F4A7C15);
}

static void make_many(const char *path) {
  sqlite3 *db;
  err e = {0};
  int32_t tokens[40] = {0};
  if (ledger_database_open(&db, path, true, &e)) fail_msg("%s", e.text);
  exec(db, "BEGIN");
  for (uint64_t n = 0; n < MANY; n++)
    assert_int_equal(ledger_import_write(db, &(ledger_session){.id = id_of(n),
                                                               .epoch = 1,
                                                               .tokens = tokens,
                                                               .length = 40,
                                                               .prompt_length = 20,
                                                               .options = request}),
                     SQLITE_OK);
  exec(db, "COMMIT");
  sqlite3_close(db);
}

static size_t found_in(const char *path) {
  sqlite3 *db;
  ledger_recovery_ids ids;
  assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
  exec(db, "PRAGMA cell_size_check = ON");
  assert_int_equal(ledger_recovery_find(db, &ids), ERR_OK);
  size_t known = 0;
  for (size_t i = 0; i < ids.count; i++) {
    if (i > 0) assert_true(ids.ids[i] > ids.ids[i - 1]);
    for (uint64_t n = 0; n < MANY; n++) known += ids.ids[i] == id_of(n);
  }
  ledger_recovery_fini(&ids);
  sqlite3_close(db);
  return known;
}

static void break_page(const char *path, int64_t page) {
  FILE *f = fopen(path, "r+b");
  assert_non_null(f);
  fseek(f, (page - 1) * PAGE, SEEK_SET);
  for (int i = 0; i < PAGE; i++) fputc(0xa5, f);
  fclose(f);
}

static int64_t root_of(const char *path, const char *name) {
  char sql[100];
  snprintf(sql, sizeof sql, "SELECT rootpage FROM sqlite_master WHERE name = '%s'", name);
  sqlite3 *db = open_database(path);
  int64_t root = number(db, sql);
  sqlite3_close(db);
  return root;
}

static void test_all_are_found_in_a_good_file(void **state) {
  const own_folder *p = *state;
  make_many(p->path);
  assert_int_equal(found_in(p->path), MANY);
}

/* Any one of the three trees tells all of them. */
static void test_one_tree_suffices(void **state) {
  const own_folder *p = *state;
  static const char *const trees[] = {"session", "tokens", "session_by_time"};
  for (int whole = 0; whole < 3; whole++) {
    char path[120];
    snprintf(path, sizeof path, "%s/%d", p->name, whole);
    make_many(path);
    int64_t roots[3];
    for (int i = 0; i < 3; i++) roots[i] = root_of(path, trees[i]);
    for (int i = 0; i < 3; i++)
      if (i != whole) break_page(path, roots[i]);
    assert_int_equal(found_in(path), MANY);
  }
}

/* Behind a damage, and between two. */
static void test_a_tree_is_read_around_its_damages(void **state) {
  const own_folder *p = *state;
  make_many(p->path);
  int64_t by_time = root_of(p->path, "session_by_time"), tokens = root_of(p->path, "tokens");
  sqlite3 *db = open_database(p->path);
  int64_t leaves = number(db, "SELECT count(*) FROM dbstat WHERE name = 'session' AND pagetype = 'leaf'");
  int64_t broken[3];
  for (int i = 0; i < 3; i++) {
    char sql[160];
    snprintf(sql, sizeof sql,
             "SELECT pageno FROM dbstat WHERE name = 'session' AND pagetype = 'leaf' LIMIT 1 OFFSET %d",
             (int)leaves * (i + 1) / 4);
    broken[i] = number(db, sql);
  }
  sqlite3_close(db);
  assert_true(leaves > 12);
  break_page(p->path, by_time);
  break_page(p->path, tokens);
  for (int i = 0; i < 3; i++) break_page(p->path, broken[i]);
  size_t found = found_in(p->path), page_full = (size_t)(2 * MANY / leaves);
  assert_true(found < MANY);
  if (found + 3 * page_full < MANY) fail_msg("%zu of %d found, %d leaves", found, MANY, (int)leaves);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_all_are_found_in_a_good_file),
      CASE(test_one_tree_suffices),
      CASE(test_a_tree_is_read_around_its_damages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
