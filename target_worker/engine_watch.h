/* engine_watch.h - signs of life: an orchestrator moves a session of which it hears nothing. So while the
 * engine makes progress, however slowly, something is sent; behind an engine that hangs nothing is, however
 * well this thread runs. */
#pragma once

#include "target_worker/step_context.h"
#include "wire/machine.h"

/* A session of which nothing was sent for so long gets a sign of life. */
#define ENGINE_WATCH_ALIVE_US 2000000
/* The engine lives while its forward gets a layer further within this; where a forward takes minutes, a layer
 * takes a second. */
#define ENGINE_WATCH_HANGS_US 5000000

typedef struct engine_watch { /* zero but for the first two */
  uint64_t (*progress)(
      void *context); /* grows while a forward goes on (model_progress); NULL: nobody can tell */
  void *context;
  bool computing;       /* the engine has a batch, */
  uint64_t seen;        /* whose progress was this when we looked last, */
  uint64_t advanced_us; /* and grew at this time */
  uint64_t looked_us;
  bool hangs; /* and the log says so */
} engine_watch;

/* The engine has got a batch, or none. */
void engine_watch_batch(engine_watch *w, bool computing, uint64_t now);
void engine_watch_tick(engine_watch *w, step_context *c);
uint64_t engine_watch_deadline(const engine_watch *w, const session_store *store); /* MACHINE_NEVER: none */
