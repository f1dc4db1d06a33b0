#include "tests/sim/oracles.h"

#include "target_worker/scheduler.h"
#include "tests/sim/rest.h"
#include "tests/sim/waits.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- answers --- */

void oracles_expect(client *c) {
  int32_t n = c->prompt_length, threes = 0;
  bool ends = c->request.options.stop_count > 0;
  memcpy(c->plain, c->prompt, (size_t)n * sizeof *c->plain);
  c->plain_finish = WIRE_FINISH_LENGTH;
  while (n < c->prompt_length + c->request.options.max_tokens && n < TOY_CONTEXT &&
         c->plain_finish == WIRE_FINISH_LENGTH) {
    int32_t t = toy_next(c->plain, n);
    threes += t == 3;
    bool cut = c->request.admit && threes == 3;
    if (cut || (ends && t == TOY_END)) c->plain_finish = WIRE_FINISH_STOP;
    if (!cut) c->plain[n++] = t;
  }
  c->plain_length = n;
}

static bool is_plain(const client *c, const int32_t *tokens, int32_t length) {
  return length <= c->plain_length && memcmp(tokens, c->plain, (size_t)length * sizeof *tokens) == 0;
}

static bool is_starved(const world *w) {
  return memory_refused() > w->refused_before;
}

/* Nothing has gone wrong that could change how many steps an answer takes. */
static bool is_quiet(const world *w, const client *c) {
  return !w->faulty && !is_starved(w) && !c->cancelled && !c->request.admit;
}

/* The tokens that are marked as accepted ones are as many as the targets have counted. With faults a target
 * may have counted tokens that another one has decoded again, or have died without a report; but then, too,
 * no token of the prompt is marked. */
static void judge_accepted(world *w, const client *c, const sessions_view *v) {
  uint64_t marked = 0;
  if ((v->accepted != NULL) != c->request.accepted)
    world_fail(w, "accepted tokens are told to who did not ask");
  for (int32_t i = 0; v->accepted && i < v->length; i++) {
    if (v->accepted[i] && i < c->prompt_length) world_fail(w, "a token of the prompt is marked as accepted");
    marked += v->accepted[i];
  }
  if (v->accepted && is_quiet(w, c) && marked != v->stats.accepted)
    world_fail(w, "without faults: the marked tokens are not those that the target has accepted");
  w->totals->marked += marked;
}

static bool has_struck(const world *w, fault_kind kind) {
  return w->struck >> kind & 1;
}

/* Some ends with an error are right: those that no other target could have prevented. */
static bool may_end(world *w, const sessions_view *v) {
  if (v->code == ERR_DEVICE && !w->targets_return) w->totals->device_errors++;
  if (v->code == ERR_IO) w->totals->io_errors++;
  bool failed = v->code == ERR_INTERNAL || v->code == ERR_NOMEM;
  w->totals->engine_errors += failed;
  return (v->code == ERR_DEVICE && !w->targets_return) ||
         (v->code == ERR_IO && has_struck(w, FAULT_DISK_FULL)) ||
         (failed && (has_struck(w, FAULT_ENGINE_FAILS) || has_struck(w, FAULT_ENGINE_MEMORY))) ||
         ((v->code == ERR_NOMEM || v->code == ERR_IO) && is_starved(w));
}

static void judge_end(world *w, const client *c, const sessions_view *v) {
  if (v->finish == WIRE_FINISH_CANCELLED && c->cancelled)
    w->totals->cancelled++;
  else if (v->finish == WIRE_FINISH_ERROR) {
    if (may_end(w, v)) return;
    if (getenv("SIM_LOG")) fprintf(stderr, "answer ended with an error: %s\n", v->text);
    world_fail(w, "an answer ended with an error");
  } else if (v->length != c->plain_length || v->finish != c->plain_finish)
    world_fail(w, "an answer ended too early, or for another reason");
}

/* Stalls of the orchestrator or of its disk, broken connections and drafts that die drive nobody away. */
static void judge_place(world *w, const client *c, const sessions_view *v) {
  bool stays =
      w->gentle && !w->is_virtual && !c->cancelled && !c->request.admit && !c->displaced && !is_starved(w);
  if (stays && v->epoch != 1) world_fail(w, "a session left a target with which nothing was wrong");
}

