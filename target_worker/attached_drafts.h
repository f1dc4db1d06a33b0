/* attached_drafts.h - the drafts that are attached to a session: they come, send nodes of its tree, and go.
 */
#pragma once

#include "target_worker/step_context.h"

/* ATTACH: answered with a generation for its ids, or refused (wrong ticket, or the session has as many
 * drafts as it takes). */
void attached_drafts_attach(step_context *c, peer_id from, session *s, const msg *m,
                            const speculation_shared *all);
/* NODES of an attached draft: into the tree, or TREE_RESET, or it is detached with the reason. */
void attached_drafts_nodes(step_context *c, session *s, session_draft *d, const msg *m);
/* Detached, logged; nodes go with the last draft. Of a finished session nothing is done: a repeated DONE must
 * tell what the first one did. */
void attached_drafts_drop(step_context *c, session *s, session_draft *d, const char *reason);
/* The same, by its own word. */
void attached_drafts_gave_up(step_context *c, session *s, session_draft *d, wire_string reason);
/* The same at all sessions. */
void attached_drafts_left(step_context *c, peer_id peer, const char *reason);
