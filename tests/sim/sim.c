/* sim - all roles' production state machines under a virtual clock and a seeded network (tests/sim/net.h).
 *
 *   sim [--seed N] [--count N] [--threads N] [--replay]
 *
 * Each seed is one world: an orchestrator, two targets, two drafts, some requests; frames are lost, repeated,
 * delayed and reordered; programs are killed, stopped and restarted; caches are rolled back and prefixes
 * altered behind everybody's back; devices are lost; in some worlds a draft says anything at all. Oracles:
 * the answers are plain decode's; at rest both sides hold equal live sets; a session's epoch never falls at a
 * worker; without faults, tokens = forwards + accepted. --replay runs every seed twice and compares all that
 * happened. */
#include "tests/sim/net.h"
#include "tests/sim/toy.h"

#include "draft_worker/drafters/model_drafter.h"
#include "draft_worker/worker.h"
#include "orchestrator/sessions/sessions.h"
#include "target_worker/worker.h"
#include "wire/roster.h"
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORCH, TARGET_A, TARGET_B, DRAFT_A, DRAFT_B, NODES };
#define CLIENTS_MAX 4
#define REST_US     8000000
#define END_US      200000000
#define HANG_US     40000000 /* of an engine: longer than a session waits for a sign of life */
#define LEAVE_US    50000    /* from the loss of a device to the end of its program, at most */
#define OUTPUT_MAX  60
#define EVENTS_MIN  200 /* of one seed */

enum {
  ALARM_RESULT = 100,
  ALARM_START = 200,
  ALARM_CANCEL = 300,
  ALARM_FAULT = 400,
  ALARM_REVIVE = 500,
  ALARM_RESUME = 600,
  ALARM_REST = 700,
  ALARM_WAKE = 800,
  ALARM_FORGE = 900,
  ALARM_LEAVE = 1000
};

typedef struct totals {
  net_totals net;
  uint64_t seeds, tokens, accepted, marked, forwards, rests, rests_compared, live_nodes, altered, rolled_back,
      repairs, cancelled, stopped, lockstep, epochs, shared, evicted, said, devices_lost, device_errors,
      features, features_wrong;
} totals;

typedef struct client {
  bool started, finished, cancelled;
  uint64_t id;
  int32_t prompt[48], prompt_length;
  sessions_request request;
  int32_t stops[1];
  int32_t stop_count_seen; /* threes seen by admit */
  int32_t seen;            /* tokens that a client has looked at */
} client;

typedef struct worker_node {
  target *target; /* or */
  draft *draft;
  toy_engine engine;
  engine_results results;
  drafter drafter;   /* of the draft */
  toy_model model;   /* of a draft that computes batches */
  toy_reader reader; /* of a draft that reads features */
  draft_results draft_results;
  wire_id incarnation;
  bool busy;
  bool hangs;    /* its next batch comes back after HANG_US only */
  bool lost;     /* so is its device from the next batch on */
  bool leaves;   /* so its program ends soon */
  uint32_t life; /* of the results in flight */
  uint64_t epoch_id[TOY_SLOTS];
  uint32_t epoch_seen[TOY_SLOTS];
} worker_node;

typedef struct world {
  uint64_t seed;
  net *net;
  totals *totals;
  ledger ledger;
  sessions_machine *sessions;
  worker_node nodes[NODES];
  client clients[CLIENTS_MAX];
  int client_count;
  bool faulty, resting, is_virtual, byzantine, targets_return;
  bool forges; /* prefixes, streams or frames: what a draft reads may be wrong */
  wire_id orchestrator;
  uint64_t incarnations, digest;
  const char *failure;
} world;

static void fail(world *w, const char *why) {
  if (!w->failure) w->failure = why;
}

static uint64_t pick(world *w, uint64_t n) {
  return net_random(w->net) % n;
}

static uint64_t sim_random(void *context) {
  return net_random(((world *)context)->net);
}

static wire_id incarnation(world *w) {
  wire_id id = {{0}};
  uint64_t n = ++w->incarnations;
  memcpy(id.bytes, &n, 8);
  return id;
}

/* --- programs --- */

static const char *const addresses[NODES] = {"orch", "target-a", "target-b", "", ""};

static void start_target(world *w, int index) {
  worker_node *n = &w->nodes[index];
  target_options o = {.incarnation = incarnation(w),
                      .vocabulary_size = TOY_VOCABULARY,
                      .numerics_id = "toy",
                      .endpoint = addresses[index],
                      .host = {{1}},
                      .device = "toy",
                      .sessions = TOY_SLOTS,
                      .context = TOY_CONTEXT,
                      .kv_blocks = w->is_virtual ? TOY_BLOCKS_VIRTUAL : 0,
                      .taps = {.layers = TOY_LAYERS, .embed = TOY_EMBED}};
  err e;
  n->incarnation = o.incarnation;
  int rc = target_alloc(&n->target, &o, &e);
  assert(rc == ERR_OK);
  (void)rc;
  toy_start(&n->engine, w->is_virtual);
  n->busy = n->hangs = n->lost = n->leaves = false;
  n->life++;
  memset(n->epoch_id, 0, sizeof n->epoch_id);
  net_start(w->net, index, addresses[index], target_machine(n->target));
  actions a;
  actions_init(&a);
  target_connect(n->target, addresses[ORCH], &a);
  net_perform(w->net, index, &a);
  actions_fini(&a);
}

