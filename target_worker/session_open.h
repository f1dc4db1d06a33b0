/* session_open.h - what an OPEN asks of a session, and what it makes of it. No messages. */
#pragma once

#include "target_worker/session_store.h"

/* Can it be served here at all? ERR_ARG, ERR_LIMIT with what to do. context, vocabulary: the target's, in
 * tokens. */
int session_open_check(const msg_open *o, int32_t context, int32_t vocabulary, err *e);
/* C, its options and its ticket become what an OPEN says that fits (msg_open_misfit) and has been checked.
 * What the cache holds of a common prefix is kept. */
void session_open_adopt(session *s, const msg_open *o);
