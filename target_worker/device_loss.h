/* device_loss.h - the device is gone, and with it all that was on it: the target gives its sessions back to
 * their orchestrators at once, which open them elsewhere, and ends. */
#pragma once

#include "target_worker/engine.h"
#include "target_worker/step_context.h"

/* Does one of these results say that the device is lost? */
bool device_loss_in(const engine_results *results);
/* Says BYE to everybody, and ERROR(device_lost) about each session that has not finished; logs it, and ends
 * the program with STATUS_DEVICE. */
void device_loss_leave(step_context *c);
