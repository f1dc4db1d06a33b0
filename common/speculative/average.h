/* average.h - the only kind of average that the policy uses. The first samples have equal weight, later ones
 * have the weight POLICY_GAIN, and no sample counts for more than POLICY_OUTLIER times the mean. */
#pragma once

#include <stdint.h>

typedef struct average {  /* all zero at the start */
  double mean, deviation; /* deviation: mean absolute, as in RFC 6298 */
  uint32_t count;
} average;

void average_add(average *a, double sample);
