/* libs: ledger base */
#include "orchestrator/ledger/process_identity.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_this_process_is_alive(void **state) {
  (void)state;
  process_identity me;
  process_identity_self(&me);
  assert_int_equal(me.pid, getpid());
  assert_true(me.start > 0);
  assert_true(
      process_identity_alive(&me, 0, PROCESS_IDENTITY_SILENT_US * 2)); /* here its silence means nothing */
}

static void test_dead_processes_and_zombies_are_not_alive(void **state) {
  (void)state;
  process_identity me;
  process_identity_self(&me);
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  process_identity it = me;
  it.pid = child;
  it.start = 1;
  bool alive = process_identity_alive(&it, 0, 0); /* its id belongs to a process that began later */
  kill(child, SIGKILL);
  siginfo_t info;
  assert_false(alive);
  assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
  for (int64_t start = me.start; start < me.start + 200; start++) { /* whatever its start was */
    it.start = start;
    if (process_identity_alive(&it, 0, 0)) fail_msg("a zombie lives");
  }
  assert_int_equal(waitpid(child, NULL, 0), child);
  me.start = 0;
  assert_false(process_identity_alive(&me, 0, 0));
}

static void test_on_another_machine_the_heartbeat_counts(void **state) {
  (void)state;
  process_identity it;
  process_identity_self(&it);
  it.machine[0] ^= 1;
  assert_true(process_identity_alive(&it, 1000, 1000 + PROCESS_IDENTITY_SILENT_US - 1));
  assert_false(process_identity_alive(&it, 1000, 1000 + PROCESS_IDENTITY_SILENT_US));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_this_process_is_alive),
                                     cmocka_unit_test(test_dead_processes_and_zombies_are_not_alive),
                                     cmocka_unit_test(test_on_another_machine_the_heartbeat_counts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
