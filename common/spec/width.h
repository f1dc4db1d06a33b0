/* width.h - how many nodes a forward should carry: what its rows cost, as measured, against what the nodes
 * promise. Pure; all times are microseconds.
 *
 * With the best nodes' probabilities p_1 >= p_2 >= ... (each of its whole path), a forward of n sessions and k
 * of their nodes yields n + p_1 + ... + p_k tokens on average and costs the time of n + k rows. The k of the most
 * tokens a microsecond is taken. Cost by width is a property of the machine and the model, so one table serves all
 * sessions. Widths that were not measured lately are read off the line between those that were; beyond the
 * widest of them a row is taken to cost little, so that wider forwards are tried and then known. */
#pragma once

#include <stdint.h>

#define WIDTH_ROWS_MAX 256
#define WIDTH_FRESH    256  /* forwards for which a measurement counts; that of one row always does */
#define WIDTH_SLOPE    0.04 /* of one row's cost: what a row more is taken to cost where nothing is known */
#define WIDTH_TRY      16   /* rows that may be tried at once; more, when half as many are known */
#define WIDTH_OUTLIER  2.0  /* a time above so many times the average is taken as that */

typedef struct width_costs {       /* all zero at the start */
  double us[WIDTH_ROWS_MAX + 1];   /* by rows: moving averages; 0: never measured */
  uint64_t at[WIDTH_ROWS_MAX + 1]; /* `forwards` when last measured */
  uint64_t forwards;
} width_costs;

/* A forward of so many rows (1 to WIDTH_ROWS_MAX) took us > 0. */
void width_measured(width_costs *w, int32_t rows, double us);
/* What a forward of so many rows would take; 0 while nothing has been measured. */
double width_cost(const width_costs *w, int32_t rows);
/* How many of the `count` best nodes to verify beside `roots` rows that yield a token each, 0 to count; totals[i] =
 * log of node i's path probability, descending; roots + count <= WIDTH_ROWS_MAX. As many as may be tried while nothing has
 * been measured. */
int32_t width_best(const width_costs *w, int32_t roots, const float *totals, int32_t count);