static void start_draft(world *w, int index) {
  worker_node *n = &w->nodes[index];
  draft_options o = {.incarnation = incarnation(w), .context = TOY_CONTEXT, .drafter_count = 1};
  err e;
  n->incarnation = o.incarnation;
  int rc = index == DRAFT_B ? model_drafter_open(&n->drafter, 3, &e)
                            : immediate_open(&n->drafter, &toy_drafter, NULL, &e);
  assert(rc == ERR_OK);
  if (w->seed % 3) toy_read_features(&n->drafter, &n->reader, w->seed % 3 == 1 ? WIRE_F32 : WIRE_BF16);
  o.drafters[0] = n->drafter;
  if (index == DRAFT_B) {
    o.session_max = TOY_SLOTS;
    o.shorter = true;
    o.host = (hash16){{1}};
    o.numerics_id = "toy";
    o.device = w->seed % 2 ? "toy" : NULL; /* the target's own, or none that is known */
  }
  n->model = (toy_model){0};
  n->busy = n->lost = n->leaves = false;
  n->life++;
  rc = draft_alloc(&n->draft, &o, &e);
  assert(rc == ERR_OK);
  (void)rc;
  net_start(w->net, index, "", draft_machine(n->draft));
  actions a;
  actions_init(&a);
  draft_connect(n->draft, addresses[ORCH], &a);
  net_perform(w->net, index, &a);
  actions_fini(&a);
}

static wire_id incarnation_of(const world *w, int index) {
  wire_id id = {{0}};
  for (int role = WIRE_ROLE_TARGET; role <= WIRE_ROLE_DRAFT; role++)
    for (int32_t i = 0; i < sessions_worker_count(w->sessions, (wire_role)role); i++) {
      const msg_hello *h = sessions_worker(w->sessions, (wire_role)role, i);
      if (index < DRAFT_A && h->endpoint.size == strlen(addresses[index]) && role == WIRE_ROLE_TARGET &&
          memcmp(h->endpoint.data, addresses[index], h->endpoint.size) == 0)
        id = h->incarnation;
    }
  return id;
}

/* What its drafter has compared, before it goes. */
static void count_features(world *w, worker_node *n) {
  w->totals->features += n->reader.compared;
  w->totals->features_wrong += n->reader.wrong;
  if (n->reader.wrong && !w->forges) fail(w, "features are not those of the tokens");
  n->reader.compared = n->reader.wrong = 0;
}

static void kill_node(world *w, int index) {
  worker_node *n = &w->nodes[index];
  if (!n->target && !n->draft) return;
  wire_id id = incarnation_of(w, index);
  target_free(n->target);
  draft_free(n->draft);
  drafter_free(&n->drafter);
  count_features(w, n);
  n->target = NULL;
  n->draft = NULL;
  n->life++;
  net_stop(w->net, index);
  net_alarm(w->net, net_now(w->net) + 20000 + pick(w, 2000000), ALARM_REVIVE + index);
  if (pick(w, 2) || wire_id_equal(id, (wire_id){{0}})) return; /* else: the parent saw its child die */
  actions a;
  actions_init(&a);
  sessions_worker_died(w->sessions, id, net_now(w->net), &a);
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
}

/* --- faults behind everybody's back --- */

static session *victim(world *w, int index) {
  target *t = w->nodes[index].target;
  uint64_t first = pick(w, TOY_SLOTS);
  for (uint64_t i = 0; t && i < TOY_SLOTS; i++) {
    session *s = &target_sessions(t)->slots[(first + i) % TOY_SLOTS];
    if (s->state == SESSION_RUNNING && !s->job.serial && s->committed.length > s->request.prompt_length)
      return s;
  }
  return NULL;
}

/* The target takes another token for one that it has committed and the orchestrator has logged. */
static void alter_prefix(world *w, int index) {
  session *s = victim(w, index);
  if (!s) return;
  int32_t tokens[TOY_CONTEXT], length = s->committed.length;
  if (s->stream.acked <= s->request.prompt_length)
    return; /* only what the ledger holds: of the rest nobody else knows */
  int32_t at =
      s->request.prompt_length + (int32_t)pick(w, (uint64_t)(s->stream.acked - s->request.prompt_length));
  if (at < s->cache.published * KV_BLOCK) return; /* others may read that block */
  memcpy(tokens, s->committed.tokens, (size_t)length * sizeof *tokens);
  tokens[at] = (tokens[at] + 1) % TOY_END;
  prefix_truncate(&s->committed, at);
  prefix_append(&s->committed, tokens + at, length - at);
  toy_engine *e = &w->nodes[index].engine;
  if (e->length[s->slot] > at) *toy_row(e, s->slot, at) = tokens[at];
  w->totals->altered++;
  w->forges = true;
}

static void roll_back(world *w, int index) {
  session *s = victim(w, index);
  if (!s) return;
  toy_engine *e = &w->nodes[index].engine;
  int32_t gone = (int32_t)pick(w, (uint64_t)e->length[s->slot] + 1);
  e->length[s->slot] -= gone;
  w->totals->rolled_back++;
}

