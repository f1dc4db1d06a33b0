#include "draft_worker/draft_model.h"

#include "common/base/min.h"
#include "common/base/progress.h"
#include "common/model/warmup.h"
#include "draft_worker/drafters/draft_batch.h"
#include <inttypes.h>
#include <stdio.h>

#define DEFAULT_CONTEXT 4096

static int open_files(draft_model *m, const flag_values *a, err *e) {
  const char *own = a->draft_model ? a->draft_model : a->model;
  if (!own || (!a->draft_model && !a->draft_layers))
    return err_set(e, ERR_ARG, "--draft model needs -md FILE, or -m FILE and --draft-layers N");
  int rc = model_file_open(&m->file, own, e);
  if (rc == ERR_OK && a->draft_layers) rc = model_file_keep_layers(m->file, a->draft_layers, e);
  if (rc == ERR_OK && a->model) rc = model_file_open(&m->target_file, a->model, e);
  return rc ? rc : vocabulary_map_open(&m->bridge, m->target_file ? m->target_file : m->file, m->file, e);
}

/* Longer sessions than it has room for are refused with that reason. */
static int settle_cache(draft_model *m, const flag_values *a, kv_options *o, err *e) {
  const model_config *c = model_file_config(m->file);
  size_t memory = (size_t)a->kv_memory;
  int32_t wanted = a->context ? a->context : DEFAULT_CONTEXT;
  *o = (kv_options){.sequences = a->sessions, .context = min_i32(wanted, c->context), .type = KV_F16};
  if (memory) kv_fit(c, o, memory);
  m->context = o->context;
  const memory_needs n = kv_needs(c, o);
  return memory ? memory_needs_check(&n, memory, NULL, e) : ERR_OK;
}

static int open_engine(draft_model *m, const flag_values *a, const logger *log, err *e) {
  const model_engine_options o = {.model = m->model,
                                  .kv = m->kv,
                                  .bridge = &m->bridge,
                                  .sequences = a->sessions,
                                  .length_max = m->context,
                                  .log = log};
  return model_engine_open(&m->engine, &o, e);
}

int draft_model_open(draft_model *m, const flag_values *a, const logger *log, draft_options *o, err *e) {
  const device_options d = {.threads = a->threads, .spin_us = a->spin, .tested = true};
  progress loading = progress_begin("loading the model", log, false); /* a conversation may have begun */
  model_options own = {
      .progress = progress_show, .progress_context = &loading, .repack_cache = a->repack_cache, .log = log};
  kv_options cache;
  int rc = open_files(m, a, e);
  if (rc == ERR_OK) rc = settle_cache(m, a, &cache, e);
  if (rc == ERR_OK) own.cache = kv_needs(model_file_config(m->file), &cache);
  if (rc == ERR_OK)
    rc = model_open_device(&m->device, m->file, a->device, MODEL_MATH_AUTO, d, log, &m->memory, e);
  if (rc == ERR_OK) rc = model_open(&m->model, m->file, m->device, &own, &m->memory, e);
  if (rc == ERR_OK) rc = kv_open(&m->kv, m->device, model_shape(m->model), &cache, &m->memory, e);
  if (rc == ERR_OK) rc = open_engine(m, a, log, e);
  if (rc != ERR_OK) return rc;
  const model_file *target = m->target_file ? m->target_file : m->file;
  o->shorter = true;
  o->session_max = a->sessions;
  o->context = m->context;
  o->colocated = a->turns;
  o->numerics_id = model_numerics(m->model, KV_F16);
  o->device = model_device_name(m->model);
  o->vocabulary_size = model_file_config(target)->vocab;
  return model_file_vocabulary(target, &o->vocabulary_hash, e);
}

void draft_model_warmup(draft_model *m, int32_t rows) {
  const model_ranking best = {.options = SAMPLER_DEFAULTS, .count = DRAFT_CANDIDATES_MAX};
  const warmup_form forms[] = {
      {{.no_logits = true}, DRAFT_CHUNK, 8},
      {{.ranking = &best}, DRAFT_CHUNK, 1},
      {{.kind = MODEL_TREE, .all_logits = true, .ranking = &best}, rows, 1},
  };
  warmup_model(m->model, m->kv, 0, forms, sizeof forms / sizeof *forms);
}

void draft_model_close(draft_model *m) {
  model_engine_close(m->engine);
  kv_close(m->kv);
  model_close(m->model);
  if (m->device) m->device->table->close(m->device);
  vocabulary_map_fini(&m->bridge);
  model_file_close(m->target_file);
  model_file_close(m->file);
}

void draft_model_print_counters(const draft_model *m) {
  const model_engine_counters *n = model_engine_count(m->engine);
  fprintf(stderr,
          "{\"draft\": {\"batches\": %" PRIu64 ", \"forwards\": %" PRIu64 ", \"told_rows\": %" PRIu64
          ", \"asked_rows\": %" PRIu64 ", \"kept_rows\": %" PRIu64 ", \"forward_us\": %" PRIu64
          ", \"rank_us\": %" PRIu64 ", \"failures\": %" PRIu64 "}}\n",
          n->batches, n->forwards, n->prefilled_rows, n->queried_rows, n->kept_rows, n->forward_us,
          n->rank_us, n->failures);
}
