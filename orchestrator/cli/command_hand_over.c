/* Commands that another program of tandem's does, because it alone needs what they need. */
#include "orchestrator/cli/commands.h"
#include "orchestrator/service/child_processes.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int command_hand_over(const char *program, char **argv) {
  char path[PATH_MAX];
  err e = {0};
  if (child_processes_find(program, path, &e))
    return command_error(STATUS_WORKER,
                         "the program %s is neither beside tandem nor in PATH: `scripts/run.sh' builds all",
                         program);
  fflush(stdout);
  execv(path, argv);
  return command_error(STATUS_WORKER, "cannot start %s: %s", path, strerror(errno));
}

int command_operate(int argc, char **argv) {
  (void)argc;
  return command_hand_over("tandem-operate", argv);
}
