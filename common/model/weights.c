#include "common/model/weights.h"
#include "common/model/weights_cache.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_BYTES 64
#define PACK_GROUPS    32 /* groups of one piece of parallel work */
#define ALIGNMENT      64
#define ORDER_VERSION  "1" /* of the tensors in the packed block; grows when load_all changes */

typedef struct loader {
  const gguf *g;
  const model_config *config;
  ops *device;
  const weights_options *options;
  uint8_t *data; /* where the tensors go, or lie; NULL while sizes are added up */
  bool packed;   /* they lie there already */
  size_t used, total;
} loader;

/* The device's name of a file's type. */
static const struct {
  gguf_type file;
  ops_type device;
} TYPES[] = {
    {GGUF_F32, OPS_F32},   {GGUF_F16, OPS_F16},   {GGUF_BF16, OPS_BF16}, {GGUF_Q4_0, OPS_Q4_0},
    {GGUF_Q4_1, OPS_Q4_1}, {GGUF_Q5_0, OPS_Q5_0}, {GGUF_Q5_1, OPS_Q5_1}, {GGUF_Q8_0, OPS_Q8_0},
    {GGUF_Q2_K, OPS_Q2_K}, {GGUF_Q3_K, OPS_Q3_K}, {GGUF_Q4_K, OPS_Q4_K}, {GGUF_Q5_K, OPS_Q5_K},
    {GGUF_Q6_K, OPS_Q6_K}, {GGUF_IQ4_NL, OPS_IQ4_NL},
};

static bool type_of(gguf_type type, ops_type *out) {
  for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++) {
    if (TYPES[i].file != type) continue;
    *out = TYPES[i].device;
    return true;
  }
  return false;
}

typedef struct pack_job {
  const ops_table *table;
  const ops_weight *w;
  const void *file;
  void *out;
  int32_t groups;
} pack_job;

static void pack_piece(void *context, int32_t i) {
  const pack_job *j = context;
  int32_t first = i * PACK_GROUPS, last = first + PACK_GROUPS < j->groups ? first + PACK_GROUPS : j->groups;
  j->table->pack(j->w->type, j->w->rows, j->w->columns, j->file, j->out, first, last);
}

static void advance(loader *l, size_t bytes) {
  l->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (l->data && l->options->progress)
    l->options->progress(l->options->progress_context, (double)l->used / (double)l->total);
}

static void pack_matrix(const loader *l, const ops_weight *w, const void *file, void *out) {
  int32_t groups = (w->rows + OPS_GROUP - 1) / OPS_GROUP;
  pack_job j = {l->device->table, w, file, out, groups};
  l->device->table->parallel(l->device, (groups + PACK_GROUPS - 1) / PACK_GROUPS, pack_piece, &j);
}

static int load_matrix(loader *l, const char *name, ops_weight *w) {
  const gguf_tensor *t = gguf_tensor_find(l->g, name);
  assert(t); /* model_config_read has seen it */
  *w = (ops_weight){.rows = (int32_t)t->shape[1], .columns = (int32_t)t->shape[0]};
  if (!type_of(t->type, &w->type)) return ERR_UNSUPPORTED;
  size_t bytes = l->device->table->packed_bytes(w->type, w->rows, w->columns);
  if (bytes == 0 || l->used > SIZE_MAX / 2 - bytes) return ERR_NOMEM;
  if (l->data) {
    if (!l->packed) pack_matrix(l, w, t->data, l->data + l->used);
    w->data = l->data + l->used;
  }
  advance(l, bytes);
  return ERR_OK;
}

static int load_vector(loader *l, const char *name, const float **out) {
  const gguf_tensor *t = gguf_tensor_find(l->g, name);
  assert(t && t->type == GGUF_F32);
  if (l->data) {
    if (!l->packed) memcpy(l->data + l->used, t->data, t->bytes);
    *out = (const float *)(l->data + l->used);
  }
  advance(l, t->bytes);
  return ERR_OK;
}

