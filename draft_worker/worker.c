#include "draft_worker/worker.h"

#include "common/base/log.h"
#include "common/base/program.h"
#include "draft_worker/growth.h"
#include "draft_worker/match.h"
#include "draft_worker/turn.h"
#include "wire/roster.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DRAFT_TREE (DRAFT_AHEAD * WIRE_BUDGET_MAX + 1) /* live nodes of one session */

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
  peer_id orchestrator, target;
  int32_t link; /* index of the connection to its target */
  wire_id ticket, target_incarnation;
  prefix committed;
  int32_t prompt_length;
  msg_options options;
  drafter *guess; /* NULL: it is asked by batches */
  growth grown;
  tree_ids ids;
  bool done;            /* nothing can be added to the tree as C is now */
  int32_t desync_tries; /* DESYNCs sent since it is lost; 0: not lost by that */
  uint64_t attach_us, sent_us, used_us, resend_us;
  /* Where questions go by batches: */
  int32_t slot; /* of the model's cache */
  int32_t told; /* tokens of C that batches have told */
  int32_t job;  /* while a batch is filled: the session's, or NO_JOB */
  bool answered; /* by the results in hand */
  turn turn;     /* where turns are taken */
} work;

/* A connection to a target, shared by its sessions. */
typedef struct link_to_target {
  char endpoint[WIRE_STRING_MAX + 1];
  peer_id peer; /* 0 while connecting */
} link_to_target;

struct draft {
  draft_options options;
  roster peers;
  work *works; /* [DRAFT_SESSIONS_MAX] */
  link_to_target links[DRAFT_TARGETS_MAX];
  bool draining;
  match_table matches;
  turn_costs costs;
  uint64_t serial; /* of the last question */
  int32_t first;   /* whose turn it is to come first in a batch */
};

enum { NO_JOB = -1 };

#define TAG_ORCHESTRATOR 0 /* else: 1 + index of the link */

typedef struct step {
  draft *d;
  uint64_t now;
  actions *out;
} step;

int draft_alloc(draft **out, const draft_options *o, err *e) {
  *out = NULL;
  draft *d = calloc(1, sizeof *d);
  if (d) d->works = calloc(DRAFT_SESSIONS_MAX, sizeof *d->works);
  if (!d || !d->works) {
    draft_free(d);
    return err_set(e, ERR_NOMEM, "no memory for the worker's state");
  }
  d->options = *o;
  msg_hello self = {.role = WIRE_ROLE_DRAFT,
                    .incarnation = o->incarnation,
                    .method = wire_text(o->kind->method),
                    .vocabulary_hash = o->vocabulary_hash,
                    .vocabulary_size = o->vocabulary_size,
                    .numerics_id = wire_text(o->numerics_id),
                    .session_max = o->sequences ? o->sequences : DRAFT_SESSIONS_MAX,
                    .context_max = o->context,
                    .node_max = TREE_NODE_MAX};
  roster_init(&d->peers, &self);
  *out = d;
  return ERR_OK;
}

static void work_close(step *c, work *w) {
  if (w->guess) c->d->options.kind->close(w->guess);
  prefix_fini(&w->committed);
  growth_fini(&w->grown);
  tree_ids_fini(&w->ids);
  *w = (work){0};
}

void draft_free(draft *d) {
  if (!d) return;
  step c = {.d = d};
  for (int i = 0; d->works && i < DRAFT_SESSIONS_MAX; i++)
    if (d->works[i].state != WORK_FREE) work_close(&c, &d->works[i]);
  free(d->works);
  free(d);
}

void draft_connect(draft *d, const char *endpoint, actions *out) {
  (void)d;
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
  *digest = tree_digest(&w->grown.live);
  *length = w->committed.length;
  return true;
}

/* --- messages out --- */

static msg message_to(step *c, peer_id to, msg_type type, const work *w) {
  return roster_message(roster_find(&c->d->peers, to), type, w->id, w->epoch);
}

static void send_state(step *c, peer_id to, msg_type type, const work *w, const char *reason) {
  msg m = message_to(c, to, type, w);
  m.u.state.length = w->committed.length;
  m.u.state.hash = prefix_hash(&w->committed);
  m.u.state.reason = wire_text(reason);
  if (type == MSG_ATTACH) m.u.state.ticket = w->ticket;
  actions_send(c->out, to, &m);
}

