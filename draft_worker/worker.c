#include "draft_worker/worker.h"

#include "common/base/least.h"
#include "common/base/log.h"
#include "common/base/program.h"
#include "draft_worker/draft_session.h"
#include "wire/presence.h"
#include <stdlib.h>
#include <string.h>

typedef enum {
  WORK_FREE,
  WORK_CONNECTING, /* its target is not greeted yet */
  WORK_ATTACHING,  /* ATTACH sent */
  WORK_ATTACHED,
  WORK_LOST /* out of step or refused: waits for OPEN */
} work_state;

/* One session. */
typedef struct work {
  work_state state;
  uint64_t id;
  uint32_t epoch;
  peer_id orchestrator, target; /* target: 0 while connecting */
  int32_t link;                 /* index of the connection to its target */
  wire_id ticket, target_incarnation;
  draft_session spec;
  int32_t desync_tries; /* DESYNCs sent since it is lost; 0: not lost by that */
  uint64_t attach_us;   /* ATTACH was sent last */
  uint64_t sent_us;     /* NODES, or DESYNC while it is lost */
  uint64_t resend_us;   /* RESEND */
  uint64_t used_us;     /* it was attached last, or opened */
} work;

/* A connection to a target, shared by its sessions. */
typedef struct link_to_target {
  char endpoint[WIRE_STRING_MAX + 1]; /* "": a free place */
  peer_id peer;                       /* 0 while connecting */
  presence there;
  uint64_t asked_us; /* the connection was asked for; an answer that does not come is asked for again */
} link_to_target;

struct draft {
  draft_options options;
  roster peers;
  presence orchestrator;
  work *works; /* [DRAFT_SESSIONS_MAX] */
  link_to_target links[DRAFT_TARGETS_MAX];
  bool draining;
  draft_setup setup;
  int32_t first; /* session whose C has precedence in the next batch */
};

#define TAG_ORCHESTRATOR 0 /* else: 1 + index of the link */

typedef struct step {
  draft *d;
  uint64_t now;
  actions *out;
} step;

static int32_t session_max(const draft *d) {
  return d->options.session_max ? d->options.session_max : DRAFT_SESSIONS_MAX;
}

int draft_alloc(draft **out, const draft_options *o, err *e) {
  *out = NULL;
  draft *d = calloc(1, sizeof *d);
  if (d) d->works = calloc(DRAFT_SESSIONS_MAX, sizeof *d->works);
  if (!d || !d->works) {
    draft_free(d);
    return err_set(e, ERR_NOMEM, "no memory for the worker's state");
  }
  d->options = *o;
  d->setup = (draft_setup){.drafter_count = o->drafter_count, .colocated = o->colocated};
  memcpy(d->setup.drafters, o->drafters, sizeof o->drafters);
  msg_hello self = {.role = WIRE_ROLE_DRAFT,
                    .incarnation = o->incarnation,
                    .method = wire_text(o->drafters[0].method),
                    .vocabulary_hash = o->vocabulary_hash,
                    .vocabulary_size = o->vocabulary_size,
                    .numerics_id = wire_text(o->numerics_id),
                    .session_max = session_max(d),
                    .context_max = o->context,
                    .node_max = TREE_NODE_MAX,
                    .host = o->host,
                    .device = wire_text(o->device)};
  roster_init(&d->peers, &self);
  *out = d;
  return ERR_OK;
}

static void work_close(draft *d, work *w) {
  draft_session_fini(&w->spec, &d->setup);
  *w = (work){0};
}

void draft_free(draft *d) {
  if (!d) return;
  for (int i = 0; d->works && i < DRAFT_SESSIONS_MAX; i++)
    if (d->works[i].state != WORK_FREE) work_close(d, &d->works[i]);
  free(d->works);
  free(d);
}

void draft_connect(draft *d, const char *endpoint, actions *out) {
  if (!d->orchestrator.endpoint) d->orchestrator.endpoint = endpoint;
  actions_connect(out, TAG_ORCHESTRATOR, wire_text(endpoint));
}

