/* libs: wire base */
/* What ZeroMQ would end the program for is looked at, or kept, before it asks. */
#include "wire/means.h"

#include "common/base/program.h"
#include "wire/accept_gate.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/scratch.h"

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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(too_few_descriptors_are_a_sentence),
      cmocka_unit_test(connections_leave_descriptors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
