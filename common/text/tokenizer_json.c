#include "common/text/tokenizer_json.h"

#include "common/file/json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MERGES_MAX = 1 << 21, PATH_BYTES_MAX = 4096 };

static bool is_empty(const json_t *value) {
  return !value || json_is_null(value) || tokenizer_json_is_text(value, "");
}

/* ---- the model ---- */

/* "left right", or ["left", "right"]; false: neither. */
static bool parts_of_merge(const json_t *merge, const char **left, size_t *left_size, const char **right,
                           size_t *right_size) {
  const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
  if (json_is_string(merge)) {
    *left = json_string_value(merge);
    const char *blank = memchr(*left, ' ', json_string_length(merge));
    if (!blank) return false;
    *left_size = (size_t)(blank - *left);
    *right = blank + 1;
    *right_size = json_string_length(merge) - *left_size - 1;
    return true;
  }
  if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b)) return false;
  *left = json_string_value(a), *left_size = json_string_length(a);
  *right = json_string_value(b), *right_size = json_string_length(b);
  return true;
}

static int read_merge(tokenizer_json *r, const json_t *merge, uint32_t rank, char *joined) {
  const char *left, *right;
  size_t left_size, right_size;
  int32_t merged = -1, left_id = -1, right_id = -1;
  if (parts_of_merge(merge, &left, &left_size, &right, &right_size) &&
      left_size + right_size <= r->t->longest) {
    memcpy(joined, left, left_size);
    memcpy(joined + left_size, right, right_size);
    merged = tokenizer_spelt(r->t, joined, left_size + right_size);
    left_id = tokenizer_spelt(r->t, left, left_size);
    right_id = tokenizer_spelt(r->t, right, right_size);
  }
  if (merged < 0 || left_id < 0 || right_id < 0)
    return err_set(r->e, ERR_FORMAT,
                   "tokenizer.json: merge %u is not two tokens that make a third: download it again", rank);
  bpe_add(r->t->merges, left_id, right_id, rank, merged);
  return ERR_OK;
}

static int read_merges(tokenizer_json *r, const json_t *merges) {
  const json_t *merge;
  size_t i, count = json_array_size(merges);
  int rc = ERR_OK;
  if (!json_is_array(merges)) return tokenizer_json_bad(r, "the model has no merges");
  if (count > MERGES_MAX) return err_set(r->e, ERR_LIMIT, "tokenizer.json: more than %d merges", MERGES_MAX);
  char *joined = malloc(r->t->longest + 1);
  if (!joined || bpe_alloc(&r->t->merges, (uint32_t)count))
    rc = err_set(r->e, ERR_NOMEM, "out of memory for the merges");
  for (i = 0; !rc && i < count; i++) {
    merge = json_array_get(merges, i);
    rc = read_merge(r, merge, (uint32_t)i, joined);
  }
  free(joined);
  return rc;
}

static int check_model(tokenizer_json *r, const json_t *model) {
  char text[PRINTABLE_TEXT_MAX];
  const json_t *type = json_object_get(model, "type");
  if (!json_is_object(model)) return tokenizer_json_bad(r, "no model");
  if (json_is_string(type) && !tokenizer_json_is_text(type, "BPE"))
    return err_set(r->e, ERR_UNSUPPORTED,
                   "tokenizer.json: the model '%s' is not supported; the one known is BPE: use another model",
                   printable_text(text, json_string_value(type), json_string_length(type)));
  if (!json_is_string(type) && !json_is_array(json_object_get(model, "merges")))
    return tokenizer_json_bad(r, "a model of no kind");
  if (!is_empty(json_object_get(model, "continuing_subword_prefix")) ||
      !is_empty(json_object_get(model, "end_of_word_suffix")))
    return tokenizer_json_unsupported(r, "a model with continuing_subword_prefix or end_of_word_suffix");
  const json_t *dropout = json_object_get(model, "dropout");
  return json_number_value(dropout) > 0 ? tokenizer_json_unsupported(r, "a model with dropout") : ERR_OK;
}

static int read_model(tokenizer_json *r, const json_t *model) {
  const json_t *unknown = json_object_get(model, "unk_token");
  int rc = tokenizer_prepare(r->t, r->e);
  if (rc) return rc;
  if (json_is_string(unknown))
    r->t->unknown = tokenizer_spelt(r->t, json_string_value(unknown), json_string_length(unknown));
  r->t->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
  r->t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
  return read_merges(r, json_object_get(model, "merges"));
}

