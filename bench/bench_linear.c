/* bench_linear: the linears of a forward alone, and the forward without them, for 1 to 32 rows. A probe keeps
 * the arguments of every linear of a real forward (quantised activations, all matrices in order, the head);
 * then they are run again with nothing between them, and at last the same forward is run with its linears
 * left out. The numbers of rows take turns. Prints one JSON line: {"threads", "context", "bytes": packed
 * weights of one pass, "macs": of one row, "rows": [...], "linear_us", "rest_us", "forward_us": [[of each
 * repetition] of each number of rows]}. */
#include "bench/probe.h"
#include "bench/step.h"

#include <stdio.h>
#include <stdlib.h>

#define ROWS            32
#define REPETITIONS_MAX 200
#define WARM_UP         1

typedef struct bench {
  int32_t threads, context, repetitions;
  uint64_t bytes, macs;
  uint64_t linear_ns[ROWS][REPETITIONS_MAX], rest_ns[ROWS][REPETITIONS_MAX],
      forward_ns[ROWS][REPETITIONS_MAX];
  step_bench step;
  probe probe;
} bench;

static int fail(const char *why) {
  fprintf(stderr, "bench_linear: %s\n", why);
  return 1;
}

static void note_work(bench *b, int32_t rows) {
  b->bytes = b->macs = 0;
  for (int i = 0; i < PROBE_COUNT; i++) {
    b->bytes += b->probe.bytes[i];
    b->macs += b->probe.macs[i] / (uint64_t)rows;
  }
}

static int measure_rows(bench *b, int32_t rows, int32_t repetition) {
  int32_t at = rows - 1;
  probe_reset(&b->probe, PROBE_KEEP);
  int rc = step_forward(&b->step, rows, &b->forward_ns[at][repetition]);
  if (rc != ERR_OK) return rc;
  note_work(b, rows);
  uint64_t begin = probe_clock_ns();
  probe_replay(&b->probe);
  b->linear_ns[at][repetition] = probe_clock_ns() - begin;
  probe_reset(&b->probe, PROBE_SKIP);
  return step_forward(&b->step, rows, &b->rest_ns[at][repetition]);
}

static int measure(bench *b) {
  int rc = ERR_OK;
  probe_attach(&b->probe, model_device(b->step.model));
  for (int32_t i = -WARM_UP; i < b->repetitions; i++)
    for (int32_t rows = 1; rows <= ROWS && rc == ERR_OK; rows++) rc = measure_rows(b, rows, i < 0 ? 0 : i);
  probe_detach(&b->probe);
  return rc;
}

static void print_times(const bench *b, const char *name, uint64_t ns[ROWS][REPETITIONS_MAX]) {
  printf(", \"%s\": [", name);
  for (int32_t r = 0; r < ROWS; r++) {
    printf("%s[", r ? ", " : "");
    for (int32_t i = 0; i < b->repetitions; i++) printf("%s%.1f", i ? ", " : "", (double)ns[r][i] / 1e3);
    printf("]");
  }
  printf("]");
}

static void print(bench *b) {
  printf("{\"threads\": %d, \"context\": %d, \"bytes\": %llu, \"macs\": %llu, \"rows\": [", b->threads,
         b->context, (unsigned long long)b->bytes, (unsigned long long)b->macs);
  for (int32_t r = 1; r <= ROWS; r++) printf("%s%d", r > 1 ? ", " : "", r);
  printf("]");
  print_times(b, "linear_us", b->linear_ns);
  print_times(b, "rest_us", b->rest_ns);
  print_times(b, "forward_us", b->forward_ns);
  printf("}\n");
}

int main(int argc, char **argv) {
  static bench b; /* large */
  err e = {0};
  b.threads = argc == 5 ? atoi(argv[2]) : 0;
  b.context = argc == 5 ? atoi(argv[3]) : 0;
  b.repetitions = argc == 5 ? atoi(argv[4]) : 0;
  if (b.threads < 1 || b.threads > OPS_THREADS_MAX || b.context < 1 || b.repetitions < 1 ||
      b.repetitions > REPETITIONS_MAX)
    return fail("usage: bench_linear MODEL THREADS CONTEXT REPETITIONS");
  int rc = step_open(&b.step, argv[1], step_device(), MODEL_MATH_AUTO, b.threads, b.context, STEP_STATIC,
                     NULL, 0, &e);
  if (rc != ERR_OK) {
    step_close(&b.step);
    return fail(e.text);
  }
  rc = measure(&b);
  if (rc == ERR_OK)
    print(&b);
  else
    fprintf(stderr, "bench_linear: a forward failed: %s\n", err_name(rc));
  step_close(&b.step);
  return rc == ERR_OK ? 0 : 1;
}
