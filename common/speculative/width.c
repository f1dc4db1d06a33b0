#include "common/speculative/width.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#define WEIGHT 0.125 /* of a new measurement */

static bool known(const width_costs *w, int32_t rows) {
  return w->us[rows] > 0;
}

static uint64_t age(const width_costs *w, int32_t rows) {
  return w->forwards - w->at[rows];
}

void width_measured(width_costs *w, int32_t rows, double us) {
  assert(rows >= 1 && rows <= WIDTH_ROWS_MAX && us > 0);
  w->forwards++;
  double *mean = &w->us[rows];
  if (!known(w, rows) || age(w, rows) > WIDTH_FRESH) {
    *mean = us;
  } else {
    if (us > WIDTH_OUTLIER * *mean) us = WIDTH_OUTLIER * *mean;
    *mean += WEIGHT * (us - *mean);
  }
  w->at[rows] = w->forwards;
  for (int32_t i = 2; i < rows; i++)
    if (w->us[i] > us) w->us[i] = us; /* whatever disturbed that one */
}

/* Of a row more than the widest that is known: as between that one and the next known below it. */
static double slope_beyond(const width_costs *w, int32_t widest) {
  int32_t below = widest - 1;
  while (below > 0 && !known(w, below)) below--;
  double least = WIDTH_SLOPE * w->us[widest];
  double slope = below > 0 ? (w->us[widest] - w->us[below]) / (widest - below) : 0;
  return slope > least ? slope : least;
}

double width_cost(const width_costs *w, int32_t rows) {
  assert(rows >= 1 && rows <= WIDTH_ROWS_MAX);
  int32_t below = rows, above = rows;
  while (below > 0 && !known(w, below)) below--;
  while (above <= WIDTH_ROWS_MAX && !known(w, above)) above++;
  bool has_below = below > 0, has_above = above <= WIDTH_ROWS_MAX;
  if (has_below && has_above) {
    if (below == above) return w->us[rows];
    double part = (double)(rows - below) / (double)(above - below);
    return w->us[below] + part * (w->us[above] - w->us[below]);
  }
  if (has_below) return w->us[below] + slope_beyond(w, below) * (rows - below);
  return has_above ? w->us[above] / (1 + WIDTH_SLOPE * (above - rows)) : 0;
}

/* Twice the widest that is known: what a first try costs is bounded by what was tried before. */
static int32_t widest_try(const width_costs *w, int32_t roots) {
  int32_t widest = WIDTH_ROWS_MAX;
  while (widest > roots && !known(w, widest)) widest--;
  return 2 * widest > WIDTH_TRY ? 2 * widest : WIDTH_TRY;
}

int32_t width_best(const width_costs *w, int32_t roots, const float *totals, int32_t count) {
  double cost = width_cost(w, roots);
  int32_t kept = 0, most = widest_try(w, roots) - roots;
  if (count > most) count = most;
  if (cost == 0) return count;
  double tokens = roots, best = tokens / cost;
  for (int32_t k = 1; k <= count; k++) {
    tokens += exp((double)totals[k - 1]);
    double rate = tokens / width_cost(w, roots + k);
    if (rate <= best) continue;
    best = rate;
    kept = k;
  }
  return kept;
}

/* --- prompts --- */

int32_t width_piece(const width_costs *w, int32_t left, int32_t most, bool *measures) {
  bool wanted = !known(w, WIDTH_PROBE) || age(w, WIDTH_PROBE) > WIDTH_OLD;
  *measures = wanted && left == WIDTH_PROBE;
  int32_t kept = wanted && left > WIDTH_PROBE ? WIDTH_PROBE : 0;
  return left - kept < most ? left - kept : most;
}

/* --- a session's start --- */

void width_begin(width_record *r, const width_record *before) {
  *r = (width_record){before->steps / 4, before->verifies / 4, before->accepted / 4};
}

void width_stepped(width_record *r, int32_t accepted) {
  r->steps++;
  r->verifies += accepted > 0;
  r->accepted += (uint64_t)accepted;
}

int32_t width_allowed(const width_record *r, const float *totals, int32_t count) {
  double least = log(WIDTH_START_LEAST / (1 + (double)r->accepted + (double)r->steps / WIDTH_START_STEPS));
  int32_t most = WIDTH_START, kept = 0;
  for (uint32_t i = 0; i < r->verifies && most < count; i++) most *= 2;
  while (kept < count && kept < most && (double)totals[kept] >= least) kept++;
  return kept;
}
