#include "wire/means.h"

#include "common/base/program.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- looked at before ZeroMQ asks ---- */

static void *nothing(void *unused) {
  return unused;
}

static nlink_t tasks(void) {
  struct stat folder;
  return stat("/proc/self/task", &folder) == 0 ? folder.st_nlink : 0;
}

/* A thread that was joined still counts for a moment: ZeroMQ's would be one too many. */
static void await_tasks(nlink_t count) {
  for (int i = 0; i < MEANS_PAUSES && tasks() > count; i++) usleep(MEANS_PAUSE_US);
}

/* Whether so many threads can be there at a time; 0, or why not. */
static int try_threads(void) {
  pthread_t threads[MEANS_THREADS];
  nlink_t before = tasks();
  int count = 0, code = 0;
  while (count < MEANS_THREADS && (code = pthread_create(&threads[count], NULL, nothing, NULL)) == 0) count++;
  while (count > 0) pthread_join(threads[--count], NULL);
  await_tasks(before);
  return code;
}

int means_check(err *e) {
  int32_t files = program_files_max();
  if (files < MEANS_FILES)
    return err_set(e, ERR_LIMIT, "this process may open %d files: set the limit (ulimit -n) to %d or more",
                   files, MEANS_FILES);
  int code = try_threads();
  if (code)
    return err_set(
        e, ERR_LIMIT,
        "no thread can be started (%s): look at the limits of processes (ulimit -u, pids.max) and of memory "
        "(ulimit -v)",
        strerror(code));
  return ERR_OK;
}

/* ---- in place of libc's, in the whole program ---- */

#define EXPORTED __attribute__((visibility("default")))

static bool ran_out(int code) {
  static const int codes[] = {EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC};
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
    if (code == codes[i]) return true;
  return false;
}

/* Between the look and what ZeroMQ takes, other processes take some, and it goes on taking. Nothing here may
 * need memory. After any other error it stays a signal, with a core. */
EXPORTED _Noreturn void abort(void) {
  static const char sentence[] =
      ": error: ZeroMQ cannot go on, for the reason above: if memory, threads or descriptors ran out, "
      "look at the limits (ulimit -v, -u, -n, and memory.max and pids.max of the control group)\n";
  if (ran_out(errno)) {
    const char *name = program_invocation_short_name;
    ssize_t size = write(STDERR_FILENO, name, strlen(name));
    if (size >= 0) size = write(STDERR_FILENO, sentence, sizeof sentence - 1);
    _exit(STATUS_FAILED);
  }
  signal(SIGABRT, SIG_DFL);
  raise(SIGABRT);
  _exit(STATUS_FAILED);
}