static void send_attach(step *c, work *w) {
  w->state = WORK_ATTACHING;
  w->attach_us = c->now;
  send_state(c, w->target, MSG_ATTACH, w, NULL);
}

static void ask_resend(step *c, work *w) {
  msg m = message_to(c, w->target, MSG_RESEND, w);
  m.u.resend.from = w->committed.length;
  w->resend_us = c->now;
  actions_send(c->out, w->target, &m);
}

/* --- growing --- */

static bool by_batches(const draft *d) {
  return !d->options.kind->candidates;
}

/* Nodes to hold: what one verify takes, and in free pace as much again for the next, unless each costs a row of a model;
 * one more, because where all of a chain are right the bonus token takes one of those behind it. */
static int32_t node_goal(const draft *d, const work *w) {
  int32_t goal = w->options.budget;
  if (goal > 0 && !w->options.lockstep) goal = goal * (by_batches(d) ? 1 : DRAFT_AHEAD) + 1;
  return goal < w->grown.live.capacity ? goal : w->grown.live.capacity;
}

/* The target refuses a token that it does not have, and the draft with it. */
static bool in_vocabulary(step *c, const work *w, int32_t token) {
  const roster_peer *t = roster_find(&c->d->peers, w->target);
  int32_t size = t ? t->hello.vocabulary_size : 0;
  return token >= 0 && (size == 0 || token < size);
}

/* As the tree would keep it; a NaN is the least. */
static float in_range(float score) {
  if (!(score >= TREE_SCORE_MIN)) return TREE_SCORE_MIN;
  return score > 0 ? 0 : score;
}

static void ask(step *c, work *w, int32_t place) {
  int32_t path[TREE_DEPTH_MAX] = {0}, depth = growth_path(&w->grown, place, path);
  growth_ask(&w->grown, place, 0);
  asked *a = growth_of(&w->grown, place);
  a->count = c->d->options.kind->candidates(w->guess, path, depth, a->list);
  for (int32_t i = 0; i < a->count; i++) a->list[i].score = in_range(a->list[i].score);
}

/* A place that could be asked about. */
typedef struct question {
  work *w;
  int32_t place;
  float total;
} question;

typedef struct questions { /* the most probable ones, the best first */
  question list[DRAFT_PLACES_MAX];
  int32_t count, room;
} questions;

static void propose(questions *q, work *w, int32_t place) {
  const question x = {w, place, growth_total(&w->grown, place)};
  if (growth_known(&w->grown, place) || x.total < DRAFT_LEAST) return;
  if (place != TREE_ROOT && w->grown.live.nodes[place].depth >= TREE_DEPTH_MAX - 1) return;
  if (q->count == q->room && !(x.total > q->list[q->count - 1].total)) return;
  int32_t i = q->count < q->room ? q->count++ : q->count - 1;
  for (; i > 0 && x.total > q->list[i - 1].total; i--) q->list[i] = q->list[i - 1];
  q->list[i] = x;
}

static void propose_all(const draft *d, questions *q, work *w) {
  const tree *live = &w->grown.live;
  if (w->told < w->committed.length || live->live_count >= node_goal(d, w) || (d->options.turns && w->done)) return;
  propose(q, w, TREE_ROOT);
  for (int32_t i = 0; i < live->capacity; i++)
    if (live->nodes[i].live) propose(q, w, i);
}

static bool takes_turns(const draft *d, const work *w) {
  return d->options.turns && !w->options.lockstep;
}

/* The target waits for the tree, and another forward for it would cost more than it promises. What follows C itself is
 * always asked. */
static bool turn_is_over(step *c, work *w) {
  questions q = {.room = c->d->options.rows};
  double tokens = 1, wanted = 0;
  if (!takes_turns(c->d, w) || !growth_known(&w->grown, TREE_ROOT) || growth_of(&w->grown, TREE_ROOT)->serial) return false;
  propose_all(c->d, &q, w);
  for (int32_t i = 0; i < q.count; i++) wanted += exp((double)q.list[i].total);
  for (int32_t i = 0; i < w->grown.live.capacity; i++)
    if (w->grown.live.nodes[i].live) tokens += exp((double)w->grown.live.nodes[i].total);
  return !turn_goes_on(&w->turn, &c->d->costs, tokens, wanted);
}

