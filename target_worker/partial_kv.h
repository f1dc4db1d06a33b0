/* partial_kv.h - the target over partial KV as a drafter of itself (SpecPV, arXiv 2512.02337, in a form that
 * changes no answer): a session's next tokens are guessed by the same model, which sees some blocks of the
 * session's cache alone. A pass over the whole cache then checks them as it checks any draft's.
 *
 * Blocks of KV_BLOCK rows are shown to it: the first ones (sink), the last ones (window), and of the others
 * those that weighed most in the attention of the last pass over the whole cache (retrieval; ops.h: mass).
 * Nothing is copied (kv_cache.h: views). Drafts' nodes and prompt lookup's tokens are checked over partial KV
 * first, several at a time. Chains are as long as they pay by what was measured; where none does, there are
 * none for a while. One thread, the engine's. */
#pragma once

#include "common/base/err.h"
#include "common/base/limit.h"
#include "common/model/model.h"
#include "target_worker/partial_text.h"
#include "wire/message.h"

#define PARTIAL_ROWS_MAX LIMIT(WIRE_PARTIAL_REFRESH_MAX, 8) /* tokens of a chain */

typedef struct partial_options {
  msg_partial own;       /* of sessions whose request says nothing of it */
  int32_t rows;          /* of every chain, <= PARTIAL_ROWS_MAX; 0: as many as pay */
  ops_weighing weighing; /* by which the retrieval blocks are the heaviest */
} partial_options;

/* Blocks of the cache that are shown of so many committed rows, ascending, to to[]; returns how many. A block
 * of partial KV is one of these or several, side by side. mass [blocks]: what each of the cache weighs; of
 * those that weigh the same the earlier ones are taken. room [2][blocks]: for the function. */
int32_t partial_choose(const msg_partial *o, const float *mass, int32_t rows, float *room, int32_t *to);

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
  /* [tree_rows] What drafts say follows: row 0 is the root, others hang from row parents[i] < i. 0 or 1 rows:
   * nothing */
  const int32_t *tree, *parents;
  int32_t tree_rows;
  int32_t tokens[PARTIAL_ROWS_MAX], count; /* what came of it */
} partial_chain;

typedef struct partial_step { /* of a session of so many committed rows that may guess */
  int32_t slot;
  uint64_t session;
  int32_t rows;
  const msg_partial *how; /* EXACT or LOSSY */
  bool drafted;           /* drafts feed its tree */
  int32_t length;         /* planned: tokens that are to be guessed for it before the forward */
} partial_step;

/* Why a step is plain, though the target has partial KV. */
typedef enum {
  PARTIAL_NONE,     /* it is not, or nothing can be said of it */
  PARTIAL_OFF,      /* the request says so */
  PARTIAL_ROOM,     /* the answer ends, or the orchestrator has more to write down than it may */
  PARTIAL_SAMPLING, /* filters, penalties, a grammar or log-probabilities, which need more than a token */
  PARTIAL_BESIDE,   /* another session of the forward may not guess, reads its prompt, or is lossy */
  PARTIAL_SHORT,    /* the session, or another one of the forward, has not reached its threshold */
  PARTIAL_RESTING,  /* no chain pays, by what was measured */
  PARTIAL_FAILED, /* a forward failed, or a session's guesses were found wrong: there are none for a while */
  PARTIAL_REASONS
} partial_reason;

typedef struct partial_plan {
  bool weighs;        /* the forward is to weigh the blocks of all its sessions, which goes before guesses */
  bool learns;        /* what it takes is to be told: partial_kv_measured */
  partial_reason why; /* exact sessions have no chains, for a reason that lasts */
} partial_plan;

/* Once before each forward of nothing but such steps. Exact ones all have chains of one length, or none:
 * while no chain pays, beside lossy ones, and now and then, so that it is known what a plain pass takes and,
 * with drafts, gives. What pays is learnt for each way of a few that sessions ask for, with drafts and
 * without. Lossy ones have chains of their refresh interval. No chain is longer than `most`. */
partial_plan partial_kv_plan(partial_kv *p, partial_step *steps, int32_t count, int32_t most);
/* A slot's session has these tokens more: partial_text.h. Where it is never told, nothing is looked up. */
void partial_kv_text(partial_kv *p, int32_t slot, const partial_news *n);
/* Guesses for all of them together. A forward gives each chain the next token and, of the nodes of its tree
 * or of those that were looked up behind it, as many as are right over partial KV too, so that the chains are
 * the same without tree and lookup. A chain ends early where its forward fails. */
void partial_kv_guess(partial_kv *p, partial_chain *const *chains, int32_t count);

/* A pass that was to weigh the blocks of `rows` committed rows is over: mass as model_mass gives it; NULL: it
 * is not known. Of the tokens that were guessed so many were accepted, `lossy` of them although the whole
 * cache gives others. */
void partial_kv_passed(partial_kv *p, int32_t slot, uint64_t session, int32_t rows, const float *mass,
                       int32_t guessed, int32_t accepted, int32_t lossy);
/* A forward that weighed, or guessed, has failed: there are no chains for a while. */
void partial_kv_failed(partial_kv *p);
/* What a planned pass of so many sessions took: a plain one, which gave them so many tokens, or one that
 * checked chains, the longest of which has `length` tokens. Not one that only weighed. */
void partial_kv_measured(partial_kv *p, int32_t sessions, int32_t length, int32_t tokens, double us);

extern const char *const partial_reason_names[PARTIAL_REASONS];
/* Counts it. True: it is the first of its kind, which is worth a line of the log. */
bool partial_kv_falls_back(partial_kv *p, partial_reason why);
/* What was measured where no chain pays, as a sentence. */
void partial_kv_say(const partial_kv *p, int32_t sessions, char *text, size_t size);

typedef struct partial_counters {
  uint64_t chains, guessed, accepted;
  uint64_t forwards, us;               /* over partial KV, and what they took */
  uint64_t failures;                   /* of such forwards */
  uint64_t looked_up, found;           /* tokens that prompt lookup put behind those of chains; right ones */
  uint64_t checked, right;             /* nodes of drafts; right ones */
  uint64_t lossy;                      /* tokens accepted that were not the whole cache's */
  uint64_t fallbacks[PARTIAL_REASONS]; /* steps */
} partial_counters;
const partial_counters *partial_kv_count(const partial_kv *p);
