#include "draft_worker/draft_session.h"

#include "common/base/min.h"
#include <assert.h>
#include <math.h>

#define NODES_MAX       (DRAFTER_AHEAD_MAX * WIRE_BUDGET_MAX + 1) /* live ones */
#define NO_HOPE         (TREE_DEPTH_MAX * TREE_SCORE_MIN)
#define LOCKSTEP_LEVELS 6 /* of a drafter that computes */

int draft_session_init(draft_session *p, const draft_setup *m, int32_t capacity, uint64_t hash_seed) {
  *p = (draft_session){.slot = p->slot, .committed = p->committed};
  bool room = (p->committed.tokens || prefix_init(&p->committed, capacity, hash_seed) == ERR_OK) &&
              expansion_init(&p->expansion, NODES_MAX, m->drafter_count) == ERR_OK &&
              tree_ids_init(&p->ids) == ERR_OK;
  if (!room) draft_session_fini(p, m);
  return room ? ERR_OK : ERR_NOMEM;
}

/* Those that compute on an engine keep their rows of C when a session is over. */
static bool keeps_rows(const draft_setup *m) {
  for (int32_t i = 0; i < m->drafter_count; i++)
    if (m->drafters[i].kind->batch_begin) return true;
  return false;
}

void draft_session_end(draft_session *p, const draft_setup *m) {
  for (int32_t i = 0; i < m->drafter_count; i++) m->drafters[i].kind->close(m->drafters[i].self, p->slot);
  expansion_fini(&p->expansion);
  tree_ids_fini(&p->ids);
  if (!keeps_rows(m)) prefix_fini(&p->committed);
  *p = (draft_session){.slot = p->slot, .committed = p->committed};
}

void draft_session_fini(draft_session *p, const draft_setup *m) {
  draft_session_end(p, m);
  prefix_fini(&p->committed);
}

static int32_t common(const prefix *c, const int32_t *tokens, int32_t count) {
  int32_t same = 0;
  while (same < c->length && same < count && c->tokens[same] == tokens[same]) same++;
  return same;
}

int32_t draft_session_reusable(const draft_session *p, const int32_t *tokens, int32_t count) {
  int32_t same = common(&p->committed, tokens, count), least = p->committed.length;
  if (count < least) least = count;
  return 2 * same >= least ? same : 0;
}

/* --- OPEN --- */

/* Returns how many of the first tokens were the same before. */
static int32_t adopt_prefix(draft_session *p, const msg_open *o) {
  prefix *c = &p->committed;
  const prefix held = {.tokens = c->tokens + o->base_length, .length = c->length - o->base_length};
  int32_t same = common(&held, o->tokens, o->token_count);
  prefix_truncate(c, o->base_length + same);
  if (c->seed != o->hash_seed) prefix_reseed(c, o->hash_seed);
  int rc = prefix_append(c, o->tokens + same, o->token_count - same);
  assert(rc == ERR_OK);
  (void)rc;
  return o->base_length + same;
}

/* Each drafter is given as much of C as it takes now. */
static void advance(draft_session *p, const draft_setup *m, int32_t by) {
  const drafter *d = &m->drafters[by];
  p->held[by] = d->kind->advance(d->self, p->slot, &p->committed);
}

int draft_session_open(draft_session *p, const draft_setup *m, const msg_open *o) {
  expansion_reset(&p->expansion);
  tree_ids_reset(&p->ids, 0);
  int32_t kept = adopt_prefix(p, o);
  p->called = false;
  p->prompt_length = o->prompt_length;
  p->options = o->options;
  p->options.stops = p->options.bias_tokens = NULL; /* not ours to keep, nor needed */
  p->options.bias_values = NULL;
  p->options.stop_count = p->options.bias_count = 0;
  const drafter_session s = {&p->committed, kept, o->prompt_length, &o->options};
  for (int32_t i = 0; i < m->drafter_count; i++) {
    int rc = m->drafters[i].kind->open(m->drafters[i].self, p->slot, &s);
    if (rc != ERR_OK) return rc;
    advance(p, m, i);
  }
  return ERR_OK;
}

/* --- queries --- */

/* Nothing is computed on the target's processors before the target calls for nodes by what it sends. */
static bool takes_turns(const draft_session *p, const draft_setup *m) {
  return m->colocated && !p->options.lockstep;
}

