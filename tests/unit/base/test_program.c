/* libs: base */
#include "common/base/program.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/patience.h"

static void whole_numbers_are_whole(void **state) {
  (void)state;
  static const char *const bad[] = {
      "",    "x", "1x", " 1", "1 ", "+1", "0x10", "1.0", "-", "9", "-4", "1e2", "99999999999999999999",
      "--1", "٣"};
  int64_t n = 77;
  err e;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(program_int("--n", bad[i], -3, 8, &n, &e), ERR_ARG);
    assert_non_null(strstr(e.text, "--n must be a whole number from -3 to 8"));
    assert_int_equal(n, 77);
  }
  assert_int_equal(program_int("--n", "-3", -3, 8, &n, &e), ERR_OK);
  assert_int_equal(n, -3);
  assert_int_equal(program_int("--n", "8", -3, 8, &n, &e), ERR_OK);
  assert_int_equal(n, 8);
}

static void seeds_are_64_bits(void **state) {
  (void)state;
  static const char *const bad[] = {"", "-1", "18446744073709551616", "1 ", "0x1", "+1"};
  uint64_t n = 5;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(program_u64("--seed", bad[i], &n, NULL), ERR_ARG);
  assert_int_equal(n, 5);
  assert_int_equal(program_u64("--seed", "18446744073709551615", &n, NULL), ERR_OK);
  assert_true(n == UINT64_MAX);
}

static void numbers_are_finite(void **state) {
  (void)state;
  static const char *const bad[] = {"", "nan", "inf", "-inf", "1.0001", "-0.1", "0.5x", ".", " 0.5", "1e400"};
  double x = 3;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(program_double("--rate", bad[i], 0, 1, &x, NULL), ERR_ARG);
  assert_true(x == 3);
  assert_int_equal(program_double("--rate", "0.25", 0, 1, &x, NULL), ERR_OK);
  assert_true(x == 0.25);
  assert_int_equal(program_double("--rate", ".5", 0, 1, &x, NULL), ERR_OK);
  assert_true(x == 0.5);
}

static void sizes_have_units(void **state) {
  (void)state;
  static const char *const bad[] = {
      "", "-1", "1.5G", "12 G", "12GB", "G", "x", "8388608T", "99999999999999999999"};
  static const struct {
    const char *text;
    int64_t bytes;
  } good[] = {{"0", 0},
              {"1", 1},
              {"4096", 4096},
              {"3k", 3072},
              {"512M", 512 << 20},
              {"2G", (int64_t)2 << 30},
              {"8388607T", INT64_MAX - ((int64_t)1 << 40) + 1}};
  int64_t n = 77;
  err e;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(program_size("--n", bad[i], &n, &e), ERR_ARG);
    assert_non_null(strstr(e.text, "--n must be a number of bytes"));
    assert_int_equal(n, 77);
  }
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    assert_int_equal(program_size("--n", good[i].text, &n, &e), ERR_OK);
    assert_int_equal(n, good[i].bytes);
  }
}

static void sizes_are_told_in_three_digits(void **state) {
  (void)state;
  static const struct {
    uint64_t bytes;
    const char *text;
  } table[] = {{0, "0 bytes"},
               {999, "999 bytes"},
               {1000, "1.0 KiB"},
               {1536, "1.5 KiB"},
               {102400, "100 KiB"},
               {(uint64_t)5 << 30, "5.0 GiB"},
               {(uint64_t)999 << 20, "999 MiB"},
               {UINT64_MAX, "16777216 TiB"}};
  program_size_text t;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    program_print_size(&t, table[i].bytes);
    assert_string_equal(t.text, table[i].text);
  }
}

static void choices_are_listed(void **state) {
  (void)state;
  static const char *const names[] = {"red", "green"};
  err e;
  assert_int_equal(program_choice("--c", "green", names, 2, &e), 1);
  assert_int_equal(program_choice("--c", "gree", names, 2, &e), ERR_ARG);
  assert_string_equal(e.text, "--c must be one of red, green, not 'gree'");
}

static void an_exit_status_names_what_was_bad(void **state) {
  (void)state;
  assert_int_equal(program_exit_of_file(ERR_FORMAT), STATUS_FILE);
  assert_int_equal(program_exit_of_file(ERR_DEVICE), STATUS_DEVICE);
  assert_int_equal(program_exit_of_file(ERR_NOMEM), STATUS_FAILED);
}

static void random_bytes_differ(void **state) {
  (void)state;
  unsigned char a[16] = {0}, b[16] = {0};
  assert_int_equal(program_random(a, sizeof a, NULL), ERR_OK);
  assert_int_equal(program_random(b, sizeof b, NULL), ERR_OK);
  assert_memory_not_equal(a, b, sizeof a);
  assert_true(program_processors() >= 1);
  assert_non_null(strstr(program_exit_help(), "  2\ta flag"));
}