static gain next_gain(step *c, work *w, bool over) {
  if (!by_batches(c->d)) return growth_best(&w->grown, 0, TREE_DEPTH_MAX * TREE_SCORE_MIN);
  float hope = w->options.lockstep ? 0 : over ? TREE_DEPTH_MAX * TREE_SCORE_MIN : DRAFT_HOPE;
  return growth_best(&w->grown, hope, DRAFT_LEAST);
}

/* Ids for the nodes that have none, parents first. */
static int32_t name_nodes(work *w) {
  int32_t slots[DRAFT_TREE], parents[DRAFT_TREE], named = 0;
  int32_t count = tree_select(&w->grown.live, DRAFT_TREE, TREE_DEPTH_MAX, slots, parents);
  for (int32_t i = 0; i < count; i++) {
    if (tree_ids_of(&w->ids, &w->grown.live, slots[i])) continue;
    if (tree_ids_give(&w->ids, &w->grown.live, slots[i]) == 0) return -1;
    named++;
  }
  return named;
}

/* Grows the tree, the most probable node first, up to the goal, to an answer that must come first or to the end of its
 * turn; new nodes get their ids in order, or all of a turn at its end. Returns how many got one; -1: ids are used up. */
static int32_t grow(step *c, work *w, uint64_t *first_id) {
  int32_t added = 0, goal = node_goal(c->d, w);
  bool over = false;
  tree *live = &w->grown.live;
  *first_id = w->ids.next;
  w->done = false;
  while (live->live_count < goal) {
    gain best = next_gain(c, w, over);
    if (!best.any || (best.ask && over)) break;
    if (best.ask && by_batches(c->d)) {
      over = turn_is_over(c, w);
      if (!over) return added;
      continue;
    }
    if (best.ask) {
      ask(c, w, best.place);
      continue;
    }
    asked *a = growth_of(&w->grown, best.place);
    draft_candidate k = a->list[a->next++];
    bool fresh = false;
    if (!in_vocabulary(c, w, k.token)) continue;
    int32_t slot = tree_add(live, best.place, k.token, k.score, &fresh);
    if (slot < 0 || !fresh || takes_turns(c->d, w)) continue;
    if (tree_ids_give(&w->ids, live, slot) == 0) return -1;
    added++;
  }
  w->done = true;
  return takes_turns(c->d, w) ? name_nodes(w) : added;
}

/* Sends live nodes with ids [first_id, next), and the base, even when there are none. */
static void send_nodes(step *c, work *w, uint64_t first_id) {
  uint64_t parents[WIRE_NODES_MAX];
  int32_t tokens[WIRE_NODES_MAX];
  float scores[WIRE_NODES_MAX];
  msg m = message_to(c, w->target, MSG_NODES, w);
  msg_nodes *n = &m.u.nodes;
  *n = (msg_nodes){.generation = w->ids.generation,
                   .base_length = w->committed.length,
                   .base_hash = prefix_hash(&w->committed),
                   .first_id = first_id,
                   .parents = parents,
                   .tokens = tokens,
                   .scores = scores};
  for (uint64_t id = first_id; id < w->ids.next; id++) {
    const tree_id *entry = &w->ids.ring[id % TREE_IDS_MAX];
    const tree_node *node = &w->grown.live.nodes[entry->slot];
    assert(entry->state == TREE_ID_LIVE && n->count < WIRE_NODES_MAX);
    parents[n->count] = node->parent == TREE_ROOT ? 0 : tree_ids_of(&w->ids, &w->grown.live, node->parent);
    tokens[n->count] = node->token;
    scores[n->count++] = node->score;
  }
  n->done = w->done;
  w->sent_us = c->now;
  if (w->done && w->grown.live.live_count > 0) turn_sent(&w->turn, c->now);
  actions_send(c->out, w->target, &m);
}

/* Lets a session's tree grow and tells the target, if it knows all of C. Without `news` it is told only what it does not
 * know yet; of a draft that takes turns only a tree that is done, for the first node ends the target's wait. */
static void work_on(step *c, work *w, bool news) {
  uint64_t first_id;
  bool was_done = w->done;
  int32_t added = grow(c, w, &first_id);
  if (added < 0) send_attach(c, w); /* ids are used up: a fresh generation comes with a fresh attach */
  else if (takes_turns(c->d, w) && !w->done) return;
  else if (news || added > 0 || w->done != was_done) send_nodes(c, w, first_id);
}

/* --- the stream of tokens --- */

