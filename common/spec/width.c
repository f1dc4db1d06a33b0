#include "common/spec/width.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#define WEIGHT 0.125 /* of a new measurement */

static bool known(const width_costs *w, int32_t rows) {
  return w->us[rows] > 0 && (rows == 1 || w->forwards - w->at[rows] <= WIDTH_FRESH);
}

void width_measured(width_costs *w, int32_t rows, double us) {
  assert(rows >= 1 && rows <= WIDTH_ROWS_MAX && us > 0);
  w->forwards++;
  double *mean = &w->us[rows];
  if (!known(w, rows)) {
    *mean = us;
  } else {
    if (us > WIDTH_OUTLIER * *mean) us = WIDTH_OUTLIER * *mean;
    *mean += WEIGHT * (us - *mean);
  }
  w->at[rows] = w->forwards;
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
  if (has_below) return w->us[below] * (1 + WIDTH_SLOPE * (rows - below));
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
