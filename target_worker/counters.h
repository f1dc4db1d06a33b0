/* counters.h - what --counters prints when a target ends: the counts of its parts as one line of JSON. */
#pragma once

#include "common/base/mem.h"
#include "common/model/model.h"
#include "target_worker/engine.h"
#include "target_worker/worker.h"
#include "wire/transport.h"

typedef struct counters_source {
  const engine *engine;
  const kv_cache *kv;
  target *target;
  const model *model;
  transport *transport;
  const mem *memory;
} counters_source;

/* To stderr, in one write, so that no other program's line can cut it. The engine must have ended. */
void counters_print(const counters_source *s);
