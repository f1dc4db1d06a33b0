/* device_error.h - what a device says (ops_code), as one of the world's errors. */
#pragma once

#include "common/base/err.h"
#include "kernels/ops.h"

static inline int device_error(ops_code code) {
  return code == OPS_OK ? ERR_OK : code == OPS_LOST ? ERR_DEVICE : ERR_INTERNAL;
}