static void fault(world *w, bool alter) {
  int target_index = TARGET_A + (int)pick(w, 2), draft_index = DRAFT_A + (int)pick(w, 2);
  switch (alter ? 5 : pick(w, 13)) {
  case 0:
    kill_node(w, target_index);
    break;
  case 1:
  case 2:
    kill_node(w, draft_index);
    break;
  case 3:
    net_pause(w->net, draft_index, true);
    net_alarm(w->net, net_now(w->net) + 100000 + pick(w, 4000000), ALARM_RESUME + draft_index);
    break;
  case 4:
    net_pause(w->net, target_index, true);
    net_alarm(w->net, net_now(w->net) + 100000 + pick(w, 4000000), ALARM_RESUME + target_index);
    break;
  case 5:
  case 6:
    alter_prefix(w, target_index);
    break;
  case 7:
  case 8:
    roll_back(w, target_index);
    break;
  case 9:
    net_pause(w->net, ORCH, true);
    net_alarm(w->net, net_now(w->net) + 100000 + pick(w, 4000000), ALARM_RESUME + ORCH);
    break;
  case 10:
    w->nodes[target_index].hangs = true;
    break;
  case 11:
    w->nodes[target_index].lost = true;
    break;
  case 12:
    w->nodes[draft_index].lost = true;
    break;
  }
}

/* --- a draft that says anything at all --- */

static const session *session_of(const world *w, uint64_t id) {
  for (int i = TARGET_A; i <= TARGET_B; i++) {
    session *s = w->nodes[i].target ? session_store_get(target_sessions(w->nodes[i].target), id) : NULL;
    if (s) return s;
  }
  return NULL;
}

static msg_hello forged_hello(world *w, int from) {
  wire_id ids[] = {w->nodes[from].incarnation, w->nodes[TARGET_A + (int)pick(w, 2)].incarnation,
                   incarnation(w)};
  return (msg_hello){.version_min = WIRE_VERSION_MIN,
                     .version_max = WIRE_VERSION_MAX,
                     .role = (wire_role)(1 + pick(w, 3)),
                     .incarnation = ids[pick(w, 3)],
                     .vocabulary_size = TOY_VOCABULARY,
                     .numerics_id = wire_text("toy"),
                     .endpoint = wire_text(addresses[TARGET_A + (int)pick(w, 2)]),
                     .session_max = 4};
}

/* A program that says that it is a target before it has said that it is a draft is taken for a target: only
 * keys will tell them apart. */
static bool is_known_draft(const world *w, int index) {
  for (int32_t i = 0; i < sessions_worker_count(w->sessions, WIRE_ROLE_DRAFT); i++)
    if (wire_id_equal(sessions_worker(w->sessions, WIRE_ROLE_DRAFT, i)->incarnation,
                      w->nodes[index].incarnation))
      return true;
  return false;
}

/* What a forged message may be filled with: what is right for a session, or nearly. */
typedef struct forgery {
  const client *client;
  const session *session;
  int32_t base, count, tokens[4];
  uint64_t parents[4], first;
  float scores[4];
  hash16 hash, after; /* at base, and after the tokens */
  uint32_t generation;
} forgery;

static void forge_tokens(world *w, forgery *f) {
  const session *s = f->session;
  f->base = 1 + (int32_t)pick(w, (uint64_t)s->committed.length);
  f->count = 1 + (int32_t)pick(w, 4);
  f->first = 1 + pick(w, 40);
  f->hash = f->after = s->committed.hashes[f->base];
  for (int32_t i = 0; i < f->count; i++) {
    f->tokens[i] = (int32_t)pick(w, TOY_VOCABULARY + (pick(w, 8) == 0));
    f->parents[i] = pick(w, 2) ? 0 : pick(w, f->first + (uint64_t)i);
    f->scores[i] = -(float)pick(w, 5) / 4;
    f->after = hash_next(f->after, s->committed.seed, f->tokens[i]);
  }
  if (pick(w, 4) == 0) f->hash.bytes[0] ^= 1;
}

static msg_open forged_open(const forgery *f) {
  return (msg_open){.ticket = f->session->request.ticket,
                    .hash_seed = f->session->committed.seed,
                    .base_length = f->base,
                    .base_hash = f->hash,
                    .tokens = f->tokens,
                    .token_count = f->count,
                    .hash = f->after,
                    .prompt_length = 1,
                    .options = f->client->request.options};
}

static msg_nodes forged_nodes(world *w, const forgery *f) {
  return (msg_nodes){.generation = f->generation,
                     .base_length = f->base,
                     .base_hash = f->hash,
                     .first_id = f->first,
                     .parents = f->parents,
                     .tokens = f->tokens,
                     .scores = f->scores,
                     .count = f->count,
                     .done = pick(w, 2)};
}

static msg_state forged_state(world *w, const forgery *f, msg_type type) {
  msg_state x = {.length = f->base,
                 .hash = f->hash,
                 .ticket = f->session->request.ticket,
                 .reason = wire_text("forged")};
  if (type == MSG_ATTACH)
    x.request = (msg_feature_request){
        .taps = f->tokens, .tap_count = (int32_t)pick(w, (uint64_t)f->count + 1), .type = WIRE_F32};
  if (type == MSG_ATTACHED) x.grant = (msg_feature_grant){.width = 3, .type = WIRE_F32};
  return x;
}