static void judge_answer(world *w, client *c, const sessions_view *v) {
  totals *t = w->totals;
  if (!is_plain(c, v->tokens, v->length)) world_fail(w, "an answer is not plain decode's");
  judge_end(w, c, v);
  judge_accepted(w, c, v);
  judge_place(w, c, v);
  ledger_entry entry;
  /* What is not durable, at the end. */
  bool may_drop = has_struck(w, FAULT_DISK_FULL) || v->finish == WIRE_FINISH_CANCELLED;
  if (!w->ledger.read(w->ledger.self, c->id, &entry) || entry.length < v->length ||
      (!may_drop && (!entry.ended || entry.length != v->length)) || !is_plain(c, entry.tokens, entry.length))
    world_fail(w, "the ledger does not hold the answer");
  t->tokens += (uint64_t)(v->length - c->prompt_length);
  t->accepted += v->stats.accepted;
  t->forwards += v->stats.forwards;
  t->repairs += (uint64_t)v->repairs;
  t->stopped += v->finish == WIRE_FINISH_STOP;
  t->epochs += v->epoch;
  if (is_quiet(w, c) && (uint64_t)(v->length - c->prompt_length) != v->stats.forwards + v->stats.accepted)
    world_fail(w, "without faults: tokens are not forwards + accepted");
}

void oracles_judge_disk(world *w, client *c, const storage_record *r) {
  c->finished = true;
  if (r->disk.length < c->shown) world_fail(w, "what was shown is not on the disk");
  if (!is_plain(c, r->tokens, r->disk.length)) world_fail(w, "what is on the disk is not plain decode's");
  c->shown = r->disk.length;
}

/* What may be shown is on the disk, is plain decode's and never shrinks, also over the death of the
 * orchestrator. */
static void check_shown(world *w, client *c, const sessions_view *v) {
  const storage_record *r = storage_find(&w->disk, c->id);
  int32_t shown = v->logged > c->prompt_length ? v->logged : 0;
  /* It has not begun; or it is resumed, and its new owner not recorded yet, or another process has it. */
  if (v->logged == 0 || v->code == ERR_GONE) return;
  if (shown > 0 && (!r || shown > storage_own(r)->length))
    world_fail(w, "something is shown that is not durable");
  if (shown < c->shown) world_fail(w, "tokens that were shown have been taken back");
  if (shown > c->plain_length ||
      memcmp(v->tokens + c->shown, c->plain + c->shown, (size_t)(shown - c->shown) * sizeof *c->plain) != 0)
    world_fail(w, "a wrong token was shown");
  else
    c->shown = shown;
}

/* The answer goes on where, and when, the ledger lets it. */
static void judge_loss(world *w, client *c) {
  const storage_record *r = storage_find(&w->disk, c->id);
  if (!r || !r->lost) world_fail(w, "an answer ended as if its session were another process's");
  w->totals->taken_over++;
  c->lost = true;
}

static void look(world *w, client *c) {
  sessions_view v;
  if (!c->started || c->finished || c->lost || !sessions_get(w->sessions, c->id, &v)) return;
  check_shown(w, c, &v);
  waits_check(w, c, &v);
  if (v.finish == WIRE_FINISH_ERROR && v.code == ERR_GONE) {
    judge_loss(w, c);
    return;
  }
  if (v.state != SESSIONS_FINISHED || v.logged < v.length) return;
  c->finished = true;
  judge_answer(w, c, &v);
}

/* --- workers --- */

#define LATE_US 1000000

/* To be called before the slot's session and epoch are noted. */
static void note_opened(worker_node *n, const session *s) {
  int i = s->slot;
  bool noted = n->opened[i] > 0 && n->epoch_id[i] == s->id && n->epoch_seen[i] == s->epoch;
  if (s->state != SESSION_RUNNING)
    n->opened[i] = 0;
  else if (!noted)
    n->opened[i] = s->committed.length;
}

/* The place of one that has finished may be given to another before its END: then it moves. */
static void note_displaced(world *w, uint64_t id, const session *by) {
  client *c = id && id != by->id ? world_client(w, id) : NULL;
  if (c) c->displaced = true;
}

static void check_epochs(world *w, worker_node *n) {
  session_store *store = target_sessions(n->target);
  for (int i = 0; i < TOY_SLOTS; i++) {
    const session *s = &store->slots[i];
    if (s->state == SESSION_FREE) {
      n->epoch_id[i] = 0;
      continue;
    }
    note_displaced(w, n->epoch_id[i], s);
    if (n->epoch_id[i] == s->id && s->epoch < n->epoch_seen[i]) world_fail(w, "a session's epoch fell");
    if (net_clock(w->net, (int)(n - w->nodes)) > s->lease_until_us + LATE_US)
      world_fail(w, "a session outlives its lease");
    note_opened(n, s);
    n->epoch_id[i] = s->id;
    n->epoch_seen[i] = s->epoch;
  }
}

