/* A tokenizer.json is a pipeline of named parts: normalizer, pre_tokenizer, model, post_processor, decoder.
 * Each part that tandem supports is a row of the table below; any other is refused by its name, because
 * leaving out a part would silently change ids. Source: the tokenizers library's documentation of its
 * components. */
#include "common/text/tokenizer_json.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { KNOWN_BYTES_MAX = 200 };

int tokenizer_json_bad(tokenizer_json *r, const char *why) {
  return err_set(r->e, ERR_FORMAT, "tokenizer.json: %s: download it again", why);
}

int tokenizer_json_unsupported(tokenizer_json *r, const char *what) {
  return err_set(r->e, ERR_UNSUPPORTED, "tokenizer.json: %s is not supported: use another model", what);
}

/* A pattern is {"String": text} or {"Regex": text}. */
static bool is_string_pattern(const json_t *pattern, const char *want) {
  return tokenizer_json_is_text(json_object_get(pattern, "String"), want);
}

/* ---- the parts ---- */

typedef struct part_kind {
  const char *what, *type, *children; /* children: the key of a sequence's parts */
  int (*read)(tokenizer_json *r, const json_t *part);
} part_kind;

static int read_nothing(tokenizer_json *r, const json_t *part) {
  (void)r, (void)part;
  return ERR_OK;
}

static int read_nfc(tokenizer_json *r, const json_t *part) {
  (void)part;
  if (r->t->before.prefix || r->t->before.escape)
    return tokenizer_json_unsupported(r, "a normalizer NFC after others");
  r->t->before.nfc = true;
  return ERR_OK;
}

static int read_prepend(tokenizer_json *r, const json_t *part) {
  if (!tokenizer_json_is_text(json_object_get(part, "prepend"), BLANK))
    return tokenizer_json_unsupported(r, "a normalizer Prepend of other than U+2581");
  r->t->before.prefix = PREFIX_ALWAYS;
  return ERR_OK;
}

static int read_replace(tokenizer_json *r, const json_t *part) {
  if (!is_string_pattern(json_object_get(part, "pattern"), " ") ||
      !tokenizer_json_is_text(json_object_get(part, "content"), BLANK))
    return tokenizer_json_unsupported(r, "a normalizer Replace of other than blanks by U+2581");
  r->t->before.escape = true;
  return ERR_OK;
}

static int read_byte_level(tokenizer_json *r, const json_t *part) {
  unsigned options;
  if (tokenizer_json_bool_of(json_object_get(part, "add_prefix_space"), true)) {
    if (r->any_stage)
      return tokenizer_json_unsupported(r, "a pre_tokenizer ByteLevel with add_prefix_space after others");
    r->t->after.prefix = PREFIX_UNLESS_THERE;
  }
  r->t->bytes = r->closed = true;
  if (!tokenizer_json_bool_of(json_object_get(part, "use_regex"), true)) return ERR_OK;
  return pre_tokenizer_add_named(r->t->split, "gpt2", 4, &options, r->e);
}

static int read_digits(tokenizer_json *r, const json_t *part) {
  const char *pattern =
      tokenizer_json_bool_of(json_object_get(part, "individual_digits"), false) ? "\\p{N}" : "\\p{N}++";
  return pre_tokenizer_add(r->t->split, pattern, strlen(pattern), SPLIT_ISOLATED, false, r->e);
}

static int read_metaspace(tokenizer_json *r, const json_t *part) {
  const json_t *scheme = json_object_get(part, "prepend_scheme");
  if (r->any_stage || !tokenizer_json_is_text(json_object_get(part, "replacement"), BLANK))
    return tokenizer_json_unsupported(
        r, "a pre_tokenizer Metaspace that is not the first or of other than U+2581");
  bool never = tokenizer_json_is_text(scheme, "never") ||
               !tokenizer_json_bool_of(json_object_get(part, "add_prefix_space"), true);
  r->t->after.escape = true;
  r->t->after.prefix = never                                     ? PREFIX_NONE
                       : tokenizer_json_is_text(scheme, "first") ? PREFIX_FIRST
                                                                 : PREFIX_UNLESS_THERE;
  if (!tokenizer_json_bool_of(json_object_get(part, "split"), true)) return ERR_OK;
  return pre_tokenizer_add(r->t->split, BLANK, BLANK_SIZE, SPLIT_WITH_NEXT, false, r->e);
}

