#include "wire/means.h"

#include "common/base/program.h"
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static void *nothing(void *unused) {
  return unused;
}

/* Whether so many threads can be there at a time; 0, or why not. */
static int try_threads(void) {
  pthread_t threads[MEANS_THREADS];
  int count = 0, code = 0;
  while (count < MEANS_THREADS && (code = pthread_create(&threads[count], NULL, nothing, NULL)) == 0) count++;
  while (count > 0) pthread_join(threads[--count], NULL);
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
