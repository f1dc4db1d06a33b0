/* draft_session.h - what a draft makes of one session: C as the target tells it, the tree that grows below
 * it, and the ids that its nodes bear on the wire. Knows no peers, no states of a session, no time. */
#pragma once

#include "draft_worker/drafters/batch.h"
#include "draft_worker/expansion.h"
#include "draft_worker/drafters/calibration.h"
#include "draft_worker/pacing.h"

#define DRAFT_AHEAD 2 /* free pace: live nodes held, in node budgets of one verify, and one more */

/* Of a drafter that is asked by batches: */
#define DRAFT_HOPE                                                                                           \
  (-0.7f)                   /* free pace: what an answer that is not there is expected to add at best (log)  \
                             */
#define DRAFT_LEAST (-3.0f) /* a place less probable than this (log) is not worth a row */

/* What guesses, alike for all sessions. */
typedef struct draft_method {
  const drafter_kind *kind;
  void *shared; /* the kind's own; borrowed */
  /* Of one that is asked by batches: */
  int32_t rows;              /* questions of one batch at most, <= DRAFT_PLACES_MAX */
  bool turns;                /* free pace: grows only while the target waits for it (pacing.h) */
  calibration_table matches; /* learnt from all sessions */
  pacing_costs costs;
} draft_method;

bool draft_by_batches(const draft_method *m); /* as questions.h does; else at once */

typedef struct draft_session {
  prefix committed; /* C */
  int32_t prompt_length;
  msg_options options; /* of OPEN, without its stops */
  drafter *guess;      /* NULL: it is asked by batches */
  expansion grown;     /* the tree, and what the drafter has said of it */
  tree_ids ids;
  bool done; /* nothing can be added to the tree as C is now */
  /* Where it is asked by batches, which questions.c does: */
  int32_t slot;  /* of the model's cache */
  int32_t told;  /* tokens of C that batches have told */
  int32_t job;   /* of the batch that is being filled; -1: none yet */
  bool answered; /* by the results in hand */
  pacing turn;   /* where turns are taken */
  bool called;   /* C has grown since OPEN: the target wants nodes, and nothing is computed before */
} draft_session; /* zeroed but for its slot at first */

/* Room for a C of `capacity` tokens. ERR_NOMEM: then it is as before. */
int draft_session_init(draft_session *p, int32_t capacity, uint64_t hash_seed);
void draft_session_fini(draft_session *p, const draft_method *m);

/* C becomes what an OPEN that fits (msg_open_misfit) says, with an empty tree. ERR_NOMEM: only
 * draft_session_fini may follow. */
int draft_session_open(draft_session *p, draft_method *m, const msg_open *o);

/* Nodes to hold: what one verify takes, and in free pace as much again for the next, unless each costs a row
 * of a model; one more, because where all of a chain are right the bonus token takes one of those behind it.
 */
int32_t draft_session_goal(const draft_session *p, const draft_method *m);
/* Grows the tree, the most probable node first, up to the goal, to an answer that must come first or to the
 * end of its turn. New nodes have ids [*first_id, ids.next), all of a turn at its end. vocabulary: the
 * target's, whose other tokens are left out; 0: not known. Returns how many are new; -1: ids are used up. */
int32_t draft_session_grow(draft_session *p, const draft_method *m, int32_t vocabulary, uint64_t *first_id);
/* Is C worth reading? On the target's processors only once it asks for nodes by what it tells. */
bool draft_session_reads(const draft_session *p, const draft_method *m);
/* Is the tree kept back until it is done? The first node would end the target's wait. */
bool draft_session_keeps(const draft_session *p, const draft_method *m);
/* Places that could be asked about, of one session or several: the most probable ones, the best first. */
typedef struct wanted {
  struct wanted_place {
    draft_session *of;
    int32_t place;
    float total; /* log of its probability */
  } list[DRAFT_PLACES_MAX];
  int32_t count; /* at most the method's rows */
} wanted;

/* Adds those of this session; where there is no room the least probable go. */
void draft_session_wants(draft_session *p, const draft_method *m, wanted *w);
/* The last `count` tokens of C are new: the tree follows. */
void draft_session_commit(draft_session *p, draft_method *m, int32_t count);
/* New ids, from 1, for all live nodes. */
void draft_session_rename(draft_session *p, uint32_t generation);
/* Writes the live nodes with ids [first_id, ids.next) as NODES has them, [WIRE_NODES_MAX] each; returns how
 * many. */
int32_t draft_session_nodes(const draft_session *p, uint64_t first_id, uint64_t *parents, int32_t *tokens,
                            float *scores);

/* A score as the tree keeps it; a NaN is the least. */
float draft_session_score(float score);
