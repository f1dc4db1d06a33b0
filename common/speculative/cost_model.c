#include "common/speculative/cost_model.h"

#include "common/base/min.h"
#include "common/speculative/policy_constants.h"
#include <assert.h>
#include <math.h>

/* Below, `end` is the end of a step, and where there are no steps any number of rows. */

int32_t cost_model_step_end(const cost_model *c, int32_t rows) {
  return c->ends[rows] ? c->ends[rows] : rows;
}

void cost_model_steps(cost_model *c, int32_t (*width)(void *context, int32_t rows), void *context) {
  for (int32_t rows = 1; rows <= COST_ROWS_MAX; rows++)
    c->ends[rows] = (int16_t)min_i32(width(context, rows), COST_ROWS_MAX);
}

static bool known(const cost_model *c, int32_t end) {
  const cost_width *w = &c->widths[end];
  uint64_t lasts = w->doubtful ? POLICY_AGAIN : POLICY_STALE;
  return w->us.count > 0 && (end == cost_model_step_end(c, 1) || c->forwards - w->at <= lasts);
}

bool cost_model_known(const cost_model *c, int32_t rows) {
  return known(c, cost_model_step_end(c, rows));
}

/* Without what its rows read. */
static double base(const cost_model *c, int32_t end) {
  const cost_width *w = &c->widths[end];
  return fmax(0, w->us.mean - cost_model_position_us(c) * w->positions);
}

double cost_model_position_us(const cost_model *c) {
  if (!(c->spread > 0)) return 0;
  const cost_width *plain = &c->widths[cost_model_step_end(c, 1)];
  double usual = plain->us.count ? plain->us.mean : c->widths[0].us.mean;
  double least = fmax(POLICY_SPREAD, POLICY_SPREAD_SHARE * plain->positions);
  double doubt = least * least / (usual * usual);
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

/* What counts of a forward's time when its width is not known, or in doubt; then it is learnt from nothing.
 */
static double first_or_second(const cost_model *c, int32_t end, cost_width *w, double us, double expected) {
  bool second = w->doubtful && c->forwards - w->at <= POLICY_STALE;
  if (second)
    us = fmin(us, w->us.mean);
  else if (w->us.count > 0 && (end == cost_model_step_end(c, 1) || known(c, end)))
    return us;
  else if (expected > 0)
    us = fmin(us, POLICY_OUTLIER * expected);
  w->doubtful = !second && expected > 0 && us > POLICY_DOUBT * expected;
  w->us = (average){0};
  return us;
}

void cost_model_measured(cost_model *c, int32_t rows, double positions, double us) {
  assert(rows >= 1 && rows <= COST_ROWS_MAX && us > 0);
  int32_t end = cost_model_step_end(c, rows);
  cost_width *w = &c->widths[end];
  us = first_or_second(c, end, w, us, cost_model_us(c, rows, positions));
  add(c, w, positions, us);
  w->at = ++c->forwards;
  if (end > c->widest) c->widest = end;
  for (int32_t i = 1; i < end; i++) { /* whatever held those up */
    const cost_width *narrow = &c->widths[i];
    double over = narrow->us.count ? fmin(base(c, i) - base(c, end), narrow->us.mean - w->us.mean) : 0;
    if (over > 0) c->widths[i].us.mean -= over;
  }
}

/* Of a row more than the widest that is known: as between that one and the next known below it. */
static double slope_beyond(const cost_model *c, int32_t widest) {
  int32_t below = widest - 1;
  while (below > 0 && !known(c, below)) below--;
  double slope = below > 0 ? (base(c, widest) - base(c, below)) / (widest - below) : 0;
  return fmax(slope, POLICY_SLOPE * base(c, widest));
}

double cost_model_us(const cost_model *c, int32_t rows, double positions) {
  assert(rows >= 1 && rows <= COST_ROWS_MAX);
  const int32_t end = cost_model_step_end(c, rows);
  int32_t below = end, above = end;
  while (below > 0 && !known(c, below)) below--;
  while (above <= c->widest && !known(c, above)) above++;
  double reads = cost_model_position_us(c) * positions;
  if (below > 0 && above <= c->widest) {
    double part = above > below ? (double)(end - below) / (above - below) : 0;
    return base(c, below) + part * (base(c, above) - base(c, below)) + reads;
  }
  if (below > 0) return base(c, below) + slope_beyond(c, below) * (end - below) + reads;
  return above <= c->widest ? base(c, above) / (1 + POLICY_SLOPE * (above - end)) + reads : 0;
}

bool cost_model_fresh(const cost_model *c, int32_t rows) {
  int32_t end = cost_model_step_end(c, rows);
  while (end > 0 && !(c->widths[end].us.count && c->forwards - c->widths[end].at <= POLICY_STALE)) end--;
  return end > 0;
}

int32_t cost_model_widest_try(const cost_model *c, int32_t rows) {
  int32_t widest = c->widest, least = rows + POLICY_PROBE - 1;
  while (widest > 0 && !known(c, widest)) widest--;
  if (2 * widest > least) least = 2 * widest;
  return cost_model_step_end(c, min_i32(least, COST_ROWS_MAX));
}
