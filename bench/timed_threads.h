/* timed_threads.h - threads that do a piece of work together, pass by pass, each on a processor of its own.
 * They measure what a machine can do at best. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define TIMED_THREADS_THREADS_MAX 256
#define TIMED_THREADS_PASSES_MAX  1000

/* One thread's share of one pass. What it returns is added up, so that no compiler leaves the work out. */
typedef uint64_t timed_threads_body(const void *context, int thread);

/* Writes the time of each pass to seconds[passes], from the first thread's begin to the last one's end, and
 * the sum of all results to *sum. False: no memory or no threads. threads in [1, TIMED_THREADS_THREADS_MAX],
 * passes in [1, TIMED_THREADS_PASSES_MAX]. */
bool timed_threads_run(int threads, int passes, timed_threads_body *body, const void *context,
                       double *seconds, uint64_t *sum);

/* The least of seconds[passes]. */
double timed_threads_best(const double *seconds, int passes);
