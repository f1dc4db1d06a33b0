/* drafter.h - a source of guesses: which tokens may follow a path. One object serves one session.
 *
 * The worker grows the tree best first by asking for the candidates of one path after the other. A drafter
 * may look at the session's tokens as they grow; it never sees the network. */
#pragma once

#include "common/base/err.h"
#include "common/speculative/prefix.h"
#include "wire/message.h"

#define DRAFTER_CANDIDATES_MAX 8

typedef struct draft_candidate {
  int32_t token;
  float score; /* log of its match probability given the path, <= 0 */
} draft_candidate;

typedef struct drafter drafter;

typedef struct drafter_kind {
  const char *method; /* "ngram", "replay", "model" */
  /* A drafter for a session whose first tokens are given; NULL when memory is out. `shared` is the worker's.
   */
  drafter *(*open)(void *shared, const prefix *committed, int32_t prompt_length, const msg_options *options);
  void (*close)(drafter *d);
  /* C has become `committed` (grown, or replaced after a rollback). */
  void (*advance)(drafter *d, const prefix *committed);
  /* Candidates after C followed by path[0..depth): best first; returns how many, <= DRAFTER_CANDIDATES_MAX.
   * NULL: it is asked by batches (batch.h), and the functions above are NULL too. */
  int32_t (*candidates)(drafter *d, const int32_t *path, int32_t depth, draft_candidate *out);
} drafter_kind;

/* Prompt and output lookup: the longest suffix of the path that has occurred before, and what followed it. */
extern const drafter_kind drafter_ngram; /* shared: NULL */

/* A model's: asked by batches. */
extern const drafter_kind drafter_model; /* shared: NULL */

/* For tests and benchmarks: a recording of answers, right with a given probability. */
extern const drafter_kind drafter_replay; /* shared: replay_book */

typedef struct replay_book replay_book;
/* FILE is an output of `tandem batch`. rate: probability that the first candidate is right; sibling: that the
 * right token is then the second one. ERR_IO, ERR_FORMAT with the line. */
int replay_book_open(replay_book **out, const char *path, double rate, double sibling, uint64_t seed, err *e);
void replay_book_close(replay_book *b);
