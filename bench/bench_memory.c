/* bench_memory: how fast threads read memory that is in no cache: the ceiling of a plain step, which reads
 * every weight once. Prints one JSON line: {"threads", "bytes", "lanes", "seconds": [of each pass]}. */
#include "bench/timed_threads.h"
#include "bench/limits.h"
#include <stdio.h>
#include <stdlib.h>

#define MIB_MAX 65536

static int fail(const char *why) {
  fprintf(stderr, "bench_memory: %s\n", why);
  return 1;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 0, passes = argc > 2 ? atoi(argv[2]) : 0;
  long mib = argc > 3 ? atol(argv[3]) : LIMITS_MIB;
  if (threads < 1 || threads > TIMED_THREADS_THREADS_MAX || passes < 1 || passes > TIMED_THREADS_PASSES_MAX ||
      mib < LIMITS_MIB || mib > MIB_MAX)
    return fail("usage: bench_memory THREADS PASSES [MIB, at least 512]");
  double seconds[TIMED_THREADS_PASSES_MAX];
  size_t bytes;
  const char *lanes;
  if (!limits_read(threads, passes, mib, seconds, &bytes, &lanes))
    return fail("no memory or no threads: give fewer MIB or THREADS");
  printf("{\"threads\": %d, \"bytes\": %zu, \"lanes\": \"%s\", \"seconds\": [", threads, bytes, lanes);
  for (int i = 0; i < passes; i++) printf("%s%.6f", i ? ", " : "", seconds[i]);
  printf("]}\n");
  return 0;
}
