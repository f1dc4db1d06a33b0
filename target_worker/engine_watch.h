/* engine_watch.h - signs of life. An orchestrator moves a session to another target when it hears nothing of
 * it. So something is sent while the engine makes progress, however slowly, and nothing is sent while the
 * engine hangs, however well this thread runs. */
#pragma once

#include "target_worker/step_context.h"
#include "wire/machine.h"

/* A session of which nothing was sent for so long gets a sign of life. */
#define ENGINE_WATCH_ALIVE_US 2000000
/* The engine hangs when its forward has not finished a layer for so long. Even where a forward takes minutes,
 * a layer takes about a second. */
#define ENGINE_WATCH_HANGS_US 5000000

typedef struct engine_watch { /* zero but for the first two */
  uint64_t (*progress)(
      void *context); /* grows while a forward goes on (model_progress); NULL: progress is unknown */
  void *context;
  bool computing;       /* the engine has a batch, */
  uint64_t seen;        /* its progress when we last looked, */
  uint64_t advanced_us; /* and when that last grew */
  uint64_t looked_us;
  bool hangs; /* the engine hangs, and this has been logged */
} engine_watch;

/* The engine has got a batch, or none. */
void engine_watch_batch(engine_watch *w, bool computing, uint64_t now);
void engine_watch_tick(engine_watch *w, step_context *c);
uint64_t engine_watch_deadline(const engine_watch *w, const session_store *store); /* MACHINE_NEVER: none */