static void forge_body(world *w, const forgery *f, int from, msg *m) {
  switch (m->type) {
  case MSG_HELLO:
    *m = (msg){.type = MSG_HELLO, .u.hello = forged_hello(w, from)};
    break;
  case MSG_PONG:
    m->session = m->epoch = 0;
    m->u.ping.load = (int32_t)pick(w, 9);
    break;
  case MSG_ERROR:
    m->u.error = (msg_error){-(int32_t)(1 + pick(w, 20)), wire_text("forged")};
    break;
  case MSG_OPEN:
    m->u.open = forged_open(f);
    break;
  case MSG_TOKENS:
    m->u.tokens =
        (msg_tokens){.base_length = f->base, .tokens = f->tokens, .token_count = f->count, .hash = f->after};
    break;
  case MSG_DONE:
    m->u.done = (msg_done){.length = f->base, .hash = f->hash, .finish = (wire_finish)(1 + pick(w, 3))};
    break;
  case MSG_RESEND:
    m->u.resend.from = f->base;
    break;
  case MSG_ENDED:
    m->u.existed = true;
    break;
  case MSG_TREE_RESET:
    m->u.reset.generation = f->generation;
    break;
  case MSG_NODES:
    m->u.nodes = forged_nodes(w, f);
    break;
  case MSG_END:
    break;
  case MSG_FEATURES:
    m->u.features = (msg_features){.base = f->base, .width = 1, .type = WIRE_F32};
    break;
  default:
    m->u.state = forged_state(w, f, m->type);
  }
}

/* Sends a well-formed message of any type on a draft's own connection. */
static void forge(world *w) {
  static const msg_type types[] = {MSG_ERROR,  MSG_PONG,       MSG_OPEN,   MSG_OPENED,  MSG_END,
                                   MSG_ENDED,  MSG_DESYNC,     MSG_TOKENS, MSG_ACK,     MSG_RESEND,
                                   MSG_DONE,   MSG_ATTACH,     MSG_NODES,  MSG_NODES,   MSG_NODES,
                                   MSG_DETACH, MSG_TREE_RESET, MSG_HELLO,  MSG_FEATURES};
  int from = DRAFT_A + (int)pick(w, 2), to = (int)pick(w, 3);
  forgery f = {.client = &w->clients[pick(w, (uint64_t)w->client_count)]};
  const session *s = f.session = session_of(w, f.client->id);
  if (!s || !is_known_draft(w, from)) return;
  forge_tokens(w, &f);
  msg m = {.type = types[pick(w, sizeof types / sizeof *types)],
           .session = f.client->id,
           .epoch = s->epoch + (pick(w, 6) == 0)};
  m.to = to == ORCH ? w->orchestrator : w->nodes[to].incarnation;
  f.generation = s->drafts.of[0].ids.generation + (pick(w, 6) == 0);
  forge_body(w, &f, from, &m);
  w->totals->said += net_forge(w->net, from, to, &m);
}

/* --- clients --- */

/* A client with a stop string: the answer ends with the third 3, which is cut. */
static int32_t admit_threes(void *context, const int32_t *tokens, int32_t count, bool *stop) {
  client *c = context;
  for (int32_t i = 0; i < count; i++) {
    if (tokens[i] != 3 || ++c->stop_count_seen < 3) continue;
    *stop = true;
    return i;
  }
  return count;
}

static void client_plan(world *w, client *c) {
  c->prompt_length = 1 + (int32_t)pick(w, w->is_virtual ? 48 : 12);
  for (int32_t i = 0; i < c->prompt_length; i++) c->prompt[i] = (int32_t)pick(w, TOY_END);
  const client *other = &w->clients[pick(w, CLIENTS_MAX)]; /* what it has asked may be in a cache */
  if (other->prompt_length && pick(w, 2))
    memcpy(c->prompt, other->prompt, (w->is_virtual ? 40 : 10) * sizeof *c->prompt);
  c->stops[0] = TOY_END;
  c->request =
      (sessions_request){.prompt = c->prompt, .prompt_length = c->prompt_length, .draft = pick(w, 8) != 0};
  c->request.accepted = c->prompt_length % 2; /* half of them ask */
  c->request.options = (msg_options){.top_p = 1,
                                     .repeat_penalty = 1,
                                     .max_tokens = 20 + (int32_t)pick(w, OUTPUT_MAX - 19),
                                     .context = TOY_CONTEXT,
                                     .stops = c->stops,
                                     .stop_count = 1,
                                     .budget = (int32_t)pick(w, 12),
                                     .lockstep = pick(w, 6) == 0};
  if (c->request.options.budget == 0 || !c->request.draft || w->byzantine)
    c->request.options.lockstep = false;
  if (pick(w, 6) == 0) {
    c->request.admit = admit_threes;
    c->request.admit_context = c;
  }
  w->totals->lockstep += c->request.options.lockstep;
}

static void client_start(world *w, client *c) {
  actions a;
  err e;
  actions_init(&a);
  c->id = sessions_start(w->sessions, &c->request, net_now(w->net), &a, &e);
  c->started = true;
  if (!c->id) fail(w, "sessions_start refused a request");
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
}

static void client_cancel(world *w, client *c) {
  actions a;
  if (!c->started) return;
  actions_init(&a);
  sessions_cancel(w->sessions, c->id, net_now(w->net), &a);
  c->cancelled = true;
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
}

