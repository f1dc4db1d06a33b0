#include "common/model/head_rows.h"

#include "common/model/device_error.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS    (HEAD_ROWS_OWN / OPS_GROUP)
#define NONE      (-1)
#define COMMON    (-2)
#define ALIGNMENT 64

_Static_assert(HEAD_ROWS_OWN % OPS_GROUP == 0 && GROUPS < 32, "a sequence's groups are the bits of a word");

typedef struct own_rows {
  int32_t tokens[HEAD_ROWS_OWN]; /* NONE: no token has this row */
  bool made[HEAD_ROWS_OWN];      /* the token's row, by the map, is in `rows` */
  uint8_t *rows;                 /* [HEAD_ROWS_OWN] in the file's form; NULL: there is no map */
  int32_t count, next;           /* next: which row the next token takes */
  uint32_t changed;              /* groups that the device has not seen */
} own_rows;

struct head_rows {
  device *device;
  ops_type type;
  int32_t columns, common, vocabulary, sequences;
  size_t row_bytes, group_bytes; /* in the file's form, and packed */
  uint8_t *rest;                 /* the rows behind the common ones, in the file's form */
  int32_t *row_of;               /* [vocabulary] the token's row in `rest`, or NONE, or COMMON */
  const head_file *map;          /* what makes rows of those of `target`; NULL: nothing */
  const gguf_tensor *target;
  float *scratch;
  uint8_t *file, *packed; /* a group */
  own_rows *own;          /* [sequences] */
};

/* --- life --- */

static bool take_memory(head_rows *r, int32_t rest) {
  r->rest = malloc((size_t)(rest + 1) * r->row_bytes);
  r->row_of = malloc((size_t)r->vocabulary * sizeof *r->row_of);
  r->file = malloc(OPS_GROUP * r->row_bytes);
  r->packed = aligned_alloc(ALIGNMENT, r->group_bytes);
  r->own = calloc((size_t)r->sequences, sizeof *r->own);
  return r->rest && r->row_of && r->file && r->packed && r->own;
}

/* Rows are made where the file can make one. False: no memory. */
static bool take_map(head_rows *r, const head_file *f, const gguf_tensor *target) {
  const head_config *c = head_file_config(f);
  r->scratch = malloc((size_t)(2 * (c->target_embed + 1) + r->columns) * sizeof *r->scratch);
  if (!r->scratch) return false;
  if (!head_file_map_row(f, target, 0, r->scratch, r->file)) return true;
  r->map = f;
  r->target = target;
  for (int32_t s = 0; s < r->sequences; s++)
    if (!(r->own[s].rows = malloc(HEAD_ROWS_OWN * r->row_bytes))) return false;
  return true;
}

static void copy_rest(head_rows *r, const gguf_tensor *output, const int32_t *ids, int32_t rest) {
  memcpy(r->rest, (const uint8_t *)output->data + (size_t)r->common * r->row_bytes,
         (size_t)rest * r->row_bytes);
  for (int32_t t = 0; t < r->vocabulary; t++) r->row_of[t] = NONE;
  for (int32_t i = 0; i < r->common + rest; i++)
    r->row_of[ids ? ids[i] : i] = i < r->common ? COMMON : i - r->common;
  for (int32_t s = 0; s < r->sequences; s++)
    for (int32_t i = 0; i < HEAD_ROWS_OWN; i++) r->own[s].tokens[i] = NONE;
}

head_rows *head_rows_open(const head_file *f, const gguf_tensor *target, ops_type type, int32_t common,
                          int32_t sequences, device *d) {
  const gguf_tensor *output = head_file_tensor(f, HEAD_OUTPUT);
  int32_t rows = (int32_t)output->shape[1], columns = (int32_t)output->shape[0];
  assert(common > 0 && common % OPS_GROUP == 0 && common <= rows && sequences > 0);
  head_rows *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  *r = (head_rows){.device = d,
                   .type = type,
                   .columns = columns,
                   .common = common,
                   .vocabulary = head_file_config(f)->layer.vocab,
                   .sequences = sequences,
                   .row_bytes = output->bytes / (size_t)rows,
                   .group_bytes = d->table->packed_bytes(type, OPS_GROUP, columns)};
  if (!take_memory(r, rows - common) || (target && !take_map(r, f, target))) {
    head_rows_close(r);
    return NULL;
  }
  copy_rest(r, output, head_file_ids(f), rows - common);
  return r;
}

