/* devices.h - the devices that this program was built with. device_open (kernels/device.h) is here too: what
 * knows all devices stands above them. */
#pragma once

#include "kernels/device.h"

/* The i-th device that this machine has, "cpu:c" first, or NULL: a static string for device_open. */
const char *devices_name(int32_t i);