static int32_t work_count(const draft *d) {
  int32_t n = 0;
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) n += d->works[i].state != WORK_FREE;
  return n;
}

bool draft_drained(const draft *d) {
  return d->draining && work_count(d) == 0;
}

static work *work_find(const draft *d, uint64_t id) {
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++)
    if (d->works[i].state != WORK_FREE && d->works[i].id == id) return &d->works[i];
  return NULL;
}

bool draft_digest(const draft *d, uint64_t session, uint32_t epoch, uint64_t *digest, int32_t *length) {
  const work *w = work_find(d, session);
  if (!w || w->state != WORK_ATTACHED || w->epoch != epoch) return false;
  *digest = tree_digest(&w->spec.grown.live);
  *length = w->spec.committed.length;
  return true;
}

/* --- messages out --- */

static msg message_to(step *c, peer_id to, msg_type type, const work *w) {
  return roster_message(&c->d->peers, to, type, w->id, w->epoch);
}

static void send_state(step *c, peer_id to, msg_type type, const work *w, const char *reason) {
  msg m = roster_state(&c->d->peers, to, type, w->id, w->epoch, &w->spec.committed, reason);
  if (type == MSG_ATTACH) m.u.state.ticket = w->ticket;
  actions_send(c->out, to, &m);
}

static void refuse(step *c, peer_id from, const msg *m, int code, const char *text) {
  roster_refuse(&c->d->peers, from, m, code, text, c->out);
}

static void send_attach(step *c, work *w) {
  w->state = WORK_ATTACHING;
  w->attach_us = c->now;
  send_state(c, w->target, MSG_ATTACH, w, NULL);
}

static void ask_resend(step *c, work *w) {
  msg m = message_to(c, w->target, MSG_RESEND, w);
  m.u.resend.from = w->spec.committed.length;
  w->resend_us = c->now;
  actions_send(c->out, w->target, &m);
}

/* Sends live nodes with ids [first_id, next), and the base, even when there are none. */
static void send_nodes(step *c, work *w, uint64_t first_id) {
  uint64_t parents[WIRE_NODES_MAX];
  int32_t tokens[WIRE_NODES_MAX];
  float scores[WIRE_NODES_MAX];
  const draft_session *p = &w->spec;
  msg m = message_to(c, w->target, MSG_NODES, w);
  m.u.nodes = (msg_nodes){.generation = p->ids.generation,
                          .base_length = p->committed.length,
                          .base_hash = prefix_hash(&p->committed),
                          .first_id = first_id,
                          .count = draft_session_nodes(p, first_id, parents, tokens, scores),
                          .parents = parents,
                          .tokens = tokens,
                          .scores = scores,
                          .done = p->done};
  w->sent_us = c->now;
  if (p->done && p->grown.live.live_count > 0) pacing_sent(&w->spec.pacing, c->now);
  actions_send(c->out, w->target, &m);
}

/* --- the tree --- */

static int32_t grow(step *c, work *w, uint64_t *first_id) {
  const roster_peer *target = roster_find(&c->d->peers, w->target);
  return draft_session_grow(&w->spec, &c->d->setup, target ? target->hello.vocabulary_size : 0, first_id);
}

/* Lets a session's tree grow and tells the target, if it knows all of C. Without `news` it is told only what
 * it does not know yet. */
static void work_on(step *c, work *w, bool news) {
  uint64_t first_id;
  bool was_done = w->spec.done;
  int32_t added = grow(c, w, &first_id);
  if (added < 0)
    send_attach(c, w); /* ids are used up: a fresh generation comes with a fresh attach */
  else if (draft_session_keeps(&w->spec, &c->d->setup))
    return;
  else if (news || added > 0 || w->spec.done != was_done)
    send_nodes(c, w, first_id);
}

/* --- the stream of tokens --- */

static void out_of_step(step *c, work *w, const char *reason) {
  send_state(c, w->target, MSG_DETACH, w, reason);
  w->state = WORK_LOST;
  w->desync_tries = 1;
  w->sent_us = c->now;
  send_state(c, w->orchestrator, MSG_DESYNC, w, reason);
}

