#include "common/text/tokenizer.h"

#include "common/file/vocabulary.h"
#include "common/text/bpe.h"
#include "common/text/special_set.h"
#include "common/text/utf8.h"
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
  VOCAB_MAX = 1 << 20,
  MERGES_MAX = 1 << 21,
  ALPHABET_CODES = 324, /* code points of the byte alphabet are below this */
  PIECE_IDS_MIN = 256   /* ids that a list first has room for */
};

/* Token kinds of tokenizer.ggml.token_type. */
enum { KIND_NORMAL = 1, KIND_UNKNOWN, KIND_CONTROL, KIND_USER, KIND_UNUSED, KIND_BYTE, KIND_END };

/* Every digit alone, then GPT-2's pattern on the stretches between, as one pattern: GPT-2's numbers never
 * occur in a stretch, and its end-of-text in the lookahead is here a digit as well as the end. The
 * alternatives cover every character, so that a match stands at every position. Whitespace is the Unicode
 * property, spelt out because PCRE2's \s has U+180E too. Possessive wherever nothing could come of going
 * back. */
#define SPACE "\\x{09}-\\x{0d}\\x{85}\\p{Z}"
static const char SPLIT[] = "'s|'t|'re|'ve|'m|'ll|'d"
                            "| ?+\\p{L}++"
                            "| ?+[^" SPACE "\\p{L}\\p{N}]++"
                            "|\\p{N}"
                            "|[" SPACE "]+(?![^" SPACE "\\p{N}])"
                            "|[" SPACE "]++";

struct tokenizer {
  int32_t count;
  char *spellings, *pieces;           /* of all tokens, one after the other */
  size_t *spelling_ends, *piece_ends; /* [count] */
  uint8_t *kinds;                     /* [count] */
  int32_t byte_ids[256];              /* -1: no token */
  bpe *merges;
  special_set specials;
  pcre2_code *split;
  int32_t eos, bos;
  bool adds_bos;
  hash16 hash;
};

/* ---- the byte alphabet: each byte is spelt as one printable character ---- */

static bool byte_is_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Bytes that are no printable Latin-1 character are U+0100 and on, in order. */
static void alphabet_fill(int16_t byte_of[ALPHABET_CODES], uint16_t code_of[256]) {
  int next = 256;
  for (int i = 0; i < ALPHABET_CODES; i++) byte_of[i] = -1;
  for (int byte = 0; byte < 256; byte++) {
    code_of[byte] = (uint16_t)(byte_is_itself(byte) ? byte : next++);
    byte_of[code_of[byte]] = (int16_t)byte;
  }
}

/* A spelling's bytes into out[size]; a spelling with a character outside the alphabet stands for itself. */
static size_t decode_spelling(const int16_t byte_of[ALPHABET_CODES], const char *spelling, size_t size,
                              char *out) {
  size_t count = 0, length;
  for (size_t i = 0; i < size; i += length) {
    uint32_t code;
    utf8_next((const uint8_t *)spelling + i, size - i, &length, &code);
    if (code >= ALPHABET_CODES || byte_of[code] < 0) {
      memcpy(out, spelling, size);
      return size;
    }
    out[count++] = (char)byte_of[code];
  }
  return count;
}

/* ---- a table from spelling to id; only while opening ---- */

typedef struct spelling_index {
  const tokenizer *t;
  int32_t *ids; /* [mask + 1], -1: empty */
  size_t mask;
} spelling_index;

static size_t spelling_slot(const spelling_index *x, const char *text, size_t size) {
  hash16 h = hash_bytes(text, size);
  size_t i;
  memcpy(&i, h.bytes, sizeof i);
  for (i &= x->mask; x->ids[i] >= 0; i = (i + 1) & x->mask) {
    size_t other_size;
    const char *other = tokenizer_spelling(x->t, x->ids[i], &other_size);
    if (other_size == size && memcmp(other, text, size) == 0) break;
  }
  return i;
}

