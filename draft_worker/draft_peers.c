#include "draft_worker/draft_peers.h"

#include "common/base/log.h"
#include "common/base/min.h"
#include "common/base/program.h"

bool draft_peers_is_orchestrator(const draft *d, const roster_peer *p) {
  return p->id == d->orchestrator.peer && p->hello.role == WIRE_ROLE_ORCHESTRATOR;
}

/* --- connections --- */

/* That address is none that can be called. */
static void link_bad(draft *d, draft_step *c, int32_t link) {
  for (int i = 0; i < draft_state_session_max(d); i++) {
    attachment *a = &d->sessions[i];
    if (a->state == ATTACHMENT_CONNECTING && a->link == link)
      attachment_decline(c, a, ERR_ARG, "the target's address cannot be called from here:",
                         wire_text("start it with another --advertise"));
  }
}

/* Sessions that asked for this connection have it. */
static void link_up(draft *d, int32_t link, peer_id id) {
  for (int i = 0; i < draft_state_session_max(d); i++) {
    attachment *a = &d->sessions[i];
    if (a->state == ATTACHMENT_CONNECTING && a->link == link) a->target = id;
  }
}

void draft_peers_connected(draft *d, draft_step *c, uint64_t tag, peer_id id) {
  int32_t link = (int32_t)tag - 1;
  if (tag == DRAFT_PEERS_ORCHESTRATOR) {
    bool up = id && roster_connected(c->peers, id, c->now, c->out);
    if (up && !d->orchestrator.peer) d->orchestrator.peer = id;
    return;
  }
  switch (target_links_connected(c, &d->links, link, id)) {
  case TARGET_LINK_UP:
    link_up(d, link, id);
    break;
  case TARGET_LINK_BAD:
    link_bad(d, c, link);
    break;
  case TARGET_LINK_LATE:
    break;
  }
}

/* --- who is there, and who is not --- */

static void look(draft *d, draft_step *c) {
  peer_watch_orchestrator(&d->orchestrator, c->peers, c->now, c->out);
  target_links_look(c, &d->links, draft_state_links_used(d));
}

/* A session stays CONNECTING when another incarnation answers there: OPEN will tell. */
static void target_greeted(draft *d, draft_step *c, const roster_peer *target) {
  for (int i = 0; i < draft_state_session_max(d); i++) {
    attachment *a = &d->sessions[i];
    if (a->state > ATTACHMENT_OPENING && a->target == target->id) attachment_reach(c, a);
  }
}

/* Another program answers there now, which knows nothing of the sessions of the one before. */
static void orchestrator_greeted(draft *d, draft_step *c, const roster_peer *o) {
  for (int i = 0; i < draft_state_session_max(d); i++) {
    attachment *a = &d->sessions[i];
    if (a->state != ATTACHMENT_FREE && a->orchestrator == o->id)
      attachment_leave(c, a, "another orchestrator");
  }
}

void draft_peers_greeted(draft *d, draft_step *c, const roster_peer *p) {
  look(d, c);
  if (p->hello.role == WIRE_ROLE_TARGET) target_greeted(d, c, p);
  if (draft_peers_is_orchestrator(d, p)) orchestrator_greeted(d, c, p);
}

void draft_peers_refused(draft *d, draft_step *c, peer_id id, const msg *m) {
  bool target = target_links_has(&d->links, id);
  if (target_links_refused(&d->links, id))
    roster_log(c->peers, id, c->now, LOG_ERROR, c->out, "refused by the %s: %s",
               target ? "target" : "orchestrator", wire_brief_of(m->u.error.text).text);
  if (!target) actions_exit(c->out, STATUS_REFUSED);
  for (int i = 0; target && i < draft_state_session_max(d); i++) {
    attachment *a = &d->sessions[i];
    if (attachment_is_active(a) && a->target == id)
      attachment_decline(c, a, m->u.error.code, "the target refuses this draft:", m->u.error.text);
  }
}

/* A target that is silent may come back at the same address; a session there waits for OPEN. */
static void peer_lost(draft *d, draft_step *c, const roster_peer *lost) {
  bool used = false;
  for (int i = 0; i < draft_state_session_max(d); i++)
    used |= d->sessions[i].state != ATTACHMENT_FREE && d->sessions[i].target == lost->id;
  if (lost->hello.role == WIRE_ROLE_TARGET && !used) target_links_drop(c, &d->links, lost->id);
}

void draft_peers_tick(draft *d, draft_step *c) {
  for (roster_peer *lost; (lost = roster_tick(c->peers, c->now, c->out));) peer_lost(d, c, lost);
  look(d, c);
  target_links_tick(c, &d->links);
}

uint64_t draft_peers_deadline(const draft *d) {
  uint64_t at = min_u64(roster_deadline(&d->peers), peer_watch_deadline(&d->orchestrator));
  return min_u64(at, target_links_deadline(&d->links));
}
