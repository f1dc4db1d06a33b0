/* worker_settings.h - how the target and the draft of a service run: what does not change from one request to
 * the next. The strings are borrowed and outlive the service. */
#pragma once

#include "common/base/log.h"
#include <stdbool.h>
#include <stdint.h>

#define WORKER_SETTINGS_THREADS_MAX 256

typedef struct worker_settings {
  const char *model; /* the path of the target's model */
  const char *draft; /* a list (draft_methods.h) or "none"; "any": others start the workers */
  /* For "model": the path of its own model, or NULL: the first layers of the target's; for "eagle3": its head
   */
  const char *draft_model;
  const char *draft_type; /* of a head's weights, as tandem-draft takes it; NULL: its default */
  int32_t draft_layers, draft_threads,
      draft_context;        /* for "model"; 0 means all layers, the draft's default, and `context` */
  int32_t draft_candidates; /* of a node that a drafter adds to the tree; 0: all */
  const char *math;         /* "int8" or "f32" */
  const char *kv;           /* "static" or "virtual" */
  int32_t kv_blocks;        /* of a virtual cache; 0: its default */
  int64_t kv_memory, draft_kv_memory; /* bytes of the caches at most; 0: what they need */
  const char *device, *draft_device;  /* of the target, and of a draft's model; NULL: their default */
  const char *pin;                    /* as tandem-target takes it */
  const char *repack_cache;           /* a folder, or NULL */
  int32_t context;                    /* tokens of a session */
  int32_t threads, sessions;
  const char *record_steps; /* a file, to which the target writes its steps, or NULL */
  const char *trace; /* a file for spans of the orchestrator, and with more behind its name for those of
                        the workers; NULL: none */
  bool verbose;
  log_format log_format; /* of all three programs */
} worker_settings;
