/* attached_drafts.h - the drafts of a session: they attach, send nodes for its draft tree, and leave. */
#pragma once

#include "target_worker/step_context.h"

/* ATTACH: answered with a generation for its ids, or refused (wrong ticket, or the session has as many
 * drafts as it takes). */
void attached_drafts_attach(step_context *c, peer_id from, session *s, const msg *m);
/* NODES of an attached draft: the tree takes them, or the draft is sent TREE_RESET, or it is detached. */
void attached_drafts_nodes(step_context *c, session *s, session_draft *d, const msg *m);
/* Detaches a draft and logs why. A node stays while another attached draft has named it too. A finished
 * session does not change, because a repeated DONE must say what the first one said. */
void attached_drafts_drop(step_context *c, session *s, session_draft *d, const char *reason);
/* The same, because the draft has sent DETACH. */
void attached_drafts_gave_up(step_context *c, session *s, session_draft *d, wire_string reason);
/* The same for all sessions that this draft is attached to. */
void attached_drafts_left(step_context *c, peer_id peer, const char *reason);
