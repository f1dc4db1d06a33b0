/* host_id.h - tells whether two programs run on one host, which means: under one kernel, so that they share
 * its processors. Linux. */
#pragma once

#include "common/base/hash.h"

/* A name of this host that is equal for all its programs, those in containers included, and differs from
 * every other host's. It is a hash, so the system's own id is told to nobody. It may change when the host
 * boots. Zero: the system gives no id. root: where the system's files begin, "" but in tests. */
hash16 host_id(const char *root);
