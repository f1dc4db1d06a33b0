/* bench_trials.h - what `tandem bench spec` tries: every method, with every size of tree, at every
 * temperature. */
#pragma once

#include "orchestrator/cli/flags.h"

#define BENCH_TRIALS_MAX  128
#define BENCH_METHODS_MAX 16
#define BENCH_SIZES_MAX   16
#define BENCH_LIST_MAX    4096 /* bytes of --methods */

typedef struct bench_size {
  const char *name; /* as typed, or the pace */
  bool lockstep;
  int32_t budget;
  bool chain; /* every node has one child at most */
} bench_size;

typedef struct bench_trial {
  const char *method; /* as --draft takes it */
  const bench_size *size;
  float temperature;
} bench_trial;

typedef struct bench_trials {
  bench_trial list[BENCH_TRIALS_MAX];
  int32_t count;
  /* What the list points at: */
  bench_size sizes[BENCH_SIZES_MAX];
  char methods[BENCH_LIST_MAX], trees[BENCH_LIST_MAX];
} bench_trials;

/* By --methods, --trees and --temps; without one of them what --draft, --pace with --budget, and --temp say.
 * The list borrows *f and *t, which must not move. ERR_ARG says what is wrong. */
int bench_trials_read(bench_trials *t, const flags *f, err *e);
/* Makes of the settings of the whole benchmark those of one trial. */
void bench_trials_settings(const bench_trial *t, flag_values *w);
