#include "orchestrator/service/cuda_mps.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#define PIPE_DIRECTORY "/tmp/nvidia-mps" /* by default */
#define PID_FILE       "nvidia-cuda-mps-control.pid"

/* The file of a daemon that has ended may still be there. */
static bool is_alive(long pid) {
  return pid > 0 && pid <= INT_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

bool cuda_mps_runs(void) {
  const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
  char path[PATH_MAX];
  long pid = 0;
  if (!directory || !*directory) directory = PIPE_DIRECTORY;
  int length = snprintf(path, sizeof path, "%s/" PID_FILE, directory);
  FILE *f = length < (int)sizeof path ? fopen(path, "re") : NULL;
  if (!f) return false;
  bool any = fscanf(f, "%9ld", &pid) == 1;
  fclose(f);
  return any && is_alive(pid);
}
