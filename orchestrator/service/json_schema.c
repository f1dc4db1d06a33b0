#include "orchestrator/service/json_schema.h"

#include "common/grammar/grammar.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX   32   /* schemas in each other */
#define LENGTH_MAX  2000 /* of strings and arrays, as GRAMMAR_REPEAT_MAX */
#define CHOICES_MAX 512  /* of enum, anyOf and type */
#define MEMBERS_MAX 256  /* properties of an object */
#define RULES_MAX   1024

/* What every schema may use. A blank may stand where JSON lets it; one, so that no answer is blanks alone. */
static const char common_rules[] =
    "ws ::= (\" \" | \"\\n\" [ \\t]{0,20})?\n"
    "char ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt/] | \"u\" [0-9a-fA-F]{4})\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "integral ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15})\n"
    "integer ::= integral\n"
    "number ::= integral (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n"
    "value ::= object | array | string | number | boolean | null\n"
    "object ::= \"{\" ws (member (ws \",\" ws member)*)? ws \"}\"\n"
    "member ::= string ws \":\" ws value\n"
    "array ::= \"[\" ws (value (ws \",\" ws value)*)? ws \"]\"\n";

typedef struct text {
  char *data;
  size_t size, room;
} text;

typedef struct known { /* a schema that has its rule */
  const json_t *schema;
  int rule;
} known;

typedef struct compiler {
  const json_t *root;
  text out; /* whole rules */
  known rules[RULES_MAX];
  int rule_count, depth;
  err *e;
} compiler;

/* --- text --- */

static int add_bytes(compiler *c, text *t, const char *bytes, size_t size) {
  if (size > GRAMMAR_TEXT_MAX - t->size)
    return err_set(c->e, ERR_LIMIT, "the schema is too large: its grammar has more than %d bytes",
                   GRAMMAR_TEXT_MAX);
  if (t->size + size + 1 > t->room) {
    size_t room = 2 * (t->size + size) + 256;
    char *more = realloc(t->data, room);
    if (!more) return err_set(c->e, ERR_NOMEM, "out of memory for a schema");
    t->data = more;
    t->room = room;
  }
  memcpy(t->data + t->size, bytes, size);
  t->size += size;
  t->data[t->size] = 0;
  return ERR_OK;
}

