/* policy.h - decides how many nodes a forward carries, how long a target without nodes waits for its draft,
 * whether a session speculates at all, and when it tries again. Pure.
 *
 * Everything follows from three things: what forwards cost (cost_model.h), what the drafts of a session have
 * promised and kept (the record), and a balance of gains and losses. Nothing here reads a clock: the caller
 * reports what happened. */
#pragma once

#include "common/speculative/cost_model.h"

typedef enum { POLICY_NEW, POLICY_ON, POLICY_OFF } policy_state;

/* What drafts promised and kept: the sum of the path probabilities of verified nodes, and how many of these
 * were accepted. Old steps fade. */
typedef struct policy_record { /* all zero at the start */
  double promised, accepted;
  double net;     /* gains minus losses against plain decoding, in plain steps */
  double account; /* the same, of all sessions: only losses fade; bounded on both sides */
} policy_record;

typedef struct policy {   /* of one session; all zero before policy_begin */
  policy_record own, all; /* of this session's steps; of all the target's sessions' steps up to its last */
  /* Of steps that had nodes at hand or an answer to their wait: tokens; time in plain steps. */
  average tokens, cost;
  average arrival_us; /* from TOKENS to the first useful node, */
  average reply_us;   /* and to the first reply, which may have no nodes */
  uint32_t misses;    /* waits in a row that ended without an answer */
  double balance;     /* gains less losses against plain decoding, and the credit; in plain steps */
  double net;         /* gains minus losses of the whole session, from what the account lacked on */
  policy_state state;
  uint32_t tries; /* how often it was turned on */
  bool colocated; /* a draft computes on the target's own processors, by turns */
  bool beside;    /* one computes there with threads of its own, at the same time */
  uint32_t quiet; /* steps since speculation was last turned off */
} policy;

/* A session begins. before: that of the session that stepped last at this target, which may be all zero. Its
 * record of all sessions is used, because the same drafts usually serve them: what they have lost, this one
 * may not lose again. */
void policy_begin(policy *p, const policy *before);
/* A colocated draft is attached: turns speculation off until the cost of a plain step has been measured while
 * that draft is quiet. A session that has not stepped yet begins now if it begins off, so that the draft does
 * not even read its prompt. before: as in policy_begin. */
void policy_colocated(policy *p, const policy *before);
/* One is attached that computes beside the target: it takes no turns, but it slows plain steps, too. The cost
 * of one is measured as above, and such a session begins off as above. */
void policy_beside(policy *p, const policy *before);
/* Does a plain step now cost what it costs without a draft? True if no draft computes on the target's own
 * processors, and after speculation has been off for POLICY_QUIET steps. */
bool policy_is_quiet(const policy *p);

/* One step of a session. */
typedef struct policy_step {
  double plain_us;        /* what the step would have cost without nodes, > 0 */
  bool plain_known;       /* plain_us has been measured, and not too long ago */
  double us;              /* what it cost: the session's part of the forward */
  double waited_us;       /* how long it waited for nodes before */
  bool answered;          /* the draft has answered, with nodes or with a done mark */
  int32_t offered, nodes; /* nodes at hand; how many of them it verified */
  double promised;        /* sum of the path probabilities of the verified nodes, by their scores */
  int32_t tokens;         /* >= 1 */
} policy_step;

/* all: the record of the target's sessions together. A session that has verified little is judged by it. If
 * each were judged by its own first nodes alone, those that began with bad luck would never get a node among
 * the best of many sessions, and so never show that their luck has changed. */
void policy_stepped(policy *p, policy_record *all, const policy_step *s);

/* A forward of the target has ended, of whichever sessions: old losses fade. */
void policy_forwarded(policy_record *all);

/* Corrects a node's path probability by how far its drafts have kept their promises. Takes and returns
 * logarithms. */
float policy_total(const policy *p, float total);

void policy_arrived(policy *p, double after_us); /* the first useful node came after_us after TOKENS */
void policy_replied(policy *p, double after_us); /* so long after TOKENS came the first reply to them */
/* Are drafts so far away that their nodes have to reach POLICY_LATE tokens further than those of one beside
 * the target? plain_us: time of a plain step; 0: it is not known. */
bool policy_comes_late(const policy *p, double plain_us);

/* Plain steps that may be spent on what will help a draft later: half of what the session, or the record of
 * all, has gained or may still lose. */
double policy_spare(const policy *p, const policy_record *all);
/* So many were spent. */
void policy_spend(policy *p, double steps);

/* Returns how many of the `count` best nodes of all sessions a forward should carry, which is the number that
 * gives the most tokens a microsecond, when the forward has been waited for as long as waited_us. The forward
 * also carries `roots` rows, which yield a token each and together read `positions` of the cache. totals[i]:
 * policy_total of node i, descending; reads[i]: positions that its row reads. */
int32_t policy_nodes(const cost_model *c, int32_t roots, double positions, double waited_us,
                     const float *totals, const int32_t *reads, int32_t count);

/* Returns how long a session without nodes waits for them, in microseconds: as long as its verify steps are
 * expected to earn more than the wait costs or, with a colocated draft, for up to POLICY_TURN plain steps.
 * plain_us: time of a plain step. */
double policy_wait(const policy *p, double plain_us);

/* Returns how many of the `left` >= 1 rows of a prompt the next forward computes, at most `most`. *measures:
 * the forward carries these few rows alone and chooses a token at each, because the cost of a verify step of
 * that width is not known. */
int32_t policy_piece(const cost_model *c, int32_t left, int32_t most, bool *measures);
