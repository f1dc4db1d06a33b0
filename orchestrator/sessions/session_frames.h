/* session_frames.h - what the two workers of a session say of it: tokens are logged and acknowledged, what is
 * out of step is repaired, the end is taken over. */
#pragma once

#include "orchestrator/sessions/assignment.h"

void session_frames_target(step *c, client_session *s, const msg *m);
void session_frames_draft(step *c, client_session *s, const msg *m);
/* ACK to its target: so far the ledger has C. Renews the lease. */
void session_frames_ack(step *c, client_session *s);
