/* recording.h - a completion that plain decoding gave, or that was recorded step by step. */
#pragma once

#include <stdint.h>

typedef struct recorded_tree recorded_tree; /* steps.h */

typedef struct recording {
  int32_t *tokens, length, prompt_length;
  unsigned long long session; /* of recorded steps, as are: */
  recorded_tree *trees;       /* the last one */
} recording;
