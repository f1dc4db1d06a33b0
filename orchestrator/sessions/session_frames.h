/* session_frames.h - handles what the two workers of a session send: logs and acknowledges tokens, takes over
 * the end, and repairs what is out of step. */
#pragma once

#include "orchestrator/sessions/client_session.h"

void session_frames_from_target(client_step *c, client_session *s, const msg *m);
void session_frames_from_draft(client_step *c, client_session *s, const msg *m);
/* Sends ACK, with the committed length, to the target. It also renews the lease. */
void session_frames_ack(client_step *c, client_session *s);
