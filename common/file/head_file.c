#include "common/file/head_file.h"
#include "common/file/head_file_parts.h"
#include "common/file/json.h"
#include "common/file/mapped_file.h"
#include "common/file/printable.h"
#include "common/file/tensor_values.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_BYTES = 96 };

typedef enum {
  EXTENT_NONE,
  EXTENT_EMBED,
  EXTENT_BOTH, /* an embedding beside a state */
  EXTENT_TAPS, /* all tapped states beside each other */
  EXTENT_Q,
  EXTENT_KV,
  EXTENT_FFN,
  EXTENT_VOCAB,
  EXTENT_DRAFT_VOCAB,
  EXTENT_ROPE,
  EXTENT_COUNT
} extent;

/* SHARED: the target's own serves where it is missing. */
typedef enum { WHEN_ALWAYS, WHEN_NORM_BEFORE_FC, WHEN_SHARED, WHEN_OPTIONAL } when;

typedef struct role_row {
  const char *gguf, *safetensors; /* NULL: not there */
  extent columns, rows;
  when there;
} role_row;

static const role_row ROLES[HEAD_ROLE_COUNT] = {
#define ROLE_ROW(role, gguf, safetensors, columns, rows, when)                                               \
  [HEAD_##role] = {gguf, safetensors, EXTENT_##columns, EXTENT_##rows, WHEN_##when},
    HEAD_ROLES(ROLE_ROW)
#undef ROLE_ROW
};

static const char *const LAYER_PREFIXES[] = {"midlayer", "layers.0"};

/* What files hold beside the graph's tensors: the map's other direction, what training compared with. */
static const char *const IGNORED[] = {"t2d", "verifier_lm_head.weight", "verifier_norm.weight",
                                      "rotary_emb.inv_freq"};

static const gguf_tensor *find_tensor(const head_file *f, const char *name) {
  return f->file ? gguf_tensor_find(f->file, name) : safetensors_find(f->folder, name);
}

static int32_t tensor_count(const head_file *f) {
  return f->file ? gguf_tensor_count(f->file) : safetensors_count(f->folder);
}

static const gguf_tensor *tensor_at(const head_file *f, int32_t i) {
  return f->file ? gguf_tensor_at(f->file, i) : safetensors_at(f->folder, i);
}

/* ---- roles ---- */

/* The tensor, or NULL; `name` gets the last name that was looked for. */
static const gguf_tensor *find_role(const head_file *f, head_role role, char name[NAME_BYTES]) {
  const char *pattern = f->file ? ROLES[role].gguf : ROLES[role].safetensors;
  name[0] = 0;
  if (!pattern) return NULL;
  snprintf(name, NAME_BYTES, "%s", pattern);
  const gguf_tensor *t = NULL;
  if (pattern[0] != '*') return find_tensor(f, name);
  for (size_t i = 0; !t && i < sizeof LAYER_PREFIXES / sizeof *LAYER_PREFIXES; i++) {
    snprintf(name, NAME_BYTES, "%s%s", LAYER_PREFIXES[i], pattern + 1);
    t = find_tensor(f, name);
  }
  return t;
}

static int64_t extent_of(const head_config *c, extent x) {
  const int64_t extents[EXTENT_COUNT] = {
      [EXTENT_NONE] = 0,
      [EXTENT_EMBED] = c->layer.embed,
      [EXTENT_BOTH] = 2 * (int64_t)c->layer.embed,
      [EXTENT_TAPS] = (int64_t)c->tap_count * c->target_embed,
      [EXTENT_Q] = (int64_t)c->layer.heads * c->layer.head_dim,
      [EXTENT_KV] = (int64_t)c->layer.kv_heads * c->layer.head_dim,
      [EXTENT_FFN] = c->layer.ffn,
      [EXTENT_VOCAB] = c->layer.vocab,
      [EXTENT_DRAFT_VOCAB] = c->draft_vocab,
      [EXTENT_ROPE] = c->layer.rope_dim / 2,
  };
  return extents[x];
}

static int check_tensor(const gguf_tensor *t, int64_t columns, int64_t rows, err *e) {
  if (!gguf_has_shape(t, columns, rows))
    return err_set(
        e, ERR_FORMAT,
        "the draft head's tensor %s has the shape %lld x %lld, but its configuration asks for %lld x "
        "%lld: convert the head again or use another one",
        t->name, (long long)t->shape[0], (long long)(t->shape[1] * t->shape[2] * t->shape[3]),
        (long long)columns, (long long)(rows ? rows : 1));
  bool integers = t->type == GGUF_I8 || t->type == GGUF_I32 || t->type == GGUF_I64;
  if (integers || (!rows && !tensor_is_plain(t->type)))
    return err_set(e, ERR_UNSUPPORTED,
                   "the draft head's tensor %s has type %s, which is not built here for it: convert the head "
                   "again with F32, F16 or BF16",
                   t->name, gguf_type_name(t->type));
  return ERR_OK;
}

/* A head without its own embedding or output matrix borrows the target's, which have to be as wide, and an
 * output matrix as tall, as its own would be. */
static int check_shared(const head_config *c, head_role role, const char *name, err *e) {
  bool fits = c->layer.embed == c->target_embed && (role == HEAD_EMBED || c->draft_vocab == c->layer.vocab);
  if (fits) return ERR_OK;
  return err_set(
      e, ERR_FORMAT,
      "the draft head has no tensor %s, and the target's does not fit it (%d x %d against %d x %d): "
      "convert the head again or use another one",
      name, c->layer.embed, role == HEAD_EMBED ? c->layer.vocab : c->draft_vocab, c->target_embed,
      c->layer.vocab);
}

static int take_role(head_file *f, head_role role, err *e) {
  const role_row *r = &ROLES[role];
  char name[NAME_BYTES];
  if (r->there == WHEN_NORM_BEFORE_FC && !f->config.norm_before_fc) return ERR_OK;
  const gguf_tensor *t = find_role(f, role, name);
  if (!t && r->there == WHEN_OPTIONAL) return ERR_OK;
  if (!t && r->there == WHEN_SHARED) return check_shared(&f->config, role, name, e);
  if (!t)
    return err_set(e, ERR_FORMAT, "the draft head has no tensor %s: download or convert it again", name);
  f->tensors[role] = *t;
  return check_tensor(t, extent_of(&f->config, r->columns), extent_of(&f->config, r->rows), e);
}

static bool ends_with(const char *name, const char *end) {
  size_t size = strlen(name), end_size = strlen(end);
  return size >= end_size && strcmp(name + size - end_size, end) == 0;
}

static bool is_used(const head_file *f, const gguf_tensor *t) {
  if (strcmp(t->name, HEAD_IDS_NAME) == 0) return true;
  for (size_t i = 0; i < sizeof IGNORED / sizeof *IGNORED; i++)
    if (ends_with(t->name, IGNORED[i])) return true;
  for (head_role role = 0; role < HEAD_ROLE_COUNT; role++)
    if (f->tensors[role].data && f->tensors[role].name == t->name) return true;
  return false;
}

/* A tensor that the graph would silently leave out makes the head's candidates poor. */
static int refuse_extra(const head_file *f, err *e) {
  for (int32_t i = 0; i < tensor_count(f); i++)
    if (!is_used(f, tensor_at(f, i)))
      return err_set(
          e, ERR_UNSUPPORTED,
          "the draft head has a tensor %.64s, which the graph built here does not use: use another "
          "head",
          tensor_at(f, i)->name);
  return ERR_OK;
}

/* ---- the map from draft ids to the target's ids ---- */

static int64_t integer_at(const gguf_tensor *t, size_t i) {
  int64_t wide;
  int32_t narrow;
  if (t->type == GGUF_I64)
    memcpy(&wide, (const uint8_t *)t->data + i * sizeof wide, sizeof wide);
  else {
    memcpy(&narrow, (const uint8_t *)t->data + i * sizeof narrow, sizeof narrow);
    wide = narrow;
  }
  return wide;
}

static int bad_ids(const char *why, size_t row, int64_t id, const head_config *c, err *e) {
  return err_set(
      e, ERR_MISMATCH,
      "row %zu of the draft head's %s is token %lld, which %s (the target has %d tokens): use a head "
      "that was trained for this target",
      row, HEAD_IDS_NAME, (long long)id, why, c->layer.vocab);
}

/* In safetensors the numbers are offsets from the row's own, in a GGUF they are ids. */
static int fill_ids(head_file *f, const gguf_tensor *t, uint8_t *seen, err *e) {
  const head_config *c = &f->config;
  for (size_t i = 0; i < (size_t)c->draft_vocab; i++) {
    int64_t id;
    if (__builtin_add_overflow(integer_at(t, i), f->file ? 0 : (int64_t)i, &id)) id = -1;
    if (id < 0 || id >= c->layer.vocab) return bad_ids("is none of the target's", i, id, c, e);
    if (seen[id]) return bad_ids("another row is, too", i, id, c, e);
    seen[id] = 1;
    f->ids[i] = (int32_t)id;
  }
  return ERR_OK;
}

static int take_ids(head_file *f, const gguf_tensor *t, err *e) {
  const head_config *c = &f->config;
  f->ids = malloc((size_t)c->draft_vocab * sizeof *f->ids);
  uint8_t *seen = calloc((size_t)c->layer.vocab, 1);
  int rc = f->ids && seen ? fill_ids(f, t, seen, e)
                          : err_set(e, ERR_NOMEM, "out of memory for the draft head's vocabulary");
  free(seen);
  return rc;
}

/* How many rows the output matrix has follows from the map, or from the target where there is none. */
static int size_vocabulary(head_file *f, const gguf_tensor *ids, err *e) {
  head_config *c = &f->config;
  int64_t rows = ids ? ids->shape[0] : c->layer.vocab;
  if (ids && (ids->dims != 1 || (ids->type != GGUF_I64 && ids->type != GGUF_I32)))
    return err_set(e, ERR_FORMAT, "the draft head's %s is no vector of I64 or I32: convert the head again",
                   HEAD_IDS_NAME);
  if (rows > c->layer.vocab)
    return err_set(
        e, ERR_FORMAT,
        "the draft head's %s has %lld rows, but the target has %d tokens: use a head that was trained "
        "for this target",
        HEAD_IDS_NAME, (long long)rows, c->layer.vocab);
  if (!c->draft_vocab || (!ids && c->draft_vocab == rows)) c->draft_vocab = (int32_t)rows;
  if (c->draft_vocab == rows) return ERR_OK;
  return err_set(
      e, ERR_FORMAT,
      "the draft head has a vocabulary of %d tokens, but its map (%s) is of %lld: convert the head "
      "again or use another one",
      c->draft_vocab, HEAD_IDS_NAME, (long long)rows);
}

static int take_vocabulary(head_file *f, err *e) {
  const gguf_tensor *ids = find_tensor(f, HEAD_IDS_NAME);
  int rc = size_vocabulary(f, ids, e);
  return rc || !ids ? rc : take_ids(f, ids, e);
}

/* ---- the map of rows ---- */

static int take_map(head_file *f, err *e) {
  const head_config *c = &f->config;
  uint64_t count, columns = (uint64_t)c->target_embed + 1, wanted = columns * (uint64_t)c->layer.embed;
  const void *values;
  if (!f->file || !gguf_has(f->file, HEAD_MAP_NAME)) return ERR_OK;
  if (!gguf_array_u16(f->file, HEAD_MAP_NAME, &values, &count) || count != wanted)
    return err_set(e, ERR_FORMAT,
                   "the draft head's %s is no array of %llu u16 numbers: convert the head again",
                   HEAD_MAP_NAME, (unsigned long long)wanted);
  f->map = (gguf_tensor){.name = HEAD_MAP_NAME,
                         .type = GGUF_BF16,
                         .dims = 2,
                         .shape = {(int64_t)columns, c->layer.embed, 1, 1},
                         .data = values,
                         .bytes = (size_t)wanted * sizeof(uint16_t)};
  if (tensor_is_finite(&f->map)) return ERR_OK;
  return err_set(e, ERR_FORMAT, "the draft head's %s has a value that is no number: convert the head again",
                 HEAD_MAP_NAME);
}

/* ---- values ---- */

/* One weight that is no number makes every candidate's score none. */
static int check_values(const head_file *f, err *e) {
  for (head_role role = 0; role < HEAD_ROLE_COUNT; role++) {
    const gguf_tensor *t = &f->tensors[role];
    if (t->data && !tensor_is_finite(t))
      return err_set(
          e, ERR_FORMAT,
          "the draft head's tensor %s has a value that is infinite or no number: its training failed, "
          "use another head",
          t->name);
  }
  return ERR_OK;
}

static int take_tensors(head_file *f, err *e) {
  int rc = take_vocabulary(f, e);
  for (head_role role = 0; !rc && role < HEAD_ROLE_COUNT; role++) rc = take_role(f, role, e);
  if (!rc) rc = refuse_extra(f, e);
  if (!rc) rc = take_map(f, e);
  return rc ? rc : check_values(f, e);
}

/* ---- open and close ---- */

static bool has_file(const char *folder, const char *name) {
  char path[PATH_MAX];
  struct stat s;
  return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && stat(path, &s) == 0;
}

static int read_config(head_file *f, const char *folder, const model_config *target, err *e) {
  char path[PATH_MAX], label[PRINTABLE_PATH_MAX];
  mapped_file m;
  json_t *object;
  if (snprintf(path, sizeof path, "%s/config.json", folder) >= (int)sizeof path)
    return err_set(e, ERR_ARG, "the path of the draft head is too long");
  int rc = mapped_file_open(&m, path, "the draft head's configuration", e);
  if (rc) return rc;
  printable_path(label, path);
  rc = json_parse_object(&object, label, m.data, m.size, e);
  mapped_file_close(&m);
  if (!rc) rc = head_config_read_json(&f->config, object, target, e);
  json_decref(object);
  return rc;
}

static int read_folder(head_file *f, const char *folder, const model_config *target, err *e) {
  int rc = read_config(f, folder, target, e);
  if (rc) return rc;
  if (has_file(folder, "pytorch_model.bin") && !has_file(folder, "model.safetensors") &&
      !has_file(folder, "model.safetensors.index.json"))
    return err_set(e, ERR_UNSUPPORTED,
                   "the draft head is a pytorch_model.bin, which is a program and is not read: save it as "
                   "model.safetensors, or take a copy of the head in that form");
  rc = safetensors_open(&f->folder, folder, e);
  return rc ? rc : take_tensors(f, e);
}

static int read_gguf(head_file *f, const model_config *target, err *e) {
  int rc = head_config_read_gguf(&f->config, f->file, target, e);
  return rc ? rc : take_tensors(f, e);
}

/* Takes g over. */
static int open_any(head_file **out, const char *folder, gguf *g, const model_config *target, err *e) {
  head_file *f = calloc(1, sizeof *f);
  *out = NULL;
  if (!f) {
    gguf_close(g);
    return err_set(e, ERR_NOMEM, "out of memory for the draft head");
  }
  f->file = g;
  int rc = g ? read_gguf(f, target, e) : read_folder(f, folder, target, e);
  if (rc)
    head_file_close(f);
  else
    *out = f;
  return rc;
}

int head_file_open(head_file **out, const char *path, const model_config *target, err *e) {
  struct stat s;
  gguf *g;
  *out = NULL;
  if (stat(path, &s) == 0 && S_ISDIR(s.st_mode)) return open_any(out, path, NULL, target, e);
  int rc = gguf_open(&g, path, e);
  return rc ? rc : open_any(out, NULL, g, target, e);
}

int head_file_open_memory(head_file **out, const void *data, size_t size, const model_config *target,
                          err *e) {
  gguf *g;
  *out = NULL;
  int rc = gguf_open_memory(&g, data, size, e);
  return rc ? rc : open_any(out, NULL, g, target, e);
}

void head_file_close(head_file *f) {
  if (!f) return;
  gguf_close(f->file);
  safetensors_close(f->folder);
  for (head_role role = 0; role < HEAD_ROLE_COUNT; role++) free(f->copies[role]);
  free(f->map_copy);
  free(f->ids);
  free(f);
}

/* ---- what it tells ---- */

const head_config *head_file_config(const head_file *f) {
  return &f->config;
}

int32_t head_file_horizon(const head_file *f) {
  return f->config.horizon ? f->config.horizon : HEAD_FILE_HORIZON;
}

const gguf_tensor *head_file_tensor(const head_file *f, head_role role) {
  return f->tensors[role].data ? &f->tensors[role] : NULL;
}

const int32_t *head_file_ids(const head_file *f) {
  return f->ids;
}

const gguf_tensor *head_file_map(const head_file *f) {
  return f->map.data ? &f->map : NULL;
}

void head_file_calibrate(head_file *f, const head_calibration *c) {
  f->config.calibration = *c;
}

const char *head_role_name(head_role role) {
  return ROLES[role].gguf;
}
