/* attachment.h - one session of a draft and its state at the target: it attaches, streams the nodes of its
 * tree, follows TOKENS, and leaves when it is out of step or of no use. */
#pragma once

#include "draft_worker/draft_step.h"
#include "draft_worker/feature_intake.h"

#define ATTACHMENT_DESYNC_TRIES 10 /* how often DESYNC is sent while no OPEN comes */

typedef enum {
  ATTACHMENT_FREE,
  ATTACHMENT_OPENING,    /* the first PARTs of its prefix are here, its OPEN is not */
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
  feature_intake features;
  int32_t desync_tries; /* DESYNCs sent since it is lost; 0: not lost by that */
  uint64_t attach_at;   /* when ATTACH is sent again */
  uint64_t gone_us;     /* how long it waited for that after the last ERROR(gone); 0: there was none */
  uint64_t sent_us;     /* when NODES was last sent, or, while it is lost, DESYNC */
  uint64_t resend_us;   /* RESEND */
  uint64_t used_us;     /* when it was last attached or opened */
} attachment;

/* Frees a session, and all that it holds but what may serve the next one. */
void attachment_close(attachment *a, const draft_setup *m);
/* Is there anything to do for it? If not, it is free, lost or not open yet. */
static inline bool attachment_is_active(const attachment *a) {
  return a->state >= ATTACHMENT_CONNECTING && a->state <= ATTACHMENT_ATTACHED;
}
/* Has its orchestrator forgotten it, as far as one can tell? */
bool attachment_is_orphaned(const draft_step *c, const attachment *a);

/* --- with its target --- */

/* Sends ATTACH if the target that OPEN named has been greeted; otherwise waits until it is. */
void attachment_reach(draft_step *c, attachment *a);
/* Handles a frame of its target, of its epoch. */
void attachment_receive(draft_step *c, attachment *a, const msg *m);
/* Takes a reply of drafter number `by` about this session. */
void attachment_take(draft_step *c, attachment *a, int32_t by, const draft_reply *r);
/* Grows the tree, after all replies of a batch were taken. */
void attachment_grow(draft_step *c, attachment *a);
/* Ends it, and tells its target if that may still count on this draft. */
void attachment_leave(draft_step *c, attachment *a, const char *reason);

/* --- with its orchestrator --- */

/* Sends the state of the session: OPENED or DESYNC. */
void attachment_send_state(draft_step *c, peer_id to, msg_type type, const attachment *a, const char *reason);
/* Tells its orchestrator why this draft cannot serve it, so that another one may. The reason is both texts.
 */
void attachment_decline(draft_step *c, attachment *a, int code, const char *why, wire_string what);
/* Tells its orchestrator that the target at this address has not answered for a while, because another draft
 * may reach it. NULL: it has answered. */
void attachment_unreachable(draft_step *c, attachment *a, const char *endpoint);

void attachment_tick(draft_step *c, attachment *a);
uint64_t attachment_deadline(const attachment *a);
