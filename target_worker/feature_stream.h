/* feature_stream.h - sends the drafts of a session the features that they were granted: the rows of positions
 * whose tokens they have been sent, with credit. Rules: wire/PROTOCOL.md, section 9. */
#pragma once

#include "target_worker/engine.h"
#include "target_worker/step_context.h"

/* Grants what an attaching draft asks for, as far as the target and the session's other drafts allow: all of
 * them read the same states. ERR_ARG, ERR_LIMIT: its head does not fit the model. */
int feature_stream_grant(step_context *c, session *s, session_draft *d, const msg_feature_request *r, err *e);
/* The first position for which this session still wants rows of the positions that a job will compute. */
int32_t feature_stream_from(const session *s);
/* Takes the rows that came with a result. */
void feature_stream_add(session *s, const engine_result *r);
/* A draft's NODES name the position that it has features up to. */
void feature_stream_acked(step_context *c, const session *s, session_draft *d, int32_t features);
/* Sends what may go now; at the end of a step, behind its TOKENS. */
void feature_stream_flush(step_context *c);
