#include "common/text/tokenizer_parts.h"

#include "common/base/utf8.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  MERGES_MAX = 1 << 21,
  PIECE_BYTES_MAX =
      1024, /* of one token of SentencePiece's: what makes it up is looked for at each of its characters */
  NAME_PRINT_BYTES = 40
};

static int bad_vocabulary(err *e, const char *why) {
  return err_set(e, ERR_FORMAT, "the model file's tokenizer %s: download or convert it again", why);
}

/* ---- byte-level: the file's merges ---- */

static int bad_merge(err *e, uint64_t i) {
  return err_set(
      e, ERR_FORMAT,
      "merge %llu of the model file's tokenizer is not two tokens that make a third: download or convert it "
      "again",
      (unsigned long long)i);
}

/* "left right": the alphabet has no blank of its own, so the only one parts them. */
static int read_merge(tokenizer *t, gguf_string s, uint64_t i, char *joined, err *e) {
  const char *blank = memchr(s.data, ' ', s.size);
  if (!blank) return bad_merge(e, i);
  size_t left_size = (size_t)(blank - s.data), right_size = s.size - left_size - 1;
  memcpy(joined, s.data, left_size);
  memcpy(joined + left_size, blank + 1, right_size);
  int32_t left = tokenizer_spelt(t, joined, left_size);
  int32_t right = tokenizer_spelt(t, joined + left_size, right_size);
  int32_t merged = tokenizer_spelt(t, joined, left_size + right_size);
  if (left < 0 || right < 0 || merged < 0) return bad_merge(e, i);
  bpe_add(t->merges, left, right, (uint32_t)i, merged);
  return ERR_OK;
}

static int read_merges(tokenizer *t, const gguf *g, err *e) {
  static const char key[] = "tokenizer.ggml.merges";
  uint64_t count, longest = 0;
  gguf_string s;
  if (!gguf_array_count(g, key, &count)) return bad_vocabulary(e, "has no merges");
  if (count > MERGES_MAX) return err_set(e, ERR_LIMIT, "the model has more than %d merges", MERGES_MAX);
  for (uint64_t i = 0; i < count; i++) {
    if (!gguf_array_string(g, key, i, &s)) return bad_vocabulary(e, "has merges that are no strings");
    if (s.size > longest) longest = s.size;
  }
  char *joined = malloc(longest + 1);
  int rc = joined ? bpe_alloc(&t->merges, (uint32_t)count) : ERR_NOMEM;
  if (rc) err_set(e, rc, "out of memory for the merges");
  for (uint64_t i = 0; !rc && i < count; i++) {
    gguf_array_string(g, key, i, &s);
    rc = read_merge(t, s, i, joined, e);
  }
  free(joined);
  return rc;
}

static int read_bytes(tokenizer *t, const gguf *g, err *e) {
  gguf_string name;
  unsigned options;
  if (!gguf_get_string(g, "tokenizer.ggml.pre", &name))
    return bad_vocabulary(e, "does not say how it splits text");
  int rc = pre_tokenizer_add_named(t->split, name.data, name.size, &options, e);
  t->bytes = true;
  t->before.nfc = options & PRE_TOKENIZER_NFC;
  t->ignore_merges = options & PRE_TOKENIZER_IGNORE_MERGES;
  t->adds_bos = options & PRE_TOKENIZER_ADDS_BOS;
  if (!rc) rc = tokenizer_prepare(t, e);
  return rc ? rc : read_merges(t, g, e);
}

/* ---- SentencePiece's: any two neighbours merge that together are a token, that of the highest score first.
 * A character that is no token may still be part of one, so it has a symbol of its own ---- */

typedef struct scored {
  float score;
  int32_t id;
} scored;

static int by_score(const void *a, const void *b) {
  const scored *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? 1 : -1;
  return (x->id > y->id) - (x->id < y->id);
}

