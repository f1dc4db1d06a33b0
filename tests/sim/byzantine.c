#include "tests/sim/byzantine.h"

#include "common/base/min.h"
#include "tests/sim/programs.h"
#include <string.h>

#define LIES_MAX       8      /* about one session, to its own orchestrator */
#define FORGE_EVERY_US 4000   /* at most, while answers grow; else less and less often, */
#define FORGE_RARE_US  400000 /* but not more rarely than this */

static const session *session_of(const world *w, uint64_t id) {
  for (int i = TARGET_A; i <= TARGET_B; i++) {
    session *s = w->nodes[i].target ? session_store_get(target_sessions(w->nodes[i].target), id) : NULL;
    if (s) return s;
  }
  return NULL;
}

static msg_hello forged_hello(world *w, int from) {
  wire_id ids[] = {w->nodes[from].incarnation, w->nodes[TARGET_A + (int)world_pick(w, 2)].incarnation,
                   world_incarnation(w)};
  return (msg_hello){.version_min = WIRE_VERSION_MIN,
                     .version_max = WIRE_VERSION_MAX,
                     .role = (wire_role)(1 + world_pick(w, 3)),
                     .incarnation = ids[world_pick(w, 3)],
                     .vocabulary_size = TOY_VOCABULARY,
                     .numerics_id = wire_text("toy"),
                     .endpoint = wire_text(programs_addresses[TARGET_A + (int)world_pick(w, 2)]),
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

#define FORGED_MAX 40 /* tokens or nodes in a frame */

/* What a forged message may be filled with: what is right for a session, or nearly. */
typedef struct forgery {
  const client *client;
  const session *session;
  int32_t base, count, tokens[FORGED_MAX];
  uint64_t parents[FORGED_MAX], first;
  float scores[FORGED_MAX];
  hash16 hash, after; /* at base, and after the tokens */
  uint32_t generation;
} forgery;

static void forge_tokens(world *w, forgery *f) {
  const session *s = f->session;
  f->base = 1 + (int32_t)world_pick(w, (uint64_t)s->committed.length);
  f->count = 1 + (int32_t)world_pick(w, 4);
  f->first = 1 + world_pick(w, 40);
  f->hash = f->after = s->committed.hashes[f->base];
  for (int32_t i = 0; i < f->count; i++) {
    f->tokens[i] = (int32_t)world_pick(w, TOY_VOCABULARY + (world_pick(w, 8) == 0));
    f->parents[i] = world_pick(w, 2) ? 0 : world_pick(w, f->first + (uint64_t)i);
    f->scores[i] = -(float)world_pick(w, 5) / 4;
    f->after = hash_next(f->after, s->committed.seed, f->tokens[i]);
  }
  if (world_pick(w, 4) == 0) f->hash.bytes[0] ^= 1;
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
                     .done = world_pick(w, 2)};
}

static msg_state forged_state(world *w, const forgery *f, msg_type type) {
  msg_state x = {.length = f->base,
                 .hash = f->hash,
                 .ticket = f->session->request.ticket,
                 .reason = wire_text("forged")};
  if (world_pick(w, 2)) x.ticket.bytes[world_pick(w, 16)] ^= 1;
  if (type == MSG_ATTACH)
    x.request = (msg_feature_request){
        .taps = f->tokens, .tap_count = min_i32(f->count, (int32_t)world_pick(w, 5)), .type = WIRE_F32};
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
    m->u.ping.load = (int32_t)world_pick(w, 9);
    break;
  case MSG_ERROR:
    m->u.error = (msg_error){-(int32_t)(1 + world_pick(w, 20)), wire_text("forged")};
    break;
  case MSG_OPEN:
  case MSG_PART:
    m->u.open = forged_open(f);
    if (m->type == MSG_PART) m->u.open.total = f->base + f->count + 1 + (int32_t)world_pick(w, 9);
    break;
  case MSG_TOKENS:
    m->u.tokens =
        (msg_tokens){.base_length = f->base, .tokens = f->tokens, .token_count = f->count, .hash = f->after};
    break;
  case MSG_DONE:
    m->u.done = (msg_done){.length = f->base, .hash = f->hash, .finish = (wire_finish)(1 + world_pick(w, 3))};
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

static const msg_type from_drafts[] = {MSG_ERROR,  MSG_PONG,       MSG_OPEN,   MSG_OPENED,   MSG_END,
                                       MSG_ENDED,  MSG_DESYNC,     MSG_TOKENS, MSG_ACK,      MSG_RESEND,
                                       MSG_DONE,   MSG_ATTACH,     MSG_NODES,  MSG_NODES,    MSG_NODES,
                                       MSG_DETACH, MSG_TREE_RESET, MSG_HELLO,  MSG_FEATURES, MSG_PART};
static const msg_type from_targets[] = {MSG_ERROR,      MSG_PONG,   MSG_OPENED, MSG_ENDED,    MSG_DESYNC,
                                        MSG_TOKENS,     MSG_TOKENS, MSG_DONE,   MSG_ATTACHED, MSG_DETACH,
                                        MSG_TREE_RESET, MSG_NODES,  MSG_RESEND, MSG_FEATURES, MSG_PART};

/* What a draft says in its own name, to anybody. */
/* More nodes than a draft may have, as its next ones would be. */
static void flood(world *w, forgery *f, int from, int to) {
  const session_draft *d = session_draft_of((session *)f->session, net_peer(w->net, to, from));
  if (!d) return;
  f->generation = d->ids.generation;
  f->base = f->session->committed.length;
  f->hash = f->session->committed.hashes[f->base];
  f->first = d->ids.next;
  f->count = FORGED_MAX;
  for (int32_t i = 0; i < f->count; i++) {
    f->tokens[i] = (int32_t)world_pick(w, TOY_VOCABULARY);
    f->parents[i] = i && world_pick(w, 4) ? f->first + world_pick(w, (uint64_t)i) : 0;
    f->scores[i] = -(float)world_pick(w, 5) / 4;
  }
  msg m = {.type = MSG_NODES,
           .to = w->nodes[to].incarnation,
           .session = f->client->id,
           .epoch = f->session->epoch,
           .u.nodes = forged_nodes(w, f)};
  w->totals->said_by_draft += world_say(w, from, to, &m);
}

static void forge_as_draft(world *w, forgery *f) {
  int from = DRAFT_A + (int)world_pick(w, 2), to = (int)world_pick(w, 3);
  if (!is_known_draft(w, from)) return;
  if (to != ORCH && world_pick(w, 3) == 0) {
    flood(w, f, DRAFT_A, to);
    flood(w, f, DRAFT_B, to);
    return;
  }
  forge_tokens(w, f);
  msg m = {.type = from_drafts[world_pick(w, sizeof from_drafts / sizeof *from_drafts)],
           .session = f->client->id,
           .epoch = f->session->epoch + (world_pick(w, 6) == 0)};
  m.to = to == ORCH ? w->orchestrator : w->nodes[to].incarnation;
  forge_body(w, f, from, &m);
  w->totals->said_by_draft += world_say(w, from, to, &m);
}

/* What a target says to drafts about any session. */
static void forge_to_draft(world *w, forgery *f) {
  int from = TARGET_A + (int)world_pick(w, 2), to = DRAFT_A + (int)world_pick(w, 2);
  if (!w->nodes[from].target || !w->nodes[to].draft) return;
  forge_tokens(w, f);
  msg m = {.type = from_targets[world_pick(w, sizeof from_targets / sizeof *from_targets)],
           .session = f->client->id,
           .epoch = f->session->epoch + (world_pick(w, 6) == 0)};
  m.to = w->nodes[to].incarnation;
  forge_body(w, f, from, &m);
  w->totals->said_by_target += world_say(w, from, to, &m);
}

/* --- what a target says to the orchestrator --- */

/* The target at which the orchestrator has the session now; -1: it may be anywhere. */
static int host_of(const world *w, const client *c) {
  sessions_view v;
  if (!c->started || !sessions_get(w->sessions, c->id, &v) || v.state != SESSIONS_RUNNING) return -1;
  for (int i = TARGET_A; i <= TARGET_B; i++) {
    const session *s =
        w->nodes[i].target ? session_store_get(target_sessions(w->nodes[i].target), c->id) : NULL;
    if (s && s->state == SESSION_RUNNING && s->epoch == v.epoch) return i;
  }
  return -1;
}

/* About a session of another target: nothing of it is true, and nothing of it counts. */
static void forge_of_another(world *w, forgery *f, int host) {
  int from = host == TARGET_A ? TARGET_B : TARGET_A;
  forge_tokens(w, f);
  msg m = {.to = w->orchestrator,
           .type = from_targets[world_pick(w, sizeof from_targets / sizeof *from_targets)],
           .session = f->client->id,
           .epoch = f->session->epoch};
  forge_body(w, f, from, &m);
  w->totals->said_by_target += world_say(w, from, ORCH, &m);
}

/* Nearly right, so that it can be told: what is wrong with it is one of the rest. */
typedef enum {
  LIE_HASH,
  LIE_BEYOND,
  LIE_EPOCH,
  LIE_RECEIVER,
  LIE_DONE_EARLY,
  LIE_DONE_HASH,
  LIE_OPENED,
  LIES
} lie;

static void tell_lie(world *w, forgery *f, lie kind, msg *m) {
  const session *s = f->session;
  bool done = kind == LIE_DONE_EARLY || kind == LIE_DONE_HASH;
  if (kind == LIE_EPOCH) m->epoch--;
  if (kind == LIE_RECEIVER) m->to = world_incarnation(w);
  if (kind == LIE_BEYOND) f->base = s->committed.length + 1 + (int32_t)world_pick(w, 4);
  if (kind == LIE_HASH || kind == LIE_BEYOND) f->after.bytes[3] ^= 8;
  if (kind == LIE_DONE_EARLY) f->base = 1 + (int32_t)world_pick(w, (uint64_t)s->stream.acked - 1);
  if (kind == LIE_DONE_HASH) f->base = s->committed.length;
  f->hash = s->committed.hashes[f->base <= s->committed.length ? f->base : 0];
  if (kind == LIE_DONE_HASH || kind == LIE_OPENED) f->hash.bytes[5] ^= 1;
  m->type = done ? MSG_DONE : kind == LIE_OPENED ? MSG_OPENED : MSG_TOKENS;
  if (done)
    m->u.done = (msg_done){.length = f->base, .hash = f->hash, .finish = WIRE_FINISH_STOP};
  else if (kind == LIE_OPENED)
    m->u.state = (msg_state){.length = f->base, .hash = f->hash};
  else
    m->u.tokens =
        (msg_tokens){.base_length = f->base, .tokens = f->tokens, .token_count = f->count, .hash = f->after};
}

/* About its own session a target may say what it likes, for its word is the answer: which tokens, and where
 * they end. But a frame of another epoch or for another receiver is not heard, and a hash that does not fit
 * costs a repair. Of these a session bears only so many. */
static void forge_of_its_own(world *w, forgery *f, client *c, int host) {
  if (c->lies >= LIES_MAX || f->session->stream.acked < 2) return;
  c->lies++;
  forge_tokens(w, f);
  for (int32_t i = 0; i < f->count; i++) f->tokens[i] %= TOY_VOCABULARY; /* else it ends the answer */
  msg m = {.to = w->orchestrator, .session = c->id, .epoch = f->session->epoch};
  tell_lie(w, f, (lie)world_pick(w, LIES), &m);
  w->totals->said_by_target += world_say(w, host, ORCH, &m);
}

static void forge_to_orchestrator(world *w, forgery *f, client *c) {
  int host = host_of(w, c);
  if (host < 0) return;
  f->session = session_store_get(target_sessions(w->nodes[host].target), c->id);
  if (world_pick(w, 3))
    forge_of_another(w, f, host);
  else
    forge_of_its_own(w, f, c, host);
}

/* --- strangers --- */

static void ignore(void *self, const event *e, uint64_t now_us, actions *out) {
  (void)self, (void)e, (void)now_us, (void)out;
}

static uint64_t never(const void *self) {
  (void)self;
  return MACHINE_NEVER;
}

/* It connects to the targets and says that it is an orchestrator. */
static void enter(world *w) {
  actions a;
  net_start(w->net, STRANGER, "", (machine){.step = ignore, .deadline = never});
  actions_init(&a);
  for (int i = TARGET_A; i <= TARGET_B; i++) actions_connect(&a, 0, wire_text(programs_addresses[i]));
  net_perform(w->net, STRANGER, &a);
  actions_fini(&a);
  w->stranger_id = world_incarnation(w);
}

static void forge_as_stranger(world *w, forgery *f) {
  static const msg_type types[] = {MSG_HELLO, MSG_OPEN, MSG_END,    MSG_ACK,    MSG_RESEND,
                                   MSG_NODES, MSG_PONG, MSG_ATTACH, MSG_DETACH, MSG_ERROR};
  int to = TARGET_A + (int)world_pick(w, 2);
  forge_tokens(w, f);
  msg m = {.type = types[world_pick(w, sizeof types / sizeof *types)],
           .to = w->nodes[to].incarnation,
           .session = f->client->id,
           .epoch = f->session->epoch + (uint32_t)world_pick(w, 2)};
  forge_body(w, f, TARGET_A, &m);
  if (m.type == MSG_ATTACH) m.u.state.ticket = world_incarnation(w); /* which it cannot know */
  if (m.type == MSG_HELLO) m.u.hello.role = WIRE_ROLE_ORCHESTRATOR, m.u.hello.incarnation = w->stranger_id;
  w->totals->said_by_stranger += world_say(w, STRANGER, to, &m);
}

void byzantine_begin(world *w) {
  if (w->stranger) enter(w);
  byzantine_speak(w);
}

void byzantine_speak(world *w) {
  bool moved = w->totals->net.tokens != w->forge_tokens;
  w->forge_tokens = w->totals->net.tokens;
  w->forge_us = moved || !w->forge_us ? FORGE_EVERY_US : min_u64(2 * w->forge_us, FORGE_RARE_US);
  uint64_t next = 1000 + world_pick(w, w->forge_us);
  if (!w->byzantine_drafts && !w->byzantine_targets && !w->stranger) return;
  world_alarm(w, next, ALARM_FORGE, 0, 0);
  if (w->resting || !w->sessions) return;
  client *c = &w->clients[world_pick(w, (uint64_t)w->client_count)];
  const session *s = session_of(w, c->id);
  forgery f = {.client = c, .session = s};
  if (!s) return;
  f.generation = s->drafts.of[0].ids.generation + (world_pick(w, 6) == 0);
  if (w->stranger)
    forge_as_stranger(w, &f);
  else if (w->byzantine_drafts)
    forge_as_draft(w, &f);
  else if (world_pick(w, 2))
    forge_to_draft(w, &f);
  else
    forge_to_orchestrator(w, &f, c);
}
