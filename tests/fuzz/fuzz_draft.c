/* libs: draft_alone model_alone wire speculative base */
/* fuzz_draft - a draft's machine between an orchestrator and targets that send valid, near-right frames at
 * any moment: it stays within its limits and its memory, whatever a target claims. First byte: whether its
 * drafter reads features.
 */
#include "tests/support/draft_world.h"

#include "tests/support/near_frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const msg_type from_targets[] = {
    MSG_WELCOME,  MSG_ATTACHED,   MSG_ATTACHED, MSG_TOKENS, MSG_TOKENS, MSG_TOKENS, MSG_FEATURES,
    MSG_FEATURES, MSG_TREE_RESET, MSG_DETACH,   MSG_DONE,   MSG_DESYNC, MSG_ERROR,  MSG_PING,
    MSG_PONG,     MSG_BYE,        MSG_HELLO,    MSG_OPEN,   MSG_ACK,    MSG_NODES,  MSG_PART};
static const msg_type from_orchestrators[] = {MSG_OPEN,  MSG_OPEN,    MSG_OPEN,  MSG_PART,   MSG_PART,
                                              MSG_END,   MSG_ACK,     MSG_PING,  MSG_PONG,   MSG_BYE,
                                              MSG_ERROR, MSG_WELCOME, MSG_HELLO, MSG_TOKENS, MSG_ATTACHED};
#define COUNT(a) (int32_t)(sizeof(a) / sizeof(a)[0])
enum { WAIT_US = 100000 };

static void features_come(void *self, int32_t slot, const drafter_features *f) {
  static volatile float sink;
  (void)self, (void)slot, (void)sink;
  if (!f) return;
  if (f->count < 0 || f->width < 1) abort();
  if (f->count > 0) sink += f->rows[0] + f->rows[(size_t)f->count * (size_t)f->width - 1];
}

static void frame_from_a_target(near_frames *n, world *w) {
  peer_id p = near_chance(n, 6) ? TARGET2 : TARGET;
  near_say(n, &w->r, p, ID(p), from_targets, COUNT(from_targets));
}

static void frame_from_the_orchestrator(near_frames *n, world *w) {
  near_say(n, &w->r, ORCH, ID(ORCH), from_orchestrators, COUNT(from_orchestrators));
}

static void time_passes(near_frames *n, world *w) {
  rig_advance(&w->r, (uint64_t)near_draw(n, 256) * WAIT_US / 16);
}

static void all_are_alive(near_frames *n, world *w) {
  (void)n;
  for (peer_id p = ORCH; p <= TARGET; p++) rig_say(&w->r, p, ping_message(MSG_PING, SELF, 1, 1, 0));
}

static void connection_comes(near_frames *n, world *w) {
  rig_connected(&w->r, (uint64_t)near_draw(n, 8),
                near_chance(n, 4)   ? 0
                : near_chance(n, 4) ? TARGET2
                                    : TARGET);
}

static void (*const happens[])(near_frames *, world *) = {
    frame_from_a_target, frame_from_a_target, frame_from_a_target, frame_from_the_orchestrator,
    time_passes,         all_are_alive,       connection_comes,    frame_from_a_target};

/* As the program does: a connection that is asked for comes about, mostly. */
static void connect_what_is_asked(near_frames *n, world *w) {
  uint64_t tags[8];
  int32_t count = 0;
  for (int32_t i = 0; i < w->r.out.count && count < COUNT(tags); i++)
    if (w->r.out.list[i].kind == ACTION_CONNECT) tags[count++] = w->r.out.list[i].tag;
  near_observe(n, &w->r);
  for (int32_t i = 0; i < count; i++) rig_connected(&w->r, tags[i], near_chance(n, 8) ? 0 : TARGET);
}

static void begin(near_frames *n, world *w) {
  rig_say(&w->r, ORCH, prompt_message());
  connect_what_is_asked(n, w);
  rig_say(&w->r, TARGET, welcome_message(TARGET));
  near_observe(n, &w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  near_observe(n, &w->r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const drafter_wants wants = {.taps = {1, 2, 3}, .tap_count = 3, .type = WIRE_F32, .horizon = 6};
  static near_frames n;
  void *state;
  near_init(&n, data, size, truth());
  n.self = SELF, n.session = S, n.seed = SEED, n.ticket = TICKET;
  n.context = CONTEXT, n.vocabulary = VOCAB;
  n.length = n.prompt_length = PROMPT_LENGTH;
  bool reads = near_chance(&n, 2);
  set_up_wanting(&state, reads ? &wants : NULL, reads ? features_come : NULL);
  world *w = state;
  begin(&n, w);
  while (near_step(&n)) {
    happens[near_draw(&n, COUNT(happens))](&n, w);
    connect_what_is_asked(&n, w);
  }
  tear_down(&state);
  return 0;
}
