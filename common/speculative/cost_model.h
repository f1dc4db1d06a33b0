/* cost_model.h - what a forward costs on one device, learnt from forwards: a time for its number of rows,
 * plus a time for each position of the KV cache that its rows read. Pure; all times are microseconds.
 *
 * A plain step of one session is cost_model_us(c, 1, positions): there is no other estimate of it. A width
 * that was never measured lies on the line through its known neighbours. A wider forward never costs less
 * than a narrower one. A first sample may hold what happens only once, such as the capture of a graph, so one
 * far above the expected time is soon asked for again, and the lower of the two counts. The cost of a
 * position comes from forwards of one width that read different numbers of positions. The chunks of a long
 * prompt show it before the first step.
 *
 * Some devices compute in steps: a forward costs what the widest one of its step costs (device.h's `width`).
 * There a time belongs to a step, and is found under its widest number of rows, whichever was measured. */
#pragma once

#include "common/speculative/average.h"
#include <stdbool.h>

#define COST_ROWS_MAX 256

typedef struct cost_width {
  average us;
  double positions; /* positions that those forwards read, averaged in the same way */
  uint64_t at;      /* `forwards` when it was measured last */
  bool doubtful;    /* one sample, far above what was expected: perhaps something that happens once */
} cost_width;

typedef struct cost_model {        /* all zero at the start */
  int16_t ends[COST_ROWS_MAX + 1]; /* the widest forward of the step of each number of rows; 0: itself */
  cost_width widths[COST_ROWS_MAX + 1];
  int32_t widest; /* that was ever measured */
  uint64_t forwards;
  double spread, slope; /* sums of the regression of time on positions, each as a share of its width's time */
} cost_model;

/* Before anything is measured: width(context, rows) is the widest forward that costs what one of `rows`
 * costs; it never falls, and its own width is itself. Steps that end beyond COST_ROWS_MAX end there. */
void cost_model_steps(cost_model *c, int32_t (*width)(void *context, int32_t rows), void *context);
/* The end of the step that `rows` belong to, in [rows, COST_ROWS_MAX]. */
int32_t cost_model_step_end(const cost_model *c, int32_t rows);
/* Learns from a forward of `rows` in [1, COST_ROWS_MAX], which together read so many positions and took us >
 * 0. */
void cost_model_measured(cost_model *c, int32_t rows, double positions, double us);
/* Learns from a full chunk of a prompt. Its rows choose no tokens, so it tells only what positions cost. */
void cost_model_read(cost_model *c, double positions, double us);
/* The expected time of such a forward; 0 while nothing has been measured. */
double cost_model_us(const cost_model *c, int32_t rows, double positions);
/* The cost of one position for each row that reads it. */
double cost_model_position_us(const cost_model *c);
/* Has a forward of this width been measured within the last POLICY_STALE forwards (POLICY_AGAIN, if in
 * doubt)? One row, once measured, stays known. */
bool cost_model_known(const cost_model *c, int32_t rows);
/* Has a forward of this width or a narrower one been measured lately? */
bool cost_model_fresh(const cost_model *c, int32_t rows);
/* The widest forward that may be tried with `rows` roots: twice the widest that is known, or POLICY_PROBE - 1
 * nodes beside the roots if that is wider; and what is left of that step. This bounds the cost of a first
 * try.
 */
int32_t cost_model_widest_try(const cost_model *c, int32_t rows);