/* Plain decoding, from the definition. */
static int32_t plain_answer(const client *c, int32_t *out, wire_finish *finish) {
  int32_t n = c->prompt_length, threes = 0;
  memcpy(out, c->prompt, (size_t)n * sizeof *out);
  *finish = WIRE_FINISH_LENGTH;
  while (n < c->prompt_length + c->request.options.max_tokens && n < TOY_CONTEXT) {
    int32_t t = toy_next(out, n);
    threes += t == 3;
    if (c->request.admit && threes == 3) {
      *finish = WIRE_FINISH_STOP;
      return n;
    }
    out[n++] = t;
    if (t != TOY_END) continue;
    *finish = WIRE_FINISH_STOP;
    return n;
  }
  return n;
}

/* The tokens that are marked as accepted ones are as many as the targets have counted. With faults a target
 * may have counted tokens that another one has decoded again, or have died without a report; but then, too,
 * no token of the prompt is marked. */
static void judge_accepted(world *w, const client *c, const sessions_view *v) {
  uint64_t marked = 0;
  if ((v->accepted != NULL) != c->request.accepted) fail(w, "accepted tokens are told to who did not ask");
  for (int32_t i = 0; v->accepted && i < v->length; i++) {
    if (v->accepted[i] && i < c->prompt_length) fail(w, "a token of the prompt is marked as accepted");
    marked += v->accepted[i];
  }
  if (v->accepted && !w->faulty && !c->cancelled && !c->request.admit && marked != v->stats.accepted)
    fail(w, "without faults: the marked tokens are not those that the target has accepted");
  w->totals->marked += marked;
}

static void judge_answer(world *w, client *c, const sessions_view *v) {
  int32_t plain[TOY_CONTEXT];
  wire_finish finish;
  int32_t n = plain_answer(c, plain, &finish);
  if (v->length > n || memcmp(v->tokens, plain, (size_t)v->length * sizeof *plain) != 0)
    fail(w, "an answer is not plain decode's");
  if (v->finish == WIRE_FINISH_CANCELLED && c->cancelled)
    w->totals->cancelled++;
  else if (v->finish == WIRE_FINISH_ERROR && v->code == ERR_DEVICE && !w->targets_return)
    w->totals->device_errors++;
  else if (v->finish == WIRE_FINISH_ERROR) {
    if (getenv("SIM_LOG")) fprintf(stderr, "answer ended with an error: %s\n", v->text);
    fail(w, "an answer ended with an error");
  } else if (v->length != n || v->finish != finish)
    fail(w, "an answer ended too early, or for another reason");
  judge_accepted(w, c, v);
  ledger_entry entry;
  if (!w->ledger.read(w->ledger.self, c->id, &entry) || entry.length != v->length ||
      memcmp(entry.tokens, v->tokens, (size_t)v->length * sizeof *plain) != 0)
    fail(w, "the ledger does not hold what was shown");
  w->totals->tokens += (uint64_t)(v->length - c->prompt_length);
  w->totals->accepted += v->stats.accepted;
  w->totals->forwards += v->stats.forwards;
  w->totals->repairs += (uint64_t)v->repairs;
  w->totals->stopped += v->finish == WIRE_FINISH_STOP;
  w->totals->epochs += v->epoch;
  if (!w->faulty && !c->cancelled && !c->request.admit &&
      (uint64_t)(v->length - c->prompt_length) != v->stats.forwards + v->stats.accepted)
    fail(w, "without faults: tokens are not forwards + accepted");
}

/* What has been shown once never changes; at the end the answer is judged. */
static void client_look(world *w, client *c) {
  sessions_view v;
  if (!c->started || c->finished || !sessions_get(w->sessions, c->id, &v)) return;
  if (v.length < c->seen) fail(w, "tokens that were shown have been taken back");
  c->seen = v.length;
  if (v.state != SESSIONS_FINISHED) return;
  c->finished = true;
  judge_answer(w, c, &v);
}

/* --- oracles while it runs --- */

static void check_epochs(world *w, worker_node *n) {
  session_store *store = target_sessions(n->target);
  for (int i = 0; i < TOY_SLOTS; i++) {
    const session *s = &store->slots[i];
    if (s->state == SESSION_FREE) {
      n->epoch_id[i] = 0;
      continue;
    }
    if (n->epoch_id[i] == s->id && s->epoch < n->epoch_seen[i]) fail(w, "a session's epoch fell");
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
      fail(w, "an ended session holds blocks");
    if (s->cache.rows > s->cache.block_count * KV_BLOCK) fail(w, "a session believes in rows without blocks");
    held += s->cache.block_count;
  }
  for (int i = 0; i < store->blocks.count; i++) holders += block_pool_holders(&store->blocks, i);
  if (held != holders) fail(w, "a block is held by nobody who is here");
  if (!block_pool_check(&store->blocks)) fail(w, "the books of the blocks disagree");
}

/* Counters of the block pool of this target, before it goes. */
static void count_blocks(world *w, target *t) {
  if (!t) return;
  w->totals->shared += target_sessions(t)->blocks.shared;
  w->totals->evicted += target_sessions(t)->blocks.evicted;
}

/* At rest: nothing has been lost for REST_US and no forward ended. Both sides know the same C and the same
 * nodes. */
