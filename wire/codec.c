#include "wire/codec.h"

#include "wire/fields.h"
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <mpack.h>
#include <msgpack.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rules of wire/PROTOCOL.md that hold for every message; those of one type are in fields.c. X(id, name, code)
 */
#define RULE_LIST(X)                                                                                         \
  X(FRAME_SIZE, "R-FRAME-SIZE", ERR_LIMIT)                                                                   \
  X(FRAME_CUT, "R-FRAME-CUT", ERR_PROTOCOL)                                                                  \
  X(FRAME_TRAIL, "R-FRAME-TRAIL", ERR_PROTOCOL)                                                              \
  X(FRAME_ARRAY, "R-FRAME-ARRAY", ERR_PROTOCOL)                                                              \
  X(FRAME_DEPTH, "R-FRAME-DEPTH", ERR_LIMIT)                                                                 \
  X(FRAME_COUNT, "R-FRAME-COUNT", ERR_PROTOCOL)                                                              \
  X(FRAME_MAP, "R-FRAME-MAP", ERR_PROTOCOL)                                                                  \
  X(FRAME_EXT, "R-FRAME-EXT", ERR_PROTOCOL)                                                                  \
  X(FRAME_BYTE, "R-FRAME-BYTE", ERR_PROTOCOL)                                                                \
  X(FRAME_FLOAT, "R-FRAME-FLOAT", ERR_PROTOCOL)                                                              \
  X(ENVELOPE, "R-ENVELOPE", ERR_PROTOCOL)                                                                    \
  X(MESSAGE_TYPE, "R-MESSAGE-TYPE", ERR_PROTOCOL)                                                            \
  X(FIELDS, "R-FIELDS", ERR_PROTOCOL)                                                                        \
  X(TO, "R-TO", ERR_PROTOCOL)                                                                                \
  X(SESSION, "R-SESSION", ERR_PROTOCOL)                                                                      \
  X(MAGIC, "R-HELLO-MAGIC", ERR_PROTOCOL)                                                                    \
  X(VERSION_RANGE, "R-HELLO-RANGE", ERR_PROTOCOL)                                                            \
  X(VERSION, "R-HELLO-VERSION", ERR_VERSION)                                                                 \
  X(FIELD_TYPE, "R-TYPE", ERR_PROTOCOL)                                                                      \
  X(INT_LOW, "R-INT-LOW", ERR_PROTOCOL)                                                                      \
  X(INT_HIGH, "R-INT-HIGH", ERR_LIMIT)                                                                       \
  X(ENUM, "R-ENUM", ERR_PROTOCOL)                                                                            \
  X(FLOAT, "R-FLOAT", ERR_PROTOCOL)                                                                          \
  X(SCORE, "R-SCORE", ERR_PROTOCOL)                                                                          \
  X(BIN16, "R-BIN16", ERR_PROTOCOL)                                                                          \
  X(STRING_LIMIT, "R-STRING-LIMIT", ERR_LIMIT)                                                               \
  X(STRING_TEXT, "R-STRING-TEXT", ERR_PROTOCOL)                                                              \
  X(LIST_LIMIT, "R-LIST-LIMIT", ERR_LIMIT)                                                                   \
  X(LIST_SAME, "R-LIST-SAME", ERR_PROTOCOL)                                                                  \
  X(BLOB_LIMIT, "R-BLOB-LIMIT", ERR_LIMIT)                                                                   \
  X(LEFT_OUT, "R-LEFT-OUT", ERR_PROTOCOL)                                                                    \
  X(MEMORY, "arena", ERR_NOMEM)

#define RULE_ENUM(id, name, code) RULE_##id,
typedef enum { RULE_LIST(RULE_ENUM) } rule;
#undef RULE_ENUM

#define RULE_ROW(id, name, code) {name, code},
static const struct {
  const char *name;
  int code;
} rules[] = {RULE_LIST(RULE_ROW)};
#undef RULE_ROW

/* Where in a message a walk stands: names the field in errors. */
typedef struct field_path {
  err *e;
  const char *message, *group, *field;
  int64_t index; /* in a list; -1: not in one */
} field_path;