static int32_t spelling_find(const spelling_index *x, const char *text, size_t size) {
  return x->ids[spelling_slot(x, text, size)];
}

/* Of equal spellings the lowest id counts. */
static int spelling_index_init(spelling_index *x, const tokenizer *t, err *e) {
  size_t slots = 16;
  while (slots < 2 * (size_t)t->count) slots *= 2;
  *x = (spelling_index){t, malloc(slots * sizeof *x->ids), slots - 1};
  if (!x->ids) return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  memset(x->ids, 0xff, slots * sizeof *x->ids);
  for (int32_t id = 0; id < t->count; id++) {
    size_t size;
    const char *text = tokenizer_spelling(t, id, &size);
    size_t i = spelling_slot(x, text, size);
    if (x->ids[i] < 0) x->ids[i] = id;
  }
  return ERR_OK;
}

/* ---- opening: the vocabulary ---- */

static int bad_vocabulary(err *e, const char *why) {
  return err_set(e, ERR_FORMAT, "the model file's tokenizer %s: download or convert it again", why);
}

static int check_name(const gguf *g, const char *key, const char *supported, err *e) {
  gguf_string name;
  if (!gguf_get_string(g, key, &name)) return bad_vocabulary(e, "does not say its kind");
  if (name.size == strlen(supported) && memcmp(name.data, supported, name.size) == 0) return ERR_OK;
  int size = name.size < 40 ? (int)name.size : 40;
  if (utf8_valid(name.data, (size_t)size) != (size_t)size || memchr(name.data, '\n', (size_t)size)) size = 0;
  return err_set(e, ERR_UNSUPPORTED, "the model's %s is '%.*s'; only '%s' is built here: use another model",
                 key, size, name.data, supported);
}

static int read_spellings(tokenizer *t, const gguf *g, err *e) {
  static const char key[] = "tokenizer.ggml.tokens";
  uint64_t count = 0;
  gguf_string s;
  size_t total = 0;
  if (!gguf_array_count(g, key, &count) || count == 0) return bad_vocabulary(e, "has no tokens");
  if (count > VOCAB_MAX) return err_set(e, ERR_LIMIT, "the model has more than %d tokens", VOCAB_MAX);
  for (uint64_t i = 0; i < count; i++) {
    if (!gguf_array_string(g, key, i, &s)) return bad_vocabulary(e, "has tokens that are no strings");
    if (utf8_valid(s.data, s.size) != s.size) return bad_vocabulary(e, "has a token that is not UTF-8");
    total += s.size;
  }
  t->count = (int32_t)count;
  t->spellings = malloc(total + 1);
  t->pieces = malloc(total + 1); /* a piece is never longer than its spelling */
  t->spelling_ends = malloc(count * sizeof(size_t));
  t->piece_ends = malloc(count * sizeof(size_t));
  t->kinds = malloc(count);
  if (!t->spellings || !t->pieces || !t->spelling_ends || !t->piece_ends || !t->kinds)
    return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  for (uint64_t i = 0, at = 0; i < count; i++) {
    gguf_array_string(g, key, i, &s);
    memcpy(t->spellings + at, s.data, s.size);
    t->spelling_ends[i] = at += s.size;
  }
  return ERR_OK;
}

static int read_kinds(tokenizer *t, const gguf *g, err *e) {
  static const char key[] = "tokenizer.ggml.token_type";
  uint64_t count;
  memset(t->kinds, KIND_NORMAL, (size_t)t->count);
  if (!gguf_has(g, key)) return ERR_OK;
  if (!gguf_array_count(g, key, &count) || count != (uint64_t)t->count)
    return bad_vocabulary(e, "has not one kind for each token");
  for (uint64_t i = 0; i < count; i++) {
    int64_t kind;
    if (!gguf_array_i64(g, key, i, &kind) || kind < KIND_NORMAL || kind >= KIND_END)
      return bad_vocabulary(e, "has a token of a kind that does not exist");
    t->kinds[i] = (uint8_t)kind;
  }
  return ERR_OK;
}

