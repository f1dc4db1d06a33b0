/* draft_session.h - one session as it is drafted: C as the target sends it, the tree that grows below it, and
 * the ids of its nodes on the wire. It knows neither peers, nor the state of the attachment, nor time. */
#pragma once

#include "draft_worker/drafters/drafter.h"
#include "draft_worker/expansion.h"
#include "draft_worker/pacing.h"

/* What all sessions of a worker have in common. */
typedef struct draft_setup {
  drafter drafters[DRAFTERS_MAX]; /* borrowed; all feed every tree */
  int32_t drafter_count;
  bool colocated; /* in free pace, the tree grows only while the target waits for it (pacing.h) */
  pacing_costs costs;
  uint64_t query_count; /* ever submitted */
  int32_t reader;       /* the drafter that reads features; -1: none */
  int32_t candidates;   /* of a reply that may enter the tree; 0: all */
  bool raw_logged;      /* that a target does not apply its fc: once is enough */
} draft_setup;

typedef struct draft_session {
  int32_t slot;     /* at the drafters */
  prefix committed; /* C */
  int32_t prompt_length;
  msg_options options;        /* of OPEN, without its stops */
  int32_t held[DRAFTERS_MAX]; /* tokens of C that each drafter holds, or DRAFTER_ABSENT */
  expansion expansion;        /* the tree, and the drafters' replies about its nodes */
  tree_ids ids;
  bool done;    /* nothing can be added to the tree until C grows */
  bool replied; /* the batch whose results are being taken brought replies for it */
  bool called;  /* C has grown since OPEN: the target wants nodes, and a colocated draft may compute */
  pacing pacing;
} draft_session; /* zeroed but for its slot at first */

/* Room for a C of `capacity` tokens, which is the same one whenever a slot is used again. ERR_NOMEM: nothing
 * is held any more. */
int draft_session_init(draft_session *p, const draft_setup *m, int32_t capacity, uint64_t hash_seed);
/* The session is over. C stays where drafters hold rows of it, for a session that begins like it. */
void draft_session_end(draft_session *p, const draft_setup *m);
void draft_session_fini(draft_session *p, const draft_setup *m); /* frees everything */
/* How many of a new session's first tokens have rows here, in a slot whose session is over. 0 unless they are
 * at least half of these tokens, or of the rows that would be lost. */
int32_t draft_session_reusable(const draft_session *p, const int32_t *tokens, int32_t count);

/* C becomes what an OPEN that fits (msg_open_misfit) says, with an empty tree. ERR_NOMEM: only
 * draft_session_fini may follow. */
int draft_session_open(draft_session *p, const draft_setup *m, const msg_open *o);

/* How many nodes the tree should hold: one node budget; in free pace, as many budgets as the drafters want
 * ahead, and one node more, because when a whole chain is accepted, the bonus token is the node behind it. */
int32_t draft_session_goal(const draft_session *p, const draft_setup *m);
/* Grows the tree, the most probable node first, until it reaches the goal, needs a reply that is outstanding,
 * or is stopped by pacing. New nodes have ids [*first_id, ids.next); those of a tree that is kept back get
 * theirs when it is done. vocabulary: the target's size, and tokens beyond it are left out; 0: not known.
 * Returns how many nodes are new; -1: the ids are used up. */
int32_t draft_session_grow(draft_session *p, draft_setup *m, int32_t vocabulary, uint64_t *first_id);
/* Is the tree kept back until it is done? Its first node would end the target's wait, or, in lockstep, the
 * target waits for all of them, which are fewer bytes in one frame. */
bool draft_session_keeps(const draft_session *p, const draft_setup *m);
/* Takes a reply of one drafter; a reply about a node that is gone changes nothing. */
void draft_session_take(draft_session *p, draft_setup *m, int32_t by, const draft_reply *r);
/* The last `count` tokens of C are new: re-roots the tree. */
void draft_session_commit(draft_session *p, const draft_setup *m, int32_t count);
/* New ids, from 1, for all live nodes. */
void draft_session_rename(draft_session *p, uint32_t generation);
/* Writes the live nodes with ids [first_id, ids.next) as NODES has them, [WIRE_NODES_MAX] each; returns how
 * many. */
int32_t draft_session_nodes(const draft_session *p, uint64_t first_id, uint64_t *parents, int32_t *tokens,
                            float *scores);

/* Fills a batch for the drafter that computes batches: the tokens of C that it lacks, and queries about the
 * most probable frontier nodes of these sessions. The C of session list[first] goes first. False: there is
 * nothing to compute. */
bool draft_session_batch(draft_session *const *list, int32_t count, draft_setup *m, int32_t first,
                         struct draft_batch *b);

/* A score as the tree keeps it; a NaN is the least. */
float draft_session_score(float score);
