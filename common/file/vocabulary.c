#include "common/file/vocabulary.h"

#include <stdlib.h>
#include <string.h>

static const char tokens_key[] = "tokenizer.ggml.tokens";
static const char kinds_key[] = "tokenizer.ggml.token_type";

static int bad_vocabulary(err *e, const char *why) {
  return err_set(e, ERR_FORMAT, "the model file's vocabulary %s: download or convert it again", why);
}

const char *vocabulary_spelling(const vocabulary *v, int32_t id, size_t *size) {
  size_t begin = id ? v->ends[id - 1] : 0;
  *size = v->ends[id] - begin;
  return v->spellings + begin;
}

void vocabulary_fini(vocabulary *v) {
  free(v->spellings);
  free(v->ends);
  free(v->kinds);
  *v = (vocabulary){0};
}

static int count_tokens(const gguf *g, uint64_t *count, size_t *bytes, err *e) {
  gguf_string s;
  uint64_t kinds;
  *count = 0;
  *bytes = 0;
  if (!gguf_array_count(g, tokens_key, count)) return ERR_OK;
  if (*count > VOCABULARY_MAX)
    return err_set(e, ERR_LIMIT, "the model has more than %d tokens", VOCABULARY_MAX);
  for (uint64_t i = 0; i < *count; i++) {
    if (!gguf_array_string(g, tokens_key, i, &s)) return bad_vocabulary(e, "has tokens that are no strings");
    *bytes += s.size;
  }
  if (gguf_has(g, kinds_key) && (!gguf_array_count(g, kinds_key, &kinds) || kinds != *count))
    return bad_vocabulary(e, "has not one kind for each token");
  return ERR_OK;
}

static int copy_tokens(vocabulary *v, const gguf *g, err *e) {
  size_t at = 0;
  for (int32_t id = 0; id < v->count; id++) {
    gguf_string s;
    int64_t kind = TOKEN_NORMAL;
    gguf_array_string(g, tokens_key, (uint64_t)id, &s);
    memcpy(v->spellings + at, s.data, s.size);
    v->ends[id] = at += s.size;
    if (gguf_has(g, kinds_key) &&
        (!gguf_array_i64(g, kinds_key, (uint64_t)id, &kind) || kind < TOKEN_NORMAL || kind >= TOKEN_KIND_END))
      return bad_vocabulary(e, "has a token of a kind that does not exist");
    v->kinds[id] = (uint8_t)kind;
  }
  return ERR_OK;
}

int vocabulary_read_gguf(vocabulary *v, const gguf *g, err *e) {
  uint64_t count;
  size_t bytes;
  *v = (vocabulary){0};
  int rc = count_tokens(g, &count, &bytes, e);
  if (rc || count == 0) return rc;
  *v = (vocabulary){(int32_t)count, malloc(bytes + 1), malloc(count * sizeof *v->ends), malloc(count)};
  rc = v->spellings && v->ends && v->kinds ? copy_tokens(v, g, e)
                                           : err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  if (rc) vocabulary_fini(v);
  return rc;
}

int vocabulary_hash(const vocabulary *v, hash16 *out, err *e) {
  *out = (hash16){{0}};
  if (v->count == 0) return ERR_OK;
  hash_stream *h = hash_stream_alloc();
  if (!h) return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  for (int32_t id = 0; id < v->count; id++) {
    size_t size;
    const char *text = vocabulary_spelling(v, id, &size);
    uint8_t head[5] = {(uint8_t)size, (uint8_t)(size >> 8), (uint8_t)(size >> 16), (uint8_t)(size >> 24),
                       v->kinds[id]};
    hash_stream_add(h, head, sizeof head);
    hash_stream_add(h, text, size);
  }
  *out = hash_stream_end(h);
  return ERR_OK;
}

int vocabulary_hash_gguf(const gguf *g, hash16 *out, err *e) {
  vocabulary v;
  *out = (hash16){{0}};
  int rc = vocabulary_read_gguf(&v, g, e);
  if (rc) return rc;
  rc = vocabulary_hash(&v, out, e);
  vocabulary_fini(&v);
  return rc;
}
