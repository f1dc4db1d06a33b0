/* session_open.h - OPEN: a session begins, goes on in a higher epoch, or is refused. */
#pragma once

#include "target_worker/step_context.h"

/* OPEN of an orchestrator, which is sent OPENED, DESYNC or an error. draining: no new session is taken. */
void session_open_on_open(step_context *c, peer_id from, const msg *m, bool draining);

/* Can it be served here at all? ERR_ARG, ERR_LIMIT with what to do. context, vocabulary: the target's, in
 * tokens. */
int session_open_check(const msg_open *o, int32_t context, int32_t vocabulary, err *e);
/* C and what was asked for become what an OPEN says that fits (msg_open_misfit) and has been checked. What
 * the cache holds of a common prefix is kept. */
void session_open_adopt(session *s, const msg_open *o);
