/* draft_open.h - handles what the orchestrator says about a session: OPEN and END. */
#pragma once

#include "draft_worker/draft_state.h"

void draft_open_receive(draft *d, draft_step *c, peer_id from, const msg *m);
void draft_open_end(draft *d, draft_step *c, peer_id from, const msg *m);
