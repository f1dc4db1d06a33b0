/* width.h - how many nodes a forward should carry: what its rows cost, as measured, against what the nodes
 * promise. Pure; all times are microseconds.
 *
 * With the best nodes' probabilities p_1 >= p_2 >= ... (each of its whole path), a forward of n sessions and
 * k of their nodes yields n + p_1 + ... + p_k tokens on average and costs the time of n + k rows. The k of
 * the most tokens a microsecond is taken. Cost by width is a property of the machine and the model, so one
 * table serves all sessions. The first long prompt begins it: its last four rows are read in a forward of
 * their own. Widths that were never measured are read off the line through those that were, so that wider
 * forwards are tried and then known. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define WIDTH_ROWS_MAX 256
#define WIDTH_FRESH                                                                                          \
  256 /* forwards after which the next measurement replaces the average instead of joining it */
#define WIDTH_OLD     1024 /* and after which a prompt measures the width again */
#define WIDTH_PROBE   4    /* rows of a prompt that are read in a forward of their own, to measure it */
#define WIDTH_SLOPE   0.04 /* of the widest known: what a row more is taken to cost at least */
#define WIDTH_TRY     16   /* rows that may be tried at once; more, when half as many are known */
#define WIDTH_OUTLIER 2.0  /* a time above so many times the average is taken as that */

typedef struct width_costs {       /* all zero at the start */
  double us[WIDTH_ROWS_MAX + 1];   /* by rows: moving averages; 0: never measured */
  uint64_t at[WIDTH_ROWS_MAX + 1]; /* `forwards` when last measured */
  uint64_t forwards;
} width_costs;

/* A forward of so many rows (1 to WIDTH_ROWS_MAX) took us > 0. Narrower ones are taken to cost no more than
 * that. */
void width_measured(width_costs *w, int32_t rows, double us);
/* What a forward of so many rows would take; 0 while nothing has been measured. */
double width_cost(const width_costs *w, int32_t rows);
/* How many of the `count` best nodes to verify beside `roots` rows that yield a token each, 0 to count;
 * totals[i] = log of node i's path probability, descending; roots + count <= WIDTH_ROWS_MAX. As many as may
 * be tried while nothing has been measured. */
int32_t width_best(const width_costs *w, int32_t roots, const float *totals, int32_t count);

/* How many of the `left` >= 1 rows of a prompt the next forward should read, at most `most`. *measures: these
 * rows alone, and with their logits as in a verify, because forwards of that width have not been measured, or
 * not lately. */
int32_t width_piece(const width_costs *w, int32_t left, int32_t most, bool *measures);

/* A session starts small: its verifies carry WIDTH_START nodes at most, each at least WIDTH_START_LEAST
 * probable. Each verify that accepts a node doubles the former; each accepted node, and every
 * WIDTH_START_STEPS forwards, lower the latter. So a draft that guesses nothing right costs a short answer
 * next to nothing. */
#define WIDTH_START       3
#define WIDTH_START_LEAST 0.75
#define WIDTH_START_STEPS 64

typedef struct width_record { /* of one session, all zero at the start */
  uint32_t steps, verifies;   /* forwards; those of them that accepted a node */
  uint64_t accepted;          /* nodes */
} width_record;

/* Another session, of the same drafts more often than not, counts for a quarter. */
void width_begin(width_record *r, const width_record *before);
/* A forward of this session, which accepted so many nodes. */
void width_stepped(width_record *r, int32_t accepted);
/* How many of its `count` best nodes a session may verify; totals as for width_best. */
int32_t width_allowed(const width_record *r, const float *totals, int32_t count);