static int refuse(const field_path *p, rule r, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int refuse(const field_path *p, rule r, const char *format, ...) {
  char sentence[ERR_TEXT_MAX / 2], index[32] = "";
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  if (p->index >= 0) snprintf(index, sizeof index, "[%" PRId64 "]", p->index);
  return err_set(p->e, rules[r].code, "%s: %s%s%s%s%s%s %s", rules[r].name, p->message, p->group ? "." : "",
                 p->group ? p->group : "", p->field ? "." : "", p->field ? p->field : "", index, sentence);
}

/* --- rules of single values, the same in both directions --- */

typedef struct integer {
  bool negative;
  uint64_t bits; /* two's complement */
} integer;

static bool integer_below(integer v, int64_t min) {
  if (v.negative) return (int64_t)v.bits < min;
  return min > 0 && v.bits < (uint64_t)min;
}

static int check_integer(const field_path *p, const field *f, integer v) {
  bool low = integer_below(v, f->min), high = !v.negative && v.bits > f->max;
  if (!low && !high) return ERR_OK;
  char number[32];
  if (v.negative)
    snprintf(number, sizeof number, "%" PRId64, (int64_t)v.bits);
  else
    snprintf(number, sizeof number, "%" PRIu64, v.bits);
  if (f->kind == FIELD_ENUM) return refuse(p, RULE_ENUM, "is %s, which is none of its values", number);
  if (low) return refuse(p, RULE_INT_LOW, "is %s, the least is %" PRId64, number, f->min);
  return refuse(p, RULE_INT_HIGH, "is %s, the limit is %" PRIu64, number, f->max);
}

static int check_float(const field_path *p, const field *f, float v) {
  if (!isfinite(v)) return refuse(p, RULE_FLOAT, "is not a finite number");
  if (f->kind == FIELD_SCORE && !(v >= FIELD_SCORE_MIN && v <= 0.0f))
    return refuse(p, RULE_SCORE, "is %g, not in [%g, 0]", (double)v, (double)FIELD_SCORE_MIN);
  return ERR_OK;
}

/* Bytes of the character at p[left], 0 when it is none: well-formed UTF-8 (Unicode, table 3-7) without the
 * control characters, which would end a log line or move a terminal's cursor. */
static size_t character_size(const uint8_t *p, size_t left) {
  static const struct {
    uint8_t low, high, size, second_low, second_high;
  } forms[] = {{0x20, 0x7E, 1, 0, 0},       {0xC2, 0xC2, 2, 0xA0, 0xBF}, {0xC3, 0xDF, 2, 0x80, 0xBF},
               {0xE0, 0xE0, 3, 0xA0, 0xBF}, {0xE1, 0xEC, 3, 0x80, 0xBF}, {0xED, 0xED, 3, 0x80, 0x9F},
               {0xEE, 0xEF, 3, 0x80, 0xBF}, {0xF0, 0xF0, 4, 0x90, 0xBF}, {0xF1, 0xF3, 4, 0x80, 0xBF},
               {0xF4, 0xF4, 4, 0x80, 0x8F}};
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    size_t size = forms[i].size;
    if (p[0] < forms[i].low || p[0] > forms[i].high) continue;
    if (size > left) return 0;
    if (size > 1 && (p[1] < forms[i].second_low || p[1] > forms[i].second_high)) return 0;
    for (size_t k = 2; k < size; k++)
      if ((p[k] & 0xC0) != 0x80) return 0;
    return size;
  }
  return 0;
}

static int check_envelope(const field_path *p, const fields_shape *shape, const msg *m) {
  static const wire_id none = {{0}};
  bool to_zero = memcmp(&m->to, &none, sizeof none) == 0;
  if (shape->to != ENVELOPE_ANY && to_zero != (shape->to == ENVELOPE_ZERO))
    return refuse(p, RULE_TO, to_zero ? "has no receiver in `to`" : "must have zero in `to`");
  if (shape->session != ENVELOPE_ANY && (m->session == 0) != (shape->session == ENVELOPE_ZERO))
    return refuse(p, RULE_SESSION, m->session ? "is not about a session" : "has session 0");
  return ERR_OK;
}

