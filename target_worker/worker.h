/* worker.h - the target's logic, sans-IO: events in, messages and jobs out. States and rules:
 * wire/PROTOCOL.md. */
#pragma once

#include "target_worker/engine.h"
#include "target_worker/session_store.h"
#include "wire/machine.h"

#define TARGET_CREDIT      256      /* tokens ahead of the last acknowledgement */
#define TARGET_LEASE_US    10000000 /* a session that nobody renewed for so long is freed */
#define TARGET_LOCKSTEP_US 60000000 /* lockstep: longest wait for a done mark */
#define TARGET_TELL_US                                                                                       \
  25000 /* the orchestrator gets new tokens so often, and the first at once: a message                       \
           for each would wake five threads a token, and nobody reads as fast */
#define TARGET_RESEND_US                                                                                     \
  10000 /* a draft's RESEND is answered so often: half of the time after which it may ask again */
#define TARGET_REPEAT_US 300000 /* DONE, and TOKENS that were not acknowledged */
#define TARGET_ALIVE_US                                                                                      \
  2000000 /* a session of which nothing was told for so long is told of, while the engine lives: */
#define TARGET_ENGINE_US                                                                                     \
  5000000 /* it does while a forward comes a layer further within this; one takes a second where             \
             a forward takes minutes */

typedef struct target_options {
  wire_id incarnation;
  hash16 model_fingerprint, vocabulary_hash;
  int32_t vocabulary_size;
  const char *numerics_id, *endpoint; /* borrowed; endpoint: where drafts connect */
  hash16 host;                        /* as HELLO tells it, like: */
  const char *device;                 /* borrowed */
  int32_t sessions, context;
  int32_t kv_blocks; /* of a virtual cache; 0: static */
  uint64_t (*progress)(
      void *context); /* grows while a forward goes on (model_progress); NULL: nobody can tell */
  void *progress_context;
} target_options;

typedef struct target target;

int target_alloc(target **out, const target_options *o, err *e);
void target_free(target *t);
machine target_machine(target *t);

/* Connects to an orchestrator's ROUTER: the first message is HELLO. */
void target_connect(target *t, const char *endpoint, actions *out);

/* The next forward, if any session may run now. At most one is out at a time: call again after EVENT_RESULT,
 * whose `result` is its engine_results. Leaves at_once alone. */
bool target_next_batch(target *t, uint64_t now_us, engine_batch *batch);

/* Drained and empty: the program may leave. */
bool target_drained(const target *t);

/* For tests and status. */
session_store *target_sessions(target *t);
