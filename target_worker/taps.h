/* taps.h - which states of the model's rows the drafts of a session read, and the form in which they travel
 * (features: wire/PROTOCOL.md, section 9). */
#pragma once

#include "wire/message.h"
#include <stddef.h>

typedef struct taps_set {
  int32_t list[WIRE_TAPS_MAX]; /* states that enter these layers */
  int32_t count;               /* 0: none are read */
  wire_type type;
  bool fused;    /* the target applies fc */
  int32_t width; /* values of a row: [1, WIRE_FEATURE_WIDTH_MAX] */
} taps_set;

/* What a target's model has to offer; all zero: nothing. */
typedef struct taps_offer {
  int32_t layers, embed; /* of the model: taps are in [0, layers], and each has `embed` values */
  hash16 fc;             /* of the head file that the target was given; zero: none */
  int32_t fc_taps[WIRE_TAPS_MAX], fc_tap_count, fc_width;
  bool fc_in_forward; /* the model applies it as its forward comes by (model_fuse) */
} taps_offer;

/* What a draft that asks for these features gets. ERR_ARG: its head does not fit the model. */
int taps_grant(const taps_offer *o, const msg_feature_request *r, taps_set *out, err *e);

bool taps_equal(const taps_set *a, const taps_set *b);
size_t taps_row_bytes(const taps_set *t);
/* Writes values in the type that travels: bf16 is rounded to the nearest, ties to even. */
void taps_pack(wire_type type, const float *values, int32_t count, uint8_t *out);
