/* target_links.h - the connections to targets; all sessions at a target share one. It knows no sessions: the
 * caller says which links are used, bit i for link i. */
#pragma once

#include "common/base/limit.h"
#include "draft_worker/draft_step.h"
#include "wire/peer_watch.h"

#define TARGET_LINKS_MAX LIMIT(16, 1)

typedef struct target_link {
  char endpoint[WIRE_STRING_MAX + 1]; /* "": a free link */
  peer_id peer;                       /* 0 while connecting */
  peer_watch there;
  uint64_t wish_us; /* when the connection was asked for; without a reply it is asked for again */
} target_link;

typedef struct target_links {
  target_link list[TARGET_LINKS_MAX];
} target_links; /* zeroed at first; must not be moved */

/* Returns the link to this address, and asks for a connection if there is none. -1: all links are used. */
int32_t target_links_open(draft_step *c, target_links *l, wire_string endpoint, uint32_t used);
/* Is this peer a target that one of the links leads to? */
bool target_links_has(const target_links *l, peer_id peer);
/* The address of a target that has not been there for a while, or NULL. */
const char *target_links_unreachable(const target_links *l, int32_t link);

typedef enum { TARGET_LINK_UP, TARGET_LINK_LATE, TARGET_LINK_BAD } target_link_news;
/* Handles EVENT_CONNECTED for a link. LATE: it is a second reply, and nothing changes; BAD: no connection can
 * be made to that address, and the link is free again. */
target_link_news target_links_connected(draft_step *c, target_links *l, int32_t link, peer_id peer);
/* A target refuses this draft, so its absence is no longer logged. False: that was known already. */
bool target_links_refused(target_links *l, peer_id peer);
/* Gives up the links to this peer. */
void target_links_drop(draft_step *c, target_links *l, peer_id peer);

/* Logs which targets are not there, and gives up unused links to them. */
void target_links_look(draft_step *c, target_links *l, uint32_t used);
void target_links_tick(draft_step *c, target_links *l);
uint64_t target_links_deadline(const target_links *l);