/* The session goes on without this draft; its orchestrator may ask another one. */
static void detach(step *c, work *w, int code, const char *reason) {
  actions_log(c->out, LOG_WARNING, "session %016llx goes on without this draft: %s",
              (unsigned long long)w->id, reason);
  if (w->state == WORK_ATTACHED) send_state(c, w->target, MSG_DETACH, w, reason);
  w->state = WORK_LOST;
  w->desync_tries = 0;
  roster_error(&c->d->peers, w->orchestrator, w->id, w->epoch, code, c->out, "%s", reason);
}

#define RESEND_EVERY_US 20000

static void on_tokens(step *c, work *w, const msg *m) {
  const msg_tokens *t = &m->u.tokens;
  int32_t appended = 0;
  if (w->state != WORK_ATTACHED) return;
  if (t->base_length + t->token_count >
      w->spec.options.context) { /* of which drafters have taken memory for no more */
    out_of_step(c, w, "the target's tokens go beyond the session's context");
    return;
  }
  switch (prefix_apply(&w->spec.committed, t->base_length, t->tokens, t->token_count, t->hash, &appended)) {
  case PREFIX_BEYOND:
    if (c->now - w->resend_us >= RESEND_EVERY_US) ask_resend(c, w);
    return;
  case PREFIX_CONFLICT:
    out_of_step(c, w, "the target's tokens differ from those held here");
    return;
  case PREFIX_LIMIT: /* a model's may be shorter than the session's: it helps as long as it can */
    detach(c, w, ERR_LIMIT, "the session is longer than this draft's context");
    return;
  case PREFIX_APPLIED:
    break;
  }
  if (appended == 0) return;
  draft_session_commit(&w->spec, &c->d->setup, appended);
  pacing_tokens(&w->spec.pacing, c->now);
  work_on(c, w, true);
}

/* All live nodes are sent again, with what can be added now. */
static void start_generation(step *c, work *w, uint32_t generation) {
  uint64_t first_id;
  draft_session_rename(&w->spec, generation);
  grow(c, w, &first_id);
  send_nodes(c, w, 1);
}

static void on_attached(step *c, work *w, const msg *m) {
  const msg_state *a = &m->u.state;
  if (w->state != WORK_ATTACHING) return;
  const prefix *own = &w->spec.committed;
  if (a->length < own->length || (a->length == own->length && !prefix_has(own, a->length, a->hash))) {
    out_of_step(c, w, "the target holds another prefix than this draft");
    return;
  }
  w->state = WORK_ATTACHED;
  start_generation(c, w, a->generation);
  if (a->length > own->length) ask_resend(c, w);
}

/* --- sessions --- */

static bool link_used(const draft *d, int32_t link) {
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++)
    if (d->works[i].state != WORK_FREE && d->works[i].link == link) return true;
  return false;
}

static void link_close(step *c, link_to_target *l) {
  actions_disconnect(c->out, l->peer);
  roster_drop(&c->d->peers, l->peer);
  *l = (link_to_target){0};
}

/* Gives up a connection that no session needs; -1: there is none. */
static int32_t link_reclaim(step *c) {
  draft *d = c->d;
  for (int32_t i = 0; i < DRAFT_TARGETS_MAX; i++) {
    peer_id peer = d->links[i].peer;
    if (!peer || link_used(d, i)) continue;
    link_close(c, &d->links[i]);
    return i;
  }
  return -1;
}

static void link_ask(step *c, int32_t place) {
  link_to_target *l = &c->d->links[place];
  l->asked_us = c->now;
  actions_connect(c->out, (uint64_t)place + 1, wire_text(l->endpoint));
}

/* The answer comes within the step, or never: an action finds no memory now and then. */
static bool link_unanswered(const link_to_target *l) {
  return l->endpoint[0] && !l->peer;
}

