/* verifier.h - the target's forwards: it gives the engine the next rows, and learns from the results what the
 * cache holds and what rows cost. It knows sessions, but no peers and no messages. */
#pragma once

#include "target_worker/feature_fusion.h"
#include "target_worker/scheduler.h"

typedef void (*verifier_record)(void *context, const session *s, const schedule_pick *pick,
                                const speculation_forward *f, const engine_result *x);

typedef struct verifier {
  schedule_rotation rotation;
  schedule forward;       /* the one under way, or the last one */
  uint64_t serial;        /* of the last job */
  uint64_t wait_until_us; /* as of the last verifier_next: when the first waiting session may run; UINT64_MAX:
                             none waits */
  speculation_shared speculation;
  verifier_record record; /* called for each step; may be NULL */
  void *record_context;
  feature_fusion fusion;
  const msg_partial *partial; /* how, where a request says nothing of it; NULL: the engine has none */
  int32_t *maps;    /* [ENGINE_JOBS_MAX][map_size]: cache blocks of the jobs under way; NULL: static */
  int32_t map_size; /* blocks of a context */
  int32_t *texts;   /* [ENGINE_JOBS_MAX][context]: the jobs' texts; NULL: without partial KV */
  int32_t context;
} verifier;

/* context: of a session, in tokens. partial: verifier.partial. ERR_NOMEM. */
int verifier_init(verifier *v, int32_t context, bool is_virtual, const msg_partial *partial, err *e);
void verifier_fini(verifier *v);

/* Fills the next forward; false: no session may run now. */
bool verifier_next(verifier *v, session_store *store, uint64_t now, engine_batch *batch);

/* The forward is over. This comes first: it records what the forward's rows cost. */
void verifier_measure(verifier *v, const engine_results *results);
/* Then for each result: ends the session's job, takes over the number of its cached rows, and returns the
 * session; NULL: it has ended meanwhile. *stale: C was shortened meanwhile, so the tokens do not continue it.
 */
session *verifier_end(session_store *store, const engine_result *result, bool *stale);
/* Then for a step that succeeded: counts it, learns from it, and decides how long the session's next step
 * waits for a node. */
void verifier_stepped(verifier *v, session_store *store, session *s, const engine_result *result,
                      uint64_t now);
