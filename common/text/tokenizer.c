#include "common/text/tokenizer.h"

#include "common/text/unicode.h"
#include "common/text/tokenizer_parts.h"
#include "common/base/utf8.h"
#include <stdlib.h>
#include <string.h>

enum { PIECE_IDS_MIN = 256 /* ids that a list first has room for */ };

void tokenizer_close(tokenizer *t) {
  if (!t) return;
  vocabulary_fini(&t->v);
  free(t->index.ids);
  free(t->pieces);
  free(t->piece_ends);
  free(t->template);
  added_tokens_fini(&t->raw);
  added_tokens_fini(&t->normal);
  pre_tokenizer_free(t->split);
  bpe_free(t->merges);
  free(t);
}

/* ---- ids ---- */

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

/* ---- a word ---- */

typedef struct encoder { /* one call of tokenizer_encode */
  const tokenizer *t;
  tokenizer_ids *out;
  unsigned flags;
  bool first;  /* the stretch at hand begins it */
  char *spelt; /* [t->longest]: a word in the byte alphabet */
  pre_tokenizer_scratch split;
  bpe_scratch scratch;
} encoder;

/* A word that is itself a token. */
static int32_t whole_word(encoder *c, const char *word, size_t size) {
  const tokenizer *t = c->t;
  if (!t->ignore_merges || size > t->longest) return -1;
  if (t->bytes) {
    size = tokenizer_spell_bytes(t, word, size, c->spelt);
    word = c->spelt;
  }
  int32_t id = tokenizer_spelt(t, word, size);
  return id >= 0 && t->v.kinds[id] == TOKEN_NORMAL ? id : -1;
}

/* Bytes without a token fall out before the merges, so that their neighbours become neighbours. */
static size_t byte_symbols(encoder *c, const char *word, size_t size, int32_t *ids) {
  size_t count = 0;
  for (size_t i = 0; i < size; i++) {
    int32_t id = c->t->byte_ids[(uint8_t)word[i]];
    if (id >= 0) ids[count++] = id;
  }
  c->out->dropped_bytes += size - count;
  return count;
}

/* A character without a token is count + its code point until the merges are done: it may be part of one. */
static size_t character_symbols(const tokenizer *t, const char *word, size_t size, int32_t *ids) {
  size_t count = 0, length;
  for (size_t i = 0; i < size; i += length) {
    uint32_t code;
    utf8_next((const uint8_t *)word + i, size - i, &length, &code);
    ids[count++] = tokenizer_part(t, word + i, length);
  }
  return count;
}

static size_t utf8_bytes(uint32_t code, uint8_t out[4]) {
  static const uint8_t marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
  size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (size_t i = size - 1; i > 0; i--, code >>= 6) out[i] = (uint8_t)(0x80 | (code & 0x3f));
  out[0] = (uint8_t)(marks[size] | code);
  return size;
}

/* What stands for a character without a token; `unknown_before`: the last id stands for one already. */
static size_t fall_back(encoder *c, uint32_t code, bool *unknown_before, int32_t *ids) {
  const tokenizer *t = c->t;
  uint8_t bytes[4];
  size_t size = utf8_bytes(code, bytes), found = 0;
  while (found < size && t->byte_ids[bytes[found]] >= 0) found++;
  if (found == size) {
    for (size_t i = 0; i < size; i++) ids[i] = t->byte_ids[bytes[i]];
    *unknown_before = false;
    return size;
  }
  if (t->unknown < 0) {
    c->out->dropped_bytes += size;
    return 0;
  }
  bool again = *unknown_before && t->fuse_unknown;
  *unknown_before = true;
  ids[0] = t->unknown;
  return !again;
}

/* Merged symbols to ids, in place: a character's bytes are never more than `size` had. */
static size_t resolve(encoder *c, int32_t *ids, size_t count, size_t size) {
  bool unknown_before = false;
  size_t made = 0;
  memmove(ids + size - count, ids, count * sizeof *ids);
  for (size_t i = size - count; i < size; i++) {
    int32_t symbol = ids[i];
    if (symbol >= c->t->v.count) {
      made += fall_back(c, (uint32_t)(symbol - c->t->v.count), &unknown_before, ids + made);
      continue;
    }
    ids[made++] = symbol;
    unknown_before = false;
  }
  return made;
}