static void out_of_step(step *c, work *w, const char *reason) {
  msg m = message_to(c, w->target, MSG_DETACH, w);
  m.u.state.reason = wire_text(reason);
  m.u.state.length = w->committed.length;
  actions_send(c->out, w->target, &m);
  w->state = WORK_LOST;
  w->desync_tries = 1;
  w->sent_us = c->now;
  send_state(c, w->orchestrator, MSG_DESYNC, w, reason);
}

/* The session goes on without this draft. */
static void give_up(step *c, work *w, const char *reason) {
  actions_log(c->out, LOG_WARNING, "session %016llx goes on without this draft: %s", (unsigned long long)w->id, reason);
  if (w->state == WORK_ATTACHED) send_state(c, w->target, MSG_DETACH, w, reason);
  w->state = WORK_LOST;
  w->desync_tries = 0;
}

/* C grows by these tokens: what a model has said of the places on their way is compared with them, and of their end it
 * stays true. In lockstep nothing is learnt, so that counts repeat. */
static void keep_answers(step *c, work *w, const int32_t *tokens, int32_t count) {
  int32_t place = TREE_ROOT;
  for (int32_t i = 0; i < count && !w->options.lockstep; i++) {
    const asked *a = growth_of(&w->grown, place);
    if (growth_known(&w->grown, place) && !a->serial)
      match_learn(&c->d->matches, a->list, a->cases, a->count, tokens[i]);
    place = tree_child(&w->grown.live, place, tokens[i]);
    if (place < 0) break;
  }
  growth_keep_root(&w->grown, tokens, count);
}

#define RESEND_EVERY_US 20000

static void on_tokens(step *c, work *w, const msg *m) {
  const msg_tokens *t = &m->u.tokens;
  int32_t before = w->committed.length, appended = 0;
  if (w->state != WORK_ATTACHED) return;
  switch (prefix_apply(&w->committed, t->base_length, t->tokens, t->token_count, t->hash, &appended)) {
  case PREFIX_BEYOND:
    if (c->now - w->resend_us >= RESEND_EVERY_US) ask_resend(c, w);
    return;
  case PREFIX_CONFLICT:
    out_of_step(c, w, "the target's tokens differ from those held here");
    return;
  case PREFIX_LIMIT: /* a model's may be shorter than the session's: it helps as long as it can */
    give_up(c, w, "the session is longer than this draft's context");
    return;
  case PREFIX_APPLIED:
    break;
  }
  if (appended == 0) return;
  const int32_t *tokens = w->committed.tokens + before;
  tree_ids *maps[1] = {&w->ids};
  if (by_batches(c->d)) keep_answers(c, w, tokens, appended);
  else growth_of(&w->grown, TREE_ROOT)->mark = 0; /* it may know more now */
  tree_commit(&w->grown.live, maps, 1, before, tokens, appended);
  tree_ids_trim(&w->ids, &w->grown.live, w->committed.length);
  if (w->guess) c->d->options.kind->advance(w->guess, &w->committed);
  turn_tokens(&w->turn, c->now);
  work_on(c, w, true);
}

/* New names for all live nodes, and all of them sent again, with what can be added now. */
static void start_generation(step *c, work *w, uint32_t generation) {
  uint64_t first_id;
  tree_ids_reset(&w->ids, generation);
  name_nodes(w);
  grow(c, w, &first_id);
  send_nodes(c, w, 1);
}

static void on_attached(step *c, work *w, const msg *m) {
  const msg_state *a = &m->u.state;
  if (w->state != WORK_ATTACHING) return;
  bool conflict = a->length <= w->committed.length && !prefix_has(&w->committed, a->length, a->hash);
  if (conflict || a->length < w->committed.length) {
    out_of_step(c, w, "the target holds another prefix than this draft");
    return;
  }
  w->state = WORK_ATTACHED;
  start_generation(c, w, a->generation);
  if (a->length > w->committed.length) ask_resend(c, w);
}

/* --- sessions --- */

static bool link_used(const draft *d, int32_t link) {
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++)
    if (d->works[i].state != WORK_FREE && d->works[i].link == link) return true;
  return false;
}

/* Gives up a connection that no session needs; -1: there is none. */
static int32_t link_reclaim(step *c) {
  draft *d = c->d;
  for (int32_t i = 0; i < DRAFT_TARGETS_MAX; i++) {
    peer_id peer = d->links[i].peer;
    if (!peer || link_used(d, i)) continue;
    actions_disconnect(c->out, peer);
    roster_drop(&d->peers, peer);
    d->links[i] = (link_to_target){0};
    return i;
  }
  return -1;
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
  actions_connect(c->out, (uint64_t)place + 1, endpoint);
  return place;
}