static int add(compiler *c, text *t, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int add(compiler *c, text *t, const char *format, ...) {
  char words[256];
  va_list args;
  va_start(args, format);
  int size = vsnprintf(words, sizeof words, format, args);
  va_end(args);
  return add_bytes(c, t, words, (size_t)size);
}

/* A literal of these bytes. */
static int add_literal(compiler *c, text *t, const char *bytes, size_t size) {
  int rc = add(c, t, "\"");
  for (size_t i = 0; rc == ERR_OK && i < size; i++) {
    unsigned char b = (unsigned char)bytes[i];
    if (b == '"' || b == '\\')
      rc = add(c, t, "\\%c", b);
    else if (b < ' ')
      rc = add(c, t, "\\x%02X", b);
    else
      rc = add_bytes(c, t, bytes + i, 1);
  }
  return rc ? rc : add(c, t, "\" ");
}

/* A literal of a JSON value, as it is written without blanks. */
static int add_value(compiler *c, text *t, const json_t *value) {
  char *json = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
  int rc =
      json ? add_literal(c, t, json, strlen(json)) : err_set(c->e, ERR_NOMEM, "out of memory for a schema");
  free(json);
  return rc;
}

/* --- rules --- */

static int refuse(compiler *c, int code, const char *keyword, const char *what) {
  return err_set(c->e, code, "the JSON schema: \"%.60s\" %s", keyword, what);
}

static int add_schema(compiler *c, text *t, const json_t *schema);

/* Names the rule of a schema in `t`, and makes it where it is not there yet. */
static int add_rule_of(compiler *c, text *t, const json_t *schema) {
  text body = {0};
  int i = 0;
  while (i < c->rule_count && c->rules[i].schema != schema) i++;
  if (i < c->rule_count) return add(c, t, "r%d ", i);
  if (c->rule_count == RULES_MAX)
    return err_set(c->e, ERR_LIMIT, "the JSON schema has more than %d parts", RULES_MAX);
  if (c->depth == DEPTH_MAX)
    return err_set(c->e, ERR_LIMIT, "the JSON schema nests deeper than %d", DEPTH_MAX);
  c->rules[c->rule_count++] = (known){schema, i};
  c->depth++;
  int rc = add_schema(c, &body, schema);
  c->depth--;
  if (rc == ERR_OK) rc = add(c, &c->out, "r%d ::= ", i);
  if (rc == ERR_OK) rc = add_bytes(c, &c->out, body.data, body.size);
  if (rc == ERR_OK) rc = add(c, &c->out, "\n");
  free(body.data);
  return rc ? rc : add(c, t, "r%d ", i);
}

/* --- numbers of a schema --- */

static int read_count(compiler *c, const json_t *schema, const char *keyword, int otherwise, int *out) {
  const json_t *value = json_object_get(schema, keyword);
  json_int_t n = json_integer_value(value);
  *out = otherwise;
  if (!value) return ERR_OK;
  if (!json_is_integer(value) || n < 0)
    return refuse(c, ERR_ARG, keyword, "must be a whole number from 0 on");
  if (n > LENGTH_MAX) return refuse(c, ERR_LIMIT, keyword, "is above 2000, the most that is supported");
  *out = (int)n;
  return ERR_OK;
}

/* "{least,most}"; most < 0: any number. */
static int add_repetition(compiler *c, text *t, int least, int most) {
  return most < 0 ? add(c, t, "{%d,} ", least) : add(c, t, "{%d,%d} ", least, most);
}

static int read_counts(compiler *c, const json_t *schema, const char *low, const char *high, int *least,
                       int *most) {
  int rc = read_count(c, schema, low, 0, least);
  if (rc == ERR_OK) rc = read_count(c, schema, high, -1, most);
  return rc == ERR_OK && *most >= 0 && *most < *least ? refuse(c, ERR_ARG, high, "is below the least") : rc;
}

/* --- strings, arrays --- */

static int add_string(compiler *c, text *t, const json_t *schema) {
  int least, most;
  int rc = read_counts(c, schema, "minLength", "maxLength", &least, &most);
  if (rc) return rc;
  if (least == 0 && most < 0) return add(c, t, "string ");
  rc = add(c, t, "\"\\\"\" char");
  if (rc == ERR_OK) rc = add_repetition(c, t, least, most);
  return rc ? rc : add(c, t, "\"\\\"\" ");
}

/* The items behind `before` first ones: least to most of them (most < 0: any number). */
static int add_items(compiler *c, text *t, const json_t *items, int before, int least, int most) {
  text item = {0};
  int rc = items && !json_is_true(items) ? add_rule_of(c, &item, items) : add(c, &item, "value ");
  if (rc == ERR_OK && before == 0 && least == 0) rc = add(c, t, "(");
  if (rc == ERR_OK && before == 0) rc = add_bytes(c, t, item.data, item.size);
  if (rc == ERR_OK) rc = add(c, t, "(ws \",\" ws %s)", item.data);
  int less = before == 0; /* the first one has no comma */
  if (rc == ERR_OK) rc = add_repetition(c, t, least > less ? least - less : 0, most < 0 ? -1 : most - less);
  if (rc == ERR_OK && before == 0 && least == 0) rc = add(c, t, ")? ");
  free(item.data);
  return rc;
}

static int add_array(compiler *c, text *t, const json_t *schema) {
  const json_t *items = json_object_get(schema, "items"), *first = json_object_get(schema, "prefixItems");
  int least, most, count = (int)json_array_size(first);
  int rc = read_counts(c, schema, "minItems", "maxItems", &least, &most);
  if (rc) return rc;
  if (first && (!json_is_array(first) || count > CHOICES_MAX || json_object_get(schema, "minItems") ||
                json_object_get(schema, "maxItems")))
    return refuse(c, ERR_UNSUPPORTED, "prefixItems",
                  "must be an array of schemas, without minItems or maxItems");
  rc = add(c, t, "\"[\" ws ");
  for (int i = 0; rc == ERR_OK && i < count; i++) {
    if (i > 0) rc = add(c, t, "ws \",\" ws ");
    if (rc == ERR_OK) rc = add_rule_of(c, t, json_array_get(first, (size_t)i));
  }
  bool none = json_is_false(items) || most == 0 || (first && !items);
  if (rc == ERR_OK && !none) rc = add_items(c, t, items, count, least, most);
  if (rc == ERR_OK && json_is_false(items) && least > 0)
    rc = refuse(c, ERR_ARG, "minItems", "asks for items that \"items\" forbids");
  return rc ? rc : add(c, t, "ws \"]\" ");
}

/* --- objects --- */

static bool is_required(const json_t *schema, const char *key) {
  size_t i;
  json_t *name;
  json_array_foreach(json_object_get(schema, "required"), i, name) {
    if (json_is_string(name) && strcmp(json_string_value(name), key) == 0) return true;
  }
  return false;
}

/* "key": value */
static int add_member(compiler *c, text *t, const char *key, const json_t *schema) {
  json_t *name = json_string(key);
  int rc = name ? add_value(c, t, name) : err_set(c->e, ERR_NOMEM, "out of memory for a schema");
  json_decref(name);
  if (rc == ERR_OK) rc = add(c, t, "ws \":\" ws ");
  return rc ? rc : add_rule_of(c, t, schema);
}

/* The members that may come at the end: any number of others. */
static int add_others(compiler *c, text *t, const json_t *others, bool first) {
  text one = {0};
  int rc = add(c, &one, "string ws \":\" ws ");
  if (rc == ERR_OK) rc = json_is_object(others) ? add_rule_of(c, &one, others) : add(c, &one, "value ");
  if (rc == ERR_OK)
    rc = first ? add(c, t, "(%s(ws \",\" ws %s)*)? ", one.data, one.data)
               : add(c, t, "(ws \",\" ws %s)* ", one.data);
  free(one.data);
  return rc;
}

/* The members from property `it` on, where one stands before them or none does (`first`). Each property that
 * may be left out doubles what follows unless it has a rule of its own: rules "m<schema>-<property>-<first>".
 */
static int add_tail(compiler *c, text *t, const json_t *schema, void *it, bool first, int object, int index);

static int add_tail_rule(compiler *c, text *t, const json_t *schema, void *it, bool first, int object,
                         int index) {
  char name[48], found[64];
  snprintf(name, sizeof name, "m%d-%d-%d", object, index, first);
  snprintf(found, sizeof found, "%s ::=", name);
  if (c->out.data && strstr(c->out.data, found)) return add(c, t, "%s ", name);
  text body = {0};
  int rc = add_tail(c, &body, schema, it, first, object, index);
  if (rc == ERR_OK) rc = add(c, &c->out, "%s ", found);
  if (rc == ERR_OK)
    rc = body.size > 0 ? add_bytes(c, &c->out, body.data, body.size) : add(c, &c->out, "\"\"");
  if (rc == ERR_OK) rc = add(c, &c->out, "\n");
  free(body.data);
  return rc ? rc : add(c, t, "%s ", name);
}

static int add_tail(compiler *c, text *t, const json_t *schema, void *it, bool first, int object, int index) {
  json_t *properties = json_object_get(schema, "properties");
  const json_t *others = json_object_get(schema, "additionalProperties");
  if (!it) return others && !json_is_false(others) ? add_others(c, t, others, first) : ERR_OK;
  const char *key = json_object_iter_key(it);
  bool required = is_required(schema, key);
  void *next = json_object_iter_next(properties, it);
  int rc = required ? ERR_OK : add(c, t, "(");
  if (rc == ERR_OK && !first) rc = add(c, t, "ws \",\" ws ");
  if (rc == ERR_OK) rc = add_member(c, t, key, json_object_iter_value(it));
  if (rc == ERR_OK) rc = add_tail_rule(c, t, schema, next, false, object, index + 1);
  if (rc == ERR_OK && !required) rc = add(c, t, "| ");
  if (rc == ERR_OK && !required) rc = add_tail_rule(c, t, schema, next, first, object, index + 1);
  return rc || required ? rc : add(c, t, ") ");
}

/* Every name of `required` is a property. */
static int check_object(compiler *c, const json_t *schema) {
  const json_t *properties = json_object_get(schema, "properties"),
               *required = json_object_get(schema, "required");
  const json_t *others = json_object_get(schema, "additionalProperties");
  size_t i;
  json_t *name;
  if (properties && !json_is_object(properties)) return refuse(c, ERR_ARG, "properties", "must be an object");
  if (json_object_size(properties) > MEMBERS_MAX)
    return refuse(c, ERR_LIMIT, "properties", "has more than 256 of them");
  if (required && !json_is_array(required))
    return refuse(c, ERR_ARG, "required", "must be an array of names");
  if (others && !json_is_object(others) && !json_is_boolean(others))
    return refuse(c, ERR_ARG, "additionalProperties", "must be a schema, true or false");
  json_array_foreach(required, i, name) {
    if (!json_is_string(name)) return refuse(c, ERR_ARG, "required", "must be an array of names");
    if (!json_object_get(properties, json_string_value(name)))
      return refuse(c, ERR_UNSUPPORTED, json_string_value(name), "is required, but \"properties\" lacks it");
  }
  return ERR_OK;
}

/* Without additionalProperties, an object with properties has no others: a model that may add more does not
 * stop. */
static int add_object(compiler *c, text *t, const json_t *schema) {
  json_t *properties = json_object_get(schema, "properties");
  int rc = check_object(c, schema);
  if (rc) return rc;
  if (json_object_size(properties) == 0 && !json_object_get(schema, "additionalProperties"))
    return add(c, t, "object ");
  rc = add(c, t, "\"{\" ws ");
  if (rc == ERR_OK) rc = add_tail(c, t, schema, json_object_iter(properties), true, c->rule_count, 0);
  return rc ? rc : add(c, t, "ws \"}\" ");
}

/* --- choices --- */

static int add_enum(compiler *c, text *t, const json_t *list) {
  size_t i;
  json_t *value;
  int rc = ERR_OK;
  if (json_array_size(list) < 1) return refuse(c, ERR_ARG, "enum", "must be an array of at least one value");
  if (json_array_size(list) > CHOICES_MAX) return refuse(c, ERR_LIMIT, "enum", "has more than 512 values");
  json_array_foreach(list, i, value) {
    if (i > 0) rc = add(c, t, "| ");
    if (rc == ERR_OK) rc = add_value(c, t, value);
    if (rc) return rc;
  }
  return rc;
}

static int add_any(compiler *c, text *t, const char *keyword, const json_t *list) {
  size_t i, most = strcmp(keyword, "allOf") == 0 ? 1 : CHOICES_MAX;
  json_t *schema;
  int rc = ERR_OK;
  if (json_array_size(list) < 1)
    return refuse(c, ERR_ARG, keyword, "must be an array of at least one schema");
  if (json_array_size(list) > most)
    return refuse(c, ERR_UNSUPPORTED, keyword,
                  most == 1 ? "of several schemas is not supported" : "is too long");
  json_array_foreach(list, i, schema) {
    if (i > 0) rc = add(c, t, "| ");
    if (rc == ERR_OK) rc = add_rule_of(c, t, schema);
    if (rc) return rc;
  }
  return rc;
}

static int add_reference(compiler *c, text *t, const json_t *reference) {
  static const char *const rooms[] = {"$defs", "definitions"};
  const char *path = json_string_value(reference);
  if (path && strcmp(path, "#") == 0) return add_rule_of(c, t, c->root);
  for (size_t i = 0; path && i < 2; i++) {
    size_t size = strlen(rooms[i]);
    if (strncmp(path, "#/", 2) != 0 || strncmp(path + 2, rooms[i], size) != 0 || path[2 + size] != '/')
      continue;
    const json_t *schema = json_object_get(json_object_get(c->root, rooms[i]), path + 3 + size);
    if (schema) return add_rule_of(c, t, schema);
  }
  return refuse(c, ERR_ARG, path ? path : "$ref",
                "names no schema of this one's \"$defs\": only # and #/$defs/NAME are supported");
}

/* --- types --- */

static const struct {
  const char *name;
  int (*add)(compiler *c, text *t, const json_t *schema);
} types[] = {{"object", add_object}, {"array", add_array}, {"string", add_string}, {"number", NULL},
             {"integer", NULL},      {"boolean", NULL},    {"null", NULL}};
enum { TYPES = sizeof types / sizeof *types };

static int add_type(compiler *c, text *t, const json_t *schema, const json_t *name) {
  for (size_t i = 0; json_is_string(name) && i < TYPES; i++) {
    if (strcmp(json_string_value(name), types[i].name) != 0) continue;
    return types[i].add ? types[i].add(c, t, schema) : add(c, t, "%s ", types[i].name);
  }
  return refuse(c, ERR_ARG, "type", "must be object, array, string, number, integer, boolean or null");
}

static int add_types(compiler *c, text *t, const json_t *schema, const json_t *list) {
  size_t i;
  json_t *name;
  if (!json_is_array(list)) return add_type(c, t, schema, list);
  if (json_array_size(list) < 1 || json_array_size(list) > TYPES)
    return refuse(c, ERR_ARG, "type", "must be a type, or an array of them");
  json_array_foreach(list, i, name) {
    int rc = i > 0 ? add(c, t, "| ") : ERR_OK;
    if (rc == ERR_OK) rc = add_type(c, t, schema, name);
    if (rc) return rc;
  }
  return ERR_OK;
}

/* --- keywords --- */

typedef enum { TELLS, CHOICE, TYPE, OBJECT, ARRAY, STRING } keyword_kind;

static const struct {
  const char *name;
  keyword_kind kind;
} keywords[] = {
    {"$schema", TELLS},
    {"$id", TELLS},
    {"$comment", TELLS},
    {"$defs", TELLS},
    {"definitions", TELLS},
    {"title", TELLS},
    {"description", TELLS},
    {"default", TELLS},
    {"examples", TELLS},
    {"deprecated", TELLS},
    {"readOnly", TELLS},
    {"writeOnly", TELLS},
    {"format", TELLS},
    {"$ref", CHOICE},
    {"const", CHOICE},
    {"enum", CHOICE},
    {"anyOf", CHOICE},
    {"oneOf", CHOICE},
    {"allOf", CHOICE},
    {"type", TYPE},
    {"properties", OBJECT},
    {"required", OBJECT},
    {"additionalProperties", OBJECT},
    {"items", ARRAY},
    {"prefixItems", ARRAY},
    {"minItems", ARRAY},
    {"maxItems", ARRAY},
    {"minLength", STRING},
    {"maxLength", STRING},
};
enum { KEYWORDS = sizeof keywords / sizeof *keywords };

/* Which kinds of keywords a schema has, one bit each, and its CHOICE; a keyword that is not supported is
 * refused. */
static int read_keywords(compiler *c, const json_t *schema, unsigned *kinds, const char **choice) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)schema, key, value) {
    size_t i = 0;
    while (i < KEYWORDS && strcmp(keywords[i].name, key) != 0) i++;
    if (i == KEYWORDS) return refuse(c, ERR_UNSUPPORTED, key, "is not supported: leave it out");
    if (keywords[i].kind == CHOICE && *choice)
      return refuse(c, ERR_UNSUPPORTED, key, "beside another choice is not supported: use one of them");
    if (keywords[i].kind == CHOICE) *choice = key;
    *kinds |= 1u << keywords[i].kind;
  }
  return ERR_OK;
}

