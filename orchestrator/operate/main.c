/* tandem-operate: what `tandem workers' and others run; argv[0] is that command. */
#include "common/base/exit_status.h"
#include "common/base/program.h"
#include "common/command_line/flag_variables.h"
#include "orchestrator/operate/operate.h"
#include "version.h"
#include <stdio.h>
#include <string.h>

typedef struct operation {
  const char *name;
  flag_command flags;
  int (*run)(const flags *f);
} operation;

static const operation operations[] = {{"tandem workers", COMMAND_WORKERS, operate_workers},
                                       {"tandem top", COMMAND_TOP, operate_top}};

int main(int argc, char **argv) {
  program_begin("tandem-operate");
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    printf("tandem-operate %s (%s)\n", TANDEM_VERSION, TANDEM_COMMIT);
    return STATUS_OK;
  }
  flag_variables_check("tandem-operate");
  for (size_t i = 0; argc > 0 && i < sizeof operations / sizeof *operations; i++) {
    flags f;
    if (strcmp(argv[0], operations[i].name) != 0) continue;
    flags_parse(&f, operations[i].flags, argc, argv);
    int code = operations[i].run(&f);
    flags_fini(&f);
    return code;
  }
  fputs("tandem-operate: it is run by tandem: see `tandem --help'\n", stderr);
  return STATUS_USAGE;
}
