/* tandem bench: `spec' is measured from here; everything else it hands over to the program tandem-bench,
 * which may look into the model and the kernels. */
#include "orchestrator/cli/commands.h"
#include "orchestrator/service/child_processes.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int command_bench(int argc, char **argv) {
  char path[PATH_MAX];
  err e = {0};
  if (argc > 1 && strcmp(argv[1], "spec") == 0) {
    argv[1] = (char *)"tandem bench spec";
    return command_bench_speculation(argc - 1, argv + 1);
  }
  if (child_processes_find("tandem-bench", path, &e)) {
    return command_error(STATUS_WORKER, "the program tandem-bench is neither beside tandem nor in PATH: "
                                        "scripts/bench_cpu.sh builds it");
  }
  fflush(stdout);
  execv(path, argv);
  return command_error(STATUS_WORKER, "cannot start %s: %s", path, strerror(errno));
}
