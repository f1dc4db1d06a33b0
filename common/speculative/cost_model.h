/* cost_model.h - what a forward costs on one device, learnt from forwards: a time by its number of rows, and
 * so much for each position of the KV cache that its rows read. Pure; all times are microseconds.
 *
 * A plain step of one session is cost_model_us(c, 1, positions): there is no other estimate of it. A width
 * that was never measured lies on the line through its known neighbours. A wider forward never costs less
 * than a narrower one. What a position costs comes from how forwards of one width differ with what they read:
 * the pieces of a prompt show it before the first step. */
#pragma once

#include "common/speculative/average.h"
#include <stdbool.h>

#define COST_ROWS_MAX 256

typedef struct cost_width {
  average us;
  double positions; /* that those forwards read, averaged alike */
  uint64_t at;      /* `forwards` when it was measured last */
} cost_width;

typedef struct cost_model { /* all zero at the start */
  cost_width widths[COST_ROWS_MAX + 1];
  uint64_t forwards;
  double spread, slope; /* sums of the regression of time on positions, each as a share of its width's time */
} cost_model;

/* A forward of rows in [1, COST_ROWS_MAX] that together read so many positions took us > 0. */
void cost_model_measured(cost_model *c, int32_t rows, double positions, double us);
/* Of a prompt, whose rows choose no tokens: it tells only what positions cost. */
void cost_model_read(cost_model *c, double positions, double us);
/* What such a forward would take; 0 while nothing has been measured. */
double cost_model_us(const cost_model *c, int32_t rows, double positions);
/* What a position costs each row that reads it. */
double cost_model_position_us(const cost_model *c);
/* Have forwards of this width been measured, not too long ago? */
bool cost_model_known(const cost_model *c, int32_t rows);
/* Has this width or a narrower one been measured lately? */
bool cost_model_fresh(const cost_model *c, int32_t rows);
/* The widest forward that may be tried: twice what is known. So what a first try costs is bounded. */
int32_t cost_model_widest_try(const cost_model *c, int32_t rows);
