#include "orchestrator/service/worker_restart.h"

#include <signal.h>

static bool was_killed(const child_processes_exit *x) {
  return x->code < 0;
}

bool worker_restart_helps(const child_processes_exit *x, bool registered) {
  return x->starts <= WORKER_RESTART_MAX && (registered || was_killed(x));
}

uint64_t worker_restart_delay_ms(const child_processes_exit *x) {
  return x->starts <= 1 ? 0 : (uint64_t)WORKER_RESTART_MS << (x->starts - 2);
}

const char *worker_restart_verdict(const child_processes_exit *x) {
  return was_killed(x) || x->starts > WORKER_RESTART_MAX ? "kept dying" : "could not start";
}

const char *worker_restart_remedy(const child_processes_exit *x) {
  if (x->code == -SIGKILL)
    return "did the system run out of memory (dmesg says so), or a control group? A smaller --ctx or fewer "
           "--sessions "
           "need less";
  return x->code < -1 ? "please report this as a bug" : "see its message above";
}
