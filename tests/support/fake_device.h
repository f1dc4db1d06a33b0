/* fake_device.h - a device that computes nothing and writes down what it was asked, for tests of a device
 * around another one. */
#pragma once

#include "kernels/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_VOCABULARY = 5, FAKE_ROWS_MAX = 8 };

typedef struct fake_device {
  device base;
  char log[2048];
  size_t used;
  bool refuses;               /* begin */
  ops_code code;              /* of wait */
  bool prepared;              /* of its answer */
  const ops_row *kept;        /* the rows of the last batch, which a device must not look at after begin */
  const int32_t *kept_map;    /* the blocks of the last map, in the same way */
  const int32_t *kept_tokens; /* of the last batch, in the same way */
  ops_sampling choice;        /* the batch's first, copied as it should be */
  float logits[FAKE_VOCABULARY];
  int32_t ids[FAKE_ROWS_MAX];
  ops_ranking ranking; /* the batch's first, likewise */
  int32_t token;       /* the batch's first of a history */
  ops_ranked ranked[FAKE_ROWS_MAX];
  bool *closed;
} fake_device;

fake_device *fake_of(const device *d);

/* --- a forward --- */

/* *closed becomes true with its end. */
device *fake_open(bool *closed);
