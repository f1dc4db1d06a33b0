/* libs: ledger base */
/* What of the writer's transactions is synced to the disk. */
#include "tests/support/ledger_folder.h"
#include <sqlite3.h>
#include <stdatomic.h>

/* --- the default file system, whose syncs are counted --- */

static atomic_int syncs;
static sqlite3_vfs counting, *real;
static const sqlite3_io_methods *real_methods;

static int count_sync(sqlite3_file *f, int flags) {
  syncs++;
  return real_methods->xSync(f, flags);
}

/* Every file of one system has the same methods, of which there are several sets: each is copied once. */
static int open_counted(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out) {
  static sqlite3_io_methods methods;
  (void)v;
  int rc = real->xOpen(real, name, f, flags, out);
  if (rc != SQLITE_OK || !name || !strstr(name, "-wal")) return rc;
  real_methods = f->pMethods;
  methods = *real_methods;
  methods.xSync = count_sync;
  f->pMethods = &methods;
  return rc;
}

static int count_syncs(void **state) {
  (void)state;
  real = sqlite3_vfs_find(NULL);
  counting = *real;
  counting.zName = "counting";
  counting.xOpen = open_counted;
  return sqlite3_vfs_register(&counting, 1);
}

/* --- tests --- */

static void expect_epoch(sqlite3 *db, uint32_t epoch) {
  WAIT_UNTIL(number(db, "SELECT epoch FROM session") >= epoch);
}

static void test_epochs_of_a_session_that_goes_on_are_synced(void **state) {
  const own_folder *p = *state;
  ledger l = opened(p->path);
  begin(&l, 5);
  assert_true(comes_to(&l, 5, 3));
  sqlite3 *db = open_database(p->path);
  int before = syncs;
  for (int i = 0; i < 5; i++) {
    append(&l, 5, 2 * i, 2);
    assert_true(comes_to(&l, 5, 5 + 2 * i));
  }
  assert_int_equal(syncs, before); /* text is not synced in this mode */
  uint32_t bound = (uint32_t)number(db, "SELECT epoch FROM session");
  assert_int_equal(l.epoch(l.self, 5, bound), ERR_OK);
  expect_epoch(db, bound + 1);
  assert_int_equal(syncs, before + 1);
  append(&l, 5, 10, 2);
  assert_true(comes_to(&l, 5, 15));
  assert_int_equal(syncs, before + 1); /* and then it is as before */
  l.close(l.self);
  sqlite3_close(db);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_epochs_of_a_session_that_goes_on_are_synced),
  };
  return cmocka_run_group_tests(tests, count_syncs, NULL);
}
