#include "common/base/limit.h"
#include "target_worker/attached_drafts.h"

#include "common/base/log.h"
#include "target_worker/feature_stream.h"
#include "target_worker/token_stream.h"
#include <stdio.h>
#include <string.h>

/* Frames of an old generation that are still in flight get one TREE_RESET, not one each. */
#define RESET_EVERY_US 50000
/* A draft that lags for so long has lost TOKENS. */
#define LOST_AFTER_US 100000
/* Live nodes: a draft that has no more is not detached for what others hold. */
#define QUOTA LIMIT(256, 26)
_Static_assert(QUOTA *SESSION_DRAFTS_MAX <= TREE_NODE_MAX, "all drafts that keep to it have room");

/* --- they come and go --- */

/* Takes the same time wherever the first difference is, so that nobody can find the ticket byte by byte. */
static bool ticket_fits(const session *s, const wire_id *shown) {
  uint8_t differs = 0;
  for (size_t i = 0; i < sizeof shown->bytes; i++) differs |= s->request.ticket.bytes[i] ^ shown->bytes[i];
  return differs == 0;
}

static void reject(step_context *c, session *s, session_draft *d, const msg *m, int code, const char *text) {
  roster_refuse(c->peers, d->peer, m, code, text, c->out);
  attached_drafts_drop(c, s, d, text);
}

void attached_drafts_attach(step_context *c, peer_id from, session *s, const msg *m) {
  if (!ticket_fits(s, &m->u.state.ticket)) {
    roster_refuse(c->peers, from, m, ERR_TICKET,
                  "the ticket is not this session's: only the draft that its orchestrator chose may attach",
                  c->out);
    return;
  }
  if (s->state != SESSION_RUNNING) { /* nothing is kept for it; END or OPEN is on its way to the draft */
    roster_refuse(c->peers, from, m, ERR_GONE, "this session does not run any more: attach when it is opened",
                  c->out);
    return;
  }
  session_draft *d = session_draft_take(s, from);
  if (!d) {
    roster_refuse(c->peers, from, m, ERR_FULL, "this session has as many drafts as it takes", c->out);
    return;
  }
  err e;
  int rc = feature_stream_grant(c, s, d, &m->u.state.request, &e);
  if (rc != ERR_OK) {
    reject(c, s, d, m, rc, e.text);
    return;
  }
  c->store->plain_drafts = m->u.state.request.tap_count == 0;
  d->tokens_sent_us = c->now;
  d->sent = s->committed.length;
  if (roster_beside(c->peers, from)) speculation_beside(&s->speculation, c->store->speculation);
  if (roster_colocated(c->peers, from)) speculation_colocated(&s->speculation, c->store->speculation);
  msg answer = roster_state(c->peers, from, MSG_ATTACHED, s->id, s->epoch, &s->committed, NULL);
  answer.u.state.generation = d->ids.generation;
  const taps_set *t = &s->drafts.features.taps;
  if (d->features.granted)
    answer.u.state.grant = (msg_feature_grant){t->width, t->type, t->fused, d->features.from};
  roster_log(c->peers, from, c->now, LOG_INFO, c->out, "session %016llx: a draft is attached",
             (unsigned long long)s->id);
  actions_send(c->out, from, &answer);
}

void attached_drafts_drop(step_context *c, session *s, session_draft *d, const char *reason) {
  if (s->state == SESSION_FINISHED) return; /* a draft that takes its leave after the end */
  roster_log(c->peers, d->peer, c->now, LOG_WARNING, c->out, "session %016llx: draft detached: %s",
             (unsigned long long)s->id, reason);
  snprintf(s->drafts.left_reason, sizeof s->drafts.left_reason,
           "the draft was there, and is not any more: %s", reason);
  session_draft_drop(s, d);
  s->drafts.gave_up = session_draft_count(s) == 0;
  s->drafts.alone_us = c->now;
}

void attached_drafts_dismiss(step_context *c, session *s) {
  static const char reason[] = "its orchestrator has dismissed it";
  for (session_draft *d = s->drafts.of; d < s->drafts.of + SESSION_DRAFTS_MAX; d++) {
    if (!d->peer) continue;
    msg m = roster_state(c->peers, d->peer, MSG_DETACH, s->id, s->epoch, NULL, reason);
    actions_send(c->out, d->peer, &m);
    attached_drafts_drop(c, s, d, reason);
  }
}

void attached_drafts_gave_up(step_context *c, session *s, session_draft *d, wire_string reason) {
  char text[WIRE_STRING_MAX / 2];
  snprintf(text, sizeof text, "it gave up: %.*s", (int)reason.size, reason.data);
  attached_drafts_drop(c, s, d, text);
}

void attached_drafts_left(step_context *c, peer_id peer, const char *reason) {
  for (int32_t i = 0; i < c->store->count; i++) {
    session *s = &c->store->slots[i];
    session_draft *d = s->state == SESSION_FREE ? NULL : session_draft_of(s, peer);
    if (d) attached_drafts_drop(c, s, d, reason);
  }
}

/* --- when there is none --- */

uint64_t attached_drafts_deadline(const session *s) {
  bool expects = s->state == SESSION_RUNNING && s->request.draft_expected && !s->speculation.disabled;
  return expects && session_draft_count(s) == 0 ? s->drafts.alone_us + ATTACHED_DRAFTS_ALONE_US : UINT64_MAX;
}

void attached_drafts_tick(step_context *c, session *s) {
  if (c->now < attached_drafts_deadline(s)) return;
  s->drafts.alone_us = c->now;
  msg m = roster_message(c->peers, s->request.orchestrator, MSG_DETACH, s->id, s->epoch);
  m.u.state.reason = wire_text(s->drafts.left_reason[0] ? s->drafts.left_reason : SESSION_UNATTACHED);
  actions_send(c->out, s->request.orchestrator, &m);
}

