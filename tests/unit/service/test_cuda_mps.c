/* libs: service */
#include "orchestrator/service/cuda_mps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/support/scratch.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int set_up(void **state) {
  (void)state;
  return setenv("CUDA_MPS_PIPE_DIRECTORY", scratch_folder(), 1);
}

static void write_text(const char *text) {
  FILE *f = fopen(scratch_path("nvidia-cuda-mps-control.pid").text, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void write_pid(pid_t pid) {
  char text[24];
  snprintf(text, sizeof text, "%ld", (long)pid);
  write_text(text);
}

static void test_it_runs_while_its_process_does(void **state) {
  (void)state;
  assert_false(cuda_mps_runs());
  write_pid(getpid());
  assert_true(cuda_mps_runs());
}

/* A daemon that was killed leaves its file behind. */
static void test_a_file_alone_says_nothing(void **state) {
  (void)state;
  pid_t child = fork();
  if (child == 0) _exit(0);
  assert_int_equal(waitpid(child, NULL, 0), child);
  write_pid(child);
  assert_false(cuda_mps_runs());
  static const char *const texts[] = {"", "none", "-1", "0", "99999999999999999999"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    write_text(texts[i]);
    assert_false(cuda_mps_runs());
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_it_runs_while_its_process_does),
      cmocka_unit_test(test_a_file_alone_says_nothing),
  };
  return cmocka_run_group_tests(tests, set_up, NULL);
}
