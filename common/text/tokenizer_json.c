/* A tokenizer.json is a pipeline of named parts: normalizer, pre_tokenizer, model, post_processor, decoder. What tandem
 * has is a row of the table below; everything else is refused by its name, because a part that is left out would change
 * ids silently. Source: the tokenizers library's documentation of its components. */
#include "common/file/json_text.h"
#include "common/text/tokenizer_parts.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  MERGES_MAX = 1 << 21,
  NAME_PRINT_BYTES = 40,
  PATH_BYTES_MAX = 4096,
  KNOWN_BYTES_MAX = 200
};

typedef struct reader {
  tokenizer *t;
  bool any_stage; /* a pre-tokenizer has been read */
  bool closed;    /* nothing may follow it */
  err *e;
} reader;

static int bad_json(reader *r, const char *why) {
  return err_set(r->e, ERR_FORMAT, "tokenizer.json: %s: download it again", why);
}

/* A name from the file, fit for a message. */
static const char *printable(const char *text, char out[NAME_PRINT_BYTES + 1]) {
  size_t i = 0;
  for (; text[i] && i < NAME_PRINT_BYTES; i++) out[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
  out[i] = '\0';
  return out;
}

static int unsupported(reader *r, const char *what) {
  return err_set(r->e, ERR_UNSUPPORTED, "tokenizer.json: %s is not supported: use another model", what);
}

/* ---- JSON ---- */

static bool is_text(const json_t *value, const char *want) {
  return json_is_string(value) && json_string_length(value) == strlen(want) &&
         strcmp(json_string_value(value), want) == 0;
}

/* A pattern is {"String": text} or {"Regex": text}. */
static bool is_string_pattern(const json_t *pattern, const char *want) {
  return is_text(json_object_get(pattern, "String"), want);
}

static bool is_empty(const json_t *value) {
  return !value || json_is_null(value) || is_text(value, "");
}

static bool bool_of(const json_t *value, bool otherwise) {
  return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

/* ---- the parts ---- */

typedef struct part_kind {
  const char *what, *type, *children; /* children: the key of a sequence's parts */
  int (*read)(reader *r, const json_t *part);
} part_kind;

static int read_nothing(reader *r, const json_t *part) {
  (void)r, (void)part;
  return ERR_OK;
}

static int read_nfc(reader *r, const json_t *part) {
  (void)part;
  if (r->t->before.prefix || r->t->before.escape) return unsupported(r, "a normalizer NFC after others");
  r->t->before.nfc = true;
  return ERR_OK;
}

static int read_prepend(reader *r, const json_t *part) {
  if (!is_text(json_object_get(part, "prepend"), BLANK)) return unsupported(r, "a normalizer Prepend of other than U+2581");
  r->t->before.prefix = PREFIX_ALWAYS;
  return ERR_OK;
}

static int read_replace(reader *r, const json_t *part) {
  if (!is_string_pattern(json_object_get(part, "pattern"), " ") || !is_text(json_object_get(part, "content"), BLANK))
    return unsupported(r, "a normalizer Replace of other than blanks by U+2581");
  r->t->before.escape = true;
  return ERR_OK;
}

static int read_byte_level(reader *r, const json_t *part) {
  unsigned options;
  if (bool_of(json_object_get(part, "add_prefix_space"), true)) {
    if (r->any_stage) return unsupported(r, "a pre_tokenizer ByteLevel with add_prefix_space after others");
    r->t->after.prefix = PREFIX_UNLESS_THERE;
  }
  r->t->bytes = r->closed = true;
  if (!bool_of(json_object_get(part, "use_regex"), true)) return ERR_OK;
  return splitter_add_named(r->t->split, "gpt2", 4, &options, r->e);
}

static int read_digits(reader *r, const json_t *part) {
  const char *pattern = bool_of(json_object_get(part, "individual_digits"), false) ? "\\p{N}" : "\\p{N}++";
  return splitter_add(r->t->split, pattern, strlen(pattern), SPLIT_ISOLATED, false, r->e);
}

static int read_metaspace(reader *r, const json_t *part) {
  const json_t *scheme = json_object_get(part, "prepend_scheme");
  if (r->any_stage || !is_text(json_object_get(part, "replacement"), BLANK))
    return unsupported(r, "a pre_tokenizer Metaspace that is not the first or of other than U+2581");
  bool never = is_text(scheme, "never") || !bool_of(json_object_get(part, "add_prefix_space"), true);
  r->t->after.escape = true;
  r->t->after.prefix = never ? PREFIX_NONE : is_text(scheme, "first") ? PREFIX_FIRST : PREFIX_UNLESS_THERE;
  if (!bool_of(json_object_get(part, "split"), true)) return ERR_OK;
  return splitter_add(r->t->split, BLANK, BLANK_SIZE, SPLIT_WITH_NEXT, false, r->e);
}

/* A text as a pattern that matches it alone. */
static int add_literal(reader *r, const json_t *text, split_behaviour b, bool invert) {
  size_t size = json_string_length(text), count = 0;
  const char *p = json_string_value(text);
  if (size > SPLITTER_PATTERN_MAX / 2) return unsupported(r, "a pre_tokenizer Split by a long text");
  char *pattern = malloc(2 * size + 1);
  if (!pattern) return err_set(r->e, ERR_NOMEM, "out of memory for the tokenizer's pattern");
  for (size_t i = 0; i < size; i++) {
    if ((uint8_t)p[i] < 0x80 && !isalnum((uint8_t)p[i])) pattern[count++] = '\\';
    pattern[count++] = p[i];
  }
  int rc = splitter_add(r->t->split, pattern, count, b, invert, r->e);
  free(pattern);
  return rc;
}

static int read_split(reader *r, const json_t *part) {
  static const char *const names[] = {
      [SPLIT_ISOLATED] = "Isolated", [SPLIT_WITH_PREVIOUS] = "MergedWithPrevious", [SPLIT_WITH_NEXT] = "MergedWithNext"};
  const json_t *pattern = json_object_get(part, "pattern"), *behaviour = json_object_get(part, "behavior");
  const json_t *regex = json_object_get(pattern, "Regex"), *text = json_object_get(pattern, "String");
  bool invert = json_is_true(json_object_get(part, "invert"));
  for (int b = SPLIT_ISOLATED; b <= SPLIT_WITH_NEXT; b++) {
    if (!is_text(behaviour, names[b])) continue;
    if (json_is_string(regex))
      return splitter_add(r->t->split, json_string_value(regex), json_string_length(regex), (split_behaviour)b, invert,
                          r->e);
    if (json_is_string(text)) return add_literal(r, text, (split_behaviour)b, invert);
  }
  return unsupported(r, "a pre_tokenizer Split of this pattern or behavior");
}

/* [beginning token] text: what else a template adds is refused. */
static int read_template_processing(reader *r, const json_t *part) {
  const json_t *single = json_object_get(part, "single"), *token = NULL;
  size_t count = json_array_size(single);
  if (count < 1 || count > 2 || !json_object_get(json_array_get(single, count - 1), "Sequence"))
    return unsupported(r, "a post_processor that adds other than one token before the text");
  if (count == 1) return ERR_OK;
  token = json_object_get(json_object_get(json_array_get(single, 0), "SpecialToken"), "id");
  if (!json_is_string(token)) return bad_json(r, "the post_processor's token has no id");
  const json_t *ids =
      json_object_get(json_object_get(json_object_get(part, "special_tokens"), json_string_value(token)), "ids");
  const json_t *id = json_array_get(ids, 0);
  if (json_array_size(ids) != 1 || !json_is_integer(id) || json_integer_value(id) < 0 ||
      json_integer_value(id) >= r->t->v.count)
    return bad_json(r, "the post_processor's token is none of the vocabulary");
  r->t->bos = (int32_t)json_integer_value(id);
  r->t->adds_bos = true;
  return ERR_OK;
}

static int read_metaspace_decoder(reader *r, const json_t *part) {
  r->t->strips_blank = !is_text(json_object_get(part, "prepend_scheme"), "never") &&
                       bool_of(json_object_get(part, "add_prefix_space"), true);
  return ERR_OK;
}

static int read_replace_decoder(reader *r, const json_t *part) {
  if (is_string_pattern(json_object_get(part, "pattern"), BLANK) && is_text(json_object_get(part, "content"), " "))
    return ERR_OK;
  return unsupported(r, "a decoder Replace of other than U+2581 by a blank");
}

static int read_strip(reader *r, const json_t *part) {
  if (!is_text(json_object_get(part, "content"), " ") || json_integer_value(json_object_get(part, "start")) != 1 ||
      json_integer_value(json_object_get(part, "stop")) != 0)
    return unsupported(r, "a decoder Strip of other than one blank at the beginning");
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

static int unknown_part(reader *r, const char *what, const char *type) {
  char known[KNOWN_BYTES_MAX] = "", shown[NAME_PRINT_BYTES + 1];
  for (int i = 0; i < PART_COUNT; i++)
    if (strcmp(PARTS[i].what, what) == 0)
      snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", known[0] ? ", " : "", PARTS[i].type);
  return err_set(r->e, ERR_UNSUPPORTED, "tokenizer.json: the %s '%s' is not supported; those known are %s: use another model",
                 what, printable(type, shown), known);
}

/* Reads a part, or those of a sequence; null: there is none. Sequences in sequences end with JSON's own depth. */
static int read_part(reader *r, const char *what, const json_t *part) {
  const json_t *type = json_object_get(part, "type"), *child;
  const part_kind *kind = PARTS, *end = PARTS + PART_COUNT;
  size_t i;
  if (!part || json_is_null(part)) return ERR_OK;
  if (!json_is_string(type)) return unknown_part(r, what, "");
  while (kind < end && (strcmp(kind->what, what) || !is_text(type, kind->type))) kind++;
  if (kind == end) return unknown_part(r, what, json_string_value(type));
  if (kind->read) {
    bool splits = strcmp(what, "pre_tokenizer") == 0;
    if (splits && r->closed) return unsupported(r, "a pre_tokenizer after ByteLevel");
    int rc = kind->read(r, part);
    r->any_stage |= splits;
    return rc;
  }
  json_array_foreach(json_object_get(part, kind->children), i, child) {
    int rc = read_part(r, what, child);
    if (rc) return rc;
  }
  return ERR_OK;
}

/* ---- the model ---- */

/* "left right", or ["left", "right"]; false: neither. */
static bool parts_of_merge(const json_t *merge, const char **left, size_t *left_size, const char **right,
                           size_t *right_size) {
  const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
  if (json_is_string(merge)) {
    *left = json_string_value(merge);
    const char *blank = memchr(*left, ' ', json_string_length(merge));
    if (!blank) return false;
    *left_size = (size_t)(blank - *left);
    *right = blank + 1;
    *right_size = json_string_length(merge) - *left_size - 1;
    return true;
  }
  if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b)) return false;
  *left = json_string_value(a), *left_size = json_string_length(a);
  *right = json_string_value(b), *right_size = json_string_length(b);
  return true;
}

static int read_merge(reader *r, const json_t *merge, uint32_t rank, char *joined) {
  const char *left, *right;
  size_t left_size, right_size;
  int32_t merged = -1, left_id = -1, right_id = -1;
  if (parts_of_merge(merge, &left, &left_size, &right, &right_size) && left_size + right_size <= r->t->longest) {
    memcpy(joined, left, left_size);
    memcpy(joined + left_size, right, right_size);
    merged = tokenizer_spelt(r->t, joined, left_size + right_size);
    left_id = tokenizer_spelt(r->t, left, left_size);
    right_id = tokenizer_spelt(r->t, right, right_size);
  }
  if (merged < 0 || left_id < 0 || right_id < 0)
    return err_set(r->e, ERR_FORMAT, "tokenizer.json: merge %u is not two tokens that make a third: download it again",
                   rank);
  bpe_add(r->t->merges, left_id, right_id, rank, merged);
  return ERR_OK;
}

static int read_merges(reader *r, const json_t *merges) {
  const json_t *merge;
  size_t i, count = json_array_size(merges);
  int rc = ERR_OK;
  if (!json_is_array(merges)) return bad_json(r, "the model has no merges");
  if (count > MERGES_MAX) return err_set(r->e, ERR_LIMIT, "tokenizer.json: more than %d merges", MERGES_MAX);
  char *joined = malloc(r->t->longest + 1);
  if (!joined || bpe_alloc(&r->t->merges, (uint32_t)count)) rc = err_set(r->e, ERR_NOMEM, "out of memory for the merges");
  for (i = 0; !rc && i < count; i++) {
    merge = json_array_get(merges, i);
    rc = read_merge(r, merge, (uint32_t)i, joined);
  }
  free(joined);
  return rc;
}

static int check_model(reader *r, const json_t *model) {
  char text[NAME_PRINT_BYTES + 1];
  const json_t *type = json_object_get(model, "type");
  if (!json_is_object(model)) return bad_json(r, "no model");
  if (json_is_string(type) && !is_text(type, "BPE"))
    return err_set(r->e, ERR_UNSUPPORTED,
                   "tokenizer.json: the model '%s' is not supported; the one known is BPE: use another model",
                   printable(json_string_value(type), text));
  if (!json_is_string(type) && !json_is_array(json_object_get(model, "merges"))) return bad_json(r, "a model of no kind");
  if (!is_empty(json_object_get(model, "continuing_subword_prefix")) ||
      !is_empty(json_object_get(model, "end_of_word_suffix")))
    return unsupported(r, "a model with continuing_subword_prefix or end_of_word_suffix");
  const json_t *dropout = json_object_get(model, "dropout");
  return json_number_value(dropout) > 0 ? unsupported(r, "a model with dropout") : ERR_OK;
}

static int read_model(reader *r, const json_t *model) {
  const json_t *unknown = json_object_get(model, "unk_token");
  int rc = tokenizer_prepare(r->t, r->e);
  if (rc) return rc;
  if (json_is_string(unknown))
    r->t->unknown = tokenizer_spelt(r->t, json_string_value(unknown), json_string_length(unknown));
  r->t->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
  r->t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
  return read_merges(r, json_object_get(model, "merges"));
}

/* ---- added tokens ---- */

static unsigned flags_of(const json_t *token) {
  static const struct {
    const char *key;
    unsigned flag;
  } rows[] = {{"special", ADDED_SPECIAL},
              {"lstrip", ADDED_LSTRIP},
              {"rstrip", ADDED_RSTRIP},
              {"single_word", ADDED_SINGLE_WORD}};
  unsigned flags = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (json_is_true(json_object_get(token, rows[i].key))) flags |= rows[i].flag;
  return flags;
}

/* One that is `normalized` is looked for in normalised text, and so is normalised itself. */
static int add_token(reader *r, const json_t *token) {
  static const text_rule none = {0};
  const json_t *content = json_object_get(token, "content");
  json_int_t id = json_integer_value(json_object_get(token, "id"));
  unsigned flags = flags_of(token) | (tokenizer_is_special(r->t, (int32_t)id) ? ADDED_SPECIAL : 0);
  bool normal = bool_of(json_object_get(token, "normalized"), !(flags & ADDED_SPECIAL));
  const char *text;
  char *made;
  size_t size;
  int rc = text_rule_apply(normal ? &r->t->before : &none, json_string_value(content), json_string_length(content), true,
                           &text, &size, &made);
  if (!rc && size > SPECIAL_BYTES_MAX)
    rc = err_set(r->e, ERR_LIMIT, "tokenizer.json: an added token is longer than %d bytes", SPECIAL_BYTES_MAX);
  else if (!rc && size)
    rc = special_set_add(normal ? &r->t->normal : &r->t->raw, text, (uint32_t)size,
                         (int32_t)id, flags);
  free(made);
  return rc == ERR_NOMEM ? err_set(r->e, rc, "out of memory for the added tokens") : rc;
}

static int read_added(reader *r, const json_t *added) {
  const json_t *token;
  size_t i;
  json_array_foreach(added, i, token) {
    int rc = add_token(r, token);
    if (rc) return rc;
  }
  special_set_sort(&r->t->raw);
  special_set_sort(&r->t->normal);
  return ERR_OK;
}

/* ---- the whole ---- */

static int read_tokenizer(reader *r, const json_t *root, int32_t size_min) {
  const json_t *model = json_object_get(root, "model");
  int rc = check_model(r, model);
  if (!rc) rc = vocabulary_read_json(&r->t->v, root, size_min, r->e);
  if (!rc) rc = read_part(r, "normalizer", json_object_get(root, "normalizer"));
  if (!rc) rc = read_part(r, "pre_tokenizer", json_object_get(root, "pre_tokenizer"));
  if (!rc && r->t->before.prefix && !r->t->before.escape) rc = unsupported(r, "a normalizer Prepend without Replace");
  if (!rc) rc = read_model(r, model);
  if (!rc) rc = read_added(r, json_object_get(root, "added_tokens"));
  if (!rc) rc = read_part(r, "post_processor", json_object_get(root, "post_processor"));
  return rc ? rc : read_part(r, "decoder", json_object_get(root, "decoder"));
}

/* ---- the files beside it ---- */

/* A token by its text, which is a string or {"content": string}; -1: none. */
static int32_t token_named(const tokenizer *t, const json_t *value) {
  if (json_is_object(value)) value = json_object_get(value, "content");
  return json_is_string(value) ? tokenizer_spelt(t, json_string_value(value), json_string_length(value)) : -1;
}

static int32_t token_numbered(const tokenizer *t, const json_t *value) {
  json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
  return id >= 0 && id < t->v.count ? (int32_t)id : -1;
}

/* One text, or a list of {"name", "template"} of which the one named default is meant. */
static const json_t *find_template(const json_t *value) {
  const json_t *row;
  size_t i;
  if (json_is_string(value)) return value;
  json_array_foreach(value, i, row) {
    if (is_text(json_object_get(row, "name"), "default")) return json_object_get(row, "template");
  }
  return NULL;
}

static int read_config(reader *r, const json_t *config) {
  tokenizer *t = r->t;
  const json_t *template = find_template(json_object_get(config, "chat_template"));
  int32_t bos = token_named(t, json_object_get(config, "bos_token"));
  if (bos >= 0) t->bos = bos;
  t->eos = token_named(t, json_object_get(config, "eos_token"));
  t->adds_bos = bool_of(json_object_get(config, "add_bos_token"), t->adds_bos) && t->bos >= 0;
  if (t->template || !json_is_string(template)) return ERR_OK;
  return tokenizer_set_template(t, json_string_value(template), json_string_length(template), r->e);
}

static int read_generation(reader *r, const json_t *generation) {
  tokenizer *t = r->t;
  const json_t *ends = json_object_get(generation, "eos_token_id"), *end;
  size_t i;
  if (t->bos < 0) t->bos = token_numbered(t, json_object_get(generation, "bos_token_id"));
  if (t->eos < 0) t->eos = token_numbered(t, json_is_array(ends) ? json_array_get(ends, 0) : ends);
  tokenizer_add_stop(t, t->eos);
  tokenizer_add_stop(t, token_numbered(t, ends));
  json_array_foreach(ends, i, end) tokenizer_add_stop(t, token_numbered(t, end));
  return ERR_OK;
}

typedef int file_read(reader *r, const json_t *root);

static int read_beside(reader *r, const char *name, const char *text, size_t size, file_read *read) {
  json_t *root = NULL;
  int rc = text ? json_text_parse(&root, name, text, size, r->e) : ERR_OK;
  if (!rc) rc = read(r, root);
  json_decref(root);
  return rc;
}

static int read_texts(reader *r, const tokenizer_texts *x, int32_t size_min) {
  json_t *root;
  int rc = json_text_parse(&root, "tokenizer.json", x->tokenizer, x->tokenizer_size, r->e);
  if (!rc) rc = read_tokenizer(r, root, size_min);
  json_decref(root);
  if (!rc && x->chat_template) rc = tokenizer_set_template(r->t, x->chat_template, x->chat_template_size, r->e);
  if (!rc) rc = read_beside(r, "tokenizer_config.json", x->config, x->config_size, read_config);
  return rc ? rc : read_beside(r, "generation_config.json", x->generation, x->generation_size, read_generation);
}

int tokenizer_open_texts(tokenizer **out, const tokenizer_texts *texts, int32_t size_min, err *e) {
  tokenizer *t = calloc(1, sizeof *t);
  *out = NULL;
  if (!t || splitter_alloc(&t->split)) {
    free(t);
    return err_set(e, ERR_NOMEM, "out of memory for the tokenizer");
  }
  t->unknown = t->eos = t->bos = -1;
  int rc = read_texts(&(reader){.t = t, .e = e}, texts, size_min);
  if (rc)
    tokenizer_close(t);
  else
    *out = t;
  return rc;
}

/* ---- a folder ---- */

/* `path` with another name for its last part. */
static int path_beside(char out[PATH_BYTES_MAX], const char *path, const char *name, err *e) {
  const char *slash = strrchr(path, '/');
  int size = snprintf(out, PATH_BYTES_MAX, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, name);
  return size < PATH_BYTES_MAX ? ERR_OK : err_set(e, ERR_IO, "the path of %s is too long", name);
}

static int read_beside_file(const char *path, const char *name, char **text, size_t *size, err *e) {
  char beside[PATH_BYTES_MAX];
  int rc = path_beside(beside, path, name, e);
  return rc ? rc : json_text_read(beside, name, text, size, e);
}

int tokenizer_open_json(tokenizer **out, const char *path, int32_t size_min, err *e) {
  char *texts[4] = {NULL};
  tokenizer_texts x = {0};
  *out = NULL;
  int rc = json_text_read(path, "tokenizer.json", &texts[0], &x.tokenizer_size, e);
  if (!rc && !texts[0]) rc = err_set(e, ERR_IO, "the model has no tokenizer.json: it can be asked by prompt_ids only");
  if (!rc) rc = read_beside_file(path, "tokenizer_config.json", &texts[1], &x.config_size, e);
  if (!rc) rc = read_beside_file(path, "generation_config.json", &texts[2], &x.generation_size, e);
  if (!rc) rc = read_beside_file(path, "chat_template.jinja", &texts[3], &x.chat_template_size, e);
  x.tokenizer = texts[0], x.config = texts[1], x.generation = texts[2], x.chat_template = texts[3];
  if (!rc) rc = tokenizer_open_texts(out, &x, size_min, e);
  for (int i = 0; i < 4; i++) free(texts[i]);
  return rc;
}
