/* average.h - the one way in which the policy averages: the first samples count alike, later ones by
 * POLICY_GAIN, and none for more than POLICY_OUTLIER times the mean. */
#pragma once

#include <stdint.h>

typedef struct average {  /* all zero at the start */
  double mean, deviation; /* deviation: mean absolute, as in RFC 6298 */
  uint32_t count;
} average;

void average_add(average *a, double sample);
