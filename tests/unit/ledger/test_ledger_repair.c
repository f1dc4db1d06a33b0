/* libs: ledger base : cost=10 */
#include "orchestrator/ledger/ledger_repair.h"
#include "orchestrator/ledger/ledger_check.h"
#include "orchestrator/ledger/owner_lock.h"
#include "common/base/user_folder.h"
#include "tests/support/ledger_folder.h"

#include "tests/support/ledger_damage.h"

#define SEEDS 120

static void count_damage(void *context, const ledger_damage *d) {
  (void)context;
  assert_true(strlen(d->text) > 20);
}

/* -1: it cannot be opened as a ledger, which is damage, too. */
static int64_t damages_of(const char *path) {
  sqlite3 *db;
  ledger_check_counts c;
  err e = {0};
  int rc = ledger_database_open(&db, path, false, &e);
  if (rc) {
    assert_true(rc == ERR_FORMAT || rc == ERR_VERSION);
    return -1;
  }
  if (ledger_check(db, path, count_damage, NULL, &c, &e)) fail_msg("%s", e.text);
  sqlite3_close(db);
  return c.damages;
}

static void count_sessions(void *context, const ledger_repaired *r) {
  (void)r;
  ++*(int *)context;
}

/* What was read of the damaged file is whole afterwards, too. */
static void expect_repaired(const char *path, const readable *before, uint64_t seed, damage_kind kind) {
  ledger_repair_result r;
  int told = 0;
  err e = {0};
  int rc = ledger_repair(path, count_sessions, &told, &r, &e);
  if (rc == ERR_FORMAT && before->count == 0) {
    assert_non_null(strstr(e.text, "stays as it is"));
    return;
  }
  if (rc) fail_msg("seed %d, kind %d: %s", (int)seed, kind, e.text);
  if (damages_of(path) != 0) fail_msg("seed %d, kind %d: damaged after its repair", (int)seed, kind);
  readable after = read_ledger(path);
  for (int n = 0; n < SESSIONS; n++)
    if (before->whole[n] && !after.whole[n])
      fail_msg("seed %d, kind %d: session %d is lost", (int)seed, kind, n);
  assert_int_equal(told, r.was_good ? 0 : r.whole + r.cut + r.lost);
  if (!r.was_good) assert_int_equal(access(r.damaged, F_OK), 0);
}

static void copy_damaged(const char *from, const char *to) {
  static bytes b;
  read_bytes(from, "", &b), write_bytes(to, "", &b);
  read_bytes(from, "-wal", &b), write_bytes(to, "-wal", &b);
  write_bytes(to, "-shm", &nothing_there);
}

/* Whatever damages it: check finds all that changes what is read, and repair leaves a ledger that is good. */
static void test_damages_are_found_and_repaired(void **state) {
  const own_folder *p = *state;
  char other[120], command[300];
  int found = 0, repaired_whole = 0;
  make_whole(p->path);
  snprintf(other, sizeof other, "%s/other", p->name);
  for (uint64_t i = 0; i < SEEDS; i++) {
    uint64_t seed = i * 7919 + 1;
    damage_kind kind = i % DAMAGE_COUNT;
    bool certain = damage(p->path, kind, &seed);
    copy_damaged(p->path, other); /* a reader may write the journal into the file */
    readable before = read_ledger(other);
    copy_damaged(p->path, other);
    int64_t damages = damages_of(other);
    found += damages != 0;
    bool changed = certain || (before.count < SESSIONS && !is_older_state(kind));
    if (changed && damages == 0)
      fail_msg("seed %d, kind %d: %d sessions are read", (int)i, kind, before.count);
    expect_repaired(p->path, &before, i, kind);
    repaired_whole += read_ledger(p->path).count;
    snprintf(command, sizeof command, "rm -f %s.damaged-*", p->path);
    assert_int_equal(system(command), 0);
  }
  assert_true(found > SEEDS / 2);
  print_message("%d of %d ledgers damaged; %.1f of %d sessions whole after repair\n", found, SEEDS,
                (double)repaired_whole / SEEDS, SESSIONS);
}

static void test_a_good_ledger_stays_as_it_is(void **state) {
  const own_folder *p = *state;
  ledger_repair_result r;
  int told = 0;
  err e = {0};
  finished(p->path, 1, 5);
  static bytes before, after;
  read_bytes(p->path, "", &before);
  assert_int_equal(ledger_repair(p->path, count_sessions, &told, &r, &e), ERR_OK);
  assert_true(r.was_good);
  assert_int_equal(told, 0);
  read_bytes(p->path, "", &after);
  assert_int_equal(before.size, after.size);
  assert_memory_equal(before.data, after.data, before.size);
}

