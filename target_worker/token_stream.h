/* token_stream.h - sends a session's orchestrator and drafts the length of C, its tokens as they are
 * committed (and again if they were lost), and DONE; and takes the orchestrator's acknowledgements. Messages
 * and rules: wire/PROTOCOL.md. */
#pragma once

#include "target_worker/step_context.h"
#include "wire/machine.h"

/* How often the orchestrator gets new tokens; it gets the first ones at once. A message for each token would
 * wake five threads, and nobody reads that fast. */
#define TOKEN_STREAM_EVERY_US 25000
/* A draft's RESEND is answered at most this often: half of the time after which it may ask again. For what
 * such an answer has brought already, it is answered less often. */
#define TOKEN_STREAM_RESEND_US 10000
#define TOKEN_STREAM_AGAIN_US  100000
/* DONE, and tokens that were not acknowledged, are sent again after this. */
#define TOKEN_STREAM_REPEAT_US 300000

/* OPENED, DESYNC or ATTACHED with C's length and hash; reason NULL: none. */
void token_stream_send_state(step_context *c, peer_id to, msg_type type, const session *s,
                             const char *reason);
/* The session has to be repaired: sends its orchestrator the tokens that it lacks, so that it knows all that
 * the repair starts from, and then DESYNC. */
void token_stream_desync(step_context *c, session *s, const char *reason);

/* TOKENS from `base` to the end of C, or as many as one message holds. */
void token_stream_to_draft(step_context *c, session *s, session_draft *d, int32_t base);
/* The draft has got a part of what it lacked, and now lacks what follows. */
bool token_stream_next_part(const session_draft *d, int32_t length);
/* TOKENS again, to a draft that lacks them: not before it can have got what was sent to it. */
void token_stream_resend(step_context *c, session *s, session_draft *d, int32_t base);
/* All tokens that the orchestrator has not been sent yet. */
void token_stream_flush(step_context *c, session *s);
/* A sign of life: TOKENS, though there is nothing new to send. */
void token_stream_sign_of_life(step_context *c, session *s);
/* C has grown: sends the tokens to every receiver for which it is time. While speculation is off, the drafts
 * are woken no more often than the orchestrator, and not at all if their work would slow the steps. */
void token_stream_grown(step_context *c, session *s);
/* DONE of a finished session. */
void token_stream_send_done(step_context *c, session *s);

/* ACK of its orchestrator, of this epoch. */
void token_stream_on_ack(step_context *c, session *s, const msg *m);
/* RESEND of an attached draft or of its orchestrator. */
void token_stream_on_resend(step_context *c, peer_id from, session *s, const msg *m);

/* Sends again what was not acknowledged, and sends what was held back until now. */
void token_stream_tick(step_context *c, session *s);
uint64_t token_stream_deadline(const session *s); /* of the next token_stream_tick; MACHINE_NEVER: none */