static int load_layer(loader *l, int32_t layer, layer_weights *w) {
  const struct {
    const char *suffix;
    ops_weight *matrix;
    const float **vector;
  } tensors[] = {
      {"attn_norm", NULL, &w->attn_norm},
      {"attn_q", &w->q, NULL},
      {"attn_k", &w->k, NULL},
      {"attn_v", &w->v, NULL},
      {"attn_output", &w->output, NULL},
      {"ffn_norm", NULL, &w->ffn_norm},
      {"ffn_gate", &w->gate, NULL},
      {"ffn_up", &w->up, NULL},
      {"ffn_down", &w->down, NULL},
  };
  int rc = ERR_OK;
  for (size_t i = 0; i < sizeof tensors / sizeof tensors[0] && rc == ERR_OK; i++) {
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, tensors[i].suffix);
    rc =
        tensors[i].matrix ? load_matrix(l, name, tensors[i].matrix) : load_vector(l, name, tensors[i].vector);
  }
  return rc;
}

/* Run twice: to add up the sizes, and to pack. */
static int load_all(loader *l, weights *w) {
  int rc = ERR_OK;
  l->used = 0;
  if (!l->config->tied) rc = load_matrix(l, "token_embd.weight", &w->embed);
  for (int32_t i = 0; i < l->config->layers && rc == ERR_OK; i++) rc = load_layer(l, i, &w->layers[i]);
  if (rc == ERR_OK) rc = load_vector(l, "output_norm.weight", &w->output_norm);
  if (rc == ERR_OK) rc = load_matrix(l, l->config->tied ? "token_embd.weight" : "output.weight", &w->head);
  if (l->config->tied) w->embed = w->head;
  return rc;
}

static int pack_into(weights *w, loader *l, mem *m) {
  w->data = mem_alloc(m, MEM_WEIGHTS, l->total);
  if (!w->data) return ERR_NOMEM;
  l->data = w->data;
  return load_all(l, w);
}

/* The weights serve whether or not they could be kept. */
static void keep(const loader *l, weights_file *f, const weights_key *k) {
  err e = {0};
  if (weights_cache_end(f, k, l->data, &e) == ERR_OK)
    log_line(l->options->log, LOG_INFO, "wrote packed weights to %s", f->path);
  else
    log_line(l->options->log, LOG_WARNING, "%s; the next start packs again", e.text);
}

static int load_cached(weights *w, loader *l, mem *m, err *e) {
  char layout[WEIGHTS_LAYOUT_MAX + 1];
  snprintf(layout, sizeof layout, "%s." ORDER_VERSION, l->device->table->layout);
  const weights_key k = {gguf_fingerprint(l->g), layout, l->total};
  w->data = weights_cache_map(l->options->cache, &k, l->options->log);
  if (w->data) {
    w->mapped = l->packed = true;
    l->data = w->data;
    return load_all(l, w);
  }
  weights_file f;
  int rc = weights_cache_begin(&f, l->options->cache, &k, e);
  if (rc != ERR_OK) return rc;
  rc = pack_into(w, l, m);
  if (rc == ERR_OK)
    keep(l, &f, &k);
  else
    weights_cache_cancel(&f);
  return rc;
}

static int load_into(weights *w, loader *l, mem *m, err *e) {
  w->layers = mem_alloc(m, MEM_GENERAL, (size_t)l->config->layers * sizeof *w->layers);
  if (!w->layers) return ERR_NOMEM;
  int rc = load_all(l, w);
  if (rc != ERR_OK) return rc;
  w->bytes = l->total = l->used;
  return l->options->cache ? load_cached(w, l, m, e) : pack_into(w, l, m);
}

int weights_load(weights *w, const gguf *g, const model_config *c, ops *device, const weights_options *o,
                 mem *m, err *e) {
  loader l = {.g = g, .config = c, .device = device, .options = o};
  *w = (weights){0};
  int rc = load_into(w, &l, m, e);
  if (rc == ERR_OK) return ERR_OK;
  weights_free(w);
  if (rc == ERR_UNSUPPORTED)
    return err_set(e, rc, "the model has a tensor of a type that this device does not take");
  if (rc == ERR_NOMEM)
    return err_set(e, rc, "no memory for the weights: close other programs or use a smaller model");
  return rc;
}

void weights_free(weights *w) {
  mem_free(w->layers);
  if (w->mapped)
    weights_cache_unmap(w->data, w->bytes);
  else
    mem_free(w->data);
  *w = (weights){0};
}
