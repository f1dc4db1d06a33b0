/* self_test.h - whether a device computes what ops.h defines: each op on small shapes, compared with the
 * plain C kernels ("cpu:c") to the bit. A device that other people's hardware or compilers made is tried so
 * before it is used; it takes some tens of milliseconds. */
#pragma once

#include "kernels/device.h"

/* ERR_UNSUPPORTED: an op gives other bits, or fails; the message names it. ERR_NOMEM. */
int self_test_run(device *d, err *e);
