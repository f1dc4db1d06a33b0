#include "common/speculative/average.h"

#include "common/speculative/policy_constants.h"
#include <math.h>

void average_add(average *a, double sample) {
  if (a->count > 0) sample = fmin(sample, POLICY_OUTLIER * fabs(a->mean));
  double gain = fmax(POLICY_GAIN, 1.0 / (a->count + 1));
  a->deviation += (a->count ? gain : 1) * ((a->count ? fabs(sample - a->mean) : sample / 2) - a->deviation);
  a->mean += gain * (sample - a->mean);
  if (a->count < UINT32_MAX) a->count++;
}
