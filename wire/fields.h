/* fields.h - the fields of every message as tables, in wire order. Encoding, decoding and copying all walk
 * these tables. Private to wire/. wire/PROTOCOL.md gives the same fields in prose. */
#pragma once

#include "common/base/err.h"
#include "wire/message.h"
#include <stddef.h>

typedef enum {
  FIELD_MAGIC, /* the string WIRE_MAGIC; nothing in memory */
  FIELD_U32,
  FIELD_I32,
  FIELD_U64,
  FIELD_ENUM,  /* an int in memory; a number outside [min, max] is an unknown value, not one that is too large
                */
  FIELD_F32,   /* finite */
  FIELD_SCORE, /* a float in [FIELD_SCORE_MIN, 0] */
  FIELD_BOOL,
  FIELD_BIN16, /* hash16 or wire_id */
  FIELD_STR,   /* wire_string */
  FIELD_BLOB,  /* nil or bin of at most `max` bytes: pointer at offset, uint32_t size at count_offset */
  FIELD_GROUP  /* a nested array with fields of its own */
} field_kind;

#define FIELD_SCORE_MIN  (-100.0f)
#define FIELD_ABSENT_MAX 24

struct field_group;

typedef struct field {
  const char *name;
  field_kind kind;
  size_t offset; /* in the struct of the group */
  int64_t min;   /* integers: the values allowed */
  uint64_t max;
  bool list;       /* an array of `kind`: pointer at offset, int32_t count at count_offset */
  bool same_count; /* its count was given by an earlier list */
  size_t count_offset;
  uint32_t count_max;
  const struct field_group *group;
  /* A later version has added it, at the end of a message or group: it is left out where the `absent_size`
   * bytes at absent_offset are zero, as they are when a frame lacks it, and so are those of all fields behind
   * it. 0: it is always there. */
  size_t absent_offset, absent_size; /* at most FIELD_ABSENT_MAX */
} field;

typedef struct field_group {
  const field *list;
  uint32_t count;
} field_group;

typedef enum { ENVELOPE_ANY, ENVELOPE_ZERO, ENVELOPE_NONZERO } fields_envelope;

#define SHAPE_BAD_MAX 160 /* bytes of a rule's name and its sentence */

typedef struct fields_shape {
  const char *name; /* NULL: no such type */
  field_group fields;
  fields_envelope to, session;
  /* Rules between fields; may be NULL. ERR_OK, or a code with the rule's name and a sentence in bad[]. */
  int (*check)(const msg *m, char bad[SHAPE_BAD_MAX]);
} fields_shape;

/* NULL for a number that is no message type. */
const fields_shape *fields_shape_of(uint64_t type);

size_t field_element_size(field_kind kind); /* bytes of one element of a list */
/* Is this field of the struct at `base` left out of the frame? */
bool field_is_absent(const field *f, const char *base);
