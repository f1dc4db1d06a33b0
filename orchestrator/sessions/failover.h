/* failover.h - what happens to sessions whose worker dies, hangs, refuses or is out of step: they go on in
 * the next epoch, from the ledger, at another worker or at the same. */
#pragma once

#include "orchestrator/sessions/assignment.h"

/* The target holds another prefix: the next epoch begins with what both hold, `length` tokens with this hash.
 */
void failover_repair(client_step *c, client_session *s, int32_t length, hash16 hash);
/* The target does not have the session any more, or does not want it: the next epoch begins at another one,
 * which is asked from retry_us on (0: at once). */
void failover_target_lost(client_step *c, client_session *s, uint64_t retry_us);
/* The target is too small for the session, or its engine failed: it is not asked before until_us
 * (MACHINE_NEVER: not at all). False: there is no other, or this was so too often, and the session stays. */
bool failover_target_unable(client_step *c, client_session *s, uint64_t until_us);
/* The target hangs. False: there is no other, and nothing changes. */
bool failover_target_hung(client_step *c, client_session *s);

/* The draft refused the session, or cannot help it: looks for another one; this one is asked again later,
 * where `code` is not one that holds for good. */
void failover_draft_refused(client_step *c, client_session *s, int code, const char *why);
/* The draft has not reached the target: asks another one, or this one again later. */
void failover_draft_unreachable(client_step *c, client_session *s);
/* The draft is asked no longer if it has not taken the session for too long. */
void failover_check_draft(client_step *c, client_session *s);
/* The target says that no draft is attached: a draft that should be by now makes way for another one. If in
 * lockstep none is to come, the target is told so again. */
void failover_unattached(client_step *c, client_session *s);
/* The target says at the end that no draft ever attached: notes why not, as far as this side knows. */
void failover_explain_unattached(client_step *c, client_session *s);

/* A target's device is lost, which `why` names, and the target ends: all of its sessions go on elsewhere.
 * Where no other target is registered and none is started again, they end with that error. */
void failover_device_lost(client_step *c, peer_id target, const char *why);
/* A worker is gone: every session that it served goes on without it. */
void failover_worker_lost(client_step *c, peer_id id, const char *why);
