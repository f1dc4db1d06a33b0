#include "orchestrator/service/worker_report.h"

#include <jansson.h>

static json_t *text_of(wire_string text) {
  return json_stringn(text.data ? text.data : "", text.size);
}

static json_t *worker_json(const sessions_machine *s, wire_role role, int32_t index) {
  const msg_hello *h = sessions_worker(s, role, index);
  bool target = role == WIRE_ROLE_TARGET;
  json_t *worker = json_object();
  json_object_set_new(worker, "role", json_string(target ? "target" : "draft"));
  json_object_set_new(worker, target ? "numerics_id" : "method",
                      text_of(target ? h->numerics_id : h->method));
  if (target) json_object_set_new(worker, "endpoint", text_of(h->endpoint));
  json_object_set_new(worker, "load", json_integer(sessions_worker_load(s, role, index)));
  return worker;
}

char *worker_report_json(const sessions_machine *s) {
  static const wire_role roles[] = {WIRE_ROLE_TARGET, WIRE_ROLE_DRAFT};
  json_t *list = json_array();
  for (int r = 0; r < 2; r++)
    for (int32_t i = 0, n = sessions_worker_count(s, roles[r]); i < n; i++)
      json_array_append_new(list, worker_json(s, roles[r], i));
  char *text = json_dumps(list, JSON_COMPACT);
  json_decref(list);
  return text;
}
