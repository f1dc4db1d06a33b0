#include "common/model/head_weights.h"
#include "common/model/device_error.h"
#include "common/model/file_tensor.h"
#include "common/model/rope.h"
#include "common/model/weights.h"

#include <stdlib.h>
#include <string.h>

#define PACK_GROUPS 32 /* groups of one piece of parallel work */
#define ALIGNMENT   64

typedef struct loader {
  const head_file *file;
  const model_file *target;
  const model_config *layer;
  device *device;
  head_weights *weights;
} loader;

/* --- into the device's memory --- */

static int copy_in(device *d, device_memory *m, const void *from, size_t bytes) {
  size_t most = d->table->window_max(d) / ALIGNMENT * ALIGNMENT;
  int rc = ERR_OK;
  for (size_t at = 0, part; at < bytes && rc == ERR_OK; at += part) {
    part = bytes - at < most ? bytes - at : most;
    void *window = d->table->fill(d, m, at, part);
    if (!window) return ERR_NOMEM;
    memcpy(window, (const uint8_t *)from + at, part);
    rc = device_error(d->table->filled(d));
  }
  return rc;
}

static int store_bytes(loader *l, mem_tag tag, const void *from, size_t bytes, const device_memory **out) {
  head_weights *w = l->weights;
  device_memory *m = w->memory_count < HEAD_MEMORY_MAX ? l->device->table->take(l->device, tag, bytes) : NULL;
  if (!m) return ERR_NOMEM;
  w->memory[w->memory_count++] = m;
  *out = m;
  return copy_in(l->device, m, from, bytes);
}

typedef struct pack_job {
  const device_table *table;
  const device_weight *w;
  int32_t groups;
  const void *file;
  void *out;
} pack_job;

static void pack_piece(void *context, int32_t i) {
  const pack_job *j = context;
  int32_t first = i * PACK_GROUPS, last = first + PACK_GROUPS < j->groups ? first + PACK_GROUPS : j->groups;
  j->table->pack(j->w->type, j->w->rows, j->w->columns, j->file, j->out, first, last);
}

/* Rows of `file` in the file's form. */
static int pack_matrix(loader *l, const void *file, device_weight *w) {
  const device_table *table = l->device->table;
  size_t bytes = table->packed_bytes(w->type, w->rows, w->columns);
  void *packed = bytes > 0 ? aligned_alloc(ALIGNMENT, bytes) : NULL;
  if (!packed) return ERR_NOMEM;
  pack_job j = {table, w, w->rows / OPS_GROUP + (w->rows % OPS_GROUP != 0), file, packed};
  table->parallel(l->device, (j.groups + PACK_GROUPS - 1) / PACK_GROUPS, pack_piece, &j);
  int rc = store_bytes(l, MEM_WEIGHTS, packed, bytes, &w->memory);
  free(packed);
  return rc;
}

/* --- tensors --- */

static int load_tensor(loader *l, const gguf_tensor *t, device_weight *w) {
  *w = (device_weight){.rows = (int32_t)t->shape[1], .columns = (int32_t)t->shape[0]};
  return weights_type(t->type, &w->type) ? pack_matrix(l, t->data, w) : ERR_UNSUPPORTED;
}

static int load_matrix(loader *l, head_role role, device_weight *w) {
  int rc = load_tensor(l, head_file_tensor(l->file, role), w);
  if (rc == ERR_OK) l->weights->bytes += l->device->table->packed_bytes(w->type, w->rows, w->columns);
  return rc;
}

/* Columns that a half may end behind. */
static int32_t block_of(ops_type type) {
  return type <= OPS_BF16 ? 1 : type >= OPS_Q2_K ? OPS_UNIT : OPS_BLOCK;
}

/* The columns of one half, as a matrix in the file's form. */
static uint8_t *half_of(const gguf_tensor *t, const uint8_t *data, int32_t half) {
  size_t rows = (size_t)t->shape[1], row = t->bytes / rows, part = row / 2;
  uint8_t *out = malloc(rows * part);
  for (size_t r = 0; out && r < rows; r++) memcpy(out + r * part, data + r * row + (size_t)half * part, part);
  return out;
}

static int load_half(loader *l, const gguf_tensor *t, const uint8_t *data, int32_t half, device_weight *w) {
  *w = (device_weight){.rows = (int32_t)t->shape[1], .columns = (int32_t)t->shape[0] / 2};
  if (!weights_type(t->type, &w->type) || w->columns % block_of(w->type) != 0) return ERR_UNSUPPORTED;
  uint8_t *part = half_of(t, data, half);
  int rc = part ? pack_matrix(l, part, w) : ERR_NOMEM;
  free(part);
  if (rc == ERR_OK) l->weights->bytes += l->device->table->packed_bytes(w->type, w->rows, w->columns);
  return rc;
}

/* `order`: whose rows' order it has, so that rotary pairs are neighbours. */
static int load_halves(loader *l, head_role role, model_role order, device_weight w[2]) {
  const gguf_tensor *t = head_file_tensor(l->file, role);
  void *copy;
  const uint8_t *data = file_tensor_ordered(l->layer, order, t, &copy);
  int rc = data ? ERR_OK : ERR_NOMEM;
  for (int32_t i = 0; i < 2 && rc == ERR_OK; i++) rc = load_half(l, t, data, i, &w[i]);
  free(copy);
  return rc;
}

static int load_vector(loader *l, head_role role, device_vector *v) {
  const gguf_tensor *t = head_file_tensor(l->file, role);
  if (!t) return ERR_OK;
  size_t count = (size_t)t->shape[0];
  float *values = malloc(count * sizeof *values);
  int rc = values ? ERR_OK : ERR_NOMEM;
  if (values && file_tensor_floats(l->layer, MODEL_ATTN_NORM, t, values))
    rc = store_bytes(l, MEM_WEIGHTS, values, count * sizeof *values, &v->memory);
  free(values);
  return rc;
}

