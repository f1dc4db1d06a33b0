/* libs: sessions wire speculative base */
/* fuzz_orchestrator - the orchestrator's machine between workers that send valid, near-right frames at any
 * moment, while clients begin, cancel and release sessions. Nothing is shown that is not logged, what was
 * shown never changes, and what a session ends with is one of the four ways to end. */
#include "tests/support/sessions_world.h"

#include "tests/support/near_frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const msg_type from_targets[] = {MSG_HELLO,  MSG_OPENED, MSG_OPENED, MSG_TOKENS, MSG_TOKENS,
                                        MSG_TOKENS, MSG_TOKENS, MSG_DONE,   MSG_DESYNC, MSG_ENDED,
                                        MSG_ERROR,  MSG_PING,   MSG_PONG,   MSG_BYE,    MSG_ATTACH,
                                        MSG_NODES,  MSG_ACK,    MSG_RESEND, MSG_OPEN,   MSG_WELCOME};
static const msg_type from_drafts[] = {MSG_HELLO,  MSG_OPENED, MSG_DESYNC, MSG_ENDED,  MSG_ERROR,
                                       MSG_PING,   MSG_PONG,   MSG_BYE,    MSG_TOKENS, MSG_DONE,
                                       MSG_DETACH, MSG_NODES,  MSG_ACK};
#define COUNT(a) (int32_t)(sizeof(a) / sizeof(a)[0])
enum { WAIT_US = 100000, SESSIONS = 6 };

static struct client {
  uint64_t id;
  int32_t shown;
  int32_t tokens[CONTEXT];
} clients[SESSIONS];

static void look(world *w, struct client *c) {
  sessions_view v;
  if (!c->id || !sessions_get(w->o, c->id, &v)) return;
  if (v.logged > v.length || v.length > CONTEXT) abort();
  if (v.logged < c->shown && v.logged >= v.prompt_length) abort();
  if (memcmp(c->tokens, v.tokens, (size_t)(v.logged < c->shown ? v.logged : c->shown) * sizeof(int32_t)) != 0)
    abort();
  for (; c->shown < v.logged; c->shown++) c->tokens[c->shown] = v.tokens[c->shown];
  if (v.finish < 0 || v.finish > WIRE_FINISH_ERROR || (v.finish == WIRE_FINISH_ERROR && !v.code)) abort();
}

static void begin_session(near_frames *n, world *w) {
  struct client *c = &clients[near_draw(n, SESSIONS)];
  sessions_request r = request(!near_chance(n, 4));
  err e = {0};
  if (c->id) return;
  r.options.max_tokens = 1 + near_draw(n, 128);
  *c = (struct client){.id = sessions_start(w->o, &r, w->r.now, &w->r.out, &e)};
}

static void cancel_session(near_frames *n, world *w) {
  struct client *c = &clients[near_draw(n, SESSIONS)];
  if (c->id) sessions_cancel(w->o, c->id, w->r.now, &w->r.out);
}

static void release_session(near_frames *n, world *w) {
  struct client *c = &clients[near_draw(n, SESSIONS)];
  if (c->id) sessions_release(w->o, c->id, w->r.now, &w->r.out);
  *c = (struct client){0};
}

static void frame_from_a_target(near_frames *n, world *w) {
  static const peer_id peers[] = {TARGET, TARGET, TARGET, TARGET2, TARGET3, STRANGER};
  peer_id p = peers[near_draw(n, COUNT(peers))];
  near_say(n, &w->r, p, ID(p), from_targets, COUNT(from_targets));
}

static void frame_from_a_draft(near_frames *n, world *w) {
  peer_id p = near_chance(n, 2) ? DRAFT : DRAFT2;
  near_say(n, &w->r, p, ID(p), from_drafts, COUNT(from_drafts));
}

static void time_passes(near_frames *n, world *w) {
  rig_advance(&w->r, (uint64_t)near_draw(n, 256) * WAIT_US / 16);
}

static void all_are_alive(near_frames *n, world *w) {
  (void)n;
  for (peer_id p = TARGET; p <= DRAFT2; p++) rig_say(&w->r, p, ping_message(MSG_PING, SELF, 1, 1, 0));
}

static void worker_dies(near_frames *n, world *w) {
  sessions_worker_died(w->o, ID(near_chance(n, 2) ? TARGET : DRAFT), w->r.now, &w->r.out);
}

/* What is written stays written: it is less and less behind. */
static void file_writes(near_frames *n, world *w) {
  if (w->ledger.held > 0) w->ledger.held = near_draw(n, w->ledger.held);
}

static void (*const happens[])(near_frames *, world *) = {
    frame_from_a_target, frame_from_a_target, frame_from_a_target, frame_from_a_target,
    frame_from_a_draft,  time_passes,         all_are_alive,       begin_session,
    cancel_session,      release_session,     worker_dies,         file_writes};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static near_frames n;
  void *state;
  near_init(&n, data, size, truth());
  n.self = SELF;
  n.context = CONTEXT, n.vocabulary = VOCAB;
  n.length = n.prompt_length = PROMPT_LENGTH;
  memset(clients, 0, sizeof clients);
  set_up(&state);
  world *w = state;
  w->ledger.held = near_draw(&n, 64);
  register_workers(w, TARGET, DRAFT);
  begin_session(&n, w);
  near_observe(&n, &w->r);
  while (near_step(&n)) {
    happens[near_draw(&n, COUNT(happens))](&n, w);
    near_observe(&n, &w->r);
    for (int32_t i = 0; i < SESSIONS; i++) look(w, &clients[i]);
  }
  tear_down(&state);
  return 0;
}
