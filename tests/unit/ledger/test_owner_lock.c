/* libs: ledger base */
#include "common/base/user_folder.h"
#include "tests/support/ledger_folder.h"

#include "common/base/hash.h"
#include "orchestrator/ledger/owner_lock.h"

static void make_folder_of(const char *path) {
  user_folder_make_parents(path);
  assert_true(ledger_database_make(path));
}

static owner_state state_here(const own_folder *p, uint64_t owner) {
  char host[OWNER_LOCK_HOST_MAX];
  owner_lock_host(host);
  return owner_lock_state(p->path, owner, host);
}

static void test_whoever_holds_its_lock_lives(void **state) {
  const own_folder *p = *state;
  make_folder_of(p->path);
  int fd[2];
  err e = {0};
  assert_int_equal(state_here(p, SESSION), OWNER_DEAD);
  assert_int_equal(owner_lock_take(&fd[0], p->path, SESSION, &e), ERR_OK);
  assert_int_equal(owner_lock_take(&fd[1], p->path, 77, &e), ERR_OK);
  assert_int_equal(state_here(p, SESSION), OWNER_ALIVE);
  assert_int_equal(owner_lock_state(p->path, SESSION, "another host"), OWNER_ALIVE);
  owner_lock_release(fd[0]);
  assert_int_equal(state_here(p, SESSION), OWNER_DEAD);
  assert_int_equal(state_here(p, 77), OWNER_ALIVE);
  owner_lock_release(fd[1]);
}

/* Not one that is stopped either: its lock is held as long as it exists. */
static void test_a_process_that_was_killed_is_dead_at_once(void **state) {
  NEEDS_FORK();
  const own_folder *p = *state;
  make_folder_of(p->path);
  int ready[2], status;
  char byte;
  assert_int_equal(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    int fd;
    err e;
    if (owner_lock_take(&fd, p->path, 5, &e) != ERR_OK || write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  assert_int_equal(read(ready[0], &byte, 1), 1);
  kill(child, SIGSTOP);
  assert_int_equal(waitpid(child, &status, WUNTRACED), child);
  owner_state stopped = state_here(p, 5);
  kill(child, SIGKILL);
  siginfo_t info;
  assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
  assert_int_equal(state_here(p, 5), OWNER_DEAD); /* a zombie holds nothing */
  assert_int_equal(waitpid(child, NULL, 0), child);
  assert_int_equal(stopped, OWNER_ALIVE);
  close(ready[0]);
  close(ready[1]);
}

static void test_only_what_is_certain_counts_as_death(void **state) {
  (void)state;
  for (int same = 0; same < 2; same++)
    for (int local = 0; local < 2; local++) {
      assert_int_equal(owner_lock_judge(true, same, local), OWNER_ALIVE);
      assert_int_equal(owner_lock_judge(false, same, local), same || local ? OWNER_DEAD : OWNER_ELSEWHERE);
    }
}

static void test_hosts_without_an_id_are_not_one_host(void **state) {
  (void)state;
  char nobody[OWNER_LOCK_HOST_MAX], here[OWNER_LOCK_HOST_MAX];
  hash_format((hash16){{0}}, nobody);
  owner_lock_host(here);
  assert_false(owner_lock_same_host(nobody, nobody));
  assert_false(owner_lock_same_host("", ""));
  assert_false(owner_lock_same_host(here, nobody));
  assert_true(owner_lock_same_host(here, here));
}

static void test_a_file_that_cannot_be_asked_proves_nothing(void **state) {
  const own_folder *p = *state;
  char owners[128];
  make_folder_of(p->path);
  snprintf(owners, sizeof owners, "%s-owners", p->path);
  assert_int_equal(symlink("/dev/null", owners), 0);
  assert_int_equal(state_here(p, 5), OWNER_ELSEWHERE);
  int fd;
  err e = {0};
  assert_int_equal(owner_lock_take(&fd, p->path, 5, &e), ERR_IO);
  assert_int_equal(fd, -1);
  assert_non_null(strstr(e.text, "--ledger FILE"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_whoever_holds_its_lock_lives),
      CASE(test_a_process_that_was_killed_is_dead_at_once),
      CASE(test_only_what_is_certain_counts_as_death),
      CASE(test_hosts_without_an_id_are_not_one_host),
      CASE(test_a_file_that_cannot_be_asked_proves_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
