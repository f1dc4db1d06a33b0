/* worker_command_line.h - turns the settings of a service into the flags of the worker programs that it
 * starts. */
#pragma once

#include "orchestrator/service/worker_settings.h"
#include <limits.h>

#define WORKER_COMMAND_LINE_MAX 40 /* arguments, with the NULL at their end */

typedef struct worker_command_line {
  /* Ends with a NULL; points into the settings, `numbers` and `trace` */
  const char *list[WORKER_COMMAND_LINE_MAX];
  int32_t count;
  char numbers[8][24];
  int32_t number_count;
  char trace[PATH_MAX];
} worker_command_line;

/* tandem-target, which listens at `bind` and registers at `orchestrator`. */
void worker_command_line_target(worker_command_line *out, const worker_settings *s, const char *orchestrator,
                                const char *bind);
/* tandem-draft, which registers at `orchestrator`. */
void worker_command_line_draft(worker_command_line *out, const worker_settings *s, const char *orchestrator);
