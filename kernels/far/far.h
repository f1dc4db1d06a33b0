/* far.h - a device for tests: another device, made as remote as a GPU, so that code which would only work on
 * the host's own memory fails where no GPU is. docs/DEVICES.md says what it proves.
 *
 * - What it hands out for memory, activations and caches are addresses of pages that nobody can read.
 * - It only queues. Maps, commits and forwards run at `wait`, `read` or `act_read`, in order, from copies.
 *   The copies are overwritten when the inner device's function has returned.
 * - Windows, tokens and logits lie in pages that nobody can read once they are invalid.
 * - A call that breaks a rule of device.h or ops.h ends the program, with a sentence that names the rule.
 * - It fails on request. */
#pragma once

#include "kernels/device.h"
#include "kernels/far/far_faults.h"

/* Wraps `inner`, which it closes in any case. ERR_ARG (TANDEM_FAR is not as above), ERR_NOMEM. */
int far_open(device **out, device *inner, err *e);
/* d was opened by far_open. */
void far_set_faults(device *d, const far_faults *faults);
/* It is only tried: of its faults, those stay that make it compute wrongly. */
void far_try(device *d);