/* Nothing is copied, made or renamed then. */
static void test_a_ledger_in_use_is_refused(void **state) {
  const own_folder *p = *state;
  ledger_repair_result r;
  int told = 0;
  err e = {0};
  ledger l = opened(p->path);
  begin(&l, 1);
  append(&l, 1, 0, 2);
  assert_true(comes_to(&l, 1, 5));
  assert_int_equal(ledger_repair(p->path, count_sessions, &told, &r, &e), ERR_STATE);
  assert_non_null(strstr(e.text, "in use"));
  l.close(l.self);
  assert_int_equal(ledger_repair(p->path, count_sessions, &told, &r, &e), ERR_OK);
}

/* An orchestrator that starts during a repair is refused. */
static void test_nobody_starts_during_a_repair(void **state) {
  const own_folder *p = *state;
  int all, one;
  err e = {0};
  finished(p->path, 1, 1);
  assert_int_equal(owner_lock_take_all(&all, p->path, &e), ERR_OK);
  assert_int_equal(owner_lock_take(&one, p->path, UINT64_MAX, &e), ERR_IO);
  assert_int_equal(owner_lock_take(&one, p->path, 0, &e), ERR_IO);
  owner_lock_release(all);
  assert_int_equal(owner_lock_take(&one, p->path, UINT64_MAX, &e), ERR_OK);
  assert_int_equal(owner_lock_take_all(&all, p->path, &e), ERR_STATE);
  owner_lock_release(one);
}

static void test_what_is_no_ledger_stays(void **state) {
  const own_folder *p = *state;
  static bytes b, after;
  ledger_repair_result r;
  int told = 0;
  err e = {0};
  assert_int_equal(ledger_repair(p->path, count_sessions, &told, &r, &e), ERR_GONE);
  user_folder_make_parents(p->path);
  b.size = 20000;
  memset(b.data, 'x', b.size);
  write_bytes(p->path, "", &b);
  assert_int_equal(ledger_repair(p->path, count_sessions, &told, &r, &e), ERR_FORMAT);
  read_bytes(p->path, "", &after);
  assert_int_equal(after.size, b.size);
  assert_memory_equal(after.data, b.data, b.size);
  assert_int_equal(told, 0);
}

/* The damaged file and its journal are beside the new one, byte for byte. */
static void test_the_damaged_file_is_kept(void **state) {
  const own_folder *p = *state;
  static bytes kept;
  ledger_repair_result r;
  uint64_t seed = 5;
  int told = 0;
  err e = {0};
  char other[120];
  static bytes before;
  make_whole(p->path);
  snprintf(other, sizeof other, "%s/other", p->name);
  do {
    damage(p->path, DAMAGE_ZEROS, &seed); /* of a page that is in use */
    copy_damaged(p->path, other);
  } while (damages_of(other) == 0 || read_ledger(other).count == 0);
  read_bytes(p->path, "", &before);
  assert_int_equal(ledger_repair(p->path, count_sessions, &told, &r, &e), ERR_OK);
  assert_false(r.was_good);
  read_bytes(r.damaged, "", &kept);
  assert_int_equal(kept.size, before.size);
  assert_memory_equal(kept.data, before.data, before.size);
  read_bytes(r.damaged, "-wal", &kept);
  assert_int_equal(kept.size, whole_wal.size);
  assert_memory_equal(kept.data, whole_wal.data, whole_wal.size);
}

/* In memory where there is such a folder: hundreds of ledgers are synced. */
static int set_up_memory(void **state) {
  int rc = set_up(state);
  own_folder *p = *state, other = {.name = "/dev/shm/test-ledger-XXXXXX"};
  if (rc || !mkdtemp(other.name)) return rc;
  rmdir(p->name);
  snprintf(other.path, sizeof other.path, "%s/a/b/ledger.sqlite", other.name);
  *p = other;
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_damages_are_found_and_repaired, set_up_memory, tear_down),
      CASE(test_a_good_ledger_stays_as_it_is),
      CASE(test_a_ledger_in_use_is_refused),
      CASE(test_nobody_starts_during_a_repair),
      CASE(test_what_is_no_ledger_stays),
      CASE(test_the_damaged_file_is_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
