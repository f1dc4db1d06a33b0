#include "common/file/head_calibration.h"

#include <stdio.h>

#define PREFIX "tandem.calibration."

static const char *const KINDS[HEAD_CALIBRATION_KINDS] = {PREFIX "greedy", PREFIX "sampled"};

static int bad(int kind, const char *why, err *e) {
  return err_set(e, ERR_FORMAT, "the draft head's %s %s: measure it again (scripts/calibrate_head.py)",
                 KINDS[kind], why);
}

/* Weight `i` of a kind. NaN is beyond the limits, too. */
static int take(head_calibration *c, int kind, int i, double weight, err *e) {
  double least = i == 0 ? 0 : -HEAD_CALIBRATION_WEIGHT_MAX;
  bool fits = (i == 0 ? weight > least : weight >= least) && weight <= HEAD_CALIBRATION_WEIGHT_MAX;
  char why[80];
  snprintf(why, sizeof why, "has weight %d not between %.0f and %.0f", i, least,
           (double)HEAD_CALIBRATION_WEIGHT_MAX);
  if (!fits) return bad(kind, why, e);
  c->weights[kind][i] = (float)weight;
  return ERR_OK;
}

static int bad_count(int kind, err *e) {
  char why[64];
  snprintf(why, sizeof why, "is no list of %d numbers", HEAD_CALIBRATION_WEIGHTS);
  return bad(kind, why, e);
}

static int read_array(head_calibration *c, int kind, const gguf *g, err *e) {
  uint64_t count;
  int rc = ERR_OK;
  if (!gguf_array_count(g, KINDS[kind], &count) || count != HEAD_CALIBRATION_WEIGHTS)
    return bad_count(kind, e);
  for (int i = 0; !rc && i < HEAD_CALIBRATION_WEIGHTS; i++) {
    double weight;
    if (!gguf_array_f64(g, KINDS[kind], (uint64_t)i, &weight)) return bad_count(kind, e);
    rc = take(c, kind, i, weight, e);
  }
  return rc;
}

int head_calibration_read_gguf(head_calibration *c, const gguf *g, err *e) {
  int rc = ERR_OK;
  *c = (head_calibration){0};
  for (int kind = 0; kind < HEAD_CALIBRATION_KINDS; kind++) c->there |= gguf_has(g, KINDS[kind]);
  for (int kind = 0; c->there && !rc && kind < HEAD_CALIBRATION_KINDS; kind++) rc = read_array(c, kind, g, e);
  return rc;
}

static int read_list(head_calibration *c, int kind, const json_t *list, err *e) {
  int rc = ERR_OK;
  if (json_array_size(list) != HEAD_CALIBRATION_WEIGHTS) return bad_count(kind, e);
  for (int i = 0; !rc && i < HEAD_CALIBRATION_WEIGHTS; i++) {
    const json_t *weight = json_array_get(list, (size_t)i);
    rc = json_is_number(weight) ? take(c, kind, i, json_number_value(weight), e) : bad_count(kind, e);
  }
  return rc;
}

int head_calibration_read_json(head_calibration *c, const json_t *object, err *e) {
  int rc = ERR_OK;
  *c = (head_calibration){.there = true};
  for (int kind = 0; !rc && kind < HEAD_CALIBRATION_KINDS; kind++)
    rc = read_list(c, kind, json_object_get(object, KINDS[kind] + sizeof PREFIX - 1), e);
  return rc;
}

void head_calibration_write(const head_calibration *c, gguf_writer *w) {
  for (int kind = 0; c->there && kind < HEAD_CALIBRATION_KINDS; kind++)
    gguf_write_f32s(w, KINDS[kind], c->weights[kind], HEAD_CALIBRATION_WEIGHTS);
}
