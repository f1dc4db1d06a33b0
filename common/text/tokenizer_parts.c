#include "common/text/tokenizer_parts.h"

#include "common/text/unicode.h"
#include "common/base/utf8.h"
#include <stdlib.h>
#include <string.h>

enum { ALPHABET_CODES = 324 /* code points of the byte alphabet are below this */ };

static int bad_vocabulary(err *e, const char *why) {
  return err_set(e, ERR_FORMAT, "the model's tokenizer %s: download or convert it again", why);
}

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

/* A code point of the alphabet as UTF-8. */
static size_t alphabet_spell(uint16_t code, char out[2]) {
  out[0] = (char)code;
  if (code < 0x80) return 1;
  out[0] = (char)(0xc0 | code >> 6);
  out[1] = (char)(0x80 | (code & 0x3f));
  return 2;
}

/* A spelling's bytes into out[size]; a spelling with a character outside the alphabet stands for itself. */
static size_t decode_bytes(const int16_t byte_of[ALPHABET_CODES], const char *spelling, size_t size,
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

size_t tokenizer_spell_bytes(const tokenizer *t, const char *bytes, size_t size, char *out) {
  size_t count = 0;
  for (size_t i = 0; i < size; i++) count += alphabet_spell(t->code_of[(uint8_t)bytes[i]], out + count);
  return count;
}

/* ---- SentencePiece's spellings ---- */

static bool is_blank(const char *text, size_t size) {
  return size >= BLANK_SIZE && memcmp(text, BLANK, BLANK_SIZE) == 0;
}

static size_t decode_blanks(const char *spelling, size_t size, char *out) {
  size_t count = 0;
  for (size_t i = 0; i < size; i++) {
    bool blank = is_blank(spelling + i, size - i);
    out[count++] = blank ? ' ' : spelling[i];
    if (blank) i += BLANK_SIZE - 1;
  }
  return count;
}

static int digit_value(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                : -1;
}

/* <0xNN>: NN; -1: another spelling. */
static int byte_value(const char *spelling, size_t size) {
  if (size != 6 || memcmp(spelling, "<0x", 3) || spelling[5] != '>') return -1;
  int high = digit_value(spelling[3]), low = digit_value(spelling[4]);
  return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* ---- the table from spelling to id ---- */

static size_t find_slot(const tokenizer *t, const char *text, size_t size) {
  const tokenizer_index *x = &t->index;
  hash16 h = hash_bytes(text, size);
  size_t i;
  memcpy(&i, h.bytes, sizeof i);
  for (i &= x->mask; x->ids[i] >= 0; i = (i + 1) & x->mask) {
    size_t other_size;
    const char *other = vocabulary_spelling(&t->v, x->ids[i], &other_size);
    if (other_size == size && memcmp(other, text, size) == 0) break;
  }
  return i;
}

int32_t tokenizer_spelt(const tokenizer *t, const char *text, size_t size) {
  return t->index.ids[find_slot(t, text, size)];
}

int32_t tokenizer_part(const tokenizer *t, const char *text, size_t size) {
  size_t length;
  uint32_t code;
  int32_t id = tokenizer_spelt(t, text, size);
  if (id >= 0 && (t->v.kinds[id] == TOKEN_NORMAL || t->v.kinds[id] == TOKEN_USER)) return id;
  utf8_next((const uint8_t *)text, size, &length, &code);
  return length == size ? t->v.count + (int32_t)code : -1;
}

static int fill_index(tokenizer *t, err *e) {
  size_t slots = 16;
  while (slots < 2 * (size_t)t->v.count) slots *= 2;
  t->index = (tokenizer_index){malloc(slots * sizeof(int32_t)), slots - 1};
  if (!t->index.ids) return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  memset(t->index.ids, 0xff, slots * sizeof(int32_t));
  for (int32_t id = 0; id < t->v.count; id++) {
    size_t size;
    const char *text = vocabulary_spelling(&t->v, id, &size);
    size_t i = find_slot(t, text, size);
    if (utf8_valid(text, size) != size) return bad_vocabulary(e, "has a token that is not UTF-8");
    if (t->index.ids[i] < 0) t->index.ids[i] = id;
    if (size > t->longest) t->longest = size;
  }
  return ERR_OK;
}

/* ---- pieces: what a token stands for ---- */

static size_t fill_piece(tokenizer *t, const int16_t byte_of[ALPHABET_CODES], int32_t id, char *out) {
  size_t size;
  const char *text = vocabulary_spelling(&t->v, id, &size);
  int kind = t->v.kinds[id], byte = kind == TOKEN_BYTE ? byte_value(text, size) : -1;
  if (byte >= 0) {
    t->byte_ids[byte] = id;
    *out = (char)byte;
    return 1;
  }
  if (t->bytes && kind == TOKEN_NORMAL) return decode_bytes(byte_of, text, size, out);
  if (!t->bytes && (kind == TOKEN_NORMAL || kind == TOKEN_USER)) return decode_blanks(text, size, out);
  memcpy(out, text, size);
  return size;
}

static int fill_pieces(tokenizer *t, err *e) {
  int16_t byte_of[ALPHABET_CODES];
  size_t total = t->v.ends[t->v.count - 1], at = 0; /* a piece is never longer than its spelling */
  t->pieces = malloc(total + 1);
  t->piece_ends = malloc((size_t)t->v.count * sizeof *t->piece_ends);
  if (!t->pieces || !t->piece_ends) return err_set(e, ERR_NOMEM, "out of memory for the vocabulary");
  alphabet_fill(byte_of, t->code_of);
  for (int byte = 0; byte < 256; byte++) t->byte_ids[byte] = -1;
  for (int32_t id = 0; id < t->v.count; id++)
    t->piece_ends[id] = at += fill_piece(t, byte_of, id, t->pieces + at);
  for (int byte = 0; t->bytes && byte < 256; byte++) {
    char text[2];
    t->byte_ids[byte] = tokenizer_spelt(t, text, alphabet_spell(t->code_of[byte], text));
  }
  return ERR_OK;
}

/* Marks of turns that some files call added text: no message may make one. The identity is the file's. */
static void correct_kinds(tokenizer *t) {
  static const char *const marks[] = {"<|im_start|>",      "<|im_end|>",       "<|start_header_id|>",
                                      "<|end_header_id|>", "<|eot_id|>",       "<start_of_turn>",
                                      "<end_of_turn>",     "[INST]",           "[/INST]",
                                      "[SYSTEM_PROMPT]",   "[/SYSTEM_PROMPT]", "<|endoftext|>"};
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
    int32_t id = tokenizer_spelt(t, marks[i], strlen(marks[i]));
    if (id >= 0 && t->v.kinds[id] == TOKEN_USER) t->v.kinds[id] = TOKEN_CONTROL;
  }
}

int tokenizer_prepare(tokenizer *t, err *e) {
  if (t->v.count == 0) return bad_vocabulary(e, "has no tokens");
  int rc = fill_index(t, e);
  if (!rc) rc = fill_pieces(t, e);
  if (!rc) rc = vocabulary_hash(&t->v, &t->hash, e);
  if (!rc) correct_kinds(t);
  return rc;
}

void tokenizer_add_stop(tokenizer *t, int64_t id) {
  if (id < 0 || id >= t->v.count || t->stop_count == TOKENIZER_STOPS_MAX) return;
  for (int32_t i = 0; i < t->stop_count; i++)
    if (t->stops[i] == id) return;
  t->stops[t->stop_count++] = (int32_t)id;
}

int tokenizer_set_template(tokenizer *t, const char *text, size_t size, err *e) {
  t->template = malloc(size + 1);
  if (!t->template) return err_set(e, ERR_NOMEM, "out of memory for the chat template");
  memcpy(t->template, text, size);
  t->template[size] = '\0';
  t->template_size = size;
  return ERR_OK;
}

/* ---- text ---- */

static bool wants_prefix(const tokenizer_text_rule *r, const char *text, size_t size, bool first) {
  if (r->prefix == PREFIX_NONE || size == 0 || (r->prefix == PREFIX_FIRST && !first)) return false;
  return r->prefix == PREFIX_ALWAYS || !(text[0] == ' ' || (r->escape && is_blank(text, size)));
}

static size_t put(char *out, const char *text, size_t size, bool escape) {
  size_t count = 0;
  for (size_t i = 0; i < size; i++) {
    if (escape && text[i] == ' ') {
      memcpy(out + count, BLANK, BLANK_SIZE);
      count += BLANK_SIZE;
    } else {
      out[count++] = text[i];
    }
  }
  return count;
}

int tokenizer_text_rule_apply(const tokenizer_text_rule *r, const char *text, size_t size, bool first,
                              const char **out, size_t *out_size, char **made) {
  char *normal = NULL;
  *made = NULL;
  if (r->nfc && unicode_nfc(text, size, &normal, &size)) return ERR_NOMEM;
  *out = normal ? normal : text;
  *out_size = size;
  bool prefix = wants_prefix(r, *out, size, first);
  if (!prefix && !r->escape) {
    *made = normal;
    return ERR_OK;
  }
  char *p = malloc((size + 1) * (r->escape ? BLANK_SIZE : 1));
  if (p) {
    size_t at = prefix ? put(p, " ", 1, r->escape) : 0;
    *out_size = at + put(p + at, *out, size, r->escape);
    *out = *made = p;
  }
  free(normal);
  return p ? ERR_OK : ERR_NOMEM;
}
