/* session_frames.h - handles what the two workers of a session send: logs and acknowledges tokens, takes over
 * the end, and repairs what is out of step. */
#pragma once

#include "orchestrator/sessions/client_session.h"

/* A frame of a worker that names a session. One about a session that is not here any more is answered with
 * END, so that the worker frees it. */
void session_frames_take(client_step *c, const roster_peer *from, const msg *m);
/* Sends ACK, with what is durable, to the target. It also renews the lease. */
/* More is durable than was acknowledged, or the target's lease is to be renewed. */
bool session_frames_ack_due(const client_step *c, const client_session *s);
void session_frames_ack(client_step *c, client_session *s);