static int32_t link_for(step *c, wire_string endpoint) {
  draft *d = c->d;
  int32_t place = -1;
  for (int32_t i = 0; i < DRAFT_TARGETS_MAX; i++) {
    link_to_target *l = &d->links[i];
    if (l->endpoint[0] && strlen(l->endpoint) == endpoint.size &&
        memcmp(l->endpoint, endpoint.data, endpoint.size) == 0)
      return i;
    if (!l->endpoint[0] && place < 0) place = i;
  }
  if (place < 0) place = link_reclaim(c);
  if (place < 0) return -1;
  memcpy(d->links[place].endpoint, endpoint.data, endpoint.size);
  d->links[place].endpoint[endpoint.size] = 0;
  d->links[place].there = (presence){.endpoint = d->links[place].endpoint};
  link_ask(c, place);
  return place;
}

/* A free one; its index is the session's slot. NULL: there is none. */
static work *free_place(draft *d) {
  for (int32_t i = 0; i < session_max(d); i++) {
    d->works[i].spec.slot = i;
    if (d->works[i].state == WORK_FREE) return &d->works[i];
  }
  return NULL;
}

static int work_take(draft *d, const msg *m, work **out, err *e) {
  work *w = *out = free_place(d);
  if (!w) return err_set(e, ERR_FULL, "this draft has no session place left: start it with more --sessions");
  w->id = m->session;
  if (draft_session_init(&w->spec, &d->setup, d->options.context, m->u.open.hash_seed) == ERR_OK)
    return ERR_OK;
  return err_set(e, ERR_NOMEM, "no memory for another session");
}

static void reach_target(step *c, work *w) {
  roster_peer *t = roster_find(&c->d->peers, w->target);
  w->state = WORK_CONNECTING;
  if (t && t->greeted && wire_id_equal(t->hello.incarnation, w->target_incarnation)) send_attach(c, w);
}

/* What no session could ask of this draft. */
static int check_open(const draft *d, const msg_open *o, err *e) {
  if (d->draining) return err_set(e, ERR_DRAINING, "this draft is shutting down");
  if ((!d->options.shorter && o->options.context > d->options.context) ||
      o->base_length + o->token_count > d->options.context)
    return err_set(e, ERR_LIMIT,
                   "the session's context is longer than this draft's: start it with a larger --ctx");
  if (o->target_endpoint.size == 0)
    return err_set(e, ERR_ARG, "a draft needs the address of its target: name it in OPEN");
  if (o->base_length + o->token_count > o->options.context)
    return err_set(e, ERR_LIMIT, "the session has %d tokens, its context %d: open it with a longer one",
                   o->base_length + o->token_count, o->options.context);
  return ERR_OK;
}

/* The session becomes what OPEN says; a place that was taken for it is given up when it cannot. */
static int work_open(step *c, work *w, peer_id from, const msg *m, err *e) {
  const msg_open *o = &m->u.open;
  int rc = draft_session_open(&w->spec, &c->d->setup, o);
  w->link = rc == ERR_OK ? link_for(c, o->target_endpoint) : -1;
  if (w->link < 0) {
    work_close(c->d, w);
    return rc ? err_set(e, rc, "no memory for another session")
              : err_set(e, ERR_FULL, "this draft has as many targets as it takes");
  }
  w->epoch = m->epoch;
  w->orchestrator = from;
  w->used_us = c->now;
  w->desync_tries = 0;
  w->ticket = o->ticket;
  w->target_incarnation = o->target_incarnation;
  w->target = c->d->links[w->link].peer;
  return ERR_OK;
}

/* Its orchestrator hears why this draft cannot serve it, and may ask another one. */
static void decline(step *c, work *w, int code, const char *why, wire_string what) {
  w->state = WORK_LOST;
  w->desync_tries = 0;
  roster_error(&c->d->peers, w->orchestrator, w->id, w->epoch, code, c->out, "%s %.*s", why, (int)what.size,
               what.data);
}

/* A target that has not answered for a while is not waited for: another draft may reach it. */
static void decline_in_vain(step *c, work *w) {
  const link_to_target *l = &c->d->links[w->link];
  if (w->state == WORK_CONNECTING && l->there.told)
    decline(c, w, ERR_TIMEOUT, "no answer from the target at", wire_text(l->endpoint));
}