static void fill_pieces(tokenizer *t, const int16_t byte_of[ALPHABET_CODES]) {
  size_t at = 0;
  for (int32_t id = 0; id < t->count; id++) {
    size_t size;
    const char *spelling = tokenizer_spelling(t, id, &size);
    if (t->kinds[id] == KIND_NORMAL) {
      size = decode_spelling(byte_of, spelling, size, t->pieces + at);
    } else {
      memcpy(t->pieces + at, spelling, size);
    }
    t->piece_ends[id] = at += size;
  }
}

static int collect_specials(tokenizer *t, err *e) {
  for (int32_t id = 0; id < t->count; id++) {
    size_t size;
    const char *text = tokenizer_spelling(t, id, &size);
    if (!tokenizer_is_special(t, id) || size == 0) continue;
    if (size > SPECIAL_BYTES_MAX)
      return err_set(e, ERR_LIMIT, "special token %d of the model is longer than %d bytes", id,
                     SPECIAL_BYTES_MAX);
    if (special_set_add(&t->specials, text, (uint32_t)size, id))
      return err_set(e, ERR_NOMEM, "out of memory for the special tokens");
  }
  special_set_sort(&t->specials);
  return ERR_OK;
}

static int read_id(const tokenizer *t, const gguf *g, const char *key, int32_t *out, err *e) {
  uint64_t id;
  *out = -1;
  if (!gguf_has(g, key)) return ERR_OK;
  if (!gguf_get_u64(g, key, &id) || id >= (uint64_t)t->count)
    return bad_vocabulary(e, "names a beginning or end token outside its vocabulary");
  *out = (int32_t)id;
  return ERR_OK;
}

/* ---- opening: bytes, merges, the splitter ---- */

static void find_byte_tokens(tokenizer *t, const spelling_index *x, const uint16_t code_of[256]) {
  for (int byte = 0; byte < 256; byte++) {
    unsigned code = code_of[byte];
    char text[2] = {(char)code, 0};
    size_t size = 1;
    if (code >= 0x80) {
      text[0] = (char)(0xc0 | code >> 6);
      text[1] = (char)(0x80 | (code & 0x3f));
      size = 2;
    }
    t->byte_ids[byte] = spelling_find(x, text, size);
  }
}

static int bad_merge(err *e, uint64_t i) {
  return err_set(
      e, ERR_FORMAT,
      "merge %llu of the model file's tokenizer is not two tokens that make a third: download or convert "
      "it again",
      (unsigned long long)i);
}

/* "left right": the alphabet has no blank of its own, so the only one parts them. */
static int read_merge(tokenizer *t, const spelling_index *x, gguf_string s, uint64_t i, char *joined,
                      err *e) {
  const char *blank = memchr(s.data, ' ', s.size);
  if (!blank) return bad_merge(e, i);
  size_t left_size = (size_t)(blank - s.data), right_size = s.size - left_size - 1;
  memcpy(joined, s.data, left_size);
  memcpy(joined + left_size, blank + 1, right_size);
  int32_t left = spelling_find(x, joined, left_size);
  int32_t right = spelling_find(x, joined + left_size, right_size);
  int32_t merged = spelling_find(x, joined, left_size + right_size);
  if (left < 0 || right < 0 || merged < 0) return bad_merge(e, i);
  bpe_add(t->merges, left, right, merged);
  return ERR_OK;
}

static int read_merges(tokenizer *t, const spelling_index *x, const gguf *g, err *e) {
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
    rc = read_merge(t, x, s, i, joined, e);
  }
  free(joined);
  return rc;
}

