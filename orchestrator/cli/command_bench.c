/* tandem bench: `spec' is measured from here; everything else it hands over to the program tandem-bench,
 * which may look into the model and the kernels. */
#include "orchestrator/cli/commands.h"
#include <string.h>

int command_bench(int argc, char **argv) {
  if (argc < 2 || strcmp(argv[1], "spec") != 0) return command_hand_over("tandem-bench", argv);
  argv[1] = (char *)"tandem bench spec";
  return command_bench_speculation(argc - 1, argv + 1);
}
