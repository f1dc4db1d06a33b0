#include "tests/support/near_frames.h"
#include "tests/support/random.h"

static uint64_t near_total; /* frames that machines have been given, of all inputs */

__attribute__((destructor)) static void near_report(void) {
  if (near_total) fprintf(stderr, "frames: %llu\n", (unsigned long long)near_total);
}

bool near_step(near_frames *n) {
  return n->steps-- > 0;
}

int32_t near_draw(near_frames *n, int32_t below) {
  if (n->at < n->end) return *n->at++ % below;
  return (int32_t)random_below(&n->random, (uint32_t)below);
}

/* Mostly `right`; else off by a little, or at a limit. */
static int32_t near_length(near_frames *n, int32_t right) {
  int32_t kind = near_draw(n, 16);
  if (kind < 10) return right;
  if (kind < 13) return right + near_draw(n, 17) - 8;
  const int32_t limits[] = {
      0, 1, n->prompt_length, n->context - 1, n->context, n->context + 1, WIRE_CONTEXT_MAX};
  return limits[near_draw(n, 7)];
}

static uint64_t near_number(near_frames *n, uint64_t right) {
  int32_t kind = near_draw(n, 16);
  if (kind < 11) return right;
  if (kind < 15) return right + (uint64_t)near_draw(n, 9) - 4;
  return near_draw(n, 2) ? 0 : UINT64_MAX >> near_draw(n, 64);
}

static void near_seed(near_frames *n, uint64_t seed) {
  if (n->hashes_seed == seed && n->hashes_seed) return;
  n->hashes_seed = seed;
  for (int32_t i = 0; i < NEAR_TRUTH; i++) n->hashes[i + 1] = hash_next(n->hashes[i], seed, n->truth[i]);
}

static hash16 near_hash(near_frames *n, int32_t length) {
  near_seed(n, n->seed);
  hash16 h = length >= 0 && length <= NEAR_TRUTH ? n->hashes[length] : (hash16){{1}};
  if (near_draw(n, 12) == 0) h.bytes[near_draw(n, 16)] ^= 1;
  return h;
}

static wire_id near_id(near_frames *n, wire_id right) {
  if (near_draw(n, 24) == 0) right.bytes[near_draw(n, 16)] ^= 1;
  return right;
}

bool near_chance(near_frames *n, int32_t of) {
  return near_draw(n, of) == 0;
}

/* The tokens that follow position `base` of C, mostly. */
static int32_t near_fill(near_frames *n, int32_t base, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    int32_t p = base + i;
    n->tokens[i] = p >= 0 && p < NEAR_TRUTH ? n->truth[p] : 0;
  }
  if (count > 0 && near_chance(n, 8)) n->tokens[near_draw(n, count)] = near_draw(n, 256);
  return count;
}

static void near_hello(near_frames *n, msg *m) {
  static char method[] = "ngram";
  uint32_t version = near_chance(n, 16) ? (uint32_t)near_draw(n, 8) : WIRE_VERSION_MAX;
  m->session = 0;
  if (m->type == MSG_HELLO) m->to = (wire_id){{0}};
  m->u.hello = (msg_hello){.version_min = m->type == MSG_WELCOME ? version : WIRE_VERSION_MIN,
                           .version_max = version,
                           .role = (wire_role)(1 + near_draw(n, 3)),
                           .incarnation = near_id(n, n->peer),
                           .vocabulary_size = near_length(n, n->vocabulary),
                           .method = wire_text(method),
                           .endpoint = near_chance(n, 2) ? n->endpoint : (wire_string){0},
                           .session_max = near_draw(n, 8),
                           .context_max = near_length(n, n->context),
                           .node_max = near_draw(n, 256)};
  m->u.hello.model_fingerprint.bytes[0] = near_chance(n, 8) ? 0 : 10;
  m->u.hello.vocabulary_hash.bytes[0] = near_chance(n, 8) ? 0 : 20;
}

static void near_error(near_frames *n, msg *m) {
  m->u.error = (msg_error){-1 - near_draw(n, 24), wire_text("no reason")};
  if (near_chance(n, 4)) m->session = 0;
}

static void near_ping(near_frames *n, msg *m) {
  m->session = 0;
  m->u.ping =
      (msg_ping){near_number(n, 1), near_number(n, RIG_START), m->type == MSG_PONG ? near_draw(n, 100) : 0};
}

static void near_bare(near_frames *n, msg *m) {
  (void)n;
  if (m->type == MSG_BYE) m->session = 0;
}