static void refuse(step *c, peer_id from, const msg *m, int code, const char *text) {
  roster_error(roster_find(&c->d->peers, from), from, m->session, m->epoch, code, c->out, "%s", text);
}

static int work_init(step *c, work *w, const msg *m, int32_t capacity) {
  *w = (work){.id = m->session, .slot = w->slot};
  if (prefix_init(&w->committed, capacity, m->u.open.hash_seed) != ERR_OK) return ERR_NOMEM;
  if (growth_init(&w->grown, DRAFT_TREE) != ERR_OK || tree_ids_init(&w->ids) != ERR_OK) {
    work_close(c, w);
    return ERR_NOMEM;
  }
  return ERR_OK;
}

/* Is the base held here, and do the tokens give the hash that came with them? Nothing is changed for it. */
static bool open_fits(const work *w, const msg_open *o) {
  hash16 h = {{0}};
  if (o->base_length > 0) {
    if (!w || w->committed.seed != o->hash_seed || !prefix_has(&w->committed, o->base_length, o->base_hash))
      return false;
    h = w->committed.hashes[o->base_length];
  }
  for (int32_t i = 0; i < o->token_count; i++) h = hash_next(h, o->hash_seed, o->tokens[i]);
  return hash_equal(h, o->hash);
}

/* C becomes what OPEN says. */
static void adopt(work *w, const msg_open *o) {
  if (w->committed.seed != o->hash_seed) prefix_reset(&w->committed, o->hash_seed);
  prefix_truncate(&w->committed, o->base_length);
  if (w->told > o->base_length) w->told = o->base_length;
  int rc = prefix_append(&w->committed, o->tokens, o->token_count);
  assert(rc == ERR_OK);
  (void)rc;
}

/* A place for one more session, with a cache of the model's; NULL: there is none. */
static work *free_place(draft *d) {
  uint64_t taken = 0;
  int32_t caches = d->options.sequences ? d->options.sequences : DRAFT_SESSIONS_MAX, slot = 0;
  work *place = NULL;
  for (int i = DRAFT_SESSIONS_MAX - 1; i >= 0; i--) {
    work *w = &d->works[i];
    if (w->state == WORK_FREE) place = w;
    else taken |= UINT64_C(1) << w->slot;
  }
  while (slot < caches && taken >> slot & 1) slot++;
  if (!place || slot == caches) return NULL;
  place->slot = slot;
  return place;
}

_Static_assert(DRAFT_SESSIONS_MAX <= 64, "one bit a cache");

static void reach_target(step *c, work *w) {
  roster_peer *t = roster_find(&c->d->peers, w->target);
  w->state = WORK_CONNECTING;
  if (t && t->greeted && wire_id_equal(t->hello.incarnation, w->target_incarnation)) send_attach(c, w);
}

static bool open_drafter(draft *d, work *w) {
  const drafter_kind *kind = d->options.kind;
  if (w->guess) kind->close(w->guess);
  w->guess = kind->open(d->options.shared, &w->committed, w->prompt_length, &w->options);
  return w->guess != NULL;
}

