/* libs: wire base */
/* What ZeroMQ would end the program for is looked at, or kept, before it asks. */
#include "wire/means.h"

#include "common/base/program.h"
#include "wire/accept_gate.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

#define NOBODY 65534

static void limit_files(rlim_t count) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = count;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void too_few_descriptors_are_a_sentence(void **state) {
  (void)state;
  err e = {0};
  rlim_t before = (rlim_t)program_files_max();
  limit_files(MEANS_FILES - 1);
  assert_int_equal(means_check(&e), ERR_LIMIT);
  assert_non_null(strstr(e.text, "may open 63 files: set the limit (ulimit -n) to 64 or more"));
  limit_files(MEANS_FILES);
  assert_int_equal(means_check(&e), ERR_OK);
  limit_files(before);
}

/* The last ones are not for connections, whoever listens. */
static void connections_leave_descriptors(void **state) {
  (void)state;
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  snprintf(at.sun_path, sizeof at.sun_path, "%s", scratch_path("s").text);
  int listener = socket(AF_UNIX, SOCK_STREAM, 0), caller = socket(AF_UNIX, SOCK_STREAM, 0);
  rlim_t before = (rlim_t)program_files_max();
  accept_gate gate;
  char byte;
  accept_gate_add(&gate, listener, clock_us);
  assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(listener, 8), 0);
  assert_int_equal(connect(caller, (struct sockaddr *)&at, sizeof at), 0);
  limit_files((rlim_t)caller + 1 + ACCEPT_GATE_RESERVE); /* the next descriptor is the first of the reserve */
  assert_int_equal(accept(listener, NULL, NULL), -1);
  assert_int_equal(errno, ECONNABORTED);
  assert_int_equal(read(caller, &byte, 1), 0); /* it was closed, not left waiting */
  limit_files(before);
  close(caller);
  caller = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_int_equal(connect(caller, (struct sockaddr *)&at, sizeof at), 0);
  int fd = accept(listener, NULL, NULL);
  assert_true(fd >= 0);
  accept_gate_remove(&gate);
  close(fd), close(caller), close(listener);
}

/* Runs `act` in a child: its status as wait tells it, and what it said. */
static int ends(void (*act)(void), char *said, size_t size) {
  int ends[2], status = 0;
  size_t used = 0;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    act();
    _exit(0);
  }
  close(ends[1]);
  for (ssize_t n; (n = read(ends[0], said + used, size - 1 - used)) > 0;) used += (size_t)n;
  said[used] = 0;
  close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

static void without_a_core(void) {
  setrlimit(RLIMIT_CORE, &(struct rlimit){0});
}

static void abort_without_memory(void) {
  errno = ENOMEM;
  abort();
}

static void abort_by_mistake(void) {
  without_a_core();
  errno = EINVAL;
  abort();
}

/* As another user, who has no process more than this one. */
static void socket_without_threads(void) {
  const struct rlimit one = {1, 1};
  without_a_core();
  if (setuid(NOBODY) == 0 && setrlimit(RLIMIT_NPROC, &one) == 0) zmq_socket(zmq_ctx_new(), ZMQ_DEALER);
}

static void what_runs_out_is_no_signal(void **state) {
  (void)state;
  char said[4096];
  int status = ends(abort_without_memory, said, sizeof said);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), STATUS_FAILED);
  assert_non_null(
      strstr(said, "test_means: error: ZeroMQ cannot go on, for the reason above: if memory, threads or"));
  status = ends(abort_by_mistake, said, sizeof said);
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), SIGABRT);
}

static void a_socket_without_its_threads_is_a_sentence(void **state) {
  (void)state;
  char said[4096];
  if (getuid() != 0) skip();
  int status = ends(socket_without_threads, said, sizeof said);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), STATUS_FAILED);
  assert_non_null(strstr(said, ": error: ZeroMQ cannot go on"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(too_few_descriptors_are_a_sentence),
      cmocka_unit_test(connections_leave_descriptors),
      cmocka_unit_test(what_runs_out_is_no_signal),
      cmocka_unit_test(a_socket_without_its_threads_is_a_sentence),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
