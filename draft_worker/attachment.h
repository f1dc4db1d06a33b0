/* attachment.h - one session of a draft and where it stands with its target: it attaches, streams the nodes
 * of its tree, follows TOKENS, and leaves when it is out of step or of no use. */
#pragma once

#include "draft_worker/draft_step.h"

#define ATTACHMENT_DESYNC_TRIES 10 /* DESYNC is sent so often until OPEN */

typedef enum {
  ATTACHMENT_FREE,
  ATTACHMENT_CONNECTING, /* its target is not greeted yet */
  ATTACHMENT_ATTACHING,  /* ATTACH sent */
  ATTACHMENT_ATTACHED,
  ATTACHMENT_LOST /* out of step or refused: waits for OPEN */
} attachment_state;

typedef struct attachment {
  attachment_state state;
  uint64_t id;
  uint32_t epoch;
  peer_id orchestrator, target; /* target: 0 while connecting */
  int32_t link;                 /* index of the connection to its target (target_links.h) */
  wire_id ticket, target_incarnation;
  draft_session session;
  int32_t desync_tries; /* DESYNCs sent since it is lost; 0: not lost by that */
  uint64_t attach_us;   /* ATTACH was sent last */
  uint64_t sent_us;     /* NODES, or DESYNC while it is lost */
  uint64_t resend_us;   /* RESEND */
  uint64_t used_us;     /* it was attached last, or opened */
} attachment;

/* A session becomes free; what it had is given back. */
void attachment_close(attachment *a, const draft_setup *m);
/* Is there anything to do for it? Else it is free, or lost. */
static inline bool attachment_is_active(const attachment *a) {
  return a->state != ATTACHMENT_FREE && a->state != ATTACHMENT_LOST;
}
/* Has its orchestrator forgotten it, as far as one can tell? */
bool attachment_is_orphaned(const draft_step *c, const attachment *a);

/* --- with its target --- */

/* ATTACH, if the target that OPEN meant is greeted; else it waits for that. */
void attachment_reach(draft_step *c, attachment *a);
/* A frame of its target, of its epoch. */
void attachment_receive(draft_step *c, attachment *a, const msg *m);
/* A reply of drafter number `by` about it. */
void attachment_take(draft_step *c, attachment *a, int32_t by, const draft_reply *r);
/* The replies of a batch are taken: the tree grows. */
void attachment_grow(draft_step *c, attachment *a);
/* Ends it; its target hears of it if it may still count on this draft. */
void attachment_leave(draft_step *c, attachment *a, const char *reason);

/* --- with its orchestrator --- */

/* Where the session stands: OPENED, DESYNC. */
void attachment_send_state(draft_step *c, peer_id to, msg_type type, const attachment *a, const char *reason);
/* Its orchestrator hears why this draft cannot serve it, and may ask another one. The reason is both texts.
 */
void attachment_decline(draft_step *c, attachment *a, int code, const char *why, wire_string what);
/* Its target at this address has not answered for a while: another draft may reach it. NULL: it has. */
void attachment_unreachable(draft_step *c, attachment *a, const char *endpoint);

void attachment_tick(draft_step *c, attachment *a);
uint64_t attachment_deadline(const attachment *a);
