/* bench_multiply: how many multiply-adds of bytes threads do in registers with the processor's best
 * instruction for them: the ceiling of a step of many rows. Prints one JSON line: {"threads", "macs",
 * "instruction", "seconds": [of each pass]}. */
#include "bench/timed_threads.h"
#include "bench/limits.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *why) {
  fprintf(stderr, "bench_multiply: %s\n", why);
  return 1;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 0, passes = argc > 2 ? atoi(argv[2]) : 0;
  if (threads < 1 || threads > TIMED_THREADS_THREADS_MAX || passes < 1 || passes > TIMED_THREADS_PASSES_MAX)
    return fail("usage: bench_multiply THREADS PASSES");
  double seconds[TIMED_THREADS_PASSES_MAX];
  uint64_t macs;
  const char *instruction;
  if (!limits_multiply(LIMITS_BYTES, threads, passes, seconds, &macs, &instruction))
    return fail("no memory or no threads: give fewer THREADS");
  printf("{\"threads\": %d, \"macs\": %" PRIu64 ", \"instruction\": \"%s\", \"seconds\": [", threads, macs,
         instruction);
  for (int i = 0; i < passes; i++) printf("%s%.6f", i ? ", " : "", seconds[i]);
  printf("]}\n");
  return 0;
}