/* ---- added tokens ---- */

static unsigned flags_of(const json_t *token) {
  static const struct {
    const char *key;
    unsigned flag;
  } rows[] = {{"special", ADDED_SPECIAL},
              {"lstrip", ADDED_LSTRIP},
              {"rstrip", ADDED_RSTRIP},
              {"single_word", ADDED_SINGLE_WORD}};
  unsigned flags = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (json_is_true(json_object_get(token, rows[i].key))) flags |= rows[i].flag;
  return flags;
}

/* One that is `normalized` is looked for in normalised text, and so is normalised itself. */
static int add_token(tokenizer_json *r, const json_t *token) {
  static const tokenizer_text_rule none = {0};
  const json_t *content = json_object_get(token, "content");
  json_int_t id = json_integer_value(json_object_get(token, "id"));
  unsigned flags = flags_of(token) | (tokenizer_is_special(r->t, (int32_t)id) ? ADDED_SPECIAL : 0);
  bool normal = tokenizer_json_bool_of(json_object_get(token, "normalized"), !(flags & ADDED_SPECIAL));
  const char *text;
  char *made;
  size_t size;
  int rc = tokenizer_text_rule_apply(normal ? &r->t->before : &none, json_string_value(content),
                                     json_string_length(content), true, &text, &size, &made);
  if (!rc && size > ADDED_TOKEN_BYTES_MAX)
    rc = err_set(r->e, ERR_LIMIT, "tokenizer.json: an added token is longer than %d bytes",
                 ADDED_TOKEN_BYTES_MAX);
  else if (!rc && size)
    rc = added_tokens_add(normal ? &r->t->normal : &r->t->raw, text, (uint32_t)size, (int32_t)id, flags);
  free(made);
  return rc == ERR_NOMEM ? err_set(r->e, rc, "out of memory for the added tokens") : rc;
}

static int read_added(tokenizer_json *r, const json_t *added) {
  const json_t *token;
  size_t i;
  json_array_foreach(added, i, token) {
    int rc = add_token(r, token);
    if (rc) return rc;
  }
  added_tokens_sort(&r->t->raw);
  added_tokens_sort(&r->t->normal);
  return ERR_OK;
}

/* ---- the whole ---- */

static int read_tokenizer(tokenizer_json *r, const json_t *root, int32_t size_min) {
  const json_t *model = json_object_get(root, "model");
  int rc = check_model(r, model);
  if (!rc) rc = vocabulary_read_json(&r->t->v, root, size_min, r->e);
  if (!rc) rc = tokenizer_json_part(r, "normalizer", json_object_get(root, "normalizer"));
  if (!rc) rc = tokenizer_json_part(r, "pre_tokenizer", json_object_get(root, "pre_tokenizer"));
  if (!rc && r->t->before.prefix && !r->t->before.escape)
    rc = tokenizer_json_unsupported(r, "a normalizer Prepend without Replace");
  if (!rc) rc = read_model(r, model);
  if (!rc) rc = read_added(r, json_object_get(root, "added_tokens"));
  if (!rc) rc = tokenizer_json_part(r, "post_processor", json_object_get(root, "post_processor"));
  return rc ? rc : tokenizer_json_part(r, "decoder", json_object_get(root, "decoder"));
}

/* ---- the files beside it ---- */

/* A token by its text, which is a string or {"content": string}; -1: none. */
static int32_t token_named(const tokenizer *t, const json_t *value) {
  if (json_is_object(value)) value = json_object_get(value, "content");
  return json_is_string(value) ? tokenizer_spelt(t, json_string_value(value), json_string_length(value)) : -1;
}

static int32_t token_numbered(const tokenizer *t, const json_t *value) {
  json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
  return id >= 0 && id < t->v.count ? (int32_t)id : -1;
}

/* One text, or a list of {"name", "template"} of which the one named default is meant. */
static const json_t *find_template(const json_t *value) {
  const json_t *row;
  size_t i;
  if (json_is_string(value)) return value;
  json_array_foreach(value, i, row) {
    if (tokenizer_json_is_text(json_object_get(row, "name"), "default"))
      return json_object_get(row, "template");
  }
  return NULL;
}