/* --- NODES --- */

static void send_reset(step_context *c, session *s, session_draft *d) {
  msg m = roster_message(c->peers, d->peer, MSG_TREE_RESET, s->id, s->epoch);
  m.u.reset.generation = d->ids.generation;
  d->reset_sent_us = c->now;
  s->stats.resets++;
  actions_send(c->out, d->peer, &m);
}

static bool tokens_valid(const msg_nodes *n, int32_t vocabulary) {
  for (int32_t i = 0; i < n->count; i++)
    if (n->tokens[i] < 0 || n->tokens[i] >= vocabulary) return false;
  return true;
}

static void nodes_taken(step_context *c, session *s, session_draft *d, const msg_nodes *n, int32_t added) {
  if (n->base_length > d->base_named) d->base_named = n->base_length;
  tree_ids_trim(&d->ids, &s->drafts.tree, d->base_named);
  if (n->done) d->done_base = n->base_length;
  if (d->features.granted) feature_stream_acked(c, s, d, n->features);
  if (roster_stalled_since(c->peers, d->timed_us, c->now)) d->timed = false;
  if (d->timed && n->base_length >= d->timed_length) {
    if (!d->replied) speculation_replied(&s->speculation, c->now - d->timed_us);
    if (added > 0) speculation_node_arrived(&s->speculation, c->now - d->timed_us);
    d->replied = true;
    d->timed = added == 0 && !n->done;
  }
  bool quiet = speculation_is_quiet(&s->speculation) && !s->request.options.lockstep;
  bool lost = c->now - d->tokens_sent_us > LOST_AFTER_US;
  if (n->base_length < s->committed.length && !quiet && (lost || token_stream_next_part(d, n->base_length)))
    token_stream_resend(c, s, d, n->base_length);
}

static void keep_named(session *s) {
  tree_ids *maps[SESSION_DRAFTS_MAX];
  tree_keep_named(&s->drafts.tree, maps, session_draft_maps(s, maps));
}

/* The draft with the most live nodes. */
static session_draft *greediest(session *s, int32_t *nodes) {
  session_draft *most = NULL;
  *nodes = 0;
  for (session_draft *d = s->drafts.of; d < s->drafts.of + SESSION_DRAFTS_MAX; d++) {
    int32_t n = d->peer ? tree_ids_live(&d->ids, &s->drafts.tree) : 0;
    if (n > *nodes) most = d;
    if (n > *nodes) *nodes = n;
  }
  return most;
}

/* Makes room for `count` nodes of draft `d`: nodes that nobody names any more go first, then the draft that
 * holds most, if that is more than its quota. False: it is `d` itself that holds too many. */
static bool make_room(step_context *c, session *s, const session_draft *d, int32_t count) {
  int32_t before = s->drafts.tree.live_count, most;
  keep_named(s);
  if (s->drafts.tree.live_count < before) return true;
  if (tree_ids_live(&d->ids, &s->drafts.tree) + count > QUOTA) return false;
  session_draft *greedy = greediest(s, &most);
  if (greedy == d || most <= QUOTA) return false;
  roster_error(c->peers, greedy->peer, s->id, s->epoch, ERR_LIMIT, c->out,
               "%d of your nodes are live and others need room: keep to %d", most, QUOTA);
  attached_drafts_drop(c, s, greedy, "it holds more nodes than its part, and others need room");
  return true;
}

static tree_verdict receive(step_context *c, session *s, session_draft *d, const tree_delta *b,
                            int32_t *added) {
  const prefix *p = &s->committed;
  tree_verdict v = tree_receive(&s->drafts.tree, &d->ids, p->tokens, p->length, b, added);
  while (v == TREE_OVERFLOW && make_room(c, s, d, b->count))
    v = tree_receive(&s->drafts.tree, &d->ids, p->tokens, p->length, b, added);
  return v;
}

void attached_drafts_nodes(step_context *c, session *s, session_draft *d, const msg *m) {
  const msg_nodes *n = &m->u.nodes;
  if (s->state != SESSION_RUNNING || n->generation != d->ids.generation) {
    s->stats.dropped++;
    bool stale = n->generation != d->ids.generation && s->state == SESSION_RUNNING;
    if (stale && c->now - d->reset_sent_us >= RESET_EVERY_US) send_reset(c, s, d);
    return;
  }
  if (n->base_length > s->committed.length) { /* it cannot have this from us in this epoch */
    s->stats.dropped++;
    token_stream_to_draft(c, s, d, s->committed.length);
    return;
  }
  if (!prefix_has(&s->committed, n->base_length, n->base_hash)) {
    reject(c, s, d, m, ERR_DESYNC, "the nodes stand on another prefix than this session's: attach again");
    return;
  }
  if (!tokens_valid(n, c->peers->self.vocabulary_size)) {
    reject(c, s, d, m, ERR_ARG, "a node's token is outside the vocabulary");
    return;
  }
  tree_delta batch = {n->base_length, n->first_id, n->count, n->parents, n->tokens, n->scores};
  int32_t added = 0;
  switch (receive(c, s, d, &batch, &added)) {
  case TREE_TAKEN:
    nodes_taken(c, s, d, n, added);
    break;
  case TREE_GAP:
    tree_ids_reset(&d->ids, ++s->drafts.generation);
    d->done_base = 0;
    send_reset(c, s, d);
    break;
  case TREE_INVALID:
    reject(c, s, d, m, ERR_PROTOCOL, "a node's parent is not an earlier id");
    break;
  case TREE_OVERFLOW:
    reject(c, s, d, m, ERR_LIMIT, "the tree has more nodes, or is deeper, than this target holds");
    break;
  }
}
