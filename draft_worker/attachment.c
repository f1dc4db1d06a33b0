#include "draft_worker/attachment.h"

#include "common/base/log.h"
#include "common/base/min.h"
#include <string.h>

#define IDLE_MAX_US     60000000 /* a session of which nothing was heard for so long is given up */
#define RESEND_EVERY_US 20000
/* An ATTACH that has overtaken the OPEN of its target is repeated after so long, then after twice as long...
 */
#define GONE_US 2000

void attachment_close(attachment *a, const draft_setup *m) {
  draft_session_end(&a->session, m);
  *a = (attachment){.session = a->session, .used_us = a->used_us};
}

bool attachment_is_orphaned(const draft_step *c, const attachment *a) {
  const roster_peer *o = roster_find(c->peers, a->orchestrator);
  bool silent = !o || c->now - o->received_us > IDLE_MAX_US;
  bool unused = c->now - a->used_us > IDLE_MAX_US; /* not attached for so long: END was lost */
  return silent || unused;
}

/* --- messages out --- */

static msg message_to(draft_step *c, peer_id to, msg_type type, const attachment *a) {
  return roster_message(c->peers, to, type, a->id, a->epoch);
}

void attachment_send_state(draft_step *c, peer_id to, msg_type type, const attachment *a,
                           const char *reason) {
  msg m = roster_state(c->peers, to, type, a->id, a->epoch, &a->session.committed, reason);
  if (type == MSG_ATTACH) m.u.state.ticket = a->ticket;
  if (type == MSG_ATTACH && roster_version(c->peers, to) >= WIRE_VERSION_FEATURES)
    m.u.state.request = feature_intake_request(&a->features, c->setup);
  actions_send(c->out, to, &m);
}

static void send_attach(draft_step *c, attachment *a) {
  a->state = ATTACHMENT_ATTACHING;
  a->attach_at = c->now + DRAFT_REPEAT_US;
  attachment_send_state(c, a->target, MSG_ATTACH, a, NULL);
}

static void ask_resend(draft_step *c, attachment *a) {
  msg m = message_to(c, a->target, MSG_RESEND, a);
  m.u.resend.from = a->session.committed.length;
  a->resend_us = c->now;
  actions_send(c->out, a->target, &m);
}

/* Sends live nodes with ids [first_id, next), and the base, even when there are none. */
static void send_nodes(draft_step *c, attachment *a, uint64_t first_id) {
  uint64_t parents[WIRE_NODES_MAX];
  int32_t tokens[WIRE_NODES_MAX];
  float scores[WIRE_NODES_MAX];
  draft_session *p = &a->session;
  msg m = message_to(c, a->target, MSG_NODES, a);
  m.u.nodes = (msg_nodes){.generation = p->ids.generation,
                          .base_length = p->committed.length,
                          .base_hash = prefix_hash(&p->committed),
                          .first_id = first_id,
                          .count = draft_session_nodes(p, first_id, parents, tokens, scores),
                          .parents = parents,
                          .tokens = tokens,
                          .scores = scores,
                          .done = p->done,
                          .features = a->features.grant.width ? a->features.next : 0};
  a->features.bytes = 0;
  a->sent_us = c->now;
  if (p->done && p->expansion.live.live_count > 0) pacing_sent(&p->pacing, c->now);
  actions_send(c->out, a->target, &m);
}

/* --- the tree --- */

static int32_t grow(draft_step *c, attachment *a, uint64_t *first_id) {
  const roster_peer *target = roster_find(c->peers, a->target);
  return draft_session_grow(&a->session, c->setup, target ? target->hello.vocabulary_size : 0, first_id);
}

/* Lets the tree grow and sends what is new to the target. Without `news` nothing is sent that the target
 * knows already. */
static void grow_and_send(draft_step *c, attachment *a, bool news) {
  uint64_t first_id;
  bool was_done = a->session.done;
  int32_t added = grow(c, a, &first_id);
  if (added < 0)
    send_attach(c, a); /* ids are used up: a fresh generation comes with a fresh attach */
  else if (draft_session_keeps(&a->session, c->setup)) {
    if (feature_intake_is_due(&a->features)) send_nodes(c, a, a->session.ids.next); /* gives credit alone */
  } else if (news || added > 0 || a->session.done != was_done)
    send_nodes(c, a, first_id);
}

void attachment_grow(draft_step *c, attachment *a) {
  if (a->session.replied) pacing_replied(&a->session.pacing);
  if (a->session.replied && a->state == ATTACHMENT_ATTACHED) grow_and_send(c, a, false);
  a->session.replied = false;
}

/* All live nodes are sent again, with what can be added now. */
static void start_generation(draft_step *c, attachment *a, uint32_t generation) {
  uint64_t first_id;
  draft_session_rename(&a->session, generation);
  grow(c, a, &first_id);
  send_nodes(c, a, 1);
}

/* --- leaving --- */

static void out_of_step(draft_step *c, attachment *a, const char *reason) {
  attachment_send_state(c, a->target, MSG_DETACH, a, reason);
  a->state = ATTACHMENT_LOST;
  a->desync_tries = 1;
  a->sent_us = c->now;
  attachment_send_state(c, a->orchestrator, MSG_DESYNC, a, reason);
}