static int add_choice(compiler *c, text *t, const json_t *schema, const char *choice, unsigned kinds) {
  const json_t *value = json_object_get(schema, choice);
  bool values = strcmp(choice, "enum") == 0 || strcmp(choice, "const") == 0;
  unsigned beside = 1u << TELLS | 1u << CHOICE | (values ? 1u << TYPE : 0);
  if (kinds & ~beside) return refuse(c, ERR_UNSUPPORTED, choice, "beside other keywords is not supported");
  if (strcmp(choice, "$ref") == 0) return add_reference(c, t, value);
  if (strcmp(choice, "const") == 0) return add_value(c, t, value);
  if (strcmp(choice, "enum") == 0) return add_enum(c, t, value);
  return add_any(c, t, choice, value);
}

static int add_schema(compiler *c, text *t, const json_t *schema) {
  const json_t *type = json_object_get(schema, "type");
  const char *choice = NULL;
  unsigned kinds = 0;
  if (json_is_true(schema)) return add(c, t, "value ");
  if (!json_is_object(schema)) return refuse(c, ERR_ARG, "(a part)", "must be an object or true");
  int rc = read_keywords(c, schema, &kinds, &choice);
  if (rc) return rc;
  if (choice) return add_choice(c, t, schema, choice, kinds);
  if (type) return add_types(c, t, schema, type);
  if (kinds & 1u << OBJECT) return add_object(c, t, schema);
  if (kinds & 1u << ARRAY) return add_array(c, t, schema);
  return kinds & 1u << STRING ? add_string(c, t, schema) : add(c, t, "value ");
}

int json_schema_grammar(const json_t *schema, char **out, err *e) {
  text root = {0};
  *out = NULL;
  compiler *c = calloc(1, sizeof *c);
  if (!c) return err_set(e, ERR_NOMEM, "out of memory for a schema");
  c->root = schema;
  c->e = e;
  int rc = add_rule_of(c, &root, schema);
  if (rc == ERR_OK) rc = add(c, &c->out, "root ::= %s\n", root.data);
  if (rc == ERR_OK) rc = add_bytes(c, &c->out, common_rules, sizeof common_rules - 1);
  if (rc == ERR_OK)
    *out = c->out.data;
  else
    free(c->out.data);
  free(root.data);
  free(c);
  return rc;
}