static void check_rest(world *w) {
  w->totals->rests++;
  for (int t = TARGET_A; t <= TARGET_B; t++) {
    if (!w->nodes[t].target) continue;
    for (int i = 0; i < TOY_SLOTS; i++) {
      session *s = &target_sessions(w->nodes[t].target)->slots[i];
      if (s->state != SESSION_RUNNING || session_draft_count(s) != 1) continue;
      if (speculation_is_quiet(&s->speculation) && !s->request.options.lockstep)
        continue; /* its draft is told nothing */
      for (int d = DRAFT_A; d <= DRAFT_B; d++) {
        uint64_t digest;
        int32_t length;
        if (!w->nodes[d].draft || !draft_digest(w->nodes[d].draft, s->id, s->epoch, &digest, &length))
          continue;
        w->totals->rests_compared++;
        w->totals->live_nodes += (uint64_t)s->drafts.tree.live_count;
        if (length != s->committed.length)
          fail(w, "at rest the two sides know different lengths");
        else if (digest != tree_digest(&s->drafts.tree))
          fail(w, "at rest the two sides hold different live sets");
      }
    }
  }
}

/* --- the run --- */

/* A lost device: no job succeeds, and the program ends when it knows. */
static void lose_jobs(const engine_batch *batch, engine_results *r) {
  for (int32_t i = 0; i < batch->count; i++)
    r->of[i] = (engine_result){.kind = batch->jobs[i].kind,
                               .serial = batch->jobs[i].serial,
                               .code = ERR_DEVICE,
                               .kv_length = batch->jobs[i].kv_length};
}

static void lose_draft_jobs(const draft_batch *batch, draft_results *r) {
  r->failure_count = batch->job_count;
  for (int32_t i = 0; i < batch->job_count; i++)
    r->failures[i] = (draft_failure){batch->jobs[i].slot, ERR_DEVICE};
}

static void after_result(world *w, int index, int code) {
  worker_node *n = &w->nodes[index];
  if (code != ERR_DEVICE || n->leaves) return;
  n->leaves = true;
  w->totals->devices_lost++;
  net_alarm(w->net, net_now(w->net) + pick(w, LEAVE_US), ALARM_LEAVE + index);
}

static void feed_engine(world *w, int index) {
  worker_node *n = &w->nodes[index];
  engine_batch batch;
  if (!n->target || n->busy) return;
  if (!target_next_batch(n->target, net_now(w->net), &batch)) return;
  if (n->leaves) fail(w, "something is to be computed on a lost device");
  n->results.count = batch.count;
  for (int32_t i = 0; i < batch.count; i++) toy_run(&n->engine, &batch.jobs[i], &n->results.of[i]);
  if (n->lost) lose_jobs(&batch, &n->results);
  n->busy = true;
  net_alarm(w->net, net_now(w->net) + 300 + pick(w, 3000) + (n->hangs ? HANG_US : 0),
            ALARM_RESULT + index + 10 * (int)(n->life % 10));
  n->hangs = false;
}

static void feed_model(world *w, int index) {
  worker_node *n = &w->nodes[index];
  draft_batch batch;
  if (!n->draft || n->busy || !draft_next_batch(n->draft, &batch)) return;
  toy_compute(&n->model, &batch, &n->draft_results);
  if (n->lost) lose_draft_jobs(&batch, &n->draft_results);
  n->busy = true;
  net_alarm(w->net, net_now(w->net) + 100 + pick(w, 2000), ALARM_RESULT + index + 10 * (int)(n->life % 10));
}

static void model_done(world *w, int index) {
  worker_node *n = &w->nodes[index];
  n->busy = false;
  const draft_results *r = &n->draft_results;
  net_step(w->net, index, &(event){.kind = EVENT_RESULT, .result = r});
  after_result(w, index, r->failure_count ? r->failures[0].code : ERR_OK);
}

static void engine_done(world *w, int number) {
  int index = number % 10, life = number / 10 % 10;
  worker_node *n = &w->nodes[index];
  if (n->draft && (int)(n->life % 10) == life && n->busy) model_done(w, index);
  if (!n->target || (int)(n->life % 10) != life || !n->busy) return;
  if (w->resting) { /* a slow forward: it ends after the rest */
    net_alarm(w->net, net_now(w->net) + 100000, ALARM_RESULT + number);
    return;
  }
  n->busy = false;
  net_step(w->net, index, &(event){.kind = EVENT_RESULT, .result = &n->results});
  after_result(w, index, n->results.of[0].code);
}

static void on_alarm(world *w, int number) {
  int index = number % 100;
  if (number < 0) return;
  if (number < ALARM_START)
    engine_done(w, number - ALARM_RESULT);
  else if (number < ALARM_CANCEL)
    client_start(w, &w->clients[index]);
  else if (number < ALARM_FAULT)
    client_cancel(w, &w->clients[index]);
  else if (number == ALARM_FORGE) {
    if (!w->resting) forge(w);
  } else if (number < ALARM_REVIVE) {
    if (!w->resting) fault(w, number > ALARM_FAULT);
  } else if (number < ALARM_RESUME) {
    if (index < DRAFT_A)
      start_target(w, index);
    else
      start_draft(w, index);
  } else if (number < ALARM_REST && index < NODES)
    net_pause(w->net, index, false);
  else if (number == ALARM_REST + NODES) {
    w->resting = true;
    for (int i = ORCH; i < NODES; i++) net_pause(w->net, i, false);
    net_set_faults(w->net, (net_faults){0});
    net_alarm(w->net, net_now(w->net) + REST_US, ALARM_WAKE + NODES);
  } else if (number >= ALARM_LEAVE) {
    if (w->nodes[index].leaves) kill_node(w, index);
  } else if (number == ALARM_WAKE + NODES) {
    if (!w->byzantine) check_rest(w); /* what was said in a draft's name, it does not know */
    w->resting = false;
  }
}

