/* bench_memory: how fast threads read memory that is in no cache: the ceiling of a plain step, which reads
 * every weight once. Prints one JSON line: {"threads", "bytes", "lanes", "seconds": [of each pass]}. */
#include "common/base/clock.h"
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LINE_BYTES    64
#define LINES_AT_ONCE 8 /* sums that do not wait for each other */
#define THREADS_MAX   256
#define PASSES_MAX    1000
#define MIB_MIN       512 /* well above any cache */
#define MIB_MAX       65536
#define PAGE_BYTES    4096

typedef uint64_t line __attribute__((vector_size(LINE_BYTES)));

/* One load of 64 bytes a line; where the processor has no such vector the compiler cuts it. */
#define READ_BODY                                                                                            \
  line sums[LINES_AT_ONCE] = {{0}};                                                                          \
  for (size_t i = 0; i < count; i += LINES_AT_ONCE)                                                          \
    for (size_t k = 0; k < LINES_AT_ONCE; k++) sums[k] += lines[i + k];                                      \
  uint64_t all = 0;                                                                                          \
  for (size_t k = 0; k < LINES_AT_ONCE; k++)                                                                 \
    for (size_t j = 0; j < LINE_BYTES / sizeof all; j++) all += sums[k][j];                                  \
  return all;

typedef uint64_t reader(const line *lines, size_t count); /* count: a multiple of LINES_AT_ONCE */

static uint64_t read_plain(const line *lines, size_t count) {
  READ_BODY
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t read_avx2(const line *lines, size_t count) {
  READ_BODY
}
__attribute__((target("avx512f"))) static uint64_t read_avx512(const line *lines, size_t count) {
  READ_BODY
}
#endif

static reader *choose_reader(const char **name) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return *name = "avx512", read_avx512;
  if (__builtin_cpu_supports("avx2")) return *name = "avx2", read_avx2;
#endif
  return *name = "baseline", read_plain;
}

typedef struct bench {
  reader *read;
  const line *lines;
  size_t lines_each; /* of a thread */
  int threads, passes;
  pthread_barrier_t barrier;
} bench;

typedef struct worker {
  bench *bench;
  int index;
  uint64_t begin_us[PASSES_MAX], end_us[PASSES_MAX], sum;
  pthread_t thread;
} worker;

/* The index-th processor that this process may use, round: two threads on one would show half. */
static void stay_on(int index) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) == 0) return;
  index %= CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one); /* without it the figure is only less steady */
    return;
  }
}

static void *work(void *argument) {
  worker *w = argument;
  bench *b = w->bench;
  stay_on(w->index);
  for (int i = 0; i < b->passes; i++) {
    pthread_barrier_wait(&b->barrier);
    w->begin_us[i] = clock_us();
    w->sum += b->read(b->lines + (size_t)w->index * b->lines_each, b->lines_each);
    w->end_us[i] = clock_us();
  }
  return NULL;
}

/* From the first thread's begin to the last one's end. */
static double seconds_of(const worker *w, int threads, int pass) {
  uint64_t begin = w[0].begin_us[pass], end = w[0].end_us[pass];
  for (int i = 1; i < threads; i++) {
    if (w[i].begin_us[pass] < begin) begin = w[i].begin_us[pass];
    if (w[i].end_us[pass] > end) end = w[i].end_us[pass];
  }
  return (double)(end - begin) / 1e6;
}

static int fail(const char *why) {
  fprintf(stderr, "bench_memory: %s\n", why);
  return 1;
}

/* Huge pages where the system gives them: page walks are not what is measured. Every page is written. */
static void *take_memory(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  madvise(p, bytes, MADV_HUGEPAGE);
  for (size_t i = 0; i < bytes; i += PAGE_BYTES) ((uint8_t *)p)[i] = (uint8_t)(i / PAGE_BYTES);
  return p;
}

static int run(bench *b, worker *workers, const char *lanes) {
  int started = 0;
  pthread_barrier_init(&b->barrier, NULL, (unsigned)b->threads);
  for (; started < b->threads; started++) {
    workers[started] = (worker){.bench = b, .index = started};
    if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0)
      exit(fail("the system gives no more threads")); /* the others wait at the barrier */
  }
  uint64_t sum = 0;
  for (int i = 0; i < started; i++) {
    pthread_join(workers[i].thread, NULL);
    sum += workers[i].sum;
  }
  printf("{\"threads\": %d, \"bytes\": %zu, \"lanes\": \"%s\", \"checksum\": %llu, \"seconds\": [",
         b->threads, b->lines_each * (size_t)b->threads * LINE_BYTES, lanes, (unsigned long long)sum);
  for (int i = 0; i < b->passes; i++) printf("%s%.6f", i ? ", " : "", seconds_of(workers, b->threads, i));
  printf("]}\n");
  return 0;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 0, passes = argc > 2 ? atoi(argv[2]) : 0;
  long mib = argc > 3 ? atol(argv[3]) : MIB_MIN;
  if (threads < 1 || threads > THREADS_MAX || passes < 1 || passes > PASSES_MAX || mib < MIB_MIN ||
      mib > MIB_MAX)
    return fail("usage: bench_memory THREADS PASSES [MIB, at least 512]");
  const char *lanes;
  bench b = {.threads = threads, .passes = passes};
  b.read = choose_reader(&lanes);
  size_t bytes = (size_t)mib << 20;
  b.lines_each = bytes / LINE_BYTES / (size_t)threads / LINES_AT_ONCE * LINES_AT_ONCE;
  b.lines = take_memory(bytes);
  worker *workers = calloc((size_t)threads, sizeof *workers);
  if (!b.lines || !workers) return fail("no memory: give fewer MIB");
  int code = run(&b, workers, lanes);
  free(workers);
  return code;
}