static void on_open(step *c, peer_id from, const msg *m) {
  const msg_open *o = &m->u.open;
  work *w = work_find(c->d, m->session);
  if (w && m->epoch < w->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed");
    return;
  }
  bool repeated = w && m->epoch == w->epoch && w->state != WORK_LOST;
  if (repeated && prefix_has(&w->spec.committed, o->base_length + o->token_count, o->hash)) {
    send_state(c, from, MSG_OPENED, w, NULL);
    return;
  }
  err e;
  int rc = check_open(c->d, o, &e);
  const prefix *held = w ? &w->spec.committed : NULL;
  const char *misfit = rc == ERR_OK ? msg_open_misfit(o, held) : NULL;
  if (misfit) {
    msg answer = roster_state(&c->d->peers, from, MSG_DESYNC, m->session, m->epoch, held, misfit);
    actions_send(c->out, from, &answer);
    return;
  }
  if (rc == ERR_OK && !w) rc = work_take(c->d, m, &w, &e);
  if (rc == ERR_OK) rc = work_open(c, w, from, m, &e);
  if (rc != ERR_OK) {
    refuse(c, from, m, rc, e.text);
    return;
  }
  send_state(c, from, MSG_OPENED, w, NULL);
  reach_target(c, w);
  decline_in_vain(c, w);
}

/* Ends a session here; its target is told if it may still count on us. */
static void leave(step *c, work *w, const char *reason) {
  if (w->state == WORK_ATTACHED) send_state(c, w->target, MSG_DETACH, w, reason);
  work_close(c->d, w);
}

static void on_end(step *c, peer_id from, const msg *m) {
  work *w = work_find(c->d, m->session);
  if (w && m->epoch < w->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed");
    return;
  }
  msg answer = roster_message(&c->d->peers, from, MSG_ENDED, m->session, m->epoch);
  answer.u.existed = w != NULL;
  actions_send(c->out, from, &answer);
  if (!w) return;
  if (m->epoch == w->epoch)
    leave(c, w, "the session has ended");
  else /* the target hears of the new epoch too, perhaps later: it must not take this for a draft that gave up
        */
    work_close(c->d, w);
}

/* An answer of the target that something is not as we think. */
static void on_target_error(step *c, work *w, const msg *m) {
  switch (m->u.error.code) {
  case ERR_GONE: /* not open there yet, or we have been detached: try again in a while */
    if (w->state == WORK_ATTACHED || w->state == WORK_ATTACHING) {
      w->state = WORK_ATTACHING;
      w->attach_us = c->now;
    }
    break;
  case ERR_DESYNC:
    if (w->state == WORK_ATTACHED || w->state == WORK_ATTACHING)
      out_of_step(c, w, "the target says that our prefix is another");
    break;
  default:
    if (w->state != WORK_ATTACHED && w->state != WORK_ATTACHING) break;
    roster_log(&c->d->peers, w->target, c->now, LOG_WARNING, c->out,
               "session %016llx: the target refuses our nodes: %s", (unsigned long long)w->id,
               wire_brief_of(m->u.error.text).text);
    decline(c, w, m->u.error.code, "the target refuses this draft:", m->u.error.text);
  }
}

static void on_target_message(step *c, work *w, const msg *m) {
  switch (m->type) {
  case MSG_ATTACHED:
    on_attached(c, w, m);
    break;
  case MSG_TOKENS:
    on_tokens(c, w, m);
    break;
  case MSG_TREE_RESET:
    if (w->state == WORK_ATTACHED && m->u.reset.generation > w->spec.ids.generation)
      start_generation(c, w, m->u.reset.generation);
    break;
  case MSG_DETACH:
    if (w->state == WORK_ATTACHED || w->state == WORK_ATTACHING)
      detach(c, w, ERR_STATE, "its target detached it");
    break;
  case MSG_ERROR:
    on_target_error(c, w, m);
    break;
  default:
    break;
  }
}