static void on_open(step *c, peer_id from, const msg *m) {
  const msg_open *o = &m->u.open;
  draft *d = c->d;
  work *w = work_find(d, m->session);
  if (w && m->epoch < w->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed");
    return;
  }
  bool repeated = w && m->epoch == w->epoch && w->state != WORK_LOST;
  if (repeated && prefix_has(&w->committed, o->base_length + o->token_count, o->hash)) {
    send_state(c, from, MSG_OPENED, w, NULL);
    return;
  }
  if (d->draining) {
    refuse(c, from, m, ERR_DRAINING, "this draft is shutting down");
    return;
  }
  if ((!by_batches(d) && o->options.context > d->options.context) || o->base_length + o->token_count > d->options.context) {
    refuse(c, from, m, ERR_LIMIT,
           "the session's context is longer than this draft's: start it with a larger --ctx");
    return;
  }
  if (o->target_endpoint.size == 0) {
    refuse(c, from, m, ERR_ARG, "a draft needs the address of its target: name it in OPEN");
    return;
  }
  if (!open_fits(w, o)) {
    msg answer = roster_message(roster_find(&d->peers, from), MSG_DESYNC, m->session, m->epoch);
    answer.u.state.length = w ? w->committed.length : 0;
    if (w) answer.u.state.hash = prefix_hash(&w->committed);
    answer.u.state.reason = wire_text("the base is not held here");
    actions_send(c->out, from, &answer);
    return;
  }
  if (!w) w = free_place(d);
  if (!w) {
    refuse(c, from, m, ERR_FULL, "this draft has no session place left: start it with more --sessions");
    return;
  }
  if (w->state == WORK_FREE && work_init(c, w, m, d->options.context) != ERR_OK) {
    refuse(c, from, m, ERR_NOMEM, "no memory for another session");
    return;
  }
  w->epoch = m->epoch;
  w->orchestrator = from;
  w->used_us = c->now;
  growth_reset(&w->grown);
  w->desync_tries = 0;
  tree_ids_reset(&w->ids, 0);
  adopt(w, o);
  w->prompt_length = o->prompt_length;
  w->options = o->options;
  w->options.stops = NULL; /* not ours to keep, nor needed */
  w->options.stop_count = 0;
  w->ticket = o->ticket;
  w->target_incarnation = o->target_incarnation;
  bool ready = by_batches(d) || open_drafter(d, w);
  int32_t link = ready ? link_for(c, o->target_endpoint) : -1;
  if (link < 0) {
    refuse(c, from, m, ready ? ERR_FULL : ERR_NOMEM,
           ready ? "this draft has as many targets as it takes" : "no memory for another session");
    work_close(c, w);
    return;
  }
  w->link = link;
  w->target = d->links[link].peer;
  send_state(c, from, MSG_OPENED, w, NULL);
  reach_target(c, w);
}

/* Ends a session here; its target is told if it may still count on us. */
static void leave(step *c, work *w, const char *reason) {
  if (w->state == WORK_ATTACHED) {
    msg bye = message_to(c, w->target, MSG_DETACH, w);
    bye.u.state.length = w->committed.length;
    bye.u.state.reason = wire_text(reason);
    actions_send(c->out, w->target, &bye);
  }
  work_close(c, w);
}

static void on_end(step *c, peer_id from, const msg *m) {
  work *w = work_find(c->d, m->session);
  if (w && m->epoch < w->epoch) {
    refuse(c, from, m, ERR_STALE, "this epoch has passed");
    return;
  }
  msg answer = roster_message(roster_find(&c->d->peers, from), MSG_ENDED, m->session, m->epoch);
  answer.u.existed = w != NULL;
  actions_send(c->out, from, &answer);
  if (!w) return;
  if (m->epoch == w->epoch)
    leave(c, w, "the session has ended");
  else /* the target hears of the new epoch too, perhaps later: it must not take this for a draft that gave up */
    work_close(c, w);
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
    if (w->state == WORK_ATTACHED || w->state == WORK_ATTACHING) {
      out_of_step(c, w, "the target says that our prefix is another");
    }
    break;
  default:
    actions_log(c->out, LOG_WARNING, "session %016llx: the target refuses our nodes: %.*s",
                (unsigned long long)w->id, (int)m->u.error.text.size, m->u.error.text.data);
    w->state = WORK_LOST;
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
    if (w->state == WORK_ATTACHED && m->u.reset.generation > w->ids.generation) {
      start_generation(c, w, m->u.reset.generation);
    }
    break;
  case MSG_DETACH:
    w->state = WORK_LOST;
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
  bool target = is_target(c->d, id);
  actions_log(c->out, LOG_ERROR, "refused by the %s: %.*s", target ? "target" : "orchestrator",
              (int)m->u.error.text.size, m->u.error.text.data);
  if (!target) actions_exit(c->out, PROGRAM_EXIT_REFUSED);
  for (int i = 0; target && i < DRAFT_SESSIONS_MAX; i++)
    if (c->d->works[i].state != WORK_FREE && c->d->works[i].target == id) c->d->works[i].state = WORK_LOST;
}

