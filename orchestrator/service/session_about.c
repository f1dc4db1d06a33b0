#include "orchestrator/service/session_about.h"

#include "common/command_line/flag_value.h"
#include "common/file/model_config.h"
#include <stdlib.h>

/* How it is drafted. An absolute path holds wherever the session goes on. */
static void put_draft(json_t *o, const request *r, const flag_values *s) {
  char *path = s->draft_model ? realpath(s->draft_model, NULL) : NULL;
  json_object_set_new(o, "draft", json_string(r->speculate ? s->draft : "none"));
  if (s->draft_model) json_object_set_new(o, "model_draft", json_string(path ? path : s->draft_model));
  if (s->draft_layers) json_object_set_new(o, "draft_layers", json_integer(s->draft_layers));
  free(path);
}

char *session_about_write(const request *r, const flag_values *s) {
  json_t *o = json_object(), *stops = json_array();
  for (int32_t i = 0; i < r->stop_count; i++) json_array_append_new(stops, json_string(r->stops[i]));
  if (r->title) json_object_set_new(o, "title", json_string(r->title));
  put_draft(o, r, s);
  char math[64];
  if (flag_print(flag_of(FLAG_math), s, math, sizeof math)) json_object_set_new(o, "math", json_string(math));
  json_object_set_new(o, "raw", json_boolean(r->raw));
  json_object_set_new(o, "stop", stops);
  char *text = json_dumps(o, JSON_COMPACT);
  json_decref(o);
  return text;
}

static const char *text_in(const json_t *object, const char *key) {
  return json_string_value(json_object_get(object, key));
}

void session_about_read(session_about *out, const char *text) {
  json_t *o = text ? json_loads(text, 0, NULL) : NULL;
  const json_t *stops = json_object_get(o, "stop");
  json_int_t layers = json_integer_value(json_object_get(o, "draft_layers"));
  *out = (session_about){.object = o,
                         .title = text_in(o, "title"),
                         .draft = text_in(o, "draft"),
                         .draft_model = text_in(o, "model_draft"),
                         .draft_layers = layers > 0 && layers <= MODEL_LAYERS_MAX ? (int32_t)layers : 0,
                         .math = text_in(o, "math"),
                         .raw = json_is_true(json_object_get(o, "raw"))};
  for (size_t i = 0; i < json_array_size(stops) && out->stop_count < DETOKENIZER_STOP_MAX; i++) {
    const char *stop = json_string_value(json_array_get(stops, i));
    if (stop && *stop) out->stops[out->stop_count++] = stop;
  }
}

void session_about_fini(session_about *a) {
  json_decref(a->object);
  *a = (session_about){0};
}