static void target_greeted(step *c, const roster_peer *target) {
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    work *w = &c->d->works[i];
    if (w->state == WORK_FREE || w->target != target->id) continue;
    reach_target(c, w); /* stays CONNECTING when another incarnation answers: OPEN will tell */
  }
}

static bool is_target(const draft *d, peer_id id) {
  for (int i = 0; i < DRAFT_TARGETS_MAX; i++)
    if (d->links[i].peer == id) return true;
  return false;
}

/* Whatever a target says that it is: sessions come from who sits at the address that this program was told.
 */
static bool is_orchestrator(const draft *d, const roster_peer *p) {
  return p->hello.role == WIRE_ROLE_ORCHESTRATOR && !is_target(d, p->id);
}

/* Another program answers there now, which knows nothing of the sessions of the one before. */
static void orchestrator_greeted(step *c, const roster_peer *o) {
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    work *w = &c->d->works[i];
    if (w->state != WORK_FREE && w->orchestrator == o->id) leave(c, w, "another orchestrator");
  }
}

/* Our HELLO was refused: by a target, its sessions have to do without us; by the orchestrator, we are of no
 * use. */
static void refused(step *c, peer_id id, const msg *m) {
  bool target = is_target(c->d, id), again = false;
  for (int i = 0; i < DRAFT_TARGETS_MAX; i++) {
    presence *there = &c->d->links[i].there;
    if (there->peer != id) continue;
    again = !there->endpoint;
    there->endpoint = NULL; /* it answers, but not as one would wish */
  }
  if (!again)
    roster_log(&c->d->peers, id, c->now, LOG_ERROR, c->out, "refused by the %s: %s",
               target ? "target" : "orchestrator", wire_brief_of(m->u.error.text).text);
  if (!target) actions_exit(c->out, PROGRAM_EXIT_REFUSED);
  for (int i = 0; target && i < DRAFT_SESSIONS_MAX; i++) {
    work *w = &c->d->works[i];
    if (w->state != WORK_FREE && w->state != WORK_LOST && w->target == id)
      decline(c, w, m->u.error.code, "the target refuses this draft:", m->u.error.text);
  }
}

/* --- who is there, and who is not --- */

static void look_at_link(step *c, int32_t link) {
  link_to_target *l = &c->d->links[link];
  switch (presence_look(&l->there, &c->d->peers, c->now)) {
  case PRESENCE_ABSENT:
  case PRESENCE_SILENT:
    if (l->peer && !link_used(c->d, link) && c->now - l->there.since_us >= PRESENCE_AGAIN_US) {
      link_close(c, l); /* nobody misses it */
      break;
    }
    actions_log(
        c->out, LOG_WARNING,
        "the target at %s %s: trying on; can this host connect to that address, and is it the target's?",
        l->endpoint, l->there.came ? "has fallen silent" : "does not answer");
    break;
  case PRESENCE_BACK:
    actions_log(c->out, LOG_WARNING, "the target at %s answers now", l->endpoint);
    break;
  case PRESENCE_HERE:
  case PRESENCE_NO_NEWS:
    break;
  }
}

static void look_at_peers(step *c) {
  presence_orchestrator(&c->d->orchestrator, &c->d->peers, c->now, c->out);
  for (int32_t i = 0; i < DRAFT_TARGETS_MAX; i++)
    if (c->d->links[i].endpoint[0]) look_at_link(c, i);
}

static void on_message(step *c, peer_id id, const msg *m) {
  roster_peer *from;
  draft *d = c->d;
  switch (roster_receive(&d->peers, id, m, work_count(d), c->now, &from, c->out)) {
  case ROSTER_GREETED:
    look_at_peers(c);
    if (from->hello.role == WIRE_ROLE_TARGET) target_greeted(c, from);
    if (is_orchestrator(d, from)) orchestrator_greeted(c, from);
    return;
  case ROSTER_REFUSED:
    refused(c, id, m);
    return;
  case ROSTER_LEAVES:
  case ROSTER_FORGED:
  case ROSTER_HANDLED:
    return;
  case ROSTER_PASS:
    break;
  }
  if (m->type == MSG_OPEN && is_orchestrator(d, from))
    on_open(c, id, m);
  else if (m->type == MSG_END && is_orchestrator(d, from))
    on_end(c, id, m);
  else {
    work *w = work_find(d, m->session);
    if (w && w->target == id && m->epoch == w->epoch) on_target_message(c, w, m);
  }
}

