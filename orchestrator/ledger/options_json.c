#include "orchestrator/ledger/options_json.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MIN 6 /* of a float; 9 tell every one from its neighbours */
#define DIGITS_MAX 9

typedef enum { FIELD_FLOAT, FIELD_INT32, FIELD_UINT32, FIELD_UINT64, FIELD_BOOL } field_kind;

typedef struct field {
  const char *name;
  field_kind kind;
  size_t offset; /* in msg_options */
} field;

#define FIELD(name, kind)                                                                                    \
  { #name, FIELD_##kind, offsetof(msg_options, name) }
static const field fields[] = {
    FIELD(max_tokens, INT32), FIELD(temperature, FLOAT),    FIELD(top_k, INT32),   FIELD(top_p, FLOAT),
    FIELD(min_p, FLOAT),      FIELD(repeat_penalty, FLOAT), FIELD(seed, UINT64),   FIELD(choice, UINT32),
    FIELD(context, INT32),    FIELD(budget, INT32),         FIELD(lockstep, BOOL), FIELD(selfcheck, INT32),
    FIELD(single, BOOL),
};
static const field penalties[] = {FIELD(presence_penalty, FLOAT), FIELD(frequency_penalty, FLOAT)};
#undef FIELD
#define FIELD(name)                                                                                          \
  { #name, FIELD_INT32, offsetof(msg_partial, name) }
static const field partial_fields[] = {FIELD(block),  FIELD(sink),      FIELD(retrieval), FIELD(window),
                                       FIELD(buffer), FIELD(threshold), FIELD(refresh)};
#undef FIELD
enum {
  FIELD_COUNT = sizeof fields / sizeof *fields,
  PENALTY_COUNT = sizeof penalties / sizeof *penalties,
  PARTIAL_COUNT = sizeof partial_fields / sizeof *partial_fields
};

static const float *penalty_in(const msg_options *o, int i) {
  return (const float *)((const char *)o + penalties[i].offset);
}

static int32_t *partial_in(msg_partial *p, int i) {
  return (int32_t *)((char *)p + partial_fields[i].offset);
}

/* The shortest decimal number that is read as the same float. */
static json_t *shortest(float x) {
  char text[32];
  for (int digits = DIGITS_MIN; digits <= DIGITS_MAX; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, (double)x);
    if (strtof(text, NULL) == x) break;
  }
  return json_real(strtod(text, NULL));
}

static json_t *value_of(const msg_options *o, const field *f) {
  const void *at = (const char *)o + f->offset;
  switch (f->kind) {
  case FIELD_FLOAT:
    return shortest(*(const float *)at);
  case FIELD_INT32:
    return json_integer(*(const int32_t *)at);
  case FIELD_UINT32:
    return json_integer(*(const uint32_t *)at);
  case FIELD_UINT64:
    return json_integer((json_int_t) * (const uint64_t *)at);
  default:
    return json_boolean(*(const bool *)at);
  }
}

static json_t *partial_object(const msg_partial *p) {
  json_t *object = json_pack("{s:i}", "mode", (int)p->mode);
  for (int i = 0; i < PARTIAL_COUNT; i++)
    json_object_set_new(object, partial_fields[i].name, json_integer(*partial_in((msg_partial *)p, i)));
  return object;
}

/* What few requests have is left out where it does nothing. */
static void put_adjustment(json_t *object, const msg_options *o) {
  json_t *bias = o->bias_count > 0 ? json_object() : NULL;
  for (int32_t i = 0; i < o->bias_count; i++) {
    char token[16];
    snprintf(token, sizeof token, "%d", o->bias_tokens[i]);
    json_object_set_new(bias, token, shortest(o->bias_values[i]));
  }
  for (int i = 0; i < PENALTY_COUNT; i++)
    if (*penalty_in(o, i) != 0) json_object_set_new(object, penalties[i].name, shortest(*penalty_in(o, i)));
  if (bias) json_object_set_new(object, "logit_bias", bias);
  if (o->partial.mode != WIRE_PARTIAL_OWN)
    json_object_set_new(object, "partial_kv", partial_object(&o->partial));
  if (o->grammar_size > 0) json_object_set_new(object, "grammar", json_stringn(o->grammar, o->grammar_size));
}

json_t *options_json_object(const msg_options *o) {
  json_t *object = json_object(), *stops = json_array();
  for (int i = 0; i < FIELD_COUNT; i++) json_object_set_new(object, fields[i].name, value_of(o, &fields[i]));
  for (int32_t i = 0; i < o->stop_count; i++) json_array_append_new(stops, json_integer(o->stops[i]));
  json_object_set_new(object, "stop_ids", stops);
  put_adjustment(object, o);
  return object;
}

char *options_json_text(const msg_options *o) {
  json_t *object = options_json_object(o);
  char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS_MAX)) : NULL;
  json_decref(object);
  return text;
}

/* ---- back ---- */

static bool take_value(msg_options *o, const field *f, const json_t *value) {
  void *at = (char *)o + f->offset;
  json_int_t n = json_integer_value(value);
  switch (f->kind) {
  case FIELD_FLOAT:
    *(float *)at = (float)json_number_value(value);
    return json_is_number(value);
  case FIELD_INT32:
    *(int32_t *)at = (int32_t)n;
    return json_is_integer(value) && n >= INT32_MIN && n <= INT32_MAX;
  case FIELD_UINT32:
    *(uint32_t *)at = (uint32_t)n;
    return json_is_integer(value) && n >= 0 && n <= UINT32_MAX;
  case FIELD_UINT64:
    *(uint64_t *)at = (uint64_t)n;
    return json_is_integer(value);
  default:
    *(bool *)at = json_is_true(value);
    return json_is_boolean(value);
  }
}