static int encode_word(void *context, const char *word, size_t size) {
  encoder *c = context;
  const tokenizer *t = c->t;
  int32_t whole = whole_word(c, word, size);
  if (whole >= 0) return tokenizer_ids_add(c->out, whole);
  if (ids_reserve(c->out, size)) return ERR_NOMEM;
  int32_t *ids = c->out->ids + c->out->count;
  size_t count = t->bytes ? byte_symbols(c, word, size, ids) : character_symbols(t, word, size, ids);
  if (bpe_merge(t->merges, &c->scratch, ids, &count)) return ERR_NOMEM;
  c->out->count += t->bytes ? count : resolve(c, ids, count, size);
  return ERR_OK;
}

/* ---- a stretch between added tokens ---- */

static int encode_plain(encoder *c, const char *text, size_t size) {
  const char *ruled;
  char *made;
  size_t ruled_size;
  if (tokenizer_text_rule_apply(&c->t->after, text, size, c->first, &ruled, &ruled_size, &made))
    return ERR_NOMEM;
  int rc = pre_tokenizer_run(c->t->split, &c->split, ruled, ruled_size, encode_word, c);
  free(made);
  return rc;
}

/* ---- added tokens ---- */

/* The character that ends at text[end], end >= 1. */
static uint32_t character_before(const char *text, size_t end, size_t *length) {
  uint32_t code;
  size_t begin = end - 1;
  while (begin > 0 && ((uint8_t)text[begin] & 0xc0) == 0x80) begin--;
  utf8_next((const uint8_t *)text + begin, end - begin, length, &code);
  return code;
}

static bool stands_alone(const char *text, size_t size, size_t begin, size_t end) {
  size_t length;
  uint32_t code;
  if (begin > 0 && unicode_is_word(character_before(text, begin, &length))) return false;
  if (end == size) return true;
  utf8_next((const uint8_t *)text + end, size - end, &length, &code);
  return !unicode_is_word(code);
}

static size_t blanks_before(const char *text, size_t begin, size_t least) {
  size_t length;
  while (begin > least && unicode_is_space(character_before(text, begin, &length))) begin -= length;
  return begin;
}

static size_t blanks_after(const char *text, size_t size, size_t end) {
  size_t length;
  uint32_t code;
  for (; end < size; end += length) {
    utf8_next((const uint8_t *)text + end, size - end, &length, &code);
    if (!unicode_is_space(code)) break;
  }
  return end;
}

typedef int stretch_encode(encoder *c, const char *text, size_t size);

static int encode_stretch(encoder *c, stretch_encode *next, const char *text, size_t size) {
  int rc = size ? next(c, text, size) : ERR_OK;
  c->first = false;
  return rc;
}

/* Takes the set's tokens out of the text; `next` gets what lies between. A token that does not count where it
 * stands is passed over as a whole, as the tokenizers library does. */
static int take_added(encoder *c, const added_tokens *set, stretch_encode *next, const char *text,
                      size_t size) {
  size_t done = 0, at;
  const added_token *found;
  for (size_t from = 0; from < size && (found = added_tokens_find(set, text + from, size - from, &at));) {
    size_t begin = from + at, end = begin + found->size;
    from = end;
    if ((found->flags & ADDED_SPECIAL) && !(c->flags & TOKENIZER_SPECIAL)) continue;
    if ((found->flags & ADDED_SINGLE_WORD) && !stands_alone(text, size, begin, end)) continue;
    if (found->flags & ADDED_LSTRIP) begin = blanks_before(text, begin, done);
    if (found->flags & ADDED_RSTRIP) end = blanks_after(text, size, end);
    int rc = encode_stretch(c, next, text + done, begin - done);
    if (!rc) rc = tokenizer_ids_add(c->out, found->id);
    if (rc) return rc;
    done = from = end;
  }
  return encode_stretch(c, next, text + done, size - done);
}