/* That address is none that can be called. */
static void link_refused(step *c, int32_t link) {
  c->d->links[link] = (link_to_target){0};
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    work *w = &c->d->works[i];
    if (w->state != WORK_CONNECTING || w->link != link) continue;
    w->state = WORK_LOST;
    roster_error(&c->d->peers, w->orchestrator, w->id, w->epoch, ERR_ARG, c->out,
                 "the target's address cannot be called from here: start it with another --advertise");
  }
}

static void on_connected(step *c, uint64_t tag, peer_id id) {
  bool second =
      tag != TAG_ORCHESTRATOR && !link_unanswered(&c->d->links[tag - 1]); /* the first answer was only late */
  if (second && id) actions_disconnect(c->out, id);
  if (second) return;
  bool up = id && roster_connected(&c->d->peers, id, c->now, c->out);
  if (!up && tag != TAG_ORCHESTRATOR) link_refused(c, (int32_t)tag - 1);
  if (up && tag == TAG_ORCHESTRATOR && !c->d->orchestrator.peer) c->d->orchestrator.peer = id;
  if (!up || tag == TAG_ORCHESTRATOR) return;
  link_to_target *l = &c->d->links[tag - 1];
  l->peer = l->there.peer = id;
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) { /* sessions that asked for this connection */
    work *w = &c->d->works[i];
    if (w->state == WORK_CONNECTING && w->link == (int32_t)tag - 1) w->target = id;
  }
}

/* --- batches --- */

static bool is_active(const work *w) {
  return w->state != WORK_FREE && w->state != WORK_LOST;
}

bool draft_next_batch(draft *d, draft_batch *b) {
  draft_session *list[DRAFT_SESSIONS_MAX];
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) list[i] = is_active(&d->works[i]) ? &d->works[i].spec : NULL;
  d->first = (d->first + 1) % DRAFT_SESSIONS_MAX; /* a long prompt holds up nobody twice */
  return draft_session_batch(list, DRAFT_SESSIONS_MAX, &d->setup, d->first, b);
}

static void take_reply(step *c, int32_t index, const draft_reply *r) {
  work *w = &c->d->works[r->slot];
  if (!is_active(w)) return;
  if (r->code == ERR_OK)
    draft_session_take(&w->spec, &c->d->setup, index, r);
  else
    detach(c, w, r->code,
           r->code == ERR_MISMATCH ? "a token of the text is none of the draft model's"
                                   : "the draft's model could not be run");
}

static void on_result(step *c, const draft_results *results) {
  draft *d = c->d;
  draft_reply r;
  for (int32_t i = 0; i < d->setup.drafter_count; i++) {
    const drafter *x = &d->setup.drafters[i];
    uint64_t us = x->kind->batch_done(x->self, results);
    if (us > 0) pacing_forward(&d->setup.costs, (double)us);
    while (x->kind->take(x->self, &r)) take_reply(c, i, &r);
  }
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    work *w = &d->works[i];
    if (w->spec.replied) pacing_replied(&w->spec.pacing);
    if (w->spec.replied && w->state == WORK_ATTACHED) work_on(c, w, false);
    w->spec.replied = false;
  }
}

/* --- time --- */

#define WORK_IDLE_MAX_US 60000000 /* a session of which nothing was heard for so long is given up */

static bool tells_desync(const work *w) {
  return w->state == WORK_LOST && w->desync_tries > 0 && w->desync_tries < DRAFT_DESYNC_TRIES;
}