static int check_version(const field_path *p, uint32_t min, uint32_t max) {
  if (min < 1 || min > max) return refuse(p, RULE_VERSION_RANGE, "has versions %u to %u", min, max);
  if (min > WIRE_VERSION_MAX || max < WIRE_VERSION_MIN)
    return refuse(p, RULE_VERSION, "speaks versions %u to %u, this program %u to %u: update the older one",
                  min, max, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
  return ERR_OK;
}

/* Rules between fields; all single values hold. */
static int check_message(const fields_shape *shape, const msg *m, err *e) {
  char bad[SHAPE_BAD_MAX];
  int code = shape->check ? shape->check(m, bad) : ERR_OK;
  return code == ERR_OK ? ERR_OK : err_set(e, code, "%s", bad);
}

/* --- encoding --- */

#define BUFFER_FIRST 4096

void codec_buffer_fini(codec_buffer *b) {
  free(b->data);
  *b = (codec_buffer){0};
}

typedef struct writer {
  codec_buffer *out;
  msgpack_packer packer;
  field_path at;
  int failed; /* ERR_NOMEM, ERR_LIMIT: the rest is not written */
} writer;

static int writer_fail(writer *w, int code) {
  w->failed = code;
  return -1;
}

static int writer_append(void *context, const char *data, size_t size) {
  writer *w = context;
  codec_buffer *b = w->out;
  if (w->failed) return -1;
  if (size > WIRE_FRAME_MAX - b->size) return writer_fail(w, ERR_LIMIT);
  if (size > b->capacity - b->size) {
    size_t capacity = b->capacity ? b->capacity : BUFFER_FIRST;
    while (capacity < b->size + size) capacity *= 2;
    uint8_t *grown = realloc(b->data, capacity);
    if (!grown) return writer_fail(w, ERR_NOMEM);
    b->data = grown;
    b->capacity = capacity;
  }
  memcpy(b->data + b->size, data, size);
  b->size += size;
  return 0;
}

static void write_bin(writer *w, const void *data, size_t size) {
  msgpack_pack_bin(&w->packer, size);
  msgpack_pack_bin_body(&w->packer, data, size);
}

/* Texts carry file names and quotations cut at a byte: what is no clean UTF-8 goes out as '?', so that an
 * error never fails to be told. */
static int write_string(writer *w, wire_string s) {
  char clean[WIRE_STRING_MAX];
  if (s.size > WIRE_STRING_MAX)
    return refuse(&w->at, RULE_STRING_LIMIT, "has %u bytes, the limit is %d", s.size, WIRE_STRING_MAX);
  for (size_t i = 0; i < s.size;) {
    size_t size = character_size((const uint8_t *)s.data + i, s.size - i);
    if (size)
      memcpy(clean + i, s.data + i, size);
    else
      clean[i] = '?';
    i += size ? size : 1;
  }
  msgpack_pack_str(&w->packer, s.size);
  msgpack_pack_str_body(&w->packer, clean, s.size);
  return ERR_OK;
}

static int write_integer(writer *w, const field *f, const void *value) {
  integer v = {0};
  if (f->kind == FIELD_U64) {
    memcpy(&v.bits, value, sizeof v.bits);
  } else {
    int32_t word;
    memcpy(&word, value, sizeof word);
    v.negative = f->kind != FIELD_U32 && word < 0;
    v.bits = v.negative ? (uint64_t)(int64_t)word : (uint32_t)word;
  }
  int code = check_integer(&w->at, f, v);
  if (code != ERR_OK) return code;
  if (v.negative)
    msgpack_pack_int64(&w->packer, (int64_t)v.bits);
  else
    msgpack_pack_uint64(&w->packer, v.bits);
  return ERR_OK;
}

static int write_float(writer *w, const field *f, const void *value) {
  float v;
  memcpy(&v, value, sizeof v);
  int code = check_float(&w->at, f, v);
  if (code == ERR_OK) msgpack_pack_float(&w->packer, v);
  return code;
}

static int write_group(writer *w, const field_group *group, const char *base);

static int write_blob(writer *w, const field *f, const char *base) {
  const void *data = *(const void *const *)(base + f->offset);
  uint32_t size = *(const uint32_t *)(base + f->count_offset);
  if (size > f->max)
    return refuse(&w->at, RULE_BLOB_LIMIT, "has %u bytes, the limit is %llu", size,
                  (unsigned long long)f->max);
  if (data)
    write_bin(w, data, size);
  else
    msgpack_pack_nil(&w->packer);
  return ERR_OK;
}

/* How many fields of a message or group are written: the last of them is not one that may be left out. */
static uint32_t written_count(const field_group *group, const char *base) {
  uint32_t n = group->count;
  while (n > 0 && field_is_absent(&group->list[n - 1], base)) n--;
  return n;
}

static int write_nested(writer *w, const field *f, const char *base) {
  const char *around = w->at.group;
  w->at.group = f->name;
  msgpack_pack_array(&w->packer, written_count(f->group, base + f->offset));
  int code = write_group(w, f->group, base + f->offset);
  w->at.group = around;
  return code;
}

static int write_value(writer *w, const field *f, const char *value) {
  switch (f->kind) {
  case FIELD_U32:
  case FIELD_I32:
  case FIELD_U64:
  case FIELD_ENUM:
    return write_integer(w, f, value);
  case FIELD_F32:
  case FIELD_SCORE:
    return write_float(w, f, value);
  case FIELD_STR:
    return write_string(w, *(const wire_string *)value);
  case FIELD_MAGIC:
    return write_string(w, (wire_string){WIRE_MAGIC, sizeof WIRE_MAGIC - 1});
  case FIELD_BIN16:
    write_bin(w, value, 16);
    return ERR_OK;
  case FIELD_BOOL:
    if (*(const bool *)value)
      msgpack_pack_true(&w->packer);
    else
      msgpack_pack_false(&w->packer);
    return ERR_OK;
  case FIELD_BLOB:
  case FIELD_GROUP:
    break;
  }
  assert(!"a field with two parts is no single value");
  return ERR_INTERNAL;
}

static int write_list(writer *w, const field *f, const char *base) {
  const char *items = *(const char *const *)(base + f->offset);
  int32_t count = *(const int32_t *)(base + f->count_offset);
  assert(count >= 0);
  if ((uint32_t)count > f->count_max)
    return refuse(&w->at, RULE_LIST_LIMIT, "has %d entries, the limit is %u", count, f->count_max);
  msgpack_pack_array(&w->packer, (size_t)count);
  int code = ERR_OK;
  for (int32_t i = 0; i < count && code == ERR_OK; i++) {
    w->at.index = i;
    code = write_value(w, f, items + (size_t)i * field_element_size(f->kind));
  }
  w->at.index = -1;
  return code;
}

static int write_group(writer *w, const field_group *group, const char *base) {
  int code = ERR_OK;
  const uint32_t count = written_count(group, base);
  for (uint32_t i = 0; i < count && code == ERR_OK; i++) {
    const field *f = &group->list[i];
    w->at.field = f->name;
    if (f->list)
      code = write_list(w, f, base);
    else if (f->kind == FIELD_BLOB)
      code = write_blob(w, f, base);
    else if (f->kind == FIELD_GROUP)
      code = write_nested(w, f, base);
    else
      code = write_value(w, f, base + f->offset);
  }
  return code;
}

#define ENVELOPE_FIELDS 4 /* type, to, session, epoch */

static int write_frame(writer *w, const fields_shape *shape, const msg *m) {
  msgpack_pack_array(&w->packer, ENVELOPE_FIELDS + written_count(&shape->fields, (const char *)&m->u));
  msgpack_pack_uint32(&w->packer, m->type);
  write_bin(w, m->to.bytes, sizeof m->to.bytes);
  msgpack_pack_uint64(&w->packer, m->session);
  msgpack_pack_uint32(&w->packer, m->epoch);
  int code = write_group(w, &shape->fields, (const char *)&m->u);
  if (code != ERR_OK || !w->failed) return code;
  if (w->failed == ERR_NOMEM) return err_set(w->at.e, ERR_NOMEM, "out of memory for a frame");
  w->at.field = NULL;
  return refuse(&w->at, RULE_FRAME_SIZE, "is larger than %u bytes", WIRE_FRAME_MAX);
}

int codec_encode(const msg *m, codec_buffer *out, err *e) {
  const fields_shape *shape = fields_shape_of(m->type);
  assert(shape);
  writer w = {.out = out, .at = {.e = e, .message = shape->name, .index = -1}};
  out->size = 0;
  msgpack_packer_init(&w.packer, &w, writer_append);
  int code = check_envelope(&w.at, shape, m);
  if (code == ERR_OK) code = write_frame(&w, shape, m);
  if (code == ERR_OK) code = check_message(shape, m, e);
  return code;
}

/* --- decoding --- */

typedef struct reader {
  mpack_tokbuf_t tokens;
  const char *data;
  size_t left;
  arena *memory;
  field_path at;
} reader;

static void reader_init(reader *r, const uint8_t *data, size_t size, arena *memory, err *e) {
  *r = (reader){.data = (const char *)data, .left = size, .memory = memory};
  r->at = (field_path){.e = e, .message = "frame", .index = -1};
  mpack_tokbuf_init(&r->tokens);
}

static int reader_next(reader *r, mpack_token_t *t) {
  if (r->left == 0) return MPACK_EOF;
  return mpack_read(&r->tokens, &r->data, &r->left, t);
}

/* The scan: nothing is believed and nothing is taken before the whole frame has the right build. */
static int scan_token(reader *r, const mpack_token_t *t) {
  switch (t->type) {
  case MPACK_TOKEN_MAP:
    return refuse(&r->at, RULE_FRAME_MAP, "holds a map, only arrays are allowed");
  case MPACK_TOKEN_EXT:
    return refuse(&r->at, RULE_FRAME_EXT, "holds an extension type");
  case MPACK_TOKEN_FLOAT:
    if (t->length == sizeof(float)) return ERR_OK;
    return refuse(&r->at, RULE_FRAME_FLOAT, "holds a 64-bit float, floats are 32 bits");
  case MPACK_TOKEN_ARRAY:
  case MPACK_TOKEN_STR:
  case MPACK_TOKEN_BIN:
    if (t->length <= r->left) return ERR_OK;
    return refuse(&r->at, RULE_FRAME_COUNT, "announces %u entries or bytes, %zu bytes are left", t->length,
                  r->left);
  default:
    return ERR_OK;
  }
}

static int scan_next(reader *r, mpack_token_t *t) {
  int status = reader_next(r, t);
  if (status == MPACK_ERROR) return refuse(&r->at, RULE_FRAME_BYTE, "holds the byte c1, which means nothing");
  if (status == MPACK_EOF) return refuse(&r->at, RULE_FRAME_CUT, "ends in the middle of a value");
  return scan_token(r, t);
}

/* One value with all it holds; open[] counts the entries still to come of each array around it. */
static int scan_value(reader *r) {
  uint32_t open[WIRE_DEPTH_MAX];
  int depth = 0;
  do {
    mpack_token_t t;
    int code = scan_next(r, &t);
    if (code != ERR_OK) return code;
    if (depth == 0 && t.type != MPACK_TOKEN_ARRAY) return refuse(&r->at, RULE_FRAME_ARRAY, "is not an array");
    if (t.type == MPACK_TOKEN_ARRAY && depth == WIRE_DEPTH_MAX)
      return refuse(&r->at, RULE_FRAME_DEPTH, "nests arrays deeper than %d", WIRE_DEPTH_MAX);
    if (t.type == MPACK_TOKEN_ARRAY && t.length > 0) {
      open[depth++] = t.length;
      continue;
    }
    if ((t.type == MPACK_TOKEN_STR || t.type == MPACK_TOKEN_BIN) && t.length > 0) {
      code = scan_next(r, &t); /* its bytes */
      if (code != ERR_OK) return code;
    }
    while (depth > 0 && --open[depth - 1] == 0) depth--;
  } while (depth > 0);
  return ERR_OK;
}

static int scan_frame(const uint8_t *data, size_t size, err *e) {
  reader r;
  reader_init(&r, data, size, NULL, e);
  if (size > WIRE_FRAME_MAX)
    return refuse(&r.at, RULE_FRAME_SIZE, "has %zu bytes, the limit is %u", size, WIRE_FRAME_MAX);
  int code = scan_value(&r);
  if (code == ERR_OK && r.left > 0)
    return refuse(&r.at, RULE_FRAME_TRAIL, "has %zu bytes after its array", r.left);
  return code;
}

/* From here on the frame is known to be whole: reading a token cannot fail. */
static mpack_token_t read_token(reader *r) {
  mpack_token_t t;
  int status = reader_next(r, &t);
  assert(status == MPACK_OK);
  return t;
}

static const char *read_chunk(reader *r, uint32_t size) {
  if (size == 0) return r->data;
  mpack_token_t t = read_token(r);
  assert(t.type == MPACK_TOKEN_CHUNK && t.length == size);
  return t.data.chunk_ptr;
}

static int refuse_type(reader *r, const char *wanted) {
  return refuse(&r->at, RULE_FIELD_TYPE, "is not %s", wanted);
}

static int read_integer(reader *r, const field *f, void *value) {
  mpack_token_t t = read_token(r);
  if (t.type != MPACK_TOKEN_UINT && t.type != MPACK_TOKEN_SINT) return refuse_type(r, "an integer");
  integer v = {.negative = t.type == MPACK_TOKEN_SINT};
  v.bits = v.negative ? (uint64_t)mpack_unpack_sint(t) : mpack_unpack_uint(t);
  int code = check_integer(&r->at, f, v);
  if (code != ERR_OK) return code;
  uint32_t word = (uint32_t)v.bits;
  if (f->kind == FIELD_U64)
    memcpy(value, &v.bits, sizeof v.bits);
  else
    memcpy(value, &word, sizeof word);
  return ERR_OK;
}

static int read_float(reader *r, const field *f, void *value) {
  mpack_token_t t = read_token(r);
  if (t.type != MPACK_TOKEN_FLOAT) return refuse_type(r, "a 32-bit float");
  float v;
  memcpy(&v, &t.data.value.lo, sizeof v);
  memcpy(value, &v, sizeof v);
  return check_float(&r->at, f, v);
}

static int read_bool(reader *r, void *value) {
  mpack_token_t t = read_token(r);
  if (t.type != MPACK_TOKEN_BOOLEAN) return refuse_type(r, "true or false");
  *(bool *)value = t.data.value.lo != 0;
  return ERR_OK;
}

static int read_bin16(reader *r, void *value) {
  mpack_token_t t = read_token(r);
  if (t.type != MPACK_TOKEN_BIN) return refuse_type(r, "a bin of 16 bytes");
  if (t.length != 16) return refuse(&r->at, RULE_BIN16, "has %u bytes instead of 16", t.length);
  memcpy(value, read_chunk(r, 16), 16);
  return ERR_OK;
}

static int read_string(reader *r, void *value) {
  mpack_token_t t = read_token(r);
  if (t.type != MPACK_TOKEN_STR) return refuse_type(r, "a string");
  if (t.length > WIRE_STRING_MAX)
    return refuse(&r->at, RULE_STRING_LIMIT, "has %u bytes, the limit is %d", t.length, WIRE_STRING_MAX);
  const char *bytes = read_chunk(r, t.length);
  for (size_t i = 0, size; i < t.length; i += size) {
    size = character_size((const uint8_t *)bytes + i, t.length - i);
    if (size == 0) return refuse(&r->at, RULE_STRING_TEXT, "is not clean UTF-8 at byte %zu", i);
  }
  wire_string s = {arena_copy(r->memory, bytes, t.length), t.length};
  if (!s.data) return refuse(&r->at, RULE_MEMORY, "has no room");
  memcpy(value, &s, sizeof s);
  return ERR_OK;
}

static int read_magic(reader *r) {
  mpack_token_t t = read_token(r);
  uint32_t size = sizeof WIRE_MAGIC - 1;
  if (t.type != MPACK_TOKEN_STR || t.length != size || memcmp(read_chunk(r, size), WIRE_MAGIC, size) != 0)
    return refuse(&r->at, RULE_MAGIC, "is not \"" WIRE_MAGIC "\": the peer is another program");
  return ERR_OK;
}

static int read_blob(reader *r, const field *f, char *base) {
  mpack_token_t t = read_token(r);
  if (t.type != MPACK_TOKEN_NIL && t.type != MPACK_TOKEN_BIN) return refuse_type(r, "nil or a bin");
  void *data = NULL;
  uint32_t size = t.type == MPACK_TOKEN_BIN ? t.length : 0;
  if (size > f->max)
    return refuse(&r->at, RULE_BLOB_LIMIT, "has %u bytes, the limit is %llu", size,
                  (unsigned long long)f->max);
  if (t.type == MPACK_TOKEN_BIN) {
    data = arena_copy(r->memory, read_chunk(r, size), size);
    if (!data) return refuse(&r->at, RULE_MEMORY, "has no room");
  }
  memcpy(base + f->offset, &data, sizeof data);
  memcpy(base + f->count_offset, &size, sizeof size);
  return ERR_OK;
}

static int read_value(reader *r, const field *f, char *value) {
  switch (f->kind) {
  case FIELD_U32:
  case FIELD_I32:
  case FIELD_U64:
  case FIELD_ENUM:
    return read_integer(r, f, value);
  case FIELD_F32:
  case FIELD_SCORE:
    return read_float(r, f, value);
  case FIELD_BOOL:
    return read_bool(r, value);
  case FIELD_BIN16:
    return read_bin16(r, value);
  case FIELD_STR:
    return read_string(r, value);
  case FIELD_MAGIC:
    return read_magic(r);
  case FIELD_BLOB:
  case FIELD_GROUP:
    break;
  }
  assert(!"a field with two parts is no single value");
  return ERR_INTERNAL;
}

static int read_list(reader *r, const field *f, char *base) {
  mpack_token_t t = read_token(r);
  int32_t known;
  memcpy(&known, base + f->count_offset, sizeof known);
  if (t.type != MPACK_TOKEN_ARRAY) return refuse_type(r, "an array");
  if (t.length > f->count_max)
    return refuse(&r->at, RULE_LIST_LIMIT, "has %u entries, the limit is %u", t.length, f->count_max);
  if (f->same_count && t.length != (uint32_t)known)
    return refuse(&r->at, RULE_LIST_SAME, "has %u entries, the list before it %d", t.length, known);
  char *items = arena_take(r->memory, t.length * field_element_size(f->kind));
  if (!items) return refuse(&r->at, RULE_MEMORY, "has no room");
  int code = ERR_OK;
  for (uint32_t i = 0; i < t.length && code == ERR_OK; i++) {
    r->at.index = i;
    code = read_value(r, f, items + i * field_element_size(f->kind));
  }
  r->at.index = -1;
  int32_t count = (int32_t)t.length;
  memcpy(base + f->offset, &items, sizeof items);
  memcpy(base + f->count_offset, &count, sizeof count);
  return code;
}

static int read_group(reader *r, const field_group *group, char *base);

/* Fields that every frame has; a later version may have added others behind them. */
static uint32_t least_count(const field_group *group) {
  uint32_t n = 0;
  while (n < group->count && group->list[n].absent_size == 0) n++;
  return n;
}

/* `count` things, `head` of which are not of the group. */
static int check_count(reader *r, const field_group *group, uint32_t head, uint32_t count, const char *what) {
  uint32_t most = head + group->count, least = head + least_count(group);
  if (count >= least && count <= most) return ERR_OK;
  if (least == most) return refuse(&r->at, RULE_FIELDS, "has %u %s instead of %u", count, what, most);
  return refuse(&r->at, RULE_FIELDS, "has %u %s instead of %u to %u", count, what, least, most);
}

static int read_nested(reader *r, const field *f, char *base) {
  const char *around = r->at.group;
  mpack_token_t t = read_token(r);
  if (t.type != MPACK_TOKEN_ARRAY) return refuse_type(r, "an array");
  int code = check_count(r, f->group, 0, t.length, "fields");
  if (code != ERR_OK) return code;
  r->at.group = f->name;
  code = read_group(r, &(field_group){f->group->list, t.length}, base + f->offset);
  r->at.group = around;
  return code;
}

static int read_group(reader *r, const field_group *group, char *base) {
  int code = ERR_OK;
  for (uint32_t i = 0; i < group->count && code == ERR_OK; i++) {
    const field *f = &group->list[i];
    r->at.field = f->name;
    if (f->list)
      code = read_list(r, f, base);
    else if (f->kind == FIELD_BLOB)
      code = read_blob(r, f, base);
    else if (f->kind == FIELD_GROUP)
      code = read_nested(r, f, base);
    else
      code = read_value(r, f, base + f->offset);
    r->at.field = f->name;
    if (code == ERR_OK && i + 1 == group->count && field_is_absent(f, base))
      code = refuse(&r->at, RULE_LEFT_OUT, "is given, and is empty: it is left out then");
  }
  r->at.field = NULL;
  return code;
}

static const field envelope_fields[ENVELOPE_FIELDS] = {
    {.name = "type", .kind = FIELD_U32, .offset = offsetof(msg, type), .max = UINT32_MAX},
    {.name = "to", .kind = FIELD_BIN16, .offset = offsetof(msg, to)},
    {.name = "session", .kind = FIELD_U64, .offset = offsetof(msg, session), .max = UINT64_MAX},
    {.name = "epoch", .kind = FIELD_U32, .offset = offsetof(msg, epoch), .max = UINT32_MAX},
};
static const field_group envelope_group = {envelope_fields, ENVELOPE_FIELDS};

/* The versions of a HELLO are judged before anything that a later version may have changed: its first seven
 * entries are the same in all versions. `r` is a copy, so the fields are read again afterwards. */
#define HELLO_FIXED 3
static int read_versions(reader r, const fields_shape *shape, uint32_t count) {
  msg_hello h = {0};
  if (count < ENVELOPE_FIELDS + HELLO_FIXED) return refuse(&r.at, RULE_FIELDS, "has %u entries", count);
  int code = read_group(&r, &(field_group){shape->fields.list, HELLO_FIXED}, (char *)&h);
  return code == ERR_OK ? check_version(&r.at, h.version_min, h.version_max) : code;
}

static int read_message(reader *r, uint32_t count, msg *m) {
  r->at.message = "envelope";
  if (count < ENVELOPE_FIELDS)
    return refuse(&r->at, RULE_ENVELOPE, "has %u entries instead of at least %d", count, ENVELOPE_FIELDS);
  int code = read_group(r, &envelope_group, (char *)m);
  if (code != ERR_OK) return code;
  const fields_shape *shape = fields_shape_of(m->type);
  if (!shape)
    return refuse(&r->at, RULE_MESSAGE_TYPE, "has type %u, which no message has", (unsigned)m->type);
  r->at.message = shape->name;
  code = check_envelope(&r->at, shape, m);
  if (code == ERR_OK && (m->type == MSG_HELLO || m->type == MSG_WELCOME))
    code = read_versions(*r, shape, count);
  if (code != ERR_OK) return code;
  code = check_count(r, &shape->fields, ENVELOPE_FIELDS, count, "entries");
  if (code != ERR_OK) return code;
  code = read_group(r, &(field_group){shape->fields.list, count - ENVELOPE_FIELDS}, (char *)&m->u);
  return code == ERR_OK ? check_message(shape, m, r->at.e) : code;
}

/* As much of the envelope as can be read, so that even a broken frame can be answered about its session. */
static void peek_envelope(const uint8_t *data, size_t size, msg *m) {
  reader r;
  mpack_token_t t;
  reader_init(&r, data, size, NULL, NULL);
  if (reader_next(&r, &t) != MPACK_OK || t.type != MPACK_TOKEN_ARRAY || t.length < ENVELOPE_FIELDS) return;
  if (reader_next(&r, &t) != MPACK_OK || t.type != MPACK_TOKEN_UINT) return;
  uint64_t type = mpack_unpack_uint(t);
  if (reader_next(&r, &t) != MPACK_OK || t.type != MPACK_TOKEN_BIN || t.length != 16) return;
  if (reader_next(&r, &t) != MPACK_OK || t.length != 16) return;
  m->type = fields_shape_of(type) ? (msg_type)type : 0;
  if (reader_next(&r, &t) != MPACK_OK || t.type != MPACK_TOKEN_UINT) return;
  m->session = mpack_unpack_uint(t);
  if (reader_next(&r, &t) != MPACK_OK || t.type != MPACK_TOKEN_UINT) return;
  uint64_t epoch = mpack_unpack_uint(t);
  m->epoch = epoch <= UINT32_MAX ? (uint32_t)epoch : 0;
}

int codec_decode(const uint8_t *data, size_t size, arena *a, msg *m, err *e) {
  memset(m, 0, sizeof *m);
  peek_envelope(data, size, m);
  int code = scan_frame(data, size, e);
  if (code != ERR_OK) return code;
  reader r;
  reader_init(&r, data, size, a, e);
  return read_message(&r, read_token(&r).length, m);
}