/* ranks[id]: of tokens by falling score, equal ones together. */
static int rank_tokens(const tokenizer *t, const gguf *g, uint32_t *ranks, scored *list, err *e) {
  static const char key[] = "tokenizer.ggml.scores";
  uint64_t count;
  if (!gguf_array_count(g, key, &count) || count != (uint64_t)t->v.count)
    return bad_vocabulary(e, "has not one score for each token");
  for (int32_t id = 0; id < t->v.count; id++) {
    double score;
    if (!gguf_array_f64(g, key, (uint64_t)id, &score) || isnan(score))
      return bad_vocabulary(e, "has a score that is no number");
    list[id] = (scored){(float)score, id};
  }
  qsort(list, (size_t)t->v.count, sizeof *list, by_score);
  for (int32_t i = 0; i < t->v.count; i++)
    ranks[list[i].id] = i && list[i].score == list[i - 1].score ? ranks[list[i - 1].id] : (uint32_t)i;
  return ERR_OK;
}

/* The ways to make token `id` of two; adds them when there is a table. Returns how many. */
static size_t add_pairs(const tokenizer *t, int32_t id, uint32_t rank, bpe *merges) {
  size_t size, length, pairs = 0;
  uint32_t code;
  const char *text = vocabulary_spelling(&t->v, id, &size);
  if (t->v.kinds[id] != TOKEN_NORMAL && t->v.kinds[id] != TOKEN_USER) return 0;
  for (size_t at = 0; at < size; at += length) {
    utf8_next((const uint8_t *)text + at, size - at, &length, &code);
    if (at == 0) continue;
    int32_t left = tokenizer_part(t, text, at), right = tokenizer_part(t, text + at, size - at);
    if (left < 0 || right < 0) continue;
    if (merges) bpe_add(merges, left, right, rank, id);
    pairs++;
  }
  return pairs;
}

static int make_merges(tokenizer *t, const uint32_t *ranks, err *e) {
  size_t pairs = 0;
  for (int32_t id = 0; id < t->v.count; id++) {
    size_t size;
    vocabulary_spelling(&t->v, id, &size);
    if (size > PIECE_BYTES_MAX)
      return err_set(e, ERR_LIMIT, "token %d of the model is longer than %d bytes", id, PIECE_BYTES_MAX);
    pairs += add_pairs(t, id, 0, NULL);
  }
  if (pairs > UINT32_MAX / 2 || bpe_alloc(&t->merges, (uint32_t)pairs))
    return err_set(e, ERR_NOMEM, "out of memory for the merges");
  for (int32_t id = 0; id < t->v.count; id++) add_pairs(t, id, ranks[id], t->merges);
  return ERR_OK;
}

static int read_scores(tokenizer *t, const gguf *g, err *e) {
  size_t count = (size_t)t->v.count;
  uint32_t *ranks = malloc(count * sizeof *ranks);
  scored *list = malloc(count * sizeof *list);
  int rc = ranks && list ? rank_tokens(t, g, ranks, list, e)
                         : err_set(e, ERR_NOMEM, "out of memory for the merges");
  if (!rc) rc = make_merges(t, ranks, e);
  free(ranks);
  free(list);
  return rc;
}

/* What is outside the vocabulary, as -1 or 2^32 - 1, is how some files say that there is none. */
static void read_id(tokenizer *t, const gguf *g, const char *key, int32_t *out) {
  int64_t id;
  *out = -1;
  if (!gguf_get_i64(g, key, &id)) return;
  if (id >= 0 && id < t->v.count)
    *out = (int32_t)id;
  else if (!t->doubt[0])
    snprintf(t->doubt, sizeof t->doubt, "the model file's %s is %lld, which is no token: it counts as none",
             key, (long long)id);
}

