/* head_calibration.h - the measured weights by which a draft head's values become match probabilities
 * (draft_worker/drafters/calibration.h says how), as its file keeps them. */
#pragma once

#include "common/file/gguf.h"
#include "common/file/gguf_writer.h"
#include <jansson.h>

#define HEAD_CALIBRATION_KINDS      2 /* "greedy" (T = 0), "sampled" (T > 0) */
#define HEAD_CALIBRATION_WEIGHTS    6
#define HEAD_CALIBRATION_WEIGHT_MAX 100.0f /* of either sign; the first one, the sharpness, is above zero */

typedef struct head_calibration {
  bool there; /* false: the file has none */
  float weights[HEAD_CALIBRATION_KINDS][HEAD_CALIBRATION_WEIGHTS];
} head_calibration;

/* A GGUF without any is ERR_OK. ERR_FORMAT: one kind alone, another number of weights, or one beyond its
 * limits. */
int head_calibration_read_gguf(head_calibration *c, const gguf *g, err *e);
/* {"greedy": [...], "sampled": [...]}, both. ERR_FORMAT. */
int head_calibration_read_json(head_calibration *c, const json_t *object, err *e);
void head_calibration_write(const head_calibration *c, gguf_writer *w); /* nothing, if there is none */
