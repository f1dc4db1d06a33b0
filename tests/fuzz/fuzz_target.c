/* libs: target_alone model_alone grammar text file wire speculative base */
/* fuzz_target - a target's machine between peers that send valid, near-right frames at any moment, while a
 * toy engine computes. Whatever they send, every token of every session's output must be the model's. */
#include "tests/support/target_world.h"

#include "tests/support/near_frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const msg_type from_drafts[] = {MSG_ATTACH,   MSG_NODES,  MSG_NODES,  MSG_NODES,      MSG_DETACH,
                                       MSG_RESEND,   MSG_HELLO,  MSG_PING,   MSG_PONG,       MSG_BYE,
                                       MSG_ACK,      MSG_OPEN,   MSG_END,    MSG_ERROR,      MSG_DESYNC,
                                       MSG_FEATURES, MSG_TOKENS, MSG_OPENED, MSG_TREE_RESET, MSG_PART};
static const msg_type from_orchestrators[] = {MSG_OPEN,   MSG_PART,    MSG_PART, MSG_ACK,    MSG_ACK,
                                              MSG_RESEND, MSG_END,     MSG_PING, MSG_PONG,   MSG_ERROR,
                                              MSG_HELLO,  MSG_WELCOME, MSG_BYE,  MSG_DESYNC, MSG_NODES,
                                              MSG_ATTACH, MSG_TOKENS,  MSG_DONE, MSG_ENDED};
#define COUNT(a) (int32_t)(sizeof(a) / sizeof(a)[0])
enum { WAIT_US = 100000 };

static void check_tokens_are_the_models(world *w) {
  session_store *all = target_sessions(w->t);
  for (int32_t i = 0; i < all->count; i++) {
    const session *s = &all->slots[i];
    const prefix *c = &s->committed;
    if (s->state == SESSION_FREE) continue;
    for (int32_t k = PROMPT_LENGTH; k < c->length; k++)
      if (c->tokens[k] != next_of(c->tokens[k - 1])) abort();
  }
}

static void frame_from_a_draft(near_frames *n, world *w) {
  static const peer_id peers[] = {DRAFT, DRAFT, DRAFT2, STRANGER};
  peer_id p = peers[near_draw(n, 4)];
  near_say(n, &w->r, p, ID(p), from_drafts, COUNT(from_drafts));
}

static void frame_from_an_orchestrator(near_frames *n, world *w) {
  peer_id p = near_chance(n, 8) ? ORCH2 : ORCH;
  near_say(n, &w->r, p, ID(p), from_orchestrators, COUNT(from_orchestrators));
}

static void engine_works(near_frames *n, world *w) {
  static const int codes[] = {ERR_OK, ERR_OK, ERR_OK, ERR_OK, ERR_OK, ERR_OK, ERR_NOMEM, ERR_INTERNAL};
  if (!take_job(w)) return;
  w->fail = codes[near_draw(n, 8)];
  w->differs = near_chance(n, 16);
  w->untapped = near_chance(n, 16);
  w->layers++;
  give_result(w);
}

static void engine_takes_a_job(near_frames *n, world *w) {
  (void)n;
  take_job(w);
}

static void time_passes(near_frames *n, world *w) {
  rig_advance(&w->r, (uint64_t)near_draw(n, 256) * WAIT_US / 16);
}

static void all_are_alive(near_frames *n, world *w) {
  (void)n;
  const peer_id peers[] = {ORCH, DRAFT, DRAFT2};
  for (int32_t i = 0; i < COUNT(peers); i++) rig_say(&w->r, peers[i], ping_message(MSG_PING, SELF, 1, 1, 0));
}

static void (*const happens[])(near_frames *, world *) = {
    frame_from_a_draft, frame_from_a_draft, frame_from_a_draft, frame_from_an_orchestrator,
    engine_works,       engine_works,       engine_takes_a_job, time_passes,
    all_are_alive,      frame_from_a_draft};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static near_frames n;
  void *state;
  near_init(&n, data, size, truth());
  n.self = SELF, n.session = S, n.seed = SEED, n.ticket = TICKET;
  n.context = CONTEXT, n.vocabulary = VOCAB;
  n.length = n.prompt_length = PROMPT_LENGTH;
  virtual_blocks = near_chance(&n, 2) ? BLOCKS / 4 : 0;
  set_up(&state);
  world *w = state;
  msg m = prompt_message();
  m.u.open.draft_expected = near_chance(&n, 2);
  m.u.open.options.lockstep = near_chance(&n, 2);
  rig_say(&w->r, ORCH, m);
  near_observe(&n, &w->r);
  while (near_step(&n)) {
    happens[near_draw(&n, COUNT(happens))](&n, w);
    near_observe(&n, &w->r);
    check_tokens_are_the_models(w);
  }
  tear_down(&state);
  return 0;
}