static void plan(world *w) {
  uint64_t now = net_now(w->net);
  w->faulty = pick(w, 8) != 0;
  w->byzantine = w->faulty && pick(w, 4) == 0;
  w->client_count = 1 + (int)pick(w, CLIENTS_MAX);
  for (int i = 0; i < w->client_count; i++) {
    client_plan(w, &w->clients[i]);
    net_alarm(w->net, now + pick(w, 300000), ALARM_START + i);
    if (pick(w, 10) == 0) net_alarm(w->net, now + pick(w, 600000), ALARM_CANCEL + i);
  }
  net_alarm(w->net, now + 30000 + pick(w, w->faulty ? 1500000 : 80000), ALARM_REST + NODES);
  if (!w->faulty) return;
  const net_faults faulty = {(uint32_t)pick(w, 150), (uint32_t)pick(w, 150), (uint32_t)pick(w, 200),
                             pick(w, 4) ? 0 : 10};
  net_set_faults(w->net, faulty);
  w->forges = w->byzantine || faulty.forge > 0;
  for (uint64_t i = 0; w->byzantine && i < 150; i++) net_alarm(w->net, now + pick(w, 600000), ALARM_FORGE);
  uint64_t faults = pick(w, 10);
  for (uint64_t i = 0; i < faults; i++) net_alarm(w->net, now + pick(w, 300000), ALARM_FAULT);
  /* Some worlds are about identity: prefixes of equal length and other tokens, again and again. */
  uint64_t alterations = pick(w, 4) == 0 ? 8 : 0;
  for (uint64_t i = 0; i < alterations; i++)
    net_alarm(w->net, now + 20000 + pick(w, 200000), ALARM_FAULT + 1);
}

/* A short seed gets another round of requests, until enough has happened in it. */
static void plan_again(world *w) {
  actions a;
  actions_init(&a);
  for (int i = 0; i < w->client_count; i++) {
    sessions_release(w->sessions, w->clients[i].id, net_now(w->net), &a);
    w->clients[i] = (client){0};
    client_plan(w, &w->clients[i]);
    net_alarm(w->net, net_now(w->net) + pick(w, 100000), ALARM_START + i);
  }
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
}

static bool all_finished(const world *w) {
  for (int i = 0; i < w->client_count; i++)
    if (!w->clients[i].finished) return false;
  return true;
}

static void world_open(world *w, uint64_t seed, totals *t) {
  *w = (world){.seed = seed, .totals = t, .net = net_open(seed, &t->net), .is_virtual = seed % 2 == 0};
  w->targets_return = seed % 5 != 0;
  err e;
  int rc = ledger_memory(&w->ledger);
  w->orchestrator = incarnation(w);
  sessions_options o = {.incarnation = w->orchestrator,
                        .vocabulary_size = TOY_VOCABULARY,
                        .targets_return = w->targets_return,
                        .random = sim_random,
                        .random_context = w};
  o.ledger = w->ledger;
  if (rc == ERR_OK) rc = sessions_alloc(&w->sessions, &o, &e);
  assert(rc == ERR_OK);
  net_start(w->net, ORCH, addresses[ORCH], sessions_as_machine(w->sessions));
  for (int i = TARGET_A; i <= TARGET_B; i++) start_target(w, i);
  for (int i = DRAFT_A; i <= DRAFT_B; i++) start_draft(w, i);
}

static void world_close(world *w) {
  for (int i = 0; i < NODES; i++) {
    count_blocks(w, w->nodes[i].target);
    target_free(w->nodes[i].target);
    draft_free(w->nodes[i].draft);
    drafter_free(&w->nodes[i].drafter);
  }
  sessions_free(w->sessions);
  w->ledger.close(w->ledger.self);
  net_close(w->net);
}

/* Runs one seed; NULL or why it failed. *digest sums up all that happened. */
static const char *run_seed(uint64_t seed, totals *t, uint64_t *digest) {
  world *w = calloc(1, sizeof *w);
  assert(w);
  world_open(w, seed, t);
  plan(w);
  uint64_t before = t->net.events;
  while (!w->failure) {
    bool finished = all_finished(w);
    if (finished && t->net.events - before >= EVENTS_MIN) break;
    if (finished) plan_again(w);
    int alarm = net_run(w->net, END_US);
    if (alarm == -1) {
      fail(w, "an answer did not come to its end");
      break;
    }
    on_alarm(w, alarm);
    for (int i = TARGET_A; i <= TARGET_B; i++) {
      if (!w->nodes[i].target) continue;
      feed_engine(w, i);
      check_epochs(w, &w->nodes[i]);
      check_blocks(w, &w->nodes[i]);
    }
    for (int i = DRAFT_A; i <= DRAFT_B; i++) feed_model(w, i);
    for (int i = 0; i < w->client_count; i++) client_look(w, &w->clients[i]);
  }
  for (int i = DRAFT_A; i <= DRAFT_B; i++) count_features(w, &w->nodes[i]);
  t->seeds++;
  *digest = net_random(w->net) ^ net_now(w->net) * 31 ^ t->net.events * 7;
  const char *failure = w->failure;
  world_close(w);
  free(w);
  return failure;
}

