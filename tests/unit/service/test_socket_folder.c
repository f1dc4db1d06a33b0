/* libs: service base */
#include "orchestrator/service/socket_folder.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

static char parent[SCRATCH_MAX];

static int set_up(void **state) {
  (void)state;
  strcpy(parent, scratch_make_folder().text);
  return setenv("TMPDIR", parent, 1);
}

static int tear_down(void **state) {
  (void)state;
  scratch_remove(parent);
  return 0;
}

static socket_folder made(void) {
  socket_folder f = {0};
  err e = {0};
  if (socket_folder_make(&f, &e)) fail_msg("%s", e.text);
  assert_int_equal(strncmp(f.path, parent, strlen(parent)), 0);
  return f;
}

static bool is_there(const char *path) {
  return access(path, F_OK) == 0;
}

static void put_socket(const char *folder) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  snprintf(at.sun_path, sizeof at.sun_path, "%s/orchestrator", folder);
  int s = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_true(s >= 0 && bind(s, (struct sockaddr *)&at, sizeof at) == 0);
  close(s);
}

static void put_corpus(const char *folder) {
  char path[SOCKET_ENDPOINT_MAX];
  socket_folder_corpus(path, folder);
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fclose(f);
}

/* A program that has made its folder and lives until it is killed. */
static pid_t start(char path[SOCKET_FOLDER_MAX]) {
  int out[2];
  assert_int_equal(pipe(out), 0);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    socket_folder f = made();
    put_socket(f.path);
    put_corpus(f.path);
    if (write(out[1], f.path, sizeof f.path) == (ssize_t)sizeof f.path) pause();
    _exit(1);
  }
  assert_int_equal(read(out[0], path, SOCKET_FOLDER_MAX), SOCKET_FOLDER_MAX);
  close(out[0]);
  close(out[1]);
  return child;
}

static void end(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
}

static void comes_and_goes(void **state) {
  (void)state;
  socket_folder f = made();
  struct stat s;
  assert_int_equal(stat(f.path, &s), 0);
  assert_int_equal(s.st_mode & 0777, 0700);
  put_socket(f.path);
  put_corpus(f.path);
  char path[SOCKET_FOLDER_MAX];
  strcpy(path, f.path);
  socket_folder_remove(&f);
  assert_false(is_there(path));
  socket_folder_remove(&f); /* there is none */
}

static void what_a_killed_program_left_is_removed(void **state) {
  (void)state;
  char dead[SOCKET_FOLDER_MAX], alive[SOCKET_FOLDER_MAX];
  pid_t first = start(dead), second = start(alive);
  socket_folder f = made();
  assert_true(is_there(dead) && is_there(alive));
  socket_folder_remove(&f);
  end(first);
  f = made();
  assert_false(is_there(dead));
  assert_true(is_there(alive));
  char socket_path[SOCKET_FOLDER_MAX + 16];
  snprintf(socket_path, sizeof socket_path, "%s/orchestrator", alive);
  assert_true(is_there(socket_path));
  end(second);
  socket_folder_remove(&f);
}

/* Nor is anything else touched: folders without a lock, files of other kinds, other names, links. */
static void only_what_is_certain_is_removed(void **state) {
  (void)state;
  char dead[SOCKET_FOLDER_MAX], file[SOCKET_FOLDER_MAX + 16], young[SCRATCH_MAX + 16],
      other[SCRATCH_MAX + 16], link[SCRATCH_MAX + 16];
  end(start(dead));
  snprintf(file, sizeof file, "%s/notes", dead);
  FILE *notes = fopen(file, "w");
  assert_non_null(notes);
  fclose(notes);
  snprintf(young, sizeof young, "%s/tandem-abcdef", parent);
  snprintf(other, sizeof other, "%s/tandem-else", parent);
  snprintf(link, sizeof link, "%s/tandem-linked", parent);
  assert_int_equal(mkdir(young, 0700) | mkdir(other, 0700) | symlink(other, link), 0);
  socket_folder f = made();
  assert_true(is_there(file) && is_there(young) && is_there(other) && is_there(link));
  socket_folder_remove(&f);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(comes_and_goes),
      CASE(what_a_killed_program_left_is_removed),
      CASE(only_what_is_certain_is_removed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
