#include "common/file/model_file.h"
#include "common/file/json.h"
#include "common/file/printable.h"
#include "common/file/mapped_file.h"
#include "common/file/safetensors.h"
#include "common/file/synthetic.h"
#include "common/file/tensor_values.h"
#include "common/file/vocabulary.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_BYTES = 96 };

typedef enum {
  EXTENT_NONE,
  EXTENT_EMBED,
  EXTENT_VOCAB,
  EXTENT_Q,
  EXTENT_KV,
  EXTENT_FFN,
  EXTENT_HEAD,
  EXTENT_ROPE,
  EXTENT_COUNT
} extent;

typedef enum { WHEN_ALWAYS, WHEN_UNTIED, WHEN_QKV_BIAS, WHEN_OUTPUT_BIAS, WHEN_QK_NORM, WHEN_OPTIONAL } when;

typedef struct role_row {
  const char *gguf, *safetensors; /* NULL: not there */
  extent columns, rows;
  when there;
} role_row;

static const role_row ROLES[MODEL_ROLE_COUNT] = {
#define ROLE_ROW(role, gguf, safetensors, columns, rows, when)                                               \
  [MODEL_##role] = {gguf, safetensors, EXTENT_##columns, EXTENT_##rows, WHEN_##when},
    MODEL_ROLES_OUTSIDE(ROLE_ROW) MODEL_ROLES_LAYER(ROLE_ROW)
#undef ROLE_ROW
};

#define FIRST_OF_LAYER MODEL_ATTN_NORM
#define LAYER_ROLES    ((int32_t)(MODEL_ROLE_COUNT - FIRST_OF_LAYER))

/* What files hold beside the graph's tensors, and transformers passes over too: the last part of a name. */
static const char *const IGNORED[] = {"rotary_emb.inv_freq"};

struct model_file {
  gguf *file; /* one of these three */
  safetensors *folder;
  synthetic *made;
  model_config config;
  bool text_alone;             /* a vocabulary without weights will do */
  const gguf_tensor **tensors; /* [FIRST_OF_LAYER + layers * LAYER_ROLES] */
  int32_t used;                /* of the file's tensors: those that have a role */
  int32_t stops[MODEL_STOPS_MAX], stop_count;
  char doubt[120];          /* what config.json says that cannot be meant; "": nothing */
  hash16 configuration;     /* of a folder: its JSON */
  char tokenizer[PATH_MAX]; /* of a folder; "": none */
};

/* ---- tensors ---- */

static const gguf_tensor *find_tensor(const model_file *f, const char *name) {
  return f->file ? gguf_tensor_find(f->file, name) : safetensors_find(f->folder, name);
}

static int32_t tensor_count(const model_file *f) {
  return f->file ? gguf_tensor_count(f->file) : safetensors_count(f->folder);
}

static const gguf_tensor *tensor_at(const model_file *f, int32_t i) {
  return f->file ? gguf_tensor_at(f->file, i) : safetensors_at(f->folder, i);
}

/* False: files of this kind have no such tensor. */
static bool role_name(const model_file *f, model_role role, int32_t layer, char out[NAME_BYTES]) {
  const char *name = f->file ? ROLES[role].gguf : ROLES[role].safetensors;
  if (!name) return false;
  if (role < FIRST_OF_LAYER)
    snprintf(out, NAME_BYTES, "%s", name);
  else
    snprintf(out, NAME_BYTES, "%s.%d.%s", f->file ? "blk" : "model.layers", layer, name);
  return true;
}

static bool is_there(const model_config *c, when w) {
  const bool answers[] = {[WHEN_ALWAYS] = true,          [WHEN_UNTIED] = !c->tied,
                          [WHEN_QKV_BIAS] = c->qkv_bias, [WHEN_OUTPUT_BIAS] = c->output_bias,
                          [WHEN_QK_NORM] = c->qk_norm,   [WHEN_OPTIONAL] = true};
  return answers[w];
}

static int64_t extent_of(const model_config *c, extent x) {
  const int64_t extents[EXTENT_COUNT] = {
      [EXTENT_EMBED] = c->embed,
      [EXTENT_VOCAB] = c->vocab,
      [EXTENT_Q] = (int64_t)c->heads * c->head_dim,
      [EXTENT_KV] = (int64_t)c->kv_heads * c->head_dim,
      [EXTENT_FFN] = c->ffn,
      [EXTENT_HEAD] = c->head_dim,
      [EXTENT_ROPE] = c->rope_dim / 2,
  };
  return extents[x];
}

static bool ends_with(const char *name, const char *end) {
  size_t size = strlen(name), end_size = strlen(end);
  return size >= end_size && strcmp(name + size - end_size, end) == 0;
}

/* rows 0: a vector, of a type without blocks. */
static int check_tensor(const gguf_tensor *t, int64_t columns, int64_t rows, err *e) {
  if (!gguf_has_shape(t, columns, rows))
    return err_set(
        e, ERR_FORMAT,
        "tensor %s has the shape %lld x %lld, but the model's keys ask for %lld x %lld: convert the "
        "model again",
        t->name, (long long)t->shape[0], (long long)(t->shape[1] * t->shape[2] * t->shape[3]),
        (long long)columns, (long long)(rows ? rows : 1));
  if (t->type == GGUF_I8 || t->type == GGUF_I32 || t->type == GGUF_I64)
    return err_set(e, ERR_UNSUPPORTED, "tensor %s has type %s, which no weight has: convert the model again",
                   t->name, gguf_type_name(t->type));
  if (!rows && !tensor_is_plain(t->type))
    return err_set(
        e, ERR_UNSUPPORTED,
        "tensor %s has type %s; vectors are read as F32, F16 or BF16 alone: convert the model again", t->name,
        gguf_type_name(t->type));
  return ERR_OK;
}

static synthetic_kind kind_of(const model_file *f, model_role role) {
  if (ROLES[role].rows == EXTENT_NONE)
    return ends_with(ROLES[role].gguf, ".bias") ? SYNTHETIC_BIAS : SYNTHETIC_NORM;
  if (role == MODEL_OUTPUT || (role == MODEL_EMBED && f->config.tied)) return SYNTHETIC_OUTPUT;
  return role == MODEL_V || role == MODEL_DOWN ? SYNTHETIC_FINE : SYNTHETIC_MATRIX;
}

/* What a synthetic model has is made where the graph asks for it. */
static int make_role(model_file *f, model_role role, int32_t layer, const char *name, err *e) {
  const role_row *r = &ROLES[role];
  const gguf_tensor *t =
      synthetic_tensor(f->made, name, kind_of(f, role), layer, extent_of(&f->config, r->columns),
                       extent_of(&f->config, r->rows), e);
  f->tensors[role + layer * LAYER_ROLES] = t;
  return t ? ERR_OK : e->code;
}

static int take_role(model_file *f, model_role role, int32_t layer, err *e) {
  const role_row *r = &ROLES[role];
  char name[NAME_BYTES];
  if (!is_there(&f->config, r->there) || !role_name(f, role, layer, name)) return ERR_OK;
  if (f->made) return make_role(f, role, layer, name, e);
  const gguf_tensor *t = find_tensor(f, name);
  if (!t && r->there == WHEN_OPTIONAL) return ERR_OK;
  if (!t)
    return err_set(e, ERR_FORMAT, "the model file has no tensor %s: download or convert it again", name);
  f->tensors[role + layer * LAYER_ROLES] = t;
  f->used++;
  return check_tensor(t, extent_of(&f->config, r->columns), extent_of(&f->config, r->rows), e);
}

static bool is_ignored(const char *name) {
  for (size_t i = 0; i < sizeof IGNORED / sizeof *IGNORED; i++)
    if (ends_with(name, IGNORED[i])) return true;
  return false;
}

static bool has_role(const model_file *f, const gguf_tensor *t) {
  for (int32_t i = 0; i < FIRST_OF_LAYER + f->config.layers * LAYER_ROLES; i++)
    if (f->tensors[i] == t) return true;
  return false;
}

/* A tensor that the graph would silently leave out (a bias, experts) makes the answers wrong. Those with a
 * role are all different: a count tells whether there is another. */
static int refuse_extra(const model_file *f, err *e) {
  if (tensor_count(f) == f->used) return ERR_OK;
  for (int32_t i = 0; i < tensor_count(f); i++) {
    const gguf_tensor *t = tensor_at(f, i);
    if (!has_role(f, t) && !is_ignored(t->name))
      return err_set(e, ERR_UNSUPPORTED,
                     "the model has a tensor %.64s, which the graph built here does not use", t->name);
  }
  return ERR_OK;
}

static bool has_tensor(const model_file *f, model_role role) {
  char name[NAME_BYTES];
  return role_name(f, role, 0, name) && find_tensor(f, name);
}

/* What the keys do not say. An output matrix that is there is used, whatever they say, as in transformers. */
static void look_at_tensors(model_file *f) {
  model_config *c = &f->config;
  c->tied &= !has_tensor(f, MODEL_OUTPUT);
  if (!f->file) return;
  c->qkv_bias |= has_tensor(f, MODEL_Q_BIAS);
  c->output_bias |= has_tensor(f, MODEL_OUTPUT_BIAS);
}

static int check_vocab(model_file *f, err *e) {
  char name[NAME_BYTES];
  role_name(f, MODEL_EMBED, 0, name);
  const gguf_tensor *t = find_tensor(f, name);
  uint64_t tokens;
  if (!t) return err_set(e, ERR_FORMAT, "the model file has no tensor %s: download it again", name);
  if (t->shape[1] > MODEL_VOCAB_MAX)
    return err_set(e, ERR_LIMIT, "the model has %lld tokens; tandem takes at most %d", (long long)t->shape[1],
                   MODEL_VOCAB_MAX);
  if (f->config.vocab && t->shape[1] != f->config.vocab)
    return err_set(e, ERR_FORMAT,
                   "the model file's vocab_size differs from the rows of %s: convert the model again", name);
  f->config.vocab = (int32_t)t->shape[1];
  if (f->file && gguf_array_count(f->file, "tokenizer.ggml.tokens", &tokens) &&
      tokens != (uint64_t)f->config.vocab)
    return err_set(e, ERR_FORMAT,
                   "the model file's tokenizer.ggml.tokens differs in number from the rows of %s: convert "
                   "the model again or use another file",
                   name);
  return ERR_OK;
}

static int take_tensors(model_file *f, err *e) {
  int rc = ERR_OK;
  if (!f->made) {
    look_at_tensors(f);
    rc = check_vocab(f, e);
  }
  if (rc) return rc;
  f->tensors = calloc((size_t)(FIRST_OF_LAYER + f->config.layers * LAYER_ROLES), sizeof *f->tensors);
  if (!f->tensors) return err_set(e, ERR_NOMEM, "out of memory for the model's tensor table");
  for (model_role role = 0; !rc && role < FIRST_OF_LAYER; role++) rc = take_role(f, role, 0, e);
  for (int32_t layer = 0; !rc && layer < f->config.layers; layer++)
    for (model_role role = FIRST_OF_LAYER; !rc && role < MODEL_ROLE_COUNT; role++)
      rc = take_role(f, role, layer, e);
  return rc || f->made ? rc : refuse_extra(f, e);
}

/* ---- a GGUF ---- */

static void add_stop(model_file *f, int64_t id) {
  if (id < 0 || id >= f->config.vocab || f->stop_count == MODEL_STOPS_MAX) return;
  for (int32_t i = 0; i < f->stop_count; i++)
    if (f->stops[i] == id) return;
  f->stops[f->stop_count++] = (int32_t)id;
}

/* The end of the text, and the end of a turn where that is another token. */
static void find_gguf_stops(model_file *f) {
  static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
  int64_t id;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (gguf_get_i64(f->file, keys[i], &id)) add_stop(f, id);
}

/* A split model's first part has all keys and a part of the tensors. */
static int check_parts(const model_file *f, err *e) {
  uint64_t count;
  if (!gguf_get_u64(f->file, "split.count", &count) || count < 2) return ERR_OK;
  return err_set(
      e, ERR_UNSUPPORTED,
      "the model is split into %llu files, which is not built here: join them (llama-gguf-split --merge)",
      (unsigned long long)count);
}

/* A vocabulary alone: tokens without tensors. */
static bool is_vocabulary(const model_file *f, uint64_t *tokens) {
  return gguf_tensor_count(f->file) == 0 && gguf_array_count(f->file, "tokenizer.ggml.tokens", tokens);
}

static int take_vocabulary(model_file *f, uint64_t tokens, err *e) {
  if (!f->text_alone)
    return err_set(e, ERR_UNSUPPORTED,
                   "this file holds a vocabulary and no weights: it serves `tandem tokenize' and "
                   "`detokenize' alone; give the whole model");
  if (tokens > MODEL_VOCAB_MAX)
    return err_set(e, ERR_LIMIT, "the file has %llu tokens; tandem takes at most %d",
                   (unsigned long long)tokens, MODEL_VOCAB_MAX);
  f->config.vocab = (int32_t)tokens;
  return ERR_OK;
}

static int read_gguf(model_file *f, err *e) {
  config_source s;
  uint64_t tokens;
  if (is_vocabulary(f, &tokens)) return take_vocabulary(f, tokens, e);
  int rc = check_parts(f, e);
  if (!rc) rc = config_source_gguf(&s, f->file, e);
  if (!rc) rc = model_config_read(&f->config, &s, e);
  if (!rc) rc = take_tensors(f, e);
  if (!rc) find_gguf_stops(f);
  return rc ? rc : gguf_check_read(f->file, e);
}

/* ---- a folder ---- */

/* An object of the folder, hashed; *out NULL where the file is missing and may be. */
static int read_json(model_file *f, const char *folder, const char *name, bool needed, json_t **out, err *e) {
  char path[PATH_MAX], label[PRINTABLE_PATH_MAX];
  struct stat s;
  mapped_file m;
  *out = NULL;
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
    return err_set(e, ERR_ARG, "the path of the model is too long");
  bool missing = stat(path, &s) != 0;
  if (missing && needed)
    return err_set(
        e, ERR_IO,
        "%s is a folder without %s: give a .gguf file, or a folder with config.json and model.safetensors",
        folder, name);
  if (missing) return ERR_OK;
  int rc = mapped_file_open(&m, path, "the model's file", e);
  if (rc) return rc;
  printable_path(label, path);
  f->configuration = hash_fold(f->configuration, m.data, m.size);
  rc = json_parse_object(out, label, m.data, m.size, e);
  mapped_file_close(&m);
  return rc;
}

static void add_json_stop(model_file *f, int64_t id) {
  add_stop(f, id);
  if ((id < 0 || id >= f->config.vocab) && !f->doubt[0])
    snprintf(f->doubt, sizeof f->doubt, "the model's eos_token_id %lld is no token: it counts as none",
             (long long)id);
}

/* One id, or a list of them; generation_config.json's come before config.json's, as in transformers. */
static int find_json_stops(model_file *f, const json_t *config, const json_t *generation, err *e) {
  const json_t *ids = json_object_get(generation, "eos_token_id"), *id;
  size_t i;
  bool good = true;
  if (!ids || json_is_null(ids)) ids = json_object_get(config, "eos_token_id");
  if (json_is_integer(ids))
    add_json_stop(f, json_integer_value(ids));
  else
    good = !ids || json_is_null(ids) || json_is_array(ids);
  json_array_foreach(ids, i, id) {
    if (json_is_integer(id))
      add_json_stop(f, json_integer_value(id));
    else
      good = false;
  }
  return good ? ERR_OK
              : err_set(e, ERR_FORMAT,
                        "the model's eos_token_id is neither a token's number nor a list of them: "
                        "download or convert it again");
}

static int find_tokenizer(model_file *f, const char *folder, err *e) {
  struct stat s;
  if (snprintf(f->tokenizer, sizeof f->tokenizer, "%s/tokenizer.json", folder) >= (int)sizeof f->tokenizer)
    return err_set(e, ERR_ARG, "the path of the model is too long");
  if (stat(f->tokenizer, &s)) f->tokenizer[0] = 0;
  return ERR_OK;
}

static int read_folder(model_file *f, const char *folder, err *e) {
  json_t *config = NULL, *generation = NULL;
  config_source s;
  int rc = read_json(f, folder, "config.json", true, &config, e);
  if (!rc) rc = read_json(f, folder, "generation_config.json", false, &generation, e);
  if (!rc) rc = config_source_json(&s, config, e);
  if (!rc) rc = model_config_read(&f->config, &s, e);
  if (!rc) rc = safetensors_open(&f->folder, folder, e);
  if (!rc) rc = take_tensors(f, e);
  if (!rc) rc = find_tokenizer(f, folder, e);
  if (!rc) rc = find_json_stops(f, config, generation, e);
  json_decref(config);
  json_decref(generation);
  return rc;
}

/* ---- random weights ---- */

static int read_synthetic(model_file *f, const char *name, err *e) {
  config_source s;
  int rc = synthetic_open(&f->made, name, e);
  if (!rc) rc = config_source_json(&s, synthetic_config(f->made), e);
  if (!rc) rc = model_config_read(&f->config, &s, e);
  return rc ? rc : take_tensors(f, e);
}

/* ---- open and close ---- */

/* path: of a folder, or a synthetic model's name. */
static int open_any(model_file **out, const char *path, gguf *g, bool text_alone, err *e) {
  model_file *f = calloc(1, sizeof *f);
  *out = NULL;
  if (!f) {
    gguf_close(g);
    return err_set(e, ERR_NOMEM, "out of memory for the model");
  }
  f->file = g;
  f->text_alone = text_alone;
  int rc = g ? read_gguf(f, e) : synthetic_is(path) ? read_synthetic(f, path, e) : read_folder(f, path, e);
  if (rc)
    model_file_close(f);
  else
    *out = f;
  return rc;
}

static int open_path(model_file **out, const char *path, bool text_alone, err *e) {
  struct stat s;
  gguf *g;
  *out = NULL;
  if (synthetic_is(path) || (stat(path, &s) == 0 && S_ISDIR(s.st_mode)))
    return open_any(out, path, NULL, text_alone, e);
  int rc = gguf_open(&g, path, e);
  return rc ? rc : open_any(out, NULL, g, text_alone, e);
}

int model_file_open(model_file **out, const char *path, err *e) {
  return open_path(out, path, false, e);
}

int model_file_open_text(model_file **out, const char *path, err *e) {
  return open_path(out, path, true, e);
}

int model_file_open_memory(model_file **out, const void *data, size_t size, err *e) {
  gguf *g;
  *out = NULL;
  int rc = gguf_open_memory(&g, data, size, e);
  return rc ? rc : open_any(out, NULL, g, false, e);
}

void model_file_close(model_file *f) {
  if (!f) return;
  gguf_close(f->file);
  safetensors_close(f->folder);
  synthetic_close(f->made);
  free(f->tensors);
  free(f);
}

/* ---- what it tells ---- */

const model_config *model_file_config(const model_file *f) {
  return &f->config;
}

int model_file_keep_layers(model_file *f, int32_t layers, err *e) {
  if (layers < 1 || layers > f->config.layers)
    return err_set(e, ERR_ARG, "the model has %d layers: %d of them cannot be used (--draft-layers)",
                   f->config.layers, layers);
  f->config.layers = layers;
  return ERR_OK;
}

const gguf_tensor *model_file_tensor(const model_file *f, model_role role, int32_t layer) {
  return f->tensors[role + (role < FIRST_OF_LAYER ? 0 : layer * LAYER_ROLES)];
}

hash16 model_file_fingerprint(const model_file *f) {
  if (f->file) return gguf_fingerprint(f->file);
  if (f->made) return synthetic_hash(f->made);
  hash16 tensors = safetensors_fingerprint(f->folder);
  return hash_fold(f->configuration, &tensors, sizeof tensors);
}

/* *read: may the file be read? */
static bool hash_file(const mapped_file *m, const atomic_bool *stop, bool read, hash16 *out) {
  return file_hash_recall(m, out) || (read && file_hash_read(m, stop, out));
}

static bool hash_tokenizer(const model_file *f, const atomic_bool *stop, bool read, hash16 *out) {
  mapped_file m;
  *out = (hash16){{0}};
  if (!f->tokenizer[0] || mapped_file_open(&m, f->tokenizer, "the vocabulary", &(err){0})) return true;
  bool known = hash_file(&m, stop, read, out);
  mapped_file_close(&m);
  return known;
}

static bool hash_folder(const model_file *f, const atomic_bool *stop, bool read, hash16 *out) {
  hash16 part;
  if (!hash_tokenizer(f, stop, read, &part)) return false;
  hash16 whole = hash_fold(f->configuration, &part, sizeof part);
  for (int32_t i = 0; i < safetensors_file_count(f->folder); i++) {
    const mapped_file m = safetensors_file(f->folder, i);
    if (!hash_file(&m, stop, read, &part)) return false;
    whole = hash_fold(whole, &part, sizeof part);
  }
  *out = whole;
  return true;
}

static bool hash_model(const model_file *f, const atomic_bool *stop, bool read, hash16 *out) {
  if (f->made) *out = synthetic_hash(f->made);
  if (f->made) return true;
  if (!f->file) return hash_folder(f, stop, read, out);
  const mapped_file m = gguf_file(f->file);
  return hash_file(&m, stop, read, out);
}

bool model_file_recall_hash(const model_file *f, hash16 *out) {
  return hash_model(f, NULL, false, out);
}

bool model_file_read_hash(const model_file *f, const atomic_bool *stop, hash16 *out) {
  return hash_model(f, stop, true, out);
}

int32_t model_file_stops(const model_file *f, int32_t out[MODEL_STOPS_MAX]) {
  memcpy(out, f->stops, (size_t)f->stop_count * sizeof *out);
  return f->stop_count;
}

const char *model_file_doubt(const model_file *f) {
  return f->doubt;
}

const gguf *model_file_gguf(const model_file *f) {
  return f->file && gguf_has(f->file, "tokenizer.ggml.tokens") ? f->file : NULL;
}

const char *model_file_tokenizer(const model_file *f) {
  return f->tokenizer[0] ? f->tokenizer : NULL;
}

int model_file_read_vocabulary(const model_file *f, vocabulary *v, err *e) {
  *v = (vocabulary){0};
  if (f->file) return vocabulary_read_gguf(v, f->file, e);
  return f->tokenizer[0] ? vocabulary_read_path(v, f->tokenizer, f->config.vocab, e) : ERR_OK;
}

int model_file_vocabulary(const model_file *f, hash16 *out, err *e) {
  *out = (hash16){{0}};
  if (f->file) return vocabulary_hash_gguf(f->file, out, e);
  return f->tokenizer[0] ? vocabulary_hash_json(f->tokenizer, f->config.vocab, out, e) : ERR_OK;
}
