#include "target_worker/target_model.h"
#include "common/base/min.h"
#include "common/base/progress.h"
#include "common/file/head_fc.h"
#include "common/model/warmup.h"
#include "target_worker/engine.h"

#define DEFAULT_CONTEXT 4096

kv_type target_model_kv_type(int32_t math) {
  return math == OPS_MATH_F32 ? KV_F32 : KV_F16;
}

/* Rows are staged for one batch at a time: as many as its sessions can have, or as a forward has, in whole
 * tiles. */
static int32_t stage_rows(int32_t sessions) {
  const int64_t each = (ENGINE_ROWS_MAX + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
  const int64_t batch = MODEL_ROWS_MAX + ENGINE_JOBS_MAX * (KV_BLOCK - 1);
  return (int32_t)(sessions * each < batch ? sessions * each : batch);
}

static int check_cache(const target_arguments *a, int32_t own, err *e) {
  if (a->given.context > own)
    return err_set(e, ERR_ARG, "--ctx %d is more than the model's context of %d tokens", a->given.context,
                   own);
  if (a->given.kv_blocks && !a->given.kv)
    return err_set(e, ERR_ARG, "--kv-blocks is the size of a virtual cache: give --kv virtual too");
  return ERR_OK;
}

/* What the command line leaves open is as --kv-memory allows; what it asks for must fit. */
static int settle_cache(kv_options *o, const model_config *c, target_arguments *a, err *e) {
  int32_t *context = &a->given.context;
  size_t memory = (size_t)a->given.kv_memory;
  int rc = check_cache(a, c->context, e);
  if (rc != ERR_OK) return rc;
  bool open = a->given.kv ? a->given.kv_blocks == 0 : *context == 0;
  if (*context == 0) *context = c->context < DEFAULT_CONTEXT ? c->context : DEFAULT_CONTEXT;
  if (a->given.kv && a->given.kv_blocks == 0)
    a->given.kv_blocks = a->given.sessions * ((*context + KV_BLOCK - 1) / KV_BLOCK);
  *o = (kv_options){.sequences = a->given.sessions,
                    .context = *context,
                    .type = target_model_kv_type(a->given.math),
                    .blocks = a->given.kv_blocks,
                    .stage = stage_rows(a->given.sessions)};
  if (!memory) return ERR_OK;
  if (open) kv_fit(c, o, memory);
  *context = o->context;
  a->given.kv_blocks = o->blocks;
  const memory_needs n = kv_needs(c, o);
  return memory_needs_check(&n, memory, NULL, e);
}

/* Partial KV needs keys that every layer sees in full: the blocks of a view lie closer together than a
 * window knows. */
static bool has_windows(const model_config *c) {
  for (int32_t i = 0; i < c->layers; i++)
    if (c->window[i] > 0) return true;
  return false;
}

static int settle_partial(target_model *m, const target_arguments *a, kv_options *cache, const logger *log,
                          err *e) {
  const flag_values *f = &a->given;
  partial_options *o = &m->partial;
  if (!f->partial_kv) return ERR_OK;
  *o = (partial_options){.own = {.mode = WIRE_PARTIAL_EXACT,
                                 .block = f->partial_block,
                                 .sink = f->partial_sink,
                                 .retrieval = f->partial_retrieval,
                                 .window = f->partial_window,
                                 .buffer = f->partial_buffer,
                                 .threshold = f->partial_threshold,
                                 .refresh = f->partial_refresh},
                         .rows = f->partial_rows,
                         .weighing = (ops_weighing)f->partial_choice};
  const int rc = msg_partial_check(&o->own, e);
  if (rc != ERR_OK) return rc;
  if (o->rows > o->own.refresh)
    return err_set(
        e, ERR_ARG,
        "--partial-kv-rows %d is more than --partial-kv-refresh %d: lower the one or raise the other",
        o->rows, o->own.refresh);
  m->has_partial = !has_windows(model_file_config(m->file));
  if (!m->has_partial)
    log_line(log, LOG_WARNING,
             "[partial-kv][fallback] layers of this model see a window of their keys: all "
             "steps read the whole cache");
  cache->views = m->has_partial ? cache->sequences : 0;
  return ERR_OK;
}

static int open_model(target_model *m, target_arguments *a, const kv_options *cache, const logger *log,
                      err *e) {
  progress loading = progress_begin("loading the model", log, true);
  model_options o = {.progress = progress_show,
                     .progress_context = &loading,
                     .repack_cache = a->given.repack_cache,
                     .log = log,
                     .cache = kv_needs(model_file_config(m->file), cache)};
  const device_options d = {.threads = a->given.threads,
                            .threads_beside = a->given.threads_beside,
                            .spin_us = a->given.spin,
                            .cpus = a->pin_count ? a->pin : NULL,
                            .cpu_count = a->pin_count,
                            .kv_in_host = a->given.kv_in == 1,
                            .tested = true};
  int rc = model_open_device(&m->device, m->file, a->given.device, a->given.math, d, log, &m->memory, e);
  if (rc == ERR_OK) a->given.math = (int32_t)m->device->math;
  if (rc == ERR_OK) rc = model_open(&m->model, m->file, m->device, &o, &m->memory, e);
  progress_end(&loading);
  return rc;
}

/* The head is prepared as a draft prepares it, so that both give its fc the same name. */
static int open_fusion(target_model *m, head_file *f, err *e) {
  const head_config *c = head_file_config(f);
  taps_offer *o = &m->taps;
  int rc = head_file_settle(f, GGUF_F32, e);
  if (rc != ERR_OK) return rc;
  o->fc = head_fc_hash(f);
  if (hash_is_zero(o->fc))
    return err_set(e, ERR_UNSUPPORTED,
                   "its first linear is %s, which drafts cannot name: give a head in q8_0, q4_1, bf16 or f16",
                   gguf_type_name(head_file_tensor(f, HEAD_FC)->type));
  o->fc_tap_count = c->tap_count;
  for (int32_t i = 0; i < c->tap_count; i++) o->fc_taps[i] = c->taps[i];
  o->fc_width = c->layer.embed;
  rc = fusion_open(&m->fusion, f, m->device, &m->memory, e);
  o->fc_in_forward = rc == ERR_OK && model_fuse(m->model, m->fusion) == ERR_OK;
  return rc;
}

/* A head saves bytes, and nothing else: one that does not fit is told, and the target goes on without it. */
static int open_head(target_model *m, const target_arguments *a, const logger *log, err *e) {
  const model_config *shape = model_shape(m->model);
  const taps_offer none = {.layers = shape->layers, .embed = shape->embed};
  head_file *f = NULL;
  m->taps = none;
  if (!a->given.head) return ERR_OK;
  int rc = head_file_open(&f, a->given.head, shape, e);
  if (rc == ERR_OK) rc = open_fusion(m, f, e);
  head_file_close(f);
  if (rc == ERR_OK || rc == ERR_DEVICE) return rc;
  log_line(log, LOG_ERROR, "--head %s is not used, so that drafts are sent more bytes: %s", a->given.head,
           e->text);
  m->taps = none;
  return ERR_OK;
}

int target_model_open(target_model *m, target_arguments *a, const logger *log, err *e) {
  kv_options cache;
  int rc = model_file_open(&m->file, a->given.model, e);
  if (rc == ERR_OK) rc = settle_cache(&cache, model_file_config(m->file), a, e);
  if (rc == ERR_OK) rc = settle_partial(m, a, &cache, log, e);
  if (rc == ERR_OK) rc = open_model(m, a, &cache, log, e);
  if (rc == ERR_OK) rc = open_head(m, a, log, e);
  return rc ? rc : kv_open(&m->kv, m->device, model_shape(m->model), &cache, &m->memory, e);
}

/* A virtual cache's sequence has no blocks of its own. */
static void lend_blocks(kv_cache *k, int32_t count) {
  int32_t blocks[ENGINE_CHUNK_MAX / KV_BLOCK];
  for (int32_t i = 0; i < count; i++) blocks[i] = i;
  if (kv_is_virtual(k)) kv_map(k, 0, blocks, count, 0);
}

#define FORMS 3 /* what reads a prompt, a verify, a step */

/* o: with taps as a head's draft wants them; NULL: without. most: rows of a prompt. */
static void add_forms(warmup_form *to, const taps_offer *o, int32_t most) {
  static const model_sampling greedy = {0};
  model_segment rows = {0};
  if (o) rows.taps = o->fc_taps, rows.tap_count = o->fc_tap_count, rows.fused = o->fc_in_forward;
  to[0] = (warmup_form){rows, most, 32};
  to[0].rows.no_logits = true;
  to[1] = (warmup_form){rows, 16, 2};
  to[1].rows.kind = MODEL_TREE;
  to[1].rows.all_logits = true;
  to[2] = (warmup_form){rows, 1, 1};
  to[1].rows.sampling = to[2].rows.sampling = &greedy;
}

int32_t target_model_prompt_rows(const target_model *m) {
  return engine_prompt_rows(m->device->prompt_rows);
}

void target_model_warmup(target_model *m, int32_t blocks) {
  const int32_t taps = m->taps.fc_tap_count;
  const int32_t lent = min_i32(blocks, ENGINE_CHUNK_MAX / KV_BLOCK);
  warmup_form forms[2 * FORMS];
  if (!m->device->prepares) return;
  if (m->fusion) warmup_fusion(m->fusion);
  add_forms(forms, NULL, min_i32(target_model_prompt_rows(m), lent * KV_BLOCK));
  add_forms(forms + FORMS, &m->taps, ENGINE_CHUNK);
  lend_blocks(m->kv, lent);
  warmup_model(m->model, m->kv, 0, forms, taps > 0 ? 2 * FORMS : FORMS);
  lend_blocks(m->kv, 0);
}

const grammar_vocabulary *target_model_vocabulary(void *context, err *e) {
  target_model *m = context;
  const gguf *g = model_file_gguf(m->file);
  const char *json = model_file_tokenizer(m->file);
  int32_t size = model_shape(m->model)->vocab;
  tokenizer *t = NULL;
  if (m->vocabulary) return m->vocabulary;
  int rc = g      ? tokenizer_open(&t, g, e)
           : json ? tokenizer_open_json(&t, json, size, e)
                  : err_set(e, ERR_UNSUPPORTED,
                            "this model has no vocabulary, so that no grammar can be followed");
  if (rc == ERR_OK) grammar_vocabulary_open(&m->vocabulary, t, size, e);
  if (t) tokenizer_close(t);
  return m->vocabulary;
}

void target_model_close(target_model *m) {
  grammar_vocabulary_free(m->vocabulary);
  kv_close(m->kv);
  fusion_close(m->fusion);
  model_close(m->model);
  if (m->device) m->device->table->close(m->device);
  model_file_close(m->file);
}
