#include "orchestrator/service/session_about.h"

#include <jansson.h>
#include <stdlib.h>

/* How it is drafted. An absolute path holds wherever the session goes on. */
static void put_draft(json_t *o, const request *r, const worker_settings *s) {
  char *path = s->draft_model ? realpath(s->draft_model, NULL) : NULL;
  json_object_set_new(o, "draft", json_string(r->speculate ? s->draft : "none"));
  if (s->draft_model) json_object_set_new(o, "model_draft", json_string(path ? path : s->draft_model));
  if (s->draft_layers) json_object_set_new(o, "draft_layers", json_integer(s->draft_layers));
  free(path);
}

char *session_about_write(const request *r, const worker_settings *s) {
  json_t *o = json_object(), *stops = json_array();
  for (int32_t i = 0; i < r->stop_count; i++) json_array_append_new(stops, json_string(r->stops[i]));
  if (r->title) json_object_set_new(o, "title", json_string(r->title));
  put_draft(o, r, s);
  json_object_set_new(o, "math", json_string(s->math));
  json_object_set_new(o, "raw", json_boolean(r->raw));
  json_object_set_new(o, "stop", stops);
  char *text = json_dumps(o, JSON_COMPACT);
  json_decref(o);
  return text;
}
