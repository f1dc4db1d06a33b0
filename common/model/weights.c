#include "common/model/weights.h"
#include "common/file/tensor_values.h"
#include "common/model/device_error.h"
#include "common/model/file_tensor.h"
#include "common/model/rope.h"
#include "common/model/weights_cache.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACK_GROUPS   32 /* groups of one piece of parallel work */
#define ALIGNMENT     64
#define ORDER_VERSION "2" /* of the tensors in the packed block; grows when load_all changes */

typedef struct loader {
  const model_file *file;
  const model_config *config;
  device *device;
  const weights_options *options;
  device_memory *memory; /* where the tensors go, or are; NULL while sizes are added up */
  bool packed;           /* they are there already */
  weights_file *kept;    /* gets what is packed as well; or NULL */
  size_t used, total;
  err *refusal; /* has the numbers where there is no room, or the name of a tensor that has none */
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

bool weights_type(gguf_type type, ops_type *out) {
  for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++) {
    if (TYPES[i].file != type) continue;
    *out = TYPES[i].device;
    return true;
  }
  return false;
}

/* --- into the device's memory, a window at a time --- */

/* The packed form is complete without being kept. */
static void give_up_keeping(loader *l, const err *e) {
  log_line(l->options->log, LOG_WARNING, "%s; the next start packs again", e->text);
  l->kept = NULL;
}

static void tell_progress(const loader *l, size_t done) {
  if (l->options->progress)
    l->options->progress(l->options->progress_context, (double)done / (double)l->total);
}

/* The window holds bytes [at, at + bytes). */
static int window_filled(loader *l, const void *window, size_t at, size_t bytes) {
  err e = {0};
  if (l->kept && weights_cache_write(l->kept, at, window, bytes, &e) != ERR_OK) give_up_keeping(l, &e);
  int rc = device_error(l->device->table->filled(l->device));
  tell_progress(l, at + bytes);
  return rc;
}

/* Such a weight would make every output a NaN, or one of them infinite. */
static int no_numbers(const loader *l, const gguf_tensor *t) {
  return err_set(l->refusal, ERR_FORMAT,
                 "tensor %s holds NaN or infinity, which no model has: download or convert it again",
                 t->name);
}

typedef struct pack_job {
  const device_table *table;
  ops_type type;
  int32_t rows, columns, groups;
  const uint8_t *file;
  void *out;
  gguf_type file_type;
  size_t row_bytes; /* of `file` */
  atomic_bool bad;  /* a value, or a block's scale, is no finite number */
} pack_job;

/* A group is packed out of the cache, where looking at its scales has brought it. */
static void pack_group(pack_job *j, int32_t group) {
  int32_t row = group * OPS_GROUP, rows = j->rows - row < OPS_GROUP ? j->rows - row : OPS_GROUP;
  if (!tensor_part_is_finite(j->file_type, j->file + (size_t)row * j->row_bytes, (size_t)rows * j->row_bytes))
    j->bad = true;
  j->table->pack(j->type, j->rows, j->columns, j->file, j->out, group, group + 1);
}

static void pack_piece(void *context, int32_t i) {
  pack_job *j = context;
  int32_t first = i * PACK_GROUPS, last = first + PACK_GROUPS < j->groups ? first + PACK_GROUPS : j->groups;
  for (int32_t group = first; group < last; group++) pack_group(j, group);
}

static int32_t group_count(int32_t rows) {
  return rows / OPS_GROUP + (rows % OPS_GROUP != 0);
}

/* Packs rows [row, row + rows) of a matrix, which begin a group and are whole groups unless they are its
 * last: they are a matrix of their own, and so is the part of the packed form that they become. */
static int fill_rows(loader *l, const device_weight *w, const gguf_tensor *t, const uint8_t *file,
                     int32_t row, int32_t rows) {
  const device_table *table = l->device->table;
  size_t at = w->at + (row ? table->packed_bytes(w->type, row, w->columns) : 0);
  size_t bytes = table->packed_bytes(w->type, rows, w->columns);
  void *window = table->fill(l->device, l->memory, at, bytes);
  if (!window) return ERR_NOMEM;
  pack_job j = {.table = table,
                .type = w->type,
                .rows = rows,
                .columns = w->columns,
                .groups = group_count(rows),
                .file = file,
                .out = window,
                .file_type = t->type,
                .row_bytes = t->bytes / (size_t)w->rows};
  table->parallel(l->device, (j.groups + PACK_GROUPS - 1) / PACK_GROUPS, pack_piece, &j);
  int rc = window_filled(l, window, at, bytes);
  return j.bad ? no_numbers(l, t) : rc;
}

/* How many rows of the matrix a window takes, in whole groups; 0: not even a group. */
static int32_t window_rows(const loader *l, const device_weight *w) {
  size_t group = l->device->table->packed_bytes(w->type, OPS_GROUP, w->columns);
  size_t groups = l->device->table->window_max(l->device) / group;
  return groups < (size_t)group_count(w->rows) ? (int32_t)groups * OPS_GROUP : w->rows;
}

