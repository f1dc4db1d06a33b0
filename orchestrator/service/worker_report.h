/* worker_report.h - which workers there are now and how busy they are: what `tandem status' shows of another
 * process. */
#pragma once

#include "orchestrator/sessions/sessions.h"

/* A JSON array of {role, numerics_id or method, endpoint, load}; to free(). NULL: out of memory. */
char *worker_report_json(const sessions_machine *s);
