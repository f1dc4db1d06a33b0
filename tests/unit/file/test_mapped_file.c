/* libs: file base */
#include "common/file/mapped_file.h"

#include "common/base/program.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

#define BYTES 65536

static char path[SCRATCH_MAX];

static void write_file(void) {
  static char data[BYTES];
  strcpy(path, scratch_path("mapped").text);
  FILE *f = fopen(path, "w");
  memset(data, 7, sizeof data);
  assert_int_equal(fwrite(data, 1, sizeof data, f), sizeof data);
  fclose(f);
}

/* Runs in a process of its own, whose status and words on stderr come back. */
static int in_child(void (*run)(void), char *said, size_t size) {
  int pipes[2], status;
  size_t used = 0;
  assert_int_equal(pipe(pipes), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(pipes[1], STDERR_FILENO);
    signal(SIGBUS, SIG_DFL); /* cmocka has a handler of its own */
    run();
    _exit(99);
  }
  close(pipes[1]);
  for (ssize_t n; used + 1 < size && (n = read(pipes[0], said + used, size - 1 - used)) > 0;)
    used += (size_t)n;
  said[used] = 0;
  close(pipes[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

static void use_all(const volatile char *data) {
  int sum = 0;
  for (size_t i = 0; i < BYTES; i += 512) sum += data[i];
  (void)sum;
}

static void read_a_file_that_is_cut(void) {
  mapped_file m;
  err e;
  if (mapped_file_open(&m, path, "the file", &e) != ERR_OK || truncate(path, 4096) != 0) _exit(98);
  use_all(m.data);
}

static void read_other_memory_that_is_cut(void) {
  mapped_file m;
  err e;
  if (mapped_file_open(&m, path, "the file", &e) != ERR_OK) _exit(98);
  FILE *f = fopen(path, "r");
  const char *other = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fileno(f), 0);
  if (other == MAP_FAILED || truncate(path, 4096) != 0) _exit(98);
  use_all(other);
}

static void read_a_closed_file(void) {
  mapped_file m;
  err e;
  for (int i = 0; i < 3 * MAPPED_FILE_WATCH_MAX; i++) { /* entries are given back */
    if (mapped_file_open(&m, path, "the file", &e) != ERR_OK) _exit(98);
    if (i + 1 < 3 * MAPPED_FILE_WATCH_MAX) mapped_file_close(&m);
  }
  if (truncate(path, 4096) != 0) _exit(98);
  use_all(m.data);
}

static void test_a_file_that_is_cut_ends_the_program_with_a_sentence(void **state) {
  (void)state;
  static void (*const runs[])(void) = {read_a_file_that_is_cut, read_a_closed_file};
  for (int i = 0; i < 2; i++) {
    char said[4096];
    write_file();
    int status = in_child(runs[i], said, sizeof said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), STATUS_FILE);
    assert_non_null(strstr(said, path));
    assert_non_null(strstr(said, "was cut"));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    unlink(path);
  }
}

static void test_another_bus_error_kills_as_before(void **state) {
  (void)state;
  char said[4096];
  write_file();
  int status = in_child(read_other_memory_that_is_cut, said, sizeof said);
  if (WIFEXITED(status)) assert_int_not_equal(WEXITSTATUS(status), 99); /* a sanitizer exits */
  assert_null(strstr(said, "was cut"));
  unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_file_that_is_cut_ends_the_program_with_a_sentence),
      cmocka_unit_test(test_another_bus_error_kills_as_before),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
