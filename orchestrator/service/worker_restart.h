/* worker_restart.h - whether a worker that tandem has started is started again when it exits. Pure. */
#pragma once

#include "orchestrator/service/child_processes.h"

#define WORKER_RESTART_MAX 5   /* of each program, in a row (CHILD_PROCESSES_STEADY_MS) */
#define WORKER_RESTART_MS  500 /* the wait before the second restart; each further one is twice as long */

/* A program that exits by itself before it has registered would do so again, because its flags or its files
 * are bad. One that was killed, or that had registered, is started again, WORKER_RESTART_MAX times. */
bool worker_restart_helps(const child_processes_exit *x, bool registered);
/* How long to wait before that. The first time it is not at all: most deaths are single ones. */
uint64_t worker_restart_delay_ms(const child_processes_exit *x);
/* What to say of one that is not started again: "could not start" or "kept dying". */
const char *worker_restart_verdict(const child_processes_exit *x);
/* What to do or where to look, as the end of a sentence. */
const char *worker_restart_remedy(const child_processes_exit *x);
