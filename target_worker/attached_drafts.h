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
/* The same for all drafts of the session, which are sent DETACH: their orchestrator has dismissed them. */
void attached_drafts_dismiss(step_context *c, session *s);
/* The same, because the draft has sent DETACH. */
void attached_drafts_gave_up(step_context *c, session *s, session_draft *d, wire_string reason);
/* The same for all sessions that this draft is attached to. */
void attached_drafts_left(step_context *c, peer_id peer, const char *reason);

/* A running session that expects a draft and has none says so to its orchestrator, again and again, because
 * nobody else knows of a draft that took the session and never attached. */
#define ATTACHED_DRAFTS_ALONE_US 1000000
void attached_drafts_tick(step_context *c, session *s);
uint64_t attached_drafts_deadline(const session *s);
