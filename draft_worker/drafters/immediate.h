/* immediate.h - makes a drafter that replies as soon as it is queried, from an object for each session and
 * one function that finds candidates. */
#pragma once

#include "draft_worker/drafters/drafter.h"

typedef struct immediate_session immediate_session; /* each kind defines its own */

typedef struct immediate_kind {
  const char *method;
  /* A session whose first tokens are given; NULL when memory is out. `shared` is the drafter's. */
  immediate_session *(*open)(void *shared, const prefix *committed, int32_t prompt_length,
                             const msg_options *options);
  void (*close)(immediate_session *s);
  /* C has become `committed` (grown, replaced after a rollback, or still the same). */
  void (*advance)(immediate_session *s, const prefix *committed);
  /* Candidates after C followed by path[0..depth): best first; returns how many, <= DRAFT_CANDIDATES_MAX.
   */
  int32_t (*candidates)(immediate_session *s, const int32_t *path, int32_t depth, draft_candidate *out);
  /* Before `close`, of a session that is over: C is as it was told last, unless memory was short. NULL:
   * nothing is to do. */
  void (*over)(immediate_session *s);
} immediate_kind;

/* shared: borrowed until drafter_free. ERR_NOMEM. */
int immediate_open(drafter *out, const immediate_kind *kind, void *shared, err *e);
