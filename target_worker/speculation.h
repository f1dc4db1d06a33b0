/* speculation.h - whether a session's next step verifies draft nodes, how many, and how long it waits for
 * them; and what is learnt about that from each step. Nobody else looks into these structs. Pure.
 *
 * This is the policy (common/speculative/policy.h) as a target applies it to several sessions at a time. All
 * times are microseconds. */
#pragma once

#include "common/speculative/policy.h"

typedef struct speculation { /* of one session; all zero at the start */
  const char
      *disabled; /* why this session decodes plainly to its end, a static sentence; NULL: it does not */
  uint64_t wait_until_us; /* no plain step before this while no node is at hand */
  policy policy;
  policy_step step;  /* the one in hand, as far as it is known */
  double arrived_us; /* after the last TOKENS the first useful node came; 0: none has */
  double plain_us;   /* a plain step of the sessions that stepped with this one last */
} speculation;

typedef struct speculation_forward { /* what a forward carried, and what it took */
  int32_t steps, rows;               /* sessions that stepped; their rows, nodes included */
  double plain_reads, reads;         /* cache positions read by those sessions' roots; by all those rows */
  bool prompts;                      /* pieces of prompts, too */
  bool quiet; /* no draft computed beside it on the same processors, unless it brought nodes */
  double us;
} speculation_forward;

typedef struct speculation_shared { /* what a target's sessions know together; all zero at the start */
  cost_model costs;
  policy last; /* of the session that stepped last */
  speculation_forward forward;
} speculation_shared;

/* --- whether --- */

/* May the next step carry nodes, and wait for them? In lockstep a session does so whatever it earns: then
 * only `disabled` counts. */
bool speculation_allowed(const speculation *s, bool lockstep);
/* Nodes are not wanted for now, because drafting has not paid: tokens are kept until they are. */
bool speculation_is_off(const speculation *s);
/* And its drafts are not even brought up to date now and then, because their work would slow the plain steps.
 */
bool speculation_is_quiet(const speculation *s);
/* Does a plain step now cost what it does without a draft? */
bool speculation_is_undisturbed(const speculation *s);
/* Why speculation is off at the end of an answer, or NULL. */
const char *speculation_off_reason(const speculation *s);
/* What a plain step takes; 0: it is not known. */
double speculation_plain_us(const speculation *s);

/* --- how many --- */

/* Probabilities of the session's best nodes, by what its drafts have kept of their promises; logs. */
void speculation_offer(const speculation *s, float *totals, int32_t count);
/* How many of the nodes of all sessions are worth their rows: policy_nodes. */
int32_t speculation_width(const speculation_shared *all, int32_t roots, double plain_reads,
                          const float *totals, const int32_t *reads, int32_t count);
/* How many rows of a prompt to read: policy_piece. */
int32_t speculation_prompt_rows(const speculation_shared *all, int32_t left, int32_t most, bool *measures);

/* --- what is learnt --- */

/* A draft that computes on the target's own processors was attached. */
void speculation_colocated(speculation *s);
/* The first useful node came so long after the TOKENS that it continues. */
void speculation_node_arrived(speculation *s, uint64_t after_us);
/* A step begins, which was possible from ready_us on, with `nodes` of the `offered` ones, which promise so
 * much (the sum of their path probabilities). drafts_done: the drafts have said all. Returns how long it has
 * waited for nodes. */
uint64_t speculation_begin_step(speculation *s, uint64_t ready_us, uint64_t now, int32_t offered,
                                int32_t nodes, double promised, bool drafts_done);
/* A forward has ended: it tells what its rows cost. */
void speculation_measured(speculation_shared *all, const speculation_forward *f);
/* A full piece of a prompt was read in a forward of its own. */
void speculation_read(speculation_shared *all, double reads, double us);
/* A session's step in the forward that was measured last has ended. */
void speculation_stepped(speculation *s, speculation_shared *all, int32_t tokens);

/* --- how long --- */

/* From now on the session waits for a node as long as that is expected to earn more than it costs; not at all
 * while another session can run. */
void speculation_wait(speculation *s, uint64_t now, bool draft_attached, bool another_can_run);
