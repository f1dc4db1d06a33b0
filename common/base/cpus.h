/* cpus.h - the processors that this program may use: how many threads they are good for, and which ones.
 * Linux. */
#pragma once

#include "common/base/err.h"
#include <stdint.h>

#define CPUS_MAX 1024 /* processors that are looked at: numbers [0, CPUS_MAX) */

/* The numbers of the processors that the calling thread may run on, ascending, to out [CPUS_MAX]; how many,
 * >= 1 (0 alone when the system does not tell). */
int32_t cpus_allowed(int32_t *out);

/* Of `count` processors the first of each physical core, to out [count]: two that share a core share its
 * arithmetic and its caches, and a second thread there is no help. root: where the system's files begin, ""
 * but in tests; a processor that they do not tell of is a core of its own. How many. */
int32_t cpus_cores(const char *root, const int32_t *cpus, int32_t count, int32_t *out);

/* Processors whose time the control groups of this process allow, rounded up, those above its own included;
 * INT32_MAX: as many as there are. root as above. */
int32_t cpus_quota(const char *root);

/* Threads of the forward pass when nobody says: one a physical core that may be used, within the quota. */
int32_t cpus_threads(void);

/* How long a thread without work should look for some before it sleeps: a moment, since another program may
 * want the processor; but waking many threads takes longer than that (docs/decisions/kernels.md). */
#define CPUS_MANY         12
#define CPUS_SPIN_US      20
#define CPUS_SPIN_LONG_US 200
int32_t cpus_spin_us(int32_t threads);

/* "none" (count 0), "auto" (the first processor of each core that may be used) or numbers and ranges,
 * "0,2-3", in the order that is given, each once: to out [CPUS_MAX]. ERR_ARG: not such a list, or not a
 * processor that may be used. */
int cpus_parse(const char *text, int32_t *out, int32_t *count, err *e);