/* A grandchild that follows its parent ends with it. */
static void a_child_ends_with_its_parent(void **state) {
  (void)state;
  int ready[2], life[2]; /* the grandchild holds the writing end of `life` */
  char byte;
  assert_int_equal(pipe(ready), 0);
  assert_int_equal(pipe(life), 0);
  pid_t child = fork();
  if (child == 0) {
    pid_t parent = getpid();
    if (fork() == 0) {
      close(ready[0]);
      close(life[0]);
      if (program_follow_parent(parent, NULL) != ERR_OK) _exit(3);
      if (write(ready[1], "x", 1) != 1) _exit(4);
      sleep(1000);
      _exit(0);
    }
    sleep(1000);
    _exit(0);
  }
  close(ready[1]);
  close(life[1]);
  assert_int_equal(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  alarm(PATIENCE_US / 1000000); /* a failure of this test is its end */
  assert_int_equal(read(life[0], &byte, 1), 0);
  alarm(0);
  close(ready[0]);
  close(life[0]);
}

static void a_parent_that_is_none_is_refused(void **state) {
  (void)state;
  pid_t child = fork();
  if (child == 0) _exit(program_follow_parent(1 << 30, NULL) == ERR_STATE ? 0 : 1);
  int status;
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
}

/* Whether `check` holds in a process of its own, where program_begin may change what it likes. */
static void holds_in_a_child(bool (*check)(void)) {
  pid_t child = fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status;
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
}

/* The next file that is opened is not one of them, and what is said there goes nowhere. */
static bool streams_are_held(void) {
  char byte;
  close(0), close(1), close(2);
  program_begin("test");
  bool held = dup(0) > 2 && read(0, &byte, 1) < 0 && write(1, "x", 1) < 0 && write(2, "x", 1) == 1;
  program_begin("test"); /* those that are open stay */
  return held && dup(1) > 2;
}

static void closed_streams_are_held(void **state) {
  (void)state;
  holds_in_a_child(streams_are_held);
}

static bool signals_are_as_it_needs_them(void) {
  sigset_t all, blocked;
  struct sigaction term;
  int pipes[2], status;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, NULL);
  signal(SIGCHLD, SIG_IGN);
  signal(SIGTERM, SIG_IGN); /* somebody's wish */
  program_begin("test");
  sigprocmask(SIG_BLOCK, NULL, &blocked);
  for (int number = 1; number < NSIG; number++)
    if (sigismember(&blocked, number) == 1) return false;
  pid_t child = fork();
  if (child == 0) _exit(7);
  if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7 || pipe(pipes)) return false;
  close(pipes[0]);
  return write(pipes[1], "x", 1) < 0 && sigaction(SIGTERM, NULL, &term) == 0 && term.sa_handler == SIG_IGN;
}

static void inherited_signals_do_no_harm(void **state) {
  (void)state;
  holds_in_a_child(signals_are_as_it_needs_them);
}

static bool a_large_file_is_an_error(void) {
  struct rlimit one = {.rlim_cur = 1, .rlim_max = 1};
  int fd = memfd_create("large", 0);
  program_begin("test");
  setrlimit(RLIMIT_FSIZE, &one);
  return write(fd, "x", 1) == 1 && write(fd, "y", 1) < 0 && errno == EFBIG;
}

static void a_limit_of_file_sizes_is_an_error(void **state) {
  (void)state;
  holds_in_a_child(a_large_file_is_an_error);
}

static bool files_are_as_many_as_allowed(void) {
  struct rlimit limit = {.rlim_cur = 40, .rlim_max = 90};
  setrlimit(RLIMIT_NOFILE, &limit);
  if (program_files_max() != 40) return false;
  program_begin("test");
  return program_files_max() == 90;
}

static void the_hard_limit_of_files_is_used(void **state) {
  (void)state;
  holds_in_a_child(files_are_as_many_as_allowed);
}

static void *touch_the_stack(void *unused) {
  volatile char room[1 << 20];
  for (size_t i = 0; i < sizeof room; i += 4096) room[i] = 1;
  return unused;
}

static bool threads_have_room(void) {
  struct rlimit limit;
  pthread_t thread;
  getrlimit(RLIMIT_STACK, &limit);
  limit.rlim_cur = 600 << 10;
  setrlimit(RLIMIT_STACK, &limit);
  program_begin("test");
  return pthread_create(&thread, NULL, touch_the_stack, NULL) == 0 && pthread_join(thread, NULL) == 0;
}

static bool a_small_stack_ends_it(void) {
  struct rlimit limit = {.rlim_cur = 100 << 10, .rlim_max = 100 << 10};
  pid_t child = fork();
  if (child == 0) {
    close(2);
    setrlimit(RLIMIT_STACK, &limit);
    program_begin("test");
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == STATUS_FAILED;
}

static void stacks_have_room(void **state) {
  (void)state;
  holds_in_a_child(threads_have_room);
  holds_in_a_child(a_small_stack_ends_it);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(whole_numbers_are_whole),
      cmocka_unit_test(seeds_are_64_bits),
      cmocka_unit_test(numbers_are_finite),
      cmocka_unit_test(sizes_have_units),
      cmocka_unit_test(sizes_are_told_in_three_digits),
      cmocka_unit_test(choices_are_listed),
      cmocka_unit_test(an_exit_status_names_what_was_bad),
      cmocka_unit_test(random_bytes_differ),
      cmocka_unit_test(closed_streams_are_held),
      cmocka_unit_test(inherited_signals_do_no_harm),
      cmocka_unit_test(a_limit_of_file_sizes_is_an_error),
      cmocka_unit_test(the_hard_limit_of_files_is_used),
      cmocka_unit_test(stacks_have_room),
      cmocka_unit_test(a_child_ends_with_its_parent),
      cmocka_unit_test(a_parent_that_is_none_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
