/* draft_peers.h - the programs that a draft is connected to come, refuse it, fall silent and go. */
#pragma once

#include "draft_worker/draft_state.h"

#define DRAFT_PEERS_ORCHESTRATOR 0 /* tag of the connection to the orchestrator; else 1 + index of a link */

/* Sessions come from whoever sits at the address that this program was given, whatever a target says that it
 * is. */
bool draft_peers_is_orchestrator(const draft *d, const roster_peer *p);
void draft_peers_connected(draft *d, draft_step *c, uint64_t tag, peer_id id);
void draft_peers_greeted(draft *d, draft_step *c, const roster_peer *p);
/* Our HELLO was refused: if by a target, its sessions have to do without this draft; if by the orchestrator,
 * the program is of no use. */
void draft_peers_refused(draft *d, draft_step *c, peer_id id, const msg *m);
void draft_peers_tick(draft *d, draft_step *c);
uint64_t draft_peers_deadline(const draft *d);