static void near_options(near_frames *n, msg_options *o) {
  *o = (msg_options){.top_p = 1,
                     .repeat_penalty = 1,
                     .max_tokens = 1 + near_draw(n, 256),
                     .context = near_length(n, n->context),
                     .budget = near_draw(n, 65),
                     .lockstep = near_chance(n, 3),
                     .selfcheck = near_draw(n, 4),
                     .single = near_chance(n, 8)};
  if (near_chance(n, 8)) o->temperature = 0.7f;
  if (near_chance(n, 4)) {
    n->taps[0] = near_draw(n, 256);
    o->stops = n->taps;
    o->stop_count = 1;
  }
}

static void near_open(near_frames *n, msg *m) {
  msg_open *o = &m->u.open;
  int32_t base = near_chance(n, 3) ? near_length(n, n->length) : 0;
  int32_t count = near_fill(n, base, near_chance(n, 3) ? near_draw(n, NEAR_TOKENS) : n->prompt_length);
  *o = (msg_open){.ticket = near_id(n, n->ticket),
                  .hash_seed = near_number(n, n->seed),
                  .base_length = base,
                  .base_hash = near_hash(n, base),
                  .tokens = n->tokens,
                  .token_count = count,
                  .hash = near_hash(n, base + count),
                  .prompt_length = near_length(n, n->prompt_length),
                  .draft_expected = near_chance(n, 2),
                  .accepted_wanted = near_chance(n, 3)};
  near_options(n, &o->options);
  if (near_chance(n, 2)) o->target_endpoint = n->endpoint, o->target_incarnation = near_id(n, n->peer);
}

static void near_part(near_frames *n, msg *m) {
  near_open(n, m);
  m->u.open.total = m->u.open.base_length + m->u.open.token_count + near_draw(n, NEAR_TOKENS);
}

static void near_request(near_frames *n, msg_feature_request *r) {
  int32_t count = near_draw(n, WIRE_TAPS_MAX + 1);
  for (int32_t i = 0; i < count; i++) n->taps[i] = near_draw(n, 12) + i;
  *r = (msg_feature_request){.taps = n->taps,
                             .tap_count = count,
                             .type = near_chance(n, 2) ? WIRE_BF16 : WIRE_F32,
                             .from = near_length(n, n->length),
                             .horizon = near_draw(n, 16)};
  if (near_chance(n, 4)) r->fc.bytes[0] = 1;
}

static void near_state(near_frames *n, msg *m) {
  msg_state *s = &m->u.state;
  s->length = near_length(n, n->length);
  s->hash = near_hash(n, s->length);
  s->reason = wire_text("no reason");
  s->generation = (uint32_t)near_number(n, n->generation);
  if (m->type == MSG_ATTACH) {
    s->ticket = near_id(n, n->ticket);
    if (near_chance(n, 2)) near_request(n, &s->request);
  }
  if (m->type == MSG_ATTACHED && near_chance(n, 2))
    s->grant = (msg_feature_grant){.width = 1 + near_draw(n, NEAR_WIDTH),
                                   .type = near_chance(n, 2) ? WIRE_BF16 : WIRE_F32,
                                   .fused = near_chance(n, 2),
                                   .from = near_length(n, n->length)};
}

static void near_tokens(near_frames *n, msg *m) {
  msg_tokens *t = &m->u.tokens;
  t->base_length = near_length(n, n->length);
  t->tokens = n->tokens;
  t->token_count = near_fill(n, t->base_length, near_draw(n, 16));
  t->hash = near_hash(n, t->base_length + t->token_count);
  if (near_chance(n, 4) && t->token_count) {
    n->bytes[0] = 1, n->bytes[1] = 0;
    t->accepted = n->bytes;
    t->accepted_size = MSG_ACCEPTED_SIZE((uint32_t)t->token_count);
    t->plain_us = (uint32_t)near_draw(n, 3);
  }
}

static void near_resend(near_frames *n, msg *m) {
  m->u.resend.from = near_length(n, n->length);
}

static void near_nodes(near_frames *n, msg *m) {
  msg_nodes *k = &m->u.nodes;
  *k = (msg_nodes){.generation = (uint32_t)near_number(n, n->generation),
                   .base_length = near_length(n, n->length),
                   .first_id = near_number(n, n->next_id),
                   .parents = n->parents,
                   .tokens = n->tokens,
                   .scores = n->scores,
                   .done = near_chance(n, 4)};
  k->base_hash = near_hash(n, k->base_length);
  k->count = near_fill(n, k->base_length, near_draw(n, 17));
  for (int32_t i = 0; i < k->count; i++) { /* a chain, with a twig here and there */
    n->parents[i] = i ? k->first_id + (uint64_t)i - 1 : 0;
    if (near_chance(n, 6)) n->parents[i] = near_number(n, k->first_id + (uint64_t)i - 1);
    n->scores[i] = -(float)near_draw(n, 101) / (float)(1 + near_draw(n, 100));
  }
  if (near_chance(n, 4)) k->features = near_length(n, n->length);
  n->next_id = k->first_id + (uint64_t)k->count;
}