static bool may_compute(const draft_session *p, const draft_setup *m) {
  return draft_session_goal(p, m) > 0 && (p->called || !takes_turns(p, m));
}

/* A target that sends features wants to speculate, and sends them while it computes the prompt: what is made
 * of them then is not waited for later. */
static bool reads_prompt(const draft_session *p, const draft_setup *m, int32_t by) {
  return by == m->reader && draft_session_goal(p, m) > 0;
}

/* Nothing of the tree is of use to the target before it is whole. */
static bool grows_unseen(const draft_session *p, const draft_setup *m) {
  return takes_turns(p, m) || p->options.lockstep;
}

bool draft_session_keeps(const draft_session *p, const draft_setup *m) {
  return grows_unseen(p, m) && !p->done;
}

float draft_session_score(float score) {
  if (!(score >= TREE_SCORE_MIN)) return TREE_SCORE_MIN;
  return score > 0 ? 0 : score;
}

/* Prompt lookup alone is right as often as it says. Where a model has replied too, it is right less often on
 * tokens that the model does not propose, and a node of both is likelier than either says. */
static void join(draft_session *p, const draft_setup *m, int32_t by, expansion_entry *e) {
  int32_t node = expansion_node(&p->expansion, by, e);
  bool is_model = m->drafters[by].kind->batch_begin;
  for (int32_t i = 0; i < m->drafter_count; i++) {
    if ((m->drafters[i].kind->batch_begin != NULL) == is_model) continue;
    if (!expansion_replied(&p->expansion, i, node)) continue;
    expansion_entry *other = expansion_entry_of(&p->expansion, i, node);
    expansion_join(is_model ? e : other, is_model ? other : e, is_model ? i : by);
  }
}

void draft_session_take(draft_session *p, draft_setup *m, int32_t by, const draft_reply *r) {
  bool in_tree;
  expansion_entry *e = expansion_outstanding(&p->expansion, by, r->handle, &in_tree);
  if (!e) return;
  e->handle = 0;
  e->count = m->candidates && m->candidates < r->count ? m->candidates : r->count;
  for (int32_t i = 0; i < e->count; i++) {
    e->list[i] = r->list[i];
    e->list[i].score = draft_session_score(r->list[i].score);
  }
  if (in_tree) join(p, m, by, e);
  bool costs = m->colocated && m->drafters[by].kind->batch_begin; /* others reply for nothing */
  if (costs && e->count > 0) pacing_reply(&m->costs, exp((double)e->list[0].score));
  p->replied = true;
}

/* c: a candidate of the spot; NULL: the spot itself, a node. False: the drafter takes no more. */
static bool submit(draft_session *p, draft_setup *m, int32_t by, int32_t spot, const draft_candidate *c) {
  const drafter *d = &m->drafters[by];
  draft_query q = {.slot = p->slot};
  q.depth = expansion_path(&p->expansion, spot, q.path);
  if (c) q.path[q.depth++] = c->token;
  q.handle = c ? expansion_query_ahead(&p->expansion, by, spot, c, m->query_count + 1)
               : expansion_query(&p->expansion, by, spot, m->query_count + 1);
  if (q.handle == 0) return false;
  bool taken = d->kind->submit(d->self, &q);
  if (!taken) expansion_unquery(&p->expansion, by, q.handle);
  m->query_count += taken;
  return taken;
}

/* Queries a node now. False: its reply comes later. */
static bool query(draft_session *p, draft_setup *m, int32_t by, int32_t node) {
  const drafter *d = &m->drafters[by];
  draft_reply r;
  if (expansion_queried(&p->expansion, by, node) || !submit(p, m, by, node, NULL)) return false;
  while (d->kind->take(d->self, &r)) draft_session_take(p, m, by, &r);
  p->replied = false;
  return expansion_replied(&p->expansion, by, node);
}

/* A level of a tree takes a forward, and in lockstep the target waits for all of them. So a tree is not
 * deeper there; of a chain every token is a level. */
static int32_t reach_of(const draft_session *p, const draft_setup *m, const drafter_kind *kind) {
  int32_t reach = drafter_reach(kind);
  bool limited = p->options.lockstep && kind->batch_begin && m->candidates != 1;
  return limited && (reach == 0 || reach > LOCKSTEP_LEVELS) ? LOCKSTEP_LEVELS : reach;
}

