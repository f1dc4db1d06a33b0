/* draft_peers.h - handles the coming and going of the programs to which a draft is connected, their refusals
 * and their silence. */
#pragma once

#include "draft_worker/draft_state.h"

#define DRAFT_PEERS_ORCHESTRATOR 0 /* tag of the connection to the orchestrator; else 1 + index of a link */

/* The orchestrator is the program at the address that this one was given, even if a target claims to be one.
 */
bool draft_peers_is_orchestrator(const draft *d, const roster_peer *p);
void draft_peers_connected(draft *d, draft_step *c, uint64_t tag, peer_id id);
void draft_peers_greeted(draft *d, draft_step *c, const roster_peer *p);
/* Our HELLO was refused. If a target refused it, its sessions go on without this draft; if the orchestrator
 * did, this program is of no use and exits. */
void draft_peers_refused(draft *d, draft_step *c, peer_id id, const msg *m);
void draft_peers_tick(draft *d, draft_step *c);
uint64_t draft_peers_deadline(const draft *d);
