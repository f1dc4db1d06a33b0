/* tokenizer_json.h - the inside of the reader of tokenizer.json: its pipeline of named parts
 * (tokenizer_json_parts.c) and the rest (tokenizer_json.c). */
#pragma once

#include "common/file/printable.h"
#include "common/text/tokenizer_parts.h"
#include <string.h>

typedef struct tokenizer_json {
  tokenizer *t;
  bool any_stage; /* a pre-tokenizer has been read */
  bool closed;    /* nothing may follow it */
  err *e;
} tokenizer_json;

/* Reads a part, or those of a sequence; null: there is none. what: "normalizer", "pre_tokenizer",
 * "post_processor" or "decoder". ERR_UNSUPPORTED (names it and those known), ERR_FORMAT, ERR_NOMEM. */
int tokenizer_json_part(tokenizer_json *r, const char *what, const json_t *part);

int tokenizer_json_bad(tokenizer_json *r, const char *why);          /* ERR_FORMAT */
int tokenizer_json_unsupported(tokenizer_json *r, const char *what); /* ERR_UNSUPPORTED */

static inline bool tokenizer_json_is_text(const json_t *value, const char *want) {
  return json_is_string(value) && json_string_length(value) == strlen(want) &&
         strcmp(json_string_value(value), want) == 0;
}

static inline bool tokenizer_json_bool_of(const json_t *value, bool otherwise) {
  return json_is_boolean(value) ? json_is_true(value) : otherwise;
}