static void work_tick(step *c, work *w) {
  decline_in_vain(c, w);
  if (tells_desync(w) && c->now - w->sent_us >= DRAFT_REPEAT_US) {
    w->desync_tries++;
    w->sent_us = c->now;
    send_state(c, w->orchestrator, MSG_DESYNC, w, "still out of step");
  }
  if (w->state == WORK_ATTACHED) w->used_us = c->now;
  if (w->state == WORK_ATTACHING && c->now - w->attach_us >= DRAFT_REPEAT_US) send_attach(c, w);
  if (w->state == WORK_ATTACHED && c->now - w->sent_us >= DRAFT_IDLE_US) send_nodes(c, w, w->spec.ids.next);
}

static uint64_t work_deadline(const work *w) {
  if (tells_desync(w)) return w->sent_us + DRAFT_REPEAT_US;
  if (w->state == WORK_ATTACHING) return w->attach_us + DRAFT_REPEAT_US;
  if (w->state == WORK_ATTACHED) return w->sent_us + DRAFT_IDLE_US;
  return MACHINE_NEVER;
}

static uint64_t draft_deadline(const void *self) {
  const draft *d = self;
  uint64_t at = least_u64(roster_deadline(&d->peers), presence_deadline(&d->orchestrator));
  for (int i = 0; i < DRAFT_TARGETS_MAX; i++) at = least_u64(at, presence_deadline(&d->links[i].there));
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    uint64_t w = work_deadline(&d->works[i]);
    if (w < at) at = w;
  }
  for (int i = 0; i < DRAFT_TARGETS_MAX; i++) {
    const link_to_target *l = &d->links[i];
    if (link_unanswered(l) && l->asked_us + DRAFT_REPEAT_US < at) at = l->asked_us + DRAFT_REPEAT_US;
  }
  return at;
}

static void forget_link(step *c, peer_id id) {
  for (int i = 0; i < DRAFT_TARGETS_MAX; i++)
    if (c->d->links[i].peer == id) link_close(c, &c->d->links[i]);
}

/* A target that is silent may come back at the same address; a session on it waits for OPEN. */
static void peer_lost(step *c, const roster_peer *lost) {
  bool used = false;
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++)
    used |= c->d->works[i].state != WORK_FREE && c->d->works[i].target == lost->id;
  if (lost->hello.role != WIRE_ROLE_TARGET || used) return;
  forget_link(c, lost->id);
}

static void orphaned(step *c, work *w) {
  const roster_peer *o = roster_find(&c->d->peers, w->orchestrator);
  bool silent = !o || c->now - o->heard_us > WORK_IDLE_MAX_US;
  bool unused = c->now - w->used_us > WORK_IDLE_MAX_US; /* not attached for so long: END was lost */
  if (w->state != WORK_FREE && (silent || unused)) work_close(c->d, w);
}

static void link_tick(step *c, int32_t place) {
  const link_to_target *l = &c->d->links[place];
  if (link_unanswered(l) && c->now - l->asked_us >= DRAFT_REPEAT_US) link_ask(c, place);
}

static void on_tick(step *c) {
  for (roster_peer *lost; (lost = roster_tick(&c->d->peers, c->now, c->out));) peer_lost(c, lost);
  look_at_peers(c);
  for (int32_t i = 0; i < DRAFT_TARGETS_MAX; i++) link_tick(c, i);
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    orphaned(c, &c->d->works[i]);
    work_tick(c, &c->d->works[i]);
  }
}

static void on_drain(step *c) {
  if (c->d->draining) return;
  c->d->draining = true;
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    work *w = &c->d->works[i];
    if (w->state != WORK_FREE) leave(c, w, "this draft is shutting down");
  }
  roster_bye(&c->d->peers, c->out);
}

static void draft_step(void *self, const event *e, uint64_t now_us, actions *out) {
  step c = {self, now_us, out};
  switch (e->kind) {
  case EVENT_MESSAGE:
    on_message(&c, e->peer, e->message);
    break;
  case EVENT_CONNECTED:
    on_connected(&c, e->tag, e->peer);
    break;
  case EVENT_TICK:
    on_tick(&c);
    break;
  case EVENT_DRAIN:
    on_drain(&c);
    break;
  case EVENT_RESULT:
    on_result(&c, e->result);
    break;
  }
}

machine draft_machine(draft *d) {
  return (machine){d, draft_step, draft_deadline};
}