static void on_message(step *c, peer_id id, const msg *m) {
  roster_peer *from;
  draft *d = c->d;
  switch (roster_receive(&d->peers, id, m, work_count(d), c->now, &from, c->out)) {
  case ROSTER_GREETED:
    if (from->hello.role == WIRE_ROLE_TARGET) target_greeted(c, from);
    if (is_orchestrator(d, from)) orchestrator_greeted(c, from);
    return;
  case ROSTER_REFUSED:
    refused(c, id, m);
    return;
  case ROSTER_LEAVES:
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
    roster_error(roster_find(&c->d->peers, w->orchestrator), w->orchestrator, w->id, w->epoch, ERR_ARG,
                 c->out,
                 "the target's address cannot be called from here: start it with another --advertise");
  }
}

static void on_connected(step *c, uint64_t tag, peer_id id) {
  bool up = id && roster_connected(&c->d->peers, id, c->now, c->out);
  if (!up && tag != TAG_ORCHESTRATOR) link_refused(c, (int32_t)tag - 1);
  if (!up || tag == TAG_ORCHESTRATOR) return;
  link_to_target *l = &c->d->links[tag - 1];
  l->peer = id;
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) { /* sessions that asked for this connection */
    work *w = &c->d->works[i];
    if (w->state == WORK_CONNECTING && w->link == (int32_t)tag - 1) w->target = id;
  }
}

/* --- questions by batches --- */

static bool is_active(const work *w) {
  return w->state != WORK_FREE && w->state != WORK_LOST;
}

/* The session's job in this batch; NULL: there is no room for one more. */
static draft_job *job_of(draft_batch *b, work *w) {
  if (w->job == NO_JOB && b->job_count == DRAFT_JOBS_MAX) return NULL;
  if (w->job != NO_JOB) return &b->jobs[w->job];
  const msg_options *o = &w->options;
  draft_job *j = &b->jobs[w->job = b->job_count++];
  *j = (draft_job){
      .slot = w->slot,
      .base = w->told,
      .first = b->token_count,
      .first_place = b->place_count,
      .whole = w->told == w->committed.length,
      .sampling = {o->temperature, o->top_k, o->top_p, o->min_p, o->repeat_penalty, o->seed, o->choice}};
  return j;
}

/* As much of C as has not been told and has room. */
static void tell(draft_batch *b, work *w) {
  int32_t left = w->committed.length - w->told, room = DRAFT_CHUNK - b->token_count;
  draft_job *j = left > 0 && room > 0 ? job_of(b, w) : NULL;
  if (!j) return;
  j->count = left < room ? left : room;
  memcpy(b->tokens + j->first, w->committed.tokens + w->told, (size_t)j->count * sizeof *b->tokens);
  b->token_count += j->count;
  w->told += j->count;
  j->whole = w->told == w->committed.length;
}

/* Puts the questions about one session into its job. */
static void put_questions(draft *d, draft_batch *b, const questions *q, work *w) {
  for (int32_t i = 0; i < q->count; i++) {
    draft_job *j = q->list[i].w == w ? job_of(b, w) : NULL;
    if (!j) continue;
    if (j->place_count == 0) j->first_place = b->place_count;
    j->place_count++;
    draft_place *p = &b->places[b->place_count++];
    p->serial = ++d->serial;
    p->depth = growth_path(&w->grown, q->list[i].place, p->path);
    growth_ask(&w->grown, q->list[i].place, p->serial);
  }
}

bool draft_next_batch(draft *d, draft_batch *b) {
  questions q = {.room = d->options.rows};
  b->job_count = b->place_count = b->token_count = 0;
  if (!by_batches(d)) return false;
  d->first = (d->first + 1) % DRAFT_SESSIONS_MAX; /* a long prompt holds up nobody twice */
  for (int32_t i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    work *w = &d->works[(d->first + i) % DRAFT_SESSIONS_MAX];
    w->job = NO_JOB;
    if (is_active(w) && node_goal(d, w) > 0) tell(b, w);
  }
  for (int32_t i = 0; i < DRAFT_SESSIONS_MAX; i++)
    if (is_active(&d->works[i])) propose_all(d, &q, &d->works[i]);
  for (int32_t i = 0; i < DRAFT_SESSIONS_MAX && q.count > 0; i++)
    if (is_active(&d->works[i])) put_questions(d, b, &q, &d->works[i]);
  return b->job_count > 0;
}

static work *work_at(const draft *d, int32_t slot) {
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++)
    if (is_active(&d->works[i]) && d->works[i].slot == slot) return &d->works[i];
  return NULL;
}

