/* partial_kv.h - the target over partial KV as a drafter of itself (SpecPV, arXiv 2512.02337, in a form that
 * changes no answer): a session's next tokens are guessed by the same model, which sees some blocks of the
 * session's cache alone. A pass over the whole cache then checks them as it checks any draft's.
 *
 * Blocks of KV_BLOCK rows are shown to it: the first ones (sink), the last ones (window), and of the others
 * those that weighed most in the attention of the last pass over the whole cache (retrieval; ops.h: mass).
 * Nothing is copied (kv_cache.h: views). Chains are as long as they pay by what was measured; where none
 * does, there are none for a while. One thread, the engine's. */
#pragma once

#include "common/base/err.h"
#include "common/base/limit.h"
#include "common/model/model.h"

#define PARTIAL_ROWS_MAX LIMIT(32, 8) /* tokens of a chain */

typedef struct partial_options {
  int32_t sink, retrieval, window; /* blocks; window: at least what a chain commits, PARTIAL_WINDOW_MIN */
  int32_t threshold;               /* committed rows from which on chains are guessed */
  int32_t rows;                    /* of every chain, <= PARTIAL_ROWS_MAX; 0: as many as pay */
} partial_options;

#define PARTIAL_WINDOW_MIN ((PARTIAL_ROWS_MAX + 1) / KV_BLOCK + 2)

/* Blocks of so many committed rows that are shown, ascending, to to[]; returns how many. mass [blocks]: what
 * each weighs; of those that weigh the same the earlier ones are taken. room [blocks]: for the function. */
int32_t partial_choose(const partial_options *o, const float *mass, int32_t rows, float *room, int32_t *to);

typedef struct partial_kv partial_kv;

/* For a cache with a view for each of `slots`, and sessions of up to `context` rows. ERR_NOMEM, ERR_FULL. */
int partial_kv_open(partial_kv **out, const partial_options *o, model *m, kv_cache *kv, int32_t slots,
                    int32_t context, err *e);
void partial_kv_close(partial_kv *p); /* NULL is allowed; before the cache */

/* Tokens that are to follow a session's committed rows. */
typedef struct partial_chain {
  int32_t slot, seq;              /* seq: of the cache */
  int32_t root, most;             /* the last token of C, which has no row yet; tokens wanted at most */
  const model_sampling *sampling; /* of the tokens */
  const int32_t *stops;           /* [stop_count] tokens that end it */
  int32_t stop_count;
  int32_t tokens[PARTIAL_ROWS_MAX], count; /* what came of it */
} partial_chain;

typedef struct partial_step { /* of a session of so many committed rows that may guess */
  int32_t slot;
  uint64_t session;
  int32_t rows;
} partial_step;

/* Once before each forward of nothing but such steps: how many tokens, at most `most`, are to be guessed for
 * each session before it. *weighs: it is to weigh the blocks of all of them, which goes before guesses. Both
 * are none while no chain pays, and now and then, so that it is known what a plain pass takes. -1: a session
 * is below the threshold, and nothing is to be learnt from the forward. */
int32_t partial_kv_plan(partial_kv *p, const partial_step *steps, int32_t count, int32_t most, bool *weighs);
/* Guesses for all of them together, a forward for each token. A chain ends early where its forward fails. */
void partial_kv_guess(partial_kv *p, partial_chain *const *chains, int32_t count);

/* A pass that was to weigh the blocks of `rows` committed rows is over: mass as model_mass gives it; NULL: it
 * is not known. Of the tokens that were guessed it accepted so many. */
void partial_kv_passed(partial_kv *p, int32_t slot, uint64_t session, int32_t rows, const float *mass,
                       int32_t guessed, int32_t accepted);
/* A forward that weighed, or guessed, has failed: there are no chains for a while. */
void partial_kv_failed(partial_kv *p);
/* What a planned pass of so many sessions took: a plain one, or one that checked chains, the longest of which
 * has `length` tokens. Not one that only weighed. */
void partial_kv_measured(partial_kv *p, int32_t sessions, int32_t length, double us);

typedef struct partial_counters {
  uint64_t chains, guessed, accepted;
  uint64_t forwards, us; /* over partial KV, and what they took */
  uint64_t failures;     /* of such forwards */
} partial_counters;
const partial_counters *partial_kv_count(const partial_kv *p);
