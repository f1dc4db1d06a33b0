/* policy.h - what speculation is worth: how many nodes a forward carries, how long a target without nodes
 * waits for its draft, whether a session speculates at all, and when it tries again. Pure.
 *
 * Everything follows from three things: what forwards cost (cost_model.h), what the drafts of a session have
 * earned (this record), and a balance. Nothing here reads a clock: the caller says what happened. */
#pragma once

#include "common/speculative/cost_model.h"

typedef enum { POLICY_NEW, POLICY_ON, POLICY_OFF } policy_state;

typedef struct policy { /* of one session; all zero before policy_begin */
  /* Sum of the probabilities that verified nodes promised, and how many were accepted; both fade. */
  double promised, accepted;
  average tokens, cost; /* of a verify, or of a round that was waited for: tokens; and plain steps it took */
  average arrival_us;   /* from TOKENS to the first useful node */
  uint32_t misses;      /* waits in a row that ended without a node */
  double balance;       /* plain steps gained against plain decoding, and the loss that is allowed */
  double net;           /* of the whole session, without that loss */
  policy_state state;
  uint32_t tries; /* how often it was turned on */
  bool colocated; /* a draft computes on the target's own processors */
  uint32_t quiet; /* steps since a draft was told anything last */
} policy;

/* A session begins. before: the record of the one that stepped last at this target, perhaps all zero: it was
 * the same drafts' more often than not. */
void policy_begin(policy *p, const policy *before);
/* A draft that computes on the target's processors is attached. What counts as plain is from now on what
 * plain steps cost while it was quiet. */
void policy_colocated(policy *p);
/* It has been off for so long that a plain step beside the draft costs what it does without. */
bool policy_is_quiet(const policy *p);

/* One step of a session. */
typedef struct policy_step {
  double plain_us;        /* what it would have cost plainly, > 0 */
  bool plain_known;       /* that has been measured, and not too long ago */
  double us;              /* what it cost: the session's part of the forward */
  double waited_us;       /* for nodes, before it */
  bool answered;          /* the wait ended with an answer, if only that there are no nodes */
  int32_t offered, nodes; /* nodes at hand; of them verified */
  double promised;        /* sum of the path probabilities of those, by their scores */
  int32_t tokens;         /* >= 1 */
} policy_step;

void policy_stepped(policy *p, const policy_step *s);

/* Probability that a node with a path probability of `exp(total)` is accepted, as its drafts have kept what
 * they promised: log. */
float policy_total(const policy *p, float total);

void policy_arrived(policy *p, double after_us); /* the first useful node after TOKENS */

/* How many of the `count` best nodes of all sessions a forward carries beside `roots` rows, which yield a
 * token each and read `positions` of the cache together. totals[i]: policy_total of node i, descending;
 * reads[i]: positions that its row reads. As many as give the most tokens a microsecond. */
int32_t policy_nodes(const cost_model *c, int32_t roots, double positions, const float *totals,
                     const int32_t *reads, int32_t count);

/* How long a session without nodes waits for them: as long as its verifies are expected to earn more than the
 * wait costs. plain_us: of a plain step. */
double policy_wait(const policy *p, double plain_us);

/* How many of the `left` >= 1 rows of a prompt the next forward reads, at most `most`. *measures: these few
 * alone, with a token chosen at each, because what a verify of that width costs is not known. */
int32_t policy_piece(const cost_model *c, int32_t left, int32_t most, bool *measures);