static expansion_limits limits_of(const draft_session *p, const draft_setup *m, int32_t by) {
  const drafter_kind *kind = m->drafters[by].kind;
  return (expansion_limits){.hope = p->options.lockstep ? 0 : kind->hope,
                            .least = kind->least,
                            .reach = reach_of(p, m, kind),
                            .absent = p->held[by] == DRAFTER_ABSENT};
}

/* ahead: not of nodes, but of candidates. */
static void add_frontier(draft_session *p, const draft_setup *m, int32_t by, bool ahead,
                         expansion_frontier *f) {
  bool full = p->expansion.live.live_count >= draft_session_goal(p, m);
  if (p->held[by] < p->committed.length || full || (m->colocated && p->done)) return;
  const expansion_limits limits = limits_of(p, m, by);
  (ahead ? expansion_frontier_add_ahead : expansion_frontier_add)(f, &p->expansion, by, &limits);
}

static void submit_frontier(draft_session *p, draft_setup *m, int32_t by, const expansion_frontier_node *n) {
  submit(p, m, by, n->spot, n->candidate.token < 0 ? NULL : &n->candidate);
}

static void fill_batch(draft_session *const *list, int32_t count, draft_setup *m, int32_t first, int32_t by) {
  expansion_frontier f = {.room = m->drafters[by].queries_max};
  for (int32_t i = 0; i < count; i++) {
    draft_session *p = list[(first + i) % count];
    if (may_compute(p, m) || reads_prompt(p, m, by)) advance(p, m, by);
  }
  for (int32_t i = 0; i < 2 * count; i++) { /* nodes of all sessions, then candidates */
    draft_session *p = list[i % count];
    if (may_compute(p, m)) add_frontier(p, m, by, i >= count, &f);
  }
  for (int32_t i = 0; i < count; i++) /* a session's queries one after the other */
    for (int32_t k = 0; k < f.count; k++)
      if (f.list[k].of == &list[i]->expansion) submit_frontier(list[i], m, by, &f.list[k]);
}

bool draft_session_batch(draft_session *const *list, int32_t count, draft_setup *m, int32_t first,
                         struct draft_batch *b) {
  for (int32_t i = 0; i < m->drafter_count; i++) {
    const drafter *d = &m->drafters[i];
    if (!d->kind->batch_begin) continue;
    d->kind->batch_begin(d->self, b);
    fill_batch(list, count, m, first, i);
    if (d->kind->batch_end(d->self)) return true;
  }
  return false;
}

/* --- growing --- */

int32_t draft_session_goal(const draft_session *p, const draft_setup *m) {
  int32_t goal = p->options.budget, ahead = DRAFTER_AHEAD_MAX;
  for (int32_t i = 0; i < m->drafter_count; i++)
    if (p->held[i] != DRAFTER_ABSENT) ahead = min_i32(ahead, m->drafters[i].kind->budgets_ahead);
  if (goal > 0 && !p->options.lockstep) goal = goal * ahead + 1;
  return goal < p->expansion.live.capacity ? goal : p->expansion.live.capacity;
}

/* The target waits for the tree, and another forward for it would cost more than it promises. What follows C
 * itself is always queried. */
static bool is_grown(draft_session *p, const draft_setup *m, int32_t by) {
  const tree *live = &p->expansion.live;
  expansion_frontier f = {.room = m->drafters[by].queries_max};
  double tokens = 1, more = 0, best = pacing_best(&m->costs);
  if (!takes_turns(p, m) || !expansion_replied(&p->expansion, by, TREE_ROOT)) return false;
  add_frontier(p, m, by, false, &f);
  add_frontier(p, m, by, true, &f);
  for (int32_t i = 0; i < f.count; i++) more += pacing_worth(exp((double)f.list[i].total) * best);
  for (int32_t i = 0; i < live->capacity; i++)
    if (live->nodes[i].live) tokens += pacing_worth(exp((double)live->nodes[i].total));
  return !pacing_goes_on(&p->pacing, &m->costs, tokens, more);
}

/* grown: no query will be made before C grows, so that nothing is hoped of one. */
static expansion_step next_step(draft_session *p, const draft_setup *m, bool grown) {
  expansion_limits limits[DRAFTERS_MAX];
  for (int32_t i = 0; i < m->drafter_count; i++) {
    limits[i] = limits_of(p, m, i);
    if (grown && !p->options.lockstep) limits[i].hope = NO_HOPE;
  }
  return expansion_best(&p->expansion, limits);
}

