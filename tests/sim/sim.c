/* sim - all roles' production state machines under a virtual clock, a seeded network and a simulated disk.
 *
 *   sim [--seed N] [--count N] [--threads N] [--replay | --each-allocation | --allocation K]
 *
 * Each seed is one world: an orchestrator, two targets, two drafts, some requests. Most have faults, a few
 * kinds each (tests/sim/faults.c), and in some a draft or a target says anything at all. Oracles
 * (tests/sim/oracles.c, waits.c): what is shown is plain decode's and is on the disk; at rest both sides hold
 * equal live sets; no session stands still for longer than its faults and one wait; without faults, tokens =
 * forwards + accepted. --replay runs every seed twice and compares all that happened. --each-allocation runs
 * it once for every allocation of its machines, which fails; --allocation K is one of these runs. The last
 * lines count seeds, events and faults by kind.
 *
 * tests/sim/world.h says which file knows what. */
#include "tests/sim/memory.h"
#include "tests/sim/report.h"
#include "tests/sim/run.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct share {
  pthread_t thread;
  uint64_t first, count, step;
  bool replay, each;
  uint64_t allocation; /* that fails; 0: as the seed says */
  totals totals;
  uint64_t failed_seed;
  const char *failure;
} share;

static void run_twice(share *s, uint64_t seed) {
  uint64_t before = s->totals.net.events, digest, again;
  s->failure = run_seed(seed, s->allocation, &s->totals, &digest);
  if (!s->replay || s->failure) return;
  totals other = {.net.events = before};
  run_seed(seed, s->allocation, &other, &again);
  if (again != digest) s->failure = "the seed does not replay exactly";
}

/* Until the seed asks for memory less often than that. */
static void run_each(share *s, uint64_t seed) {
  uint64_t digest;
  bool refused = true;
  for (s->allocation = 0; refused && !s->failure;) {
    uint64_t before = memory_refused();
    s->failure = run_seed(seed, ++s->allocation, &s->totals, &digest);
    refused = memory_refused() > before;
  }
}

static void *run_share(void *context) {
  share *s = context;
  for (uint64_t i = 0; i < s->count && !s->failure; i++) {
    s->failed_seed = s->first + i * s->step;
    (s->each ? run_each : run_twice)(s, s->failed_seed);
  }
  return NULL;
}

static uint64_t number(int argc, char **argv, const char *flag, uint64_t fallback) {
  for (int i = 1; i + 1 < argc; i++)
    if (strcmp(argv[i], flag) == 0) return strtoull(argv[i + 1], NULL, 10);
  return fallback;
}

static bool has(int argc, char **argv, const char *flag) {
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], flag) == 0) return true;
  return false;
}

static void print_failure(const share *s) {
  printf("sim: seed %llu FAILED: %s (again: sim --seed %llu --count 1", (unsigned long long)s->failed_seed,
         s->failure, (unsigned long long)s->failed_seed);
  if (s->allocation) printf(" --allocation %llu", (unsigned long long)s->allocation);
  puts(", SIM_LOG=1 for the whole story)");
}

int main(int argc, char **argv) {
  uint64_t first = number(argc, argv, "--seed", 1), count = number(argc, argv, "--count", 1000);
  uint64_t threads = number(argc, argv, "--threads", 2);
  bool every = !has(argc, argv, "--each-allocation") && !has(argc, argv, "--allocation"); /* kind of fault */
  json_set_alloc_funcs(malloc, free); /* those of memory.c, as in the rest of this program */
  if (count < threads) threads = 1;
  share *shares = calloc(threads, sizeof *shares);
  totals sum = {0};
  int rc = 0;
  for (uint64_t i = 0; i < threads; i++) {
    shares[i] = (share){.first = first + i,
                        .count = (count - i + threads - 1) / threads,
                        .step = threads,
                        .allocation = number(argc, argv, "--allocation", 0),
                        .each = has(argc, argv, "--each-allocation"),
                        .replay = has(argc, argv, "--replay")};
    pthread_create(&shares[i].thread, NULL, run_share, &shares[i]);
  }
  for (uint64_t i = 0; i < threads; i++) {
    pthread_join(shares[i].thread, NULL);
    report_add(&sum, &shares[i].totals);
    if (!shares[i].failure) continue;
    print_failure(&shares[i]);
    rc = 1;
  }
  if (!report_print(&sum, count >= 20000 ? 1000 : 0, rc != 0) && count >= 1000 && every) rc = 1;
  free(shares);
  printf("sim: %s\n", rc ? "FAILED" : "passed");
  return rc;
}
