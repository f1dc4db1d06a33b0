/* draft_state.h - what the draft's machine holds. For worker.c and the files to which it hands events. */
#pragma once

#include "draft_worker/attachment.h"
#include "draft_worker/draft_options.h"
#include "draft_worker/draft_times.h"
#include "draft_worker/target_links.h"

typedef struct draft {
  draft_options options;
  char method[WIRE_STRING_MAX + 1]; /* the drafters', as HELLO names them */
  char device[WIRE_STRING_MAX + 1]; /* the same */
  roster peers;
  peer_watch orchestrator;
  attachment *sessions; /* [DRAFT_SESSIONS_MAX]; the index is the session's slot at the drafters */
  target_links links;
  bool draining;
  draft_setup setup;
  int32_t first; /* the session whose C goes first in the next batch */
  draft_times times;
} draft;

static inline int32_t draft_state_session_max(const draft *d) {
  return d->options.session_max ? d->options.session_max : DRAFT_SESSIONS_MAX;
}

static inline attachment *draft_state_find(const draft *d, uint64_t id) {
  for (int i = 0; i < draft_state_session_max(d); i++)
    if (d->sessions[i].state != ATTACHMENT_FREE && d->sessions[i].id == id) return &d->sessions[i];
  return NULL;
}

/* Which links have sessions: bit i for link i. */
static inline uint32_t draft_state_links_used(const draft *d) {
  uint32_t used = 0;
  for (int i = 0; i < draft_state_session_max(d); i++)
    if (d->sessions[i].state != ATTACHMENT_FREE) used |= UINT32_C(1) << d->sessions[i].link;
  return used;
}
_Static_assert(TARGET_LINKS_MAX <= 32, "a bit for each link");