/* Ids for the nodes that have none, parents first. Returns how many; -1: ids are used up. */
static int32_t name_nodes(draft_session *p) {
  int32_t slots[NODES_MAX], parents[NODES_MAX], named = 0;
  int32_t count = tree_select(&p->expansion.live, NODES_MAX, TREE_DEPTH_MAX, slots, parents);
  for (int32_t i = 0; i < count; i++) {
    if (tree_ids_of(&p->ids, &p->expansion.live, slots[i])) continue;
    if (tree_ids_give(&p->ids, &p->expansion.live, slots[i]) == 0) return -1;
    named++;
  }
  return named;
}

/* Adds the next candidate of a reply. 1: it is new in the tree, with an id if `name`; 0: it is not; -1: ids
 * are used up. */
static int32_t add_candidate(draft_session *p, const expansion_step *s, int32_t vocabulary, bool name) {
  int32_t slot = expansion_add(&p->expansion, s, vocabulary);
  if (slot < 0) return 0;
  return !name || tree_ids_give(&p->ids, &p->expansion.live, slot) ? 1 : -1;
}

int32_t draft_session_grow(draft_session *p, draft_setup *m, int32_t vocabulary, uint64_t *first_id) {
  int32_t added = 0, goal = draft_session_goal(p, m);
  bool grown = false, keeps = grows_unseen(p, m);
  *first_id = p->ids.next;
  p->done = false;
  for (int32_t i = 0; i < m->drafter_count; i++) advance(p, m, i); /* one may be there now that was absent */
  while (p->expansion.live.live_count < goal) {
    expansion_step s = next_step(p, m, grown);
    if (!s.any || (s.query && grown)) break;
    if (s.query) {
      if (query(p, m, s.by, s.node)) continue;
      grown = is_grown(p, m, s.by);
      if (!grown) return keeps ? 0 : added;
      continue;
    }
    int32_t more = add_candidate(p, &s, vocabulary, !keeps);
    if (more < 0) return -1;
    added += more;
  }
  p->done = true;
  return keeps ? name_nodes(p) : added;
}

/* --- C grows --- */

/* The drafter sees what was chosen among its candidates on the way of these tokens. */
static void observe(draft_session *p, const draft_setup *m, int32_t by, const int32_t *tokens,
                    int32_t count) {
  const drafter *d = &m->drafters[by];
  int32_t node = TREE_ROOT;
  for (int32_t i = 0; i < count; i++) {
    const expansion_entry *e = expansion_entry_of(&p->expansion, by, node);
    if (expansion_replied(&p->expansion, by, node)) d->kind->observe(d->self, e->list, e->count, tokens[i]);
    node = tree_child(&p->expansion.live, node, tokens[i]);
    if (node < 0) break;
  }
}

void draft_session_commit(draft_session *p, const draft_setup *m, int32_t count) {
  int32_t before = p->committed.length - count;
  const int32_t *tokens = p->committed.tokens + before;
  tree_ids *maps[1] = {&p->ids};
  p->called = true;
  for (int32_t i = 0; i < m->drafter_count; i++) {
    observe(p, m, i, tokens, count);
    expansion_reroot(&p->expansion, i, m->drafters[i].kind->replies, tokens, count);
  }
  tree_commit(&p->expansion.live, maps, 1, before, tokens, count);
  tree_ids_trim(&p->ids, &p->expansion.live, p->committed.length);
  for (int32_t i = 0; i < m->drafter_count; i++) advance(p, m, i);
}

/* --- on the wire --- */

void draft_session_rename(draft_session *p, uint32_t generation) {
  tree_ids_reset(&p->ids, generation);
  name_nodes(p);
}

int32_t draft_session_nodes(const draft_session *p, uint64_t first_id, uint64_t *parents, int32_t *tokens,
                            float *scores) {
  int32_t n = 0;
  for (uint64_t id = first_id; id < p->ids.next; id++, n++) {
    const tree_id *entry = &p->ids.ring[id % TREE_IDS_MAX];
    const tree_node *node = &p->expansion.live.nodes[entry->slot];
    assert(entry->state == TREE_ID_LIVE && n < WIRE_NODES_MAX);
    parents[n] = node->parent == TREE_ROOT ? 0 : tree_ids_of(&p->ids, &p->expansion.live, node->parent);
    tokens[n] = node->token;
    scores[n] = node->score;
  }
  return n;
}
