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
  head_shares shares;
} loader;

/* --- into the device's memory --- */

static int copy_in(device *d, device_memory *m, size_t to, const void *from, size_t bytes) {
  size_t most = d->table->window_max(d) / ALIGNMENT * ALIGNMENT;
  int rc = ERR_OK;
  for (size_t at = 0, part; at < bytes && rc == ERR_OK; at += part) {
    part = bytes - at < most ? bytes - at : most;
    void *window = d->table->fill(d, m, to + at, part);
    if (!window) return ERR_NOMEM;
    memcpy(window, (const uint8_t *)from + at, part);
    rc = device_error(d->table->filled(d));
  }
  return rc;
}

/* Zeroed. */
static device_memory *take(loader *l, mem_tag tag, size_t bytes) {
  head_weights *w = l->weights;
  device_memory *m = w->memory_count < HEAD_MEMORY_MAX ? l->device->table->take(l->device, tag, bytes) : NULL;
  if (m) w->memory[w->memory_count++] = m;
  return m;
}

static int store_bytes(loader *l, mem_tag tag, const void *from, size_t bytes, const device_memory **out) {
  device_memory *m = take(l, tag, bytes);
  if (!m) return ERR_NOMEM;
  *out = m;
  return copy_in(l->device, m, 0, from, bytes);
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

/* Rows of `file` in the file's form. With `to`, they are written there, from byte `at` on. */
static int pack_rows(loader *l, const void *file, device_weight *w, device_memory *to, size_t at) {
  const device_table *table = l->device->table;
  size_t bytes = table->packed_bytes(w->type, w->rows, w->columns);
  void *packed = bytes > 0 ? aligned_alloc(ALIGNMENT, bytes) : NULL;
  if (!packed) return ERR_NOMEM;
  pack_job j = {table, w, w->rows / OPS_GROUP + (w->rows % OPS_GROUP != 0), file, packed};
  table->parallel(l->device, (j.groups + PACK_GROUPS - 1) / PACK_GROUPS, pack_piece, &j);
  int rc =
      to ? copy_in(l->device, to, at, packed, bytes) : store_bytes(l, MEM_WEIGHTS, packed, bytes, &w->memory);
  free(packed);
  return rc;
}

static int pack_matrix(loader *l, const void *file, device_weight *w) {
  return pack_rows(l, file, w, NULL, 0);
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

/* Columns that a part may end behind. */
static int32_t block_of(ops_type type) {
  return type <= OPS_BF16 ? 1 : type >= OPS_Q2_K ? OPS_UNIT : OPS_BLOCK;
}

/* The columns of one part of `parts` equal ones, as a matrix in the file's form. */
static uint8_t *part_of(const gguf_tensor *t, const uint8_t *data, int32_t part, int32_t parts) {
  size_t rows = (size_t)t->shape[1], row = t->bytes / rows, bytes = row / (size_t)parts;
  uint8_t *out = malloc(rows * bytes);
  for (size_t r = 0; out && r < rows; r++)
    memcpy(out + r * bytes, data + r * row + (size_t)part * bytes, bytes);
  return out;
}

static int load_part(loader *l, const gguf_tensor *t, const uint8_t *data, int32_t part, int32_t parts,
                     device_weight *w) {
  *w = (device_weight){.rows = (int32_t)t->shape[1], .columns = (int32_t)t->shape[0] / parts};
  if (!weights_type(t->type, &w->type) || w->columns % block_of(w->type) != 0) return ERR_UNSUPPORTED;
  uint8_t *copy = part_of(t, data, part, parts);
  int rc = copy ? pack_matrix(l, copy, w) : ERR_NOMEM;
  free(copy);
  if (rc == ERR_OK) l->weights->bytes += l->device->table->packed_bytes(w->type, w->rows, w->columns);
  return rc;
}

/* `order`: whose rows' order it has, so that rotary pairs are neighbours. */
static int load_halves(loader *l, head_role role, model_role order, device_weight w[2]) {
  const gguf_tensor *t = head_file_tensor(l->file, role);
  void *copy;
  const uint8_t *data = file_tensor_ordered(l->layer, order, t, &copy);
  int rc = data ? ERR_OK : ERR_NOMEM;
  for (int32_t i = 0; i < 2 && rc == ERR_OK; i++) rc = load_part(l, t, data, i, 2, &w[i]);
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

/* A draft vocabulary whose tokens ascend is not ordered by frequency: its first rows are no better than the
 * others, so that all of them are common. */
static bool is_ordered(const int32_t *ids, int32_t rows) {
  int32_t ascending = 0;
  for (int32_t i = 1; ids && i < rows; i++) ascending += ids[i] > ids[i - 1];
  return ids && ascending < rows - 1;
}

/* The target's output matrix, where rows are made of it; or NULL. */
static const gguf_tensor *mapped(const loader *l) {
  if (l->shares.sequences == 0 || !head_file_map(l->file)) return NULL;
  const gguf_tensor *t = model_file_tensor(l->target, MODEL_OUTPUT, 0);
  return t ? t : model_file_tensor(l->target, MODEL_EMBED, 0);
}

static int32_t common_rows(const loader *l) {
  int32_t rows = head_file_config(l->file)->draft_vocab;
  int32_t wanted = (l->shares.common + OPS_GROUP - 1) / OPS_GROUP * OPS_GROUP;
  if (wanted > 0 && wanted < rows && is_ordered(head_file_ids(l->file), rows)) return wanted;
  return mapped(l) ? rows / OPS_GROUP * OPS_GROUP : rows;
}

static bool shares_rows(const loader *l) {
  int32_t common = common_rows(l);
  bool fewer = common < head_file_config(l->file)->draft_vocab;
  return common > 0 && head_file_tensor(l->file, HEAD_OUTPUT) && (fewer || mapped(l));
}

static int load_shared_ids(loader *l, const int32_t *ids) {
  device_ids *to = &l->weights->ids;
  ops_slice rest = l->weights->rest;
  int32_t *all = malloc((size_t)to->outputs * sizeof *all);
  if (!all) return ERR_NOMEM;
  for (int32_t i = 0; i < to->outputs; i++) all[i] = i < to->common ? ids[i] : -1;
  for (int32_t i = 0; i < rest.count; i++) all[rest.first + i] = ids[to->common + i];
  int rc = store_bytes(l, MEM_GENERAL, all, (size_t)to->outputs * sizeof *all, &to->memory);
  l->weights->id_memory = l->weights->memory[l->weights->memory_count - 1];
  free(all);
  return rc;
}

/* The common rows, room behind them, and at the end the rest. */
static int load_shared_output(loader *l) {
  head_weights *w = l->weights;
  const gguf_tensor *t = head_file_tensor(l->file, HEAD_OUTPUT);
  int32_t common = common_rows(l), own = l->shares.sequences * HEAD_ROWS_OWN;
  int32_t rest = (int32_t)t->shape[1] - common, outputs = common + own + rest;
  device_weight rows = {.rows = common, .columns = (int32_t)t->shape[0]};
  if (!weights_type(t->type, &rows.type)) return ERR_UNSUPPORTED;
  device_weight last = {.rows = rest, .columns = rows.columns, .type = rows.type};
  size_t last_at = l->device->table->packed_bytes(rows.type, common + own, rows.columns);
  const uint8_t *last_rows = (const uint8_t *)t->data + t->bytes / (size_t)t->shape[1] * (size_t)common;
  w->rest = (ops_slice){common + own, rest};
  w->output = rows;
  w->output.rows = outputs;
  w->own = head_rows_open(l->file, mapped(l), rows.type, common, l->shares.sequences, l->device);
  w->output_memory = take(l, MEM_WEIGHTS, l->device->table->packed_bytes(rows.type, outputs, rows.columns));
  if (!w->own || !w->output_memory) return ERR_NOMEM;
  w->output.memory = w->output_memory;
  w->bytes += l->device->table->packed_bytes(rows.type, common, rows.columns);
  w->ids = (device_ids){.count = l->layer->vocab, .outputs = outputs, .common = common};
  int rc = pack_rows(l, t->data, &rows, w->output_memory, 0);
  if (rc == ERR_OK && rest > 0) rc = pack_rows(l, last_rows, &last, w->output_memory, last_at);
  return rc ? rc : load_shared_ids(l, head_file_ids(l->file));
}

static int load_whole_output(loader *l) {
  const int32_t *ids = head_file_ids(l->file);
  int32_t rows = head_file_config(l->file)->draft_vocab;
  int rc = load_shared(l, HEAD_OUTPUT, MODEL_OUTPUT, &l->weights->output);
  l->weights->ids = (device_ids){.count = l->layer->vocab, .outputs = rows, .common = rows};
  if (rc != ERR_OK || !ids) return rc;
  return store_bytes(l, MEM_GENERAL, ids, (size_t)rows * sizeof *ids, &l->weights->ids.memory);
}

/* What was loaded so far goes where something is missing. */
static int finish(loader *l, int rc, err *e) {
  static const struct {
    int code;
    const char *text;
  } reasons[] = {
      {ERR_UNSUPPORTED, "the draft head has a tensor of a type that this device does not take"},
      {ERR_NOMEM, "no memory for the draft head: close other programs or use a smaller one (--draft-type)"},
      {ERR_FORMAT, "the draft head's rotary frequencies are impossible (rope_freqs.weight, or its rope "
                   "keys): convert the head again"},
      {ERR_INTERNAL, "the device failed while the draft head was loaded: try again"},
      {ERR_DEVICE, "the device was lost while the draft head was loaded: look into the system's log"},
  };
  if (rc == ERR_OK) return ERR_OK;
  head_weights_free(l->weights, l->device);
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
    if (reasons[i].code == rc) return err_set(e, rc, "%s", reasons[i].text);
  return rc;
}

int head_weights_load(head_weights *w, const head_file *f, const model_file *target, head_shares shares,
                      device *d, err *e) {
  *w = (head_weights){0};
  loader l = {f, target, &head_file_config(f)->layer, d, w, shares};
  int rc = load_vectors(&l);
  if (rc == ERR_OK) rc = load_matrices(&l);
  if (rc == ERR_OK) rc = load_rope(&l);
  if (rc == ERR_OK) rc = shares_rows(&l) ? load_shared_output(&l) : load_whole_output(&l);
  return finish(&l, rc, e);
}

static int load_fc_parts(loader *l) {
  const gguf_tensor *t = head_file_tensor(l->file, HEAD_FC);
  int32_t count = head_file_config(l->file)->tap_count;
  if (t->shape[0] / count % block_of(l->weights->fc.type) != 0) return ERR_OK;
  int rc = ERR_OK;
  for (int32_t i = 0; i < count && rc == ERR_OK; i++)
    rc = load_part(l, t, t->data, i, count, &l->weights->fc_parts[i]);
  return rc;
}

int head_weights_load_fc(head_weights *w, const head_file *f, bool parts, device *d, err *e) {
  *w = (head_weights){0};
  loader l = {f, NULL, &head_file_config(f)->layer, d, w, {0}};
  int rc = load_vector(&l, HEAD_FC_NORM, &w->fc_norm);
  if (rc == ERR_OK) rc = load_matrix(&l, HEAD_FC, &w->fc);
  if (rc == ERR_OK && parts) rc = load_fc_parts(&l);
  return finish(&l, rc, e);
}

void head_weights_free(head_weights *w, device *d) {
  head_rows_close(w->own);
  while (w->memory_count > 0) d->table->drop(d, w->memory[--w->memory_count]);
  *w = (head_weights){0};
}