void head_rows_close(head_rows *r) {
  if (!r) return;
  free(r->rest);
  free(r->row_of);
  free(r->file);
  free(r->packed);
  free(r->scratch);
  for (int32_t s = 0; r->own && s < r->sequences; s++) free(r->own[s].rows);
  free(r->own);
  free(r);
}

/* --- tokens --- */

void head_rows_clear(head_rows *r, int32_t sequence) {
  own_rows *o = &r->own[sequence];
  for (int32_t i = 0; i < o->count; i++) {
    o->tokens[i] = NONE;
    o->changed |= 1u << i / OPS_GROUP;
  }
  o->count = o->next = 0;
}

static bool has(const own_rows *o, int32_t token) {
  for (int32_t i = 0; i < o->count; i++)
    if (o->tokens[i] == token) return true;
  return false;
}

static void add(own_rows *o, int32_t token) {
  int32_t row = o->next;
  o->tokens[row] = token;
  o->made[row] = false;
  o->changed |= 1u << row / OPS_GROUP;
  if (o->count < HEAD_ROWS_OWN) o->count++;
  o->next = (row + 1) % HEAD_ROWS_OWN;
}

static bool may_have(const head_rows *r, int32_t token) {
  if (token < 0 || token >= r->vocabulary) return false;
  return r->row_of[token] >= 0 || (r->row_of[token] == NONE && r->map);
}

void head_rows_add(head_rows *r, int32_t sequence, const int32_t *tokens, int32_t count) {
  own_rows *o = &r->own[sequence];
  for (int32_t i = 0; i < count; i++) {
    if (may_have(r, tokens[i]) && !has(o, tokens[i])) add(o, tokens[i]);
  }
}

ops_slice head_rows_own(const head_rows *r, int32_t sequence) {
  int32_t count = r->own[sequence].count;
  return (ops_slice){count > 0 ? r->common + sequence * HEAD_ROWS_OWN : 0, count};
}

/* --- onto the device --- */

static int write(const head_rows *r, device_memory *to, size_t at, const void *from, size_t bytes) {
  const device_table *table = r->device->table;
  void *window = table->fill(r->device, to, at, bytes);
  if (!window) return ERR_NOMEM;
  memcpy(window, from, bytes);
  return device_error(table->filled(r->device));
}

/* The row in the file's form. NULL: the map made none. */
static const uint8_t *row_at(head_rows *r, own_rows *o, int32_t i) {
  int32_t token = o->tokens[i];
  if (r->row_of[token] >= 0) return r->rest + (size_t)r->row_of[token] * r->row_bytes;
  uint8_t *row = o->rows + (size_t)i * r->row_bytes;
  if (!o->made[i]) o->made[i] = head_file_map_row(r->map, r->target, token, r->scratch, row);
  return o->made[i] ? row : NULL;
}

static int write_group(head_rows *r, int32_t sequence, int32_t group, device_memory *matrix,
                       device_memory *tokens) {
  own_rows *o = &r->own[sequence];
  int32_t *own = o->tokens + group * OPS_GROUP;
  size_t first = (size_t)(r->common + sequence * HEAD_ROWS_OWN + group * OPS_GROUP);
  memset(r->file, 0, OPS_GROUP * r->row_bytes);
  for (int32_t i = 0; i < OPS_GROUP; i++) {
    const uint8_t *row = own[i] == NONE ? NULL : row_at(r, o, group * OPS_GROUP + i);
    if (row)
      memcpy(r->file + (size_t)i * r->row_bytes, row, r->row_bytes);
    else
      own[i] = NONE;
  }
  r->device->table->pack(r->type, OPS_GROUP, r->columns, r->file, r->packed, 0, 1);
  int rc = write(r, matrix, first / OPS_GROUP * r->group_bytes, r->packed, r->group_bytes);
  return rc ? rc : write(r, tokens, first * sizeof *own, own, OPS_GROUP * sizeof *own);
}

int head_rows_flush(head_rows *r, device_memory *matrix, device_memory *tokens) {
  for (int32_t s = 0; s < r->sequences; s++) {
    own_rows *o = &r->own[s];
    for (int32_t g = 0; o->changed; g++) {
      int rc = o->changed >> g & 1 ? write_group(r, s, g, matrix, tokens) : ERR_OK;
      if (rc != ERR_OK) return rc;
      o->changed &= ~(1u << g);
    }
  }
  return ERR_OK;
}
