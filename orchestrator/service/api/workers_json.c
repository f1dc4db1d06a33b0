#include "orchestrator/service/api/workers_json.h"

#include "orchestrator/service/worker_report.h"
#include <string.h>

json_t *workers_json_list(const service *s) {
  const sessions_machine *m = service_sessions(s);
  return json_pack("{s:s, s:o}", "object", "list", "data", m ? worker_report(m) : json_array());
}

/* False: these are not its digits. */
static bool read_id(const char *text, wire_id *out) {
  return strlen(text) == 2 * sizeof out->bytes && hash_read_hex(text, sizeof out->bytes, out->bytes);
}

int workers_json_change(service *s, const char *id, const json_t *body, json_t **out, err *e) {
  const json_t *drained = json_object_get(body, "drained");
  wire_id worker = {{0}};
  if (!json_is_boolean(drained)) return err_set(e, ERR_ARG, "'drained' must be true or false");
  int rc = read_id(id, &worker) ? service_drain(s, worker, json_is_true(drained), e)
                                : err_set(e, ERR_GONE, "a worker's id has 32 hexadecimal digits");
  if (rc == ERR_OK) *out = workers_json_list(s);
  return rc;
}