/* What the head lacks is the target's. */
static int load_shared(loader *l, head_role role, model_role first, device_weight *w) {
  if (head_file_tensor(l->file, role)) return load_matrix(l, role, w);
  const gguf_tensor *t = model_file_tensor(l->target, first, 0);
  return load_tensor(l, t ? t : model_file_tensor(l->target, MODEL_EMBED, 0), w);
}

/* The embedding is no part of what a step reads. */
static int load_embed(loader *l, device_weight *w) {
  const gguf_tensor *own = head_file_tensor(l->file, HEAD_EMBED);
  return load_tensor(l, own ? own : model_file_tensor(l->target, MODEL_EMBED, 0), w);
}

static int load_matrices(loader *l) {
  head_weights *w = l->weights;
  const struct {
    head_role role;
    device_weight *w;
  } plain[] = {{HEAD_FC, &w->fc},
               {HEAD_ATTN_OUTPUT, &w->attn_output},
               {HEAD_GATE, &w->gate},
               {HEAD_UP, &w->up},
               {HEAD_DOWN, &w->down}};
  int rc = load_halves(l, HEAD_Q, MODEL_Q, w->q);
  if (rc == ERR_OK) rc = load_halves(l, HEAD_K, MODEL_K, w->k);
  if (rc == ERR_OK) rc = load_halves(l, HEAD_V, MODEL_V, w->v);
  for (size_t i = 0; i < sizeof plain / sizeof *plain && rc == ERR_OK; i++)
    rc = load_matrix(l, plain[i].role, plain[i].w);
  if (rc == ERR_OK) rc = load_shared(l, HEAD_OUTPUT, MODEL_OUTPUT, &w->output);
  return rc == ERR_OK ? load_embed(l, &w->embed) : rc;
}

static int load_vectors(loader *l) {
  head_weights *w = l->weights;
  const struct {
    head_role role;
    device_vector *v;
  } all[] = {{HEAD_FC_NORM, &w->fc_norm},
             {HEAD_EMBED_NORM, &w->embed_norm},
             {HEAD_STATE_NORM, &w->state_norm},
             {HEAD_FFN_NORM, &w->ffn_norm},
             {HEAD_OUTPUT_NORM, &w->output_norm}};
  int rc = ERR_OK;
  for (size_t i = 0; i < sizeof all / sizeof *all && rc == ERR_OK; i++)
    rc = load_vector(l, all[i].role, all[i].v);
  return rc;
}

static int load_rope(loader *l) {
  const gguf_tensor *t = head_file_tensor(l->file, HEAD_ROPE_FACTORS);
  float factors[MODEL_HEAD_DIM_MAX / 2];
  rope r;
  if (t && !file_tensor_floats(l->layer, MODEL_ROPE_FACTORS, t, factors)) return ERR_NOMEM;
  if (!rope_init(&r, l->layer, t ? factors : NULL)) return ERR_FORMAT;
  l->weights->rope = (device_rope){.dim = r.dim, .times = r.times};
  return store_bytes(l, MEM_GENERAL, r.frequency, (size_t)r.dim / 2 * sizeof *r.frequency,
                     &l->weights->rope.frequency.memory);
}

/* The op `rank` goes through the target's tokens, so that it needs the row of each. */
static int load_ids(loader *l) {
  const int32_t *ids = head_file_ids(l->file);
  int32_t vocabulary = l->layer->vocab, rows = head_file_config(l->file)->draft_vocab;
  l->weights->ids.count = vocabulary;
  if (!ids) return ERR_OK;
  int32_t *row_of = malloc((size_t)vocabulary * sizeof *row_of);
  if (!row_of) return ERR_NOMEM;
  for (int32_t t = 0; t < vocabulary; t++) row_of[t] = -1;
  for (int32_t r = 0; r < rows; r++) row_of[ids[r]] = r;
  int rc = store_bytes(l, MEM_GENERAL, row_of, (size_t)vocabulary * sizeof *row_of, &l->weights->ids.memory);
  free(row_of);
  return rc;
}

int head_weights_load(head_weights *w, const head_file *f, const model_file *target, device *d, err *e) {
  static const struct {
    int code;
    const char *text;
  } reasons[] = {
      {ERR_UNSUPPORTED, "the draft head has a tensor of a type that this device does not take"},
      {ERR_NOMEM, "no memory for the draft head: close other programs or use a smaller one (--draft-type)"},
      {ERR_FORMAT, "the draft head's rotary frequencies are impossible: convert the head again"},
      {ERR_INTERNAL, "the device failed while the draft head was loaded: try again"},
      {ERR_DEVICE, "the device was lost while the draft head was loaded: look into the system's log"},
  };
  *w = (head_weights){0};
  loader l = {f, target, &head_file_config(f)->layer, d, w};
  int rc = load_vectors(&l);
  if (rc == ERR_OK) rc = load_matrices(&l);
  if (rc == ERR_OK) rc = load_rope(&l);
  if (rc == ERR_OK) rc = load_ids(&l);
  if (rc == ERR_OK) return ERR_OK;
  head_weights_free(w, d);
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
    if (reasons[i].code == rc) return err_set(e, rc, "%s", reasons[i].text);
  return rc;
}

void head_weights_free(head_weights *w, device *d) {
  while (w->memory_count > 0) d->table->drop(d, w->memory[--w->memory_count]);
  *w = (head_weights){0};
}
