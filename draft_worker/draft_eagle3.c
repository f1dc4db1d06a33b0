#include "draft_worker/draft_eagle3.h"

#include "common/base/min.h"
#include "common/file/head_fc.h"
#include "common/model/warmup.h"
#include "draft_worker/drafters/eagle3.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CONTEXT 4096
#define COMMON_OUTPUTS  4096 /* on a CPU, whose memory is what a forward waits for */

_Static_assert(HEAD_CALIBRATION_KINDS == CALIBRATION_KINDS && HEAD_CALIBRATION_WEIGHTS == CALIBRATION_WEIGHTS,
               "a head's file keeps what its drafter reads");

_Static_assert(HEAD_HORIZON_MAX <= WIRE_HORIZON_MAX, "a head's horizon goes out in ATTACH");

static int open_files(draft_eagle3 *m, const flag_values *a, err *e) {
  if (!a->draft_model || !a->model)
    return err_set(e, ERR_ARG, "--draft eagle3 needs -md HEAD, and -m FILE, the target's model");
  if (a->draft_layers)
    return err_set(e, ERR_ARG, "--draft-layers is of a model, and -md names a head: leave it out");
  int rc = model_file_open(&m->target, a->model, e);
  if (rc == ERR_OK) rc = head_file_open(&m->file, a->draft_model, model_file_config(m->target), e);
  return rc ? rc : head_file_settle(m->file, draft_arguments_type(a), e);
}

/* Longer sessions than it has room for are refused with that reason. */
static int open_cache(draft_eagle3 *m, const flag_values *a, err *e) {
  const model_config *layer = &draft_head_shape(m->head)->layer;
  size_t memory = (size_t)a->kv_memory;
  int32_t wanted = a->context ? a->context : DEFAULT_CONTEXT;
  kv_options o = {.sequences = a->sessions,
                  .context = min_i32(wanted, model_file_config(m->target)->context),
                  .type = KV_F16};
  if (memory) kv_fit(layer, &o, memory);
  m->context = o.context;
  const memory_needs n = kv_needs(layer, &o);
  int rc = memory ? memory_needs_check(&n, memory, NULL, e) : ERR_OK;
  return rc ? rc : kv_open(&m->kv, m->device, layer, &o, &m->memory, e);
}

static int open_engine(draft_eagle3 *m, const flag_values *a, const logger *log, err *e) {
  const eagle3_engine_options o = {
      .head = m->head, .kv = m->kv, .sequences = a->sessions, .length_max = m->context, .log = log};
  return eagle3_engine_open(&m->engine, &o, e);
}

static int open_drafter(const draft_eagle3 *m, const flag_values *a, drafter *to, err *e) {
  const head_config *c = draft_head_shape(m->head);
  const head_calibration *measured = &head_file_config(m->file)->calibration;
  drafter_wants wants = {.tap_count = c->tap_count,
                         .type = WIRE_BF16,
                         .fc = head_fc_hash(m->file),
                         .fc_width = c->layer.embed,
                         .horizon = head_file_horizon(m->file)};
  for (int32_t i = 0; i < c->tap_count; i++) wants.taps[i] = c->taps[i];
  return eagle3_open(to, &wants, a->rows, c->tap_count * c->target_embed,
                     measured->there ? measured->weights : NULL, e);
}

static int describe(const draft_eagle3 *m, const flag_values *a, draft_options *o, err *e) {
  o->shorter = true;
  o->session_max = a->sessions;
  o->context = m->context;
  o->colocated = a->turns;
  o->numerics_id = model_numerics_id(OPS_MATH_INT8, KV_F16);
  o->device = m->device->table->name;
  o->vocabulary_size = model_file_config(m->target)->vocab;
  return model_file_vocabulary(m->target, &o->vocabulary_hash, e);
}