/* The session goes on without this draft; its orchestrator may ask another one. */
static void detach(draft_step *c, attachment *a, int code, const char *reason) {
  actions_log(c->out, LOG_WARNING, "session %016llx goes on without this draft: %s",
              (unsigned long long)a->id, reason);
  if (a->state == ATTACHMENT_ATTACHED) attachment_send_state(c, a->target, MSG_DETACH, a, reason);
  a->state = ATTACHMENT_LOST;
  a->desync_tries = 0;
  roster_error(c->peers, a->orchestrator, a->id, a->epoch, code, c->out, "%s", reason);
}

void attachment_leave(draft_step *c, attachment *a, const char *reason) {
  if (a->state == ATTACHMENT_ATTACHED) attachment_send_state(c, a->target, MSG_DETACH, a, reason);
  attachment_close(a, c->setup);
}

void attachment_decline(draft_step *c, attachment *a, int code, const char *why, wire_string what) {
  if (a->state == ATTACHMENT_ATTACHED) attachment_send_state(c, a->target, MSG_DETACH, a, why);
  a->state = ATTACHMENT_LOST;
  a->desync_tries = 0;
  roster_error(c->peers, a->orchestrator, a->id, a->epoch, code, c->out, "%s %.*s", why, (int)what.size,
               what.data);
}

void attachment_unreachable(draft_step *c, attachment *a, const char *endpoint) {
  if (a->state == ATTACHMENT_CONNECTING && endpoint)
    attachment_decline(c, a, ERR_TIMEOUT, "no answer from the target at",
                       (wire_string){endpoint, (uint32_t)strcspn(endpoint, "#")});
}

static const char *failure_text(int code) {
  if (code == ERR_MISMATCH) return "a token of the text is none of the draft model's";
  return code == ERR_DEVICE ? "the draft's device is lost" : "the draft's model could not be run";
}

/* The drafter is absent from now on, and the tree may have waited for it. Other failures have been logged
 * already: by the engine, or as the loss of a device. */
static void go_on_without(draft_step *c, attachment *a, int32_t by, int code) {
  if (code == ERR_MISMATCH)
    actions_log(c->out, LOG_WARNING, "session %016llx goes on without %s: %s", (unsigned long long)a->id,
                c->setup->drafters[by].method, failure_text(code));
  a->session.replied = true;
}

void attachment_take(draft_step *c, attachment *a, int32_t by, const draft_reply *r) {
  if (r->code == ERR_OK)
    draft_session_take(&a->session, c->setup, by, r);
  else if (c->setup->drafter_count > 1)
    go_on_without(c, a, by, r->code);
  else
    detach(c, a, r->code, failure_text(r->code));
}

/* --- messages in --- */

void attachment_reach(draft_step *c, attachment *a) {
  roster_peer *t = roster_find(c->peers, a->target);
  a->state = ATTACHMENT_CONNECTING;
  if (t && t->greeted && wire_id_equal(t->hello.incarnation, a->target_incarnation)) send_attach(c, a);
}

static void on_tokens(draft_step *c, attachment *a, const msg *m) {
  const msg_tokens *t = &m->u.tokens;
  draft_session *p = &a->session;
  int32_t appended = 0;
  if (a->state != ATTACHMENT_ATTACHED) return;
  if (t->base_length + t->token_count > p->options.context) { /* drafters have taken memory for no more */
    out_of_step(c, a, "the target's tokens go beyond the session's context");
    return;
  }
  switch (prefix_apply(&p->committed, t->base_length, t->tokens, t->token_count, t->hash, &appended)) {
  case PREFIX_BEYOND:
    if (c->now - a->resend_us >= RESEND_EVERY_US) ask_resend(c, a);
    return;
  case PREFIX_CONFLICT:
    out_of_step(c, a, "the target's tokens differ from those held here");
    return;
  case PREFIX_LIMIT: /* a model's context may be shorter than the session's: it helps as long as it can */
    detach(c, a, ERR_LIMIT, "the session is longer than this draft's context");
    return;
  case PREFIX_APPLIED:
    break;
  }
  if (appended == 0) return;
  draft_session_commit(p, c->setup, appended);
  pacing_tokens(&p->pacing, c->now, roster_stalled_since(c->peers, p->pacing.sent_us, c->now));
  grow_and_send(c, a, true);
}

/* It drafts as well, and more bytes travel. */
static void tell_raw(draft_step *c, const msg_feature_grant *grant) {
  draft_setup *m = c->setup;
  if (grant->width == 0 || grant->fused || m->raw_logged) return;
  const drafter_wants *w = &m->drafters[m->reader].wants;
  if (hash_is_zero(w->fc)) return;
  m->raw_logged = true;
  actions_log(
      c->out, LOG_INFO,
      "the target does not have this head: %u bytes of its states travel for a token, not %u: start it "
      "with --head and this draft's file",
      (uint32_t)grant->width * wire_type_size(grant->type), (uint32_t)w->fc_width * wire_type_size(w->type));
}