/* A text as a pattern that matches it alone. */
static int add_literal(tokenizer_json *r, const json_t *text, pre_tokenizer_match b, bool invert) {
  size_t size = json_string_length(text), count = 0;
  const char *p = json_string_value(text);
  if (size > PRE_TOKENIZER_PATTERN_MAX / 2)
    return tokenizer_json_unsupported(r, "a pre_tokenizer Split by a long text");
  char *pattern = malloc(2 * size + 1);
  if (!pattern) return err_set(r->e, ERR_NOMEM, "out of memory for the tokenizer's pattern");
  for (size_t i = 0; i < size; i++) {
    if ((uint8_t)p[i] < 0x80 && !isalnum((uint8_t)p[i])) pattern[count++] = '\\';
    pattern[count++] = p[i];
  }
  int rc = pre_tokenizer_add(r->t->split, pattern, count, b, invert, r->e);
  free(pattern);
  return rc;
}

static int read_split(tokenizer_json *r, const json_t *part) {
  static const char *const names[] = {[SPLIT_ISOLATED] = "Isolated",
                                      [SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
                                      [SPLIT_WITH_NEXT] = "MergedWithNext"};
  const json_t *pattern = json_object_get(part, "pattern"), *behaviour = json_object_get(part, "behavior");
  const json_t *regex = json_object_get(pattern, "Regex"), *text = json_object_get(pattern, "String");
  bool invert = json_is_true(json_object_get(part, "invert"));
  for (int b = SPLIT_ISOLATED; b <= SPLIT_WITH_NEXT; b++) {
    if (!tokenizer_json_is_text(behaviour, names[b])) continue;
    if (json_is_string(regex))
      return pre_tokenizer_add(r->t->split, json_string_value(regex), json_string_length(regex),
                               (pre_tokenizer_match)b, invert, r->e);
    if (json_is_string(text)) return add_literal(r, text, (pre_tokenizer_match)b, invert);
  }
  return tokenizer_json_unsupported(r, "a pre_tokenizer Split of this pattern or behavior");
}

/* [beginning token] text: what else a template adds is refused. */
static int read_template_processing(tokenizer_json *r, const json_t *part) {
  const json_t *single = json_object_get(part, "single"), *token = NULL;
  size_t count = json_array_size(single);
  if (count < 1 || count > 2 || !json_object_get(json_array_get(single, count - 1), "Sequence"))
    return tokenizer_json_unsupported(r, "a post_processor that adds other than one token before the text");
  if (count == 1) return ERR_OK;
  token = json_object_get(json_object_get(json_array_get(single, 0), "SpecialToken"), "id");
  if (!json_is_string(token)) return tokenizer_json_bad(r, "the post_processor's token has no id");
  const json_t *ids = json_object_get(
      json_object_get(json_object_get(part, "special_tokens"), json_string_value(token)), "ids");
  const json_t *id = json_array_get(ids, 0);
  if (json_array_size(ids) != 1 || !json_is_integer(id) || json_integer_value(id) < 0 ||
      json_integer_value(id) >= r->t->v.count)
    return tokenizer_json_bad(r, "the post_processor's token is none of the vocabulary");
  r->t->bos = (int32_t)json_integer_value(id);
  r->t->adds_bos = true;
  return ERR_OK;
}

static int read_metaspace_decoder(tokenizer_json *r, const json_t *part) {
  r->t->strips_blank = !tokenizer_json_is_text(json_object_get(part, "prepend_scheme"), "never") &&
                       tokenizer_json_bool_of(json_object_get(part, "add_prefix_space"), true);
  return ERR_OK;
}

static int read_replace_decoder(tokenizer_json *r, const json_t *part) {
  if (is_string_pattern(json_object_get(part, "pattern"), BLANK) &&
      tokenizer_json_is_text(json_object_get(part, "content"), " "))
    return ERR_OK;
  return tokenizer_json_unsupported(r, "a decoder Replace of other than U+2581 by a blank");
}

static int read_strip(tokenizer_json *r, const json_t *part) {
  if (!tokenizer_json_is_text(json_object_get(part, "content"), " ") ||
      json_integer_value(json_object_get(part, "start")) != 1 ||
      json_integer_value(json_object_get(part, "stop")) != 0)
    return tokenizer_json_unsupported(r, "a decoder Strip of other than one blank at the beginning");
  r->t->strips_blank = true;
  return ERR_OK;
}

static const part_kind PARTS[] = {
    {"normalizer", "Sequence", "normalizers", NULL},
    {"normalizer", "NFC", NULL, read_nfc},
    {"normalizer", "Prepend", NULL, read_prepend},
    {"normalizer", "Replace", NULL, read_replace},
    {"pre_tokenizer", "Sequence", "pretokenizers", NULL},
    {"pre_tokenizer", "Split", NULL, read_split},
    {"pre_tokenizer", "ByteLevel", NULL, read_byte_level},
    {"pre_tokenizer", "Digits", NULL, read_digits},
    {"pre_tokenizer", "Metaspace", NULL, read_metaspace},
    {"post_processor", "Sequence", "processors", NULL},
    {"post_processor", "TemplateProcessing", NULL, read_template_processing},
    {"post_processor", "ByteLevel", NULL, read_nothing},
    {"decoder", "Sequence", "decoders", NULL},
    {"decoder", "ByteLevel", NULL, read_nothing},
    {"decoder", "Metaspace", NULL, read_metaspace_decoder},
    {"decoder", "Replace", NULL, read_replace_decoder},
    {"decoder", "ByteFallback", NULL, read_nothing},
    {"decoder", "Fuse", NULL, read_nothing},
    {"decoder", "Strip", NULL, read_strip},
};
enum { PART_COUNT = sizeof PARTS / sizeof *PARTS };

static int unknown_part(tokenizer_json *r, const char *what, const char *type) {
  char known[KNOWN_BYTES_MAX] = "", shown[PRINTABLE_TEXT_MAX];
  for (int i = 0; i < PART_COUNT; i++)
    if (strcmp(PARTS[i].what, what) == 0)
      snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", known[0] ? ", " : "",
               PARTS[i].type);
  return err_set(r->e, ERR_UNSUPPORTED,
                 "tokenizer.json: the %s '%s' is not supported; those known are %s: use another model", what,
                 printable_text(shown, type, strlen(type)), known);
}

/* Sequences in sequences end with JSON's own depth. */
int tokenizer_json_part(tokenizer_json *r, const char *what, const json_t *part) {
  const json_t *type = json_object_get(part, "type"), *child;
  const part_kind *kind = PARTS, *end = PARTS + PART_COUNT;
  size_t i;
  if (!part || json_is_null(part)) return ERR_OK;
  if (!json_is_string(type)) return unknown_part(r, what, "");
  while (kind < end && (strcmp(kind->what, what) || !tokenizer_json_is_text(type, kind->type))) kind++;
  if (kind == end) return unknown_part(r, what, json_string_value(type));
  if (kind->read) {
    bool splits = strcmp(what, "pre_tokenizer") == 0;
    if (splits && r->closed) return tokenizer_json_unsupported(r, "a pre_tokenizer after ByteLevel");
    int rc = kind->read(r, part);
    r->any_stage |= splits;
    return rc;
  }
  json_array_foreach(json_object_get(part, kind->children), i, child) {
    int rc = tokenizer_json_part(r, what, child);
    if (rc) return rc;
  }
  return ERR_OK;
}