static int fill_matrix(loader *l, model_role role, const gguf_tensor *t, const device_weight *w) {
  void *copy;
  const uint8_t *data = file_tensor_ordered(l->config, role, t, &copy);
  size_t row_bytes = t->bytes / (size_t)w->rows;
  int32_t most = window_rows(l, w);
  int rc = data && most > 0 ? ERR_OK : ERR_NOMEM;
  for (int32_t row = 0; row < w->rows && rc == ERR_OK; row += most) {
    int32_t rows = w->rows - row < most ? w->rows - row : most;
    rc = fill_rows(l, w, t, data + (size_t)row * row_bytes, row, rows);
  }
  free(copy);
  return rc;
}

static int fill_vector(loader *l, model_role role, const gguf_tensor *t, size_t at) {
  size_t bytes = (size_t)t->shape[0] * sizeof(float);
  float *window = l->device->table->fill(l->device, l->memory, at, bytes);
  if (!window) return ERR_NOMEM;
  bool there = file_tensor_floats(l->config, role, t, window);
  int rc = window_filled(l, window, at, bytes);
  if (!tensor_is_finite(t)) return no_numbers(l, t);
  return there ? rc : ERR_NOMEM;
}

/* --- the tensors, in their order --- */

static void advance(loader *l, size_t bytes) {
  l->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int load_matrix(loader *l, model_role role, int32_t layer, device_weight *w) {
  const gguf_tensor *t = model_file_tensor(l->file, role, layer);
  int rc = ERR_OK;
  *w = (device_weight){
      .rows = (int32_t)t->shape[1], .columns = (int32_t)t->shape[0], .memory = l->memory, .at = l->used};
  if (!weights_type(t->type, &w->type)) return ERR_UNSUPPORTED;
  size_t bytes = l->device->table->packed_bytes(w->type, w->rows, w->columns);
  if (bytes == 0 || l->used > SIZE_MAX / 2 - bytes) return ERR_NOMEM;
  if (l->memory && !l->packed) rc = fill_matrix(l, role, t, w);
  advance(l, bytes);
  return rc;
}

/* A vector that the model lacks has no memory. */
static int load_vector(loader *l, model_role role, int32_t layer, device_vector *v) {
  const gguf_tensor *t = model_file_tensor(l->file, role, layer);
  int rc = ERR_OK;
  if (!t) return ERR_OK;
  *v = (device_vector){l->memory, l->used};
  if (l->memory && !l->packed) rc = fill_vector(l, role, t, l->used);
  advance(l, (size_t)t->shape[0] * sizeof(float));
  return rc;
}

static int load_layer(loader *l, int32_t layer, weights_layer *w) {
  const struct {
    model_role role;
    device_weight *matrix;
    device_vector *vector;
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
  if (l->config->tied) w->embed = w->head;
  return rc;
}

static memory_needs needs_with(const loader *l, size_t packed) {
  memory_needs n = l->options->needs;
  n.weights = packed;
  n.in_host = l->device->kv_in_host;
  return n;
}

/* For the weights, unless they are there, and for what the caller will take: before any is read. */
static int check_room(loader *l, size_t packed) {
  const device_table *table = l->device->table;
  const memory_needs n = needs_with(l, packed);
  return memory_needs_check(&n, table->left(l->device), table->name, l->refusal);
}

static int take_memory(weights *w, loader *l) {
  const device_table *table = l->device->table;
  int rc = check_room(l, l->total);
  if (rc != ERR_OK) return rc;
  w->memory = l->memory = table->take(l->device, MEM_WEIGHTS, l->total);
  if (w->memory) return ERR_OK;
  const memory_needs n = needs_with(l, l->total);
  return memory_needs_refuse(&n, table->left(l->device), table->name, l->refusal);
}

static int pack_all(weights *w, loader *l) {
  int rc = take_memory(w, l);
  return rc == ERR_OK ? load_all(l, w) : rc;
}

/* --- from one start to the next --- */

/* All of a file's data into memory of the device's own. */
static int copy_all(loader *l, const uint8_t *data) {
  const device_table *table = l->device->table;
  size_t most = table->window_max(l->device);
  int rc = ERR_OK;
  for (size_t at = 0, bytes; at < l->total && rc == ERR_OK; at += bytes) {
    bytes = l->total - at < most ? l->total - at : most;
    void *window = table->fill(l->device, l->memory, at, bytes);
    if (!window) return ERR_NOMEM;
    memcpy(window, data + at, bytes);
    rc = device_error(table->filled(l->device));
    tell_progress(l, at + bytes);
  }
  return rc;
}

/* The device serves from the mapping if it can; else it gets a copy, and the mapping goes. */
static int use_mapped(weights *w, loader *l, void *mapped) {
  int rc = ERR_OK;
  w->memory = l->memory = l->device->table->adopt(l->device, mapped, l->total);
  if (w->memory) {
    w->mapped = mapped;
    rc = check_room(l, 0);
  } else {
    rc = take_memory(w, l);
    if (rc == ERR_OK) rc = copy_all(l, mapped);
    weights_cache_unmap(mapped, l->total);
  }
  l->packed = true;
  return rc == ERR_OK ? load_all(l, w) : rc;
}

/* The weights serve whether or not they could be kept. */
static void keep(loader *l, weights_file *f, const weights_key *k) {
  err e = {0};
  if (!l->kept)
    weights_cache_cancel(f);
  else if (weights_cache_end(f, k, &e) == ERR_OK)
    log_line(l->options->log, LOG_INFO, "wrote packed weights to %s", f->path);
  else
    give_up_keeping(l, &e);
}

static int load_cached(weights *w, loader *l, err *e) {
  char layout[WEIGHTS_LAYOUT_MAX + 1];
  snprintf(layout, sizeof layout, "%s." ORDER_VERSION, l->device->table->layout);
  weights_key k = {.layout = layout, .bytes = l->total};
  model_file_read_hash(l->file, NULL, &k.model);
  void *mapped = weights_cache_map(l->options->cache, &k, l->options->log);
  if (mapped) return use_mapped(w, l, mapped);
  weights_file f;
  int rc = weights_cache_begin(&f, l->options->cache, &k, e);
  if (rc != ERR_OK) return rc;
  l->kept = &f;
  rc = pack_all(w, l);
  if (rc == ERR_OK)
    keep(l, &f, &k);
  else
    weights_cache_cancel(&f);
  return rc;
}

/* --- loading --- */

static int load_rope(weights *w, loader *l) {
  const gguf_tensor *t = model_file_tensor(l->file, MODEL_ROPE_FACTORS, 0);
  float factors[MODEL_HEAD_DIM_MAX / 2];
  rope r;
  if (t && !file_tensor_floats(l->config, MODEL_ROPE_FACTORS, t, factors)) return ERR_NOMEM;
  if (!rope_init(&r, l->config, t ? factors : NULL)) return ERR_FORMAT;
  size_t bytes = (size_t)r.dim / 2 * sizeof *r.frequency;
  w->frequencies = l->device->table->take(l->device, MEM_GENERAL, bytes);
  if (!w->frequencies) return ERR_NOMEM;
  w->rope = (device_rope){{w->frequencies, 0}, r.dim, r.times};
  void *window = l->device->table->fill(l->device, w->frequencies, 0, bytes);
  if (!window) return ERR_NOMEM;
  memcpy(window, r.frequency, bytes);
  return device_error(l->device->table->filled(l->device));
}

static int load_into(weights *w, loader *l, mem *m, err *e) {
  w->layers = mem_alloc(m, MEM_GENERAL, (size_t)l->config->layers * sizeof *w->layers);
  if (!w->layers) return ERR_NOMEM;
  int rc = load_all(l, w);
  if (rc != ERR_OK) return rc;
  w->bytes = l->total = l->used;
  rc = l->options->cache ? load_cached(w, l, e) : pack_all(w, l);
  return rc == ERR_OK ? load_rope(w, l) : rc;
}

int weights_load(weights *w, const model_file *f, device *d, const weights_options *o, mem *m, err *e) {
  static const struct {
    int code;
    const char *text;
  } reasons[] = {
      {ERR_UNSUPPORTED, "the model has a tensor of a type that this device does not take"},
      {ERR_NOMEM, "no memory for the weights: close other programs or use a smaller model"},
      {ERR_FORMAT, "the model's rotary frequencies are impossible (rope_freqs.weight, or rope.freq_base and "
                   "rope.scaling): convert the model again"},
      {ERR_INTERNAL, "the device failed while the weights were loaded: try again"},
      {ERR_DEVICE, "the device was lost while the weights were loaded: look into the system's log"},
  };
  err refusal = {0};
  loader l = {.file = f, .config = model_file_config(f), .device = d, .options = o, .refusal = &refusal};
  *w = (weights){0};
  int rc = load_into(w, &l, m, e);
  if (rc == ERR_OK) return ERR_OK;
  weights_free(w, d);
  if (refusal.code) return err_set(e, refusal.code, "%s", refusal.text);
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
    if (reasons[i].code == rc) return err_set(e, rc, "%s", reasons[i].text);
  return rc;
}

void weights_free(weights *w, device *d) {
  mem_free(w->layers);
  d->table->drop(d, w->memory);
  d->table->drop(d, w->frequencies);
  if (w->mapped) weights_cache_unmap(w->mapped, w->bytes);
  *w = (weights){0};
}
