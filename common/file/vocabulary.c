#include "common/file/vocabulary.h"

static const char tokens_key[] = "tokenizer.ggml.tokens";
static const char kinds_key[] = "tokenizer.ggml.token_type";

#define KIND_NORMAL 1
#define KIND_MAX    255

static int bad_vocabulary(err *e, const char *why) {
  return err_set(e, ERR_FORMAT, "the model file's vocabulary %s: download or convert it again", why);
}

static int check_kinds(const gguf *g, uint64_t count, err *e) {
  uint64_t kinds;
  if (!gguf_has(g, kinds_key)) return ERR_OK;
  if (!gguf_array_count(g, kinds_key, &kinds) || kinds != count)
    return bad_vocabulary(e, "has not one kind for each token");
  return ERR_OK;
}

static int add_token(hash_stream *h, const gguf *g, uint64_t id, err *e) {
  gguf_string s;
  int64_t kind = KIND_NORMAL;
  if (!gguf_array_string(g, tokens_key, id, &s)) return bad_vocabulary(e, "has tokens that are no strings");
  if (gguf_has(g, kinds_key) && (!gguf_array_i64(g, kinds_key, id, &kind) || kind < 0 || kind > KIND_MAX))
    return bad_vocabulary(e, "has a token of a kind that does not exist");
  uint8_t head[5] = {(uint8_t)s.size, (uint8_t)(s.size >> 8), (uint8_t)(s.size >> 16),
                     (uint8_t)(s.size >> 24), (uint8_t)kind};
  hash_stream_add(h, head, sizeof head);
  hash_stream_add(h, s.data, s.size);
  return ERR_OK;
}

int gguf_vocabulary_hash(const gguf *g, hash16 *out, err *e) {
  uint64_t count = 0;
  *out = (hash16){{0}};
  if (!gguf_array_count(g, tokens_key, &count) || count == 0) return ERR_OK;
  int rc = check_kinds(g, count, e);
  if (rc != ERR_OK) return rc;
  hash_stream *h = hash_stream_alloc();
  if (!h) return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  for (uint64_t id = 0; rc == ERR_OK && id < count; id++) rc = add_token(h, g, id, e);
  hash16 hash = hash_stream_end(h);
  if (rc == ERR_OK) *out = hash;
  return rc;
}
