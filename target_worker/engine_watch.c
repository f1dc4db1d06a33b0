#include "target_worker/engine_watch.h"

#include "common/base/log.h"
#include "target_worker/token_stream.h"

void engine_watch_batch(engine_watch *w, bool computing, uint64_t now) {
  w->computing = computing;
  if (computing) w->advanced_us = now;
}

static bool engine_lives(engine_watch *w, step_context *c) {
  uint64_t progress = w->progress ? w->progress(w->context) : 0;
  if (progress != w->seen) w->advanced_us = c->now;
  w->seen = progress;
  bool lives = !w->computing || c->now - w->advanced_us < ENGINE_WATCH_HANGS_US;
  if (lives == w->hangs)
    actions_log(c->out, LOG_WARNING,
                lives ? "the engine goes on"
                      : "the engine has made no progress for %d s: its sessions stand still",
                ENGINE_WATCH_HANGS_US / 1000000);
  w->hangs = !lives;
  return lives;
}

void engine_watch_tick(engine_watch *w, step_context *c) {
  if (c->now - w->looked_us < ENGINE_WATCH_ALIVE_US / 2) return;
  w->looked_us = c->now;
  bool lives = engine_lives(w, c);
  for (int32_t i = 0; lives && i < c->store->count; i++) {
    session *s = &c->store->slots[i];
    if (s->state == SESSION_RUNNING && c->now - s->stream.sent_us >= ENGINE_WATCH_ALIVE_US)
      token_stream_sign_of_life(c, s);
  }
}

uint64_t engine_watch_deadline(const engine_watch *w, const session_store *store) {
  for (int32_t i = 0; i < store->count; i++)
    if (store->slots[i].state == SESSION_RUNNING) return w->looked_us + ENGINE_WATCH_ALIVE_US / 2;
  return MACHINE_NEVER;
}
