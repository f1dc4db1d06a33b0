/* worker_restart.h - whether a worker that tandem has started is started again when it exits. Pure. */
#pragma once

#include "orchestrator/service/child_processes.h"

#define WORKER_RESTART_MAX 3 /* of each program */

/* A program that exits by itself before it has registered would do so again, because its flags or its files
 * are bad. One that was killed, or that had registered, is started again, WORKER_RESTART_MAX times. */
bool worker_restart_helps(const child_processes_exit *x, bool registered);
/* What to say of one that is not started again: "could not start" or "kept dying". */
const char *worker_restart_verdict(const child_processes_exit *x);
