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
/* The target is too small for the session and always will be. False: there is no other, and nothing changes.
 */
bool failover_target_too_small(client_step *c, client_session *s);
/* The target hangs. False: there is no other, and nothing changes. */
bool failover_target_hung(client_step *c, client_session *s);

/* The draft refused the session, or cannot help it: looks for another one. */
void failover_draft_refused(client_step *c, client_session *s, const char *why);
/* The draft has not reached the target: asks another one, or this one again later. */
void failover_draft_unreachable(client_step *c, client_session *s);
/* The target says that no draft ever attached: notes why not, as far as this side knows. */
void failover_explain_unattached(client_step *c, client_session *s);

/* A target's device is lost, which `why` names, and the target ends: all of its sessions go on elsewhere.
 * Where no other target is registered and none is started again, they end with that error. */
void failover_device_lost(client_step *c, peer_id target, const char *why);
/* A worker is gone: every session that it served goes on without it. */
void failover_worker_lost(client_step *c, peer_id id, const char *why);
