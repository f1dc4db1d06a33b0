#include "orchestrator/ledger/options_json.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

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
#undef FIELD
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

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

json_t *options_json_object(const msg_options *o) {
  json_t *object = json_object(), *stops = json_array();
  for (int i = 0; i < FIELD_COUNT; i++) json_object_set_new(object, fields[i].name, value_of(o, &fields[i]));
  for (int32_t i = 0; i < o->stop_count; i++) json_array_append_new(stops, json_integer(o->stops[i]));
  json_object_set_new(object, "stop_ids", stops);
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

int options_json_read(const char *text, msg_options *out, int32_t stops[WIRE_STOPS_MAX], err *e) {
  *out = (msg_options){0};
  json_t *object = text ? json_loads(text, 0, NULL) : NULL;
  const char *wrong = object ? NULL : "(no JSON)";
  for (int i = 0; i < FIELD_COUNT && !wrong; i++)
    if (!take_value(out, &fields[i], json_object_get(object, fields[i].name))) wrong = fields[i].name;
  if (!wrong && !take_stops(json_object_get(object, "stop_ids"), out, stops)) wrong = "stop_ids";
  json_decref(object);
  return wrong ? err_set(e, ERR_FORMAT, "its options are damaged: %s", wrong) : ERR_OK;
}
