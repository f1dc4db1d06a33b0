#include "common/speculative/cost_model.h"

#include "common/speculative/policy_constants.h"
#include <assert.h>
#include <math.h>

bool cost_model_known(const cost_model *c, int32_t rows) {
  const cost_width *w = &c->widths[rows];
  return w->us.count > 0 && (rows == 1 || c->forwards - w->at <= POLICY_STALE);
}

/* Without what its rows read. */
static double base(const cost_model *c, int32_t rows) {
  const cost_width *w = &c->widths[rows];
  return fmax(0, w->us.mean - cost_model_position_us(c) * w->positions);
}

double cost_model_position_us(const cost_model *c) {
  if (!(c->spread > 0)) return 0;
  double usual = c->widths[1].us.count ? c->widths[1].us.mean : c->widths[0].us.mean;
  double doubt = POLICY_SPREAD * (double)POLICY_SPREAD / (usual * usual);
  return fmax(0, c->slope / (c->spread + doubt));
}

/* One more point of the regression within a width. */
static void add(cost_model *c, cost_width *w, double positions, double us) {
  if (w->us.count > 0) {
    us = fmin(us, POLICY_OUTLIER * w->us.mean);
    double keep = 1 - 1.0 / POLICY_STALE, scale = 1 / (w->us.mean * w->us.mean);
    double dx = positions - w->positions, dy = us - w->us.mean;
    c->spread = c->spread * keep + scale * dx * dx;
    c->slope = c->slope * keep + scale * dx * dy;
  }
  w->positions += fmax(POLICY_GAIN, 1.0 / (w->us.count + 1)) * (positions - w->positions);
  average_add(&w->us, us);
}

void cost_model_read(cost_model *c, double positions, double us) {
  add(c, &c->widths[0], positions, us);
}

void cost_model_measured(cost_model *c, int32_t rows, double positions, double us) {
  assert(rows >= 1 && rows <= COST_ROWS_MAX && us > 0);
  cost_width *w = &c->widths[rows];
  double expected = cost_model_us(c, rows, positions);
  if (rows > 1 && !cost_model_known(c, rows)) w->us = (average){0};
  if (w->us.count == 0 && expected > 0) us = fmin(us, POLICY_OUTLIER * expected);
  add(c, w, positions, us);
  w->at = ++c->forwards;
  if (rows > c->widest) c->widest = rows;
  for (int32_t i = 2; i < rows; i++) { /* whatever held those up */
    double over = c->widths[i].us.count ? base(c, i) - base(c, rows) : 0;
    if (over > 0) c->widths[i].us.mean -= over;
  }
}

/* Of a row more than the widest that is known: as between that one and the next known below it. */
static double slope_beyond(const cost_model *c, int32_t widest) {
  int32_t below = widest - 1;
  while (below > 0 && !cost_model_known(c, below)) below--;
  double slope = below > 0 ? (base(c, widest) - base(c, below)) / (widest - below) : 0;
  return fmax(slope, POLICY_SLOPE * base(c, widest));
}

double cost_model_us(const cost_model *c, int32_t rows, double positions) {
  assert(rows >= 1 && rows <= COST_ROWS_MAX);
  int32_t below = rows, above = rows;
  while (below > 0 && !cost_model_known(c, below)) below--;
  while (above <= c->widest && !cost_model_known(c, above)) above++;
  double reads = cost_model_position_us(c) * positions;
  if (below > 0 && above <= c->widest) {
    double part = above > below ? (double)(rows - below) / (above - below) : 0;
    return base(c, below) + part * (base(c, above) - base(c, below)) + reads;
  }
  if (below > 0) return base(c, below) + slope_beyond(c, below) * (rows - below) + reads;
  return above <= c->widest ? base(c, above) / (1 + POLICY_SLOPE * (above - rows)) + reads : 0;
}

bool cost_model_fresh(const cost_model *c, int32_t rows) {
  while (rows > 0 && !(c->widths[rows].us.count && c->forwards - c->widths[rows].at <= POLICY_STALE)) rows--;
  return rows > 0;
}

int32_t cost_model_widest_try(const cost_model *c, int32_t rows) {
  int32_t widest = c->widest, least = rows + POLICY_PROBE - 1;
  while (widest > 0 && !cost_model_known(c, widest)) widest--;
  if (2 * widest > least) least = 2 * widest;
  return least < COST_ROWS_MAX ? least : COST_ROWS_MAX;
}
