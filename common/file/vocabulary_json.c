#include "common/file/json.h"
#include "common/file/vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAD_BYTES_MAX = 24 };

typedef struct reading {
  const json_t *vocab, *added;
  const char *unknown;  /* spelling of the unknown token, or NULL */
  bool bytes;           /* <0xNN> is a byte */
  const json_t **texts; /* [count] strings; NULL: no token has this id */
  uint8_t *kinds;
  int32_t count;
} reading;

static int bad_vocabulary(err *e, const char *why) {
  return err_set(e, ERR_FORMAT, "tokenizer.json: %s: download it again", why);
}

static int see_id(const json_t *id, int32_t *count, err *e) {
  json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
  if (n < 0) return bad_vocabulary(e, "a token has no whole number for an id");
  if (n >= VOCABULARY_MAX)
    return err_set(e, ERR_LIMIT, "tokenizer.json: more than %d tokens", VOCABULARY_MAX);
  if (n >= *count) *count = (int32_t)n + 1;
  return ERR_OK;
}

static int count_tokens(reading *r, int32_t size_min, err *e) {
  const char *key;
  const json_t *value;
  size_t i;
  r->count = size_min;
  json_object_foreach((json_t *)r->vocab, key, value) {
    int rc = see_id(value, &r->count, e);
    if (rc) return rc;
  }
  json_array_foreach(r->added, i, value) {
    if (!json_is_string(json_object_get(value, "content")))
      return bad_vocabulary(e, "an added token has no content");
    int rc = see_id(json_object_get(value, "id"), &r->count, e);
    if (rc) return rc;
  }
  return r->count ? ERR_OK : bad_vocabulary(e, "no tokens");
}

static bool is_byte(const char *text, size_t size) {
  return size == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>' &&
         strspn(text + 3, "0123456789ABCDEFabcdef") == 2;
}

/* The keys of an object are no values, so each gets one. */
static int put_vocab(reading *r, json_t *owner, err *e) {
  const char *key;
  json_t *value;
  size_t size;
  json_object_keylen_foreach((json_t *)r->vocab, key, size, value) {
    json_int_t id = json_integer_value(value);
    json_t *text = json_stringn(key, size);
    if (!text || json_array_append_new(owner, text))
      return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
    if (r->texts[id]) return bad_vocabulary(e, "two tokens have one id");
    r->texts[id] = text;
    r->kinds[id] = r->unknown && strcmp(r->unknown, key) == 0 ? TOKEN_UNKNOWN
                   : r->bytes && is_byte(key, size)           ? TOKEN_BYTE
                                                              : TOKEN_NORMAL;
  }
  return ERR_OK;
}

static int place_added(reading *r, err *e) {
  const json_t *token;
  size_t i;
  json_array_foreach(r->added, i, token) {
    json_int_t id = json_integer_value(json_object_get(token, "id"));
    const json_t *text = json_object_get(token, "content");
    if (r->texts[id] && !json_equal(r->texts[id], text)) return bad_vocabulary(e, "two tokens have one id");
    r->texts[id] = text;
    if (r->kinds[id] == TOKEN_UNKNOWN) continue;
    r->kinds[id] = json_is_true(json_object_get(token, "special")) ? TOKEN_CONTROL : TOKEN_USER;
  }
  return ERR_OK;
}

/* Writes token `id` to `out` (NULL: only its size counts). */
static size_t spell(const reading *r, int32_t id, char *out) {
  char pad[PAD_BYTES_MAX];
  const char *text = pad;
  size_t size;
  if (r->texts[id]) {
    text = json_string_value(r->texts[id]);
    size = json_string_length(r->texts[id]);
  } else {
    size = (size_t)snprintf(pad, sizeof pad, "[PAD%d]", id);
  }
  if (out) memcpy(out, text, size);
  return size;
}

static int copy_tokens(vocabulary *v, const reading *r, err *e) {
  size_t bytes = 0, n = (size_t)r->count;
  for (int32_t id = 0; id < r->count; id++) bytes += spell(r, id, NULL);
  *v = (vocabulary){r->count, malloc(bytes + 1), malloc(n * sizeof *v->ends), malloc(n)};
  if (!v->spellings || !v->ends || !v->kinds) {
    vocabulary_fini(v);
    return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  }
  size_t at = 0;
  for (int32_t id = 0; id < r->count; id++) {
    v->ends[id] = at += spell(r, id, v->spellings + at);
    v->kinds[id] = r->texts[id] ? r->kinds[id] : TOKEN_UNUSED;
  }
  return ERR_OK;
}

int vocabulary_read_json(vocabulary *v, const json_t *root, int32_t size_min, err *e) {
  const json_t *model = json_object_get(root, "model");
  reading r = {.vocab = json_object_get(model, "vocab"),
               .added = json_object_get(root, "added_tokens"),
               .bytes = json_is_true(json_object_get(model, "byte_fallback"))};
  if (r.bytes) r.unknown = json_string_value(json_object_get(model, "unk_token")); /* as converters mark it */
  *v = (vocabulary){0};
  if (!json_is_object(r.vocab)) return bad_vocabulary(e, "model.vocab is no object");
  int rc = count_tokens(&r, size_min, e);
  if (rc) return rc;
  json_t *owner = json_array();
  r.texts = calloc((size_t)r.count, sizeof *r.texts);
  r.kinds = calloc((size_t)r.count, 1);
  rc = owner && r.texts && r.kinds ? put_vocab(&r, owner, e)
                                   : err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  if (!rc) rc = place_added(&r, e);
  if (!rc) rc = copy_tokens(v, &r, e);
  json_decref(owner);
  free(r.texts);
  free(r.kinds);
  return rc;
}

int vocabulary_read_path(vocabulary *v, const char *path, int32_t size_min, err *e) {
  static const char name[] = "tokenizer.json";
  char *text;
  size_t size;
  json_t *root = NULL;
  *v = (vocabulary){0};
  int rc = json_read(path, name, &text, &size, e);
  if (!rc && !text) rc = err_set(e, ERR_IO, "the model has no tokenizer.json");
  if (!rc) rc = json_parse_object(&root, name, text, size, e);
  free(text);
  if (!rc) rc = vocabulary_read_json(v, root, size_min, e);
  json_decref(root);
  return rc;
}

int vocabulary_hash_json(const char *path, int32_t size_min, hash16 *out, err *e) {
  vocabulary v;
  *out = (hash16){{0}};
  int rc = vocabulary_read_path(&v, path, size_min, e);
  if (!rc) rc = vocabulary_hash(&v, out, e);
  vocabulary_fini(&v);
  return rc;
}
