/* worker_report.h - which workers there are now, how busy they are, and whether they get new sessions: what
 * /v1/workers tells, and `tandem status' of another process. */
#pragma once

#include "orchestrator/sessions/sessions.h"
#include <jansson.h>

/* An array of {id, state, role, numerics_id or method, endpoint, device, load, session_max}; targets come
 * first. `id` is the incarnation, 32 hexadecimal digits. NULL: out of memory. */
json_t *worker_report(const sessions_machine *s);
