/* device_cuda.h - NVIDIA GPUs behind kernels/device.h: "cuda:0", "cuda:1", ... */
#pragma once

#include "kernels/device.h"

#ifdef TANDEM_CUDA_EMULATED
#define CUDA_DEVICE_PREFIX "emulated"
#else
#define CUDA_DEVICE_PREFIX "cuda"
#endif

/* name: what stands behind "cuda:", or "" for the first. ERR_ARG without a text: no such name.
 * ERR_UNSUPPORTED: this machine has no such device, or it cannot run this; the message says why. */
int cuda_device_open(device **out, const char *name, const device_options *o, mem *m, err *e);

/* The i-th device (devices.h: devices_entry). On a machine without any, the first one tells what is lacking.
 */
bool cuda_device_at(int32_t i, const char **name, const char **what, const char **lacks);

/* For tests: breaks the device, as a kernel does that reads memory it must not. */
void cuda_device_break(device *d);
