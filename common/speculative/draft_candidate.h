/* draft_candidate.h - a token that a drafter proposes. */
#pragma once

#include <stdint.h>

#define DRAFT_CANDIDATES_MAX 8 /* for one position */

typedef struct draft_candidate {
  int32_t token;
  float score; /* log of its match probability given the path, <= 0 */
  /* Of a drafter that calibrates its scores (calibration.h): what this one was made of; else 0. */
  float gap, noise;
  uint8_t rank, kind;
} draft_candidate;