static int32_t common_outputs(const flag_values *a) {
  if (a->draft_outputs) return a->draft_outputs;
  return strncmp(a->device, "cpu", 3) == 0 ? COMMON_OUTPUTS : 0;
}

int draft_eagle3_open(draft_eagle3 *m, const flag_values *a, const logger *log, draft_options *o, drafter *to,
                      err *e) {
  const device_options d = {.math = OPS_MATH_INT8, .threads = a->threads, .spin_us = a->spin, .tested = true};
  int rc = open_files(m, a, e);
  if (rc == ERR_OK) rc = device_open(&m->device, a->device, &d, &m->memory, e);
  const head_shares shares = {common_outputs(a), a->sessions};
  if (rc == ERR_OK) rc = draft_head_open(&m->head, m->file, m->target, shares, m->device, &m->memory, e);
  if (rc == ERR_OK) rc = open_cache(m, a, e);
  if (rc == ERR_OK) rc = open_engine(m, a, log, e);
  if (rc == ERR_OK) rc = open_drafter(m, a, to, e);
  if (rc == ERR_OK) m->drafter = to;
  return rc ? rc : describe(m, a, o, e);
}

/* Rows of C and what they are asked; whoever applies fc. */
static void add_forms(warmup_head_form *to, draft_head_input input, const model_ranking *best) {
  to[0] = (warmup_head_form){{.rows = {.shift = 1, .no_logits = true}, .input = input}, DRAFT_CHUNK, 8};
  to[1] = (warmup_head_form){{.rows = {.shift = 1, .ranking = best}, .input = input}, 16, 1};
}

void draft_eagle3_warmup(draft_eagle3 *m, int32_t rows) {
  const model_ranking best = {.options = SAMPLER_DEFAULTS, .count = DRAFT_CANDIDATES_MAX};
  const model_segment guesses = {.kind = MODEL_TREE, .shift = 1, .all_logits = true, .ranking = &best};
  warmup_head_form forms[5] = {{{.rows = guesses, .input = DRAFT_HEAD_STATES}, rows, 1}};
  add_forms(forms + 1, DRAFT_HEAD_TAPS, &best);
  add_forms(forms + 3, DRAFT_HEAD_STATES, &best);
  warmup_head(m->head, m->kv, 0, forms, 5);
}

void draft_eagle3_close(draft_eagle3 *m) {
  eagle3_engine_close(m->engine);
  kv_close(m->kv);
  draft_head_close(m->head);
  if (m->device) m->device->table->close(m->device);
  head_file_close(m->file);
  model_file_close(m->target);
}

static void print_weights(FILE *out, const char *name, const float *weights) {
  fprintf(out, "\"%s\": [", name);
  for (int32_t i = 0; i < CALIBRATION_WEIGHTS; i++)
    fprintf(out, "%s%.5f", i > 0 ? ", " : "", (double)weights[i]);
  fputc(']', out);
}

static void print_line(FILE *out, const eagle3_engine_counters *n, const calibration *learnt) {
  fprintf(out,
          "{\"draft\": {\"batches\": %" PRIu64 ", \"forwards\": %" PRIu64 ", \"feature_rows\": %" PRIu64
          ", \"asked_rows\": %" PRIu64 ", \"forward_us\": %" PRIu64 ", \"failures\": %" PRIu64
          ", \"calibration\": {",
          n->batches, n->forwards, n->feature_rows, n->queried_rows, n->forward_us, n->failures);
  print_weights(out, "greedy", learnt->weights[CALIBRATION_GREEDY]);
  fputs(", ", out);
  print_weights(out, "sampled", learnt->weights[CALIBRATION_SAMPLED]);
  fputs("}}}\n", out);
}

/* In one write, so that no other program's line can cut it. */
void draft_eagle3_print_counters(const draft_eagle3 *m) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return;
  print_line(out, eagle3_engine_count(m->engine), eagle3_calibration(m->drafter));
  if (fclose(out) == 0) fputs(text, stderr);
  free(text);
}
