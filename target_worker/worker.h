/* worker.h - the target's logic, sans-IO: events in, messages and batches out. worker.c dispatches events to
 * the files that handle them. States and rules: wire/PROTOCOL.md. */
#pragma once

#include "target_worker/engine.h"
#include "target_worker/session_store.h"
#include "target_worker/verifier.h"
#include "wire/machine.h"

typedef struct target_options {
  wire_id incarnation;
  hash16 model_fingerprint, model_hash, vocabulary_hash; /* model_hash: zero: not known */
  int32_t vocabulary_size;
  const char *numerics_id, *endpoint; /* borrowed; endpoint: where drafts connect */
  hash16 host;                        /* as HELLO names it, like `device` */
  const char *device;                 /* borrowed */
  int32_t sessions, context;
  int32_t kv_blocks;          /* of a virtual cache; 0: static */
  int32_t verify_chunk;       /* most nodes of a session in one forward; 0: as many as its budget allows */
  const msg_partial *partial; /* borrowed; NULL: the engine has no partial KV */
  int32_t prompt_rows;        /* of the device (device.h), at most ENGINE_CHUNK_MAX; 0: any number does */
  taps_offer taps;            /* the features that drafts may be granted; all zero: none */
  uint64_t (*progress)(
      void *context); /* grows while a forward goes on (model_progress); NULL: progress is unknown */
  int32_t (*width)(void *context, int32_t rows); /* of the device (device.h); NULL: every row costs */
  void *engine_context;                          /* of both */
  session_grammar_source vocabulary;             /* for grammars; all zero: none */
  verifier_record record;                        /* recorder.h; NULL: nothing is recorded */
  void *record_context;
} target_options;

typedef struct target target;

int target_alloc(target **out, const target_options *o, err *e);
void target_free(target *t);
machine target_machine(target *t);

/* Connects to an orchestrator's ROUTER: the first message is HELLO. */
void target_connect(target *t, const char *endpoint, actions *out);

/* The next forward, if any session may run now. At most one is out at a time: call again after EVENT_RESULT,
 * whose `result` is its engine_results. Does not set at_once. */
bool target_next_batch(target *t, uint64_t now_us, engine_batch *batch);

/* Has the target been drained, and is it empty? Then the program may leave. */
bool target_drained(const target *t);

/* For tests and status. */
session_store *target_sessions(target *t);
speculation_shared *target_speculation(target *t); /* for tests */