static bool take_stops(const json_t *list, msg_options *out, int32_t stops[WIRE_STOPS_MAX]) {
  size_t count = json_array_size(list);
  if (!json_is_array(list) || count > WIRE_STOPS_MAX) return false;
  for (size_t i = 0; i < count; i++) {
    const json_t *id = json_array_get(list, i);
    json_int_t n = json_integer_value(id);
    if (!json_is_integer(id) || n < 0 || n > INT32_MAX) return false;
    stops[i] = (int32_t)n;
  }
  out->stops = stops;
  out->stop_count = (int32_t)count;
  return true;
}

/* Of a token's decimal digits; -1: they are none. */
static int32_t token_of(const char *text) {
  char *end;
  errno = 0;
  long n = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;
  return n >= 0 && n <= INT32_MAX && !errno && !*end ? (int32_t)n : -1;
}

int options_json_bias(const json_t *object, const char *name, msg_bias *out, int32_t *count, err *e) {
  const char *key;
  const json_t *value;
  *count = 0;
  if (!json_is_object(object))
    return err_set(e, ERR_ARG, "%s must be an object such as {\"15043\": -100}", name);
  if (json_object_size(object) > SAMPLER_BIAS_MAX)
    return err_set(e, ERR_ARG, "%s may have %d tokens, not %zu", name, SAMPLER_BIAS_MAX,
                   json_object_size(object));
  json_object_foreach((json_t *)object, key, value) {
    float x = (float)json_number_value(value);
    int32_t token = token_of(key);
    if (token < 0) return err_set(e, ERR_ARG, "%s has \"%.20s\", which is no token id", name, key);
    if (!json_is_number(value) || !(x >= -SAMPLER_BIAS_VALUE_MAX && x <= SAMPLER_BIAS_VALUE_MAX))
      return err_set(e, ERR_ARG, "%s of token %d must be a number from %g to %g", name, token,
                     (double)-SAMPLER_BIAS_VALUE_MAX, (double)SAMPLER_BIAS_VALUE_MAX);
    out->tokens[*count] = token;
    out->values[(*count)++] = x;
  }
  return ERR_OK;
}

/* The key of what is wrong, or NULL. */
static const char *take_adjustment(const json_t *object, msg_options *out, msg_bias *bias) {
  const json_t *value;
  err unused;
  for (int i = 0; i < PENALTY_COUNT; i++)
    if ((value = json_object_get(object, penalties[i].name)) && !take_value(out, &penalties[i], value))
      return penalties[i].name;
  out->bias_tokens = bias->tokens;
  out->bias_values = bias->values;
  value = json_object_get(object, "logit_bias");
  if (!value) return NULL;
  return options_json_bias(value, "logit_bias", bias, &out->bias_count, &unused) ? "logit_bias" : NULL;
}

static bool take_partial(const json_t *object, msg_partial *out) {
  const json_int_t mode = json_integer_value(json_object_get(object, "mode"));
  if (!object) return true;
  if (mode < WIRE_PARTIAL_OFF || mode > WIRE_PARTIAL_LOSSY) return false;
  out->mode = (wire_partial)mode;
  for (int i = 0; i < PARTIAL_COUNT; i++) {
    const json_t *value = json_object_get(object, partial_fields[i].name);
    const json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || n > INT32_MAX) return false;
    *partial_in(out, i) = (int32_t)n;
  }
  err e;
  return msg_partial_check(out, &e) == ERR_OK;
}

static bool take_grammar(const json_t *value, msg_options *out, char **grammar) {
  size_t size = json_string_length(value);
  if (!value) return true;
  if (!json_is_string(value) || size < 1 || size > WIRE_GRAMMAR_MAX) return false;
  *grammar = strndup(json_string_value(value), size);
  out->grammar = *grammar;
  out->grammar_size = (uint32_t)size;
  return *grammar && strlen(*grammar) == size;
}

int options_json_read(const char *text, msg_options *out, int32_t stops[WIRE_STOPS_MAX], msg_bias *bias,
                      char **grammar, err *e) {
  *out = (msg_options){0};
  *grammar = NULL;
  json_t *object = text ? json_loads(text, 0, NULL) : NULL;
  const char *wrong = object ? NULL : "(no JSON)";
  for (int i = 0; i < FIELD_COUNT && !wrong; i++)
    if (!take_value(out, &fields[i], json_object_get(object, fields[i].name))) wrong = fields[i].name;
  if (!wrong && !take_stops(json_object_get(object, "stop_ids"), out, stops)) wrong = "stop_ids";
  if (!wrong) wrong = take_adjustment(object, out, bias);
  if (!wrong && !take_partial(json_object_get(object, "partial_kv"), &out->partial)) wrong = "partial_kv";
  if (!wrong && !take_grammar(json_object_get(object, "grammar"), out, grammar)) wrong = "grammar";
  json_decref(object);
  if (!wrong) return ERR_OK;
  free(*grammar);
  *grammar = NULL;
  return err_set(e, ERR_FORMAT, "its options are damaged: %s", wrong);
}