static int compile_split(tokenizer *t, err *e) {
  int code;
  PCRE2_SIZE at;
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NO_AUTO_CAPTURE;
  t->split = pcre2_compile((PCRE2_SPTR)SPLIT, sizeof SPLIT - 1, options, &code, &at, NULL);
  if (!t->split)
    return err_set(e, ERR_INTERNAL,
                   "PCRE2 refuses the pre-tokenizer's pattern (error %d at %zu): is it built with "
                   "Unicode?",
                   code, (size_t)at);
  pcre2_jit_compile(t->split, PCRE2_JIT_COMPLETE); /* without JIT it is slower, not other */
  return ERR_OK;
}

static int read_vocabulary(tokenizer *t, const gguf *g, const int16_t byte_of[ALPHABET_CODES], err *e) {
  int rc = check_name(g, "tokenizer.ggml.model", "gpt2", e);
  if (!rc) rc = check_name(g, "tokenizer.ggml.pre", "smollm", e);
  if (!rc) rc = read_spellings(t, g, e);
  if (!rc) rc = read_kinds(t, g, e);
  if (rc) return rc;
  fill_pieces(t, byte_of);
  rc = collect_specials(t, e);
  if (!rc) rc = read_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, e);
  if (!rc) rc = read_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, e);
  if (!rc) rc = gguf_vocabulary_hash(g, &t->hash, e);
  gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &t->adds_bos);
  return rc;
}

