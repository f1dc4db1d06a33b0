/* drafter.h - one interface for everything that proposes tokens: prompt lookup, a recording, a model.
 *
 * A drafter serves all sessions of a worker, each under its slot. The code that grows a tree submits queries
 * ("what may follow C and this path?") and takes the replies. Each kind of drafter replies in its own time:
 * prompt lookup replies as soon as a query is submitted, and a model computes the queries of all sessions in
 * one forward on its engine's thread. Several drafters may feed one tree: their replies about a node are kept
 * apart, and equal tokens become one node in the tree, because a node is its token path. A drafter never sees
 * the network. */
#pragma once

#include "common/base/err.h"
#include "common/speculative/draft_candidate.h"
#include "common/speculative/prefix.h"
#include "common/speculative/tree.h"
#include "wire/message.h"

#define DRAFTER_SLOTS_MAX 64 /* sessions of one drafter */
#define DRAFTERS_MAX      4  /* that feed one tree */
#define DRAFTER_AHEAD_MAX 2  /* budgets_ahead */

/* What may follow C and this path? */
typedef struct draft_query {
  int32_t slot;
  uint64_t handle; /* returned with the reply */
  int32_t depth;   /* tokens of the path; 0: what follows C itself */
  int32_t path[TREE_DEPTH_MAX];
} draft_query;

typedef struct draft_reply {
  int32_t slot;
  uint64_t handle;
  /* ERR_OK, or the reason why this drafter can do no more for the session: ERR_MISMATCH: a token of C is not
   * in its vocabulary; ERR_DEVICE: its device is lost; else: it could not be run. Then the rest is not set.
   */
  int code;
  int32_t count;                              /* 0: nothing may follow, or the path is not known */
  draft_candidate list[DRAFT_CANDIDATES_MAX]; /* best first */
} draft_reply;

/* A session as a drafter needs it. */
typedef struct drafter_session {
  const prefix *committed; /* C; valid for the call */
  int32_t kept; /* so many of C's first tokens are the same as when this slot was last open, or closed */
  int32_t prompt_length;
  const msg_options *options; /* valid for the call */
} drafter_session;

/* The features (wire/PROTOCOL.md, section 9) that a drafter's head reads: msg_feature_request has the
 * meaning. */
typedef struct drafter_wants {
  int32_t taps[WIRE_TAPS_MAX];
  int32_t tap_count; /* 0: it reads none */
  wire_type type;    /* on the wire; the drafter always gets f32 */
  hash16 fc;         /* its name (common/file/head_fc.h); zero: it applies fc itself, to raw states */
  int32_t fc_width;  /* values of a row to which the target has applied it */
  int32_t horizon;   /* tokens ahead that the head was trained to guess; 0: not known */
} drafter_wants;

/* The features of positions [base, base + count) of C, in ascending order of base. What lies before `base`
 * and has not come is lost: the head goes on without it. */
typedef struct drafter_features {
  int32_t base, count; /* count 0: it says only what is lost */
  int32_t width;       /* as the target says: rows of another width than the head's are of no use */
  bool fused; /* rows are what fc makes of the states; else the states of the taps, one behind the other */
  const float *rows; /* [count][width], finite; valid for the call */
} drafter_features;

struct draft_batch;
struct draft_results;

/* Which of its replies stay valid when C grows along a path. */
typedef enum {
  DRAFTER_REPLIES_LAST,       /* all of them: the reply about the path's end is the one about the new root */
  DRAFTER_REPLIES_BUT_ROOT,   /* those below the new root, which is queried anew */
  DRAFTER_REPLIES_ARE_GUESSES /* none: what comes with C is better than what the drafter had to guess */
} drafter_replies;

#define DRAFTER_ABSENT (-1)

typedef struct drafter_kind {
  /* How its replies are used. Scores and totals are logarithms. */
  int32_t budgets_ahead; /* in free pace, a tree holds so many node budgets and one node more */
  float hope;            /* in free pace: expansion_limits.hope, for outstanding replies */
  float least;           /* a node less probable than this is not worth a query */
  drafter_replies replies;

  /* What a forward gives: candidates of the next so many tokens, one behind the other. 1 of most; a block
   * draft guesses several at once. */
  int32_t tokens_per_forward;
  /* May it go on past its own guess, as a head does that makes up the states of what it guesses? If not, it
   * is queried about the tokens of one forward, and what lies deeper waits until C has grown. */
  bool goes_past_guess;

  void (*free)(void *self);
  /* Begins a session, or begins it anew. ERR_NOMEM. */
  int (*open)(void *self, int32_t slot, const drafter_session *s);
  /* The slot need not be open. Rows of C that an engine holds stay: the next session may begin alike. */
  void (*close)(void *self, int32_t slot);
  /* C is `committed` now: takes as much of it as it can for the moment. Returns how many of its tokens the
   * drafter holds, and queries about C wait until it holds all; or DRAFTER_ABSENT: it can do nothing for the
   * session for the time being, and nobody waits for it. */
  int32_t (*advance)(void *self, int32_t slot, const prefix *committed);
  /* Features of C have come; C may still be shorter than they reach. f NULL: none come any more. `features`
   * NULL: it wants none. Only the first drafter of a worker that wants features gets them. */
  void (*features)(void *self, int32_t slot, const drafter_features *f);
  /* After `open`: features are wanted from this position on, because rows of those before it are there. NULL:
   * from 0 on. */
  int32_t (*features_from)(void *self, int32_t slot);
  /* The target chose `token` where this drafter had proposed these candidates. */
  void (*observe)(void *self, const draft_candidate *list, int32_t count, int32_t token);

  bool (*submit)(void *self, const draft_query *q); /* false: it cannot take one at this moment */
  bool (*take)(void *self, draft_reply *out);       /* the next reply; false: there is none */

  /* For a drafter whose queries are computed on an engine's thread (draft_batch.h), of which a worker has one
   * at most; NULL for any other. Between batch_begin and batch_end it puts C and queries into *b; batch_end
   * tells whether there is anything to compute. batch_done hands it the results, which must stay valid until
   * all replies are taken, and returns the time of a usual forward in us, or 0. */
  void (*batch_begin)(void *self, struct draft_batch *b);
  bool (*batch_end)(void *self);
  uint64_t (*batch_done)(void *self, const struct draft_results *r);
} drafter_kind;

typedef struct drafter {
  const drafter_kind *kind; /* NULL: none */
  void *self;
  const char *method;  /* "ngram", "replay", "model"; borrowed */
  int32_t queries_max; /* how many queries it replies to at once */
  drafter_wants wants;
} drafter;

/* It may be queried about nodes less deep than this; 0: about any. All below C is a guess to it, whichever
 * drafter has made it. */
static inline int32_t drafter_reach(const drafter_kind *k) {
  return k->goes_past_guess ? 0 : k->tokens_per_forward;
}

static inline void drafter_free(drafter *d) {
  if (d->kind) d->kind->free(d->self);
  *d = (drafter){0};
}
