/* session_end.h - how a session ends: its completion is over, it fails, or its orchestrator sends END. */
#pragma once

#include "target_worker/step_context.h"

/* The session is finished: it gives its blocks back, and its orchestrator is sent DONE until it sends END.
 * text: a static sentence or the session's own, of WIRE_FINISH_ERROR; NULL: none. */
void session_end_finish(step_context *c, session *s, wire_finish reason, int code, const char *text);
/* Finishes it if its last token ends the completion, or if no room is left for another one. */
void session_end_if_over(step_context *c, session *s);
/* END of an orchestrator. */
void session_end_on_end(step_context *c, peer_id from, const msg *m);
