#include "target_worker/device_loss.h"

#include "common/base/log.h"
#include "common/base/program.h"

bool device_loss_in(const engine_results *results) {
  for (int32_t i = 0; i < results->count; i++)
    if (results->of[i].code == ERR_DEVICE) return true;
  return false;
}

void device_loss_leave(step_context *c) {
  wire_brief name = wire_brief_of(c->peers->self.device);
  roster_bye(c->peers, c->out);
  for (int32_t i = 0; i < c->store->count; i++) {
    const session *s = &c->store->slots[i];
    if (s->state == SESSION_FREE || s->state == SESSION_FINISHED) continue;
    roster_error(c->peers, s->request.orchestrator, s->id, s->epoch, ERR_DEVICE, c->out,
                 "the target's device %s is lost", name.text);
  }
  actions_log(c->out, LOG_ERROR,
              "the device %s is lost (open sessions: %d, which other targets may take): see the system's log "
              "(dmesg), then start this program again, or with another --device",
              name.text, session_store_active(c->store));
  actions_exit(c->out, STATUS_DEVICE);
}
