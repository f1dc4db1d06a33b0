/* worker_command_line.h - turns the settings of a service into the flags of the worker programs that it
 * starts. */
#pragma once

#include "common/command_line/flag_list.h"
#include <limits.h>

#define WORKER_COMMAND_LINE_MAX   64 /* arguments, with the NULL at their end */
#define WORKER_COMMAND_LINE_TEXTS 24 /* numbers and words that are printed for it */

typedef struct worker_command_line {
  /* Ends with a NULL; points into the flags, `texts` and `trace` */
  const char *list[WORKER_COMMAND_LINE_MAX];
  int32_t count;
  char texts[WORKER_COMMAND_LINE_TEXTS][24];
  int32_t text_count;
  char trace[PATH_MAX];
} worker_command_line;

/* Where the workers run. */
typedef struct worker_machine {
  int32_t cores;
  int64_t model_bytes; /* the size of the model's file */
  bool mps;            /* two processes compute on a GPU at the same time (cuda_mps.h) */
} worker_machine;

/* Where a target and a draft compute on one device, sets v->beside if that is quicker than turns: for a small
 * model on a GPU with MPS; and on the processors, which it deals out: threads for both, where they are not
 * given. Processors take turns on a small machine, for a large model, for many sessions, and where the
 * threads that are given leave none for the other. */
void worker_command_line_share(flag_values *v, const worker_machine *m);

/* tandem-target, which listens at `bind` and registers at `orchestrator`. */
void worker_command_line_target(worker_command_line *out, const flag_values *v, const char *orchestrator,
                                const char *bind);
/* tandem-draft, which registers at `orchestrator`. */
void worker_command_line_draft(worker_command_line *out, const flag_values *v, const char *orchestrator);
