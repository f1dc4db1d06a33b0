#include "common/model/weights.h"
#include "common/model/weights_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACK_GROUPS   32 /* groups of one piece of parallel work */
#define ALIGNMENT     64
#define ORDER_VERSION "1" /* of the tensors in the packed block; grows when load_all changes */

typedef struct loader {
  const model_file *file;
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
    {GGUF_F32, OPS_F32},   {GGUF_F16, OPS_F16},       {GGUF_BF16, OPS_BF16}, {GGUF_Q4_0, OPS_Q4_0},
    {GGUF_Q4_1, OPS_Q4_1}, {GGUF_Q5_0, OPS_Q5_0},     {GGUF_Q5_1, OPS_Q5_1}, {GGUF_Q8_0, OPS_Q8_0},
    {GGUF_Q2_K, OPS_Q2_K}, {GGUF_Q3_K, OPS_Q3_K},     {GGUF_Q4_K, OPS_Q4_K}, {GGUF_Q5_K, OPS_Q5_K},
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

/* Where component i of a head stands in the file. */
static int32_t component_in_file(const model_config *c, int32_t i) {
  if (i >= c->rope_dim) return i;
  return i / 2 + (i % 2 ? c->rope_dim / 2 : 0);
}

/* Do the rows of this tensor, or its elements, become queries and keys whose pairs stand apart in the file?
 */
static bool is_out_of_order(const loader *l, model_role role) {
  return l->config->half_split && (role == MODEL_Q || role == MODEL_K || role == MODEL_Q_BIAS ||
                                   role == MODEL_K_BIAS || role == MODEL_Q_NORM || role == MODEL_K_NORM);
}

/* A copy with each head's rows (of a vector: elements) in the order of interleaved pairs. NULL: no memory. */
static void *put_in_order(const model_config *c, const gguf_tensor *t) {
  size_t rows = t->dims == 1 ? (size_t)t->shape[0] : (size_t)t->shape[1], row_bytes = t->bytes / rows;
  uint8_t *copy = malloc(t->bytes);
  for (size_t r = 0; copy && r < rows; r++) {
    size_t i = r % (size_t)c->head_dim, from = r - i + (size_t)component_in_file(c, (int32_t)i);
    memcpy(copy + r * row_bytes, (const uint8_t *)t->data + from * row_bytes, row_bytes);
  }
  return copy;
}

static void pack_matrix(const loader *l, const ops_weight *w, const void *file, void *out) {
  int32_t groups = (w->rows + OPS_GROUP - 1) / OPS_GROUP;
  pack_job j = {l->device->table, w, file, out, groups};
  l->device->table->parallel(l->device, (groups + PACK_GROUPS - 1) / PACK_GROUPS, pack_piece, &j);
}

static int fill_matrix(const loader *l, model_role role, const gguf_tensor *t, const ops_weight *w,
                       void *out) {
  void *ordered = is_out_of_order(l, role) ? put_in_order(l->config, t) : NULL;
  if (is_out_of_order(l, role) && !ordered) return ERR_NOMEM;
  pack_matrix(l, w, ordered ? ordered : t->data, out);
  free(ordered);
  return ERR_OK;
}

static int load_matrix(loader *l, model_role role, int32_t layer, ops_weight *w) {
  const gguf_tensor *t = model_file_tensor(l->file, role, layer);
  int rc = ERR_OK;
  *w = (ops_weight){.rows = (int32_t)t->shape[1], .columns = (int32_t)t->shape[0]};
  if (!type_of(t->type, &w->type)) return ERR_UNSUPPORTED;
  size_t bytes = l->device->table->packed_bytes(w->type, w->rows, w->columns);
  if (bytes == 0 || l->used > SIZE_MAX / 2 - bytes) return ERR_NOMEM;
  if (l->data) {
    if (!l->packed) rc = fill_matrix(l, role, t, w, l->data + l->used);
    w->data = l->data + l->used;
  }
  advance(l, bytes);
  return rc;
}

static float half_to_float(uint16_t h) {
  int exponent = h >> 10 & 31, fraction = h & 1023;
  float v = ldexpf((float)(exponent ? 1024 + fraction : fraction), (exponent ? exponent : 1) - 25);
  if (exponent == 31) v = fraction ? NAN : INFINITY;
  return h & 0x8000 ? -v : v;
}

/* Element i of a vector of F32, F16 or BF16; data may have any alignment. */
static float element(const gguf_tensor *t, const void *data, size_t i) {
  uint32_t bits;
  uint16_t half;
  float f;
  if (t->type == GGUF_F32) {
    memcpy(&f, (const uint8_t *)data + i * sizeof f, sizeof f);
    return f;
  }
  memcpy(&half, (const uint8_t *)data + i * sizeof half, sizeof half);
  if (t->type == GGUF_F16) return half_to_float(half);
  bits = (uint32_t)half << 16;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static int fill_vector(const loader *l, model_role role, const gguf_tensor *t, float *out) {
  void *ordered = is_out_of_order(l, role) ? put_in_order(l->config, t) : NULL;
  if (is_out_of_order(l, role) && !ordered) return ERR_NOMEM;
  for (size_t i = 0; i < (size_t)t->shape[0]; i++) out[i] = element(t, ordered ? ordered : t->data, i);
  free(ordered);
  return ERR_OK;
}

/* A vector that the model lacks stays NULL. */
static int load_vector(loader *l, model_role role, int32_t layer, const float **out) {
  const gguf_tensor *t = model_file_tensor(l->file, role, layer);
  int rc = ERR_OK;
  if (!t) return ERR_OK;
  if (l->data) {
    float *to = (float *)(void *)(l->data + l->used);
    if (!l->packed) rc = fill_vector(l, role, t, to);
    *out = to;
  }
  advance(l, (size_t)t->shape[0] * sizeof(float));
  return rc;
}

static int load_layer(loader *l, int32_t layer, weights_layer *w) {
  const struct {
    model_role role;
    ops_weight *matrix;
    const float **vector;
  } tensors[] = {
      {MODEL_ATTN_NORM, NULL, &w->attn_norm},
      {MODEL_Q, &w->q, NULL},
      {MODEL_K, &w->k, NULL},
      {MODEL_V, &w->v, NULL},
      {MODEL_Q_BIAS, NULL, &w->q_bias},
      {MODEL_K_BIAS, NULL, &w->k_bias},
      {MODEL_V_BIAS, NULL, &w->v_bias},
      {MODEL_Q_NORM, NULL, &w->q_norm},
      {MODEL_K_NORM, NULL, &w->k_norm},
      {MODEL_ATTN_OUTPUT, &w->output, NULL},
      {MODEL_OUTPUT_BIAS, NULL, &w->output_bias},
      {MODEL_FFN_NORM, NULL, &w->ffn_norm},
      {MODEL_GATE, &w->gate, NULL},
      {MODEL_UP, &w->up, NULL},
      {MODEL_DOWN, &w->down, NULL},
  };
  int rc = ERR_OK;
  for (size_t i = 0; i < sizeof tensors / sizeof tensors[0] && rc == ERR_OK; i++) {
    rc = tensors[i].matrix ? load_matrix(l, tensors[i].role, layer, tensors[i].matrix)
                           : load_vector(l, tensors[i].role, layer, tensors[i].vector);
  }
  return rc;
}

/* Run twice: to add up the sizes, and to pack. */
static int load_all(loader *l, weights *w) {
  int rc = ERR_OK;
  l->used = 0;
  if (!l->config->tied) rc = load_matrix(l, MODEL_EMBED, 0, &w->embed);
  for (int32_t i = 0; i < l->config->layers && rc == ERR_OK; i++) rc = load_layer(l, i, &w->layers[i]);
  if (rc == ERR_OK) rc = load_vector(l, MODEL_OUTPUT_NORM, 0, &w->output_norm);
  if (rc == ERR_OK) rc = load_matrix(l, l->config->tied ? MODEL_EMBED : MODEL_OUTPUT, 0, &w->head);
  if (rc == ERR_OK) rc = load_vector(l, MODEL_ROPE_FACTORS, 0, &w->rope_factors);
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
  const weights_key k = {model_file_fingerprint(l->file), layout, l->total};
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

int weights_load(weights *w, const model_file *f, ops *device, const weights_options *o, mem *m, err *e) {
  loader l = {.file = f, .config = model_file_config(f), .device = device, .options = o};
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