static int encode_normal(encoder *c, const char *text, size_t size) {
  const char *ruled;
  char *made;
  size_t ruled_size;
  if (tokenizer_text_rule_apply(&c->t->before, text, size, c->first, &ruled, &ruled_size, &made))
    return ERR_NOMEM;
  int rc = take_added(c, &c->t->normal, encode_plain, ruled, ruled_size);
  free(made);
  return rc;
}

/* ---- a text ---- */

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

int tokenizer_encode(const tokenizer *t, const char *text, size_t size, unsigned flags, tokenizer_ids *out,
                     err *e) {
  int rc = check_text(text, size, e);
  if (rc || size == 0) return rc;
  size_t count = out->count, dropped = out->dropped_bytes;
  encoder c = {.t = t, .out = out, .flags = flags, .first = !(flags & TOKENIZER_INSIDE)};
  if (t->ignore_merges && t->bytes) c.spelt = malloc(2 * t->longest + 1);
  rc = t->ignore_merges && t->bytes && !c.spelt ? ERR_NOMEM
                                                : take_added(&c, &t->raw, encode_normal, text, size);
  free(c.spelt);
  pre_tokenizer_scratch_fini(&c.split);
  bpe_scratch_fini(&c.scratch);
  if (rc == ERR_OK) return rc;
  out->count = count;
  out->dropped_bytes = dropped;
  return err_set(
      e, rc,
      rc == ERR_NOMEM
          ? "out of memory for tokenizing"
          : "the text could not be split into words: the tokenizer's pattern takes too long on it");
}

/* ---- access ---- */

static bool is_token(const tokenizer *t, int32_t id) {
  return id >= 0 && id < t->v.count;
}

const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *size) {
  *size = 0;
  if (!is_token(t, id)) return NULL;
  size_t begin = id ? t->piece_ends[id - 1] : 0;
  *size = t->piece_ends[id] - begin;
  return t->pieces + begin;
}

const char *tokenizer_spelling(const tokenizer *t, int32_t id, size_t *size) {
  *size = 0;
  return is_token(t, id) ? vocabulary_spelling(&t->v, id, size) : NULL;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id) {
  return is_token(t, id) && (t->v.kinds[id] == TOKEN_CONTROL || t->v.kinds[id] == TOKEN_UNKNOWN);
}

bool tokenizer_strips_blank(const tokenizer *t) {
  return t->strips_blank;
}
int32_t tokenizer_size(const tokenizer *t) {
  return t->v.count;
}
int32_t tokenizer_eos(const tokenizer *t) {
  return t->eos;
}
int32_t tokenizer_bos(const tokenizer *t) {
  return t->bos;
}
const char *tokenizer_doubt(const tokenizer *t) {
  return t->doubt;
}

bool tokenizer_adds_bos(const tokenizer *t) {
  return t->adds_bos;
}

const int32_t *tokenizer_stops(const tokenizer *t, int32_t *count) {
  *count = t->stop_count;
  return t->stops;
}

const char *tokenizer_template(const tokenizer *t, size_t *size) {
  *size = t->template_size;
  return t->template;
}

int32_t tokenizer_find(const tokenizer *t, const char *text, size_t size) {
  const added_token *found = added_tokens_exact(&t->raw, text, size);
  if (!found) found = added_tokens_exact(&t->normal, text, size);
  return found ? found->id : -1;
}

int32_t tokenizer_first_special(const tokenizer *t, const char *text, size_t size, size_t *at,
                                size_t *token_size) {
  const added_token *found;
  size_t step;
  for (size_t from = 0; (found = added_tokens_find(&t->raw, text + from, size - from, &step));
       from += step + found->size) {
    *at = from + step;
    *token_size = found->size;
    if (found->flags & ADDED_SPECIAL) return found->id;
  }
  return -1;
}

hash16 tokenizer_hash(const tokenizer *t) {
  return t->hash;
}
