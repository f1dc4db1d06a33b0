#include "orchestrator/service/worker_report.h"

#include <stdio.h>

#define ID_SIZE (2 * sizeof(wire_id) + 1)

static json_t *text_of(wire_string text) {
  return json_stringn(text.data ? text.data : "", text.size);
}

static json_t *id_of(wire_id id) {
  char text[ID_SIZE];
  for (size_t i = 0; i < sizeof id.bytes; i++) snprintf(text + 2 * i, 3, "%02x", id.bytes[i]);
  return json_string(text);
}

static json_t *worker_json(const sessions_machine *s, wire_role role, int32_t index) {
  const msg_hello *h = sessions_worker(s, role, index);
  bool target = role == WIRE_ROLE_TARGET;
  static const char *const states[] = {[SESSIONS_WORKER_READY] = "ready",
                                       [SESSIONS_WORKER_DRAINED] = "drained",
                                       [SESSIONS_WORKER_LEAVING] = "leaving"};
  json_t *worker = json_object();
  json_object_set_new(worker, "id", id_of(h->incarnation));
  json_object_set_new(worker, "state", json_string(states[sessions_worker_is(s, role, index)]));
  json_object_set_new(worker, "role", json_string(target ? "target" : "draft"));
  json_object_set_new(worker, target ? "numerics_id" : "method",
                      text_of(target ? h->numerics_id : h->method));
  if (target) json_object_set_new(worker, "endpoint", text_of(h->endpoint));
  json_object_set_new(worker, "device", text_of(h->device));
  json_object_set_new(worker, "load", json_integer(sessions_worker_load(s, role, index)));
  json_object_set_new(worker, "session_max", json_integer(h->session_max));
  return worker;
}

json_t *worker_report(const sessions_machine *s) {
  static const wire_role roles[] = {WIRE_ROLE_TARGET, WIRE_ROLE_DRAFT};
  json_t *list = json_array();
  for (int r = 0; r < 2; r++)
    for (int32_t i = 0, n = sessions_worker_count(s, roles[r]); i < n; i++)
      json_array_append_new(list, worker_json(s, roles[r], i));
  return list;
}
