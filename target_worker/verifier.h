/* verifier.h - the target's forwards: which rows the engine gets next, and what its results say of the cache
 * and of cost. Knows sessions, no peers and no messages. */
#pragma once

#include "target_worker/scheduler.h"

typedef struct verifier {
  schedule_turns turns;
  schedule forward;        /* the one under way, or the last one */
  uint64_t serial;         /* of the last job */
  uint64_t asked_until_us; /* a waiting session's moment, as of the last verifier_next; UINT64_MAX: none */
  width_record earned;     /* by the session that stepped last */
  width_costs widths;      /* of forwards without prompts */
  pay_state crowded;       /* of the session that stepped last with a draft that computes */
  int32_t *maps;           /* [ENGINE_JOBS_MAX][map_size]: cache blocks of the jobs under way; NULL: static */
  int32_t map_size;        /* blocks of a context */
  int32_t credit;          /* tokens that a session may be ahead of the last acknowledgement */
} verifier;

/* context: of a session, in tokens. ERR_NOMEM. */
int verifier_init(verifier *r, int32_t context, bool is_virtual, int32_t credit, err *e);
void verifier_fini(verifier *r);

/* The next forward, if any session may run now. */
bool verifier_next(verifier *r, session_store *store, uint64_t now, engine_batch *batch);

/* The forward is over. First of all, what it tells of rows' cost. */
void verifier_measure(verifier *r, const engine_results *results);
/* Then of each result: its session, which has no job any more and rows in the cache as the result says; NULL:
 * ended meanwhile. *stale: C was shortened meanwhile, so the tokens are not its continuation. */
session *verifier_end(session_store *store, const engine_result *result, bool *stale);
/* And of a verify that succeeded: its figures, and how long the session's next round waits for a node. */
void verifier_verified(verifier *r, session_store *store, session *s, const engine_result *result,
                       uint64_t now);