static void near_reset(near_frames *n, msg *m) {
  m->u.reset.generation = (uint32_t)near_number(n, n->generation + 1);
}

static void near_done(near_frames *n, msg *m) {
  int32_t finish = 1 + near_draw(n, 4);
  m->u.done = (msg_done){.length = near_length(n, n->length),
                         .finish = (wire_finish)finish,
                         .code = finish == WIRE_FINISH_ERROR ? -1 - near_draw(n, 24) : 0,
                         .stats = {.forwards = near_number(n, 30), .rows = near_number(n, 20)}};
  m->u.done.hash = near_hash(n, m->u.done.length);
}

static void near_features(near_frames *n, msg *m) {
  msg_features *f = &m->u.features;
  f->base = near_length(n, n->length);
  f->width = 1 + near_draw(n, NEAR_WIDTH);
  f->type = near_chance(n, 2) ? WIRE_BF16 : WIRE_F32;
  f->count = near_draw(n, 9);
  f->rows = n->bytes;
  f->size = (uint32_t)f->count * (uint32_t)f->width * wire_type_size(f->type);
  for (int32_t i = 0; i < 8; i++) n->bytes[near_draw(n, 256)] = (uint8_t)near_draw(n, 256);
}

static void near_ended(near_frames *n, msg *m) {
  m->u.existed = near_chance(n, 2);
}

static void (*const near_makers[])(near_frames *, msg *) = {
    [MSG_HELLO] = near_hello,      [MSG_WELCOME] = near_hello,  [MSG_ERROR] = near_error,
    [MSG_PING] = near_ping,        [MSG_PONG] = near_ping,      [MSG_BYE] = near_bare,
    [MSG_OPEN] = near_open,        [MSG_OPENED] = near_state,   [MSG_END] = near_bare,
    [MSG_ENDED] = near_ended,      [MSG_DESYNC] = near_state,   [MSG_TOKENS] = near_tokens,
    [MSG_ACK] = near_state,        [MSG_RESEND] = near_resend,  [MSG_DONE] = near_done,
    [MSG_ATTACH] = near_state,     [MSG_ATTACHED] = near_state, [MSG_NODES] = near_nodes,
    [MSG_TREE_RESET] = near_reset, [MSG_DETACH] = near_state,   [MSG_FEATURES] = near_features,
    [MSG_PART] = near_part,
};

void near_say(near_frames *n, rig *r, peer_id from, wire_id peer, const msg_type *types, int32_t count) {
  msg m = {.type = types[near_draw(n, count)], .to = near_id(n, n->self)}, decoded;
  err e;
  m.session = near_number(n, n->session);
  m.epoch = (uint32_t)near_number(n, n->epoch);
  n->peer = peer;
  near_makers[m.type](n, &m);
  if (codec_encode(&m, &n->frame, &e)) return;
  arena_reset(&n->memory);
  if (codec_decode(n->frame.data, n->frame.size, &n->memory, &decoded, &e)) return;
  near_total++;
  rig_say(r, from, decoded);
}

void near_observe(near_frames *n, rig *r) {
  for (int32_t i = 0; i < r->out.count; i++) {
    const action *a = &r->out.list[i];
    const msg *m = a->kind == ACTION_SEND ? a->message : NULL;
    if (!m) continue;
    if (m->session) n->session = m->session, n->epoch = m->epoch;
    if (m->type == MSG_OPEN || m->type == MSG_PART) {
      n->seed = m->u.open.hash_seed, n->ticket = m->u.open.ticket;
      n->length = m->u.open.base_length + m->u.open.token_count;
    }
    if (m->type == MSG_TOKENS) n->length = m->u.tokens.base_length + m->u.tokens.token_count;
    if (m->type == MSG_ACK || m->type == MSG_OPENED) n->length = m->u.state.length;
    if (m->type == MSG_ATTACH) n->generation = m->u.state.generation;
    if (m->type == MSG_ATTACHED) n->generation = m->u.state.generation, n->next_id = 1;
    if (m->type == MSG_TREE_RESET) n->generation = m->u.reset.generation, n->next_id = 1;
  }
  rig_clear(r);
}

void near_init(near_frames *n, const uint8_t *data, size_t size, const int32_t *truth) {
  n->at = data, n->end = data + size;
  n->truth = truth;
  n->random = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < size; i++) n->random = (n->random ^ data[i]) * 0x100000001b3u;
  n->steps = NEAR_STEPS;
  n->generation = 1, n->next_id = 1;
  n->epoch = 1;
  n->endpoint = wire_text("tcp://127.0.0.1:4000");
  if (!n->memory.limit) arena_init(&n->memory, CODEC_ARENA_MAX);
}