static void on_attached(draft_step *c, attachment *a, const msg *m) {
  const msg_state *s = &m->u.state;
  if (a->state != ATTACHMENT_ATTACHING || s->generation <= a->session.ids.generation) return;
  const prefix *own = &a->session.committed;
  if (s->length < own->length || (s->length == own->length && !prefix_has(own, s->length, s->hash))) {
    out_of_step(c, a, "the target holds another prefix than this draft");
    return;
  }
  a->state = ATTACHMENT_ATTACHED;
  a->gone_us = 0;
  feature_intake_granted(&a->features, c->setup, &a->session, &s->grant);
  tell_raw(c, &a->features.grant);
  start_generation(c, a, s->generation);
  if (s->length > own->length) ask_resend(c, a);
}

/* They may let the drafter go on. A target that sends nonsense is believed no more. */
static void on_features(draft_step *c, attachment *a, const msg *m) {
  err e;
  if (a->state != ATTACHMENT_ATTACHED) return;
  int rc = feature_intake_take(&a->features, c->setup, &a->session, &m->u.features, &e);
  if (rc != ERR_OK)
    roster_log(c->peers, a->target, c->now, LOG_WARNING, c->out,
               "session %016llx: its features are not used: %s", (unsigned long long)a->id, e.text);
  grow_and_send(c, a, feature_intake_is_due(&a->features));
  /* Nodes may be kept back, but credit is not. */
  if (feature_intake_is_due(&a->features)) send_nodes(c, a, a->session.ids.next);
}

/* The session is not open there yet, or not with this draft's ticket, which may be a matter of moments; or
 * this draft has been detached. */
static void try_again(const draft_step *c, attachment *a) {
  a->gone_us = a->gone_us ? min_u64(2 * a->gone_us, DRAFT_REPEAT_US) : GONE_US;
  a->state = ATTACHMENT_ATTACHING;
  a->attach_at = c->now + a->gone_us;
}

/* The target says that something is not as this draft thinks. */
static void on_error(draft_step *c, attachment *a, const msg *m) {
  if (a->state != ATTACHMENT_ATTACHED && a->state != ATTACHMENT_ATTACHING) return;
  switch (m->u.error.code) {
  case ERR_GONE:
  case ERR_TICKET:
    try_again(c, a);
    break;
  case ERR_DESYNC:
    out_of_step(c, a, "the target says that our prefix is another");
    break;
  default:
    roster_log(c->peers, a->target, c->now, LOG_WARNING, c->out,
               "session %016llx: the target refuses our nodes: %s", (unsigned long long)a->id,
               wire_brief_of(m->u.error.text).text);
    attachment_decline(c, a, m->u.error.code, "the target refuses this draft:", m->u.error.text);
  }
}

void attachment_receive(draft_step *c, attachment *a, const msg *m) {
  switch (m->type) {
  case MSG_ATTACHED:
    on_attached(c, a, m);
    break;
  case MSG_TOKENS:
    on_tokens(c, a, m);
    break;
  case MSG_FEATURES:
    on_features(c, a, m);
    break;
  case MSG_TREE_RESET:
    if (a->state == ATTACHMENT_ATTACHED && m->u.reset.generation > a->session.ids.generation)
      start_generation(c, a, m->u.reset.generation);
    break;
  case MSG_DETACH:
    /* Before ATTACHED it ends an attachment before this one. */
    if (a->state == ATTACHMENT_ATTACHED) detach(c, a, ERR_STATE, "its target detached it");
    break;
  case MSG_ERROR:
    on_error(c, a, m);
    break;
  default:
    break;
  }
}

/* --- time --- */

static bool repeats_desync(const attachment *a) {
  return a->state == ATTACHMENT_LOST && a->desync_tries > 0 && a->desync_tries < ATTACHMENT_DESYNC_TRIES;
}

/* Attached to a target that is gone is not used: if END is lost too, nobody else would say so. */
static void note_use(const draft_step *c, attachment *a) {
  const roster_peer *target = roster_find(c->peers, a->target);
  if (target && target->received_us > a->used_us) a->used_us = target->received_us;
}

void attachment_tick(draft_step *c, attachment *a) {
  if (repeats_desync(a) && c->now - a->sent_us >= DRAFT_REPEAT_US) {
    a->desync_tries++;
    a->sent_us = c->now;
    attachment_send_state(c, a->orchestrator, MSG_DESYNC, a, "still out of step");
  }
  if (a->state == ATTACHMENT_ATTACHED) note_use(c, a);
  if (a->state == ATTACHMENT_ATTACHING && c->now >= a->attach_at) send_attach(c, a);
  if (a->state == ATTACHMENT_ATTACHED && c->now - a->sent_us >= DRAFT_IDLE_US)
    send_nodes(c, a, a->session.ids.next);
}

uint64_t attachment_deadline(const attachment *a) {
  if (repeats_desync(a)) return a->sent_us + DRAFT_REPEAT_US;
  if (a->state == ATTACHMENT_ATTACHING) return a->attach_at;
  if (a->state == ATTACHMENT_ATTACHED) return a->sent_us + DRAFT_IDLE_US;
  return MACHINE_NEVER;
}