typedef struct share {
  pthread_t thread;
  uint64_t first, count, step;
  bool replay;
  totals totals;
  uint64_t failed_seed;
  const char *failure;
} share;

static void *run_share(void *context) {
  share *s = context;
  for (uint64_t i = 0; i < s->count && !s->failure; i++) {
    uint64_t seed = s->first + i * s->step, digest, again;
    uint64_t before = s->totals.net.events;
    s->failure = run_seed(seed, &s->totals, &digest);
    s->failed_seed = seed;
    if (!s->replay || s->failure) continue;
    totals other = {.net.events = before};
    run_seed(seed, &other, &again);
    if (again != digest) s->failure = "the seed does not replay exactly";
  }
  return NULL;
}

static void add(totals *sum, const totals *t) {
  uint64_t *a = (uint64_t *)sum;
  const uint64_t *b = (const uint64_t *)t;
  for (size_t i = 0; i < sizeof *sum / sizeof *a; i++) a[i] += b[i];
}

static uint64_t number(int argc, char **argv, const char *flag, uint64_t fallback) {
  for (int i = 1; i + 1 < argc; i++)
    if (strcmp(argv[i], flag) == 0) return strtoull(argv[i + 1], NULL, 10);
  return fallback;
}

/* The figures that say whether the network was hard enough: each must be above `floor` for a long run. */
static bool print_totals(const totals *t, uint64_t floor) {
  const struct {
    const char *name;
    uint64_t value;
  } required[] = {{"lost", t->net.lost},
                  {"repeated", t->net.repeated},
                  {"reordered", t->net.reordered},
                  {"DESYNC", t->net.desync},
                  {"RESEND", t->net.resend},
                  {"TREE_RESET", t->net.tree_reset},
                  {"restarts", t->net.restarts},
                  {"accepted", t->accepted},
                  {"marked", t->marked},
                  {"rests compared", t->rests_compared},
                  {"blocks shared", t->shared},
                  {"blocks evicted", t->evicted},
                  {"said by a mad draft", t->said},
                  {"devices lost", t->devices_lost},
                  {"features read", t->features}};
  bool ok = true;
  printf("sim: %llu seeds, %llu events (%.0f a seed), %llu frames, %llu tokens, %llu forwards\n",
         (unsigned long long)t->seeds, (unsigned long long)t->net.events,
         (double)t->net.events / (double)t->seeds, (unsigned long long)t->net.sent,
         (unsigned long long)t->tokens, (unsigned long long)t->forwards);
  for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
    printf("  %-16s %10llu%s\n", required[i].name, (unsigned long long)required[i].value,
           required[i].value > floor ? "" : "   TOO FEW");
    ok &= required[i].value > floor;
  }
  printf("  live nodes at rest %llu, prefixes altered %llu, caches rolled back %llu, streams forged %llu, "
         "repairs %llu, cancelled %llu, stopped %llu, "
         "lockstep %llu, rests %llu, epochs %llu, ended with their device %llu, features forged %llu\n",
         (unsigned long long)t->live_nodes, (unsigned long long)t->altered,
         (unsigned long long)t->rolled_back, (unsigned long long)t->net.forged,
         (unsigned long long)t->repairs, (unsigned long long)t->cancelled, (unsigned long long)t->stopped,
         (unsigned long long)t->lockstep, (unsigned long long)t->rests, (unsigned long long)t->epochs,
         (unsigned long long)t->device_errors, (unsigned long long)t->features_wrong);
  return ok;
}

int main(int argc, char **argv) {
  uint64_t first = number(argc, argv, "--seed", 1), count = number(argc, argv, "--count", 1000);
  uint64_t threads = number(argc, argv, "--threads", 2);
  bool replay = false;
  for (int i = 1; i < argc; i++) replay |= strcmp(argv[i], "--replay") == 0;
  if (count < threads) threads = 1;
  share *shares = calloc(threads, sizeof *shares);
  totals sum = {0};
  int rc = 0;
  for (uint64_t i = 0; i < threads; i++) {
    shares[i] = (share){
        .first = first + i, .count = (count - i + threads - 1) / threads, .step = threads, .replay = replay};
    pthread_create(&shares[i].thread, NULL, run_share, &shares[i]);
  }
  for (uint64_t i = 0; i < threads; i++) {
    pthread_join(shares[i].thread, NULL);
    add(&sum, &shares[i].totals);
    if (!shares[i].failure) continue;
    printf("sim: seed %llu FAILED: %s (again: sim --seed %llu --count 1, SIM_LOG=1 for the whole story)\n",
           (unsigned long long)shares[i].failed_seed, shares[i].failure,
           (unsigned long long)shares[i].failed_seed);
    rc = 1;
  }
  if (sum.seeds && !print_totals(&sum, count >= 20000 ? 1000 : 0) && count >= 1000) rc = 1;
  free(shares);
  printf("sim: %s\n", rc ? "FAILED" : "passed");
  return rc;
}