static int read_all(tokenizer *t, const gguf *g, err *e) {
  int16_t byte_of[ALPHABET_CODES];
  uint16_t code_of[256];
  spelling_index x = {0};
  alphabet_fill(byte_of, code_of);
  int rc = read_vocabulary(t, g, byte_of, e);
  if (!rc) rc = spelling_index_init(&x, t, e);
  if (!rc) {
    find_byte_tokens(t, &x, code_of);
    rc = read_merges(t, &x, g, e);
  }
  free(x.ids);
  return rc ? rc : compile_split(t, e);
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

void tokenizer_close(tokenizer *t) {
  if (!t) return;
  free(t->spellings);
  free(t->pieces);
  free(t->spelling_ends);
  free(t->piece_ends);
  free(t->kinds);
  bpe_free(t->merges);
  special_set_fini(&t->specials);
  pcre2_code_free(t->split);
  free(t);
}

/* ---- encoding ---- */

void tokenizer_ids_fini(tokenizer_ids *ids) {
  free(ids->ids);
  *ids = (tokenizer_ids){0};
}

static int ids_reserve(tokenizer_ids *out, size_t more) {
  if (more <= out->capacity - out->count) return ERR_OK;
  size_t capacity = out->capacity ? 2 * out->capacity : PIECE_IDS_MIN;
  if (capacity < out->count + more) capacity = out->count + more;
  int32_t *ids = realloc(out->ids, capacity * sizeof *ids);
  if (!ids) return ERR_NOMEM;
  out->ids = ids;
  out->capacity = capacity;
  return ERR_OK;
}

int tokenizer_ids_add(tokenizer_ids *ids, int32_t id) {
  if (ids_reserve(ids, 1)) return ERR_NOMEM;
  ids->ids[ids->count++] = id;
  return ERR_OK;
}

typedef struct encoder { /* one call of tokenizer_encode */
  const tokenizer *t;
  tokenizer_ids *out;
  pcre2_match_data *match;
  bpe_scratch scratch;
} encoder;

/* Bytes without a token fall out before the merges, so that their neighbours become neighbours. */
static int encode_piece(encoder *c, const char *text, size_t size) {
  if (ids_reserve(c->out, size)) return ERR_NOMEM;
  int32_t *ids = c->out->ids + c->out->count;
  size_t count = 0;
  for (size_t i = 0; i < size; i++) {
    int32_t id = c->t->byte_ids[(uint8_t)text[i]];
    if (id >= 0) ids[count++] = id;
  }
  size_t dropped = size - count;
  if (bpe_merge(c->t->merges, &c->scratch, ids, &count)) return ERR_NOMEM;
  c->out->count += count;
  c->out->dropped_bytes += dropped;
  return ERR_OK;
}

/* Text without special tokens: valid UTF-8, so PCRE2 need not look again. */
static int encode_plain(encoder *c, const char *text, size_t size) {
  const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(c->match);
  for (size_t at = 0; at < size; at = ends[1]) {
    int rc = pcre2_match(c->t->split, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, c->match, NULL);
    if (rc < 0 || ends[1] <= at) return rc == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_INTERNAL;
    rc = encode_piece(c, text + at, ends[1] - at);
    if (rc) return rc;
  }
  return ERR_OK;
}

static int encode_special(encoder *c, const char *text, size_t size) {
  while (size) {
    size_t at = size;
    const special_token *found = special_set_find(&c->t->specials, text, size, &at);
    int rc = encode_plain(c, text, at);
    if (rc || !found) return rc;
    if (tokenizer_ids_add(c->out, found->id)) return ERR_NOMEM;
    text += at + found->size;
    size -= at + found->size;
  }
  return ERR_OK;
}

static int check_text(const char *text, size_t size, err *e) {
  if (size > TOKENIZER_TEXT_MAX)
    return err_set(e, ERR_LIMIT, "the text has %zu bytes; at most %u are taken: shorten it", size,
                   TOKENIZER_TEXT_MAX);
  size_t valid = utf8_valid(text, size);
  if (valid < size)
    return err_set(e, ERR_FORMAT, "the text is not UTF-8 at byte %zu (0x%02x): convert it to UTF-8", valid,
                   (uint8_t)text[valid]);
  return ERR_OK;
}

int tokenizer_encode(const tokenizer *t, const char *text, size_t size, bool special, tokenizer_ids *out,
                     err *e) {
  int rc = check_text(text, size, e);
  if (rc || size == 0) return rc;
  size_t count = out->count, dropped = out->dropped_bytes;
  encoder c = {.t = t, .out = out, .match = pcre2_match_data_create(1, NULL)};
  if (!c.match) return err_set(e, ERR_NOMEM, "out of memory for tokenizing");
  rc = special ? encode_special(&c, text, size) : encode_plain(&c, text, size);
  pcre2_match_data_free(c.match);
  bpe_scratch_fini(&c.scratch);
  if (rc == ERR_OK) return rc;
  out->count = count;
  out->dropped_bytes = dropped;
  return err_set(e, rc,
                 rc == ERR_NOMEM ? "out of memory for tokenizing" : "the text could not be split into words");
}

/* ---- access ---- */

/* Item `id` of a pool. */
static const char *pool_item(const char *pool, const size_t *ends, int32_t id, size_t *size) {
  size_t begin = id ? ends[id - 1] : 0;
  *size = ends[id] - begin;
  return pool + begin;
}

const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *size) {
  *size = 0;
  return id >= 0 && id < t->count ? pool_item(t->pieces, t->piece_ends, id, size) : NULL;
}

const char *tokenizer_spelling(const tokenizer *t, int32_t id, size_t *size) {
  *size = 0;
  return id >= 0 && id < t->count ? pool_item(t->spellings, t->spelling_ends, id, size) : NULL;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id) {
  return id >= 0 && id < t->count && (t->kinds[id] == KIND_CONTROL || t->kinds[id] == KIND_USER);
}

int32_t tokenizer_size(const tokenizer *t) {
  return t->count;
}
int32_t tokenizer_eos(const tokenizer *t) {
  return t->eos;
}
int32_t tokenizer_bos(const tokenizer *t) {
  return t->bos;
}
bool tokenizer_adds_bos(const tokenizer *t) {
  return t->adds_bos;
}

int32_t tokenizer_find(const tokenizer *t, const char *text, size_t size) {
  const special_token *found = special_set_exact(&t->specials, text, size);
  return found ? found->id : -1;
}

hash16 tokenizer_hash(const tokenizer *t) {
  return t->hash;
}
