#include "orchestrator/service/worker_restart.h"

static bool was_killed(const child_processes_exit *x) {
  return x->code < 0;
}

bool worker_restart_helps(const child_processes_exit *x, bool registered) {
  return x->starts <= WORKER_RESTART_MAX && (registered || was_killed(x));
}

const char *worker_restart_verdict(const child_processes_exit *x) {
  return was_killed(x) || x->starts > WORKER_RESTART_MAX ? "kept dying" : "could not start";
}