static int read_config(tokenizer_json *r, const json_t *config) {
  tokenizer *t = r->t;
  const json_t *template = find_template(json_object_get(config, "chat_template"));
  int32_t bos = token_named(t, json_object_get(config, "bos_token"));
  if (bos >= 0) t->bos = bos;
  t->eos = token_named(t, json_object_get(config, "eos_token"));
  t->adds_bos = tokenizer_json_bool_of(json_object_get(config, "add_bos_token"), t->adds_bos) && t->bos >= 0;
  if (t->template || !json_is_string(template)) return ERR_OK;
  return tokenizer_set_template(t, json_string_value(template), json_string_length(template), r->e);
}

static int read_generation(tokenizer_json *r, const json_t *generation) {
  tokenizer *t = r->t;
  const json_t *ends = json_object_get(generation, "eos_token_id"), *end;
  size_t i;
  if (t->bos < 0) t->bos = token_numbered(t, json_object_get(generation, "bos_token_id"));
  if (t->eos < 0) t->eos = token_numbered(t, json_is_array(ends) ? json_array_get(ends, 0) : ends);
  tokenizer_add_stop(t, t->eos);
  tokenizer_add_stop(t, token_numbered(t, ends));
  json_array_foreach(ends, i, end) tokenizer_add_stop(t, token_numbered(t, end));
  return ERR_OK;
}

typedef int file_read(tokenizer_json *r, const json_t *root);

static int read_beside(tokenizer_json *r, const char *name, const char *text, size_t size, file_read *read) {
  json_t *root = NULL;
  int rc = text ? json_parse_object(&root, name, text, size, r->e) : ERR_OK;
  if (!rc) rc = read(r, root);
  json_decref(root);
  return rc;
}

static int read_texts(tokenizer_json *r, const tokenizer_texts *x, int32_t size_min) {
  json_t *root;
  int rc = json_parse_object(&root, "tokenizer.json", x->tokenizer, x->tokenizer_size, r->e);
  if (!rc) rc = read_tokenizer(r, root, size_min);
  json_decref(root);
  if (!rc && x->chat_template)
    rc = tokenizer_set_template(r->t, x->chat_template, x->chat_template_size, r->e);
  if (!rc) rc = read_beside(r, "tokenizer_config.json", x->config, x->config_size, read_config);
  return rc ? rc
            : read_beside(r, "generation_config.json", x->generation, x->generation_size, read_generation);
}

int tokenizer_open_texts(tokenizer **out, const tokenizer_texts *texts, int32_t size_min, err *e) {
  tokenizer *t = calloc(1, sizeof *t);
  *out = NULL;
  if (!t || pre_tokenizer_alloc(&t->split)) {
    free(t);
    return err_set(e, ERR_NOMEM, "out of memory for the tokenizer");
  }
  t->unknown = t->eos = t->bos = -1;
  int rc = read_texts(&(tokenizer_json){.t = t, .e = e}, texts, size_min);
  if (rc)
    tokenizer_close(t);
  else
    *out = t;
  return rc;
}

/* ---- a folder ---- */

/* `path` with another name for its last part. */
static int path_beside(char out[PATH_BYTES_MAX], const char *path, const char *name, err *e) {
  const char *slash = strrchr(path, '/');
  int size = snprintf(out, PATH_BYTES_MAX, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, name);
  return size < PATH_BYTES_MAX ? ERR_OK : err_set(e, ERR_IO, "the path of %s is too long", name);
}

static int read_beside_file(const char *path, const char *name, char **text, size_t *size, err *e) {
  char beside[PATH_BYTES_MAX];
  int rc = path_beside(beside, path, name, e);
  return rc ? rc : json_read(beside, name, text, size, e);
}

int tokenizer_open_json(tokenizer **out, const char *path, int32_t size_min, err *e) {
  char *texts[4] = {NULL};
  tokenizer_texts x = {0};
  *out = NULL;
  int rc = json_read(path, "tokenizer.json", &texts[0], &x.tokenizer_size, e);
  if (!rc && !texts[0])
    rc = err_set(e, ERR_IO, "the model has no tokenizer.json: it can be asked by prompt_ids only");
  if (!rc) rc = read_beside_file(path, "tokenizer_config.json", &texts[1], &x.config_size, e);
  if (!rc) rc = read_beside_file(path, "generation_config.json", &texts[2], &x.generation_size, e);
  if (!rc) rc = read_beside_file(path, "chat_template.jinja", &texts[3], &x.chat_template_size, e);
  x.tokenizer = texts[0], x.config = texts[1], x.generation = texts[2], x.chat_template = texts[3];
  if (!rc) rc = tokenizer_open_texts(out, &x, size_min, e);
  for (int i = 0; i < 4; i++) free(texts[i]);
  return rc;
}
