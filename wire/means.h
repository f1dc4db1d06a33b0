/* means.h - whether this process may have what ZeroMQ takes without asking: where it gets no descriptor or
 * thread, it ends the program with abort(). Looked at before the first socket. Private to wire/. */
#pragma once

#include "common/base/err.h"

#define MEANS_FILES   64 /* a program with one peer has about 40 descriptors */
#define MEANS_THREADS 4  /* ZeroMQ's two, the keys' gate, and the engine's first */

/* ERR_LIMIT names the limit that is too low, and what is needed. */
int means_check(err *e);
