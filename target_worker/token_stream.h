/* token_stream.h - what a session's orchestrator and drafts are told: where C stands, its tokens as they come
 * and again where they were lost, the end. Messages and rules: wire/PROTOCOL.md. */
#pragma once

#include "target_worker/step.h"

/* OPENED, DESYNC or ATTACHED with C's length and hash; reason NULL: none. */
void token_stream_state(step *c, peer_id to, msg_type type, const session *s, const char *reason);

/* TOKENS from `base` to the end of C, or as many as one message holds. */
void token_stream_to_orchestrator(step *c, session *s, int32_t base);
void token_stream_to_draft(step *c, session *s, session_draft *d, int32_t base);
/* All that it has not been told yet. */
void token_stream_tell_orchestrator(step *c, session *s);
/* A sign of life: TOKENS, though there is nothing new to tell. */
void token_stream_alive(step *c, session *s);
/* After a round all are told, as far as it is due: while nobody wants their nodes, drafts are woken no
 * oftener than the orchestrator, and not at all where their work would cost time. */
void token_stream_tell(step *c, session *s);

/* Of a finished session. */
void token_stream_done(step *c, session *s);

/* Tells again what was not acknowledged, and at last what was not due before. */
void token_stream_tick(step *c, session *s);
uint64_t token_stream_deadline(const session *s); /* of the next token_stream_tick; MACHINE_NEVER */
