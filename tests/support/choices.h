/* choices.h - how a token follows from its logits (ops.h: ops_sampling), written from the definition:
 * noise_of for each output, and the largest sum; none where an output is a NaN or +infinity. */
#pragma once

#include "common/base/noise.h"
#include "tests/support/ops_devices.h"

typedef struct winner {
  float value;
  int32_t id;
} winner;

float choice_value(const ops_sampling *c, float logit, int32_t id);

winner choice_winner(winner w, const ops_sampling *c, const float *logits, int32_t first, int32_t n);

int32_t choice_of(const ops_sampling *c, const float *logits, int32_t n);

ops_sampling choice_random(int i);
