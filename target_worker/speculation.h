/* speculation.h - whether a session's next step verifies draft nodes, how many, and how long it waits for
 * them; and what is learnt about that from each step. Nobody else looks into these structs. Pure.
 *
 * All times are microseconds. */
#pragma once

#include "common/speculative/wait.h"
#include "common/speculative/width.h"

typedef struct speculation { /* of one session; all zero at the start */
  const char
      *disabled; /* why this session decodes plainly to its end, a static sentence; NULL: it does not */
  uint64_t wait_until_us; /* no plain step before this while no node is at hand */
  uint64_t waited_us;     /* by the step in hand */
  uint64_t wait_owed_us;  /* by steps that no verify with nodes has paid for yet */
  wait_history history;
  pay_state pay;
  width_record record; /* what its drafts have earned, which bounds the next verify */
  double plain_us;     /* moving averages of a forward: without nodes; */
  double verify_us;    /* with nodes, or after a wait that brought none, as history.tokens_per_step */
} speculation;

typedef struct speculation_shared { /* what a target's sessions know together; all zero at the start */
  width_costs widths;               /* of forwards without prompts */
  width_record record;              /* of the session that stepped last */
  pay_state model_draft;            /* of the session that stepped last with a draft that runs a model */
} speculation_shared;

/* --- whether --- */

/* May the next step carry nodes, and wait for them? In lockstep a session does so whatever it earns: then
 * only `disabled` counts. */
bool speculation_allowed(const speculation *s, bool lockstep);
/* Nodes are not wanted for now, because drafting has not paid. */
bool speculation_is_off(const speculation *s);
/* And its drafts should hear nothing, because their work would slow the plain steps. */
bool speculation_is_quiet(const speculation *s);
/* Why speculation is off at the end of an answer, or NULL; verified: at least one verify had nodes. */
const char *speculation_off_reason(const speculation *s, bool verified);
/* What a plain step takes; 0: after so few plain steps it is not known. */
double speculation_plain_us(const speculation *s, uint64_t plain_steps);

/* --- how many --- */

/* How many of its `count` best nodes the session may offer; totals as for width_best. */
int32_t speculation_offered(const speculation *s, const float *totals, int32_t count);
/* How many of the nodes of all sessions are worth their rows: width_best. */
int32_t speculation_width(const speculation_shared *all, int32_t roots, const float *totals, int32_t count);
/* How many rows of a prompt to read: width_piece. */
int32_t speculation_prompt_rows(const speculation_shared *all, int32_t left, int32_t most, bool *measures);

/* --- what is learnt --- */

/* A draft that runs a model was attached. */
void speculation_model_draft(speculation *s, const speculation_shared *all);
/* The first useful node came so long after the TOKENS that it continues. */
void speculation_node_arrived(speculation *s, uint64_t after_us);
/* A step begins, which was possible from ready_us on. nodes: some are at hand; drafts_done: no more will
 * come. Returns how long it has waited for nodes. */
uint64_t speculation_begin_step(speculation *s, uint64_t ready_us, uint64_t now, bool nodes,
                                bool drafts_done);
/* It has nodes, but they are not worth their rows in a forward of its own. */
void speculation_nodes_refused(speculation *s);

typedef struct speculation_step { /* a step that has ended, and the forward that it was part of */
  int32_t nodes, tokens;          /* verified beside the root; committed, >= 1 */
  double us;                      /* of the forward, and of this session's acceptance and commit */
  int32_t jobs, steps;            /* sessions in the forward; those of them that stepped */
  int32_t rows;                   /* of those that stepped */
} speculation_step;
void speculation_stepped(speculation *s, speculation_shared *all, const speculation_step *step);
/* A forward of so many rows (1 to WIDTH_ROWS_MAX), whose time tells what such a step costs, took us > 0. */
void speculation_measured(speculation_shared *all, int32_t rows, double us);

/* --- how long --- */

/* From now on the session waits for a node as long as that is expected to earn more than it costs; not at all
 * while another session can run. */
void speculation_wait(speculation *s, uint64_t now, bool draft_attached, bool another_can_run);
