/* session_open.h - OPEN: a session begins, goes on in a higher epoch, or is refused. */
#pragma once

#include "target_worker/step_context.h"

/* OPEN or PART of an orchestrator, which is sent OPENED, DESYNC or an error. draining: no new session is
 * taken. */
void session_open_on_open(step_context *c, peer_id from, const msg *m, bool draining);

/* Can this target serve the session at all? ERR_ARG or ERR_LIMIT says what to do. context, vocabulary: the
 * target's, in tokens. */
int session_open_check(const msg_open *o, int32_t context, int32_t vocabulary, err *e);
/* Sets C and the request to what an OPEN says, which must fit (msg_open_misfit) and have been checked. Rows
 * of the cache that belong to a common prefix stay. */
void session_open_adopt(session *s, const msg_open *o);