static int read_characters(tokenizer *t, const gguf *g, err *e) {
  bool prefix = true;
  gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &prefix);
  t->strips_blank = prefix;
  t->before = (tokenizer_text_rule){.prefix = prefix ? PREFIX_ALWAYS : PREFIX_NONE, .escape = true};
  t->adds_bos = true;
  t->fuse_unknown = true;
  int rc = tokenizer_prepare(t, e);
  if (rc) return rc;
  read_id(t, g, "tokenizer.ggml.unknown_token_id", &t->unknown);
  for (int32_t id = t->v.count - 1; t->unknown < 0 && id >= 0; id--)
    if (t->v.kinds[id] == TOKEN_UNKNOWN) t->unknown = id;
  return read_scores(t, g, e);
}

/* ---- both ---- */

typedef struct model_kind {
  const char *name;
  int (*read)(tokenizer *t, const gguf *g, err *e);
} model_kind;

static const model_kind MODELS[] = {{"gpt2", read_bytes}, {"llama", read_characters}};

static int read_model(tokenizer *t, const gguf *g, err *e) {
  gguf_string name;
  if (!gguf_get_string(g, "tokenizer.ggml.model", &name)) return bad_vocabulary(e, "does not say its kind");
  for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++)
    if (name.size == strlen(MODELS[i].name) && memcmp(name.data, MODELS[i].name, name.size) == 0)
      return MODELS[i].read(t, g, e);
  int size = name.size < NAME_PRINT_BYTES ? (int)name.size : NAME_PRINT_BYTES;
  for (int i = 0; i < size; i++)
    if (name.data[i] < ' ' || name.data[i] > '~') size = 0;
  return err_set(e, ERR_UNSUPPORTED,
                 "the model's tokenizer (tokenizer.ggml.model) is '%.*s'; those known are gpt2 and llama: "
                 "use another model",
                 size, name.data);
}

static int collect_added(tokenizer *t, err *e) {
  for (int32_t id = 0; id < t->v.count; id++) {
    size_t size;
    const char *text = vocabulary_spelling(&t->v, id, &size);
    bool special = tokenizer_is_special(t, id);
    if ((!special && t->v.kinds[id] != TOKEN_USER) || size == 0) continue;
    if (size > ADDED_TOKEN_BYTES_MAX)
      return err_set(e, ERR_LIMIT, "special token %d of the model is longer than %d bytes", id,
                     ADDED_TOKEN_BYTES_MAX);
    if (added_tokens_add(&t->raw, text, (uint32_t)size, id, special ? ADDED_SPECIAL : 0))
      return err_set(e, ERR_NOMEM, "out of memory for the special tokens");
  }
  added_tokens_sort(&t->raw);
  added_tokens_sort(&t->normal);
  return ERR_OK;
}

/* The end of the text, and the end of a turn where that is another token. */
static void read_ends(tokenizer *t, const gguf *g) {
  static const char *const more[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  int32_t id;
  read_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos);
  read_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos);
  tokenizer_add_stop(t, t->eos);
  for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
    read_id(t, g, more[i], &id);
    tokenizer_add_stop(t, id);
  }
  gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &t->adds_bos);
}

static int read_all(tokenizer *t, const gguf *g, err *e) {
  gguf_string template;
  t->unknown = -1;
  if (pre_tokenizer_alloc(&t->split)) return err_set(e, ERR_NOMEM, "out of memory for the tokenizer");
  int rc = vocabulary_read_gguf(&t->v, g, e);
  if (!rc) rc = read_model(t, g, e);
  if (!rc) rc = collect_added(t, e);
  if (!rc) read_ends(t, g);
  if (!rc && gguf_get_string(g, "tokenizer.chat_template", &template))
    rc = tokenizer_set_template(t, template.data, template.size, e);
  return rc ? rc : gguf_check_read(g, e);
}

int tokenizer_open(tokenizer **out, const gguf *g, err *e) {
  tokenizer *t = calloc(1, sizeof *t);
  *out = NULL;
  if (!t) return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  int rc = read_all(t, g, e);
  if (rc)
    tokenizer_close(t);
  else
    *out = t;
  return rc;
}
