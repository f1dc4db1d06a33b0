#include "draft_worker/target_links.h"

#include "common/base/min.h"
#include "common/base/log.h"
#include "wire/endpoint.h"
#include <string.h>

static bool is_used(uint32_t used, int32_t link) {
  return used >> link & 1;
}

static void link_close(draft_step *c, target_link *l) {
  actions_disconnect(c->out, l->peer);
  roster_drop(c->peers, l->peer);
  *l = (target_link){0};
}

/* Gives up a connection that no session needs; -1: there is none. */
static int32_t reclaim(draft_step *c, target_links *l, uint32_t used) {
  for (int32_t i = 0; i < TARGET_LINKS_MAX; i++) {
    if (!l->list[i].peer || is_used(used, i)) continue;
    link_close(c, &l->list[i]);
    return i;
  }
  return -1;
}

/* Tags of connections: 0 is the orchestrator's. */
static void connect_link(draft_step *c, target_links *l, int32_t link) {
  l->list[link].wish_us = c->now;
  actions_connect(c->out, (uint64_t)link + 1, wire_text(l->list[link].endpoint));
}

/* The reply comes within the step, or never: now and then there is no memory for an action. */
static bool is_pending(const target_link *l) {
  return l->endpoint[0] && !l->peer;
}

static int32_t find(const target_links *l, wire_string endpoint) {
  for (int32_t i = 0; i < TARGET_LINKS_MAX; i++) {
    const char *own = l->list[i].endpoint;
    if (own[0] && strlen(own) == endpoint.size && memcmp(own, endpoint.data, endpoint.size) == 0) return i;
  }
  return -1;
}

static int32_t find_free(const target_links *l) {
  for (int32_t i = 0; i < TARGET_LINKS_MAX; i++)
    if (!l->list[i].endpoint[0]) return i;
  return -1;
}

int32_t target_links_open(draft_step *c, target_links *l, wire_string endpoint, uint32_t used) {
  int32_t link = find(l, endpoint);
  if (link >= 0) return link;
  link = find_free(l);
  if (link < 0) link = reclaim(c, l, used);
  if (link < 0) return -1;
  target_link *x = &l->list[link];
  memcpy(x->endpoint, endpoint.data, endpoint.size);
  x->endpoint[endpoint.size] = 0;
  x->there = (peer_watch){.endpoint = x->endpoint};
  connect_link(c, l, link);
  return link;
}

bool target_links_has(const target_links *l, peer_id peer) {
  for (int i = 0; i < TARGET_LINKS_MAX; i++)
    if (l->list[i].peer == peer) return true;
  return false;
}

const char *target_links_unreachable(const target_links *l, int32_t link) {
  return l->list[link].there.reported ? l->list[link].endpoint : NULL;
}

target_link_news target_links_connected(draft_step *c, target_links *l, int32_t link, peer_id peer) {
  target_link *x = &l->list[link];
  if (!is_pending(x)) { /* the first reply was only late */
    if (peer) actions_disconnect(c->out, peer);
    return TARGET_LINK_LATE;
  }
  if (!peer || !roster_connected(c->peers, peer, c->now, c->out)) {
    *x = (target_link){0};
    return TARGET_LINK_BAD;
  }
  x->peer = x->there.peer = peer;
  return TARGET_LINK_UP;
}

bool target_links_refused(target_links *l, peer_id peer) {
  bool again = false;
  for (int i = 0; i < TARGET_LINKS_MAX; i++) {
    peer_watch *there = &l->list[i].there;
    if (there->peer != peer) continue;
    again = !there->endpoint;
    there->endpoint = NULL; /* it is there, but it refuses this draft */
  }
  return !again;
}

void target_links_drop(draft_step *c, target_links *l, peer_id peer) {
  for (int i = 0; i < TARGET_LINKS_MAX; i++)
    if (l->list[i].peer == peer) link_close(c, &l->list[i]);
}

static void look(draft_step *c, target_link *l, bool used) {
  switch (peer_watch_look(&l->there, c->peers, c->now)) {
  case PEER_WATCH_ABSENT:
  case PEER_WATCH_SILENT:
    if (l->peer && !used && c->now - l->there.since_us >= PEER_WATCH_AGAIN_US) {
      link_close(c, l); /* nobody misses it */
      break;
    }
    actions_log(
        c->out, LOG_WARNING,
        "the target at %.*s %s: trying on; can this host connect to that address, and is it the target's? "
        "A target that does not know this draft's key says so in its log",
        ENDPOINT_PLAIN(l->endpoint), l->there.came ? "has fallen silent" : "does not answer");
    break;
  case PEER_WATCH_BACK:
    actions_log(c->out, LOG_WARNING, "the target at %.*s answers now", ENDPOINT_PLAIN(l->endpoint));
    break;
  case PEER_WATCH_HERE:
  case PEER_WATCH_NO_NEWS:
    break;
  }
}

void target_links_look(draft_step *c, target_links *l, uint32_t used) {
  for (int32_t i = 0; i < TARGET_LINKS_MAX; i++)
    if (l->list[i].endpoint[0]) look(c, &l->list[i], is_used(used, i));
}

void target_links_tick(draft_step *c, target_links *l) {
  for (int32_t i = 0; i < TARGET_LINKS_MAX; i++)
    if (is_pending(&l->list[i]) && c->now - l->list[i].wish_us >= DRAFT_REPEAT_US) connect_link(c, l, i);
}

uint64_t target_links_deadline(const target_links *l) {
  uint64_t at = MACHINE_NEVER;
  for (int i = 0; i < TARGET_LINKS_MAX; i++) {
    at = min_u64(at, peer_watch_deadline(&l->list[i].there));
    if (is_pending(&l->list[i])) at = min_u64(at, l->list[i].wish_us + DRAFT_REPEAT_US);
  }
  return at;
}