/* Whose blocks are held, is here and holds them. */
static void check_blocks(world *w, worker_node *n) {
  const session_store *store = target_sessions(n->target);
  int32_t held = 0, holders = 0;
  if (!store->is_virtual) return;
  for (int i = 0; i < TOY_SLOTS; i++) {
    const session *s = &store->slots[i];
    if (s->cache.block_count && (s->state == SESSION_FREE || s->state == SESSION_FINISHED))
      world_fail(w, "an ended session holds blocks");
    if (s->cache.rows > s->cache.block_count * KV_BLOCK)
      world_fail(w, "a session believes in rows without blocks");
    held += s->cache.block_count;
  }
  for (int i = 0; i < store->blocks.count; i++) holders += block_pool_holders(&store->blocks, i);
  if (held != holders) world_fail(w, "a block is held by nobody who is here");
  if (!block_pool_check(&store->blocks)) world_fail(w, "the books of the blocks disagree");
}

/* What the orchestrator has acknowledged or, of a session whose client has gone, what the target knows to be
 * there: the C that OPEN brought. A late OPEN may bring one that is longer than the prompt by all the credit.
 */
static int32_t told_of(world *w, const worker_node *n, const session *s) {
  const client *c = world_client(w, s->id);
  if (c) return c->told;
  return s->stream.acked > n->opened[s->slot] ? s->stream.acked : n->opened[s->slot];
}

/* How far a target is ahead of what its orchestrator has acknowledged. */
static void check_credit(world *w, worker_node *n) {
  session_store *store = target_sessions(n->target);
  for (int i = 0; i < TOY_SLOTS; i++) {
    const session *s = &store->slots[i];
    if (s->state != SESSION_RUNNING) continue;
    int32_t ahead = s->committed.length - told_of(w, n, s);
    w->totals->credit_used_up += ahead >= SCHEDULE_CREDIT - 12;
    bool decoded =
        s->committed.length > n->opened[i]; /* OPEN may bring much that another process has added */
    if (ahead > SCHEDULE_CREDIT && decoded) world_fail(w, "a target is further ahead than its credit");
  }
}

void oracles_step(world *w, int node) {
  worker_node *n = &w->nodes[node];
  if (n->target) {
    check_epochs(w, n);
    check_blocks(w, n);
    check_credit(w, n);
  }
  for (int i = 0; node == ORCH && w->sessions && i < w->client_count; i++) look(w, &w->clients[i]);
}

/* --- frames --- */

/* An epoch is on the disk before it goes out, and no other life of the orchestrator has used it. */
static void check_open(world *w, const msg *m) {
  client *c = world_client(w, m->session);
  const storage_record *r = storage_find(&w->disk, m->session);
  if (!c) return; /* sessions_start has not returned yet, or nobody waits for it any more */
  if (!r || m->epoch > storage_own(r)->epoch) world_fail(w, "an epoch went out that is not recorded");
  if (m->epoch <= c->epoch_passed) world_fail(w, "an epoch of an earlier life went out again");
  if (m->epoch > c->epoch_sent) c->epoch_sent = m->epoch;
}

/* So is that of an END, which may be of an earlier life. */
static void check_end(world *w, const msg *m) {
  const client *c = world_client(w, m->session);
  const storage_record *r = storage_find(&w->disk, m->session);
  if (c && r && m->epoch > storage_own(r)->epoch)
    world_fail(w, "END went out in an epoch that is not recorded");
}

/* What a target may forget is on the disk. */
static void check_ack(world *w, const msg *m) {
  const storage_record *r = storage_find(&w->disk, m->session);
  if (!r || m->u.state.length > storage_own(r)->length)
    world_fail(w, "something was acknowledged that is not durable");
}

void oracles_frame(world *w, int from, int to, const msg *m) {
  (void)to;
  if (from == ORCH && (m->type == MSG_OPEN || m->type == MSG_PART)) check_open(w, m);
  if (from == ORCH && m->type == MSG_END) check_end(w, m);
  if (from == ORCH && m->type == MSG_ACK) check_ack(w, m);
}

/* --- rest --- */

void oracles_rest(world *w) {
  w->totals->rests++;
  for (int t = TARGET_A; t <= TARGET_B; t++)
    for (int i = 0; w->nodes[t].target && i < TOY_SLOTS; i++) {
      session *s = &target_sessions(w->nodes[t].target)->slots[i];
      if (s->state != SESSION_RUNNING || session_draft_count(s) == 0) continue;
      /* Late frames may have opened it anew, with a draft that has heard more. */
      const client *c = world_client(w, s->id);
      if (!c || c->state >= SESSIONS_ENDING) continue;
      /* A quiet session's draft is told nothing. */
      if (speculation_is_quiet(&s->speculation) && !s->request.options.lockstep) continue;
      rest_compare(w, s);
    }
}
