/* session_about.h - what the orchestrator alone knows of a session, as the JSON object that the ledger keeps
 * with it: title, draft, math, stop strings. With it the session can go on as it began. */
#pragma once

#include "orchestrator/service/request.h"
#include "orchestrator/service/worker_settings.h"

/* The object's text; to free(). NULL: out of memory. */
char *session_about_write(const request *r, const worker_settings *s);