static void take_answer(step *c, const draft_answer *answer) {
  work *w = work_at(c->d, answer->slot);
  int32_t place;
  if (!w || !growth_awaits(&w->grown, answer->serial, &place)) return; /* what was asked about is gone */
  asked *a = growth_of(&w->grown, place);
  a->serial = 0;
  a->count = answer->count;
  match_cases(answer, a->cases);
  for (int32_t i = 0; i < a->count; i++)
    a->list[i] = (draft_candidate){answer->list[i].token,
                                   in_range(match_score(w->options.lockstep ? NULL : &c->d->matches, a->cases[i]))};
  if (a->count > 0) turn_answer(&c->d->costs, exp((double)a->list[0].score));
  w->answered = true;
}

static void take_failure(step *c, const draft_failure *f) {
  work *w = work_at(c->d, f->slot);
  if (!w) return;
  give_up(c, w,
          f->code == ERR_MISMATCH ? "a token of the text is none of the draft model's"
                                  : "the draft's model could not be run");
}

static void on_result(step *c, const draft_results *r) {
  if (r->us > 0) turn_forward(&c->d->costs, (double)r->us);
  for (int32_t i = 0; i < r->failure_count; i++) take_failure(c, &r->failures[i]);
  for (int32_t i = 0; i < r->answer_count; i++) take_answer(c, &r->answers[i]);
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    work *w = &c->d->works[i];
    if (w->answered) turn_answered(&w->turn);
    if (w->answered && w->state == WORK_ATTACHED) work_on(c, w, false);
    w->answered = false;
  }
}

/* --- time --- */

#define WORK_IDLE_MAX_US 60000000 /* a session of which nothing was heard for so long is given up */

static bool tells_desync(const work *w) {
  return w->state == WORK_LOST && w->desync_tries > 0 && w->desync_tries < DRAFT_DESYNC_TRIES;
}

static void work_tick(step *c, work *w) {
  if (tells_desync(w) && c->now - w->sent_us >= DRAFT_REPEAT_US) {
    w->desync_tries++;
    w->sent_us = c->now;
    send_state(c, w->orchestrator, MSG_DESYNC, w, "still out of step");
  }
  if (w->state == WORK_ATTACHED) w->used_us = c->now;
  if (w->state == WORK_ATTACHING && c->now - w->attach_us >= DRAFT_REPEAT_US) send_attach(c, w);
  if (w->state == WORK_ATTACHED && c->now - w->sent_us >= DRAFT_IDLE_US) send_nodes(c, w, w->ids.next);
}

static uint64_t work_deadline(const work *w) {
  if (tells_desync(w)) return w->sent_us + DRAFT_REPEAT_US;
  if (w->state == WORK_ATTACHING) return w->attach_us + DRAFT_REPEAT_US;
  if (w->state == WORK_ATTACHED) return w->sent_us + DRAFT_IDLE_US;
  return MACHINE_NEVER;
}

static uint64_t draft_deadline(const void *self) {
  const draft *d = self;
  uint64_t at = roster_deadline(&d->peers);
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++) {
    uint64_t w = work_deadline(&d->works[i]);
    if (w < at) at = w;
  }
  return at;
}

static void forget_link(draft *d, peer_id id) {
  for (int i = 0; i < DRAFT_TARGETS_MAX; i++)
    if (d->links[i].peer == id) d->links[i] = (link_to_target){0};
}

/* A target that is silent may come back at the same address; a session on it waits for OPEN. */
static void peer_lost(step *c, const roster_peer *lost) {
  bool used = false;
  for (int i = 0; i < DRAFT_SESSIONS_MAX; i++)
    used |= c->d->works[i].state != WORK_FREE && c->d->works[i].target == lost->id;
  if (lost->hello.role != WIRE_ROLE_TARGET || used) return;
  actions_disconnect(c->out, lost->id);
  forget_link(c->d, lost->id);
  roster_drop(&c->d->peers, lost->id);
}

static void orphaned(step *c, work *w) {
  const roster_peer *o = roster_find(&c->d->peers, w->orchestrator);
  bool silent = !o || c->now - o->heard_us > WORK_IDLE_MAX_US;
  bool unused = c->now - w->used_us > WORK_IDLE_MAX_US; /* not attached for so long: END was lost */
  if (w->state != WORK_FREE && (silent || unused)) work_close(c, w);
}

static void on_tick(step *c) {
  for (roster_peer *lost; (lost = roster_tick(&c->d->peers, c->now, c->out));) peer_lost(c, lost);
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
