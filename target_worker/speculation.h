/* speculation.h - decides whether a session's next step verifies draft nodes, how many, and how long it waits
 * for them; and learns from each step. Nobody else looks into these structs. Pure.
 *
 * This is the policy (common/speculative/policy.h) as a target applies it to several sessions at a time. All
 * times are microseconds. */
#pragma once

#include "common/speculative/policy.h"

typedef struct speculation { /* of one session; all zero at the start */
  /* Why this session decodes plainly to its end, a static sentence; NULL: it does not */
  const char *disabled;
  uint64_t wait_until_us; /* while no node is at hand, no plain step is made before this */
  policy policy;
  policy_step step;  /* the step under way, as far as it is known */
  double arrived_us; /* time from the last TOKENS to the first useful node; 0: none has come */
  double plain_us;   /* cost of a plain step of the sessions that stepped together with this one last */
  double instead_us; /* what plain steps would have taken for `instead` tokens, each where it was decoded */
  int64_t instead;
} speculation;

typedef struct speculation_forward { /* what a forward carried, and what it took */
  int32_t steps, rows;               /* sessions that stepped; their rows, nodes included */
  double plain_reads, reads;         /* cache positions read by those sessions' roots; by all those rows */
  int32_t prompt_rows;               /* it also carried so many rows of prompts */
  int32_t disturbed;                 /* sessions whose colocated drafts may have computed beside it */
  bool unusual;                      /* its time says nothing of others'; */
  bool guessed;                      /* it had chains over partial KV in place of nodes */
  double us;
} speculation_forward;

typedef struct speculation_shared { /* what all sessions of a target share; all zero at the start */
  int32_t prompt_rows;              /* of a forward that has no others; 0: ENGINE_CHUNK */
  int32_t verify_chunk; /* most nodes of a session in one forward; 0: as many as its budget allows */
  cost_model costs;
  policy last; /* of the session that stepped last */
  policy_record record;
  average prompt_row_us; /* what a row of a prompt takes in a forward that carries some of them */
  uint32_t quiet;        /* plain forwards without a draft beside them */
  average slowed;        /* what plain forwards beside drafts took, as a share of what they cost without */
  speculation_forward forward;
} speculation_shared;

/* --- whether --- */

/* May the next step carry nodes, and wait for them? In lockstep a session always does, whatever that earns,
 * unless `disabled` is set. */
bool speculation_allowed(const speculation *s, bool lockstep);
/* Is speculation off for now because it has not paid? Then no tokens are sent to the drafts until it is on
 * again. */
bool speculation_is_off(const speculation *s);
/* Is it off so completely that its drafts are not even brought up to date now and then, because their work
 * would slow the plain steps? */
bool speculation_is_quiet(const speculation *s);
/* Does a plain step now cost what it costs without a draft? */
bool speculation_is_undisturbed(const speculation *s);
/* Does a draft with --beside on the target's processors compute now? */
bool speculation_is_beside(const speculation *s);
/* Is it off because it was tried and did not pay for itself? */
bool speculation_is_unpaid(const speculation *s);
/* Why speculation is off at the end of an answer, or NULL. */
const char *speculation_off_reason(const speculation *s);
/* The time of a plain step, averaged over the session's tokens: a step costs more the longer the context is,
 * and the more sessions step together. 0: it is not known. */
double speculation_plain_us(const speculation *s);

/* --- how many --- */

/* Corrects totals[count], the logs of the path probabilities of the session's best nodes, by how far its
 * drafts have kept their promises: policy_total. */
void speculation_offer(const speculation *s, float *totals, int32_t count);
/* How many of the nodes of all sessions are worth their rows: policy_nodes. waited_us: how long the forward
 * was waited for. */
int32_t speculation_width(const speculation_shared *all, int32_t roots, double plain_reads, double waited_us,
                          const float *totals, const int32_t *reads, int32_t count);
/* How many rows of a prompt to prefill next: policy_piece. */
int32_t speculation_prompt_rows(const speculation_shared *all, int32_t left, int32_t most, bool *measures);
/* How many rows of prompts, at most `most`, to prefill beside sessions that step: such as take
 * POLICY_BESIDE_US, but no fewer than POLICY_BESIDE_ROWS. */
int32_t speculation_prompts_beside(const speculation_shared *all, int32_t most);

/* How many rows, at most `most` (<= COST_ROWS_MAX), may be computed again for a draft that lacks their
 * features: no more than is won by the tokens that may still come and, once the answer has begun, than the
 * drafts have earned (policy_spare). Each row reads about `position` positions. */
int32_t speculation_repeat_rows(const speculation *s, const speculation_shared *all, int32_t tokens,
                                int32_t position, int32_t most, bool begun);
/* So many were, in mid-answer. */
void speculation_repeated(speculation *s, const speculation_shared *all, int32_t rows, int32_t position);

/* --- what is learnt --- */

/* Are drafts too far away for a head, whose guesses reach a few tokens only? */
bool speculation_comes_late(const speculation *s);
/* How long a reply took in the session that stepped last; 0: it is not known. */
double speculation_reply_us(const speculation_shared *all);
/* A draft that computes on the target's own processors was attached. all NULL: nothing is known. */
void speculation_colocated(speculation *s, const speculation_shared *all);
/* One is that computes beside the target. */
void speculation_beside(speculation *s, const speculation_shared *all);
/* The first reply to TOKENS came after_us later, */
void speculation_replied(speculation *s, uint64_t after_us);
/* and the first useful node that continues them. */
void speculation_node_arrived(speculation *s, uint64_t after_us);
/* How long has a step that has been possible since ready_us waited for nodes? */
uint64_t speculation_waited(const speculation *s, uint64_t ready_us, uint64_t now);
/* A step begins that has been possible since ready_us. It carries `nodes` of the `offered` nodes; `promised`
 * is the sum of the path probabilities of those. drafts_done: every draft has sent its done mark. Returns
 * speculation_waited. */
uint64_t speculation_begin_step(speculation *s, uint64_t ready_us, uint64_t now, int32_t offered,
                                int32_t nodes, double promised, bool drafts_done);
/* A forward has ended: learns what its rows cost. */
void speculation_measured(speculation_shared *all, const speculation_forward *f);
/* A full chunk of a prompt was prefilled in a forward of its own. */
void speculation_read(speculation_shared *all, double reads, double us);
/* The session's step in the forward that was measured last has ended and gave `tokens` tokens, where its
 * drafts' nodes alone would have given `drafted`; 0: no draft is attached, and it says nothing of drafts. */
void speculation_stepped(speculation *s, speculation_shared *all, int32_t tokens, int32_t drafted);

/* --- how long --- */

/* Sets how long the session waits for a node from now on: as long as that is expected to earn more than it
 * costs, and not at all while another session can run. */
void speculation_wait(speculation *s, uint64_t now, bool draft_attached, bool another_can_run);
